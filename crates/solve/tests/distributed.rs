//! Judge and workers over real links, each with its own endpoint in its own thread of this process.

use std::thread::{self, JoinHandle};
use std::time::Duration;

use tsumuji_board::Elements;
use tsumuji_node::{Endpoint, Executor, Options};
use tsumuji_solve::distributed::{
    Krylov, Mode, Shares, SolveConfig, SolveError, Solved, Start, Watch, WorkerError, run,
};
use tsumuji_solve::krylov::{Kind, Preconditioning};
use tsumuji_solve::local::Inner;
use tsumuji_solve::report::{Progress, Reason};
use tsumuji_solve::system::{Csr, Dense, Generate, Generated, Matrix, Solution, Source, System};

mod clusters;

use clusters::{Over, cluster, quiet, serve, solve};

const BOTH: [Over; 2] = [Over::Shm, Over::Udp];

/// ‖b − A x‖ / ‖b‖ by the plainest of loops.
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

fn check(solved: &Solved, system: &System, workers: usize, what: &str) {
    let outcome = &solved.outcome;
    assert!(
        outcome.converged && outcome.reason == Reason::Converged,
        "{what}: {outcome:?}"
    );
    let exact = true_residual(system, &outcome.x);
    assert!(exact <= 1.001e-10, "{what}: {exact}");
    assert!(
        (outcome.residual - exact).abs() <= 0.01 * exact + 1e-14,
        "{what}: {exact}, not {}",
        outcome.residual
    );
    assert_eq!(
        (outcome.laps.len(), solved.workers.len()),
        (workers, workers),
        "{what}"
    );
    assert!(outcome.laps.iter().all(|laps| *laps > 0), "{what}");
    assert!(
        solved.frames_sent() > 0 && solved.bytes_sent() > solved.frames_sent(),
        "{what}"
    );
    assert!(
        solved
            .workers
            .iter()
            .all(|worker| worker.peak_rss_bytes > 0),
        "{what}"
    );
}

fn config() -> SolveConfig {
    SolveConfig {
        max_laps: 200_000,
        ..SolveConfig::default()
    }
}

/// Dense and sparse systems reach a true 1e-10 over both links, in both modes, with and without 20 % of frames lost.
#[test]
fn systems_are_solved_over_both_links_under_loss() {
    for what in ["dense:300", "poisson2d:24", "circuit:600"] {
        let generate: Generate = what.parse().unwrap();
        let system = generate.system(1).unwrap();
        for over in BOTH {
            for loss in [0.0, 0.2] {
                for mode in [Mode::Async, Mode::Sync] {
                    let config = SolveConfig { mode, ..config() };
                    let solved = solve(over, 3, loss, &system.clone().into(), &config);
                    let name = format!("{what} {over:?} {loss} {mode:?}");
                    check(&solved, &system, 3, &name);
                    assert_eq!(
                        solved.frames_lost() > 0,
                        loss > 0.0 || solved.frames_lost() > 0
                    );
                    if loss > 0.0 {
                        assert!(solved.frames_lost() > 0, "{name}");
                    }
                }
            }
        }
    }
}

fn krylov(kind: Kind, preconditioning: Preconditioning) -> Mode {
    Mode::Krylov(Krylov {
        kind,
        preconditioning,
    })
}

