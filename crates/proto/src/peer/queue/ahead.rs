//! Messages that are acknowledged but wait at the peer for an earlier one of their ordered channel: they are lost if the session ends.
//!
//! Filled by `queue` when a message is acknowledged out of order; entries are removed once the gap before them is closed.

use alloc::collections::BTreeMap;

use crate::peer::outgoing::{ChannelSend, Outgoing};
use tsumuji_wire::DeliveryClass;

/// Number of messages of the program, by channel index and message number.
#[derive(Debug, Default)]
pub(super) struct Ahead(BTreeMap<(u16, u64), usize>);

impl Ahead {
    /// Notes that a message was acknowledged; all before `base` of its channel are.
    #[cold]
    pub(super) fn note(&mut self, outgoing: &Outgoing, base: u64) {
        let (channel, number) = (outgoing.channel_index, outgoing.number);
        while let Some((&key, _)) = self.0.range((channel, 0)..(channel, base)).next() {
            self.0.remove(&key);
        }
        let waits =
            outgoing.channel.class() == DeliveryClass::Ordered && !outgoing.channel.is_library();
        if waits && number >= base {
            self.0.insert((channel, number), outgoing.messages);
        }
    }

    /// Number of messages that wait now.
    pub(super) fn messages(&self, channels: &[ChannelSend]) -> usize {
        let waits = |channel: u16, number| {
            let channel = channels.get(usize::from(channel));
            channel.is_some_and(|channel| number >= channel.base())
        };
        let waiting = self
            .0
            .iter()
            .filter(|((channel, number), _)| waits(*channel, *number));
        waiting.map(|(_, messages)| messages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_wire::Channel;

    /// A message acknowledged behind a gap counts until the gap is closed, except on unordered channels and those of libraries.
    #[test]
    fn what_waits_behind_a_gap_is_counted() {
        let mut channels = [ChannelSend::new(), ChannelSend::new(), ChannelSend::new()];
        let kinds = [
            Channel::ordered(3),
            Channel::unordered(3),
            Channel::ordered(Channel::LIBRARY_IDS),
        ];
        let mut ahead = Ahead::default();
        let mut acknowledge = |place: usize, number: u64, messages: usize| {
            let mut outgoing = Outgoing::new();
            (outgoing.channel, outgoing.channel_index) = (kinds[place], place as u16);
            (outgoing.number, outgoing.messages) = (number, messages);
            channels[place].acknowledge(number);
            ahead.note(&outgoing, channels[place].base());
            ahead.messages(&channels)
        };
        let first = crate::numbers::FIRST_NUMBER;
        assert_eq!(acknowledge(0, first, 1), 0);
        assert_eq!(acknowledge(0, first + 3, 5), 5);
        assert_eq!(acknowledge(0, first + 2, 1), 6);
        assert_eq!(acknowledge(1, first + 2, 1), 6);
        assert_eq!(acknowledge(2, first + 2, 1), 6);
        assert_eq!(acknowledge(0, first + 5, 2), 8);
        assert_eq!(acknowledge(0, first + 1, 1), 2);
        assert_eq!(acknowledge(0, first + 4, 1), 0);
        assert!(ahead.0.is_empty());
    }
}
