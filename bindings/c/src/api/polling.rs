//! The program's own loop: callbacks with borrowed frames, a descriptor for an event loop, single polls.
#![allow(unsafe_code, reason = "exports symbols to C, and calls back into it")]

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use tsumuji_node::{Context, Datagram, Delivery, Handler, NodeId, RemoteFlow, SendError, SendId};

use super::messages::number_of;
use super::{TsumujiDatagram, TsumujiMessage, TsumujiRemoteFlow, answer, count, number};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, on};
use crate::within;

/// Callbacks for tsumuji_poll, on the thread that polls; for a channel's own handler (tsumuji_open_channel), on whichever thread drives the endpoint.
/// Only `message` is required; the others may be NULL. A callback must not use the handle (TSUMUJI_EBUSY, or TSUMUJI_ETHREAD on the progress assistant's
/// thread; use tsumuji_reply and tsumuji_send_from), leave by longjmp, or throw. Its arguments are valid until it returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiHandler {
    /// sizeof(tsumuji_handler).
    pub size: usize,
    /// First argument of every callback.
    pub context: *mut c_void,
    /// A message arrived; it counts as consumed when the callback returns.
    pub message: Option<unsafe extern "C" fn(context: *mut c_void, message: *const TsumujiMessage)>,
    /// A datagram arrived.
    pub datagram:
        Option<unsafe extern "C" fn(context: *mut c_void, datagram: *const TsumujiDatagram)>,
    /// Hello was exchanged with this peer (again, after it was dead or restarted).
    pub peer_up: Option<unsafe extern "C" fn(context: *mut c_void, peer: c_int)>,
    /// The peer died, left or restarted; failed_messages messages to it have failed.
    pub peer_dead:
        Option<unsafe extern "C" fn(context: *mut c_void, peer: c_int, failed_messages: usize)>,
    /// A message of tsumuji_send_tracked was acknowledged, as tsumuji_is_sent says.
    pub sent: Option<unsafe extern "C" fn(context: *mut c_void, peer: c_int, id: u64)>,
    /// A message sent before the peer had announced its limit was dropped as too large; text says why.
    pub refused: Option<
        unsafe extern "C" fn(context: *mut c_void, peer: c_int, id: u64, text: *const c_char),
    >,
    /// An answer to tsumuji_request_flows; next: the peer to ask on from, or -1.
    pub flows: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            node: c_int,
            flows: *const TsumujiRemoteFlow,
            count: usize,
            next: c_int,
        ),
    >,
    /// A tsumuji_try_send to that peer and channel that returned TSUMUJI_EAGAIN may be tried again.
    pub writable:
        Option<unsafe extern "C" fn(context: *mut c_void, peer: c_int, channel_id: c_int)>,
}

pub(super) struct Callbacks {
    handler: TsumujiHandler,
    message: unsafe extern "C" fn(context: *mut c_void, message: *const TsumujiMessage),
}

// SAFETY: the header says that any thread may call a channel's handler, one at a time.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// # Safety
    /// As the header says: NULL, or a handler whose `size` tells how much of it there is, which may be called as long as this lives.
    pub(super) unsafe fn read(handler: *const TsumujiHandler) -> Result<Self, Failure> {
        if handler.is_null() {
            return Err(Failure::invalid("the handler is NULL"));
        }
        // SAFETY: read by address: a program built with an older header passes a shorter one. All zero is a valid handler: no callbacks, no context.
        let handler = unsafe {
            let room = std::ptr::addr_of!((*handler).size).read_unaligned();
            ffi::read_struct(handler, room)?
        };
        let message = handler.message.ok_or_else(|| {
            Failure::invalid("the handler has no `message`: messages would be lost")
        })?;
        Ok(Self { handler, message })
    }
}

