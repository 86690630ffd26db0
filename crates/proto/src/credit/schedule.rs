//! Scheduling: which of the peers with more to send share the pool.
//!
//! Part of `credit`.

use super::Grant;
use crate::tuning::TUNING;

/// A sender that has more to send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Active {
    pub(super) peer: u16,
    pub(super) urgency: (u8, u64),
    /// Frames of the peer that were used.
    pub(super) served: u64,
    /// Charge of the peer's messages when it was visited last.
    pub(super) used_bytes: usize,
}

impl Active {
    pub(super) fn new(peer: u16, grant: &Grant, used_bytes: usize) -> Self {
        Self {
            peer,
            urgency: grant.urgency,
            served: grant.served,
            used_bytes,
        }
    }
}

/// The senders that are scheduled, among more than may be at once. Computed in one pass, and used for each of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scheduled {
    /// Peers at least as urgent as this are scheduled.
    pub(super) least_urgent: ((u8, u64), u16),
    /// The two peers that were served least.
    pub(super) least_served: [(u64, u16); 2],
}

impl Scheduled {
    pub(super) fn among(active: &[Active]) -> Self {
        const NOBODY: ((u8, u64), u16) = ((u8::MAX, u64::MAX), u16::MAX);
        let mut urgent = [NOBODY; TUNING.credit.scheduled_senders - 1];
        let mut served = [(u64::MAX, u16::MAX); 2];
        for entry in active {
            insert(&mut urgent, (entry.urgency, entry.peer));
            insert(&mut served, (entry.served, entry.peer));
        }
        Self {
            least_urgent: urgent[TUNING.credit.scheduled_senders - 2],
            least_served: served,
        }
    }
}

/// Keeps the smallest values, in order.
fn insert<T: Ord + Copy>(smallest: &mut [T], mut new: T) {
    for kept in smallest {
        if new < *kept {
            core::mem::swap(kept, &mut new);
        }
    }
}
