//! One worker in its keeper: the process, its pipes, and its state.
//!
//! Used by `keeper`. A worker of this host is the process itself; a worker of another host is the command that reaches its agent, and messages to it
//! go through `remote`.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use tsumuji_proto::NodeId;

use super::frames::{FromAgent, Garbage, Item, Kind, READ_BYTES, ToAgent, UserSignal, drain};
use super::lines::Lines;
use super::output::{Output, Target};
use super::remote::Remote;
use super::rendezvous::TableEntry;
use crate::exit::WorkerFailure;

/// Bytes read from an agent in one round.
pub(super) const AGENT_READ_BYTES: usize = 128 << 10;
/// Bytes read from the pipe of an ended process: four times what a pipe holds, as a child that it left may go on printing.
pub(super) const PIPE_REST_BYTES: usize = 256 << 10;

/// One worker to be spawned.
pub(super) struct Order {
    pub(super) node: NodeId,
    pub(super) name: String,
    /// The host that it shares with other nodes, as in `TableEntry`.
    pub(super) host: Option<u16>,
    pub(super) command: Command,
    /// The core to which it is bound. An agent chooses it by itself.
    pub(super) core: Option<usize>,
    /// For a command that reaches an agent: its start message, and the limit of its silence.
    pub(super) start: Option<(ToAgent, Duration)>,
    /// Where its standard output and standard error go; `None`: not piped.
    pub(super) stdout: Option<Print>,
    pub(super) stderr: Option<Print>,
}

/// Where lines are printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Print {
    pub(super) target: Target,
    /// The worker's name is put before each line.
    pub(super) tagged: bool,
}

/// Standard output or standard error of a worker.
struct Pipe {
    /// `None`: the worker has closed it, it has no reader any more, or its data come from an agent.
    fd: Option<OwnedFd>,
    lines: Lines,
    target: Target,
}

impl Pipe {
    fn new(print: Print, name: &str) -> Self {
        Self {
            fd: None,
            lines: Lines::new(print.tagged.then_some(name)),
            target: print.target,
        }
    }

    fn of(fd: impl Into<OwnedFd>, print: Print, name: &str) -> io::Result<Self> {
        let fd = fd.into();
        rustix::io::ioctl_fionbio(&fd, true)?; // sets our end only: the two ends of a pipe have separate flags
        Ok(Self {
            fd: Some(fd),
            ..Self::new(print, name)
        })
    }

    /// Passes on available output, at most about `most` bytes.
    fn read(&mut self, most: usize, output: &Output) {
        let mut block = Vec::new();
        let was_open = self.fd.is_some();
        let Ok(()) = drain(&mut self.fd, most, |bytes| {
            self.lines.feed(bytes, &mut block);
            Ok::<_, Infallible>(())
        });
        if was_open && self.fd.is_none() {
            self.lines.finish(&mut block);
        }
        output.push(self.target, block);
    }

    fn feed(&mut self, bytes: &[u8], output: &Output) {
        let mut block = Vec::new();
        self.lines.feed(bytes, &mut block);
        output.push(self.target, block);
    }

    /// Passes on the rest, after the process has ended.
    fn read_rest(&mut self, output: &Output) {
        self.read(PIPE_REST_BYTES, output);
        self.fd = None;
        let mut block = Vec::new();
        self.lines.finish(&mut block);
        output.push(self.target, block);
    }
}

/// A process that was spawned.
pub(super) struct Worker {
    pub(super) node: NodeId,
    pub(super) name: String,
    /// As in `Order`.
    pub(super) host: Option<u16>,
    /// Name of the program that was run.
    pub(super) program: String,
    pub(super) child: Child,
    /// Id of the worker's process, on its host.
    pub(super) pid: u32,
    /// Readable when the process has ended; `None` once it is reaped.
    pub(super) pidfd: Option<OwnedFd>,
    /// Its entry, once it has said hello.
    pub(super) entry: Option<TableEntry>,
    pub(super) reported: Option<(String, Instant)>,
    /// Exit status of the program as its agent reported it.
    pub(super) ended: Option<ExitStatus>,
    pub(super) remote: Option<Remote>,
    /// The agent was told that standard output has no reader.
    told_deaf: bool,
    /// Of its standard output and standard error, and of standard error of the command that reaches an agent.
    pipes: [Option<Pipe>; 3],
}

