//! The judge as a state machine: reports and answers in, orders out. No clock, no link, no thread.
//!
//! Driven by `run`. Asynchronous runs end only like this: the sum of all workers' estimates is low enough in two reports of each → pause → every
//! worker holds the same blocks (their stamps prove it) → exact residual on the rows' owners, summed here → end, or another epoch. Reports may be
//! lost, late or repeated: that delays, and never falsifies.
//! Invariants: a run converges only by an exact residual of one x that all workers hold; an unexpected answer ends the run; phases follow one another
//! and each waits for all workers.

use super::accelerate::combine;
use super::config::Mode;
use super::message::{Answer, Frozen, LapReport, Order, Setup, WorkerStats};
use super::watch::{Cause, Policy, Watch};
use crate::local::Limits;
use crate::report::Reason;
use std::collections::VecDeque;

/// Reports of each worker that must find the sum low enough. One might be older than a value under way that raises it; an unnecessary pause costs a
/// pass over A and does no harm, so two are enough.
const REPORTS_NEEDED: u32 = 2;
/// Exchanges in a row after which workers may hold different blocks. Blocks are sent reliably, so one should be enough.
const DISAGREEMENTS: u32 = 3;

/// Why the judge aborts a run. Workers count from 0 here.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum JudgeFault {
    /// A worker reports a failure.
    Worker { worker: usize, why: String },
    /// A worker lost contact with another one.
    Missed { worker: usize },
    /// A message does not parse or fit.
    Protocol { worker: usize, what: &'static str },
    /// Blocks that were sent reliably are not the same everywhere.
    Disagreement,
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
    pub(super) x: Vec<f64>,
    pub(super) stats: Vec<WorkerStats>,
    pub(super) notes: Vec<String>,
}

/// State of one worker as the judge knows it.
#[derive(Debug, Clone, Default)]
struct WorkerSlot {
    rhs_sq: Option<f64>,
    /// The newest report of this epoch.
    report: Option<LapReport>,
    /// Reports since the sum became and stayed low enough.
    low: u32,
    frozen: Option<Frozen>,
    /// Σ (b − A x)², Σ (|b| + |A| |x|)², and products for `combine`.
    exact: Option<(f64, f64, Vec<f64>)>,
    /// Elements of its block that have arrived.
    solved: usize,
    stats: Option<WorkerStats>,
}

#[derive(Debug)]
pub(super) struct Judge {
    setup: Setup,
    limits: Limits,
    phase: Phase,
    epoch: u32,
    rhs_sq: f64,
    policy: Policy,
    watch: Watch,
    slots: Vec<WorkerSlot>,
    disagreements: u32,
    interrupted: bool,
    verifications: u64,
    residual: f64,
    reason: Option<Reason>,
    notes: Vec<String>,
    x: Vec<f64>,
    out: VecDeque<(usize, Order)>,
}

impl Judge {
    /// Orders the setup; the driver sends the rows.
    pub(super) fn new(limits: Limits, setups: Vec<Setup>) -> Self {
        let workers = setups.len();
        let setup = setups[0].clone();
        let policy = Policy::new(limits, 0.0, setup.config.combines);
        Self {
            limits,
            phase: Phase::Loading,
            epoch: 0,
            rhs_sq: 0.0,
            watch: policy.watch(),
            policy,
            slots: vec![WorkerSlot::default(); workers],
            disagreements: 0,
            interrupted: false,
            verifications: 0,
            residual: f64::NAN,
            reason: None,
            notes: Vec::new(),
            x: Vec::new(),
            out: setups
                .into_iter()
                .map(|setup| Order::Setup(Box::new(setup)))
                .enumerate()
                .collect(),
            setup,
        }
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
        let reports = || self.slots.iter().map(|slot| slot.report.as_ref());
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
        Some(Ended {
            reason: self.reason?,
            residual: self.residual,
            verifications: self.verifications,
            x: self.x,
            stats: self
                .slots
                .into_iter()
                .map(|slot| slot.stats)
                .collect::<Option<_>>()?,
            notes: self.notes,
        })
    }

