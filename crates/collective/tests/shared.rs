//! Broadcasts through memory that all see: groups and roots side by side, calls that do not fit, deaths in the middle.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use common::{LONG, Member, Over, on_all};
use tsumuji_collective::{CollectiveError, Group, Table};
use tsumuji_node::{NodeId, Options};

/// Lengths below, at and above a piece, and none.
const LENGTHS: [usize; 7] = [0, 4, 700, 65_536, 65_537, 300_000, 9_000_000];

fn pattern(root: usize, group: usize, round: usize, len: usize) -> Vec<u8> {
    let mixed = root * 31 + group * 7 + round * 3;
    (0..len)
        .map(|place| (place / 5 + place + mixed) as u8)
        .collect()
}

/// What a member hands in, who is to have `want` in the end.
fn handed_in(is_root: bool, want: &[u8]) -> Vec<u8> {
    if is_root {
        want.to_vec()
    } else {
        vec![0; want.len()]
    }
}

/// A broadcast of `want` that everybody waits for.
fn broadcast(member: &mut Member, group: Group, root: usize, want: &[u8]) {
    let mut data = handed_in(member.collectives.rank(group) == Some(root), want);
    member
        .collectives
        .broadcast(&mut member.endpoint, group, root, &mut data)
        .expect("broadcast");
    assert!(data == want, "{} bytes from {root}", want.len());
}

/// Broadcasts of the root that have ended: how far it is ahead of members that have not begun.
#[derive(Default)]
struct Ahead(AtomicUsize);

impl Ahead {
    fn count(&self, member: &Member) {
        if member.rank == 0 {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets the endpoint live, but reads nothing, until the root has ended so many.
    fn wait(&self, member: &mut Member, calls: usize) {
        let begun = Instant::now();
        while self.0.load(Ordering::Relaxed) < calls {
            assert!(begun.elapsed() < LONG, "the root waits for its readers");
            let done = member.collectives.progress(&mut member.endpoint);
            done.expect("progress");
        }
    }
}

/// Every length from every root, one after the other.
#[test]
fn all_lengths_from_all_roots() {
    for nodes in [2, 3, 5] {
        on_all(
            Over::Shm,
            nodes,
            &Options::default(),
            &Table::default(),
            |member| {
                let world = member.collectives.world();
                for (round, len) in LENGTHS.into_iter().enumerate() {
                    for root in 0..member.size {
                        broadcast(member, world, root, &pattern(root, 0, round, len));
                    }
                }
            },
        );
    }
}

/// More groups than a node has rings, of some of the members and of all, with operations of all of them under way at once, from one
/// root or from several, and waited for in orders that differ between members.
#[test]
fn many_groups_at_once() {
    on_all(
        Over::Shm,
        4,
        &Options::default(),
        &Table::default(),
        |member| {
            let me = NodeId(member.rank as u16);
            let mut groups = Vec::new();
            for tag in 0..40_u32 {
                let list: Vec<NodeId> = match tag % 3 {
                    0 => (0..4).map(NodeId).collect(),
                    1 => [3, 1].map(NodeId).to_vec(),
                    _ => [2, 0, 3].map(NodeId).to_vec(),
                };
                if list.contains(&me) {
                    let group = member.collectives.group(&member.endpoint, &list, 100 + tag);
                    let hub = list.iter().position(|node| *node == NodeId(3));
                    let hub = hub.expect("it is in all of them");
                    groups.push((tag as usize, (hub, list.len()), group.expect("group")));
                }
            }
            for round in 0..4 {
                let mut requests = Vec::new();
                for &(tag, (hub, size), group) in &groups {
                    let root = if round < 2 { hub } else { (tag + round) % size };
                    let rank = member.collectives.rank(group).expect("member");
                    let len = [5, 3_000, 200_000][(tag + round) % 3];
                    for turn in 0..2 {
                        let want = pattern(root, tag, round + turn, len);
                        let data = handed_in(rank == root, &want);
                        let request = member
                            .collectives
                            .start_broadcast(&mut member.endpoint, group, root, data)
                            .expect("start");
                        requests.push((want, request));
                    }
                }
                if (member.rank + round).is_multiple_of(2) {
                    requests.reverse();
                }
                for (want, request) in requests {
                    let got = member
                        .collectives
                        .wait(&mut member.endpoint, request)
                        .expect("wait");
                    assert!(got == want);
                }
            }
        },
    );
}

/// A root whose rings are all unread goes on as members read, group by group, in the order in which it wrote.
#[test]
fn more_groups_than_rings_in_order() {
    // As many groups as a node has rings: with the next one the root waits.
    const RINGS: usize = 32;
    let ahead = Ahead::default();
    on_all(
        Over::Shm,
        3,
        &Options::default(),
        &Table::default(),
        |member| {
            let all: Vec<NodeId> = (0..3).map(NodeId).collect();
            let groups: Vec<_> = (0..40)
                .map(|tag| member.collectives.group(&member.endpoint, &all, 100 + tag))
                .collect::<Result<_, _>>()
                .expect("groups");
            for round in 0..5 {
                if member.rank > 0 {
                    ahead.wait(member, round * groups.len() + RINGS);
                }
                for (place, &group) in groups.iter().enumerate() {
                    broadcast(member, group, 0, &pattern(0, place, round, 100));
                    ahead.count(member);
                }
            }
        },
    );
}

/// Calls that do not fit are found out by somebody, who is told the name, and then by all: another length, another root, another
/// operation, as the group's first or later.
#[test]
fn calls_that_do_not_fit_are_named() {
    for (kind, fitting) in (0..3).flat_map(|kind| [(kind, 0), (kind, 100)]) {
        on_all(
            Over::Shm,
            3,
            &Options::default(),
            &Table::default(),
            |member| {
                let world = member.collectives.world();
                let (endpoint, collectives) = (&mut member.endpoint, &mut member.collectives);
                let mut data = vec![1_u8; 64];
                for _ in 0..fitting {
                    collectives
                        .broadcast(endpoint, world, 0, &mut data)
                        .expect("they fit");
                }
                let odd = member.rank == 1;
                let mut outcome = match (kind, odd) {
                    (0, true) => collectives.broadcast(endpoint, world, 0, &mut data[..60]),
                    (1, true) => collectives.broadcast(endpoint, world, 2, &mut data),
                    (2, true) => collectives.barrier(endpoint, world),
                    _ => collectives.broadcast(endpoint, world, 0, &mut data),
                };
                // Who needed nothing more may have been done.
                for _ in 0..3 {
                    outcome = outcome.and_then(|()| collectives.barrier(endpoint, world));
                }
                let named = matches!(outcome, Err(CollectiveError::Mismatch { .. }));
                assert!(named, "kind {kind} after {fitting}: {outcome:?}");
            },
        );
    }
}

/// Members that come late find everything that was broadcast meanwhile, also beyond what a ring holds.
#[test]
fn late_members_miss_nothing() {
    let ahead = Ahead::default();
    on_all(
        Over::Shm,
        3,
        &Options::default(),
        &Table::default(),
        |member| {
            let world = member.collectives.world();
            // Less than a ring holds, or the root would wait for us.
            ahead.wait(member, 1_000 * member.rank);
            for round in 0..40_000_u32 {
                broadcast(member, world, 0, round.to_ne_bytes().repeat(6).as_slice());
                ahead.count(member);
            }
        },
    );
}
