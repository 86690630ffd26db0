use super::*;
use crate::system::{Csr, Dense, Matrix, System};

/// The oracle: Gauss–Seidel as defined, one row after the other, on a matrix of single entries.
fn naive_sweep(system: &System, rows: Range<usize>, omega: f64, x: &mut [f64]) {
    for row in rows {
        let mut sum = system.rhs[row];
        let mut diagonal = 0.0;
        system.matrix.for_each_in_row(row, |column, value| {
            if column == row {
                diagonal = value;
            } else {
                sum -= value * x[column];
            }
        });
        x[row] = (1.0 - omega) * x[row] + omega * sum / diagonal;
    }
}

/// That of one row, as sweeps see it.
fn residual(block: &RowBlock, row: usize, x: &[f64]) -> f64 {
    let mut residual = [0.0];
    block.residuals(row..row + 1, x, &mut residual);
    residual[0]
}

fn number(row: usize, column: usize) -> f64 {
    ((row * 31 + column * 17 + 7) % 23) as f64 / 23.0
}

fn dense(n: usize) -> System {
    let values = (0..n * n)
        .map(|k| (k / n, k % n))
        .map(|(row, column)| {
            if row == column {
                n as f64
            } else {
                -number(row, column)
            }
        })
        .collect();
    System::new(
        Matrix::Dense(Dense::new(n, values).unwrap()),
        None,
        "dense".into(),
    )
    .unwrap()
}

fn sparse(n: usize) -> System {
    let mut triplets = Vec::new();
    for row in 0..n {
        triplets.push((row as u32, row as u32, 3.0));
        for column in [(row + 1) % n, (row * 5 + 2) % n] {
            triplets.push((row as u32, column as u32, -number(row, column)));
        }
    }
    let csr = Csr::from_triplets(n, n, &triplets).unwrap();
    System::new(Matrix::Sparse(csr), None, "sparse".into()).unwrap()
}

/// Sweeps over any sub-range, dense and sparse, equal Gauss–Seidel as defined, and return its residuals.
#[test]
fn sweeps_agree_with_the_oracle() {
    for system in [dense(37), sparse(37)] {
        for (own, steps, omega) in [
            (0..37, 37, 1.0),
            (5..31, 26, 1.3),
            (5..31, 3, 0.7),
            (5..31, 7, 1.0),
            (9..10, 1, 1.0),
        ] {
            let relaxation = Relaxation::new(Inner::Sweep, omega).unwrap();
            let mut sweeper =
                Sweeper::new(RowBlock::cut(&system, own.clone()), relaxation).unwrap();
            let mut x: Vec<f64> = (0..37).map(|k| number(k, 3)).collect();
            let mut expected = x.clone();
            for _ in 0..3 {
                let mut squares = 0.0;
                let mut met = 0.0;
                for rows in sweeper.lap(steps) {
                    for row in rows.clone() {
                        met += residual(sweeper.block(), row, &expected).powi(2);
                        naive_sweep(&system, row..row + 1, omega, &mut expected);
                    }
                    squares += sweeper.relax(rows, &mut x);
                }
                assert!(
                    (squares - met).abs() <= 1e-9 * met + 1e-24,
                    "{squares} {met}"
                );
                for (x, expected) in x.iter().zip(&expected) {
                    assert!((x - expected).abs() < 1e-12, "{x} {expected}");
                }
            }
        }
    }
}

/// Several threads do what one does in each strip, with the other strips' values of before the step; a lap renews every row once.
#[test]
fn threads_share_the_rows() {
    for system in [dense(60), sparse(60)] {
        for (own, steps, threads) in [(0..60, 60, 2), (5..57, 4, 3), (5..57, 7, 2), (3..9, 1, 5)] {
            let relaxation = Relaxation::new(Inner::Sweep, 1.2).unwrap();
            let block = RowBlock::cut(&system, own.clone());
            let mut sweeper = Sweeper::new(block, relaxation.by_threads(threads)).unwrap();
            let most = sweeper.block().stored() / STRIP_ENTRIES;
            // Strips of dense rows are whole groups.
            let most = most.min(own.len().div_ceil(ROW_GROUP)).max(1);
            assert_eq!(sweeper.threads(), threads.min(most), "{own:?}");
            assert_eq!(sweeper.note().is_some(), sweeper.threads() < threads);
            let mut x: Vec<f64> = (0..60).map(|k| number(k, 3)).collect();
            let mut expected = x.clone();
            for lap in 0..4 {
                if lap == 2 {
                    // As at a pause.
                    x.iter_mut().for_each(|x| *x *= 0.5);
                    expected.clone_from(&x);
                    sweeper.x_has_changed();
                }
                let mut visits = vec![0; 60];
                for step in sweeper.lap(steps) {
                    let before = expected.clone();
                    let mut met = 0.0;
                    for rows in sweeper.parts(&step) {
                        let mut strip = before.clone();
                        for row in rows.clone() {
                            visits[row] += 1;
                            met += residual(sweeper.block(), row, &strip).powi(2);
                            naive_sweep(&system, row..row + 1, 1.2, &mut strip);
                        }
                        expected[rows.clone()].copy_from_slice(&strip[rows]);
                    }
                    let squares = sweeper.relax(step, &mut x);
                    assert!((squares - met).abs() <= 1e-9 * met + 1e-24);
                    for (x, expected) in x.iter().zip(&expected) {
                        assert!((x - expected).abs() < 1e-12, "{x} {expected}");
                    }
                }
                assert!((0..60).all(|row| visits[row] == usize::from(own.contains(&row))));
            }
        }
    }
}

