//! A worker's decisions: orders and peers' messages in, messages out, steps of work between. No clock, no link.
//!
//! Driven by `serve`. Phases: rows arrive → the judge orders to begin → steps until the method ends → answers until it may leave.
//!
//! Invariant (`newton`): a worker takes a step only from the sum of all statistics of one version, which has the same bits everywhere. So all workers of an
//! epoch have the same parameters at the same version.

mod newton;
mod reduce;
mod sgd;

use std::collections::VecDeque;

use tsumuji_node::Executor;

use crate::config::{Method, Mode};
use crate::data::Features;
use crate::newton::Newton;
use crate::objective::Share;
use crate::sgd::Sgd;

use super::exchange::Exchange;
use super::message::{Answer, Begin, Mass, Order, PeerMessage, Setup, encode};
use newton::Averages;

pub(super) use sgd::period;

/// Why a worker ends without the judge's order to leave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerFault {
    /// A message of the judge does not parse or fit.
    #[error("the judge sent {what}; run the same version on every host")]
    Protocol {
        /// What was wrong.
        what: &'static str,
    },
    /// The judge ended the run.
    #[error("the run was given up: {why}")]
    Aborted {
        /// The judge's reason.
        why: String,
    },
}

/// Receiver of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Judge,
    Worker(usize),
}

/// A message that waits to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Out {
    pub(super) to: To,
    pub(super) bytes: Vec<u8>,
    /// It makes good for a loss, and need not be sent where nothing is lost.
    pub(super) is_repeat: bool,
    /// A newer datagram with this key replaces it.
    pub(super) key: u32,
}

/// What the driver does after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Poll, then step again.
    Again,
    /// Wait for messages.
    Wait,
    /// Wait for peers' statistics; when some are missing for a while, call `ask`.
    WaitForPeers,
    /// Call `reduce`.
    Reduce,
    /// Send waiting messages, then leave.
    Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Loading,
    /// All rows are here.
    Ready,
    Running,
    /// The method has ended; others may still need answers.
    Ended,
    /// The counters are to be told.
    Finishing,
    Finished,
    Left,
}

/// The method's state.
#[derive(Debug)]
enum State {
    None,
    Newton {
        newton: Newton,
        epoch: u32,
        /// Of the own newest statistic.
        version: u64,
        /// Of the newest that was sent to all.
        published: u64,
    },
    Sgd(Box<Sgd>),
}

#[derive(Debug)]
pub(super) struct Worker {
    me: usize,
    is_corrupt: bool,
    phase: Phase,
    setup: Option<Box<Setup>>,
    share: Option<Share>,
    state: State,
    averages: Option<Averages>,
    exchange: Exchange,
    /// Peers that may be chosen.
    peers: Vec<usize>,
    ports: Option<Vec<u16>>,
    accused: Vec<bool>,
    random: fastrand::Rng,
    /// Steps of SGD between two polls.
    steps_per_poll: usize,
    /// Statistics of an epoch that has not begun here.
    early: Vec<(usize, Vec<u8>)>,
    out: VecDeque<Out>,
}

impl Worker {
    /// `me` counts workers from 0. A corrupt worker sends its peers and the judge numbers that cannot be, for tests.
    pub(super) fn new(me: usize, is_corrupt: bool) -> Self {
        Self {
            me,
            is_corrupt,
            phase: Phase::Loading,
            setup: None,
            share: None,
            state: State::None,
            averages: None,
            exchange: Exchange::default(),
            peers: Vec::new(),
            ports: None,
            accused: Vec::new(),
            random: fastrand::Rng::with_seed(me as u64),
            steps_per_poll: 1,
            early: Vec::new(),
            out: VecDeque::new(),
        }
    }

    /// Messages to send.
    pub(super) fn out(&mut self) -> &mut VecDeque<Out> {
        &mut self.out
    }

