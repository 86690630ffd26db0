//! Asynchronous relaxation by threads that share x: no thread waits for another, except for verification.
//!
//! Each thread owns a range of rows. It sweeps a step on a private copy of x, so that vector kernels apply, publishes the renewed values, reads those
//! of the others, and goes on. The calling thread is the judge: when the sum of the local estimates is below the tolerance it pauses all threads, has
//! the exact residual computed from the frozen x, and ends or resumes.
//!
//! Invariant: elements of the shared x are written by their owner only, or by the judge in a pause; while all threads are between the barriers of a pause nobody writes. Elements
//! are single 64-bit words, read and written whole (relaxed): a reader sees some value that the owner had, and asynchronous relaxation needs no more.

use super::accelerate::{History, combine_all};
use super::stop::Best;
use super::{Limits, Relaxation, RelaxationError, StopRule, Sweeper, kernels};
use crate::report::{Outcome, Progress, RELAXATION, Reason, Seconds};
use crate::system::{Order, PartitionError, RowBlock, System, partition};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long the judge sleeps when no worker wakes it: the interval of progress reports.
const JUDGE_NAP: Duration = Duration::from_millis(20);

/// Why threads cannot start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadsError {
    /// The rows cannot be partitioned.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A block cannot be set up.
    #[error(transparent)]
    Relaxation(#[from] RelaxationError),
}

/// Relaxes `system` with `workers` threads. Starts with x = 0; `progress` is called about fifty times a second. With the flag, laps are combined at
/// pauses (GCR). When `stop`, called about fifty times a second, returns true, the run ends as interrupted, with the verified residual of its x.
pub fn solve(
    mut system: System,
    workers: usize,
    (relaxation, combines): (Relaxation, bool),
    limits: Limits,
    mut progress: impl FnMut(Progress),
    stop: impl Fn() -> bool,
) -> Result<Outcome, ThreadsError> {
    let begin = Instant::now();
    let order = Order::for_workers(&system, workers).map(|(order, ordered)| {
        system = ordered;
        order
    });
    let ranges = partition(&system.matrix, workers)?;
    let mut history = combines.then(|| History::new(system.n(), &system.rhs, false));
    let (n, norm) = (system.n(), system.rhs_norm());
    let scaling = system.scaling.clone();
    let sweepers = set_up(RowBlock::split(system, &ranges), relaxation)?;
    let notes = sweepers
        .iter()
        .filter_map(Sweeper::note)
        .map(String::from)
        .collect();
    let shared = Shared {
        x: (0..n).map(|_| AtomicU64::new(0f64.to_bits())).collect(),
        residual: (0..if combines { n } else { 0 })
            .map(|_| AtomicU64::new(0))
            .collect(),
        cells: (0..workers).map(|_| Cell::default()).collect(),
        command: AtomicUsize::new(RUN),
        gate: Barrier::new(workers + 1),
        rule: StopRule::new(limits),
        norm,
        judge: std::thread::current(),
    };
    let mut seconds = Seconds {
        distribute: begin.elapsed().as_secs_f64(),
        ..Seconds::default()
    };

    let begin = Instant::now();
    let (mut verifications, mut best) = (0, Best::default());
    best.see(super::relative(norm, norm), &vec![0.0; n]); // no x that is worse than 0 is returned
    let (reason, residual) = std::thread::scope(|scope| {
        for (worker, sweeper) in sweepers.into_iter().enumerate() {
            let shared = &shared;
            scope.spawn(move || work(shared, worker, sweeper));
        }
        let mut rule = shared.rule.clone();
        let mut verified_at = 0;
        loop {
            std::thread::park_timeout(JUDGE_NAP);
            let state = shared.state();
            progress(Progress {
                distributed: 1.0,
                laps_min: state.laps_min,
                laps_max: state.laps_max,
                residual_estimate: state.estimate,
                elapsed: begin.elapsed(),
            });
            // At least a lap of every worker between two verifications: an estimate that stays wrong must not stop the work.
            let overdue = state.laps_min >= verified_at + StopRule::STALL_LAPS;
            let stopped = stop();
            if !stopped
                && (state.laps_min <= verified_at || !(overdue || shared.is_to_be_verified(&state)))
            {
                continue;
            }
            let verifying = Instant::now();
            let (residual, rounding) = shared.pause();
            let laps = shared.state().laps_min;
            let reason = rule
                .verified(laps, residual, rounding)
                .or(stopped.then_some(Reason::Interrupted));
            verified_at = laps;
            verifications += 1;
            if reason.is_none() {
                best.see(residual, &shared.x());
            }
            let mut least = residual;
            if let (Some(history), None) = (&mut history, &reason) {
                let mut x = shared.x();
                let exact = shared.residual.iter().map(load).collect();
                least = super::relative(combine_all(history, &mut x, exact).sqrt(), norm);
                for (shared, x) in shared.x.iter().zip(&x) {
                    store(shared, *x);
                }
            }
            rule.combined(laps, least);
            shared.resume(if reason.is_some() { END } else { RUN });
            seconds.verify_last = verifying.elapsed().as_secs_f64();
            seconds.verify += seconds.verify_last;
            if let Some(reason) = reason {
                break (reason, residual);
            }
        }
    });
    seconds.iterate = begin.elapsed().as_secs_f64() - seconds.verify;
    let (residual, x) = best.or_last(residual, shared.x());
    let x = crate::system::Scaling::undo(scaling.as_ref(), x);
    Ok(Outcome {
        converged: reason == Reason::Converged,
        reason: reason.at_best(residual),
        method: RELAXATION.into(),
        residual,
        laps: shared
            .cells
            .iter()
            .map(|cell| cell.laps.load(Ordering::Relaxed))
            .collect(),
        verifications,
        seconds,
        notes,
        x: match &order {
            Some(order) => order.restore(&x),
            None => x,
        },
    })
}

