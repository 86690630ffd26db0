//! The steps of sparse LU factorisations, of which `partial` makes factors.
//!
//! The order of unknowns is approximate minimum degree on the pattern of A + Aᵀ (`tsumuji-factor`); columns are eliminated left-looking, each by a sparse
//! triangular solve whose pattern is found first (Gilbert and Peierls, 1988). The diagonal is kept as pivot while it is at least [`PIVOT_THRESHOLD`] times the largest candidate, so that the M-matrices
//! of circuits and grids fill no more than the ordering predicts.
//!
//! Invariant: neither the predicted nor the real fill exceeds [`FillLimit`]; a block that would exceed it is refused before or while it is
//! factorised. Supernodes are left out: solves, not factorisation, are repeated, and a fill that needs supernodes is refused here anyway.

use crate::system::Csr;
use serde::{Deserialize, Serialize};
use tsumuji_factor::Ordering;

/// A diagonal pivot is kept while it is at least this part of the largest candidate.
const PIVOT_THRESHOLD: f64 = 0.1;
/// A pivot is at least this part of the largest entry in rows that cannot be pivots, so that L does not grow without bounds.
const BORDER_THRESHOLD: f64 = 1e-3;

/// Limits of a factorisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FillLimit {
    /// Most entries of L and U together.
    pub entries: usize,
    /// Most multiplications.
    pub multiplications: f64,
}

impl FillLimit {
    /// Refuses more entries, or more than `slack` times as many multiplications, of factors of `rows` rows.
    pub(super) fn check(
        self,
        rows: usize,
        (entries, multiplications): (f64, f64),
        slack: f64,
    ) -> Result<(), LuError> {
        if entries > self.entries as f64 || multiplications > slack * self.multiplications {
            return Err(LuError::Fill {
                rows,
                entries,
                multiplications,
            });
        }
        Ok(())
    }
}

/// More than the factorisations of tests take.
#[cfg(test)]
pub(super) const GENEROUS: FillLimit = FillLimit {
    entries: 1 << 24,
    multiplications: 1e9,
};

/// Why a block has no usable factors.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LuError {
    /// Too much fill.
    #[error(
        "the factors of a diagonal block of {rows} rows would hold {entries:.1e} entries and take \
         {multiplications:.1e} multiplications, beyond what pays"
    )]
    Fill {
        /// Rows of the block.
        rows: usize,
        /// Entries of L and U.
        entries: f64,
        /// Multiplications to make them.
        multiplications: f64,
    },
    /// There is no non-zero pivot. The column is 0-based within the block.
    #[error("the diagonal block is singular")]
    Singular {
        /// The column.
        column: usize,
    },
    /// The ordering could not be computed.
    #[error("no ordering for the diagonal block: {what}")]
    Ordering {
        /// The cause.
        what: String,
    },
}

#[derive(Debug, Default, Clone)]
pub(super) struct Columns {
    pub(super) offsets: Vec<usize>,
    pub(super) rows: Vec<u32>,
    pub(super) values: Vec<f64>,
}

impl Columns {
    /// No columns, with room for entries.
    pub(super) fn with_capacity(entries: usize) -> Self {
        Self {
            offsets: vec![0],
            rows: Vec::with_capacity(entries),
            values: Vec::with_capacity(entries),
        }
    }

    fn column(&self, k: usize) -> (&[u32], &[f64]) {
        let range = self.offsets[k]..self.offsets[k + 1];
        (&self.rows[range.clone()], &self.values[range])
    }

    /// Takes column k times `factor` off `y`.
    #[inline]
    pub(super) fn subtract(&self, k: usize, factor: f64, y: &mut [f64]) {
        if factor != 0.0 {
            let (rows, values) = self.column(k);
            for (&row, value) in rows.iter().zip(values) {
                y[row as usize] -= value * factor;
            }
        }
    }

    fn push(&mut self, row: u32, value: f64) {
        self.rows.push(row);
        self.values.push(value);
    }
}