/// Conjugate gradients and GMRES between workers take about as many iterations as between threads, over both links, with and without losses.
#[test]
fn krylov_methods_run_between_workers() {
    for (what, mode) in [
        ("dense:300", krylov(Kind::Gmres, Preconditioning::Jacobi)),
        ("poisson2d:24", krylov(Kind::Gmres, Preconditioning::Ilu)),
        (
            "poisson2d:24",
            krylov(Kind::Cg, Preconditioning::ModifiedIlu),
        ),
        ("circuit:600", krylov(Kind::Cg, Preconditioning::Ilu)),
    ] {
        let generate: Generate = what.parse().unwrap();
        let system = generate.system(1).unwrap();
        for over in BOTH {
            for loss in [0.0, 0.2] {
                for workers in [1, 3] {
                    let config = SolveConfig { mode, ..config() };
                    let solved = solve(over, workers, loss, &system.clone().into(), &config);
                    let name = format!("{what} {over:?} {loss} {workers} {mode:?}");
                    check(&solved, &system, workers.into(), &name);
                    let laps = &solved.outcome.laps;
                    assert!(laps.iter().all(|own| *own == laps[0]), "{name}: {laps:?}");
                    assert!(laps[0] < 120, "{name}: {laps:?}");
                    assert_eq!(solved.outcome.verifications, 1, "{name}");
                }
            }
        }
    }
}

/// Of a system that was matched and scaled workers give x and its residual as the original has them, and begin with an x of the original.
#[test]
fn matched_systems_keep_their_x() {
    let n = 90;
    let size = |k: u32| 10f64.powi((k * 5 % 7) as i32 - 3);
    let mut triplets = Vec::new();
    for row in 0..n {
        for (shift, value) in [(1, 3.0), (4, -1.0), (n - 2, 0.7)] {
            let column = (row + shift) % n;
            triplets.push((row, column, value * size(row) * size(3 * column + 2)));
        }
    }
    let original = Matrix::Sparse(Csr::from_triplets(n as usize, n as usize, &triplets).unwrap());
    let (system, _) = System::matched(original.clone(), None, "sizes".into()).unwrap();
    let ones = vec![1.0; n as usize];
    let b = original.times(&ones);
    for mode in [
        krylov(Kind::Gmres, Preconditioning::Ilu),
        Mode::Async,
        Mode::Sync,
    ] {
        for x in [None, Some(ones.clone())] {
            let config = SolveConfig { mode, ..config() };
            let mut nodes = cluster(Over::Shm, 3, 0.0, &Options::default()).into_iter();
            let mut judge = nodes.next().unwrap();
            let team: Vec<_> = nodes.map(serve).collect();
            let (mut count, mut nobody) = (|_: Progress| (), Vec::new);
            let watch = quiet(&mut nobody, &mut count);
            let is_solved = x.is_some();
            let start = Start {
                x,
                ..Start::default()
            };
            let solved = run(&mut judge, &system.clone().into(), &config, start, watch).unwrap();
            team.into_iter()
                .for_each(|one| one.join().unwrap().unwrap());
            let outcome = &solved.outcome;
            assert!(outcome.converged, "{mode:?}: {outcome:?}");
            let product = original.times(&outcome.x);
            let squares = product.iter().zip(&b).map(|(p, b)| (b - p).powi(2));
            let residual = (squares.sum::<f64>() / b.iter().map(|b| b * b).sum::<f64>()).sqrt();
            assert!(residual <= 1.01e-10, "{mode:?}: {residual}");
            if is_solved && matches!(mode, Mode::Krylov(_)) {
                assert_eq!(outcome.laps, [0, 0]);
            }
        }
    }
}

/// Where conjugate gradients find that the matrix is not positive definite GMRES goes on, if it may; otherwise the run ends and says so.
#[test]
fn another_method_follows_one_that_fails() {
    // Symmetric, with a positive diagonal, and indefinite.
    let n = 40;
    let entry = |row: usize, column: usize| match row.abs_diff(column) {
        0 => 1.0 + row as f64 / 100.0,
        1 => 1.5,
        _ => 0.0,
    };
    let values = (0..n * n).map(|i| entry(i / n, i % n)).collect();
    let matrix = Matrix::Dense(Dense::new(n, values).unwrap());
    let system = System::new(matrix, None, "indefinite".into()).unwrap();
    for may_change in [false, true] {
        let config = SolveConfig {
            mode: krylov(Kind::Cg, Preconditioning::Jacobi),
            may_change,
            ..config()
        };
        let solved = solve(Over::Shm, 2, 0.0, &system.clone().into(), &config);
        let outcome = &solved.outcome;
        assert_eq!(outcome.converged, may_change, "{outcome:?}");
        if may_change {
            check(&solved, &system, 2, "indefinite");
            assert_eq!(outcome.method, "GMRES with Jacobi");
            let told = outcome
                .notes
                .iter()
                .any(|note| note.contains("positive definite"));
            assert!(told, "{:?}", outcome.notes);
        } else {
            assert!(
                matches!(outcome.reason, Reason::Stalled { .. }),
                "{outcome:?}"
            );
        }
    }
}

