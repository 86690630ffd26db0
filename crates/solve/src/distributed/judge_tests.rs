use super::super::net::{Weather, config, run};
use super::super::{Mode, SolveConfig};
use super::standstill::DISAGREEMENTS;
use super::*;
use crate::local::{Inner, Precision};
use crate::system::{Csr, Dense, Matrix, System};

#[path = "judge_endings_tests.rs"]
mod endings;

/// A strictly dominant system with every entry stored; `weight` < 1 is the off-diagonal sum over the diagonal.
pub(super) fn dense(n: usize, weight: f64) -> System {
    let mut random = fastrand::Rng::with_seed(17);
    let mut values = vec![0.0; n * n];
    for row in 0..n {
        let mut sum = 0.0;
        for column in (0..n).filter(|column| *column != row) {
            let value = random.f64();
            values[row * n + column] = -value;
            sum += value;
        }
        values[row * n + row] = sum / weight;
    }
    System::new(
        Matrix::Dense(Dense::new(n, values).unwrap()),
        None,
        "dense".into(),
    )
    .unwrap()
}

/// The five-point Laplacian on k × k points.
pub(super) fn poisson(k: usize) -> System {
    let mut triplets = Vec::new();
    for i in 0..k {
        for j in 0..k {
            let row = (i * k + j) as u32;
            triplets.push((row, row, 4.0));
            let near = [
                (i.wrapping_sub(1), j),
                (i + 1, j),
                (i, j.wrapping_sub(1)),
                (i, j + 1),
            ];
            for (i, j) in near.into_iter().filter(|(i, j)| *i < k && *j < k) {
                triplets.push((row, (i * k + j) as u32, -1.0));
            }
        }
    }
    let csr = Csr::from_triplets(k * k, k * k, &triplets).unwrap();
    System::new(Matrix::Sparse(csr), None, "poisson".into()).unwrap()
}

/// ‖b − A x‖ / ‖b‖ by a plain loop.
fn true_residual(system: &System, x: &[f64]) -> f64 {
    let mut squares = 0.0;
    for row in 0..system.n() {
        let mut sum = system.rhs[row];
        system
            .matrix
            .for_each_in_row(row, |column, value| sum -= value * x[column]);
        squares += sum * sum;
    }
    squares.sqrt() / system.rhs_norm()
}

/// Change of ‖b − A x‖ / ‖b‖ that rounding alone may cause: ε ‖|A| |x|‖ / ‖b‖.
fn rounding(system: &System, x: &[f64]) -> f64 {
    let mut squares = 0.0;
    for row in 0..system.n() {
        let mut sum = 0.0;
        system
            .matrix
            .for_each_in_row(row, |column, value| sum += (value * x[column]).abs());
        squares += sum * sum;
    }
    f64::EPSILON * squares.sqrt() / system.rhs_norm()
}

pub(super) fn solve(
    system: &System,
    workers: usize,
    config: &SolveConfig,
    weather: Weather,
) -> super::super::net::Verdict {
    let verdict = run(system, workers, config, weather)
        .unwrap_or_else(|fault| panic!("{fault:?} with {weather:?}"));
    let exact = true_residual(system, &verdict.x);
    let near = exact.is_nan()
        || (verdict.residual - exact).abs() <= 1e-3 * exact + rounding(system, &verdict.x);
    assert!(
        near,
        "reported {} but is {exact} with {weather:?}",
        verdict.residual
    );
    if verdict.reason.is_converged() {
        assert!(exact <= config.tol * 1.001, "{exact} with {weather:?}");
    }
    verdict
}

/// Under loss, repetition, reordering and unequal speeds every run converges, with a true residual.
#[test]
fn rough_weather_delays_but_never_falsifies() {
    for seed in 1..=12 {
        for mode in [Mode::Async, Mode::Sync] {
            let workers = 1 + seed as usize % 5;
            let verdict = solve(
                &dense(40, 0.6),
                workers,
                &config(mode),
                Weather::rough(seed),
            );
            assert!(
                verdict.reason.is_converged(),
                "{:?} seed {seed}",
                verdict.reason
            );
            let verdict = solve(&poisson(7), workers, &config(mode), Weather::rough(seed));
            assert!(
                verdict.reason.is_converged(),
                "{:?} seed {seed}",
                verdict.reason
            );
        }
    }
}

