//! Messages that are sent again and again, and do not arrive.
//!
//! Called by `queue` for each fragment that leaves again, and by the congestion control for each probe: what arrives at once pays nothing
//! for it. There are two ways to be stuck. Others get through, and acknowledgements tell each time that this one did not: then its own repairs
//! are counted. Or nothing gets through, so that each probe repairs another fragment: then probes are.

use super::Queue;
use super::ahead::Ahead;
use crate::message::SendId;
use crate::peer::flight::Part;
use crate::peer::outgoing::{Outgoing, Repaired};
use crate::time::{Duration, Instant};

/// Fewer repairs or probes without an answer are no stall, however long they take: where half of all frames are lost, each way, one in ten such
/// rows goes unanswered by chance. One more must have left: the last of them has had its time by then.
pub(crate) const STALL_REPAIRS: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Stall {
    /// The peer's memory refused something, or the peer was not heard at all: until then nobody was stuck.
    excused_at: Instant,
    /// The slot of a message that was sent again too often.
    suspect: u32,
    /// Probes in a row that nothing answered, and since when.
    probes: u32,
    probing_since: Instant,
    /// Acknowledged out of turn.
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
    /// A fragment of the message in this slot leaves again.
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
        // Who is suspected stays so while it is: others would take its place again and again.
        if repaired.times > STALL_REPAIRS && !stall.suspects(&self.messages[stall.suspect as usize])
        {
            stall.suspect = slot;
        }
    }

    /// A probe leaves; `first`: something was answered since the last one.
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

    /// Nothing was heard of the peer for long.
    pub(in crate::peer) fn note_silence(&mut self, now: Instant) {
        if let Some(stall) = &mut self.stall {
            stall.begin_anew(now);
        }
    }

    /// A message of which nothing new was acknowledged for so long, though it was sent again and again. `probing`: nothing was answered since the
    /// last probe.
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

    /// The message that a part belongs to which keeps all that was sent after it from arriving; of a datagram, the oldest message behind it.
    pub(in crate::peer) fn stuck_by(&self, part: Part) -> Option<SendId> {
        let outgoing = self.messages.get(part.slot() as usize)?;
        let is_reliable =
            outgoing.live && outgoing.id == part.id && !outgoing.channel.is_datagram();
        if is_reliable {
            return Some(part.id);
        }
        self.first_begun()
    }

    /// The oldest reliable message of which something has left.
    fn first_begun(&self) -> Option<SendId> {
        let begun = |outgoing: &&Outgoing| {
            outgoing.live && outgoing.next_fragment > 0 && !outgoing.channel.is_datagram()
        };
        let begun = self.messages.iter().filter(begun);
        begun.map(|outgoing| outgoing.id).min()
    }
}
