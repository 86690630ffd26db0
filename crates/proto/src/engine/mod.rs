//! The engine's interface to its driver, and the state that the parts of the engine share.
//!
//! `submit` accepts messages and `datagrams` best-effort ones; `receive` handles incoming frames, `placement` says where their payloads belong;
//! `batch` plans which frames leave together, `transmit` writes them, `timers` handles deadlines. A driver calls `handle_frame`, `handle_timeout`,
//! then `next_destination`, `plan` and `batch` until nothing is left to send, then `poll_event`.
//!
//! Invariants: a peer that may have something to write is in `ready`, at most once; its alarm is never later than the earliest of its deadlines. It
//! may be earlier, because deadlines are cancelled lazily.

mod batch;
mod credit;
mod datagrams;
mod direct;
mod flow;
mod placement;
mod receive;
mod submit;
mod suci;
mod timers;
mod transmit;

pub use direct::{Direct, DirectFrame};
pub use placement::Placement;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use self::batch::Batch;
use self::placement::{BorrowedPlace, Guess};
use self::timers::Doubt;
use crate::alarms::Alarms;
use crate::config::{Config, PeerLink};
use crate::congestion::CongestionKind;
use crate::counters::Counters;
use crate::datagrams::Datagrams;
use crate::event::{Accounts, Event, Flow};
use crate::memory::{Memory, charge_all};
use crate::peer::Peer;
use crate::peer::direct::Counts;
use crate::peer::session::Phase;
use crate::pool::Pool;
use crate::posted::{OutOfMemory, Posted};
use crate::receiving::{Members, Receiving};
use crate::time::{Duration, Instant};
use tsumuji_wire::{Channel, DATA_HEADER_BYTES, HELLO_BYTES, MAX_PAYLOAD_BYTES, NodeId};

/// Smallest frame size that a link may have: every control frame fits, and a data frame has room for payload.
const FRAME_BYTES_MIN: usize = 64;
const _: () = assert!(HELLO_BYTES <= FRAME_BYTES_MIN && DATA_HEADER_BYTES < FRAME_BYTES_MIN);

/// Largest frame whose payload the 16-bit length can state.
const FRAME_BYTES_MAX: usize = DATA_HEADER_BYTES + MAX_PAYLOAD_BYTES;

/// A peer that never answers is abandoned after this many times `Config::dead_after`.
const CONNECT_PATIENCE: u64 = 8;

/// A century: longer than any process runs.
const FOREVER: Duration = Duration::from_secs(3_200_000_000);

/// Reliable and best-effort messages between this node and all its peers.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    peers: Vec<Option<Box<Peer>>>,
    ready: VecDeque<u16>,
    /// Peers whose alarm has gone off, while `handle_timeout` visits them; kept to reuse its memory.
    expired: Vec<u16>,
    datagrams: Datagrams,
    batch: Batch,
    /// The place that a link may have filled with payloads.
    place: Option<BorrowedPlace>,
    closed: bool,
}

/// State that all peers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) memory: Memory,
    pub(crate) receiving: Receiving,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<Event>,
    pub(crate) alarms: Alarms,
    /// One entry for each peer from which something is missing.
    doubts: Vec<Doubt>,
    /// Peers to which this node states smaller frames than the link has, and the size: the path did not carry larger ones.
    narrow: Vec<(NodeId, usize)>,
    /// The smallest frame size that was ever agreed with a peer: a datagram of this size reaches every peer.
    least_frame_bytes: usize,
    /// The long message whose next fragment is likely to come next.
    guess: Option<Guess>,
    /// Counts of direct messages, by peer; empty if no link has rings.
    direct: Vec<Counts>,
    /// Number of peers with a ring.
    rings: usize,
    /// Some peer may not send directly until memory is free again.
    has_shut: bool,
    /// How long a peer that was never met is sent hellos.
    connect_within: Duration,
}

impl Shared {
    /// The frame size that this node states to the peer: the largest that it takes from it and sends to it.
    fn stated_frame_bytes(&self, to: NodeId, link: &PeerLink) -> usize {
        let narrow = self.narrow.iter().find(|(peer, _)| *peer == to);
        narrow.map_or(link.frame_bytes as usize, |(_, bytes)| *bytes)
    }

    /// Silence after which a peer that was met counts as dead.
    fn dead_after(&self, peer: &Peer) -> Duration {
        if peer.link.is_watched {
            FOREVER
        } else {
            self.config.dead_after
        }
    }

    /// Sets the peer's alarm for a deadline at `at`, unless it goes off earlier already.
    #[inline]
    pub(crate) fn arm(&mut self, peer: &mut Peer, at: Instant) {
        self.alarms.set(peer.id.0, &mut peer.alarm, at);
    }
}

