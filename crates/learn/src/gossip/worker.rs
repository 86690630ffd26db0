//! A worker's decisions: orders and peers' messages in, messages out, steps of work between. No clock, no link.
//!
//! Driven by `serve`. Phases: rows arrive → the judge orders to begin → steps until the method ends → answers until it may leave.
//!
//! Invariant (`newton`): a worker takes a step only from the sum of all statistics of one version, so all workers of an epoch have the same parameters
//! at the same version.

use std::collections::VecDeque;

use crate::config::{Method, Mode};
use crate::data::Features;
use crate::newton::{Advance, Newton};
use crate::objective::Share;
use crate::sgd::Sgd;

use super::exchange::{Exchange, is_plausible};
use super::message::{Answer, End, Order, PeerMessage, Setup, encode, finite};
use super::table::{Plausible, Table, Taken};

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
    /// It was sent before; as a message, which is not lost, it need not be.
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
    /// Wait for peers' statistics; when none come for a while, call `repeat`.
    WaitForPeers,
    /// Run the all-reduce to its end, then call `reduced`.
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
        version: u64,
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
    table: Option<Table>,
    exchange: Exchange,
    /// Peers that may be chosen.
    peers: Vec<usize>,
    ports: Option<Vec<u16>>,
    accused: Vec<bool>,
    random: fastrand::Rng,
    /// Statistics of an epoch that has not begun here.
    early: Vec<(usize, Vec<u8>)>,
    out: VecDeque<Out>,
}

