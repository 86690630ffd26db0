//! Krylov methods for A x = b: conjugate gradients and restarted GMRES, preconditioned, over one or several parts of the rows.
//!
//! Every part runs the same code on its own rows (`iterate`); what parts have to tell each other goes through a [`Space`]: sums over all of them, and
//! the elements of a vector that other parts own. The spaces: `team` for threads of this process, of which one alone is the simplest case, and
//! `distributed` for the workers of a cluster.
//!
//! Invariants: all parts see the same sums, so all of them decide alike; `End::Converged` is decided by the residual that is computed from A, b and x
//! with carried rounding errors, never by the recurrences.

mod cg;
mod eisenstat;
mod gmres;
mod part;
mod preconditioner;
mod team;

pub use part::Part;
pub use preconditioner::{Preconditioner, Preconditioning};
pub use team::{Solved, solve};
pub(crate) use team::{Strips, iterate_strips, threads_for};

use crate::local::{Best, Limits, StopRule, relative};
use crate::report::Reason;

/// What the parts of a system exchange while they iterate. Each method is called by all parts, in the same order.
pub trait Space {
    /// Why the parts can no longer exchange.
    type Error;

    /// Replaces each value by its sum over all parts: the same bits in every part.
    fn sum(&mut self, values: &mut [f64]) -> Result<(), Self::Error>;

    /// Gives the own elements of `vector` to the other parts and takes theirs, as far as this part reads them.
    fn exchange(&mut self, vector: &mut [f64]) -> Result<(), Self::Error>;

    /// Is told of each iteration; returns whether this part wants to stop. All parts stop if one wants to.
    fn iterated(&mut self, now: Iterated<'_>) -> Result<bool, Self::Error>;
}

/// Where a run is.
#[derive(Debug, Clone, Copy)]
pub struct Iterated<'a> {
    /// Iterations done.
    pub iterations: u64,
    /// Relative residual by the recurrence; some of conjugate gradients are guesses.
    pub residual: f64,
    /// Own elements of x: of this iteration (conjugate gradients), or of the last restart (GMRES). Empty where nobody has put them
    /// together.
    pub x: &'a [f64],
}

/// Which method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Kind {
    /// Conjugate gradients: for symmetric positive definite matrices.
    Cg,
    /// GMRES, restarted.
    Gmres,
}

impl Kind {
    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cg => "conjugate gradients",
            Self::Gmres => "GMRES",
        }
    }
}

/// When to give up.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Tolerance, and most iterations.
    pub limits: Limits,
    /// Iterations that another way of solving would take about as long as. Ends the run if it would take several times as many.
    pub budget: Option<u64>,
}

impl Patience {
    /// Without an alternative.
    pub fn unlimited(limits: Limits) -> Self {
        Self {
            limits,
            budget: None,
        }
    }

    /// Whether to give up after `done` iterations that took the relative residual to `residual`.
    fn is_over(&self, done: u64, residual: f64) -> bool {
        let Some(budget) = self.budget else {
            return false;
        };
        if done < budget / PREDICTION_FACTOR {
            return false;
        }
        let needed = self.limits.tolerance().ln();
        let fallen = residual.ln();
        // No fall at all is a prediction of infinitely many.
        let predicted = if fallen < 0.0 {
            done as f64 * needed / fallen
        } else {
            f64::INFINITY
        };
        predicted > (PREDICTION_FACTOR * budget) as f64
            || (done >= budget && predicted > 2.0 * done as f64)
    }
}

/// A prediction is made from a fourth of the budget on, and believed if it is beyond four times the budget: early iterations are the slow ones.
const PREDICTION_FACTOR: u64 = 4;

/// Why iterating ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum End {
    /// The exact residual is within the tolerance.
    Converged,
    /// As many iterations as were allowed.
    MaxIterations,
    /// The exact residual no longer falls, and is near the level of rounding.
    Rounding,
    /// The exact residual no longer falls, far above the level of rounding.
    Stalled,
    /// Another way of solving is expected to be faster.
    Slow,
    /// The matrix, or the preconditioner, is not positive definite (conjugate gradients only).
    Indefinite,
    /// Numbers overflowed.
    Overflow,
    /// A part wanted to stop.
    Stopped,
}

impl End {
    /// Why the run ended, with the best exact residual `best`.
    pub fn reason(self, limits: Limits, best: f64) -> Reason {
        match self {
            Self::Converged => Reason::Converged,
            Self::MaxIterations => Reason::MaxLaps {
                limit: limits.max_laps(),
            },
            Self::Rounding => Reason::Stagnated { floor: best },
            Self::Stopped => Reason::Interrupted,
            Self::Overflow => Reason::Diverged {
                residual: f64::INFINITY,
            },
            Self::Stalled | Self::Slow | Self::Indefinite => Reason::Stalled { best },
        }
    }
}

/// Result of [`iterate`], the same in all parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ended {
    /// Why.
    pub end: End,
    /// Exact relative residual of x.
    pub residual: f64,
    /// Iterations: products with A, verification not counted.
    pub iterations: u64,
    /// Exact residuals computed.
    pub verifications: u64,
}

/// How a run of a method from one exact residual to the next ended.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Run {
    /// The recurrence says that the target is reached.
    Reached,
    /// A restart is due.
    Restart,
    Ended(End),
}

