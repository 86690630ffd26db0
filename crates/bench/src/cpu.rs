//! Processor time over offered load (L2RTC's figure 6): messages come at a given rate; what does the receiver's side cost, and how late is it?
//!
//! [`measure`] runs in the parent (node 0, the generator) and starts the receiver, which calls `serve`. [`measure_kernel`] does the same with UDP sockets
//! between two threads. Both warm up, and both count until what was sent in the time of the measurement has come, by the receiver's clock. Times of
//! sending travel in the messages: both sides are on one machine, whose monotonic clock they share.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tsumuji_node::{
    Context, Delivery, Handler, LaunchSpec, NodeId, Security, SendError, endpoint_from_env,
};

use crate::exchange::ExchangeError;
use crate::limits::place::Place;
use crate::limits::udp;
use crate::processes::{self, Arrivals, CONTROL, DATA, watch};
use crate::serve::Task;
use crate::stats::RoundTrips;
use crate::{machine, stop};

/// A message's bytes: as in the paper's other experiments.
const SIZE: usize = 64;
const RECEIVER: NodeId = NodeId(1);
const GENERATOR: NodeId = NodeId(0);
/// A socket that waits checks so often whether it is over.
const CHECK_EVERY: Duration = Duration::from_millis(20);
/// The end of a measurement of sockets is repeated so often until the receiver has it.
const END_EVERY: Duration = Duration::from_millis(1);
/// Before anything is measured.
const WARM_UP: Duration = Duration::from_millis(50);
/// Messages between two checks whether the other side lives.
const MESSAGES_PER_CHECK: u64 = 1 << 14;

/// How a receiver waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Waits {
    /// It polls without end.
    Spins,
    /// It spins for a while, then sleeps until something comes (ours: the default policy; the kernel's sockets: a blocking call).
    Sleeps,
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Messages offered a second.
    pub offered: u64,
    /// How long, in milliseconds.
    pub milliseconds: u64,
    /// How the receiver waits.
    pub waits: Waits,
}

impl Plan {
    fn time(&self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Messages that arrived, a second.
    pub received_per_second: f64,
    /// Processor time of the receiver, in cores.
    pub cores: f64,
    /// One-way times, in microseconds: median, and what one in a hundred exceeds.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
}

/// Nanoseconds of the clock that all processes of this machine share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Calls `send` at the plan's rate, for its time.
fn pace<E>(
    plan: &Plan,
    mut send: impl FnMut(Option<[u8; SIZE]>) -> Result<(), E>,
) -> Result<(), E> {
    let (begun, mut sent) = (Instant::now(), 0_u64);
    loop {
        let elapsed = begun.elapsed();
        if elapsed >= plan.time() || stop::is_wanted() {
            return Ok(());
        }
        let expected = (elapsed.as_nanos() * u128::from(plan.offered) / 1_000_000_000) as u64;
        if sent >= expected {
            send(None)?;
            continue;
        }
        // What is late is sent at once, as a line would.
        while sent < expected {
            let mut message = [0; SIZE];
            message[..8].copy_from_slice(&now_ns().to_le_bytes());
            send(Some(message))?;
            sent += 1;
        }
    }
}

/// What the receiver counts.
#[derive(Default)]
struct Count {
    messages: u64,
    /// Twice the one-way times, since half of what is recorded is told.
    times: RoundTrips,
}

impl Count {
    #[inline]
    fn take(&mut self, message: &[u8]) {
        if let Some((sent, _)) = message.split_first_chunk() {
            let late_ns = now_ns().saturating_sub(u64::from_le_bytes(*sent));
            self.times.record(2 * late_ns);
            self.messages += 1;
        }
    }

