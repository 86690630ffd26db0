//! A lock biased towards one side: the program's, which takes it with each call, against the assistant's, which seldom does.
//!
//! Used by `endpoint` ([`Owner`]) and `assistant` ([`Other`]). The owner's way in is a store and a load, without a fence; the other
//! side pays for both with `membarrier`, which has each running thread of the process pass a full fence. Where the kernel has no
//! such call, the owner makes its fence itself.
//!
//! The handshake. The owner stores an odd count, then loads the other side's word, and goes in only if `HELD` is not set. The other
//! side sets `HELD`, has everyone pass a fence, then loads the count, and goes in only if it is even. Of store and fence one comes
//! first: if the store, the other side sees an odd count and takes `HELD` back; if the fence, the owner sees `HELD` and waits. So
//! never both are in, and as only the owner waits, they do not wait for each other.
//!
//! With the same handshake the owner learns at its way out that the other side has lain down (`DOZES`) and wants to be rung when the
//! owner was here: either the owner sees `DOZES`, or the other side sees that the count has changed, and does not lie down.
//!
//! Invariants: `value` is touched by the owner while its count is odd and `HELD` was not set when it came in, and by the other side
//! between a successful `try_take` and the end of its guard; the count is written by the owner's thread alone. A child of `fork` has
//! a copy in which nobody is in charge: it may not go in.
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

/// Bits of the other side's word: it is in, or about to come in;
const HELD: u32 = 1;
/// the owner sleeps until it is out;
const AWAITED: u32 = 2;
/// it sleeps, and is to be rung when the owner was in;
const DOZES: u32 = 4;
/// it panicked while it was in: nobody knows what it left.
const SPOILED: u32 = 8;

/// The owner looks so often whether the other side is out before it sleeps: some microseconds, a turn of the other side's. A wake-up
/// takes ten times as long.
const LOOKS: u32 = 200;

/// What is guarded knows when it was last driven.
pub(crate) trait Stamped {
    /// Nanoseconds of its clock.
    fn stamp_ns(&self) -> u64;
}

#[derive(Debug)]
struct Shared<T> {
    owner: Line<OwnersWords>,
    other: Line<AtomicU32>,
    /// The owner's way in has no fence of its own.
    is_asymmetric: bool,
    bell: Arc<OwnedFd>,
    value: UnsafeCell<T>,
}

/// What the owner writes with each call.
#[derive(Debug)]
struct OwnersWords {
    /// Odd while the owner is in.
    count: AtomicU32,
    /// The stamp of the value when the owner went out, or before.
    stamp_ns: AtomicU64,
}

#[derive(Debug)]
#[repr(align(128))] // two lines: they are fetched in pairs
struct Line<T>(T);

// SAFETY: both sides reach `value` through the handshake of the module's head, so it moves between their threads and is never shared.
unsafe impl<T: Send> Sync for Shared<T> {}

/// A bell that the other side of a lock can sleep on.
pub(crate) fn bell() -> io::Result<Arc<OwnedFd>> {
    let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    Ok(Arc::new(fd))
}

/// Makes a lock around `value`, and its two sides; the other one sleeps on `bell`.
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

/// The side that takes the lock all the time; one thread at a time.
#[derive(Debug)]
pub(crate) struct Owner<T> {
    shared: Arc<Shared<T>>,
    /// As `Shared::count`, which nobody else writes.
    count: Cell<u32>,
    /// Guards that are out: readers nest.
    depth: Cell<u32>,
    /// Of this process, when the lock was made.
    forks: u32,
}

impl<T> Owner<T> {
    /// # Panics
    /// In a child of `fork`.
    #[inline]
    pub(crate) fn write(&mut self) -> WriteGuard<'_, T>
    where
        T: Stamped,
    {
        self.enter();
        WriteGuard { owner: self }
    }

    /// Likewise, to look at what is there; readers of the same thread may nest.
    #[inline]
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        self.enter();
        ReadGuard { owner: self }
    }

    /// The other side panicked while it was in: what is guarded must not be used.
    pub(crate) fn is_spoiled(&self) -> bool {
        self.shared.other.0.load(Ordering::Relaxed) & SPOILED != 0
    }

    /// This is the copy of a child of `fork`, which must not be used.
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
            // Acquire: what the other side did to `value` before it went out is seen.
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
        // Release: what was done to `value` is seen by the other side when it finds this count.
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
        for _ in 0..LOOKS {
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
            // Whatever ends the sleep: the word is looked at again.
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
    /// In a child of `fork` what is guarded is left as it is: it is the parent's, and so is what its end would do.
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

/// The owner's way to the value.
pub(crate) struct WriteGuard<'a, T: Stamped> {
    owner: &'a Owner<T>,
}

impl<T: Stamped> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the owner is in (`enter`), so the other side is not; it was borrowed mutably, so there is no other guard of it.
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
        // Relaxed: only an estimate of how long ago this was.
        (self.owner.shared.owner.0.stamp_ns).store(stamp_ns, Ordering::Relaxed);
        self.owner.leave();
    }
}

