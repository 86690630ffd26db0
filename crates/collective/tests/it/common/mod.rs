//! What the tests share: a cluster of endpoints in the threads of this process, and data that tells ranks and places apart.

#[path = "../../../../node/tests/common/mod.rs"]
mod node;

pub(crate) use node::hosts::{Wire, open, testbed};
pub(crate) use node::{LONG, Over, cluster, inet, udp, udp_again};
use tsumuji_collective::table::{Operation, Rule};
use tsumuji_collective::{Algorithm, Collectives, Table};
use tsumuji_node::{Endpoint, Options};

/// One member as a test's body gets it.
pub(crate) struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) collectives: Collectives,
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// Runs `body` on every member of a cluster, each in a thread; a panic of one is the test's.
pub(crate) fn on_all(
    over: Over,
    nodes: u16,
    options: &Options,
    table: &Table,
    body: impl Fn(&mut Member) + Sync,
) {
    let endpoints = cluster(over, nodes, options);
    std::thread::scope(|scope| {
        for mut endpoint in endpoints {
            let body = &body;
            scope.spawn(move || {
                let mut collectives = Collectives::with_table(&mut endpoint, table.clone());
                collectives.read_directly_from(0);
                let mut member = Member {
                    rank: endpoint.me().0.into(),
                    size: nodes.into(),
                    endpoint,
                    collectives,
                };
                body(&mut member);
                let _ = member.endpoint.close(LONG);
            });
        }
    });
}

/// One algorithm for everything that it can do.
pub(crate) fn only(operation: Operation, algorithm: Algorithm) -> Table {
    Table {
        rules: vec![Rule {
            operation,
            link: None,
            nodes_up_to: None,
            bytes_up_to: None,
            algorithm,
        }],
    }
}

/// Element `place` of what `rank` gives in a round.
pub(crate) fn value(rank: usize, place: usize, round: usize) -> u64 {
    let mixed = (rank as u64 + 1) * 1_000_003 + place as u64 * 7_919 + round as u64 * 104_729;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn values(rank: usize, count: usize, round: usize) -> Vec<u64> {
    (0..count).map(|place| value(rank, place, round)).collect()
}
