//! Decides which thread computes in a program that computes all the time: the one that polls, or one beside it.
//!
//! A pure decision on measurements, asked for by `beside` between the program's steps. Adaptive begins on the polling thread. If that spends more than
//! [`EXCHANGE_PERCENT`] of its time on messages and there is a core for another thread, the work moves there on trial ([`Trial`]): it stays if it is
//! done faster, and comes back if not. Now and then it comes back on trial, too: the first one may have met another program, or peers that tried the same.

use super::policy::Trial;
use super::{Executor, Reason};

/// Between two decisions: some hundred steps, and long against the move itself.
const PERIOD_NS: u64 = 5_000_000;
/// With a smaller share there is less to gain than the copies between the threads cost.
const EXCHANGE_PERCENT: u64 = 20;
/// A second thread has to do so much more: otherwise its core is better left to others.
const GAIN_PERCENT: u64 = 5;
/// A thread that waits for a core in this part of its time shows that others want the core.
const LACK_PERCENT: u64 = 10;
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
    /// How long the polling thread had waited for a core by then.
    waited_ns: Option<u64>,
    /// Trial of moving the work to the thread beside.
    trial: Trial,
    /// Trial of moving it back to the polling thread.
    back: Trial,
    reason: Reason,
}

impl Division {
    /// `may_gain`: there are others to hear from, and a core for a second thread.
    pub(super) fn new(executor: Executor, may_gain: bool) -> Self {
        Self {
            executor,
            may_gain,
            beside: executor == Executor::Pipeline,
            since: Done::default(),
            waited_ns: None,
            trial: Trial::default(),
            back: Trial::default(),
            reason: match (executor, may_gain) {
                (Executor::Adaptive, false) => Reason::NoCore,
                (Executor::Adaptive, true) => Reason::Unmeasured,
                _ => Reason::Fixed,
            },
        }
    }

    /// Why the work is where it is. Heavy: messages take much of the polling thread's time, and the work is done faster beside it.
    pub(super) fn reason(&self) -> Reason {
        self.reason
    }