    /// `span`: how long messages were counted and `cpu` was measured.
    fn cost(&self, cpu: Duration, span: Duration) -> Cost {
        let half = self.times.half();
        Cost {
            received_per_second: self.messages as f64 / span.as_secs_f64(),
            cores: cpu.as_secs_f64() / span.as_secs_f64(),
            p50_us: half.p50,
            p99_us: half.p99,
        }
    }
}

/// A measurement that has begun.
struct Counting {
    count: Count,
    clock: fn() -> Duration,
    cpu: Duration,
    begun: Instant,
}

impl Counting {
    /// `clock`: the receiver's processor time.
    fn begin(clock: fn() -> Duration) -> Self {
        Self {
            count: Count::default(),
            clock,
            cpu: clock(),
            begun: Instant::now(),
        }
    }

    fn end(&self) -> Cost {
        let cpu = (self.clock)() - self.cpu;
        self.count.cost(cpu, self.begun.elapsed())
    }
}

/// The same rate, for the time before anything is measured.
fn warm_up(plan: &Plan) -> Plan {
    Plan {
        milliseconds: WARM_UP.as_millis() as u64,
        ..*plan
    }
}

/// Measures ours once; `spec` is made by [`crate::exchange::spec`].
pub fn measure(plan: &Plan, spec: LaunchSpec, security: &Security) -> Result<Cost, ExchangeError> {
    let mut launcher = processes::start(spec, &Task::Cpu(*plan), security)?;
    let _pinned = processes::pin(machine::two_cpus().map(|cpus| cpus[0]))?;
    let mut arrivals = Arrivals::default();
    let mut endpoint = processes::meet(&mut launcher, processes::options(true), security)?;
    for plan in [&warm_up(plan), plan] {
        endpoint.send(RECEIVER, CONTROL, b"begin")?;
        let mut sends = 0_u64;
        pace(plan, |message| {
            if let Some(message) = message {
                sends += 1;
                match endpoint.try_send(RECEIVER, DATA, &message) {
                    Ok(()) | Err(SendError::WouldBlock { .. }) => {}
                    Err(error) => return Err(ExchangeError::from(error)),
                }
                if sends.is_multiple_of(MESSAGES_PER_CHECK) {
                    watch(&mut launcher)?;
                }
            }
            endpoint.poll(&mut arrivals)?;
            Ok(())
        })?;
    }
    endpoint.send(RECEIVER, CONTROL, b"end")?;
    let watch = &mut || watch(&mut launcher);
    arrivals.poll_until(&mut endpoint, false, watch, |all| !all.reports.is_empty())?;
    let cost = serde_json::from_slice(&arrivals.reports[0])?;
    let _ = endpoint.close(Duration::from_millis(100));
    Ok(cost)
}

/// The receiver, in the process that [`measure`] starts: until the generator leaves.
pub(crate) fn serve(plan: &Plan) -> Result<(), ExchangeError> {
    let mut endpoint = endpoint_from_env(processes::options(plan.waits == Waits::Spins))?;
    let _pinned = processes::pin(machine::two_cpus().map(|cpus| cpus[1]))?;
    #[derive(Default)]
    struct Receiver {
        counting: Option<Counting>,
        report: Option<Cost>,
    }
    impl Handler for Receiver {
        #[inline]
        fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
            let bytes = delivery.body.bytes();
            match (delivery.channel == CONTROL, &mut self.counting) {
                (false, Some(counting)) => counting.count.take(bytes),
                (false, None) => {}
                (true, Some(counting)) if bytes == b"end" => self.report = Some(counting.end()),
                (true, _) => self.counting = Some(Counting::begin(machine::process_cpu)),
            }
        }
    }
    let mut receiver = Receiver::default();
    while endpoint.ended_sessions(GENERATOR) == 0 {
        processes::poll(&mut endpoint, &mut receiver, plan.waits == Waits::Spins)?;
        if let Some(cost) = receiver.report.take() {
            endpoint.send(GENERATOR, CONTROL, &serde_json::to_vec(&cost)?)?;
        }
    }
    Ok(())
}

/// Phases of [`measure_kernel`] behind the warm-up, which the generator sets and the receiver reads after each call.
const COUNTED: u8 = 1;
const OVER: u8 = 2;

