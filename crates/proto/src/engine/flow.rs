//! Flow control in the program's hands: windows that change while it runs, and rules of its own.
//!
//! Called by the driver for its program. What changes here holds for what is granted from now on: credit once given is never taken back
//! so the bound of R-21 holds at every moment.

use alloc::boxed::Box;

use super::Engine;
use crate::event::Window;
use crate::peer::pace::Pace;
use crate::policy::FlowPolicy;
use crate::time::Instant;
use tsumuji_wire::NodeId;

impl Engine {
    /// What peers may send ahead at present.
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

    /// From now on so many frames are granted to all peers together; between 1 and what the link's receive side holds.
    pub fn set_window(&mut self, frames: usize) {
        self.shared.receiving.set_window(frames as u64);
        self.regrant();
    }

    /// From now on no more than so many frames are granted ahead to this peer; at least 1. `None`: as many as there are for it.
    /// Outlives the peer's lives. `false`: it is no peer.
    pub fn set_peer_window(&mut self, peer: NodeId, frames: Option<usize>) -> bool {
        let Some(state) = self.peer_mut(peer) else {
            return false;
        };
        let frames = frames.map_or(u64::MAX, |frames| frames.max(1) as u64);
        state.account.set_limit(frames);
        self.regrant();
        true
    }

    /// From now on messages that arrived and were not consumed may take so much memory. What they take already is not touched.
    pub fn set_budget(&mut self, bytes: usize) {
        self.shared.memory.set_budget(bytes);
        self.regrant();
    }

    /// From now on `policy` decides who may send how much to us; `None`: the usual rules do. Under `suci`
    /// that is the window of each peer and what it is permitted to send again.
    pub fn set_policy(&mut self, policy: Option<Box<dyn FlowPolicy>>) {
        self.shared.receiving.set_policy(policy);
        self.regrant();
    }

    /// From now on frames leave to `peer` at this pace, whatever it grants. Outlives the peer's lives. `false`: it is no peer.
    pub fn set_pace(&mut self, now: Instant, peer: NodeId, pace: Pace) -> bool {
        let Some(state) = self.peer_mut(peer) else {
            return false;
        };
        state.send.set_pace(pace);
        self.enqueue(peer, now);
        true
    }

    /// Everyone's credit is looked at again: a policy of the program's own may have changed its mind.
    pub fn regrant(&mut self) {
        let (receiving, members) = self.members();
        receiving.regrant(members);
        self.review_direct();
        self.feed_hungry();
    }
}
