//! Our own ping-pong and burst between two processes over any link: reliable messages through the public endpoint.
//!
//! [`measure`] runs in the parent (node 0, the sender) and starts the other side, `serve`. Each side measures its own processor time over the same messages; the receiver reports by message.
//! Every measurement starts a fresh pair, so that nothing is carried over between them.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::{
    Bytes, ChannelError, Endpoint, EndpointError, LaunchError, LaunchSpec, LinkSpec, MeetError,
    NodeId, OpenError, Options, Security, SendError, Tuning, WorkerFailure, endpoint_from_env,
};

use crate::ops::Sample;
use crate::processes::{self, Arrivals, DATA, STALLED_AFTER, Watch, pin};
use crate::serve::Task;
use crate::stats::{HalfRtt, RoundTrips};
use crate::{machine, stop};

/// The sender of measured messages.
const SENDER: NodeId = NodeId(0);
/// The receiver of measured messages, if no other is asked for.
const RECEIVER: u16 = 1;
/// Round trips before anything is measured: connections, caches and clocks settle.
const WARM_UP: u64 = 200;
/// Messages of a burst from this size on are shared with the endpoint, not copied; smaller ones, too, where they would leave by reference.
const SHARED_BYTES: usize = 32 << 10;
/// Round trips measured in front of a burst.
const BURST_ROUND_TRIPS: u64 = 500;
/// An idling process wakes this often; the cost is too small to be measured.
const IDLE_WAKE_EVERY: Duration = Duration::from_secs(1);
/// Bytes that a measurement moves by default; bounds how long large sizes take.
const DEFAULT_BYTES: u64 = 512 << 20;

/// Kind of exchange between the two processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// One message at a time, each answered.
    Pingpong,
    /// Messages one way, as fast as they are taken.
    Burst,
    /// Nothing, for a while: measures the cost of waiting.
    Idle,
}

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Kind of exchange.
    pub kind: Kind,
    /// Bytes of a message.
    pub size: usize,
    /// Round trips, or messages of the burst, or seconds of idling.
    pub iterations: u64,
    /// Cores of the sender and of the receiver; `None`: chosen by the system.
    pub cpus: Option<[usize; 2]>,
    /// Spin without ever yielding the core (otherwise the endpoint's adaptive policy).
    pub spin: bool,
    /// The node with which node 0 exchanges messages; all others only wait.
    pub receiver: u16,
    /// Thresholds of both endpoints; `None`: those of the profile in force, or the defaults.
    pub tuning: Option<Tuning>,
    /// Microseconds that the receiver computes before each answer.
    pub pause_us: u64,
}

impl Plan {
    /// A sensible number of iterations for that size, on two cores if there are two.
    pub fn new(kind: Kind, size: usize) -> Self {
        let by_bytes = DEFAULT_BYTES / size.max(1) as u64;
        let iterations = match kind {
            Kind::Pingpong => (by_bytes / 4).clamp(20, 100_000),
            Kind::Burst => by_bytes.clamp(16, 1_000_000),
            Kind::Idle => 3, // seconds
        };
        let cpus = machine::two_cpus();
        Self {
            kind,
            size,
            iterations,
            cpus,
            spin: cpus.is_some(),
            receiver: RECEIVER,
            tuning: None,
            pause_us: 0,
        }
    }

    /// Messages that cross in either direction.
    fn crossed(&self) -> u64 {
        match self.kind {
            Kind::Pingpong => 2 * self.iterations,
            Kind::Burst => self.iterations,
            Kind::Idle => 1, // so that nothing is divided by 0
        }
    }

    fn cpu_of(&self, node: NodeId) -> Option<usize> {
        self.cpus.map(|cpus| cpus[usize::from(node != SENDER)])
    }

    fn options(&self) -> Options {
        let usual = Options::default();
        let room = 2 * self.size;
        Options {
            idle: processes::idle(self.spin),
            budget_bytes: usual.budget_bytes.max(room),
            // Data copied further ahead would be read back from memory that is half as fast (decision 0040).
            send_queue_bytes: (256 << 10).max(room),
            tuning: self.tuning,
            ..usual
        }
    }
}

