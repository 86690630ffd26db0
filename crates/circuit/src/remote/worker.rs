//! A worker: keeps the factors of its part, and of those that it took over from lost workers, and answers the judge.
//!
//! [`Seat`] takes messages and works without I/O; [`worker_main`] gives it an endpoint. A block that is not small is factorised on a thread of its own,
//! so that the order to leave and the loss of the judge end the worker meanwhile; nobody waits for that thread then.

use super::message::{self, Answer, Assembly, LEAVE, Misfit, Order, PARCELS, Pattern};
use super::{JUDGE, send_waiting};
use crate::substructure::{PartFactors, PartOutput, fill_limit};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;
use tsumuji_node::{Bytes, Context, Delivery, Endpoint, EndpointError, Handler, NodeId, SendError};
use tsumuji_solve::distributed::codec;
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
            waiting.extend(driver.seat.keep(part, made));
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
                    driver.seat.forget(task.part);
                    let waker = endpoint.waker();
                    let work = move || (task.part, PartFactors::new(&block, interior, limit));
                    factorising = Some(on_thread(work, move || waker.wake())?);
                }
                work => waiting.extend(driver.seat.work(task.part, work)?),
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
        // Whoever waited for it may have left.
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
    seat: Seat,
    tasks: VecDeque<Task>,
    fault: Option<WorkerError>,
    is_over: bool,
}

impl Handler for Driver {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        match delivery.channel.id() {
            _ if delivery.from != JUDGE => {}
            id if id == LEAVE.id() => self.is_over = true,
            id if id == PARCELS.id() => match self.seat.take(delivery.body.bytes()) {
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
pub(super) struct Seat {
    assembly: Assembly<(u16, Order)>,
    parts: BTreeMap<u16, Part>,
}

/// A part.
#[derive(Debug)]
struct Part {
    pattern: Pattern,
    limit: FillLimit,
    factors: Option<PartFactors>,
}

impl Seat {
    /// Takes a message; returns what is to be done once a parcel is whole.
    pub(super) fn take(&mut self, message: &[u8]) -> Result<Option<Task>, Misfit> {
        let Some(((part, order), body)) = self.assembly.take(message)? else {
            return Ok(None);
        };
        if let Order::Pattern {
            interior,
            rows,
            sharing,
        } = order
        {
            let pattern = Pattern::parse(interior, rows, &body).ok_or(Misfit)?;
            let limit = fill_limit(usize::from(sharing.max(1)));
            let factors = None;
            let told = Part {
                pattern,
                limit,
                factors,
            };
            self.parts.insert(part, told);
            return Ok(None);
        }
        let values = codec::f64s(&body).ok_or(Misfit)?;
        drop(body);
        let work = match order {
            Order::Interior => Work::Forward(values),
            Order::Border => Work::Backward(values),
            Order::Values | Order::Pattern { .. } => {
                let Part { pattern, limit, .. } = self.parts.get(&part).ok_or(Misfit)?;
                let block = pattern.with(values).ok_or(Misfit)?;
                Work::Factor(block, pattern.interior, *limit)
            }
        };
        Ok(Some(Task { part, work }))
    }

    /// The part's factors are void.
    fn forget(&mut self, part: u16) {
        if let Some(part) = self.parts.get_mut(&part) {
            part.factors = None;
        }
    }

    fn factors(&mut self, part: u16) -> Result<&mut PartFactors, Misfit> {
        let part = self.parts.get_mut(&part).ok_or(Misfit)?;
        part.factors.as_mut().ok_or(Misfit)
    }

    /// Does it; returns the messages of the answer.
    pub(super) fn work(&mut self, part: u16, work: Work) -> Result<VecDeque<Bytes>, Misfit> {
        Ok(match work {
            Work::Factor(block, interior, limit) => {
                self.forget(part);
                self.keep(part, PartFactors::new(&block, interior, limit))
            }
            Work::Forward(interior) => {
                let added = self.factors(part)?.forward(interior).ok_or(Misfit)?;
                message::numbers(&(part, Answer::Border), &added)
            }
            Work::Backward(border) => {
                let interior = self.factors(part)?.backward(&border).ok_or(Misfit)?;
                message::numbers(&(part, Answer::Interior), &interior)
            }
        })
    }

    /// Keeps factors; returns the messages of the answer.
    fn keep(&mut self, part: u16, made: Made) -> VecDeque<Bytes> {
        match made {
            Ok((factors, output)) => {
                if let Some(part) = self.parts.get_mut(&part) {
                    part.factors = Some(factors);
                }
                message::schur(part, &output)
            }
            Err(error) => message::parcel(&(part, Answer::Refused(error)), Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::substructure::PartInput;

    fn take(seat: &mut Seat, messages: &VecDeque<Bytes>) -> Option<Task> {
        let mut task = None;
        for message in messages {
            assert!(task.is_none(), "a task before its end");
            task = seat.take(message).unwrap();
        }
        task
    }

    /// Head and numbers of an answer.
    fn answer(seat: &mut Seat, messages: &VecDeque<Bytes>) -> (Answer, Vec<f64>) {
        let task = take(seat, messages).expect("a task");
        let mut assembly = Assembly::<(u16, Answer)>::default();
        let mut answer = None;
        let part = task.part;
        for message in &seat.work(part, task.work).unwrap() {
            answer = assembly.take(message).unwrap();
        }
        let ((of, head), body) = answer.expect("a whole parcel");
        assert_eq!(of, part);
        (head, codec::f64s(&body).unwrap())
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
        let mut seat = Seat::default();
        let first = seat.take(&message::numbers(&(0u16, Order::Values), &[])[0]);
        assert!(first.is_err(), "values without a pattern");
        for part in [0, 7] {
            assert!(take(&mut seat, &Pattern::of(part, &input, 1)).is_none());
        }
        for (part, scale) in [(0, 1.0), (7, 2.0), (0, 4.0)] {
            let values: Vec<f64> = input.block.values().iter().map(|v| v * scale).collect();
            let values = message::numbers(&(part, Order::Values), &values);
            let (head, schur) = answer(&mut seat, &values);
            assert!(matches!(head, Answer::Schur { delayed: 0, .. }), "{head:?}");
            assert!((schur[0] / scale + 1.0).abs() < 1e-12, "{schur:?}");
            let early = seat.work(part, Work::Backward(vec![1.0]));
            assert!(early.is_err(), "back substitution before forward");
        }
        for (part, scale) in [(7, 2.0), (0, 4.0)] {
            let right = message::numbers(&(part, Order::Interior), &[6.0 * scale]);
            let added = answer(&mut seat, &right);
            assert!(matches!(added.0, Answer::Border), "{added:?}");
            assert!((added.1[0] / scale - 3.0).abs() < 1e-12, "{added:?}");
            let border = message::numbers(&(part, Order::Border), &[4.0]);
            let interior = answer(&mut seat, &border);
            assert!(matches!(interior.0, Answer::Interior), "{interior:?}");
            assert!((interior.1[0] - 3.5).abs() < 1e-12, "{interior:?}");
            let long = seat.work(part, Work::Forward(vec![1.0, 2.0]));
            assert!(long.is_err(), "more than the interior");
        }
        assert!(seat.work(3, Work::Forward(vec![1.0])).is_err(), "no part");
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
