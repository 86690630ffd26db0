//! A stream's bytes: sent and received by the ring, or by TCP before and after it.
//!
//! `exports` calls `send` and `receive` with the program's buffers; `ready` and `epoll` ask what a call would find. The real connection is a way to
//! wake the other end, and the detector of its end. What a carried connection sends over it are *bells*: bytes without meaning.
//!
//! Each direction has up to three parts: data by TCP until both ends have agreed (`Out::switch_at` bytes), data by the ring, and, if an end had to give
//! up its ring (`demotion`), data by TCP again, after `Out::bells` bells. The receiver counts both kinds of bytes, so it knows of each what it is.
//!
//! Invariants: bells are sent only after `switch_at` and before `back_at` are written, by the holder of `Own::sending`; who holds `sending` never waits
//! for `receiving`. Before it sleeps, a waiter says so (`is_asleep`, `wants_room`), then looks once more; who produces makes its news visible, then looks
//! for sleepers: a fence between the two on either side.

mod early;
mod far;
mod kernel;
mod places;
mod waits;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use libc::{c_int, iovec};
use tsumuji_streams::news;

use crate::explain;
use crate::handshake;
use crate::ring::{Broken, DOORBELL, ENDED, FUTEX, OWED, RESET, RING_BYTES, Reading, parts};
use crate::sys::{self, AGAIN, Errno, Result};
use crate::table::Use;
use crate::tuning::TUNING;
use crate::{demotion, doorbell, epoll};

use early::{receive_before_ring, receive_behind};
pub(crate) use far::{end_events, is_new_end, wake_gateway};
pub(crate) use kernel::{ask, take_heard_bells, take_old_bells};
use kernel::{end_by_kernel, end_or, take_bells, take_bells_now};
pub(crate) use places::{Source, receive_into, send_from};
pub(crate) use waits::{Until, is_still, sleep_on_word, wait_for_data, wait_for_room};

/// Buffers of one system call; the rest goes with the next.
const VECTORS: usize = 16;

/// Whether both ends have agreed. On the first time: this end goes over to its ring.
#[inline]
pub(crate) fn is_carried(using: &Use, fd: c_int) -> bool {
    using.is_carried.load(Ordering::Acquire) != 0
        || (handshake::is_agreed(using, fd) && go_over(using, fd))
}

#[cold]
fn go_over(using: &Use, fd: c_int) -> bool {
    let end = using.mine();
    {
        let _held = using.hold_sending();
        if end.out.switch_at.load(Ordering::Relaxed) == 0 {
            // Bells must not wait for company.
            let no_delay: c_int =
                sys::get_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY).unwrap_or(0);
            let cork: c_int = sys::get_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK).unwrap_or(0);
            end.own.no_delay.store(no_delay, Ordering::Relaxed);
            end.own.cork.store(cork, Ordering::Relaxed);
            if cork != 0 {
                let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &0i32);
            }
            if no_delay == 0 {
                let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
            }
            // A bell is one byte, and wakes also who waits for more.
            let low_water = sys::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
            if low_water > 1 {
                end.own.low_water.store(low_water, Ordering::Relaxed);
                let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
            }
            let sent = end.own.tcp_sent.load(Ordering::Relaxed);
            end.out
                .switch_at
                .store(sent.wrapping_add(1).max(1), Ordering::Release);
        }
    }
    using.is_carried.store(1, Ordering::Release);
    explain::carried(using);
    epoll::take_over(using);
    true
}

/// What is left of the program's buffers after `skip` bytes, `most` bytes of it, for one system call.
fn rest<'a>(
    buffers: &[iovec],
    skip: usize,
    most: usize,
    room: &'a mut [iovec; VECTORS],
) -> &'a [iovec] {
    let mut count = 0;
    for (place, (from, bytes)) in room.iter_mut().zip(parts(buffers, skip, most)) {
        (place.iov_base, place.iov_len) = (from.cast(), bytes);
        count += 1;
    }
    &room[..count]
}

const NO_BUFFERS: [iovec; VECTORS] = [iovec {
    iov_base: std::ptr::null_mut(),
    iov_len: 0,
}; VECTORS];