/// The same holds where sweeps read rows of fewer bits, whose residual is refined at pauses.
#[test]
fn rough_weather_with_fewer_bits() {
    for precision in [Precision::Single, Precision::Bfloat16] {
        let config = SolveConfig {
            precision,
            combines: false,
            ..config(Mode::Async)
        };
        for seed in 1..=6 {
            let verdict = solve(&dense(40, 0.6), 3, &config, Weather::rough(seed));
            let what = format!("{:?} {precision} seed {seed}", verdict.reason);
            assert!(verdict.reason.is_converged(), "{what}");
            assert!(verdict.residual <= 1e-10, "{what}");
            let pauses = verdict.verifications;
            let expected = if precision == Precision::Single {
                2..=6
            } else {
                4..=12
            };
            assert!(expected.contains(&pauses), "{what}: {pauses} pauses");
        }
    }
}

/// The same holds with LU inside blocks.
#[test]
fn rough_weather_with_lu() {
    let config = SolveConfig {
        inner: Inner::Lu,
        ..config(Mode::Async)
    };
    for seed in 1..=6 {
        let verdict = solve(&poisson(8), 3, &config, Weather::rough(seed));
        assert!(
            verdict.reason.is_converged(),
            "{:?} seed {seed}",
            verdict.reason
        );
    }
}

/// A chain of resistors that is hardly grounded: blocks alone would take some 100,000 laps. Combined epochs take a few hundred, in any network
/// conditions.
#[test]
fn combined_epochs_solve_what_laps_hardly_do() {
    let n = 60u32;
    let mut triplets = Vec::new();
    for row in 0..n {
        let neighbours = [row.wrapping_sub(1), row + 1];
        let mut diagonal = if row == 0 { 1e-4 } else { 0.0 };
        for column in neighbours.into_iter().filter(|column| *column < n) {
            triplets.push((row, column, -1.0));
            diagonal += 1.0;
        }
        triplets.push((row, row, diagonal));
    }
    let csr = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
    let system = System::new(Matrix::Sparse(csr), None, "chain".into()).unwrap();
    for seed in 1..=4 {
        for mode in [Mode::Async, Mode::Sync] {
            let config = SolveConfig {
                inner: Inner::Lu,
                ..config(mode)
            };
            for weather in [Weather::calm(seed), Weather::rough(seed)] {
                let verdict = solve(&system, 4, &config, weather);
                assert!(
                    verdict.reason.is_converged(),
                    "{:?} {mode:?} {weather:?}",
                    verdict.reason
                );
            }
        }
    }
}

/// The network loses every datagram after a while: estimates look converged on each worker alone, and must not be accepted. Only the exchanges at
/// pauses combine the blocks.
#[test]
fn silence_is_not_convergence() {
    for seed in 1..=4 {
        for silent_after_ns in [0, 20_000] {
            let weather = Weather {
                silent_after_ns,
                ..Weather::calm(seed)
            };
            let verdict = solve(&dense(24, 0.5), 3, &config(Mode::Async), weather);
            assert!(verdict.shares_lost > 0);
            assert!(
                verdict.reason.is_converged(),
                "{:?} seed {seed}",
                verdict.reason
            );
            assert!(
                verdict.verifications > 1,
                "each exchange is one step of block Jacobi"
            );
        }
    }
}

/// In good network conditions a well-conditioned system takes one verification, two at most.
#[test]
fn calm_weather_needs_few_verifications() {
    for seed in 1..=8 {
        let verdict = solve(
            &dense(60, 0.5),
            4,
            &config(Mode::Async),
            Weather::calm(seed),
        );
        assert!(
            verdict.verifications <= 2,
            "{} seed {seed}",
            verdict.verifications
        );
    }
}

/// With a core for each worker, expensive rows and small frames, asynchronous runs need as many laps as sequential Gauss–Seidel: within 5 %, or one
/// lap until the estimates are old enough.
#[test]
fn small_frames_keep_laps_sequential() {
    let system = dense(320, 0.57);
    let relaxation = crate::local::Relaxation::new(Inner::Sweep, 1.0).unwrap();
    let limits = Limits::new(1e-10, 1000).unwrap();
    let alone = crate::local::single::solve(
        system.clone(),
        (relaxation, false),
        limits,
        |_| (),
        || false,
    )
    .unwrap();
    for seed in 1..=4 {
        let weather = Weather {
            step_ns: Some(100_000),
            delay_ns: 20_000,
            ..Weather::calm(seed)
        };
        let verdict = solve(&system, 4, &config(Mode::Async), weather);
        let allowed = alone.laps[0] + alone.laps[0].div_ceil(20);
        assert!(
            verdict.stats.iter().all(|stats| stats.laps <= allowed),
            "{:?}",
            verdict.stats
        );
    }
}

