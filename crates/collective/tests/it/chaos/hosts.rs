//! Random sequences of operations on two hosts, several under way at once, while frames between the hosts are lost and overtaken. Every result is
//! compared with that of the same operation in one thread.

use fastrand::Rng;
use tsumuji_collective::table::Operation;
use tsumuji_collective::{Algorithm, CollectiveError, Group, Op, Request, Table};
use tsumuji_node::{NodeId, Options};

use super::case::NODES_MAX;
use crate::common::{Member, Over, on_all, only, values};

/// Operations in a round, and the most of them that are under way at once.
const OPERATIONS: usize = 24;
const AT_ONCE: usize = 4;

/// Elements of 8 bytes: short ones that are combined, on credit, at its limit, and in pieces or read directly.
const COUNTS: [usize; 7] = [0, 1, 100, 128, 1025, 9000, 20_000];

/// Percentage of frames between the hosts that is lost, and overtaken.
const ROUGH_PERCENT: [u32; 3] = [1, 5, 10];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Broadcast,
    Scatter,
    Gather,
    AllGather,
    AllToAll,
    Reduce,
    AllReduce,
    OrderedAllReduce,
}

const KINDS: [Kind; 8] = [
    Kind::Broadcast,
    Kind::Scatter,
    Kind::Gather,
    Kind::AllGather,
    Kind::AllToAll,
    Kind::Reduce,
    Kind::AllReduce,
    Kind::OrderedAllReduce,
];

/// One operation, as all members know it.
#[derive(Debug)]
struct Task {
    kind: Kind,
    root: usize,
    /// Number of the operation, which tells its values from those of others.
    number: usize,
    /// Elements of each rank's part, or of a whole vector.
    counts: Vec<usize>,
}

/// The high half of the first operand and the low half of the last one: associative, and the order of operands matters.
fn last_below_first(a: u64, b: u64) -> u64 {
    (a & !0xffff_ffff) | (b & 0xffff_ffff)
}

impl Task {
    fn any(dice: &mut Rng, number: usize, size: usize) -> Self {
        let kind = KINDS[dice.usize(..KINDS.len())];
        let count = |dice: &mut Rng| COUNTS[dice.usize(..COUNTS.len())];
        let equal = vec![count(dice); size];
        let has_parts = matches!(kind, Kind::Scatter | Kind::Gather | Kind::AllGather);
        let counts = if has_parts && dice.bool() {
            (0..size).map(|_| count(dice)).collect()
        } else {
            equal
        };
        Self {
            kind,
            root: dice.usize(..size),
            number,
            counts,
        }
    }

    /// What a rank gives: its own part or vector.
    fn given(&self, rank: usize) -> Vec<u64> {
        values(rank, self.counts[rank], self.number)
    }

    /// The parts of all ranks, one behind the other.
    fn all(&self) -> Vec<u64> {
        let ranks = 0..self.counts.len();
        ranks.flat_map(|rank| self.given(rank)).collect()
    }

    /// The part of an all-to-all that goes from one rank to another one.
    fn between(&self, from: usize, to: usize) -> Vec<u64> {
        values(100 * from + to, self.counts[0], self.number)
    }

    fn folded(&self, fold: fn(u64, u64) -> u64) -> Vec<u64> {
        let ranks = 1..self.counts.len();
        ranks.fold(self.given(0), |folded, rank| {
            let pairs = folded.into_iter().zip(self.given(rank));
            pairs.map(|(a, b)| fold(a, b)).collect()
        })
    }

    /// What a rank has in the end.
    fn wanted(&self, rank: usize) -> Vec<u64> {
        let ranks = 0..self.counts.len();
        match self.kind {
            Kind::Broadcast => self.given(self.root),
            Kind::Scatter => self.given(rank),
            Kind::AllGather => self.all(),
            Kind::AllToAll => ranks.flat_map(|from| self.between(from, rank)).collect(),
            Kind::AllReduce => self.folded(u64::wrapping_add),
            Kind::OrderedAllReduce => self.folded(last_below_first),
            Kind::Gather | Kind::Reduce if rank != self.root => Vec::new(),
            Kind::Gather => self.all(),
            Kind::Reduce => self.folded(u64::wrapping_add),
        }
    }

