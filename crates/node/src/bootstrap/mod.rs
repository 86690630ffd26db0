//! How the processes of a cluster find each other.
//!
//! On one host a [`Launcher`] starts the processes and passes the table of addresses (and the shared memory) over a UNIX socket; each opens its
//! endpoint with [`endpoint_from_env`]. For several hosts a cluster file lists the nodes ([`ClusterFile`](crate::ClusterFile)): a `Launcher` starts
//! an agent on each host with a command such as `ssh`, and the agent starts the process and relays its rendezvous. Processes may also be started by
//! other means, with `TSUMUJI_CLUSTER` and `TSUMUJI_NODE` set; they may join a cluster that runs already (`TSUMUJI_JOIN`); or they are started by
//! `mpiexec`, `mpirun` and `srun`, whose ranks find each other by these launchers' own service.

mod agent;
mod binding;
mod child;
mod foreign;
mod frames;
#[doc(hidden)]
pub mod fuzzing;
mod hosts;
mod joining;
mod keeper;
mod launcher;
mod leftovers;
mod lines;
mod meeting;
mod neighbours;
mod notice;
mod offer;
mod output;
mod pauses;
pub(crate) mod relay;
mod remote;
pub(crate) mod rendezvous;
mod shared;
mod worker;

pub use crate::exit::{WorkerExit, WorkerFailure};
pub use crate::security::{ENV_KEY, ENV_OPEN, ENV_SEAL};
pub use agent::{AgentError, serve_agent};
pub use binding::Binding;
pub use frames::UserSignal;
pub use hosts::Hosts;
pub use joining::JoinAddress;
pub use launcher::{LaunchError, LaunchSpec, Launcher, Printing, Progress};
pub(crate) use neighbours::HostMemory;
pub(crate) use offer::Server as HostServer;
pub use pauses::{continue_launches, pause_launches};
pub use relay::{RelayEnd, RelayPlan, RelayServeError, RelayServes, serve_relay};
pub use worker::{
    check_env, endpoint_from_env, endpoint_in_cluster, endpoint_on, has_launcher, open_in_cluster,
    report_error, security_from_env, was_launched,
};

/// Name of the rendezvous socket. Set by the launcher.
pub const ENV_RENDEZVOUS: &str = "TSUMUJI_RENDEZVOUS";
/// Number of this node. Set by the launcher, or by the user beside `TSUMUJI_CLUSTER`.
pub const ENV_NODE: &str = "TSUMUJI_NODE";
/// Number of nodes. Set by the launcher.
pub const ENV_NODES: &str = "TSUMUJI_NODES";
/// The link, as users write it. Set by the launcher.
pub const ENV_LINK: &str = "TSUMUJI_LINK";
/// Path of a cluster file, instead of a launcher.
pub const ENV_CLUSTER: &str = "TSUMUJI_CLUSTER";
/// Address of node 0 of a running cluster that this process joins: `udp:ADDRESS:PORT`, an Ethernet address, or `shm:PROCESS` of a launcher on this
/// host.
pub const ENV_JOIN: &str = "TSUMUJI_JOIN";
/// `1`: node 0 admits processes that join.
pub const ENV_ADMIT: &str = "TSUMUJI_ADMIT";
/// Seed of random choices (a number); each node mixes in its own.
pub const ENV_SEED: &str = "TSUMUJI_SEED";
/// Fraction of received frames to drop on purpose: `0.2` or `20%`.
pub const ENV_LOSS: &str = "TSUMUJI_LOSS";
/// Where metrics are published: ADDRESS:PORT (node i: PORT + i), `local` (the default: for `tsumuji top`) or `off`.
pub const ENV_METRICS: &str = "TSUMUJI_METRICS";
/// Path of a capture file; the node's number is put before its extension.
pub const ENV_CAPTURE: &str = "TSUMUJI_CAPTURE";
/// Version of PMI that `mpiexec` or `srun` speaks, 1 or 2, if the environment does not tell (see `foreign::pmi`).
pub const ENV_PMI: &str = "TSUMUJI_PMI";
/// Congestion control: `credit`, `suci` or `suci:K`, the same for all nodes apart from K.
pub const ENV_CONGESTION: &str = "TSUMUJI_CONGESTION";
