//! `udp`: any IP network, one socket for all peers, no rights needed.
//!
//! `rx` receives, `tx` sends by `gather`, `sys` is the only `unsafe`. Frames are datagrams: they may be lost, repeated and reordered; ICMP errors
//! fail nothing. A datagram is never larger than the MTU of the interface that `bind` names, so that it is not lost whole with a fragment; on the
//! loopback interface that is nearly 64 KiB.
//!
//! ```
//! use tsumuji_link::{Frame, Link, each, udp::{Udp, UdpConfig}};
//! let any = "127.0.0.1:0".parse().unwrap();
//! let mut a = Udp::bind(any, UdpConfig::default()).unwrap();
//! let mut b = Udp::bind(any, UdpConfig::default()).unwrap();
//! a.send_one(b.local_addr(), Frame::whole(b"hello")).unwrap();
//! a.flush().unwrap();
//! b.wait(std::time::Duration::from_secs(5)).unwrap();
//! b.receive(16, &mut each(|from, frame| assert_eq!((from, frame), (a.local_addr(), &b"hello"[..])))).unwrap();
//! ```
//!
//! Long messages are copied by the kernel only: it gathers their frames from the sender's memory (`gather`), and scatters them to where the receiver
//! expects them (`recv_scattered`).
//!
//! With a multicast group (`UdpConfig::group`), a broadcast is one datagram to the group (`group`); without one there is no broadcast, and a
//! program that addresses all peers sends to each.
//!
//! Left out on purpose: path MTU discovery of our own (the kernel fragments where a path is
//! narrower than its interface); zero-copy sends (they pay only for more than a datagram holds).

mod group;
mod probe;
mod rx;
#[cfg(test)]
mod scatter_tests;
mod sys;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::net::if_::InterfaceFlags;
use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub use probe::probe;

use crate::ether::mtu_bytes_of;
use crate::gather::Gather;
use crate::sleep;
use crate::tuning::TUNING;
use crate::{Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver};
use group::Group;
use rx::Rx;
use tx::Outlet;

/// The link's name.
const NAME: &str = "udp";
/// The largest frame by default; an IPv4 datagram holds at most 65,507 bytes.
const FRAME_BYTES_MAX: usize = 65_000;
/// Every IPv4 host takes datagrams of 576 bytes; no interface worth using has a smaller MTU.
const FRAME_BYTES_MIN: usize = 512;
/// IP and UDP headers.
const IPV4_HEADER_BYTES: usize = 28;
const IPV6_HEADER_BYTES: usize = 48;
/// MTU of Ethernet, used if the interface cannot be asked.
const MTU_BYTES_DEFAULT: usize = 1500;

/// Options of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpConfig {
    /// Largest frame in bytes; `None`: as the local interface's MTU allows. All nodes of a cluster should agree on it.
    pub frame_bytes: Option<usize>,
    /// Socket buffers to ask for, each way, in bytes of data. The kernel grants less where `net.core.rmem_max` says so.
    pub buffer_bytes: usize,
    /// Let the kernel or the device split and join batches of equal datagrams (UDP_SEGMENT, UDP_GRO).
    pub offload: bool,
    /// The multicast group of the job, to which broadcasts go; `None`: the link has no broadcast. All nodes have the same, and no other job has it.
    pub group: Option<SocketAddrV4>,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            frame_bytes: None,
            // Some 100 frames of the largest size from each of a hundred senders at Ethernet's MTU.
            buffer_bytes: 8 << 20,
            offload: true,
            group: None,
        }
    }
}

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpBindError {
    /// Another socket has the address.
    #[error("UDP port {addr} is taken; choose another, or port 0 for any that is free")]
    InUse {
        /// The address.
        addr: SocketAddr,
    },
    /// No address of this machine.
    #[error("{addr} is no address of this machine; `ip addr` lists them")]
    NotOurs {
        /// The address.
        addr: SocketAddr,
    },
    /// No datagram can have this frame size.
    #[error("frames of {frame_bytes} bytes do not fit UDP; take {FRAME_BYTES_MIN} to 65507")]
    FrameBytes {
        /// The size asked for.
        frame_bytes: usize,
    },
    /// No multicast group.
    #[error(
        "{addr} is no IPv4 multicast group with a port; take 239.0.0.0 to 239.255.255.255, for example 239.77.0.1:7000"
    )]
    NoGroup {
        /// The address.
        addr: SocketAddr,
    },
    /// The socket cannot name an interface for the group.
    #[error(
        "a multicast group is joined on one interface, and {local} names none; bind to an interface's IPv4 address"
    )]
    GroupAt {
        /// The socket's address.
        local: SocketAddr,
    },
    /// A system call failed.
    #[error("{what} for {addr}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The address.
        addr: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
}

