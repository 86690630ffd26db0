//! Going back to TCP: for what only the kernel's connection can do, and for processes that do not have this library.
//!
//! Urgent data, a program that is executed without us, a descriptor that is passed on, io_uring: an end that gives up its ring writes down where the
//! ring ends (`Out::back_at`) and sends by TCP from then on, and asks the other end (`In::wants_tcp`) to do the same. The receiver takes what is in the
//! ring, then the bells that were counted, then data by TCP. An end that can read no more from its ring says so (`In::is_frozen`): what is unread is
//! then sent again by TCP.
//!
//! `stream` and `ready` call `go_back` when the other end asks for it, under the lock `sending`; `exports`, `exec` and `close` begin it.

use std::sync::atomic::Ordering;

use libc::{c_int, iovec};

use crate::explain::{self, Count};
use crate::handshake;
use crate::ring::Reading;
use crate::stream;
use crate::sys::{self, Errno, Result};
use crate::table::Use;
use crate::tuning::TUNING;

/// How long an end sends what the other one has not read. `lock::PATIENCE_NS` is longer.
const REPLAY_NS: u64 = 1_000_000_000;
/// How long a process that is about to be replaced sends such bytes itself, and how long it then waits for other ends to go back, however many they are.
const ANSWER_NS: u64 = 1_000_000_000;

/// Everything in the other end's ring was taken, and it has gone back. Caller: holder of `receiving`.
pub(crate) fn is_behind(using: &Use) -> bool {
    let back_at = using.theirs().out.back_at.load(Ordering::Acquire);
    back_at != 0 && using.reader().consumer() == back_at - 1
}

/// This end has gone back because the other one asked for it, and has sent nothing since.
pub(crate) fn is_only_obliging(using: &Use) -> bool {
    let end = using.mine();
    let before = end.out.switch_at.load(Ordering::Acquire);
    end.inn.wants_tcp.load(Ordering::Acquire) == 0
        && end.own.tcp_sent.load(Ordering::Acquire).wrapping_add(1) == before
}

/// Takes the bells that are before the data. Caller: holder of `receiving`.
pub(crate) fn after_ring(using: &Use, fd: c_int) -> Result<()> {
    let own = &using.mine().own;
    loop {
        let rung = using.theirs().out.bells.load(Ordering::Acquire);
        let outstanding = rung.saturating_sub(own.bells_taken.load(Ordering::Acquire));
        if outstanding == 0 {
            return Ok(());
        }
        let mut room = [0; 64];
        let most = (outstanding as usize).min(room.len());
        match sys::recv(fd, &mut room[..most], libc::MSG_DONTWAIT)? {
            0 => return Ok(()),
            bytes => own.bells_taken.fetch_add(bytes as u64, Ordering::AcqRel),
        };
    }
}

/// What the kernel says of its next byte is of data, if data goes by TCP again.
pub(crate) fn skip_bells(using: &Use, fd: c_int) {
    // An end that gives up its ring for good holds it already.
    let _held = (!using.holds_receiving()).then(|| using.hold_receiving());
    if is_behind(using) {
        let _ = after_ring(using, fd);
    }
}

/// Bells were taken; or one byte that turns out to be data.
pub(crate) fn count_bells(using: &Use, bytes: u64, first: u8) {
    let (own, out) = (&using.mine().own, &using.theirs().out);
    let taken = own
        .bells_taken
        .fetch_add(bytes, Ordering::AcqRel)
        .wrapping_add(bytes);
    let has_gone_back = out.back_at.load(Ordering::Acquire) != 0;
    if bytes == 1 && has_gone_back && taken > out.bells.load(Ordering::Acquire) {
        own.bells_taken.fetch_sub(1, Ordering::AcqRel);
        own.stash.store(1 + u32::from(first), Ordering::Release);
    }
}

/// The byte that was taken too early. Caller: holder of `receiving`.
pub(crate) fn from_stash(using: &Use, buffers: &[iovec], skip: usize, how: Reading) -> usize {
    let stash = &using.mine().own.stash;
    let byte = [stash.load(Ordering::Acquire).wrapping_sub(1) as u8];
    if how != Reading::Peek {
        stash.store(0, Ordering::Release);
    }
    if how == Reading::Discard {
        return 1;
    }
    crate::ring::scatter(&byte, buffers, skip)
}

