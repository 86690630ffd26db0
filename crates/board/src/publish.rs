//! The owner's side: sends its values in frames, and repeats frames in case they were lost.
//!
//! Invariant: a frame's stamp is the lap of every value in it, so a repair never presents an old value as newer.

use crate::store::Store;
use crate::{Board, Elements, ElementsTuner, Lap};
use std::ops::Range;
use tsumuji_wire::{Datagram, NodeId};

/// Sends frames to other nodes, best effort.
pub trait Carrier {
    /// Permanent failure of the link.
    type Error;

    /// Sends the update to `readers`, of whom there is at least one; returns how many copies found no transmit slot. Others may get it, too, where one
    /// frame reaches all.
    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, Self::Error>;
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

impl<S: Store> Board<S> {
    /// Sets how many elements a frame holds, for links whose frames hold `capacity_bytes` of values.
    pub fn set_elements(&mut self, setting: Elements, capacity_bytes: usize) {
        let own = self.own().len();
        self.elements = ElementsTuner::new(setting, capacity_bytes / size_of::<f64>(), own);
    }

    /// Has the automatic setting go on from so many elements.
    pub fn start_elements_from(&mut self, elements: usize) {
        self.elements.start_from(elements);
    }

    /// Elements the next frames hold.
    pub fn elements(&self) -> usize {
        self.elements.current()
    }

    /// The tuner of the automatic setting, to record costs.
    pub fn tuner(&mut self) -> &mut ElementsTuner {
        &mut self.elements
    }

    /// Writes own elements `range` and sends them to those who read them, `elements` in a frame. Panics unless all of them are this node's.
    pub fn publish<C: Carrier>(
        &mut self,
        carrier: &mut C,
        range: Range<usize>,
        values: &[f64],
        lap: Lap,
    ) -> Result<Published, C::Error> {
        assert_eq!(range.len(), values.len(), "one value per element");
        self.write(range.start, values, lap);
        self.announce(carrier, range, lap)
    }

    /// Sends own elements `range` as they are now, with the stamp `lap`. Panics unless all of them are this node's.
    pub fn announce<C: Carrier>(
        &mut self,
        carrier: &mut C,
        range: Range<usize>,
        lap: Lap,
    ) -> Result<Published, C::Error> {
        let own = self.own();
        assert!(
            own.start <= range.start && range.end <= own.end,
            "{range:?} is not all of {}'s {own:?}",
            self.me
        );
        self.stamps[range.clone()].fill(lap.get());
        self.note_lap(self.me, lap);
        let store = &self.store;
        let mut done = Published::default();
        let step = self.elements.current();
        let channel_id = self.channel_id;
        let mut sender = Sender {
            epoch: self.epoch,
            frame: &mut self.frame,
            carrier,
        };
        if !self.whole_readers.is_empty() {
            for start in range.clone().step_by(step) {
                let values = start..range.end.min(start + step);
                let values = values.map(|index| store.get(index));
                done += sender.send(&self.whole_readers, channel_id, start, values, lap)?;
            }
        }
        for reader in &self.packed_readers {
            let place = |element: usize| {
                (reader.list).partition_point(|&listed| (listed as usize) < element)
            };
            let places = place(range.start)..place(range.end);
            for (piece, list) in reader.list[places.clone()].chunks(step).enumerate() {
                let values = list.iter().map(|&index| store.get(index as usize));
                let place = places.start + piece * step;
                done += sender.send(&[reader.node], channel_id + 1, place, values, lap)?;
            }
        }
        Ok(done)
    }

    /// Sends one frame of own elements again, unchanged, to those who read all, and one to each of the others: repairs updates that were lost and have no
    /// successor yet. Each call goes on where the last one stopped, round and round; call it every few milliseconds. Does nothing before the first
    /// publish.
    pub fn repair<C: Carrier>(&mut self, carrier: &mut C) -> Result<Published, C::Error> {
        let own = self.own();
        let store = &self.store;
        let capacity = self.elements.capacity();
        let mut done = Published::default();
        let channel_id = self.channel_id;
        let mut sender = Sender {
            epoch: self.epoch,
            frame: &mut self.frame,
            carrier,
        };
        if !own.is_empty() && !self.whole_readers.is_empty() {
            let start = own.start + self.repair_at % own.len();
            let stamp = self.stamps[start];
            let same = self.stamps[start..own.end]
                .iter()
                .take_while(|&&other| other == stamp);
            let count = same.take(capacity).count();
            self.repair_at = (start - own.start + count) % own.len();
            if let Some(lap) = Lap::new(stamp) {
                let values = (start..start + count).map(|index| store.get(index));
                done += sender.send(&self.whole_readers, channel_id, start, values, lap)?;
            }
        }
        for packed in &mut self.packed_readers {
            if packed.list.is_empty() {
                continue;
            }
            let start = packed.repair_at % packed.list.len();
            let stamp = self.stamps[packed.list[start] as usize];
            let same = packed.list[start..]
                .iter()
                .take_while(|&&index| self.stamps[index as usize] == stamp);
            let count = same.take(capacity).count();
            packed.repair_at = (start + count) % packed.list.len();
            if let Some(lap) = Lap::new(stamp) {
                let list = &packed.list[start..start + count];
                let values = list.iter().map(|&index| store.get(index as usize));
                done += sender.send(&[packed.node], channel_id + 1, start, values, lap)?;
            }
        }
        Ok(done)
    }
}

/// Makes frames.
struct Sender<'a, C> {
    epoch: u32,
    frame: &'a mut Vec<u8>,
    carrier: &'a mut C,
}

impl<C: Carrier> Sender<'_, C> {
    fn send(
        &mut self,
        readers: &[NodeId],
        channel_id: u16,
        key: usize,
        values: impl Iterator<Item = f64>,
        lap: Lap,
    ) -> Result<Published, C::Error> {
        self.frame.clear();
        for value in values {
            self.frame.extend_from_slice(&value.to_le_bytes());
        }
        let update = Datagram {
            channel_id,
            epoch: self.epoch,
            lap: lap.get(),
            key: key as u32, // a board's elements are counted in 32 bits (`Board::new`)
            payload: self.frame,
            ..Datagram::EMPTY
        };
        let refused = self.carrier.update(readers, update)?;
        Ok(Published {
            frames: 1,
            refused: refused as u64,
        })
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
