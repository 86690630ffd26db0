//! What the tests share: a cluster of endpoints in the threads of this process, and data that tells ranks and places apart.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::time::Duration;

use tsumuji_collective::table::{Operation, Rule};
use tsumuji_collective::{Algorithm, Collectives, Table};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{AnyLink, Endpoint, ImpairConfig, Link, LinkAddr, Membership, NodeId, Options};

/// Only turns a hang into a failure; nothing is measured by it.
pub(crate) const LONG: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Shm,
    Udp,
    /// With this percentage of received frames dropped.
    LossyUdp(u32),
    LossyShm(u32),
}

/// All endpoints of a small cluster in this process.
pub(crate) fn cluster(over: Over, nodes: u16, options: &Options) -> Vec<Endpoint<AnyLink>> {
    let loss = match over {
        Over::Shm | Over::Udp => None,
        Over::LossyUdp(percent) | Over::LossyShm(percent) => Some(f64::from(percent) / 100.0),
    };
    let (bases, memberships): (Vec<Base>, Vec<Membership>) = match over {
        Over::Shm | Over::LossyShm(_) => {
            let job =
                ShmJob::create(nodes.into(), ShmConfig::for_nodes(nodes.into())).expect("job");
            let base = |id| Base::Shm(Shm::attach(&job, id).expect("attach"));
            (0..nodes)
                .map(|id| (base(id), Membership::local(NodeId(id), nodes)))
                .unzip()
        }
        Over::Udp | Over::LossyUdp(_) => {
            let addr = "127.0.0.1:0".parse().expect("addr");
            let bind = |_| Udp::bind(addr, UdpConfig::default()).expect("bind");
            let links: Vec<Udp> = (0..nodes).map(bind).collect();
            let inet = |link: &Udp| match link.local_addr() {
                LinkAddr::Inet(addr) => addr,
                other => panic!("a UDP link has the address {other:?}"),
            };
            let addrs: Vec<SocketAddr> = links.iter().map(inet).collect();
            (0..nodes)
                .zip(links)
                .map(|(id, link)| (Base::Udp(link), Membership::inet(NodeId(id), &addrs)))
                .unzip()
        }
    };
    let open = |((base, membership), seed): ((Base, Membership), u64)| {
        let impair = loss.map(|loss| ImpairConfig {
            loss,
            seed,
            ..ImpairConfig::default()
        });
        let link = AnyLink::open(base, impair, None).expect("link");
        Endpoint::new(link, membership, options.clone()).expect("endpoint")
    };
    bases
        .into_iter()
        .zip(memberships)
        .zip(11..)
        .map(open)
        .collect()
}

/// One member as a test's body gets it.
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint<AnyLink>,
    pub(crate) collectives: Collectives,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// Runs `body` on every member of a cluster, each in a thread; a panic of one is the test's.
pub(crate) fn on_all(
    over: Over,
    nodes: u16,
    options: &Options,
    table: &Table,
    body: impl Fn(&mut Member) + Sync,
) {
    let endpoints = cluster(over, nodes, options);
    std::thread::scope(|scope| {
        for mut endpoint in endpoints {
            let body = &body;
            scope.spawn(move || {
                let collectives = Collectives::with_table(&mut endpoint, table.clone());
                let mut member = Member {
                    rank: endpoint.me().0.into(),
                    size: nodes.into(),
                    endpoint,
                    collectives,
                };
                body(&mut member);
                member.endpoint.close(LONG);
            });
        }
    });
}

/// One algorithm for everything that it can do.
pub(crate) fn only(operation: Operation, algorithm: Algorithm) -> Table {
    Table {
        rules: vec![Rule {
            operation,
            link: None,
            nodes_up_to: None,
            bytes_up_to: None,
            algorithm,
        }],
    }
}

/// Element `place` of what `rank` gives in a round.
pub(crate) fn value(rank: usize, place: usize, round: usize) -> u64 {
    let mixed = (rank as u64 + 1) * 1_000_003 + place as u64 * 7_919 + round as u64 * 104_729;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn values(rank: usize, count: usize, round: usize) -> Vec<u64> {
    (0..count).map(|place| value(rank, place, round)).collect()
}
