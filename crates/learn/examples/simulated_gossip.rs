//! Learning by more workers than a machine can hold: the production engine and the production decisions of judge and workers, a
//! simulated switch, virtual time. Only computing is not simulated by the clock: a row takes as long as this machine takes for one, which is measured
//! first with one process (`--row-ps` sets it). Certifying takes no time.
//!
//! With several numbers of workers it prints a table: the time until the gradient's norm is below `--tol`, and so to the same loss. `--measured` adds
//! lines of workers of this machine, each a thread with an endpoint, over shared memory. Bytes are those of frames there, and of messages where
//! simulated.
//!
//! ```text
//! cargo run --release -p tsumuji-learn --example simulated_gossip -- --workers 300 --loss 10 --method sgd
//! cargo run --release -p tsumuji-learn --example simulated_gossip -- --measured 1,2,4,8 --workers 1,16,64,256 --loss 0 --method newton
//! ```

#[path = "../tests/clusters/mod.rs"]
mod clusters;

use tsumuji_learn::data::{Data, Features, Targets};
use tsumuji_learn::gossip::simulated::{Judge, Message, Work, Worker};
use tsumuji_learn::report::{Outcome, Reason};
use tsumuji_learn::{
    Average, Kind, LearnConfig, Method, Mode, Preparation, Problem, SgdConfig, Share, single,
};
use tsumuji_proto::{Channel, Config, Destination, Duration, Instant, NodeId};
use tsumuji_sim::{Arrivals, Net, Seed};
use tsumuji_wire::Datagram;

/// A loop without computing, too, takes time.
const LOOP_NS: u64 = 500;
/// What a processor takes for a received frame.
const FRAME_COST: Duration = Duration::from_nanos(500);
/// Messages are looked for so often.
const QUANTUM: Duration = Duration::from_micros(20);
/// Longest datagram: one frame with room for all heads.
const DATAGRAM_BYTES: usize = 1_400;
/// Channel of the datagrams.
const DATAGRAMS: u16 = 2;
/// Waits before a statistic is asked for again, as in production.
const ASK: Duration = Duration::from_millis(2);
const ASK_MAX: Duration = Duration::from_millis(64);
/// Virtual time that ends a run that hangs.
const PATIENCE: Duration = Duration::from_secs(600);
/// Tolerances where none is stated, by Newton's method and by SGD; the optimum is found to the first.
const TOL: f64 = 1e-9;
const TOL_SGD: f64 = 1e-3;
/// Rounds in which numbers of workers are measured in turn.
const ROUNDS: usize = 3;

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) workers: usize,
    pub(crate) loss_percent: u32,
    pub(crate) method: Method,
    pub(crate) average: Average,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Rows lie by class, so that most workers hold only one; else they are alike everywhere.
    pub(crate) is_sorted: bool,
    pub(crate) epochs: u64,
    pub(crate) period: u64,
    /// Norm of the gradient that ends a run.
    pub(crate) tol: f64,
    /// What a row takes, in picoseconds.
    pub(crate) row_ps: u64,
    /// This worker (from 1) ends so long after the rows were sent.
    pub(crate) dies: Option<(usize, Duration)>,
    pub(crate) seed: u64,
}

impl Case {
    fn config(&self) -> LearnConfig {
        LearnConfig {
            kind: Kind::Logistic,
            method: self.method,
            average: self.average,
            sgd: SgdConfig {
                epochs: self.epochs,
                period: self.period,
                ..SgdConfig::default()
            },
            l2: 1e-2,
            tol: self.tol,
            seed: self.seed,
        }
    }
}

/// What is learned, and what one process finds by Newton's method.
struct Goal {
    problem: Problem,
    config: LearnConfig,
    optimum: Outcome,
}

impl Goal {
    fn new(case: &Case) -> Self {
        let config = case.config();
        let problem = problem(case, &config);
        let exact = LearnConfig {
            method: Method::Newton,
            tol: TOL,
            ..config
        };
        let optimum = single::learn(&problem.share, &exact, &mut || false);
        Self {
            problem,
            config,
            optimum,
        }
    }

    /// Loss of all rows beyond the least possible, as a part of that.
    fn excess_loss(&self, theta: &[f64]) -> f64 {
        objective(&self.problem.share, theta, self.config.l2) / self.optimum.loss - 1.0
    }
}

