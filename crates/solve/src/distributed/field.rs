//! A worker's numbers: its rows, its copy of x, which is the board's, and its progress through the rows.
//!
//! Called by `worker`, which has the protocol. Of x only the own elements and those that the own rows read are kept up to date; the latter come packed,
//! unless most of a worker's elements are read.
//!
//! Invariant: outside `install` and `take`, x changes in the own rows only.

use super::config::Mode;
use super::message::{BOARD_CHANNEL, Estimate, LapReport, Setup};
use super::round::Round;
use super::walk::Walk;
use crate::local::accelerate::History;
use crate::local::kernels::{self, ROW_GROUP};
use crate::local::{Inner, Sweeper};
use crate::system::RowBlock;
use std::ops::Range;
use tsumuji_board::{Board, Carrier, Elements, Lap, Private, Published, Reads};
use tsumuji_node::Stepped;
use tsumuji_wire::{Datagram, NodeId};

/// Where a worker's frames go: datagrams to the other workers, reports to the judge. All may be lost.
pub(super) trait Outlet: Carrier {
    /// Sends a lap report to the judge.
    fn report(&mut self, report: &LapReport) -> Result<(), Self::Error>;

    /// Nanoseconds since some fixed moment.
    fn now_ns(&mut self) -> u64;
}

/// The judge as a node.
pub(super) const JUDGE: NodeId = NodeId(0);

/// Time between two reports of a worker. The judge would not gain by more, and each costs a frame.
const REPORT_EVERY_NS: u64 = 200_000;
/// Time between two repairs. One full frame each: below 1 MB/s on any link with frames of 1,500 bytes.
const REPAIR_EVERY_NS: u64 = 2_000_000;
/// Laps without news from others after which a worker rests before the next: it would only relax its own rows against the same values. With LU the
/// second such lap changes nothing at all.
const QUIET_LAPS_SWEEP: u32 = 4;
const QUIET_LAPS_LU: u32 = 1;
/// An estimate this many times ‖b‖ makes a worker stop by itself, so that numbers stay finite until the judge asks. It reports a residual without
/// bounds, and so the judge asks at once.
pub(super) const OVERFLOW_GUARD: f64 = 1e12;
/// Estimates above this many times ‖b‖ are not taken over into another epoch: that begins with another x, mostly a combination of former ones.
const FORGOTTEN: f64 = 1e4;

/// The automatic setting sends at least this many frames a lap, unless they would be smaller than the small frame: with fewer, laps are lost to
/// staleness, and hardly any time is saved.
const FRAMES_PER_LAP: usize = 16;
const SMALL_FRAME: usize = 64;

/// The exact residual of a worker's rows.
#[derive(Debug)]
pub(super) struct Exact {
    /// b − A x.
    residual: Vec<f64>,
    pub(super) residual_sq: f64,
    /// Σ (|b| + |A| |x|)², or 0 if not asked for.
    pub(super) magnitude_sq: f64,
}

/// State of a worker that outlives a division of rows.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// All elements, of which the own ones and those that were read are known; empty at first.
    pub(super) x: Vec<f64>,
    laps: f64,
    refused: u64,
    laps_beside: f64,
}

#[derive(Debug)]
pub(super) struct Field {
    sweeper: Sweeper,
    board: Board<Private>,
    walk: Walk,
    round: Round,
    history: History,
    /// The exact residual of the last pause, to sweep on from.
    paused: Option<Vec<f64>>,
    /// Laps of earlier divisions.
    laps_before: f64,
    /// Stamp of the values published now.
    lap: Lap,
    me: usize,
    /// Workers whose elements the own rows read.
    neighbours: Vec<NodeId>,
    alone: bool,
    /// Fewest rows of one step, whatever the frames hold.
    least_rows: usize,
    rhs_sq: f64,
    max_laps: u64,
    /// Laps since anything arrived.
    quiet_laps: u32,
    rested: bool,
    reports: u32,
    reported_ns: u64,
    repaired_ns: u64,
    /// Time spent on receiving since the last step.
    received_ns: u64,
    /// Elements that came in frames, and those of others that the own rows read; 0 where they come by messages.
    taken: u64,
    read: usize,
    /// Frames for which the link had no slot.
    pub(super) refused: u64,
    /// Time spent on relaxing rows.
    pub(super) computed_ns: u64,
    /// Laps that another thread than the polling one computed, with parts.
    pub(super) laps_beside: f64,
}

