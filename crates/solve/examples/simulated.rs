//! Asynchronous relaxation by more workers than a machine has cores: the production engine, board, judge and workers, a simulated switch, virtual time.
//! Only computing is not done by the clock: an entry of A takes as long as this machine takes for one when it reads rows from memory, which is measured
//! first (`--value-ps` sets it).
//!
//! `--measured 1,2` runs the same system for real, too, with as many workers on this machine over UDP, and prints both: there an entry takes as long as
//! with so many threads at once.
//!
//! ```text
//! cargo run --release -p tsumuji-solve --example simulated -- --system dense:8000 --workers 1,2 --measured 1,2
//! cargo run --release -p tsumuji-solve --example simulated -- --workers 1,2,4,8,16,32,64 --system dense:16000 --rate 10000
//! ```

#[path = "../tests/clusters/mod.rs"]
mod clusters;

use std::collections::HashMap;

use tsumuji_board::Elements;
use tsumuji_proto::{Channel, Config, Destination, Duration, Instant, NodeId};
use tsumuji_sim::{Net, Seed};
use tsumuji_solve::distributed::simulated::{Costs, Judge, Message, Summary, Update, Work, Worker};
use tsumuji_solve::distributed::{Input, SolveConfig};
use tsumuji_solve::local::{Inner, Relaxation, Sweeper};
use tsumuji_solve::system::Generate;

/// What a processor takes for a received frame, and for one that it sends.
const FRAME_COST: Duration = Duration::from_nanos(500);
/// A step without computing, too, takes time.
const STEP_NS: u64 = 100;
/// Frames are looked for so often.
const QUANTUM: Duration = Duration::from_micros(10);
/// Values in a frame of 1,500 bytes with all heads.
const CAPACITY_BYTES: usize = 1_400;
/// Channel of the frames.
const FRAMES: u16 = 2;
/// Virtual time that ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) system: Generate,
    pub(crate) workers: usize,
    pub(crate) loss_percent: u32,
    pub(crate) rate_mbit: u64,
    pub(crate) elements: Elements,
    /// What an entry of A takes, in picoseconds.
    pub(crate) value_ps: u64,
    /// This worker (from 1) computes at half speed.
    pub(crate) slow: Option<usize>,
    pub(crate) seed: u64,
}

impl Case {
    fn config(&self) -> SolveConfig {
        SolveConfig {
            inner: Inner::Sweep,
            elements: self.elements,
            combines: false,
            seed: self.seed,
            ..SolveConfig::default()
        }
    }
}

/// What it came to.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) summary: Summary,
    /// Virtual time from the first lap to the last exact residual.
    pub(crate) seconds: f64,
    pub(crate) frames: u64,
    pub(crate) lost_frames: u64,
}

struct Node {
    id: NodeId,
    worker: Worker,
    messages_seen: usize,
    frames_seen: usize,
    free_at: Instant,
    computed_ns: u64,
    has_left: bool,
}

struct Run<'c> {
    net: Net,
    ids: Vec<NodeId>,
    case: &'c Case,
    /// Frames by sender and number: the net carries as many bytes of its own, and checks them.
    contents: HashMap<(NodeId, u32), Update>,
    number: u32,
}

/// Runs a case to its end.
pub(crate) fn solve(case: &Case) -> Found {
    let mut net = Net::new(Seed::from_env_or(case.seed))
        .rate_mbit(case.rate_mbit)
        .delay_us(5..8)
        .patience(PATIENCE);
    let engine = Config {
        keep_alive: Duration::from_secs(1),
        dead_after: Duration::from_secs(10),
        receive_frames: 4096,
        ..tsumuji_sim::config()
    };
    let ids = net.mesh(case.workers + 1, &engine);
    for id in &ids {
        net.set_frame_cost(*id, FRAME_COST);
    }
    net.run_until_up();
    net.conditions().loss_ppm = case.loss_percent * 10_000;
    let run = Run {
        net,
        ids,
        case,
        contents: HashMap::new(),
        number: 0,
    };
    run.drive()
}

