use super::*;
use crate::system::{Csr, Generate, Matrix, RowBlock, System};
use proptest::prelude::*;
use std::ops::Range;

fn generated(text: &str) -> System {
    text.parse::<Generate>().unwrap().system(3).unwrap()
}

fn patience(tolerance: f64) -> Patience {
    Patience::unlimited(Limits::new(tolerance, 10_000).unwrap())
}

fn run(system: &System, threads: usize, how: (Kind, Preconditioning)) -> team::Solved {
    run_until(system, threads, how, &patience(1e-10), &|| false)
}

fn run_until(
    system: &System,
    threads: usize,
    how: (Kind, Preconditioning),
    patience: &Patience,
    stop: &(dyn Fn() -> bool + Sync),
) -> team::Solved {
    let ranges = crate::system::partition(&system.matrix, threads).unwrap();
    let block = RowBlock::whole(system.clone());
    team::solve(&block, ranges, how, None, patience, &mut |_| (), stop)
}

fn true_residual(system: &System, x: &[f64]) -> f64 {
    let product = system.matrix.times(x);
    let squares = product
        .iter()
        .zip(&system.rhs)
        .map(|(p, b)| (b - p).powi(2));
    squares.sum::<f64>().sqrt() / system.rhs_norm()
}

/// Both methods solve dense and sparse systems with any number of threads, to the verified tolerance.
#[test]
fn systems_are_solved() {
    for text in ["dense:120", "poisson2d:30", "poisson3d:9", "circuit:900"] {
        let system = generated(text);
        for threads in [1, 2, 3, 5] {
            for kind in [Kind::Cg, Kind::Gmres] {
                if kind == Kind::Cg && text.starts_with("dense") {
                    continue; // not symmetric
                }
                for which in [
                    Preconditioning::Jacobi,
                    Preconditioning::Ilu,
                    Preconditioning::ModifiedIlu,
                    Preconditioning::Lu,
                    Preconditioning::Lap,
                ] {
                    let solved = run(&system, threads, (kind, which));
                    let name = format!("{text} {kind:?} {which:?} {threads}");
                    assert_eq!(
                        solved.ended.end,
                        End::Converged,
                        "{name}: {:?}",
                        solved.ended
                    );
                    assert!(true_residual(&system, &solved.x) < 1.1e-10, "{name}");
                }
            }
        }
    }
}

/// Others that own nothing; fails at an iteration, and keeps what x was told.
struct Others {
    fails_at: u64,
    told: Vec<Vec<f64>>,
}

impl Space for Others {
    type Error = u64;

    fn sum(&mut self, _: &mut [f64]) -> Result<(), u64> {
        Ok(())
    }

    fn exchange(&mut self, vector: &mut [f64]) -> Result<(), u64> {
        assert!(vector.iter().all(|v| v.is_finite()));
        Ok(())
    }

    fn iterated(&mut self, now: Iterated<'_>) -> Result<bool, u64> {
        if !now.x.is_empty() {
            self.told.push(now.x.to_vec());
        }
        match now.iterations >= self.fails_at {
            true => Err(now.iterations),
            false => Ok(false),
        }
    }
}

/// A strip for each of `which`, with that preconditioner.
fn strips_of(
    block: &RowBlock,
    system: &System,
    which: &[Preconditioning],
) -> Vec<(Range<usize>, Preconditioner)> {
    let rows = crate::system::partition(&system.matrix, which.len()).unwrap();
    let made = rows.into_iter().zip(which).map(|(rows, which)| {
        let made = Preconditioner::new(block, &rows, *which);
        (rows, made)
    });
    made.collect()
}

