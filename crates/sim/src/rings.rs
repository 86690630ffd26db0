//! Simulated shared memory: what `tsumuji_link::shm` offers beside frames, for nodes with `Config::ring_bytes`.
//!
//! Called by `card`. Frames of rings pass the switch behind a `Stamp`, so the paths of such a net must keep order and lose nothing. A ring belongs to
//! one generation of its writer and one of its reader. Frames for another generation are not taken. A full ring refuses its writer, unless the reader
//! is dead: then nobody would wake the writer.

use std::collections::BTreeMap;

/// The reader in the stamp of a broadcast.
pub(crate) const ALL: u64 = u64::MAX;

const STAMP_BYTES: usize = 18;
/// A ring is filled by lines of this length.
const LINE_BYTES: usize = 64;
/// The length before a frame in its ring.
const PREFIX_BYTES: usize = 8;
/// Most bytes that a reader may be sent by reference, in rings.
const REFERENCE_RINGS: usize = 2;

/// What the writer states in front of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Generation of the writer.
    pub(crate) from: u64,
    /// Generation of the reader, or `ALL`.
    pub(crate) to: u64,
    /// `Job::unread` counts it.
    pub(crate) is_counted: bool,
    /// Length of the head whose body is read in the writer's memory; 0: the frame lies in the ring.
    pub(crate) head_bytes: u8,
}

impl Stamp {
    pub(crate) fn bytes(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.to.to_le_bytes());
        (bytes[16], bytes[17]) = (u8::from(self.is_counted), self.head_bytes);
        bytes
    }

    /// The stamp and the frame behind it.
    pub(crate) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (stamp, frame) = bytes.split_first_chunk::<STAMP_BYTES>()?;
        let word = |at: usize| u64::from_le_bytes(stamp[at..at + 8].try_into().expect("8 bytes"));
        let stamp = Self {
            from: word(0),
            to: word(8),
            is_counted: stamp[16] != 0,
            head_bytes: stamp[17],
        };
        Some((stamp, frame))
    }

    /// Bytes that a frame takes of the ring, and those that it refers to.
    fn weights(self, frame_bytes: usize) -> (usize, usize) {
        match usize::from(self.head_bytes) {
            0 => (lines_bytes(frame_bytes), 0),
            head_bytes => (lines_bytes(head_bytes), frame_bytes - head_bytes),
        }
    }
}

/// Bytes of a ring that a frame takes.
fn lines_bytes(frame_bytes: usize) -> usize {
    (PREFIX_BYTES + frame_bytes).next_multiple_of(LINE_BYTES)
}

/// What the reader of a ring has yet to take.
#[derive(Debug, Default)]
struct Ring {
    bytes: usize,
    referred_bytes: usize,
    counted: usize,
}

/// A node's latest process.
#[derive(Debug, Clone, Copy, Default)]
struct Process {
    generation: u64,
    is_alive: bool,
    /// Bytes that each peer may refer to at a time.
    reference_max: usize,
}

/// The memory that all nodes of a net share.
#[derive(Debug, Default)]
pub(crate) struct Job {
    /// Processes begun so far: no generation comes twice.
    begun: u64,
    processes: BTreeMap<u16, Process>,
    /// By generation of writer and reader.
    rings: BTreeMap<(u64, u64), Ring>,
}

impl Job {
    /// A process of `node` begins; returns its generation.
    pub(crate) fn begin(&mut self, node: u16) -> u64 {
        self.begun += 1;
        let process = Process {
            generation: self.begun,
            is_alive: true,
            reference_max: 0,
        };
        self.processes.insert(node, process);
        self.begun
    }

    /// The process of `node` ends.
    pub(crate) fn end(&mut self, node: u16) {
        self.processes.entry(node).or_default().is_alive = false;
    }

    fn process(&self, node: u16) -> Process {
        self.processes.get(&node).copied().unwrap_or_default()
    }

    /// Generation of the node's latest process; 0: it had none.
    pub(crate) fn generation(&self, node: u16) -> u64 {
        self.process(node).generation
    }

