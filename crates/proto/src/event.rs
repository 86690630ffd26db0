//! Events that the engine reports to its driver besides deliveries, and the states that it can be asked for.

use crate::congestion::CongestionKind;

use crate::message::SendId;
use crate::peer::pace::Pace;
use crate::time::Duration;
use tsumuji_wire::NodeId;

/// An event besides deliveries; read with `Engine::poll_event`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A session with this incarnation of the peer has begun: hello and welcome were exchanged.
    PeerUp {
        /// The peer.
        peer: NodeId,
        /// The peer's incarnation.
        incarnation: u32,
    },
    /// The session has ended: nothing was heard for `Config::dead_after`, or the peer closed, or another incarnation has taken its place, or the
    /// driver aborted it. All unacknowledged messages to the peer have failed.
    PeerDead {
        /// The peer.
        peer: NodeId,
        /// Messages that were submitted and never acknowledged.
        failed_messages: usize,
    },
    /// The session with this peer is stalled; `PeerDead` follows. The peer is heard, but a message was sent to it again and again for longer than it
    /// might be silent, and nothing new of it was acknowledged. For example, the path carries only small frames, or damage that no checksum found has
    /// left the two sides in contradiction.
    Stalled {
        /// The peer.
        peer: NodeId,
        /// The stalled message; `None`: one that the peer sent and counts as delivered, and that is incomplete here.
        message: Option<SendId>,
    },
    /// Reliable messages to this peer were not acknowledged when the session ended; `PeerDead` follows. Messages on channels of libraries
    /// ([`Channel::LIBRARY_IDS`]) do not count.
    ///
    /// [`Channel::LIBRARY_IDS`]: tsumuji_wire::Channel::LIBRARY_IDS
    MessagesLost {
        /// The peer.
        peer: NodeId,
        /// Number of these messages.
        messages: usize,
    },
    /// A message submitted with `notify` was acknowledged whole.
    Sent {
        /// The peer.
        peer: NodeId,
        /// The message.
        id: SendId,
    },
    /// A message that was queued before the session began is larger than the peer accepts, and was dropped.
    TooLarge {
        /// The peer.
        peer: NodeId,
        /// The message.
        id: SendId,
        /// Its length, in bytes.
        size: usize,
        /// Largest message that the peer accepts, in bytes.
        limit: usize,
    },
    /// The peer runs another congestion control, so no session begins. Reported once, until a session begins after all.
    OtherCongestion {
        /// The peer.
        peer: NodeId,
        /// Congestion control of the peer.
        theirs: CongestionKind,
    },
    /// A submit that was refused with `QueueFull` may be tried again.
    Writable {
        /// The peer.
        peer: NodeId,
    },
}

/// Destination of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// One peer.
    Peer(NodeId),
    /// Every peer.
    Broadcast,
}

/// State of the traffic with one peer in both directions, readable at any time. Fields concern what this node sends unless they say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flow {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Frames sent and neither acknowledged nor lost.
    pub in_flight_frames: usize,
    /// Free part of the peer's budget, in bytes, as it stated last.
    pub window_bytes: usize,
    /// Messages submitted and not yet acknowledged.
    pub queued_messages: usize,
    /// Bytes of these messages that are held here.
    pub queued_bytes: usize,
    /// Frames that were sent again, in all sessions.
    pub retransmitted_frames: u64,
    /// Frames that this node may send before the peer must grant more.
    pub credit_frames: usize,
    /// Datagrams that a newer one replaced before they began to leave, in all sessions.
    pub superseded_datagrams: u64,
    /// Datagrams that were dropped because their deadline had passed, in all sessions.
    pub late_datagrams: u64,
    /// Datagrams of several frames of which one was lost, in all sessions.
    pub lost_datagrams: u64,
    /// Pace of frames to the peer, as the program set it.
    pub pace: Pace,
    /// Frames that left later than credit allowed to keep that pace, in this session and since the pace was set.
    pub paced_frames: u64,
    /// Other direction: frames that the peer may still send to this node.
    pub granted_frames: usize,
    /// Other direction: frames that the peer is granted ahead at present, its share of this node's window.
    pub incoming_window_frames: usize,
    /// Other direction: memory of the peer's messages here that arrive, wait for earlier ones, or are held by the program, in bytes.
    pub incoming_bytes: usize,
    /// Other direction: the peer's last frame said that it has more to send.
    pub incoming_backlog: bool,
}

/// What waits to be acknowledged by one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// Messages submitted and not yet acknowledged.
    pub messages: usize,
    /// Bytes of these messages that are held here.
    pub bytes: usize,
    /// Some of them have not left, perhaps for lack of credit.
    pub waits: bool,
}

/// What a node lets its peers send ahead; see `Engine::set_window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Window {
    /// Frames that may be granted to all peers together.
    pub frames: usize,
    /// Upper limit of `frames`: what the link's receive side holds.
    pub frames_limit: usize,
    /// Frames granted and not used yet. After the window was made smaller they may be more than `frames` for a while.
    pub granted_frames: usize,
    /// Memory that messages of all peers may take that arrived and were not released, in bytes.
    pub budget_bytes: usize,
    /// Part of `budget_bytes` that is taken.
    pub budget_used_bytes: usize,
    /// A policy of the program decides who may send how much.
    pub policy: bool,
    /// How often this policy, or one before it, was asked.
    pub policy_decisions: u64,
}

/// Accounts of the engine, each kept twice: as a total, and as the sum over its peers. The two are always equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounts {
    /// Charge to the budget: messages that arrive, wait for earlier ones, or are held by the program.
    pub memory_bytes: usize,
    /// Sum of the same over the peers.
    pub peers_memory_bytes: usize,
    /// Frames that peers may send and that have not come, or may send when they are back.
    pub claimed_frames: u64,
    /// Sum of the same over the peers.
    pub peers_claimed_frames: u64,
    /// Bytes queued to all peers.
    pub queued_bytes: usize,
}

impl Accounts {
    /// Whether each total equals the sum over the peers.
    pub fn are_balanced(&self) -> bool {
        self.memory_bytes == self.peers_memory_bytes
            && self.claimed_frames == self.peers_claimed_frames
    }
}
