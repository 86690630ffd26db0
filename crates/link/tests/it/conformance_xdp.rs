//! The conformance suite on AF_XDP over veth, two nodes on a pair and more on a bridge: generic and native mode, MTU 1500 and
//! 9000, generic also 65,535, impaired. Needs root (or CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF in the first user namespace); without, each test says so and
//! tests nothing.

use crate::{common, conformance_tests};

use crate::segment::{self, Segment, lacking};
use tsumuji_link::xdp::{Xdp, XdpConfig, XdpMode};

/// Links on `nodes` interfaces of a network that only this thread sees.
fn open(nodes: usize, mtu: u32, config: XdpConfig) -> Vec<Xdp> {
    let segment = Segment::new(nodes, mtu);
    segment
        .interfaces()
        .map(|interface| {
            let link = Xdp::open(&interface, config).expect("open");
            assert_eq!(link.is_native(), config.mode == XdpMode::Native);
            link
        })
        .collect()
}

fn with_mode(mode: XdpMode) -> XdpConfig {
    XdpConfig {
        mode,
        ..XdpConfig::default()
    }
}

mod generic {
    use super::*;
    conformance_tests!(skip if lacking(); |nodes| open(nodes, 1500, with_mode(XdpMode::Generic)));
}

mod native {
    use super::*;
    conformance_tests!(skip if lacking(); |nodes| open(nodes, 1500, with_mode(XdpMode::Native)));
}

mod generic_jumbo {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| open(nodes, 9000, with_mode(XdpMode::Generic)));
}

mod native_jumbo {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| open(nodes, 9000, with_mode(XdpMode::Native)));
}

/// The largest frames that a virtual cable takes: 17 chunks to send, 18 to receive.
mod generic_superframes {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| open(nodes, 65_535, with_mode(XdpMode::Generic)));
}

mod small_rings {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        let config = XdpConfig {
            frame_bytes: Some(3998),
            ring_frames: Some(300),
            ..XdpConfig::default()
        };
        open(nodes, 4000, config)
    });
}

/// What a second process of a host takes; there is no native mode for it.
mod macvlan {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        segment::macvlans(nodes);
        let links = (0..nodes)
            .map(|node| Xdp::open(&format!("v{node}"), XdpConfig::default()).expect("open"));
        links.collect::<Vec<_>>()
    });
}

mod late {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        common::late(open(nodes, 1500, XdpConfig::default()))
    });
}

mod checked {
    use super::*;
    conformance_tests!(variant; skip if lacking(); |nodes| {
        common::checked(open(nodes, 9000, XdpConfig::default()))
    });
}

mod damaged {
    use super::*;
    conformance_tests!(skip if lacking(); |nodes| {
        common::damaged(open(nodes, 9000, XdpConfig::default()))
    }; damage_is_found);
}
