//! Any bytes as messages of judge and workers, between true ones: nobody panics, and a result is made of true numbers only.

use tsumuji_learn::data::{Data, Features, Targets};
use tsumuji_learn::gossip::simulated::{Judge, Message, Worker};
use tsumuji_learn::report::Reason;
use tsumuji_learn::{Average, Kind, LearnConfig, Method, Preparation, Problem, SgdConfig};

const WORKERS: usize = 3;

fn problem(config: &LearnConfig) -> Problem {
    let rows = 12;
    let data = Data {
        features: Features::Dense {
            columns: 2,
            values: (0..2 * rows).map(|place| (place * 7 % 11) as f64).collect(),
        },
        names: None,
        target_name: None,
        targets_fault: None,
        targets: Some(Targets::Labels {
            classes: vec!["a".to_owned(), "b".to_owned()],
            ids: (0..rows as u32).map(|row| row % 2).collect(),
        }),
    };
    let how = Preparation {
        scales: true,
        shuffles: false,
    };
    Problem::new(data, config, how).expect("it fits")
}

/// Carries messages; a worker that ends is lost.
fn deliver(judge: &mut Judge, workers: &mut [Option<Worker>], from: usize, messages: Vec<Message>) {
    for message in messages {
        let Some(place) = message.to.checked_sub(1) else {
            judge.take(from, &message.bytes);
            continue;
        };
        if let Some(Some(worker)) = workers.get_mut(place)
            && worker.take(from, &message.bytes).is_err()
        {
            workers[place] = None;
            judge.lost(place + 1);
        }
    }
}

/// The target.
pub fn gossip(input: &[u8]) {
    let Some((&choice, mut input)) = input.split_first() else {
        return;
    };
    let config = LearnConfig {
        kind: Kind::Logistic,
        method: if choice & 1 == 0 {
            Method::Newton
        } else {
            Method::Sgd
        },
        average: if choice & 2 == 0 {
            Average::Table
        } else {
            Average::PushSum
        },
        sgd: SgdConfig {
            epochs: 2,
            period: 1,
            batch: 2,
            ..SgdConfig::default()
        },
        l2: 1e-2,
        tol: 1e-6,
        seed: 1,
    };
    let problem = problem(&config);
    let (mut judge, first) = Judge::new(&problem, &config, WORKERS);
    let mut workers: Vec<Option<Worker>> =
        (1..=WORKERS).map(|node| Some(Worker::new(node))).collect();
    deliver(&mut judge, &mut workers, 0, first);
    while let Some(([what, length], rest)) = input.split_first_chunk::<2>() {
        let (bytes, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        let (to, from) = (usize::from(what >> 3 & 3), usize::from(what >> 5));
        let lie = Message {
            to,
            bytes: bytes.to_vec(),
            key: None,
            is_repeat: false,
        };
        match what & 7 {
            0 | 1 => deliver(&mut judge, &mut workers, from % (WORKERS + 1), vec![lie]),
            2 => judge.lost(to),
            _ => {
                let orders = judge.outgoing();
                deliver(&mut judge, &mut workers, 0, orders);
                for place in 0..WORKERS {
                    let Some(worker) = &mut workers[place] else {
                        continue;
                    };
                    if what & 7 == 3 {
                        worker.ask();
                    }
                    worker.work();
                    let sent = worker.outgoing();
                    deliver(&mut judge, &mut workers, place + 1, sent);
                }
            }
        }
        if judge.fault().is_some() {
            return;
        }
    }
    if let Some(result) = judge.result() {
        let converged = result.reason == Reason::Converged;
        assert!(!converged || result.theta.iter().all(|theta| theta.is_finite()));
        assert!(result.rows <= problem.share.rows());
    }
}
