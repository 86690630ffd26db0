//! The threads that serve messages beside the driving thread, and their queues.
//!
//! Owned by `dispatch`. Each worker has a queue of its own, filled by the driving thread alone; the channel's budget bounds what waits there. When the
//! owner is dropped, workers finish the call they are in, forget what waits, and end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;

use rustix::thread::{CpuSet, sched_setaffinity};
use tsumuji_proto::{Channel, NodeId};

use super::dispatch::Shared;
use super::{Answers, Request, Service, Via};
use crate::channel::{Kept, MessageSender};
use crate::clock::{Clock, SystemClock};

/// One call in so many is timed: reading the clock twice costs a fifth of handing a message over. Long calls are timed each.
pub(super) const TIMED_EVERY: u32 = 16;
/// A worker looks into its empty queue so often before it sleeps: about as long as waking it takes.
const EMPTY_LOOKS: u32 = 2_000;

/// A message that waits for a worker.
#[derive(Debug)]
pub(super) enum Job {
    Message {
        kept: Kept,
        session: u64,
    },
    Datagram {
        from: NodeId,
        channel: Channel,
        session: u64,
        body: Vec<u8>,
    },
}

impl Job {
    fn request(&self) -> Request<'_> {
        match self {
            Self::Message { kept, session } => Request {
                from: kept.from(),
                channel: kept.channel(),
                session: *session,
                body: kept,
            },
            Self::Datagram {
                from,
                channel,
                session,
                body,
            } => Request {
                from: *from,
                channel: *channel,
                session: *session,
                body,
            },
        }
    }
}

/// All workers of a channel.
#[derive(Debug)]
pub(super) struct Workers {
    queues: Vec<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// For messages without order.
    next: usize,
}

impl Workers {
    /// Starts so many workers, on these cores in turn; `None`: the kernel gives no thread.
    pub(super) fn start(
        count: usize,
        cores: &[usize],
        service: &Arc<dyn Service>,
        sender: &MessageSender,
        shared: &Arc<Shared>,
    ) -> Option<Self> {
        let mut workers = Self {
            queues: Vec::with_capacity(count),
            threads: Vec::with_capacity(count),
            shared: Arc::clone(shared),
            next: 0,
        };
        for number in 0..count {
            let (queue, jobs) = mpsc::channel();
            let core = cores
                .get(number % cores.len().max(1))
                .copied()
                .filter(|_| !cores.is_empty());
            let worker = Worker {
                jobs,
                service: Arc::clone(service),
                sender: sender.clone(),
                shared: Arc::clone(shared),
                calls: 0,
            };
            let thread = std::thread::Builder::new().name(format!("tsumuji-work-{number}"));
            // Signals are for the program's threads.
            let thread = crate::sys::without_signals(|| thread.spawn(move || worker.run(core)));
            match thread {
                Ok(thread) => {
                    workers.queues.push(queue);
                    workers.threads.push(thread);
                }
                Err(error) if number == 0 => {
                    tracing::warn!(%error, "no worker for an executor");
                    return None;
                }
                Err(_) => break,
            }
        }
        Some(workers)
    }

    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Gives a message to the worker of its peer, or, if its order does not matter, to the next one.
    pub(super) fn give(&mut self, from: NodeId, is_ordered: bool, job: Job) {
        let number = if is_ordered {
            usize::from(from.0)
        } else {
            self.next += 1;
            self.next
        };
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        // It ends only by a panic, which the driving thread repeats.
        let _ = self.queues[number % self.queues.len()].send(job);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.queues.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic was repeated on the driving thread
        }
    }
}

/// Binds the calling thread.
fn bind(core: usize) -> std::io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

/// One thread.
struct Worker {
    jobs: Receiver<Job>,
    service: Arc<dyn Service>,
    sender: MessageSender,
    shared: Arc<Shared>,
    calls: u32,
}

impl Worker {
    fn run(mut self, core: Option<usize>) {
        if let Some(core) = core
            && let Err(error) = bind(core)
        {
            tracing::warn!(core, %error, "a worker is not bound");
        }
        let clock = SystemClock::new();
        while let Some(job) = self.next() {
            if self.shared.is_over() {
                return;
            }
            let serve = AssertUnwindSafe(|| self.serve(&job, &clock));
            if std::panic::catch_unwind(serve).is_err() {
                self.shared.has_panicked.store(true, Ordering::Release);
                return;
            }
            drop(job); // counts against the budget until now
            // The answers are with the driving thread: what it serves next by itself comes behind them.
            self.shared.waiting.fetch_sub(1, Ordering::Release);
        }
    }

    fn next(&self) -> Option<Job> {
        for _ in 0..EMPTY_LOOKS {
            match self.jobs.try_recv() {
                Ok(job) => return Some(job),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
            }
        }
        self.jobs.recv().ok()
    }

    fn serve(&mut self, job: &Job, clock: &SystemClock) {
        let request = job.request();
        let mut answers = Answers(Via::Worker {
            sender: &self.sender,
            source: (request.from, request.channel),
            shared: &self.shared,
        });
        self.calls = self.calls.wrapping_add(1);
        self.shared.worker_messages.fetch_add(1, Ordering::Relaxed);
        if !self.shared.is_timed(self.calls) {
            return self.service.serve(&request, &mut answers);
        }
        let begun = clock.now();
        self.service.serve(&request, &mut answers);
        self.shared.took(clock.now().since(begun).as_nanos());
    }
}
