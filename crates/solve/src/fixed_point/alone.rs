//! A run of one member, without messages.

use super::config::{Config, Error, Outcome, Reason};
use super::laps::{Laps, NotANumber};
use super::{FixedPoint, sound};
use tsumuji_node::NodeId;

/// Laps between two certificates: each costs about as much as a lap.
pub(super) const CERTIFY_EVERY: u64 = 4;

/// Solves `problem` in this thread.
pub fn alone<P: FixedPoint + ?Sized>(
    problem: &mut P,
    config: &Config<'_>,
) -> Result<Outcome, Error> {
    config.check()?;
    let n = problem.len();
    let nan = |NotANumber(index)| Error::NotANumber {
        member: NodeId(0),
        index,
    };
    let mut x = vec![0.0; n];
    let mut laps = Laps::new(0..n, 1);
    laps.start(problem, &mut x).map_err(nan)?;
    loop {
        let changed = if n == 0 {
            false
        } else {
            // One part is a whole lap.
            let stepped = laps.step(problem, &mut x).map_err(nan)?;
            stepped.lap.unwrap_or(true)
        };
        let stopped = (config.stop)();
        let over = stopped || !changed || laps.total >= config.max_laps;
        if !over && !laps.total.is_multiple_of(CERTIFY_EVERY) {
            continue;
        }
        let certificate = if n == 0 {
            0.0
        } else {
            sound(problem.certificate(0..n, &x))
        };
        let reason = if certificate <= config.tolerance {
            Reason::Converged
        } else if stopped {
            Reason::Stopped
        } else if laps.total >= config.max_laps {
            Reason::Laps
        } else if !changed {
            Reason::Stalled
        } else {
            continue;
        };
        return Ok(Outcome {
            x,
            reason,
            certificate,
            laps: vec![laps.total],
            pauses: 0,
            member: 0,
            range: 0..n,
        });
    }
}
