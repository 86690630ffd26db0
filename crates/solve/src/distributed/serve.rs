//! A worker with an endpoint and a clock.
//!
//! One visible loop: poll, send waiting messages, one step of work. A worker never waits for another while it iterates. Where workers outnumber cores
//! it yields its core after each lap, and at least every [`YIELD_EVERY_NS`], so that the others' values stay fresh. A second thread may
//! take the steps (`beside`), while this one receives and transmits. While a worker computes long outside of laps (factorising, making rows, a pass over
//! a large block) the endpoint's progress assistant answers the others.

use super::beside::{Beside, Handover};
use super::config::SolveConfig;
use super::field::{JUDGE, Outlet, node};
use super::message::{BOARD_CHANNEL, LapReport, REPORT_CHANNEL};
use super::run::{BULK, CONTROL};
use super::space::{Between, Broken, Mailbox};
use super::stats::{self, Meter};
use super::step::{Step, To, Way, WorkerFault};
use super::throttle::Throttle;
use super::worker::Worker;
use crate::local::Sweeper;
use std::time::{Duration, Instant};
use tsumuji_board::Carrier;
use tsumuji_collective::{CollectiveError, Collectives, GroupError, TableError};
use tsumuji_node::{
    ChannelError, Context, Datagram, Delivery, Endpoint, EndpointError, Handler, NodeId, SendError,
};

/// Where workers outnumber cores, a core is yielded at least this often: a few hundred times the cost of a yield.
const YIELD_EVERY_NS: u64 = 50_000;
/// Rest before a lap that could change little: long compared with a frame's delay, short compared with any time-out.
const REST: Duration = Duration::from_micros(100);
/// Most polls between two steps: so many take all frames of the largest receive buffers.
const POLLS_PER_STEP_MAX: usize = 64;
/// A worker that waits for others tells the judge so often that it lives: well below any lease.
pub(super) const HEARTBEAT_NS: u64 = 100_000_000;
/// Longest wait for messages, which end it.
const WAIT: Duration = Duration::from_millis(5);
/// The same while messages of our own wait for room.
const CONTENDED: Duration = Duration::from_micros(200);
/// How long to wait for the acknowledgement of the last messages.
const FLUSH_WAIT: Duration = Duration::from_secs(1);

/// Why a worker ended without the judge's order to leave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Node 0 is the judge.
    #[error("node 0 is the judge; workers are nodes 1 and up")]
    NotAWorker,
    /// The judge died or closed the connection, and no other took its place in time.
    #[error("the judge was lost")]
    JudgeLost,
    /// A message or the rows are faulty.
    #[error(transparent)]
    Fault(#[from] WorkerFault),
    /// This node's link failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The table of algorithms of collectives cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Workers form no group.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A sum or exchange of workers failed, though none of them died.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The channel of collectives cannot be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The kernel gives no thread for the computation.
    #[error("no thread for the computation: {0}")]
    Thread(std::io::Error),
}

/// Serves one run as a worker: all its input comes by messages. Returns when the judge orders it to leave.
pub fn worker_main(endpoint: &mut Endpoint) -> Result<(), WorkerError> {
    let me = usize::from(endpoint.me().0)
        .checked_sub(1)
        .ok_or(WorkerError::NotAWorker)?;
    // What others send for a sum before this worker takes part waits there.
    endpoint.open(
        tsumuji_collective::CHANNEL,
        tsumuji_collective::channel_options(),
    )?;
    let began = Instant::now();
    let mut driver = Driver {
        worker: Worker::new(me, endpoint.datagram_capacity_bytes()),
        beside: Beside::new(began),
        meter: Meter::default(),
        collectives: None,
        mailbox: Mailbox::default(),
        throttle: Throttle::default(),
        fault: None,
        orphaned: None,
    };
    let result = serve(endpoint, &mut driver, began);
    if let Err(WorkerError::Fault(fault)) = &result
        && !matches!(fault, WorkerFault::Aborted { .. })
    {
        driver.worker.failed(fault.to_string());
        // The judge is told if possible; it also notices by itself that this node leaves.
        let _ = driver
            .send(endpoint)
            .and_then(|_| Ok(endpoint.flush(FLUSH_WAIT)?));
    }
    result
}

