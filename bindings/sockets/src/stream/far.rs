//! Streams whose other end is of another host: what stands for it here is the host's gateway.
//!
//! The gateway reads and writes the rings as a program of this host would. It and the program wake each other by a socket pair instead of by bells, so no
//! byte of TCP is a bell, and the gateway's end is noticed. The kernel's connection leads to the other program; its end is told by the kernel before
//! what was sent earlier has come through the gateways. So an end counts when the gateway says that all has come, and a reset at once.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::kernel::let_pollers_wake;
use crate::epoll;
use crate::ring::{CANCELLED, CLAIMED, CONFIRMED, ENDED, RESET};
use crate::sys::{self, AGAIN, Result};
use crate::table::Use;

/// What the kernel reports of the socket pair when the gateway has ended.
const GONE: i16 = libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR;

/// Wakes the gateway, if there is one: something has changed that it does not look at by itself.
pub(crate) fn wake_gateway(using: &Use) -> bool {
    let Some(gateway) = using.gateway() else {
        return false;
    };
    using.bells.fetch_add(1, Ordering::Relaxed);
    // Full: it will wake up.
    let _ = sys::send(gateway, &[0], libc::MSG_DONTWAIT);
    true
}

/// Takes what the gateway has sent to wake us. False: there was nothing.
pub(super) fn drain(gateway: c_int) -> bool {
    let mut room = [0; 64];
    let mut has_taken = false;
    loop {
        let taken = sys::recv(gateway, &mut room, libc::MSG_DONTWAIT).unwrap_or(0);
        has_taken |= taken > 0;
        if taken < room.len() {
            return has_taken;
        }
    }
}

/// Whether data goes or may go through the gateway.
fn is_through(using: &Use) -> bool {
    let state = using.slot().state.load(Ordering::Acquire);
    state & CANCELLED == 0
        && (using.theirs().out.back_at.load(Ordering::Acquire) == 0
            || using.mine().out.back_at.load(Ordering::Acquire) == 0)
}

/// The other end has shut down sending before it went over to its ring: all that it has sent came by TCP, and it may still receive.
fn is_half(using: &Use) -> bool {
    let out = &using.theirs().out;
    out.is_finished.load(Ordering::Acquire) != 0
        && out.switch_at.load(Ordering::Acquire) == 0
        && out.is_closed.load(Ordering::Acquire) == 0
}

/// The kernel has reported the other end's end. False: all that was sent before has come, or nothing goes through the gateway.
fn is_early(using: &Use) -> bool {
    let out = &using.theirs().out;
    if !is_through(using)
        || is_half(using)
        || out.is_closed.load(Ordering::Acquire) != 0
        || out.back_at.load(Ordering::Acquire) != 0
    {
        return false;
    }
    if using.mine().inn.sees_end.swap(1, Ordering::SeqCst) == 0 {
        wake_gateway(using);
    }
    true
}

/// As `is_early`, for a connection that may not be carried yet, or that is none of a gateway.
pub(super) fn is_early_end(using: &Use) -> bool {
    using
        .gateway()
        .is_some_and(|gateway| !is_gone(using, gateway) && is_early(using))
}

/// Whether the gateway has ended. What it had not delivered is lost, so the connection is, too.
fn is_gone(using: &Use, gateway: c_int) -> bool {
    if sys::poll_now(gateway, libc::POLLRDHUP) & GONE == 0 {
        return false;
    }
    note_gone(using);
    true
}

/// Whether the gateway has ended, and with it the connection, as far as anybody has noticed.
pub(super) fn is_lost(using: &Use) -> bool {
    using.has_lost_gateway.load(Ordering::Relaxed) != 0
        && using.mine().own.has_ended.load(Ordering::Acquire) & RESET != 0
}

