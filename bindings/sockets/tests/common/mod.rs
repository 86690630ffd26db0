//! What the tests share: the library, programs with and without it, and limits of time.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

#[path = "../../../../crates/link/tests/common/ports.rs"]
mod ports;

/// No program of a test runs longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// What carries the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Kernel,
    Carried,
}

pub(crate) use Way::{Carried, Kernel};

/// The library of this build: cargo leaves it beside the tests' folder.
pub(crate) fn library() -> PathBuf {
    static BUILT: Once = Once::new();
    // No test links it, so `cargo test` does not build it, or leaves one of other sources there.
    BUILT.call_once(|| {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "tsumuji-sockets"])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "cargo build");
    });
    let own = std::env::current_exe().expect("own path");
    let folder = own.parent().expect("a folder");
    let library = folder.join("../libtsumuji_sockets.so");
    library.canonicalize().expect("the library was built")
}

/// Says that a test cannot run for want of programs; where TSUMUJI_REQUIRE has the word `sockets`, that is a failure.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIPPED {test}: {reason}");
    let required = std::env::var("TSUMUJI_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word == "sockets"),
        "TSUMUJI_REQUIRE=sockets, and {test} cannot run: {reason}"
    );
}

/// Whether all of these programs are there; says so if not.
pub(crate) fn has(test: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs
        .iter()
        .filter(|program| which(program).is_none())
        .collect();
    if !missing.is_empty() {
        skip(
            test,
            &format!("no {missing:?}; scripts/setup.sh sockets installs them"),
        );
    }
    missing.is_empty()
}

pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let folders = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    std::env::split_paths(&folders)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}

/// A free port, for a server that cannot choose one itself.
pub(crate) fn free_port() -> u16 {
    ports::free_ports(1).start
}

/// A program, over that path. What the library explains goes to standard error.
pub(crate) fn program(path: Way, name: &str) -> Command {
    let mut command = Command::new(which(name).unwrap_or_else(|| name.into()));
    command.stdin(Stdio::null());
    with(&mut command, path);
    command
}

pub(crate) fn with(command: &mut Command, path: Way) {
    match path {
        Kernel => {
            command.env_remove("LD_PRELOAD");
        }
        Carried => {
            command
                .env("LD_PRELOAD", library())
                .env("TSUMUJI_SOCKETS_EXPLAIN", "json");
        }
    }
}

/// Runs to the end, within the limit; input is what the program reads.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Output {
    // A group of its own: what it starts ends with it at the limit, or would keep the pipes open.
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("piped");
    let id = child.id();
    let (told, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = stdin.write_all(input); // it may read nothing
        });
        scope.spawn(move || {
            if ended.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill")
                    .args(["-KILL", "--", &format!("-{id}")])
                    .status();
            }
        });
        let output = child.wait_with_output().expect("output");
        drop(told);
        output
    })
}

/// Runs to the end, and it must succeed.
pub(crate) fn succeed(command: &mut Command, input: &[u8]) -> Output {
    let output = run(command, input);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}\n{}",
        output.status,
        short(&output.stdout),
        short(&output.stderr)
    );
    output
}

/// The end of what a program has said.
pub(crate) fn short(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(1500);
    String::from_utf8_lossy(&bytes[from..]).into_owned()
}

/// Sends a signal to a process that a test has started.
pub(crate) fn kill(id: u32, signal: &str) {
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(id.to_string())
        .stderr(Stdio::null())
        .status();
}

/// A program that runs until the test is over.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    signal: &'static str,
}

impl Server {
    /// Starts it; what it says goes to a file in `folder`.
    pub(crate) fn start(command: Command, folder: &Path) -> Self {
        Self::started(command, folder, None)
    }

    /// The same, but what it prints goes to the file `output`, where nothing that the library explains stands between.
    pub(crate) fn start_apart(command: Command, folder: &Path) -> Self {
        let output = File::create(folder.join("output")).expect("a file");
        Self::started(command, folder, Some(output))
    }

    fn started(mut command: Command, folder: &Path, output: Option<File>) -> Self {
        let log = folder.join("server.log");
        let file = File::create(&log).expect("a log");
        let output = output.unwrap_or_else(|| file.try_clone().expect("a log"));
        let child = command
            .stdout(output)
            .stderr(file)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self {
            child,
            log,
            signal: "TERM",
        }
    }

    pub(crate) fn ends_by(mut self, signal: &'static str) -> Self {
        self.signal = signal;
        self
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until something listens at the port. The kernel is asked, so that the server sees no connection of ours.
    pub(crate) fn wait_for(self, port: u16) -> Self {
        let until = Instant::now() + LIMIT;
        let wanted = format!(":{port:04X} 00000000:0000 0A");
        loop {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
            if table.contains(&wanted) {
                return self;
            }
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            assert!(Instant::now() < until, "nothing listens at {port}: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends it, and returns what it said.
    pub(crate) fn end(mut self) -> String {
        self.stop();
        let said = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&said).into_owned()
    }

    fn stop(&mut self) {
        kill(self.child.id(), self.signal);
        let until = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Connections that were carried, of what the library has explained.
pub(crate) fn carried(log: &[u8]) -> usize {
    let text = String::from_utf8_lossy(log);
    text.matches(r#""event":"carries""#).count()
}

/// Bytes that look random and are the same each time.
pub(crate) fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9abc_def1u64;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

/// A C program of the tests, built.
pub(crate) fn build(test: &str, name: &str, sources: &[&str]) -> Option<PathBuf> {
    if !has(test, &["gcc"]) {
        return None;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let sources = sources.iter().map(|source| folder.join(source));
    let mut command = Command::new("gcc");
    command
        .args([
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-stringop-overflow",
            "-o",
        ])
        .arg(&program)
        .args(sources)
        .arg("-lpthread");
    succeed(&mut command, b"");
    Some(program)
}
