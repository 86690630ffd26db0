//! A thread that steps beside the one that polls: receiving, stepping and transmitting on two cores.
//!
//! Owned by `serve`. The whole worker moves to this thread and back, so that one thread at a time has the parameters. It comes back when it is recalled, and
//! is recalled when it has no step to do. What peers send meanwhile, and what is to leave, crosses by two queues.
//!
//! Invariant: the worker comes back with all that was given to the queue in it. So it never comes back by itself.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use super::worker::{Out, Step, Worker};

/// Messages that wait in one direction. A datagram that finds no place is lost, as by a full link.
const QUEUE: usize = 256;
/// Bytes of arrived messages that wait, beside one message of any length.
const QUEUE_BYTES: usize = 4 << 20;

/// Messages taken between two steps: so many as the polling thread takes frames.
const MESSAGES_PER_STEP: usize = 64;

/// What both threads see.
#[derive(Debug, Default)]
struct Shared {
    /// The worker is wanted back.
    recalled: AtomicBool,
    /// The worker has no step to do.
    idles: AtomicBool,
    /// Rows that the worker has done.
    rows: AtomicU64,
    /// Bytes of arrived messages that wait.
    waiting_bytes: AtomicUsize,
}

/// A message of a peer.
type Arrived = (usize, Vec<u8>);

/// The polling thread's side.
#[derive(Debug)]
pub(super) struct Beside {
    shared: Arc<Shared>,
    /// `None`: the thread is to end.
    lends: Option<Sender<Worker>>,
    returns: Receiver<Worker>,
    arrived: SyncSender<Arrived>,
    leaving: Receiver<Out>,
    thread: Option<JoinHandle<()>>,
    is_lent: bool,
    /// Rows done when the worker was lent.
    lent_at: u64,
    /// Rows done by this thread.
    rows: u64,
}

impl Beside {
    /// Starts the thread. `yields`: threads outnumber cores.
    pub(super) fn start(yields: bool) -> std::io::Result<Self> {
        Self::start_with(yields, Worker::step)
    }

    fn start_with(yields: bool, one: fn(&mut Worker) -> Step) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (lends, lent) = channel();
        let (give_back, returns) = channel();
        let (arrived, arriving) = sync_channel(QUEUE);
        let (leaves, leaving) = sync_channel(QUEUE);
        let stepping = Stepping {
            shared: Arc::clone(&shared),
            arriving,
            leaves,
            yields,
            one,
        };
        let thread = std::thread::Builder::new()
            .name("tsumuji-compute".to_owned())
            .spawn(move || stepping.run(&lent, &give_back))?;
        Ok(Self {
            shared,
            lends: Some(lends),
            returns,
            arrived,
            leaving,
            thread: Some(thread),
            is_lent: false,
            lent_at: 0,
            rows: 0,
        })
    }

    /// Lends the worker: from now on the other thread steps.
    pub(super) fn lend(&mut self, worker: Worker) {
        self.shared.recalled.store(false, Ordering::Relaxed);
        self.shared.idles.store(false, Ordering::Relaxed);
        self.lent_at = worker.rows_done();
        (self.shared.rows).store(self.lent_at, Ordering::Relaxed);
        let lends = self.lends.as_ref();
        if lends.is_none_or(|lends| lends.send(worker).is_err()) {
            self.repeat_panic();
        }
        self.is_lent = true;
    }

    pub(super) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Rows done by the worker that is lent.
    pub(super) fn rows_done(&self) -> u64 {
        self.shared.rows.load(Ordering::Relaxed)
    }

    /// Rows that workers have done here, before the one that is lent.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Whether the worker that is lent has no step to do, and should be recalled; so it should if the thread has ended, by a panic.
    pub(super) fn idles(&self) -> bool {
        let has_ended = || self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        self.is_lent && (self.shared.idles.load(Ordering::Acquire) || has_ended())
    }

    /// Gives a peer's message to the stepping thread; false: there is no place.
    pub(super) fn give(&mut self, from: usize, bytes: &[u8]) -> bool {
        let waiting = self.shared.waiting_bytes.load(Ordering::Relaxed);
        if waiting > 0 && waiting.saturating_add(bytes.len()) > QUEUE_BYTES {
            return false;
        }
        // Before: the other thread takes it off.
        (self.shared.waiting_bytes).fetch_add(bytes.len(), Ordering::Relaxed);
        let is_given = self.arrived.try_send((from, bytes.to_vec())).is_ok();
        if !is_given {
            (self.shared.waiting_bytes).fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        is_given
    }

    /// What is to leave by now.
    pub(super) fn leaving(&self) -> impl Iterator<Item = Out> {
        self.leaving.try_iter()
    }

    /// Asks for the worker, and waits for it: for one step at most, and what waits in the queue.
    pub(super) fn recall(&mut self) -> Option<Worker> {
        if !self.is_lent {
            return None;
        }
        self.shared.recalled.store(true, Ordering::Release);
        match self.returns.recv() {
            Ok(worker) => {
                self.is_lent = false;
                self.rows += worker.rows_done().saturating_sub(self.lent_at);
                Some(worker)
            }
            Err(_) => self.repeat_panic(),
        }
    }

    /// The thread ends only when it is told to, or by a panic.
    fn repeat_panic(&mut self) -> ! {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Err(panic)) => resume_unwind(panic),
            _ => unreachable!("the stepping thread ended by itself"),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.lends = None;
        self.shared.recalled.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic was told by the thread itself
        }
    }
}

