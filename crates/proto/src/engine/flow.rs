//! Flow control by the program: windows that change at any time, policies, and what it wants to know or repair now.
//!
//! Called by the driver for its program. A change holds for what is granted from now on: credit is never taken back, so the bound of R-21
//! holds at every moment.

use alloc::boxed::Box;

use super::{Engine, peer_of};
use crate::event::Window;
use crate::peer::pace::Pace;
use crate::policy::FlowPolicy;
use crate::time::Instant;
use crate::tuning::TUNING;
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

    /// Whether a message of `bytes` fits the window that `peer` stated last, less what is queued to it. When nothing is queued, a message larger than that
    /// window fits as long as it is not 0, and any fits before a window was stated.
    pub fn window_takes(&self, peer: NodeId, bytes: usize) -> bool {
        let Some(peer) = self.peer(peer) else {
            return false;
        };
        match (peer.window_bytes(), peer.send.queue.queued_messages) {
            (window_bytes, 0) => window_bytes != Some(0),
            (None, _) => false,
            (Some(window_bytes), _) => {
                peer.send.queue.queued_bytes.saturating_add(bytes) <= window_bytes
            }
        }
    }

    /// Asks `peer` for its window, which its acknowledgement states, unless it was asked a moment ago.
    pub fn ask_window(&mut self, now: Instant, peer: NodeId) {
        let Some(state) = self.peer_mut(peer) else {
            return;
        };
        if state.is_up() && now.since(state.last_ping) >= TUNING.session.window_asked_each {
            state.last_ping = now;
            state.ping_pending = true;
            self.enqueue(peer, now);
        }
    }

    /// Brings forward what silence would do about frames that `peer` has not acknowledged: `credit` probes, `suci` asks. Returns `false`
    /// if there are none, or if a frame left less than a round trip ago, so that no answer can have come; after a probe, less than 1 ms ago.
    pub fn repair_now(&mut self, now: Instant, peer: NodeId) -> bool {
        let Some(state) = peer_of(&mut self.peers, peer) else {
            return false;
        };
        if !state.is_up() {
            return false;
        }
        let super::Shared { pool, counters, .. } = &mut self.shared;
        let (heard, lossless) = (state.last_heard, state.link.lossless);
        let Some(asks) = state.send.repair_now(now, heard, lossless, pool, counters) else {
            return false;
        };
        state.ping_pending |= asks;
        self.enqueue(peer, now);
        true
    }
}
