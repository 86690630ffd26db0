//! One channel: its waiting messages, its ledger, and the peers that it has stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use tsumuji_proto::{Delivery, NodeId};

use super::Tools;
use super::control::{self, Control};
use super::ledger::Ledger;
use super::mailbox::{Charge, Keeps, Mailbox, Stash, Stored};
use super::outbox::Outbox;
use crate::executor::Shared;
use crate::handler::Handler;

/// Datagrams kept for a library that has not opened its channel, and their bytes: peers can fill at most 256 such channels.
const EARLY_DATAGRAMS: usize = 1024;
const EARLY_DATAGRAM_BYTES: usize = 256 << 10;

/// Options of an opened channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelOptions {
    /// Bytes for messages that arrived on it and were not taken, or are kept, with 64 for each message; apart from the endpoint's `budget_bytes`.
    /// Peers stop when half is used. At least 1.
    pub budget_bytes: usize,
    /// Keep every waiting datagram, not only the newest of each source and key.
    pub all_datagrams: bool,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            budget_bytes: 4 << 20,
            all_datagrams: false,
        }
    }
}

/// State of an opened channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ChannelState {
    /// Messages that arrived and were not taken.
    pub messages: usize,
    /// Bytes of these and of kept messages, with 64 for each.
    pub used_bytes: usize,
    /// Budget in bytes, as set in `ChannelOptions` or later.
    pub budget_bytes: usize,
    /// Peers that were told to stop sending on it and not yet to go on.
    pub stopped_peers: usize,
}

/// One channel, or all that nobody opened.
pub(super) struct OpenChannel {
    pub(super) ledger: Ledger,
    pub(super) mailbox: Mailbox,
    pub(super) stash: Stash,
    /// Peers that were told to stop, and in which session.
    pub(super) stopped: BTreeMap<NodeId, u64>,
    pub(super) handler: Option<Box<dyn Handler + Send>>,
    /// State of the handler's executor, if it has one.
    pub(super) executor: Option<Arc<Shared>>,
    /// `false`: it only stores early arrivals, for a library that is still to open it.
    pub(super) is_open: bool,
}

impl std::fmt::Debug for OpenChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenChannel")
            .field("ledger", &self.ledger)
            .field("messages", &self.mailbox.messages())
            .field("stopped", &self.stopped)
            .finish_non_exhaustive()
    }
}

impl OpenChannel {
    pub(super) fn new(ledger: Ledger, keeps: Keeps) -> Self {
        Self {
            ledger,
            mailbox: Mailbox::default(),
            stash: Stash::new(keeps),
            stopped: BTreeMap::new(),
            handler: None,
            executor: None,
            is_open: true,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.mailbox.is_empty() && self.stash.is_empty()
    }

    /// Delivers a message. `charged`: its charge, if it is in the ledger already.
    pub(super) fn deliver(
        ledger: &mut Ledger,
        tools: &mut Tools,
        handler: &mut dyn Handler,
        charged: Option<Charge>,
        delivery: Delivery<'_>,
    ) -> Delivered {
        let mut context = tools.context(ledger);
        context.charged = charged;
        context.source = (delivery.from, delivery.channel);
        context.bytes = delivery.body.bytes().len();
        handler.message(&mut context, delivery);
        Delivered {
            is_kept: context.is_kept,
            charge: context.charged,
        }
    }

    /// Stores a message in the mailbox.
    pub(super) fn store(&mut self, tools: &mut Tools, delivery: Delivery<'_>) -> Charge {
        let session = delivery.session;
        let (from, bytes) = (delivery.from, delivery.body.bytes().len());
        let charge = tools.overdrafts.charge(&mut self.ledger, from, bytes);
        let message = tools.buffers.message(delivery);
        self.mailbox.push(Stored {
            message,
            session,
            charge,
        });
        charge
    }

    /// Tells a peer whose message was stored to stop, if too much waits.
    pub(super) fn press(&mut self, outbox: &mut Outbox, from: NodeId, session: u64) {
        if self.ledger.is_pressed() && self.stopped.insert(from, session) != Some(session) {
            let stop = Control::Stop(self.ledger.channel_id);
            outbox.put_control(from, control::CHANNEL, &stop.to_bytes());
        }
    }

    /// Tells peers to go on, if little is left.
    pub(super) fn lift_backpressure(&mut self, outbox: &mut Outbox) {
        // Kept messages may be needed until others arrive.
        if self.ledger.has_space() || self.mailbox.is_empty() && !self.ledger.is_pressed() {
            self.let_go(outbox);
        }
    }

    pub(super) fn let_go(&mut self, outbox: &mut Outbox) {
        for peer in std::mem::take(&mut self.stopped).into_keys() {
            let go = Control::Go(self.ledger.channel_id);
            outbox.put_control(peer, control::CHANNEL, &go.to_bytes());
        }
    }
}

/// Result of a delivery.
pub(super) struct Delivered {
    pub(super) is_kept: bool,
    pub(super) charge: Option<Charge>,
}

/// A channel for arrivals before a library has opened it.
pub(super) fn early(number: u16) -> OpenChannel {
    let mut entry = OpenChannel::new(Ledger::new(number, 0, 0), Keeps::All);
    entry.stash.limit(EARLY_DATAGRAMS, EARLY_DATAGRAM_BYTES);
    entry.is_open = false;
    entry
}
