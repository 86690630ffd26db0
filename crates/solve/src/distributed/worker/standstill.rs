//! The end of an epoch, or of a synchronous lap: blocks go to all who read them, and what others send is awaited.

use super::{Cause, Phase, Worker};
use crate::distributed::config::Mode;
use crate::distributed::message::{Answer, Estimate, Frozen, Note, Piece};
use crate::distributed::step::{Out, To, Way, WorkerFault};
use crate::distributed::worker::PIECE_VALUES;
use tsumuji_board::Reads;

impl Worker {
    /// Stops iterating, or ends a lap of a synchronous run: sends the own block to all others, and waits for theirs.
    pub(in crate::distributed) fn exchange_blocks(&mut self) -> Result<(), WorkerFault> {
        self.phase = Phase::Exchanging;
        self.send_block();
        self.take_blocks()
    }

    pub(super) fn send_block(&mut self) {
        self.stops.1 = self.stops.0;
        let Some(field) = &mut self.field else {
            unreachable!("relaxing")
        };
        let lap = field.freeze().get();
        let own = field.sweeper().block().rows.start;
        for (worker, reads) in self.readers.lists() {
            let values = field.own_read(reads);
            let first = match reads {
                Reads::Whole => own,
                Reads::Packed(_) => 0,
            };
            // At least one piece: it carries the lap and the estimate.
            for part in 0..values.len().div_ceil(PIECE_VALUES).max(1) {
                let places = part * PIECE_VALUES..values.len().min((part + 1) * PIECE_VALUES);
                let piece = Note::Piece(Piece {
                    epoch: self.epoch,
                    lap,
                    estimate: field.estimate(),
                    stops: self.stops.1,
                    start: first + places.start,
                    values: values[places].to_vec(),
                });
                self.out.push_back(Out {
                    to: To::Worker(worker),
                    way: Way::Bulk,
                    bytes: piece.encode(),
                });
            }
        }
    }

    /// Goes on if the blocks of all others have arrived.
    pub(super) fn take_blocks(&mut self) -> Result<(), WorkerFault> {
        let (Phase::Exchanging | Phase::Joining, Some(setup), Some(field)) =
            (&self.phase, &self.setup, &mut self.field)
        else {
            return Ok(());
        };
        let (workers, mode, lap) = (setup.workers(), setup.config.mode, field.lap());
        for (from, piece) in self.blocks.take_ready(mode, self.epoch, lap) {
            let installed = self
                .blocks
                .install(field, setup.rows_of(from), from, &piece);
            installed.map_err(|_| WorkerFault::of_worker("a block that is not its own"))?;
        }
        let awaited = (mode, self.epoch, lap);
        let is_whole = |worker| worker == self.me || self.blocks.is_whole(awaited, worker, field);
        let all = setup.team().all(is_whole);
        if !all {
            return Ok(());
        }
        if self.phase == Phase::Joining {
            self.be_ready();
            return Ok(());
        }
        let cause = match mode {
            Mode::Async => None,
            Mode::Krylov(_) => self.cause,
            Mode::Sync => match self.judge_lap() {
                Some(cause) => Some(cause),
                None => {
                    self.field
                        .as_mut()
                        .expect("exchanging after relaxing")
                        .next_lap();
                    self.phase = Phase::Running;
                    return Ok(());
                }
            },
        };
        self.phase = Phase::Frozen;
        let field = self.field.as_ref().expect("exchanging after relaxing");
        let answer = Answer::Frozen(Frozen {
            epoch: self.epoch,
            held: field.held(workers),
            laps: self.laps(),
            cause,
        });
        self.tell(Way::Control, &answer);
        Ok(())
    }

    /// Whether the estimates of all workers for this lap end the epoch (sync). All workers add the same numbers in the same order.
    fn judge_lap(&mut self) -> Option<Cause> {
        let field = self.field.as_ref().expect("a lap is done");
        let (mut sum, mut any_stops) = (Estimate::default(), false);
        for worker in self.setup.as_ref().expect("before the laps").team() {
            let (estimate, stops) = if worker == self.me {
                (field.estimate(), self.stops.1)
            } else {
                self.blocks.told(worker)
            };
            any_stops |= stops;
            sum.measured_sq += estimate.measured_sq;
            sum.expected_sq += estimate.expected_sq;
        }
        if self.watch.is_candidate(sum.expected_sq) {
            return Some(Cause::Candidate);
        }
        // Laps of this division, which are the same everywhere.
        let trouble = self.watch.trouble(sum.measured_sq, field.walk().progress());
        trouble.or(any_stops.then_some(Cause::Interrupt))
    }
}
