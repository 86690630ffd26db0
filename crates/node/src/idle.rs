//! What a waiting endpoint does: poll again at once, yield the core, or sleep on the link.
//!
//! Called by `drive` between empty polls, and through `IdleLoop` by loops that poll more than an endpoint. Decisions depend on measurements (`Habit`)
//! and on how long the present wait has lasted; only `IdleLoop` reads a clock and calls the kernel.
//!
//! Why three steps: waking a sleeping thread costs about 27 µs, while a spinning one answers in 0.2 µs; but with more spinning threads than cores a
//! message costs milliseconds, where yielding among ourselves costs 1.3 µs; and where other programs compute, a yield costs whole time slices, while
//! the scheduler prefers a sleeper that wakes.

use crate::clock::{Clock, SystemClock};
use crate::options::IdlePolicy;
use crate::runqueue::Runqueue;
use crate::tuning::Tuning;

/// Least time of spinning if a core is free: less than a yield would cost.
const SPIN_LEAST_NS: u64 = 2_000;

/// Time from the start of the wait to sleeping, if work usually comes soon.
const YIELD_UNTIL_NS: u64 = 50_000;

/// Time from the start of the wait to sleeping, if work usually takes longer than `USUALLY_LONG_NS`.
const YIELD_SHORT_NS: u64 = 8_000;

/// Time from the start of the wait to sleeping, if others want the core: a yield gives it to them as well as a sleep does.
const YIELD_CONTENDED_NS: u64 = 200_000;

/// A usual wait beyond this is not worth polling through.
const USUALLY_LONG_NS: u64 = 200_000;

/// A single long wait counts no more than this in the average, so that one pause does not spoil it for long.
const WAIT_CAP_NS: u64 = 1_000_000;

/// The average moves by 1/2³ of each difference: about the last eight waits.
const WAIT_SHIFT: u32 = 3;

/// A longer gap between two polls of one wait means that the thread was preempted. Time slices are 1 to 4 ms; a page fault, an interrupt or a yield
/// among ourselves stays below it.
const PREEMPTION_NS: u64 = 500_000;

/// Approximate cost of waking a sleeper. Polling stops only where preemptions cost more than this per wait.
const WAKE_NS: u64 = 30_000;

/// After an expensive preemption: no spinning and no yielding for this long, doubled each time up to the most.
const PREEMPTED_LEAST_NS: u64 = 5_000_000;
const PREEMPTED_MOST_NS: u64 = 2_000_000_000;

/// Rests between two queries of the run-queue delay: a yield counts once; a sleep, which costs more than the query, several times.
const RESTS_PER_POLL: u32 = 64;
const RESTS_OF_A_SLEEP: u32 = 8;

/// The core is shared if the run-queue delay exceeds 1/2⁴ of the time, and ours again below 1/2⁶.
const SHARED_SHIFT: u32 = 4;
const ALONE_SHIFT: u32 = 6;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Poll again at once.
    Spin,
    /// Let another process run, then poll.
    Yield,
    /// Sleep until the link wakes us or a timer is due.
    Sleep,
}

/// Measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Habit {
    /// Others want our core: the cluster has more polling processes on this host than cores, or the run-queue delay is high.
    pub(crate) contended: bool,
    /// Another program takes whole time slices of our core.
    pub(crate) preempted: bool,
    /// Usual length of a wait.
    pub(crate) usual_wait_ns: u64,
    /// Most time of spinning. Two wake-ups: beyond that sleeping would have been cheaper.
    pub(crate) spin_most_ns: u64,
}

/// The decision, `waited_ns` after the wait began.
pub(crate) fn decide(policy: IdlePolicy, habit: Habit, waited_ns: u64) -> Step {
    match policy {
        IdlePolicy::Spin => return Step::Spin,
        IdlePolicy::Yield => return Step::Yield,
        IdlePolicy::Sleep => return Step::Sleep,
        IdlePolicy::Adaptive => {}
    }
    let usually_long = habit.usual_wait_ns > USUALLY_LONG_NS;
    let spin_ns = match (habit.contended || habit.preempted, usually_long) {
        (true, _) => 0,
        (false, true) => SPIN_LEAST_NS,
        // Twice the usual wait catches most of those that come about when they usually do.
        (false, false) => (2 * habit.usual_wait_ns).clamp(SPIN_LEAST_NS, habit.spin_most_ns),
    };
    let yield_ns = match (habit.preempted, usually_long) {
        (true, _) => 0,
        _ if habit.contended => YIELD_CONTENDED_NS,
        (false, true) => YIELD_SHORT_NS,
        (false, false) => YIELD_UNTIL_NS,
    };
    if waited_ns < spin_ns {
        Step::Spin
    } else if waited_ns < yield_ns {
        Step::Yield
    } else {
        Step::Sleep
    }
}

