//! Several operations at once, over several groups, beside the program's own messages, and with members that run ahead.

use std::time::Instant;

use crate::common::{self, LONG, Member, Over, on_all, only, values};
use tsumuji_collective::table::Operation;
use tsumuji_collective::{
    Algorithm, CHANNEL, CollectiveError, Collectives, GroupError, OPERATIONS_MAX, Op, Table,
};
use tsumuji_node::{Channel, NodeId, Options, SendError};

fn small() -> Options {
    Options {
        // Far less than what fast members would send ahead if nothing held them back.
        budget_bytes: 1 << 20,
        ..Options::default()
    }
}

/// A member that has done its part of many operations may compute as long as it likes: the others have all that they wait for.
#[test]
fn nobody_waits_for_who_is_done() {
    const REDUCTIONS: usize = 40; // more than a loop's first messages
    let (done, all_done) = std::sync::mpsc::channel();
    let all_done = std::sync::Mutex::new(all_done);
    let (options, table) = (Options::default(), Table::default());
    on_all(Over::Udp, 2, &options, &table, |member| {
        let Member {
            endpoint,
            collectives,
            rank,
            ..
        } = member;
        let world = collectives.world();
        collectives.barrier(endpoint, world).expect("barrier");
        for round in 0..REDUCTIONS {
            let mut sum = [0_u64];
            collectives
                .reduce(endpoint, world, 0, &[round as u64], &mut sum, &Op::sum())
                .expect("reduce");
            assert!(*rank != 0 || sum[0] == 2 * round as u64);
        }
        if *rank == 0 {
            done.send(()).expect("the other still waits");
        } else {
            let all_done = all_done.lock().expect("only one asks");
            all_done.recv_timeout(LONG).expect("the root has all");
        }
    });
}

/// Operations begun in one order end whichever is waited for first, also by different members in different orders.
#[test]
fn requests_end_in_any_order() {
    for over in [Over::Shm, Over::LossyUdp(10), Over::LossyShm(10)] {
        on_all(over, 5, &Options::default(), &Table::default(), |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                size,
            } = member;
            let world = collectives.world();
            for count in [3, 30_000] {
                let mut requests = Vec::new();
                for root in 0..*size {
                    let data = if *rank == root {
                        values(root, count, 1)
                    } else {
                        vec![0; count]
                    };
                    requests.push((
                        root,
                        collectives
                            .start_broadcast(endpoint, world, root, data)
                            .expect("start"),
                    ));
                }
                let sums = collectives
                    .start_all_reduce(endpoint, world, values(*rank, count, 2), &Op::<u64>::sum())
                    .expect("start");
                let all = collectives
                    .start_all_gather_v(
                        endpoint,
                        world,
                        values(*rank, count, 3),
                        vec![0_u64; count * *size],
                        &vec![8 * count; *size],
                    )
                    .expect("start");
                let barrier = collectives.start_barrier(endpoint, world).expect("start");
                // A blocking one meanwhile.
                let mut data = [1_u64];
                collectives
                    .all_reduce(endpoint, world, &mut data, &Op::sum())
                    .expect("all-reduce");
                assert_eq!(data, [*size as u64]);
                if rank.is_multiple_of(2) {
                    requests.reverse();
                }
                let all = collectives.wait(endpoint, all).expect("all-gather");
                let want: Vec<u64> = (0..*size).flat_map(|rank| values(rank, count, 3)).collect();
                assert!(all == want);
                for (root, request) in requests {
                    let got = collectives.wait(endpoint, request).expect("broadcast");
                    assert!(got == values(root, count, 1), "from {root}");
                }
                let sums = collectives.wait(endpoint, sums).expect("all-reduce");
                for (place, sum) in sums.into_iter().enumerate() {
                    let want = (0..*size).fold(0_u64, |sum, rank| {
                        sum.wrapping_add(common::value(rank, place, 2))
                    });
                    assert_eq!(sum, want);
                }
                while !collectives.test(endpoint, &barrier).expect("test") {
                    std::thread::yield_now();
                }
                collectives.wait(endpoint, barrier).expect("barrier");
            }
        });
    }
}

