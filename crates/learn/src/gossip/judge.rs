//! The judge's decisions: answers in, orders out. No clock, no link.
//!
//! Stages: rows are handed out → workers step → parameters are collected → their gradient is certified → counters are collected → done. By `sgd`
//! parameters are certified after 1, 2, 4, 8 … epochs, while workers step on. A worker that is lost is dropped at any stage; by `newton` the others
//! then begin again at the newest parameters, for their sum has changed. A worker that joins gets the rows of those that were dropped, or a part of
//! each share, while the others step on; then all begin again with it, by `sgd` at the mean of the parameters. Where all workers say that they wait for
//! each other, those that see the end are certified, or all begin again; after [`VAIN_MAX`] times without progress the run ends (`Stuck`).

mod joining;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use crate::config::{LearnConfig, Method, Mode};
use crate::objective::assess;
use crate::report::{Outcome, Reason, disagreement};

use super::exchange::is_plausible;
use super::message::{Answer, Begin, Order, finite};
use super::table::Plausible;

pub(super) use joining::Joining;
use joining::count;

/// The cause of a loss where nobody knows more.
pub(super) const SILENT: &str = "nothing is heard from it any more";

/// Workers that wait for each other are told to begin again at most this often without progress.
const VAIN_MAX: u32 = 3;

/// Parameters beyond this may overflow where they are squared.
const OVERFLOW: f64 = 1e100;

/// Why a run cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// No worker is left; the last one's cause.
    NoWorkers {
        cause: String,
    },
    /// A worker was lost in a mode that needs all.
    Lost {
        worker: usize,
        cause: String,
    },
    Protocol {
        worker: usize,
    },
    /// The workers wait for each other's statistics, again and again.
    Stuck,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Distributing,
    Iterating,
    /// The flag: the method has ended.
    Collecting(bool),
    Verifying(bool),
    Finishing,
    Done,
}

