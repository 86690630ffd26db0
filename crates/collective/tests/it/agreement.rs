//! Members that call different operations are told which member did, and wait for nobody.

use crate::common::{Member, Over, on_all, only};
use tsumuji_collective::table::Operation;
use tsumuji_collective::{Algorithm, CollectiveError, Op, RawOp, Table};
use tsumuji_node::{NodeId, Options};

fn assert_mismatch<T: std::fmt::Debug>(outcome: &Result<T, CollectiveError>) {
    assert!(
        matches!(outcome, Err(CollectiveError::Mismatch { .. })),
        "{outcome:?}"
    );
}

/// Members that call different things get an error that names the other, not a hang; another group still works.
#[test]
fn different_calls_are_found_out() {
    on_all(
        Over::Shm,
        3,
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
            let ids = [0, 1, 2].map(NodeId);
            let spare = collectives.group(endpoint, &ids, 5).expect("group");
            let mut data = vec![0_u8; if *rank == 1 { 20_000 } else { 10 }];
            let outcome = collectives.all_reduce(endpoint, world, &mut data, &Op::sum());
            // A member that had all it needed before it heard of the misfit may have been done.
            if let Err(error) = outcome {
                assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
            }
            collectives
                .barrier(endpoint, spare)
                .expect("barrier of the other group");
            let after = collectives.barrier(endpoint, world);
            assert_mismatch(&after);
            collectives
                .barrier(endpoint, spare)
                .expect("barrier of the other group");
        },
    );
}

/// Members with different tables would wait for each other for ever: they are told.
#[test]
fn different_tables_are_found_out() {
    on_all(
        Over::Shm,
        3,
        &Options::default(),
        &Table::default(),
        |member| {
            let Member { endpoint, rank, .. } = member;
            let mut table = Table::default();
            if *rank == 2 {
                table.rules.pop();
            }
            let mut collectives = tsumuji_collective::Collectives::with_table(endpoint, table);
            let world = collectives.world();
            let outcome = (0..1000).try_for_each(|_| collectives.barrier(endpoint, world));
            assert!(
                matches!(outcome, Err(CollectiveError::OtherTable { .. })),
                "{outcome:?}"
            );
        },
    );
}

/// So it is between hosts: a part is longer than the root expects, or longer by what another is shorter.
#[test]
fn different_calls_between_hosts_are_found_out() {
    on_all(
        Over::Hosts(2),
        4,
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
            let ids = [0, 1, 2, 3].map(NodeId);
            for (tag, counts) in (1..).zip([[1, 1, 1, 2], [1, 1, 2, 0]]) {
                let group = collectives.group(endpoint, &ids, tag).expect("group");
                let own = vec![1_u64; counts[*rank]];
                let mut all = vec![0_u64; if *rank == 0 { 4 } else { 0 }];
                let outcome = collectives.gather(endpoint, group, 0, &own, &mut all);
                // A member that had sent its part may have been done.
                if let Err(error) = outcome {
                    assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
                }
                let after = collectives.barrier(endpoint, group);
                let is_named = matches!(
                    after,
                    Err(CollectiveError::Mismatch {
                        member: NodeId(2 | 3)
                    })
                );
                assert!(is_named, "{after:?}");
            }
            collectives.barrier(endpoint, world).expect("barrier");
        },
    );
}

/// So it is where lengths of an all-gather differ, but not their sum for each host: of short parts and of long ones, and whether another host or one
/// member has other lengths.
#[test]
fn other_lengths_of_the_same_sum_are_found_out() {
    let table = only(Operation::AllGather, Algorithm::Hosts);
    on_all(Over::Hosts(2), 4, &Options::default(), &table, |member| {
        let Member {
            endpoint,
            collectives,
            rank,
            ..
        } = member;
        let world = collectives.world();
        let ids = [0, 1, 2, 3].map(NodeId);
        let cases = [([1, 2, 1, 3], 2), ([2, 1, 3, 1], 3)];
        for (tag, (unit, (theirs, first))) in (1..).zip(
            [1, 3000]
                .into_iter()
                .flat_map(|unit| cases.map(|case| (unit, case))),
        ) {
            let group = collectives.group(endpoint, &ids, tag).expect("group");
            let counts = if *rank >= first { theirs } else { [1, 2, 3, 1] };
            let counts = counts.map(|count| count * unit);
            let own = vec![1_u64; counts[*rank]];
            let mut all = vec![0_u64; 7 * unit];
            let outcome = collectives.all_gather_v(endpoint, group, &own, &mut all, &counts);
            // A member that finds what it expects may have been done.
            if let Err(error) = outcome {
                assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
            }
            let after = collectives.barrier(endpoint, group);
            assert_mismatch(&after);
        }
        collectives.barrier(endpoint, world).expect("barrier");
    });
}

