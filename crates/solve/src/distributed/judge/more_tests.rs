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

/// What a worker of nine rows tells another judge.
fn standing(rows: Range<usize>) -> Standing {
    Standing {
        division: 3,
        epoch: 5,
        n: 9,
        rows,
        system: 0,
        laps: 4.0,
    }
}

/// Workers keep their rows and x when another judge divides them anew at once, because one of the workers has none; so do those that have only begun
/// to load what others had.
#[test]
fn what_is_held_is_not_sent_again() {
    let limits = Limits::new(1e-10, 100).unwrap();
    let told = [0..5, 5..9, 0..0].map(|rows| Some(standing(rows)));
    let origin = (9, Origin::default());
    let mut judge = Judge::succeeding(limits, &config(Mode::Async), origin, &told, None);
    let fresh = |judge: &mut Judge| {
        let mut last = vec![Vec::new(); 3];
        for (worker, order) in judge.out().drain(..) {
            if let Order::Setup(setup) = order {
                last[worker] = setup.fresh;
            }
        }
        last
    };
    let begun = fresh(&mut judge);
    assert!(begun[..2].concat().is_empty(), "{begun:?}");
    assert_eq!(begun[2].first(), Some(&(3..6)));
    judge.lost(2, "too").unwrap();
    let fresh = fresh(&mut judge);
    assert_eq!(fresh[..2].concat(), [3..5, 5..6], "{fresh:?}");
}

/// Another judge saves no x before it has heard of all rows that workers hold, wherever they went meanwhile; refused workers are told in any case.
#[test]
fn what_is_not_heard_of_is_not_saved() {
    let limits = Limits::new(1e-10, 100).unwrap();
    let told = [Some(standing(0..3)), None, Some(standing(6..9))];
    let succeed = |start| {
        let origin = (9, Origin::default());
        Judge::succeeding(limits, &config(Mode::Async), origin, &told, start)
    };
    let mut judge = succeed(None);
    judge.out().push_back((7, Order::Leave));
    let snapshot = |judge: &Judge, start: usize, count: usize| {
        let values = vec![1.0; count];
        let division = judge.division;
        Answer::Snapshot {
            division,
            start,
            values,
        }
        .encode()
    };
    for (worker, start, count) in [(0, 0, 2), (2, 5, 4)] {
        assert!(judge.whole_x().is_none() && judge.known_x().is_some());
        let snapshot = snapshot(&judge, start, count);
        judge.answer(worker, &snapshot).unwrap();
    }
    judge.lost(2, "too").unwrap();
    assert!(judge.out().contains(&(7, Order::Leave)));
    assert!(judge.whole_x().is_none());
    let snapshot = snapshot(&judge, 1, 5);
    judge.answer(0, &snapshot).unwrap();
    assert_eq!(judge.whole_x().map(|x| x.iter().sum()), Some(9.0));
    assert!(succeed(Some(vec![2.0; 9])).whole_x().is_some());
}
