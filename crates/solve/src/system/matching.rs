//! An order of the rows that puts large entries on the diagonal, for systems whose diagonal has zeros, or entries far below others.
//!
//! Relaxation divides by the diagonal, and incomplete factors begin with it. Each row is matched with a column so that the product of the matched
//! entries is as large as possible (Duff and Koster, 2001): an assignment problem with costs log max|aᵢⱼ| − log|aᵢⱼ|, solved column by column by
//! shortest augmenting paths. Rows alone move, so x keeps its order, and the residual its norm. The potentials of the columns scale them (`scaling`).
//!
//! Invariant: costs reduced by the two potentials are never negative, and 0 for matched entries.

use super::{Csr, Dense, Matrix};
use crate::outlook::is_symmetric;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most rows of a dense matrix that is matched: the search takes time of its number of rows times its entries. In a larger one rows are exchanged in
/// pairs.
const DENSE_ROWS_MOST: usize = 3_000;

/// A diagonal entry below this part of the largest in its row, and of that in its column, is hardly better than none.
const SMALL: f64 = 1e-3;

/// Diagonal entries by which relaxation cannot divide well.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Poor {
    zeros: usize,
    small: usize,
}

impl std::fmt::Display for Poor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.zeros, self.small) {
            (zeros, 0) => write!(f, "a zero stood on the diagonal in {zeros}"),
            (0, small) => write!(
                f,
                "an entry far below others of its row and column stood on the diagonal in {small}"
            ),
            (zeros, small) => write!(
                f,
                "a zero, or an entry far below others of its row and column, stood on the diagonal in {}",
                zeros + small
            ),
        }
    }
}

/// Whether the rows of a matrix are to be matched.
pub(super) fn is_poor(matrix: &Matrix) -> bool {
    let Poor { zeros, small } = poor_diagonal(matrix);
    zeros + small > 0
}

/// Those of a matrix. Small entries count in sparse ones only, because a dense one has some by chance, and not where the matrix may be positive definite:
/// then no order has a larger product.
pub(super) fn poor_diagonal(matrix: &Matrix) -> Poor {
    let mut poor = Poor::default();
    let mut small = Vec::new();
    for row in 0..matrix.n() {
        let diagonal = matrix.diagonal(row).abs();
        let mut most = 0f64;
        matrix.for_each_in_row(row, |_, value| most = most.max(value.abs()));
        if diagonal == 0.0 {
            poor.zeros += 1;
        } else if diagonal < SMALL * most {
            small.push((row, diagonal));
        }
    }
    if matrix.is_dense() {
        small.clear();
    }
    if !small.is_empty() && is_symmetric(matrix) {
        let definite = |&(row, _): &(usize, f64)| {
            let mut is_definite = matrix.diagonal(row) > 0.0;
            matrix.for_each_in_row(row, |column, value| {
                let both = matrix.diagonal(row) * matrix.diagonal(column);
                is_definite &= column == row || value * value <= both;
            });
            is_definite
        };
        small.retain(|one| !definite(one));
    }
    if !small.is_empty() {
        let mut most = vec![0f64; matrix.n()];
        for row in 0..matrix.n() {
            matrix.for_each_in_row(row, |column, value| {
                most[column] = most[column].max(value.abs());
            });
        }
        let is_small = |&&(row, diagonal): &&(usize, f64)| diagonal < SMALL * most[row];
        poor.small = small.iter().filter(is_small).count();
    }
    poor
}

/// Result of the search.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Matched {
    /// There is a matching.
    Whole {
        /// For each column the row to put there.
        rows: Vec<u32>,
        /// Potentials of the columns: logarithms of their scales. `None`: rows were exchanged in pairs.
        potentials: Option<Vec<f64>>,
    },
    /// There is no order without a zero on the diagonal: the matrix is singular, whatever its values are.
    Singular,
    /// Dense and large, and exchanges of rows did not suffice.
    TooLarge,
}

