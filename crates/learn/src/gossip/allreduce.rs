//! The methods by all-reduces of `tsumuji_collective`: all workers wait for each other, and none may be missing.

use tsumuji_collective::{CollectiveError, Collectives, GroupError, Op, TableError};
use tsumuji_node::{Endpoint, NodeId};

use crate::newton::{Advance, Newton};
use crate::objective::{Share, assess};
use crate::sgd::Sgd;

use super::message::Setup;
use super::worker::Reduced;

/// Why an all-reduce failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReduceError {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Runs the method to its end; returns how many all-reduces that took, too.
pub(super) fn iterate(
    endpoint: &mut Endpoint,
    setup: &Setup,
    share: &Share,
    from: Reduced,
) -> Result<(Reduced, u64), ReduceError> {
    let mut collectives = Collectives::new(endpoint)?;
    let workers: Vec<NodeId> = endpoint.members()[1..]
        .iter()
        .map(|member| member.id)
        .collect();
    let group = collectives.group(endpoint, &workers, 1)?;
    let mut exchanges = 0;
    let mut sum = |values: &mut [f64]| -> Result<(), ReduceError> {
        exchanges += 1;
        Ok(collectives.all_reduce(endpoint, group, values, &Op::sum())?)
    };
    let reduced = match from {
        Reduced::Newton(newton) => by_newton(share, newton, &mut sum)?,
        Reduced::Sgd(sgd) => by_sgd(setup, share, sgd, &mut sum)?,
    };
    Ok((reduced, exchanges))
}

fn by_newton(
    share: &Share,
    mut newton: Newton,
    sum: &mut impl FnMut(&mut [f64]) -> Result<(), ReduceError>,
) -> Result<Reduced, ReduceError> {
    loop {
        let mut sums = share.statistic(newton.theta(), true);
        sum(&mut sums)?;
        if newton.advance(&sums) != Advance::Evaluate {
            return Ok(Reduced::Newton(newton));
        }
    }
}

fn by_sgd(
    setup: &Setup,
    share: &Share,
    mut sgd: Box<Sgd>,
    sum: &mut impl FnMut(&mut [f64]) -> Result<(), ReduceError>,
) -> Result<Reduced, ReduceError> {
    let workers = setup.plausible.rows.len() as f64;
    let mut mean = |values: &mut [f64]| -> Result<(), ReduceError> {
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
    Ok(Reduced::Sgd(sgd))
}
