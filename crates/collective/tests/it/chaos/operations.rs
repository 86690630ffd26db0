//! Every operation by every algorithm, on vectors that tell whether it came out right.

use tsumuji_collective::table::{Operation, Rule};
use tsumuji_collective::{Algorithm, CollectiveError, Collectives, Group, Op, Table};
use tsumuji_node::Endpoint;

/// Elements of 8 bytes: on credit, at its limit, in pieces or read directly, and long ones.
pub(crate) const SIZES: [usize; 7] = [1, 100, 1024, 1025, 20_000, 150_000, 600_000];

/// Who, where, and in which round.
pub(crate) struct Call<'a> {
    pub(crate) endpoint: &'a mut Endpoint,
    pub(crate) collectives: &'a mut Collectives,
    pub(crate) group: Group,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) count: usize,
    pub(crate) round: usize,
}

type Body = fn(Call<'_>) -> Result<(), CollectiveError>;

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

fn given(call: &Call<'_>) -> Vec<u64> {
    vec![value(call.rank, call.round); call.count]
}

/// All of one value.
fn is(found: &[u64], wanted: u64) {
    assert!(found.iter().all(|value| *value == wanted), "a wrong result");
}

fn sum_of(call: &Call<'_>) -> u64 {
    (0..call.size).map(|rank| value(rank, call.round)).sum()
}

fn barrier(call: Call<'_>) -> Result<(), CollectiveError> {
    call.collectives.barrier(call.endpoint, call.group)
}

fn broadcast(call: Call<'_>) -> Result<(), CollectiveError> {
    let (root, mut data) = (call.round % call.size, given(&call));
    call.collectives
        .broadcast(call.endpoint, call.group, root, &mut data)?;
    is(&data, value(root, call.round));
    Ok(())
}

fn scatter(call: Call<'_>) -> Result<(), CollectiveError> {
    let root = call.round % call.size;
    let ranks = 0..if call.rank == root { call.size } else { 0 };
    let send: Vec<u64> = ranks
        .flat_map(|rank| vec![value(rank, call.round); call.count])
        .collect();
    let mut own = vec![0; call.count];
    call.collectives
        .scatter(call.endpoint, call.group, root, &send, &mut own)?;
    is(&own, value(call.rank, call.round));
    Ok(())
}

/// Rank i's part is longer by i elements.
fn counts(call: &Call<'_>) -> Vec<usize> {
    (0..call.size).map(|rank| call.count + rank).collect()
}

fn parts(call: &Call<'_>) -> Vec<u64> {
    counts(call)
        .into_iter()
        .enumerate()
        .flat_map(|(rank, count)| vec![value(rank, call.round); count])
        .collect()
}

fn scatter_v(call: Call<'_>) -> Result<(), CollectiveError> {
    let root = call.round % call.size;
    let (counts, send) = (counts(&call), parts(&call));
    let mut own = vec![0; counts[call.rank]];
    call.collectives
        .scatter_v(call.endpoint, call.group, root, &send, &counts, &mut own)?;
    is(&own, value(call.rank, call.round));
    Ok(())
}

fn gather(call: Call<'_>) -> Result<(), CollectiveError> {
    let (root, own) = (call.round % call.size, given(&call));
    let mut all = vec![
        0;
        if call.rank == root {
            call.size * call.count
        } else {
            0
        }
    ];
    call.collectives
        .gather(call.endpoint, call.group, root, &own, &mut all)?;
    for (rank, part) in all.chunks(call.count).enumerate() {
        is(part, value(rank, call.round));
    }
    Ok(())
}

fn gather_v(call: Call<'_>) -> Result<(), CollectiveError> {
    let root = call.round % call.size;
    let (counts, wanted) = (counts(&call), parts(&call));
    let own = vec![value(call.rank, call.round); counts[call.rank]];
    let mut all = vec![0; wanted.len()];
    call.collectives
        .gather_v(call.endpoint, call.group, root, &own, &mut all, &counts)?;
    assert!(call.rank != root || all == wanted, "a wrong result");
    Ok(())
}

fn all_gather(call: Call<'_>) -> Result<(), CollectiveError> {
    let (counts, wanted) = (counts(&call), parts(&call));
    let own = vec![value(call.rank, call.round); counts[call.rank]];
    let mut all = vec![0; wanted.len()];
    call.collectives
        .all_gather_v(call.endpoint, call.group, &own, &mut all, &counts)?;
    assert!(all == wanted, "a wrong result");
    Ok(())
}

fn reduce(call: Call<'_>) -> Result<(), CollectiveError> {
    let (root, own, wanted) = (call.round % call.size, given(&call), sum_of(&call));
    let mut sums = vec![0; if call.rank == root { call.count } else { 0 }];
    call.collectives
        .reduce(call.endpoint, call.group, root, &own, &mut sums, &Op::sum())?;
    is(&sums, wanted);
    Ok(())
}

fn all_reduce(call: Call<'_>) -> Result<(), CollectiveError> {
    let (mut data, wanted) = (given(&call), sum_of(&call));
    call.collectives
        .all_reduce(call.endpoint, call.group, &mut data, &Op::sum())?;
    is(&data, wanted);
    Ok(())
}

fn all_to_all(call: Call<'_>) -> Result<(), CollectiveError> {
    let send: Vec<u64> = (0..call.size)
        .flat_map(|to| vec![value(call.rank, call.round) + to as u64; call.count])
        .collect();
    let mut got = vec![0; send.len()];
    call.collectives
        .all_to_all(call.endpoint, call.group, &send, &mut got)?;
    for (from, part) in got.chunks(call.count).enumerate() {
        is(part, value(from, call.round) + call.rank as u64);
    }
    Ok(())
}

/// Non-blocking ones, all under way at once.
fn several(call: Call<'_>) -> Result<(), CollectiveError> {
    let (root, wanted) = (call.round % call.size, sum_of(&call));
    let bytes = vec![8 * call.count; call.size];
    let (c, e, group) = (call.collectives, call.endpoint, call.group);
    let own = vec![value(call.rank, call.round); call.count];
    let sums = c.start_all_reduce(e, group, own.clone(), &Op::<u64>::sum())?;
    let cast = c.start_broadcast(e, group, root, own.clone())?;
    let all = c.start_all_gather_v(
        e,
        group,
        own.clone(),
        vec![0_u64; call.count * call.size],
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
            if call.rank == root {
                call.count * call.size
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
            .map(|data| is(&data, value(root, call.round))),
        c.wait(e, sums).map(|data| is(&data, wanted)),
    ];
    outcomes.into_iter().collect()
}
