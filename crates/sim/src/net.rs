//! The net: hosts, switch and judge on one timeline, and the operations of a test.
//!
//! `net/setup` builds it, `net/program` has the actions of the simulated programs and of the test, `net/offer` gives engines the messages to send,
//! `net/drive` moves events to engines and their frames away. A violation of the oracle's rules panics at once; the panic ends with the seed and the
//! command that replays it. In a program (`in_program`) it is a `Violation` instead.
//!
//! Invariant: the net depends only on the seed and the calls made, so a replay is exact.

mod drive;
mod offer;
mod program;
mod setup;

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use crate::host::{Host, Item};
use crate::oracle::Oracle;
use crate::process::{Process, Production};
use crate::rings::Job;
use crate::rng::{Rng, SEED_VARIABLE, Seed, mix};
use crate::switch::{Medium, Switch, Traffic};
use crate::violation::Violation;
use tsumuji_proto::{Duration, Event, Instant, NodeId};

/// Virtual time after which a `run_until…` counts as stuck: many times every timeout of an engine.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(60);

/// How often a run that waits for acknowledgements checks for them.
const IDLE_CHECK_NS: u64 = 50_000;

/// Many engines on a simulated switch.
#[derive(Debug)]
pub struct Net<P: Process = Production> {
    seed: Seed,
    medium: Medium,
    switch: Switch,
    hosts: Vec<Host<P>>,
    oracle: Oracle,
    payload_rng: Rng,
    incarnation_rng: Rng,
    /// Deliveries of the present poll.
    items: Vec<Item>,
    events: VecDeque<Event>,
    /// Copies of messages within a frame are wanted.
    copies: bool,
    /// Hash of everything that any engine sent, was given and reported.
    trace: u64,
    rate_bits: u64,
    checked: bool,
    /// Shared memory of the nodes that have rings.
    job: Rc<RefCell<Job>>,
    /// Probability, in ppm, that the link has no slot for the destination that an engine names.
    defer_ppm: u32,
    patience: Duration,
    /// (sender, receiver, channel) batches that wait for `Event::Writable`.
    wishes: usize,
    /// Pairs whose violations do not fail the run.
    forgiving: BTreeSet<(NodeId, NodeId)>,
    /// Channels whose datagrams have contents of the program's own.
    given: BTreeSet<u16>,
    /// Violations are returned to a program, and do not fail a test.
    is_in_program: bool,
}

impl<P: Process> Net<P> {
    /// The time.
    pub fn now(&self) -> Instant {
        self.medium.timeline.now()
    }

    /// The seed of this run.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Frames so far, by what happened to them.
    pub fn traffic(&self) -> Traffic {
        self.medium.traffic
    }

