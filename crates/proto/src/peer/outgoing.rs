//! One message to be sent, and the message numbers of a channel.
//!
//! Owned by `queue`, which decides what leaves next. Knows nothing of packet numbers.
//!
//! Invariant: `acknowledged` counts the set bits of `bitmap`, or is 0 or 1 if the message has one fragment.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::borrowing::Borrowing;
use super::channel::CHANNEL_WINDOW;
use crate::message::SendId;
use crate::numbers::{Arrivals, FIRST_NUMBER, NUMBER_WINDOW};
use crate::time::Instant;
use tsumuji_wire::Channel;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) channel: Channel,
    /// Index in `Queue::channels`.
    pub(super) channel_index: u16,
    /// Number within the channel; assigned when the first fragment leaves.
    pub(super) number: u64,
    pub(super) id: SendId,
    /// The whole message, unless it is or was borrowed; or a bundle, in which several messages of the channel leave as one.
    pub(super) body: Vec<u8>,
    /// Number of messages: several for a bundle, else 1, also in a free slot.
    pub(super) messages: usize,
    pub(super) borrowing: Option<Box<Borrowing>>,
    pub(super) length_bytes: usize,
    pub(super) fragments: u32,
    /// Payload bytes of each fragment but the last.
    pub(super) fragment_bytes: u32,
    pub(super) next_fragment: u32,
    pub(super) acknowledged: u32,
    /// Which fragments are acknowledged; empty for messages of one fragment.
    pub(super) bitmap: Vec<u64>,
    pub(super) notify: bool,
    pub(super) live: bool,
    pub(super) repaired: Repaired,
}

/// How often fragments of a message were sent again since something new of it was acknowledged. Valid only for the message that it names, so that a
/// slot need not be reset for messages that are never sent again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Repaired {
    pub(super) id: SendId,
    pub(super) acknowledged: u32,
    pub(super) times: u32,
    pub(super) since: Instant,
}

impl Outgoing {
    /// A slot without a message.
    pub(super) fn new() -> Self {
        Self {
            channel: Channel::ordered(0),
            channel_index: 0,
            number: 0,
            id: SendId(0),
            body: Vec::new(),
            messages: 1,
            borrowing: None,
            length_bytes: 0,
            fragments: 0,
            fragment_bytes: 0,
            next_fragment: 0,
            acknowledged: 0,
            bitmap: Vec::new(),
            notify: false,
            live: false,
            repaired: Repaired::default(),
        }
    }

    #[inline]
    pub(super) fn is_bundle(&self) -> bool {
        self.messages > 1
    }
}

/// Payload bytes of every fragment of a message but the last, where none may have more than `most_bytes`: as few fragments as possible, of about
/// equal length, so that a link can send those of several messages by one call.
#[inline]
pub(crate) fn fragment_bytes(message_bytes: usize, most_bytes: usize) -> usize {
    if message_bytes <= most_bytes {
        return most_bytes;
    }
    message_bytes.div_ceil(message_bytes.div_ceil(most_bytes))
}

/// Number of fragments, at least one, and payload bytes of each but the last. Messages have less than 2³² bytes.
#[inline]
pub(super) fn cut(message_bytes: usize, most_bytes: usize) -> (u32, u32) {
    let size = fragment_bytes(message_bytes, most_bytes);
    let count = if message_bytes <= size {
        1
    } else {
        message_bytes.div_ceil(size)
    };
    (count as u32, size as u32)
}

/// Message numbers of one channel: which of those that were sent are not yet acknowledged whole.
#[derive(Debug)]
pub(super) struct ChannelSend {
    next: u64,
    acknowledged: Arrivals,
}
const _: () = assert!(CHANNEL_WINDOW <= NUMBER_WINDOW);

impl ChannelSend {
    pub(super) fn new() -> Self {
        Self {
            next: FIRST_NUMBER,
            acknowledged: Arrivals::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.next - self.acknowledged.base() < CHANNEL_WINDOW
    }

    pub(super) fn assign(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Counts the next message, which needs no acknowledgement; no earlier one may await one.
    #[inline]
    pub(super) fn pass_by(&mut self) {
        let number = self.assign();
        self.acknowledged.mark(number);
    }

    /// `true`: all earlier messages are acknowledged, and no later one is.
    #[inline]
    pub(super) fn acknowledge(&mut self, number: u64) -> bool {
        self.acknowledged.mark(number)
    }

    /// Some message is acknowledged, and an earlier one is not.
    pub(super) fn has_gap(&self) -> bool {
        self.acknowledged.has_gap()
    }

    /// The lowest number that is not acknowledged.
    pub(super) fn base(&self) -> u64 {
        self.acknowledged.base()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every message has as few fragments as possible; none is too long or empty, and all but the last are equal. The last is shorter by less than
    /// one byte for each of the others.
    #[test]
    fn fragments_are_even() {
        for most in [1, 7, 100, 1432, 8940] {
            for bytes in (0..500).chain([1432, 1433, 16_384, 65_536, 70_000, 1 << 20]) {
                let (count, size) = cut(bytes, most);
                let (count, size) = (count as usize, size as usize);
                assert_eq!(count, bytes.div_ceil(most).max(1), "{bytes} by {most}");
                assert!(size <= most, "{bytes} by {most}");
                assert_eq!(size, fragment_bytes(bytes, most));
                if count > 1 {
                    let last = bytes.checked_sub((count - 1) * size);
                    assert!(
                        last.is_some_and(|last| last > 0 && last <= size && size - last < count),
                        "{bytes} by {most}"
                    );
                }
            }
        }
    }
}
