//! Every operation and algorithm against plain references, over groups of all small sizes and messages of all kinds of lengths.

use crate::common::{Member, Over, on_all, only, values};
use tsumuji_collective::table::{Can, Operation};
use tsumuji_collective::{Algorithm, Group, Op, Table};
use tsumuji_node::{NodeId, Options};

/// In elements of 8 bytes: none, one, small, around the limit of small messages, some frames, 1 MiB.
const LENGTHS: [usize; 8] = [0, 1, 3, 100, 1024, 1025, 9000, 1 << 17];

/// The same where frames are lost and every round trip takes long.
const SHORT: [usize; 5] = [0, 1, 100, 1025, 9000];

fn barrier(member: &mut Member) {
    let Member {
        endpoint,
        collectives,
        ..
    } = member;
    let world = collectives.world();
    collectives.barrier(endpoint, world).expect("barrier");
}

fn broadcast(member: &mut Member, count: usize, round: usize) {
    let root = round % member.size;
    let mut data = if member.rank == root {
        values(root, count, round)
    } else {
        vec![0; count]
    };
    let world = member.collectives.world();
    member
        .collectives
        .broadcast(&mut member.endpoint, world, root, &mut data)
        .expect("broadcast");
    assert!(
        data == values(root, count, round),
        "broadcast of {count} from {root} to {}",
        member.rank
    );
}

/// Parts of different lengths, in a group of all members. Of scatter and gather only the root is told all lengths.
fn scatter_and_gather(member: &mut Member, group: Group, count: usize, round: usize) {
    let rank = member.collectives.rank(group).expect("a member");
    let (size, root) = (member.size, round % member.size);
    let (collectives, endpoint) = (&mut member.collectives, &mut member.endpoint);
    // Parts of different lengths, one of them empty.
    let counts: Vec<usize> = (0..size)
        .map(|rank| count * ((rank + round) % 3) / 2)
        .collect();
    let own = counts[rank];
    let all: Vec<u64> = (0..size)
        .flat_map(|rank| values(rank, counts[rank], round))
        .collect();
    let mut part = vec![0; own];
    let given: &[u64] = if rank == root { &all } else { &[] };
    let known: &[usize] = if rank == root { &counts } else { &[] };
    collectives
        .scatter_v(endpoint, group, root, given, known, &mut part)
        .expect("scatter");
    assert!(
        part == values(rank, own, round),
        "scatter of {count} to {rank}"
    );
    let mut back = vec![0; if rank == root { all.len() } else { 0 }];
    collectives
        .gather_v(endpoint, group, root, &part, &mut back, known)
        .expect("gather");
    assert!(rank != root || back == all, "gather of {count} at {root}");
    let mut everything = vec![0; all.len()];
    collectives
        .all_gather_v(endpoint, group, &part, &mut everything, &counts)
        .expect("all-gather");
    assert!(everything == all, "all-gather of {count} at {rank}");
}

/// Equal parts, in a group of all members.
fn plain_forms(member: &mut Member, group: Group, count: usize, round: usize) {
    let rank = member.collectives.rank(group).expect("a member");
    let (size, root) = (member.size, round % member.size);
    let all: Vec<u64> = (0..size)
        .flat_map(|rank| values(rank, count, round))
        .collect();
    let (mut part, mut back) = (vec![0; count], vec![0; all.len()]);
    let (collectives, endpoint) = (&mut member.collectives, &mut member.endpoint);
    collectives
        .scatter(endpoint, group, root, &all, &mut part)
        .expect("scatter");
    assert!(part == values(rank, count, round));
    collectives
        .gather(endpoint, group, root, &part, &mut back)
        .expect("gather");
    assert!(rank != root || back == all);
    back.fill(0);
    collectives
        .all_gather(endpoint, group, &part, &mut back)
        .expect("all-gather");
    assert!(back == all);
    let between = |from: usize, to: usize| values(100 * from + to, count, round);
    let send: Vec<u64> = (0..size).flat_map(|to| between(rank, to)).collect();
    let want: Vec<u64> = (0..size).flat_map(|from| between(from, rank)).collect();
    back.fill(0);
    if round.is_multiple_of(2) {
        let request = collectives.start_all_to_all(endpoint, group, send, back);
        let waited = collectives.wait(endpoint, request.expect("start"));
        back = waited.expect("all-to-all");
    } else {
        collectives
            .all_to_all(endpoint, group, &send, &mut back)
            .expect("all-to-all");
    }
    assert!(back == want, "equal all-to-all of {count} at {rank}");
}

