//! Members that die or leave: survivors are told who, in bounded time, also those that talk only to survivors; nobody hangs.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{LONG, Over, cluster, inet, only, udp, udp_again};
use tsumuji_collective::table::Operation;
use tsumuji_collective::{Algorithm, CollectiveError, Collectives, Op, Table};
use tsumuji_link::udp::Udp;
use tsumuji_node::{Endpoint, Membership, NodeId, Options};

fn quick() -> Options {
    Options {
        keep_alive: Duration::from_millis(50),
        // Longer than a busy machine keeps a thread waiting: nobody else may be taken for dead.
        dead_after: Duration::from_millis(1500),
        ..Options::default()
    }
}

/// The last words of an endpoint are not said: its process seems to have been killed.
fn vanish(endpoint: Endpoint) {
    endpoint.vanish();
}

type Body = fn(&mut Endpoint, &mut Collectives, usize) -> Result<(), CollectiveError>;

/// Link, number of members, the victim, how operations are done, and what all do.
type Case<'a> = (Over, u16, u16, &'a Table, Body);

/// Cases beside each other: each mostly waits until a member that is silent is taken for dead.
fn with_victims<const N: usize>(cases: [Case<'_>; N]) {
    std::thread::scope(|scope| {
        for (over, nodes, victim, table, body) in cases {
            scope.spawn(move || with_victim(over, nodes, victim, table, body));
        }
    });
}

/// All members do `body` again and again; the victim vanishes after some rounds. Every survivor gets an error that names it,
/// and then the survivors go on in a group of their own.
fn with_victim(over: Over, nodes: u16, victim: u16, table: &Table, body: Body) {
    let endpoints = cluster(over, nodes, &quick());
    let survivors: Vec<NodeId> = (0..nodes).filter(|id| *id != victim).map(NodeId).collect();
    std::thread::scope(|scope| {
        for mut endpoint in endpoints {
            let survivors = &survivors;
            scope.spawn(move || {
                let mut collectives = Collectives::with_table(&mut endpoint, table.clone());
                collectives.read_directly_from(0);
                let me = endpoint.me();
                let start = Instant::now();
                for round in 0.. {
                    if me.0 == victim && round == 5 {
                        return vanish(endpoint);
                    }
                    match body(&mut endpoint, &mut collectives, round) {
                        Ok(()) => {}
                        Err(CollectiveError::MemberDead { member }) => {
                            assert_eq!(member, NodeId(victim), "{me} was told the wrong name");
                            break;
                        }
                        Err(error) => panic!("{me}: {error}"),
                    }
                    assert!(start.elapsed() < LONG, "{me} never hears of it");
                }
                let world = collectives.world();
                let after = collectives.barrier(&mut endpoint, world);
                assert!(
                    matches!(after, Err(CollectiveError::MemberDead { .. })),
                    "{after:?}"
                );
                let rest = collectives.group(&endpoint, survivors, 1).expect("group");
                let mut count = [1_u32];
                collectives
                    .all_reduce(&mut endpoint, rest, &mut count, &Op::sum())
                    .expect("survivors go on");
                assert_eq!(count, [u32::from(nodes) - 1]);
                let _ = endpoint.close(LONG);
            });
        }
    });
}

fn all_reduce(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    round: usize,
) -> Result<(), CollectiveError> {
    let world = collectives.world();
    let mut data = vec![1.0_f64; if round.is_multiple_of(2) { 10 } else { 50_000 }];
    collectives.all_reduce(endpoint, world, &mut data, &Op::sum())
}

fn broadcast(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    round: usize,
) -> Result<(), CollectiveError> {
    let world = collectives.world();
    let mut data = vec![1_u8; 300_000];
    collectives.broadcast(endpoint, world, round % 2, &mut data)?;
    collectives.barrier(endpoint, world)
}

fn unblocked(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    _: usize,
) -> Result<(), CollectiveError> {
    let world = collectives.world();
    let requests = (0..3)
        .map(|_| {
            collectives.start_all_reduce(endpoint, world, vec![1_u64; 5_000], &Op::<u64>::sum())
        })
        .collect::<Result<Vec<_>, _>>()?;
    collectives.wait_all(endpoint, requests).map(drop)
}

fn parts(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    round: usize,
) -> Result<(), CollectiveError> {
    let world = collectives.world();
    let size = collectives.size(world).expect("open");
    let (mut own, mut all) = ([1_u64], vec![1_u64; size]);
    let root = round % size;
    collectives.gather(endpoint, world, root, &own, &mut all)?;
    collectives.scatter(endpoint, world, root, &all, &mut own)?;
    collectives.all_gather(endpoint, world, &own, &mut all)?;
    let given = all.clone();
    collectives.all_to_all(endpoint, world, &given, &mut all)
}

/// Parts of different lengths.
fn parts_of_any_lengths(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    round: usize,
) -> Result<(), CollectiveError> {
    let world = collectives.world();
    let size = collectives.size(world).expect("open");
    let rank = collectives.rank(world).expect("open");
    let counts: Vec<usize> = (0..size).map(|rank| rank % 3).collect();
    let root = round % size;
    let known: &[usize] = if rank == root { &counts } else { &[] };
    let mut all = vec![1_u64; known.iter().sum()];
    let mut own = vec![1_u64; counts[rank]];
    collectives.gather_v(endpoint, world, root, &own, &mut all, known)?;
    collectives.scatter_v(endpoint, world, root, &all, known, &mut own)?;
    collectives.barrier(endpoint, world)
}

/// A member of a tree, ring or chain dies, or the leader of a host, or another member there, over all kinds of links.
#[test]
fn death_is_told_to_everyone() {
    let table = Table::default();
    with_victims([
        (Over::Shm, 5, 2, &table, all_reduce),
        (Over::LossyUdp(10), 5, 4, &table, all_reduce),
        (Over::Hosts(2), 5, 2, &table, parts),
    ]);
    with_victims([
        (Over::Hosts(3), 6, 1, &table, parts),
        (Over::Hosts(2), 5, 2, &table, parts_of_any_lengths),
    ]);
    with_victims([
        (Over::Udp, 4, 1, &table, unblocked),
        (Over::Shm, 2, 1, &table, unblocked),
    ]);
}

/// So it is in each kind of broadcast, whether a receiver dies or the root.
#[test]
fn death_in_broadcasts() {
    for algorithm in [
        Algorithm::Native,
        Algorithm::Chain,
        Algorithm::Tree,
        Algorithm::Flat,
    ] {
        let table = only(Operation::Broadcast, algorithm);
        with_victims([
            (Over::Shm, 4, 1, &table, broadcast),
            (Over::LossyShm(5), 4, 3, &table, broadcast),
        ]);
    }
}

fn stream(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    _: usize,
) -> Result<(), CollectiveError> {
    let world = collectives.world();
    for len in [8, 100, 200_000] {
        collectives.broadcast(endpoint, world, 1, &mut vec![1_u8; len])?;
    }
    Ok(())
}

/// Nobody waits for anybody but where memory is full: the root hears of a dead member when it needs it, the others from the root.
#[test]
fn death_in_streams_of_broadcasts() {
    let table = Table::default();
    with_victims([
        (Over::Shm, 4, 1, &table, stream),
        (Over::Shm, 4, 3, &table, stream),
        (Over::Shm, 2, 0, &table, stream),
    ]);
}

/// A member of which a chain's end hears nothing but through others: the end is told by them.
#[test]
fn news_travel_through_survivors() {
    let endpoints = cluster(Over::Shm, 4, &quick());
    let table = only(Operation::Broadcast, Algorithm::Chain);
    std::thread::scope(|scope| {
        for mut endpoint in endpoints {
            let table = table.clone();
            scope.spawn(move || {
                let mut collectives = Collectives::with_table(&mut endpoint, table);
                collectives.read_directly_from(0);
                let world = collectives.world();
                collectives
                    .barrier(&mut endpoint, world)
                    .expect("all are there");
                if endpoint.me() == NodeId(1) {
                    // Others may still wait for its part of the barrier.
                    assert!(endpoint.flush(LONG).expect("flush"));
                    return vanish(endpoint);
                }
                let mut data = vec![0_u8; 100_000];
                let outcome = collectives.broadcast(&mut endpoint, world, 0, &mut data);
                let named = matches!(
                    outcome,
                    Err(CollectiveError::MemberDead { member: NodeId(1) })
                );
                assert!(named, "{outcome:?}");
                let _ = endpoint.close(LONG);
            });
        }
    });
}

/// A member that was killed and started again and calls on a group of its last incarnation is told so, instead of waiting for ever. It can be a member of
/// new groups.
#[test]
fn the_next_life_is_no_member_of_old_groups() {
    fn open(link: Udp, id: u16, incarnation: u32, addrs: &[SocketAddr]) -> (Endpoint, Collectives) {
        let options = Options {
            incarnation: Some(incarnation),
            ..quick()
        };
        let membership = Membership::inet(NodeId(id), addrs);
        let mut endpoint = Endpoint::new(link, membership, options).expect("endpoint");
        let collectives = Collectives::with_table(&mut endpoint, Table::default());
        (endpoint, collectives)
    }
    let (stays, dies) = (udp(), udp());
    let addrs = [inet(&stays), inet(&dies)];
    let both = [0, 1].map(NodeId);
    let is_told = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut endpoint, mut collectives) = open(stays, 0, 1, &addrs);
            let world = collectives.world();
            let met = collectives.barrier(&mut endpoint, world);
            met.expect("both are there");
            let lost = collectives.barrier(&mut endpoint, world);
            let is_named = matches!(lost, Err(CollectiveError::MemberDead { member: NodeId(1) }));
            assert!(is_named, "{lost:?}");
            let begun = Instant::now();
            while !(is_told.load(Ordering::Relaxed) && endpoint.is_up(NodeId(1))) {
                collectives.progress(&mut endpoint).expect("progress");
                assert!(begun.elapsed() < LONG, "the next incarnation is never told");
            }
            let group = collectives.group(&endpoint, &both, 1).expect("group");
            let together = collectives.barrier(&mut endpoint, group);
            together.expect("it is a member of new groups");
            let _ = endpoint.close(LONG);
        });
        scope.spawn(|| {
            let (mut endpoint, mut collectives) = open(dies, 1, 1, &addrs);
            let world = collectives.world();
            let met = collectives.barrier(&mut endpoint, world);
            met.expect("both are there");
            assert!(endpoint.flush(LONG).expect("flush"));
            drop(collectives);
            vanish(endpoint);
            let (mut endpoint, mut collectives) = open(udp_again(addrs[1]), 1, 2, &addrs);
            let world = collectives.world();
            let refused = collectives.barrier(&mut endpoint, world);
            let is_dead = matches!(refused, Err(CollectiveError::MemberDead { .. }));
            assert!(is_dead, "{refused:?}");
            is_told.store(true, Ordering::Relaxed);
            let group = collectives.group(&endpoint, &both, 1).expect("group");
            let together = collectives.barrier(&mut endpoint, group);
            together.expect("it is a member of new groups");
            let _ = endpoint.close(LONG);
        });
    });
}