/// So it is where members would wait for each other for ever: of a short part one side takes to be long; both would send, or both receive.
#[test]
fn calls_that_wait_for_each_other_are_found_out() {
    let (options, table) = (Options::default(), Table::default());
    on_all(Over::Shm, 2, &options, &table, |member| {
        let Member {
            endpoint,
            collectives,
            rank,
            ..
        } = member;
        let groups = [1, 2, 3].map(|tag| {
            let group = collectives.group(endpoint, &[0, 1].map(NodeId), tag);
            group.expect("group")
        });
        let own = vec![1_u64; if *rank == 1 { 20_000 } else { 1 }];
        let all = vec![0_u64; if *rank == 0 { 2 } else { 0 }];
        let (ours, theirs) = (*rank, 1 - *rank);
        let started = [
            collectives.start_gather_v(endpoint, groups[0], 0, own, all, &[8; 2]),
            collectives.start_broadcast(endpoint, groups[1], ours, vec![0_u64; 20_000]),
            collectives.start_broadcast(endpoint, groups[2], theirs, vec![0_u64]),
        ];
        for request in started {
            let outcome = request.and_then(|request| collectives.wait(endpoint, request));
            assert_mismatch(&outcome);
        }
    });
}

/// So it is where half of a vector that leaders halve is as long as the whole one of another leader.
#[test]
fn a_vector_of_half_the_length_is_found_out() {
    let (options, table) = (Options::default(), Table::default());
    on_all(Over::Hosts(2), 3, &options, &table, |member| {
        let Member {
            endpoint,
            collectives,
            rank,
            ..
        } = member;
        let world = collectives.world();
        let mut data = vec![1_u64; if *rank == 2 { 5000 } else { 10_000 }];
        let outcome = collectives.all_reduce(endpoint, world, &mut data, &Op::sum());
        assert_mismatch(&outcome);
    });
}

/// Different roots are found out, too: in long transfers, which all wait for their receivers, whichever member is mistaken, and by every algorithm. A
/// member that waits for one that is done with the operation is told so.
#[test]
fn different_roots_are_found_out() {
    const LEN: usize = 20_000;
    let table = |broadcast, reduce| Table {
        rules: [
            only(Operation::Broadcast, broadcast).rules,
            only(Operation::Reduce, reduce).rules,
        ]
        .concat(),
    };
    let (tree, chain) = (Algorithm::Tree, Algorithm::Chain);
    let cases = [
        (Over::Shm, table(tree, tree)),
        (Over::Shm, table(chain, chain)),
        (Over::Shm, table(Algorithm::Native, tree)),
        (Over::Shm, table(Algorithm::Flat, chain)),
        (Over::Hosts(2), table(tree, tree)),
        (Over::Hosts(2), table(chain, chain)),
        (Over::Hosts(2), Table::default()),
    ];
    let different_roots = |over: Over, table: &Table| {
        on_all(over, 4, &Options::default(), table, |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                ..
            } = member;
            let ids = [0, 1, 2, 3].map(NodeId);
            // The mistaken member, the root that it names, and the root that the others name.
            let mistakes = [
                (3, 3, 2),
                (3, 0, 2),
                (1, 1, 0),
                (1, 0, 1),
                (0, 0, 3),
                (0, 2, 0),
            ];
            let mut begun = Vec::new();
            for (tag, (odd, odd_root, others_root)) in (1..).zip(mistakes) {
                let root = if *rank == odd { odd_root } else { others_root };
                let mut group_of = |tag| {
                    let group = collectives.group(endpoint, &ids, tag);
                    group.expect("group")
                };
                let groups = [group_of(2 * tag), group_of(2 * tag + 1)];
                let data = vec![1_u64; LEN];
                let sum = vec![0_u64; if *rank == root { LEN } else { 0 }];
                let (copied, op) = (data.clone(), (&Op::<u64>::sum()).into());
                let (c, e) = (&mut *collectives, &mut *endpoint);
                begun.push((groups[0], c.start_broadcast(e, groups[0], root, copied)));
                begun.push((
                    groups[1],
                    c.start_reduce_raw(e, groups[1], root, data, sum, &op),
                ));
            }
            for (group, request) in begun {
                let outcome = request.and_then(|request| collectives.wait(endpoint, request));
                // A member that had what it needed may have been done.
                if outcome.is_err() {
                    assert_mismatch(&outcome);
                }
                let after = collectives.barrier(endpoint, group);
                assert_mismatch(&after);
            }
            let world = collectives.world();
            collectives.barrier(endpoint, world).expect("barrier");
        });
    };
    std::thread::scope(|scope| {
        for (over, table) in &cases {
            scope.spawn(move || different_roots(*over, table));
        }
    });
}

