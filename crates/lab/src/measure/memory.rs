//! What lies where in the memory of sender and interface, and what a descriptor says.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use super::sys::Shared;

/// Longest message.
pub const BYTES_MAX: usize = 1 << 20;
/// Words that only one side writes lie in lines of their own.
const LINE_BYTES: usize = 128;
const CONTROL_BYTES: usize = 4096;
/// Registered memory of the program: a descriptor, then data.
pub(super) const REGISTERED: usize = CONTROL_BYTES;
pub(super) const REGISTERED_DATA: usize = REGISTERED + 4096;
/// The interface's ring, of one slot: a descriptor, then data.
pub(super) const RING: usize = REGISTERED_DATA + BYTES_MAX;
pub(super) const RING_DATA: usize = RING + 4096;
/// All of it.
pub(super) const ALL_BYTES: usize = RING_DATA + BYTES_MAX;
pub(super) const DESCRIPTOR_BYTES: usize = 32;
/// Polls of a loop that waits before it gives its core away.
const SPINS: u32 = 2000;

/// Lines of the control block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Line {
    /// Sender: 0 while nothing is measured, the way and one, or [`STOP`]; whether to stamp; process; address of the memory; port of its
    /// TCP listener.
    Mode,
    /// Sender: number of the message; address of its descriptor.
    Doorbell,
    /// Interface: number of the message that is on the wire.
    Done,
    /// Interface: number of the message that was received; why it was not, or 0: an error of the kernel, or [`DAMAGED`].
    Received,
    /// Interface: when it saw the doorbell, had the descriptor, had the address, had the data.
    Stamps,
    /// Interface: port of its end of the TCP connection; why there is none, or 0: an error of the kernel.
    Stream,
}

/// In place of an error of the kernel: the data was not what was sent.
pub(super) const DAMAGED: u64 = u64::MAX;

/// The interface ends.
pub(super) const STOP: u64 = u64::MAX;

/// The memory of both.
#[derive(Debug)]
pub(super) struct Memory(pub(super) Shared);

impl Memory {
    pub(super) fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        Shared::map(file, ALL_BYTES).map(Self)
    }

    pub(super) fn word(&self, line: Line, word: usize) -> &AtomicU64 {
        &self.0.words(line as usize * LINE_BYTES, LINE_BYTES / 8)[word]
    }

    pub(super) fn load(&self, line: Line, word: usize) -> u64 {
        self.word(line, word).load(Ordering::Acquire)
    }

    pub(super) fn store(&self, line: Line, word: usize, value: u64) {
        self.word(line, word).store(value, Ordering::Release);
    }
}

/// What the interface must know of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) number: u64,
    /// In the sender's address space.
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) checksum: u64,
}

impl Descriptor {
    pub(super) fn words(self) -> [u64; 4] {
        [self.number, self.address, self.bytes, self.checksum]
    }

    pub(super) fn to_bytes(self) -> [u8; DESCRIPTOR_BYTES] {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn parse(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let word = |place: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[place * 8..place * 8 + 8]);
            u64::from_ne_bytes(word)
        };
        Self {
            number: word(0),
            address: word(1),
            bytes: word(2),
            checksum: word(3),
        }
    }
}

/// A sum in which every byte's value and place count.
pub(super) fn checksum(data: &[u8]) -> u64 {
    let words = data.chunks_exact(8);
    let mut rest = [0; 8];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    let words = words.map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
    let all = words.chain([u64::from_ne_bytes(rest)]);
    let weighed = all
        .enumerate()
        .map(|(place, word)| word.wrapping_mul(2 * place as u64 + 1));
    weighed.fold(data.len() as u64, u64::wrapping_add)
}

/// How an error of the kernel is told in a word; never 0.
pub(super) fn code_of(error: &io::Error) -> u64 {
    u64::from(error.raw_os_error().unwrap_or(libc::EPERM).unsigned_abs())
}

/// The error that a word tells.
pub(super) fn error_of(code: u64) -> io::Error {
    io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(libc::EPERM))
}

/// Nanoseconds of a clock that all processes share.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// A poll of a loop that waits found nothing. `true`: check whether waiting still makes sense.
pub(super) fn spin(spins: &mut u32) -> bool {
    *spins += 1;
    if spins.is_multiple_of(SPINS) {
        std::thread::yield_now();
        return true;
    }
    std::hint::spin_loop();
    false
}
