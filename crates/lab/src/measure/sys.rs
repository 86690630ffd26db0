//! Memory that two processes share, memory of another process, and calls that hand the kernel addresses.
//!
//! Called by `sender` and `interface` only. Bytes of the shared memory are copied in and out by pointers, never borrowed: the other process may write there.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

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
    let sent = unsafe {
        libc::vmsplice(
            std::os::fd::AsRawFd::as_raw_fd(&pipe),
            pieces.as_ptr().cast(),
            pieces.len(),
            0,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
