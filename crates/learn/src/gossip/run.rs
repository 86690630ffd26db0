//! The judge with an endpoint and a clock: hands out rows, carries orders and answers, watches the workers.

use std::ops::Range;
use std::time::Instant;

use tsumuji_node::{Context, Delivery, Endpoint, EndpointError, Handler, NodeId, SendError};

use crate::config::{LearnConfig, Mode};
use crate::problem::Problem;
use crate::report::{Dropped, Moment, Outcome};
use crate::sgd::rate_of;
use crate::tuning::TUNING;

use super::judge::{Fault, Judge, SILENT, Stage};
use super::message::{BULK, CONTROL, Order, Setup, encode};
use super::serve::node;
use super::table::Plausible;
use super::worker::period;

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// Each worker must have a row.
    #[error("{workers} workers for {rows} rows: use at most {rows} workers, each must own a row")]
    MoreWorkersThanRows {
        /// Workers.
        workers: usize,
        /// Rows.
        rows: usize,
    },
    /// Nobody is there to learn.
    #[error("there is no worker; a judge (node 0) and at least one worker are needed")]
    NoWorkers,
    /// This node is not the judge, which is node 0.
    #[error("the judge must be node 0, not {me}")]
    NotTheJudge {
        /// This node.
        me: NodeId,
    },
    /// All workers were lost.
    #[error("all workers were lost, the last one because: {cause}")]
    AllLost {
        /// Of the last one.
        cause: String,
    },
    /// A worker was lost in a mode that needs all of them.
    #[error("{worker} was lost, and an all-reduce needs all: {cause}")]
    WorkerLost {
        /// Its name.
        worker: String,
        /// The cause.
        cause: String,
    },
    /// A worker broke the protocol.
    #[error("{worker} sent a message that does not parse; run the same version on every host")]
    Protocol {
        /// Its name.
        worker: String,
    },
    /// The workers wait for each other's statistics, and none comes.
    #[error(
        "the workers wait for each other's numbers and get none; can each of their hosts reach every other?"
    )]
    Stuck,
    /// The user wanted it to end.
    #[error("interrupted")]
    Interrupted,
    /// This node's link failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// What the caller knows of the workers' processes and of the user.
pub trait Watch {
    /// Workers (counted from 0) whose processes have ended since the last call, and how.
    fn ended(&mut self) -> Vec<(usize, String)> {
        Vec::new()
    }

    /// Whether the user wants the run to end.
    fn stops(&mut self) -> bool {
        false
    }
}

