//! Figures compared with MPI's own shared memory: ping-pong and burst between two processes of this host, ours over `shm`, Open MPI and MPICH over
//! theirs, and bare copies through shared memory, in turn in one run.
//!
//! A virtual machine's two cores may move while it runs, which changes every figure: a round measured after such a move shows in the spread.

use tsumuji_node::LinkSpec;

use super::{Log, Setting, Wanted, mpi};
use crate::compare::{Comparison, Plan};
use crate::contest::{self, Ground, Ours, Peer};
use crate::ops::Op;
use crate::stats::size_name;

/// The peers, behind ours in the list of contenders.
const PEERS: [Peer; 3] = [Peer::OpenMpi, Peer::Mpich, Peer::Bare];
const OURS: usize = 0;
const BARE: usize = 3;
/// Limit for small messages, relative to an MPI, which need not support other links.
const SMALL_AT_MOST: f64 = 1.1;
/// Limit relative to a copy without any protocol.
const COPY_AT_MOST: f64 = 1.5;
/// Limit of the slowest hundredth of round trips, relative to the median.
const TAIL_AT_MOST: f64 = 2.0;
const SMALL_SIZES: [usize; 2] = [8, 1 << 10];

fn sizes(setting: &Setting) -> Vec<usize> {
    let all = [
        4,
        8,
        64,
        1 << 10,
        4 << 10,
        16 << 10,
        64 << 10,
        512 << 10,
        4 << 20,
        64 << 20,
    ];
    let largest = setting.tried_or(4 << 10, usize::MAX);
    all.into_iter().filter(|&size| size <= largest).collect()
}

/// All figures between two processes of this host.
pub(super) fn memory(setting: &Setting, log: &mut Log<'_>) {
    let ours = [Ours::here(LinkSpec::Shm, setting.program.clone())];
    let ground = Ground::HERE;
    for op in [Op::Pingpong, Op::Burst] {
        let plan = Plan {
            op,
            nodes: 2,
            sizes: sizes(setting),
            iterations: setting.is_tried().then_some(50),
            bits_per_second: None,
            rounds: setting.rounds,
        };
        let mut contenders = contest::contenders(&ours, &PEERS, &ground, op);
        let comparison = log.compare(&plan, &mut contenders);
        if op == Op::Pingpong {
            small(&comparison, log);
        }
        for peer in 1..BARE {
            worst(&comparison, op, peer, log);
        }
        log.peers(&comparison, 1..BARE);
    }
}

/// Ping-pongs of small messages: compared with each peer, and the slowest hundredth.
fn small(comparison: &Comparison, log: &mut Log<'_>) {
    let rows = comparison.results.iter();
    for row in rows.filter(|row| SMALL_SIZES.contains(&row.size)) {
        let size = size_name(row.size);
        for (peer, bound) in [(1, SMALL_AT_MOST), (2, SMALL_AT_MOST), (BARE, COPY_AT_MOST)] {
            let name = format!("shm ping-pong, {size}, of the time");
            let ratio = 1.0 / row.times_better(OURS, peer);
            let (found, wanted) = (Some((row, ratio)), Wanted::AtMost(bound));
            mpi::worst(log, name, comparison, found, (OURS, peer), wanted);
        }
        let numbers = row.contenders[OURS].numbers.as_ref();
        let (p50, p99) = numbers.map_or((f64::NAN, f64::NAN), |numbers| {
            (numbers.headline.median, numbers.p99_us.unwrap_or(f64::NAN))
        });
        let name = format!("shm ping-pong, {size}, p99 beside p50");
        let (ours, beside) = (format!("{p99:.3} us"), format!("{p50:.3} us"));
        let wanted = Wanted::AtMost(TAIL_AT_MOST);
        log.add(name, ours, beside, p99 / p50, wanted);
    }
}

/// The size at which ours is least ahead of a peer.
fn worst(comparison: &Comparison, op: Op, peer: usize, log: &mut Log<'_>) {
    let found = mpi::least(comparison, |_| true, |row| row.times_better(OURS, peer));
    let name = format!("shm {op}, times better, worst of all sizes");
    let wanted = Wanted::AtLeast(1.0);
    mpi::worst(log, name, comparison, found, (OURS, peer), wanted);
}
