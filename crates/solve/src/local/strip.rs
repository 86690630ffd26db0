//! A strip of a worker's rows, which one thread relaxes: all of them, or one part for each of several threads.
//!
//! Owned by a `Sweeper`. With several strips each has a copy of x, of which it renews before every step what other strips and other workers own: within
//! a step strips do not see each other's new values.
//!
//! Invariant: in the copy the strip's own elements are those of x, unless x was changed by others since; then `x_has_changed` says so.

use super::compact::Compact;
use super::kernels::{self, Groups, OfRows, in_groups};
use super::lu::{FillLimit, LuError};
use super::partial::PartialLu;
use super::sweep::{Inner, RelaxationError};
use crate::system::{Csr, RowBlock, RowValues};
use std::borrow::Cow;
use std::ops::Range;
use tsumuji_factor::{Lu, Square};

/// `auto` takes LU while its factors hold at most this many times the entries of the rows: a lap then costs at most this factor more than a sweep,
/// and blocks save more laps than that on systems where sweeps converge slowly.
const AUTO_FILL_FACTOR: usize = 16;
/// ... and while factorising takes at most this many multiplications (seconds, not minutes).
const AUTO_MULTIPLICATIONS: f64 = 4e9;
/// Most entries of the factors if `lu` is asked for by name: 8 GB, some minutes.
const ASKED_ENTRIES: usize = 700_000_000;
const ASKED_MULTIPLICATIONS: f64 = 1e12;
/// Dense blocks are factorised only when `lu` is asked for by name, and only up to this many rows (2/3 n³ operations,
/// n² numbers).
const DENSE_LU_ROWS: usize = 12_000;

/// Complete factors of a square block.
#[derive(Debug)]
pub(crate) struct BlockLu {
    factors: Factors,
    /// By which rows were multiplied first; empty: they were not.
    scales: Vec<f64>,
}

#[derive(Debug)]
enum Factors {
    /// With room for a vector.
    Sparse(PartialLu, Vec<f64>),
    Dense(Lu),
}

impl BlockLu {
    /// Factorises rows and columns `rows` of `block`, if that takes minutes at most.
    pub(crate) fn new(block: &RowBlock, rows: &Range<usize>) -> Result<Self, RelaxationError> {
        let (lu, _) = choose(block, rows, Inner::Lu)?;
        Ok(lu.expect("made, as it was asked for"))
    }

    /// Factorises `n` dense rows, multiplied by `scales` if there are any. The error is an unknown without a pivot.
    pub(crate) fn dense(
        n: usize,
        scales: Vec<f64>,
        entry: impl Fn(usize, usize) -> f64,
    ) -> Result<Self, usize> {
        let scale = |row: usize| scales.get(row).copied().unwrap_or(1.0);
        let matrix = Square::from_fn(n, |row, column| scale(row) * entry(row, column));
        let lu = Lu::new(matrix);
        match (0..n).find(|&k| !(lu.pivot(k).is_finite() && lu.pivot(k) != 0.0)) {
            Some(k) => Err(k),
            None => Ok(Self {
                factors: Factors::Dense(lu),
                scales,
            }),
        }
    }

    /// Factorises sparse rows, multiplied by `scales` if there are any.
    pub(crate) fn sparse(
        mut rows: Cow<'_, Csr>,
        scales: Vec<f64>,
        limit: FillLimit,
    ) -> Result<Self, LuError> {
        if !scales.is_empty() {
            rows.to_mut().scale_rows(&scales);
        }
        let factors = Factors::Sparse(PartialLu::whole(&rows, limit)?, vec![0.0; rows.rows()]);
        Ok(Self { factors, scales })
    }

    /// Replaces `vector` by B⁻¹ `vector`.
    pub(crate) fn solve(&mut self, vector: &mut [f64]) {
        kernels::scale(vector, &self.scales);
        match &mut self.factors {
            Factors::Sparse(lu, room) => lu.solve(vector, room),
            Factors::Dense(lu) => lu.solve(vector),
        }
    }
}

/// What all strips of a worker read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) block: &'a RowBlock,
    pub(super) omega: f64,
    /// ω / aᵢᵢ of the block's rows.
    pub(super) steps: &'a [f64],
    pub(super) compact: Option<&'a Compact>,
}

#[derive(Debug)]
pub(super) struct Strip {
    pub(super) rows: Range<usize>,
    solver: Option<BlockLu>,
    /// Residuals, then corrections, of the rows (LU only).
    correction: Vec<f64>,
    /// A copy of x, if there are other strips, and the elements of others that it holds.
    x: Vec<f64>,
    reads: Vec<Range<usize>>,
    is_stale: bool,
    /// Of the last step.
    squares: f64,
    pub(super) note: Option<String>,
}

