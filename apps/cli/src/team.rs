//! A run with a judge (node 0) and workers: what `solve`, also of netlists, and `learn` share. Workers are processes of this host, or nodes of a hosts
//! file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Error, bail, ensure};
use tsumuji_node::bootstrap::{ENV_CAPTURE, check_env, has_launcher};
use tsumuji_node::{
    ClusterFile, Congestion, Endpoint, ImpairConfig, LaunchError, LaunchSpec, Launcher, LinkSpec,
    MetricsAt, NodeId, OpenError, Options, Printing, Security, WorkerExit, WorkerFailure,
    endpoint_from_env, open_in_cluster, quantity, report_error,
};

use crate::interrupt::{Interrupt, Interrupted};
use crate::meeting::meet;
use crate::output::PendingFile;
use crate::{DONE, NOT_REACHED, Outcome, hosts, metrics, output, security};

/// Grace time of the remaining workers when a run has failed.
const GRACE: Duration = Duration::from_secs(1);
/// How long a node that leaves waits for acknowledgements.
const FLUSH_WAIT: Duration = Duration::from_secs(1);
/// Grace time of workers that know of the end of a run, before they are told to end. Only on a very busy machine do they need it.
const PARTING: Duration = Duration::from_secs(5);

/// Options of who takes part, and of the ways between them.
#[derive(Debug, clap::Args)]
pub(crate) struct TeamArgs {
    /// The link: shm (default), udp, udp:ADDRESS:PORT or dpdk:net_memif (two processes); with --hosts udp, packet, xdp or dpdk:DEVICE [default there: the file's]
    #[arg(long, value_name = "LINK")]
    pub(crate) link: Option<LinkSpec>,
    /// Drop this fraction of received frames on purpose: 0.2 or 20%
    #[arg(long, value_name = "P", value_parser = quantity::loss)]
    pub(crate) loss: Option<f64>,
    /// Several hosts: the file that says which
    #[arg(long, value_name = "FILE", group = hosts::WITH_HOSTS)]
    pub(crate) hosts: Option<PathBuf>,
    #[command(flatten)]
    slots: hosts::Slots,
    #[command(flatten)]
    patience: hosts::Patience,
    /// Start nothing; be this node of the hosts file
    #[arg(long, value_name = "I", requires = "hosts")]
    pub(crate) id: Option<u16>,
    /// Path of tsumuji on the other hosts [default: the same path as here]
    #[arg(long, value_name = "PATH", requires = "hosts", conflicts_with = "id")]
    program: Option<PathBuf>,
    /// Let workers join later, by the command that is printed to standard error (see `tsumuji join`)
    #[arg(long)]
    pub(crate) admit: bool,
    /// Congestion control: credit (default), or suci, where the receiver permits what is sent again; suci:K: up to K frames need no permission [default: 16]
    #[arg(long, value_name = "CONTROL")]
    pub(crate) congestion: Option<Congestion>,
    #[command(flatten)]
    pub(crate) security: security::Flags,
    /// This process is already where node 0 runs
    #[arg(long, hide = true, requires = "hosts")]
    inside: bool,
    /// Show counters as Prometheus text at ADDRESS:PORT (node i: PORT + i; `GET /metrics`); local: to `tsumuji top` only (default); off
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<MetricsAt>,
}

impl TeamArgs {
    /// Refuses what does not go together; `workers`: their number, if stated.
    pub(crate) fn check(&self, workers: Option<usize>) -> anyhow::Result<()> {
        if self.hosts.is_none() {
            return hosts::check_one_host(self.link.as_ref());
        }
        ensure!(
            workers.is_none(),
            "--workers and --hosts exclude each other: the cluster file says who takes part"
        );
        Ok(())
    }

    /// Reads the hosts file, if there is one; this process may become another one, where node 0 is to run.
    pub(crate) fn cluster(&self) -> anyhow::Result<Option<Cluster<'_>>> {
        let Some(path) = &self.hosts else {
            return Ok(None);
        };
        let file = hosts::read(path, self.link.as_ref(), self.slots)?;
        if self.id.is_none() && !self.inside {
            hosts::enter_node_0(&file, path)?;
        }
        Ok(Some(Cluster { file, path }))
    }

    /// The security of the run.
    pub(crate) fn stated(&self, cluster: Option<&Cluster<'_>>) -> anyhow::Result<Security> {
        let file = cluster.map(|cluster| &cluster.file);
        self.security.stated(self.link.as_ref(), file)
    }

    /// Name of the link.
    pub(crate) fn link_name(&self, cluster: Option<&Cluster<'_>>) -> String {
        match cluster {
            Some(cluster) => cluster.file.link_name(),
            None => self.link.unwrap_or(LinkSpec::Shm).to_string(),
        }
    }

    /// Opens the endpoint of a worker that the user starts; `None`: this process is the judge.
    pub(crate) fn worker(&self, seed: u64) -> anyhow::Result<Option<Endpoint>> {
        let Some(id) = self.id.filter(|id| *id > 0) else {
            return Ok(None);
        };
        let Some(cluster) = self.cluster()? else {
            return Ok(None); // --id requires --hosts
        };
        cluster.file.membership(NodeId(id), cluster.path)?;
        let security = self.stated(Some(&cluster))?;
        let team = Team {
            args: self,
            command: "",
            seed,
            workers: 0,
            cluster: Some(&cluster),
            security: &security,
        };
        team.open(&cluster, id, &mut || false).map(Some)
    }
}

