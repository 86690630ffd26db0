//! Byte streams between unmodified programs: request and response, also with a connection for each, and one way, between a server and one or many clients. Kernel TCP within this host and
//! between hosts of a testbed, UNIX sockets, and TCP as the sockets layer carries it, with the same program and the same calls (the experiments of the
//! paper SDP).
//!
//! [`measure`] starts a server and its clients as processes (`ends`). `path` knows what carries the streams,
//! `clocks` reads the machine's idle clocks, [`Series`] measures several paths, sizes and numbers of clients in turn.
//!
//! Invariant: nobody sends before each client has a connection, and processor time is counted from there on.

mod clocks;
pub(crate) mod ends;
mod gateways;
mod multiplexed;
mod path;
mod series;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use serde::{Deserialize, Serialize};
use tsumuji_testbed::{Host, Testbed};

use crate::serve::Task;
use crate::stop;
use clocks::{Busy, Clocks};
use ends::{Found, Listen, Role};

use gateways::Gateways;
pub use path::Path;
pub use series::{Row, Series};

/// Largest message.
pub const BYTES_MAX: usize = 1 << 20;
/// Most clients.
pub const CLIENTS_MAX: usize = 64;
/// Sizes of messages by one client, if none are stated.
pub const SIZES: [usize; 5] = [1, 64, 1 << 10, 8 << 10, 64 << 10];
/// Sizes of messages by many clients, if none are stated.
pub const SIZES_OF_MANY: [usize; 3] = [32, 8 << 10, 64 << 10];
/// TCP's congestion control, if the kernel has it and nobody asks for another.
const USUAL_CONGESTION: &str = "cubic";
/// A wait for a process checks so often whether the user wants to stop.
const CHECK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// What goes through the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A message each way, one after the other.
    Requests,
    /// Messages one way, from the clients to the server.
    OneWay,
    /// A connection for each message that goes each way; the server closes it.
    Connections,
}

/// How a server serves its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Server {
    /// A thread for each, which waits in `read`.
    Threads,
    /// One thread for all, which waits in `epoll_wait`. Not for [`Shape::Connections`].
    Epoll,
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
    /// How they are served.
    pub server: Server,
    /// For how long.
    pub seconds: f64,
    /// Calls do not wait in the kernel: both ends ask again and again.
    pub spins: bool,
    /// Congestion control of TCP sockets; `None`: the kernel's own choice (see [`congestion`]).
    pub congestion: Option<String>,
}

impl Plan {
    /// Of one byte and one client over TCP; both ends wait in the kernel.
    pub fn of(shape: Shape, seconds: f64) -> Self {
        Self {
            shape,
            path: Path::Tcp,
            bytes: 1,
            clients: 1,
            server: Server::Threads,
            seconds,
            spins: false,
            congestion: None,
        }
    }
}

/// Result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Messages a second, of all clients: of requests, those answered; one way, those that have arrived.
    pub per_second: f64,
    /// Payload in both directions, in Mbit/s.
    pub mbits: f64,
    /// Half of a round trip, in microseconds: the median client's median; of connections the whole time from connecting to closing; 0 for one way.
    pub p50: f64,
    /// The worst client's 99 %.
    pub p99: f64,
    /// Processor time of all clients' processes, in percent of all CPUs.
    pub client_cpu: f64,
    /// The same of the server's process.
    pub server_cpu: f64,
    /// Of the whole machine by the kernel's idle clocks, in percent of all CPUs: both sides' processes, and what the kernel does beside them.
    pub machine_cpu: f64,
    /// Of these, in soft interrupts.
    pub softirq: f64,
    /// Processor time of both sides' processes for 1024 bytes of payload, in microseconds.
    pub us_per_kb: f64,
    /// Of the clients' processes alone.
    pub client_us_per_kb: f64,
    /// Of the whole machine, as `machine_cpu`.
    pub machine_us_per_kb: f64,
}

/// One of its numbers.
pub type Part = fn(&Measured) -> f64;

