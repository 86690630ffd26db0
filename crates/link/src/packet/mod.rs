//! `packet`: one Ethernet segment by AF_PACKET, no IP at all; needs CAP_NET_RAW.
//!
//! `rx` receives from a ring that the kernel fills (TPACKET_V2), `tx` sends by `gather`, `sys` is the only `unsafe`. Frames have our EtherType; all
//! other traffic of the interface passes by and costs nothing. Several processes may share an interface: each has a slot, and with it an Ethernet
//! address of its own (`MacAddr::of_slot`, docs/decisions/0053).
//!
//! ```no_run
//! use tsumuji_link::{Frame, Link, LinkAddr, each, packet::{Packet, PacketConfig}};
//! let mut link = Packet::open("eth1", PacketConfig::default())?;
//! link.send_one(LinkAddr::Broadcast, Frame::whole(b"hello"))?;
//! link.flush()?;
//! link.wait(std::time::Duration::from_secs(5))?;
//! link.receive(16, &mut each(|from, frame| println!("{} bytes from {from}", frame.len())))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Left out on purpose: a change of the interface's MAC address or MTU while the link is open (frames are then lost; open it anew); VLAN tags (take a
//! VLAN interface, which has none); multicast groups; a mapped transmit ring (docs/decisions/0012).

mod probe;
mod rx;
mod sys;
#[cfg(test)]
mod tests;
mod tx;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use socket2::{Domain, SockFilter, Socket, Type};

pub use probe::probe;

use crate::ether::{
    self, Capability, Checks, Claim, ClaimError, Interface, InterfaceError, InterfaceState,
    MacAddr, Watch,
};
use crate::gather::{Blocked, Flushed, Gather};
use crate::sleep;
use crate::tuning::TUNING;
use crate::{Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver};
use rx::Geometry;
use sys::RxRing;
use tx::Outlet;

/// The link's name.
const NAME: &str = "packet";
/// Frame size that every link must offer.
const FRAME_BYTES_MIN: usize = 512;

/// Options of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketConfig {
    /// Largest frame in bytes; `None`: the interface's MTU less 2 (R-9), 65,450 at most. All nodes of a cluster should agree on it.
    pub frame_bytes: Option<usize>,
    /// Bytes of the receive ring, which is kernel memory that is never paged out; `None`: 8 MiB, or 2 MiB on a network of large frames.
    pub buffer_bytes: Option<usize>,
    /// How long to wait for the interface to have a carrier.
    pub up_timeout: Duration,
    /// Number of this process among those that share the interface, 0 to 63. It gives the link's address: that of the interface for 0.
    pub slot: u8,
}

impl Default for PacketConfig {
    fn default() -> Self {
        Self {
            frame_bytes: None,
            buffer_bytes: None,
            // A switch port takes up to 3 s to negotiate its speed.
            up_timeout: Duration::from_secs(5),
            slot: 0,
        }
    }
}

/// Why the link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketOpenError {
    /// The interface does not exist, is no Ethernet, or is not up.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Another process has the interface.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// There is no such slot.
    #[error("slot {slot}: accepted are 0 to {}", MacAddr::SLOTS - 1)]
    Slot {
        /// The slot asked for.
        slot: u8,
    },
    /// This process may not open raw sockets.
    #[error("raw Ethernet needs CAP_NET_RAW; `{command}` gives it to this program")]
    NotPermitted {
        /// A command that permits it.
        command: String,
    },
    /// The interface cannot have this frame size.
    #[error(
        "frames of {frame_bytes} bytes do not fit `{interface}`, whose MTU is {mtu_bytes}; take {FRAME_BYTES_MIN} to the MTU less 2 (65450 at most), \
         or `ip link set {interface} mtu …`"
    )]
    FrameBytes {
        /// The frame size asked for.
        frame_bytes: usize,
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: usize,
    },
    /// A system call failed.
    #[error("{what} for `{interface}`: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A link over one interface.
#[derive(Debug)]
pub struct Packet {
    // Before the socket, so that it is unmapped first.
    ring: RxRing,
    socket: Socket,
    interface: Interface,
    watch: Watch,
    checks: Checks,
    frame_bytes: usize,
    tx: Gather<Outlet>,
    counters: LinkCounters,
    /// Drops counted so far; the kernel resets its count when it is read.
    ring_drops: Cell<u64>,
    // Last, so that the interface is free for others only once the socket is closed.
    _claim: Claim,
}

