//! One reading of all nodes of this machine, and the changes since the previous one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tsumuji_node::metrics::{LocalNode, Sample, local_nodes, parse};

/// A node that takes longer is stopped, or its machine is.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// Nodes asked at a time, so that the time-outs of silent ones do not add up.
const ASKED_AT_ONCE: usize = 32;
/// Longest time of a reading: nodes not asked by then are shown as silent. Nodes of users with many nodes come last.
const READING_MOST: Duration = Duration::from_secs(5);
/// Characters of names that are shown.
const NAME_CHARS_MAX: usize = 24;

/// Counters of which rates are shown: metric, and name in JSON.
const RATES: [(&str, &str); 19] = [
    ("frames_sent_total", "frames_sent"),
    ("sent_bytes_total", "sent_bytes"),
    ("frames_received_total", "frames_received"),
    ("received_bytes_total", "received_bytes"),
    ("messages_delivered_total", "messages_delivered"),
    ("frames_retransmitted_total", "frames_retransmitted"),
    ("frames_dropped_total", "frames_dropped"),
    ("link_frames_dropped_total", "link_frames_dropped"),
    ("link_frames_overrun_total", "link_frames_overrun"),
    ("link_frames_impaired_total", "link_frames_impaired"),
    ("seal_frames_dropped_total", "seal_frames_dropped"),
    ("seal_frames_unsent_total", "seal_frames_unsent"),
    ("seal_handshakes_total", "seal_handshakes"),
    ("seal_rekeys_total", "seal_rekeys"),
    ("datagrams_superseded_total", "datagrams_superseded"),
    ("datagrams_late_total", "datagrams_late"),
    ("datagrams_lost_total", "datagrams_lost"),
    ("paced_frames_total", "paced_frames"),
    ("policy_decisions_total", "policy_decisions"),
];

/// The room that a node offers its senders: metric, and name in JSON.
const GAUGES: [(&str, &str); 6] = [
    ("receive_window_frames", "window_frames"),
    ("receive_window_limit_frames", "window_limit_frames"),
    ("receive_granted_frames", "granted_frames"),
    ("receive_budget_bytes", "budget_bytes"),
    ("receive_budget_used_bytes", "budget_used_bytes"),
    ("policy_active", "policy_active"),
];

/// One reading.
pub(super) struct Reading {
    pub(super) nodes: BTreeMap<LocalNode, Node>,
}

/// One node.
pub(super) struct Node {
    /// The process that started the job, as far as is known: the common parent, or the node that is the others' parent.
    pub(super) job: u32,
    pub(super) pid: u32,
    pub(super) id: u16,
    pub(super) name: String,
    pub(super) link: String,
    /// Age of the numbers; `None`: the node did not answer.
    pub(super) age: Option<Duration>,
    /// Percent of one core. `None`: first reading.
    pub(super) cpu_percent: Option<f64>,
    pub(super) totals: HashMap<&'static str, f64>,
    /// Empty: the node did not answer.
    pub(super) gauges: HashMap<&'static str, f64>,
    /// Per second since the previous reading. Empty: first reading, or nothing new was published.
    pub(super) rates: HashMap<&'static str, f64>,
    pub(super) peers: Vec<Peer>,
    pub(super) executors: Vec<Executor>,
    /// When its numbers were published, in seconds since its start.
    taken: f64,
    process: Option<Process>,
    at: Instant,
}

/// The executor that serves a channel.
#[derive(Debug, serde::Serialize)]
pub(super) struct Executor {
    pub(super) channel: String,
    pub(super) executor: String,
    /// `driver` or `workers`.
    pub(super) place: String,
    pub(super) reason: String,
    pub(super) workers: String,
    pub(super) call_seconds: f64,
    pub(super) waiting_messages: f64,
    pub(super) moves: f64,
}

/// Traffic with one peer.
pub(super) struct Peer {
    pub(super) id: String,
    pub(super) name: String,
    values: HashMap<String, f64>,
}

