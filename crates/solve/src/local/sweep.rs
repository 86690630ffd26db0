//! One worker's relaxation: renews its rows of x from the present values of the others.
//!
//! Every mode uses it, each worker on its own [`RowBlock`]. Two methods (`inner`): *sweep*, Gauss–Seidel row by row with ω, over any sub-range of the
//! own rows; *lu*, the whole own block solved at once with factors made beforehand.
//!
//! Both move x by a correction made from the residual, x += ω D⁻¹ (b − A x) row by row or x += ω B⁻¹ (b − A x) for the block B: so the squared
//! residuals cost nothing more, and are returned as the local estimate.

use super::compact::{Compact, Precision};
use super::kernels::{self, ROW_GROUP};
use super::lu::{FillLimit, LuError, SparseLu};
use crate::system::{Csr, RowBlock, RowValues};
use faer::linalg::solvers::{PartialPivLu, Solve};
use faer::{Mat, MatMut};
use serde::{Deserialize, Serialize};
use std::ops::Range;

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

/// How a worker relaxes its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Inner {
    /// LU for sparse blocks whose factors stay small, otherwise sweep.
    #[default]
    Auto,
    /// Gauss–Seidel by rows.
    Sweep,
    /// The whole block at once.
    Lu,
}

impl std::str::FromStr for Inner {
    type Err = RelaxationError;

    fn from_str(text: &str) -> Result<Self, RelaxationError> {
        match text {
            "auto" => Ok(Inner::Auto),
            "sweep" => Ok(Inner::Sweep),
            "lu" => Ok(Inner::Lu),
            _ => Err(RelaxationError::Inner { text: text.into() }),
        }
    }
}

impl std::fmt::Display for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Inner::Auto => "auto",
            Inner::Sweep => "sweep",
            Inner::Lu => "lu",
        })
    }
}

/// Why a relaxation cannot be set up.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RelaxationError {
    /// No inner solver has this name.
    #[error("inner solver '{text}' is unknown; accepted are auto, sweep and lu")]
    Inner {
        /// The name.
        text: String,
    },
    /// ω outside (0, 2) converges for no system.
    #[error(
        "omega {omega} converges for no system; give a number above 0 and below 2 (1 is Gauss-Seidel)"
    )]
    Omega {
        /// The value.
        omega: f64,
    },
    /// `lu` was asked for by name and is not possible.
    #[error(
        "--inner lu is not possible for rows {first} to {last}: {why}; use --inner sweep or more workers"
    )]
    Lu {
        /// First row, 1-based.
        first: usize,
        /// Last row, 1-based.
        last: usize,
        /// The reason.
        why: String,
    },
}

/// Inner solver and relaxation factor, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relaxation {
    inner: Inner,
    omega: f64,
    precision: Precision,
}

impl Default for Relaxation {
    fn default() -> Self {
        Self {
            inner: Inner::Auto,
            omega: 1.0,
            precision: Precision::Double,
        }
    }
}

impl Relaxation {
    /// ω must be in (0, 2).
    pub fn new(inner: Inner, omega: f64) -> Result<Self, RelaxationError> {
        if !(omega > 0.0 && omega < 2.0) {
            return Err(RelaxationError::Omega { omega });
        }
        Ok(Self {
            inner,
            omega,
            precision: Precision::Double,
        })
    }

    /// In how many bits sweeps read dense rows. The caller gives exact residuals to the sweeper at pauses.
    pub(crate) fn read_in(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The method for each block.
    pub fn inner(&self) -> Inner {
        self.inner
    }

    /// The relaxation factor.
    pub fn omega(&self) -> f64 {
        self.omega
    }
}

/// One worker's rows and the means to relax them.
#[derive(Debug)]
pub struct Sweeper {
    block: RowBlock,
    omega: f64,
    /// ω / aᵢᵢ of each own row.
    steps: Vec<f64>,
    solver: Option<BlockSolver>,
    /// The rows with fewer bits, if they are swept so.
    compact: Option<Compact>,
    /// Residuals, then corrections, of the own rows (lu only).
    correction: Vec<f64>,
    note: Option<String>,
}

#[derive(Debug)]
enum BlockSolver {
    Sparse(SparseLu),
    Dense(PartialPivLu<f64>),
}

impl Sweeper {
    /// Takes over a block; factorises it if `relaxation` asks for it, or leaves the choice and it pays.
    pub fn new(block: RowBlock, relaxation: Relaxation) -> Result<Self, RelaxationError> {
        let (solver, mut note) = choose(&block, relaxation.inner)?;
        let compact = match &solver {
            None => Compact::new(&block, relaxation.precision),
            Some(_) => None,
        };
        if compact.is_none() && relaxation.precision != Precision::Double {
            let (first, last) = (block.rows.start + 1, block.rows.end);
            note = Some(format!(
                "rows {first} to {last} stay in double precision: only sweeps over dense rows read fewer bits"
            ));
        }
        let steps = block
            .rows
            .clone()
            .map(|row| relaxation.omega / block.diagonal(row))
            .collect();
        Ok(Self {
            omega: relaxation.omega,
            steps,
            correction: if solver.is_some() {
                vec![0.0; block.rhs.len()]
            } else {
                Vec::new()
            },
            solver,
            compact,
            note,
            block,
        })
    }

