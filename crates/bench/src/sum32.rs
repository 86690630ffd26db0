//! The paper's sum of 32 values (L2RTC, figure 12): a client sends 64 bytes, the server adds up the 32 numbers in them, as often as asked, and
//! answers with the sum. Messages of ours, served by an executor, and TCP between the same places.
//!
//! [`measure`] runs in the parent (node 0, the client) and starts the server, which calls `serve`. [`tcp()`] runs both ends in this process, each on
//! its core. Every answer is checked. [`verdict`] judges the adaptive executor.

pub mod verdict;

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tsumuji_node::{
    Answers, Channel, ChannelOptions, Context, Delivery, Executor, ExecutorOptions, Handler,
    LaunchSpec, NodeId, Request, Security, endpoint_from_env,
};

use crate::exchange::ExchangeError;
use crate::limits::place::Place;
use crate::limits::{Checks, pin_to, relax, tcp};
use crate::machine;
use crate::misses::Misses;
use crate::processes::{self, watch};
use crate::serve::Task;

/// Numbers of a request, and its bytes.
pub const NUMBERS: usize = 32;
const REQUEST_BYTES: usize = 2 * NUMBERS;
const ANSWER_BYTES: usize = 4;
const CHANNEL: u16 = 1;
const SERVER: NodeId = NodeId(1);
/// Time before anything is counted.
const WARM_UP: Duration = Duration::from_millis(100);
/// Answers between two readings of the clock at least.
const ANSWERS_PER_CHECK: u64 = 64;
/// An answer that takes longer is lost.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// Polls between two checks whether the other side still lives.
const POLLS_PER_CHECK: u32 = 1 << 16;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// How often the server adds up the numbers.
    pub loops: u32,
    /// The executor of the service; by name, `rtc`, `pipeline` or `adaptive`.
    #[serde(with = "by_name")]
    pub executor: Executor,
    /// Requests on their way at a time.
    pub outstanding: u64,
    /// Time in which answers are counted.
    pub seconds: f64,
    /// Both sides spin, each on a core of its own; else the endpoints' adaptive policy.
    pub spin: bool,
    /// Bytes of a table of which the server reads [`LINES`] cache lines for each request: evicts as much from the caches as a program with such data.
    pub working_set_bytes: usize,
}

/// Cache lines that a request reads of the working set.
pub const LINES: usize = 32;
/// Numbers in a cache line.
const LINE_NUMBERS: usize = 8;

/// The server's other data.
struct WorkingSet {
    table: Vec<u64>,
    /// Requests so far.
    requests: AtomicU64,
}

impl WorkingSet {
    fn new(bytes: usize) -> Self {
        Self {
            table: (0..bytes as u64 / 8).collect(),
            requests: AtomicU64::new(0),
        }
    }

    /// Reads lines here and there.
    #[inline]
    fn touch(&self) {
        let lines = self.table.len() / LINE_NUMBERS;
        if lines == 0 {
            return;
        }
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        for line in 0..LINES as u64 {
            // Multiplication by the golden ratio spreads the numbers.
            let place = (request * LINES as u64 + line).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            std::hint::black_box(self.table[place as usize % lines * LINE_NUMBERS]);
        }
    }
}

