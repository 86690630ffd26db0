//! All-gather by hosts: leaders send each other the parts of their hosts' members together, so that one message crosses between two hosts where each
//! pair of members would exchange one.
//!
//! Results lie where the flat plans put them. Parts that cross together lie together: in the program's memory where ranks of the host are
//! neighbours, otherwise in scratch. No receive waits for another step, so that leaders never wait for each other in a circle.

use super::{Hosts, Part};
use crate::plan::gather::blocks;
use crate::plan::{Action, Buffer, Place, Plan};

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

#[cfg(test)]
mod tests;
