//! The queue of future events, earliest first; events of one moment in the order in which they were planned.
//!
//! Owned by `net`. Invariant: time never goes back, so a run is a function of its inputs only.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use tsumuji_node::Bytes;
use tsumuji_proto::{Destination, Instant, NodeId};

/// A future event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// The last bit of a frame has reached the switch.
    AtSwitch {
        from: NodeId,
        to: Destination,
        frame: Bytes,
    },
    /// The last bit of a frame has reached a node's receive ring.
    AtNode {
        from: NodeId,
        to: NodeId,
        frame: Bytes,
    },
    /// A node's processor is free for the frames in its ring.
    Receive { node: NodeId },
    /// A node's transmit ring has room again.
    Transmit { node: NodeId },
    /// The engine asked to be called.
    Timeout { node: NodeId },
    /// A slow program takes its next message.
    Consume { node: NodeId },
}

#[derive(Debug, PartialEq, Eq)]
struct Planned {
    at_ns: u64,
    /// How many were planned before: unique.
    order: u64,
    what: Happening,
}

impl Ord for Planned {
    /// The earliest is the greatest, as `BinaryHeap` needs it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.order).cmp(&(self.at_ns, self.order))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The present time and all future events.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    heap: BinaryHeap<Planned>,
    planned: u64,
    now_ns: u64,
}

impl Timeline {
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ns)
    }

    /// `at` in the past means now.
    pub(crate) fn plan(&mut self, at: Instant, what: Happening) {
        self.planned += 1;
        self.heap.push(Planned {
            at_ns: at.as_nanos().max(self.now_ns),
            order: self.planned,
            what,
        });
    }

    /// Number of events planned so far.
    pub(crate) fn planned(&self) -> u64 {
        self.planned
    }

    /// When the next event is.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap
            .peek()
            .map(|planned| Instant::from_nanos(planned.at_ns))
    }

    /// Moves time to the next event.
    pub(crate) fn next(&mut self) -> Option<Happening> {
        let planned = self.heap.pop()?;
        self.now_ns = planned.at_ns;
        Some(planned.what)
    }

    /// Advances time where no event is due.
    pub(crate) fn advance_to(&mut self, at: Instant) {
        debug_assert!(
            self.next_at().is_none_or(|next| next >= at),
            "time would pass over an event"
        );
        self.now_ns = self.now_ns.max(at.as_nanos());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events come by time, ties by the order of planning, and the past is now.
    #[test]
    fn events_come_in_order() {
        let mut timeline = Timeline::default();
        let timeout = |id| Happening::Timeout { node: NodeId(id) };
        timeline.plan(Instant::from_nanos(20), timeout(0));
        timeline.plan(Instant::from_nanos(10), timeout(9));
        timeline.plan(Instant::from_nanos(10), timeout(3));
        assert_eq!(timeline.next(), Some(timeout(9)));
        timeline.plan(Instant::from_nanos(5), timeout(4));
        assert_eq!(timeline.next(), Some(timeout(3)));
        assert_eq!(timeline.next(), Some(timeout(4)));
        assert_eq!(timeline.now(), Instant::from_nanos(10));
        assert_eq!(timeline.next(), Some(timeout(0)));
        assert_eq!(timeline.next(), None);
        timeline.advance_to(Instant::from_nanos(30));
        assert_eq!(timeline.now(), Instant::from_nanos(30));
    }
}
