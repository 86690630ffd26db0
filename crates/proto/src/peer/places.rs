//! Index of the state of each channel in use: a list in order of first use, and a cache of the latest look-up.
//!
//! Owned by `queue` and `receive`, one each. A table of all channels for each peer would be most of the memory of an idle peer.
//!
//! Invariant: a channel's place never changes, and is below [`CHANNELS_MAX`].

use alloc::vec::Vec;
use tsumuji_wire::Channel;

/// Largest number of channels of one session in one direction: it bounds the state that a peer can cause here.
pub(crate) const CHANNELS_MAX: usize = 4096;

/// Number of no channel.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Places {
    /// Channels by place. Searched linearly: a thousand of them are 4 KiB.
    channels: Vec<Channel>,
    /// Number of the channel that was looked up last, or `NONE`.
    last_number: u32,
    last_place: u16,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            channels: Vec::new(),
            last_number: NONE,
            last_place: 0,
        }
    }

    /// The place of the channel, if it was looked up last.
    #[inline]
    pub(super) fn last(&self, channel: Channel) -> Option<u16> {
        (self.last_number == channel.number()).then_some(self.last_place)
    }

    /// Whether the channel is in use, or there is room for one more.
    pub(super) fn has_room(&self, channel: Channel) -> bool {
        self.channels.len() < CHANNELS_MAX || self.channels.contains(&channel)
    }

    /// The channel's place. `Err`: it is new, and this is the next free one.
    pub(super) fn place(&mut self, channel: Channel) -> Result<u16, u16> {
        let known = self.channels.iter().position(|known| *known == channel);
        let place = known.unwrap_or(self.channels.len()) as u16; // below `CHANNELS_MAX`
        (self.last_number, self.last_place) = (channel.number(), place);
        if known.is_some() {
            return Ok(place);
        }
        self.channels.push(channel);
        Err(place)
    }

    /// The channel's place, if it is in use.
    pub(super) fn find(&self, channel: Channel) -> Option<u16> {
        self.last(channel).or_else(|| {
            let at = self.channels.iter().position(|known| *known == channel);
            at.map(|at| at as u16)
        })
    }

    /// The channels in use, by place.
    pub(super) fn channels(&self) -> impl Iterator<Item = Channel> + '_ {
        self.channels.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every channel gets one place, in whatever order they are looked up; when all places are taken, no further channel gets one.
    #[test]
    fn places_stay() {
        let mut places = Places::new();
        let channel = |step: u16| Channel::ordered(step.wrapping_mul(40_503)); // odd: no two are equal
        for step in 0..CHANNELS_MAX as u16 {
            assert!(places.has_room(channel(step)));
            assert_eq!(places.find(channel(step)), None);
            assert_eq!(places.place(channel(step)), Err(step));
            assert_eq!(places.find(channel(step / 2)), Some(step / 2));
            assert_eq!(places.place(channel(step)), Ok(step));
            assert_eq!(places.place(channel(step / 2)), Ok(step / 2));
        }
        assert!(places.channels().eq((0..CHANNELS_MAX as u16).map(channel)));
        assert!(places.has_room(channel(3)) && !places.has_room(Channel::unordered(0)));
    }
}
