//! Parts computed by other processes: a judge (node 0), which has the netlist and the interface, and workers (nodes 1 and up), each with one part.
//!
//! The command line makes a [`Remote`] and gives it to [`Computation::by`](crate::compute::Computation::by); workers run [`worker_main`]. A worker is
//! told where the block of its part has entries, once, then for each factorisation their values, and for each substitution the right-hand side of
//! its interior and the interface's solution at its border. It answers by its Schur complement, by its part of the interface's right-hand side, and
//! by the interior of the solution. `message` has the messages, `worker` a worker.
//!
//! The part of a worker that is lost goes to the one that has the fewest, which factorises it anew: the judge keeps what it has told of each part since
//! the last factorisation, and tells it again. Without a worker that is left the run ends; the finished points of a sweep are kept.

mod message;
mod worker;

#[doc(hidden)]
pub use worker::desert_after;
pub use worker::{WorkerError, worker_main};

use crate::substructure::{PartInput, PartOutput, SolveError, Team};
use message::{Answer, LEAVE, Order, PARTS, Pattern, encode, is_sound, parse};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tsumuji_node::{
    Bytes, Context, Delivery, Endpoint, Handler, LinkAddr, Member, NodeId, SendError,
};

/// The judge.
const JUDGE: NodeId = NodeId(0);
/// Longest wait for an answer, which ends it.
const WAIT: Duration = Duration::from_millis(2);
/// Time between two checks whether processes are alive, and whether the user wants to stop.
const CHECK: Duration = Duration::from_millis(20);
/// After a worker fell silent: how long its launcher is asked for the cause.
const CAUSE: Duration = Duration::from_secs(1);
/// How long the last orders may take to be acknowledged.
const FLUSH_WAIT: Duration = Duration::from_millis(500);

/// What the caller knows of the workers' processes and of the user.
pub struct Watch<'a> {
    /// Which workers' processes have ended since the last call, counted from 0, and how. `None`: others have started them.
    pub ended: Option<&'a mut dyn FnMut() -> Vec<(usize, String)>>,
    /// Whether the user wants to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// Is told of each worker that was lost while others go on: how, and who computes its part.
    pub lost: &'a mut dyn FnMut(&str),
}

/// The other members of a cluster, which compute the parts.
pub struct Remote<'a> {
    endpoint: &'a mut Endpoint,
    watch: Watch<'a>,
    arrivals: Arrivals,
    /// Empty before the first factorisation.
    parts: Vec<Part>,
    workers: Vec<Worker>,
    checked: Instant,
}

/// A worker as the judge knows it.
#[derive(Default)]
struct Worker {
    /// Messages that have yet to be sent.
    waiting: VecDeque<Bytes>,
    /// How its process ended, if its launcher has said so.
    end: Option<String>,
    /// It was lost, and has no part any more.
    is_gone: bool,
}

/// A part, and what its worker was told of it.
struct Part {
    worker: usize,
    /// Unknowns of its interior and of its border.
    size: (usize, usize),
    /// Interior unknowns that join the interface.
    delayed: Vec<u32>,
    /// The message of each [`Step`], as far as the present substitution has come.
    told: Vec<Bytes>,
    /// Answers to come that repeat earlier ones, because another worker took the part over.
    repeats: usize,
}

impl Part {
    /// Rows of its Schur complement.
    fn rows(&self) -> usize {
        self.size.1 + self.delayed.len()
    }
}

/// What a worker is told of a part, in this order. It answers all but the first.
#[derive(Clone, Copy)]
enum Step {
    Pattern,
    Values,
    Interior,
    Border,
}

/// What has arrived from the workers.
struct Arrivals {
    /// From which worker, and for which part.
    answers: VecDeque<(usize, u16, Answer)>,
    lost: Vec<bool>,
    /// A worker whose message does not parse.
    misfit: Option<usize>,
}

/// The present answer of each part.
type Found = Vec<Option<Answer>>;

/// The node of a worker.
fn node(worker: usize) -> NodeId {
    NodeId(worker as u16 + 1)
}

