//! Messages that are acknowledged but wait at the peer for an earlier one of their ordered channel: they are lost if the session ends, and the program is
//! not told before that they were sent.
//!
//! Filled by `queue` when a message is acknowledged out of order; entries are removed once the gap before them is closed.

use alloc::collections::BTreeMap;

use crate::message::SendId;
use crate::peer::outgoing::{ChannelSend, Outgoing};
use tsumuji_wire::DeliveryClass;

/// By channel index and message number.
#[derive(Debug, Default)]
pub(super) struct Ahead(BTreeMap<(u16, u64), Early>);

/// A message that waits at the peer.
#[derive(Debug, Clone, Copy)]
struct Early {
    /// Number of messages of the program: several for a bundle.
    messages: usize,
    /// Its id, if it is tracked.
    tracked: Option<SendId>,
}

impl Ahead {
    /// Notes that a message was acknowledged; all before `base` of its channel are. Tells `done` the tracked ones that wait for no other any more.
    #[cold]
    pub(super) fn note(&mut self, outgoing: &Outgoing, base: u64, done: &mut impl FnMut(SendId)) {
        let (channel, number) = (outgoing.channel_index, outgoing.number);
        let is_ordered = outgoing.channel.class() == DeliveryClass::Ordered;
        // Libraries are not told what was lost, and repair it themselves.
        let waits = is_ordered && !outgoing.channel.is_library() && number >= base;
        let tracked = outgoing.notify.then_some(outgoing.id);
        if let Some(id) = tracked.filter(|_| !waits) {
            done(id);
        }
        while let Some((&key, &early)) = self.0.range((channel, 0)..(channel, base)).next() {
            self.0.remove(&key);
            if let Some(id) = early.tracked {
                done(id);
            }
        }
        if waits {
            let messages = outgoing.messages;
            self.0
                .insert((channel, number), Early { messages, tracked });
        }
    }

    /// Whether that tracked message waits.
    pub(super) fn holds(&self, id: SendId) -> bool {
        self.0.values().any(|early| early.tracked == Some(id))
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
        waiting.map(|(_, early)| early.messages).sum()
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
            ahead.note(&outgoing, channels[place].base(), &mut |_| ());
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

    /// A tracked message behind a gap counts as sent when the gap is closed, in order; on an unordered channel or a library's at once.
    #[test]
    fn what_waits_behind_a_gap_is_not_sent() {
        let mut channels = [ChannelSend::new(), ChannelSend::new(), ChannelSend::new()];
        let kinds = [
            Channel::ordered(3),
            Channel::unordered(3),
            Channel::ordered(Channel::LIBRARY_IDS),
        ];
        let (mut ahead, nothing) = (Ahead::default(), [0_u64; 0]);
        let first = crate::numbers::FIRST_NUMBER;
        // The id of message n of a channel is 10 · channel + n.
        let mut acknowledge = |place: usize, ahead_by: u64, notify: bool| {
            let mut outgoing = Outgoing::new();
            (outgoing.channel, outgoing.channel_index) = (kinds[place], place as u16);
            (outgoing.number, outgoing.notify) = (first + ahead_by, notify);
            outgoing.id = SendId(10 * place as u64 + ahead_by);
            channels[place].acknowledge(outgoing.number);
            let mut done = alloc::vec::Vec::new();
            let mut note = |id: SendId| done.push(id.0);
            ahead.note(&outgoing, channels[place].base(), &mut note);
            done
        };
        assert_eq!(acknowledge(0, 2, true), nothing);
        assert_eq!(acknowledge(0, 1, false), nothing);
        assert_eq!(acknowledge(0, 4, true), nothing);
        assert_eq!(acknowledge(1, 2, true), [12]);
        assert_eq!(acknowledge(2, 1, true), [21]);
        assert_eq!(acknowledge(2, 0, true), [20]);
        assert_eq!(acknowledge(0, 0, true), [0, 2]);
        assert_eq!(acknowledge(0, 3, false), [4]);
        assert!(ahead.0.is_empty());
    }
}
