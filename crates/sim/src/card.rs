//! A node's network card: to its process a link and a clock.
//!
//! Shared by the process and `net`, which puts frames into the receive ring, sets the time and the number of frames a poll may take, and takes the
//! frames that the process has sent. The transmit ring holds `TRANSMIT_RING_FRAMES` and sends at the port's rate. With `Config::ring_bytes` the card
//! stands for shared memory instead: `rings` limits what it takes, and it has no rate.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use crate::rings::{ALL, Job, Stamp};
use crate::rng::Rng;
use crate::wires::{Port, wire_bytes};
use tsumuji_link::checked::CHECK_BYTES;
use tsumuji_link::{
    Capacity, Coming, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, MayHaveRings,
    Process, Receiver, Rings, hand_over,
};
use tsumuji_node::Bytes;
use tsumuji_node::simulated::Clock;
use tsumuji_proto::{Config, Destination, Duration, Instant, NodeId};

/// Frames of the transmit ring. Drivers of common network cards keep it short, because priorities do not apply to frames in it.
const TRANSMIT_RING_FRAMES: usize = 64;

/// Most frames that one call takes.
const BATCH_FRAMES: usize = 16;

/// How long a process sleeps while a ring of shared memory is full: nothing wakes it when there is room.
const RING_PAUSE: Duration = Duration::from_micros(100);

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
    ring: VecDeque<(LinkAddr, Bytes)>,
    /// Frames that the present poll may still take from the ring.
    allowed: usize,
    port: Port,
    departures: VecDeque<Instant>,
    sent: Vec<Sent>,
    refusal: Option<Refusal>,
    rng: Rng,
    defer_ppm: u32,
    /// 0: the card has no rings.
    ring_bytes: usize,
    job: Rc<RefCell<Job>>,
    /// Of the present process.
    generation: u64,
    /// By node: generation of the process that wrote the frame that was taken last.
    heard: BTreeMap<u16, u64>,
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
        job: Rc<RefCell<Job>>,
    ) -> Self {
        assert!(
            config.ring_bytes == 0 || !checked,
            "frames of rings need no checksum"
        );
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
            port,
            departures: VecDeque::new(),
            sent: Vec::new(),
            refusal: None,
            rng,
            defer_ppm,
            ring_bytes: config.ring_bytes,
            job,
            generation: 0,
            heard: BTreeMap::new(),
        })))
    }

    /// A process begins to use the card.
    pub(crate) fn begin_process(&self) {
        let state = &mut *self.0.borrow_mut();
        let generation = state.job.borrow_mut().begin(state.me);
        state.generation = generation;
        state.heard.clear();
    }

    /// The process has ended.
    pub(crate) fn end_process(&self) {
        let state = self.0.borrow();
        state.job.borrow_mut().end(state.me);
    }

    fn has_rings(&self) -> bool {
        self.0.borrow().ring_bytes > 0
    }

    /// Frames in the receive ring.
    pub(crate) fn waiting(&self) -> usize {
        self.0.borrow().ring.len()
    }

    /// A frame reaches the receive ring.
    pub(crate) fn put(&self, from: LinkAddr, frame: Bytes) {
        self.0.borrow_mut().ring.push_back((from, frame));
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
    /// Frames of the greatest length that it takes now.
    fn room_to(&mut self, to: LinkAddr) -> usize {
        if self.ring_bytes == 0 {
            return self.room();
        }
        match to {
            LinkAddr::Local(node) => self.ring_room(node, self.caps.frame_bytes),
            _ => BATCH_FRAMES, // broadcasts overwrite each other
        }
    }

    fn ring_room(&self, node: u16, frame_bytes: usize) -> usize {
        let job = self.job.borrow();
        job.room((self.generation, node), frame_bytes, self.ring_bytes)
    }

    fn reference_room(&self, node: u16) -> usize {
        let job = self.job.borrow();
        job.reference_room((self.generation, node), self.ring_bytes)
    }

    /// Writes a frame into the ring to that process, which has room for it, or to all.
    fn write(&mut self, to: Destination, mark: (u64, bool, u8), parts: [&[u8]; 3]) {
        let stamp = Stamp {
            from: self.generation,
            to: mark.0,
            is_counted: mark.1,
            head_bytes: mark.2,
        };
        let frame_bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.job.borrow_mut().write(stamp, frame_bytes);
        let [one, two, three] = parts;
        let bytes = [&stamp.bytes()[..], one, two, three].concat();
        self.sent.push(Sent {
            to,
            departure: self.now,
            bytes,
        });
    }

    /// As `write`, of a direct message to that process; returns whether that is the present one, and has room.
    fn write_directly(
        &mut self,
        to: Process,
        (is_counted, head_bytes): (bool, u8),
        parts: [&[u8]; 3],
    ) -> bool {
        let frame_bytes: usize = match head_bytes {
            0 => parts.iter().map(|part| part.len()).sum(),
            head_bytes => usize::from(head_bytes),
        };
        let may = self.is_present(to) && self.ring_room(to.index, frame_bytes) > 0;
        if may {
            let peer = Destination::Peer(NodeId(to.index));
            self.write(peer, (to.generation, is_counted, head_bytes), parts);
        }
        may
    }

    fn is_present(&self, process: Process) -> bool {
        self.job.borrow().generation(process.index) == process.generation
    }

    fn room(&mut self) -> usize {
        let now = self.now;
        while self.departures.front().is_some_and(|at| *at <= now) {
            self.departures.pop_front();
        }
        TRANSMIT_RING_FRAMES.saturating_sub(self.departures.len())
    }

    fn send(&mut self, to: Destination, frame: &Frame<'_>) {
        if self.ring_bytes > 0 {
            let reader = match to {
                Destination::Peer(node) => self.job.borrow().generation(node.0),
                Destination::Broadcast => ALL,
            };
            return self.write(to, (reader, false, 0), [frame.head, frame.body, &[]]);
        }
        let bytes = [frame.head, frame.body].concat();
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

    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        let state = &mut *self.0.borrow_mut();
        if state.rng.chance(state.defer_ppm) {
            state.refusal.get_or_insert(Refusal::Deferred);
            return Ok(Capacity::NONE);
        }
        let room = state.room_to(to);
        if room == 0 && state.ring_bytes > 0 {
            let at = state.now + RING_PAUSE;
            state.refusal = Some(Refusal::Until(at));
        } else if room == 0 {
            state.refusal = state.departures.front().copied().map(Refusal::Until);
        }
        Ok(Capacity {
            frames: room.min(BATCH_FRAMES),
            bytes: usize::MAX,
        })
    }

    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let state = &mut *self.0.borrow_mut();
        let at = to;
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
            if state.room_to(at) == 0 {
                break;
            }
            assert!(
                (1..=state.caps.frame_bytes).contains(&frame.bytes()),
                "a frame of {} bytes",
                frame.bytes()
            );
            state.send(to, frame);
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
            let taken = self.take(from, &frame);
            // The body of every other frame is placed, as on links that support placement.
            match taken {
                Some((0, frame)) if received.is_multiple_of(2) => hand_over(receiver, from, frame),
                Some((0, frame)) => receiver.frame(from, frame),
                Some((head_bytes, frame)) => fetch(receiver, from, frame.split_at(head_bytes)),
                None => {}
            }
            let is_fetched = taken.is_some_and(|(head_bytes, _)| head_bytes > 0);
            let mut state = self.0.borrow_mut();
            state.allowed -= 1;
            received += 1;
            if is_fetched {
                break; // as shared memory does, so that acknowledgements of so much data leave
            }
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

    #[inline]
    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

impl MayHaveRings for Card {
    fn rings(&self) -> Option<&impl Rings> {
        self.has_rings().then_some(self)
    }

    fn rings_mut(&mut self) -> Option<&mut impl Rings> {
        self.has_rings().then_some(self)
    }
}

impl Card {
    /// The frame behind its stamp, and the length of its head if its body is read by reference; `None`: it is not for the present process.
    fn take<'a>(&self, from: LinkAddr, frame: &'a [u8]) -> Option<(usize, &'a [u8])> {
        let state = &mut *self.0.borrow_mut();
        if state.ring_bytes == 0 {
            return Some((0, frame));
        }
        let LinkAddr::Local(node) = from else {
            return None;
        };
        let (stamp, frame) = Stamp::split(frame)?;
        let mut job = state.job.borrow_mut();
        if !job.read(stamp, frame.len(), (node, state.generation)) {
            return None;
        }
        if stamp.to != ALL {
            state.heard.insert(node, stamp.from);
        }
        Some((usize::from(stamp.head_bytes), frame))
    }
}

