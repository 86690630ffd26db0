//! Transmit half: the part of sending by a socket that is specific to UDP. `gather` gathers and flushes.
//!
//! Called by `gather::Gather`, which `Udp` owns. A frame is a datagram; consecutive frames of one size to one peer are one send that the kernel or
//! the device cuts (UDP_SEGMENT).

use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::SendFlags;
use socket2::Socket;

use super::rx::{is_fatal, take_errors};
use crate::gather::{self, Blocked, RawAddr, Verdict};

/// A UDP socket's sending side.
#[derive(Debug)]
pub(super) struct Outlet {
    /// The same socket.
    pub(super) socket: Socket,
    /// The socket is IPv6 and takes IPv4 addresses, too.
    pub(super) mapped: bool,
    /// The kernel knows UDP_SEGMENT.
    pub(super) segmenting: bool,
}

impl gather::Outlet for Outlet {
    type To = SocketAddr;
    const FAILED: &'static str = "sending by the UDP socket";
    const LEAD_BYTES: usize = 0;
    const JOINT_BYTES: usize = 0;

    #[inline]
    fn write_lead(&self, _: SocketAddr, _: usize, _: &mut [u8]) {}

    #[inline]
    fn write_joint(&self, _: usize, _: &mut [u8]) {}

    #[inline]
    fn joined_bytes_max(&self, _: SocketAddr) -> usize {
        0
    }

    fn name(&self, to: SocketAddr) -> Option<RawAddr> {
        Some(RawAddr::encode(to, self.mapped))
    }

    #[inline]
    fn send_one(&self, fd: BorrowedFd<'_>, to: SocketAddr, datagram: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = match to {
            SocketAddr::V4(to) if !self.mapped => rustix::net::sendto(fd, datagram, flags, &to),
            SocketAddr::V4(to) => {
                let to = SocketAddrV6::new(to.ip().to_ipv6_mapped(), to.port(), 0, 0);
                rustix::net::sendto(fd, datagram, flags, &to)
            }
            SocketAddr::V6(to) => rustix::net::sendto(fd, datagram, flags, &to),
        };
        sent.map(drop).map_err(io::Error::from)
    }

    fn cuts(&self) -> bool {
        self.segmenting
    }

    fn cuts_no_more(&mut self) {
        self.segmenting = false;
        tracing::debug!("the kernel refuses UDP_SEGMENT");
    }

    fn take_errors(&mut self) -> bool {
        take_errors(self.socket.as_fd())
    }

    /// Any error but these (no route, bad port, dropped by the interface's queue) loses the datagram to be sent. One that came by ICMP is about an earlier
    /// one.
    fn judge(&mut self, error: &io::Error) -> Verdict {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Verdict::Keep(Blocked::Buffer),
            Some(libc::EINTR) => Verdict::Again,
            Some(libc::ENOBUFS) => Verdict::Overrun,
            _ if is_fatal(error) => Verdict::Fail,
            _ if take_errors(self.socket.as_fd()) => Verdict::Again,
            _ => Verdict::DropOne,
        }
    }
}
