//! Other libraries' programs doing the same on the same machine: MPI and ZeroMQ exchanging messages, PETSc on the same system.
//!
//! Their sources are in `bench/`, are embedded in this crate, and run from a temporary folder. A missing peer is reported with the package that
//! contains it. `servers` are programs of the system themselves, under load, over kernel TCP or ours.

pub mod mpi;
pub mod petsc;
pub(crate) mod servers;
pub mod zeromq;

use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

use crate::ops::Job;
use crate::stop;

/// Interval at which a wait for a peer checks whether the user wants to stop; the peer's end is noticed at once …
const CHECK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};
/// … or at this interval where the kernel gives no descriptor that signals it.
const CHECK_EVERY_WITHOUT_DESCRIPTOR: Duration = Duration::from_millis(2);
/// Time from asking a process to end to killing it: enough to remove its files.
const GRACE: Duration = Duration::from_secs(5);
/// Longest time of a compiler or a solver; a longer one hangs.
const TOOL_PATIENCE: Duration = Duration::from_secs(1800);
/// Most bytes of a peer's output that are read.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Why a peer has no figure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// It is not installed.
    #[error("not installed: apt-get install {package}")]
    NotInstalled {
        /// Debian's package.
        package: &'static str,
    },
    /// The program does not exist.
    #[error("{program}: there is no such program")]
    NotFound {
        /// The program.
        program: String,
    },
    /// It could not be run, or ended with an error.
    #[error("{program}: {problem}")]
    Failed {
        /// The program.
        program: String,
        /// Its last line, or the kernel's error.
        problem: String,
    },
    /// Its output is no figure.
    #[error("{program} printed something else than agreed: {source}")]
    Output {
        /// The program.
        program: String,
        /// The parse error.
        source: serde_json::Error,
    },
}

impl PeerError {
    fn failed(program: &str, problem: impl ToString) -> Self {
        Self::Failed {
            program: program.to_owned(),
            problem: problem.to_string(),
        }
    }

    fn output(program: &str, source: serde_json::Error) -> Self {
        Self::Output {
            program: program.to_owned(),
            source,
        }
    }
}

/// Longest time of a measurement with small messages; a longer one hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// The rate of a badly used cable of 100 Mbit/s.
const SLOWEST_BYTES_PER_SECOND: f64 = 5e6;

/// Longest time of this measurement.
fn patience(job: &Job) -> Duration {
    // The warm-up is at most as long as the measurement.
    let messages = 2 * job.op.deliveries(job.nodes) * job.iterations;
    let seconds = messages as f64 * job.size as f64 / SLOWEST_BYTES_PER_SECOND;
    PATIENCE + Duration::from_secs_f64(seconds.min(TOOL_PATIENCE.as_secs_f64()))
}

/// Output and status of a peer's program.
pub(crate) struct Left {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// `None`: it did not end by itself in time.
    pub(crate) status: Option<ExitStatus>,
}

impl Left {
    /// The error when there are no figures.
    pub(crate) fn failure(&self, program: &str) -> PeerError {
        let said = self.stderr.lines().chain(self.stdout.lines());
        let mut said = said
            .map(str::trim)
            .filter(|line| line.chars().any(char::is_alphanumeric));
        // A Python program tells its error behind where it happened.
        let named = said.clone().find(|line| line.contains("Error: "));
        let problem = match (self.status, named.or_else(|| said.next())) {
            (None, _) if stop::is_wanted() => stop::REASON.to_owned(),
            (None, _) => "it did not end in time".to_owned(),
            (Some(status), None) => format!("{status}: no message"),
            (Some(status), Some(line)) => format!("{status}: {line}"),
        };
        PeerError::failed(program, problem)
    }
}

/// Ends a process group when dropped: first asks it to, so that the processes it started end, too.
struct Ended(Child);

impl Ended {
    /// Waits for its end, until the deadline or until the user wants to stop.
    fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        self.wait_while(|| Instant::now() < deadline && !stop::is_wanted())
    }

    fn wait_while(&mut self, patient: impl Fn() -> bool) -> Option<ExitStatus> {
        let end = pidfd_open(Pid::from_child(&self.0), PidfdFlags::empty()).ok();
        self.wait_on(end.as_ref(), patient)
    }

    fn wait_on(&mut self, end: Option<&OwnedFd>, patient: impl Fn() -> bool) -> Option<ExitStatus> {
        while patient() {
            if let Some(end) = end {
                let _ = poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&CHECK_EVERY)); // a signal only makes us check early
            } else {
                std::thread::sleep(CHECK_EVERY_WITHOUT_DESCRIPTOR);
            }
            if let Some(status) = self.0.try_wait().ok()? {
                return Some(status);
            }
        }
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            // It leads a process group of its own, see `run_within`.
            let group = Pid::from_child(&self.0);
            let signal = |signal| rustix::process::kill_process_group(group, signal);
            let _ = signal(Signal::TERM);
            let asked = Instant::now();
            if self.wait_while(|| asked.elapsed() < GRACE).is_none() {
                let _ = signal(Signal::KILL);
                let _ = self.0.wait();
            }
        }
    }
}

/// Runs a command to its end, or ends it after the time-out. Its output goes to files: a process it leaves behind could hold a pipe open.
pub(crate) fn run_within(
    command: &mut Command,
    limit: Duration,
    program: &str,
) -> Result<Left, PeerError> {
    let failed = |error| PeerError::failed(program, error);
    let (mut stdout, mut stderr) = (
        tempfile::tempfile().map_err(failed)?,
        tempfile::tempfile().map_err(failed)?,
    );
    let child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().map_err(failed)?)
        .stderr(stderr.try_clone().map_err(failed)?)
        .process_group(0)
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => PeerError::NotFound {
                program: program.to_owned(),
            },
            _ => failed(error),
        })?;
    let mut child = Ended(child);
    let status = child.wait_until(Instant::now() + limit);
    drop(child);
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
        std::io::Result::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(Left {
        stdout: read(&mut stdout).map_err(failed)?,
        stderr: read(&mut stderr).map_err(failed)?,
        status,
    })
}

/// Runs a command to its end and returns its output; on failure, the last line of its errors.
fn run(command: &mut Command, package: &'static str) -> Result<String, PeerError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let left = run_within(command, TOOL_PATIENCE, &program).map_err(|error| match error {
        PeerError::NotFound { .. } => PeerError::NotInstalled { package },
        other => other,
    })?;
    match left.status {
        Some(status) if status.success() => Ok(left.stdout),
        _ => Err(left.failure(&program)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What failed is told by the error that a Python program names, wherever it stands; else by the first line that says anything.
    #[test]
    fn failures_are_told_by_their_errors() {
        let said = |script: &str| {
            let mut command = Command::new("sh");
            let ended = run(command.args(["-c", script]), "dash");
            ended.expect_err("it fails").to_string()
        };
        let python = said("printf 'Traceback:\\n  File\\nNameError: x\\n-----\\n' >&2; exit 3");
        assert!(python.ends_with("NameError: x"), "{python}");
        let other = said("printf -- '-----\\nno slots\\nagain\\n-----\\n' >&2; exit 3");
        assert!(other.ends_with("no slots"), "{other}");
    }

    /// The end of a process is noticed also where no descriptor signals it.
    #[test]
    fn an_end_is_noticed_without_a_descriptor() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.02; exit 3"]).process_group(0);
        let mut child = Ended(command.spawn().expect("a shell"));
        let asked = std::cell::Cell::new(0_u32);
        let status = child.wait_on(None, || {
            asked.set(asked.get() + 1);
            true
        });
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        assert!(asked.get() > 0);
    }
}
