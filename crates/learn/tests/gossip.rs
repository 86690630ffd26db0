//! Judge and workers over real links, each with its own endpoint in its own thread of this process.

mod clusters;

use std::thread;

use clusters::{Nobody, Over, cluster, learn, serve};
use tsumuji_learn::data::{Data, Features, Targets};
use tsumuji_learn::gossip::{RunError, Watch, corrupt_worker_main, run};
use tsumuji_learn::report::Reason;
use tsumuji_learn::{
    Average, Kind, LearnConfig, Method, Mode, Preparation, Problem, SgdConfig, single,
};
use tsumuji_node::{Executor, Options};

const BOTH: [Over; 2] = [Over::Shm, Over::Udp];

/// Rows of `classes` clouds, sorted by class, so that shares hold only some of them; or a noisy plane.
fn data(kind: Kind, rows: usize, columns: usize, classes: usize) -> Data {
    let mut random = fastrand::Rng::with_seed(17);
    let mut values = Vec::new();
    let mut numbers = Vec::new();
    let mut ids = Vec::new();
    for row in 0..rows {
        let class = row * classes / rows;
        let x: Vec<f64> = (0..columns)
            .map(|j| 2.0 * random.f64() - 1.0 + if j % classes == class { 0.4 } else { 0.0 })
            .collect();
        numbers.push(x.iter().sum::<f64>() + 0.3 * random.f64());
        ids.push(class as u32);
        values.extend(x);
    }
    let targets = match kind {
        Kind::Linear | Kind::Ridge => Targets::Numbers(numbers),
        Kind::Logistic | Kind::Svm => Targets::Labels {
            classes: (0..classes).map(|class| format!("c{class}")).collect(),
            ids,
        },
    };
    Data {
        features: Features::Dense { columns, values },
        names: None,
        target_name: None,
        targets_fault: None,
        targets: Some(targets),
    }
}

fn config(kind: Kind, method: Method) -> LearnConfig {
    LearnConfig {
        kind,
        method,
        average: Average::default(),
        sgd: SgdConfig {
            epochs: 60,
            ..SgdConfig::default()
        },
        l2: if kind == Kind::Linear { 0.0 } else { 1e-3 },
        tol: if method == Method::Newton { 1e-9 } else { 1e-3 },
        seed: 3,
    }
}

