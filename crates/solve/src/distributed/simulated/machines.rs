//! Machines that relax a generated system over a simulated switch, in virtual time: the production engine in its production loop, board, judge and workers.
//! This is their driver, as `run` and `serve` are in production: it carries messages and frames, and lets time pass.
//!
//! Only computing is not done by the clock: an entry of A takes [`Machines::value_ps`], which [`entry_ps`] measures on this machine, and a frame takes
//! [`Machines::frame_ns`] of the core that computes, or of a second one ([`Machines::handover_ns`]). The iteration itself is computed in full, so a run
//! needs the memory of the whole system and, on one core, the time of all machines together.
//!
//! Used by `tsumuji paper relax-…`, a test and an example.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use tsumuji_board::{Carrier, Elements};
use tsumuji_proto::{Channel, Config, Destination, Duration, Instant, NodeId};
pub use tsumuji_sim::Violation;
use tsumuji_sim::{Arrivals, Net, Seed, judged};
use tsumuji_wire::{DATAGRAM_HEADER_BYTES, Datagram};

use crate::distributed::beside::{self, Packet};
use crate::distributed::feed::Feed;
use crate::distributed::field::{JUDGE, Outlet};
use crate::distributed::judge::{Judge, Origin, Stage};
use crate::distributed::message::{LapReport, Order, REPORT_CHANNEL, WorkerStats};
use crate::distributed::step::{Out, Step, To, WorkerFault};
use crate::distributed::worker::Worker;
use crate::distributed::{SolveConfig, in_proportion};
use crate::local::{Inner, Limits, Relaxation, Sweeper};
use crate::report::Reason;
use crate::system::{Generate, Generated, Solution, Source};

/// A step without computing, too, takes time.
const STEP_NS: u64 = 100;
/// Frames are looked for so often.
const QUANTUM: Duration = Duration::from_micros(10);
/// Room of each of the switch's ports: what comes on top is lost, as in small switches.
const PORT_BYTES: usize = 256 << 10;
/// Virtual time that ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// What is simulated: a judge and workers, each a machine of its own.
#[derive(Debug, Clone)]
pub struct Machines {
    /// The system.
    pub system: Generate,
    /// To which solution its right-hand side belongs.
    pub solution: Solution,
    /// Workers; the judge is one machine more.
    pub workers: usize,
    /// Elements in a frame.
    pub elements: Elements,
    /// Longest frame.
    pub frame_bytes: usize,
    /// What a frame takes of a core: of the sender's, and of each receiver's.
    pub frame_ns: u64,
    /// A machine has two cores, one of which receives and sends, as a worker whose second thread computes (`--executor pipeline`): of the one that
    /// computes a frame takes only this much. [`handover_ns`] measures it. `None`: one core does all.
    pub handover_ns: Option<u64>,
    /// From the switch to a node.
    pub delay_us: Range<u64>,
    /// Rate of each cable in Mbit/s; 0: no limit.
    pub rate_mbit: u64,
    /// Frames that are lost.
    pub loss_percent: u32,
    /// What an entry of A takes, in picoseconds.
    pub value_ps: u64,
    /// This worker (from 1) computes at half speed.
    pub slow: Option<usize>,
    /// Of every random choice.
    pub seed: u64,
}

/// The run's result.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Why it ended.
    pub reason: Reason,
    /// Exact relative residual.
    pub residual: f64,
    /// Laps of each worker.
    pub laps: Vec<u64>,
}

/// Result of a simulated run, with times and traffic.
#[derive(Debug)]
pub struct Found {
    /// The run's result.
    pub summary: Summary,
    /// Virtual time from the first lap to the last exact residual.
    pub seconds: f64,
    /// The same without the exact residual that passed, and the pause before it.
    pub iterating_seconds: f64,
    /// Frames of all nodes.
    pub frames: u64,
    /// Of these, lost ones.
    pub lost_frames: u64,
    /// Best-effort frames of the workers; a broadcast counts once.
    pub updates: u64,
    /// Their bytes, without headers of the link.
    pub update_bytes: u64,
}

