//! Elimination of the interior of a symmetric positive definite block: as `partial`, with half the entries and, by supernodes, much less time.
//!
//! Called by `bordered`, which adds borders that are not symmetric. The factors (`tsumuji-factor`) cover a whole matrix, so the
//! border gets a diagonal D of its own, large enough to be positive definite beside the interior: the last block of the factors is then the factor
//! of D + S, from which S is got back. D is no larger than twice the couplings of the border, which the diagonal of the whole system exceeds too,
//! so that nothing is lost by that.
//!
//! Invariant: what is accepted is symmetric in all bits, and no pivot is rounding.

use super::lu::{FillLimit, LuError, order};
use super::partial::ROUNDING;
use crate::system::Csr;
use tsumuji_factor::{Square, Supernodes, Symbolic};

/// P A Pᵀ = L Lᵀ of the interior, and the rows of L below it.
#[derive(Debug)]
pub(super) struct PartialCholesky {
    factors: Supernodes,
    /// Unknown of the block eliminated k-th; behind the interior the border in its own order.
    unknown_of: Vec<u64>,
    interior: usize,
}

impl PartialCholesky {
    /// Eliminates rows and columns 0 to `interior` of a block, within `limit`; entries between unknowns of the border are not read. Gives the Schur
    /// complement's columns, too. `None`: the block is not symmetric or not positive definite, or has a pivot that is rounding.
    pub(super) fn new(
        block: &Csr,
        interior: usize,
        limit: FillLimit,
    ) -> Result<Option<(Self, Vec<f64>)>, LuError> {
        let n = block.rows();
        assert_eq!(n, block.columns(), "only square blocks have factors");
        if interior == 0 || !is_symmetric(block, interior) {
            return Ok(None);
        }
        let failed = |what: String| LuError::Ordering { what };
        let matrix = Augmented::new(block, interior);
        let ordering = order(&block.part(0..interior, &(0..interior)))?;
        let mut unknown_of = ordering.columns;
        unknown_of.extend(interior as u64..n as u64);
        let mut place_of = vec![0u64; n];
        for (place, &unknown) in (0..).zip(&unknown_of) {
            place_of[unknown as usize] = place;
        }
        let pattern = (&matrix.offsets[..], &matrix.rows[..]);
        let symbolic = Symbolic::new(pattern, &unknown_of, &place_of).map_err(failed)?;
        let cost = (symbolic.entries() as f64, ordering.multiplications);
        limit.check(n, cost, 1.0)?;
        let factors = Supernodes::new(symbolic, pattern, &matrix.values).map_err(failed)?;
        let Some(factors) = factors else {
            return Ok(None);
        };
        let factors = Self {
            factors,
            unknown_of,
            interior,
        };
        let Some(below) = factors.border_factor(&matrix) else {
            return Ok(None);
        };
        // S = L Lᵀ − D.
        let product = below.times_transpose();
        let size = n - interior;
        let mut schur = vec![0.0; size * size];
        for column in 0..size {
            for row in 0..size {
                schur[column * size + row] = product[(row, column)];
            }
            schur[column * size + column] -= matrix.border_diagonal[column];
        }
        Ok(Some((factors, schur)))
    }

    /// The last block of L. `None`: a pivot is rounding.
    fn border_factor(&self, matrix: &Augmented) -> Option<Square> {
        let size = self.unknown_of.len() - self.interior;
        let mut below = Square::zeros(size);
        let mut is_usable = true;
        self.factors
            .for_each_column(false, |column, own, pattern, values| {
                let diagonal = matrix.diagonal[self.unknown_of[column] as usize];
                // Also false for a NaN.
                is_usable &= values[0] * values[0] > ROUNDING * diagonal;
                if column >= self.interior {
                    let place = column - self.interior;
                    below[(place, place)] = values[0];
                    for (&row, &value) in own.iter().chain(pattern).zip(&values[1..]) {
                        below[(row as usize - self.interior, place)] = value;
                    }
                }
            });
        is_usable.then_some(below)
    }

