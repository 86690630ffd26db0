//! Scatter, gather, all-gather and all-to-all. Lengths are in bytes, one per rank; blocks follow each other.

use std::ops::Range;

use super::{Action, Buffer, Place, Plan};

/// Transfers of an all-to-all that a member receives at once: enough to fill its link, few enough that all take part evenly.
const INCOMING_AT_ONCE: usize = 8;

/// Ranges of the blocks.
pub(super) fn blocks(lens: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let place = |len: &usize| {
        start += len;
        start - len..start
    };
    lens.iter().map(place).collect()
}

/// The root sends each member its block. Others know their own length only.
pub(crate) fn scatter(rank: usize, size: usize, root: usize, lens: &[usize], own: usize) -> Plan {
    let mut plan = Plan::default();
    if rank != root {
        plan.add(Action::Store, root, 0, Place::whole(Buffer::Output, own));
        return plan;
    }
    let blocks = blocks(lens);
    for distance in 1..size {
        let to = (root + distance) % size;
        plan.add(
            Action::Send,
            to,
            0,
            Place::of(Buffer::Input, blocks[to].clone()),
        );
    }
    plan.copy(
        Place::of(Buffer::Input, blocks[root].clone()),
        Place::whole(Buffer::Output, own),
    );
    plan
}

/// Each member sends its block to the root.
pub(crate) fn gather(rank: usize, size: usize, root: usize, lens: &[usize], own: usize) -> Plan {
    let mut plan = Plan::default();
    if rank != root {
        plan.add(Action::Send, root, 0, Place::whole(Buffer::Input, own));
        return plan;
    }
    let blocks = blocks(lens);
    for distance in 1..size {
        let from = (root + distance) % size;
        plan.add(
            Action::Store,
            from,
            0,
            Place::of(Buffer::Output, blocks[from].clone()),
        );
    }
    plan.copy(
        Place::whole(Buffer::Input, own),
        Place::of(Buffer::Output, blocks[root].clone()),
    );
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
        if let Some(earlier) = receives.len().checked_sub(INCOMING_AT_ONCE) {
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