/// What it came to.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) outcome: Outcome,
    /// Virtual time from when the first worker computes to the end; the rows are there then, but for some that are on their way.
    pub(crate) seconds: f64,
    pub(crate) frames: u64,
    pub(crate) lost_frames: u64,
    /// Loss of all rows beyond the least possible, as a part of that: also if some do not take part.
    pub(crate) excess_loss: f64,
    /// Distance of the parameters from those that one process finds by Newton's method from all rows.
    pub(crate) from_optimum: f64,
}

impl Found {
    /// The gradient's norm got below the tolerance.
    pub(crate) fn is_converged(&self) -> bool {
        self.outcome.reason == Reason::Converged
    }
}

struct Node {
    id: NodeId,
    worker: Option<Worker>,
    free_at: Instant,
    /// When peers are asked, and how long after that again.
    ask_at: Instant,
    ask_after: Duration,
    has_left: bool,
}

/// A logistic problem.
fn problem(case: &Case, config: &LearnConfig) -> Problem {
    let mut random = fastrand::Rng::with_seed(case.seed);
    let mut rows: Vec<(u32, Vec<f64>)> = Vec::new();
    for _ in 0..case.rows {
        let x: Vec<f64> = (0..case.columns)
            .map(|_| 2.0 * random.f64() - 1.0)
            .collect();
        let id = u32::from(x.iter().sum::<f64>() + random.f64() > 0.5);
        rows.push((id, x));
    }
    if case.is_sorted {
        rows.sort_by_key(|(id, _)| *id);
    }
    let (ids, values): (Vec<u32>, Vec<Vec<f64>>) = rows.into_iter().unzip();
    let data = Data {
        features: Features::Dense {
            columns: case.columns,
            values: values.concat(),
        },
        names: None,
        target_name: None,
        targets_fault: None,
        targets: Some(Targets::Labels {
            classes: vec!["no".to_owned(), "yes".to_owned()],
            ids,
        }),
    };
    let how = Preparation {
        scales: true,
        shuffles: !case.is_sorted,
    };
    Problem::new(data, config, how).expect("it fits")
}

/// Runs a case to its end.
pub(crate) fn learn(case: &Case) -> Found {
    simulate(case, &Goal::new(case))
}

fn simulate(case: &Case, goal: &Goal) -> Found {
    let mut net = Net::new(Seed::from_env_or(case.seed))
        .rate_mbit(10_000)
        .delay_us(5..15)
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
    let (net, outcome, began) = Run::new(net, ids, case).drive(&goal.problem, &goal.config);
    let apart = outcome.theta.iter().zip(&goal.optimum.theta);
    Found {
        seconds: net.now().since(began).as_nanos() as f64 / 1e9,
        frames: net.traffic().sent_frames,
        lost_frames: net.traffic().lost,
        excess_loss: goal.excess_loss(&outcome.theta),
        from_optimum: apart.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
        outcome,
    }
}

/// The objective of these rows, of two classes.
fn objective(share: &Share, theta: &[f64], l2: f64) -> f64 {
    let sums = share.statistic(theta, false);
    let (loss, gradient, _) = share.shape().parts(&sums, false, 0);
    let weights = theta[..gradient.len() - 1].iter();
    loss / sums[0] + 0.5 * l2 * weights.map(|weight| weight * weight).sum::<f64>()
}

struct Run<'c> {
    net: Net,
    ids: Vec<NodeId>,
    case: &'c Case,
    /// When a worker computed first.
    began: Option<Instant>,
}

impl<'c> Run<'c> {
    fn new(net: Net, ids: Vec<NodeId>, case: &'c Case) -> Self {
        Self {
            net,
            ids,
            case,
            began: None,
        }
    }

