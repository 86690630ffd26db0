//! What is known of direct messages between this node and one peer: who takes them, and how many there were.
//!
//! `Talk` lies in each `Peer`, `Counts` beside them where the link has a ring; `engine::direct` decides by both.

use alloc::boxed::Box;
use tsumuji_wire::{Channel, Data};

use super::reassembly::Reassembly;

/// What was said, and is to be said, as bits: peers without a ring pay a byte for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Talk(u8);

impl Talk {
    /// The peer takes direct messages.
    pub(crate) const PERMITTED: Self = Self(1);
    /// This node takes them, as the peer was told last or is to be told.
    pub(crate) const OPEN: Self = Self(1 << 1);
    /// It is to be told, in an ack of its own.
    pub(crate) const WORD_DUE: Self = Self(1 << 2);
    /// Nothing of this session has come from it: it may have missed the word.
    pub(crate) const UNHEARD: Self = Self(1 << 3);
    /// Its session has ended, and only the link knows what the peer has read.
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

/// Direct messages of the program in one session; they wrap.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// To the peer.
    pub(crate) sent: u32,
    /// From the peer.
    pub(crate) taken: u32,
    /// The same in the session before: what hello and welcome say.
    pub(crate) taken_before: u32,
    /// What those came to be charged that came while they were not to, whoever they were for.
    pub(crate) unasked_bytes: usize,
    /// A message of several frames, which follow one another.
    pub(crate) arriving: Option<Box<Arriving>>,
}

/// What has come of it.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) channel: Channel,
    /// Where the next frame's payload belongs.
    pub(crate) next: usize,
    pub(crate) message: Reassembly,
}

impl Arriving {
    /// Nothing of it has come, and that is its first frame: it was foreseen.
    #[inline]
    pub(crate) fn begins(&self, data: &Data<'_>) -> bool {
        let of = (data.offset, data.channel, data.length as usize);
        self.next == 0 && of == (0, self.channel, self.message.length_bytes())
    }
}

impl Counts {
    /// A message of that channel leaves. Libraries' are not counted.
    #[inline]
    pub(crate) fn send(&mut self, channel: Channel) {
        self.sent = self.sent.wrapping_add(u32::from(!channel.is_library()));
    }

    /// One has come whole.
    #[inline]
    pub(crate) fn take(&mut self, channel: Channel) {
        self.taken = self.taken.wrapping_add(u32::from(!channel.is_library()));
    }

    /// The session is over; how many are lost, if the peer said how many it took.
    pub(crate) fn end(&mut self, told: Option<u32>) -> usize {
        let lost = told.map_or(0, |taken| self.sent.wrapping_sub(taken));
        *self = Self {
            taken_before: self.taken,
            ..Self::default()
        };
        // Nobody takes more than was sent, and no ring holds so many.
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

    /// What the peer says decides, unless it is nonsense; what was taken is remembered for one session.
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

    /// Each word is set and taken back by itself.
    #[test]
    fn words_are_apart() {
        let all = [
            Talk::PERMITTED,
            Talk::OPEN,
            Talk::WORD_DUE,
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
