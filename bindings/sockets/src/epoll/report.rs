//! What an instance has to report: from memory, and of what the kernel has reported.

use std::sync::atomic::{Ordering, fence};

use libc::epoll_event;

use super::{ET, Epoll, Interest, Nested, OF_GATEWAY, OLD_BELLS, ONESHOT, State};
use crate::{arena, handshake, ready, stream, sys, table};

/// Whether this end goes over to its ring in this call, so that its news are reported from memory: both ends have agreed, and the other one has gone over,
/// so that what the kernel reports may be a bell, or `has_heard` of it by its gateway.
fn goes_over(interest: &Interest, has_heard: bool) -> bool {
    let Some(using) = interest.using() else {
        return false;
    };
    let may_be_bell = using.theirs().out.switch_at.load(Ordering::Acquire) != 0;
    let is_agreed = |fd| handshake::is_agreed(&using, fd);
    (has_heard || may_be_bell) && using.any_fd().is_some_and(is_agreed)
}

impl Epoll {
    /// Whether a call would find something in memory.
    pub(crate) fn has_pending(&self) -> bool {
        super::control::inherit();
        let has_own = self.state.with(|state| {
            self.collect(state);
            let queued = state.ready.len();
            for _ in 0..queued {
                let Some(interest) = state.ready.pop_front() else {
                    break;
                };
                let events = self.reportable(interest);
                if events != 0 {
                    state.ready.push_front(interest);
                    return true;
                }
                interest.is_queued.store(0, Ordering::Relaxed);
            }
            false
        });
        // The kernel refuses instances that contain each other.
        has_own || self.nested().iter().any(Nested::must_report)
    }

    pub(super) fn queue(&self, state: &mut State, interest: &'static Interest, has_edge: bool) {
        if has_edge {
            interest.has_edge.store(1, Ordering::Relaxed);
            self.edges.fetch_add(1, Ordering::Relaxed);
        }
        if interest.is_queued.swap(1, Ordering::Relaxed) == 0 {
            state.ready.push_back(interest);
        }
    }

    /// Queues what producers have marked.
    pub(super) fn collect(&self, state: &mut State) {
        let mut found: Vec<&'static Interest> = Vec::new();
        for watched in &state.watched {
            let header = watched.segment.get().memory().header();
            let word = &header.ready[watched.side].0;
            let bits = word.load(Ordering::Acquire) & watched.mask;
            if bits == 0 {
                continue;
            }
            word.fetch_and(!bits, Ordering::AcqRel);
            // A producer that still saw the bit has written before; what it wrote is looked at after this.
            fence(Ordering::SeqCst);
            let mut left = bits;
            while left != 0 {
                let slot = left.trailing_zeros() as usize;
                left &= left - 1;
                let Some(using) = table::by_slot(watched.segment.get(), watched.side, slot) else {
                    continue;
                };
                using.interests.with(|all| {
                    found.extend(all.iter().filter(|one| one.is_of(self)));
                });
            }
        }
        for interest in found {
            self.queue(state, interest, true);
        }
        for at in 0..state.scanned.len() {
            let interest = state.scanned[at];
            let has_changed = interest.has_changed();
            if has_changed || interest.events.load(Ordering::Relaxed) & ET == 0 {
                self.queue(state, interest, has_changed);
            }
        }
    }

    pub(super) fn has_marks(&self) -> bool {
        self.state.with(|state| {
            state.watched.iter().any(|watched| {
                let header = watched.segment.get().memory().header();
                header.ready[watched.side].0.load(Ordering::Acquire) & watched.mask != 0
            })
        })
    }

    /// What is to be reported of an interest now.
    fn reportable(&self, interest: &Interest) -> u32 {
        let is_idle = interest.is_active.load(Ordering::Relaxed) == 0
            || interest.is_spent.load(Ordering::Relaxed) != 0
            || interest.is_ours.load(Ordering::Relaxed) == 0;
        let events = interest.events.load(Ordering::Relaxed);
        if is_idle || (events & ET != 0 && interest.has_edge.load(Ordering::Relaxed) == 0) {
            return 0;
        }
        let Some(using) = interest.using() else {
            return 0;
        };
        let Some(fd) = using.any_fd() else { return 0 };
        ready::of(&using, fd, ready::wants_room(events))
            & (events | ready::ERR | ready::HUP)
            & !(ET | ONESHOT)
    }

