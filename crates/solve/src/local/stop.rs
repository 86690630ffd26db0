//! When to stop: tolerance met, laps used up, divergence, or the rounding level reached.
//!
//! Shared by every mode; takes verified residuals only, except for the test of divergence, which takes estimates too. Keeps no clock.

use crate::report::Reason;

/// A relative residual of so much is divergence: x = 0 has 1. Sweeps of matrices far from normal may grow for a
/// while before they shrink, hence the room.
const GROWTH_LIMIT: f64 = 1e8;
/// A residual within this factor of the rounding level may be as small as possible.
const FLOOR_FACTOR: f64 = 256.0;
/// Above this level of rounding x has outgrown b by so much that the matrix, not the tolerance, is to blame.
const ROUNDING_MOST: f64 = 1e-6;
/// Laps in which a residual near the rounding level must fall to [`STALL_RATIO`] of its best, or it counts as standing still.
const STALL_LAPS: u64 = 20;
const STALL_RATIO: f64 = 0.5;
/// Laps without the smallest progress after which a residual stands still for good.
const STANDSTILL_LAPS: u64 = 7000;
/// The smallest progress, as ratio of norms.
pub(crate) const SMALLEST_PROGRESS: f64 = 0.9999;

/// Limits that the user sets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    tolerance: f64,
    max_laps: u64,
}

/// Why limits are refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// Not a tolerance between 0 and 1.
    #[error(
        "a tolerance of {} cannot be met; give a relative residual above 0 and below 1, for example 1e-10",
        told(.tolerance)
    )]
    Tolerance {
        /// The tolerance asked for.
        tolerance: f64,
    },
    /// The number of laps is 0.
    #[error("0 laps solve nothing; allow at least 1")]
    NoLaps,
}

/// A tolerance as text. What is too small for a number has become 0.
fn told(tolerance: &f64) -> String {
    match *tolerance {
        0.0 => "0 (or of less than the smallest number, 5e-324)".to_owned(),
        tolerance => tolerance.to_string(),
    }
}

impl Limits {
    /// `tolerance` bounds ‖b − A x‖₂ / ‖b‖₂, `max_laps` the laps of the slowest worker.
    pub fn new(tolerance: f64, max_laps: u64) -> Result<Self, LimitsError> {
        if !(tolerance > 0.0 && tolerance < 1.0) {
            return Err(LimitsError::Tolerance { tolerance });
        }
        if max_laps == 0 {
            return Err(LimitsError::NoLaps);
        }
        Ok(Self {
            tolerance,
            max_laps,
        })
    }

    /// Relative residual to reach.
    pub fn tolerance(&self) -> f64 {
        self.tolerance
    }

    /// Laps of the slowest worker after which the run ends.
    pub fn max_laps(&self) -> u64 {
        self.max_laps
    }
}

/// Decides, from the residuals of a run, whether it goes on.
#[derive(Debug, Clone)]
pub struct StopRule {
    limits: Limits,
    best: f64,
    /// Laps when the residual last fell to [`STALL_RATIO`] of what it was.
    progress_at: u64,
    progress_from: f64,
    /// Smallest residual of a combination, and the laps by which a smaller one is to be found.
    standing: f64,
    standing_until: Option<u64>,
}