/// Each thread solves its strip by LU; exact residuals are those of one thread.
#[test]
fn threads_solve_their_strips() {
    for system in [dense(60), sparse(60)] {
        let relaxation = Relaxation::new(Inner::Lu, 1.0).unwrap();
        let block = RowBlock::cut(&system, 5..57);
        let mut sweeper = Sweeper::new(block, relaxation.by_threads(2)).unwrap();
        assert_eq!((sweeper.threads(), sweeper.inner()), (2, Inner::Lu));
        let step = sweeper.lap(1).next().unwrap();
        let strips: Vec<_> = sweeper.parts(&step).collect();
        let before: Vec<f64> = (0..60).map(|k| number(k, 3)).collect();
        let mut x = before.clone();
        sweeper.relax(step, &mut x);
        for rows in strips {
            let mut alone = before.clone();
            alone[rows.clone()].copy_from_slice(&x[rows.clone()]);
            let strip = RowBlock::cut(&system, rows);
            assert!(strip.residual_sq(&alone).sqrt() < 1e-12);
        }
        let mut residual = vec![0.0; 52];
        let mut calls = 0;
        let magnitude_sq = sweeper.exact_residual(&x, &mut residual, true, &mut || calls += 1);
        assert!(
            calls >= if system.matrix.is_dense() { 5 } else { 1 },
            "{calls}"
        );
        let mut expected = vec![0.0; 52];
        sweeper.block().exact_residual(0..52, &x, &mut expected);
        assert_eq!(residual, expected);
        let one = sweeper.block().magnitude_sq(0..52, &x);
        assert!((magnitude_sq - one).abs() < 1e-12 * one);
    }
}

/// LU solves the own rows exactly for the others' x, dense and sparse; ω shortens or lengthens the step.
#[test]
fn lu_solves_the_own_rows() {
    for system in [dense(37), sparse(37)] {
        let mut sweeper = Sweeper::new(
            RowBlock::cut(&system, 5..31),
            Relaxation::new(Inner::Lu, 1.0).unwrap(),
        )
        .unwrap();
        assert_eq!(sweeper.inner(), Inner::Lu);
        assert!(sweeper.lap(3).eq(std::iter::once(5..31)));
        let start: Vec<f64> = (0..37).map(|k| number(k, 3)).collect();
        let mut x = start.clone();
        let before = sweeper.block().residual_sq(&x);
        let met = sweeper.relax(5..31, &mut x);
        assert!((met - before).abs() <= 1e-9 * before);
        assert!(sweeper.block().residual_sq(&x).sqrt() < 1e-12);
        assert_eq!(x[..5], start[..5]);
        assert_eq!(x[31..], start[31..]);
        let half = Relaxation::new(Inner::Lu, 0.5).unwrap();
        let mut halved = start.clone();
        Sweeper::new(RowBlock::cut(&system, 5..31), half)
            .unwrap()
            .relax(5..31, &mut halved);
        for row in 5..31 {
            assert!((halved[row] - 0.5 * (start[row] + x[row])).abs() < 1e-12);
        }
    }
}

/// `auto` is LU for sparse rows, sweep for dense ones, and sweep with a note where factors would be too large.
#[test]
fn auto_falls_back_with_a_note() {
    let auto = |system: &System| {
        Sweeper::new(RowBlock::cut(system, 0..system.n()), Relaxation::default()).unwrap()
    };
    assert_eq!(auto(&sparse(37)).inner(), Inner::Lu);
    let swept = auto(&dense(37));
    assert_eq!((swept.inner(), swept.note()), (Inner::Sweep, None));
    // Rows with random far partners fill up completely.
    let n = 1200;
    let mut triplets: Vec<(u32, u32, f64)> = (0..n).map(|row| (row, row, 9.0)).collect();
    for row in 0..n {
        for k in 1..4u32 {
            triplets.push((
                row,
                row.wrapping_mul(2654435761).rotate_left(7 * k) % n,
                -1.0,
            ));
        }
    }
    let csr = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
    let system = System::new(Matrix::Sparse(csr), None, "random".into()).unwrap();
    let swept = auto(&system);
    assert_eq!(swept.inner(), Inner::Sweep);
    assert!(
        swept.note().unwrap().contains("rows 1 to 1200 are swept"),
        "{:?}",
        swept.note()
    );
}

/// Bad factors and names get one line that says what is accepted.
#[test]
fn bad_settings_are_refused() {
    for omega in [0.0, 2.0, -1.0, f64::NAN] {
        assert!(
            Relaxation::new(Inner::Sweep, omega)
                .unwrap_err()
                .to_string()
                .contains("above 0 and below 2")
        );
    }
}

/// `lu` asked for by name on a singular block is an error that names the unknown.
#[test]
fn a_singular_block_is_named() {
    let csr = Csr::from_triplets(
        3,
        3,
        &[
            (0, 0, 1.0),
            (0, 1, 1.0),
            (1, 0, 1.0),
            (1, 1, 1.0),
            (1, 2, 1.0),
            (2, 2, 1.0),
        ],
    );
    let system = System::new(Matrix::Sparse(csr.unwrap()), None, "singular".into()).unwrap();
    let lu = Relaxation::new(Inner::Lu, 1.0).unwrap();
    let error = Sweeper::new(RowBlock::cut(&system, 0..2), lu).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("rows 1 to 2: the diagonal block is singular"),
        "{error}"
    );
}
