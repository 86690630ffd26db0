//! Bodies that stay in their sender's memory until their receiver reads them there: one copy instead of two.
//!
//! `tx` refers to them and `rx` reads them; `peers` looks once for each generation whether the kernel lets this process trace the other one. Collectives
//! read their long transfers by the same `Identity` and `ProcessMemory`.
//!
//! Invariants:
//! 1. Nothing counts as read but what was read of the process that the peer named: a random word lies where it says. Numbers of processes differ
//!    between containers and are used again, so the word is read with whatever else is read, in the same call, behind it. (A process of the job
//!    could name another one of the same user. It could write what it likes, too.)
//! 2. What was read was still held. A body is given up only when its receiver has passed its record, when the receiver's lock is free (a child that
//!    it forked may hold that longer), or after the word was taken away; and the word is read last.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use bytes::Bytes;

use super::sys;

/// Where a body lies: its address, and its length.
pub(super) const REFERENCE_BYTES: usize = 16;

/// How others know this process.
#[derive(Debug)]
pub struct Identity {
    cookie: Box<AtomicU64>,
}

impl Identity {
    /// One that no other process has.
    pub fn new() -> Self {
        // Seeded by the system for each map; what is made of it need only be unlikely.
        let random = std::hash::RandomState::new().build_hasher().finish();
        Self {
            cookie: Box::new(AtomicU64::new(random | 1)),
        }
    }

    /// As it is told to others: number of the process, address of the word, the word.
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
    /// Whoever reads from now on finds another word.
    fn drop(&mut self) {
        self.cookie.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// The memory of a process that was proved to be a peer's, and may be read.
#[derive(Debug, Clone, Copy)]
pub struct ProcessMemory {
    pid: u32,
    proof: u64,
    cookie: u64,
}

impl ProcessMemory {
    /// By an [`Identity`]'s words, as a peer told them. `None`: they are no process's of this host and user that may be read
    /// (`kernel.yama.ptrace_scope`), or another's.
    pub fn of([pid, proof, cookie]: [u64; 3]) -> Option<Self> {
        let pid = u32::try_from(pid).ok().filter(|_| cookie != 0)?;
        let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let memory = Self { pid, proof, cookie };
        // One who may read everybody's memory must not read for a peer what that one may not.
        let is_own = owner == rustix::process::geteuid().as_raw();
        (is_own && memory.read(proof, &mut [0])).then_some(memory)
    }

    /// Fills `target` with what the process has at `address`; `false`: it is not the same process any more, or has nothing there, and what is
    /// in `target` means nothing.
    pub fn read(&self, address: u64, target: &mut [u8]) -> bool {
        let mut word = [0; 8];
        let bytes = target.len() + word.len();
        let pieces = [(address, target), (self.proof, &mut word[..])];
        let read = sys::read_process(self.pid, pieces);
        read.is_ok_and(|read| read == bytes) && u64::from_ne_bytes(word) == self.cookie
    }
}

/// Bodies that one peer is to read, in their order.
#[derive(Debug, Default)]
pub(super) struct Referred {
    /// With where the record behind its own starts.
    bodies: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl Referred {
    /// A body whose record ends at that position.
    pub(super) fn push(&mut self, end: u64, body: Bytes) {
        self.bytes += body.len();
        self.bodies.push_back((end, body));
    }

    /// Of all of them.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    /// The peer has read so far.
    pub(super) fn read_to(&mut self, head: u64) {
        while let Some((end, body)) = self.bodies.front()
            && *end <= head
        {
            self.bytes -= body.len();
            self.bodies.pop_front();
        }
    }

    /// Nobody will read them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Where a body lies, as it is told.
pub(super) fn reference(body: &[u8]) -> [u8; REFERENCE_BYTES] {
    let address = body.as_ptr().expose_provenance() as u64;
    let mut words = [0; REFERENCE_BYTES];
    words[..8].copy_from_slice(&address.to_ne_bytes());
    words[8..].copy_from_slice(&(body.len() as u64).to_ne_bytes());
    words
}

/// Its address and length, of a frame that refers to one; and what stands before.
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

    /// Own memory is read like another's; a wrong word, process or address is refused, and so is a process that took its word back.
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

    /// Bodies are given up in their order, as their records are passed.
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

    /// A reference says what it was made of; a frame that is too short for one, and a length that no message has, are refused.
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
