//! The sending half of an operation's transfers: on credit, in pieces once opened, or read by the receiver in this process.

use tsumuji_node::{Endpoint, NodeId, Priority, SendError};
use zerocopy::IntoBytes;

use super::{Failure, Operation, State};
use crate::error::CollectiveError;
use crate::header::Kind;
use crate::ledger::{Control, Ledger, send_now};
use crate::plan::Step;
use crate::tuning::TUNING;

impl Operation<'_> {
    /// Sends what is possible of a transfer; returns whether that finished it.
    pub(super) fn send(
        &mut self,
        number: usize,
        step: Step,
        to: NodeId,
        endpoint: &mut Endpoint,
        ledger: &mut Ledger,
    ) -> Result<bool, CollectiveError> {
        if !self.may_begin(&step) {
            return Ok(false);
        }
        let len = step.place.len;
        // Bytes that are read directly may be invalid until they are confirmed.
        let there = step.follows.map_or(len, |receive| {
            let from = self.states[receive as usize];
            if from.direct && !from.done {
                0
            } else {
                from.progress
            }
        });
        if len <= ledger.eager_bytes {
            return self.send_eagerly(number, step, there, to, endpoint, ledger);
        }
        let state = self.states[number];
        if !state.open {
            return Ok(false);
        }
        if state.direct {
            if there == len && !state.told {
                self.tell_where(number, &step, to, ledger);
            }
            return Ok(false);
        }
        let piece = ledger.piece_bytes(self.unit, len, self.streams);
        let mut sent = state.progress;
        while sent < there {
            let bytes = piece.min(len - sent);
            let queued = endpoint.queued_bytes(to);
            if there - sent < bytes
                || queued > 0 && queued + bytes > TUNING.long.feed_bytes
                || !self.send_piece(Kind::Piece, &step, sent, bytes, to, endpoint)?
            {
                break;
            }
            sent += bytes;
        }
        self.states[number].progress = sent;
        if sent == len {
            self.finish(number);
        }
        Ok(sent == len)
    }

    /// Sends available bytes of a transfer on credit; without credit it asks the receiver to open the transfer. Pieces of an open transfer need no
    /// credit, and the receiver grants none for them.
    fn send_eagerly(
        &mut self,
        number: usize,
        step: Step,
        there: usize,
        to: NodeId,
        endpoint: &mut Endpoint,
        ledger: &mut Ledger,
    ) -> Result<bool, CollectiveError> {
        let len = step.place.len;
        let piece = ledger.piece_bytes(self.unit, len, self.streams);
        loop {
            let State {
                progress: sent,
                open,
                asked,
                ..
            } = self.states[number];
            let bytes = piece.min(len - sent);
            if there - sent < bytes {
                return Ok(false);
            }
            let paid = !open && ledger.take_credit(to, bytes);
            if !open && !paid {
                if !asked {
                    self.states[number].asked = true;
                    ledger.control(to, self.header(Kind::Ask, &step, 0));
                }
                return Ok(false);
            }
            let kind = if paid { Kind::Eager } else { Kind::Piece };
            if !self.send_piece(kind, &step, sent, bytes, to, endpoint)? {
                if paid {
                    ledger.give_back(to, bytes);
                }
                return Ok(false);
            }
            self.states[number].progress = sent + bytes;
            if sent + bytes == len {
                self.finish(number);
                return Ok(true);
            }
        }
    }

    /// Tells the receiver the address of a transfer that is complete here.
    fn tell_where(&mut self, number: usize, step: &Step, to: NodeId, ledger: &mut Ledger) {
        let Some(identity) = &ledger.identity else {
            return;
        };
        let body = identity.words().as_bytes().to_vec();
        let address = self.slice(step.place).as_ptr().expose_provenance();
        self.states[number].told = true;
        let header = self.header(Kind::Direct, step, address);
        ledger.outbox.push_back(Control { to, header, body });
    }

    fn send_piece(
        &mut self,
        kind: Kind,
        step: &Step,
        offset: usize,
        bytes: usize,
        to: NodeId,
        endpoint: &mut Endpoint,
    ) -> Result<bool, CollectiveError> {
        let head = self.header(kind, step, offset).to_bytes();
        let body = &self.slice(step.place)[offset..offset + bytes];
        match send_now(endpoint, to, Priority::NORMAL, &head, body) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock { .. }) => Ok(false),
            Err(SendError::PeerDead { peer }) => {
                self.failure = Some(Failure::Dead(peer));
                Ok(false)
            }
            // It was opened with another limit of messages.
            Err(SendError::TooLarge { peer, .. }) => {
                self.failure = Some(Failure::Mismatch(peer));
                Ok(false)
            }
            Err(error) => Err(CollectiveError::Send(error)),
        }
    }
}