    /// The rows it relaxes.
    pub fn block(&self) -> &RowBlock {
        &self.block
    }

    /// After a pause at `x`, with the exact residual of the own rows there: laps go on from it, if rows with fewer bits are swept.
    pub(crate) fn refine(&mut self, x: &[f64], residual: &[f64]) {
        if let Some(compact) = &mut self.compact {
            compact.refine(x, residual);
        }
    }

    /// Whether exact residuals must be given to [`refine`](Self::refine).
    pub(crate) fn refines(&self) -> bool {
        self.compact.is_some()
    }

    /// Gives the rows back.
    pub(crate) fn into_block(self) -> RowBlock {
        self.block
    }

    /// The method in use; never `auto`.
    pub fn inner(&self) -> Inner {
        if self.solver.is_some() {
            Inner::Lu
        } else {
            Inner::Sweep
        }
    }

    /// A note for the user, for example why `auto` did not take LU.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// One lap as a sequence of sub-ranges of at most `rows` rows, each to be given to [`Sweeper::relax`]. With LU it
    /// is always the whole block.
    pub fn lap(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let own = self.block.rows.clone();
        let rows = if self.solver.is_some() {
            own.len()
        } else {
            rows.max(1)
        };
        own.clone()
            .step_by(rows)
            .map(move |first| first..(first + rows).min(own.end))
    }

    /// Rows per step of a lap such that, if the foreign elements are read anew at every step, reading them costs at
    /// most a few per cent of the step's own work.
    pub(crate) fn rows_per_step(&self) -> usize {
        let rows = self.block.rhs.len();
        let (foreign, share, per_row) = match &self.block.values {
            // Vector kernels take several entries of A in the time a copy takes one of x.
            RowValues::Dense(_) => (self.block.columns - rows, 40, self.block.columns),
            RowValues::Sparse(csr) => (
                self.block.foreign_columns().len(),
                10,
                csr.stored().div_ceil(rows) + 2,
            ),
        };
        let least = (share * foreign).div_ceil(per_row.max(1));
        least
            .next_multiple_of(ROW_GROUP)
            .clamp(ROW_GROUP.min(rows), rows.max(1))
    }

