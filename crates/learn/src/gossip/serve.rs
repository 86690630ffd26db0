//! A worker with an endpoint and a clock.
//!
//! One visible loop: poll, send waiting messages, one step of work. While it computes long, the endpoint's progress assistant answers the others. Steps
//! of SGD may be done by a thread beside this one (`beside`).

use std::time::{Duration, Instant};

use tsumuji_node::{
    Context, Datagram, Delivery, Destination, Endpoint, EndpointError, Handler, NOW_OR_NEVER,
    NodeId, SendError,
};

use crate::config::Mode;
use crate::tuning::TUNING;

use super::allreduce;
use super::beside::Beside;
use super::message::{CONTROL, PEERS, PEERS_ID};
use super::tcp::{Tcp, TcpError};
use super::worker::{Step, To, Worker, WorkerFault};

const JUDGE: NodeId = NodeId(0);
/// A link that is slow, for many workers of a host together.
const SLOW_BYTES_A_SECOND: f64 = 1e6;
/// Bytes by which the heads of messages between workers may differ.
const HEADS_DIFFER: usize = 64;

/// Why a worker ended without the judge's order to leave.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Node 0 is the judge.
    #[error("node 0 is the judge; workers are nodes 1 and up")]
    NotAWorker,
    /// The judge died or closed the connection.
    #[error("the judge was lost")]
    JudgeLost,
    /// A message of the judge is faulty.
    #[error(transparent)]
    Fault(#[from] WorkerFault),
    /// This node's link failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// A TCP socket failed.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The kernel gives no thread for the steps.
    #[error("no thread for the steps: {0}")]
    Thread(std::io::Error),
}

/// Serves one run as a worker: all its input comes by messages. Returns when the judge orders it to leave.
pub fn worker_main(endpoint: &mut Endpoint) -> Result<(), WorkerError> {
    serve(endpoint, false)
}

/// As [`worker_main`], but what it sends to its peers are numbers that cannot be: for tests of the others.
#[doc(hidden)]
pub fn corrupt_worker_main(endpoint: &mut Endpoint) -> Result<(), WorkerError> {
    serve(endpoint, true)
}

fn serve(endpoint: &mut Endpoint, is_corrupt: bool) -> Result<(), WorkerError> {
    let me = usize::from(endpoint.me().0)
        .checked_sub(1)
        .ok_or(WorkerError::NotAWorker)?;
    let mut driver = Driver {
        worker: Worker::new(me, is_corrupt),
        beside: Beside::new(),
        rows_beside: 0,
        computed: Duration::ZERO,
        fault: None,
        judge_lost: false,
        began_at: None,
        tcp: None,
        repeat: TUNING.worker.repeat,
        ask_at: None,
        taken: 0,
        waits_since: None,
    };
    let result = driver.run(endpoint);
    if let Err(error) = &result
        && !matches!(
            error,
            WorkerError::Fault(WorkerFault::Aborted { .. }) | WorkerError::JudgeLost
        )
    {
        driver.recall();
        driver.worker.failed(error.to_string());
        // The judge is told if possible; it also notices by itself that this node leaves.
        let _ = driver
            .send(endpoint)
            .and_then(|_| Ok(endpoint.flush(TUNING.worker.flush_within)?));
    }
    result
}

/// The worker and the findings of polling.
struct Driver {
    /// The worker; while it is handed over, one without a run in its place, which only keeps messages that wait to be sent.
    worker: Worker,
    beside: Beside,
    /// Rows that the other thread has done, before what is handed over.
    rows_beside: u64,
    /// Time spent on steps on this thread.
    computed: Duration,
    fault: Option<WorkerFault>,
    judge_lost: bool,
    /// Bytes that the link had sent when the first step began.
    began_at: Option<u64>,
    tcp: Option<Tcp>,
    /// Wait until statistics are asked for again, and when that ends.
    repeat: Duration,
    ask_at: Option<Instant>,
    /// Statistics that had been taken then.
    taken: u64,
    /// Since when others are waited for, or since the judge was told of it.
    waits_since: Option<Instant>,
}

