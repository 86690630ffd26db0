//! The rows of one worker: the part of A and b that it needs.
//!
//! Cut from a whole [`System`] or put together from messages (`messages`); relaxed by `local::Sweeper`. Rows are named
//! by their number in the whole system everywhere.
//!
//! Invariant: `rows` is not empty and lies within `columns`; `values` and `rhs` have one row per element of `rows`;
//! every diagonal entry is stored and non-zero, every number finite.

use super::{Csr, Matrix, System, scaling};
use crate::local::kernels::{self, CarriedSum};
use std::ops::Range;

/// The entries of A in a block of rows.
#[derive(Debug, Clone, PartialEq)]
pub enum RowValues {
    /// All columns of each row, row-major.
    Dense(Vec<f64>),
    /// Compressed rows; row 0 is the first of the block, columns are those of the whole matrix.
    Sparse(Csr),
}

/// Contiguous rows of a system.
#[derive(Debug, Clone, PartialEq)]
pub struct RowBlock {
    /// Which rows of the whole system.
    pub rows: Range<usize>,
    /// Columns of A: the length of x.
    pub columns: usize,
    /// The entries.
    pub values: RowValues,
    /// b of these rows.
    pub rhs: Vec<f64>,
    /// Whether GMRES and LU first scale rows by their diagonal entries: the system was matched.
    pub scales_rows: bool,
}

impl RowBlock {
    /// Copies rows `rows` out of `system`. Panics unless `rows` is a non-empty range of its rows.
    pub fn cut(system: &System, rows: Range<usize>) -> Self {
        assert!(
            !rows.is_empty() && rows.end <= system.n(),
            "rows {rows:?} of {}",
            system.n()
        );
        let values = match &system.matrix {
            Matrix::Dense(dense) => RowValues::Dense(
                dense.values()[rows.start * dense.n()..rows.end * dense.n()].to_vec(),
            ),
            Matrix::Sparse(csr) => RowValues::Sparse(csr.cut(rows.clone())),
        };
        Self {
            columns: system.n(),
            values,
            rhs: system.rhs[rows.clone()].to_vec(),
            scales_rows: system.scaling.is_some(),
            rows,
        }
    }

    /// Turns a whole system into the block of one worker that owns all rows, without a copy.
    pub fn whole(system: System) -> Self {
        let columns = system.n();
        Self {
            rows: 0..columns,
            columns,
            values: match system.matrix {
                Matrix::Dense(dense) => RowValues::Dense(dense.into_values()),
                Matrix::Sparse(csr) => RowValues::Sparse(csr),
            },
            rhs: system.rhs,
            scales_rows: system.scaling.is_some(),
        }
    }

    /// Cuts a whole system into the blocks of `ranges`, which must cover its rows in order. Dense rows are split off
    /// from the end, so that never more than the largest block exists twice.
    pub fn split(system: System, ranges: &[Range<usize>]) -> Vec<Self> {
        let mut next = 0;
        for range in ranges {
            assert!(
                range.start == next && !range.is_empty(),
                "ranges must cover the rows in order"
            );
            next = range.end;
        }
        let columns = system.n();
        assert_eq!(next, columns, "ranges must cover the rows");
        let Matrix::Dense(dense) = system.matrix else {
            return ranges
                .iter()
                .map(|rows| Self::cut(&system, rows.clone()))
                .collect();
        };
        let mut values = dense.into_values();
        let mut blocks: Vec<Self> = Vec::with_capacity(ranges.len());
        for rows in ranges.iter().rev() {
            let own = if rows.start == 0 {
                std::mem::take(&mut values)
            } else {
                values.split_off(rows.start * columns)
            };
            values.shrink_to_fit();
            blocks.push(Self {
                columns,
                values: RowValues::Dense(own),
                rhs: system.rhs[rows.clone()].to_vec(),
                scales_rows: system.scaling.is_some(),
                rows: rows.clone(),
            });
        }
        blocks.reverse();
        blocks
    }

    /// Keeps the rows that are also in `rows`; `None`: there are none.
    pub fn narrowed(self, rows: &Range<usize>) -> Option<Self> {
        let kept = self.rows.start.max(rows.start)..self.rows.end.min(rows.end);
        if kept.is_empty() {
            return None;
        }
        if kept == self.rows {
            return Some(self);
        }
        let own = kept.start - self.rows.start..kept.end - self.rows.start;
        Some(Self {
            values: match self.values {
                RowValues::Dense(mut values) => {
                    values.truncate(own.end * self.columns);
                    values.drain(..own.start * self.columns);
                    RowValues::Dense(values)
                }
                RowValues::Sparse(csr) => RowValues::Sparse(csr.cut(own.clone())),
            },
            rhs: self.rhs[own].to_vec(),
            rows: kept,
            columns: self.columns,
            scales_rows: self.scales_rows,
        })
    }

