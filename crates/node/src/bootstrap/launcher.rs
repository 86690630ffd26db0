//! The parent's side: starts the processes of one host, or of several, and knows which of them failed.
//!
//! Called by programs that spread their work (`solve`) and by `tsumuji launch`. Signals to the parent (Ctrl-C) are the
//! caller's: workers run in process groups of their own, so the terminal's interrupt reaches only the parent, which then
//! calls [`Launcher::shutdown`].

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use tsumuji_link::dpdk::DpdkMeetError;
use tsumuji_link::shm::{ShmConfig, ShmCreateError, ShmJob};
use tsumuji_proto::{Congestion, NodeId};

use super::child::{Order, Print};
use super::exit::{WorkerExit, WorkerFailure};
use super::hosts::{self, Hosts};
use super::keeper::Keeper;
use super::meeting::Meeting;
use super::output::{Output, Target};
use super::rendezvous::{self, Address, MAX_NODES, TableEntry};
use super::shared::Shared;
use super::{ENV_CONGESTION, ENV_LINK, ENV_NODE, ENV_NODES, ENV_RENDEZVOUS, worker};
use crate::any_link::{AnyLink, Base, LinkSpec, Unsealed};
use crate::endpoint::Endpoint;
use crate::error::OpenError;
use crate::options::Options;
use tsumuji_link::Link;
use tsumuji_link::impair::ImpairConfig;

/// Workers that do not react to TERM within this are killed when a launcher is dropped.
const DROP_GRACE: Duration = Duration::from_millis(500);

/// Longer than a busy host or a switch that learns anew needs, shorter than people wait.
const SILENCE: Duration = Duration::from_secs(20);

/// What is to be started.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// Processes to spawn. Not looked at where `hosts` says who takes part.
    pub nodes: usize,
    /// Processes of several hosts, each reached as stated; `link` is not looked at.
    pub hosts: Option<Hosts>,
    /// The parent takes part as node 0 and the children are 1 to `nodes`; otherwise they are 0 to `nodes` − 1.
    pub with_self: bool,
    /// How they reach each other. `udp:ADDRESS:PORT`: node *i* takes `PORT` + *i*. `dpdk:net_memif`: the first of two is its server.
    pub link: LinkSpec,
    /// Program and arguments; the same for all.
    pub command: Vec<OsString>,
    /// Workers are named by it and their node's number: `worker 2`.
    pub name_prefix: String,
    /// The parent's own name in the table, where it takes part.
    pub self_name: String,
    /// Environment of every child, beside what the rendezvous needs.
    pub env: Vec<(OsString, OsString)>,
    /// Congestion control of all nodes, the parent's own included. `None`: as `TSUMUJI_CONGESTION` says, or as each chooses.
    pub congestion: Option<Congestion>,
    /// What becomes of the workers' standard output.
    pub stdout: Printing,
    /// What becomes of their standard error.
    pub stderr: Printing,
    /// Their standard output goes to the parent's standard error, too (not with `Printing::Inherit`).
    pub stdout_to_stderr: bool,
    /// A worker must have reported this long after somebody began to wait for it.
    pub join_timeout: Duration,
    /// A host that says nothing for so long counts as dead, and its agent thinks the same of us: then it ends what it started.
    pub silence: Duration,
}

impl LaunchSpec {
    /// `nodes` processes of `command` over shared memory, without the parent.
    pub fn new<S: Into<OsString>>(nodes: usize, command: impl IntoIterator<Item = S>) -> Self {
        Self {
            nodes,
            hosts: None,
            with_self: false,
            link: LinkSpec::Shm,
            command: command.into_iter().map(Into::into).collect(),
            name_prefix: "worker".to_owned(),
            self_name: "launcher".to_owned(),
            env: Vec::new(),
            congestion: None,
            stdout: Printing::Inherit,
            stderr: Printing::Tagged,
            stdout_to_stderr: false,
            join_timeout: Duration::from_secs(10),
            silence: SILENCE,
        }
    }

    /// Where standard output goes when this process passes it on.
    pub(super) fn print_stdout(&self) -> Print {
        Print {
            target: if self.stdout_to_stderr {
                Target::Stderr
            } else {
                Target::Stdout
            },
            tagged: self.stdout == Printing::Tagged,
        }
    }

