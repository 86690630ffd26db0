//! The set-up of an AF_XDP link: choose, register, load, attach, bind.
//!
//! The order matters: rings are filled before `bind`, the program is attached before `bind` (some drivers want it for zero-copy),
//! and the socket enters the program's map last, so that frames go to the kernel until all is ready. Whatever fails, the
//! descriptors made so far close and nothing stays attached.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::device::{self, Device};
use super::errors::{XdpOpenError, mend_rights, missing_rights};
use super::rx::Rx;
use super::tx::Tx;
use super::umem::{HEADROOM_BYTES, Layout, Umem};
use super::{FRAME_BYTES_MAX, Xdp, XdpConfig, XdpMode, program, sys};
use crate::ether::{
    self, Checks, ETHERTYPE, HEADER_BYTES, Interface, LEAD_BYTES, LENGTH_BYTES, Stations, Watch,
};
use crate::tuning::TUNING;
use crate::{LinkCounters, LinkError};

/// Frames smaller than this are of no use to a cluster.
pub(super) const FRAME_BYTES_MIN: usize = 512;
/// A chunk for frames up to 1500 bytes, and for longer ones: the kernel allows no more than a page.
const CHUNK_BYTES_SMALL: usize = 2048;
const CHUNK_BYTES_LARGE: usize = 4096;
/// Above this MTU drivers take a program only if it supports frames of several buffers (a page less headroom and bookkeeping).
pub(super) const MTU_ONE_BUFFER_BYTES: usize = 3498;
/// Bytes of two VLAN tags, which may precede our data.
const TAGS_BYTES: usize = 8;
/// Chunks for which locked memory must at least have room.
const RECEIVE_CHUNKS_MIN: u32 = 64;
/// A larger ring is a typing error: it would be a quarter of a gigabyte.
const RECEIVE_CHUNKS_MAX: u32 = 1 << 16;
/// The only receive queue.
const QUEUE: u32 = 0;
/// Name of our program, by which a leftover is told from a foreign program.
const PROGRAM_NAME: &str = "tsumuji";

/// Input of all steps.
struct Plan<'a> {
    interface: &'a Interface,
    config: XdpConfig,
    frame_bytes: usize,
    /// Frames may take several buffers.
    several_buffers: bool,
    chunk_bytes: usize,
    device: Device,
}

pub(super) fn open(name: &str, config: XdpConfig) -> Result<Xdp, XdpOpenError> {
    let interface = Interface::open(name)?;
    interface.require_ethernet()?;
    let claim = ether::claim(&interface)?;
    interface.wait_up(config.up_timeout)?;
    let plan = Plan::new(&interface, config)?;
    let socket = plan.socket()?;
    let (mut umem, chunks_per_frame) = plan.register_umem(&socket)?;
    let (rx, ring, completion) = plan.map_rings(&socket, &mut umem)?;
    let map = sys::create_xskmap(QUEUE + 1)
        .map_err(|source| plan.failed("making the map of sockets", source))?;
    let (_program, attachment, native) = plan.attach(map.as_fd())?;
    let zero_copy = plan.bind(&socket, native)?;
    sys::map_socket(map.as_fd(), QUEUE, socket.as_fd())
        .map_err(|source| plan.failed("entering the socket into the map", source))?;
    let addresses = hold_addresses(&interface, config.slots)
        .map_err(|source| plan.failed("giving the interface further addresses", source))?;
    let tx = Tx::new(ring, completion, interface.mac, plan.frame_bytes, zero_copy);
    let receive_chunks = umem.layout().receive_chunks as usize;
    let mut link = Xdp {
        _attachment: attachment,
        #[cfg(test)]
        program: _program,
        _map: map,
        rx,
        tx,
        socket,
        umem,
        mac: interface.mac,
        frame_bytes: plan.frame_bytes,
        receive_frames: (ether::granted_slots(receive_chunks) / chunks_per_frame).max(1),
        native,
        zero_copy,
        watch: Watch::new(&interface),
        checks: Checks::default(),
        removed: false,
        counters: LinkCounters::default(),
        _addresses: addresses,
        _claim: claim,
    };
    // Some drivers restart the device for a program.
    interface.wait_up(config.up_timeout)?;
    link.announce().map_err(|error| match error {
        LinkError::Io { what, source } => plan.failed(what, source),
        _ => plan.failed("announcing ourselves", io::ErrorKind::Other.into()),
    })?;
    tracing::debug!(
        interface = name,
        native,
        zero_copy,
        receive_chunks,
        "AF_XDP link open"
    );
    Ok(link)
}

