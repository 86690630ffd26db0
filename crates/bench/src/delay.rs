//! L2RTC's figure 10: how heavy a service may be. A generator sends at the pace of a line, the server spends some time on each message, or once on each
//! 32, and sends it back, or on to a third node (out of its other port); up to which time does it keep pace?
//!
//! [`measure`] runs in the parent (node 0, the generator) and starts the server and the third node, which call `serve`. A message that finds no room at the moment when
//! the line would carry it is not sent, and counted: nothing is lost unseen. [`Setting`] sums up several rounds, [`Knee`] several times.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tsumuji_node::{
    Answers, Channel, ChannelOptions, Context, Delivery, Endpoint, Executor, ExecutorOptions,
    ExecutorState, Handler, LaunchSpec, Launcher, NodeId, Options, Request, Security, SendError,
    endpoint_from_env,
};

use crate::exchange::ExchangeError;
use crate::machine;
use crate::processes::{self, watch};
use crate::serve::Task;
use crate::stats::Rounds;
use crate::sum32::by_name;

/// Messages of a burst: as many as the paper's server receives at once.
pub const BURST: u64 = 32;
/// Bytes of an Ethernet frame on the wire beside itself: preamble and gap.
const GAP_BYTES: u64 = 20;
const CHANNEL: Channel = Channel::ordered(1);
const STATE: Channel = Channel::ordered(2);
const SERVER: NodeId = NodeId(1);
const GENERATOR: NodeId = NodeId(0);
/// Behind the server's other port.
const SINK: NodeId = NodeId(2);
/// What is on its way must come back within this time.
const DRAIN: Duration = Duration::from_secs(20);
/// Bursts between two checks whether the other side lives.
const BURSTS_PER_CHECK: u64 = 1 << 12;
/// A server that answers this part of the line's messages in time keeps pace: the last are still on their way.
const KEPT: f64 = 0.95;

/// What the time is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// On each message.
    Frame,
    /// Once on each burst of 32, with which the paper's knees fit.
    Burst,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Bytes of a message: of the paper's frame.
    pub size: usize,
    /// Pace of the line in bits per second.
    pub bits_per_second: u64,
    /// Messages that the line carries.
    pub count: u64,
    /// Time that the server spends, in nanoseconds.
    pub delay_ns: u64,
    /// On what.
    pub per: Per,
    /// The executor of the service.
    #[serde(with = "by_name")]
    pub executor: Executor,
    /// All nodes spin, each on a core of its own.
    pub spin: bool,
    /// The server sends what it has served on to a third node, not back.
    pub two_ports: bool,
}

impl Plan {
    /// Time of a message on the line, in nanoseconds.
    pub fn frame_ns(&self) -> f64 {
        (self.size as u64 + GAP_BYTES) as f64 * 8e9 / self.bits_per_second as f64
    }

    /// The longest time that a server without any other work could spend.
    pub fn predicted_knee_ns(&self) -> f64 {
        match self.per {
            Per::Frame => self.frame_ns(),
            Per::Burst => self.frame_ns() * BURST as f64,
        }
    }

    fn cpu_of(&self, node: NodeId) -> Option<usize> {
        let cpus = machine::cpus();
        (self.spin).then(|| cpus.get(usize::from(node.0)).copied())?
    }

