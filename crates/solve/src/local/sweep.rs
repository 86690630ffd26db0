//! One worker's relaxation: renews its rows of x from the present values of the others.
//!
//! Every mode uses it, each worker on its own [`RowBlock`]. Two methods (`inner`): *sweep*, Gauss–Seidel row by row with ω, over any sub-range of the
//! own rows; *lu*, the whole own block solved at once with factors made beforehand.
//!
//! Several threads may share the rows (`strip`): each has a strip of them, and a step renews some rows of every strip. A step is named by rows of the
//! longest strip, counted from the block's first row: with one strip these are the rows themselves.
//!
//! Both methods move x by a correction made from the residual, x += ω D⁻¹ (b − A x) row by row or x += ω B⁻¹ (b − A x) for the block B: so the squared
//! residuals cost nothing more, and are returned as the local estimate.

use super::compact::{Compact, Precision};
use super::kernels::ROW_GROUP;
use super::strip::{Strip, Work};
use crate::system::{RowBlock, RowValues};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::{Deserialize, Serialize};
use std::ops::Range;

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

impl Inner {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Sweep, Self::Lu];

    /// The name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sweep => "sweep",
            Self::Lu => "lu",
        }
    }
}

impl std::fmt::Display for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a relaxation cannot be set up.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RelaxationError {
    /// ω outside (0, 2) converges for no system.
    #[error(
        "omega {omega} converges for no system; give a number above 0 and below 2 (1 is Gauss-Seidel)"
    )]
    Omega {
        /// The value.
        omega: f64,
    },
    /// The kernel gives no threads.
    #[error("no {threads} threads to relax the rows: {why}; ask for fewer")]
    Threads {
        /// As many were wanted.
        threads: usize,
        /// The reason.
        why: String,
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
    threads: usize,
}

impl Default for Relaxation {
    fn default() -> Self {
        Self {
            inner: Inner::Auto,
            omega: 1.0,
            precision: Precision::Double,
            threads: 1,
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
            threads: 1,
        })
    }

    /// In how many bits sweeps read dense rows. The caller gives exact residuals to the sweeper at pauses.
    pub(crate) fn read_in(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// By how many threads; at least one.
    pub(crate) fn by_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// The method for each block.
    pub fn inner(&self) -> Inner {
        self.inner
    }
}

/// Fewest entries of a strip in one step: some hundred microseconds of work, many times what it costs to hand it to a thread and to wait for it.
const STEP_ENTRIES: usize = if cfg!(test) { 40 } else { 100_000 };
/// Fewest entries of a strip: with fewer, more threads would take longer.
const STRIP_ENTRIES: usize = if cfg!(test) { 20 } else { 50_000 };

/// Entries of an exact residual between two calls of its visitor: short against a lease.
const SLICE_ENTRIES: usize = if cfg!(test) { 300 } else { 8_000_000 };

/// One worker's rows and the means to relax them.
#[derive(Debug)]
pub struct Sweeper {
    block: RowBlock,
    omega: f64,
    /// ω / aᵢᵢ of each own row.
    steps: Vec<f64>,
    /// The rows with fewer bits, if they are swept so.
    compact: Option<Compact>,
    /// Cover the rows in order; at least one.
    strips: Vec<Strip>,
    /// Where there are several strips: for all but the first, which the caller's thread relaxes.
    pool: Option<ThreadPool>,
    note: Option<String>,
}

