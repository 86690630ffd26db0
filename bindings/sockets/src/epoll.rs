//! The program's epoll instances, where they watch streams.
//!
//! The program keeps its own epoll descriptor. A carried stream is registered there for input only, edge triggered, so that bells and ends wake whoever
//! sleeps in it; interest, edges and one-shots are kept here. Producers set a bit for the slot in the segment (`Header::ready`), so a call looks at one
//! word for each segment, not at each stream. All other descriptors are the kernel's business, with the program's own data; ours are told apart by
//! their data, which are addresses of `Interest`s.
//!
//! `exports` calls `control` and `wait`; `stream` calls `take_over` when a stream goes over to its ring, `table`'s users `forget` when it is closed.
//!
//! `control` is what changes interests, `watched` the slots of segments that an instance watches, `report` what it has to tell.
//!
//! Invariants: `State` is read and written under its lock only, and under that lock no other epoll's is taken: instances within one are asked outside of
//! it. An interest that is queued is in `State::ready` once. Before sleeping: `arm`, a fence, one more look at all ready words. Who wakes while others
//! sleep says again that they do, and wakes one of them if it leaves something.

mod control;
mod report;
mod watched;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use libc::{c_int, c_void, epoll_event};

use crate::explain::{self, Count};
use crate::idle::Spin;
use crate::lock::Locked;
use crate::ring::{BELL, DOORBELL, Doorbell};
use crate::segment::SegmentRef;
use crate::sys::{self, Result};
use crate::table::{self, Socket, Use};
use crate::tuning::TUNING;
use crate::{arena, doorbell, early, ready, stream};
use watched::{free_waiter, say};

pub(crate) use control::{
    after_fork, attach, control, control_nested, forget, notify, release, rouse, take_over,
};

/// Instead of a doorbell.
const CANNOT: i32 = -2;
/// Bells of a stream are taken out of the kernel when it reports them. Left there, they would not be acknowledged at once, and the other end's kernel
/// holds back further ones when some ten are unacknowledged: up to 40 ms.
const OLD_BELLS: u64 = 1;

const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// What a carried stream is registered for.
const KERNEL_EVENTS: u32 = ready::IN | ready::RDHUP | ET;

/// And its gateway, whose events have this bit in the interest's address.
const GATEWAY_EVENTS: u32 = ready::IN | ET;
const OF_GATEWAY: u64 = 1;

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
    /// Of a scanned one: what its stream was like when it was looked at last.
    seen_tail: AtomicU64,
    seen_state: AtomicU32,
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
            seen_tail: AtomicU64::new(u64::MAX),
            seen_state: AtomicU32::new(0),
        }
    }

    /// Whether there is news since the last look.
    fn has_changed(&self) -> bool {
        let Some(using) = self.using() else {
            return false;
        };
        let (tail, state) = stream::progress(&using);
        let old_tail = self.seen_tail.swap(tail, Ordering::Relaxed);
        let old_state = self.seen_state.swap(state, Ordering::Relaxed);
        tail != old_tail || state & !old_state != 0
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

/// An instance in another, and what the program wants to know of it there.
#[derive(Debug, Clone, Copy)]
struct Nested {
    epoll: &'static Epoll,
    fd: c_int,
    events: u32,
    data: u64,
    /// By whose address the kernel reports it, where it keeps edges or is a one-shot: another one each time that the program changes it.
    key: Option<&'static Interest>,
    /// Its edges that were reported; and it is a one-shot that was.
    seen: u32,
    is_spent: bool,
}

impl Nested {
    fn has_key(&self, interest: &Interest) -> bool {
        self.key.is_some_and(|key| std::ptr::eq(key, interest))
    }

    /// Whether it is to be reported. Caller: holds no instance's lock.
    fn must_report(&self) -> bool {
        let wants = self.events & ready::IN != 0 && !self.is_spent;
        // Checking finds what has come since.
        let is_pending = wants && self.epoll.has_pending();
        let has_edge = || self.epoll.edges.load(Ordering::Relaxed) != self.seen;
        is_pending && (self.events & ET == 0 || has_edge())
    }
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<&'static Interest>,
    watched: Vec<Watched>,
    scanned: Vec<&'static Interest>,
    nested: Vec<Nested>,
}

/// An epoll instance. Never freed, but used again.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Epoll {
    fd: AtomicI32,
    fds: Locked<Vec<i32>>,
    state: Locked<State>,
    /// It has had streams or instances in it: events must be looked through.
    is_ever_ours: AtomicU32,
    /// It is or was in another instance.
    is_nested: AtomicU32,
    /// A parent of this process has it, too.
    is_inherited: AtomicU32,
    /// Counts news of its streams, for instances that it is in.
    edges: AtomicU32,
    sleepers: AtomicU32,
    /// Those of them that wait for it, not for an instance that it is in.
    waiters: AtomicU32,
    calls: AtomicU32,
    /// An eventfd in it, by which threads of this process wake others; -1: not made yet.
    waker: AtomicI32,
    /// What other processes wake it by; -1: not made yet, `CANNOT`: it cannot be. And how they find it.
    doorbell: AtomicI32,
    plate: Doorbell,
    rings: AtomicU32,
    spin: Spin,
}