/// Sends messages, each once those before it are acknowledged: so a call never waits for room.
fn send_waiting(
    endpoint: &mut Endpoint,
    to: NodeId,
    waiting: &mut VecDeque<Bytes>,
) -> Result<(), SendError> {
    while endpoint.queue_length(to) == 0
        && let Some(message) = waiting.pop_front()
    {
        endpoint.send_shared(to, PARTS, message)?;
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
    let began = Instant::now();
    for worker in 0..endpoint.members().len() - 1 {
        // Behind a long order there is room once it has arrived. One that cannot be told notices that this node leaves.
        let left = FLUSH_WAIT.saturating_sub(began.elapsed());
        let _ = endpoint.wait_writable(node(worker), LEAVE.id(), 0, left);
        let _ = endpoint.try_send(node(worker), LEAVE, &[]);
    }
    let _ = endpoint.flush(FLUSH_WAIT);
}

impl<'a> Remote<'a> {
    /// For the judge's endpoint. There must be a worker for each part.
    pub fn new(endpoint: &'a mut Endpoint, watch: Watch<'a>) -> Self {
        let workers = endpoint.members().len() - 1;
        Self {
            endpoint,
            watch,
            arrivals: Arrivals {
                answers: VecDeque::new(),
                lost: vec![false; workers],
                misfit: None,
            },
            parts: Vec::new(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
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

    /// Tells the part's worker.
    fn tell(&mut self, part: usize, step: Step, order: &Order) {
        let message = encode(part as u16, order);
        let part = &mut self.parts[part];
        let worker = &mut self.workers[part.worker];
        worker.waiting.push_back(message.clone());
        part.told.truncate(step as usize);
        part.told.push(message);
    }

    /// Sends what waits, and receives an answer for each part.
    fn exchange(&mut self) -> Result<Vec<Answer>, SolveError> {
        let mut found: Found = vec![None; self.parts.len()];
        loop {
            for (index, worker) in self.workers.iter_mut().enumerate() {
                match send_waiting(self.endpoint, node(index), &mut worker.waiting) {
                    Ok(()) => {}
                    Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                        self.arrivals.lost[index] = true;
                    }
                    Err(error) => return Err(failed(&error)),
                }
            }
            let polled = self.endpoint.poll_wait(&mut self.arrivals, WAIT);
            polled.map_err(|error| failed(&error))?;
            self.check(&mut found)?;
            while let Some((worker, part, answer)) = self.arrivals.answers.pop_front() {
                if !self.workers[worker].is_gone {
                    self.place(worker, part.into(), answer, &mut found)?;
                }
            }
            if found.iter().all(Option::is_some) {
                return Ok(found.into_iter().flatten().collect());
            }
        }
    }

    /// Keeps an answer, unless it repeats an earlier one.
    fn place(
        &mut self,
        worker: usize,
        part: usize,
        answer: Answer,
        found: &mut Found,
    ) -> Result<(), SolveError> {
        let known = self.parts.get_mut(part);
        let Some(known) = known.filter(|known| known.worker == worker && found[part].is_none())
        else {
            return Err(self.misfit(worker));
        };
        if known.repeats == 0 {
            found[part] = Some(answer);
            return Ok(());
        }
        known.repeats -= 1;
        match answer {
            Answer::Refused(source) => Err(SolveError::Part { part, source }),
            Answer::Border(_) | Answer::Interior(_) => Ok(()),
            Answer::Schur(output) if !is_sound(&output, known.size) => Err(self.misfit(worker)),
            Answer::Schur(output) if output.schur.delayed == known.delayed => Ok(()),
            // By the processor's rounding; the interface's equations do not fit any more.
            Answer::Schur(_) => Err(SolveError::Worker {
                what: format!(
                    "{} factorises the part of a lost worker with other pivots; start again",
                    self.endpoint.name_of(node(worker))
                ),
            }),
        }
    }

    /// Gives away the parts of lost workers; ends the wait if none is left, or the user wants to stop.
    fn check(&mut self, found: &mut Found) -> Result<(), SolveError> {
        if let Some(worker) = self.arrivals.misfit {
            return Err(self.misfit(worker));
        }
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            if (self.watch.stop)() {
                return Err(SolveError::Interrupted);
            }
            self.note_ends();
        }
        for worker in 0..self.workers.len() {
            if self.arrivals.lost[worker] && !self.workers[worker].is_gone {
                self.give_away(worker, found)?;
            }
        }
        Ok(())
    }

    /// Workers whose processes have ended are lost.
    fn note_ends(&mut self) {
        let ended = self.watch.ended.as_mut().map(|ended| ended());
        for (worker, how) in ended.into_iter().flatten() {
            if let Some(lost) = self.arrivals.lost.get_mut(worker) {
                *lost = true;
                self.workers[worker].end = Some(how);
            }
        }
    }

    /// The parts of a lost worker are others'.
    fn give_away(&mut self, worker: usize, found: &mut Found) -> Result<(), SolveError> {
        let how = self.how_lost(worker);
        self.workers[worker] = Worker {
            is_gone: true,
            ..Worker::default()
        };
        let mut heirs = Vec::new();
        for (part, found) in found.iter_mut().enumerate() {
            if self.parts[part].worker != worker {
                continue;
            }
            let Some(heir) = self.idlest() else {
                return Err(SolveError::Worker { what: how });
            };
            let part = &mut self.parts[part];
            part.worker = heir;
            // All steps but the pattern are answered, and the last answer counts.
            part.repeats = part.told.len().saturating_sub(2);
            let again = part.told.iter().cloned();
            self.workers[heir].waiting.extend(again);
            *found = None;
            heirs.push(self.endpoint.name_of(node(heir)).to_string());
        }
        let told = match heirs.as_slice() {
            [] => format!("{how}; it had no part"),
            [heir] => format!("{how}; {heir} computes its part"),
            heirs => format!("{how}; {} compute its parts", heirs.join(", ")),
        };
        (self.watch.lost)(&told);
        Ok(())
    }

    /// The worker with the fewest parts, if any is left.
    fn idlest(&self) -> Option<usize> {
        let left = (0..self.workers.len()).filter(|&worker| !self.arrivals.lost[worker]);
        let parts = |worker: usize| self.parts.iter().filter(move |part| part.worker == worker);
        left.min_by_key(|&worker| parts(worker).count())
    }

    /// How a worker was lost, by the launcher's words if it has any.
    fn how_lost(&mut self, worker: usize) -> String {
        let began = Instant::now();
        while self.watch.ended.is_some()
            && self.workers[worker].end.is_none()
            && began.elapsed() < CAUSE
        {
            self.note_ends();
            // Goes on polling, so that the other workers do not take this node for dead, too.
            if self.endpoint.poll(&mut self.arrivals).is_err() {
                break;
            }
            std::thread::sleep(CHECK);
        }
        let name = self.endpoint.name_of(node(worker));
        let unknown = || format!("{name} was lost: nothing is heard from it any more");
        self.workers[worker].end.take().unwrap_or_else(unknown)
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

    /// Sends an order for each part, and receives an answer for each, of which `take` takes what fits.
    fn pass<T>(
        &mut self,
        step: Step,
        orders: impl Iterator<Item = Order>,
        take: impl Fn(Answer, &Part) -> Option<T>,
    ) -> Result<Vec<T>, SolveError> {
        for (part, order) in orders.enumerate() {
            self.tell(part, step, &order);
        }
        let answers = self.exchange()?.into_iter().zip(&self.parts);
        let taken = answers.map(|(answer, part)| {
            let taken = take(answer, part);
            taken.ok_or_else(|| self.misfit(part.worker))
        });
        taken.collect()
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
        assert!(inputs.len() <= self.workers.len(), "a worker for each part");
        let is_first = self.parts.is_empty();
        for (part, input) in inputs.iter().enumerate().filter(|_| is_first) {
            self.parts.push(Part {
                worker: part,
                size: (input.interior.len(), input.border.len()),
                delayed: Vec::new(),
                told: Vec::new(),
                repeats: 0,
            });
            let (pattern, sharing) = (Pattern::of(input), self.sharing(part));
            self.tell(part, Step::Pattern, &Order::Pattern { pattern, sharing });
        }
        let values = inputs.iter().map(|input| input.block.values().to_vec());
        let made = self.pass(
            Step::Values,
            values.map(Order::Values),
            |answer, part| match answer {
                Answer::Schur(output) => is_sound(&output, part.size).then_some(Ok(output)),
                Answer::Refused(source) => Some(Err(source)),
                Answer::Border(_) | Answer::Interior(_) => None,
            },
        )?;
        let outputs = made.into_iter().enumerate();
        let outputs: Vec<PartOutput> = outputs
            .map(|(part, made)| made.map_err(|source| SolveError::Part { part, source }))
            .collect::<Result<_, _>>()?;
        for (part, output) in self.parts.iter_mut().zip(&outputs) {
            part.delayed.clone_from(&output.schur.delayed);
        }
        Ok(outputs)
    }

    fn forward(&mut self, interiors: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        let orders = interiors.into_iter().map(Order::Interior);
        self.pass(Step::Interior, orders, |answer, part| match answer {
            Answer::Border(added) => (added.len() == part.rows()).then_some(added),
            _ => None,
        })
    }

    fn backward(&mut self, borders: Vec<Vec<f64>>) -> Result<Vec<Vec<f64>>, SolveError> {
        let orders = borders.into_iter().map(Order::Border);
        self.pass(Step::Border, orders, |answer, part| match answer {
            Answer::Interior(interior) => (interior.len() == part.size.0).then_some(interior),
            _ => None,
        })
    }
}

impl Handler for Arrivals {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let worker = usize::from(delivery.from.0).wrapping_sub(1);
        // It may be back, and knows nothing of its part.
        if self.lost.get(worker) != Some(&false) {
            return;
        }
        match parse(delivery.body.bytes()) {
            Ok((part, answer)) => self.answers.push_back((worker, part, answer)),
            Err(message::Misfit) => self.misfit = Some(worker),
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
    let mut parts = worker::Parts::default();
    while let Some((&length, rest)) = bytes.split_first() {
        let (next, rest) = rest.split_at(rest.len().min(usize::from(length)));
        bytes = rest;
        if let Ok(Some(task)) = parts.take(next)
            && let worker::Work::Factor(block, interior, _) = task.work
        {
            assert!(interior <= block.rows() && block.rows() == block.columns());
        }
        if let Ok((_, Answer::Schur(output))) = parse(next)
            && is_sound(&output, (3, 2))
        {
            let rows = output.schur.delayed.len() + 2;
            assert_eq!(output.schur.values.len(), rows * rows);
            assert!(output.schur.delayed.iter().all(|place| *place < 3));
        }
    }
}
