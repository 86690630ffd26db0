//! What a program holds: messages in blocking, non-blocking and completion forms, shares, flow, and the polling loop's handle.
//!
//! Owns a [`Drive`], an [`Inbox`] for what arrives during calls without a handler, and the state of peers. One thread at a
//! time: everything takes `&mut self`.
//!
//! Invariant: what the inbox holds is older than anything a turn may bring, so it is handed over first.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tsumuji_link::{Link, LinkCounters, SealCounters};
use tsumuji_proto::{
    Body, Config, Congestion, DeliveryClass, Destination, Engine, Flow, Lane, NodeId, Payload,
    Priority, SendId,
};

use crate::aside::{ASIDE_CHANNEL, Aside, Shelf, ToAside};
use crate::bootstrap::rendezvous::random_u64;
use crate::clock::{Clock, from_std};
use crate::drive::{Drive, refused};
use crate::error::{EndpointError, OpenError, RecvError, SendError};
use crate::handler::Handler;
use crate::idle::Idle;
use crate::inbox::{Inbox, Message};
use crate::intake::{Kept, ToHandler};
use crate::membership::{Member, Membership};
use crate::metrics::Publisher;
use crate::options::Options;
use crate::peers::Peers;
use crate::table::Table;

/// A link must carry at least this: any header and some payload. Every real link carries 1,400 or more.
const LEAST_FRAME_BYTES: usize = 256;

/// Bytes taken from the inbox between two turns: peers learn early that there is room again.
const TAKEN_BYTES_PER_TURN: usize = 64 << 10;

/// Messages queued to one peer before blocking forms wait, however small: half of what the engine takes.
const QUEUED_MESSAGES: usize = 1 << 19;

/// Silence after which no peer is thought to wait for an acknowledgement: some retransmission time-outs of a local network.
const LINGER: Duration = Duration::from_millis(20);

/// A peer that never falls silent does not keep us longer than this.
const LINGER_MOST: Duration = Duration::from_secs(1);

/// Farewells on a link that may lose them: all of three are lost once in 125 times at 20 % loss, and then silence tells.
const FAREWELLS: usize = 3;

/// Messages of this size and more leave from where the caller has them.
const LENT_BYTES: usize = 32 << 10;

/// Of such a message of this size and more `send` waits until nearly all has left; what a shorter one has left waits in the queue.
const AWAITED_BYTES: usize = 256 << 10;

/// Nearly all: but for what fills a link's burst.
const AHEAD_BYTES: usize = 64 << 10;

/// How long to wait for memory for the next piece of a message that has begun to leave.
const MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// Longer than any program runs; a wait without limit.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// A member of a cluster that sends and receives. See the crate's head for an example.
#[derive(Debug)]
pub struct Endpoint<L: Link> {
    pub(crate) drive: Drive<L>,
    inbox: Inbox,
    shelf: Shelf,
    pub(crate) peers: Peers,
    membership: Membership,
    send_queue_bytes: usize,
    taken_bytes: usize,
}

/// What an endpoint has counted since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The engine's: messages and frames, drops by reason.
    pub engine: tsumuji_proto::Counters,
    /// The link's: frames and bytes.
    pub link: LinkCounters,
    /// The seal's, if frames are sealed.
    pub seal: Option<SealCounters>,
    /// Frames dropped because they did not come from where their source lives.
    pub misplaced_frames: u64,
    /// Shares dropped because they came while no handler was there and the inbox was full.
    pub dropped_shares: u64,
}

