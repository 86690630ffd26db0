//! Where each lane in use has its state: a list in order of first use, and the place that was asked for last.
//!
//! Owned by `queue` and `receive`, one each. A table of 256 places for each peer would be most of what an idle peer costs.
//!
//! Invariant: a lane's place never changes, and is below 256.

use alloc::vec::Vec;
use tsumuji_wire::Lane;

/// No lane's byte.
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(super) struct Places {
    lanes: Vec<u8>,
    last_lane: u16,
    last_place: u16,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            lanes: Vec::new(),
            last_lane: NONE,
            last_place: 0,
        }
    }

    /// The place of the lane that was asked for last, if it is this one.
    #[inline]
    pub(super) fn last(&self, lane: Lane) -> Option<u16> {
        (self.last_lane == u16::from(lane.0)).then_some(self.last_place)
    }

    /// The lane's place. `Err`: it is new, and this is the next free one.
    pub(super) fn place(&mut self, lane: Lane) -> Result<u16, u16> {
        let known = self.lanes.iter().position(|&byte| byte == lane.0);
        if known.is_none() {
            self.lanes.push(lane.0);
        }
        let place = known.unwrap_or(self.lanes.len() - 1) as u16;
        (self.last_lane, self.last_place) = (u16::from(lane.0), place);
        known.map(|_| place).ok_or(place)
    }

    /// The lanes in use, by place.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.lanes.iter().map(|&byte| Lane(byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every lane gets one place, whatever the order in which they are asked for.
    #[test]
    fn places_stay() {
        let mut places = Places::new();
        let lane = |step: u16| Lane((step * 37 % 256) as u8);
        for step in 0..256 {
            assert_eq!(places.place(lane(step)), Err(step));
            assert_eq!(places.place(lane(step)), Ok(step));
            assert_eq!(places.place(lane(step / 2)), Ok(step / 2));
        }
        assert!(places.lanes().eq((0..256).map(lane)));
    }
}
