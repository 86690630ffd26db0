//! The engine: reliability, flow and congestion control between one node and all its peers.
//!
//! Sans-I/O: no clock, no socket, no thread, no randomness but the seed it is given. `node` drives it over a link, `sim`
//! drives it in virtual time. Same inputs, same outputs.
#![no_std]
extern crate alloc;

pub mod time;

pub use time::{Duration, Instant};
pub use tsumuji_wire::{DeliveryClass, Lane, NodeId, Priority, Share};

use alloc::vec::Vec;

/// What an engine is told once, at its birth.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// This life of this node: random, never 0, given by the caller.
    pub incarnation: u32,
    /// Seed of every random choice the engine makes.
    pub seed: u64,
    /// Largest frame the link carries, in bytes, our header included.
    pub frame_bytes: usize,
    /// How many frames of `frame_bytes` the link's receive side holds for all peers together: Σ credit stays below it.
    pub receive_frames: usize,
    /// Memory that arrived and not yet consumed messages may take, all peers together.
    pub budget_bytes: usize,
    /// Largest message accepted from a peer. One such message may exceed `budget_bytes`.
    pub message_limit_bytes: usize,
    /// Bytes queued to one peer before `submit` refuses.
    pub send_queue_bytes: usize,
    /// A silent peer is probed this often.
    pub keep_alive: Duration,
    /// A peer from which nothing is heard for this long is dead.
    pub dead_after: Duration,
}

/// The bytes of a message handed to `submit`.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Copied into the engine's own memory.
    Copied(&'a [u8]),
    /// Taken as it is.
    Owned(Vec<u8>),
}

/// Names a submitted message until it is acknowledged: per peer, increasing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SendId(pub u64);

/// A message that arrived.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// Who sent it.
    pub from: NodeId,
    /// The lane it came by.
    pub lane: Lane,
    /// The message.
    pub body: Body<'a>,
}

/// A message's bytes: borrowed from the frame it came in, or assembled from several.
#[derive(Debug)]
pub enum Body<'a> {
    /// Lies in the link's receive buffer; gone when the call returns.
    Frame(&'a [u8]),
    /// Assembled; the receiver may keep it, or give it back with `Engine::recycle`.
    Whole(Vec<u8>),
}

impl Body<'_> {
    /// The message.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(bytes) => bytes,
            Self::Whole(bytes) => bytes,
        }
    }
}

/// Takes what `Engine::handle_frame` delivers, at once.
pub trait Sink {
    /// Each delivered message counts against the budget until `Engine::release` is told that the program is done with it.
    fn message(&mut self, delivery: Delivery<'_>);
    /// A best-effort frame; not counted against anything.
    fn share(&mut self, share: Share<'_>);
}

/// What happened beside deliveries; read with `Engine::poll_event`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Hello and welcome were exchanged with this life of the peer.
    PeerUp {
        /// Who.
        peer: NodeId,
        /// Its life.
        incarnation: u32,
    },
    /// Nothing was heard within the stated bound, or the peer came back as a new life: all it was sent has failed.
    PeerDead {
        /// Who.
        peer: NodeId,
        /// Messages submitted and never acknowledged.
        failed_messages: usize,
    },
    /// A message submitted with `notify` was acknowledged whole.
    Sent {
        /// To whom.
        peer: NodeId,
        /// Which.
        id: SendId,
    },
    /// A submit that was refused with `QueueFull` may be tried again.
    Writable {
        /// To whom.
        peer: NodeId,
    },
}

/// Where the next frame must go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// One peer.
    Peer(NodeId),
    /// Every peer.
    Broadcast,
}

/// State of the traffic with one peer, readable at any time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Flow {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// Frames sent and neither acknowledged nor lost.
    pub in_flight_frames: usize,
    /// Bytes the peer's program still has room for.
    pub window_bytes: usize,
    /// Messages submitted and not yet acknowledged.
    pub queued_messages: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// Frames sent again, ever.
    pub retransmitted_frames: u64,
    /// Frames we may still send before the peer must grant more.
    pub credit_frames: usize,
}

/// Why `submit` refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Larger than the peer takes.
    #[error("message is {size} bytes; {peer} takes at most {limit}")]
    TooLarge {
        /// Of the message.
        size: usize,
        /// The peer's limit.
        limit: usize,
        /// To whom.
        peer: NodeId,
    },
    /// `Config::send_queue_bytes` are waiting already.
    #[error("queue to {peer} is full; wait for Event::Writable")]
    QueueFull {
        /// To whom.
        peer: NodeId,
    },
    /// Declared dead.
    #[error("{peer} was declared dead")]
    PeerDead {
        /// To whom.
        peer: NodeId,
    },
    /// Never added.
    #[error("{peer} is not a member of this cluster")]
    UnknownPeer {
        /// To whom.
        peer: NodeId,
    },
}

// The engine's own surface, to be kept exactly (bodies live in `engine/`):
//
// impl Engine {
//     pub fn new(config: Config) -> Self;
//     /// Begins hello with `peer`; messages may be submitted at once and leave when it answers.
//     pub fn add_peer(&mut self, now: Instant, peer: NodeId);
//     /// A dead peer may be tried again (a restarted process): forgets its former life.
//     pub fn revive_peer(&mut self, now: Instant, peer: NodeId);
//     pub fn handle_frame(&mut self, now: Instant, frame: &[u8], sink: &mut impl Sink);
//     pub fn submit(&mut self, now: Instant, to: NodeId, lane: Lane, payload: Payload<'_>, notify: bool) -> Result<SendId, SubmitError>;
//     /// Queues a best-effort frame; the newest wins when the small queue is full.
//     pub fn submit_share(&mut self, to: Destination, port: u16, epoch: u32, lap: u32, start: u32, payload: &[u8]) -> Result<(), SubmitError>;
//     /// Writes a best-effort frame straight into a link's slot: nothing is queued. `None`: slot too small.
//     pub fn write_share(&mut self, slot: &mut [u8], port: u16, epoch: u32, lap: u32, start: u32, payload: &[u8]) -> Option<usize>;
//     /// Largest payload of one best-effort frame.
//     pub fn share_capacity_bytes(&self) -> usize;
//     /// To whom the next frame that is due goes, if any. Asking changes nothing that a peer could see.
//     pub fn next_destination(&mut self, now: Instant) -> Option<Destination>;
//     /// Writes that frame into `slot` (`slot.len() >= Config::frame_bytes`); `to` is what `next_destination` just answered.
//     pub fn write_frame(&mut self, now: Instant, to: Destination, slot: &mut [u8]) -> usize;
//     /// The link has no slot towards `to` now: others go first.
//     pub fn defer(&mut self, to: Destination);
//     pub fn handle_timeout(&mut self, now: Instant);
//     pub fn poll_timeout(&self) -> Option<Instant>;
//     pub fn poll_event(&mut self) -> Option<Event>;
//     pub fn flow(&self, peer: NodeId) -> Option<Flow>;
//     /// The program is done with `bytes` of messages from `peer`.
//     pub fn release(&mut self, peer: NodeId, bytes: usize);
//     /// Gives a `Body::Whole` buffer back to the pool.
//     pub fn recycle(&mut self, buffer: Vec<u8>);
//     /// Takes an empty buffer with at least `capacity` from the pool.
//     pub fn buffer(&mut self, capacity: usize) -> Vec<u8>;
//     /// Tells peers that this node leaves (no wait for keep-alive); further submits fail.
//     pub fn close(&mut self, now: Instant);
//     pub fn counters(&self) -> &Counters;   // frames/bytes sent and received, retransmitted, drops by reason
// }
