//! Messages: blocking, non-blocking and tracked sends; receiving into the program's buffer or as borrowed messages.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_node::{Bytes, Channel, DeliveryClass, NodeId, Priority, SendId};

use super::{answer, done, number, size};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, contained, on};
use crate::node::{Node, Source};

/// Class: messages of one channel arrive in the order sent.
pub const TSUMUJI_ORDERED: c_int = 0;
/// Class: messages arrive when they are complete.
pub const TSUMUJI_UNORDERED: c_int = 1;
/// Most urgent priority; priorities are 0 to 3. Urgent messages leave before all others that wait, but share with them the room of the queue to a peer
/// (option send-queue) and the receiver's memory: where either is used up, they wait, too.
pub const TSUMUJI_URGENT: c_int = 0;
/// The usual priority.
pub const TSUMUJI_NORMAL: c_int = 2;
/// The least urgent: bulk transfers.
pub const TSUMUJI_BULK: c_int = 3;
/// Number of channel ids for programs, in each class and priority: 0 to 65279. Higher ids are for libraries.
pub const TSUMUJI_CHANNEL_IDS: c_int = 65_280;
/// The channel that most programs use: ordered, of normal priority, with id 0.
pub const TSUMUJI_DEFAULT_CHANNEL: c_int = 0x20000;
/// Added to the channel of a tsumuji_send: more messages follow at once, so this one may wait for the next that is sent without it, for a call that
/// polls, or for the assistant. Waiting messages share frames and calls of the link.
pub const TSUMUJI_MORE: c_int = 0x4000_0000;
/// A wait without limit.
pub const TSUMUJI_FOREVER: i64 = -1;

const _: () = assert!(TSUMUJI_DEFAULT_CHANNEL == Channel::ordered(0).number() as c_int);
const _: () = assert!(TSUMUJI_URGENT == Priority::URGENT.get() as c_int);
const _: () = assert!(TSUMUJI_NORMAL == Priority::NORMAL.get() as c_int);
const _: () = assert!(TSUMUJI_BULK == Priority::BULK.get() as c_int);
const _: () = assert!(TSUMUJI_CHANNEL_IDS == Channel::LIBRARY_IDS as c_int);

/// A message that arrived. The data of a borrowed message are valid until tsumuji_release.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiMessage {
    /// The message; NULL if it was copied to the program's own buffer.
    pub data: *const c_void,
    /// Its length in bytes.
    pub bytes: usize,
    /// The sender.
    pub from: c_int,
    /// The channel on which it was sent.
    pub channel: c_int,
    /// Number of a borrowed message, for tsumuji_release.
    pub borrow: u64,
}

impl TsumujiMessage {
    pub(super) fn of(data: *const c_void, bytes: usize, from: NodeId, channel: Channel) -> Self {
        Self {
            data,
            bytes,
            from: from.0.into(),
            channel: channel_number(channel),
            borrow: 0,
        }
    }

    /// Without its data, which were copied.
    pub(super) fn copied(bytes: usize, from: NodeId, channel: Channel) -> Self {
        Self::of(std::ptr::null(), bytes, from, channel)
    }
}

/// The channel of a class (TSUMUJI_ORDERED or TSUMUJI_UNORDERED), a priority (0 to 3) and an id (below TSUMUJI_CHANNEL_IDS), or a code below 0.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_channel_of(class_: c_int, priority: c_int, channel_id: c_int) -> c_int {
    number(channel_of(class_, priority, channel_id))
}

fn channel_of(class: c_int, priority: c_int, channel_id: c_int) -> Result<c_int, Failure> {
    let class = match class {
        TSUMUJI_ORDERED => DeliveryClass::Ordered,
        TSUMUJI_UNORDERED => DeliveryClass::Unordered,
        _ => {
            return Err(Failure::invalid(
                "accepted classes are TSUMUJI_ORDERED and TSUMUJI_UNORDERED",
            ));
        }
    };
    let priority = u8::try_from(priority)
        .ok()
        .and_then(Priority::new)
        .ok_or_else(|| Failure::invalid("accepted priorities are 0 to 3"))?;
    Ok(channel_number(Channel::new(
        class,
        priority,
        read_channel_id(channel_id)?,
    )))
}

/// Any peer, on channels that nobody opened.
pub(super) const ANY: (c_int, c_int) = (-1, -1);

