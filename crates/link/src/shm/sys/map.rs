//! Mappings of the job's file, and single words and rows of words in them.
//!
//! `Map` owns a mapping; views hold it alive and were checked against its bounds when made, so that reading and writing through
//! them needs no check and no `unsafe` outside. Words are touched by atomics only. `rings` has the larger views, `bell` that of
//! a doorbell.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::host::page_bytes;

/// A shared mapping of a part of the job's file.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    bytes: usize,
    writable: bool,
}

// SAFETY: a mapping is not bound to a thread; all access goes through views whose own rules hold on any thread.
unsafe impl Send for Map {}
// SAFETY: `Map` itself offers no access through `&self` but the making of views.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `bytes` bytes of `fd` from `offset` (both multiples of the page size). The file must be sealed and large enough.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Arc<Self>> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a null hint lets the kernel choose a free range, so nothing that exists is replaced.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                prot,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                offset,
            )
        }?;
        // Rings do not help to find why a process died, and would make each core dump larger than all else in it. If the kernel refuses, nothing is
        // lost.
        // SAFETY: the range is the mapping made above; the advice alters no byte of it.
        let _ = unsafe { rustix::mm::madvise(base, bytes, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self {
            base,
            bytes,
            writable,
        }))
    }

    pub(super) fn at<T>(&self, offset: usize, bytes: usize, write: bool) -> NonNull<T> {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "view beyond its map"
        );
        assert!(
            offset.is_multiple_of(align_of::<T>()),
            "view not aligned in its map"
        );
        assert!(
            self.writable || !write,
            "writable view of a read-only mapping"
        );
        // SAFETY: `offset <= bytes`, the size of the live allocation at `base` (a mapping of that size).
        unsafe { self.base.add(offset) }.cast()
    }
}

/// Has the kernel allocate memory for a range now, and not when each of its pages is first accessed. If it cannot, nothing is lost.
///
/// # Safety
/// The range lies in a writable mapping.
pub(super) unsafe fn back(start: NonNull<u8>, bytes: usize) {
    let ahead = start.addr().get() % page_bytes();
    // SAFETY: mappings begin at pages, so the page of `start` is the mapping's as well; the advice alters no byte of it.
    let _ = unsafe {
        rustix::mm::madvise(
            start.as_ptr().wrapping_sub(ahead).cast(),
            ahead + bytes,
            Advice::LinuxPopulateWrite,
        )
    };
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are what mmap gave; every view holds an `Arc` of this map, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// A word of another process: loads only.
#[derive(Debug)]
pub(crate) struct ReadWord {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomic loads only.
unsafe impl Send for ReadWord {}

impl ReadWord {
    pub(crate) fn new(map: &Arc<Map>, offset: usize) -> Self {
        Self {
            at: map.at(offset, 8, false),
            _map: Arc::clone(map),
        }
    }

    #[inline]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        // SAFETY: in bounds, aligned and mapped (checked by `Map::at`); an 8-byte atomic load needs no write access on the
        // 64-bit targets we build for.
        unsafe { self.at.as_ref() }.load(order)
    }
}

/// A word of our own memory.
#[derive(Debug)]
pub(crate) struct WriteWord {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomics only.
unsafe impl Send for WriteWord {}

impl WriteWord {
    pub(crate) fn new(map: &Arc<Map>, offset: usize) -> Self {
        Self {
            at: map.at(offset, 8, true),
            _map: Arc::clone(map),
        }
    }
}

impl std::ops::Deref for WriteWord {
    type Target = AtomicU64;

    #[inline]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: in bounds, aligned and mapped writable (checked by `Map::at`).
        unsafe { self.at.as_ref() }
    }
}
