use super::super::{Inner, threads};
use super::*;
use crate::report::Reason;
use crate::system::{Csr, Generate, Matrix};

fn made(text: &str) -> System {
    text.parse::<Generate>().unwrap().system(7).unwrap()
}

fn with(inner: Inner, omega: f64) -> Relaxation {
    Relaxation::new(inner, omega).unwrap()
}

fn limits(tolerance: f64, max_laps: u64) -> Limits {
    Limits::new(tolerance, max_laps).unwrap()
}

fn solve(
    system: System,
    relaxation: Relaxation,
    limits: Limits,
    progress: impl FnMut(Progress),
) -> Result<Outcome, RelaxationError> {
    super::solve(system, (relaxation, false), limits, progress, || false)
}

/// The solution of a generated system is all ones, and the reported residual is that of the reported x.
fn assert_solved(system: &System, outcome: &Outcome, tolerance: f64) {
    assert!(
        outcome.converged,
        "{:?} {:?}",
        outcome.reason, outcome.residual
    );
    assert!(outcome.residual <= tolerance);
    let residual = RowBlock::cut(system, 0..system.n())
        .residual_sq(&outcome.x)
        .sqrt()
        / system.rhs_norm();
    assert!((outcome.residual - residual).abs() <= 1e-14 * residual);
}

/// Dense and sparse systems converge by sweeps and by LU, alone in the laps that Gauss–Seidel needs.
#[test]
fn systems_converge() {
    for (text, inner, laps) in [
        ("dense:400", Inner::Sweep, 15..25),
        ("poisson2d:12", Inner::Sweep, 50..400),
        ("poisson2d:12", Inner::Auto, 1..3),
        ("poisson3d:6", Inner::Sweep, 20..200),
        ("circuit:500", Inner::Auto, 1..3),
    ] {
        let system = made(text);
        let mut seen = 0;
        let outcome = solve(
            system.clone(),
            with(inner, 1.0),
            limits(1e-10, 1000),
            |progress| {
                seen += 1;
                assert_eq!(progress.laps_min, seen);
            },
        );
        let outcome = outcome.unwrap();
        assert_solved(&system, &outcome, 1e-10);
        assert!(
            laps.contains(&outcome.laps[0]),
            "{text}: {:?}",
            outcome.laps
        );
        assert_eq!(outcome.laps[0], seen);
        assert!(
            outcome.verifications <= 2 + seen / 10,
            "{}",
            outcome.verifications
        );
        assert!(outcome.x.iter().all(|x| (x - 1.0).abs() < 1e-6));
    }
}

/// Over-relaxation near its optimum saves laps on Poisson's equation.
#[test]
fn omega_accelerates() {
    let laps = |omega| {
        let outcome = solve(
            made("poisson2d:20"),
            with(Inner::Sweep, omega),
            limits(1e-8, 2000),
            |_| (),
        );
        outcome.unwrap().laps[0]
    };
    assert!(5 * laps(1.7) < laps(1.0));
}

/// A system that does not converge ends with an explanation, long before numbers overflow into the answer.
#[test]
fn divergence_ends_the_run() {
    let triplets = [(0, 0, 1.0), (0, 1, 3.0), (1, 0, 3.0), (1, 1, 1.0)];
    let matrix = Matrix::Sparse(Csr::from_triplets(2, 2, &triplets).unwrap());
    let system = System::new(matrix, None, "wild".into()).unwrap();
    let outcome = solve(
        system.clone(),
        with(Inner::Sweep, 1.0),
        limits(1e-10, 10_000),
        |_| (),
    )
    .unwrap();
    assert!(
        matches!(outcome.reason, Reason::Diverged { .. }),
        "{:?}",
        outcome.reason
    );
    assert!(outcome.laps[0] < 100);
    assert_eq!((outcome.residual, outcome.x), (1.0, vec![0.0; 2]));
    let outcome = threads::solve(
        system,
        2,
        (with(Inner::Sweep, 1.0), false),
        limits(1e-10, u64::MAX),
        |_| (),
        || false,
    )
    .unwrap();
    assert!(
        matches!(outcome.reason, Reason::Diverged { .. }),
        "{:?}",
        outcome.reason
    );
    assert!(outcome.residual <= 1.0, "x = 0 has 1: {}", outcome.residual);
}

