//! The broadcast ring: one writer, any number of readers; the writer overwrites the oldest records without waiting for readers.
//!
//! The writer's half belongs to `tx`, a reader's half to `rx`. Generic over its memory like `ring` (loom includes this file).
//!
//! A sequence lock over a ring of words. Positions count words and never wrap. Before the writer touches words up to position
//! `p` it stores `reserve = p`, then a release fence; when done it stores `tail`, then `newest` (release). A reader copies the
//! words (all relaxed atomics, so no data race exists), then an acquire fence, then loads `reserve`: if a copied word came from
//! an overwriting record, that record's `reserve` is seen, and `reserve - position > words` says that the copy is torn. A torn
//! or outrun reader jumps to the newest record and learns from the sequence numbers how many it missed.
//!
//! Invariants: a record is `[tag | bytes, sequence, payload words…]`; `newest` is the start of the last whole record; a writer that dies at any point
//! leaves `tail` at the last whole record, and readers never trust the words that its `reserve` covers.

/// Words in front of a payload.
const HEAD_WORDS: u64 = 2;
/// Marks a record's first word.
const TAG: u64 = 0x51C9_0000 << 32;
/// Jumps within one `receive`; after them the reader stops until the next call, since the writer is faster now.
const JUMPS_MAX: usize = 3;
/// No correct position reaches this in a thousand years; keeps sums of garbage from overflowing.
const POSITION_LIMIT: u64 = 1 << 62;

/// Words that a frame takes.
pub(crate) const fn record_words(frame_bytes: usize) -> u64 {
    HEAD_WORDS + frame_bytes.div_ceil(8) as u64
}

/// A reader's view of the memory.
pub(crate) trait BroadcastRead {
    /// A data word, relaxed.
    fn word(&self, index: usize) -> u64;
    /// The end of the last whole record, acquire.
    fn tail(&self) -> u64;
    /// The start of the last whole record, acquire.
    fn newest(&self) -> u64;
    /// Acquire fence, then the end of what the writer may have touched, acquire: a reader that sees it also sees `newest` of the record before.
    fn fenced_reserve(&self) -> u64;
}

/// The writer's view of the memory.
pub(crate) trait BroadcastWrite {
    /// Stores a data word, relaxed.
    fn set_word(&self, index: usize, word: u64);
    /// Stores `reserve`, release, then a release fence.
    fn reserve(&self, end: u64);
    /// Stores `tail`, then `newest`, both release.
    fn finish(&self, start: u64, end: u64);
}

/// The writer's half.
#[derive(Debug)]
pub(crate) struct Writer {
    words: u64,
    tail: u64,
    sequence: u64,
}

impl Writer {
    /// For fresh memory of `words` words, a power of two.
    pub(crate) fn new(words: u64) -> Self {
        assert!(words.is_power_of_two());
        Self {
            words,
            tail: 0,
            sequence: 0,
        }
    }

    /// Where a reader that joins now starts: position and sequence number.
    pub(crate) fn start(&self) -> (u64, u64) {
        (self.tail, self.sequence)
    }

    /// Writes one frame over the oldest records. A frame takes at most half the ring: so the record before the one that tears a reader's copy lies at
    /// or beyond that reader's position, and a jump never leads back.
    pub(crate) fn send<M: BroadcastWrite>(&mut self, memory: &M, frame: &[u8]) {
        let mask = self.words - 1;
        let start = self.tail;
        let end = start + record_words(frame.len());
        assert!(end - start <= self.words);
        memory.reserve(end);
        memory.set_word((start & mask) as usize, TAG | frame.len() as u64);
        memory.set_word(((start + 1) & mask) as usize, self.sequence);
        let (whole, rest) = frame.as_chunks::<8>();
        let mut at = start + HEAD_WORDS;
        for chunk in whole {
            memory.set_word((at & mask) as usize, u64::from_le_bytes(*chunk));
            at += 1;
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            memory.set_word((at & mask) as usize, u64::from_le_bytes(last));
        }
        memory.finish(start, end);
        self.tail = end;
        self.sequence += 1;
    }
}

/// What a reader found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing (or the writer is too fast just now; ask again).
    Nothing,
    /// A frame of this length lies at the front of `scratch`; `missed` frames before it were overwritten unread.
    Frame {
        /// Length.
        bytes: usize,
        /// Frames overwritten before it was read.
        missed: u64,
    },
    /// Words that no correct writer leaves.
    Corrupt,
}

/// A reader's half.
#[derive(Debug)]
pub(crate) struct Reader {
    words: u64,
    frame_bytes: usize,
    position: u64,
    sequence: u64,
}

enum Attempt {
    Frame { bytes: usize, missed: u64 },
    Torn,
    Corrupt,
}

impl Reader {
    /// Starts at the position and sequence number that the writer stated.
    pub(crate) fn new(words: u64, frame_bytes: usize, (position, sequence): (u64, u64)) -> Self {
        Self {
            words,
            frame_bytes,
            position,
            sequence,
        }
    }

    /// Whether an unread record is there.
    #[inline]
    pub(crate) fn is_ready<M: BroadcastRead>(&self, memory: &M) -> bool {
        memory.tail() != self.position
    }

    /// Copies the next frame into `scratch` (at least `frame_bytes` rounded up to 8).
    #[inline]
    pub(crate) fn receive<M: BroadcastRead>(&mut self, memory: &M, scratch: &mut [u8]) -> Heard {
        let tail = memory.tail();
        if tail == self.position {
            return Heard::Nothing;
        }
        self.receive_some(memory, tail, scratch)
    }

    fn receive_some<M: BroadcastRead>(
        &mut self,
        memory: &M,
        mut tail: u64,
        scratch: &mut [u8],
    ) -> Heard {
        for _ in 0..JUMPS_MAX {
            if tail < self.position || tail > POSITION_LIMIT {
                return Heard::Corrupt;
            }
            match self.try_copy(memory, tail, scratch) {
                Attempt::Frame { bytes, missed } => return Heard::Frame { bytes, missed },
                Attempt::Corrupt => return Heard::Corrupt,
                Attempt::Torn => {}
            }
            // `newest` first: the tail read after it then covers that whole record.
            let newest = memory.newest();
            tail = memory.tail();
            if newest < self.position {
                return Heard::Corrupt;
            }
            self.position = newest;
        }
        Heard::Nothing
    }

    fn try_copy<M: BroadcastRead>(&mut self, memory: &M, tail: u64, scratch: &mut [u8]) -> Attempt {
        if tail - self.position > self.words {
            return Attempt::Torn;
        }
        let mask = self.words - 1;
        let head = memory.word((self.position & mask) as usize);
        let sequence = memory.word(((self.position + 1) & mask) as usize);
        let bytes = head as u32 as usize;
        let end = self.position + record_words(bytes);
        let sound = head == (TAG | bytes as u64)
            && bytes > 0
            && bytes <= self.frame_bytes
            && end <= tail
            && sequence >= self.sequence;
        if sound {
            let chunks = scratch[..bytes.next_multiple_of(8)].as_chunks_mut::<8>().0;
            for (at, chunk) in (self.position + HEAD_WORDS..).zip(chunks) {
                *chunk = memory.word((at & mask) as usize).to_le_bytes();
            }
        }
        if memory.fenced_reserve().wrapping_sub(self.position) > self.words {
            return Attempt::Torn;
        }
        if !sound {
            return Attempt::Corrupt;
        }
        let missed = sequence - self.sequence;
        self.position = end;
        self.sequence = sequence.wrapping_add(1);
        Attempt::Frame { bytes, missed }
    }
}
