//! What this node owes its peers and they owe it: credit for small messages, control messages that wait to be sent, counters.
//!
//! Used by `operation` and `collectives`. A sender may have `eager_window_bytes` of small messages on the way to a peer that the
//! peer's operations have not consumed; beyond that it asks first. So what a fast member sends ahead of a slow one is bounded:
//! to that many bytes for each pair.
//!
//! Invariants: every eager message is paid back exactly once, when it was consumed or dropped, unless its sender died meanwhile;
//! what was counted to one life of a peer changes nothing between us and its next. Each message is counted to the life that sent it, whether
//! it comes before its death is known, or after.

use std::collections::VecDeque;

use tsumuji_link::shm::{Identity, ProcessMemory};
use tsumuji_node::{Channel, DeliveryClass, Endpoint, Link, NodeId, Priority, SendError};

use crate::core::CHANNEL;
use crate::error::CollectiveError;
use crate::header::{HEADER_BYTES, Header, Kind};

/// Longest transfer that leaves without waiting for its receiver, where a link's frames cost little or long transfers are read where
/// their sender has them: they are received where they belong, and that is worth the message that opens them.
pub(crate) const EAGER_BYTES: usize = 8 << 10;

/// The same over shared memory, where it is one frame: a longer transfer is read where its sender has it, which costs a question and a confirmation.
const EAGER_ON_HOST_BYTES: usize = 24 << 10;

/// The same where a message between two costs as much as copying this: between hosts.
const EAGER_BETWEEN_HOSTS_BYTES: usize = 64 << 10;

/// Such transfers on their way to one member before the credit for them must travel back.
const EAGER_TRANSFERS: usize = 8;

/// What an eager message takes beside its payload.
const OVERHEAD_BYTES: usize = 64;

/// Credit of all peers together, so that a node's memory does not grow with the size of the cluster …
const EAGER_TOTAL_BYTES: usize = 32 << 20;

/// … as far as each still has enough to go on while credit travels back.
const EAGER_LEAST_BYTES: usize = 4 * (EAGER_BYTES + OVERHEAD_BYTES);
const EAGER_MOST_BYTES: usize = 512 << 10;

/// Bytes queued in the engine to one peer before the rest of a long transfer waits here: more would leave the caches.
pub(crate) const FEED_BYTES: usize = 256 << 10;

/// Control messages of one peer kept for operations that were not yet called here. More than a correct peer has under way.
pub(crate) const EARLY_CONTROLS: usize = 16 << 10;

/// Pieces of a long transfer are one frame where frames are at least this long, so that they are read where the link has them, and about
/// `PIECE_BYTES` elsewhere: enough to be passed on while more comes.
const LONG_FRAME_BYTES: usize = 8 << 10;
const PIECE_BYTES: usize = 32 << 10;

/// Pieces that are kept are at least so long, but for the last one of a transfer. What we send is longer, even of elements that do not
/// divide a piece.
pub(crate) const PIECE_BYTES_LEAST: usize = 2 << 10;

/// Over links that gather and scatter long messages: pieces of transfers of which nobody waits for a part. Only after its first frames is
/// a message scattered to where it belongs.
const LONG_PIECE_BYTES: usize = 256 << 10;
/// Such transfers are cut into so many pieces at least, if they are long enough: one is taken while the next one travels.
const LONG_PIECES: usize = 4;

/// What was counted since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CollectiveCounters {
    /// Operations begun.
    pub operations: u64,
    /// Messages of no legal form, or of nobody's group.
    pub malformed: u64,
    /// Messages for operations that were over.
    pub late: u64,
    /// Messages that came before their operation was called here, and were kept.
    pub early: u64,
    /// Messages dropped because their sender went beyond its credit.
    pub overrun: u64,
    /// Frames broadcast natively, repairs not counted.
    pub native_frames: u64,
    /// Frames broadcast again.
    pub native_repairs: u64,
    /// Pieces sent again reliably to one member.
    pub native_resent: u64,
    /// Transfers read where their sender had them.
    pub direct_reads: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PeerState {
    /// Which life of the peer all this is about: its deaths before.
    pub(crate) session: u64,
    /// Eager bytes sent that the peer has not paid back.
    on_the_way: usize,
    /// Eager bytes consumed here that the peer was not told of.
    pub(crate) owed: usize,
    /// Kept for operations that were not yet called here.
    pub(crate) early: Early,
    /// The same, sent by its life before.
    pub(crate) last_early: Early,
    /// Its memory.
    pub(crate) reads: Reads,
}

/// Whether a peer's memory can be read: where both are processes of one host, of which one may trace the other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Reads {
    #[default]
    Unknown,
    Yes(ProcessMemory),
    No,
}