/// Measures waits, and decides.
#[derive(Debug)]
pub(crate) struct Idle {
    policy: IdlePolicy,
    /// By the number of known processes of the cluster.
    contended: bool,
    /// By the run-queue delay.
    shared: bool,
    rests: u32,
    /// Time of the last query, and the run-queue delay then.
    asked: Option<(u64, u64)>,
    usual_wait_ns: u64,
    spin_most_ns: u64,
    /// Start of the present wait and time of its last poll.
    wait: Option<(u64, u64)>,
    preempted_until_ns: u64,
    preempted_span_ns: u64,
    /// Waits that ended since the last preemption.
    waits_since_preemption: u64,
}

impl Idle {
    /// `contended`: the cluster has more processes on this host than cores.
    pub(crate) fn new(policy: IdlePolicy, contended: bool) -> Self {
        Self {
            policy,
            contended,
            shared: false,
            rests: 0,
            asked: None,
            usual_wait_ns: SPIN_LEAST_NS,
            spin_most_ns: Tuning::default().spin_us as u64 * 1000,
            wait: None,
            preempted_until_ns: 0,
            preempted_span_ns: PREEMPTED_LEAST_NS,
            waits_since_preemption: 0,
        }
    }

    pub(crate) fn set_spin(&mut self, most_us: usize) {
        // The decision clamps by it.
        self.spin_most_ns = (most_us as u64 * 1000).max(SPIN_LEAST_NS);
    }

    /// Forgets the present wait without counting it: the program went away to do something else.
    pub(crate) fn begin(&mut self) {
        self.wait = None;
    }

    /// A poll at `now_ns` found nothing: returns the next step.
    pub(crate) fn empty(&mut self, now_ns: u64) -> Step {
        let (start, last) = self.wait.unwrap_or((now_ns, now_ns));
        let gap_ns = now_ns.saturating_sub(last);
        if gap_ns > PREEMPTION_NS {
            self.preempted(now_ns, gap_ns);
        }
        self.wait = Some((start, now_ns));
        let waited_ns = now_ns.saturating_sub(start);
        let step = decide(self.policy, self.habit(now_ns), waited_ns);
        self.rests += match step {
            _ if self.policy != IdlePolicy::Adaptive => 0, // its decision is fixed
            Step::Spin => 0,
            Step::Yield => 1,
            Step::Sleep => RESTS_OF_A_SLEEP,
        };
        step
    }

    fn habit(&self, now_ns: u64) -> Habit {
        Habit {
            contended: self.contended || self.shared,
            preempted: now_ns < self.preempted_until_ns,
            usual_wait_ns: self.usual_wait_ns,
            spin_most_ns: self.spin_most_ns,
        }
    }

