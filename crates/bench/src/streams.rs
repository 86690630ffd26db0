//! Byte streams between unmodified programs: request and response, and one way, between a server and one or many clients. Kernel TCP, UNIX sockets, and TCP
//! as the sockets layer carries it, with the same program and the same calls (the experiments of the paper SDP).
//!
//! [`measure`] starts a server and its clients as processes of the hidden command, which calls [`serve`]. Each tells on its standard output when it is
//! ready, is told to begin by a byte on its standard input, and prints what it found.
//!
//! Invariant: nobody sends before all connections are made, and processor time is counted from there on.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::stats::RoundTrips;

/// Largest message.
pub const BYTES_MAX: usize = 1 << 20;
/// Most clients.
pub const CLIENTS_MAX: usize = 64;
/// A stream is written in pieces of its size, and read by as much.
const LEAST_READ: usize = 64 << 10;

/// What goes through the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A message each way, one after the other.
    Requests,
    /// Messages one way.
    OneWay,
}

/// What carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Path {
    /// TCP over the loopback interface.
    Tcp,
    /// A UNIX socket.
    Unix,
    /// The same as `Tcp`, both programs started by `tsumuji run`.
    Carried,
}

impl Path {
    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Carried => "shm",
        }
    }
}

/// A measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What goes through.
    pub shape: Shape,
    /// What carries it.
    pub path: Path,
    /// Of one message.
    pub bytes: usize,
    /// Each is a process with one connection.
    pub clients: usize,
    /// For how long.
    pub seconds: f64,
    /// Calls do not wait in the kernel: both ends ask again and again.
    pub spins: bool,
}

/// A role in a plan, as its process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Role {
    /// Of a UNIX socket: its path.
    Server(Option<PathBuf>),
    /// Where the server is.
    Client(String),
}

/// What a client found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Found {
    messages: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// Half-round-trip times: the median, and what one in a hundred exceeds, in microseconds.
    p50: f64,
    p99: f64,
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// Messages a second: of requests, those answered, of all clients.
    pub per_second: f64,
    /// Payload in both directions, in Mbit/s.
    pub mbits: f64,
    /// Half of a round trip, in microseconds: the median client's median; 0 for one way.
    pub p50: f64,
    /// The worst client's 99 %.
    pub p99: f64,
    /// Processor time of all clients and of the server, in percent of one CPU.
    pub client_cpu: f64,
    /// The same of the server.
    pub server_cpu: f64,
    /// Of the whole machine by the kernel's idle clocks, in percent of all CPUs.
    pub machine_cpu: f64,
    /// Of these, in soft interrupts.
    pub softirq: f64,
    /// Processor time of both sides for 1024 bytes of payload, in microseconds.
    pub us_per_kb: f64,
}

/// Why a measurement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A process could not be started, or its pipes failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A process ended before it had told what it found.
    #[error("{what} ended early: {told}")]
    Ended {
        /// Which.
        what: &'static str,
        /// Its last words.
        told: String,
    },
    /// The plan is none of ours.
    #[error("not a plan: {0}")]
    Plan(#[from] serde_json::Error),
}

/// The machine's clocks: all, idle, soft interrupts.
fn clocks() -> [f64; 3] {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|t| t.parse().ok())
        .collect();
    let at = |place: usize| ticks.get(place).copied().unwrap_or(0.0);
    [ticks.iter().sum(), at(3) + at(4), at(6)]
}

/// A process of a measurement; it is ended if it is dropped.
struct Peer {
    child: Child,
    lines: io::Lines<BufReader<std::process::ChildStdout>>,
    begin: Option<ChildStdin>,
    what: &'static str,
}

