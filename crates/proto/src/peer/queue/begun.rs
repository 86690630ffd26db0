//! What leaves first while the peer's memory refuses frames: messages that it has begun to take, and those that what it has taken waits for.
//!
//! Called by `queue` for each choice, and by `send` when the peer says that it refused frames, or has room again.

use super::{Choice, Queue};
use crate::peer::flight::Part;
use tsumuji_wire::{DeliveryClass, Priority};

impl Queue {
    /// As `choose`, but only of messages that free memory there when they are whole. The peer has begun to take them, and reserved their memory;
    /// or later ones of their ordered channel lie there and wait for them, and no other is admitted whatever is free. The first go before the second,
    /// which may be refused until those are whole. Others would use up the credit meant for these and be refused again.
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

    /// Its channel's later messages wait for it.
    fn is_awaited(&self, slot: u32) -> bool {
        let message = &self.messages[slot as usize];
        let channel = &self.channels[usize::from(message.channel_index)];
        let is_next = message.number == channel.base() && channel.has_gap();
        is_next && message.channel.class() == DeliveryClass::Ordered
    }

    /// The peer's memory refused frames, or has room again.
    pub(in crate::peer) fn set_begun_first(&mut self, begun_first: bool) {
        self.begun_first = begun_first;
        self.choice = None;
    }

    pub(in crate::peer) fn is_begun_first(&self) -> bool {
        self.begun_first
    }
}
