//! Receive half: the ring's shape, the walk through its slots, and the delivery of frames from them.
//!
//! Called by `Packet::receive`. The kernel fills the slots in order and has finished a frame before it passes the slot on, so one cursor is all the
//! state there is. The kernel's statements about a frame are checked against its slot.

use super::sys::RxRing;
use crate::ether::{self, MacAddr};
use crate::{LinkCounters, Receiver};

/// Bytes before a frame in its slot: the kernel's header and the sender's address (52 bytes), padding, and a VLAN tag.
const SLOT_OVERHEAD_BYTES: usize = 80 + 4;
/// Alignment of slots: a cache line.
const SLOT_ALIGN_BYTES: usize = 64;
/// Blocks are multiples of any page size in use. Larger ones need memory in one piece that a busy machine may not have.
const BLOCK_BYTES: usize = 64 << 10;
/// Payload of the largest frame that a link sends by itself: with its overhead, the slot fills such a block exactly. An MTU of up to 65,535 differs
/// from it by less than a hundred bytes.
pub(super) const PAYLOAD_BYTES_MAX: usize = BLOCK_BYTES - SLOT_OVERHEAD_BYTES;
/// Largest ring: the kernel's sizes have 32 bits.
const RING_BYTES_MAX: usize = 1 << 30;

/// The ring's shape: blocks of equal size, each with as many slots as fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) slot_bytes: usize,
    pub(super) block_bytes: usize,
    pub(super) blocks: usize,
}

impl Geometry {
    /// A ring of about `ring_bytes` for frames with `mtu_bytes` of payload, or as much as any link of ours sends, if that is less.
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

    /// The same with half the blocks; `None`: there is only one.
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

/// Position of the next slot.
///
/// Invariant: `offset()` is the start of a slot that lies whole within the ring it was advanced in.
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

/// A slot, and the kernel's description of the frame in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) slot: &'a [u8],
    /// Offset of its Ethernet header.
    pub(super) at: usize,
    /// Bytes of the frame in the slot.
    pub(super) kept_bytes: usize,
    /// Bytes of the original frame.
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

/// Delivers the frames of slots until there are `max`; frames that are not for us are counted or ignored.
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
