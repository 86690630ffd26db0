//! Learning with messages: starts the workers of this host or of the hosts file, runs the judge, and watches over the processes.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use tsumuji_learn::gossip::{self, RunError, Watch};
use tsumuji_learn::report::Outcome;
use tsumuji_learn::{LearnConfig, Mode, Problem};
use tsumuji_node::{
    AnyLink, ClusterFile, Endpoint, ImpairConfig, LaunchSpec, Launcher, Link, LinkSpec, NodeId,
    Options, Printing, Security, bootstrap, endpoint_from_env, open_in_cluster, report_error,
};

use super::Args;
use crate::interrupt::{Interrupt, Interrupted};
use crate::meeting::meet;
use crate::{DONE, NOT_REACHED, hosts, metrics, output};

/// The hidden command of workers.
const WORKER: &str = "learn-worker";
/// Grace time of the remaining workers when a run has failed.
const GRACE: Duration = Duration::from_secs(1);
const FAREWELL: Duration = Duration::from_secs(1);
/// Grace time of workers that know of the end of a run, before they are told to end.
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
}

/// What is learned, and by whom.
pub(super) struct Job<'a> {
    pub(super) problem: &'a Problem,
    pub(super) config: &'a LearnConfig,
    pub(super) workers: usize,
    pub(super) cluster: Option<&'a Cluster<'a>>,
    pub(super) security: Security,
}

/// The workers' processes, if they were started here, and the user's signal.
struct Processes<'a> {
    launcher: Option<&'a mut Launcher>,
    interrupt: &'a Interrupt,
    told: usize,
}

impl Watch for Processes<'_> {
    fn ended(&mut self) -> Vec<(usize, String)> {
        let Some(launcher) = &mut self.launcher else {
            return Vec::new();
        };
        let exits = launcher.exits();
        let new = exits.iter().skip(self.told).filter(|exit| !exit.success());
        let ended = new.map(|exit| (usize::from(exit.node.0).wrapping_sub(1), exit.to_string()));
        let ended = ended.collect();
        self.told = exits.len();
        ended
    }

    fn stops(&mut self) -> bool {
        self.interrupt.is_set()
    }
}

/// Learns with workers of this host, or with those of the hosts file.
pub(super) fn learn(
    args: &Args,
    job: &Job<'_>,
    mode: Mode,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    if let (Some(cluster), Some(id)) = (job.cluster, args.id) {
        let endpoint = open(args, cluster, id, &job.security, &mut || interrupt.is_set())?;
        return judge(endpoint, job, mode, None, interrupt);
    }
    let mut launcher = Launcher::start(launch_spec(args, job)?)?;
    let result = with(args, job, mode, &mut launcher, interrupt);
    let is_whole = matches!(&result, Ok(outcome) if outcome.dropped.is_empty());
    if is_whole {
        // They know that the run has ended, and may have something to write, such as a capture.
        let exits = launcher.wait_all(PARTING);
        if exits.iter().any(|exit| !exit.success()) {
            output::note_partial();
        }
    }
    launcher.shutdown(GRACE);
    result
}

fn with(
    args: &Args,
    job: &Job<'_>,
    mode: Mode,
    launcher: &mut Launcher,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let impair = impairment(args, 0);
    let options = options(args, &job.security)?;
    let mut endpoint = match launcher.endpoint(options, impair, None) {
        Ok(endpoint) => endpoint,
        Err(_) if interrupt.is_set() => return Err(Interrupted.into()),
        Err(error) => return Err(error.into()),
    };
    // A worker that fails before the run begins ends the wait.
    meet(&mut endpoint, &mut || {
        interrupt.is_set() || launcher.check().is_some()
    })?;
    if args.admit
        && let Some(address) = launcher.join_address()
    {
        let flags = crate::security::as_flags(&job.security);
        eprintln!(
            "tsumuji: workers join by: tsumuji join --to {address}{flags} -- tsumuji {WORKER}"
        );
    }
    judge(endpoint, job, mode, Some(launcher), interrupt)
}

