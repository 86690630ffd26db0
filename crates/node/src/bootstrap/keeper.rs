//! The thread that spawns the workers, serves their rendezvous, and reaps them.
//!
//! Started by `Launcher`, which shares state with it in `Shared` and wakes it by an event descriptor. It sleeps in `poll` and costs nothing while
//! nothing happens.
//!
//! Invariants: the thread outlives every child that it spawned (the kernel binds a child's death signal to the *thread* that forked it, so workers
//! also die with this one); a child's process group is killed before the child is reaped, while its id cannot be reused.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};

use super::child::{AGENT_READ_BYTES, Order, PIPE_REST_BYTES, Worker};
use super::frames::{FromAgent, Garbage, ToAgent};
use super::leftovers::Leftovers;
use super::notice::Notice;
use super::output::{Output, Target};
use super::remote::{Remote, status_of};
use super::rendezvous::{self, Address, FromLauncher, FromWorker, Received, TableEntry, VERSION};
use super::shared::Shared;
use crate::clock::{LONGEST, after};
use crate::door::{CALLS_PER_ROUND, Door};
use crate::error::presentable;
use crate::exit::{WorkerExit, WorkerFailure};
use crate::sleep;

/// Connections beyond one per worker: other processes of this user, workers that connect twice.
const SPARE_CONNECTIONS: usize = 16;

/// A worker that reported its failure has this long to end by itself, so that its exit code can be reported too.
const REPORT_TO_EXIT: Duration = Duration::from_millis(500);

/// Packets read from one connection in one round, so that a flood from one does not starve the others.
const PACKETS_PER_ROUND: usize = 16;

/// Before a failure is reported, the workers' output has this long to be written.
const FLUSH: Duration = Duration::from_millis(500);
/// When all have ended and the launcher wants to stop, a reader that does not read can delay it for this long.
const LAST_FLUSH: Duration = Duration::from_secs(2);
/// Interval at which the launcher's wish is checked meanwhile.
const FLUSH_POLL: Duration = Duration::from_millis(50);

/// State of the keeper thread.
pub(super) struct Keeper {
    door: Door,
    /// Passed to each worker with the table.
    memory: Option<OwnedFd>,
    /// The launcher's own entry (node 0), if it takes part.
    own: Option<TableEntry>,
    join_timeout: Duration,
    output: Output,
    leftovers: Option<Leftovers>,
    workers: Vec<Worker>,
    connections: Vec<Connection>,
    /// When the workers were started.
    spawned: Instant,
    /// When some process began to wait for the others.
    waiting_since: Option<Instant>,
    notice: Notice,
    /// Since when the workers are suspended.
    paused_since: Option<Instant>,
    table_sent: bool,
}

struct Connection {
    fd: OwnedFd,
    /// The worker that said hello here.
    worker: Option<usize>,
    /// It was read at least once.
    was_read: bool,
    open: bool,
}

impl Keeper {
    pub(super) fn new(
        listener: OwnedFd,
        memory: Option<OwnedFd>,
        own: Option<TableEntry>,
        join_timeout: Duration,
        output: Output,
        leftovers: Option<Leftovers>,
    ) -> Self {
        Self {
            door: Door::new(listener),
            memory,
            own,
            join_timeout: join_timeout.min(LONGEST),
            output,
            leftovers,
            workers: Vec::new(),
            connections: Vec::new(),
            spawned: Instant::now(),
            waiting_since: None,
            notice: Notice::default(),
            paused_since: None,
            table_sent: false,
        }
    }

