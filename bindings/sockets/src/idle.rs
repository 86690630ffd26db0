//! How long a call that finds nothing looks again before it sleeps in the kernel.
//!
//! Looking again pays only if the other end runs at the same time on another core, and answers soon. Each socket and each epoll instance counts how
//! often it did: after a row of failures it does not look at all, but for a try now and then. So spinning threads of one job give way to each other where
//! they are more than cores: there, looking again never succeeds, because the other end waits for the core.
//!
//! Where other processes want the cores, looking again succeeds, and yet is wrong: who never sleeps uses up its share of the processor and then waits for
//! milliseconds, while the scheduler prefers a sleeper that wakes. So when a thread was made to leave its core while it looked (a gap between two looks),
//! its process stops looking for a while.
//!
//! After polls in vain a blocking call lets other threads have their turns before it sleeps (`sched_yield`). Threads of one job that are more than
//! cores do so one after the other, and each finds its answer when its turn comes again: nobody sleeps, and nobody must be woken, which costs more than
//! all else of a small message. Where programs that compute take the turns they come back late; then the process sleeps at once for a while.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// Longest time of looking again: less than a sleep and a wake-up cost both sides.
const SPIN_US: u64 = 20;

/// Failures in a row after which looking again stops, and every how many-th wait tries it all the same: twice as rarely after each try that fails.
const FAILURES_MAX: u32 = 4;
const TRY_EVERY: u32 = 64;
const DOUBLINGS_MAX: u32 = 4;

/// Polls between two readings of the clock.
const POLLS: u32 = 16;

/// A longer gap between two polls means that the thread was preempted.
const GAP_NS: u64 = 300_000;
/// Time without polling after that. Longer ones were worse wherever they were tried: on a busy machine a process that looks gains more than it loses.
const REST_NS: u64 = 5_000_000;

/// Turns of others that a waiter lets pass.
const TURNS_MAX: u32 = 2;
/// A turn that is over so soon nobody has taken: the core is free for a sleeper.
const UNUSED_NS: u64 = 1_000;
/// Turns that take so long, the mean of about the last [`TURNS_KNOWN`], are those of programs that compute: less than Linux's least time slice on two
/// cores, and several times as long as with 64 clients of small messages and as many threads that serve them.
const LATE_NS: u64 = 1_000_000;
const TURNS_KNOWN: u64 = 16;
/// What the mean is taken for after that: one or two late turns more are enough.
const AFTER_LATE_NS: u64 = LATE_NS - LATE_NS / 8;
/// A call that has no more time left sleeps at once.
const LEFT_LEAST_NS: u64 = 10 * LATE_NS;
/// Time without turns after late ones. With longer ones so many of a job's threads sleep that those which let others go before them come back late, too.
const WITHOUT_TURNS_NS: u64 = 10_000_000;

/// What this process knows of others' turns.
static TURNS: Turns = Turns {
    mean_ns: AtomicU64::new(0),
    off_until_ns: AtomicU64::new(0),
};

/// Lengths of the last turns, and until when nobody is let go before.
#[derive(Debug, Default)]
struct Turns {
    mean_ns: AtomicU64,
    off_until_ns: AtomicU64,
}

impl Turns {
    fn are_off(&self, now_ns: u64) -> bool {
        now_ns < self.off_until_ns.load(Ordering::Relaxed)
    }

    /// Notes how long a turn took that is over now; returns whether turns take too long.
    fn note(&self, now_ns: u64, turn_ns: u64) -> bool {
        let mean_ns = self.mean_ns.load(Ordering::Relaxed);
        let next_ns = mean_ns - mean_ns / TURNS_KNOWN + turn_ns / TURNS_KNOWN;
        if next_ns <= LATE_NS {
            self.mean_ns.store(next_ns, Ordering::Relaxed);
            return false;
        }
        self.mean_ns.store(AFTER_LATE_NS, Ordering::Relaxed);
        let off_until_ns = now_ns + WITHOUT_TURNS_NS;
        self.off_until_ns.store(off_until_ns, Ordering::Relaxed);
        true
    }
}

/// Until when this process does not look again.
static REST_UNTIL_NS: AtomicU64 = AtomicU64::new(0);

static LIMIT_NS: AtomicU64 = AtomicU64::new(SPIN_US * 1000);
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
    /// As `failures`, of polls after others' turns.
    vain_turns: AtomicU32,
}

impl Spin {
    pub(crate) fn reset(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.vain_turns.store(0, Ordering::Relaxed);
    }

    /// Polls until `poll` is true, or it is time to sleep: without leaving the core, then after turns of others.
    pub(crate) fn until(&self, mut poll: impl FnMut() -> bool) -> bool {
        self.on_core(&mut poll) || self.after_turns(&TURNS, poll)
    }