impl Peer {
    /// By the metric's name without `tsumuji_`.
    pub(super) fn get(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or_default()
    }

    /// `None`: the node does not have this metric.
    pub(super) fn find(&self, name: &str) -> Option<f64> {
        self.values.get(name).copied()
    }
}

impl Reading {
    /// Reads all nodes, and compares with the previous reading.
    pub(super) fn now(before: Option<&Self>) -> std::io::Result<Self> {
        let until = Instant::now() + READING_MOST;
        let found = local_nodes()?;
        let mut nodes = BTreeMap::new();
        for some in found.chunks(ASKED_AT_ONCE) {
            let asked: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = some
                    .iter()
                    .map(|node| scope.spawn(move || ask(node, until)))
                    .collect();
                threads.into_iter().map(|thread| thread.join()).collect()
            });
            for (local, node) in some.iter().zip(asked) {
                if let Ok(Some(mut node)) = node {
                    if let Some(earlier) = before.and_then(|reading| reading.nodes.get(local)) {
                        node.compare(earlier);
                    }
                    nodes.insert(local.clone(), node);
                }
            }
        }
        let mut reading = Self { nodes };
        reading.group();
        Ok(reading)
    }

    /// Finds which nodes belong together.
    fn group(&mut self) {
        let pids: HashSet<u32> = self.nodes.values().map(|node| node.pid).collect();
        let parents: HashSet<u32> = self.nodes.values().filter_map(Node::parent).collect();
        for node in self.nodes.values_mut() {
            let parent = node.parent().unwrap_or(node.pid);
            let is_parent = parents.contains(&node.pid) && !pids.contains(&parent);
            node.job = if is_parent { node.pid } else { parent };
        }
    }

    /// The nodes by job and number.
    pub(super) fn in_order(&self) -> Vec<&Node> {
        let mut nodes: Vec<&Node> = self.nodes.values().collect();
        nodes.sort_by_key(|node| (node.job, node.id, node.pid));
        nodes
    }

    /// The reading as JSON.
    pub(super) fn json(&self) -> Value {
        let nodes: Vec<Value> = self.in_order().into_iter().map(Node::json).collect();
        json!({ "nodes": nodes })
    }
}

/// Asks one node; `None`: it is gone, or another user's.
fn ask(local: &LocalNode, until: Instant) -> Option<Node> {
    let at = Instant::now();
    let process = Process::read(local.pid);
    let within = until.saturating_duration_since(at).min(ANSWER_WITHIN);
    if within.is_zero() {
        return Some(Node::new(local, &[], process, at));
    }
    let samples = match local.ask(within) {
        Ok(text) => parse(&text),
        // Its queue of readers is full and not served, or it is silent.
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Vec::new()
        }
        Err(_) => return None,
    };
    Some(Node::new(local, &samples, process, at))
}

impl Node {
    fn new(local: &LocalNode, samples: &[Sample], process: Option<Process>, at: Instant) -> Self {
        let sum = |name: &str| -> f64 {
            let ours = samples.iter().filter(|sample| bare(sample) == name);
            ours.map(|sample| sample.value).sum()
        };
        let info = samples.iter().find(|sample| bare(sample) == "node_info");
        let text = |label| plain(info.and_then(|info| info.label(label)).unwrap_or("?"));
        let age = sum("snapshot_age_seconds");
        Self {
            job: local.pid,
            pid: local.pid,
            id: local.node.0,
            name: text("name"),
            link: text("link"),
            age: info.and_then(|_| Duration::try_from_secs_f64(age).ok()),
            cpu_percent: None,
            totals: RATES.map(|(metric, name)| (name, sum(metric))).into(),
            gauges: info.map_or_else(HashMap::new, |_| {
                GAUGES.map(|(metric, name)| (name, sum(metric))).into()
            }),
            rates: HashMap::new(),
            peers: peers(samples),
            executors: executors(samples),
            taken: sum("uptime_seconds") - age,
            process,
            at,
        }
    }