impl Engine {
    /// Creates an engine without peers.
    ///
    /// # Panics
    /// If `config.incarnation` is 0, or `config.frame_bytes` is below 64.
    pub fn new(mut config: Config) -> Self {
        assert!(config.incarnation != 0, "incarnation 0 means unknown");
        assert!(
            config.frame_bytes >= FRAME_BYTES_MIN,
            "frames of {} bytes are too small",
            config.frame_bytes
        );
        config.frame_bytes = config.frame_bytes.min(FRAME_BYTES_MAX);
        // A peer that lives has several chances to say so before it is taken for dead.
        config.keep_alive = config.keep_alive.min(config.dead_after.divided(4));
        if config.congestion.kind() == CongestionKind::Suci {
            config.ring_bytes = 0; // under `suci` every message has a number
        }
        let shared = Shared {
            pool: Pool::new(),
            memory: Memory::new(config.budget_bytes, config.message_limit_bytes),
            receiving: Receiving::new(&config),
            counters: Counters::default(),
            events: VecDeque::new(),
            alarms: Alarms::default(),
            doubts: Vec::new(),
            narrow: Vec::new(),
            least_frame_bytes: config.frame_bytes,
            guess: None,
            direct: Vec::new(),
            rings: 0,
            has_shut: false,
            connect_within: config.dead_after.times(CONNECT_PATIENCE),
            config,
        };
        Self {
            shared,
            peers: Vec::new(),
            ready: VecDeque::new(),
            expired: Vec::new(),
            datagrams: Datagrams::default(),
            batch: Batch::new(),
            place: None,
            closed: false,
        }
    }

    /// Begins the handshake with `peer`; messages may be submitted at once, and leave when the peer answers.
    pub fn add_peer(&mut self, now: Instant, peer: NodeId) {
        self.add_peer_over(now, peer, PeerLink::of(&self.shared.config));
    }

    /// As `add_peer`, of a peer that is reached over a link of its own.
    ///
    /// # Panics
    /// If `link.frame_bytes` is below 64.
    pub fn add_peer_over(&mut self, now: Instant, peer: NodeId, mut link: PeerLink) {
        self.limit(&mut link);
        let index = usize::from(peer.0);
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        if self.peers[index].is_none() && peer != self.shared.config.me {
            let account = self.shared.receiving.add_peer();
            self.shared.receiving.restate(&mut self.peers);
            let Config {
                incarnation,
                congestion,
                ..
            } = self.shared.config;
            let peer_state = Peer::new((peer, link), now, incarnation, congestion, account);
            self.peers[index] = Some(Box::new(peer_state));
            self.note_link(&link);
            self.enqueue(peer, now);
        }
    }

    /// The peer is reached over another link or at another address from now on, because its process was started again elsewhere: ends the session, if
    /// there is one, and begins the handshake.
    ///
    /// # Panics
    /// As `add_peer_over`.
    pub fn move_peer(&mut self, now: Instant, peer: NodeId, mut link: PeerLink) {
        self.limit(&mut link);
        let Self { peers, shared, .. } = self;
        let Some(state) = peer_of(peers, peer) else {
            return;
        };
        receive::end_session(now, state, None, shared);
        shared.rings -= usize::from(state.link.has_ring);
        state.link = link;
        state.session.reconnect(now);
        self.note_link(&link);
        self.enqueue(peer, now);
    }

    /// Lowers the properties of a link to what this engine can use.
    fn limit(&self, link: &mut PeerLink) {
        assert!(link.frame_bytes as usize >= FRAME_BYTES_MIN, "{link:?}");
        link.frame_bytes = link.frame_bytes.min(FRAME_BYTES_MAX as u32);
        link.has_ring &= self.shared.config.ring_bytes > 0;
    }

    /// Accounts the link of a peer.
    fn note_link(&mut self, link: &PeerLink) {
        self.shared.rings += usize::from(link.has_ring);
        let least = &mut self.shared.least_frame_bytes;
        *least = (*least).min(link.frame_bytes as usize);
        self.set_headroom();
    }

    /// Begins the handshake with a dead peer again, whose process may have been restarted. Does nothing unless the peer is dead.
    pub fn reconnect_peer(&mut self, now: Instant, peer: NodeId) {
        if let Some(state) = self.peer_mut(peer)
            && state.session.phase == Phase::Dead
        {
            state.session.reconnect(now);
            self.enqueue(peer, now);
        }
    }

