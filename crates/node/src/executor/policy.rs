//! When an adaptive executor moves a service to the workers, and back.
//!
//! A pure decision on measurements; called by `dispatch` every `PERIOD`. A service is moved if it takes half of the driving thread's time or more: then
//! arrivals wait in the link's buffers until these overflow (the knee of L2RTC's figure 10). It is also moved if a single call takes so long that
//! peers would wait for acknowledgements. But a call that costs no more than handing a message over and its answer back stays, however often it is
//! made: the workers would gain nothing.

use super::Reason;

/// Measured before each decision, in nanoseconds: some thousand light calls, or a few heavy ones.
pub(super) const PERIOD_NS: u64 = 2_000_000;
/// A shorter call costs less than handing its message to a worker and the answer back (about 0.5 µs each on the machines measured).
const HEAVY_CALL_NS: u64 = 1_500;
/// Half of that: what is shorter goes back. Between the two nothing moves.
const LIGHT_CALL_NS: u64 = 700;
/// A call of this length holds up acknowledgements as long as a sleeping peer would.
const LONG_CALL_NS: u64 = 200_000;
/// Share of the driving thread's time, in percent, above which a service is heavy, and of one worker's below which it is light again.
const HEAVY_PERCENT: u64 = 50;
const LIGHT_PERCENT: u64 = 10;

/// Workers that compute for so much of the time, in percent of one thread's, are used, even if no message is seen to wait.
pub(super) const BUSY_PERCENT: u64 = 90;

/// A move is on trial for so many periods in which messages wait for workers.
const TRIAL_PERIODS: u32 = 5;
/// After a trial that failed there is no other for this time, doubled each time up to the most.
const PAUSE_LEAST_NS: u64 = 1_000_000_000;
const PAUSE_MOST_NS: u64 = 32_000_000_000;

/// Judges a move by the rate of work before and after it. Workers gain nothing where other programs take the cores that they need.
///
/// Work is counted as the caller likes: calls, rows, bytes.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Work in 2³⁰ ns before the move; `None`: nothing is on trial.
    before: Option<u64>,
    periods: u32,
    work: u64,
    span_ns: u64,
    /// Periods in a row in which nothing waited for workers.
    idle: u32,
    pause_ns: u64,
    paused_until_ns: u64,
}

impl Trial {
    fn rate(work: u64, span_ns: u64) -> u64 {
        ((u128::from(work) << 30) / u128::from(span_ns.max(1))) as u64
    }

    /// The move is about to be made; before it `work` was done in `span_ns`.
    pub(crate) fn begin(&mut self, work: u64, span_ns: u64) {
        self.before = Some(Self::rate(work, span_ns));
        (self.periods, self.work, self.span_ns, self.idle) = (0, 0, 0, 0);
    }

    /// Whether a move may be tried at this time.
    pub(crate) fn is_allowed(&self, now_ns: u64) -> bool {
        now_ns >= self.paused_until_ns
    }

    /// Takes a period after the move; `true`: it did harm, and is to be taken back. Leave out periods in which there was not enough work.
    pub(crate) fn has_failed(&mut self, work: u64, span_ns: u64, now_ns: u64) -> bool {
        self.idle = 0;
        let Some(before) = self.before else {
            return false;
        };
        self.periods += 1;
        if self.periods > 1 {
            // The first has the start of the workers in it.
            self.work += work;
            self.span_ns += span_ns;
        }
        if self.periods < TRIAL_PERIODS {
            return false;
        }
        self.before = None;
        if Self::rate(self.work, self.span_ns) >= before {
            self.pause_ns = 0;
            return false;
        }
        self.pause(now_ns);
        true
    }

    /// Takes a period after the move in which no message waited for workers; `true`: it is to be taken back. Where one comes after the other, as where a
    /// peer waits for each answer, workers only add the way to them.
    pub(crate) fn is_idle(&mut self, now_ns: u64) -> bool {
        self.idle += 1;
        if self.idle < TRIAL_PERIODS {
            return false;
        }
        self.idle = 0;
        self.pause(now_ns);
        true
    }

    /// The service goes back because few calls came. During a trial that says no more than that the workers are slow, and the next period would try again.
    pub(crate) fn end(&mut self, now_ns: u64) {
        if self.is_on() {
            self.pause(now_ns);
        }
    }

    /// Whether a move is on trial.
    pub(crate) fn is_on(&self) -> bool {
        self.before.is_some()
    }

    /// Ends the trial. No move is tried for some time, which doubles each time until a move has done good.
    pub(crate) fn pause(&mut self, now_ns: u64) {
        self.before = None;
        self.pause_ns = (2 * self.pause_ns).clamp(PAUSE_LEAST_NS, PAUSE_MOST_NS);
        self.paused_until_ns = now_ns + self.pause_ns;
    }
}

/// What was measured in a period.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measured {
    /// Mean time of a call.
    pub(super) call_ns: u64,
    /// Calls.
    pub(super) calls: u64,
    /// Length of the period.
    pub(super) span_ns: u64,
}

impl Measured {
    /// Of one thread's time.
    pub(super) fn percent(&self) -> u64 {
        (self.call_ns.saturating_mul(self.calls)).saturating_mul(100) / self.span_ns.max(1)
    }
}