    pub(super) fn print_stderr(&self) -> Print {
        Print {
            target: Target::Stderr,
            tagged: self.stderr == Printing::Tagged,
        }
    }
}

/// What becomes of what workers print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Printing {
    /// It goes where the parent's goes, without the parent: lines of several workers may mix. Across hosts as `Lines`.
    Inherit,
    /// The parent passes it on in whole lines.
    Lines,
    /// The same, with the worker's name before each line.
    Tagged,
}

/// Why nothing was started. What had been started is gone again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Zero or too many.
    #[error("{nodes} processes asked for; accepted are 1 to {limit}")]
    Nodes {
        /// Asked for.
        nodes: usize,
        /// The most there can be.
        limit: usize,
    },
    /// `LaunchSpec::command` is empty.
    #[error("no program was given to launch")]
    NoCommand,
    /// Words for another host that are no text.
    #[error("`{word}` is not readable as text and cannot be told to another host")]
    NotText {
        /// As far as it can be shown.
        word: String,
    },
    /// The ports counted up from the given one do not exist.
    #[error("link `{link}` leaves no room for {nodes} ports (the highest is 65535)")]
    Ports {
        /// As given.
        link: Box<LinkSpec>,
        /// One port each.
        nodes: usize,
    },
    /// One process has an interface, so several of one host cannot meet there.
    #[error(
        "link `{link}` joins hosts, one process each; say which by --hosts FILE, or take shm or udp on one host"
    )]
    OneHost {
        /// As given.
        link: Box<LinkSpec>,
    },
    /// They cannot meet by this DPDK device.
    #[error(transparent)]
    Dpdk(#[from] DpdkMeetError),
    /// A worker could not start.
    #[error(transparent)]
    Worker(#[from] WorkerFailure),
    /// The shared memory cannot be made.
    #[error("cannot make the shared memory: {0}")]
    Memory(#[from] ShmCreateError),
    /// The parent's own place cannot be taken.
    #[error("cannot open the link: {0}")]
    Open(Box<OpenError>),
    /// The kernel refused.
    #[error("{what}: {source}")]
    Io {
        /// Which step.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl From<OpenError> for LaunchError {
    fn from(error: OpenError) -> Self {
        Self::Open(Box::new(error))
    }
}

/// How the run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Workers run and none has failed.
    Running,
    /// All have ended, each with exit code 0.
    Finished,
    /// This one failed first.
    Failed(WorkerFailure),
}

/// Processes that were started together; they end with it.
#[derive(Debug)]
pub struct Launcher {
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    keeper: Option<JoinHandle<()>>,
    /// What the parent's own endpoint is made of, until it is asked for.
    own: Option<Base>,
    congestion: Option<Congestion>,
    /// Where processes meet that need a folder for it. Last: what uses it is gone by then.
    _meeting: Option<Meeting>,
}

impl Launcher {
    /// Makes the job and spawns the workers; returns as soon as all processes run.
    pub fn start(mut spec: LaunchSpec) -> Result<Self, LaunchError> {
        let congestion = match spec.congestion {
            Some(congestion) => Some(congestion),
            None => worker::congestion()?,
        };
        // Stated, so that other hosts learn of it.
        spec.env
            .extend(congestion.map(|name| (ENV_CONGESTION.into(), name.to_string().into())));
        let first = usize::from(spec.with_self);
        let total = match &spec.hosts {
            Some(hosts) => hosts.nodes.len(),
            None => spec.nodes.saturating_add(first),
        };
        if total <= first || total > MAX_NODES {
            return Err(LaunchError::Nodes {
                nodes: total.saturating_sub(first),
                limit: MAX_NODES - first,
            });
        }
        if spec.command.is_empty() {
            return Err(LaunchError::NoCommand);
        }
        if let (LinkSpec::Udp(Some(addr)), None) = (spec.link, &spec.hosts)
            && addr.port() != 0
            && usize::from(addr.port()) + total > usize::from(u16::MAX) + 1
        {
            return Err(LaunchError::Ports {
                link: Box::new(spec.link),
                nodes: total,
            });
        }
        let io = |what| move |source| LaunchError::Io { what, source };
        let name = rendezvous::random_name().map_err(io("random name"))?;
        let listener = rendezvous::listen(&name).map_err(io("rendezvous socket"))?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| io("eventfd")(error.into()))?);

        let memory = match (spec.link, &spec.hosts) {
            (LinkSpec::Udp(_) | LinkSpec::Dpdk(_), None) | (_, Some(_)) => None,
            (LinkSpec::Shm, None) => Some(ShmJob::create(total, ShmConfig::for_nodes(total))?),
            (LinkSpec::Packet(_) | LinkSpec::Xdp(_), None) => {
                return Err(LaunchError::OneHost {
                    link: Box::new(spec.link),
                });
            }
        };
        let meeting = match (&spec.link, &spec.hosts) {
            (LinkSpec::Dpdk(device), None) if device.stays_on_host() => {
                Some(Meeting::create().map_err(io("folder for the device's socket"))?)
            }
            _ => None,
        };
        let socket = meeting.as_ref().map_or("", Meeting::socket);
        let own = match (&memory, &spec.hosts, spec.with_self) {
            (_, _, false) => None,
            (Some(memory), _, true) => Some(Base::attach(memory.as_fd(), 0)?),
            (None, Some(hosts), true) => Some(Base::open(&hosts.nodes[0].link)?),
            (None, None, true) => Some(Base::open(&link_of(&spec.link, 0, total, socket)?)?),
        };
        let own_entry = own.as_ref().map(|base| TableEntry {
            name: spec.self_name.clone(),
            addr: Address::of(base.local_addr()),
        });

        let numbers = (0..=u16::MAX).take(total).skip(first); // `MAX_NODES` is far below
        let orders: Result<_, LaunchError> = match &spec.hosts {
            Some(there) => numbers
                .map(|node| hosts::order(&spec, there, node))
                .collect(),
            None => numbers
                .map(|node| {
                    let link = link_of(&spec.link, node, total, socket)?;
                    Ok(order(&spec, node, total, &name, &link))
                })
                .collect(),
        };
        let orders = orders?;
        let output = Output::start(Arc::clone(&wake)).map_err(io("start a thread"))?;
        let keeper = Keeper::new(listener, memory, own_entry, spec.join_timeout, output);
        let shared = Arc::new(Shared::default());
        let thread = {
            let (shared, wake) = (Arc::clone(&shared), Arc::clone(&wake));
            let thread = std::thread::Builder::new().name("tsumuji-keeper".to_owned());
            thread
                .spawn(move || keeper.run(orders, &wake, &shared))
                .map_err(io("start a thread"))?
        };
        let launcher = Self {
            shared,
            wake,
            keeper: Some(thread),
            own,
            congestion,
            _meeting: meeting,
        };
        let failure = launcher
            .shared
            .wait(None, |state| state.spawned)
            .failure
            .clone();
        match failure {
            // Dropping `launcher` ends those that run.
            Some(failure @ WorkerFailure::CouldNotStart { .. }) => Err(failure.into()),
            // One that ended meanwhile is for `check` and `wait` to tell.
            _ => Ok(launcher),
        }
    }

    /// The parent's own endpoint (`LaunchSpec::with_self`), once all workers have reported. Once only.
    pub fn endpoint(
        &mut self,
        mut options: Options,
        impair: Option<ImpairConfig>,
        capture: Option<&Path>,
    ) -> Result<Endpoint<AnyLink>, OpenError> {
        let base = self.own.take().ok_or(OpenError::NotAMember)?;
        self.shared.lock().waiting = true;
        self.wake_keeper();
        let members = {
            let done = |state: &super::shared::State| {
                state.table.is_some() || state.failure.is_some() || state.finished
            };
            let mut state = self.shared.wait(None, done); // bounded by the keeper's join timeout
            state.waiting = false;
            match (&state.table, &state.failure) {
                (Some(table), _) => table.clone(),
                (None, Some(failure)) => return Err(OpenError::Worker(failure.clone())),
                // All had ended, and well, before we began to wait.
                (None, None) => {
                    let first = state.exits.first().cloned();
                    return Err(first.map_or(OpenError::Abandoned, |exit| {
                        OpenError::Worker(WorkerFailure::Ended { exit, early: true })
                    }));
                }
            }
        };
        let membership = rendezvous::membership(NodeId(0), members);
        options.congestion = self.congestion.unwrap_or(options.congestion);
        let link = options
            .security
            .apply(Unsealed::open(base, impair, capture)?)?;
        Endpoint::new(link, membership, options)
    }

    /// The first worker that died or could not join, if any. Never waits.
    pub fn check(&mut self) -> Option<WorkerFailure> {
        self.shared.lock().failure.clone()
    }

    /// Waits until a worker fails, or all have ended, or `timeout` has passed.
    pub fn wait(&mut self, timeout: Duration) -> Progress {
        let deadline = Instant::now().checked_add(timeout);
        let state = self
            .shared
            .wait(deadline, |state| state.failure.is_some() || state.finished);
        match (&state.failure, state.finished) {
            (Some(failure), _) => Progress::Failed(failure.clone()),
            (None, true) => Progress::Finished,
            (None, false) => Progress::Running,
        }
    }

    /// Waits until all workers have ended, well or not, or `timeout` has passed. Returns those that have.
    pub fn wait_all(&mut self, timeout: Duration) -> Vec<WorkerExit> {
        let deadline = Instant::now().checked_add(timeout);
        self.shared
            .wait(deadline, |state| state.finished)
            .exits
            .clone()
    }

    /// Workers that have ended so far.
    pub fn exits(&self) -> Vec<WorkerExit> {
        self.shared.lock().exits.clone()
    }

    /// Why what workers printed could not all be written, once all have ended. `None` also where its reader has gone away, and the
    /// second time.
    pub fn stdout_error(&mut self) -> Option<std::io::Error> {
        self.shared.lock().stdout_error.take()
    }

    /// Node and process of every worker that was spawned.
    pub fn pids(&self) -> Vec<(NodeId, u32)> {
        self.shared.lock().pids.clone()
    }

    /// TERM to every worker that still runs, KILL after `grace`; returns when all are reaped. Harmless if repeated.
    pub fn shutdown(&mut self, grace: Duration) {
        self.shared.lock().stop.get_or_insert(grace);
        self.wake_keeper();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join(); // a keeper that panicked has taken its children with it
        }
    }

    fn wake_keeper(&self) {
        let _ = rustix::io::write(self.wake.as_fd(), &1_u64.to_ne_bytes()); // fails only when it is awake already
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.shutdown(DROP_GRACE);
    }
}