/// Makes the interface receive frames for all its stations, as long as the socket is open; `None`: it has one, and needs none.
fn hold_addresses(interface: &Interface, slots: u8) -> io::Result<Option<OwnedFd>> {
    if slots <= 1 {
        return Ok(None);
    }
    let stations = Stations {
        base: interface.mac,
        slots,
    };
    // No protocol: nothing is delivered to it.
    let socket = rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    for mac in stations.addresses().skip(1) {
        ether::add_address(socket.as_fd(), interface.index, mac)?;
    }
    Ok(Some(socket))
}

impl<'a> Plan<'a> {
    /// Checks the options against the interface.
    fn new(interface: &'a Interface, config: XdpConfig) -> Result<Self, XdpOpenError> {
        let name = || interface.name.clone();
        let mtu = interface.mtu_bytes;
        let limit = mtu.saturating_sub(LENGTH_BYTES).min(FRAME_BYTES_MAX);
        let frame_bytes = config.frame_bytes.unwrap_or(limit);
        if !(FRAME_BYTES_MIN..=limit).contains(&frame_bytes) {
            return Err(XdpOpenError::FrameBytes {
                interface: name(),
                frame_bytes,
                limit,
            });
        }
        let device = Device::ask(&interface.name, interface.index);
        if let Some(queues) = device.receive_queues.filter(|queues| *queues > 1) {
            return Err(XdpOpenError::ManyQueues {
                interface: name(),
                queues,
                channels: device.channels(),
            });
        }
        let several_buffers = mtu > MTU_ONE_BUFFER_BYTES;
        let small = mtu + HEADER_BYTES + TAGS_BYTES + HEADROOM_BYTES <= CHUNK_BYTES_SMALL;
        Ok(Self {
            interface,
            config,
            frame_bytes,
            several_buffers,
            chunk_bytes: if small {
                CHUNK_BYTES_SMALL
            } else {
                CHUNK_BYTES_LARGE
            },
            device,
        })
    }

    fn name(&self) -> String {
        self.interface.name.clone()
    }