/// Synchronous runs are the same in any network conditions, down to the last bit.
#[test]
fn sync_is_deterministic() {
    let system = dense(30, 0.7);
    let calm = solve(&system, 3, &config(Mode::Sync), Weather::calm(1));
    for seed in 2..6 {
        let rough = solve(&system, 3, &config(Mode::Sync), Weather::rough(seed));
        assert_eq!(rough.x, calm.x);
        assert_eq!(rough.stats[0].laps, calm.stats[2].laps);
    }
}

/// Two ready workers of a system of two rows, in epoch 1.
fn judge() -> Judge {
    let system = dense(2, 0.5);
    let ranges = crate::system::partition(&system.matrix, 2).unwrap();
    let limits = Limits::new(1e-10, 100).unwrap();
    let mut judge = Judge::new(
        limits,
        &config(Mode::Async),
        (ranges, Origin::default()),
        None,
    );
    for worker in 0..2 {
        judge
            .answer(
                worker,
                &Answer::Ready {
                    division: 1,
                    rhs_sq: 0.5,
                    notes: vec![],
                }
                .encode(),
            )
            .unwrap();
    }
    judge.out().clear();
    judge
}

fn report(number: u32, expected_sq: f64) -> LapReport {
    let estimate = super::super::message::Estimate {
        measured_sq: expected_sq,
        expected_sq,
    };
    LapReport {
        epoch: 2,
        number,
        laps: 3.0 + f64::from(number),
        busy: None,
        estimate,
    }
}

/// Two low reports of every worker are needed; a high one in between starts the count anew; repeated and old ones do not count.
#[test]
fn one_low_report_is_not_enough() {
    let mut judge = judge();
    judge.report(0, report(1, 1e-30));
    judge.report(1, report(1, 1e-30));
    judge.report(1, report(1, 1e-30));
    judge.report(
        1,
        LapReport {
            epoch: 1,
            ..report(9, 1e-30)
        },
    );
    judge.report(0, report(2, 1e-30));
    judge.report(0, report(3, 1e-30));
    assert_eq!(judge.stage(), Stage::Iterating);
    judge.report(1, report(2, 1.0));
    judge.report(1, report(3, 1e-30));
    assert_eq!(judge.stage(), Stage::Iterating, "counting began anew");
    judge.report(0, report(4, 1e-30));
    judge.report(1, report(4, 1e-30));
    assert_eq!(judge.stage(), Stage::Iterating);
    judge.report(0, report(5, 1e-30));
    assert_eq!(judge.stage(), Stage::Verifying);
    let orders: Vec<Order> = judge.out().drain(..).map(|(_, order)| order).collect();
    assert_eq!(orders, vec![Order::Pause { epoch: 2 }; 2]);
}

/// A worker that rests because its numbers have no bounds holds up nobody, however few laps it has done and however many others do: each epoch is
/// verified at once, and the run ends after some.
#[test]
fn a_wild_worker_ends_the_run() {
    for wild in [f64::INFINITY, f64::NAN] {
        let mut judge = judge();
        for epoch in 2.. {
            assert_eq!((judge.stage(), judge.epoch), (Stage::Iterating, epoch));
            for (worker, laps, measured_sq) in [(0, 3.0, wild), (1, 60.0, 1e-3)] {
                let mut report = report(1, measured_sq);
                (report.epoch, report.laps) = (epoch, laps);
                judge.report(worker, report);
            }
            assert_eq!(judge.stage(), Stage::Verifying, "{wild} in epoch {epoch}");
            for worker in 0..2 {
                judge.answer(worker, &frozen(epoch, [5, 7])).unwrap();
            }
            for worker in 0..2 {
                let residual = Answer::Residual {
                    epoch,
                    residual_sq: 5e5,
                    magnitude_sq: 0.0,
                    dots: vec![],
                };
                judge.answer(worker, &residual.encode()).unwrap();
            }
            if judge.stage() == Stage::Collecting {
                assert_eq!(judge.reason, Some(Reason::Diverged { residual: 1e3 }));
                assert_eq!(judge.verifications, 6);
                break;
            }
        }
    }
}

fn frozen(epoch: u32, held: [u32; 2]) -> Vec<u8> {
    Answer::Frozen(Frozen {
        epoch,
        held: held.map(Some).to_vec(),
        laps: 9,
        cause: None,
    })
    .encode()
}

