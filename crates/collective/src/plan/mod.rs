//! Plans: the transfers of each member in an operation, their order, and their places in memory. Pure functions of rank, size and lengths.
//!
//! Made by `api`; carried out by `operation`.
//!
//! Invariants: the plans of all members fit together, each send having its receive of the same length and tag; they end even if every send waits
//! until its receiver is ready.

mod gather;
mod hosts;
mod reduce;
mod tree;

pub(crate) use gather::{all_gather_direct, all_gather_ring, all_to_all, rooted};
pub(crate) use hosts::{
    Hosts, all_gather_hosts, all_reduce_hosts, barrier_hosts, broadcast_hosts, reduce_hosts,
};
pub(crate) use reduce::{
    all_reduce_doubling, all_reduce_halving, all_reduce_ring, all_reduce_tree, reduce_tree,
};
pub(crate) use tree::{barrier, broadcast_chain, broadcast_flat, broadcast_tree};

/// A memory of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// Memory that the member sends. Never written.
    Input,
    /// Memory that the member receives into.
    Output,
    /// Memory of the operation itself.
    Scratch,
}

/// A range of bytes in a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) buffer: Buffer,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// What a step does on this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Send,
    /// Incoming bytes are written.
    Store,
    /// Incoming elements are folded into those in place.
    Fold {
        /// The incoming element is the left operand.
        incoming_left: bool,
    },
    /// No transfer: once all steps before it in the plan are done, these copies of `Plan::moves` are made.
    Move {
        first: u32,
        end: u32,
    },
}

impl Action {
    pub(crate) fn transfers(self) -> bool {
        matches!(self, Self::Send | Self::Store | Self::Fold { .. })
    }
}

/// One transfer, seen from one of its two sides, or a move within this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) action: Action,
    /// The other side's rank; this member's for a move.
    pub(crate) peer: usize,
    /// Number of the transfer, unique between the two sides in each direction.
    pub(crate) tag: u16,
    pub(crate) place: Place,
    /// Steps that must be done before this one begins.
    pub(crate) after: [Option<u32>; 2],
    /// The receive whose bytes this send forwards as they arrive.
    pub(crate) follows: Option<u32>,
}

/// The plan of one member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Copies (from, to) that are done before all steps.
    pub(crate) copies: Vec<(Place, Place)>,
    /// Copies (from, to) of the steps that move, out of input or scratch.
    pub(crate) moves: Vec<(Place, Place)>,
    pub(crate) scratch_bytes: usize,
    /// Some members forward bytes as they arrive, for which the next ones wait.
    pub(crate) streams: bool,
}

impl Place {
    pub(crate) fn whole(buffer: Buffer, len: usize) -> Self {
        Self {
            buffer,
            start: 0,
            len,
        }
    }

    pub(crate) fn of(buffer: Buffer, range: std::ops::Range<usize>) -> Self {
        Self {
            buffer,
            start: range.start,
            len: range.len(),
        }
    }
}

impl Plan {
    /// A plan whose members forward bytes as they arrive.
    fn streaming() -> Self {
        Self {
            streams: true,
            ..Self::default()
        }
    }

    /// Adds a transfer; returns its number.
    fn add(&mut self, action: Action, peer: usize, tag: usize, place: Place) -> u32 {
        self.steps.push(Step {
            action,
            peer,
            tag: tag as u16, // groups have fewer members than a tag has values
            place,
            after: [None; 2],
            follows: None,
        });
        (self.steps.len() - 1) as u32
    }

    fn after(&mut self, step: u32, earlier: [Option<u32>; 2]) {
        self.steps[step as usize].after = earlier;
    }

    fn follow(&mut self, step: u32, receive: Option<u32>) {
        self.steps[step as usize].follows = receive;
    }

    fn copy(&mut self, from: Place, to: Place) {
        self.copies.push((from, to));
    }

    /// Adds a step of member `rank` that makes these copies (from, to) when all steps so far are done; returns its number. Without copies it only
    /// waits for them.
    fn move_after_all(
        &mut self,
        rank: usize,
        moves: impl IntoIterator<Item = (Place, Place)>,
    ) -> u32 {
        let first = self.moves.len() as u32;
        self.moves.extend(moves);
        let end = self.moves.len() as u32;
        let nothing = Place::whole(Buffer::Output, 0);
        self.add(Action::Move { first, end }, rank, 0, nothing)
    }
}

/// Range of piece `index`, if `len` bytes are cut into `count` pieces of whole units; the first ones may be a unit longer.
pub(crate) fn piece(len: usize, unit: usize, count: usize, index: usize) -> std::ops::Range<usize> {
    let units = len / unit;
    let at = |index: usize| (units / count * index + (units % count).min(index)) * unit;
    at(index)..at(index + 1)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