impl Run<'_> {
    fn drive(mut self) -> Found {
        let config = self.case.config();
        let judge = Judge::new(self.case.system, &config, self.case.workers);
        let mut judge = judge.expect("the case was checked");
        let now = self.net.now();
        let mut nodes: Vec<Node> = (0..self.case.workers)
            .map(|worker| Node {
                id: self.ids[worker + 1],
                worker: Worker::new(worker, CAPACITY_BYTES),
                messages_seen: 0,
                frames_seen: 0,
                free_at: now,
                computed_ns: 0,
                has_left: false,
            })
            .collect();
        let (mut messages_seen, mut frames_seen) = (0, 0);
        let mut began = None;
        loop {
            let messages = judge.outgoing();
            self.send(0, messages);
            self.net.run_for(QUANTUM);
            let now = self.net.now();
            assert!(
                now.since(Instant::from_nanos(0)) < PATIENCE,
                "the run hangs"
            );
            let (messages, frames) =
                self.arrived(self.ids[0], &mut messages_seen, &mut frames_seen);
            for (from, bytes) in messages {
                judge.take(from, &bytes).expect("workers are in order");
            }
            for (from, update) in frames {
                judge.frame(usize::from(from.0), &update);
            }
            if judge.is_iterating() {
                began.get_or_insert(now);
            }
            for (at, node) in nodes.iter_mut().enumerate() {
                self.advance(at, node, now);
            }
            judge = match judge.result() {
                Ok(summary) => {
                    let began = began.expect("it iterated");
                    return Found {
                        summary,
                        seconds: now.since(began).as_nanos() as f64 / 1e9,
                        frames: self.net.traffic().sent_frames,
                        lost_frames: self.net.traffic().lost,
                    };
                }
                Err(judge) => *judge,
            };
        }
    }

    /// Lets a worker do what it can until now.
    fn advance(&mut self, at: usize, node: &mut Node, now: Instant) {
        if node.has_left || node.free_at > now {
            return;
        }
        // It was idle until now, or computed until then.
        let quantum_ago = Instant::from_nanos(now.as_nanos() - QUANTUM.as_nanos());
        node.free_at = node.free_at.max(quantum_ago);
        let (messages, frames) =
            self.arrived(node.id, &mut node.messages_seen, &mut node.frames_seen);
        for (from, bytes) in messages {
            node.worker.take(from, &bytes).expect("all are in order");
        }
        // Receiving takes the time of the core that computes.
        let received_ns = frames.len() as u64 * FRAME_COST.as_nanos();
        node.free_at += Duration::from_nanos(received_ns);
        node.worker.exchanged(received_ns);
        for (from, update) in frames {
            node.worker.frame(from, &update);
        }
        let half = if self.case.slow == Some(at + 1) {
            2.0
        } else {
            1.0
        };
        while node.free_at <= now && !node.has_left {
            let mut updates = Vec::new();
            let costs = Costs {
                frame_ns: FRAME_COST.as_nanos(),
                compute_ns: node.computed_ns,
            };
            let now_ns = node.free_at.as_nanos();
            let work = node.worker.step(now_ns, costs, &mut updates);
            let entries = match work.expect("all are in order") {
                Work::Read(entries) => entries,
                Work::Waits => {
                    node.free_at = now + Duration::from_nanos(1);
                    0.0
                }
                Work::Leaves => {
                    node.has_left = true;
                    0.0
                }
            };
            let sent = updates.len() as u64 * FRAME_COST.as_nanos();
            let computed = (entries * half * self.case.value_ps as f64 / 1e3) as u64;
            node.computed_ns = computed;
            node.free_at += Duration::from_nanos(STEP_NS + computed + sent);
            for update in updates {
                self.publish(node.id, update);
            }
        }
        let messages = node.worker.outgoing();
        self.send(at + 1, messages);
    }

    fn send(&mut self, from: usize, messages: Vec<Message>) {
        for message in messages {
            let (from, to) = (self.ids[from], self.ids[message.to]);
            self.net.send(from, to, Channel::ordered(0), &message.bytes);
        }
    }

    fn publish(&mut self, from: NodeId, update: Update) {
        let length = update.payload.len();
        let (to, key) = (update.to.clone(), update.key);
        // One frame reaches all where all but the judge read it.
        let targets: Vec<Destination> = if to.len() > 1 && to.len() + 2 == self.ids.len() {
            vec![Destination::Broadcast]
        } else {
            to.into_iter().map(Destination::Peer).collect()
        };
        for to in targets {
            self.number = self.number.wrapping_add(1);
            self.contents.insert((from, self.number), update.clone());
            // A frame that finds no room is lost, as in production.
            let _ = self
                .net
                .publish(from, to, (FRAMES, 0), self.number, key, length);
        }
    }

    /// What has come to a node since the last call: messages, and frames that are still known.
    #[allow(clippy::type_complexity)]
    fn arrived(
        &self,
        id: NodeId,
        messages_seen: &mut usize,
        frames_seen: &mut usize,
    ) -> (Vec<(usize, Vec<u8>)>, Vec<(NodeId, Update)>) {
        let deliveries = self.net.deliveries(id)[*messages_seen..].iter();
        let bodies = &self.net.received(id)[*messages_seen..];
        let messages: Vec<_> = deliveries
            .zip(bodies)
            .map(|(delivery, bytes)| (usize::from(delivery.from.0), bytes.clone()))
            .collect();
        *messages_seen += messages.len();
        let arrived = &self.net.datagrams(id)[*frames_seen..];
        *frames_seen += arrived.len();
        let frames = arrived.iter().filter_map(|datagram| {
            let update = self.contents.get(&(datagram.source, datagram.lap))?;
            Some((datagram.source, update.clone()))
        });
        (messages, frames.collect())
    }
}

