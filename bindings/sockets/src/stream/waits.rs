//! How a call waits for data or for room: looks again for a moment, says that it sleeps, looks once more, sleeps in the kernel.
//!
//! Who waits for data sleeps in the real `recv`, so time-outs, interruptions, ends and resets are the kernel's. One thread of an end waits there at a time,
//! the leader: bells are taken by whoever waits, and wake everybody. The others wait for the leader.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::{c_int, pollfd};

use super::{ask, far, has_news, is_before_ring, ring_bell, take_bells, take_old_bells};
use crate::demotion;
use crate::explain::{self, Count};
use crate::lock::{hold, may_hold, thread};
use crate::sys::{self, AGAIN, Errno, Result};
use crate::table::Use;

/// Sleep of those who cannot be woken: where the other end's bells would be taken for data.
pub(super) const SLICE_NS: u64 = 1_000_000;

/// How long a thread waits for the one that waits in the kernel before it looks whether that one lives.
const FOLLOW_NS: u64 = 100_000_000;

pub(crate) fn wait_for_data(using: &Use, fd: c_int) -> Result<()> {
    let inn = &using.mine().inn;
    if is_before_ring(using) || using.is_carried.load(Ordering::Acquire) == 0 {
        inn.is_asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_before_ring(using) {
            return Ok(());
        }
        return in_turn(using, || match using.gateway() {
            Some(gateway) => far::wait(using, fd, gateway, libc::POLLIN, receive_timeout_ns(fd)),
            None => {
                let mut room = [0; 1];
                sys::recv(fd, &mut room, libc::MSG_PEEK).map(|_| ())
            }
        });
    }
    if demotion::is_behind(using) {
        return in_turn(using, || {
            let mut room = [0; 1];
            sys::recv(fd, &mut room, libc::MSG_PEEK).map(|_| ())
        });
    }
    if using
        .spin
        .until(|| has_news(using) || using.theirs().out.is_closed.load(Ordering::Relaxed) != 0)
    {
        return Ok(());
    }
    inn.is_asleep.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if has_news(using) {
        return Ok(());
    }
    explain::count(Count::Sleep);
    in_turn(using, || take_bells(using, fd, 0).map(|_| ()))
}

pub(crate) fn wait_for_room(using: &Use, fd: c_int) -> Result<()> {
    let end = using.mine();
    let is_ring = end.out.switch_at.load(Ordering::Relaxed) != 0
        && end.out.back_at.load(Ordering::Relaxed) == 0;
    let timeout_ns = send_timeout_ns(fd);
    if !is_ring {
        return poll_for(fd, libc::POLLOUT, timeout_ns);
    }
    let has_room = || using.writer().room().is_ok_and(|room| room > 0);
    let is_gone = || end.own.has_ended.load(Ordering::Relaxed) != 0;
    if using.spin.until(|| has_room() || is_gone()) {
        return Ok(());
    }
    end.out.wants_room.store(1, Ordering::SeqCst);
    end.inn.is_asleep.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if has_room() || is_gone() {
        return Ok(());
    }
    explain::count(Count::Sleep);
    if let Some(gateway) = using.gateway() {
        return in_turn(using, || far::wait(using, fd, gateway, 0, timeout_ns));
    }
    let is_unheard = is_before_ring(using)
        || end.own.is_deaf.load(Ordering::Relaxed) != 0
        || using.theirs().out.back_at.load(Ordering::Relaxed) != 0;
    if is_unheard {
        // What the kernel holds is data, and would be found at once: look again after a while.
        sys::sleep_us(SLICE_NS / 1000);
        if end.own.is_deaf.load(Ordering::Relaxed) != 0 {
            // A dead end is known by its answer only.
            let _held = hold(&end.own.sending);
            ring_bell(using, fd);
        }
        ask(using, fd);
        return Ok(());
    }
    if timeout_ns.is_none() && receive_timeout_ns(fd).is_none() {
        return in_turn(using, || take_bells(using, fd, 0).map(|_| ()));
    }
    let outcome = in_turn(using, || {
        poll_for(fd, libc::POLLIN | libc::POLLRDHUP, timeout_ns)
    });
    take_old_bells(using, fd, 1);
    outcome
}

fn poll_for(fd: c_int, events: i16, timeout_ns: Option<u64>) -> Result<()> {
    let mut fds = [pollfd {
        fd,
        events,
        revents: 0,
    }];
    match sys::poll(&mut fds, timeout_ns, std::ptr::null()) {
        Ok(0) => Err(AGAIN),
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

fn send_timeout_ns(fd: c_int) -> Option<u64> {
    timeout_ns(fd, libc::SO_SNDTIMEO)
}

pub(super) fn receive_timeout_ns(fd: c_int) -> Option<u64> {
    timeout_ns(fd, libc::SO_RCVTIMEO)
}

fn timeout_ns(fd: c_int, name: c_int) -> Option<u64> {
    // A `timeval`.
    let time: [i64; 2] = sys::get_option(fd, libc::SOL_SOCKET, name).ok()?;
    let ns = time[0] as u64 * 1_000_000_000 + time[1] as u64 * 1000;
    (ns != 0).then_some(ns)
}

/// Waits in the kernel by `wait`, if no other thread does; then that one's bells are ours, too, and this one waits until it is back.
fn in_turn(using: &Use, wait: impl FnOnce() -> Result<()>) -> Result<()> {
    let own = &using.mine().own;
    let leads = own
        .leader
        .compare_exchange(0, thread(), Ordering::AcqRel, Ordering::Acquire);
    let Err(leader) = leads else {
        let outcome = wait();
        own.leader.store(0, Ordering::SeqCst);
        wake_followers(&own.turns, &own.followers);
        return outcome;
    };
    let turn = own.turns.load(Ordering::SeqCst);
    own.followers.fetch_add(1, Ordering::SeqCst);
    let outcome = match own.leader.load(Ordering::SeqCst) {
        0 => Ok(0),
        _ => sys::futex_wait(&own.turns, turn, Some(FOLLOW_NS)),
    };
    own.followers.fetch_sub(1, Ordering::SeqCst);
    if outcome == Err(Errno(libc::EINTR)) {
        return Err(Errno(libc::EINTR));
    }
    if !may_hold(leader) {
        let _ = own
            .leader
            .compare_exchange(leader, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    Ok(())
}

/// Takes bells by `take`, without waiting. If another thread waits for them nothing is taken: they may be meant for it, and it sleeps in the kernel.
pub(super) fn at_once(using: &Use, take: impl FnOnce() -> Result<bool>) -> Result<bool> {
    let own = &using.mine().own;
    let leads = own
        .leader
        .compare_exchange(0, thread(), Ordering::AcqRel, Ordering::Acquire);
    if leads.is_err() {
        return Ok(false);
    }
    let outcome = take();
    own.leader.store(0, Ordering::SeqCst);
    wake_followers(&own.turns, &own.followers);
    outcome
}

fn wake_followers(turns: &AtomicU32, followers: &AtomicU32) {
    if followers.load(Ordering::SeqCst) != 0 {
        turns.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(turns, u32::MAX);
    }
}
