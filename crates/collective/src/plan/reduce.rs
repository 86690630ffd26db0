//! Reduce and all-reduce.
//!
//! Orders of folding, the same in each run: trees, chains, doubling and halving join neighbouring ranges of ranks, lower ranks on the left, beginning
//! with the root unless the operation is ordered (then with rank 0). The ring folds piece i in the order of ranks i+1, i+2 … i, and is for
//! commutative operations only.

use super::tree::broadcast_tree_into;
use super::{Action, Buffer, Place, Plan, piece};

const RIGHT: Action = Action::Fold {
    incoming_left: false,
};

/// The place in which a member of a reduction folds: the output on the root, scratch on others.
pub(super) fn gathered(plan: &mut Plan, is_root: bool, len: usize) -> Place {
    let held = if is_root {
        Place::whole(Buffer::Output, len)
    } else {
        plan.scratch_bytes = len;
        Place::whole(Buffer::Scratch, len)
    };
    plan.copy(Place::whole(Buffer::Input, len), held);
    held
}

/// Sends the result of an ordered reduction from rank 0 to the root. Tag 1.
fn hand_to_root(plan: &mut Plan, rank: usize, root: usize, len: usize, last: Option<u32>) {
    if root == 0 {
        return;
    }
    if rank == 0 {
        let send = plan.add(Action::Send, root, 1, Place::whole(Buffer::Scratch, len));
        plan.follow(send, last);
    } else if rank == root {
        plan.add(Action::Store, 0, 1, Place::whole(Buffer::Output, len));
    }
}

/// Binomial tree: pairs of neighbours, then pairs of pairs. As a chain: from the last rank down to the first, each folding as bytes arrive, so that a
/// long reduction takes as long as one transfer.
pub(crate) fn reduce_tree(
    rank: usize,
    size: usize,
    root: usize,
    len: usize,
    commutative: bool,
    chain: bool,
) -> Plan {
    let mut plan = Plan::streaming();
    let start = if commutative { root } else { 0 };
    let relative = (rank + size - start) % size;
    let leaf = relative + 1 == size || (!chain && relative % 2 == 1);
    let held = if leaf && relative != 0 {
        Place::whole(Buffer::Input, len)
    } else {
        gathered(&mut plan, rank == root && relative == 0, len)
    };
    let last = if chain {
        reduce_chain_into(&mut plan, relative, size, start, held)
    } else {
        reduce_tree_into(&mut plan, relative, size, start, held)
    };
    if !commutative {
        hand_to_root(&mut plan, rank, root, len, last);
    }
    plan
}

/// Folds into `held` what comes from below, and sends it up. Tag 0. Returns the last receive.
pub(super) fn reduce_tree_into(
    plan: &mut Plan,
    relative: usize,
    size: usize,
    start: usize,
    held: Place,
) -> Option<u32> {
    let absolute = |relative: usize| (relative + start) % size;
    let (mut last, mut distance) = (None, 1);
    while distance < size {
        if relative & distance != 0 {
            let send = plan.add(Action::Send, absolute(relative - distance), 0, held);
            plan.follow(send, last);
            break;
        }
        if relative + distance < size {
            let receive = plan.add(RIGHT, absolute(relative + distance), 0, held);
            plan.after(receive, [last, None]);
            last = Some(receive);
        }
        distance *= 2;
    }
    last
}

/// The same along a chain.
fn reduce_chain_into(
    plan: &mut Plan,
    relative: usize,
    size: usize,
    start: usize,
    held: Place,
) -> Option<u32> {
    let absolute = |relative: usize| (relative + start) % size;
    let last = (relative + 1 < size).then(|| plan.add(RIGHT, absolute(relative + 1), 0, held));
    if relative > 0 {
        let send = plan.add(Action::Send, absolute(relative - 1), 0, held);
        plan.follow(send, last);
    }
    last
}

/// Up a tree to rank 0 and down again, in place, as a chain or a binomial tree. For any operation.
pub(crate) fn all_reduce_tree(rank: usize, size: usize, len: usize, chain: bool) -> Plan {
    let mut plan = Plan::streaming();
    let held = Place::whole(Buffer::Output, len);
    if !chain {
        let up = reduce_tree_into(&mut plan, rank, size, 0, held);
        let first = plan.steps.len();
        broadcast_tree_into(&mut plan, rank, size, 0, len, 1);
        if rank == 0 {
            for step in first..plan.steps.len() {
                plan.follow(step as u32, up);
            }
        }
        return plan;
    }
    let mut down = reduce_chain_into(&mut plan, rank, size, 0, held);
    if rank > 0 {
        down = Some(plan.add(Action::Store, rank - 1, 1, held));
    }
    if rank + 1 < size {
        let send = plan.add(Action::Send, rank + 1, 1, held);
        plan.follow(send, down);
    }
    plan
}

/// A member's role if a power of two of the members act for all.
struct Paired {
    acting: usize,
    /// The receive from the other one of a pair.
    joined: Option<u32>,
    rounds: u32,
    /// Number of pairs.
    extra: usize,
}