/// One side's processor time, user and system.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Over all messages.
    pub cpu_seconds: f64,
    /// Over the messages that crossed, in either direction.
    pub cpu_us_per_message: f64,
    /// Over the payload that crossed, in either direction; absent for empty messages.
    pub cpu_us_per_kb: Option<f64>,
}

impl Side {
    fn new(cpu: Duration, messages: u64, size: usize) -> Self {
        let cpu_us = cpu.as_secs_f64() * 1e6;
        let kilobytes = messages as f64 * size as f64 / 1e3;
        Self {
            cpu_seconds: cpu.as_secs_f64(),
            cpu_us_per_message: cpu_us / messages as f64,
            cpu_us_per_kb: (size > 0).then(|| cpu_us / kilobytes),
        }
    }
}

/// Both ends of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Largest frame of the link, in bytes.
    pub frame_bytes: usize,
    /// The measuring side.
    pub sender: Side,
    /// The other side.
    pub receiver: Side,
    /// The cores of both sides, if they were bound.
    pub cpus: Option<[usize; 2]>,
}

/// Result of one measurement.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Kind of exchange.
    pub kind: Kind,
    /// The link.
    pub link: LinkSpec,
    /// Round trips, or messages of the burst, or seconds of idling.
    pub iterations: u64,
    /// Wall-clock time of the measured part.
    pub seconds: f64,
    /// Half of the round-trip times, in microseconds. In a burst: of an unloaded ping-pong before it.
    pub half_rtt_us: HalfRtt,
    /// Messages that crossed in either direction.
    pub messages_per_second: f64,
    /// Their payload per second.
    pub bytes_per_second: f64,
    /// Frames that had to be sent again.
    pub retransmitted_frames: u64,
    /// Both ends.
    pub ends: Ends,
}

