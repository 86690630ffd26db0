//! Locks that survive the death of who holds them, in shared memory and in our own.
//!
//! A lock is a word with the number of the thread that holds it. Whoever waits long looks whether that thread still exists, and takes the lock if it
//! does not: a process may be killed at any point, and a forked child inherits locks of threads that it does not have. Then its word is no longer that
//! thread's, so it gives back only what is still its own.
//!
//! The other end of a connection can write into the words of shared memory, too. So a holder must be a thread of this process that has noted itself in memory
//! of its own, or, if it has ever forked, a thread that lives. Nobody else is waited for longer than `PATIENCE_NS`.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys;
use crate::tuning::TUNING;

/// No lock is held for so long (`demotion` waits under locks, for a second at most), but by a process that was stopped within, or by a number that a
/// peer has made up. And how often a waiter polls meanwhile: one that was stopped itself has not been patient.
const PATIENCE_NS: u64 = 3_000_000_000;
const POLLS_MIN: u32 = 10_000;

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
    GROUP.store(sys::getpid(), Ordering::Relaxed);
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
        // The thread that has lost patience holds it now.
        let _ = self
            .word
            .compare_exchange(self.holder, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// Holds a lock in shared memory, and has noted that in our own.
#[derive(Debug)]
pub(crate) struct Noted<'a> {
    note: &'a AtomicU32,
    _held: Held<'a>,
}

impl<'a> Noted<'a> {
    #[inline]
    fn new(held: Held<'a>, note: &'a AtomicU32) -> Self {
        note.store(held.holder, Ordering::Relaxed);
        Self { note, _held: held }
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        // Before the lock is free.
        self.note.store(0, Ordering::Relaxed);
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

/// As `try_hold`, with a note.
pub(crate) fn try_hold_noted<'a>(word: &'a AtomicU32, note: &'a AtomicU32) -> Option<Noted<'a>> {
    try_hold(word).map(|held| Noted::new(held, note))
}

/// Of a lock that the other end of a connection can write: the holder's number in `note`, which it cannot, says that it is none that it has made up.
#[inline]
pub(crate) fn hold_noted<'a>(word: &'a AtomicU32, note: &'a AtomicU32) -> Noted<'a> {
    let held = match try_hold(word) {
        Some(held) => held,
        None => wait(word, true, Some(note)),
    };
    Noted::new(held, note)
}

/// Of a lock that this process shares with its relatives only.
#[inline]
pub(crate) fn hold(word: &AtomicU32) -> Held<'_> {
    match try_hold(word) {
        Some(held) => held,
        None => wait(word, true, None),
    }
}

/// The same for a word in memory of this process only: its holder is a thread of this process, or one that a forked child does not have.
#[inline]
fn hold_own(word: &AtomicU32) -> Held<'_> {
    match try_hold(word) {
        Some(held) => held,
        None => wait(word, false, None),
    }
}

#[cold]
fn wait<'a>(word: &'a AtomicU32, is_shared: bool, note: Option<&AtomicU32>) -> Held<'a> {
    let mut rounds = 0u32;
    // When a holder was seen first of which nobody but the word says that it is one, and polls since.
    let (mut since_ns, mut polls) = (sys::now_ns(), 0u32);
    let mut last = 0;
    loop {
        for _ in 0..TUNING.lock.spins {
            if word.load(Ordering::Relaxed) == 0
                && let Some(held) = try_hold(word)
            {
                return held;
            }
            std::hint::spin_loop();
        }
        rounds += 1;
        if rounds < TUNING.lock.yields {
            sys::sched_yield();
            continue;
        }
        sys::sleep_us(TUNING.lock.sleep_us);
        let holder = word.load(Ordering::Relaxed);
        // `holder == thread()`: a signal handler has interrupted its own thread, which cannot go on before the handler has ended. What both move may
        // then be lost or come twice.
        let now_ns = sys::now_ns();
        let is_foreign = !sys::is_own_thread(holder);
        let is_noted = note.is_none_or(|note| note.load(Ordering::Relaxed) == holder);
        if holder == 0 || !is_foreign && is_noted || is_foreign && holder != last {
            (since_ns, polls) = (now_ns, 0);
        }
        last = holder;
        polls = polls.saturating_add(1);
        let is_gone = holder != 0
            && (holder == thread()
                || !may_hold(holder)
                || is_foreign && !is_shared
                || polls > POLLS_MIN && now_ns - since_ns > PATIENCE_NS);
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

    /// A number of a living thread that the other end has made up holds nobody up for ever; a thread that holds the lock is waited for.
    #[test]
    fn made_up_holders_are_found_out() {
        let (word, note) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            let (told, number) = std::sync::mpsc::channel();
            let (wait, over) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                told.send(thread()).expect("the test waits");
                let _ = over.recv();
            });
            word.store(number.recv().expect("a number"), Ordering::Relaxed);
            let held = hold_noted(&word, &note);
            assert_eq!(note.load(Ordering::Relaxed), thread());
            drop(wait);
            drop(held);
        });
        assert_eq!(word.load(Ordering::Relaxed), 0);
        assert_eq!(note.load(Ordering::Relaxed), 0);
        let is_over = AtomicU32::new(0);
        let held = hold_noted(&word, &note);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _held = hold_noted(&word, &note);
                assert_eq!(is_over.load(Ordering::Relaxed), 1);
            });
            std::thread::sleep(std::time::Duration::from_nanos(PATIENCE_NS + 1_000_000_000));
            is_over.store(1, Ordering::Relaxed);
            drop(held);
        });
    }
}