/// A worker's threads find what one finds, and tell the others x as a whole; where the others cannot be reached all threads end.
#[test]
fn strips_of_a_worker_agree() {
    let system = generated("poisson2d:40");
    let block = RowBlock::whole(system.clone());
    for count in [1, 2, 3] {
        let made = strips_of(&block, &system, &vec![Preconditioning::ModifiedIlu; count]);
        let strips = Strips {
            block: &block,
            strips: &made,
            rows_most: 1600,
            has_all_rows: false,
        };
        let mut others = Others {
            fails_at: u64::MAX,
            told: Vec::new(),
        };
        let mut x = vec![0.0; 1600];
        let ended = iterate_strips(&strips, Kind::Cg, &mut x, &patience(1e-10), &mut others);
        assert_eq!(ended.unwrap().end, End::Converged);
        assert!(true_residual(&system, &x) < 1.1e-10);
        let last = others.told.last().unwrap();
        assert!(true_residual(&system, last) < 1e-6, "{}", made.len());
        others.fails_at = 3;
        let ended = iterate_strips(
            &strips,
            Kind::Cg,
            &mut x.clone(),
            &patience(1e-12),
            &mut others,
        );
        assert!(matches!(ended, Ok(_) | Err(3)));
        x.fill(0.0);
        let ended = iterate_strips(&strips, Kind::Cg, &mut x, &patience(1e-10), &mut others);
        assert_eq!(ended, Err(3));
    }
}

/// After restarts, too, GMRES ends where it has reached the tolerance, not at the next restart.
#[test]
fn last_cycles_end_at_the_target() {
    for k in [20, 24, 28] {
        let system = generated(&format!("poisson3d:{k}"));
        let ended = run(&system, 1, (Kind::Gmres, Preconditioning::Jacobi)).ended;
        assert!(
            ended.iterations > gmres::restart(k * k * k) as u64,
            "{k}: {ended:?}"
        );
        assert!(ended.residual > 1e-11, "{k}: {ended:?}");
    }
}

/// Threads iterate together whatever their preconditioners are: with factors that multiply, with complete ones, with the diagonal.
#[test]
fn preconditioners_may_differ() {
    let system = generated("poisson2d:40");
    let block = RowBlock::whole(system.clone());
    let iterations = |which: [Preconditioning; 3]| {
        let strips = Strips {
            block: &block,
            strips: &strips_of(&block, &system, &which),
            rows_most: 1600,
            has_all_rows: true,
        };
        let mut x = vec![0.0; 1600];
        let others = &mut Others {
            fails_at: u64::MAX,
            told: Vec::new(),
        };
        let Ok(ended) = iterate_strips(&strips, Kind::Cg, &mut x, &patience(1e-10), others) else {
            panic!("nobody fails")
        };
        assert_eq!(ended.end, End::Converged);
        assert!(true_residual(&system, &x) < 1.1e-10);
        ended.iterations
    };
    let ilu = Preconditioning::ModifiedIlu;
    let mixed = iterations([ilu, Preconditioning::Lu, Preconditioning::Jacobi]);
    let alike = iterations([ilu; 3]);
    assert!(alike < mixed && mixed < 4 * alike, "{alike} {mixed}");
}

/// Exact factors need one iteration; one unknown does, too.
#[test]
fn exact_factors_take_one_iteration() {
    for n in [1u32, 2, 50] {
        let mut triplets: Vec<_> = (0..n).map(|k| (k, k, 2.5)).collect();
        triplets.extend((1..n).flat_map(|k| [(k, k - 1, -1.0), (k - 1, k, -1.0)]));
        let csr = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
        let system = System::new(Matrix::Sparse(csr), None, "chain".into()).unwrap();
        let solved = run(&system, 1, (Kind::Cg, Preconditioning::Ilu));
        assert_eq!(solved.ended.end, End::Converged, "{n}");
        assert_eq!(solved.ended.iterations, 1, "{n}");
    }
}

/// A symmetric matrix with diagonal entries of both signs is found to be indefinite, not to overflow.
#[test]
fn both_signs_are_indefinite() {
    let n = 64u32;
    let sign = |k: u32| if k % 3 == 2 { -1.0 } else { 1.0 };
    let mut triplets: Vec<_> = (0..n).map(|k| (k, k, 4.0 * sign(k))).collect();
    triplets.extend((1..n).flat_map(|k| [(k, k - 1, -1.0), (k - 1, k, -1.0)]));
    triplets.extend((8..n).flat_map(|k| [(k, k - 8, -1.0), (k - 8, k, -1.0)]));
    let csr = Csr::from_triplets(64, 64, &triplets).unwrap();
    let rhs = (0..n).map(|k| f64::from(k * 37 % 101) - 50.0).collect();
    let system = System::new(Matrix::Sparse(csr), Some(rhs), "m".into()).unwrap();
    for threads in [1, 2] {
        let solved = run(&system, threads, (Kind::Cg, Preconditioning::Ilu));
        assert_eq!(solved.ended.end, End::Indefinite, "{:?}", solved.ended);
    }
}