impl Measured {
    /// The same as a sample, as peers give it.
    pub fn sample(&self) -> Sample {
        let Ends {
            sender, receiver, ..
        } = self.ends;
        Sample {
            seconds: self.seconds,
            cpu_seconds: sender.cpu_seconds + receiver.cpu_seconds,
            half_rtt_us: Some(self.half_rtt_us),
            receive_drops: None,
            retransmitted_frames: Some(self.retransmitted_frames),
            iterations: None,
            ends: Some(self.ends),
        }
    }
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The other process could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The endpoint could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Sending failed.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Receiving failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A channel could not be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The other process ended.
    #[error(transparent)]
    Worker(#[from] WorkerFailure),
    /// The other endpoint was lost.
    #[error("the other side left in the middle of the measurement")]
    PeerDead,
    /// The user wants to stop.
    #[error(transparent)]
    Interrupted(#[from] stop::Wanted),
    /// Nothing moves.
    #[error("no message crossed for {} s: the link loses everything, or the machine is overloaded", STALLED_AFTER.as_secs())]
    Stalled,
    /// Nodes were not met.
    #[error(transparent)]
    Absent(#[from] MeetError),
    /// The cores could not be bound.
    #[error("cannot bind to core {cpu}: {source}")]
    Pin {
        /// The core.
        cpu: usize,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The table of collective operations is unusable.
    #[error(transparent)]
    Table(#[from] tsumuji_collective::TableError),
    /// A collective operation failed.
    #[error(transparent)]
    Collective(#[from] tsumuji_collective::CollectiveError),
    /// The other side computes wrongly.
    #[error("{answers} wrong sums came")]
    Wrong {
        /// How many.
        answers: u64,
    },
    /// The other side's report has a wrong form.
    #[error("the other side's report is not understood: {0}")]
    Report(#[from] serde_json::Error),
}

/// One side of a measurement: an endpoint, its arrivals, and its way of waiting.
struct Runner {
    endpoint: Endpoint,
    arrivals: Arrivals,
    spin: bool,
    receiver: NodeId,
    pause: Duration,
}

impl Runner {
    fn new(endpoint: Endpoint, plan: &Plan) -> Self {
        Self {
            endpoint,
            arrivals: Arrivals::default(),
            spin: plan.spin,
            receiver: NodeId(plan.receiver),
            pause: Duration::from_micros(plan.pause_us),
        }
    }

    /// Polls until `done`, checking the other side from time to time.
    #[inline]
    fn poll_until(
        &mut self,
        watch: Watch<'_>,
        done: impl Fn(&Arrivals) -> bool,
    ) -> Result<(), ExchangeError> {
        (self.arrivals).poll_until(&mut self.endpoint, self.spin, watch, done)
    }

    /// Sends `count` messages and waits for the answer to each. Reads the clock at the same places as the other libraries' programs.
    fn ask(
        &mut self,
        message: &[u8],
        count: u64,
        watch: Watch<'_>,
    ) -> Result<RoundTrips, ExchangeError> {
        let mut trips = RoundTrips::default();
        for _ in 0..count {
            stop::check()?;
            let awaited = self.arrivals.messages + 1;
            let before = Instant::now();
            self.endpoint.send(self.receiver, DATA, message)?;
            self.poll_until(watch, |arrivals| arrivals.messages >= awaited)?;
            trips.record(before.elapsed().as_nanos() as u64);
        }
        Ok(trips)
    }

    /// Waits as a program without work does.
    fn idle(&mut self, span: Duration) -> Result<(), ExchangeError> {
        let start = Instant::now();
        while start.elapsed() < span {
            stop::check()?;
            let rest = span.saturating_sub(start.elapsed());
            self.endpoint
                .poll_wait(&mut self.arrivals, rest.min(IDLE_WAKE_EVERY))?;
        }
        Ok(())
    }

    /// Waits as a node without part in the exchange does, until the sender leaves.
    fn stand_by(&mut self) -> Result<(), ExchangeError> {
        // Not in a call of the endpoint, which would spin as those that are measured do: the assistant alone looks after it.
        while !self.endpoint.is_dead(SENDER) {
            std::thread::sleep(IDLE_WAKE_EVERY);
        }
        Ok(())
    }

    /// Answers `count` messages.
    fn answer(&mut self, message: &[u8], count: u64) -> Result<(), ExchangeError> {
        for _ in 0..count {
            let awaited = self.arrivals.messages + 1;
            self.poll_until(&mut || Ok(()), |arrivals| arrivals.messages >= awaited)?;
            if !self.pause.is_zero() {
                processes::spend(self.pause);
            }
            self.endpoint.send(SENDER, DATA, message)?;
        }
        Ok(())
    }
}

/// The specification for [`measure`]: starts `program`, which is `tsumuji`. With `hosts`, node 1 of them is the receiver, and this process must be in the
/// host of node 0.
pub fn spec(link: LinkSpec, hosts: Option<&Hosts>, program: impl AsRef<OsStr>) -> LaunchSpec {
    processes::spec(1, link, hosts, program, ["receiver", "sender"])
}

/// Measures once.
pub fn measure(
    plan: &Plan,
    spec: LaunchSpec,
    security: &Security,
) -> Result<Measured, ExchangeError> {
    let link = spec.link;
    let mut launcher = processes::start(spec, &Task::Exchange(plan.clone()), security)?;
    // After the launcher's own thread was started, which must not run on the measured core.
    let _pinned = pin(plan.cpu_of(SENDER))?;
    let endpoint = processes::meet(&mut launcher, plan.options(), security)?;
    let mut runner = Runner::new(endpoint, plan);
    let mut watch = || processes::watch(&mut launcher);
    let message = vec![0x5a; plan.size];

    runner.ask(&message, WARM_UP.min(plan.iterations), &mut watch)?;
    let mut trips = RoundTrips::default();
    if plan.kind == Kind::Burst {
        trips = runner.ask(&message, BURST_ROUND_TRIPS.min(plan.iterations), &mut watch)?;
    }
    let (cpu, start) = (machine::process_cpu(), Instant::now());
    match plan.kind {
        Kind::Pingpong => trips = runner.ask(&message, plan.iterations, &mut watch)?,
        Kind::Burst => {
            let mut batch = runner.endpoint.batch();
            let (shared, to) = (Bytes::from(message), runner.receiver);
            let shared_bytes = plan.tuning.map_or(SHARED_BYTES, |tuning| {
                tuning.reference_bytes.min(SHARED_BYTES)
            });
            for _ in 0..plan.iterations {
                stop::check()?;
                // Waits, polling, while the queue is full; messages that arrive meanwhile are kept. Long ones are shared, as MPI's programs pass
                // theirs to MPI_Isend.
                if plan.size >= shared_bytes {
                    batch.send_shared(to, DATA, shared.clone())?;
                } else {
                    batch.send(to, DATA, &shared)?;
                }
            }
            drop(batch);
            runner.poll_until(&mut watch, |arrivals| !arrivals.reports.is_empty())?;
        }
        Kind::Idle => runner.idle(Duration::from_secs(plan.iterations))?,
    }
    let (cpu, seconds) = (machine::process_cpu() - cpu, start.elapsed().as_secs_f64());
    let crossed = plan.crossed();
    runner.poll_until(&mut watch, |arrivals| !arrivals.reports.is_empty())?;
    let report = runner.arrivals.reports.pop().unwrap_or_default();
    let receiver: Side = serde_json::from_slice(&report)?;
    let sender = Side::new(cpu, crossed, plan.size);
    let retransmitted_frames = runner
        .endpoint
        .flow(runner.receiver)
        .map_or(0, |flow| flow.retransmitted_frames);
    let frame_bytes = runner.endpoint.frame_message_bytes();
    let _ = runner.endpoint.close(Duration::from_secs(1));
    Ok(Measured {
        kind: plan.kind,
        link,
        iterations: plan.iterations,
        seconds,
        half_rtt_us: trips.half(),
        messages_per_second: crossed as f64 / seconds,
        bytes_per_second: crossed as f64 * plan.size as f64 / seconds,
        retransmitted_frames,
        ends: Ends {
            frame_bytes,
            sender,
            receiver,
            cpus: plan.cpus,
        },
    })
}

/// The other side of [`measure`].
pub(crate) fn serve(plan: &Plan) -> Result<(), ExchangeError> {
    let mut runner = Runner::new(endpoint_from_env(plan.options())?, plan);
    if runner.endpoint.me() != runner.receiver {
        return runner.stand_by();
    }
    let _pinned = pin(plan.cpu_of(runner.receiver))?;
    let message = vec![0xa5; plan.size];
    runner.answer(&message, WARM_UP.min(plan.iterations))?;
    if plan.kind == Kind::Burst {
        runner.answer(&message, BURST_ROUND_TRIPS.min(plan.iterations))?;
    }
    let cpu = machine::process_cpu();
    match plan.kind {
        Kind::Pingpong => runner.answer(&message, plan.iterations)?,
        Kind::Burst => {
            let awaited = runner.arrivals.messages + plan.iterations;
            runner.poll_until(&mut || Ok(()), |arrivals| arrivals.messages >= awaited)?;
        }
        Kind::Idle => runner.idle(Duration::from_secs(plan.iterations))?,
    }
    let side = Side::new(machine::process_cpu() - cpu, plan.crossed(), plan.size);
    processes::report(runner.endpoint, SENDER, &side)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large messages are few and small ones many, but never none.
    #[test]
    fn iterations_follow_the_size() {
        assert_eq!(Plan::new(Kind::Pingpong, 8).iterations, 100_000);
        assert_eq!(Plan::new(Kind::Burst, 0).iterations, 1_000_000);
        assert_eq!(Plan::new(Kind::Burst, 64 << 20).iterations, 16);
        assert_eq!(Plan::new(Kind::Pingpong, 1 << 30).iterations, 20);
    }

    /// Time per message and per KB follow from time, count and size; empty messages have no time per KB.
    #[test]
    fn cpu_time_is_shared_out() {
        let side = Side::new(Duration::from_millis(2), 1000, 500);
        assert!((side.cpu_us_per_message - 2.0).abs() < 1e-9);
        assert!((side.cpu_us_per_kb.unwrap() - 4.0).abs() < 1e-9);
        assert_eq!(
            Side::new(Duration::from_millis(2), 1000, 0).cpu_us_per_kb,
            None
        );
    }

    /// A plan is read from an argument as it was written.
    #[test]
    fn plan_as_argument() {
        let plan = Plan {
            kind: Kind::Burst,
            size: 77,
            iterations: 5,
            cpus: Some([0, 1]),
            spin: true,
            receiver: 3,
            tuning: None,
            pause_us: 7,
        };
        let read: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(
            (
                read.kind,
                read.size,
                read.iterations,
                read.cpus,
                read.spin,
                read.receiver,
                read.pause_us
            ),
            (Kind::Burst, 77, 5, Some([0, 1]), true, 3, 7)
        );
    }
}