fn all_to_all(member: &mut Member, count: usize, round: usize) {
    let (rank, size) = (member.rank, member.size);
    let world = member.collectives.world();
    let length = |from: usize, to: usize| count * ((from + 2 * to + round) % 3) / 2;
    let part = |from: usize, to: usize| values(100 * from + to, length(from, to), round);
    let goes: Vec<usize> = (0..size).map(|to| length(rank, to)).collect();
    let comes: Vec<usize> = (0..size).map(|from| length(from, rank)).collect();
    let send: Vec<u64> = (0..size).flat_map(|to| part(rank, to)).collect();
    let want: Vec<u64> = (0..size).flat_map(|from| part(from, rank)).collect();
    let mut receive = vec![0; want.len()];
    member
        .collectives
        .all_to_all_v(
            &mut member.endpoint,
            world,
            &send,
            &goes,
            &mut receive,
            &comes,
        )
        .expect("all-to-all");
    assert!(receive == want, "all-to-all of {count} at {rank}");
}

/// Two by two matrices modulo 2¹⁶: associative, and the order of operands matters.
fn matrix_product(a: u64, b: u64) -> u64 {
    let cell = |m: u64, i: u32| (m >> (16 * i)) & 0xffff;
    let entry = |row: u32, column: u32| {
        (cell(a, 2 * row) * cell(b, column) + cell(a, 2 * row + 1) * cell(b, column + 2)) & 0xffff
    };
    entry(0, 0) | entry(0, 1) << 16 | entry(1, 0) << 32 | entry(1, 1) << 48
}

fn reductions(member: &mut Member, count: usize, round: usize) {
    let (rank, size, root) = (member.rank, member.size, round % member.size);
    let world = member.collectives.world();
    type Function = fn(u64, u64) -> u64;
    let ops: [(Op<u64>, Function); 3] = [
        (Op::sum(), u64::wrapping_add),
        (Op::maximum(), u64::max),
        (Op::ordered(matrix_product), matrix_product),
    ];
    let (collectives, endpoint) = (&mut member.collectives, &mut member.endpoint);
    for (op, f) in ops {
        let mut want = values(0, count, round);
        for other in 1..size {
            for (want, given) in want.iter_mut().zip(values(other, count, round)) {
                *want = f(*want, given);
            }
        }
        let own = values(rank, count, round);
        let mut result = vec![0; if rank == root { count } else { 0 }];
        collectives
            .reduce(endpoint, world, root, &own, &mut result, &op)
            .expect("reduce");
        assert!(
            rank != root || result == want,
            "reduce of {count} at {root}, {op:?}"
        );
        let mut data = own;
        collectives
            .all_reduce(endpoint, world, &mut data, &op)
            .expect("all-reduce");
        assert!(data == want, "all-reduce of {count} at {rank}, {op:?}");
    }
}

fn everything(member: &mut Member, lengths: &[usize]) {
    let world = member.collectives.world();
    barrier(member);
    for (round, &count) in lengths.iter().enumerate() {
        broadcast(member, count, round);
        scatter_and_gather(member, world, count, round);
        plain_forms(member, world, count, round + 1);
        all_to_all(member, count, round);
        reductions(member, count, round);
    }
    barrier(member);
}

/// All operations with the table built in, over shared memory, for groups of one to nine.
#[test]
fn everything_over_shm() {
    for nodes in 1..=9 {
        on_all(
            Over::Shm,
            nodes,
            &Options::default(),
            &Table::default(),
            |member| {
                everything(member, &LENGTHS);
            },
        );
    }
}

/// The same where processes cannot read each other: some can, some cannot, or none.
#[test]
fn everything_without_direct_reads() {
    for (nodes, every) in [(2, 1), (5, 2), (6, 1)] {
        on_all(
            Over::Shm,
            nodes,
            &Options::default(),
            &Table::default(),
            |member| {
                if member.rank.is_multiple_of(every) {
                    member.collectives.forbid_direct_reads();
                }
                everything(member, &LENGTHS);
            },
        );
    }
}

/// The same over UDP, a tenth of the frames lost.
#[test]
fn everything_over_lossy_udp() {
    for nodes in 1..=9 {
        on_all(
            Over::LossyUdp(10),
            nodes,
            &Options::default(),
            &Table::default(),
            |member| {
                everything(member, &SHORT);
            },
        );
    }
}

/// On hosts of several nodes, whether full or not: within hosts first, with and without loss between them.
#[test]
fn everything_among_hosts() {
    for (nodes, each) in [(4, 2), (8, 4), (5, 2), (7, 3), (9, 4), (3, 2)] {
        for over in [Over::Hosts(each), Over::LossyHosts(each, 10)] {
            on_all(
                over,
                nodes,
                &Options::default(),
                &Table::default(),
                |member| {
                    everything(member, &SHORT);
                },
            );
        }
        on_all(
            Over::Hosts(each),
            nodes,
            &Options::default(),
            &Table::default(),
            |member| {
                everything(member, &LENGTHS);
                let counters = member.collectives.counters();
                // Node 0 has a neighbour in each of these.
                assert!(member.rank > 0 || counters.direct_reads > 0, "{counters:?}");
            },
        );
    }
}

