//! Runs with messages: starts the workers (or joins a cluster), runs the judge, and makes an outcome of the result.

use std::time::Instant;

use tsumuji_node::{Endpoint, Launcher, Security, WorkerFailure};
use tsumuji_solve::distributed::{
    Checkpoint, Krylov, Mode, SolveConfig, SolveError, Solved, Start, Watch, WorkerError,
    WorkerFault, WorkerStats, worker_main,
};
use tsumuji_solve::method::Method;
use tsumuji_solve::report::{Outcome, Progress, Reason, Seconds};
use tsumuji_solve::system::Source;

use super::how::How;
use super::show::Traffic;
use super::{Args, ModeName};
use crate::interrupt::{Interrupt, Interrupted};
use crate::team::{self, Cluster, Team};
use crate::{BAD_INPUT, NOT_REACHED};

/// What all workers are told of the run.
pub(super) fn config(args: &Args, how: How, krylov: Option<Krylov>) -> SolveConfig {
    SolveConfig {
        mode: match krylov {
            Some(krylov) => Mode::Krylov(krylov),
            None if how.mode == ModeName::Sync => Mode::Sync,
            None => Mode::Async,
        },
        may_change: args.method == Method::Auto,
        executor: args.executor.unwrap_or_default(),
        elements: args.elements,
        inner: args.inner,
        threads: args.threads.map_or(1, usize::from),
        omega: args.omega,
        combines: how.combines(args.precision),
        precision: args.precision,
        tol: args.tol,
        shares: args.weights.clone().unwrap_or_default(),
        // A run that ends early keeps what it knows of x, too.
        checkpoint_ms: match (&args.checkpoint, &args.output) {
            (Some(_), _) => args.every.as_millis() as u64,
            (None, Some(_)) => 1000,
            (None, None) => 0,
        },
        lease_ms: args.lease.as_millis().clamp(1, u128::from(u32::MAX)) as u64,
        outlive_ms: (args.outlive.unwrap_or_default().as_millis()).min(u128::from(u32::MAX)) as u64,
        max_laps: args.max_laps,
    }
}

/// The x to begin with, and what is done with it while the run goes on.
pub(super) struct Checkpoints<'a> {
    pub(super) start: Start,
    /// How often, and what.
    pub(super) checkpoint: Option<Checkpoint<'a>>,
}