/// With a thread for the computation the answers are the same, in both modes, with and without losses; it computes all laps if asked to, none if not.
#[test]
fn any_thread_may_compute() {
    for (what, inner) in [("dense:300", Inner::Sweep), ("poisson2d:24", Inner::Auto)] {
        let generate: Generate = what.parse().unwrap();
        let system = generate.system(1).unwrap();
        for (over, loss) in [(Over::Shm, 0.0), (Over::Udp, 0.2)] {
            for mode in [Mode::Async, Mode::Sync] {
                for executor in [
                    Executor::RunToCompletion,
                    Executor::Pipeline,
                    Executor::Adaptive,
                ] {
                    let config = SolveConfig {
                        mode,
                        inner,
                        executor,
                        ..config()
                    };
                    let solved = solve(over, 2, loss, &system.clone().into(), &config);
                    let name = format!("{what} {over:?} {loss} {mode:?} {executor}");
                    check(&solved, &system, 2, &name);
                    for worker in &solved.workers {
                        let beside = worker.laps_beside;
                        match executor {
                            // Both are rounded.
                            Executor::Pipeline => assert!(beside.abs_diff(worker.laps) <= 1),
                            Executor::RunToCompletion => assert_eq!(beside, 0),
                            Executor::Adaptive => assert!(beside <= worker.laps + 1),
                        }
                    }
                }
            }
        }
    }
}

/// Threads that share a worker's rows reach the same answers: by laps in both modes and on either thread, by LU of each strip, and by Krylov methods.
#[test]
fn workers_have_threads() {
    let relaxed = |mode, inner| SolveConfig {
        mode,
        inner,
        ..config()
    };
    let cg = krylov(Kind::Cg, Preconditioning::ModifiedIlu);
    for (what, base) in [
        ("dense:600", relaxed(Mode::Async, Inner::Sweep)),
        ("dense:600", relaxed(Mode::Sync, Inner::Sweep)),
        ("poisson2d:150", relaxed(Mode::Async, Inner::Lu)),
        ("poisson2d:200", relaxed(cg, Inner::Auto)),
        (
            "dense:600",
            relaxed(krylov(Kind::Gmres, Preconditioning::Jacobi), Inner::Auto),
        ),
    ] {
        let generate: Generate = what.parse().unwrap();
        let system = generate.system(1).unwrap();
        for (over, loss) in [(Over::Shm, 0.0), (Over::Udp, 0.2)] {
            for (executor, threads) in [(Executor::RunToCompletion, 2), (Executor::Pipeline, 3)] {
                let config = SolveConfig {
                    executor,
                    threads,
                    ..base.clone()
                };
                let solved = solve(over, 2, loss, &system.clone().into(), &config);
                check(&solved, &system, 2, &format!("{what} {over:?} {config:?}"));
                let fewer = solved
                    .outcome
                    .notes
                    .iter()
                    .any(|note| note.contains("too few"));
                let stored = system.matrix.stored() / 2;
                assert_eq!(
                    fewer,
                    stored / 50_000 < threads,
                    "{:?}",
                    solved.outcome.notes
                );
            }
        }
    }
}

