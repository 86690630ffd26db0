//! Parts computed by other processes: a judge (node 0), which has the netlist and the interface, and workers (nodes 1 and up), each with one part.
//!
//! The command line makes a [`Remote`] and gives it to [`Computation::by`](crate::compute::Computation::by); workers run [`worker_main`]. A worker is
//! told where the block of its part has entries, once, then for each factorisation their values, and for each substitution the right-hand side of
//! its interior and the interface's solution at its border. It answers by its Schur complement, by its part of the interface's right-hand side, and
//! by the interior of the solution. `message` has the messages, `worker` a worker.
//!
//! Left out on purpose: going on without a worker. The loss of a worker ends the run by its name; the finished points of a sweep are kept.

mod message;
mod worker;

pub use worker::{WorkerError, worker_main};

use crate::substructure::{PartInput, PartOutput, SolveError, Team};
use message::{Answer, Assembly, LEAVE, Order, PARCELS, Pattern};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tsumuji_node::{
    Bytes, Context, Delivery, Endpoint, Handler, LinkAddr, Member, NodeId, SendError,
};
use tsumuji_solve::distributed::codec;

/// The judge.
const JUDGE: NodeId = NodeId(0);
/// Bytes queued to one node before others are served: enough for the pause between two polls.
const QUEUE_BYTES: usize = 1 << 20;
/// Longest wait for an answer, which ends it.
const WAIT: Duration = Duration::from_millis(2);
/// Time between two looks whether processes are alive, and whether the user wants to stop.
const CHECK: Duration = Duration::from_millis(20);
/// After a worker fell silent: how long its launcher is asked for the cause.
const CAUSE: Duration = Duration::from_secs(1);
/// How long the last orders may take to be acknowledged.
const FAREWELL: Duration = Duration::from_millis(500);

/// What the caller knows of the workers' processes and of the user.
pub struct Watch<'a> {
    /// Which workers' processes have ended since the last call, counted from 0, and how.
    pub ended: &'a mut dyn FnMut() -> Vec<(usize, String)>,
    /// Whether the user wants to stop.
    pub stop: &'a dyn Fn() -> bool,
}

/// The other members of a cluster, of which each computes a part.
pub struct Remote<'a> {
    endpoint: &'a mut Endpoint,
    watch: Watch<'a>,
    inbox: Inbox,
    /// Of each part: unknowns of the interior, and rows of the Schur complement. Empty: workers do not know their patterns.
    sizes: Vec<(usize, usize)>,
    checked: Instant,
}

/// What has arrived from each worker.
struct Inbox {
    assemblies: Vec<Assembly<Answer>>,
    answers: Vec<Option<(Answer, Vec<u8>)>>,
    lost: Vec<bool>,
    /// A worker whose message does not parse.
    misfit: Option<usize>,
}

/// The node of a worker.
fn node(worker: usize) -> NodeId {
    NodeId(worker as u16 + 1)
}

/// Sends messages while there is room.
fn send_waiting(
    endpoint: &mut Endpoint,
    to: NodeId,
    waiting: &mut VecDeque<Bytes>,
) -> Result<(), SendError> {
    while endpoint.queued_bytes(to) < QUEUE_BYTES {
        let Some(message) = waiting.pop_front() else {
            break;
        };
        endpoint.send_shared(to, PARCELS, message)?;
    }
    Ok(())
}

/// Whether two members share a host's memory, as far as is known.
fn share_host(endpoint: &Endpoint, one: &Member, other: &Member) -> bool {
    match (one.addr, other.addr) {
        (LinkAddr::Local(_), LinkAddr::Local(_)) => true,
        (LinkAddr::Inet(one), LinkAddr::Inet(other)) => one.ip() == other.ip(),
        _ => {
            let host = endpoint.host_of(one.id);
            host.is_some() && host == endpoint.host_of(other.id)
        }
    }
}

/// Tells all workers that the run has ended.
pub fn dismiss(endpoint: &mut Endpoint) {
    for worker in 0..endpoint.members().len() - 1 {
        // One that cannot be told notices that this node leaves.
        let _ = endpoint.try_send(node(worker), LEAVE, &[]);
    }
    let _ = endpoint.flush(FAREWELL);
}

