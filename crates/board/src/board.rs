//! The copy of the vector on this node, and the stamps that decide which update it takes.
//!
//! The thread that polls the endpoint owns the [`Board`] and writes. Its values are shared with any number of [`Reader`]s on other threads, or private
//! (`store`): then the program computes on them in place.
//!
//! A node that reads few elements of an owner may have them *packed*: datagrams then hold elements of a list that both know, so that what is scattered
//! over the vector lies side by side in a frame. Packed datagrams go over the next channel.
//!
//! Invariants: an element is only written by its owner (or on behalf of it, by `install`); its stamp never goes back while the owner's incarnation
//! stays the same; every value is finite if those published here are; a frame of an incarnation that `forget` ended is never taken again while it is
//! among the last [`FORMER_INCARNATIONS`].

use crate::store::{Private, Reader, Shared, Store};
use crate::tuning::TUNING;
use crate::{ElementsTuner, Lap};
use std::ops::Range;
use std::sync::Arc;
use tsumuji_wire::{Datagram, NodeId};

/// Former incarnations of one owner that are remembered. A process that is restarted more often than this while one of its frames is still under way
/// would have to restart within the network's longest delay.
pub const FORMER_INCARNATIONS: usize = 4;

/// Why a board cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoardError {
    /// Ranges, in whatever order of nodes, must follow one another from 0 on, since each element has exactly one owner.
    #[error(
        "{owner} owns {range:?}, but the elements before it end at {expected}; give each element one owner"
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
    /// There is no channel behind it for packed frames.
    #[error(
        "a board takes two channels, {channel_id} and the next; {channel_id} is the last there is"
    )]
    Channel {
        /// The channel asked for.
        channel_id: u16,
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

/// Which elements of an owner one node reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reads {
    /// All of them.
    Whole,
    /// These, strictly ascending: packed in datagrams of their own. May be empty.
    Packed(Box<[u32]>),
}

impl Reads {
    /// What a node reads of the owner of `range` that reads the elements `columns`, which ascend strictly.
    pub fn of(range: &Range<usize>, columns: &[u32]) -> Self {
        let place = |end: usize| columns.partition_point(|&column| (column as usize) < end);
        let list = &columns[place(range.start)..place(range.end.max(range.start))];
        if list.len() * TUNING.whole_divisor > range.len() {
            Self::Whole
        } else {
            Self::Packed(list.into())
        }
    }

    /// Whether the elements ascend and are all within `range`; whoever names them is not trusted.
    pub fn fits(&self, range: &Range<usize>) -> bool {
        match self {
            Self::Whole => true,
            Self::Packed(list) => {
                list.is_sorted_by(|a, b| a < b)
                    && list
                        .first()
                        .is_none_or(|&first| range.start <= first as usize)
                    && list.last().is_none_or(|&last| (last as usize) < range.end)
            }
        }
    }
}

/// One owner, as seen from here.
#[derive(Debug)]
struct Owner {
    range: Range<usize>,
    /// What this node reads of it.
    reads: Reads,
    /// 0: not known; the next frame tells it.
    incarnation: u32,
    /// Ended incarnations, newest first; 0 where none.
    former: [u32; FORMER_INCARNATIONS],
}

/// A node that reads some of the own elements.
#[derive(Debug)]
pub(crate) struct PackedReader {
    pub(crate) node: NodeId,
    pub(crate) list: Box<[u32]>,
    /// Place in the list at which the next repair begins.
    pub(crate) repair_at: usize,
}

/// Selects the counter of a reason.
type Counter = fn(&mut Drops) -> &mut u64;

/// This node's copy, written by one thread.
#[derive(Debug)]
pub struct Board<S = Shared> {
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
    /// Nodes that read all of the own elements.
    pub(crate) whole_readers: Vec<NodeId>,
    pub(crate) packed_readers: Vec<PackedReader>,
    pub(crate) store: S,
    owners: Vec<Owner>,
    drops: Drops,
}

impl Board {
    /// A board of zeros in epoch 0, to be read from other threads, too. `owned[i]` are the elements of node i: ranges that follow
    /// one another from 0 on, in any order of nodes; nodes without elements have an empty one. The board's length is the end of the last. Its frames use channel `channel_id`.
    pub fn new(channel_id: u16, me: NodeId, owned: Vec<Range<usize>>) -> Result<Self, BoardError> {
        Self::with_store(channel_id, me, owned, Shared::new)
    }

    /// A handle for other threads.
    pub fn reader(&self) -> Reader {
        Reader {
            cells: Arc::clone(&self.store.0),
        }
    }
}

impl Board<Private> {
    /// As [`new`](Board::new), for a program that computes on the values themselves.
    pub fn private(
        channel_id: u16,
        me: NodeId,
        owned: Vec<Range<usize>>,
    ) -> Result<Self, BoardError> {
        Self::with_store(channel_id, me, owned, Private::new)
    }