/// The rows of `matrix` for the places on the diagonal.
pub(super) fn rows_for(matrix: &Matrix) -> Matched {
    match matrix {
        Matrix::Dense(dense) if dense.n() > DENSE_ROWS_MOST => exchanged(dense),
        _ => Search::new(matrix).run(),
    }
}

/// For each zero on the diagonal two rows are exchanged, so that the product of their diagonal entries is as large as possible.
fn exchanged(dense: &Dense) -> Matched {
    let mut rows: Vec<u32> = (0..dense.n() as u32).collect();
    for place in 0..dense.n() {
        let at = |row: u32, column: usize| dense.row(row as usize)[column].abs();
        let own = rows[place];
        if at(own, place) != 0.0 {
            continue;
        }
        let products = (0..dense.n()).map(|other| at(rows[other], place) * at(own, other));
        let best = products
            .enumerate()
            .max_by(|one, other| one.1.total_cmp(&other.1));
        match best {
            Some((best, product)) if product > 0.0 => rows.swap(place, best),
            _ => return Matched::TooLarge,
        }
    }
    Matched::Whole {
        rows,
        potentials: None,
    }
}

/// `matrix` with row `rows[k]` in place k.
pub(super) fn reorder(matrix: &Matrix, rows: &[u32]) -> Matrix {
    match matrix {
        Matrix::Dense(dense) => {
            let values = rows
                .iter()
                .flat_map(|&row| dense.row(row as usize).iter().copied());
            Matrix::Dense(Dense::new(dense.n(), values.collect()).expect("as many rows"))
        }
        Matrix::Sparse(csr) => Matrix::Sparse(Csr::by_rows(
            csr.columns(),
            csr.stored(),
            rows,
            |&row, indices, values| {
                let (columns, entries) = csr.row(row as usize);
                indices.extend_from_slice(columns);
                values.extend_from_slice(entries);
            },
        )),
    }
}

const NONE: u32 = u32::MAX;

struct Search {
    /// Columns and costs of each row's non-zero entries.
    rows: Vec<Vec<(u32, f64)>>,
    row_potential: Vec<f64>,
    column_potential: Vec<f64>,
    column_of: Vec<u32>,
    row_of: Vec<u32>,
}

impl Search {
    fn new(matrix: &Matrix) -> Self {
        let n = matrix.n();
        let mut rows = Vec::with_capacity(n);
        for row in 0..n {
            let mut entries = Vec::new();
            matrix.for_each_in_row(row, |column, value| {
                if value != 0.0 {
                    entries.push((column as u32, value.abs().ln()));
                }
            });
            let most = entries
                .iter()
                .fold(f64::NEG_INFINITY, |most, e| most.max(e.1));
            entries
                .iter_mut()
                .for_each(|entry| entry.1 = most - entry.1);
            rows.push(entries);
        }
        let mut column_potential = vec![f64::INFINITY; n];
        for &(column, cost) in rows.iter().flatten() {
            let least = &mut column_potential[column as usize];
            *least = least.min(cost);
        }
        // A column without entries stays unmatched.
        column_potential.iter_mut().for_each(|cost| {
            if cost.is_infinite() {
                *cost = 0.0;
            }
        });
        let row_potential = rows
            .iter()
            .map(|entries: &Vec<(u32, f64)>| {
                let reduced = |e: &(u32, f64)| e.1 - column_potential[e.0 as usize];
                let least = entries.iter().map(reduced).fold(f64::INFINITY, f64::min);
                if least.is_finite() { least } else { 0.0 }
            })
            .collect();
        Self {
            rows,
            row_potential,
            column_potential,
            column_of: vec![NONE; n],
            row_of: vec![NONE; n],
        }
    }

    fn reduced(&self, row: usize, column: u32, cost: f64) -> f64 {
        // Rounding may make it negative by a little.
        (cost - self.row_potential[row] - self.column_potential[column as usize]).max(0.0)
    }

