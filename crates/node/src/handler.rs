//! What takes what arrives: functions that are called with borrowed frames by whoever drives the endpoint, and what they may do with it.

use std::sync::Arc;

use tsumuji_proto::{Channel, Datagram, Delivery, Event, NodeId, SendId};

use crate::channel::RemoteFlow;
use crate::channel::kept::{Kept, Returns};
use crate::channel::ledger::{Ledger, Overdrafts};
use crate::channel::mailbox::{Buffers, Charge, Message};
use crate::channel::outbox::Outbox;
use crate::error::SendError;

/// Takes what arrives, in order of arrival: given to `Endpoint::poll`, which calls it on the polling thread, or to
/// `Endpoint::open_with`, as a channel's owner.
pub trait Handler {
    /// A message; counted as consumed when the call returns, unless it is kept.
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>);

    /// A datagram.
    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        let _ = (context, datagram);
    }

    /// Hello was exchanged with this peer (again, after it was dead or restarted).
    fn peer_up(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// The peer died, left or restarted; so many messages to it have failed.
    fn peer_dead(&mut self, peer: NodeId, failed_messages: usize) {
        let _ = (peer, failed_messages);
    }

    /// A `try_send` to that peer and channel that said [`SendError::WouldBlock`] may be tried again. Told to the channel's owner, or to who
    /// polls where it has none.
    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        let _ = (peer, channel_id);
    }

    /// A message sent before the peer had said how much it takes was given up; `why` names the limit.
    fn refused(&mut self, peer: NodeId, id: SendId, why: &SendError) {
        let _ = (peer, id, why);
    }

    /// A node tells of its flows, as `Endpoint::ask_flows` asked; from `next` on there are more.
    fn flows(&mut self, node: NodeId, flows: &[RemoteFlow], next: Option<NodeId>) {
        let _ = (node, flows, next);
    }

    /// A message of `send_tracked` was acknowledged whole.
    fn sent(&mut self, peer: NodeId, id: SendId) {
        let _ = (peer, id);
    }
}

impl<H: Handler + ?Sized> Handler for Box<H> {
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
        (**self).message(context, delivery);
    }

    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        (**self).datagram(context, datagram);
    }

    fn peer_up(&mut self, peer: NodeId) {
        (**self).peer_up(peer);
    }

    fn peer_dead(&mut self, peer: NodeId, failed_messages: usize) {
        (**self).peer_dead(peer, failed_messages);
    }

    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        (**self).writable(peer, channel_id);
    }

    fn refused(&mut self, peer: NodeId, id: SendId, why: &SendError) {
        (**self).refused(peer, id, why);
    }

    fn flows(&mut self, node: NodeId, flows: &[RemoteFlow], next: Option<NodeId>) {
        (**self).flows(node, flows, next);
    }

    fn sent(&mut self, peer: NodeId, id: SendId) {
        (**self).sent(peer, id);
    }
}

/// What a handler may do while it is called: send, answer, and keep what it was given.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) returns: &'a Arc<Returns>,
    pub(crate) buffers: &'a mut Buffers,
    /// Of the channel.
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) overdrafts: &'a mut Overdrafts,
    /// Of a datagram's source, as in `Delivery`.
    pub(crate) sender_session: u64,
    /// The charge of the message that is being delivered, which is in the books by now; `None`: it is not.
    pub(crate) charged: Option<Charge>,
    /// The message was kept.
    pub(crate) is_kept: bool,
    /// Of the message that is being delivered, and its length.
    pub(crate) source: (NodeId, Channel),
    pub(crate) bytes: usize,
}

impl Context<'_> {
    /// Sends a copy of `message` when the turn ends. [`SendError::WouldBlock`]: what handlers sent, and what could not leave yet, takes
    /// as much as `Options::send_queue_bytes` allows.
    pub fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError> {
        if channel.is_library() && channel.id() != self.ledger.channel_id {
            let channel_id = channel.id();
            return Err(SendError::ReservedChannel { channel_id });
        }
        self.outbox.put(to, channel, message)
    }

    /// Sends a copy of `message` to whom the present one came from, by its channel; to a datagram, by the ordered channel of its channel.
    pub fn reply(&mut self, message: &[u8]) -> Result<(), SendError> {
        let (to, channel) = self.source;
        self.outbox.put(to, channel, message)
    }

    /// Keeps the message beyond the call. It counts against the channel's budget until it is dropped. One that came in a frame of its own
    /// is copied once, an assembled one is not.
    pub fn keep(&mut self, delivery: Delivery<'_>) -> Kept {
        let (from, _) = self.source;
        if std::mem::replace(&mut self.is_kept, true) {
            return Kept::free(self.buffers.message(delivery), self.returns); // made by the handler
        }
        let charge = (self.charged)
            .unwrap_or_else(|| (self.overdrafts).charge(self.ledger, from, self.bytes));
        self.charged = Some(charge);
        let message: Message = self.buffers.message(delivery);
        let charge = (charge, self.bytes);
        Kept::new(message, charge, self.ledger.generation, self.returns)
    }

    /// A datagram is delivered.
    pub(crate) fn is_of(&mut self, session: u64, datagram: &Datagram<'_>) {
        self.sender_session = session;
        self.source = (datagram.source, Channel::ordered(datagram.channel_id));
    }

    /// The number of the session that a datagram comes from, as [`Delivery::session`] of messages.
    pub fn session(&self) -> u64 {
        self.sender_session
    }
}

/// In the place of a handler where there is none.
pub(crate) struct Nobody;

impl Handler for Nobody {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
}

/// Tells a handler of an event.
pub(crate) fn notify(handler: &mut impl Handler, event: &Event) {
    match event {
        Event::PeerUp { peer, .. } => handler.peer_up(*peer),
        Event::PeerDead {
            peer,
            failed_messages,
        } => handler.peer_dead(*peer, *failed_messages),
        Event::Sent { peer, id } => handler.sent(*peer, *id),
        &Event::TooLarge {
            peer,
            id,
            size,
            limit,
        } => handler.refused(peer, id, &SendError::TooLarge { size, limit, peer }),
        _ => {}
    }
}