/// Checks a channel id from C.
pub(super) fn read_channel_id(channel_id: c_int) -> Result<u16, Failure> {
    let last = TSUMUJI_CHANNEL_IDS - 1;
    u16::try_from(channel_id)
        .ok()
        .filter(|channel_id| c_int::from(*channel_id) <= last)
        .ok_or_else(|| Failure::invalid(format!("accepted channel ids are 0 to {last}")))
}

/// Checks the id of a channel from which the program itself receives.
pub(super) fn read_received_id(node: &Node, channel_id: c_int) -> Result<u16, Failure> {
    let channel_id = read_channel_id(channel_id)?;
    if node.boards.contains_key(&channel_id) {
        return Err(Failure::invalid(format!(
            "channel {channel_id} belongs to a board, which takes what arrives there"
        )));
    }
    Ok(channel_id)
}

/// Reads a channel id (-1: channels that nobody opened) and a peer (-1: any).
pub(super) fn source_of(
    node: &Node,
    (channel_id, from): (c_int, c_int),
) -> Result<Source, Failure> {
    Ok(Source {
        channel_id: (channel_id != -1)
            .then(|| read_received_id(node, channel_id))
            .transpose()?,
        from: (from != -1).then(|| node.peer(from)).transpose()?,
    })
}

/// The number that C gets for a message: never 0.
pub(super) fn number_of(id: SendId) -> u64 {
    id.0.wrapping_add(1)
}

fn read_id(number: u64) -> Result<SendId, Failure> {
    let id = number.checked_sub(1).map(SendId);
    id.ok_or_else(|| Failure::invalid("0 is the number of no message"))
}

pub(super) fn read_channel(channel: c_int) -> Result<Channel, Failure> {
    u32::try_from(channel)
        .ok()
        .and_then(Channel::from_number)
        .filter(|channel| !channel.is_datagram())
        .ok_or_else(|| {
            Failure::invalid(format!(
                "{channel} is not a channel; see tsumuji_channel_of"
            ))
        })
}

/// A channel as C names it: below 2²⁰.
pub(super) fn channel_number(channel: Channel) -> c_int {
    channel.number().cast_signed()
}

/// Sends a copy of a message of up to 4 GiB - 1; while the queue to the peer is full, it waits and receives. The queue's room (option send-queue) is that
/// of all messages to the peer, whatever their priority. The message leaves at once if window and link permit, else later, also while the program
/// computes. Many small messages are sent faster between tsumuji_cork and tsumuji_uncork, or with TSUMUJI_MORE added to the channel of all but the last.
///
/// A message longer than the receiver's budget (option budget) that the receiver does not take holds up everything that comes from its sender after it,
/// urgent messages and collectives included.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_send(
    handle: Handle,
    to: c_int,
    channel: c_int,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the header asks for what `bytes` needs.
    done(unsafe {
        on(handle, |node| {
            let (to, data) = (node.peer(to)?, ffi::bytes(data, bytes)?);
            let plain = read_channel(channel & !TSUMUJI_MORE)?;
            if channel & TSUMUJI_MORE != 0 {
                return Ok(node.endpoint.send_more(to, plain, data)?);
            }
            Ok(node.endpoint.send(to, plain, data)?)
        })
    })
}

/// Begins a batch: messages wait for each other until they fill a call of the link, or until tsumuji_uncork; calls that poll send waiting messages,
/// too. Batches nest.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_cork(handle: Handle) -> c_int {
    done(on(handle, |node| {
        node.endpoint.cork();
        Ok(())
    }))
}

/// Ends a batch: waiting messages are sent.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_uncork(handle: Handle) -> c_int {
    done(on(handle, |node| Ok(node.endpoint.uncork()?)))
}

/// Sends a copy, or returns TSUMUJI_EAGAIN: the queue to the peer is full, or the peer has stopped the channel, or there is no memory before a queued
/// message is acknowledged; tsumuji_wait_writable waits for all three. TSUMUJI_ENOMEM: no memory, and no message in the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_try_send(
    handle: Handle,
    to: c_int,
    channel: c_int,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    // SAFETY: the header asks for what `bytes` needs.
    done(unsafe {
        on(handle, |node| {
            let (to, data) = (node.peer(to)?, ffi::bytes(data, bytes)?);
            Ok(node.endpoint.try_send(to, read_channel(channel)?, data)?)
        })
    })
}

/// As tsumuji_send, and writes to *id the message's number for tsumuji_is_sent and tsumuji_wait_sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_send_tracked(
    handle: Handle,
    to: c_int,
    channel: c_int,
    data: *const c_void,
    bytes: usize,
    id: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `bytes` and `put` need.
    done(unsafe {
        on(handle, |node| {
            ffi::put(id, "the place for the id", 0)?;
            let (to, data) = (node.peer(to)?, ffi::bytes(data, bytes)?);
            let sent = node
                .endpoint
                .send_tracked(to, read_channel(channel)?, data)?;
            ffi::put(id, "the place for the id", number_of(sent))
        })
    })
}