impl Field {
    /// `me` counts workers from 0. `capacity_bytes`: values that one datagram holds.
    pub(super) fn new(
        sweeper: Sweeper,
        setup: &Setup,
        (me, capacity_bytes): (usize, usize),
        carried: Carried,
    ) -> Self {
        let owned =
            std::iter::once(0..0).chain((0..setup.workers()).map(|worker| setup.rows_of(worker)));
        let mut board =
            Board::private(BOARD_CHANNEL, node(me), owned.collect()).expect("a sound setup");
        if carried.x.len() == board.len() {
            board.values_mut().copy_from_slice(&carried.x);
        }
        board.remove_reader(JUDGE);
        let rows = board.own().len();
        let least_step = sweeper.least_rows();
        let capacity = capacity_bytes / size_of::<f64>();
        let lu = sweeper.inner() == Inner::Lu;
        let (elements, most) = match setup.config.elements {
            Elements::Fixed(count) => (Elements::Fixed(count), capacity),
            // The whole block changes at once.
            Elements::Auto if lu => (Elements::Fixed(usize::MAX), capacity),
            Elements::Auto => {
                let most = (rows / FRAMES_PER_LAP).max(SMALL_FRAME).min(capacity);
                // The tuner doubles and halves: powers of two fill parts without remainders.
                (Elements::Auto, 1 << most.max(1).ilog2())
            }
        };
        board.set_elements(elements, most * size_of::<f64>());
        // Rows are multiplied several at a time, and leave in whole frames of as many as are fixed.
        let (step, frame) = match elements {
            Elements::Fixed(count) => {
                let step = board.elements() * ROW_GROUP.div_ceil(count);
                (step, step)
            }
            Elements::Auto => (ROW_GROUP, most),
        };
        let least_rows = least_step.max(step);
        let frame = if lu { 1 } else { frame.max(least_step) };
        let reads = reads_of(&sweeper, setup, me);
        for (worker, reads) in reads.iter().enumerate().filter(|(worker, _)| *worker != me) {
            board.set_reads(node(worker), reads.clone());
        }
        let is_read = |(_, reads): &(usize, &Reads)| **reads != Reads::Packed(Box::default());
        let neighbours = reads.iter().enumerate().filter(|(worker, _)| *worker != me);
        let neighbours: Vec<NodeId> = neighbours
            .filter(is_read)
            .map(|(worker, _)| node(worker))
            .collect();
        let mut field = Self {
            walk: Walk::new(sweeper.lap_rows(), frame),
            round: Round::new(neighbours.len()),
            history: match setup.config.combines {
                true => History::new(setup.n(), &sweeper.block().rhs, setup.exchanges),
                false => History::default(),
            },
            paused: None,
            laps_before: carried.laps,
            sweeper,
            board,
            lap: Lap::FIRST,
            me,
            neighbours,
            alone: setup.workers() == 1,
            least_rows,
            rhs_sq: 0.0,
            max_laps: 0,
            quiet_laps: 0,
            rested: false,
            reports: 0,
            reported_ns: 0,
            repaired_ns: 0,
            received_ns: 0,
            taken: 0,
            read: 0,
            refused: carried.refused,
            computed_ns: 0,
            laps_beside: carried.laps_beside,
        };
        if setup.config.mode == Mode::Async {
            let others = (0..setup.workers()).filter(|worker| *worker != me);
            field.read = others.map(|worker| field.read_elements(worker)).sum();
        }
        field
    }

    /// The automatic setting of elements in one frame begins with so many.
    pub(super) fn start_elements_from(&mut self, elements: usize) {
        self.board.start_elements_from(elements);
    }

    /// Ends a division: gives the rows back, and what outlives it.
    pub(super) fn into_parts(self) -> (RowBlock, Carried) {
        let carried = Carried {
            x: self.board.values().to_vec(),
            laps: self.laps(),
            refused: self.refused,
            laps_beside: self.laps_beside,
        };
        (self.sweeper.into_block(), carried)
    }

    /// Laps since the beginning of the run, with the part of the current one.
    pub(super) fn laps(&self) -> f64 {
        self.laps_before + self.walk.progress()
    }