impl Worker {
    /// Starts the worker. An error names the program that could not be run.
    pub(super) fn spawn(order: Order) -> Result<Self, WorkerFailure> {
        let Order {
            node,
            name,
            host,
            mut command,
            core,
            start,
            stdout,
            stderr,
        } = order;
        if start.is_some() {
            // No death signal: when its input ends, the agent also ends what its program started, which a signal would not.
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        } else {
            crate::sys::die_with_parent(&mut command, core);
            command.stdin(Stdio::null());
            if stdout.is_some() {
                command.stdout(Stdio::piped());
            }
        }
        if start.is_some() || stderr.is_some() {
            command.stderr(Stdio::piped());
        }
        let spawned = command.spawn().and_then(|mut child| {
            match Self::watch(&name, &mut child, start.as_ref(), stdout, stderr) {
                Ok(parts) => Ok((child, parts)),
                Err(error) => {
                    child.kill().and_then(|()| child.wait())?;
                    Err(error)
                }
            }
        });
        let program = command.get_program().to_string_lossy().into_owned();
        match spawned {
            Ok((child, (pidfd, remote, pipes))) => Ok(Self {
                node,
                name,
                host,
                program,
                pid: child.id(),
                child,
                pidfd: Some(pidfd),
                entry: None,
                reported: None,
                ended: None,
                remote,
                told_deaf: false,
                pipes,
            }),
            Err(error) => Err(WorkerFailure::CouldNotStart {
                name,
                program,
                reason: error.to_string(),
            }),
        }
    }

    /// Handles of a running child: its pidfd, its agent and its pipes.
    #[allow(clippy::type_complexity)] // taken apart by its one caller
    fn watch(
        name: &str,
        child: &mut Child,
        start: Option<&(ToAgent, Duration)>,
        stdout: Option<Print>,
        stderr: Option<Print>,
    ) -> io::Result<(OwnedFd, Option<Remote>, [Option<Pipe>; 3])> {
        let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let Some((start, silence)) = start else {
            let out = child.stdout.take().zip(stdout);
            let out = out.map(|(fd, print)| Pipe::of(fd, print, name));
            let err = child.stderr.take().zip(stderr);
            let err = err.map(|(fd, print)| Pipe::of(fd, print, name));
            return Ok((pidfd, None, [out.transpose()?, err.transpose()?, None]));
        };
        let remote = Remote::new(child, start, *silence)?;
        let tagged = Print {
            target: Target::Stderr,
            tagged: true,
        };
        let via = child.stderr.take().map(|fd| Pipe::of(fd, tagged, name));
        let pipes = [
            stdout.map(|print| Pipe::new(print, name)),
            stderr.map(|print| Pipe::new(print, name)),
            via.transpose()?,
        ];
        Ok((pidfd, Some(remote), pipes))
    }

    /// Whether it is on another host from which nothing was heard yet.
    pub(super) fn is_unanswered(&self) -> bool {
        let remote = self.remote.as_ref();
        remote.is_some_and(|remote| !remote.is_greeted())
    }

    /// Its name, and why it is still waited for.
    pub(super) fn awaited(&self) -> String {
        let (name, pid) = (&self.name, self.pid);
        if self.is_unanswered() {
            let program = &self.program;
            format!("{name} (pid {pid}: `{program}` leads to no agent yet)")
        } else {
            format!("{name} (pid {pid} has opened no endpoint yet)")
        }
    }

