//! Every operation by every algorithm, on vectors that tell whether it came out right.

use tsumuji_collective::table::{Operation, Rule};
use tsumuji_collective::{Algorithm, CollectiveError, Collectives, Group, Op, Table};
use tsumuji_node::Endpoint;

/// Elements of 8 bytes: on credit, at its limit, in pieces or read directly, and long ones.
pub(crate) const SIZES: [usize; 7] = [1, 100, 1024, 1025, 20_000, 150_000, 600_000];

/// Who, where, and in which round.
pub(crate) struct Turn<'a> {
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) collectives: &'a mut Collectives,
    pub(crate) group: Group,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) count: usize,
    pub(crate) round: usize,
}

type Body = fn(Turn<'_>) -> Result<(), CollectiveError>;

pub(crate) struct Kind {
    pub(crate) name: &'static str,
    choice: Option<(Operation, Algorithm)>,
    pub(crate) body: Body,
}

const fn kind(name: &'static str, choice: Option<(Operation, Algorithm)>, body: Body) -> Kind {
    Kind { name, choice, body }
}

const fn by(operation: Operation, algorithm: Algorithm) -> Option<(Operation, Algorithm)> {
    Some((operation, algorithm))
}

pub(crate) const KINDS: [Kind; 20] = [
    kind("barrier", None, barrier),
    kind(
        "broadcast-flat",
        by(Operation::Broadcast, Algorithm::Flat),
        broadcast,
    ),
    kind(
        "broadcast-tree",
        by(Operation::Broadcast, Algorithm::Tree),
        broadcast,
    ),
    kind(
        "broadcast-chain",
        by(Operation::Broadcast, Algorithm::Chain),
        broadcast,
    ),
    kind(
        "broadcast-native",
        by(Operation::Broadcast, Algorithm::Native),
        broadcast,
    ),
    kind("scatter", None, scatter),
    kind("scatter-v", None, scatter_v),
    kind("gather", None, gather),
    kind("gather-v", None, gather_v),
    kind(
        "all-gather-flat",
        by(Operation::AllGather, Algorithm::Flat),
        all_gather,
    ),
    kind(
        "all-gather-ring",
        by(Operation::AllGather, Algorithm::Ring),
        all_gather,
    ),
    kind(
        "reduce-tree",
        by(Operation::Reduce, Algorithm::Tree),
        reduce,
    ),
    kind(
        "reduce-chain",
        by(Operation::Reduce, Algorithm::Chain),
        reduce,
    ),
    kind(
        "all-reduce-doubling",
        by(Operation::AllReduce, Algorithm::Doubling),
        all_reduce,
    ),
    kind(
        "all-reduce-halving",
        by(Operation::AllReduce, Algorithm::Halving),
        all_reduce,
    ),
    kind(
        "all-reduce-ring",
        by(Operation::AllReduce, Algorithm::Ring),
        all_reduce,
    ),
    kind(
        "all-reduce-tree",
        by(Operation::AllReduce, Algorithm::Tree),
        all_reduce,
    ),
    kind(
        "all-reduce-chain",
        by(Operation::AllReduce, Algorithm::Chain),
        all_reduce,
    ),
    kind("all-to-all", None, all_to_all),
    kind("several", None, several),
];

impl Kind {
    pub(crate) fn table(&self) -> Table {
        let Some((operation, algorithm)) = self.choice else {
            return Table::default();
        };
        let rule = Rule {
            operation,
            link: None,
            nodes_up_to: None,
            bytes_up_to: None,
            algorithm,
        };
        Table { rules: vec![rule] }
    }
}

/// Element of what `rank` gives; not every place of a long vector is checked.
pub(crate) fn value(rank: usize, round: usize) -> u64 {
    (rank as u64 + 1) * 1_000_003 + round as u64 * 104_729
}

fn given(turn: &Turn<'_>) -> Vec<u64> {
    vec![value(turn.rank, turn.round); turn.count]
}

/// All of one value.
fn is(found: &[u64], wanted: u64) {
    assert!(found.iter().all(|value| *value == wanted), "a wrong result");
}

fn sum_of(turn: &Turn<'_>) -> u64 {
    (0..turn.size).map(|rank| value(rank, turn.round)).sum()
}

fn barrier(turn: Turn<'_>) -> Result<(), CollectiveError> {
    turn.collectives.barrier(turn.endpoint, turn.group)
}

fn broadcast(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let (root, mut data) = (turn.round % turn.size, given(&turn));
    turn.collectives
        .broadcast(turn.endpoint, turn.group, root, &mut data)?;
    is(&data, value(root, turn.round));
    Ok(())
}

fn scatter(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let root = turn.round % turn.size;
    let ranks = 0..if turn.rank == root { turn.size } else { 0 };
    let send: Vec<u64> = ranks
        .flat_map(|rank| vec![value(rank, turn.round); turn.count])
        .collect();
    let mut own = vec![0; turn.count];
    turn.collectives
        .scatter(turn.endpoint, turn.group, root, &send, &mut own)?;
    is(&own, value(turn.rank, turn.round));
    Ok(())
}

/// Rank i's part is longer by i elements.
fn counts(turn: &Turn<'_>) -> Vec<usize> {
    (0..turn.size).map(|rank| turn.count + rank).collect()
}

fn parts(turn: &Turn<'_>) -> Vec<u64> {
    counts(turn)
        .into_iter()
        .enumerate()
        .flat_map(|(rank, count)| vec![value(rank, turn.round); count])
        .collect()
}

fn scatter_v(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let root = turn.round % turn.size;
    let (counts, send) = (counts(&turn), parts(&turn));
    let mut own = vec![0; counts[turn.rank]];
    turn.collectives
        .scatter_v(turn.endpoint, turn.group, root, &send, &counts, &mut own)?;
    is(&own, value(turn.rank, turn.round));
    Ok(())
}

fn gather(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let (root, own) = (turn.round % turn.size, given(&turn));
    let mut all = vec![
        0;
        if turn.rank == root {
            turn.size * turn.count
        } else {
            0
        }
    ];
    turn.collectives
        .gather(turn.endpoint, turn.group, root, &own, &mut all)?;
    for (rank, part) in all.chunks(turn.count).enumerate() {
        is(part, value(rank, turn.round));
    }
    Ok(())
}

fn gather_v(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let root = turn.round % turn.size;
    let (counts, wanted) = (counts(&turn), parts(&turn));
    let own = vec![value(turn.rank, turn.round); counts[turn.rank]];
    let mut all = vec![0; wanted.len()];
    turn.collectives
        .gather_v(turn.endpoint, turn.group, root, &own, &mut all, &counts)?;
    assert!(turn.rank != root || all == wanted, "a wrong result");
    Ok(())
}

fn all_gather(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let (counts, wanted) = (counts(&turn), parts(&turn));
    let own = vec![value(turn.rank, turn.round); counts[turn.rank]];
    let mut all = vec![0; wanted.len()];
    turn.collectives
        .all_gather_v(turn.endpoint, turn.group, &own, &mut all, &counts)?;
    assert!(all == wanted, "a wrong result");
    Ok(())
}

fn reduce(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let (root, own, wanted) = (turn.round % turn.size, given(&turn), sum_of(&turn));
    let mut sums = vec![0; if turn.rank == root { turn.count } else { 0 }];
    turn.collectives
        .reduce(turn.endpoint, turn.group, root, &own, &mut sums, &Op::sum())?;
    is(&sums, wanted);
    Ok(())
}

fn all_reduce(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let (mut data, wanted) = (given(&turn), sum_of(&turn));
    turn.collectives
        .all_reduce(turn.endpoint, turn.group, &mut data, &Op::sum())?;
    is(&data, wanted);
    Ok(())
}

fn all_to_all(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let send: Vec<u64> = (0..turn.size)
        .flat_map(|to| vec![value(turn.rank, turn.round) + to as u64; turn.count])
        .collect();
    let mut got = vec![0; send.len()];
    turn.collectives
        .all_to_all(turn.endpoint, turn.group, &send, &mut got)?;
    for (from, part) in got.chunks(turn.count).enumerate() {
        is(part, value(from, turn.round) + turn.rank as u64);
    }
    Ok(())
}

/// Non-blocking ones, all under way at once.
fn several(turn: Turn<'_>) -> Result<(), CollectiveError> {
    let (root, wanted) = (turn.round % turn.size, sum_of(&turn));
    let bytes = vec![8 * turn.count; turn.size];
    let (c, e, group) = (turn.collectives, turn.endpoint, turn.group);
    let own = vec![value(turn.rank, turn.round); turn.count];
    let sums = c.start_all_reduce(e, group, own.clone(), &Op::<u64>::sum())?;
    let cast = c.start_broadcast(e, group, root, own.clone())?;
    let all = c.start_all_gather_v(
        e,
        group,
        own.clone(),
        vec![0_u64; turn.count * turn.size],
        &bytes,
    )?;
    let barrier = c.start_barrier(e, group)?;
    let gathered = c.start_gather_v(
        e,
        group,
        root,
        own,
        vec![
            0_u64;
            if turn.rank == root {
                turn.count * turn.size
            } else {
                0
            }
        ],
        &bytes,
    )?;
    let outcomes = [
        c.wait(e, gathered).map(drop),
        c.wait(e, barrier).map(drop),
        c.wait(e, all).map(drop),
        c.wait(e, cast)
            .map(|data| is(&data, value(root, turn.round))),
        c.wait(e, sums).map(|data| is(&data, wanted)),
    ];
    outcomes.into_iter().collect()
}
