//! Contenders of a comparison and the places they run in: ours over a link, and the peers in the same places.
//!
//! On one host ours is measured from this process; between hosts of a testbed by `tsumuji bench … --hosts`, started for each measurement, because its
//! first node must be in its own host. Peers run in the same places: MPI over its own shared memory beside our shared memory, over TCP beside
//! everything else.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::tuning::TUNE_VARIABLE;
use tsumuji_node::{Congestion, LinkSpec, Security};
use tsumuji_testbed::{Rate, Spec, Testbed, UpError};

use crate::compare::Contender;
use crate::exchange::{self, Kind};
use crate::limits::place::{Place, of_testbed};
use crate::limits::{cacheline, copy, tcp, udp};
use crate::machine;
use crate::ops::{Job, Op, Sample};
use crate::peers::mpi::{Library, Mpi, Transport};
use crate::peers::zeromq::ZeroMq;
use crate::{alone, group, peers, report};

/// Our benchmark aborts by itself when nothing moves; a longer one is ended here.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Bytes that two cores pass to each other at once.
const CACHE_LINE_BYTES: usize = 64;

/// A peer that we are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The same exchange without any protocol: copies through shared memory, the raw link alone, or bare UDP.
    Bare,
    /// MPICH.
    Mpich,
    /// Open MPI.
    OpenMpi,
    /// The kernel's TCP, used directly, spinning; in bursts once with a call for each message, and once with batched calls.
    Tcp,
    /// The kernel's UDP, used directly, spinning, without reliability.
    Udp,
    /// ZeroMQ over TCP, blocking.
    ZeroMq,
}

impl Peer {
    /// Its name without a version, for when it is not installed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Mpich => "MPICH",
            Self::OpenMpi => "Open MPI",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::ZeroMq => "ZeroMQ",
        }
    }
}

/// Options of our measurements.
#[derive(Debug, Clone)]
pub struct Ours {
    /// The link.
    pub link: LinkSpec,
    /// The `tsumuji` program, which is also started as the other side.
    pub program: PathBuf,
    /// Nodes in other hosts; this process is in the first node's host.
    pub hosts: Option<Hosts>,
    /// Nodes in hosts of this file; this process is in none of them.
    pub hosts_file: Option<PathBuf>,
    /// The program on those hosts; `None`: the same path.
    pub program_there: Option<PathBuf>,
    /// Nodes on each host of that file; `None`: as it says.
    pub slots: Option<u16>,
    /// Whether frames are sealed.
    pub security: Security,
    /// Exchanges of two: both spin, each on a core of its own.
    pub spins: bool,
    /// Exchanges of two: the node at the other end; `None`: node 1. Not in hosts of a file.
    pub receiver: Option<u16>,
    /// Congestion control; `None`: the default.
    pub congestion: Option<Congestion>,
    /// Operations among several: nodes send only as fast as receivers answer, which the paper Suci calls slow write.
    pub slow_write: bool,
    /// A table of algorithms for collectives, and its name in tables. In hosts of a file only.
    pub tune: Option<(PathBuf, &'static str)>,
}

impl Ours {
    /// Two or more processes of this host.
    pub fn here(link: LinkSpec, program: PathBuf) -> Self {
        Self {
            link,
            program,
            hosts: None,
            hosts_file: None,
            program_there: None,
            slots: None,
            security: Security::Unstated,
            spins: true,
            receiver: None,
            congestion: None,
            slow_write: false,
            tune: None,
        }
    }

    /// Processes in the hosts of a testbed, which are namespaces of this machine: nothing needs sealing.
    pub fn between(link: LinkSpec, program: PathBuf, hosts_file: PathBuf) -> Self {
        Self {
            hosts_file: Some(hosts_file),
            security: Security::Open,
            ..Self::here(link, program)
        }
    }

    /// The name in tables.
    pub fn name(&self) -> String {
        let mut name = format!("tsumuji {}", self.link);
        if let Some(congestion) = self.congestion {
            name += &format!(" {congestion}");
        }
        if self.slow_write {
            name += " slow write";
        }
        if let Some((_, tune)) = &self.tune {
            name += &format!(" {tune}");
        }
        name
    }

