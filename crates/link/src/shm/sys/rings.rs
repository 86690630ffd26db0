//! Views of the two kinds of rings in mapped memory, one each for the writer (`…Rw`) and the readers (`…Ro`).
//!
//! `LinesRo` and `LinesRw` are for `ring`, `WordsRo` and `WordsRw` for `broadcast`, which have the protocols. By these, the bytes of a slot belong to
//! one side at a time.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use super::map::{self, Map, ReadWord, WriteWord};
use crate::shm::broadcast::{BroadcastRead, BroadcastWrite};
use crate::shm::ring::{COMMIT_BYTES, FIRST_BYTES, LINE_BYTES, RingRead, RingWrite, WORD_BYTES};

/// Copies memory that another process may write meanwhile, to which neither a reference nor a plain copy is allowed. Whole lines are copied by wide
/// loads, aligned so that none spans two lines: such a load would wait for both.
///
/// # Safety
/// `into.len()` bytes from `from` on are mapped.
#[inline]
unsafe fn copy_shared(from: NonNull<u8>, into: &mut [u8]) {
    let to_line = from.align_offset(LINE_BYTES).min(into.len());
    let (first, into) = into.split_at_mut(to_line);
    let (lines, rest) = into.as_chunks_mut();
    // SAFETY: all three lie in the range that the caller vouches for, and the second begins where a line does.
    unsafe {
        copy_words(from, first);
        copy_lines(from.add(to_line), lines);
        copy_words(from.add(to_line + lines.as_flattened().len()), rest);
    }
}

/// Copies by atomic loads.
///
/// # Safety
/// As `copy_shared`.
#[inline]
unsafe fn copy_words(from: NonNull<u8>, into: &mut [u8]) {
    let (words, rest) = into.as_chunks_mut::<WORD_BYTES>();
    let bytes_at = words.len() * WORD_BYTES;
    if from.cast::<AtomicU64>().is_aligned() {
        for (index, word) in words.iter_mut().enumerate() {
            // SAFETY: mapped, as the caller vouches, and aligned; others touch it by atomics, or break the protocol.
            let found = unsafe { from.cast::<AtomicU64>().add(index).as_ref() };
            *word = found.load(Ordering::Relaxed).to_ne_bytes();
        }
    } else {
        for (index, byte) in words.as_flattened_mut().iter_mut().enumerate() {
            // SAFETY: as above; bytes are always aligned.
            *byte = unsafe { from.cast::<AtomicU8>().add(index).as_ref() }.load(Ordering::Relaxed);
        }
    }
    for (index, byte) in rest.iter_mut().enumerate() {
        // SAFETY: as above.
        let found = unsafe { from.cast::<AtomicU8>().add(bytes_at + index).as_ref() };
        *byte = found.load(Ordering::Relaxed);
    }
}

/// Copies lines by inline assembly, of which the compiler knows only that it writes `into`.
///
/// # Safety
/// As `copy_shared`; `from` is where a line begins.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_lines(from: NonNull<u8>, into: &mut [[u8; LINE_BYTES]]) {
    for (index, line) in into.iter_mut().enumerate() {
        // SAFETY: reads a line of the range that the caller vouches for, which is aligned, and writes as much to `line`; every processor of
        // this architecture has these registers.
        unsafe {
            std::arch::asm!(
                "movdqa {a}, [{from}]",
                "movdqa {b}, [{from} + 16]",
                "movdqa {c}, [{from} + 32]",
                "movdqa {d}, [{from} + 48]",
                "movdqu [{into}], {a}",
                "movdqu [{into} + 16], {b}",
                "movdqu [{into} + 32], {c}",
                "movdqu [{into} + 48], {d}",
                from = in(reg) from.as_ptr().add(index * LINE_BYTES),
                into = in(reg) line.as_mut_ptr(),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// # Safety
/// As `copy_shared`.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn copy_lines(from: NonNull<u8>, into: &mut [[u8; LINE_BYTES]]) {
    // SAFETY: as the caller vouches.
    unsafe { copy_words(from, into.as_flattened_mut()) }
}

/// A ring that we consume: `lines` lines and a margin of another process's region.
#[derive(Debug)]
pub(crate) struct LinesRo {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: points into memory that `_map` keeps mapped; who may touch which byte when is the ring's protocol.
unsafe impl Send for LinesRo {}

impl LinesRo {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES));
        Self {
            at: map.at(offset, bytes, false),
            _map: Arc::clone(map),
            bytes,
        }
    }
}

impl RingRead for LinesRo {
    #[inline]
    fn commit(&self, line: usize) -> u64 {
        debug_assert!((line + 1) * LINE_BYTES <= self.bytes);
        // SAFETY: `ring` masks `line` to the ring's lines, which `new` checked to lie in the map; the line is 64-byte aligned.
        // A commit word is stored atomically; a payload that lay there earlier was written before an atomic store we acquired.
        unsafe { self.at.add(line * LINE_BYTES).cast::<AtomicU64>().as_ref() }
            .load(Ordering::Acquire)
    }

