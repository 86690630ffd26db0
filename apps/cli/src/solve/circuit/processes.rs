//! Netlists whose parts processes compute: workers of this host, started as `tsumuji circuit-worker`, or nodes of a hosts file.
//!
//! The process itself is the judge (node 0): it reads and divides the circuit, solves the interface, and verifies the residual.

use anyhow::bail;
use tsumuji_circuit::compute::{Computation, ComputeError, Outcome};
use tsumuji_circuit::remote::{self, Remote, Watch};
use tsumuji_circuit::substructure::SolveError;
use tsumuji_node::{Endpoint, Launcher, Security, WorkerFailure};

use super::super::{Args, ModeName};
use crate::NOT_REACHED;
use crate::interrupt::{Interrupt, Interrupted};
use crate::team::{self, Cluster, Team};

/// The hidden command of workers.
const WORKER: &str = "circuit-worker";

/// Where workers run.
pub(super) struct Place<'a> {
    args: &'a Args,
    cluster: Option<Cluster<'a>>,
    security: Security,
}

impl<'a> Place<'a> {
    /// As the options say; `None`: threads of this process are asked for. Goes to where node 0 runs.
    pub(super) fn of(args: &'a Args) -> anyhow::Result<Option<Self>> {
        match (args.message(), args.mode) {
            (None, ModeName::Auto | ModeName::Threads) => return Ok(None),
            (Some(flag), ModeName::Threads) => bail!(
                "{flag}: no effect with --mode threads, which sends no messages; leave it out, or use --mode processes"
            ),
            _ => {}
        }
        args.team.check(args.workers)?;
        let cluster = args.team.cluster()?;
        let security = args.team.stated(cluster.as_ref())?;
        Ok(Some(Self {
            args,
            cluster,
            security,
        }))
    }

    /// Workers in the hosts file, if there is one.
    pub(super) fn workers(&self) -> anyhow::Result<Option<usize>> {
        self.cluster.as_ref().map(Cluster::workers).transpose()
    }

    /// The link's name.
    pub(super) fn link_name(&self) -> String {
        self.args.team.link_name(self.cluster.as_ref())
    }

    /// Runs the computation; also tells of each worker that was lost, and who stood in for it. Without workers there is no computation that could fail: what
    /// kept them from starting is this command's error.
    pub(super) fn solve(
        &self,
        prepared: Computation<'_>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(Result<Outcome, ComputeError>, Vec<String>)> {
        let team = Team {
            args: &self.args.team,
            command: WORKER,
            seed: self.args.seed,
            workers: prepared.parts(),
            cluster: self.cluster.as_ref(),
            security: &self.security,
        };
        let ran = team.run(
            interrupt,
            &mut || interrupt.is_set(),
            |endpoint, launcher| judge(endpoint, prepared, launcher, interrupt),
            |(result, lost)| lost.is_empty() && matches!(result, Ok(outcome) if outcome.is_whole()),
        );
        match ran {
            Ok((found, _)) => Ok(found),
            Err(error) if error.is::<Interrupted>() => {
                Ok((Err(ComputeError::Interrupted), Vec::new()))
            }
            Err(error) => Ok((Err(lost(&error.downcast()?)), Vec::new())),
        }
    }
}

/// Runs the computation as node 0; also tells of each worker that was lost, and who stood in for it.
fn judge(
    endpoint: &mut Endpoint,
    prepared: Computation<'_>,
    launcher: Option<&mut Launcher>,
    interrupt: &Interrupt,
) -> (Result<Outcome, ComputeError>, Vec<String>) {
    let is_launched = launcher.is_some();
    let mut processes = team::Processes::of(launcher);
    let mut ended = || processes.ended();
    let stop = || interrupt.is_set();
    let mut notes = Vec::new();
    let mut lost = |what: &str| {
        tell!("note: {what}");
        notes.push(what.to_owned());
    };
    let watch = Watch {
        ended: is_launched.then_some(&mut ended),
        stop: &stop,
        lost: &mut lost,
    };
    let outcome = prepared.by(Remote::new(endpoint, watch)).run(stop);
    remote::dismiss(endpoint);
    (outcome, notes)
}

/// The error of a worker that its launcher saw fail.
fn lost(failure: &WorkerFailure) -> ComputeError {
    ComputeError::Solve(SolveError::Worker {
        what: failure.to_string(),
    })
}

/// Runs a launched worker.
pub(crate) fn work() -> crate::Outcome {
    team::work(remote::worker_main)
}

/// Runs a worker that was started by hand, as a node of the hosts file.
pub(crate) fn serve_host(endpoint: Endpoint) -> crate::Outcome {
    team::work_by_hand(endpoint, remote::worker_main, |_| NOT_REACHED)
}
