//! The three kinds of rings as they lie in mapped memory, each as its writer (`…Rw`) and its readers (`…Ro`) see it.
//!
//! `LinesRo` and `LinesRw` are for `ring`, `WordsRo` and `WordsRw` for `broadcast`, `CastRo` and `CastRw` for `cast`: the
//! protocols are there, the bounds here. The bytes of ring slots belong to one side at a time by the ring's protocol.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::map::{self, Map, ReadWord, WriteWord};
use crate::shm::broadcast::{BroadcastRead, BroadcastWrite};
use crate::shm::cast::{CastRead, CastWrite, UNIT_BYTES};
use crate::shm::ring::{COMMIT_BYTES, LINE_BYTES, RingRead, RingWrite};

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
    unsafe fn read<R>(&self, line: usize, bytes: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let from = line * LINE_BYTES + COMMIT_BYTES;
        debug_assert!(from + bytes <= self.bytes);
        // SAFETY: `ring` bounds `bytes` by the frame size, and the view holds a margin of one largest record behind its last
        // line, so the range is mapped. The caller vouches that the producer does not write it meanwhile.
        f(unsafe { std::slice::from_raw_parts(self.at.add(from).as_ptr(), bytes) })
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

/// A casting ring of another process.
#[derive(Debug)]
pub(crate) struct CastRo {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: points into memory that `_map` keeps mapped; read by atomic loads and by copies that the ring's protocol checks.
unsafe impl Send for CastRo {}

impl CastRo {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES));
        Self {
            at: map.at(offset, bytes, false),
            _map: Arc::clone(map),
            bytes,
        }
    }
}

impl CastRead for CastRo {
    #[inline]
    fn commit(&self, unit: usize) -> u64 {
        debug_assert!((unit + 1) * UNIT_BYTES <= self.bytes);
        // SAFETY: `cast` masks `unit` to the ring's units, which `new` checked to lie in the map; units are 8-byte aligned.
        unsafe { self.at.add(unit * UNIT_BYTES).cast::<AtomicU64>().as_ref() }
            .load(Ordering::Acquire)
    }

    #[inline]
    fn copy(&self, at: usize, target: &mut [u8]) {
        assert!(at <= self.bytes && target.len() <= self.bytes - at);
        // SAFETY: the range lies in the mapped ring, by the check above, and `target` is private memory of ours. Its writer writes
        // nothing there before we publish that we are done; where it gave the ring to another group meanwhile, or breaks the
        // protocol, `cast::Reader` finds out afterwards, and what was copied (plain bytes, any of which are valid) is thrown
        // away. No reference to the shared bytes is ever made.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at.as_ptr().add(at),
                target.as_mut_ptr(),
                target.len(),
            );
        }
    }
}

/// A casting ring of our own.
#[derive(Debug)]
pub(crate) struct CastRw {
    _map: Arc<Map>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: as for `CastRo`, with stores.
unsafe impl Send for CastRw {}

impl CastRw {
    pub(crate) fn new(map: &Arc<Map>, offset: usize, bytes: usize) -> Self {
        assert!(offset.is_multiple_of(UNIT_BYTES) && bytes.is_multiple_of(UNIT_BYTES));
        Self {
            at: map.at(offset, bytes, true),
            _map: Arc::clone(map),
            bytes,
        }
    }

    #[inline]
    fn commit_word(&self, unit: usize) -> &AtomicU64 {
        debug_assert!((unit + 1) * UNIT_BYTES <= self.bytes);
        // SAFETY: `cast` masks `unit` to the ring's units, which `new` checked to lie in the writable map; 8-byte aligned.
        unsafe { self.at.add(unit * UNIT_BYTES).cast().as_ref() }
    }
}

impl CastWrite for CastRw {
    #[inline]
    fn publish(&self, unit: usize, word: u64) {
        self.commit_word(unit).store(word, Ordering::Release);
    }

    #[inline]
    fn clear(&self, unit: usize) {
        self.commit_word(unit).store(0, Ordering::Relaxed);
    }

    #[inline]
    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.bytes && bytes.len() <= self.bytes - at);
        // SAFETY: the range lies in the mapped ring of our own region, by the check above; `bytes` is private memory. Readers
        // copy nothing from there before we publish it; one of an abandoned binding may, and throws it away (`CastRo::copy`).
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(at), bytes.len());
        }
    }
}
