//! What the end-to-end tests share: running the real program, small matrix files, and a look at what is left behind.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use tsumuji_testbed::{Host, Spec, Testbed};

#[path = "../../../../../crates/link/tests/common/ports.rs"]
mod ports;

pub(crate) use ports::free_ports;

/// Longer than any run here takes on a busy machine; a run that exceeds it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// What an ended program had said has at least so long to arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The program under test, not yet started. Where the tests run in the background, they ignore what terminals send; the program must not.
pub(crate) fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command
        .args(["--default-signal=INT,QUIT", env!("CARGO_BIN_EXE_tsumuji")])
        .args(args)
        .stdin(Stdio::null());
    command
}

/// Waits for the end of a process; `false`: it hangs, or works for ever.
fn ends(pid: u32) -> bool {
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw).unwrap();
    let end = match pidfd_open(id, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return true, // it is gone
        end => end.unwrap(),
    };
    let patience = Timespec::try_from(PATIENCE).unwrap();
    loop {
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&patience)) {
            Err(Errno::INTR) => {}
            ended => return ended.unwrap() == 1,
        }
    }
}

/// Waits for the end of a started program; kills it with all it started, and fails the test, when it hangs.
pub(crate) fn finish(mut child: Child) -> Output {
    let began = Instant::now();
    let out = follow(child.stdout.take());
    let err = follow(child.stderr.take());
    let has_ended = ends(child.id());
    let (mut alive, mut family) = (String::new(), Vec::new());
    if !has_ended {
        describe(child.id(), &mut alive, &mut family);
        child.kill().unwrap();
        for pid in family.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL); // it may have ended
        }
    }
    let status = child.wait().unwrap();
    // A process that left the family may still hold the pipes.
    let until = (began + PATIENCE).max(Instant::now() + LAST_WORDS);
    let ((stdout, out_ended), (stderr, err_ended)) = (said(&out, until), said(&err, until));
    let told = String::from_utf8_lossy(&stderr);
    assert!(has_ended, "the program hangs: {alive}; it said: {told}");
    assert!(
        out_ended && err_ended,
        "a process that the program started keeps its output open; it said: {told}"
    );
    Output {
        status,
        stdout,
        stderr,
    }
}

/// Reads an output to its end, on a thread of its own.
fn follow(source: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (parts, read) = channel();
    std::thread::spawn(move || {
        let Some(mut source) = source else { return };
        let mut part = [0; 4096];
        loop {
            match source.read(&mut part) {
                Ok(0) => return,
                Ok(length) => {
                    if parts.send(part[..length].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("an output of a program: {error}"),
            }
        }
    });
    read
}

/// What [`follow`] reads until then, and whether that was all.
fn said(parts: &Receiver<Vec<u8>>, until: Instant) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    loop {
        match parts.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(part) => bytes.extend(part),
            Err(end) => return (bytes, end == RecvTimeoutError::Disconnected),
        }
    }
}

/// What a process that hangs and those that it started are doing: a line for each of their threads. `family`: those that it started.
fn describe(pid: u32, lines: &mut String, family: &mut Vec<i32>) {
    let read = |path: &Path| std::fs::read(path).unwrap_or_default();
    let text = |path: &Path| String::from_utf8_lossy(&read(path)).replace('\0', " ");
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let _ = write!(lines, "\n  {pid}: {}", text(&folder.join("cmdline")));
    let Ok(threads) = folder.join("task").read_dir() else {
        return;
    };
    let mut children = String::new();
    for thread in threads.flatten().map(|thread| thread.path()) {
        // State, and time taken as itself and in the kernel, behind a name that may hold anything.
        let stat = text(&thread.join("stat"));
        let fields: Vec<&str> = (stat.rsplit(')').next().unwrap_or_default())
            .split_whitespace()
            .collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or("?");
        let _ = write!(
            lines,
            "\n    {}: {} user {} system {} in {} {}",
            text(&thread.join("comm")).trim(),
            field(0),
            field(11),
            field(12),
            text(&thread.join("wchan")),
            text(&thread.join("syscall")).trim(),
        );
        children += &text(&thread.join("children"));
    }
    for child in children.split_whitespace() {
        if let Ok(child) = child.parse() {
            family.push(child);
            describe(child.unsigned_abs(), lines, family);
        }
    }
}

/// Crawls for far longer than any test waits: only a death or an interruption ends it.
pub(crate) const ENDLESS: [&str; 9] = [
    "solve",
    "--generate",
    "poisson2d:200",
    "--inner",
    "sweep",
    "--tol",
    "1e-13",
    "--max-laps",
    "100000000",
];

/// Starts the program with both outputs captured.
pub(crate) fn start<S: AsRef<OsStr>>(args: &[S]) -> Child {
    captured(&mut command(args))
}