/// Tells the other end that there is something new for it. Caller: holder of `sending` if `is_sender`.
pub(crate) fn tell(using: &Use, fd: c_int, is_sender: bool) {
    let found = news::mark(using.memory(), using.number(), 1 - using.side());
    if found.ways & FUTEX != 0 {
        wake_word(using);
    }
    let mut needs_bell = found.ways & !(FUTEX | DOORBELL) != 0;
    if found.ways & DOORBELL != 0 {
        match doorbell::ring(found.doorbell) {
            true => drop(using.wakes.fetch_add(1, Ordering::Relaxed)),
            false => needs_bell = true,
        }
    }
    if needs_bell {
        let _held = (!is_sender).then(|| using.hold_sending());
        ring_bell(using, fd);
    }
}

/// As `tell`, without a bell: what follows is reported by the kernel.
pub(crate) fn mark(using: &Use) {
    let other = 1 - using.side();
    if using.theirs().inn.waiter.load(Ordering::SeqCst) != 0 {
        let ready = &using.memory().header().ready[other].0;
        ready.fetch_or(1 << using.number(), Ordering::SeqCst);
    }
    // A thread that sleeps on the word learns nothing from the kernel.
    if using.theirs().inn.is_asleep.load(Ordering::SeqCst) & FUTEX != 0 {
        using
            .theirs()
            .inn
            .is_asleep
            .fetch_and(!FUTEX, Ordering::SeqCst);
        wake_word(using);
    }
}

/// Wakes those who sleep on the other end's word.
fn wake_word(using: &Use) {
    using.wakes.fetch_add(1, Ordering::Relaxed);
    sys::futex_wake(&using.theirs().inn.is_asleep, u32::MAX);
}

