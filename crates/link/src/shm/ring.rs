//! The single-producer single-consumer ring: how one process passes frames to one other.
//!
//! Owned by `tx` (the producer's half) and `rx` (the consumer's half); knows nothing of processes or generations. It is generic over the memory it
//! lies in, so that loom can try all interleavings (`tests/loom_ring.rs` includes this file).
//!
//! A ring is a power of two of 64-byte lines and a margin. Positions count lines from 0 and never wrap; `position & mask` is the
//! line. A *record* starts at a line: 8 bytes commit word, then the frame; it may run on into the margin, and so is never split.
//! The commit word holds its length, and marks: the frame is *counted* (the number of counted frames not yet read can be asked for), or it *refers*
//! to a body that lies elsewhere. It is zero until the record is whole, and the consumer polls nothing but the commit word at its own head: a frame
//! of up to 56 bytes crosses between two caches as one line.
//!
//! Invariants:
//! 1. The commit word at `tail` is zero. Before a record is published, the word where the *next* record will start is cleared; the release store that
//!    publishes orders the clearing before it. So a consumer that follows records never takes an old payload, or bytes written and never published,
//!    for a commit word.
//! 2. The producer writes only lines in `[tail, head + lines)`, with `head` as the consumer published it after it was done with
//!    all before. A record that runs into the margin is consumed whole before the next one may run there: the next one ends
//!    beyond one more lap, hence needs a head beyond the first one's start, and heads lie at record boundaries.
//! 3. The producer may die between any two stores: unpublished bytes are never read.
#![allow(unsafe_code)] // Gives out slots of memory that another process maps; each block proves that no one else accesses them.

use std::ops::Range;

use crate::tuning::TUNING;

/// Bytes of a cache line, the unit of a ring.
pub(crate) const LINE_BYTES: usize = 64;
/// The commit word in front of each frame.
pub(crate) const COMMIT_BYTES: usize = 8;
/// Bytes that follow the commit word in its line.
pub(crate) const FIRST_BYTES: usize = LINE_BYTES - COMMIT_BYTES;
/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;
/// A frame of this length at most takes two lines.
const SHORT_BYTES: usize = 2 * LINE_BYTES - COMMIT_BYTES;
/// The tag of a commit word; with 16 bits of the position it distinguishes a commit word from stray bytes.
const TAG: u64 = 0xB7A3 << 48;
/// A mark: the frame is counted.
pub(crate) const COUNTED: u64 = 1 << 31;
/// A mark: the frame refers to a body.
pub(crate) const REFERS: u64 = 1 << 30;
/// All marks.
const MARKS: u64 = COUNTED | REFERS;

/// Bytes of a page.
const PAGE_BYTES: usize = 4096;

/// Lines that a frame of `frame_bytes` takes.
pub(crate) const fn record_lines(frame_bytes: usize) -> u64 {
    (COMMIT_BYTES + frame_bytes).div_ceil(LINE_BYTES) as u64
}

fn commit_word(position: u64, frame_bytes: usize) -> u64 {
    TAG | (position & 0xffff) << 32 | frame_bytes as u64
}

/// The length that a commit word states.
fn stated_bytes(word: u64) -> usize {
    (word & (REFERS - 1)) as usize
}

/// The consumer's access to a ring's memory.
pub(crate) trait RingRead {
    /// The commit word of a line, with acquire ordering.
    fn commit(&self, line: usize) -> u64;
    /// Copies the bytes `from` bytes behind the commit word of `line`. A process that breaks the protocol may write there meanwhile: then the copy
    /// holds some of its bytes, but the copy does not change.
    ///
    /// # Panics
    /// If that reaches beyond the ring and its margin.
    fn copy(&self, line: usize, from: usize, into: &mut [u8]);
    /// Copies the rest of `line` behind its commit word.
    fn copy_line(&self, line: usize, into: &mut [u8; FIRST_BYTES]) {
        self.copy(line, 0, into);
    }
}

/// A published record, while it is at the head.
#[derive(Debug)]
pub(crate) struct Record<'a, M> {
    memory: &'a M,
    line: usize,
    /// Bytes of its frame.
    pub(crate) bytes: usize,
    /// The frame refers to a body.
    pub(crate) refers: bool,
}