    #[inline]
    fn copy(&self, line: usize, from: usize, into: &mut [u8]) {
        let at = line * LINE_BYTES + COMMIT_BYTES + from;
        assert!(at <= self.bytes && into.len() <= self.bytes - at);
        // SAFETY: the range lies in the mapped ring and its margin, by the check above.
        unsafe { copy_shared(self.at.add(at), into) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn copy_line(&self, line: usize, into: &mut [u8; FIRST_BYTES]) {
        let at = line * LINE_BYTES + COMMIT_BYTES;
        assert!(at + FIRST_BYTES <= self.bytes);
        // SAFETY: reads the 56 bytes from `at` on, which lie in the mapped ring by the check above, and writes as many to `into`, which
        // has so many; every processor of this architecture has these registers, and the block says which it uses. What is stored in
        // pieces as wide as these can be read again at once.
        unsafe {
            std::arch::asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "mov {d}, [{from} + 48]",
                "movdqu [{into}], {a}",
                "movdqu [{into} + 16], {b}",
                "movdqu [{into} + 32], {c}",
                "mov [{into} + 48], {d}",
                from = in(reg) self.at.as_ptr().add(at),
                into = in(reg) into.as_mut_ptr(),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// A ring that we produce, in our own region.
#[derive(Debug)]
pub(crate) struct LinesRw {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `LinesRo`.
unsafe impl Send for LinesRw {}

impl LinesRw {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(LINE_BYTES));
        Self {
            at: map.at(offset, bytes, true),
            _map: Arc::clone(map),
            bytes,
        }
    }

    #[inline]
    fn commit_word(&self, line: usize) -> &AtomicU64 {
        debug_assert!((line + 1) * LINE_BYTES <= self.bytes);
        // SAFETY: `ring` masks `line` to the ring's lines, which `new` checked to lie in the writable map; aligned to 64.
        unsafe { self.at.add(line * LINE_BYTES).cast().as_ref() }
    }
}

impl RingWrite for LinesRw {
    #[inline]
    fn publish(&self, line: usize, word: u64) {
        self.commit_word(line).store(word, Ordering::Release);
    }

    #[inline]
    fn clear(&self, line: usize) {
        self.commit_word(line).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn published(&self, line: usize) -> u64 {
        self.commit_word(line).load(Ordering::Relaxed)
    }

    fn back(&self, lines: Range<usize>) {
        debug_assert!(lines.start <= lines.end && lines.end * LINE_BYTES <= self.bytes);
        // SAFETY: `ring` names lines that the ring has, which `new` checked to lie in the writable map.
        unsafe {
            map::back(
                self.at.add(lines.start * LINE_BYTES),
                lines.len() * LINE_BYTES,
            )
        };
    }

    #[inline]
    unsafe fn write<R>(&self, line: usize, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let from = line * LINE_BYTES + COMMIT_BYTES;
        debug_assert!(from + bytes <= self.bytes);
        // SAFETY: in the writable map with its margin, as in `LinesRo::read`. The caller vouches that the consumer is done with
        // the range; in this process only the one `Producer` that owns this view writes it, through `&mut self`.
        f(unsafe { std::slice::from_raw_parts_mut(self.at.add(from).as_ptr(), bytes) })
    }
}

/// Another process's broadcast ring.
#[derive(Debug)]
pub(crate) struct WordsRo {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
    words: usize,
    tail: ReadWord,
    newest: ReadWord,
    reserve: ReadWord,
}

// SAFETY: points into memory that `_map` keeps mapped; touched by atomic loads only.
unsafe impl Send for WordsRo {}

impl WordsRo {
    pub(crate) fn new(
        map: &Arc<Map>,
        offset: usize,
        words: usize,
        [tail, newest, reserve]: [usize; 3],
    ) -> Self {
        Self {
            at: map.at(offset, words * 8, false),
            words,
            tail: ReadWord::new(map, tail),
            newest: ReadWord::new(map, newest),
            reserve: ReadWord::new(map, reserve),
            _map: Arc::clone(map),
        }
    }
}

impl BroadcastRead for WordsRo {
    #[inline]
    fn word(&self, index: usize) -> u64 {
        debug_assert!(index < self.words);
        // SAFETY: `broadcast` masks `index` to the ring's words, which `new` checked to lie in the map; aligned.
        unsafe { self.at.add(index).as_ref() }.load(Ordering::Relaxed)
    }

    #[inline]
    fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    #[inline]
    fn fenced_reserve(&self) -> u64 {
        fence(Ordering::Acquire);
        self.reserve.load(Ordering::Acquire)
    }
}

/// Our own broadcast ring.
#[derive(Debug)]
pub(crate) struct WordsRw {
    _map: Arc<Map>,
    at: NonNull<AtomicU64>,
    words: usize,
    tail: WriteWord,
    newest: WriteWord,
    reserve: WriteWord,
}

// SAFETY: as for `WordsRo`, with stores.
unsafe impl Send for WordsRw {}

impl WordsRw {
    pub(crate) fn new(
        map: &Arc<Map>,
        offset: usize,
        words: usize,
        [tail, newest, reserve]: [usize; 3],
    ) -> Self {
        Self {
            at: map.at(offset, words * 8, true),
            words,
            tail: WriteWord::new(map, tail),
            newest: WriteWord::new(map, newest),
            reserve: WriteWord::new(map, reserve),
            _map: Arc::clone(map),
        }
    }
}

impl BroadcastWrite for WordsRw {
    #[inline]
    fn set_word(&self, index: usize, word: u64) {
        debug_assert!(index < self.words);
        // SAFETY: `broadcast` masks `index` to the ring's words, which `new` checked to lie in the writable map; aligned.
        unsafe { self.at.add(index).as_ref() }.store(word, Ordering::Relaxed);
    }

    fn reserve(&self, end: u64) {
        self.reserve.store(end, Ordering::Release);
        fence(Ordering::Release);
    }

    fn finish(&self, start: u64, end: u64) {
        self.tail.store(end, Ordering::Release);
        self.newest.store(start, Ordering::Release);
    }
}
