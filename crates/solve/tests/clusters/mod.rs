//! Clusters of endpoints in one process, over real links. Used by tests, and by examples for what they
//! measure.

#![allow(dead_code, reason = "not all users need all of it")]

#[path = "../../../node/tests/common/clusters.rs"]
mod endpoints;

use std::thread::{self, JoinHandle};

pub(crate) use endpoints::{Over, cluster};
use tsumuji_node::{Endpoint, Options};
use tsumuji_solve::distributed::{
    SolveConfig, Solved, Start, Watch, WorkerError, run, worker_main,
};
use tsumuji_solve::report::Progress;
use tsumuji_solve::system::Source;

/// Drives a worker by a thread of its own.
pub(crate) fn serve(mut endpoint: Endpoint) -> JoinHandle<Result<(), WorkerError>> {
    thread::spawn(move || worker_main(&mut endpoint))
}

/// Runs judge and workers to the end; every worker must leave in good order.
pub(crate) fn solve(
    over: Over,
    workers: u16,
    loss: f64,
    source: &Source,
    config: &SolveConfig,
) -> Solved {
    let mut nodes = cluster(over, workers + 1, loss, &Options::default()).into_iter();
    let mut judge = nodes.next().unwrap();
    let team: Vec<_> = nodes.map(serve).collect();
    let (mut count, mut nobody) = (|_: Progress| (), Vec::new);
    let watch = quiet(&mut nobody, &mut count);
    // A failure is told before workers are waited for: they may not end.
    let solved = run(&mut judge, source, config, Start::default(), watch).unwrap();
    for worker in team {
        worker.join().unwrap().unwrap();
    }
    solved
}

/// Tells nothing, and never stops.
pub(crate) fn quiet<'a>(
    ended: &'a mut dyn FnMut() -> Vec<(usize, String)>,
    progress: &'a mut dyn FnMut(Progress),
) -> Watch<'a> {
    Watch {
        progress,
        ended,
        stop: &|| false,
        checkpoint: None,
    }
}
