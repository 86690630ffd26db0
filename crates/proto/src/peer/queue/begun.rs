//! Order of messages while the peer's memory refuses frames: first those that it has begun to take, then those that later messages wait for.
//!
//! Called by `queue` for each choice, and by `send` when the peer reports that it refused frames, or has room again.

use super::{Choice, Queue};
use crate::peer::flight::Part;
use tsumuji_wire::{DeliveryClass, Priority};

impl Queue {
    /// As `choose`, but only among messages that free memory at the peer when they are complete. Either the peer has begun to take them and has
    /// reserved their memory; or later messages of their ordered channel wait there, and they are admitted whatever is free. The former go first,
    /// because the latter may be refused until those are complete. Other messages would use up the credit and be refused again.
    #[cold]
    pub(super) fn next_begun(&mut self) -> Option<Choice> {
        self.next_of(Self::is_begun)
            .or_else(|| self.next_of(Self::is_awaited))
    }

    fn next_of(&mut self, goes_first: impl Fn(&Self, u32) -> bool) -> Option<Choice> {
        for priority in 0..Priority::COUNT {
            let wanted = |part: &Part| self.is_wanted(part) && goes_first(self, part.slot());
            if let Some(index) = self.repairs[priority].iter().position(wanted) {
                if let Some(part) = self.repairs[priority].remove(index) {
                    self.repairs[priority].push_front(part);
                }
                return Some(Choice::Repair { priority });
            }
            if let Some(&slot) = self.pending[priority].front()
                && goes_first(self, slot)
            {
                return Some(Choice::New { priority });
            }
        }
        None
    }

    fn is_begun(&self, slot: u32) -> bool {
        self.messages[slot as usize].acknowledged > 0
    }

    /// Later messages of its ordered channel wait for it at the peer.
    fn is_awaited(&self, slot: u32) -> bool {
        let message = &self.messages[slot as usize];
        let channel = &self.channels[usize::from(message.channel_index)];
        let is_next = message.number == channel.base() && channel.has_gap();
        is_next && message.channel.class() == DeliveryClass::Ordered
    }

    /// Sets whether the peer's memory refuses frames.
    pub(in crate::peer) fn set_begun_first(&mut self, begun_first: bool) {
        self.begun_first = begun_first;
        self.choice = None;
    }

    pub(in crate::peer) fn is_begun_first(&self) -> bool {
        self.begun_first
    }
}
