//! How long a call that finds nothing looks again before it sleeps in the kernel.
//!
//! Looking again pays only if the other end runs at the same time on another core, and answers soon. Each socket and each epoll instance counts how
//! often it did: after a row of failures it does not look at all, but for a try now and then. So spinning threads of one job give way to each other where
//! they are more than cores: there, looking again never succeeds, because the other end waits for the core.
//!
//! Where other processes want the cores, looking again succeeds, and yet is wrong: who never sleeps uses up its share of the processor and then waits for
//! milliseconds, while the scheduler prefers a sleeper that wakes. So when a thread was made to leave its core while it looked (a gap between two polls),
//! its process stops looking for a while.
//!
//! After polls in vain a blocking call yields its core to other threads before it sleeps (`sched_yield`). Threads of one job that are more than
//! cores do so one after the other, and each finds its answer when its turn comes again: nobody sleeps, and nobody must be woken, which costs more than
//! all else of a small message. Where programs that compute take the core, it comes back late; then the process sleeps at once for a while.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;
use crate::tuning::TUNING;

/// What the mean is taken for after yields that took too long: one or two late ones more are enough.
const AFTER_LATE_NS: u64 = TUNING.idle.late_ns - TUNING.idle.late_ns / 8;
/// A call that has no more time left sleeps at once.
const LEFT_LEAST_NS: u64 = 10 * TUNING.idle.late_ns;

/// What this process knows of its yields.
static YIELDS: Yields = Yields {
    mean_ns: AtomicU64::new(0),
    off_until_ns: AtomicU64::new(0),
};

/// Lengths of the last yields, and until when there are none.
#[derive(Debug, Default)]
struct Yields {
    mean_ns: AtomicU64,
    off_until_ns: AtomicU64,
}

impl Yields {
    fn are_off(&self, now_ns: u64) -> bool {
        now_ns < self.off_until_ns.load(Ordering::Relaxed)
    }

    /// Notes how long a yield took that is over now; returns whether yields take too long.
    fn note(&self, now_ns: u64, yield_ns: u64) -> bool {
        let mean_ns = self.mean_ns.load(Ordering::Relaxed);
        let next_ns = mean_ns - mean_ns / TUNING.idle.yields_averaged
            + yield_ns / TUNING.idle.yields_averaged;
        if next_ns <= TUNING.idle.late_ns {
            self.mean_ns.store(next_ns, Ordering::Relaxed);
            return false;
        }
        self.mean_ns.store(AFTER_LATE_NS, Ordering::Relaxed);
        let off_until_ns = now_ns + TUNING.idle.without_yields_ns;
        self.off_until_ns.store(off_until_ns, Ordering::Relaxed);
        true
    }
}

/// Until when this process does not look again.
static REST_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

static LIMIT_NS: AtomicU64 = AtomicU64::new(TUNING.idle.spin_us * 1000);
/// Processors that this process may use; 1: looking again is no use.
static CORES: AtomicU32 = AtomicU32::new(0);

/// Sets the longest time, for `TSUMUJI_SOCKETS_SPIN_US`.
pub(crate) fn set_limit_us(us: u64) {
    LIMIT_NS.store(us.min(10_000) * 1000, Ordering::Relaxed);
}

fn cores() -> u32 {
    let known = CORES.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let count = sys::usable_cores().max(1);
    CORES.store(count, Ordering::Relaxed);
    count
}

/// Experience of one waiter.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    failures: AtomicU32,
    waits: AtomicU32,
    /// As `failures`, of polls after yields.
    vain_yields: AtomicU32,
    /// Calls in a row that found nothing and did not wait, and the time of the last.
    vain_calls: AtomicU32,
    vain_ns: AtomicU64,
}

impl Spin {
    pub(crate) fn reset(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.vain_yields.store(0, Ordering::Relaxed);
        self.found();
    }

    /// Polls until `poll` is true, or it is time to sleep: without leaving the core, then after yields.
    pub(crate) fn until(&self, mut poll: impl FnMut() -> bool) -> bool {
        self.on_core(&mut poll) || self.after_yields(&YIELDS, poll)
    }

