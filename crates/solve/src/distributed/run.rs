//! The judge with an endpoint and a clock: distributes rows, carries orders and answers, supervises the workers.
//!
//! Called by the command line. The judge's node computes nothing while workers iterate: it sleeps between polls, so that workers have the cores. Rows
//! leave in messages of bounded size, or of one row, several workers in turn, each as fast as it takes them; the matrix is never copied as a whole here.

use super::choice::{Advice, Choice};
use super::config::{Shares, SolveConfig};
use super::error::SolveError;
use super::feed::Feed;
use super::field::node;
use super::judge::{Judge, JudgeFault, Origin, Stage};
use super::message::{LapReport, Order, REPORT_CHANNEL, RowSource, WorkerStats};
use super::pace::Pace;
use super::ranges;
use super::stage_clock::StageClock;
use super::stats;
use super::succession;
use crate::local::{Limits, Relaxation};
use crate::report::{Outcome, Progress, Reason};
use crate::system::{PartitionError, Scaling, Source, partition_by};
use std::ops::Range;
use std::time::{Duration, Instant};
use tsumuji_node::{
    Channel, Context, Datagram, Delivery, DeliveryClass, Endpoint, Handler, NodeId, Priority,
    SendError,
};

/// Orders and short answers.
pub(super) const CONTROL: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 1);
/// Rows, blocks, solutions.
pub(super) const BULK: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 1);

/// Bytes of rows in one message: large enough to be cheap, small enough that four workers' queues stay below 8 MiB.
const MESSAGE_BYTES: usize = 256 << 10;
/// Bytes of rows queued to one worker before others are served: enough for the pause between two polls.
const QUEUE_BYTES: usize = 1 << 20;
/// Pause between two polls while workers iterate. Nothing is urgent then; a wake-up for each report would cost workers' time.
const POLL_EVERY: Duration = Duration::from_micros(500);
/// Longest wait for an answer, which ends it.
const WAIT: Duration = Duration::from_millis(2);
/// Between two calls of the progress callback.
const PROGRESS: Duration = Duration::from_millis(50);
/// Time between two checks whether a worker's process is alive.
const CHECK: Duration = Duration::from_millis(20);
/// After a worker fell silent: how long its launcher is asked for the cause before the run ends without one.
const CAUSE: Duration = Duration::from_secs(1);
/// Why a worker is taken for lost that its launcher knows nothing of.
const SILENT: &str = "nothing is heard from it any more";
/// If the clock was not read for so long, this process was stopped, perhaps with its workers: nobody could be heard.
const STOPPED: Duration = Duration::from_secs(2);
/// A worker is silent if it was not heard of for so many of its longest pauses so far.
const PAUSES: u32 = 8;
/// Preparing rows may take so many times as long as it took first.
const LOADINGS: u32 = 4;

/// How long to wait for the acknowledgement of the last orders.
const FLUSH_WAIT: Duration = Duration::from_millis(500);

/// What a run begins with.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// x, if not 0.
    pub x: Option<Vec<f64>>,
    /// The workers wait for a judge: theirs died ([`SolveConfig::outlive_ms`]). They keep their rows and their x.
    pub succeeds: bool,
}

/// What a run tells, and asks, while it runs.
pub struct Watch<'a> {
    /// Called a few times a second.
    pub progress: &'a mut dyn FnMut(Progress),
    /// Which workers' processes have ended since the last call, counted from 0, and how.
    pub ended: Ended<'a>,
    /// Whether the user wants to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// The last known x, as often as `SolveConfig::checkpoint_ms` asks for, and how often to call this; not of one moment.
    pub checkpoint: Option<Checkpoint<'a>>,
}

/// How often, and what is done with x.
pub type Checkpoint<'a> = (Duration, &'a mut dyn FnMut(&[f64]));

/// Workers whose processes have ended since the last call, and how.
type Ended<'a> = &'a mut dyn FnMut() -> Vec<(usize, String)>;