    /// Measures once.
    pub fn measure(&self, job: &Job) -> Result<Sample, String> {
        if let Some(file) = &self.hosts_file {
            return self.measure_there(file, job);
        }
        let pair = |kind| {
            let mut plan = exchange::Plan::new(kind, job.size);
            plan.iterations = job.iterations;
            plan.spin &= self.spins;
            plan.receiver = self.receiver.unwrap_or(plan.receiver);
            let mut spec = exchange::spec(self.link, self.hosts.as_ref(), &self.program);
            spec.congestion = self.congestion;
            exchange::measure(&plan, spec, &self.security)
                .map(|measured| measured.sample())
                .map_err(|error| error.to_string())
        };
        match job.op {
            Op::Pingpong => pair(Kind::Pingpong),
            Op::Burst => pair(Kind::Burst),
            _ => {
                let plan = group::Plan {
                    slow_write: self.slow_write,
                    ..group::Plan::of(job)
                };
                let mut spec = group::spec(&plan, self.link, self.hosts.as_ref(), &self.program);
                spec.congestion = self.congestion;
                group::measure(&plan, spec, &self.security).map_err(|error| error.to_string())
            }
        }
    }

    /// Processor time of the busier of two processes that wait for so many seconds, as a share of a core. In hosts of a file only.
    pub fn idle_share(&self, seconds: u64) -> Result<f64, String> {
        let file = self.hosts_file.as_deref();
        let file = file.ok_or("waiting is measured between hosts")?;
        let report = self.run_there(file, &["idle", "--seconds", &seconds.to_string()])?;
        let sides = report["cpu_share"].as_array();
        let shares = sides.into_iter().flatten().filter_map(Value::as_f64);
        let most = shares.reduce(f64::max);
        most.ok_or_else(|| "no `cpu_share` in the report".to_owned())
    }

    fn measure_there(&self, file: &Path, job: &Job) -> Result<Sample, String> {
        let (size, iterations) = (job.size.to_string(), job.iterations.to_string());
        let mut words = vec![job.op.name(), "--sizes", &size, "--rounds", "1"];
        words.extend(["--iterations", &iterations]);
        let nodes = job.nodes.to_string();
        if !job.op.is_pair() {
            words.extend(["--nodes", &nodes]);
            words.extend(self.slow_write.then_some("--slow-write"));
        }
        let congestion = self.congestion.map(|congestion| congestion.to_string());
        if let Some(congestion) = &congestion {
            words.extend(["--congestion", congestion]);
        }
        let report = self.run_there(file, &words)?;
        serde_json::from_value(report["results"][0].clone())
            .map_err(|_| "no sample in the report".to_owned())
    }

    /// The JSON output of `tsumuji bench`, run as its own process, because its first node must be in its host.
    fn run_there(&self, file: &Path, words: &[&str]) -> Result<Value, String> {
        let mut command = Command::new(&self.program);
        command
            .arg("bench")
            .args(words)
            .arg("--hosts")
            .arg(file)
            .args(["--link", &self.link.to_string()])
            .arg("--json");
        if let Some((table, _)) = &self.tune {
            command.env(TUNE_VARIABLE, table);
        }
        if let Some(program) = &self.program_there {
            command.arg("--program").arg(program);
        }
        if let Some(slots) = self.slots {
            command.args(["--slots", &slots.to_string()]);
        }
        match &self.security {
            Security::Unstated => {}
            Security::Open => {
                command.arg("--open");
            }
            Security::Sealed { key_file, mode } => {
                command.arg("--key").arg(key_file);
                command.args(["--seal", &mode.to_string()]);
            }
        }
        let left = peers::run_within(&mut command, PATIENCE, "tsumuji")
            .map_err(|error| error.to_string())?;
        match left.status {
            None => Err(left.failure("tsumuji").to_string()),
            Some(_) => report::read(left.stdout.as_bytes(), left.stderr.as_bytes()),
        }
    }
}

/// A testbed with a unique name.
pub fn testbed(hosts: usize, rate: Option<Rate>, mtu_bytes: u32) -> Result<Testbed, UpError> {
    let name = format!("bench{}", std::process::id()).parse()?;
    let hosts = u16::try_from(hosts).unwrap_or(u16::MAX); // too many are refused there
    let mut spec = Spec::new(hosts).named(name);
    (spec.mtu_bytes, spec.rate) = (mtu_bytes, rate);
    Testbed::up(&spec)
}

/// The places of a comparison.
#[derive(Debug, Clone)]
pub struct Ground {
    /// Hosts of a testbed, at least as many as nodes; empty: this host.
    pub places: Vec<Place>,
    /// Why peers cannot run there, if so.
    pub closed: Option<String>,
}

impl Ground {
    /// This host.
    pub const HERE: Self = Self {
        places: Vec::new(),
        closed: None,
    };

