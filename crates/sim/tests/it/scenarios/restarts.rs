//! Thousands of processes that are killed or leave, and come back as new incarnations, at every moment there is: while they say hello,
//! inside long messages, while a message is borrowed, under losses, copies, late frames and cuts.
//!
//! The judge watches every delivery and event. Beside it, after every step: the books of every engine balance (`Accounts`). After
//! every few deaths: all that live find each other within a bounded time, all that was sent since arrives, and nothing of the
//! dead is left in anybody's memory.

use super::config;
use tsumuji_proto::{Channel, Config, DeliveryClass, Duration, NodeId, Priority};
use tsumuji_sim::{Conditions, Net, Pace, Rng, Seed};

/// Deaths in one run.
const DEATHS: usize = 100;

/// Runs, each from a seed of its own.
const STORMS: u64 = 70;
const RETURNS: u64 = 50;
const _: () = assert!((STORMS + RETURNS) * DEATHS as u64 >= 10_000);

/// Deaths between two checks of the whole.
const DEATHS_PER_ROUND: usize = 10;

/// How often a program tries dead peers again.
const RECONNECT_EVERY: Duration = Duration::from_millis(20);

/// A peer that did not answer is asked again after so long.
const HELLO_AT_LATEST: Duration = Duration::from_millis(200);

/// The processes of one run, and which of them live.
pub(super) struct Cluster {
    pub(super) net: Net,
    pub(super) nodes: Vec<NodeId>,
    pub(super) alive: Vec<bool>,
    pub(super) chance: Rng,
    pub(super) deaths: usize,
    restarts: usize,
}

impl Cluster {
    pub(super) fn new(net: Net, seed: Seed, nodes: usize, config: &Config) -> Self {
        let mut net = net;
        let nodes = net.mesh(nodes, config);
        Self {
            alive: vec![true; nodes.len()],
            net,
            nodes,
            chance: seed.rng(91),
            deaths: 0,
            restarts: 0,
        }
    }

    /// Lets time pass; then all books must balance.
    pub(super) fn run_for(&mut self, span: Duration) {
        self.net.run_for(span);
        self.balance();
    }

    fn balance(&self) {
        for node in &self.nodes {
            let Some(engine) = self.net.engine(*node) else {
                continue;
            };
            let accounts = engine.accounts();
            let ring = self.net.config_of(*node).receive_frames as u64;
            self.net.check(
                accounts.are_balanced() && accounts.claimed_frames <= ring,
                || format!("{node}: {accounts:?}, with a ring of {ring} frames"),
            );
        }
    }

    /// Somebody's message to somebody, of any class, priority and size.
    pub(super) fn send(&mut self) {
        let chance = &mut self.chance;
        let at = chance.below(self.nodes.len());
        let to = self.nodes[(at + 1 + chance.below(self.nodes.len() - 1)) % self.nodes.len()];
        let class = if chance.chance(700_000) {
            DeliveryClass::Ordered
        } else {
            DeliveryClass::Unordered
        };
        let priority = Priority::new(chance.below(4) as u8).expect("below 4");
        let channel = Channel::new(class, priority, chance.below(2) as u16);
        if !self.alive[at] {
            return;
        }
        let longest = [1, 100, 1_460, 20_000, 200_000][chance.below(5)];
        let (bytes, count) = (chance.below(longest), chance.within(1..5));
        if longest > 10_000 && chance.chance(500_000) {
            // Some are longer than all that may wait to leave.
            let bytes = bytes + chance.below(2) * 400_000;
            self.net.borrow(self.nodes[at], to, channel, bytes);
        } else {
            self.net.stream(self.nodes[at], to, channel, bytes, count);
        }
    }

    pub(super) fn end(&mut self, at: usize) {
        if self.chance.chance(250_000) {
            self.net.leave(self.nodes[at]);
        } else {
            self.net.crash(self.nodes[at]);
        }
        self.alive[at] = false;
        self.deaths += 1;
    }

    pub(super) fn begin(&mut self, at: usize) {
        self.net.restart(self.nodes[at]);
        self.alive[at] = true;
        self.restarts += 1;
    }

    /// One more process begins, and all that were there before are its peers.
    pub(super) fn join(&mut self, config: &Config) {
        let node = self.net.node(config.clone());
        for other in &self.nodes {
            self.net.connect(*other, node);
        }
        self.nodes.push(node);
        self.alive.push(true);
        self.balance();
    }

