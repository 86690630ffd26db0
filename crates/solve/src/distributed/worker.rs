//! A worker as a state machine: messages and datagrams in, messages out, steps of work between. No clock, no link, no thread.
//!
//! Driven by `worker_main`. Phases: rows arrive → they are prepared → workers tell each other what they read → the judge orders to begin → relax until
//! pause → freeze, exchange blocks, tell the judge their stamps → exact residual of the own rows → begin again, or deliver the results and leave. A new
//! setup, in any phase, divides the rows anew: what this worker has of its new rows is kept, with x.
//!
//! Invariants: a worker sends `Frozen` only after it has every other worker's block of that epoch, so equal stamps mean equal x; between `Frozen` and
//! the answer to `Verify` x does not change. A message that does not fit the phase is a failure of the run; a late one (of an older epoch or division)
//! is dropped.

use super::beside::Handover;
use super::blocks::{Blocks, Misfit};
use super::config::Mode;
use super::field::{Carried, Exact, Field, Outlet};
use super::loading::Loading;
use super::message::{
    Answer, Note, Order, Piece, RowSource, Setup, Standing, WorkerStats, is_older,
};
use super::readers::Readers;
use super::step::{Out, Rows, Step, To, Way, WorkerFault};
use super::watch::{Cause, Watch};
use crate::krylov::Preconditioner;
use crate::local::{Inner, Relaxation, Sweeper};
use crate::system::{Generate, RowBlock};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use tsumuji_board::Elements;
use tsumuji_node::{Executor, Stepped};
use tsumuji_wire::Datagram;

/// Values in one message between workers or to the judge: 256 KiB, so that every message is small compared with the receiver's budget. In tests so
/// few that every block is several messages.
pub(super) const PIECE_VALUES: usize = if cfg!(test) { 5 } else { 32 << 10 };

/// Most values of another worker's block that are kept before the first setup: 128 MB.
const BEFORE_SETUP_VALUES: usize = 1 << 22;

mod krylov;
mod standstill;

#[derive(Debug, PartialEq)]
enum Phase {
    Loading,
    /// All rows have arrived, or are known how to make.
    Loaded,
    Building,
    /// Waits to hear what the others read.
    Meeting,
    /// Waits for the blocks of the others with which a division begins.
    Joining,
    /// Waits for `Begin`.
    Idle,
    Running,
    /// Has frozen (async) or finished a lap (sync), and waits for the others' blocks.
    Exchanging,
    /// Has sent `Frozen`.
    Frozen,
    /// The flag: Σ (|b| + |A| |x|)² is wanted, too.
    Verifying(bool),
    Counting,
    Finished,
    Left,
}

#[derive(Debug)]
pub(super) struct Worker {
    me: usize,
    capacity_bytes: usize,
    phase: Phase,
    setup: Option<Box<Setup>>,
    loading: Loading,
    /// Rows of the last division, while there is no field.
    kept: Option<RowBlock>,
    carried: Carried,
    field: Option<Field>,
    /// Of each thread's rows, where a Krylov method iterates.
    preconditioners: Vec<(Range<usize>, Preconditioner)>,
    /// The best x so far, of the own rows.
    best: Option<Vec<f64>>,
    /// Why this worker ended the epoch, where workers do.
    cause: Option<Cause>,
    /// This worker was told to stop after a lap (sync); the second: the others have been told with its last block.
    stops: (bool, bool),
    epoch: u32,
    /// ‖b‖₂².
    rhs_sq: f64,
    watch: Watch,
    blocks: Blocks,
    readers: Readers,
    /// Answer to give once this worker is ready.
    ready: Option<Answer>,
    snapshot_ns: u64,
    /// Seconds in which this worker computed while Krylov methods iterated.
    busy: f64,
    out: VecDeque<Out>,
}

