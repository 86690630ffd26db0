//! Nodes that talk to all, round after round, and check what they hear, and the test that kills and restarts them.
//!
//! Used by `cycles`, `joins`, `keyed` and `schedules`. A started process runs the test that its place names as `entry`; there it works, and ends
//! ([`work_if_started`]).

mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tsumuji_node::bootstrap::ENV_CONGESTION;
use tsumuji_node::{Channel, Congestion, Counters, Endpoint, Message, NodeId, Options, SendError};

use crate::common;
use place::is_joining;
pub(crate) use place::{Over, Place, cluster_file, started};

pub(crate) const NODES: u16 = 4;
const TALK: Channel = Channel::ordered(0);
const REPORT: Channel = Channel::ordered(1);
const STOP: Channel = Channel::ordered(2);

/// Messages heard of somebody that prove that it is heard.
const ENOUGH: u64 = 3;
/// Before its two numbers, a message's bytes follow from these.
const HEAD_BYTES: usize = 12;
/// They repeat after this many, a prime: so no piece of a message in a frame is like the next.
const BLOCK_BYTES: usize = 1_009;
/// A round of talk takes this long: without it, most of what the cores do would be talk.
const PAUSE: Duration = Duration::from_millis(5);
/// Turns a hang into a failure. Far below `dead_after`: who is killed must be known by its return, not by silence.
const PATIENCE: Duration = Duration::from_secs(90);

/// A started process runs the congestion control that its environment names.
pub(crate) fn options() -> Options {
    let named = std::env::var(ENV_CONGESTION).ok();
    Options {
        congestion: named.map_or_else(Congestion::default, |name| name.parse().expect("a name")),
        keep_alive: Duration::from_millis(100),
        // Nobody that lives is given up, however busy the machine: so nothing between those that live on may be missing.
        dead_after: Duration::from_secs(300),
        ..Options::default()
    }
}

/// A message of `bytes` at least `HEAD_BYTES`: life, number, and what follows from both.
fn compose(session: u32, number: u64, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes];
    message[..4].copy_from_slice(&session.to_le_bytes());
    message[4..HEAD_BYTES].copy_from_slice(&number.to_le_bytes());
    let word = u64::from(session) << 32 ^ number ^ (bytes as u64) << 16;
    let mut block = [0; BLOCK_BYTES];
    Rng::with_seed(word).fill(&mut block);
    for part in message[HEAD_BYTES..].chunks_mut(BLOCK_BYTES) {
        part.copy_from_slice(&block[..part.len()]);
    }
    message
}

/// The nodes that a node has heard: by node, its latest incarnation and how many messages of that.
type Heard = BTreeMap<u16, (u32, u64)>;

/// What a worker tells node 0.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    session: u32,
    heard: Heard,
}

/// One node's side of the talk.
pub(crate) struct Talker {
    pub(crate) endpoint: Endpoint,
    session: u32,
    dice: Rng,
    /// By node: number of the next message to it.
    next: BTreeMap<u16, u64>,
    /// By node: life and number of its last message.
    last: BTreeMap<u16, (u32, u64)>,
    heard: Heard,
    reports: BTreeMap<u16, Report>,
    /// The nodes that were seen to have left and have not come back, and since when.
    left: BTreeMap<u16, Instant>,
    stopped: bool,
    /// Members need not come back.
    leave_for_good: bool,
}

impl Talker {
    pub(crate) fn new(endpoint: Endpoint, session: u32) -> Self {
        let seed = u64::from(endpoint.me().0) << 32 | u64::from(session);
        Self {
            endpoint,
            session,
            dice: Rng::with_seed(seed),
            next: BTreeMap::new(),
            last: BTreeMap::new(),
            heard: Heard::new(),
            reports: BTreeMap::new(),
            left: BTreeMap::new(),
            stopped: false,
            leave_for_good: is_joining(),
        }
    }

    /// As node 0 of a cluster that others join.
    pub(crate) fn admitting(endpoint: Endpoint) -> Self {
        Self {
            leave_for_good: true,
            ..Self::new(endpoint, 1)
        }
    }

    /// The member that is this life, once it was heard.
    pub(crate) fn id_of(&self, life: u32) -> Option<u16> {
        let is_it = |(_, (heard, _)): &(&u16, &(u32, u64))| *heard == life;
        self.heard.iter().find(is_it).map(|(id, _)| *id)
    }

    /// Tells a member to leave.
    pub(crate) fn stop(&mut self, id: u16) {
        let stop = self.endpoint.send(NodeId(id), STOP, b"");
        stop.expect("the living take it");
    }