impl Packet {
    /// Opens the link on an interface of the calling thread's network namespace and announces its address to the switch.
    pub fn open(interface: &str, config: PacketConfig) -> Result<Self, PacketOpenError> {
        let mut found = Interface::open(interface)?;
        found.require_ethernet()?;
        let slot = config.slot;
        found.mac = found
            .mac
            .of_slot(slot)
            .ok_or(PacketOpenError::Slot { slot })?;
        let failed = |what| {
            move |source| PacketOpenError::Io {
                what,
                interface: interface.to_owned(),
                source,
            }
        };
        let payload_bytes_max = found.mtu_bytes.min(rx::PAYLOAD_BYTES_MAX);
        let limit = payload_bytes_max.saturating_sub(ether::LENGTH_BYTES);
        let frame_bytes = config.frame_bytes.unwrap_or(limit);
        if !(FRAME_BYTES_MIN..=limit).contains(&frame_bytes) {
            return Err(PacketOpenError::FrameBytes {
                frame_bytes,
                interface: interface.to_owned(),
                mtu_bytes: found.mtu_bytes,
            });
        }
        let socket = raw_socket().map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => PacketOpenError::NotPermitted {
                command: ether::setcap_command(&[Capability::NetRaw]),
            },
            _ => failed("cannot open a packet socket")(source),
        })?;
        let claim = ether::claim_slot(&found, config.slot)?;
        found.wait_up(config.up_timeout)?;
        found.state = InterfaceState::Up;
        let fd = socket.as_fd();
        sys::choose_ring_version(fd)
            .map_err(failed("cannot choose TPACKET_V2 (CONFIG_PACKET_MMAP)"))?;
        // The socket is not bound to a protocol yet, so the ring begins empty and receives only frames that pass the filter.
        socket
            .attach_filter(&for_station(found.mac))
            .map_err(failed("cannot attach a socket filter"))?;
        let ring_bytes = config.buffer_bytes.unwrap_or({
            if found.mtu_bytes > TUNING.packet.large_mtu_bytes {
                TUNING.packet.large_ring_bytes
            } else {
                TUNING.packet.ring_bytes
            }
        });
        let geometry = Geometry::new(found.mtu_bytes, ring_bytes);
        let ring = make_ring(fd, geometry)
            .map_err(failed("cannot make a receive ring (lower buffer_bytes)"))?;
        // Without it frames only take longer.
        if let Err(error) = sys::bypass_qdisc(fd) {
            tracing::debug!("{interface}: PACKET_QDISC_BYPASS: {error}");
        }
        sys::enlarge_send_buffer(fd, TUNING.packet.send_buffer_bytes);
        if slot > 0 {
            ether::add_address(fd, found.index, found.mac)
                .map_err(failed("cannot give the interface another address"))?;
        }
        sys::bind(fd, found.index).map_err(failed("cannot bind a packet socket"))?;
        let mut link = Self {
            ring,
            socket,
            watch: Watch::new(&found),
            checks: Checks::default(),
            frame_bytes,
            tx: Gather::new(Outlet::new(found.mac, frame_bytes), frame_bytes),
            counters: LinkCounters::default(),
            ring_drops: Cell::new(0),
            interface: found,
            _claim: claim,
        };
        link.announce();
        Ok(link)
    }

    /// The interface as it was when the link was opened, with the address of this link's slot.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Announces our address to the switch. If that fails, the next frame does it.
    fn announce(&mut self) {
        let frame = ether::announcement(self.interface.mac);
        let _ = self.socket.send_with_flags(&frame, libc::MSG_DONTWAIT);
    }

    /// Checks whether the interface went down, came back, or is gone.
    #[cold]
    fn check_interface(&mut self) -> Result<(), LinkError> {
        self.checks.begin();
        if let Some(state) = self.watch.refresh() {
            tracing::info!("{}: {state}", self.interface.name);
            if state == InterfaceState::Up {
                self.announce();
            }
        }
        self.watch.check(&self.interface.name)
    }

    /// Clears an error that the kernel left on the socket when the interface went down, which would keep poll from sleeping.
    fn take_socket_error(&mut self) -> Result<(), LinkError> {
        match self.socket.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(_)) => self.check_interface(),
            Err(source) => Err(LinkError::Io {
                what: "reading the packet socket's error",
                source,
            }),
        }
    }
}

fn raw_socket() -> io::Result<Socket> {
    // Protocol 0: receives nothing until it is bound to ours.
    let socket = Socket::new(Domain::PACKET, Type::RAW.cloexec().nonblocking(), None)?;
    Ok(socket)
}

