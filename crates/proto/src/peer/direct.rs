//! State of direct messages between this node and one peer: who takes them, and how many there were.
//!
//! Each `Peer` has a `Talk`; the engine has a `Counts` for each peer where the link has a ring. `engine::direct` decides by both.

use alloc::boxed::Box;
use tsumuji_wire::{Channel, Data};

use super::reassembly::Reassembly;

/// What was told to the peer and by it, as bits of one byte, because peers without a ring have it, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Talk(u8);

impl Talk {
    /// The peer takes direct messages, as it told last.
    pub(crate) const PERMITTED: Self = Self(1);
    /// This node takes direct messages, as the peer was told last or is to be told.
    pub(crate) const OPEN: Self = Self(1 << 1);
    /// The peer is to be told in an ack of its own whether this node takes direct messages, or what its window is.
    pub(crate) const WORD_PENDING: Self = Self(1 << 2);
    /// No frame of this session has come from the peer: it may have missed what it was told.
    pub(crate) const UNHEARD: Self = Self(1 << 3);
    /// The session has ended, and only the link knows which messages the peer has read.
    pub(crate) const UNSETTLED: Self = Self(1 << 4);

    #[inline]
    pub(crate) fn is(self, what: Self) -> bool {
        self.0 & what.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, what: Self, is: bool) {
        self.0 = if is {
            self.0 | what.0
        } else {
            self.0 & !what.0
        };
    }
}

/// Counts of direct messages of the program in one session, modulo 2³².
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Sent to the peer.
    pub(crate) sent: u32,
    /// Taken from the peer.
    pub(crate) taken: u32,
    /// Taken from the peer in the session before, as hello and welcome state it.
    pub(crate) taken_before: u32,
    /// Charged bytes of messages that came although the peer was told to stop, whatever channel they were for.
    pub(crate) unasked_bytes: usize,
    /// A message of several frames, of which some are still to come.
    pub(crate) arriving: Option<Box<Arriving>>,
}

/// A direct message of several frames that is arriving.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) channel: Channel,
    /// Offset of the next frame's payload.
    pub(crate) next: usize,
    pub(crate) message: Reassembly,
}

impl Arriving {
    /// Whether the message was foreseen, has no frame yet, and this is its first.
    #[inline]
    pub(crate) fn begins(&self, data: &Data<'_>) -> bool {
        let of = (data.offset, data.channel, data.length as usize);
        self.next == 0 && of == (0, self.channel, self.message.length_bytes())
    }
}

impl Counts {
    /// Counts a message of that channel that leaves; messages of libraries are not counted.
    #[inline]
    pub(crate) fn send(&mut self, channel: Channel) {
        self.sent = self.sent.wrapping_add(u32::from(!channel.is_library()));
    }

    /// Counts a message of that channel that has arrived whole.
    #[inline]
    pub(crate) fn take(&mut self, channel: Channel) {
        self.taken = self.taken.wrapping_add(u32::from(!channel.is_library()));
    }

    /// Ends the session; returns how many messages are lost. `told`: how many the peer says it took.
    pub(crate) fn end(&mut self, told: Option<u32>) -> usize {
        let lost = told.map_or(0, |taken| self.sent.wrapping_sub(taken));
        *self = Self {
            taken_before: self.taken,
            ..Self::default()
        };
        // A count above what was sent is nonsense, and no ring holds so many messages.
        if lost > u32::MAX / 2 {
            0
        } else {
            lost as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer's count decides, unless it is nonsense; what was taken is remembered for one session.
    #[test]
    fn who_says_what_is_lost() {
        let mut counts = Counts::default();
        (counts.sent, counts.taken) = (5, 7);
        assert_eq!(counts.end(None), 0);
        assert_eq!((counts.taken_before, counts.sent, counts.taken), (7, 0, 0));
        for (told, lost) in [(3, 2), (5, 0), (6, 0), (1 << 31, 0)] {
            counts.sent = 5;
            assert_eq!(counts.end(Some(told)), lost, "{told}");
        }
        counts.sent = 3; // it has wrapped
        assert_eq!(counts.end(Some(u32::MAX - 1)), 5);
    }

    /// Each bit is set and cleared by itself.
    #[test]
    fn words_are_apart() {
        let all = [
            Talk::PERMITTED,
            Talk::OPEN,
            Talk::WORD_PENDING,
            Talk::UNHEARD,
            Talk::UNSETTLED,
        ];
        let mut talk = Talk::default();
        for one in all {
            talk.set(one, true);
            assert!(all.iter().all(|it| talk.is(*it) == (*it == one)), "{one:?}");
            talk.set(one, false);
            assert_eq!(talk, Talk::default());
        }
    }
}
