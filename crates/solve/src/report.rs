//! Reports of a run: progress while it iterates, and at its end the reason and the result.
//!
//! Filled in by `local` and `distributed`, printed by the command line. Residuals are relative, ‖b − A x‖₂ / ‖b‖₂.
//!
//! Invariant: `Outcome::residual` is computed from A, b and x, never taken from the iteration.

use serde::{Serialize, Serializer};
use std::time::Duration;

/// Why a run ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// The verified residual is within the tolerance.
    Converged,
    /// The slowest worker did as many laps as were allowed.
    MaxLaps {
        /// That limit.
        limit: u64,
    },
    /// The residual grew beyond all bounds or is no number any more.
    Diverged {
        /// Relative residual when it was noticed; infinite or NaN when numbers overflowed.
        residual: f64,
    },
    /// Rounding keeps the residual where it is: the tolerance is below what 64-bit numbers give for this system.
    Stagnated {
        /// Best relative residual reached.
        floor: f64,
    },
    /// The residual no longer falls, far above the level of rounding.
    Stalled {
        /// Best relative residual reached.
        best: f64,
    },
    /// The user asked to stop.
    Interrupted,
    /// A worker died, fell silent or failed.
    WorkerLost {
        /// Its name.
        worker: String,
        /// The known cause.
        cause: String,
    },
}

impl Reason {
    /// The name for scripts.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::Converged => "converged",
            Reason::MaxLaps { .. } => "max_laps",
            Reason::Diverged { .. } => "diverged",
            Reason::Stagnated { .. } => "stagnated",
            Reason::Stalled { .. } => "stalled",
            Reason::Interrupted => "interrupted",
            Reason::WorkerLost { .. } => "worker_lost",
        }
    }

    /// With the best residual that is reported, which another method, or x = 0, may have reached.
    pub(crate) fn at_best(self, residual: f64) -> Self {
        match self {
            Reason::Stalled { best } => Reason::Stalled {
                best: best.min(residual),
            },
            other => other,
        }
    }

    /// Whether the tolerance was met.
    pub fn is_converged(&self) -> bool {
        matches!(self, Reason::Converged)
    }
}

/// One sentence for the user, with advice.
impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::Converged => write!(
                f,
                "converged: the verified residual is within the tolerance"
            ),
            Reason::MaxLaps { limit } => write!(
                f,
                "stopped after {limit} laps without reaching the tolerance: allow more (--max-laps), or try another \
                 --method"
            ),
            Reason::Diverged { residual } if !residual.is_finite() => write!(
                f,
                "diverged: numbers grew beyond the largest there is; this method does not converge for this system, or its \
                 solution is no number of 64 bits (try another --method; for relaxation a smaller --omega or fewer workers)"
            ),
            Reason::Diverged { residual } => write!(
                f,
                "diverged: the relative residual grew to {residual:.1e}; this method does not converge for this system \
                 (try another --method; for relaxation a smaller --omega or fewer workers)"
            ),
            Reason::Stagnated { floor } => write!(
                f,
                "stagnated: rounding keeps the relative residual at about {floor:.1e}; ask for a --tol above that"
            ),
            Reason::Stalled { best } => write!(
                f,
                "stalled: the relative residual no longer falls below {best:.1e}; the matrix is singular or nearly so, for \
                 which no method may help, or this --method does not suit it"
            ),
            Reason::Interrupted => write!(f, "interrupted before the tolerance was reached"),
            Reason::WorkerLost { worker, cause } => write!(f, "{worker} was lost: {cause}"),
        }
    }
}

/// The name alone: details are in the other fields of the report.
impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Part of the rows that workers have been sent; they iterate once it is 1.
    pub distributed: f64,
    /// Laps of the slowest worker.
    pub laps_min: u64,
    /// Laps of the fastest worker.
    pub laps_max: u64,
    /// Relative residual as the workers measured it on their last laps: an estimate, not verified.
    pub residual_estimate: f64,
    /// Time since the iteration began.
    pub elapsed: Duration,
}

/// Wall-clock seconds by phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Seconds {
    /// Reading or generating the system. Filled in by the caller.
    pub load: f64,
    /// Sending rows to the workers; factorising their blocks.
    pub distribute: f64,
    /// Iterating, verification excluded.
    pub iterate: f64,
    /// Computing exact residuals.
    pub verify: f64,
    /// Of these, the last one: the one that ended the run. The paper RELAX does not count it.
    pub verify_last: f64,
}

/// `Outcome::method` of all modes that do laps.
pub const RELAXATION: &str = "relaxation";

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Whether the tolerance was met.
    pub converged: bool,
    /// Why the run ended.
    pub reason: Reason,
    /// The method that gave `x`, for people.
    pub method: String,
    /// Verified relative residual of `x`; NaN (null in JSON) if it could not be computed.
    pub residual: f64,
    /// Laps of each worker.
    pub laps: Vec<u64>,
    /// Exact residuals computed.
    pub verifications: u64,
    /// Time spent by phase.
    pub seconds: Seconds,
    /// Further notes for the user, one sentence each (for example that `lu` fell back to `sweep`).
    pub notes: Vec<String>,
    /// The solution, or the best approximation reached.
    #[serde(skip)]
    pub x: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// JSON has the reason as a plain name, and no vector.
    #[test]
    fn json_has_the_name_of_the_reason() {
        let outcome = Outcome {
            converged: false,
            reason: Reason::Stagnated { floor: 1e-15 },
            method: "relaxation".into(),
            residual: f64::NAN,
            laps: vec![3, 4],
            verifications: 1,
            seconds: Seconds::default(),
            notes: vec![],
            x: vec![1.0],
        };
        let json = serde_json::to_value(&outcome).unwrap();
        assert_eq!(json["reason"], "stagnated");
        assert_eq!(json["residual"], serde_json::Value::Null);
        assert!(json.get("x").is_none());
        assert!(outcome.reason.to_string().contains("--tol above"));
    }
}
