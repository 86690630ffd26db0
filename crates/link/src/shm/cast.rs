//! The casting ring: one writer, a group of readers; nothing is overwritten that one of them has not read.
//!
//! The writer's half belongs to `casting`, as does each reader's. Generic over its memory like `ring`; knows nothing of
//! processes, lives or groups' members.
//!
//! A ring is a power of two of 32-byte units and a margin. Positions count units from 0 and never wrap; `position & mask` is the
//! unit. A *record* starts at a unit: commit word, group, what it is, and then its payload; it may run on into the margin, and
//! so is never split. A whole message of up to 8 bytes takes one unit: two cross between two caches as one line.
//!
//! Invariants:
//! 1. The commit word at `tail` is zero. Before a record is published, the word where the *next* record will start is cleared;
//!    the release store that publishes orders the clearing before it. So a reader that follows records never takes an old
//!    payload for a commit word.
//! 2. The writer writes only units in `[tail, free + units)`, where all readers are done with what lies before `free`.
//! 3. The writer may die between any two stores: unpublished bytes are never looked at.
//! 4. Whatever the memory holds, a reader copies no more than a piece, from within the ring and its margin.

/// What positions count.
pub(crate) const UNIT_BYTES: usize = 32;
/// Commit word, group, what it is.
const HEAD_BYTES: usize = 24;
/// Of a piece of a longer message: the length of the whole.
const TOTAL_BYTES: usize = 8;
/// Marks a commit word; with 32 bits of the position it tells a commit word from stray bytes.
const TAG: u64 = 0xC7 << 56;
/// Bits of a payload's length in the commit word; the position's stand above.
const LENGTH_BITS: u32 = 24;
/// In the word that says what it is, above sequence number and code: a piece of a longer message.
const PIECE: u64 = 1 << 40;
/// Pieces that a ring holds: so many steps ahead the writer may be. A piece of 64 KiB is long enough for what is done for each to cost
/// little of what copying it costs, and short enough for both sides to copy at once.
const PIECES: usize = 8;
/// From this length on a payload begins at a cache line: long copies run at half the rate elsewhere.
const ALIGNED_FROM_BYTES: usize = 1 << 10;
const LINE_BYTES: usize = 64;
/// A writer that found the ring full goes on when this part of it is free: looking at readers' positions costs both sides.
const RESUME_DIVISOR: u64 = 4;

/// The longest payload of one record.
pub(crate) const fn piece_bytes(ring_bytes: usize) -> usize {
    ring_bytes / PIECES
}

/// A record that starts in the last unit runs on so far.
pub(crate) const fn margin_bytes(ring_bytes: usize) -> usize {
    (HEAD_BYTES + TOTAL_BYTES + LINE_BYTES + piece_bytes(ring_bytes)).next_multiple_of(UNIT_BYTES)
}

/// What stands before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) group: u64,
    pub(crate) sequence: u32,
    pub(crate) code: u8,
    /// Of the whole message.
    pub(crate) total: u64,
    /// Of this record's payload.
    pub(crate) bytes: usize,
}

impl Head {
    fn is_piece(&self) -> bool {
        self.total != self.bytes as u64
    }

    fn head_bytes(&self) -> usize {
        HEAD_BYTES + if self.is_piece() { TOTAL_BYTES } else { 0 }
    }

    /// Where the payload begins, of a record that starts at byte `at` of the ring.
    fn payload_at(&self, at: usize) -> usize {
        let at = at + self.head_bytes();
        if self.bytes < ALIGNED_FROM_BYTES {
            return at;
        }
        at.next_multiple_of(LINE_BYTES)
    }

    /// Units that it takes, starting at byte `at`.
    fn units(&self, at: usize) -> u64 {
        (self.payload_at(at) + self.bytes - at).div_ceil(UNIT_BYTES) as u64
    }
}

fn commit_word(position: u64, bytes: usize) -> u64 {
    TAG | (position & 0xffff_ffff) << LENGTH_BITS | bytes as u64
}

/// What a reader sees of a ring's memory.
pub(crate) trait CastRead {
    /// The commit word of a unit, acquire.
    fn commit(&self, unit: usize) -> u64;
    /// Copies from byte `at` of the ring or its margin; panics beyond.
    fn copy(&self, at: usize, target: &mut [u8]);
}

/// What the writer does to it.
pub(crate) trait CastWrite {
    /// Stores the commit word of a unit, release.
    fn publish(&self, unit: usize, word: u64);
    /// Zeroes it, relaxed.
    fn clear(&self, unit: usize);
    /// Copies to byte `at` of the ring or its margin; panics beyond.
    fn put(&self, at: usize, bytes: &[u8]);
}

/// The writer's half.
#[derive(Debug)]
pub(crate) struct Writer {
    units: u64,
    piece_bytes: usize,
    tail: u64,
    /// All readers are done with what lies before: at most the truth.
    free: u64,
}