/// Result of a distributed run.
#[derive(Debug, Clone, PartialEq)]
pub struct Solved {
    /// The outcome, as in any mode.
    pub outcome: Outcome,
    /// Counters of each worker that was there in the end.
    pub workers: Vec<WorkerStats>,
    /// Workers that were lost on the way.
    pub lost_workers: usize,
    /// Workers that joined on the way and got rows.
    pub joined: usize,
    /// Counters of the judge; its laps, datagrams and elements are 0.
    pub judge: WorkerStats,
}

impl Solved {
    fn total(&self, counter: fn(&WorkerStats) -> u64) -> u64 {
        counter(&self.judge) + self.workers.iter().map(counter).sum::<u64>()
    }

    /// Frames given to links by judge and workers, of any kind.
    pub fn frames_sent(&self) -> u64 {
        self.total(|stats| stats.frames_sent)
    }

    /// Frames known to be lost.
    pub fn frames_lost(&self) -> u64 {
        self.total(|stats| stats.frames_lost)
    }

    /// Bytes given to links by judge and workers.
    pub fn bytes_sent(&self) -> u64 {
        self.total(|stats| stats.bytes_sent)
    }
}

/// Solves `source` with all other members of the cluster as workers, from x = 0 or as `start` says.
///
/// A run goes on without workers that are lost, as long as one is left. When `watch.stop` returns true the run ends with the x that it has,
/// verified; before workers iterate, as [`SolveError::Interrupted`]. Workers run [`worker_main`](super::worker_main).
pub fn run(
    endpoint: &mut Endpoint,
    source: &Source,
    config: &SolveConfig,
    start: Start,
    watch: Watch<'_>,
) -> Result<Solved, SolveError> {
    if endpoint.me() != NodeId(0) {
        return Err(SolveError::NotTheJudge { me: endpoint.me() });
    }
    let limits = Limits::new(config.tol, config.max_laps)?;
    Relaxation::new(config.inner, config.omega)?;
    let workers = endpoint.members().len() - 1;
    // It takes a pass over the system, and only another judge asks for it.
    let system = if start.succeeds || config.outlive_ms > 0 {
        succession::fingerprint(source)
    } else {
        0
    };
    let origin = Origin {
        system,
        first: now_ms(),
        first_elements: Some(endpoint.tuning().elements),
    };
    let scaling = source.scaling();
    let x = start.x.map(|x| match scaling {
        Some(scaling) => scaling.scaled(&x),
        None => x,
    });
    let judge = if start.succeeds {
        let lease = Duration::from_millis(config.lease_ms);
        let n = source.rows();
        let told = succession::survey(endpoint, (n, origin.system), lease)?;
        let origin = Origin {
            first: succession::first(origin.first, &told),
            ..origin
        };
        Judge::succeeding(limits, config, (n, origin), &told, x)
    } else {
        let ranges = share_out(source, config, workers)?;
        Judge::new(limits, config, (ranges, origin), x)
    };
    let mut bench = Bench {
        feeds: (0..workers).map(|_| None).collect(),
        bytes: (0, 0),
        heard: vec![Heard::now(); workers],
        awake_at: Instant::now(),
        judge,
        source,
        up: Vec::new(),
        choice: Choice::default(),
        first_loading: None,
        fault: None,
    };
    let mut clock = StageClock::new();
    let result = bench.drive(endpoint, &mut clock, watch, config);
    if let Err(error) = result {
        bench.abort(endpoint, &error);
        if !bench.ends_with_known_x(&error) {
            return Err(error);
        }
    } else {
        match endpoint.flush(FLUSH_WAIT) {
            // A worker that has left had its order to leave: only its last acknowledgement got lost.
            Ok(_) | Err(SendError::MessagesLost { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let ended = bench.judge.into_ended().expect("the run is done");
    let x = Scaling::undo(scaling, ended.x);
    Ok(Solved {
        outcome: Outcome {
            converged: ended.reason.is_converged(),
            reason: ended.reason,
            method: ended.method,
            residual: ended.residual,
            laps: ended.stats.iter().map(|worker| worker.laps).collect(),
            verifications: ended.verifications,
            seconds: clock.seconds,
            notes: ended.notes,
            x,
        },
        workers: ended.stats,
        lost_workers: ended.lost,
        joined: ended.joined,
        judge: stats::count(&endpoint.counters(), false),
    })
}

/// The clock's milliseconds, which go round in seven weeks. Divisions and epochs take milliseconds each, so that those of a later judge are above all
/// that an earlier one can have reached.
fn now_ms() -> u32 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.map_or(0, |since| since.as_millis() as u32)
}

/// Rows of each worker.
fn share_out(
    source: &Source,
    config: &SolveConfig,
    workers: usize,
) -> Result<Vec<Range<usize>>, PartitionError> {
    let weights = config
        .weights(workers)
        .unwrap_or_else(|| vec![1.0; workers]);
    match source {
        Source::System(system) => partition_by(&system.matrix, &weights),
        Source::Generated(_) => {
            // Rows of generated systems are all about equally long.
            let rows = source.rows();
            match workers {
                0 => Err(PartitionError::NoWorkers),
                _ if workers > rows => Err(PartitionError::MoreWorkersThanRows { workers, rows }),
                _ => Ok(ranges::in_proportion(rows, &weights)),
            }
        }
    }
}

/// When a worker was last heard of.
#[derive(Debug, Clone, Copy)]
struct Heard {
    at: Instant,
    longest: Duration,
    /// Not heard of for half of a lease when another was taken for lost: it has no more time than before, whatever the stage.
    suspect: bool,
}

impl Heard {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            longest: Duration::ZERO,
            suspect: false,
        }
    }
}

/// The judge and its driver's state.
struct Bench<'a> {
    judge: Judge,
    source: &'a Source,
    /// Rows and values still to be sent to each worker.
    feeds: Vec<Option<Feed<'a>>>,
    /// Bytes of rows sent, and to be sent.
    bytes: (u64, u64),
    heard: Vec<Heard>,
    /// When this process checked for reports last.
    awake_at: Instant,
    /// Nodes that are new here.
    up: Vec<usize>,
    choice: Choice,
    /// How long the first division took until all were ready.
    first_loading: Option<Duration>,
    fault: Option<JudgeFault>,
}