    /// A hash: two runs share it only if every frame, delivery and event of theirs was the same, at the same time.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// Panics with `why` unless `holds`; as for any panic, the seed and the replay command are printed.
    #[track_caller]
    pub fn check(&self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.fail(&why());
        }
    }

    #[track_caller]
    fn fail(&self, why: &str) -> ! {
        let why = format!("at {} ns of virtual time: {why}", self.now().as_nanos());
        if self.is_in_program {
            Violation::new(self.seed.0, &why).unwind();
        }
        panic!("{why}")
    }

    #[track_caller]
    fn judge<T>(&self, verdict: Result<T, String>) -> T {
        match verdict {
            Ok(value) => value,
            Err(why) => self.fail(&why),
        }
    }

    fn host(&self, node: NodeId) -> &Host<P> {
        &self.hosts[usize::from(node.0)]
    }

    fn host_mut(&mut self, node: NodeId) -> &mut Host<P> {
        &mut self.hosts[usize::from(node.0)]
    }

    fn note(&mut self, words: [u64; 4]) {
        for word in words {
            self.trace = mix(self.trace ^ word);
        }
    }

    /// Lets `span` pass.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now() + span;
        while self.medium.timeline.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.medium.timeline.advance_to(end);
    }

    /// Lets time pass until `done` returns true; it is called after every event.
    ///
    /// # Panics
    /// If that takes longer than the net's patience.
    #[track_caller]
    pub fn run_until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now() + self.patience;
        while !done(self) {
            self.check(self.now() <= end, || {
                format!("stuck: not done in time\n{}", self.describe_stuck())
            });
            let moved = self.step();
            self.check(moved, || {
                format!(
                    "stuck: nothing is going to happen\n{}",
                    self.describe_stuck()
                )
            });
        }
    }

    /// Lets time pass until each node has all its peers up.
    #[track_caller]
    pub fn run_until_up(&mut self) {
        self.run_until_up_unless(|| false);
    }

    /// As `run_until_up`, but only until `stop` returns true, which is asked after every event. Whether all are up.
    #[track_caller]
    pub fn run_until_up_unless(&mut self, mut stop: impl FnMut() -> bool) -> bool {
        let mut missing: Vec<(NodeId, NodeId)> = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let node = NodeId(index as u16);
            if host.process.is_some() {
                missing.extend(host.peers.iter().map(|peer| (node, *peer)));
            }
        }
        missing.retain(|(_, peer)| self.host(*peer).process.is_some());
        self.run_until(|net| {
            while missing
                .last()
                .is_some_and(|(node, peer)| net.oracle.is_up(*node, *peer))
            {
                missing.pop();
            }
            missing.is_empty() || stop()
        });
        missing.is_empty()
    }

    /// Lets time pass until every message has been delivered or failed, and every sender was told.
    ///
    /// # Panics
    /// If that takes longer than the net's patience, or a completion is never reported.
    #[track_caller]
    pub fn run_until_idle(&mut self) {
        let mut check_at = self.now();
        self.run_until(|net| {
            if net.wishes > 0 || net.oracle.waiting() > 0 || net.now() < check_at {
                return false;
            }
            check_at = net.now() + Duration::from_nanos(IDLE_CHECK_NS);
            net.unacknowledged() == 0
        });
        let unsent = self.oracle.unsent();
        self.check(unsent == 0, || {
            format!("{unsent} messages are acknowledged, and Event::Sent never came")
        });
    }

    /// Messages that live senders still hold.
    pub fn unacknowledged(&self) -> usize {
        let queued = |(from, to)| {
            self.host(from)
                .process
                .as_ref()?
                .flow(to)
                .map(|flow| flow.queued_messages)
        };
        self.oracle.pairs().filter_map(queued).sum()
    }

    fn describe_stuck(&self) -> String {
        const PAIRS_SHOWN: usize = 8;
        let mut text = format!(
            "{} messages on their way, {} wishes waiting, {} unacknowledged",
            self.oracle.waiting(),
            self.wishes,
            self.unacknowledged()
        );
        let flows = self.oracle.pairs().filter_map(|(from, to)| {
            let flow = self.host(from).process.as_ref()?.flow(to)?;
            (flow.queued_messages > 0 || self.host(from).wishes.contains_key(&to))
                .then_some((from, to, flow))
        });
        for (from, to, flow) in flows.take(PAIRS_SHOWN) {
            text += &format!("\n  {from} to {to}: {flow:?}");
        }
        text
    }
}

impl<P: Process> Drop for Net<P> {
    /// Prints the seed and the replay command of a failing test.
    fn drop(&mut self) {
        if !std::thread::panicking() || self.is_in_program {
            return;
        }
        let program = std::env::args().next().unwrap_or_default();
        let file = std::path::Path::new(&program)
            .file_stem()
            .map(|name| name.to_string_lossy().into_owned());
        let file = file
            .as_deref()
            .and_then(|name| name.rsplit_once('-'))
            .map_or("FILE", |(name, _)| name);
        let target = if file == "tsumuji_sim" {
            String::from("--lib")
        } else {
            format!("--test {file}")
        };
        let thread = std::thread::current();
        let test = thread.name().filter(|name| *name != "main").unwrap_or("");
        eprintln!(
            "\nseed {seed}; replay with: {SEED_VARIABLE}={seed} cargo test -p tsumuji-sim {target} -- --exact {test}\n\
             at {now} ns, {events} events planned, {traffic:?}",
            seed = self.seed.0,
            now = self.now().as_nanos(),
            events = self.medium.timeline.planned(),
            traffic = self.medium.traffic,
        );
    }
}

#[cfg(test)]
mod tests;
