//! Receiving half of one channel: which messages have come, and which may be delivered.
//!
//! Invariant: every message below `next` has been delivered exactly once; slot i of `slots` is message `next + i`.

use alloc::collections::VecDeque;

use super::reassembly::{Assembled, Reassembly};
use crate::memory::Memory;
use crate::numbers::FIRST_NUMBER;
use crate::pool::Pool;
use crate::posted::{OutOfMemory, Posted};

/// Messages of one channel that may be under way at once, by message number.
pub(crate) const CHANNEL_WINDOW: u64 = 4096;

#[derive(Debug)]
enum Slot {
    Empty,
    Partial(Reassembly),
    /// Complete, and waits for earlier messages.
    Ready(Waiting),
    /// Delivered already (unordered channels).
    Done,
}

/// A complete message, or a bundle.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) body: Assembled,
    /// As `Fragment::weight`.
    weight: usize,
}

impl Waiting {
    pub(crate) fn is_bundle(&self) -> bool {
        self.weight > self.body.len()
    }
}

/// A fragment that obeys R-14.
pub(crate) struct Fragment<'a> {
    pub(crate) message: u64,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    /// Charge of the message without overhead: its length, or more if it is a bundle.
    pub(crate) weight: usize,
    /// Length of all fragments of the message but the last.
    pub(crate) size: usize,
    pub(crate) payload_bytes: usize,
    /// `None`: a link has placed the payload already.
    pub(crate) payload: Option<&'a [u8]>,
}

impl Fragment<'_> {
    fn is_whole(&self) -> bool {
        self.payload_bytes == self.length
    }
}

/// Result of accepting a fragment.
#[derive(Debug)]
pub(crate) enum Accepted {
    /// The fragment is the next message, and complete: deliver it from the frame.
    Frame,
    /// The fragment completed this message, which is to be delivered now.
    Whole(Assembled),
    /// Nothing to deliver now: a message is not complete, or not next, or was refused.
    Nothing,
    /// Arrived before.
    Duplicate,
    /// Too far ahead.
    Beyond,
    /// No memory: the sender must send it again.
    NoMemory,
}

#[derive(Debug)]
pub(crate) struct ChannelReceive {
    ordered: bool,
    pub(crate) next: u64,
    slots: VecDeque<Slot>,
    pub(crate) remaining: Remaining,
}

/// Parts of incomplete messages that have not arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Remaining {
    /// In whole fragments.
    pub(crate) bytes: usize,
    /// Fragments, each of its own message's size.
    pub(crate) frames: usize,
}

impl ChannelReceive {
    pub(crate) fn new(ordered: bool) -> Self {
        Self {
            ordered,
            next: FIRST_NUMBER,
            slots: VecDeque::new(),
            remaining: Remaining::default(),
        }
    }

    /// Whether the fragment holds a complete message that may be delivered now, as most do.
    pub(crate) fn holds_next(&self, fragment: &Fragment<'_>) -> bool {
        fragment.message == self.next && self.slots.is_empty() && fragment.is_whole()
    }

    /// Counts the next message, which came by another way. `false`: an earlier one is incomplete.
    #[inline]
    pub(crate) fn pass_by(&mut self) -> bool {
        let is_next = self.slots.is_empty();
        self.next += u64::from(is_next);
        is_next
    }

    /// Whether the message of this number comes next, and nothing of it has arrived.
    #[inline]
    pub(crate) fn is_next(&self, message_low: u32) -> bool {
        message_low == self.next as u32 && self.slots.is_empty()
    }

    /// Takes the next message, which is complete in its frame. `false`: memory refuses it.
    #[inline]
    pub(crate) fn accept_next(&mut self, weight: usize, fair: bool, memory: &mut Memory) -> bool {
        if !memory.admits(weight, fair, self.ordered) {
            return false;
        }
        memory.hold(weight);
        self.next += 1;
        true
    }