    /// Laps, limited by the values that came in from other workers, as laps over old values do little. Used to compare threads.
    pub(super) fn fresh_laps(&self) -> f64 {
        let laps = self.walk.progress();
        match self.read {
            0 => laps,
            read => laps.min(self.taken as f64 / read as f64),
        }
    }

    pub(super) fn sweeper(&self) -> &Sweeper {
        &self.sweeper
    }

    /// x of the own rows.
    pub(super) fn own_x(&self) -> &[f64] {
        &self.board.values()[self.board.own()]
    }

    /// Replaces x of the own rows.
    pub(super) fn take_own(&mut self, x: &[f64]) {
        let own = self.board.own();
        self.board.values_mut()[own].copy_from_slice(x);
    }

    /// Counts iterations of a Krylov method as laps.
    pub(super) fn count_laps(&mut self, iterations: u64) {
        self.laps_before += iterations as f64;
    }

    /// What the own rows read of another worker's elements.
    pub(super) fn reads(&self, worker: usize) -> &Reads {
        self.board.reads(node(worker))
    }

    /// Elements that the own rows read of another worker.
    pub(super) fn read_elements(&self, worker: usize) -> usize {
        match self.reads(worker) {
            Reads::Whole => self.board.owned_by(node(worker)).len(),
            Reads::Packed(list) => list.len(),
        }
    }

    /// Sets what another worker reads of the own elements. False: it named others.
    pub(super) fn set_reader(&mut self, worker: usize, reads: Reads) -> bool {
        let fits = reads.fits(&self.board.own());
        if fits {
            self.board.set_reader(node(worker), reads);
        }
        fits
    }

    pub(super) fn lap(&self) -> Lap {
        self.lap
    }

    pub(super) fn walk(&self) -> &Walk {
        &self.walk
    }

    pub(super) fn elements(&self) -> usize {
        self.board.elements()
    }

    /// Begins an epoch: datagrams of the former one are refused, stamps go on.
    pub(super) fn begin(&mut self, epoch: u32, rhs_sq: f64, max_laps: u64, first: bool) {
        if let Some(residual) = self.paused.take() {
            self.sweeper.refine(self.board.values(), &residual);
        }
        self.board.begin_epoch(epoch);
        self.sweeper.x_has_changed();
        (self.rhs_sq, self.max_laps) = (rhs_sq, max_laps);
        if self.walk.is_known() && self.is_beyond(FORGOTTEN) {
            self.walk.forget();
            self.round = Round::new(self.neighbours.len());
        }
        if !first {
            self.lap = self.lap.next();
        }
        self.quiet_laps = 0;
    }

    /// Takes the newer values of a datagram.
    pub(super) fn take(&mut self, datagram: &Datagram<'_>) {
        if let Some(elements) = self.board.apply(datagram) {
            self.taken += elements.len() as u64;
            self.quiet_laps = 0;
        }
    }

    /// Stores values of `worker` that came by reliable messages, from `start` on: an element, or a place in the list of what is read.
    pub(super) fn install(&mut self, worker: usize, start: usize, values: &[f64], lap: Lap) {
        match self.reads(worker) {
            Reads::Whole => self.board.install(node(worker), start, values, lap),
            Reads::Packed(_) => self.board.install_packed(node(worker), start, values, lap),
        }
        self.quiet_laps = 0;
    }

    /// Freezes the own block: all of it gets the present stamp.
    pub(super) fn freeze(&mut self) -> Lap {
        self.board.stamp_own(self.lap);
        self.lap
    }

    /// Own elements as `reads` names them, in its order.
    pub(super) fn own_read(&self, reads: &Reads) -> Vec<f64> {
        let x = self.board.values();
        match reads {
            Reads::Whole => self.own_x().to_vec(),
            Reads::Packed(list) => list.iter().map(|&index| x[index as usize]).collect(),
        }
    }

    /// The exact residual of the own rows: one pass over them, two with `magnitude`. `between` is called now and then.
    pub(super) fn exact_residual(&self, magnitude: bool, between: &mut dyn FnMut()) -> Exact {
        let mut residual = vec![0.0; self.sweeper.block().rhs.len()];
        let x = self.board.values();
        let magnitude_sq = (self.sweeper).exact_residual(x, &mut residual, magnitude, between);
        Exact {
            residual_sq: kernels::sum_of_squares(&residual),
            magnitude_sq,
            residual,
        }
    }

