//! Best-effort frames that wait for a free slot: few, and the newest wins.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::event::Destination;
use crate::pool::Pool;

/// More than one burst's worth would only grow stale.
const QUEUED_SHARES: usize = 64;

#[derive(Debug)]
pub(crate) struct QueuedShare {
    pub(crate) to: Destination,
    pub(crate) port: u16,
    pub(crate) epoch: u32,
    pub(crate) lap: u32,
    pub(crate) start: u32,
    pub(crate) payload: Vec<u8>,
}

#[derive(Debug, Default)]
pub(crate) struct Shares {
    queue: VecDeque<QueuedShare>,
}

impl Shares {
    /// Replaces a waiting share of the same place; drops the oldest when full.
    pub(crate) fn push(&mut self, share: QueuedShare, pool: &mut Pool) {
        let same = |old: &&mut QueuedShare| {
            old.to == share.to && old.port == share.port && old.start == share.start
        };
        let displaced = if let Some(old) = self.queue.iter_mut().find(same) {
            Some(core::mem::replace(old, share))
        } else {
            self.queue.push_back(share);
            (self.queue.len() > QUEUED_SHARES)
                .then(|| self.queue.pop_front())
                .flatten()
        };
        if let Some(old) = displaced {
            pool.put(old.payload);
        }
    }

    pub(crate) fn front(&self) -> Option<&QueuedShare> {
        self.queue.front()
    }

    pub(crate) fn pop(&mut self) -> Option<QueuedShare> {
        self.queue.pop_front()
    }
}