    /// Aborts the session with `peer` as if the peer had died: for a driver that can neither finish sending a message nor retain a copy. A peer that
    /// is alive will notice when it sends its next frame.
    pub fn abort(&mut self, now: Instant, peer: NodeId) {
        if let Some(state) = peer_of(&mut self.peers, peer) {
            receive::end_session(now, state, None, &mut self.shared);
            self.enqueue(peer, now);
        }
    }

    /// The next event; call until `None`.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// When to call `handle_timeout` next. May be early, never late.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.datagrams.is_empty() {
            return self.next_retry();
        }
        self.shared.alarms.next_at()
    }

    #[cold]
    fn next_retry(&self) -> Option<Instant> {
        let alarm = self.shared.alarms.next_at();
        alarm.into_iter().chain(self.datagrams.retry_at()).min()
    }

    /// State of the traffic with a peer; `None` if it is unknown.
    pub fn flow(&self, peer: NodeId) -> Option<Flow> {
        let peer = self.peer(peer)?;
        let expected = peer.receive.arrivals.base();
        let (granted, window, backlog) = peer.account.incoming(expected);
        let (pace, paced_frames) = peer.send.pace();
        let queue = &peer.send.queue;
        Some(Flow {
            rtt: peer.send.rtt.smoothed,
            rttvar: peer.send.rtt.variance,
            in_flight_frames: peer.send.in_flight(),
            window_bytes: peer.window_bytes().unwrap_or(0),
            queued_messages: queue.queued_messages,
            queued_bytes: queue.queued_bytes,
            retransmitted_frames: queue.retransmitted,
            credit_frames: peer.send.credit_left() as usize,
            superseded_datagrams: queue.dropped.superseded,
            late_datagrams: queue.dropped.late,
            lost_datagrams: queue.dropped.lost,
            pace,
            paced_frames,
            granted_frames: granted as usize,
            incoming_window_frames: window as usize,
            incoming_bytes: peer.receive.used_bytes(),
            incoming_backlog: backlog,
        })
    }

    /// Sums up the accounts of all peers: for tests, and to find leaks.
    pub fn accounts(&self) -> Accounts {
        let mut accounts = Accounts {
            memory_bytes: self.shared.memory.used_bytes(),
            claimed_frames: self.shared.receiving.claimed(),
            ..Accounts::default()
        };
        for peer in self.peers.iter().flatten() {
            accounts.peers_memory_bytes += peer.receive.used_bytes();
            accounts.peers_claimed_frames += peer.account.claim(peer.receive.arrivals.base());
            accounts.queued_bytes += peer.send.queue.queued_bytes;
        }
        accounts
    }

    /// The session with the peer is up: hello and welcome were exchanged, and it has not ended.
    pub fn is_up(&self, peer: NodeId) -> bool {
        self.peer(peer).is_some_and(Peer::is_up)
    }

    /// The program has released one message of `bytes` from `peer`.
    #[inline]
    pub fn release(&mut self, peer: NodeId, bytes: usize) {
        self.release_all(peer, 1, bytes);
    }

    /// The program has released `messages` messages from `peer`, of `bytes` altogether.
    #[inline]
    pub fn release_all(&mut self, peer: NodeId, messages: usize, bytes: usize) {
        let charged_bytes = charge_all(messages, bytes);
        self.shared.memory.release(charged_bytes);
        if let Some(peer) = self.peer_mut(peer) {
            peer.receive.release(charged_bytes);
        }
        if self.shared.has_shut | self.shared.receiving.is_hungry() {
            self.feed_waiting();
        }
    }

    /// Grants credit, and permits direct messages again, to peers that wait for the released memory.
    #[cold]
    fn feed_waiting(&mut self) {
        self.feed_hungry();
        if self.shared.has_shut && self.shared.memory.has_space() {
            self.review_direct();
        }
    }

    /// Returns a message's buffer to the pool.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.shared.pool.put(buffer);
    }

    /// A posted buffer whose message will not come, because the session ended; call until `None`.
    pub fn poll_unused(&mut self) -> Option<Posted> {
        self.shared.pool.unused.pop()
    }

    /// Takes posted buffer `number` back while a message of `from` on `channel` arrives in it; the message moves to memory of the engine. `Ok(None)`:
    /// no message arrives in that buffer. `Err`: there is no memory for the message.
    pub fn recall(
        &mut self,
        from: NodeId,
        channel: Channel,
        number: u64,
    ) -> Result<Option<Posted>, OutOfMemory> {
        let Self { peers, shared, .. } = self;
        let numbered = peer_of(peers, from)
            .and_then(|peer| peer.receive.recall(channel, number, &mut shared.pool));
        numbered
            .or_else(|| direct::recall(shared, from, number))
            .transpose()
    }

    /// Largest message that this node accepts, in bytes.
    pub fn message_limit_bytes(&self) -> usize {
        self.shared.config.message_limit_bytes
    }

    /// Makes sure that the pool can hold a copy of a message of `bytes`, until something else takes that memory. `false`: there is no memory.
    pub fn reserve(&mut self, bytes: usize) -> bool {
        if u32::try_from(bytes).is_err() {
            return false; // no message is that long
        }
        let buffer = self.shared.pool.take(bytes);
        buffer.map(|buffer| self.shared.pool.put(buffer)).is_some()
    }

    /// Tells peers that this node leaves; further submits fail. Does not wait for queued messages.
    pub fn close(&mut self, now: Instant) {
        self.closed = true;
        for index in 0..self.peers.len() {
            if let Some(peer) = self.peers[index].as_deref_mut()
                && peer.is_up()
            {
                peer.session.set_close_pending(true);
                let id = peer.id;
                self.enqueue(id, now);
            }
        }
    }

    /// Totals since the engine was created.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    fn peer(&self, id: NodeId) -> Option<&Peer> {
        self.peers.get(usize::from(id.0))?.as_deref()
    }

    #[inline(always)] // as Queue::acknowledge
    fn peer_mut(&mut self, id: NodeId) -> Option<&mut Peer> {
        peer_of(&mut self.peers, id)
    }

    /// Queues the peer if it has something to write, and sets its alarm; to be called after any change to a peer.
    fn enqueue(&mut self, id: NodeId, now: Instant) {
        let Some(peer) = peer_of(&mut self.peers, id) else {
            return;
        };
        if !peer.queued && peer.wants_transmit(now) {
            peer.queued = true;
            self.ready.push_back(id.0);
        }
        if let Some(at) = timers::deadline(peer, &self.shared) {
            self.shared.arm(peer, at);
        }
    }

    /// The receiving half, and the state it needs to visit all peers.
    fn members(&mut self) -> (&mut Receiving, Members<'_>) {
        let Self {
            peers,
            ready,
            shared,
            ..
        } = self;
        let Shared {
            receiving,
            memory,
            counters,
            ..
        } = shared;
        let members = Members {
            peers,
            ready,
            memory,
            counters,
        };
        (receiving, members)
    }

    /// Grants credit to peers that wait for it: credit or memory may have come free.
    #[inline]
    fn feed_hungry(&mut self) {
        if self.shared.receiving.is_hungry() {
            let (receiving, members) = self.members();
            receiving.feed(members);
        }
    }
}