    /// Remembers the step of the epoch that ended; returns the products that the judge needs.
    pub(super) fn remember(&mut self, exact: Exact) -> Vec<f64> {
        if self.sweeper.refines() {
            self.paused = Some(exact.residual.clone());
        }
        self.history.pause(self.board.values(), exact.residual)
    }

    /// Moves x, on all workers alike, to the combination of former epochs. False: the factors do not fit.
    pub(super) fn combine(&mut self, factors: &[f64]) -> bool {
        self.history.resume(self.board.values_mut(), factors)
    }

    /// Stamp of what is held of each worker's block: 0 where elements are of different laps, `None` where nothing is read.
    pub(super) fn held(&self, workers: usize) -> Vec<Option<u32>> {
        let held = |worker| {
            if worker != self.me && self.read_elements(worker) == 0 {
                return None;
            }
            Some(
                match (
                    self.board.oldest(node(worker)),
                    self.board.staleness(node(worker)),
                ) {
                    (Some(lap), Some(0)) => lap.get(),
                    _ => 0,
                },
            )
        };
        (0..workers).map(held).collect()
    }

    /// One step of an asynchronous run: relaxes some rows, publishes them, reports and repairs when it is time. The flag of the result: a lap is complete.
    pub(super) fn step_async<O: Outlet>(&mut self, outlet: &mut O) -> Result<Stepped, O::Error> {
        if self.is_done() || self.should_rest() {
            let now = outlet.now_ns();
            self.mind(outlet, now, true)?;
            return Ok(Stepped::Rests);
        }
        self.rested = false;
        let rows = self.next_rows(self.board.elements().max(self.least_rows));
        let began = outlet.now_ns();
        let squares = self.sweeper.relax(rows.clone(), self.board.values_mut());
        let computed = outlet.now_ns();
        self.computed_ns += computed - began;
        let mut published = Published::default();
        if !self.alone {
            for part in self.sweeper.parts(&rows).filter(|part| !part.is_empty()) {
                published += self.board.announce(outlet, part, self.lap)?;
            }
        }
        let reached = self.walk.advance(&rows, squares);
        let heard = self.neighbours.iter();
        let heard = heard.map(|neighbour| self.board.lap(*neighbour).map_or(0, Lap::get));
        if reached.lap {
            self.lap = self.lap.next();
            self.quiet_laps += 1;
            if reached.estimate {
                self.round.lap(self.walk.estimate().measured_sq, heard);
            }
        } else if reached.estimate {
            self.round.try_close(heard);
        }
        self.mind(outlet, computed, reached.estimate || !self.walk.is_known())?;
        let done = outlet.now_ns();
        let received_ns = std::mem::take(&mut self.received_ns);
        self.refused += published.refused;
        self.board.tuner().record(
            computed - began,
            done - computed + received_ns,
            published.refused,
        );
        Ok(Stepped::Again(reached.lap))
    }

    /// Time spent on receiving, for the automatic setting of elements.
    pub(super) fn exchanged(&mut self, spent_ns: u64) {
        self.received_ns += spent_ns;
    }

    /// One step of a lap whose values are not published before its end; returns whether the lap is complete.
    pub(super) fn step_sync<O: Outlet>(&mut self, outlet: &mut O) -> Result<bool, O::Error> {
        let rows = self.next_rows(super::walk::part_rows(self.sweeper.lap_rows().len(), 1));
        let began = outlet.now_ns();
        let squares = self.sweeper.relax(rows.clone(), self.board.values_mut());
        let computed = outlet.now_ns();
        self.computed_ns += computed - began;
        let reached = self.walk.advance(&rows, squares);
        if reached.lap {
            self.report(outlet, self.walk.estimate())?;
        } else if computed.wrapping_sub(self.reported_ns) >= REPORT_EVERY_NS {
            self.reported_ns = computed;
            outlet.report(&LapReport::HEARTBEAT)?;
        }
        Ok(reached.lap)
    }

    /// Begins the next lap of a synchronous run.
    pub(super) fn next_lap(&mut self) {
        self.lap = self.lap.next();
    }