    /// A span as long as one of the things that can be interrupted: a frame, a hello, a message, a incarnation, a death.
    pub(super) fn span(&mut self) -> Duration {
        let longest_us = [20, 100, 1_000, 5_000][self.chance.below(4)];
        Duration::from_nanos(self.chance.within(0..longest_us * 1_000))
    }

    /// Programs that want their dead peers back.
    fn reconnect(&mut self) {
        for (from, to) in self.pairs() {
            if !self.net.is_up(from, to) {
                self.net.reconnect(from, to);
            }
        }
    }

    /// All ordered pairs of the living.
    fn pairs(&self) -> Vec<(NodeId, NodeId)> {
        let living = || {
            self.nodes
                .iter()
                .zip(&self.alive)
                .filter_map(|(node, alive)| alive.then_some(*node))
        };
        living()
            .flat_map(|from| living().map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .collect()
    }

    fn unmet(&self) -> Vec<(NodeId, NodeId)> {
        let mut pairs = self.pairs();
        pairs.retain(|(from, to)| !self.net.has_met(*from, *to));
        pairs
    }

    /// All that live know each other's present incarnations within `bound`. `reconnect`: programs try dead peers again meanwhile.
    fn meet(&mut self, bound: Duration, reconnect: bool) {
        let begun = self.net.now();
        while !self.unmet().is_empty() {
            let took = self.net.now().since(begun);
            self.net.check(took <= bound, || {
                format!(
                    "after {} ms these have not met: {:?}",
                    took.as_nanos() / 1_000_000,
                    self.unmet()
                )
            });
            if reconnect {
                self.reconnect();
            }
            let step = if reconnect {
                RECONNECT_EVERY
            } else {
                Duration::from_micros(100)
            };
            self.run_for(step);
        }
    }

    /// Everyone lives, nothing disturbs: all meet, all that is sent arrives, and nothing of former incarnations takes any memory.
    pub(super) fn come_to_rest(&mut self) {
        self.net.heal();
        *self.net.conditions() = Conditions::default();
        for at in 0..self.nodes.len() {
            if !self.alive[at] {
                self.begin(at);
            }
            self.net.resume(self.nodes[at]);
            self.net.set_pace(self.nodes[at], Pace::Prompt);
        }
        // Nodes that have not noticed yet that a peer had been gone, or is dead, do so now.
        let end = self.net.now() + config().dead_after + config().keep_alive;
        while self.net.now() < end {
            self.reconnect();
            self.run_for(RECONNECT_EVERY);
        }
        self.meet(HELLO_AT_LATEST + RECONNECT_EVERY, true);
        let before: Vec<usize> = self
            .nodes
            .iter()
            .map(|node| self.net.deliveries(*node).len())
            .collect();
        for (from, to) in self.pairs() {
            self.net.stream(from, to, Channel::ordered(2), 5_000, 2);
            self.net.borrow(from, to, Channel::ordered(3), 30_000);
        }
        self.net.run_until_idle();
        self.run_for(config().keep_alive.times(3));
        for (node, before) in self.nodes.iter().zip(before) {
            let came = self.net.deliveries(*node).len() - before;
            self.net.check(came >= 3 * (self.nodes.len() - 1), || {
                format!("{node} was given {came} messages at rest")
            });
            let accounts = self.net.engine(*node).expect("alive").accounts();
            self.net.check(
                accounts.memory_bytes == 0 && accounts.queued_bytes == 0,
                || format!("{node} still holds something at rest: {accounts:?}"),
            );
            for peer in self.nodes.iter().filter(|peer| *peer != node) {
                let flow = self.net.flow(*node, *peer).expect("a peer");
                let budget = self.net.config_of(*peer).budget_bytes;
                self.net.check(
                    flow.window_bytes >= budget / 1024 * 1024
                        && flow.in_flight_frames == 0
                        && flow.queued_messages == 0,
                    || format!("{node} to {peer} at rest: {flow:?}"),
                );
            }
        }
    }
}

/// Deaths and restarts at random times under everything a network can do: the judge finds nothing, the books balance, all meet
/// again when the weather is fair, and the dead leave nothing behind.
#[test]
fn random_lives_in_bad_weather() {
    for seed in Seed::several(11_000, STORMS) {
        let net = Net::new(seed)
            .rate_mbit(1_000)
            .switch_buffer(256 << 10)
            .delay_us(5..60)
            .patience(Duration::from_secs(10));
        let config = Config {
            budget_bytes: 1 << 20,
            send_queue_bytes: 1 << 20,
            ..config()
        };
        let nodes = 2 + (seed.0 % 4) as usize;
        let mut cluster = Cluster::new(net, seed, nodes, &config);
        let mut round = 0;
        while cluster.deaths < DEATHS {
            disturb(&mut cluster);
            let span = cluster.span();
            cluster.run_for(span);
            if cluster.deaths / DEATHS_PER_ROUND > round {
                round += 1;
                cluster.come_to_rest();
            }
        }
        cluster.come_to_rest();
        assert_eq!(cluster.restarts, cluster.deaths);
    }
}

/// One random thing happens.
fn disturb(cluster: &mut Cluster) {
    let at = cluster.chance.below(cluster.nodes.len());
    let (node, alive) = (cluster.nodes[at], cluster.alive[at]);
    match cluster.chance.below(100) {
        0..50 => cluster.send(),
        50..65 if alive => cluster.end(at),
        // As often right away, so that even hello is interrupted by the next death.
        50..85 if !alive => cluster.begin(at),
        85..88 => cluster.reconnect(),
        88..91 => {
            let loss_ppm = cluster.chance.within(0..300_000) as u32;
            cluster.net.conditions().loss_ppm = loss_ppm;
        }
        91..94 => {
            let (twice, late) = (
                cluster.chance.within(0..300_000) as u32,
                cluster.chance.within(0..300_000) as u32,
            );
            let latest_ns = [50_000, 2_000_000, 40_000_000][cluster.chance.below(3)];
            let conditions = cluster.net.conditions();
            (conditions.duplicate_ppm, conditions.reorder_ppm) = (twice, late);
            conditions.reorder_ns = 1_000..latest_ns;
        }
        94 => {
            let side = 1 + cluster.chance.below(cluster.nodes.len() - 1);
            cluster.net.partition(&cluster.nodes[..side]);
        }
        95..97 => cluster.net.heal(),
        97 => {
            let paces = [Pace::Prompt, Pace::Stopped, Pace::BytesPerSecond(5_000_000)];
            let pace = paces[cluster.chance.below(3)];
            cluster.net.set_pace(node, pace);
        }
        98 if alive => cluster.net.pause(node),
        98..100 => {
            if alive {
                cluster.net.resume(node);
            }
            // Long enough that some are declared dead.
            let span = Duration::from_micros(cluster.chance.within(0..150_000));
            cluster.run_for(span);
        }
        _ => {}
    }
}

/// A process that comes back is found by all that live without anybody's asking for it, however soon it died again: two
/// round trips, where nothing is lost, and a few repetitions of hello where something is.
#[test]
fn restarted_are_found_without_a_search() {
    for seed in Seed::several(20_000, RETURNS) {
        let loss_percent = [0, 0, 10][(seed.0 % 3) as usize];
        let net = Net::new(seed)
            .delay_us(5..40)
            .loss_percent(loss_percent)
            .duplicate_percent(5)
            .reorder_percent(10, 20..400)
            .patience(Duration::from_secs(10));
        let mut cluster = Cluster::new(net, seed, 3, &config());
        cluster.meet(Duration::from_millis(500), false);
        while cluster.deaths < DEATHS {
            for _ in 0..cluster.chance.below(8) {
                cluster.send();
            }
            let span = cluster.span();
            cluster.run_for(span);
            let at = cluster.chance.below(3);
            cluster.end(at);
            for _ in 0..cluster.chance.below(3) {
                // It never gets far.
                let span = Duration::from_nanos(cluster.chance.within(0..120_000));
                cluster.run_for(span);
                cluster.begin(at);
                let span = Duration::from_nanos(cluster.chance.within(0..120_000));
                cluster.run_for(span);
                cluster.end(at);
            }
            let span = cluster.span();
            cluster.run_for(span);
            cluster.begin(at);
            // Hellos leave 1, 3, 7, 15 … 455 ms after the first; at 10 % loss a handshake fails once in five times.
            let bound = if loss_percent == 0 { 3 } else { 700 };
            cluster.meet(Duration::from_millis(bound), false);
        }
        cluster.come_to_rest();
        assert_eq!(cluster.restarts, cluster.deaths);
    }
}