impl Measured {
    /// Its numbers, by their names in files and in `--json`.
    pub const PARTS: [(&str, Part); 11] = [
        ("per_second", |one| one.per_second),
        ("mbits", |one| one.mbits),
        ("p50_us", |one| one.p50),
        ("p99_us", |one| one.p99),
        ("client_cpu", |one| one.client_cpu),
        ("server_cpu", |one| one.server_cpu),
        ("machine_cpu", |one| one.machine_cpu),
        ("softirq", |one| one.softirq),
        ("us_per_kb", |one| one.us_per_kb),
        ("client_us_per_kb", |one| one.client_us_per_kb),
        ("machine_us_per_kb", |one| one.machine_us_per_kb),
    ];
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
    /// The user wants to stop.
    #[error("interrupted")]
    Stopped,
    /// A path between hosts, and no hosts.
    #[error("{0} is between two hosts of a testbed, and there is none")]
    NoHosts(&'static str),
    /// The kernel refuses this congestion control.
    #[error("--congestion {name}: the kernel does not take it here; it has: {available}")]
    Congestion {
        /// As it was asked for.
        name: String,
        /// Those that the kernel names.
        available: String,
    },
    /// The plan is none of ours.
    #[error("not a plan: {0}")]
    Plan(#[from] serde_json::Error),
}

/// A process of a measurement; it is ended if it is dropped.
struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
    begin: Option<ChildStdin>,
    what: &'static str,
}

impl Peer {
    fn start(
        (program, node): (&OsStr, &[OsString]),
        plan: &Plan,
        role: Role,
        host: Option<&Host>,
    ) -> Result<Self, StreamError> {
        let what = match &role {
            Role::Server(_) => "the server",
            Role::Client(_) => "a client",
        };
        let is_client = matches!(role, Role::Client(_));
        let words = plan.path.started(program, node, is_client);
        let task = Task::Stream(plan.clone(), role);
        let mut command = match host {
            Some(host) => host.command(&words[0]),
            None => Command::new(&words[0]),
        };
        let mut child = command
            .args(&words[1..])
            .arg(serde_json::to_string(&task)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().expect("it was piped");
        Ok(Self {
            begin: child.stdin.take(),
            out: BufReader::new(stdout),
            child,
            what,
        })
    }

    /// Its next line.
    fn line(&mut self) -> Result<String, StreamError> {
        while self.out.buffer().is_empty() {
            let mut out = [PollFd::new(self.out.get_ref(), PollFlags::IN)];
            match poll(&mut out, Some(&CHECK_EVERY)) {
                Ok(0) | Err(Errno::INTR) if stop::is_wanted() => return Err(StreamError::Stopped),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        let mut line = String::new();
        if self.out.read_line(&mut line)? == 0 {
            let ended = self.child.wait();
            return Err(StreamError::Ended {
                what: self.what,
                told: ended.map_or_else(|error| error.to_string(), |status| status.to_string()),
            });
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it has ended, unless something failed
        let _ = self.child.wait();
    }
}

/// The hosts of server and clients, if the path is between hosts.
fn places(path: Path, hosts: &[Host]) -> Result<[Option<&Host>; 2], StreamError> {
    match hosts {
        _ if !path.is_between_hosts() => Ok([None, None]),
        [server, clients, ..] => Ok([Some(server), Some(clients)]),
        _ => Err(StreamError::NoHosts(path.name())),
    }
}

/// Measures `plan`. `program`: `tsumuji`. `testbed`: for paths between hosts; the server is
/// in its first host, all clients are in the second.
pub fn measure(
    program: &OsStr,
    plan: &Plan,
    testbed: Option<&Testbed>,
) -> Result<Measured, StreamError> {
    let hosts = testbed.map_or(&[][..], Testbed::hosts);
    let [at_server, at_clients] = places(plan.path, hosts)?;
    let folder = tempfile::tempdir()?;
    let listen = match (plan.path, at_server) {
        (Path::Unix, _) => Listen::Unix(folder.path().join("socket")),
        (_, Some(host)) => Listen::Tcp(host.ip().into()),
        (_, None) => Listen::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    };
    let with_gateways = testbed.filter(|_| plan.path.has_gateways());
    let gateways = with_gateways
        .map(|testbed| Gateways::start(program, plan.path, testbed))
        .transpose()?;
    let node = |id| {
        let gateways = gateways.as_ref();
        gateways.map_or_else(Vec::new, |gateways| gateways.node(id))
    };
    let (server_node, client_node) = (node(0), node(1));
    let mut server = Peer::start(
        (program, &server_node),
        plan,
        Role::Server(listen),
        at_server,
    )?;
    let address = server.line()?;
    let mut clients = Vec::new();
    for _ in 0..plan.clients {
        let role = Role::Client(address.clone());
        let mut client = Peer::start((program, &client_node), plan, role, at_clients)?;
        client.line()?; // it is connected
        clients.push(client);
    }
    server.line()?; // it has accepted all
    let (before, began) = (Clocks::now(), Instant::now());
    // The server first, so that it counts all of its time.
    drop(server.begin.take());
    clients
        .iter_mut()
        .for_each(|client| drop(client.begin.take()));
    let mut found = Vec::new();
    for client in &mut clients {
        found.push(serde_json::from_str::<Found>(&client.line()?)?);
    }
    let served: Found = serde_json::from_str(&server.line()?)?;
    let busy = Clocks::now().since(&before);
    Ok(result(
        plan,
        &found,
        &served,
        busy,
        began.elapsed().as_secs_f64(),
    ))
}

/// `wall`: the seconds in which the machine was as `busy`.
fn result(plan: &Plan, found: &[Found], served: &Found, busy: Busy, wall: f64) -> Measured {
    let sending = found.iter().map(|one| one.seconds).sum::<f64>() / found.len() as f64;
    let (messages, seconds, ways) = match plan.shape {
        Shape::Requests | Shape::Connections => {
            (found.iter().map(|one| one.messages).sum(), sending, 2.0)
        }
        // What has arrived, and until the last of it: what clients have written may still be on its way when they end.
        Shape::OneWay => (served.messages, served.seconds.max(1e-6), 1.0),
    };
    let payload = messages as f64 * plan.bytes as f64 * ways;
    let clients_seconds: f64 = found.iter().map(|one| one.cpu_seconds).sum();
    let mut medians: Vec<f64> = found.iter().map(|one| one.p50).collect();
    medians.sort_by(f64::total_cmp);
    let of_all = |cpu_seconds: f64| 100.0 * cpu_seconds / (wall * busy.cpus);
    let per_kb = |cpu_seconds: f64| 1e6 * cpu_seconds / (payload / 1024.0);
    Measured {
        per_second: messages as f64 / seconds,
        mbits: payload * 8e-6 / seconds,
        p50: medians[medians.len() / 2],
        p99: found.iter().map(|one| one.p99).fold(0.0, f64::max),
        client_cpu: of_all(clients_seconds),
        server_cpu: of_all(served.cpu_seconds),
        machine_cpu: 100.0 * busy.share,
        softirq: 100.0 * busy.softirq,
        us_per_kb: per_kb(clients_seconds + served.cpu_seconds),
        client_us_per_kb: per_kb(clients_seconds),
        machine_us_per_kb: per_kb(busy.share * busy.cpus * wall),
    }
}

/// The congestion control of a measurement's TCP sockets: as asked, else cubic if the kernel has it, else the kernel's own choice. The answer is the one that
/// a socket says it has.
pub fn congestion(asked: Option<&str>) -> Result<String, StreamError> {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let set = set_tcp_congestion(&socket, asked.unwrap_or(USUAL_CONGESTION));
    if let (Some(name), Err(_)) = (asked, set) {
        let list = "/proc/sys/net/ipv4/tcp_available_congestion_control";
        let available = std::fs::read_to_string(list).unwrap_or_default();
        return Err(StreamError::Congestion {
            name: name.to_owned(),
            available: available.trim().replace(' ', ", "),
        });
    }
    let name = tcp_congestion(&socket).map_err(io::Error::from)?;
    Ok(name.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(shape: Shape) -> Plan {
        Plan {
            bytes: 1024,
            clients: 2,
            ..Plan::of(shape, 1.0)
        }
    }

    const BUSY: Busy = Busy {
        share: 0.5,
        softirq: 0.125,
        cpus: 4.0,
    };

    fn found(messages: u64, p50: f64) -> Found {
        Found {
            messages,
            seconds: 1.0,
            cpu_seconds: 0.5,
            p50,
            p99: 2.0 * p50,
        }
    }

    /// Requests count both ways, in the clients' time; percentages are of all CPUs; service demand is time by payload.
    #[test]
    fn requests_are_summed_up() {
        let clients = [found(1000, 3.0), found(3000, 5.0)];
        let served = Found {
            cpu_seconds: 1.0,
            ..Found::default()
        };
        let one = result(&plan(Shape::Requests), &clients, &served, BUSY, 1.0);
        assert_eq!((one.per_second, one.p50, one.p99), (4000.0, 5.0, 10.0));
        assert!((one.mbits - 8000.0 * 1024.0 * 8e-6).abs() < 1e-9);
        assert_eq!((one.client_cpu, one.server_cpu), (25.0, 25.0));
        assert_eq!((one.machine_cpu, one.softirq), (50.0, 12.5));
        assert!((one.us_per_kb - 2e6 / 8000.0).abs() < 1e-9, "{one:?}");
        assert!((one.client_us_per_kb - 1e6 / 8000.0).abs() < 1e-9);
        assert!((one.machine_us_per_kb - 2e6 / 8000.0).abs() < 1e-9);
    }

    /// A stream is as fast as its bytes arrive, not as they are written.
    #[test]
    fn streams_are_timed_where_they_arrive() {
        let served = Found {
            messages: 4000,
            seconds: 2.0,
            ..Found::default()
        };
        let clients = [found(2000, 0.0), found(2000, 0.0)];
        let one = result(&plan(Shape::OneWay), &clients, &served, BUSY, 2.0);
        assert_eq!(one.per_second, 2000.0);
        assert!((one.mbits - 2000.0 * 1024.0 * 8e-6).abs() < 1e-9);
    }

    /// A path between hosts needs two of them, and others do not look at them.
    #[test]
    fn hosts_are_asked_for() {
        assert!(matches!(places(Path::Tcp, &[]), Ok([None, None])));
        let error = places(Path::TcpNs, &[]).unwrap_err().to_string();
        assert!(error.starts_with("tcp-ns is between two hosts"), "{error}");
    }

    /// The congestion control is the one a socket has; one that the kernel has not is refused with the list of those it has.
    #[test]
    fn congestion_control_is_asked_of_a_socket() {
        let usual = congestion(None).unwrap();
        assert!(!usual.is_empty());
        assert_eq!(congestion(Some("reno")).unwrap(), "reno");
        let error = congestion(Some("no-such")).unwrap_err().to_string();
        assert!(
            error.contains("no-such") && error.contains("reno"),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1);
    }
}
