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
use crate::channel::{Letter, MessageSender, Retained};
use crate::clock::{Clock, SystemClock};

/// One call in so many is timed: reading the clock twice costs a fifth of handing a message over. Long calls are timed each.
pub(super) const TIMED_EVERY: u32 = 16;
/// A worker looks into its empty queue so often before it sleeps: about as long as waking it takes.
const EMPTY_POLLS: u32 = 2_000;

/// A worker serves so many messages before it gives up their answers and memory, and for so long at most: each time takes two locks.
const TOGETHER: usize = 32;
const TOGETHER_NS: u64 = 20_000;

/// A message that waits for a worker.
#[derive(Debug)]
pub(super) enum Job {
    Message {
        retained: Retained,
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
    fn into_retained(self) -> Option<Retained> {
        match self {
            Self::Message { retained, .. } => Some(retained),
            Self::Datagram { .. } => None,
        }
    }

    fn request(&self) -> Request<'_> {
        match self {
            Self::Message { retained, session } => Request {
                from: retained.from(),
                channel: retained.channel(),
                session: *session,
                body: retained,
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

/// Where workers run.
pub(super) struct Cores<'a> {
    /// One for each, in turn; empty: the scheduler chooses.
    pub(super) each: &'a [usize],
    /// Among these: the thread that starts the workers may be bound to one.
    pub(super) all: Option<CpuSet>,
}

impl Cores<'_> {
    fn of(&self, number: usize) -> Option<CpuSet> {
        if self.each.is_empty() {
            return self.all;
        }
        let core = self.each[number % self.each.len()];
        if core >= CpuSet::MAX_CPU {
            tracing::warn!(core, "a worker is not bound to its core: there is none");
            return self.all;
        }
        let mut one = CpuSet::new();
        one.set(core);
        Some(one)
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
        cores: &Cores<'_>,
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
            let core = cores.of(number);
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

/// One thread.
struct Worker {
    jobs: Receiver<Job>,
    service: Arc<dyn Service>,
    sender: MessageSender,
    shared: Arc<Shared>,
    calls: u32,
}

impl Worker {
    fn run(mut self, cores: Option<CpuSet>) {
        if let Some(cores) = cores
            && let Err(error) = sched_setaffinity(None, &cores)
        {
            tracing::warn!(%error, "a worker is not bound to its core");
        }
        let clock = SystemClock::new();
        let (mut jobs, mut outgoing) = (Vec::with_capacity(TOGETHER), Vec::new());
        while let Some(job) = self.next() {
            jobs.push(job);
            let call_ns = self.shared.state().call_ns.max(1);
            let together = (TOGETHER_NS / call_ns).clamp(1, TOGETHER as u64) as usize;
            jobs.extend(self.jobs.try_iter().take(together - 1));
            let serve_all = AssertUnwindSafe(|| {
                for job in &jobs {
                    if self.shared.is_over() {
                        break;
                    }
                    self.serve(job, &mut outgoing, &clock);
                }
            });
            if std::panic::catch_unwind(serve_all).is_err() {
                self.shared.has_panicked.store(true, Ordering::Release);
                return self.sender.ring(); // no other message may ever come
            }
            self.sender
                .send_together(&mut outgoing, || self.shared.is_over());
            let served = jobs.len();
            // They count against the budget until now.
            Retained::release_together(jobs.drain(..).filter_map(Job::into_retained));
            // Release: what the driving thread serves next by itself comes behind the answers, which it has.
            self.shared.waiting.fetch_sub(served, Ordering::Release);
            if self.shared.is_over() {
                return;
            }
        }
    }

    fn next(&self) -> Option<Job> {
        for _ in 0..EMPTY_POLLS {
            match self.jobs.try_recv() {
                Ok(job) => return Some(job),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
            }
        }
        self.jobs.recv().ok()
    }

    fn serve(&mut self, job: &Job, outgoing: &mut Vec<Letter>, clock: &SystemClock) {
        let request = job.request();
        let mut answers = Answers(Via::Worker {
            sender: &self.sender,
            source: (request.from, request.channel),
            outgoing,
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
