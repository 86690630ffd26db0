//! When an epoch ends: the estimates are low enough to be verified, or something is wrong.
//!
//! A [`Watch`] is given Σ r² over all workers as they measured it; it only decides that the exact residual is worth a pass over A. The judge keeps
//! one for asynchronous runs; in synchronous ones every worker keeps an equal one and sees the same numbers, so all stop after the same lap.
//! [`Policy`] makes the watch of the next epoch from the exact residual of the last one.
//!
//! Invariant: epochs end for any estimates: by `max_laps` at the latest.

use super::field::OVERFLOW_GUARD;
use crate::krylov::End;
use crate::local::{Limits, SMALLEST_PROGRESS, StopRule};
use crate::report::Reason;
use serde::{Deserialize, Serialize};

/// A new best must be this much smaller, as ratio of squares.
const BETTER: f64 = 0.99;
/// Growth of the estimate over ‖b‖, as ratio of norms, at which the exact residual is computed; each time it allows as much more, up to the estimate at
/// which workers stop by themselves.
const GROWTH: f64 = 1e4;
/// A failed verification lowers the threshold by the factor by which the residual exceeds the tolerance, and by this factor more.
const TIGHTER: f64 = 0.5;
/// Lowest threshold, relative to the tolerance. Estimates that never get so low although the tolerance is met end the epoch by standstill.
const TIGHTEST: f64 = 1e-3;
/// Verifications in a row without the smallest progress after which the residual is taken to stand still for good; patience grows fourfold from one to the
/// next.
const STANDSTILLS: u32 = 5;

/// Laps after which an epoch that would need as many again is combined with former ones, and laps without a new best estimate (by [`BETTER`]) after
/// which the exact residual is computed. A pause costs a pass over A and some messages: little compared with so many laps. Faster epochs are not
/// interrupted.
const PATIENCE_LAPS: u64 = 20;

/// Why the exact residual is to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Cause {
    /// The estimates are below the threshold.
    Candidate,
    /// All allowed laps were done.
    MaxLaps,
    /// The estimates grow or are NaN.
    Growth,
    /// The estimates stand still.
    Stall,
    /// The estimates fall so slowly that combining epochs pays.
    Slow,
    /// The user wants to stop.
    Interrupt,
    /// A Krylov method ended.
    Krylov(End),
}

/// Decides the end of one epoch. Sent without its observations, as new.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Watch {
    /// An expected Σ r² at or below this ends it.
    threshold_sq: f64,
    /// Laps without a new best, or of slow progress, that end it.
    patience: u64,
    /// A measured Σ r² above this ends it.
    growth_sq: f64,
    max_laps: u64,
    /// Whether slow progress ends it.
    ends_slow: bool,
    #[serde(skip, default = "infinity")]
    best_sq: f64,
    /// Lap of the best; `None` before the first observation of the epoch.
    #[serde(skip)]
    best_at: Option<f64>,
    /// Lap and Σ r² of the first observation of the epoch.
    #[serde(skip)]
    first: Option<(f64, f64)>,
}

impl Watch {
    pub(super) fn new(threshold_sq: f64, patience: u64, growth_sq: f64, max_laps: u64) -> Self {
        Self {
            threshold_sq,
            patience,
            growth_sq,
            max_laps,
            ends_slow: true,
            best_sq: f64::INFINITY,
            best_at: None,
            first: None,
        }
    }

    fn ending_slow_epochs(self, ends_slow: bool) -> Self {
        Self { ends_slow, ..self }
    }

    /// Laps after which a worker stops.
    pub(super) fn max_laps(&self) -> u64 {
        self.max_laps
    }

    /// Whether Σ r² as expected now is low enough.
    pub(super) fn is_candidate(&self, expected_sq: f64) -> bool {
        expected_sq <= self.threshold_sq
    }