/// What of one life is kept for operations that were not yet called here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Early {
    /// Of eager messages.
    pub(crate) bytes: usize,
    /// Control messages.
    pub(crate) controls: usize,
}

impl PeerState {
    /// What is kept of that life; `None`: it is neither the present one nor the last.
    fn early_of(&mut self, session: u64) -> Option<&mut Early> {
        if session == self.session {
            Some(&mut self.early)
        } else if session + 1 == self.session {
            Some(&mut self.last_early)
        } else {
            None
        }
    }
}

/// A small message that waits for room.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) to: NodeId,
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    /// By node id.
    pub(crate) peers: Vec<PeerState>,
    pub(crate) outbox: VecDeque<Control>,
    pub(crate) eager_window_bytes: usize,
    /// Longest transfer that leaves without waiting for its receiver; the same on all members.
    pub(crate) eager_bytes: usize,
    /// Payload of one piece of a long transfer,
    piece_bytes: usize,
    /// and at most. Nodes are taken to have the same limit for messages.
    piece_most_bytes: usize,
    /// The link takes long messages from where they lie to where they belong.
    gathers: bool,
    /// Where all nodes are processes of this host.
    pub(crate) identity: Option<Identity>,
    /// For what is read and then folded; empty before the first time.
    pub(crate) block: Vec<u8>,
    pub(crate) counters: CollectiveCounters,
}

/// What an eager message of `bytes` takes.
pub(crate) fn cost(bytes: usize) -> usize {
    bytes + OVERHEAD_BYTES
}

impl Ledger {
    pub(crate) fn new<L: Link>(endpoint: &Endpoint<L>) -> Self {
        let nodes = endpoint.members().len();
        let frame_bytes = endpoint.frame_message_bytes();
        // `packet` gathers, too, but has no scattering: there, pieces of one frame are read where the link has them.
        let gathers = endpoint.link_name() == "udp";
        let message_bytes = if frame_bytes >= LONG_FRAME_BYTES && !gathers {
            frame_bytes
        } else {
            PIECE_BYTES
        };
        let limit_bytes = endpoint.message_limit_bytes().max(PIECE_BYTES_LEAST);
        let eager_window_bytes =
            (EAGER_TOTAL_BYTES / nodes.max(1)).clamp(EAGER_LEAST_BYTES, EAGER_MOST_BYTES);
        let most = if endpoint.link_name() == "shm" {
            EAGER_ON_HOST_BYTES
        } else {
            EAGER_BETWEEN_HOSTS_BYTES
        };
        let eager_bytes = (eager_window_bytes / EAGER_TRANSFERS).clamp(EAGER_BYTES, most);
        Self {
            peers: endpoint
                .members()
                .iter()
                .map(|member| PeerState {
                    session: endpoint.ended_sessions(member.id),
                    ..PeerState::default()
                })
                .collect(),
            outbox: VecDeque::new(),
            eager_window_bytes,
            eager_bytes,
            piece_bytes: message_bytes.min(limit_bytes) - HEADER_BYTES,
            piece_most_bytes: LONG_PIECE_BYTES.min(limit_bytes) - HEADER_BYTES,
            gathers,
            identity: (endpoint.link_name() == "shm").then(Identity::new),
            block: Vec::new(),
            counters: CollectiveCounters::default(),
        }
    }

    /// Payload of a piece of whole units, of a transfer of `len`; `streams`: somebody passes on what comes, as it comes.
    pub(crate) fn piece_bytes(&self, unit: usize, len: usize, streams: bool) -> usize {
        let bytes = if self.gathers && !streams {
            (len / LONG_PIECES).clamp(self.piece_bytes, self.piece_most_bytes)
        } else {
            self.piece_bytes
        };
        (bytes / unit * unit).max(unit)
    }

    /// Takes credit for an eager message of `bytes`; `false`: there is not enough.
    pub(crate) fn take_credit(&mut self, to: NodeId, bytes: usize) -> bool {
        let peer = &mut self.peers[usize::from(to.0)];
        if peer.on_the_way + cost(bytes) > self.eager_window_bytes {
            return false;
        }
        peer.on_the_way += cost(bytes);
        true
    }

    /// The message was not sent after all.
    pub(crate) fn give_back(&mut self, to: NodeId, bytes: usize) {
        let peer = &mut self.peers[usize::from(to.0)];
        peer.on_the_way = peer.on_the_way.saturating_sub(cost(bytes));
    }

