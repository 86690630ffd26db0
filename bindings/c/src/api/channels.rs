//! Channels with owners: opening and closing them, taking from them, answering within callbacks, and sending from other threads.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_node::{ChannelOptions, MessageSender, Waker};

use super::messages::{borrow, read_channel, read_channel_id, receive, source_of};
use super::polling::Callbacks;
use super::{TsumujiHandler, TsumujiMessage, answer, count, done, number};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Tsumuji, contained, on};
use crate::objects;
use crate::within;

/// What waits on an opened channel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiChannel {
    /// Messages that arrived and were not taken.
    pub messages: usize,
    /// What they and those that are borrowed take, with 64 bytes for each.
    pub used_bytes: usize,
    /// As tsumuji_open_channel said.
    pub budget_bytes: usize,
    /// Peers that were told to stop sending on it, and not yet to go on.
    pub stopped_peers: usize,
}

/// Keeps what comes on `channel_id`, in every class and priority, apart from all else: for tsumuji_recv_on, tsumuji_recv_borrow_on and
/// tsumuji_poll_on; or, if handler is not NULL, for its callbacks, which are called by whichever thread drives the endpoint: one
/// that calls, or the progress assistant while the program computes. What waits or is borrowed counts against budget_bytes (0: 4 MiB), beside
/// the endpoint's own budget, so a channel that nobody reads holds up no other. When half is used, peers are told to stop sending
/// on it. What came before is its first. Its datagrams belong to it, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_open_channel(
    handle: *mut Tsumuji,
    channel_id: c_int,
    budget_bytes: usize,
    handler: *const TsumujiHandler,
) -> c_int {
    // SAFETY: the header asks for what `on` and `read` need.
    done(unsafe {
        on(handle, |node| {
            let channel_id = read_channel_id(channel_id)?;
            let mut options = ChannelOptions::default();
            if budget_bytes > 0 {
                options.budget_bytes = budget_bytes;
            }
            if handler.is_null() {
                return Ok(node.endpoint.open(channel_id, options)?);
            }
            let callbacks = Callbacks::read(handler)?;
            Ok(node.endpoint.open_with(channel_id, options, callbacks)?)
        })
    })
}

/// Ends what tsumuji_open_channel began; its handler is called no more. Messages that nobody took are dropped; returns how many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_close_channel(handle: *mut Tsumuji, channel_id: c_int) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    number(unsafe {
        on(handle, |node| {
            let dropped = node.endpoint.close_channel(read_channel_id(channel_id)?)?;
            Ok(count(dropped))
        })
    })
}

/// What waits on an opened channel; size: sizeof(tsumuji_channel).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_channel_state(
    handle: *mut Tsumuji,
    channel_id: c_int,
    state: *mut TsumujiChannel,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `on` and `put_struct` need.
    done(unsafe {
        on(handle, |node| {
            let channel_id = read_channel_id(channel_id)?;
            let found = node.endpoint.channel(channel_id).ok_or_else(|| {
                Failure::invalid(format!("channel {channel_id} is not open; open it first"))
            })?;
            let shown = TsumujiChannel {
                messages: found.messages,
                used_bytes: found.used_bytes,
                budget_bytes: found.budget_bytes,
                stopped_peers: found.stopped_peers,
            };
            ffi::put_struct(state, size, &shown)
        })
    })
}

/// Waits for a whole message on an opened channel (-1: on those that nobody opened) from a peer (-1: from anyone) without taking it. 1: there
/// is one, of *bytes bytes (bytes may be NULL); 0: the time has passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_ready_on(
    handle: *mut Tsumuji,
    channel_id: c_int,
    from: c_int,
    bytes: *mut usize,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `on` and `put_if_wanted` need.
    answer(unsafe {
        on(handle, |node| {
            let source = source_of(node, (channel_id, from))?;
            let timeout = ffi::timeout(timeout_us);
            let found = (node.endpoint).ready_on(source.channel_id, source.from, timeout)?;
            ffi::put_if_wanted(bytes, found.unwrap_or(0));
            Ok(found.is_some())
        })
    })
}

/// Takes the next message of an opened channel (-1: of those that nobody opened) from a peer (-1: from anyone), as tsumuji_recv does.
/// TSUMUJI_EAGAIN with a timeout_us of 0: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv_on(
    handle: *mut Tsumuji,
    channel_id: c_int,
    from: c_int,
    buffer: *mut c_void,
    room: usize,
    about: *mut TsumujiMessage,
    timeout_us: i64,
) -> isize {
    // SAFETY: the header asks for what `receive` needs.
    unsafe {
        receive(
            handle,
            (channel_id, from),
            (buffer, room),
            about,
            timeout_us,
        )
    }
}

