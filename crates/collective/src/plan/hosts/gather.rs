//! Scatter, gather, all-gather and all-to-all by hosts: a leader sends the parts of its host's members together, so that one message crosses
//! between two hosts where each pair of members would exchange one.
//!
//! Results lie where the flat plans put them. Parts that cross together lie together: in the program's memory where ranks of the host are
//! neighbours, otherwise in scratch. No receive waits for another step, so that leaders never wait for each other in a circle.

use super::{Hosts, Part};
use crate::plan::gather::blocks;
use crate::plan::{Action, Buffer, Place, Plan};

/// `count` parts of `len` bytes each, from part `first` on.
fn parts(buffer: Buffer, first: usize, count: usize, len: usize) -> Place {
    Place {
        buffer,
        start: first * len,
        len: count * len,
    }
}

/// Where these parts, at least one, lie together: as they are, if each follows the one before, or in scratch, then with pairs of where each part
/// lies (there, in scratch).
fn together(plan: &mut Plan, parts: &[Place]) -> (Place, Vec<(Place, Place)>) {
    let len = parts.iter().map(|part| part.len).sum();
    let follows = |two: &[Place]| two[0].start + two[0].len == two[1].start;
    if parts.windows(2).all(follows) {
        return (Place { len, ..parts[0] }, Vec::new());
    }
    let mut end = plan.scratch_bytes;
    let all = Place::of(Buffer::Scratch, end..end + len);
    let pair = |part: &Place| {
        let start = end;
        end += part.len;
        (*part, Place::of(Buffer::Scratch, start..end))
    };
    let pairs = parts.iter().map(pair).collect();
    plan.scratch_bytes += len;
    (all, pairs)
}

/// Members send their parts of `len` bytes to their leaders, and each leader those of its host to the root.
pub(crate) fn gather_hosts(hosts: &Hosts, rank: usize, root: usize, len: usize) -> Plan {
    let part = Part::new(hosts, rank, root);
    let here = part.ranks.len();
    let mut plan = Plan::default();
    let own = Place::whole(Buffer::Input, len);
    if rank == root {
        let mut moves = Vec::new();
        for host in part.other_hosts() {
            let ranks = hosts.ranks[host].iter();
            let there: Vec<Place> = ranks
                .map(|rank| parts(Buffer::Output, *rank, 1, len))
                .collect();
            let (place, pairs) = together(&mut plan, &there);
            plan.add(Action::Store, part.leaders[host], 0, place);
            moves.extend(pairs.into_iter().map(|(there, scratch)| (scratch, there)));
        }
        for from in part.neighbours() {
            plan.add(Action::Store, from, 0, parts(Buffer::Output, from, 1, len));
        }
        plan.copy(own, parts(Buffer::Output, rank, 1, len));
        plan.move_after_all(rank, moves);
        return plan;
    }
    if !part.leads() || here == 1 {
        let to = if part.leads() { root } else { part.lead() };
        plan.add(Action::Send, to, 0, own);
        return plan;
    }
    let all = parts(Buffer::Scratch, 0, here, len);
    plan.scratch_bytes = all.len;
    plan.copy(own, parts(Buffer::Scratch, part.place, 1, len));
    for (place, &from) in part.ranks.iter().enumerate() {
        if from != rank {
            plan.add(
                Action::Store,
                from,
                0,
                parts(Buffer::Scratch, place, 1, len),
            );
        }
    }
    let complete = plan.move_after_all(rank, []);
    let send = plan.add(Action::Send, root, 0, all);
    plan.after(send, [Some(complete), None]);
    plan
}