/// Caller: holder of `sending`.
pub(crate) fn ring_bell(using: &Use, fd: c_int) {
    if wake_gateway(using) {
        return;
    }
    let out = &using.mine().out;
    if out.back_at.load(Ordering::Relaxed) != 0 || out.switch_at.load(Ordering::Relaxed) == 0 {
        return;
    }
    // Before it is sent, so that the receiver never finds more than were counted.
    out.bells.fetch_add(1, Ordering::AcqRel);
    using.bells.fetch_add(1, Ordering::Relaxed);
    if sys::send(fd, &[0], libc::MSG_DONTWAIT).is_err() {
        // Full of bells that were not taken: the other end will wake up. Or closed: it will not.
        out.bells.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The other end wrote what cannot be: the connection ends as by a reset.
fn broken(using: &Use, _: Broken) -> Errno {
    let own = &using.mine().own;
    own.has_ended.fetch_or(ENDED | RESET, Ordering::AcqRel);
    Errno(libc::ECONNRESET)
}

/// Sends all of the program's buffers, or what there is room for if the socket or the call does not wait.
pub(crate) fn send(using: &Use, fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        // What only TCP has.
        demotion::fall_back(using, fd, "urgent data or MSG_ZEROCOPY");
        return sys::send_vector(fd, buffers, flags);
    }
    let total = buffers.iter().map(|buffer| buffer.iov_len).sum();
    let is_patient = flags & libc::MSG_DONTWAIT == 0
        && using.mine().own.is_nonblocking.load(Ordering::Relaxed) == 0;
    let mut sent = 0;
    let mut until = Until::new(libc::SO_SNDTIMEO);
    let outcome = loop {
        match try_send(using, fd, buffers, sent, total, flags) {
            Ok(bytes) => {
                sent += bytes;
                if sent >= total {
                    break Ok(());
                }
            }
            Err(AGAIN) if is_patient => {
                until.has_moved = sent > 0;
                if let Err(error) = wait_for_room(using, fd, &mut until) {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Err(error) if sent == 0 => {
            if error == Errno(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
                sys::raise_sigpipe();
            }
            Err(error)
        }
        outcome => {
            put_back(using, outcome);
            Ok(sent)
        }
    }
}

/// Errors that are of one call only.
const PASSING: [i32; 6] = [
    libc::EAGAIN,
    libc::EINTR,
    libc::EPIPE,
    libc::EBADF,
    libc::EFAULT,
    libc::EINVAL,
];

/// An error that was put back, or that the kernel has told of before the program asked.
fn stored_error(using: &Use) -> Result<()> {
    let error = &using.mine().own.error;
    if error.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    match error.swap(0, Ordering::AcqRel) {
        0 => Ok(()),
        error => Err(Errno(error as i32)),
    }
}

/// An error that came after a part of a call's bytes is the next call's.
pub(crate) fn put_back(using: &Use, outcome: Result<()>) {
    if let Err(Errno(error)) = outcome
        && !PASSING.contains(&error)
    {
        using
            .mine()
            .own
            .error
            .store(error as u32, Ordering::Relaxed);
    }
}

fn try_send(
    using: &Use,
    fd: c_int,
    buffers: &[iovec],
    skip: usize,
    total: usize,
    flags: c_int,
) -> Result<usize> {
    let is_ring = is_carried(using, fd);
    let end = using.mine();
    let _held = using.hold_sending();
    if !is_ring && end.out.switch_at.load(Ordering::Relaxed) == 0 {
        return send_by_tcp(using, fd, buffers, skip, flags);
    }
    if let Some(sent) = before_ring(using, fd, total - skip)? {
        return Ok(sent);
    }
    if end.out.back_at.load(Ordering::Relaxed) != 0 {
        return send_by_tcp(using, fd, buffers, skip, flags);
    }
    let ring = using.writer();
    let mut sent = 0;
    while skip + sent < total {
        let bytes = ring
            .write(buffers, skip + sent, TUNING.copies.chunk_bytes)
            .map_err(|what| broken(using, what))?;
        if bytes == 0 {
            break;
        }
        sent += bytes;
        tell(using, fd, true);
    }
    count(&using.sent, sent);
    if sent > 0 || skip == total {
        return Ok(sent);
    }
    end.out.wants_room.store(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    match ring.room() {
        Ok(0) => Err(AGAIN),
        Ok(_) => Ok(0),
        Err(what) => Err(broken(using, what)),
    }
}

/// Caller: holder of the lock of that direction, so that nobody else counts.
fn count(word: &AtomicU64, bytes: usize) {
    let before = word.load(Ordering::Relaxed);
    word.store(before.wrapping_add(bytes as u64), Ordering::Relaxed);
}

/// Sends before the ring, or after it. Caller: holder of `sending`.
fn send_by_tcp(
    using: &Use,
    fd: c_int,
    buffers: &[iovec],
    skip: usize,
    flags: c_int,
) -> Result<usize> {
    stored_error(using)?;
    let mut room = NO_BUFFERS;
    let kept = flags & (libc::MSG_MORE | libc::MSG_EOR | libc::MSG_DONTROUTE);
    let flags = kept | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let sent = sys::send_vector(fd, rest(buffers, skip, usize::MAX, &mut room), flags)?;
    let tcp_sent = &using.mine().own.tcp_sent;
    tcp_sent.fetch_add(sent as u64, Ordering::AcqRel);
    Ok(sent)
}

/// What stands against writing to the ring: an error, or an end for which `Some` bytes count as sent. Caller: holder of `sending`.
pub(crate) fn before_ring(using: &Use, fd: c_int, bytes: usize) -> Result<Option<usize>> {
    let (end, other) = (using.mine(), using.theirs());
    if end.out.is_finished.load(Ordering::Relaxed) != 0 {
        return Err(Errno(libc::EPIPE));
    }
    let sends = using.sends.load(Ordering::Relaxed).wrapping_add(1);
    using.sends.store(sends, Ordering::Relaxed);
    let asks_kernel = sends.is_multiple_of(TUNING.kernel.stream_ask_every)
        || other.out.is_closed.load(Ordering::Relaxed) != 0
        // Of one that has shut down both directions the kernel knows.
        || other.out.is_finished.load(Ordering::Relaxed) != 0
            && other.own.is_deaf.load(Ordering::Relaxed) != 0
        || end.own.has_ended.load(Ordering::Relaxed) != 0;
    if asks_kernel {
        if end.own.is_deaf.load(Ordering::Relaxed) != 0 {
            // To an end that has shut down reading the kernel reports that: a dead end is known by its answer only.
            ring_bell(using, fd);
        }
        ask(using, fd);
    }
    // First: one that has shut down sending and gives up its ring sends its end by TCP, but still receives.
    if other.inn.wants_tcp.load(Ordering::Acquire) != 0 {
        demotion::go_back(using, fd);
    }
    let has_ended = end.own.has_ended.load(Ordering::Relaxed);
    if has_ended & ENDED != 0 && end.out.back_at.load(Ordering::Relaxed) == 0 {
        stored_error(using)?;
        // The kernel has the error that the program expects; or, the first time, the other end's kernel answers with a reset.
        out_count(using);
        return match sys::send(fd, &[0], libc::MSG_DONTWAIT) {
            Err(AGAIN) => Ok(Some(bytes)),
            Err(_) if end.own.has_ended.fetch_and(!OWED, Ordering::AcqRel) & OWED != 0 => {
                Ok(Some(bytes))
            }
            // After an end, which this kernel has not seen.
            Err(Errno(libc::ECONNRESET)) if other.out.is_finished.load(Ordering::Relaxed) != 0 => {
                Err(Errno(libc::EPIPE))
            }
            Err(error) => Err(error),
            Ok(_) if has_ended & RESET != 0 => Err(Errno(libc::EPIPE)),
            Ok(_) => Ok(Some(bytes)),
        };
    }
    Ok(None)
}

fn out_count(using: &Use) {
    using.mine().out.bells.fetch_add(1, Ordering::AcqRel);
}

/// Whether what comes next was or will be sent by TCP before the other end's ring.
pub(crate) fn is_before_ring(using: &Use) -> bool {
    let switch_at = using.theirs().out.switch_at.load(Ordering::Acquire);
    switch_at == 0 || using.mine().own.tcp_taken.load(Ordering::Relaxed) < switch_at - 1
}

/// Receives into the program's buffers.
pub(crate) fn receive(using: &Use, fd: c_int, buffers: &[iovec], flags: c_int) -> Result<usize> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return sys::recv_vector(fd, buffers, flags);
    }
    let total: usize = buffers.iter().map(|buffer| buffer.iov_len).sum();
    if flags & libc::MSG_PEEK != 0 && flags & libc::MSG_TRUNC != 0 {
        // The program's buffers stay as they are, and may be none.
        let mut room = vec![0u8; total.min(2 * RING_BYTES as usize)];
        let buffer = iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        return receive(using, fd, &[buffer], flags & !libc::MSG_TRUNC);
    }
    let is_patient = flags & libc::MSG_DONTWAIT == 0
        && using.mine().own.is_nonblocking.load(Ordering::Relaxed) == 0;
    let mut until = Until::new(libc::SO_RCVTIMEO);
    let how = if flags & libc::MSG_PEEK != 0 {
        Reading::Peek
    } else if flags & libc::MSG_TRUNC != 0 {
        Reading::Discard
    } else {
        Reading::Take
    };
    let is_enough = |bytes: usize| {
        let is_whole = bytes >= total;
        is_whole || flags & libc::MSG_WAITALL == 0 && bytes >= low_water(using, fd) as usize
    };
    let mut received = 0;
    let outcome = loop {
        match try_receive(using, fd, buffers, received, how) {
            Ok(0) => break Ok(()),
            Ok(bytes) if how == Reading::Peek => {
                received = bytes;
                if is_enough(bytes) || !is_patient || is_over(using) {
                    break Ok(());
                }
                // No news come of bytes behind those that are known.
                if let Err(error) = until
                    .left(fd)
                    .and_then(|_| sys::try_sleep_us(TUNING.waits.peek_us))
                {
                    break Err(error);
                }
                received = 0;
            }
            Ok(bytes) => {
                received += bytes;
                if is_enough(received) {
                    break Ok(());
                }
            }
            Err(AGAIN) if is_patient => {
                until.has_moved = received > 0;
                if let Err(error) = wait_for_data(using, fd, &mut until) {
                    break Err(error);
                }
            }
            Err(error) => break Err(error),
        }
    };
    match outcome {
        Err(error) if received == 0 => {
            if error == AGAIN && !is_patient && using.gateway().is_some() {
                using.spin.found_nothing();
            }
            Err(error)
        }
        outcome => {
            using.spin.found();
            put_back(using, outcome);
            Ok(received)
        }
    }
}

/// A program has set `SO_RCVLOWAT` of some socket in this process.
pub(crate) static HAS_LOW_WATER: AtomicBool = AtomicBool::new(false);

/// Bytes that a call waits for. The kernel has the number until both ends have agreed.
fn low_water(using: &Use, fd: c_int) -> c_int {
    let known = match using.is_carried.load(Ordering::Relaxed) {
        0 if !HAS_LOW_WATER.load(Ordering::Relaxed) => 1,
        0 => sys::get_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1),
        _ => using.mine().own.low_water.load(Ordering::Relaxed),
    };
    known.max(1)
}

/// Nothing more will come.
pub(crate) fn is_over(using: &Use) -> bool {
    let own = &using.mine().own;
    using.theirs().out.is_finished.load(Ordering::Acquire) != 0
        || own.has_ended.load(Ordering::Acquire) != 0
        || own.is_deaf.load(Ordering::Relaxed) != 0
}

fn try_receive(
    using: &Use,
    fd: c_int,
    buffers: &[iovec],
    skip: usize,
    how: Reading,
) -> Result<usize> {
    let was_carried = is_carried(using, fd);
    let _held = using.hold_receiving();
    if is_before_ring(using)
        && let Some((received, is_all)) = receive_before_ring(using, fd, buffers, skip, how)?
    {
        let behind = if is_all {
            receive_behind(using, fd, buffers, skip + received, how)
        } else {
            0
        };
        return Ok(received + behind);
    }
    // The bell that tells of the ring may have been taken just now: who reads from there has gone over, and is told of news by memory from now on.
    if !was_carried {
        is_carried(using, fd);
    }
    let ring = using.reader();
    let read = || {
        ring.read(buffers, skip, how)
            .map_err(|what| broken(using, what))
    };
    match until_something(using, fd, read)? {
        Found::Bytes(bytes) => {
            if how != Reading::Peek {
                has_taken(using, fd, bytes);
            }
            Ok(bytes)
        }
        Found::End => Ok(0),
        Found::Tcp => {
            let stash = &using.mine().own.stash;
            if stash.load(Ordering::Acquire) != 0 {
                return Ok(demotion::from_stash(using, buffers, skip, how));
            }
            stored_error(using)?;
            receive_by_tcp(fd, buffers, skip, usize::MAX, how).or_else(|error| end_or(using, error))
        }
    }
}

fn receive_by_tcp(
    fd: c_int,
    buffers: &[iovec],
    skip: usize,
    most: usize,
    how: Reading,
) -> Result<usize> {
    let mut room = NO_BUFFERS;
    let flags = match how {
        Reading::Take => 0,
        Reading::Peek => libc::MSG_PEEK,
        Reading::Discard => libc::MSG_TRUNC,
    };
    sys::recv_vector(
        fd,
        rest(buffers, skip, most, &mut room),
        flags | libc::MSG_DONTWAIT,
    )
}

pub(crate) enum Found {
    Bytes(usize),
    End,
    /// Data comes by TCP again.
    Tcp,
}

/// Reads by `read` from the ring; where that is empty, finds out whether more can come. Caller: holder of `receiving`.
pub(crate) fn until_something(
    using: &Use,
    fd: c_int,
    mut read: impl FnMut() -> Result<usize>,
) -> Result<Found> {
    let (own, other) = (&using.mine().own, using.theirs());
    let mut is_last_poll = false;
    loop {
        // An end that has frozen its ring leaves what is in it: it comes by TCP.
        let bytes = if using.mine().inn.is_frozen.load(Ordering::Acquire) != 0 {
            0
        } else {
            read()?
        };
        if bytes > 0 {
            return Ok(Found::Bytes(bytes));
        }
        if other.inn.wants_tcp.load(Ordering::Acquire) != 0 {
            let _held = using.hold_sending();
            demotion::go_back(using, fd);
        }
        if demotion::is_behind(using) {
            return match demotion::after_ring(using, fd) {
                Ok(()) => Ok(Found::Tcp),
                Err(error) => end_or(using, error).map(|_| Found::End),
            };
        }
        let has_ended = own.has_ended.load(Ordering::Acquire) != 0;
        if other.out.is_finished.load(Ordering::Acquire) != 0
            || has_ended
            || own.is_deaf.load(Ordering::Relaxed) != 0
        {
            // What was written before that was said is visible now.
            if !is_last_poll {
                is_last_poll = true;
                continue;
            }
            stored_error(using)?;
            return if has_ended {
                end_by_kernel(using, fd)
            } else {
                Ok(Found::End)
            };
        }
        let empty = using.empty_calls.load(Ordering::Relaxed).wrapping_add(1);
        using.empty_calls.store(empty, Ordering::Relaxed);
        let asks_kernel = empty.is_multiple_of(TUNING.kernel.stream_ask_every)
            || other.out.is_closed.load(Ordering::Relaxed) != 0
            || using.has_kernel_news.swap(0, Ordering::AcqRel) != 0;
        if !asks_kernel || !waits::at_once(using, || take_bells_now(using, fd))? {
            return Err(AGAIN);
        }
    }
}

/// Room was made: whoever waits for it is told. Caller: holder of `receiving`.
pub(crate) fn has_taken(using: &Use, fd: c_int, bytes: usize) {
    count(&using.received, bytes);
    let wants_room = &using.theirs().out.wants_room;
    fence(Ordering::SeqCst);
    if wants_room.load(Ordering::Relaxed) != 0
        && using
            .reader()
            .room()
            .is_ok_and(|room| room >= TUNING.copies.room_bytes)
        && wants_room.swap(0, Ordering::AcqRel) != 0
    {
        tell(using, fd, false);
    }
}

/// Bytes that a receiver would find, as `FIONREAD` counts them.
pub(crate) fn unread_bytes(using: &Use, fd: c_int) -> u64 {
    is_carried(using, fd);
    let in_kernel = sys::unread_bytes(fd) as u64;
    let out = &using.theirs().out;
    let switch_at = out.switch_at.load(Ordering::Acquire);
    if switch_at == 0 {
        return in_kernel;
    }
    let taken = using.mine().own.tcp_taken.load(Ordering::Relaxed);
    let before = (switch_at - 1).saturating_sub(taken).min(in_kernel);
    let mut after = 0;
    if out.back_at.load(Ordering::Acquire) != 0 {
        let rung = out.bells.load(Ordering::Acquire);
        let bells = rung.saturating_sub(using.mine().own.bells_taken.load(Ordering::Acquire));
        after = (in_kernel - before).saturating_sub(bells);
    }
    before
        .saturating_add(using.reader().unread().unwrap_or(0))
        .saturating_add(after)
}

/// Bytes that the other end has not taken, as `SIOCOUTQ` counts them.
pub(crate) fn unsent_bytes(using: &Use) -> u64 {
    using.writer().unread().unwrap_or(0)
}

/// What an edge is known by: the position up to which the other end has written, and bits that are set by an end and by room.
pub(crate) fn progress(using: &Use) -> (u64, u32) {
    let (own, out) = (&using.mine().own, &using.theirs().out);
    let has_room = using
        .writer()
        .room()
        .is_ok_and(|room| room >= TUNING.copies.room_bytes);
    let bits = [
        out.is_finished.load(Ordering::Acquire) != 0,
        out.is_closed.load(Ordering::Acquire) != 0,
        out.back_at.load(Ordering::Acquire) != 0,
        own.is_deaf.load(Ordering::Acquire) != 0,
        own.has_ended.load(Ordering::Acquire) & ENDED != 0,
        own.has_ended.load(Ordering::Acquire) & RESET != 0,
        has_room,
    ];
    let state = bits
        .iter()
        .rev()
        .fold(0, |bits, bit| bits << 1 | u32::from(*bit));
    (out.tail.load(Ordering::Acquire), state)
}

/// Something to be received, or an end.
pub(crate) fn has_news(using: &Use) -> bool {
    let (own, out) = (&using.mine().own, &using.theirs().out);
    // What is left in a frozen ring comes by TCP.
    let is_frozen = using.mine().inn.is_frozen.load(Ordering::Acquire) != 0;
    (!is_frozen && using.reader().unread() != Ok(0))
        || out.is_finished.load(Ordering::Acquire) != 0
        || out.back_at.load(Ordering::Acquire) != 0
        || own.has_ended.load(Ordering::Acquire) != 0
        || own.is_deaf.load(Ordering::Acquire) != 0
        || using.theirs().inn.wants_tcp.load(Ordering::Acquire) != 0
}