    /// The estimate of the lap just completed, for a synchronous run.
    pub(super) fn estimate(&self) -> Estimate {
        self.walk.estimate()
    }

    fn next_rows(&self, count: usize) -> Range<usize> {
        match self.sweeper.inner() {
            Inner::Lu => self.walk.whole(),
            _ => self.walk.next(count.next_multiple_of(self.least_rows)),
        }
    }

    /// Nothing more to do in this epoch: all workers have done all laps, or numbers grow beyond bounds. Either is reported, for which there must be an
    /// estimate.
    fn is_done(&self) -> bool {
        let all_laps = self.laps_are_done() && !self.others_are_behind();
        self.walk.is_known() && (all_laps || self.is_wild())
    }

    /// Whether numbers grow beyond bounds.
    fn is_wild(&self) -> bool {
        self.walk.is_known() && self.is_beyond(OVERFLOW_GUARD)
    }

    /// Whether the estimate is no number, or more than `factor` times ‖b‖.
    fn is_beyond(&self, factor: f64) -> bool {
        let rhs_sq = if self.rhs_sq > 0.0 { self.rhs_sq } else { 1.0 };
        let measured_sq = self.walk.estimate().measured_sq;
        !measured_sq.is_finite() || measured_sq > factor * factor * rhs_sq
    }

    fn laps_are_done(&self) -> bool {
        self.laps() >= self.max_laps as f64
    }

    /// Whether another worker, as far as is known here, has laps to do. Stamps count at least as fast as laps.
    fn others_are_behind(&self) -> bool {
        let limit = u32::try_from(self.max_laps).unwrap_or(u32::MAX);
        let lap = |neighbour| self.board.lap(neighbour).map_or(0, Lap::get);
        (self.neighbours.iter()).any(|neighbour| lap(*neighbour) < limit)
    }

    /// Whether to rest before a lap that could change little. Rests only once, so that workers do not all wait for each other.
    fn should_rest(&mut self) -> bool {
        let limit = match self.sweeper.inner() {
            Inner::Lu => QUIET_LAPS_LU,
            _ => QUIET_LAPS_SWEEP,
        };
        // A worker that has done all its laps goes on only for the others.
        let little = self.quiet_laps >= limit || self.laps_are_done();
        self.rested = !self.alone && self.walk.is_at_start() && little && !self.rested;
        self.rested
    }

    /// Reports and repairs, each when it is due.
    fn mind<O: Outlet>(
        &mut self,
        outlet: &mut O,
        now: u64,
        estimate: bool,
    ) -> Result<(), O::Error> {
        if estimate && now.wrapping_sub(self.reported_ns) >= REPORT_EVERY_NS {
            self.reported_ns = now;
            if self.is_wild() {
                self.report(outlet, Estimate::UNBOUNDED)?;
            } else if self.walk.is_known() {
                self.report(outlet, self.round.estimate(self.walk.estimate()))?;
            } else {
                // The first lap may take longer than a lease.
                outlet.report(&LapReport::HEARTBEAT)?;
            }
        }
        if !self.alone && now.wrapping_sub(self.repaired_ns) >= REPAIR_EVERY_NS {
            self.repaired_ns = now;
            self.refused += self.board.repair(outlet)?.refused;
        }
        Ok(())
    }

    fn report<O: Outlet>(&mut self, outlet: &mut O, estimate: Estimate) -> Result<(), O::Error> {
        self.reports = self.reports.wrapping_add(1);
        outlet.report(&LapReport {
            epoch: self.board.epoch(),
            number: self.reports,
            laps: self.laps(),
            busy: None,
            estimate,
        })
    }
}

/// What the rows of `sweeper` read of each worker.
fn reads_of(sweeper: &Sweeper, setup: &Setup, me: usize) -> Vec<Reads> {
    let foreign = sweeper.block().foreign_columns();
    let of = |worker| match worker == me {
        true => Reads::Packed(Box::default()),
        false => Reads::of(&setup.rows_of(worker), &foreign),
    };
    (0..setup.workers()).map(of).collect()
}

/// Worker `worker` as a node: the judge is node 0.
pub(super) fn node(worker: usize) -> NodeId {
    NodeId(worker as u16 + 1)
}