    fn start(
        &self,
        member: &mut Member,
        group: Group,
        rank: usize,
    ) -> Result<Request<Vec<u64>>, CollectiveError> {
        let (c, e) = (&mut member.collectives, &mut member.endpoint);
        let (root, own) = (self.root, self.given(rank));
        let memory = vec![0; self.wanted(rank).len()];
        let bytes: Vec<usize> = self.counts.iter().map(|count| 8 * count).collect();
        match self.kind {
            Kind::Broadcast if rank == root => c.start_broadcast(e, group, root, own),
            Kind::Broadcast => c.start_broadcast(e, group, root, memory),
            Kind::Scatter if rank == root => {
                c.start_scatter_v(e, group, root, self.all(), &bytes, memory)
            }
            Kind::Scatter => c.start_scatter_v(e, group, root, Vec::<u64>::new(), &[], memory),
            Kind::Gather => c.start_gather_v(e, group, root, own, memory, &bytes),
            Kind::AllGather => c.start_all_gather_v(e, group, own, memory, &bytes),
            Kind::AllToAll => {
                let goes = (0..bytes.len()).flat_map(|to| self.between(rank, to));
                c.start_all_to_all(e, group, goes.collect::<Vec<u64>>(), memory)
            }
            Kind::Reduce => {
                let op = (&Op::<u64>::sum()).into();
                c.start_reduce_raw(e, group, root, own, memory, &op)
            }
            Kind::AllReduce => c.start_all_reduce(e, group, own, &Op::<u64>::sum()),
            Kind::OrderedAllReduce => {
                c.start_all_reduce(e, group, own, &Op::<u64>::ordered(last_below_first))
            }
        }
    }
}

/// The built-in table, or an all-gather of any length by hosts.
fn table(dice: &mut Rng) -> Table {
    if dice.bool() {
        return Table::default();
    }
    only(Operation::AllGather, Algorithm::Hosts)
}

/// Plays one round: all members draw the same operations, and each waits for those under way in an order of its own.
pub(crate) fn play(seed: u64, round: u64) {
    let mut dice = Rng::with_seed(seed ^ (0x4057 << 48) ^ (round << 32));
    let nodes = dice.u16(3..=NODES_MAX);
    let percent = ROUGH_PERCENT[dice.usize(..ROUGH_PERCENT.len())];
    // Hosts as equal as can be, or all but one on the first.
    let each = if dice.bool() {
        nodes.div_ceil(2)
    } else {
        nodes - 1
    };
    let table = table(&mut dice);
    // Ranks of a host are neighbours in the world, but not in a group of another order.
    let mut ids: Vec<NodeId> = (0..nodes).map(NodeId).collect();
    dice.shuffle(&mut ids);
    let in_world = dice.bool();
    let rest = dice.u64(..);
    eprintln!(
        "TSUMUJI_SEED={seed}, round {round}: {nodes} nodes, {each} on the first host, {percent} % lost"
    );
    let (over, options) = (Over::RoughHosts(each, percent), Options::default());
    on_all(over, nodes, &options, &table, |member| {
        let mut dice = Rng::with_seed(rest);
        let mut own_dice = Rng::with_seed(rest ^ (u64::from(member.endpoint.me().0) + 1));
        let group = if in_world {
            member.collectives.world()
        } else {
            let group = member.collectives.group(&member.endpoint, &ids, 1);
            group.expect("group")
        };
        let rank = member.collectives.rank(group).expect("a member");
        let (size, mut number) = (member.size, 0);
        while number < OPERATIONS {
            let mut under_way = Vec::new();
            for _ in 0..dice.usize(1..=AT_ONCE) {
                let task = Task::any(&mut dice, number, size);
                number += 1;
                let request = task.start(member, group, rank);
                let request = request.unwrap_or_else(|error| panic!("{rank}, {task:?}: {error}"));
                under_way.push((task, request));
            }
            own_dice.shuffle(&mut under_way);
            for (task, request) in under_way {
                let found = member.collectives.wait(&mut member.endpoint, request);
                let found = found.unwrap_or_else(|error| panic!("{rank}, {task:?}: {error}"));
                assert!(
                    found == task.wanted(rank),
                    "a wrong result at {rank}: {task:?}"
                );
            }
        }
        let last = member.collectives.barrier(&mut member.endpoint, group);
        last.expect("barrier");
    });
}