    /// Ends the run as interrupted, with the verified x of the pause that this begins. In synchronous runs, whose workers stop by themselves, and before
    /// the first epoch nothing is to be had: false.
    pub(super) fn interrupt(&mut self) -> bool {
        if self.setup.config.mode == Mode::Sync || self.phase == Phase::Loading {
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
        if slot
            .report
            .is_some_and(|held| report.number.wrapping_sub(held.number) as i32 <= 0)
        {
            return;
        }
        slot.report = Some(report);
        if self.setup.config.mode == Mode::Sync {
            return; // in synchronous runs the workers decide, all alike, after the same lap
        }
        let (mut measured_sq, mut expected_sq, mut laps) = (0.0, 0.0, f64::INFINITY);
        for slot in &self.slots {
            let Some(report) = &slot.report else { return };
            measured_sq += report.estimate.measured_sq;
            expected_sq += report.estimate.expected_sq;
            laps = report.laps.min(laps);
        }
        if self.watch.is_candidate(expected_sq) {
            self.slots[worker].low += 1;
            if self.slots.iter().all(|slot| slot.low >= REPORTS_NEEDED) {
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
        let bad = |what| Err(JudgeFault::Protocol { worker, what });
        if worker >= self.slots.len() {
            return bad("a message although it has no rows");
        }
        match (Answer::parse(bytes), self.phase) {
            (None, _) => bad("a message that does not parse"),
            (Some(Answer::Failed { why }), _) => Err(JudgeFault::Worker { worker, why }),
            (Some(Answer::PeerLost { worker: lost }), _) => {
                let lost_early = lost < self.slots.len() && !self.has_all_of(lost);
                if lost_early {
                    Err(JudgeFault::Missed { worker: lost })
                } else {
                    Ok(())
                }
            }
            (Some(Answer::Ready { rhs_sq, notes }), Phase::Loading)
                if self.slots[worker].rhs_sq.is_none() =>
            {
                self.slots[worker].rhs_sq = Some(rhs_sq);
                self.notes.extend(notes);
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
                self.decide_if_exact(cause).ok_or(JudgeFault::Protocol {
                    worker,
                    what: "products of other epochs",
                })
            }
            (Some(Answer::Solution { start, values }), Phase::Collecting) => {
                self.solution(worker, start, &values)
            }
            (Some(Answer::Final(stats)), Phase::Collecting) => {
                if self.slots[worker].solved != self.setup.rows_of(worker).len() {
                    return bad("only a part of its solution");
                }
                self.slots[worker].stats = Some(stats);
                if self.slots.iter().all(|slot| slot.stats.is_some()) {
                    self.phase = Phase::Done;
                    self.all(&Order::Leave);
                }
                Ok(())
            }
            (Some(_), _) => bad("an answer that was not asked for"),
        }
    }

    fn all(&mut self, order: &Order) {
        self.out
            .extend((0..self.slots.len()).map(|worker| (worker, order.clone())));
    }

    fn start_if_ready(&mut self) {
        let Some(rhs_sq) = self
            .slots
            .iter()
            .map(|slot| slot.rhs_sq)
            .sum::<Option<f64>>()
        else {
            return;
        };
        self.rhs_sq = rhs_sq;
        self.policy = Policy::new(self.limits, rhs_sq, self.setup.config.combines);
        self.begin(Vec::new());
    }

    /// Begins the next epoch, from a combination of former ones.
    fn begin(&mut self, factors: Vec<f64>) {
        self.epoch = self.epoch.wrapping_add(1);
        self.watch = self.policy.watch();
        self.phase = Phase::Iterating;
        for slot in &mut self.slots {
            (slot.report, slot.low, slot.frozen, slot.exact) = (None, 0, None, None);
        }
        self.all(&Order::Begin {
            epoch: self.epoch,
            rhs_sq: self.rhs_sq,
            watch: self.watch,
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

    fn frozen(&mut self, worker: usize, frozen: Frozen) -> Result<(), JudgeFault> {
        let sync = self.setup.config.mode == Mode::Sync;
        if frozen.cause.is_some() != sync || frozen.held.len() != self.slots.len() {
            return Err(JudgeFault::Protocol {
                worker,
                what: "a standstill that was not asked for",
            });
        }
        match (self.phase, frozen.cause) {
            (Phase::Iterating, Some(cause)) => self.phase = Phase::Freezing(cause),
            (Phase::Freezing(known), Some(cause)) if known != cause => {
                return Err(JudgeFault::Disagreement);
            }
            (Phase::Iterating, None) => {
                return Err(JudgeFault::Protocol {
                    worker,
                    what: "a standstill that was not asked for",
                });
            }
            _ => {}
        }
        self.slots[worker].frozen = Some(frozen);
        let Some(all) = self
            .slots
            .iter()
            .map(|slot| slot.frozen.as_ref())
            .collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        // Every worker holds, of what it reads of another's block, the stamp that the other has itself.
        let same = (0..all.len()).all(|owner| {
            let own = all[owner].held[owner];
            let agrees = |held: Option<u32>| held.is_none() || held == own;
            own.is_some_and(|stamp| stamp != 0)
                && all.iter().all(|frozen| agrees(frozen.held[owner]))
        });
        if same {
            self.disagreements = 0;
            let Phase::Freezing(cause) = self.phase else {
                unreachable!("set above")
            };
            self.phase = Phase::Verifying(cause);
            self.verifications += 1;
            let magnitude = self.policy.wants_rounding(cause);
            self.all(&Order::Verify {
                epoch: self.epoch,
                magnitude,
            });
        } else {
            self.disagreements += 1;
            if self.disagreements >= DISAGREEMENTS {
                return Err(JudgeFault::Disagreement);
            }
            self.begin(Vec::new());
        }
        Ok(())
    }

    /// Ends the run or begins an epoch, once every exact residual has arrived. `None`: products that do not fit each other.
    fn decide_if_exact(&mut self, cause: Cause) -> Option<()> {
        let (mut residual_sq, mut magnitude_sq) = (0.0, 0.0);
        let mut dots: Option<Vec<f64>> = None;
        for slot in &self.slots {
            let Some((residual, magnitude, own)) = &slot.exact else {
                return Some(());
            };
            residual_sq += residual;
            magnitude_sq += magnitude;
            match &mut dots {
                None => dots = Some(own.clone()),
                Some(dots) if dots.len() == own.len() => {
                    dots.iter_mut().zip(own).for_each(|(sum, own)| *sum += own)
                }
                Some(_) => return None,
            }
        }
        let (factors, least_sq) = combine(&dots?, residual_sq)?;
        let norm = self.policy.rhs_norm();
        self.residual = residual_sq.sqrt() / norm;
        let rounding = f64::EPSILON * magnitude_sq.sqrt() / norm;
        let laps = self
            .slots
            .iter()
            .filter_map(|slot| Some(slot.frozen.as_ref()?.laps))
            .min()
            .unwrap_or(0);
        self.reason =
            self.policy
                .verified(cause, laps, self.residual, least_sq.sqrt() / norm, rounding);
        if self.interrupted {
            self.reason.get_or_insert(Reason::Interrupted);
        }
        if self.reason.is_some() {
            self.phase = Phase::Collecting;
            self.x = vec![0.0; self.setup.n()];
            self.all(&Order::Finish);
        } else {
            let combines = self.setup.config.combines;
            self.begin(if combines { factors } else { Vec::new() });
        }
        Some(())
    }

    fn solution(&mut self, worker: usize, start: usize, values: &[f64]) -> Result<(), JudgeFault> {
        let rows = self.setup.rows_of(worker);
        // Parts must come in order, so that nothing is counted twice.
        if start != rows.start + self.slots[worker].solved || values.len() > rows.end - start {
            return Err(JudgeFault::Protocol {
                worker,
                what: "a solution that is not its own",
            });
        }
        self.x[start..start + values.len()].copy_from_slice(values);
        self.slots[worker].solved += values.len();
        Ok(())
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
