//! A lock biased towards one side: the owner (the program) takes it with each call, the other side (the assistant) seldom.
//!
//! Used by `endpoint` ([`Owner`]) and `assistant` ([`Other`]). The owner enters with a store and a load, without a fence; the other side pays for
//! both with `membarrier`, which makes each running thread of the process execute a full fence. If the kernel has no such call, the owner executes a
//! fence itself.
//!
//! The handshake: the owner stores an odd count, then loads the other side's flags, and enters only if `HELD` is not set. The other side sets `HELD`,
//! has all threads execute a fence, then loads the count, and enters only if it is even. If the owner's store comes before its fence, the other side
//! sees an odd count and clears `HELD`; if after, the owner sees `HELD` and waits. So both are never inside, and as only the owner waits, there is no
//! deadlock.
//!
//! By the same handshake the owner learns when it leaves that the other side sleeps (`DOZES`) and is to be woken after the owner was inside: either
//! the owner sees `DOZES`, or the other side sees that the count has changed, and does not sleep.
//!
//! Invariants: `value` is accessed by the owner only while its count is odd and `HELD` was not set when it entered, and by the other side between a
//! successful `try_take` and the end of its guard; only the owner's thread writes the count. A child of `fork` has a copy that it must not enter.
#![allow(
    unsafe_code,
    reason = "a lock hands out what it guards; the handshake above keeps the two sides apart"
)]

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

use rustix::event::EventfdFlags;
use rustix::thread::{MembarrierCommand, futex, membarrier};

use crate::sys;

/// Flags of the other side. It is inside, or about to enter;
const HELD: u32 = 1;
/// the owner sleeps until it leaves;
const AWAITED: u32 = 2;
/// it sleeps, and is to be woken after the owner was inside;
const DOZES: u32 = 4;
/// it panicked inside, so the value may be inconsistent.
const SPOILED: u32 = 8;

/// Checks of the other side's flags before the owner sleeps: some microseconds, a poll of the assistant. A wake-up takes ten times as long.
const POLLS: u32 = 200;

/// A value that knows when it was last driven.
pub(crate) trait Stamped {
    /// Time of the last poll, in nanoseconds of the value's clock.
    fn stamp_ns(&self) -> u64;
}

#[derive(Debug)]
struct Shared<T> {
    owner: Line<OwnersWords>,
    other: Line<AtomicU32>,
    /// The owner enters without a fence of its own.
    is_asymmetric: bool,
    bell: Arc<OwnedFd>,
    value: UnsafeCell<T>,
}

/// State that the owner writes with each call.
#[derive(Debug)]
struct OwnersWords {
    /// Odd while the owner is inside.
    count: AtomicU32,
    /// Stamp of the value when the owner last left after writing.
    stamp_ns: AtomicU64,
}

#[derive(Debug)]
#[repr(align(128))] // two cache lines, as they are fetched in pairs
struct Line<T>(T);

// SAFETY: both sides reach `value` through the handshake of the module's head, so it moves between their threads and is never shared.
unsafe impl<T: Send> Sync for Shared<T> {}

/// An event descriptor on which somebody sleeps: the other side of a lock, or the program.
pub(crate) fn bell() -> io::Result<Arc<OwnedFd>> {
    let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(Arc::new(fd))
}

/// Makes a lock around `value`, and its two sides; the other side sleeps on `bell`.
pub(crate) fn biased<T>(value: T, bell: Arc<OwnedFd>) -> (Owner<T>, Other<T>) {
    sys::mind_forks();
    let shared = Arc::new(Shared {
        owner: Line(OwnersWords {
            count: AtomicU32::new(0),
            stamp_ns: AtomicU64::new(0),
        }),
        other: Line(AtomicU32::new(0)),
        is_asymmetric: membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok(),
        bell,
        value: UnsafeCell::new(value),
    });
    let owner = Owner {
        shared: Arc::clone(&shared),
        count: Cell::new(0),
        depth: Cell::new(0),
        forks: sys::forks(),
    };
    (owner, Other { shared })
}

/// The side that takes the lock with each call; one thread at a time.
#[derive(Debug)]
pub(crate) struct Owner<T> {
    shared: Arc<Shared<T>>,
    /// Copy of `Shared::count`, which only this side writes.
    count: Cell<u32>,
    /// Number of guards: readers nest.
    depth: Cell<u32>,
    /// Forks of this process when the lock was made.
    forks: u32,
}

impl<T> Owner<T> {
    /// Enters, to change the value.
    ///
    /// # Panics
    /// In a child of `fork`, and if the other side has panicked.
    #[inline]
    pub(crate) fn write(&mut self) -> WriteGuard<'_, T>
    where
        T: Stamped,
    {
        self.enter();
        WriteGuard { owner: self }
    }