/// So it is of reductions by another operation, of another type of the same size, of larger elements in the same memory, and of operands that one member
/// does not let be exchanged.
#[test]
fn different_reductions_are_found_out() {
    for over in [Over::Shm, Over::Hosts(2)] {
        on_all(over, 4, &Options::default(), &Table::default(), |member| {
            let Member {
                endpoint,
                collectives,
                rank,
                ..
            } = member;
            let ids = [0, 1, 2, 3].map(NodeId);
            let is_odd = *rank == 1;
            for len in [4, 20_000] {
                let groups = [1, 2, 3, 4].map(|case| {
                    let tag = len as u32 * 10 + case;
                    let group = collectives.group(endpoint, &ids, tag);
                    group.expect("group")
                });
                let (c, e) = (&mut *collectives, &mut *endpoint);
                let op = if is_odd { Op::maximum() } else { Op::sum() };
                let outcome = c.all_reduce(e, groups[0], &mut vec![1.0_f64; len], &op);
                assert_mismatch(&outcome);
                let outcome = if is_odd {
                    c.all_reduce(e, groups[1], &mut vec![1_i64; len], &Op::sum())
                } else {
                    c.all_reduce(e, groups[1], &mut vec![1.0_f64; len], &Op::sum())
                };
                assert_mismatch(&outcome);
                let own = RawOp::new(if is_odd { 16 } else { 8 }, true, |_, _, _| {});
                let own = own.expect("within bounds");
                let outcome = c
                    .start_all_reduce_raw(e, groups[2], vec![1_u64; len], &own)
                    .and_then(|request| c.wait(e, request));
                assert_mismatch(&outcome);
                let add = |a: u64, b: u64| a.wrapping_add(b);
                let op = if is_odd {
                    Op::ordered(add)
                } else {
                    Op::commutative(add)
                };
                let outcome = c.all_reduce(e, groups[3], &mut vec![1_u64; len], &op);
                assert_mismatch(&outcome);
            }
        });
    }
}

/// Members that call on a group that another one has closed are told so.
#[test]
fn calls_on_a_closed_group_are_found_out() {
    let (options, table) = (Options::default(), Table::default());
    on_all(Over::Shm, 3, &options, &table, |member| {
        let Member {
            endpoint,
            collectives,
            rank,
            ..
        } = member;
        let world = collectives.world();
        let ids = [0, 1, 2].map(NodeId);
        for (tag, len) in [(1, 1), (2, 200_000)] {
            let group = collectives.group(endpoint, &ids, tag).expect("group");
            collectives.barrier(endpoint, group).expect("barrier");
            if *rank == 2 {
                collectives
                    .close_group(group)
                    .expect("nothing is under way");
            } else {
                let mut data = vec![1_u8; len];
                let outcome = collectives.all_reduce(endpoint, group, &mut data, &Op::sum());
                let is_named = matches!(
                    outcome,
                    Err(CollectiveError::Mismatch { member: NodeId(2) })
                );
                assert!(is_named, "{outcome:?}");
            }
            collectives.barrier(endpoint, world).expect("barrier");
        }
    });
}
