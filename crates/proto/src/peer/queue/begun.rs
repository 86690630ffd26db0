//! What leaves first while the peer's memory refuses frames: messages that it has begun to take.
//!
//! Called by `queue` for each choice, and by `send` when the peer says that it refused frames, or has room again.

use super::{Choice, Queue};
use crate::peer::flight::Part;
use tsumuji_wire::Priority;

impl Queue {
    /// As `choose`, but only of messages that the peer has begun to take: their memory is set aside there, and comes
    /// free only when they are whole. Others would use up the credit meant for these and be refused again.
    #[cold]
    pub(super) fn next_begun(&mut self) -> Option<Choice> {
        for priority in 0..Priority::COUNT {
            let begun = |part: &Part| self.is_wanted(part) && self.is_begun(part.slot());
            if let Some(index) = self.repairs[priority].iter().position(begun) {
                if let Some(part) = self.repairs[priority].remove(index) {
                    self.repairs[priority].push_front(part);
                }
                return Some(Choice::Repair { priority });
            }
            if let Some(&slot) = self.pending[priority].front()
                && self.is_begun(slot)
            {
                return Some(Choice::New { priority });
            }
        }
        None
    }

    fn is_begun(&self, slot: u32) -> bool {
        self.messages[slot as usize].acknowledged > 0
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