    /// Enters, to read the value; panics as `write` does. Readers of the same thread may nest.
    #[inline]
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        self.enter();
        ReadGuard { owner: self }
    }

    /// The other side panicked inside: the value must not be used.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.shared.other.0.load(Ordering::Relaxed) & SPOILED != 0
    }

    /// Whether this is the copy of a child of `fork`, which must not be used.
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != sys::forks()
    }

    /// Wakes the other side.
    pub(crate) fn ring(&self) {
        ring(&self.shared.bell);
    }

    #[inline]
    fn enter(&self) {
        if self.is_forked() {
            used_in_child();
        }
        let depth = self.depth.get();
        if depth > 0 {
            self.depth.set(depth + 1);
            return;
        }
        loop {
            self.step(Ordering::Relaxed);
            if self.shared.is_asymmetric {
                compiler_fence(Ordering::SeqCst);
            } else {
                fence(Ordering::SeqCst);
            }
            // Acquire: makes the other side's changes of `value` visible.
            let word = self.shared.other.0.load(Ordering::Acquire);
            if word & (HELD | SPOILED) == 0 {
                self.depth.set(1);
                return;
            }
            self.step(Ordering::Release);
            if word & SPOILED != 0 {
                used_when_spoiled();
            }
            self.await_other();
        }
    }

    #[inline]
    fn leave(&self) {
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        if depth > 0 {
            return;
        }
        // Release: makes changes of `value` visible to the other side once it reads this count.
        self.step(Ordering::Release);
        if self.shared.is_asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
        if self.shared.other.0.load(Ordering::Relaxed) & DOZES != 0 {
            self.wake_other();
        }
    }

    #[inline]
    fn step(&self, order: Ordering) {
        let count = self.count.get().wrapping_add(1);
        self.count.set(count);
        self.shared.owner.0.count.store(count, order);
    }

    #[cold]
    fn await_other(&self) {
        let other = &self.shared.other.0;
        for _ in 0..POLLS {
            if other.load(Ordering::Relaxed) & HELD == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        loop {
            let word = other.fetch_or(AWAITED, Ordering::Relaxed) | AWAITED;
            if word & HELD == 0 {
                other.fetch_and(!AWAITED, Ordering::Relaxed);
                return;
            }
            // However the sleep ends, the flags are read again.
            let _ = futex::wait(other, futex::Flags::PRIVATE, word, None);
            if other.load(Ordering::Relaxed) & HELD == 0 {
                return;
            }
        }
    }

    #[cold]
    fn wake_other(&self) {
        if self.shared.other.0.fetch_and(!DOZES, Ordering::Relaxed) & DOZES != 0 {
            self.ring();
        }
    }
}

impl<T> Drop for Owner<T> {
    /// In a child of `fork` the value is not dropped: it belongs to the parent, and dropping it would affect the parent's peers.
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(Arc::clone(&self.shared));
        }
    }
}

#[cold]
#[inline(never)]
fn used_in_child() -> ! {
    panic!(
        "an endpoint was used in a child of fork: it belongs to the parent; open another after exec"
    );
}

#[cold]
#[inline(never)]
fn used_when_spoiled() -> ! {
    panic!(
        "the endpoint's progress assistant panicked (see standard error): it can only be dropped"
    );
}

/// The owner's access to the value.
pub(crate) struct WriteGuard<'a, T: Stamped> {
    owner: &'a Owner<T>,
}

impl<T: Stamped> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the owner is inside (`enter`), so the other side is not; the owner was borrowed mutably, so it has no other guard.
        unsafe { &*self.owner.shared.value.get() }
    }
}

impl<T: Stamped> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.owner.shared.value.get() }
    }
}

impl<T: Stamped> Drop for WriteGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let stamp_ns = self.stamp_ns();
        // Relaxed: only an estimate.
        (self.owner.shared.owner.0.stamp_ns).store(stamp_ns, Ordering::Relaxed);
        self.owner.leave();
    }
}

/// The owner's read access to the value.
pub(crate) struct ReadGuard<'a, T> {
    owner: &'a Owner<T>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the owner is inside, so the other side is not. While the owner is borrowed, all its guards are readers.
        unsafe { &*self.owner.shared.value.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.owner.leave();
    }
}

/// The owner's count when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u32);

impl Seen {
    pub(crate) fn is_inside(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The side that takes the lock seldom; one thread.
#[derive(Debug)]
pub(crate) struct Other<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Other<T> {
    /// The owner's count. It differs from an earlier one if the owner entered or left since (except after 2³² times).
    pub(crate) fn observe(&self) -> Seen {
        Seen(self.shared.owner.0.count.load(Ordering::Acquire))
    }

    /// When the owner last drove the value, by the value's clock; it may have been inside later.
    pub(crate) fn stamp_ns(&self) -> u64 {
        self.shared.owner.0.stamp_ns.load(Ordering::Relaxed)
    }

    /// Enters if the owner is outside.
    pub(crate) fn try_take(&mut self) -> Option<OtherGuard<'_, T>> {
        self.shared.other.0.fetch_or(HELD, Ordering::SeqCst);
        let fenced = self.fence();
        // Acquire: makes the owner's changes of `value` visible.
        let is_inside = self.observe().is_inside();
        let guard = OtherGuard { other: self };
        if is_inside || !fenced {
            return None; // the guard clears `HELD`
        }
        Some(guard)
    }

    /// Asks to be woken once the owner was inside; `false`: it was since `seen`.
    pub(crate) fn doze(&self, seen: Seen) -> bool {
        self.shared.other.0.fetch_or(DOZES, Ordering::SeqCst);
        let dozes = self.fence() && self.observe() == seen;
        if !dozes {
            self.rise();
        }
        dozes
    }

    /// Withdraws that request.
    pub(crate) fn rise(&self) {
        self.shared.other.0.fetch_and(!DOZES, Ordering::Relaxed);
    }

    /// Readable once rung, until `hush`.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Resets the bell.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.shared.bell, &mut count); // an empty counter is no error
    }

