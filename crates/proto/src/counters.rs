//! Counters of the engine. Every frame that is not used is counted under its reason.

use tsumuji_wire::DropReason;

/// Why a received frame was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drop {
    /// Shorter than it states.
    Truncated,
    /// Another version of the format.
    Version,
    /// Unknown kind.
    Kind,
    /// Sealed, and this node has no key.
    Sealed,
    /// Fields contradict each other or what was agreed.
    Malformed,
    /// Addressed to another node.
    Misdirected,
    /// From a node that is not a member.
    UnknownPeer,
    /// Of a session other than the present one.
    Session,
    /// Arrived before.
    Duplicate,
    /// Beyond the window of packet numbers or message numbers.
    Window,
    /// No memory is free for it; the sender will send it again.
    Memory,
    /// Came after a missing one; under `suci` the sender will send both again.
    Gap,
    /// From a node that runs another congestion control.
    Congestion,
}

impl Drop {
    /// All reasons, in the order of `DropCounts`.
    pub const ALL: [Self; 13] = [
        Self::Truncated,
        Self::Version,
        Self::Kind,
        Self::Sealed,
        Self::Malformed,
        Self::Misdirected,
        Self::UnknownPeer,
        Self::Session,
        Self::Duplicate,
        Self::Window,
        Self::Memory,
        Self::Gap,
        Self::Congestion,
    ];

    /// Name in tables and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Version => "version",
            Self::Kind => "kind",
            Self::Sealed => "sealed",
            Self::Malformed => "malformed",
            Self::Misdirected => "misdirected",
            Self::UnknownPeer => "unknown_peer",
            Self::Session => "session",
            Self::Duplicate => "duplicate",
            Self::Window => "window",
            Self::Memory => "memory",
            Self::Gap => "gap",
            Self::Congestion => "congestion",
        }
    }
}

impl From<DropReason> for Drop {
    fn from(reason: DropReason) -> Self {
        match reason {
            DropReason::Truncated => Self::Truncated,
            DropReason::Version => Self::Version,
            DropReason::Kind => Self::Kind,
            DropReason::Sealed => Self::Sealed,
            DropReason::Malformed => Self::Malformed,
        }
    }
}

/// Numbers of frames that were not used, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropCounts([u64; Drop::ALL.len()]);

impl DropCounts {
    /// Frames dropped for `reason`.
    pub const fn get(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn count(&mut self, reason: Drop) {
        self.0[reason as usize] += 1;
    }
}

/// Totals since the engine was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages sent without numbers.
    pub direct_messages: u64,
    /// Frames written, of every kind.
    pub sent_frames: u64,
    /// Bytes of these frames.
    pub sent_bytes: u64,
    /// Frames received, of every kind, dropped ones included.
    pub received_frames: u64,
    /// Bytes of these frames.
    pub received_bytes: u64,
    /// Fragments sent again.
    pub retransmitted_frames: u64,
    /// Fragments declared lost that were acknowledged later.
    pub spurious_losses: u64,
    /// Probes after silence, by a fragment sent again or by a request for an acknowledgement.
    pub probes: u64,
    /// Under `suci`: times that a missing number was reported.
    pub nacks: u64,
    /// Under `suci`: asks for permission to send again, or for the window.
    pub asks: u64,
    /// Under `suci`: grants that answered asks.
    pub grants: u64,
    /// Under `suci`: frames that peers were permitted to send again.
    pub granted_frames: u64,
    /// Peers handled because their alarm had gone off, whether or not a deadline had passed.
    pub timer_checks: u64,
    /// Sessions ended because a message was stalled.
    pub stalled_sessions: u64,
    /// Messages delivered.
    pub delivered_messages: u64,
    /// Frames that were not used.
    pub drops: DropCounts,
}