/// An all-gather by hosts of parts of all lengths beside operations that are not by hosts, whether ranks of a host are neighbours or not.
#[test]
fn parts_among_hosts() {
    let table = only(Operation::AllGather, Algorithm::Hosts);
    for (nodes, each) in [(4, 2), (5, 2), (7, 3), (9, 4), (3, 2)] {
        on_all(
            Over::Hosts(each),
            nodes,
            &Options::default(),
            &table,
            |member| {
                let ids = (0..nodes).step_by(2).chain((1..nodes).step_by(2));
                let ids: Vec<NodeId> = ids.map(NodeId).collect();
                let apart = member.collectives.group(&member.endpoint, &ids, 1);
                let groups = [member.collectives.world(), apart.expect("group")];
                for (round, &count) in LENGTHS[..7].iter().enumerate() {
                    for group in groups {
                        scatter_and_gather(member, group, count, round);
                        plain_forms(member, group, count, round);
                    }
                }
                barrier(member);
            },
        );
    }
}

/// All on one host of a cluster of several: by the algorithms of shared memory, over a link that also leaves the host.
#[test]
fn everything_within_one_of_several_hosts() {
    on_all(
        Over::Hosts(4),
        4,
        &Options::default(),
        &Table::default(),
        |member| everything(member, &LENGTHS),
    );
}

/// Each algorithm that can be chosen, for each operation and size.
#[test]
fn every_algorithm() {
    for operation in Operation::ALL {
        for algorithm in operation.algorithms(Can::ALL) {
            for nodes in [2, 3, 4, 5, 7, 8, 9] {
                let table = only(operation, algorithm);
                on_all(Over::Shm, nodes, &Options::default(), &table, |member| {
                    let world = member.collectives.world();
                    for (round, &count) in LENGTHS[..7].iter().enumerate() {
                        match operation {
                            Operation::Broadcast => broadcast(member, count, round),
                            Operation::AllGather => {
                                scatter_and_gather(member, world, count, round);
                            }
                            Operation::Reduce | Operation::AllReduce => {
                                reductions(member, count, round);
                            }
                            _ => plain_forms(member, world, count, round),
                        }
                    }
                    barrier(member);
                });
            }
        }
    }
}

/// Partners that fold into what they send keep what comes early, longer transfers in several pieces, in order, whatever the link does to
/// their frames.
#[test]
fn early_pieces_are_kept_in_order() {
    for algorithm in [Algorithm::Doubling, Algorithm::Halving] {
        for nodes in [2, 4, 7] {
            let table = only(Operation::AllReduce, algorithm);
            on_all(
                Over::LossyUdp(5),
                nodes,
                &Options::default(),
                &table,
                |member| {
                    for (round, count) in
                        [8_192, 1, 5_000, 0, 8_191, 20_000].into_iter().enumerate()
                    {
                        reductions(member, count, round);
                    }
                    barrier(member);
                },
            );
        }
    }
}

/// A group of one is done at once, by every algorithm: there is nobody to wait for, nor to send to.
#[test]
fn groups_of_one() {
    for operation in Operation::ALL {
        for algorithm in operation.algorithms(Can::ALL) {
            let table = only(operation, algorithm);
            on_all(Over::Shm, 1, &Options::default(), &table, |member| {
                let Member {
                    endpoint,
                    collectives,
                    ..
                } = member;
                let world = collectives.world();
                for count in [0, 1, 20_000] {
                    let given = values(0, count, 1);
                    let (mut data, mut all) = (given.clone(), vec![0; count]);
                    let done = match operation {
                        Operation::Broadcast => {
                            collectives.broadcast(endpoint, world, 0, &mut data)
                        }
                        Operation::AllReduce => {
                            collectives.all_reduce(endpoint, world, &mut data, &Op::sum())
                        }
                        Operation::Reduce => {
                            collectives.reduce(endpoint, world, 0, &given, &mut all, &Op::sum())
                        }
                        Operation::Gather => {
                            collectives.gather(endpoint, world, 0, &given, &mut all)
                        }
                        Operation::Scatter => {
                            collectives.scatter(endpoint, world, 0, &given, &mut all)
                        }
                        Operation::AllToAll => {
                            collectives.all_to_all(endpoint, world, &given, &mut all)
                        }
                        _ => collectives.all_gather(endpoint, world, &given, &mut all),
                    };
                    done.unwrap_or_else(|error| panic!("{operation:?} by {algorithm}: {error}"));
                    let in_place = matches!(operation, Operation::Broadcast | Operation::AllReduce);
                    assert_eq!(if in_place { data } else { all }, given);
                }
            });
        }
    }
}
