//! The IP addresses of this host.

use std::net::IpAddr;

use crate::message::ADDRESSES_MAX;

/// As the addresses of streams have it: IPv4 mapped into IPv6.
pub(crate) fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The addresses by which other hosts reach this one.
pub(crate) fn own_addresses() -> Vec<[u8; 16]> {
    let interfaces = nix::ifaddrs::getifaddrs();
    let all = interfaces.into_iter().flatten().filter_map(|interface| {
        let address = interface.address?;
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(four), _) => IpAddr::V4(four.ip()),
            (_, Some(six)) => IpAddr::V6(six.ip()),
            _ => return None,
        };
        let is_local = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        (!ip.is_loopback() && !is_local(&ip)).then_some(octets(ip))
    });
    let mut all: Vec<[u8; 16]> = all.take(ADDRESSES_MAX).collect();
    all.sort_unstable();
    all.dedup();
    all
}