static FREE: Locked<Vec<&'static Epoll>> = Locked::new(Vec::new());
static LIVE: Locked<Vec<&'static Epoll>> = Locked::new(Vec::new());

/// After `epoll_create`.
pub(crate) fn add(fd: c_int) {
    let epoll = FREE.with(Vec::pop).unwrap_or_else(|| {
        Box::leak(Box::new(Epoll {
            waker: AtomicI32::new(-1),
            doorbell: AtomicI32::new(-1),
            ..Epoll::default()
        }))
    });
    epoll.fd.store(fd, Ordering::Relaxed);
    epoll.is_ever_ours.store(0, Ordering::Relaxed);
    epoll.is_nested.store(0, Ordering::Relaxed);
    epoll.is_inherited.store(0, Ordering::Relaxed);
    epoll.spin.reset();
    epoll.fds.with(|fds| *fds = vec![fd]);
    LIVE.with(|live| live.push(epoll));
    table::set_epoll(fd, epoll);
}

/// A sleeper of some instances, while it lives: it waits for the first one.
#[derive(Debug)]
pub(crate) struct Armed(Vec<&'static Epoll>);

impl Drop for Armed {
    fn drop(&mut self) {
        self.0[0].waiters.fetch_sub(1, Ordering::SeqCst);
        for one in &self.0 {
            one.disarm();
        }
        fence(Ordering::SeqCst);
    }
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
        let others = LIVE.with(|live| {
            live.retain(|one| !std::ptr::eq(*one, self));
            let is_in_others = self.is_nested.load(Ordering::Relaxed) != 0;
            if is_in_others {
                live.clone()
            } else {
                Vec::new()
            }
        });
        for other in others {
            let is_it = |one: &Nested| std::ptr::eq(one.epoll, self);
            other
                .state
                .with(|state| control::forget_nested(state, is_it));
        }
        let mut interests = Vec::new();
        if self.is_watching() {
            table::for_each_stream(|socket| {
                let of_it = |one: &mut &'static Interest| one.is_of(self);
                let all = &socket.interests;
                all.with(|all| interests.extend(all.extract_if(.., of_it)));
            });
        }
        for interest in interests {
            self.drop_interest(interest);
        }
        self.state.with(|state| {
            state.ready.clear();
            state.scanned.clear();
            control::forget_nested(state, |_| true);
            for watched in state.watched.drain(..) {
                free_waiter(&watched);
            }
        });
        early::forget_instance(self);
        self.close_own(-1);
        FREE.with(|free| free.push(self));
    }

    /// Whether a call has anything to do here.
    pub(crate) fn is_watching(&self) -> bool {
        self.is_ever_ours.load(Ordering::Acquire) != 0
    }

    /// A sleeper comes and goes while nothing is watched. Streams that are put in meanwhile find it.
    pub(crate) fn slept<R>(&self, sleep: impl FnOnce() -> R) -> R {
        for count in [&self.sleepers, &self.waiters] {
            count.fetch_add(1, Ordering::SeqCst);
        }
        let result = sleep();
        for count in [&self.sleepers, &self.waiters] {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        result
    }

    /// A sleeper comes, to this and to those in it: the next news shall ring.
    pub(crate) fn arm(&'static self) -> Armed {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let mut armed = vec![self];
        let mut at = 0;
        while at < armed.len() {
            let one = armed[at];
            one.sleepers.fetch_add(1, Ordering::SeqCst);
            one.state.with(|state| one.say_asleep(state, true));
            armed.extend(one.nested().into_iter().map(|nested| nested.epoll));
            at += 1;
        }
        fence(Ordering::SeqCst);
        Armed(armed)
    }

    /// A sleeper goes. The next news shall ring if others sleep on.
    fn disarm(&self) {
        self.state.with(|state| {
            let is_any_left = self.sleepers.fetch_sub(1, Ordering::SeqCst) != 1;
            self.say_asleep(state, is_any_left);
        });
    }

    /// Caller: has the lock of `state`.
    fn say_asleep(&self, state: &State, is_asleep: bool) {
        if !state.watched.is_empty() {
            let way = if is_asleep { self.way() } else { 0 };
            for watched in &state.watched {
                say(watched, way, self.plate.plate());
            }
        }
        for using in state.scanned.iter().filter_map(|one| one.using()) {
            if is_asleep {
                using.mine().inn.is_asleep.fetch_or(BELL, Ordering::SeqCst);
            }
        }
    }

    /// How other processes shall wake a sleeper. Caller: has the lock.
    fn way(&self) -> u32 {
        match self.doorbell.load(Ordering::Acquire) {
            CANNOT => return BELL,
            0.. => return DOORBELL,
            _ => {}
        }
        let made = doorbell::open().and_then(|(fd, plate)| {
            let registered = self.register_own(fd);
            registered.inspect_err(|_| table::close_own(fd))?;
            Ok((fd, plate))
        });
        let Ok((fd, plate)) = made else {
            self.doorbell.store(CANNOT, Ordering::Relaxed);
            return BELL;
        };
        self.plate.set(plate);
        self.doorbell.store(fd, Ordering::Release);
        DOORBELL
    }

    /// Closes what wakes it; what stands for its doorbell from then on.
    fn close_own(&self, doorbell: i32) {
        let waker = self.waker.swap(-1, Ordering::AcqRel);
        for own in [waker, self.doorbell.swap(doorbell, Ordering::AcqRel)] {
            if own >= 0 {
                table::close_own(own);
            }
        }
    }

    /// Registers a descriptor of ours whose events say nothing themselves.
    fn register_own(&self, own: c_int) -> Result<usize> {
        let fd = self.fd.load(Ordering::Relaxed);
        let data = std::ptr::from_ref(arena::marker()) as u64;
        sys::epoll_ctl(fd, libc::EPOLL_CTL_ADD, own, ready::IN | ET, data)
    }

    /// Takes a ring out of the doorbell. Those that are left say nothing more, but in an instance within another one; they are taken now and then.
    fn take_rings(&self) {
        let doorbell = self.doorbell.load(Ordering::Acquire);
        if doorbell >= 0 {
            let is_nested = self.is_nested.load(Ordering::Relaxed) != 0;
            let takes_all = (self.rings.fetch_add(1, Ordering::Relaxed))
                .is_multiple_of(TUNING.kernel.take_rings_every);
            let most = if is_nested || takes_all {
                doorbell::ALL_RINGS
            } else {
                1
            };
            doorbell::take(doorbell, most);
        }
    }

    /// Wakes threads of this process that sleep here: something is pending without a bell.
    fn kick(&self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut waker = self.waker.load(Ordering::Acquire);
        if waker < 0 {
            let Ok(made) = sys::eventfd() else { return };
            waker = table::keep_own(made);
            let _ = self.register_own(waker);
            let set = self
                .waker
                .compare_exchange(-1, waker, Ordering::AcqRel, Ordering::Acquire);
            if let Err(known) = set {
                table::close_own(waker);
                waker = known;
            }
        }
        sys::ring_eventfd(waker);
    }

    /// The same, if there is something for them.
    fn kick_if_pending(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 && self.has_pending() {
            self.kick();
        }
    }

    /// What is left for the program of what the kernel has reported.
    pub(crate) fn sort_out(&self, events: &mut [epoll_event]) -> usize {
        let kept = self.taken(events);
        self.leave_to_others(true, kept > 0);
        kept
    }

    /// Reports what there is, of which the kernel has reported `asked` events; how many events there are then.
    fn report(&self, events: &mut [epoll_event], asked: usize) -> usize {
        let kept = self.taken(&mut events[..asked]);
        let own = self.state.with(|state| {
            self.collect(state);
            self.emit(state, events, kept)
        });
        let count = self.emit_nested(events, own);
        self.leave_to_others(asked > 0, count > 0);
        count
    }

    /// What woke one thread may have been meant for others, and the next news shall ring for those that sleep on.
    fn leave_to_others(&self, has_asked: bool, has_found: bool) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        if has_asked {
            self.state.with(|state| {
                if self.sleepers.load(Ordering::SeqCst) > 0 {
                    self.say_asleep(state, true);
                }
            });
            fence(Ordering::SeqCst);
        }
        if (has_asked || has_found) && self.has_pending() {
            self.kick();
        }
    }

    /// As `epoll_pwait2`.
    pub(crate) fn wait(
        &'static self,
        events: &mut [epoll_event],
        timeout_ns: Option<u64>,
        mask: *const c_void,
    ) -> Result<usize> {
        control::inherit();
        let fd = self.fd.load(Ordering::Relaxed);
        let until = timeout_ns.map(|ns| sys::now_ns().saturating_add(ns));
        let mut is_first = true;
        loop {
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            // The kernel first, now and then: memory alone could fill a short list for ever. And an instance that sees this one must not see bells that
            // have been answered.
            let asks_kernel = calls % TUNING.kernel.epoll_ask_every
                == TUNING.kernel.epoll_ask_every - 1
                || self.is_nested.load(Ordering::Relaxed) != 0;
            let asked = if asks_kernel {
                sys::epoll_wait(fd, events, Some(0), std::ptr::null()).unwrap_or(0)
            } else {
                0
            };
            let found = self.report(events, asked);
            if found > 0 {
                return Ok(found);
            }
            let may_wait = timeout_ns != Some(0);
            let has_come = || self.spin.until_within(timeout_ns, || self.has_marks());
            if may_wait && is_first && self.has_watched() && has_come() {
                is_first = false;
                continue;
            }
            is_first = false;
            let armed = may_wait.then(|| self.arm());
            if may_wait {
                if self.has_pending() {
                    continue;
                }
                explain::count(Count::Sleep);
            }
            let left = until.map(|until| until.saturating_sub(sys::now_ns()));
            let left = if may_wait { left } else { Some(0) };
            let outcome = sys::epoll_wait(fd, events, left, mask);
            drop(armed);
            let (count, error) = match outcome {
                Ok(count) => (count, None),
                Err(error) => (0, Some(error)),
            };
            let total = self.report(events, count);
            match error {
                _ if total > 0 => return Ok(total),
                Some(error) => return Err(error),
                // What was ours may have taken the place of what is the program's.
                None if count == 0
                    && (!may_wait || until.is_some_and(|until| sys::now_ns() >= until)) =>
                {
                    return Ok(0);
                }
                None => {}
            }
        }
    }

    fn has_watched(&self) -> bool {
        self.state.with(|state| !state.watched.is_empty())
    }
}

/// The process may soon not be allowed to take rings: nobody wakes it by anything but the kernel's own connections.
pub(crate) fn let_go_of_all() {
    for epoll in LIVE.with(|live| live.clone()) {
        epoll.state.with(|state| {
            epoll.close_own(CANNOT);
            if state.watched.is_empty() && state.scanned.is_empty() && state.nested.is_empty() {
                epoll.is_ever_ours.store(0, Ordering::Release);
            }
        });
    }
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
        for own in [&epoll.waker, &epoll.doorbell] {
            let _ = own.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