    /// Makes all threads execute a fence. `false`: the kernel could not (no memory, or forbidden by a filter).
    fn fence(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.shared.is_asymmetric || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

/// The other side's access to the value.
pub(crate) struct OtherGuard<'a, T> {
    other: &'a mut Other<T>,
}

impl<T> OtherGuard<'_, T> {
    /// Whether the owner sleeps until this guard is dropped.
    pub(crate) fn is_awaited(&self) -> bool {
        self.other.shared.other.0.load(Ordering::Relaxed) & AWAITED != 0
    }
}

impl<T> Deref for OtherGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: made by `try_take`, which found the owner outside after it had set `HELD`: the owner waits until this guard is dropped.
        unsafe { &*self.other.shared.value.get() }
    }
}

impl<T> DerefMut for OtherGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; and `try_take` borrowed its side mutably, so there is only one guard.
        unsafe { &mut *self.other.shared.value.get() }
    }
}

impl<T> Drop for OtherGuard<'_, T> {
    fn drop(&mut self) {
        let word = &self.other.shared.other.0;
        if std::thread::panicking() {
            word.fetch_or(SPOILED, Ordering::Relaxed);
        }
        // Release: makes changes of `value` visible to the owner once it sees `HELD` cleared.
        if word.fetch_and(!(HELD | AWAITED), Ordering::Release) & AWAITED != 0 {
            let _ = futex::wake(word, futex::Flags::PRIVATE, 1); // only the owner sleeps there
        }
    }
}

/// Rings a bell. A full counter is readable already.
fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Two numbers that are equal whenever neither side is inside.
    type Pair = (u64, u64);

    impl Stamped for Pair {
        fn stamp_ns(&self) -> u64 {
            self.0
        }
    }

    fn bump(pair: &mut Pair) {
        assert_eq!(pair.0, pair.1, "both are in");
        pair.0 += 1;
        std::hint::black_box(&mut *pair);
        pair.1 += 1;
    }

    /// Two threads that take the lock as often as they can are never inside together.
    #[test]
    fn sides_exclude_each_other() {
        let (mut owner, mut other) = biased((0, 0), bell().expect("bell"));
        let until = Instant::now() + Duration::from_millis(300);
        let taken = std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                let mut taken = 0_u64;
                while Instant::now() < until {
                    if let Some(mut pair) = other.try_take() {
                        bump(&mut pair);
                        taken += 1;
                    }
                }
                taken
            });
            let mut own = 0_u64;
            while Instant::now() < until {
                for _ in 0..100 {
                    bump(&mut owner.write());
                }
                own += 100;
                std::thread::sleep(Duration::from_micros(own % 7));
            }
            (own, there.join().expect("other side"))
        });
        assert_eq!(owner.read().0, taken.0 + taken.1);
        assert!(taken.0 > 0 && taken.1 > 0, "{taken:?}");
    }

    /// The other side cannot enter while the owner is inside, also with nested readers.
    #[test]
    fn owner_keeps_the_other_out() {
        let (mut owner, mut other) = biased((7, 7), bell().expect("bell"));
        let before = other.observe();
        {
            let _outer = owner.read();
            assert_eq!(owner.read().0, 7);
            assert!(other.observe().is_inside() && other.try_take().is_none());
        }
        assert!(other.observe() != before && !other.observe().is_inside());
        other.try_take().expect("the owner is out").0 = 8;
        assert_eq!(owner.write().0, 8);
        assert_eq!(other.stamp_ns(), 8, "as it was when the owner went");
    }

    /// The owner's next visit ends a doze; a visit that came before it is noticed at once.
    #[test]
    fn visits_end_a_doze() {
        let (owner, other) = biased((0, 0), bell().expect("bell"));
        let seen = other.observe();
        drop(owner.read());
        assert!(!other.doze(seen), "the owner was here");
        assert!(other.doze(other.observe()));
        let readable = |other: &Other<Pair>| {
            let mut fds = [rustix::event::PollFd::new(
                &other.shared.bell,
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec::default())).expect("poll")
        };
        assert_eq!(readable(&other), 0);
        drop(owner.read());
        assert_eq!(readable(&other), 1);
        other.hush();
        drop(owner.read());
        assert_eq!(readable(&other), 0, "rung once for each doze");
    }
}