/// One UDP socket, and one more for a multicast group, if there is one.
#[derive(Debug)]
pub struct Udp {
    socket: Socket,
    local: SocketAddr,
    /// The socket is IPv6 and takes IPv4, too.
    mapped: bool,
    frame_bytes: usize,
    receive_buffer_bytes: usize,
    rx: Rx,
    tx: Gather<Outlet>,
    group: Option<Box<Group>>,
    counters: LinkCounters,
}

impl Udp {
    /// Opens a socket at `addr` (port 0: any free one; see `local_addr`).
    ///
    /// At an unspecified address (`0.0.0.0`, `[::]`) frames are sized for the narrowest interface, and `local_addr` has no IP that peers could use:
    /// name an interface's address where it matters. `[::]` takes IPv4 peers, too.
    pub fn bind(addr: SocketAddr, config: UdpConfig) -> Result<Self, UdpBindError> {
        let failed = |what| move |source| UdpBindError::Io { what, addr, source };
        if let Some(frame_bytes) = config.frame_bytes
            && !(FRAME_BYTES_MIN..=65_507).contains(&frame_bytes)
        {
            return Err(UdpBindError::FrameBytes { frame_bytes });
        }
        let socket = Socket::new(
            Domain::for_address(addr),
            Type::DGRAM.cloexec().nonblocking(),
            Some(Protocol::UDP),
        )
        .map_err(failed("cannot open a UDP socket"))?;
        let mapped = addr.is_ipv6() && addr.ip().is_unspecified();
        if addr.is_ipv6() {
            socket
                .set_only_v6(!mapped)
                .map_err(failed("cannot set IPV6_V6ONLY"))?;
        }
        socket
            .bind(&SockAddr::from(addr))
            .map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => UdpBindError::InUse { addr },
                io::ErrorKind::AddrNotAvailable => UdpBindError::NotOurs { addr },
                _ => failed("cannot bind a UDP socket")(source),
            })?;
        let local = socket
            .local_addr()
            .ok()
            .and_then(|local| local.as_socket())
            .unwrap_or(addr);
        let fd = socket.as_fd();
        let receive_buffer_bytes = enlarge_buffers(fd, config.buffer_bytes);
        // Only then the kernel tells that an interface's queue dropped a datagram.
        sys::set_option(fd, libc::SOL_IP, libc::IP_RECVERR, 1)
            .map_err(failed("cannot ask a UDP socket for its errors"))?;
        if addr.is_ipv6() {
            sys::set_option(fd, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)
                .map_err(failed("cannot ask a UDP socket for its errors"))?;
        }
        let segmenting = config.offload
            && sys::set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
            && sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        let frame_bytes = config
            .frame_bytes
            .unwrap_or_else(|| frame_bytes_for(mtu_bytes(fd, addr.ip()), addr));
        let group = (config.group)
            .map(|group| Group::join(group, &socket, local, &config).map(Box::new))
            .transpose()?;
        Ok(Self {
            local,
            mapped,
            group,
            frame_bytes,
            receive_buffer_bytes,
            rx: Rx::new(),
            tx: Gather::new(
                Outlet {
                    socket: (socket.try_clone())
                        .map_err(failed("cannot duplicate a UDP socket"))?,
                    mapped,
                    segmenting,
                },
                frame_bytes,
            ),
            counters: LinkCounters::default(),
            socket,
        })
    }

    #[inline]
    fn inet(&self, to: LinkAddr) -> Result<SocketAddr, LinkError> {
        match to {
            LinkAddr::Inet(addr) if addr.is_ipv4() == self.local.is_ipv4() || self.mapped => {
                Ok(addr)
            }
            LinkAddr::Broadcast => match &self.group {
                Some(group) => Ok(group.addr),
                None => Err(LinkError::NoSuchPeer { link: NAME, to }),
            },
            _ => Err(LinkError::NoSuchPeer { link: NAME, to }),
        }
    }

    fn has_frames(&self) -> bool {
        self.rx.has_frames() || self.group.as_ref().is_some_and(|group| group.has_frames())
    }

    /// The receive buffer that the kernel granted, in bytes as it accounts them (about twice the data).
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }
}

