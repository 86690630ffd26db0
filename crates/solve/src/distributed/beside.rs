//! A worker's relaxation on a thread beside the one that polls: receiving, computing and transmitting on two cores, as RELAX divides a worker.
//!
//! Owned by `serve`. The worker's numbers ([`Field`]) are handed over, and recalled when a lap of a synchronous run is complete. What arrives meanwhile, and
//! what is to leave, goes through two rings; their packets go round, so that no frame allocates memory.
//!
//! Invariant: an endpoint belongs to the polling thread alone.

use std::convert::Infallible;
use std::time::Instant;

use tsumuji_board::Carrier;
use tsumuji_node::{Stepped, Work};
use tsumuji_wire::{Datagram, NodeId};

use super::config::Mode;
use super::field::{Field, JUDGE, Outlet};
use super::message::LapReport;

/// Datagrams that wait in one direction. When there are more, the computing thread finds no slot, as if the link had none, and the polling thread drops
/// what arrives, as a full link does.
const RING: usize = 256;

/// A copy of a datagram.
#[derive(Debug)]
pub(super) struct Packet {
    /// Where it goes; empty for one that arrived.
    pub(super) to: Vec<NodeId>,
    pub(super) head: Datagram<'static>,
    pub(super) payload: Vec<u8>,
}

impl Packet {
    pub(super) const EMPTY: Self = Self {
        to: Vec::new(),
        head: Datagram::EMPTY,
        payload: Vec::new(),
    };

    /// Makes it a copy that goes to `to`.
    pub(super) fn fill(&mut self, to: &[NodeId], datagram: &Datagram<'_>) {
        self.to.clear();
        self.to.extend_from_slice(to);
        self.payload.clear();
        self.payload.extend_from_slice(datagram.payload);
        self.head = Datagram {
            payload: &[],
            ..*datagram
        };
    }

    pub(super) fn datagram(&self) -> Datagram<'_> {
        Datagram {
            payload: &self.payload,
            ..self.head
        }
    }
}

/// One end of a ring. At one packets are filled, at the other they are drained, and go back.
struct End {
    gives: rtrb::Producer<Packet>,
    takes: rtrb::Consumer<Packet>,
}

/// The end for `fill`, and the end for `drain`.
fn ring() -> (End, End) {
    let (full_in, full_out) = rtrb::RingBuffer::new(RING);
    let (mut empty_in, empty_out) = rtrb::RingBuffer::new(RING);
    while empty_in.push(Packet::EMPTY).is_ok() {}
    let end = |gives, takes| End { gives, takes };
    (end(full_in, empty_out), end(empty_in, full_out))
}

impl End {
    /// Puts in a copy; false: the ring is full.
    fn fill(&mut self, to: &[NodeId], datagram: &Datagram<'_>) -> bool {
        let Ok(mut packet) = self.takes.pop() else {
            return false;
        };
        packet.fill(to, datagram);
        self.gives.push(packet).is_ok() // there are no more packets than places
    }

    /// Takes out the oldest packet.
    fn drain<T>(&mut self, with: impl FnOnce(&[NodeId], &Datagram<'_>) -> T) -> Option<T> {
        let packet = self.takes.pop().ok()?;
        let result = with(&packet.to, &packet.datagram());
        let _ = self.gives.push(packet); // there are no more packets than places
        Some(result)
    }
}

/// The polling thread's side.
pub(super) struct Beside {
    pub(super) laps: tsumuji_node::Beside<Handover>,
    arrived: End,
    leaving: End,
    /// Arrived datagrams for which the ring had no place, and leaving ones for which the link had none, since a field came back.
    dropped: u64,
}

impl Beside {
    /// `began`: the origin of all times of this worker.
    pub(super) fn new(began: Instant) -> Self {
        let (arrived, arriving) = ring();
        let (leaves, leaving) = ring();
        Self {
            laps: tsumuji_node::Beside::new(Ends {
                arriving,
                leaves,
                began,
            }),
            arrived,
            leaving,
            dropped: 0,
        }
    }

    /// Gives a datagram that arrived to the computing thread.
    pub(super) fn give(&mut self, datagram: &Datagram<'_>) {
        if !self.arrived.fill(&[], datagram) {
            self.dropped += 1;
        }
        self.laps.wake();
    }