    /// Observes Σ r² over all workers after `laps` laps of the slowest one. Never returns [`Cause::Candidate`]: one observation is not enough for it
    /// where estimates are of different age.
    pub(super) fn trouble(&mut self, measured_sq: f64, laps: f64) -> Option<Cause> {
        if !measured_sq.is_finite() || measured_sq > self.growth_sq {
            return Some(Cause::Growth);
        }
        if laps >= self.max_laps as f64 {
            return Some(Cause::MaxLaps);
        }
        let since = *self.best_at.get_or_insert(laps);
        if measured_sq < self.best_sq * BETTER {
            self.best_sq = measured_sq;
            self.best_at = Some(laps);
        } else if laps >= since + self.patience as f64 {
            return Some(Cause::Stall);
        }
        let (first, first_sq) = *self.first.get_or_insert((laps, measured_sq));
        let done = laps - first;
        let patience = self.patience as f64;
        // Logarithms of squares; the ratio of two of them equals that of the norms'.
        let fallen = (first_sq / measured_sq).ln();
        let to_fall = (measured_sq / self.threshold_sq).ln();
        let slow = self.ends_slow
            && done >= patience
            && to_fall > 0.0
            && to_fall * done > fallen * patience;
        slow.then_some(Cause::Slow)
    }
}

fn infinity() -> f64 {
    f64::INFINITY
}

/// Decides at the end of each epoch, by the exact residual.
#[derive(Debug)]
pub(super) struct Policy {
    rule: StopRule,
    combines: bool,
    /// ‖b‖₂, or 1 if b = 0: then residuals are absolute.
    rhs_norm: f64,
    /// Part to which the residual can fall in one epoch; 0: any.
    reach: f64,
    /// The last exact residual.
    last: f64,
    /// Threshold relative to the tolerance.
    tightening: f64,
    /// Ratio of norms, relative to b.
    growth: f64,
    /// Smallest residual of a combination so far.
    standing: f64,
    standstills: u32,
    best: f64,
}

impl Policy {
    /// `combines`: slow epochs end early, to be combined.
    pub(super) fn new(limits: Limits, rhs_sq: f64, combines: bool) -> Self {
        Self {
            reach: 0.0,
            last: 1.0,
            rule: StopRule::new(limits),
            combines,
            rhs_norm: if rhs_sq > 0.0 { rhs_sq.sqrt() } else { 1.0 },
            tightening: 1.0,
            growth: GROWTH,
            standing: f64::INFINITY,
            standstills: 0,
            best: f64::INFINITY,
        }
    }

    /// For laps that bring the residual to `reach` of what it was, and no lower.
    pub(super) fn reaching(self, reach: f64) -> Self {
        Self { reach, ..self }
    }

    /// The rows are divided anew: values of lost workers are older than before, and what was reached so far is no measure.
    pub(super) fn restart(&mut self) {
        (self.standing, self.standstills) = (f64::INFINITY, 0);
        (self.last, self.best) = (1.0, f64::INFINITY);
        (self.tightening, self.growth) = (1.0, GROWTH);
    }

    /// Residuals are relative to this.
    pub(super) fn rhs_norm(&self) -> f64 {
        self.rhs_norm
    }

    /// The relative residual of the last epoch.
    fn aim(&self) -> f64 {
        self.rule.limits().tolerance() * self.tightening
    }

    /// The watch of the next epoch.
    pub(super) fn watch(&self) -> Watch {
        let limits = self.rule.limits();
        let threshold = self.aim().max(self.reach * self.last) * self.rhs_norm;
        let growth = self.growth * self.rhs_norm;
        Watch::new(
            threshold * threshold,
            PATIENCE_LAPS << (2 * self.standstills),
            growth * growth,
            limits.max_laps(),
        )
        .ending_slow_epochs(self.combines)
    }

    /// Whether the rounding level is needed to decide after such an epoch: only where nothing moves.
    pub(super) fn wants_rounding(&self, cause: Cause) -> bool {
        matches!(cause, Cause::Stall | Cause::MaxLaps) || self.standstills > 0
    }

