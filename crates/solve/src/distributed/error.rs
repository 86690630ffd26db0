//! Why a distributed run has no result.

use crate::local::{LimitsError, RelaxationError};
use crate::system::PartitionError;
use tsumuji_node::{EndpointError, NodeId, SendError};

/// Why a distributed run has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SolveError {
    /// The rows cannot be partitioned.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// Tolerance or laps are out of range.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// ω or the inner solver are not usable.
    #[error(transparent)]
    Relaxation(#[from] RelaxationError),
    /// This node is not the judge, which is node 0.
    #[error("the judge must be node 0, not {me}")]
    NotTheJudge {
        /// This node.
        me: NodeId,
    },
    /// A worker's process ended or fell silent.
    #[error("{worker} was lost: {cause}")]
    WorkerLost {
        /// Its name.
        worker: String,
        /// The known cause.
        cause: String,
    },
    /// A worker's process ended; the launcher's message names it.
    #[error("{0}")]
    WorkerEnded(String),
    /// A worker reported a failure.
    #[error("{worker} gave up: {why}")]
    WorkerFailed {
        /// Its name.
        worker: String,
        /// The worker's message.
        why: String,
    },
    /// A worker broke the protocol: it is not the same program.
    #[error("{worker} sent {what}; run the same version on every host")]
    Protocol {
        /// Its name.
        worker: String,
        /// What was wrong.
        what: &'static str,
    },
    /// The workers hold rows of another system.
    #[error(
        "{worker} holds rows of another system than this: give the same matrix, right-hand side, seed and number of workers as its judge had"
    )]
    OtherSystem {
        /// Its name.
        worker: String,
    },
    /// No worker holds rows.
    #[error("no worker holds rows of a run whose judge died: there is nothing to take over")]
    NothingToTakeOver,
    /// The user wanted to stop before there was an x to return.
    #[error("interrupted before the tolerance was reached")]
    Interrupted,
    /// Blocks that were sent reliably differ between workers.
    #[error(
        "workers hold different values after exchanging them; this is a defect, please report it with the seed"
    )]
    Disagreement,
    /// This node's link failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}
