//! Layout of the job's memory.
//!
//! ```text
//! head     magic, sizes | next generation | changes | directory: node → generation     mapped by all, writable
//! bells    64 bytes a node                                                 mapped by all, writable
//! generation 1   identity | broadcast counters | starts | heads | rings | broadcast ring
//! generation 2   …                                           writable by the process that has it, read-only for all others
//! ```
//!
//! Offsets alone: `segment` and `peers` make views with them.

use super::errors::ShmCreateError;
use super::ring::{LINE_BYTES, record_lines};

/// Nodes of a job: the directory stays small and the regions within any address space.
pub const NODES_MAX: usize = 1024;
/// The largest frame: beyond it a ring of sane size holds too few.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The largest ring.
pub const RING_BYTES_MAX: usize = 1 << 30;
/// The most generations of a job.
pub const GENERATIONS_MAX: u64 = 1 << 20;

/// Memory that the rings of one node are meant to use at most, by default.
const RINGS_BYTES_PER_NODE: usize = 16 << 20;
/// All parts start at a multiple of this: the largest page size of the processors we build for. Untouched space costs nothing.
pub(super) const PAGE_BYTES: usize = 64 << 10;

/// Sizes of a job's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShmConfig {
    /// Largest frame.
    pub frame_bytes: usize,
    /// Each of the rings between two nodes; a power of two that holds two largest frames.
    pub ring_bytes: usize,
    /// Each node's broadcast ring; a power of two that holds four largest frames.
    pub broadcast_bytes: usize,
    /// How often processes may attach in all. Costs only address space.
    pub generations: u64,
}

impl ShmConfig {
    /// The default sizes for a job of `nodes` nodes.
    ///
    /// 32 KiB of payload and room for headers in a frame: copying it takes ten times as long as the work per frame, and large
    /// messages still overlap the sender's copy with the receiver's. 1 MiB a ring: both directions of a pair stay in a second-level
    /// cache; less when many nodes would make it add up.
    pub fn for_nodes(nodes: usize) -> Self {
        let share = RINGS_BYTES_PER_NODE / nodes.saturating_sub(1).max(1);
        let ring_bytes = prev_power_of_two(share).clamp(128 << 10, 1 << 20);
        Self {
            frame_bytes: (32 << 10) + 128 - 8,
            ring_bytes,
            broadcast_bytes: 512 << 10,
            generations: (nodes as u64 * 16).max(4096),
        }
    }
}

fn prev_power_of_two(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

/// Offsets of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) nodes: usize,
    pub(crate) frame_bytes: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) broadcast_bytes: usize,
    pub(crate) generations: u64,
    pub(super) head_bytes: usize,
    ring_stride_bytes: usize,
    rings_at: usize,
    broadcast_at: usize,
    pub(super) generation_bytes: usize,
    pub(super) total_bytes: u64,
}

/// Offsets in the head.
pub(super) mod head {
    pub(in crate::shm) const MAGIC: usize = 0;
    pub(in crate::shm) const NODES: usize = 8;
    pub(in crate::shm) const FRAME_BYTES: usize = 16;
    pub(in crate::shm) const RING_BYTES: usize = 24;
    pub(in crate::shm) const BROADCAST_BYTES: usize = 32;
    pub(in crate::shm) const GENERATIONS: usize = 40;
    pub(in crate::shm) const NEXT_GENERATION: usize = 64;
    pub(in crate::shm) const CHANGES: usize = 128;
    pub(in crate::shm) const DIRECTORY: usize = 192;
}

/// Offsets in a generation. Each counter that one side writes and the other polls has a line of its own.
pub(super) mod generation {
    pub(in crate::shm) const NODE: usize = 0;
    pub(in crate::shm) const NUMBER: usize = 8;
    pub(in crate::shm) const BELL_NAME: usize = 16;
    /// Three words: how others know the process (`memory`).
    pub(in crate::shm) const IDENTITY: usize = 24;
    /// Bytes of bodies that each peer may send by reference at a time.
    pub(in crate::shm) const REFERENCE_MAX: usize = 48;
    pub(in crate::shm) const BROADCAST_TAIL: usize = 64;
    pub(in crate::shm) const BROADCAST_NEWEST: usize = 72;
    pub(in crate::shm) const BROADCAST_RESERVE: usize = 128;
    pub(in crate::shm) const STARTS: usize = 192;
}