    /// Puts blocks together whose rows follow one another. `None`: they do not, or are not of one kind and width.
    pub fn joined(blocks: Vec<Self>) -> Option<Self> {
        let mut blocks = blocks.into_iter();
        let mut whole = blocks.next()?;
        blocks.all(|block| whole.append(block)).then_some(whole)
    }

    /// Puts the rows of a block behind these. False: they do not follow them, or are not of one kind and width.
    pub fn append(&mut self, block: Self) -> bool {
        if block.rows.start != self.rows.end
            || block.columns != self.columns
            || block.scales_rows != self.scales_rows
        {
            return false;
        }
        match (&mut self.values, block.values) {
            (RowValues::Dense(values), RowValues::Dense(more)) => values.extend(more),
            (RowValues::Sparse(csr), RowValues::Sparse(more)) => csr.append(&more),
            _ => return false,
        }
        self.rhs.extend(block.rhs);
        self.rows.end = block.rows.end;
        true
    }

    /// Stored entries.
    pub fn stored(&self) -> usize {
        match &self.values {
            RowValues::Dense(values) => values.len(),
            RowValues::Sparse(csr) => csr.stored(),
        }
    }

    /// The diagonal entry of `row`.
    pub fn diagonal(&self, row: usize) -> f64 {
        let own = self.own(row);
        match &self.values {
            RowValues::Dense(values) => values[own * self.columns + row],
            RowValues::Sparse(csr) => csr.get(own, row),
        }
    }

    /// Scales of `rows`, where rows are to be scaled; otherwise none.
    pub(crate) fn row_scales(&self, rows: &Range<usize>) -> Vec<f64> {
        let scaled = rows.clone().filter(|_| self.scales_rows);
        scaled
            .map(|row| scaling::of_row(self.diagonal(row)))
            .collect()
    }

    /// `b − A x` of `rows` into `out`, rounded once per term. `x` is the whole vector.
    pub(crate) fn residuals(&self, rows: Range<usize>, x: &[f64], out: &mut [f64]) {
        let own = self.own(rows.start)..self.own(rows.start) + rows.len();
        match &self.values {
            RowValues::Dense(values) => {
                let values = &values[own.start * self.columns..own.end * self.columns];
                kernels::multiply(values, x, out);
            }
            RowValues::Sparse(csr) => csr.multiply(own.clone(), x, out),
        }
        for (out, b) in out.iter_mut().zip(&self.rhs[own]) {
            *out = b - *out;
        }
    }

    /// b − A x of some rows into `out`, for verification: the rounding errors of all products and sums are carried along, so that the result holds even
    /// where the residual is far below the last bit of A x. `own`: counted from the first row of the block. `x` is the whole vector.
    pub(crate) fn exact_residual(&self, own: Range<usize>, x: &[f64], out: &mut [f64]) {
        assert_eq!(x.len(), self.columns, "the residual needs the whole vector");
        match &self.values {
            RowValues::Dense(values) => {
                let values = &values[own.start * self.columns..own.end * self.columns];
                kernels::carried_residuals(&self.rhs[own], values, x, out);
            }
            RowValues::Sparse(csr) => {
                for (own, out) in own.zip(out) {
                    let (columns, values) = csr.row(own);
                    *out = kernels::carried_sparse_residual(self.rhs[own], columns, values, x);
                }
            }
        }
    }

    /// b − A x of a whole system into `out`, with carried rounding errors.
    pub(crate) fn residual_of(system: &System, x: &[f64], out: &mut [f64]) {
        match &system.matrix {
            Matrix::Dense(dense) => {
                kernels::carried_residuals(&system.rhs, dense.values(), x, out);
            }
            Matrix::Sparse(csr) => {
                for (row, (out, b)) in out.iter_mut().zip(&system.rhs).enumerate() {
                    let (columns, values) = csr.row(row);
                    *out = kernels::carried_sparse_residual(*b, columns, values, x);
                }
            }
        }
    }

    /// Σ (|b| + |A| |x|)² over some rows, counted from the first of the block. Times ε² this is the square of the residual that rounding alone leaves:
    /// no tolerance far below it can be reached. `x` is the whole vector.
    pub(crate) fn magnitude_sq(&self, rows: Range<usize>, x: &[f64]) -> f64 {
        let mut products = vec![0.0; rows.len()];
        match &self.values {
            RowValues::Dense(values) => {
                let values = &values[rows.start * self.columns..rows.end * self.columns];
                kernels::multiply_absolute(values, x, &mut products);
            }
            RowValues::Sparse(csr) => {
                for (own, product) in rows.clone().zip(&mut products) {
                    let (columns, values) = csr.row(own);
                    let terms = columns.iter().zip(values);
                    let terms = terms.map(|(&column, a)| (a * x[column as usize]).abs());
                    *product = terms.sum();
                }
            }
        }
        let mut squares = CarriedSum::default();
        for (product, rhs) in products.iter().zip(&self.rhs[rows]) {
            let magnitude = product + rhs.abs();
            squares.add(magnitude * magnitude);
        }
        squares.total()
    }

