//! A long message that stays where the program has it while it leaves: one at a time for each peer.
//!
//! Called by `send`. Whoever writes frames brings the message along as a `Loan`, until the queue is to keep what is not acknowledged, or
//! to forget it. What was kept lies in the message's `lending`, or in its `body` if nothing had left.

use bytes::Bytes;

use super::Queue;
use crate::message::{Loan, SendId};
use crate::pool::Pool;
use tsumuji_wire::{Lane, NodeId};

/// What became of the message that was lent last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lent {
    /// Nothing that concerns the program: it took it back, or it failed.
    No,
    /// It is lent; its place in `Queue::messages`.
    Yes { slot: u32, id: SendId },
    /// It was acknowledged whole while it was lent. Outlives the session: what was acknowledged has not failed.
    Acknowledged(SendId),
}

/// How a loan stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoanState {
    /// So much of it has not left.
    Unsent(usize),
    Acknowledged,
    /// It failed, or was taken back.
    Gone,
}

impl Queue {
    /// A message of `length_bytes` is lent for `to`, until `keep` or `withdraw`; `None` while another one is.
    pub(in crate::peer) fn push_lent(
        &mut self,
        to: NodeId,
        lane: Lane,
        length_bytes: usize,
        notify: bool,
    ) -> Option<SendId> {
        if let Lent::Yes { .. } = self.lent {
            return None;
        }
        let mut lending = self.spare_lending.take().unwrap_or_default();
        lending.begin(to);
        let slot = self.free_slot();
        self.messages[slot as usize].lending = Some(lending);
        let id = self.enlist(slot, lane, length_bytes, notify);
        self.lent = Lent::Yes { slot, id };
        Some(id)
    }

    /// Queues a message that the program shares: it is held until it is acknowledged whole, or fails.
    pub(in crate::peer) fn push_shared(
        &mut self,
        lane: Lane,
        message: Bytes,
        notify: bool,
    ) -> SendId {
        let length_bytes = message.len();
        let mut lending = self.spare_lending.take().unwrap_or_default();
        lending.share(message);
        let slot = self.free_slot();
        self.messages[slot as usize].lending = Some(lending);
        self.queued_bytes += length_bytes;
        self.enlist(slot, lane, length_bytes, notify)
    }

    fn lent_slot(&self, loan: &Loan<'_>) -> Option<u32> {
        match self.lent {
            Lent::Yes { slot, id } if id == loan.id() => Some(slot),
            _ => None,
        }
    }

    /// How that loan stands.
    pub(in crate::peer) fn loan_state(&self, loan: &Loan<'_>) -> LoanState {
        if self.lent == Lent::Acknowledged(loan.id()) {
            return LoanState::Acknowledged;
        }
        self.lent_slot(loan).map_or(LoanState::Gone, |slot| {
            let outgoing = &self.messages[slot as usize];
            let left_bytes = outgoing.next_fragment as usize * outgoing.fragment_bytes as usize;
            LoanState::Unsent(outgoing.length_bytes.saturating_sub(left_bytes))
        })
    }

    /// Copies what is not acknowledged of the message, which is no longer lent then. `false`: there is no memory.
    ///
    /// # Panics
    /// If the loan is of another length than was said when it was lent.
    pub(in crate::peer) fn keep(&mut self, loan: &Loan<'_>, pool: &mut Pool) -> bool {
        let Some(slot) = self.lent_slot(loan) else {
            return true;
        };
        let outgoing = &mut self.messages[slot as usize];
        let (message, size) = (loan.message(), outgoing.fragment_bytes as usize);
        assert_eq!(message.len(), outgoing.length_bytes, "another message");
        let kept_bytes = match &mut outgoing.lending {
            // It may leave in fragments of another size, if it waits for a session.
            Some(lending) if outgoing.next_fragment == 0 => {
                let Some(mut body) = pool.take(message.len()) else {
                    return false;
                };
                body.extend_from_slice(message);
                pool.put(core::mem::replace(&mut outgoing.body, body));
                lending.end();
                self.spare_lending = outgoing.lending.take();
                message.len()
            }
            Some(lending) => {
                let (fragments, bitmap) = (outgoing.fragments, &outgoing.bitmap);
                match lending.keep(message, size, fragments, bitmap, pool) {
                    Some(bytes) => bytes,
                    None => return false,
                }
            }
            None => 0,
        };
        self.queued_bytes += kept_bytes;
        self.lent = Lent::No;
        true
    }

    /// Forgets the message that is lent; `false`: some of it has left, or it is not lent.
    pub(in crate::peer) fn withdraw(&mut self, loan: &Loan<'_>) -> bool {
        let Some(slot) = self.lent_slot(loan) else {
            return false;
        };
        let outgoing = &mut self.messages[slot as usize];
        if outgoing.next_fragment > 0 {
            return false;
        }
        let priority = usize::from(outgoing.lane.priority().get());
        self.pending[priority].retain(|&pending| pending != slot);
        if self.pending[priority].is_empty() {
            self.pending_mask &= !(1 << priority);
        }
        self.backlog -= 1;
        self.queued_messages -= 1;
        outgoing.live = false;
        if let Some(mut lending) = outgoing.lending.take() {
            lending.end();
            self.spare_lending = Some(lending);
        }
        self.free.push(slot);
        (self.lent, self.choice) = (Lent::No, None);
        true
    }
}
