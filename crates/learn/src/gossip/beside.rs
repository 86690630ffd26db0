//! A worker's steps on a thread beside the one that polls: receiving, stepping and transmitting on two cores.
//!
//! Owned by `serve`. The whole worker is handed over, and recalled when it has no step to do. What peers send meanwhile, and what is to leave, crosses by two
//! queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use tsumuji_node::{Stepped, Work};

use super::worker::{Out, Step, Worker};
use crate::tuning::TUNING;

/// A message of a peer.
type Arrived = (usize, Vec<u8>);

/// The polling thread's side.
pub(super) struct Beside {
    pub(super) steps: tsumuji_node::Beside<Worker>,
    arrived: SyncSender<Arrived>,
    /// Bytes of arrived messages that wait.
    waiting_bytes: Arc<AtomicUsize>,
    leaving: Receiver<Out>,
}

impl Beside {
    pub(super) fn new() -> Self {
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let (arrived, arriving) = sync_channel(TUNING.beside.messages);
        let (leaves, leaving) = sync_channel(TUNING.beside.messages);
        let ends = Ends {
            arriving,
            waiting_bytes: Arc::clone(&waiting_bytes),
            leaves,
        };
        Self {
            steps: tsumuji_node::Beside::new(ends),
            arrived,
            waiting_bytes,
            leaving,
        }
    }

    /// Gives a peer's message to the stepping thread; false: there is no place.
    pub(super) fn give(&self, from: usize, bytes: &[u8]) -> bool {
        let waiting = self.waiting_bytes.load(Ordering::Relaxed);
        if waiting > 0 && waiting.saturating_add(bytes.len()) > TUNING.beside.bytes {
            return false;
        }
        // Before: the other thread takes it off.
        (self.waiting_bytes).fetch_add(bytes.len(), Ordering::Relaxed);
        let is_given = self.arrived.try_send((from, bytes.to_vec())).is_ok();
        if !is_given {
            (self.waiting_bytes).fetch_sub(bytes.len(), Ordering::Relaxed);
        }
        is_given
    }

    /// What is to leave by now.
    pub(super) fn leaving(&self) -> impl Iterator<Item = Out> {
        self.leaving.try_iter()
    }
}

/// The stepping thread's ends of the queues.
pub(super) struct Ends {
    arriving: Receiver<Arrived>,
    waiting_bytes: Arc<AtomicUsize>,
    leaves: SyncSender<Out>,
}

impl Work for Worker {
    type Ends = Ends;

    fn take_arrived(&mut self, ends: &mut Ends, all: bool) {
        let most = if all {
            usize::MAX
        } else {
            TUNING.beside.messages_per_step
        };
        for (from, bytes) in ends.arriving.try_iter().take(most) {
            (ends.waiting_bytes).fetch_sub(bytes.len(), Ordering::Relaxed);
            self.peer(from, &bytes);
        }
    }

    fn step_with(&mut self, ends: &mut Ends) -> Stepped {
        let step = self.step();
        // What finds no place waits, in order.
        while let Some(out) = self.out().pop_front() {
            if let Err(TrySendError::Full(out) | TrySendError::Disconnected(out)) =
                ends.leaves.try_send(out)
            {
                self.out().push_front(out);
                break;
            }
        }
        match step {
            Step::Again => Stepped::Again(true),
            _ => Stepped::Ended,
        }
    }