/// Why a run has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelaxError {
    /// The caller wanted that.
    #[error("stopped")]
    Stopped,
    /// The machines cannot begin, or do not end.
    #[error("{0}")]
    NoResult(String),
    /// The simulation is wrong.
    #[error(transparent)]
    Fault(#[from] Violation),
}

impl From<String> for RelaxError {
    fn from(reason: String) -> Self {
        Self::NoResult(reason)
    }
}

impl From<WorkerFault> for RelaxError {
    fn from(fault: WorkerFault) -> Self {
        Self::NoResult(fault.to_string())
    }
}

impl Machines {
    /// Has second cores receive and send the frames of a dense system, of a fixed number of elements, where that takes less than half of the time for
    /// computing. Otherwise they would be the bottleneck, and frames late: one core does all.
    pub fn with_second_cores(mut self) -> Self {
        let Elements::Fixed(elements) = self.elements else {
            return self;
        };
        let rows = (self.system.n() / self.workers) as u64;
        let frames = (self.workers as u64 - 1) * rows.div_ceil(elements as u64);
        let lap_ps = rows * self.system.n() as u64 * self.value_ps;
        if self.system.is_dense() && 2_000 * frames * self.frame_ns < lap_ps {
            self.handover_ns = Some(handover_ns(elements));
        }
        self
    }

    fn config(&self) -> SolveConfig {
        SolveConfig {
            inner: Inner::Sweep,
            elements: self.elements,
            combines: false,
            ..SolveConfig::default()
        }
    }

    /// Runs them to the end, or until `stop` returns true.
    pub fn relax(&self, stop: &dyn Fn() -> bool) -> Result<Found, RelaxError> {
        judged(self.seed, || self.run(stop))?
    }

    fn run(&self, stop: &dyn Fn() -> bool) -> Result<Found, RelaxError> {
        let (n, config) = (self.system.n(), self.config());
        if !(1..=n).contains(&self.workers) {
            return Err("a worker needs a row at least".to_owned().into());
        }
        let made = Generated::new(self.system, self.seed, self.solution);
        let limits = Limits::new(config.tol, config.max_laps).expect("the defaults are in range");
        let ranges = in_proportion(n, &vec![1.0; self.workers]);
        let judge = Judge::new(limits, &config, (ranges, Origin::default()), None);
        let mut net = Net::new(Seed(self.seed))
            .in_program()
            .rate_mbit(self.rate_mbit)
            .delay_us(self.delay_us.clone())
            .switch_buffer(PORT_BYTES)
            .patience(PATIENCE);
        let engine = Config {
            frame_bytes: self.frame_bytes,
            keep_alive: Duration::from_secs(1),
            dead_after: Duration::from_secs(10),
            receive_frames: 4096,
            ..tsumuji_sim::config()
        };
        let ids = net.nodes(self.workers + 1, &engine);
        for (place, id) in ids.iter().enumerate() {
            if stop() {
                return Err(RelaxError::Stopped);
            }
            for peer in &ids[place + 1..] {
                net.connect(*id, *peer);
            }
            net.set_frame_cost(*id, Duration::from_nanos(self.frame_ns));
        }
        if !net.run_until_up_unless(stop) {
            return Err(RelaxError::Stopped);
        }
        net.conditions().loss_ppm = self.loss_percent * 10_000;
        let run = Run {
            net,
            ids,
            machines: self,
            source: &Source::Generated(made),
            stop,
            updates: 0,
            update_bytes: 0,
        };
        run.drive(judge)
    }
}

struct Node {
    id: NodeId,
    worker: Worker,
    /// Stored entries of its rows.
    entries: f64,
    free_at: Instant,
    computed_ns: u64,
    has_left: bool,
}

struct Run<'m> {
    net: Net,
    ids: Vec<NodeId>,
    machines: &'m Machines,
    source: &'m Source,
    /// Asked wherever work has been done that takes time of this machine.
    stop: &'m dyn Fn() -> bool,
    updates: u64,
    update_bytes: u64,
}

/// Messages that have come to a node: sender and content.
type Messages = Vec<(usize, Vec<u8>)>;