/// Different stamps are never verified: the run goes on with the next epoch, and is aborted in the end.
#[test]
fn different_stamps_are_not_verified() {
    for wrong in [[5, 6], [0, 7]] {
        let mut judge = judge();
        for round in 1..=DISAGREEMENTS {
            for number in 1..=3 {
                for worker in 0..2 {
                    judge.report(
                        worker,
                        LapReport {
                            epoch: round + 1,
                            ..report(number, 1e-30)
                        },
                    );
                }
            }
            assert_eq!(judge.stage(), Stage::Verifying);
            judge
                .answer(
                    0,
                    &frozen(round + 1, if wrong[0] == 0 { wrong } else { [5, 7] }),
                )
                .unwrap();
            let last = judge.answer(1, &frozen(round + 1, wrong));
            assert_eq!(judge.verifications, 0);
            if round == DISAGREEMENTS {
                assert_eq!(last, Err(JudgeFault::Disagreement));
            } else {
                assert_eq!((last, judge.stage()), (Ok(()), Stage::Iterating));
            }
        }
    }
}

/// A worker that reads nothing of another has no say about it; the stamps of those who read, and the owner's, must agree.
#[test]
fn only_readers_must_agree() {
    let answer = |held: &[Option<u32>; 2]| {
        Answer::Frozen(Frozen {
            epoch: 2,
            held: held.to_vec(),
            laps: 9,
            cause: None,
        })
        .encode()
    };
    for (first, second, verified) in [
        ([Some(5), None], [None, Some(9)], true),
        ([Some(5), Some(9)], [None, Some(9)], true),
        ([Some(5), Some(8)], [None, Some(9)], false),
        ([None, Some(9)], [Some(5), Some(9)], false),
    ] {
        let mut judge = judge();
        judge.pause(Cause::Candidate);
        judge.answer(0, &answer(&first)).unwrap();
        judge.answer(1, &answer(&second)).unwrap();
        assert_eq!(judge.verifications == 1, verified, "{first:?} {second:?}");
    }
}

/// Answers of another phase or shape are faults with the worker's number, and have no other effect; those of older epochs are void.
#[test]
fn unasked_answers_are_faults() {
    let residual = |epoch| {
        Answer::Residual {
            epoch,
            residual_sq: 0.0,
            magnitude_sq: 0.0,
            dots: vec![],
        }
        .encode()
    };
    let solution = Answer::Solution {
        epoch: 2,
        start: 0,
        values: vec![0.0],
    }
    .encode();
    for bytes in [frozen(2, [5, 5]), residual(2), solution, vec![99], vec![]] {
        let answer = judge().answer(1, &bytes);
        assert!(
            matches!(answer, Err(JudgeFault::Protocol { worker: 1, .. })),
            "{bytes:?}: {answer:?}"
        );
    }
    for bytes in [frozen(1, [5, 5]), residual(1)] {
        let mut judge = judge();
        assert_eq!(judge.answer(1, &bytes), Ok(()));
        assert_eq!((judge.stage(), judge.epoch), (Stage::Iterating, 2));
    }
    let beyond = Answer::Snapshot {
        division: 1,
        start: 0,
        values: vec![0.0; 2],
    };
    assert!(judge().answer(1, &beyond.encode()).is_err());
    assert_eq!(judge().answer(7, &[]), Ok(()), "it has no rows");
}

/// The others share the rows of a lost worker, and are told only of what they lack; the last worker's loss ends the run.
#[test]
fn rows_of_the_lost_are_taken_over() {
    let mut judge = judge();
    let lost = Answer::PeerLost { worker: 0 }.encode();
    assert_eq!(judge.answer(1, &lost), Ok(()));
    assert_eq!(judge.stage(), Stage::Distributing);
    let Some((1, Order::Setup(setup))) = judge.out().pop_front() else {
        panic!("no setup")
    };
    assert_eq!(setup.ranges, [0..0, 0..2]);
    assert_eq!((setup.fresh.len(), setup.fresh[0].clone()), (1, 0..1));
    assert_eq!((setup.division, setup.exchanges), (2, true));
    let told = judge.out().pop_front();
    assert!(matches!(told, Some((0, Order::Abort { .. }))), "{told:?}");
    assert!(judge.out().is_empty());
    assert_eq!(judge.answer(0, &[99]), Ok(()), "its messages are void");
    assert_eq!(judge.lost(0, "again"), Ok(()));
    assert_eq!(judge.lost(1, "too"), Err(JudgeFault::Missed { worker: 1 }));
    assert!(
        judge.notes[0].contains("worker 2 took over its 1 rows"),
        "{:?}",
        judge.notes
    );
}