impl Sweeper {
    /// Takes over a block; factorises it if `relaxation` asks for it, or leaves the choice and it pays.
    pub fn new(block: RowBlock, relaxation: Relaxation) -> Result<Self, RelaxationError> {
        let threads = relaxation.threads.min(block.stored() / STRIP_ENTRIES);
        let ranges = divide(&block, threads.max(1));
        let pool = match ranges.len() {
            1 => None,
            strips => {
                let pool = ThreadPoolBuilder::new().num_threads(strips - 1);
                let pool = pool.thread_name(|thread| format!("tsumuji-strip-{}", thread + 2));
                Some(pool.build().map_err(|error| RelaxationError::Threads {
                    threads: strips,
                    why: error.to_string(),
                })?)
            }
        };
        let make = |rows| Strip::new(&block, rows, relaxation.inner);
        let strips = each(pool.as_ref(), ranges, make).into_iter();
        let mut strips: Vec<Strip> = strips.collect::<Result<_, _>>()?;
        if !strips.iter().all(Strip::has_factors) {
            strips.iter_mut().for_each(Strip::forget_factors);
        }
        let compact = match strips[0].has_factors() {
            false => Compact::new(&block, relaxation.precision),
            true => None,
        };
        let (first, last) = (block.rows.start + 1, block.rows.end);
        let mut note = strips.iter_mut().find_map(|strip| strip.note.take());
        if compact.is_none() && relaxation.precision != Precision::Double {
            note = Some(format!(
                "rows {first} to {last} stay in double precision: only sweeps over dense rows read fewer bits"
            ));
        }
        if strips.len() < relaxation.threads && note.is_none() {
            note = Some(format!(
                "rows {first} to {last} are shared by {} of {} threads: for more they are too few",
                strips.len(),
                relaxation.threads
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
            strips,
            pool,
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
        if self.strips[0].has_factors() {
            Inner::Lu
        } else {
            Inner::Sweep
        }
    }

    /// Threads that relax.
    pub fn threads(&self) -> usize {
        self.strips.len()
    }

    /// Is to be called when x of the own rows was changed otherwise than by [`relax`](Self::relax).
    pub(crate) fn x_has_changed(&mut self) {
        self.strips.iter_mut().for_each(Strip::x_has_changed);
    }

    /// The steps of a lap, of one row each: all own rows, or those of the longest strip.
    pub(crate) fn lap_rows(&self) -> Range<usize> {
        let longest = self.strips.iter().map(|strip| strip.rows.len()).max();
        let first = self.block.rows.start;
        first..first + longest.unwrap_or(0)
    }

    /// Fewest rows of a step that is worth handing to threads.
    pub(crate) fn least_rows(&self) -> usize {
        if self.strips.len() == 1 {
            return 1;
        }
        let per_row = self.block.stored().div_ceil(self.block.rhs.len());
        STEP_ENTRIES.div_ceil(per_row.max(1))
    }

    /// The rows of step `rows`, strip by strip.
    pub(crate) fn parts(&self, rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let lap = self.lap_rows();
        let step = rows.clone();
        self.strips
            .iter()
            .map(move |strip| share(&lap, &step, &strip.rows))
    }

    /// Calls `make` with each strip's rows, by the threads of the pool if there is one, and returns the results.
    pub(crate) fn each_strip<T: Send>(&self, make: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
        let rows = self.strips.iter().map(|strip| strip.rows.clone());
        each(self.pool.as_ref(), rows.collect(), make)
    }

    /// b − A x of the own rows into `out`, with carried rounding errors. Returns Σ (|b| + |A| |x|)² if `magnitude`, otherwise 0. `x` is the whole vector.
    /// `between` is called now and then.
    pub(crate) fn exact_residual(
        &self,
        x: &[f64],
        out: &mut [f64],
        magnitude: bool,
        between: &mut dyn FnMut(),
    ) -> f64 {
        let block = &self.block;
        let per_row = block.stored().div_ceil(block.rhs.len()).max(1);
        let slice = (SLICE_ENTRIES / per_row).max(1);
        let lap = self.lap_rows();
        let mut magnitude_sq = 0.0;
        for start in lap.clone().step_by(slice) {
            let mut rest = &mut *out;
            let mut at = block.rows.start;
            let mut jobs = Vec::new();
            for rows in self.parts(&(start..lap.end.min(start + slice))) {
                let (_, from) = rest.split_at_mut(rows.start - at);
                let (own, others) = from.split_at_mut(rows.len());
                at = rows.end;
                jobs.push((rows, own));
                rest = others;
            }
            let one = |(rows, out): (Range<usize>, &mut [f64])| {
                let own = rows.start - block.rows.start..rows.end - block.rows.start;
                block.exact_residual(own.clone(), x, out);
                match magnitude {
                    true => block.magnitude_sq(own, x),
                    false => 0.0,
                }
            };
            magnitude_sq += each(self.pool.as_ref(), jobs, one).iter().sum::<f64>();
            between();
        }
        magnitude_sq
    }

    /// A note for the user, for example why `auto` did not take LU.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// One lap as a sequence of steps of at most `rows` rows, each to be given to [`Sweeper::relax`]. With LU it
    /// is always one.
    pub fn lap(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let own = self.lap_rows();
        let rows = if self.strips[0].has_factors() {
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

    /// Renews x in step `rows` (with LU: the whole lap), from the whole vector `x`. Returns the sum of the squared residuals of these rows, each from
    /// before its row was renewed.
    pub fn relax(&mut self, rows: Range<usize>, x: &mut [f64]) -> f64 {
        assert_eq!(
            x.len(),
            self.block.columns,
            "relaxation needs the whole vector"
        );
        let lap = self.lap_rows();
        assert!(
            lap.start <= rows.start && rows.end <= lap.end,
            "rows {rows:?} are not all within {lap:?}"
        );
        let work = Work {
            block: &self.block,
            omega: self.omega,
            steps: &self.steps,
            compact: self.compact.as_ref(),
        };
        if let [strip] = &mut self.strips[..] {
            return strip.relax(work, rows, x);
        }
        let strips = self.strips.iter_mut();
        let jobs: Vec<(&mut Strip, Range<usize>)> = strips
            .map(|strip| {
                let rows = share(&lap, &rows, &strip.rows);
                (strip, rows)
            })
            .collect();
        let now = &*x;
        let relaxed = each(self.pool.as_ref(), jobs, |(strip, rows)| {
            strip.relax_beside(work, rows.clone(), now);
            (strip, rows)
        });
        let relaxed = relaxed.into_iter();
        relaxed.map(|(strip, rows)| strip.give(rows, x)).sum()
    }
}

/// Runs a job on each thread: the first on this one, the others in the pool.
fn each<J: Send, T: Send>(
    pool: Option<&ThreadPool>,
    jobs: Vec<J>,
    run: impl Fn(J) -> T + Sync,
) -> Vec<T> {
    let Some(pool) = pool else {
        return jobs.into_iter().map(run).collect();
    };
    let mut results: Vec<Option<T>> = jobs.iter().map(|_| None).collect();
    let mut jobs = jobs.into_iter().zip(&mut results);
    let first = jobs.next();
    let run = &run;
    pool.in_place_scope(|scope| {
        for (job, result) in jobs {
            scope.spawn(move |_| *result = Some(run(job)));
        }
        if let Some((job, result)) = first {
            *result = Some(run(job));
        }
    });
    results.into_iter().flatten().collect()
}

/// The part of a strip that belongs to step `rows` of `lap`: the steps of a lap cover every strip once.
fn share(lap: &Range<usize>, rows: &Range<usize>, strip: &Range<usize>) -> Range<usize> {
    let at = |row: usize| strip.start + (row - lap.start) * strip.len() / lap.len();
    at(rows.start)..at(rows.end)
}

/// At most `count` strips of about as many entries each.
fn divide(block: &RowBlock, count: usize) -> Vec<Range<usize>> {
    let rows = block.rows.len();
    let stored = block.stored();
    let mut strips: Vec<Range<usize>> = Vec::with_capacity(count);
    let mut first = 0;
    for strip in 1..=count {
        let goal = stored * strip / count;
        let end = match &block.values {
            _ if strip == count => rows,
            RowValues::Dense(_) => (rows * strip / count).next_multiple_of(ROW_GROUP).min(rows),
            RowValues::Sparse(csr) => csr.offsets().partition_point(|&before| before < goal),
        };
        if end > first {
            strips.push(block.rows.start + first..block.rows.start + end);
            first = end;
        }
    }
    strips
}

#[cfg(test)]
mod tests;
