//! The two ends of a stream, as an ordinary program has them: a server with a thread for each client, or one for all (`multiplexed`), and clients with
//! one connection each.
//!
//! Runs in the processes that `measure` starts. Each tells on its standard output when it is ready, begins when its standard input is closed, and prints
//! what it found. What is sent is checked where it comes back.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_tcp_congestion;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::{BYTES_MAX, CLIENTS_MAX, Path, Plan, Server, Shape, StreamError, multiplexed};
use crate::machine;
use crate::stats::RoundTrips;

/// A stream is written in pieces of its size, and read by as much.
pub(super) const LEAST_READ: usize = 64 << 10;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Listen {
    /// A port of this address, chosen by the kernel.
    Tcp(IpAddr),
    /// A UNIX socket of this path.
    Unix(PathBuf),
}

/// A role in a plan, as its process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Role {
    Server(Listen),
    /// Where the server is.
    Client(String),
}

/// What an end found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) messages: u64,
    /// A client's time of sending; a server's from the first byte to the last.
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Half-round-trip times, or of connections whole ones: the median, and what one in a hundred exceeds, in microseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
}

/// A stream of either kind.
pub(super) trait Stream: Read + Write + Send + AsFd {
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

/// A TCP stream sends at once, under the plan's congestion control.
fn ready(stream: TcpStream, plan: &Plan) -> io::Result<Box<dyn Stream>> {
    stream.set_nodelay(true)?;
    if let Some(name) = &plan.congestion {
        set_tcp_congestion(&stream, name)?;
    }
    Ok(Box::new(stream))
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

/// Waits until the other end of standard input is closed: all may begin.
fn wait_to_begin() -> io::Result<()> {
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// A process of a measurement: server or client.
pub(crate) fn serve(plan: Plan, role: Role) -> Result<(), StreamError> {
    // A server waits for clients without end; it must not outlive the one who measures.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let plan = Plan {
        bytes: plan.bytes.clamp(1, BYTES_MAX),
        clients: plan.clients.clamp(1, CLIENTS_MAX),
        ..plan
    };
    let found = match role {
        Role::Server(listen) => server(&plan, &listen)?,
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

/// A listener of either kind.
enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Accepting {
    /// Listens, and tells where.
    fn at(listen: &Listen) -> io::Result<Self> {
        Ok(match listen {
            Listen::Unix(path) => {
                let listener = UnixListener::bind(path)?;
                tell(&path.display().to_string())?;
                Self::Unix(listener)
            }
            Listen::Tcp(ip) => {
                let listener = TcpListener::bind((*ip, 0))?;
                tell(&listener.local_addr()?.to_string())?;
                Self::Tcp(listener)
            }
        })
    }

    fn accept(&self, plan: &Plan) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(listener) => Box::new(listener.accept()?.0),
            Self::Tcp(listener) => ready(listener.accept()?.0, plan)?,
        })
    }
}

fn server(plan: &Plan, listen: &Listen) -> Result<Found, StreamError> {
    let accepting = &Accepting::at(listen)?;
    let mut streams = Vec::new();
    for _ in 0..plan.clients {
        streams.push(accepting.accept(plan)?);
    }
    tell("accepted")?;
    wait_to_begin()?;
    let (cpu, began) = (machine::process_cpu(), Instant::now());
    let served: Vec<io::Result<Served>> = if plan.server == Server::Epoll {
        vec![multiplexed::answer_all(plan, &mut streams, began)]
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (streams.iter_mut())
                .map(|stream| {
                    scope.spawn(move || match plan.shape {
                        Shape::Connections => answer_each(plan, accepting, began),
                        Shape::Requests | Shape::OneWay => answer(plan, stream.as_mut(), began),
                    })
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<Served>>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        })
    };
    let served = served.into_iter().collect::<io::Result<Vec<Served>>>()?;
    let first = served.iter().map(|one| one.first).min();
    let last = served.iter().map(|one| one.last).max();
    Ok(Found {
        messages: served.iter().map(|one| one.messages).sum(),
        seconds: (last.unwrap_or_default() - first.unwrap_or_default()).as_secs_f64(),
        cpu_seconds: (machine::process_cpu() - cpu).as_secs_f64(),
        ..Found::default()
    })
}

/// What came from one client: messages, and when the first byte and the last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served {
    pub(super) messages: u64,
    pub(super) first: Duration,
    pub(super) last: Duration,
}

