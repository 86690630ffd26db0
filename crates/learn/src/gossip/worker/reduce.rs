//! The methods by sums over all workers, which wait for each other (`allreduce`).

use super::super::message::{Answer, Setup};
use super::{Phase, State, Worker};
use crate::newton::{Advance, Newton};
use crate::objective::{Share, assess};
use crate::sgd::Sgd;

impl Worker {
    /// Runs the method to its end. `sum` replaces numbers by their sums over all workers.
    pub(in super::super) fn reduce<E>(
        &mut self,
        mut sum: impl FnMut(&mut [f64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (Some(setup), Some(share)) = (&self.setup, &self.share) else {
            return Ok(());
        };
        let exchanges = &mut self.exchange.exchanges;
        let mut sum = |values: &mut [f64]| {
            *exchanges += 1;
            sum(values)
        };
        match &mut self.state {
            State::None => {}
            State::Newton { newton, .. } => {
                by_newton(share, newton, &mut sum)?;
                self.report_newton(true);
            }
            State::Sgd(sgd) => {
                by_sgd(setup, share, sgd, &mut sum)?;
                let done = sgd.epochs();
                self.tell(&Answer::Epochs {
                    done,
                    is_last: true,
                });
                self.phase = Phase::Ended;
            }
        }
        Ok(())
    }
}

fn by_newton<E>(
    share: &Share,
    newton: &mut Newton,
    sum: &mut impl FnMut(&mut [f64]) -> Result<(), E>,
) -> Result<(), E> {
    loop {
        let mut sums = share.statistic(newton.theta(), true);
        sum(&mut sums)?;
        if newton.advance(&sums) != Advance::Evaluate {
            return Ok(());
        }
    }
}

fn by_sgd<E>(
    setup: &Setup,
    share: &Share,
    sgd: &mut Sgd,
    sum: &mut impl FnMut(&mut [f64]) -> Result<(), E>,
) -> Result<(), E> {
    let workers = setup.plausible.rows.len() as f64;
    let mut mean = |values: &mut [f64]| -> Result<(), E> {
        sum(values)?;
        values.iter_mut().for_each(|value| *value /= workers);
        Ok(())
    };
    let mut check_at = 1;
    while !sgd.is_done() {
        sgd.step(share);
        if sgd.steps().is_multiple_of(setup.config.sgd.period) {
            mean(sgd.theta())?;
        }
        if sgd.epochs() == check_at && sgd.steps().is_multiple_of(sgd.steps_per_epoch()) {
            check_at *= 2;
            let mut theta = sgd.result().to_vec();
            mean(&mut theta)?;
            let mut sums = share.statistic(&theta, false);
            mean(&mut sums)?; // a mean of sums and of rows has the same quotient
            let (_, norm) = assess(share.shape(), &sums, false, &theta, setup.config.l2);
            if norm <= setup.config.tol || !norm.is_finite() {
                break;
            }
        }
    }
    Ok(())
}
