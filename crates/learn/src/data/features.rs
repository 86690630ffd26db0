//! The rows that a model learns from: dense or sparse, row after row.

use std::ops::Range;

/// Most columns of data: indices and messages stay small, and a corrupt index takes no memory.
pub const COLUMNS_MAX: usize = 1 << 24;

/// A matrix with a row for each sample.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Features {
    /// All values, row after row.
    Dense {
        /// Values of a row.
        columns: usize,
        /// `rows × columns` values.
        values: Vec<f64>,
    },
    /// The values that are not zero.
    Sparse {
        /// Values of a row, with zeros.
        columns: usize,
        /// Where each row starts in `indices` and `values`, and where the last one ends: `rows + 1` places.
        starts: Vec<usize>,
        /// Column of each value, growing within a row.
        indices: Vec<u32>,
        /// The values.
        values: Vec<f64>,
    },
}

/// A row: all values, or columns and values of those that are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Row<'a> {
    Dense(&'a [f64]),
    Sparse(&'a [u32], &'a [f64]),
}

impl Features {
    /// Without rows, in the same form as `self`.
    pub fn empty_like(&self) -> Self {
        match self {
            Self::Dense { columns, .. } => Self::Dense {
                columns: *columns,
                values: Vec::new(),
            },
            Self::Sparse { columns, .. } => Self::Sparse {
                columns: *columns,
                starts: vec![0],
                indices: Vec::new(),
                values: Vec::new(),
            },
        }
    }

    /// Whether all values are stored.
    pub fn is_dense(&self) -> bool {
        matches!(self, Self::Dense { .. })
    }

    /// Number of samples.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense { columns, values } => values.len() / (*columns).max(1),
            Self::Sparse { starts, .. } => starts.len().saturating_sub(1),
        }
    }

    /// Number of features.
    pub fn columns(&self) -> usize {
        match self {
            Self::Dense { columns, .. } | Self::Sparse { columns, .. } => *columns,
        }
    }

    /// Values that are stored.
    pub fn stored(&self) -> usize {
        match self {
            Self::Dense { values, .. } | Self::Sparse { values, .. } => values.len(),
        }
    }

    /// A row as it is stored.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> Row<'_> {
        match self {
            Self::Dense { columns, values } => {
                Row::Dense(&values[row * columns..(row + 1) * columns])
            }
            Self::Sparse {
                starts,
                indices,
                values,
                ..
            } => {
                let range = starts[row]..starts[row + 1];
                Row::Sparse(&indices[range.clone()], &values[range])
            }
        }
    }

    /// Σ x_j w_j of a row.
    #[inline]
    pub fn dot(&self, row: usize, weights: &[f64]) -> f64 {
        match self.row(row) {
            Row::Dense(x) => dot(x, weights),
            Row::Sparse(indices, values) => {
                let pairs = indices.iter().zip(values);
                pairs.map(|(j, x)| x * weights[*j as usize]).sum()
            }
        }
    }

    /// `out += factor · x` for a row x.
    #[inline]
    pub fn add_scaled(&self, row: usize, factor: f64, out: &mut [f64]) {
        match self.row(row) {
            Row::Dense(x) => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out += factor * x;
                }
            }
            Row::Sparse(..) => self.for_each(row, |j, x| out[j] += factor * x),
        }
    }

    /// Calls `visit` with the column and value of each stored value of a row.
    #[inline]
    pub fn for_each(&self, row: usize, mut visit: impl FnMut(usize, f64)) {
        match self.row(row) {
            Row::Dense(x) => x.iter().enumerate().for_each(|(j, x)| visit(j, *x)),
            Row::Sparse(indices, values) => {
                let pairs = indices.iter().zip(values);
                pairs.for_each(|(j, x)| visit(*j as usize, *x));
            }
        }
    }

    /// Calls `visit` with Σ x_j w_j of each of some rows.
    #[inline]
    pub fn dots(&self, rows: Range<usize>, weights: &[f64], mut visit: impl FnMut(f64)) {
        match self {
            Self::Dense { columns, values } => {
                let values = &values[rows.start * columns..rows.end * columns];
                if let [weight] = weights {
                    return values.iter().for_each(|x| visit(weight * x));
                }
                let rows = values.chunks_exact(*columns);
                rows.for_each(|x| visit(dot(x, weights)));
            }
            Self::Sparse { .. } => rows.for_each(|row| visit(self.dot(row, weights))),
        }
    }

    /// `out += factor · Σ factors[i] · x_i` of some rows.
    #[inline]
    pub fn add_rows(&self, rows: Range<usize>, factor: f64, factors: &[f64], out: &mut [f64]) {
        match self {
            Self::Dense { columns, values } => {
                let values = &values[rows.start * columns..rows.end * columns];
                if let [out] = out {
                    let products = values.iter().zip(factors).map(|(x, own)| x * own);
                    *out += factor * products.sum::<f64>();
                    return;
                }
                for (x, own) in values.chunks_exact(*columns).zip(factors) {
                    let own = factor * own;
                    out.iter_mut().zip(x).for_each(|(out, x)| *out += own * x);
                }
            }
            Self::Sparse { .. } => {
                for (row, own) in rows.zip(factors).filter(|(_, own)| **own != 0.0) {
                    self.add_scaled(row, factor * own, out);
                }
            }
        }
    }

    /// Appends a row of `other`, which has the same form.
    pub fn push_row(&mut self, other: &Self, row: usize) {
        match (self, other.row(row)) {
            (Self::Dense { values, .. }, Row::Dense(x)) => values.extend_from_slice(x),
            (
                Self::Sparse {
                    starts,
                    indices,
                    values,
                    ..
                },
                Row::Sparse(columns, x),
            ) => {
                indices.extend_from_slice(columns);
                values.extend_from_slice(x);
                starts.push(values.len());
            }
            _ => unreachable!("rows of one matrix have one form"),
        }
    }

    /// Keeps the first rows.
    pub fn truncate(&mut self, rows: usize) {
        match self {
            Self::Dense { columns, values } => values.truncate(rows * *columns),
            Self::Sparse {
                starts,
                indices,
                values,
                ..
            } => {
                starts.truncate(rows + 1);
                let stored = starts.last().copied().unwrap_or(0);
                indices.truncate(stored);
                values.truncate(stored);
            }
        }
    }

    /// Exchanges two rows of dense data.
    ///
    /// # Panics
    /// If the data are sparse.
    pub fn swap(&mut self, a: usize, b: usize) {
        let Self::Dense { columns, values } = self else {
            panic!("rows of sparse data have other lengths");
        };
        let (first, second) = (a.min(b), a.max(b));
        if first < second {
            let (before, after) = values.split_at_mut(second * *columns);
            before[first * *columns..(first + 1) * *columns]
                .swap_with_slice(&mut after[..*columns]);
        }
    }

    /// The rows in this order.
    pub fn in_order(&self, order: &[usize]) -> Self {
        let mut sorted = self.empty_like();
        order.iter().for_each(|row| sorted.push_row(self, *row));
        sorted
    }

    /// Applies `change` to each stored value, by column.
    pub fn change(&mut self, mut change: impl FnMut(usize, f64) -> f64) {
        match self {
            Self::Dense { columns, values } => {
                for row in values.chunks_exact_mut((*columns).max(1)) {
                    for (j, x) in row.iter_mut().enumerate() {
                        *x = change(j, *x);
                    }
                }
            }
            Self::Sparse {
                indices, values, ..
            } => {
                for (j, x) in indices.iter().zip(values) {
                    *x = change(*j as usize, *x);
                }
            }
        }
    }

    /// Whether the parts fit together, for data that came from outside of this process.
    pub fn is_sound(&self) -> bool {
        match self {
            Self::Dense { columns, values } => {
                *columns > 0
                    && values.len().is_multiple_of(*columns)
                    && values.iter().all(|x| x.is_finite())
            }
            Self::Sparse {
                columns,
                starts,
                indices,
                values,
            } => {
                *columns > 0
                    && starts.first() == Some(&0)
                    && starts.last() == Some(&values.len())
                    && starts.is_sorted()
                    && indices.len() == values.len()
                    && indices.iter().all(|j| (*j as usize) < *columns)
                    && values.iter().all(|x| x.is_finite())
            }
        }
    }
}