/// Catches what a step sends.
struct Catch {
    updates: Vec<Packet>,
    /// What the worker's clock shows.
    now_ns: u64,
    /// What a frame takes, and what relaxing as many rows as in the last step does.
    frame_ns: u64,
    compute_ns: u64,
    /// Whether the clock was asked: between the first and the second question rows are relaxed.
    asked: u32,
}

impl Carrier for Catch {
    type Error = Infallible;

    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, Infallible> {
        self.now_ns += self.frame_ns;
        let mut packet = Packet::EMPTY;
        packet.fill(readers, &update);
        self.updates.push(packet);
        Ok(0)
    }
}

impl Outlet for Catch {
    fn report(&mut self, report: &LapReport) -> Result<(), Infallible> {
        let payload = report.payload();
        self.update(&[JUDGE], report.datagram(&payload)).map(drop)
    }

    fn now_ns(&mut self) -> u64 {
        self.asked += 1;
        if self.asked == 2 {
            self.now_ns += self.compute_ns;
        }
        self.now_ns
    }
}

impl Node {
    /// Does one step; returns how many entries of A it read. `None`: it waits until something arrives.
    fn step(&mut self, catch: &mut Catch) -> Result<Option<f64>, RelaxError> {
        let worker = &mut self.worker;
        let laps = |worker: &Worker| worker.relaxing().map_or(0.0, |field| field.laps());
        let before = laps(worker);
        let Ok(step) = worker.step(catch);
        match step {
            Step::Again(_) | Step::Lap => {
                let done = laps(worker) - before;
                if matches!(step, Step::Lap) {
                    worker.exchange_blocks()?;
                }
                return Ok(Some(done * self.entries));
            }
            Step::Build(rows, relaxation) => {
                let block = rows.make();
                let block = block.ok_or_else(|| "rows that are not all of a block".to_owned())?;
                self.entries = block.stored() as f64;
                let built = Sweeper::new(block, relaxation).map_err(WorkerFault::from)?;
                worker.built(built)?;
            }
            Step::Verify => {
                let exact = worker.exact_residual(&mut || ());
                worker.verified(exact);
                return Ok(Some(self.entries));
            }
            Step::Count => worker.finish(WorkerStats::default()),
            Step::Rest | Step::Wait => return Ok(None),
            Step::Leave => self.has_left = true,
            Step::Iterate => unreachable!("only relaxation is simulated"),
        }
        Ok(Some(0.0))
    }
}

