//! Bodies that stay in their sender's memory until their receiver reads them there: one copy instead of two.
//!
//! `tx` sends references and `rx` reads the bodies; `peers` checks once for each generation whether the kernel lets this process read the memory of
//! the other one. Collectives read long transfers by the same `Identity` and `ProcessMemory`.
//!
//! Invariants:
//! 1. Data counts as read only if it came from the process that the peer named: that process has a random word at an address it stated. Process
//!    numbers differ between containers and are reused, so the word is read in the same call as the data, behind it. (A process of the job could name
//!    another one of the same user. It could write any data itself, too.)
//! 2. Data that was read was still held. A body is released only when its receiver has passed its record, when the receiver's lock is free (a child
//!    that it forked may hold that longer), or after the word was cleared; and the word is read last.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::ring::copy_long;
use super::sys;
use crate::tuning::TUNING;

/// Bytes of a reference to a body: its address and its length.
pub(super) const REFERENCE_BYTES: usize = 16;

/// The identity by which other processes know this one.
#[derive(Debug)]
pub struct Identity {
    cookie: Box<AtomicU64>,
}

impl Identity {
    /// A new identity that no other process has.
    pub fn new() -> Self {
        // The system seeds each map at random; a collision need only be improbable.
        let random = std::hash::RandomState::new().build_hasher().finish();
        Self {
            cookie: Box::new(AtomicU64::new(random | 1)),
        }
    }

