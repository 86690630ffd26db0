//! Flow control for programs: windows that change at run time, policies for who may send, and the pace of sending.
//!
//! The functions here only pass on: the rules are the engine's (`tsumuji_proto`, R-80 … R-88).

use std::time::Duration;

use tsumuji_proto::{Borrowed, Flow, FlowPolicy, NodeId, Pace, Window};

use super::{Core, Endpoint};
use crate::channel::{Answer, RemoteFlow, Way};
use crate::clock::after;
use crate::error::SendError;

impl Endpoint {
    /// State of the traffic with `to`; `None` if it is not another member.
    pub fn flow(&self, to: NodeId) -> Option<Flow> {
        self.core.read().drive.flow(to)
    }

    /// The window that is granted to peers at present, and the budget for arrived messages.
    pub fn window(&self) -> Window {
        self.core.read().drive.engine.window()
    }

    /// Sets the frames granted to all peers together; they are cut to what lies between 1 and `window().frames_limit`. Credit granted before stays valid:
    /// after a cut the sum comes down as it is used.
    pub fn set_window(&mut self, frames: usize) {
        let core = &mut *self.core.write();
        core.drive.engine.set_window(frames);
        core.drive.mark_pending();
    }

    /// Sets the most frames (at least 1) that are granted ahead to `peer`; `None`: no limit of its own.
    pub fn set_peer_window(
        &mut self,
        peer: NodeId,
        frames: Option<usize>,
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.known(peer)?;
        core.drive.engine.set_peer_window(peer, frames);
        core.drive.mark_pending();
        Ok(())
    }

    /// Sets the budget in bytes for messages that arrived and were not consumed, at first [`Options::budget_bytes`]. Messages that are there already
    /// stay; peers wait until new ones fit.
    ///
    /// [`Options::budget_bytes`]: crate::Options::budget_bytes
    pub fn set_budget(&mut self, bytes: usize) {
        let core = &mut *self.core.write();
        core.drive.engine.set_budget(bytes);
        core.drive.tell_reference_max();
        core.drive.mark_pending();
    }

    /// Sets the policy that decides how much each peer may send to this node; `None`: the usual rules. With any policy the receiver is not overrun,
    /// and no pair stops for ever. Messages that peers send directly over shared memory before they hear of it still arrive.
    pub fn set_policy(&mut self, policy: Option<Box<dyn FlowPolicy>>) {
        let core = &mut *self.core.write();
        core.drive.engine.set_policy(policy);
        core.drive.mark_pending();
    }

    /// Sets the pace of messages to `peer`. [`Pace::Drain`]: as fast as the peer answers, so that few messages wait there even if it has granted more
    /// than it reads.
    pub fn set_pace(&mut self, peer: NodeId, pace: Pace) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.known(peer)?;
        let now = core.drive.refresh_now();
        core.drive.engine.set_pace(now, peer, pace);
        core.drive.mark_pending();
        Ok(())
    }

    /// Brings the repair of what `to` has not acknowledged forward, instead of after a silence of some round trips: `credit` sends the oldest frame
    /// again, `suci` asks for permission. Does nothing if a frame left less than a round trip ago, or if all is acknowledged. Takes acknowledgements
    /// first.
    pub fn repair_now(&mut self, to: NodeId) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.known(to)?;
        core.progress()?;
        let now = core.drive.refresh_now();
        if core.drive.engine.repair_now(now, to) {
            core.drive.transmit(&Borrowed::NONE)?;
            core.drive.mark_pending();
        }
        Ok(())
    }

    /// Asks the policy again for every peer, after its decision has changed between two frames.
    pub fn regrant(&mut self) {
        let core = &mut *self.core.write();
        core.drive.engine.regrant();
        core.drive.mark_pending();
    }

    /// What `node` reports of its traffic with `about`, in both directions. The library there answers whenever that program polls. `None`: no answer
    /// within `timeout`. For this node itself it is the result of `flow`.
    pub fn remote_flow(
        &mut self,
        node: NodeId,
        about: NodeId,
        timeout: Duration,
    ) -> Result<Option<RemoteFlow>, SendError> {
        let core = &mut *self.core.write();
        if node == core.me() {
            core.known(about)?;
            let flow = core.drive.flow(about);
            return Ok(flow.map(|flow| core.local_flow(about, flow)));
        }
        let Some((flows, _)) = core.await_flows(node, about, 1, after(timeout))? else {
            return Ok(None);
        };
        match flows.first() {
            Some(flow) if flow.peer == about => Ok(Some(*flow)),
            _ => Err(SendError::UnknownPeer { peer: about }),
        }
    }

    /// As `remote_flow`, for all peers of `node` in order of their ids; `None`: not all answers came within `timeout`.
    pub fn remote_flows(
        &mut self,
        node: NodeId,
        timeout: Duration,
    ) -> Result<Option<Vec<RemoteFlow>>, SendError> {
        let core = &mut *self.core.write();
        if node == core.me() {
            let peers = core.drive.table.peers();
            let flow = |peer| Some(core.local_flow(peer, core.drive.flow(peer)?));
            return Ok(Some(peers.filter_map(flow).collect()));
        }
        let until = after(timeout);
        let (mut all, mut first) = (Vec::new(), NodeId(0));
        // Each answer brings at least one flow or is the last: so many at most.
        for _ in 0..=core.channels.members.len() {
            let Some((flows, next)) = core.await_flows(node, first, u16::MAX, until)? else {
                return Ok(None);
            };
            all.extend(flows);
            match next {
                Some(next) if next > first => first = next,
                _ => break,
            }
        }
        Ok(Some(all))
    }

    /// Asks without waiting: the answer goes to [`Handler::flows`](crate::Handler::flows). A new request to a node replaces an open one. Answers hold
    /// flows of peers from `first` on: at most `most`, and at most 32.
    pub fn request_flows(
        &mut self,
        node: NodeId,
        first: NodeId,
        most: u16,
    ) -> Result<(), SendError> {
        let core = &mut *self.core.write();
        core.ask(node, first, most, false)
    }
}

impl Core {
    fn local_flow(&self, peer: NodeId, flow: Flow) -> RemoteFlow {
        RemoteFlow {
            peer,
            up: self.peers.is_up(peer),
            flow,
        }
    }

    fn ask(
        &mut self,
        node: NodeId,
        first: NodeId,
        most: u16,
        waits: bool,
    ) -> Result<(), SendError> {
        self.known(node)?;
        self.alive(node)?;
        let Self {
            drive,
            channels,
            peers,
            ..
        } = self;
        channels.request_flows(node, first, most, waits);
        drive.refresh_now();
        channels.settle(drive, peers);
        drive.transmit(&Borrowed::NONE)?;
        Ok(())
    }

    /// Asks, and waits for the answer; `None`: none came before `until`.
    fn await_flows(
        &mut self,
        node: NodeId,
        first: NodeId,
        most: u16,
        until: std::time::Instant,
    ) -> Result<Option<Answer>, SendError> {
        loop {
            self.ask(node, first, most, true)?;
            let left = until.saturating_duration_since(std::time::Instant::now());
            let waited = self.run_until(left, |_, intake| {
                let statistics = &intake.channels.statistics;
                statistics.has_answer() || !statistics.is_awaited() || intake.peers.is_lost(node)
            });
            // If the session ended and the peer is up again, the loop asks again.
            let is_over = self.channels.statistics.is_awaited() || left.is_zero();
            let answer = self.channels.statistics.take_answer();
            waited?;
            if answer.is_some() {
                return Ok(answer);
            }
            self.alive(node)?;
            if is_over {
                return Ok(None);
            }
        }
    }
}
