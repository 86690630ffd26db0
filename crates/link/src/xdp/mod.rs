//! `xdp`: one Ethernet segment by AF_XDP: frames pass between the driver and memory of ours, without the kernel's network stack.
//!
//! An XDP program on the interface takes the frames of our EtherType that are meant for us and leaves all others to the kernel (`program`). `umem` is
//! the shared memory and its allocator, `ring` the index logic of the four rings, `rx` and `tx` the two directions, `open` the set-up and `errors`
//! its errors, `device` the abilities of a driver, `sys` the access to the kernel.
//!
//! The program is held by a descriptor: it is detached when the link is dropped, and also when the process is killed.
//!
//! ```no_run
//! use tsumuji_link::{Frame, Link, LinkAddr, xdp::{Xdp, XdpConfig}};
//! let mut link = Xdp::open("eth1", XdpConfig::default()).unwrap();
//! link.send_one(LinkAddr::Broadcast, Frame::whole(b"hello")).unwrap();
//! link.flush().unwrap();
//! ```
//!
//! **Queues.** One socket serves one receive queue. An interface with several is refused, because its frames may arrive at any of them. One process
//! has an interface (see `ether`): a second one is refused and takes a macvlan, which has no native mode.
//!
//! Left out on purpose: several queues by one link; checksum and time-stamp offload (our frames have neither); sharing a UMEM.

mod device;
mod errors;
mod open;
mod probe;
mod program;
#[cfg(test)]
mod refusal_tests;
mod ring;
mod rx;
mod sys;
#[cfg(test)]
mod tests;
mod tx;
mod umem;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::RecvFlags;

pub use errors::XdpOpenError;
pub use probe::probe;

use crate::ether::{self, Checks, Claim, InterfaceState, MacAddr, Watch};
use crate::relay::Ethernet;
use crate::sleep;
use crate::tuning::TUNING;
use crate::{Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, each};
use rx::Rx;
use tx::Tx;
use umem::Umem;

/// The link's name.
const NAME: &str = "xdp";
/// Largest frame sent: the kernel takes a frame in 18 chunks at most, of a page each.
const FRAME_BYTES_MAX: usize = 65_450;
/// Frames of several chunks are joined up to this: any Ethernet frame, tags included.
const JOIN_BYTES_MAX: usize = 66 << 10;

/// Place of the XDP program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver where it can and it is faster, else generic.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// Behind the driver, with any device.
    Generic,
}

/// Options of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpConfig {
    /// Place of the program.
    pub mode: XdpMode,
    /// Largest frame in bytes; `None`: by the interface's MTU. All nodes of a cluster should agree on it.
    pub frame_bytes: Option<usize>,
    /// Frames of that size that the receive side holds, rounded up so that the ring is a power of two; an eighth of it is kept for frames
    /// without credit. `None`: 2 MiB of them (`receive_frames` then: 896 at MTU 1500, 149 at 9000, 24 at 65,535), or less where the limit
    /// on locked memory does not allow that.
    pub ring_frames: Option<u32>,
    /// How long to wait until the interface is up and has carrier.
    pub up_timeout: Duration,
    /// How many addresses of the interface are taken: those of its first so many slots (`MacAddr::of_slot`), at most 64. More than one is for a relay
    /// (`relay`): as a link, this one has the first alone.
    pub slots: u8,
}

impl Default for XdpConfig {
    fn default() -> Self {
        Self {
            mode: XdpMode::Auto,
            frame_bytes: None,
            ring_frames: None,
            // A switch port takes some seconds to come up; spanning tree may take longer.
            up_timeout: Duration::from_secs(5),
            slots: 1,
        }
    }
}

/// One AF_XDP socket on the only queue of one interface.
// Fields are dropped in this order: first the program is detached, then the socket closed, then the memory unmapped.
#[derive(Debug)]
pub struct Xdp {
    /// Holds the program on the interface.
    _attachment: OwnedFd,
    #[cfg(test)]
    program: OwnedFd,
    _map: OwnedFd,
    rx: Rx,
    tx: Tx,
    socket: OwnedFd,
    umem: Umem,
    mac: MacAddr,
    frame_bytes: usize,
    receive_frames: usize,
    native: bool,
    zero_copy: bool,
    watch: Watch,
    checks: Checks,
    /// The interface is gone; the kernel reports it only once.
    removed: bool,
    counters: LinkCounters,
    /// Makes the interface receive frames for further addresses.
    _addresses: Option<OwnedFd>,
    /// Keeps other processes of ours off the interface.
    _claim: Claim,
}

impl Xdp {
    /// Opens the link on an interface that is up.
    pub fn open(interface: &str, config: XdpConfig) -> Result<Self, XdpOpenError> {
        open::open(interface, config)
    }

