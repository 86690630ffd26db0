//! Datagrams of several frames on their way out: a newer one of the same key replaces the one that waits, a late or lost one is dropped and
//! counted.
//!
//! Called by `queue` and `send`. Such a datagram stands in the queue like any message; what differs is how it may end.
//!
//! Invariant: `waiting` names each of them of which some fragment has not left, and of each channel and key at most one of which
//! none has; `first_deadline` is never later than the earliest of theirs.

use alloc::vec::Vec;
use core::mem;

use super::Queue;
use crate::message::SendId;
use crate::pool::Pool;
use crate::time::Instant;
use tsumuji_wire::Channel;

/// No deadline.
pub(crate) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Datagrams that did not arrive, by what became of them. All since birth.
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
    pub(super) of: (Channel, u32),
    pub(super) slot: u32,
    pub(super) deadline: Instant,
}

impl Queue {
    /// Queues a datagram that needs to arrive only if no newer one of its channel and key is there, and before `deadline`. Takes the place
    /// of the one that waits.
    pub(in crate::peer) fn push_datagram(
        &mut self,
        of: (Channel, u32),
        body: Vec<u8>,
        deadline: Instant,
        pool: &mut Pool,
    ) {
        self.first_deadline = self.first_deadline.min(deadline);
        if let Some(index) = self.replaced(of) {
            let entry = &mut self.waiting[index];
            let messages = &mut self.messages;
            entry.deadline = deadline;
            let outgoing = &mut messages[entry.slot as usize];
            outgoing.id = SendId(self.next_id);
            self.next_id += 1;
            outgoing.length_bytes = body.len();
            (outgoing.fragments, outgoing.fragment_bytes) =
                super::cut(body.len(), self.fragment_bytes);
            self.queued_bytes = self.queued_bytes + body.len() - outgoing.body.len();
            self.dropped.superseded += 1;
            return pool.put(mem::replace(&mut outgoing.body, body));
        }
        let (channel, _) = of;
        self.push(channel, body, false, pool);
        if let Some(&slot) = self.pending[usize::from(channel.priority().get())].back() {
            self.waiting.push(Waiting { of, slot, deadline });
        }
    }

    pub(in crate::peer) fn replaced_bytes(&self, of: (Channel, u32)) -> usize {
        self.replaced(of).map_or(0, |index| {
            self.messages[self.waiting[index].slot as usize].body.len()
        })
    }

    /// The one, of those that wait, that has not begun to leave: a newer one takes its place.
    fn replaced(&self, of: (Channel, u32)) -> Option<usize> {
        let messages = &self.messages;
        let not_begun =
            |entry: &Waiting| entry.of == of && messages[entry.slot as usize].next_fragment == 0;
        self.waiting.iter().position(not_begun)
    }

    /// All of the message has left.
    #[cold]
    pub(super) fn on_datagram_left(&mut self, slot: u32) {
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

    /// A frame of a datagram is lost, and with it the datagram.
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
            self.channels[usize::from(outgoing.channel_index)].acknowledge(outgoing.number);
        }
        if outgoing.next_fragment < outgoing.fragments {
            let priority = usize::from(outgoing.channel.priority().get());
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
