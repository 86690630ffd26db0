//! What the kernel's routes tell of the way to an address. Nothing is sent for that: to connect a datagram socket only chooses a route.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// A datagram socket that sends to `addr`, and hears from there only.
pub(crate) fn socket_towards(addr: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match addr {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(addr)?;
    Ok(socket)
}

/// The address of this host from which it sends to `addr`.
pub(crate) fn ip_towards(addr: SocketAddr) -> io::Result<IpAddr> {
    Ok(socket_towards(addr)?.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The own address is one that the other can answer.
    #[test]
    fn own_address_is_routed() {
        for loopback in ["127.0.0.1:9", "[::1]:9"] {
            let addr: SocketAddr = loopback.parse().expect("an address");
            match ip_towards(addr) {
                Ok(own) => assert_eq!(own, addr.ip()),
                Err(error) => assert!(addr.is_ipv6(), "{addr}: {error}"), // a host without IPv6
            }
        }
    }
}