fn problem(data: Data, config: &LearnConfig, shuffles: bool) -> Problem {
    let how = Preparation {
        scales: true,
        shuffles,
    };
    Problem::new(data, config, how).unwrap()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

/// Where nodes hold only some of the classes, Newton's gossip still reaches the optimum of all rows, over every link.
#[test]
fn newton_reaches_the_optimum_of_skewed_shares() {
    for (kind, classes) in [
        (Kind::Logistic, 2),
        (Kind::Svm, 3),
        (Kind::Ridge, 2),
        (Kind::Linear, 2),
    ] {
        let config = config(kind, Method::Newton);
        let problem = problem(data(kind, 400, 6, classes), &config, false);
        let wanted = single::learn(&problem.share, &config, &mut || false);
        for over in BOTH {
            let outcome = learn(over, 3, 0.0, &problem, &config, Mode::Gossip);
            assert_eq!(outcome.reason, Reason::Converged, "{kind:?} {over:?}");
            assert!(
                distance(&outcome.theta, &wanted.theta) < 1e-9,
                "{kind:?} {over:?}"
            );
            assert_eq!(
                (outcome.disagreement, outcome.rejected, outcome.rows),
                (0.0, 0, 400)
            );
            assert!(outcome.exchanges > 0 && outcome.bytes_sent > 0 && outcome.dropped.is_empty());
        }
    }
}

/// Plain gossip SGD does not: on the same skewed shares its parameters end far from the optimum, and it says so.
#[test]
fn sgd_on_skewed_shares_is_not_taken_for_converged() {
    let mut config = config(Kind::Logistic, Method::Sgd);
    config.sgd.epochs = 20;
    config.sgd.period = 64;
    let problem = problem(data(Kind::Logistic, 400, 6, 2), &config, false);
    let wanted = single::learn(
        &problem.share,
        &self::config(Kind::Logistic, Method::Newton),
        &mut || false,
    );
    let outcome = learn(Over::Shm, 2, 0.0, &problem, &config, Mode::Gossip);
    assert_eq!(outcome.reason, Reason::Epochs);
    assert!(
        distance(&outcome.theta, &wanted.theta) > 1e-2,
        "{}",
        distance(&outcome.theta, &wanted.theta)
    );
}

/// Loss delays and changes nothing: statistics in datagrams, and in messages of several frames, by a table and by push-sum.
#[test]
fn newton_is_exact_under_loss() {
    for (columns, over, average) in [
        (6, Over::Udp, Average::Table),
        (6, Over::Shm, Average::Table),
        (60, Over::Udp, Average::Table),
        (6, Over::Udp, Average::PushSum),
        (6, Over::Shm, Average::PushSum),
        (60, Over::Udp, Average::PushSum),
    ] {
        let config = LearnConfig {
            average,
            ..config(Kind::Logistic, Method::Newton)
        };
        let problem = problem(data(Kind::Logistic, 500, columns, 2), &config, false);
        let wanted = single::learn(&problem.share, &config, &mut || false);
        let outcome = learn(over, 4, 0.1, &problem, &config, Mode::Gossip);
        assert_eq!(outcome.reason, Reason::Converged);
        assert!(
            distance(&outcome.theta, &wanted.theta) < 1e-9,
            "{columns} {over:?} {average:?}"
        );
        assert_eq!((outcome.disagreement, outcome.rejected), (0.0, 0));
    }
}

/// Shuffled shares and averaging make gossip SGD converge, with loss and without.
#[test]
fn sgd_converges_on_shuffled_shares() {
    for loss in [0.0, 0.1] {
        let config = config(Kind::Logistic, Method::Sgd);
        let problem = problem(data(Kind::Logistic, 20_000, 6, 2), &config, true);
        let config = LearnConfig {
            tol: 5e-3,
            ..config
        };
        let outcome = learn(Over::Udp, 3, loss, &problem, &config, Mode::Gossip);
        assert_eq!(outcome.reason, Reason::Converged, "{outcome:?}");
        assert!(outcome.exchanges > 0 && outcome.rejected == 0);
    }
}

/// Whichever thread steps, over links that lose frames and over TCP: the result is as good, and a corrupt peer is refused all the same.
#[test]
fn executors_come_to_the_same() {
    for executor in [
        Executor::RunToCompletion,
        Executor::Pipeline,
        Executor::Adaptive,
    ] {
        for (mode, loss) in [(Mode::Gossip, 0.0), (Mode::Gossip, 0.1), (Mode::Tcp, 0.0)] {
            let mut config = config(Kind::Logistic, Method::Sgd);
            (config.sgd.executor, config.tol) = (executor, 5e-3);
            let problem = problem(data(Kind::Logistic, 20_000, 6, 2), &config, true);
            let outcome = learn(Over::Udp, 2, loss, &problem, &config, mode);
            assert_eq!(
                outcome.reason,
                Reason::Converged,
                "{executor} {mode:?} {loss}"
            );
            assert!(
                outcome.exchanges > 0 && outcome.rejected == 0,
                "{outcome:?}"
            );
            match executor {
                Executor::RunToCompletion => assert_eq!(outcome.rows_beside, 0),
                Executor::Pipeline => assert!(outcome.rows_beside > 0, "{outcome:?}"),
                Executor::Adaptive => {} // as the machine has cores
            }
        }
    }
}

/// Kernel TCP and all-reduce come to the same as gossip.
#[test]
fn other_modes_agree() {
    for mode in [Mode::Tcp, Mode::AllReduce] {
        let config = config(Kind::Svm, Method::Newton);
        let problem = problem(data(Kind::Svm, 300, 5, 3), &config, false);
        let wanted = single::learn(&problem.share, &config, &mut || false);
        let outcome = learn(Over::Shm, 3, 0.0, &problem, &config, mode);
        assert_eq!(outcome.reason, Reason::Converged, "{mode:?}");
        assert!(distance(&outcome.theta, &wanted.theta) < 1e-9, "{mode:?}");
        assert!(outcome.bytes_sent > 0);
        let config = LearnConfig {
            tol: 5e-3,
            ..self::config(Kind::Ridge, Method::Sgd)
        };
        // So many rows that learning takes longer than a connection of TCP.
        let problem = self::problem(data(Kind::Ridge, 40_000, 5, 2), &config, true);
        let outcome = learn(Over::Shm, 2, 0.0, &problem, &config, mode);
        assert_eq!(outcome.reason, Reason::Converged, "{mode:?}: {outcome:?}");
        assert!(outcome.exchanges > 0, "{mode:?}");
    }
}

/// A peer whose numbers cannot be is refused, counted and dropped; the others reach the optimum of their rows.
#[test]
fn corrupt_peer_is_refused() {
    for (method, rows, executor, average) in [
        (Method::Newton, 1_200, Executor::Adaptive, Average::Table),
        (Method::Newton, 1_200, Executor::Adaptive, Average::PushSum),
        (Method::Sgd, 24_000, Executor::Adaptive, Average::Auto),
        (Method::Sgd, 24_000, Executor::Pipeline, Average::Auto),
    ] {
        let mut config = LearnConfig {
            average,
            tol: if method == Method::Sgd { 1e-2 } else { 1e-9 },
            ..config(Kind::Logistic, method)
        };
        config.sgd.executor = executor;
        let problem = problem(data(Kind::Logistic, rows, 6, 2), &config, true);
        let mut nodes = cluster(Over::Udp, 4, 0.0, &Options::default()).into_iter();
        let mut judge = nodes.next().unwrap();
        let mut liar = nodes.next_back().unwrap();
        let team: Vec<_> = nodes.map(serve).collect();
        let liar = thread::spawn(move || corrupt_worker_main(&mut liar));
        let outcome = run(&mut judge, &problem, &config, Mode::Gossip, &mut Nobody).unwrap();
        for worker in team {
            worker.join().unwrap().unwrap();
        }
        let _ = liar.join().unwrap(); // told to leave, or left alone
        assert!(outcome.rejected > 0, "{method:?}: {outcome:?}");
        assert_eq!(
            (outcome.dropped.len(), outcome.rows),
            (1, rows / 3 * 2),
            "{method:?}"
        );
        assert!(
            outcome.dropped[0].cause.contains("implausible"),
            "{:?}",
            outcome.dropped
        );
        assert_eq!(outcome.reason, Reason::Converged, "{method:?}");
        if method == Method::Newton {
            let rest = problem.part(0..rows / 3 * 2);
            let share = tsumuji_learn::Share {
                features: rest.0,
                targets: rest.1,
                ..problem.share.clone()
            };
            let wanted = single::learn(&share, &config, &mut || false);
            assert!(distance(&outcome.theta, &wanted.theta) < 1e-8);
        }
    }
}

/// A worker that ends without a word is dropped, and the survivors go on without its rows.
#[test]
fn dead_worker_drops_out() {
    struct Told(bool);
    impl Watch for Told {
        fn ended(&mut self) -> Vec<(usize, String)> {
            if std::mem::replace(&mut self.0, true) {
                vec![]
            } else {
                vec![(1, "killed".to_owned())]
            }
        }
    }
    let config = config(Kind::Logistic, Method::Newton);
    let problem = problem(data(Kind::Logistic, 900, 6, 2), &config, true);
    let mut nodes = cluster(Over::Udp, 4, 0.0, &Options::default()).into_iter();
    let mut judge = nodes.next().unwrap();
    let first = serve(nodes.next().unwrap());
    let dead = nodes.next().unwrap(); // it never serves
    let last = serve(nodes.next().unwrap());
    let outcome = run(
        &mut judge,
        &problem,
        &config,
        Mode::Gossip,
        &mut Told(false),
    )
    .unwrap();
    first.join().unwrap().unwrap();
    last.join().unwrap().unwrap();
    dead.vanish();
    assert_eq!((outcome.reason, outcome.rows), (Reason::Converged, 600));
    assert_eq!(outcome.dropped[0].cause, "killed");
}

/// Workers without rows are refused before anything is sent.
#[test]
fn each_worker_needs_a_row() {
    let config = config(Kind::Ridge, Method::Newton);
    let problem = problem(data(Kind::Ridge, 2, 2, 2), &config, false);
    let mut nodes = cluster(Over::Shm, 4, 0.0, &Options::default());
    let refused = run(&mut nodes[0], &problem, &config, Mode::Gossip, &mut Nobody);
    assert!(matches!(
        refused,
        Err(RunError::MoreWorkersThanRows {
            workers: 3,
            rows: 2
        })
    ));
}
