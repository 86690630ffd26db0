//! Which thread of a worker computes: the one that polls, or one beside it.
//!
//! A pure decision on measurements, asked for by `serve` after each step. Adaptive begins on the polling thread. If that spends more than
//! [`EXCHANGE_PERCENT`] of its time on messages and there is a core for another thread, the work moves there on trial ([`Trial`]): it stays if laps
//! become faster, and comes back if not.

use tsumuji_node::{Executor, Trial};

/// Between two decisions: some hundred steps, and long against the move itself.
const PERIOD_NS: u64 = 5_000_000;
/// With a smaller share there is less to gain than the copies between the threads cost.
const EXCHANGE_PERCENT: u64 = 20;
/// Laps are counted in so many parts.
const PARTS: f64 = 1e6;

/// What a worker has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    pub(super) now_ns: u64,
    /// Laps, with the part of the current one.
    pub(super) laps: f64,
    /// Time spent on computing; only told while the polling thread computes.
    pub(super) computed_ns: u64,
}

#[derive(Debug)]
pub(super) struct Division {
    executor: Executor,
    may_gain: bool,
    beside: bool,
    /// Where the period began; time 0: none has.
    since: Done,
    trial: Trial,
}

impl Division {
    /// `may_gain`: there are others to hear from, and a core for a second thread.
    pub(super) fn new(executor: Executor, may_gain: bool) -> Self {
        Self {
            executor,
            may_gain,
            beside: executor == Executor::Pipeline,
            since: Done::default(),
            trial: Trial::default(),
        }
    }

    /// Whether a thread beside the polling one is to compute from now on. `done` counts on while the worker relaxes.
    pub(super) fn is_beside(&mut self, done: Done) -> bool {
        if self.executor != Executor::Adaptive || !self.may_gain {
            return self.beside;
        }
        if self.since.now_ns == 0 {
            self.since = done;
        }
        let span_ns = done.now_ns.saturating_sub(self.since.now_ns);
        if span_ns < PERIOD_NS {
            return self.beside;
        }
        let work = ((done.laps - self.since.laps).max(0.0) * PARTS) as u64;
        if self.beside {
            self.beside = !self.trial.has_failed(work, span_ns, done.now_ns);
        } else if work > 0 {
            let computed_ns = done.computed_ns.saturating_sub(self.since.computed_ns);
            let exchanged_ns = span_ns.saturating_sub(computed_ns);
            if exchanged_ns * 100 >= span_ns * EXCHANGE_PERCENT
                && self.trial.is_allowed(done.now_ns)
            {
                self.trial.begin(work, span_ns);
                self.beside = true;
            }
        }
        self.since = done;
        self.beside
    }

    /// The worker does not relax: the time until it does again counts for nothing.
    pub(super) fn pause(&mut self) {
        self.since = Done::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker: so many laps in a period on either thread, so much of the time computing.
    fn run(
        division: &mut Division,
        periods: u32,
        laps: [f64; 2],
        computed_percent: u64,
    ) -> Vec<bool> {
        let mut done = Done {
            now_ns: 1,
            ..Done::default()
        };
        let mut beside = division.is_beside(done);
        (0..periods)
            .map(|_| {
                done.now_ns += PERIOD_NS;
                done.laps += laps[usize::from(beside)];
                done.computed_ns += PERIOD_NS * computed_percent / 100;
                beside = division.is_beside(done);
                beside
            })
            .collect()
    }

    /// Pipeline and run-to-completion stay as they are asked for.
    #[test]
    fn a_fixed_executor_stays() {
        for (executor, wanted) in [
            (Executor::Pipeline, true),
            (Executor::RunToCompletion, false),
        ] {
            let found = run(&mut Division::new(executor, true), 50, [1.0, 0.1], 10);
            assert_eq!(found, [wanted; 50], "{executor}");
        }
    }

    /// Work moves only if there is a core and messages take time; it stays there if laps become faster, and comes back if they become slower.
    #[test]
    fn work_moves_where_that_makes_laps_faster() {
        let adaptive = |may_gain| Division::new(Executor::Adaptive, may_gain);
        assert_eq!(run(&mut adaptive(false), 50, [1.0, 2.0], 10), [false; 50]);
        assert_eq!(run(&mut adaptive(true), 50, [1.0, 2.0], 90), [false; 50]);
        let faster = run(&mut adaptive(true), 50, [1.0, 1.2], 50);
        assert_eq!(faster, [true; 50]);
        let slower = run(&mut adaptive(true), 50, [1.0, 0.8], 50);
        assert!(slower.iter().any(|beside| *beside), "it was never tried");
        assert!(!slower[49], "{slower:?}");
    }
}