impl Layout {
    pub(super) fn new(nodes: usize, config: ShmConfig) -> Result<Self, ShmCreateError> {
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(ShmCreateError::Nodes { nodes });
        }
        let size = |ok: bool, what, value, accepted| {
            ok.then_some(()).ok_or(ShmCreateError::Size {
                what,
                value,
                accepted,
            })
        };
        let frame_bytes = config.frame_bytes;
        size(
            (64..=FRAME_BYTES_MAX).contains(&frame_bytes),
            "frame_bytes",
            frame_bytes as u64,
            "64 to 1048576",
        )?;
        let record_bytes = (record_lines(frame_bytes) as usize + 1) * LINE_BYTES;
        size(
            config.ring_bytes.is_power_of_two()
                && (2 * record_bytes..=RING_BYTES_MAX).contains(&config.ring_bytes),
            "ring_bytes",
            config.ring_bytes as u64,
            "a power of two, at least twice a frame and at most 1 GiB",
        )?;
        size(
            config.broadcast_bytes.is_power_of_two()
                && (4 * record_bytes..=RING_BYTES_MAX).contains(&config.broadcast_bytes),
            "broadcast_bytes",
            config.broadcast_bytes as u64,
            "a power of two, at least four times a frame and at most 1 GiB",
        )?;
        size(
            (nodes as u64..=GENERATIONS_MAX).contains(&config.generations),
            "generations",
            config.generations,
            "at least one a node and at most 1048576",
        )?;
        // The limits above keep all of these far below 2^63.
        let page = |bytes: usize| bytes.next_multiple_of(PAGE_BYTES);
        let head_bytes = page(head::DIRECTORY + nodes * 8) + page(nodes * LINE_BYTES);
        let ring_stride_bytes = page(config.ring_bytes + record_bytes);
        let rings_at = page(generation::STARTS + 2 * nodes * LINE_BYTES);
        let broadcast_at = rings_at + nodes * ring_stride_bytes;
        let generation_bytes = broadcast_at + page(config.broadcast_bytes);
        Ok(Self {
            nodes,
            frame_bytes,
            ring_bytes: config.ring_bytes,
            broadcast_bytes: config.broadcast_bytes,
            generations: config.generations,
            head_bytes,
            ring_stride_bytes,
            rings_at,
            broadcast_at,
            generation_bytes,
            total_bytes: head_bytes as u64 + config.generations * generation_bytes as u64,
        })
    }

    pub(crate) fn ring_lines(&self) -> u64 {
        (self.ring_bytes / LINE_BYTES) as u64
    }

    pub(crate) fn broadcast_words(&self) -> u64 {
        (self.broadcast_bytes / 8) as u64
    }

    pub(super) fn directory_at(&self, node: usize) -> usize {
        head::DIRECTORY + node * 8
    }

    /// In the head's map.
    pub(crate) fn bell_at(&self, node: usize) -> usize {
        (head::DIRECTORY + self.nodes * 8).next_multiple_of(PAGE_BYTES) + node * LINE_BYTES
    }

    pub(super) fn generation_at(&self, generation: u64) -> u64 {
        self.head_bytes as u64 + (generation - 1) * self.generation_bytes as u64
    }

    /// In a generation's map, as all below: where the consumers of its rings must start. One line for each consumer.
    pub(crate) fn start_at(&self, consumer: usize) -> StartAt {
        let line = generation::STARTS + consumer * LINE_BYTES;
        StartAt {
            generation: line,
            ring: line + 8,
            broadcast: line + 16,
            broadcast_sequence: line + 24,
        }
    }

    /// How far the generation, as consumer, has read in each producer's ring. One line for each producer.
    pub(crate) fn consumed_at(&self, producer: usize) -> ConsumedAt {
        let line = generation::STARTS + (self.nodes + producer) * LINE_BYTES;
        ConsumedAt {
            generation: line,
            head: line + 8,
            reads: line + 16,
        }
    }

    /// The ring towards a consumer: its offset, and its bytes with the margin.
    pub(crate) fn ring_at(&self, consumer: usize) -> (usize, usize) {
        (
            self.rings_at + consumer * self.ring_stride_bytes,
            self.ring_stride_bytes,
        )
    }

    /// The broadcast ring.
    pub(crate) fn broadcast_at(&self) -> usize {
        self.broadcast_at
    }

    /// Its counters: tail, newest, reserve.
    pub(crate) fn broadcast_counters_at(&self) -> [usize; 3] {
        [
            generation::BROADCAST_TAIL,
            generation::BROADCAST_NEWEST,
            generation::BROADCAST_RESERVE,
        ]
    }
}

/// Written by a producer for one consumer; `generation` last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartAt {
    pub(crate) generation: usize,
    pub(crate) ring: usize,
    pub(crate) broadcast: usize,
    pub(crate) broadcast_sequence: usize,
}

/// Written by a consumer for one producer; `head` applies to the producer's generation named in `generation`. `reads` is that generation if the
/// consumer may read the producer's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumedAt {
    pub(crate) generation: usize,
    pub(crate) head: usize,
    pub(crate) reads: usize,
}

#[cfg(test)]
impl Layout {
    /// Words that `reader` reads in a peer's region: counters, starts, heads, and the front of the rings.
    pub(crate) fn interesting_words_for_test(&self, reader: usize) -> Vec<usize> {
        let start = self.start_at(reader);
        let consumed = self.consumed_at(reader);
        let (ring, _) = self.ring_at(reader);
        let mut words = vec![
            generation::NODE,
            generation::NUMBER,
            generation::BELL_NAME,
            generation::IDENTITY,
            generation::IDENTITY + 8,
            generation::IDENTITY + 16,
            generation::REFERENCE_MAX,
            start.generation,
            start.ring,
            start.broadcast,
            start.broadcast_sequence,
            consumed.generation,
            consumed.head,
            consumed.reads,
        ];
        words.extend(self.broadcast_counters_at());
        words.extend((0..self.ring_bytes).step_by(64).map(|at| ring + at));
        words.extend(
            (0..self.broadcast_bytes / 4)
                .step_by(8)
                .map(|at| self.broadcast_at + at),
        );
        words
    }
}
