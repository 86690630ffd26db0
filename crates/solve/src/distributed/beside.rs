//! A thread that computes beside the one that polls: receiving, computing and transmitting on two cores, as RELAX divides a worker.
//!
//! Owned by `serve`. The worker's numbers ([`Field`]) move to this thread and back, so that one thread at a time has x. What arrives meanwhile, and what
//! is to leave, goes through two rings; their packets go round, so that no frame allocates memory.
//!
//! Invariants: the field comes back with all that was given to the ring in it; an endpoint belongs to the polling thread alone.

use std::convert::Infallible;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tsumuji_board::Carrier;
use tsumuji_wire::{Datagram, NodeId};

use super::config::Mode;
use super::field::{Field, JUDGE, Outlet, Stepped};
use super::message::LapReport;

/// Datagrams that wait in one direction. When there are more, the computing thread finds no slot, as if the link had none, and the polling thread drops
/// what arrives, as a full link does.
const RING: usize = 256;
/// How long the computing thread rests before a lap that could change little. What arrives ends it.
const REST: Duration = Duration::from_micros(100);
/// Where threads outnumber cores, a core is given away at least this often.
const TURN: Duration = Duration::from_micros(50);

/// A copy of a datagram.
#[derive(Debug)]
struct Packet {
    /// Where it goes; empty for one that arrived.
    to: Vec<NodeId>,
    head: Datagram<'static>,
    payload: Vec<u8>,
}

impl Packet {
    const EMPTY: Self = Self {
        to: Vec::new(),
        head: Datagram::EMPTY,
        payload: Vec::new(),
    };
}

/// One end of a ring: where packets are filled.
#[derive(Debug)]
struct Filler {
    full: rtrb::Producer<Packet>,
    empty: rtrb::Consumer<Packet>,
}

/// The other end.
#[derive(Debug)]
struct Drainer {
    full: rtrb::Consumer<Packet>,
    empty: rtrb::Producer<Packet>,
}

fn ring() -> (Filler, Drainer) {
    let (full_in, full_out) = rtrb::RingBuffer::new(RING);
    let (mut empty_in, empty_out) = rtrb::RingBuffer::new(RING);
    while empty_in.push(Packet::EMPTY).is_ok() {}
    let filler = Filler {
        full: full_in,
        empty: empty_out,
    };
    let drainer = Drainer {
        full: full_out,
        empty: empty_in,
    };
    (filler, drainer)
}

impl Filler {
    /// Puts in a copy; false: the ring is full.
    fn put(&mut self, to: &[NodeId], datagram: &Datagram<'_>) -> bool {
        let Ok(mut packet) = self.empty.pop() else {
            return false;
        };
        packet.to.clear();
        packet.to.extend_from_slice(to);
        packet.payload.clear();
        packet.payload.extend_from_slice(datagram.payload);
        packet.head = Datagram {
            payload: &[],
            ..*datagram
        };
        self.full.push(packet).is_ok() // there are no more packets than places
    }
}

impl Drainer {
    /// Takes out the oldest packet.
    fn take<T>(&mut self, with: impl FnOnce(&[NodeId], &Datagram<'_>) -> T) -> Option<T> {
        let packet = self.full.pop().ok()?;
        let datagram = Datagram {
            payload: &packet.payload,
            ..packet.head
        };
        let result = with(&packet.to, &datagram);
        let _ = self.empty.push(packet); // there are no more packets than places
        Some(result)
    }
}

/// What both threads see.
#[derive(Debug, Default)]
struct Shared {
    /// The field is wanted back.
    recalled: AtomicBool,
    /// The computing thread rests.
    rests: AtomicBool,
    /// Laps done, as the bits of an `f64`.
    progress: AtomicU64,
}

/// A field on its way between the threads.
#[derive(Debug)]
struct Lent {
    field: Field,
    mode: Mode,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) field: Field,
    /// A lap of a synchronous run is complete.
    pub(super) lap: bool,
}

/// The polling thread's side.
#[derive(Debug)]
pub(super) struct Beside {
    shared: Arc<Shared>,
    /// `None`: the thread is to end.
    lends: Option<Sender<Lent>>,
    returns: Receiver<Returned>,
    arrived: Filler,
    leaving: Drainer,
    thread: Option<JoinHandle<()>>,
    is_lent: bool,
    /// Laps done when the field was lent, with parts.
    lent_at: f64,
    /// Arrived datagrams for which the ring had no place, and leaving ones for which the link had none, since the field was lent.
    dropped: u64,
}

