use super::*;
use crate::system::partition;

fn made(text: &str, seed: u64) -> System {
    text.parse::<Generate>().unwrap().system(seed).unwrap()
}

/// Rows made alone are bit for bit those of the whole system, for every kind.
#[test]
fn rows_do_not_depend_on_others() {
    for text in ["dense:67", "poisson2d:9", "poisson3d:5", "circuit:333"] {
        let spec: Generate = text.parse().unwrap();
        let system = spec.system(11).unwrap();
        assert_eq!(system.name, text);
        for rows in partition(&system.matrix, 4).unwrap() {
            assert_eq!(
                spec.rows(rows.clone(), 11, Solution::Ones),
                RowBlock::cut(&system, rows)
            );
        }
    }
}

/// The system depends on the seed, and on nothing else.
#[test]
fn the_seed_decides() {
    for text in ["dense:20", "circuit:200"] {
        assert_eq!(made(text, 5).matrix, made(text, 5).matrix);
        assert_ne!(made(text, 5).matrix, made(text, 6).matrix);
    }
}

/// Dense rows are as dominant as documented, and their entries fill (−1, 0) evenly.
#[test]
fn dense_is_dominant_and_even() {
    let system = made("dense:300", 1);
    let Matrix::Dense(dense) = &system.matrix else {
        panic!("not dense")
    };
    let (mut sum, mut squares) = (0.0, 0.0);
    for row in 0..300 {
        let off: Vec<f64> = (0..300)
            .filter(|&column| column != row)
            .map(|column| dense.row(row)[column])
            .collect();
        assert!(off.iter().all(|value| *value < 0.0 && *value > -1.0));
        let magnitude: f64 = off.iter().map(|value| value.abs()).sum();
        assert!((dense.row(row)[row] / magnitude - 1.766).abs() < 1e-12);
        sum += magnitude;
        squares += off.iter().map(|value| value * value).sum::<f64>();
    }
    let count = 300.0 * 299.0;
    assert!((sum / count - 0.5).abs() < 0.01, "mean {}", sum / count);
    assert!(
        (squares / count - 1.0 / 3.0).abs() < 0.01,
        "second moment {}",
        squares / count
    );
}

/// Poisson rows have the stencil, and its neighbours only across real grid lines.
#[test]
fn poisson_has_the_stencil() {
    let system = made("poisson2d:4", 0);
    let Matrix::Sparse(csr) = &system.matrix else {
        panic!("not sparse")
    };
    assert_eq!(csr.row(0).0, [0, 1, 4]);
    assert_eq!(csr.row(3).0, [2, 3, 7]);
    assert_eq!(
        csr.row(5),
        (&[1u32, 4, 5, 6, 9][..], &[-1.0, -1.0, 4.0, -1.0, -1.0][..])
    );
    let cube = made("poisson3d:3", 0);
    assert_eq!(cube.matrix.stored(), 27 * 7 - 6 * 9);
    assert_eq!(cube.rhs[13], 0.0);
}

/// A circuit is symmetric, has no positive off-diagonal entry, is nowhere short of weak dominance and strictly dominant
/// where it is grounded; conductances span many decades, rows stay short.
#[test]
fn circuits_are_weakly_dominant_and_symmetric() {
    let system = made("circuit:3000", 3);
    let Matrix::Sparse(csr) = &system.matrix else {
        panic!("not sparse")
    };
    let (mut least, mut most, mut grounded) = (f64::INFINITY, 0.0f64, 0);
    for row in 0..3000 {
        let (columns, values) = csr.row(row);
        let mut surplus = 0.0;
        for (&column, &value) in columns.iter().zip(values) {
            surplus += value;
            if column as usize != row {
                assert!(value < 0.0);
                assert_eq!(csr.get(column as usize, row), value);
                least = least.min(-value);
                most = most.max(-value);
            }
        }
        let diagonal = csr.get(row, row);
        assert!(surplus > -1e-14 * diagonal, "row {row}: {surplus}");
        grounded += usize::from(surplus > 1e-12 * diagonal);
    }
    assert!(most / least > 900.0, "{least} {most}");
    assert!((600..900).contains(&grounded), "{grounded}");
    let per_row = csr.stored() as f64 / 3000.0;
    assert!((4.0..7.0).contains(&per_row), "{per_row}");
}

/// Wrong specifications are refused in one line that lists the accepted ones.
#[test]
fn bad_specifications_are_refused() {
    for text in [
        "",
        "dense",
        "dense:",
        "dense:x",
        "dense:-3",
        "dense:1",
        "cube:4",
        "poisson2d:99999999",
        "poisson3d:1e3",
    ] {
        let error = text.parse::<Generate>().unwrap_err().to_string();
        assert!(
            error.contains("accepted are dense:N") && !error.contains('\n'),
            "{error}"
        );
    }
    let error = "dense:4000000"
        .parse::<Generate>()
        .unwrap()
        .system(0)
        .unwrap_err();
    assert!(matches!(error, GenerateError::Memory { .. }), "{error}");
    assert!(
        error.to_string().starts_with("dense:4000000 needs 128 TB"),
        "{error}"
    );
}
