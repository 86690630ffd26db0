//! The handler of a served channel: runs the service, or gives messages to the workers.
//!
//! Called by the driving thread for each message. A move to the workers takes effect at once. A move back waits until no message is with a worker, and
//! then takes over the answers that workers have left for the driving thread: so no answer overtakes an earlier one.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;

use rustix::process::getpid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tsumuji_proto::{Channel, Datagram, Delivery, DeliveryClass, Instant};

use super::policy::{self, BUSY_PERCENT, Measured, PERIOD_NS, Trial};
use super::workers::{Cores, Job, TIMED_EVERY, Workers};
use super::{Answers, Executor, ExecutorOptions, ExecutorState, Reason, Request, Service};
use crate::channel::MessageSender;
use crate::clock::{Clock, SystemClock};
use crate::handler::{Context, Handler};

/// Datagrams that wait for workers; more are dropped, as a datagram that waits that long is old.
const DATAGRAMS_MAX: usize = 1024;
/// Where calls take this long, each is timed: until the next timed one their length might double.
const LONG_TIMED_NS: u64 = 2_000;
/// A mean is made of so many timed calls, or of fewer that took so long together: single long calls among short ones weigh as they should, and a
/// service that grows heavy is noticed within some periods.
const MEAN_CALLS: u64 = 256;
const MEAN_NS: u64 = 500_000;
/// The first mean is made of so many.
const FIRST_CALLS: u64 = 16;
/// Bits of the number of calls in `Shared::timed`: more than `MEAN_CALLS` and a call of each worker.
const CALLS_BITS: u32 = 16;

const REASONS: [Reason; 6] = [
    Reason::Fixed,
    Reason::Unmeasured,
    Reason::Light,
    Reason::Heavy,
    Reason::Long,
    Reason::NoCore,
];

/// What the driving thread, the workers and readers of counters share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    executor: Executor,
    workers: AtomicUsize,
    with_workers: AtomicBool,
    /// Index into `REASONS`.
    reason: AtomicU8,
    driver_messages: AtomicU64,
    pub(super) worker_messages: AtomicU64,
    /// Messages given to workers and not served.
    pub(super) waiting: AtomicUsize,
    dropped_datagrams: AtomicU64,
    call_ns: AtomicU64,
    /// Calls timed since the mean was made: their nanoseconds, shifted by `CALLS_BITS`, and their number.
    timed: AtomicU64,
    moves: AtomicU64,
    /// The channel was closed.
    pub(super) is_over: AtomicBool,
    /// A service has panicked in a worker.
    pub(super) has_panicked: AtomicBool,
}

