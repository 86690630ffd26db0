//! Learning in one process, without messages: the measure for all others.

use std::time::Instant;

use crate::config::{LearnConfig, Method};
use crate::newton::{Advance, Newton};
use crate::objective::{Share, assess};
use crate::report::{Moment, Outcome, Reason};
use crate::sgd::{Sgd, rate_of};
use crate::tuning::TUNING;

/// Learns from all rows. `stop` tells whether the user wants it to end.
pub fn learn(share: &Share, config: &LearnConfig, stop: &mut dyn FnMut() -> bool) -> Outcome {
    match config.method {
        Method::Newton => newton(share, config, stop),
        Method::Sgd => sgd(share, config, stop),
    }
}

fn newton(share: &Share, config: &LearnConfig, stop: &mut dyn FnMut() -> bool) -> Outcome {
    let began = Instant::now();
    let (shape, rows) = (share.shape(), share.rows());
    let mut newton = Newton::new(shape, config.l2, config.tol, vec![0.0; shape.parameters()]);
    let mut history = Vec::new();
    let reason = loop {
        let sums = share.statistic(newton.theta(), true);
        let next = newton.advance(&sums);
        let (loss, gradient_norm) = newton.progress();
        history.push(Moment {
            seconds: began.elapsed().as_secs_f64(),
            iteration: newton.steps(),
            loss,
            gradient_norm,
        });
        match next {
            Advance::Evaluate if stop() => break Reason::Interrupted,
            Advance::Evaluate => {}
            Advance::Converged => break Reason::Converged,
            Advance::Stagnated => break Reason::Stagnated,
        }
    };
    let (loss, gradient_norm) = newton.progress();
    Outcome {
        reason,
        theta: newton.theta().to_vec(),
        loss,
        gradient_norm,
        iterations: newton.steps(),
        seconds: began.elapsed().as_secs_f64(),
        rows,
        history,
        ..Outcome::begun()
    }
}

fn sgd(share: &Share, config: &LearnConfig, stop: &mut dyn FnMut() -> bool) -> Outcome {
    let began = Instant::now();
    let (shape, rows) = (share.shape(), share.rows());
    let rate = (config.sgd.rate).unwrap_or_else(|| rate_of(share, &config.sgd, rows));
    let mut sgd = Sgd::new(config.sgd, rate, config.l2, shape, rows, config.seed);
    let (mut history, mut check_at) = (Vec::new(), 1);
    let (reason, (loss, gradient_norm)) = loop {
        if sgd.steps().is_multiple_of(TUNING.steps_per_poll) && stop() {
            break (Reason::Interrupted, loss_and_norm(share, config, &mut sgd));
        }
        sgd.step(share);
        if sgd.epochs() < check_at {
            continue;
        }
        // The gradient of all rows costs about an epoch: it is made after 1, 2, 4, 8 … of them.
        check_at = (2 * check_at).min(config.sgd.epochs.max(check_at + 1));
        let (loss, gradient_norm) = loss_and_norm(share, config, &mut sgd);
        history.push(Moment {
            seconds: began.elapsed().as_secs_f64(),
            iteration: sgd.epochs(),
            loss,
            gradient_norm,
        });
        if !gradient_norm.is_finite() {
            break (Reason::Diverged, (loss, gradient_norm));
        }
        if gradient_norm <= config.tol {
            break (Reason::Converged, (loss, gradient_norm));
        }
        if sgd.is_done() {
            break (Reason::Epochs, (loss, gradient_norm));
        }
    };
    Outcome {
        reason,
        theta: sgd.result().to_vec(),
        loss,
        gradient_norm,
        iterations: sgd.epochs(),
        seconds: began.elapsed().as_secs_f64(),
        rows,
        history,
        ..Outcome::begun()
    }
}

fn loss_and_norm(share: &Share, config: &LearnConfig, sgd: &mut Sgd) -> (f64, f64) {
    let sums = share.statistic(sgd.result(), false);
    assess(share.shape(), &sums, false, sgd.result(), config.l2)
}