    /// The same for a call that waits for `left_ns` at most (`None`: without end): yields could take longer than a short time.
    pub(crate) fn until_within(&self, left_ns: Option<u64>, poll: impl FnMut() -> bool) -> bool {
        match left_ns {
            Some(left_ns) if left_ns < LEFT_LEAST_NS => self.on_core(poll),
            _ => self.until(poll),
        }
    }

    /// A call that may not wait has found nothing, and a process of this host must run before there is anything: after a few such calls in a row,
    /// which is a program that spins, the core goes to others.
    pub(crate) fn found_nothing(&self) {
        let begun_ns = sys::now_ns();
        let since_ns = begun_ns - self.vain_ns.swap(begun_ns, Ordering::Relaxed).min(begun_ns);
        let calls = match since_ns < TUNING.idle.together_ns {
            true => self.vain_calls.load(Ordering::Relaxed),
            false => 0,
        };
        self.vain_calls
            .store((calls + 1).min(TUNING.idle.calls_max), Ordering::Relaxed);
        if calls < TUNING.idle.calls_max {
            return;
        }
        if LIMIT_NS.load(Ordering::Relaxed) != 0 && !YIELDS.are_off(begun_ns) {
            sys::sched_yield();
            let now_ns = sys::now_ns();
            YIELDS.note(now_ns, now_ns - begun_ns);
        }
    }

    /// A call has found something.
    pub(crate) fn found(&self) {
        self.vain_calls.store(0, Ordering::Relaxed);
    }

