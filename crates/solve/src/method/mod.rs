//! Solving in this process, by the method asked for or by the one that is expected to be fastest.
//!
//! Called by the command line for whatever needs no messages. The choice (`Method::Auto`) is made by trying: a factorisation at once where it costs
//! little more than some products with A; otherwise a Krylov method, which ends early where it would take longer than a factorisation, and that is
//! done then. So no system costs much more than twice what the better of the two takes. Each step is told in the notes.
//!
//! Left out on purpose: relaxation, which on one machine is not the fastest for any system known to us; `single` and `threads` have it for comparison.

pub mod between;
mod properties;

use crate::distributed::in_proportion;
use crate::krylov::{self, End, Kind, Patience, Preconditioning};
use crate::local::direct::{self, Cost, DirectError};
use crate::local::{Best, Limits};
use crate::report::{Outcome, Progress, Reason, Seconds};
use crate::system::{
    GenerateError, Matrix, PartitionError, RowBlock, Scaling, Source, System, partition,
};
use properties::Properties;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Instant;

/// How to solve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Whichever is expected to be fastest.
    #[default]
    Auto,
    /// Laps over the rows alone.
    Relax,
    /// Laps, and at pauses the best combination of what they achieved.
    RelaxGcr,
    /// Restarted GMRES.
    Gmres,
    /// Conjugate gradients.
    Cg,
    /// One factorisation.
    Direct,
}

impl Method {
    /// All, in the order of `--help`.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::Relax,
        Self::RelaxGcr,
        Self::Gmres,
        Self::Cg,
        Self::Direct,
    ];

    /// The name, as it is read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Relax => "relax",
            Self::RelaxGcr => "relax+gcr",
            Self::Gmres => "gmres",
            Self::Cg => "cg",
            Self::Direct => "direct",
        }
    }

    /// Whether it does no laps.
    pub fn is_global(self) -> bool {
        matches!(self, Self::Gmres | Self::Cg | Self::Direct)
    }

    /// The Krylov method that it is.
    pub fn krylov(self) -> Option<Kind> {
        match self {
            Self::Gmres => Some(Kind::Gmres),
            Self::Cg => Some(Kind::Cg),
            _ => None,
        }
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a method cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MethodError {
    /// The factorisation was asked for by name and is not possible.
    #[error("--method direct is not possible: {0}; use --method auto")]
    Direct(DirectError),
    /// Conjugate gradients were asked for by name.
    #[error("--method cg needs a symmetric matrix; use --method gmres or auto")]
    NotSymmetric,
    /// The same, of a matrix that was symmetric before its rows were put into another order.
    #[error(
        "--method cg needs a symmetric matrix, and this one is none any more: its rows were reordered for a better diagonal; use --method gmres or auto"
    )]
    Reordered,
    /// More threads than rows.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The system cannot be made.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

impl MethodError {
    /// Of a matrix for conjugate gradients that is not symmetric. `was`: before its rows were put into another order.
    fn not_symmetric(was: bool) -> Self {
        if was {
            Self::Reordered
        } else {
            Self::NotSymmetric
        }
    }
}

/// The numbers behind the choice.
#[derive(Debug, Clone, Copy)]
struct Tuning {
    /// A factorisation is done at once if it multiplies at most this often: a tenth of a second.
    direct_at_once: f64,
    /// ... for at most this many rows: its order alone takes some microseconds a row.
    direct_at_once_rows: usize,
    /// Iterations after which a sparse factorisation is expected to be faster than as many again.
    sparse_budget: u64,
    /// Dense: LU multiplies n / 3 times as much as a product, at about twenty times its rate.
    dense_rows_an_iteration: u64,
    /// Largest factorisation instead of slow iterations: some minutes, 8 GB.
    direct_most: Cost,
}

const TUNING: Tuning = Tuning {
    direct_at_once: 1e8,
    direct_at_once_rows: 100_000,
    sparse_budget: 300,
    dense_rows_an_iteration: 60,
    direct_most: Cost {
        entries: 1e9,
        multiplications: 4e11,
    },
};

/// The run under way.
struct Run<'a> {
    threads: Option<usize>,
    /// Asked for.
    preconditioning: Option<Preconditioning>,
    limits: Limits,
    progress: &'a mut dyn FnMut(Progress),
    stop: &'a (dyn Fn() -> bool + Sync),
    began: Instant,
    notes: Vec<String>,
    seconds: Seconds,
    iterations: u64,
    verifications: u64,
    /// Threads of the last step, and its name.
    used: usize,
    name: String,
    best: Best,
}