/// Delivers a frame whose body the receiver reads where its sender has it.
fn fetch(receiver: &mut impl Receiver, from: LinkAddr, (head, body): (&[u8], &[u8])) {
    let coming = Coming {
        from,
        start: head,
        bytes: head.len() + body.len(),
    };
    if let Some(placement) = receiver.placement(Some(coming))
        && placement.head_bytes == head.len()
        && body.len() <= placement.body_bytes.min(placement.place.len())
    {
        placement.place[..body.len()].copy_from_slice(body);
        if receiver.is_expected(from, 0, head, body.len()) && receiver.is_sound(0, head, body.len())
        {
            return receiver.placed(from, head, body.len());
        }
    }
    receiver.bodiless(from, head, body.len());
}

/// The ring seems full or references unwelcome at random, as `defer_ppm` says.
impl Rings for Card {
    fn ring_bytes(&self) -> usize {
        self.0.borrow().ring_bytes
    }

    fn process_at(&self, peer: LinkAddr) -> Option<u64> {
        match peer {
            LinkAddr::Local(node) => Some(self.0.borrow().job.borrow().live_generation(node)),
            _ => None,
        }
    }

    fn heard(&self, peer: LinkAddr) -> Option<Process> {
        let LinkAddr::Local(index) = peer else {
            return None;
        };
        let generation = self.0.borrow().heard.get(&index).copied()?;
        Some(Process { index, generation })
    }