/// Overlapping groups do not disturb each other, whatever order their members call them in.
#[test]
fn overlapping_groups_are_apart() {
    on_all(
        Over::Shm,
        6,
        &Options::default(),
        &Table::default(),
        |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                ..
            } = member;
            let world = collectives.world();
            let of = |ids: &[u16]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
            // Ranks are places in the list, not node numbers.
            let lists = [
                of(&[4, 2, 0]),
                of(&[1, 2, 3, 4, 5]),
                of(&[5, 0]),
                of(&[4, 2, 0]),
            ];
            let me = NodeId(*rank as u16);
            let groups: Vec<_> = lists
                .iter()
                .zip(0..)
                .filter(|(list, _)| list.contains(&me))
                .map(|(list, tag)| (list, collectives.group(endpoint, list, tag).expect("group")))
                .collect();
            for round in 0..20 {
                let mut requests = Vec::new();
                for (list, group) in &groups {
                    let rank = collectives.rank(*group).expect("member");
                    assert_eq!(list[rank], me);
                    let op = Op::<u64>::ordered(|a, b| a.wrapping_mul(10).wrapping_add(b));
                    let data = vec![u64::from(me.0) + 1; 1 + 600 * (round % 3)];
                    let request = collectives.start_all_reduce(endpoint, *group, data, &op);
                    requests.push((list, request.expect("start")));
                }
                if rank.is_multiple_of(2) {
                    requests.reverse();
                }
                collectives.barrier(endpoint, world).expect("barrier");
                for (list, request) in requests {
                    let digits = list
                        .iter()
                        .fold(0, |digits, node| digits * 10 + u64::from(node.0) + 1);
                    // The order of operands is kept; they are joined in stretches, so compare with what stretches give.
                    let got = collectives.wait(endpoint, request).expect("all-reduce");
                    assert!(
                        got.iter().all(|value| *value == got[0]),
                        "one result for all places"
                    );
                    if list.len() == 2 {
                        assert_eq!(got[0], digits);
                    }
                }
            }
            for (list, group) in groups.into_iter().skip(1) {
                collectives.close_group(group).expect("close");
                assert!(matches!(
                    collectives.barrier(endpoint, group),
                    Err(CollectiveError::NoSuchGroup)
                ));
                let again = (0..4).find_map(|tag| collectives.group(endpoint, list, tag).err());
                assert!(matches!(again, Some(GroupError::Exists { .. })));
            }
            collectives.barrier(endpoint, world).expect("barrier");
        },
    );
}

/// Groups that are abandoned in the middle of operations leave nothing behind: neither operations under way, nor messages kept, nor credit.
#[test]
fn abandoned_groups_leave_nothing() {
    for over in [Over::Shm, Over::LossyUdp(10)] {
        on_all(over, 3, &Options::default(), &Table::default(), |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                ..
            } = member;
            let world = collectives.world();
            let nodes: Vec<NodeId> = endpoint.members().iter().map(|node| node.id).collect();
            // More operations than may be under way.
            let rounds = OPERATIONS_MAX as u32 + 20;
            for round in 1..=rounds {
                let group = collectives.group(endpoint, &nodes, round).expect("group");
                // One takes no part, so that none of the others ends.
                if round as usize % 3 != *rank {
                    let data = vec![1_u64; 300 * (round as usize % 4) + 1];
                    let op = Op::<u64>::sum();
                    let request = collectives.start_all_reduce(endpoint, group, data, &op);
                    let request = request.expect("room for an operation");
                    collectives.progress(endpoint).expect("progress");
                    collectives.abandon_group(group).expect("abandon");
                    assert!(matches!(
                        collectives.wait(endpoint, request),
                        Err(CollectiveError::NoSuchRequest)
                    ));
                } else {
                    collectives.abandon_group(group).expect("abandon");
                }
                assert!(matches!(
                    collectives.abandon_group(group),
                    Err(GroupError::NoSuchGroup)
                ));
                if round % 16 == 0 {
                    collectives.barrier(endpoint, world).expect("barrier");
                }
            }
            let group = collectives
                .group(endpoint, &nodes, rounds + 1)
                .expect("group");
            let mut sum = vec![*rank as u64; 50_000];
            collectives
                .all_reduce(endpoint, group, &mut sum, &Op::sum())
                .expect("all-reduce");
            assert!(sum.iter().all(|value| *value == 3));
        });
    }
}

/// Messages of the program pass through operations in both directions, in order, and none of either takes the other's.
#[test]
fn program_messages_stay_the_programs() {
    for over in [Over::Shm, Over::LossyUdp(10)] {
        on_all(over, 4, &Options::default(), &Table::default(), |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                size,
            } = member;
            let world = collectives.world();
            let refused = endpoint.send(
                NodeId(((*rank + 1) % *size) as u16),
                Channel::ordered(CHANNEL + 1),
                b"no",
            );
            assert!(matches!(refused, Err(SendError::ReservedChannel { .. })));
            for round in 0_u64..30 {
                for to in (0..*size).filter(|to| *to != *rank) {
                    endpoint
                        .send(NodeId(to as u16), Channel::ordered(3), &round.to_le_bytes())
                        .expect("send");
                }
                let mut data = vec![round; if round.is_multiple_of(5) { 20_000 } else { 5 }];
                if *rank as u64 == round % 4 {
                    collectives.progress(endpoint).expect("progress");
                }
                collectives
                    .all_reduce(endpoint, world, &mut data, &Op::maximum())
                    .expect("all-reduce");
                assert!(data.iter().all(|value| *value == round));
                // Some take their messages at once, others let them lie.
                if (*rank + round as usize).is_multiple_of(3) {
                    collectives.barrier(endpoint, world).expect("barrier");
                    continue;
                }
                let request = collectives.start_barrier(endpoint, world).expect("start");
                assert!(
                    endpoint.ready(LONG).expect("ready").is_some(),
                    "a message of the program is there"
                );
                collectives.wait(endpoint, request).expect("barrier");
            }
            let mut next = vec![0_u64; *size];
            for _ in 0..30 * (*size - 1) {
                let message = endpoint.recv(LONG).expect("recv").expect("message");
                let sender = usize::from(message.from.0);
                assert_eq!(message.channel, Channel::ordered(3));
                assert_eq!(message.body, next[sender].to_le_bytes());
                next[sender] += 1;
            }
            assert!(
                endpoint.try_recv().expect("recv").is_none(),
                "nothing of the library's is left"
            );
            collectives.barrier(endpoint, world).expect("barrier");
        });
    }
}