impl Shared {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether the call of that number is timed. One in `TIMED_EVERY` is, at no regular distance: a service may be heavy each 32nd time.
    #[inline]
    pub(super) fn is_timed(&self, number: u32) -> bool {
        let mixed = number.wrapping_mul(0x9e37_79b9);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b);
        let call_ns = self.call_ns.load(Ordering::Relaxed);
        mixed < u32::MAX / TIMED_EVERY || call_ns == 0 || call_ns >= LONG_TIMED_NS
    }

    /// A call took so long. Of threads that report at the same moment some may be forgotten: a mean bears that.
    #[inline]
    pub(super) fn took(&self, call_ns: u64) {
        let call = (call_ns << CALLS_BITS) | 1;
        let timed = (self.timed.fetch_add(call, Ordering::Relaxed)).wrapping_add(call);
        let (sum_ns, calls) = (timed >> CALLS_BITS, timed & ((1 << CALLS_BITS) - 1));
        let is_first = self.call_ns.load(Ordering::Relaxed) == 0;
        let most = if is_first { FIRST_CALLS } else { MEAN_CALLS };
        if calls >= most || sum_ns >= MEAN_NS {
            self.timed.store(0, Ordering::Relaxed);
            let mean_ns = (sum_ns / calls.max(1)).max(1);
            self.call_ns.store(mean_ns, Ordering::Relaxed);
        }
    }

    /// Panics if a worker has: called by the driving thread for each message, and when a worker rings.
    #[inline]
    pub(crate) fn repeat_panic(&self) {
        assert!(
            !self.has_panicked.load(Ordering::Acquire),
            "a service panicked in a worker"
        );
    }

    /// State of work in steps (`Beside`), which one thread beside the driving one may do.
    pub(super) fn of_steps(executor: Executor) -> Self {
        Self {
            executor,
            workers: AtomicUsize::new(1),
            ..Self::default()
        }
    }

    /// The work is with the thread beside, or not, for that reason.
    pub(super) fn is_beside(&self, is_beside: bool, reason: Reason) {
        self.note_reason(reason);
        if self.with_workers.swap(is_beside, Ordering::Relaxed) != is_beside {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn note_reason(&self, reason: Reason) {
        let index = REASONS.iter().position(|known| *known == reason);
        self.reason
            .store(index.unwrap_or(0) as u8, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> ExecutorState {
        let reason = usize::from(self.reason.load(Ordering::Relaxed));
        ExecutorState {
            executor: self.executor,
            with_workers: self.with_workers.load(Ordering::Relaxed),
            reason: REASONS.get(reason).copied().unwrap_or_default(),
            workers: self.workers.load(Ordering::Relaxed),
            driver_messages: self.driver_messages.load(Ordering::Relaxed),
            worker_messages: self.worker_messages.load(Ordering::Relaxed),
            waiting_messages: self.waiting.load(Ordering::Relaxed),
            dropped_datagrams: self.dropped_datagrams.load(Ordering::Relaxed),
            call_ns: self.call_ns.load(Ordering::Relaxed),
            moves: self.moves.load(Ordering::Relaxed),
        }
    }
}

/// See the head of this module.
pub(crate) struct Dispatch {
    service: Arc<dyn Service>,
    sender: MessageSender,
    options: ExecutorOptions,
    shared: Arc<Shared>,
    /// Started when they are first needed.
    workers: Option<Workers>,
    /// The service is to be with the workers.
    wants_workers: bool,
    /// Messages go to the workers.
    with_workers: bool,
    clock: SystemClock,
    /// Calls on this thread, and all messages since the period began.
    calls: u32,
    messages: u64,
    begun: Instant,
    served: u64,
    trial: Trial,
    /// Where workers may run, and how many of these cores the driving thread does not need.
    affinity: Option<CpuSet>,
    spare_cores: usize,
}

impl Dispatch {
    pub(crate) fn new(
        service: Arc<dyn Service>,
        options: ExecutorOptions,
        sender: MessageSender,
    ) -> Self {
        let clock = SystemClock::new();
        let wants_workers = options.executor == Executor::Pipeline;
        let (affinity, cores) = usable_cores();
        let mut dispatch = Self {
            shared: Arc::new(Shared {
                executor: options.executor,
                ..Shared::default()
            }),
            begun: clock.now(),
            service,
            sender,
            options,
            workers: None,
            wants_workers,
            with_workers: false,
            clock,
            calls: 0,
            messages: 0,
            served: 0,
            trial: Trial::default(),
            affinity,
            spare_cores: cores - 1,
        };
        if dispatch.options.executor == Executor::Adaptive {
            dispatch.tell(Reason::Unmeasured);
        }
        dispatch.arrange(None);
        dispatch
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    fn tell(&self, reason: Reason) {
        self.shared.note_reason(reason);
    }

    /// Number of workers: no more than there are cores beside the driving thread's, and at least one.
    fn worker_count(&self) -> usize {
        let wanted = match self.options.workers {
            0 => self.spare_cores,
            asked => asked.min(self.spare_cores),
        };
        wanted.max(1)
    }

    /// Turns to where the service is wanted, as far as that is possible now.
    fn arrange(&mut self, context: Option<&mut Context<'_>>) {
        if self.wants_workers == self.with_workers {
            return;
        }
        if self.wants_workers {
            if self.workers.is_none() {
                let (count, cores) = (self.worker_count(), &self.options.cores);
                let cores = Cores {
                    each: cores,
                    all: self.affinity,
                };
                let started =
                    Workers::start(count, &cores, &self.service, &self.sender, &self.shared);
                let Some(workers) = started else {
                    self.wants_workers = false;
                    return self.tell(Reason::NoCore);
                };
                self.shared
                    .workers
                    .store(workers.count(), Ordering::Relaxed);
                self.workers = Some(workers);
            }
        } else {
            // Acquire: the answers of all that was served are there.
            if self.shared.waiting.load(Ordering::Acquire) > 0 {
                return;
            }
            if let Some(context) = context {
                context.outbox.take_over();
            }
        }
        self.with_workers = self.wants_workers;
        self.shared
            .with_workers
            .store(self.with_workers, Ordering::Relaxed);
        self.shared.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Decides anew, once a period.
    #[inline]
    fn review(&mut self) {
        if self.options.executor != Executor::Adaptive || !self.shared.is_timed(self.calls) {
            return;
        }
        let now = self.clock.now();
        let span_ns = now.since(self.begun).as_nanos();
        if span_ns < PERIOD_NS {
            return;
        }
        let served = self.shared.worker_messages.load(Ordering::Relaxed);
        let calls = if self.with_workers {
            served - self.served
        } else {
            self.messages
        };
        let measured = Measured {
            call_ns: self.shared.call_ns.load(Ordering::Relaxed),
            calls,
            span_ns,
        };
        let now_ns = now.as_nanos();
        let has_core = self.spare_cores > 0 && self.trial.is_allowed(now_ns);
        let (mut wants, mut reason) = policy::decide(self.wants_workers, has_core, measured);
        let is_moved = wants && !self.wants_workers;
        if is_moved && reason == Reason::Heavy {
            self.trial.begin(measured.calls, measured.span_ns);
        } else if wants && reason == Reason::Heavy {
            // A period in which nothing waited tells nothing of their rate. One message may be that whose answer has just left.
            let waited = self.shared.waiting.load(Ordering::Relaxed) > 1
                || measured.percent() >= BUSY_PERCENT;
            let has_failed = match waited {
                true => (self.trial).has_failed(measured.calls, measured.span_ns, now_ns),
                false => self.trial.is_idle(now_ns),
            };
            if has_failed {
                (wants, reason) = (false, Reason::NoCore);
            }
        } else if self.wants_workers && !wants {
            self.trial.end(now_ns);
        }
        if wants != self.wants_workers {
            tracing::debug!(?measured, ?reason, wants, "an executor moves its service");
        }
        self.wants_workers = wants;
        self.tell(reason);
        (self.begun, self.messages, self.served) = (now, 0, served);
    }

    /// Begins a message: decides who serves it. `true`: a worker.
    #[inline]
    fn goes_to_workers(&mut self, context: &mut Context<'_>) -> bool {
        self.shared.repeat_panic();
        self.calls = self.calls.wrapping_add(1);
        self.messages += 1;
        self.review();
        self.arrange(Some(context));
        self.with_workers
    }

    #[inline]
    fn serve_here(&mut self, request: &Request<'_>, context: &mut Context<'_>) {
        (self.shared.driver_messages).store(
            self.shared.driver_messages.load(Ordering::Relaxed) + 1, // this thread alone writes it
            Ordering::Relaxed,
        );
        let mut answers = Answers::of_driver(context);
        if !self.shared.is_timed(self.calls) {
            return self.service.serve(request, &mut answers);
        }
        let begun = self.clock.now();
        self.service.serve(request, &mut answers);
        self.shared.took(self.clock.now().since(begun).as_nanos());
    }
}

/// Cores that this thread may use, and their number, at least one. If it is bound to one, those of the process's first thread: a program may bind the
/// thread that drives before it opens the channel.
fn usable_cores() -> (Option<CpuSet>, usize) {
    let own = sched_getaffinity(None).ok();
    if own.is_some_and(|own| own.count() == 1)
        && let Ok(first) = sched_getaffinity(Some(getpid()))
    {
        // The number counts what the system allows the whole process, too, and the thread that asks must not be bound.
        let ask = move || {
            sched_setaffinity(None, &first).ok()?;
            available_parallelism().ok()
        };
        let asked = std::thread::Builder::new().spawn(ask).ok();
        let number = asked.and_then(|asked| asked.join().ok()?);
        let number = number.map_or(first.count() as usize, NonZero::get);
        return (Some(first), number.max(1));
    }
    (own, available_parallelism().map_or(1, NonZero::get))
}

impl Handler for Dispatch {
    fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
        let (from, channel, session) = (delivery.from, delivery.channel, delivery.session);
        if self.goes_to_workers(context)
            && let Some(workers) = &mut self.workers
        {
            let is_ordered = channel.class() == DeliveryClass::Ordered;
            let retained = context.retain(delivery);
            return workers.give(from, is_ordered, Job::Message { retained, session });
        }
        let request = Request {
            from,
            channel,
            session,
            body: delivery.body.bytes(),
        };
        self.serve_here(&request, context);
    }

    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        let (from, session) = (datagram.source, context.session());
        let channel = Channel::ordered(datagram.channel_id);
        if self.goes_to_workers(context)
            && let Some(workers) = &mut self.workers
        {
            if self.shared.waiting.load(Ordering::Relaxed) >= DATAGRAMS_MAX {
                self.shared
                    .dropped_datagrams
                    .fetch_add(1, Ordering::Relaxed);
                return;
            }
            let job = Job::Datagram {
                from,
                channel,
                session,
                body: datagram.payload.to_vec(),
            };
            return workers.give(from, true, job);
        }
        let request = Request {
            from,
            channel,
            session,
            body: datagram.payload,
        };
        self.serve_here(&request, context);
    }
}