/// Solves `source` in this process, with `threads` threads or as many as pay, from x = 0. `method` is not one of relaxation; the preconditioner is for
/// conjugate gradients and GMRES when they are asked for. `stop` is asked after
/// each iteration of the first thread. The laps of the outcome are iterations, one entry a thread.
pub fn solve(
    source: Source,
    (method, preconditioning): (Method, Option<Preconditioning>),
    threads: Option<usize>,
    limits: Limits,
    progress: &mut dyn FnMut(Progress),
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Outcome, MethodError> {
    let run = Run {
        threads,
        preconditioning,
        limits,
        progress,
        stop,
        began: Instant::now(),
        notes: Vec::new(),
        seconds: Seconds::default(),
        iterations: 0,
        verifications: 0,
        used: 1,
        name: String::new(),
        best: Best::default(),
    };
    let scaling = source.scaling().cloned();
    let mut outcome = match source.is_dense() {
        true => run.dense(source, method),
        false => run.sparse(&source.into_system()?, method),
    }?;
    outcome.x = Scaling::undo(scaling.as_ref(), outcome.x);
    Ok(outcome)
}

impl Run<'_> {
    fn sparse(mut self, system: &System, method: Method) -> Result<Outcome, MethodError> {
        let Matrix::Sparse(csr) = &system.matrix else {
            unreachable!("dense matrices are solved elsewhere")
        };
        let properties = Properties::of(csr);
        match method {
            Method::Cg if !properties.symmetric => {
                return Err(MethodError::not_symmetric(system.was_symmetric));
            }
            Method::Direct => {
                let result = self.direct(system, properties.symmetric, TUNING.direct_most);
                return result.map_err(MethodError::Direct);
            }
            Method::Cg | Method::Gmres => {
                let kind = method.krylov().expect("one of the two");
                let asked = self.preconditioning;
                let how = (kind, asked.unwrap_or(properties.preconditioning()));
                let end = self.iterate_system(system, how, None)?;
                return Ok(self.finish(end));
            }
            _ => {}
        }
        // The order of a large or dominant system is not even looked for: it may take longer than iterating.
        if system.n() <= TUNING.direct_at_once_rows && !properties.is_dominant {
            let limit = Cost {
                multiplications: TUNING.direct_at_once,
                ..TUNING.direct_most
            };
            match self.direct(system, properties.symmetric, limit) {
                Ok(mut outcome) => {
                    let why = "factorised at once: that takes less than iterating would";
                    outcome.notes.insert(0, why.into());
                    return Ok(outcome);
                }
                Err(DirectError::TooLarge(_)) => {}
                Err(error) => self.notes.push(error.to_string()),
            }
        }
        let mut kind = properties.kind();
        let mut budget = Some(TUNING.sparse_budget);
        let mut preconditioning = properties.preconditioning();
        self.notes.push(format!(
            "{} with {preconditioning}: {}{}",
            kind.name(),
            properties.why(),
            if properties.is_dominant {
                ", and so dominant that few iterations are needed"
            } else {
                ""
            }
        ));
        loop {
            let end = self.iterate_system(system, (kind, preconditioning), budget)?;
            match end {
                End::Indefinite => {
                    self.notes.push(
                        "the matrix is not positive definite: GMRES went on where conjugate gradients ended".into(),
                    );
                    (kind, preconditioning) = (Kind::Gmres, Preconditioning::Ilu);
                }
                End::Slow | End::Stalled | End::Overflow if budget.is_some() => {
                    budget = None;
                    self.notes.push(gave_up(kind, end, self.iterations));
                    match self.direct(system, properties.symmetric, TUNING.direct_most) {
                        Ok(outcome) => return Ok(outcome),
                        Err(error) => {
                            self.notes.pop();
                            self.notes.push(format!("not factorised: {error}"));
                        }
                    }
                    if end == End::Overflow {
                        (kind, preconditioning) = (Kind::Gmres, Preconditioning::Jacobi);
                    }
                }
                end => return Ok(self.finish(end)),
            }
        }
    }

    fn dense(mut self, source: Source, method: Method) -> Result<Outcome, MethodError> {
        let making = Instant::now();
        let n = source.rows();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pays = (n * n / DENSE_ENTRIES_EACH).clamp(1, cores);
        let threads = self.threads.unwrap_or(pays);
        let kind = match method {
            Method::Cg => Kind::Cg,
            _ => Kind::Gmres,
        };
        let is_small = n as u64 <= TUNING.dense_rows_an_iteration * SMALL_ITERATIONS;
        let whole = match method {
            Method::Cg if !source.is_symmetric() => {
                return Err(MethodError::not_symmetric(source.was_symmetric()));
            }
            Method::Direct => true,
            Method::Auto => is_small,
            _ => false,
        };
        if whole {
            let system = source.into_system()?;
            self.seconds.load = making.elapsed().as_secs_f64();
            if method == Method::Auto {
                self.notes.push(format!(
                    "factorised at once: that takes less than iterating with {n} rows would"
                ));
            }
            return match self.direct(&system, false, DENSE_MOST) {
                Ok(outcome) => Ok(outcome),
                Err(error) if method == Method::Direct => Err(MethodError::Direct(error)),
                Err(error) => {
                    self.notes = vec![error.to_string()];
                    let how = (kind, Preconditioning::Jacobi);
                    let end = self.iterate_system(&system, how, None)?;
                    Ok(self.finish(end))
                }
            };
        }
        let budget = (method == Method::Auto && n * n <= DENSE_MOST.entries as usize)
            .then(|| (n as u64 / TUNING.dense_rows_an_iteration).max(TUNING.sparse_budget / 4));
        let (block, ranges, spare) = match source {
            Source::System(system) => {
                let ranges = partition(&system.matrix, threads)?;
                // Kept for a factorisation only where one may come.
                let spare = budget.map(|_| system.clone());
                (RowBlock::whole(system), ranges, spare)
            }
            Source::Generated(made) => {
                let ranges = in_proportion(n, &vec![1.0; threads.clamp(1, n)]);
                (made.rows(0..n), ranges, None)
            }
        };
        self.seconds.load = making.elapsed().as_secs_f64();
        let asked = self.preconditioning;
        let how = (kind, asked.unwrap_or(Preconditioning::Jacobi));
        if method == Method::Auto {
            self.notes.push(format!(
                "{} with {}: a factorisation of {n} dense rows would take longer than some iterations",
                how.0.name(),
                how.1
            ));
        }
        let budget = budget.filter(|_| spare.is_some());
        let end = self.iterate(block, ranges, how, budget);
        if let (End::Slow | End::Stalled | End::Overflow, Some(system)) = (end, spare) {
            self.notes.push(gave_up(kind, end, self.iterations));
            match self.direct(&system, false, DENSE_MOST) {
                Ok(outcome) => return Ok(outcome),
                Err(error) => {
                    self.notes.pop();
                    self.notes.push(format!("not factorised: {error}"));
                    let end = self.iterate_system(&system, how, None)?;
                    return Ok(self.finish(end));
                }
            }
        }
        Ok(self.finish(end))
    }

    /// Iterates on, from the best x so far.
    fn iterate_system(
        &mut self,
        system: &System,
        how: (Kind, Preconditioning),
        budget: Option<u64>,
    ) -> Result<End, MethodError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let pays = krylov::threads_for(&system.matrix, cores);
        let ranges = partition(&system.matrix, self.threads.unwrap_or(pays))?;
        let block = RowBlock::cut(system, 0..system.n());
        Ok(self.iterate(block, ranges, how, budget))
    }

    fn iterate(
        &mut self,
        block: RowBlock,
        ranges: Vec<Range<usize>>,
        how: (Kind, Preconditioning),
        budget: Option<u64>,
    ) -> End {
        let patience = Patience {
            limits: self.limits,
            budget,
        };
        self.used = ranges.len();
        let start = Some(self.best.x.as_slice()).filter(|x| !x.is_empty());
        let (progress, stop) = (&mut *self.progress, self.stop);
        let solved = krylov::solve(&block, ranges, how, start, &patience, progress, stop);
        self.name = format!("{} with {}", how.0.name(), solved.preconditioner);
        self.iterations += solved.ended.iterations;
        self.verifications += solved.ended.verifications;
        self.seconds.distribute += solved.setup_seconds;
        self.seconds.iterate += solved.iterate_seconds;
        self.best.take(solved.ended.residual, solved.x);
        solved.ended.end
    }

    fn direct(
        &mut self,
        system: &System,
        symmetric: bool,
        limit: Cost,
    ) -> Result<Outcome, DirectError> {
        let began = Instant::now();
        let direct = direct::solve(system, symmetric, self.limits.tolerance(), limit)?;
        self.seconds.iterate += began.elapsed().as_secs_f64();
        self.verifications += direct.solves;
        self.best.take(direct.residual, direct.x);
        let floor = self.best.residual;
        let reason = if floor <= self.limits.tolerance() {
            Reason::Converged
        } else {
            Reason::Stagnated { floor }
        };
        (self.used, self.name) = (1, direct.name.to_owned());
        Ok(self.outcome(reason))
    }

    fn finish(&mut self, end: End) -> Outcome {
        self.outcome(end.reason(self.limits, self.best.residual))
    }

    fn outcome(&mut self, reason: Reason) -> Outcome {
        let Best { residual, x } = std::mem::take(&mut self.best);
        (self.progress)(Progress {
            distributed: 1.0,
            laps_min: self.iterations,
            laps_max: self.iterations,
            residual_estimate: residual,
            elapsed: self.began.elapsed(),
        });
        Outcome {
            converged: reason.is_converged(),
            reason,
            method: std::mem::take(&mut self.name),
            residual,
            laps: vec![self.iterations; self.used],
            verifications: self.verifications,
            seconds: self.seconds,
            notes: std::mem::take(&mut self.notes),
            x,
        }
    }
}

/// Why a factorisation followed, after so many iterations.
fn gave_up(kind: Kind, end: End, iterations: u64) -> String {
    let how = match end {
        End::Stalled => "stood still",
        End::Overflow => "overflowed",
        _ => "converged slowly",
    };
    let plural = if iterations == 1 { "" } else { "s" };
    let name = kind.name();
    format!("{name} {how} ({iterations} iteration{plural}): the system was factorised")
}

/// Entries of a dense matrix for which a thread pays.
const DENSE_ENTRIES_EACH: usize = 250_000;
/// Dense systems so small that LU takes no longer than this many products are factorised at once.
const SMALL_ITERATIONS: u64 = 3;
/// Dense factorisation: 12,000 rows, about a minute.
const DENSE_MOST: Cost = Cost {
    entries: 1.44e8,
    multiplications: 1e12,
};

#[cfg(test)]
mod tests;
