//! What holds under either congestion control: how much the link's receive side holds, how much of that the program wants used, and
//! whether it decides itself.
//!
//! Owned by the receiving half. What was granted stays granted: after a cut the sum comes down as it is used.

use alloc::boxed::Box;

use crate::policy::{FlowPolicy, Room, Sender};

#[derive(Debug)]
pub(crate) struct Rules {
    /// What the link's receive side holds.
    ring_frames: u64,
    /// The same, or less where the program wants less.
    window_frames: u64,
    /// The program's own rules.
    policy: Option<Box<dyn FlowPolicy>>,
    /// Times that it was asked how much somebody may send.
    decisions: u64,
    /// Other members.
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

    /// Other members.
    #[inline]
    pub(crate) fn peers(&self) -> u64 {
        self.peers
    }

    /// The program wants no more than so many frames granted at once, as far as the ring holds them.
    pub(crate) fn set_window(&mut self, frames: u64) {
        self.window_frames = frames.clamp(1, self.ring_frames);
    }

    /// At present.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window_frames
    }

    /// At most.
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

    /// The usual rules decide, and nobody is held to less than the link's receive side holds.
    pub(crate) fn are_plain(&self) -> bool {
        self.policy.is_none() && self.window_frames == self.ring_frames
    }

    pub(crate) fn decisions(&self) -> u64 {
        self.decisions
    }

    /// How many frames the policy grants; without one, as many as usual.
    pub(crate) fn decide(&mut self, room: &Room, sender: &Sender) -> u64 {
        self.decisions += 1;
        self.policy.as_mut().map_or(sender.usual_frames, |policy| {
            policy.window_frames(room, sender)
        })
    }

    /// The policy's order among those who wait for memory, if there is one: the lowest rank first.
    pub(crate) fn memory_rank(&mut self, room: &Room, sender: &Sender) -> Option<u64> {
        let policy = self.policy.as_mut()?;
        Some(policy.memory_rank(room, sender))
    }
}