    /// Whether the program runs in the driver.
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// Frames that the kernel dropped because it had no chunk or no room in the receive ring.
    fn kernel_drops(&self) -> u64 {
        let Ok(counts) = rustix::net::sockopt::xdp_statistics(&self.socket) else {
            return 0;
        };
        // An empty fill ring is counted beside `rx_dropped`, for the same frame.
        counts.rx_dropped + counts.rx_ring_full.unwrap_or(0) + counts.tx_invalid_descs
    }

    fn announce(&mut self) -> Result<(), LinkError> {
        let fd = self.socket.as_fd();
        self.tx.announce(fd, &mut self.umem, &mut self.counters)
    }

    /// Checks whether the socket still has its interface; announces our address when the interface came back.
    #[cold]
    fn check_interface(&mut self) -> Result<(), LinkError> {
        self.checks.begin();
        self.removed |= !matches!(rustix::net::sockopt::socket_error(&self.socket), Ok(Ok(())));
        if self.removed {
            return Err(removed());
        }
        // Switches may have forgotten our address while it was down.
        if self.watch.refresh() == Some(InterfaceState::Up) {
            self.announce()?;
        }
        Ok(())
    }

    /// Makes the kernel poll the device, if it waits for a system call.
    #[inline]
    fn drive_receive(&self) {
        // Copy mode never waits for one, and its flag lies in a cache line that the other core writes.
        if self.zero_copy && self.rx.fill.needs_wakeup() {
            let _ = rustix::net::recv(&self.socket, &mut [0u8; 0][..], RecvFlags::DONTWAIT);
        }
    }
}

impl Ethernet for Xdp {
    fn receive_ethernet(
        &mut self,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, LinkError> {
        let receiver = &mut each(|_, frame| take(frame));
        let frames = self
            .rx
            .receive(&mut self.umem, &mut self.counters, None, max, receiver);
        self.drive_receive();
        Ok(frames)
    }

    fn send_ethernet(&mut self, frame: &[u8]) -> Result<bool, LinkError> {
        let fd = self.socket.as_fd();
        self.tx
            .gather_ethernet(fd, &mut self.umem, &mut self.counters, frame)
    }
}

/// The socket has lost its interface.
fn removed() -> LinkError {
    LinkError::Io {
        what: "the interface of the AF_XDP link was removed; open the link anew",
        source: std::io::Error::from_raw_os_error(libc::ENODEV),
    }
}

impl Link for Xdp {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: NAME,
            frame_bytes: self.frame_bytes,
            receive_frames: self.receive_frames,
            burst_frames: TUNING.xdp.burst_frames as usize,
            gathers: false,
            broadcast: true,
            lossless: false,
            damages: true,
            polls_by_call: false,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Ether(self.mac)
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        ether::destination(NAME, self.mac, to)?;
        let fd = self.socket.as_fd();
        let frames = self
            .tx
            .free_frames(fd, &mut self.umem, &mut self.counters)?;
        self.counters.refused += u64::from(frames == 0);
        Ok(Capacity {
            frames,
            bytes: usize::MAX,
        })
    }

    #[inline]
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let mac = ether::destination(NAME, self.mac, to)?;
        let fd = self.socket.as_fd();
        let mut sent = 0;
        for frame in frames {
            if !(self.tx).gather(fd, &mut self.umem, &mut self.counters, mac, frame)? {
                self.counters.refused += 1;
                break;
            }
            sent += 1;
        }
        Ok(sent)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let frames = self.rx.receive(
            &mut self.umem,
            &mut self.counters,
            Some(self.mac),
            max,
            receiver,
        );
        if frames == 0 {
            if self.checks.misses() {
                self.check_interface()?;
            }
            if self.tx.has_frames() {
                self.flush()?; // the kernel may take now what it did not before
            }
        }
        self.drive_receive();
        Ok(frames)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        let fd = self.socket.as_fd();
        self.tx.flush(fd, &mut self.umem, &mut self.counters)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.flush()?;
        if self.rx.has_frames() {
            return Ok(());
        }
        let timeout = match (self.tx.is_down(), self.tx.has_frames()) {
            (_, false) => timeout.min(TUNING.xdp.check_interface),
            (true, true) => timeout.min(TUNING.xdp.retry_down),
            (false, true) => timeout.min(TUNING.unsent_sleep),
        };
        // `poll` also makes the driver read the rings, where it waits for that.
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        if sleep::poll(&mut fds, timeout, "poll of the AF_XDP socket")? {
            // `poll` does not report a removed interface, not even as an error.
            self.check_interface()?;
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.flush()?;
        self.check_interface()?;
        self.drive_receive();
        // Descriptors in the receive ring make the socket readable by themselves; half a frame is waited for.
        Ok(!self.rx.has_frames())
    }

    fn has_unsent(&mut self) -> bool {
        self.tx.has_frames() && !self.tx.is_down()
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        if let Ok(mac) = ether::destination(NAME, self.mac, to) {
            let most = self.frame_bytes;
            self.tx.reach.set(mac, frame_bytes, most);
        }
    }

    #[inline]
    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        counters.dropped_frames += self.kernel_drops() + self.umem.astray();
        counters
    }
}