    /// Takes a fragment of any other message. `fair`: the sender's share of memory is not used up.
    pub(crate) fn accept(
        &mut self,
        fragment: &Fragment<'_>,
        fair: bool,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Accepted {
        let id = fragment.message;
        if id < self.next {
            return Accepted::Duplicate;
        }
        if id - self.next >= CHANNEL_WINDOW {
            return Accepted::Beyond;
        }
        self.accept_in_slot(fragment, fair, memory, pool)
    }

    fn accept_in_slot(
        &mut self,
        fragment: &Fragment<'_>,
        fair: bool,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Accepted {
        let index = (fragment.message - self.next) as usize;
        let head = index == 0 && self.ordered;
        while self.slots.len() <= index {
            self.slots.push_back(Slot::Empty);
        }
        // A message that later ones wait for is always fair: they occupy memory until it comes.
        let fair = fair || head && self.slots.len() > 1;
        let slot = &mut self.slots[index];
        if let Slot::Empty = slot {
            if fragment.payload.is_none() {
                self.trim();
                return Accepted::Beyond; // a placed payload belongs to no message that has begun
            }
            if !memory.reserve(fragment.weight, fair, head) {
                self.trim();
                return Accepted::NoMemory;
            }
            let Some(reassembly) = Reassembly::new(pool, fragment.length, fragment.size) else {
                memory.abandon(fragment.weight);
                self.trim();
                return Accepted::NoMemory;
            };
            self.remaining.bytes += reassembly.remaining_bytes();
            self.remaining.frames += reassembly.remaining_frames();
            *slot = Slot::Partial(reassembly);
        }
        let Slot::Partial(reassembly) = slot else {
            return Accepted::Duplicate;
        };
        if reassembly.length_bytes() != fragment.length || reassembly.is_beyond(fragment.offset) {
            return Accepted::Beyond;
        }
        // An empty message has no fragment to insert: it is complete from the start.
        if fragment.length > 0 {
            let end = fragment.offset + fragment.payload_bytes;
            let is_new = match fragment.payload {
                Some(payload) => reassembly.insert(fragment.offset, payload),
                None if !reassembly.reaches(end) => return Accepted::Beyond, // outside of the place
                None => reassembly.mark(fragment.offset),
            };
            if !is_new {
                return Accepted::Duplicate;
            }
            self.remaining.bytes -= fragment.size;
            self.remaining.frames -= 1;
        }
        self.settle(index, fragment.weight, memory, pool)
    }

    /// Delivers or keeps the message at `index` if the fragment just added completes it.
    fn settle(
        &mut self,
        index: usize,
        weight: usize,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Accepted {
        match &self.slots[index] {
            Slot::Partial(reassembly) if reassembly.is_whole() => {}
            _ => return Accepted::Nothing,
        }
        let Slot::Partial(reassembly) = core::mem::replace(&mut self.slots[index], Slot::Done)
        else {
            return Accepted::Duplicate;
        };
        let body = reassembly.finish(pool);
        if self.ordered && index > 0 {
            self.slots[index] = Slot::Ready(Waiting { body, weight });
            return Accepted::Nothing;
        }
        self.pop_done();
        memory.deliver_reserved(weight);
        Accepted::Whole(body)
    }

    /// Whether nothing of that message has come, and all messages before it are in posted buffers, so that buffers are used in order.
    pub(crate) fn may_place(&self, id: u64) -> bool {
        let index = id.checked_sub(self.next).map(usize::try_from);
        let Some(Ok(index)) = index.filter(|_| id - self.next < CHANNEL_WINDOW) else {
            return false;
        };
        let is_posted = |slot: &Slot| match slot {
            Slot::Empty => false,
            Slot::Partial(reassembly) => reassembly.posted().is_some(),
            Slot::Ready(waiting) => waiting.body.posted().is_some(),
            Slot::Done => true,
        };
        let is_new = matches!(self.slots.get(index), None | Some(Slot::Empty));
        is_new && self.slots.len() >= index && self.slots.iter().take(index).all(is_posted)
    }

    /// Moves the message in posted buffer `posted` to memory of the engine, and returns the buffer. `None`: no message is in it.
    pub(crate) fn recall(
        &mut self,
        posted: u64,
        pool: &mut Pool,
    ) -> Option<Result<Posted, OutOfMemory>> {
        self.slots.iter_mut().find_map(|slot| match slot {
            Slot::Partial(reassembly) => reassembly.recall(posted, pool),
            Slot::Ready(waiting) => waiting.body.recall(posted, pool),
            Slot::Empty | Slot::Done => None,
        })
    }

    /// The incomplete message with this number.
    pub(crate) fn under_way(&mut self, id: u64) -> Option<&mut Reassembly> {
        let index = usize::try_from(id.checked_sub(self.next)?).ok()?;
        match self.slots.get_mut(index)? {
            Slot::Partial(reassembly) => Some(reassembly),
            _ => None,
        }
    }

    /// Takes the next message of an ordered channel, if it is complete.
    #[inline]
    pub(crate) fn pop_ready(&mut self, memory: &mut Memory) -> Option<Waiting> {
        if !self.ordered || !matches!(self.slots.front(), Some(Slot::Ready(_))) {
            return None;
        }
        let Some(Slot::Ready(waiting)) = self.slots.pop_front() else {
            return None;
        };
        self.next += 1;
        memory.deliver_reserved(waiting.weight);
        Some(waiting)
    }

    /// Messages of this ordered channel wait for one that has not begun.
    pub(crate) fn waits_for_head(&self) -> bool {
        self.ordered && matches!(self.slots.front(), Some(Slot::Empty))
    }

    fn pop_done(&mut self) {
        while let Some(Slot::Done) = self.slots.front() {
            self.slots.pop_front();
            self.next += 1;
        }
    }

    /// Removes empty slots from the end, after a refusal.
    fn trim(&mut self) {
        while let Some(Slot::Empty) = self.slots.back() {
            self.slots.pop_back();
        }
    }

    /// Ends the session: releases all memory.
    pub(crate) fn clear(&mut self, memory: &mut Memory, pool: &mut Pool) {
        for slot in self.slots.drain(..) {
            match slot {
                Slot::Partial(reassembly) => {
                    memory.abandon(reassembly.length_bytes());
                    reassembly.finish(pool).give_to(pool);
                }
                Slot::Ready(waiting) => {
                    memory.abandon(waiting.weight);
                    waiting.body.give_to(pool);
                }
                Slot::Empty | Slot::Done => {}
            }
        }
    }
}
