//! The judge as a state machine: reports and answers in, orders out. No clock, no link, no thread.
//!
//! Driven by `run`. Asynchronous runs end only like this: the sum of all workers' estimates is low enough in two reports of each → pause → every
//! worker holds the same blocks (their stamps prove it) → exact residual on the rows' owners, summed here → end, or another epoch. Reports may be
//! lost, late or repeated: that delays, and never falsifies.
//!
//! Workers are mortal: when one is lost the others share its rows in proportion to what they have, in a new division, and the run goes on from the
//! values that they have; when one joins it gets as many rows as they have on average. Answers of older epochs and divisions are void.
//!
//! Invariants: a run converges only by an exact residual of one x that all workers hold; an unexpected answer ends the run; phases follow one another
//! and each waits for all workers that have rows.

use super::config::{Mode, SolveConfig};
use super::message::{
    Answer, Frozen, LapReport, Order, RowSource, Setup, Standing, WorkerStats, is_older,
};
use super::pace::Worked;
use super::ranges::without;
use super::succession;
use super::watch::{Cause, Policy, Watch};
use crate::krylov::End;
use crate::local::Limits;
use crate::report::Reason;
use std::collections::VecDeque;
use std::ops::Range;

mod division;
mod measured;
mod standstill;

/// Reports of each worker that must find the sum low enough. One might be older than a value under way that raises it; an unnecessary pause costs a
/// pass over A and does no harm, so two are enough.
const REPORTS_NEEDED: u32 = 2;

/// Why the judge aborts a run. Workers count from 0 here.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JudgeFault {
    /// A worker reports a failure.
    Worker { worker: usize, why: String },
    /// The last worker was lost.
    Missed { worker: usize },
    /// A message does not parse or fit.
    Protocol { worker: usize, what: &'static str },
    /// Blocks that were sent reliably are not the same everywhere.
    Disagreement,
}

impl JudgeFault {
    fn of(worker: usize, what: &'static str) -> Self {
        Self::Protocol { worker, what }
    }
}

/// Stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Distributing,
    Iterating,
    Verifying,
    Collecting,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Until every worker is ready.
    Loading,
    Iterating,
    /// Until every worker has stopped iterating.
    Freezing(Cause),
    /// Until every worker's exact residual has arrived.
    Verifying(Cause),
    Collecting,
    Done,
}

/// Result of a run.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) reason: Reason,
    /// Exact relative residual.
    pub(super) residual: f64,
    pub(super) verifications: u64,
    /// The method of x.
    pub(super) method: String,
    pub(super) x: Vec<f64>,
    pub(super) stats: Vec<WorkerStats>,
    /// Workers that were lost.
    pub(super) lost: usize,
    /// Workers that joined and got rows.
    pub(super) joined: usize,
    pub(super) notes: Vec<String>,
}

/// What tells a run from others, and how it begins.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Origin {
    /// Of the system (`succession::fingerprint`).
    pub(super) system: u64,
    /// Divisions and epochs count from here: above all that an earlier judge can have reached.
    pub(super) first: u32,
    /// Elements in one frame with which the automatic setting of all workers begins, if not with the board's own.
    pub(super) first_elements: Option<usize>,
}

/// State of one worker as the judge knows it.
#[derive(Debug, Clone, Default)]
struct WorkerSlot {
    /// Empty: it takes no part, for it was lost or left.
    rows: Range<usize>,
    /// It was told of this run.
    is_known: bool,
    /// It was lost; its rows are empty, unless its results had arrived.
    is_gone: bool,
    /// The part of `rows` that the worker is known to hold, with x.
    held: Range<usize>,
    /// Set once it is ready in the present division.
    rhs_sq: Option<f64>,
    /// Laps when it was last heard of; what a lost worker has done.
    laps: f64,
    /// Seconds in which it had computed then, if it waits for others.
    busy: Option<f64>,
    /// The newest report of this epoch.
    report: Option<LapReport>,
    /// Reports of this epoch that arrived.
    heard: u32,
    /// Reports since the sum became and stayed low enough.
    low: u32,
    frozen: Option<Frozen>,
    /// Σ (b − A x)², Σ (|b| + |A| |x|)², and products for `combine`.
    exact: Option<(f64, f64, Vec<f64>)>,
    /// Elements of its block that have arrived.
    solved: usize,
    stats: Option<WorkerStats>,
}

