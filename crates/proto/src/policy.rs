//! Who may send how much to us now, where the program decides that itself (R-84).
//!
//! Asked by `credit` for every peer whose credit is looked at, and by `engine::suci` for every window that is stated and for who asks to
//! send again; without a policy nothing here runs. What a policy answers is a wish: the
//! bound of R-21, the budget of R-30 and the probes of R-17 hold whatever it says, so that a policy cannot overrun
//! the receive side, nor stop a pair for ever.

use core::fmt::Debug;

use crate::time::Instant;
use tsumuji_wire::NodeId;

/// What there is to divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// When the last frame came that brought data, or under `suci` an ask.
    pub now: Instant,
    /// Frames that may be granted to all peers together (R-21): the link's receive side, or the window that the program has set.
    pub window_frames: u64,
    /// The same, less where the path holds less (R-27).
    pub pool_frames: u64,
    /// Granted to all peers together, and not used yet. Under `suci`: permitted to be sent again, and not come yet.
    pub claimed_frames: u64,
    /// What the program's budget still holds.
    pub free_bytes: usize,
    /// Other members.
    pub peers: usize,
    /// Peers with more to send; under `suci`, that wait for permission to send again.
    pub active_peers: usize,
}

/// One peer that may want to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sender {
    /// Who.
    pub peer: NodeId,
    /// It has more to send.
    pub active: bool,
    /// It serves others too, and cannot use all that it is granted.
    pub busy: bool,
    /// Under `suci`: it asks to send again what was lost, and that is to be decided. Else it is to be decided how far ahead it may send.
    pub repairs: bool,
    /// Of its last frame: 0 is the most urgent.
    pub priority: u8,
    /// Of its messages that have begun to arrive: what has not.
    pub remaining_bytes: u64,
    /// Memory that its messages take here.
    pub memory_bytes: usize,
    /// Its frames that were used. One that becomes active begins with the least of the others.
    pub served_frames: u64,
    /// Granted and not yet used.
    pub outstanding_frames: u64,
    /// What the rules R-22 and R-23 would grant ahead; under `suci`, R-76 or R-75.
    pub usual_frames: u64,
}

/// A program's own decision of who may send how much to it now; given to `Engine::set_policy`.
///
/// Called on the path of each data frame: it should be a few instructions, and it must not depend on anything but its
/// arguments and its own state if runs are to be repeated exactly.
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
    /// How many frames `sender` may have granted ahead of the last that came. More than `room.window_frames` counts as that; 0 leaves
    /// it the probes of R-17, or under `suci` one frame each time that it asks. Credit once given is never taken back; under `suci` a later
    /// acknowledgement may state a smaller window.
    fn window_frames(&mut self, room: &Room, sender: &Sender) -> u64;

    /// Where memory is scarce, the active peer with the lowest rank begins the next message (R-31). As usual: by what it takes up.
    fn memory_rank(&mut self, room: &Room, sender: &Sender) -> u64 {
        let _ = room;
        sender.memory_bytes as u64
    }
}