    fn done(&self) -> f64 {
        self.rows_done() as f64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tsumuji_node::Executor;

    use super::*;
    use crate::config::{Average, Kind, LearnConfig, Method, Mode, SgdConfig};
    use crate::data::Features;
    use crate::gossip::message::{Answer, Begin, Order, PeerMessage, Setup, encode};
    use crate::gossip::table::Plausible;
    use crate::gossip::worker::To;
    use crate::objective::Shape;

    pub(in crate::gossip) const ROWS: u64 = 30;

    fn features(values: Vec<f64>) -> Features {
        Features::Dense { columns: 1, values }
    }

    /// A worker that has its rows and has begun, with another one; a step of SGD takes one row.
    pub(in crate::gossip) fn begun(epochs: u64, period: u64) -> Worker {
        begun_by((Method::Sgd, Average::Table), epochs, period)
    }

    pub(in crate::gossip) fn begun_by(
        (method, average): (Method, Average),
        epochs: u64,
        period: u64,
    ) -> Worker {
        let setup = Setup {
            config: LearnConfig {
                kind: Kind::Linear,
                method,
                average,
                sgd: SgdConfig {
                    epochs,
                    period,
                    batch: 1,
                    ..SgdConfig::default()
                },
                l2: 0.0,
                tol: 1e-9,
                seed: 1,
            },
            mode: Mode::Gossip,
            plausible: Plausible {
                shape: Shape {
                    width: 2,
                    outputs: 1,
                },
                kind: Kind::Linear,
                rows: vec![ROWS; 2],
                x_max: 1.0,
                y_max: 1.0,
            },
            empty: features(Vec::new()),
            rate: 0.1,
            token: 0,
        };
        let x: Vec<f64> = (0..ROWS).map(|row| row as f64 / ROWS as f64).collect();
        let mut worker = Worker::new(0, false);
        for order in [
            Order::Setup(Box::new(setup)),
            Order::Rows(features(x.clone()), x),
            begin(1),
        ] {
            worker.order(&encode(&order)).expect("it fits");
        }
        worker.out().clear();
        worker
    }

    /// The order to begin with that epoch.
    pub(in crate::gossip) fn begin(epoch: u32) -> Order {
        Order::Begin(Begin {
            epoch,
            alive: vec![true; 2],
            rows: vec![ROWS; 2],
            theta: vec![0.0; 2],
            epochs: 0,
            ports: Vec::new(),
        })
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

    /// Hands `worker` over, or asks for the one that was: it comes back when it has no step to do.
    fn divide(beside: &mut Beside, worker: Option<Worker>) -> Option<(Worker, f64)> {
        let here = worker.as_ref().map(|worker| (worker.done(), 0));
        let divided = (beside.steps).divide(Executor::Pipeline, (false, true), 0, here, || worker);
        divided.expect("a thread")
    }

    /// All steps are done beside; the answers leave in order, also those that found no place; and every message of a peer that was given is answered, whether
    /// the worker still stepped or had ended.
    #[test]
    fn steps_are_done_beside() {
        const EPOCHS: u64 = 2 * TUNING.beside.messages as u64;
        let mut beside = Beside::new();
        divide(&mut beside, Some(begun(EPOCHS, 1)));
        let push = |number| {
            let theta = vec![0.1, 0.2];
            encode(&PeerMessage::Push { number, theta })
        };
        let mut given = Vec::new();
        let mut numbers = 1..;
        let (mut worker, rows) = loop {
            let number = numbers.next().expect("endless");
            if beside.give(1, &push(number)) {
                given.push(number);
            }
            if let Some(returned) = divide(&mut beside, None) {
                break returned;
            }
            std::thread::yield_now();
        };
        let mut out: Vec<Out> = beside.leaving().collect();
        out.extend(worker.out().drain(..));
        let (epochs, pulls) = told(&out);
        assert!(epochs.iter().copied().eq(1..=EPOCHS), "{epochs:?}");
        assert_eq!(pulls, given);
        assert_eq!(rows, (ROWS * EPOCHS) as f64);
        assert_eq!(worker.rows_done(), ROWS * EPOCHS);
    }

    /// A worker that is recalled in the middle goes on where it was.
    #[test]
    fn recalled_workers_go_on() {
        let mut beside = Beside::new();
        let mut worker = begun(20, 1);
        let mut epochs = Vec::new();
        while worker.is_running() {
            divide(&mut beside, Some(worker));
            worker = beside.steps.recall().expect("handed over").0;
            let mut out: Vec<Out> = beside.leaving().collect();
            out.extend(worker.out().drain(..));
            epochs.extend(told(&out).0);
            worker.step();
            epochs.extend(told(worker.out().make_contiguous()).0);
            worker.out().clear();
        }
        assert!(epochs.iter().copied().eq(1..=20), "{epochs:?}");
    }

    /// Messages beyond the queue's places or bytes are refused, not kept; one of any length has a place.
    #[test]
    fn queues_are_bounded() {
        let beside = Beside::new();
        let given = (0..TUNING.beside.messages + 5)
            .filter(|_| beside.give(1, &[0; 100]))
            .count();
        assert_eq!(given, TUNING.beside.messages);
        let beside = Beside::new();
        assert!(beside.give(1, &vec![0; 2 * TUNING.beside.bytes]));
        assert!(!beside.give(1, &[0]));
        assert_eq!(beside.leaving().count(), 0);
    }
}
