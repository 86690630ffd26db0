//! A worker: keeps the factors of its part, and of those that it took over from lost workers, and answers the judge.
//!
//! [`Parts`] takes messages and works without I/O; [`worker_main`] gives it an endpoint. A block that is not small is factorised on a thread of its own,
//! so that the order to leave and the loss of the judge end the worker meanwhile; nobody waits for that thread then.

use super::message::{Answer, LEAVE, Misfit, Order, PARTS, Pattern, encode, parse};
use super::{JUDGE, send_waiting};
use crate::substructure::{PartFactors, PartOutput, fill_limit};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use tsumuji_node::{Bytes, Context, Delivery, Endpoint, EndpointError, Handler, NodeId, SendError};
use tsumuji_solve::local::{FillLimit, LuError};
use tsumuji_solve::system::Csr;

/// Longest wait for messages and for factors, which end it.
const WAIT: Duration = Duration::from_millis(100);
/// The same while answers wait for room.
const CONTENDED: Duration = Duration::from_millis(1);
/// A block of at most so many entries is factorised at once: starting a thread would hardly pay.
const SMALL_ENTRIES: usize = 1000;

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
    /// A message does not parse or does not fit.
    #[error("the judge sent a message that does not parse; run the same version on every host")]
    Protocol,
    /// This node's link failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The thread that factorises did not start or did not finish.
    #[error("the thread that factorises failed: {0}")]
    Thread(#[source] io::Error),
}

impl From<Misfit> for WorkerError {
    fn from(_: Misfit) -> Self {
        Self::Protocol
    }
}

/// Serves one run as a worker: all its input comes by messages. Returns when the judge orders it to leave.
pub fn worker_main(endpoint: &mut Endpoint) -> Result<(), WorkerError> {
    serve(endpoint, u64::MAX)
}

/// As [`worker_main`], but leaves without a word when it has done so many tasks. For tests.
#[doc(hidden)]
pub fn desert_after(tasks: u64, endpoint: &mut Endpoint) -> Result<(), WorkerError> {
    serve(endpoint, tasks)
}

fn serve(endpoint: &mut Endpoint, mut most_tasks: u64) -> Result<(), WorkerError> {
    if endpoint.me() == JUDGE {
        return Err(WorkerError::NotAWorker);
    }
    let mut driver = Driver::default();
    let mut waiting = VecDeque::new();
    let mut factorising = None;
    loop {
        let patience = if waiting.is_empty() { WAIT } else { CONTENDED };
        endpoint.poll_wait(&mut driver, patience)?;
        if driver.is_over {
            return Ok(());
        }
        if let Some(error) = driver.fault.take() {
            return Err(error);
        }
        if let Some((part, made)) = take_made(&mut factorising)? {
            waiting.push_back(driver.parts.keep(part, made));
        }
        while factorising.is_none()
            && let Some(task) = driver.tasks.pop_front()
        {
            if most_tasks == 0 {
                return Ok(());
            }
            most_tasks -= 1;
            match task.work {
                Work::Factor(block, interior, limit) if block.values().len() > SMALL_ENTRIES => {
                    driver.parts.forget(task.part);
                    let waker = endpoint.waker();
                    let work = move || (task.part, PartFactors::new(&block, interior, limit));
                    factorising = Some(on_thread(work, move || waker.wake())?);
                }
                work => waiting.push_back(driver.parts.work(task.part, work)?),
            }
        }
        match send_waiting(endpoint, JUDGE, &mut waiting) {
            Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {
                return Err(WorkerError::JudgeLost);
            }
            sent => sent?,
        }
    }
}

/// Factors of a part, or why there are none.
type Made = Result<(PartFactors, PartOutput), LuError>;

/// Factorises a part on a thread, which then calls `wake`.
fn on_thread(
    work: impl FnOnce() -> (u16, Made) + Send + 'static,
    wake: impl FnOnce() + Send + 'static,
) -> Result<Receiver<(u16, Made)>, WorkerError> {
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::Builder::new().name("tsumuji-factor".to_owned());
    let run = move || {
        // The judge that waited for it may have left.
        let _ = sender.send(work());
        wake();
    };
    thread.spawn(run).map_err(WorkerError::Thread)?;
    Ok(receiver)
}