impl<M: RingRead> Record<'_, M> {
    /// Copies the whole frame into the front of `into`; may write some bytes behind it.
    #[inline]
    pub(crate) fn copy_whole<'s>(&self, into: &'s mut [u8]) -> &'s [u8] {
        match into.first_chunk_mut() {
            Some(first) => self.memory.copy_line(self.line, first),
            None => self.copy(0, &mut into[..self.bytes]),
        }
        if self.bytes > FIRST_BYTES {
            self.copy(FIRST_BYTES, &mut into[FIRST_BYTES..self.bytes]);
        }
        &into[..self.bytes]
    }

    /// Copies a part of the frame.
    #[inline]
    pub(crate) fn copy(&self, from: usize, into: &mut [u8]) {
        self.memory.copy(self.line, from, into);
    }
}

/// The producer's access to a ring's memory.
pub(crate) trait RingWrite {
    /// Stores the commit word of a line, with release ordering.
    fn publish(&self, line: usize, word: u64);
    /// Zeroes the commit word of a line, relaxed.
    fn clear(&self, line: usize);
    /// The commit word of a line as it was published.
    fn published(&self, line: usize) -> u64;
    /// Allocates memory for lines that were never used: the first access to each page would take as long as several frames.
    fn back(&self, lines: Range<usize>);
    /// Calls `f` with the `bytes` bytes that follow the commit word of `line`.
    ///
    /// # Safety
    /// No record that the consumer may still read covers them.
    unsafe fn write<R>(&self, line: usize, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R;
}

/// Result of `Producer::send`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// Published, with this length.
    Frame(usize),
    /// There is no room.
    Full,
    /// The consumer's head is impossible: its process wrote garbage.
    Broken,
}

/// The producer's half.
#[derive(Debug)]
pub(crate) struct Producer {
    lines: u64,
    frame_bytes: usize,
    /// Lines of the largest record, and one more.
    reach_lines: u64,
    tail: u64,
    /// The consumer's head as last read: at most the real one.
    head: u64,
    /// Lines below this position were fetched ahead of use.
    warm: u64,
    /// Lines below this position have memory; `u64::MAX`: all have. Always some more than were used, and at most twice as many: a ring that is hardly
    /// used takes hardly any memory.
    backed: u64,
}

/// Copies the start of `parts` into a record's first line, word by word: a wide load of bytes just stored in pieces would wait for these stores.
#[inline(always)]
fn fill_first(slot: &mut [u8], parts: &[&[u8]; 3]) {
    let mut rest = *parts;
    let (words, _) = slot[..FIRST_BYTES].as_chunks_mut();
    for word in words {
        *word = next_word(&mut rest).to_ne_bytes();
    }
}

/// Takes the next word from the parts; zeros behind the last.
#[inline(always)]
fn next_word(rest: &mut [&[u8]; 3]) -> u64 {
    skip_empty(rest);
    if let Some((word, behind)) = rest[0].split_first_chunk() {
        rest[0] = behind;
        return u64::from_ne_bytes(*word);
    }
    let mut word = 0;
    for place in 0..WORD_BYTES {
        skip_empty(rest);
        let Some((byte, behind)) = rest[0].split_first() else {
            break;
        };
        word |= u64::from(*byte) << (8 * place);
        rest[0] = behind;
    }
    u64::from_le(word)
}

/// Moves the next part that has bytes to the front.
#[inline(always)]
fn skip_empty(rest: &mut [&[u8]; 3]) {
    match *rest {
        [[], [], last] => *rest = [last, &[], &[]],
        [[], next, last] => *rest = [next, last, &[]],
        _ => {}
    }
}

/// Copies by the C library's `memcpy`, in pieces where its `rep movsb` would be slow: on some processors (AMD's Zen 3 and later) that takes much longer
/// where the target lies less than a line further behind a page's start than the source.
#[inline]
pub(super) fn copy_long(mut into: &mut [u8], mut from: &[u8]) {
    let skew = into.as_ptr().addr().wrapping_sub(from.as_ptr().addr()) % PAGE_BYTES;
    if (1..LINE_BYTES).contains(&skew) {
        while from.len() > TUNING.shm.copy_bytes {
            let (piece, rest) = from.split_at(TUNING.shm.copy_bytes);
            let (place, behind) = into.split_at_mut(TUNING.shm.copy_bytes);
            place.copy_from_slice(piece);
            (into, from) = (behind, rest);
        }
    }
    into.copy_from_slice(from);
}

/// Copies the rest of `parts` behind the first line.
fn fill_behind(slot: &mut [u8], parts: &[&[u8]; 3]) {
    let mut at = 0;
    for part in parts {
        let skipped = FIRST_BYTES.saturating_sub(at).min(part.len());
        let behind = &part[skipped..];
        at += part.len();
        if !behind.is_empty() {
            copy_long(&mut slot[at - behind.len()..at], behind);
        }
    }
}

