//! What the kernel says of a stream's connection: bells that came, ends, resets.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

use super::{Found, far, is_before_ring, waits};
use crate::ring::{BY_BELLS, ENDED, OWED, RESET};
use crate::sys::{self, AGAIN, Errno, Result};
use crate::table::Use;
use crate::tuning::TUNING;
use crate::{demotion, epoll};

/// Whether a reset is not the other end's intention: it has left nothing unread but bells. Once that is known it stays so. An end that has gone back to
/// TCP may have left data there, but for one that was asked to and has sent nothing since.
fn is_by_bells(using: &Use) -> bool {
    let (end, other) = (using.mine(), using.theirs());
    let known = end.own.has_ended.load(Ordering::Acquire);
    known & (ENDED | RESET) == 0
        && using.is_carried.load(Ordering::Acquire) != 0
        && end.out.bells.load(Ordering::Acquire) > other.own.bells_taken.load(Ordering::Acquire)
        && (end.out.back_at.load(Ordering::Relaxed) == 0 || demotion::is_only_obliging(using))
        && other.out.ends_by_reset.load(Ordering::Acquire) == 0
        && using.writer().unread() == Ok(0)
}

/// The kernel has reported an error, which the program shall learn when it has read what there is.
pub(super) fn note_error(using: &Use, error: Errno) {
    let own = &using.mine().own;
    if error == Errno(libc::ECONNRESET) && is_by_bells(using) {
        own.has_ended
            .fetch_or(ENDED | BY_BELLS | OWED, Ordering::AcqRel);
    } else if own.has_ended.load(Ordering::Acquire) & BY_BELLS == 0 {
        // A reset after the end is none to who reads.
        let has_ended = using.theirs().out.is_finished.load(Ordering::Acquire) != 0;
        if error != Errno(libc::ECONNRESET) || !has_ended {
            own.error.store(error.0 as u32, Ordering::Relaxed);
        }
        own.has_ended.fetch_or(ENDED | RESET, Ordering::AcqRel);
    }
}

/// The kernel has reported the other end's end. Processes that were killed, or that went past us, have said nothing; if they left data unread, the kernel
/// would have told of a reset. Of those of another host the gateways say so.
pub(super) fn note_end(using: &Use) {
    let (end, out) = (using.mine(), &using.theirs().out);
    let is_set = |word: &AtomicU32| word.load(Ordering::Acquire) != 0;
    let has_gone_back = [&out.back_at, &end.out.back_at]
        .iter()
        .any(|at| at.load(Ordering::Acquire) != 0);
    let was_killed = || {
        !(is_set(&out.is_finished) || is_set(&out.is_closed) || has_gone_back)
            && using.writer().unread().is_ok_and(|unread| unread > 0)
    };
    let is_new = end.own.has_ended.load(Ordering::Acquire) & ENDED == 0;
    if is_new && is_set(&using.is_carried) && (is_set(&out.ends_by_reset) || was_killed()) {
        note_error(using, Errno(libc::ECONNRESET));
    } else {
        end.own.has_ended.fetch_or(ENDED, Ordering::AcqRel);
    }
}

/// What a call that receives by TCP finds instead of that error: the end, if the reset is nobody's intention.
pub(super) fn end_or(using: &Use, error: Errno) -> Result<usize> {
    if error == Errno(libc::ECONNRESET) && is_by_bells(using) {
        note_error(using, error);
        return Ok(0);
    }
    Err(error)
}

/// Asks the kernel whether the connection still stands.
pub(crate) fn ask(using: &Use, fd: c_int) -> i16 {
    if let Some(gateway) = using.gateway() {
        return far::ask(using, fd, gateway);
    }
    let mut events = sys::poll_now(fd, libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP);
    let own = &using.mine().own;
    if events & (libc::POLLERR | libc::POLLHUP) != 0 && is_by_bells(using) {
        own.has_ended
            .fetch_or(ENDED | BY_BELLS | OWED, Ordering::AcqRel);
    }
    if own.has_ended.load(Ordering::Acquire) & BY_BELLS != 0 {
        events &= !(libc::POLLERR | libc::POLLHUP);
        return events | libc::POLLRDHUP;
    }
    // For an end that has shut down reading, the kernel reports that itself.
    let is_deaf = using.mine().own.is_deaf.load(Ordering::Relaxed) != 0;
    let mut ends = libc::POLLHUP;
    if !is_deaf {
        ends |= libc::POLLRDHUP;
    }
    if events & (libc::POLLERR | libc::POLLHUP) != 0 {
        let ended = RESET | if events & ends != 0 { ENDED } else { 0 };
        own.has_ended.fetch_or(ended, Ordering::AcqRel);
    } else if events & ends != 0 {
        note_end(using);
    }
    events
}