/// A run goes on to this part of the tolerance, so that the exact residual, which differs by rounding, is within it.
const AIM: f64 = 0.5;
/// The exact residual must fall to this part from one verification to the next, or fast enough to reach the tolerance in the iterations that are left,
/// or it counts as standing still.
const FALLS: f64 = 0.9;
/// Verifications in a row without a fall after which a run ends.
const STANDSTILLS: u32 = 3;

/// Counters of a run, and its goal.
#[derive(Debug)]
struct Course<'a> {
    patience: &'a Patience,
    /// Most iterations.
    most: u64,
    rhs_norm: f64,
    iterations: u64,
    /// ‖r‖ at which the recurrence counts as converged.
    target: f64,
    /// ‖r‖ where the recurrence begins, and a norm of 1 as the recurrence measures it: rows may be scaled.
    begins_at: f64,
    unit: f64,
}

impl Course<'_> {
    /// The recurrence measures its first residual as `norm`. Its norms are taken to fall as those of the system.
    fn measure_in(&mut self, norm: f64) {
        let unit = norm / self.begins_at;
        self.unit = if unit.is_normal() { unit } else { 1.0 };
    }

    /// Records an iteration with a residual norm of `norm`, which all parts know; returns whether the run ends here. `stops`: how many parts want to
    /// stop. A norm that is not measured is a guess above the target.
    fn judge(&self, norm: f64, stops: f64, is_measured: bool) -> Option<Run> {
        let norm = norm / self.unit;
        let residual = relative(norm, self.rhs_norm);
        if !norm.is_finite() {
            return Some(Run::Ended(End::Overflow));
        }
        if norm <= self.target {
            return Some(Run::Reached);
        }
        if stops > 0.0 {
            return Some(Run::Ended(End::Stopped));
        }
        if self.iterations >= self.most {
            return Some(Run::Ended(End::MaxIterations));
        }
        let is_over = is_measured && self.patience.is_over(self.iterations, residual);
        is_over.then_some(Run::Ended(End::Slow))
    }
}

/// Solves on one part, with `x` holding the own elements: at first the start, in the end the solution.
pub fn iterate<S: Space>(
    kind: Kind,
    part: &mut Part<'_>,
    x: &mut [f64],
    patience: &Patience,
    space: &mut S,
) -> Result<Ended, S::Error> {
    let limits = patience.limits;
    // Parts that have done more than others are left fewer: the mean is one number for all, who must decide alike.
    let mut sums = [part.rhs_sq(), limits.max_laps() as f64, 1.0];
    space.sum(&mut sums)?;
    let (rhs_norm, most) = (sums[0].sqrt(), (sums[1] / sums[2]) as u64);
    let mut course = Course {
        patience,
        most,
        rhs_norm,
        iterations: 0,
        target: 0.0,
        begins_at: 0.0,
        unit: 1.0,
    };
    if kind == Kind::Gmres {
        part.scale_rows();
    }
    let (mut verifications, mut standstills, mut counted) = (0, 0, 0);
    let (mut before, mut best) = (f64::INFINITY, Best::default());
    // Tightened where the recurrence is far from the exact residual.
    let mut aim = AIM;
    let (mut ended, mut reached) = (None, false);
    let mut residuals = vec![0.0; x.len()];
    loop {
        let magnitude_sq = part.exact_residual(x, &mut residuals, standstills > 0, space)?;
        let mut sums = [
            crate::local::kernels::sum_of_squares(&residuals),
            magnitude_sq,
        ];
        space.sum(&mut sums)?;
        verifications += 1;
        let residual = relative(sums[0].sqrt(), rhs_norm);
        let rounding = relative(f64::EPSILON * sums[1].sqrt(), rhs_norm);
        let taken = (course.iterations - std::mem::replace(&mut counted, course.iterations)) as f64;
        let left = most.saturating_sub(course.iterations) as f64;
        let needed = taken * (limits.tolerance() / residual).ln() / (residual / before).ln();
        // Where it grows, fewer than none.
        let arrives = needed > 0.0 && needed <= left && !StopRule::is_rounding(residual, rounding);
        let is_slow = residual > FALLS * before && !arrives;
        standstills = if is_slow { standstills + 1 } else { 0 };
        let end = if residual <= limits.tolerance() {
            Some(End::Converged)
        } else if !residual.is_finite() {
            Some(End::Overflow)
        } else if ended.is_some() {
            ended
        } else if standstills >= STANDSTILLS {
            let is_near = StopRule::is_rounding(best.residual, rounding);
            Some(if is_near { End::Rounding } else { End::Stalled })
        } else {
            None
        };
        best.see(residual, x);
        if let Some(end) = end {
            x.copy_from_slice(&best.x);
            return Ok(Ended {
                end,
                residual: best.residual,
                iterations: course.iterations,
                verifications,
            });
        }
        if reached {
            aim = (aim * (limits.tolerance() / residual).min(1.0)).max(f64::EPSILON);
        }
        before = residual;
        let norm = if rhs_norm > 0.0 { rhs_norm } else { 1.0 };
        course.target = aim * limits.tolerance() * norm;
        course.begins_at = sums[0].sqrt();
        let run = match kind {
            Kind::Cg => cg::run(part, x, &mut residuals, &mut course, space)?,
            Kind::Gmres => gmres::run(part, x, &mut residuals, &mut course, space)?,
        };
        reached = run == Run::Reached;
        if let Run::Ended(end) = run {
            ended = Some(end);
        }
    }
}

/// Scalar products and combinations of own elements.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    crate::local::kernels::dot(a, b)
}

/// `y += factor · x`.
fn add(y: &mut [f64], factor: f64, x: &[f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

#[cfg(test)]
mod tests;