impl Handler for Callbacks {
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
        let Delivery {
            from,
            channel,
            body,
            ..
        } = delivery;
        let bytes = body.bytes();
        let call = |borrow| {
            let message = TsumujiMessage {
                borrow,
                ..TsumujiMessage::of(bytes.as_ptr().cast(), bytes.len(), from, channel)
            };
            // SAFETY: the program gave this function for such calls; its arguments live until it returns.
            unsafe { (self.message)(self.handler.context, &message) };
        };
        within::run(context, call);
    }

    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        if let Some(call) = self.handler.writable {
            // SAFETY: as in `message`.
            unsafe { call(self.handler.context, peer.0.into(), channel_id.into()) };
        }
    }

    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        let Some(call) = self.handler.datagram else {
            return;
        };
        let shown = TsumujiDatagram {
            data: datagram.payload.as_ptr().cast(),
            bytes: datagram.payload.len(),
            from: datagram.source.0.into(),
            incarnation: datagram.incarnation,
            channel_id: datagram.channel_id,
            reserved: 0,
            key: datagram.key,
            epoch: datagram.epoch,
            lap: datagram.lap,
        };
        // SAFETY: as in `message`.
        unsafe { call(self.handler.context, &shown) };
    }

    fn peer_up(&mut self, peer: NodeId) {
        if let Some(call) = self.handler.peer_up {
            // SAFETY: as in `message`.
            unsafe { call(self.handler.context, peer.0.into()) };
        }
    }

    fn peer_dead(&mut self, peer: NodeId, failed_messages: usize) {
        if let Some(call) = self.handler.peer_dead {
            // SAFETY: as in `message`.
            unsafe { call(self.handler.context, peer.0.into(), failed_messages) };
        }
    }

    fn sent(&mut self, peer: NodeId, id: SendId) {
        if let Some(call) = self.handler.sent {
            // SAFETY: as in `message`.
            unsafe { call(self.handler.context, peer.0.into(), number_of(id)) };
        }
    }

    fn flows(&mut self, node: NodeId, flows: &[RemoteFlow], next: Option<NodeId>) {
        let Some(call) = self.handler.flows else {
            return;
        };
        let shown: Vec<TsumujiRemoteFlow> = flows.iter().map(TsumujiRemoteFlow::new).collect();
        let next = next.map_or(-1, |next| next.0.into());
        // SAFETY: as in `message`.
        unsafe {
            call(
                self.handler.context,
                node.0.into(),
                shown.as_ptr(),
                shown.len(),
                next,
            );
        }
    }

    fn refused(&mut self, peer: NodeId, id: SendId, why: &SendError) {
        if let Some(call) = self.handler.refused {
            let text = std::ffi::CString::new(why.to_string()).unwrap_or_default();
            // SAFETY: as in `message`.
            unsafe {
                call(
                    self.handler.context,
                    peer.0.into(),
                    number_of(id),
                    text.as_ptr(),
                )
            };
        }
    }
}

/// Receives, gives what arrives on channels that nobody opened to the callbacks, handles timers and sends, until something was done or timeout_us
/// microseconds have passed (0: one poll; negative: without limit). Returns how much was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_poll(
    handle: Handle,
    handler: *const TsumujiHandler,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `read` needs.
    number(unsafe {
        on(handle, |node| {
            let mut callbacks = Callbacks::read(handler)?;
            let timeout = ffi::timeout(timeout_us);
            let done = if timeout.is_zero() {
                node.endpoint.poll(&mut callbacks)?
            } else {
                node.endpoint.poll_wait(&mut callbacks, timeout)?
            };
            Ok(count(done))
        })
    })
}

/// One poll that queues what arrives for later calls: lets a computing program acknowledge, go on sending, and advance collectives. Never waits.
/// Returns how much was done.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_progress(handle: Handle) -> c_int {
    number(on(handle, |node| {
        let done = node.progress()?;
        Ok(count(done))
    }))
}

/// A descriptor for poll or epoll: readable when there may be something to do, once tsumuji_arm_fd was called. It belongs to the handle.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_fd(handle: Handle) -> c_int {
    number(on(handle, |node| {
        node.endpoint
            .fd()
            .map(|fd| fd.as_raw_fd())
            .ok_or_else(|| Failure::invalid("this link has no descriptor"))
    }))
}

/// Asks that the next frame make the descriptor readable. 1: armed; 0: there is something to do now, so poll first.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_arm_fd(handle: Handle) -> c_int {
    answer(on(handle, |node| Ok(node.endpoint.arm_fd()?)))
}

/// Microseconds after which an event loop must poll again; -1: when the descriptor becomes readable.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_until_timer(handle: Handle) -> i64 {
    let until = on(handle, |node| Ok(node.endpoint.until_timer()));
    match until {
        Ok(until) => until.map_or(-1, micros_up),
        Err(failure) => failure.report().into(),
    }
}

/// Rounded up: an early wake-up would find no expired timer.
fn micros_up(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}
