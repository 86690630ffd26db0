//! One message on its way out, and the numbers of a lane's messages.
//!
//! Owned by `queue`, which says what leaves next. Knows nothing of packet numbers.
//!
//! Invariant: `acknowledged` counts the set bits of `bitmap`, or is 0 or 1 where the message is one fragment.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::lane::LANE_WINDOW;
use super::lending::Lending;
use crate::message::SendId;
use crate::numbers::{Arrivals, FIRST_NUMBER, NUMBER_WINDOW};
use tsumuji_wire::Lane;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) lane: Lane,
    /// Its place in `Queue::lanes`.
    pub(super) lane_index: u16,
    /// Within the lane; known once the first fragment leaves.
    pub(super) number: u64,
    pub(super) id: SendId,
    /// All of it, unless it is or was lent.
    pub(super) body: Vec<u8>,
    pub(super) lending: Option<Box<Lending>>,
    pub(super) length_bytes: usize,
    pub(super) fragments: u32,
    pub(super) next_fragment: u32,
    pub(super) acknowledged: u32,
    /// Which fragments are acknowledged; empty for messages of one fragment.
    pub(super) bitmap: Vec<u64>,
    pub(super) notify: bool,
    pub(super) live: bool,
}

impl Outgoing {
    /// A place for messages, without one.
    pub(super) fn new() -> Self {
        Self {
            lane: Lane(0),
            lane_index: 0,
            number: 0,
            id: SendId(0),
            body: Vec::new(),
            lending: None,
            length_bytes: 0,
            fragments: 0,
            next_fragment: 0,
            acknowledged: 0,
            bitmap: Vec::new(),
            notify: false,
            live: false,
        }
    }
}

/// How many a message has; even an empty one has one. Messages have less than 2³² bytes.
#[inline]
pub(super) fn fragments(message_bytes: usize, fragment_bytes: usize) -> u32 {
    if message_bytes <= fragment_bytes {
        1
    } else {
        message_bytes.div_ceil(fragment_bytes) as u32
    }
}

/// One lane's message numbers: which of those sent are not yet acknowledged whole.
#[derive(Debug)]
pub(super) struct LaneSend {
    next: u64,
    acknowledged: Arrivals,
}
const _: () = assert!(LANE_WINDOW <= NUMBER_WINDOW);

impl LaneSend {
    pub(super) fn new() -> Self {
        Self {
            next: FIRST_NUMBER,
            acknowledged: Arrivals::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.next - self.acknowledged.base() < LANE_WINDOW
    }

    pub(super) fn assign(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    #[inline]
    pub(super) fn acknowledge(&mut self, number: u64) {
        self.acknowledged.mark(number);
    }
}