impl Bench<'_> {
    fn drive(
        &mut self,
        endpoint: &mut Endpoint,
        clock: &mut StageClock,
        watch: Watch<'_>,
        config: &SolveConfig,
    ) -> Result<(), SolveError> {
        let Watch {
            progress,
            ended,
            stop,
            mut checkpoint,
        } = watch;
        let mut stopping = false;
        let lease = Duration::from_millis(config.lease_ms);
        let (mut pace, mut saved) = (Pace::new(Instant::now()), Instant::now());
        let (mut checked, mut shown) = (Instant::now(), Instant::now());
        let mut is_idle = false;
        loop {
            let waits = match self.judge.stage() {
                // While queues are full it waits for acknowledgements, which let the next rows go.
                Stage::Distributing if !is_idle && self.feeds.iter().any(Option::is_some) => {
                    Duration::ZERO
                }
                Stage::Iterating => Duration::ZERO,
                _ => WAIT,
            };
            let done = if waits.is_zero() {
                endpoint.poll(self)?
            } else {
                endpoint.poll_wait(self, waits)?
            };
            if let Some(fault) = self.fault.take() {
                return Err(self.explain(endpoint, fault, ended));
            }
            self.welcome(endpoint);
            if self.first_loading.is_none() && self.judge.stage() != Stage::Distributing {
                self.first_loading = Some(clock.began.elapsed());
            }
            clock.note(self.judge.stage());
            let sent = self.send_orders(endpoint, ended)? | self.feed(endpoint)?;
            if self.judge.stage() == Stage::Done && self.judge.out().is_empty() {
                return Ok(());
            }
            let now = self.now_without_stops();
            if now - checked >= CHECK {
                checked = now;
                if !stopping && stop() {
                    stopping = true;
                    if !self.judge.interrupt() {
                        return Err(SolveError::Interrupted);
                    }
                }
                for (worker, what) in ended() {
                    if let Err(fault) = self.judge.lost(worker, &what) {
                        return Err(
                            self.explain(endpoint, fault, &mut || vec![(worker, what.clone())])
                        );
                    }
                }
                self.check_leases(lease);
                self.choose(endpoint, now, config);
                match self.judge.stage() {
                    _ if config.shares != Shares::Measured => {}
                    Stage::Distributing => pace.rest(now),
                    Stage::Iterating => {
                        if let Some(speeds) = pace.observe(now, &self.judge.paces()) {
                            self.judge.reshare(&speeds);
                        }
                    }
                    _ => {}
                }
                if let (Some((every, save)), Some(x)) = (&mut checkpoint, self.judge.whole_x())
                    && now - saved >= *every
                {
                    saved = now;
                    match self.source.scaling() {
                        Some(scaling) => save(&scaling.unscaled(x)),
                        None => save(x),
                    }
                }
            }
            if now - shown >= PROGRESS && self.judge.stage() == Stage::Iterating {
                shown = now;
                if let Some((laps_min, laps_max, residual_estimate)) = self.judge.progress() {
                    progress(Progress {
                        distributed: 1.0,
                        laps_min,
                        laps_max,
                        residual_estimate,
                        elapsed: now - clock.began,
                    });
                }
            }
            if now - shown >= PROGRESS && self.judge.stage() == Stage::Distributing {
                shown = now;
                let (sent, all) = self.bytes;
                progress(Progress {
                    distributed: if all > 0 {
                        sent as f64 / all as f64
                    } else {
                        0.0
                    },
                    laps_min: 0,
                    laps_max: 0,
                    residual_estimate: f64::NAN,
                    elapsed: now - clock.began,
                });
            }
            is_idle = done == 0 && !sent;
            if is_idle && self.judge.stage() == Stage::Iterating {
                // Not in the link's `wait`: each of the workers' reports would wake this thread, at their cost.
                std::thread::sleep(POLL_EVERY);
            }
        }
    }

    /// Looks whether another method would take less time.
    fn choose(&mut self, endpoint: &Endpoint, now: Instant, config: &SolveConfig) {
        // Where shares follow the speeds of workers, those come first.
        if !self.judge.may_relax() || config.shares == Shares::Measured {
            return self.choice.rest();
        }
        let Some((_, _, residual)) = self.judge.progress() else {
            return;
        };
        let workers = self.judge.paces();
        let observed = (self.choice).observe(now, (residual, config.tol), &workers);
        let Some(mut measured) = observed else { return };
        let flows = (0..workers.len()).filter_map(|worker| endpoint.flow(node(worker)));
        let round_trip = flows.map(|flow| flow.rtt.as_nanos()).max().unwrap_or(0);
        measured.note_round_trip(round_trip as f64 / 1e9);
        measured.loss = self.judge.loss();
        match self.choice.conclude(&measured, self.source) {
            Some(Advice::Relax(why)) => self.judge.relax(why),
            Some(Advice::Tell(note)) => self.judge.tell(note),
            None => {}
        }
    }

    /// Gives rows to nodes that have joined.
    fn welcome(&mut self, endpoint: &mut Endpoint) {
        if self.up.is_empty() {
            return;
        }
        endpoint.update_members();
        self.up.sort_unstable();
        for worker in std::mem::take(&mut self.up) {
            if worker > self.heard.len() {
                self.up.push(worker); // one whose number is beyond the next waits until the others are up
            } else if worker == self.heard.len() {
                self.heard.push(Heard::now());
                self.feeds.push(None);
                self.judge.joined(worker);
            }
        }
    }

    /// The present time. Time in which this process was stopped is taken off the silence of workers.
    fn now_without_stops(&mut self) -> Instant {
        let now = Instant::now();
        let pause = now - self.awake_at;
        if pause >= STOPPED {
            for heard in &mut self.heard {
                heard.at = (heard.at + pause).min(now);
            }
        }
        self.awake_at = now;
        now
    }

    /// Notes that a worker was heard of.
    fn note(&mut self, worker: usize) {
        let is_iterating = self.judge.stage() == Stage::Iterating;
        let now = self.now_without_stops();
        if let Some(heard) = self.heard.get_mut(worker) {
            if is_iterating {
                heard.longest = heard.longest.max(now - heard.at);
            }
            heard.at = now;
            heard.suspect = false;
        }
    }

    /// Goes on without workers that were not heard of for `lease`; until the first rows are loaded only links and launcher report losses.
    fn check_leases(&mut self, lease: Duration) {
        let of_stage = match self.judge.stage() {
            Stage::Iterating | Stage::Verifying | Stage::Collecting => lease,
            // Workers are silent while they prepare rows.
            Stage::Distributing => match self.first_loading {
                Some(first) => LOADINGS * lease.max(first),
                None => return,
            },
            Stage::Done => return,
        };
        for worker in 0..self.heard.len() {
            let heard = self.heard[worker];
            let silence = heard.at.elapsed();
            let own = if heard.suspect { lease } else { of_stage };
            if silence > own.max(PAUSES * heard.longest) && self.judge.counts_on(worker) {
                let cause = format!("not heard of for {:.1} s", silence.as_secs_f64());
                if let Err(fault) = self.judge.unheard_of(worker, &cause) {
                    self.fault = Some(fault);
                    return;
                }
                for heard in &mut self.heard {
                    heard.suspect = heard.at.elapsed() > lease / 2;
                    if !heard.suspect {
                        heard.at = Instant::now();
                    }
                }
            }
        }
    }

    /// Sends orders while there is room; returns whether any was sent.
    fn send_orders(
        &mut self,
        endpoint: &mut Endpoint,
        ended: Ended<'_>,
    ) -> Result<bool, SolveError> {
        let mut sent = false;
        while let Some((worker, order)) = self.judge.out().pop_front() {
            let mut order = order;
            let channel = if let Order::Setup(setup) = &mut order {
                let x = self.judge.known_x();
                self.feeds[worker] = Some(Feed::new(self.source, setup, x, MESSAGE_BYTES));
                // One that is silent already gets no new time by being told something.
                if !self.heard[worker].suspect {
                    self.heard[worker] = Heard::now();
                }
                BULK
            } else {
                CONTROL
            };
            match endpoint.try_send(node(worker), channel, &order.encode()) {
                Ok(()) => {
                    sent = true;
                    if let Order::Setup(setup) = &order
                        && let RowSource::Messages { bytes } = &setup.rows
                    {
                        self.bytes.1 += bytes.iter().sum::<u64>();
                    }
                }
                // Told if that is possible: nobody waits for a worker that was taken for lost.
                Err(_) if matches!(order, Order::Abort { .. }) => {}
                Err(SendError::WouldBlock { .. }) => {
                    self.judge.out().push_front((worker, order));
                    break;
                }
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                    if let Err(fault) = self.judge.lost(worker, SILENT) {
                        return Err(self.explain(endpoint, fault, ended));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    /// Sends each worker the next message of its rows if it has room; returns whether any was sent.
    fn feed(&mut self, endpoint: &mut Endpoint) -> Result<bool, SolveError> {
        let mut sent = false;
        if !self.judge.out().is_empty() {
            return Ok(false); // the setup goes first
        }
        for (worker, feed) in self.feeds.iter_mut().enumerate() {
            let Some(orders) = feed else { continue };
            if endpoint.queued_bytes(node(worker)) >= QUEUE_BYTES {
                continue;
            }
            match orders.next() {
                // A long row may not fit the queue behind others, and the judge does not wait for one worker.
                Some(order)
                    if order.0.len() > QUEUE_BYTES && endpoint.queue_length(node(worker)) > 0 =>
                {
                    orders.put_back(order);
                }
                Some((order, rows)) => {
                    self.bytes.0 += rows as u64;
                    match endpoint.send_shared(node(worker), BULK, order.into()) {
                        Ok(()) => sent = true,
                        // `peer_dead` reports the loss.
                        Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                            *feed = None;
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                None => *feed = None,
            }
        }
        Ok(sent)
    }

    /// A fault as an error with names, and with its cause if the launcher knows it.
    fn explain(
        &mut self,
        endpoint: &mut Endpoint,
        fault: JudgeFault,
        ended: Ended<'_>,
    ) -> SolveError {
        let name = |worker: usize| endpoint.name_of(node(worker)).to_owned();
        match fault {
            JudgeFault::Disagreement => SolveError::Disagreement,
            JudgeFault::Protocol { worker, what } => SolveError::Protocol {
                worker: name(worker),
                what,
            },
            JudgeFault::Worker { worker, why } => SolveError::WorkerFailed {
                worker: name(worker),
                why,
            },
            JudgeFault::Missed { worker } => {
                let worker = name(worker);
                let began = Instant::now();
                while began.elapsed() < CAUSE {
                    if let Some((_, what)) = ended().pop() {
                        return SolveError::WorkerEnded(what);
                    }
                    // Goes on polling, so that the other workers do not take this node for dead, too.
                    if endpoint.poll(self).is_err() {
                        break;
                    }
                    std::thread::sleep(CHECK);
                }
                let cause = SILENT.into();
                SolveError::WorkerLost { worker, cause }
            }
        }
    }

    /// After the loss of the last worker, ends the run with the last known x. `false`: there is none, or the error is another.
    fn ends_with_known_x(&mut self, error: &SolveError) -> bool {
        let reason = match error {
            SolveError::WorkerLost { worker, cause } => Reason::WorkerLost {
                worker: worker.clone(),
                cause: cause.clone(),
            },
            SolveError::WorkerEnded(cause) => Reason::WorkerLost {
                worker: "a worker".to_owned(),
                cause: cause.clone(),
            },
            _ => return false,
        };
        let source = self.source;
        self.judge.end_with_known_x(reason, |x| match source {
            Source::System(system) => system.relative_residual(x),
            Source::Generated(_) => f64::NAN,
        })
    }

    /// Tells all workers that the run failed. A worker that cannot be told notices this node's silence.
    fn abort(&mut self, endpoint: &mut Endpoint, error: &SolveError) {
        let order = Order::Abort {
            why: error.to_string(),
        }
        .encode();
        for worker in 0..endpoint.members().len() - 1 {
            let _ = endpoint.try_send(node(worker), CONTROL, &order);
        }
        let _ = endpoint.flush(FLUSH_WAIT);
    }
}

impl Handler for Bench<'_> {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        if delivery.channel.id() != CONTROL.id() {
            return; // of the workers' collectives, which greet every node
        }
        let worker = usize::from(delivery.from.0).wrapping_sub(1);
        let answer = self.judge.answer(worker, delivery.body.bytes());
        self.fault = self.fault.take().or(answer.err());
        self.note(worker);
    }

    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        // Datagrams of the board reach this node, too, where one frame reaches all.
        if datagram.channel_id == REPORT_CHANNEL
            && let Some(report) = LapReport::parse(datagram.epoch, datagram.lap, datagram.payload)
        {
            let worker = usize::from(datagram.source.0).wrapping_sub(1);
            self.judge.report(worker, report);
            self.note(worker);
        }
    }

    fn peer_up(&mut self, peer: NodeId) {
        self.up.extend(usize::from(peer.0).checked_sub(1));
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        let worker = usize::from(peer.0).wrapping_sub(1);
        let lost = self.judge.lost(worker, SILENT);
        self.fault = self.fault.take().or(lost.err());
    }
}
