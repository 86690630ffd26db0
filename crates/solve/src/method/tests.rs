use super::*;
use crate::local::{Inner, Relaxation, single, threads};
use crate::system::{Csr, Generate, Generated, Solution};

fn limits(tolerance: f64) -> Limits {
    Limits::new(tolerance, 20_000).unwrap()
}

fn solved(source: Source, method: Method) -> Outcome {
    solve(
        source,
        (method, None),
        None,
        limits(1e-10),
        &mut |_| (),
        &|| false,
    )
    .unwrap()
}

fn made(text: &str) -> System {
    text.parse::<Generate>().unwrap().system(1).unwrap()
}

/// Every method that fits solves every system, and says which it was.
#[test]
fn methods_solve() {
    for text in [
        "dense:60",
        "dense:400",
        "poisson2d:25",
        "poisson3d:8",
        "circuit:1000",
    ] {
        for method in [Method::Auto, Method::Gmres, Method::Cg, Method::Direct] {
            if method == Method::Cg && text.starts_with("dense") {
                continue;
            }
            let system = made(text);
            let outcome = solved(Source::System(system.clone()), method);
            assert!(outcome.converged, "{text} {method}: {:?}", outcome.reason);
            assert!(
                system.relative_residual(&outcome.x) <= 1e-10,
                "{text} {method}"
            );
            assert!(!outcome.method.is_empty());
        }
    }
}

/// Rows that threads make are those of the system that one makes.
#[test]
fn made_rows_are_the_same() {
    let made = Generated::new("dense:700".parse().unwrap(), 1, Solution::Random);
    let outcome = solve(
        Source::Generated(made),
        (Method::Gmres, None),
        Some(3),
        limits(1e-10),
        &mut |_| (),
        &|| false,
    )
    .unwrap();
    assert!(outcome.converged);
    let system = made.system().unwrap();
    assert!(system.relative_residual(&outcome.x) <= 1e-10);
    assert!(outcome.laps[0] > 3, "a random solution is no gift");
}

/// A matrix with zeros on its diagonal and entries of all sizes is matched and scaled; x and its residual are those of the original system.
#[test]
fn matched_systems_are_solved() {
    let n = 60;
    let size = |k: u32| 10f64.powi((k * 7 % 9) as i32 - 4);
    let mut triplets = Vec::new();
    for row in 0..n {
        for (shift, value) in [(1, 3.0), (2, -1.0), (n - 3, 0.7)] {
            let column = (row + shift) % n;
            triplets.push((row, column, value * size(row) * size(5 * column + 1)));
        }
    }
    let csr = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
    let original = Matrix::Sparse(csr);
    let (system, note) = System::matched(original.clone(), None, "sizes".into()).unwrap();
    assert!(note.unwrap().ends_with("and the matrix scaled"));
    let b = original.times(&vec![1.0; n as usize]);
    let check = |outcome: Outcome, name: &str| {
        assert!(outcome.converged, "{name}: {:?}", outcome.reason);
        let product = original.times(&outcome.x);
        let squares = product.iter().zip(&b).map(|(p, b)| (b - p).powi(2));
        let norm = crate::local::kernels::sum_of_squares(&b).sqrt();
        let residual = squares.sum::<f64>().sqrt() / norm;
        assert!(residual <= 1.01e-10, "{name}: {residual}");
    };
    for method in [Method::Auto, Method::Gmres, Method::Direct] {
        let outcome = solved(Source::System(system.clone()), method);
        check(outcome, method.name());
    }
    for which in [Preconditioning::Jacobi, Preconditioning::Lu] {
        let (how, source) = ((Method::Gmres, Some(which)), Source::System(system.clone()));
        let outcome = solve(source, how, Some(3), limits(1e-10), &mut |_| (), &|| false);
        check(outcome.unwrap(), which.name());
    }
    for inner in [Inner::Sweep, Inner::Lu] {
        let relaxation = Relaxation::new(inner, 1.0).unwrap();
        let alone = single::solve(
            system.clone(),
            (relaxation, false),
            limits(1e-10),
            |_| (),
            || false,
        );
        check(alone.unwrap(), "single");
        let beside = threads::solve(
            system.clone(),
            3,
            (relaxation, false),
            limits(1e-10),
            |_| (),
            || false,
        );
        check(beside.unwrap(), "threads");
    }
}

/// A system on which iterations stall is factorised, and the notes say so.
#[test]
fn slow_iterations_end_in_a_factorisation() {
    // Waves in a box: indefinite, with eigenvalues on both sides of zero.
    let Matrix::Sparse(csr) = made("poisson3d:19").matrix else {
        panic!("grids are sparse")
    };
    let mut triplets = Vec::new();
    for row in 0..csr.rows() {
        let (columns, values) = csr.row(row);
        for (&column, &value) in columns.iter().zip(values) {
            let shift = if column as usize == row { 1.7 } else { 0.0 };
            triplets.push((row as u32, column, value - shift));
        }
    }
    let n = csr.rows();
    let csr = Csr::from_triplets(n, n, &triplets).unwrap();
    let system = System::new(Matrix::Sparse(csr), None, "waves".into()).unwrap();
    let outcome = solved(Source::System(system.clone()), Method::Auto);
    assert!(
        outcome.converged,
        "{:?} {:?}",
        outcome.reason, outcome.notes
    );
    assert!(system.relative_residual(&outcome.x) <= 1e-10);
    assert_eq!(outcome.method, "sparse LU");
}

/// Conjugate gradients refuse what is not symmetric, and a stop is an interruption with the best x.
#[test]
fn refusals_and_stops() {
    let run = |source, method, stop: &(dyn Fn() -> bool + Sync)| {
        solve(
            source,
            (method, None),
            None,
            limits(1e-10),
            &mut |_| (),
            stop,
        )
    };
    let dense = Source::System(made("dense:100"));
    assert_eq!(
        run(dense, Method::Cg, &|| false).unwrap_err(),
        MethodError::NotSymmetric
    );
    let outcome = run(Source::System(made("poisson2d:50")), Method::Cg, &|| true).unwrap();
    assert_eq!(outcome.reason, Reason::Interrupted);
    assert_eq!(outcome.x.len(), 2500);
}
