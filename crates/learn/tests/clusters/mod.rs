//! Clusters of endpoints in one process, over real links. Used by tests, and by the example `simulated_gossip` for what it measures.

#![allow(dead_code, reason = "not all users need all of it")]

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use tsumuji_learn::gossip::{Watch, WorkerError, run, worker_main};
use tsumuji_learn::report::Outcome;
use tsumuji_learn::{LearnConfig, Mode, Problem};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{AnyLink, Endpoint, ImpairConfig, Link, LinkAddr, Membership, NodeId, Options};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Over {
    Shm,
    Udp,
}

/// Endpoints of all nodes, each to be driven by a thread of its own; each loses this fraction of what it receives.
pub(crate) fn cluster(over: Over, nodes: u16, loss: f64) -> Vec<Endpoint> {
    let (bases, memberships): (Vec<Base>, Vec<Membership>) = match over {
        Over::Shm => {
            let job = ShmJob::create(nodes.into(), ShmConfig::for_nodes(nodes.into())).unwrap();
            let base = |id| Base::Shm(Shm::attach(&job, id).unwrap());
            (0..nodes)
                .map(|id| (base(id), Membership::local(NodeId(id), nodes)))
                .unzip()
        }
        Over::Udp => {
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            let bind = |_| Udp::bind(any, UdpConfig::default()).unwrap();
            let links: Vec<Udp> = (0..nodes).map(bind).collect();
            let addr = |link: &Udp| match link.local_addr() {
                LinkAddr::Inet(addr) => addr,
                other => panic!("{other:?}"),
            };
            let addrs: Vec<SocketAddr> = links.iter().map(addr).collect();
            let member = |(id, link)| (Base::Udp(link), Membership::inet(NodeId(id), &addrs));
            (0..nodes).zip(links).map(member).unzip()
        }
    };
    let open = |(id, (base, membership)): (u64, (Base, Membership))| {
        let impair = ImpairConfig {
            loss,
            seed: 31 + id,
            ..ImpairConfig::default()
        };
        let link = AnyLink::open(base, (loss > 0.0).then_some(impair), None).unwrap();
        Endpoint::new(link, membership, Options::default()).unwrap()
    };
    (0..)
        .zip(bases.into_iter().zip(memberships))
        .map(open)
        .collect()
}

/// Drives a worker by a thread of its own.
pub(crate) fn serve(mut endpoint: Endpoint) -> JoinHandle<Result<(), WorkerError>> {
    thread::spawn(move || worker_main(&mut endpoint))
}

/// Knows of no process, and never stops.
pub(crate) struct Nobody;

impl Watch for Nobody {}

/// Runs judge and workers to the end; every worker must leave in good order.
pub(crate) fn learn(
    over: Over,
    workers: u16,
    loss: f64,
    problem: &Problem,
    config: &LearnConfig,
    mode: Mode,
) -> Outcome {
    let mut nodes = cluster(over, workers + 1, loss).into_iter();
    let mut judge = nodes.next().unwrap();
    let team: Vec<_> = nodes.map(serve).collect();
    // A failure is told before workers are waited for: they may not end.
    let outcome = run(&mut judge, problem, config, mode, &mut Nobody).unwrap();
    for worker in team {
        worker.join().unwrap().unwrap();
    }
    outcome
}
