//! The index logic of the four AF_XDP rings: one end of a ring whose other end is the kernel's.
//!
//! Each ring is a power-of-two array with two free-running 32-bit counters, of entries produced and consumed. `Producer` is our end of the fill and
//! transmit rings, `Consumer` of the receive and completion rings. `sys` maps the kernel's memory and builds the ends; the tests build both ends over
//! plain memory.
//!
//! Invariants: an end writes only its own counter; entries are written before the producer's counter is stored (release) and read after it was loaded
//! (acquire), and the reverse when they are returned. An impossible counter of the other end (more entries than the ring has) is limited to the
//! ring's size, so that no access leaves the array.
#![allow(unsafe_code)] // Raw access to counters and entries that the kernel maps, too.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The other end sleeps and needs a system call (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// An entry of the receive and transmit rings (`struct xdp_desc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub(super) struct Desc {
    /// Byte offset in the UMEM.
    pub(super) addr: u64,
    pub(super) bytes: u32,
    /// `CONTINUED` or 0.
    pub(super) options: u32,
}

/// The frame goes on in the next descriptor (`XDP_PKT_CONTD`).
pub(super) const CONTINUED: u32 = 1;

/// Addresses of a ring's parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<E> {
    pub(super) producer: NonNull<AtomicU32>,
    pub(super) consumer: NonNull<AtomicU32>,
    /// `None`: the other end never sleeps.
    pub(super) flags: Option<NonNull<AtomicU32>>,
    pub(super) entries: NonNull<E>,
    /// A power of two.
    pub(super) size: u32,
}

/// A ring's parts and the owner of its memory.
struct Ring<E> {
    parts: Parts<E>,
    mask: u32,
    /// The mapping; dropped with the end.
    _owner: Box<dyn Send>,
}

// SAFETY: the pointers lead into memory that `_owner` keeps, which is `Send`; counters are atomic, and entries are plain integers
// (`E: Send`) touched only by the end that the counters say owns them.
unsafe impl<E: Send> Send for Ring<E> {}

