//! Finds processes by a condition and ends them.
//!
//! Called by `down` for all processes in a testbed's namespaces, and by `run` for those that a command left there.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::mark::{self, NetnsKey};

/// Processes get this long to end when asked to; then they are killed.
const GRACE: Duration = Duration::from_secs(1);
/// Longest wait for killed processes; one that is stuck in the kernel does not stop us.
const KILLED_WITHIN: Duration = Duration::from_secs(5);
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Asks all processes that match to end, kills those that do not, and returns how many there were. This process is spared.
pub(crate) fn end(is_meant: &dyn Fn(u32) -> bool) -> usize {
    let first = handles(is_meant);
    let count = first.len();
    signal_all(&first, Signal::TERM);
    wait_for_end(is_meant, GRACE);
    let stubborn = handles(is_meant);
    if !stubborn.is_empty() {
        signal_all(&stubborn, Signal::KILL);
        wait_for_end(is_meant, KILLED_WITHIN);
    }
    count
}

/// Whether a process runs in one of these namespaces. Zombies run in none.
pub(crate) fn is_in(pid: u32, namespaces: &HashMap<NetnsKey, &str>) -> bool {
    let key = mark::key_of(Path::new(&format!("/proc/{pid}/ns/net")));
    key.is_some_and(|key| namespaces.contains_key(&key))
}

fn signal_all(processes: &[OwnedFd], signal: Signal) {
    for process in processes {
        // One that has just ended needs no signal.
        let _ = pidfd_send_signal(process, signal);
    }
}

fn wait_for_end(is_meant: &dyn Fn(u32) -> bool, within: Duration) {
    let start = Instant::now();
    while !handles(is_meant).is_empty() && start.elapsed() < within {
        std::thread::sleep(CHECK_EVERY);
    }
}

/// Handles of all processes that match. A number may be given to another process at any time, a handle may not.
fn handles(is_meant: &dyn Fn(u32) -> bool) -> Vec<OwnedFd> {
    let me = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|&pid| pid != me && is_meant(pid))
        .filter_map(|pid| {
            let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
            let handle = pidfd_open(number, PidfdFlags::empty()).ok()?;
            // Checked again: if the first process ended before it was opened, its successor must match, too.
            is_meant(pid).then_some(handle)
        })
        .collect()
}