impl Writer {
    /// For fresh, all-zero memory of `ring_bytes`, a power of two, and its margin.
    pub(crate) fn new(ring_bytes: usize) -> Self {
        let units = (ring_bytes / UNIT_BYTES) as u64;
        assert!(units.is_power_of_two() && units >= 4 * PIECES as u64);
        Self {
            units,
            piece_bytes: piece_bytes(ring_bytes),
            tail: 0,
            free: 0,
        }
    }

    /// Where the next record will start.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Other readers, who start at the tail: all before is free. Only once no one else reads this ring.
    pub(crate) fn restart(&mut self) {
        self.free = self.tail;
    }

    /// Whether a record of `bytes` of payload has room, as far as is known without looking at the readers.
    #[inline]
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let longest = (HEAD_BYTES + TOTAL_BYTES + LINE_BYTES + bytes).div_ceil(UNIT_BYTES) as u64;
        // One more: the commit word behind it is cleared.
        self.tail + longest < self.free + self.units
    }

    /// All readers are done with what lies before `free`. Whether there is room enough to go on.
    pub(crate) fn freed(&mut self, free: u64) -> bool {
        self.free = free.clamp(self.free, self.tail);
        self.would_resume(self.free)
    }

    /// Whether there would be.
    pub(crate) fn would_resume(&self, free: u64) -> bool {
        let used = self.tail - free.clamp(self.free, self.tail);
        used <= self.units - self.units / RESUME_DIVISOR
    }

    /// Writes a record, which `fits`.
    #[inline]
    pub(crate) fn write<M: CastWrite>(&mut self, memory: &M, head: &Head, payload: &[u8]) {
        assert!(
            payload.len() == head.bytes && head.bytes <= self.piece_bytes && self.fits(head.bytes)
        );
        let mask = self.units - 1;
        let unit = (self.tail & mask) as usize;
        let at = unit * UNIT_BYTES;
        let is_piece = head.is_piece();
        let what = u64::from(head.sequence)
            | u64::from(head.code) << 32
            | if is_piece { PIECE } else { 0 };
        let words = [head.group, what, head.total].map(u64::to_ne_bytes);
        let front = if is_piece { &words[..] } else { &words[..2] };
        memory.put(at + 8, front.as_flattened());
        memory.put(head.payload_at(at), payload);
        let next = self.tail + head.units(at);
        memory.clear((next & mask) as usize);
        memory.publish(unit, commit_word(self.tail, head.bytes));
        self.tail = next;
    }
}

/// What a reader finds at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Nothing.
    Nothing,
    /// A record.
    Record(Head),
    /// What no honest writer leaves there.
    Corrupt,
}

/// A reader's half.
#[derive(Debug)]
pub(crate) struct Reader {
    units: u64,
    piece_bytes: usize,
    position: u64,
}

impl Reader {
    /// Starts where the writer said.
    pub(crate) fn new(ring_bytes: usize, position: u64) -> Self {
        Self {
            units: (ring_bytes / UNIT_BYTES) as u64,
            piece_bytes: piece_bytes(ring_bytes),
            position,
        }
    }

    /// Where the next record starts.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    fn unit(&self) -> usize {
        (self.position & (self.units - 1)) as usize
    }

    /// Whether a record (or garbage) waits.
    #[inline]
    pub(crate) fn is_ready<M: CastRead>(&self, memory: &M) -> bool {
        memory.commit(self.unit()) != 0
    }

    /// What waits.
    #[inline]
    pub(crate) fn look<M: CastRead>(&self, memory: &M) -> Look {
        let unit = self.unit();
        let word = memory.commit(unit);
        if word == 0 {
            return Look::Nothing;
        }
        let bytes = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        if word != commit_word(self.position, bytes) || bytes > self.piece_bytes {
            return Look::Corrupt;
        }
        let mut words = [[0; 8]; 3];
        // The third is the total, or the payload's front, or whatever lies behind a short one: at least a unit's rest.
        memory.copy(unit * UNIT_BYTES + 8, words.as_flattened_mut());
        let [group, what, total] = words.map(u64::from_ne_bytes);
        let head = Head {
            group,
            sequence: what as u32,
            code: (what >> 32) as u8,
            total: if what & PIECE == 0 {
                bytes as u64
            } else {
                total
            },
            bytes,
        };
        if what & PIECE != 0 && (bytes == 0 || total <= bytes as u64) {
            return Look::Corrupt;
        }
        Look::Record(head)
    }

    /// Copies the payload of the record that `look` found.
    #[inline]
    pub(crate) fn copy<M: CastRead>(&self, memory: &M, head: &Head, target: &mut [u8]) {
        memory.copy(head.payload_at(self.unit() * UNIT_BYTES), target);
    }

    /// The record is done with.
    #[inline]
    pub(crate) fn advance(&mut self, head: &Head) {
        self.position += head.units(self.unit() * UNIT_BYTES);
    }

    /// Parts of the ring, of the size that a waiting writer waits for, before the position: a step up is worth telling.
    pub(crate) fn quarter(&self) -> u64 {
        self.position / (self.units / RESUME_DIVISOR)
    }
}

#[cfg(test)]
#[path = "cast_tests.rs"]
mod tests;