pub(crate) mod by_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tsumuji_node::Executor;

    pub(crate) fn serialize<S: Serializer>(executor: &Executor, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(executor.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Executor, D::Error> {
        let name = String::deserialize(from)?;
        name.parse().map_err(D::Error::custom)
    }
}

impl Plan {
    fn cpu_of(&self, side: usize) -> Option<usize> {
        machine::two_cpus()
            .filter(|_| self.spin)
            .map(|cpus| cpus[side])
    }
}

/// Adds up the numbers of a request, as often as asked: sums are 32 bits long and wrap.
#[inline]
pub fn sum(request: &[u8], loops: u32) -> u32 {
    let mut total = 0_u32;
    for _ in 0..loops {
        // Each loop reads them again.
        let numbers = std::hint::black_box(request).chunks_exact(2);
        total = numbers.fold(total, |total, bytes| {
            total.wrapping_add(u16::from_le_bytes([bytes[0], bytes[1]]).into())
        });
    }
    total
}

/// Sums a second that one core computes, without any communication: the limit. The best of some slices of the time, as others may take the core.
pub fn compute_rate(loops: u32, time: Duration) -> f64 {
    const SLICES: u32 = 10;
    let request = request();
    let slice = || {
        let (begun, mut sums) = (Instant::now(), 0_u64);
        while begun.elapsed() < time / SLICES {
            for _ in 0..(1_000 / loops.max(1)).max(1) {
                std::hint::black_box(sum(std::hint::black_box(&request), loops));
                sums += 1;
            }
        }
        sums as f64 / begun.elapsed().as_secs_f64()
    };
    (0..SLICES).map(|_| slice()).fold(0.0, f64::max)
}

fn request() -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    for (number, place) in (0_u16..).zip(bytes.chunks_exact_mut(2)) {
        place.copy_from_slice(&(number.wrapping_mul(2_741) ^ 0x5a5a).to_le_bytes());
    }
    bytes
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Sums a second.
    pub sums_per_second: f64,
    /// Misses of the nearest data cache for each sum, of client and server; `None`: they are not counted.
    pub misses_per_sum: Option<f64>,
}

/// Counts answers in the time of the measurement.
struct Count<'a> {
    expected: [u8; ANSWER_BYTES],
    wrong: u64,
    answers: u64,
    begun: Instant,
    /// Answers, time and misses when counting began.
    from: Option<(u64, Instant, Option<u64>)>,
    time: Duration,
    misses: Option<&'a Misses>,
}

impl<'a> Count<'a> {
    fn new(plan: &Plan, misses: Option<&'a Misses>) -> Self {
        Self {
            expected: sum(&request(), plan.loops).to_le_bytes(),
            wrong: 0,
            answers: 0,
            begun: Instant::now(),
            from: None,
            time: Duration::from_secs_f64(plan.seconds),
            misses,
        }
    }

    #[inline]
    fn answer(&mut self, answer: &[u8]) {
        self.wrong += u64::from(answer != self.expected);
        self.answers += 1;
    }

    /// What was found, once the time is over.
    fn rate(&mut self) -> Option<Rate> {
        let (now, misses) = (Instant::now(), self.misses);
        let count = || misses.and_then(Misses::count);
        let Some((answers, since, missed)) = self.from else {
            if now - self.begun >= WARM_UP {
                self.from = Some((self.answers, now, count()));
            }
            return None;
        };
        let (span, sums) = (now - since, (self.answers - answers) as f64);
        // Late answers are waited for: none is no rate.
        (span >= self.time && sums > 0.0).then(|| Rate {
            sums_per_second: sums / span.as_secs_f64(),
            misses_per_sum: (count().zip(missed)).map(|(now, before)| (now - before) as f64 / sums),
        })
    }
}

impl Handler for Count<'_> {
    #[inline]
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.answer(delivery.body.bytes());
    }
}

/// Measures sums a second by messages; `spec` is made by [`crate::exchange::spec`].
pub fn measure(
    plan: &Plan,
    spec: LaunchSpec,
    security: &Security,
    misses: Option<&Misses>,
) -> Result<Rate, ExchangeError> {
    let mut launcher = processes::start(spec, &Task::Sum32(*plan), security)?;
    let _pinned = processes::pin(plan.cpu_of(0))?;
    let mut endpoint = processes::meet(&mut launcher, processes::options(plan.spin), security)?;
    let (request, channel) = (request(), Channel::ordered(CHANNEL));
    let mut count = Count::new(plan, misses);
    let (mut sent, mut checked, mut polls) = (0, 0, 0_u32);
    let (mut seen, mut moved) = (0, Instant::now());
    let rate = loop {
        if sent - count.answers < plan.outstanding {
            let mut batch = endpoint.batch();
            while sent - count.answers < plan.outstanding {
                batch.send(SERVER, channel, &request)?;
                sent += 1;
            }
        }
        processes::poll(&mut endpoint, &mut count, plan.spin)?;
        polls += if plan.spin { 1 } else { POLLS_PER_CHECK / 64 };
        if count.answers >= checked + ANSWERS_PER_CHECK || polls >= POLLS_PER_CHECK {
            checked = count.answers;
            if let Some(rate) = count.rate() {
                break rate;
            }
        }
        if polls >= POLLS_PER_CHECK {
            polls = 0;
            watch(&mut launcher)?;
            if count.answers > seen {
                (seen, moved) = (count.answers, Instant::now());
            } else if moved.elapsed() > LOST_AFTER {
                return Err(ExchangeError::Stalled);
            }
        }
    };
    if count.wrong > 0 {
        return Err(ExchangeError::Wrong {
            answers: count.wrong,
        });
    }
    let _ = endpoint.close(Duration::from_millis(100));
    Ok(rate)
}