impl StopRule {
    /// A rule for a run.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            best: f64::INFINITY,
            progress_at: 0,
            progress_from: f64::INFINITY,
            standing: f64::INFINITY,
            standing_until: None,
        }
    }

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Takes an estimate of the relative residual; returns divergence, or nothing.
    pub(crate) fn estimate(&self, residual: f64) -> Option<Reason> {
        if residual > GROWTH_LIMIT || residual.is_nan() {
            return Some(Reason::Diverged { residual });
        }
        None
    }

    /// Takes a verified relative residual after `laps` laps of the slowest worker. `rounding` is the relative residual
    /// that rounding alone leaves (ε · ‖ |b| + |A||x| ‖ / ‖b‖, see `RowBlock::magnitude_sq`).
    pub fn verified(&mut self, laps: u64, residual: f64, rounding: f64) -> Option<Reason> {
        if residual <= self.limits.tolerance {
            return Some(Reason::Converged);
        }
        if let Some(reason) = self.estimate(residual) {
            return Some(reason);
        }
        self.best = self.best.min(residual);
        if residual <= STALL_RATIO * self.progress_from {
            self.progress_from = residual;
            self.progress_at = laps;
        }
        if Self::is_rounding(residual, rounding) && laps >= self.progress_at + STALL_LAPS {
            return Some(Reason::Stagnated { floor: self.best });
        }
        let is_smaller = residual < self.standing * SMALLEST_PROGRESS;
        if !is_smaller && self.standing_until.is_some_and(|until| laps >= until) {
            return Some(Reason::Stalled { best: self.best });
        }
        if laps >= self.limits.max_laps {
            return Some(Reason::MaxLaps {
                limit: self.limits.max_laps,
            });
        }
        None
    }

    /// Takes what the residual that was verified after `laps` laps became by combination, if anything. Only a run that tells this can stand still.
    pub(crate) fn combined(&mut self, laps: u64, residual: f64) {
        if residual < self.standing * SMALLEST_PROGRESS {
            self.standing = residual;
            self.standing_until = Some(laps + STANDSTILL_LAPS);
        }
    }

    /// Whether a residual may be as small as rounding permits, in a system that is not nearly singular.
    pub(crate) fn is_rounding(residual: f64, rounding: f64) -> bool {
        rounding <= ROUNDING_MOST && residual <= FLOOR_FACTOR * rounding
    }

    /// Whether an estimate `after` a lap, which was `before` a lap earlier, makes a verification worth its pass over A. An estimate is measured
    /// during the lap, before the rest of the lap improves on it: so the next one is extrapolated.
    pub(crate) fn worth_verifying(&self, before: f64, after: f64) -> bool {
        let ratio = if before.is_finite() {
            (after / before).min(1.0)
        } else {
            1.0
        };
        after * ratio <= self.limits.tolerance
    }

    /// Laps between verifications while estimates stand still without being [`StopRule::worth_verifying`].
    pub(crate) const STALL_LAPS: u64 = STALL_LAPS;
}

/// Of the verified x of a run, the one with the least residual; of several the first.
#[derive(Debug)]
pub(crate) struct Best {
    /// NaN: there is none, or it is not a number.
    pub(crate) residual: f64,
    pub(crate) x: Vec<f64>,
}

impl Default for Best {
    fn default() -> Self {
        let (residual, x) = (f64::NAN, Vec::new());
        Self { residual, x }
    }
}

impl Best {
    fn is_beaten_by(&self, residual: f64) -> bool {
        residual < self.residual || self.residual.is_nan()
    }

    /// Keeps a copy of x if it is better.
    pub(crate) fn see(&mut self, residual: f64, x: &[f64]) {
        if self.is_beaten_by(residual) {
            self.residual = residual;
            self.x.clear();
            self.x.extend_from_slice(x);
        }
    }

    /// Keeps x if it is better.
    pub(crate) fn take(&mut self, residual: f64, x: Vec<f64>) {
        if self.is_beaten_by(residual) {
            *self = Self { residual, x };
        }
    }

