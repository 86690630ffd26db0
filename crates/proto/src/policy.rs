//! Policies: a program's own decision of who may send how much to it (R-84).
//!
//! `credit` asks the policy whenever it decides a peer's credit; `suci` asks it for every window that it states, and for every peer that asks to send
//! again. Without a policy nothing here runs. A policy's answer is a wish: the bound of R-21, the budget of R-30 and the probes of R-17 hold whatever
//! it is, so that a policy can neither overrun the receive side nor stop a pair for ever.

use core::fmt::Debug;

use crate::time::Instant;
use tsumuji_wire::NodeId;

/// Room that is to be divided among the peers, and its present use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// When the last data frame came, or under `suci` the last ask.
    pub now: Instant,
    /// Frames that may be granted to all peers together (R-21): the link's receive side, or the window that the program set.
    pub window_frames: u64,
    /// The same, or less if the path holds less (R-27).
    pub pool_frames: u64,
    /// Frames granted to all peers together, and not used yet. Under `suci`: permitted to be sent again, and not arrived yet.
    pub claimed_frames: u64,
    /// Free part of the program's budget, in bytes.
    pub free_bytes: usize,
    /// Number of other members.
    pub peers: usize,
    /// Number of peers with more to send; under `suci`, of peers that wait for permission to send again.
    pub active_peers: usize,
}

/// One peer that may want to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sender {
    /// The peer.
    pub peer: NodeId,
    /// The peer has more to send.
    pub active: bool,
    /// The peer serves others too, and cannot use all that it is granted.
    pub busy: bool,
    /// Under `suci`, `true`: the decision is how many lost frames it may send again. Otherwise it is how far ahead it may send.
    pub repairs: bool,
    /// Priority of its last frame; 0 is the most urgent.
    pub priority: u8,
    /// Bytes that have not arrived of its messages that have begun to arrive.
    pub remaining_bytes: u64,
    /// Memory of its messages here, in bytes.
    pub memory_bytes: usize,
    /// Frames of the peer that were used. A peer that becomes active starts at least at the minimum of the active ones.
    pub served_frames: u64,
    /// Frames granted to the peer and not used yet.
    pub outstanding_frames: u64,
    /// Frames that R-22 and R-23 would grant ahead; under `suci`, R-76 or R-75.
    pub usual_frames: u64,
}

/// A policy of the program: how much each peer may send to it now. Given to `Engine::set_policy`.
///
/// Called for each data frame: it should take a few instructions. It must depend on nothing but its arguments and its own state if runs are to be
/// repeated exactly.
///
/// ```
/// use tsumuji_proto::{FlowPolicy, NodeId, Room, Sender};
///
/// /// One peer gets three quarters of the window, the others what the usual rules leave them of the rest.
/// #[derive(Debug)]
/// struct Favour(NodeId);
///
/// impl FlowPolicy for Favour {
///     fn window_frames(&mut self, room: &Room, sender: &Sender) -> u64 {
///         if sender.peer == self.0 {
///             room.pool_frames * 3 / 4
///         } else {
///             (sender.usual_frames / 4).max(1)
///         }
///     }
/// }
/// ```
pub trait FlowPolicy: Debug + Send {
    /// How many frames `sender` may have granted beyond the last that came, at most `room.window_frames`. With 0 it has only the probes of R-17, or
    /// under `suci` one frame for each ask. Credit is never taken back; under `suci` a later acknowledgement may state a smaller window.
    fn window_frames(&mut self, room: &Room, sender: &Sender) -> u64;

    /// Rank of `sender` where memory is scarce: the active peer with the lowest rank begins the next message (R-31). By default, the memory of its
    /// messages.
    fn memory_rank(&mut self, room: &Room, sender: &Sender) -> u64 {
        let _ = room;
        sender.memory_bytes as u64
    }
}