/// What the thread has made, once it is done.
fn take_made(
    factorising: &mut Option<Receiver<(u16, Made)>>,
) -> Result<Option<(u16, Made)>, WorkerError> {
    let Some(receiver) = factorising else {
        return Ok(None);
    };
    match receiver.try_recv() {
        Ok(made) => {
            *factorising = None;
            Ok(Some(made))
        }
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => {
            Err(WorkerError::Thread(io::Error::other("it panicked")))
        }
    }
}

/// The worker's parts, and the findings of polling.
#[derive(Debug, Default)]
struct Driver {
    parts: Parts,
    tasks: VecDeque<Task>,
    fault: Option<WorkerError>,
    is_over: bool,
}

impl Handler for Driver {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        match delivery.channel.id() {
            _ if delivery.from != JUDGE => {}
            id if id == LEAVE.id() => self.is_over = true,
            id if id == PARTS.id() => match self.parts.take(delivery.body.bytes()) {
                Ok(task) => self.tasks.extend(task),
                Err(misfit) => self.fault = Some(misfit.into()),
            },
            _ => {}
        }
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        if peer == JUDGE {
            self.fault = self.fault.take().or(Some(WorkerError::JudgeLost));
        }
    }
}

/// What the judge asks for.
#[derive(Debug)]
pub(super) struct Task {
    /// For this part.
    pub(super) part: u16,
    pub(super) work: Work,
}

#[derive(Debug)]
pub(super) enum Work {
    /// Eliminate the interior of this block, of so many unknowns.
    Factor(Csr, usize, FillLimit),
    /// Substitute the right-hand side of the interior.
    Forward(Vec<f64>),
    /// Substitute the interface's solution.
    Backward(Vec<f64>),
}

/// A worker without I/O.
#[derive(Debug, Default)]
pub(super) struct Parts(BTreeMap<u16, Part>);

/// A part.
#[derive(Debug)]
struct Part {
    pattern: Pattern,
    limit: FillLimit,
    factors: Option<PartFactors>,
}

impl Parts {
    /// Takes a message; returns what is to be done.
    pub(super) fn take(&mut self, message: &[u8]) -> Result<Option<Task>, Misfit> {
        let (part, order) = parse(message)?;
        let work = match order {
            Order::Pattern { pattern, sharing } => {
                let told = Part {
                    pattern,
                    limit: fill_limit(usize::from(sharing.max(1))),
                    factors: None,
                };
                self.0.insert(part, told);
                return Ok(None);
            }
            Order::Values(values) => {
                let Part { pattern, limit, .. } = self.0.get(&part).ok_or(Misfit)?;
                Work::Factor(pattern.with(values)?, pattern.interior as usize, *limit)
            }
            Order::Interior(values) => Work::Forward(values),
            Order::Border(values) => Work::Backward(values),
        };
        Ok(Some(Task { part, work }))
    }

    /// The part's factors are void.
    fn forget(&mut self, part: u16) {
        if let Some(part) = self.0.get_mut(&part) {
            part.factors = None;
        }
    }

    fn factors(&mut self, part: u16) -> Result<&mut PartFactors, Misfit> {
        let part = self.0.get_mut(&part).ok_or(Misfit)?;
        part.factors.as_mut().ok_or(Misfit)
    }

    /// Does it; returns the answer.
    pub(super) fn work(&mut self, part: u16, work: Work) -> Result<Bytes, Misfit> {
        let answer = match work {
            Work::Factor(block, interior, limit) => {
                self.forget(part);
                return Ok(self.keep(part, PartFactors::new(&block, interior, limit)));
            }
            Work::Forward(interior) => {
                Answer::Border(self.factors(part)?.forward(interior).ok_or(Misfit)?)
            }
            Work::Backward(border) => {
                Answer::Interior(self.factors(part)?.backward(&border).ok_or(Misfit)?)
            }
        };
        Ok(encode(part, &answer))
    }