/// Picoseconds that this machine takes for an entry when `threads` threads at once sweep rows that do not fit its caches.
fn measured_ps(system: &Generate, threads: usize) -> u64 {
    const ENTRIES: usize = 64 << 20;
    const LAPS: u32 = 3;
    let n = system.n();
    let rows = if system.is_dense() {
        (ENTRIES / n).clamp(1, n / threads)
    } else {
        (n / threads).min(4 << 20)
    };
    let gate = std::sync::Barrier::new(threads);
    let sweep = |thread: usize| {
        let rows = thread * rows..(thread + 1) * rows;
        let block = system.rows(rows, 1, tsumuji_solve::system::Solution::Ones);
        let relaxation = Relaxation::new(Inner::Sweep, 1.0).expect("omega is 1");
        let mut sweeper = Sweeper::new(block, relaxation).expect("a good diagonal");
        let mut x = vec![0.0; n];
        let entries = sweeper.block().stored();
        let lap = |_| {
            gate.wait();
            let began = std::time::Instant::now();
            let laps: Vec<_> = sweeper.lap(64).collect();
            for rows in laps {
                sweeper.relax(rows, &mut x);
            }
            began.elapsed().as_nanos() as f64
        };
        1e3 * (0..LAPS).map(lap).fold(f64::INFINITY, f64::min) / entries as f64
    };
    let sweep = &sweep;
    let slowest = std::thread::scope(|scope| {
        let team: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || sweep(thread)))
            .collect();
        let each = team
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        each.fold(0.0, f64::max)
    });
    slowest.max(1.0) as u64
}

/// Seconds and laps of the same on this machine, over UDP, each node a thread.
fn measured(case: &Case) -> (f64, f64) {
    let input = Input::Generate(&case.system);
    let workers = case.workers as u16;
    let outcome = clusters::solve(clusters::Over::Udp, workers, 0.0, input, &case.config()).outcome;
    assert!(outcome.converged, "{}", outcome.reason);
    let laps: u64 = outcome.laps.iter().sum();
    let seconds = outcome.seconds.iterate + outcome.seconds.verify;
    (seconds, laps as f64 / case.workers as f64)
}

/// Prints both, in turn, `ROUNDS` times.
fn validate(case: &Case, workers: &[usize]) {
    const ROUNDS: usize = 3;
    println!("\nsimulated and measured (this machine, UDP, medians of {ROUNDS})");
    println!("workers  ps an entry  simulated s  measured s  ratio  laps  laps measured");
    for &workers in workers {
        let mut rounds: Vec<_> = (0..ROUNDS)
            .map(|_| {
                let value_ps = measured_ps(&case.system, workers);
                let case = Case {
                    workers,
                    value_ps,
                    ..case.clone()
                };
                let found = solve(&case);
                let laps: u64 = found.summary.laps.iter().sum();
                let (seconds, real_laps) = measured(&case);
                let laps = laps as f64 / workers as f64;
                (
                    found.seconds / seconds,
                    value_ps,
                    found.seconds,
                    seconds,
                    laps,
                    real_laps,
                )
            })
            .collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (ratio, value_ps, simulated, seconds, laps, real_laps) = rounds[ROUNDS / 2];
        println!(
            "{workers:>7} {value_ps:>12} {simulated:>12.4} {seconds:>11.4} {ratio:>6.2} {laps:>5.1} {real_laps:>14.1}"
        );
    }
}