/// What node `index` of `total` on one host opens: ports are counted up from the given one, the ends of a DPDK device shared out,
/// which meet at `socket`.
fn link_of(
    link: &LinkSpec,
    index: u16,
    total: usize,
    socket: &str,
) -> Result<LinkSpec, LaunchError> {
    Ok(match link {
        LinkSpec::Udp(Some(addr)) if addr.port() != 0 => LinkSpec::Udp(Some(SocketAddr::new(
            addr.ip(),
            addr.port().saturating_add(index),
        ))),
        LinkSpec::Dpdk(spec) => LinkSpec::Dpdk(spec.for_process(index, total, socket)?),
        other => *other,
    })
}

fn order(spec: &LaunchSpec, node: u16, total: usize, rendezvous: &str, link: &LinkSpec) -> Order {
    let mut command = Command::new(&spec.command[0]);
    command.args(&spec.command[1..]);
    command.envs(spec.env.iter().map(|(key, value)| (key, value)));
    command.env(ENV_RENDEZVOUS, rendezvous);
    command.env(ENV_NODE, node.to_string());
    command.env(ENV_NODES, total.to_string());
    command.env(ENV_LINK, link.to_string());
    // A group of its own: everything it starts can be ended with it. Such a group may not read the terminal.
    command.process_group(0);
    let inherits = |printing| printing == Printing::Inherit;
    Order {
        node: NodeId(node),
        name: format!("{} {node}", spec.name_prefix),
        command,
        start: None,
        stdout: (!inherits(spec.stdout)).then(|| spec.print_stdout()),
        stderr: (!inherits(spec.stderr)).then(|| spec.print_stderr()),
    }
}

#[cfg(test)]
#[path = "launcher_tests.rs"]
mod tests;