/// The same over UDP sockets of the kernel, between two places of this machine.
pub fn measure_kernel(plan: &Plan, places: &[Place; 2]) -> Result<Cost, String> {
    kernel(plan, places).map_err(|error| error.to_string())
}

fn kernel(plan: &Plan, places: &[Place; 2]) -> io::Result<Cost> {
    let (sender, receiver) = udp::pair(places)?;
    if plan.waits == Waits::Sleeps {
        receiver.set_nonblocking(false)?;
        receiver.set_read_timeout(Some(CHECK_EVERY))?;
    }
    let (cpus, phase) = (machine::two_cpus(), AtomicU8::new(0));
    thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            crate::limits::pin_to(cpus, 1);
            count_datagrams(plan.waits, cpus, &receiver, &phase)
        });
        let sending = scope.spawn(|| {
            crate::limits::pin_to(cpus, 0);
            let send = |message: &[u8]| match sender.send(message) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
                _ => Ok(()),
            };
            let mut paced = Ok(());
            for (plan, next) in [(&warm_up(plan), COUNTED), (plan, OVER)] {
                paced = paced.and_then(|()| {
                    pace(plan, |message| message.map_or(Ok(()), |bytes| send(&bytes)))
                });
                phase.store(next, Ordering::Release);
            }
            paced
        });
        let sent = sending.join().expect("the sender does not panic");
        // An empty datagram comes behind all others, and wakes the receiver; it is repeated, as a full buffer drops it.
        while !receiving.is_finished() {
            let _ = sender.send(&[]);
            thread::sleep(END_EVERY);
        }
        let cost = receiving.join().expect("the receiver does not panic");
        sent.and(cost)
    })
}

/// Counts what comes once the warm-up has been sent, until all has come that was sent before the end. Where more is sent than received, datagrams of the
/// warm-up that wait in the socket count, too.
fn count_datagrams(
    waits: Waits,
    cpus: Option<[usize; 2]>,
    receiver: &UdpSocket,
    phase: &AtomicU8,
) -> io::Result<Cost> {
    let mut counting: Option<Counting> = None;
    let mut buffer = [0; 2048];
    loop {
        let received = match receiver.recv(&mut buffer) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if waits == Waits::Spins {
                    crate::limits::relax(cpus);
                }
                0
            }
            Err(error) => return Err(error),
        };
        let phase = phase.load(Ordering::Acquire);
        match &mut counting {
            Some(counting) if received == 0 && phase == OVER => return Ok(counting.end()),
            Some(counting) => counting.count.take(&buffer[..received]),
            None if phase >= COUNTED => counting = Some(Counting::begin(machine::thread_cpu)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages are counted over the time that counting took, not over the planned one.
    #[test]
    fn rates_are_those_of_the_span() {
        let count = Count {
            messages: 300,
            ..Count::default()
        };
        let cost = count.cost(Duration::from_millis(50), Duration::from_millis(200));
        assert!((cost.received_per_second - 1500.0).abs() < 1e-9);
        assert!((cost.cores - 0.25).abs() < 1e-9);
    }

    /// A blocking socket costs little at a low rate and a spinning one a core, and both receive what is offered.
    #[test]
    fn kernel_receivers_are_measured() {
        let plan = |waits| Plan {
            offered: 2_000,
            milliseconds: 200,
            waits,
        };
        for waits in [Waits::Spins, Waits::Sleeps] {
            let cost = measure_kernel(&plan(waits), &Place::LOOPBACK).unwrap();
            assert!(cost.received_per_second > 0.0, "{cost:?}");
            assert!(cost.p50_us > 0.0 && cost.p99_us >= cost.p50_us, "{cost:?}");
            if waits == Waits::Sleeps {
                assert!(cost.cores < 0.5, "{cost:?}");
            }
        }
        let text = serde_json::to_string(&plan(Waits::Spins)).unwrap();
        assert!(serde_json::from_str::<crate::delay::Plan>(&text).is_err());
    }
}
