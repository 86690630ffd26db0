//! Telling an end of a connection that there is something new for it, and learning that it sleeps; the numbers of those who are told.
//!
//! The producer makes its news visible, then calls `mark`, which looks for sleepers; a reader that is about to sleep says so, then looks once more.
//! There is a fence between the two on either side.

use std::sync::atomic::{Ordering, fence};

use crate::ring::{BELL, DOORBELL, Memory, Plate, WAITERS};

/// The readers that sleep at an end, and have been marked as woken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "who sleeps must be woken"]
pub struct Sleepers {
    /// How the caller must wake them: [`BELL`], [`FUTEX`](crate::ring::FUTEX), [`DOORBELL`], or several of these; 0: nobody sleeps.
    pub ways: u32,
    /// Of the doorbell, as the other process says.
    pub doorbell: Plate,
}

impl Sleepers {
    /// Whether somebody must be woken.
    pub fn is_any(self) -> bool {
        self.ways != 0
    }
}

/// Marks news for the end `side` of a slot.
#[inline]
pub fn mark(memory: Memory, slot: usize, side: usize) -> Sleepers {
    let header = memory.header();
    let inn = &memory.slot(slot).ends[side % 2].inn;
    let mut found = Sleepers::default();
    fence(Ordering::SeqCst);
    let waiter = inn.waiter.load(Ordering::Relaxed) as usize;
    if (1..=WAITERS).contains(&waiter) {
        let ready = &header.ready[side % 2].0;
        let bit = 1 << slot;
        if ready.load(Ordering::Relaxed) & bit == 0 {
            ready.fetch_or(bit, Ordering::SeqCst);
        }
        let word = &header.asleep[side % 2][waiter - 1].0;
        if word.load(Ordering::SeqCst) != 0 {
            found = match word.swap(0, Ordering::SeqCst) {
                0 => Sleepers::default(),
                DOORBELL => Sleepers {
                    ways: DOORBELL,
                    doorbell: header.doorbells[side % 2][waiter - 1].plate(),
                },
                _ => Sleepers {
                    ways: BELL,
                    ..Sleepers::default()
                },
            };
        }
    }
    if inn.is_asleep.load(Ordering::Relaxed) != 0 {
        found.ways |= inn.is_asleep.swap(0, Ordering::SeqCst);
    }
    found
}

/// A number for this process, `pid`, among the waiters of that side. Those of processes that do not live are taken over. `None`: there are too many.
pub fn take_waiter(
    memory: Memory,
    side: usize,
    pid: u32,
    is_alive: impl Fn(u32) -> bool,
) -> Option<usize> {
    let owners = &memory.header().owners[side % 2];
    owners.iter().position(|word| {
        let owner = word.load(Ordering::Acquire);
        (owner == 0 || !is_alive(owner))
            && word
                .compare_exchange(owner, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    })
}

/// Gives such a number back.
pub fn free_waiter(memory: Memory, side: usize, waiter: usize, pid: u32) {
    let word = &memory.header().owners[side % 2][waiter];
    let _ = word.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed); // taken over otherwise
}