impl Strip {
    /// `rows` of `block`; factorised if `inner` asks for it, or leaves the choice and it pays.
    pub(super) fn new(
        block: &RowBlock,
        rows: Range<usize>,
        inner: Inner,
    ) -> Result<Self, RelaxationError> {
        let (solver, note) = choose(block, &rows, inner)?;
        let is_alone = rows == block.rows;
        Ok(Self {
            correction: match &solver {
                Some(_) => vec![0.0; rows.len()],
                None => Vec::new(),
            },
            solver,
            x: vec![0.0; if is_alone { 0 } else { block.columns }],
            reads: match is_alone {
                true => Vec::new(),
                false => super::ranges_of(&block.read_outside(&rows), 0, &rows),
            },
            is_stale: true,
            squares: 0.0,
            note,
            rows,
        })
    }

    pub(super) fn has_factors(&self) -> bool {
        self.solver.is_some()
    }

    /// Sweeps although there are factors: other strips have none.
    pub(super) fn forget_factors(&mut self) {
        self.solver = None;
    }

    pub(super) fn x_has_changed(&mut self) {
        self.is_stale = true;
    }

    /// Renews `x[rows]`, some rows of the strip (with LU: all). Returns the sum of the squared residuals of these rows, each from before its row was
    /// renewed.
    pub(super) fn relax(&mut self, work: Work<'_>, rows: Range<usize>, x: &mut [f64]) -> f64 {
        let block = work.block;
        if let Some(solver) = &mut self.solver {
            assert_eq!(rows, self.rows, "LU renews the whole block at once");
            return relax_block(work, rows, solver, &mut self.correction, x);
        }
        let first = block.rows.start;
        if let Some(compact) = work.compact {
            return compact.relax((first, work.steps), rows, x);
        }
        match &block.values {
            RowValues::Dense(values) => {
                let values = Doubles(values, block.columns);
                relax_dense(&values, &block.rhs, (first, work.steps), rows, x)
            }
            RowValues::Sparse(csr) => relax_sparse(block, csr, work.steps, rows, x),
        }
    }

    /// As `relax`, on the strip's copy of `x`; then [`give`](Self::give) takes the new values to x.
    pub(super) fn relax_beside(&mut self, work: Work<'_>, rows: Range<usize>, x: &[f64]) {
        let mut own = std::mem::take(&mut self.x);
        if std::mem::take(&mut self.is_stale) {
            own[self.rows.clone()].copy_from_slice(&x[self.rows.clone()]);
        }
        for range in &self.reads {
            own[range.clone()].copy_from_slice(&x[range.clone()]);
        }
        self.squares = if rows.is_empty() {
            0.0
        } else {
            self.relax(work, rows, &mut own)
        };
        self.x = own;
    }

    /// The new values of `rows` into `x`; returns the sum of the squared residuals.
    pub(super) fn give(&self, rows: Range<usize>, x: &mut [f64]) -> f64 {
        x[rows.clone()].copy_from_slice(&self.x[rows]);
        self.squares
    }
}

/// Dense rows, of whatever numbers.
pub(super) trait DenseRows {
    /// Products of the rows from `own` on with `x`.
    fn products<const ROWS: usize>(&self, own: usize, x: &[f64]) -> [f64; ROWS];
    /// An entry.
    fn entry(&self, own: usize, column: usize) -> f64;
}

/// All bits of each entry.
struct Doubles<'a>(&'a [f64], usize);

impl DenseRows for Doubles<'_> {
    #[inline(always)]
    fn products<const ROWS: usize>(&self, own: usize, x: &[f64]) -> [f64; ROWS] {
        let row = |own: usize| &self.0[own * self.1..(own + 1) * self.1];
        kernels::dots(std::array::from_fn(|k| row(own + k)), x)
    }

    #[inline(always)]
    fn entry(&self, own: usize, column: usize) -> f64 {
        self.0[own * self.1 + column]
    }
}

/// `out` = A x, of all rows.
pub(super) fn multiply(values: &impl DenseRows, x: &[f64], out: &mut [f64]) {
    kernels::fill(&Products(values, x), out);
}

struct Products<'a, V>(&'a V, &'a [f64]);

impl<V: DenseRows> OfRows for Products<'_, V> {
    fn of<const ROWS: usize>(&self, first: usize) -> [f64; ROWS] {
        self.0.products(first, self.1)
    }
}

/// Gauss–Seidel over dense rows, for the right-hand side `rhs`; `first` is the first of the block, `steps` are ω / aᵢᵢ. A group's full products are
/// computed with the old x, several rows at once; then each row is corrected by the changes of the rows before it in the group: the same order of renewals
/// as row by row.
pub(super) fn relax_dense(
    values: &impl DenseRows,
    rhs: &[f64],
    (first, steps): (usize, &[f64]),
    rows: Range<usize>,
    x: &mut [f64],
) -> f64 {
    let mut renewal = Renewal {
        values,
        rhs,
        first,
        steps,
        x,
        squares: 0.0,
    };
    in_groups(rows, &mut renewal);
    renewal.squares
}