    /// How peers are reached.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.setup.as_ref().map(|setup| setup.mode)
    }

    /// Whether everything was told: silence of others is no failure any more.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Left)
    }

    /// Whether steps are being done.
    pub(super) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether steps follow one another without waiting for anybody, so that another thread may do them.
    pub(super) fn steps_by_itself(&self) -> bool {
        self.is_running()
            && matches!(self.state, State::Sgd(_))
            && self.mode() != Some(Mode::AllReduce)
    }

    /// Which thread is to step.
    pub(super) fn executor(&self) -> Executor {
        self.setup
            .as_ref()
            .map_or_else(Executor::default, |setup| setup.config.sgd.executor)
    }

    /// Gives the worker away, and leaves one without a run in its place.
    pub(super) fn replaced(&mut self) -> Self {
        let stays = Self::new(self.me, self.is_corrupt);
        std::mem::replace(self, stays)
    }

    /// Whether [`finish`](Self::finish) is to be called.
    pub(super) fn is_finishing(&self) -> bool {
        self.phase == Phase::Finishing
    }

    /// Tells the judge all counters. `bytes_sent`: what this node has given to its link since it began. `rows_beside`: what another thread did of the
    /// steps.
    pub(super) fn finish(&mut self, bytes_sent: u64, rows_beside: u64) {
        let answer = Answer::Final {
            exchanges: self.exchange.exchanges,
            rejected: self.exchange.rejected,
            bytes_sent,
            rows_beside,
        };
        self.tell(&answer);
        self.phase = Phase::Finished;
    }

    /// Statistics or parameters that were taken from others.
    pub(super) fn exchanges(&self) -> u64 {
        self.exchange.exchanges
    }

    /// Rows that were computed with so far.
    pub(super) fn rows_done(&self) -> u64 {
        let rows = self.share.as_ref().map_or(0, Share::rows) as u64;
        match (&self.state, &self.setup) {
            (State::Newton { version, .. }, _) => version * rows,
            (State::Sgd(sgd), Some(setup)) => sgd.steps() * setup.config.sgd.batch as u64,
            _ => 0,
        }
    }

    /// This worker's number.
    pub(super) fn me(&self) -> usize {
        self.me
    }

    /// Tells the judge where this worker listens.
    pub(super) fn listens(&mut self, port: u16) {
        self.tell(&Answer::Listens { port });
    }

    /// Where the others listen, once they are to be connected to.
    pub(super) fn take_ports(&mut self) -> Option<Vec<u16>> {
        self.ports.take()
    }

    pub(super) fn setup(&self) -> Option<&Setup> {
        self.setup.as_deref()
    }

    /// Tells the judge that this worker failed.
    pub(super) fn failed(&mut self, why: String) {
        self.tell(&Answer::Failed { why });
        self.phase = Phase::Left;
    }

    pub(super) fn tell(&mut self, answer: &Answer) {
        self.out.push_back(Out {
            to: To::Judge,
            bytes: encode(answer),
            is_repeat: false,
            key: 0,
        });
    }

    fn send(&mut self, to: usize, mut message: PeerMessage, is_repeat: bool) {
        if self.is_corrupt {
            corrupt(&mut message);
        }
        let key = match &message {
            PeerMessage::Statistic { version, .. } => (version % 2) as u32,
            PeerMessage::Push { .. } => 2,
            PeerMessage::Pull { .. } => 3,
            PeerMessage::Ask { .. } => 4,
            PeerMessage::Mass(mass) => {
                5 + 2 * u32::from(mass.is_answer) + (mass.version % 2) as u32
            }
            PeerMessage::Sum { version, .. } => 9 + (version % 2) as u32,
        };
        self.out.push_back(Out {
            to: To::Worker(to),
            bytes: encode(&message),
            is_repeat,
            key,
        });
    }

    /// Takes an order of the judge.
    pub(super) fn order(&mut self, bytes: &[u8]) -> Result<(), WorkerFault> {
        let bad = |what| Err(WorkerFault::Protocol { what });
        let Some(order) = Order::parse(bytes) else {
            return bad("a message that does not parse");
        };
        match (order, self.phase) {
            (Order::Abort { why }, _) => return Err(WorkerFault::Aborted { why }),
            (Order::Setup(setup), Phase::Loading) if self.setup.is_none() => {
                return self.set_up(setup);
            }
            (Order::Rows(features, targets), Phase::Loading) => {
                return self.rows(&features, &targets);
            }
            (Order::Begin(begin), Phase::Ready | Phase::Running | Phase::Ended) => {
                let is_fit = match (&self.setup, &self.share) {
                    (Some(setup), Some(share)) => {
                        let own = begin.rows.get(self.me).copied().unwrap_or(0);
                        begin.alive.len() == begin.rows.len()
                            && begin.rows.len() >= setup.plausible.rows.len()
                            && begin.theta.len() == setup.plausible.shape.parameters()
                            && own > 0
                            && own <= share.rows() as u64
                    }
                    _ => false,
                };
                if !is_fit {
                    return bad("a begin that does not fit");
                }
                self.begin(begin);
            }
            (Order::Verify { id, theta }, Phase::Running | Phase::Ended) => {
                let Some(share) = &self.share else {
                    return bad("an order before the rows");
                };
                if theta.len() != share.shape().parameters() {
                    return bad("parameters of another length");
                }
                let sums = share.statistic(&theta, false);
                self.tell(&Answer::Gradient { id, sums });
            }
            (Order::Parameters { id }, Phase::Running | Phase::Ended) => {
                let mut theta = self.theta().to_vec();
                if self.is_corrupt {
                    theta.fill(1e12);
                }
                self.tell(&Answer::Parameters { id, theta });
            }
            (Order::Finish, Phase::Running | Phase::Ended) => self.phase = Phase::Finishing,
            // The run may end while a worker that has joined still gets its rows.
            (Order::Leave, Phase::Finished | Phase::Loading | Phase::Ready) => {
                self.phase = Phase::Left;
            }
            _ => return bad("an order that does not fit"),
        }
        Ok(())
    }

    fn set_up(&mut self, setup: Box<Setup>) -> Result<(), WorkerFault> {
        let rows = &setup.plausible.rows;
        if rows.get(self.me).is_none_or(|rows| *rows == 0) {
            return Err(WorkerFault::Protocol {
                what: "a setup without rows for this worker",
            });
        }
        self.random = fastrand::Rng::with_seed(setup.config.seed.wrapping_add(self.me as u64));
        self.peers = (0..rows.len())
            .filter(|worker| *worker != self.me)
            .collect();
        self.accused = vec![false; rows.len()];
        let average = setup.config.average;
        self.averages = Some(Averages::new(average, self.me, setup.plausible.clone()));
        self.share = Some(Share {
            kind: setup.config.kind,
            outputs: setup.plausible.shape.outputs,
            features: setup.empty.clone(),
            targets: Vec::new(),
        });
        self.setup = Some(setup);
        Ok(())
    }

    fn rows(&mut self, features: &Features, targets: &[f64]) -> Result<(), WorkerFault> {
        let bad = |what| Err(WorkerFault::Protocol { what });
        let (Some(setup), Some(share)) = (&self.setup, &mut self.share) else {
            return bad("rows before the setup");
        };
        let wanted = setup.plausible.rows[self.me] as usize;
        if share.rows() + targets.len() > wanted
            || features.columns() != share.features.columns()
            || features.is_dense() != share.features.is_dense()
        {
            return bad("rows that do not fit");
        }
        (0..features.rows()).for_each(|row| share.features.push_row(features, row));
        share.targets.extend_from_slice(targets);
        if share.rows() == wanted {
            self.phase = Phase::Ready;
            self.tell(&Answer::Ready);
        }
        Ok(())
    }

    /// Begins, or begins again. The workers' rows may have changed: the last ones of a share go to a worker that has joined.
    fn begin(&mut self, begin: Begin) {
        let (Some(setup), Some(share), Some(averages)) =
            (&mut self.setup, &mut self.share, &mut self.averages)
        else {
            return;
        };
        self.phase = Phase::Running;
        self.ports = Some(begin.ports);
        self.peers = (0..begin.alive.len())
            .filter(|worker| *worker != self.me && begin.alive[*worker])
            .collect();
        self.accused.resize(begin.rows.len(), false);
        share.truncate(begin.rows[self.me] as usize);
        averages.reset(&begin.alive, &begin.rows);
        setup.plausible.rows = begin.rows;
        let (config, shape) = (setup.config, setup.plausible.shape);
        match config.method {
            Method::Newton => {
                self.state = State::Newton {
                    newton: Newton::new(shape, config.l2, config.tol, begin.theta),
                    epoch: begin.epoch,
                    version: 0,
                    published: 0,
                };
                for (from, bytes) in std::mem::take(&mut self.early) {
                    self.peer(from, &bytes);
                }
            }
            Method::Sgd => {
                let by_work = sgd::steps_per_poll(share, config.sgd.batch);
                self.steps_per_poll = by_work.min(config.sgd.period as usize);
                let alive = setup.plausible.rows.iter().zip(&begin.alive);
                let alive = alive.filter(|(_, alive)| **alive);
                let rows = alive.map(|(rows, _)| *rows).max().unwrap_or(1) as usize;
                let seed = config.seed.wrapping_add(self.me as u64);
                let mut sgd = Sgd::new(config.sgd, setup.rate, config.l2, shape, rows, seed);
                sgd.resume(&begin.theta, begin.epochs);
                let patience = sgd::patience(config.sgd.period, by_work as u64);
                let patience = patience.min(sgd.steps_per_epoch());
                self.exchange.begin(patience / config.sgd.period);
                self.state = State::Sgd(Box::new(sgd));
            }
        }
    }

    /// The parameters to report.
    fn theta(&mut self) -> &[f64] {
        match &mut self.state {
            State::None => &[],
            State::Newton { newton, .. } => newton.theta(),
            State::Sgd(sgd) => sgd.result(),
        }
    }

    /// Takes a message of another worker. What does not parse is refused and counted, as are implausible numbers.
    pub(super) fn peer(&mut self, from: usize, bytes: &[u8]) {
        match self.phase {
            _ if from == self.me => return,
            Phase::Running | Phase::Ended => {}
            Phase::Ready => return self.keep_early(from, bytes),
            _ => return, // late
        }
        match PeerMessage::parse(bytes) {
            None => self.refuse(from),
            Some(
                PeerMessage::Statistic { epoch, .. }
                | PeerMessage::Mass(Mass { epoch, .. })
                | PeerMessage::Sum { epoch, .. },
            ) if self.is_ahead(epoch) => self.keep_early(from, bytes),
            Some(PeerMessage::Statistic {
                epoch,
                version,
                values,
            }) => self.statistic(from, epoch, version, values),
            Some(PeerMessage::Mass(mass)) => self.mass(from, &mass),
            Some(PeerMessage::Sum {
                epoch,
                version,
                values,
            }) => self.sum(from, epoch, version, values),
            Some(PeerMessage::Ask { epoch, version }) => self.asked(from, epoch, version),
            Some(PeerMessage::Push { number, theta }) => self.pushed(from, number, &theta),
            Some(PeerMessage::Pull { number, theta }) => self.pulled(from, number, &theta),
        }
    }

    fn refuse(&mut self, from: usize) {
        self.exchange.rejected += 1;
        self.accuse(from);
    }

    /// Tells the judge, once, that a worker sends numbers that cannot be.
    fn accuse(&mut self, worker: usize) {
        if let Some(accused) = self.accused.get_mut(worker)
            && !std::mem::replace(accused, true)
        {
            self.tell(&Answer::Suspect { worker });
        }
    }

    /// A worker is gone: it is not chosen any more. What follows is the judge's decision.
    pub(super) fn peer_lost(&mut self, worker: usize) {
        self.peers.retain(|peer| *peer != worker);
    }

    /// Does one step of work.
    pub(super) fn step(&mut self) -> Step {
        match self.phase {
            Phase::Left => Step::Leave,
            Phase::Running if self.mode() == Some(Mode::AllReduce) => Step::Reduce,
            Phase::Running => match &self.state {
                State::None => Step::Wait,
                State::Newton { .. } => self.step_newton(),
                State::Sgd(_) => self.step_sgd(),
            },
            _ => Step::Wait,
        }
    }
}

fn corrupt(message: &mut PeerMessage) {
    match message {
        PeerMessage::Statistic { values, .. }
        | PeerMessage::Mass(Mass { given: values, .. })
        | PeerMessage::Sum { values, .. } => values.iter_mut().for_each(|value| *value *= -1e6),
        PeerMessage::Ask { .. } => {}
        PeerMessage::Push { theta, .. } | PeerMessage::Pull { theta, .. } => theta.fill(f64::NAN),
    }
}
