//! Slots that one thread fills and another empties, by plain `memcpy`: the bare shape of a shared-memory ring.
//!
//! Used by `copy` only. Invariant: a slot whose `turn` is even belongs to the writer, one whose `turn` is odd to the reader; the owner of a slot
//! passes it on by a release store, and the other takes it by an acquire load.
// A ring between threads cannot be written in safe code without a lock or word-wise atomics, and both would hide the limit.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[repr(align(128))]
struct Slot {
    turn: AtomicU64,
    bytes: UnsafeCell<Box<[u8]>>,
}

struct Slots(Box<[Slot]>);

// SAFETY: `bytes` is reached only through `Writer` and `Reader`, of which there is one each and neither is `Clone`; `turn`
// gives a slot to exactly one of them at a time, with release/acquire pairs between their accesses.
unsafe impl Sync for Slots {}
// SAFETY: as above; nothing in a slot is tied to the thread that made it.
unsafe impl Send for Slots {}

/// The only one that fills slots.
pub(super) struct Writer {
    slots: Arc<Slots>,
    next: usize,
}

/// The only one that empties slots.
pub(super) struct Reader {
    slots: Arc<Slots>,
    next: usize,
}

/// A ring of `slots` slots of `bytes` each. All memory is touched here.
pub(super) fn channel(slots: usize, bytes: usize) -> (Writer, Reader) {
    let slot = || Slot {
        turn: AtomicU64::new(0),
        bytes: UnsafeCell::new(vec![1; bytes].into_boxed_slice()),
    };
    let slots = Arc::new(Slots((0..slots).map(|_| slot()).collect()));
    (
        Writer {
            slots: Arc::clone(&slots),
            next: 0,
        },
        Reader { slots, next: 0 },
    )
}

impl Writer {
    /// Copies `message` into the next slot. `false`: the reader has not emptied it yet.
    #[inline]
    pub(super) fn try_put(&mut self, message: &[u8]) -> bool {
        let slot = &self.slots.0[self.next];
        let turn = slot.turn.load(Ordering::Acquire);
        if turn % 2 == 1 {
            return false;
        }
        // SAFETY: an even turn means that the slot is the writer's, and `self` is the only writer (borrowed mutably); the
        // acquire load saw the reader's release, so its reads are over. No other reference into the slot exists.
        let bytes = unsafe { &mut *slot.bytes.get() };
        bytes[..message.len()].copy_from_slice(message);
        slot.turn.store(turn + 1, Ordering::Release);
        self.next = (self.next + 1) % self.slots.0.len();
        true
    }
}

impl Reader {
    /// Copies the next message out. `false`: there is none yet.
    #[inline]
    pub(super) fn try_take(&mut self, message: &mut [u8]) -> bool {
        let slot = &self.slots.0[self.next];
        let turn = slot.turn.load(Ordering::Acquire);
        if turn.is_multiple_of(2) {
            return false;
        }
        // SAFETY: an odd turn means that the slot is the reader's, and `self` is the only reader (borrowed mutably); the
        // acquire load saw the writer's release, so its writes are over and visible. No mutable reference exists meanwhile.
        let bytes = unsafe { &*slot.bytes.get() };
        message.copy_from_slice(&bytes[..message.len()]);
        slot.turn.store(turn + 1, Ordering::Release);
        self.next = (self.next + 1) % self.slots.0.len();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages come out as they went in, in order, across a wrap of the ring; a full ring refuses.
    #[test]
    fn keeps_order_and_bounds() {
        let (mut writer, mut reader) = channel(2, 4);
        let mut out = [0; 4];
        assert!(!reader.try_take(&mut out));
        assert!(writer.try_put(b"one ") && writer.try_put(b"two "));
        assert!(!writer.try_put(b"over"));
        assert!(reader.try_take(&mut out) && out == *b"one ");
        assert!(writer.try_put(b"more"));
        assert!(reader.try_take(&mut out) && out == *b"two ");
        assert!(reader.try_take(&mut out) && out == *b"more");
        assert!(!reader.try_take(&mut out));
    }
}
