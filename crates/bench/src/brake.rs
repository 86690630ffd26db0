//! A slow host: the processes of a testbed's host are stopped part of the time.
//!
//! What is left is what a slower processor would give to computing; its messages are late by up to a stop, as on a machine that others use, too. It works
//! on any program in the same way.

use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time of a run and the stop after it. Shorter ones would cost more than they take.
const PERIOD: Duration = Duration::from_millis(10);
/// How often new processes are looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Slows the processes of a host until it is dropped.
#[derive(Debug)]
pub struct Brake {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Brake {
    /// Leaves the processes in the network namespace of that file `share` (0 to 1) of their time.
    pub fn start(netns: PathBuf, share: f64) -> io::Result<Self> {
        let inode = std::fs::metadata(&netns)?.st_ino();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("tsumuji-brake".to_owned())
            .spawn(move || hold(inode, share.clamp(0.0, 1.0), &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it does not panic
        }
    }
}

fn hold(netns: u64, share: f64, stop: &AtomicBool) {
    let (mut held, mut looked) = (Vec::new(), None);
    while !stop.load(Ordering::Relaxed) {
        if looked.is_none_or(|at: Instant| at.elapsed() >= LOOK) {
            held = inside(netns);
            looked = Some(Instant::now());
        }
        for (signal, part) in [(Signal::STOP, 1.0 - share), (Signal::CONT, share)] {
            for pid in &held {
                let _ = kill_process(*pid, signal); // it may have ended
            }
            std::thread::sleep(PERIOD.mul_f64(part));
        }
    }
}

/// Processes in that network namespace, except this one.
fn inside(netns: u64) -> Vec<Pid> {
    let Ok(all) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = rustix::process::getpid();
    all.filter_map(|entry| {
        let path = entry.ok()?.path();
        let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
        (pid != own && lies_in(&path, netns)).then_some(pid)
    })
    .collect()
}

fn lies_in(process: &Path, netns: u64) -> bool {
    std::fs::metadata(process.join("ns/net")).is_ok_and(|file| file.st_ino() == netns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    /// A process that counts gets half of its time, and goes on when the brake is gone.
    #[test]
    fn half_of_the_time_is_taken() {
        if let Err(error) = tsumuji_testbed::check_rights() {
            return println!("SKIPPED half_of_the_time_is_taken: {error}");
        }
        let name = format!("brake{}", std::process::id()).parse().unwrap();
        let testbed = tsumuji_testbed::Testbed::up(&tsumuji_testbed::Spec::new(2).named(name));
        let testbed = match testbed {
            Ok(testbed) => testbed,
            Err(error) => return println!("SKIPPED half_of_the_time_is_taken: {error}"),
        };
        let netns = Path::new("/run/netns").join(testbed.hosts()[1].netns());
        let mut busy = testbed.hosts()[1].command("sh");
        let mut busy = busy.args(["-c", "while :; do :; done"]).stdout(Stdio::null());
        let mut busy = busy.spawn().unwrap();
        let inode = std::fs::metadata(&netns).unwrap().st_ino();
        let deadline = Instant::now() + Duration::from_secs(10);
        let pid = loop {
            // What enters the namespace becomes the shell.
            if let [pid] = inside(inode)[..]
                && spent(pid) > 0
            {
                break pid;
            }
            assert!(Instant::now() < deadline, "the shell does not run");
            std::thread::sleep(Duration::from_millis(10));
        };
        let used = |span: Duration| {
            let before = spent(pid);
            std::thread::sleep(span);
            spent(pid) - before
        };
        let brake = Brake::start(netns, 0.25).unwrap();
        let slowed = used(Duration::from_secs(2));
        drop(brake);
        let free = used(Duration::from_secs(2));
        busy.kill().unwrap();
        busy.wait().unwrap();
        testbed.down().unwrap();
        // A busy machine leaves less to either.
        assert!(free > 0 && slowed <= 120, "{slowed} of 200 ticks, then {free}");
    }

    /// Processor time of a process, in hundredths of a second.
    fn spent(pid: Pid) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let stat = stat.unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split(' ').skip(12);
        let mut field = || fields.next().and_then(|field| field.parse::<u64>().ok());
        field().unwrap_or(0) + field().unwrap_or(0)
    }

}
