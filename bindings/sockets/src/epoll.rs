//! The program's epoll instances, where they watch streams.
//!
//! The program keeps its own epoll descriptor. A carried stream is registered there for input only, edge triggered, so that bells and ends wake whoever
//! sleeps in it; interest, edges and one-shots are kept here. Producers set a bit for the slot in the segment (`Header::ready`), so a call looks at one
//! word for each segment, not at each stream. All other descriptors are the kernel's business, with the program's own data; ours are told apart by
//! their data, which are addresses of `Interest`s.
//!
//! `exports` calls `control` and `wait`; `stream` calls `take_over` when a stream goes over to its ring, `table`'s users `forget` when it is closed.
//!
//! Invariants: `State` is read and written under its lock only, and under that lock no other epoll's is taken. An interest that is queued is in `State::ready`
//! once. Before sleeping: `arm`, a fence, one more look at all ready words.

mod control;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use libc::{c_int, c_void, epoll_event};

use crate::explain::{self, Count};
use crate::idle::Spin;
use crate::lock::Locked;
use crate::ring::WAITERS;
use crate::segment::SegmentRef;
use crate::sys::{self, Result};
use crate::table::{self, Socket, Use};
use crate::{arena, ready, stream};

pub(crate) use control::{after_fork, control, control_nested, forget, release, take_over};

/// Every how many-th call asks the kernel although there is news in memory.
const ASK_EVERY: u32 = 16;
/// Bells of a stream are taken out of the kernel when it reports them. Left there, they would not be acknowledged at once, and the other end's kernel
/// holds back further ones when some ten are unacknowledged: up to 40 ms.
const OLD_BELLS: u64 = 1;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// What a carried stream is registered for.
const KERNEL_EVENTS: u32 = ready::IN | ready::RDHUP | ET;

/// And its gateway.
const GATEWAY_EVENTS: u32 = ready::IN | ET;

/// What one epoll instance wants to know of one stream. Never freed.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Interest {
    epoll: AtomicPtr<Epoll>,
    socket: AtomicPtr<Socket>,
    fd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
    /// The program has not deleted it; it may still be registered in the kernel, to save the next registration.
    is_active: AtomicU32,
    /// A one-shot that has been reported.
    is_spent: AtomicU32,
    /// Answered from memory (the stream is carried).
    is_ours: AtomicU32,
    /// Looked at in each call: there is no ready word for it.
    is_scanned: AtomicU32,
    is_queued: AtomicU32,
    has_edge: AtomicU32,
    /// Ends that were reported, so that the kernel's word for them is no news; and whether anything was, while the kernel answered.
    told: AtomicU32,
    was_reported: AtomicU32,
}

impl Interest {
    pub(crate) const fn new() -> Self {
        Self {
            epoll: AtomicPtr::new(std::ptr::null_mut()),
            socket: AtomicPtr::new(std::ptr::null_mut()),
            fd: AtomicI32::new(-1),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
            is_active: AtomicU32::new(0),
            is_spent: AtomicU32::new(0),
            is_ours: AtomicU32::new(0),
            is_scanned: AtomicU32::new(0),
            is_queued: AtomicU32::new(0),
            has_edge: AtomicU32::new(0),
            told: AtomicU32::new(0),
            was_reported: AtomicU32::new(0),
        }
    }

    fn is_of(&self, epoll: &Epoll) -> bool {
        std::ptr::eq(self.epoll.load(Ordering::Acquire), epoll)
    }

    fn using(&self) -> Option<Use> {
        arena::socket(self.socket.load(Ordering::Acquire)).map(table::using)
    }
}

/// The slots of one segment that an instance watches.
#[derive(Debug)]
struct Watched {
    segment: SegmentRef,
    side: usize,
    mask: u32,
    waiter: usize,
}

#[derive(Debug)]
struct State {
    ready: VecDeque<&'static Interest>,
    watched: Vec<Watched>,
    scanned: Vec<&'static Interest>,
    /// Other instances in it, the events wanted of them and the program's data.
    nested: Vec<(&'static Epoll, u32, u64)>,
}

/// An epoll instance. Never freed, but used again.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Epoll {
    fd: AtomicI32,
    fds: Locked<Vec<i32>>,
    state: Locked<State>,
    /// It has had streams or instances in it: events must be looked through.
    is_ever_ours: AtomicU32,
    /// It is or was in another instance.
    is_nested: AtomicU32,
    sleepers: AtomicU32,
    calls: AtomicU32,
    /// An eventfd in it, by which threads of this process wake others; -1: not made yet.
    waker: AtomicI32,
    spin: Spin,
}

