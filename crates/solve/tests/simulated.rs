//! Relaxation by many simulated workers: production engine, board, judge and workers, virtual time.

#[path = "../examples/simulated.rs"]
mod simulated;

use simulated::{Case, solve};
use tsumuji_board::Elements;

fn case(workers: usize) -> Case {
    Case {
        system: "dense:600".parse().unwrap(),
        workers,
        loss_percent: 0,
        rate_mbit: 10_000,
        elements: Elements::Auto,
        value_ps: 3_000, // a slow processor: computing is what counts
        slow: None,
        seed: 5,
    }
}

/// More workers are faster, nearly in proportion while rows take longer than frames; all converge by a true residual, and the same seed gives the same run.
#[test]
fn more_workers_are_faster() {
    let one = solve(&case(1));
    let eight = solve(&case(8));
    for found in [&one, &eight] {
        assert!(found.summary.reason.is_converged(), "{found:?}");
        assert!(found.summary.residual <= 1e-10, "{found:?}");
    }
    let speed_up = one.seconds / eight.seconds;
    assert!((3.0..=8.5).contains(&speed_up), "{speed_up}");
    let again = solve(&case(8));
    assert_eq!((again.seconds, again.frames), (eight.seconds, eight.frames));
}

/// Losses and a worker at half speed delay the end, and do no other harm.
#[test]
fn losses_and_slow_workers_only_delay() {
    let calm = solve(&case(4)).seconds;
    let lossy = solve(&Case {
        loss_percent: 20,
        ..case(4)
    });
    let slow = solve(&Case {
        slow: Some(2),
        ..case(4)
    });
    for found in [&lossy, &slow] {
        assert!(found.summary.reason.is_converged(), "{found:?}");
        assert!(found.summary.residual <= 1e-10, "{found:?}");
        assert!(
            found.seconds > calm && found.seconds < 4.0 * calm,
            "{found:?} {calm}"
        );
    }
    assert!(lossy.lost_frames > 0);
}