    /// Ends the worker and what it started: TERM asks it to end, KILL ends it at once.
    pub(super) fn signal(&mut self, signal: Signal) {
        if let Some(remote) = &mut self.remote {
            if signal == Signal::TERM && remote.is_greeted() {
                let _ = remote.tell(&ToAgent::Stop); // an agent that is gone needs no signal
                return;
            }
            // A second KILL goes to the command itself: it no longer reaches the agent. So does a TERM while no agent has answered.
            if remote.hang_up() && signal == Signal::KILL {
                return;
            }
        }
        self.kill_group(signal);
    }

    /// Errors are ignored: the group is empty only after the child was reaped, others cannot be helped.
    fn kill_group(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Passes on a signal of the user's to the worker and what it started.
    pub(super) fn pass_on(&mut self, signal: UserSignal) {
        // Errors are ignored: who cannot be signalled is ending.
        match &mut self.remote {
            Some(remote) => drop(remote.tell(&ToAgent::Signal { signal })),
            None => self.kill_group(signal.into()),
        }
    }

    /// Suspends the worker and what it started, or continues them.
    pub(super) fn pause(&mut self, is_paused: bool) {
        // Errors are ignored as in `pass_on`.
        match (&mut self.remote, is_paused) {
            (Some(remote), true) => drop(remote.tell(&ToAgent::Pause)),
            (Some(remote), false) => {
                remote.excuse(); // it said nothing meanwhile
                drop(remote.tell(&ToAgent::Continue));
            }
            (None, true) => self.kill_group(Signal::STOP),
            (None, false) => self.kill_group(Signal::CONT),
        }
    }

    /// Adds the pipes to the descriptors to poll.
    pub(super) fn poll_pipes<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let pipes = self.pipes.iter().flatten();
        let pipes = pipes.filter_map(|pipe| pipe.fd.as_ref());
        fds.extend(pipes.map(|fd| PollFd::new(fd, PollFlags::IN)));
    }

    /// Passes on its output.
    pub(super) fn read_pipes(&mut self, output: &Output) {
        let stdout_gone = output.is_stdout_gone();
        for pipe in self.pipes.iter_mut().flatten() {
            if stdout_gone && pipe.target == Target::Stdout {
                pipe.fd = None;
            } else {
                pipe.read(READ_BYTES, output);
            }
        }
        let deaf = self.pipes[0].as_ref().map(|pipe| pipe.target) == Some(Target::Stdout);
        if let (Some(remote), true, false) = (&mut self.remote, stdout_gone && deaf, self.told_deaf)
        {
            self.told_deaf = remote.tell(&ToAgent::CloseStdout).is_ok();
        }
    }

    /// Reads messages of its agent, whose connection is closed at garbage; output of the program is passed on, or dropped if `drop_printed`.
    pub(super) fn read_agent(
        &mut self,
        most: usize,
        output: &Output,
        drop_printed: bool,
    ) -> Vec<Result<FromAgent, Garbage>> {
        let mut said = Vec::new();
        let Some(remote) = &mut self.remote else {
            return said;
        };
        let [stdout, stderr, _] = &mut self.pipes;
        remote.read(most, |item| match item {
            Ok(Item::Message(message)) => said.push(Ok(message)),
            Err(garbage) => said.push(Err(garbage)),
            Ok(Item::Alive) => {}
            Ok(Item::Printed(..)) if drop_printed => {}
            Ok(Item::Printed(kind, bytes)) => {
                let pipe = match kind {
                    Kind::Stdout => stdout.as_mut(),
                    _ => stderr.as_mut(),
                };
                if let Some(pipe) = pipe {
                    pipe.feed(bytes, output);
                }
            }
        });
        said
    }

    /// Passes on the rest, after the process has ended.
    pub(super) fn read_rest(&mut self, output: &Output) {
        for pipe in self.pipes.iter_mut().flatten() {
            pipe.read_rest(output);
        }
    }

    /// The last lines that it printed to standard error.
    pub(super) fn last_lines(&self) -> Vec<String> {
        let of_stderr = self.pipes[1..].iter().flatten();
        of_stderr.flat_map(|pipe| pipe.lines.last_lines()).collect()
    }
}
