//! Options of a distributed run.

use crate::local::Inner;
use crate::system::Solution;
use serde::{Deserialize, Serialize};
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
}

/// How to solve. The code that reads it from the user checks it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolveConfig {
    /// Whether workers wait for one another.
    pub mode: Mode,
    /// Which thread of a worker computes.
    #[serde(with = "ExecutorAsSent")]
    pub executor: Executor,
    /// Elements per frame.
    #[serde(with = "ElementsAsSent")]
    pub elements: Elements,
    /// The method of a lap within a worker's block.
    pub inner: Inner,
    /// Relaxation factor, in (0, 2).
    pub omega: f64,
    /// Whether epochs are combined at pauses (GCR) where laps alone are slow.
    pub combines: bool,
    /// Relative residual ‖b − A x‖₂ / ‖b‖₂ to reach.
    pub tol: f64,
    /// Laps after which a worker stops.
    pub max_laps: u64,
    /// Of generated systems.
    pub solution: Solution,
    /// Seed of every random choice.
    pub seed: u64,
}

/// As `Elements`, which does not implement serde's traits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Elements")]
enum ElementsAsSent {
    Auto,
    Fixed(usize),
}

/// As `Executor`, which does not implement serde's traits.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Executor")]
enum ExecutorAsSent {
    RunToCompletion,
    Pipeline,
    Adaptive,
}

impl Default for SolveConfig {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            executor: Executor::default(),
            elements: Elements::default(),
            inner: Inner::default(),
            omega: 1.0,
            combines: true,
            tol: 1e-10,
            max_laps: 100_000,
            solution: Solution::Ones,
            seed: 1,
        }
    }
}
