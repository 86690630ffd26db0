//! Barrier, and broadcasts from member to member. Ranks are turned so that the root is 0.

use super::{Action, Buffer, Place, Plan};

/// In round k each tells the one 2ᵏ behind it: after ⌈log₂ n⌉ rounds everyone has heard of all, directly or not.
pub(crate) fn barrier(rank: usize, size: usize) -> Plan {
    let mut plan = Plan::default();
    let (mut heard, mut distance, mut round) = (None, 1, 0);
    while distance < size {
        let nothing = Place::whole(Buffer::Output, 0);
        let send = plan.add(Action::Send, (rank + distance) % size, round, nothing);
        plan.after(send, [heard, None]);
        let from = (rank + size - distance) % size;
        let receive = plan.add(Action::Store, from, round, nothing);
        // A round is over when all before it are: its message tells of all that its sender had heard.
        plan.after(receive, [heard, None]);
        heard = Some(receive);
        (distance, round) = (2 * distance, round + 1);
    }
    plan
}

/// The root sends to each: one step for all, and the root pays for each.
pub(crate) fn broadcast_flat(rank: usize, size: usize, root: usize, len: usize) -> Plan {
    let mut plan = Plan::default();
    let data = Place::whole(Buffer::Output, len);
    if rank == root {
        for turned in 1..size {
            plan.add(Action::Send, (root + turned) % size, 0, data);
        }
    } else {
        plan.add(Action::Store, root, 0, data);
    }
    plan
}

/// Binomial: who has it sends it on, twice as many after each round; bytes are passed on as they come.
pub(crate) fn broadcast_tree(rank: usize, size: usize, root: usize, len: usize) -> Plan {
    let mut plan = Plan::streaming();
    broadcast_tree_into(&mut plan, rank, size, root, len, 0);
    plan
}

/// The same, after a plan that ends with all of it in the root's output; `tag` is free in it.
pub(super) fn broadcast_tree_into(
    plan: &mut Plan,
    rank: usize,
    size: usize,
    root: usize,
    len: usize,
    tag: usize,
) -> Option<u32> {
    let turned = (rank + size - root) % size;
    let data = Place::whole(Buffer::Output, len);
    let absolute = |turned: usize| (turned + root) % size;
    // The lowest bit set leads to the parent; the root has them all clear.
    let lowest = if turned == 0 {
        size.next_power_of_two()
    } else {
        1 << turned.trailing_zeros()
    };
    let receive = (turned != 0).then(|| {
        let parent = absolute(turned - lowest);
        plan.add(Action::Store, parent, tag, data)
    });
    let mut distance = lowest / 2;
    while distance > 0 {
        if turned + distance < size {
            let send = plan.add(Action::Send, absolute(turned + distance), tag, data);
            plan.follow(send, receive);
        }
        distance /= 2;
    }
    receive
}

/// Each passes on to the next what comes, as it comes: long messages take as long as one transfer, whatever the size of the group.
pub(crate) fn broadcast_chain(rank: usize, size: usize, root: usize, len: usize) -> Plan {
    let mut plan = Plan::streaming();
    let turned = (rank + size - root) % size;
    let data = Place::whole(Buffer::Output, len);
    let receive = (turned > 0).then(|| plan.add(Action::Store, (rank + size - 1) % size, 0, data));
    if turned + 1 < size {
        let send = plan.add(Action::Send, (rank + 1) % size, 0, data);
        plan.follow(send, receive);
    }
    plan
}
