//! The copy of the vector on this node, and the stamps that decide which update it takes.
//!
//! Values are relaxed atomics behind an `Arc`: the thread that polls the endpoint owns the [`Board`] and writes, any
//! number of [`Reader`]s on other threads read single elements that are never torn but need not belong together.
//!
//! Invariants: an element is only written by its owner (or on behalf of it, by `install`); its stamp never goes back while the owner's incarnation
//! stays the same; every value is finite if those published here are; a frame of an incarnation that `forget` ended is never taken again while it is
//! among the last [`FORMER_INCARNATIONS`].

use crate::{ElementsTuner, Lap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tsumuji_wire::{Datagram, NodeId};

/// Former incarnations of one owner that are remembered. A process that is restarted more often than this while one of its frames is still under way
/// would have to restart within the network's longest delay.
pub const FORMER_INCARNATIONS: usize = 4;

/// Why a board cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoardError {
    /// Ranges must follow one another from 0 on, since each element has exactly one owner.
    #[error(
        "{owner} owns {range:?}, but the elements before it end at {expected}; give each element one owner, in order"
    )]
    Ranges {
        /// The owner of the range.
        owner: NodeId,
        /// Its range.
        range: Range<usize>,
        /// Where the range must begin.
        expected: usize,
    },
    /// The vector is too long: frames name elements in 32 bits.
    #[error("a board of {len} elements is beyond the limit of {limit}")]
    TooLong {
        /// Elements asked for.
        len: usize,
        /// Most that is accepted.
        limit: usize,
    },
    /// This node is not among the nodes, or there are too many: frames name nodes in 16 bits.
    #[error("{me} is not among the {nodes} nodes of the board")]
    NotAMember {
        /// This node.
        me: NodeId,
        /// Number of nodes given.
        nodes: usize,
    },
}

/// Refused datagrams, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Drops {
    /// Every element is held at this stamp or a newer one: repetitions, unneeded repairs, late frames.
    pub not_newer: u64,
    /// From an epoch that has ended.
    pub past_epoch: u64,
    /// From an epoch that has not begun here.
    pub future_epoch: u64,
    /// From another incarnation of the owner than the current one.
    pub other_incarnation: u64,
    /// With elements that are not the source's own.
    pub not_owner: u64,
    /// Without elements, with a part of one, or with a lap of 0.
    pub malformed: u64,
    /// With NaN or infinity, which would spread through any iteration.
    pub not_finite: u64,
}

impl Drops {
    /// Sum of all reasons.
    pub fn total(&self) -> u64 {
        self.not_newer
            + self.past_epoch
            + self.future_epoch
            + self.other_incarnation
            + self.not_owner
            + self.malformed
            + self.not_finite
    }
}

/// One owner, as seen from here.
#[derive(Debug)]
struct Owner {
    range: Range<usize>,
    /// 0: not known; the next frame tells it.
    incarnation: u32,
    /// Ended incarnations, newest first; 0 where none.
    former: [u32; FORMER_INCARNATIONS],
}

/// Selects the counter of a reason.
type Counter = fn(&mut Drops) -> &mut u64;

/// The part that readers on other threads see.
#[derive(Debug)]
struct Cells {
    /// Elements as `f64::to_bits`.
    values: Box<[AtomicU64]>,
    /// Newest lap heard of each node, 0: none.
    laps: Box<[AtomicU32]>,
}

/// This node's copy, written by one thread.
#[derive(Debug)]
pub struct Board {
    pub(crate) channel_id: u16,
    pub(crate) me: NodeId,
    pub(crate) epoch: u32,
    /// Lap of each element's value, 0: never written.
    pub(crate) stamps: Vec<u32>,
    pub(crate) elements: ElementsTuner,
    /// Own element at which the next repair begins, relative to the own range.
    pub(crate) repair_at: usize,
    /// Bytes of the frame being written, kept to save allocations.
    pub(crate) frame: Vec<u8>,
    cells: Arc<Cells>,
    owners: Vec<Owner>,
    drops: Drops,
}

/// Reads the copy from any thread.
#[derive(Debug, Clone)]
pub struct Reader {
    cells: Arc<Cells>,
}

