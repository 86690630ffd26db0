//! What endpoints have said to each other of their channels and flows, and what follows from it: who waits, and who may go on.
//!
//! Part of `channel`, which calls it with each message of the control channel, and when a session ends.
//!
//! Invariant: a word holds for the session with the peer that gave it.

use tsumuji_proto::{Lane, NodeId};

use super::control::{self, Control};
use super::outbox::Way;
use super::statistics::{RemoteFlow, Request};
use super::{Channels, Notice, lose};
use crate::handler::{Handler, Nobody};
use crate::peers::Peers;

/// A peer for which so many control messages wait, its queue being full, gets no answer about flows: it may ask without taking any.
const ANSWERS_HELD: usize = 64;

impl Channels {
    /// There is room in the queue to `peer`.
    pub(super) fn tell_writable(&mut self, peer: NodeId, mut program: Option<&mut impl Handler>) {
        let wanted = self.wants.range((peer, 0)..=(peer, u16::MAX));
        let wanted: Vec<u16> = wanted.map(|(_, channel)| *channel).collect();
        for channel in wanted {
            if self.is_stopped(peer, channel) {
                continue;
            }
            self.wants.remove(&(peer, channel));
            let owner = self
                .opened
                .get_mut(&channel)
                .and_then(|channel| channel.handler.as_mut());
            match (owner, &mut program) {
                (Some(handler), _) => handler.writable(peer, channel),
                (None, Some(handler)) => handler.writable(peer, channel),
                (None, None) => self.put_notice(Notice::Writable(peer, channel)),
            }
        }
    }

    /// A session with `peer` is over.
    pub(super) fn forget(&mut self, peer: NodeId, peers: &mut Peers) {
        let deaths = peers.deaths(peer);
        self.statistics.forget(peer, deaths);
        // What a later life of it has said already stays.
        (self.stops).retain(|(whose, _), life| *whose != peer || *life >= deaths);
        for channel in self.opened.values_mut() {
            if (channel.stopped.get(&peer)).is_some_and(|life| *life < deaths) {
                channel.stopped.remove(&peer);
                // The word may have gone to its next life.
                let go = Control::Go(channel.books.channel).to_bytes();
                self.tools.outbox.put_control(peer, control::LANE, &go);
            }
        }
        self.tools
            .outbox
            .give_up(peer, |to, lane| lose(peers, to, lane));
    }

    /// An endpoint speaks of its channels.
    pub(super) fn control(&mut self, from: NodeId, life: u64, bytes: &[u8]) {
        match Control::parse(bytes) {
            // Nobody stops what endpoints say to each other: it would wait here for ever.
            Some(Control::Stop(Lane::CONTROL_CHANNEL) | Control::Go(Lane::CONTROL_CHANNEL)) => {}
            Some(Control::Stop(channel)) => drop(self.stops.insert((from, channel), life)),
            Some(Control::Go(channel)) => {
                self.stops.remove(&(from, channel));
                self.tools.outbox.try_again(from);
                self.tell_writable(from, None::<&mut Nobody>);
            }
            None => {
                if let Some(answer) = self.statistics.take((from, life), bytes) {
                    self.put_notice(Notice::Flows(from, answer));
                }
            }
        }
    }

    /// The peer wants nothing on that channel for now.
    #[inline]
    pub(crate) fn is_stopped(&self, peer: NodeId, channel: u16) -> bool {
        !self.stops.is_empty() && self.stops.contains_key(&(peer, channel))
    }

    /// A `try_send` was refused: its channel's owner is told when it may be tried again.
    pub(crate) fn want(&mut self, peer: NodeId, channel: u16) {
        if channel < Lane::LIBRARY_CHANNELS || self.has_mailbox(channel).is_err() {
            self.wants.insert((peer, channel));
        }
    }

    /// Asks `node` for its flows with peers of id `first` and above. `waits`: the calling program waits for the response.
    pub(crate) fn ask_flows(&mut self, node: NodeId, first: NodeId, most: u16, waits: bool) {
        let request = self.statistics.ask(node, first, most, waits);
        self.tools.outbox.put_control(node, control::LANE, &request);
    }

    /// A peer is told of flows.
    #[cold]
    pub(super) fn answer(
        &mut self,
        to: NodeId,
        request: Request,
        way: &mut impl Way,
        peers: &Peers,
    ) -> usize {
        if self.tools.outbox.controls_to(to) > ANSWERS_HELD {
            return 0;
        }
        let ids = (request.first.0..=u16::MAX).take_while(|id| peers.knows(NodeId(*id)));
        let flows = ids.filter_map(|id| {
            let peer = NodeId(id);
            let up = peers.is_up(peer);
            let flow = way.flow(peer)?;
            Some(RemoteFlow { peer, up, flow })
        });
        let response = request.answer(flows);
        self.tools.outbox.put_control(to, control::LANE, &response);
        1
    }
}