fn serve(endpoint: &mut Endpoint, driver: &mut Driver, began: Instant) -> Result<(), WorkerError> {
    let team = &endpoint.members()[1..]; // the judge sleeps
    // With so many threads for each worker, threads outnumber cores.
    let too_many = (1..=SolveConfig::THREADS_MOST)
        .find(|&threads| endpoint.is_oversubscribed(&vec![team; threads].concat()))
        .unwrap_or(usize::MAX);
    let is_alone = team.len() <= 1; // there is nothing to receive
    let now_ns = || began.elapsed().as_nanos() as u64;
    let (mut yielded_ns, mut beat) = (0, 0);
    loop {
        let before = now_ns();
        // All that has arrived is taken before the next step: a sweep over stale values is half wasted, and data waiting in the link only grows
        // older.
        let mut idle = true;
        for _ in 0..POLLS_PER_STEP_MAX {
            if endpoint.poll(driver)? == 0 {
                break;
            }
            idle = false;
        }
        driver.worker.exchanged(now_ns() - before);
        driver.check()?;
        // Before the first step, which may be another thread's.
        let runs = driver.worker.is_running();
        driver.meter.note(runs, || endpoint.counters().link);
        let sent = driver.send(endpoint)?;
        let threads = driver.worker.threads();
        let (is_contended, would_contend) = (threads >= too_many, threads + 1 >= too_many);
        let is_back = driver.divide(before, (is_alone, would_contend))?;
        driver.beside.laps.show(endpoint, BOARD_CHANNEL);
        if is_back {
            continue;
        }
        // The updates of one step leave together, unless the number of elements in a frame is fixed: then each is a frame of its own.
        let is_joined = driver.worker.joins_updates();
        if is_joined {
            endpoint.cork();
        }
        driver.throttle.update(before, || endpoint.counters().link);
        let mut outlets = Outlets {
            is_open: driver.throttle.is_open(before),
            endpoint,
            began,
            sent: 0,
        };
        while (driver.beside).take_leaving(|to, datagram| outlets.update(to, *datagram))? {
            idle = false;
        }
        if driver.beside.laps.is_handed_over() {
            driver.throttle.sent(outlets.sent);
            if is_joined {
                endpoint.uncork()?;
            }
            if driver.worker.owes_snapshot(before) {
                // The numbers are needed for a moment; then they are handed over again.
                driver.recall()?;
                driver.worker.snapshot(before);
            } else if driver.beside.laps.rests() {
                endpoint.poll_wait(driver, REST)?;
            } else {
                driver.beside.laps.back_off(idle);
            }
            continue;
        }
        let step = driver.worker.step(&mut outlets)?;
        driver.throttle.sent(outlets.sent);
        if is_joined {
            endpoint.uncork()?;
        }
        driver
            .meter
            .note(driver.worker.is_running(), || endpoint.counters().link);
        match step {
            Step::Again(lap) => {
                if is_contended && (lap || now_ns() - yielded_ns >= YIELD_EVERY_NS) {
                    std::thread::yield_now();
                    yielded_ns = now_ns();
                }
            }
            Step::Rest => drop(endpoint.poll_wait(driver, REST)?),
            Step::Wait => {
                let now = now_ns();
                if now - beat >= HEARTBEAT_NS {
                    beat = now;
                    send_heartbeat(endpoint)?;
                }
                endpoint.poll_wait(driver, if sent { WAIT } else { CONTENDED })?;
            }
            Step::Lap => driver.worker.exchange_blocks()?,
            Step::Iterate => {
                driver.iterate(endpoint)?;
                let link = endpoint.counters().link;
                driver.meter.note(false, || link);
            }
            Step::Build(rows, relaxation) => {
                let missing = WorkerFault::of_judge("rows that are not all of a block");
                let block = rows.make().ok_or(missing)?;
                let built = Sweeper::new(block, relaxation);
                driver.worker.built(built.map_err(WorkerFault::from)?)?;
            }
            Step::Verify => {
                let exact = driver.worker.exact_residual(&mut || {
                    let now = now_ns();
                    if now - beat >= HEARTBEAT_NS {
                        beat = now;
                        let _ = send_heartbeat(endpoint); // the next poll finds the same fault
                    }
                });
                driver.worker.verified(exact);
            }
            Step::Count => {
                let mut stats = stats::count(&endpoint.counters(), true);
                (stats.wire_frames, stats.wire_bytes) = driver.meter.total();
                driver.worker.finish(stats);
            }
            Step::Leave => {
                // A peer that has left by now needs no more messages.
                return match endpoint.flush(FLUSH_WAIT) {
                    Ok(_) | Err(SendError::MessagesLost { .. }) => Ok(()),
                    Err(error) => Err(error.into()),
                };
            }
        }
    }
}

