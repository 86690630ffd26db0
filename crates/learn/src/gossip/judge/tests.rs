use super::*;
use crate::config::{Average, Kind, SgdConfig};
use crate::gossip::message::encode;
use crate::objective::Shape;

/// A judge whose workers have their rows.
fn begun(workers: usize) -> Judge {
    begun_by(Method::Newton, workers)
}

fn begun_by(method: Method, workers: usize) -> Judge {
    let config = LearnConfig {
        kind: Kind::Logistic,
        method,
        sgd: SgdConfig::default(),
        average: Average::Table,
        l2: 0.0,
        tol: 1e-9,
        seed: 1,
    };
    let plausible = Plausible {
        shape: Shape {
            width: 3,
            outputs: 1,
        },
        kind: Kind::Logistic,
        rows: vec![10; workers],
        x_max: 1.0,
        y_max: 1.0,
    };
    let shares = (0..workers).map(|worker| 10 * worker..10 * worker + 10);
    let mut judge = Judge::new(config, Mode::Gossip, plausible, shares.collect());
    for worker in 0..workers {
        judge.answer(worker, &encode(&Answer::Ready));
    }
    assert_eq!((judge.stage, judge.epoch), (Stage::Iterating, 1));
    judge
}

/// Enough is enough also where it has become so by a drop: an accusation is made once.
#[test]
fn accusations_outlive_drops() {
    let mut judge = begun(3);
    judge.answer(0, &encode(&Answer::Suspect { worker: 2 }));
    assert!(judge.is_alive(2), "one of two others is no majority");
    judge.drop_worker(1, "killed".to_owned());
    assert!(!judge.is_alive(2) && judge.is_alive(0));
    assert_eq!((judge.stage, judge.epoch), (Stage::Iterating, 3));
}

/// Workers that all wait for each other begin again, a few times; a step between shows that it helped.
#[test]
fn waiting_for_each_other_ends() {
    let mut judge = begun(2);
    let wait = |judge: &mut Judge, worker| {
        let epoch = judge.epoch;
        judge.answer(worker, &encode(&Answer::Waits { epoch }));
    };
    let step = |epoch, steps| {
        let theta = vec![0.0; 3];
        encode(&Answer::Step {
            epoch,
            steps,
            loss: 1.0,
            gradient_norm: 1.0,
            theta,
            is_last: false,
        })
    };
    for round in 0..VAIN_MAX {
        wait(&mut judge, 0);
        assert_eq!(judge.epoch, 1 + round, "the other one computes");
        wait(&mut judge, 1);
        assert_eq!(judge.epoch, 2 + round);
    }
    let epoch = judge.epoch;
    judge.answer(0, &step(epoch, 2));
    for worker in [0, 1] {
        wait(&mut judge, worker);
    }
    assert_eq!((judge.fault.clone(), judge.epoch), (None, epoch + 1));
    for _ in 0..VAIN_MAX {
        for worker in [0, 1] {
            wait(&mut judge, worker);
        }
    }
    assert_eq!(judge.fault, Some(Fault::Stuck));
}

/// Where some see the end and others wait for them, the end is certified.
#[test]
fn an_end_that_some_see_is_certified() {
    let mut judge = begun(2);
    let ended = Answer::Step {
        epoch: 1,
        steps: 4,
        loss: 1.0,
        gradient_norm: 0.0,
        theta: vec![0.5; 3],
        is_last: true,
    };
    judge.answer(0, &encode(&ended));
    assert_eq!(judge.stage, Stage::Iterating);
    judge.answer(1, &encode(&Answer::Waits { epoch: 1 }));
    assert_eq!(judge.stage, Stage::Collecting(true));
}

/// More epochs than there are to do count as all.
#[test]
fn epochs_beyond_the_last_are_the_last() {
    let mut judge = begun_by(Method::Sgd, 2);
    for (worker, done) in [(0, u64::MAX), (1, judge.check_at)] {
        let epochs = Answer::Epochs {
            done,
            is_last: worker == 0,
        };
        judge.answer(worker, &encode(&epochs));
    }
    assert_eq!(judge.stage, Stage::Collecting(false));
    assert!(judge.check_at > judge.iterations());
}

/// Another may come while one gets its rows: what is told of all workers counts both.
#[test]
fn two_join_close_together() {
    let mut judge = begun(2);
    judge.joins(2);
    judge.joins(3);
    judge.out().clear();
    judge.answer(2, &encode(&Answer::Ready));
    let begins = judge.out().iter().filter_map(|(_, order)| match order {
        Order::Begin(begin) => Some((begin.alive.len(), begin.rows.len())),
        _ => None,
    });
    assert_eq!(begins.collect::<Vec<_>>(), [(4, 4); 3]);
    judge.answer(3, &encode(&Answer::Ready));
    assert!(judge.members[3].takes_part && !judge.members[3].rows.is_empty());
}

/// No rows are forgotten, whoever of those that were lost returns first; and what was to be told to a process does not reach the next one of its number.
#[test]
fn rows_of_the_lost_are_dealt_or_missing() {
    let mut judge = begun(4);
    judge.drop_worker(1, "killed".to_owned());
    judge.drop_worker(2, "killed".to_owned());
    assert!(judge.out().iter().any(|(to, _)| *to == 2));
    judge.joins(2);
    let aborts = |(to, order): &(usize, Order)| *to == 2 && matches!(order, Order::Abort { .. });
    assert!(!judge.out().iter().any(aborts));
    judge.answer(2, &encode(&Answer::Ready));
    let mut rows: Vec<usize> = judge
        .members
        .iter()
        .flat_map(|member| member.rows.clone())
        .flatten()
        .collect();
    rows.sort_unstable();
    assert_eq!(rows, (0..40).collect::<Vec<_>>());
}
