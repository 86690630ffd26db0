//! What an engine is told once, at its birth.

use crate::congestion::Congestion;
use crate::time::Duration;
use tsumuji_wire::NodeId;

/// What an engine is told once, at its birth.
#[derive(Debug, Clone)]
pub struct Config {
    /// This node.
    pub me: NodeId,
    /// This life of this node: random, never 0, given by the caller.
    pub incarnation: u32,
    /// Largest frame the link carries, in bytes, our header included.
    pub frame_bytes: usize,
    /// How many frames of `frame_bytes` the link's receive side holds for all peers together: Σ credit stays below it.
    pub receive_frames: usize,
    /// The link loses nothing between live peers: silence means that the peer does not run, not that frames are gone.
    pub lossless: bool,
    /// Bytes of frames that lie between two nodes at most, on a link that keeps them in order, loses none between live peers, and tells which
    /// were read: messages that fit a frame then go directly. 0: the link is of another kind.
    pub ring_bytes: usize,
    /// Who may send how much, and what becomes of what was lost. The same at both nodes of a pair, or they do not meet.
    pub congestion: Congestion,
    /// Memory that messages which arrived and were not released may take, all peers together, at 64 bytes each beside their
    /// content. Two messages may exceed it: the one that found something free, however little, and one that an ordered channel
    /// waits for. So they never take more than `budget_bytes + 2 × (message_limit_bytes + 64)`.
    pub budget_bytes: usize,
    /// Largest message accepted from a peer.
    pub message_limit_bytes: usize,
    /// Bytes queued to one peer, with what is kept beside each message, before `submit` refuses.
    pub send_queue_bytes: usize,
    /// A silent peer is probed this often.
    pub keep_alive: Duration,
    /// A peer from which nothing is heard for this long is dead.
    pub dead_after: Duration,
}
