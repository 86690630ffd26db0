//! Segments of memory that the gateway shares with programs: those that clients have sent, and those that it makes for servers.
#![allow(unsafe_code)] // Mapping files.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use tsumuji_streams::news;
use tsumuji_streams::ring::{self, Memory, SEGMENT_BYTES};

const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// A mapped segment. Its file can neither shrink nor grow, so no access to it faults.
#[derive(Debug)]
pub(crate) struct Segment {
    memory: Memory,
    file: OwnedFd,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
}

impl Segment {
    /// A new one, of this process.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("tsumuji-gateway", flags)?;
        ftruncate(&file, SEGMENT_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let segment = Self::map(file)?;
        let header = segment.memory.header();
        header
            .client_pid
            .store(std::process::id(), Ordering::Relaxed);
        header.magic.store(ring::MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// One that a client has sent, if it is one.
    pub(crate) fn attach(file: OwnedFd) -> io::Result<Self> {
        let refused = || io::Error::from(io::ErrorKind::InvalidData);
        if !fcntl_get_seals(&file)?.contains(SEALS) || fstat(&file)?.st_size != SEGMENT_BYTES as i64
        {
            return Err(refused());
        }
        let segment = Self::map(file)?;
        if segment.memory.header().magic.load(Ordering::Acquire) != ring::MAGIC {
            return Err(refused());
        }
        Ok(segment)
    }

    fn map(file: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let address = unsafe {
            mmap(
                null_mut(),
                SEGMENT_BYTES,
                access,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        }?;
        Ok(Self {
            // SAFETY: a mapping of that size of a sealed file, which `drop` alone removes; views of it do not outlive the streams, which hold this.
            memory: unsafe { Memory::new(address.cast()) },
            file,
            identity: (stat.st_dev, stat.st_ino),
        })
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Whether the program lives whose connections to other programs lie here.
    pub(crate) fn has_client(&self) -> bool {
        is_alive(self.memory.header().client_pid.load(Ordering::Relaxed))
    }

    /// A number for this process among the waiters of that side. `None`: there are too many.
    pub(crate) fn take_waiter(&self, side: usize) -> Option<usize> {
        news::take_waiter(self.memory, side, std::process::id(), is_alive)
    }

    /// Gives such a number back.
    pub(crate) fn free_waiter(&self, side: usize, waiter: usize) {
        news::free_waiter(self.memory, side, waiter, std::process::id());
    }
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: what refers to the memory holds this.
        let _ = unsafe { munmap(self.memory.address().cast(), SEGMENT_BYTES) };
    }
}