/// Several hosts, from their file.
pub(crate) struct Cluster<'a> {
    pub(crate) file: ClusterFile,
    /// Path of the file, for messages.
    pub(crate) path: &'a Path,
}

impl Cluster<'_> {
    /// Number of workers in the file, without the judge.
    pub(crate) fn workers(&self) -> anyhow::Result<usize> {
        let nodes = self.file.hosts().len();
        ensure!(
            nodes >= 2,
            "{}: {nodes} node; a judge (id 0) and at least one worker are needed",
            self.path.display()
        );
        Ok(nodes - 1)
    }
}

/// Number of workers that share these rows, of that name: those of the hosts file, or as many as are asked for, or one for each core. `is_alone`: one
/// process does it all.
pub(crate) fn workers(
    asked: Option<usize>,
    is_alone: bool,
    cluster: Option<&Cluster<'_>>,
    (rows, name): (usize, &str),
) -> anyhow::Result<usize> {
    let workers = match (cluster, asked) {
        (Some(cluster), _) => cluster.workers()?,
        (_, None | Some(1)) if is_alone => 1,
        (_, Some(workers)) if is_alone => bail!("--mode single has one worker, not {workers}"),
        (_, Some(0)) => bail!("0 workers do nothing; use at least 1"),
        (_, Some(workers)) => workers,
        (_, None) => std::thread::available_parallelism()
            .map_or(1, std::num::NonZero::get)
            .min(rows),
    };
    let place = cluster.map_or_else(String::new, |it| format!("{}: ", it.path.display()));
    ensure!(
        workers <= rows,
        "{place}{workers} workers for {rows} rows in {name}: use at most {rows} workers, each must own a row"
    );
    Ok(workers)
}

/// Judge and workers, as the command line says.
pub(crate) struct Team<'a> {
    pub(crate) args: &'a TeamArgs,
    /// The hidden command of workers.
    pub(crate) command: &'static str,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) cluster: Option<&'a Cluster<'a>>,
    pub(crate) security: &'a Security,
}

