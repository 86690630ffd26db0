//! Memory that two processes share, memory of another process, and calls that hand the kernel addresses.
//!
//! Called by `sender` and `interface` only. Bytes of the shared memory are copied in and out by pointers, never borrowed: the other process may write there.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::AtomicU64;

use io_uring::{IoUring, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags};

use super::ZeroCopies;

/// A mapping of a file, shared with the other process.
#[derive(Debug)]
pub(super) struct Shared {
    base: *mut u8,
    bytes: usize,
}

impl Shared {
    /// Maps the first `bytes` of a file that has so many.
    pub(super) fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Ok(Self {
            base: base.cast(),
            bytes,
        })
    }

    /// The address of the first byte, in this process.
    pub(super) fn address(&self) -> u64 {
        self.base.expose_provenance() as u64
    }

    /// `count` words from `offset` on, which is a multiple of 8.
    pub(super) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8) && self.holds(offset, count * 8));
        // SAFETY: within the mapping (asserted), which is aligned to a page and lives as long as `self`; words may change at any time, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.base.add(offset).cast(), count) }
    }

    /// Copies `bytes` to `offset`.
    pub(super) fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(self.holds(offset, bytes.len()));
        // SAFETY: within the mapping (asserted); `bytes` is not in it, as it gives no references to bytes. The other process does not read here before a word
        // stored with release, afterwards, tells it to.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(offset), bytes.len()) };
    }

    /// Copies bytes from `offset` on into `target`.
    pub(super) fn take(&self, offset: usize, target: &mut [u8]) {
        assert!(self.holds(offset, target.len()));
        // SAFETY: as `put`; any bytes are valid. The other process has written before the word that was loaded with acquire.
        unsafe {
            ptr::copy_nonoverlapping(self.base.add(offset), target.as_mut_ptr(), target.len())
        };
    }

    fn holds(&self, offset: usize, bytes: usize) -> bool {
        offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no reference into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.cast::<c_void>(), self.bytes) };
    }
}

/// Maps `bytes` of fresh memory, pins them (which brings them in), and calls `between` before it gives them back.
pub(super) fn pinned<T>(
    bytes: usize,
    between: impl FnOnce(io::Result<()>) -> T,
    start: impl FnOnce(),
) -> io::Result<T> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
    let base = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)?
    };
    start();
    // SAFETY: the mapping has just been made with this length, and pinning changes no content.
    let result = between(unsafe { rustix::mm::mlock(base, bytes) }.map_err(io::Error::from));
    // SAFETY: the mapping is ours alone, and nothing refers to it.
    let _ = unsafe { rustix::mm::munmap(base, bytes) };
    Ok(result)
}

/// Fills `target` with the bytes at `address` of a process.
pub(super) fn read_process(pid: u32, address: u64, target: &mut [u8]) -> io::Result<usize> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let remote = libc::iovec {
        iov_base: ptr::without_provenance_mut(address as usize), // we build for 64-bit targets
        iov_len: target.len(),
    };
    let local = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    // SAFETY: `local` is exactly the exclusively borrowed target, of which any bytes are valid; the remote range is only read, by the kernel, which checks it
    // against the other process's address space and answers EFAULT otherwise. Each row has one vector, which lives through the call.
    let read = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Hands a pipe the pages under `pieces` by address. Their bytes must not change before the reader has read them, or it reads the changed ones.