impl<L: Link> Endpoint<L> {
    /// Joins `link` and `membership`, and begins hello with every other member.
    pub fn new(link: L, membership: Membership, options: Options) -> Result<Self, OpenError> {
        membership.check()?;
        let caps = link.caps();
        if caps.frame_bytes < LEAST_FRAME_BYTES {
            return Err(OpenError::FrameTooSmall {
                link: caps.name,
                frame_bytes: caps.frame_bytes,
                least: LEAST_FRAME_BYTES,
            });
        }
        let incarnation = match options.incarnation {
            Some(0) => return Err(OpenError::ZeroIncarnation),
            Some(given) => given,
            None => random_u64().map_err(OpenError::Random)? as u32 | 1, // never 0
        };
        let mut engine = Engine::new(Config {
            me: membership.me,
            incarnation,
            seed: options.seed
                ^ (u64::from(membership.me.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), // golden ratio: spreads ids
            frame_bytes: caps.frame_bytes,
            receive_frames: caps.receive_frames,
            lossless: caps.lossless,
            congestion: options.congestion,
            budget_bytes: options.budget_bytes,
            message_limit_bytes: options.message_limit_bytes,
            send_queue_bytes: options.send_queue_bytes,
            keep_alive: from_std(options.keep_alive),
            dead_after: from_std(options.dead_after),
        });
        let table = Table::new(&membership);
        let clock = Clock::new();
        let now = clock.now();
        for peer in table.peers() {
            engine.add_peer(now, peer);
            engine.set_pace(now, peer, options.pace);
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let idle = Idle::new(options.idle, table.pollers_here(), cores);
        let publisher = Publisher::start(options.metrics, &membership, caps.name)?;
        Ok(Self {
            drive: Drive::new(link, engine, table, clock, idle, publisher),
            inbox: Inbox::default(),
            shelf: Shelf::default(),
            peers: Peers::new(membership.members.len()),
            membership,
            send_queue_bytes: options.send_queue_bytes,
            taken_bytes: 0,
        })
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.membership.me
    }

    /// Everyone, this node included, in order of their ids.
    pub fn members(&self) -> &[Member] {
        &self.membership.members
    }

    /// As messages to people name it; empty if there is no such node.
    pub fn name_of(&self, id: NodeId) -> &str {
        self.membership
            .members
            .get(usize::from(id.0))
            .map_or("", |member| &member.name)
    }

    /// One turn of the loop: receive a burst, hand over, mind timers, transmit, flush. Returns how much was done. Never waits.
    #[inline]
    pub fn poll(&mut self, handler: &mut impl Handler) -> Result<usize, EndpointError> {
        let before = if self.inbox.is_empty() {
            0
        } else {
            self.hand_over(handler)
        };
        let mut intake = ToHandler {
            handler,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
        };
        Ok(before + self.drive.turn(true, &mut intake)?)
    }

    /// Polls until something was done or `timeout` has passed, idling as the policy says.
    pub fn poll_wait(
        &mut self,
        handler: &mut impl Handler,
        timeout: Duration,
    ) -> Result<usize, EndpointError> {
        if !self.inbox.is_empty() {
            return self.poll(handler);
        }
        let mut intake = ToHandler {
            handler,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
        };
        Ok(usize::from(self.drive.run_until(
            &mut intake,
            timeout,
            |_, _| true,
        )?))
    }

    /// One turn that keeps what arrives for `recv` and later polls: lets a program that is busy acknowledge, and go on sending.
    /// Returns how much was done. Never waits.
    pub fn progress(&mut self) -> Result<usize, EndpointError> {
        let mut kept = Kept {
            inbox: &mut self.inbox,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
            lent: &[],
        };
        Ok(self.drive.turn(true, &mut kept)?)
    }

    /// Hands over what calls without a handler had put by.
    fn hand_over(&mut self, handler: &mut impl Handler) -> usize {
        let mut count = self.inbox.hand_over_rest(handler);
        while let Some(message) = self.inbox.pop() {
            let (from, bytes, mut body) = (message.from, message.body.len(), message.body);
            handler.message(from, message.lane, Body::Whole(&mut body));
            self.drive.engine.recycle(body);
            self.drive.release(from, bytes);
            count += 1;
        }
        count
    }

    /// Sends a copy of `message`; waits while the queue to `to` is full.
    ///
    /// A message of 32 KiB or more leaves from where it is as far as it may, and only then is copied what is on its way or waits. Of one
    /// of 256 KiB or more the call returns when nearly all has left, and receives meanwhile: it takes little memory, whatever its
    /// length.
    #[inline]
    pub fn send(&mut self, to: NodeId, lane: Lane, message: &[u8]) -> Result<(), SendError> {
        self.send_copied(to, lane, message, false).map(drop)
    }

    /// Sends `message` without copying it into the queue; waits while the queue to `to` is full.
    pub fn send_owned(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: Vec<u8>,
    ) -> Result<(), SendError> {
        unreserved(lane)?;
        self.wait_writable(to, message.len(), FOREVER)?; // before the message is given away
        self.drive
            .submit(to, lane, Payload::Owned(message), false)
            .map(drop)
    }

    /// Sends a copy of `message`, or says [`SendError::WouldBlock`].
    pub fn try_send(&mut self, to: NodeId, lane: Lane, message: &[u8]) -> Result<(), SendError> {
        unreserved(lane)?;
        self.drive
            .submit(to, lane, Payload::Copied(message), false)
            .map(drop)
    }

    /// Like `send`, and names the message so that its acknowledgement can be asked for. One of a *latest* lane is never waited for: it
    /// counts as sent.
    pub fn send_tracked(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
    ) -> Result<SendId, SendError> {
        let id = self.send_copied(to, lane, message, true)?;
        // A long message may be acknowledged by now.
        let is_open = message.len() < AWAITED_BYTES || !self.drive.engine.is_acknowledged(to, id);
        if is_open && !lane.is_latest() {
            self.peers.track(to, id);
        }
        Ok(id)
    }

    /// Has the peer acknowledged the whole of a tracked message? Takes a turn. A message that failed with its peer is an error.
    pub fn is_sent(&mut self, to: NodeId, id: SendId) -> Result<bool, SendError> {
        if !self.peers.is_sent(to, id)? {
            self.progress()?;
        }
        self.peers.is_sent(to, id)
    }

    /// Waits until a tracked message is acknowledged; `false`: not within `timeout`.
    pub fn wait_sent(
        &mut self,
        to: NodeId,
        id: SendId,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        if !self.peers.is_sent(to, id)? {
            self.run_until(timeout, |_, kept| {
                !matches!(kept.peers.is_sent(to, id), Ok(false))
            })?;
        }
        self.peers.is_sent(to, id)
    }

    /// The next message if one is there.
    pub fn try_recv(&mut self) -> Result<Option<Message>, RecvError> {
        self.recv(Duration::ZERO)
    }

    /// The next message; `None`: none came within `timeout`.
    pub fn recv(&mut self, timeout: Duration) -> Result<Option<Message>, RecvError> {
        if self.ready(timeout)?.is_none() {
            return Ok(None);
        }
        let message = self.inbox.pop();
        if let Some(message) = &message {
            self.drive.release(message.from, message.body.len());
            self.taken_bytes += message.body.len();
            if self.taken_bytes >= TAKEN_BYTES_PER_TURN {
                self.taken_bytes = 0;
                self.progress()?;
            }
        }
        Ok(message)
    }

    /// Waits for a whole message without taking it; its size, or `None` if none came within `timeout`.
    #[inline]
    pub fn ready(&mut self, timeout: Duration) -> Result<Option<usize>, RecvError> {
        if let Some(bytes) = self.inbox.next_bytes() {
            return Ok(Some(bytes));
        }
        self.run_until(timeout, |_, kept| kept.inbox.next_bytes().is_some())?;
        Ok(self.inbox.next_bytes())
    }

    /// Waits until a message of `bytes` can be queued to `to` without waiting; `false`: not within `timeout`.
    ///
    /// A message larger than the whole queue is taken when nothing else waits.
    pub fn wait_writable(
        &mut self,
        to: NodeId,
        bytes: usize,
        timeout: Duration,
    ) -> Result<bool, SendError> {
        self.known(to)?;
        let limit = self.send_queue_bytes;
        let has_room = |engine: &Engine| {
            let Some(flow) = engine.flow(to) else {
                return false;
            };
            let (queued, bytes) = (
                flow.queued_messages,
                flow.queued_bytes.saturating_add(bytes),
            );
            queued == 0 || bytes <= limit && queued < QUEUED_MESSAGES
        };
        if has_room(&self.drive.engine) || self.peers.is_lost(to) {
            return self.alive(to).map(|()| true);
        }
        let writable = self.run_until(timeout, |engine, kept| {
            has_room(engine) || kept.peers.is_lost(to)
        })?;
        self.alive(to).map(|()| writable)
    }

    /// Waits until all messages that were sent to living peers are acknowledged; `false`: not within `timeout`.
    pub fn flush(&mut self, timeout: Duration) -> Result<bool, EndpointError> {
        let nodes = self.membership.members.len();
        let all_sent = |engine: &Engine| {
            let peers = (0..=u16::MAX).take(nodes).map(NodeId);
            peers
                .filter_map(|peer| engine.flow(peer))
                .all(|flow| flow.queued_messages == 0)
        };
        Ok(
            all_sent(&self.drive.engine)
                || self.run_until(timeout, |engine, _| all_sent(engine))?,
        )
    }

    /// Messages to `to` that are not yet acknowledged.
    pub fn queue_length(&self, to: NodeId) -> usize {
        self.drive
            .engine
            .flow(to)
            .map_or(0, |flow| flow.queued_messages)
    }

    /// State of the traffic with `to`; `None` if it is not another member.
    pub fn flow(&self, to: NodeId) -> Option<Flow> {
        self.drive.engine.flow(to)
    }

    /// Hello was exchanged with the peer's present life.
    pub fn is_up(&self, peer: NodeId) -> bool {
        self.peers.is_up(peer)
    }

    /// Waits until hello was exchanged with everyone; returns those still missing after `timeout`.
    pub fn wait_up(&mut self, timeout: Duration) -> Result<Vec<NodeId>, EndpointError> {
        let peers: Vec<NodeId> = self.drive.table.peers().collect();
        if !peers.iter().all(|peer| self.peers.is_up(*peer)) {
            self.run_until(timeout, |_, kept| {
                let settled = |peer: &NodeId| {
                    kept.peers.is_up(*peer) || kept.peers.other_congestion(*peer).is_some()
                };
                peers.iter().all(settled)
            })?;
        }
        Ok(peers
            .into_iter()
            .filter(|peer| !self.peers.is_up(*peer))
            .collect())
    }

    /// What a peer runs that is not met because this node runs another congestion control.
    pub fn other_congestion(&self, peer: NodeId) -> Option<Congestion> {
        self.peers.other_congestion(peer)
    }

    /// Tries a dead peer again: its process may have been restarted.
    pub fn revive(&mut self, peer: NodeId) -> Result<(), SendError> {
        self.known(peer)?;
        let now = self.drive.look();
        self.drive.engine.revive_peer(now, peer);
        self.peers.revive(peer);
        self.drive.touched();
        Ok(())
    }

    /// Gives a message's buffer back, to be used for the next one.
    pub fn recycle(&mut self, message: Message) {
        if let Some(buffer) = self.inbox.recycle(message.body) {
            self.drive.engine.recycle(buffer);
        }
    }

    /// Sends a best-effort frame to all: once on a link with broadcast, else once per peer. Nothing is queued: returns how many
    /// peers it could not be sent to now. `payload` is at most `share_capacity_bytes`; of a larger one nothing is sent.
    pub fn broadcast_share(
        &mut self,
        port: u16,
        epoch: u32,
        lap: u32,
        start: u32,
        payload: &[u8],
    ) -> Result<usize, EndpointError> {
        let missed = self.gather_share(port, epoch, lap, start, payload)?;
        self.push()?;
        Ok(missed)
    }

    /// Like `broadcast_share`, but frames may wait in the link for `push`: cheaper when several follow each other.
    pub fn gather_share(
        &mut self,
        port: u16,
        epoch: u32,
        lap: u32,
        start: u32,
        payload: &[u8],
    ) -> Result<usize, EndpointError> {
        if payload.len() > self.share_capacity_bytes() {
            return Ok(self.membership.members.len() - 1);
        }
        Ok(self
            .drive
            .share(Destination::Broadcast, port, epoch, lap, start, payload)?)
    }

    /// Sends what `gather_share` gathered.
    pub fn push(&mut self) -> Result<(), EndpointError> {
        Ok(self.drive.link.flush()?)
    }

    /// Sends a best-effort frame to one peer; `false`: not now (or it is too large, or there is no such peer).
    pub fn send_share(
        &mut self,
        to: NodeId,
        port: u16,
        epoch: u32,
        lap: u32,
        start: u32,
        payload: &[u8],
    ) -> Result<bool, EndpointError> {
        let sent = self.gather_share_to(to, port, epoch, lap, start, payload)?;
        self.push()?;
        Ok(sent)
    }

    /// Like `send_share`, but the frame may wait in the link for `push`: cheaper when several follow each other.
    pub fn gather_share_to(
        &mut self,
        to: NodeId,
        port: u16,
        epoch: u32,
        lap: u32,
        start: u32,
        payload: &[u8],
    ) -> Result<bool, EndpointError> {
        if to == self.me() || payload.len() > self.share_capacity_bytes() {
            return Ok(false);
        }
        let missed = self
            .drive
            .share(Destination::Peer(to), port, epoch, lap, start, payload)?;
        Ok(missed == 0)
    }

    /// Whether one transmit of the link reaches everyone.
    pub fn broadcasts(&self) -> bool {
        self.drive.caps().broadcast
    }

    /// Largest payload of one best-effort frame on this link.
    pub fn share_capacity_bytes(&self) -> usize {
        self.drive.engine.share_capacity_bytes()
    }

    /// A descriptor for somebody else's event loop: readable when there may be something to poll, once `arm_fd` was called.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.drive.link.fd()
    }

    /// Asks that the next frame make `fd` readable; `false`: there is something to poll or to take now. Poll again also after
    /// `until_timer`. What only a handler can take (notices, shares) is told of once: a program that has none may sleep.
    pub fn arm_fd(&mut self) -> Result<bool, EndpointError> {
        let news = self.inbox.take_news() || self.inbox.next_bytes().is_some();
        Ok(!news && !self.drive.has_backlog() && self.drive.link.arm_fd()?)
    }

    /// How long an event loop may sleep before it must poll again; `None`: until `fd` is readable.
    pub fn until_timer(&mut self) -> Option<Duration> {
        self.drive.until_timer()
    }

    /// What was counted since the endpoint was opened.
    pub fn counters(&self) -> Counters {
        Counters {
            engine: *self.drive.engine.counters(),
            link: self.drive.link.counters(),
            seal: self.drive.link.sealing(),
            misplaced_frames: self.drive.misplaced_frames,
            dropped_shares: self.inbox.dropped_shares,
        }
    }

    /// Shows the present numbers to readers of metrics now, as polling does ten times a second: for a program about to compute
    /// long without polling. Never waits.
    pub fn publish_metrics(&mut self) {
        self.drive.look();
        self.drive.publish(self.inbox.dropped_shares);
    }

    /// Where metrics can be read over TCP, if `Options::metrics` asked for that.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.drive.publisher.as_ref().and_then(Publisher::addr)
    }