impl Team<'_> {
    /// Options of this process's endpoint.
    fn options(&self) -> anyhow::Result<Options> {
        Ok(Options {
            seed: self.seed,
            security: self.security.clone(),
            metrics: metrics::wanted(self.args.metrics)?,
            congestion: self.args.congestion.unwrap_or_default(),
            admits: self.args.admit,
            ..Options::default()
        })
    }

    /// Losses on purpose at one node.
    fn impairment(&self, id: u16) -> Option<ImpairConfig> {
        let loss = self.args.loss.filter(|loss| *loss > 0.0)?;
        Some(ImpairConfig {
            loss,
            seed: self.seed.wrapping_add(u64::from(id)),
            ..ImpairConfig::default()
        })
    }

    /// Runs `judge`: as the node of the hosts file that this process is, or with workers that are started here, and then also tells which failed, if one did.
    /// `stop` ends the wait for those of the file; `is_whole`: the workers know that the run has ended, and may have something to write, such as a capture.
    /// The error is [`Interrupted`] if the user stopped the start of workers, and the `WorkerFailure` itself if one did not start.
    pub(crate) fn run<T>(
        &self,
        interrupt: &Interrupt,
        stop: &mut dyn FnMut() -> bool,
        judge: impl FnOnce(&mut Endpoint, Option<&mut Launcher>) -> T,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> anyhow::Result<(T, Option<WorkerFailure>)> {
        if let (Some(cluster), Some(id)) = (self.cluster, self.args.id) {
            let mut endpoint = self.open(cluster, id, stop)?;
            let result = judge(&mut endpoint, None);
            let _ = endpoint.close(FLUSH_WAIT);
            return Ok((result, None));
        }
        let (mut launcher, mut endpoint) = self.begin(interrupt)?;
        let result = judge(&mut endpoint, Some(&mut launcher));
        let _ = endpoint.close(FLUSH_WAIT);
        let failure = launcher.check();
        if is_whole(&result) {
            let exits = launcher.wait_all(PARTING);
            // One that is killed now has nothing to tell any more.
            let failed = |exit: &WorkerExit| exit.status.code().is_some_and(|code| code != 0);
            if exits.iter().any(failed) {
                output::note_partial();
            }
        }
        launcher.shutdown(GRACE);
        Ok((result, failure))
    }

    /// Opens node `id` of the hosts file, and waits for all others, or until `stop` says so.
    fn open(
        &self,
        cluster: &Cluster<'_>,
        id: u16,
        stop: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<Endpoint> {
        let options = Options {
            admits: self.args.admit && id == 0,
            ..self.options()?
        };
        let impair = self.impairment(id);
        let mut endpoint =
            open_in_cluster(&cluster.file, cluster.path, NodeId(id), options, impair)?;
        meet(&mut endpoint, self.args.patience.join_timeout, stop)?;
        Ok(endpoint)
    }

    /// Refuses bad values of variables that only workers read, before one is started: otherwise only its loss would be reported.
    fn check_env(&self) -> anyhow::Result<()> {
        check_env(self.args.loss.is_some())?;
        if let (Some(path), None) = (std::env::var_os(ENV_CAPTURE), self.cluster) {
            let of_first = Path::new(&path).with_extension("1.pcapng");
            PendingFile::create(&of_first)
                .with_context(|| format!("environment variable {ENV_CAPTURE}"))?;
        }
        Ok(())
    }

    /// Starts the workers, as the judge, and meets them.
    fn begin(&self, interrupt: &Interrupt) -> anyhow::Result<(Launcher, Endpoint)> {
        self.check_env()?;
        let started = Launcher::start(self.launch_spec()?);
        let mut launcher = started.map_err(|error| match error {
            LaunchError::Worker(failure) => Error::from(failure),
            error => Error::from(error),
        })?;
        let (options, impair) = (self.options()?, self.impairment(0));
        let opened = launcher.endpoint(options, impair, None, &|| interrupt.is_set());
        let mut endpoint = opened.map_err(|error| match error {
            _ if interrupt.is_set() => Error::from(Interrupted),
            OpenError::Worker(failure) => Error::from(failure),
            error => Error::from(error),
        })?;
        let within = self.args.patience.join_timeout.unwrap_or(hosts::MET_WITHIN);
        // A worker that fails before the run begins ends the wait.
        meet(&mut endpoint, Some(within), &mut || {
            interrupt.is_set() || launcher.check().is_some()
        })?;
        self.tell_how_to_join(&launcher);
        Ok((launcher, endpoint))
    }

    /// Tells the user how further workers join, if they may.
    fn tell_how_to_join(&self, launcher: &Launcher) {
        if self.args.admit
            && let Some(address) = launcher.join_address()
        {
            let flags = security::as_flags(self.security);
            tell!(
                "tsumuji: workers join by: tsumuji join --to {address}{flags} -- tsumuji {}",
                self.command
            );
        }
    }

    /// Specification of the workers' launch.
    fn launch_spec(&self) -> anyhow::Result<LaunchSpec> {
        let program = hosts::program(self.args.program.as_ref())?;
        let command = [program.clone().into(), OsString::from(self.command)];
        let mut spec = LaunchSpec::new(self.workers, command);
        if let Some(cluster) = self.cluster {
            spec.hosts = Some(hosts::of(&cluster.file, program));
            let within = self.args.patience.join_timeout;
            spec.join_timeout = within.unwrap_or(hosts::ANSWER_WITHIN);
        }
        spec.with_self = true;
        spec.self_name = "judge".to_owned();
        spec.link = self.args.link.unwrap_or(LinkSpec::Shm);
        (spec.congestion, spec.admits) = (self.args.congestion, self.args.admit);
        // The output of workers must not be mixed with the result.
        (spec.stdout, spec.stdout_to_stderr) = (Printing::Tagged, true);
        spec.env.extend(self.security.env());
        spec.env
            .push(metrics::env(metrics::wanted(self.args.metrics)?));
        spec.env
            .extend(hosts::chances(self.args.loss, Some(self.seed)));
        Ok(spec)
    }
}

/// The processes of workers that were started here.
pub(crate) struct Processes<'a> {
    launcher: Option<&'a mut Launcher>,
    told: usize,
}

impl<'a> Processes<'a> {
    pub(crate) fn of(launcher: Option<&'a mut Launcher>) -> Self {
        Self { launcher, told: 0 }
    }

    /// Which workers, counted from 0, have failed since the last call, and how.
    pub(crate) fn ended(&mut self) -> Vec<(usize, String)> {
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
}

/// Runs a worker that was launched, or that has joined. All its input comes by messages; errors are told to the launcher only: the judge prints them.
/// One that has joined has no launcher, and prints them itself.
pub(crate) fn work<E: std::error::Error>(
    serve: impl FnOnce(&mut Endpoint) -> Result<(), E>,
) -> Outcome {
    let endpoint = match endpoint_from_env(Options::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            report_error(&error);
            return Err(error.into());
        }
    };
    match served(endpoint, serve) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            report_error(&error);
            if !has_launcher() {
                tell!("tsumuji: {error}");
            }
            Ok(ExitCode::from(NOT_REACHED))
        }
    }
}

/// Runs a worker that was started by hand. `code`: that of an error.
pub(crate) fn work_by_hand<E: std::error::Error>(
    endpoint: Endpoint,
    serve: impl FnOnce(&mut Endpoint) -> Result<(), E>,
    code: impl FnOnce(&E) -> u8,
) -> Outcome {
    match served(endpoint, serve) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            tell!("tsumuji: {error}");
            Ok(ExitCode::from(code(&error)))
        }
    }
}

fn served<E>(
    mut endpoint: Endpoint,
    serve: impl FnOnce(&mut Endpoint) -> Result<(), E>,
) -> Result<(), E> {
    let result = serve(&mut endpoint);
    let _ = endpoint.close(FLUSH_WAIT);
    result
}
