//! Compressed sparse rows: offsets, ascending 32-bit column indices, values.
//!
//! Invariant: `offsets` has one entry per row plus one and never falls; within a row columns rise strictly and are below `columns`. Users of a
//! [`Csr`] may index with its numbers without further checks.

use std::collections::TryReserveError;
use std::ops::Range;

/// Why parts do not make a matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StructureError {
    /// An array is too long or too short.
    #[error("{found} {what}, but {expected} are needed")]
    WrongCount {
        /// Which array.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that would fit.
        expected: usize,
    },
    /// Row offsets fall or do not end at the number of entries.
    #[error("the offsets of row {row} do not rise from 0 to the number of entries")]
    Offsets {
        /// 0-based row.
        row: usize,
    },
    /// A column is out of range, or the columns of a row do not rise strictly.
    #[error("row {row} has column {column} out of order or beyond {columns} columns")]
    Column {
        /// 0-based row.
        row: usize,
        /// 0-based column.
        column: usize,
        /// Columns of the matrix.
        columns: usize,
    },
    /// More rows or columns than a 32-bit index reaches.
    #[error("{rows} x {columns} is beyond the limit of {limit} rows and columns")]
    TooLarge {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        columns: usize,
        /// Most that is accepted.
        limit: usize,
    },
}

/// Most rows and columns of a sparse matrix: column indices are kept in 32 bits.
pub(super) const INDEX_LIMIT: usize = u32::MAX as usize;

/// A matrix, or some rows of one, in compressed sparse rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Csr {
    columns: usize,
    offsets: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
}

impl Csr {
    /// Takes the three arrays after checking them. Rows = `offsets.len() - 1`.
    pub fn new(
        columns: usize,
        offsets: Vec<usize>,
        indices: Vec<u32>,
        values: Vec<f64>,
    ) -> Result<Self, StructureError> {
        let rows = offsets.len().saturating_sub(1);
        check_extent(rows, columns)?;
        if offsets.is_empty() || indices.len() != values.len() {
            return Err(StructureError::WrongCount {
                what: "column indices",
                found: indices.len(),
                expected: values.len(),
            });
        }
        if offsets[0] != 0 || offsets[rows] != values.len() {
            return Err(StructureError::Offsets { row: rows });
        }
        if let Some(row) = (0..rows).find(|&row| offsets[row] > offsets[row + 1]) {
            return Err(StructureError::Offsets { row });
        }
        for row in 0..rows {
            let mut least = 0usize;
            for &column in &indices[offsets[row]..offsets[row + 1]] {
                let column = column as usize;
                if column < least || column >= columns {
                    return Err(StructureError::Column {
                        row,
                        column,
                        columns,
                    });
                }
                least = column + 1;
            }
        }
        Ok(Self {
            columns,
            offsets,
            indices,
            values,
        })
    }

