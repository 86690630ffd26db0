//! The program's budget: what arrived messages may take until the program is done with them.
//!
//! Invariant: all messages that arrive, wait for their turn or are held take less than the budget and two messages: the one
//! that found something free, and one that an ordered channel waited for while the program held nothing.

use tsumuji_wire::bundle;

/// Charged per message beside its bytes, so that empty messages are not free.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct Memory {
    budget_bytes: usize,
    limit_bytes: usize,
    /// Headroom: for what comes unasked; nothing else may take it. 0 where that would be more than half of the budget.
    headroom_bytes: usize,
    reserved_bytes: usize,
    held_bytes: usize,
    /// Charge of the one message admitted beyond the budget; 0: none.
    exceeding_bytes: usize,
    /// The message that begins now is admitted whatever is free.
    beyond: bool,
}

/// What a message of so many bytes counts for.
#[inline]
pub(crate) fn charge(message_bytes: usize) -> usize {
    charge_all(1, message_bytes)
}

/// What so many messages of so many bytes together count for.
#[inline]
pub(crate) fn charge_all(messages: usize, bytes: usize) -> usize {
    bytes.saturating_add(messages.saturating_mul(MESSAGE_OVERHEAD_BYTES))
}

/// As how long a message a bundle of so many bytes and messages counts, so that it is charged what they are charged one by one.
pub(crate) fn bundle_weight(bytes: usize, messages: usize) -> usize {
    bytes - messages * bundle::PREFIX_BYTES + (messages - 1) * MESSAGE_OVERHEAD_BYTES
}

impl Memory {
    pub(crate) fn new(budget_bytes: usize, limit_bytes: usize) -> Self {
        Self {
            budget_bytes,
            limit_bytes,
            headroom_bytes: 0,
            reserved_bytes: 0,
            held_bytes: 0,
            exceeding_bytes: 0,
            beyond: false,
        }
    }