    fn compare(&mut self, before: &Self) {
        let span = self.taken - before.taken;
        if self.age.is_some() && before.age.is_some() && span > 0.0 {
            let rate = |(name, total): (&&'static str, &f64)| {
                let earlier = before.totals.get(name).copied().unwrap_or_default();
                (*name, ((total - earlier) / span).max(0.0))
            };
            self.rates = self.totals.iter().map(rate).collect();
        }
        if let (Some(now), Some(earlier)) = (&self.process, &before.process) {
            let span = self.at.duration_since(before.at).as_secs_f64();
            let seconds = now.cpu_seconds - earlier.cpu_seconds;
            self.cpu_percent = (span > 0.0).then(|| (100.0 * seconds / span).max(0.0));
        }
    }

    fn parent(&self) -> Option<u32> {
        // After a parent's death its children belong to process 1, which did not start them.
        let parent = self.process.as_ref().map(|process| process.parent);
        parent.filter(|parent| *parent > 1)
    }

    fn json(&self) -> Value {
        let peers: Vec<Value> = self
            .peers
            .iter()
            .map(|peer| json!({ "peer": peer.id, "name": peer.name, "values": peer.values }))
            .collect();
        json!({
            "job": self.job,
            "pid": self.pid,
            "node": self.id,
            "name": self.name,
            "link": self.link,
            "answered": self.age.is_some(),
            "age_seconds": self.age.map(|age| age.as_secs_f64()),
            "cpu_percent": self.cpu_percent,
            "totals": self.totals,
            "per_second": self.rates,
            "receive": self.gauges,
            "peers": peers,
            "executors": self.executors,
        })
    }
}

fn bare(sample: &Sample) -> &str {
    sample.name.strip_prefix("tsumuji_").unwrap_or_default()
}

/// Executors in the order of their channels.
fn executors(samples: &[Sample]) -> Vec<Executor> {
    let infos = samples
        .iter()
        .filter(|sample| bare(sample) == "executor_info");
    let executor = |info: &Sample| {
        let text = |label| plain(info.label(label).unwrap_or("?"));
        let value = |name: &str| {
            let mut all = samples.iter();
            let found = all.find(|sample| {
                bare(sample) == name && sample.label("channel") == info.label("channel")
            });
            found.map_or(0.0, |sample| sample.value)
        };
        Executor {
            channel: text("channel"),
            executor: text("executor"),
            place: text("place"),
            reason: text("reason"),
            workers: text("workers"),
            call_seconds: value("executor_call_seconds"),
            waiting_messages: value("executor_waiting_messages"),
            moves: value("executor_moves_total"),
        }
    };
    infos.map(executor).collect()
}

/// Peers in the order in which the node lists them.
fn peers(samples: &[Sample]) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for sample in samples {
        let Some(id) = sample.label("peer") else {
            continue;
        };
        let place = *places.entry(id).or_insert_with(|| {
            peers.push(Peer {
                id: plain(id),
                name: plain(sample.label("peer_name").unwrap_or("?")),
                values: HashMap::new(),
            });
            peers.len() - 1
        });
        peers[place]
            .values
            .insert(bare(sample).to_owned(), sample.value);
    }
    peers
}

