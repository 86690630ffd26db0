//! Effects of control messages: which channels are stopped, who is told that it may send again, and answers about flows.
//!
//! Part of `channel`, which calls it with each message of the control channel, and when a session ends.
//!
//! Invariant: a control message holds for the session in which it was sent.

use tsumuji_proto::{Channel, NodeId};

use super::control::{self, Control};
use super::outbox::Way;
use super::statistics::{RemoteFlow, Request};
use super::{Channels, Notice, lose};
use crate::handler::Handler;
use crate::peers::Peers;

/// If so many control messages wait for a peer with a full queue, its flow requests get no answer: it may ask without reading.
const ANSWERS_HELD: usize = 64;

impl Channels {
    /// There is room in the queue to `peer`: tells those whose `try_send` was refused.
    pub(super) fn tell_writable(&mut self, peer: NodeId, mut program: Option<&mut dyn Handler>) {
        let wanted = self.wants.range((peer, 0)..=(peer, u16::MAX));
        let wanted: Vec<u16> = wanted.map(|(_, channel_id)| *channel_id).collect();
        for channel_id in wanted {
            if self.is_stopped(peer, channel_id) {
                continue;
            }
            self.wants.remove(&(peer, channel_id));
            let owner = self
                .opened
                .get_mut(&channel_id)
                .and_then(|entry| entry.handler.as_mut());
            match (owner, &mut program) {
                (Some(handler), _) => handler.writable(peer, channel_id),
                (None, Some(handler)) => handler.writable(peer, channel_id),
                (None, None) => self.put_notice(Notice::Writable(peer, channel_id)),
            }
        }
    }

    /// Ends the session with `peer`.
    pub(super) fn forget(&mut self, peer: NodeId, peers: &mut Peers) {
        let ended_sessions = peers.ended_sessions(peer);
        self.statistics.forget(peer, ended_sessions);
        // Stops of its next session stay.
        (self.stops).retain(|(whose, _), session| *whose != peer || *session >= ended_sessions);
        for entry in self.opened.values_mut() {
            if (entry.stopped.get(&peer)).is_some_and(|session| *session < ended_sessions) {
                entry.stopped.remove(&peer);
                // The stop may have gone to its next incarnation.
                let go = Control::Go(entry.ledger.channel_id).to_bytes();
                self.tools.outbox.put_control(peer, control::CHANNEL, &go);
            }
        }
        self.tools
            .outbox
            .abort(peer, |to, channel| lose(peers, to, channel));
    }

    /// Handles a message of the control channel.
    pub(super) fn control(&mut self, from: NodeId, session: u64, bytes: &[u8]) {
        match Control::parse(bytes) {
            // The control channel itself cannot be stopped: its messages would wait here for ever.
            Some(Control::Stop(Channel::CONTROL_ID) | Control::Go(Channel::CONTROL_ID)) => {}
            Some(Control::Stop(channel_id)) => drop(self.stops.insert((from, channel_id), session)),
            Some(Control::Go(channel_id)) => {
                self.stops.remove(&(from, channel_id));
                self.tools.outbox.try_again(from);
                self.tell_writable(from, None);
            }
            None if self.members.hear(from, bytes) => {}
            None => {
                if let Some(answer) = self.statistics.take((from, session), bytes) {
                    self.put_notice(Notice::Flows(from, answer));
                }
            }
        }
    }

    /// Whether the peer has stopped that channel.
    #[inline]
    pub(crate) fn is_stopped(&self, peer: NodeId, channel_id: u16) -> bool {
        !self.stops.is_empty() && self.stops.contains_key(&(peer, channel_id))
    }

    /// A `try_send` was refused: the channel's handler is told when it may be tried again.
    pub(crate) fn want(&mut self, peer: NodeId, channel_id: u16) {
        if channel_id < Channel::LIBRARY_IDS || self.has_mailbox(channel_id).is_err() {
            self.wants.insert((peer, channel_id));
        }
    }

    /// Asks `node` for its flows with peers of id `first` and above. `waits`: the calling program waits for the response.
    pub(crate) fn request_flows(&mut self, node: NodeId, first: NodeId, most: u16, waits: bool) {
        let request = self.statistics.ask(node, first, most, waits);
        self.tools
            .outbox
            .put_control(node, control::CHANNEL, &request);
    }

    /// Answers a request for flows.
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
        self.tools
            .outbox
            .put_control(to, control::CHANNEL, &response);
        1
    }
}