impl<'a> Remote<'a> {
    /// For the judge's endpoint. There must be a worker for each part.
    pub fn new(endpoint: &'a mut Endpoint, watch: Watch<'a>) -> Self {
        let workers = endpoint.members().len() - 1;
        Self {
            endpoint,
            watch,
            inbox: Inbox {
                assemblies: (0..workers).map(|_| Assembly::default()).collect(),
                answers: vec![None; workers],
                lost: vec![false; workers],
                misfit: None,
            },
            sizes: Vec::new(),
            checked: Instant::now(),
        }
    }

    /// Workers of this one's host.
    fn sharing(&self, worker: usize) -> u16 {
        let endpoint: &Endpoint = self.endpoint;
        let members = endpoint.members();
        let me = &members[worker + 1];
        let others = members[1..].iter();
        let here = others.filter(|other| share_host(endpoint, me, other));
        here.count() as u16
    }

    /// Sends messages to the first workers, and waits for an answer of each of these.
    fn exchange(
        &mut self,
        mut waiting: Vec<VecDeque<Bytes>>,
    ) -> Result<Vec<(Answer, Vec<u8>)>, SolveError> {
        let parts = waiting.len();
        assert!(parts <= self.inbox.answers.len(), "a worker for each part");
        loop {
            for (worker, waiting) in waiting.iter_mut().enumerate() {
                match send_waiting(self.endpoint, node(worker), waiting) {
                    Ok(()) => {}
                    Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                        return Err(self.lost(worker));
                    }
                    Err(error) => return Err(failed(&error)),
                }
            }
            let polled = self.endpoint.poll_wait(&mut self.inbox, WAIT);
            polled.map_err(|error| failed(&error))?;
            self.look(parts)?;
            let answers = &mut self.inbox.answers[..parts];
            let is_sent = waiting.iter().all(VecDeque::is_empty);
            if is_sent && answers.iter().all(Option::is_some) {
                return Ok(answers.iter_mut().filter_map(Option::take).collect());
            }
        }
    }

    /// Ends the wait if a worker is lost, or the user wants to stop.
    fn look(&mut self, parts: usize) -> Result<(), SolveError> {
        if let Some(worker) = self.inbox.lost[..parts].iter().position(|lost| *lost) {
            return Err(self.lost(worker));
        }
        if let Some(worker) = self.inbox.misfit {
            return Err(self.misfit(worker));
        }
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            if (self.watch.stop)() {
                return Err(SolveError::Interrupted);
            }
            let mut ended = (self.watch.ended)().into_iter();
            if let Some((_, what)) = ended.find(|(worker, _)| *worker < parts) {
                return Err(SolveError::Worker { what });
            }
        }
        Ok(())
    }

    /// The error of a lost worker, by the launcher's words if it has any.
    fn lost(&mut self, worker: usize) -> SolveError {
        let began = Instant::now();
        while began.elapsed() < CAUSE {
            if let Some((_, what)) = (self.watch.ended)().pop() {
                return SolveError::Worker { what };
            }
            // Goes on polling, so that the other workers do not take this node for dead, too.
            if self.endpoint.poll(&mut self.inbox).is_err() {
                break;
            }
            std::thread::sleep(CHECK);
        }
        let name = self.endpoint.name_of(node(worker));
        SolveError::Worker {
            what: format!("{name} was lost: nothing is heard from it any more"),
        }
    }

    /// The error of a worker that is another program.
    fn misfit(&self, worker: usize) -> SolveError {
        let name = self.endpoint.name_of(node(worker));
        SolveError::Worker {
            what: format!(
                "{name} sent a message that does not fit; run the same version on every host"
            ),
        }
    }

    /// Sends each worker numbers, and receives an answer of so many numbers from each.
    fn pass(
        &mut self,
        order: Order,
        vectors: &[Vec<f64>],
        (wanted, lengths): (&Answer, &[usize]),
    ) -> Result<Vec<Vec<f64>>, SolveError> {
        let waiting = vectors
            .iter()
            .map(|values| message::numbers(&order, values));
        let answers = self.exchange(waiting.collect())?;
        let answers = answers.into_iter().zip(lengths).enumerate();
        let parsed = answers.map(|(part, ((answer, body), length))| {
            let values = codec::f64s(&body).filter(|values| values.len() == *length);
            let values = values.filter(|_| answer == *wanted);
            values.ok_or_else(|| self.misfit(part))
        });
        parsed.collect()
    }
}