/// If the size is no power of two, the first ranks form pairs, and the even one acts for both. `None`: another member acts for this one. Tags 0 and
/// 1.
fn pair_up(plan: &mut Plan, rank: usize, size: usize, len: usize) -> Option<Paired> {
    let held = Place::whole(Buffer::Output, len);
    let rounds = size.ilog2();
    let extra = size - (1 << rounds);
    let (acting, joined) = if rank >= 2 * extra {
        (rank - extra, None)
    } else if rank % 2 == 1 {
        let send = plan.add(Action::Send, rank - 1, 0, held);
        let result = plan.add(Action::Store, rank - 1, 1, held);
        plan.after(result, [Some(send), None]);
        return None;
    } else {
        (rank / 2, Some(plan.add(RIGHT, rank + 1, 0, held)))
    };
    Some(Paired {
        acting,
        joined,
        rounds,
        extra,
    })
}

/// The rank of an acting member.
fn unpaired(acting: usize, extra: usize) -> usize {
    if acting < extra {
        2 * acting
    } else {
        acting + extra
    }
}

/// Sends the result to the other one of a pair.
fn hand_back(plan: &mut Plan, rank: usize, extra: usize, len: usize, after: [Option<u32>; 2]) {
    if rank < 2 * extra {
        let held = Place::whole(Buffer::Output, len);
        let result = plan.add(Action::Send, rank + 1, 1, held);
        plan.after(result, after);
    }
}

/// In each round a member exchanges all with one twice as far away: ⌈log₂ n⌉ rounds, two more if n is no power of two. For any operation, on messages
/// so small that a receiver that is not ready keeps them.
pub(crate) fn all_reduce_doubling(rank: usize, size: usize, len: usize) -> Plan {
    let mut plan = Plan::default();
    let held = Place::whole(Buffer::Output, len);
    let Some(Paired {
        acting,
        joined: mut last,
        rounds,
        extra,
    }) = pair_up(&mut plan, rank, size, len)
    else {
        return plan;
    };
    for round in 0..rounds {
        let partner = acting ^ (1 << round);
        let (to, tag) = (unpaired(partner, extra), 2 + round as usize);
        let send = plan.add(Action::Send, to, tag, held);
        plan.after(send, [last, None]);
        let incoming_left = partner < acting;
        let receive = plan.add(Action::Fold { incoming_left }, to, tag, held);
        plan.after(receive, [last, Some(send)]);
        last = Some(receive);
    }
    hand_back(&mut plan, rank, extra, len, [last, None]);
    plan
}

/// In each round halves of the rest go to partners twice as far away, until each member has one folded piece; then back the same way. Every member
/// sends and receives 2(n−1)/n of the whole in 2·log₂ n messages, and for each member above a power of two there are two more messages of the whole.
/// For any operation.
pub(crate) fn all_reduce_halving(rank: usize, size: usize, len: usize, unit: usize) -> Plan {
    let mut plan = Plan::default();
    let Some(Paired {
        acting,
        joined: mut last,
        rounds,
        extra,
    }) = pair_up(&mut plan, rank, size, len)
    else {
        return plan;
    };
    let pieces = 1 << rounds;
    let place = |first: usize, count: usize| {
        let start = piece(len, unit, pieces, first).start;
        let end = piece(len, unit, pieces, first + count - 1).end;
        Place::of(Buffer::Output, start..end)
    };
    // For each round: our half, the partner's half, and the number of the send.
    let mut halves = Vec::with_capacity(rounds as usize);
    let (mut first, mut count) = (0, pieces);
    for round in 0..rounds {
        let (partner, tag) = (acting ^ (1 << round), 2 + round as usize);
        count /= 2;
        let lower = partner > acting;
        let (ours, theirs) = if lower {
            (first, first + count)
        } else {
            (first + count, first)
        };
        let to = unpaired(partner, extra);
        let send = plan.add(Action::Send, to, tag, place(theirs, count));
        plan.after(send, [last, None]);
        let incoming_left = !lower;
        let receive = plan.add(Action::Fold { incoming_left }, to, tag, place(ours, count));
        plan.after(receive, [last, None]);
        last = Some(receive);
        halves.push((place(ours, count), place(theirs, count), send));
        first = ours;
    }
    let mut sent = None;
    for (round, (ours, theirs, left)) in halves.into_iter().enumerate().rev() {
        let (partner, tag) = (acting ^ (1 << round), 2 + rounds as usize + round);
        let to = unpaired(partner, extra);
        let send = plan.add(Action::Send, to, tag, ours);
        // The send before waited for all earlier steps except the last.
        plan.after(send, [last, sent]);
        let receive = plan.add(Action::Store, to, tag, theirs);
        plan.after(receive, [Some(left), None]);
        (last, sent) = (Some(receive), Some(send));
    }
    hand_back(&mut plan, rank, extra, len, [last, sent]);
    plan
}

/// Pieces go round twice: folded the first time, distributed the second. Every member sends and receives 2(n−1)/n of the whole. For commutative
/// operations.
pub(crate) fn all_reduce_ring(rank: usize, size: usize, len: usize, unit: usize) -> Plan {
    let mut plan = Plan::default();
    let place = |index: usize| Place::of(Buffer::Output, piece(len, unit, size, index % size));
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let mut last = None;
    for round in 0..2 * (size - 1) {
        // Counted so that after size − 1 rounds the member has its own piece complete.
        let send = plan.add(
            Action::Send,
            next,
            round,
            place(rank + 2 * size - 1 - round),
        );
        plan.follow(send, last);
        let action = if round < size - 1 {
            Action::Fold {
                incoming_left: true,
            }
        } else {
            Action::Store
        };
        let receive = plan.add(action, previous, round, place(rank + 2 * size - 2 - round));
        last = Some(receive);
    }
    plan
}
