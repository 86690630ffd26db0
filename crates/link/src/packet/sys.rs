//! The only access of `packet` to the kernel: options of the socket, and the mapped receive ring.
//!
//! Invariant of `RxRing`: `base` is a mapping of `geometry.bytes()` bytes that lives as long as the ring, and every offset that `Cursor` gives lies a
//! whole slot before its end. A slot belongs to the kernel while its status word lacks TP_STATUS_USER and to us from then until we store
//! TP_STATUS_KERNEL; the frame is borrowed only in between.
#![allow(unsafe_code)] // mmap and slots shared with the kernel; setsockopt, bind with structures of AF_PACKET.

use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::rx::{Cursor, Geometry, Raw};
use crate::ether::ETHERTYPE;
use crate::gather::{option, set_option};

fn set_packet_option(fd: BorrowedFd<'_>, name: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_PACKET, name, value)
}

/// Chooses version 2 of the ring: a slot for each frame, passed on at once.
pub(super) fn choose_ring_version(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_packet_option(
        fd,
        libc::PACKET_VERSION,
        libc::tpacket_versions::TPACKET_V2 as c_int,
    )
}

/// Sends frames straight to the device, past its queueing discipline.
pub(super) fn bypass_qdisc(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_packet_option(fd, libc::PACKET_QDISC_BYPASS, 1)
}

/// Asks for a send buffer of `bytes`; the kernel may grant less.
pub(super) fn enlarge_send_buffer(fd: BorrowedFd<'_>, bytes: usize) {
    let bytes = bytes.min(1 << 30) as c_int;
    // Forcing needs CAP_NET_ADMIN; without it the kernel caps what we ask for.
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
        .or_else(|_| set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes));
}

/// Binds the socket: it receives frames of our EtherType from the interface `index`, and sends there.
pub(super) fn bind(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sockaddr_ll`.
    let mut addr: libc::sockaddr_ll = unsafe { zeroed() };
    addr.sll_family = libc::AF_PACKET as u16;
    addr.sll_protocol = ETHERTYPE.to_be();
    addr.sll_ifindex = index as c_int;
    // SAFETY: the kernel reads a `sockaddr_ll` of the stated length.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const addr).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Frames that the kernel dropped because the ring was full, since the last call.
pub(super) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let none = libc::tpacket_stats {
        tp_packets: 0,
        tp_drops: 0,
    };
    // SAFETY: plain integers.
    let stats = unsafe { option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, none) }?;
    Ok(stats.tp_drops)
}

/// Offset of the cache line of a slot in which the Ethernet header begins, two bytes after the line.
const FRAME_LINE: usize = 64;
/// Offset of the line in which a small message ends; it is copied after the engine has read its header.
const MESSAGE_LINE: usize = 128;

/// The receive ring of one socket.
#[derive(Debug)]
pub(super) struct RxRing {
    base: NonNull<u8>,
    geometry: Geometry,
    cursor: Cursor,
}

// SAFETY: the mapping is not bound to a thread, and only this value refers to it.
unsafe impl Send for RxRing {}

impl RxRing {
    /// Gives the socket a ring of that shape and maps it. Once for each socket, before `bind`.
    pub(super) fn new(fd: BorrowedFd<'_>, geometry: Geometry) -> io::Result<Self> {
        let request = libc::tpacket_req {
            tp_block_size: geometry.block_bytes as u32,
            tp_block_nr: geometry.blocks as u32,
            tp_frame_size: geometry.slot_bytes as u32,
            tp_frame_nr: geometry.slots() as u32,
        };
        set_option(fd, libc::SOL_PACKET, libc::PACKET_RX_RING, request)?;
        // SAFETY: a null hint lets the kernel choose a free range, so nothing that exists is replaced.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut::<c_void>(),
                geometry.bytes(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            base,
            geometry,
            cursor: Cursor::default(),
        })
    }

    pub(super) fn slots(&self) -> usize {
        self.geometry.slots()
    }

    #[inline]
    fn slot(&self) -> NonNull<u8> {
        // SAFETY: the cursor's offset lies a whole slot before the end of the mapping (invariant above).
        unsafe { self.base.add(self.cursor.offset()) }
    }

    /// Prefetches one cache line of the next slot.
    #[inline]
    fn expect(&self, line: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = self.slot().as_ptr().wrapping_add(line);
            // SAFETY: a hint, which reads and faults nowhere; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast_const().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    #[inline]
    fn status(&self) -> &AtomicU32 {
        let at = offset_of!(libc::tpacket2_hdr, tp_status);
        // SAFETY: within the slot, which the mapping holds; slots are aligned to 64 bytes and the mapping to a page. The kernel
        // and we touch this word as a whole only.
        unsafe { self.slot().add(at).cast().as_ref() }
    }

    /// Whether the next slot holds a frame.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        // Fetched together with the status: a polling program would else wait for another core's cache once more.
        self.expect(FRAME_LINE);
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Passes the next frame to `on_frame` and returns its slot to the kernel. `false`: there is none.
    #[inline]
    pub(super) fn next(&mut self, on_frame: impl FnOnce(Raw<'_>)) -> bool {
        if !self.is_ready() {
            return false;
        }
        self.expect(MESSAGE_LINE);
        // SAFETY: the slot is ours since `is_ready` saw the status with Acquire; the kernel wrote a header at its start, which is
        // plain integers and aligned as the slot is.
        let header = unsafe { self.slot().cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: in bounds of the mapping for the whole slot; the kernel writes nothing there until the status is given back
        // by `ReturnSlot`, after `on_frame` has ended and with it the borrow.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.slot().as_ptr().cast_const(), self.geometry.slot_bytes)
        };
        let slot = ReturnSlot(self);
        on_frame(Raw {
            slot: bytes,
            at: header.tp_mac.into(),
            kept_bytes: header.tp_snaplen as usize,
            frame_bytes: header.tp_len as usize,
        });
        drop(slot);
        true
    }
}

/// Gives the slot back to the kernel at its end, also if a panic ends it: no frame is delivered twice.
struct ReturnSlot<'a>(&'a mut RxRing);

impl Drop for ReturnSlot<'_> {
    #[inline]
    fn drop(&mut self) {
        let Self(ring) = self;
        ring.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        ring.cursor.advance(&ring.geometry);
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // SAFETY: `base` and the length are what mmap gave; frames are borrowed only within `next`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.geometry.bytes()) };
    }
}
