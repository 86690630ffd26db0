//! A long message that stays with the program while it leaves: at most one for each peer.
//!
//! Called by `send`. The caller passes the message as a `Borrowed` whenever frames are written, until the queue is to retain a copy or cancel it. The
//! retained copy is in the message's `borrowing`, or in its `body` if nothing had left.

use bytes::Bytes;

use super::Queue;
use crate::message::{Borrowed, SendId};
use crate::pool::Pool;
use tsumuji_wire::{Channel, NodeId};

/// State of the message that was borrowed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InHand {
    /// No message is borrowed: it was retained or cancelled, or it failed.
    No,
    /// It is borrowed; its index in `Queue::messages`.
    Yes { slot: u32, id: SendId },
    /// It was acknowledged whole while it was borrowed. This state outlives the session, because the message did not fail.
    Acknowledged(SendId),
}

/// State of a borrowed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BorrowedState {
    /// Bytes of it that have not left.
    Unsent(usize),
    Acknowledged,
    /// It failed, or was retained or cancelled.
    Gone,
}

impl Queue {
    /// Borrows a message of `length_bytes` for `to`, until `retain` or `cancel`; `None` if one is borrowed already.
    pub(crate) fn push_borrowed(
        &mut self,
        to: NodeId,
        channel: Channel,
        length_bytes: usize,
        notify: bool,
    ) -> Option<SendId> {
        if let InHand::Yes { .. } = self.borrowed {
            return None;
        }
        let mut borrowing = self.spare_borrowing.take().unwrap_or_default();
        borrowing.begin(to);
        let slot = self.free_slot();
        self.messages[slot as usize].borrowing = Some(borrowing);
        let id = self.enlist(slot, channel, length_bytes, notify);
        self.borrowed = InHand::Yes { slot, id };
        Some(id)
    }

    /// Queues a message whose memory the program shares until it is acknowledged whole, or fails.
    pub(crate) fn push_shared(&mut self, channel: Channel, message: Bytes, notify: bool) -> SendId {
        let length_bytes = message.len();
        let mut borrowing = self.spare_borrowing.take().unwrap_or_default();
        borrowing.share(message);
        let slot = self.free_slot();
        self.messages[slot as usize].borrowing = Some(borrowing);
        self.queued_bytes += length_bytes;
        self.enlist(slot, channel, length_bytes, notify)
    }

    fn borrowed_slot(&self, borrowed: &Borrowed<'_>) -> Option<u32> {
        match self.borrowed {
            InHand::Yes { slot, id } if id == borrowed.id() => Some(slot),
            _ => None,
        }
    }

    /// State of that borrowed message.
    pub(crate) fn borrowed_state(&self, borrowed: &Borrowed<'_>) -> BorrowedState {
        if self.borrowed == InHand::Acknowledged(borrowed.id()) {
            return BorrowedState::Acknowledged;
        }
        self.borrowed_slot(borrowed)
            .map_or(BorrowedState::Gone, |slot| {
                let outgoing = &self.messages[slot as usize];
                let left_bytes = outgoing.next_fragment as usize * outgoing.fragment_bytes as usize;
                BorrowedState::Unsent(outgoing.length_bytes.saturating_sub(left_bytes))
            })
    }

    /// Copies the parts of the message that are not acknowledged, and ends its borrowing. `false`: there is no memory.
    ///
    /// # Panics
    /// If `borrowed` has another length than the message had when it was borrowed.
    pub(crate) fn retain(&mut self, borrowed: &Borrowed<'_>, pool: &mut Pool) -> bool {
        let Some(slot) = self.borrowed_slot(borrowed) else {
            return true;
        };
        let outgoing = &mut self.messages[slot as usize];
        let (message, size) = (borrowed.message(), outgoing.fragment_bytes as usize);
        assert_eq!(message.len(), outgoing.length_bytes, "another message");
        let kept_bytes = match &mut outgoing.borrowing {
            // Nothing has left: if it waits for a session, it may leave in fragments of another size.
            Some(borrowing) if outgoing.next_fragment == 0 => {
                let Some(mut body) = pool.take(message.len()) else {
                    return false;
                };
                body.extend_from_slice(message);
                pool.put(core::mem::replace(&mut outgoing.body, body));
                borrowing.end();
                self.spare_borrowing = outgoing.borrowing.take();
                message.len()
            }
            Some(borrowing) => {
                let (fragments, bitmap) = (outgoing.fragments, &outgoing.bitmap);
                match borrowing.retain(message, size, fragments, bitmap, pool) {
                    Some(bytes) => bytes,
                    None => return false,
                }
            }
            None => 0,
        };
        self.queued_bytes += kept_bytes;
        self.borrowed = InHand::No;
        true
    }

    /// Cancels the borrowed message; `false`: some of it has left, or it is not borrowed.
    pub(crate) fn cancel(&mut self, borrowed: &Borrowed<'_>) -> bool {
        let Some(slot) = self.borrowed_slot(borrowed) else {
            return false;
        };
        let outgoing = &mut self.messages[slot as usize];
        if outgoing.next_fragment > 0 {
            return false;
        }
        self.queued_messages -= 1;
        outgoing.live = false;
        if let Some(mut borrowing) = outgoing.borrowing.take() {
            borrowing.end();
            self.spare_borrowing = Some(borrowing);
        }
        self.unlist(slot);
        self.free.push(slot);
        (self.borrowed, self.choice) = (InHand::No, None);
        true
    }
}
