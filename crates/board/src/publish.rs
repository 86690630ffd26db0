//! The owner's side: sends its values in frames, and repeats frames in case they were lost.
//!
//! Invariant: a frame's stamp is the lap of every value in it, so a repair never presents an old value as newer.

use crate::{Board, Elements, ElementsTuner, Lap};
use std::ops::Range;
use tsumuji_wire::Datagram;

/// Sends frames to the other nodes, best effort.
pub trait Carrier {
    /// Permanent failure of the link.
    type Error;

    /// Sends the update to all readers of the board; returns how many copies found no transmit slot.
    fn update(&mut self, update: Datagram<'_>) -> Result<usize, Self::Error>;
}

/// Result of a publish or a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Published {
    /// Frames given to the carrier.
    pub frames: u64,
    /// Copies of frames for which the link had no slot; they are lost unless repaired.
    pub refused: u64,
}

impl std::ops::AddAssign for Published {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.refused += other.refused;
    }
}

impl Board {
    /// Sets how many elements a frame holds, for links whose frames hold `capacity_bytes` of values.
    pub fn set_elements(&mut self, setting: Elements, capacity_bytes: usize) {
        self.elements = ElementsTuner::new(setting, capacity_bytes / size_of::<f64>());
    }

    /// Elements the next frames hold.
    pub fn elements(&self) -> usize {
        self.elements.current()
    }

    /// The tuner of the automatic setting, to record costs.
    pub fn tuner(&mut self) -> &mut ElementsTuner {
        &mut self.elements
    }

    /// Writes own elements `range` and sends them, `elements` in a frame. Panics unless all of them are this node's.
    pub fn publish<C: Carrier>(
        &mut self,
        carrier: &mut C,
        range: Range<usize>,
        values: &[f64],
        lap: Lap,
    ) -> Result<Published, C::Error> {
        assert_eq!(range.len(), values.len(), "one value per element");
        self.write(range.start, values, lap);
        let mut done = Published::default();
        let step = self.elements.current();
        for (piece, values) in values.chunks(step).enumerate() {
            done += self.send(
                carrier,
                range.start + piece * step,
                values.iter().copied(),
                lap,
            )?;
        }
        Ok(done)
    }

    /// Sends one frame of own elements again, unchanged: repairs updates that were lost and have no successor yet. Each call goes on where the last
    /// one stopped, round and round; call it every few milliseconds. Does nothing before the first publish.
    pub fn repair<C: Carrier>(&mut self, carrier: &mut C) -> Result<Published, C::Error> {
        let own = self.own();
        if own.is_empty() {
            return Ok(Published::default());
        }
        let start = own.start + self.repair_at % own.len();
        let stamp = self.stamps[start];
        let same = self.stamps[start..own.end]
            .iter()
            .take_while(|&&other| other == stamp);
        let count = same.take(self.elements.capacity()).count();
        self.repair_at = (start - own.start + count) % own.len();
        let Some(lap) = Lap::new(stamp) else {
            return Ok(Published::default());
        };
        let reader = self.reader();
        self.send(
            carrier,
            start,
            (start..start + count).map(|index| reader.get(index)),
            lap,
        )
    }

    fn send<C: Carrier>(
        &mut self,
        carrier: &mut C,
        start: usize,
        values: impl Iterator<Item = f64>,
        lap: Lap,
    ) -> Result<Published, C::Error> {
        self.frame.clear();
        for value in values {
            self.frame.extend_from_slice(&value.to_le_bytes());
        }
        // A board's elements are counted in 32 bits (`Board::new`).
        let refused = carrier.update(Datagram {
            channel_id: self.channel_id,
            epoch: self.epoch,
            lap: lap.get(),
            key: start as u32,
            payload: &self.frame,
            ..Datagram::EMPTY
        })?;
        Ok(Published {
            frames: 1,
            refused: refused as u64,
        })
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
