//! Sequential Gauss–Seidel: one worker, every row, always the newest values. The reference for the other modes.

use super::accelerate::{History, combine_all};
use super::stop::Best;
use super::{Limits, Relaxation, RelaxationError, StopRule, Sweeper, kernels};
use crate::report::{Outcome, Progress, RELAXATION, Reason, Seconds};
use crate::system::{RowBlock, System};
use std::time::Instant;

/// Does laps over the whole of A until the verified residual meets the tolerance, or the rule says stop. Starts with x = 0; `progress` is called
/// after each lap. With the flag, laps that are slow are combined every now and then (GCR). When `stop`, called after each lap, returns true, the run
/// ends as interrupted, with the verified residual of its x.
pub fn solve(
    system: System,
    (relaxation, combines): (Relaxation, bool),
    limits: Limits,
    mut progress: impl FnMut(Progress),
    stop: impl Fn() -> bool,
) -> Result<Outcome, RelaxationError> {
    let begin = Instant::now();
    let norm = system.rhs_norm();
    let scaling = system.scaling.clone();
    let mut rule = StopRule::new(limits);
    let mut x = vec![0.0; system.n()];
    let mut sweeper = Sweeper::new(RowBlock::whole(system), relaxation)?;
    let mut history = combines.then(|| History::new(x.len(), &sweeper.block().rhs, false));
    let mut exact = vec![0.0; x.len()];
    let mut seconds = Seconds {
        distribute: begin.elapsed().as_secs_f64(),
        ..Seconds::default()
    };

    let begin = Instant::now();
    let (mut laps, mut verifications) = (0, 0);
    let (mut before, mut best) = (f64::INFINITY, Best::default());
    best.see(super::relative(norm, norm), &x); // no x that is worse than 0 is returned
    let (reason, residual) = loop {
        let rows = sweeper.block().rows.clone();
        let squares: f64 = sweeper
            .lap(rows.len())
            .map(|rows| sweeper.relax(rows, &mut x))
            .sum();
        let estimate = super::relative(squares.sqrt(), norm);
        laps += 1;
        progress(Progress {
            distributed: 1.0,
            laps_min: laps,
            laps_max: laps,
            residual_estimate: estimate,
            elapsed: begin.elapsed(),
        });
        let diverged = rule.estimate(estimate).is_some();
        let must_verify = laps % StopRule::STALL_LAPS == 0 || laps >= limits.max_laps();
        let stopped = stop();
        if stopped || diverged || must_verify || rule.worth_verifying(before, estimate) {
            let verifying = Instant::now();
            let block = sweeper.block();
            block.exact_residual(0..x.len(), &x, &mut exact);
            let residual = super::relative(kernels::sum_of_squares(&exact).sqrt(), norm);
            let rounding = super::relative(
                f64::EPSILON * block.magnitude_sq(0..x.len(), &x).sqrt(),
                norm,
            );
            verifications += 1;
            seconds.verify_last = verifying.elapsed().as_secs_f64();
            seconds.verify += seconds.verify_last;
            let reason = rule.verified(laps, residual, rounding);
            if let Some(reason) = reason.or(stopped.then_some(Reason::Interrupted)) {
                break (reason, residual);
            }
            best.see(residual, &x);
            let least_sq =
                (history.as_mut()).map(|history| combine_all(history, &mut x, exact.clone()));
            let least = least_sq.map_or(residual, |sq| super::relative(sq.sqrt(), norm));
            rule.combined(laps, least);
            if history.is_some() {
                before = f64::INFINITY;
                continue;
            }
        }
        before = estimate;
    };
    seconds.iterate = begin.elapsed().as_secs_f64() - seconds.verify;
    let (residual, x) = best.or_last(residual, x);
    let x = crate::system::Scaling::undo(scaling.as_ref(), x);
    Ok(Outcome {
        converged: reason.is_converged(),
        reason: reason.at_best(residual),
        method: RELAXATION.into(),
        residual,
        laps: vec![laps],
        verifications,
        seconds,
        notes: sweeper.note().map(String::from).into_iter().collect(),
        x,
    })
}

#[cfg(test)]
pub(super) mod tests;