    /// Lets time pass until the judge has a result.
    fn drive(mut self, problem: &Problem, config: &LearnConfig) -> (Net, Outcome, Instant) {
        let (mut judge, first) = Judge::new(problem, config, self.case.workers);
        self.send(0, first);
        let now = self.net.now();
        let mut nodes: Vec<Node> = (0..self.ids.len())
            .map(|node| Node::new(node, now))
            .collect();
        let mut dies = self.case.dies.map(|(node, after)| (node, now + after));
        loop {
            self.net.run_for(QUANTUM);
            let now = self.net.now();
            assert!(
                now.since(Instant::from_nanos(0)) < PATIENCE,
                "the run hangs"
            );
            if let Some((node, at)) = dies
                && now >= at
            {
                dies = None;
                self.net.crash(self.ids[node]);
                nodes[node].worker = None;
                judge.lost(node);
                let left = nodes.iter_mut().filter_map(|node| node.worker.as_mut());
                left.for_each(|worker| worker.lost(node));
            }
            for (from, bytes) in self.arrived(self.ids[0]) {
                judge.take(from, &bytes);
            }
            self.send(0, judge.outgoing());
            assert_eq!(judge.fault(), None);
            for (at, node) in nodes.iter_mut().enumerate().skip(1) {
                self.advance(at, node, now);
            }
            let mut workers = nodes
                .iter()
                .filter_map(|node| node.worker.as_ref().map(|_| node));
            if let Some(outcome) = judge.result()
                && workers.all(|node| node.has_left)
            {
                let began = self.began.unwrap_or(now);
                return (self.net, outcome, began);
            }
        }
    }

    /// Lets a worker do what it can until now.
    fn advance(&mut self, at: usize, node: &mut Node, now: Instant) {
        if node.has_left || node.free_at > now {
            return;
        }
        // It was idle until now, or computed until then.
        node.free_at = node
            .free_at
            .max(Instant::from_nanos(now.as_nanos() - QUANTUM.as_nanos()));
        let arrived = self.arrived(node.id);
        let Some(worker) = &mut node.worker else {
            return;
        };
        let before = worker.exchanges();
        for (from, bytes) in arrived {
            worker.take(from, &bytes).expect("the judge is in order");
        }
        if worker.exchanges() > before {
            (node.ask_after, node.ask_at) = (ASK, node.ask_at.min(now + ASK));
        }
        while node.free_at <= now {
            match worker.work() {
                Work::Computes(rows) => {
                    self.began.get_or_insert(now);
                    let computing_ns = rows * self.case.row_ps / 1_000;
                    node.free_at += Duration::from_nanos(LOOP_NS + computing_ns);
                    (node.ask_after, node.ask_at) = (ASK, node.free_at + ASK);
                }
                Work::WaitsForPeers if now >= node.ask_at => {
                    worker.ask();
                    node.ask_after = node.ask_after.times(2).min(ASK_MAX);
                    node.ask_at = now + node.ask_after;
                    break;
                }
                Work::WaitsForPeers | Work::Waits => break,
                Work::Leaves => {
                    node.has_left = true;
                    break;
                }
            }
        }
        let messages = worker.outgoing();
        self.send(at, messages);
    }

    fn send(&mut self, from: usize, messages: Vec<Message>) {
        let from = self.ids[from];
        for message in messages {
            let to = self.ids[message.to];
            match message.key {
                Some(key) if message.bytes.len() <= DATAGRAM_BYTES => {
                    let datagram = Datagram {
                        channel_id: DATAGRAMS,
                        key,
                        payload: &message.bytes,
                        ..Datagram::EMPTY
                    };
                    // A datagram that finds no room is lost, as in production.
                    let _ = self
                        .net
                        .publish_given(from, Destination::Peer(to), datagram);
                }
                _ if message.is_repeat => {}
                _ => self.net.send(from, to, Channel::ordered(0), &message.bytes),
            }
        }
    }

    /// What has come to a node since the last call, and from which.
    fn arrived(&mut self, id: NodeId) -> Vec<(usize, Vec<u8>)> {
        let Arrivals {
            deliveries,
            bodies,
            datagrams,
            payloads,
            ..
        } = self.net.take_arrivals(id);
        let senders = deliveries.iter().map(|message| message.from);
        let sources = datagrams.iter().map(|datagram| datagram.source);
        let messages = senders.zip(bodies).chain(sources.zip(payloads));
        messages
            .map(|(from, bytes)| (usize::from(from.0), bytes))
            .collect()
    }
}

impl Node {
    fn new(node: usize, now: Instant) -> Self {
        Self {
            id: NodeId(node as u16),
            worker: (node > 0).then(|| Worker::new(node)),
            free_at: now,
            ask_at: now,
            ask_after: ASK,
            has_left: false,
        }
    }
}

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) workers: usize,
    pub(crate) is_simulated: bool,
    /// Until the result is certified; measured: the median.
    pub(crate) seconds: f64,
    /// Half of the span between fastest and slowest, in percent. A simulation is the same each time.
    pub(crate) spread_percent: f64,
    pub(crate) exchanges: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) excess_loss: f64,
    /// The gradient's norm got below the tolerance.
    pub(crate) is_reached: bool,
}

