//! Locks that survive the death of who holds them, in shared memory and in our own.
//!
//! A lock is a word with the number of the thread that holds it. Whoever waits long looks whether that thread still exists, and takes the lock if it
//! does not: a process may be killed at any point, and a forked child inherits locks of threads that it does not have. Then its word is no longer that
//! thread's, so it gives back only what is still its own.
//!
//! The other end of a connection can write into the words of shared memory, too. So a holder must be a thread of this process, or, if it has ever forked, a
//! thread that lives; and of those nobody is waited for longer than `PATIENCE_NS`.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Tries before a waiter gives its core away, and rounds of that before it sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 20;
/// How long a waiter sleeps between two looks.
const SLEEP_US: u64 = 50;
/// No lock is held for so long (`demotion` waits under locks, for a second at most), but by a process that was stopped within, or by a number that a
/// peer has made up.
const PATIENCE_NS: u64 = 3_000_000_000;

/// This process has relatives that may use the same connections.
static HAS_FORKED: AtomicU32 = AtomicU32::new(0);

/// After a fork, in both processes.
pub(crate) fn note_fork() {
    HAS_FORKED.store(1, Ordering::Relaxed);
}

/// Whether a thread of that number may hold a lock of ours.
pub(crate) fn may_hold(holder: u32) -> bool {
    sys::is_own_thread(holder)
        || HAS_FORKED.load(Ordering::Relaxed) != 0 && sys::is_thread_alive(holder)
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The number of the calling thread.
pub(crate) fn thread() -> u32 {
    // A thread that is being ended has no cell any more.
    THREAD
        .try_with(|cell| {
            if cell.get() == 0 {
                cell.set(sys::gettid());
            }
            cell.get()
        })
        .unwrap_or_else(|_| sys::gettid())
}

static GROUP: AtomicU32 = AtomicU32::new(0);

/// The number of this process.
pub(crate) fn thread_group() -> u32 {
    let known = GROUP.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let group = sys::getpid();
    GROUP.store(group, Ordering::Relaxed);
    group
}

/// In a forked child: it and its only thread have other numbers.
pub(crate) fn forget_thread() {
    GROUP.store(0, Ordering::Relaxed);
    let _ = THREAD.try_with(|cell| cell.set(0));
}

/// Holds a lock.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    word: &'a AtomicU32,
    holder: u32,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Whoever has lost patience holds it now.
        let _ = self
            .word
            .compare_exchange(self.holder, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Takes the lock if it is free.
#[inline]
pub(crate) fn try_hold(word: &AtomicU32) -> Option<Held<'_>> {
    let holder = thread();
    word.compare_exchange(0, holder, Ordering::Acquire, Ordering::Relaxed)
        .ok()
        .map(|_| Held { word, holder })
}

#[inline]
pub(crate) fn hold(word: &AtomicU32) -> Held<'_> {
    match try_hold(word) {
        Some(held) => held,
        None => wait(word, true),
    }
}

/// The same for a word in memory of this process only: its holder is a thread of this process, or one that a forked child does not have.
#[inline]
fn hold_own(word: &AtomicU32) -> Held<'_> {
    match try_hold(word) {
        Some(held) => held,
        None => wait(word, false),
    }
}

#[cold]
fn wait(word: &AtomicU32, is_shared: bool) -> Held<'_> {
    let mut rounds = 0u32;
    let mut since = (0, 0);
    loop {
        for _ in 0..SPINS {
            if word.load(Ordering::Relaxed) == 0
                && let Some(held) = try_hold(word)
            {
                return held;
            }
            std::hint::spin_loop();
        }
        rounds += 1;
        if rounds < YIELDS {
            sys::sched_yield();
            continue;
        }
        sys::sleep_us(SLEEP_US);
        let holder = word.load(Ordering::Relaxed);
        // `holder == thread()`: a signal handler has interrupted its own thread, which cannot go on before the handler has ended. What both move may
        // then be lost or come twice.
        let now_ns = sys::now_ns();
        if since.0 != holder {
            since = (holder, now_ns);
        }
        let is_foreign = !sys::is_own_thread(holder);
        let is_gone = holder != 0
            && (holder == thread()
                || !may_hold(holder)
                || is_foreign && !is_shared
                || is_foreign && now_ns - since.1 > PATIENCE_NS);
        if is_gone
            && word
                .compare_exchange(holder, thread(), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            return Held {
                word,
                holder: thread(),
            };
        }
    }
}

/// A value of this process behind such a lock.
#[derive(Debug, Default)]
pub(crate) struct Locked<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

mod access {
    //! The one place where the cell is opened.
    #![allow(unsafe_code)] // A lock of our own: that of `std` cannot be taken over from a thread that no longer exists.

    use super::{Locked, hold_own};

    // SAFETY: the value is reached only by the holder of the lock.
    unsafe impl<T: Send> Sync for Locked<T> {}

    impl<T> Locked<T> {
        /// Runs `act` with the value, alone.
        pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
            let _held = hold_own(&self.word);
            // SAFETY: the lock is held, so there is no other reference. It is not re-entered: `act` is short code of this crate.
            act(unsafe { &mut *self.value.get() })
        }

        /// Of a value that this thread has frozen.
        pub(crate) fn with_frozen<R>(&self, act: impl FnOnce(&T) -> R) -> R {
            // SAFETY: the lock is held since `freeze`, by this thread or, in a forked child, by the thread that it is a copy of.
            act(unsafe { &*self.value.get() })
        }
    }
}

impl<T> Locked<T> {
    /// Before a fork: what the child inherits is whole.
    pub(crate) fn freeze(&self) {
        std::mem::forget(hold_own(&self.word));
    }

    /// After it, in both processes.
    pub(crate) fn thaw(&self) {
        self.word.store(0, Ordering::Release);
    }

    pub(crate) const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many threads count under the lock, and none is lost.
    #[test]
    fn holders_are_alone() {
        let count = Locked::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        count.with(|count| *count += 1);
                    }
                });
            }
        });
        assert_eq!(count.with(|count| *count), 40_000);
    }

    /// A lock of a thread that has ended is taken over.
    #[test]
    fn locks_of_the_dead_are_taken() {
        let word = AtomicU32::new(0);
        let dead = std::thread::scope(|scope| scope.spawn(thread).join().expect("thread"));
        while sys::is_thread_alive(dead) {
            std::thread::yield_now();
        }
        word.store(dead, Ordering::Relaxed);
        drop(hold(&word));
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}