    /// Generation of the node's live process; 0: none.
    pub(crate) fn live_generation(&self, node: u16) -> u64 {
        let process = self.process(node);
        if process.is_alive {
            process.generation
        } else {
            0
        }
    }

    pub(crate) fn set_reference_max(&mut self, node: u16, bytes: usize) {
        self.processes.entry(node).or_default().reference_max = bytes;
    }

    /// How many frames of `frame_bytes` fit the ring of `ring_bytes` from generation `from` to `node` now.
    pub(crate) fn room(
        &self,
        (from, node): (u64, u16),
        frame_bytes: usize,
        ring_bytes: usize,
    ) -> usize {
        let reader = self.process(node);
        let ring = self.rings.get(&(from, reader.generation));
        let taken = ring.filter(|_| reader.is_alive).map_or(0, |it| it.bytes);
        ring_bytes.saturating_sub(taken) / lines_bytes(frame_bytes)
    }

    /// How many bytes more may be sent by reference from generation `from` to `node`.
    pub(crate) fn reference_room(&self, (from, node): (u64, u16), ring_bytes: usize) -> usize {
        let reader = self.process(node);
        let ring = self.rings.get(&(from, reader.generation));
        let referred = ring.map_or(0, |ring| ring.referred_bytes);
        let most = reader.reference_max.min(REFERENCE_RINGS * ring_bytes);
        most.saturating_sub(referred)
    }

    /// Accounts a frame that is written.
    pub(crate) fn write(&mut self, stamp: Stamp, frame_bytes: usize) {
        if stamp.to != ALL {
            let ring = self.rings.entry((stamp.from, stamp.to)).or_default();
            let (bytes, referred_bytes) = stamp.weights(frame_bytes);
            ring.bytes += bytes;
            ring.referred_bytes += referred_bytes;
            ring.counted += usize::from(stamp.is_counted);
        }
    }

    /// Accounts a frame that generation `me` takes, and was written by `node`; `false`: it is of another generation.
    pub(crate) fn read(
        &mut self,
        stamp: Stamp,
        frame_bytes: usize,
        (node, me): (u16, u64),
    ) -> bool {
        if stamp.from != self.generation(node) || ![me, ALL].contains(&stamp.to) {
            return false;
        }
        if let Some(ring) = self.rings.get_mut(&(stamp.from, stamp.to)) {
            let (bytes, referred_bytes) = stamp.weights(frame_bytes);
            ring.bytes -= bytes;
            ring.referred_bytes -= referred_bytes;
            ring.counted -= usize::from(stamp.is_counted);
        }
        true
    }

    /// Counted frames from one generation that the other has not taken.
    pub(crate) fn unread(&self, from: u64, to: u64) -> usize {
        self.rings.get(&(from, to)).map_or(0, |ring| ring.counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring has room again when its frames were taken, by the generation that they are for and by no other.
    #[test]
    fn generations_have_rings_of_their_own() {
        let mut job = Job::default();
        let (a, b) = (job.begin(0), job.begin(1));
        let stamp = Stamp {
            from: a,
            to: b,
            is_counted: true,
            head_bytes: 40,
        };
        job.set_reference_max(1, 1000);
        assert_eq!(job.room((a, 1), 56, 640), 10);
        job.write(stamp, 940);
        assert_eq!(Stamp::split(&stamp.bytes()), Some((stamp, &b""[..])));
        assert_eq!((job.room((a, 1), 56, 640), job.unread(a, b)), (9, 1));
        assert_eq!(job.reference_room((a, 1), 640), 100);
        assert!(!job.read(stamp, 940, (0, b + 1)), "another reader");
        assert!(job.read(stamp, 940, (0, b)));
        assert_eq!((job.room((a, 1), 56, 640), job.unread(a, b)), (10, 0));
        job.write(stamp, 940);
        job.end(1);
        assert_eq!((job.live_generation(1), job.generation(1)), (0, b));
        let next = job.begin(0);
        assert!(!job.read(stamp, 940, (0, b)), "its writer was replaced");
        assert_eq!((job.unread(a, b), job.unread(next, b)), (1, 0));
    }
}
