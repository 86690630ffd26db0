//! Multicast: the group that broadcast frames go to, and the second socket, which receives them.
//!
//! Called by `Udp`. Broadcast frames leave by the socket that sends all others, so their source is the sender's own address, and a receiver checks it
//! as for any frame. The group's socket only receives: processes of one host share its port (SO_REUSEADDR). Multicast frames stay in the local
//! network segment (their time to live is 1), and are looped back for other processes of this host; their sender drops them.
//!
//! Left out on purpose: IPv6 groups, which need the interface's number beside an address; filters by source, since sources are checked above.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::rx::Rx;
use super::{UdpBindError, UdpConfig, enlarge_buffers, sys};
use crate::sleep::either_of;
use crate::tuning::TUNING;
use crate::{LinkCounters, LinkError, Receiver};

/// Membership of a multicast group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) addr: SocketAddr,
    pub(super) socket: Socket,
    /// Readable while one of the two sockets is.
    pub(super) either: OwnedFd,
    rx: Rx,
    /// Receives in a row without a frame of the group.
    empty: u32,
}

impl Group {
    /// Joins `addr` on the interface that has the address of `socket`, which is `local`.
    pub(super) fn join(
        addr: SocketAddrV4,
        socket: &Socket,
        local: SocketAddr,
        config: &UdpConfig,
    ) -> Result<Self, UdpBindError> {
        let group = SocketAddr::V4(addr);
        let failed = |what| {
            move |source| UdpBindError::Io {
                what,
                addr: group,
                source,
            }
        };
        if !addr.ip().is_multicast() || addr.port() == 0 {
            return Err(UdpBindError::NoGroup { addr: group });
        }
        let own = match local.ip() {
            IpAddr::V4(ip) if !ip.is_unspecified() => ip,
            _ => return Err(UdpBindError::GroupAt { local }),
        };
        socket
            .set_multicast_if_v4(&own)
            .and_then(|()| socket.set_multicast_loop_v4(true))
            .and_then(|()| socket.set_multicast_ttl_v4(1))
            .map_err(failed("cannot send to a multicast group"))?;
        let receiving =
            open(addr, own, local, config).map_err(failed("cannot join a multicast group"))?;
        let either = either_of([socket.as_fd(), receiving.as_fd()])
            .map_err(failed("cannot make an epoll descriptor"))?;
        Ok(Self {
            addr: group,
            socket: receiving,
            either,
            rx: Rx::of_group(local),
            empty: 0,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn has_frames(&self) -> bool {
        self.rx.has_frames()
    }

    /// The next receive polls the socket.
    pub(super) fn poll_next(&mut self) {
        self.empty = 0;
    }

    /// Delivers up to `max` frames, if it is time to poll.
    #[inline]
    pub(super) fn receive(
        &mut self,
        counters: &mut LinkCounters,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> Result<usize, LinkError> {
        if self.empty > TUNING.udp.group_eager_polls
            && !self.empty.is_multiple_of(TUNING.udp.group_poll_every)
        {
            self.empty = self.empty.wrapping_add(1);
            return Ok(0);
        }
        let fd = self.socket.as_fd();
        let frames = self.rx.receive(fd, counters, max, receiver)?;
        self.empty = if frames > 0 {
            0
        } else {
            self.empty.wrapping_add(1)
        };
        Ok(frames)
    }
}

fn open(
    group: SocketAddrV4,
    own: Ipv4Addr,
    local: SocketAddr,
    config: &UdpConfig,
) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(local),
        Type::DGRAM.cloexec().nonblocking(),
        Some(Protocol::UDP),
    )?;
    socket.set_reuse_address(true)?;
    // Bound to the group itself: other datagrams to this port do not reach it.
    socket.bind(&SockAddr::from(group))?;
    // Only on the interface on which it joins, whatever other sockets of this host have joined.
    socket.set_multicast_all_v4(false)?;
    socket.join_multicast_v4(group.ip(), &own)?;
    enlarge_buffers(socket.as_fd(), config.buffer_bytes);
    if config.offload {
        // Without it the kernel cuts joined datagrams before it delivers them.
        let _ = sys::set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    Ok(socket)
}