    /// The peer has consumed so much; one that has died since owes nothing any more.
    pub(crate) fn paid(&mut self, (from, session): (NodeId, u64), bytes: u64) {
        let peer = &mut self.peers[usize::from(from.0)];
        if peer.session != session {
            return;
        }
        peer.on_the_way = peer
            .on_the_way
            .saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// An eager message of `bytes` was consumed or dropped here. The peer is told when it adds up. Only the life that sent it has given
    /// credit for it.
    pub(crate) fn pay(&mut self, (to, session): (NodeId, u64), bytes: usize) {
        let peer = &mut self.peers[usize::from(to.0)];
        if peer.session != session {
            return;
        }
        peer.owed += cost(bytes);
        if peer.owed < self.eager_window_bytes / 4 {
            return;
        }
        let owed = std::mem::take(&mut peer.owed);
        self.control(
            to,
            Header {
                kind: Kind::Credit,
                algorithm: 0,
                tag: 0,
                sequence: 0,
                key: 0,
                offset: owed as u64,
                total: 0,
            },
        );
    }

    /// A message of so many bytes is to be kept for an operation not yet called here. `false`: its sender went beyond its bounds.
    pub(crate) fn keeps(&mut self, from: (NodeId, u64), kind: Kind, bytes: usize) -> bool {
        let most_bytes = self.eager_window_bytes;
        let early = self.peers[usize::from(from.0.0)].early_of(from.1);
        let fits = |early: &&mut Early| {
            if kind == Kind::Eager {
                early.bytes + cost(bytes) <= most_bytes
            } else {
                early.controls < EARLY_CONTROLS && bytes == 0
            }
        };
        let Some(early) = early.filter(fits) else {
            self.counters.overrun += 1;
            return false;
        };
        self.counters.early += 1;
        if kind == Kind::Eager {
            early.bytes += cost(bytes);
        } else {
            early.controls += 1;
        }
        true
    }

    /// It is kept no longer.
    pub(crate) fn keeps_no_longer(&mut self, from: (NodeId, u64), kind: Kind, bytes: usize) {
        let Some(early) = self.peers[usize::from(from.0.0)].early_of(from.1) else {
            return;
        };
        if kind == Kind::Eager {
            early.bytes = early.bytes.saturating_sub(cost(bytes));
        } else {
            early.controls = early.controls.saturating_sub(1);
        }
    }

    pub(crate) fn session(&self, peer: NodeId) -> u64 {
        self.peers[usize::from(peer.0)].session
    }

    /// The peer died: what was between us is void, and its next life begins anew.
    pub(crate) fn forget(&mut self, peer: NodeId, next_session: u64) {
        let state = &mut self.peers[usize::from(peer.0)];
        *state = PeerState {
            session: next_session,
            last_early: next_session
                .checked_sub(1)
                .and_then(|last| state.early_of(last).copied())
                .unwrap_or_default(),
            ..PeerState::default()
        };
        self.outbox.retain(|control| control.to != peer);
    }

    /// May transfers of this peer be read where it has them, as far as is known?
    pub(crate) fn may_read(&self, from: NodeId) -> bool {
        self.identity.is_some() && !matches!(self.peers[usize::from(from.0)].reads, Reads::No)
    }

    pub(crate) fn control(&mut self, to: NodeId, header: Header) {
        self.outbox.push_back(Control {
            to,
            header,
            body: Vec::new(),
        });
    }

    /// Sends what waits, as far as there is room.
    pub(crate) fn flush<L: Link>(
        &mut self,
        endpoint: &mut Endpoint<L>,
    ) -> Result<(), CollectiveError> {
        for _ in 0..self.outbox.len() {
            let Some(control) = self.outbox.pop_front() else {
                break;
            };
            let head = control.header.to_bytes();
            match send_now(endpoint, control.to, Priority::URGENT, &head, &control.body) {
                Ok(()) | Err(SendError::PeerDead { .. }) => {} // the dead are told nothing
                Err(SendError::WouldBlock { .. }) => self.outbox.push_back(control),
                Err(error) => return Err(CollectiveError::Send(error)),
            }
        }
        Ok(())
    }
}

/// Queues `head` and `body` as one message, ordered among those of its priority, or says [`SendError::WouldBlock`]: also where memory is
/// short.
pub(crate) fn send_now<L: Link>(
    endpoint: &mut Endpoint<L>,
    to: NodeId,
    priority: Priority,
    head: &[u8],
    body: &[u8],
) -> Result<(), SendError> {
    let channel = Channel::new(DeliveryClass::Ordered, priority, CHANNEL);
    match endpoint.try_send_joined(to, channel, (head, body)) {
        Err(SendError::NoMemory { .. }) => Err(SendError::WouldBlock { peer: to }),
        done => done,
    }
}