/// The server, in the process that [`measure`] starts: until the client leaves.
pub(crate) fn serve(plan: &Plan) -> Result<(), ExchangeError> {
    let mut endpoint = endpoint_from_env(processes::options(plan.spin))?;
    let (loops, data) = (plan.loops, WorkingSet::new(plan.working_set_bytes));
    let service = move |request: &Request<'_>, answers: &mut Answers<'_>| {
        data.touch();
        // The client has no more on its way than a queue holds, so there is room.
        let _ = answers.reply(&sum(request.body, loops).to_le_bytes());
    };
    let executor = ExecutorOptions {
        executor: plan.executor,
        ..ExecutorOptions::default()
    };
    endpoint.serve(CHANNEL, ChannelOptions::default(), executor, service)?;
    // After the executor: its workers take the other cores.
    let _pinned = processes::pin(plan.cpu_of(1))?;
    let client = NodeId(0);
    struct Nothing;
    impl Handler for Nothing {
        fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
    }
    while endpoint.ended_sessions(client) == 0 {
        processes::poll(&mut endpoint, &mut Nothing, plan.spin)?;
    }
    Ok(())
}

/// Name of an executor of ours in tables.
pub fn ours(executor: Executor) -> String {
    format!("ours, {executor}")
}

/// How a program uses TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tcp {
    /// One call for each message; the kernel joins small ones (Nagle).
    Plain,
    /// One call for each message, TCP_NODELAY.
    NoDelay,
    /// TCP_NODELAY, and one call for all messages that are there: the best that a program can do.
    Batched,
}

impl Tcp {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::NoDelay, Self::Batched];

    /// Name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "TCP",
            Self::NoDelay => "TCP, NODELAY",
            Self::Batched => "TCP, NODELAY, batched calls",
        }
    }
}

/// Sums a second by TCP between two places; both ends spin.
pub fn tcp(
    plan: &Plan,
    how: Tcp,
    places: &[Place; 2],
    misses: Option<&Misses>,
) -> io::Result<Rate> {
    let (client, server) = tcp::connection(&places[0], &places[1])?;
    for stream in [&client, &server] {
        stream.set_nodelay(how != Tcp::Plain)?;
        stream.set_nonblocking(true)?;
    }
    let cpus = machine::two_cpus();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            pin_to(cpus, 1);
            let mut end = End::new(server, how, REQUEST_BYTES, cpus);
            // Ends when the client has gone; a failure shows as missing answers.
            let (mut answers, data) = (Vec::new(), WorkingSet::new(plan.working_set_bytes));
            let mut serve_once = || {
                end.take(|request| {
                    data.touch();
                    answers.push(sum(request, plan.loops).to_le_bytes());
                })?;
                for answer in answers.drain(..) {
                    end.put(&answer, &stop)?;
                }
                end.push(&stop)
            };
            let mut checks = Checks::default();
            while !(checks.is_due() && stop.load(Ordering::Relaxed)) {
                if serve_once().is_err() {
                    break;
                }
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let end = End::new(client, how, ANSWER_BYTES, cpus);
            let asked = ask(Count::new(plan, misses), plan.outstanding, end, &stop);
            stop.store(true, Ordering::Relaxed);
            asked
        });
        let rate = asking.join().expect("asking does not panic");
        serving.join().expect("serving does not panic");
        rate
    })
}

