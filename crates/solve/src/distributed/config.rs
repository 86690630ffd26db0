//! Options of a distributed run.

use crate::krylov::{Kind, Preconditioning};
use crate::local::{Inner, Precision};
use crate::report::RELAXATION;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tsumuji_board::Elements;
use tsumuji_node::Executor;

/// Whether workers wait for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Mode {
    /// Never: each uses the values that it has.
    #[default]
    Async,
    /// After each lap, for the new blocks of all others: Gauss–Seidel within blocks, Jacobi between them.
    Sync,
    /// In every iteration, of a Krylov method: for sums, and for elements of the vectors that are multiplied.
    Krylov(Krylov),
}

/// A Krylov method with its preconditioner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Krylov {
    /// The method.
    pub kind: Kind,
    /// Made by each worker of its own rows and columns.
    pub preconditioning: Preconditioning,
}

impl std::fmt::Display for Krylov {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {}", self.kind.name(), self.preconditioning)
    }
}

/// How the rows are shared among the workers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub enum Shares {
    /// Equal work for each.
    #[default]
    Equal,
    /// Work in proportion to these positive weights, one a worker.
    Weights(Vec<f64>),
    /// Equal at first, and again by the speed that was measured while some worker is much slower than others.
    Measured,
}

impl std::str::FromStr for Shares {
    type Err = SharesError;

    fn from_str(text: &str) -> Result<Self, SharesError> {
        match text {
            "auto" => return Ok(Self::Measured),
            "equal" => return Ok(Self::Equal),
            _ => {}
        }
        let weights: Option<Vec<f64>> = text
            .split(',')
            .map(|weight| {
                weight
                    .parse()
                    .ok()
                    .filter(|w: &f64| *w > 0.0 && w.is_finite())
            })
            .collect();
        weights
            .map(Self::Weights)
            .ok_or_else(|| SharesError(text.into()))
    }
}

/// The text names no shares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "weights must be `auto`, `equal` or a positive number for each worker, as 1,1,2; not `{0}`"
)]
pub struct SharesError(String);

/// Time between two snapshots at most: rows that others take over begin with values that are no older.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(1);

/// How to solve. The code that reads it from the user checks it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolveConfig {
    /// Whether workers wait for one another.
    pub mode: Mode,
    /// Which thread of a worker computes.
    pub executor: Executor,
    /// Elements per frame.
    #[serde(with = "ElementsAsSent")]
    pub elements: Elements,
    /// The method of a lap within a worker's block.
    pub inner: Inner,
    /// Threads of each worker that share its rows.
    pub threads: usize,
    /// Relaxation factor, in (0, 2).
    pub omega: f64,
    /// In how many bits sweeps read dense rows.
    pub precision: Precision,
    /// Whether another method may follow where a Krylov method fails, or waits too long.
    pub may_change: bool,
    /// Whether epochs are combined at pauses (GCR) where laps alone are slow.
    pub combines: bool,
    /// Relative residual ‖b − A x‖₂ / ‖b‖₂ to reach.
    pub tol: f64,
    /// How rows are shared.
    pub shares: Shares,
    /// Workers tell the judge their x at least so often, in milliseconds, and every second in any case; 0: only where others could take over rows.
    pub checkpoint_ms: u64,
    /// A worker that is not heard of for so long while it iterates is taken for lost, in milliseconds.
    pub lease_ms: u64,
    /// Workers whose judge died go on for so long, until another takes its place, in milliseconds; 0: they end.
    pub outlive_ms: u64,
    /// Laps after which a worker stops.
    pub max_laps: u64,
}

/// As `Elements`, which does not implement serde's traits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Elements")]
enum ElementsAsSent {
    Auto,
    Fixed(usize),
}

impl SolveConfig {
    /// Most threads of one worker.
    pub const THREADS_MOST: usize = 256;

    /// The method's name for reports.
    pub(super) fn method_name(&self) -> String {
        match self.mode {
            Mode::Krylov(krylov) => krylov.to_string(),
            Mode::Async | Mode::Sync => RELAXATION.to_owned(),
        }
    }

    /// Time between two snapshots of a worker's x, of which `workers` have rows. `None`: they are of no use.
    pub(super) fn snapshot_every(&self, workers: usize) -> Option<Duration> {
        match self.checkpoint_ms {
            0 => (workers > 1).then_some(SNAPSHOT_EVERY),
            wanted => Some(Duration::from_millis(wanted).min(SNAPSHOT_EVERY)),
        }
    }

    /// Weights of `workers` workers. `None`: the stated weights are those of another number of workers.
    pub fn weights(&self, workers: usize) -> Option<Vec<f64>> {
        match &self.shares {
            Shares::Weights(weights) => (weights.len() == workers).then(|| weights.clone()),
            Shares::Equal | Shares::Measured => Some(vec![1.0; workers]),
        }
    }
}

impl Default for SolveConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            executor: Executor::default(),
            elements: Elements::default(),
            inner: Inner::default(),
            threads: 1,
            omega: 1.0,
            precision: Precision::Double,
            may_change: false,
            combines: true,
            tol: 1e-10,
            shares: Shares::Equal,
            checkpoint_ms: 0,
            lease_ms: 10_000,
            outlive_ms: 0,
            max_laps: 100_000,
        }
    }
}
