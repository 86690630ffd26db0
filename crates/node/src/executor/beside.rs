//! Work in steps, done by the thread that polls, or handed over to a thread beside it, as `Division` decides.
//!
//! Used by the workers of the solver and of learning. One thread at a time has the work. What arrives meanwhile, and what is to leave, crosses by queues
//! of the program's choice, whose far ends ([`Work::Ends`]) stay with the thread beside.
//!
//! Invariant: work comes back only when it is recalled, with all in it that was given to its queue before.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::division::{Division, Done};
use super::{Executor, dispatch};
use crate::endpoint::Endpoint;
use crate::runqueue::Runqueue;

/// How long the thread beside rests before a step that could do little. What arrives ends it.
const REST: Duration = Duration::from_micros(100);
/// Where threads outnumber cores, a core is given away at least this often.
const SLICE: Duration = Duration::from_micros(50);

/// Work that can be handed over between two steps.
pub trait Work: Send + 'static {
    /// The far ends of the queues.
    type Ends: Send + 'static;

    /// Takes what has arrived; `all`: until nothing waits, because the work is recalled.
    fn take_arrived(&mut self, ends: &mut Self::Ends, all: bool);

    /// Does a step, and gives what is to leave to the queue.
    fn step_with(&mut self, ends: &mut Self::Ends) -> Stepped;

    /// Work done so far, in a unit of its own.
    fn done(&self) -> f64;

    /// The part of that work by which threads are compared: work over old values may be of little use.
    fn useful(&self) -> f64 {
        self.done()
    }
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The next one may follow. The flag: this is a good time to yield the core.
    Again(bool),
    /// The next one could do little until something arrives or a short time has passed.
    Rests,
    /// There is no other: the work is to go back.
    Ended,
}

/// What both threads see.
#[derive(Debug, Default)]
struct Shared {
    recalled: AtomicBool,
    rests: AtomicBool,
    /// There is no step to do.
    has_ended: AtomicBool,
    /// Useful work, as the bits of an `f64`.
    useful: AtomicU64,
}

/// The polling thread's side. The other thread is started when it is first needed; dropping this recalls the work, and waits for the thread.
///
/// A panic of the thread beside goes on in the one that asks for the work.
pub struct Beside<W: Work> {
    /// Since there are steps to do.
    division: Option<Division>,
    shared: Arc<Shared>,
    /// The thread's ends of its queues, until it is started.
    far: Option<(W::Ends, Receiver<W>, Sender<W>)>,
    /// `None`: the thread is to end.
    to_thread: Option<Sender<W>>,
    from_thread: Receiver<W>,
    thread: Option<JoinHandle<()>>,
    is_handed_over: bool,
    /// Work done when it was handed over.
    done_before: f64,
    would_contend: bool,
    runqueue: Runqueue,
    /// What metrics show of it, since there are steps to do.
    state: Option<Arc<dispatch::Shared>>,
    is_shown: bool,
}

impl<W: Work> Beside<W> {
    /// `ends` are for the thread beside.
    pub fn new(ends: W::Ends) -> Self {
        let (to_thread, incoming) = channel();
        let (outgoing, from_thread) = channel();
        Self {
            division: None,
            shared: Arc::new(Shared::default()),
            far: Some((ends, incoming, outgoing)),
            to_thread: Some(to_thread),
            from_thread,
            thread: None,
            is_handed_over: false,
            done_before: 0.0,
            would_contend: false,
            runqueue: Runqueue::default(),
            state: None,
            is_shown: false,
        }
    }

    /// Has the endpoint's metrics, and `tsumuji top`, show where the work is and why, as the executor of a channel that has no service.
    pub fn show(&mut self, endpoint: &Endpoint, channel_id: u16) {
        if let Some(state) = self.state.as_ref().filter(|_| !self.is_shown) {
            endpoint.show_executor(channel_id, Arc::clone(state));
            self.is_shown = true;
        }
    }

