//! A slow host: the processes of a testbed's host are stopped part of each millisecond or so, which a slower processor would need for the same work. Where
//! the cores are busy a run ends late; the stop after it is as much longer.
//!
//! It works on any program in the same way. Longer stops would be another thing: a machine that others use by turns, on which whoever waits for it in every
//! step gains nothing by giving it less to do.

use std::io;
use std::os::linux::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time of a run and the stop after it, if both end in time. Shorter ones would cost more than they take.
const PERIOD: Duration = Duration::from_millis(1);
/// Least part of its time that a host has: with less it would stand still.
pub const SHARE_LEAST: f64 = 0.01;
/// How often new processes are searched for.
const SEARCH_EVERY: Duration = Duration::from_millis(20);

/// Slows the processes of a host until it is dropped.
#[derive(Debug)]
pub struct Brake {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Brake {
    /// Leaves the processes in the network namespace of that file `share` (at least 0.01, at most 1) of their time.
    pub fn start(netns: PathBuf, share: f64) -> io::Result<Self> {
        let inode = std::fs::metadata(&netns)?.st_ino();
        let (stop, held) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut brake = Self {
            stop: Arc::clone(&stop),
            threads: Vec::new(),
        };
        // Each ends by `stop`, also if the other one cannot be started.
        let (stopped, found) = (Arc::clone(&stop), Arc::clone(&held));
        brake.start_thread(move || search(inode, &found, &stopped))?;
        brake.start_thread(move || hold(&held, share.clamp(SHARE_LEAST, 1.0), &stop))?;
        Ok(brake)
    }

    fn start_thread(&mut self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = std::thread::Builder::new().name("tsumuji-brake".to_owned());
        self.threads.push(builder.spawn(run)?);
        Ok(())
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // it does not panic
        }
    }
}

/// Processes that are held.
type Held = Mutex<Vec<Pid>>;

fn search(netns: u64, held: &Held, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let found = inside(netns);
        *held.lock().unwrap_or_else(PoisonError::into_inner) = found;
        std::thread::sleep(SEARCH_EVERY);
    }
}

fn hold(held: &Held, share: f64, stop: &AtomicBool) {
    // Seconds of stops that are owed for the runs so far.
    let mut owed_s = 0.0;
    while !stop.load(Ordering::Relaxed) {
        owed_s += slept(PERIOD.mul_f64(share)) * (1.0 - share) / share;
        if owed_s <= 0.0 {
            continue;
        }
        let held = held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let send = |signal| {
            for pid in &held {
                let _ = kill_process(*pid, signal); // it may have ended
            }
        };
        send(Signal::STOP);
        owed_s -= slept(Duration::from_secs_f64(owed_s));
        send(Signal::CONT);
    }
}

/// Sleeps, and returns for how many seconds.
fn slept(time: Duration) -> f64 {
    let began = Instant::now();
    std::thread::sleep(time);
    began.elapsed().as_secs_f64()
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
        let lies_in = std::fs::metadata(path.join("ns/net")).ok()?.st_ino() == netns;
        (pid != own && lies_in).then_some(pid)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    /// A process that counts gets a quarter of its time, and goes on when the brake is gone.
    #[test]
    fn most_of_the_time_is_taken() {
        if let Err(error) = tsumuji_testbed::check_rights() {
            return println!("SKIPPED most_of_the_time_is_taken: {error}");
        }
        let name = format!("brake{}", std::process::id()).parse().unwrap();
        let testbed = tsumuji_testbed::Testbed::up(&tsumuji_testbed::Spec::new(2).named(name));
        let testbed = match testbed {
            Ok(testbed) => testbed,
            Err(error) => return println!("SKIPPED most_of_the_time_is_taken: {error}"),
        };
        let netns = PathBuf::from("/run/netns").join(testbed.hosts()[1].netns());
        let mut busy = testbed.hosts()[1].command("sh");
        let busy = busy
            .args(["-c", "while :; do :; done"])
            .stdout(Stdio::null());
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
        assert!(
            free > 0 && slowed <= 80,
            "{slowed} of 200 ticks, then {free}"
        );
    }

    /// Processor time of a process, in hundredths of a second.
    fn spent(pid: Pid) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let stat = stat.unwrap_or_default();
        let mut fields = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split(' ')
            .skip(12);
        let mut field = || fields.next().and_then(|field| field.parse::<u64>().ok());
        field().unwrap_or(0) + field().unwrap_or(0)
    }
}
