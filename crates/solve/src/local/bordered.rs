//! Elimination of a symmetric positive definite interior whose border may be unsymmetric: as `cholesky`, and a few vectors more.
//!
//! The circuits' solver calls it for each part, and takes [`PartialLu`] where it refuses. Controlled sources stand in the border there: their rows
//! are not their columns. For such an unknown u of the border, with row r and column c in the interior, L⁻¹ r and L⁻¹ c are kept, which are sparse:
//! with them its entries of the Schur complement are products of vectors, as are its parts of both substitutions.
//!
//! Invariant: positions of the border are those of the block; only the inner factors leave the unsymmetric ones out.

use super::cholesky::PartialCholesky;
use super::lu::{FillLimit, LuError, transpose};
use crate::system::Csr;

#[cfg(doc)]
use super::partial::PartialLu;

/// Factors of a symmetric interior with any border.
#[derive(Debug)]
pub struct BorderedCholesky {
    inner: PartialCholesky,
    interior: usize,
    /// Positions in the border whose rows in the interior are their columns.
    symmetric: Vec<usize>,
    others: Vec<Unsymmetric>,
}

/// An unknown of the border whose row is not its column.
#[derive(Debug)]
struct Unsymmetric {
    /// Its position in the border.
    position: usize,
    row: Reduced,
    column: Reduced,
}

/// A row or column in the interior, after forward substitution.
#[derive(Debug)]
struct Reduced {
    /// L⁻¹ of it: place and value.
    entries: Vec<(u32, f64)>,
    /// Its entries of the Schur complement with the symmetric border.
    border: Vec<f64>,
}

impl Reduced {
    fn dot(&self, y: &[f64]) -> f64 {
        let products = self
            .entries
            .iter()
            .map(|&(place, value)| value * y[place as usize]);
        products.sum()
    }
}

impl BorderedCholesky {
    /// Eliminates rows and columns 0 to `interior` of a block, within `limit`; entries between unknowns of the border are not read. Gives the Schur
    /// complement's columns, too. `None`: the interior is not symmetric or not positive definite, or has a pivot that is rounding.
    pub fn new(
        block: &Csr,
        interior: usize,
        limit: FillLimit,
    ) -> Result<Option<(Self, Vec<f64>)>, LuError> {
        let transposed = transpose(block);
        let size = block.rows() - interior;
        let (symmetric, others): (Vec<usize>, Vec<usize>) = (0..size).partition(|position| {
            let row = interior + position;
            block.row_within(row, &(0..interior)) == transposed.row_within(row, &(0..interior))
        });
        let inner = if others.is_empty() {
            PartialCholesky::new(block, interior, limit)?
        } else {
            PartialCholesky::new(&without(block, interior, &symmetric), interior, limit)?
        };
        let Some((inner, inner_schur)) = inner else {
            return Ok(None);
        };
        let reduced = |matrix: &Csr, position: usize| {
            let mut b = vec![0.0; interior + symmetric.len()];
            let (columns, values) = matrix.row_within(interior + position, &(0..interior));
            for (&column, &value) in columns.iter().zip(values) {
                b[column as usize] = value;
            }
            let y = inner.forward(&b);
            let entries = (0..)
                .zip(&y[..interior])
                .filter(|(_, value)| **value != 0.0);
            Reduced {
                entries: entries.map(|(place, &value)| (place, value)).collect(),
                border: y[interior..].to_vec(),
            }
        };
        let mut kept = inner.entries();
        let mut unsymmetric = Vec::with_capacity(others.len());
        for position in others {
            let (row, column) = (reduced(block, position), reduced(&transposed, position));
            kept += row.entries.len() + column.entries.len();
            if kept > limit.entries {
                return Ok(None);
            }
            unsymmetric.push(Unsymmetric {
                position,
                row,
                column,
            });
        }
        let factors = Self {
            inner,
            interior,
            symmetric,
            others: unsymmetric,
        };
        let schur = factors.schur(&inner_schur, size);
        Ok(Some((factors, schur)))
    }

    /// The Schur complement of the whole border, from that of the symmetric one.
    fn schur(&self, inner: &[f64], size: usize) -> Vec<f64> {
        let mut schur = vec![0.0; size * size];
        let count = self.symmetric.len();
        for (place, &column) in self.symmetric.iter().enumerate() {
            for (value, &row) in inner[place * count..].iter().zip(&self.symmetric) {
                schur[column * size + row] = *value;
            }
        }
        let mut dense = vec![0.0; self.interior];
        for other in &self.others {
            for (place, &position) in self.symmetric.iter().enumerate() {
                schur[other.position * size + position] = other.column.border[place];
                schur[position * size + other.position] = other.row.border[place];
            }
            let column = &other.column.entries;
            column
                .iter()
                .for_each(|&(place, value)| dense[place as usize] = value);
            for row in &self.others {
                schur[other.position * size + row.position] = -row.row.dot(&dense);
            }
            column
                .iter()
                .for_each(|&(place, _)| dense[place as usize] = 0.0);
        }
        schur
    }

