//! Builds a net: the medium's properties, and its nodes.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use super::{DEFAULT_PATIENCE, Net};
use crate::card::Card;
use crate::host::Host;
use crate::oracle::Oracle;
use crate::process::Process;
use crate::rng::Seed;
use crate::switch::{Medium, Switch, Traffic};
use crate::timeline::Timeline;
use crate::wires::{Conditions, Damage, Port};
use tsumuji_proto::{Config, Duration, NodeId};

impl Net {
    /// An empty net that runs the production engine: 10 µs of delay, no losses, no limits.
    pub fn new(seed: Seed) -> Self {
        Self::with_process(seed)
    }
}

impl<P: Process> Net<P> {
    /// An empty net that runs `P`: 10 µs of delay, no losses, no limits.
    pub fn with_process(seed: Seed) -> Self {
        Self {
            seed,
            medium: Medium {
                timeline: Timeline::default(),
                rng: seed.rng(1),
                traffic: Traffic::default(),
            },
            switch: Switch::new(),
            hosts: Vec::new(),
            oracle: Oracle::default(),
            payload_rng: seed.rng(2),
            incarnation_rng: seed.rng(3),
            items: Vec::new(),
            events: VecDeque::new(),
            copies: false,
            trace: 0,
            rate_bits: 0,
            defer_ppm: 0,
            checked: false,
            job: Rc::default(),
            patience: DEFAULT_PATIENCE,
            wishes: 0,
            forgiving: BTreeSet::new(),
            given: BTreeSet::new(),
            is_in_program: false,
        }
    }

    /// Range of the delay of each frame behind the switch.
    pub fn delay_us(mut self, range: Range<u64>) -> Self {
        self.conditions().delay_ns = range.start * 1_000..range.end * 1_000;
        self
    }

    /// Percentage of frames lost.
    pub fn loss_percent(mut self, percent: u32) -> Self {
        self.conditions().loss_ppm = percent * 10_000;
        self
    }

    /// Percentage of frames that come twice.
    pub fn duplicate_percent(mut self, percent: u32) -> Self {
        self.conditions().duplicate_ppm = percent * 10_000;
        self
    }

    /// Percentage of frames that are late by a time in `extra_us`.
    pub fn reorder_percent(mut self, percent: u32, extra_us: Range<u64>) -> Self {
        let conditions = self.conditions();
        conditions.reorder_ppm = percent * 10_000;
        conditions.reorder_ns = extra_us.start * 1_000..extra_us.end * 1_000;
        self
    }

    /// Percentage of frames that are damaged, each in one of the ways of `kinds`.
    pub fn damage_percent(mut self, percent: u32, kinds: &'static [Damage]) -> Self {
        let conditions = self.conditions();
        conditions.damage_ppm = percent * 10_000;
        conditions.damage = kinds;
        self
    }

    /// Rate of every port, both ways, in Mbit/s. To be set before nodes are added.
    pub fn rate_mbit(mut self, mbit_per_second: u64) -> Self {
        assert!(self.hosts.is_empty(), "set the rate before adding nodes");
        self.rate_bits = mbit_per_second * 1_000_000;
        self.switch.set_rate(self.rate_bits);
        self
    }

    /// Room of each output port of the switch, in bytes on the wire; frames beyond it are dropped.
    pub fn switch_buffer(mut self, bytes: usize) -> Self {
        self.switch.set_buffer(bytes);
        self
    }

    /// Percentage of cases in which the link has no slot for the engine's destination, so that the engine must `defer` it.
    pub fn defer_percent(mut self, percent: u32) -> Self {
        self.defer_ppm = percent * 10_000;
        self
    }

    /// Puts a checksum around each frame, as `tsumuji_link::checked` does on links that may damage frames.
    pub fn checked(mut self) -> Self {
        self.checked = true;
        self
    }

    /// For a net of a program: a violation unwinds to `judged`, which returns it, and prints nothing.
    pub fn in_program(mut self) -> Self {
        self.is_in_program = true;
        self
    }

    /// Virtual time that a `run_until…` may take.
    pub fn patience(mut self, span: Duration) -> Self {
        self.patience = span;
        self
    }

    /// The conditions of all paths that have none of their own; they may be changed at any time.
    pub fn conditions(&mut self) -> &mut Conditions {
        self.switch.conditions_mut()
    }

    /// Gives the path from one node to another its own conditions.
    pub fn set_path(&mut self, from: NodeId, to: NodeId, conditions: Conditions) {
        self.switch.set_path(from, to, conditions);
    }

    /// Counts violations between these two without failing the run: for damage that an unsealed frame cannot reveal.
    pub fn forgive(&mut self, a: NodeId, b: NodeId) {
        self.forgiving.extend([(a, b), (b, a)]);
    }

    /// Adds a node with a running engine and no peers. Its receive ring holds `config.receive_frames`; with `config.ring_bytes` it is in shared memory
    /// with all such nodes, whose paths must keep frames in order and lose none.
    pub fn node(&mut self, config: Config) -> NodeId {
        let node = NodeId(u16::try_from(self.hosts.len()).expect("node ids have 16 bits"));
        self.switch.add_port();
        let config = Config { me: node, ..config };
        let rng = self.seed.rng(1_000 + u64::from(node.0));
        let port = Port::new(self.rate_bits);
        let job = Rc::clone(&self.job);
        let card = Card::new(&config, port, rng, (self.checked, self.defer_ppm), job);
        self.hosts.push(Host::new(config, card));
        self.start(node);
        node
    }

    /// Two nodes, each the other's peer, already up.
    #[track_caller]
    pub fn pair(&mut self, config: Config) -> (NodeId, NodeId) {
        let (a, b) = (self.node(config.clone()), self.node(config));
        self.connect(a, b);
        self.run_until_up();
        (a, b)
    }

    /// `count` nodes without peers.
    pub fn nodes(&mut self, count: usize, config: &Config) -> Vec<NodeId> {
        (0..count).map(|_| self.node(config.clone())).collect()
    }

    /// `count` nodes, all peers of each other.
    pub fn mesh(&mut self, count: usize, config: &Config) -> Vec<NodeId> {
        let nodes = self.nodes(count, config);
        for (index, a) in nodes.iter().enumerate() {
            for b in &nodes[index + 1..] {
                self.connect(*a, *b);
            }
        }
        nodes
    }

    /// `count` nodes, each a peer of the first only.
    pub fn star(&mut self, count: usize, config: &Config) -> Vec<NodeId> {
        let nodes = self.nodes(count, config);
        for leaf in &nodes[1..] {
            self.connect(nodes[0], *leaf);
        }
        nodes
    }

    /// Adds each to the peers of the other.
    pub fn connect(&mut self, a: NodeId, b: NodeId) {
        self.add_peer(a, b);
        self.add_peer(b, a);
    }

    /// The node's processor takes this long for each received frame.
    pub fn set_frame_cost(&mut self, node: NodeId, cost: Duration) {
        self.host_mut(node).frame_ns = cost.as_nanos();
    }

    /// Sets the frames of the node's receive ring, where it differs from its engine's configuration.
    pub fn set_ring(&mut self, node: NodeId, frames: usize) {
        self.host_mut(node).ring_frames = frames;
    }
}