/// Tells the judge that this worker lives.
fn send_heartbeat(endpoint: &mut Endpoint) -> Result<(), SendError> {
    let payload = LapReport::HEARTBEAT.payload();
    Carrier::update(endpoint, &[JUDGE], LapReport::HEARTBEAT.datagram(&payload))?;
    Ok(())
}

/// The worker and the findings of polling.
struct Driver {
    worker: Worker,
    beside: Beside,
    meter: Meter,
    /// Made when they are first needed.
    collectives: Option<Collectives>,
    mailbox: Mailbox,
    throttle: Throttle,
    fault: Option<WorkerFault>,
    /// Since when there is no judge.
    orphaned: Option<Instant>,
}

impl Driver {
    /// Lets a Krylov method iterate; then takes the messages that have arrived meanwhile.
    fn iterate(&mut self, endpoint: &mut Endpoint) -> Result<(), WorkerError> {
        let missing = WorkerFault::of_judge("an epoch without rows for this worker");
        let parts = self.worker.parts().ok_or(missing)?;
        let collectives = match &mut self.collectives {
            Some(collectives) => collectives,
            none => none.insert(Collectives::new(endpoint)?),
        };
        let broken = match Between::form(endpoint, collectives, &mut self.mailbox, parts) {
            Err(broken) => Some(broken),
            Ok(mut between) => {
                let ended = self.worker.iterate(&mut between);
                let (iterations, busy) = between.worked();
                between.part();
                self.worker
                    .note_work(busy, ended.is_err().then_some(iterations));
                match ended {
                    Ok(frozen) => {
                        frozen?;
                        None
                    }
                    Err(broken) => Some(broken),
                }
            }
        };
        match broken {
            None | Some(Broken::Ordered) => {}
            Some(Broken::Lost(peer)) => self.miss(peer),
            Some(Broken::Endpoint(error)) => return Err(error.into()),
            Some(Broken::Group(error)) => return Err(error.into()),
            Some(Broken::Disagreement(error)) => return Err(error.into()),
        }
        for peer in std::mem::take(&mut self.mailbox.lost) {
            self.miss(peer);
        }
        // A judge may have come meanwhile.
        if !endpoint.is_dead(JUDGE) {
            self.orphaned = None;
        }
        for (from, bytes) in std::mem::take(&mut self.mailbox.waiting) {
            self.take(from, &bytes);
        }
        Ok(())
    }

    /// Gives the work to the thread that is to do it; returns whether it came back.
    fn divide(&mut self, now_ns: u64, cores: (bool, bool)) -> Result<bool, WorkerError> {
        let worker = &mut self.worker;
        let Some(executor) = worker.executor() else {
            return Ok(false);
        };
        let here = worker.relaxing();
        let here = here.map(|field| (field.fresh_laps(), field.computed_ns));
        let returned =
            (self.beside.laps).divide(executor, cores, now_ns, here, || worker.hand_over());
        let returned = returned.map_err(WorkerError::Thread)?;
        let is_back = returned.is_some();
        self.take_back(returned)?;
        Ok(is_back)
    }

