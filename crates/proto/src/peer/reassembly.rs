//! Reassembly of a message that arrives in several fragments, in any order.
//!
//! Invariants: bit i of `arrived` is set if and only if fragment i is in `buffer`; `missing` counts the clear bits. The range of a fragment that has
//! not arrived may hold any bytes: of an earlier message, or what a link placed there by a wrong guess.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::numbers::NUMBER_WINDOW;
use crate::pool::{Pool, has_bit, set_bit};
use crate::posted::{OutOfMemory, Posted};

/// Memory in which a message is assembled.
#[derive(Debug)]
pub(crate) enum Assembled {
    /// Memory of the engine, at least as long as what was filled.
    Own(Vec<u8>),
    Posted(Box<Posted>), // boxed, to be no larger than the `Vec` of most messages
}

impl Assembled {
    /// Length of a complete message.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(buffer) => buffer.len(),
            Self::Posted(posted) => posted.length_bytes(),
        }
    }

    pub(crate) fn posted(&self) -> Option<u64> {
        match self {
            Self::Own(_) => None,
            Self::Posted(posted) => Some(posted.number),
        }
    }

    /// As `ChannelReceive::recall`.
    pub(crate) fn recall(
        &mut self,
        number: u64,
        pool: &mut Pool,
    ) -> Option<Result<Posted, OutOfMemory>> {
        let Self::Posted(posted) = self else {
            return None;
        };
        if posted.number != number {
            return None;
        }
        let length_bytes = posted.length_bytes();
        let Some(mut own) = pool.take(length_bytes) else {
            return Some(Err(OutOfMemory));
        };
        own.extend_from_slice(posted.message());
        own.resize(length_bytes, 0);
        match core::mem::replace(self, Self::Own(own)) {
            Self::Posted(posted) => Some(Ok(*posted)),
            Self::Own(_) => None,
        }
    }

    /// Returns the buffer, which is not needed any more.
    pub(crate) fn give_to(self, pool: &mut Pool) {
        match self {
            Self::Own(buffer) => pool.put(buffer),
            Self::Posted(posted) => pool.unused.push(*posted),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Reassembly {
    buffer: Assembled,
    length_bytes: usize,
    fragment_bytes: usize,
    arrived: Vec<u64>,
    missing: usize,
    /// All fragments before this one have arrived; more may have.
    first_missing: usize,
    /// The fragment after the one that arrived last.
    next: usize,
}

/// A fragment this far beyond the first missing one is refused, so that memory is filled by fragments that arrive, not by the claim of one frame. An
/// honest sender gets there only if one fragment is lost again and again.
const AHEAD_FRAGMENTS: usize = NUMBER_WINDOW as usize;

impl Reassembly {
    /// `None`: there is no memory. Reserved memory is not touched until fragments fill it.
    pub(crate) fn new(pool: &mut Pool, length_bytes: usize, fragment_bytes: usize) -> Option<Self> {
        let buffer = match pool.posted.take() {
            Some(posted) => Assembled::Posted(Box::new(posted)),
            None => {
                let mut buffer = pool.take_used(length_bytes)?;
                buffer.truncate(length_bytes);
                Assembled::Own(buffer)
            }
        };
        let missing = length_bytes.div_ceil(fragment_bytes);
        Some(Self {
            buffer,
            length_bytes,
            fragment_bytes,
            arrived: pool.take_bitmap(missing),
            missing,
            first_missing: 0,
            next: 0,
        })
    }

    /// Payload bytes of every fragment but the last.
    pub(crate) fn fragment_bytes(&self) -> usize {
        self.fragment_bytes
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Bytes that have not arrived, counted in whole fragments.
    pub(crate) fn remaining_bytes(&self) -> usize {
        self.missing * self.fragment_bytes
    }

    /// Fragments that have not arrived.
    pub(crate) fn remaining_frames(&self) -> usize {
        self.missing
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Whether the fragment at `offset` is too far ahead to be taken now.
    pub(crate) fn is_beyond(&mut self, offset: usize) -> bool {
        let fragment = offset / self.fragment_bytes;
        if fragment < self.first_missing + AHEAD_FRAGMENTS {
            return false;
        }
        while has_bit(&self.arrived, self.first_missing) {
            self.first_missing += 1;
        }
        fragment >= self.first_missing + AHEAD_FRAGMENTS
    }

    /// Takes the fragment at `offset`, which obeys R-14; `false` if it was there already.
    pub(crate) fn insert(&mut self, offset: usize, payload: &[u8]) -> bool {
        if !self.mark(offset) {
            return false;
        }
        let end = offset + payload.len();
        match &mut self.buffer {
            Assembled::Own(buffer) if offset >= buffer.len() => {
                buffer.resize(offset, 0);
                buffer.extend_from_slice(payload);
            }
            Assembled::Own(buffer) => {
                fill_to(buffer, end);
                buffer[offset..end].copy_from_slice(payload);
            }
            Assembled::Posted(posted) => {
                let part = posted.part(offset..end);
                let bytes = part.len().min(payload.len()); // all, unless the program's buffer has become shorter
                part[..bytes].copy_from_slice(&payload[..bytes]);
            }
        }
        true
    }

    /// Marks the fragment at `offset` as arrived, which is in its place; `false` if it was marked already.
    pub(crate) fn mark(&mut self, offset: usize) -> bool {
        let fragment = offset / self.fragment_bytes;
        if !set_bit(&mut self.arrived, fragment) {
            return false;
        }
        self.missing -= 1;
        self.next = fragment + 1;
        true
    }

    /// Whether the buffer is filled, or posted, up to `end`.
    pub(crate) fn reaches(&self, end: usize) -> bool {
        match &self.buffer {
            Assembled::Own(buffer) => end <= buffer.len(),
            Assembled::Posted(posted) => end <= posted.length_bytes(),
        }
    }

    /// Offset and length of the missing fragments that follow the one that arrived last, about `most_bytes` of them; length 0 if the next one has
    /// arrived.
    pub(crate) fn awaited(&self, most_bytes: usize) -> (usize, usize) {
        let most = most_bytes.div_ceil(self.fragment_bytes);
        let fragments = self.length_bytes.div_ceil(self.fragment_bytes);
        let end = fragments.min(self.next + most);
        let run = (self.next..end).find(|&fragment| has_bit(&self.arrived, fragment));
        let start = (self.next * self.fragment_bytes).min(self.length_bytes);
        let end = (run.unwrap_or(end) * self.fragment_bytes).min(self.length_bytes);
        (start, end - start)
    }

    /// The place of the fragments that `awaited` names. The engine's buffer is filled up to the end of that place, no further.
    pub(crate) fn placement(&mut self, most_bytes: usize) -> &mut [u8] {
        let (start, bytes) = self.awaited(most_bytes);
        match &mut self.buffer {
            Assembled::Own(buffer) => {
                fill_to(buffer, start + bytes);
                &mut buffer[start..start + bytes]
            }
            Assembled::Posted(posted) => posted.part(start..start + bytes),
        }
    }

    /// Number of the posted buffer that the message arrives in.
    pub(crate) fn posted(&self) -> Option<u64> {
        self.buffer.posted()
    }

    /// As `ChannelReceive::recall`.
    pub(crate) fn recall(
        &mut self,
        posted: u64,
        pool: &mut Pool,
    ) -> Option<Result<Posted, OutOfMemory>> {
        self.buffer.recall(posted, pool)
    }

    pub(crate) fn finish(self, pool: &mut Pool) -> Assembled {
        pool.put_bitmap(self.arrived);
        self.buffer
    }
}

fn fill_to(buffer: &mut Vec<u8>, end: usize) {
    if buffer.len() < end {
        buffer.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes in the place count only once their fragment is marked; of an earlier message in the same buffer nothing is left.
    #[test]
    fn lands_in_place() {
        let mut pool = Pool::new();
        pool.put(alloc::vec![9; 64]);
        let mut message = Reassembly::new(&mut pool, 45, 10).unwrap();
        assert!(message.insert(0, &[1; 10]));
        assert_eq!(message.awaited(20), (10, 20));
        message.placement(20).fill(2);
        assert!(message.mark(10) && !message.mark(10));
        // The second guess was wrong: another fragment comes, and the place is filled again.
        assert!(message.insert(30, &[4; 10]));
        assert_eq!(message.awaited(1000), (40, 5));
        assert!(message.insert(40, &[5; 5]));
        assert_eq!(message.awaited(1000), (45, 0));
        assert_eq!(message.placement(1000), []);
        assert!(!message.is_whole());
        assert!(message.insert(20, &[3; 10]) && message.is_whole());
        assert_eq!(message.awaited(1000), (30, 0), "the next is there");
        let wanted: Vec<u8> = (0..45).map(|i| i / 10 + 1).collect();
        assert!(matches!(message.finish(&mut pool), Assembled::Own(found) if found == wanted));
    }

    /// A place is as large as was asked for, in whole fragments, and nothing beyond it is touched.
    #[test]
    fn places_are_as_large_as_asked_for() {
        let mut pool = Pool::new();
        let mut message = Reassembly::new(&mut pool, 1 << 20, 1000).unwrap();
        assert!(message.insert(0, &[1; 1000]));
        assert_eq!(message.placement(2500).len(), 3000);
        assert!(message.reaches(4000) && !message.reaches(4001));
        assert_eq!(message.placement(2500).len(), 3000, "nothing came");
    }
}