/// Σ a_j b_j, in four sums so that the processor may work on them at a time.
#[inline]
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a_fours, a_rest) = a.as_chunks::<4>();
    let (b_fours, b_rest) = b.as_chunks::<4>();
    let mut sums = [0.0; 4];
    for (a, b) in a_fours.iter().zip(b_fours) {
        for lane in 0..4 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both forms give the same products, sums and rows.
    #[test]
    fn forms_agree() {
        let dense = Features::Dense {
            columns: 5,
            values: vec![1.0, 0.0, 2.0, 0.0, -1.0, 0.0, 3.0, 0.0, 0.0, 0.5],
        };
        let sparse = Features::Sparse {
            columns: 5,
            starts: vec![0, 3, 5],
            indices: vec![0, 2, 4, 1, 4],
            values: vec![1.0, 2.0, -1.0, 3.0, 0.5],
        };
        assert!(dense.is_sound() && sparse.is_sound());
        let weights = [1.0, -2.0, 0.5, 9.0, 4.0];
        for row in 0..2 {
            assert_eq!(dense.dot(row, &weights), sparse.dot(row, &weights));
            let (mut a, mut b) = ([0.0; 5], [0.0; 5]);
            dense.add_scaled(row, 2.0, &mut a);
            sparse.add_scaled(row, 2.0, &mut b);
            assert_eq!(a, b);
        }
        assert_eq!(sparse.in_order(&[1, 0]).dot(0, &weights), -4.0);
        assert_eq!(dense.in_order(&[1, 0]).dot(1, &weights), -2.0);
    }

    /// Parts that do not fit together are noticed.
    #[test]
    fn unsound_parts_are_noticed() {
        let wide = Features::Sparse {
            columns: 2,
            starts: vec![0, 1],
            indices: vec![2],
            values: vec![1.0],
        };
        let ragged = Features::Dense {
            columns: 2,
            values: vec![1.0; 3],
        };
        assert!(!wide.is_sound() && !ragged.is_sound());
    }
}