    /// The node that counts what was served.
    fn counter(&self) -> NodeId {
        if self.two_ports { SINK } else { GENERATOR }
    }
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Delayed {
    /// Messages that the line could carry.
    pub offered: u64,
    /// Messages that there was no room for.
    pub refused: u64,
    /// Messages that came back, or to the third node.
    pub returned: u64,
    /// Messages that the server got and could not send on, as the third node took too few: its queue was full.
    pub dropped: u64,
    /// Messages that were sent, not dropped, and did not come.
    pub lost: u64,
    /// Those that came, a second, while the line carried messages.
    pub per_second: f64,
    /// The same as a part of the line's pace.
    pub part: f64,
    /// The service was with workers at the end.
    pub with_workers: bool,
    /// How often it was moved.
    pub moves: u64,
}

/// One time, spent by one executor, in several rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setting {
    /// Bytes of a message.
    pub size: usize,
    /// Time that the server spends, in nanoseconds.
    pub delay_ns: u64,
    /// The executor of the service.
    #[serde(with = "by_name")]
    pub executor: Executor,
    /// Part of the line's pace that came.
    pub part: Rounds,
    /// Messages that came, a second.
    pub per_second: Rounds,
    /// Messages of a round that there was no room for.
    pub refused: Rounds,
    /// Messages of a round that the server could not send on.
    pub dropped: Rounds,
    /// Messages that were lost, in all rounds.
    pub lost: u64,
    /// Rounds at whose end the service was with workers.
    pub with_workers: usize,
    /// Each round.
    pub rounds: Vec<Delayed>,
}

impl Setting {
    /// Sums up what was measured by this plan.
    pub fn of(plan: &Plan, rounds: Vec<Delayed>) -> Self {
        let over = |value: fn(&Delayed) -> f64| Rounds::over(&rounds, value);
        Self {
            size: plan.size,
            delay_ns: plan.delay_ns,
            executor: plan.executor,
            part: over(|one| one.part),
            per_second: over(|one| one.per_second),
            refused: over(|one| one.refused as f64),
            dropped: over(|one| one.dropped as f64),
            lost: rounds.iter().map(|one| one.lost).sum(),
            with_workers: rounds.iter().filter(|one| one.with_workers).count(),
            rounds,
        }
    }
}

/// The longest time up to which an executor keeps pace with every shorter one; `None`: with none at all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Knee {
    /// The executor of the service.
    #[serde(with = "by_name")]
    pub executor: Executor,
    /// By the medians.
    pub knee_ns: Option<u64>,
    /// In each round.
    pub rounds_ns: Vec<Option<u64>>,
}

impl Knee {
    /// That of the executor's settings among these, which have equally many rounds.
    pub fn of(executor: Executor, settings: &[Setting]) -> Self {
        let own = settings.iter().filter(|one| one.executor == executor);
        let mut own: Vec<&Setting> = own.collect();
        own.sort_by_key(|one| one.delay_ns);
        let longest = |part: &dyn Fn(&Setting) -> Option<f64>| {
            let keeps = |one: &&&Setting| part(one).is_some_and(|part| part >= KEPT);
            (own.iter().take_while(keeps).last()).map(|one| one.delay_ns)
        };
        let rounds = own.iter().map(|one| one.rounds.len()).max().unwrap_or(0);
        Self {
            executor,
            knee_ns: longest(&|one| Some(one.part.median)),
            rounds_ns: (0..rounds)
                .map(|round| longest(&|one| one.rounds.get(round).map(|one| one.part)))
                .collect(),
        }
    }
}

/// Report of the server, and of the third node.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    with_workers: bool,
    moves: u64,
    /// Served messages that came.
    messages: u64,
    /// Served messages for which there was no room.
    dropped: u64,
}

/// Counts served messages, and keeps what a node says of its state, or that it is asked for.
#[derive(Default)]
struct Count {
    messages: u64,
    state: Option<Vec<u8>>,
}

impl Handler for Count {
    #[inline]
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        if delivery.channel == STATE {
            self.state = Some(delivery.body.bytes().to_vec());
        } else {
            self.messages += 1;
        }
    }
}

