//! An epoch in which a Krylov method iterates: on the worker's own rows and x, from beginning to end in one call.

use super::{Phase, Worker};
use crate::distributed::config::Mode;
use crate::distributed::space::{Parts, places};
use crate::distributed::step::WorkerFault;
use crate::distributed::watch::Cause;
use crate::krylov::{Patience, Space, Strips, iterate_strips};
use crate::local::Limits;
use std::ops::Range;

impl Worker {
    pub(super) fn is_krylov(&self) -> bool {
        let setup = self.setup.as_ref();
        setup.is_some_and(|setup| matches!(setup.config.mode, Mode::Krylov(_)))
    }

    /// Whether all workers end an epoch after the same lap or iteration.
    pub(super) fn is_in_step(&self) -> bool {
        let setup = self.setup.as_ref();
        setup.is_some_and(|setup| setup.config.mode != Mode::Async)
    }

    /// The workers of the epoch that was begun, and what goes between them.
    pub(in crate::distributed) fn parts(&self) -> Option<Parts> {
        let (setup, field) = (self.setup.as_ref()?, self.field.as_ref()?);
        let team: Vec<usize> = setup.team().collect();
        let own = setup.rows_of(self.me);
        let goes = team.iter().map(|worker| {
            let list = self.readers.lists().find(|(reader, _)| reader == worker);
            list.map_or(Vec::new(), |(_, reads)| places(reads, own.clone()))
        });
        let comes = team.iter().map(|&worker| match worker == self.me {
            true => Vec::new(),
            false => places(field.reads(worker), setup.rows_of(worker)),
        });
        Some(Parts {
            division: setup.division,
            epoch: self.epoch,
            goes: goes.collect(),
            comes: comes.collect(),
            rhs_norm: self.rhs_sq.sqrt(),
            start: own.start,
            snapshots: setup.config.snapshot_every(team.len()),
            outlives: setup.config.outlive_ms > 0,
            stops: self.stops.0,
            laps: field.laps(),
            busy: self.busy,
            team,
        })
    }

    /// Notes for how many seconds this worker has computed in all epochs, and the iterations of one that was broken off.
    pub(in crate::distributed) fn note_work(&mut self, busy: f64, broken_off: Option<u64>) {
        self.busy = busy;
        if let (Some(iterations), Some(field)) = (broken_off, &mut self.field) {
            field.count_laps(iterations);
        }
    }

    /// Iterates to the method's end, and freezes; if `space` fails, waits for the judge with the x of that moment.
    pub(in crate::distributed) fn iterate<S: Space>(
        &mut self,
        space: &mut S,
    ) -> Result<Result<(), WorkerFault>, S::Error> {
        let (Some(setup), Some(field)) = (&self.setup, &mut self.field) else {
            unreachable!("running")
        };
        let Mode::Krylov(krylov) = setup.config.mode else {
            unreachable!("asked by the step")
        };
        let rows_most = setup.ranges.iter().map(Range::len).max().unwrap_or(0);
        let left = (setup.config.max_laps)
            .saturating_sub(field.laps() as u64)
            .max(1);
        let limits = Limits::new(setup.config.tol, left);
        let mut x = field.own_x().to_vec();
        let ended = match limits {
            Ok(limits) => {
                let strips = Strips {
                    block: field.sweeper().block(),
                    strips: &self.preconditioners,
                    rows_most,
                    has_all_rows: false,
                };
                let patience = Patience::unlimited(limits);
                iterate_strips(&strips, krylov.kind, &mut x, &patience, space)
            }
            Err(_) => return Ok(Err(WorkerFault::of_judge("a tolerance out of range"))),
        };
        field.take_own(&x);
        match ended {
            Ok(ended) => {
                field.count_laps(ended.iterations);
                self.cause = Some(Cause::Krylov(ended.end));
                Ok(self.exchange_blocks())
            }
            Err(broken) => {
                self.phase = Phase::Idle;
                Err(broken)
            }
        }
    }
}