    fn send_counted(
        &mut self,
        to: Process,
        counted: bool,
        parts: [&[u8]; 3],
    ) -> Result<bool, LinkError> {
        let state = &mut *self.0.borrow_mut();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        assert!(bytes <= state.caps.frame_bytes, "a frame of {bytes} bytes");
        Ok(state.write_directly(to, (counted, 0), parts))
    }

    fn counted_room(&mut self, to: Process, frame_bytes: usize) -> usize {
        let state = &mut *self.0.borrow_mut();
        let is_full = state.rng.chance(state.defer_ppm);
        if is_full || !state.is_present(to) {
            return 0;
        }
        state.ring_room(to.index, frame_bytes)
    }

    fn unread(&self, of: Process) -> usize {
        let state = self.0.borrow();
        state.job.borrow().unread(state.generation, of.generation)
    }

    fn reference_room(&mut self, to: Process) -> Option<usize> {
        let state = &mut *self.0.borrow_mut();
        let is_full = state.rng.chance(state.defer_ppm);
        let room = state.reference_room(to.index);
        (state.is_present(to)).then_some(if is_full { 0 } else { room })
    }

    fn send_reference(
        &mut self,
        to: Process,
        counted: bool,
        head: &[u8],
        body: &Bytes,
    ) -> Result<bool, LinkError> {
        let state = &mut *self.0.borrow_mut();
        let head_bytes = u8::try_from(head.len()).expect("a short head");
        Ok(state.reference_room(to.index) >= body.len()
            && state.write_directly(to, (counted, head_bytes), [head, &body[..], &[]]))
    }

    fn set_reference_max(&mut self, bytes: usize) {
        let state = self.0.borrow();
        state.job.borrow_mut().set_reference_max(state.me, bytes);
    }
}

#[cfg(test)]
#[path = "card/tests.rs"]
mod tests;
