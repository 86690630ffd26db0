//! One simulated computer: its network card, its processor, its process and the program on top.
//!
//! Owned and driven by `net`. The card's receive ring holds `ring_frames` and is drained one frame per `frame_ns`. A paused host drains
//! nothing and lets its timeouts pass.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::card::Card;
use crate::payload::checksum;
use tsumuji_node::simulated::Program;
use tsumuji_proto::{
    Body, Borrowed, Channel, Config, Datagram, Delivery, Event, Instant, NodeId, Posted, SendId,
};

/// The pace at which a node's program takes delivered messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At once.
    Prompt,
    /// So many bytes a second; a message is released when all of it is taken.
    BytesPerSecond(u64),
    /// Not at all, until the pace is set anew.
    Stopped,
}

/// A message as the program received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// When it was delivered.
    pub at: Instant,
    /// When it was submitted.
    pub submitted: Instant,
    /// Its sender.
    pub from: NodeId,
    /// Its channel.
    pub channel: Channel,
    /// Its length in bytes.
    pub bytes: usize,
}

/// A datagram as the program received it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// When it was delivered.
    pub at: Instant,
    /// Its source.
    pub source: NodeId,
    /// The source's incarnation.
    pub incarnation: u32,
    /// Its channel: the id of a board.
    pub channel_id: u16,
    /// Its epoch.
    pub epoch: u32,
    /// Its lap.
    pub lap: u32,
    /// Its key: the first element.
    pub key: u32,
    /// Length of its payload in bytes.
    pub bytes: usize,
}

/// What has come to a program; each list in order.
#[derive(Debug, Clone, Default)]
pub struct Arrivals {
    /// All messages.
    pub deliveries: Vec<Received>,
    /// Bodies of those that came by `Net::send`.
    pub bodies: Vec<Vec<u8>>,
    /// All datagrams.
    pub datagrams: Vec<ReceivedDatagram>,
    /// Contents of those that came by `Net::publish_given`.
    pub payloads: Vec<Vec<u8>>,
    /// What the engine reported.
    pub events: Vec<(Instant, Event)>,
}

/// One message, or several alike, that the program wants to send.
#[derive(Debug, Clone)]
pub(crate) enum Wish {
    Given(Vec<u8>),
    Made {
        bytes: usize,
        count: u64,
    },
    /// One message that the engine borrows while it leaves.
    Borrowed {
        bytes: usize,
    },
}

/// A message that the engine borrows from a program.
#[derive(Debug)]
pub(crate) struct Borrowing {
    pub(crate) to: NodeId,
    pub(crate) id: SendId,
    pub(crate) body: Vec<u8>,
    /// The program cancels the borrowing once no more than this waits to leave.
    pub(crate) ahead_bytes: usize,
}

impl Borrowing {
    pub(crate) fn borrowed(&self) -> Borrowed<'_> {
        Borrowed::new(self.to, self.id, &self.body)
    }
}

#[derive(Debug)]
pub(crate) struct Host<P> {
    /// `None`: no process runs.
    pub(crate) process: Option<P>,
    pub(crate) config: Config,
    pub(crate) peers: BTreeSet<NodeId>,
    pub(crate) paused: bool,

    pub(crate) card: Card,
    pub(crate) ring_frames: usize,
    pub(crate) ring_peak: usize,
    pub(crate) frame_ns: u64,
    pub(crate) busy_until: Instant,
    pub(crate) receive_planned: bool,
    pub(crate) receive_full: u64,

    pub(crate) transmit_planned: bool,

    pub(crate) timeout_at: Option<Instant>,
    /// Timeouts in a row at the same moment.
    pub(crate) timeouts_now: u32,
    pub(crate) timed_out_at: Instant,

    pub(crate) pace: Pace,
    pub(crate) held: VecDeque<(NodeId, usize)>,
    pub(crate) held_bytes: usize,
    pub(crate) held_peak: usize,
    pub(crate) consume_planned: bool,
    pub(crate) largest: usize,

    pub(crate) wishes: BTreeMap<NodeId, VecDeque<(Channel, Wish)>>,
    /// At most one at a time.
    pub(crate) borrowing: Option<Borrowing>,
    /// How often the present process was told that the session of a peer ended.
    pub(crate) ended_sessions: BTreeMap<NodeId, u64>,
    pub(crate) events: Vec<(Instant, Event)>,
    pub(crate) received: Vec<Received>,
    pub(crate) bodies: Vec<Vec<u8>>,
    pub(crate) datagrams: Vec<ReceivedDatagram>,
    pub(crate) payloads: Vec<Vec<u8>>,
    pub(crate) received_bytes: u64,
}