#[derive(Debug, Default)]
struct Member {
    /// Its rows take part. Those of a worker that has joined do not until it has them all.
    takes_part: bool,
    /// The rows of its share, in its order.
    rows: Vec<Range<usize>>,
    /// Why it is dropped.
    cause: Option<String>,
    /// Why the earlier process with this number was dropped; its rows are still missing.
    former: Option<String>,
    is_ready: bool,
    port: u16,
    has_ended: bool,
    epochs: u64,
    is_last: bool,
    /// Nothing of others comes to it, and it has not ended.
    waits: bool,
    theta: Option<Vec<f64>>,
    sums: Option<Vec<f64>>,
    is_final: bool,
    /// The worker that accuses it.
    accusers: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Judge {
    config: LearnConfig,
    mode: Mode,
    plausible: Plausible,
    members: Vec<Member>,
    stage: Stage,
    epoch: u32,
    id: u32,
    /// The newest parameters.
    theta: Vec<f64>,
    check_at: u64,
    steps: u64,
    /// Newton steps before this epoch.
    steps_before: u64,
    /// Epochs since the last step that began because all waited.
    vain: u32,
    /// The certified result, and counters as they come.
    outcome: Outcome,
    /// Loss and gradient's norm as they come: iteration, loss, norm.
    news: Vec<(u64, f64, f64)>,
    out: VecDeque<(usize, Order)>,
    fault: Option<Fault>,
    /// Workers that have joined and have no rows yet.
    waiting: VecDeque<usize>,
    joining: Option<Joining>,
    /// Its rows are to be sent.
    is_dealt: bool,
}

impl Judge {
    /// `shares`: the rows of each worker.
    pub(super) fn new(
        config: LearnConfig,
        mode: Mode,
        plausible: Plausible,
        shares: Vec<Range<usize>>,
    ) -> Self {
        let member = |rows| Member {
            takes_part: true,
            rows: vec![rows],
            ..Member::default()
        };
        let members = shares.into_iter().map(member).collect();
        Self {
            config,
            mode,
            theta: vec![0.0; plausible.shape.parameters()],
            plausible,
            members,
            stage: Stage::Distributing,
            epoch: 0,
            id: 0,
            check_at: 1,
            steps: 0,
            steps_before: 0,
            vain: 0,
            outcome: Outcome::begun(),
            news: Vec::new(),
            out: VecDeque::new(),
            fault: None,
            waiting: VecDeque::new(),
            joining: None,
            is_dealt: false,
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) fn out(&mut self) -> &mut VecDeque<(usize, Order)> {
        &mut self.out
    }

    pub(super) fn take_news(&mut self) -> Vec<(u64, f64, f64)> {
        std::mem::take(&mut self.news)
    }

    pub(super) fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// The result of a run that is done. Times and names are its driver's.
    pub(super) fn outcome(&self) -> Outcome {
        Outcome {
            iterations: self.iterations(),
            ..self.outcome.clone()
        }
    }

    /// Newton steps or epochs of the worker that did most.
    fn iterations(&self) -> u64 {
        let epochs = self.members.iter().map(|member| member.epochs).max();
        self.steps.max(epochs.unwrap_or(0))
    }

    /// Workers that were dropped, with the rows that are missing for that, and causes.
    pub(super) fn dropped(&self) -> impl Iterator<Item = (usize, usize, &str)> {
        let members = self.members.iter().enumerate();
        members.filter_map(|(worker, member)| {
            let own = member.cause.as_deref().filter(|_| member.takes_part);
            let cause = own.or(member.former.as_deref())?;
            Some((worker, count(&member.rows) as usize, cause))
        })
    }

    /// Number of workers so far.
    pub(super) fn workers(&self) -> usize {
        self.members.len()
    }

    /// Whether this process has become a worker and has no part in the run yet.
    pub(super) fn is_new(&self, worker: usize) -> bool {
        self.is_alive(worker) && !self.members[worker].takes_part
    }

    pub(super) fn is_alive(&self, worker: usize) -> bool {
        self.members
            .get(worker)
            .is_some_and(|member| member.cause.is_none())
    }

    fn alive(&self) -> impl Iterator<Item = (usize, &Member)> {
        (self.members.iter().enumerate())
            .filter(|(_, member)| member.takes_part && member.cause.is_none())
    }

    fn order(&mut self, order: &Order) {
        let alive: Vec<usize> = self.alive().map(|(worker, _)| worker).collect();
        self.out
            .extend(alive.into_iter().map(|worker| (worker, order.clone())));
    }

    /// A better cause for a worker that was dropped because of its silence.
    pub(super) fn explain(&mut self, worker: usize, why: String) {
        if let Some(Some(cause)) = self.members.get_mut(worker).map(|member| &mut member.cause)
            && cause == SILENT
        {
            *cause = why;
        }
    }

    /// A worker is lost or not to be trusted: its share drops out.
    pub(super) fn drop_worker(&mut self, worker: usize, cause: String) {
        if !self.is_alive(worker) || self.stage == Stage::Done {
            return;
        }
        if !self.members[worker].takes_part {
            // The worker does not take part yet: the run loses nothing.
            self.members[worker].cause = Some(cause);
            self.waiting.retain(|waiting| *waiting != worker);
            self.joining.take_if(|joining| joining.worker == worker);
            return self.deal();
        }
        if self.stage == Stage::Finishing {
            // Its share is in the certified result; only its counters are missing.
            self.members[worker].is_final = true;
            return self.go_on();
        }
        self.members[worker].cause = Some(cause.clone());
        let why = format!("this worker was dropped: {cause}");
        self.out.retain(|(to, _)| *to != worker);
        self.out.push_back((worker, Order::Abort { why }));
        if self.alive().next().is_none() {
            self.fault = Some(Fault::NoWorkers { cause });
        } else if self.mode == Mode::AllReduce {
            self.fault = Some(Fault::Lost { worker, cause });
        } else if self.stage != Stage::Distributing && self.config.method == Method::Newton {
            self.begin();
        } else if matches!(self.stage, Stage::Collecting(_) | Stage::Verifying(_)) {
            self.collect();
        } else {
            self.go_on();
        }
        if self.fault.is_none() {
            self.drop_accused();
        }
    }

    fn begin(&mut self) {
        self.epoch += 1;
        self.steps_before = self.steps;
        self.stage = Stage::Iterating;
        let epochs = self
            .alive()
            .map(|(_, member)| member.epochs)
            .filter(|epochs| *epochs > 0)
            .min();
        let epochs = epochs.unwrap_or(0);
        for member in &mut self.members {
            (member.has_ended, member.epochs, member.is_last) = (false, epochs, false);
            member.waits = false;
        }
        let alive = |member: &Member| member.takes_part && member.cause.is_none();
        let begin = Begin {
            epoch: self.epoch,
            alive: self.members.iter().map(alive).collect(),
            rows: self.plausible.rows.clone(),
            theta: self.theta.clone(),
            epochs,
            ports: self.members.iter().map(|member| member.port).collect(),
        };
        self.order(&Order::Begin(begin));
        self.deal();
    }

    /// Takes a worker's answer.
    pub(super) fn answer(&mut self, worker: usize, bytes: &[u8]) {
        if !self.is_alive(worker) {
            return; // it was dropped
        }
        let Some(answer) = Answer::parse(bytes) else {
            self.fault = Some(Fault::Protocol { worker });
            return;
        };
        let parameters = self.plausible.shape.parameters();
        let member = &mut self.members[worker];
        match answer {
            Answer::Ready => member.is_ready = true,
            Answer::Listens { port } => member.port = port,
            Answer::Step {
                epoch,
                steps,
                loss,
                gradient_norm,
                theta,
                is_last,
            } => {
                if epoch != self.epoch || theta.len() != parameters || !finite(&theta) {
                    return;
                }
                (member.has_ended, member.waits) = (is_last, false);
                let steps = self.steps_before + steps;
                // Parameters that are being certified stay.
                let is_fixed = matches!(self.stage, Stage::Verifying(_));
                if (steps > self.steps || is_last) && !is_fixed {
                    self.theta = theta;
                }
                // The first step of an epoch may be made by one that hears all, where others do not.
                if steps > self.steps_before + 1 {
                    self.vain = 0;
                }
                if steps > self.steps {
                    self.steps = steps;
                    self.news.push((steps, loss, gradient_norm));
                }
            }
            Answer::Epochs { done, is_last } => {
                let done = done.min(self.config.sgd.epochs);
                (member.epochs, member.is_last) = (done.max(member.epochs), is_last);
            }
            Answer::Suspect { worker: suspect } => return self.suspect(suspect, worker),
            Answer::Gradient { id, sums } => {
                if id != self.id || !matches!(self.stage, Stage::Verifying(_)) {
                    return;
                }
                // Only where parameters are about to overflow can honest sums do so.
                let is_far = self.theta.iter().any(|theta| theta.abs() > OVERFLOW);
                let may_overflow = is_far && sums.len() == self.plausible.shape.statistic(false);
                if !may_overflow && !self.plausible.statistic(worker, &sums, false) {
                    self.outcome.rejected += 1;
                    return self.drop_worker(worker, "its gradient is implausible".to_owned());
                }
                self.members[worker].sums = Some(sums);
            }
            Answer::Parameters { id, theta } => {
                if id == self.id && matches!(self.stage, Stage::Collecting(_)) {
                    member.theta = Some(theta);
                }
            }
            Answer::Final {
                exchanges,
                rejected,
                bytes_sent,
                rows_beside,
            } => {
                member.is_final = true;
                // They are what the worker says: sums may not overflow.
                let totals = &mut self.outcome;
                for (total, more) in [
                    (&mut totals.exchanges, exchanges),
                    (&mut totals.rejected, rejected),
                    (&mut totals.bytes_sent, bytes_sent),
                    (&mut totals.rows_beside, rows_beside),
                ] {
                    *total = total.saturating_add(more);
                }
            }
            Answer::Failed { why } => return self.drop_worker(worker, why),
            Answer::Waits { epoch } => {
                if epoch == self.epoch && self.stage == Stage::Iterating {
                    member.waits = true;
                    self.unblock();
                }
                return;
            }
        }
        self.go_on();
    }

    /// More than half of the others must say so: a single liar cannot have an honest worker dropped, but where there are two.
    fn suspect(&mut self, suspect: usize, by: usize) {
        if !self.is_alive(suspect) || suspect == by {
            return;
        }
        let accusers = &mut self.members[suspect].accusers;
        if !accusers.contains(&by) {
            accusers.push(by);
        }
        self.drop_accused();
    }

    /// Where all wait, nobody makes what they wait for: those that see the end are certified, or all begin again.
    fn unblock(&mut self) {
        if self
            .alive()
            .any(|(_, member)| !member.has_ended && !member.waits)
        {
            return;
        }
        if self.alive().any(|(_, member)| member.has_ended) {
            return self.collect();
        }
        self.vain += 1;
        if self.vain > VAIN_MAX {
            self.fault = Some(Fault::Stuck);
        } else {
            self.begin();
        }
    }

    /// Drops a worker that enough accuse; asked again after each drop, as then fewer are enough.
    fn drop_accused(&mut self) {
        let others = self.alive().count().saturating_sub(1);
        let is_accused = |(_, member): &(usize, &Member)| {
            let accusers = member.accusers.iter();
            2 * accusers.filter(|by| self.is_alive(**by)).count() > others
        };
        let accused = self.alive().find(is_accused).map(|(worker, _)| worker);
        if let Some(worker) = accused {
            self.drop_worker(
                worker,
                "its peers refuse its numbers as implausible".to_owned(),
            );
        }
    }

    fn go_on(&mut self) {
        match self.stage {
            Stage::Iterating if self.is_joiner_ready() => match self.config.method {
                Method::Newton => self.admit(),
                Method::Sgd => self.collect(), // all begin again at the mean
            },
            Stage::Distributing if self.alive().all(|(_, member)| self.is_set(member)) => {
                self.begin()
            }
            Stage::Iterating if self.is_time() => self.collect(),
            Stage::Collecting(is_end) if self.alive().all(|(_, member)| member.theta.is_some()) => {
                self.verify(is_end);
            }
            Stage::Verifying(is_end) if self.alive().all(|(_, member)| member.sums.is_some()) => {
                self.certify(is_end);
            }
            Stage::Finishing if self.alive().all(|(_, member)| member.is_final) => {
                self.order(&Order::Leave);
                // A worker that joined too late leaves, too.
                let late = self.joining.take().map(|joining| joining.worker);
                let late = late.into_iter().chain(self.waiting.drain(..));
                self.out.extend(late.map(|worker| (worker, Order::Leave)));
                self.stage = Stage::Done;
            }
            _ => {}
        }
    }

    fn is_set(&self, member: &Member) -> bool {
        member.is_ready && (self.mode != Mode::Tcp || member.port != 0)
    }

    /// Whether parameters are to be collected.
    fn is_time(&self) -> bool {
        match self.config.method {
            Method::Newton => self.alive().all(|(_, member)| member.has_ended),
            Method::Sgd => {
                // An all-reduce hears of nothing before its end.
                let has_reached = |member: &Member| {
                    member.epochs >= self.check_at && self.mode != Mode::AllReduce
                };
                self.alive().all(|(_, member)| member.is_last)
                    || self
                        .alive()
                        .all(|(_, member)| has_reached(member) || member.is_last)
            }
        }
    }

    fn collect(&mut self) {
        let is_end = match self.config.method {
            Method::Newton => true,
            Method::Sgd => self.alive().all(|(_, member)| member.is_last),
        };
        while self.check_at <= self.iterations() {
            self.check_at *= 2;
        }
        self.members
            .iter_mut()
            .for_each(|member| member.theta = None);
        self.id = self.id.wrapping_add(1);
        self.stage = Stage::Collecting(is_end);
        self.order(&Order::Parameters { id: self.id });
    }

    fn verify(&mut self, is_end: bool) {
        let parameters = self.plausible.shape.parameters();
        let usable = |member: &Member| {
            member
                .theta
                .clone()
                .filter(|theta| theta.len() == parameters && finite(theta))
        };
        let found: Vec<Vec<f64>> = self
            .alive()
            .filter_map(|(_, member)| usable(member))
            .collect();
        if found.is_empty() {
            return self.finish(Reason::Diverged, (f64::NAN, f64::NAN), 0);
        }
        // Those that lie far from the middle of all are not to be trusted.
        let middle = median(&found);
        let theta_of = |member: &Member| member.theta.clone().unwrap_or_default();
        let far: Vec<usize> = (self.alive())
            .filter(|(_, member)| !is_plausible(&middle, &theta_of(member)))
            .map(|(worker, _)| worker)
            .collect();
        if let Some(worker) = far.first() {
            self.outcome.rejected += 1;
            // What follows is decided again, without it.
            return self.drop_worker(*worker, "its parameters are implausible".to_owned());
        }
        let all: Vec<&[f64]> = found.iter().map(Vec::as_slice).collect();
        self.outcome.disagreement = disagreement(&all);
        self.theta = match self.config.method {
            Method::Newton => {
                // One that has not seen the end would go on to another point.
                let ended = self.alive().filter(|(_, member)| member.has_ended);
                let ended = ended.filter_map(|(_, member)| usable(member)).next();
                ended.unwrap_or_else(|| found[0].clone())
            }
            Method::Sgd => self.mean(),
        };
        if !is_end && self.is_joiner_ready() {
            return self.admit();
        }
        self.members
            .iter_mut()
            .for_each(|member| member.sums = None);
        self.id = self.id.wrapping_add(1);
        self.stage = Stage::Verifying(is_end);
        let verify = Order::Verify {
            id: self.id,
            theta: self.theta.clone(),
        };
        self.order(&verify);
    }

    /// Mean of the workers' parameters, by their rows.
    fn mean(&self) -> Vec<f64> {
        let rows: u64 = self
            .alive()
            .map(|(worker, _)| self.plausible.rows[worker])
            .sum();
        let mut mean = vec![0.0; self.plausible.shape.parameters()];
        for (worker, member) in self.alive() {
            let part = self.plausible.rows[worker] as f64 / rows.max(1) as f64;
            let theta = member.theta.iter().flatten();
            mean.iter_mut()
                .zip(theta)
                .for_each(|(mean, theta)| *mean += part * theta);
        }
        mean
    }

    fn certify(&mut self, is_end: bool) {
        let shape = self.plausible.shape;
        let mut sums = vec![0.0; shape.statistic(false)];
        for (_, member) in self.alive() {
            let own = member.sums.iter().flatten();
            sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        let (loss, norm) = assess(shape, &sums, false, &self.theta, self.config.l2);
        if self.config.method == Method::Sgd {
            self.news.push((self.iterations(), loss, norm));
        }
        let rows = sums[0] as usize;
        if norm <= self.config.tol {
            self.finish(Reason::Converged, (loss, norm), rows);
        } else if !norm.is_finite() {
            self.finish(Reason::Diverged, (loss, norm), rows);
        } else if is_end {
            // Newton's method has stagnated, or rounding put the certified norm just above the tolerance that the workers saw it below.
            let reason = match self.config.method {
                Method::Sgd => Reason::Epochs,
                Method::Newton => Reason::Stagnated,
            };
            self.finish(reason, (loss, norm), rows);
        } else {
            self.stage = Stage::Iterating;
            self.go_on();
        }
    }

    fn finish(&mut self, reason: Reason, (loss, gradient_norm): (f64, f64), rows: usize) {
        let outcome = &mut self.outcome;
        (outcome.reason, outcome.rows) = (reason, rows);
        (outcome.loss, outcome.gradient_norm) = (loss, gradient_norm);
        outcome.theta.clone_from(&self.theta);
        self.stage = Stage::Finishing;
        self.order(&Order::Finish);
    }
}

/// The middle of each parameter; of an even number of vectors the lower one.
fn median(vectors: &[Vec<f64>]) -> Vec<f64> {
    let parameters = vectors.first().map_or(0, Vec::len);
    let mut column = Vec::with_capacity(vectors.len());
    (0..parameters)
        .map(|place| {
            column.clear();
            column.extend(vectors.iter().map(|theta| theta[place]));
            column.sort_by(f64::total_cmp);
            column[(column.len() - 1) / 2]
        })
        .collect()
}