/// The best verified x of this division.
#[derive(Debug, Clone, Copy)]
struct Best {
    /// Its relative residual; infinite: there is none.
    residual: f64,
    /// The best x is that of the last pause; otherwise workers keep a copy of it.
    is_last: bool,
}

impl Best {
    fn none() -> Self {
        Self {
            residual: f64::INFINITY,
            is_last: false,
        }
    }

    /// Takes the residual of the x that workers hold now.
    fn see(&mut self, residual: f64) {
        self.is_last = residual < self.residual;
        self.residual = self.residual.min(residual);
    }
}

/// A Krylov method that failed, and that relaxation followed.
#[derive(Debug, Clone)]
struct Failed {
    method: String,
    end: End,
    /// Relative residual of its x.
    residual: f64,
}

#[derive(Debug)]
pub(super) struct Judge {
    config: SolveConfig,
    origin: Origin,
    division: u32,
    /// Whether x may be other than 0.
    moved: bool,
    /// Whether the run began with x = 0, and whether it ends with that, for no better x was reached.
    from_zero: bool,
    ends_with_zero: bool,
    /// Whether an epoch has begun.
    begun: bool,
    limits: Limits,
    phase: Phase,
    epoch: u32,
    rhs_sq: f64,
    policy: Policy,
    watch: Watch,
    slots: Vec<WorkerSlot>,
    /// Workers that joined and got rows.
    joined: usize,
    disagreements: u32,
    interrupted: bool,
    /// Why relaxation is to follow the Krylov method, once that has stopped.
    relaxes: Option<String>,
    /// The Krylov method that stalled or overflowed, so that relaxation follows. `None`: no method has failed so.
    failed: Option<Failed>,
    verifications: u64,
    residual: f64,
    best: Best,
    reason: Option<Reason>,
    notes: Vec<String>,
    /// The last known values: snapshots, then the solution.
    x: Vec<f64>,
    /// Rows whose values the workers of another judge have, and this one has not heard of yet.
    unheard: Vec<Range<usize>>,
    out: VecDeque<(usize, Order)>,
}

impl Judge {
    /// Orders the first division; the driver completes each setup and sends what it announces (`feed`). `start`: x to begin with, if not 0.
    pub(super) fn new(
        limits: Limits,
        config: &SolveConfig,
        (ranges, origin): (Vec<Range<usize>>, Origin),
        start: Option<Vec<f64>>,
    ) -> Self {
        let policy = Policy::new(limits, 0.0, config.combines);
        let n = ranges.iter().map(|rows| rows.end).max().unwrap_or(0);
        let mut judge = Self {
            config: config.clone(),
            origin,
            division: origin.first,
            moved: start.is_some(),
            from_zero: start.is_none(),
            ends_with_zero: false,
            begun: false,
            limits,
            phase: Phase::Loading,
            epoch: origin.first,
            rhs_sq: 0.0,
            watch: policy.watch(),
            policy,
            slots: vec![WorkerSlot::default(); ranges.len()],
            joined: 0,
            disagreements: 0,
            interrupted: false,
            relaxes: None,
            failed: None,
            verifications: 0,
            residual: f64::NAN,
            best: Best::none(),
            reason: None,
            notes: Vec::new(),
            x: start.unwrap_or_else(|| vec![0.0; n]),
            unheard: Vec::new(),
            out: VecDeque::new(),
        };
        if !judge.moved {
            // It is 0, and that is no news.
            judge.unheard.extend((n > 0).then_some(0..n));
        }
        judge.divide(ranges);
        judge
    }

