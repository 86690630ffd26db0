//! Operations of groups whose members share hosts: what can be done within a host is done there, and one member of each host, its leader, talks to
//! the leaders of the others.
//!
//! Folding joins neighbouring ranges of ranks if the members of each host have neighbouring ranks; otherwise these plans are for commutative
//! operations only.

mod gather;

pub(crate) use gather::all_gather_hosts;

use super::reduce::{all_reduce_doubling, all_reduce_halving, gathered, reduce_tree_into};
use super::tree::{barrier, broadcast_tree};
use super::{Action, Buffer, Place, Plan, Step};

/// Members of a group by host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// Ranks on each host, in order; hosts in the order of their first ranks.
    ranks: Vec<Vec<usize>>,
    /// Host of each rank, and its place there.
    places: Vec<(usize, usize)>,
}

impl Hosts {
    /// Of the host's number of each rank (`None`: a host of its own). `None`: all share one host, or no two share one.
    pub(crate) fn of(numbers: impl Iterator<Item = Option<u16>>) -> Option<Self> {
        let (mut known, mut hosts) = (
            Vec::new(),
            Self {
                ranks: Vec::new(),
                places: Vec::new(),
            },
        );
        for (rank, number) in numbers.enumerate() {
            let found = number.and_then(|_| known.iter().position(|other| *other == number));
            let host = found.unwrap_or(known.len());
            if found.is_none() {
                known.push(number);
                hosts.ranks.push(Vec::new());
            }
            hosts.places.push((host, hosts.ranks[host].len()));
            hosts.ranks[host].push(rank);
        }
        let count = hosts.ranks.len();
        (count > 1 && count < hosts.places.len()).then_some(hosts)
    }

    /// Whether the members of each host have neighbouring ranks.
    pub(crate) fn are_ordered(&self) -> bool {
        self.places.is_sorted()
    }

    /// The leaders in an operation with that root: it leads its host, the first rank each other.
    fn leaders(&self, root: usize) -> Vec<usize> {
        let mut leaders: Vec<usize> = self.ranks.iter().map(|ranks| ranks[0]).collect();
        leaders[self.places[root].0] = root;
        leaders
    }
}

/// This member's part in an operation with that root.
struct Part<'a> {
    hosts: &'a Hosts,
    /// Its host, and its place there.
    host: usize,
    place: usize,
    /// Ranks on its host, and the place of their leader.
    ranks: &'a [usize],
    leader: usize,
    leaders: Vec<usize>,
    root: usize,
}

impl<'a> Part<'a> {
    fn new(hosts: &'a Hosts, rank: usize, root: usize) -> Self {
        let (host, place) = hosts.places[rank];
        let leaders = hosts.leaders(root);
        Self {
            ranks: &hosts.ranks[host],
            leader: hosts.places[leaders[host]].1,
            hosts,
            host,
            place,
            leaders,
            root,
        }
    }

    fn leads(&self) -> bool {
        self.place == self.leader
    }

    /// Rank of its host's leader.
    fn lead(&self) -> usize {
        self.leaders[self.host]
    }

    /// Among the hosts, the one of the root.
    fn root_host(&self) -> usize {
        self.hosts.places[self.root].0
    }

    /// The other members of its host, from the next one on.
    fn neighbours(&self) -> impl Iterator<Item = usize> {
        let here = self.ranks.len();
        (1..here).map(move |distance| self.ranks[(self.place + distance) % here])
    }

    /// The other hosts, from the next one on.
    fn other_hosts(&self) -> impl Iterator<Item = usize> {
        let count = self.leaders.len();
        (1..count).map(move |distance| (self.host + distance) % count)
    }
}

impl Plan {
    /// Appends a plan of the members `ranks`, with tags from `tag` on. Steps that wait for none in it wait for `gate`. Returns what a plan appended
    /// behind it waits for.
    fn append(
        &mut self,
        part: Self,
        ranks: &[usize],
        tag: u16,
        gate: [Option<u32>; 2],
    ) -> [Option<u32>; 2] {
        if part.steps.is_empty() {
            return gate;
        }
        let offset = self.steps.len() as u32;
        let mut ends = [None; 2];
        for (number, step) in (offset..).zip(part.steps) {
            let moved = |earlier: Option<u32>| earlier.map(|earlier| earlier + offset);
            let is_first = step.after == [None; 2] && step.follows.is_none();
            ends[usize::from(step.action == Action::Send)] = Some(number);
            self.steps.push(Step {
                peer: ranks[step.peer],
                tag: step.tag + tag,
                after: if is_first {
                    gate
                } else {
                    step.after.map(moved)
                },
                follows: moved(step.follows),
                ..step
            });
        }
        ends
    }
}