/// The stepping thread.
struct Stepping {
    shared: Arc<Shared>,
    arriving: Receiver<Arrived>,
    leaves: SyncSender<Out>,
    yields: bool,
    /// One step.
    one: fn(&mut Worker) -> Step,
}

impl Stepping {
    fn run(self, lent: &Receiver<Worker>, give_back: &Sender<Worker>) {
        while let Ok(mut worker) = lent.recv() {
            self.step(&mut worker);
            if give_back.send(worker).is_err() {
                return;
            }
        }
    }

    /// Steps until the worker is recalled.
    fn step(&self, worker: &mut Worker) {
        loop {
            let recalled = self.shared.recalled.load(Ordering::Acquire);
            // Whoever sends faster than that holds up no steps.
            let most = if recalled {
                usize::MAX
            } else {
                MESSAGES_PER_STEP
            };
            for (from, bytes) in self.arriving.try_iter().take(most) {
                (self.shared.waiting_bytes).fetch_sub(bytes.len(), Ordering::Relaxed);
                worker.peer(from, &bytes);
            }
            if recalled {
                return;
            }
            let steps = (self.one)(worker) == Step::Again;
            // What finds no place waits, in order.
            while let Some(out) = worker.out().pop_front() {
                match self.leaves.try_send(out) {
                    Ok(()) => {}
                    Err(TrySendError::Full(out) | TrySendError::Disconnected(out)) => {
                        worker.out().push_front(out);
                        break;
                    }
                }
            }
            (self.shared.rows).store(worker.rows_done(), Ordering::Relaxed);
            if !steps {
                self.shared.idles.store(true, Ordering::Release);
            }
            if self.yields || !steps {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Kind, LearnConfig, Method, Mode, SgdConfig};
    use crate::data::Features;
    use crate::gossip::message::{Answer, Begin, Order, PeerMessage, Setup, encode};
    use crate::gossip::worker::To;

    const ROWS: u64 = 30;

    fn features(values: Vec<f64>) -> Features {
        Features::Dense { columns: 1, values }
    }

    /// A worker that has its rows and has begun, with another one.
    fn begun(epochs: u64) -> Worker {
        let setup = Setup {
            config: LearnConfig {
                kind: Kind::Linear,
                method: Method::Sgd,
                sgd: SgdConfig {
                    epochs,
                    period: 1,
                    batch: 1,
                    ..SgdConfig::default()
                },
                l2: 0.0,
                tol: 1e-9,
                seed: 1,
            },
            mode: Mode::Gossip,
            rows: vec![ROWS; 2],
            width: 2,
            outputs: 1,
            empty: features(Vec::new()),
            rate: 0.1,
            x_max: 1.0,
            y_max: 1.0,
            token: 0,
        };
        let x: Vec<f64> = (0..ROWS).map(|row| row as f64 / ROWS as f64).collect();
        let begin = Begin {
            epoch: 1,
            alive: vec![true; 2],
            rows: vec![ROWS; 2],
            theta: vec![0.0; 2],
            epochs: 0,
            ports: Vec::new(),
        };
        let mut worker = Worker::new(0, false);
        for order in [
            Order::Setup(Box::new(setup)),
            Order::Rows(features(x.clone()), x),
            Order::Begin(begin),
        ] {
            worker.order(&encode(&order)).expect("it fits");
        }
        worker.out().clear();
        worker
    }

    /// Epochs that answers tell of, and numbers of pulls.
    fn told(out: &[Out]) -> (Vec<u64>, Vec<u64>) {
        let epochs = out
            .iter()
            .filter(|out| out.to == To::Judge)
            .filter_map(|out| match Answer::parse(&out.bytes) {
                Some(Answer::Epochs { done, .. }) => Some(done),
                _ => None,
            });
        let pulls = out
            .iter()
            .filter_map(|out| match PeerMessage::parse(&out.bytes) {
                Some(PeerMessage::Pull { number, .. }) if out.to == To::Worker(1) => Some(number),
                _ => None,
            });
        (epochs.collect(), pulls.collect())
    }

    /// All steps are done beside; the answers leave in order, also those that found no place; and every message of a peer that was given is answered, whether
    /// the worker still stepped or had ended.
    #[test]
    fn steps_are_done_beside() {
        const EPOCHS: u64 = 2 * QUEUE as u64;
        let mut beside = Beside::start(false).expect("a thread");
        beside.lend(begun(EPOCHS));
        let push = |number| {
            let theta = vec![0.1, 0.2];
            encode(&PeerMessage::Push { number, theta })
        };
        let mut given = Vec::new();
        let mut is_last = false;
        for number in 1.. {
            if beside.give(1, &push(number)) {
                given.push(number);
            }
            if is_last {
                break;
            }
            is_last = beside.idles(); // one more, to a worker that has ended
            std::thread::yield_now();
        }
        let mut worker = beside.recall().expect("lent");
        let mut out: Vec<Out> = beside.leaving().collect();
        out.extend(worker.out().drain(..));
        let (epochs, pulls) = told(&out);
        assert!(epochs.iter().copied().eq(1..=EPOCHS), "{epochs:?}");
        assert_eq!(pulls, given);
        assert_eq!(beside.rows(), ROWS * EPOCHS);
        assert_eq!(worker.rows_done(), ROWS * EPOCHS);
    }

    /// A worker that is recalled in the middle goes on where it was.
    #[test]
    fn recalled_workers_go_on() {
        let mut beside = Beside::start(true).expect("a thread");
        let mut worker = begun(20);
        let mut epochs = Vec::new();
        while worker.is_running() {
            beside.lend(worker);
            worker = beside.recall().expect("lent");
            let mut out: Vec<Out> = beside.leaving().collect();
            out.extend(worker.out().drain(..));
            epochs.extend(told(&out).0);
            worker.step();
            epochs.extend(told(worker.out().make_contiguous()).0);
            worker.out().clear();
        }
        assert!(epochs.iter().copied().eq(1..=20), "{epochs:?}");
    }

    /// A panic of the stepping thread is not waited for: it goes on in the polling one.
    #[test]
    #[should_panic(expected = "in a step")]
    fn panics_go_on() {
        let mut beside = Beside::start_with(false, |_| panic!("in a step")).expect("a thread");
        beside.lend(begun(1));
        while !beside.idles() {
            std::thread::yield_now();
        }
        beside.recall();
    }

    /// Messages beyond the queue's places or bytes are refused, not kept; one of any length has a place.
    #[test]
    fn queues_are_bounded() {
        let mut beside = Beside::start(false).expect("a thread");
        let given = (0..QUEUE + 5).filter(|_| beside.give(1, &[0; 100])).count();
        assert_eq!(given, QUEUE);
        let mut beside = Beside::start(false).expect("a thread");
        assert!(beside.give(1, &vec![0; 2 * QUEUE_BYTES]));
        assert!(!beside.give(1, &[0]));
        assert_eq!(beside.leaving().count(), 0);
    }
}