impl Run<'_> {
    fn drive(mut self, mut judge: Judge) -> Result<Found, RelaxError> {
        let start = self.net.now();
        let capacity_bytes = self
            .net
            .engine(self.ids[0])
            .map_or(0, |engine| engine.datagram_capacity_bytes());
        let mut nodes: Vec<Node> = (0..self.machines.workers)
            .map(|worker| Node {
                id: self.ids[worker + 1],
                worker: Worker::new(worker, capacity_bytes),
                entries: 0.0,
                free_at: start,
                computed_ns: 0,
                has_left: false,
            })
            .collect();
        let mut iterated: Option<(Instant, Instant)> = None;
        loop {
            self.send_orders(&mut judge);
            self.net.run_for(QUANTUM);
            let now = self.net.now();
            self.check_wanted()?;
            if now.since(start) >= PATIENCE {
                return Err("it does not end within an hour of virtual time"
                    .to_owned()
                    .into());
            }
            let (messages, frames) = self.arrived(self.ids[0]);
            for (from, bytes) in messages {
                let taken = judge.answer(from - 1, &bytes);
                taken.map_err(|fault| format!("{fault:?}"))?;
            }
            for frame in frames {
                let Datagram { epoch, lap, .. } = frame.head;
                if frame.head.channel_id == REPORT_CHANNEL
                    && let Some(report) = LapReport::parse(epoch, lap, &frame.payload)
                {
                    judge.report(usize::from(frame.head.source.0) - 1, report);
                }
            }
            if judge.stage() == Stage::Iterating {
                iterated = Some((iterated.map_or(now, |(first, _)| first), now));
            }
            for (at, node) in nodes.iter_mut().enumerate() {
                self.advance(at, node, now)?;
            }
            if judge.stage() != Stage::Done {
                continue;
            }
            let ended = judge.into_ended().expect("done");
            let (first, last) = iterated.ok_or_else(|| "it never iterated".to_owned())?;
            let seconds = |until: Instant| until.since(first).as_nanos() as f64 / 1e9;
            return Ok(Found {
                summary: Summary {
                    reason: ended.reason,
                    residual: ended.residual,
                    laps: ended.stats.iter().map(|worker| worker.laps).collect(),
                },
                seconds: seconds(now),
                iterating_seconds: seconds(last),
                frames: self.net.traffic().sent_frames,
                lost_frames: self.net.traffic().lost,
                updates: self.updates,
                update_bytes: self.update_bytes,
            });
        }
    }

    fn check_wanted(&self) -> Result<(), RelaxError> {
        if (self.stop)() {
            return Err(RelaxError::Stopped);
        }
        Ok(())
    }

    /// Lets a worker do what it can until now.
    fn advance(&mut self, at: usize, node: &mut Node, now: Instant) -> Result<(), RelaxError> {
        if node.has_left || node.free_at > now {
            return Ok(());
        }
        // It was idle until now, or computed until then.
        let quantum_ago = Instant::from_nanos(now.as_nanos() - QUANTUM.as_nanos());
        node.free_at = node.free_at.max(quantum_ago);
        let (messages, frames) = self.arrived(node.id);
        for (from, bytes) in messages {
            match from.checked_sub(1) {
                None => node.worker.order(&bytes)?,
                Some(worker) => node.worker.note(worker, &bytes)?,
            }
        }
        // Receiving takes time of the core that computes. A second core's time passes in the net.
        let frame_ns = (self.machines.handover_ns).unwrap_or(self.machines.frame_ns);
        let received_ns = frames.len() as u64 * frame_ns;
        node.free_at += Duration::from_nanos(received_ns);
        node.worker.exchanged(received_ns);
        for frame in frames {
            node.worker.datagram(&frame.datagram());
        }
        let half = if self.machines.slow == Some(at + 1) {
            2.0
        } else {
            1.0
        };
        while node.free_at <= now && !node.has_left {
            let mut catch = Catch {
                updates: Vec::new(),
                now_ns: node.free_at.as_nanos(),
                frame_ns,
                compute_ns: node.computed_ns,
                asked: 0,
            };
            let entries = match node.step(&mut catch)? {
                Some(entries) => {
                    self.check_wanted()?;
                    entries
                }
                None => {
                    node.free_at = now + Duration::from_nanos(1);
                    0.0
                }
            };
            let sent = catch.updates.len() as u64 * frame_ns;
            let computed = (entries * half * self.machines.value_ps as f64 / 1e3) as u64;
            node.computed_ns = computed;
            node.free_at += Duration::from_nanos(STEP_NS + computed + sent);
            for update in catch.updates {
                self.publish(node.id, &update);
            }
        }
        let receiver = |to| match to {
            To::Judge => 0,
            To::Worker(worker) => worker + 1,
        };
        for Out { to, bytes, .. } in node.worker.out().drain(..) {
            self.send(at + 1, receiver(to), &bytes);
        }
        Ok(())
    }

    fn send_orders(&mut self, judge: &mut Judge) {
        while let Some((to, mut order)) = judge.out().pop_front() {
            let mut feed = None;
            if let Order::Setup(setup) = &mut order {
                feed = Some(Feed::new(self.source, setup, judge.known_x(), usize::MAX));
            }
            self.send(0, to + 1, &order.encode());
            while let Some((bytes, _)) = feed.as_mut().and_then(Feed::next) {
                self.send(0, to + 1, &bytes);
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, bytes: &[u8]) {
        let (from, to) = (self.ids[from], self.ids[to]);
        self.net.send(from, to, Channel::ordered(0), bytes);
    }

    fn publish(&mut self, from: NodeId, update: &Packet) {
        let readers = &update.to;
        // One frame reaches all where all but the judge read it.
        let targets = if readers.len() > 1 && readers.len() + 2 == self.ids.len() {
            vec![Destination::Broadcast]
        } else {
            readers.iter().copied().map(Destination::Peer).collect()
        };
        for to in targets {
            self.updates += 1;
            self.update_bytes += (DATAGRAM_HEADER_BYTES + update.payload.len()) as u64;
            // A frame that finds no room is lost, as in production.
            let _ = self.net.publish_given(from, to, update.datagram());
        }
    }

    /// What has come to a node since the last call; nothing of it is kept.
    fn arrived(&mut self, id: NodeId) -> (Messages, Vec<Packet>) {
        let Arrivals {
            deliveries,
            bodies,
            datagrams,
            payloads,
            ..
        } = self.net.take_arrivals(id);
        let sources = deliveries
            .iter()
            .map(|delivery| usize::from(delivery.from.0));
        let frames = datagrams.into_iter().zip(payloads);
        let frames = frames.map(|(stamp, payload)| Packet {
            to: Vec::new(),
            head: Datagram {
                source: stamp.source,
                incarnation: stamp.incarnation,
                channel_id: stamp.channel_id,
                epoch: stamp.epoch,
                lap: stamp.lap,
                key: stamp.key,
                payload: &[],
            },
            payload,
        });
        (sources.zip(bodies).collect(), frames.collect())
    }
}

/// Nanoseconds that the computing thread of a worker takes for a frame of `elements` that another thread received, on this machine: the least of a few
/// trials.
pub fn handover_ns(elements: usize) -> u64 {
    const TRIALS: usize = 5;
    let trials = (0..TRIALS).map(|_| beside::handover_ns(elements));
    trials.min().expect("a trial").max(1)
}

/// Picoseconds that this machine takes for an entry when as many `threads` at once sweep the rows of one of `workers` workers each, or the first of these
/// rows where they are more than half a gigabyte, in steps of `step_rows`. `None` if `stop` returned true.
///
/// # Panics
/// If there are more workers than rows, more threads than workers, or none of either.
pub fn entry_ps(
    system: &Generate,
    (workers, threads): (usize, usize),
    step_rows: usize,
    stop: &(dyn Fn() -> bool + Sync),
) -> Option<u64> {
    const ENTRIES: usize = 64 << 20;
    const LAPS: usize = 3;
    let n = system.n();
    assert!((1..=workers).contains(&threads) && workers <= n);
    let rows = if system.is_dense() {
        (ENTRIES / n).clamp(1, n / workers)
    } else {
        (n / workers).min(4 << 20)
    };
    if stop() {
        return None;
    }
    let gate = Barrier::new(threads);
    // One a lap: all threads must see the same, or some wait for others that have ended.
    let stopped = [const { AtomicBool::new(false) }; LAPS];
    let sweep = |thread: usize| {
        let rows = thread * rows..(thread + 1) * rows;
        let block = system.rows(rows, 1, Solution::Ones);
        let relaxation = Relaxation::new(Inner::Sweep, 1.0).expect("omega is 1");
        let mut sweeper = Sweeper::new(block, relaxation).expect("a good diagonal");
        let mut x = vec![0.0; n];
        let entries = sweeper.block().stored();
        let lap = |lap: usize| {
            if thread == 0 {
                stopped[lap].store(stop(), Ordering::Relaxed);
            }
            gate.wait(); // orders the flag, too
            if stopped[lap].load(Ordering::Relaxed) {
                return None;
            }
            let began = std::time::Instant::now();
            let laps: Vec<_> = sweeper.lap(step_rows).collect();
            for rows in laps {
                sweeper.relax(rows, &mut x);
            }
            Some(began.elapsed().as_nanos() as f64)
        };
        let all: Option<Vec<f64>> = (0..LAPS).map(lap).collect();
        let least = all?.into_iter().fold(f64::INFINITY, f64::min);
        Some(1e3 * least / entries as f64)
    };
    let sweep = &sweep;
    let slowest = std::thread::scope(|scope| {
        let team: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || sweep(thread)))
            .collect();
        let each = team
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        let each: Option<Vec<f64>> = each.collect();
        each.map(|each| each.into_iter().fold(0.0, f64::max))
    });
    slowest.map(|ps| ps.max(1.0) as u64)
}
