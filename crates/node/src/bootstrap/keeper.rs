//! The thread that spawns the workers, serves their rendezvous, and buries them.
//!
//! Started by `Launcher`, which talks to it through `Shared` and wakes it by an event descriptor. It sleeps in `poll` on its
//! descriptors and costs nothing while nothing happens.
//!
//! Invariants: the thread outlives every child that it spawned (the kernel binds a child's death signal to the *thread*
//! that forked it, so workers also die with this one); a child's process group is killed before the child is reaped, while
//! its number cannot belong to anybody else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use tsumuji_proto::NodeId;

use super::exit::{WorkerExit, WorkerFailure};
use super::lines::Lines;
use super::output::{Output, Target};
use super::rendezvous::{self, Address, FromLauncher, FromWorker, Received, TableEntry, VERSION};

/// Connections beyond one per worker: strays of our own user, workers that ask twice.
const SPARE_CONNECTIONS: usize = 16;

/// A worker that said why it fails is given this long to end by itself, so that its exit code can be told too.
const REPORT_TO_EXIT: Duration = Duration::from_millis(500);

/// Packets read from one connection in one round, so that a flood from one does not starve the others.
const PACKETS_PER_ROUND: usize = 16;

/// Bytes read from one pipe at once, and bytes taken from it in one round.
const PIPE_READ_BYTES: usize = 64 << 10;
/// Bytes taken from the pipe of a process that has ended: four times what a pipe holds, should a child that it left print on.
const PIPE_REST_BYTES: usize = 256 << 10;
/// Before a failure is told, what the workers printed is given this long to be written.
const FLUSH: Duration = Duration::from_millis(500);
/// When all have ended and the launcher wants it over, this is how long a reader that takes nothing can hold it up.
const LAST_FLUSH: Duration = Duration::from_secs(2);
/// How often the launcher's wish is looked for meanwhile.
const FLUSH_LOOK: Duration = Duration::from_millis(50);

/// What the launcher and its keeper both see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// All children run (or spawning failed, see `failure`).
    pub(super) spawned: bool,
    /// Per worker, its process.
    pub(super) pids: Vec<(NodeId, u32)>,
    /// The whole table, once every worker has reported.
    pub(super) table: Option<Vec<TableEntry>>,
    /// The first worker that failed.
    pub(super) failure: Option<WorkerFailure>,
    /// Workers whose processes have ended, in that order.
    pub(super) exits: Vec<WorkerExit>,
    /// The thread has nothing left to do: every child is reaped.
    pub(super) finished: bool,
    /// The launcher wants it over: TERM now, KILL after this grace.
    pub(super) stop: Option<Duration>,
    /// The launcher itself waits for the table.
    pub(super) waiting: bool,
}