    /// Body of the thread: spawns, then serves until every child has ended.
    pub(super) fn run(mut self, orders: Vec<Order>, wake: &OwnedFd, shared: &Shared) {
        let failure = self.spawn_all(orders);
        let failed = failure.is_some();
        shared.update(|state| {
            let workers = self.workers.iter();
            state.pids = workers.map(|worker| (worker.node, worker.pid)).collect();
            state.spawned = true;
            state.failure = failure;
        });
        let mut kill_at = failed.then(Instant::now);
        while self.running().next().is_some() {
            let (stop, signals, pause) = {
                let mut state = shared.lock();
                (state.stop, std::mem::take(&mut state.signals), state.pause)
            };
            self.pause(pause, shared);
            for signal in signals {
                self.running_mut().for_each(|worker| worker.pass_on(signal));
            }
            if let (Some(grace), None) = (stop, kill_at) {
                self.signal_all(Signal::TERM);
                kill_at = Some(after(grace));
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                self.signal_all(Signal::KILL);
                kill_at = Some(Instant::now() + Duration::from_secs(1)); // again, should a child have forked meanwhile
            }
            if kill_at.is_none() && self.paused_since.is_none() {
                self.check_deadlines(shared);
            }
            if let Err(error) = self.serve(wake, kill_at, shared) {
                tracing::warn!(%error, "the rendezvous cannot be served");
                self.signal_all(Signal::KILL);
                std::thread::sleep(Duration::from_millis(1));
            }
            self.reap(kill_at.is_some(), shared);
        }
        self.leftovers = None;
        shared.update(|state| state.ended = true);
        // A slow reader gets all output, unless the launcher wants to stop.
        let mut stop_at = None;
        while !self.output.flush(FLUSH_POLL) {
            if shared.lock().stop.is_some() {
                let stop_at = *stop_at.get_or_insert_with(|| Instant::now() + LAST_FLUSH);
                if Instant::now() >= stop_at {
                    break;
                }
            }
        }
        let stdout_error = self.output.stdout_error();
        shared.update(|state| {
            state.stdout_error = stdout_error;
            state.finished = true;
        });
    }

    fn spawn_all(&mut self, orders: Vec<Order>) -> Option<WorkerFailure> {
        self.spawned = Instant::now();
        for order in orders {
            match Worker::spawn(order) {
                Ok(worker) => self.workers.push(worker),
                Err(failure) => return Some(failure),
            }
        }
        None
    }

    /// Children that are not yet reaped.
    fn running(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(|worker| worker.pidfd.is_some())
    }