/// A modified factorisation takes fewer iterations on grids, and any factorisation fewer than the diagonal.
#[test]
fn better_preconditioners_take_fewer_iterations() {
    let system = generated("poisson2d:80");
    let iterations = |which| run(&system, 1, (Kind::Cg, which)).ended.iterations;
    let (jacobi, ilu, modified) = (
        iterations(Preconditioning::Jacobi),
        iterations(Preconditioning::Ilu),
        iterations(Preconditioning::ModifiedIlu),
    );
    assert!(
        ilu * 2 < jacobi && modified * 2 < ilu,
        "{jacobi} {ilu} {modified}"
    );
}

/// An indefinite matrix is noticed by conjugate gradients, and solved by GMRES.
#[test]
fn indefinite_matrices_are_noticed() {
    let mut triplets: Vec<_> = (0..40u32).map(|k| (k, k, 0.5)).collect();
    triplets.extend((1..40u32).flat_map(|k| [(k, k - 1, -1.0), (k - 1, k, -1.0)]));
    let csr = Csr::from_triplets(40, 40, &triplets).unwrap();
    let rhs = (0..40).map(|k| 1.0 + f64::from(k)).collect();
    let system = System::new(Matrix::Sparse(csr), Some(rhs), "m".into()).unwrap();
    let cg = run(&system, 1, (Kind::Cg, Preconditioning::Jacobi));
    assert_eq!(cg.ended.end, End::Indefinite);
    let gmres = run(&system, 2, (Kind::Gmres, Preconditioning::Jacobi));
    assert_eq!(gmres.ended.end, End::Converged);
}

/// GMRES that gains little with each restart, and yet gets there in the iterations that it has, is not stopped.
#[test]
fn slow_is_not_stalled() {
    let n = 400u32;
    let mut triplets: Vec<_> = (0..n).map(|k| (k, k, 2.0)).collect();
    triplets.extend((1..n).flat_map(|k| [(k, k - 1, -1.0), (k - 1, k, -1.0)]));
    let csr = Csr::from_triplets(400, 400, &triplets).unwrap();
    let rhs = (0..n).map(|k| f64::from(k * 37 % 101) - 50.0).collect();
    let system = System::new(Matrix::Sparse(csr), Some(rhs), "m".into()).unwrap();
    let patience = Patience::unlimited(Limits::new(1e-10, 100_000).unwrap());
    let how = (Kind::Gmres, Preconditioning::Jacobi);
    let solved = run_until(&system, 1, how, &patience, &|| false);
    assert_eq!(solved.ended.end, End::Converged, "{:?}", solved.ended);
    assert!(solved.ended.iterations > 5_000, "{:?}", solved.ended);
}

/// A singular system without a solution stalls and says so; it is not "rounding", and it ends.
#[test]
fn singular_systems_stall() {
    let triplets = [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 1, 1.0)];
    let csr = Csr::from_triplets(2, 2, &triplets).unwrap();
    let system = System::new(Matrix::Sparse(csr), Some(vec![1.0, 2.0]), "m".into()).unwrap();
    let solved = run(&system, 1, (Kind::Gmres, Preconditioning::Jacobi));
    assert_eq!(solved.ended.end, End::Stalled, "{:?}", solved.ended);
    assert!(solved.ended.residual < 1.0, "{}", solved.ended.residual);
}

/// So do conjugate gradients, which would iterate for as long as they may: their residual keeps what A does not reach.
#[test]
fn singular_systems_end_conjugate_gradients() {
    let n = 40u32;
    let mut triplets: Vec<_> = (0..n).map(|k| (k, k, 2.0)).collect();
    triplets.extend((0..n).flat_map(|k| [(k, (k + 1) % n, -1.0), ((k + 1) % n, k, -1.0)]));
    let csr = Csr::from_triplets(40, 40, &triplets).unwrap();
    let rhs = (0..n).map(|k| 1.0 + f64::from(k % 7)).collect();
    let system = System::new(Matrix::Sparse(csr), Some(rhs), "ring".into()).unwrap();
    for threads in [1, 2, 9] {
        for which in [Preconditioning::Jacobi, Preconditioning::ModifiedIlu] {
            let ended = run(&system, threads, (Kind::Cg, which)).ended;
            let gives_up = matches!(ended.end, End::Stalled | End::Indefinite);
            assert!(gives_up && ended.iterations < 4_000, "{which:?} {ended:?}");
            assert!(ended.residual <= 1.0, "{ended:?}");
        }
    }
}

