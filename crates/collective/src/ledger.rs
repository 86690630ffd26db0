//! The credit ledger: credit for small messages in both directions, control messages that wait to be sent, and counters.
//!
//! Used by `operation` and `collectives`. A sender may have `eager_window_bytes` of small messages on their way to a peer that the peer's operations
//! have not consumed; beyond that it asks first. So a fast member sends at most that many bytes ahead of a slow one.
//!
//! Invariants: credit is returned exactly once for every eager message, when it was consumed or dropped, unless its sender died meanwhile; counts of
//! one session with a peer do not affect the next. Each message is counted to the session in which it was sent, whether it arrives before or after
//! that session's end is known.

use std::collections::VecDeque;

use tsumuji_link::shm::{Identity, ProcessMemory};
use tsumuji_node::{Channel, DeliveryClass, Endpoint, NodeId, Priority, SendError};

use crate::core::CHANNEL;
use crate::error::CollectiveError;
use crate::header::{HEADER_BYTES, Header, Kind};
use crate::tuning::TUNING;

/// Cost of an eager message beside its payload.
const OVERHEAD_BYTES: usize = 64;

/// Least credit of a peer: it can go on while credit returns.
const EAGER_LEAST_BYTES: usize = 4 * (TUNING.eager.bytes + OVERHEAD_BYTES);

/// Limit of control messages of one peer kept for operations not yet called here. A correct peer has fewer under way.
pub(crate) const EARLY_CONTROLS: usize = 16 << 10;

/// Control messages that may wait for a peer before it gets no answers to late messages any more: far more than operations that can be under way.
const ANSWERS_MAX: usize = 256;

/// Least size of pieces that are kept, except the last one of a transfer. Ours are longer, even with elements that do not divide a piece.
pub(crate) const PIECE_BYTES_LEAST: usize = 2 << 10;

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CollectiveCounters {
    /// Operations begun.
    pub operations: u64,
    /// Messages of invalid form, or of an unknown group.
    pub malformed: u64,
    /// Messages for operations that were over.
    pub late: u64,
    /// Messages that arrived before their operation was called here, and were kept.
    pub early: u64,
    /// Messages dropped because their sender exceeded its credit.
    pub overrun: u64,
    /// Frames broadcast natively, without repairs.
    pub native_frames: u64,
    /// Frames broadcast again.
    pub native_repairs: u64,
    /// Pieces sent again reliably to one member.
    pub native_resent: u64,
    /// Transfers read in the sender's memory.
    pub direct_reads: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PeerState {
    /// It is not known to be on this host.
    pub(crate) is_far: bool,
    /// Number of the present session: how many ended before.
    pub(crate) session: u64,
    /// Eager bytes sent for which the peer has not returned credit.
    on_the_way: usize,
    /// Eager bytes consumed here for which no credit was returned yet.
    pub(crate) owed: usize,
    /// Messages kept for operations not yet called here.
    pub(crate) early: Early,
    /// The same for messages of the last session.
    pub(crate) last_early: Early,
    /// Whether its memory can be read.
    pub(crate) reads: Reads,
}

/// Whether a peer's memory can be read: if both are processes of one host that may trace each other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Reads {
    #[default]
    Unknown,
    Yes(ProcessMemory),
    No,
}

/// Messages of one session kept for operations not yet called here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Early {
    /// Bytes of eager messages.
    pub(crate) bytes: usize,
    /// Number of control messages.
    pub(crate) controls: usize,
}

impl PeerState {
    /// The messages kept of that session; `None`: it is neither the present one nor the last.
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

/// A control message that waits for room.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) to: NodeId,
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    /// State by node id.
    pub(crate) peers: Vec<PeerState>,
    pub(crate) outbox: VecDeque<Control>,
    pub(crate) eager_window_bytes: usize,
    /// Longest transfer that is sent without waiting for its receiver; the same on all members.
    pub(crate) eager_bytes: usize,
    /// Longest message that the endpoint takes.
    pub(crate) message_limit_bytes: usize,
    /// Payload of one piece of a long transfer,
    piece_bytes: usize,
    /// and its limit. All nodes are assumed to have the same message limit.
    piece_most_bytes: usize,
    /// The link gathers long messages from their places and scatters them into place.
    gathers: bool,
    /// This process, if other nodes are processes of this host.
    pub(crate) identity: Option<Identity>,
    /// No transfer that begins now is read in its sender's memory.
    pub(crate) forbids_reads: bool,
    /// Shortest transfers that this process reads in their senders' memory.
    pub(crate) direct_bytes: usize,
    /// Buffer for elements that are read and then folded; empty at first.
    pub(crate) block: Vec<u8>,
    pub(crate) counters: CollectiveCounters,
}

/// Cost of an eager message of `bytes`.
pub(crate) fn cost(bytes: usize) -> usize {
    bytes + OVERHEAD_BYTES
}

