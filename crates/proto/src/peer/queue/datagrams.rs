//! Sending of datagrams of several frames: a newer one of the same key replaces a waiting one; late and lost ones are dropped and counted (R-86,
//!
//!
//! Called by `queue` and `send`. Such a datagram is queued like any message, but may be dropped.
//!
//! Invariant: `waiting` has an entry for each datagram that has not left whole, and for each channel and key at most one that has not begun to leave;
//! `first_deadline` is never later than the earliest of their deadlines.

use alloc::vec::Vec;
use core::mem;

use super::Queue;
use crate::message::SendId;
use crate::pool::Pool;
use crate::time::Instant;
use tsumuji_wire::Channel;

/// No deadline.
pub(crate) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Counts of datagrams that did not arrive, by cause; in all sessions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropped {
    /// A newer one came before they began to leave.
    pub(crate) superseded: u64,
    /// Their deadline passed before they had left whole.
    pub(crate) late: u64,
    /// One of their frames was lost.
    pub(crate) lost: u64,
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) of: (Channel, u32),
    pub(super) slot: u32,
    pub(super) deadline: Instant,
}

impl Queue {
    /// Queues a datagram that is dropped at `deadline`, or when a newer one of its channel and key is queued. Replaces a waiting one.
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

    pub(crate) fn replaced_bytes(&self, of: (Channel, u32)) -> usize {
        self.replaced(of).map_or(0, |index| {
            self.messages[self.waiting[index].slot as usize].body.len()
        })
    }

    /// The waiting datagram of this channel and key that has not begun to leave.
    fn replaced(&self, of: (Channel, u32)) -> Option<usize> {
        let messages = &self.messages;
        let not_begun =
            |entry: &Waiting| entry.of == of && messages[entry.slot as usize].next_fragment == 0;
        self.waiting.iter().position(not_begun)
    }

    /// Notes that the datagram has left whole.
    #[cold]
    pub(super) fn on_datagram_left(&mut self, slot: u32) {
        self.waiting.retain(|entry| entry.slot != slot);
    }

    /// Earliest deadline of a waiting datagram, or earlier; `NEVER` if there is none.
    #[inline]
    pub(in crate::peer) fn first_deadline(&self) -> Instant {
        self.first_deadline
    }

    /// Drops late datagrams. Those that have begun to leave are dropped only if `begun_too`: under `suci` their numbers may have to be sent again.
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

    /// Drops a datagram of which a frame was lost.
    #[cold]
    pub(super) fn lose(&mut self, slot: u32, id: SendId) {
        let outgoing = &self.messages[slot as usize];
        if outgoing.live && outgoing.id == id {
            self.dropped.lost += 1;
            self.abandon(slot);
        }
    }

    /// Drops a message, even if some of it has left. Its buffers return to the allocator, because this is rare in steady traffic.
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
            self.unlist(slot);
            self.waiting.retain(|entry| entry.slot != slot);
        }
        self.choice = None;
        self.free.push(slot);
    }
}
