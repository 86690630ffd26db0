//! Clusters of endpoints in one process, over real links, as the tests of solvers and of learning take them.

use std::net::SocketAddr;

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{AnyLink, Endpoint, ImpairConfig, Link, LinkAddr, Membership, NodeId, Options};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Over {
    Shm,
    Udp,
}

/// Endpoints of all nodes, each to be driven by a thread of its own; each loses this fraction of what it receives.
pub(crate) fn cluster(over: Over, nodes: u16, loss: f64, options: &Options) -> Vec<Endpoint> {
    let (bases, memberships): (Vec<Base>, Vec<Membership>) = match over {
        Over::Shm => {
            let job = ShmJob::create(nodes.into(), ShmConfig::for_nodes(nodes.into())).unwrap();
            let base = |id| Base::Shm(Shm::attach(&job, id).unwrap());
            let member = |id| (base(id), Membership::local(NodeId(id), nodes));
            (0..nodes).map(member).unzip()
        }
        Over::Udp => {
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let links: Vec<Udp> = (0..nodes)
                .map(|_| Udp::bind(any, UdpConfig::default()).unwrap())
                .collect();
            let addr = |link: &Udp| match link.local_addr() {
                LinkAddr::Inet(addr) => addr,
                other => panic!("{other:?}"),
            };
            let addrs: Vec<SocketAddr> = links.iter().map(addr).collect();
            let member = |(id, link)| (Base::Udp(link), Membership::inet(NodeId(id), &addrs));
            (0..nodes).zip(links).map(member).unzip()
        }
    };
    let open = |(id, (base, membership)): (u64, (Base, Membership))| {
        let impair = ImpairConfig {
            loss,
            seed: 31 + id,
            ..ImpairConfig::default()
        };
        let link = AnyLink::open(base, (loss > 0.0).then_some(impair), None).unwrap();
        Endpoint::new(link, membership, options.clone()).unwrap()
    };
    (0..)
        .zip(bases.into_iter().zip(memberships))
        .map(open)
        .collect()
}
