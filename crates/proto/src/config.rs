//! Configuration of an engine, fixed when it is created.

use crate::congestion::Congestion;
use crate::time::Duration;
use tsumuji_wire::NodeId;

/// Properties of the way between this node and one peer. Peers of one node may be reached over different links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerLink {
    /// As `Config::frame_bytes`; each peer has one of these, so it is kept small.
    pub frame_bytes: u32,
    /// As `Config::lossless`.
    pub lossless: bool,
    /// There is a ring of `Config::ring_bytes` in each direction.
    pub has_ring: bool,
    /// The driver knows whether the peer's process lives, and calls `abort` when it has ended: silence ends no session with it.
    pub is_watched: bool,
}

impl PeerLink {
    /// That of an engine whose peers are all reached over one link.
    pub fn of(config: &Config) -> Self {
        Self {
            frame_bytes: config.frame_bytes as u32, // at most `FRAME_BYTES_MAX`
            lossless: config.lossless,
            has_ring: config.ring_bytes > 0,
            is_watched: false,
        }
    }
}

/// Configuration of an engine, fixed when it is created.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// Incarnation of this process: random, never 0, chosen by the caller.
    pub incarnation: u32,
    /// Largest frame that the link carries, in bytes, the header of this protocol included. With several links that of broadcasts.
    pub frame_bytes: usize,
    /// How many frames of `frame_bytes` the link's receive side holds for all peers together: a bound on the sum of credit.
    pub receive_frames: usize,
    /// The link loses nothing between live peers: silence means that the peer does not run, not that frames are lost.
    pub lossless: bool,
    /// Capacity of the ring between two nodes, in bytes, on a link that keeps frames in order, loses none between live peers, and tells which were
    /// read: messages that fit may then go directly. 0 on other links.
    pub ring_bytes: usize,
    /// Congestion control; the same at both nodes of a pair, otherwise no session begins.
    pub congestion: Congestion,
    /// Memory that messages of all peers may take that arrived and were not released, counted with their content and 64 bytes each. Two messages may
    /// exceed it: one admitted when little was free, and one that an ordered channel waits for. So the most that they take is
    /// `budget_bytes + 2 × (message_limit_bytes + 64)`.
    pub budget_bytes: usize,
    /// Largest message accepted from a peer.
    pub message_limit_bytes: usize,
    /// Bytes that may be queued to one peer before `submit` refuses, including overhead for each message.
    pub send_queue_bytes: usize,
    /// Interval at which a silent peer is asked for an acknowledgement.
    pub keep_alive: Duration,
    /// Silence after which a peer counts as dead.
    pub dead_after: Duration,
}