impl<P> Host<P> {
    pub(crate) fn new(config: Config, card: Card) -> Self {
        Self {
            process: None,
            peers: BTreeSet::new(),
            paused: false,
            ring_frames: match config.ring_bytes {
                0 => config.receive_frames,
                _ => usize::MAX, // their writers are refused
            },
            ring_peak: 0,
            frame_ns: 0,
            busy_until: Instant::default(),
            receive_planned: false,
            receive_full: 0,
            card,
            transmit_planned: false,
            timeout_at: None,
            timeouts_now: 0,
            timed_out_at: Instant::default(),
            pace: Pace::Prompt,
            held: VecDeque::new(),
            held_bytes: 0,
            held_peak: 0,
            consume_planned: false,
            largest: 0,
            wishes: BTreeMap::new(),
            borrowing: None,
            ended_sessions: BTreeMap::new(),
            events: Vec::new(),
            received: Vec::new(),
            bodies: Vec::new(),
            datagrams: Vec::new(),
            payloads: Vec::new(),
            received_bytes: 0,
            config,
        }
    }

    /// Drops all that the process held in memory. Statistics stay.
    pub(crate) fn forget_process(&mut self) {
        self.process = None;
        self.paused = false;
        self.receive_planned = false;
        self.transmit_planned = false;
        self.timeout_at = None;
        self.held.clear();
        self.held_bytes = 0;
        self.consume_planned = false;
        self.wishes.clear();
        self.borrowing = None;
        self.ended_sessions.clear();
    }
}

/// A message just delivered, not yet checked by the judge.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) from: NodeId,
    pub(crate) channel: Channel,
    pub(crate) bytes: usize,
    pub(crate) checksum: u64,
    pub(crate) whole: Option<Vec<u8>>,
    /// The program took it at once.
    pub(crate) is_taken: bool,
}

/// A datagram just delivered, not yet checked by the judge.
#[derive(Debug)]
pub(crate) struct ArrivedDatagram {
    pub(crate) stamp: ReceivedDatagram,
    pub(crate) checksum: u64,
    /// The content, where the net does not know it.
    pub(crate) given: Option<Vec<u8>>,
}

/// A delivery of one poll, with its session's number.
#[derive(Debug)]
pub(crate) enum Item {
    Message(u64, Arrived),
    Datagram(u64, ArrivedDatagram),
}

impl Item {
    /// Its source, and the number of its session.
    pub(crate) fn source(&self) -> (NodeId, u64) {
        match self {
            Self::Message(session, arrived) => (arrived.from, *session),
            Self::Datagram(session, arrived) => (arrived.stamp.source, *session),
        }
    }
}

/// Collects the deliveries of one poll.
#[derive(Debug)]
pub(crate) struct Mailbox<'a> {
    pub(crate) now: Instant,
    /// Copies of messages within a frame are wanted.
    pub(crate) copies: bool,
    /// Messages are taken at once.
    pub(crate) is_prompt: bool,
    pub(crate) borrowed: Borrowed<'a>,
    /// Channels whose datagrams have contents of the program's own.
    pub(crate) given: &'a BTreeSet<u16>,
    pub(crate) items: Vec<Item>,
    pub(crate) events: VecDeque<Event>,
}

impl Program for Mailbox<'_> {
    fn message(&mut self, delivery: Delivery<'_>) -> bool {
        let bytes = delivery.body.bytes();
        let (length, checksum) = (bytes.len(), checksum(bytes));
        let whole = match delivery.body {
            Body::Whole(bytes) => Some(std::mem::take(bytes)),
            Body::Frame(bytes) => self.copies.then(|| bytes.to_vec()),
            body @ Body::Posted(_) => Some(body.bytes().to_vec()),
        };
        let arrived = Arrived {
            from: delivery.from,
            channel: delivery.channel,
            bytes: length,
            checksum,
            whole,
            is_taken: self.is_prompt,
        };
        self.items.push(Item::Message(delivery.session, arrived));
        self.is_prompt
    }

    /// Posts a receive for messages of even length.
    fn place(&mut self, _: NodeId, _: Channel, length_bytes: usize) -> Option<Posted> {
        let is_posted = length_bytes.is_multiple_of(2);
        let buffer = || Box::new(vec![0_u8; length_bytes]);
        is_posted
            .then(|| Posted::new(0, length_bytes, buffer()).ok())
            .flatten()
    }

    fn datagram(&mut self, session: u64, datagram: Datagram<'_>) {
        let Datagram {
            source,
            incarnation,
            channel_id,
            epoch,
            lap,
            key,
            payload,
        } = datagram;
        let stamp = ReceivedDatagram {
            at: self.now,
            source,
            incarnation,
            channel_id,
            epoch,
            lap,
            key,
            bytes: payload.len(),
        };
        let arrived = ArrivedDatagram {
            stamp,
            checksum: checksum(payload),
            given: (self.given.contains(&channel_id)).then(|| payload.to_vec()),
        };
        self.items.push(Item::Datagram(session, arrived));
    }

    fn event(&mut self, event: &Event) {
        self.events.push_back(event.clone());
    }

    /// The loop tells so of messages in a ring that nobody reads.
    fn lost(&mut self, peer: NodeId, messages: usize) {
        self.events
            .push_back(Event::MessagesLost { peer, messages });
    }

    fn borrowed(&self) -> &Borrowed<'_> {
        &self.borrowed
    }
}