/// This node cannot go on.
fn failed(error: &dyn std::error::Error) -> SolveError {
    SolveError::Worker {
        what: error.to_string(),
    }
}

impl Team for Remote<'_> {
    fn factor(&mut self, inputs: &[PartInput]) -> Result<Vec<PartOutput>, SolveError> {
        let is_first = self.sizes.is_empty();
        let waiting = inputs.iter().enumerate().map(|(part, input)| {
            let mut messages = match is_first {
                true => Pattern::of(input, self.sharing(part)),
                false => VecDeque::new(),
            };
            messages.extend(message::numbers(&Order::Values, input.block.values()));
            messages
        });
        let waiting = waiting.collect();
        let answers = self.exchange(waiting)?.into_iter();
        let outputs = answers.zip(inputs).enumerate();
        let outputs = outputs.map(|(part, ((answer, body), input))| match answer {
            Answer::Refused(source) => Err(SolveError::Part { part, source }),
            Answer::Schur { delayed, entries } => {
                let size = (input.interior.len(), input.border.len());
                message::parse_schur(size, (delayed, entries), &body)
                    .ok_or_else(|| self.misfit(part))
            }
            Answer::Border | Answer::Interior => Err(self.misfit(part)),
        });
        let outputs: Vec<PartOutput> = outputs.collect::<Result<_, _>>()?;
        let sizes = inputs.iter().zip(&outputs).map(|(input, output)| {
            let rows = input.border.len() + output.schur.delayed.len();
            (input.interior.len(), rows)
        });
        self.sizes = sizes.collect();
        Ok(outputs)
    }

    fn forward(&mut self, interiors: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        let lengths: Vec<usize> = self.sizes.iter().map(|(_, rows)| *rows).collect();
        let wanted = (&Answer::Border, lengths.as_slice());
        self.pass(Order::Interior, &interiors, wanted)
    }

    fn backward(&mut self, borders: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        let lengths: Vec<usize> = self.sizes.iter().map(|(interior, _)| *interior).collect();
        let wanted = (&Answer::Interior, lengths.as_slice());
        self.pass(Order::Border, &borders, wanted)
    }
}

impl Handler for Inbox {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let worker = usize::from(delivery.from.0).wrapping_sub(1);
        let Some(assembly) = self.assemblies.get_mut(worker) else {
            return;
        };
        match assembly.take(delivery.body.bytes()) {
            Ok(None) => {}
            Ok(answer) if self.answers[worker].is_none() => self.answers[worker] = answer,
            _ => self.misfit = Some(worker),
        }
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        let worker = usize::from(peer.0).wrapping_sub(1);
        if let Some(lost) = self.lost.get_mut(worker) {
            *lost = true;
        }
    }
}

/// Takes any bytes as messages to a worker and to the judge; each has its length before it. For fuzzing.
#[doc(hidden)]
pub fn parse_any(mut bytes: &[u8]) {
    let mut seat = worker::Seat::default();
    let mut answers = Assembly::<Answer>::default();
    while let Some((&length, rest)) = bytes.split_first() {
        let (next, rest) = rest.split_at(rest.len().min(usize::from(length)));
        bytes = rest;
        if let Ok(Some(worker::Task::Factor(block, interior, _))) = seat.take(next) {
            assert!(interior <= block.rows() && block.rows() == block.columns());
        }
        let taken = answers.take(next);
        if let Ok(Some((Answer::Schur { delayed, entries }, body))) = taken
            && let Some(output) = message::parse_schur((3, 2), (delayed, entries), &body)
        {
            let rows = output.schur.delayed.len() + 2;
            assert_eq!(output.schur.values.len(), rows * rows);
            assert!(output.schur.delayed.iter().all(|place| *place < 3));
        }
    }
}