fn captured(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs any program to its end, as [`finish`] does.
pub(crate) fn run(command: &mut Command) -> Output {
    finish(captured(command))
}

/// Runs the program to its end.
pub(crate) fn tsumuji<S: AsRef<OsStr>>(args: &[S]) -> Output {
    finish(start(args))
}

/// Runs the program with `--json`: exit code, and the one object on its standard output.
pub(crate) fn json(args: &[&str]) -> (i32, Value) {
    let output = tsumuji(&[args, &["--json"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!(
            "{args:?}: standard output is not one JSON object ({error}): {text:?}; it said {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    (output.status.code().unwrap_or(-1), value)
}

/// Exit code 2, one line on standard error that contains every one of `words`, nothing on standard output.
pub(crate) fn assert_refused(args: &[&str], words: &[&str]) {
    let output = tsumuji(args);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {complaint}");
    assert!(
        output.stdout.is_empty(),
        "{args:?} wrote to standard output"
    );
    assert!(
        complaint.starts_with("tsumuji: ") && complaint.trim_end().lines().count() == 1,
        "{args:?}: not one line: {complaint}"
    );
    for word in words {
        assert!(
            complaint.contains(word),
            "{args:?}: no '{word}' in: {complaint}"
        );
    }
}

/// Writes a file into a folder and returns its path as text.
pub(crate) fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A NumPy file of 64-bit floats.
pub(crate) fn npy(shape: &str, values: &[f64]) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
    while !(10 + header.len() + 1).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    values
        .iter()
        .for_each(|value| bytes.extend(value.to_le_bytes()));
    bytes
}

/// The values of a NumPy file of 64-bit floats.
pub(crate) fn read_npy(path: &Path) -> Vec<f64> {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(&bytes[..6], b"\x93NUMPY");
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[10 + header..]
        .chunks_exact(8)
        .map(|chunk| f64::from_le_bytes(chunk.try_into().unwrap()))
        .collect()
}

/// The values of a Matrix Market vector (array format).
pub(crate) fn read_mtx_vector(path: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('%'));
    let sizes = lines.next().unwrap();
    let values: Vec<f64> = lines.map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(
        sizes.split_whitespace().next().unwrap(),
        values.len().to_string()
    );
    values
}

/// A tridiagonal Matrix Market matrix: 4 on the diagonal, −1 beside it.
pub(crate) fn tridiagonal(n: usize) -> String {
    let mut lines = Vec::new();
    for row in 1..=n {
        lines.push(format!("{row} {row} 4.0"));
        if row > 1 {
            lines.push(format!("{row} {} -1.0", row - 1));
        }
        if row < n {
            lines.push(format!("{row} {} -1.0", row + 1));
        }
    }
    format!(
        "%%MatrixMarket matrix coordinate real general\n{n} {n} {}\n{}\n",
        lines.len(),
        lines.join("\n")
    )
}

/// Largest absolute difference of two vectors of one length.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

/// What a program printed.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Sends a process a signal: `-INT`, `-KILL`.
pub(crate) fn signal(name: &str, pid: u32) {
    let mut kill = Command::new("kill");
    assert!(
        kill.args([name, &pid.to_string()])
            .status()
            .expect("kill (package procps)")
            .success()
    );
}

/// Whether it is a worker of `tsumuji solve`.
pub(crate) fn is_worker(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(1) == Some(b"worker")
}

/// Ticks of processor time that a process took, user and system; none of one that ended.
fn ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Waits until these processes are well into their work, as their processor time tells: starting takes a few hundredths of a second,
/// so after ten times that any moment is a fair one, however busy the machine is.
pub(crate) fn wait_until_at_work(pids: &[u32]) {
    const TICKS: u64 = 30; // of 10 ms
    let begun = Instant::now();
    while !pids
        .iter()
        .all(|&pid| ticks(pid).is_some_and(|ticks| ticks >= TICKS))
    {
        assert!(begun.elapsed() < PATIENCE, "some of {pids:?} do not work");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the process has done some work from now on, as its processor time tells.
pub(crate) fn wait_until_worked_on(pid: u32) {
    const TICKS: u64 = 20; // of 10 ms
    let (begun, before) = (Instant::now(), ticks(pid).unwrap_or(0));
    while ticks(pid).is_none_or(|ticks| ticks < before + TICKS) {
        assert!(begun.elapsed() < PATIENCE, "{pid} does not work");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until whoever started the process has taken note of its end.
pub(crate) fn wait_until_reaped(pid: u32) {
    let begun = Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(
            begun.elapsed() < PATIENCE,
            "nobody notices the end of {pid}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until none of these processes runs. The bound only turns a hang into a failure.
pub(crate) fn wait_until_gone(pids: &[u32]) {
    for &pid in pids {
        assert!(ends(pid), "process {pid} still runs");
    }
}

/// Process ids whose parent is `pid`.
pub(crate) fn children_of(pid: u32) -> Vec<u32> {
    let parent_of = |entry: &Path| -> Option<u32> {
        let stat = std::fs::read_to_string(entry.join("stat")).ok()?;
        // The name in parentheses may hold anything: fields are counted from behind it.
        let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        (state != "Z").then_some(parent)
    };
    let entries = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()));
    entries
        .filter_map(|path| Some((path.file_name()?.to_str()?.parse::<u32>().ok()?, path)))
        .filter(|(_, path)| parent_of(path) == Some(pid))
        .map(|(child, _)| child)
        .collect()
}

/// Whether it is the shell that starts what ends a launch's leftovers, and is gone in a moment; or a child of `parent` that is not yet what it will be, or just
/// becomes it, or has ended: then it has no words.
fn is_passing(pid: u32, parent: u32) -> bool {
    let words = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let own = words(pid);
    own.is_empty() || own.starts_with(b"sh\0-c\0\nexec 3<&0\n") || own == words(parent)
}

/// Waits until `pid` has `count` children.
pub(crate) fn wait_for_children(pid: u32, count: usize) -> Vec<u32> {
    let start = Instant::now();
    loop {
        let mut children = children_of(pid);
        children.retain(|child| !is_passing(*child, pid));
        if children.len() >= count {
            return children;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "only {} of {count} processes were started",
            children.len()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that `pid`, those that it started and those that they did have written.
fn written(pid: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let own = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    let own: u64 = own.and_then(|count| count.parse().ok()).unwrap_or(0);
    own + children_of(pid).into_iter().map(written).sum::<u64>()
}

/// Waits until `pid` and what it started have written more than a pipe holds, and write no more: nobody reads.
pub(crate) fn wait_until_stuck(pid: u32) {
    const PIPE_BYTES: u64 = 64 << 10;
    const CHECKS: u32 = 20; // that see the same: a busy machine lets a program write now and then
    let begun = Instant::now();
    let (mut before, mut same) = (0, 0);
    while same < CHECKS {
        assert!(begun.elapsed() < PATIENCE, "{pid} writes on and on");
        std::thread::sleep(Duration::from_millis(10));
        let now = written(pid);
        same = if now == before && now > PIPE_BYTES {
            same + 1
        } else {
            0
        };
        before = now;
    }
}

/// Fails the test if any of the processes still runs, or if something of ours lies in /dev/shm.
pub(crate) fn assert_nothing_left(pids: &[u32]) {
    for &pid in pids {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&command).contains("tsumuji"),
            "process {pid} still runs"
        );
    }
    for entry in std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!name.contains("tsumuji"), "/dev/shm/{name} was left behind");
    }
}

/// Debian's Python, if it has SciPy. Where `TSUMUJI_REQUIRE=scipy` is set (as `make test` does) it must.
pub(crate) fn scipy() -> Option<PathBuf> {
    let python = std::env::var_os("TSUMUJI_PYTHON")
        .map_or_else(|| PathBuf::from("/usr/bin/python3"), PathBuf::from);
    let works = Command::new(&python)
        .args(["-c", "import scipy.sparse.linalg"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    assert!(
        works || std::env::var("TSUMUJI_REQUIRE").is_err(),
        "{} has no SciPy: apt-get install python3-scipy",
        python.display()
    );
    works.then_some(python)
}

/// A testbed of so many hosts, which is removed when dropped. Where the rights are missing there is none, and the test's output says so.
pub(crate) fn testbed(test: &str, hosts: u16) -> Option<Testbed> {
    if let Err(error) = tsumuji_testbed::check_rights() {
        skipped(test, &error.to_string());
        return None;
    }
    // Tests run side by side: each has a testbed of its own.
    let name = format!("t{}-{test}", std::process::id());
    let spec = Spec::new(hosts).named(name.parse().expect("a testbed's name"));
    Some(Testbed::up(&spec).expect("a testbed"))
}

/// The processes in a host of a testbed.
pub(crate) fn pids_in(host: &Host) -> Vec<u32> {
    let mut command = Command::new("ip");
    let listed = command.args(["netns", "pids", host.netns()]).output();
    let lines = text(&listed.unwrap().stdout);
    lines.lines().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits until no process is left in a host of a testbed. The bound only turns a hang into a failure.
pub(crate) fn wait_until_deserted(host: &Host) {
    let begun = Instant::now();
    loop {
        let pids = pids_in(host);
        if pids.is_empty() {
            return;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{} keeps {pids:?}",
            host.netns()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Says in the test's output that something could not be checked here.
pub(crate) fn skipped(name: &str, reason: &str) {
    println!("SKIPPED {name}: {reason}");
}
