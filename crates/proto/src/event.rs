//! What the engine tells its driver beside deliveries.

use crate::congestion::Congestion;

use crate::message::SendId;
use crate::peer::pace::Pace;
use crate::time::Duration;
use tsumuji_wire::NodeId;

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
    /// The session with this peer could not go on, and ends, as is told next: the peer is heard, but a message was sent to it again and again
    /// for longer than it might be silent, and nothing new of it acknowledged. The path carries small frames and no large ones, say; or
    /// damage that no checksum found has left the two in contradiction.
    Stalled {
        /// With whom.
        peer: NodeId,
        /// Which message; `None`: one of the peer's, which it takes for delivered, and which is not whole here.
        message: Option<SendId>,
    },
    /// Reliable messages to this peer were not acknowledged when the session ended, which is told next. Those on
    /// channels of libraries ([`Channel::LIBRARY_IDS`]) do not count.
    ///
    /// [`Channel::LIBRARY_IDS`]: tsumuji_wire::Channel::LIBRARY_IDS
    MessagesLost {
        /// To whom.
        peer: NodeId,
        /// How many.
        messages: usize,
    },
    /// A message submitted with `notify` was acknowledged whole.
    Sent {
        /// To whom.
        peer: NodeId,
        /// Which.
        id: SendId,
    },
    /// A message queued before the peer had said how much it takes is larger than that: it was given up.
    TooLarge {
        /// To whom.
        peer: NodeId,
        /// Which.
        id: SendId,
        /// Its length.
        size: usize,
        /// What the peer takes at most.
        limit: usize,
    },
    /// The peer runs another congestion control: the two cannot meet. Told once until it is met after all.
    OtherCongestion {
        /// Who.
        peer: NodeId,
        /// What it runs.
        theirs: Congestion,
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

/// State of the traffic with one peer in both directions, readable at any time. What is not said to be of the other direction is of
/// what we send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// Datagrams that a newer one replaced before they began to leave, ever.
    pub superseded_datagrams: u64,
    /// Datagrams that were dropped because their deadline had passed, ever.
    pub late_datagrams: u64,
    /// Datagrams of several frames of which one was lost, ever.
    pub lost_datagrams: u64,
    /// How fast frames leave to the peer, where the program asked for it.
    pub pace: Pace,
    /// Frames that left later than credit allowed, to keep that pace, ever.
    pub paced_frames: u64,
    /// The other direction: frames that the peer may still send to us.
    pub granted_frames: usize,
    /// Frames that it is granted ahead at present: its share of our window.
    pub incoming_window_frames: usize,
    /// Memory that its messages take here: that arrive, wait for their turn, or are held by the program.
    pub incoming_bytes: usize,
    /// Its last frame said that more wait to be sent to us.
    pub incoming_backlog: bool,
}

/// What waits to be acknowledged by one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queued {
    /// Messages submitted and not yet acknowledged.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Something of them has not left: perhaps there is no credit.
    pub waits: bool,
}

/// What a node lets its peers send ahead; see `Engine::set_window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Window {
    /// Frames that may be granted to all peers together.
    pub frames: usize,
    /// Most that `frames` can be: what the link's receive side holds.
    pub frames_limit: usize,
    /// Of these, granted and not used yet. After the window was made smaller it may be more than `frames` for a while.
    pub granted_frames: usize,
    /// Memory that messages which arrived and were not consumed may take, all peers together.
    pub budget_bytes: usize,
    /// Of that, taken.
    pub budget_used_bytes: usize,
    /// A policy of the program's own decides who may send how much.
    pub policy: bool,
    /// Times that it, or one before it, was asked.
    pub policy_decisions: u64,
}

/// What the engine keeps books of, each account twice: as one total, and as the sum over its peers. The two are always equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounts {
    /// Charged to the budget: messages that arrive, wait for their turn, or are held by the program.
    pub memory_bytes: usize,
    /// The same, by peer.
    pub peers_memory_bytes: usize,
    /// Frames that peers may send and that have not come, or may send once they are back.
    pub claimed_frames: u64,
    /// The same, by peer.
    pub peers_claimed_frames: u64,
    /// Bytes queued to all peers.
    pub queued_bytes: usize,
}

impl Accounts {
    /// Nothing is counted for nobody, or twice.
    pub fn are_balanced(&self) -> bool {
        self.memory_bytes == self.peers_memory_bytes
            && self.claimed_frames == self.peers_claimed_frames
    }
}
