//! Learning by many simulated workers: the production engine and decisions, virtual time, losses.

#[path = "../examples/simulated_gossip.rs"]
mod simulated;

use simulated::{Case, compare, learn};
use tsumuji_learn::{Average, Method};
use tsumuji_proto::Duration;

fn case(method: Method) -> Case {
    Case {
        workers: 12,
        loss_percent: 10,
        method,
        average: Average::Auto,
        rows: 6_000,
        columns: 4,
        is_sorted: false,
        epochs: 256,
        period: 4,
        tol: 1e-9,
        row_ps: 5_000,
        dies: None,
        seed: 5,
    }
}

/// Newton's gossip among many is exact, though a tenth of all frames is lost, and the same seed gives the same run.
#[test]
fn many_reach_the_optimum_under_loss() {
    let found = learn(&case(Method::Newton));
    assert!(found.is_converged() && found.lost_frames > 0, "{found:?}");
    assert!(found.from_optimum < 1e-9, "{found:?}");
    assert_eq!(
        (found.outcome.disagreement, found.outcome.rows),
        (0.0, 6_000)
    );
    let again = learn(&case(Method::Newton));
    assert_eq!((again.outcome, again.frames), (found.outcome, found.frames));
}

/// Gossip SGD among many comes within a hundredth of the least loss, though a tenth of all frames is lost.
#[test]
fn many_average_under_loss() {
    let found = learn(&case(Method::Sgd));
    assert!(found.outcome.exchanges > 300, "{found:?}");
    assert!(found.excess_loss < 0.01, "{found:?}");
}

/// Push-sum, too, is exact though a tenth of all frames is lost and workers hold one class each, among few workers and among many.
#[test]
fn push_sum_is_exact_on_skewed_shares() {
    for (workers, average) in [(8, Average::PushSum), (100, Average::Auto)] {
        let found = learn(&Case {
            workers,
            average,
            is_sorted: true,
            ..case(Method::Newton)
        });
        let outcome = &found.outcome;
        assert!(found.is_converged() && found.lost_frames > 0, "{found:?}");
        assert!(found.from_optimum < 1e-6, "{found:?}");
        assert_eq!((outcome.disagreement, outcome.rejected), (0.0, 0));
        assert_eq!(outcome.rows, 6_000);
    }
}

/// One of four workers, whose estimate is everybody's sum, dies with a part of all mass: the others begin anew, and end together.
#[test]
fn one_of_four_dies_by_push_sum() {
    let found = learn(&Case {
        workers: 4,
        average: Average::PushSum,
        is_sorted: true,
        dies: Some((1, Duration::from_millis(10))),
        ..case(Method::Newton)
    });
    assert!(found.is_converged(), "{found:?}");
    assert_eq!(
        (found.outcome.rows, found.outcome.disagreement),
        (4_500, 0.0)
    );
}

/// A worker of many that dies drops out with its rows; all others end together.
#[test]
fn one_of_many_dies() {
    let found = learn(&Case {
        dies: Some((3, Duration::from_micros(200))),
        ..case(Method::Newton)
    });
    assert!(found.is_converged(), "{found:?}");
    assert_eq!(
        (found.outcome.rows, found.outcome.disagreement),
        (5_500, 0.0)
    );
}

/// A tenth of all frames is lost and one of four workers dies: gossip SGD ends within a hundredth of the least loss.
#[test]
fn one_of_four_dies_under_loss() {
    let found = learn(&Case {
        workers: 4,
        dies: Some((3, Duration::from_millis(1))),
        ..case(Method::Sgd)
    });
    assert_eq!(found.outcome.rows, 4_500, "{found:?}");
    assert!(
        found.excess_loss < 0.01 && found.lost_frames > 0,
        "{found:?}"
    );
}

/// However many workers learn, for real or simulated, Newton's method ends at the same loss, and only one alone exchanges nothing.
#[test]
fn any_number_comes_to_the_same_loss() {
    let case = Case {
        loss_percent: 0,
        ..case(Method::Newton)
    };
    let lines = compare(&case, &[1, 2], &[1, 12]);
    let found: Vec<_> = (lines.iter())
        .map(|line| (line.workers, line.is_simulated))
        .collect();
    assert_eq!(found, [(1, false), (2, false), (1, true), (12, true)]);
    for line in &lines {
        assert!(line.is_reached && line.seconds > 0.0, "{line:?}");
        assert!(line.excess_loss.abs() < 1e-9, "{line:?}");
        assert_eq!(line.exchanges > 0, line.workers > 1, "{line:?}");
    }
}
