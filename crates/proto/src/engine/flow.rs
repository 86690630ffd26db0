//! Flow control by the program: windows that change at any time, and policies.
//!
//! Called by the driver for its program. A change holds for what is granted from now on: credit is never taken back, so the bound of R-21
//! holds at every moment.

use alloc::boxed::Box;

use super::Engine;
use crate::event::Window;
use crate::peer::pace::Pace;
use crate::policy::FlowPolicy;
use crate::time::Instant;
use tsumuji_wire::NodeId;

impl Engine {
    /// State of what peers may send ahead.
    pub fn window(&self) -> Window {
        let (receiving, memory) = (&self.shared.receiving, &self.shared.memory);
        let rules = receiving.rules();
        Window {
            frames: rules.window() as usize,
            frames_limit: rules.ring() as usize,
            granted_frames: receiving.claimed() as usize,
            budget_bytes: memory.budget_bytes(),
            budget_used_bytes: memory.used_bytes(),
            policy: rules.has_policy(),
            policy_decisions: rules.decisions(),
        }
    }

    /// Sets how many frames are granted to all peers together: between 1 and what the link's receive side holds.
    pub fn set_window(&mut self, frames: usize) {
        self.shared.receiving.set_window(frames as u64);
        self.regrant();
    }

    /// Sets how many frames an idle peer may send without further permission, at most; 256 at first. Nothing under `suci`, which has no such
    /// allowance.
    pub fn set_unscheduled(&mut self, frames: usize) {
        self.shared.receiving.set_unscheduled(frames as u64);
        self.regrant();
    }

    /// Sets how many frames are granted ahead to this peer, at least 1; `None`: no limit of its own. Holds in later sessions, too. Returns `false` if
    /// the peer is unknown.
    pub fn set_peer_window(&mut self, peer: NodeId, frames: Option<usize>) -> bool {
        let Some(state) = self.peer_mut(peer) else {
            return false;
        };
        let frames = frames.map_or(u64::MAX, |frames| frames.max(1) as u64);
        state.account.set_limit(frames);
        self.regrant();
        true
    }

    /// Sets how much memory messages may take that arrived and were not released. Memory that is taken already stays taken.
    pub fn set_budget(&mut self, bytes: usize) {
        self.shared.memory.set_budget(bytes);
        self.regrant();
    }

    /// Sets the policy that decides who may send how much to us; `None`: the usual rules. Under `suci` it decides the window of each peer and
    /// what it is permitted to send again.
    pub fn set_policy(&mut self, policy: Option<Box<dyn FlowPolicy>>) {
        self.shared.receiving.set_policy(policy);
        self.regrant();
    }

    /// Sets the pace of frames to `peer`, whatever it grants. Holds in later sessions, too. Returns `false` if the peer is unknown.
    pub fn set_pace(&mut self, now: Instant, peer: NodeId, pace: Pace) -> bool {
        let Some(state) = self.peer_mut(peer) else {
            return false;
        };
        state.send.set_pace(pace);
        self.enqueue(peer, now);
        true
    }

    /// Decides the credit of all peers anew: for a policy that has changed its mind.
    pub fn regrant(&mut self) {
        let (receiving, members) = self.members();
        receiving.regrant(members);
        self.review_direct();
        self.feed_hungry();
    }
}