    /// Takes the work back, if it was handed over.
    fn recall(&mut self) -> Result<(), WorkerFault> {
        let returned = self.beside.laps.recall();
        self.take_back(returned)
    }

    fn take_back(&mut self, returned: Option<(Handover, f64)>) -> Result<(), WorkerFault> {
        let Some(returned) = returned else {
            return Ok(());
        };
        let (field, lap) = self.beside.returned(returned);
        self.worker.take_back(field, lap)
    }

    fn check(&mut self) -> Result<(), WorkerError> {
        match self.fault.take() {
            Some(fault) => Err(fault.into()),
            None => match self.orphaned {
                Some(since) if since.elapsed() >= self.outlives() => match self.worker.deserted() {
                    true => Ok(()),
                    false => Err(WorkerError::JudgeLost),
                },
                _ => Ok(()),
            },
        }
    }

    /// How long to go on without a judge.
    fn outlives(&self) -> Duration {
        Duration::from_millis(self.worker.outlive_ms())
    }

    /// Sends waiting messages while there is room; returns whether all were sent.
    fn send(&mut self, endpoint: &mut Endpoint) -> Result<bool, WorkerError> {
        while let Some(out) = self.worker.out().front() {
            let to = match out.to {
                To::Judge => JUDGE,
                To::Worker(worker) => node(worker),
            };
            let channel = match out.way {
                Way::Control => CONTROL,
                Way::Bulk => BULK,
            };
            match endpoint.try_send(to, channel, &out.bytes) {
                Ok(()) => {}
                // Node 0 is about to tell who a worker is that has joined.
                Err(SendError::WouldBlock { .. } | SendError::UnknownPeer { .. }) => {
                    return Ok(false);
                }
                // `peer_dead` has told the judge, or that it is the judge.
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.worker.out().pop_front();
        }
        Ok(true)
    }

    fn take(&mut self, from: NodeId, bytes: &[u8]) {
        if self.fault.is_none() {
            // Messages may end an epoch, or bring values: both need x.
            let taken = self.recall().and_then(|()| match from {
                JUDGE => self.worker.order(bytes),
                NodeId(worker) => self.worker.note(usize::from(worker) - 1, bytes),
            });
            self.fault = taken.err();
        }
    }

    fn miss(&mut self, peer: NodeId) {
        match peer {
            JUDGE => self.orphaned = self.orphaned.or(Some(Instant::now())),
            NodeId(worker) => self.worker.peer_lost(usize::from(worker) - 1),
        }
    }
}

impl Handler for Driver {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.take(delivery.from, delivery.body.bytes());
    }

    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        match self.beside.laps.is_handed_over() {
            true => self.beside.give(&datagram),
            false => self.worker.datagram(&datagram),
        }
    }

    fn peer_up(&mut self, peer: NodeId) {
        if peer == JUDGE {
            self.orphaned = None;
        }
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        self.miss(peer);
    }
}

/// Sends a worker's updates and reports.
struct Outlets<'a> {
    endpoint: &'a mut Endpoint,
    began: Instant,
    /// Whether updates are sent, and not withheld.
    is_open: bool,
    /// Bytes given to the endpoint.
    sent: usize,
}

impl Carrier for Outlets<'_> {
    type Error = SendError;

    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, SendError> {
        if !self.is_open && update.channel_id != REPORT_CHANNEL {
            return Ok(0);
        }
        let copies = match self.endpoint.broadcasts() {
            true => 1,
            false => readers.len(),
        };
        self.sent += copies * (update.payload.len() + tsumuji_wire::DATAGRAM_HEADER_BYTES);
        Carrier::update(self.endpoint, readers, update)
    }
}

impl Outlet for Outlets<'_> {
    fn report(&mut self, report: &LapReport) -> Result<(), SendError> {
        let payload = report.payload();
        self.update(&[JUDGE], report.datagram(&payload))?;
        Ok(())
    }

    fn now_ns(&mut self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}
