//! A thread that steps beside the one that polls: receiving, stepping and transmitting on two cores.
//!
//! Owned by `serve`. The whole worker moves to this thread and back, so that one thread at a time has the parameters. It comes back when it is recalled,
//! or when it has no step to do. What peers send meanwhile, and what is to leave, crosses by two queues.
//!
//! Invariant: the worker comes back with all that was given to the queue in it.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;

use super::worker::{Out, Step, Worker};

/// Messages that wait in one direction. A datagram that finds no place is lost, as by a full link.
const QUEUE: usize = 256;

/// What both threads see.
#[derive(Debug, Default)]
struct Shared {
    /// The worker is wanted back.
    recalled: AtomicBool,
    /// Rows that the worker has done.
    rows: AtomicU64,
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
}

impl Beside {
    /// Starts the thread. `yields`: threads outnumber cores.
    pub(super) fn start(yields: bool) -> std::io::Result<Self> {
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
        })
    }

    /// Lends the worker: from now on the other thread steps.
    pub(super) fn lend(&mut self, worker: Worker) {
        self.shared.recalled.store(false, Ordering::Relaxed);
        (self.shared.rows).store(worker.rows_done(), Ordering::Relaxed);
        let lends = self.lends.as_ref();
        if !lends.is_some_and(|lends| lends.send(worker).is_ok()) {
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

    /// Gives a peer's message to the stepping thread; false: there is no place.
    pub(super) fn give(&mut self, from: usize, bytes: &[u8]) -> bool {
        self.arrived.try_send((from, bytes.to_vec())).is_ok()
    }

    /// What is to leave by now.
    pub(super) fn leaving(&self) -> impl Iterator<Item = Out> {
        self.leaving.try_iter()
    }

    /// The worker, if the other thread gave it back by itself.
    pub(super) fn returned(&mut self) -> Option<Worker> {
        if !self.is_lent {
            return None;
        }
        match self.returns.try_recv() {
            Ok(worker) => {
                self.is_lent = false;
                Some(worker)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.repeat_panic(),
        }
    }

    /// Asks for the worker, and waits for it: for one step at most.
    pub(super) fn recall(&mut self) -> Option<Worker> {
        if !self.is_lent {
            return None;
        }
        self.shared.recalled.store(true, Ordering::Release);
        match self.returns.recv() {
            Ok(worker) => {
                self.is_lent = false;
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

    /// Steps until the worker is recalled, or has no step to do.
    fn step(&self, worker: &mut Worker) {
        loop {
            let recalled = self.shared.recalled.load(Ordering::Acquire);
            for (from, bytes) in self.arriving.try_iter() {
                worker.peer(from, &bytes);
            }
            if recalled || worker.step() != Step::Again {
                return;
            }
            // What finds no place waits: in order, until the worker is taken back.
            while let Some(out) = worker.out().pop_front() {
                if let Err(full) = self.leaves.try_send(out) {
                    let (std::sync::mpsc::TrySendError::Full(out)
                    | std::sync::mpsc::TrySendError::Disconnected(out)) = full;
                    worker.out().push_front(out);
                    break;
                }
            }
            (self.shared.rows).store(worker.rows_done(), Ordering::Relaxed);
            if self.yields {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker without anything to do comes back at once, and one that is recalled comes back with what it was; the thread ends with its owner.
    #[test]
    fn workers_come_back() {
        let mut beside = Beside::start(false).expect("a thread");
        for me in 0..3 {
            assert!(beside.recall().is_none() && beside.returned().is_none());
            beside.lend(Worker::new(me, false));
            assert!(beside.is_lent());
            let worker = beside.recall().expect("lent");
            assert_eq!((worker.me(), beside.is_lent()), (me, false));
        }
        beside.lend(Worker::new(7, false));
        let worker = loop {
            if let Some(worker) = beside.returned() {
                break worker;
            }
            std::thread::yield_now();
        };
        assert_eq!(worker.me(), 7);
    }

    /// Messages beyond the queue's places are refused, not kept.
    #[test]
    fn queues_are_bounded() {
        let mut beside = Beside::start(false).expect("a thread");
        let given = (0..QUEUE + 5).filter(|_| beside.give(1, &[0; 100])).count();
        assert_eq!(given, QUEUE);
        assert_eq!(beside.leaving().count(), 0);
    }
}
