//! Where each lane in use has its state: a list in order of first use, and the place that was asked for last.
//!
//! Owned by `queue` and `receive`, one each. A table of all lanes for each peer would be most of what an idle peer costs.
//!
//! Invariant: a lane's place never changes, and is below [`LANES_MAX`].

use alloc::vec::Vec;
use tsumuji_wire::Lane;

/// Lanes of one session in one direction: what a peer can have this node keep in mind is bounded.
pub(crate) const LANES_MAX: usize = 4096;

/// No lane's number.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Places {
    /// By place. Looked through in a row: a thousand are four KiB.
    lanes: Vec<Lane>,
    /// The number of the lane that was asked for last, or that of none.
    last_number: u32,
    last_place: u16,
}

impl Places {
    pub(super) fn new() -> Self {
        Self {
            lanes: Vec::new(),
            last_number: NONE,
            last_place: 0,
        }
    }

    /// The place of the lane that was asked for last, if it is this one.
    #[inline]
    pub(super) fn last(&self, lane: Lane) -> Option<u16> {
        (self.last_number == lane.number()).then_some(self.last_place)
    }

    /// Whether the lane is in use, or may come into use.
    pub(super) fn has_room(&self, lane: Lane) -> bool {
        self.lanes.len() < LANES_MAX || self.lanes.contains(&lane)
    }

    /// The lane's place. `Err`: it is new, and this is the next free one.
    pub(super) fn place(&mut self, lane: Lane) -> Result<u16, u16> {
        let known = self.lanes.iter().position(|known| *known == lane);
        let place = known.unwrap_or(self.lanes.len()) as u16; // below `LANES_MAX`
        (self.last_number, self.last_place) = (lane.number(), place);
        if known.is_some() {
            return Ok(place);
        }
        self.lanes.push(lane);
        Err(place)
    }

    /// The lane's place, if it is in use.
    pub(super) fn find(&self, lane: Lane) -> Option<u16> {
        self.last(lane).or_else(|| {
            let at = self.lanes.iter().position(|known| *known == lane);
            at.map(|at| at as u16)
        })
    }

    /// The lanes in use, by place.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.lanes.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every lane gets one place, whatever the order in which they are asked for; when all places are taken, no more do.
    #[test]
    fn places_stay() {
        let mut places = Places::new();
        let lane = |step: u16| Lane::ordered(step.wrapping_mul(40_503)); // odd: no two are equal
        for step in 0..LANES_MAX as u16 {
            assert!(places.has_room(lane(step)));
            assert_eq!(places.find(lane(step)), None);
            assert_eq!(places.place(lane(step)), Err(step));
            assert_eq!(places.find(lane(step / 2)), Some(step / 2));
            assert_eq!(places.place(lane(step)), Ok(step));
            assert_eq!(places.place(lane(step / 2)), Ok(step / 2));
        }
        assert!(places.lanes().eq((0..LANES_MAX as u16).map(lane)));
        assert!(places.has_room(lane(3)) && !places.has_room(Lane::unordered(0)));
    }
}