    /// Entries of L.
    pub(super) fn entries(&self) -> usize {
        self.factors.entries()
    }

    /// L⁻¹ P b for a right-hand side `b` of the whole block: what [`PartialCholesky::backward`] needs, and behind the interior the right-hand side
    /// of S.
    pub(super) fn forward(&self, b: &[f64]) -> Vec<f64> {
        let mut y: Vec<f64> = self
            .unknown_of
            .iter()
            .map(|&unknown| b[unknown as usize])
            .collect();
        self.factors
            .for_each_column(false, |column, own, pattern, values| {
                if column < self.interior {
                    let pivot = y[column] / values[0];
                    y[column] = pivot;
                    if pivot != 0.0 {
                        for (&row, value) in own.iter().chain(pattern).zip(&values[1..]) {
                            y[row as usize] -= value * pivot;
                        }
                    }
                }
            });
        y
    }

    /// The solution of the whole block from `y` of [`PartialCholesky::forward`], in which the solution of S has taken the place of its right-hand
    /// side.
    pub(super) fn backward(&self, mut y: Vec<f64>) -> Vec<f64> {
        self.factors
            .for_each_column(true, |column, own, pattern, values| {
                if column < self.interior {
                    let rows = own.iter().chain(pattern).zip(&values[1..]);
                    let known: f64 = rows.map(|(&row, value)| value * y[row as usize]).sum();
                    y[column] = (y[column] - known) / values[0];
                }
            });
        let mut x = vec![0.0; y.len()];
        for (&unknown, value) in self.unknown_of.iter().zip(y) {
            x[unknown as usize] = value;
        }
        x
    }
}

/// Whether the interior's rows equal its columns, bit by bit, and all numbers are finite and the diagonal positive.
fn is_symmetric(block: &Csr, interior: usize) -> bool {
    (0..block.rows()).all(|row| {
        let (columns, values) = block.row(row);
        let is_mirrored = columns.iter().zip(values).all(|(&column, &value)| {
            let column = column as usize;
            row >= interior && column >= interior
                || column == row
                || value.is_finite() && block.get(column, row) == value
        });
        is_mirrored
            && (row >= interior || block.get(row, row) > 0.0 && block.get(row, row).is_finite())
    })
}

/// The block by columns, with a diagonal of its own for the border.
struct Augmented {
    offsets: Vec<u64>,
    rows: Vec<u64>,
    values: Vec<f64>,
    diagonal: Vec<f64>,
    border_diagonal: Vec<f64>,
}