impl Worker {
    /// `me` counts workers from 0. `capacity_bytes`: values that one datagram holds.
    pub(super) fn new(me: usize, capacity_bytes: usize) -> Self {
        Self {
            me,
            capacity_bytes,
            phase: Phase::Loading,
            setup: None,
            loading: Loading::default(),
            kept: None,
            carried: Carried::default(),
            field: None,
            preconditioners: Vec::new(),
            best: None,
            cause: None,
            stops: (false, false),
            epoch: 0,
            busy: 0.0,
            rhs_sq: 0.0,
            watch: Watch::new(0.0, 0, 0.0, 0),
            blocks: Blocks::default(),
            readers: Readers::default(),
            ready: None,
            snapshot_ns: 0,
            out: VecDeque::new(),
        }
    }

    /// The next message to send.
    pub(super) fn out(&mut self) -> &mut VecDeque<Out> {
        &mut self.out
    }

    /// Whether everything was delivered: silence of others is no failure any more.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Left)
    }

    /// Gives the numbers to another thread that computes, if this worker relaxes now. Until they are given back,
    /// `datagram`, `order`, `piece` and `step` are not to be called.
    pub(super) fn hand_over(&mut self) -> Option<Handover> {
        self.relaxing()?;
        let mode = self.setup.as_ref()?.config.mode;
        self.field.take().map(|field| Handover::new(field, mode))
    }

    /// Takes the numbers back. `lap`: a lap of a synchronous run is complete.
    pub(super) fn take_back(&mut self, field: Field, lap: bool) -> Result<(), WorkerFault> {
        self.field = Some(field);
        if lap {
            return self.exchange_blocks();
        }
        Ok(())
    }

    /// The numbers while this worker relaxes by itself.
    pub(super) fn relaxing(&self) -> Option<&Field> {
        (self.phase == Phase::Running && !self.is_krylov())
            .then_some(self.field.as_ref())
            .flatten()
    }

    /// Whether this worker relaxes now.
    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether several updates may share a frame.
    pub(super) fn joins_updates(&self) -> bool {
        let config = self.setup.as_ref().map(|setup| &setup.config);
        config.is_none_or(|config| config.elements == Elements::Auto)
    }

    /// The workers that are to compute; known once the setup is.
    pub(super) fn executor(&self) -> Option<Executor> {
        self.setup.as_ref().map(|setup| setup.config.executor)
    }

    /// How many threads compute; one until the setup is known.
    pub(super) fn threads(&self) -> usize {
        self.setup.as_ref().map_or(1, |setup| setup.config.threads)
    }

    /// Records time spent on receiving.
    pub(super) fn exchanged(&mut self, spent_ns: u64) {
        if let (Phase::Running, Some(field)) = (&self.phase, &mut self.field) {
            field.exchanged(spent_ns);
        }
    }

    /// Takes a datagram of the board. In any phase: stamps decide, and those of a frozen block are the newest there are.
    pub(super) fn datagram(&mut self, datagram: &Datagram<'_>) {
        if let (Some(field), Some(Mode::Async)) = (
            &mut self.field,
            self.setup.as_ref().map(|setup| setup.config.mode),
        ) {
            field.take(datagram);
        }
    }

    /// Reports that another worker fell silent; the judge decides.
    pub(super) fn peer_lost(&mut self, worker: usize) {
        if !self.is_finished() {
            self.tell(Way::Control, &Answer::PeerLost { worker });
        }
    }

    /// Reports that the driver failed.
    pub(super) fn failed(&mut self, why: String) {
        self.tell(Way::Control, &Answer::Failed { why });
        self.phase = Phase::Left;
    }

    /// Takes a message from the judge.
    pub(super) fn order(&mut self, bytes: &[u8]) -> Result<(), WorkerFault> {
        let bad = |what| Err(WorkerFault::of_judge(what));
        if let Some((&Order::ROWS, rows)) = bytes.split_first() {
            return self.rows(rows); // without the copy that `parse` makes
        }
        let order = match Order::parse(bytes) {
            Some(order) => order,
            None => return bad("a message that does not parse"),
        };
        let is_late = |epoch: u32| is_older(epoch, self.epoch);
        match (order, &self.phase) {
            (Order::Abort { why }, _) => Err(WorkerFault::Aborted { why }),
            (_, Phase::Left) => Ok(()),
            (Order::Setup(setup), _) => self.set_up(setup),
            (Order::AskState, _) => {
                self.tell(Way::Control, &Answer::Standing(self.standing()));
                Ok(())
            }
            (Order::Values { start, values }, Phase::Loading) => {
                self.loading.values(&mut self.carried.x, start, &values)?;
                if self.loading.is_whole() {
                    self.phase = Phase::Loaded;
                }
                Ok(())
            }
            (Order::Begin { epoch, .. }, _) if is_late(epoch) => Ok(()),
            (
                Order::Begin {
                    epoch,
                    rhs_sq,
                    watch,
                    keeps,
                    factors,
                },
                Phase::Idle | Phase::Frozen,
            ) => {
                if keeps {
                    let field = self.field.as_ref().expect("idle after building");
                    self.best = Some(field.own_x().to_vec());
                }
                if !self.begin(epoch, rhs_sq, watch, &factors) {
                    return bad("factors for epochs that never were");
                }
                Ok(())
            }
            (
                Order::Pause { epoch } | Order::Verify { epoch, .. } | Order::Finish { epoch, .. },
                _,
            ) if is_late(epoch) => Ok(()),
            // No worker may stop before another that has not heard of it. The epoch may have ended by itself.
            (Order::Pause { epoch }, _) if epoch == self.epoch && self.is_in_step() => {
                self.stops.0 = true;
                Ok(())
            }
            (Order::Pause { epoch }, Phase::Running) if epoch == self.epoch => {
                self.exchange_blocks()
            }
            (Order::Verify { epoch, magnitude }, Phase::Frozen) if epoch == self.epoch => {
                self.phase = Phase::Verifying(magnitude);
                Ok(())
            }
            (Order::Finish { epoch, is_kept }, Phase::Frozen) if epoch == self.epoch => {
                if is_kept && self.best.is_none() {
                    return bad("an x that was not kept");
                }
                self.best = self.best.take().filter(|_| is_kept);
                self.phase = Phase::Counting;
                Ok(())
            }
            // In the second case it has joined too late.
            (Order::Leave, Phase::Finished | Phase::Loading) => {
                self.phase = Phase::Left;
                Ok(())
            }
            (_, _) => bad("an order that does not fit"),
        }
    }

    /// What this worker holds, for a new judge.
    fn standing(&self) -> Standing {
        let kept = self.kept.as_ref();
        let block = self
            .field
            .as_ref()
            .map(|field| field.sweeper().block())
            .or(kept);
        let setup = self.setup.as_ref();
        Standing {
            division: setup.map_or(0, |setup| setup.division),
            epoch: self.epoch,
            n: block.map_or(0, |block| block.columns),
            rows: block.map_or(0..0, |block| block.rows.clone()),
            system: setup.map_or(0, |setup| setup.system),
            laps: self.field.as_ref().map_or(0.0, Field::laps),
        }
    }

    /// There is no judge any more. Returns whether that is no failure: everything was delivered.
    pub(super) fn deserted(&mut self) -> bool {
        if self.is_finished() {
            self.phase = Phase::Left;
        }
        self.is_finished()
    }

    /// How long this worker goes on without a judge.
    pub(super) fn outlive_ms(&self) -> u64 {
        self.setup
            .as_ref()
            .map_or(0, |setup| setup.config.outlive_ms)
    }

    /// Takes a message from another worker.
    pub(super) fn note(&mut self, from: usize, bytes: &[u8]) -> Result<(), WorkerFault> {
        let fault = WorkerFault::of_worker;
        match Note::parse(bytes).ok_or(fault("a message that does not parse"))? {
            Note::Piece(piece) => self.piece(from, piece),
            Note::Reads {
                division,
                packed,
                last,
                elements,
            } => {
                if !self.readers.hear((division, from), packed, last, elements) {
                    return Err(fault("a list of elements that does not fit"));
                }
                self.meet()
            }
        }
    }

    /// Goes on once this worker knows what all others read.
    fn meet(&mut self) -> Result<(), WorkerFault> {
        let (Phase::Meeting, Some(field), Some(setup)) =
            (&self.phase, &mut self.field, &self.setup)
        else {
            return Ok(());
        };
        if self.readers.lists().count() + 1 < setup.team().count() {
            return Ok(());
        }
        for (worker, reads) in self.readers.lists() {
            let is_other = worker != self.me && !setup.rows_of(worker).is_empty();
            if !is_other || !field.set_reader(worker, reads.clone()) {
                let what = "a list of elements that are not this worker's";
                return Err(WorkerFault::of_worker(what));
            }
        }
        if setup.exchanges {
            self.phase = Phase::Joining;
            self.send_block();
            return self.take_blocks();
        }
        self.be_ready();
        Ok(())
    }

    fn be_ready(&mut self) {
        self.phase = Phase::Idle;
        if let Some(ready) = self.ready.take() {
            self.tell(Way::Control, &ready);
        }
    }

    fn piece(&mut self, from: usize, piece: Piece) -> Result<(), WorkerFault> {
        let misfit = |_: Misfit| WorkerFault::of_worker("a block that is not its own");
        let Some(setup) = &self.setup else {
            return self
                .blocks
                .keep(from, piece, BEFORE_SETUP_VALUES)
                .map_err(misfit);
        };
        if from == self.me || is_older(piece.epoch, self.epoch) {
            return Ok(()); // late
        }
        let is_current = setup.config.mode != Mode::Sync && piece.epoch == self.epoch;
        match &mut self.field {
            Some(field) if is_current && self.phase != Phase::Meeting => {
                let rows = setup.rows_of(from);
                let installed = self.blocks.install(field, rows, from, &piece);
                installed.map_err(misfit)?;
            }
            _ => self.blocks.keep(from, piece, setup.n()).map_err(misfit)?,
        }
        self.take_blocks()
    }

    /// Does one step of work.
    pub(super) fn step<O: Outlet>(&mut self, outlet: &mut O) -> Result<Step, O::Error> {
        match &self.phase {
            Phase::Loading
            | Phase::Building
            | Phase::Meeting
            | Phase::Joining
            | Phase::Idle
            | Phase::Exchanging
            | Phase::Frozen
            | Phase::Finished => Ok(Step::Wait),
            Phase::Loaded => Ok(self.take_block()),
            Phase::Verifying(_) => Ok(Step::Verify),
            Phase::Counting => Ok(Step::Count),
            Phase::Left => Ok(Step::Leave),
            Phase::Running => {
                let (Some(field), Some(setup)) = (&mut self.field, &self.setup) else {
                    unreachable!("running")
                };
                match setup.config.mode {
                    Mode::Async => match field.step_async(outlet)? {
                        Stepped::Again(lap) => {
                            if lap {
                                self.snapshot(outlet.now_ns());
                            }
                            Ok(Step::Again(lap))
                        }
                        Stepped::Rests | Stepped::Ended => Ok(Step::Rest),
                    },
                    Mode::Sync => {
                        let lap = field.step_sync(outlet)?;
                        if lap {
                            self.snapshot(outlet.now_ns());
                        }
                        Ok(if lap { Step::Lap } else { Step::Again(false) })
                    }
                    Mode::Krylov(_) => Ok(Step::Iterate),
                }
            }
        }
    }

    /// Whether the judge is to know the own x again, and nothing else waits to be sent.
    pub(super) fn owes_snapshot(&self, now_ns: u64) -> bool {
        let every = |setup: &Setup| setup.config.snapshot_every(setup.team().count());
        let since_ns = now_ns.wrapping_sub(self.snapshot_ns);
        let is_time = |every: Duration| u128::from(since_ns) >= every.as_nanos();
        self.out.is_empty() && (self.setup.as_deref()).and_then(every).is_some_and(is_time)
    }

    /// Sends the judge the own x, if it is owed.
    pub(super) fn snapshot(&mut self, now_ns: u64) {
        if !self.owes_snapshot(now_ns) {
            return;
        }
        let (Some(field), Some(setup)) = (&self.field, &self.setup) else {
            return;
        };
        self.snapshot_ns = now_ns;
        let (start, division) = (field.sweeper().block().rows.start, setup.division);
        let parts: Vec<Answer> = Answer::snapshot(division, start, field.own_x()).collect();
        parts.iter().for_each(|part| self.tell(Way::Bulk, part));
    }

    /// Takes the result of [`Step::Build`].
    pub(super) fn built(&mut self, sweeper: Sweeper) -> Result<(), WorkerFault> {
        let setup = self.setup.as_ref().expect("rows came after the setup");
        let rhs_sq = crate::local::kernels::sum_of_squares(&sweeper.block().rhs);
        let mut notes: Vec<String> = sweeper.note().map(str::to_owned).into_iter().collect();
        if let Mode::Krylov(krylov) = setup.config.mode {
            self.preconditioners = sweeper.each_strip(|rows| {
                let made = Preconditioner::new(sweeper.block(), &rows, krylov.preconditioning);
                (rows, made)
            });
            let differs = |(_, made): &(_, Preconditioner)| made.differs(krylov.preconditioning);
            notes.extend(self.preconditioners.iter().find_map(differs).map(|made| {
                // The same of all workers, so that it is told once.
                let asked = krylov.preconditioning;
                format!("rows are preconditioned by {made} where there is no {asked}")
            }));
        }
        let carried = std::mem::take(&mut self.carried);
        let mut field = Field::new(sweeper, setup, (self.me, self.capacity_bytes), carried);
        if let Some(elements) = setup.first_elements {
            field.start_elements_from(elements);
        }
        let division = setup.division;
        for worker in setup.team().filter(|worker| *worker != self.me) {
            let notes = Note::of_reads(division, field.reads(worker));
            self.out.extend(notes.into_iter().map(|bytes| Out {
                to: To::Worker(worker),
                way: Way::Bulk,
                bytes,
            }));
        }
        self.field = Some(field);
        self.ready = Some(Answer::Ready {
            division,
            rhs_sq,
            notes,
        });
        self.phase = Phase::Meeting;
        self.meet()
    }

    /// Computes the residual for [`Step::Verify`]; `between` is called now and then.
    pub(super) fn exact_residual(&self, between: &mut dyn FnMut()) -> Exact {
        let field = self.field.as_ref().expect("verified after relaxing");
        field.exact_residual(self.phase == Phase::Verifying(true), between)
    }

    /// Takes the result of [`Step::Verify`].
    pub(super) fn verified(&mut self, exact: Exact) {
        self.phase = Phase::Frozen;
        let (epoch, field) = (
            self.epoch,
            self.field.as_mut().expect("verified after relaxing"),
        );
        let (residual_sq, magnitude_sq) = (exact.residual_sq, exact.magnitude_sq);
        let dots = field.remember(exact);
        self.tell(
            Way::Control,
            &Answer::Residual {
                epoch,
                residual_sq,
                magnitude_sq,
                dots,
            },
        );
    }

    /// Takes the result of [`Step::Count`]; laps, datagrams and elements are filled in here.
    pub(super) fn finish(&mut self, stats: WorkerStats) {
        let field = self.field.as_ref().expect("finished after relaxing");
        let start = field.sweeper().block().rows.start;
        let x = self.best.as_deref().unwrap_or_else(|| field.own_x());
        let parts = x.chunks(PIECE_VALUES).enumerate();
        let mut answers: Vec<Answer> = parts
            .map(|(part, values)| Answer::Solution {
                epoch: self.epoch,
                start: start + part * PIECE_VALUES,
                values: values.to_vec(),
            })
            .collect();
        answers.push(Answer::Final {
            epoch: self.epoch,
            stats: WorkerStats {
                laps: self.laps(),
                elements: field.elements() as u64,
                laps_beside: field.laps_beside.round() as u64,
                frames_lost: stats.frames_lost + field.refused,
                ..stats
            },
        });
        for answer in &answers {
            self.tell(Way::Bulk, answer);
        }
        self.phase = Phase::Finished;
    }

    fn tell(&mut self, way: Way, answer: &Answer) {
        self.out.push_back(Out {
            to: To::Judge,
            way,
            bytes: answer.encode(),
        });
    }

    /// Begins a division of the rows, in whatever phase.
    fn set_up(&mut self, setup: Box<Setup>) -> Result<(), WorkerFault> {
        let bad = WorkerFault::of_judge;
        let rows = setup.rows_of(self.me);
        if setup.anew {
            (self.field, self.kept, self.carried) = (None, None, Carried::default());
        }
        if rows.is_empty() {
            return Err(bad("a setup without rows for this worker"));
        }
        if let Some(field) = self.field.take() {
            let (block, carried) = field.into_parts();
            (self.kept, self.carried) = (Some(block), carried);
        }
        if self.carried.x.len() != setup.n() {
            self.carried.x = vec![0.0; setup.n()];
        }
        self.readers.begin(setup.division);
        self.blocks.begin(setup.workers(), setup.epoch);
        self.ready = None;
        self.best = None;
        self.epoch = setup.epoch;
        self.loading = Loading::begin(&setup);
        let within = |part: &Range<usize>| rows.start <= part.start && part.end <= rows.end;
        if !setup.fresh.iter().all(within) {
            return Err(bad("rows that are not this worker's"));
        }
        if let RowSource::Generate { what, .. } = &setup.rows {
            let what: Generate = what.parse()?;
            if what.n() != setup.n() {
                return Err(bad("a system of another size"));
            }
        }
        self.setup = Some(setup);
        self.phase = if self.loading.is_whole() {
            Phase::Loaded
        } else {
            Phase::Loading
        };
        Ok(())
    }

    fn rows(&mut self, bytes: &[u8]) -> Result<(), WorkerFault> {
        let (Phase::Loading, Some(setup)) = (&self.phase, &self.setup) else {
            return Err(WorkerFault::of_judge("rows that no setup announced"));
        };
        self.loading.rows(setup, bytes)?;
        if self.loading.is_whole() {
            self.phase = Phase::Loaded;
        }
        Ok(())
    }

    fn take_block(&mut self) -> Step {
        self.phase = Phase::Building;
        let setup = self.setup.as_ref().expect("before the rows");
        let fresh = self.loading.take(setup);
        let rows = Rows {
            kept: self.kept.take(),
            fresh,
            rows: setup.rows_of(self.me),
        };
        // Nothing is swept where a Krylov method iterates.
        let inner = if self.is_krylov() {
            Inner::Sweep
        } else {
            setup.config.inner
        };
        match Relaxation::new(inner, setup.config.omega) {
            Ok(relaxation) => {
                let relaxation = relaxation
                    .read_in(setup.config.precision)
                    .by_threads(setup.config.threads);
                Step::Build(Box::new(rows), relaxation)
            }
            Err(error) => {
                self.failed(error.to_string());
                Step::Leave
            }
        }
    }

    /// Begins an epoch. False: `factors` do not fit.
    fn begin(&mut self, epoch: u32, rhs_sq: f64, watch: Watch, factors: &[f64]) -> bool {
        let field = self.field.as_mut().expect("idle after building");
        if !field.combine(factors) {
            return false;
        }
        let is_first =
            self.phase == Phase::Idle && self.setup.as_ref().is_some_and(|setup| !setup.exchanges);
        field.begin(epoch, rhs_sq, watch.max_laps(), is_first);
        (self.epoch, self.watch, self.phase) = (epoch, watch, Phase::Running);
        (self.rhs_sq, self.cause, self.stops) = (rhs_sq, None, (false, false));
        true
    }

    fn laps(&self) -> u64 {
        self.field
            .as_ref()
            .map_or(0, |field| field.laps().round() as u64)
    }
}