/// Reads `--name VALUE` pairs. Beside the cases: how many workers are measured, too.
fn cases() -> Result<(Vec<Case>, Vec<usize>), String> {
    let mut case = Case {
        system: "dense:4000".parse().expect("a system"),
        workers: 0,
        loss_percent: 0,
        rate_mbit: 10_000,
        elements: Elements::Auto,
        value_ps: 0,
        slow: None,
        seed: 1,
    };
    let mut workers = vec![1, 2, 4, 8, 16, 32, 64];
    let mut measured = Vec::new();
    let words: Vec<String> = std::env::args().skip(1).collect();
    for pair in words.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("{} has no value", pair[0]));
        };
        let number = || {
            value
                .parse::<u64>()
                .map_err(|_| format!("{value} is no number"))
        };
        match name.as_str() {
            "--workers" | "--measured" => {
                let list = value.split(',').map(str::parse);
                let list: Vec<usize> = list
                    .collect::<Result<_, _>>()
                    .map_err(|_| format!("{value} are no numbers"))?;
                *(if name == "--workers" {
                    &mut workers
                } else {
                    &mut measured
                }) = list;
            }
            "--system" => case.system = value.parse().map_err(|error| format!("{error}"))?,
            "--loss" => case.loss_percent = number()? as u32,
            "--rate" => case.rate_mbit = number()?,
            "--elements" => case.elements = Elements::Fixed(number()?.max(1) as usize),
            "--value-ps" => case.value_ps = number()?,
            "--slow" => case.slow = Some(number()? as usize),
            "--seed" => case.seed = number()?,
            _ => {
                return Err(format!(
                    "{name}: accepted are --workers A,B,…, --measured A,B,…, --system SPEC, --loss PERCENT, --rate MBIT, --elements E, --value-ps PS, --slow WORKER, --seed S"
                ));
            }
        }
    }
    if workers
        .iter()
        .chain(&measured)
        .any(|&workers| workers == 0 || workers > case.system.n())
    {
        return Err(format!("--workers: 1 to {}", case.system.n()));
    }
    if case.value_ps == 0 {
        case.value_ps = measured_ps(&case.system, 1);
    }
    let with = |workers| Case {
        workers,
        ..case.clone()
    };
    Ok((workers.into_iter().map(with).collect(), measured))
}

/// Least-squares slope of log time over log workers.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0);
    for (workers, seconds) in points {
        let (a, b) = (workers.ln(), seconds.ln());
        (x, y, xx, xy) = (x + a, y + b, xx + a * a, xy + a * b);
    }
    (count * xy - x * y) / (count * xx - x * x)
}

// Also compiled into the test of the same name.
#[allow(dead_code, reason = "the test calls `solve`")]
fn main() {
    let (cases, measured) = match cases() {
        Ok(cases) => cases,
        Err(what) => {
            eprintln!("simulated: {what}");
            std::process::exit(2);
        }
    };
    let first = &cases[0];
    println!(
        "simulated: {}, {} Mbit/s, {} % of frames lost, {} ps an entry",
        first.system, first.rate_mbit, first.loss_percent, first.value_ps
    );
    println!("workers  seconds   laps  frames   lost  residual  speed-up");
    let mut points = Vec::new();
    for case in &cases {
        let found = solve(case);
        let summary = &found.summary;
        let laps: u64 = summary.laps.iter().sum();
        points.push((case.workers as f64, found.seconds));
        println!(
            "{:>7} {:>8.4} {:>6.1} {:>7} {:>6}  {:>8.1e} {:>9.2}",
            case.workers,
            found.seconds,
            laps as f64 / case.workers as f64,
            found.frames,
            found.lost_frames,
            summary.residual,
            points[0].1 * points[0].0 / found.seconds,
        );
        assert!(summary.reason.is_converged(), "{}", summary.reason);
    }
    if points.len() > 1 {
        println!(
            "slope {:.3} of log seconds over log workers",
            slope(&points)
        );
    }
    if !measured.is_empty() {
        validate(first, &measured);
    }
}
