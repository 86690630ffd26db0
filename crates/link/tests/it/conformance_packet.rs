//! The conformance suite on AF_PACKET over veth, two nodes on a pair and more on a bridge: MTU 1500, 9000 and 65,535, a small ring, on
//! macvlan interfaces, impaired. Needs root, or `unshare -Urn`; without, each test says so and tests nothing.

use crate::{common, conformance_tests};

use crate::segment::{self, Segment, lacking};
use tsumuji_link::packet::{Packet, PacketConfig};

/// Links on `nodes` interfaces of a network that only this thread sees.
fn open(nodes: usize, mtu: u32, config: PacketConfig) -> Vec<Packet> {
    let segment = Segment::new(nodes, mtu);
    let links = segment
        .interfaces()
        .map(|interface| Packet::open(&interface, config).expect("open"));
    links.collect()
}

mod ethernet {
    use super::*;
    conformance_tests!(skip if lacking(); |nodes| open(nodes, 1500, PacketConfig::default()));
}

mod jumbo {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| open(nodes, 9000, PacketConfig::default()));
}

/// The largest frames that a virtual cable takes.
mod superframes {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| open(nodes, 65_535, PacketConfig::default()));
}

mod small_ring {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        let config = PacketConfig {
            frame_bytes: Some(1000),
            buffer_bytes: Some(600_000),
            ..PacketConfig::default()
        };
        open(nodes, 1500, config)
    });
}

/// What the refused second claimant of an interface is told to make.
mod macvlan {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        segment::macvlans(nodes);
        let links = (0..nodes)
            .map(|node| Packet::open(&format!("v{node}"), PacketConfig::default()).expect("open"));
        links.collect::<Vec<_>>()
    });
}

mod late {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        common::late(open(nodes, 1500, PacketConfig::default()))
    });
}

mod checked {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        common::checked(open(nodes, 1500, PacketConfig::default()))
    });
}

mod damaged {
    use super::*;
    conformance_tests!(skip if lacking(); |nodes| {
        common::damaged(open(nodes, 1500, PacketConfig::default()))
    }; damage_is_found);
}
