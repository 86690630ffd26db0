//! Handlers: functions that the driving thread calls with arriving messages, datagrams and notices, and what they may do.

use std::sync::Arc;

use tsumuji_proto::{Channel, Datagram, Delivery, Event, NodeId, SendId};

use crate::channel::RemoteFlow;
use crate::channel::ledger::{Ledger, Overdrafts};
use crate::channel::mailbox::{Buffers, Charge, Message};
use crate::channel::outbox::Outbox;
use crate::channel::retained::{Charged, Retained, Returns};
use crate::error::SendError;

/// Receives what arrives, in order of arrival. Given to `Endpoint::poll`, which calls it on the polling thread, or to `Endpoint::open_with`, as the
/// handler of a channel.
pub trait Handler {
    /// A message arrived; it counts as consumed when the call returns, unless it is kept.
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>);

    /// A datagram arrived.
    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        let _ = (context, datagram);
    }

    /// Hello was exchanged with this peer (again, after it was dead or restarted).
    fn peer_up(&mut self, peer: NodeId) {
        let _ = peer;
    }

    /// The peer died, left or restarted; `failed_messages` messages to it have failed.
    fn peer_dead(&mut self, peer: NodeId, failed_messages: usize) {
        let _ = (peer, failed_messages);
    }

    /// A `try_send` to that peer and channel that returned [`SendError::WouldBlock`] may be tried again. Calls the channel's handler, or the one that
    /// the program polls with.
    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        let _ = (peer, channel_id);
    }

    /// A message sent before the peer had announced its limit was dropped as too large; `why` names the limit.
    fn refused(&mut self, peer: NodeId, id: SendId, why: &SendError) {
        let _ = (peer, id, why);
    }

    /// The answer to `Endpoint::request_flows`; `next`: the peer from which on there are more.
    fn flows(&mut self, node: NodeId, flows: &[RemoteFlow], next: Option<NodeId>) {
        let _ = (node, flows, next);
    }

    /// A message of `send_tracked` was acknowledged whole.
    fn sent(&mut self, peer: NodeId, id: SendId) {
        let _ = (peer, id);
    }
}

/// Actions of a handler during a call: send, reply, and keep the message.
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) outbox: &'a mut Outbox,
    pub(crate) returns: &'a Arc<Returns>,
    pub(crate) buffers: &'a mut Buffers,
    /// Ledger of the channel.
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) overdrafts: &'a mut Overdrafts,
    /// Session number of the source, as in `Delivery`.
    pub(crate) sender_session: u64,
    /// The charge of the present message, if it is in the ledger already.
    pub(crate) charged: Option<Charge>,
    /// The message was kept.
    pub(crate) is_kept: bool,
    /// Source and channel of the present message, and its length.
    pub(crate) source: (NodeId, Channel),
    pub(crate) bytes: usize,
}

impl Context<'_> {
    /// Sends a copy of `message` at the end of the poll. [`SendError::WouldBlock`]: messages of handlers that have not left yet take as much as
    /// `Options::send_queue_bytes` allows.
    pub fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError> {
        if channel.is_library() && channel.id() != self.ledger.channel_id {
            let channel_id = channel.id();
            return Err(SendError::ReservedChannel { channel_id });
        }
        self.outbox.put(to, channel, message)
    }

    /// Sends a copy of `message` to the source of the present one, on its channel; for a datagram, on the ordered channel of the same id.
    pub fn reply(&mut self, message: &[u8]) -> Result<(), SendError> {
        let (to, channel) = self.source;
        self.outbox.put(to, channel, message)
    }

    /// Keeps the message beyond the call. It counts against the channel's budget until it is dropped. A message of one frame is copied once, an
    /// assembled one is not.
    pub fn retain(&mut self, delivery: Delivery<'_>) -> Retained {
        let (from, _) = self.source;
        if std::mem::replace(&mut self.is_kept, true) {
            return Retained::free(self.buffers.message(delivery), self.returns); // the handler's own copy
        }
        let charge = (self.charged)
            .unwrap_or_else(|| (self.overdrafts).charge(self.ledger, from, self.bytes));
        self.charged = Some(charge);
        let Message {
            from,
            channel,
            body,
        } = self.buffers.message(delivery);
        let charged = Charged {
            from,
            channel,
            charge,
            bytes: self.bytes,
            generation: self.ledger.generation,
        };
        Retained::new(charged, body, self.returns)
    }

    /// The next call delivers this datagram.
    pub(crate) fn is_of(&mut self, session: u64, datagram: &Datagram<'_>) {
        self.sender_session = session;
        self.source = (datagram.source, Channel::ordered(datagram.channel_id));
    }

    /// Number of the source's session, as [`Delivery::session`].
    pub fn session(&self) -> u64 {
        self.sender_session
    }
}

/// Calls the handler's method for an event.
pub(crate) fn notify(handler: &mut dyn Handler, event: &Event) {
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
