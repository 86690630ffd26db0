//! The parent's side: starts the processes of one host, or of several, and knows which of them failed.
//!
//! Used by programs that distribute their work (`solve`) and by `tsumuji launch`. The caller handles signals to the parent (Ctrl-C): workers run in
//! process groups of their own, so the terminal's interrupt reaches only the parent, which then calls [`Launcher::shutdown`]; before it is suspended
//! (Ctrl-Z) it calls [`pause_launches`](super::pause_launches).

use std::ffi::{OsStr, OsString};
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

use super::binding::{self, Binding};
use super::child::{Order, Print};
use super::frames::UserSignal;
use super::hosts::{self, Hosts};
use super::keeper::Keeper;
use super::leftovers::Leftovers;
use super::meeting::Meeting;
use super::output::{Output, Target};
use super::pauses;
use super::rendezvous::{self, Address, MAX_NODES, TableEntry};
use super::shared::Shared;
use super::{
    ENV_ADMIT, ENV_CONGESTION, ENV_KEY, ENV_LINK, ENV_NODE, ENV_NODES, ENV_OPEN, ENV_RENDEZVOUS,
    HostServer, joining, relay, worker,
};
use crate::any_link::Base;
use crate::endpoint::Endpoint;
use crate::error::OpenError;
use crate::exit::{WorkerExit, WorkerFailure};
use crate::link_spec::LinkSpec;
use crate::membership::shared_hosts;
use crate::options::Options;
use crate::security::Security;
use tsumuji_link::Link;
use tsumuji_link::impair::ImpairConfig;

/// Workers that do not react to TERM within this are killed when a launcher is dropped.
const DROP_GRACE: Duration = Duration::from_millis(500);

/// How often a wait of the parent's asks whether it is to stop.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Default of `LaunchSpec::silence`: longer than delays of a busy host or a relearning switch, shorter than people wait.
const SILENCE: Duration = Duration::from_secs(20);

/// Which processes to start, and how.
#[derive(Debug, Clone)]
pub struct LaunchSpec {
    /// Number of processes to spawn. Ignored if `hosts` is given.
    pub nodes: usize,
    /// Nodes on several hosts; `link` is then ignored.
    pub hosts: Option<Hosts>,
    /// The parent takes part as node 0 and the children are 1 to `nodes`; otherwise they are 0 to `nodes` − 1.
    pub with_self: bool,
    /// The link between them. `udp:ADDRESS:PORT`: node *i* takes `PORT` + *i*. `dpdk:net_memif`: the first of two is its server.
    pub link: LinkSpec,
    /// Program and arguments; the same for all.
    pub command: Vec<OsString>,
    /// A worker's name is this prefix and its node's number: `worker 2`.
    pub name_prefix: String,
    /// The parent's own name in the table, if it takes part.
    pub self_name: String,
    /// Environment of every child, beside the variables of the rendezvous.
    pub env: Vec<(OsString, OsString)>,
    /// Whether each child runs on a core of its own.
    pub binding: Binding,
    /// Congestion control of all nodes, including the parent. `None`: as `TSUMUJI_CONGESTION` says, or each node's own choice.
    pub congestion: Option<Congestion>,
    /// Node 0 admits processes that join later (`TSUMUJI_JOIN`, [`Launcher::join_address`]).
    pub admits: bool,
    /// Where the workers' standard output goes.
    pub stdout: Printing,
    /// Where their standard error goes.
    pub stderr: Printing,
    /// The workers' standard output goes to the parent's standard error (not with `Printing::Inherit`).
    pub stdout_to_stderr: bool,
    /// Time in which all workers must report once a process waits for them.
    pub join_timeout: Duration,
    /// Time after which a silent host counts as dead. Its agent applies the same limit to the launcher, and then ends what it started.
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
            binding: Binding::None,
            congestion: None,
            admits: false,
            stdout: Printing::Inherit,
            stderr: Printing::Tagged,
            stdout_to_stderr: false,
            join_timeout: Duration::from_secs(10),
            silence: SILENCE,
        }
    }

    /// Whether a variable that children would inherit says something else about security than `env`.
    pub(super) fn overrules(&self, inherited: &OsStr) -> bool {
        let is_stated = self
            .env
            .iter()
            .any(|(name, _)| name == ENV_KEY || name == ENV_OPEN);
        is_stated && Security::ENV.iter().any(|name| inherited == *name)
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

/// How the output of workers is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Printing {
    /// Workers write to the parent's output directly: lines of several workers may mix. Across hosts as `Lines`.
    Inherit,
    /// The parent passes it on in whole lines.
    Lines,
    /// As `Lines`, with the worker's name before each line.
    Tagged,
}