    /// Reports what there is, after `from` events that there are; how many there are then.
    pub(super) fn emit(&self, state: &mut State, events: &mut [epoll_event], from: usize) -> usize {
        let mut count = from;
        for _ in 0..state.ready.len() {
            if count == events.len() {
                break;
            }
            let Some(interest) = state.ready.pop_front() else {
                break;
            };
            let found = self.reportable(interest);
            interest.has_edge.store(0, Ordering::Relaxed);
            let wanted = interest.events.load(Ordering::Relaxed);
            if found == 0 || wanted & (ET | ONESHOT) != 0 {
                interest.is_queued.store(0, Ordering::Relaxed);
            } else {
                state.ready.push_back(interest);
            }
            if found != 0 {
                if wanted & ONESHOT != 0 {
                    interest.is_spent.store(1, Ordering::Relaxed);
                }
                interest.told.fetch_or(found, Ordering::Relaxed);
                events[count] = epoll_event {
                    events: found,
                    u64: interest.data.load(Ordering::Relaxed),
                };
                count += 1;
            }
        }
        count
    }

    /// Reports other instances in it that have something, after `from` events; how many there are then. Their locks are taken, so none may be held.
    pub(super) fn emit_nested(&self, events: &mut [epoll_event], from: usize) -> usize {
        let mut count = from;
        for nested in self.nested() {
            let is_told = nested.key.is_none()
                && events[..count].iter().any(|event| {
                    let told = event.u64;
                    told == nested.data
                });
            if is_told || count == events.len() || !nested.must_report() {
                continue;
            }
            if let Some(key) = nested.key {
                if !self.claim(key) {
                    continue;
                }
                self.has_told(&nested, key);
            }
            events[count] = epoll_event {
                events: ready::IN,
                u64: nested.data,
            };
            count += 1;
        }
        count
    }

    /// An edge or a one-shot is one thread's to report, and one that is reported from memory not the kernel's any more.
    fn claim(&self, key: &'static Interest) -> bool {
        let kernel = self.fd.load(Ordering::Relaxed);
        self.state.with(|state| {
            let Some(one) = state.nested.iter_mut().find(|one| one.has_key(key)) else {
                return false;
            };
            let edges = one.epoll.edges.load(Ordering::Relaxed);
            if one.is_spent || one.events & ET != 0 && one.seen == edges {
                return false;
            }
            one.seen = edges;
            if one.events & ONESHOT != 0 {
                one.is_spent = true;
                // The number may be another file's by now; then the mark is enough.
                if one.epoll.fds.with(|fds| fds.contains(&one.fd)) {
                    let data = std::ptr::from_ref(key) as u64;
                    let _ = sys::epoll_ctl(kernel, libc::EPOLL_CTL_MOD, one.fd, 0, data);
                }
            }
            true
        })
    }