impl Beside {
    /// Starts the thread. `began`: the origin of all times of this worker; `yields`: threads outnumber cores.
    pub(super) fn start(began: Instant, yields: bool) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (lends, lent) = channel();
        let (give_back, returns) = channel();
        let (arrived, arriving) = ring();
        let (leaves, leaving) = ring();
        let computing = Computing {
            shared: Arc::clone(&shared),
            arriving,
            outlet: RingOutlet { leaves, began },
            yields,
        };
        let thread = std::thread::Builder::new()
            .name("tsumuji-compute".to_owned())
            .spawn(move || computing.run(&lent, &give_back))?;
        Ok(Self {
            shared,
            lends: Some(lends),
            returns,
            arrived,
            leaving,
            thread: Some(thread),
            is_lent: false,
            lent_at: 0.0,
            dropped: 0,
        })
    }

    /// Lends the field: from now on the other thread computes.
    pub(super) fn lend(&mut self, field: Field, mode: Mode) {
        self.shared.recalled.store(false, Ordering::Relaxed);
        self.lent_at = field.walk().progress();
        (self.shared.progress).store(self.lent_at.to_bits(), Ordering::Relaxed);
        let sent = self
            .lends
            .as_ref()
            .is_some_and(|lends| lends.send(Lent { field, mode }).is_ok());
        if !sent {
            self.repeat_panic();
        }
        self.is_lent = true;
    }

    pub(super) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Whether the other thread rests until something arrives.
    pub(super) fn rests(&self) -> bool {
        self.is_lent && self.shared.rests.load(Ordering::Relaxed)
    }

    /// Laps done by the field that is lent, with the part of the current one.
    pub(super) fn progress(&self) -> f64 {
        f64::from_bits(self.shared.progress.load(Ordering::Relaxed))
    }

    /// Gives a datagram that arrived to the computing thread.
    pub(super) fn give(&mut self, datagram: &Datagram<'_>) {
        if !self.arrived.put(&[], datagram) {
            self.dropped += 1;
        }
        if self.rests()
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Takes the oldest datagram that is to leave; `send` returns how many copies found no transmit slot.
    pub(super) fn take_leaving<E>(
        &mut self,
        send: impl FnOnce(&[NodeId], &Datagram<'_>) -> Result<usize, E>,
    ) -> Result<bool, E> {
        match self.leaving.take(send) {
            None => Ok(false),
            Some(refused) => {
                self.dropped += refused? as u64;
                Ok(true)
            }
        }
    }

    /// The field, if the other thread gave it back by itself.
    pub(super) fn returned(&mut self) -> Option<Returned> {
        if !self.is_lent {
            return None;
        }
        match self.returns.try_recv() {
            Ok(returned) => Some(self.received(returned)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.repeat_panic(),
        }
    }

    /// Asks for the field, and waits for it: for one step of the computation at most.
    pub(super) fn recall(&mut self) -> Option<Returned> {
        if !self.is_lent {
            return None;
        }
        self.shared.recalled.store(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        match self.returns.recv() {
            Ok(returned) => Some(self.received(returned)),
            Err(_) => self.repeat_panic(),
        }
    }

    fn received(&mut self, mut returned: Returned) -> Returned {
        self.is_lent = false;
        returned.field.refused += std::mem::take(&mut self.dropped);
        returned.field.laps_beside += returned.field.walk().progress() - self.lent_at;
        returned
    }

    /// The thread ends only when it is told to, or by a panic.
    fn repeat_panic(&mut self) -> ! {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Err(panic)) => resume_unwind(panic),
            _ => unreachable!("the computing thread ended by itself"),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.lends = None;
        self.shared.recalled.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // a panic was told by the thread itself
        }
    }
}

/// The computing thread.
struct Computing {
    shared: Arc<Shared>,
    arriving: Drainer,
    outlet: RingOutlet,
    yields: bool,
}

impl Computing {
    fn run(mut self, lent: &Receiver<Lent>, give_back: &Sender<Returned>) {
        while let Ok(Lent { mut field, mode }) = lent.recv() {
            let lap = self.compute(&mut field, mode);
            if give_back.send(Returned { field, lap }).is_err() {
                return;
            }
        }
    }

    /// Computes until the field is recalled, or a lap of a synchronous run is complete: then it returns true.
    fn compute(&mut self, field: &mut Field, mode: Mode) -> bool {
        let mut turn = Instant::now();
        loop {
            let recalled = self.shared.recalled.load(Ordering::Acquire);
            let mut take = |_: &[NodeId], datagram: &Datagram<'_>| {
                if mode == Mode::Async {
                    field.take(datagram);
                }
            };
            while self.arriving.take(&mut take).is_some() {}
            if recalled {
                return false;
            }
            let lap = match mode {
                Mode::Async => {
                    let Ok(stepped) = field.step_async(&mut self.outlet);
                    match stepped {
                        Stepped::Rows(lap) => lap,
                        Stepped::Rests => {
                            self.shared.rests.store(true, Ordering::Relaxed);
                            std::thread::park_timeout(REST);
                            self.shared.rests.store(false, Ordering::Relaxed);
                            false
                        }
                    }
                }
                Mode::Sync => match field.step_sync(&mut self.outlet) {
                    Ok(true) => return true,
                    Ok(false) => false,
                },
                Mode::Krylov(_) => return false, // never lent
            };
            let bits = field.walk().progress().to_bits();
            self.shared.progress.store(bits, Ordering::Relaxed);
            if self.yields && (lap || turn.elapsed() >= TURN) {
                std::thread::yield_now();
                turn = Instant::now();
            }
        }
    }
}

/// Puts updates and reports into the ring.
struct RingOutlet {
    leaves: Filler,
    began: Instant,
}

impl Carrier for RingOutlet {
    type Error = Infallible;

    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, Infallible> {
        Ok(usize::from(!self.leaves.put(readers, &update)))
    }
}

impl Outlet for RingOutlet {
    fn report(&mut self, report: &LapReport) -> Result<(), Infallible> {
        let payload = report.payload();
        // One that finds no place is lost: the next one is newer.
        self.leaves.put(&[JUDGE], &report.datagram(&payload));
        Ok(())
    }

    fn now_ns(&mut self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}