impl Shared {
    /// The state stays sound even if a thread panicked while holding it: each field is written in one step.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` or the deadline (`None`: for ever).
    pub(super) fn wait(
        &self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while !done(&state) {
            let Some(deadline) = deadline else {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }
}

/// One worker to be spawned.
pub(super) struct Order {
    pub(super) node: NodeId,
    pub(super) name: String,
    pub(super) command: Command,
    /// Where what it prints to its standard output and standard error goes; `None`: that is not piped.
    pub(super) stdout: Option<Print>,
    pub(super) stderr: Option<Print>,
}

/// Where lines go.
#[derive(Debug, Clone, Copy)]
pub(super) struct Print {
    pub(super) target: Target,
    /// The worker's name stands before each.
    pub(super) tagged: bool,
}

/// All that the thread owns.
pub(super) struct Keeper {
    listener: OwnedFd,
    /// Passed to each worker with the table.
    memory: Option<OwnedFd>,
    /// The launcher's own entry where it takes part: node 0.
    own: Option<TableEntry>,
    join_timeout: Duration,
    output: Output,
    workers: Vec<Worker>,
    connections: Vec<Connection>,
    /// When some process began to wait for the others.
    waiting_since: Option<Instant>,
    table_sent: bool,
}

struct Worker {
    node: NodeId,
    name: String,
    child: Child,
    /// Readable when the process has ended; `None` once it is reaped.
    pidfd: Option<OwnedFd>,
    /// Its entry, once it has said hello.
    entry: Option<TableEntry>,
    reported: Option<(String, Instant)>,
    stdout: Option<Pipe>,
    stderr: Option<Pipe>,
}

/// What a worker prints.
struct Pipe {
    /// `None`: the worker has closed it, or nobody reads what comes.
    fd: Option<OwnedFd>,
    lines: Lines,
    target: Target,
}

impl Pipe {
    fn new(fd: impl Into<OwnedFd>, print: Print, name: &str) -> io::Result<Self> {
        let fd = fd.into();
        rustix::io::ioctl_fionbio(&fd, true)?; // our end alone: the two ends of a pipe do not share their flags
        Ok(Self {
            fd: Some(fd),
            lines: Lines::new(print.tagged.then_some(name)),
            target: print.target,
        })
    }

    /// Passes on what is there, at most about `most` bytes.
    fn read(&mut self, most: usize, output: &Output) {
        let mut bytes = [0; PIPE_READ_BYTES];
        let mut block = Vec::new();
        let mut taken = 0;
        while let (Some(fd), true) = (&self.fd, taken < most) {
            match rustix::io::read(fd, &mut bytes) {
                Ok(0) => self.close(&mut block),
                Ok(count) => {
                    self.lines.feed(&bytes[..count], &mut block);
                    taken += count;
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => self.close(&mut block),
            }
        }
        output.push(self.target, block);
    }

    fn close(&mut self, block: &mut Vec<u8>) {
        self.fd = None;
        self.lines.finish(block);
    }

    /// Its process has ended: passes on what is left.
    fn read_rest(&mut self, output: &Output) {
        self.read(PIPE_REST_BYTES, output);
        let mut block = Vec::new();
        self.close(&mut block);
        output.push(self.target, block);
    }
}

struct Connection {
    fd: OwnedFd,
    /// The worker that said hello here.
    worker: Option<usize>,
    open: bool,
}

impl Worker {
    fn pipes(&self) -> impl Iterator<Item = &Pipe> {
        self.stdout.iter().chain(&self.stderr)
    }

    fn pipes_mut(&mut self) -> impl Iterator<Item = &mut Pipe> {
        self.stdout.iter_mut().chain(&mut self.stderr)
    }

    /// The last that it printed to standard error.
    fn last_lines(&self) -> Vec<String> {
        let lines = self.stderr.as_ref().map(|pipe| pipe.lines.last_lines());
        lines.unwrap_or_default()
    }
}

/// What is held of a running child: its descriptor and its pipes.
type Watched = (OwnedFd, Option<Pipe>, Option<Pipe>);

fn watch(
    child: &mut Child,
    name: &str,
    stdout: Option<Print>,
    stderr: Option<Print>,
) -> io::Result<Watched> {
    let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let out = child.stdout.take().zip(stdout);
    let err = child.stderr.take().zip(stderr);
    Ok((
        pidfd,
        out.map(|(fd, print)| Pipe::new(fd, print, name))
            .transpose()?,
        err.map(|(fd, print)| Pipe::new(fd, print, name))
            .transpose()?,
    ))
}

impl Keeper {
    pub(super) fn new(
        listener: OwnedFd,
        memory: Option<OwnedFd>,
        own: Option<TableEntry>,
        join_timeout: Duration,
        output: Output,
    ) -> Self {
        Self {
            listener,
            memory,
            own,
            join_timeout,
            output,
            workers: Vec::new(),
            connections: Vec::new(),
            waiting_since: None,
            table_sent: false,
        }
    }

    /// The thread: spawn, then serve until every child has ended.
    pub(super) fn run(mut self, orders: Vec<Order>, wake: &OwnedFd, shared: &Shared) {
        let failure = self.spawn_all(orders);
        let failed = failure.is_some();
        shared.update(|state| {
            state.pids = self
                .workers
                .iter()
                .map(|worker| (worker.node, worker.child.id()))
                .collect();
            state.spawned = true;
            state.failure = failure;
        });
        let mut kill_at = failed.then(Instant::now);
        while self.workers.iter().any(|worker| worker.pidfd.is_some()) {
            let stop = shared.lock().stop;
            if let (Some(grace), None) = (stop, kill_at) {
                self.signal_all(Signal::TERM);
                kill_at = Some(Instant::now() + grace);
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                self.signal_all(Signal::KILL);
                kill_at = Some(Instant::now() + Duration::from_secs(1)); // again, should a child have forked meanwhile
            }
            if kill_at.is_none() {
                self.check_deadlines(shared);
            }
            if let Err(error) = self.serve(wake, kill_at, shared) {
                tracing::warn!(%error, "the rendezvous cannot be served");
                self.signal_all(Signal::KILL);
                std::thread::sleep(Duration::from_millis(1));
            }
            self.bury(kill_at.is_some(), shared);
        }
        // A slow reader gets everything, unless the launcher wants it over.
        let mut stop_at = None;
        while !self.output.flush(FLUSH_LOOK) {
            if shared.lock().stop.is_some() {
                let stop_at = *stop_at.get_or_insert_with(|| Instant::now() + LAST_FLUSH);
                if Instant::now() >= stop_at {
                    break;
                }
            }
        }
        shared.update(|state| state.finished = true);
    }

    fn spawn_all(&mut self, orders: Vec<Order>) -> Option<WorkerFailure> {
        for Order {
            node,
            name,
            mut command,
            stdout,
            stderr,
        } in orders
        {
            crate::sys::die_with_parent(&mut command);
            if stdout.is_some() {
                command.stdout(Stdio::piped());
            }
            if stderr.is_some() {
                command.stderr(Stdio::piped());
            }
            let started = command.spawn().and_then(|mut child| {
                match watch(&mut child, &name, stdout, stderr) {
                    Ok(watched) => Ok((child, watched)),
                    Err(error) => {
                        child.kill().and_then(|()| child.wait())?;
                        Err(error)
                    }
                }
            });
            match started {
                Ok((child, (pidfd, stdout, stderr))) => {
                    self.workers.push(Worker {
                        node,
                        name,
                        child,
                        pidfd: Some(pidfd),
                        entry: None,
                        reported: None,
                        stdout,
                        stderr,
                    });
                }
                Err(error) => {
                    let program = command.get_program().to_string_lossy().into_owned();
                    return Some(WorkerFailure::CouldNotStart {
                        node,
                        name,
                        program,
                        reason: error.to_string(),
                    });
                }
            }
        }
        None
    }

    /// Signals the process group of each child that is not yet reaped.
    fn signal_all(&self, signal: Signal) {
        for worker in self.workers.iter().filter(|worker| worker.pidfd.is_some()) {
            // The group may be empty only if the child was reaped, which the filter excludes; other errors cannot be mended.
            let _ = rustix::process::kill_process_group(Pid::from_child(&worker.child), signal);
        }
    }

    /// Names workers that do not join, and those that said they fail but do not end.
    fn check_deadlines(&mut self, shared: &Shared) {
        let someone_waits =
            shared.lock().waiting || self.workers.iter().any(|worker| worker.entry.is_some());
        if self.table_sent || !someone_waits {
            self.waiting_since = None;
        } else if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
        }
        let late = self
            .waiting_since
            .is_some_and(|since| since.elapsed() >= self.join_timeout);
        let failure = self
            .workers
            .iter()
            .filter(|worker| worker.pidfd.is_some())
            .find_map(|worker| {
                let (node, name, pid) = (worker.node, worker.name.clone(), worker.child.id());
                match &worker.reported {
                    Some((message, at)) if at.elapsed() >= REPORT_TO_EXIT => {
                        Some(WorkerFailure::Reported {
                            node,
                            name,
                            pid,
                            message: message.clone(),
                        })
                    }
                    None if late && worker.entry.is_none() => Some(WorkerFailure::NotReported {
                        node,
                        name,
                        pid,
                        after: self.join_timeout,
                    }),
                    _ => None,
                }
            });
        self.fail(failure, shared);
    }

    fn fail(&self, failure: Option<WorkerFailure>, shared: &Shared) {
        if let Some(failure) = failure {
            shared.update(|state| {
                state.failure.get_or_insert(failure);
            });
        }
    }

    /// Sleeps until something happens, then reads it.
    fn serve(
        &mut self,
        wake: &OwnedFd,
        kill_at: Option<Instant>,
        shared: &Shared,
    ) -> io::Result<()> {
        let timeout = self
            .next_deadline(kill_at)
            .map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = vec![
            PollFd::new(wake, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        fds.extend(
            self.connections
                .iter()
                .map(|connection| PollFd::new(&connection.fd, PollFlags::IN)),
        );
        let pidfds = self
            .workers
            .iter()
            .filter_map(|worker| worker.pidfd.as_ref());
        fds.extend(pidfds.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        // Workers that print more than our own output takes wait for it; `output` wakes us when there is room.
        let has_room = self.output.has_room();
        if has_room {
            let pipes = self.workers.iter().flat_map(Worker::pipes);
            let pipes = pipes.filter_map(|pipe| pipe.fd.as_ref());
            fds.extend(pipes.map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let woken = !fds[0].revents().is_empty();
        drop(fds);
        if woken {
            let mut count = [0_u8; 8];
            let _ = rustix::io::read(wake, &mut count); // only empties it; what it means is in `Shared`
        }
        self.accept_all()?;
        for index in 0..self.connections.len() {
            self.read_connection(index, shared);
        }
        self.connections.retain(|connection| connection.open);
        self.send_table(shared);
        if has_room {
            self.read_pipes();
        }
        Ok(())
    }

    fn read_pipes(&mut self) {
        let stdout_gone = self.output.is_stdout_gone();
        for pipe in self.workers.iter_mut().flat_map(Worker::pipes_mut) {
            if stdout_gone && pipe.target == Target::Stdout {
                pipe.fd = None;
            } else {
                pipe.read(PIPE_READ_BYTES, &self.output);
            }
        }
    }

    fn next_deadline(&self, kill_at: Option<Instant>) -> Option<Instant> {
        if kill_at.is_some() {
            return kill_at;
        }
        // A deadline that has been reported must not turn the sleep into a spin.
        let late = self.waiting_since.map(|since| since + self.join_timeout);
        let reports = self.workers.iter().filter(|worker| worker.pidfd.is_some());
        let reports = reports
            .filter_map(|worker| worker.reported.as_ref().map(|(_, at)| *at + REPORT_TO_EXIT));
        let now = Instant::now();
        late.into_iter().chain(reports).filter(|at| *at > now).min()
    }

    fn accept_all(&mut self) -> io::Result<()> {
        while let Some(fd) = rendezvous::accept(self.listener.as_fd())? {
            if self.connections.len() < self.workers.len() + SPARE_CONNECTIONS {
                self.connections.push(Connection {
                    fd,
                    worker: None,
                    open: true,
                });
            }
        }
        Ok(())
    }

    fn read_connection(&mut self, index: usize, shared: &Shared) {
        for _ in 0..PACKETS_PER_ROUND {
            match rendezvous::receive::<FromWorker>(self.connections[index].fd.as_fd()) {
                Ok(Received::Message(
                    FromWorker::Hello {
                        version,
                        node,
                        addr,
                        ..
                    },
                    _,
                )) => {
                    self.hello(index, version, node, addr);
                }
                Ok(Received::Message(FromWorker::Failed { node, error }, _)) => {
                    let error = rendezvous::presentable(&error);
                    if let Some(worker) =
                        self.workers.iter_mut().find(|worker| worker.node.0 == node)
                    {
                        worker.reported.get_or_insert((error, Instant::now()));
                    }
                }
                Ok(Received::Nothing) => return,
                Ok(Received::Garbage | Received::Closed) | Err(_) => {
                    self.connections[index].open = false;
                    if let (Some(worker), false) = (self.connections[index].worker, self.table_sent)
                    {
                        self.workers[worker].entry = None; // its address is no longer good
                    }
                    shared.changed.notify_all();
                    return;
                }
            }
        }
    }

    fn hello(&mut self, index: usize, version: u32, node: u16, addr: Option<Address>) {
        let position = self.workers.iter().position(|worker| worker.node.0 == node);
        let refusal = match position {
            _ if version != VERSION => Some(format!(
                "this program was built with another tsumuji (rendezvous {version}, launcher {VERSION})"
            )),
            None => Some(format!("node {node} is not of this launch")),
            Some(_) if self.table_sent => Some(format!("node {node} has joined already")),
            Some(at) if self.workers[at].entry.is_some() => {
                Some(format!("another process joined as node {node}"))
            }
            Some(_) if addr.is_none() != self.memory.is_some() => {
                Some("the launch uses another link".to_owned())
            }
            Some(_) if self.connections[index].worker.is_some() => {
                Some("one process joins as one node".to_owned())
            }
            Some(_) => None,
        };
        let connection = &mut self.connections[index];
        match (refusal, position) {
            (None, Some(at)) => {
                connection.worker = Some(at);
                self.workers[at].entry = Some(TableEntry {
                    name: self.workers[at].name.clone(),
                    addr,
                });
            }
            (reason, _) => {
                let refused = FromLauncher::Refused {
                    reason: reason.unwrap_or_default(),
                };
                let _ = rendezvous::send(connection.fd.as_fd(), &refused, None); // it is turned away in any case
                connection.open = false;
            }
        }
    }

    /// Once all have reported, tells each the whole table.
    fn send_table(&mut self, shared: &Shared) {
        if self.table_sent || self.workers.iter().any(|worker| worker.entry.is_none()) {
            return;
        }
        let entries = self
            .workers
            .iter()
            .filter_map(|worker| worker.entry.clone());
        let members: Vec<TableEntry> = self.own.clone().into_iter().chain(entries).collect();
        let table = FromLauncher::Table {
            members: members.clone(),
        };
        for connection in self
            .connections
            .iter_mut()
            .filter(|connection| connection.worker.is_some())
        {
            let memory = self.memory.as_ref().map(AsFd::as_fd);
            if rendezvous::send(connection.fd.as_fd(), &table, memory).is_err() {
                connection.open = false; // that worker is dying; its end will be reported
            }
        }
        self.table_sent = true;
        shared.update(|state| state.table = Some(members));
    }

    /// Records and reaps children that have ended.
    fn bury(&mut self, stopping: bool, shared: &Shared) {
        for index in 0..self.workers.len() {
            let Some(pidfd) = &self.workers[index].pidfd else {
                continue;
            };
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            let ended = rustix::event::poll(&mut fds, Some(&Timespec::default()))
                .is_ok_and(|ready| ready > 0);
            if !ended {
                continue;
            }
            // Its last words may have come after the connections were read.
            if self.accept_all().is_ok() {
                for connection in 0..self.connections.len() {
                    self.read_connection(connection, shared);
                }
                self.connections.retain(|connection| connection.open);
            }
            let worker = &mut self.workers[index];
            // What it left running goes with it; the number is still its own, because it is not yet reaped.
            let _ =
                rustix::process::kill_process_group(Pid::from_child(&worker.child), Signal::KILL);
            let Ok(status) = worker.child.wait() else {
                continue;
            };
            worker.pidfd = None;
            for pipe in worker.pipes_mut() {
                pipe.read_rest(&self.output);
            }
            let exit = WorkerExit {
                node: worker.node,
                name: worker.name.clone(),
                pid: worker.child.id(),
                status,
                reported: worker.reported.take().map(|(text, _)| text),
                last_lines: worker.last_lines(),
            };
            worker.entry = if self.table_sent {
                worker.entry.take()
            } else {
                None
            };
            let others_wait =
                shared.lock().waiting || self.workers.iter().any(|worker| worker.entry.is_some());
            let early = !self.table_sent && others_wait;
            let failed = !stopping && (!exit.success() || early);
            if failed && shared.lock().failure.is_none() {
                self.output.flush(FLUSH); // what it printed comes before what is said of it
            }
            shared.update(|state| {
                state.exits.push(exit.clone());
                if failed {
                    state
                        .failure
                        .get_or_insert(WorkerFailure::Ended { exit, early });
                }
            });
        }
        if !self.table_sent && !stopping {
            self.blame_early_exit(shared);
        }
    }

    /// A worker that ended well, but without joining, is to blame as soon as somebody waits for it.
    fn blame_early_exit(&self, shared: &Shared) {
        let mut state = shared.lock();
        let others_wait = state.waiting || self.workers.iter().any(|worker| worker.entry.is_some());
        if others_wait
            && state.failure.is_none()
            && let Some(exit) = state.exits.first().cloned()
        {
            state.failure = Some(WorkerFailure::Ended { exit, early: true });
            drop(state);
            shared.changed.notify_all();
        }
    }
}