/// The last known x reaches the judge while workers iterate, whichever thread computes, and whether or not they wait for each other.
#[test]
fn snapshots_come_from_any_thread() {
    let made = Generated::new("poisson2d:150".parse().unwrap(), 1, Solution::Ones);
    let [rtc, beside] = [Executor::RunToCompletion, Executor::Pipeline];
    for (executor, mode) in [(rtc, Mode::Async), (beside, Mode::Async), (rtc, Mode::Sync)] {
        let config = SolveConfig {
            executor,
            mode,
            inner: Inner::Sweep,
            combines: false,
            checkpoint_ms: 20,
            ..config()
        };
        let mut nodes = cluster(Over::Shm, 3, 0.0, &Options::default()).into_iter();
        let mut judge = nodes.next().unwrap();
        let team: Vec<_> = nodes.map(serve).collect();
        // Minutes of laps; it is stopped when x is known.
        let known = std::cell::Cell::new(0);
        let mut save = |x: &[f64]| {
            let halves = x.chunks(x.len() / 2);
            known.set(halves.filter(|half| half.iter().any(|x| *x != 0.0)).count());
        };
        let watch = Watch {
            progress: &mut |_| (),
            ended: &mut Vec::new,
            stop: &|| known.get() == 2,
            checkpoint: Some((Duration::from_millis(20), &mut save)),
        };
        let source = Source::Generated(made);
        let solved = run(&mut judge, &source, &config, Start::default(), watch).unwrap();
        let reason = solved.outcome.reason;
        assert_eq!(reason, Reason::Interrupted, "{executor} {mode:?}");
        for worker in team {
            worker.join().unwrap().unwrap();
        }
    }
}

/// Rows made by the workers themselves are those that would have been sent, and the judge never has them.
#[test]
fn workers_make_their_own_rows() {
    for what in ["dense:200", "circuit:500"] {
        let made = Generated::new(what.parse().unwrap(), 5, Solution::Ones);
        let config = SolveConfig {
            mode: Mode::Sync,
            ..config()
        };
        let solved = solve(Over::Shm, 2, 0.0, &Source::Generated(made), &config);
        let system = made.system().unwrap();
        check(&solved, &system, 2, what);
    }
}

/// One worker alone, and every row its own worker.
#[test]
fn extreme_numbers_of_workers() {
    let system = "dense:6".parse::<Generate>().unwrap().system(1).unwrap();
    for workers in [1, 6] {
        let solved = solve(Over::Shm, workers, 0.0, &system.clone().into(), &config());
        check(&solved, &system, workers.into(), "dense:6");
    }
    let mut judge = cluster(Over::Shm, 8, 0.0, &Options::default()).remove(0);
    let error = run(
        &mut judge,
        &system.clone().into(),
        &config(),
        Start::default(),
        quiet(&mut Vec::new, &mut |_| ()),
    );
    let error = error.unwrap_err();
    assert!(matches!(error, SolveError::Partition(_)), "{error}");
}

/// Frames of one element, of many, sweeps and LU all give the same solution.
#[test]
fn settings_do_not_change_the_answer() {
    let system = "poisson2d:16"
        .parse::<Generate>()
        .unwrap()
        .system(1)
        .unwrap();
    for inner in [Inner::Sweep, Inner::Lu] {
        for elements in [Elements::Fixed(1), Elements::Fixed(100_000)] {
            let config = SolveConfig {
                inner,
                elements,
                ..config()
            };
            let solved = solve(Over::Shm, 2, 0.0, &system.clone().into(), &config);
            check(&solved, &system, 2, &format!("{inner:?} {elements:?}"));
        }
    }
}

