//! How a worker ended or failed, with messages that name it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tsumuji_proto::NodeId;

/// The end of a worker's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerExit {
    /// Its node.
    pub node: NodeId,
    /// Name in the table: `worker 2`.
    pub name: String,
    /// Id of its process.
    pub pid: u32,
    /// Exit status from the kernel.
    pub status: ExitStatus,
    /// Error that it reported before it ended, if any.
    pub reported: Option<String>,
    /// The last lines of its standard error, if the launcher passes that on.
    pub last_lines: Vec<String>,
}

impl WorkerExit {
    /// Whether it exited with code 0.
    pub fn success(&self) -> bool {
        self.status.success()
    }
}

impl std::fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {}) ", self.name, self.pid)?;
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "exited with code {code}")?,
            (None, Some(signal)) => write!(
                f,
                "died: killed by signal {signal} ({})",
                signal_name(signal)
            )?,
            (None, None) => write!(f, "died: {}", self.status)?,
        }
        match &self.reported {
            Some(text) => write!(f, ": {text}"),
            None if self.last_lines.is_empty() => Ok(()),
            None => write!(f, "; it said last: {}", self.last_lines.join(" / ")),
        }
    }
}

/// Why a launch failed: the failure of the first worker that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFailure {
    /// Its program could not be executed.
    #[error("{name} could not start: cannot run `{program}`: {reason}")]
    CouldNotStart {
        /// Name in the table.
        name: String,
        /// The program.
        program: String,
        /// The kernel's error.
        reason: String,
    },
    /// It runs, but does not join.
    #[error("{name} (pid {pid}) did not report within {} s: its program must open an endpoint (`endpoint_from_env`), or it takes longer to start than it may", after.as_secs_f64())]
    NotReported {
        /// Name in the table.
        name: String,
        /// Id of its process.
        pid: u32,
        /// Time that it had.
        after: Duration,
    },
    /// Its host does not answer.
    #[error("{name} (pid {pid}): `{program}` leads to no agent within {} s; it must run tsumuji there without asking anything", after.as_secs_f64())]
    NoAnswer {
        /// Name in the table.
        name: String,
        /// Id of the command that should reach the host.
        pid: u32,
        /// That command.
        program: String,
        /// Time that it had.
        after: Duration,
    },
    /// Its host is silent, though the connection seems open.
    #[error("{name} (pid {pid}): nothing was heard from its host for {} s; the host, the network or `{program}` is stuck", after.as_secs_f64())]
    Silent {
        /// Name in the table.
        name: String,
        /// Id of its process, on its host.
        pid: u32,
        /// The command that reaches the host.
        program: String,
        /// Time of the silence.
        after: Duration,
    },
    /// It ended with an error, by a signal, or before it joined.
    #[error("{exit}{}", if *early { " (before it joined the others, which wait for it)" } else { "" })]
    Ended {
        /// The end of the process.
        exit: WorkerExit,
        /// Other processes, or the launcher, were waiting for it to join.
        early: bool,
    },
    /// It reported an error, and has not ended yet.
    #[error("{name} (pid {pid}) failed: {message}")]
    Reported {
        /// Name in the table.
        name: String,
        /// Id of its process.
        pid: u32,
        /// The error that it reported.
        message: String,
    },
}

impl WorkerFailure {
    /// The name of the worker that failed, as every message about it begins.
    pub fn name(&self) -> &str {
        match self {
            Self::CouldNotStart { name, .. }
            | Self::NotReported { name, .. }
            | Self::NoAnswer { name, .. }
            | Self::Silent { name, .. }
            | Self::Reported { name, .. } => name,
            Self::Ended { exit, .. } => &exit.name,
        }
    }
}

/// Name of a signal: `SIGKILL` for 9. Signals without a name here are mostly real-time signals.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => "another signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(raw: i32, reported: Option<&str>) -> WorkerExit {
        WorkerExit {
            node: NodeId(2),
            name: "worker 2".into(),
            pid: 4711,
            status: ExitStatus::from_raw(raw),
            reported: reported.map(String::from),
            last_lines: Vec::new(),
        }
    }

    /// The message names worker, process, and signal or code with its reason.
    #[test]
    fn lines_name_worker_and_cause() {
        assert_eq!(
            exit(9, None).to_string(),
            "worker 2 (pid 4711) died: killed by signal 9 (SIGKILL)"
        );
        assert_eq!(
            exit(3 << 8, Some("x.mtx: no such file")).to_string(),
            "worker 2 (pid 4711) exited with code 3: x.mtx: no such file"
        );
        let talkative = WorkerExit {
            last_lines: vec!["one".into(), "two".into()],
            ..exit(6, None)
        };
        assert_eq!(
            talkative.to_string(),
            "worker 2 (pid 4711) died: killed by signal 6 (SIGABRT); it said last: one / two"
        );
        let early = WorkerFailure::Ended {
            exit: exit(0, None),
            early: true,
        };
        let line = early.to_string();
        assert!(
            line.starts_with("worker 2 (pid 4711) exited with code 0 (before it joined the others"),
            "{line}"
        );
        let late = WorkerFailure::NotReported {
            name: "worker 3".into(),
            pid: 5,
            after: Duration::from_secs(10),
        };
        assert!(
            late.to_string()
                .starts_with("worker 3 (pid 5) did not report within 10 s"),
            "{late}"
        );
    }
}