/// Statistics of each peer that are kept until their epoch begins here: so far can a peer be ahead.
const EARLY_PER_PEER: usize = 2;

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
            table: None,
            exchange: Exchange::default(),
            peers: Vec::new(),
            ports: None,
            accused: Vec::new(),
            random: fastrand::Rng::with_seed(me as u64),
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

    /// What an all-reduce needs: what to learn, and the rows.
    pub(super) fn parts(&self) -> Option<(&Setup, &Share)> {
        Some((self.setup.as_deref()?, self.share.as_ref()?))
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
        };
        self.out.push_back(Out {
            to: To::Worker(to),
            bytes: encode(&message),
            is_repeat,
            key,
        });
    }

    /// Takes an order of the judge. `bytes_sent`: what this node has given to its link since it began.
    pub(super) fn order(&mut self, bytes: &[u8], bytes_sent: u64) -> Result<(), WorkerFault> {
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
            (
                Order::Begin {
                    epoch,
                    alive,
                    theta,
                    ports,
                },
                Phase::Ready | Phase::Running | Phase::Ended,
            ) => {
                let Some(setup) = &self.setup else {
                    return bad("an order before the setup");
                };
                if alive.len() != setup.rows.len() || theta.len() != setup.shape().parameters() {
                    return bad("a begin that does not fit");
                }
                self.ports = Some(ports);
                self.begin(epoch, &alive, theta);
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
            (Order::Finish, Phase::Running | Phase::Ended) => {
                let answer = Answer::Final {
                    exchanges: self.exchange.exchanges,
                    rejected: self.exchange.rejected,
                    bytes_sent,
                };
                self.tell(&answer);
                self.phase = Phase::Finished;
            }
            (Order::Leave, Phase::Finished) => self.phase = Phase::Left,
            _ => return bad("an order that does not fit"),
        }
        Ok(())
    }

    fn set_up(&mut self, setup: Box<Setup>) -> Result<(), WorkerFault> {
        if setup.rows.get(self.me).is_none_or(|rows| *rows == 0) {
            return Err(WorkerFault::Protocol {
                what: "a setup without rows for this worker",
            });
        }
        self.random = fastrand::Rng::with_seed(setup.config.seed.wrapping_add(self.me as u64));
        self.peers = (0..setup.rows.len())
            .filter(|worker| *worker != self.me)
            .collect();
        self.accused = vec![false; setup.rows.len()];
        self.table = Some(Table::new(Plausible {
            shape: setup.shape(),
            kind: setup.config.kind,
            rows: setup.rows.clone(),
            x_max: setup.x_max,
            y_max: setup.y_max,
        }));
        self.share = Some(Share {
            kind: setup.config.kind,
            outputs: setup.outputs,
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
        let wanted = setup.rows[self.me] as usize;
        let is_dense = |features: &Features| matches!(features, Features::Dense { .. });
        if share.rows() + targets.len() > wanted
            || features.columns() != share.features.columns()
            || is_dense(features) != is_dense(&share.features)
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

    fn begin(&mut self, epoch: u32, alive: &[bool], theta: Vec<f64>) {
        let Some(setup) = &self.setup else { return };
        let (config, shape) = (setup.config, setup.shape());
        self.phase = Phase::Running;
        self.peers = (0..alive.len())
            .filter(|worker| *worker != self.me && alive[*worker])
            .collect();
        match config.method {
            Method::Newton => {
                if let Some(table) = &mut self.table {
                    table.reset(alive);
                }
                self.state = State::Newton {
                    newton: Newton::new(shape, config.l2, config.tol, theta),
                    epoch,
                    version: 0,
                };
                for (from, bytes) in std::mem::take(&mut self.early) {
                    self.peer(from, &bytes);
                }
            }
            Method::Sgd => {
                let rows = setup.rows.iter().copied().max().unwrap_or(1) as usize;
                let seed = config.seed.wrapping_add(self.me as u64);
                let sgd = Sgd::new(
                    config.sgd,
                    setup.rate,
                    config.l2,
                    shape.parameters(),
                    rows,
                    seed,
                );
                self.state = State::Sgd(Box::new(sgd));
            }
        }
    }

    /// The parameters to report.
    fn theta(&self) -> &[f64] {
        match &self.state {
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
            Some(PeerMessage::Statistic {
                epoch,
                version,
                asks,
                values,
            }) => {
                if matches!(self.state, State::Newton { epoch: own, .. } if epoch > own) {
                    return self.keep_early(from, bytes);
                }
                self.statistic(from, epoch, version, asks, values);
            }
            Some(PeerMessage::Push { number, theta }) => {
                let State::Sgd(sgd) = &mut self.state else {
                    return;
                };
                if !finite(sgd.theta()) {
                    return; // this worker is the one that diverged
                }
                if self.phase == Phase::Ended {
                    // Its parameters are what it will tell; those that still step come nearer to them.
                    let own = sgd.result().to_vec();
                    if is_plausible(&own, &theta) {
                        self.send(from, PeerMessage::Pull { number, theta: own }, false);
                    } else {
                        self.refuse(from);
                    }
                    return;
                }
                match self.exchange.pushed(sgd.theta_mut(), &theta) {
                    Some(theta) => self.send(from, PeerMessage::Pull { number, theta }, false),
                    None => self.accuse(from),
                }
            }
            Some(PeerMessage::Pull { number, theta }) => {
                let State::Sgd(sgd) = &mut self.state else {
                    return;
                };
                if self.phase == Phase::Running && finite(sgd.theta()) {
                    let before = self.exchange.rejected;
                    self.exchange.pulled(from, number, sgd.theta_mut(), &theta);
                    if self.exchange.rejected > before {
                        self.accuse(from);
                    }
                }
            }
        }
    }

    /// Keeps the newest messages of a peer whose epoch has not begun here.
    fn keep_early(&mut self, from: usize, bytes: &[u8]) {
        let same = || self.early.iter().filter(|early| early.0 == from);
        if same().any(|early| early.1 == bytes) {
            return; // a repeat
        }
        if same().count() == EARLY_PER_PEER
            && let Some(oldest) = self.early.iter().position(|early| early.0 == from)
        {
            self.early.remove(oldest);
        }
        self.early.push((from, bytes.to_vec()));
    }

    fn statistic(&mut self, from: usize, epoch: u32, version: u64, asks: bool, values: Vec<f64>) {
        let (State::Newton { epoch: own, .. }, Some(table)) = (&self.state, &mut self.table) else {
            return;
        };
        let own = *own;
        if epoch != own {
            return;
        }
        match table.take(from, version, values) {
            Taken::New => self.exchange.exchanges += 1,
            Taken::Known => {}
            Taken::Refused => self.refuse(from),
        }
        if asks {
            self.publish(from, version, false, true);
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

    /// Sends the own statistic of a version, if it is here.
    fn publish(&mut self, to: usize, version: u64, asks: bool, is_repeat: bool) {
        let (State::Newton { epoch, .. }, Some(table)) = (&self.state, &self.table) else {
            return;
        };
        let Some(values) = table.of(self.me, version) else {
            return;
        };
        let message = PeerMessage::Statistic {
            epoch: *epoch,
            version,
            asks,
            values: values.to_vec(),
        };
        self.send(to, message, is_repeat);
    }

    /// Sends the last two statistics again to those whose newest is missing, and asks for theirs.
    pub(super) fn repeat(&mut self) {
        let (State::Newton { version, .. }, Some(table)) = (&self.state, &self.table) else {
            return;
        };
        let version = *version;
        for peer in table.missing(version).collect::<Vec<_>>() {
            self.publish(peer, version.saturating_sub(1), false, true);
            self.publish(peer, version, true, true);
        }
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

    fn step_newton(&mut self) -> Step {
        let (
            State::Newton {
                newton, version, ..
            },
            Some(table),
            Some(share),
        ) = (&mut self.state, &mut self.table, &self.share)
        else {
            return Step::Wait;
        };
        if *version != newton.steps() + 1 {
            // The own statistic comes first, so that the others have it soon.
            *version = newton.steps() + 1;
            let version = *version;
            let statistic = share.statistic(newton.theta(), true);
            if table.take(self.me, version, statistic) == Taken::Refused {
                self.failed("its statistics are no finite numbers".to_owned());
                return Step::Again;
            }
            for peer in self.peers.clone() {
                self.publish(peer, version, false, false);
            }
            return Step::Again;
        }
        let Some(sums) = table.sum(*version) else {
            return Step::WaitForPeers;
        };
        let end = match newton.advance(&sums) {
            Advance::Evaluate => None,
            Advance::Converged => Some(End::Converged),
            Advance::Stagnated => Some(End::Stagnated),
        };
        self.report_newton(end);
        Step::Again
    }

    fn report_newton(&mut self, end: Option<End>) {
        let State::Newton { newton, epoch, .. } = &self.state else {
            return;
        };
        let (loss, gradient_norm) = newton.progress();
        let answer = Answer::Step {
            epoch: *epoch,
            steps: newton.steps(),
            loss,
            gradient_norm,
            theta: newton.theta().to_vec(),
            end,
        };
        self.tell(&answer);
        if end.is_some() {
            self.phase = Phase::Ended;
        }
    }

    fn step_sgd(&mut self) -> Step {
        let (State::Sgd(sgd), Some(share), Some(setup)) =
            (&mut self.state, &self.share, &self.setup)
        else {
            return Step::Wait;
        };
        let before = sgd.epochs();
        sgd.step(share);
        let (done, is_last) = (sgd.epochs(), sgd.is_done());
        let is_time = sgd.steps().is_multiple_of(setup.config.sgd.period);
        if is_time
            && finite(sgd.theta())
            && !is_last
            && let Some(peer) = self.random.choice(&self.peers).copied()
        {
            let theta = sgd.theta().to_vec();
            let number = self.exchange.push(peer, &theta);
            self.send(peer, PeerMessage::Push { number, theta }, false);
        }
        if done > before {
            self.tell(&Answer::Epochs { done, is_last });
        }
        if is_last {
            self.phase = Phase::Ended;
        }
        Step::Again
    }

    /// What an all-reduce came to; `exchanges`: how many there were.
    pub(super) fn reduced(&mut self, result: Reduced, exchanges: u64) {
        self.exchange.exchanges += exchanges;
        match result {
            Reduced::Newton { newton, end } => {
                let epoch = match &self.state {
                    State::Newton { epoch, .. } => *epoch,
                    _ => 0,
                };
                self.state = State::Newton {
                    newton,
                    epoch,
                    version: 0,
                };
                self.report_newton(Some(end));
            }
            Reduced::Sgd(sgd) => {
                let done = sgd.epochs();
                self.state = State::Sgd(sgd);
                self.tell(&Answer::Epochs {
                    done,
                    is_last: true,
                });
                self.phase = Phase::Ended;
            }
        }
    }

    /// The method's state, to be advanced by an all-reduce.
    pub(super) fn take_state(&mut self) -> Option<Reducing> {
        match std::mem::replace(&mut self.state, State::None) {
            State::None => None,
            State::Newton {
                newton,
                epoch,
                version,
            } => {
                let copy = newton.clone();
                self.state = State::Newton {
                    newton,
                    epoch,
                    version,
                };
                Some(Reducing::Newton(copy))
            }
            State::Sgd(sgd) => Some(Reducing::Sgd(sgd)),
        }
    }
}

/// What an all-reduce begins with.
#[derive(Debug)]
pub(super) enum Reducing {
    Newton(Newton),
    Sgd(Box<Sgd>),
}

/// What an all-reduce ends with.
#[derive(Debug)]
pub(super) enum Reduced {
    Newton { newton: Newton, end: End },
    Sgd(Box<Sgd>),
}

fn corrupt(message: &mut PeerMessage) {
    match message {
        PeerMessage::Statistic { values, .. } => values.iter_mut().for_each(|value| *value *= -1e6),
        PeerMessage::Push { theta, .. } | PeerMessage::Pull { theta, .. } => theta.fill(f64::NAN),
    }
}