impl Driver {
    fn run(&mut self, endpoint: &mut Endpoint) -> Result<(), WorkerError> {
        let team = &endpoint.members()[1..];
        let is_contended = endpoint.is_oversubscribed(team);
        let would_contend = endpoint.is_oversubscribed(&[team, team].concat());
        let cores = (team.len() <= 1, would_contend);
        let began = Instant::now();
        loop {
            let is_idle = self.poll(endpoint)? == 0;
            self.divide(cores, began)?;
            self.beside.steps.show(endpoint, PEERS_ID);
            let sent = self.send(endpoint)?;
            if self.beside.steps.is_handed_over() {
                self.beside.steps.back_off(is_idle);
                continue;
            }
            let wait = if sent {
                TUNING.worker.wait
            } else {
                TUNING.worker.contended
            };
            let before = Instant::now();
            let step = self.worker.step();
            self.computed += before.elapsed();
            match step {
                Step::Again => {
                    (self.repeat, self.ask_at, self.waits_since) =
                        (TUNING.worker.repeat, None, None);
                    if is_contended {
                        // A core is shared: the peers' next messages come from whoever waits for it.
                        std::thread::yield_now();
                    }
                }
                Step::Wait => drop(endpoint.poll_wait(self, self.patience(wait))?),
                Step::WaitForPeers => {
                    let since = *self.waits_since.get_or_insert_with(Instant::now);
                    let slowest = self.worker.bytes_of_step() as f64 / SLOW_BYTES_A_SECOND;
                    if since.elapsed() >= TUNING.worker.silence + Duration::from_secs_f64(slowest) {
                        self.worker.waits();
                        self.waits_since = None;
                    }
                    let wait = if sent {
                        self.until_ask()
                    } else {
                        TUNING.worker.contended
                    };
                    endpoint.poll_wait(self, self.patience(wait))?;
                    if sent && self.until_ask().is_zero() {
                        self.worker.ask();
                        self.repeat = (2 * self.repeat).min(TUNING.worker.repeat_max);
                        self.ask_at = Some(Instant::now() + self.repeat);
                    }
                }
                Step::Reduce => {
                    if let Err(error) = allreduce::iterate(endpoint, &mut self.worker) {
                        self.worker.failed(error.to_string());
                    }
                }
                Step::Leave => {
                    self.send(endpoint)?;
                    // The judge may have left before it acknowledged the last message.
                    return match endpoint.flush(TUNING.worker.flush_within) {
                        Ok(_) | Err(SendError::MessagesLost { .. }) => Ok(()),
                        Err(error) => Err(error.into()),
                    };
                }
            }
        }
    }

    /// Time until missing statistics are asked for. Those that come tell that others have made theirs, too, so that missing ones are likely to be lost.
    fn until_ask(&mut self) -> Duration {
        let now = Instant::now();
        let taken = self.worker.exchanges();
        if taken > self.taken {
            (self.taken, self.repeat) = (taken, TUNING.worker.repeat);
            self.ask_at = self.ask_at.map(|at| at.min(now + TUNING.worker.repeat));
        }
        let at = *self.ask_at.get_or_insert(now + self.repeat);
        at.saturating_duration_since(now)
    }

    /// Sockets are not in the endpoint's wait.
    fn patience(&self, wait: Duration) -> Duration {
        if self.tcp.is_some() {
            TUNING.worker.contended
        } else {
            wait
        }
    }

    /// Has the thread step that is to do it.
    fn divide(&mut self, cores: (bool, bool), began: Instant) -> Result<(), WorkerError> {
        let worker = &mut self.worker;
        let executor = worker.executor();
        let now_ns = began.elapsed().as_nanos() as u64;
        let done = (worker.rows_done() as f64, self.computed.as_nanos() as u64);
        let here = worker.steps_by_itself().then_some(done);
        let hand_over = || {
            let mut other = worker.replaced();
            std::mem::swap(worker.out(), other.out()); // what waits to be sent stays
            Some(other)
        };
        let returned = (self.beside.steps).divide(executor, cores, now_ns, here, hand_over);
        self.take_back(returned.map_err(WorkerError::Thread)?);
        Ok(())
    }

    /// Takes the worker back, if it was handed over.
    fn recall(&mut self) {
        let returned = self.beside.steps.recall();
        self.take_back(returned);
    }

    fn take_back(&mut self, returned: Option<(Worker, f64)>) {
        let Some((mut worker, rows)) = returned else {
            return;
        };
        self.rows_beside += rows as u64;
        // In the order in which they were made.
        let mut out = std::mem::take(self.worker.out());
        out.extend(self.beside.leaving());
        out.append(worker.out());
        *worker.out() = out;
        self.worker = worker;
    }

    /// Takes what a peer has sent, where the worker is. `is_kept`: it is not lost.
    fn take_of_peer(&mut self, from: usize, bytes: &[u8], is_kept: bool) {
        if self.beside.steps.is_handed_over() {
            if self.beside.give(from, bytes) || !is_kept {
                return;
            }
            self.recall();
        }
        self.worker.peer(from, bytes);
    }