/// This end sends by TCP from now on. Caller: holder of `sending`.
pub(crate) fn go_back(using: &Use, fd: c_int) {
    go_back_until(using, fd, sys::now_ns() + REPLAY_NS);
}

/// As `go_back`; what the other end has not read is sent until then.
fn go_back_until(using: &Use, fd: c_int, until_ns: u64) {
    let end = using.mine();
    let out = &end.out;
    if out.back_at.load(Ordering::Relaxed) != 0 {
        return;
    }
    if out.switch_at.load(Ordering::Relaxed) == 0 {
        let sent = end.own.tcp_sent.load(Ordering::Relaxed);
        out.switch_at
            .store(sent.wrapping_add(1).max(1), Ordering::Release);
    }
    let ring = using.writer();
    let tail = out.tail.load(Ordering::Relaxed);
    let is_frozen = using.theirs().inn.is_frozen.load(Ordering::Acquire) != 0;
    let from = if is_frozen { ring.consumer() } else { tail };
    out.back_at
        .store(from.wrapping_add(1).max(1), Ordering::Release);
    explain::count(Count::Demoted);
    for (name, value) in [
        (libc::TCP_NODELAY, &end.own.no_delay),
        (libc::TCP_CORK, &end.own.cork),
    ] {
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, name, &value.load(Ordering::Relaxed));
    }
    let low_water = end.own.low_water.load(Ordering::Relaxed);
    if low_water > 1 {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &low_water);
    }
    stream::wake_gateway(using);
    if is_frozen {
        let replayed = ring.replay(|bytes| {
            end.own
                .tcp_sent
                .fetch_add(bytes.len() as u64, Ordering::AcqRel);
            send_all(fd, bytes, until_ns)
        });
        if !matches!(replayed, Ok(Ok(()))) {
            // The other end must not take what comes next for what is missing.
            let _ = sys::shutdown(fd, libc::SHUT_RDWR);
        }
    }
    if out.is_finished.load(Ordering::Relaxed) != 0 {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
}

