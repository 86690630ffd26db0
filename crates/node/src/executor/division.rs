//! Which thread of a program that computes all the time does so: the one that polls, or one beside it.
//!
//! A pure decision on measurements, asked for by `beside` between the program's steps. Adaptive begins on the polling thread. If that spends more than
//! [`EXCHANGE_PERCENT`] of its time on messages and there is a core for another thread, the work moves there on trial ([`Trial`]): it stays if it is
//! done faster, and comes back if not.

use super::Executor;
use super::policy::Trial;

/// Between two decisions: some hundred steps, and long against the move itself.
const PERIOD_NS: u64 = 5_000_000;
/// With a smaller share there is less to gain than the copies between the threads cost.
const EXCHANGE_PERCENT: u64 = 20;
/// Work is counted in so many parts of the program's unit.
const PARTS: f64 = 1e6;

/// What a program has done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Done {
    /// Time, from the program's own beginning on.
    pub(super) now_ns: u64,
    /// Work, in a unit of the program's choice: laps, rows.
    pub(super) work: f64,
    /// Time spent on computing; only told while the polling thread computes.
    pub(super) computed_ns: u64,
}

/// Decides which thread computes.
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

    /// Whether a thread beside the polling one is to compute from now on. `done` counts on while the program computes.
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
        let work = ((done.work - self.since.work).max(0.0) * PARTS) as u64;
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

    /// The program does not compute: the time until it does again counts for nothing.
    pub(super) fn pause(&mut self) {
        self.since = Done::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program: so much work in a period on either thread, so much of the time computing.
    fn run(
        division: &mut Division,
        periods: u32,
        work: [f64; 2],
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
                done.work += work[usize::from(beside)];
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

    /// Work moves only if there is a core and messages take time; it stays there if it is done faster, and comes back if it is done more slowly.
    #[test]
    fn work_moves_where_it_is_done_faster() {
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