impl Board {
    /// A board of zeros in epoch 0. `owned[i]` are the elements of node i, one range after the other from 0; nodes without elements have an empty
    /// range. The board's length is the end of the last range. Its frames use channel `channel_id`.
    pub fn new(channel_id: u16, me: NodeId, owned: Vec<Range<usize>>) -> Result<Self, BoardError> {
        let mut len = 0;
        if owned.len() > usize::from(u16::MAX) || usize::from(me.0) >= owned.len() {
            return Err(BoardError::NotAMember {
                me,
                nodes: owned.len(),
            });
        }
        for (node, range) in owned
            .iter()
            .enumerate()
            .filter(|(_, range)| !range.is_empty())
        {
            if range.start != len {
                return Err(BoardError::Ranges {
                    owner: NodeId(node as u16),
                    range: range.clone(),
                    expected: len,
                });
            }
            len = range.end;
        }
        let limit = u32::MAX as usize;
        if len > limit {
            return Err(BoardError::TooLong { len, limit });
        }
        let cells = Cells {
            values: (0..len).map(|_| AtomicU64::new(0)).collect(),
            laps: (0..owned.len()).map(|_| AtomicU32::new(0)).collect(),
        };
        Ok(Self {
            channel_id,
            me,
            epoch: 0,
            stamps: vec![0; len],
            elements: ElementsTuner::default(),
            repair_at: 0,
            frame: Vec::new(),
            cells: Arc::new(cells),
            owners: owned
                .into_iter()
                .map(|range| Owner {
                    range: if range.is_empty() { 0..0 } else { range },
                    incarnation: 0,
                    former: [0; FORMER_INCARNATIONS],
                })
                .collect(),
            drops: Drops::default(),
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.stamps.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.stamps.is_empty()
    }

    /// The elements this node writes.
    pub fn own(&self) -> Range<usize> {
        self.owned_by(self.me)
    }

    /// The elements `owner` writes; empty for a node that is not a member.
    pub fn owned_by(&self, owner: NodeId) -> Range<usize> {
        self.owners
            .get(usize::from(owner.0))
            .map_or(0..0, |owner| owner.range.clone())
    }

    /// Id of the channel of its frames.
    pub fn channel(&self) -> u16 {
        self.channel_id
    }

    /// The epoch of frames that are taken and sent.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins an epoch: from now on only its frames are taken. Values and stamps stay.
    pub fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// A handle for other threads.
    pub fn reader(&self) -> Reader {
        Reader {
            cells: Arc::clone(&self.cells),
        }
    }

    /// Element `index`. Panics beyond the end.
    pub fn get(&self, index: usize) -> f64 {
        self.cells.get(index)
    }

    /// Copies elements from `start` on into `out`. Panics beyond the end.
    pub fn copy_to(&self, start: usize, out: &mut [f64]) {
        self.cells.copy_to(start, out);
    }

    /// Takes the newer elements of `datagram`. Returns the smallest range that holds all changes, or `None`: nothing was taken (counted in `drops`).
    ///
    /// The datagram may hold any bytes. The first incarnation of an owner that is heard of counts as its current one.
    pub fn apply(&mut self, datagram: &Datagram<'_>) -> Option<Range<usize>> {
        match self.examine(datagram) {
            Ok((lap, range)) => self.take(datagram, lap, range),
            Err(counter) => {
                *counter(&mut self.drops) += 1;
                None
            }
        }
    }

    /// Checks all of a datagram but its stamps: returns its lap and elements, or the counter of the reason for refusing it.
    fn examine(&mut self, datagram: &Datagram<'_>) -> Result<(Lap, Range<usize>), Counter> {
        let (elements, rest) = datagram.payload.as_chunks::<8>();
        let Some(lap) = Lap::new(datagram.lap) else {
            return Err(|drops| &mut drops.malformed);
        };
        if datagram.channel_id != self.channel_id || !rest.is_empty() || elements.is_empty() {
            return Err(|drops| &mut drops.malformed);
        }
        if datagram.epoch != self.epoch {
            let ahead = datagram.epoch.wrapping_sub(self.epoch) as i32 > 0;
            return Err(if ahead {
                |drops| &mut drops.future_epoch
            } else {
                |drops| &mut drops.past_epoch
            });
        }
        let start = datagram.key as usize;
        let Some(end) = start.checked_add(elements.len()) else {
            return Err(|drops| &mut drops.malformed);
        };
        let owner = match self.owners.get_mut(usize::from(datagram.source.0)) {
            Some(owner) if datagram.source != self.me => owner,
            _ => return Err(|drops| &mut drops.not_owner),
        };
        if start < owner.range.start || end > owner.range.end {
            return Err(|drops| &mut drops.not_owner);
        }
        // Every value is checked before any is written: a datagram is taken whole or not at all.
        if elements
            .iter()
            .any(|element| !f64::from_le_bytes(*element).is_finite())
        {
            return Err(|drops| &mut drops.not_finite);
        }
        if owner.incarnation != datagram.incarnation {
            if owner.incarnation != 0
                || datagram.incarnation == 0
                || owner.former.contains(&datagram.incarnation)
            {
                return Err(|drops| &mut drops.other_incarnation);
            }
            owner.incarnation = datagram.incarnation;
        }
        Ok((lap, start..end))
    }

    fn take(
        &mut self,
        datagram: &Datagram<'_>,
        lap: Lap,
        range: Range<usize>,
    ) -> Option<Range<usize>> {
        let (elements, _) = datagram.payload.as_chunks::<8>();
        let mut changed: Option<Range<usize>> = None;
        let stamps = &mut self.stamps[range.clone()];
        let cells = &self.cells.values[range.clone()];
        for (offset, ((element, stamp), cell)) in elements.iter().zip(stamps).zip(cells).enumerate()
        {
            if Lap::new(*stamp).is_none_or(|held| lap.is_newer_than(held)) {
                *stamp = lap.get();
                cell.store(u64::from_le_bytes(*element), Relaxed);
                let index = range.start + offset;
                changed = Some(changed.map_or(index, |changed| changed.start)..index + 1);
            }
        }
        if changed.is_none() {
            self.drops.not_newer += 1;
        }
        self.cells.heard(datagram.source, lap);
        changed
    }

    /// Writes values of `owner` that came by reliable messages, unless a newer value is held. They are not checked. Panics unless all of them are the
    /// owner's.
    pub fn install(&mut self, owner: NodeId, start: usize, values: &[f64], lap: Lap) {
        let range = self.owned_by(owner);
        let end = start + values.len();
        assert!(
            range.start <= start && end <= range.end,
            "{start}..{end} is not all of {owner}'s {range:?}"
        );
        for (index, value) in (start..end).zip(values) {
            if Lap::new(self.stamps[index]).is_none_or(|held| !held.is_newer_than(lap)) {
                self.stamps[index] = lap.get();
                self.cells.values[index].store(value.to_bits(), Relaxed);
            }
        }
        self.cells.heard(owner, lap);
    }

    /// Writes own elements without sending them. Panics unless all of them are this node's.
    pub fn write(&mut self, start: usize, values: &[f64], lap: Lap) {
        self.install(self.me, start, values, lap);
    }

    /// Ends the known incarnation of `owner`, which died or came back: the next one may begin at lap 1 again. Values stay until overwritten.
    pub fn forget(&mut self, owner: NodeId) {
        let Some(state) = self.owners.get_mut(usize::from(owner.0)) else {
            return;
        };
        if state.incarnation != 0 {
            state.former.rotate_right(1);
            state.former[0] = state.incarnation;
            state.incarnation = 0;
        }
        self.stamps[state.range.clone()].fill(0);
        self.cells.laps[usize::from(owner.0)].store(0, Relaxed);
    }

    /// Newest lap of `source` of which anything arrived.
    pub fn lap(&self, source: NodeId) -> Option<Lap> {
        self.cells.lap(source)
    }

    /// Oldest lap among the elements of `source`: all of them are at least this new. `None` while one has never arrived, or if it owns none. Reads
    /// each of its stamps.
    pub fn oldest(&self, source: NodeId) -> Option<Lap> {
        let mut stamps = self.stamps[self.owned_by(source)].iter();
        let first = Lap::new(*stamps.next()?)?;
        stamps.try_fold(first, |oldest, &stamp| {
            let lap = Lap::new(stamp)?;
            Some(if oldest.is_newer_than(lap) {
                lap
            } else {
                oldest
            })
        })
    }

    /// Laps by which the oldest element of `source` is behind the newest lap heard of it; `None` as in `oldest`.
    pub fn staleness(&self, source: NodeId) -> Option<u32> {
        Some(self.lap(source)?.since(self.oldest(source)?))
    }

    /// Refused datagrams, by reason.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }
}

impl Reader {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.cells.values.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.cells.values.is_empty()
    }

    /// Element `index`. Panics beyond the end.
    pub fn get(&self, index: usize) -> f64 {
        self.cells.get(index)
    }

    /// Copies elements from `start` on into `out`. Panics beyond the end.
    pub fn copy_to(&self, start: usize, out: &mut [f64]) {
        self.cells.copy_to(start, out);
    }

    /// Newest lap of `source` of which anything arrived.
    pub fn lap(&self, source: NodeId) -> Option<Lap> {
        self.cells.lap(source)
    }
}

impl Cells {
    fn get(&self, index: usize) -> f64 {
        f64::from_bits(self.values[index].load(Relaxed))
    }

    fn copy_to(&self, start: usize, out: &mut [f64]) {
        let cells = &self.values[start..start + out.len()];
        for (out, cell) in out.iter_mut().zip(cells) {
            *out = f64::from_bits(cell.load(Relaxed));
        }
    }

    fn lap(&self, source: NodeId) -> Option<Lap> {
        Lap::new(self.laps.get(usize::from(source.0))?.load(Relaxed))
    }

    fn heard(&self, source: NodeId, lap: Lap) {
        let newest = &self.laps[usize::from(source.0)];
        if Lap::new(newest.load(Relaxed)).is_none_or(|held| lap.is_newer_than(held)) {
            newest.store(lap.get(), Relaxed);
        }
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
