//! Stalled messages: sent again and again without arriving.
//!
//! Called by `queue` for each fragment that is sent again, and by the congestion control for each probe: messages that arrive at once cost nothing
//! here. There are two cases. If other messages get through, each acknowledgement shows that this one did not: then its repairs are counted. If
//! nothing gets through, each probe repairs another fragment: then probes are counted.

use super::Queue;
use super::ahead::Ahead;
use crate::message::SendId;
use crate::peer::flight::Part;
use crate::peer::outgoing::{Outgoing, Repaired};
use crate::time::{Duration, Instant};

/// A stall needs more repairs or probes without an answer than this, however long they take: where half of all frames are lost in each direction, one
/// in ten sequences of this length goes unanswered by chance. One more must have left, so that the last of them has had its time.
pub(crate) const STALL_REPAIRS: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Stall {
    /// When the peer's memory last refused something, or the peer was last silent for long: earlier repairs do not count.
    excused_at: Instant,
    /// Slot of a message that was sent again too often.
    suspect: u32,
    /// Consecutive unanswered probes, and when the first of them left.
    probes: u32,
    probing_since: Instant,
    /// Messages acknowledged out of order.
    pub(super) ahead: Ahead,
}

impl Stall {
    fn begin_anew(&mut self, now: Instant) {
        (self.excused_at, self.probes, self.probing_since) = (now, 0, now);
    }

    fn suspects(&self, outgoing: &Outgoing) -> bool {
        let repaired = &outgoing.repaired;
        outgoing.live
            && (repaired.id, repaired.acknowledged) == (outgoing.id, outgoing.acknowledged)
            && repaired.times > STALL_REPAIRS
            && repaired.since >= self.excused_at
    }
}

impl Queue {
    /// Counts a fragment of the message in this slot that is sent again.
    pub(super) fn note_repair(&mut self, now: Instant, slot: u32) {
        let stall = self.stall.get_or_insert_default();
        let outgoing = &mut self.messages[slot as usize];
        let (id, acknowledged) = (outgoing.id, outgoing.acknowledged);
        let repaired = &mut outgoing.repaired;
        if (repaired.id, repaired.acknowledged) != (id, acknowledged)
            || repaired.times == 0
            || repaired.since < stall.excused_at
        {
            *repaired = Repaired {
                id,
                acknowledged,
                times: 0,
                since: now,
            };
        }
        repaired.times += 1;
        // A suspect stays while it is stalled: otherwise other messages would replace it again and again.
        if repaired.times > STALL_REPAIRS && !stall.suspects(&self.messages[stall.suspect as usize])
        {
            stall.suspect = slot;
        }
    }

    /// Counts a probe; `first`: something was answered since the last one.
    pub(in crate::peer) fn note_probe(&mut self, now: Instant, first: bool) {
        let has_reliable = self.first_begun().is_some();
        let stall = self.stall.get_or_insert_default();
        if first || !has_reliable {
            (stall.probes, stall.probing_since) = (0, now);
        }
        stall.probes += u32::from(has_reliable);
    }

    pub(in crate::peer) fn note_refusal(&mut self, now: Instant) {
        self.stall.get_or_insert_default().begin_anew(now);
    }

    /// Notes that the peer was not heard for long.
    pub(in crate::peer) fn note_silence(&mut self, now: Instant) {
        if let Some(stall) = &mut self.stall {
            stall.begin_anew(now);
        }
    }

    /// A message that was sent again and again for `after` without a new acknowledgement of it. `probing`: nothing was answered since the last probe.
    pub(in crate::peer) fn stalled(
        &self,
        now: Instant,
        after: Duration,
        probing: bool,
    ) -> Option<SendId> {
        let stall = self.stall.as_deref()?;
        let suspect = self.messages.get(stall.suspect as usize)?;
        if stall.suspects(suspect) && now.since(suspect.repaired.since) >= after {
            return Some(suspect.id);
        }
        let is_silent = probing && stall.probes > STALL_REPAIRS;
        if is_silent && now.since(stall.probing_since) >= after {
            return self.first_begun();
        }
        None
    }

    /// Under `suci`: the stalled message, if this part blocks all later ones; for a part of a datagram, the oldest message behind it.
    pub(in crate::peer) fn stuck_by(&self, part: Part) -> Option<SendId> {
        let outgoing = self.messages.get(part.slot() as usize)?;
        let is_reliable =
            outgoing.live && outgoing.id == part.id && !outgoing.channel.is_datagram();
        if is_reliable {
            return Some(part.id);
        }
        self.first_begun()
    }

    /// The oldest reliable message that has begun to leave.
    fn first_begun(&self) -> Option<SendId> {
        let begun = |outgoing: &&Outgoing| {
            outgoing.live && outgoing.next_fragment > 0 && !outgoing.channel.is_datagram()
        };
        let begun = self.messages.iter().filter(begun);
        begun.map(|outgoing| outgoing.id).min()
    }
}
