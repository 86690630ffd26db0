//! State shared by the launcher and its keeper, and how the launcher waits for changes.
//!
//! Written by `keeper` (and `launcher`: its requests). Invariant: each field is written in one step, so the state is valid even if a thread panicked
//! while it held the lock.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tsumuji_proto::NodeId;

use super::frames::UserSignal;
use super::rendezvous::TableEntry;
use crate::exit::{WorkerExit, WorkerFailure};

/// State shared by the launcher and its keeper.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// All children run (or spawning failed, see `failure`).
    pub(super) spawned: bool,
    /// Process id of each worker.
    pub(super) pids: Vec<(NodeId, u32)>,
    /// The whole table, once every worker has reported.
    pub(super) table: Option<Vec<TableEntry>>,
    /// The first worker that failed.
    pub(super) failure: Option<WorkerFailure>,
    /// Workers whose processes have ended, in that order.
    pub(super) exits: Vec<WorkerExit>,
    /// Error of writing the workers' output.
    pub(super) stdout_error: Option<std::io::Error>,
    /// Every child is reaped; output may be left.
    pub(super) ended: bool,
    /// The keeper has nothing left to do: every child is reaped, and all output was written or given up.
    pub(super) finished: bool,
    /// The launcher wants to stop: TERM now, KILL after this grace.
    pub(super) stop: Option<Duration>,
    /// Signals to pass on; as in the kernel, one of a kind waits.
    pub(super) signals: BTreeSet<UserSignal>,
    /// The workers are to be suspended.
    pub(super) pause: bool,
    /// They are, as far as the keeper can tell.
    pub(super) is_paused: bool,
    /// The launcher itself waits for the table.
    pub(super) waiting: bool,
}

impl Shared {
    /// Ignores poisoning: each field is written in one step.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` or the deadline (`None`: for ever).
    pub(super) fn wait(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let (state, waits) = (self.lock(), |state: &mut State| !done(state));
        let Some(deadline) = deadline else {
            let waited = self.changed.wait_while(state, waits);
            return waited.unwrap_or_else(PoisonError::into_inner);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(state, left, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}
