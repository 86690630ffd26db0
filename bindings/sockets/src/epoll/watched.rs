//! The slots that an instance watches in segments, and its number there.

use std::sync::atomic::Ordering;

use tsumuji_streams::news;

use super::{Epoll, Interest, State, Watched};
use crate::ring::{DOORBELL, Plate};
use crate::table::Use;
use crate::{arena, stream, sys};

impl Epoll {
    /// The stream is answered from memory from now on.
    pub(super) fn watch(&self, state: &mut State, interest: &'static Interest) {
        interest.is_ours.store(1, Ordering::Release);
        let Some(using) = interest.using() else {
            return;
        };
        if !self.mark(state, &using) && interest.is_scanned.swap(1, Ordering::Relaxed) == 0 {
            state.scanned.push(interest);
        }
        // What the kernel has reported is an edge no more, but for data that it knows nothing of.
        let was_reported = interest.was_reported.load(Ordering::Relaxed) != 0;
        self.queue(state, interest, !was_reported || stream::has_news(&using));
    }

    /// Makes the slot's ready bit this instance's. False: it is another's, or there are too many.
    fn mark(&self, state: &mut State, using: &Use) -> bool {
        let Some(segment) = using.segment() else {
            return false;
        };
        let (side, bit) = (using.side(), 1 << using.number());
        let waiter_word = &using.mine().inn.waiter;
        let at = state.watched.iter().position(|watched| {
            std::ptr::eq(watched.segment.get(), segment.get()) && watched.side == side
        });
        let at = match at {
            Some(at) => at,
            None => {
                let (memory, pid) = (segment.get().memory(), sys::getpid());
                let taken = news::take_waiter(memory, side, pid, sys::is_thread_alive);
                let Some(waiter) = taken else {
                    return false;
                };
                state.watched.push(Watched {
                    segment,
                    side,
                    mask: 0,
                    waiter,
                });
                state.watched.len() - 1
            }
        };
        let watched = &mut state.watched[at];
        let number = watched.waiter as u32 + 1;
        let set = waiter_word.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        if set.is_err() && set != Err(number) {
            return false;
        }
        watched.mask |= bit;
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let way = self.way();
            say(watched, way, self.plate.plate());
        }
        true
    }

    /// The interest is none any more.
    pub(super) fn drop_interest(&self, interest: &'static Interest) {
        self.state.with(|state| {
            // Of an instance that was inherited, the parent still wants to be woken by it.
            let is_own = self.is_inherited.load(Ordering::Relaxed) == 0;
            if let Some(gateway) = interest.using().and_then(|using| using.gateway())
                && is_own
            {
                let fd = self.fd.load(Ordering::Relaxed);
                let _ = sys::epoll_ctl(fd, libc::EPOLL_CTL_DEL, gateway, 0, 0);
            }
            interest.is_active.store(0, Ordering::Relaxed);
            state.ready.retain(|one| !std::ptr::eq(*one, interest));
            state.scanned.retain(|one| !std::ptr::eq(*one, interest));
            if let Some(using) = interest.using()
                && let Some(segment) = using.segment()
            {
                let (side, bit) = (using.side(), 1u32 << using.number());
                for watched in &mut state.watched {
                    if std::ptr::eq(watched.segment.get(), segment.get()) && watched.side == side {
                        if watched.mask & bit != 0 {
                            using.mine().inn.waiter.store(0, Ordering::SeqCst);
                        }
                        watched.mask &= !bit;
                    }
                }
            }
            state.watched.retain(|watched| {
                if watched.mask == 0 {
                    free_waiter(watched);
                }
                watched.mask != 0
            });
            interest
                .epoll
                .store(std::ptr::null_mut(), Ordering::Release);
            interest
                .socket
                .store(std::ptr::null_mut(), Ordering::Release);
            arena::give_back(interest);
        });
    }
}

/// Says how the waiter shall be woken (0: it does not sleep), by which doorbell.
pub(super) fn say(watched: &Watched, way: u32, plate: Plate) {
    let header = watched.segment.get().memory().header();
    if way == DOORBELL {
        header.doorbells[watched.side][watched.waiter].set(plate);
    }
    header.asleep[watched.side][watched.waiter]
        .0
        .store(way, Ordering::SeqCst);
}

pub(super) fn free_waiter(watched: &Watched) {
    say(watched, 0, Plate::default());
    let memory = watched.segment.get().memory();
    news::free_waiter(memory, watched.side, watched.waiter, sys::getpid());
}
