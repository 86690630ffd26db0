//! The only access of `xdp` to the kernel: mapped memory, the rings' mapping, bpf(2), and ioctls that query a device.
//!
//! The socket's options, `bind`, `poll` and `send` use safe wrappers elsewhere in this module.
#![allow(unsafe_code)] // mmap, bpf(2), SIOCETHTOOL.

use std::ffi::c_void;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;

use super::ring::{Consumer, Parts, Producer};
use crate::ether::request_for;

/// Pages mapped by us, unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages belong to this value and to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Fresh zeroed pages, allocated at once.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        Self::own(start, bytes)
    }

    /// A ring of an AF_XDP socket.
    fn of_socket(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        // SAFETY: as above; the pages are the kernel's ring, meant to be shared.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                fd,
                offset,
            )
        }?;
        Self::own(start, bytes)
    }

    fn own(start: *mut c_void, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// # Safety
    /// Nobody (the kernel included) writes to these bytes while the slice lives.
    pub(super) unsafe fn slice(&self, at: usize, bytes: usize) -> &[u8] {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        // SAFETY: inside the mapping, which lives as long as `self`; initialised, since pages come zeroed; not written to
        // (promised by the caller).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(at), bytes) }
    }

    /// # Safety
    /// Nobody (the kernel included) reads or writes these bytes while the slice lives.
    pub(super) unsafe fn slice_mut(&mut self, at: usize, bytes: usize) -> &mut [u8] {
        assert!(at <= self.bytes && bytes <= self.bytes - at);
        // SAFETY: as for `slice`, and not otherwise accessed (promised by the caller; `&mut self` for our side).
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(at), bytes) }
    }

    /// Pointers to a ring's parts, checked to lie inside the mapping.
    fn ring<E>(&self, offsets: &XdpRingOffset, size: u32) -> io::Result<Parts<E>> {
        let place = |offset: u64, bytes: usize| -> io::Result<NonNull<u8>> {
            let end = (offset as usize).checked_add(bytes);
            // Entries and counters are at most 8-byte aligned; pages start aligned.
            if end.is_none_or(|end| end > self.bytes) || !offset.is_multiple_of(4) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            // SAFETY: just checked to stay inside the mapping.
            Ok(unsafe { self.start.add(offset as usize) })
        };
        let counter = |offset| place(offset, size_of::<AtomicU32>()).map(NonNull::cast);
        if !offsets.desc.is_multiple_of(align_of::<E>() as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Parts {
            producer: counter(offsets.producer)?,
            consumer: counter(offsets.consumer)?,
            flags: offsets.flags.map(counter).transpose()?,
            entries: place(offsets.desc, size as usize * size_of::<E>())?.cast(),
            size,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and no slice or ring end outlives the value that owns it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Maps a ring that we write: fill (`E` = u64) or transmit (`E` = Desc), of `size` entries, a power of two.
///
/// Only `open` calls it, once for each ring of a socket whose rings were set to that size.
pub(super) fn map_producer<E: Copy>(
    fd: BorrowedFd<'_>,
    page_offset: u64,
    offsets: &XdpRingOffset,
    size: u32,
) -> io::Result<Producer<E>> {
    let mapping = map_ring::<E>(fd, page_offset, offsets, size)?;
    let parts = mapping.ring(offsets, size)?;
    // SAFETY: the parts lie in the mapping (checked), aligned as the kernel lays them out; the kernel is the ring's only other
    // user and follows the ring's protocol; we map each ring once.
    Ok(unsafe { Producer::new(parts, Box::new(mapping)) })
}

/// Maps a ring that we read: receive or completion.
pub(super) fn map_consumer<E: Copy>(
    fd: BorrowedFd<'_>,
    page_offset: u64,
    offsets: &XdpRingOffset,
    size: u32,
) -> io::Result<Consumer<E>> {
    let mapping = map_ring::<E>(fd, page_offset, offsets, size)?;
    let parts = mapping.ring(offsets, size)?;
    // SAFETY: as for `map_producer`.
    Ok(unsafe { Consumer::new(parts, Box::new(mapping)) })
}

fn map_ring<E>(
    fd: BorrowedFd<'_>,
    page_offset: u64,
    offsets: &XdpRingOffset,
    size: u32,
) -> io::Result<Mapping> {
    let bytes = offsets.desc as usize + size as usize * size_of::<E>();
    Mapping::of_socket(fd, page_offset, bytes)
}

/// Commands of bpf(2).
const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROGRAM_LOAD: i32 = 5;
#[cfg(test)]
const PROGRAM_TEST_RUN: i32 = 10;
const PROGRAM_BY_ID: i32 = 13;
const OBJECT_INFO: i32 = 15;
const LINK_CREATE: i32 = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROGRAM_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// Flag: the program takes frames of several buffers.
const PROGRAM_HAS_FRAGS: u32 = 1 << 5;
/// Names are cut to this length, with a final zero.
const NAME_BYTES: usize = 16;
/// Room for the verifier's log; our program's needs a hundredth.
const LOG_BYTES: usize = 64 << 10;

/// How a program is attached: `XDP_FLAGS_*`.
pub(super) const ATTACH_GENERIC: u32 = 1 << 1;
pub(super) const ATTACH_NATIVE: u32 = 1 << 2;

/// # Safety
/// `T` is the start of the argument that `command` takes, and every pointer in it is valid for what the command does with it.
unsafe fn bpf<T>(command: i32, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the argument lives for the call and has the stated size; its pointers are as promised.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            ptr::from_mut(argument),
            size_of::<T>(),
        )
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(answer as i32)
}

/// # Safety
/// As for `bpf`; the command must return a new descriptor.
unsafe fn bpf_fd<T>(command: i32, argument: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: promised by the caller.
    let fd = unsafe { bpf(command, argument) }?;
    // SAFETY: a fresh descriptor that nobody else has; bpf(2) sets close-on-exec on all of them.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn object_name(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    let length = name.len().min(NAME_BYTES - 1);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    bytes
}

/// A text that ends with the first zero byte, or with the room for it.
fn text_of(room: &[u8]) -> String {
    let text = room.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// Makes a map from queue number to socket, of `queues` entries.
pub(super) fn create_xskmap(queues: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Argument {
        map_type: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
        flags: u32,
        inner_map: u32,
        numa_node: u32,
        name: [u8; NAME_BYTES],
    }
    let mut argument = Argument {
        map_type: MAP_TYPE_XSKMAP,
        key_bytes: 4,
        value_bytes: 4,
        entries: queues,
        flags: 0,
        inner_map: 0,
        numa_node: 0,
        name: object_name("tsumuji"),
    };
    // SAFETY: the start of the argument of BPF_MAP_CREATE, without pointers; it answers with a descriptor.
    unsafe { bpf_fd(MAP_CREATE, &mut argument) }
}

/// Puts a socket into the map.
pub(super) fn map_socket(
    map: BorrowedFd<'_>,
    queue: u32,
    socket: BorrowedFd<'_>,
) -> io::Result<()> {
    #[repr(C)]
    struct Argument {
        map: u32,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let socket = socket.as_raw_fd().cast_unsigned();
    let mut argument = Argument {
        map: map.as_raw_fd().cast_unsigned(),
        padding: 0,
        key: ptr::from_ref(&queue) as u64,
        value: ptr::from_ref(&socket) as u64,
        flags: 0,
    };
    // SAFETY: the argument of BPF_MAP_UPDATE_ELEM; key and value are the 4 bytes that the map was made with, and live here.
    unsafe { bpf(MAP_UPDATE, &mut argument) }.map(|_| ())
}

/// Why a program was not loaded: the kernel's error, and the verifier's log if there is one.
#[derive(Debug)]
pub(super) struct LoadRefused {
    pub(super) source: io::Error,
    pub(super) log: String,
}

/// Loads an XDP program under a name. `frags`: it also gets frames of several buffers.
pub(super) fn load_program(name: &str, code: &[u64], frags: bool) -> Result<OwnedFd, LoadRefused> {
    #[repr(C)]
    struct Argument {
        program_type: u32,
        instructions: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel_version: u32,
        flags: u32,
        name: [u8; NAME_BYTES],
        interface: u32,
        attach_type: u32,
    }
    let license = c"Dual MIT/GPL";
    let mut argument = Argument {
        program_type: PROGRAM_TYPE_XDP,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: if frags { PROGRAM_HAS_FRAGS } else { 0 },
        name: object_name(name),
        interface: 0,
        attach_type: ATTACH_XDP,
    };
    // SAFETY: the start of the argument of BPF_PROG_LOAD; code and licence live for the call; it answers with a descriptor.
    let source = match unsafe { bpf_fd(PROGRAM_LOAD, &mut argument) } {
        Ok(program) => return Ok(program),
        Err(source) => source,
    };
    // Once more, now with the verifier's log.
    let mut log = vec![0u8; LOG_BYTES];
    argument.log_level = 1;
    argument.log_bytes = log.len() as u32;
    argument.log = log.as_mut_ptr() as u64;
    // SAFETY: as above; the log has the stated length and lives for the call.
    let again = unsafe { bpf_fd(PROGRAM_LOAD, &mut argument) };
    if let Ok(program) = again {
        return Ok(program);
    }
    let log = text_of(&log);
    Err(LoadRefused { source, log })
}

/// Attaches a program to an interface. It stays until the descriptor is closed, however the process ends.
pub(super) fn attach(
    program: BorrowedFd<'_>,
    interface: u32,
    mode_flags: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Argument {
        program: u32,
        interface: u32,
        attach_type: u32,
        flags: u32,
    }
    let mut argument = Argument {
        program: program.as_raw_fd().cast_unsigned(),
        interface,
        attach_type: ATTACH_XDP,
        flags: mode_flags,
    };
    // SAFETY: the start of the argument of BPF_LINK_CREATE, without pointers; it answers with a descriptor.
    unsafe { bpf_fd(LINK_CREATE, &mut argument) }
}

/// The name of a loaded program.
pub(super) fn program_name(id: u32) -> io::Result<String> {
    #[repr(C)]
    struct ById {
        id: u32,
        next: u32,
        flags: u32,
    }
    #[repr(C)]
    struct Info {
        fd: u32,
        bytes: u32,
        info: u64,
    }
    /// The start of `struct bpf_prog_info`, up to the name; the kernel fills only the size it is given.
    #[repr(C)]
    struct ProgramInfo {
        front: [u32; 16],
        name: [u8; NAME_BYTES],
    }
    let mut by_id = ById {
        id,
        next: 0,
        flags: 0,
    };
    // SAFETY: the argument of BPF_PROG_GET_FD_BY_ID, without pointers; it answers with a descriptor.
    let program = unsafe { bpf_fd(PROGRAM_BY_ID, &mut by_id) }?;
    let mut found = ProgramInfo {
        front: [0; 16],
        name: [0; NAME_BYTES],
    };
    let mut argument = Info {
        fd: program.as_raw_fd().cast_unsigned(),
        bytes: size_of::<ProgramInfo>() as u32,
        info: ptr::from_mut(&mut found) as u64,
    };
    // SAFETY: the argument of BPF_OBJ_GET_INFO_BY_FD; `found` lives for the call and has the stated size. All its pointer
    // fields come after what we ask for or are zero, so that the kernel writes nowhere else.
    unsafe { bpf(OBJECT_INFO, &mut argument) }?;
    Ok(text_of(&found.name))
}

/// Runs a loaded program on a frame, without any interface; returns its result.
#[cfg(test)]
pub(super) fn test_run(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    struct Argument {
        program: u32,
        answer: u32,
        bytes_in: u32,
        bytes_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        nanoseconds: u32,
    }
    let mut argument = Argument {
        program: program.as_raw_fd().cast_unsigned(),
        answer: 0,
        bytes_in: frame.len() as u32,
        bytes_out: 0,
        data_in: frame.as_ptr() as u64,
        data_out: 0,
        repeat: 1,
        nanoseconds: 0,
    };
    // SAFETY: the start of the argument of BPF_PROG_TEST_RUN; the frame lives for the call and has the stated length, nothing
    // is written back (no output buffer).
    unsafe { bpf(PROGRAM_TEST_RUN, &mut argument) }?;
    Ok(argument.answer)
}

/// Moves the calling thread into a network namespace of its own. The kernel removes it with all its interfaces once the thread has ended and its
/// sockets are closed.
pub(super) fn enter_private_network() -> io::Result<()> {
    // SAFETY: only the network namespace is left; tables of descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
    Ok(())
}

/// `SIOCETHTOOL` and its commands.
const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const DRIVER_NAME_BYTES: usize = 32;

/// # Safety
/// `T` is what the ethtool command in its first word reads and writes.
unsafe fn ethtool<T>(name: &str, argument: &mut T) -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    let mut request = request_for(name)?;
    request.ifr_ifru.ifru_data = ptr::from_mut(argument).cast();
    // SAFETY: name and argument live for the call; the command touches what the caller promised.
    let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCETHTOOL as _, &mut request) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The driver of an interface.
pub(super) fn driver(name: &str) -> io::Result<String> {
    /// `struct ethtool_drvinfo`.
    #[repr(C)]
    struct DriverInfo {
        command: u32,
        driver: [u8; DRIVER_NAME_BYTES],
        rest: [u8; 160],
    }
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; DRIVER_NAME_BYTES],
        rest: [0; 160],
    };
    // SAFETY: as long as `struct ethtool_drvinfo` (196 bytes), asserted below.
    unsafe { ethtool(name, &mut info) }?;
    const { assert!(size_of::<DriverInfo>() == 196) };
    Ok(text_of(&info.driver))
}

/// Number of receive queues in use. An error: the driver does not state it.
pub(super) fn receive_queues(name: &str) -> io::Result<u32> {
    /// `struct ethtool_channels`.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        maxima: [u32; 4],
        receive: u32,
        transmit: u32,
        other: u32,
        combined: u32,
    }
    let mut channels = Channels {
        command: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    // SAFETY: the layout of `struct ethtool_channels`.
    unsafe { ethtool(name, &mut channels) }?;
    Ok(channels.receive.saturating_add(channels.combined))
}