    /// An instance in it is reported, from memory or by the kernel: the other one shall not do so again. No lock may be held.
    fn has_told(&self, nested: &Nested, key: &'static Interest) {
        let inner = nested.epoll;
        inner.take_rings();
        let queued: Vec<&'static Interest> = inner.state.with(|state| {
            inner.collect(state);
            state.ready.iter().copied().collect()
        });
        let seen = inner.edges.load(Ordering::Relaxed);
        for using in queued.iter().filter_map(|interest| interest.using()) {
            if let Some(fd) = using.any_fd() {
                stream::take_old_bells(&using, fd, OLD_BELLS);
            }
        }
        // A thread that waits there may have been meant by these bells. Those that wait here are told by whoever reports it here.
        if inner.waiters.load(Ordering::SeqCst) > 0 && inner.has_pending() {
            inner.kick();
        }
        self.state.with(|state| {
            if let Some(one) = state.nested.iter_mut().find(|one| one.has_key(key)) {
                let is_newer = seen.wrapping_sub(one.seen) as i32 > 0;
                one.seen = if is_newer { seen } else { one.seen };
            }
        });
    }

    pub(super) fn nested(&self) -> Vec<Nested> {
        self.state.with(|state| state.nested.clone())
    }

    /// Takes our own out of what the kernel has reported; how many are left. Streams that their gateways have woken may go over to their rings.
    pub(super) fn taken(&self, events: &mut [epoll_event]) -> usize {
        let (mut woken, mut told) = (Vec::new(), Vec::new());
        let marker = std::ptr::from_ref(arena::marker()) as u64;
        if events.iter().any(|event| {
            let data = event.u64;
            data == marker
        }) {
            self.take_rings();
        }
        let kept = self
            .state
            .with(|state| self.translate(state, events, &mut woken, &mut told));
        for nested in told {
            if let Some(key) = nested.key {
                self.has_told(&nested, key);
            }
        }
        for interest in woken {
            if let Some(using) = interest.using()
                && let Some(fd) = using.any_fd()
            {
                stream::take_old_bells(&using, fd, OLD_BELLS);
                stream::is_carried(&using, fd);
            }
        }
        kept
    }

    fn translate(
        &self,
        state: &mut State,
        events: &mut [epoll_event],
        woken: &mut Vec<&'static Interest>,
        told: &mut Vec<Nested>,
    ) -> usize {
        let mut kept = 0;
        // A stream whose gateway tells of both ends' agreement is reported from memory, and not by the kernel, too.
        let of_gateways: Vec<u64> = (events.iter())
            .filter_map(|event| Some(event.u64).filter(|data| data & OF_GATEWAY != 0))
            .collect();
        for at in 0..events.len() {
            let event = events[at];
            let address = event.u64 & !OF_GATEWAY;
            let is_gateway = event.u64 != address;
            let Some(interest) = arena::interest(address) else {
                events[kept] = event;
                kept += 1;
                continue;
            };
            if let Some(one) = state.nested.iter_mut().find(|one| one.has_key(interest)) {
                // It was reported from memory while the kernel did so.
                if one.is_spent {
                    continue;
                }
                one.is_spent = one.events & ONESHOT != 0;
                told.push(*one);
                events[kept] = epoll_event {
                    events: event.events,
                    u64: one.data,
                };
                kept += 1;
                continue;
            }
            if std::ptr::eq(interest, arena::marker()) || !interest.is_of(self) {
                continue;
            }
            if interest.is_active.load(Ordering::Relaxed) == 0 {
                // It may be added again, and an end is reported once.
                if let Some(using) = interest.using() {
                    using.has_kernel_news.store(1, Ordering::Relaxed);
                }
                continue;
            }
            if interest.is_ours.load(Ordering::Acquire) == 0 {
                let has_heard = of_gateways.contains(&(address | OF_GATEWAY));
                if is_gateway || goes_over(interest, has_heard) {
                    if !is_gateway {
                        // It was an edge that the kernel reports no more.
                        interest.was_reported.store(0, Ordering::Relaxed);
                    }
                    woken.push(interest);
                    continue;
                }
                // The kernel's word, as it is.
                interest.was_reported.store(1, Ordering::Relaxed);
                if interest.events.load(Ordering::Relaxed) & ONESHOT != 0 {
                    interest.is_spent.store(1, Ordering::Relaxed);
                }
                events[kept] = epoll_event {
                    events: event.events,
                    u64: interest.data.load(Ordering::Relaxed),
                };
                kept += 1;
                continue;
            }
            let Some(using) = interest.using() else {
                continue;
            };
            using.has_kernel_news.store(1, Ordering::Relaxed);
            let ends = event.events & (ready::RDHUP | ready::HUP | ready::ERR | ready::PRI);
            let has_edge = if is_gateway {
                // News of data are marked; this tells of the gateway's own end only.
                stream::is_new_end(&using)
            } else {
                ends & !interest.told.load(Ordering::Relaxed) != 0
                    || stream::is_before_ring(&using)
                    || using.theirs().out.back_at.load(Ordering::Relaxed) != 0
            };
            self.queue(state, interest, has_edge);
            if let Some(fd) = using.any_fd() {
                stream::take_old_bells(&using, fd, OLD_BELLS);
            }
        }
        kept
    }
}
