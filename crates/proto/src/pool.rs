//! Reuse of buffers, so that steady traffic allocates nothing.
//!
//! Buffers are kept in classes by powers of two of their capacity. The total is bounded; the rest returns to the allocator.

use crate::posted::Posted;
use crate::tuning::TUNING;
use alloc::vec::Vec;

/// Smallest class: 64 B, one cache line.
const SMALLEST_LOG2: u32 = 6;
/// Number of classes: up to 4 GiB.
const CLASSES: usize = 27;

#[derive(Debug)]
pub(crate) struct Pool {
    classes: [Vec<Vec<u8>>; CLASSES],
    kept_bytes: usize,
    bitmaps: Vec<Vec<u64>>,
    /// The posted buffer for a message that begins with the frame being handled.
    pub(crate) posted: Option<Posted>,
    /// Posted buffers whose messages will not come.
    pub(crate) unused: Vec<Posted>,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self {
            classes: [const { Vec::new() }; CLASSES],
            kept_bytes: 0,
            bitmaps: Vec::new(),
            posted: None,
            unused: Vec::new(),
        }
    }

    /// An empty buffer of at least `capacity` bytes; `None` if the allocator has none.
    #[inline]
    pub(crate) fn take(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let mut buffer = self.take_used(capacity)?;
        buffer.clear();
        Some(buffer)
    }

    /// As `take`, with its former content: for callers that overwrite all they read.
    #[inline]
    pub(crate) fn take_used(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let log2 = usize::BITS - capacity.saturating_sub(1).leading_zeros();
        let class = log2.saturating_sub(SMALLEST_LOG2) as usize;
        if let Some(buffer) = self.classes.get_mut(class).and_then(Vec::pop) {
            self.kept_bytes -= buffer.capacity();
            return Some(buffer);
        }
        let mut buffer = Vec::new();
        buffer
            .try_reserve_exact(1 << log2.max(SMALLEST_LOG2))
            .ok()?;
        Some(buffer)
    }

    #[inline]
    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let Some(class) = capacity
            .checked_ilog2()
            .and_then(|log2| log2.checked_sub(SMALLEST_LOG2))
        else {
            return;
        };
        if self.kept_bytes + capacity > TUNING.messages.kept_bytes {
            return;
        }
        if let Some(class) = self.classes.get_mut(class as usize) {
            self.kept_bytes += capacity;
            class.push(buffer);
        }
    }

    /// A bitmap of at least `bits` bits, all zero.
    pub(crate) fn take_bitmap(&mut self, bits: usize) -> Vec<u64> {
        let mut bitmap = self.bitmaps.pop().unwrap_or_default();
        bitmap.resize(bits.div_ceil(64), 0);
        bitmap
    }

    pub(crate) fn put_bitmap(&mut self, mut bitmap: Vec<u64>) {
        if bitmap.capacity() > 0 && self.bitmaps.len() < TUNING.messages.kept_bitmaps {
            bitmap.clear();
            self.bitmaps.push(bitmap);
        }
    }
}

/// Sets bit `index`; `true` if it was clear.
pub(crate) fn set_bit(bitmap: &mut [u64], index: usize) -> bool {
    let (word, bit) = (&mut bitmap[index / 64], 1 << (index % 64));
    let clear = *word & bit == 0;
    *word |= bit;
    clear
}

pub(crate) fn has_bit(bitmap: &[u64], index: usize) -> bool {
    bitmap[index / 64] & 1 << (index % 64) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A returned buffer is reused for its class.
    #[test]
    fn buffers_come_back() {
        let mut pool = Pool::new();
        for capacity in [0, 1, 64, 65, 1000, 1 << 20] {
            let buffer = pool.take(capacity).unwrap();
            assert!(buffer.capacity() >= capacity);
            let place = buffer.as_ptr();
            pool.put(buffer);
            let again = pool.take(capacity).unwrap();
            assert_eq!(again.as_ptr(), place);
        }
    }

    /// Former content of a buffer is seen only by callers of `take_used`.
    #[test]
    fn used_buffers_are_empty_unless_asked_for() {
        let mut pool = Pool::new();
        pool.put(alloc::vec![7; 64]);
        assert_eq!(pool.take_used(64), Some(alloc::vec![7; 64]));
        pool.put(alloc::vec![7; 64]);
        assert_eq!(pool.take(64), Some(Vec::new()));
    }
}