pub(super) fn splice(pipe: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: an `IoSlice` has the layout of an iovec; the kernel holds the pages themselves, so that memory which is given back meanwhile is not reused below it;
    // the bytes are only read.
    let sent = unsafe { libc::vmsplice(pipe.as_raw_fd(), pieces.as_ptr().cast(), pieces.len(), 0) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// An io_uring with a part of the shared memory as its only registered buffer.
pub(super) struct Ring {
    ring: IoUring,
    base: *const u8,
    bytes: usize,
}

impl Ring {
    pub(super) fn over(memory: &Shared, offset: usize, bytes: usize) -> io::Result<Self> {
        assert!(memory.holds(offset, bytes));
        let ring = IoUring::new(4)?;
        // SAFETY: within the mapping (asserted).
        let base = unsafe { memory.base.add(offset) };
        let buffer = libc::iovec {
            iov_base: base.cast(),
            iov_len: bytes,
        };
        // SAFETY: the range is mapped now. The kernel holds its pages from here on until the ring is dropped, so that no write of the ring reads memory that was
        // given back and used again.
        unsafe { ring.submitter().register_buffers(&[buffer]) }?;
        Ok(Self { ring, base, bytes })
    }

    /// Writes parts of the buffer one after the other, by one call. How much was written, and why no more was, if the kernel says so. Empty parts are left
    /// out. After an error of the ring itself it must not be used again.
    pub(super) fn write(
        &mut self,
        to: BorrowedFd<'_>,
        parts: [Range<usize>; 2],
    ) -> io::Result<(usize, Option<io::Error>)> {
        let parts = parts.map(|part| {
            assert!(part.start <= part.end && part.end <= self.bytes);
            part
        });
        let count = parts.iter().filter(|part| !part.is_empty()).count();
        let full = parts.into_iter().filter(|part| !part.is_empty());
        for (place, part) in full.enumerate() {
            let length = u32::try_from(part.len()).map_err(io::Error::other)?;
            let from = self.base.wrapping_add(part.start);
            let flags = match place + 1 < count {
                true => squeue::Flags::IO_LINK,
                false => squeue::Flags::empty(),
            };
            let entry = opcode::WriteFixed::new(types::Fd(to.as_raw_fd()), from, length, 0)
                .build()
                .flags(flags);
            // SAFETY: the kernel holds the file from submission on, and the pages of the registered buffer, within which the bytes are (asserted).
            unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        }
        let (mut ended, mut written, mut refused) = (0, 0, None);
        while ended < count {
            // An interrupted wait may end early, with some of them or none.
            match self.ring.submit_and_wait(count - ended) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for end in self.ring.completion() {
                ended += 1;
                match usize::try_from(end.result()) {
                    Ok(more) => written += more,
                    // What follows a short write is cancelled.
                    Err(_) if end.result() == -libc::ECANCELED => {}
                    Err(_) => refused = Some(io::Error::from_raw_os_error(-end.result())),
                }
            }
        }
        Ok((written, refused))
    }
}

/// Has a TCP connection take calls with `MSG_ZEROCOPY`.
pub(super) fn allow_zero_copy(stream: BorrowedFd<'_>) -> io::Result<()> {
    let one: libc::c_int = 1;
    // SAFETY: the value is an int that lives through the call, of the length told.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const one).cast(),
            size_of::<libc::c_int>() as libc::socklen_t, // 4
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Sends pieces into a connection. Without a copy their bytes must not change before the kernel has told the call's end, or the peer reads the changed ones.
pub(super) fn send(
    stream: BorrowedFd<'_>,
    pieces: &[IoSlice<'_>],
    no_copy: bool,
) -> io::Result<usize> {
    // SAFETY: all zeros is a valid header: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len() as _; // its type differs between C libraries; there are two
    let flags = libc::MSG_NOSIGNAL | if no_copy { libc::MSG_ZEROCOPY } else { 0 };
    // SAFETY: an `IoSlice` has the layout of an iovec; the header and what it points to live through the call and are only read. Without a copy the kernel holds
    // the pages themselves, so that memory which is given back meanwhile is not reused below it.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Calls with `MSG_ZEROCOPY` that have ended since, if the kernel tells of any.
pub(super) fn ended_zero_copies(stream: BorrowedFd<'_>) -> io::Result<Option<ZeroCopies>> {
    let mut control = [0_u64; 16];
    // SAFETY: all zeros is a valid header: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _; // its type differs between C libraries
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the header and the control buffer, which is aligned for control messages and has the length told, are exclusively ours and live through the call.
    if unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, flags) } < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        };
    }
    let mut ended = ZeroCopies::default();
    // SAFETY: the header was filled by the kernel, and its control data lies in `control`, which lives.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !next.is_null() {
        // SAFETY: not null, so it points to a whole control message within `control`.
        let head = unsafe { next.read_unaligned() };
        if head.cmsg_level == libc::SOL_IP && head.cmsg_type == libc::IP_RECVERR {
            // SAFETY: the kernel writes a `sock_extended_err` as the data of such a message.
            let error: libc::sock_extended_err = unsafe {
                libc::CMSG_DATA(next)
                    .cast::<libc::sock_extended_err>()
                    .read_unaligned()
            };
            if error.ee_origin == SO_EE_ORIGIN_ZEROCOPY {
                let calls = u64::from(error.ee_data.wrapping_sub(error.ee_info)) + 1;
                ended.calls += calls;
                if u32::from(error.ee_code) & SO_EE_CODE_ZEROCOPY_COPIED != 0 {
                    ended.copied += calls;
                }
            }
        }
        // SAFETY: as above; the header has not changed.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    Ok(Some(ended))
}

// Linux, `linux/errqueue.h`.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u32 = 1;