    /// The kernel's error, or the missing capability that it means.
    fn failed(&self, step: &'static str, source: io::Error) -> XdpOpenError {
        if !matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
            return XdpOpenError::Io {
                what: step,
                interface: self.name(),
                source,
            };
        }
        let mut missing = missing_rights();
        if missing.is_empty() {
            missing.push("its capabilities outside of any user namespace");
        }
        XdpOpenError::Rights {
            interface: self.name(),
            step,
            missing: missing.join(" and "),
            mend: mend_rights(),
        }
    }

    fn socket(&self) -> Result<OwnedFd, XdpOpenError> {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(
            |errno| match errno {
                Errno::AFNOSUPPORT => XdpOpenError::NoAfXdp,
                _ => self.failed("opening an AF_XDP socket", errno.into()),
            },
        )
    }

    /// Makes and registers the shared memory; also returns how many receive chunks the largest frame takes.
    fn register_umem(&self, socket: &OwnedFd) -> Result<(Umem, usize), XdpOpenError> {
        let bytes_on_wire = self.frame_bytes + LEAD_BYTES;
        let chunks_per_frame = bytes_on_wire.div_ceil(self.chunk_bytes - HEADROOM_BYTES);
        let mut receive_chunks = match self.config.ring_frames {
            None => (TUNING.xdp.receive_bytes / self.chunk_bytes) as u32,
            Some(ring_frames) => {
                let limit = RECEIVE_CHUNKS_MAX / chunks_per_frame as u32;
                if !(1..=limit).contains(&ring_frames) {
                    return Err(XdpOpenError::RingFrames {
                        ring_frames,
                        frame_bytes: self.frame_bytes,
                        limit,
                    });
                }
                (ring_frames * chunks_per_frame as u32).next_power_of_two()
            }
        };
        let large = self.chunk_bytes == CHUNK_BYTES_LARGE;
        let chunks_per_slot = bytes_on_wire.div_ceil(self.chunk_bytes) as u32;
        let slots = match (large, chunks_per_slot > TUNING.xdp.chunks_few) {
            (false, _) => TUNING.xdp.slots_small,
            (true, false) => TUNING.xdp.slots_large,
            (true, true) => TUNING.xdp.slots_huge,
        };
        loop {
            let layout = Layout {
                chunk_bytes: self.chunk_bytes,
                receive_chunks,
                slots,
                chunks_per_slot,
            };
            let umem = Umem::new(layout)
                .map_err(|source| self.failed("mapping the shared memory", source))?;
            let registration = XdpUmemReg {
                addr: umem.addr(),
                len: umem.bytes() as u64,
                chunk_size: self.chunk_bytes as u32,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            };
            match sockopt::set_xdp_umem_reg(socket, registration) {
                Ok(()) => return Ok((umem, chunks_per_frame)),
                Err(Errno::NOBUFS) => {
                    let fixed = self.config.ring_frames.is_some();
                    if fixed || receive_chunks / 2 < RECEIVE_CHUNKS_MIN {
                        return Err(XdpOpenError::LockedMemory {
                            bytes: umem.bytes(),
                            mend: mend_rights(),
                        });
                    }
                    receive_chunks /= 2;
                }
                Err(errno) => {
                    return Err(self.failed("registering the shared memory", errno.into()));
                }
            }
        }
    }

    /// Sizes and maps the four rings, and gives the kernel all receive chunks.
    fn map_rings(
        &self,
        socket: &OwnedFd,
        umem: &mut Umem,
    ) -> Result<
        (
            Rx,
            super::ring::Producer<super::ring::Desc>,
            super::ring::Consumer<u64>,
        ),
        XdpOpenError,
    > {
        let failed = |source: io::Error| self.failed("setting up the rings", source);
        let layout = umem.layout();
        let receive = layout.receive_chunks;
        let transmit = (layout.slots * layout.chunks_per_slot).next_power_of_two();
        let fill = receive * TUNING.xdp.fill_ring_factor;
        sockopt::set_xdp_umem_fill_ring_size(socket, fill)
            .and_then(|()| sockopt::set_xdp_rx_ring_size(socket, receive))
            .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(socket, transmit))
            .and_then(|()| sockopt::set_xdp_tx_ring_size(socket, transmit))
            .map_err(|errno| failed(errno.into()))?;
        let offsets = sockopt::xdp_mmap_offsets(socket).map_err(|errno| failed(errno.into()))?;
        let fd = socket.as_fd();
        let fill = sys::map_producer(fd, XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, fill);
        let ring = sys::map_consumer(fd, XDP_PGOFF_RX_RING, &offsets.rx, receive);
        let transmit_ring = sys::map_producer(fd, XDP_PGOFF_TX_RING, &offsets.tx, transmit);
        let completion =
            sys::map_consumer(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, transmit);
        let rx = Rx::new(fill.map_err(failed)?, ring.map_err(failed)?, umem);
        Ok((
            rx,
            transmit_ring.map_err(failed)?,
            completion.map_err(failed)?,
        ))
    }

    /// Loads the program and attaches it. Returns program, attachment, and whether it runs in the driver.
    fn attach(&self, map: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd, bool), XdpOpenError> {
        let stations = Stations {
            base: self.interface.mac,
            slots: self.config.slots,
        };
        let code = program::assemble(stations, ETHERTYPE, map.as_raw_fd());
        let program =
            sys::load_program(PROGRAM_NAME, &code, self.several_buffers).map_err(|refused| {
                match refused.source.raw_os_error() {
                    Some(libc::EPERM) => self.failed("loading the XDP program", refused.source),
                    _ => XdpOpenError::Program {
                        verifier: program::last_useful_line(&refused.log).to_owned(),
                        source: refused.source,
                    },
                }
            })?;
        let try_native = match self.config.mode {
            XdpMode::Native => true,
            XdpMode::Generic => false,
            XdpMode::Auto => self.device.prefers_native(self.several_buffers),
        };
        if try_native {
            match self.attach_as(&program, sys::ATTACH_NATIVE) {
                Ok(attachment) => return Ok((program, attachment, true)),
                Err(source) if self.config.mode == XdpMode::Native || is_final(&source) => {
                    return Err(self.attach_error(source));
                }
                Err(source) => {
                    tracing::debug!("{} has no native XDP: {source}", self.interface.name);
                }
            }
        }
        match self.attach_as(&program, sys::ATTACH_GENERIC) {
            Ok(attachment) => Ok((program, attachment, false)),
            Err(source) => Err(self.attach_error(source)),
        }
    }

    fn attach_as(&self, program: &OwnedFd, mode: u32) -> io::Result<OwnedFd> {
        let mut tries = 0;
        loop {
            tries += 1;
            match sys::attach(program.as_fd(), self.interface.index, mode) {
                Err(error)
                    if tries < TUNING.xdp.open_tries && is_taken(&error) && self.has_leftover() =>
                {
                    std::thread::sleep(TUNING.xdp.open_pause);
                }
                answer => return answer,
            }
        }
    }

    /// Whether the attached program is one of ours: we hold the claim, so its process is ending.
    fn has_leftover(&self) -> bool {
        match device::attached(self.interface.index) {
            Ok(Some(attached)) => attached.name.as_deref() == Some(PROGRAM_NAME),
            // It is gone meanwhile.
            Ok(None) => true,
            Err(_) => false,
        }
    }

    fn attach_error(&self, source: io::Error) -> XdpOpenError {
        match source.raw_os_error() {
            _ if is_taken(&source) => XdpOpenError::Occupied {
                interface: self.name(),
                program: match device::attached(self.interface.index) {
                    Ok(Some(program)) => program.to_string(),
                    _ => "of unknown name".to_owned(),
                },
            },
            Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ERANGE | libc::ENOTSUP)
                if self.config.mode == XdpMode::Native =>
            {
                XdpOpenError::NotNative {
                    interface: self.name(),
                    driver: self.device.driver.clone(),
                    source,
                }
            }
            _ => self.failed("attaching the XDP program", source),
        }
    }

    /// Binds the socket to the queue. Returns whether the device copies nothing.
    fn bind(&self, socket: &OwnedFd, native: bool) -> Result<bool, XdpOpenError> {
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        if self.several_buffers {
            flags |= SocketAddrXdpFlags::XDP_USE_SG;
        }
        // In generic mode there is no zero-copy; else the kernel tries it, and falls back.
        if !native {
            flags |= SocketAddrXdpFlags::XDP_COPY;
        }
        let addr = SocketAddrXdp::new(flags, self.interface.index, QUEUE);
        let mut tries = 0;
        loop {
            tries += 1;
            match rustix::net::bind(socket, &addr) {
                Ok(()) => break,
                Err(Errno::BUSY) if tries < TUNING.xdp.open_tries => {
                    std::thread::sleep(TUNING.xdp.open_pause)
                }
                Err(errno) => return Err(self.bind_error(errno)),
            }
        }
        let options = sockopt::xdp_options(socket).unwrap_or(XdpOptionsFlags::empty());
        Ok(options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }

    fn bind_error(&self, errno: Errno) -> XdpOpenError {
        match errno {
            Errno::BUSY => XdpOpenError::QueueBusy {
                interface: self.name(),
            },
            Errno::INVAL if self.several_buffers => XdpOpenError::Mtu {
                interface: self.name(),
                mtu: self.interface.mtu_bytes,
            },
            _ => self.failed("binding the AF_XDP socket", errno.into()),
        }
    }
}

/// Whether another program has the interface.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST))
}

/// Whether a second attempt in the other mode would be wrong or useless.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}