/// The root sends each leader the parts of its host, and each leader its members theirs, of `len` bytes each. Hosts of two members are no exception:
/// one message between hosts instead of two halves what the root sends, for one more within a host, which costs less.
pub(crate) fn scatter_hosts(hosts: &Hosts, rank: usize, root: usize, len: usize) -> Plan {
    let part = Part::new(hosts, rank, root);
    let here = part.ranks.len();
    let mut plan = Plan::default();
    let own = Place::whole(Buffer::Output, len);
    if rank == root {
        for host in part.other_hosts() {
            let ranks = hosts.ranks[host].iter();
            let there: Vec<Place> = ranks
                .map(|rank| parts(Buffer::Input, *rank, 1, len))
                .collect();
            let (place, pairs) = together(&mut plan, &there);
            plan.copies.extend(pairs);
            plan.add(Action::Send, part.leaders[host], 0, place);
        }
        for to in part.neighbours() {
            plan.add(Action::Send, to, 0, parts(Buffer::Input, to, 1, len));
        }
        plan.copy(parts(Buffer::Input, rank, 1, len), own);
        return plan;
    }
    if !part.leads() || here == 1 {
        let from = if part.leads() { root } else { part.lead() };
        plan.add(Action::Store, from, 0, own);
        return plan;
    }
    let all = parts(Buffer::Scratch, 0, here, len);
    plan.scratch_bytes = all.len;
    let came = plan.add(Action::Store, root, 0, all);
    plan.move_after_all(rank, [(parts(Buffer::Scratch, part.place, 1, len), own)]);
    for (place, &to) in part.ranks.iter().enumerate() {
        if to != rank {
            let send = plan.add(Action::Send, to, 0, parts(Buffer::Scratch, place, 1, len));
            plan.after(send, [Some(came), None]);
        }
    }
    plan
}

/// Members of a host send each other their parts. The leaders send each other those of their hosts, and pass on to their members what comes, as it
/// comes. `ring`: each leader sends the next one what came from the one before, otherwise to each other one.
pub(crate) fn all_gather_hosts(hosts: &Hosts, rank: usize, lens: &[usize], ring: bool) -> Plan {
    let part = Part::new(hosts, rank, 0);
    let mut plan = Plan::streaming();
    let in_output = hosts.are_ordered();
    let buffer = if in_output {
        Buffer::Output
    } else {
        Buffer::Scratch
    };
    let mut end = 0;
    // Parts by rank, and those of each host together.
    let mut places = vec![Place::whole(buffer, 0); lens.len()];
    let mut of_hosts = Vec::with_capacity(hosts.ranks.len());
    for ranks in &hosts.ranks {
        let start = end;
        for &rank in ranks {
            places[rank] = Place::of(buffer, end..end + lens[rank]);
            end += lens[rank];
        }
        of_hosts.push(Place::of(buffer, start..end));
    }
    plan.scratch_bytes = if in_output { 0 } else { end };
    let own = Place::whole(Buffer::Input, lens[rank]);
    plan.copy(own, places[rank]);
    for from in part.neighbours() {
        plan.add(Action::Store, from, 0, places[from]);
    }
    let complete = plan.move_after_all(rank, []);
    for to in part.neighbours() {
        plan.add(Action::Send, to, 0, own);
    }
    if part.leads() {
        exchange(&mut plan, &part, &of_hosts, complete, ring);
    } else {
        for host in part.other_hosts() {
            plan.add(Action::Store, part.lead(), 1 + host, of_hosts[host]);
        }
    }
    if !in_output {
        let outputs = blocks(lens).into_iter();
        let outputs = outputs.map(|range| Place::of(Buffer::Output, range));
        plan.move_after_all(rank, places.into_iter().zip(outputs));
    }
    plan
}

/// A leader's transfers of an all-gather, after step `complete`. Tags count hosts from 1 on.
fn exchange(plan: &mut Plan, part: &Part<'_>, of_hosts: &[Place], complete: u32, ring: bool) {
    let count = of_hosts.len();
    let back = |distance: usize| (part.host + count - distance) % count;
    let mut last = None;
    for distance in 1..count {
        let comes = back(distance);
        let (to, goes, from) = if ring {
            (back(count - 1), back(distance - 1), back(1))
        } else {
            (back(count - distance), part.host, comes)
        };
        let send = plan.add(Action::Send, part.leaders[to], 1 + goes, of_hosts[goes]);
        if goes == part.host {
            plan.after(send, [Some(complete), None]);
        } else {
            plan.follow(send, last);
        }
        let receive = plan.add(
            Action::Store,
            part.leaders[from],
            1 + comes,
            of_hosts[comes],
        );
        for to in part.neighbours() {
            let pass = plan.add(Action::Send, to, 1 + comes, of_hosts[comes]);
            plan.follow(pass, Some(receive));
        }
        last = Some(receive);
    }
}