    /// Sorts `(row, column, value)` triplets into rows; repeated positions are summed.
    pub fn from_triplets(
        rows: usize,
        columns: usize,
        triplets: &[(u32, u32, f64)],
    ) -> Result<Self, StructureError> {
        check_extent(rows, columns)?;
        let mut starts = vec![0usize; rows + 1];
        for &(row, column, _) in triplets {
            let (row, column) = (row as usize, column as usize);
            if row >= rows || column >= columns {
                return Err(StructureError::Column {
                    row,
                    column,
                    columns,
                });
            }
            starts[row + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut fill = starts.clone();
        let mut entries = vec![(0u32, 0.0f64); triplets.len()];
        for &(row, column, value) in triplets {
            let slot = &mut fill[row as usize];
            entries[*slot] = (column, value);
            *slot += 1;
        }
        let mut offsets = Vec::with_capacity(rows + 1);
        let mut indices: Vec<u32> = Vec::with_capacity(triplets.len());
        let mut values: Vec<f64> = Vec::with_capacity(triplets.len());
        offsets.push(0);
        for row in 0..rows {
            let entries = &mut entries[starts[row]..starts[row + 1]];
            // A stable sort: repeated positions are summed in the order of the file.
            entries.sort_by_key(|&(column, _)| column);
            let first = values.len();
            for &(column, value) in entries.iter() {
                if values.len() > first && indices[indices.len() - 1] == column {
                    *values.last_mut().expect("the row has an entry") += value;
                } else {
                    indices.push(column);
                    values.push(value);
                }
            }
            offsets.push(values.len());
        }
        Ok(Self {
            columns,
            offsets,
            indices,
            values,
        })
    }

    /// Makes a matrix of `rows`: `fill` appends the columns of each, which rise, and its values. Panics if they do not rise. `stored`: entries to make
    /// room for; there may be more.
    pub fn by_rows<R>(
        columns: usize,
        stored: usize,
        rows: impl IntoIterator<Item = R>,
        mut fill: impl FnMut(R, &mut Vec<u32>, &mut Vec<f64>),
    ) -> Self {
        let (mut offsets, mut indices) = (vec![0], Vec::with_capacity(stored));
        let mut values = Vec::with_capacity(stored);
        for row in rows {
            fill(row, &mut indices, &mut values);
            offsets.push(values.len());
        }
        Self::new(columns, offsets, indices, values).expect("columns rise within each row")
    }

    /// Rows held.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Columns of the matrix.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Stored entries.
    pub fn stored(&self) -> usize {
        self.values.len()
    }

    /// Where each row begins in `indices` and `values`; one more than rows.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Column of each entry, row after row.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Value of each entry, row after row.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Columns and values of `row`.
    pub fn row(&self, row: usize) -> (&[u32], &[f64]) {
        let range = self.offsets[row]..self.offsets[row + 1];
        (&self.indices[range.clone()], &self.values[range])
    }

    /// The same, of the entries in some columns.
    pub(crate) fn row_within(&self, row: usize, columns: &Range<usize>) -> (&[u32], &[f64]) {
        let (stored, values) = self.row(row);
        let place = |column: usize| stored.partition_point(|&stored| (stored as usize) < column);
        let kept = place(columns.start)..place(columns.end);
        (&stored[kept.clone()], &values[kept])
    }

    /// The entries in some rows and columns, both counted from the first of them.
    pub(crate) fn part(&self, rows: Range<usize>, columns: &Range<usize>) -> Self {
        let stored = self.offsets[rows.end] - self.offsets[rows.start];
        Self::by_rows(columns.len(), stored, rows, |row, indices, values| {
            let (kept, entries) = self.row_within(row, columns);
            indices.extend(kept.iter().map(|column| column - columns.start as u32));
            values.extend_from_slice(entries);
        })
    }

    /// The entry at (`row`, `column`), 0.0 where none is stored.
    pub fn get(&self, row: usize, column: usize) -> f64 {
        /// Rows of no more entries are walked through, which takes less time than to guess in them.
        const FEW: usize = 16;
        let (columns, values) = self.row(row);
        let Ok(column) = u32::try_from(column) else {
            return 0.0;
        };
        let place = match columns.len() {
            0..=FEW => columns.iter().position(|&stored| stored == column),
            _ => columns.binary_search(&column).ok(),
        };
        place.map_or(0.0, |place| values[place])
    }

    /// Whether it is its own transpose. One pass: row after row, each entry above the diagonal meets one below it, of which those of a row are met in their
    /// order.
    pub(crate) fn is_symmetric(&self) -> bool {
        let n = self.rows();
        if n != self.columns {
            return false;
        }
        // The first entry of each row that was not met.
        let mut unmet = self.offsets[..n].to_vec();
        for row in 0..n {
            let mut start = unmet[row];
            if !self.pass_zeros(&mut start, row, row) {
                return false;
            }
            for at in start..self.offsets[row + 1] {
                let (column, value) = (self.indices[at] as usize, self.values[at]);
                if column == row || value == 0.0 {
                    continue;
                }
                let other = &mut unmet[column];
                let meets = self.pass_zeros(other, column, row)
                    && *other < self.offsets[column + 1]
                    && self.indices[*other] as usize == row
                    && self.values[*other] == value;
                if !meets {
                    return false;
                }
                *other += 1;
            }
        }
        true
    }

    /// Moves `at`, a place in `row`, behind the entries left of `column`; false if one of them is not zero.
    fn pass_zeros(&self, at: &mut usize, row: usize, column: usize) -> bool {
        while *at < self.offsets[row + 1] && (self.indices[*at] as usize) < column {
            if self.values[*at] != 0.0 {
                return false;
            }
            *at += 1;
        }
        true
    }

    /// Offsets, indices and values.
    pub(crate) fn into_parts(self) -> (Vec<usize>, Vec<u32>, Vec<f64>) {
        (self.offsets, self.indices, self.values)
    }

    /// The entries of `rows`, row by row: for loops over many short rows.
    #[inline(always)]
    pub(crate) fn rows_in(&self, rows: Range<usize>) -> impl Iterator<Item = (&[u32], &[f64])> {
        let mut start = self.offsets[rows.start];
        let ends = self.offsets[rows.start + 1..=rows.end].iter();
        ends.map(move |&end| {
            let entries = start..end;
            start = end;
            (&self.indices[entries.clone()], &self.values[entries])
        })
    }

    /// `out` = `rows` · x.
    pub(crate) fn multiply(&self, rows: Range<usize>, x: &[f64], out: &mut [f64]) {
        assert_eq!(rows.len(), out.len(), "one result for each row");
        for (out, (columns, values)) in out.iter_mut().zip(self.rows_in(rows)) {
            *out = crate::local::kernels::sparse_dot(columns, values, x);
        }
    }

    /// `row` · x.
    pub fn row_dot(&self, row: usize, x: &[f64]) -> f64 {
        let (columns, values) = self.row(row);
        crate::local::kernels::sparse_dot(columns, values, x)
    }

    /// Bytes of the three arrays.
    pub fn bytes(&self) -> usize {
        size_of_val(self.offsets.as_slice())
            + size_of_val(self.indices.as_slice())
            + size_of_val(self.values.as_slice())
    }

    /// Takes memory for `rows` rows in all, and for so many more entries.
    pub(crate) fn try_reserve_exact(
        &mut self,
        rows: usize,
        entries: usize,
    ) -> Result<(), TryReserveError> {
        let more = (rows + 1).saturating_sub(self.offsets.len());
        self.offsets.try_reserve_exact(more)?;
        self.indices.try_reserve_exact(entries)?;
        self.values.try_reserve_exact(entries)
    }

    /// Puts the rows of `more`, of as many columns, behind these.
    pub(crate) fn append(&mut self, more: &Self) {
        assert_eq!(self.columns, more.columns, "rows of one width");
        let stored = self.values.len();
        self.offsets
            .extend(more.offsets[1..].iter().map(|offset| stored + offset));
        self.indices.extend_from_slice(&more.indices);
        self.values.extend_from_slice(&more.values);
    }

    /// Multiplies each entry by the factor of its column.
    pub(super) fn scale_columns(&mut self, factors: &[f64]) {
        for (value, &column) in self.values.iter_mut().zip(&self.indices) {
            *value *= factors[column as usize];
        }
    }

    /// Multiplies the first rows, or all, by `factors`.
    pub(crate) fn scale_rows(&mut self, factors: &[f64]) {
        for (ends, factor) in self.offsets.windows(2).zip(factors) {
            for value in &mut self.values[ends[0]..ends[1]] {
                *value *= factor;
            }
        }
    }

    /// Copies rows `rows`; columns keep their numbers.
    pub fn cut(&self, rows: Range<usize>) -> Self {
        let entries = self.offsets[rows.start]..self.offsets[rows.end];
        Self {
            columns: self.columns,
            offsets: self.offsets[rows.start..=rows.end]
                .iter()
                .map(|offset| offset - entries.start)
                .collect(),
            indices: self.indices[entries.clone()].to_vec(),
            values: self.values[entries].to_vec(),
        }
    }
}

fn check_extent(rows: usize, columns: usize) -> Result<(), StructureError> {
    if rows > INDEX_LIMIT || columns > INDEX_LIMIT {
        return Err(StructureError::TooLarge {
            rows,
            columns,
            limit: INDEX_LIMIT,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unordered triplets with a repeated position become ordered rows with the sum.
    #[test]
    fn triplets_are_sorted_and_repeats_summed() {
        let csr = Csr::from_triplets(3, 3, &[(2, 1, 5.0), (0, 2, 1.0), (0, 0, 2.0), (2, 1, -1.5)])
            .unwrap();
        assert_eq!(csr.offsets(), [0, 2, 2, 3]);
        assert_eq!(csr.indices(), [0, 2, 1]);
        assert_eq!(csr.values(), [2.0, 1.0, 3.5]);
        assert_eq!(csr.get(2, 1), 3.5);
        assert_eq!(csr.get(1, 1), 0.0);
    }

    /// As by looking each entry's mirror image up: in symmetric matrices with an entry changed, left out or zero, and in long rows.
    #[test]
    fn symmetry_agrees_with_the_oracle() {
        let mut random = fastrand::Rng::with_seed(4);
        let mut found = [0; 2];
        for round in 0..3000 {
            let n = random.usize(1..if round % 10 == 0 { 60 } else { 7 });
            let mut triplets = Vec::new();
            for _ in 0..random.usize(..=3 * n) {
                let (row, column) = (random.u32(..n as u32), random.u32(..n as u32));
                let value = f64::from(random.i32(-1..2));
                triplets.push((row, column, value));
                if row != column && random.u8(..16) > 0 {
                    triplets.push((column, row, value));
                }
            }
            if random.bool() {
                triplets.push((random.u32(..n as u32), random.u32(..n as u32), 0.0));
            }
            let csr = Csr::from_triplets(n, n, &triplets).unwrap();
            let mut entry = vec![vec![0.0; n]; n];
            for (row, column, value) in triplets {
                entry[row as usize][column as usize] += value;
            }
            let all = |test: &dyn Fn(usize, usize) -> bool| (0..n * n).all(|k| test(k / n, k % n));
            assert!(all(
                &|row, column| csr.get(row, column) == entry[row][column]
            ));
            let expected = all(&|row, column| entry[row][column] == entry[column][row]);
            assert_eq!(csr.is_symmetric(), expected, "{csr:?}");
            found[usize::from(expected)] += 1;
        }
        assert!(found.iter().all(|&count| count > 300), "{found:?}");
    }

    /// Arrays that would let a row reach outside itself or the vector are refused.
    #[test]
    fn broken_arrays_are_refused() {
        let refused = |offsets: &[usize], indices: &[u32]| {
            Csr::new(
                2,
                offsets.to_vec(),
                indices.to_vec(),
                vec![1.0; indices.len()],
            )
            .is_err()
        };
        assert!(refused(&[], &[]));
        assert!(refused(&[0, 2, 1], &[0, 1]));
        assert!(refused(&[0, 1, 3], &[0, 1]));
        assert!(refused(&[0, 1, 2], &[0, 2]));
        assert!(refused(&[0, 2, 2], &[1, 1]));
        assert!(refused(&[0, 2, 2], &[1, 0]));
        assert!(!refused(&[0, 2, 2], &[0, 1]));
    }

    /// A cut keeps the numbers of columns and rebases the offsets.
    #[test]
    fn cut_keeps_columns() {
        let csr = Csr::from_triplets(3, 3, &[(0, 0, 1.0), (1, 2, 2.0), (2, 0, 3.0), (2, 2, 4.0)])
            .unwrap();
        let cut = csr.cut(1..3);
        assert_eq!(cut.rows(), 2);
        assert_eq!(cut.row(0), (&[2u32][..], &[2.0][..]));
        assert_eq!(cut.row(1), (&[0u32, 2][..], &[3.0, 4.0][..]));
    }
}