/// Renewal of dense rows on its way.
struct Renewal<'a, V> {
    values: &'a V,
    rhs: &'a [f64],
    first: usize,
    steps: &'a [f64],
    x: &'a mut [f64],
    squares: f64,
}

impl<V: DenseRows> Groups for Renewal<'_, V> {
    #[inline(always)]
    fn take<const ROWS: usize>(&mut self, row: usize) {
        let own = row - self.first;
        let products = self.values.products::<ROWS>(own, self.x);
        let mut moved = [0.0; ROWS];
        for k in 0..ROWS {
            let mut residual = self.rhs[own + k] - products[k];
            for (earlier, moved) in moved.iter().enumerate().take(k) {
                residual -= self.values.entry(own + k, row + earlier) * moved;
            }
            self.squares += residual * residual;
            moved[k] = self.steps[own + k] * residual;
        }
        for (x, moved) in self.x[row..].iter_mut().zip(moved) {
            *x += moved;
        }
    }
}

/// Gauss–Seidel over sparse rows.
fn relax_sparse(
    block: &RowBlock,
    csr: &Csr,
    steps: &[f64],
    rows: Range<usize>,
    x: &mut [f64],
) -> f64 {
    let first = block.rows.start;
    let own = rows.start - first..rows.end - first;
    let mut squares = 0.0;
    let sides = block.rhs[own.clone()].iter().zip(&steps[own.clone()]);
    for ((row, (columns, values)), (b, step)) in rows.zip(csr.rows_in(own)).zip(sides) {
        let residual = b - kernels::sparse_dot(columns, values, x);
        squares += residual * residual;
        x[row] += step * residual;
    }
    squares
}

/// x += ω B⁻¹ (b − A x) for all rows of a strip.
fn relax_block(
    work: Work<'_>,
    rows: Range<usize>,
    solver: &mut BlockLu,
    correction: &mut [f64],
    x: &mut [f64],
) -> f64 {
    work.block.residuals(rows.clone(), x, correction);
    let squares = kernels::sum_of_squares(correction);
    solver.solve(correction);
    for (x, correction) in x[rows].iter_mut().zip(correction) {
        *x += work.omega * *correction;
    }
    squares
}

/// Makes the factors for `rows` of `block`; without factors, the reason.
fn choose(
    block: &RowBlock,
    rows: &Range<usize>,
    inner: Inner,
) -> Result<(Option<BlockLu>, Option<String>), RelaxationError> {
    let asked = match inner {
        Inner::Sweep => return Ok((None, None)),
        Inner::Lu => true,
        Inner::Auto => false,
    };
    let scales = block.row_scales(rows);
    let refusal = |why: String| RelaxationError::Lu {
        first: rows.start + 1,
        last: rows.end,
        why,
    };
    match &block.values {
        RowValues::Dense(_) if !asked => Ok((None, None)),
        RowValues::Dense(values) => {
            let count = rows.len();
            if count > DENSE_LU_ROWS {
                return Err(refusal(format!(
                    "{count} dense rows are more than the {DENSE_LU_ROWS} that are factorised"
                )));
            }
            let first = rows.start - block.rows.start;
            let entry = |i: usize, j: usize| values[(first + i) * block.columns + rows.start + j];
            match BlockLu::dense(count, scales, entry) {
                Ok(lu) => Ok((Some(lu), None)),
                Err(_) => Err(refusal("the diagonal block is singular".into())),
            }
        }
        RowValues::Sparse(csr) => {
            let limit = if asked {
                FillLimit {
                    entries: ASKED_ENTRIES,
                    multiplications: ASKED_MULTIPLICATIONS,
                }
            } else {
                FillLimit {
                    entries: stored(csr, block, rows).saturating_mul(AUTO_FILL_FACTOR),
                    multiplications: AUTO_MULTIPLICATIONS,
                }
            };
            let own = Cow::Owned(diagonal_block(block, csr, rows));
            match BlockLu::sparse(own, scales, limit) {
                Ok(lu) => Ok((Some(lu), None)),
                Err(LuError::Singular { column }) if asked => Err(refusal(format!(
                    "the diagonal block is singular (no pivot for unknown {})",
                    rows.start + column + 1
                ))),
                Err(error) if asked => Err(refusal(error.to_string())),
                Err(error) => {
                    let (first, last) = (rows.start + 1, rows.end);
                    Ok((
                        None,
                        Some(format!(
                            "rows {first} to {last} are swept instead of solved by LU: {error}"
                        )),
                    ))
                }
            }
        }
    }
}

/// Stored entries of `rows`.
fn stored(csr: &Csr, block: &RowBlock, rows: &Range<usize>) -> usize {
    let offsets = csr.offsets();
    offsets[rows.end - block.rows.start] - offsets[rows.start - block.rows.start]
}

/// Columns `rows` of these rows of `block`.
pub(crate) fn diagonal_block(block: &RowBlock, csr: &Csr, rows: &Range<usize>) -> Csr {
    let first = block.rows.start;
    csr.part(rows.start - first..rows.end - first, rows)
}