impl Augmented {
    fn new(block: &Csr, interior: usize) -> Self {
        let n = block.rows();
        let mut new = Self {
            offsets: vec![0],
            rows: Vec::with_capacity(block.stored() + n),
            values: Vec::with_capacity(block.stored() + n),
            diagonal: Vec::with_capacity(n),
            border_diagonal: Vec::with_capacity(n - interior),
        };
        for row in 0..n {
            let (columns, values) = block.row(row);
            let kept = match row < interior {
                true => columns.len(),
                false => columns.partition_point(|&column| (column as usize) < interior),
            };
            new.rows
                .extend(columns[..kept].iter().map(|&column| u64::from(column)));
            new.values.extend_from_slice(&values[..kept]);
            let diagonal = if row < interior {
                block.get(row, row)
            } else {
                let couplings: f64 = values[..kept].iter().map(|value| value.abs()).sum();
                // A border that couples to nothing has any positive diagonal.
                let diagonal = if couplings > 0.0 {
                    2.0 * couplings
                } else {
                    1.0
                };
                new.rows.push(row as u64);
                new.values.push(diagonal);
                new.border_diagonal.push(diagonal);
                diagonal
            };
            new.diagonal.push(diagonal);
            new.offsets.push(new.rows.len() as u64);
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::super::lu::GENEROUS;
    use super::super::partial::PartialLu;
    use super::*;
    use proptest::prelude::*;

    /// Unknowns joined by conductances, some of them to ground.
    fn network(n: u32, conductances: &[(u32, u32, f64)]) -> Csr {
        let mut triplets = Vec::new();
        for &(a, b, siemens) in conductances.iter().filter(|(a, b, _)| *a < n && *b < n) {
            triplets.push((a, a, siemens));
            if a != b {
                triplets.extend([(b, b, siemens), (a, b, -siemens), (b, a, -siemens)]);
            }
        }
        triplets.extend((0..n).map(|row| (row, row, 0.1)));
        Csr::from_triplets(n as usize, n as usize, &triplets).unwrap()
    }

    /// Blocks that are not symmetric, or not positive definite, are left to others.
    #[test]
    fn other_blocks_are_refused() {
        for triplets in [
            &[(0, 0, 1.0), (0, 1, 0.5), (1, 0, 0.4), (1, 1, 1.0)][..],
            &[(0, 0, 1.0), (0, 1, 0.5), (1, 1, 1.0)],
            &[(0, 0, 1.0), (0, 1, 2.0), (1, 0, 2.0), (1, 1, 1.0)],
            &[(0, 0, 1.0), (0, 1, -1.0), (1, 0, -1.0), (1, 1, 1.0)],
            &[(0, 0, -1.0), (1, 1, 1.0)],
            &[(0, 1, 1.0), (1, 0, 1.0)],
            &[(0, 0, f64::INFINITY), (1, 1, 1.0)],
            &[(0, 0, f64::NAN), (1, 1, 1.0)],
        ] {
            let block = Csr::from_triplets(2, 2, triplets).unwrap();
            assert!(
                PartialCholesky::new(&block, 2, GENEROUS).unwrap().is_none(),
                "{triplets:?}"
            );
        }
        let block = network(30, &[(0, 1, 1.0), (1, 2, 1.0)]);
        let limit = FillLimit {
            entries: 10,
            multiplications: 1e9,
        };
        assert!(matches!(
            PartialCholesky::new(&block, 30, limit),
            Err(LuError::Fill { .. })
        ));
    }

    proptest! {
        /// Factors, Schur complement and solutions are those of the general elimination.
        #[test]
        fn agrees_with_elimination(
            n in 1u32..40,
            interior in 1usize..40,
            conductances in prop::collection::vec((0u32..40, 0u32..40, 0.01f64..100.0), 0..120),
        ) {
            let interior = interior.min(n as usize);
            let block = network(n, &conductances);
            // The diagonal between unknowns of the border is not read: the general elimination gets none.
            let kept: Vec<_> = (0..n).flat_map(|row| {
                let (columns, values) = block.row(row as usize);
                columns.iter().zip(values).filter(|(column, _)| (row as usize) < interior || (**column as usize) < interior)
                    .map(|(&column, &value)| (row, column, value)).collect::<Vec<_>>()
            }).collect();
            let block = Csr::from_triplets(n as usize, n as usize, &kept).unwrap();
            let (ours, schur) = PartialCholesky::new(&block, interior, GENEROUS).unwrap().expect("it is positive definite");
            let (lu, expected) = PartialLu::new(&block, interior, GENEROUS).unwrap();
            prop_assert!(expected.delayed.is_empty());
            let scale = block.values().iter().fold(1.0f64, |most, value| most.max(value.abs()));
            for (a, b) in schur.iter().zip(&expected.values) {
                prop_assert!((a - b).abs() < 1e-11 * scale, "{} {}", a, b);
            }
            let b: Vec<f64> = (0..n).map(|row| f64::from(row % 7) - 3.0).collect();
            let (mut y, mut z) = (ours.forward(&b), lu.forward(&b));
            for place in interior..n as usize {
                prop_assert!((y[place] - z[place]).abs() < 1e-9 * scale);
                (y[place], z[place]) = (place as f64, place as f64);
            }
            let (y, z) = (ours.backward(y), lu.backward(z));
            for (a, b) in y.iter().zip(&z) {
                prop_assert!((a - b).abs() < 1e-8 * b.abs().max(scale), "{} {}", a, b);
            }
        }
    }
}