    /// Takes the exact relative residual after an epoch that ended for `cause` with the slowest worker at `laps`:
    /// the reason to end the run, or `None` to go on with another epoch, at a residual of `combined`. `rounding`: see [`StopRule::verified`].
    pub(super) fn verified(
        &mut self,
        cause: Cause,
        laps: u64,
        residual: f64,
        combined: f64,
        rounding: f64,
    ) -> Option<Reason> {
        self.best = self.best.min(residual);
        let refines = self.reach * self.last > self.aim();
        // Refinement that does not halve the residual stands still.
        let cause = match cause {
            Cause::Candidate if refines && residual > 0.5 * self.last => Cause::Stall,
            cause => cause,
        };
        if residual.is_finite() {
            self.last = residual.min(1.0);
        }
        if let Some(reason) = self.rule.verified(laps, residual, rounding) {
            return Some(reason);
        }
        match cause {
            // Not all laps were done, or the rule would have ended the run: the slowest worker's count was rounded down.
            Cause::MaxLaps => {
                return Some(Reason::MaxLaps {
                    limit: self.rule.limits().max_laps(),
                });
            }
            Cause::Krylov(end) if end != End::Converged => {
                return Some(end.reason(self.rule.limits(), self.best));
            }
            // It was as far as such laps reach.
            Cause::Candidate if refines => {}
            Cause::Candidate => {
                let needed = (self.rule.limits().tolerance() / residual).min(1.0);
                self.tightening = (self.tightening * needed * TIGHTER).max(TIGHTEST);
            }
            Cause::Interrupt => {}
            // Sums that round otherwise than those of the method find a residual a little above the tolerance: it begins again from there.
            Cause::Growth | Cause::Stall | Cause::Slow | Cause::Krylov(_) => {
                if cause == Cause::Growth {
                    self.growth = (self.growth * GROWTH).min(OVERFLOW_GUARD);
                }
                let fell = combined < self.standing * SMALLEST_PROGRESS;
                self.standstills = if fell { 0 } else { self.standstills + 1 };
                self.standing = self.standing.min(combined);
                if self.standstills >= STANDSTILLS {
                    return Some(if StopRule::is_rounding(self.best, rounding) {
                        Reason::Stagnated { floor: self.best }
                    } else if cause == Cause::Growth && residual > 1.0 {
                        Reason::Diverged { residual }
                    } else {
                        Reason::Stalled { best: self.best }
                    });
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(tol: f64) -> Policy {
        Policy::new(Limits::new(tol, 100_000).unwrap(), 4.0, true)
    }

    /// Runs one epoch over `residual(lap)` from `lap` on; returns its cause and last lap.
    fn epoch(policy: &Policy, mut lap: u64, residual: impl Fn(u64) -> f64) -> (Cause, u64) {
        let mut watch = policy.watch();
        loop {
            lap += 1;
            let sq = (residual(lap) * policy.rhs_norm()).powi(2);
            if let Some(cause) = watch.trouble(sq, lap as f64) {
                return (cause, lap);
            }
            if watch.is_candidate(sq) {
                return (Cause::Candidate, lap);
            }
        }
    }

    /// Runs to the end; returns the reason, and how often the exact residual (`factor` times the estimate) was computed.
    fn run(tol: f64, factor: f64, residual: impl Fn(u64) -> f64) -> (Reason, u32) {
        let mut policy = policy(tol);
        let (mut lap, mut checks) = (0, 0);
        loop {
            let (cause, end) = epoch(&policy, lap, &residual);
            lap = end;
            checks += 1;
            if let Some(reason) =
                policy.verified(cause, lap, residual(lap) * factor, residual(lap), 1e-17)
            {
                return (reason, checks);
            }
        }
    }

    /// Falling estimates are verified once; estimates that are tenfold too low, a second time with a corrected threshold.
    #[test]
    fn convergence_takes_few_verifications() {
        let falling = |lap: u64| 0.4f64.powi(lap as i32);
        assert_eq!(run(1e-10, 1.0, falling), (Reason::Converged, 1));
        assert_eq!(run(1e-10, 10.0, falling), (Reason::Converged, 2));
    }

    /// Slow progress is verified every twenty laps, so that epochs can be combined, but never ends the run.
    #[test]
    fn slow_progress_is_not_a_standstill() {
        let (reason, checks) = run(1e-2, 1.0, |lap| 0.9999f64.powi(lap as i32));
        assert_eq!(reason, Reason::Converged);
        assert!(checks > 100 && checks <= 46_100 / 20, "{checks}");
    }

    /// Unbounded growth and NaN end as divergence, a temporary rise does not.
    #[test]
    fn growth_is_divergence_unless_it_ends() {
        assert!(matches!(
            run(1e-10, 1.0, |lap| 1.5f64.powi(lap as i32)).0,
            Reason::Diverged { .. }
        ));
        assert!(matches!(
            run(1e-10, 1.0, |lap| if lap > 5 { f64::NAN } else { 1.0 }).0,
            Reason::Diverged { .. }
        ));
        let hump = |lap: u64| {
            1e6 * (-((lap as f64 - 40.0) / 10.0).powi(2)).exp() + 0.5f64.powi(lap as i32)
        };
        assert_eq!(run(1e-10, 1.0, hump).0, Reason::Converged);
    }

    /// Estimates that grow in every epoch, or overflow, while the exact residual stays moderate, end the run after a few verifications.
    #[test]
    fn growth_without_end_is_divergence() {
        for wild in [1e30, f64::INFINITY, f64::NAN] {
            let mut policy = policy(1e-10);
            let (mut lap, mut checks) = (0, 0);
            let reason = loop {
                let (cause, end) = epoch(&policy, lap, |_| wild);
                assert_eq!((cause, end), (Cause::Growth, lap + 1), "{wild}");
                lap = end;
                checks += 1;
                if let Some(reason) = policy.verified(cause, lap, 3e3, 0.9, 1e-17) {
                    break reason;
                }
            };
            assert_eq!(reason, Reason::Diverged { residual: 3e3 }, "{wild}");
            assert_eq!(checks, STANDSTILLS + 1, "{wild}");
        }
    }

    /// Growth that ends each time, with a residual that falls from pause to pause, is no divergence.
    #[test]
    fn growth_with_progress_goes_on() {
        let mut policy = policy(1e-10);
        for check in 1..40 {
            let combined = 0.9f64.powi(check);
            let verified = policy.verified(Cause::Growth, check as u64, 1e5, combined, 1e-17);
            assert_eq!(verified, None);
        }
    }

    /// A residual that stands still, at the rounding level or far above it, ends the run and is reported.
    #[test]
    fn standstill_ends() {
        for floor in [1e-16, 1e-3] {
            let (reason, checks) = run(1e-17, 1.0, |lap| floor + 0.5f64.powi(lap as i32));
            let found = match reason {
                Reason::Stagnated { floor } if floor < 1e-15 => floor,
                Reason::Stalled { best } if best > 1e-15 => best,
                other => panic!("{other:?}"),
            };
            assert!(found < 1.1 * floor, "{found}");
            assert!(checks <= 9, "{checks}");
        }
    }

    /// Laps run out even if nothing else ends the run.
    #[test]
    fn laps_run_out() {
        let mut policy = Policy::new(Limits::new(1e-10, 20).unwrap(), 1.0, true);
        let (cause, lap) = epoch(&policy, 0, |lap| 0.99f64.powi(lap as i32));
        assert_eq!((cause, lap), (Cause::MaxLaps, 20));
        assert_eq!(
            policy.verified(cause, lap, 0.8, 0.8, 1e-17),
            Some(Reason::MaxLaps { limit: 20 })
        );
    }
}
