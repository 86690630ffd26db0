//! SGD at a worker: steps, and means with random peers.

use super::super::exchange::is_plausible;
use super::super::message::{Answer, PeerMessage, finite};
use super::{Phase, State, Step, Worker};
use crate::objective::Share;

/// Values of rows that are computed with between two looks for messages: 10 to 20 µs, some fifty times what a look takes.
const WORK_VALUES: usize = 1 << 14;

/// Steps between two looks for messages.
pub(super) fn steps_per_poll(share: &Share, batch: usize) -> usize {
    let stored = share.features.stored() / share.rows().max(1);
    let work = batch.saturating_mul(share.outputs * (stored + 4));
    (WORK_VALUES / work.max(1)).max(1)
}

impl Worker {
    /// A peer's parameters have come, to be averaged with one's own.
    pub(super) fn pushed(&mut self, from: usize, number: u64, theta: &[f64]) {
        let State::Sgd(sgd) = &mut self.state else {
            return;
        };
        if !finite(sgd.theta()) {
            return; // this worker is the one that diverged
        }
        if self.phase == Phase::Ended {
            // Its parameters are what it will tell; those that still step come nearer to them.
            let own = sgd.result().to_vec();
            if is_plausible(&own, theta) {
                self.send(from, PeerMessage::Pull { number, theta: own }, false);
            } else {
                self.refuse(from);
            }
            return;
        }
        match self.exchange.pushed(sgd.theta(), theta) {
            Some(theta) => self.send(from, PeerMessage::Pull { number, theta }, false),
            None => self.accuse(from),
        }
    }

    /// A peer has answered a push.
    pub(super) fn pulled(&mut self, from: usize, number: u64, theta: &[f64]) {
        let State::Sgd(sgd) = &mut self.state else {
            return;
        };
        if self.phase == Phase::Running && finite(sgd.theta()) {
            let before = self.exchange.rejected;
            self.exchange.pulled(from, number, sgd.theta(), theta);
            if self.exchange.rejected > before {
                self.accuse(from);
            }
        }
    }

    /// Steps until an exchange is due, or an epoch ends, or messages are to be looked for.
    pub(super) fn step_sgd(&mut self) -> Step {
        let (State::Sgd(sgd), Some(share), Some(setup)) =
            (&mut self.state, &self.share, &self.setup)
        else {
            return Step::Wait;
        };
        let before = sgd.epochs();
        let mut left = self.steps_per_poll;
        let is_time = loop {
            sgd.step(share);
            left -= 1;
            let is_time = sgd.steps().is_multiple_of(setup.config.sgd.period);
            if is_time || left == 0 || sgd.epochs() > before {
                break is_time;
            }
        };
        let (done, is_last) = (sgd.epochs(), sgd.is_done());
        if is_time
            && !is_last
            && self.exchange.may_push()
            && let Some(peer) = self.random.choice(&self.peers).copied()
            && finite(sgd.theta())
        {
            let theta = sgd.theta().to_vec();
            let number = self.exchange.push(peer, &theta);
            self.send(peer, PeerMessage::Push { number, theta }, false);
        }
        if done > before {
            self.tell(&Answer::Epochs { done, is_last });
        }
        if is_last {
            self.phase = Phase::Ended;
        }
        Step::Again
    }
}
