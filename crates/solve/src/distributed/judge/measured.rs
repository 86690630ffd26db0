//! What the judge knows of a run besides its residual, and another method for it.

use super::{Cause, Judge, Phase, Policy};
use crate::distributed::config::Mode;

/// Fewest reports of all workers by which losses are told.
const REPORTS_LEAST: u64 = 50;

impl Judge {
    /// Whether a Krylov method iterates that another one may follow.
    pub(in crate::distributed) fn may_relax(&self) -> bool {
        let is_krylov = matches!(self.config.mode, Mode::Krylov(_));
        self.config.may_change && is_krylov && self.phase == Phase::Iterating && !self.interrupted
    }

    /// Part of the workers' reports of this epoch that was lost.
    pub(in crate::distributed) fn loss(&self) -> f64 {
        let reports = self
            .team()
            .filter_map(|slot| Some((slot.report?, slot.heard)));
        let (mut sent, mut heard) = (0, 0);
        for (report, count) in reports {
            sent += u64::from(report.number);
            heard += u64::from(count);
        }
        match sent {
            0..REPORTS_LEAST => 0.0,
            _ => (1.0 - heard as f64 / sent as f64).max(0.0),
        }
    }

    /// Tells the user something.
    pub(in crate::distributed) fn tell(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Has the Krylov method stop, with the x that it has reached, and relaxation follow it for the reason `why`.
    pub(in crate::distributed) fn relax(&mut self, why: String) {
        self.relaxes = Some(why);
        self.pause(Cause::Interrupt);
    }

    /// Goes on by another method, with the rows and the x that workers have, for the reason `why`.
    pub(in crate::distributed) fn go_on_by(&mut self, next: Mode, why: &str) {
        let before = self.config.method_name();
        self.config.mode = next;
        self.config.combines = next == Mode::Async;
        self.policy = Policy::new(self.limits, self.rhs_sq, self.config.combines)
            .reaching(self.config.precision.reach());
        let after = self.config.method_name();
        self.notes
            .push(format!("{before} gave up ({why}): {after} went on"));
        let ranges = self.slots.iter().map(|slot| slot.rows.clone()).collect();
        self.moved = true;
        self.divide(ranges);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::config::{Krylov, SolveConfig};
    use crate::distributed::judge::Origin;
    use crate::distributed::message::{Estimate, LapReport, Order};
    use crate::krylov::{Kind, Preconditioning};
    use crate::local::Limits;

    /// Reports that do not come are losses; with another method workers keep their rows.
    #[test]
    fn losses_are_counted_and_methods_follow() {
        let config = SolveConfig {
            mode: Mode::Krylov(Krylov {
                kind: Kind::Gmres,
                preconditioning: Preconditioning::Jacobi,
            }),
            may_change: true,
            ..SolveConfig::default()
        };
        let limits = Limits::new(1e-10, 100).unwrap();
        let parts = (vec![0..2, 2..4], Origin::default());
        let mut judge = Judge::new(limits, &config, parts, None);
        assert!(!judge.may_relax());
        judge.phase = Phase::Iterating;
        for number in 1..=100 {
            let report = LapReport {
                epoch: judge.epoch,
                number,
                laps: 1.0,
                busy: Some(1.0),
                estimate: Estimate::default(),
            };
            judge.report(0, report);
            if number % 5 == 0 {
                judge.report(1, report);
            }
        }
        assert!(judge.may_relax());
        assert!((judge.loss() - 0.4).abs() < 1e-9, "{}", judge.loss());
        judge.go_on_by(Mode::Async, "it waits");
        assert!(!judge.may_relax());
        assert!(judge.notes[0].contains("it waits"), "{:?}", judge.notes);
        let (0, Order::Setup(setup)) = &judge.out()[0] else {
            panic!("rows are divided anew");
        };
        assert_eq!(setup.config.mode, Mode::Async);
        assert!(setup.config.combines, "laps are combined from now on");
        assert_eq!(setup.ranges, [0..2, 2..4]);
    }
}