static FREE: Locked<Vec<&'static Epoll>> = Locked::new(Vec::new());
static LIVE: Locked<Vec<&'static Epoll>> = Locked::new(Vec::new());

/// After `epoll_create`.
pub(crate) fn add(fd: c_int) {
    let epoll = FREE.with(Vec::pop).unwrap_or_else(|| {
        Box::leak(Box::new(Epoll {
            fd: AtomicI32::new(-1),
            fds: Locked::new(Vec::new()),
            state: Locked::new(State {
                ready: VecDeque::new(),
                watched: Vec::new(),
                scanned: Vec::new(),
                nested: Vec::new(),
            }),
            is_ever_ours: AtomicU32::new(0),
            is_nested: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            waker: AtomicI32::new(-1),
            spin: Spin::new(),
        }))
    });
    epoll.fd.store(fd, Ordering::Relaxed);
    epoll.is_ever_ours.store(0, Ordering::Relaxed);
    epoll.is_nested.store(0, Ordering::Relaxed);
    epoll.spin.reset();
    epoll.fds.with(|fds| *fds = vec![fd]);
    LIVE.with(|live| live.push(epoll));
    table::set_epoll(fd, epoll);
}

impl Epoll {
    pub(crate) fn add_fd(&'static self, fd: c_int) {
        self.fds.with(|fds| fds.push(fd));
        table::set_epoll(fd, self);
    }

    /// One of its descriptors goes; with the last one the instance.
    pub(crate) fn remove_fd(&'static self, fd: c_int) {
        table::clear(fd);
        let left = self.fds.with(|fds| {
            fds.retain(|one| *one != fd);
            fds.first().copied()
        });
        if let Some(left) = left {
            self.fd.store(left, Ordering::Relaxed);
            return;
        }
        LIVE.with(|live| live.retain(|one| !std::ptr::eq(*one, self)));
        let mut interests = Vec::new();
        table::for_each_stream(|socket| {
            let found = socket
                .interests
                .with(|all| extract(all, |one| one.is_of(self)));
            interests.extend(found);
        });
        for interest in interests {
            self.state.with(|state| self.drop_interest(state, interest));
        }
        self.state.with(|state| {
            state.ready.clear();
            state.scanned.clear();
            state.nested.clear();
            for watched in state.watched.drain(..) {
                free_waiter(&watched);
            }
        });
        let waker = self.waker.swap(-1, Ordering::AcqRel);
        if waker >= 0 {
            table::close_own(waker);
        }
        FREE.with(|free| free.push(self));
    }

    /// Whether a call has anything to do here.
    pub(crate) fn is_watching(&self) -> bool {
        self.is_ever_ours.load(Ordering::Acquire) != 0
    }

    /// Whether a call would find something in memory.
    pub(crate) fn has_pending(&self) -> bool {
        self.state.with(|state| {
            self.collect(state);
            let queued = state.ready.len();
            for _ in 0..queued {
                let Some(interest) = state.ready.pop_front() else {
                    break;
                };
                let events = self.due(interest);
                if events != 0 {
                    state.ready.push_front(interest);
                    return true;
                }
                interest.is_queued.store(0, Ordering::Relaxed);
            }
            false
        })
    }

    /// A sleeper comes and goes while nothing is watched. Streams that are put in meanwhile find it.
    pub(crate) fn slept<R>(&self, sleep: impl FnOnce() -> R) -> R {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = sleep();
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// A sleeper comes: the next news shall ring.
    pub(crate) fn arm(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let nested = self.state.with(|state| {
            for watched in &state.watched {
                asleep(watched).store(1, Ordering::SeqCst);
            }
            for interest in &state.scanned {
                if let Some(using) = interest.using() {
                    using.mine().inn.is_asleep.store(1, Ordering::SeqCst);
                }
            }
            state.nested.iter().map(|one| one.0).collect::<Vec<_>>()
        });
        for one in nested {
            one.arm();
        }
        fence(Ordering::SeqCst);
    }

    pub(crate) fn disarm(&self) {
        let nested = self.state.with(|state| {
            if self.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
                for watched in &state.watched {
                    asleep(watched).store(0, Ordering::Relaxed);
                }
            }
            state.nested.iter().map(|one| one.0).collect::<Vec<_>>()
        });
        for one in nested {
            one.disarm();
        }
    }

    /// Wakes threads of this process that sleep here: something is due without a bell.
    fn kick(&self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waker = self.waker.load(Ordering::Acquire);
        if waker < 0 {
            let Ok(made) = sys::eventfd() else { return };
            waker = table::keep_own(made);
            let fd = self.fd.load(Ordering::Relaxed);
            let data = std::ptr::from_ref(arena::marker()) as u64;
            let _ = sys::epoll_ctl(fd, libc::EPOLL_CTL_ADD, waker, ready::IN | ET, data);
            self.waker.store(waker, Ordering::Release);
        }
        sys::ring_eventfd(waker);
    }