    /// Takes the place of a judge that died: goes on with what workers have (`succession`). `start`: x of rows that nobody has, if not 0.
    pub(super) fn succeeding(
        limits: Limits,
        config: &SolveConfig,
        (n, origin): (usize, Origin),
        standings: &[Option<Standing>],
        start: Option<Vec<f64>>,
    ) -> Self {
        let ranges = succession::ranges(standings, n);
        let none = vec![0..0; standings.len()];
        let mut judge = Self::new(limits, config, (none, origin), start);
        if judge.x.is_empty() {
            judge.x = vec![0.0; n];
            let held = standings.iter().flatten().map(|told| told.rows.clone());
            judge.unheard = held.filter(|rows| !rows.is_empty()).collect();
        }
        (judge.moved, judge.from_zero) = (true, false);
        for (slot, told) in judge.slots.iter_mut().zip(standings) {
            match told {
                None => slot.is_gone = true,
                Some(told) => {
                    (slot.held, slot.laps) = (told.rows.clone(), told.laps);
                    slot.is_known = !told.rows.is_empty();
                }
            }
        }
        let gone = judge.slots.iter().filter(|slot| slot.is_gone).count();
        let there = standings.len() - gone;
        judge.notes.push(format!(
            "another judge took over: {there} workers went on without it, {gone} were gone"
        ));
        judge.divide(ranges);
        for (worker, told) in standings.iter().enumerate() {
            if told.as_ref().is_some_and(|told| told.rows.is_empty()) {
                judge.joined(worker);
            }
        }
        judge
    }

    /// The last known x, for workers that get rows of others; `None`: x is still 0.
    pub(super) fn known_x(&self) -> Option<&[f64]> {
        self.moved.then_some(&self.x[..])
    }

    /// As [`known_x`](Self::known_x), if it is known of all rows.
    pub(super) fn whole_x(&self) -> Option<&[f64]> {
        self.known_x().filter(|_| self.unheard.is_empty())
    }

    /// Workers that have rows.
    fn team(&self) -> impl Iterator<Item = &WorkerSlot> {
        self.slots.iter().filter(|slot| !slot.rows.is_empty())
    }

    /// Whether a worker has rows.
    pub(super) fn takes_part(&self, worker: usize) -> bool {
        self.slots
            .get(worker)
            .is_some_and(|slot| !slot.rows.is_empty())
    }

    /// Whether a worker has rows and was not lost.
    pub(super) fn counts_on(&self, worker: usize) -> bool {
        self.takes_part(worker) && !self.slots[worker].is_gone
    }

    /// What each worker has done.
    pub(super) fn paces(&self) -> Vec<Worked> {
        let worked = |slot: &WorkerSlot| Worked {
            rows: slot.rows.len(),
            laps: slot.laps,
            busy: slot.busy,
        };
        self.slots.iter().map(worked).collect()
    }

    /// Orders to send, in order.
    pub(super) fn out(&mut self) -> &mut VecDeque<(usize, Order)> {
        &mut self.out
    }

    pub(super) fn stage(&self) -> Stage {
        match self.phase {
            Phase::Loading => Stage::Distributing,
            Phase::Iterating => Stage::Iterating,
            Phase::Freezing(_) | Phase::Verifying(_) => Stage::Verifying,
            Phase::Collecting => Stage::Collecting,
            Phase::Done => Stage::Done,
        }
    }

    /// Whether this worker has delivered all its results; its silence is no failure then.
    pub(super) fn has_all_of(&self, worker: usize) -> bool {
        self.slots
            .get(worker)
            .is_some_and(|slot| slot.stats.is_some())
    }

    /// Laps of the slowest and the fastest worker and the estimated relative residual, by the newest reports.
    pub(super) fn progress(&self) -> Option<(u64, u64, f64)> {
        let reports = || self.team().map(|slot| slot.report.as_ref());
        let laps = |report: Option<&LapReport>| report.map(|report| report.laps as u64);
        let measured_sq = reports()
            .map(|report| Some(report?.estimate.measured_sq))
            .sum::<Option<f64>>()?;
        Some((
            reports().map(laps).min()??,
            reports().map(laps).max()??,
            measured_sq.sqrt() / self.policy.rhs_norm(),
        ))
    }

    /// The result, once `stage` is done.
    pub(super) fn into_ended(self) -> Option<Ended> {
        if self.phase != Phase::Done {
            return None;
        }
        Some(Ended {
            reason: self.reason?.at_best(self.residual),
            residual: self.residual,
            verifications: self.verifications,
            method: match &self.failed {
                // Relaxation reached no better x.
                Some(failed) if self.residual >= failed.residual => failed.method.clone(),
                _ => self.config.method_name(),
            },
            lost: self.slots.iter().filter(|slot| slot.is_gone).count(),
            joined: self.joined,
            x: self.x,
            stats: self
                .slots
                .into_iter()
                .filter_map(|slot| slot.stats)
                .collect(),
            notes: self.notes,
        })
    }

