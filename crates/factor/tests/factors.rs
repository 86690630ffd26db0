//! Factors solve what they are of. A program of its own: as a part of the crate it would compile all of `faer` again.

use tsumuji_factor::{Cholesky, Lu, Square, Squares, order, solve_symmetric};

/// Rows that must be exchanged, and a solution for each right-hand side.
#[test]
fn rows_are_exchanged() {
    let rows = [[0.0, 2.0, 1.0], [1.0, 1.0, 0.0], [4.0, 0.0, -1.0]];
    let lu = Lu::new(Square::from_fn(3, |row, column| rows[row][column]));
    let x = [3.0, -1.0, 0.5];
    let mut b = rows.map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum::<f64>());
    lu.solve(&mut b);
    for (found, wanted) in b.iter().zip(x) {
        assert!((found - wanted).abs() < 1e-14, "{b:?}");
    }
    let singular = Lu::new(Square::from_fn(3, |row, _| row as f64));
    assert!((0..3).any(|k| singular.pivot(k) == 0.0 || singular.pivot(k).is_nan()));
}

/// A definite matrix is solved, of the solutions of a semidefinite one the shortest is found.
#[test]
fn symmetric_matrices_are_solved() {
    let definite = Square::from_fn(2, |i, j| [[4.0, 1.0], [1.0, 3.0]][i][j]);
    let x = solve_symmetric(&definite, &[1.0, 2.0], 1e-13).unwrap();
    assert!((4.0 * x[0] + x[1] - 1.0).abs() < 1e-14 && (x[0] + 3.0 * x[1] - 2.0).abs() < 1e-14);
    let ones = Square::from_fn(2, |_, _| 1.0);
    let x = solve_symmetric(&ones, &[2.0, 2.0], 1e-13).unwrap();
    assert!(x.iter().all(|x| (x - 1.0).abs() < 1e-12), "{x:?}");
}

/// A sum of squares is that of its rows, however many go into a product.
#[test]
fn squares_are_summed() {
    let rows: Vec<[f64; 2]> = (0..300)
        .map(|k| [f64::from(k % 7) - 3.0, f64::from(k % 5)])
        .collect();
    let mut squares = Squares::new(3);
    let mut expected = [0.0; 6];
    for row in &rows {
        squares.add(row, 0.5);
        let [a, b] = *row;
        for (sum, product) in expected.iter_mut().zip([a * a, a * b, a, b * b, b, 1.0]) {
            *sum += 0.5 * product;
        }
    }
    let mut triangle = [0.0; 6];
    squares.write(&mut triangle);
    assert_eq!(triangle, expected);
}

/// A chain has factors without fill in the order that is found, and Cholesky solves it; what is not definite has none.
#[test]
fn sparse_matrices_are_solved() {
    let chain = |diagonal: f64| {
        let (mut offsets, mut rows, mut values) = (vec![0], vec![], vec![]);
        for column in 0..50usize {
            for row in column.saturating_sub(1)..(column + 2).min(50) {
                rows.push(row);
                values.push(if row == column { diagonal } else { -1.0 });
            }
            offsets.push(rows.len());
        }
        (offsets, rows, values)
    };
    let (offsets, rows, values) = chain(2.0);
    let long = |list: &[usize]| list.iter().map(|&at| at as u64).collect::<Vec<_>>();
    let ordering = order(&long(&offsets), &long(&rows)).unwrap();
    assert_eq!(ordering.entries, 2.0 * 49.0 + 50.0);
    let mut b = vec![0.0; 50];
    (b[0], b[49]) = (1.0, 1.0);
    let factors = Cholesky::new(&offsets, &rows, &values).unwrap().unwrap();
    factors.solve(&mut b);
    assert!(b.iter().all(|x| (x - 1.0).abs() < 1e-12), "{b:?}");
    let (offsets, rows, values) = chain(1.0);
    assert!(Cholesky::new(&offsets, &rows, &values).unwrap().is_none());
}
