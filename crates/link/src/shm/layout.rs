//! Layout of the job's memory.
//!
//! ```text
//! head     magic, sizes | next generation | changes, nodes seen | directory: node → generation     mapped by all, writable
//! bells    64 bytes a node                                                 mapped by all, writable
//! generation 1   identity | broadcast counters | starts and heads | broadcast ring | rings
//! generation 2   …                                           writable by the process that has it, read-only for all others
//! ```
//!
//! The file is sparse, and almost as long as offsets go (`FILE_BYTES_MAX`): a region is never used again, and each has room for rings towards `NODES_MAX`
//! nodes. That costs offsets alone. Memory is taken where something was written. Address space is taken by what a process maps: the head, all but the
//! rings (the *front*) of its own generation and of each live peer's, and two rings for each live peer.
//!
//! Offsets alone: `segment` and `peers` make views with them.

use super::errors::ShmCreateError;
use super::ring::{LINE_BYTES, record_lines};
use crate::tuning::TUNING;

/// Nodes of a job at a time. A process maps three parts of the file for each peer, and the kernel permits it 65,530 mappings (`vm.max_map_count`).
pub const NODES_MAX: usize = 4096;
/// The largest frame: beyond it a ring of sane size holds too few.
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// The largest ring.
pub const RING_BYTES_MAX: usize = 1 << 30;
/// The longest file: offsets have 63 bits. It holds about a million generations of the largest sizes, and a thousand million of the default ones.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 62;

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
}

impl ShmConfig {
    /// The default sizes for a job of `nodes` nodes: 32 KiB of payload and room for headers in a frame, and 1 MiB a ring; less when many nodes would make
    /// it add up.
    pub fn for_nodes(nodes: usize) -> Self {
        let shm = &TUNING.shm;
        let share = shm.rings_bytes_per_node / nodes.saturating_sub(1).max(1);
        Self {
            frame_bytes: shm.payload_bytes + 128 - 8,
            ring_bytes: prev_power_of_two(share).clamp(shm.ring_bytes_min, shm.ring_bytes_max),
            broadcast_bytes: shm.broadcast_bytes,
        }
    }
}

fn prev_power_of_two(value: usize) -> usize {
    1 << value.max(1).ilog2()
}

/// Offsets of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Nodes that the job was made for.
    pub(crate) nodes: usize,
    /// Nodes that it can have: the first `nodes`, and those that join.
    pub(crate) nodes_max: usize,
    pub(crate) frame_bytes: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) broadcast_bytes: usize,
    pub(crate) generations: u64,
    pub(super) head_bytes: usize,
    /// A ring with its margin.
    pub(crate) ring_stride_bytes: usize,
    broadcast_at: usize,
    /// A generation's bytes before its rings.
    pub(super) front_bytes: usize,
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
    pub(in crate::shm) const NODES_MAX: usize = 40;
    pub(in crate::shm) const NEXT_GENERATION: usize = 64;
    pub(in crate::shm) const CHANGES: usize = 128;
    /// One more than the highest node that ever attached. Beside `CHANGES`, for both are written together.
    pub(in crate::shm) const NODES_SEEN: usize = 136;
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
    pub(in crate::shm) const PEERS: usize = 256;
}
/// A generation's lines for each peer: where that one starts as consumer, and how far that one, as producer, was read.
const PEER_BYTES: usize = 2 * LINE_BYTES;

impl Layout {
    /// For a job of `nodes` nodes that may become `nodes_max`, with as many generations as a file of `most_bytes` holds.
    pub(super) fn new(
        (nodes, nodes_max): (usize, usize),
        config: ShmConfig,
        most_bytes: u64,
    ) -> Result<Self, ShmCreateError> {
        if !(1..=nodes_max).contains(&nodes) || nodes_max > NODES_MAX {
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
        // The limits above keep all of these far below 2^63.
        let page = |bytes: usize| bytes.next_multiple_of(PAGE_BYTES);
        let head_bytes = page(head::DIRECTORY + nodes_max * 8) + page(nodes_max * LINE_BYTES);
        let ring_stride_bytes = page(config.ring_bytes + record_bytes);
        let broadcast_at = page(generation::PEERS + nodes_max * PEER_BYTES);
        let front_bytes = broadcast_at + page(config.broadcast_bytes);
        let generation_bytes = front_bytes + nodes_max * ring_stride_bytes;
        let generations = most_bytes.saturating_sub(head_bytes as u64) / generation_bytes as u64;
        Ok(Self {
            nodes,
            nodes_max,
            frame_bytes,
            ring_bytes: config.ring_bytes,
            broadcast_bytes: config.broadcast_bytes,
            generations,
            head_bytes,
            ring_stride_bytes,
            broadcast_at,
            front_bytes,
            generation_bytes,
            total_bytes: head_bytes as u64 + generations * generation_bytes as u64,
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
        (head::DIRECTORY + self.nodes_max * 8).next_multiple_of(PAGE_BYTES) + node * LINE_BYTES
    }

    pub(super) fn generation_at(&self, generation: u64) -> u64 {
        self.head_bytes as u64 + (generation - 1) * self.generation_bytes as u64
    }

    /// The generation's ring towards a consumer, in the file.
    pub(super) fn ring_at(&self, generation: u64, consumer: usize) -> u64 {
        let rings_at = self.generation_at(generation) + self.front_bytes as u64;
        rings_at + (consumer * self.ring_stride_bytes) as u64
    }

    /// In a generation's front, as all below: where the consumers of its rings must start. One line for each consumer.
    pub(crate) fn start_at(&self, consumer: usize) -> StartAt {
        let line = generation::PEERS + consumer * PEER_BYTES;
        StartAt {
            generation: line,
            ring: line + 8,
            broadcast: line + 16,
            broadcast_sequence: line + 24,
        }
    }

    /// How far the generation, as consumer, has read in each producer's ring. One line for each producer.
    pub(crate) fn consumed_at(&self, producer: usize) -> ConsumedAt {
        let line = generation::PEERS + producer * PEER_BYTES + LINE_BYTES;
        ConsumedAt {
            generation: line,
            head: line + 8,
            reads: line + 16,
        }
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
        let ring = self.front_bytes + reader * self.ring_stride_bytes;
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
