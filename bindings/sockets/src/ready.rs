//! What a stream is ready for, in the bits of `poll` and `epoll`, which are the same.
//!
//! `poll` and `epoll` ask. While a stream is carried the answer comes from shared memory; the kernel is asked where it has reported something, or where
//! data goes by TCP.

use std::sync::atomic::{Ordering, fence};

use libc::c_int;

use crate::demotion;
use crate::ring::{ENDED, RESET};
use crate::stream;
use crate::sys;
use crate::table::Use;
use crate::tuning::TUNING;

pub(crate) const IN: u32 = libc::EPOLLIN as u32;
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
pub(crate) const PRI: u32 = libc::EPOLLPRI as u32;
/// Other names for data and room.
const RDNORM: u32 = libc::EPOLLRDNORM as u32;
const WRNORM: u32 = libc::EPOLLWRNORM as u32;

const EVERYTHING: i16 = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;

/// Whether room is among the events.
pub(crate) fn wants_room(events: u32) -> bool {
    events & (OUT | WRNORM) != 0
}

/// What a stream is ready for. If `wants_room` and there is none, the other end tells of it later.
pub(crate) fn of(using: &Use, fd: c_int, wants_room: bool) -> u32 {
    let events = if stream::is_carried(using, fd) {
        carried(using, fd, wants_room)
    } else {
        sys::poll_now(fd, EVERYTHING) as u16 as u32
    };
    let mut more = 0;
    if events & IN != 0 {
        more |= RDNORM;
    }
    if events & OUT != 0 {
        more |= WRNORM;
    }
    events | more
}

fn carried(using: &Use, fd: c_int, wants_room: bool) -> u32 {
    let (end, other) = (using.mine(), using.theirs());
    let own = &end.own;
    if other.inn.wants_tcp.load(Ordering::Acquire) != 0 {
        let _held = using.hold_sending();
        demotion::go_back(using, fd);
    }
    let is_before = stream::is_before_ring(using);
    let is_behind = demotion::is_behind(using);
    let mut events = 0;
    // Before the kernel is asked: what it reports from now on is news again.
    let has_news = using.has_kernel_news.load(Ordering::Relaxed) != 0
        && using.has_kernel_news.swap(0, Ordering::AcqRel) != 0;
    let low_water = own.low_water.load(Ordering::Relaxed).max(1) as u64;
    let must_ask = has_news
        || other.out.back_at.load(Ordering::Acquire) != 0
        || own.has_ended.load(Ordering::Acquire) != 0
        || other.out.is_closed.load(Ordering::Relaxed) != 0;
    if must_ask {
        let kernel = stream::ask(using, fd) as u16 as u32;
        events |= kernel & (ERR | HUP | PRI);
        if is_before && kernel & IN != 0 && stream::is_before_ring(using) {
            // The kernel's own mark is that of bells.
            if low_water <= 1 || stream::unread_bytes(using, fd) >= low_water {
                events |= IN;
            }
        } else if is_behind && kernel & IN != 0 {
            demotion::skip_bells(using, fd);
            let after = stream::ask(using, fd) as u16 as u32;
            events |= after & IN;
        }
        if has_news && is_before {
            using.has_kernel_news.store(1, Ordering::Relaxed);
        }
    }
    if is_behind && own.stash.load(Ordering::Acquire) != 0 {
        events |= IN;
    }
    let has_ended = own.has_ended.load(Ordering::Acquire);
    if own.error.load(Ordering::Acquire) != 0 {
        events |= ERR;
    }
    let is_finished = other.out.is_finished.load(Ordering::Acquire) != 0;
    let is_deaf = own.is_deaf.load(Ordering::Relaxed) != 0;
    let is_over = is_finished || is_deaf || has_ended & ENDED != 0;
    if is_over {
        events |= IN | RDHUP;
    }
    let is_frozen = end.inn.is_frozen.load(Ordering::Acquire) != 0;
    let unread = if is_before || is_frozen {
        Ok(0)
    } else {
        using.reader().unread()
    };
    match unread {
        Ok(unread) if unread >= low_water.min(crate::ring::RING_BYTES) => events |= IN,
        Ok(_) => {}
        Err(_) => events |= IN | ERR | HUP,
    }
    let is_mute = end.out.is_finished.load(Ordering::Relaxed) != 0;
    // A reset ends both directions, whoever told of it first: the kernel, or a gateway.
    if is_mute && is_over || has_ended & RESET != 0 {
        events |= HUP;
    }
    if has_ended & RESET != 0 || is_mute {
        events |= OUT;
    } else if end.out.back_at.load(Ordering::Relaxed) != 0 {
        events |= sys::poll_now(fd, libc::POLLOUT) as u16 as u32 & OUT;
    } else if has_room(using, wants_room) || has_ended & ENDED != 0 {
        events |= OUT;
    }
    events
}

fn has_room(using: &Use, wants_room: bool) -> bool {
    let ring = using.writer();
    let is_enough = || {
        ring.room()
            .is_ok_and(|room| room >= TUNING.copies.room_bytes)
    };
    if is_enough() || !wants_room {
        return is_enough();
    }
    using.mine().out.wants_room.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    is_enough()
}