    /// The program wants to give more or less from now on. What is taken stays taken until it is released.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget_bytes = bytes;
    }

    /// At present.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// Of one message. Hello told it to peers.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Keeps so much headroom for what comes unasked, if it is at most half of the budget; else nothing.
    pub(crate) fn set_headroom(&mut self, bytes: usize) {
        self.headroom_bytes = if bytes <= self.budget_bytes / 2 {
            bytes
        } else {
            0
        };
    }

    /// What is kept as headroom.
    pub(crate) fn headroom_bytes(&self) -> usize {
        self.headroom_bytes
    }

    /// Half of what is not headroom: beyond it who sends unasked is told to stop.
    #[inline]
    pub(crate) fn half_bytes(&self) -> usize {
        (self.budget_bytes - self.headroom_bytes.min(self.budget_bytes)) / 2
    }

    /// So little is used that who was told to stop may go on.
    pub(crate) fn has_eased(&self) -> bool {
        self.headroom_bytes > 0 && self.used_bytes() <= self.half_bytes() / 2
    }

    /// What is left.
    pub(crate) fn free_bytes(&self) -> usize {
        self.budget_bytes
            .saturating_sub(self.headroom_bytes)
            .saturating_sub(self.reserved_bytes)
            .saturating_sub(self.held_bytes)
    }

    /// The program holds nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.held_bytes == 0
    }

    /// Something is free, or may be exceeded by one that a channel waits for.
    #[inline]
    pub(crate) fn admits_more(&self) -> bool {
        self.free_bytes() > 0 || self.may_exceed(true)
    }

    /// Whether the message that begins next is admitted whatever is free.
    pub(crate) fn set_beyond(&mut self, beyond: bool) {
        self.beyond = beyond;
    }

    /// What all messages that arrive, wait or are held are charged.
    #[inline]
    pub(crate) fn used_bytes(&self) -> usize {
        self.reserved_bytes + self.held_bytes + self.exceeding_bytes
    }

    /// Is there room for a message of `bytes`? As long as anything is free, it may be more than is free: else a message
    /// larger than the budget would never come, and credit for the last free frames would be refused again and again.
    /// `fair`: its sender's share is not used up.
    /// `head`: an ordered channel waits for just this one; it is admitted once the program holds nothing and nobody exceeds.
    #[inline]
    pub(crate) fn admits(&self, bytes: usize, fair: bool, head: bool) -> bool {
        bytes <= self.limit_bytes
            && (fair && self.free_bytes() > 0 || self.may_exceed(head) || self.beyond)
    }

    fn may_exceed(&self, head: bool) -> bool {
        head && self.exceeding_bytes == 0 && self.held_bytes == 0
    }

    /// Sets memory aside for a message that arrives in parts or waits for its turn.
    pub(crate) fn reserve(&mut self, bytes: usize, fair: bool, head: bool) -> bool {
        if !self.admits(bytes, fair, head) {
            return false;
        }
        if fair && self.free_bytes() > 0 || self.beyond {
            self.reserved_bytes += charge(bytes);
        } else {
            self.exceeding_bytes = charge(bytes);
        }
        true
    }

    /// A reserved message was delivered.
    pub(crate) fn deliver_reserved(&mut self, bytes: usize) {
        self.abandon(bytes);
        self.hold(bytes);
    }

    /// A reserved message will not be delivered.
    pub(crate) fn abandon(&mut self, bytes: usize) {
        // Two messages of the same size are worth the same: which of them exceeds does not matter.
        if self.exceeding_bytes == charge(bytes) {
            self.exceeding_bytes = 0;
        } else {
            self.reserved_bytes = self.reserved_bytes.saturating_sub(charge(bytes));
        }
    }

    /// A message was delivered straight from its frame.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.held_bytes += charge(bytes);
    }

    /// The program is done with messages that were charged so much.
    pub(crate) fn release(&mut self, charged_bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(charged_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// One message may go beyond the budget; then nothing, but what an ordered channel waits for.
    #[test]
    fn budget_and_one_message() {
        let mut memory = Memory::new(1000, 5000);
        assert!(memory.reserve(800, true, false));
        assert!(memory.reserve(4000, true, false), "something is free");
        assert!(!memory.reserve(10, true, false));
        assert!(memory.reserve(10, true, true), "a channel waits for it");
        assert!(!memory.reserve(10, true, true), "one exceeds already");
        memory.deliver_reserved(10);
        assert!(!memory.reserve(20, true, true), "held by the program");
        memory.release(charge(10));
        assert!(memory.reserve(20, true, true));
        memory.abandon(20);
        memory.abandon(4000);
        assert!(memory.reserve(10, true, false));
        assert!(!memory.reserve(5001, true, true), "over the limit");
        assert!(!memory.reserve(10, false, false), "more than its share");
        assert_eq!(memory.used_bytes(), 864 + 74);
    }

    proptest! {
        /// Whatever comes, waits and goes: what is counted is what is there, and less than the budget and two messages.
        #[test]
        fn two_messages_exceed_at_most(
            steps in proptest::collection::vec((0u8..5, 0usize..3000, any::<bool>(), any::<bool>(), 0usize..64), 1..400),
        ) {
            const BUDGET_BYTES: usize = 4000;
            const LIMIT_BYTES: usize = 2500;
            let mut memory = Memory::new(BUDGET_BYTES, LIMIT_BYTES);
            let (mut reserved, mut held): (Vec<usize>, Vec<usize>) = Default::default();
            for (step, bytes, fair, head, which) in steps {
                let of = |messages: &Vec<usize>| which % messages.len().max(1);
                match step {
                    0 if memory.reserve(bytes, fair, head) => reserved.push(bytes),
                    1 if memory.admits(bytes, fair, head) => {
                        memory.hold(bytes);
                        held.push(bytes);
                    }
                    2 if !reserved.is_empty() => {
                        let bytes = reserved.swap_remove(of(&reserved));
                        memory.deliver_reserved(bytes);
                        held.push(bytes);
                    }
                    3 if !reserved.is_empty() => memory.abandon(reserved.swap_remove(of(&reserved))),
                    4 if !held.is_empty() => memory.release(charge(held.swap_remove(of(&held)))),
                    _ => {}
                }
                let there: usize = reserved.iter().chain(&held).map(|&bytes| charge(bytes)).sum();
                prop_assert_eq!(memory.used_bytes(), there);
                prop_assert!(there < BUDGET_BYTES + 2 * charge(LIMIT_BYTES), "{} taken", there);
            }
        }
    }

    /// The bound is sharp but for a byte: no smaller one could be promised.
    #[test]
    fn two_messages_do_exceed() {
        let mut memory = Memory::new(charge(0) + 1, 1000);
        assert!(memory.reserve(0, true, false));
        assert!(memory.reserve(1000, true, false), "a byte is free");
        assert!(memory.reserve(1000, true, true), "a channel waits for it");
        assert_eq!(memory.used_bytes(), charge(0) + 2 * charge(1000));
    }
}