/// A tolerance below the rounding level is recognised as out of reach, and the floor is named.
#[test]
fn rounding_is_recognised() {
    for text in ["dense:100", "poisson2d:10"] {
        // Not A·1, whose solution happens to be met without any rounding.
        let mut system = made(text);
        system.rhs = (0..system.n())
            .map(|row| 1.0 / (row as f64 + 3.0))
            .collect();
        let outcome = solve(
            system,
            with(Inner::Sweep, 1.0),
            limits(1e-25, 100_000),
            |_| (),
        )
        .unwrap();
        let Reason::Stagnated { floor } = outcome.reason else {
            panic!("{:?}", outcome.reason)
        };
        assert!(floor > 0.0 && floor < 1e-13, "{floor}");
        assert!(outcome.laps[0] < 2000, "{:?}", outcome.laps);
    }
}

/// The limit on laps is kept, and is the reported reason.
#[test]
fn laps_are_limited() {
    let outcome = solve(
        made("poisson2d:30"),
        with(Inner::Sweep, 1.0),
        limits(1e-10, 7),
        |_| (),
    )
    .unwrap();
    assert_eq!(
        (outcome.reason, &outcome.laps[..]),
        (Reason::MaxLaps { limit: 7 }, &[7][..])
    );
    assert!(!outcome.converged && outcome.residual.is_finite());
}

/// b = 0 has the solution 0.
#[test]
fn zero_rhs_gives_zero() {
    let mut system = made("poisson2d:4");
    system.rhs.fill(0.0);
    let outcome = solve(system, with(Inner::Sweep, 1.0), limits(1e-10, 10), |_| ()).unwrap();
    assert!(outcome.converged && outcome.x.iter().all(|x| *x == 0.0));
}

/// A request to stop ends the run after the lap, with the verified residual of its x, unless that is the solution.
#[test]
fn stops_when_told() {
    for (tolerance, reason) in [(1e-10, Reason::Interrupted), (0.9, Reason::Converged)] {
        let system = made("poisson2d:30");
        let laps = std::cell::Cell::new(0);
        let outcome = super::solve(
            system.clone(),
            (with(Inner::Sweep, 1.0), false),
            limits(tolerance, 1000),
            |progress| laps.set(progress.laps_min),
            || laps.get() == 3,
        )
        .unwrap();
        assert_eq!(outcome.reason, reason);
        assert_eq!(outcome.converged, reason == Reason::Converged);
        assert!(outcome.laps[0] <= 3);
        let block = RowBlock::whole(system.clone());
        let residual = block.residual_sq(&outcome.x).sqrt() / system.rhs_norm();
        assert!((outcome.residual - residual).abs() <= 1e-12 * residual);
    }
}

/// A singular system without a solution stands still, with and without combination, and no x that is worse than 0 is returned.
#[test]
fn singular_systems_stand_still() {
    for combines in [true, false] {
        let relaxation = with(Inner::Sweep, 1.0);
        let limits = limits(1e-10, u64::MAX);
        let solved = super::solve(ring(40), (relaxation, combines), limits, |_| (), || false);
        let outcome = solved.unwrap();
        assert!(
            matches!(outcome.reason, Reason::Stalled { .. }),
            "{:?}",
            outcome.reason
        );
        assert!(outcome.residual <= 1.0, "{}", outcome.residual);
    }
}

/// Differences on a ring: constants are mapped to 0, and no x has the sum of b.
pub(crate) fn ring(n: u32) -> System {
    let row = |row: u32| [(row, 2.0), ((row + 1) % n, -1.0), ((row + n - 1) % n, -1.0)];
    let entries = (0..n).flat_map(|at| {
        let mut row = row(at);
        row.sort_by_key(|(column, _)| *column);
        row
    });
    let (indices, values) = entries.unzip();
    let offsets = (0..=n as usize).map(|row| 3 * row).collect();
    let csr = Csr::new(n as usize, offsets, indices, values).unwrap();
    System::new(
        Matrix::Sparse(csr),
        Some(vec![1.0; n as usize]),
        "ring".into(),
    )
    .unwrap()
}