pub(super) const NONE: u32 = u32::MAX;

/// State of a left-looking factorisation. Rows keep the block's numbers until the end.
pub(super) struct Elimination {
    pub(super) lower: Columns,
    pub(super) upper: Columns,
    /// Position in the pivot order of each row, `NONE` while it is not a pivot.
    pub(super) pivot_of: Vec<u32>,
    pub(super) inverse_pivots: Vec<f64>,
    pub(super) row_of: Vec<u32>,
    /// Rows from this number on never become pivots.
    border: u32,
    /// The column being eliminated, dense; zero between columns.
    pub(super) work: Vec<f64>,
    /// The last column whose pattern each row was in, by the number of `solve_column`'s call.
    seen: Vec<u32>,
    calls: u32,
    multiplications: f64,
    /// Rows of the current column, each after all rows that depend on it.
    pub(super) pattern: Vec<u32>,
    /// Rows being followed and the entry of their L column to visit next.
    path: Vec<(u32, usize)>,
}

impl Elimination {
    /// Before the first column of a block of `n` rows, of which those from `border` on never become pivots.
    pub(super) fn new(n: usize, border: usize, capacity: usize) -> Self {
        Self {
            lower: Columns::with_capacity(capacity),
            upper: Columns::with_capacity(capacity),
            pivot_of: vec![NONE; n],
            inverse_pivots: Vec::with_capacity(border),
            row_of: Vec::with_capacity(border),
            border: border as u32,
            work: vec![0.0; n],
            seen: vec![NONE; n],
            calls: 0,
            multiplications: 0.0,
            pattern: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Solves with L for `column` of the block (a row of `transposed`): appends its entries of U, leaves the others in `work`.
    pub(super) fn solve_column(&mut self, transposed: &Csr, column: usize) {
        let (rows, values) = transposed.row(column);
        self.pattern.clear();
        let call = self.calls;
        self.calls += 1;
        for &row in rows {
            self.reach(call, row);
        }
        for (&row, &value) in rows.iter().zip(values) {
            self.work[row as usize] = value;
        }
        for &row in self.pattern.iter().rev() {
            let pivot = self.pivot_of[row as usize];
            if pivot == NONE {
                continue;
            }
            let value = self.work[row as usize];
            self.upper.push(pivot, value);
            self.work[row as usize] = 0.0;
            let (below, factors) = self.lower.column(pivot as usize);
            for (&below, factor) in below.iter().zip(factors) {
                self.work[below as usize] -= factor * value;
            }
            self.multiplications += factors.len() as f64;
        }
    }

    /// Entries, those of the diagonal counted once, and multiplications so far.
    pub(super) fn spent(&self) -> (f64, f64) {
        let entries = self.lower.values.len() + self.upper.values.len() + self.pivot_of.len();
        (entries as f64, self.multiplications)
    }

    /// Makes the column that was solved last the next one of L, by a pivot above `least` in magnitude. `false`: it has none, and its entries of U are
    /// removed.
    pub(super) fn take_pivot(&mut self, column: usize, least: f64) -> bool {
        let mut largest = (NONE, 0.0f64);
        let mut largest_below = 0.0f64;
        for &row in self.pattern.iter().rev() {
            if self.pivot_of[row as usize] != NONE {
                continue;
            }
            let value = self.work[row as usize];
            if row >= self.border {
                largest_below = largest_below.max(value.abs());
            } else if value.abs() > largest.1 || value.is_nan() {
                // A NaN is chosen too, and refused below.
                largest = (row, value.abs());
            }
        }
        let diagonal = self.work[column];
        let kept = self.pivot_of[column] == NONE
            && diagonal.abs() >= PIVOT_THRESHOLD * largest.1
            && diagonal != 0.0;
        let pivot_row = if kept { column as u32 } else { largest.0 };
        let pivot = match pivot_row {
            NONE => 0.0,
            row => self.work[row as usize],
        };
        let inverse = 1.0 / pivot;
        let is_usable = pivot.is_finite()
            && inverse.is_finite()
            && pivot.abs() > least
            && pivot.abs() >= BORDER_THRESHOLD * largest_below;
        if !is_usable {
            let start = self.upper.offsets[self.row_of.len()];
            self.upper.rows.truncate(start);
            self.upper.values.truncate(start);
            self.clear_work();
            return false;
        }
        for &row in &self.pattern {
            if self.pivot_of[row as usize] == NONE {
                if row != pivot_row && self.work[row as usize] != 0.0 {
                    self.lower.push(row, self.work[row as usize] * inverse);
                }
                self.work[row as usize] = 0.0;
            }
        }
        self.pivot_of[pivot_row as usize] = self.row_of.len() as u32;
        self.row_of.push(pivot_row);
        self.inverse_pivots.push(inverse);
        self.lower.offsets.push(self.lower.values.len());
        self.upper.offsets.push(self.upper.values.len());
        true
    }

    /// Forgets the column that was solved last.
    pub(super) fn clear_work(&mut self) {
        for &row in &self.pattern {
            self.work[row as usize] = 0.0;
        }
    }

    /// Adds `row`, and all rows its elimination fills, to the pattern of the column of this call: depth first, each row after
    /// those it leads to, so that the pattern backwards is an order of elimination.
    fn reach(&mut self, call: u32, row: u32) {
        if self.seen[row as usize] == call {
            return;
        }
        self.seen[row as usize] = call;
        self.path.push((row, self.first_below(row)));
        while let Some((row, next)) = self.path.last_mut() {
            let pivot = self.pivot_of[*row as usize];
            let end = if pivot == NONE {
                0
            } else {
                self.lower.offsets[pivot as usize + 1]
            };
            if *next < end {
                let below = self.lower.rows[*next];
                *next += 1;
                if self.seen[below as usize] != call {
                    self.seen[below as usize] = call;
                    let first = self.first_below(below);
                    self.path.push((below, first));
                }
            } else {
                self.pattern.push(*row);
                self.path.pop();
            }
        }
    }

    /// Where the L column of `row` begins; 0 if it is no pivot yet.
    fn first_below(&self, row: u32) -> usize {
        match self.pivot_of[row as usize] {
            NONE => 0,
            pivot => self.lower.offsets[pivot as usize],
        }
    }
}

/// Rows become columns.
pub(crate) fn transpose(matrix: &Csr) -> Csr {
    let mut starts = vec![0usize; matrix.columns() + 1];
    for &column in matrix.indices() {
        starts[column as usize + 1] += 1;
    }
    for column in 0..matrix.columns() {
        starts[column + 1] += starts[column];
    }
    let offsets = starts.clone();
    let mut indices = vec![0u32; matrix.stored()];
    let mut values = vec![0.0; matrix.stored()];
    for row in 0..matrix.rows() {
        let (columns, row_values) = matrix.row(row);
        for (&column, &value) in columns.iter().zip(row_values) {
            let slot = &mut starts[column as usize];
            indices[*slot] = row as u32;
            values[*slot] = value;
            *slot += 1;
        }
    }
    Csr::new(matrix.rows(), offsets, indices, values)
        .expect("a transpose is as valid as its matrix")
}

/// Entries and multiplications of factors of `matrix` that keep the diagonal as pivots.
pub(crate) fn predict(matrix: &Csr) -> Result<(f64, f64), LuError> {
    order(matrix).map(|ordering| (ordering.entries, ordering.multiplications))
}

/// Approximate minimum degree on the pattern of A + Aᵀ.
pub(super) fn order(matrix: &Csr) -> Result<Ordering, LuError> {
    let offsets: Vec<u64> = matrix
        .offsets()
        .iter()
        .map(|&offset| offset as u64)
        .collect();
    let indices: Vec<u64> = matrix
        .indices()
        .iter()
        .map(|&index| u64::from(index))
        .collect();
    tsumuji_factor::order(&offsets, &indices).map_err(|what| LuError::Ordering { what })
}
