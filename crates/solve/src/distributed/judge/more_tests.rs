//! Workers that join a run or are refused, and the x that is returned.

use super::super::net::{Weather, config};
use super::tests::{dense, moment, poisson, solve};
use super::*;

/// Workers join at any moment, others die meanwhile: the run converges, and those that came in time have done laps.
#[test]
fn workers_join_and_leave() {
    for seed in 1..=80 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mode = if random.bool() {
            Mode::Async
        } else {
            Mode::Sync
        };
        let mut weather = Weather::calm(seed);
        weather.joins = [moment(&mut random), moment(&mut random)];
        weather.deaths[0] = (moment(&mut random), random.usize(..4));
        let verdict = solve(&poisson(9), 2, &config(mode), weather);
        assert!(
            verdict.reason.is_converged(),
            "{:?} seed {seed}",
            verdict.reason
        );
    }
}

/// A worker for which there are no rows is told to leave; the others need not know of it, and what it says changes nothing.
#[test]
fn a_refused_worker_changes_nothing() {
    let limits = Limits::new(1e-10, 100).unwrap();
    let rows = vec![0..1, 1..2];
    let mut judge = Judge::new(
        limits,
        &config(Mode::Async),
        (rows, Origin::default()),
        None,
    );
    judge.out().clear();
    judge.joined(2);
    assert_eq!(judge.out().pop_front(), Some((2, Order::Leave)));
    assert!(judge.out().is_empty());
    assert_eq!(judge.slots.len(), 2);
    let late = Answer::PeerLost { worker: 0 }.encode();
    assert_eq!(judge.answer(2, &late), Ok(()));
    assert!(judge.takes_part(0) && judge.out().is_empty());
}

/// Where the residual rises from pause to pause, the best x is returned, not that of the last pause.
#[test]
fn the_best_x_is_returned() {
    let mut kept = 0;
    for seed in 1..=4 {
        let slow = SolveConfig {
            combines: false,
            ..config(Mode::Async)
        };
        let verdict = solve(&dense(20, 1.3), 3, &slow, Weather::rough(seed));
        let Reason::Diverged { residual } = verdict.reason else {
            panic!("{:?}", verdict.reason)
        };
        assert!(verdict.residual <= residual);
        kept += usize::from(verdict.residual < residual);
    }
    assert!(kept > 0);
}