/// Commands of the judge.
const RUN: usize = 0;
const PAUSE: usize = 1;
const END: usize = 2;

/// State that one worker publishes, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    laps: AtomicU64,
    /// Bits of the sum of squared residuals of the last lap, and of the lap before.
    met: AtomicU64,
    met_before: AtomicU64,
    /// Bits of the exact squared residual and magnitude of the own rows, as of the last pause.
    residual_sq: AtomicU64,
    magnitude_sq: AtomicU64,
}

struct Shared {
    x: Vec<AtomicU64>,
    /// The exact residual as of the last pause, where laps are combined; written by the owner of the row.
    residual: Vec<AtomicU64>,
    cells: Vec<Cell>,
    command: AtomicUsize,
    /// All workers and the judge.
    gate: Barrier,
    /// A fresh rule, for conditions that do not depend on history.
    rule: StopRule,
    norm: f64,
    judge: Thread,
}

/// Values of all cells; not a snapshot of one instant.
struct State {
    laps_min: u64,
    laps_max: u64,
    /// Relative residuals; infinite until every worker has done a lap.
    estimate: f64,
    estimate_before: f64,
}

impl Shared {
    fn x(&self) -> Vec<f64> {
        self.x.iter().map(load).collect()
    }

    /// The sum of one number of all workers.
    fn sum(&self, word: fn(&Cell) -> &AtomicU64) -> f64 {
        self.cells.iter().map(|cell| load(word(cell))).sum()
    }

    fn state(&self) -> State {
        let laps = || {
            self.cells
                .iter()
                .map(|cell| cell.laps.load(Ordering::Relaxed))
        };
        let laps_min = laps().min().unwrap_or(0);
        let relative = |squares: f64, laps: u64| {
            if laps_min < laps {
                f64::INFINITY
            } else {
                super::relative(squares.sqrt(), self.norm)
            }
        };
        State {
            laps_min,
            laps_max: laps().max().unwrap_or(0),
            estimate: relative(self.sum(|cell| &cell.met), 1),
            estimate_before: relative(self.sum(|cell| &cell.met_before), 2),
        }
    }

    /// Whether the estimates are low enough to compute the exact residual.
    fn is_to_be_verified(&self, state: &State) -> bool {
        state.laps_min >= 1
            && (state.laps_min >= self.rule.limits().max_laps()
                || self.rule.estimate(state.estimate).is_some()
                || self
                    .rule
                    .worth_verifying(state.estimate_before, state.estimate))
    }

