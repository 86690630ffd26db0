//! All-reduces of `tsumuji_collective` for the methods (`worker`): all workers wait for each other, and none may be missing.

use tsumuji_collective::{CollectiveError, Collectives, GroupError, Op, TableError};
use tsumuji_node::{Endpoint, NodeId};

use super::worker::Worker;

/// Why an all-reduce failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReduceError {
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Runs the worker's method to its end.
pub(super) fn iterate(endpoint: &mut Endpoint, worker: &mut Worker) -> Result<(), ReduceError> {
    let mut collectives = Collectives::new(endpoint)?;
    let workers: Vec<NodeId> = endpoint.members()[1..]
        .iter()
        .map(|member| member.id)
        .collect();
    let group = collectives.group(endpoint, &workers, 1)?;
    worker.reduce(|values| Ok(collectives.all_reduce(endpoint, group, values, &Op::sum())?))
}