    /// Renews `x[rows]`, a sub-range of the own rows (with LU: all of them), from the whole vector `x`. Returns the sum of the squared residuals of
    /// these rows, each from before its row was renewed.
    pub fn relax(&mut self, rows: Range<usize>, x: &mut [f64]) -> f64 {
        assert_eq!(
            x.len(),
            self.block.columns,
            "relaxation needs the whole vector"
        );
        let own = &self.block.rows;
        assert!(
            own.start <= rows.start && rows.end <= own.end,
            "rows {rows:?} are not all within {own:?}"
        );
        if let Some(solver) = &mut self.solver {
            assert_eq!(&rows, own, "LU renews the whole block at once");
            return relax_block(&self.block, solver, &mut self.correction, self.omega, x);
        }
        if let Some(compact) = &self.compact {
            return compact.relax((own.start, &self.steps), rows, x);
        }
        match &self.block.values {
            RowValues::Dense(_) => relax_dense(&self.block, &self.steps, rows, x),
            RowValues::Sparse(csr) => relax_sparse(&self.block, csr, &self.steps, rows, x),
        }
    }
}

/// Gauss–Seidel over dense rows. A group's full products are computed with the old x, several rows at once; then each row is corrected by the changes
/// of the rows before it in the group: the same order of renewals as row by row.
fn relax_dense(block: &RowBlock, steps: &[f64], rows: Range<usize>, x: &mut [f64]) -> f64 {
    let RowValues::Dense(values) = &block.values else {
        unreachable!("called for dense rows");
    };
    let n = block.columns;
    let first = block.rows.start;
    let mut squares = 0.0;
    let mut row = rows.start;
    while row + ROW_GROUP <= rows.end {
        let own = row - first;
        let group: [&[f64]; ROW_GROUP] =
            std::array::from_fn(|k| &values[(own + k) * n..(own + k + 1) * n]);
        let products = kernels::dot_group(group, x);
        let mut moved = [0.0; ROW_GROUP];
        for k in 0..ROW_GROUP {
            let mut residual = block.rhs[own + k] - products[k];
            for earlier in 0..k {
                residual -= group[k][row + earlier] * moved[earlier];
            }
            squares += residual * residual;
            moved[k] = steps[own + k] * residual;
        }
        for k in 0..ROW_GROUP {
            x[row + k] += moved[k];
        }
        row += ROW_GROUP;
    }
    for row in row..rows.end {
        let own = row - first;
        let residual = block.rhs[own] - kernels::dot(&values[own * n..(own + 1) * n], x);
        squares += residual * residual;
        x[row] += steps[own] * residual;
    }
    squares
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
    let mut squares = 0.0;
    for row in rows {
        let own = row - first;
        let residual = block.rhs[own] - csr.row_dot(own, x);
        squares += residual * residual;
        x[row] += steps[own] * residual;
    }
    squares
}

/// x += ω B⁻¹ (b − A x) for the whole block.
fn relax_block(
    block: &RowBlock,
    solver: &mut BlockSolver,
    correction: &mut [f64],
    omega: f64,
    x: &mut [f64],
) -> f64 {
    for (correction, row) in correction.iter_mut().zip(block.rows.clone()) {
        *correction = block.residual(row, x);
    }
    let squares = kernels::sum_of_squares(correction);
    match solver {
        BlockSolver::Sparse(lu) => lu.solve(correction),
        BlockSolver::Dense(lu) => {
            let rows = correction.len();
            lu.solve_in_place(MatMut::from_column_major_slice_mut(correction, rows, 1));
        }
    }
    for (x, correction) in x[block.rows.clone()].iter_mut().zip(correction) {
        *x += omega * *correction;
    }
    squares
}

/// Makes the factors for `block`; without factors, the reason.
fn choose(
    block: &RowBlock,
    inner: Inner,
) -> Result<(Option<BlockSolver>, Option<String>), RelaxationError> {
    let asked = match inner {
        Inner::Sweep => return Ok((None, None)),
        Inner::Lu => true,
        Inner::Auto => false,
    };
    let refusal = |why: String| RelaxationError::Lu {
        first: block.rows.start + 1,
        last: block.rows.end,
        why,
    };
    match &block.values {
        RowValues::Dense(_) if !asked => Ok((None, None)),
        RowValues::Dense(values) => {
            let rows = block.rhs.len();
            if rows > DENSE_LU_ROWS {
                return Err(refusal(format!(
                    "{rows} dense rows are more than the {DENSE_LU_ROWS} that are factorised"
                )));
            }
            let own = Mat::from_fn(rows, rows, |i, j| {
                values[i * block.columns + block.rows.start + j]
            });
            let lu = own.partial_piv_lu();
            let singular =
                (0..rows).any(|k| !(lu.U()[(k, k)].abs() > 0.0 && lu.U()[(k, k)].is_finite()));
            if singular {
                return Err(refusal("the diagonal block is singular".into()));
            }
            Ok((Some(BlockSolver::Dense(lu)), None))
        }
        RowValues::Sparse(csr) => {
            let limit = if asked {
                FillLimit {
                    entries: ASKED_ENTRIES,
                    multiplications: ASKED_MULTIPLICATIONS,
                }
            } else {
                FillLimit {
                    entries: csr.stored().saturating_mul(AUTO_FILL_FACTOR),
                    multiplications: AUTO_MULTIPLICATIONS,
                }
            };
            match SparseLu::new(&diagonal_block(block, csr), limit) {
                Ok(lu) => Ok((Some(BlockSolver::Sparse(lu)), None)),
                Err(LuError::Singular { column }) if asked => Err(refusal(format!(
                    "the diagonal block is singular (no pivot for unknown {})",
                    block.rows.start + column + 1
                ))),
                Err(error) if asked => Err(refusal(error.to_string())),
                Err(error) => {
                    let (first, last) = (block.rows.start + 1, block.rows.end);
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

/// The own columns of the own rows.
pub(crate) fn diagonal_block(block: &RowBlock, csr: &Csr) -> Csr {
    let (first, last) = (block.rows.start as u32, block.rows.end as u32);
    let mut offsets = vec![0];
    let mut indices = Vec::new();
    let mut values = Vec::new();
    for own in 0..csr.rows() {
        let (columns, row) = csr.row(own);
        let range = columns.partition_point(|&c| c < first)..columns.partition_point(|&c| c < last);
        indices.extend(columns[range.clone()].iter().map(|column| column - first));
        values.extend_from_slice(&row[range]);
        offsets.push(values.len());
    }
    Csr::new(block.rhs.len(), offsets, indices, values).expect("a part of valid rows")
}

#[cfg(test)]
mod tests;
