//! Learning with messages: starts the workers of this host or of the hosts file, runs the judge, and watches over the processes.

use tsumuji_learn::gossip::{self, RunError, Watch};
use tsumuji_learn::report::Outcome;
use tsumuji_learn::{LearnConfig, Mode, Problem};
use tsumuji_node::{Endpoint, Launcher, Security};

use super::Args;
use crate::NOT_REACHED;
use crate::interrupt::{Interrupt, Interrupted};
use crate::team::{self, Cluster, Team};

/// The hidden command of workers.
const WORKER: &str = "learn-worker";

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
    workers: team::Processes<'a>,
    interrupt: &'a Interrupt,
}

impl Watch for Processes<'_> {
    fn ended(&mut self) -> Vec<(usize, String)> {
        self.workers.ended()
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
    let team = Team {
        args: &args.team,
        command: WORKER,
        seed: args.seed,
        workers: job.workers,
        cluster: job.cluster,
        security: &job.security,
    };
    let (result, _) = team.run(
        interrupt,
        &mut || interrupt.is_set(),
        |endpoint, launcher| judge(endpoint, job, mode, launcher, interrupt),
        |result| matches!(result, Ok(outcome) if outcome.dropped.is_empty()),
    )?;
    result
}

/// Learns as node 0.
fn judge(
    endpoint: &mut Endpoint,
    job: &Job<'_>,
    mode: Mode,
    launcher: Option<&mut Launcher>,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let mut processes = Processes {
        workers: team::Processes::of(launcher),
        interrupt,
    };
    match gossip::run(endpoint, job.problem, job.config, mode, &mut processes) {
        Err(RunError::Interrupted) => Err(Interrupted.into()),
        result => Ok(result?),
    }
}

/// Serves as a worker that was started by hand.
pub(super) fn serve_host(endpoint: Endpoint) -> crate::Outcome {
    team::work_by_hand(endpoint, gossip::worker_main, |_| NOT_REACHED)
}

/// Runs a launched worker.
pub(crate) fn work() -> crate::Outcome {
    team::work(gossip::worker_main)
}