/// Removes control characters, since names of other processes must not move our cursor.
fn plain(text: &str) -> String {
    let chars = text.chars().take(NAME_CHARS_MAX);
    chars
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// The kernel's data on a process.
pub(crate) struct Process {
    pub(crate) parent: u32,
    cpu_seconds: f64,
}

impl Process {
    pub(crate) fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(&stat, rustix::param::clock_ticks_per_second())
    }

    /// proc_pid_stat(5). The program's name, in parentheses, may contain any characters, also parentheses.
    fn parse(stat: &str, ticks_per_second: u64) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
        let (user, system) = (number(11)?, number(12)?);
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            cpu_seconds: user.saturating_add(system) as f64 / ticks_per_second as f64,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tsumuji_node::NodeId;

    /// A node from a given text.
    pub(in crate::top) fn node(pid: u32, parent: u32, text: &str) -> Node {
        let local = local_node(pid);
        let process = Some(Process {
            parent,
            cpu_seconds: 1.0,
        });
        Node::new(&local, &parse(text), process, Instant::now())
    }

    fn local_node(pid: u32) -> LocalNode {
        LocalNode::new(pid, NodeId(pid as u16 % 10), 0)
    }

    pub(in crate::top) fn reading(nodes: Vec<Node>) -> Reading {
        let nodes = nodes
            .into_iter()
            .map(|node| (local_node(node.pid), node))
            .collect();
        let mut reading = Reading { nodes };
        reading.group();
        reading
    }

    pub(in crate::top) fn text(taken: f64, sent: u64) -> String {
        format!(
            "tsumuji_node_info{{node=\"1\",link=\"shm\",name=\"w\u{1b}1\"}} 1\n\
             tsumuji_uptime_seconds{{node=\"1\"}} {}\ntsumuji_snapshot_age_seconds{{}} 0.5\n\
             tsumuji_frames_sent_total{{}} {sent}\n\
             tsumuji_frames_dropped_total{{reason=\"a\"}} 1\ntsumuji_frames_dropped_total{{reason=\"b\"}} 2\n\
             tsumuji_rtt_seconds{{peer=\"3\",peer_name=\"x\"}} 0.000012\ntsumuji_peer_up{{peer=\"3\",peer_name=\"x\"}} 1\n",
            taken + 0.5
        )
    }

    /// Rates are over the node's own time between publications, so a late answer does not falsify them.
    #[test]
    fn rates_are_differences() {
        let before = node(11, 1, &text(10.0, 1000));
        let mut now = node(11, 1, &text(12.0, 1500));
        now.compare(&before);
        assert_eq!(now.rates["frames_sent"], 250.0);
        assert_eq!(now.rates["frames_dropped"], 0.0);
        assert_eq!(now.totals["frames_dropped"], 3.0);
        assert_eq!((now.name.as_str(), now.link.as_str()), ("w?1", "shm"));
        assert_eq!(now.peers.len(), 1);
        assert_eq!(now.peers[0].get("rtt_seconds"), 0.000_012);
        // Nothing new was published, or the node did not answer: no rates.
        let mut same = node(11, 1, &text(10.0, 1000));
        same.compare(&before);
        assert!(same.rates.is_empty());
        let mut silent = node(11, 1, "");
        silent.compare(&before);
        assert!(silent.rates.is_empty() && silent.age.is_none());
    }

    /// A job is its parent: the judge's own process, or the launcher's; a process without either is its own job.
    #[test]
    fn nodes_are_grouped() {
        let any = text(1.0, 1);
        let nodes = [(10, 5), (11, 10), (12, 10), (21, 20), (22, 20), (33, 1)];
        let reading = reading(nodes.map(|(pid, parent)| node(pid, parent, &any)).into());
        let jobs: Vec<(u32, u32)> = reading
            .in_order()
            .iter()
            .map(|node| (node.job, node.pid))
            .collect();
        assert_eq!(
            jobs,
            [(10, 10), (10, 11), (10, 12), (20, 21), (20, 22), (33, 33)]
        );
    }

    /// The kernel's line is parsed even where a program is called `) 1 (`.
    #[test]
    fn process_lines_are_read() {
        let stat = "77 (a) R 1 () S 42 77 77 0 -1 4194304 1 2 3 4 250 150 0 0 20 0 1 0 100 0";
        let process = Process::parse(stat, 100).expect("sound");
        assert_eq!((process.parent, process.cpu_seconds), (42, 4.0));
        assert!(Process::parse("77 (x) S 42", 100).is_none());
        assert!(Process::parse("", 100).is_none());
    }
}