    /// The better one of what was kept and a run's last x, with its residual.
    pub(crate) fn or_last(self, residual: f64, x: Vec<f64>) -> (f64, Vec<f64>) {
        if self.residual.is_nan() || residual <= self.residual {
            (residual, x)
        } else {
            (self.residual, self.x)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(tolerance: f64) -> StopRule {
        StopRule::new(Limits::new(tolerance, 1000).unwrap())
    }

    /// Meaningless tolerances are refused.
    #[test]
    fn limits_are_checked() {
        for tolerance in [0.0, -1.0, 1.0, f64::NAN, f64::INFINITY] {
            assert!(Limits::new(tolerance, 1).is_err());
        }
        assert_eq!(Limits::new(0.1, 0), Err(LimitsError::NoLaps));
    }

    /// Growth and NaN are divergence; a while of moderate growth is not.
    #[test]
    fn divergence_is_noticed() {
        let mut rule = rule(1e-10);
        assert_eq!(rule.verified(1, 1e4, 1e-16), None);
        assert!(matches!(rule.estimate(1e9), Some(Reason::Diverged { .. })));
        assert!(matches!(
            rule.verified(2, f64::NAN, 1e-16),
            Some(Reason::Diverged { .. })
        ));
    }

    /// Residuals that do not fall end a run after many laps, unless they begin to fall; runs that tell of no combinations have rules of their own.
    #[test]
    fn standstill_ends() {
        let mut rule = StopRule::new(Limits::new(1e-10, u64::MAX).unwrap());
        assert_eq!(rule.verified(1 << 40, 0.5, 1e-16), None);
        rule.combined(20, 0.4);
        assert_eq!(rule.verified(STANDSTILL_LAPS, 0.5, 1e-16), None);
        assert_eq!(rule.verified(STANDSTILL_LAPS + 20, 0.39, 1e-16), None);
        rule.combined(STANDSTILL_LAPS + 20, 0.39);
        rule.combined(STANDSTILL_LAPS + 40, 0.3899999);
        let late = 2 * STANDSTILL_LAPS + 20;
        assert_eq!(rule.verified(late - 1, 0.39, 1e-16), None);
        assert_eq!(
            rule.verified(late, 0.39, 1e-16),
            Some(Reason::Stalled { best: 0.39 })
        );
    }

    /// Where x grows without bound rounding does, too: that is a matrix without an inverse, not a tolerance that is too small.
    #[test]
    fn blown_up_rounding_is_no_excuse() {
        assert!(StopRule::is_rounding(3e-14, 1e-15));
        assert!(!StopRule::is_rounding(0.53, 0.4));
        assert!(!StopRule::is_rounding(1e-3, 1e-15));
    }

    /// The best x is kept, unless the last one is as good.
    #[test]
    fn the_best_x_is_kept() {
        let mut best = Best::default();
        for (residual, x) in [(0.5, 1.0), (0.2, 2.0), (0.7, 3.0), (f64::NAN, 4.0)] {
            best.see(residual, &[x]);
        }
        assert_eq!(best.or_last(f64::NAN, vec![5.0]), (0.2, vec![2.0]));
        assert_eq!(Best::default().or_last(3.0, vec![5.0]), (3.0, vec![5.0]));
        let mut best = Best::default();
        best.take(f64::NAN, vec![0.0]);
        best.take(0.5, vec![1.0]);
        best.see(0.5, &[2.0]);
        assert_eq!((best.residual, &best.x[..]), (0.5, &[1.0][..]));
        assert_eq!(best.or_last(0.5, vec![5.0]), (0.5, vec![5.0]));
    }

    /// A residual that stands still at the rounding level stagnates; a slow one far above it does not.
    #[test]
    fn stagnation_is_only_at_the_rounding_level() {
        let mut stuck = rule(1e-17);
        let mut slow = rule(1e-17);
        let mut ended = None;
        for lap in 0..100 {
            ended = ended.or(stuck.verified(lap, 3e-16, 1e-16));
            assert_eq!(
                slow.verified(lap, 1e-3 * 0.9999f64.powi(lap as i32), 1e-16),
                None
            );
        }
        assert_eq!(ended, Some(Reason::Stagnated { floor: 3e-16 }));
        assert_eq!(
            slow.verified(1000, 1e-3, 1e-16),
            Some(Reason::MaxLaps { limit: 1000 })
        );
    }
}
