//! The agent: runs one program for a launcher on another host, and relays its rendezvous over standard input and output.
//!
//! Started by `remote` with the command that reaches the host (`ip netns exec`, `ssh`); the hidden command `tsumuji agent` only calls
//! [`serve_agent`]. The agent acts as the program's launcher (`rendezvous`), so the program need not know that it runs elsewhere. Its output is
//! relayed, too.
//!
//! Invariant: when standard input ends, for whatever cause, the program and its process group are killed at once and the agent ends, so nothing is
//! left running on a host whose launcher is gone. The same happens when the launcher is silent for the agreed time, as a connection may die
//! unnoticed; a launcher that is about to be suspended says so, and is waited for. Writing blocks on purpose: a launcher that does not read stops the
//! program's output; the agent goes on reading meanwhile.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::binding::CoreSlot;
use super::frames::{self, Frames, FromAgent, Item, Kind, Pulse, READ_BYTES, ToAgent, drain};
use super::leftovers::Leftovers;
use super::rendezvous::{self, FromLauncher, FromWorker, Received};
use super::{ENV_NODE, ENV_RENDEZVOUS, relay};
use crate::door::{CALLS_PER_ROUND, Door};
use crate::sleep;

/// Bytes read from the pipe of a program that has ended, as a child that it left may go on printing.
const REST_BYTES: usize = 256 << 10;
/// Bytes written at once: a pipe with room takes that many without blocking (PIPE_BUF).
const WRITE_BYTES: usize = 4096;
/// Messages that may wait while something is written; a launcher sends fewer.
const PENDING_MAX: usize = 64;
/// Connections at one time: the program's own, and those of other processes of this user.
const CONNECTIONS_MAX: usize = 16;
/// Packets read from one connection in one round.
const PACKETS_PER_ROUND: usize = 16;

/// Why the agent ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// Standard input is not from a launcher.
    #[error("standard input is not that of a tsumuji launcher; this command is not for people")]
    Garbage,
    /// The launcher, or the connection to it, is dead without having closed it.
    #[error("the launcher said nothing for {} s; what it had started here was ended", after.as_secs_f64())]
    Silent {
        /// The agreed time of silence.
        after: Duration,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> AgentError {
    move |source| AgentError::Io { what, source }
}

/// Why the agent stops serving.
enum Over {
    /// The program has ended.
    Ended,
    /// The launcher is gone.
    Abandoned,
}

/// Serves one launcher over standard input and output until the program has ended, or the launcher is gone.
pub fn serve_agent() -> Result<(), AgentError> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let mut line = Line {
        input: stdin.as_fd(),
        output: stdout.as_fd(),
        frames: Frames::new(false),
        pulse: Pulse::new(Duration::MAX),
        pending: VecDeque::new(),
        group: None,
        gone: false,
    };
    line.write(frames::GREETING)?;
    let Some(start) = line.wait_for_start()? else {
        return Ok(()); // a launcher that is gone already
    };
    Agent::start(start, &mut line)?.map_or(Ok(()), |agent| agent.run(&mut line))
}

/// Standard input and output.
struct Line<'a> {
    input: BorrowedFd<'a>,
    output: BorrowedFd<'a>,
    frames: Frames,
    pulse: Pulse,
    /// Messages read while something was written.
    pending: VecDeque<ToAgent>,
    /// The program's process group, while it runs.
    group: Option<Pid>,
    /// The input has ended.
    gone: bool,
}

