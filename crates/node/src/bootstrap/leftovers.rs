//! Ends what programs of a launch have started and left running, also when the launcher or the agent is killed.
//!
//! Used by `keeper` for programs of this host, and by `agent`. Programs pass the name of their rendezvous on to what they start, by their environment,
//! and so it is found whatever process group, session or parent it has by now. A small process looks for the name and kills its holders, once
//! the descriptor that this process holds is closed, by `Drop` or by the kernel.
//!
//! Left out: a process that was started with an environment without the name is not found, unless it is in its program's process group.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use super::ENV_RENDEZVOUS;

/// Waits in the background, so that nobody has it as a child, for the end of its input. A holder may start another one before it is killed, so it looks
/// again until there is none, or 20 times if some cannot be killed.
const SCRIPT: &str = r#"
exec 3<&0
{
    trap '' HUP INT QUIT TERM
    read -r _ <&3
    for round in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do
        [ $round -lt 2 ] || sleep 0.05
        found=$(grep -lsF "=$1" /proc/[0-9]*/environ) || [ -n "$found" ] || exit 0
        for file in $found; do
            pid=${file#/proc/}
            kill -KILL "${pid%/environ}"
        done
    done
} &
"#;

/// Kills the leftovers when it is dropped, and returns once they are killed.
#[derive(Debug)]
pub(super) struct Leftovers {
    /// Open as long as this process lives.
    line: Option<ChildStdin>,
    /// Ends with the process that kills.
    done: ChildStdout,
}

impl Leftovers {
    /// Starts to watch over the programs that have `rendezvous` in their environment.
    pub(super) fn watch(rendezvous: &str) -> io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "sh", rendezvous])
            // It belongs to this process, not to a launch within which this process may run.
            .env_remove(ENV_RENDEZVOUS)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (line, done) = (child.stdin.take(), child.stdout.take());
        child.wait()?;
        let done = done.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { line, done })
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        if let Some(mut line) = self.line.take() {
            let _ = line.write_all(b"\n"); // a forked child may still have the line open
        }
        let _ = self.done.read(&mut [0]); // it writes nothing: this is the end
    }
}