/// Why the launch failed. Processes already started have been ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Zero or too many.
    #[error("{nodes} processes asked for; accepted are 1 to {limit}")]
    Nodes {
        /// Number asked for.
        nodes: usize,
        /// The most there can be.
        limit: usize,
    },
    /// `LaunchSpec::command` is empty.
    #[error("no program was given to launch")]
    NoCommand,
    /// An argument for another host is not valid text.
    #[error("`{word}` is not readable as text and cannot be told to another host")]
    NotText {
        /// The argument, as far as it can be shown.
        word: String,
    },
    /// More environment and arguments than can be told to another host.
    #[error(
        "program, arguments and environment take {bytes} bytes; {limit} at most can be told to another host"
    )]
    TooLong {
        /// Their length.
        bytes: usize,
        /// The longest that is accepted.
        limit: usize,
    },
    /// The ports counted up from the given one do not exist.
    #[error("link `{link}` leaves no room for {nodes} ports (the highest is 65535)")]
    Ports {
        /// The link as given.
        link: Box<LinkSpec>,
        /// Number of ports needed.
        nodes: usize,
    },
    /// Only one process can use an interface, so several of one host cannot meet there.
    #[error(
        "link `{link}` joins hosts, one process each; say which by --hosts FILE, or take shm or udp on one host"
    )]
    OneHost {
        /// The link as given.
        link: Box<LinkSpec>,
    },
    /// The processes cannot meet by this DPDK device.
    #[error(transparent)]
    Dpdk(#[from] DpdkMeetError),
    /// A worker could not start.
    #[error(transparent)]
    Worker(#[from] WorkerFailure),
    /// The shared memory cannot be made.
    #[error("cannot make the shared memory: {0}")]
    Memory(#[from] ShmCreateError),
    /// The parent's own endpoint cannot be opened.
    #[error(transparent)]
    Open(Box<OpenError>),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

impl From<OpenError> for LaunchError {
    fn from(error: OpenError) -> Self {
        Self::Open(Box::new(error))
    }
}

/// State of the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Workers run and none has failed.
    Running,
    /// All have ended, each with exit code 0.
    Finished,
    /// The first worker that failed.
    Failed(WorkerFailure),
}

/// Worker processes; they end when it is dropped.
#[derive(Debug)]
pub struct Launcher {
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    keeper: Option<JoinHandle<()>>,
    /// Link of the parent's own endpoint, until that is opened.
    own: Option<Base>,
    congestion: Option<Congestion>,
    admits: bool,
    link: LinkSpec,
    /// Gives the shared memory to processes that join, and where they ask.
    offer: Option<(HostServer, String)>,
    /// Folder in which processes meet, if the link needs one. Dropped last, after its users.
    _meeting: Option<Meeting>,
}

impl Launcher {
    /// Makes the job and spawns the workers; returns as soon as all processes run.
    pub fn start(mut spec: LaunchSpec) -> Result<Self, LaunchError> {
        let congestion = match spec.congestion {
            Some(congestion) => Some(congestion),
            None => worker::parsed(ENV_CONGESTION)?,
        };
        // Stated explicitly, so that other hosts learn of it.
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
        let io = |what| move |source| LaunchError::Io { what, source };
        let name = rendezvous::random_name().map_err(io("random name"))?;
        let listener = rendezvous::listen(&name).map_err(io("rendezvous socket"))?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| io("eventfd")(error.into()))?);

        spec.link = spec.link.grouped(name.bytes());
        let memory = match (spec.link, &spec.hosts) {
            (LinkSpec::Udp(_) | LinkSpec::Multicast { .. } | LinkSpec::Dpdk(_), None)
            | (_, Some(_)) => None,
            (LinkSpec::Shm, None) => {
                let expected = if spec.admits {
                    joining::expected(total)
                } else {
                    total
                };
                Some(ShmJob::create(expected, ShmConfig::for_nodes(total))?)
            }
            (LinkSpec::Packet(_) | LinkSpec::Xdp(_) | LinkSpec::Relay(_), None) => {
                return Err(LaunchError::OneHost {
                    link: Box::new(spec.link),
                });
            }
        };
        let offer = match &memory {
            Some(memory) if spec.admits => {
                let memory = memory.try_clone().map_err(io("duplicate"))?;
                let started = total as u16; // `MAX_NODES` is far below
                Some(joining::offer(memory, started).map_err(io("offer the shared memory"))?)
            }
            _ => None,
        };
        if spec.admits {
            spec.env.push((ENV_ADMIT.into(), "1".into()));
        }
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
            (None, Some(hosts), true) => Some(relay::open(&hosts.nodes[0])?),
            (None, None, true) => Some(Base::open(&link_of(&spec.link, 0, total, socket)?)?),
        };
        let shared = spec.hosts.as_ref().map_or_else(Vec::new, |hosts| {
            shared_hosts(hosts.nodes.iter().map(|node| node.host.as_str()))
        });
        let own_entry = own.as_ref().map(|base| TableEntry {
            name: spec.self_name.clone(),
            addr: Address::of(base.local_addr()),
            host: shared.first().copied().flatten(),
        });

        // Agents choose those of other hosts.
        let cores = match (&spec.hosts, spec.binding) {
            (None, Binding::Core) => binding::cores(spec.nodes),
            _ => Ok(Vec::new()),
        };
        let core_of = |node: u16| {
            let cores = cores.as_ref().ok()?;
            cores.get(usize::from(node) - first).copied()
        };
        let numbers = (0..=u16::MAX).take(total).skip(first); // `MAX_NODES` is far below
        let orders: Result<_, LaunchError> = match &spec.hosts {
            Some(there) => numbers
                .map(|node| hosts::order(&spec, there, node, shared[usize::from(node)]))
                .collect(),
            None => numbers
                .map(|node| {
                    let link = link_of(&spec.link, node, total, socket)?;
                    Ok(order(&spec, node, total, &name, &link, core_of(node)))
                })
                .collect(),
        };
        let orders = orders?;
        let output = Output::start(Arc::clone(&wake)).map_err(io("start a thread"))?;
        if let Err(reason) = &cores {
            output.push(Target::Stderr, format!("{reason}\n").into_bytes());
        }
        // Those of other hosts are their agents' business. A host without a shell has the process groups only.
        let leftovers = match &spec.hosts {
            None => Leftovers::watch(&name).ok(),
            Some(_) => None,
        };
        let timeout = spec.join_timeout;
        let keeper = Keeper::new(listener, memory, own_entry, timeout, output, leftovers);
        let shared = Arc::new(Shared::default());
        pauses::register(&shared, &wake);
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
            admits: spec.admits,
            offer,
            link: spec.link,
            _meeting: meeting,
        };
        let failure = launcher
            .shared
            .wait(None, |state| state.spawned)
            .failure
            .clone();
        match failure {
            // Dropping `launcher` ends the running workers.
            Some(failure @ WorkerFailure::CouldNotStart { .. }) => Err(failure.into()),
            // `check` and `wait` report a worker that ended meanwhile.
            _ => Ok(launcher),
        }
    }

    /// Opens the parent's own endpoint (`LaunchSpec::with_self`), once all workers have reported. Works once only. Gives up with
    /// [`OpenError::Abandoned`] soon after `stop` says so.
    pub fn endpoint(
        &mut self,
        mut options: Options,
        impair: Option<ImpairConfig>,
        capture: Option<&Path>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Endpoint, OpenError> {
        let base = self.own.take().ok_or(OpenError::NotAMember)?;
        self.shared.lock().waiting = true;
        self.wake_keeper();
        let members = {
            let done = |state: &super::shared::State| {
                state.table.is_some() || state.failure.is_some() || state.finished
            };
            // Bounded by the keeper's join timeout.
            let mut state = loop {
                let state = self
                    .shared
                    .wait(Instant::now().checked_add(POLL_EVERY), done);
                if done(&state) {
                    break state;
                }
                if stop() {
                    return Err(OpenError::Abandoned);
                }
            };
            state.waiting = false;
            match (&state.table, &state.failure) {
                (Some(table), _) => table.clone(),
                (None, Some(failure)) => return Err(OpenError::Worker(failure.clone())),
                // All had ended well before this wait began.
                (None, None) => {
                    let first = state.exits.first().cloned();
                    return Err(first.map_or(OpenError::Abandoned, |exit| {
                        OpenError::Worker(WorkerFailure::Ended { exit, early: true })
                    }));
                }
            }
        };
        let (membership, near) = rendezvous::membership(NodeId(0), members);
        options.congestion = self.congestion.unwrap_or(options.congestion);
        options.admits |= self.admits;
        worker::finish((base, near), membership, options, impair, capture)
    }

    /// The link of the workers, with the group that was made for them if they need one.
    pub fn link(&self) -> LinkSpec {
        self.link
    }

    /// What a process that joins gives as `TSUMUJI_JOIN`, once all workers have reported; `None`: not yet, or nobody is admitted.
    pub fn join_address(&self) -> Option<String> {
        if let Some((_, address)) = &self.offer {
            return Some(address.clone());
        }
        let state = self.shared.lock();
        let first = state
            .table
            .as_ref()?
            .first()?
            .addr
            .filter(|_| self.admits)?;
        Some(match first {
            Address::Inet(addr) => format!("udp:{addr}"),
            Address::Ether(_) => first.link_addr().to_string(),
        })
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

    /// Waits until all workers have ended, well or not, or `timeout` has passed. Returns the exits so far.
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

    /// Error of writing the workers' output, once all have ended. `None` also if the reader of standard output has gone away, and when called again.
    pub fn stdout_error(&mut self) -> Option<std::io::Error> {
        self.shared.lock().stdout_error.take()
    }

    /// Node and process of every worker that was spawned.
    pub fn pids(&self) -> Vec<(NodeId, u32)> {
        self.shared.lock().pids.clone()
    }

    /// Passes on a signal to every running worker and what it started, also on other hosts.
    pub fn signal(&self, signal: UserSignal) {
        self.shared.lock().signals.insert(signal);
        self.wake_keeper();
    }

    /// Sends TERM to every running worker, and KILL after `grace`; returns when all are reaped. May be repeated.
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

/// Link of node `index` of `total` on one host: ports are counted up from the given one; the ends of a DPDK device, which meet at `socket`, are
/// assigned to the processes.
fn link_of(
    link: &LinkSpec,
    index: u16,
    total: usize,
    socket: &str,
) -> Result<LinkSpec, LaunchError> {
    match link {
        LinkSpec::Dpdk(spec) => Ok(LinkSpec::Dpdk(spec.for_process(index, total, socket)?)),
        link => link.counted(index).ok_or_else(|| LaunchError::Ports {
            link: Box::new(*link),
            nodes: total,
        }),
    }
}

fn order(
    spec: &LaunchSpec,
    node: u16,
    total: usize,
    rendezvous: &str,
    link: &LinkSpec,
    core: Option<usize>,
) -> Order {
    let mut command = Command::new(&spec.command[0]);
    command.args(&spec.command[1..]);
    for name in Security::ENV
        .iter()
        .filter(|name| spec.overrules(OsStr::new(name)))
    {
        command.env_remove(name);
    }
    command.envs(spec.env.iter().map(|(key, value)| (key, value)));
    command.env(ENV_RENDEZVOUS, rendezvous);
    command.env(ENV_NODE, node.to_string());
    command.env(ENV_NODES, total.to_string());
    command.env(ENV_LINK, link.to_string());
    // A process group of its own, so that everything it starts can be ended with it. Such a group may not read the terminal.
    command.process_group(0);
    let inherits = |printing| printing == Printing::Inherit;
    Order {
        node: NodeId(node),
        name: format!("{} {node}", spec.name_prefix),
        host: None,
        command,
        core,
        start: None,
        stdout: (!inherits(spec.stdout)).then(|| spec.print_stdout()),
        stderr: (!inherits(spec.stderr)).then(|| spec.print_stderr()),
    }
}

#[cfg(test)]
#[path = "launcher_tests.rs"]
mod tests;
