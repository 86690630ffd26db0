//! The runs with messages: starts the workers (or joins a cluster), judges, and puts what happened into an outcome.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use tsumuji_node::any_link::{AnyLink, Base};
use tsumuji_node::{
    ClusterFile, Endpoint, ImpairConfig, LaunchError, LaunchSpec, Launcher, NodeId, OpenError,
    Options, Printing, WorkerFailure, bootstrap,
};
use tsumuji_solve::distributed::{Input, SolveConfig, SolveError, Solved};
use tsumuji_solve::report::{Outcome, Progress, Reason, Seconds};

use super::Args;
use super::show::{Run, Traffic};
use crate::interrupt::Interrupt;

/// Workers that are left when a run has failed get this long to end by themselves.
const GRACE: Duration = Duration::from_secs(1);
/// Hosts of a cluster are started by hand, one after the other.
const HOSTS_JOIN_WITHIN: Duration = Duration::from_secs(120);
const FAREWELL: Duration = Duration::from_secs(1);

/// Solves with workers of this host, or with those of the cluster file.
pub(super) fn solve(
    args: &Args,
    workers: usize,
    input: Input<'_>,
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    interrupt: &Interrupt,
    run: &mut Run,
) -> anyhow::Result<(Outcome, Traffic)> {
    match (&args.hosts, args.id) {
        (Some(hosts), Some(id)) => {
            run.link = Some("udp".to_owned());
            let mut endpoint = join(hosts, id, args.loss, args.seed)?;
            if interrupt.is_set() {
                return Ok(ended(Reason::Interrupted));
            }
            let result = judge(
                &mut endpoint,
                input,
                config,
                progress,
                &mut || None,
                interrupt,
            );
            endpoint.close(FAREWELL);
            result
        }
        _ => on_this_host(args, workers, input, config, progress, interrupt),
    }
}

/// Workers that a cluster file leaves beside the judge.
pub(super) fn workers_of(hosts: &Path) -> anyhow::Result<usize> {
    let nodes = ClusterFile::read(hosts)?.members().len();
    ensure!(
        nodes >= 2,
        "{}: {nodes} node; a judge (id 0) and at least one worker are needed",
        hosts.display()
    );
    Ok(nodes - 1)
}

fn impairment(loss: f64, seed: u64) -> Option<ImpairConfig> {
    (loss > 0.0).then(|| ImpairConfig {
        loss,
        seed,
        ..ImpairConfig::default()
    })
}

/// Opens this node of the cluster file and waits for all others.
pub(crate) fn join(
    hosts: &Path,
    id: u16,
    loss: f64,
    seed: u64,
) -> anyhow::Result<Endpoint<AnyLink>> {
    let file = ClusterFile::read(hosts)?;
    let membership = file.membership(NodeId(id), hosts)?;
    let base = Base::open(&file.hosts()[usize::from(id)].link)?;
    let link = AnyLink::open(
        base,
        impairment(loss, seed.wrapping_add(u64::from(id))),
        None,
    )?;
    let mut endpoint = Endpoint::new(
        link,
        membership,
        Options {
            seed,
            ..Options::default()
        },
    )?;
    let missing = endpoint.wait_up(HOSTS_JOIN_WITHIN)?;
    let names: Vec<_> = missing.iter().map(|&node| endpoint.name_of(node)).collect();
    ensure!(
        names.is_empty(),
        "{} did not answer within {} s; is it started there, with the same cluster file?",
        names.join(", "),
        HOSTS_JOIN_WITHIN.as_secs()
    );
    Ok(endpoint)
}

fn on_this_host(
    args: &Args,
    workers: usize,
    input: Input<'_>,
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, Traffic)> {
    let program = std::env::current_exe().context("this program's own file")?;
    let mut spec = LaunchSpec::new(workers, [program.into_os_string(), "worker".into()]);
    spec.with_self = true;
    spec.self_name = "judge".to_owned();
    spec.link = args.link;
    // Nothing of a worker's may stand where the result goes.
    (spec.stdout, spec.stdout_to_stderr) = (Printing::Tagged, true);
    spec.env
        .push((bootstrap::ENV_SEED.into(), args.seed.to_string().into()));
    if args.loss > 0.0 {
        spec.env
            .push((bootstrap::ENV_LOSS.into(), args.loss.to_string().into()));
    }
    let mut launcher = match Launcher::start(spec) {
        Ok(launcher) => launcher,
        Err(LaunchError::Worker(failure)) => return Ok(lost(&failure)),
        Err(error) => return Err(error.into()),
    };
    let options = Options {
        seed: args.seed,
        ..Options::default()
    };
    let mut endpoint = match launcher.endpoint(options, impairment(args.loss, args.seed), None) {
        Ok(endpoint) => endpoint,
        Err(_) if interrupt.is_set() => return Ok(ended(Reason::Interrupted)),
        Err(OpenError::Worker(failure)) => return Ok(lost(&failure)),
        Err(error) => return Err(error.into()),
    };
    let mut seen = None;
    let mut failure = || {
        seen = seen.take().or_else(|| launcher.check());
        seen.as_ref().map(ToString::to_string)
    };
    let result = judge(
        &mut endpoint,
        input,
        config,
        progress,
        &mut failure,
        interrupt,
    );
    endpoint.close(FAREWELL);
    launcher.shutdown(GRACE);
    match (result, seen) {
        (Ok((outcome, _)), Some(failure))
            if matches!(outcome.reason, Reason::WorkerLost { .. }) =>
        {
            Ok(lost(&failure))
        }
        (result, _) => result,
    }
}

/// Judges. What ends a run early becomes its reason; what makes no sense is an error.
fn judge(
    endpoint: &mut Endpoint<AnyLink>,
    input: Input<'_>,
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    failure: &mut dyn FnMut() -> Option<String>,
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, Traffic)> {
    let mut stop = || {
        if interrupt.is_set() {
            Some("interrupted".to_owned())
        } else {
            failure()
        }
    };
    match tsumuji_solve::distributed::run(endpoint, input, config, progress, &mut stop) {
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
    Traffic {
        frames_sent: solved.frames_sent(),
        frames_lost: solved.frames_lost(),
        bytes_sent: solved.bytes_sent(),
        peak_rss_bytes: solved
            .workers
            .iter()
            .map(|worker| worker.peak_rss_bytes)
            .collect(),
    }
}

/// The outcome of a run that has none.
fn ended(reason: Reason) -> (Outcome, Traffic) {
    let outcome = Outcome {
        converged: false,
        reason,
        residual: f64::NAN,
        laps: Vec::new(),
        verifications: 0,
        seconds: Seconds::default(),
        notes: Vec::new(),
        x: Vec::new(),
    };
    (outcome, Traffic::default())
}

/// A worker that its launcher saw fail.
fn lost(failure: &WorkerFailure) -> (Outcome, Traffic) {
    let text = failure.to_string();
    // The launcher's sentence begins with the name, and mostly the process.
    let (worker, cause) = match failure {
        WorkerFailure::Ended { exit, .. } => {
            split(&text, &format!("{} (pid {})", exit.name, exit.pid))
        }
        _ => split(&text, &format!("worker {}", failure.node().0)),
    };
    ended(Reason::WorkerLost { worker, cause })
}

/// What comes after the name.
fn split(text: &str, name: &str) -> (String, String) {
    let cause = text.strip_prefix(name).unwrap_or(text).trim_start();
    (
        name.to_owned(),
        cause.strip_prefix("died: ").unwrap_or(cause).to_owned(),
    )
}