/// A smaller ring where the kernel has no memory for the wanted one.
fn make_ring(fd: BorrowedFd<'_>, wanted: Geometry) -> io::Result<RxRing> {
    let mut geometry = wanted;
    loop {
        match RxRing::new(fd, geometry) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                geometry = geometry.halved().ok_or(error)?;
            }
            result => return result,
        }
    }
}

/// A classic BPF program that accepts frames to this address or to all; not those to others, which a promiscuous interface and one with several slots
/// receive, nor to groups.
fn for_station(mac: MacAddr) -> [SockFilter; 8] {
    let packet_type = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
    let load = |size: u32, at: u32| {
        SockFilter::new((libc::BPF_LD | size | libc::BPF_ABS) as u16, 0, 0, at)
    };
    // Jumps over so many instructions if the value is equal, or if it is not.
    let equal = |value: u32, then: u8, otherwise: u8| {
        let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        SockFilter::new(code, then, otherwise, value)
    };
    let give_back = |bytes: u32| SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, bytes);
    let [a, b, c, d, e, f] = mac.0;
    [
        load(libc::BPF_B, packet_type),
        equal(libc::PACKET_BROADCAST.into(), 4, 0),
        load(libc::BPF_W, 0),
        equal(u32::from_be_bytes([a, b, c, d]), 0, 3),
        load(libc::BPF_H, 4),
        equal(u16::from_be_bytes([e, f]).into(), 0, 1),
        give_back(u32::MAX),
        give_back(0),
    ]
}

impl Link for Packet {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: NAME,
            frame_bytes: self.frame_bytes,
            receive_frames: ether::granted_slots(self.ring.slots()),
            burst_frames: TUNING.gather.burst_frames,
            gathers: true,
            broadcast: true,
            lossless: false,
            damages: true,
            polls_by_call: false,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Ether(self.interface.mac)
    }

    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        ether::destination(NAME, self.interface.mac, to)?;
        let fd = self.socket.as_fd();
        let (capacity, flushed) = self.tx.capacity(fd, &mut self.counters)?;
        if flushed == Flushed::Lost {
            self.check_interface()?;
        }
        Ok(capacity)
    }

    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let mac = ether::destination(NAME, self.interface.mac, to)?;
        let fd = self.socket.as_fd();
        let (sent, flushed) = self.tx.send(fd, &mut self.counters, mac, frames)?;
        if flushed == Flushed::Lost {
            self.check_interface()?;
        }
        Ok(sent)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        if !self.ring.is_ready() {
            if self.checks.misses() {
                self.check_interface()?;
            }
            if self.tx.has_frames() {
                self.flush()?; // the kernel may take now what it did not before
            }
            return Ok(0);
        }
        Ok(rx::receive(
            &mut self.ring,
            self.interface.mac,
            self.interface.mtu_bytes,
            &mut self.counters,
            max,
            receiver,
        ))
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let fd = self.socket.as_fd();
        match self.tx.flush(fd, &mut self.counters)? {
            Flushed::Done => Ok(()),
            Flushed::Lost => self.check_interface(),
        }
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.flush()?;
        if self.ring.is_ready() {
            return Ok(());
        }
        if self.checks.is_time() {
            self.check_interface()?;
        }
        let mut events = PollFlags::IN;
        let mut timeout = timeout;
        match self.tx.blocked() {
            None => {}
            Some(Blocked::Buffer) => events |= PollFlags::OUT,
            Some(Blocked::Device) => timeout = timeout.min(TUNING.unsent_sleep),
        }
        let mut fds = [PollFd::new(&self.socket, events)];
        sleep::poll(&mut fds, timeout, "poll of the packet socket")?;
        if fds[0].revents().contains(PollFlags::ERR) {
            self.take_socket_error()?;
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.flush()?;
        self.take_socket_error()?;
        if self.checks.is_time() {
            self.check_interface()?;
        }
        // Frames in the ring make the descriptor readable by themselves.
        Ok(!self.ring.is_ready())
    }

    fn has_unsent(&mut self) -> bool {
        self.tx.blocked().is_some()
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        if let Ok(mac) = ether::destination(NAME, self.interface.mac, to) {
            let most = self.frame_bytes;
            self.tx.outlet.reach.set(mac, frame_bytes, most);
        }
    }

    #[inline]
    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        let drops = sys::take_drops(self.socket.as_fd()).unwrap_or(0);
        self.ring_drops
            .set(self.ring_drops.get() + u64::from(drops));
        LinkCounters {
            dropped_frames: self.counters.dropped_frames + self.ring_drops.get(),
            ..self.counters
        }
    }
}