/// A worker that is lost before it was ready again gets all rows anew: nobody knows what it has.
#[test]
fn half_loaded_workers_begin_anew() {
    let system = dense(9, 0.5);
    let limits = Limits::new(1e-10, 100).unwrap();
    let ranges = vec![0..3, 3..6, 6..9];
    let mut judge = Judge::new(
        limits,
        &config(Mode::Async),
        (ranges, Origin::default()),
        None,
    );
    judge.lost(1, "early").unwrap();
    let fresh = |judge: &mut Judge| {
        let orders = judge.out().drain(..).map(|(worker, order)| match order {
            Order::Setup(setup) => (worker, setup.fresh.len(), setup.fresh[0].clone()),
            other => panic!("{other:?}"),
        });
        orders.collect::<Vec<_>>()
    };
    assert_eq!(fresh(&mut judge), [(0, 1, 0..5), (2, 1, 5..9)]);
    assert!(judge.known_x().is_none(), "x is still 0");
    drop(system);
}

/// Moments of a run at which something may happen: loading, iterating, pausing, collecting.
pub(super) fn moment(random: &mut fastrand::Rng) -> u64 {
    1 << random.u32(12..24)
}

/// Workers that die at any moment delay the end, and never falsify it, in both modes, with sweeps and LU, also when one is only taken for lost.
#[test]
fn deaths_delay_but_never_falsify() {
    let few = std::env::var("TSUMUJI_SOLVE_DEATHS").ok();
    let runs: u64 = few.and_then(|few| few.parse().ok()).unwrap_or(1000);
    for seed in 1..=runs {
        let mut random = fastrand::Rng::with_seed(seed);
        let workers = random.usize(3..=6);
        let mode = if random.bool() {
            Mode::Async
        } else {
            Mode::Sync
        };
        let config = SolveConfig {
            inner: if random.bool() {
                Inner::Lu
            } else {
                Inner::Sweep
            },
            ..config(mode)
        };
        let mut weather = if random.bool() {
            Weather::calm(seed)
        } else {
            Weather::rough(seed)
        };
        let mortal = random.usize(1..workers);
        for death in weather.deaths.iter_mut().take(mortal.min(3)) {
            *death = (moment(&mut random), random.usize(..workers));
        }
        if random.bool() {
            weather.reshares = [moment(&mut random), moment(&mut random)];
        }
        if mortal + 1 < workers && random.bool() {
            weather.mistakes[0] = (moment(&mut random), random.usize(..workers));
        }
        let system = if random.bool() {
            poisson(7)
        } else {
            dense(40, 0.6)
        };
        let verdict = solve(&system, workers, &config, weather);
        assert!(
            verdict.reason.is_converged(),
            "{:?} seed {seed}",
            verdict.reason
        );
    }
}

/// The judge dies at any moment, twice even, while workers die and join, and another takes its place: the run goes on from what workers have.
#[test]
fn judges_are_replaced() {
    let few = std::env::var("TSUMUJI_SOLVE_DEATHS").ok();
    let runs: u64 = few.and_then(|few| few.parse().ok()).unwrap_or(1000);
    let mut replaced = 0;
    for seed in 1..=runs {
        let mut random = fastrand::Rng::with_seed(seed);
        let workers = random.usize(2..=5);
        let mode = if random.bool() {
            Mode::Async
        } else {
            Mode::Sync
        };
        let mut weather = if random.bool() {
            Weather::calm(seed)
        } else {
            Weather::rough(seed)
        };
        weather.successions[0] = moment(&mut random);
        if random.bool() {
            weather.successions[1] = moment(&mut random);
        }
        if random.bool() {
            weather.deaths[0] = (moment(&mut random), random.usize(..workers));
        }
        if random.u8(..4) == 0 {
            weather.joins[0] = moment(&mut random);
        }
        let verdict = solve(&poisson(9), workers, &config(mode), weather);
        assert!(
            verdict.reason.is_converged(),
            "{:?} seed {seed}",
            verdict.reason
        );
        let told = |note: &String| note.starts_with("another judge took over");
        replaced += usize::from(verdict.notes.iter().any(told));
    }
    assert!(replaced * 4 > runs as usize, "only {replaced} of {runs}");
}
