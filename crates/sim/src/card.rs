//! A node's network card: to its process a link and a clock.
//!
//! Shared by the process and `net`, which puts frames into the receive ring, sets the time and the number of frames a poll may take, and takes the
//! frames that the process has sent. The transmit ring holds `TRANSMIT_RING_FRAMES` and sends at the port's rate.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::rng::Rng;
use crate::wires::{Port, wire_bytes};
use tsumuji_link::checked::CHECK_BYTES;
use tsumuji_link::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, hand_over,
};
use tsumuji_node::simulated::Clock;
use tsumuji_proto::{Config, Destination, Instant, NodeId};

/// Frames of the transmit ring. Drivers of common network cards keep it short, because priorities do not apply to frames in it.
const TRANSMIT_RING_FRAMES: usize = 64;

/// Most frames that one call takes.
const BATCH_FRAMES: usize = 16;

/// A frame that a process has sent.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) to: Destination,
    /// When its last bit has left the card.
    pub(crate) departure: Instant,
    pub(crate) bytes: Vec<u8>,
}

/// Why the card took no frame in a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its transmit ring is full until then.
    Until(Instant),
    /// Refused at random.
    Deferred,
}

#[derive(Debug)]
struct State {
    caps: LinkCaps,
    me: u16,
    now: Instant,
    ring: VecDeque<(LinkAddr, Vec<u8>)>,
    /// Frames that the present poll may still take from the ring.
    allowed: usize,
    handled: u64,
    port: Port,
    departures: VecDeque<Instant>,
    sent: Vec<Sent>,
    refusal: Option<Refusal>,
    rng: Rng,
    defer_ppm: u32,
    /// Buffers of frames that were taken, for reuse.
    spare: Vec<Vec<u8>>,
}

/// A simulated network card; see the head of this module.
#[derive(Debug, Clone)]
pub struct Card(Rc<RefCell<State>>);

impl Card {
    pub(crate) fn new(
        config: &Config,
        port: Port,
        rng: Rng,
        (checked, defer_ppm): (bool, u32),
    ) -> Self {
        let check_bytes = if checked { CHECK_BYTES } else { 0 };
        Self(Rc::new(RefCell::new(State {
            caps: LinkCaps {
                name: "simulated",
                frame_bytes: config.frame_bytes + check_bytes,
                receive_frames: config.receive_frames,
                burst_frames: BATCH_FRAMES,
                gathers: true,
                broadcast: true,
                lossless: config.lossless,
                damages: checked,
                polls_by_call: false,
            },
            me: config.me.0,
            now: Instant::default(),
            ring: VecDeque::new(),
            allowed: 0,
            handled: 0,
            port,
            departures: VecDeque::new(),
            sent: Vec::new(),
            refusal: None,
            rng,
            defer_ppm,
            spare: Vec::new(),
        })))
    }

    /// Frames in the receive ring.
    pub(crate) fn waiting(&self) -> usize {
        self.0.borrow().ring.len()
    }

    /// A frame reaches the receive ring.
    pub(crate) fn put(&self, from: LinkAddr, frame: &[u8]) {
        let mut state = self.0.borrow_mut();
        let mut bytes = state.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        state.ring.push_back((from, bytes));
    }

    /// Begins a poll that may take so many frames.
    pub(crate) fn begin(&self, now: Instant, frames: usize) {
        let mut state = self.0.borrow_mut();
        (state.now, state.allowed, state.refusal) = (now, frames, None);
    }

    /// Takes the frames that the process has sent, in order, and the reason why it could not send more, if there is one.
    pub(crate) fn take_sent(&self) -> (Vec<Sent>, Option<Refusal>) {
        let mut state = self.0.borrow_mut();
        (std::mem::take(&mut state.sent), state.refusal)
    }

    /// Returns a frame's buffer for reuse.
    pub(crate) fn give_back(&self, bytes: Vec<u8>) {
        self.0.borrow_mut().spare.push(bytes);
    }

    /// Frames that the process has taken in all.
    pub(crate) fn handled(&self) -> u64 {
        self.0.borrow().handled
    }

    /// Drops the frames of the ring, since the process is gone; returns their number.
    pub(crate) fn clear(&self) -> u64 {
        let mut state = self.0.borrow_mut();
        state.ring.drain(..).count() as u64
    }

    /// The address of a node.
    pub(crate) fn addr(node: NodeId) -> LinkAddr {
        LinkAddr::Local(node.0)
    }
}

impl Clock for Card {
    fn now(&self) -> Instant {
        self.0.borrow().now
    }
}

impl State {
    fn room(&mut self) -> usize {
        let now = self.now;
        while self.departures.front().is_some_and(|at| *at <= now) {
            self.departures.pop_front();
        }
        TRANSMIT_RING_FRAMES.saturating_sub(self.departures.len())
    }

    fn send(&mut self, to: Destination, frame: &Frame<'_>) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame.head);
        bytes.extend_from_slice(frame.body);
        let departure = self.port.send(self.now, wire_bytes(bytes.len()));
        self.departures.push_back(departure);
        self.sent.push(Sent {
            to,
            departure,
            bytes,
        });
    }
}

impl Link for Card {
    fn caps(&self) -> LinkCaps {
        self.0.borrow().caps
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Local(self.0.borrow().me)
    }

    fn capacity(&mut self, _: LinkAddr) -> Result<Capacity, LinkError> {
        let state = &mut *self.0.borrow_mut();
        if state.rng.chance(state.defer_ppm) {
            state.refusal.get_or_insert(Refusal::Deferred);
            return Ok(Capacity::NONE);
        }
        let room = state.room();
        if room == 0 {
            state.refusal = state.departures.front().copied().map(Refusal::Until);
        }
        Ok(Capacity {
            frames: room.min(BATCH_FRAMES),
            bytes: usize::MAX,
        })
    }

    fn send<'a>(
        &mut self,
        to: LinkAddr,
        frames: impl Iterator<Item = Frame<'a>> + Clone,
    ) -> Result<usize, LinkError> {
        let state = &mut *self.0.borrow_mut();
        let to = match to {
            LinkAddr::Local(node) => Destination::Peer(NodeId(node)),
            LinkAddr::Broadcast => Destination::Broadcast,
            to => {
                let link = state.caps.name;
                return Err(LinkError::NoSuchPeer { link, to });
            }
        };
        let mut sent = 0;
        for frame in frames {
            if state.room() == 0 {
                break;
            }
            assert!(
                (1..=state.caps.frame_bytes).contains(&frame.bytes()),
                "a frame of {} bytes",
                frame.bytes()
            );
            state.send(to, &frame);
            sent += 1;
        }
        Ok(sent)
    }

    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let mut received = 0;
        while received < max {
            let next = {
                let mut state = self.0.borrow_mut();
                let may = state.allowed > 0;
                may.then(|| state.ring.pop_front()).flatten()
            };
            let Some((from, frame)) = next else {
                break;
            };
            // The body of every other frame is placed, as on links that support placement.
            if received.is_multiple_of(2) {
                hand_over(receiver, from, &frame);
            } else {
                receiver.frame(from, &frame);
            }
            let mut state = self.0.borrow_mut();
            state.allowed -= 1;
            state.handled += 1;
            state.spare.push(frame);
            received += 1;
        }
        Ok(received)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wait(&mut self, _: std::time::Duration) -> Result<(), LinkError> {
        unreachable!("time passes elsewhere")
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}