/// Laps run out: the residual is that of the x handed over, and the slowest worker did the laps it was allowed.
#[test]
fn laps_run_out_with_a_true_residual() {
    let system = "poisson2d:20"
        .parse::<Generate>()
        .unwrap()
        .system(1)
        .unwrap();
    for mode in [Mode::Async, Mode::Sync] {
        let config = SolveConfig {
            mode,
            inner: Inner::Sweep,
            max_laps: 7,
            ..config()
        };
        let Solved { outcome, .. } = solve(Over::Shm, 2, 0.0, &system.clone().into(), &config);
        assert_eq!(outcome.reason, Reason::MaxLaps { limit: 7 });
        assert!(!outcome.converged, "{:?}", outcome.laps);
        assert!(
            outcome.laps.iter().all(|laps| *laps >= 7)
                && (mode == Mode::Async || outcome.laps == [7, 7]),
            "{:?}",
            outcome.laps
        );
        let exact = true_residual(&system, &outcome.x);
        assert!(exact > 1e-10 && (outcome.residual - exact).abs() < 1e-9 * exact);
    }
}

/// A system for which relaxation diverges ends soon, says so, and with an x that is no worse than 0.
#[test]
fn divergence_is_explained() {
    // Far from dominant diagonals, and of no symmetry: no order of the rows converges.
    let n: usize = 40;
    let values = (0..n * n)
        .map(|i| match i % (n + 1) {
            0 => 1.0,
            _ => (i * i % 101) as f64 / 25.0 - 2.0,
        })
        .collect();
    let matrix = Matrix::Dense(Dense::new(n, values).unwrap());
    let system = System::new(matrix, None, "nothing dominates".into()).unwrap();
    let Solved { outcome, .. } = solve(Over::Shm, 3, 0.0, &system.clone().into(), &config());
    let diverged = matches!(outcome.reason, Reason::Diverged { .. });
    assert!(diverged, "{outcome:?}");
    assert!(outcome.residual <= 1.0, "{}", outcome.residual);
    assert!((true_residual(&system, &outcome.x) - outcome.residual).abs() < 1e-9);
    assert!(outcome.reason.to_string().contains("diverged"));
}

