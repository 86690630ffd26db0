//! Learning by many simulated workers: the production engine and decisions, virtual time, losses.

#[path = "../examples/simulated_gossip.rs"]
mod simulated;

use simulated::{Case, learn};
use tsumuji_learn::Method;
use tsumuji_proto::Duration;

fn case(method: Method) -> Case {
    Case {
        workers: 12,
        loss_percent: 10,
        method,
        rows: 6_000,
        columns: 4,
        epochs: 256,
        period: 4,
        dies: None,
        seed: 5,
    }
}

/// Newton's gossip among many is exact, though a tenth of all frames is lost, and the same seed gives the same run.
#[test]
fn many_reach_the_optimum_under_loss() {
    let found = learn(&case(Method::Newton));
    assert!(
        found.summary.converged && found.lost_frames > 0,
        "{found:?}"
    );
    assert!(found.from_optimum < 1e-9, "{found:?}");
    assert_eq!(
        (found.summary.disagreement, found.summary.rows),
        (0.0, 6_000)
    );
    let again = learn(&case(Method::Newton));
    assert_eq!((again.summary, again.frames), (found.summary, found.frames));
}

/// Gossip SGD among many comes within a hundredth of the least loss, though a tenth of all frames is lost.
#[test]
fn many_average_under_loss() {
    let found = learn(&case(Method::Sgd));
    assert!(found.summary.exchanges > 300, "{found:?}");
    assert!(found.excess_loss < 0.01, "{found:?}");
}

/// A worker of many that dies drops out with its rows; all others end together.
#[test]
fn one_of_many_dies() {
    let found = learn(&Case {
        dies: Some((3, Duration::from_micros(200))),
        ..case(Method::Newton)
    });
    assert!(found.summary.converged, "{found:?}");
    assert_eq!(
        (found.summary.rows, found.summary.disagreement),
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
    assert_eq!(found.summary.rows, 4_500, "{found:?}");
    assert!(
        found.excess_loss < 0.01 && found.lost_frames > 0,
        "{found:?}"
    );
}
