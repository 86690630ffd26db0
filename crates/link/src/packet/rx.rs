//! Receive half: the ring's shape, the walk through its slots, and the handing over of frames as they lie there.
//!
//! Called by `Packet::receive`. The kernel fills the slots in order and is done with a frame before it hands the slot over, so
//! one cursor is all the state there is. What the kernel says about a frame is checked against its slot.

use super::sys::RxRing;
use crate::ether::{self, MacAddr};
use crate::{LinkCounters, Receiver};

/// What stands before a frame in its slot: the kernel's header and the sender's address (52 bytes), padding, and a VLAN tag.
const SLOT_OVERHEAD_BYTES: usize = 80 + 4;
/// A slot begins a cache line.
const SLOT_ALIGN_BYTES: usize = 64;
/// Blocks are multiples of any page size in use. Larger ones need memory in one piece that a busy machine may not have.
const BLOCK_BYTES: usize = 64 << 10;
/// Payload of the largest frame that a link sends by itself: with what stands before it, its slot fills such a block and not one byte
/// of the next. An MTU of up to 65,535 differs from it by less than a hundred bytes.
pub(super) const PAYLOAD_BYTES_MAX: usize = BLOCK_BYTES - SLOT_OVERHEAD_BYTES;
/// More than this the kernel's 32-bit sizes and any sense forbid.
const RING_BYTES_MAX: usize = 1 << 30;

/// The ring's shape: blocks of equal size, in each as many slots as fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) slot_bytes: usize,
    pub(super) block_bytes: usize,
    pub(super) blocks: usize,
}

impl Geometry {
    /// For frames with `mtu_bytes` of payload, but no more than any link of ours sends, in about `ring_bytes`.
    pub(super) fn new(mtu_bytes: usize, ring_bytes: usize) -> Self {
        let slot_bytes = (SLOT_OVERHEAD_BYTES + mtu_bytes.min(PAYLOAD_BYTES_MAX))
            .next_multiple_of(SLOT_ALIGN_BYTES);
        let block_bytes = slot_bytes.next_multiple_of(BLOCK_BYTES);
        Self {
            slot_bytes,
            block_bytes,
            blocks: (ring_bytes.min(RING_BYTES_MAX) / block_bytes).max(1),
        }
    }

    /// With half the blocks; `None`: there is one.
    pub(super) fn halved(self) -> Option<Self> {
        (self.blocks > 1).then_some(Self {
            blocks: self.blocks / 2,
            ..self
        })
    }

    fn slots_per_block(&self) -> usize {
        self.block_bytes / self.slot_bytes
    }

    pub(super) fn slots(&self) -> usize {
        self.slots_per_block() * self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        self.block_bytes * self.blocks
    }
}

/// Which slot is next.
///
/// Invariant: `offset()` is the beginning of a slot that lies whole within the ring it was advanced in.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    block_at: usize,
    in_block: usize,
}

impl Cursor {
    #[inline]
    pub(super) fn offset(&self) -> usize {
        self.block_at + self.in_block
    }

    #[inline]
    pub(super) fn advance(&mut self, geometry: &Geometry) {
        self.in_block += geometry.slot_bytes;
        if self.in_block + geometry.slot_bytes > geometry.block_bytes {
            self.in_block = 0;
            self.block_at += geometry.block_bytes;
            if self.block_at >= geometry.bytes() {
                self.block_at = 0;
            }
        }
    }
}

/// A slot and what the kernel says of the frame in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) slot: &'a [u8],
    /// Where its Ethernet header begins.
    pub(super) at: usize,
    /// Bytes of it that are there.
    pub(super) kept_bytes: usize,
    /// Bytes that it had.
    pub(super) frame_bytes: usize,
}

impl<'a> Raw<'a> {
    /// The frame, unless it was cut.
    #[inline]
    pub(super) fn frame(&self) -> Option<&'a [u8]> {
        if self.kept_bytes != self.frame_bytes {
            return None;
        }
        self.slot
            .get(self.at..self.at.checked_add(self.kept_bytes)?)
    }
}

/// Hands over the frames of slots until there are `max`; what is not for us is counted or ignored.
#[inline]
pub(super) fn receive(
    ring: &mut RxRing,
    me: MacAddr,
    payload_bytes_max: usize,
    counters: &mut LinkCounters,
    max: usize,
    receiver: &mut impl Receiver,
) -> usize {
    let mut handed = 0;
    for _ in 0..max {
        if handed >= max {
            break;
        }
        let taken = ring.next(|raw| {
            let accepted = raw.frame().map(|frame| ether::accept(frame, me));
            match accepted {
                Some(Ok((from, payload))) if payload.len() <= payload_bytes_max => {
                    handed += ether::hand_over(from, payload, counters, receiver);
                }
                Some(Err(ignored)) if !ignored.is_drop() => {}
                _ => counters.dropped_frames += 1,
            }
        });
        if !taken {
            break;
        }
    }
    handed
}
