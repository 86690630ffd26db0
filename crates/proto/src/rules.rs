//! Limits under either congestion control: the capacity of the link's receive side, the program's window, and its policy.
//!
//! Owned by the receiving half. What was granted stays granted: after a cut, the sum comes down as it is used.

use alloc::boxed::Box;

use crate::policy::{FlowPolicy, Room, Sender};

#[derive(Debug)]
pub(crate) struct Rules {
    /// Capacity of the link's receive side, in frames.
    ring_frames: u64,
    /// The same, or less if the program has set a smaller window.
    window_frames: u64,
    /// Policy of the program.
    policy: Option<Box<dyn FlowPolicy>>,
    /// How often a policy was asked how much a peer may send.
    decisions: u64,
    /// Number of other members.
    peers: u64,
}

impl Rules {
    pub(crate) fn new(ring_frames: usize) -> Self {
        let ring_frames = (ring_frames as u64).max(1);
        Self {
            ring_frames,
            window_frames: ring_frames,
            policy: None,
            decisions: 0,
            peers: 0,
        }
    }

    pub(crate) fn add_peer(&mut self) {
        self.peers += 1;
    }

    /// Number of other members.
    #[inline]
    pub(crate) fn peers(&self) -> u64 {
        self.peers
    }

    /// Limits the frames that are granted at once to `frames`, as far as the ring holds them.
    pub(crate) fn set_window(&mut self, frames: u64) {
        self.window_frames = frames.clamp(1, self.ring_frames);
    }

    /// The present window, in frames.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window_frames
    }

    /// The largest possible window, in frames.
    pub(crate) fn ring(&self) -> u64 {
        self.ring_frames
    }

    pub(crate) fn set_policy(&mut self, policy: Option<Box<dyn FlowPolicy>>) {
        self.policy = policy;
    }

    #[inline]
    pub(crate) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// There is no policy, and the window is as large as the receive side.
    pub(crate) fn are_plain(&self) -> bool {
        self.policy.is_none() && self.window_frames == self.ring_frames
    }

    pub(crate) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// How many frames the policy grants; without a policy, the usual number.
    pub(crate) fn decide(&mut self, room: &Room, sender: &Sender) -> u64 {
        self.decisions += 1;
        self.policy.as_mut().map_or(sender.usual_frames, |policy| {
            policy.window_frames(room, sender)
        })
    }

    /// Rank of a peer that waits for memory, if there is a policy: the lowest rank goes first.
    pub(crate) fn memory_rank(&mut self, room: &Room, sender: &Sender) -> Option<u64> {
        let policy = self.policy.as_mut()?;
        Some(policy.memory_rank(room, sender))
    }
}
