//! Elimination of the interior of a block: sparse LU factors of its interior rows and columns, and the Schur complement of the others.
//!
//! The circuits' solver calls it for each of its parts, whose interior couples to others through a border only; `strip` for all of a worker's diagonal
//! block, which has no border and is solved with on every lap. The steps are those of `lu`. A column of the interior without a usable pivot in interior
//! rows, as currents of voltage sources may have, is *delayed*: it joins the border, with an interior row that became no pivot.
//!
//! Invariant: rows of the Schur complement are the interior rows that became no pivot, then the border's; its columns are the delayed ones, then the
//! border's. It is square.

use super::lu::{Columns, Elimination, FillLimit, LuError, NONE, order, transpose};
use crate::system::Csr;

/// A pivot below this part of its column's largest entry is rounding.
pub(super) const ROUNDING: f64 = 8.0 * f64::EPSILON;

/// P A Q = (L₁₁ 0; L₂₁ I) (U₁₁ U₁₂; 0 S), with S given away.
#[derive(Debug, Clone)]
pub struct PartialLu {
    /// Row that became pivot k; behind the pivots the rows of S.
    row_of: Vec<u32>,
    /// Column eliminated k-th; behind the pivots the columns of S.
    column_of: Vec<u32>,
    /// L₁₁ below the diagonal, and L₂₁; rows in the order of `row_of`.
    lower: Columns,
    /// U₁₁ above the diagonal, and U₁₂; rows in pivot order.
    upper: Columns,
    /// 1 / pivot.
    inverse_pivots: Vec<f64>,
}

/// A Schur complement, dense.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Schur {
    /// Interior columns that joined the border, by their numbers in the block.
    pub delayed: Vec<u32>,
    /// Column after column; `delayed` first, then the border.
    pub values: Vec<f64>,
}

impl PartialLu {
    /// Eliminates rows and columns 0 to `interior` of a square block, within `limit`.
    pub fn new(block: &Csr, interior: usize, limit: FillLimit) -> Result<(Self, Schur), LuError> {
        Self::eliminating(block, interior, limit, true)
    }

    /// Factorises all of a square block, within `limit`.
    pub(super) fn whole(block: &Csr, limit: FillLimit) -> Result<Self, LuError> {
        Self::eliminating(block, block.rows(), limit, false).map(|(factors, _)| factors)
    }

    /// `delays`: columns without a usable pivot are delayed, otherwise refused, and any pivot but 0 is usable.
    fn eliminating(
        block: &Csr,
        interior: usize,
        limit: FillLimit,
        delays: bool,
    ) -> Result<(Self, Schur), LuError> {
        let n = block.rows();
        assert_eq!(n, block.columns(), "only square blocks have LU factors");
        assert!(interior <= n, "the interior is within the block");
        let transposed = transpose(block);
        let ordering = if interior == n {
            order(&transposed)?
        } else {
            order(&transposed.part(0..interior, &(0..interior)))?
        };
        limit.check(n, (ordering.entries, ordering.multiplications), 1.0)?;
        let mut elimination = Elimination::new(n, interior, ordering.entries as usize / 2);
        let mut column_of = Vec::with_capacity(n);
        let mut delayed = Vec::new();
        for &column in &ordering.columns {
            elimination.solve_column(&transposed, column as usize);
            let least = if delays {
                let (_, values) = transposed.row(column as usize);
                let largest = values
                    .iter()
                    .fold(0.0f64, |most, value| most.max(value.abs()));
                ROUNDING * largest
            } else {
                0.0
            };
            if elimination.take_pivot(column as usize, least) {
                column_of.push(column as u32);
            } else if delays {
                delayed.push(column as u32);
            } else {
                let column = column as usize;
                return Err(LuError::Singular { column });
            }
            limit.check(n, elimination.spent(), 2.0)?;
        }
        let pivots = column_of.len();
        column_of.extend_from_slice(&delayed);
        column_of.extend(interior as u32..n as u32);
        let mut row_of = std::mem::take(&mut elimination.row_of);
        row_of.extend((0..n as u32).filter(|&row| elimination.pivot_of[row as usize] == NONE));
        let size = n - pivots;
        let mut schur = vec![0.0; size * size];
        for (place, &column) in column_of[pivots..].iter().enumerate() {
            elimination.solve_column(&transposed, column as usize);
            let values = &mut schur[place * size..(place + 1) * size];
            for (value, &row) in values.iter_mut().zip(&row_of[pivots..]) {
                *value = elimination.work[row as usize];
            }
            elimination.clear_work();
            elimination
                .upper
                .offsets
                .push(elimination.upper.values.len());
            limit.check(n, elimination.spent(), 4.0)?;
        }
        let mut position = vec![0u32; n];
        for (place, &row) in (0..).zip(&row_of) {
            position[row as usize] = place;
        }
        let mut lower = elimination.lower;
        for row in &mut lower.rows {
            *row = position[*row as usize];
        }
        let factors = Self {
            row_of,
            column_of,
            lower,
            upper: elimination.upper,
            inverse_pivots: elimination.inverse_pivots,
        };
        Ok((
            factors,
            Schur {
                delayed,
                values: schur,
            },
        ))
    }

