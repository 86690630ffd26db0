//! Flow control in the program's hands: what an [`Endpoint`] offers beyond sending and taking messages.
//!
//! Windows that change while the program runs, rules of its own for who may send, and messages that may be dropped. Everything here
//! is a thin face: the rules are the engine's (`tsumuji_proto`, R-80 … R-88).

use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::{FlowPolicy, Lane, NodeId, Payload, Window};

use crate::clock::from_std;
use crate::endpoint::Endpoint;
use crate::error::SendError;

impl<L: Link> Endpoint<L> {
    /// What peers may send ahead at present, and the budget for what has arrived.
    pub fn window(&self) -> Window {
        self.drive.engine.window()
    }

    /// From now on so many frames are granted to all peers together, between 1 and `window().frames_limit`. What was granted before stays
    /// granted: after a cut the sum comes down as it is used.
    pub fn set_window(&mut self, frames: usize) {
        self.drive.engine.set_window(frames);
        self.drive.touched();
    }

    /// From now on no more than so many frames (at least 1) are granted ahead to `peer`; `None`: no limit of its own.
    pub fn set_peer_window(
        &mut self,
        peer: NodeId,
        frames: Option<usize>,
    ) -> Result<(), SendError> {
        self.known(peer)?;
        self.drive.engine.set_peer_window(peer, frames);
        self.drive.touched();
        Ok(())
    }

    /// From now on messages that arrived and were not consumed may take so much memory, as [`Options::budget_bytes`] said at first.
    /// What they take already is not touched; peers wait until it fits.
    ///
    /// [`Options::budget_bytes`]: crate::Options::budget_bytes
    pub fn set_budget(&mut self, bytes: usize) {
        self.drive.engine.set_budget(bytes);
        self.drive.touched();
    }

    /// From now on `policy` decides who may send how much to this node; `None`: the usual rules do. Whatever it says, the receive side
    /// is not overrun, and no pair stops for ever.
    pub fn set_policy(&mut self, policy: Option<Box<dyn FlowPolicy>>) {
        self.drive.engine.set_policy(policy);
        self.drive.touched();
    }

    /// Has the policy asked again for every peer, where its mind has changed between two frames.
    pub fn regrant(&mut self) {
        self.drive.engine.regrant();
        self.drive.touched();
    }

    /// Sends a copy of `message`, of which only the newest of its lane counts: while it waits, a newer one takes its place, and if
    /// `deadline` passes first it is dropped and counted ([`Flow::late_messages`]). Never waits; arrives at most once, and never after
    /// a newer one. Frames that are lost are not sent again.
    ///
    /// [`Flow::late_messages`]: crate::Flow::late_messages
    ///
    /// # Panics
    /// If `lane` is not of [`DeliveryClass::Latest`](crate::DeliveryClass::Latest).
    pub fn send_latest(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: &[u8],
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        let deadline = deadline.map(from_std);
        self.drive
            .submit_latest(to, lane, Payload::Copied(message), deadline)
    }
}
