//! Where the processes of a test run and how they reach each other; what starts one, and how that finds its endpoint.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use tsumuji_link::shm::Shm;
use tsumuji_node::any_link::Base;
use tsumuji_node::bootstrap::{
    ENV_CLUSTER, ENV_CONGESTION, ENV_JOIN, ENV_KEY, ENV_LINK, ENV_NODE as NODE_ENV, ENV_OPEN,
};
use tsumuji_node::{
    ClusterFile, Congestion, Endpoint, Link, LinkAddr, LinkSpec, Membership, NodeId, Options,
    SealMode, Security, endpoint_from_env, open_in_cluster,
};

use super::{NODES, Talker, options};
use crate::common;

const FD_ENV: &str = "TSUMUJI_CYCLES_TEST_FD";
const SESSION_ENV: &str = "TSUMUJI_CYCLES_TEST_LIFE";

/// How the processes of one test reach each other.
pub(crate) enum Over {
    Shm(OwnedFd),
    Cluster(PathBuf),
    /// Over UDP on this host; all but node 0 join.
    Joining,
}

/// Where and how they run.
pub(crate) struct Place {
    pub(crate) over: Over,
    /// All frames are sealed with it.
    pub(crate) key: Option<PathBuf>,
    /// Of all nodes.
    pub(crate) congestion: Congestion,
    /// Namespaces by node; empty: all run where the test does. Node 0's is the test's thread's business.
    pub(crate) namespaces: Vec<String>,
    /// The test that a started process runs: there it works, and ends.
    pub(crate) entry: &'static str,
}

impl Place {
    pub(crate) fn new(over: Over, entry: &'static str) -> Self {
        Self {
            over,
            entry,
            key: None,
            congestion: Congestion::default(),
            namespaces: Vec::new(),
        }
    }

    /// Node 0's endpoint.
    pub(crate) fn open(&self) -> Endpoint {
        let options = Options {
            congestion: self.congestion,
            security: security(self.key.as_deref()),
            ..options()
        };
        match &self.over {
            Over::Shm(job) => {
                let link = Base::Shm(Shm::attach(job, 0).expect("attach"));
                endpoint(link, Membership::local(NodeId(0), NODES), options)
            }
            Over::Cluster(path) => {
                let file = ClusterFile::read(path).expect("a cluster file");
                open_in_cluster(&file, path, NodeId(0), options, None).expect("an endpoint")
            }
            Over::Joining => {
                let link = Base::open(&LinkSpec::Udp(None)).expect("a socket");
                let LinkAddr::Inet(addr) = link.local_addr() else {
                    unreachable!("of UDP");
                };
                let options = Options {
                    admits: true,
                    ..joining(options)
                };
                endpoint(link, Membership::inet(NodeId(0), &[addr]), options)
            }
        }
    }

    /// This program again, in a node's namespace, to run the test of started processes.
    pub(crate) fn command(&self, node: u16) -> Command {
        let program = std::env::current_exe().expect("own path");
        let mut command = match self.namespaces.get(usize::from(node)) {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        };
        command
            .args(["--exact", self.entry, "--nocapture", "--test-threads=1"])
            .env(NODE_ENV, node.to_string())
            .env(ENV_CONGESTION, self.congestion.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        match &self.key {
            Some(key) => command.env(ENV_KEY, key),
            None => command.env(ENV_OPEN, "1"), // its network has no others
        };
        command
    }

    pub(super) fn start(&self, node: u16, session: u32) -> Child {
        self.start_with(node, session, &[])
    }

    /// A process that joins node 0's cluster: as a new member, or as one that died.
    pub(crate) fn join(&self, first: &Talker, id: Option<u16>, session: u32) -> Child {
        let mut command = self.command(0);
        command
            .env(ENV_JOIN, first.endpoint.members()[0].addr.to_string())
            // An address of its own: one that a dead member had would be refused to another one.
            .env(
                ENV_LINK,
                format!("udp:127.1.{}.{}:0", session / 250, session % 250 + 1),
            )
            .env(SESSION_ENV, session.to_string());
        match id {
            Some(id) => command.env(NODE_ENV, id.to_string()),
            None => command.env_remove(NODE_ENV),
        };
        command.spawn().expect("spawn")
    }

    /// The same with more in its environment.
    pub(crate) fn start_with(&self, node: u16, session: u32, more: &[(&str, String)]) -> Child {
        let mut command = self.command(node);
        command.env(SESSION_ENV, session.to_string());
        command.envs(more.iter().map(|(name, value)| (name, value)));
        // Inherited as it is: a copy without close-on-exec, gone when the process is started.
        let inherited = match &self.over {
            Over::Shm(job) => Some(rustix::io::dup(job).expect("dup")),
            Over::Cluster(path) => {
                command.env(ENV_CLUSTER, path);
                None
            }
            Over::Joining => unreachable!("they join"),
        };
        if let Some(job) = &inherited {
            command.env(FD_ENV, job.as_raw_fd().to_string());
        }
        command.spawn().expect("spawn")
    }
}

/// Whether this process joins a cluster that runs.
pub(super) fn is_joining() -> bool {
    std::env::var_os(ENV_JOIN).is_some()
}

/// A member counts as dead soon enough for its place to be taken by another process.
fn joining(options: Options) -> Options {
    Options {
        dead_after: Duration::from_secs(3),
        ..options
    }
}

fn security(key: Option<&Path>) -> Security {
    match key {
        None => Security::Open,
        Some(key) => Security::Sealed {
            key_file: key.to_owned(),
            mode: SealMode::Encrypt,
        },
    }
}

fn endpoint(base: Base, membership: Membership, options: Options) -> Endpoint {
    let link = options.security.open(base, None, None).expect("a key");
    Endpoint::new(link, membership, options).expect("an endpoint")
}

/// Life and endpoint of a process that was started; `None` in the test's own.
pub(crate) fn started(options: Options) -> Option<(u32, Endpoint)> {
    let session = std::env::var_os(SESSION_ENV)?;
    // This process has one test, whose thread may go; its parent's thread stays until all are stopped.
    set_parent_process_death_signal(Some(Signal::KILL)).expect("prctl");
    let session = session.to_str().and_then(|session| session.parse().ok());
    let session = session.expect("a number");
    let endpoint = match std::env::var(FD_ENV) {
        Ok(fd) => {
            let node = std::env::var(NODE_ENV).expect("a node");
            let node: u16 = node.parse().expect("a number");
            let job = File::options()
                .read(true)
                .write(true)
                .open(format!("/proc/self/fd/{fd}"))
                .expect("the job's memory");
            let base = Base::Shm(Shm::attach(&job, node).expect("attach"));
            let key = std::env::var_os(ENV_KEY).map(PathBuf::from);
            let membership = Membership::local(NodeId(node), NODES);
            let options = Options {
                security: security(key.as_deref()),
                ..options
            };
            endpoint(base, membership, options)
        }
        Err(_) if is_joining() => endpoint_from_env(joining(options)).expect("an endpoint"),
        Err(_) => endpoint_from_env(options).expect("an endpoint"),
    };
    Some((session, endpoint))
}

pub(crate) fn cluster_file(folder: &Path, address: impl Fn(u16) -> String) -> PathBuf {
    let nodes = (0..NODES).map(|id| format!("[[node]]\nid = {id}\n{}\n", address(id)));
    let text: String = nodes.collect();
    PathBuf::from(common::file(folder, "cluster.toml", text))
}
