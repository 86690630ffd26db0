//! Connects a board to an endpoint: received datagrams into the copy, frames of the copy out, and waiting for freshness.
//!
//! A program that polls with a handler of its own calls [`Board::apply`] itself and needs none of this.

use crate::{Board, Carrier, Lap};
use std::time::{Duration, Instant};
use tsumuji_node::{
    Context, Datagram, Delivery, Destination, Endpoint, EndpointError, Handler, NOW_OR_NEVER,
    NodeId, RemoteFlow, SendError, SendId,
};

/// Sends a board's frames: to several readers by one broadcast, where one frame reaches all.
impl Carrier for Endpoint {
    type Error = SendError;

    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, SendError> {
        if readers.len() > 1 && self.broadcasts() {
            return self.datagram(Destination::Broadcast, update, NOW_OR_NEVER);
        }
        let mut refused = 0;
        for reader in readers {
            refused += self.datagram(Destination::Peer(*reader), update, NOW_OR_NEVER)?;
        }
        Ok(refused)
    }
}

/// A handler that passes a board's datagrams to it and everything else to another handler.
#[derive(Debug)]
pub struct Feeding<'a, H> {
    /// Takes the datagrams of its channel.
    pub board: &'a mut Board,
    /// Takes everything else.
    pub rest: &'a mut H,
}

impl<H: Handler> Handler for Feeding<'_, H> {
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
        self.rest.message(context, delivery);
    }

    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        if [self.board.channel(), self.board.packed_channel()].contains(&datagram.channel_id) {
            self.board.apply(&datagram);
        } else {
            self.rest.datagram(context, datagram);
        }
    }

    fn peer_up(&mut self, peer: NodeId) {
        self.rest.peer_up(peer);
    }

    /// The next incarnation of a dead owner begins anew.
    fn peer_dead(&mut self, peer: NodeId, failed_messages: usize) {
        self.board.forget(peer);
        self.rest.peer_dead(peer, failed_messages);
    }

    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        self.rest.writable(peer, channel_id);
    }

    fn sent(&mut self, peer: NodeId, id: SendId) {
        self.rest.sent(peer, id);
    }

    fn refused(&mut self, peer: NodeId, id: SendId, why: &SendError) {
        self.rest.refused(peer, id, why);
    }

    fn flows(&mut self, node: NodeId, flows: &[RemoteFlow], next: Option<NodeId>) {
        self.rest.flows(node, flows, next);
    }
}

/// Polls until every element of `source` is of `lap` or newer; `false`: not within `timeout`. All else that arrives goes to `rest`. A source that
/// owns nothing is never fresh.
pub fn wait_fresh<H: Handler>(
    board: &mut Board,
    endpoint: &mut Endpoint,
    rest: &mut H,
    source: NodeId,
    lap: Lap,
    timeout: Duration,
) -> Result<bool, EndpointError> {
    let began = Instant::now();
    loop {
        // The newest lap heard of is checked first: it costs nothing.
        let may_be = board
            .lap(source)
            .is_some_and(|heard| !lap.is_newer_than(heard));
        if may_be
            && board
                .oldest(source)
                .is_some_and(|oldest| !lap.is_newer_than(oldest))
        {
            return Ok(true);
        }
        let left = timeout.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        endpoint.poll_wait(&mut Feeding { board, rest }, left)?;
    }
}
