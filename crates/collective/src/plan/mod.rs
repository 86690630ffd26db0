//! What each member does in an operation: transfers, their order, and where they read and write. Pure functions of rank, size
//! and lengths.
//!
//! Called by `api`; carried out by `operation`.
//!
//! Invariants: the plans of all members fit together, each send has its receive of the same length and tag; they end even if
//! every send waits until its receiver is ready for it.

mod gather;
mod reduce;
mod tree;

pub(crate) use gather::{all_gather_direct, all_gather_ring, all_to_all, gather, scatter};
pub(crate) use reduce::{
    all_reduce_doubling, all_reduce_halving, all_reduce_ring, all_reduce_tree, reduce_chain,
    reduce_in_place, reduce_tree,
};
pub(crate) use tree::{barrier, broadcast_chain, broadcast_flat, broadcast_tree};

/// Which of an operation's memories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// What the member gives. Never written.
    Input,
    /// What it gets.
    Output,
    /// The operation's own.
    Scratch,
}

/// A stretch of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) buffer: Buffer,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// What a transfer does here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Send,
    /// What comes in is written.
    Store,
    /// What comes in is folded into what is there.
    Fold {
        /// It stands left of it.
        incoming_left: bool,
    },
}

/// One transfer, as one of its two sides sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) action: Action,
    /// The other side's rank.
    pub(crate) peer: usize,
    /// Unique between the two sides in each direction.
    pub(crate) tag: u16,
    pub(crate) place: Place,
    /// Steps that must be done before this one begins.
    pub(crate) after: [Option<u32>; 2],
    /// A receive whose bytes this send passes on as they come.
    pub(crate) follows: Option<u32>,
}

/// One member's part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Done before anything else: from, to.
    pub(crate) copies: Vec<(Place, Place)>,
    pub(crate) scratch_bytes: usize,
    /// Some member passes on what comes as it comes, and the next one waits for that.
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
    /// One whose members pass on what comes.
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
}

/// Piece `index` of `len` bytes cut into `count` of whole units, the first ones longer where it does not come out even.
pub(crate) fn piece(len: usize, unit: usize, count: usize, index: usize) -> std::ops::Range<usize> {
    let units = len / unit;
    let at = |index: usize| (units / count * index + (units % count).min(index)) * unit;
    at(index)..at(index + 1)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