    /// Entries of all that is kept.
    pub fn entries(&self) -> usize {
        let others = self.others.iter();
        let others = others.map(|other| other.row.entries.len() + other.column.entries.len());
        self.inner.entries() + others.sum::<usize>()
    }

    /// As [`PartialLu::forward`]: what [`BorderedCholesky::backward`] needs, and behind the interior the right-hand side of the Schur complement.
    pub fn forward(&self, b: &[f64]) -> Vec<f64> {
        let (inner, border) = b.split_at(self.interior);
        let mut reordered = inner.to_vec();
        reordered.extend(self.symmetric.iter().map(|&position| border[position]));
        let mut y = self.inner.forward(&reordered);
        let symmetric = y.split_off(self.interior);
        let mut rest = border.to_vec();
        for (&position, value) in self.symmetric.iter().zip(symmetric) {
            rest[position] = value;
        }
        for other in &self.others {
            rest[other.position] -= other.row.dot(&y);
        }
        y.extend(rest);
        y
    }

    /// As [`PartialLu::backward`]: the solution of the whole block.
    pub fn backward(&self, mut y: Vec<f64>) -> Vec<f64> {
        let border = y.split_off(self.interior);
        for other in &self.others {
            let value = border[other.position];
            for &(place, entry) in &other.column.entries {
                y[place as usize] -= entry * value;
            }
        }
        y.extend(self.symmetric.iter().map(|&position| border[position]));
        let mut x = self.inner.backward(y);
        x.truncate(self.interior);
        x.extend(border);
        x
    }
}

/// The block without the border but for some positions.
fn without(block: &Csr, interior: usize, kept: &[usize]) -> Csr {
    let rows = (0..interior).chain(kept.iter().map(|position| interior + position));
    Csr::by_rows(
        interior + kept.len(),
        block.stored(),
        rows,
        |row, indices, values| {
            let (columns, entries) = block.row(row);
            for (&column, &entry) in columns.iter().zip(entries) {
                let place = match (column as usize).checked_sub(interior) {
                    None => column,
                    Some(position) => match kept.binary_search(&position) {
                        Ok(place) => (interior + place) as u32,
                        Err(_) => continue,
                    },
                };
                indices.push(place);
                values.push(entry);
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::lu::GENEROUS;
    use super::super::partial::PartialLu;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any border around conductances has the Schur complement and the substitutions of the general elimination.
        #[test]
        fn agrees_with_elimination(
            interior in 1u32..30,
            size in 1u32..10,
            conductances in prop::collection::vec((0u32..40, 0u32..40, 0.01f64..100.0), 0..120),
            sources in prop::collection::vec((0u32..10, 0u32..30, -5.0f64..5.0, any::<bool>()), 0..12),
        ) {
            let n = interior + size;
            let mut triplets: Vec<(u32, u32, f64)> = (0..interior).map(|row| (row, row, 0.1)).collect();
            for &(a, b, siemens) in conductances.iter().filter(|(a, b, _)| *a < n && *b < n && a != b) {
                for (from, to) in [(a, b), (b, a)] {
                    if from < interior {
                        triplets.push((from, from, siemens));
                    }
                    if from < interior || to < interior {
                        triplets.push((from, to, -siemens));
                    }
                }
            }
            for &(position, unknown, gain, is_row) in &sources {
                let (outer, inner) = (interior + position % size, unknown % interior);
                triplets.push(if is_row { (outer, inner, gain) } else { (inner, outer, gain) });
            }
            let block = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
            let interior = interior as usize;
            let (ours, schur) = BorderedCholesky::new(&block, interior, GENEROUS).unwrap().expect("the interior is positive definite");
            let (lu, expected) = PartialLu::new(&block, interior, GENEROUS).unwrap();
            prop_assume!(expected.delayed.is_empty());
            let scale = expected.values.iter().fold(100.0f64, |most, value| most.max(value.abs()));
            for (a, b) in schur.iter().zip(&expected.values) {
                prop_assert!((a - b).abs() < 1e-10 * scale, "{} {}", a, b);
            }
            let b: Vec<f64> = (0..n).map(|row| f64::from(row % 7) - 3.0).collect();
            let (mut y, mut z) = (ours.forward(&b), lu.forward(&b));
            for place in interior..n as usize {
                prop_assert!((y[place] - z[place]).abs() < 1e-9 * scale);
                (y[place], z[place]) = (place as f64, place as f64);
            }
            for (a, b) in ours.backward(y).iter().zip(&lu.backward(z)) {
                prop_assert!((a - b).abs() < 1e-8 * b.abs().max(scale), "{} {}", a, b);
            }
        }
    }
}