/// So many workers of this machine, and so many simulated.
pub(crate) fn compare(case: &Case, measured: &[usize], simulated: &[usize]) -> Vec<Line> {
    let goal = Goal::new(case);
    let mut lines = measure(case, &goal, measured);
    lines.extend(simulated.iter().map(|&workers| {
        let case = Case {
            workers,
            ..case.clone()
        };
        let found = simulate(&case, &goal);
        Line {
            workers,
            is_simulated: true,
            seconds: found.seconds,
            spread_percent: 0.0,
            exchanges: found.outcome.exchanges,
            bytes_sent: found.outcome.bytes_sent,
            excess_loss: found.excess_loss,
            is_reached: found.is_converged(),
        }
    }));
    lines
}

/// The same on this machine: judge and workers are threads. What is told beside the times is of the round in the middle.
fn measure(case: &Case, goal: &Goal, numbers: &[usize]) -> Vec<Line> {
    let loss = f64::from(case.loss_percent) / 100.0;
    let mut found: Vec<Vec<Outcome>> = numbers.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (workers, found) in numbers.iter().zip(&mut found) {
            found.push(clusters::learn(
                clusters::Over::Shm,
                *workers as u16,
                loss,
                &goal.problem,
                &goal.config,
                Mode::Gossip,
            ));
        }
    }
    let line = |(workers, mut found): (&usize, Vec<Outcome>)| {
        found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let middle = &found[ROUNDS / 2];
        let span = found[ROUNDS - 1].seconds - found[0].seconds;
        Line {
            workers: *workers,
            is_simulated: false,
            seconds: middle.seconds,
            spread_percent: 50.0 * span / middle.seconds,
            exchanges: middle.exchanges,
            bytes_sent: middle.bytes_sent,
            excess_loss: goal.excess_loss(&middle.theta),
            is_reached: found.iter().all(|one| one.reason == Reason::Converged),
        }
    };
    numbers.iter().zip(found).map(line).collect()
}

/// Picoseconds that one process of this machine takes for a row.
fn measured_ps(case: &Case) -> u64 {
    let config = case.config();
    let problem = problem(case, &config);
    let found = single::learn(&problem.share, &config, &mut || false);
    // Newton's method reads all rows for each moment of its history; SGD once an epoch, and for each moment.
    let passes = match case.method {
        Method::Newton => found.history.len() as u64,
        Method::Sgd => found.iterations + found.history.len() as u64,
    };
    let rows = passes.max(1) * case.rows as u64;
    (1e12 * found.seconds / rows as f64).max(1.0) as u64
}

fn print_table(case: &Case, lines: &[Line]) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!(
        "{} rows × {} columns, {:?} until the gradient's norm is {:.0e}, {} % of frames lost; this machine has {cores} cores",
        case.rows, case.columns, case.method, case.tol, case.loss_percent
    );
    println!(
        "simulated: virtual time, {} ps a row, a switch of 10 Gbit/s; speed-up over one worker by the same means",
        case.row_ps
    );
    println!(
        "workers  by           seconds  +-%  speed-up  exchanges        bytes  above the least loss"
    );
    for line in lines {
        let one = (lines.iter()).find(|one| one.is_simulated == line.is_simulated);
        let one = one.map_or(f64::NAN, |one| one.seconds);
        let (by, spread) = if line.is_simulated {
            ("simulated", "-".to_owned())
        } else {
            ("measured", format!("{:.0}", line.spread_percent))
        };
        println!(
            "{:>7}  {by:<9}  {:>9.6}  {spread:>3}  {:>8.2}  {:>9}  {:>11}  {:>8.1e}{}",
            line.workers,
            line.seconds,
            one / line.seconds,
            line.exchanges,
            line.bytes_sent,
            line.excess_loss,
            if line.is_reached { "" } else { ", not reached" }
        );
    }
}

/// Numbers of workers; a table begins with one, over which speed-ups are.
fn with_one(mut numbers: Vec<usize>) -> Vec<usize> {
    if !numbers.is_empty() && numbers[0] != 1 {
        numbers.insert(0, 1);
    }
    numbers
}