/// Learns as node 0.
fn judge<L: Link>(
    mut endpoint: Endpoint<L>,
    job: &Job<'_>,
    mode: Mode,
    launcher: Option<&mut Launcher>,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let mut processes = Processes {
        launcher,
        interrupt,
        told: 0,
    };
    let result = gossip::run(&mut endpoint, job.problem, job.config, mode, &mut processes);
    let _ = endpoint.close(FAREWELL);
    match result {
        Err(RunError::Interrupted) => Err(Interrupted.into()),
        result => Ok(result?),
    }
}

/// Options of this process's endpoint.
fn options(args: &Args, security: &Security) -> anyhow::Result<Options> {
    Ok(Options {
        seed: args.seed,
        security: security.clone(),
        metrics: metrics::wanted(args.metrics)?,
        congestion: args.congestion.unwrap_or_default(),
        admits: args.admit,
        ..Options::default()
    })
}

/// Losses on purpose at one node.
fn impairment(args: &Args, id: u16) -> Option<ImpairConfig> {
    let loss = args.loss.filter(|loss| *loss > 0.0)?;
    Some(ImpairConfig {
        loss,
        seed: args.seed.wrapping_add(u64::from(id)),
        ..ImpairConfig::default()
    })
}

/// Opens a node of the hosts file, and waits for all others.
fn open(
    args: &Args,
    cluster: &Cluster<'_>,
    id: u16,
    security: &Security,
    stop: &mut dyn FnMut() -> bool,
) -> anyhow::Result<Endpoint<AnyLink>> {
    let options = Options {
        admits: args.admit && id == 0,
        ..options(args, security)?
    };
    let impair = impairment(args, id);
    let mut endpoint = open_in_cluster(&cluster.file, cluster.path, NodeId(id), options, impair)?;
    meet(&mut endpoint, stop)?;
    Ok(endpoint)
}

/// Serves as a worker that was started by hand.
pub(super) fn serve_host(
    args: &Args,
    cluster: &Cluster<'_>,
    id: u16,
    security: &Security,
) -> crate::Outcome {
    let endpoint = open(args, cluster, id, security, &mut || false)?;
    match serve(endpoint) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            eprintln!("tsumuji: {error}");
            Ok(std::process::ExitCode::from(NOT_REACHED))
        }
    }
}

/// Specification of the workers' launch.
fn launch_spec(args: &Args, job: &Job<'_>) -> anyhow::Result<LaunchSpec> {
    let program = hosts::program(args.program.as_ref())?;
    let mut spec = LaunchSpec::new(
        job.workers,
        [program.clone().into(), OsString::from(WORKER)],
    );
    if let Some(cluster) = job.cluster {
        spec.hosts = Some(hosts::of(&cluster.file, program));
        spec.join_timeout = hosts::ANSWER_WITHIN;
    }
    spec.with_self = true;
    spec.self_name = "judge".to_owned();
    spec.link = args.link.unwrap_or(LinkSpec::Shm);
    (spec.congestion, spec.admits) = (args.congestion, args.admit);
    // The output of workers must not be mixed with the result.
    (spec.stdout, spec.stdout_to_stderr) = (Printing::Tagged, true);
    let seed = args.seed.to_string();
    spec.env.push((bootstrap::ENV_SEED.into(), seed.into()));
    spec.env.extend(job.security.env());
    spec.env.push(metrics::env(metrics::wanted(args.metrics)?));
    let loss = args
        .loss
        .map(|loss| (bootstrap::ENV_LOSS.into(), loss.to_string().into()));
    spec.env.extend(loss);
    Ok(spec)
}

/// Serve one `tsumuji learn`. Not for users.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {}

/// Runs a launched worker. All its input comes by messages; errors are told to the launcher, whose process prints them.
pub(crate) fn work(_: WorkerArgs) -> crate::Outcome {
    let endpoint = match endpoint_from_env(Options::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            report_error(&error);
            return Err(error.into());
        }
    };
    match serve(endpoint) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            report_error(&error);
            Ok(std::process::ExitCode::from(NOT_REACHED))
        }
    }
}

fn serve<L: Link>(mut endpoint: Endpoint<L>) -> Result<(), gossip::WorkerError> {
    let result = gossip::worker_main(&mut endpoint);
    let _ = endpoint.close(FAREWELL);
    result
}
