//! Opened channels: opening and closing, receiving, replies within callbacks, and sends from other threads.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_node::{ChannelOptions, MessageSender, Waker};

use super::messages::{
    borrow, read_channel, read_channel_id, read_received_id, receive, source_of,
};
use super::polling::Callbacks;
use super::{TsumujiHandler, TsumujiMessage, answer, count, done, number};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, contained, on};
use crate::objects;
use crate::within;

/// State of an opened channel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiChannel {
    /// Messages that arrived and were not taken.
    pub messages: usize,
    /// Bytes of these and of borrowed messages, with 64 for each.
    pub used_bytes: usize,
    /// Budget given to tsumuji_open_channel.
    pub budget_bytes: usize,
    /// Peers that were told to stop sending on it, and not yet to go on.
    pub stopped_peers: usize,
}

/// Opens `channel_id`, in every class and priority, with its own mailbox for tsumuji_recv_on, tsumuji_recv_borrow_on and tsumuji_poll_on; or, if
/// handler is not NULL, with callbacks, called by whichever thread drives the endpoint: a calling thread, or the progress assistant while the program
/// computes. Waiting and borrowed messages count against budget_bytes (0: 4 MiB), apart from the endpoint's own budget, so an unread channel does not
/// block others, except by a message longer than the endpoint's budget (see tsumuji_send). When half is used, peers are told to stop sending on it.
/// Messages that arrived before come first. Its datagrams belong to it, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_open_channel(
    handle: Handle,
    channel_id: c_int,
    budget_bytes: usize,
    handler: *const TsumujiHandler,
) -> c_int {
    // SAFETY: the header asks for what `read` needs.
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

/// Closes an opened channel; its handler is not called any more. Messages that were not taken are dropped; returns their number.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_close_channel(handle: Handle, channel_id: c_int) -> c_int {
    number(on(handle, |node| {
        let channel_id = read_received_id(node, channel_id)?;
        let dropped = node.endpoint.close_channel(channel_id)?;
        Ok(count(dropped))
    }))
}

/// State of an opened channel; size: sizeof(tsumuji_channel).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_channel_state(
    handle: Handle,
    channel_id: c_int,
    state: *mut TsumujiChannel,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
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

/// Waits for a whole message on an opened channel (-1: on those that nobody opened) from a peer (-1: from any) without taking it. 1: *bytes is its
/// length (bytes may be NULL); 0: none within timeout_us. TSUMUJI_EPEER: that peer is dead, and has left no message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_ready_on(
    handle: Handle,
    channel_id: c_int,
    from: c_int,
    bytes: *mut usize,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `put_if_wanted` needs.
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

/// As tsumuji_recv, for an opened channel (-1: for those that nobody opened) and a peer (-1: any). TSUMUJI_EPEER: that peer is dead, and has left no
/// message; one that is up again is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv_on(
    handle: Handle,
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

/// As tsumuji_recv_borrow, for channel and peer as in tsumuji_recv_on, TSUMUJI_EPEER included. The message counts against the channel's budget until it is
/// released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv_borrow_on(
    handle: Handle,
    channel_id: c_int,
    from: c_int,
    message: *mut TsumujiMessage,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `borrow` needs.
    unsafe { borrow(handle, (channel_id, from), message, timeout_us) }
}

/// As tsumuji_poll, for a channel that was opened without a handler: messages of other channels wait for their receivers, and only `message` and
/// `datagram` are called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_poll_on(
    handle: Handle,
    channel_id: c_int,
    handler: *const TsumujiHandler,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `read` needs.
    number(unsafe {
        on(handle, |node| {
            let mut callbacks = Callbacks::read(handler)?;
            let channel_id = read_received_id(node, channel_id)?;
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

/// Within a callback: sends a copy to the sender of the message, on its channel, at the end of the poll. TSUMUJI_EAGAIN: too many bytes sent by
/// callbacks wait already.
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

/// Within a callback: sends a copy to any peer, on any channel, at the end of the poll.
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
/// NULL, or a message given to a callback.
unsafe fn name_of(message: *const TsumujiMessage) -> Result<u64, Failure> {
    if message.is_null() {
        return Err(Failure::invalid("the message is NULL"));
    }
    // SAFETY: the caller promises it.
    Ok(unsafe { message.read_unaligned() }.borrow)
}

/// A handle with which any thread reaches an endpoint; see tsumuji_thread_sender_new.
#[derive(Debug)]
pub struct TsumujiThreadSender {
    sender: MessageSender,
    waker: Waker,
}

/// Makes an object with which any thread sends messages of this endpoint, and ends its waits. Free it with tsumuji_thread_sender_free; it may outlive
/// the endpoint. NULL: an error.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_thread_sender_new(handle: Handle) -> *mut TsumujiThreadSender {
    let made = on(handle, |node| {
        Ok(TsumujiThreadSender {
            sender: node.endpoint.sender(),
            waker: node.endpoint.waker(),
        })
    });
    match made {
        Ok(made) => objects::give(made),
        Err(failure) => {
            failure.report();
            std::ptr::null_mut()
        }
    }
}

/// Frees a sender. NULL has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_thread_sender_free(sender: *mut TsumujiThreadSender) {
    objects::free(sender);
}

/// Sends a copy from any thread. If too many bytes of threads wait already, it waits up to timeout_us microseconds (negative: without limit), and
/// then returns TSUMUJI_EAGAIN. The message leaves when the endpoint is driven next; the progress assistant is woken. Messages of one thread to one
/// peer and channel arrive in the order sent. TSUMUJI_EINVAL (errno EBADF): the endpoint was closed.
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

/// Ends the endpoint's present wait for an arrival, as if its time had passed; if there is none, the next one.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_thread_wake(sender: *const TsumujiThreadSender) -> c_int {
    done(contained(|| {
        let by = objects::with(sender, "the sender", |found| Ok(found.waker.clone()))?;
        by.wake();
        Ok(())
    }))
}