/// Memory of the program from which a message is sent.
struct SharedBuffer {
    data: *const u8,
    bytes: usize,
    release: unsafe extern "C" fn(context: *mut c_void),
    context: *mut c_void,
}

// SAFETY: the header says that the memory is only read, and that any thread may call `release`.
unsafe impl Send for SharedBuffer {}

impl AsRef<[u8]> for SharedBuffer {
    fn as_ref(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the header says that so many bytes can be read there, unchanged, until `release` is called.
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        // SAFETY: the program gave the function for this call, which is made once.
        unsafe { (self.release)(self.context) };
    }
}

/// Sends a message from the program's memory, without a copy. The memory must not change until release(context) is called, once: when the message was
/// acknowledged, has failed, or could not be sent; in this or a later call, or by the progress assistant's thread. A message of less than 4096 bytes
/// is copied, and released before this returns. The same memory may be sent to several peers at a time. If id is not NULL, *id becomes the message's
/// number, as in tsumuji_send_tracked: ask with it whether the message was acknowledged, as memory is also released on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_send_shared(
    handle: Handle,
    to: c_int,
    channel: c_int,
    data: *const c_void,
    bytes: usize,
    release: Option<unsafe extern "C" fn(context: *mut c_void)>,
    context: *mut c_void,
    id: *mut u64,
) -> c_int {
    done(contained(|| {
        let release = release.ok_or_else(|| Failure::invalid("there is no release function"))?;
        let data = data.cast();
        let shared_buffer = SharedBuffer {
            data,
            bytes,
            release,
            context,
        };
        if data.is_null() && bytes > 0 || isize::try_from(bytes).is_err() {
            return Err(Failure::invalid("the message is NULL, or longer than any"));
        }
        let message = Bytes::from_owner(shared_buffer);
        // SAFETY: the header asks for what `put` needs.
        unsafe {
            on(handle, |node| {
                let (to, channel) = (node.peer(to)?, read_channel(channel)?);
                if id.is_null() {
                    return Ok(node.endpoint.send_shared(to, channel, message)?);
                }
                let sent = node.endpoint.send_shared_tracked(to, channel, message)?;
                ffi::put(id, "the place for the id", number_of(sent))
            })
        }
    }))
}

/// 1: the peer has acknowledged the whole message and, on an ordered channel, all before it; 0: not yet. Polls. TSUMUJI_EPEER: the message was lost with
/// its peer. TSUMUJI_EINVAL: no message to this peer has this number yet; 0 never is one.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_is_sent(handle: Handle, to: c_int, id: u64) -> c_int {
    answer(on(handle, |node| {
        let to = node.peer(to)?;
        Ok(node.endpoint.is_sent(to, read_id(id)?)?)
    }))
}

/// Waits until the message is acknowledged: 1, or 0 after timeout_us microseconds (negative: without limit). Errors as of tsumuji_is_sent.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_wait_sent(handle: Handle, to: c_int, id: u64, timeout_us: i64) -> c_int {
    answer(on(handle, |node| {
        let (to, timeout) = (node.peer(to)?, ffi::timeout(timeout_us));
        Ok(node.endpoint.wait_sent(to, read_id(id)?, timeout)?)
    }))
}

/// Waits until a message of `bytes` can be queued to the peer on that channel at once: 1, or 0 after timeout_us.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_wait_writable(
    handle: Handle,
    to: c_int,
    channel: c_int,
    bytes: usize,
    timeout_us: i64,
) -> c_int {
    answer(on(handle, |node| {
        let (to, timeout) = (node.peer(to)?, ffi::timeout(timeout_us));
        let channel_id = read_channel(channel)?.id();
        Ok(node
            .endpoint
            .wait_writable(to, channel_id, bytes, timeout)?)
    }))
}

/// Waits until all messages to live peers are acknowledged: 1, or 0 after timeout_us.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_flush(handle: Handle, timeout_us: i64) -> c_int {
    answer(on(handle, |node| {
        Ok(node.endpoint.flush(ffi::timeout(timeout_us))?)
    }))
}

/// Number of messages to the peer that are not acknowledged yet.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_queue_length(handle: Handle, to: c_int) -> isize {
    size(on(handle, |node| {
        let to = node.peer(to)?;
        Ok(node.endpoint.queue_length(to))
    }))
}