    /// Takes the oldest datagram that is to leave; `send` returns how many copies found no transmit slot.
    pub(super) fn take_leaving<E>(
        &mut self,
        send: impl FnOnce(&[NodeId], &Datagram<'_>) -> Result<usize, E>,
    ) -> Result<bool, E> {
        let refused = self.leaving.drain(send).transpose()?;
        self.dropped += refused.unwrap_or(0) as u64;
        Ok(refused.is_some())
    }

    /// The field that came back, with what this thread has counted, and whether a lap of a synchronous run is complete.
    pub(super) fn returned(&mut self, (handover, laps): (Handover, f64)) -> (Field, bool) {
        let Handover { mut field, lap, .. } = handover;
        field.refused += std::mem::take(&mut self.dropped);
        field.laps_beside += laps;
        (field, lap)
    }
}

/// A field on its way between the threads.
#[derive(Debug)]
pub(super) struct Handover {
    field: Field,
    mode: Mode,
    /// A lap of a synchronous run is complete.
    lap: bool,
}

impl Handover {
    pub(super) fn new(field: Field, mode: Mode) -> Self {
        let lap = false;
        Self { field, mode, lap }
    }
}

impl Work for Handover {
    type Ends = Ends;

    fn take_arrived(&mut self, ends: &mut Ends, _: bool) {
        if ends.arriving.takes.is_empty() {
            return;
        }
        let began = ends.now_ns();
        let mut take = |_: &[NodeId], datagram: &Datagram<'_>| {
            if self.mode == Mode::Async {
                self.field.take(datagram);
            }
        };
        while ends.arriving.drain(&mut take).is_some() {}
        self.field.exchanged(ends.now_ns() - began);
    }

    fn step_with(&mut self, ends: &mut Ends) -> Stepped {
        let Ok(stepped) = match self.mode {
            Mode::Async => self.field.step_async(ends),
            Mode::Sync => (self.field.step_sync(ends)).map(|lap| {
                self.lap = lap;
                if lap {
                    Stepped::Ended
                } else {
                    Stepped::Again(false)
                }
            }),
            Mode::Krylov(_) => Ok(Stepped::Ended), // never handed over
        };
        stepped
    }

    fn done(&self) -> f64 {
        self.field.walk().progress()
    }

    fn useful(&self) -> f64 {
        self.field.fresh_laps()
    }
}

/// The computing thread's ends of the rings. Updates and reports leave by them.
pub(super) struct Ends {
    arriving: End,
    leaves: End,
    began: Instant,
}

impl Carrier for Ends {
    type Error = Infallible;

    fn update(&mut self, readers: &[NodeId], update: Datagram<'_>) -> Result<usize, Infallible> {
        Ok(usize::from(!self.leaves.fill(readers, &update)))
    }
}

impl Outlet for Ends {
    fn report(&mut self, report: &LapReport) -> Result<(), Infallible> {
        let payload = report.payload();
        // One that finds no place is lost: the next one is newer.
        self.leaves.fill(&[JUDGE], &report.datagram(&payload));
        Ok(())
    }

    fn now_ns(&mut self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Nanoseconds that a thread takes to drain a datagram of `elements` out of the ring that another thread has filled, and to take it into its copy of x.
#[cfg(feature = "simulated")]
pub(super) fn handover_ns(elements: usize) -> u64 {
    use std::sync::Barrier;
    use tsumuji_board::{Board, Lap};

    use super::message::BOARD_CHANNEL;

    const ROUNDS: u32 = 20;
    let (mut fills, mut drains) = ring();
    let gate = Barrier::new(2);
    let payload = vec![0; elements * size_of::<f64>()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lap = Lap::FIRST;
            for _ in 0..ROUNDS {
                for place in 0..RING {
                    let datagram = Datagram {
                        source: NodeId(1),
                        channel_id: BOARD_CHANNEL,
                        lap: lap.get(),
                        key: (place * elements) as u32,
                        payload: &payload,
                        ..Datagram::EMPTY
                    };
                    fills.fill(&[], &datagram);
                }
                lap = lap.next();
                gate.wait(); // it is full
                gate.wait(); // it is empty
            }
        });
        let owned = vec![0..0, 0..RING * elements, 0..0];
        let mut board = Board::private(BOARD_CHANNEL, NodeId(2), owned).expect("sound ranges");
        let (mut taken, mut spent_ns) = (0, 0);
        for _ in 0..ROUNDS {
            gate.wait();
            let began = Instant::now();
            let mut take = |_: &[NodeId], datagram: &Datagram<'_>| {
                taken += u64::from(board.apply(datagram).is_some());
            };
            while drains.drain(&mut take).is_some() {}
            spent_ns += began.elapsed().as_nanos() as u64;
            gate.wait();
        }
        assert_eq!(taken, u64::from(ROUNDS) * RING as u64, "each is newer");
        spent_ns / taken
    })
}
