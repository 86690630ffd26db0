//! A worker as a state machine: messages and datagrams in, messages out, steps of work between. No clock, no link, no thread.
//!
//! Driven by `worker_main`. Phases: rows arrive → they are prepared → the judge orders to begin → relax until pause → freeze, exchange blocks, tell
//! the judge their stamps → exact residual of the own rows → begin again, or deliver the results and leave.
//!
//! Invariants: a worker sends `Frozen` only after it has every other worker's block of that epoch, so equal stamps mean equal x; between `Frozen` and
//! the answer to `Verify` x does not change. A message that does not fit the phase is a failure of the run; a late one (of an older epoch) is
//! dropped.

use super::config::Mode;
use super::field::{Exact, Field, Outlet, Stepped};
use super::message::{Answer, Estimate, Frozen, Note, Order, Piece, RowSource, Setup, WorkerStats};
use super::readers::Readers;
use super::step::{Out, Rows, Step, To, Way, WorkerFault};

use super::watch::{Cause, Watch};
use crate::local::{Relaxation, Sweeper};
use crate::system::{Generate, RowBlockBuilder};
use std::collections::VecDeque;
use tsumuji_board::{Elements, Lap, Reads};
use tsumuji_node::Executor;
use tsumuji_wire::Datagram;

/// Values in one message between workers or to the judge: 256 KiB, so that every message is small compared with the receiver's budget. In tests so
/// few that every block is several messages.
const PIECE_VALUES: usize = if cfg!(test) { 5 } else { 32 << 10 };

/// Memory per row that a block needs beyond its stream.
const BYTES_PER_ROW: usize = 64;

#[derive(Debug, PartialEq)]
enum Phase {
    Loading,
    /// All rows have arrived, or are known how to make.
    Loaded(Rows),
    Building,
    /// Waits to hear what the others read.
    Meeting,
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

/// How much of a worker's block has arrived, of which epoch and lap.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    epoch: u32,
    lap: u32,
    values: usize,
    estimate: Estimate,
}

#[derive(Debug)]
pub(super) struct Worker {
    me: usize,
    capacity_bytes: usize,
    phase: Phase,
    setup: Option<Box<Setup>>,
    builder: Option<RowBlockBuilder>,
    field: Option<Field>,
    epoch: u32,
    watch: Watch,
    received: Vec<Received>,
    readers: Readers,
    /// Answer to give once all of `readers` are known.
    ready: Option<Answer>,
    /// Pieces of laps (sync) and epochs that have not begun here.
    early: VecDeque<(usize, Piece)>,
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
            builder: None,
            field: None,
            epoch: 0,
            watch: Watch::new(0.0, 0, 0.0, 0),
            received: Vec::new(),
            readers: Readers::default(),
            ready: None,
            early: VecDeque::new(),
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
    pub(super) fn lend(&mut self) -> Option<(Field, Mode)> {
        let mode = self.setup.as_ref()?.config.mode;
        (self.phase == Phase::Running)
            .then(|| self.field.take())
            .flatten()
            .map(|field| (field, mode))
    }

    /// Takes the numbers back. `lap`: a lap of a synchronous run is complete.
    pub(super) fn take_back(&mut self, field: Field, lap: bool) {
        self.field = Some(field);
        if lap {
            self.lap_is_complete();
        }
    }