    fn queue(&self, state: &mut State, interest: &'static Interest, has_edge: bool) {
        if has_edge {
            interest.has_edge.store(1, Ordering::Relaxed);
        }
        if interest.is_queued.swap(1, Ordering::Relaxed) == 0 {
            state.ready.push_back(interest);
        }
    }

    /// Queues what producers have marked.
    fn collect(&self, state: &mut State) {
        let mut found: Vec<&'static Interest> = Vec::new();
        for watched in &state.watched {
            let header = watched.segment.get().memory().header();
            let word = &header.ready[watched.side].0;
            let bits = word.load(Ordering::Acquire) & watched.mask;
            if bits == 0 {
                continue;
            }
            word.fetch_and(!bits, Ordering::AcqRel);
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
            self.queue(state, interest, true);
        }
    }

    fn has_marks(&self) -> bool {
        self.state.with(|state| {
            state.watched.iter().any(|watched| {
                let header = watched.segment.get().memory().header();
                header.ready[watched.side].0.load(Ordering::Acquire) & watched.mask != 0
            })
        })
    }

    /// What is to be reported of an interest now.
    fn due(&self, interest: &Interest) -> u32 {
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
        ready::of(&using, fd, events & ready::OUT != 0)
            & (events | ready::ERR | ready::HUP)
            & !(ET | ONESHOT)
    }

    /// Reports what is due, after `from` events that there are; how many there are then.
    fn emit(&self, state: &mut State, events: &mut [epoll_event], from: usize) -> usize {
        let mut count = from;
        for _ in 0..state.ready.len() {
            if count == events.len() {
                break;
            }
            let Some(interest) = state.ready.pop_front() else {
                break;
            };
            let due = self.due(interest);
            interest.has_edge.store(0, Ordering::Relaxed);
            let wanted = interest.events.load(Ordering::Relaxed);
            if due == 0 || wanted & (ET | ONESHOT) != 0 {
                interest.is_queued.store(0, Ordering::Relaxed);
            } else {
                state.ready.push_back(interest);
            }
            if due != 0 {
                if wanted & ONESHOT != 0 {
                    interest.is_spent.store(1, Ordering::Relaxed);
                }
                interest.told.fetch_or(due, Ordering::Relaxed);
                events[count] = epoll_event {
                    events: due,
                    u64: interest.data.load(Ordering::Relaxed),
                };
                count += 1;
            }
        }
        for (nested, wanted, data) in state.nested.clone() {
            let is_known = events[..count].iter().any(|event| {
                let known = event.u64;
                known == data
            });
            if count < events.len() && wanted & ready::IN != 0 && !is_known && nested.has_pending()
            {
                events[count] = epoll_event {
                    events: ready::IN,
                    u64: data,
                };
                count += 1;
            }
        }
        count
    }

