//! Runs one command on all hosts at once, and leaves none of its processes running.
//!
//! Called by `Testbed::run_all`. Each command is a process group of its own. All are interrupted when the caller asks for it, and killed if they do
//! not end; processes that they left behind are found by a variable in their environment.
//!
//! One thread per output of each host passes lines on; the calling thread waits for the commands to end.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::commands::dying_with_us;
use crate::mark;
use crate::{Host, processes};

/// Interrupted commands get this long to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
const CHECK_EVERY: Duration = Duration::from_millis(5);
/// A longer line is passed on in pieces.
const LONGEST_LINE_BYTES: u64 = 64 * 1024;
/// Environment variable that identifies the processes of a run.
const RUN_VARIABLE: &str = "TSUMUJI_TESTBED_RUN";

/// The stream that a command wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Its standard output.
    Output,
    /// Its standard error.
    Error,
}

/// How the command ended on one host.
#[derive(Debug, Clone, Copy)]
pub struct HostExit {
    /// Number of the host.
    pub id: u16,
    /// Exit status.
    pub status: ExitStatus,
}

impl HostExit {
    /// The exit code as in a shell: the code, or 128 and the number of the signal.
    pub fn code(&self) -> u8 {
        let code = self
            .status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0));
        u8::try_from(code).unwrap_or(u8::MAX)
    }
}

/// Why a command could not be run on all hosts. It then runs on none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It could not be started on a host.
    #[error("{host}: cannot start: {source}")]
    Start {
        /// Name of the host.
        host: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// It could not be waited for on a host.
    #[error("{host}: cannot wait: {source}")]
    Wait {
        /// Name of the host.
        host: String,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Processes that are killed, with those they started, when this is dropped.
struct Running<'a> {
    hosts: &'a [Host],
    children: Vec<Child>,
    token: String,
}

impl Running<'_> {
    fn signal(&self, exits: &[Option<ExitStatus>], signal: Signal) {
        let alive = self
            .children
            .iter()
            .zip(exits)
            .filter(|(_, exit)| exit.is_none());
        for (child, _) in alive {
            // A process that was not yet waited for keeps its number, so the group is the one we made.
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, signal);
            }
        }
    }

    fn end_leftovers(&self) {
        let namespaces: Vec<_> = self
            .hosts
            .iter()
            .map(|host| host.netns().to_owned())
            .collect();
        let keys = mark::keys(&namespaces);
        let wanted = format!("{RUN_VARIABLE}={}", self.token);
        let is_ours = |pid: u32| {
            processes::is_in(pid, &keys)
                && std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| {
                    all.split(|byte| *byte == 0)
                        .any(|one| one == wanted.as_bytes())
                })
        };
        processes::end(&is_ours);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.end_leftovers();
    }
}

/// Starts the command on all hosts, passes its lines on, and returns how it ended, by host.
pub(crate) fn run_all(
    hosts: &[Host],
    command: &[OsString],
    on_line: &(dyn Fn(&Host, Stream, &[u8]) + Sync),
    wants_stop: &dyn Fn() -> bool,
) -> Result<Vec<HostExit>, RunError> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let mut running = Running {
        hosts,
        children: Vec::new(),
        token: format!("{}-{number}", std::process::id()),
    };
    std::thread::scope(|scope| {
        for host in hosts {
            let mut child = start(host, command, &running.token)?;
            let (output, error) = (child.stdout.take(), child.stderr.take());
            running.children.push(child);
            scope.spawn(move || pass_on(host, Stream::Output, output, on_line));
            scope.spawn(move || pass_on(host, Stream::Error, error, on_line));
        }
        let exits = wait(&mut running, wants_stop);
        // Before the threads are waited for: leftover processes hold the other ends of their pipes.
        drop(running);
        exits
    })
}

fn start(host: &Host, command: &[OsString], token: &str) -> Result<Child, RunError> {
    dying_with_us("ip")
        .args(["netns", "exec", host.netns()].map(OsStr::new))
        .args(command)
        .env(RUN_VARIABLE, token)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| RunError::Start {
            host: host.name().to_owned(),
            source,
        })
}

fn wait(
    running: &mut Running<'_>,
    wants_stop: &dyn Fn() -> bool,
) -> Result<Vec<HostExit>, RunError> {
    let mut exits: Vec<Option<ExitStatus>> = vec![None; running.children.len()];
    let mut stopped: Option<Instant> = None;
    let mut is_killed = false;
    loop {
        for (child, (exit, host)) in running
            .children
            .iter_mut()
            .zip(exits.iter_mut().zip(running.hosts))
        {
            if exit.is_none() {
                *exit = child.try_wait().map_err(|source| RunError::Wait {
                    host: host.name().to_owned(),
                    source,
                })?;
            }
        }
        if let Some(all) = exits.iter().copied().collect::<Option<Vec<_>>>() {
            let exits = running.hosts.iter().zip(all);
            return Ok(exits
                .map(|(host, status)| HostExit {
                    id: host.id(),
                    status,
                })
                .collect());
        }
        match stopped {
            None if wants_stop() => {
                running.signal(&exits, Signal::INT);
                stopped = Some(Instant::now());
            }
            Some(when) if !is_killed && when.elapsed() > GRACE => {
                running.signal(&exits, Signal::KILL);
                is_killed = true;
            }
            _ => {}
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

fn pass_on(
    host: &Host,
    stream: Stream,
    source: Option<impl Read>,
    on_line: &(dyn Fn(&Host, Stream, &[u8]) + Sync),
) {
    let Some(source) = source else { return };
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    // An output that cannot be read any more counts as ended.
    while let Ok(1..) = source
        .by_ref()
        .take(LONGEST_LINE_BYTES)
        .read_until(b'\n', &mut line)
    {
        on_line(host, stream, line.strip_suffix(b"\n").unwrap_or(&line));
        line.clear();
    }
}
