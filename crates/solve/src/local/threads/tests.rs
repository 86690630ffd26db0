use super::super::Inner;
use super::*;
use crate::system::Generate;

fn made(text: &str) -> System {
    text.parse::<Generate>().unwrap().system(7).unwrap()
}

fn limits(tolerance: f64, max_laps: u64) -> Limits {
    Limits::new(tolerance, max_laps).unwrap()
}

fn solve(
    system: System,
    workers: usize,
    relaxation: Relaxation,
    limits: Limits,
    progress: impl FnMut(Progress),
) -> Result<Outcome, ThreadsError> {
    super::solve(
        system,
        workers,
        (relaxation, false),
        limits,
        progress,
        || false,
    )
}

/// Threads converge to the verified tolerance, whatever the system, the inner solver and their number.
#[test]
fn threads_converge() {
    for (text, inner, workers) in [
        ("dense:300", Inner::Sweep, 1),
        ("dense:300", Inner::Sweep, 3),
        ("poisson2d:15", Inner::Sweep, 2),
        ("poisson2d:15", Inner::Lu, 4),
        ("circuit:600", Inner::Auto, 3),
        ("poisson2d:2", Inner::Sweep, 4),
    ] {
        let system = made(text);
        let relaxation = Relaxation::new(inner, 1.0).unwrap();
        let outcome = solve(
            system.clone(),
            workers,
            relaxation,
            limits(1e-10, 100_000),
            |_| (),
        )
        .unwrap();
        assert!(
            outcome.converged,
            "{text}: {:?} {}",
            outcome.reason, outcome.residual
        );
        assert_eq!(outcome.laps.len(), workers);
        assert!(outcome.verifications >= 1);
        let residual = RowBlock::cut(&system, 0..system.n())
            .residual_sq(&outcome.x)
            .sqrt()
            / system.rhs_norm();
        assert!(
            (residual - outcome.residual).abs() <= 1e-3 * residual + 1e-20,
            "{residual} {}",
            outcome.residual
        );
    }
}

/// One thread needs as many laps as the sequential mode, except for the laps during judging.
#[test]
fn one_thread_is_sequential() {
    let relaxation = Relaxation::new(Inner::Sweep, 1.0).unwrap();
    let alone = super::super::single::solve(
        made("dense:800"),
        (relaxation, false),
        limits(1e-10, 1000),
        |_| (),
        || false,
    )
    .unwrap();
    let thread = solve(
        made("dense:800"),
        1,
        relaxation,
        limits(1e-10, 1000),
        |_| (),
    )
    .unwrap();
    assert!(thread.laps[0] >= alone.laps[0] - 1);
    assert!((0..800).all(|row| (thread.x[row] - 1.0).abs() < 1e-8));
}

/// The limit on laps and the rounding level end a run of threads, too.
#[test]
fn runs_end() {
    let relaxation = Relaxation::new(Inner::Sweep, 1.0).unwrap();
    let outcome = solve(
        made("poisson2d:40"),
        2,
        relaxation,
        limits(1e-12, 5),
        |_| (),
    )
    .unwrap();
    assert_eq!(outcome.reason, Reason::MaxLaps { limit: 5 });
    assert!(outcome.laps.iter().all(|laps| *laps >= 5));
    let mut system = made("dense:100");
    system.rhs = (0..100).map(|row| 1.0 / (f64::from(row) + 3.0)).collect();
    let outcome = solve(system, 2, relaxation, limits(1e-25, u64::MAX), |_| ()).unwrap();
    assert!(
        matches!(outcome.reason, Reason::Stagnated { .. }),
        "{:?}",
        outcome.reason
    );
}

/// More threads than rows, and blocks that cannot be factorised, are errors.
#[test]
fn impossible_set_ups_are_refused() {
    let relaxation = Relaxation::new(Inner::Sweep, 1.0).unwrap();
    let error = solve(
        made("poisson2d:2"),
        5,
        relaxation,
        limits(1e-10, 10),
        |_| (),
    )
    .unwrap_err();
    assert!(error.to_string().contains("at most 4 workers"), "{error}");
}

/// A request to stop ends the run soon, at any time, with the verified residual of its x.
#[test]
fn stops_when_told() {
    for begun in [false, true] {
        let system = made("poisson2d:60");
        let laps = std::cell::Cell::new(0);
        let outcome = super::solve(
            system.clone(),
            3,
            (Relaxation::new(Inner::Sweep, 1.0).unwrap(), false),
            limits(1e-13, u64::MAX),
            |progress| laps.set(progress.laps_min),
            || !begun || laps.get() > 0,
        )
        .unwrap();
        assert_eq!(outcome.reason, Reason::Interrupted);
        assert!(!outcome.converged);
        let block = RowBlock::whole(system.clone());
        let residual = block.residual_sq(&outcome.x).sqrt() / system.rhs_norm();
        assert!(
            (outcome.residual - residual).abs() <= 1e-9 * residual,
            "{} {residual}",
            outcome.residual
        );
    }
}

/// Combined laps take less than half of the laps where these alone are slow; with threads, whose laps are not determined, the residual is as true.
#[test]
fn combined_laps_are_fewer() {
    let system = made("poisson2d:40");
    let relaxation = Relaxation::new(Inner::Sweep, 1.0).unwrap();
    let never = || false;
    let alone = |combines| {
        let system = system.clone();
        let how = (relaxation, combines);
        super::super::single::solve(system, how, limits(1e-10, 100_000), |_| (), never)
    };
    let (laps, combined) = (alone(false).unwrap(), alone(true).unwrap());
    let by_threads = |workers| {
        let system = system.clone();
        let how = (relaxation, true);
        super::solve(system, workers, how, limits(1e-10, 100_000), |_| (), never)
    };
    assert!(combined.laps[0] * 2 < laps.laps[0], "{:?}", combined.laps);
    for outcome in [combined, by_threads(1).unwrap(), by_threads(3).unwrap()] {
        assert!(outcome.converged, "{:?}", outcome.reason);
        let block = RowBlock::cut(&system, 0..system.n());
        let residual = block.residual_sq(&outcome.x).sqrt() / system.rhs_norm();
        assert!((residual - outcome.residual).abs() <= 1e-3 * residual);
    }
}

/// A singular system without a solution stands still.
#[test]
fn singular_systems_stand_still() {
    for combines in [true, false] {
        let relaxation = Relaxation::new(Inner::Sweep, 1.0).unwrap();
        let limits = limits(1e-10, u64::MAX);
        let system = crate::local::single::tests::ring(40);
        let outcome = super::solve(system, 2, (relaxation, combines), limits, |_| (), || false);
        let reason = outcome.unwrap().reason;
        assert!(matches!(reason, Reason::Stalled { .. }), "{reason:?}");
    }
}