    /// Pivots: interior unknowns that were eliminated.
    pub fn pivots(&self) -> usize {
        self.inverse_pivots.len()
    }

    /// Entries of L and U, those of the pivots counted once.
    pub fn entries(&self) -> usize {
        self.lower.values.len() + self.upper.values.len() + self.pivots()
    }

    /// L⁻¹ P b for a right-hand side `b` of the whole block: what [`PartialLu::backward`] needs, and behind the pivots the right-hand side of S.
    pub fn forward(&self, b: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; b.len()];
        self.forward_into(b, &mut y);
        y
    }

    fn forward_into(&self, b: &[f64], y: &mut [f64]) {
        for (y, &row) in y.iter_mut().zip(&self.row_of) {
            *y = b[row as usize];
        }
        for k in 0..self.pivots() {
            self.lower.subtract(k, y[k], y);
        }
    }

    /// The solution of the whole block from `y` of [`PartialLu::forward`], in which the solution of S has taken the place of its right-hand side.
    pub fn backward(&self, mut y: Vec<f64>) -> Vec<f64> {
        let mut x = vec![0.0; y.len()];
        self.backward_into(&mut y, &mut x);
        x
    }

    fn backward_into(&self, y: &mut [f64], x: &mut [f64]) {
        for k in (0..y.len()).rev() {
            let value = match self.inverse_pivots.get(k) {
                Some(inverse) => y[k] * inverse,
                None => y[k],
            };
            x[self.column_of[k] as usize] = value;
            self.upper.subtract(k, value, y);
        }
    }

    /// Replaces `vector` by the solution of a block without border. `y`: room for as many elements.
    pub(super) fn solve(&self, vector: &mut [f64], y: &mut [f64]) {
        self.forward_into(vector, y);
        self.backward_into(y, vector);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lu::GENEROUS;
    use super::*;
    use proptest::prelude::*;
    use tsumuji_factor::{Lu, Square};

    /// Solves by eliminating the interior, then the Schur complement densely. Also gives its size.
    fn solve(matrix: &Csr, interior: usize, b: &[f64]) -> (Vec<f64>, usize) {
        let (lu, schur) = PartialLu::new(matrix, interior, GENEROUS).unwrap();
        let mut y = lu.forward(b);
        let size = y.len() - lu.pivots();
        assert_eq!(schur.values.len(), size * size);
        let dense = Square::from_fn(size, |row, column| schur.values[column * size + row]);
        Lu::new(dense).solve(&mut y[lu.pivots()..]);
        (lu.backward(y), size)
    }

    fn dense_solution(matrix: &Csr, b: &[f64]) -> Vec<f64> {
        let n = matrix.rows();
        let mut x = b.to_vec();
        Lu::new(Square::from_fn(n, |row, column| matrix.get(row, column))).solve(&mut x);
        x
    }

    /// These entries, as far as they are within n rows. A cyclic shift keeps the matrix regular, mostly, without touching the diagonal (for n > 1).
    fn shifted(n: usize, mut entries: Vec<(u32, u32, f64)>) -> Csr {
        entries.retain(|entry| (entry.0 as usize) < n && (entry.1 as usize) < n);
        entries.extend((0..n as u32).map(|row| (row, (row + 1) % n as u32, 5.0)));
        Csr::from_triplets(n, n, &entries).unwrap()
    }

    /// A K×K grid, 5-point.
    fn grid(k: u32) -> Csr {
        let mut triplets = Vec::new();
        for row in 0..k * k {
            triplets.push((row, row, 4.0));
            let (y, x) = (row / k, row % k);
            let neighbours = [
                (x > 0, row.wrapping_sub(1)),
                (x + 1 < k, row + 1),
                (y > 0, row.wrapping_sub(k)),
                (y + 1 < k, row + k),
            ];
            triplets.extend(neighbours.iter().filter(|n| n.0).map(|n| (row, n.1, -1.0)));
        }
        Csr::from_triplets((k * k) as usize, (k * k) as usize, &triplets).unwrap()
    }

    fn residual(matrix: &Csr, x: &[f64], b: &[f64]) -> f64 {
        (0..matrix.rows())
            .map(|row| (b[row] - matrix.row_dot(row, x)).abs())
            .fold(0.0, f64::max)
    }

    /// A zero on the diagonal whose only partner is in the border is delayed.
    #[test]
    fn columns_without_pivot_are_delayed() {
        // Unknown 0 couples to unknown 1 only, which is in the border.
        let matrix = Csr::from_triplets(2, 2, &[(0, 1, 1.0), (1, 0, 1.0), (1, 1, 2.0)]).unwrap();
        let (lu, schur) = PartialLu::new(&matrix, 1, GENEROUS).unwrap();
        assert_eq!((lu.pivots(), schur.delayed), (0, vec![0]));
        assert_eq!(schur.values, [0.0, 1.0, 1.0, 2.0]);
        assert_eq!(solve(&matrix, 1, &[3.0, 5.0]).0, [-1.0, 3.0]);
    }

    /// Fill beyond the limit is refused.
    #[test]
    fn fill_is_bounded() {
        let triplets: Vec<_> = (0..40u32)
            .flat_map(|row| (0..40).map(move |c| (row, c, if row == c { 50.0 } else { 1.0 })))
            .collect();
        let matrix = Csr::from_triplets(40, 40, &triplets).unwrap();
        for (entries, multiplications) in [(100, 1e9), (10_000, 10.0)] {
            let limit = FillLimit {
                entries,
                multiplications,
            };
            assert!(matches!(
                PartialLu::new(&matrix, 30, limit),
                Err(LuError::Fill { .. })
            ));
        }
    }

    /// The factors solve a grid, with no more fill than the ordering predicted.
    #[test]
    fn grid_is_solved_with_the_promised_fill() {
        let matrix = grid(20);
        let promised = order(&matrix).unwrap().entries;
        let lu = PartialLu::whole(&matrix, GENEROUS).unwrap();
        assert!(
            lu.entries() as f64 <= promised,
            "{} {promised}",
            lu.entries()
        );
        for seed in 1..4 {
            let b: Vec<f64> = (0..400)
                .map(|row| f64::from(row * seed % 17) - 8.0)
                .collect();
            let x = lu.backward(lu.forward(&b));
            assert!(residual(&matrix, &x, &b) < 1e-12);
        }
    }

    /// A block whose fill exceeds the limit is refused, whether it is predicted or found during elimination.
    #[test]
    fn fill_of_whole_blocks_is_bounded() {
        let limit = FillLimit {
            entries: 2000,
            multiplications: 1e9,
        };
        assert!(matches!(
            PartialLu::whole(&grid(20), limit),
            Err(LuError::Fill { rows: 400, .. })
        ));
        // A tiny diagonal forces pivots from elsewhere, so that the ordering's prediction fails.
        let regular = grid(20);
        let values = regular
            .values()
            .iter()
            .map(|&v| if v > 0.0 { 1e-3 } else { v });
        let (offsets, indices) = (regular.offsets().to_vec(), regular.indices().to_vec());
        let weak = Csr::new(400, offsets, indices, values.collect()).unwrap();
        let limit = FillLimit {
            entries: order(&weak).unwrap().entries as usize,
            multiplications: 1e9,
        };
        assert!(PartialLu::whole(&regular, limit).is_ok());
        assert!(matches!(
            PartialLu::whole(&weak, limit),
            Err(LuError::Fill { .. })
        ));
    }

    /// Singular blocks are refused, in structure or in value.
    #[test]
    fn singular_blocks_are_refused() {
        let structure = Csr::from_triplets(2, 2, &[(0, 0, 1.0), (1, 0, 1.0)]).unwrap();
        assert!(matches!(
            PartialLu::whole(&structure, GENEROUS),
            Err(LuError::Singular { .. })
        ));
        let ones = [(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 1, 1.0)];
        let value = Csr::from_triplets(2, 2, &ones).unwrap();
        assert!(matches!(
            PartialLu::whole(&value, GENEROUS),
            Err(LuError::Singular { .. })
        ));
    }

    proptest! {
        /// Any regular block with any interior has the solution that a dense LU gives.
        #[test]
        fn agrees_with_the_oracle(
            n in 1usize..20,
            interior in 0usize..20,
            entries in prop::collection::vec((0u32..20, 0u32..20, -1.0f64..1.0), 0..80),
        ) {
            let interior = interior.min(n);
            let matrix = shifted(n, entries);
            let b: Vec<f64> = (0..n).map(|row| row as f64 - 3.5).collect();
            let expected = dense_solution(&matrix, &b);
            let scale = expected.iter().fold(1.0, |scale: f64, value| scale.max(value.abs()));
            prop_assume!(scale < 1e4);
            let (x, size) = solve(&matrix, interior, &b);
            prop_assert!(size >= n - interior);
            for row in 0..n {
                prop_assert!((x[row] - expected[row]).abs() < 1e-7 * scale, "{:?} {:?}", x, expected);
            }
        }

        /// Random unsymmetric blocks, zero diagonals included, give the solution that dense LU gives.
        #[test]
        fn whole_blocks_agree_with_the_oracle(
            n in 1usize..24,
            entries in prop::collection::vec((0u32..24, 0u32..24, -1.0f64..1.0), 0..120),
        ) {
            let matrix = shifted(n, entries);
            if let Ok(ours) = PartialLu::whole(&matrix, GENEROUS) {
                let b: Vec<f64> = (0..n).map(|row| row as f64 - 3.5).collect();
                let expected = dense_solution(&matrix, &b);
                let x = ours.backward(ours.forward(&b));
                let scale = x.iter().fold(1.0, |scale: f64, value| scale.max(value.abs()));
                prop_assume!(scale < 1e6);
                for row in 0..n {
                    prop_assert!((x[row] - expected[row]).abs() < 1e-8 * scale);
                }
            }
        }
    }
}
