//! The conformance suite on UDP over the loopback interface: both families, large and small frames, with and without offload, with and without a multicast group.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::common::{in_group, sockets, sockets_with};
use crate::{common, conformance_tests};
use tsumuji_link::udp::{Udp, UdpConfig};

mod loopback {
    use super::*;
    conformance_tests!(sockets);
}

mod ethernet_sized {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let config = UdpConfig {
            frame_bytes: Some(1472),
            ..UdpConfig::default()
        };
        sockets_with(nodes, config)
    });
}

mod without_offload {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let config = UdpConfig {
            frame_bytes: Some(1472),
            offload: false,
            ..UdpConfig::default()
        };
        sockets_with(nodes, config)
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
        let bind = |_| Udp::bind(addr, UdpConfig::default()).expect("bind");
        (0..nodes).map(bind).collect::<Vec<_>>()
    });
}

mod checked {
    use super::*;
    conformance_tests!(variant; |nodes| common::checked(sockets(nodes)));
}

mod damaged {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| common::damaged(sockets(nodes)); damage_is_found);
}