fn ask(
    mut count: Count<'_>,
    outstanding: u64,
    mut end: End,
    stop: &AtomicBool,
) -> io::Result<Rate> {
    let request = request();
    let (mut sent, mut checked) = (0, 0);
    let (mut seen, mut moved, mut checks) = (0, Instant::now(), Checks::default());
    loop {
        while sent - count.answers < outstanding {
            end.put(&request, stop)?;
            sent += 1;
        }
        end.push(stop)?;
        end.take(|answer| count.answer(answer))?;
        if checks.is_due() {
            if count.answers > seen {
                (seen, moved) = (count.answers, Instant::now());
            } else if moved.elapsed() > LOST_AFTER {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        if count.answers >= checked + ANSWERS_PER_CHECK {
            checked = count.answers;
            if let Some(rate) = count.rate() {
                return if count.wrong == 0 {
                    Ok(rate)
                } else {
                    Err(io::Error::other("wrong sums"))
                };
            }
        }
    }
}

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// One end of a TCP connection with messages of one length.
struct End {
    stream: TcpStream,
    is_batched: bool,
    message_bytes: usize,
    input: Box<[u8]>,
    /// Of `input`, the beginning of a message whose rest has not arrived.
    held: usize,
    output: Vec<u8>,
    cpus: Option<[usize; 2]>,
}

impl End {
    fn new(stream: TcpStream, how: Tcp, message_bytes: usize, cpus: Option<[usize; 2]>) -> Self {
        Self {
            stream,
            is_batched: how == Tcp::Batched,
            message_bytes,
            input: vec![0; READ_BYTES + message_bytes].into(),
            held: 0,
            output: Vec::with_capacity(READ_BYTES),
            cpus,
        }
    }

    /// Hands over whole messages that are there.
    fn take(&mut self, mut message: impl FnMut(&[u8])) -> io::Result<()> {
        let read = match self.stream.read(&mut self.input[self.held..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                relax(self.cpus);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let there = self.held + read;
        let whole = there / self.message_bytes * self.message_bytes;
        self.input[..whole]
            .chunks_exact(self.message_bytes)
            .for_each(&mut message);
        self.input.copy_within(whole..there, 0);
        self.held = there - whole;
        Ok(())
    }

    /// Sends a message, or keeps it for the next `push`.
    fn put(&mut self, message: &[u8], stop: &AtomicBool) -> io::Result<()> {
        self.output.extend_from_slice(message);
        if self.is_batched && self.output.len() < READ_BYTES {
            return Ok(());
        }
        self.push(stop)
    }

    fn push(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let (stream, output) = (&mut self.stream, &self.output);
        tcp::spin(stop, self.cpus, output.len(), |at| {
            stream.write(&output[at..])
        })?;
        self.output.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sum of several loops is as many times that of one.
    #[test]
    fn sums_are_sums() {
        let request = request();
        let once = sum(&request, 1);
        let numbers = request
            .chunks_exact(2)
            .map(|bytes| u32::from(u16::from_le_bytes([bytes[0], bytes[1]])));
        assert_eq!(once, numbers.sum::<u32>());
        assert_eq!(sum(&request, 1000), once.wrapping_mul(1000));
        assert_eq!(sum(&request, 0), 0);
        let time = Duration::from_millis(5);
        let (light, heavy) = (compute_rate(1, time), compute_rate(1000, time));
        assert!(light > 20.0 * heavy, "{light} and {heavy}");
    }

    /// TCP answers in all three ways, with one request on its way and with many.
    #[test]
    fn tcp_answers() {
        for how in Tcp::ALL {
            for outstanding in [1, 200] {
                let plan = Plan {
                    loops: 10,
                    executor: Executor::Adaptive,
                    outstanding,
                    seconds: 0.05,
                    spin: false,
                    working_set_bytes: 0,
                };
                let rate = tcp(&plan, how, &Place::LOOPBACK, None).unwrap();
                assert!(
                    rate.sums_per_second > 100.0 && rate.misses_per_sum.is_none(),
                    "{how:?} {outstanding}: {rate:?}"
                );
            }
        }
    }

    /// A plan is read as it was written, and not taken for another measurement's.
    #[test]
    fn plans_are_read_back() {
        let plan = Plan {
            loops: 100,
            executor: Executor::Pipeline,
            outstanding: 64,
            seconds: 0.5,
            spin: true,
            working_set_bytes: 0,
        };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