    /// Moves work to where it is to be done: hands over what `work` gives, or takes back what was, and returns it as [`recall`](Self::recall) does. To be
    /// called between two polls. Fails if the kernel gives no thread, and the user asked for one.
    ///
    /// Alone: there is nobody to hear from. Would contend: with a second thread, threads outnumber cores. `here`, if this thread has steps to do: useful work by
    /// now, and the nanoseconds that this thread has computed.
    pub fn divide(
        &mut self,
        executor: Executor,
        (is_alone, would_contend): (bool, bool),
        now_ns: u64,
        here: Option<(f64, u64)>,
        work: impl FnOnce() -> Option<W>,
    ) -> io::Result<Option<(W, f64)>> {
        self.would_contend = would_contend;
        if self.is_handed_over && self.is_over() {
            return Ok(self.recall());
        }
        let (useful, computed_ns) = match (self.is_handed_over, here) {
            (true, _) => (
                f64::from_bits(self.shared.useful.load(Ordering::Relaxed)),
                0,
            ),
            (false, Some(here)) => here,
            (false, None) => {
                self.division.iter_mut().for_each(Division::pause);
                return Ok(None);
            }
        };
        let gains = !would_contend && !is_alone;
        let division = (self.division).get_or_insert_with(|| Division::new(executor, gains));
        let done = Done {
            now_ns,
            work: useful,
            computed_ns,
        };
        let is_beside = division.is_beside(done, || self.runqueue.delay_ns());
        let state =
            (self.state).get_or_insert_with(|| Arc::new(dispatch::Shared::of_steps(executor)));
        state.is_beside(is_beside, division.reason());
        match (is_beside, self.is_handed_over) {
            (true, false) => match self.start() {
                Ok(()) => {
                    if let Some(work) = work() {
                        self.hand_over(work);
                    }
                }
                // Nobody asked for it.
                Err(_) if executor == Executor::Adaptive => {
                    self.division = Some(Division::new(Executor::RunToCompletion, false));
                }
                Err(error) => return Err(error),
            },
            (false, true) => return Ok(self.recall()),
            _ => {}
        }
        Ok(None)
    }

    /// Starts the thread, unless it was.
    fn start(&mut self) -> io::Result<()> {
        let Some((mut ends, incoming, outgoing)) = self.far.take() else {
            return Ok(());
        };
        let (shared, yields) = (Arc::clone(&self.shared), self.would_contend);
        let run = move || {
            while let Ok(mut work) = incoming.recv() {
                steps(&mut work, &mut ends, &shared, yields);
                if outgoing.send(work).is_err() {
                    return;
                }
            }
        };
        let builder = Builder::new().name("tsumuji-compute".to_owned());
        self.thread = Some(builder.spawn(run)?);
        Ok(())
    }

    fn hand_over(&mut self, work: W) {
        self.done_before = work.done();
        let shared = &self.shared;
        shared
            .useful
            .store(work.useful().to_bits(), Ordering::Relaxed);
        shared.has_ended.store(false, Ordering::Relaxed);
        shared.recalled.store(false, Ordering::Relaxed);
        let sent = self.to_thread.as_ref().map(|thread| thread.send(work));
        if !matches!(sent, Some(Ok(()))) {
            self.repeat_panic();
        }
        self.is_handed_over = true;
    }