    fn running_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        let workers = self.workers.iter_mut();
        workers.filter(|worker| worker.pidfd.is_some())
    }

    /// Signals each child that is not yet reaped, and what it started.
    fn signal_all(&mut self, signal: Signal) {
        self.running_mut().for_each(|worker| worker.signal(signal));
    }

    /// Whether a process waits for the others: the launcher, or one that has said hello.
    fn someone_waits(&self, is_launcher_waiting: bool) -> bool {
        is_launcher_waiting || self.workers.iter().any(|worker| worker.entry.is_some())
    }

    /// Suspends the workers, or continues them; the time of a pause counts for no deadline.
    fn pause(&mut self, pause: bool, shared: &Shared) {
        if pause != self.paused_since.is_some() {
            self.running_mut().for_each(|worker| worker.pause(pause));
            match self.paused_since.take() {
                None => self.paused_since = Some(Instant::now()),
                Some(since) => {
                    let lost = since.elapsed();
                    self.spawned += lost;
                    self.waiting_since = self.waiting_since.map(|since| since + lost);
                    self.notice.postpone(lost);
                }
            }
        }
        // An agent's pipe may be full: `is_paused` is set once the pause was written to all agents.
        let is_told = !pause || self.agents().all(Remote::is_flushed);
        if is_told && shared.lock().is_paused != pause {
            shared.update(|state| state.is_paused = pause);
        }
    }

    /// Reports workers that do not join, and those that reported a failure but do not end. Those that may still join are told to the user.
    fn check_deadlines(&mut self, shared: &Shared) {
        let someone_waits = self.someone_waits(shared.lock().waiting);
        if self.table_sent || !someone_waits {
            self.waiting_since = None;
        } else if self.waiting_since.is_none() {
            self.waiting_since = Some(Instant::now());
        }
        let late = self
            .waiting_since
            .is_some_and(|since| since.elapsed() >= self.join_timeout);
        let unanswered = self.spawned.elapsed() >= self.join_timeout;
        let after = self.join_timeout;
        let failure = self.running().find_map(|worker| {
            let (name, pid) = (worker.name.clone(), worker.pid);
            match &worker.reported {
                None if unanswered && worker.is_unanswered() => Some(WorkerFailure::NoAnswer {
                    name,
                    pid,
                    program: worker.program.clone(),
                    after,
                }),
                Some((message, at)) if at.elapsed() >= REPORT_TO_EXIT => {
                    let message = message.clone();
                    Some(WorkerFailure::Reported { name, pid, message })
                }
                None if late && worker.entry.is_none() => {
                    Some(WorkerFailure::NotReported { name, pid, after })
                }
                _ => None,
            }
        });
        if failure.is_none() {
            self.tell_awaited();
        }
        self.fail(failure, shared);
    }

    fn tell_awaited(&mut self) {
        let since = self.waiting_since;
        let is_awaited = |worker: &&Worker| {
            let joins = worker.is_unanswered() || since.is_some() && worker.entry.is_none();
            joins && worker.pidfd.is_some() && worker.reported.is_none()
        };
        let awaited = self.workers.iter().filter(is_awaited);
        let begun = match since {
            Some(since) if !awaited.clone().any(Worker::is_unanswered) => since,
            _ => self.spawned,
        };
        let wait = (begun, self.join_timeout);
        let awaited = awaited.map(Worker::awaited);
        if let Some(line) = self.notice.line(Instant::now(), wait, awaited) {
            self.output.push(Target::Stderr, line.into_bytes());
        }
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
        let agents = self.agents().filter_map(Remote::until_next);
        let (door, door_opens) = self.door.watch();
        let timeout = self
            .next_deadline(kill_at)
            .map(|at| at.saturating_duration_since(Instant::now()))
            .into_iter()
            .chain(door_opens)
            .chain(agents)
            .min();
        let mut fds = vec![PollFd::new(wake, PollFlags::IN), door];
        let connections = self.connections.iter();
        fds.extend(connections.map(|connection| PollFd::new(&connection.fd, PollFlags::IN)));
        let workers = self.workers.iter();
        let pidfds = workers.filter_map(|worker| worker.pidfd.as_ref());
        fds.extend(pidfds.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        // If our own output is full, workers that print must wait; `output` wakes us when there is room.
        let has_room = self.output.has_room();
        // While ending, agents must be read to the end.
        let hear_agents = has_room || kill_at.is_some();
        for worker in &self.workers {
            if has_room {
                worker.poll_pipes(&mut fds);
            }
            if let Some(remote) = &worker.remote {
                remote.poll_fds(hear_agents, &mut fds);
            }
        }
        sleep::poll(&mut fds, timeout)?;
        let woken = !fds[0].revents().is_empty();
        drop(fds);
        if woken {
            let mut count = [0_u8; 8];
            let _ = rustix::io::read(wake, &mut count); // only resets it; the request is in `Shared`
        }
        self.accept_some();
        for index in 0..self.connections.len() {
            self.read_connection(index, shared);
        }
        self.connections.retain(|connection| connection.open);
        for index in 0..self.workers.len() {
            if shared.lock().pause != self.paused_since.is_some() {
                self.send_table(shared);
                return Ok(()); // at once, not after all have been read
            }
            if has_room {
                self.workers[index].read_pipes(&self.output);
            }
            if hear_agents {
                self.read_agent(index, AGENT_READ_BYTES, !has_room, shared);
            }
            if let Some(remote) = &mut self.workers[index].remote {
                remote.write();
                remote.beat();
                if !hear_agents {
                    remote.excuse();
                }
            }
        }
        if kill_at.is_none() && self.paused_since.is_none() {
            self.blame_silence(shared);
        }
        self.send_table(shared);
        Ok(())
    }

    /// Agents of workers that have not ended.
    fn agents(&self) -> impl Iterator<Item = &Remote> {
        self.running().filter_map(|worker| worker.remote.as_ref())
    }

    /// Reports a host that is silent for too long, after all input was read.
    fn blame_silence(&self, shared: &Shared) {
        let silent = self.running().find_map(|worker| {
            let after = worker.remote.as_ref()?.silence()?;
            Some(WorkerFailure::Silent {
                name: worker.name.clone(),
                pid: worker.pid,
                program: worker.program.clone(),
                after,
            })
        });
        self.fail(silent, shared);
    }

    fn read_agent(&mut self, index: usize, most: usize, drop_printed: bool, shared: &Shared) {
        for said in self.workers[index].read_agent(most, &self.output, drop_printed) {
            let message = match said {
                Ok(FromAgent::Forward { message }) => message,
                Ok(other) => {
                    self.hear(index, other, shared);
                    continue;
                }
                Err(Garbage) => {
                    let text = "its agent speaks another language; is this very tsumuji installed there (--program)?";
                    let worker = &mut self.workers[index];
                    worker
                        .reported
                        .get_or_insert((text.to_owned(), Instant::now()));
                    continue;
                }
            };
            let node = self.workers[index].node.0;
            match message {
                FromWorker::Hello {
                    version,
                    node: claimed,
                    addr,
                    ..
                } => {
                    let refusal = self.refusal(version, claimed, addr).or_else(|| {
                        (claimed != node)
                            .then(|| format!("this host runs node {node}, not {claimed}"))
                    });
                    match refusal {
                        None => self.admit(index, addr),
                        Some(reason) => {
                            self.answer(index, FromLauncher::Refused { reason });
                        }
                    }
                }
                FromWorker::Failed { error, .. } => self.note_report(node, &error),
            }
        }
    }

    /// Handles a message of an agent about itself.
    fn hear(&mut self, index: usize, message: FromAgent, shared: &Shared) {
        let worker = &mut self.workers[index];
        match message {
            FromAgent::Started { pid } => {
                worker.pid = pid;
                let node = worker.node;
                shared.update(|state| {
                    if let Some(known) = state.pids.iter_mut().find(|known| known.0 == node) {
                        known.1 = pid;
                    }
                });
            }
            FromAgent::CouldNotStart { program, reason } => {
                let failure = WorkerFailure::CouldNotStart {
                    name: worker.name.clone(),
                    program: presentable(&program),
                    reason: presentable(&reason),
                };
                self.fail(Some(failure), shared);
            }
            FromAgent::Left if !self.table_sent => worker.entry = None, // its address is no longer good
            FromAgent::Ended { code, signal } => worker.ended = Some(status_of(code, signal)),
            FromAgent::Left | FromAgent::Forward { .. } => {}
        }
    }

    /// Sends a message to a worker through its agent. `false`: the worker has no agent, or the agent is gone.
    fn answer(&mut self, index: usize, message: FromLauncher) -> bool {
        let remote = self.workers[index].remote.as_mut();
        remote.is_some_and(|remote| remote.tell(&ToAgent::Forward { message }).is_ok())
    }

    fn next_deadline(&self, kill_at: Option<Instant>) -> Option<Instant> {
        if kill_at.is_some() {
            return kill_at;
        }
        // A deadline that was reported must not make the loop spin.
        let late = self.waiting_since.map(|since| since + self.join_timeout);
        let reports = (self.running())
            .filter_map(|worker| worker.reported.as_ref().map(|(_, at)| *at + REPORT_TO_EXIT));
        let unanswered = self.running().any(Worker::is_unanswered);
        let unanswered = unanswered.then(|| self.spawned + self.join_timeout);
        let now = Instant::now();
        let late = late.into_iter().chain(unanswered);
        let told = self.notice.at();
        late.chain(reports).chain(told).filter(|at| *at > now).min()
    }

    /// Accepts connections. If there are too many, the oldest one that has not said hello is closed.
    fn accept_some(&mut self) {
        for fd in self.door.callers(CALLS_PER_ROUND) {
            if self.connections.len() >= self.workers.len() + SPARE_CONNECTIONS {
                let is_silent = |some: &Connection| some.worker.is_none() && some.was_read;
                match self.connections.iter().position(is_silent) {
                    Some(silent) => drop(self.connections.remove(silent)),
                    None => continue,
                }
            }
            self.connections.push(Connection {
                fd,
                worker: None,
                was_read: false,
                open: true,
            });
        }
    }

    fn read_connection(&mut self, index: usize, shared: &Shared) {
        self.connections[index].was_read = true;
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
                    self.note_report(node, &error);
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

    fn note_report(&mut self, node: u16, error: &str) {
        let error = presentable(error);
        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.node.0 == node) {
            worker.reported.get_or_insert((error, Instant::now()));
        }
    }

    /// Why a process that says hello as `node` cannot join, if so.
    fn refusal(&self, version: u32, node: u16, addr: Option<Address>) -> Option<String> {
        let worker = self.workers.iter().find(|worker| worker.node.0 == node);
        match worker {
            _ if version != VERSION => Some(format!(
                "this program was built with another tsumuji (rendezvous {version}, launcher {VERSION})"
            )),
            None => Some(format!("node {node} is not of this launch")),
            Some(_) if self.table_sent => Some(format!("node {node} has joined already")),
            Some(worker) if worker.entry.is_some() => {
                Some(format!("another process joined as node {node}"))
            }
            Some(_) if addr.is_none() != self.memory.is_some() => {
                Some("the launch uses another link".to_owned())
            }
            Some(_) => None,
        }
    }

    fn admit(&mut self, index: usize, addr: Option<Address>) {
        let worker = &mut self.workers[index];
        worker.entry = Some(TableEntry {
            name: worker.name.clone(),
            addr,
            host: worker.host,
        });
    }

    fn hello(&mut self, index: usize, version: u32, node: u16, addr: Option<Address>) {
        let position = self
            .workers
            .iter()
            .position(|worker| worker.node.0 == node && worker.remote.is_none());
        let refusal = self.refusal(version, node, addr).or_else(|| {
            let bound = self.connections[index].worker.is_some();
            bound.then(|| "one process joins as one node".to_owned())
        });
        match (refusal, position) {
            (None, Some(at)) => {
                self.connections[index].worker = Some(at);
                self.admit(at, addr);
            }
            (reason, _) => {
                let refused = FromLauncher::Refused {
                    reason: reason.unwrap_or_else(|| format!("node {node} is of another host")),
                };
                let connection = &mut self.connections[index];
                let _ = rendezvous::send(connection.fd.as_fd(), &refused, None); // it is refused in any case
                connection.open = false;
            }
        }
    }

    /// Once all have reported, sends the whole table to each.
    fn send_table(&mut self, shared: &Shared) {
        if self.table_sent || self.workers.iter().any(|worker| worker.entry.is_none()) {
            return;
        }
        let workers = self.workers.iter();
        let entries = workers.filter_map(|worker| worker.entry.clone());
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
        for index in 0..self.workers.len() {
            self.answer(index, table.clone()); // no effect for workers of this host
        }
        self.table_sent = true;
        shared.update(|state| state.table = Some(members));
    }

    /// Records and reaps children that have ended.
    fn reap(&mut self, stopping: bool, shared: &Shared) {
        for index in 0..self.workers.len() {
            let Some(pidfd) = &self.workers[index].pidfd else {
                continue;
            };
            let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
            if !sleep::poll(&mut fds, Some(Duration::ZERO)).unwrap_or(false) {
                continue;
            }
            // Its last report may have come after the connections were read.
            self.accept_some();
            for connection in 0..self.connections.len() {
                self.read_connection(connection, shared);
            }
            self.connections.retain(|connection| connection.open);
            self.read_agent(index, PIPE_REST_BYTES, false, shared);
            let worker = &mut self.workers[index];
            // Processes that it left running are killed with it; the process group still is its own, as it is not reaped yet.
            let _ =
                rustix::process::kill_process_group(Pid::from_child(&worker.child), Signal::KILL);
            let Ok(status) = worker.child.wait() else {
                continue;
            };
            worker.pidfd = None;
            worker.read_rest(&self.output);
            let exit = WorkerExit {
                node: worker.node,
                name: worker.name.clone(),
                pid: worker.pid,
                status: worker.ended.unwrap_or(status),
                reported: worker.reported.take().map(|(text, _)| text),
                last_lines: worker.last_lines(),
            };
            if !self.table_sent {
                worker.entry = None;
            }
            let others_wait = self.someone_waits(shared.lock().waiting);
            let early = !self.table_sent && others_wait;
            let failed = !stopping && (!exit.success() || early);
            if failed && shared.lock().failure.is_none() {
                self.output.flush(FLUSH); // its output comes before the report
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

    /// A worker that ended well without joining counts as failed as soon as another process waits for it.
    fn blame_early_exit(&self, shared: &Shared) {
        let mut state = shared.lock();
        if self.someone_waits(state.waiting)
            && state.failure.is_none()
            && let Some(exit) = state.exits.first().cloned()
        {
            state.failure = Some(WorkerFailure::Ended { exit, early: true });
            drop(state);
            shared.changed.notify_all();
        }
    }
}