impl Ledger {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        let nodes = endpoint.members().len();
        let (all_here, own) = (
            endpoint.link_name() == "shm",
            endpoint.host_of(endpoint.me()),
        );
        let frame_bytes = endpoint.frame_message_bytes();
        // `packet` gathers, too, but does not scatter: there, pieces of one frame are read in the link's buffer.
        let gathers = endpoint.link_name() == "udp";
        let message_bytes = if frame_bytes >= TUNING.long.frame_bytes && !gathers {
            frame_bytes
        } else {
            TUNING.long.piece_bytes
        };
        let message_limit_bytes = endpoint.message_limit_bytes();
        let limit_bytes = message_limit_bytes.max(PIECE_BYTES_LEAST);
        let eager_window_bytes = (TUNING.eager.total_bytes / nodes.max(1))
            .clamp(EAGER_LEAST_BYTES, TUNING.eager.window_bytes_max);
        let most = if all_here {
            TUNING.eager.on_host_bytes
        } else {
            TUNING.eager.between_hosts_bytes
        };
        let eager_bytes =
            (eager_window_bytes / TUNING.eager.transfers).clamp(TUNING.eager.bytes, most);
        let identity = (all_here || own.is_some()).then(Identity::new);
        let is_slow = identity.is_some() && !ProcessMemory::pays();
        Self {
            peers: endpoint
                .members()
                .iter()
                .map(|member| PeerState {
                    session: endpoint.ended_sessions(member.id),
                    is_far: !all_here && (own.is_none() || endpoint.host_of(member.id) != own),
                    ..PeerState::default()
                })
                .collect(),
            outbox: VecDeque::new(),
            eager_window_bytes,
            eager_bytes,
            message_limit_bytes,
            piece_bytes: message_bytes.min(limit_bytes) - HEADER_BYTES,
            piece_most_bytes: TUNING.long.gathered_piece_bytes.min(limit_bytes) - HEADER_BYTES,
            gathers,
            identity,
            forbids_reads: false,
            direct_bytes: if is_slow {
                TUNING.long.slow_direct_bytes
            } else {
                0
            },
            block: Vec::new(),
            counters: CollectiveCounters::default(),
        }
    }

    /// Keeps state of this peer from now on, which may have joined after this was made, and is in that session.
    pub(crate) fn meet(&mut self, peer: NodeId, session: u64) {
        let index = usize::from(peer.0);
        if index >= self.peers.len() {
            let far = || PeerState {
                is_far: true,
                ..PeerState::default()
            };
            self.peers.resize_with(index + 1, far);
            self.peers[index].session = session;
        }
    }

    /// Payload of a piece in whole units, for a transfer of `len`; `streams`: members forward bytes as they arrive.
    pub(crate) fn piece_bytes(&self, unit: usize, len: usize, streams: bool) -> usize {
        let bytes = if self.gathers && !streams {
            (len / TUNING.long.gathered_pieces).clamp(self.piece_bytes, self.piece_most_bytes)
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

    /// Returns credit of a message that was not sent.
    pub(crate) fn give_back(&mut self, to: NodeId, bytes: usize) {
        let peer = &mut self.peers[usize::from(to.0)];
        peer.on_the_way = peer.on_the_way.saturating_sub(cost(bytes));
    }

    /// The peer returned credit; ignored if it is of another session.
    pub(crate) fn paid(&mut self, (from, session): (NodeId, u64), bytes: u64) {
        let peer = &mut self.peers[usize::from(from.0)];
        if peer.session != session {
            return;
        }
        peer.on_the_way = peer
            .on_the_way
            .saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Returns credit for an eager message of `bytes` that was consumed or dropped here; small amounts are sent together. Ignored for messages of
    /// another session.
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
        self.control(to, Header::told(Kind::Credit, owed as u64));
    }

    /// Counts a message to be kept for an operation not yet called here. `false`: its sender exceeded its bounds.
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

    /// Ends counting a message that is no longer kept.
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

    /// Ends the session with the peer: its counts are void, and the next session begins anew.
    pub(crate) fn forget(&mut self, peer: NodeId, next_session: u64) {
        let state = &mut self.peers[usize::from(peer.0)];
        *state = PeerState {
            session: next_session,
            last_early: next_session
                .checked_sub(1)
                .and_then(|last| state.early_of(last).copied())
                .unwrap_or_default(),
            is_far: state.is_far,
            ..PeerState::default()
        };
        self.outbox.retain(|control| control.to != peer);
    }

    /// Whether the peer and this process may ask the kernel to read each other's memory.
    pub(crate) fn is_near(&self, peer: NodeId) -> bool {
        self.identity.is_some() && !self.peers[usize::from(peer.0)].is_far
    }

    /// Whether transfers of this peer may be read in its memory, as far as is known.
    pub(crate) fn may_read(&self, from: NodeId) -> bool {
        !self.forbids_reads
            && self.is_near(from)
            && !matches!(self.peers[usize::from(from.0)].reads, Reads::No)
    }

    pub(crate) fn control(&mut self, to: NodeId, header: Header) {
        self.outbox.push_back(Control {
            to,
            header,
            body: Vec::new(),
        });
    }

    /// As `control`, for an answer to a message that should not have come: dropped where many wait for that peer.
    pub(crate) fn answer(&mut self, to: NodeId, header: Header) {
        let waiting = self.outbox.iter().filter(|control| control.to == to);
        if waiting.count() < ANSWERS_MAX {
            self.control(to, header);
        } else {
            self.counters.overrun += 1;
        }
    }

    /// Sends waiting control messages, as far as there is room; those to one peer in order.
    pub(crate) fn flush(&mut self, endpoint: &mut Endpoint) -> Result<(), CollectiveError> {
        let mut full: Vec<NodeId> = Vec::new();
        for _ in 0..self.outbox.len() {
            let Some(control) = self.outbox.pop_front() else {
                break;
            };
            if full.contains(&control.to) {
                self.outbox.push_back(control);
                continue;
            }
            let head = control.header.to_bytes();
            let priority = control.header.priority();
            match send_now(endpoint, control.to, priority, &head, &control.body) {
                Ok(()) | Err(SendError::PeerDead { .. }) => {} // a dead peer needs no message
                Err(SendError::WouldBlock { .. }) => {
                    full.push(control.to);
                    self.outbox.push_back(control);
                }
                Err(error) => return Err(CollectiveError::Send(error)),
            }
        }
        Ok(())
    }
}

/// Queues `head` and `body` as one message, ordered within its priority, or returns [`SendError::WouldBlock`], also if memory is short.
pub(crate) fn send_now(
    endpoint: &mut Endpoint,
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