    /// The words to pass to others: process number, address of the random word, the random word.
    pub fn words(&self) -> [u64; 3] {
        let address = std::ptr::from_ref(&*self.cookie).expose_provenance();
        let word = self.cookie.load(Ordering::Relaxed);
        [std::process::id().into(), address as u64, word]
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Identity {
    /// Clears the word: later reads by others fail.
    fn drop(&mut self) {
        self.cookie.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// The memory of a process that was proved to be a peer and may be read.
#[derive(Debug, Clone, Copy)]
pub struct ProcessMemory {
    pid: u32,
    proof: u64,
    cookie: u64,
}

impl ProcessMemory {
    /// Opens the memory of the process with an [`Identity`] of these words, as a peer told them. `None`: no process of this host and user that may be
    /// read (`kernel.yama.ptrace_scope`), or another process.
    pub fn of([pid, proof, cookie]: [u64; 3]) -> Option<Self> {
        let pid = u32::try_from(pid).ok().filter(|_| cookie != 0)?;
        let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let memory = Self { pid, proof, cookie };
        // A process that may read all memory must not read for a peer what that peer may not.
        let is_own = owner == rustix::process::geteuid().as_raw();
        (is_own && memory.read(proof, &mut [0])).then_some(memory)
    }

    /// Fills `target` with the bytes at `address` of the process; `false`: it is not the same process any more, or has no memory there, and the
    /// content of `target` means nothing.
    pub fn read(&self, address: u64, target: &mut [u8]) -> bool {
        let mut word = [0; 8];
        let bytes = target.len() + word.len();
        let pieces = [(address, target), (self.proof, &mut word[..])];
        let read = sys::read_process(self.pid, pieces);
        read.is_ok_and(|read| read == bytes) && u64::from_ne_bytes(word) == self.cookie
    }

    /// Whether the kernel reads memory in less time than two copies take, the way through a ring. Machines differ much in that. Measured once in a process,
    /// on its own memory, in less than a millisecond.
    pub fn pays() -> bool {
        static PAYS: OnceLock<bool> = OnceLock::new();
        *PAYS.get_or_init(|| {
            let identity = Identity::new();
            let Some(memory) = Self::of(identity.words()) else {
                return false;
            };
            // All begin alike within a page: that decides how fast some processors copy.
            let bytes = TUNING.shm.tried_bytes;
            let mut all = vec![1; 3 * bytes];
            let (body, rest) = all.split_at_mut(bytes);
            let (ring, place) = rest.split_at_mut(bytes);
            let (mut read, mut copied) = (Duration::MAX, Duration::MAX);
            for _ in 0..TUNING.shm.trials {
                let start = Instant::now();
                let address = black_box(&mut *body).as_ptr().expose_provenance();
                if !memory.read(address as u64, place) {
                    return false;
                }
                let middle = Instant::now();
                copy_long(ring, black_box(body));
                copy_long(place, black_box(ring));
                black_box(&*place);
                (read, copied) = (read.min(middle - start), copied.min(middle.elapsed()));
            }
            tracing::debug!(?read, ?copied, "bodies by reference, {bytes} bytes");
            read < copied
        })
    }
}

/// Bodies that one peer has yet to read, in order.
#[derive(Debug, Default)]
pub(super) struct Referred {
    /// Each with the position behind its record.
    bodies: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Referred {
    /// A body whose record ends at that position.
    pub(super) fn push(&mut self, end: u64, body: Bytes) {
        self.bytes += body.len();
        self.bodies.push_back((end, body));
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// Releases the bodies whose records end at or before `head`, which the peer has read.
    pub(super) fn read_to(&mut self, head: u64) {
        while let Some((end, body)) = self.bodies.front()
            && *end <= head
        {
            self.bytes -= body.len();
            self.bodies.pop_front();
        }
    }

    /// Releases all: nobody will read them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The reference to a body, as it is sent.
pub(super) fn reference(body: &[u8]) -> [u8; REFERENCE_BYTES] {
    let address = body.as_ptr().expose_provenance() as u64;
    let mut words = [0; REFERENCE_BYTES];
    words[..8].copy_from_slice(&address.to_ne_bytes());
    words[8..].copy_from_slice(&(body.len() as u64).to_ne_bytes());
    words
}

/// Splits a frame with a reference into its head, and the body's address and length.
pub(super) fn split(frame: &[u8]) -> Option<(&[u8], (u64, usize))> {
    let (head, words) = frame.split_last_chunk::<REFERENCE_BYTES>()?;
    let ([address, length], []) = words.as_chunks::<8>() else {
        return None;
    };
    let length = u32::try_from(u64::from_ne_bytes(*length)).ok()?;
    Some((head, (u64::from_ne_bytes(*address), length as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Own memory is read like another process's; a wrong word, process or address is refused, and so is a process that cleared its word.
    #[test]
    fn memory_is_read_of_who_proved_to_be_the_peer() {
        let identity = Identity::new();
        let [pid, address, cookie] = identity.words();
        let Some(memory) = ProcessMemory::of([pid, address, cookie]) else {
            eprintln!("skipped: the kernel does not let a process read itself here");
            return;
        };
        for wrong in [
            [pid, address, cookie ^ 2],
            [pid, 8, cookie],
            [u64::MAX, address, cookie],
            [0, address, cookie],
            [pid, address, 0],
        ] {
            assert!(ProcessMemory::of(wrong).is_none(), "{wrong:?}");
        }
        let (text, mut read) = ([7_u8; 9000], [0; 9000]);
        let address = text.as_ptr().expose_provenance() as u64;
        assert!(memory.read(address, &mut read));
        assert_eq!(read, text);
        assert!(!memory.read(8, &mut read), "nothing is there");
        identity.cookie.store(0, Ordering::SeqCst);
        assert!(!memory.read(address, &mut read), "the word is gone");
    }

    /// Bodies are released in order, as their records are passed.
    #[test]
    fn bodies_are_given_up_as_they_are_read() {
        let body = Bytes::from(vec![1; 100]);
        let mut referred = Referred::default();
        for end in [3, 5, 9] {
            referred.push(end, body.clone());
        }
        for (head, left) in [(2, 3), (5, 1), (8, 1), (9, 0)] {
            referred.read_to(head);
            assert_eq!(
                (referred.bytes(), referred.is_empty()),
                (100 * left, left == 0)
            );
        }
        assert!(body.is_unique());
    }

    /// A reference is read back as it was made; frames too short for one, and lengths that no message has, are refused.
    #[test]
    fn references_are_split_from_heads() {
        let body = [5; 70];
        let frame = [b"head".as_slice(), &reference(&body)].concat();
        let address = body.as_ptr().expose_provenance() as u64;
        assert_eq!(split(&frame), Some((b"head".as_slice(), (address, 70))));
        assert_eq!(split(&frame[..15]), None);
        assert_eq!(split(&[0xff; 40]), None);
    }
}
