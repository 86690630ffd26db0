//! Barrier, and broadcasts from member to member. `relative` ranks are relative to the root.

use super::{Action, Buffer, Place, Plan};

/// In round k each member signals the one 2ᵏ behind it: after ⌈log₂ n⌉ rounds each has heard of all, directly or not.
pub(crate) fn barrier(rank: usize, size: usize) -> Plan {
    let mut plan = Plan::default();
    let (mut heard, mut distance, mut round) = (None, 1, 0);
    while distance < size {
        let nothing = Place::whole(Buffer::Output, 0);
        let send = plan.add(Action::Send, (rank + distance) % size, round, nothing);
        plan.after(send, [heard, None]);
        let from = (rank + size - distance) % size;
        let receive = plan.add(Action::Store, from, round, nothing);
        // A round ends after all before it: its message stands for all that its sender had heard of.
        plan.after(receive, [heard, None]);
        heard = Some(receive);
        (distance, round) = (2 * distance, round + 1);
    }
    plan
}

/// The root sends to each member: one step for all, but the root pays for each.
pub(crate) fn broadcast_flat(rank: usize, size: usize, root: usize, len: usize) -> Plan {
    let mut plan = Plan::default();
    let data = Place::whole(Buffer::Output, len);
    if rank == root {
        for relative in 1..size {
            plan.add(Action::Send, (root + relative) % size, 0, data);
        }
    } else {
        plan.add(Action::Store, root, 0, data);
    }
    plan
}

/// Binomial tree: members that have the data send it on, twice as many after each round; bytes are forwarded as they arrive.
pub(crate) fn broadcast_tree(rank: usize, size: usize, root: usize, len: usize) -> Plan {
    let mut plan = Plan::streaming();
    broadcast_tree_into(&mut plan, rank, size, root, len, 0);
    plan
}

/// As `broadcast_tree`, after a plan that ends with all data in the root's output; `tag` must be unused in it.
pub(super) fn broadcast_tree_into(
    plan: &mut Plan,
    rank: usize,
    size: usize,
    root: usize,
    len: usize,
    tag: usize,
) -> Option<u32> {
    let relative = (rank + size - root) % size;
    let data = Place::whole(Buffer::Output, len);
    let absolute = |relative: usize| (relative + root) % size;
    // The lowest set bit leads to the parent; the root has none.
    let lowest = if relative == 0 {
        size.next_power_of_two()
    } else {
        1 << relative.trailing_zeros()
    };
    let receive = (relative != 0).then(|| {
        let parent = absolute(relative - lowest);
        plan.add(Action::Store, parent, tag, data)
    });
    let mut distance = lowest / 2;
    while distance > 0 {
        if relative + distance < size {
            let send = plan.add(Action::Send, absolute(relative + distance), tag, data);
            plan.follow(send, receive);
        }
        distance /= 2;
    }
    receive
}

/// Each member forwards to the next as bytes arrive: a long message takes as long as one transfer, for any size of the group.
pub(crate) fn broadcast_chain(rank: usize, size: usize, root: usize, len: usize) -> Plan {
    let mut plan = Plan::streaming();
    let relative = (rank + size - root) % size;
    let data = Place::whole(Buffer::Output, len);
    let receive =
        (relative > 0).then(|| plan.add(Action::Store, (rank + size - 1) % size, 0, data));
    if relative + 1 < size {
        let send = plan.add(Action::Send, (rank + 1) % size, 0, data);
        plan.follow(send, receive);
    }
    plan
}