impl Line<'_> {
    /// Writes all bytes; waits for the launcher to read them. Stops if the launcher is gone.
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), AgentError> {
        while !bytes.is_empty() && !self.gone {
            if !self.wait_to_write()? {
                continue;
            }
            match rustix::io::write(self.output, &bytes[..bytes.len().min(WRITE_BYTES)]) {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                Err(error) => return Err(failed("write to the launcher")(error.into())),
            }
        }
        self.pulse.said();
        Ok(())
    }

    /// Sleeps until there is room or input, and reads the input. Returns whether there is room.
    fn wait_to_write(&mut self) -> Result<bool, AgentError> {
        let [output, input] =
            self.poll(self.output, PollFlags::OUT, Some(self.pulse.until_silent()))?;
        if input {
            self.listen()?;
        }
        self.check()?;
        Ok(output)
    }

    /// Sleeps on `fd` and on the input.
    fn poll(
        &self,
        fd: BorrowedFd<'_>,
        events: PollFlags,
        most: Option<Duration>,
    ) -> Result<[bool; 2], AgentError> {
        let mut fds = [
            PollFd::from_borrowed_fd(fd, events),
            PollFd::from_borrowed_fd(self.input, PollFlags::IN),
        ];
        sleep::poll(&mut fds, most).map_err(failed("poll"))?;
        Ok([0, 1].map(|index: usize| !fds[index].revents().is_empty()))
    }

    /// Fails if the launcher was silent for the agreed time; input that waits (if this process was stopped) counts.
    fn check(&self) -> Result<(), AgentError> {
        if !self.pulse.is_silent() || self.gone {
            return Ok(());
        }
        let [_, input] = self.poll(self.input, PollFlags::IN, Some(Duration::ZERO))?;
        if input {
            return Ok(());
        }
        let after = self.pulse.silence();
        Err(AgentError::Silent { after })
    }

    /// Sends a sign of life, if it is time.
    fn beat(&mut self) -> Result<(), AgentError> {
        if !self.pulse.needs_beat() {
            return Ok(());
        }
        let mut frame = Vec::new();
        frames::put(&mut frame, Kind::Alive, b"");
        self.write(&frame)
    }

    /// Reads the available input and keeps its messages for `message`.
    fn listen(&mut self) -> Result<(), AgentError> {
        if !self.read()? {
            self.gone = true;
            return Ok(());
        }
        while let Some(message) = self.next_message()? {
            // Users may signal at any rate; as in the kernel, one of a kind waits.
            if matches!(message, ToAgent::Signal { .. }) && self.pending.contains(&message) {
                continue;
            }
            if self.pending.len() == PENDING_MAX {
                return Err(AgentError::Garbage);
            }
            self.pending.push_back(message);
        }
        Ok(())
    }

    fn tell(&mut self, message: &FromAgent) -> Result<(), AgentError> {
        let mut frame = Vec::new();
        frames::put_message(&mut frame, message).map_err(failed("write to the launcher"))?;
        self.write(&frame)
    }

    /// Reads available input, waiting for at least one byte. `false`: the launcher is gone.
    fn read(&mut self) -> Result<bool, AgentError> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match rustix::io::read(self.input, &mut bytes) {
                Ok(0) => return Ok(false),
                Ok(count) => {
                    self.pulse.heard();
                    self.frames.feed(&bytes[..count]);
                    return Ok(true);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed("read from the launcher")(error.into())),
            }
        }
    }

    /// The next whole message.
    fn message(&mut self) -> Result<Option<ToAgent>, AgentError> {
        match self.pending.pop_front() {
            Some(message) => Ok(Some(message)),
            None => self.next_message(),
        }
    }

    fn next_message(&mut self) -> Result<Option<ToAgent>, AgentError> {
        loop {
            return match self.frames.next() {
                Ok(None) => Ok(None),
                Ok(Some(Item::Alive)) => continue,
                Ok(Some(Item::Message(message))) => {
                    // At once: what is being written may block until the launcher goes on.
                    let signal = match message {
                        ToAgent::Pause => Signal::STOP,
                        ToAgent::Continue => Signal::CONT,
                        _ => return Ok(Some(message)),
                    };
                    self.pulse.hold(signal == Signal::STOP);
                    // This order replaces earlier ones that still wait.
                    let is_other =
                        |other: &ToAgent| !matches!(other, ToAgent::Pause | ToAgent::Continue);
                    self.pending.retain(is_other);
                    let Some(group) = self.group else {
                        return Ok(Some(message)); // it is obeyed once the program runs
                    };
                    let _ = rustix::process::kill_process_group(group, signal); // it may be empty, which is fine
                    continue;
                }
                _ => Err(AgentError::Garbage),
            };
        }
    }

    fn wait_for_start(&mut self) -> Result<Option<ToAgent>, AgentError> {
        loop {
            if let Some(message) = self.message()? {
                return Ok(Some(message));
            }
            if !self.read()? {
                return Ok(None);
            }
        }
    }
}

/// Standard output or standard error of the program.
struct Pipe {
    fd: Option<OwnedFd>,
    kind: Kind,
}

