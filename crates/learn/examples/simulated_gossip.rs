//! Learning by more workers than a machine can hold: the production engine and the production decisions of judge and workers, a
//! simulated switch, virtual time. Only computing is not simulated by the clock: each value of a row takes [`VALUE_NS`].
//!
//! ```text
//! cargo run --release -p tsumuji-learn --example simulated_gossip -- --workers 300 --loss 10 --method sgd
//! ```

use std::collections::HashMap;

use tsumuji_learn::data::{Data, Features, Targets};
use tsumuji_learn::gossip::simulated::{Judge, Message, Summary, Work, Worker};
use tsumuji_learn::{Kind, LearnConfig, Method, Preparation, Problem, SgdConfig, single};
use tsumuji_proto::{Channel, Config, Destination, Duration, Instant, NodeId};
use tsumuji_sim::{Net, Seed};

/// What a processor takes for one value of a row: about what one of 2026 does.
const VALUE_NS: u64 = 1;
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

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) workers: usize,
    pub(crate) loss_percent: u32,
    pub(crate) method: Method,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) epochs: u64,
    pub(crate) period: u64,
    /// This worker (from 1) ends so long after the rows were sent.
    pub(crate) dies: Option<(usize, Duration)>,
    pub(crate) seed: u64,
}

/// What it came to.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) summary: Summary,
    /// Virtual time from when the first worker computes to the end; the rows are there then, but for some that are on their way.
    pub(crate) seconds: f64,
    pub(crate) frames: u64,
    pub(crate) lost_frames: u64,
    /// Loss beyond the least possible, as a part of that.
    pub(crate) excess_loss: f64,
    /// Distance of the parameters from those that one process finds by Newton's method from all rows.
    pub(crate) from_optimum: f64,
}

struct Node {
    id: NodeId,
    worker: Option<Worker>,
    messages_seen: usize,
    datagrams_seen: usize,
    free_at: Instant,
    /// When peers are asked, and how long after that again.
    ask_at: Instant,
    ask_after: Duration,
    has_left: bool,
}

/// Content of datagrams by sender and number: the net carries as many bytes of its own, and checks them.
type Contents = HashMap<(NodeId, u32), Vec<u8>>;

/// A logistic problem whose rows are alike everywhere.
fn problem(case: &Case, config: &LearnConfig) -> Problem {
    let mut random = fastrand::Rng::with_seed(case.seed);
    let (mut values, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..case.rows {
        let x: Vec<f64> = (0..case.columns)
            .map(|_| 2.0 * random.f64() - 1.0)
            .collect();
        ids.push(u32::from(x.iter().sum::<f64>() + random.f64() > 0.5));
        values.extend(x);
    }
    let data = Data {
        features: Features::Dense {
            columns: case.columns,
            values,
        },
        names: None,
        target_name: None,
        targets: Some(Targets::Labels {
            classes: vec!["no".to_owned(), "yes".to_owned()],
            ids,
        }),
    };
    let how = Preparation {
        scales: true,
        shuffles: true,
    };
    Problem::new(data, config, how).expect("it fits")
}

/// Runs a case to its end.
pub(crate) fn learn(case: &Case) -> Found {
    let config = LearnConfig {
        kind: Kind::Logistic,
        method: case.method,
        sgd: SgdConfig {
            epochs: case.epochs,
            period: case.period,
            ..SgdConfig::default()
        },
        l2: 1e-2,
        tol: 1e-9,
        seed: case.seed,
    };
    let problem = problem(case, &config);
    let exact = LearnConfig {
        method: Method::Newton,
        ..config
    };
    let optimum = single::learn(&problem.share, &exact, &mut || false);
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
    let (net, summary, began) = Run::new(net, ids, case).drive(&problem, &config);
    let apart = summary.theta.iter().zip(&optimum.theta);
    Found {
        seconds: net.now().since(began).as_nanos() as f64 / 1e9,
        frames: net.traffic().sent_frames,
        lost_frames: net.traffic().lost,
        excess_loss: summary.loss / optimum.loss - 1.0,
        from_optimum: apart.map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
        summary,
    }
}

struct Run<'c> {
    net: Net,
    ids: Vec<NodeId>,
    case: &'c Case,
    contents: Contents,
    number: u32,
    /// When a worker computed first.
    began: Option<Instant>,
}

impl<'c> Run<'c> {
    fn new(net: Net, ids: Vec<NodeId>, case: &'c Case) -> Self {
        Self {
            net,
            ids,
            case,
            contents: Contents::new(),
            number: 0,
            began: None,
        }
    }