/// Numbers of A and b near the ends of the range, whose products are beyond them, are solved as others if x is within.
#[test]
fn any_scale_is_solved() {
    let system = generated("poisson2d:20");
    let Matrix::Sparse(csr) = &system.matrix else {
        panic!("grids are sparse")
    };
    for (of_matrix, of_rhs) in [
        (1e-160, 1e140),
        (1e160, 1e-120),
        (1.0, 1e120),
        (1e150, 1e140),
        (1e-200, 1e55),
        (1e220, 1e-50),
        (1e290, 1e140),
    ] {
        let (offsets, indices) = (csr.offsets().to_vec(), csr.indices().to_vec());
        let values = csr.values().iter().map(|value| value * of_matrix).collect();
        let csr = Csr::new(csr.columns(), offsets, indices, values).unwrap();
        let rhs = system.rhs.iter().map(|b| b * of_rhs).collect();
        let scaled = System::new(Matrix::Sparse(csr), Some(rhs), "scaled".into()).unwrap();
        for which in [Preconditioning::Jacobi, Preconditioning::Ilu] {
            for threads in [1, 3] {
                let solved = run(&scaled, threads, (Kind::Cg, which));
                let what = format!("{of_matrix:e} {of_rhs:e} {which:?}: {:?}", solved.ended);
                assert_eq!(solved.ended.end, End::Converged, "{what}");
                assert!(true_residual(&scaled, &solved.x) < 1.1e-10, "{what}");
            }
        }
    }
}

/// A tolerance below rounding ends at the level of rounding.
#[test]
fn rounding_ends() {
    let mut system = generated("poisson2d:20");
    for (k, b) in system.rhs.iter_mut().enumerate() {
        *b = (k as f64).sin();
    }
    for kind in [Kind::Cg, Kind::Gmres] {
        let how = (kind, Preconditioning::Ilu);
        let solved = run_until(&system, 2, how, &patience(1e-30), &|| false);
        assert_eq!(
            solved.ended.end,
            End::Rounding,
            "{kind:?} {:?}",
            solved.ended
        );
        assert!(solved.ended.residual < 1e-13);
    }
}

/// Every thread stops when the first is told to.
#[test]
fn a_stop_reaches_all() {
    let system = generated("poisson2d:60");
    for threads in [1, 2, 4] {
        let how = (Kind::Cg, Preconditioning::Jacobi);
        let solved = run_until(&system, threads, how, &patience(1e-10), &|| true);
        assert_eq!(solved.ended.end, End::Stopped);
        assert!(solved.ended.iterations <= 2);
    }
}

/// A run gives up where another way is expected to take a fraction of the iterations; what it has found is a start for that.
#[test]
fn budgets_end_slow_runs() {
    let system = generated("poisson2d:80");
    let patience = Patience {
        budget: Some(8),
        ..patience(1e-10)
    };
    let how = (Kind::Cg, Preconditioning::Jacobi);
    let solved = run_until(&system, 2, how, &patience, &|| false);
    assert_eq!(solved.ended.end, End::Slow);
    assert!(solved.ended.iterations < 30);
}

proptest! {
    /// Any number of threads gives the solution that one gives.
    #[test]
    fn threads_agree(
        n in 2usize..40,
        entries in prop::collection::vec((0u32..40, 0u32..40, -1.0f64..1.0), 0..160),
        threads in 1usize..6,
    ) {
        let mut triplets: Vec<_> = (0..n as u32).map(|row| (row, row, 8.0)).collect();
        triplets.extend(entries.into_iter().filter(|e| e.0 < n as u32 && e.1 < n as u32 && e.0 != e.1));
        let csr = Csr::from_triplets(n, n, &triplets).unwrap();
        let system = System::new(Matrix::Sparse(csr), None, "random".into()).unwrap();
        let solved = run(&system, threads.min(n), (Kind::Gmres, Preconditioning::Ilu));
        if solved.ended.end == End::Converged {
            prop_assert!(true_residual(&system, &solved.x) < 1.1e-10);
        } else {
            prop_assert_eq!(solved.ended.end, End::Stalled);
        }
    }
}