    fn on_core(&self, mut poll: impl FnMut() -> bool) -> bool {
        let limit_ns = LIMIT_NS.load(Ordering::Relaxed);
        let failures = self.failures.load(Ordering::Relaxed);
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        let doublings = failures
            .saturating_sub(TUNING.idle.failures_max)
            .min(TUNING.idle.doublings_max);
        let is_try = waits.is_multiple_of(TUNING.idle.try_every << doublings);
        if limit_ns == 0 || cores() == 1 || (failures >= TUNING.idle.failures_max && !is_try) {
            return false;
        }
        let mut last = sys::now_ns();
        if last < REST_UNTIL_NS.load(Ordering::Relaxed) {
            return false;
        }
        let until = last + limit_ns;
        loop {
            for _ in 0..TUNING.idle.polls {
                if poll() {
                    self.failures.store(0, Ordering::Relaxed);
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = sys::now_ns();
            if now - last > TUNING.idle.gap_ns {
                REST_UNTIL_NS.store(now + TUNING.idle.rest_ns, Ordering::Relaxed);
            }
            last = now;
            if now >= until {
                self.failures
                    .store(failures.saturating_add(1), Ordering::Relaxed);
                return false;
            }
        }
    }

    fn after_yields(&self, yields: &Yields, mut poll: impl FnMut() -> bool) -> bool {
        let vain = self.vain_yields.load(Ordering::Relaxed);
        let is_try = (self.waits.load(Ordering::Relaxed)).is_multiple_of(TUNING.idle.try_every);
        let is_off = LIMIT_NS.load(Ordering::Relaxed) == 0;
        if is_off || (vain >= TUNING.idle.failures_max && !is_try) {
            return false;
        }
        let mut last = sys::now_ns();
        if yields.are_off(last) {
            return false;
        }
        for _ in 0..TUNING.idle.yields_max {
            sys::sched_yield();
            let now = sys::now_ns();
            let yield_ns = now - last;
            let are_late = yields.note(now, yield_ns);
            if poll() {
                self.vain_yields.store(0, Ordering::Relaxed);
                return true;
            }
            if are_late || yield_ns < TUNING.idle.unused_ns {
                break;
            }
            last = now;
        }
        (self.vain_yields).store(vain.saturating_add(1), Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a rest, and tries until none falls into one.
    const PAUSE_US: u64 = 2 * TUNING.idle.rest_ns / 1000;
    const TRIES_MAX: u32 = 200;

    /// A thread that fails again and again stops polling, and starts again after one success; the longer it has failed, the rarer it is tried. One
    /// test, for both parts make the process rest, and depend on whether it does.
    #[test]
    fn failures_end_it() {
        if cores() == 1 {
            return;
        }
        let spin = Spin::default();
        let has_failed = || spin.failures.load(Ordering::Relaxed) >= TUNING.idle.failures_max;
        for _ in 0..TRIES_MAX {
            if has_failed() {
                break;
            }
            assert!(!spin.on_core(|| false));
            if REST_UNTIL_NS.load(Ordering::Relaxed) > sys::now_ns() {
                sys::sleep_us(PAUSE_US);
            }
        }
        assert!(has_failed());
        // What is counted now is before the next try.
        spin.waits.store(0, Ordering::Relaxed);
        sys::sleep_us(PAUSE_US);
        assert!(!spin.on_core(|| unreachable!("it polls")));
        spin.reset();
        let has_found = (0..TRIES_MAX).any(|_| {
            let found = spin.on_core(|| true);
            if !found {
                sys::sleep_us(PAUSE_US);
            }
            found
        });
        assert!(has_found);
        tries_become_rare();
    }

    /// Late yields end yields for a while, a few among others do not. After that fewer do.
    #[test]
    fn late_yields_end_them() {
        let yields = Yields::default();
        for now_ns in 0..40 {
            let yield_ns = if now_ns % 20 == 7 {
                3 * TUNING.idle.late_ns
            } else {
                TUNING.idle.late_ns / 4
            };
            assert!(!yields.note(now_ns, yield_ns) && !yields.are_off(now_ns));
        }
        let late = |now_ns| {
            (1..=TUNING.idle.yields_averaged).find(|_| yields.note(now_ns, 3 * TUNING.idle.late_ns))
        };
        let first = late(100).expect("they are late");
        assert!(first > 1 && yields.are_off(99 + TUNING.idle.without_yields_ns));
        let then = 100 + TUNING.idle.without_yields_ns;
        assert!(!yields.are_off(then));
        assert!(late(then).expect("they are late again") < first);
        assert!(yields.are_off(then));
    }

    /// Polls after yields that are always in vain become rare.
    #[test]
    fn vain_yields_become_rare() {
        let (spin, yields) = (Spin::default(), Yields::default());
        let mut polls = 0;
        for wait in 1..TUNING.idle.try_every {
            spin.waits.store(wait, Ordering::Relaxed);
            let found = spin.after_yields(&yields, || {
                polls += 1;
                false
            });
            assert!(!found);
        }
        assert!(
            (1..=TUNING.idle.failures_max * TUNING.idle.yields_max).contains(&polls),
            "{polls}"
        );
    }

    /// A call that finds nothing now and then is an event loop's, and keeps its core; calls that find nothing again and again are a spinning program's.
    #[test]
    fn calls_in_vain_are_counted() {
        let spin = Spin::default();
        let vain = || spin.vain_calls.load(Ordering::Relaxed);
        for _ in 0..3 {
            spin.found_nothing();
            spin.found();
            assert_eq!(vain(), 0);
        }
        // It counts anew where this thread lost its core for a while.
        for _ in 0..1000 * TUNING.idle.calls_max {
            spin.found_nothing();
            if vain() == TUNING.idle.calls_max {
                break;
            }
        }
        assert_eq!(vain(), TUNING.idle.calls_max);
        spin.reset();
        assert_eq!(vain(), 0);
    }

    fn tries_become_rare() {
        let spin = Spin::default();
        let mut tries = 0;
        let rarest = TUNING.idle.try_every << TUNING.idle.doublings_max;
        for _ in 0..8 * rarest {
            let mut has_polled = false;
            let found = spin.on_core(|| {
                has_polled = true;
                false
            });
            assert!(!found);
            tries += u32::from(has_polled);
        }
        // The first ones, one for each doubling, and eight; fewer after a preemption.
        assert!(
            tries <= TUNING.idle.failures_max + TUNING.idle.doublings_max + 8,
            "{tries}"
        );
    }
}