/// Whether the service is to be with the workers, and why.
pub(super) fn decide(with_workers: bool, has_core: bool, measured: Measured) -> (bool, Reason) {
    let Measured { calls, span_ns, .. } = measured;
    if calls == 0 {
        return (with_workers, Reason::Unmeasured);
    }
    // The mean is that of some calls. On one thread all of them took no longer than the period.
    let most_ns = if with_workers {
        u64::MAX
    } else {
        span_ns / calls
    };
    let call_ns = measured.call_ns.min(most_ns);
    let measured = Measured {
        call_ns,
        ..measured
    };
    let reason = if call_ns >= LONG_CALL_NS {
        Reason::Long
    } else if with_workers {
        let is_light = call_ns < LIGHT_CALL_NS || measured.percent() < LIGHT_PERCENT;
        if is_light {
            Reason::Light
        } else {
            Reason::Heavy
        }
    } else if call_ns >= HEAVY_CALL_NS && measured.percent() >= HEAVY_PERCENT {
        Reason::Heavy
    } else {
        Reason::Light
    };
    match reason {
        Reason::Light => (false, reason),
        _ if !has_core => (false, Reason::NoCore),
        _ => (true, reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(call_ns: u64, percent: u64) -> Measured {
        let span_ns = PERIOD_NS;
        Measured {
            call_ns,
            calls: (span_ns * percent / 100).div_ceil(call_ns.max(1)),
            span_ns,
        }
    }

    /// Light calls stay, whatever their number; heavy ones move when they take the thread's time, long ones always, and come back when they are light.
    #[test]
    fn services_move_by_what_they_cost() {
        for (call_ns, percent, with_workers, wanted) in [
            (50, 90, false, (false, Reason::Light)),
            (1_400, 99, false, (false, Reason::Light)),
            (1_600, 49, false, (false, Reason::Light)),
            (1_600, 51, false, (true, Reason::Heavy)),
            (1_600, 1_300, false, (false, Reason::Light)), // cannot be: one thread has 100 %
            (250_000, 1, false, (true, Reason::Long)),
            (250_000, 1, true, (true, Reason::Long)),
            (1_000, 60, true, (true, Reason::Heavy)),
            (1_000, 5, true, (false, Reason::Light)),
            (600, 60, true, (false, Reason::Light)),
        ] {
            let found = decide(with_workers, true, measured(call_ns, percent));
            assert_eq!(found, wanted, "{call_ns} ns, {percent} %, {with_workers}");
        }
    }

    /// Workers that do worse than the driving thread did lose the service, for longer each time; those that do better keep it.
    #[test]
    fn moves_are_on_trial() {
        let mut trial = Trial::default();
        let (before, worse) = (measured(5_000, 100), measured(5_000, 60));
        let fails = |trial: &mut Trial, measured: Measured, now_ns| {
            trial.has_failed(measured.calls, measured.span_ns, now_ns)
        };
        let mut now_ns = 0;
        for pause_ns in [PAUSE_LEAST_NS, 2 * PAUSE_LEAST_NS] {
            assert!(trial.is_allowed(now_ns));
            trial.begin(before.calls, before.span_ns);
            for _ in 1..TRIAL_PERIODS {
                assert!(!fails(&mut trial, worse, now_ns));
            }
            assert!(fails(&mut trial, worse, now_ns));
            assert!(!trial.is_allowed(now_ns + pause_ns - 1));
            now_ns += pause_ns;
        }
        trial.begin(before.calls, before.span_ns);
        for _ in 0..3 * TRIAL_PERIODS {
            assert!(!fails(&mut trial, measured(5_000, 180), now_ns));
        }
        assert!(trial.is_allowed(now_ns));
        assert!(!fails(&mut trial, worse, now_ns), "it was decided");
    }

    /// Where messages come one at a time the workers lose the service, not where some wait now and then.
    #[test]
    fn workers_without_a_queue_gain_nothing() {
        let mut trial = Trial::default();
        let before = measured(5_000, 100);
        trial.begin(before.calls, before.span_ns);
        for period in 0..10 * TRIAL_PERIODS {
            let is_over = match period % 3 {
                0 => trial.has_failed(2 * before.calls, before.span_ns, 0),
                _ => trial.is_idle(0),
            };
            assert!(!is_over, "{period}");
        }
        for _ in 1..TRIAL_PERIODS - 2 {
            assert!(!trial.is_idle(7));
        }
        while !trial.is_idle(7) {}
        assert!(!trial.is_allowed(6 + PAUSE_LEAST_NS) && trial.is_allowed(7 + PAUSE_LEAST_NS));
    }

    /// Workers that get so few cores that the service looks light are not tried again at once; what grows light later may come back at any time.
    #[test]
    fn slow_workers_are_not_light_services() {
        let mut trial = Trial::default();
        trial.begin(250, PERIOD_NS);
        trial.end(7);
        assert!(!trial.is_allowed(6 + PAUSE_LEAST_NS) && trial.is_allowed(7 + PAUSE_LEAST_NS));
        trial.begin(250, PERIOD_NS);
        for _ in 0..TRIAL_PERIODS {
            assert!(!trial.has_failed(300, PERIOD_NS, 9 * PAUSE_LEAST_NS));
        }
        trial.end(9 * PAUSE_LEAST_NS);
        assert!(trial.is_allowed(9 * PAUSE_LEAST_NS));
    }

    /// Without a core for workers nothing moves, and nothing is decided without a call.
    #[test]
    fn moves_need_a_core_and_a_measurement() {
        let heavy = measured(10_000, 80);
        assert_eq!(decide(false, false, heavy), (false, Reason::NoCore));
        for with_workers in [false, true] {
            let nothing = decide(with_workers, true, Measured::default());
            assert_eq!(nothing, (with_workers, Reason::Unmeasured));
        }
    }
}
