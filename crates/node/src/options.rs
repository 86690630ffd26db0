//! What a program may choose about its endpoint.

use std::time::Duration;

use tsumuji_proto::{Congestion, Pace};

use crate::metrics::MetricsAt;
use crate::security::Security;

/// How an endpoint spends the time in which there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IdlePolicy {
    /// Spins as long as work usually takes to come, then yields, then sleeps; early where processes outnumber cores.
    #[default]
    Adaptive,
    /// Never gives the core away: lowest latency, 100 % CPU, ruinous with more processes than cores.
    Spin,
    /// Gives the core to others between polls, but never sleeps.
    Yield,
    /// Sleeps at once: lowest CPU, a wake-up (tens of µs) per message.
    Sleep,
}

/// Who keeps messages moving while the program does something else than calling its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProgressBy {
    /// A thread of the endpoint's own, asleep while the program calls often. It takes over when the program has been away for a
    /// millisecond: sends what waits for room, takes in and acknowledges what arrives, and answers peers.
    #[default]
    Assistant,
    /// The program alone: for one that calls all the time. While it does not call, nothing moves, and after `Options::dead_after`
    /// peers take it for dead.
    Program,
}

/// What an endpoint is told once, at its birth.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of what an impairment of the link (`tsumuji launch --loss`) does at random.
    pub seed: u64,
    /// This life of this node, not 0. `None`: random.
    pub incarnation: Option<u32>,
    /// Memory that arrived and not yet consumed messages may take, all peers together. Peers wait when it is full.
    pub budget_bytes: usize,
    /// Largest message accepted from a peer; two such messages may exceed `budget_bytes` (`tsumuji_proto::Config` says when).
    pub message_limit_bytes: usize,
    /// Bytes queued to one peer, with what is kept beside each message, before `send` blocks and `try_send` refuses.
    pub send_queue_bytes: usize,
    /// Who may send how much, and what becomes of what was lost. The same at all nodes, or those that differ do not meet.
    pub congestion: Congestion,
    /// How fast messages leave: as fast as peers let them, or slower where the program asks for it. `Endpoint::set_pace` changes it.
    pub pace: Pace,
    /// A silent peer is probed this often.
    pub keep_alive: Duration,
    /// A peer from which nothing is heard for this long is dead: it was stopped or cut off, or it runs with [`ProgressBy::Program`] and
    /// did not call its endpoint.
    pub dead_after: Duration,
    /// Who keeps messages moving while the program computes.
    pub progress: ProgressBy,
    /// What to do while there is nothing to do.
    pub idle: IdlePolicy,
    /// Whether frames are sealed; looked at by [`endpoint_from_env`](crate::endpoint_from_env) and
    /// [`Launcher::endpoint`](crate::Launcher::endpoint), which open the link.
    pub security: Security,
    /// To whom counters are shown. Takes a thread that sleeps until somebody asks.
    pub metrics: MetricsAt,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            incarnation: None,
            budget_bytes: 64 << 20,
            message_limit_bytes: u32::MAX as usize, // the wire's own limit
            // Several rings or socket buffers full, and still in a second-level cache: a longer queue makes nothing faster, and
            // what has to come from memory again halves the rate.
            send_queue_bytes: 4 << 20,
            congestion: Congestion::Credit,
            pace: Pace::Free,
            keep_alive: Duration::from_secs(1),
            dead_after: Duration::from_secs(10),
            progress: ProgressBy::Assistant,
            idle: IdlePolicy::Adaptive,
            security: Security::Unstated,
            metrics: MetricsAt::Unstated,
        }
    }
}