/// Learns with all other members of the cluster as workers, which run [`worker_main`](super::worker_main).
pub fn run(
    endpoint: &mut Endpoint,
    problem: &Problem,
    config: &LearnConfig,
    mode: Mode,
    watch: &mut dyn Watch,
) -> Result<Outcome, RunError> {
    if endpoint.me() != NodeId(0) {
        return Err(RunError::NotTheJudge { me: endpoint.me() });
    }
    let (workers, rows) = (endpoint.members().len() - 1, problem.share.rows());
    if workers == 0 {
        return Err(RunError::NoWorkers);
    }
    if workers > rows {
        return Err(RunError::MoreWorkersThanRows { workers, rows });
    }
    // Seeded apart from all else, for whoever guesses the seed may not connect.
    let token = fastrand::u64(..);
    let setup = setup(problem, config, mode, workers, token);
    let mut driver = Driver {
        problem,
        setup: &setup,
        judge: judge(problem, &setup),
        began: Instant::now(),
        history: Vec::new(),
        checked: Instant::now(),
        up: Vec::new(),
    };
    let result = driver
        .hand_out(endpoint, watch)
        .and_then(|()| driver.drive(endpoint, watch));
    if let Err(error) = result {
        driver.abort(endpoint, &error);
        return Err(error);
    }
    let seconds = driver.began.elapsed().as_secs_f64();
    match endpoint.flush(TUNING.judge.flush_within) {
        // A worker that has left had its order to leave: only its last acknowledgement got lost.
        Ok(_) | Err(SendError::MessagesLost { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    driver.ask_causes(watch);
    Ok(driver.outcome(endpoint, seconds))
}

/// The judge of a run that begins so.
pub(super) fn judge(problem: &Problem, setup: &Setup) -> Judge {
    let shares = problem.ranges(setup.plausible.rows.len());
    Judge::new(setup.config, setup.mode, setup.plausible.clone(), shares)
}

/// Gives each worker its setup and its rows to `give`, a chunk for each in turn. `shares`: the workers and their rows.
pub(super) fn deal<E>(
    problem: &Problem,
    setup: &Setup,
    shares: Vec<(usize, Vec<Range<usize>>)>,
    give: &mut impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let order = encode(&Order::Setup(Box::new(setup.clone())));
    for (worker, _) in &shares {
        give(*worker, &order)?;
    }
    let stored = problem.share.features.stored() / problem.share.rows().max(1);
    let rows_per_chunk = (TUNING.judge.chunk_bytes / (16 * (stored + 1))).max(1);
    let chunks = |rows: Range<usize>| {
        let end = rows.end;
        rows.step_by(rows_per_chunk)
            .map(move |start| start..(start + rows_per_chunk).min(end))
    };
    let mut left: Vec<_> = shares
        .into_iter()
        .map(|(worker, share)| (worker, share.into_iter().flat_map(chunks)))
        .collect();
    while !left.is_empty() {
        let mut failed = None;
        left.retain_mut(|(worker, chunks)| {
            let Some(rows) = chunks.next().filter(|_| failed.is_none()) else {
                return failed.is_some();
            };
            let (features, targets) = problem.part(rows);
            failed = give(*worker, &encode(&Order::Rows(features, targets))).err();
            true
        });
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

/// What all workers are told first. `token`: what their connections of TCP begin with.
pub(super) fn setup(
    problem: &Problem,
    config: &LearnConfig,
    mode: Mode,
    workers: usize,
    token: u64,
) -> Setup {
    let share = &problem.share;
    let mut x_max = 1.0_f64;
    for row in 0..share.rows() {
        (share.features).for_each(row, |_, x| x_max = x_max.max(x.abs()));
    }
    let ranges = problem.ranges(workers);
    let rows: Vec<u64> = ranges.iter().map(|rows| rows.len() as u64).collect();
    let mut config = *config;
    config.average = config.average.resolved(workers);
    let most = rows.iter().max().copied().unwrap_or(0) as usize;
    config.sgd.batch = config.sgd.batch_of(most);
    if config.sgd.period == 0 {
        config.sgd.period = period(share, config.sgd.batch, most);
    }
    Setup {
        config,
        mode,
        plausible: Plausible {
            shape: share.shape(),
            kind: config.kind,
            rows,
            x_max,
            y_max: share.targets.iter().fold(1.0, |most, y| y.abs().max(most)),
        },
        empty: share.features.empty_like(),
        rate: config
            .sgd
            .rate
            .unwrap_or_else(|| rate_of(share, &config.sgd, most)),
        token,
    }
}

struct Driver<'a> {
    problem: &'a Problem,
    setup: &'a Setup,
    judge: Judge,
    began: Instant,
    history: Vec<Moment>,
    checked: Instant,
    /// Peers that are up and may be new.
    up: Vec<usize>,
}

impl Driver<'_> {
    /// Sends each worker its setup and its rows.
    fn hand_out(&mut self, endpoint: &mut Endpoint, watch: &mut dyn Watch) -> Result<(), RunError> {
        let workers = self.setup.plausible.rows.len();
        let shares = self.problem.ranges(workers).into_iter();
        let shares = shares.map(|rows| vec![rows]).enumerate().collect();
        deal(self.problem, self.setup, shares, &mut |worker, bytes| {
            self.give(endpoint, worker, bytes, watch)
        })
    }

    /// Takes note of processes that have joined, and sends the next of them its rows.
    fn welcome(&mut self, endpoint: &mut Endpoint, watch: &mut dyn Watch) -> Result<(), RunError> {
        if !self.up.is_empty() {
            endpoint.update_members();
            self.up.sort_unstable();
            let judge = &mut self.judge;
            // One whose number is beyond the next waits until the others are up.
            self.up.retain(|worker| {
                let is_next = *worker <= judge.workers();
                if is_next {
                    judge.joins(*worker);
                }
                !is_next
            });
        }
        let Some(joining) = self.judge.take_dealt() else {
            return Ok(());
        };
        let mut setup = self.setup.clone();
        setup.plausible.rows = joining.rows();
        let share = vec![(joining.worker, joining.share)];
        deal(self.problem, &setup, share, &mut |worker, bytes| {
            self.give(endpoint, worker, bytes, watch)
        })
    }

    /// Sends rows; waits while the worker's queue is full, unless it ends.
    fn give(
        &mut self,
        endpoint: &mut Endpoint,
        worker: usize,
        bytes: &[u8],
        watch: &mut dyn Watch,
    ) -> Result<(), RunError> {
        while self.judge.is_alive(worker) {
            match endpoint.try_send(node(worker), BULK, bytes) {
                Ok(()) => break,
                Err(SendError::WouldBlock { .. }) => {
                    endpoint.poll_wait(self, TUNING.judge.wait)?;
                }
                // They were for the process that it follows.
                Err(SendError::MessagesLost { .. }) if self.judge.is_new(worker) => {}
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                    self.judge.drop_worker(worker, SILENT.to_owned());
                }
                Err(error) => return Err(error.into()),
            }
            self.note();
            self.send(endpoint)?;
            self.check(endpoint, watch)?;
        }
        Ok(())
    }

    /// Looks, now and then, whether processes have ended and whether the user wants to stop.
    fn check(&mut self, endpoint: &Endpoint, watch: &mut dyn Watch) -> Result<(), RunError> {
        if self.checked.elapsed() >= TUNING.judge.check_every {
            self.checked = Instant::now();
            if watch.stops() {
                return Err(RunError::Interrupted);
            }
            self.hear(watch);
        }
        match self.judge.take_fault() {
            Some(fault) => Err(explain(endpoint, fault)),
            None => Ok(()),
        }
    }

    /// Takes note of processes that have ended.
    fn hear(&mut self, watch: &mut dyn Watch) {
        for (worker, cause) in watch.ended() {
            self.judge.explain(worker, cause.clone());
            self.judge.drop_worker(worker, cause);
        }
    }

    /// Asks for the causes of silence: a link may notice a death before the launcher does.
    fn ask_causes(&mut self, watch: &mut dyn Watch) {
        let began = Instant::now();
        while began.elapsed() < TUNING.judge.cause_within
            && self.judge.dropped().any(|(.., cause)| cause == SILENT)
        {
            self.hear(watch);
            std::thread::sleep(TUNING.judge.check_every);
        }
    }

    fn drive(&mut self, endpoint: &mut Endpoint, watch: &mut dyn Watch) -> Result<(), RunError> {
        let mut is_begun = false;
        loop {
            endpoint.poll_wait(self, TUNING.judge.wait)?;
            if !is_begun && self.judge.stage() != Stage::Distributing {
                (is_begun, self.began) = (true, Instant::now());
            }
            self.note();
            self.welcome(endpoint, watch)?;
            self.send(endpoint)?;
            self.check(endpoint, watch)?;
            if self.judge.stage() == Stage::Done && self.judge.out().is_empty() {
                return Ok(());
            }
        }
    }

    /// Keeps what the judge has heard of, with the time.
    fn note(&mut self) {
        let seconds = self.began.elapsed().as_secs_f64();
        let news = self.judge.take_news().into_iter();
        self.history
            .extend(news.map(|(iteration, loss, gradient_norm)| Moment {
                seconds,
                iteration,
                loss,
                gradient_norm,
            }));
    }

    fn send(&mut self, endpoint: &mut Endpoint) -> Result<(), RunError> {
        while let Some((worker, order)) = self.judge.out().front() {
            let worker = *worker;
            match endpoint.try_send(node(worker), CONTROL, &encode(order)) {
                Ok(()) => {}
                Err(SendError::WouldBlock { .. }) => break,
                Err(SendError::MessagesLost { .. }) if self.judge.is_new(worker) => continue,
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                    self.judge.out().pop_front();
                    self.judge.drop_worker(worker, SILENT.to_owned());
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            self.judge.out().pop_front();
        }
        Ok(())
    }

    /// Tells all workers that the run failed. A worker that cannot be told notices this node's silence.
    fn abort(&mut self, endpoint: &mut Endpoint, error: &RunError) {
        let order = encode(&Order::Abort {
            why: error.to_string(),
        });
        for worker in 0..endpoint.members().len() - 1 {
            let _ = endpoint.try_send(node(worker), CONTROL, &order);
        }
        let _ = endpoint.flush(TUNING.judge.flush_within);
    }

    fn outcome(self, endpoint: &Endpoint, seconds: f64) -> Outcome {
        let dropped = self.judge.dropped().map(|(worker, rows, cause)| Dropped {
            worker: endpoint.name_of(node(worker)).to_owned(),
            rows,
            cause: cause.to_owned(),
        });
        Outcome {
            seconds,
            dropped: dropped.collect(),
            history: self.history,
            ..self.judge.outcome()
        }
    }
}

fn explain(endpoint: &Endpoint, fault: Fault) -> RunError {
    let name = |worker: usize| endpoint.name_of(node(worker)).to_owned();
    match fault {
        Fault::NoWorkers { cause } => RunError::AllLost { cause },
        Fault::Lost { worker, cause } => RunError::WorkerLost {
            worker: name(worker),
            cause,
        },
        Fault::Protocol { worker } => RunError::Protocol {
            worker: name(worker),
        },
        Fault::Stuck => RunError::Stuck,
    }
}

impl Handler for Driver<'_> {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let worker = usize::from(delivery.from.0).wrapping_sub(1);
        self.judge.answer(worker, delivery.body.bytes());
    }

    fn peer_up(&mut self, peer: NodeId) {
        self.up.extend(usize::from(peer.0).checked_sub(1));
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        let worker = usize::from(peer.0).wrapping_sub(1);
        self.judge.drop_worker(worker, SILENT.to_owned());
    }
}