    /// The hosts of a testbed.
    pub fn of(testbed: &Testbed) -> Self {
        Self {
            places: of_testbed(testbed),
            closed: None,
        }
    }
}

/// Ours first, then the peers, which run in the places of the first of ours.
pub fn contenders<'a>(
    ours: &'a [Ours],
    peers: &[Peer],
    ground: &'a Ground,
    op: Op,
) -> Vec<Contender<'a>> {
    let link = ours.first().map_or(LinkSpec::Shm, |ours| ours.link);
    let own = ours
        .iter()
        .map(|ours| Contender::new(ours.name(), |job| ours.measure(job)));
    let others = peers.iter().flat_map(|&peer| {
        let batched = peer == Peer::Tcp && op == Op::Burst;
        let batched = batched.then(|| tcp_batched(ground));
        std::iter::once(contender(peer, link, ground, op)).chain(batched)
    });
    own.chain(others).collect()
}

/// One peer beside ours, whose link is `link`.
pub fn contender(peer: Peer, link: LinkSpec, ground: &Ground, op: Op) -> Contender<'_> {
    if let Some(reason) = &ground.closed {
        return Contender::absent(peer.name(), reason);
    }
    if peer == Peer::Bare && alone::is_raw(&link) {
        return link_alone(link, ground, op);
    }
    let is_here = ground.places.is_empty();
    match peer {
        Peer::Bare if link == LinkSpec::Shm && op.is_pair() => {
            Contender::new("bare copy", bare_copy)
        }
        Peer::Bare | Peer::Udp => {
            let name = if peer == Peer::Bare {
                "bare UDP"
            } else {
                "UDP"
            };
            if !matches!(op, Op::Pingpong | Op::Burst | Op::Gather) {
                return Contender::absent(name, no_such(op));
            }
            Contender::new(name, |job| bare_udp(&places(ground, job), job))
        }
        Peer::Tcp => {
            if !matches!(op, Op::Pingpong | Op::Burst | Op::Gather) {
                return Contender::absent("TCP", no_such(op));
            }
            Contender::new(tcp_name(), |job| bare_tcp(&places(ground, job), job))
        }
        Peer::ZeroMq if !ZeroMq::has(op) => Contender::absent("ZeroMQ", no_such(op)),
        Peer::ZeroMq => match ZeroMq::build() {
            Ok(zeromq) => Contender::new(zeromq.version().to_owned(), move |job| {
                let measured = zeromq.measure(&places(ground, job), job);
                measured.map_err(|error| error.to_string())
            }),
            Err(error) => Contender::absent("ZeroMQ", error.to_string()),
        },
        Peer::Mpich | Peer::OpenMpi => {
            let library = if peer == Peer::Mpich {
                Library::Mpich
            } else {
                Library::OpenMpi
            };
            let by_memory = is_here && link == LinkSpec::Shm;
            match Mpi::build(library) {
                Ok(mpi) => {
                    let by = if by_memory { "shm" } else { "TCP" };
                    let name = format!("{} by {by}", mpi.version());
                    Contender::new(name, move |job| {
                        let transport = match (is_here, by_memory) {
                            (false, _) => Transport::Hosts(&ground.places),
                            (true, true) => Transport::SharedMemory,
                            (true, false) => Transport::Tcp,
                        };
                        let measured = mpi.measure(transport, job);
                        measured.map_err(|error| error.to_string())
                    })
                }
                Err(error) => Contender::absent(peer.name(), error.to_string()),
            }
        }
    }
}

/// Bursts by TCP whose program joins small messages before it writes them, as ours joins those of a batch.
fn tcp_batched(ground: &Ground) -> Contender<'_> {
    let called = |name: &str| format!("{name}, batched calls");
    match &ground.closed {
        Some(reason) => Contender::absent(called(Peer::Tcp.name()), reason),
        None => Contender::new(called(&tcp_name()), |job| {
            let places = places(ground, job);
            bare(tcp::pingpong_between, tcp::gather_batched, &places, job)
        }),
    }
}

/// TCP and its congestion control, the kernel's default.
fn tcp_name() -> String {
    let control = machine::line_of("/proc/sys/net/ipv4/tcp_congestion_control");
    format!("TCP ({})", control.unwrap_or_default())
}

/// The link itself without engine: the limit of bursts and ping-pongs over raw Ethernet.
pub fn link_alone(link: LinkSpec, ground: &Ground, op: Op) -> Contender<'_> {
    let name = format!("{link} alone");
    if !op.is_pair() {
        return Contender::absent(name, no_such(op));
    }
    Contender::new(name, move |job| {
        alone::measure(link, &places(ground, job), job)
    })
}

fn no_such(op: Op) -> String {
    format!("has no {op}; pingpong, burst and gather are measured")
}

/// As many places as nodes.
fn places(ground: &Ground, job: &Job) -> Vec<Place> {
    if ground.places.is_empty() {
        let [here, _] = Place::LOOPBACK;
        return vec![here; job.nodes];
    }
    ground.places.iter().take(job.nodes).cloned().collect()
}

