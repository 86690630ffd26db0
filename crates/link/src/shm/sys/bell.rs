//! Wakes a sleeper: by a futex on its word in the mapped memory, or by a datagram to its socket.
//!
//! `doorbell` decides when to ring and how.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::futex;

use super::map::Map;
use crate::shm::doorbell::BellWord;

/// A doorbell word.
#[derive(Debug)]
pub(crate) struct BellRef {
    _map: Arc<Map>,
    at: NonNull<AtomicU32>,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomics only.
unsafe impl Send for BellRef {}

impl BellRef {
    pub(crate) fn new(map: &Arc<Map>, offset: usize) -> Self {
        Self {
            at: map.at(offset, 4, true),
            _map: Arc::clone(map),
        }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: in bounds, aligned and mapped writable (checked by `Map::at`).
        unsafe { self.at.as_ref() }
    }

    /// Wakes the process that waits for the word.
    pub(crate) fn futex_wake(&self) {
        let _ = futex::wake(self.word(), futex::Flags::empty(), 1);
    }

    /// Sleeps while the word is `expected`; may return early.
    pub(crate) fn futex_wait(&self, expected: u32, timeout: Duration) -> io::Result<()> {
        let timeout = rustix::time::Timespec::try_from(timeout).ok();
        match futex::wait(
            self.word(),
            futex::Flags::empty(),
            expected,
            timeout.as_ref(),
        ) {
            Ok(())
            | Err(
                rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT,
            ) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

impl BellWord for BellRef {
    #[inline]
    fn load(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    fn store(&self, word: u32) {
        self.word().store(word, Ordering::Release);
    }

    fn swap_if(&self, from: u32, to: u32) -> Result<(), u32> {
        self.word()
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

/// Bytes read per call when the bell socket is emptied; each byte is a datagram.
const BELL_DRAIN_MAX: usize = 64;

/// The socket that makes us wakeable through a descriptor: abstract, so that nothing is left in the file system.
#[derive(Debug)]
pub(crate) struct BellSocket {
    fd: OwnedFd,
    name: u64,
}

impl BellSocket {
    /// Binds to a free abstract name that the kernel chooses.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&fd, &SocketAddrUnix::new_unnamed())?;
        let addr = SocketAddrUnix::try_from(rustix::net::getsockname(&fd)?)?;
        let name = addr
            .abstract_name()
            .and_then(pack_name)
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { fd, name })
    }

    /// Our name, packed into a word: the length in the lowest byte.
    pub(crate) fn name(&self) -> u64 {
        self.name
    }

    /// Readable when a peer rang.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Removes all rings so far.
    pub(crate) fn drain(&self) {
        let mut byte = [0u8; 1];
        for _ in 0..BELL_DRAIN_MAX {
            if rustix::net::recv(&self.fd, &mut byte, RecvFlags::DONTWAIT).is_err() {
                return;
            }
        }
    }

    /// Rings a peer by its packed name. No error matters: a full queue is readable already, and a peer that is gone needs no bell.
    pub(crate) fn ring(&self, name: u64) {
        let bytes = name.to_le_bytes();
        let Some(name) = bytes[1..].get(..usize::from(bytes[0])) else {
            return;
        };
        if let Ok(addr) = SocketAddrUnix::new_abstract_name(name) {
            let _ = rustix::net::sendto(
                &self.fd,
                &[1],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
                &addr,
            );
        }
    }
}

/// The kernel's own names are 5 hexadecimal digits; up to 7 bytes fit.
fn pack_name(name: &[u8]) -> Option<u64> {
    let mut bytes = [0; 8];
    bytes[1..].get_mut(..name.len())?.copy_from_slice(name);
    bytes[0] = name.len() as u8;
    Some(u64::from_le_bytes(bytes))
}