impl Pipe {
    fn new(fd: Option<impl Into<OwnedFd>>, kind: Kind) -> io::Result<Self> {
        let fd = fd.map(Into::into);
        if let Some(fd) = &fd {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        Ok(Self { fd, kind })
    }

    /// Relays available output, at most about `most` bytes.
    fn carry(&mut self, most: usize, line: &mut Line<'_>) -> Result<(), AgentError> {
        drain(&mut self.fd, most, |bytes| {
            let mut frame = Vec::with_capacity(bytes.len() + 8);
            frames::put(&mut frame, self.kind, bytes);
            line.write(&frame)
        })
    }
}

struct Agent {
    node: u16,
    child: Child,
    pidfd: OwnedFd,
    pipes: [Pipe; 2],
    door: Door,
    connections: Vec<OwnedFd>,
    /// The connection on which the program said hello; the launcher's answers go there.
    joined: Option<OwnedFd>,
    leftovers: Option<Leftovers>,
}

impl Agent {
    /// Runs the program. `None`: that failed, and the launcher was told.
    fn start(start: ToAgent, line: &mut Line<'_>) -> Result<Option<Self>, AgentError> {
        let ToAgent::Start {
            node,
            command,
            env,
            directory,
            silence_ms,
            relay,
            core_slot,
        } = start
        else {
            return Err(AgentError::Garbage);
        };
        line.pulse.begin_again(Duration::from_millis(silence_ms));
        let (program, arguments) = command.split_first().ok_or(AgentError::Garbage)?;
        if let Some(Err(error)) = relay.as_ref().map(relay::ensure) {
            line.tell(&FromAgent::CouldNotStart {
                program: program.clone(),
                reason: error.to_string(),
            })?;
            return Ok(None);
        }
        let name = rendezvous::random_name().map_err(failed("random name"))?;
        let listener = rendezvous::listen(&name).map_err(failed("rendezvous socket"))?;
        let mut run = Command::new(program);
        run.args(arguments)
            .envs(env)
            .env(ENV_RENDEZVOUS, &name)
            .env(ENV_NODE, node.to_string())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(directory) = directory.filter(|path| std::path::Path::new(path).is_dir()) {
            run.current_dir(directory);
        }
        let core = match core_slot.map(CoreSlot::core).transpose() {
            Ok(core) => core,
            Err(reason) => {
                // Said once for the host.
                if core_slot.is_some_and(|core_slot| core_slot.index == 0) {
                    let mut frame = Vec::new();
                    frames::put(&mut frame, Kind::Stderr, format!("{reason}\n").as_bytes());
                    line.write(&frame)?;
                }
                None
            }
        };
        crate::sys::die_with_parent(&mut run, core);
        let leftovers = Leftovers::watch(&name).ok(); // a host without a shell has the process group only
        let mut child = match run.spawn() {
            Ok(child) => child,
            Err(error) => {
                line.tell(&FromAgent::CouldNotStart {
                    program: program.clone(),
                    reason: error.to_string(),
                })?;
                return Ok(None);
            }
        };
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|error| failed("pidfd_open")(error.into()))?; // on an error the child dies with the agent
        let pipes = [
            Pipe::new(child.stdout.take(), Kind::Stdout).map_err(failed("pipe"))?,
            Pipe::new(child.stderr.take(), Kind::Stderr).map_err(failed("pipe"))?,
        ];
        line.group = Some(Pid::from_child(&child));
        line.tell(&FromAgent::Started { pid: child.id() })?;
        Ok(Some(Self {
            node,
            child,
            pidfd,
            pipes,
            door: Door::new(listener),
            connections: Vec::new(),
            joined: None,
            leftovers,
        }))
    }

    fn run(mut self, line: &mut Line<'_>) -> Result<(), AgentError> {
        let over = self.serve(line);
        line.group = None; // its number may be another's once it is reaped
        // Processes that it left running are killed with it; the process group still is its own, as it is not reaped yet.
        self.signal(Signal::KILL);
        let status = self.child.wait().map_err(failed("wait for the program"))?;
        self.leftovers = None;
        match over? {
            Over::Abandoned => Ok(()),
            Over::Ended => line.tell(&FromAgent::Ended {
                code: status.code(),
                signal: status.signal(),
            }),
        }
    }

    fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), signal); // it may be empty, which is fine
    }

    fn serve(&mut self, line: &mut Line<'_>) -> Result<Over, AgentError> {
        loop {
            while let Some(message) = line.message()? {
                self.obey(message)?;
            }
            if line.gone {
                return Ok(Over::Abandoned);
            }
            let [input, ended] = self.sleep(line)?;
            if input {
                line.listen()?;
            }
            line.check()?;
            line.beat()?;
            self.accept_some();
            self.carry_messages(line)?;
            for pipe in &mut self.pipes {
                pipe.carry(if ended { REST_BYTES } else { READ_BYTES }, line)?;
            }
            if ended {
                self.carry_messages(line)?; // its last messages may have come meanwhile
                return Ok(Over::Ended);
            }
        }
    }

    /// Sleeps until something happens. Returns whether there is input, and whether the program has ended.
    fn sleep(&self, line: &Line<'_>) -> Result<[bool; 2], AgentError> {
        let (door, opens) = self.door.watch();
        let mut fds = vec![
            PollFd::from_borrowed_fd(line.input, PollFlags::IN),
            PollFd::new(&self.pidfd, PollFlags::IN),
            door,
        ];
        let connections = self.connections.iter().chain(&self.joined);
        fds.extend(connections.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let pipes = self.pipes.iter().filter_map(|pipe| pipe.fd.as_ref());
        fds.extend(pipes.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let most = line.pulse.until_next();
        let most = opens.map_or(most, |opens| opens.min(most));
        sleep::poll(&mut fds, Some(most)).map_err(failed("poll"))?;
        Ok([0, 1].map(|index: usize| !fds[index].revents().is_empty()))
    }

    fn obey(&mut self, message: ToAgent) -> Result<(), AgentError> {
        match message {
            ToAgent::Start { .. } => return Err(AgentError::Garbage),
            ToAgent::Stop => self.signal(Signal::TERM),
            ToAgent::Signal { signal } => self.signal(signal.into()),
            ToAgent::Pause => self.signal(Signal::STOP),
            ToAgent::Continue => self.signal(Signal::CONT),
            ToAgent::CloseStdout => self.pipes[0].fd = None,
            ToAgent::Forward { message } => {
                if let Some(program) = &self.joined {
                    // If it cannot be sent, the program is ending, which will be reported.
                    let _ = rendezvous::send(program.as_fd(), &message, None);
                }
                if matches!(message, FromLauncher::Refused { .. }) {
                    self.joined = None;
                }
            }
        }
        Ok(())
    }

    /// Accepts connections. If there are too many, the oldest is closed; each in the list was read once, or has just come.
    fn accept_some(&mut self) {
        let mut silent = self.connections.len();
        for fd in self.door.callers(CALLS_PER_ROUND) {
            if self.connections.len() >= CONNECTIONS_MAX {
                if silent == 0 {
                    continue;
                }
                silent -= 1;
                self.connections.remove(0);
            }
            self.connections.push(fd);
        }
    }

    /// Relays messages of the rendezvous. The first connection that says hello as our node is the program's.
    fn carry_messages(&mut self, line: &mut Line<'_>) -> Result<(), AgentError> {
        let unknown = std::mem::take(&mut self.connections);
        for fd in unknown {
            match rendezvous::receive::<FromWorker>(fd.as_fd()) {
                Ok(Received::Nothing) => self.connections.push(fd),
                Ok(Received::Message(message, _)) => {
                    let joins = match &message {
                        FromWorker::Hello { node, .. } | FromWorker::Failed { node, .. } => {
                            *node == self.node && self.joined.is_none()
                        }
                    };
                    if joins {
                        line.tell(&FromAgent::Forward { message })?;
                        self.joined = Some(fd);
                    } else {
                        let reason = "another process joined as this node".to_owned();
                        let refused = FromLauncher::Refused { reason };
                        let _ = rendezvous::send(fd.as_fd(), &refused, None); // it is refused in any case
                    }
                }
                Ok(Received::Garbage | Received::Closed) | Err(_) => {}
            }
        }
        for _ in 0..PACKETS_PER_ROUND {
            let Some(program) = &self.joined else { break };
            match rendezvous::receive::<FromWorker>(program.as_fd()) {
                Ok(Received::Nothing) => break,
                Ok(Received::Message(message, _)) => line.tell(&FromAgent::Forward { message })?,
                Ok(Received::Garbage | Received::Closed) | Err(_) => {
                    self.joined = None;
                    line.tell(&FromAgent::Left)?;
                }
            }
        }
        Ok(())
    }
}