/// Members of a host send each other their parts of `len` bytes, and those for other hosts to their leader in one message; the leaders send each
/// other what goes from host to host, and their members what came for them, again in one message.
pub(crate) fn all_to_all_hosts(hosts: &Hosts, rank: usize, len: usize) -> Plan {
    let part = Part::new(hosts, rank, 0);
    // The ranks of the other hosts, in the order in which members and leader tell each other of them.
    let ranks = part.other_hosts().map(|host| &hosts.ranks[host]);
    let far: Vec<usize> = ranks.flatten().copied().collect();
    let mut plan = Plan::default();
    if part.leads() {
        pass_on(&mut plan, &part, &far, len);
    } else {
        let (goes, comes) = (0, far.len());
        plan.scratch_bytes = 2 * far.len() * len;
        for (place, &to) in far.iter().enumerate() {
            let scratch = parts(Buffer::Scratch, goes + place, 1, len);
            plan.copy(parts(Buffer::Input, to, 1, len), scratch);
        }
        for (action, first) in [(Action::Send, goes), (Action::Store, comes)] {
            let all = parts(Buffer::Scratch, first, far.len(), len);
            plan.add(action, part.lead(), 1, all);
        }
        let moves = far.iter().enumerate().map(|(place, from)| {
            let scratch = parts(Buffer::Scratch, comes + place, 1, len);
            (scratch, parts(Buffer::Output, *from, 1, len))
        });
        plan.move_after_all(rank, moves);
    }
    let own = |buffer| parts(buffer, rank, 1, len);
    plan.copy(own(Buffer::Input), own(Buffer::Output));
    for other in part.neighbours() {
        for (action, buffer) in [
            (Action::Send, Buffer::Input),
            (Action::Store, Buffer::Output),
        ] {
            plan.add(action, other, 0, parts(buffer, other, 1, len));
        }
    }
    plan
}

/// A leader's part of an all-to-all between hosts. Tag 1.
///
/// Its scratch has three thirds: by member of the host, in rows of all ranks of `far`, first what goes and then what came; by host, what goes;
/// by host, what comes. What two hosts exchange is by source, then by destination.
fn pass_on(plan: &mut Plan, part: &Part<'_>, far: &[usize], len: usize) {
    let (hosts, here, row) = (part.hosts, part.ranks.len(), far.len());
    let third = here * row;
    plan.scratch_bytes = 3 * third * len;
    let scratch = |first: usize, count: usize| parts(Buffer::Scratch, first, count, len);
    for (column, &to) in far.iter().enumerate() {
        let goes = scratch(part.place * row + column, 1);
        plan.copy(parts(Buffer::Input, to, 1, len), goes);
    }
    let members = part.ranks.iter().copied().enumerate();
    let others: Vec<(usize, usize)> = members.filter(|(place, _)| *place != part.place).collect();
    for &(place, from) in &others {
        plan.add(Action::Store, from, 1, scratch(place * row, row));
    }
    // Leader of each other host, its first column, and its number of members.
    let (mut spans, mut column) = (Vec::new(), 0);
    for host in part.other_hosts() {
        let there = hosts.ranks[host].len();
        spans.push((part.leaders[host], column, there));
        column += there;
    }
    let (mut packed, mut unpacked) = (Vec::new(), Vec::new());
    for &(_, column, there) in &spans {
        for place in 0..here {
            packed.push((
                scratch(place * row + column, there),
                scratch(third + here * column + place * there, there),
            ));
        }
        for (from, &source) in far[column..column + there].iter().enumerate() {
            for place in 0..here {
                let came = scratch(2 * third + here * (column + from) + place, 1);
                let goes = if place == part.place {
                    parts(Buffer::Output, source, 1, len)
                } else {
                    scratch(place * row + column + from, 1)
                };
                unpacked.push((came, goes));
            }
        }
    }
    let rank = part.ranks[part.place];
    let packed = plan.move_after_all(rank, packed);
    for &(leader, column, there) in &spans {
        let comes = scratch(2 * third + here * column, here * there);
        plan.add(Action::Store, leader, 1, comes);
    }
    let unpacked = plan.move_after_all(rank, unpacked);
    for &(leader, column, there) in &spans {
        let goes = scratch(third + here * column, here * there);
        let send = plan.add(Action::Send, leader, 1, goes);
        plan.after(send, [Some(packed), None]);
    }
    for (place, to) in others {
        let send = plan.add(Action::Send, to, 1, scratch(place * row, row));
        plan.after(send, [Some(unpacked), None]);
    }
}

#[cfg(test)]
mod tests;