    /// Judge: freezes x; returns relative residual and rounding level. [`Shared::resume`] must follow.
    fn pause(&self) -> (f64, f64) {
        self.command.store(PAUSE, Ordering::Relaxed);
        self.gate.wait();
        self.gate.wait();
        let residual = super::relative(self.sum(|cell| &cell.residual_sq).sqrt(), self.norm);
        let magnitude = super::relative(self.sum(|cell| &cell.magnitude_sq).sqrt(), self.norm);
        (residual, f64::EPSILON * magnitude)
    }

    /// Judge: ends a pause with RUN or END.
    fn resume(&self, command: usize) {
        self.command.store(command, Ordering::Relaxed);
        self.gate.wait();
    }

    /// Worker: waits until a pause is over; returns whether to go on. The barriers order all accesses before and after them.
    fn sit_out(&self, worker: usize, block: &RowBlock, x: &mut [f64]) -> bool {
        self.gate.wait();
        for (private, shared) in x.iter_mut().zip(&self.x) {
            *private = load(shared);
        }
        let mut exact = vec![0.0; block.rhs.len()];
        block.exact_residual(0..exact.len(), x, &mut exact);
        let squares = kernels::sum_of_squares(&exact);
        store(&self.cells[worker].residual_sq, squares);
        let combines = !self.residual.is_empty();
        if combines {
            for (shared, exact) in self.residual[block.rows.clone()].iter().zip(&exact) {
                store(shared, *exact);
            }
        }
        store(
            &self.cells[worker].magnitude_sq,
            block.magnitude_sq(0..block.rhs.len(), x),
        );
        self.gate.wait();
        self.gate.wait();
        if combines {
            for (private, shared) in x.iter_mut().zip(&self.x) {
                *private = load(shared);
            }
        }
        self.command.load(Ordering::Relaxed) != END
    }
}

/// One worker's loop.
fn work(shared: &Shared, worker: usize, mut sweeper: Sweeper) {
    let cell = &shared.cells[worker];
    let block = sweeper.block();
    let foreign = super::ranges_of(&block.foreign_columns(), 0, &block.rows);
    let rows_per_step = sweeper.rows_per_step();
    let mut x = vec![0.0; shared.x.len()];
    loop {
        let mut met = 0.0;
        let mut news = false;
        for rows in sweeper.lap(rows_per_step) {
            if shared.command.load(Ordering::Relaxed) != RUN
                && !shared.sit_out(worker, sweeper.block(), &mut x)
            {
                return;
            }
            for range in &foreign {
                let elements = x[range.clone()].iter_mut();
                for (private, shared) in elements.zip(&shared.x[range.clone()]) {
                    let value = load(shared);
                    news |= value != *private;
                    *private = value;
                }
            }
            met += sweeper.relax(rows.clone(), &mut x);
            for (private, shared) in x[rows.clone()].iter().zip(&shared.x[rows]) {
                store(shared, *private);
            }
        }
        cell.met_before
            .store(cell.met.load(Ordering::Relaxed), Ordering::Relaxed);
        store(&cell.met, met);
        cell.laps.fetch_add(1, Ordering::Relaxed);
        let state = shared.state();
        if shared.is_to_be_verified(&state) {
            shared.judge.unpark();
        }
        let own = super::relative(met.sqrt(), shared.norm);
        if shared.rule.estimate(own).is_some() {
            // The judge is to see numbers before they overflow.
            std::thread::sleep(JUDGE_NAP);
        }
        if !news {
            // A lap without news from others repeats the last one: they may be waiting for this core.
            std::thread::yield_now();
        }
    }
}

/// Makes the sweepers in parallel, since factorising takes a while.
fn set_up(blocks: Vec<RowBlock>, relaxation: Relaxation) -> Result<Vec<Sweeper>, RelaxationError> {
    let made = super::on_threads(blocks, |block| Sweeper::new(block, relaxation));
    made.into_iter().collect()
}

fn load(word: &AtomicU64) -> f64 {
    f64::from_bits(word.load(Ordering::Relaxed))
}

fn store(word: &AtomicU64, value: f64) {
    word.store(value.to_bits(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
