//! The conformance suite on wrapped links: nothing impaired, late and out of order, limited, captured, and all at once.

mod common;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tsumuji_link::Link;
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

fn impaired<L: Link>(links: Vec<L>, config: ImpairConfig) -> Vec<Impair<L>> {
    links
        .into_iter()
        .map(|link| Impair::new(link, config).expect("impair"))
        .collect()
}

const LATE: ImpairConfig = ImpairConfig {
    loss: 0.0,
    duplicate: 0.0,
    reorder: 0.1,
    corrupt: 0.0,
    delay: Duration::from_micros(20),
    jitter: Duration::from_micros(30),
    rate_bytes_per_second: None,
    queue_frames: 4096,
    seed: 3,
};

mod transparent {
    use super::*;
    conformance_tests!(|nodes| impaired(job(nodes), ImpairConfig::default()));
}

mod late_shm {
    use super::*;
    conformance_tests!(|nodes| impaired(job(nodes), LATE));
}

mod late_udp {
    use super::*;
    conformance_tests!(|nodes| impaired(sockets(nodes), LATE));
}

mod captured {
    use super::*;
    conformance_tests!(|nodes| {
        let links = impaired(sockets(nodes), LATE);
        let captured = links
            .into_iter()
            .map(|link| Capture::new(link, std::io::sink()));
        captured.collect::<Vec<_>>()
    });
}