    /// As users write it, without parameters: `shm`, `udp`.
    pub fn link_name(&self) -> &'static str {
        self.drive.caps().name
    }

    /// Waits up to `timeout` for acknowledgements, then tells peers that this node leaves. On a link that loses frames it stays
    /// a moment longer, to answer those whose last acknowledgement got lost.
    pub fn close(mut self, timeout: Duration) {
        // A link that fails now ends the waiting; there is nobody left to tell.
        if !matches!(self.flush(timeout), Ok(true)) || self.drive.caps().lossless {
            return;
        }
        let start = std::time::Instant::now();
        while start.elapsed() < LINGER_MOST.min(timeout) {
            let linger = LINGER.min(timeout);
            if !matches!(self.run_until(linger, |_, _| true), Ok(true)) {
                return; // silence
            }
        }
    }

    #[inline]
    fn send_copied(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
        notify: bool,
    ) -> Result<SendId, SendError> {
        unreserved(lane)?;
        if message.len() >= LENT_BYTES && !lane.is_latest() {
            return self.send_lent(to, lane, message, notify);
        }
        loop {
            match self
                .drive
                .submit(to, lane, Payload::Copied(message), notify)
            {
                Err(SendError::WouldBlock { .. }) if self.queue_length(to) == 0 => {
                    return Err(SendError::NoMemory {
                        bytes: message.len(),
                    });
                }
                Err(SendError::WouldBlock { .. }) => {
                    self.wait_writable(to, message.len(), FOREVER)?
                }
                done => return done,
            };
        }
    }

    /// A long message leaves from where the caller has it. Copied is what is on its way when nearly all has left: a copy of all would
    /// be made before anything leaves, drive everything else from the caches, and take memory for as long as it travels.
    fn send_lent(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
        notify: bool,
    ) -> Result<SendId, SendError> {
        let id = loop {
            match self.drive.submit_lent(to, lane, message, notify) {
                Err(SendError::WouldBlock { .. }) => self.wait_writable(to, 0, FOREVER)?,
                done => break done,
            };
        };
        let sent = id.and_then(|id| self.await_left(to, message).map(|()| id));
        if sent.is_err() && self.drive.engine.withdraw(to) {
            return sent;
        }
        while !self.drive.engine.keep(to, message) {
            if self.drive.engine.withdraw(to) {
                let bytes = message.len();
                return Err(SendError::NoMemory { bytes });
            }
            // What has begun must be ended.
            self.run_lent(MEMORY_PAUSE, message, |_, _| false)?;
        }
        sent
    }

    /// Until so much of the lent message has left that the rest may wait in the queue.
    fn await_left(&mut self, to: NodeId, message: &[u8]) -> Result<(), SendError> {
        let unsent = |engine: &Engine| engine.unsent_bytes(to, message.len());
        if message.len() < AWAITED_BYTES {
            return unsent(&self.drive.engine).map(drop).map_err(refused);
        }
        self.run_lent(Duration::ZERO, message, |_, _| true)?; // what is acknowledged need not be copied
        let waits = |engine: &Engine| matches!(unsent(engine), Ok(Some(AHEAD_BYTES..)));
        if waits(&self.drive.engine) {
            self.run_lent(FOREVER, message, |engine, kept| {
                !waits(engine) || kept.peers.is_lost(to)
            })?;
        }
        self.alive(to)?;
        unsent(&self.drive.engine).map(drop).map_err(refused)
    }

    /// For libraries above the endpoint: one turn; what came for them goes to `aside`, all else to where it stays for the program.
    /// Returns how much was done. Never waits.
    pub fn progress_aside(&mut self, aside: &mut impl Aside) -> Result<usize, EndpointError> {
        let mut before = 0;
        if !self.shelf.is_empty() {
            before = self.hand_over_aside(aside);
        }
        let mut intake = ToAside {
            aside,
            inbox: &mut self.inbox,
            peers: &mut self.peers,
        };
        Ok(before + self.drive.turn(true, &mut intake)?)
    }

    /// The same until something was done; `false`: nothing within `timeout`. Idles as the policy says.
    pub fn wait_aside(
        &mut self,
        aside: &mut impl Aside,
        timeout: Duration,
    ) -> Result<bool, EndpointError> {
        if !self.shelf.is_empty() {
            self.hand_over_aside(aside);
            return Ok(true);
        }
        let mut intake = ToAside {
            aside,
            inbox: &mut self.inbox,
            peers: &mut self.peers,
        };
        Ok(self.drive.run_until(&mut intake, timeout, |_, _| true)?)
    }

    #[cold]
    fn hand_over_aside(&mut self, aside: &mut impl Aside) -> usize {
        let count = self.shelf.hand_over(&mut self.drive.engine, aside);
        self.drive.touched();
        count
    }

    /// For libraries above the endpoint: queues `head` and `body` as one message of theirs, ordered among those of its priority,
    /// or says [`SendError::WouldBlock`].
    pub fn try_send_aside(
        &mut self,
        to: NodeId,
        priority: Priority,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), SendError> {
        let lane = Lane::new(DeliveryClass::Ordered, priority, ASIDE_CHANNEL);
        self.drive
            .submit(to, lane, Payload::Joined(head, body), false)
            .map(drop)
    }

    /// For libraries above the endpoint: memory in which one writes what a group reads, where the link has such.
    #[inline]
    pub fn cast(&mut self) -> Option<tsumuji_link::shm::Cast<'_>> {
        self.drive.link.cast()
    }

    /// Whether this endpoint, while it waits, polls without giving its core away at once.
    pub fn spins(&self) -> bool {
        self.drive.spins()
    }

    /// Largest message that travels in one frame, so that its receiver reads it where the link has it.
    pub fn frame_message_bytes(&self) -> usize {
        let Self { drive, .. } = self;
        (drive.caps().frame_bytes).saturating_sub(tsumuji_wire::DATA_HEADER_BYTES)
    }

    /// The peer died or left, and is not up again.
    pub fn is_dead(&self, peer: NodeId) -> bool {
        self.peers.is_dead(peer)
    }

    /// How often `peer` died or left, as far as turns have told.
    pub fn deaths(&self, peer: NodeId) -> u64 {
        self.peers.deaths(peer)
    }

    /// How often anyone did: a cheap question whether somebody new has.
    pub fn deaths_in_all(&self) -> u64 {
        self.peers.deaths_in_all()
    }

    pub(crate) fn known(&self, peer: NodeId) -> Result<(), SendError> {
        let member = peer != self.me() && usize::from(peer.0) < self.membership.members.len();
        if member {
            Ok(())
        } else {
            Err(SendError::UnknownPeer { peer })
        }
    }

    pub(crate) fn alive(&self, peer: NodeId) -> Result<(), SendError> {
        if let Some(theirs) = self.peers.other_congestion(peer) {
            Err(SendError::OtherCongestion { peer, theirs })
        } else if self.peers.is_dead(peer) {
            Err(SendError::PeerDead { peer })
        } else {
            Ok(())
        }
    }

    pub(crate) fn run_until(
        &mut self,
        timeout: Duration,
        done: impl FnMut(&Engine, &Kept<'_>) -> bool,
    ) -> Result<bool, EndpointError> {
        self.run_lent(timeout, &[], done)
    }

    /// The same while `lent` is lent to the engine.
    fn run_lent(
        &mut self,
        timeout: Duration,
        lent: &[u8],
        mut done: impl FnMut(&Engine, &Kept<'_>) -> bool,
    ) -> Result<bool, EndpointError> {
        let mut kept = Kept {
            inbox: &mut self.inbox,
            shelf: &mut self.shelf,
            peers: &mut self.peers,
            lent,
        };
        Ok(self
            .drive
            .run_until(&mut kept, timeout, |engine, kept| done(engine, kept))?)
    }
}

/// Programs keep off the channel of the libraries between them and the endpoint.
#[inline]
fn unreserved(lane: Lane) -> Result<(), SendError> {
    if lane.channel() == ASIDE_CHANNEL {
        return Err(SendError::ReservedChannel {
            channel: ASIDE_CHANNEL,
        });
    }
    Ok(())
}

impl<L: Link> Drop for Endpoint<L> {
    /// Tells peers that this node leaves, so that they need not wait for silence.
    fn drop(&mut self) {
        let farewells = if self.drive.caps().lossless {
            1
        } else {
            FAREWELLS
        };
        for _ in 0..farewells {
            let now = self.drive.look();
            self.drive.engine.close(now);
            while let Ok(1..) = self.drive.transmit(&[]) {} // a failed link has nobody to tell
        }
    }
}
