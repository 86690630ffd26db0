//! Options of an endpoint.

use std::time::Duration;

use tsumuji_proto::{Congestion, Pace};

use crate::metrics::MetricsAt;
use crate::security::Security;
use crate::tuning::Tuning;

/// What an endpoint does while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IdlePolicy {
    /// Spins for the time that work usually takes to come, then yields, then sleeps; spins less if processes outnumber cores.
    #[default]
    Adaptive,
    /// Never gives the core away: lowest latency, 100 % CPU, very slow with more processes than cores.
    Spin,
    /// Gives the core to others between polls, but never sleeps.
    Yield,
    /// Sleeps at once: lowest CPU, a wake-up (tens of µs) per message.
    Sleep,
}

/// Which thread drives the endpoint while the program computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProgressBy {
    /// A thread of the endpoint, asleep while the program calls often. It takes over after the program has been away for a millisecond: sends waiting
    /// messages, receives and acknowledges, and answers peers.
    #[default]
    Assistant,
    /// The program alone: for one that calls all the time. While it does not call, nothing is sent or received, and after `Options::dead_after` peers
    /// take it for dead.
    Program,
}

/// Options given when an endpoint is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of a random impairment of the link (`tsumuji launch --loss`).
    pub seed: u64,
    /// This node's incarnation, not 0. `None`: random.
    pub incarnation: Option<u32>,
    /// Bytes for messages that arrived and were not consumed, for all peers together. Peers wait when it is full.
    pub budget_bytes: usize,
    /// Largest message accepted from a peer, in bytes; two such messages may exceed `budget_bytes` (`tsumuji_proto::Config` says when).
    pub message_limit_bytes: usize,
    /// Bytes queued to one peer, with the overhead of each message, before `send` blocks and `try_send` refuses.
    pub send_queue_bytes: usize,
    /// Congestion control: who may send how much, and how losses are repaired. Nodes with different kinds do not meet.
    pub congestion: Congestion,
    /// Pace of messages: as fast as peers allow, or slower. `Endpoint::set_pace` changes it.
    pub pace: Pace,
    /// Interval at which a silent peer is probed; at most a quarter of `dead_after`, whatever is given here.
    pub keep_alive: Duration,
    /// Silence after which a peer is dead: it was stopped or cut off, or it runs with [`ProgressBy::Program`] and did not call its endpoint.
    pub dead_after: Duration,
    /// Which thread drives the endpoint while the program computes.
    pub progress: ProgressBy,
    /// What to do while waiting.
    pub idle: IdlePolicy,
    /// As node 0, admit processes that ask to become members (`Endpoint::join`, `tsumuji join`).
    pub admits: bool,
    /// Whether frames are sealed; used by [`endpoint_from_env`](crate::endpoint_from_env) and [`Launcher::endpoint`](crate::Launcher::endpoint),
    /// which open the link.
    pub security: Security,
    /// Thresholds that depend on the machine and the link. `None`: those of the profile in force, or else the defaults ([`tuning`](crate::tuning)).
    pub tuning: Option<Tuning>,
    /// Where counters are published. Needs a thread, which sleeps until a reader asks.
    pub metrics: MetricsAt,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            incarnation: None,
            budget_bytes: 64 << 20,
            message_limit_bytes: u32::MAX as usize, // the wire's own limit
            // Fills several rings or socket buffers, and still fits a second-level cache: a longer queue makes nothing faster, and reading messages
            // from memory again would halve the rate.
            send_queue_bytes: 4 << 20,
            congestion: Congestion::Credit,
            pace: Pace::Free,
            keep_alive: Duration::from_secs(1),
            dead_after: Duration::from_secs(10),
            progress: ProgressBy::Assistant,
            idle: IdlePolicy::Adaptive,
            admits: false,
            security: Security::Unstated,
            tuning: None,
            metrics: MetricsAt::Unstated,
        }
    }
}
