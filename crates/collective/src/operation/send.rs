//! The sending half of an operation's transfers: on credit, in pieces once they are opened, or by telling the receiver where to read.

use tsumuji_node::{Endpoint, Link, NodeId, Priority, SendError};
use zerocopy::IntoBytes;

use super::{Failure, Operation};
use crate::error::CollectiveError;
use crate::header::Kind;
use crate::plan::Step;
use crate::wires::{Control, EAGER_BYTES, FEED_BYTES, Wires};

impl Operation<'_> {
    /// Sends what may be sent of a transfer; whether that finished it.
    pub(super) fn send<L: Link>(
        &mut self,
        number: usize,
        step: Step,
        to: NodeId,
        endpoint: &mut Endpoint<L>,
        wires: &mut Wires,
    ) -> Result<bool, CollectiveError> {
        if !self.may_begin(&step) {
            return Ok(false);
        }
        let len = step.place.len;
        // What is read directly is not known to be sound before it is confirmed.
        let there = step.follows.map_or(len, |receive| {
            let from = self.states[receive as usize];
            if from.direct && !from.done {
                0
            } else {
                from.progress
            }
        });
        let state = self.states[number];
        if len <= EAGER_BYTES {
            let ready = there == len;
            let paid = ready && !state.open && wires.take_credit(to, len);
            if ready && !state.open && !paid {
                if !state.asked {
                    self.states[number].asked = true;
                    wires.control(to, self.header(Kind::Ask, &step, 0));
                }
                return Ok(false);
            }
            if !ready {
                return Ok(false);
            }
            // Opened by its receiver it needs no credit, and is paid back by nobody.
            let kind = if paid { Kind::Eager } else { Kind::Piece };
            let sent = self.send_piece(kind, &step, 0, len, to, endpoint)?;
            if sent {
                self.finish(number);
            } else if paid {
                wires.give_back(to, len);
            }
            return Ok(sent);
        }
        if !state.open {
            return Ok(false);
        }
        if state.direct {
            if there == len && !state.told {
                self.tell_where(number, &step, to, wires);
            }
            return Ok(false);
        }
        let piece = wires.piece_bytes(self.unit);
        let mut sent = state.progress;
        while sent < there {
            let bytes = piece.min(len - sent);
            let queued = endpoint.queued_bytes(to);
            if there - sent < bytes
                || queued >= FEED_BYTES
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

    /// The whole of a transfer is here: its receiver may read it.
    fn tell_where(&mut self, number: usize, step: &Step, to: NodeId, wires: &mut Wires) {
        let Some(identity) = &wires.identity else {
            return;
        };
        let body = identity.words().as_bytes().to_vec();
        let address = self.slice(step.place).as_ptr().expose_provenance();
        self.states[number].told = true;
        let header = self.header(Kind::Direct, step, address);
        wires.outbox.push_back(Control { to, header, body });
    }

    fn send_piece<L: Link>(
        &mut self,
        kind: Kind,
        step: &Step,
        offset: usize,
        bytes: usize,
        to: NodeId,
        endpoint: &mut Endpoint<L>,
    ) -> Result<bool, CollectiveError> {
        let head = self.header(kind, step, offset).to_bytes();
        let body = &self.slice(step.place)[offset..offset + bytes];
        match endpoint.try_send_aside(to, Priority::NORMAL, &head, body) {
            Ok(()) => Ok(true),
            Err(SendError::WouldBlock { .. }) => Ok(false),
            Err(SendError::PeerDead { peer }) => {
                self.failure = Some(Failure::Dead(peer));
                Ok(false)
            }
            Err(error) => Err(CollectiveError::Send(error)),
        }
    }
}