impl Producer {
    /// For fresh, all-zero memory of `lines` lines (a power of two that holds two largest records).
    pub(crate) fn new(lines: u64, frame_bytes: usize) -> Self {
        let reach_lines = record_lines(frame_bytes) + 1;
        assert!(lines.is_power_of_two() && lines >= 2 * reach_lines);
        Self {
            lines,
            frame_bytes,
            reach_lines,
            tail: 0,
            head: 0,
            warm: 0,
            backed: 0,
        }
    }

    /// Where the next record will start.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Lets a new consumer start at the tail: all lines before it are free. Only once nobody else reads this ring.
    pub(crate) fn restart(&mut self) {
        self.head = self.tail;
    }

    /// Publishes a frame whose parts follow one another, with these marks. `load_head` reads the consumer's published head; `None`: it has published
    /// none.
    ///
    /// # Panics
    /// If the parts are empty, or longer than a frame.
    #[inline]
    pub(crate) fn send<M: RingWrite>(
        &mut self,
        memory: &M,
        load_head: impl FnOnce() -> Option<u64>,
        marks: u64,
        parts: &[&[u8]; 3],
    ) -> Sent {
        let bytes = parts.iter().map(|part| part.len()).sum();
        assert!((1..=self.frame_bytes).contains(&bytes));
        if let Some(refusal) = self.refusal(load_head) {
            return refusal;
        }
        // The consumer polls the first line: if it reads the line between two of our stores, we have to fetch it back. So a longer record's first line is
        // written last. Of a short one it is written first: the store begins to fetch the line, while the rest is put together.
        let is_short = bytes <= SHORT_BYTES;
        let fill = |slot: &mut [u8]| {
            if is_short {
                fill_first(slot, parts);
            }
            if bytes > FIRST_BYTES {
                fill_behind(slot, parts);
            }
            if !is_short {
                fill_first(slot, parts);
            }
        };
        let line = self.line_of(self.tail);
        // SAFETY: the record covers positions below tail + reach - 1, and has at least one line; all lie below head + lines by the check above
        // (invariant 2).
        unsafe { memory.write(line, bytes.max(FIRST_BYTES), fill) };
        self.publish(memory, marks, bytes)
    }

    /// Why the next record has no room; `None`: it has.
    #[inline]
    fn refusal(&mut self, load_head: impl FnOnce() -> Option<u64>) -> Option<Sent> {
        let is_full = |it: &Self| it.tail + it.reach_lines > it.head + it.lines;
        if !is_full(self) {
            return None;
        }
        if !self.refresh(load_head) {
            return Some(Sent::Broken);
        }
        is_full(self).then_some(Sent::Full)
    }

    #[inline]
    fn line_of(&self, position: u64) -> usize {
        (position & (self.lines - 1)) as usize
    }

    /// Publishes the frame of `bytes` that lies at the tail.
    #[inline]
    fn publish<M: RingWrite>(&mut self, memory: &M, marks: u64, bytes: usize) -> Sent {
        let next = self.tail + record_lines(bytes);
        let next_line = self.line_of(next);
        // Our cache has at least a copy of a warm line: reading it costs less than a store, which would have to fetch it from a consumer that read
        // the line next to it.
        if next >= self.warm || memory.published(next_line) != 0 {
            memory.clear(next_line);
        }
        memory.publish(
            self.line_of(self.tail),
            commit_word(self.tail, bytes) | marks,
        );
        self.tail = next;
        Sent::Frame(bytes)
    }

    /// Reads how far the consumer has read. `false`: its head is impossible.
    fn refresh(&mut self, load_head: impl FnOnce() -> Option<u64>) -> bool {
        let Some(head) = load_head() else {
            return true;
        };
        let is_possible = head.wrapping_sub(self.head) <= self.tail - self.head;
        if is_possible {
            self.head = head;
        }
        is_possible
    }

    /// How many frames of any length surely fit now; reads the consumer's head only if there seems to be no room.
    #[inline]
    pub(crate) fn free_frames(&mut self, load_head: impl FnOnce() -> Option<u64>) -> usize {
        if self.refusal(load_head).is_some() {
            return 0;
        }
        let free_lines = self.head + self.lines - self.tail;
        ((free_lines - 1) / (self.reach_lines - 1)) as usize
    }