/// Most bytes that the kernel charges a receive buffer for a datagram of `frame_bytes`.
///
/// Measured on the loopback interface (kernel 6.18): the data with its headers rounded up to a power of two and 256 bytes beside,
/// beyond 16 KiB the data and 832 bytes. Drivers of network cards often spend a page on a frame, hence the lower bound.
fn charge_bytes(frame_bytes: usize) -> usize {
    const PAGED_ABOVE_BYTES: usize = 15_900;
    const PAGE_FRAME_BYTES: usize = 4096 + 512;
    if frame_bytes > PAGED_ABOVE_BYTES {
        frame_bytes + 1024
    } else {
        ((frame_bytes + 400).next_power_of_two() + 512).max(PAGE_FRAME_BYTES)
    }
}

/// Sets both buffers as large as allowed, up to `bytes` of data, and returns the receive buffer as the kernel accounts it.
fn enlarge_buffers(fd: BorrowedFd<'_>, bytes: usize) -> usize {
    let bytes = bytes.clamp(4096, 1 << 30) as i32;
    for (force, plain) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        // Forcing needs CAP_NET_ADMIN; without it the kernel caps the size. The granted size is read back.
        let _ = sys::set_option(fd, libc::SOL_SOCKET, force, bytes)
            .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, plain, bytes));
    }
    sys::receive_memory(fd).map_or(212_992, |(buffer, _)| buffer as usize)
}

/// An address of an interface of this machine.
#[derive(Debug)]
struct InterfaceAddr {
    name: String,
    ip: IpAddr,
    flags: InterfaceFlags,
}

fn interface_addrs() -> io::Result<Vec<InterfaceAddr>> {
    let found = nix::ifaddrs::getifaddrs()?.filter_map(|interface| {
        let addr = interface.address?;
        let v4 = addr.as_sockaddr_in().map(|addr| IpAddr::V4(addr.ip()));
        let v6 = addr.as_sockaddr_in6().map(|addr| IpAddr::V6(addr.ip()));
        Some(InterfaceAddr {
            name: interface.interface_name,
            ip: v4.or(v6)?,
            flags: interface.flags,
        })
    });
    Ok(found.collect())
}

/// The MTU of the interface that has `ip`; of the narrowest that is up if `ip` is unspecified.
fn mtu_bytes(fd: BorrowedFd<'_>, ip: IpAddr) -> usize {
    let interfaces = interface_addrs().unwrap_or_default();
    let loopback = ip.is_loopback();
    let is_up = |it: &InterfaceAddr| it.flags.contains(InterfaceFlags::IFF_UP);
    let is_loopback = |it: &InterfaceAddr| it.flags.contains(InterfaceFlags::IFF_LOOPBACK);
    let narrowest = |wanted: &dyn Fn(&InterfaceAddr) -> bool| {
        interfaces
            .iter()
            .filter(|interface| wanted(interface))
            .filter_map(|interface| mtu_bytes_of(fd, &interface.name).ok())
            .min()
    };
    narrowest(&|interface| interface.ip == ip)
        // All of 127/8 is the loopback interface's, listed or not.
        .or_else(|| narrowest(&|interface| loopback && is_loopback(interface)))
        .or_else(|| {
            narrowest(&|interface| !loopback && is_up(interface) && !is_loopback(interface))
        })
        .or_else(|| narrowest(&is_up))
        .unwrap_or(MTU_BYTES_DEFAULT)
}

