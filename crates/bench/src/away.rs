//! A sender that computes most of the time, and a receiver that takes its messages: how late are messages of a burst that could not be sent at once,
//! with the progress assistant and without it; and what the assistant costs while nothing happens.
//!
//! [`measure`] runs in the parent (node 0, the sender) and starts the other side, which calls `serve`. Clocks of two hosts are not compared: the
//! receiver measures the time from a burst's first message to its last, and the sender the time of its calls. The difference is the lateness of the
//! last message, except for the transit time of the first.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tsumuji_node::{
    Context, Delivery, Handler, LaunchSpec, NodeId, Options, ProgressBy, Security,
    endpoint_from_env,
};

use crate::exchange::ExchangeError;
use crate::machine;
use crate::processes::{self, CONTROL, DATA, watch};
use crate::serve::Task;

const SENDER: NodeId = NodeId(0);
const RECEIVER: NodeId = NodeId(1);
/// Time-out for connecting, and for other steps before the measurement.
const PATIENCE: Duration = Duration::from_secs(20);
/// The sender computes nine tenths of each lap's time, and at least this long.
const COMPUTE_LEAST: Duration = Duration::from_millis(10);

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Plan {
    /// Times that the sender sends and computes.
    pub laps: u64,
    /// Messages that it sends each time.
    pub messages: u64,
    /// Their length.
    pub message_bytes: usize,
    /// Seconds in which nothing happens.
    pub idle_seconds: u64,
    /// Endpoints have their progress assistants.
    pub assistant: bool,
}

impl Plan {
    fn options(&self) -> Options {
        Options {
            progress: if self.assistant {
                ProgressBy::Assistant
            } else {
                ProgressBy::Program
            },
            ..Options::default()
        }
    }
}

/// Distribution over all laps, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spans {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
}

impl Spans {
    /// NaN where there was no lap.
    fn of(mut spans_us: Vec<f64>) -> Self {
        spans_us.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let index = (part * spans_us.len() as f64).ceil() as usize;
            spans_us.get(index.max(1) - 1).copied().unwrap_or(f64::NAN)
        };
        Self {
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Result of one measurement, of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Away {
    /// Time of the calls that sent a lap's messages.
    pub sending_us: Spans,
    /// Time from a lap's first message to its last, at the receiver.
    pub arriving_us: Spans,
    /// Difference of these in the same lap: lateness of the last message.
    pub late_us: Spans,
    /// Part of the time in which the sender computed.
    pub computing: f64,
    /// Processor time while nothing happens, as part of a core: of the sender, and of the receiver.
    pub idle: [f64; 2],
}

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    arriving_us: Vec<f64>,
    idle: f64,
}

/// Records the arrival of each lap's first and last message.
struct Laps {
    messages: u64,
    came: u64,
    first: Instant,
    arriving_us: Vec<f64>,
}

impl Handler for Laps {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {
        let now = Instant::now();
        if self.came.is_multiple_of(self.messages) {
            self.first = now;
        }
        self.came += 1;
        if self.came.is_multiple_of(self.messages) {
            (self.arriving_us).push((now - self.first).as_secs_f64() * 1e6);
        }
    }
}

/// Measures once; `spec` is made by [`crate::exchange::spec`].
pub fn measure(plan: &Plan, spec: LaunchSpec, security: &Security) -> Result<Away, ExchangeError> {
    let mut launcher = processes::start(spec, &Task::Away(*plan), security)?;
    let mut endpoint = processes::meet(&mut launcher, plan.options(), security)?;
    let message = vec![0x5a; plan.message_bytes];
    let (start, mut computed) = (Instant::now(), Duration::ZERO);
    let mut sending_us = Vec::new();
    for _ in 0..plan.laps {
        watch(&mut launcher)?;
        let sending = Instant::now();
        for _ in 0..plan.messages {
            endpoint.send(RECEIVER, DATA, &message)?;
        }
        let computing = Instant::now();
        sending_us.push((computing - sending).as_secs_f64() * 1e6);
        let span = (9 * (computing - sending)).max(COMPUTE_LEAST);
        while computing.elapsed() < span {
            std::hint::black_box(&message); // the program computes and makes no call
        }
        computed += computing.elapsed();
    }
    let computing = computed.as_secs_f64() / start.elapsed().as_secs_f64();
    endpoint.flush(PATIENCE)?;
    let idle = idle(plan);
    let report = loop {
        watch(&mut launcher)?;
        match endpoint.recv(PATIENCE)? {
            Some(message) if message.channel == CONTROL => break message.body,
            Some(_) => {}
            None => return Err(ExchangeError::Stalled),
        }
    };
    let _ = endpoint.close(Duration::from_secs(1));
    let report: Report = serde_json::from_slice(&report)?;
    let late = sending_us.iter().zip(&report.arriving_us);
    let late_us = late.map(|(sending, arriving)| arriving - sending).collect();
    Ok(Away {
        sending_us: Spans::of(sending_us),
        arriving_us: Spans::of(report.arriving_us),
        late_us: Spans::of(late_us),
        computing,
        idle: [idle, report.idle],
    })
}

/// The other side, in the process that [`measure`] starts.
pub(crate) fn serve(plan: &Plan) -> Result<(), ExchangeError> {
    let mut endpoint = endpoint_from_env(plan.options())?;
    if !endpoint.wait_up(PATIENCE)?.is_empty() {
        return Err(ExchangeError::Stalled);
    }
    let mut laps = Laps {
        messages: plan.messages.max(1),
        came: 0,
        first: Instant::now(),
        arriving_us: Vec::new(),
    };
    while (laps.arriving_us.len() as u64) < plan.laps {
        if endpoint.poll_wait(&mut laps, PATIENCE)? == 0 && endpoint.ended_sessions(SENDER) > 0 {
            return Err(ExchangeError::PeerDead);
        }
    }
    endpoint.flush(Duration::from_secs(1))?;
    let report = Report {
        arriving_us: laps.arriving_us,
        idle: idle(plan),
    };
    processes::report(endpoint, SENDER, &report)
}

/// Processor time, as part of a core, while the program makes no call and nothing happens.
fn idle(plan: &Plan) -> f64 {
    let (cpu, start) = (machine::process_cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(plan.idle_seconds));
    let used = machine::process_cpu() - cpu;
    used.as_secs_f64() / start.elapsed().as_secs_f64()
}