    /// Pairs of these lives of which the first has not heard the second, as far as node 0, life 1, was told.
    pub(crate) fn not_heard(&self, lives: &BTreeSet<u32>) -> Vec<(u32, u32)> {
        let heard_enough = |heard: &Heard, of: u32| {
            let mut all = heard.values();
            all.any(|(life, count)| *life == of && *count >= ENOUGH)
        };
        let pairs = lives
            .iter()
            .flat_map(|who| lives.iter().map(move |of| (*who, *of)));
        let missing = |&(who, of): &(u32, u32)| {
            let heard = if who == 1 {
                Some(&self.heard)
            } else {
                let mut reports = self.reports.values();
                let report = reports.find(|report| report.session == who);
                report.map(|report| &report.heard)
            };
            who != of && !heard.is_some_and(|heard| heard_enough(heard, of))
        };
        pairs.filter(missing).collect()
    }

    fn me(&self) -> u16 {
        self.endpoint.me().0
    }

    /// Says something to everyone, and listens.
    pub(crate) fn talk_once(&mut self) {
        let me = self.me();
        self.endpoint.update_members();
        let members = self.endpoint.members().len() as u16;
        for peer in (0..members).filter(|peer| *peer != me) {
            let number = *self.next.entry(peer).or_default();
            let longest = [HEAD_BYTES + 1, 200, 4_000, 60_000][self.dice.usize(..4)];
            let bytes = HEAD_BYTES + self.dice.usize(..longest);
            // To the one that is never killed, also long ones, which leave piece by piece while the call waits.
            let long = peer == 0 && self.dice.u64(..20) == 0;
            let sent = if long {
                let message = compose(self.session, number, 300_000 + bytes);
                self.endpoint.send(NodeId(peer), TALK, &message)
            } else {
                let message = compose(self.session, number, bytes);
                self.endpoint.try_send(NodeId(peer), TALK, &message)
            };
            match sent {
                Ok(()) => {
                    *self.next.entry(peer).or_default() += 1;
                    self.left.remove(&peer);
                }
                Err(SendError::WouldBlock { .. }) => {}
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. })
                    if peer != 0 && self.leave_for_good => {}
                // In the end one is told to stop before another; but nobody else leaves.
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. })
                    if peer != 0 && self.comes_back(peer) => {}
                Err(error) => panic!("{} to {peer}: {error}", self.me()),
            }
        }
        if self.me() != 0 {
            let report = Report {
                session: self.session,
                heard: self.heard.clone(),
            };
            let report = serde_json::to_vec(&report).expect("plain data");
            match self.endpoint.try_send(NodeId(0), REPORT, &report) {
                Ok(()) | Err(SendError::WouldBlock { .. }) => {}
                Err(error) => panic!("{} to node 0: {error}", self.me()),
            }
        }
        let end = Instant::now() + PAUSE;
        let left = || end.saturating_duration_since(Instant::now());
        while let Some(message) = self.endpoint.recv(left()).expect("recv") {
            match message.channel {
                TALK => self.hear(&message),
                REPORT => {
                    let report = serde_json::from_slice(&message.body).expect("a report");
                    self.reports.insert(message.from.0, report);
                }
                STOP => self.stopped = true,
                channel => panic!("a message of channel {channel:?}"),
            }
            self.endpoint.recycle(message);
        }
    }

    /// It left, and not longer ago than whoever restarts it needs.
    fn comes_back(&mut self, peer: u16) -> bool {
        let since = *self.left.entry(peer).or_insert_with(Instant::now);
        since.elapsed() < PATIENCE
    }

    fn hear(&mut self, message: &Message) {
        let (me, from, body) = (self.me(), message.from.0, &message.body);
        assert!(body.len() >= HEAD_BYTES, "{} bytes from {from}", body.len());
        let session = u32::from_le_bytes(body[..4].try_into().expect("4"));
        let number = u64::from_le_bytes(body[4..HEAD_BYTES].try_into().expect("8"));
        assert!(
            *body == compose(session, number, body.len()),
            "{me}: message {number} of {from}'s session {session} is damaged"
        );
        match self.last.insert(from, (session, number)) {
            Some((before, last)) if before == session => assert_eq!(
                number,
                last + 1,
                "{me}: message of {from}'s session {session} after {last}"
            ),
            Some((before, _)) => assert!(
                session > before && number == 0,
                "{me}: message {number} of {from}'s session {session} after session {before}"
            ),
            None => {}
        }
        let heard = self.heard.entry(from).or_insert((session, 0));
        *heard = (session, if heard.0 == session { heard.1 + 1 } else { 1 });
    }

    /// How many messages `node` says it has heard of `of` in `life`.
    fn heard_by(&self, node: u16, of: u16, session: u32) -> u64 {
        let heard = if node == 0 {
            Some(&self.heard)
        } else {
            self.reports.get(&node).map(|report| &report.heard)
        };
        match heard.and_then(|heard| heard.get(&of)) {
            Some((told, count)) if *told == session => *count,
            _ => 0,
        }
    }
}

/// What a started process does; it does not return to its test.
pub(crate) fn work_if_started() {
    let Some((session, endpoint)) = started(options()) else {
        return;
    };
    let mut talker = Talker::new(endpoint, session);
    while !talker.stopped {
        talker.talk_once();
    }
    drop(talker); // it leaves in peace
    std::process::exit(0);
}