    /// Returns how much happened; 0: nothing.
    fn poll(&mut self, endpoint: &mut Endpoint) -> Result<usize, WorkerError> {
        let mut events = 0;
        for _ in 0..TUNING.worker.polls_per_step_max {
            match endpoint.poll(self)? {
                0 => break,
                more => events += more,
            }
        }
        if let Some(mut tcp) = self.tcp.take() {
            let connected = match self.worker.take_ports() {
                Some(ports) => tcp.connect(&ports),
                None => Ok(()),
            };
            let polled = connected.and_then(|()| {
                tcp.poll(&mut |from, bytes| {
                    events += 1;
                    self.take_of_peer(from, bytes, true);
                })
            });
            self.tcp = Some(tcp);
            polled?;
        }
        if let Some(fault) = self.fault.take() {
            return Err(fault.into());
        }
        if self.judge_lost && !self.worker.is_finished() {
            return Err(WorkerError::JudgeLost);
        }
        if self.worker.is_running() && self.began_at.is_none() {
            self.began_at = Some(endpoint.counters().link.sent_bytes);
        }
        if self.worker.is_finishing() {
            let link = endpoint.counters().link.sent_bytes;
            let tcp = self.tcp.as_ref().map_or(0, Tcp::sent_bytes);
            let before = self.began_at.unwrap_or(link);
            self.worker.finish(link - before + tcp, self.rows_beside);
        }
        if self.worker.mode() == Some(Mode::Tcp) && self.tcp.is_none() {
            self.listen()?;
        }
        Ok(events)
    }

    /// Opens the sockets, and tells the judge where.
    fn listen(&mut self) -> Result<(), WorkerError> {
        let Some(setup) = self.worker.setup() else {
            return Ok(());
        };
        let tcp = Tcp::listen(self.worker.me(), setup.plausible.rows.len(), setup.token)?;
        let port = tcp.port();
        self.tcp = Some(tcp);
        self.worker.listens(port);
        Ok(())
    }

    /// Sends waiting messages while there is room; returns whether all were sent.
    fn send(&mut self, endpoint: &mut Endpoint) -> Result<bool, WorkerError> {
        if self.beside.steps.is_handed_over() {
            let room = TUNING
                .worker
                .waiting_max
                .saturating_sub(self.worker.out().len());
            self.worker.out().extend(self.beside.leaving().take(room));
        }
        if self.worker.out().is_empty() {
            return Ok(true);
        }
        let capacity = endpoint.datagram_capacity_bytes();
        let mut batch = endpoint.batch();
        while let Some(out) = self.worker.out().front() {
            let result = match out.to {
                To::Judge => batch.try_send(JUDGE, CONTROL, &out.bytes),
                To::Worker(worker) if self.tcp.is_some() => {
                    let tcp = self.tcp.as_mut().expect("just checked");
                    tcp.send(worker, &out.bytes);
                    Ok(())
                }
                // All messages of one size go the same way, whatever their heads.
                To::Worker(worker) if out.bytes.len() + HEADS_DIFFER <= capacity => {
                    let datagram = Datagram {
                        channel_id: PEERS_ID,
                        key: out.key,
                        payload: &out.bytes,
                        ..Datagram::EMPTY
                    };
                    let to = Destination::Peer(node(worker));
                    batch.datagram(to, datagram, NOW_OR_NEVER).map(drop)
                }
                To::Worker(_) if out.is_repeat => Ok(()), // messages are not lost
                To::Worker(worker) => batch.try_send(node(worker), PEERS, &out.bytes),
            };
            match result {
                Ok(()) => {}
                // Node 0 is about to tell who a worker is that has joined.
                Err(SendError::WouldBlock { .. } | SendError::UnknownPeer { .. }) => {
                    return Ok(false);
                }
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. })
                    if out.to == To::Judge =>
                {
                    return Err(WorkerError::JudgeLost);
                }
                // The judge hears of it, too, and decides.
                Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            self.worker.out().pop_front();
        }
        drop(batch);
        Ok(true)
    }

    fn take(&mut self, from: NodeId, bytes: &[u8], is_kept: bool) {
        match from {
            JUDGE if self.fault.is_none() => {
                self.recall();
                self.fault = self.worker.order(bytes).err();
            }
            JUDGE => {}
            NodeId(worker) => self.take_of_peer(usize::from(worker) - 1, bytes, is_kept),
        }
    }
}

impl Handler for Driver {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.take(delivery.from, delivery.body.bytes(), true);
    }

    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        if datagram.source != JUDGE && datagram.channel_id == PEERS_ID {
            self.take(datagram.source, datagram.payload, false);
        }
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        match peer {
            JUDGE => self.judge_lost = true,
            NodeId(worker) => {
                self.recall();
                self.worker.peer_lost(usize::from(worker) - 1);
            }
        }
    }
}

/// Node of a worker.
pub(super) fn node(worker: usize) -> NodeId {
    NodeId(worker as u16 + 1)
}
