//! Alarms of the peers: a binary heap with at most one entry for each peer.
//!
//! Owned by the engine, which sets a peer's alarm whenever a deadline of that peer may have come nearer, and pops those that have gone off. Deadlines
//! are cancelled lazily: an alarm that goes off early finds none expired, and is set anew. So peers without expired deadlines cost nothing, however
//! many there are; moving an alarm nearer costs the heap's depth.
//!
//! Invariants: an `Alarm` is the time of its peer's entry, or [`NEVER`] if there is none; there is at most one entry for each peer; equal times go
//! off in the order of the peers' ids, so that runs repeat.

use alloc::vec::Vec;

use crate::time::Instant;

/// No alarm is set.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Entry `i` has the children `2i + 1` and `2i + 2`.
const CHILDREN: usize = 2;

/// One peer's alarm, kept in the peer, so that most calls need not access the heap.
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
    /// Index of a peer's entry in the heap, by peer id; meaningless for a peer without one.
    places: Vec<u32>,
}

impl Alarms {
    /// When the first alarm goes off.
    #[inline]
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Sets the peer's alarm to `at`, unless it goes off earlier.
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

    /// Removes a peer whose alarm has gone off by `now`. The caller must pass its alarm to `gone_off`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<u16> {
        let first = *self.heap.first().filter(|first| first.at <= now)?;
        let last = self.heap.pop()?;
        if last.peer != first.peer {
            self.sink(last);
        }
        Some(first.peer)
    }

    /// Clears the alarm of a peer that `pop` returned.
    pub(crate) fn gone_off(alarm: &mut Alarm) {
        alarm.0 = NEVER;
    }

    fn put(&mut self, place: usize, entry: Entry) {
        self.heap[place] = entry;
        self.places[usize::from(entry.peer)] = place as u32;
    }

    /// Puts `entry` at `place` or nearer to the top.
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

    /// Puts `entry` at the top, which is free, or below.
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
        /// Equal to a search through a list of all peers.
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
                    let first = (0..PEERS).map(|peer| (oracle[usize::from(peer)], peer)).min();
                    let expired = first.filter(|&(first, _)| first <= at).map(|(_, peer)| peer);
                    let popped = alarms.pop(Instant::from_nanos(at));
                    prop_assert_eq!(popped, expired);
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
