//! Telling an end of a connection that there is something new for it, and learning that it sleeps.
//!
//! Who produces makes its news visible, then calls `mark`, which looks for sleepers; who is about to sleep says so, then looks once more. There is a
//! fence between the two on either side.

use std::sync::atomic::{Ordering, fence};

use crate::ring::{BELL, Memory, WAITERS};

/// Marks news for the end `side` of a slot. Not 0: it sleeps, has been marked as woken, and must be woken by the caller, by [`BELL`],
/// [`FUTEX`](crate::ring::FUTEX), or both.
#[inline]
pub fn mark(memory: Memory, slot: usize, side: usize) -> u32 {
    let header = memory.header();
    let inn = &memory.slot(slot).ends[side % 2].inn;
    let mut ways = 0;
    fence(Ordering::SeqCst);
    let waiter = inn.waiter.load(Ordering::Relaxed) as usize;
    if (1..=WAITERS).contains(&waiter) {
        let ready = &header.ready[side % 2].0;
        let bit = 1 << slot;
        if ready.load(Ordering::Relaxed) & bit == 0 {
            ready.fetch_or(bit, Ordering::SeqCst);
        }
        let word = &header.asleep[side % 2][waiter - 1].0;
        if word.load(Ordering::SeqCst) != 0 && word.swap(0, Ordering::SeqCst) != 0 {
            ways = BELL;
        }
    }
    if inn.is_asleep.load(Ordering::Relaxed) != 0 {
        ways |= inn.is_asleep.swap(0, Ordering::SeqCst);
    }
    ways
}