/// The kernel's own word for an end: 0, or the error of a reset that nobody has been told.
pub(super) fn end_by_kernel(using: &Use, fd: c_int) -> Result<Found> {
    let mut room = [0; TUNING.kernel.bells];
    let own = &using.mine().own;
    loop {
        match sys::recv(fd, &mut room, libc::MSG_DONTWAIT) {
            Ok(0) | Err(AGAIN) => return Ok(Found::End),
            // Bells before the end.
            Ok(bytes) => {
                own.bells_taken.fetch_add(bytes as u64, Ordering::AcqRel);
            }
            Err(_) if own.has_ended.load(Ordering::Acquire) & BY_BELLS != 0 => {
                return Ok(Found::End);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Takes bells out of the kernel, or learns that the connection has ended. With flags 0 it waits for one of both. False: there was nothing.
pub(super) fn take_bells(using: &Use, fd: c_int, flags: c_int) -> Result<bool> {
    if let Some(gateway) = using.gateway() {
        let before = using.mine().own.has_ended.load(Ordering::Acquire);
        far::ask(using, fd, gateway);
        return Ok(using.mine().own.has_ended.load(Ordering::Acquire) != before);
    }
    let own = &using.mine().own;
    let rung = using.theirs().out.bells.load(Ordering::Acquire);
    let outstanding = rung.saturating_sub(own.bells_taken.load(Ordering::Acquire));
    let mut room = [0; TUNING.kernel.bells];
    // No more than are known to be bells; or one byte, which may be data by TCP of an end that has given up its ring just now.
    // A thread that waits takes one only: others may take those that are outstanding meanwhile, and what comes then may be data.
    let most = if flags == 0 {
        1
    } else {
        (outstanding as usize).clamp(1, TUNING.kernel.bells)
    };
    match sys::recv(fd, &mut room[..most], flags) {
        Ok(0) => {
            if own.is_deaf.load(Ordering::Relaxed) == 0 {
                note_end(using);
            }
            Ok(true)
        }
        Ok(bytes) => {
            demotion::count_bells(using, bytes as u64, room[0]);
            epoll::rouse(using);
            Ok(true)
        }
        Err(AGAIN) if flags != 0 => Ok(false),
        Err(error) if error == AGAIN || error == Errno(libc::EINTR) => Err(error),
        Err(error) => {
            note_error(using, error);
            Ok(true)
        }
    }
}

/// Waits until threads that sleep in `poll` for this stream have woken. A bell wakes all of them, but one that looks for it only after it was taken
/// sleeps on. Caller: about to take bells from that descriptor.
pub(super) fn let_pollers_wake(using: &Use, bell: c_int) {
    for round in 0..TUNING.kernel.heard_rounds {
        let count = using.in_poll.load(Ordering::SeqCst);
        if count == 0 || sys::poll_now(bell, libc::POLLIN) & libc::POLLIN == 0 {
            return;
        }
        // One that has just begun may yet miss a bell.
        using.has_pollers.store(1, Ordering::SeqCst);
        if round < TUNING.kernel.heard_yields {
            sys::sched_yield();
        } else {
            sys::sleep_us(TUNING.kernel.heard_nap_us);
        }
        if round + 1 == TUNING.kernel.heard_rounds {
            // They wait for something else, or have left their call by a jump.
            let _ = (using.in_poll).compare_exchange(count, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

/// Takes bells without waiting for any, once those that sleep in `poll` have heard them.
pub(super) fn take_bells_now(using: &Use, fd: c_int) -> Result<bool> {
    if using.gateway().is_none() {
        let_pollers_wake(using, fd);
    }
    take_bells(using, fd, libc::MSG_DONTWAIT)
}

/// As [`take_old_bells`], once those that sleep in `poll` have heard them.
pub(crate) fn take_heard_bells(using: &Use, fd: c_int) {
    match using.gateway() {
        Some(_) => {
            if let Some(gateway) = using.living_gateway() {
                let_pollers_wake(using, gateway);
            }
        }
        None if has_old_bells(using, 1) => let_pollers_wake(using, fd),
        None => {}
    }
    take_old_bells(using, fd, 1);
}

fn has_old_bells(using: &Use, least: u64) -> bool {
    let rung = using.theirs().out.bells.load(Ordering::Acquire);
    let taken = using.mine().own.bells_taken.load(Ordering::Acquire);
    rung.saturating_sub(taken) >= least.max(1) && !is_before_ring(using)
}

/// Takes bells that nobody waits for out of the kernel, if they are many: one that is full of them would not report the next.
pub(crate) fn take_old_bells(using: &Use, fd: c_int, least: u64) {
    if let Some(gateway) = using.gateway() {
        let _ = waits::at_once(using, || {
            // Those that it rouses find nothing here, and rouse nobody.
            if far::drain(gateway) {
                epoll::rouse(using);
            }
            Ok(true)
        });
        return;
    }
    // A receiver counts bells and bytes of its own.
    let receiving = using.try_hold_receiving();
    if receiving.is_some() && has_old_bells(using, least) {
        let _ = waits::at_once(using, || take_bells(using, fd, libc::MSG_DONTWAIT));
    }
}