/// Waits for a message on channels that nobody opened, without taking it. 1: *bytes is its length (bytes may be NULL); 0: none in timeout_us.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_ready(
    handle: Handle,
    bytes: *mut usize,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `put_if_wanted` needs.
    answer(unsafe {
        on(handle, |node| {
            let found = node.endpoint.ready(ffi::timeout(timeout_us))?;
            ffi::put_if_wanted(bytes, found.unwrap_or(0));
            Ok(found.is_some())
        })
    })
}

/// Copies the next message on channels that nobody opened into `buffer`, and returns its length. about may be NULL. TSUMUJI_ETIMEDOUT: none arrived
/// in time; with a timeout_us of 0 it is TSUMUJI_EAGAIN. TSUMUJI_EMSGSIZE: it has more than `room` bytes, and waits for a larger buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv(
    handle: Handle,
    buffer: *mut c_void,
    room: usize,
    about: *mut TsumujiMessage,
    timeout_us: i64,
) -> isize {
    // SAFETY: the header asks for what `receive` needs.
    unsafe { receive(handle, ANY, (buffer, room), about, timeout_us) }
}

/// As tsumuji_recv, without waiting: TSUMUJI_EAGAIN if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_try_recv(
    handle: Handle,
    buffer: *mut c_void,
    room: usize,
    about: *mut TsumujiMessage,
) -> isize {
    // SAFETY: the header asks for what `receive` needs.
    unsafe { receive(handle, ANY, (buffer, room), about, 0) }
}

/// # Safety
/// As the header says: `buffer` has `room` bytes, `about` is NULL or can be written.
pub(super) unsafe fn receive(
    handle: Handle,
    source: (c_int, c_int),
    (buffer, room): (*mut c_void, usize),
    about: *mut TsumujiMessage,
    timeout_us: i64,
) -> isize {
    // SAFETY: the caller promises what `copy_out` and `put_if_wanted` need; the message lies in memory of ours, not in C's.
    size(unsafe {
        on(handle, |node| {
            ffi::check_buffer(buffer, room)?;
            let source = source_of(node, source)?;
            let message = node.recv_into(source, room, ffi::timeout(timeout_us))?;
            let bytes = message.body.len();
            ffi::copy_out(&message.body, buffer)?;
            let it = TsumujiMessage::copied(bytes, message.from, message.channel);
            ffi::put_if_wanted(about, it);
            node.endpoint.recycle(message);
            Ok(bytes)
        })
    })
}

/// Borrows the next message on channels that nobody opened, without a copy. It counts against the endpoint's budget until tsumuji_release. At most
/// 65,536 messages are borrowed at a time. TSUMUJI_ETIMEDOUT: none arrived in time; with a timeout_us of 0 it is TSUMUJI_EAGAIN.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_recv_borrow(
    handle: Handle,
    message: *mut TsumujiMessage,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `borrow` needs.
    unsafe { borrow(handle, ANY, message, timeout_us) }
}

/// # Safety
/// As the header says: `message` is NULL or can be written.
pub(super) unsafe fn borrow(
    handle: Handle,
    source: (c_int, c_int),
    message: *mut TsumujiMessage,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the caller promises what `put` needs.
    done(unsafe {
        on(handle, |node| {
            if message.is_null() {
                return Err(Failure::invalid("the place for the message is NULL"));
            }
            let source = source_of(node, source)?;
            let (borrow, borrowed) = node.borrow(source, ffi::timeout(timeout_us))?;
            let data = borrowed.as_ptr().cast();
            let about = TsumujiMessage {
                borrow,
                ..TsumujiMessage::of(data, borrowed.len(), borrowed.from(), borrowed.channel())
            };
            ffi::put(message, "the place for the message", about)
        })
    })
}

/// Returns a borrowed message; its data must not be read any more, and becomes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_release(handle: Handle, message: *mut TsumujiMessage) -> c_int {
    // SAFETY: the header asks for a message of `tsumuji_recv_borrow` or NULL.
    done(unsafe {
        on(handle, |node| {
            if message.is_null() {
                return Err(Failure::invalid("the message is NULL"));
            }
            let mut borrowed = message.read_unaligned();
            if borrowed.data.is_null() {
                return Err(Failure::invalid(
                    "this message is not borrowed; was it released before?",
                ));
            }
            node.release(borrowed.borrow)?;
            borrowed.data = std::ptr::null();
            ffi::put(message, "the message", borrowed)
        })
    })
}