    /// The numbers while this worker relaxes by itself.
    pub(super) fn relaxing(&self) -> Option<&Field> {
        (self.phase == Phase::Running)
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

    /// Who is to compute; known once the setup is.
    pub(super) fn executor(&self) -> Option<Executor> {
        self.setup.as_ref().map(|setup| setup.config.executor)
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
        let bad = |what| {
            Err(WorkerFault::Protocol {
                from: "the judge",
                what,
            })
        };
        if let (Some((&Order::ROWS, rows)), Phase::Loading) = (bytes.split_first(), &self.phase) {
            return self.rows(rows); // without the copy that `parse` makes
        }
        match (Order::parse(bytes), &self.phase) {
            (None, _) => bad("a message that does not parse"),
            (Some(Order::Abort { why }), _) => Err(WorkerFault::Aborted { why }),
            (Some(Order::Setup(setup)), Phase::Loading) if self.setup.is_none() => {
                self.set_up(setup)
            }
            (
                Some(Order::Begin {
                    epoch,
                    rhs_sq,
                    watch,
                    factors,
                }),
                Phase::Idle | Phase::Frozen,
            ) => {
                if !self.begin(epoch, rhs_sq, watch, &factors) {
                    return bad("factors for epochs that never were");
                }
                Ok(())
            }
            (Some(Order::Pause { epoch }), Phase::Running) if epoch == self.epoch => {
                self.freeze();
                Ok(())
            }
            (Some(Order::Verify { epoch, magnitude }), Phase::Frozen) if epoch == self.epoch => {
                self.phase = Phase::Verifying(magnitude);
                Ok(())
            }
            (Some(Order::Finish), Phase::Frozen) => {
                self.phase = Phase::Counting;
                Ok(())
            }
            (Some(Order::Leave), Phase::Finished) => {
                self.phase = Phase::Left;
                Ok(())
            }
            (Some(_), _) => bad("an order that does not fit"),
        }
    }

    /// Takes a message from another worker.
    pub(super) fn note(&mut self, from: usize, bytes: &[u8]) -> Result<(), WorkerFault> {
        let fault = |what| WorkerFault::Protocol {
            from: "another worker",
            what,
        };
        match Note::parse(bytes).ok_or(fault("a message that does not parse"))? {
            Note::Piece(piece) => self.piece(from, piece),
            Note::Reads {
                packed,
                last,
                elements,
            } => {
                if !self.readers.hear(from, packed, last, elements) {
                    return Err(fault("a list of elements that does not fit"));
                }
                self.meet()
            }
        }
    }

    /// Answers that this worker is ready once it knows what all others read.
    fn meet(&mut self) -> Result<(), WorkerFault> {
        let (Phase::Meeting, Some(field), Some(setup)) =
            (&self.phase, &mut self.field, &self.setup)
        else {
            return Ok(());
        };
        if self.readers.known() + 1 < setup.workers() {
            return Ok(());
        }
        for (worker, reads) in self.readers.lists() {
            let is_other = *worker != self.me && *worker < setup.workers();
            if !is_other || !field.set_reader(*worker, reads.clone()) {
                return Err(WorkerFault::Protocol {
                    from: "another worker",
                    what: "a list of elements that are not this worker's",
                });
            }
        }
        self.phase = Phase::Idle;
        if let Some(ready) = self.ready.take() {
            self.tell(Way::Control, &ready);
        }
        Ok(())
    }

    fn piece(&mut self, from: usize, piece: Piece) -> Result<(), WorkerFault> {
        let fault = |what| WorkerFault::Protocol {
            from: "another worker",
            what,
        };
        let (Some(setup), Some(field)) = (&self.setup, &self.field) else {
            return Err(fault("a block before the run began"));
        };
        let (workers, mode) = (setup.workers(), setup.config.mode);
        if from == self.me || from >= workers {
            return Err(fault("a block although it has none"));
        }
        let bounds = match field.reads(from) {
            Reads::Whole => setup.rows_of(from),
            Reads::Packed(list) => 0..list.len(),
        };
        let end = piece.start.saturating_add(piece.values.len());
        let fits = bounds.start <= piece.start && end <= bounds.end;
        if !fits || Lap::new(piece.lap).is_none() {
            return Err(fault("a block that is not its own"));
        }
        if mode == Mode::Async && piece.epoch == self.epoch {
            self.install(from, &piece);
        } else if (piece.epoch.wrapping_sub(self.epoch) as i32) >= 0 {
            // Of a later epoch, or (sync) perhaps a later lap. No worker is ever more than one ahead of another: it would lack our block.
            let waiting = self.early.iter().filter(|early| early.0 == from);
            // A block of nothing is one piece, too.
            let waiting: usize = waiting.map(|early| early.1.values.len().max(1)).sum();
            if waiting + piece.values.len().max(1) > 2 * bounds.len().max(1) {
                return Err(fault("more blocks than laps"));
            }
            self.early.push_back((from, piece));
        }
        self.look_for_blocks();
        Ok(())
    }

    /// Does one step of work.
    pub(super) fn step<O: Outlet>(&mut self, outlet: &mut O) -> Result<Step, O::Error> {
        match &self.phase {
            Phase::Loading
            | Phase::Building
            | Phase::Meeting
            | Phase::Idle
            | Phase::Exchanging
            | Phase::Frozen
            | Phase::Finished => Ok(Step::Wait),
            Phase::Loaded(_) => Ok(self.take_block()),
            Phase::Verifying(_) => Ok(Step::Verify),
            Phase::Counting => Ok(Step::Count),
            Phase::Left => Ok(Step::Leave),
            Phase::Running => {
                let (Some(field), Some(setup)) = (&mut self.field, &self.setup) else {
                    unreachable!("running")
                };
                match setup.config.mode {
                    Mode::Async => Ok(match field.step_async(outlet)? {
                        Stepped::Rows(lap) => Step::Again(lap),
                        Stepped::Rests => Step::Rest,
                    }),
                    Mode::Sync => {
                        let lap = field.step_sync(outlet)?;
                        if lap {
                            self.lap_is_complete();
                        }
                        Ok(Step::Again(lap))
                    }
                }
            }
        }
    }

    /// Sends the block of a synchronous run's lap, and waits for the others'.
    fn lap_is_complete(&mut self) {
        self.send_block();
        self.phase = Phase::Exchanging;
        self.look_for_blocks();
    }

    /// Takes the result of [`Step::Build`].
    pub(super) fn built(&mut self, sweeper: Sweeper) -> Result<(), WorkerFault> {
        let setup = self.setup.as_ref().expect("rows came after the setup");
        let rhs_sq = crate::local::kernels::sum_of_squares(&sweeper.block().rhs);
        let notes = sweeper.note().map(str::to_owned).into_iter().collect();
        let field = Field::new(sweeper, setup, self.me, self.capacity_bytes);
        let workers = setup.workers();
        self.received = vec![Received::default(); workers];
        for worker in (0..workers).filter(|worker| *worker != self.me) {
            let notes = Note::of_reads(field.reads(worker));
            self.out.extend(notes.into_iter().map(|bytes| Out {
                to: To::Worker(worker),
                way: Way::Bulk,
                bytes,
            }));
        }
        self.field = Some(field);
        self.ready = Some(Answer::Ready { rhs_sq, notes });
        self.phase = Phase::Meeting;
        self.meet()
    }

    /// Computes the residual for [`Step::Verify`].
    pub(super) fn exact_residual(&self) -> Exact {
        let field = self.field.as_ref().expect("verified after relaxing");
        field.exact_residual(self.phase == Phase::Verifying(true))
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
        let parts = field.own_x().chunks(PIECE_VALUES).enumerate();
        let mut answers: Vec<Answer> = parts
            .map(|(part, values)| Answer::Solution {
                start: start + part * PIECE_VALUES,
                values: values.to_vec(),
            })
            .collect();
        answers.push(Answer::Final(WorkerStats {
            laps: self.laps(),
            shares_taken: field.shares_taken,
            elements: field.elements() as u64,
            laps_beside: field.laps_beside.round() as u64,
            frames_lost: stats.frames_lost + field.refused,
            ..stats
        }));
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

    fn set_up(&mut self, setup: Box<Setup>) -> Result<(), WorkerFault> {
        if self.me >= setup.workers() {
            return Err(WorkerFault::Protocol {
                from: "the judge",
                what: "a setup without rows for this worker",
            });
        }
        let rows = setup.rows_of(self.me);
        match &setup.rows {
            RowSource::Stream { bytes } => {
                // The block takes its stream's bytes, more per row (offsets, factors of relaxation), and x.
                let more = BYTES_PER_ROW * rows.len() + size_of::<f64>() * setup.n();
                self.builder = Some(RowBlockBuilder::new((*bytes as usize).saturating_add(more)));
            }
            RowSource::Generate { what } => {
                let what: Generate = what.parse()?;
                if what.n() != setup.n() {
                    return Err(WorkerFault::Protocol {
                        from: "the judge",
                        what: "a system of another size",
                    });
                }
                self.phase = Phase::Loaded(Rows::Made {
                    what,
                    rows,
                    seed: setup.config.seed,
                    solution: setup.config.solution,
                });
            }
        }
        self.setup = Some(setup);
        Ok(())
    }

    fn rows(&mut self, bytes: &[u8]) -> Result<(), WorkerFault> {
        let Some(builder) = &mut self.builder else {
            return Err(WorkerFault::Protocol {
                from: "the judge",
                what: "rows before the setup",
            });
        };
        builder.push(bytes)?;
        if builder.is_complete() {
            let block = self.builder.take().expect("just filled").finish()?;
            let setup = self.setup.as_ref().expect("before the builder");
            if block.rows != setup.rows_of(self.me) || block.columns != setup.n() {
                return Err(WorkerFault::Protocol {
                    from: "the judge",
                    what: "rows that are not this worker's",
                });
            }
            self.phase = Phase::Loaded(Rows::Here(Box::new(block)));
        }
        Ok(())
    }

    fn take_block(&mut self) -> Step {
        let Phase::Loaded(rows) = std::mem::replace(&mut self.phase, Phase::Building) else {
            unreachable!("loaded")
        };
        let config = &self.setup.as_ref().expect("before the rows").config;
        match Relaxation::new(config.inner, config.omega) {
            Ok(relaxation) => Step::Build(rows, relaxation),
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
        field.begin(epoch, rhs_sq, watch.max_laps(), self.phase == Phase::Idle);
        (self.epoch, self.watch, self.phase) = (epoch, watch, Phase::Running);
        true
    }

    /// Stops iterating (async) and sends the own block to all others.
    fn freeze(&mut self) {
        self.phase = Phase::Exchanging;
        self.send_block();
        self.look_for_blocks();
    }

    fn send_block(&mut self) {
        let Some(field) = &mut self.field else {
            unreachable!("relaxing")
        };
        let lap = field.freeze().get();
        let own = field.sweeper().block().rows.start;
        for (&worker, reads) in self.readers.lists() {
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

    /// Stores a piece of another worker's block, of this epoch, in x.
    fn install(&mut self, from: usize, piece: &Piece) {
        let (Some(field), Some(lap)) = (&mut self.field, Lap::new(piece.lap)) else {
            return;
        };
        let received = &mut self.received[from];
        if (received.epoch, received.lap) != (piece.epoch, piece.lap) {
            *received = Received {
                epoch: piece.epoch,
                lap: piece.lap,
                ..Received::default()
            };
        }
        received.values += piece.values.len();
        received.estimate = piece.estimate;
        field.install(from, piece.start, &piece.values, lap);
    }

    /// Goes on if the blocks of all others have arrived.
    fn look_for_blocks(&mut self) {
        let (Phase::Exchanging, Some(setup)) = (&self.phase, &self.setup) else {
            return;
        };
        let (workers, mode) = (setup.workers(), setup.config.mode);
        let field = self.field.as_ref().expect("exchanging after relaxing");
        let lap = field.lap();
        let lengths = (0..workers).map(|worker| field.read_elements(worker));
        let lengths: Vec<usize> = lengths.collect();
        if !self.early.is_empty() {
            let is_due = |piece: &Piece| {
                piece.epoch == self.epoch && (mode == Mode::Async || piece.lap == lap.get())
            };
            let (due, rest) = std::mem::take(&mut self.early)
                .into_iter()
                .partition(|(_, piece)| is_due(piece));
            self.early = rest;
            let due: VecDeque<(usize, Piece)> = due;
            due.iter()
                .for_each(|(from, piece)| self.install(*from, piece));
        }
        let complete = |worker: usize| {
            let received = &self.received[worker];
            received.epoch == self.epoch
                && received.values == lengths[worker]
                && (mode == Mode::Async || received.lap == lap.get())
        };
        if !(0..workers).all(|worker| worker == self.me || complete(worker)) {
            return;
        }
        let cause = match mode {
            Mode::Async => None,
            Mode::Sync => match self.judge_lap(workers) {
                Some(cause) => Some(cause),
                None => {
                    self.field
                        .as_mut()
                        .expect("exchanging after relaxing")
                        .next_lap();
                    self.phase = Phase::Running;
                    return;
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
    }

    /// Whether the estimates of all workers for this lap end the epoch (sync). All workers add the same numbers in the same order.
    fn judge_lap(&mut self, workers: usize) -> Option<Cause> {
        let field = self.field.as_ref().expect("a lap is done");
        let mut sum = Estimate::default();
        for worker in 0..workers {
            let estimate = if worker == self.me {
                field.estimate()
            } else {
                self.received[worker].estimate
            };
            sum.measured_sq += estimate.measured_sq;
            sum.expected_sq += estimate.expected_sq;
        }
        if self.watch.is_candidate(sum.expected_sq) {
            return Some(Cause::Candidate);
        }
        self.watch.trouble(sum.measured_sq, field.walk().progress())
    }

    fn laps(&self) -> u64 {
        self.field
            .as_ref()
            .map_or(0, |field| field.walk().progress().round() as u64)
    }
}
