//! What a worker hands to its driver: messages to send, and the next thing to do; and why it gives up.

use crate::local::{Relaxation, RelaxationError};
use crate::system::{GenerateError, Generated, RowBlock, RowsError};
use std::ops::Range;

/// Why a worker ends without the judge's order to leave.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFault {
    /// A message does not parse or fit.
    #[error("{from} sent {what}; run the same version on every host")]
    Protocol {
        /// The sender.
        from: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// The rows are damaged.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The rows cannot be made.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The rows cannot be relaxed as asked.
    #[error(transparent)]
    Relaxation(#[from] RelaxationError),
    /// The judge aborted the run.
    #[error("the run was given up: {why}")]
    Aborted {
        /// The judge's reason.
        why: String,
    },
}

impl WorkerFault {
    pub(super) fn of_judge(what: &'static str) -> Self {
        let from = "the judge";
        Self::Protocol { from, what }
    }

    pub(super) fn of_worker(what: &'static str) -> Self {
        let from = "another worker";
        Self::Protocol { from, what }
    }
}

/// Receiver of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Judge,
    Worker(usize),
}

/// One of two sequences; within each, messages arrive in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Small and urgent.
    Control,
    /// Rows, blocks, solutions.
    Bulk,
}

/// A message that waits to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Out {
    pub(super) to: To,
    pub(super) way: Way,
    pub(super) bytes: Vec<u8>,
}

/// Action for the driver after a step.
#[derive(Debug)]
pub(super) enum Step {
    /// Poll, then step again. The flag: a lap is complete, so this is a good time to yield the core.
    Again(bool),
    /// A lap of a synchronous run is complete: call `exchange_blocks`.
    Lap,
    /// Call `iterate`, which takes until the epoch ends.
    Iterate,
    /// Wait for messages or a short time, then step again.
    Rest,
    /// Wait for messages.
    Wait,
    /// Make a sweeper of these (may take seconds) and pass it to `built`.
    Build(Box<Rows>, Relaxation),
    /// Compute `exact_residual` (one pass over the rows) and pass it to `verified`.
    Verify,
    /// Pass the counters to `finish`.
    Count,
    /// Send waiting messages, then leave.
    Leave,
}

/// What a worker's block is put together from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rows {
    /// Rows that it had before, of which those in `rows` are kept.
    pub(super) kept: Option<RowBlock>,
    pub(super) fresh: Fresh,
    /// All rows of the block.
    pub(super) rows: Range<usize>,
}

/// Rows that are new to a worker, or how to make them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fresh {
    Here(Vec<RowBlock>),
    Made(Generated, Vec<Range<usize>>),
}

impl Rows {
    /// The block. `None`: its parts are not all of its rows.
    pub(super) fn make(self) -> Option<RowBlock> {
        let mut parts = match self.fresh {
            Fresh::Here(blocks) => blocks,
            Fresh::Made(made, ranges) => ranges.into_iter().map(|rows| made.rows(rows)).collect(),
        };
        // What is not new is one range; the judge does not count on more than it knows to be here.
        parts.sort_by_key(|block| block.rows.start);
        let mut gap = self.rows.clone();
        for part in &parts {
            if part.rows.start == gap.start {
                gap.start = part.rows.end;
            } else {
                gap.end = gap.end.min(part.rows.start);
            }
        }
        let kept = self.kept.filter(|_| !gap.is_empty());
        parts.extend(kept.and_then(|block| block.narrowed(&gap)));
        parts.sort_by_key(|block| block.rows.start);
        RowBlock::joined(parts).filter(|block| block.rows == self.rows)
    }
}