impl<E: Copy> Ring<E> {
    /// # Safety
    /// See `Producer::new`.
    unsafe fn new(parts: Parts<E>, owner: Box<dyn Send>) -> Self {
        assert!(parts.size.is_power_of_two(), "ring sizes are powers of two");
        Self {
            parts,
            mask: parts.size - 1,
            _owner: owner,
        }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: valid and aligned for as long as `_owner` lives, which is as long as `self` (promised to `new`).
        unsafe { self.parts.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.parts.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        self.parts.flags.is_some_and(|flags| {
            // SAFETY: as for `producer`.
            unsafe { flags.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0
        })
    }

    fn entry(&self, index: u32) -> *mut E {
        self.parts
            .entries
            .as_ptr()
            .wrapping_add((index & self.mask) as usize)
    }
}

/// The end that writes.
pub(super) struct Producer<E> {
    ring: Ring<E>,
    /// Entries written, submitted or not.
    written: u32,
    /// Entries submitted to the other end.
    submitted: u32,
    /// Entries that the other end was last seen to have consumed.
    consumed: u32,
}

impl<E: Copy> Producer<E> {
    /// # Safety
    /// All pointers of `parts` are aligned and valid for reads and writes, `entries` for `size` of them, for as long as `owner`
    /// lives. Nobody else writes the producer's counter, and nobody else touches the entries that it has not published or that
    /// the consumer's counter gave back.
    pub(super) unsafe fn new(parts: Parts<E>, owner: Box<dyn Send>) -> Self {
        // SAFETY: promised by the caller.
        let ring = unsafe { Ring::new(parts, owner) };
        let written = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Self {
            ring,
            written,
            submitted: written,
            consumed,
        }
    }

    /// Entries of the ring.
    pub(super) fn size(&self) -> u32 {
        self.ring.parts.size
    }

    /// Entries that can be written now.
    pub(super) fn free(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.free_seen()
    }

    fn free_seen(&self) -> u32 {
        self.size()
            .saturating_sub(self.written.wrapping_sub(self.consumed))
    }

    /// Writes an entry; the other end sees it after `submit`. `false`: the ring is full.
    #[inline]
    pub(super) fn push(&mut self, entry: E) -> bool {
        if self.free_seen() == 0 && self.free() == 0 {
            return false;
        }
        // SAFETY: within the array by the mask; the other end gave this entry back, since fewer than `size` entries were written
        // after what its counter (acquired) says it consumed.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    /// Submits all written entries to the other end.
    #[inline]
    pub(super) fn submit(&mut self) {
        if self.submitted != self.written {
            self.submitted = self.written;
            self.ring.producer().store(self.written, Ordering::Release);
        }
    }

    /// Entries written and not yet submitted.
    pub(super) fn unsubmitted(&self) -> u32 {
        self.written.wrapping_sub(self.submitted)
    }

    /// Entries submitted and not yet consumed.
    pub(super) fn outstanding(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.submitted.wrapping_sub(self.consumed).min(self.size())
    }

    /// Whether the other end sleeps.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// The end that reads.
pub(super) struct Consumer<E> {
    ring: Ring<E>,
    /// Entries returned.
    consumed: u32,
    /// Entries that the other end was last seen to have produced.
    produced: u32,
}

impl<E: Copy> Consumer<E> {
    /// # Safety
    /// As for `Producer::new`, with the ends exchanged.
    pub(super) unsafe fn new(parts: Parts<E>, owner: Box<dyn Send>) -> Self {
        // SAFETY: promised by the caller.
        let ring = unsafe { Ring::new(parts, owner) };
        let consumed = ring.consumer().load(Ordering::Relaxed);
        Self {
            ring,
            consumed,
            produced: consumed,
        }
    }

    /// Entries that can be read now.
    #[inline]
    pub(super) fn available(&mut self) -> u32 {
        self.produced = self.ring.producer().load(Ordering::Acquire);
        self.available_seen()
    }

    #[inline]
    fn available_seen(&self) -> u32 {
        self.produced
            .wrapping_sub(self.consumed)
            .min(self.ring.parts.size)
    }

    /// The entry `ahead` of the oldest; it must be among those that `available` counted.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> E {
        assert!(ahead < self.available_seen(), "no such entry yet");
        // SAFETY: within the array by the mask; published by the other end, whose counter was acquired, and not given back.
        unsafe { self.ring.entry(self.consumed.wrapping_add(ahead)).read() }
    }

    /// Returns the `count` oldest entries; `available` must have counted them.
    #[inline]
    pub(super) fn release(&mut self, count: u32) {
        assert!(count <= self.available_seen(), "more than were there");
        if count > 0 {
            self.consumed = self.consumed.wrapping_add(count);
            self.ring.consumer().store(self.consumed, Ordering::Release);
        }
    }
}

impl<E> fmt::Debug for Producer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("size", &self.ring.parts.size)
            .field("written", &self.written)
            .field("submitted", &self.submitted)
            .finish_non_exhaustive()
    }
}

impl<E> fmt::Debug for Consumer<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("size", &self.ring.parts.size)
            .field("consumed", &self.consumed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod plain {
    //! A ring in plain memory, for tests that play the kernel.

    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    pub(crate) struct PlainRing<E> {
        pub(crate) producer: AtomicU32,
        pub(crate) consumer: AtomicU32,
        pub(crate) flags: AtomicU32,
        entries: Box<[UnsafeCell<E>]>,
    }

    // SAFETY: counters are atomic; entries are touched only through the two ends, each by its owner of the moment.
    unsafe impl<E: Send> Sync for PlainRing<E> {}

    impl<E: Copy + Default + Send + 'static> PlainRing<E> {
        /// Counters start at `start`, so that their wrapping is tested.
        pub(crate) fn new(size: u32, start: u32) -> Arc<Self> {
            Arc::new(Self {
                producer: AtomicU32::new(start),
                consumer: AtomicU32::new(start),
                flags: AtomicU32::new(0),
                entries: (0..size).map(|_| UnsafeCell::new(E::default())).collect(),
            })
        }

        fn parts(&self) -> Parts<E> {
            Parts {
                producer: NonNull::from(&self.producer),
                consumer: NonNull::from(&self.consumer),
                flags: Some(NonNull::from(&self.flags)),
                entries: NonNull::new(UnsafeCell::raw_get(self.entries.as_ptr()))
                    .expect("a boxed slice"),
                size: self.entries.len() as u32,
            }
        }

        /// The only producer of this ring.
        pub(crate) fn producer_end(self: &Arc<Self>) -> Producer<E> {
            // SAFETY: the parts lie in `self`, which the owner keeps; tests make one end of each kind.
            unsafe { Producer::new(self.parts(), Box::new(self.clone())) }
        }

        /// The only consumer of this ring.
        pub(crate) fn consumer_end(self: &Arc<Self>) -> Consumer<E> {
            // SAFETY: as above.
            unsafe { Consumer::new(self.parts(), Box::new(self.clone())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::plain::PlainRing;
    use super::*;
    use std::collections::VecDeque;

    /// Any order of pushes, submits, peeks and releases behaves as a queue, also where the counters wrap.
    #[test]
    fn behaves_as_a_queue() {
        for (size, start) in [(1, 0), (2, u32::MAX), (8, u32::MAX - 20), (64, 5)] {
            let ring = PlainRing::<u64>::new(size, start);
            let (mut producer, mut consumer) = (ring.producer_end(), ring.consumer_end());
            let mut written = VecDeque::new();
            let mut visible = VecDeque::new();
            let mut random = fastrand::Rng::with_seed(u64::from(size));
            let mut next = 0u64;
            for _ in 0..20_000 {
                match random.u32(..4) {
                    0 | 1 => {
                        let full = written.len() + visible.len() == size as usize;
                        assert_eq!(producer.push(next), !full);
                        if !full {
                            written.push_back(next);
                        }
                        next += 1;
                    }
                    2 => {
                        assert_eq!(producer.unsubmitted() as usize, written.len());
                        producer.submit();
                        visible.append(&mut written);
                        assert_eq!(producer.outstanding() as usize, visible.len());
                    }
                    _ => {
                        assert_eq!(consumer.available() as usize, visible.len());
                        for (ahead, &expected) in visible.iter().enumerate() {
                            assert_eq!(consumer.peek(ahead as u32), expected);
                        }
                        let count = random.u32(..visible.len() as u32 + 1);
                        consumer.release(count);
                        visible.drain(..count as usize);
                        let held = written.len() + visible.len();
                        assert_eq!(producer.free() as usize, size as usize - held);
                    }
                }
            }
        }
    }

    /// Entries cross between two threads in order and complete.
    #[test]
    fn threads_see_whole_entries() {
        const COUNT: u64 = 100_000;
        let ring = PlainRing::<Desc>::new(16, u32::MAX - 7);
        let (mut producer, mut consumer) = (ring.producer_end(), ring.consumer_end());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..COUNT {
                    let desc = Desc {
                        addr: number,
                        bytes: number as u32,
                        options: !number as u32,
                    };
                    while !producer.push(desc) {
                        producer.submit();
                        std::thread::yield_now();
                    }
                    if number % 5 == 0 {
                        producer.submit();
                    }
                }
                producer.submit();
            });
            let mut expected = 0;
            while expected < COUNT {
                let available = consumer.available();
                for ahead in 0..available {
                    let desc = consumer.peek(ahead);
                    assert_eq!(desc.addr, expected);
                    assert_eq!(
                        (desc.bytes, desc.options),
                        (expected as u32, !expected as u32)
                    );
                    expected += 1;
                }
                consumer.release(available);
                if available == 0 {
                    std::thread::yield_now();
                }
            }
        });
    }

    /// Impossible counters never lead outside the ring.
    #[test]
    fn senseless_counters_stay_inside() {
        let ring = PlainRing::<u64>::new(4, 0);
        let (mut producer, mut consumer) = (ring.producer_end(), ring.consumer_end());
        ring.producer.store(1000, Ordering::Relaxed);
        assert_eq!(consumer.available(), 4);
        assert_eq!(consumer.peek(3), 0);
        ring.consumer.store(77, Ordering::Relaxed);
        assert_eq!(
            producer.free(),
            0,
            "nothing is free while the other end is mad"
        );
        assert!(!producer.push(1));
        assert!(producer.outstanding() <= 4);
    }

    /// The flag that asks for a system call is read.
    #[test]
    fn wakeup_flag_is_seen() {
        let ring = PlainRing::<u64>::new(4, 0);
        let producer = ring.producer_end();
        assert!(!producer.needs_wakeup());
        ring.flags.store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }
}