/// Reads `--name VALUE` pairs. Beside the case: how many workers are measured, and how many simulated.
fn plan() -> Result<(Case, Vec<usize>, Vec<usize>), String> {
    let mut case = Case {
        workers: 100,
        loss_percent: 10,
        method: Method::Sgd,
        average: Average::Auto,
        rows: 100_000,
        columns: 10,
        is_sorted: false,
        epochs: SgdConfig::default().epochs,
        period: 8,
        tol: 0.0,
        row_ps: 0,
        dies: None,
        seed: 7,
    };
    let (mut measured, mut simulated) = (Vec::new(), vec![case.workers]);
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
        let numbers = || {
            let list = value.split(',').map(str::parse::<usize>);
            list.collect::<Result<Vec<usize>, _>>()
                .map_err(|_| format!("{value} are no numbers"))
        };
        match name.as_str() {
            "--workers" => simulated = numbers()?,
            "--measured" => measured = numbers()?,
            "--loss" => case.loss_percent = number()? as u32,
            "--rows" => case.rows = number()? as usize,
            "--columns" => case.columns = number()? as usize,
            "--epochs" => case.epochs = number()?,
            "--period" => case.period = number()?,
            "--row-ps" => case.row_ps = number()?,
            "--seed" => case.seed = number()?,
            "--tol" => case.tol = value.parse().map_err(|_| format!("{value} is no number"))?,
            "--dies" => case.dies = Some((1, Duration::from_millis(number()?))),
            "--method" if value == "newton" => case.method = Method::Newton,
            "--method" if value == "sgd" => case.method = Method::Sgd,
            "--average" if value == "table" => case.average = Average::Table,
            "--average" if value == "push-sum" => case.average = Average::PushSum,
            "--average" if value == "auto" => case.average = Average::Auto,
            _ => {
                return Err(format!(
                    "{name} {value}: accepted are --workers A,B,…, --measured A,B,…, --loss (percent), --rows, --columns, --epochs, --period, --tol, --row-ps, --seed, --dies (ms), --method sgd or newton, --average table, push-sum or auto"
                ));
            }
        }
    }
    let most = case.rows.min(usize::from(u16::MAX) - 1);
    let mut all = simulated.iter().chain(&measured);
    if !all.all(|workers| (1..=most).contains(workers)) {
        return Err(format!("--workers, --measured: 1 to {most}"));
    }
    if case.tol <= 0.0 {
        case.tol = match case.method {
            Method::Newton => TOL,
            Method::Sgd => TOL_SGD,
        };
    }
    if case.row_ps == 0 {
        case.row_ps = measured_ps(&case);
    }
    if let [workers] = simulated[..] {
        case.workers = workers;
    }
    Ok((case, measured, simulated))
}

// Also compiled into the test of the same name.
#[allow(dead_code, reason = "the test calls `learn` and `compare`")]
fn main() {
    let (case, measured, simulated) = match plan() {
        Ok(plan) => plan,
        Err(what) => {
            eprintln!("simulated: {what}");
            std::process::exit(2);
        }
    };
    if measured.is_empty() && simulated.len() == 1 {
        print_one(&case);
    } else {
        let lines = compare(&case, &with_one(measured), &with_one(simulated));
        print_table(&case, &lines);
    }
}

fn print_one(case: &Case) {
    let found = learn(case);
    let outcome = &found.outcome;
    println!(
        "simulated {} workers, {} % of frames lost, {} ps a row",
        case.workers, case.loss_percent, case.row_ps
    );
    println!(
        "rows      {} of {} × {} columns",
        outcome.rows, case.rows, case.columns
    );
    println!(
        "loss      {:.6}, {:.1e} above the least; gradient {:.1e}, {:.1e} from the optimum",
        outcome.loss, found.excess_loss, outcome.gradient_norm, found.from_optimum
    );
    println!(
        "traffic   {} exchanges, {} bytes, {} frames, {} lost; {} refused",
        outcome.exchanges, outcome.bytes_sent, found.frames, found.lost_frames, outcome.rejected
    );
    println!("nodes     differ by {:.1e}", outcome.disagreement);
    println!("time      {:.6} s, simulated", found.seconds);
}