/// The address of the interface `name`: its first of IPv4, or else of IPv6, and of those none that counts on one segment only. `None`: it has none, or
/// there is no such interface.
pub fn ip_of_interface(name: &str) -> io::Result<Option<IpAddr>> {
    Ok(ip_among(&interface_addrs()?, name))
}

fn ip_among(interfaces: &[InterfaceAddr], name: &str) -> Option<IpAddr> {
    let ips = || {
        let own = interfaces.iter().filter(|interface| interface.name == name);
        own.map(|interface| interface.ip)
    };
    let reaches_far = |ip: &IpAddr| !matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    ips()
        .find(IpAddr::is_ipv4)
        .or_else(|| ips().find(reaches_far))
}

fn frame_bytes_for(mtu_bytes: usize, addr: SocketAddr) -> usize {
    let header_bytes = if addr.is_ipv4() {
        IPV4_HEADER_BYTES
    } else {
        IPV6_HEADER_BYTES
    };
    mtu_bytes
        .saturating_sub(header_bytes)
        .clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX)
}

impl Link for Udp {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: NAME,
            frame_bytes: self.frame_bytes,
            receive_frames: (self.receive_buffer_bytes / charge_bytes(self.frame_bytes)).max(1),
            burst_frames: TUNING.gather.burst_frames,
            gathers: true,
            broadcast: self.group.is_some(),
            lossless: false,
            damages: true,
            polls_by_call: true,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Inet(self.local)
    }

    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        self.inet(to)?;
        let fd = self.socket.as_fd();
        let (capacity, _) = self.tx.capacity(fd, &mut self.counters)?;
        Ok(capacity)
    }

    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let addr = self.inet(to)?;
        let fd = self.socket.as_fd();
        let (sent, _) = self.tx.send(fd, &mut self.counters, addr, frames)?;
        Ok(sent)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let fd = self.socket.as_fd();
        let mut frames = self.rx.receive(fd, &mut self.counters, max, receiver)?;
        if let Some(group) = &mut self.group {
            // At least a few, so that busy peers do not keep the group waiting.
            let rest = max.saturating_sub(frames).max(max.min(4));
            frames += group.receive(&mut self.counters, rest, receiver)?;
        }
        if frames == 0 && self.tx.has_frames() {
            self.flush()?; // the kernel may take now what it did not before
        }
        Ok(frames)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let fd = self.socket.as_fd();
        self.tx.flush(fd, &mut self.counters).map(drop)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.flush()?;
        if self.has_frames() {
            return Ok(());
        }
        let mut events = PollFlags::IN;
        if self.tx.has_frames() {
            events |= PollFlags::OUT;
        }
        let (first, what) = (PollFd::new(&self.socket, events), "poll of the UDP socket");
        let polled = match &mut self.group {
            None => sleep::poll(&mut [first], timeout, what),
            Some(group) => {
                group.poll_next();
                let second = PollFd::new(&group.socket, PollFlags::IN);
                sleep::poll(&mut [first, second], timeout, what)
            }
        };
        polled.map(drop)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.group {
            Some(group) => Some(group.either.as_fd()),
            None => Some(self.socket.as_fd()),
        }
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.flush()?;
        // Frames in the kernel's buffer make the descriptor readable by themselves.
        if let Some(group) = &mut self.group {
            group.poll_next();
        }
        Ok(!self.has_frames())
    }

    fn has_unsent(&mut self) -> bool {
        self.tx.blocked().is_some()
    }

    #[inline]
    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        if let Ok((_, drops)) = sys::receive_memory(self.socket.as_fd()) {
            counters.dropped_frames += u64::from(drops);
        }
        if let Some(group) = &self.group
            && let Ok((_, drops)) = sys::receive_memory(group.fd())
        {
            counters.dropped_frames += u64::from(drops);
        }
        counters
    }
}