/// Measures once; `spec` is made by [`crate::exchange::spec`].
pub fn measure(
    plan: &Plan,
    spec: LaunchSpec,
    security: &Security,
) -> Result<Delayed, ExchangeError> {
    let mut launcher = processes::start(spec, &Task::Delay(*plan), security)?;
    let _pinned = processes::pin(plan.cpu_of(GENERATOR))?;
    let options = Options {
        // What waits here is soon refused; the server's queue takes the answers to all that this one holds.
        send_queue_bytes: 256 << 10,
        ..processes::options(plan.spin)
    };
    let mut endpoint = processes::meet(&mut launcher, options, security)?;
    let message = vec![0x5a; plan.size];
    let mut count = Count::default();
    let (mut offered, mut refused, mut bursts) = (0, 0, 0_u64);
    let burst_ns = plan.frame_ns() * BURST as f64;
    let begun = Instant::now();
    while offered < plan.count {
        bursts += 1;
        let until = Duration::from_nanos((bursts as f64 * burst_ns) as u64);
        // A line waits for nobody: what was not sent in its time is not sent later.
        while begun.elapsed() < until {
            endpoint.poll(&mut count)?;
        }
        endpoint.cork();
        for _ in 0..BURST {
            offered += 1;
            match endpoint.try_send(SERVER, CHANNEL, &message) {
                Ok(()) => {}
                Err(SendError::WouldBlock { .. }) => refused += 1,
                Err(error) => return Err(error.into()),
            }
        }
        endpoint.uncork()?;
        if bursts.is_multiple_of(BURSTS_PER_CHECK) {
            watch(&mut launcher)?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let mut generator = Generator {
        endpoint,
        launcher,
        count,
    };
    // Those that came while the line carried messages, and in the end.
    let in_time = generator.came(plan)?;
    let (sent, drained) = (offered - refused, Instant::now());
    let (mut returned, mut state) = (in_time, generator.ask(SERVER)?);
    while returned + state.dropped < sent && drained.elapsed() < DRAIN {
        generator.poll()?;
        state = generator.ask(SERVER)?;
        returned = generator.came(plan)?;
    }
    let _ = generator.endpoint.close(Duration::from_millis(100));
    let per_second = in_time as f64 / seconds;
    Ok(Delayed {
        offered,
        refused,
        returned,
        dropped: state.dropped,
        lost: sent - returned - state.dropped,
        per_second,
        part: per_second * plan.frame_ns() / 1e9,
        with_workers: state.with_workers,
        moves: state.moves,
    })
}

/// The generator after its last message.
struct Generator {
    endpoint: Endpoint,
    launcher: Launcher,
    count: Count,
}

impl Generator {
    fn poll(&mut self) -> Result<(), ExchangeError> {
        (self.endpoint).poll_wait(&mut self.count, Duration::from_millis(10))?;
        watch(&mut self.launcher)
    }

    fn ask(&mut self, node: NodeId) -> Result<State, ExchangeError> {
        let asked = Instant::now();
        self.endpoint.send(node, STATE, &[])?;
        loop {
            if let Some(state) = self.count.state.take() {
                return Ok(serde_json::from_slice(&state)?);
            }
            if asked.elapsed() > DRAIN {
                return Err(ExchangeError::Stalled);
            }
            self.poll()?;
        }
    }

    /// Served messages that came so far.
    fn came(&mut self, plan: &Plan) -> Result<u64, ExchangeError> {
        match plan.counter() {
            GENERATOR => Ok(self.count.messages),
            counter => Ok(self.ask(counter)?.messages),
        }
    }
}

/// The server or the third node, in the process that [`measure`] starts: until the generator leaves.
pub(crate) fn serve(plan: &Plan) -> Result<(), ExchangeError> {
    let mut endpoint = endpoint_from_env(processes::options(plan.spin))?;
    let dropped = Arc::new(AtomicU64::new(0));
    if endpoint.me() == SERVER {
        serve_messages(plan, &mut endpoint, Arc::clone(&dropped))?;
    }
    // After the executor: its workers take the other cores.
    let _pinned = processes::pin(plan.cpu_of(endpoint.me()))?;
    let mut count = Count::default();
    while endpoint.ended_sessions(GENERATOR) == 0 {
        processes::poll(&mut endpoint, &mut count, plan.spin)?;
        if count.state.take().is_some() {
            let ExecutorState {
                with_workers,
                moves,
                ..
            } = endpoint.executor(CHANNEL.id()).unwrap_or_default();
            let state = State {
                with_workers,
                moves,
                messages: count.messages,
                dropped: dropped.load(Ordering::Relaxed),
            };
            endpoint.send(GENERATOR, STATE, &serde_json::to_vec(&state)?)?;
        }
    }
    Ok(())
}

fn serve_messages(
    plan: &Plan,
    endpoint: &mut Endpoint,
    dropped: Arc<AtomicU64>,
) -> Result<(), ExchangeError> {
    let (delay_ns, per, counter, count) =
        (plan.delay_ns, plan.per, plan.counter(), AtomicU64::new(0));
    let service = move |request: &Request<'_>, answers: &mut Answers<'_>| {
        let is_burst = || count.fetch_add(1, Ordering::Relaxed) % BURST == BURST - 1;
        if delay_ns > 0 && (per == Per::Frame || is_burst()) {
            processes::spend(Duration::from_nanos(delay_ns));
        }
        let answered = match counter {
            GENERATOR => answers.reply(request.body),
            other => answers.send(other, CHANNEL, request.body),
        };
        // The generator holds less than this queue, so there is room for what goes back to it; the third node may be too slow.
        if answered.is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    };
    let executor = ExecutorOptions {
        executor: plan.executor,
        ..ExecutorOptions::default()
    };
    endpoint.serve(CHANNEL.id(), ChannelOptions::default(), executor, service)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(size: usize, per: Per) -> Plan {
        Plan {
            size,
            bits_per_second: 10_000_000_000,
            count: 1,
            delay_ns: 0,
            per,
            executor: Executor::RunToCompletion,
            spin: true,
            two_ports: false,
        }
    }

    /// The paper's knees are those of bursts of 32 at 10 Gbit/s.
    #[test]
    fn knees_follow_the_line() {
        assert!((plan(64, Per::Frame).predicted_knee_ns() - 67.2).abs() < 0.01);
        assert!((plan(64, Per::Burst).predicted_knee_ns() - 2150.4).abs() < 0.1);
        assert!((plan(128, Per::Burst).predicted_knee_ns() - 3788.8).abs() < 0.1);
        let text = serde_json::to_string(&plan(64, Per::Burst)).unwrap();
        let read: Plan = serde_json::from_str(&text).unwrap();
        assert_eq!(read, plan(64, Per::Burst));
        assert!(serde_json::from_str::<crate::sum32::Plan>(&text).is_err());
    }

    /// The knee is that of the medians, those of single rounds stand beside it, and another executor's times do not count.
    #[test]
    fn knees_are_of_medians() {
        let round = |part: f64| Delayed {
            offered: 100,
            refused: 4,
            returned: 95,
            dropped: 0,
            lost: 1,
            per_second: 1e6 * part,
            part,
            with_workers: part < 0.5,
            moves: 0,
        };
        let setting = |delay_ns, executor, parts: [f64; 3]| {
            let plan = Plan {
                delay_ns,
                executor,
                ..plan(64, Per::Burst)
            };
            Setting::of(&plan, parts.map(round).to_vec())
        };
        let (rtc, pipeline) = (Executor::RunToCompletion, Executor::Pipeline);
        let settings = [
            setting(0, rtc, [1.0, 0.99, 0.98]),
            setting(100, rtc, [0.96, 0.2, 0.97]),
            setting(200, rtc, [0.96, 0.2, 0.3]),
            setting(300, rtc, [1.0; 3]), // by luck: a shorter one has failed
            setting(400, pipeline, [1.0; 3]),
        ];
        let knee = Knee::of(rtc, &settings);
        assert_eq!(knee.knee_ns, Some(100));
        assert_eq!(knee.rounds_ns, [Some(300), Some(0), Some(100)]);
        assert_eq!(Knee::of(Executor::Adaptive, &settings).knee_ns, None);
        let second = &settings[1];
        assert_eq!((second.part.median, second.part.rounds), (0.96, 3));
        assert_eq!((second.lost, second.with_workers), (3, 1));
        let text = serde_json::to_string(second).unwrap();
        assert!(text.contains(r#""executor":"rtc""#), "{text}");
    }
}
