//! Which peer is to be looked at when: a binary heap with at most one entry for each peer.
//!
//! Owned by the engine, which sets a peer's alarm whenever a deadline of that peer may have come nearer, and asks for those that have
//! gone off. Deadlines are cancelled lazily: an alarm that goes off early finds nothing due, and is set anew. So peers of which nothing
//! is due cost nothing, however many there are; setting an alarm nearer costs the heap's depth.
//!
//! Invariants: `Alarm::at` of a peer is the time of its entry, or [`NEVER`] if it has none; the entries are as many as peers at most; equal
//! times go off in the order of the peers' ids, so that runs repeat.

use alloc::vec::Vec;

use crate::time::Instant;

/// No alarm is set.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Entry `i` has the children `2i + 1` and `2i + 2`.
const CHILDREN: usize = 2;

/// One peer's alarm, kept with the peer: most questions are answered without the heap.
#[derive(Debug)]
pub(crate) struct Alarm(Instant);

impl Alarm {
    pub(crate) const fn new() -> Self {
        Self(NEVER)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Instant,
    peer: u16,
}

/// All alarms that are set.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    heap: Vec<Entry>,
    /// Where a peer's entry stands in the heap, by id; of no meaning for a peer without one.
    places: Vec<u32>,
}

impl Alarms {
    /// When the first goes off.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at)
    }

    /// The peer is to be looked at then, or earlier.
    #[inline]
    pub(crate) fn set(&mut self, peer: u16, alarm: &mut Alarm, at: Instant) {
        if at < alarm.0 {
            self.bring_nearer(peer, alarm, at);
        }
    }

    #[inline(never)]
    fn bring_nearer(&mut self, peer: u16, alarm: &mut Alarm, at: Instant) {
        let index = usize::from(peer);
        if self.places.len() <= index {
            self.places.resize(index + 1, 0);
        }
        let entry = Entry { at, peer };
        let place = if alarm.0 == NEVER {
            self.heap.push(entry);
            self.heap.len() - 1
        } else {
            self.places[index] as usize
        };
        alarm.0 = at;
        self.rise(place, entry);
    }

    /// A peer whose alarm has gone off by `now`. Whoever gets it must give its alarm to `gone_off`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<u16> {
        let first = *self.heap.first().filter(|first| first.at <= now)?;
        let last = self.heap.pop()?;
        if last.peer != first.peer {
            self.sink(last);
        }
        Some(first.peer)
    }

    /// The alarm that `pop` told of.
    pub(crate) fn gone_off(alarm: &mut Alarm) {
        alarm.0 = NEVER;
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[usize::from(entry.peer)] = place as u32;
    }

    /// `entry` belongs at `place` or nearer to the top.
    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    /// The top is free; `entry` belongs there or below.
    fn sink(&mut self, entry: Entry) {
        let mut place = 0;
        loop {
            let first = place * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else {
                break;
            };
            if entry <= self.heap[least] {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const PEERS: u16 = 20;

    proptest! {
        /// As a list of all peers that is searched from end to end.
        #[test]
        fn as_a_list(steps in prop::collection::vec((0..PEERS, 0u64..100, any::<bool>()), 0..400)) {
            let mut alarms = Alarms::default();
            let mut kept: Vec<Alarm> = (0..PEERS).map(|_| Alarm::new()).collect();
            let mut oracle = vec![u64::MAX; usize::from(PEERS)];
            for (peer, at, sets) in steps {
                let index = usize::from(peer);
                if sets {
                    alarms.set(peer, &mut kept[index], Instant::from_nanos(at));
                    oracle[index] = oracle[index].min(at);
                } else {
                    let due = (0..PEERS).map(|peer| (oracle[usize::from(peer)], peer)).min();
                    let due = due.filter(|&(due, _)| due <= at).map(|(_, peer)| peer);
                    let popped = alarms.pop(Instant::from_nanos(at));
                    prop_assert_eq!(popped, due);
                    if let Some(peer) = popped {
                        Alarms::gone_off(&mut kept[usize::from(peer)]);
                        oracle[usize::from(peer)] = u64::MAX;
                    }
                }
                let first = oracle.iter().copied().min().filter(|&at| at != u64::MAX);
                prop_assert_eq!(alarms.next_at(), first.map(Instant::from_nanos));
                prop_assert!(alarms.heap.len() <= usize::from(PEERS));
            }
        }
    }
}
