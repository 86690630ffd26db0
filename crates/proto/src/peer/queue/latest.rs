//! Send half of *latest* lanes: a newer message replaces the one that waits, a late or lost one is dropped and counted.
//!
//! Called by `queue` and `send`. A latest message stands in the queue like any other; what differs is how it may end.
//!
//! Invariant: `waiting` names each latest message of which some fragment has not left, and of each lane at most one of which
//! none has; `first_deadline` is never later than the earliest of theirs.

use alloc::vec::Vec;
use core::mem;

use super::Queue;
use crate::message::SendId;
use crate::pool::Pool;
use crate::time::Instant;
use tsumuji_wire::Lane;

/// No deadline.
pub(in crate::peer) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Latest messages that did not arrive, by what became of them. All since birth.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropped {
    /// A newer one came before they began to leave.
    pub(crate) superseded: u64,
    /// Their deadline passed before they had left.
    pub(crate) late: u64,
    /// Some frame of theirs was lost.
    pub(crate) lost: u64,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) lane: Lane,
    pub(super) slot: u32,
    pub(super) deadline: Instant,
}

impl Queue {
    /// Queues a message that needs to arrive only if no newer one of its lane is there, and before `deadline`. Takes the place of
    /// the one that waits.
    pub(in crate::peer) fn push_latest(
        &mut self,
        lane: Lane,
        body: Vec<u8>,
        deadline: Instant,
        pool: &mut Pool,
    ) -> SendId {
        self.first_deadline = self.first_deadline.min(deadline);
        let messages = &mut self.messages;
        let not_begun = |entry: &&mut Waiting| {
            entry.lane == lane && messages[entry.slot as usize].next_fragment == 0
        };
        if let Some(entry) = self.waiting.iter_mut().find(not_begun) {
            entry.deadline = deadline;
            let outgoing = &mut messages[entry.slot as usize];
            outgoing.id = SendId(self.next_id);
            self.next_id += 1;
            outgoing.length_bytes = body.len();
            (outgoing.fragments, outgoing.fragment_bytes) =
                super::cut(body.len(), self.fragment_bytes);
            self.queued_bytes = self.queued_bytes + body.len() - outgoing.body.len();
            let id = outgoing.id;
            self.dropped.superseded += 1;
            pool.put(mem::replace(&mut outgoing.body, body));
            return id;
        }
        let id = self.push(lane, body, false, pool);
        if let Some(&slot) = self.pending[usize::from(lane.priority().get())].back() {
            self.waiting.push(Waiting {
                lane,
                slot,
                deadline,
            });
        }
        id
    }

    /// All of the message has left.
    #[cold]
    pub(super) fn on_latest_left(&mut self, slot: u32) {
        self.waiting.retain(|entry| entry.slot != slot);
    }

    /// When the next message will be late; perhaps earlier. `NEVER`: none will.
    #[inline]
    pub(in crate::peer) fn first_deadline(&self) -> Instant {
        self.first_deadline
    }

    /// Drops what is late; of what has begun to leave the rest only if `begun_too`: numbers that are sent again need it.
    #[cold]
    pub(in crate::peer) fn expire(&mut self, now: Instant, begun_too: bool) {
        for entry in &mut self.waiting {
            if !begun_too && self.messages[entry.slot as usize].next_fragment > 0 {
                entry.deadline = NEVER;
            }
        }
        while let Some(late) = self.waiting.iter().position(|entry| entry.deadline <= now) {
            let slot = self.waiting[late].slot;
            self.dropped.late += 1;
            self.abandon(slot);
        }
        let deadlines = self.waiting.iter().map(|entry| entry.deadline);
        self.first_deadline = deadlines.min().unwrap_or(NEVER);
    }

    /// A frame of a latest message is lost, and with it the message.
    #[cold]
    pub(super) fn lose(&mut self, slot: u32, id: SendId) {
        let outgoing = &self.messages[slot as usize];
        if outgoing.live && outgoing.id == id {
            self.dropped.lost += 1;
            self.abandon(slot);
        }
    }

    /// Forgets a message, whatever of it has left. Its buffers go back to the allocator: this is no way of steady traffic.
    fn abandon(&mut self, slot: u32) {
        let outgoing = &mut self.messages[slot as usize];
        outgoing.live = false;
        self.queued_messages -= 1;
        self.queued_bytes -= mem::take(&mut outgoing.body).len();
        drop(mem::take(&mut outgoing.bitmap));
        if outgoing.next_fragment > 0 {
            self.lanes[usize::from(outgoing.lane_index)].acknowledge(outgoing.number);
        }
        if outgoing.next_fragment < outgoing.fragments {
            let priority = usize::from(outgoing.lane.priority().get());
            self.pending[priority].retain(|&other| other != slot);
            self.backlog -= 1;
            if self.pending[priority].is_empty() {
                self.pending_mask &= !(1 << priority);
            }
            self.waiting.retain(|entry| entry.slot != slot);
        }
        self.choice = None;
        self.free.push(slot);
    }
}
