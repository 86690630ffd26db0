//! Clusters of endpoints in one process, over real links. Used by tests, and by the example `simulated_gossip` for what it measures.

#![allow(dead_code, reason = "not all users need all of it")]

#[path = "../../../node/tests/common/clusters.rs"]
mod endpoints;

use std::thread::{self, JoinHandle};

pub(crate) use endpoints::{Over, cluster};
use tsumuji_learn::gossip::{Watch, WorkerError, run, worker_main};
use tsumuji_learn::report::Outcome;
use tsumuji_learn::{LearnConfig, Mode, Problem};
use tsumuji_node::{Endpoint, Options};

/// Drives a worker by a thread of its own.
pub(crate) fn serve(mut endpoint: Endpoint) -> JoinHandle<Result<(), WorkerError>> {
    thread::spawn(move || worker_main(&mut endpoint))
}

/// Knows of no process, and never stops.
pub(crate) struct Nobody;

impl Watch for Nobody {}

/// Runs judge and workers to the end; every worker must leave in good order.
pub(crate) fn learn(
    over: Over,
    workers: u16,
    loss: f64,
    problem: &Problem,
    config: &LearnConfig,
    mode: Mode,
) -> Outcome {
    let mut nodes = cluster(over, workers + 1, loss, &Options::default()).into_iter();
    let mut judge = nodes.next().unwrap();
    let team: Vec<_> = nodes.map(serve).collect();
    // A failure is told before workers are waited for: they may not end.
    let outcome = run(&mut judge, problem, config, mode, &mut Nobody).unwrap();
    for worker in team {
        worker.join().unwrap().unwrap();
    }
    outcome
}
