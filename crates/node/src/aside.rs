//! Messages and shares of libraries above an endpoint (collectives), kept apart from the program's own.
//!
//! They travel on [`ASIDE_CHANNEL`] and [`ASIDE_PORT`], which programs cannot send on. Calls that know nothing of them put them
//! on the [`Shelf`]; `Endpoint::progress_aside` and `wait_aside` give them to the library, and meanwhile keep what is the
//! program's in its inbox. So neither ever takes what is the other's.
//!
//! Invariant: messages on the shelf stay charged to the endpoint's budget; shares are bounded by the limits below.

use std::collections::VecDeque;

use tsumuji_proto::{Body, Delivery, Engine, Event, Lane, NodeId, Share};

use crate::drive::Intake;
use crate::inbox::Inbox;
use crate::peers::Peers;

/// The channel, in every class and priority, on which libraries above an endpoint speak.
pub const ASIDE_CHANNEL: u16 = Lane::LIBRARY_CHANNEL;

/// The port of their shares.
pub const ASIDE_PORT: u16 = u16::MAX;

/// Shares kept; of more, the newest are dropped, as a full link would.
const SHARES_LIMIT: usize = 1024;

/// Their bytes.
const SHARE_BYTES_LIMIT: usize = 4 << 20;

/// Takes what arrives for a library above an endpoint, on the polling thread, in order of arrival.
pub trait Aside {
    /// A message on [`ASIDE_CHANNEL`]; counted as consumed when the call returns.
    ///
    /// Its `life` is what `Endpoint::deaths` said, or would have said, while its sender lived: it may be more than what that says now,
    /// where the sender died and was back within the turn, and less, where it has died since.
    fn message(&mut self, delivery: Delivery<'_>);
    /// A best-effort frame for [`ASIDE_PORT`], of that life of its source.
    fn share(&mut self, life: u64, share: Share<'_>);
}

/// See the head of this module.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    messages: VecDeque<StoredMessage>,
    shares: VecDeque<StoredShare>,
    share_bytes: usize,
}

#[derive(Debug)]
struct StoredMessage {
    from: NodeId,
    life: u64,
    lane: Lane,
    body: Vec<u8>,
}

#[derive(Debug)]
struct StoredShare {
    source: NodeId,
    life: u64,
    incarnation: u32,
    epoch: u32,
    lap: u32,
    start: u32,
    payload: Vec<u8>,
}

impl Shelf {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.shares.is_empty()
    }

    #[cold]
    pub(crate) fn keep(&mut self, delivery: Delivery<'_>) {
        let body = match delivery.body {
            Body::Frame(bytes) => bytes.to_vec(),
            Body::Whole(bytes) => std::mem::take(bytes),
        };
        self.messages.push_back(StoredMessage {
            from: delivery.from,
            life: delivery.life,
            lane: delivery.lane,
            body,
        });
    }

    #[cold]
    pub(crate) fn keep_share(&mut self, life: u64, share: &Share<'_>) {
        let bytes = self.share_bytes + share.payload.len();
        if self.shares.len() >= SHARES_LIMIT || bytes > SHARE_BYTES_LIMIT {
            return;
        }
        self.share_bytes = bytes;
        self.shares.push_back(StoredShare {
            source: share.source,
            life,
            incarnation: share.incarnation,
            epoch: share.epoch,
            lap: share.lap,
            start: share.start,
            payload: share.payload.to_vec(),
        });
    }

    /// Gives all to `aside`; returns how much that was.
    #[cold]
    pub(crate) fn hand_over(&mut self, engine: &mut Engine, aside: &mut impl Aside) -> usize {
        let count = self.messages.len() + self.shares.len();
        for message in self.messages.drain(..) {
            let StoredMessage {
                from,
                life,
                lane,
                mut body,
            } = message;
            let bytes = body.len();
            aside.message(Delivery {
                from,
                life,
                lane,
                body: Body::Whole(&mut body),
            });
            engine.recycle(body);
            engine.release(from, bytes);
        }
        for stored in self.shares.drain(..) {
            let share = Share {
                source: stored.source,
                incarnation: stored.incarnation,
                port: ASIDE_PORT,
                epoch: stored.epoch,
                lap: stored.lap,
                start: stored.start,
                payload: &stored.payload,
            };
            aside.share(stored.life, share);
        }
        self.share_bytes = 0;
        count
    }
}

/// Intake of `progress_aside`: the library's to the library, the program's into its inbox.
pub(crate) struct ToAside<'a, A> {
    pub(crate) aside: &'a mut A,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) peers: &'a mut Peers,
}

impl<A: Aside> Intake for ToAside<'_, A> {
    #[inline]
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        if delivery.lane.channel() != ASIDE_CHANNEL {
            return self.inbox.message(delivery);
        }
        self.aside.message(delivery);
        true
    }

    #[inline]
    fn share(&mut self, life: u64, share: Share<'_>) {
        if share.port == ASIDE_PORT {
            self.aside.share(life, share);
        } else {
            self.inbox.share(life, share);
        }
    }

    fn event(&mut self, event: &Event) {
        self.peers.note(event);
        self.inbox.event(event);
    }

    fn dropped_shares(&self) -> u64 {
        self.inbox.dropped_shares
    }
}