    /// All elements.
    pub fn values(&self) -> &[f64] {
        &self.store.values
    }

    /// All elements, to be changed. What changes among the own ones is sent by [`announce`](Self::announce).
    pub fn values_mut(&mut self) -> &mut [f64] {
        &mut self.store.values
    }
}

impl<S: Store> Board<S> {
    fn with_store(
        channel_id: u16,
        me: NodeId,
        owned: Vec<Range<usize>>,
        store: impl FnOnce(usize, usize) -> S,
    ) -> Result<Self, BoardError> {
        if channel_id == u16::MAX {
            return Err(BoardError::Channel { channel_id });
        }
        let mut len = 0;
        if owned.len() > usize::from(u16::MAX) || usize::from(me.0) >= owned.len() {
            return Err(BoardError::NotAMember {
                me,
                nodes: owned.len(),
            });
        }
        let mut ranges: Vec<(usize, &Range<usize>)> = owned
            .iter()
            .enumerate()
            .filter(|(_, range)| !range.is_empty())
            .collect();
        ranges.sort_by_key(|(_, range)| range.start);
        for (node, range) in ranges {
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
        let readers = (0..owned.len()).map(|node| NodeId(node as u16));
        Ok(Self {
            whole_readers: readers.filter(|node| *node != me).collect(),
            packed_readers: Vec::new(),
            channel_id,
            me,
            epoch: 0,
            stamps: vec![0; len],
            elements: ElementsTuner::default(),
            repair_at: 0,
            frame: Vec::new(),
            store: store(len, owned.len()),
            owners: owned
                .into_iter()
                .map(|range| Owner {
                    range: if range.is_empty() { 0..0 } else { range },
                    reads: Reads::Whole,
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

    /// Id of the channel of its frames; packed ones use the next.
    pub fn channel(&self) -> u16 {
        self.channel_id
    }

    /// Id of the channel of packed frames.
    pub fn packed_channel(&self) -> u16 {
        self.channel_id + 1
    }

    /// Sets what this node reads of `owner`. Panics unless the elements are the owner's.
    pub fn set_reads(&mut self, owner: NodeId, reads: Reads) {
        let state = &mut self.owners[usize::from(owner.0)];
        assert!(
            reads.fits(&state.range),
            "elements that {owner} does not own"
        );
        state.reads = reads;
    }

    /// What this node reads of `owner`.
    pub fn reads(&self, owner: NodeId) -> &Reads {
        &self.owners[usize::from(owner.0)].reads
    }

    /// Sets which of the own elements `reader` reads; without this it reads all. Panics unless they are this node's.
    pub fn set_reader(&mut self, reader: NodeId, reads: Reads) {
        assert!(
            reads.fits(&self.own()),
            "elements that {} does not own",
            self.me
        );
        self.remove_reader(reader);
        match reads {
            Reads::Whole => self.whole_readers.push(reader),
            Reads::Packed(list) => self.packed_readers.push(PackedReader {
                node: reader,
                list,
                repair_at: 0,
            }),
        }
    }

    /// Sends nothing to `reader` any more.
    pub fn remove_reader(&mut self, reader: NodeId) {
        self.whole_readers.retain(|node| *node != reader);
        self.packed_readers.retain(|packed| packed.node != reader);
    }

    /// The epoch of frames that are taken and sent.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Begins an epoch: from now on only its frames are taken. Values and stamps stay.
    pub fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Element `index`. Panics beyond the end.
    pub fn get(&self, index: usize) -> f64 {
        self.store.get(index)
    }

    /// Takes the newer elements of `datagram`. Returns the smallest range that holds all changes, or `None`: nothing was taken (counted in `drops`).
    ///
    /// The datagram may hold any bytes. The first incarnation of an owner that is heard of counts as its current one.
    pub fn apply(&mut self, datagram: &Datagram<'_>) -> Option<Range<usize>> {
        match self.examine(datagram) {
            Ok((lap, places)) => self.take(datagram, lap, places),
            Err(counter) => {
                *counter(&mut self.drops) += 1;
                None
            }
        }
    }

    /// Checks all of a datagram but its stamps: returns its lap and elements (packed: places in the list), or the counter of the reason for refusing
    /// it.
    fn examine(&mut self, datagram: &Datagram<'_>) -> Result<(Lap, Range<usize>), Counter> {
        let (elements, rest) = datagram.payload.as_chunks::<8>();
        let Some(lap) = Lap::new(datagram.lap) else {
            return Err(|drops| &mut drops.malformed);
        };
        let is_packed = datagram.channel_id == self.packed_channel();
        if !(is_packed || datagram.channel_id == self.channel_id)
            || !rest.is_empty()
            || elements.is_empty()
        {
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
        let bounds = match (&owner.reads, is_packed) {
            (_, false) => owner.range.clone(),
            (Reads::Packed(list), true) => 0..list.len(),
            (Reads::Whole, true) => 0..0,
        };
        if start < bounds.start || end > bounds.end {
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

    /// Takes a datagram that was examined. Where it is packed, the range that is returned holds other elements, too.
    fn take(
        &mut self,
        datagram: &Datagram<'_>,
        lap: Lap,
        places: Range<usize>,
    ) -> Option<Range<usize>> {
        let (elements, _) = datagram.payload.as_chunks::<8>();
        let values = elements.iter().map(|element| f64::from_le_bytes(*element));
        let (stamps, store) = (&mut self.stamps, &mut self.store);
        let is_newer = |held| lap.is_newer_than(held);
        let changed = match &self.owners[usize::from(datagram.source.0)].reads {
            Reads::Packed(list) if datagram.channel_id != self.channel_id => {
                let indices = list[places].iter().map(|&index| index as usize);
                renew(stamps, store, indices.zip(values), lap, is_newer)
            }
            _ => renew(stamps, store, places.zip(values), lap, is_newer),
        };
        if changed.is_none() {
            self.drops.not_newer += 1;
        }
        self.note_lap(datagram.source, lap);
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
        let values = (start..end).zip(values.iter().copied());
        install(&mut self.stamps, &mut self.store, values, lap);
        self.note_lap(owner, lap);
    }

    /// As [`install`](Self::install), for places in the list of what is read of `owner`. Panics unless that is packed and has those places.
    pub fn install_packed(&mut self, owner: NodeId, place: usize, values: &[f64], lap: Lap) {
        let Reads::Packed(list) = &self.owners[usize::from(owner.0)].reads else {
            panic!("all of {owner}'s elements are read");
        };
        let indices = list[place..place + values.len()].iter();
        let values = indices
            .map(|&index| index as usize)
            .zip(values.iter().copied());
        install(&mut self.stamps, &mut self.store, values, lap);
        self.note_lap(owner, lap);
    }

    /// Writes own elements without sending them. Panics unless all of them are this node's.
    pub fn write(&mut self, start: usize, values: &[f64], lap: Lap) {
        self.install(self.me, start, values, lap);
    }

    /// Gives all own elements the stamp `lap`, without sending them.
    pub fn stamp_own(&mut self, lap: Lap) {
        let own = self.own();
        self.stamps[own].fill(lap.get());
        self.note_lap(self.me, lap);
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
        self.store.set_lap(usize::from(owner.0), 0);
    }

    pub(crate) fn note_lap(&mut self, source: NodeId, lap: Lap) {
        let node = usize::from(source.0);
        if Lap::new(self.store.lap(node)).is_none_or(|held| lap.is_newer_than(held)) {
            self.store.set_lap(node, lap.get());
        }
    }

    /// Newest lap of `source` of which anything arrived.
    pub fn lap(&self, source: NodeId) -> Option<Lap> {
        Lap::new(self.store.lap(usize::from(source.0)))
    }

    /// Oldest lap among the elements of `source` that are read here: all of them are at least this new. `None` while one has never arrived, or if there
    /// are none. Reads each of their stamps.
    pub fn oldest(&self, source: NodeId) -> Option<Lap> {
        let oldest = |mut stamps: &mut dyn Iterator<Item = u32>| {
            let first = Lap::new(stamps.next()?)?;
            (&mut stamps).try_fold(first, |oldest, stamp| {
                let lap = Lap::new(stamp)?;
                Some(if oldest.is_newer_than(lap) {
                    lap
                } else {
                    oldest
                })
            })
        };
        match self
            .owners
            .get(usize::from(source.0))
            .map(|owner| &owner.reads)
        {
            Some(Reads::Packed(list)) if source != self.me => {
                oldest(&mut list.iter().map(|&index| self.stamps[index as usize]))
            }
            _ => oldest(&mut self.stamps[self.owned_by(source)].iter().copied()),
        }
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

/// Writes values of a lap where no newer one is held.
fn install(
    stamps: &mut [u32],
    store: &mut impl Store,
    values: impl Iterator<Item = (usize, f64)>,
    lap: Lap,
) {
    renew(stamps, store, values, lap, |held| !held.is_newer_than(lap));
}

/// Writes values of a lap where that `replaces` the lap of the value held; returns the smallest range that holds all changes.
fn renew(
    stamps: &mut [u32],
    store: &mut impl Store,
    values: impl Iterator<Item = (usize, f64)>,
    lap: Lap,
    replaces: impl Fn(Lap) -> bool,
) -> Option<Range<usize>> {
    let mut changed: Option<Range<usize>> = None;
    for (index, value) in values {
        if Lap::new(stamps[index]).is_none_or(&replaces) {
            stamps[index] = lap.get();
            store.set(index, value);
            changed = Some(changed.map_or(index, |changed| changed.start)..index + 1);
        }
    }
    changed
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
