//! Runs with messages: starts the workers (or joins a cluster), runs the judge, and makes an outcome of the result.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use tsumuji_node::{
    AnyLink, ClusterFile, Endpoint, ImpairConfig, LaunchError, LaunchSpec, Launcher, LinkSpec,
    NodeId, OpenError, Options, Printing, Security, WorkerFailure, bootstrap, open_in_cluster,
};
use tsumuji_solve::distributed::{Input, SolveConfig, SolveError, Solved};
use tsumuji_solve::report::{Outcome, Progress, Reason, Seconds};

use super::Args;
use super::show::Traffic;
use crate::interrupt::Interrupt;
use crate::meeting::meet;
use crate::{hosts, metrics, output};

/// Grace time of the remaining workers when a run has failed.
const GRACE: Duration = Duration::from_secs(1);
const FAREWELL: Duration = Duration::from_secs(1);
/// Grace time of workers that know of the end of a run, before they are told to end. Only on a very busy machine do they need it.
const PARTING: Duration = Duration::from_secs(5);

/// Several hosts, from their file.
pub(super) struct Cluster<'a> {
    pub(super) file: ClusterFile,
    /// Path of the file, for messages.
    pub(super) path: &'a Path,
}

impl Cluster<'_> {
    /// Number of workers in the file, without the judge.
    pub(super) fn workers(&self) -> anyhow::Result<usize> {
        let nodes = self.file.hosts().len();
        ensure!(
            nodes >= 2,
            "{}: {nodes} node; a judge (id 0) and at least one worker are needed",
            self.path.display()
        );
        Ok(nodes - 1)
    }

    /// Kind of the judge's link, for reports: `udp`, `packet` or `xdp`.
    pub(super) fn link_name(&self) -> String {
        self.file.link_name()
    }
}

/// Solves with workers of this host, or with those of the hosts file.
pub(super) fn solve(
    args: &Args,
    (cluster, security): (Option<&Cluster<'_>>, Security),
    workers: usize,
    input: Input<'_>,
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, Traffic)> {
    match (cluster, args.id) {
        (Some(Cluster { file, path }), Some(id)) => {
            let mut stop = || interrupt.is_set();
            let (loss, options) = (args.loss.unwrap_or(0.0), options(args)?);
            let mut endpoint = join(file, path, id, loss, &security, options, &mut stop)?;
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
            let _ = endpoint.close(FAREWELL);
            result
        }
        _ => {
            let spec = launch_spec(args, cluster, workers, &security)?;
            with_launched(args, security, spec, input, config, progress, interrupt)
        }
    }
}

fn impairment(loss: f64, seed: u64) -> Option<ImpairConfig> {
    (loss > 0.0).then(|| ImpairConfig {
        loss,
        seed,
        ..ImpairConfig::default()
    })
}

/// Opens this node of the cluster file and waits for all others, or until `stop` says so.
pub(crate) fn join(
    file: &ClusterFile,
    path: &Path,
    id: u16,
    loss: f64,
    security: &Security,
    options: Options,
    stop: &mut dyn FnMut() -> bool,
) -> anyhow::Result<Endpoint<AnyLink>> {
    let impair = impairment(loss, options.seed.wrapping_add(u64::from(id)));
    let options = Options {
        security: security.clone(),
        ..options
    };
    let mut endpoint = open_in_cluster(file, path, NodeId(id), options, impair)?;
    meet(&mut endpoint, stop)?;
    Ok(endpoint)
}

/// Options of this process's endpoint, from the command line.
pub(super) fn options(args: &Args) -> anyhow::Result<Options> {
    Ok(Options {
        seed: args.seed,
        metrics: metrics::wanted(args.metrics)?,
        congestion: args.congestion.unwrap_or_default(),
        ..Options::default()
    })
}

/// Specification of the workers' launch.
fn launch_spec(
    args: &Args,
    cluster: Option<&Cluster<'_>>,
    workers: usize,
    security: &Security,
) -> anyhow::Result<LaunchSpec> {
    let program = hosts::program(args.program.as_ref())?;
    let mut spec = LaunchSpec::new(workers, [program.clone().into(), OsString::from("worker")]);
    if let Some(cluster) = cluster {
        spec.hosts = Some(hosts::of(&cluster.file, program));
        spec.join_timeout = hosts::ANSWER_WITHIN;
    }
    spec.with_self = true;
    spec.self_name = "judge".to_owned();
    spec.link = args.link.unwrap_or(LinkSpec::Shm);
    spec.congestion = args.congestion;
    // The output of workers must not be mixed with the result.
    (spec.stdout, spec.stdout_to_stderr) = (Printing::Tagged, true);
    spec.env
        .push((bootstrap::ENV_SEED.into(), args.seed.to_string().into()));
    spec.env.extend(security.env());
    spec.env.push(metrics::env(metrics::wanted(args.metrics)?));
    spec.env.extend(
        args.loss
            .map(|loss| (bootstrap::ENV_LOSS.into(), loss.to_string().into())),
    );
    Ok(spec)
}

fn with_launched(
    args: &Args,
    security: Security,
    spec: LaunchSpec,
    input: Input<'_>,
    config: &SolveConfig,
    progress: &mut dyn FnMut(Progress),
    interrupt: &Interrupt,
) -> anyhow::Result<(Outcome, Traffic)> {
    let mut launcher = match Launcher::start(spec) {
        Ok(launcher) => launcher,
        Err(LaunchError::Worker(failure)) => return Ok(lost(&failure)),
        Err(error) => return Err(error.into()),
    };
    let options = Options {
        security,
        ..options(args)?
    };
    let mut endpoint = match launcher.endpoint(
        options,
        impairment(args.loss.unwrap_or(0.0), args.seed),
        None,
    ) {
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
    // A worker that fails meanwhile ends the wait, and then the run.
    meet(&mut endpoint, &mut || {
        interrupt.is_set() || failure().is_some()
    })?;
    let result = judge(
        &mut endpoint,
        input,
        config,
        progress,
        &mut failure,
        interrupt,
    );
    let _ = endpoint.close(FAREWELL);
    if seen.is_none() && matches!(&result, Ok((outcome, _)) if outcome.converged) {
        // They know that the run has ended, and may have something to write, such as a capture.
        let exits = launcher.wait_all(PARTING);
        if exits.iter().any(|exit| !exit.success()) {
            output::note_partial();
        }
    }
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

/// Runs the judge. An event that ends a run early becomes its reason; other failures are errors.
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
        laps_beside: solved
            .workers
            .iter()
            .map(|worker| worker.laps_beside)
            .collect(),
    }
}

/// The outcome of a run without a result.
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

/// Splits off the part behind the name.
fn split(text: &str, name: &str) -> (String, String) {
    let cause = text.strip_prefix(name).unwrap_or(text).trim_start();
    (
        name.to_owned(),
        cause.strip_prefix("died: ").unwrap_or(cause).to_owned(),
    )
}
