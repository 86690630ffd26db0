//! What is acknowledged and waits at the peer for an earlier message of its ordered lane: lost with that, if the session ends.
//!
//! Filled by `queue` where an acknowledgement leaves a gap; forgets what the gap's end has let go.

use alloc::collections::BTreeMap;

use crate::peer::outgoing::{LaneSend, Outgoing};
use tsumuji_wire::DeliveryClass;

/// By lane (its place) and number: how many messages of the program.
#[derive(Debug, Default)]
pub(super) struct Ahead(BTreeMap<(u16, u64), usize>);

impl Ahead {
    /// A message was acknowledged, of a lane of which all before `base` are.
    #[cold]
    pub(super) fn note(&mut self, outgoing: &Outgoing, base: u64) {
        let (lane, number) = (outgoing.lane_index, outgoing.number);
        while let Some((&key, _)) = self.0.range((lane, 0)..(lane, base)).next() {
            self.0.remove(&key);
        }
        let waits = outgoing.lane.class() == DeliveryClass::Ordered && !outgoing.lane.is_library();
        if waits && number >= base {
            self.0.insert((lane, number), outgoing.messages);
        }
    }

    /// All that waits now.
    pub(super) fn messages(&self, lanes: &[LaneSend]) -> usize {
        let waits = |lane: u16, number| {
            let lane = lanes.get(usize::from(lane));
            lane.is_some_and(|lane| number >= lane.base())
        };
        let waiting = self
            .0
            .iter()
            .filter(|((lane, number), _)| waits(*lane, *number));
        waiting.map(|(_, messages)| messages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_wire::Lane;

    /// What is acknowledged behind something that is not waits until that is acknowledged, too; but for libraries and unordered lanes.
    #[test]
    fn what_waits_behind_a_gap_is_counted() {
        let mut lanes = [LaneSend::new(), LaneSend::new(), LaneSend::new()];
        let kinds = [
            Lane::ordered(3),
            Lane::unordered(3),
            Lane::ordered(Lane::LIBRARY_CHANNELS),
        ];
        let mut ahead = Ahead::default();
        let mut acknowledge = |place: usize, number: u64, messages: usize| {
            let mut outgoing = Outgoing::new();
            (outgoing.lane, outgoing.lane_index) = (kinds[place], place as u16);
            (outgoing.number, outgoing.messages) = (number, messages);
            lanes[place].acknowledge(number);
            ahead.note(&outgoing, lanes[place].base());
            ahead.messages(&lanes)
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
