//! The budget: how much memory messages may take from their arrival until the program releases them.
//!
//! Invariant: all messages that arrive, wait for earlier ones or are held take less than the budget and two messages: one admitted when little was
//! free, and one that an ordered channel waited for while the program held nothing.

use tsumuji_wire::bundle;

/// Charged for each message besides its bytes, so that empty messages are not free.
const MESSAGE_OVERHEAD_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct Memory {
    budget_bytes: usize,
    limit_bytes: usize,
    /// Part of the budget for direct messages only; 0 if it would be more than half of the budget.
    headroom_bytes: usize,
    /// The budget without headroom.
    usable_bytes: usize,
    reserved_bytes: usize,
    held_bytes: usize,
    /// Charge of the one message admitted beyond the budget; 0 if there is none.
    exceeding_bytes: usize,
    /// The message that begins now is admitted whatever is free.
    beyond: bool,
}

/// Charge of a message of `message_bytes`.
#[inline]
pub(crate) fn charge(message_bytes: usize) -> usize {
    charge_all(1, message_bytes)
}

/// Charge of `messages` messages of `bytes` altogether.
#[inline]
pub(crate) fn charge_all(messages: usize, bytes: usize) -> usize {
    bytes.saturating_add(messages.saturating_mul(MESSAGE_OVERHEAD_BYTES))
}

/// Length of a message whose charge equals that of a bundle's messages; `bytes` is the bundle's length.
pub(crate) fn bundle_weight(bytes: usize, messages: usize) -> usize {
    bytes - messages * bundle::PREFIX_BYTES + (messages - 1) * MESSAGE_OVERHEAD_BYTES
}

impl Memory {
    pub(crate) fn new(budget_bytes: usize, limit_bytes: usize) -> Self {
        Self {
            budget_bytes,
            limit_bytes,
            headroom_bytes: 0,
            usable_bytes: budget_bytes,
            reserved_bytes: 0,
            held_bytes: 0,
            exceeding_bytes: 0,
            beyond: false,
        }
    }

    /// Sets the budget. Memory that is taken stays taken until it is released.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        self.budget_bytes = bytes;
        self.usable_bytes = bytes.saturating_sub(self.headroom_bytes);
    }

    /// The present budget.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget_bytes
    }

    /// Largest message that is accepted, as stated in hello.
    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Sets the headroom, or 0 if it would be more than half of the budget.
    pub(crate) fn set_headroom(&mut self, bytes: usize) {
        self.headroom_bytes = if bytes <= self.budget_bytes / 2 {
            bytes
        } else {
            0
        };
        self.usable_bytes = self.budget_bytes - self.headroom_bytes;
    }

    /// The present headroom.
    pub(crate) fn headroom_bytes(&self) -> usize {
        self.headroom_bytes
    }

    /// Half of the budget without headroom: when more is used, peers that send directly are told to stop.
    #[inline]
    pub(crate) fn half_bytes(&self) -> usize {
        self.usable_bytes / 2
    }

    /// So little is used that peers that were told to stop may send directly again.
    pub(crate) fn has_space(&self) -> bool {
        self.headroom_bytes > 0 && self.used_bytes() <= self.half_bytes() / 2
    }

    /// Bytes that are free, without headroom.
    pub(crate) fn free_bytes(&self) -> usize {
        self.usable_bytes
            .saturating_sub(self.reserved_bytes + self.held_bytes)
    }

    /// At least `bytes` are free.
    #[inline]
    pub(crate) fn has_as_much(&self, bytes: usize) -> bool {
        self.reserved_bytes + self.held_bytes + bytes <= self.usable_bytes
    }

    /// The program holds nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.held_bytes == 0
    }

    /// Something is free, or a message that an ordered channel waits for may exceed the budget.
    #[inline]
    pub(crate) fn admits_more(&self) -> bool {
        self.free_bytes() > 0 || self.may_exceed(true)
    }

    /// Sets whether the message that begins next is admitted whatever is free.
    pub(crate) fn set_beyond(&mut self, beyond: bool) {
        self.beyond = beyond;
    }

    /// Charge of all messages that arrive, wait or are held.
    #[inline]
    pub(crate) fn used_bytes(&self) -> usize {
        self.reserved_bytes + self.held_bytes + self.exceeding_bytes
    }

    /// Whether a message of `bytes` is admitted. While anything is free, it may be larger than that: otherwise a message larger than the budget would
    /// never come, and credit for the last free frames would be refused again and again. `fair`: its sender's share is not used up. `head`: an
    /// ordered channel waits for this message; it is admitted once the program holds nothing and no other message exceeds the budget.
    #[inline]
    pub(crate) fn admits(&self, bytes: usize, fair: bool, head: bool) -> bool {
        bytes <= self.limit_bytes
            && (fair && self.free_bytes() > 0 || self.may_exceed(head) || self.beyond)
    }

    fn may_exceed(&self, head: bool) -> bool {
        head && self.exceeding_bytes == 0 && self.held_bytes == 0
    }

    /// Reserves memory for a message that arrives in parts or waits for an earlier one; `false` if it is not admitted.
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

    /// Notes that a reserved message was delivered.
    pub(crate) fn deliver_reserved(&mut self, bytes: usize) {
        self.abandon(bytes);
        self.hold(bytes);
    }

    /// Releases the memory of a reserved message that will not be delivered.
    pub(crate) fn abandon(&mut self, bytes: usize) {
        // Messages of the same size have the same charge: which of them exceeds the budget does not matter.
        if self.exceeding_bytes == charge(bytes) {
            self.exceeding_bytes = 0;
        } else {
            self.reserved_bytes = self.reserved_bytes.saturating_sub(charge(bytes));
        }
    }

    /// Charges a message that was delivered straight from its frame.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.held_bytes += charge(bytes);
    }

    /// Releases messages whose charge is `charged_bytes`.
    pub(crate) fn release(&mut self, charged_bytes: usize) {
        self.held_bytes = self.held_bytes.saturating_sub(charged_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// One message may exceed the budget; then only one that an ordered channel waits for is admitted.
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
        /// Whatever arrives, waits and is released: the accounts match, and stay below the budget and two messages.
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

    /// The bound is exact but for a byte.
    #[test]
    fn two_messages_do_exceed() {
        let mut memory = Memory::new(charge(0) + 1, 1000);
        assert!(memory.reserve(0, true, false));
        assert!(memory.reserve(1000, true, false), "a byte is free");
        assert!(memory.reserve(1000, true, true), "a channel waits for it");
        assert_eq!(memory.used_bytes(), charge(0) + 2 * charge(1000));
    }
}