impl Served {
    /// What has come by now, if the first byte came `first` after the beginning.
    pub(super) fn until_now(messages: u64, first: Option<Duration>, began: Instant) -> Self {
        let last = began.elapsed();
        Self {
            messages,
            first: first.unwrap_or(last),
            last,
        }
    }
}

/// Serves one client to its end.
fn answer(plan: &Plan, stream: &mut dyn Stream, began: Instant) -> io::Result<Served> {
    if plan.spins {
        stream.set_spinning()?;
    }
    let mut first = None;
    let messages = match plan.shape {
        Shape::Requests | Shape::Connections => {
            let mut message = vec![0; plan.bytes];
            let mut messages = 0;
            while read_exact(stream, &mut message)? {
                first.get_or_insert_with(|| began.elapsed());
                write_all(stream, &message)?;
                messages += 1;
            }
            messages
        }
        Shape::OneWay => {
            let mut buffer = vec![0; plan.bytes.max(LEAST_READ)];
            let mut bytes = 0u64;
            loop {
                match again(|| stream.read(&mut buffer))? {
                    0 => break bytes / plan.bytes as u64,
                    count => bytes += count as u64,
                }
                first.get_or_insert_with(|| began.elapsed());
            }
        }
    };
    Ok(Served::until_now(messages, first, began))
}

/// Answers one message of each connection, and closes it, until one brings none: each client ends with such a one.
fn answer_each(plan: &Plan, accepting: &Accepting, began: Instant) -> io::Result<Served> {
    let mut message = vec![0; plan.bytes];
    let (mut messages, mut first) = (0, None);
    loop {
        let mut stream = accepting.accept(plan)?;
        if plan.spins {
            stream.set_spinning()?;
        }
        if !read_exact(stream.as_mut(), &mut message)? {
            break;
        }
        first.get_or_insert_with(|| began.elapsed());
        write_all(stream.as_mut(), &message)?;
        messages += 1;
    }
    Ok(Served::until_now(messages, first, began))
}

fn connect(plan: &Plan, address: &str) -> io::Result<Box<dyn Stream>> {
    Ok(match plan.path {
        Path::Unix => Box::new(UnixStream::connect(address)?),
        _ => ready(TcpStream::connect(address)?, plan)?,
    })
}

/// A connection for one message: it is answered, and the server closes.
fn ask_once(plan: &Plan, address: &str, sent: &[u8], answer: &mut [u8]) -> io::Result<()> {
    let mut stream = connect(plan, address)?;
    if plan.spins {
        stream.set_spinning()?;
    }
    write_all(stream.as_mut(), sent)?;
    let is_answered = read_exact(stream.as_mut(), answer)?;
    if !is_answered || read_exact(stream.as_mut(), &mut [0])? {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

fn client(plan: &Plan, address: &str) -> Result<Found, StreamError> {
    let mut stream = connect(plan, address)?;
    tell("connected")?;
    wait_to_begin()?;
    if plan.spins {
        stream.set_spinning()?;
    }
    let (cpu, began) = (machine::process_cpu(), Instant::now());
    let until = Duration::from_secs_f64(plan.seconds.clamp(0.01, 600.0));
    let mut message: Vec<u8> = (0..plan.bytes).map(|place| place as u8).collect();
    let sent = message.clone();
    let mut times = RoundTrips::default();
    let mut messages = 0;
    let mut now = Duration::ZERO;
    while now < until {
        match plan.shape {
            Shape::Connections => ask_once(plan, address, &sent, &mut message)?,
            Shape::OneWay => write_all(stream.as_mut(), &sent)?,
            Shape::Requests => {
                write_all(stream.as_mut(), &sent)?;
                if !read_exact(stream.as_mut(), &mut message)? {
                    return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
                }
            }
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
    if plan.shape == Shape::Connections {
        drop(connect(plan, address)?); // so that a thread of the server ends
    }
    let half = match plan.shape {
        Shape::Requests | Shape::Connections => times.half(),
        Shape::OneWay => RoundTrips::default().half(), // the time of a call says nothing of arrival
    };
    let halves = if plan.shape == Shape::Connections {
        2.0
    } else {
        1.0
    };
    Ok(Found {
        messages,
        seconds: now.as_secs_f64(),
        cpu_seconds: (machine::process_cpu() - cpu).as_secs_f64(),
        p50: halves * half.p50,
        p99: halves * half.p99,
    })
}