    /// How many frames of that length fit now, one after the other.
    pub(crate) fn room(
        &mut self,
        frame_bytes: usize,
        load_head: impl FnOnce() -> Option<u64>,
    ) -> usize {
        if !self.refresh(load_head) {
            return 0;
        }
        // The largest frame must still fit before the last one.
        let free_lines = (self.head + self.lines).saturating_sub(self.tail);
        let before_last = free_lines.checked_sub(self.reach_lines);
        before_last.map_or(0, |lines| (lines / record_lines(frame_bytes)) as usize + 1)
    }

    /// Counted frames that the consumer, with this published head, has not read; of an impossible head, the most there may be.
    pub(crate) fn unread<M: RingWrite>(&self, memory: &M, head: Option<u64>) -> usize {
        let is_possible = |head: &u64| head.wrapping_sub(self.head) <= self.tail - self.head;
        let mut position = head.filter(is_possible).unwrap_or(self.head);
        let mut unread = 0;
        while position < self.tail {
            let word = memory.published((position & (self.lines - 1)) as usize);
            let bytes = stated_bytes(word);
            if bytes == 0 || bytes > self.frame_bytes {
                break; // the head does not lie where a record begins
            }
            unread += usize::from(word & COUNTED != 0);
            position += record_lines(bytes);
        }
        unread
    }

    /// Fetches the lines that the next small records need. Called when nobody waits.
    #[inline]
    pub(crate) fn warm<M: RingWrite>(&mut self, memory: &M) {
        if self.warm >= self.tail + TUNING.shm.warm_low_lines {
            return;
        }
        let from = self.warm.max(self.tail + 1);
        let end = (self.tail + TUNING.shm.warm_lines).min(self.head + self.lines);
        if end > self.backed {
            self.back(memory, end);
        }
        for position in from..end {
            memory.clear((position & (self.lines - 1)) as usize);
        }
        self.warm = end.max(from);
    }

    /// Called in the first lap, before lines up to `end` are used.
    #[cold]
    fn back<M: RingWrite>(&mut self, memory: &M, end: u64) {
        let to = (2 * end).min(self.lines);
        if self.backed < to {
            memory.back(self.backed as usize..to as usize);
        }
        self.backed = if to == self.lines { u64::MAX } else { to };
    }
}

/// Result of `Consumer::receive`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// No record waits.
    Empty,
    /// A frame, of this length.
    Frame(usize),
    /// A commit word that no correct producer writes, or a frame that `take` refused.
    Corrupt,
}

/// The consumer's half.
#[derive(Debug)]
pub(crate) struct Consumer {
    lines: u64,
    frame_bytes: usize,
    head: u64,
    published: u64,
}

impl Consumer {
    /// Starts at the position that the producer stated.
    pub(crate) fn new(lines: u64, frame_bytes: usize, head: u64) -> Self {
        Self {
            lines,
            frame_bytes,
            head,
            published: head,
        }
    }

    /// Whether a record (or garbage) waits.
    #[inline]
    pub(crate) fn is_ready<M: RingRead>(&self, memory: &M) -> bool {
        memory.commit((self.head & (self.lines - 1)) as usize) != 0
    }

    /// Passes the next frame's record to `take`, if one is there. A record that `take` refuses stays, and counts as corrupt.
    #[inline]
    pub(crate) fn receive<M: RingRead>(
        &mut self,
        memory: &M,
        take: impl FnOnce(Record<'_, M>) -> bool,
    ) -> Received {
        let line = (self.head & (self.lines - 1)) as usize;
        let word = memory.commit(line);
        if word == 0 {
            return Received::Empty;
        }
        let bytes = stated_bytes(word);
        let is_ours = word & !MARKS == commit_word(self.head, bytes);
        if !is_ours || bytes == 0 || bytes > self.frame_bytes {
            return Received::Corrupt;
        }
        let refers = word & REFERS != 0;
        let is_taken = take(Record {
            memory,
            line,
            bytes,
            refers,
        });
        if !is_taken {
            return Received::Corrupt;
        }
        self.head += record_lines(bytes);
        Received::Frame(bytes)
    }

    /// The head, if it is time to publish it (release): a part of the ring was consumed, or we are idle and it moved.
    #[inline]
    pub(crate) fn head_to_publish(&mut self, idle: bool) -> Option<u64> {
        let done = self.head - self.published;
        if done >= self.lines / TUNING.shm.publish_divisor || idle && done > 0 {
            self.published = self.head;
            return Some(self.head);
        }
        None
    }
}