/// Whether the gateway has ended, and with it the connection, and nobody knew.
pub(crate) fn is_new_end(using: &Use) -> bool {
    let has_ended = &using.mine().own.has_ended;
    let before = has_ended.load(Ordering::Acquire);
    using
        .gateway()
        .is_some_and(|gateway| is_gone(using, gateway))
        && has_ended.load(Ordering::Acquire) != before
}

fn note_gone(using: &Use) {
    using.has_lost_gateway.store(1, Ordering::Relaxed);
    let own = &using.mine().own;
    let is_agreed =
        using.slot().state.load(Ordering::Acquire) & (CONFIRMED | CLAIMED) == CONFIRMED | CLAIMED;
    let is_all_there = using.theirs().out.is_closed.load(Ordering::Acquire) != 0;
    if !is_agreed {
        using.slot().state.fetch_or(CANCELLED, Ordering::AcqRel);
    } else if is_through(using) && !is_all_there && own.has_ended.load(Ordering::Acquire) == 0 {
        own.error.store(libc::ECONNRESET as u32, Ordering::Relaxed);
        own.has_ended.fetch_or(ENDED | RESET, Ordering::AcqRel);
    }
}

/// As `stream::ask`: asks the kernel whether connection and gateway still stand. What it reports of an end that has not come yet is left out.
pub(super) fn ask(using: &Use, fd: c_int, gateway: c_int) -> i16 {
    let wanted = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;
    let mut fds = [
        sys::poll_of(fd, wanted),
        sys::poll_of(gateway, libc::POLLRDHUP),
    ];
    let _ = sys::poll(&mut fds, Some(0), std::ptr::null());
    if fds[1].revents & GONE != 0 {
        note_gone(using);
    }
    let mut events = fds[0].revents;
    let own = &using.mine().own;
    if events & libc::POLLERR != 0 {
        own.has_ended.fetch_or(ENDED | RESET, Ordering::AcqRel);
        return events;
    }
    let is_deaf = own.is_deaf.load(Ordering::Relaxed) != 0;
    let ends = libc::POLLHUP | if is_deaf { 0 } else { libc::POLLRDHUP };
    if events & ends != 0 {
        if is_early(using) {
            events &= !(libc::POLLHUP | libc::POLLRDHUP);
            if sys::unread_bytes(fd) == 0 {
                events &= !libc::POLLIN;
            }
        } else if !is_half(using) {
            super::kernel::note_end(using);
        }
    } else if is_deaf && using.theirs().out.is_closed.load(Ordering::Acquire) != 0 {
        // The kernel's word is of this end's own shutting down; the gateway's is of the other one.
        super::kernel::note_end(using);
    }
    events
}

/// What a wait asks the kernel of the connection itself, besides data.
pub(crate) fn end_events(using: &Use) -> i16 {
    // An end that has been seen would be reported again and again.
    let has_seen = using.mine().inn.sees_end.load(Ordering::Relaxed) != 0
        || using.mine().own.has_ended.load(Ordering::Relaxed) & ENDED != 0;
    if has_seen { 0 } else { libc::POLLRDHUP }
}

/// Sleeps until the gateway wakes us, or the kernel has `events` or an end to report. Caller: the stream's leader.
pub(super) fn wait(using: &Use, fd: c_int, events: i16, timeout_ns: Option<u64>) -> Result<()> {
    let Some(gateway) = using.living_gateway() else {
        return super::waits::poll_for(fd, events | end_events(using), timeout_ns);
    };
    let mut fds = [
        sys::poll_of(fd, events | end_events(using)),
        sys::poll_of(gateway, libc::POLLIN),
    ];
    match sys::poll(&mut fds, timeout_ns, std::ptr::null()) {
        Ok(0) => Err(AGAIN),
        Ok(_) => {
            let_pollers_wake(using, gateway);
            if drain(gateway) {
                epoll::rouse(using);
            }
            ask(using, fd, gateway);
            Ok(())
        }
        Err(error) => super::waits::or_restart(timeout_ns, Err(error)),
    }
}