/// Where a Krylov method fails, and relaxation after it, too, the run ended for the first reason, and both are told.
#[test]
fn the_first_failure_is_the_reason() {
    let n: usize = 40;
    let entry = |i: usize| match i % (n + 1) {
        0 => 1.0,
        _ => (i * i % 101) as f64 / 25.0 - 2.0,
    };
    // The second row is the first one, with another right-hand side.
    let values = (0..n * n).map(|i| entry(if i / n == 1 { i - n } else { i }));
    let matrix = Matrix::Dense(Dense::new(n, values.collect()).unwrap());
    let mut rhs = matrix.times(&vec![1.0; n]);
    rhs[1] += 10.0;
    let system = System::new(matrix, Some(rhs), "no solution".into()).unwrap();
    let config = SolveConfig {
        mode: krylov(Kind::Gmres, Preconditioning::Jacobi),
        may_change: true,
        ..config()
    };
    let Solved { outcome, .. } = solve(Over::Shm, 3, 0.0, &system.clone().into(), &config);
    assert!(matches!(outcome.reason, Reason::Stalled { best } if best <= 1.0));
    let notes = outcome.notes.join("; ");
    for part in ["the residual stood still at", "too: one process"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}

/// The answer of a system of two blocks is beyond the largest number: laps overflow at once, and yet the run ends soon, by whatever way of doing laps.
#[test]
fn overflow_ends_the_run() {
    let n: u32 = 40;
    let mut triplets: Vec<(u32, u32, f64)> = (0..n).map(|row| (row, row, 6e-200)).collect();
    triplets.extend((1..n).map(|row| (row, row - 1, 1e-200)));
    triplets.extend((2..n).map(|row| (row - 2, row, 2e-200)));
    let csr = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
    let rhs = (0..n).map(|row| 1e140 + f64::from(row)).collect();
    let system = System::new(Matrix::Sparse(csr), Some(rhs), "tiny".into()).unwrap();
    for (mode, inner) in [
        (Mode::Async, Inner::Sweep),
        (Mode::Async, Inner::Auto),
        (Mode::Sync, Inner::Sweep),
        (krylov(Kind::Gmres, Preconditioning::Ilu), Inner::Auto),
    ] {
        let config = SolveConfig {
            mode,
            inner,
            may_change: true,
            ..config()
        };
        let Solved { outcome, .. } = solve(Over::Shm, 2, 0.0, &system.clone().into(), &config);
        assert!(!outcome.converged, "{mode:?}: {outcome:?}");
        assert!(outcome.residual <= 1.0, "{mode:?}: {outcome:?}");
        let diverged = matches!(outcome.reason, Reason::Diverged { .. });
        assert!(diverged || matches!(mode, Mode::Krylov(_)), "{outcome:?}");
    }
}

/// A worker that cannot relax as asked ends the run by name, with its reason.
#[test]
fn impossible_lu_is_reported_by_name() {
    let values = vec![1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let matrix = Matrix::Dense(Dense::new(3, values).unwrap());
    let system = System::new(matrix, None, "singular block".into()).unwrap();
    let mut nodes = cluster(Over::Shm, 2, 0.0, &Options::default()).into_iter();
    let mut judge = nodes.next().unwrap();
    let worker = serve(nodes.next().unwrap());
    let config = SolveConfig {
        inner: Inner::Lu,
        ..config()
    };
    let error = run(
        &mut judge,
        &system.clone().into(),
        &config,
        Start::default(),
        quiet(&mut Vec::new, &mut |_| ()),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("node 1 gave up: --inner lu is not possible"),
        "{error}"
    );
    assert!(worker.join().unwrap().is_err());
}

/// An endpoint that says hello, takes its first messages, and then is gone: with a word (dropped) or without.
fn deserter(mut endpoint: Endpoint, silent: bool) -> JoinHandle<()> {
    thread::spawn(move || {
        let _ = endpoint
            .recv(Duration::from_secs(20))
            .unwrap()
            .expect("the setup");
        if silent {
            endpoint.vanish();
        }
    })
}

/// A worker that dies while it loads or later is survived by the others, which take over its rows; the last one's death is told by name.
#[test]
fn lost_workers_are_survived() {
    let system = "dense:400".parse::<Generate>().unwrap().system(1).unwrap();
    let options = Options {
        keep_alive: Duration::from_millis(100),
        dead_after: Duration::from_millis(600),
        ..Options::default()
    };
    for (over, silent) in [(Over::Shm, false), (Over::Udp, false), (Over::Udp, true)] {
        let mut nodes = cluster(over, 4, 0.0, &options).into_iter();
        let mut judge = nodes.next().unwrap();
        let loyal = [serve(nodes.next().unwrap()), serve(nodes.next().unwrap())];
        let lost = deserter(nodes.next().unwrap(), silent);
        let solved = run(
            &mut judge,
            &system.clone().into(),
            &config(),
            Start::default(),
            quiet(&mut Vec::new, &mut |_| ()),
        );
        let solved = solved.unwrap();
        assert_eq!(solved.lost_workers, 1, "{over:?} {silent}");
        assert!(
            solved.outcome.notes[0].contains("worker 3 was lost"),
            "{:?}",
            solved.outcome
        );
        check(&solved, &system, 2, &format!("{over:?} {silent}"));
        lost.join().unwrap();
        for worker in loyal {
            worker.join().unwrap().unwrap();
        }
    }
    let mut nodes = cluster(Over::Udp, 2, 0.0, &options).into_iter();
    let mut judge = nodes.next().unwrap();
    let lost = deserter(nodes.next().unwrap(), false);
    let error = run(
        &mut judge,
        &system.clone().into(),
        &config(),
        Start::default(),
        quiet(&mut Vec::new, &mut |_| ()),
    );
    let error = error.unwrap_err();
    assert!(
        matches!(&error, SolveError::WorkerLost { worker, .. } if worker == "node 1"),
        "{error}"
    );
    lost.join().unwrap();
}

/// What a launcher knows of the last worker's end is the error, whatever else is noticed.
#[test]
fn the_launchers_word_is_the_error() {
    let system = "dense:50".parse::<Generate>().unwrap().system(1).unwrap();
    let mut nodes = cluster(Over::Shm, 2, 0.0, &Options::default()).into_iter();
    let mut judge = nodes.next().unwrap();
    let lost = deserter(nodes.next().unwrap(), false);
    let mut said = false;
    let ended = &mut || {
        let first = !std::mem::replace(&mut said, true);
        let word = (!first).then(|| (0, "worker 1 was killed by signal 9".to_owned()));
        word.into_iter().collect()
    };
    let error = run(
        &mut judge,
        &system.clone().into(),
        &config(),
        Start::default(),
        quiet(ended, &mut |_| ()),
    );
    assert_eq!(
        error.unwrap_err().to_string(),
        "worker 1 was killed by signal 9"
    );
    lost.join().unwrap();
}

/// Workers whose judge goes away end by themselves.
#[test]
fn workers_end_when_their_judge_is_lost() {
    let mut nodes = cluster(Over::Shm, 3, 0.0, &Options::default()).into_iter();
    let mut judge = nodes.next().unwrap();
    let team: Vec<_> = nodes.map(serve).collect();
    assert!(judge.wait_up(Duration::from_secs(20)).unwrap().is_empty());
    drop(judge);
    for worker in team {
        let error = worker.join().unwrap().unwrap_err();
        assert!(matches!(error, WorkerError::JudgeLost), "{error}");
    }
}

/// A run that begins with a solution, or one nearby, takes fewer laps.
#[test]
fn runs_resume_where_others_ended() {
    let system = "poisson2d:24"
        .parse::<Generate>()
        .unwrap()
        .system(1)
        .unwrap();
    let config = SolveConfig {
        mode: Mode::Sync,
        inner: Inner::Sweep,
        combines: false,
        checkpoint_ms: 1000,
        ..config()
    };
    let resumed = |start: Option<Vec<f64>>| {
        let mut nodes = cluster(Over::Shm, 3, 0.0, &Options::default()).into_iter();
        let mut judge = nodes.next().unwrap();
        let team: Vec<_> = nodes.map(serve).collect();
        let (mut nobody, mut tell) = (Vec::new, |_: Progress| ());
        let source = &system.clone().into();
        let watch = quiet(&mut nobody, &mut tell);
        let start = Start {
            x: start,
            ..Start::default()
        };
        let solved = run(&mut judge, source, &config, start, watch).unwrap();
        team.into_iter()
            .for_each(|worker| worker.join().unwrap().unwrap());
        check(&solved, &system, 2, "resumed");
        solved.outcome.laps[0]
    };
    let from_zero = resumed(None);
    let near: Vec<f64> = (0..576).map(|k| 1.0 + 1e-7 * f64::from(k % 3)).collect();
    let from_near = resumed(Some(near));
    assert!(from_near * 2 < from_zero, "{from_near} {from_zero}");
    assert!(resumed(Some(vec![1.0; 576])) <= 2, "it is the solution");
}

/// Weights give rows in proportion, and a measured share leaves the answer as it is.
#[test]
fn weights_share_the_rows() {
    let system = "dense:90".parse::<Generate>().unwrap().system(1).unwrap();
    for shares in [Shares::Weights(vec![1.0, 3.0]), Shares::Measured] {
        let config = SolveConfig { shares, ..config() };
        let solved = solve(Over::Shm, 2, 0.0, &system.clone().into(), &config);
        check(&solved, &system, 2, "weights");
    }
    for text in ["auto", "1,2.5"] {
        assert!(text.parse::<Shares>().is_ok());
    }
    for text in ["", "1,", "0", "-1,2", "NaN", "inf"] {
        assert!(text.parse::<Shares>().is_err(), "{text}");
    }
}
