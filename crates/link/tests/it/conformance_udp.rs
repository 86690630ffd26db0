//! The conformance suite on UDP over the loopback interface: both families, large and small frames, with and without offload, with and without a multicast group.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::common::in_group;
use crate::{common, conformance_tests};
use tsumuji_link::udp::{Udp, UdpConfig};

fn sockets(count: usize, addr: SocketAddr, config: UdpConfig) -> Vec<Udp> {
    (0..count)
        .map(|_| Udp::bind(addr, config).expect("bind"))
        .collect()
}

mod loopback {
    use super::*;
    conformance_tests!(|nodes| {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        sockets(nodes, addr, UdpConfig::default())
    });
}

mod ethernet_sized {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = UdpConfig {
            frame_bytes: Some(1472),
            ..UdpConfig::default()
        };
        sockets(nodes, addr, config)
    });
}

mod without_offload {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = UdpConfig {
            frame_bytes: Some(1472),
            offload: false,
            ..UdpConfig::default()
        };
        sockets(nodes, addr, config)
    });
}

mod multicast {
    use super::*;
    conformance_tests!(|nodes| in_group(nodes, UdpConfig::default()));
}

mod multicast_ethernet_sized {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let config = UdpConfig {
            frame_bytes: Some(1472),
            ..UdpConfig::default()
        };
        in_group(nodes, config)
    });
}

mod multicast_late {
    use super::*;
    conformance_tests!(variant; |nodes| common::late(in_group(nodes, UdpConfig::default())));
}

mod multicast_checked {
    use super::*;
    conformance_tests!(variant; |nodes| common::checked(in_group(nodes, UdpConfig::default())));
}

mod ipv6 {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        // A machine without IPv6 can only repeat what it has.
        let addr = match std::net::UdpSocket::bind(v6) {
            Ok(_) => v6,
            Err(_) => v4,
        };
        sockets(nodes, addr, UdpConfig::default())
    });
}

mod checked {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        common::checked(sockets(nodes, addr, UdpConfig::default()))
    });
}

mod damaged {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        common::damaged(sockets(nodes, addr, UdpConfig::default()))
    }; damage_is_found);
}