/// Folds within each host, all-reduces among the leaders, and broadcasts within each host. `doubling`: as `all_reduce_doubling` among the leaders, for
/// messages that leave at once; otherwise as `all_reduce_halving`.
pub(crate) fn all_reduce_hosts(
    hosts: &Hosts,
    rank: usize,
    len: usize,
    unit: usize,
    doubling: bool,
) -> Plan {
    let part = Part::new(hosts, rank, 0);
    let (here, count) = (part.ranks.len(), part.leaders.len());
    let mut plan = Plan::streaming();
    let mut up = Plan::default();
    reduce_tree_into(
        &mut up,
        part.place,
        here,
        0,
        Place::whole(Buffer::Output, len),
    );
    let mut gate = plan.append(up, part.ranks, 0, [None; 2]);
    if part.leads() {
        let between = if doubling {
            all_reduce_doubling(part.host, count, len)
        } else {
            all_reduce_halving(part.host, count, len, unit)
        };
        gate = plan.append(between, &part.leaders, 2, gate);
    }
    plan.append(
        broadcast_tree(part.place, here, 0, len),
        part.ranks,
        1,
        gate,
    );
    plan
}

/// All members of a host signal their leader, the leaders each other, and each leader its host.
pub(crate) fn barrier_hosts(hosts: &Hosts, rank: usize) -> Plan {
    let part = Part::new(hosts, rank, 0);
    let here = part.ranks.len();
    let mut plan = Plan::default();
    let mut up = Plan::default();
    reduce_tree_into(
        &mut up,
        part.place,
        here,
        0,
        Place::whole(Buffer::Output, 0),
    );
    let mut gate = plan.append(up, part.ranks, 0, [None; 2]);
    if part.leads() {
        let between = barrier(part.host, part.leaders.len());
        gate = plan.append(between, &part.leaders, 2, gate);
    }
    plan.append(broadcast_tree(part.place, here, 0, 0), part.ranks, 1, gate);
    plan
}

/// A tree among the leaders, beginning with the root, and one within each host; bytes are forwarded as they arrive.
pub(crate) fn broadcast_hosts(hosts: &Hosts, rank: usize, root: usize, len: usize) -> Plan {
    let part = Part::new(hosts, rank, root);
    let mut plan = Plan::streaming();
    let mut came = None;
    if part.leads() {
        let between = broadcast_tree(part.host, part.leaders.len(), part.root_host(), len);
        came = plan.append(between, &part.leaders, 0, [None; 2])[0];
    }
    let first = plan.steps.len();
    let within = broadcast_tree(part.place, part.ranks.len(), part.leader, len);
    plan.append(within, part.ranks, 1, [None; 2]);
    for step in &mut plan.steps[first..] {
        if step.action == Action::Send {
            step.follows = step.follows.or(came);
        }
    }
    plan
}

/// A tree within each host to its leader, and one among the leaders to the root. For commutative operations.
pub(crate) fn reduce_hosts(hosts: &Hosts, rank: usize, root: usize, len: usize) -> Plan {
    let part = Part::new(hosts, rank, root);
    let (here, count) = (part.ranks.len(), part.leaders.len());
    let mut plan = Plan::streaming();
    let relative = (part.place + here - part.leader) % here;
    let is_leaf = relative % 2 == 1 || relative + 1 >= here;
    let held = if is_leaf && !part.leads() {
        Place::whole(Buffer::Input, len)
    } else {
        gathered(&mut plan, rank == root, len)
    };
    let mut up = Plan::default();
    reduce_tree_into(&mut up, relative, here, part.leader, held);
    let gate = plan.append(up, part.ranks, 0, [None; 2]);
    if part.leads() {
        let start = part.root_host();
        let mut between = Plan::default();
        reduce_tree_into(
            &mut between,
            (part.host + count - start) % count,
            count,
            start,
            held,
        );
        plan.append(between, &part.leaders, 0, gate);
    }
    plan
}