    fn run(mut self) -> Matched {
        let n = self.rows.len();
        for row in 0..n {
            let free = self.rows[row].iter().find(|(column, cost)| {
                self.row_of[*column as usize] == NONE && self.reduced(row, *column, *cost) == 0.0
            });
            if let Some(&(column, _)) = free {
                self.column_of[row] = column;
                self.row_of[column as usize] = row as u32;
            }
        }
        let mut paths = Paths::new(n);
        for row in 0..n {
            if self.column_of[row] == NONE && !self.augment(row, &mut paths) {
                return Matched::Singular;
            }
        }
        Matched::Whole {
            rows: self.row_of,
            potentials: Some(self.column_potential),
        }
    }

    /// Matches `start` by the cheapest path to a free column. False: there is none.
    fn augment(&mut self, start: usize, paths: &mut Paths) -> bool {
        let mut heap = BinaryHeap::new();
        let (mut row, mut so_far) = (start, 0.0);
        let end = loop {
            for &(column, cost) in &self.rows[row] {
                let found = so_far + self.reduced(row, column, cost);
                if found < paths.distance[column as usize] {
                    if paths.distance[column as usize].is_infinite() {
                        paths.reached.push(column);
                    }
                    paths.distance[column as usize] = found;
                    paths.before[column as usize] = row as u32;
                    heap.push((Reverse(Ordered(found)), column));
                }
            }
            let next = loop {
                match heap.pop() {
                    Some((Reverse(Ordered(distance)), column)) => {
                        if distance <= paths.distance[column as usize]
                            && !paths.settled[column as usize]
                        {
                            break Some((distance, column));
                        }
                    }
                    None => break None,
                }
            };
            let Some((distance, column)) = next else {
                paths.clear();
                return false;
            };
            paths.settled[column as usize] = true;
            so_far = distance;
            match self.row_of[column as usize] {
                NONE => break column,
                owner => row = owner as usize,
            }
        };
        for &column in &paths.reached {
            let at = column as usize;
            if paths.settled[at] && column != end {
                let slack = so_far - paths.distance[at];
                self.column_potential[at] -= slack;
                self.row_potential[self.row_of[at] as usize] += slack;
            }
        }
        self.row_potential[start] += so_far;
        let mut column = end;
        loop {
            let row = paths.before[column as usize];
            let freed = std::mem::replace(&mut self.column_of[row as usize], column);
            self.row_of[column as usize] = row;
            if row as usize == start {
                break;
            }
            column = freed;
        }
        paths.clear();
        true
    }
}

/// Scratch of the shortest paths; only what was reached is cleared.
struct Paths {
    distance: Vec<f64>,
    before: Vec<u32>,
    settled: Vec<bool>,
    reached: Vec<u32>,
}

impl Paths {
    fn new(n: usize) -> Self {
        Self {
            distance: vec![f64::INFINITY; n],
            before: vec![NONE; n],
            settled: vec![false; n],
            reached: Vec::new(),
        }
    }

    fn clear(&mut self) {
        for column in self.reached.drain(..) {
            self.distance[column as usize] = f64::INFINITY;
            self.settled[column as usize] = false;
        }
    }
}