    /// Lets time pass until the judge has a result.
    fn drive(mut self, problem: &Problem, config: &LearnConfig) -> (Net, Summary, Instant) {
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
            for (from, bytes) in self.arrived(&mut nodes[0]) {
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
            if let Some(summary) = judge.result()
                && workers.all(|node| node.has_left)
            {
                let began = self.began.unwrap_or(now);
                return (self.net, summary, began);
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
        let arrived = self.arrived(node);
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
                    let values = rows * (self.case.columns as u64 + 1);
                    node.free_at += Duration::from_nanos(LOOP_NS + values * VALUE_NS);
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
                    self.number += 1;
                    let length = message.bytes.len();
                    self.contents.insert((from, self.number), message.bytes);
                    let stamp = (DATAGRAMS, 0);
                    let to = Destination::Peer(to);
                    // A datagram that finds no room is lost, as in production.
                    let _ = self.net.publish(from, to, stamp, self.number, key, length);
                }
                _ if message.is_repeat => {}
                _ => self.net.send(from, to, Channel::ordered(0), &message.bytes),
            }
        }
    }

    /// What has come to a node since the last call.
    fn arrived(&self, node: &mut Node) -> Vec<(usize, Vec<u8>)> {
        let mut arrived = Vec::new();
        let deliveries = self.net.deliveries(node.id)[node.messages_seen..].iter();
        let bodies = &self.net.received(node.id)[node.messages_seen..];
        arrived.extend(
            deliveries
                .zip(bodies)
                .map(|(delivery, bytes)| (usize::from(delivery.from.0), bytes.clone())),
        );
        node.messages_seen += arrived.len();
        for datagram in &self.net.datagrams(node.id)[node.datagrams_seen..] {
            let bytes = &self.contents[&(datagram.source, datagram.lap)];
            arrived.push((usize::from(datagram.source.0), bytes.clone()));
            node.datagrams_seen += 1;
        }
        arrived
    }
}

impl Node {
    fn new(node: usize, now: Instant) -> Self {
        Self {
            id: NodeId(node as u16),
            worker: (node > 0).then(|| Worker::new(node)),
            messages_seen: 0,
            datagrams_seen: 0,
            free_at: now,
            ask_at: now,
            ask_after: ASK,
            has_left: false,
        }
    }
}

/// Reads `--name VALUE` pairs.
fn case() -> Result<Case, String> {
    let mut case = Case {
        workers: 100,
        loss_percent: 10,
        method: Method::Sgd,
        rows: 100_000,
        columns: 10,
        epochs: 16,
        period: 8,
        dies: None,
        seed: 7,
    };
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
            "--workers" => case.workers = number()? as usize,
            "--loss" => case.loss_percent = number()? as u32,
            "--rows" => case.rows = number()? as usize,
            "--columns" => case.columns = number()? as usize,
            "--epochs" => case.epochs = number()?,
            "--period" => case.period = number()?,
            "--seed" => case.seed = number()?,
            "--dies" => case.dies = Some((1, Duration::from_millis(number()?))),
            "--method" if value == "newton" => case.method = Method::Newton,
            "--method" if value == "sgd" => case.method = Method::Sgd,
            _ => {
                return Err(format!(
                    "{name} {value}: accepted are --workers, --loss (percent), --rows, --columns, --epochs, --period, --seed, --dies (ms), --method sgd or newton"
                ));
            }
        }
    }
    Ok(case)
}

// Also compiled into the test of the same name.
#[allow(dead_code, reason = "the test calls `learn`")]
fn main() {
    let case = match case() {
        Ok(case) => case,
        Err(what) => {
            eprintln!("simulated: {what}");
            std::process::exit(2);
        }
    };
    let found = learn(&case);
    let summary = &found.summary;
    println!(
        "simulated {} workers, {} % of frames lost",
        case.workers, case.loss_percent
    );
    println!(
        "rows      {} of {} × {} columns",
        summary.rows, case.rows, case.columns
    );
    println!(
        "loss      {:.6}, {:.1e} above the least; gradient {:.1e}, {:.1e} from the optimum",
        summary.loss, found.excess_loss, summary.gradient_norm, found.from_optimum
    );
    println!(
        "traffic   {} exchanges, {} bytes, {} frames, {} lost; {} refused",
        summary.exchanges, summary.bytes_sent, found.frames, found.lost_frames, summary.rejected
    );
    println!("nodes     differ by {:.1e}", summary.disagreement);
    println!("time      {:.6} s, simulated", found.seconds);
}
