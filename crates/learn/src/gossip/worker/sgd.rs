//! SGD at a worker: steps, and means with random peers.

use super::super::exchange::is_plausible;
use super::super::message::{Answer, PeerMessage, finite};
use super::{Phase, State, Step, Worker};
use crate::objective::Share;
use crate::tuning::TUNING;

/// Steps between two exchanges, where the user states none: about 2¹⁶ values of rows, but at most an epoch, and at least `period_steps_min`. `rows`: of
/// one worker.
pub(in super::super) fn period(share: &Share, batch: usize, rows: usize) -> u64 {
    let epoch = rows.div_ceil(batch.max(1));
    let steps = TUNING.gossip.polls_per_period * steps_per_poll(share, batch);
    steps.min(epoch).max(TUNING.gossip.period_steps_min) as u64
}

/// Steps after which an answer is taken for lost. `by_work`: those between two polls, where exchanges do not ask for more.
pub(super) fn patience(period: u64, by_work: u64) -> u64 {
    TUNING
        .gossip
        .patience_periods
        .saturating_mul(period.max(by_work))
}

/// Steps between two polls, where exchanges do not ask for more of them.
pub(super) fn steps_per_poll(share: &Share, batch: usize) -> usize {
    let stored = share.features.stored() / share.rows().max(1);
    let work = batch.saturating_mul(share.outputs * (stored + 4));
    (TUNING.gossip.work_values / work.max(1)).max(1)
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

    /// Steps until an exchange is due, or an epoch ends, or it is time to poll.
    pub(super) fn step_sgd(&mut self) -> Step {
        let (State::Sgd(sgd), Some(share), Some(setup)) =
            (&mut self.state, &self.share, &self.setup)
        else {
            return Step::Wait;
        };
        let before = sgd.epochs();
        let period = setup.config.sgd.period;
        // Polls meet the ends of periods also where those of epochs do not.
        let to_end = period - sgd.steps() % period;
        let mut left = self.steps_per_poll.min(to_end as usize);
        let pushes = loop {
            sgd.step(share);
            left -= 1;
            let is_time = sgd.steps().is_multiple_of(period);
            let pushes = is_time && self.exchange.may_push();
            if pushes || left == 0 || sgd.epochs() > before {
                break pushes;
            }
        };
        let (done, is_last) = (sgd.epochs(), sgd.is_done());
        if pushes
            && !is_last
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;
    use crate::data::Features;
    use crate::gossip::beside::tests::begun;

    /// Without the user's word, some 2¹⁶ values lie between exchanges, but at most an epoch, and at least 32 steps.
    #[test]
    fn periods_are_made_by_work() {
        for (columns, rows, steps) in [
            (20, 100_000, 84),
            (20, 2_000, 63),
            (20, 100, 32),
            (1_000, 100_000, 32),
        ] {
            let values = vec![0.0; 2 * columns];
            let share = Share {
                kind: Kind::Linear,
                outputs: 1,
                features: Features::Dense { columns, values },
                targets: vec![0.0; 2],
            };
            assert_eq!(
                period(&share, 32, rows),
                steps,
                "{columns} columns, {rows} rows"
            );
        }
    }

    /// A worker stops at each period to poll, pushes there where it may, and goes on to step where it may not.
    #[test]
    fn a_period_ends_with_a_poll() {
        let mut worker = begun(2, 4);
        for period in 1..=3 {
            worker.step(); // the answer to the first push is missing
            assert_eq!((worker.rows_done(), worker.out().len()), (4 * period, 1));
        }
    }

    /// An answer that comes within 64 polls of so much work is in time, however short the period.
    #[test]
    fn short_periods_do_not_shorten_patience() {
        assert_eq!((patience(4, 200), patience(400, 200)), (12_800, 25_600));
    }
}