/// Sends all of it, waiting for room; what is unread of a ring is at most its size. An end that does not take it in time loses it: a peer shall not hold
/// up a program that does not wait.
fn send_all(fd: c_int, mut bytes: &[u8], until_ns: u64) -> Result<()> {
    while !bytes.is_empty() {
        match sys::send(fd, bytes, libc::MSG_DONTWAIT) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(sys::AGAIN) => {
                let left = until_ns.saturating_sub(sys::now_ns());
                if sys::poll_one(fd, libc::POLLOUT, Some(left))? == 0 {
                    return Err(Errno(libc::ETIMEDOUT));
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Both directions go back to TCP, or, where nothing was agreed yet, stay there. The stream goes on working, with us in between.
pub(crate) fn fall_back(using: &Use, fd: c_int, why: &str) {
    fall_back_until(using, fd, why, sys::now_ns() + REPLAY_NS);
}

fn fall_back_until(using: &Use, fd: c_int, why: &str, until_ns: u64) {
    if handshake::cancel(using) {
        return;
    }
    explain::demoted(using, why);
    stream::is_carried(using, fd);
    using.mine().inn.wants_tcp.store(1, Ordering::SeqCst);
    let _held = using.hold_sending();
    stream::ring_bell(using, fd);
    go_back_until(using, fd, until_ns);
}

/// How far the other end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Back {
    /// It sends by TCP, and all that it has sent otherwise was taken: the kernel's connection is an ordinary one.
    Whole,
    /// It has made no call in time, or bells are among data that cannot be taken out.
    Late,
    /// It had gone back before it could know what is unread here, and will not send that again.
    Gap,
}

/// For a process that goes on without this library: after this the kernel's connections are ordinary ones. False: that could not be reached for that one,
/// and the connection was shut down, so that nobody takes a bell for data, or the end of a gap for what is missing.
pub(crate) fn surrender(streams: &[(Use, c_int)], why: &str) -> Vec<bool> {
    all_back(streams, why, |_, fd, _| end(fd))
}

/// The same, but a connection for which that could not be reached is left to this library, which goes on between the program and it.
pub(crate) fn hand_over_all(streams: &[(Use, c_int)], why: &str) -> Vec<bool> {
    all_back(streams, why, |using, fd, back| match using.gateway() {
        // A gateway has sent what is unread, and does not do so again.
        Some(_) if back == Back::Gap => end(fd),
        // What is unread is in the ring only.
        None if back == Back::Gap => using.mine().inn.is_frozen.store(0, Ordering::SeqCst),
        _ => {}
    })
}

/// Asks all other ends to go back; `left` is done with connections that are not whole.
fn all_back(streams: &[(Use, c_int)], why: &str, left: impl Fn(&Use, c_int, Back)) -> Vec<bool> {
    let until_ns = sys::now_ns() + ANSWER_NS;
    // Those that were asked before, and have not answered, are not waited for again.
    let was_asked = |using: &Use| using.mine().inn.wants_tcp.load(Ordering::Acquire) != 0;
    let is_again = streams.iter().all(|(using, _)| was_asked(using));
    // Some may be the two ends of one connection: what either has not read must be known before the other says where its ring ends.
    for (using, _) in streams {
        let _receiving = using.hold_receiving();
        freeze(using);
    }
    // All are asked before one is waited for: other ends that make no calls take their time together.
    for (using, fd) in streams {
        let _receiving = using.hold_receiving();
        fall_back_until(using, *fd, why, until_ns);
    }
    // What was unread here may have taken the time of those that are healthy.
    let patience_ns = if is_again { 0 } else { ANSWER_NS };
    let until_ns = sys::now_ns() + patience_ns;
    streams
        .iter()
        .map(|(using, fd)| {
            let _receiving = using.hold_receiving();
            let back = goes_back(using, *fd, until_ns);
            if back != Back::Whole {
                left(using, *fd, back);
            }
            back == Back::Whole
        })
        .collect()
}

/// As `surrender`, but if the other end makes no call in time, this process goes on between the program and the connection.
pub(crate) fn hand_over(using: &Use, fd: c_int, why: &str) -> bool {
    let until_ns = sys::now_ns() + ANSWER_NS;
    let _receiving = using.hold_receiving();
    freeze(using);
    fall_back_until(using, fd, why, until_ns);
    let back = goes_back(using, fd, until_ns);
    if back == Back::Gap {
        // Better an end than a gap.
        end(fd);
    }
    back == Back::Whole
}

/// Nothing is taken from the ring any more. Caller: holder of `receiving`.
fn freeze(using: &Use) {
    // A gateway has taken what it cannot give back: what is on its way must come, and be none.
    if using.gateway().is_none() && !handshake::cancel(using) {
        using.mine().inn.is_frozen.store(1, Ordering::SeqCst);
    }
}

/// Waits until then for the other end to send by TCP, and takes what it has sent otherwise. Caller: holder of `receiving`.
fn goes_back(using: &Use, fd: c_int, until_ns: u64) -> Back {
    if handshake::cancel(using) {
        return Back::Whole;
    }
    loop {
        let out = &using.theirs().out;
        let is_unused =
            out.is_closed.load(Ordering::Acquire) != 0 && using.reader().unread() == Ok(0);
        let has_gone_back = out.back_at.load(Ordering::Acquire) != 0;
        if has_gone_back && !is_behind(using) {
            return Back::Gap;
        }
        if has_gone_back || is_unused {
            let own = &using.mine().own;
            if !stream::is_before_ring(using) {
                let _ = after_ring(using, fd);
            }
            // Bells behind data that was not read cannot be taken out.
            let taken = own.bells_taken.load(Ordering::Acquire);
            let is_clear = out.bells.load(Ordering::Acquire) <= taken
                && own.stash.load(Ordering::Acquire) == 0;
            return if is_clear { Back::Whole } else { Back::Late };
        }
        if sys::now_ns() >= until_ns {
            return Back::Late;
        }
        sys::sleep_us(TUNING.waits.demotion_step_us);
    }
}

/// Ends the connection, with nothing left in the kernel that could be taken for what is missing: bells, and data behind it.
fn end(fd: c_int) {
    let _ = sys::shutdown(fd, libc::SHUT_RDWR);
    let mut room = [0; 4096];
    // Nothing comes any more: the kernel answers further data by a reset.
    while sys::recv(fd, &mut room, libc::MSG_DONTWAIT).is_ok_and(|bytes| bytes > 0) {}
}