/// A distance, never NaN.
#[derive(PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sparse(n: u32, entries: &[(u32, u32, f64)]) -> Matrix {
        Matrix::Sparse(Csr::from_triplets(n as usize, n as usize, entries).unwrap())
    }

    /// The largest product of magnitudes over all permutations, by trying them.
    fn largest_product(n: usize, matrix: &Matrix) -> f64 {
        fn go(rows: &[Vec<f64>], row: usize, used: &mut Vec<bool>) -> f64 {
            if row == rows.len() {
                return 1.0;
            }
            let mut best = 0.0f64;
            for column in 0..rows.len() {
                if !used[column] && rows[row][column] != 0.0 {
                    used[column] = true;
                    best = best.max(rows[row][column] * go(rows, row + 1, used));
                    used[column] = false;
                }
            }
            best
        }
        let mut rows = vec![vec![0.0; n]; n];
        for (row, entries) in rows.iter_mut().enumerate() {
            matrix.for_each_in_row(row, |column, value| entries[column] = value.abs());
        }
        go(&rows, 0, &mut vec![false; n])
    }

    /// A cyclic shift is undone.
    #[test]
    fn a_shift_is_undone() {
        let matrix = sparse(3, &[(0, 1, 1.0), (1, 2, -2.0), (2, 0, 3.0), (0, 0, 1e-3)]);
        let Matched::Whole { rows, .. } = rows_for(&matrix) else {
            panic!("it has a matching")
        };
        assert_eq!(rows, [2, 0, 1]);
        let ordered = reorder(&matrix, &rows);
        let diagonal: Vec<f64> = (0..3).map(|k| ordered.diagonal(k)).collect();
        assert_eq!(diagonal, [3.0, 1.0, -2.0]);
    }

    /// Small entries are found where they are small in row and column; those of a badly scaled row, or of a positive definite matrix, are matched by itself.
    #[test]
    fn small_diagonals_are_found() {
        let shifted = sparse(
            3,
            &[
                (0, 1, 1.0),
                (1, 2, -2.0),
                (2, 0, 3.0),
                (0, 0, 1e-9),
                (1, 1, 1e-9),
                (2, 2, 1e-9),
            ],
        );
        assert_eq!(poor_diagonal(&shifted), Poor { zeros: 0, small: 3 });
        let scaled = sparse(2, &[(0, 0, 1e-9), (0, 1, 1e-3), (1, 1, 1.0), (1, 0, 1e-10)]);
        assert_eq!(poor_diagonal(&scaled), Poor::default());
        let definite = sparse(2, &[(0, 0, 1e-8), (0, 1, 9e-5), (1, 0, 9e-5), (1, 1, 1.0)]);
        assert_eq!(poor_diagonal(&definite), Poor::default());
        let Matched::Whole { rows, .. } = rows_for(&definite) else {
            panic!("it has a matching")
        };
        assert_eq!(rows, [0, 1]);
    }

    /// Rows of a large dense matrix are exchanged in pairs, for the largest product.
    #[test]
    fn rows_are_exchanged() {
        let values = vec![1.0, 2.0, 0.5, 4.0, 0.0, 8.0, 3.0, 0.25, 1.0];
        let Matched::Whole { rows, potentials } = exchanged(&Dense::new(3, values).unwrap()) else {
            panic!("rows can be exchanged")
        };
        assert_eq!((rows, potentials), (vec![1, 0, 2], None));
        let alone = Dense::new(2, vec![1.0, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!(exchanged(&alone), Matched::TooLarge);
    }

    /// Two rows with one column between them have no matching.
    #[test]
    fn structural_singularity_is_found() {
        let matrix = sparse(3, &[(0, 0, 1.0), (1, 0, 2.0), (2, 1, 1.0), (2, 2, 1.0)]);
        assert_eq!(rows_for(&matrix), Matched::Singular);
    }

    proptest! {
        /// The product on the diagonal is the largest that any order gives, and singular is said only where there is none.
        #[test]
        fn products_are_largest(
            n in 1u32..7,
            entries in prop::collection::vec((0u32..7, 0u32..7, -3i32..4), 0..40),
        ) {
            let entries: Vec<_> = entries
                .into_iter()
                .filter(|e| e.0 < n && e.1 < n)
                .map(|(row, column, value)| (row, column, 2f64.powi(value)))
                .collect();
            let matrix = sparse(n, &entries);
            let expected = largest_product(n as usize, &matrix);
            match rows_for(&matrix) {
                Matched::Whole { rows, .. } => {
                    let ordered = reorder(&matrix, &rows);
                    let found: f64 = (0..n as usize).map(|k| ordered.diagonal(k).abs()).product();
                    prop_assert!((found - expected).abs() <= 1e-9 * expected, "{} {}", found, expected);
                }
                other => {
                    prop_assert_eq!(other, Matched::Singular);
                    prop_assert_eq!(expected, 0.0);
                }
            }
        }
    }
}