    /// The same for a call that waits for `left_ns` at most (`None`: without end): turns of others could take longer than a short time.
    pub(crate) fn until_within(&self, left_ns: Option<u64>, poll: impl FnMut() -> bool) -> bool {
        match left_ns {
            Some(left_ns) if left_ns < LEFT_LEAST_NS => self.on_core(poll),
            _ => self.until(poll),
        }
    }

    fn on_core(&self, mut poll: impl FnMut() -> bool) -> bool {
        let limit_ns = LIMIT_NS.load(Ordering::Relaxed);
        let failures = self.failures.load(Ordering::Relaxed);
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        let doublings = failures.saturating_sub(FAILURES_MAX).min(DOUBLINGS_MAX);
        let is_try = waits.is_multiple_of(TRY_EVERY << doublings);
        if limit_ns == 0 || cores() == 1 || (failures >= FAILURES_MAX && !is_try) {
            return false;
        }
        let mut last = sys::now_ns();
        if last < REST_UNTIL_NS.load(Ordering::Relaxed) {
            return false;
        }
        let until = last + limit_ns;
        loop {
            for _ in 0..POLLS {
                if poll() {
                    self.failures.store(0, Ordering::Relaxed);
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = sys::now_ns();
            if now - last > GAP_NS {
                REST_UNTIL_NS.store(now + REST_NS, Ordering::Relaxed);
            }
            last = now;
            if now >= until {
                self.failures
                    .store(failures.saturating_add(1), Ordering::Relaxed);
                return false;
            }
        }
    }

    fn after_turns(&self, turns: &Turns, mut poll: impl FnMut() -> bool) -> bool {
        let vain = self.vain_turns.load(Ordering::Relaxed);
        let is_try = (self.waits.load(Ordering::Relaxed)).is_multiple_of(TRY_EVERY);
        let is_off = LIMIT_NS.load(Ordering::Relaxed) == 0;
        if is_off || (vain >= FAILURES_MAX && !is_try) {
            return false;
        }
        let mut last = sys::now_ns();
        if turns.are_off(last) {
            return false;
        }
        for _ in 0..TURNS_MAX {
            sys::sched_yield();
            let now = sys::now_ns();
            let turn_ns = now - last;
            let are_late = turns.note(now, turn_ns);
            if poll() {
                self.vain_turns.store(0, Ordering::Relaxed);
                return true;
            }
            if are_late || turn_ns < UNUSED_NS {
                break;
            }
            last = now;
        }
        (self.vain_turns).store(vain.saturating_add(1), Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than a rest, and tries until none falls into one.
    const PAUSE_US: u64 = 2 * REST_NS / 1000;
    const TRIES_MAX: u32 = 200;

    /// Who fails again and again stops looking, and starts again after one success; the longer it has failed, the rarer it is tried. One test, for both
    /// parts make the process rest, and depend on whether it does.
    #[test]
    fn failures_end_it() {
        if cores() == 1 {
            return;
        }
        let spin = Spin::default();
        let has_failed = || spin.failures.load(Ordering::Relaxed) >= FAILURES_MAX;
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

    /// Late turns end turns for a while, a few among others do not. After that fewer do.
    #[test]
    fn late_turns_end_them() {
        let turns = Turns::default();
        for turn in 0..40 {
            let turn_ns = if turn % 20 == 7 {
                3 * LATE_NS
            } else {
                LATE_NS / 4
            };
            assert!(!turns.note(turn, turn_ns) && !turns.are_off(turn));
        }
        let late = |now_ns| (1..=TURNS_KNOWN).find(|_| turns.note(now_ns, 3 * LATE_NS));
        let first = late(100).expect("they are late");
        assert!(first > 1 && turns.are_off(99 + WITHOUT_TURNS_NS));
        let then = 100 + WITHOUT_TURNS_NS;
        assert!(!turns.are_off(then));
        assert!(late(then).expect("they are late again") < first);
        assert!(turns.are_off(then));
    }

    /// Polls after turns that are always in vain become rare.
    #[test]
    fn vain_turns_become_rare() {
        let (spin, turns) = (Spin::default(), Turns::default());
        let mut polls = 0;
        for wait in 1..TRY_EVERY {
            spin.waits.store(wait, Ordering::Relaxed);
            let found = spin.after_turns(&turns, || {
                polls += 1;
                false
            });
            assert!(!found);
        }
        assert!((1..=FAILURES_MAX * TURNS_MAX).contains(&polls), "{polls}");
    }

    fn tries_become_rare() {
        let spin = Spin::default();
        let mut tries = 0;
        let rarest = TRY_EVERY << DOUBLINGS_MAX;
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
        assert!(tries <= FAILURES_MAX + DOUBLINGS_MAX + 8, "{tries}");
    }
}
