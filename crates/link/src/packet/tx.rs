//! Transmit half: the part of sending by a socket that is specific to an Ethernet segment. `gather` gathers and flushes.
//!
//! Called by `gather::Gather`, which `Packet` owns. A frame joins the Ethernet frame before it if that goes to the same station and has room.
//! With a full device (ENOBUFS) or socket buffer (EAGAIN) the queue is kept for the next flush.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::net::SendFlags;

use crate::ether::{self, HEADER_BYTES, LEAD_BYTES, LENGTH_BYTES, MacAddr, Reach};
use crate::gather::{self, Blocked, RawAddr, Verdict};
use crate::tuning::TUNING;

/// A packet socket's sending side.
#[derive(Debug)]
pub(super) struct Outlet {
    me: MacAddr,
    /// Longest frame of ours.
    frame_bytes_max: usize,
    pub(super) reach: Reach,
    /// Since when the device has refused the first frame.
    stuck_since: Option<Instant>,
}

impl Outlet {
    pub(super) fn new(me: MacAddr, frame_bytes_max: usize) -> Self {
        Self {
            me,
            frame_bytes_max,
            reach: Reach::default(),
            stuck_since: None,
        }
    }
}

impl gather::Outlet for Outlet {
    type To = MacAddr;
    const FAILED: &'static str = "sending by the packet socket";
    const LEAD_BYTES: usize = LEAD_BYTES;
    const JOINT_BYTES: usize = LENGTH_BYTES;

    #[inline]
    fn write_lead(&self, to: MacAddr, frame_bytes: usize, lead: &mut [u8]) {
        ether::write_header(lead, to, self.me);
        ether::write_length(&mut lead[HEADER_BYTES..], frame_bytes);
    }

    #[inline]
    fn write_joint(&self, frame_bytes: usize, joint: &mut [u8]) {
        ether::write_length(joint, frame_bytes);
    }

    #[inline]
    fn joined_bytes_max(&self, to: MacAddr) -> usize {
        LEAD_BYTES + self.reach.of(to, self.frame_bytes_max)
    }

    fn name(&self, _: MacAddr) -> Option<RawAddr> {
        None
    }

    /// Makes a plain system call: the C library's is a cancellation point, which takes longer in a process of several threads.
    #[inline]
    fn send_one(&self, fd: BorrowedFd<'_>, _: MacAddr, datagram: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(fd, datagram, flags);
        sent.map(drop).map_err(io::Error::from)
    }

    fn cuts(&self) -> bool {
        false
    }

    #[cold]
    fn judge(&mut self, error: &io::Error) -> Verdict {
        let verdict = match error.raw_os_error() {
            Some(libc::EAGAIN) => Verdict::Keep(Blocked::Buffer),
            Some(libc::EINTR) => Verdict::Again,
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                let now = Instant::now();
                let since = *self.stuck_since.get_or_insert(now);
                if now - since < TUNING.ether.stuck_max {
                    Verdict::Keep(Blocked::Device)
                } else {
                    Verdict::DropAll
                }
            }
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Verdict::DropAll,
            Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => Verdict::Fail,
            // The MTU was lowered, or a filter on the way out refuses the frame.
            _ => Verdict::DropOne,
        };
        if matches!(verdict, Verdict::DropOne | Verdict::DropAll) {
            self.stuck_since = None;
        }
        verdict
    }

    #[inline]
    fn taken(&mut self) {
        self.stuck_since = None;
    }
}
