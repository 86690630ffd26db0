//! The conformance suite on wrapped links: nothing impaired, late and out of order, limited, captured, and all at once.

use std::net::{Ipv4Addr, SocketAddr};

use crate::{common, conformance_tests};
use tsumuji_link::Paired;
use tsumuji_link::capture::Capture;
use tsumuji_link::impair::{Impair, ImpairConfig};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};

fn job(nodes: usize) -> Vec<Shm> {
    let fd = ShmJob::create(nodes, ShmConfig::for_nodes(nodes)).expect("create");
    (0..nodes as u16)
        .map(|node| Shm::attach(&fd, node).expect("attach"))
        .collect()
}

fn sockets(count: usize) -> Vec<Udp> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    (0..count)
        .map(|_| Udp::bind(addr, UdpConfig::default()).expect("bind"))
        .collect()
}

mod transparent {
    use super::*;
    conformance_tests!(|nodes| {
        let links = job(nodes).into_iter();
        let links = links.map(|link| Impair::new(link, ImpairConfig::default()));
        links.collect::<Result<Vec<_>, _>>().expect("impair")
    });
}

mod late_shm {
    use super::*;
    conformance_tests!(|nodes| common::late(job(nodes)));
}

mod late_udp {
    use super::*;
    conformance_tests!(|nodes| common::late(sockets(nodes)));
}

mod captured {
    use super::*;
    conformance_tests!(|nodes| {
        let links = common::late(sockets(nodes)).into_iter();
        let captured = links.map(|link| Capture::new(link, std::io::sink()));
        captured.collect::<Vec<_>>()
    });
}

/// Shared memory and loopback sockets as one link, without processes of this host among the peers.
mod paired_beyond {
    use super::*;
    conformance_tests!(|nodes| {
        let network = sockets(nodes).into_iter();
        let paired = network.map(|udp| Paired::new(job(2).remove(0), udp));
        paired.collect::<Result<Vec<_>, _>>().expect("epoll")
    });
}

/// The same, with all peers on this host.
mod paired_within {
    use super::*;
    conformance_tests!(|nodes| {
        let pairs = job(nodes).into_iter().zip(sockets(nodes));
        let paired = pairs.map(|(shm, udp)| Paired::new(shm, udp).map(Paired::known_locally));
        paired.collect::<Result<Vec<_>, _>>().expect("epoll")
    });
}

/// And beside a network that is late and damages frames.
mod paired_checked {
    use super::*;
    conformance_tests!(|nodes| {
        let pairs = job(nodes).into_iter().zip(common::late(sockets(nodes)));
        let paired = pairs.map(|(shm, udp)| Paired::new(shm, udp));
        paired.collect::<Result<Vec<_>, _>>().expect("epoll")
    });
}