/// Kills whatever is left when a test fails.
struct Workers(BTreeMap<u16, (Child, u32)>);

impl Workers {
    fn kill(&mut self, node: u16) {
        let (mut child, _) = self.0.remove(&node).expect("it lives");
        child.kill().expect("kill");
        child.wait().expect("reap");
    }

    /// What each process does, as the kernel tells: whether it runs at all, and where it waits.
    fn states(&self) -> String {
        let of = |(node, (child, _)): (&u16, &(Child, u32))| {
            let told = |name: &str| {
                let text = std::fs::read_to_string(format!("/proc/{}/{name}", child.id()));
                text.unwrap_or_else(|error| error.to_string())
                    .replace('\n', " ")
            };
            let names = ["stat", "wchan", "stack", "io"].map(told);
            format!("node {node}: {}\n", names.join(" | "))
        };
        self.0.iter().map(of).collect()
    }

    /// Those that live, node 0 too, with their lives.
    fn sessions(&self) -> Vec<(u16, u32)> {
        let workers = self.0.iter().map(|(node, (_, session))| (*node, *session));
        std::iter::once((0, 1)).chain(workers).collect()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (child, _) in self.0.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Node 0 talks until everyone who lives has heard every other one's present life `more` times than told in `before`.
fn until_heard(talker: &mut Talker, workers: &mut Workers, before: &Counts, what: &str) {
    let begun = Instant::now();
    loop {
        let now = counts(talker, workers);
        let missing: Vec<_> = now
            .iter()
            .filter(|(who, count)| **count < before.get(*who).copied().unwrap_or(0) + ENOUGH)
            .collect();
        if missing.is_empty() {
            return;
        }
        for (node, (child, _)) in &mut workers.0 {
            let ended = child.try_wait().expect("wait");
            assert!(ended.is_none(), "{what}: node {node} ended: {ended:?}");
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: these (node, heard by it, its life) were not heard: {missing:?}\n{}",
            workers.states()
        );
        talker.talk_once();
    }
}

/// (who, of whom, of which life) → messages heard.
type Counts = BTreeMap<(u16, u16, u32), u64>;

fn counts(talker: &Talker, workers: &Workers) -> Counts {
    let sessions = workers.sessions();
    let mut counts = Counts::new();
    for (node, own_session) in &sessions {
        // What a former life has said of others is no news.
        let fresh = *node == 0
            || talker
                .reports
                .get(node)
                .is_some_and(|report| report.session == *own_session);
        for (of, session) in sessions.iter().filter(|(of, _)| of != node) {
            let heard = if fresh {
                talker.heard_by(*node, *of, *session)
            } else {
                0
            };
            counts.insert((*node, *of, *session), heard);
        }
    }
    counts
}

/// Kills and restarts random workers `cycles` times; `between` them node 0 may do something else. Returns what it counted.
pub(crate) fn run(
    place: &Place,
    cycles: u32,
    seed: u64,
    mut between: impl FnMut(u32, &mut Talker),
) -> Counters {
    let mut talker = Talker::new(place.open(), 1);
    let mut workers = Workers(BTreeMap::new());
    for node in 1..NODES {
        workers.0.insert(node, (place.start(node, 1), 1));
    }
    until_heard(&mut talker, &mut workers, &Counts::new(), "at the start");
    let mut dice = Rng::with_seed(seed);
    let mut session = 1;
    for cycle in 0..cycles {
        let victim = dice.u16(1..NODES);
        workers.kill(victim);
        if dice.bool() {
            let before = counts(&talker, &workers);
            let what = format!("after kill {cycle}, of node {victim}");
            until_heard(&mut talker, &mut workers, &before, &what);
        }
        session += 1;
        if dice.u64(..4) == 0 {
            // One that dies as it begins.
            let mut child = place.start(victim, session);
            let begun = Instant::now();
            let moment = Duration::from_micros(dice.u64(..20_000));
            while begun.elapsed() < moment {
                talker.talk_once();
            }
            child.kill().expect("kill");
            child.wait().expect("reap");
            session += 1;
        }
        workers
            .0
            .insert(victim, (place.start(victim, session), session));
        let before = counts(&talker, &workers);
        let what = format!("after restart {cycle}, of node {victim}");
        until_heard(&mut talker, &mut workers, &before, &what);
        between(cycle, &mut talker);
    }
    let pids: Vec<u32> = workers.0.values().map(|(child, _)| child.id()).collect();
    for node in 1..NODES {
        let stop = talker.endpoint.send(NodeId(node), STOP, b"");
        stop.expect("the living take it");
    }
    let begun = Instant::now();
    for (node, (child, _)) in &mut workers.0 {
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "node {node} does not stop");
            talker.endpoint.progress().expect("progress");
            std::thread::sleep(Duration::from_micros(200));
        };
        assert!(status.success(), "node {node}: {status}");
    }
    common::assert_nothing_left(&pids);
    talker.endpoint.counters()
}