/// Solves with workers of this host, or with those of the hosts file.
pub(super) fn solve(
    args: &Args,
    (cluster, security): (Option<&Cluster<'_>>, Security),
    (workers, source): (usize, &Source),
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    checkpoints: Checkpoints<'_>,
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, Traffic)> {
    let team = Team {
        args: &args.team,
        command: "worker",
        seed: args.seed,
        workers,
        cluster,
        security: &security,
    };
    let began = Instant::now();
    // Not all workers may be left, where a judge takes over.
    let mut stop = || interrupt.is_set() || (args.take_over && began.elapsed() >= args.lease);
    let ran = team.run(
        interrupt,
        &mut stop,
        |endpoint, launcher| {
            if launcher.is_none() && interrupt.is_set() {
                return Ok(ended(Reason::Interrupted));
            }
            judge(endpoint, source, config, progress, checkpoints, launcher, interrupt)
        },
        // One that failed after the run, over its capture, is noticed as it ends.
        |result| matches!(result, Ok((outcome, traffic)) if outcome.converged && traffic.lost_workers == 0),
    );
    match ran {
        Err(error) if error.is::<Interrupted>() => Ok(ended(Reason::Interrupted)),
        Err(error) => Ok(lost(&error.downcast()?)),
        // The launcher's words, and what is known of x.
        Ok((Ok((outcome, traffic)), Some(failure)))
            if matches!(outcome.reason, Reason::WorkerLost { .. }) =>
        {
            let (lost, _) = lost(&failure);
            let reason = lost.reason;
            let traffic = Traffic {
                lost_workers: traffic.lost_workers.max(1),
                ..traffic
            };
            Ok((Outcome { reason, ..outcome }, traffic))
        }
        Ok((result, _)) => result,
    }
}

/// Runs the judge. An event that ends a run early becomes its reason; other failures are errors.
fn judge(
    endpoint: &mut Endpoint,
    source: &Source,
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    checkpoints: Checkpoints<'_>,
    launcher: Option<&mut Launcher>,
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, Traffic)> {
    let stop = || interrupt.is_set();
    let mut processes = team::Processes::of(launcher);
    let mut gone = || processes.ended();
    let (every, mut save) = checkpoints.checkpoint.unzip();
    let mut save = |x: &[f64]| {
        if let Some(save) = &mut save {
            save(x);
        }
    };
    let watch = Watch {
        progress,
        ended: &mut gone,
        stop: &stop,
        checkpoint: every.map(|every| (every, &mut save as _)),
    };
    match tsumuji_solve::distributed::run(endpoint, source, config, checkpoints.start, watch) {
        Ok(solved) => Ok((solved.outcome.clone(), traffic(&solved))),
        Err(_) if interrupt.is_set() => Ok(ended(Reason::Interrupted)),
        Err(SolveError::WorkerLost { worker, cause }) => {
            Ok(ended(Reason::WorkerLost { worker, cause }))
        }
        Err(SolveError::WorkerEnded(cause)) => Ok(ended(Reason::WorkerLost {
            worker: "a worker".to_owned(),
            cause,
        })),
        Err(SolveError::WorkerFailed { worker, why }) => {
            Ok(ended(Reason::WorkerLost { worker, cause: why }))
        }
        Err(error) => Err(error.into()),
    }
}

fn traffic(solved: &Solved) -> Traffic {
    let of_each =
        |count: fn(&WorkerStats) -> u64| -> Vec<u64> { solved.workers.iter().map(count).collect() };
    Traffic {
        frames_sent: solved.frames_sent(),
        frames_lost: solved.frames_lost(),
        bytes_sent: solved.bytes_sent(),
        lost_workers: solved.lost_workers,
        joined: solved.joined,
        wire_frames: of_each(|worker| worker.wire_frames).iter().sum(),
        wire_bytes: of_each(|worker| worker.wire_bytes).iter().sum(),
        elements: of_each(|worker| worker.elements),
        peak_rss_bytes: of_each(|worker| worker.peak_rss_bytes),
        laps_beside: of_each(|worker| worker.laps_beside),
    }
}

/// The outcome of a run without a result.
fn ended(reason: Reason) -> (Outcome, Traffic) {
    let lost_workers = usize::from(matches!(reason, Reason::WorkerLost { .. }));
    let outcome = Outcome {
        converged: false,
        reason,
        method: String::new(),
        residual: f64::NAN,
        laps: Vec::new(),
        verifications: 0,
        seconds: Seconds::default(),
        notes: Vec::new(),
        x: Vec::new(),
    };
    let traffic = Traffic {
        lost_workers,
        ..Traffic::default()
    };
    (outcome, traffic)
}

/// The outcome of a worker that its launcher saw fail.
fn lost(failure: &WorkerFailure) -> (Outcome, Traffic) {
    let text = failure.to_string();
    // The launcher's sentence begins with the name, and mostly the process.
    let (worker, cause) = match failure {
        WorkerFailure::Ended { exit, .. } => {
            split(&text, &format!("{} (pid {})", exit.name, exit.pid))
        }
        _ => split(&text, failure.name()),
    };
    ended(Reason::WorkerLost { worker, cause })
}

/// Runs a launched worker.
pub(crate) fn work() -> crate::Outcome {
    team::work(worker_main)
}

/// Serves as a worker that was started by hand.
pub(super) fn serve_host(endpoint: Endpoint) -> crate::Outcome {
    team::work_by_hand(endpoint, worker_main, |error| match error {
        WorkerError::Fault(WorkerFault::Aborted { .. }) | WorkerError::JudgeLost => NOT_REACHED,
        _ => BAD_INPUT,
    })
}

/// Splits off the part behind the name.
fn split(text: &str, name: &str) -> (String, String) {
    let cause = text.strip_prefix(name).unwrap_or(text).trim_start();
    (
        name.to_owned(),
        cause.strip_prefix("died: ").unwrap_or(cause).to_owned(),
    )
}
