//! What the tests share: pairs of endpoints over each link, and links whose sending can be meddled with.
#![allow(dead_code, reason = "each test program uses its own part")]

pub(crate) mod hosts;
pub(crate) mod meddled;
pub(crate) mod other_user;
pub(crate) mod promises;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use meddled::{Fate, Meddler};
use tsumuji_link::LinkError;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpBindError, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    ClusterFile, Endpoint, ImpairConfig, Link, LinkAddr, Membership, NodeId, Options, SealMode,
    Security, open_in_cluster,
};
use tsumuji_seal::ClusterKey;

/// Only turns a hang into a failure; nothing is measured by it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The links every message test runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Shm,
    Udp,
    /// UDP with this percentage of received frames dropped.
    LossyUdp(u32),
    LossyShm(u32),
    /// Shared memory with this percentage of received frames overtaken by later ones.
    OvertakenShm(u32),
    /// UDP whose frames are sealed with a key of the test.
    SealedUdp(SealMode),
    /// Hosts of so many nodes each: shared memory within, UDP between.
    Hosts(u16),
    /// The same with this percentage of the frames between hosts dropped.
    LossyHosts(u16, u32),
    /// The same with as many more overtaken by later ones.
    RoughHosts(u16, u32),
}

pub(crate) const PLAIN: [Over; 2] = [Over::Shm, Over::Udp];
pub(crate) const ALL: [Over; 4] = [Over::Shm, Over::Udp, Over::LossyUdp(20), Over::LossyShm(20)];

/// All endpoints of a small cluster in this process.
pub(crate) fn cluster(over: Over, nodes: u16, options: &Options) -> Vec<Endpoint> {
    let impair = match over {
        Over::Shm | Over::Udp | Over::SealedUdp(_) | Over::Hosts(_) => None,
        Over::LossyUdp(percent) | Over::LossyShm(percent) | Over::LossyHosts(_, percent) => {
            Some(ImpairConfig {
                loss: f64::from(percent) / 100.0,
                ..ImpairConfig::default()
            })
        }
        Over::OvertakenShm(percent) => Some(ImpairConfig {
            reorder: f64::from(percent) / 100.0,
            ..ImpairConfig::default()
        }),
        Over::RoughHosts(_, percent) => Some(ImpairConfig {
            loss: f64::from(percent) / 100.0,
            reorder: f64::from(percent) / 100.0,
            ..ImpairConfig::default()
        }),
    };
    if let Over::Hosts(each) | Over::LossyHosts(each, _) | Over::RoughHosts(each, _) = over {
        return on_hosts(nodes, each, options, impair);
    }
    let (bases, memberships): (Vec<Base>, Vec<Membership>) = match over {
        Over::Shm | Over::LossyShm(_) | Over::OvertakenShm(_) => {
            let job =
                ShmJob::create(nodes.into(), ShmConfig::for_nodes(nodes.into())).expect("job");
            let base = |id| Base::Shm(Shm::attach(&job, id).expect("attach"));
            (0..nodes)
                .map(|id| (base(id), Membership::local(NodeId(id), nodes)))
                .unzip()
        }
        Over::Udp | Over::LossyUdp(_) | Over::SealedUdp(_) => {
            let links: Vec<Udp> = (0..nodes).map(|_| udp()).collect();
            let addrs: Vec<SocketAddr> = links.iter().map(inet).collect();
            (0..nodes)
                .zip(links)
                .map(|(id, link)| (Base::Udp(link), Membership::inet(NodeId(id), &addrs)))
                .unzip()
        }
        Over::Hosts(_) | Over::LossyHosts(..) | Over::RoughHosts(..) => {
            unreachable!("made above")
        }
    };
    let key = TestKey::new();
    let security = match over {
        Over::SealedUdp(mode) => key.sealed(mode),
        _ => Security::Open,
    };
    let seeds = 11..;
    bases
        .into_iter()
        .zip(memberships)
        .zip(seeds)
        .map(|((base, membership), seed)| {
            let impair = impair.map(|config| ImpairConfig { seed, ..config });
            let link = security.open(base, impair, None).expect("key");
            Endpoint::new(link, membership, options.clone()).expect("endpoint")
        })
        .collect()
}

/// Nodes of hosts with `each` nodes, whose threads run here, as a cluster file describes them.
fn on_hosts(
    nodes: u16,
    each: u16,
    options: &Options,
    impair: Option<ImpairConfig>,
) -> Vec<Endpoint> {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    let (serial, pid) = (SERIAL.fetch_add(1, Ordering::Relaxed), std::process::id());
    // An address of loopback for each process, ports for each of its clusters.
    let (high, low) = (1 + (pid >> 16) % 99, (pid >> 8) & 255);
    let addr = |node: u16| {
        let port = 10_000 + serial % 3_000 * 16 + u32::from(node);
        format!("127.{high}.{low}.{}:{port}", 1 + (pid & 127))
    };
    let node = |id: u16| {
        let host = id / each;
        format!(
            "[[node]]\nid = {id}\nhost = \"pc{host}\"\naddr = \"udp:{}\"\n",
            addr(id)
        )
    };
    let path = std::path::Path::new("test.toml");
    let file = ClusterFile::parse(&(0..nodes).map(node).collect::<String>(), path).expect("sound");
    let options = Options {
        security: Security::Open,
        ..options.clone()
    };
    (0..nodes)
        .map(|id| {
            let impair = impair.map(|config| ImpairConfig {
                seed: 11 + u64::from(id),
                ..config
            });
            open_in_cluster(&file, path, NodeId(id), options.clone(), impair).expect("endpoint")
        })
        .collect()
}

/// A key file that goes away with the test.
pub(crate) struct TestKey(PathBuf);

impl TestKey {
    pub(crate) fn new() -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("tsumuji-test-{}-{serial}.key", std::process::id());
        let path = std::env::temp_dir().join(name);
        let key = ClusterKey::generate().expect("randomness");
        key.write_new(&path).expect("key file");
        Self(path)
    }

    pub(crate) fn sealed(&self, mode: SealMode) -> Security {
        Security::Sealed {
            key_file: self.0.clone(),
            mode,
        }
    }
}

impl Drop for TestKey {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn pair(over: Over, options: &Options) -> (Endpoint, Endpoint) {
    let mut both = cluster(over, 2, options).into_iter();
    (both.next().expect("two"), both.next().expect("two"))
}

pub(crate) fn udp() -> Udp {
    Udp::bind("127.0.0.1:0".parse().expect("addr"), UdpConfig::default()).expect("bind")
}

/// On an address that had a socket of this process until now. A child that another thread is
/// starting has a copy of that, until it runs its program; the bound only turns a hang into a failure.
pub(crate) fn udp_again(addr: SocketAddr) -> Udp {
    let start = Instant::now();
    loop {
        match Udp::bind(addr, UdpConfig::default()) {
            Err(UdpBindError::InUse { .. }) if start.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            link => return link.expect("the address is free again"),
        }
    }
}

pub(crate) fn inet(link: &Udp) -> SocketAddr {
    match link.local_addr() {
        LinkAddr::Inet(addr) => addr,
        other => panic!("a UDP link has the address {other:?}"),
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; bytes];
    Rng::with_seed(seed).fill(&mut out);
    out
}

/// Once it is set nothing leaves any more: the process seems to have died without a word.
pub(crate) struct Cut(pub(crate) Arc<AtomicBool>);

impl Meddler for Cut {
    fn decide(&mut self, _frames: usize) -> Result<Fate, LinkError> {
        Ok(if self.0.load(Ordering::Relaxed) {
            Fate::Lost
        } else {
            Fate::Sent
        })
    }
}