/// A root that broadcasts as fast as it can to a member that comes late does not fill that member's memory.
#[test]
fn running_ahead_is_bounded() {
    let table = only(Operation::Broadcast, Algorithm::Tree);
    for over in [Over::Shm, Over::LossyUdp(10)] {
        on_all(over, 3, &small(), &table, |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                ..
            } = member;
            let world = collectives.world();
            let (rounds, count) = (1500_usize, 500_usize); // 6 MB in messages of 4 KB
            if *rank == 2 {
                // Late, but polling: what comes is taken from the link, until the root has no credit left and asks.
                let begun = Instant::now();
                let counters = loop {
                    collectives.progress(endpoint).expect("progress");
                    let counters = collectives.counters();
                    assert!(counters.early * 4000 < 600_000, "{counters:?}");
                    if counters.early * 4000 > 400_000 {
                        break counters;
                    }
                    assert!(begun.elapsed() < LONG, "{counters:?}");
                };
                assert_eq!(counters.overrun, 0);
            }
            for round in 0..rounds {
                let mut data = if *rank == 0 {
                    values(0, count, round)
                } else {
                    vec![0; count]
                };
                collectives
                    .broadcast(endpoint, world, 0, &mut data)
                    .expect("broadcast");
                assert!(data == values(0, count, round));
            }
            collectives.barrier(endpoint, world).expect("barrier");
            assert_eq!(collectives.counters().overrun, 0);
        });
    }
}

/// Wrong lengths, ranks and members are refused before anything is sent, and the group goes on.
#[test]
fn wrong_calls_are_refused() {
    on_all(
        Over::Shm,
        2,
        &Options::default(),
        &Table::default(),
        |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                ..
            } = member;
            let world = collectives.world();
            let root = *rank;
            let short = collectives.gather(endpoint, world, root, &[1_u8, 2], &mut [0; 3]);
            assert!(
                matches!(
                    short,
                    Err(CollectiveError::Length {
                        given: 3,
                        expected: 4,
                        ..
                    })
                ),
                "{short:?}"
            );
            let far = collectives.broadcast(endpoint, world, 2, &mut [0_u8]);
            assert!(matches!(
                far,
                Err(CollectiveError::NoSuchRank { rank: 2, size: 2 })
            ));
            let other = NodeId(1 - *rank as u16);
            let foreign = collectives.group(endpoint, &[other], 1);
            assert!(matches!(foreign, Err(GroupError::NotAMember { .. })));
            let unknown = collectives.group(endpoint, &[NodeId(*rank as u16), NodeId(9)], 1);
            assert!(matches!(
                unknown,
                Err(GroupError::UnknownMember { member: NodeId(9) })
            ));
            let twice = collectives.group(endpoint, &[NodeId(0), NodeId(1), NodeId(1)], 1);
            assert!(matches!(
                twice,
                Err(GroupError::Twice { member: NodeId(1) })
            ));
            collectives.barrier(endpoint, world).expect("barrier");
        },
    );
}

/// A request that was dropped is forgotten while another one is waited for, which is still the one waited for.
#[test]
fn dropped_requests_leave_others_alone() {
    let (options, table) = (Options::default(), Table::default());
    on_all(Over::Shm, 1, &options, &table, |member| {
        let (endpoint, collectives) = (&mut member.endpoint, &mut member.collectives);
        let world = collectives.world();
        let mut begin = |word: u64| {
            collectives
                .start_broadcast(endpoint, world, 0, vec![word])
                .expect("start")
        };
        let (dropped, waited) = (begin(1), begin(2));
        drop(dropped);
        let words = collectives.wait(endpoint, waited).expect("wait");
        assert_eq!(words, [2]);
    });
}

/// The world may be of those members that were there first.
#[test]
fn a_world_of_the_first_members() {
    let (options, table) = (Options::default(), Table::default());
    on_all(Over::Shm, 3, &options, &table, |member| {
        let endpoint = &mut member.endpoint;
        let first = [0, 1].map(NodeId);
        let made = Collectives::with_world(endpoint, Table::default(), &first);
        if member.rank == 2 {
            assert!(matches!(made, Err(GroupError::NotAMember { .. })));
            return;
        }
        let mut collectives = made.expect("a member");
        let world = collectives.world();
        assert_eq!(collectives.size(world), Some(2));
        collectives.barrier(endpoint, world).expect("barrier");
    });
}