    /// Whether `kept_waiting` should be called.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.rests >= RESTS_PER_POLL
    }

    /// Takes the total run-queue delay at `now_ns`; after `None` it may be another thread's. It shows members in other containers and other programs
    /// that poll, which the addresses do not.
    pub(crate) fn kept_waiting(&mut self, now_ns: u64, delay_ns: Option<u64>) {
        self.rests = 0;
        let asked = delay_ns.map(|delay_ns| (now_ns, delay_ns));
        let before = std::mem::replace(&mut self.asked, asked);
        let (Some((then_ns, before_ns)), Some(delay_ns)) = (before, delay_ns) else {
            return;
        };
        let span_ns = now_ns.saturating_sub(then_ns);
        let kept_ns = delay_ns.saturating_sub(before_ns);
        if kept_ns > span_ns >> SHARED_SHIFT {
            self.shared = true;
        } else if kept_ns < span_ns >> ALONE_SHIFT {
            self.shared = false;
        }
    }

    /// Whether a wait that begins at `now_ns` begins with spinning.
    pub(crate) fn spins(&self, now_ns: u64) -> bool {
        decide(self.policy, self.habit(now_ns), 0) == Step::Spin
    }

    /// A sleep ended at `now_ns`: the time asleep is no preemption.
    pub(crate) fn woke(&mut self, now_ns: u64) {
        if let Some((_, last)) = &mut self.wait {
            *last = now_ns;
        }
    }

    /// A yield was over at `now_ns`: others may have had the core for long, whether or not there is work now.
    pub(crate) fn yielded(&mut self, now_ns: u64) {
        let Some((_, last)) = &mut self.wait else {
            return;
        };
        let gap_ns = now_ns.saturating_sub(std::mem::replace(last, now_ns));
        if gap_ns > PREEMPTION_NS {
            self.preempted(now_ns, gap_ns);
        }
    }

    /// A poll at `now_ns` found work.
    pub(crate) fn work(&mut self, now_ns: u64) {
        let waited_ns = self
            .wait
            .take()
            .map_or(0, |(start, _)| now_ns.saturating_sub(start))
            .min(WAIT_CAP_NS);
        self.waits_since_preemption += 1;
        // Signed arithmetic in i64: both are at most `WAIT_CAP_NS`.
        let difference = waited_ns as i64 - self.usual_wait_ns as i64;
        self.usual_wait_ns = (self.usual_wait_ns as i64 + (difference >> WAIT_SHIFT)).max(0) as u64;
    }

    fn preempted(&mut self, now_ns: u64, gap_ns: u64) {
        // A slice of 4 ms after ten thousand quick waits is cheaper than sleeping through each of them.
        let waits = std::mem::take(&mut self.waits_since_preemption);
        if gap_ns < WAKE_NS.saturating_mul(waits) {
            return;
        }
        // A preemption soon after the last span means that the other programs are still there: the next span is longer.
        let soon = now_ns.saturating_sub(self.preempted_until_ns) < self.preempted_span_ns;
        let again = self.preempted_until_ns != 0 && soon;
        self.preempted_span_ns = if again {
            (2 * self.preempted_span_ns).min(PREEMPTED_MOST_NS)
        } else {
            PREEMPTED_LEAST_NS
        };
        self.preempted_until_ns = now_ns + self.preempted_span_ns;
    }
}

/// The idle policy for a loop that polls more than one endpoint: it says of each poll whether there was work.
#[derive(Debug)]
pub struct IdleLoop {
    idle: Idle,
    clock: SystemClock,
    runqueue: Runqueue,
}

impl IdleLoop {
    /// `contended`: processes that poll are more than this host's cores. Without that knowledge, the time shows it in which this thread had no core.
    pub fn new(policy: IdlePolicy, contended: bool) -> Self {
        Self {
            idle: Idle::new(policy, contended),
            clock: SystemClock::new(),
            runqueue: Runqueue::default(),
        }
    }

    /// Yields after 2 us of spinning, also where nothing shows yet that others want the core.
    #[must_use]
    pub fn yielding(mut self) -> Self {
        self.idle.set_spin(0);
        self
    }

    /// A poll found work.
    pub fn worked(&mut self) {
        self.idle.work(self.clock.now().as_nanos());
    }

