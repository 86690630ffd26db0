//! Relaxation by many simulated workers: production engine, board, judge and workers, virtual time.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use tsumuji_board::Elements;
use tsumuji_sim::Seed;
use tsumuji_solve::distributed::simulated::machines::{
    Found, Machines, RelaxError, entry_ps, handover_ns,
};
use tsumuji_solve::system::Solution;

fn case(workers: usize) -> Machines {
    Machines {
        system: "dense:600".parse().unwrap(),
        solution: Solution::Ones,
        workers,
        elements: Elements::Auto,
        frame_bytes: 1_500,
        frame_ns: 500,
        handover_ns: None,
        delay_us: 5..8,
        rate_mbit: 10_000,
        loss_percent: 0,
        value_ps: 3_000, // a slow processor: computing is what counts
        slow: None,
        seed: Seed::from_env_or(5).0,
    }
}

fn solve(machines: &Machines) -> Found {
    machines.relax(&|| false).unwrap()
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
    let lossy = solve(&Machines {
        loss_percent: 20,
        ..case(4)
    });
    let slow = solve(&Machines {
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

/// Where a second core receives and sends, many workers are faster: each of the others' frames takes less of the core that computes.
#[test]
fn second_cores_help() {
    assert!(handover_ns(20) > 0);
    let of = |handover_ns| {
        solve(&Machines {
            handover_ns,
            elements: Elements::Fixed(10),
            ..case(16)
        })
    };
    let (one, two) = (of(None), of(Some(50)));
    assert!(two.seconds < 0.9 * one.seconds, "{two:?} {one:?}");
    // But not where it has more to do than the first.
    for (value_ps, helps) in [(300, false), (30_000, true)] {
        let machines = Machines {
            value_ps,
            elements: Elements::Fixed(10),
            ..case(16)
        };
        let machines = machines.with_second_cores();
        assert_eq!(machines.handover_ns.is_some(), helps);
    }
    assert!(two.summary.residual <= 1e-10, "{two:?}");
}

/// A slower cable, or one element a frame, makes eight workers slower, and the wire carries what their frames hold.
#[test]
fn links_count() {
    let of = |elements, rate_mbit| {
        solve(&Machines {
            elements: Elements::Fixed(elements),
            rate_mbit,
            value_ps: 300,
            ..case(8)
        })
    };
    let (usual, slow, single) = (of(20, 10_000), of(20, 1_000), of(1, 10_000));
    assert!(slow.seconds > usual.seconds, "{slow:?} {usual:?}");
    assert!(single.seconds > usual.seconds, "{single:?} {usual:?}");
    for found in [&usual, &slow, &single] {
        assert!(found.summary.residual <= 1e-10, "{found:?}");
        assert!(found.iterating_seconds < found.seconds, "{found:?}");
    }
    let mean = |found: &Found| found.update_bytes / found.updates;
    assert!(mean(&single) < mean(&usual), "{single:?} {usual:?}");
}

/// A run that is stopped, or that cannot begin, says so; what an entry takes is measured.
#[test]
fn runs_without_a_result_say_why() {
    assert_eq!(case(2).relax(&|| true).unwrap_err(), RelaxError::Stopped);
    let error = case(601).relax(&|| false).unwrap_err().to_string();
    assert!(error.contains("row"), "{error}");
    let ps = entry_ps(&case(1).system, (2, 2), 20, &|| false).unwrap();
    assert!((1..1_000_000).contains(&ps), "{ps}");
}

/// A run can be stopped while its machines find each other, and where an entry is measured between its laps, by all threads.
#[test]
fn beginnings_can_be_stopped() {
    // It is asked for each of the 31 machines, and then after each event of the net.
    for asked_most in [1, 10, 100] {
        let asked = Cell::new(0);
        let stop = || {
            asked.set(asked.get() + 1);
            asked.get() > asked_most
        };
        let found = case(30).relax(&stop);
        assert_eq!(found.unwrap_err(), RelaxError::Stopped);
        assert_eq!(asked.get(), asked_most + 1);
    }
    for asked_most in 0..=3 {
        let asked = AtomicUsize::new(0);
        let stop = || asked.fetch_add(1, Ordering::Relaxed) >= asked_most;
        assert_eq!(entry_ps(&case(1).system, (2, 2), 20, &stop), None);
        assert_eq!(asked.load(Ordering::Relaxed), asked_most + 1);
    }
}