    /// Keeps factors; returns the answer.
    fn keep(&mut self, part: u16, made: Made) -> Bytes {
        let answer = match made {
            Ok((factors, output)) => {
                if let Some(part) = self.0.get_mut(&part) {
                    part.factors = Some(factors);
                }
                Answer::Schur(output)
            }
            Err(error) => Answer::Refused(error),
        };
        encode(part, &answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::substructure::PartInput;

    fn answer(parts: &mut Parts, part: u16, order: &Order) -> Answer {
        let task = parts.take(&encode(part, order)).unwrap().expect("a task");
        let (of, answer) = parse(&parts.work(task.part, task.work).unwrap()).unwrap();
        assert_eq!(of, part);
        answer
    }

    /// Parts are factorised and substituted as messages ask for; other values follow without a pattern; what has no turn is refused.
    #[test]
    fn a_part_is_served() {
        // 4 x0 - 2 x1 = b0; the border x1 has the row -2 x0.
        let entries = [(0, 0, 4.0), (0, 1, -2.0), (1, 0, -2.0)];
        let input = PartInput {
            interior: vec![0],
            border: vec![0],
            block: Csr::from_triplets(2, 2, &entries).unwrap(),
        };
        let mut parts = Parts::default();
        let first = parts.take(&encode(0, &Order::Values(vec![])));
        assert!(first.is_err(), "values without a pattern");
        for part in [0, 7] {
            let (pattern, sharing) = (Pattern::of(&input), 1);
            let order = encode(part, &Order::Pattern { pattern, sharing });
            assert!(parts.take(&order).unwrap().is_none());
        }
        for (part, scale) in [(0, 1.0), (7, 2.0), (0, 4.0)] {
            let values: Vec<f64> = input.block.values().iter().map(|v| v * scale).collect();
            let Answer::Schur(output) = answer(&mut parts, part, &Order::Values(values)) else {
                panic!("no factors");
            };
            assert_eq!(output.schur.delayed, [0u32; 0]);
            assert!(
                (output.schur.values[0] / scale + 1.0).abs() < 1e-12,
                "{output:?}"
            );
            let early = parts.work(part, Work::Backward(vec![1.0]));
            assert!(early.is_err(), "back substitution before forward");
        }
        for (part, scale) in [(7, 2.0), (0, 4.0)] {
            let near = |found: &[f64], wanted: f64| matches!(found, [found] if (found - wanted).abs() < 1e-12);
            let added = answer(&mut parts, part, &Order::Interior(vec![6.0 * scale]));
            assert!(
                matches!(&added, Answer::Border(added) if near(added, 3.0 * scale)),
                "{added:?}"
            );
            let interior = answer(&mut parts, part, &Order::Border(vec![4.0]));
            assert!(
                matches!(&interior, Answer::Interior(interior) if near(interior, 3.5)),
                "{interior:?}"
            );
            let long = parts.work(part, Work::Forward(vec![1.0, 2.0]));
            assert!(long.is_err(), "more than the interior");
        }
        assert!(parts.work(3, Work::Forward(vec![1.0])).is_err(), "no part");
    }

    /// A thread's factors are there when it wakes the worker, and once; until then nothing is, and a panic is an error.
    #[test]
    fn threads_factorise() {
        let block = Csr::from_triplets(1, 1, &[(0, 0, 2.0)]).unwrap();
        let (begin, begun) = mpsc::channel();
        let (wake, woken) = mpsc::channel();
        let work = move || {
            begun.recv().unwrap();
            (2, PartFactors::new(&block, 1, fill_limit(1)))
        };
        let thread = on_thread(work, move || wake.send(()).unwrap()).unwrap();
        let mut factorising = Some(thread);
        assert!(take_made(&mut factorising).unwrap().is_none(), "too early");
        assert!(factorising.is_some());
        begin.send(()).unwrap();
        woken.recv().unwrap();
        assert!(matches!(take_made(&mut factorising), Ok(Some((2, Ok(_))))));
        assert!(factorising.is_none());
        assert!(take_made(&mut factorising).unwrap().is_none(), "twice");

        let (sender, receiver) = mpsc::channel();
        drop(sender); // as a panic does
        let lost = take_made(&mut Some(receiver));
        assert!(matches!(lost, Err(WorkerError::Thread(_))), "{lost:?}");
    }
}