    /// A poll found nothing: returns at once, yields the core, or calls `sleep`.
    pub fn rest<E>(&mut self, sleep: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        match self.idle.empty(self.clock.now().as_nanos()) {
            Step::Spin => std::hint::spin_loop(),
            Step::Yield => {
                rustix::thread::sched_yield();
                self.idle.yielded(self.clock.now().as_nanos());
            }
            Step::Sleep => {
                sleep()?;
                self.idle.woke(self.clock.now().as_nanos());
            }
        }
        if self.idle.asks() {
            let delay_ns = self.runqueue.delay_ns();
            self.idle
                .kept_waiting(self.clock.now().as_nanos(), delay_ns);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;

    fn habit(contended: bool, preempted: bool, usual_us: u64) -> Habit {
        Habit {
            contended,
            preempted,
            usual_wait_ns: usual_us * US,
            spin_most_ns: 50 * US,
        }
    }

    /// The fixed policies always take their step.
    #[test]
    fn fixed_policies_are_fixed() {
        for waited in [0, 10 * US, 10 * MS] {
            let contended = habit(true, true, 1_000);
            assert_eq!(decide(IdlePolicy::Spin, contended, waited), Step::Spin);
            assert_eq!(decide(IdlePolicy::Yield, contended, waited), Step::Yield);
            assert_eq!(
                decide(IdlePolicy::Sleep, habit(false, false, 0), waited),
                Step::Sleep
            );
        }
    }

    /// Alone on a core with work coming soon: spin, then yield, then sleep.
    #[test]
    fn alone_spins_then_yields_then_sleeps() {
        let alone = habit(false, false, 1);
        let at = |waited| decide(IdlePolicy::Adaptive, alone, waited);
        assert_eq!(
            [at(0), at(1_999), at(2 * US), at(49 * US), at(50 * US)],
            [
                Step::Spin,
                Step::Spin,
                Step::Yield,
                Step::Yield,
                Step::Sleep
            ]
        );
    }

    /// Work that usually comes after 20 µs is spun for until 40 µs.
    #[test]
    fn spins_as_long_as_work_usually_takes() {
        assert_eq!(
            decide(IdlePolicy::Adaptive, habit(false, false, 20), 39 * US),
            Step::Spin
        );
        assert_eq!(
            decide(IdlePolicy::Adaptive, habit(false, false, 20), 41 * US),
            Step::Yield
        );
    }

    /// Work that usually takes long is slept for early.
    #[test]
    fn usually_long_waits_sleep_early() {
        let long = habit(false, false, 500);
        assert_eq!(decide(IdlePolicy::Adaptive, long, 9 * US), Step::Sleep);
        assert_eq!(decide(IdlePolicy::Adaptive, long, US), Step::Spin);
    }

    /// More of our processes than cores: never spin. Other programs on our core: sleep at once.
    #[test]
    fn contended_yield_and_preempted_sleep() {
        assert_eq!(
            decide(IdlePolicy::Adaptive, habit(true, false, 1), 0),
            Step::Yield
        );
        assert_eq!(
            decide(IdlePolicy::Adaptive, habit(true, false, 500), 199 * US),
            Step::Yield
        );
        assert_eq!(
            decide(IdlePolicy::Adaptive, habit(true, false, 1), 200 * US),
            Step::Sleep
        );
        assert_eq!(
            decide(IdlePolicy::Adaptive, habit(false, true, 1), 0),
            Step::Sleep
        );
    }

    /// A thread with a high run-queue delay yields at once, and spins again when the core is its own; without a delay it spins.
    #[test]
    fn a_shared_core_is_noticed() {
        let mut idle = Idle::new(IdlePolicy::Adaptive, false);
        let mut now = 0;
        let mut rest = |idle: &mut Idle, delay_ns: Option<u64>| {
            let mut sleeps = 0;
            while !idle.asks() {
                idle.empty(now);
                now += YIELD_CONTENDED_NS;
                sleeps += u32::from(idle.empty(now) == Step::Sleep);
                now += US;
                idle.woke(now);
                idle.work(now);
            }
            assert!(sleeps <= RESTS_PER_POLL / RESTS_OF_A_SLEEP, "{sleeps}");
            idle.kept_waiting(now, delay_ns);
            idle.begin();
            idle.empty(now)
        };
        assert_eq!(rest(&mut idle, Some(5 * MS)), Step::Spin, "a first look");
        assert_eq!(rest(&mut idle, Some(6 * MS)), Step::Yield, "1 ms in 1.6");
        assert_eq!(rest(&mut idle, Some(6 * MS + 50 * US)), Step::Yield);
        assert_eq!(rest(&mut idle, Some(6 * MS + 60 * US)), Step::Spin);
        assert_eq!(rest(&mut idle, Some(9 * MS)), Step::Yield);
        assert_eq!(rest(&mut idle, None), Step::Yield, "it stays as it was");
        assert_eq!(rest(&mut idle, Some(9 * MS)), Step::Yield, "a first look");
        assert_eq!(rest(&mut idle, Some(9 * MS)), Step::Spin);
    }

    /// The average follows what happens, and one long pause does not undo short habits for more than some ten waits.
    #[test]
    fn average_follows_arrivals() {
        let mut idle = Idle::new(IdlePolicy::Adaptive, false);
        let mut now = 0;
        let mut wait = |idle: &mut Idle, ns: u64| {
            idle.empty(now);
            now += ns;
            idle.woke(now);
            idle.work(now);
        };
        for _ in 0..40 {
            wait(&mut idle, 300 * US);
        }
        assert!(
            idle.usual_wait_ns > USUALLY_LONG_NS,
            "{}",
            idle.usual_wait_ns
        );
        for _ in 0..60 {
            wait(&mut idle, US);
        }
        assert!(idle.usual_wait_ns < 2 * US, "{}", idle.usual_wait_ns);
        wait(&mut idle, 10_000 * MS);
        for _ in 0..12 {
            wait(&mut idle, US);
        }
        assert!(
            idle.usual_wait_ns < idle.spin_most_ns,
            "{}",
            idle.usual_wait_ns
        );
    }

    /// Where another program had the core for long, and there was work when it came back, the loop sleeps for a while, too: a yield cost a time slice.
    #[test]
    fn work_after_a_gap_ends_yields() {
        let mut idle = Idle::new(IdlePolicy::Adaptive, true);
        assert_eq!(idle.empty(0), Step::Yield);
        idle.yielded(3 * MS);
        idle.work(3 * MS);
        assert_eq!(idle.empty(3 * MS + US), Step::Sleep);
        let mut idle = Idle::new(IdlePolicy::Adaptive, true);
        assert_eq!(idle.empty(0), Step::Yield);
        idle.yielded(PREEMPTION_NS / 2);
        // The work itself may take its time.
        idle.work(2 * PREEMPTION_NS);
        assert_eq!(idle.empty(2 * MS), Step::Yield, "another of us had it");
        idle.woke(9 * MS);
        idle.work(9 * MS);
        assert_eq!(idle.empty(9 * MS), Step::Yield, "a sleep is no gap");
    }

    /// A loop of one's own sleeps when its policy says so, and only then.
    #[test]
    fn loops_sleep_by_their_policy() {
        let sleeps = |policy| {
            let (mut idle, mut sleeps) = (IdleLoop::new(policy, true), 0);
            for _ in 0..100 {
                let slept: Result<(), ()> = idle.rest(|| {
                    sleeps += 1;
                    Ok(())
                });
                assert_eq!(slept, Ok(()));
                idle.worked();
            }
            assert_eq!(
                idle.rest(|| Err("broken")).is_err(),
                policy == IdlePolicy::Sleep
            );
            sleeps
        };
        assert_eq!(sleeps(IdlePolicy::Sleep), 100);
        assert_eq!(sleeps(IdlePolicy::Yield), 0);
        assert_eq!(sleeps(IdlePolicy::Spin), 0);
    }

    /// A preemption while polling turns spinning off, longer each time, and on again when the other programs are gone.
    #[test]
    fn preemptions_stop_spinning_for_a_while() {
        let mut idle = Idle::new(IdlePolicy::Adaptive, false);
        assert_eq!(idle.empty(0), Step::Spin);
        assert_eq!(idle.empty(3 * MS), Step::Sleep, "it was preempted");
        idle.work(3 * MS);
        let within = 3 * MS + PREEMPTED_LEAST_NS - 1;
        assert_eq!(idle.empty(within), Step::Sleep, "the spell lasts");
        idle.work(within);
        let after = 3 * MS + PREEMPTED_LEAST_NS + 1;
        assert_eq!(idle.empty(after), Step::Spin, "the spell is over");
        assert_eq!(idle.empty(after + 3 * MS), Step::Sleep);
        idle.work(after + 3 * MS);
        assert_eq!(
            idle.empty(after + 3 * MS + PREEMPTED_LEAST_NS + 1),
            Step::Sleep,
            "the second spell is longer"
        );
        idle.work(after + 3 * MS + PREEMPTED_LEAST_NS + 1);
        assert_eq!(
            idle.empty(after + 3 * MS + 2 * PREEMPTED_LEAST_NS + 1),
            Step::Spin
        );
    }

    /// A rare preemption in a busy exchange changes nothing: polling is still cheaper than a wake-up each time.
    #[test]
    fn rare_preemptions_are_borne() {
        let mut idle = Idle::new(IdlePolicy::Adaptive, false);
        let mut now = 0;
        for _ in 0..3 {
            for _ in 0..1000 {
                assert_eq!(idle.empty(now), Step::Spin);
                now += 300;
                idle.work(now);
            }
            idle.empty(now);
            now += 4 * MS;
            assert_ne!(idle.empty(now), Step::Spin, "this wait is long by now");
            idle.work(now);
        }
        assert_eq!(idle.preempted_until_ns, 0);
    }

    /// Sleeping is no preemption, and neither is time that the program spent elsewhere.
    #[test]
    fn own_absence_is_no_preemption() {
        let mut idle = Idle::new(IdlePolicy::Adaptive, false);
        idle.empty(0);
        idle.woke(100 * MS);
        assert_eq!(idle.preempted_until_ns, 0);
        idle.empty(100 * MS);
        assert_eq!(idle.preempted_until_ns, 0);
        idle.begin();
        assert_eq!(idle.empty(200 * MS), Step::Spin);
    }
}