/// The owner's look at the value.
pub(crate) struct ReadGuard<'a, T> {
    owner: &'a Owner<T>,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the owner is in, so the other side is not. While it is borrowed, all its guards are readers.
        unsafe { &*self.owner.shared.value.get() }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.owner.leave();
    }
}

/// What the owner was doing when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u32);

impl Seen {
    pub(crate) fn is_inside(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The side that takes the lock now and then; one thread.
#[derive(Debug)]
pub(crate) struct Other<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Other<T> {
    /// Where the owner is. It differs from an earlier look if the owner came or went since (but for 2³² times).
    pub(crate) fn look(&self) -> Seen {
        Seen(self.shared.owner.0.count.load(Ordering::Acquire))
    }

    /// When the owner last drove the value, by the value's clock; perhaps it was in later.
    pub(crate) fn stamp_ns(&self) -> u64 {
        self.shared.owner.0.stamp_ns.load(Ordering::Relaxed)
    }

    /// Goes in if the owner is out.
    pub(crate) fn try_take(&mut self) -> Option<OtherGuard<'_, T>> {
        self.shared.other.0.fetch_or(HELD, Ordering::SeqCst);
        let fenced = self.fence();
        // Acquire: what the owner did to `value` before it went out is seen.
        let is_inside = self.look().is_inside();
        let guard = OtherGuard { other: self };
        if is_inside || !fenced {
            return None; // and the guard takes `HELD` back
        }
        Some(guard)
    }

    /// Asks to be rung when the owner was in; `false`: it was, since it was `seen`.
    pub(crate) fn doze(&self, seen: Seen) -> bool {
        self.shared.other.0.fetch_or(DOZES, Ordering::SeqCst);
        let dozes = self.fence() && self.look() == seen;
        if !dozes {
            self.rise();
        }
        dozes
    }

    /// Is not to be rung any more.
    pub(crate) fn rise(&self) {
        self.shared.other.0.fetch_and(!DOZES, Ordering::Relaxed);
    }

    /// Readable once it was rung, until `hush`.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Forgets what was rung.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.shared.bell, &mut count); // nothing there is as well
    }

    /// `false`: the kernel made none (no memory, or a filter forbids it since).
    fn fence(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.shared.is_asymmetric || membarrier(MembarrierCommand::PrivateExpedited).is_ok()
    }
}

/// The other side's way to the value.
pub(crate) struct OtherGuard<'a, T> {
    other: &'a mut Other<T>,
}

impl<T> OtherGuard<'_, T> {
    /// The owner sleeps until this guard goes.
    pub(crate) fn is_awaited(&self) -> bool {
        self.other.shared.other.0.load(Ordering::Relaxed) & AWAITED != 0
    }
}

impl<T> Deref for OtherGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: made by `try_take`, which found the owner out after it had set `HELD`: the owner waits until this guard goes.
        unsafe { &*self.other.shared.value.get() }
    }
}

impl<T> DerefMut for OtherGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; and `try_take` borrowed its side mutably, so there is one guard.
        unsafe { &mut *self.other.shared.value.get() }
    }
}

impl<T> Drop for OtherGuard<'_, T> {
    fn drop(&mut self) {
        let word = &self.other.shared.other.0;
        if std::thread::panicking() {
            word.fetch_or(SPOILED, Ordering::Relaxed);
        }
        // Release: what was done to `value` is seen by the owner when it finds `HELD` gone.
        if word.fetch_and(!(HELD | AWAITED), Ordering::Release) & AWAITED != 0 {
            let _ = futex::wake(word, futex::Flags::PRIVATE, 1); // nobody sleeps there but the owner
        }
    }
}

/// A full counter is readable already.
fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Two numbers that are equal whenever nobody is in.
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

    /// Of two threads that take the lock as often as they can, never both are in.
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

    /// The other side does not get in while the owner is, also not between nested looks.
    #[test]
    fn owner_keeps_the_other_out() {
        let (mut owner, mut other) = biased((7, 7), bell().expect("bell"));
        let before = other.look();
        {
            let _outer = owner.read();
            assert_eq!(owner.read().0, 7);
            assert!(other.look().is_inside() && other.try_take().is_none());
        }
        assert!(other.look() != before && !other.look().is_inside());
        other.try_take().expect("the owner is out").0 = 8;
        assert_eq!(owner.write().0, 8);
        assert_eq!(other.stamp_ns(), 8, "as it was when the owner went");
    }

    /// A doze is ended by the owner's next visit; one that came before is noticed at once.
    #[test]
    fn visits_end_a_doze() {
        let (owner, other) = biased((0, 0), bell().expect("bell"));
        let seen = other.look();
        drop(owner.read());
        assert!(!other.doze(seen), "the owner was here");
        assert!(other.doze(other.look()));
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
