//! Scatter, gather, all-gather and all-to-all. Lengths are in bytes, one per rank; blocks follow each other.

use std::ops::Range;

use super::{Action, Buffer, Place, Plan};
use crate::tuning::TUNING;

/// Ranges of the blocks.
pub(super) fn blocks(lens: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let place = |len: &usize| {
        start += len;
        start - len..start
    };
    lens.iter().map(place).collect()
}

/// Each member sends its block to the root, or, unless it `gathers`, gets it from there. Others than the root know their own length only.
pub(crate) fn rooted(
    gathers: bool,
    (rank, size, root): (usize, usize, usize),
    lens: &[usize],
    own: usize,
) -> Plan {
    let mut plan = Plan::default();
    let (at_root, elsewhere, all, one) = if gathers {
        (Action::Store, Action::Send, Buffer::Output, Buffer::Input)
    } else {
        (Action::Send, Action::Store, Buffer::Input, Buffer::Output)
    };
    let own = Place::whole(one, own);
    if rank != root {
        plan.add(elsewhere, root, 0, own);
        return plan;
    }
    let blocks = blocks(lens);
    for distance in 1..size {
        let other = (root + distance) % size;
        let block = Place::of(all, blocks[other].clone());
        plan.add(at_root, other, 0, block);
    }
    let block = Place::of(all, blocks[root].clone());
    if gathers {
        plan.copy(own, block);
    } else {
        plan.copy(block, own);
    }
    plan
}

/// Each member sends its block to each other one, in one step.
pub(crate) fn all_gather_direct(rank: usize, size: usize, lens: &[usize]) -> Plan {
    let mut plan = Plan::default();
    let blocks = blocks(lens);
    let own = Place::whole(Buffer::Input, lens[rank]);
    for distance in 1..size {
        plan.add(Action::Send, (rank + distance) % size, 0, own);
        let from = (rank + size - distance) % size;
        plan.add(
            Action::Store,
            from,
            0,
            Place::of(Buffer::Output, blocks[from].clone()),
        );
    }
    plan.copy(own, Place::of(Buffer::Output, blocks[rank].clone()));
    plan
}

/// Each member forwards to the next what came from the one before: every link carries every block once.
pub(crate) fn all_gather_ring(rank: usize, size: usize, lens: &[usize]) -> Plan {
    let mut plan = Plan::default();
    let blocks = blocks(lens);
    let place = |rank: usize| Place::of(Buffer::Output, blocks[rank].clone());
    plan.copy(Place::whole(Buffer::Input, lens[rank]), place(rank));
    let mut last = None;
    for round in 0..size.saturating_sub(1) {
        let goes = (rank + size - round) % size;
        let send = plan.add(Action::Send, (rank + 1) % size, round, place(goes));
        plan.follow(send, last);
        let comes = (rank + size - round - 1) % size;
        last = Some(plan.add(Action::Store, (rank + size - 1) % size, round, place(comes)));
    }
    plan
}

/// Each member sends each other one a separate block.
pub(crate) fn all_to_all(rank: usize, size: usize, goes: &[usize], comes: &[usize]) -> Plan {
    let mut plan = Plan::default();
    let (outgoing, incoming) = (blocks(goes), blocks(comes));
    let mut receives = Vec::with_capacity(size);
    for distance in 1..size {
        let to = (rank + distance) % size;
        plan.add(
            Action::Send,
            to,
            0,
            Place::of(Buffer::Input, outgoing[to].clone()),
        );
        let from = (rank + size - distance) % size;
        let receive = plan.add(
            Action::Store,
            from,
            0,
            Place::of(Buffer::Output, incoming[from].clone()),
        );
        if let Some(earlier) = receives.len().checked_sub(TUNING.long.incoming_at_once) {
            plan.after(receive, [Some(receives[earlier]), None]);
        }
        receives.push(receive);
    }
    plan.copy(
        Place::of(Buffer::Input, outgoing[rank].clone()),
        Place::of(Buffer::Output, incoming[rank].clone()),
    );
    plan
}