    /// Ends the run with the last known x; false: it is not known of all rows. `residual` computes that of x.
    pub(super) fn end_with_known_x(
        &mut self,
        reason: Reason,
        residual: impl FnOnce(&[f64]) -> f64,
    ) -> bool {
        let Some(x) = self.whole_x() else {
            return false;
        };
        self.residual = residual(x);
        (self.reason, self.phase) = (Some(reason), Phase::Done);
        if self.from_zero && self.residual > 1.0 {
            self.residual = self.residual_of_zero();
            self.x.fill(0.0);
        }
        true
    }

    /// Relative residual of x = 0.
    fn residual_of_zero(&self) -> f64 {
        crate::local::relative(self.rhs_sq.sqrt(), self.rhs_sq.sqrt())
    }

    /// Ends the run as interrupted, with the verified x of the pause that this begins. Before the first epoch nothing is to be had: false.
    pub(super) fn interrupt(&mut self) -> bool {
        if !self.begun {
            return false;
        }
        if self.phase == Phase::Iterating {
            self.pause(Cause::Interrupt);
        }
        self.interrupted = true;
        true
    }

    /// Takes a lap report. Any may be missing, old or repeated.
    pub(super) fn report(&mut self, worker: usize, report: LapReport) {
        if self.phase != Phase::Iterating || report.epoch != self.epoch {
            return;
        }
        let Some(slot) = self.slots.get_mut(worker) else {
            return;
        };
        slot.heard += 1;
        if slot
            .report
            .is_some_and(|held| report.number.wrapping_sub(held.number) as i32 <= 0)
        {
            return;
        }
        slot.report = Some(report);
        (slot.laps, slot.busy) = (report.laps, report.busy);
        if self.config.mode != Mode::Async {
            return; // the workers decide, all alike, after the same lap
        }
        let (mut measured_sq, mut expected_sq, mut laps) = (0.0, 0.0, f64::INFINITY);
        for slot in self.team() {
            let Some(report) = &slot.report else { return };
            measured_sq += report.estimate.measured_sq;
            expected_sq += report.estimate.expected_sq;
            laps = report.laps.min(laps);
        }
        if self.watch.is_candidate(expected_sq) {
            self.slots[worker].low += 1;
            if self.team().all(|slot| slot.low >= REPORTS_NEEDED) {
                return self.pause(Cause::Candidate);
            }
        } else {
            self.slots.iter_mut().for_each(|slot| slot.low = 0);
        }
        if let Some(cause) = self.watch.trouble(measured_sq, laps) {
            self.pause(cause);
        }
    }

    /// Takes a reliable message from a worker.
    pub(super) fn answer(&mut self, worker: usize, bytes: &[u8]) -> Result<(), JudgeFault> {
        let bad = |what| Err(JudgeFault::of(worker, what));
        if !self.takes_part(worker) {
            return Ok(()); // it was taken for lost, or was refused
        }
        let Some(answer) = Answer::parse(bytes) else {
            return bad("a message that does not parse");
        };
        if self.is_late(&answer) {
            return Ok(());
        }
        match (Some(answer), self.phase) {
            (Some(Answer::Failed { why }), _) => Err(JudgeFault::Worker { worker, why }),
            (Some(Answer::PeerLost { worker: lost }), _) => {
                self.unheard_of(lost, &format!("worker {} hears nothing of it", worker + 1))
            }
            (Some(Answer::Snapshot { start, values, .. }), _) => {
                self.snapshot(worker, start, &values)
            }
            (Some(Answer::Ready { rhs_sq, notes, .. }), Phase::Loading)
                if self.slots[worker].rhs_sq.is_none() =>
            {
                let slot = &mut self.slots[worker];
                (slot.rhs_sq, slot.held) = (Some(rhs_sq), slot.rows.clone());
                for note in notes {
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                }
                self.start_if_ready();
                Ok(())
            }
            (Some(Answer::Frozen(frozen)), Phase::Iterating | Phase::Freezing(_))
                if frozen.epoch == self.epoch =>
            {
                self.frozen(worker, frozen)
            }
            (
                Some(Answer::Residual {
                    epoch,
                    residual_sq,
                    magnitude_sq,
                    dots,
                }),
                Phase::Verifying(cause),
            ) if epoch == self.epoch => {
                self.slots[worker].exact = Some((residual_sq, magnitude_sq, dots));
                self.decide_if_exact(cause)
                    .ok_or(JudgeFault::of(worker, "products of other epochs"))
            }
            (Some(Answer::Solution { start, values, .. }), Phase::Collecting) => {
                self.solution(worker, start, &values)
            }
            (Some(Answer::Final { stats, .. }), Phase::Collecting) => {
                if self.slots[worker].solved != self.slots[worker].rows.len() {
                    return bad("only a part of its solution");
                }
                self.slots[worker].stats = Some(stats);
                if self.team().all(|slot| slot.stats.is_some()) {
                    self.phase = Phase::Done;
                    if self.ends_with_zero {
                        self.x.fill(0.0);
                    }
                    self.all(&Order::Leave);
                }
                Ok(())
            }
            (_, _) => bad("an answer that was not asked for"),
        }
    }

