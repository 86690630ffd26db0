//! `tsumuji worker`: started by `tsumuji solve` for each worker. Not for users.
//!
//! All its input comes by messages. Errors are reported to the launcher, which names the worker to the user.

use tsumuji_node::Endpoint;
use tsumuji_solve::distributed::{WorkerError, WorkerFault, worker_main};

use crate::{BAD_INPUT, NOT_REACHED, Outcome, team};

/// Runs a launched worker.
pub(crate) fn run() -> Outcome {
    team::work(worker_main)
}

/// Runs a worker that was started by hand, as a node of the hosts file.
pub(crate) fn serve_host(endpoint: Endpoint) -> Outcome {
    team::work_by_hand(endpoint, worker_main, |error| match error {
        WorkerError::Fault(WorkerFault::Aborted { .. }) => NOT_REACHED,
        _ => BAD_INPUT,
    })
}
