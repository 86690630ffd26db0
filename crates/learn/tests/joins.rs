//! Workers that join while others learn: over UDP, each with its own endpoint in its own thread.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tsumuji_learn::data::{Data, Features, Targets};
use tsumuji_learn::gossip::{Watch, run, worker_main};
use tsumuji_learn::report::{Outcome, Reason};
use tsumuji_learn::{
    Average, Kind, LearnConfig, Method, Mode, Preparation, Problem, SgdConfig, single,
};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{AnyLink, Endpoint, JoinRequest, Link, LinkAddr, Membership, NodeId, Options};

const ROWS: usize = 3_000;
const CLASSES: usize = 24;
/// Turns a hang into a failure.
const LONG: Duration = Duration::from_secs(60);

fn link() -> (AnyLink, SocketAddr) {
    let udp = Udp::bind("127.0.0.1:0".parse().unwrap(), UdpConfig::default()).unwrap();
    let LinkAddr::Inet(addr) = udp.local_addr() else {
        panic!("UDP has an address")
    };
    (AnyLink::open(Base::Udp(udp), None, None).unwrap(), addr)
}

/// Node 0 admits.
fn cluster(nodes: u16) -> (Vec<Endpoint>, SocketAddr) {
    let (links, addrs): (Vec<AnyLink>, Vec<SocketAddr>) = (0..nodes).map(|_| link()).unzip();
    let open = |(id, link)| {
        let options = Options {
            admits: id == 0,
            ..Options::default()
        };
        Endpoint::new(link, Membership::inet(NodeId(id), &addrs), options).unwrap()
    };
    ((0..nodes).zip(links).map(open).collect(), addrs[0])
}

/// So many classes that each step takes long compared with a few thousand rows on their way.
fn problem(config: &LearnConfig) -> Problem {
    let columns = if config.method == Method::Newton {
        120
    } else {
        20
    };
    let mut random = fastrand::Rng::with_seed(17);
    let (mut values, mut ids) = (Vec::new(), Vec::new());
    for row in 0..ROWS {
        let class = row % CLASSES;
        let at = |j: usize| if j % CLASSES == class { 0.3 } else { 0.0 };
        values.extend((0..columns).map(|j| random.f64() + at(j)));
        ids.push(class as u32);
    }
    let data = Data {
        features: Features::Dense { columns, values },
        names: None,
        target_name: None,
        targets_fault: None,
        targets: Some(Targets::Labels {
            classes: (0..CLASSES).map(|class| format!("c{class:02}")).collect(),
            ids,
        }),
    };
    let how = Preparation {
        scales: true,
        shuffles: true,
    };
    Problem::new(data, config, how).unwrap()
}

fn config(method: Method) -> LearnConfig {
    LearnConfig {
        kind: Kind::Logistic,
        method,
        average: Average::default(),
        sgd: SgdConfig {
            epochs: 300,
            period: 4,
            ..SgdConfig::default()
        },
        l2: 1e-3,
        tol: if method == Method::Newton {
            1e-9
        } else {
            1e-12
        },
        seed: 3,
    }
}

/// Tells that these workers have ended.
struct Ended(Vec<usize>);

impl Watch for Ended {
    fn ended(&mut self) -> Vec<(usize, String)> {
        let ended = self.0.drain(..);
        ended.map(|worker| (worker, "killed".to_owned())).collect()
    }
}

/// Worker 1 learns, those in `dead` are said to have ended, and one joins before worker 1 has its rows.
fn learn(problem: &Problem, config: &LearnConfig, dead: Vec<usize>) -> Outcome {
    let (endpoints, addr) = cluster(2 + dead.len() as u16);
    let mut endpoints = endpoints.into_iter();
    let mut judge = endpoints.next().unwrap();
    let mut first = endpoints.next().unwrap();
    let outcome = thread::scope(|scope| {
        scope.spawn(move || {
            let request = JoinRequest {
                to: LinkAddr::Inet(addr),
                name: "late".to_owned(),
                id: None,
            };
            let mut late = Endpoint::join(link().0, request, Options::default(), LONG).unwrap();
            let first = thread::spawn(move || worker_main(&mut first));
            worker_main(&mut late).unwrap();
            first.join().unwrap().unwrap();
        });
        run(&mut judge, problem, config, Mode::Gossip, &mut Ended(dead)).unwrap()
    });
    endpoints.for_each(Endpoint::vanish);
    outcome
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, f64::max)
}

/// A worker that joins gets a part of the only other's rows, and the sums of both are those of all rows, by a table and by push-sum.
#[test]
fn worker_joins() {
    for average in [Average::Table, Average::PushSum] {
        let config = LearnConfig {
            average,
            ..config(Method::Newton)
        };
        let problem = problem(&config);
        let wanted = single::learn(&problem.share, &config, &mut || false);
        let outcome = learn(&problem, &config, vec![]);
        assert_eq!((outcome.reason, outcome.rows), (Reason::Converged, ROWS));
        assert!(outcome.exchanges > 0, "it took no part");
        assert!(outcome.dropped.is_empty() && outcome.disagreement == 0.0);
        assert_eq!(outcome.joined, 1);
        assert!(distance(&outcome.theta, &wanted.theta) < 1e-7);
    }
}

/// A worker that joins after another's death gets the rows that were missing: the result is that of all rows.
#[test]
fn worker_joins_for_a_dead_one() {
    let config = config(Method::Newton);
    let problem = problem(&config);
    let wanted = single::learn(&problem.share, &config, &mut || false);
    let outcome = learn(&problem, &config, vec![1]);
    assert_eq!((outcome.reason, outcome.rows), (Reason::Converged, ROWS));
    assert_eq!((outcome.dropped[0].rows, outcome.dropped.len()), (0, 1));
    assert!(distance(&outcome.theta, &wanted.theta) < 1e-7);
}

/// By SGD, too, a worker that joins takes part: all begin again at the same parameters.
#[test]
fn worker_joins_by_sgd() {
    let config = config(Method::Sgd);
    let problem = problem(&config);
    let outcome = learn(&problem, &config, vec![]);
    assert_eq!((outcome.reason, outcome.rows), (Reason::Epochs, ROWS));
    assert!(outcome.exchanges > 0, "it took no part");
    assert_eq!(outcome.iterations, config.sgd.epochs);
}