    /// Takes our own out of what the kernel has reported; how many are left, and whether any were ours.
    fn translate(&self, state: &mut State, events: &mut [epoll_event]) -> (usize, bool) {
        let (mut kept, mut had_ours) = (0, false);
        for at in 0..events.len() {
            let event = events[at];
            let Some(interest) = arena::interest(event.u64) else {
                events[kept] = event;
                kept += 1;
                continue;
            };
            had_ours = true;
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
                // The kernel's word, as it is; or a gateway's, which is news of data only.
                let wanted = interest.events.load(Ordering::Relaxed) | ready::ERR | ready::HUP;
                if event.events & wanted == 0 {
                    continue;
                }
                interest.was_reported.store(1, Ordering::Relaxed);
                if interest.events.load(Ordering::Relaxed) & ONESHOT != 0 {
                    interest.is_spent.store(1, Ordering::Relaxed);
                }
                events[kept] = epoll_event {
                    events: event.events & wanted,
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
            let has_edge = ends & !interest.told.load(Ordering::Relaxed) != 0
                || stream::is_before_ring(&using)
                || using.theirs().out.back_at.load(Ordering::Relaxed) != 0;
            self.queue(state, interest, has_edge);
            if let Some(fd) = using.any_fd() {
                stream::take_old_bells(&using, fd, OLD_BELLS);
            }
        }
        (kept, had_ours)
    }

    /// What is left for the program of what the kernel has reported.
    pub(crate) fn sort_out(&self, events: &mut [epoll_event]) -> usize {
        self.state.with(|state| self.translate(state, events).0)
    }

    /// As `epoll_pwait2`.
    pub(crate) fn wait(
        &self,
        events: &mut [epoll_event],
        timeout_ns: Option<u64>,
        mask: *const c_void,
    ) -> Result<usize> {
        let fd = self.fd.load(Ordering::Relaxed);
        let until = timeout_ns.map(|ns| sys::now_ns().saturating_add(ns));
        let mut is_first = true;
        loop {
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            // The kernel first, now and then: memory alone could fill a short list for ever. And an instance that sees this one must not see bells that
            // have been answered.
            let is_due =
                calls % ASK_EVERY == ASK_EVERY - 1 || self.is_nested.load(Ordering::Relaxed) != 0;
            let asked = if is_due {
                sys::epoll_wait(fd, events, Some(0), std::ptr::null()).unwrap_or(0)
            } else {
                0
            };
            let found = self.state.with(|state| {
                let kept = self.translate(state, &mut events[..asked]).0;
                self.collect(state);
                self.emit(state, events, kept)
            });
            if found > 0 {
                return Ok(found);
            }
            let may_wait = timeout_ns != Some(0);
            if may_wait && is_first && self.has_watched() && self.spin.until(|| self.has_marks()) {
                is_first = false;
                continue;
            }
            is_first = false;
            if may_wait {
                self.arm();
                if self.has_pending() {
                    self.disarm();
                    continue;
                }
                explain::count(Count::Sleep);
            }
            let left = until.map(|until| until.saturating_sub(sys::now_ns()));
            let left = if may_wait { left } else { Some(0) };
            let outcome = sys::epoll_wait(fd, events, left, mask);
            if may_wait {
                self.disarm();
            }
            let (count, error) = match outcome {
                Ok(count) => (count, None),
                Err(error) => (0, Some(error)),
            };
            let total = self.state.with(|state| {
                let kept = self.translate(state, &mut events[..count]).0;
                self.collect(state);
                self.emit(state, events, kept)
            });
            match error {
                _ if total > 0 => return Ok(total),
                Some(error) => return Err(error),
                None if !may_wait || until.is_some_and(|until| sys::now_ns() >= until) => {
                    return Ok(0);
                }
                None => {}
            }
        }
    }

    fn has_watched(&self) -> bool {
        self.state.with(|state| !state.watched.is_empty())
    }

    /// The stream is answered from memory from now on.
    fn watch(&self, state: &mut State, interest: &'static Interest) {
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
                let Some(waiter) = take_waiter(&segment, side) else {
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
            asleep(watched).store(1, Ordering::SeqCst);
        }
        true
    }

    fn drop_interest(&self, state: &mut State, interest: &'static Interest) {
        if let Some(gateway) = interest.using().and_then(|using| using.gateway()) {
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
    }
}

fn extract(
    all: &mut Vec<&'static Interest>,
    mut is_out: impl FnMut(&Interest) -> bool,
) -> Vec<&'static Interest> {
    let (out, kept) = std::mem::take(all).into_iter().partition(|one| is_out(one));
    *all = kept;
    out
}

fn asleep(watched: &Watched) -> &'static AtomicU32 {
    let header = watched.segment.get().memory().header();
    &header.asleep[watched.side][watched.waiter].0
}

/// A number for this process in the segment. Those of processes that are gone are taken over.
fn take_waiter(segment: &SegmentRef, side: usize) -> Option<usize> {
    let pid = sys::getpid();
    let owners = &segment.get().memory().header().owners[side];
    (0..WAITERS).find(|waiter| {
        let owner = owners[*waiter].load(Ordering::Acquire);
        (owner == 0 || !sys::is_thread_alive(owner))
            && owners[*waiter]
                .compare_exchange(owner, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    })
}

fn free_waiter(watched: &Watched) {
    asleep(watched).store(0, Ordering::Relaxed);
    let header = watched.segment.get().memory().header();
    let _ = header.owners[watched.side][watched.waiter].compare_exchange(
        sys::getpid(),
        0,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
}

/// Before a fork.
pub(crate) fn freeze() {
    LIVE.freeze();
    LIVE.with_frozen(|live| {
        for epoll in live {
            epoll.state.freeze();
        }
    });
    FREE.freeze();
}

/// After it.
pub(crate) fn thaw() {
    FREE.thaw();
    LIVE.with_frozen(|live| {
        for epoll in live {
            epoll.state.thaw();
        }
    });
    LIVE.thaw();
}

pub(crate) fn own_moved(from: c_int, to: c_int) {
    for epoll in LIVE.with(|live| live.clone()) {
        let _ = epoll
            .waker
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }
}