/// The peer of that id, for callers that need the rest of the engine beside it.
#[inline(always)] // as Queue::acknowledge
fn peer_of(peers: &mut [Option<Box<Peer>>], id: NodeId) -> Option<&mut Peer> {
    peers.get_mut(usize::from(id.0))?.as_deref_mut()
}

/// Removes the peer at the head of `ready`, as it has nothing more to write. `busy`: other peers may be in `ready`, too.
#[inline(always)] // as Queue::acknowledge
fn pop_ready(peer: &mut Peer, ready: &mut VecDeque<u16>, busy: bool) {
    if !busy && peer.queued {
        ready.clear(); // no other peer is in it
        peer.queued = false;
    } else if ready.front() == Some(&peer.id.0) {
        ready.pop_front();
        peer.queued = false;
    }
}

/// As `Engine::enqueue`, after a frame of the peer was handled: sets the alarm only for those deadlines that a frame can bring nearer.
#[inline(always)] // as Queue::acknowledge
fn enqueue_after_frame(
    peer: &mut Peer,
    shared: &mut Shared,
    ready: &mut VecDeque<u16>,
    now: Instant,
) {
    if !peer.queued && peer.wants_transmit(now) {
        peer.queued = true;
        ready.push_back(peer.id.0);
    }
    if let Some(at) = peer.receive.ack_deadline() {
        shared.arm(peer, at);
    }
    if let Some(at) = peer.send.frame_deadline() {
        shared.arm(peer, at);
    }
    if peer.send.is_clocked()
        && let Some(at) = peer.send.deadline()
    {
        shared.arm(peer, at);
    }
}

#[cfg(test)]
mod borrowing_tests;
#[cfg(test)]
mod bundle_tests;
#[cfg(test)]
mod datagrams_tests;
#[cfg(test)]
mod direct_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod posted_tests;
#[cfg(test)]
mod sessions_tests;
#[cfg(test)]
mod stuck_tests;
#[cfg(test)]
mod suci_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod timer_tests;