    /// Whether an answer belongs to an older division or epoch.
    fn is_late(&self, answer: &Answer) -> bool {
        let old = |epoch: u32| is_older(epoch, self.epoch);
        match answer {
            Answer::Ready { division, .. } | Answer::Snapshot { division, .. } => {
                is_older(*division, self.division)
            }
            Answer::Frozen(frozen) => old(frozen.epoch),
            Answer::Residual { epoch, .. }
            | Answer::Solution { epoch, .. }
            | Answer::Final { epoch, .. } => old(*epoch),
            Answer::Standing(_) => true, // there is a judge already
            Answer::Failed { .. } | Answer::PeerLost { .. } => false,
        }
    }

    fn snapshot(&mut self, worker: usize, start: usize, values: &[f64]) -> Result<(), JudgeFault> {
        let rows = &self.slots[worker].rows;
        let end = start.saturating_add(values.len());
        if start < rows.start || end > rows.end {
            return Err(JudgeFault::of(worker, "a snapshot that is not its own"));
        }
        // The solution is not overwritten by what was sent before it.
        if !matches!(self.phase, Phase::Collecting | Phase::Done) {
            self.x[start..end].copy_from_slice(values);
            self.moved = true;
            let unheard = self.unheard.drain(..);
            self.unheard = unheard
                .flat_map(|rows| without(&rows, &(start..end)))
                .collect();
        }
        Ok(())
    }

    fn all(&mut self, order: &Order) {
        let team = (0..self.slots.len()).filter(|worker| !self.slots[*worker].rows.is_empty());
        let orders: Vec<(usize, Order)> = team.map(|worker| (worker, order.clone())).collect();
        self.out.extend(orders);
    }

    fn start_if_ready(&mut self) {
        let Some(rhs_sq) = self.team().map(|slot| slot.rhs_sq).sum::<Option<f64>>() else {
            return;
        };
        if !self.begun {
            self.begun = true;
            self.rhs_sq = rhs_sq;
            self.policy = Policy::new(self.limits, rhs_sq, self.config.combines)
                .reaching(self.config.precision.reach());
        }
        self.begin(Vec::new());
    }

    /// Begins the next epoch, from a combination of former ones.
    fn begin(&mut self, factors: Vec<f64>) {
        self.epoch = self.epoch.wrapping_add(1);
        self.watch = self.policy.watch();
        self.phase = Phase::Iterating;
        for slot in &mut self.slots {
            (slot.report, slot.heard, slot.low) = (None, 0, 0);
            (slot.frozen, slot.exact) = (None, None);
        }
        let keeps = std::mem::take(&mut self.best.is_last);
        self.all(&Order::Begin {
            epoch: self.epoch,
            rhs_sq: self.rhs_sq,
            watch: self.watch,
            keeps,
            factors,
        });
        if self.interrupted {
            self.pause(Cause::Interrupt);
        }
    }

    fn pause(&mut self, cause: Cause) {
        self.phase = Phase::Freezing(cause);
        self.all(&Order::Pause { epoch: self.epoch });
    }

    fn solution(&mut self, worker: usize, start: usize, values: &[f64]) -> Result<(), JudgeFault> {
        let rows = self.slots[worker].rows.clone();
        // Parts must come in order, so that nothing is counted twice.
        if start != rows.start + self.slots[worker].solved || values.len() > rows.end - start {
            return Err(JudgeFault::of(worker, "a solution that is not its own"));
        }
        self.x[start..start + values.len()].copy_from_slice(values);
        self.slots[worker].solved += values.len();
        Ok(())
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;

#[cfg(test)]
mod more_tests;