/// A member that is done and leaves is not missed by those that are still busy with each other.
#[test]
fn leaving_after_ones_part_is_no_death() {
    for over in [Over::Shm, Over::LossyUdp(10)] {
        for _ in 0..5 {
            let endpoints = cluster(over, 5, &Options::default());
            std::thread::scope(|scope| {
                for mut endpoint in endpoints {
                    scope.spawn(move || {
                        let mut collectives =
                            Collectives::with_table(&mut endpoint, Table::default());
                        let world = collectives.world();
                        let mut data = vec![u64::from(endpoint.me().0); 10_000];
                        collectives
                            .all_reduce(&mut endpoint, world, &mut data, &Op::maximum())
                            .expect("all-reduce");
                        collectives
                            .broadcast(&mut endpoint, world, 0, &mut data)
                            .expect("broadcast");
                        collectives.barrier(&mut endpoint, world).expect("barrier");
                        assert!(data.iter().all(|value| *value == 4));
                        let _ = endpoint.close(LONG);
                    });
                }
            });
        }
    }
}

/// Seldom calls, none of which ever waits.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Busy {
    Alternating,
    Equal,
    Started,
}

/// A member that computes between broadcasts and never has to wait in one is not taken for dead, be it the root or the last reader.
#[test]
fn busy_members_are_alive() {
    let busy = |kind: Busy, slow: u16| {
        let mut options = quick();
        options.keep_alive = Duration::from_millis(100);
        // So long that 64 broadcasts of the 100, which are what the root may be ahead, take longer than that.
        let computes = options.dead_after / 42;
        std::thread::scope(|scope| {
            for mut endpoint in cluster(Over::Shm, 2, &options) {
                scope.spawn(move || {
                    let mut collectives = Collectives::with_table(&mut endpoint, Table::default());
                    collectives.read_directly_from(0);
                    let world = collectives.world();
                    let me = endpoint.me();
                    for round in 0..100 {
                        if me.0 == slow {
                            std::thread::sleep(computes);
                        }
                        let odd = kind == Busy::Alternating && round % 2 == 1;
                        let mut data = vec![1_u8; if odd { 60 } else { 64 }];
                        let outcome = if kind == Busy::Started {
                            collectives
                                .start_broadcast(&mut endpoint, world, 0, data)
                                .and_then(|begun| collectives.wait(&mut endpoint, begun))
                                .map(drop)
                        } else {
                            collectives.broadcast(&mut endpoint, world, 0, &mut data)
                        };
                        assert!(
                            outcome.is_ok(),
                            "{kind:?}, {slow}, {me}, {round}: {outcome:?}"
                        );
                    }
                    let end = collectives.barrier(&mut endpoint, world);
                    assert!(end.is_ok(), "{kind:?}, {slow}, {me}: {end:?}");
                    let _ = endpoint.close(LONG);
                });
            }
        });
    };
    std::thread::scope(|scope| {
        for kind in [Busy::Alternating, Busy::Equal, Busy::Started] {
            for slow in 0..2 {
                scope.spawn(move || busy(kind, slow));
            }
        }
    });
}