    /// Columns outside the own rows that some own row uses, ascending: the part of x this block reads from others.
    pub fn foreign_columns(&self) -> Vec<u32> {
        self.read_outside(&self.rows)
    }

    /// Columns outside of `rows`, some of the own rows, that one of them uses, ascending.
    pub(crate) fn read_outside(&self, rows: &Range<usize>) -> Vec<u32> {
        let foreign = |column: usize| !rows.contains(&column);
        let RowValues::Sparse(csr) = &self.values else {
            let columns = (0..self.columns).filter(|&column| foreign(column));
            return columns.map(|column| column as u32).collect();
        };
        let own = rows.start - self.rows.start..rows.end - self.rows.start;
        let mut used = vec![false; self.columns];
        for &column in &csr.indices()[csr.offsets()[own.start]..csr.offsets()[own.end]] {
            used[column as usize] = true;
        }
        let columns = (0..self.columns).filter(|&column| used[column] && foreign(column));
        columns.map(|column| column as u32).collect()
    }

    /// Position of `row` among the own rows.
    fn own(&self, row: usize) -> usize {
        assert!(
            self.rows.contains(&row),
            "row {row} is not one of {:?}",
            self.rows
        );
        row - self.rows.start
    }
}

#[cfg(test)]
impl RowBlock {
    /// Σ (b − A x)² over the own rows.
    pub(crate) fn residual_sq(&self, x: &[f64]) -> f64 {
        let mut residuals = vec![0.0; self.rhs.len()];
        self.exact_residual(0..self.rhs.len(), x, &mut residuals);
        kernels::sum_of_squares(&residuals)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dense;
    use super::*;

    fn both_kinds() -> [System; 2] {
        let values = [[4.0, -1.0, 0.0], [-1.0, 5.0, -2.0], [0.0, 3.0, 6.0]];
        let dense = Dense::new(3, values.concat()).unwrap();
        let mut triplets = Vec::new();
        for (row, line) in values.iter().enumerate() {
            for (column, &value) in line.iter().enumerate().filter(|entry| *entry.1 != 0.0) {
                triplets.push((row as u32, column as u32, value));
            }
        }
        let csr = Csr::from_triplets(3, 3, &triplets).unwrap();
        let rhs = vec![1.0, 2.0, 3.0];
        [Matrix::Dense(dense), Matrix::Sparse(csr)]
            .map(|matrix| System::new(matrix, Some(rhs.clone()), "test".into()).unwrap())
    }

    /// A cut block takes the row numbers of the whole system.
    #[test]
    fn a_cut_keeps_row_numbers() {
        for system in both_kinds() {
            let block = RowBlock::cut(&system, 1..3);
            assert_eq!([block.diagonal(1), block.diagonal(2)], [5.0, 6.0]);
            let x = [1.0, 2.0, 3.0];
            let mut residuals = [0.0; 2];
            block.residuals(1..3, &x, &mut residuals);
            assert_eq!(residuals, [2.0 - (-1.0 + 10.0 - 6.0), 3.0 - (6.0 + 18.0)]);
            assert_eq!(block.residual_sq(&x), 1.0 + 21.0 * 21.0);
            assert_eq!(
                block.magnitude_sq(0..2, &x),
                (2.0f64 + 17.0).powi(2) + (3.0f64 + 24.0).powi(2)
            );
            let parts = RowBlock::split(system.clone(), &[0..1, 1..3]);
            assert_eq!(parts, [RowBlock::cut(&system, 0..1), block]);
            assert_eq!(
                RowBlock::whole(system.clone()),
                RowBlock::cut(&system, 0..3)
            );
        }
    }

    /// Blocks that are cut and put together again are the same block.
    #[test]
    fn cuts_join() {
        for system in both_kinds() {
            let whole = RowBlock::whole(system);
            let part = |rows: Range<usize>| whole.clone().narrowed(&rows);
            let parts = vec![
                part(0..1).unwrap(),
                part(1..2).unwrap(),
                part(2..9).unwrap(),
            ];
            assert_eq!(RowBlock::joined(parts.clone()), Some(whole.clone()));
            assert_eq!(part(3..5), None);
            let gap = vec![parts[0].clone(), parts[2].clone()];
            assert_eq!(RowBlock::joined(gap), None);
            assert_eq!(RowBlock::joined(vec![]), None);
        }
    }

    /// A dense block reads every other element, a sparse one only those it has entries for.
    #[test]
    fn foreign_columns_are_those_read() {
        let [dense, sparse] = both_kinds();
        assert_eq!(RowBlock::cut(&dense, 0..1).foreign_columns(), [1, 2]);
        assert_eq!(RowBlock::cut(&sparse, 0..1).foreign_columns(), [1]);
    }
}