/// One cache line that two cores pass to each other: no message through shared memory takes less.
pub fn cache_line() -> Contender<'static> {
    Contender::new("bare cache line", |job| {
        if job.size > CACHE_LINE_BYTES {
            return Err(format!("a line holds {CACHE_LINE_BYTES} bytes"));
        }
        Ok(cacheline::pingpong(machine::two_cpus(), job.iterations))
    })
}

fn bare_copy(job: &Job) -> Result<Sample, String> {
    let cpus = machine::two_cpus();
    Ok(match job.op {
        Op::Pingpong => copy::pingpong(cpus, job.size, job.iterations),
        _ => copy::burst(cpus, job.size, job.iterations),
    })
}

fn bare_udp(places: &[Place], job: &Job) -> Result<Sample, String> {
    bare(udp::pingpong_between, udp::gather_between, places, job)
}

fn bare_tcp(places: &[Place], job: &Job) -> Result<Sample, String> {
    bare(tcp::pingpong_between, tcp::gather_between, places, job)
}

/// A ping-pong, a gather, or a burst, which is a gather from one node: node 0 sends it.
fn bare<E: Display>(
    pingpong: impl FnOnce(&[Place; 2], Option<[usize; 2]>, usize, u64) -> Result<Sample, E>,
    gather: impl FnOnce(&[Place], usize, u64) -> Result<Sample, E>,
    places: &[Place],
    job: &Job,
) -> Result<Sample, String> {
    let measured = match (job.op, places) {
        (Op::Pingpong, [one, other]) => {
            let pair = [one.clone(), other.clone()];
            pingpong(&pair, machine::two_cpus(), job.size, job.iterations)
        }
        (Op::Burst, [one, other]) => {
            gather(&[other.clone(), one.clone()], job.size, job.iterations)
        }
        _ => gather(places, job.size, job.iterations),
    };
    measured.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare;

    /// Peers without the operation, and places that peers cannot run in, are reported before anything runs.
    #[test]
    fn absences_are_known_beforehand() {
        let ours = [Ours::here(LinkSpec::Shm, PathBuf::new())];
        let closed = Ground {
            places: Vec::new(),
            closed: Some("hosts elsewhere".to_owned()),
        };
        let names = |ground, op| {
            let all = contenders(&ours, &[Peer::Udp, Peer::ZeroMq, Peer::Tcp], ground, op);
            all.into_iter().map(|one| one.name).collect::<Vec<_>>()
        };
        let here = Ground::HERE;
        assert_eq!(
            names(&here, Op::Bcast),
            ["tsumuji shm", "UDP", "ZeroMQ", "TCP"]
        );
        assert_eq!(names(&closed, Op::Pingpong)[3], "TCP");
        assert_eq!(no_such(Op::Bcast).split(';').next(), Some("has no bcast"));
    }

    /// A burst beside TCP has it twice, once with batched calls, and both are measured.
    #[test]
    fn bursts_have_tcp_with_batched_calls() {
        let ours = [Ours::here(LinkSpec::Udp(None), PathBuf::new())];
        let ground = Ground::HERE;
        let mut all = contenders(&ours, &[Peer::Tcp], &ground, Op::Burst);
        assert_eq!(all[2].name, format!("{}, batched calls", all[1].name));
        assert!(all.len() == 3 && all[1].name.starts_with("TCP ("));
        let plan = compare::Plan {
            op: Op::Burst,
            nodes: 2,
            sizes: vec![64, 100_000],
            iterations: Some(200),
            bits_per_second: None,
            rounds: 2,
        };
        let beside = &mut all[1..];
        let found = compare::run(&plan, beside, machine::describe(), &mut |_: &str| {});
        let cells = found.results.iter().flat_map(|row| &row.contenders);
        assert!(cells.clone().count() == 4 && cells.clone().all(|cell| cell.numbers.is_some()));
        let pingpong = contenders(&ours, &[Peer::Tcp], &ground, Op::Pingpong);
        assert_eq!(pingpong.len(), 2);
    }

    /// Bare exchanges on this host give numbers for every operation they support.
    #[test]
    fn bare_exchanges() {
        for (op, nodes) in [(Op::Pingpong, 2), (Op::Burst, 2), (Op::Gather, 3)] {
            let job = Job {
                op,
                size: 500,
                iterations: 20,
                nodes,
            };
            let places = places(&Ground::HERE, &job);
            for sample in [
                bare_tcp(&places, &job).unwrap(),
                bare_udp(&places, &job).unwrap(),
            ] {
                assert!(sample.headline(&job) > 0.0, "{op}: {sample:?}");
            }
            if op.is_pair() {
                assert!(bare_copy(&job).unwrap().headline(&job) > 0.0);
            }
        }
    }
}