impl Peer {
    fn start(
        program: &[std::ffi::OsString],
        plan: &Plan,
        role: &Role,
    ) -> Result<Self, StreamError> {
        let what = match role {
            Role::Server(_) => "the server",
            Role::Client(_) => "a client",
        };
        let mut words = program.to_vec();
        if plan.path == Path::Carried {
            let own = program[0].clone();
            words = vec![own, "run".into(), "--".into()];
            words.extend_from_slice(program);
        }
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .arg(serde_json::to_string(&(plan, role))?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("it was piped");
        Ok(Self {
            begin: child.stdin.take(),
            lines: BufReader::new(stdout).lines(),
            child,
            what,
        })
    }

    fn line(&mut self) -> Result<String, StreamError> {
        match self.lines.next() {
            Some(line) => Ok(line?),
            None => Err(StreamError::Ended {
                what: self.what,
                told: self
                    .child
                    .wait()
                    .map_or_else(|error| error.to_string(), |status| status.to_string()),
            }),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended, unless something failed
        let _ = self.child.wait();
    }
}

/// Measures `plan`. `program`: the command that calls [`serve`] with the text that is added to it.
pub fn measure(program: &[std::ffi::OsString], plan: &Plan) -> Result<Measured, StreamError> {
    let folder = tempfile::tempdir()?;
    let socket = (plan.path == Path::Unix).then(|| folder.path().join("socket"));
    let mut server = Peer::start(program, plan, &Role::Server(socket))?;
    let address = server.line()?;
    let mut clients = Vec::new();
    for _ in 0..plan.clients {
        let mut client = Peer::start(program, plan, &Role::Client(address.clone()))?;
        client.line()?; // it is connected
        clients.push(client);
    }
    server.line()?; // it has accepted all
    let before = clocks();
    // The server first, so that it counts all of its time.
    drop(server.begin.take());
    clients
        .iter_mut()
        .for_each(|client| drop(client.begin.take()));
    let mut found = Vec::new();
    for client in &mut clients {
        found.push(serde_json::from_str::<Found>(&client.line()?)?);
    }
    let after = clocks();
    let served: Found = serde_json::from_str(&server.line()?)?;
    let messages = match plan.shape {
        Shape::Requests => found.iter().map(|one| one.messages).sum::<u64>(),
        // What has arrived.
        Shape::OneWay => served.messages,
    };
    let seconds = found.iter().map(|one| one.seconds).sum::<f64>() / found.len() as f64;
    let per_second = messages as f64 / seconds;
    let ways = match plan.shape {
        Shape::Requests => 2.0,
        Shape::OneWay => 1.0,
    };
    let payload = messages as f64 * plan.bytes as f64 * ways;
    let client_seconds: f64 = found.iter().map(|one| one.cpu_seconds).sum();
    let mut medians: Vec<f64> = found.iter().map(|one| one.p50).collect();
    medians.sort_by(f64::total_cmp);
    let all = (after[0] - before[0]).max(1.0);
    Ok(Measured {
        per_second,
        mbits: payload * 8e-6 / seconds,
        p50: medians[medians.len() / 2],
        p99: found.iter().map(|one| one.p99).fold(0.0, f64::max),
        client_cpu: 100.0 * client_seconds / seconds,
        server_cpu: 100.0 * served.cpu_seconds / seconds,
        machine_cpu: 100.0 * (1.0 - (after[1] - before[1]) / all),
        softirq: 100.0 * (after[2] - before[2]) / all,
        us_per_kb: 1e6 * (client_seconds + served.cpu_seconds) / (payload / 1024.0),
    })
}

/// A stream of either kind.
trait Stream: Read + Write + Send {
    fn set_spinning(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_spinning(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

impl Stream for UnixStream {
    fn set_spinning(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
}

/// Calls until it has something to say. Where calls wait in the kernel that is once.
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                std::hint::spin_loop();
            }
            result => return result,
        }
    }
}

fn write_all(stream: &mut dyn Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let taken = again(|| stream.write(bytes))?;
        bytes = &bytes[taken..];
    }
    Ok(())
}

/// False: the stream has ended.
fn read_exact(stream: &mut dyn Stream, bytes: &mut [u8]) -> io::Result<bool> {
    let mut at = 0;
    while at < bytes.len() {
        match again(|| stream.read(&mut bytes[at..]))? {
            0 => return Ok(false),
            count => at += count,
        }
    }
    Ok(true)
}

fn cpu_now() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

/// Waits until the other end of standard input is closed: all may begin.
fn wait_to_begin() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// A process of a measurement: server or client, as `text` says.
pub fn serve(text: &str) -> Result<(), StreamError> {
    let (plan, role): (Plan, Role) = serde_json::from_str(text)?;
    let plan = Plan {
        bytes: plan.bytes.clamp(1, BYTES_MAX),
        clients: plan.clients.clamp(1, CLIENTS_MAX),
        ..plan
    };
    let found = match role {
        Role::Server(path) => server(&plan, path)?,
        Role::Client(address) => client(&plan, &address)?,
    };
    tell(&serde_json::to_string(&found)?)?;
    Ok(())
}

fn tell(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn server(plan: &Plan, path: Option<PathBuf>) -> Result<Found, StreamError> {
    let mut streams: Vec<Box<dyn Stream>> = Vec::new();
    match path {
        Some(path) => {
            let listener = UnixListener::bind(&path)?;
            tell(&path.display().to_string())?;
            for _ in 0..plan.clients {
                streams.push(Box::new(listener.accept()?.0));
            }
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            tell(&listener.local_addr()?.to_string())?;
            for _ in 0..plan.clients {
                let stream = listener.accept()?.0;
                stream.set_nodelay(true)?;
                streams.push(Box::new(stream));
            }
        }
    }
    tell("accepted")?;
    wait_to_begin()?;
    let cpu = cpu_now();
    let served: Vec<io::Result<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (streams.iter_mut())
            .map(|stream| scope.spawn(move || answer(plan, stream.as_mut())))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    let messages = served.into_iter().sum::<io::Result<u64>>()?;
    Ok(Found {
        messages,
        cpu_seconds: cpu_now() - cpu,
        ..Found::default()
    })
}

/// Serves one client to its end; returns how many messages came.
fn answer(plan: &Plan, stream: &mut dyn Stream) -> io::Result<u64> {
    if plan.spins {
        stream.set_spinning()?;
    }
    match plan.shape {
        Shape::Requests => {
            let mut message = vec![0; plan.bytes];
            let mut messages = 0;
            while read_exact(stream, &mut message)? {
                write_all(stream, &message)?;
                messages += 1;
            }
            Ok(messages)
        }
        Shape::OneWay => {
            let mut buffer = vec![0; plan.bytes.max(LEAST_READ)];
            let mut bytes = 0u64;
            loop {
                match again(|| stream.read(&mut buffer))? {
                    0 => return Ok(bytes / plan.bytes as u64),
                    count => bytes += count as u64,
                }
            }
        }
    }
}

fn client(plan: &Plan, address: &str) -> Result<Found, StreamError> {
    let mut stream: Box<dyn Stream> = match plan.path {
        Path::Unix => Box::new(UnixStream::connect(address)?),
        Path::Tcp | Path::Carried => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    };
    tell("connected")?;
    wait_to_begin()?;
    if plan.spins {
        stream.set_spinning()?;
    }
    let (cpu, began) = (cpu_now(), Instant::now());
    let until = Duration::from_secs_f64(plan.seconds.clamp(0.01, 600.0));
    let mut message: Vec<u8> = (0..plan.bytes).map(|place| place as u8).collect();
    let sent = message.clone();
    let mut times = RoundTrips::default();
    let mut messages = 0;
    let mut now = Duration::ZERO;
    while now < until {
        write_all(stream.as_mut(), &sent)?;
        if plan.shape == Shape::Requests && !read_exact(stream.as_mut(), &mut message)? {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        let after = began.elapsed();
        times.record((after - now).as_nanos() as u64);
        (now, messages) = (after, messages + 1);
    }
    if message != sent {
        return Err(
            io::Error::new(ErrorKind::InvalidData, "an answer differs from its request").into(),
        );
    }
    drop(stream);
    let half = times.half();
    Ok(Found {
        messages,
        seconds: now.as_secs_f64(),
        cpu_seconds: cpu_now() - cpu,
        p50: if plan.shape == Shape::Requests {
            half.p50
        } else {
            0.0
        },
        p99: if plan.shape == Shape::Requests {
            half.p99
        } else {
            0.0
        },
    })
}

/// The congestion control of kernel TCP here.
pub fn congestion_control() -> String {
    let name = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}