    /// Whether a thread beside the polling one is to compute from now on. `done` counts on while the program computes; `waited_ns`, asked now and then: how
    /// long the polling thread has waited for a core so far, if known.
    pub(super) fn is_beside(
        &mut self,
        done: Done,
        waited_ns: impl FnOnce() -> Option<u64>,
    ) -> bool {
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
        let waited_ns = waited_ns();
        let before = std::mem::replace(&mut self.waited_ns, waited_ns);
        let waited_ns = waited_ns
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before));
        let lacks_core = waited_ns.is_some_and(|waited| waited * 100 >= span_ns * LACK_PERCENT);
        let now_ns = done.now_ns;
        if lacks_core {
            if self.beside || self.back.is_on() {
                self.trial.pause(now_ns);
                self.back = Trial::default();
            }
            (self.beside, self.reason) = (false, Reason::NoCore);
        } else if self.beside {
            if self.trial.has_failed(work, span_ns, now_ns) {
                (self.beside, self.reason) = (false, Reason::NoCore);
            } else if !self.trial.is_on() && self.back.is_allowed(now_ns) {
                self.back.begin(work - work * GAIN_PERCENT / 100, span_ns);
                self.beside = false;
            }
        } else if self.back.is_on() {
            if self.back.has_failed(work, span_ns, now_ns) {
                (self.beside, self.reason) = (true, Reason::Heavy);
            } else if !self.back.is_on() {
                self.trial.pause(now_ns);
                self.reason = Reason::NoCore;
            }
        } else if work > 0 {
            let computed_ns = done.computed_ns.saturating_sub(self.since.computed_ns);
            let exchanged_ns = span_ns.saturating_sub(computed_ns);
            let is_light = exchanged_ns * 100 < span_ns * EXCHANGE_PERCENT;
            if is_light {
                self.reason = Reason::Light;
            } else if self.trial.is_allowed(now_ns) {
                self.reason = Reason::Heavy;
                self.trial.begin(work + work * GAIN_PERCENT / 100, span_ns);
                self.back.pause(now_ns);
                self.beside = true;
            } else {
                self.reason = Reason::NoCore;
            }
        }
        self.since = done;
        self.beside
    }

    /// The program does not compute: the time until it does again counts for nothing.
    pub(super) fn pause(&mut self) {
        self.since = Done::default();
        self.waited_ns = None;
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
        let mut done = division.since;
        done.now_ns = done.now_ns.max(1);
        let mut beside = division.is_beside(done, || None);
        (0..periods)
            .map(|_| {
                done.now_ns += PERIOD_NS;
                done.work += work[usize::from(beside)];
                done.computed_ns += PERIOD_NS * computed_percent / 100;
                beside = division.is_beside(done, || None);
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
        let reason = |may_gain, work, computed_percent| {
            let mut division = adaptive(may_gain);
            run(&mut division, 50, work, computed_percent);
            division.reason()
        };
        assert_eq!(reason(false, [1.0, 2.0], 10), Reason::NoCore);
        assert_eq!(reason(true, [1.0, 2.0], 90), Reason::Light);
        assert_eq!(reason(true, [1.0, 1.2], 50), Reason::Heavy);
        assert_eq!(reason(true, [1.0, 0.5], 50), Reason::NoCore);
        assert_eq!(adaptive(true).reason(), Reason::Unmeasured);
        assert_eq!(run(&mut adaptive(false), 50, [1.0, 2.0], 10), [false; 50]);
        assert_eq!(run(&mut adaptive(true), 50, [1.0, 2.0], 90), [false; 50]);
        let faster = run(&mut adaptive(true), 50, [1.0, 1.2], 50);
        assert_eq!(faster, [true; 50]);
        let slower = run(&mut adaptive(true), 50, [1.0, 0.8], 50);
        assert!(slower.iter().any(|beside| *beside), "it was never tried");
        assert!(!slower[49], "{slower:?}");
    }

    /// Where others want the cores nothing is moved, and what was moved comes back, however fast it seems.
    #[test]
    fn work_comes_back_from_cores_that_others_want() {
        let mut division = Division::new(Executor::Adaptive, true);
        assert_eq!(run(&mut division, 50, [1.0, 2.0], 50), [true; 50]);
        let (mut done, mut waited_ns) = (division.since, 0);
        let mut is_beside = |wait_percent| {
            done.now_ns += PERIOD_NS;
            done.work += 2.0;
            waited_ns += PERIOD_NS * wait_percent / 100;
            division.is_beside(done, || Some(waited_ns))
        };
        assert!(is_beside(90), "what was waited before is not known");
        assert!(is_beside(5));
        assert!(!is_beside(20));
        let second = 1_000_000_000 / PERIOD_NS;
        assert!((0..2 * second).all(|_| !is_beside(20)));
        assert!((0..second).any(|_| is_beside(5)), "it is tried again");
    }

    /// What a thread waited while its program did not compute is not held against the second one.
    #[test]
    fn waits_of_pauses_do_not_count() {
        let mut division = Division::new(Executor::Adaptive, true);
        assert_eq!(run(&mut division, 50, [1.0, 2.0], 50), [true; 50]);
        let mut done = division.since;
        let mut is_beside = |division: &mut Division, waited_ns| {
            done.now_ns += PERIOD_NS;
            done.work += 2.0;
            division.is_beside(done, || Some(waited_ns))
        };
        assert!(is_beside(&mut division, 0));
        division.pause();
        for _ in 0..3 {
            assert!(is_beside(&mut division, PERIOD_NS));
        }
    }

    /// What no longer gains comes back; what gains on is tried on the polling thread seldom.
    #[test]
    fn work_comes_back_when_it_gains_nothing() {
        let mut division = Division::new(Executor::Adaptive, true);
        let second = (1_000_000_000 / PERIOD_NS) as u32;
        assert_eq!(run(&mut division, 50, [1.0, 1.2], 50), [true; 50]);
        let gains = run(&mut division, 20 * second, [1.0, 1.2], 50);
        let here = gains.iter().filter(|beside| !**beside).count();
        assert!((5..30).contains(&here) && gains[gains.len() - 1], "{here}");
        let gains_nothing = run(&mut division, 40 * second, [1.0, 1.02], 50);
        let there = gains_nothing[20 * second as usize..].iter();
        assert!(there.filter(|beside| **beside).count() < 30);
    }
}