/// Lends it, as tsumuji_recv_borrow does. It counts against the channel's budget until it is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv_borrow_on(
    handle: *mut Tsumuji,
    channel_id: c_int,
    from: c_int,
    message: *mut TsumujiMessage,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `borrow` needs.
    unsafe { borrow(handle, (channel_id, from), message, timeout_us) }
}

/// As tsumuji_poll, of a channel that was opened without a handler: what comes on others waits for those who take it, and only `message`
/// and `datagram` are called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_poll_on(
    handle: *mut Tsumuji,
    channel_id: c_int,
    handler: *const TsumujiHandler,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `on` and `read` need.
    number(unsafe {
        on(handle, |node| {
            let mut callbacks = Callbacks::read(handler)?;
            let channel_id = read_channel_id(channel_id)?;
            let timeout = ffi::timeout(timeout_us);
            let done = if timeout.is_zero() {
                node.endpoint.poll_on(channel_id, &mut callbacks)?
            } else {
                (node.endpoint).poll_on_wait(channel_id, &mut callbacks, timeout)?
            };
            Ok(count(done))
        })
    })
}

/// Within a callback: sends a copy to whom the message came from, by its channel, when the callback's turn ends. TSUMUJI_EAGAIN: too much waits
/// to be sent by callbacks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_reply(
    message: *const TsumujiMessage,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    done(contained(|| {
        // SAFETY: the header asks for what `name_of` and `bytes` need.
        let (name, data) = unsafe { (name_of(message)?, ffi::bytes(data, bytes)?) };
        within::with(name, |context| Ok(context.reply(data)?))
    }))
}

/// Within a callback: sends a copy to any peer, by any channel, when the callback's turn ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_send_from(
    message: *const TsumujiMessage,
    to: c_int,
    channel: c_int,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    done(contained(|| {
        // SAFETY: the header asks for what `name_of` and `bytes` need.
        let (name, data) = unsafe { (name_of(message)?, ffi::bytes(data, bytes)?) };
        let channel = read_channel(channel)?;
        let to = u16::try_from(to).map_err(|_| Failure::unknown(to))?;
        within::with(name, |context| {
            Ok(context.send(tsumuji_node::NodeId(to), channel, data)?)
        })
    }))
}

/// # Safety
/// NULL, or a message that a callback was shown.
unsafe fn name_of(message: *const TsumujiMessage) -> Result<u64, Failure> {
    if message.is_null() {
        return Err(Failure::invalid("the message is NULL"));
    }
    // SAFETY: the caller promises it.
    Ok(unsafe { message.read_unaligned() }.borrow)
}

/// Reaches an endpoint from any thread; tsumuji_thread_sender_new makes one.
#[derive(Debug)]
pub struct TsumujiThreadSender {
    sender: MessageSender,
    waker: Waker,
}

/// By which any thread sends messages of this endpoint, and ends its waits. To be freed; it outlives the endpoint, and says so then. NULL:
/// an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_thread_sender_new(
    handle: *mut Tsumuji,
) -> *mut TsumujiThreadSender {
    // SAFETY: the header asks for what `on` needs.
    let made = unsafe {
        on(handle, |node| {
            Ok(TsumujiThreadSender {
                sender: node.endpoint.sender(),
                waker: node.endpoint.waker(),
            })
        })
    };
    match made {
        Ok(made) => objects::give(made),
        Err(failure) => {
            failure.report();
            std::ptr::null_mut()
        }
    }
}

/// Frees it. NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_thread_sender_free(sender: *mut TsumujiThreadSender) {
    objects::free(sender);
}

/// Sends a copy from any thread; waits up to timeout_us microseconds (negative: without limit) while too much waits to be sent by threads,
/// and says TSUMUJI_EAGAIN then. It leaves when the endpoint is driven next; the progress assistant is woken for it. Messages of one
/// thread to one peer and channel arrive in the order sent. TSUMUJI_EINVAL (errno EBADF): the endpoint was closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_thread_send(
    sender: *const TsumujiThreadSender,
    to: c_int,
    channel: c_int,
    data: *const c_void,
    bytes: usize,
    timeout_us: i64,
) -> c_int {
    done(contained(|| {
        let by = objects::with(sender, "the sender", |found| Ok(found.sender.clone()))?;
        let node = u16::try_from(to).map_err(|_| Failure::unknown(to))?;
        // SAFETY: the header asks for what `bytes` needs.
        let message = unsafe { ffi::bytes(data, bytes)? };
        let (to, channel) = (tsumuji_node::NodeId(node), read_channel(channel)?);
        Ok(by.send(to, channel, message.to_vec(), ffi::timeout(timeout_us))?)
    }))
}

/// Ends the call in which the endpoint waits for something to arrive, as if its time had passed; if there is none, the next one.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_thread_wake(sender: *const TsumujiThreadSender) -> c_int {
    done(contained(|| {
        let by = objects::with(sender, "the sender", |found| Ok(found.waker.clone()))?;
        by.wake();
        Ok(())
    }))
}
