//! How runs end that do not converge, or at once.

use super::*;

/// Laps run out in both modes, for all workers at about the same time, and the residual is that of the returned x.
#[test]
fn laps_run_out() {
    for mode in [Mode::Async, Mode::Sync] {
        let config = SolveConfig {
            max_laps: 5,
            ..config(mode)
        };
        let verdict = solve(&poisson(10), 3, &config, Weather::rough(3));
        assert_eq!(verdict.reason, Reason::MaxLaps { limit: 5 });
        // A fast worker goes on slowly while others have laps to do: its rows must follow their changes.
        let limit = if mode == Mode::Sync { 5 } else { 60 };
        assert!(
            verdict
                .stats
                .iter()
                .all(|stats| (5..=limit).contains(&stats.laps)),
            "{:?}",
            verdict.stats
        );
        assert!(verdict.residual > 1e-10 && verdict.residual < 1.0);
    }
}

/// A system that is far from dominance ends as diverged, with an x that is no worse than 0.
#[test]
fn divergence_ends() {
    for mode in [Mode::Async, Mode::Sync] {
        for seed in 1..=3 {
            let verdict = solve(&dense(20, 40.0), 3, &config(mode), Weather::rough(seed));
            assert!(
                matches!(verdict.reason, Reason::Diverged { .. }),
                "{:?}",
                verdict.reason
            );
            assert!(verdict.residual <= 1.0, "{}", verdict.residual);
        }
    }
}

/// A tolerance below the rounding level ends as stagnation, not by running out of laps.
#[test]
fn rounding_level_ends() {
    for mode in [Mode::Async, Mode::Sync] {
        let config = SolveConfig {
            tol: 1e-18,
            ..config(mode)
        };
        let rhs = (1..=30).map(|row| 1.0 / f64::from(row)).collect();
        let system = System::new(dense(30, 0.5).matrix, Some(rhs), "thirds".into()).unwrap();
        let verdict = solve(&system, 3, &config, Weather::calm(5));
        assert!(
            matches!(verdict.reason, Reason::Stagnated { floor } if floor < 1e-14),
            "{:?}",
            verdict.reason
        );
    }
}

/// b = 0 has the solution x = 0, found without dividing by ‖b‖.
#[test]
fn zero_rhs_is_solved() {
    let System { matrix, .. } = dense(8, 0.5);
    let system = System::new(matrix, Some(vec![0.0; 8]), "zero".into()).unwrap();
    let verdict = run(&system, 2, &config(Mode::Async), Weather::calm(1)).unwrap();
    assert_eq!(
        (&verdict.reason, &verdict.x),
        (&Reason::Converged, &vec![0.0; 8])
    );
}
