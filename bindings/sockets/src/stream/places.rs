//! Bytes that files and pipes write into the ring, or take out of it, themselves: `sendfile` and `splice`.
//!
//! Ends of a ring are locked while `fill` or `drain` runs, so neither may wait. Where TCP carries the data, bytes go by way of memory of ours.

use std::sync::atomic::{Ordering, fence};

use libc::{c_int, iovec};

use super::{
    Found, Until, before_ring, broken, count, has_taken, is_before_ring, is_carried, receive, send,
    tell, until_something, wait_for_room,
};
use crate::demotion;
use crate::sys::{self, AGAIN, Errno, Result};
use crate::table::Use;
use crate::tuning::TUNING;

/// Where bytes are that are sent by way of no memory of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// They stay there, and can be taken again.
    File,
    /// They have gone from there once they are taken, so they must be sent.
    Pipe,
}

/// Sends what `fill` writes to the place that it is given: a part of the ring, or memory of ours where TCP carries the data. 0: `fill` had nothing.
pub(crate) fn send_from(
    using: &Use,
    fd: c_int,
    most: usize,
    source: Source,
    fill: impl FnOnce(*mut u8, usize) -> Result<usize>,
) -> Result<usize> {
    if !is_carried(using, fd) {
        return send_from_memory(using, fd, most, source, fill);
    }
    let out = &using.mine().out;
    let held = using.hold_sending();
    if before_ring(using, fd, most)?.is_some() {
        // What is taken counts as sent.
        let mut room = vec![0u8; most.min(TUNING.copies.own_bytes)];
        return fill(room.as_mut_ptr(), room.len());
    }
    if out.back_at.load(Ordering::Relaxed) != 0 {
        drop(held);
        return send_from_memory(using, fd, most, source, fill);
    }
    let ring = using.writer();
    if ring.room() == Ok(0) {
        out.wants_room.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if ring.room() == Ok(0) {
            return Err(AGAIN);
        }
    }
    let filled = ring
        .write_with(most, fill)
        .map_err(|what| broken(using, what))?;
    let bytes = filled?;
    if bytes > 0 {
        tell(using, fd, true);
        count(&using.sent, bytes);
    }
    Ok(bytes)
}

/// By way of memory of ours.
#[cold]
fn send_from_memory(
    using: &Use,
    fd: c_int,
    most: usize,
    source: Source,
    fill: impl FnOnce(*mut u8, usize) -> Result<usize>,
) -> Result<usize> {
    // Nothing is taken that would have to wait at once.
    if sys::poll_now(fd, libc::POLLOUT) == 0 {
        return Err(AGAIN);
    }
    let mut room = vec![0u8; most.min(TUNING.copies.own_bytes)];
    let bytes = fill(room.as_mut_ptr(), room.len())?;
    let mut sent = 0;
    while sent < bytes {
        let buffers = [iovec {
            iov_base: room.as_mut_ptr().wrapping_add(sent).cast(),
            iov_len: bytes - sent,
        }];
        match send(using, fd, &buffers, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) {
            Ok(more) => sent += more,
            // A time-out is none of these bytes' business: they have left the pipe.
            Err(AGAIN) if source == Source::Pipe => {
                let waited = wait_for_room(using, fd, &mut Until::regardless(libc::SO_SNDTIMEO));
                if let Err(error) = waited
                    && ![AGAIN, Errno(libc::EINTR)].contains(&error)
                {
                    return Err(error);
                }
            }
            Err(error) if sent == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(sent)
}

/// Hands what is unread to `drain`, which says how much it took; where it could take nothing, `AGAIN`. An error `AGAIN`: that, or there was nothing.
pub(crate) fn receive_into(
    using: &Use,
    fd: c_int,
    most: usize,
    drain: impl Fn(*mut u8, usize) -> Result<usize>,
) -> Result<Found> {
    is_carried(using, fd);
    if is_before_ring(using) || demotion::is_behind(using) {
        let mut room = vec![0u8; most.min(TUNING.copies.own_bytes)];
        let mut buffers = [iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        }];
        let bytes = receive(using, fd, &buffers, libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
        if bytes == 0 {
            return Ok(Found::End);
        }
        let taken = drain(room.as_mut_ptr(), bytes)?;
        buffers[0].iov_len = taken;
        receive(using, fd, &buffers, libc::MSG_DONTWAIT)?;
        return Ok(Found::Bytes(taken));
    }
    let _held = using.hold_receiving();
    let ring = using.reader();
    let read = || {
        ring.read_with(most, &drain)
            .map_err(|what| broken(using, what))?
    };
    let found = until_something(using, fd, read)?;
    if let Found::Bytes(bytes) = found {
        has_taken(using, fd, bytes);
    }
    Ok(found)
}