    /// Whether the other thread has the work.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over
    }

    /// Whether the other thread has no step to do, or has ended, by a panic.
    fn is_over(&self) -> bool {
        self.shared.has_ended.load(Ordering::Acquire)
            || self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Whether the other thread rests until something arrives.
    pub fn rests(&self) -> bool {
        self.is_handed_over && self.shared.rests.load(Ordering::Relaxed)
    }

    /// Something has arrived: a rest ends.
    pub fn wake(&self) {
        if self.rests() {
            self.unpark();
        }
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Called by the polling thread between two polls while the work is handed over. An idle one yields its core where threads outnumber cores.
    pub fn back_off(&self, is_idle: bool) {
        match is_idle && self.would_contend {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    /// Asks for the work, if it was handed over, and waits for it: for one step at most, and what waits in the queue. Returns how much was done beside, too.
    pub fn recall(&mut self) -> Option<(W, f64)> {
        if !self.is_handed_over {
            return None;
        }
        self.shared.recalled.store(true, Ordering::Release);
        self.unpark();
        let Ok(work) = self.from_thread.recv() else {
            self.repeat_panic();
        };
        self.is_handed_over = false;
        let done = work.done() - self.done_before;
        Some((work, done))
    }

    /// The thread ends only when it is told to, or by a panic.
    fn repeat_panic(&mut self) -> ! {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => resume_unwind(panic),
            _ => unreachable!("the thread beside ended by itself"),
        }
    }
}

impl<W: Work> Drop for Beside<W> {
    fn drop(&mut self) {
        self.to_thread = None;
        self.shared.recalled.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // a panic was told by the thread itself
        }
    }
}

/// The thread beside: does steps until the work is recalled.
fn steps<W: Work>(work: &mut W, ends: &mut W::Ends, shared: &Shared, yields: bool) {
    let mut slice = Instant::now();
    loop {
        let recalled = shared.recalled.load(Ordering::Acquire);
        work.take_arrived(ends, recalled);
        if recalled {
            return;
        }
        let stepped = work.step_with(ends);
        (shared.useful).store(work.useful().to_bits(), Ordering::Relaxed);
        match stepped {
            Stepped::Again(_) => {}
            Stepped::Rests => {
                shared.rests.store(true, Ordering::Relaxed);
                std::thread::park_timeout(REST);
                shared.rests.store(false, Ordering::Relaxed);
            }
            Stepped::Ended => {
                shared.has_ended.store(true, Ordering::Release);
                // The polling thread checks all the time.
                while !shared.recalled.load(Ordering::Acquire) {
                    match yields {
                        true => std::thread::park_timeout(REST),
                        false => std::thread::yield_now(),
                    }
                }
            }
        }
        if yields && (stepped == Stepped::Again(true) || slice.elapsed() >= SLICE) {
            std::thread::yield_now();
            slice = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds what arrives; ends after `last` steps, or panics in its first one if there is none.
    #[derive(Debug, PartialEq)]
    struct Sum {
        arrived: u32,
        steps: u32,
        last: u32,
    }

    impl Work for Sum {
        type Ends = Receiver<u32>;

        fn take_arrived(&mut self, ends: &mut Receiver<u32>, _: bool) {
            self.arrived += ends.try_iter().sum::<u32>();
        }

        fn step_with(&mut self, _: &mut Receiver<u32>) -> Stepped {
            assert!(self.last > 0, "in a step");
            match self.steps == self.last {
                true => Stepped::Ended,
                false => {
                    self.steps += 1;
                    Stepped::Rests
                }
            }
        }

        fn done(&self) -> f64 {
            f64::from(self.steps)
        }
    }

    fn sum(last: u32) -> Sum {
        Sum {
            arrived: 0,
            steps: 0,
            last,
        }
    }

    /// Threads outnumber cores; `work` is what this thread has.
    fn divide(
        beside: &mut Beside<Sum>,
        executor: Executor,
        work: Option<Sum>,
    ) -> Option<(Sum, f64)> {
        let here = work.as_ref().map(|work| (work.done(), 0));
        let divided = beside.divide(executor, (false, true), 0, here, || work);
        divided.expect("a thread")
    }

    /// Work comes back when it has ended or is recalled, also from a thread that rests, with all that was given to its queue; dropping recalls it, too.
    #[test]
    fn work_goes_and_comes_back() {
        let (given, ends) = channel();
        let mut beside: Beside<Sum> = Beside::new(ends);
        assert_eq!(beside.recall(), None);
        assert_eq!(divide(&mut beside, Executor::Pipeline, None), None);
        assert!(!beside.is_handed_over(), "there was nothing to hand over");
        assert_eq!(divide(&mut beside, Executor::Pipeline, Some(sum(2))), None);
        assert!(beside.is_handed_over());
        given.send(3).expect("the thread lives");
        let mut back = None;
        while back.is_none() {
            beside.back_off(true);
            back = divide(&mut beside, Executor::Pipeline, None);
        }
        let (mut work, done) = back.expect("just checked");
        assert_eq!((work.arrived, work.steps, done), (3, 2, 2.0));
        work.last = u32::MAX;
        assert_eq!(divide(&mut beside, Executor::Pipeline, Some(work)), None);
        given.send(4).expect("the thread lives");
        beside.wake();
        let (work, done) = beside.recall().expect("handed over");
        assert_eq!((work.arrived, done), (7, f64::from(work.steps) - 2.0));
        assert_eq!(divide(&mut beside, Executor::Pipeline, Some(work)), None);
    }

    /// Nothing is handed over by run-to-completion, nor by adaptive where threads outnumber cores.
    #[test]
    fn work_stays_where_no_second_thread_may_do_it() {
        for executor in [Executor::RunToCompletion, Executor::Adaptive] {
            let mut beside: Beside<Sum> = Beside::new(channel().1);
            assert_eq!(divide(&mut beside, executor, Some(sum(1))), None);
            assert!(
                !beside.is_handed_over() && beside.thread.is_none(),
                "{executor}"
            );
        }
    }

    /// A panic of the thread goes on in the one that asks.
    #[test]
    #[should_panic(expected = "in a step")]
    fn panics_go_on() {
        let mut beside: Beside<Sum> = Beside::new(channel().1);
        let mut work = Some(sum(0));
        loop {
            divide(&mut beside, Executor::Pipeline, work.take());
            std::thread::yield_now();
        }
    }
}
