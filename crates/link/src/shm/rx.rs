//! Receive half: the order in which peers are checked, and the delivery of frames.
//!
//! Called by `Shm::receive` and, before a sleep, by `Shm::wait`.
//!
//! Checking N−1 peers without frames costs two loads for each, of lines that stay in our own cache until a peer writes them, and one load for the
//! directory. A frame of the peer that was busy last costs one line fetched from it: the other peers are checked only every `hot_calls_max` calls
//! while it stays busy.

use std::sync::atomic::Ordering;

use super::Shm;
use super::broadcast::Heard;
use super::memory::{self, ProcessMemory};
use super::peers::{Peer, Receiving};
use super::ring::{Received, Record, RingRead};
use crate::tuning::TUNING;
use crate::{Coming, HEAD_BYTES_MAX, LinkAddr, LinkCounters, Placement, Receiver};

impl Shm {
    /// Delivers up to `max` frames, peers in turn. The call ends with a body that was read by reference, because the acknowledgement of so much data
    /// leaves between two calls.
    #[inline]
    pub(super) fn take_frames(&mut self, max: usize, receiver: &mut impl Receiver) -> usize {
        let mut frames = 0;
        let is_hot = self.hot_calls < TUNING.shm.hot_calls_max;
        if is_hot {
            frames = self.take(self.cursor, max.min(TUNING.shm.round_frames), receiver);
            self.hot_calls += u32::from(frames > 0);
        }
        if frames == 0 {
            frames = self.receive_from_all(is_hot, max, receiver);
        }
        if self.has_fetched {
            self.has_fetched = false;
            self.ring_bells(); // its sender may sleep until its memory is released
        }
        frames
    }

    /// `is_checked`: the peer that was busy last was just found empty; else it is checked last.
    fn receive_from_all(
        &mut self,
        is_checked: bool,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let live = self.live.len();
        self.hot_calls = 0;
        let mut frames = 0;
        let mut idle = usize::from(is_checked);
        let mut at = self.cursor + 1;
        while frames < max && idle < live && !self.has_fetched {
            if at >= live {
                at = 0;
            }
            let taken = self.take(at, TUNING.shm.round_frames.min(max - frames), receiver);
            if taken == 0 {
                idle += 1;
            } else {
                idle = 0;
                frames += taken;
                self.cursor = at;
            }
            at += 1;
        }
        frames
    }

    /// Delivers up to `max` frames of the `at`-th live peer.
    #[inline]
    fn take(&mut self, at: usize, max: usize, receiver: &mut impl Receiver) -> usize {
        let Some(&node) = self.live.get(at) else {
            return 0;
        };
        let peer = &mut self.peers[usize::from(node)];
        match peer.inbound.as_ref().map(|inbound| inbound.receiving) {
            Some(Receiving::Open) => {}
            Some(Receiving::Waiting) => match peer.open(&self.job.layout, self.generation) {
                Ok(true) if self.has_dead_generations => self.free_dead_generations(),
                Ok(true) => {}
                Ok(false) => return 0,
                Err(()) => {
                    declare_broken(peer, &mut self.counters);
                    return 0;
                }
            },
            Some(Receiving::Broken) | None => return 0,
        }
        let peer = &mut self.peers[usize::from(node)];
        let (frames, has_fetched) =
            take_open(peer, &mut self.scratch, &mut self.counters, max, receiver);
        if has_fetched {
            self.has_fetched = true;
            peer.mark_pending(&mut self.bells_pending, node);
        }
        frames
    }

    /// Whether there are frames or changes to be noticed. The second check of the doorbell handshake.
    pub(super) fn is_ready(&self) -> bool {
        self.job.changes() != self.changes_seen
            || self
                .live
                .iter()
                .filter_map(|&node| self.peers[usize::from(node)].inbound.as_ref())
                .any(|inbound| match inbound.receiving {
                    Receiving::Waiting => inbound.is_started(self.generation),
                    Receiving::Open => {
                        inbound.consumer.is_ready(&inbound.lines)
                            || inbound.reader.is_ready(&inbound.words)
                    }
                    Receiving::Broken => false,
                })
    }
}

/// How many frames were delivered, and whether the last had a body by reference.
#[inline]
fn take_open(
    peer: &mut Peer,
    scratch: &mut [u8],
    counters: &mut LinkCounters,
    max: usize,
    receiver: &mut impl Receiver,
) -> (usize, bool) {
    let addr = peer.addr;
    let Some(inbound) = peer.inbound.as_mut() else {
        return (0, false);
    };
    // Checking again after a single frame would fetch a line that the peer holds for its next one, while that peer waits.
    let max = if inbound.was_empty { max.min(1) } else { max };
    let (mut frames, mut has_fetched) = (0, false);
    let mut broken = false;
    if inbound.broadcast_first {
        broken = !hear(inbound, addr, scratch, counters, &mut frames, receiver);
    }
    while frames < max && !broken && !has_fetched {
        let memory = inbound.memory.as_ref();
        let (mut body_bytes, mut is_fetched) = (0, true);
        let received = inbound.consumer.receive(&inbound.lines, |record| {
            if !record.refers {
                hand_over(&record, addr, scratch, receiver);
                return true;
            }
            let Some((head, reference)) = memory::split(record.copy_whole(scratch)) else {
                return false;
            };
            (body_bytes, has_fetched) = (reference.1, true);
            is_fetched = fetch(head, reference, memory, addr, receiver);
            true
        });
        match received {
            Received::Frame(bytes) => {
                inbound.was_empty = false;
                counters.received_frames += 1;
                counters.received_bytes += (bytes + body_bytes) as u64;
                frames += 1;
                if let Some(head) = inbound.consumer.head_to_publish(false) {
                    peer.consumed_head.store(head, Ordering::Release);
                }
                if !is_fetched {
                    // If this body cannot be read, no other can: from now on the sender is to copy them.
                    inbound.memory = None;
                    peer.consumed_reads.store(0, Ordering::Release);
                }
            }
            Received::Empty => {
                inbound.was_empty = true;
                break;
            }
            Received::Corrupt => broken = true,
        }
    }
    if let Some(head) = inbound.consumer.head_to_publish(true) {
        // The sender may ask how much was read.
        peer.consumed_head.store(head, Ordering::Release);
    }
    if frames > 0 {
        peer.heard = peer.generation;
    }
    inbound.broadcast_first = frames >= max;
    while frames < max && !broken && !has_fetched {
        let before = frames;
        broken = !hear(inbound, addr, scratch, counters, &mut frames, receiver);
        if frames == before {
            break;
        }
    }
    if broken {
        declare_broken(peer, counters);
    }
    (frames, has_fetched)
}

/// Delivers a copy of a frame, so that later writes of its sender do not matter. A long frame is copied to its place.
#[inline]
fn hand_over<M: RingRead>(
    record: &Record<'_, M>,
    addr: LinkAddr,
    scratch: &mut [u8],
    receiver: &mut impl Receiver,
) {
    if record.bytes >= TUNING.shm.placed_bytes && place(record, addr, scratch, receiver) {
        return;
    }
    receiver.frame(addr, record.copy_whole(scratch));
}

/// Copies a frame's body to the receiver's place; `false`: no place is named, or it is for another frame.
fn place<M: RingRead>(
    record: &Record<'_, M>,
    addr: LinkAddr,
    scratch: &mut [u8],
    receiver: &mut impl Receiver,
) -> bool {
    let start = &mut scratch[..HEAD_BYTES_MAX];
    record.copy(0, start);
    let coming = Coming {
        from: addr,
        start,
        bytes: record.bytes,
    };
    let Some(Placement {
        head_bytes,
        body_bytes: most,
        place,
    }) = receiver.placement(Some(coming))
    else {
        return false;
    };
    let body_bytes = record.bytes.saturating_sub(head_bytes);
    if head_bytes > HEAD_BYTES_MAX || body_bytes > most.min(place.len()) {
        return false;
    }
    record.copy(head_bytes, &mut place[..body_bytes]);
    let head = &scratch[..head_bytes];
    let is_there =
        receiver.is_expected(addr, 0, head, body_bytes) && receiver.is_sound(0, head, body_bytes);
    if is_there {
        receiver.placed(addr, head, body_bytes);
    }
    is_there
}

/// Reads a body sent by reference into the receiver's place. `false`: it cannot be read, or there is no place for it.
fn fetch(
    head: &[u8],
    (address, bytes): (u64, usize),
    memory: Option<&ProcessMemory>,
    addr: LinkAddr,
    receiver: &mut impl Receiver,
) -> bool {
    let coming = Coming {
        from: addr,
        start: head,
        bytes: head.len() + bytes,
    };
    let placement = receiver.placement(Some(coming));
    if let (Some(memory), Some(placement)) = (memory, placement)
        && placement.head_bytes == head.len()
        && bytes <= placement.body_bytes.min(placement.place.len())
        && memory.read(address, &mut placement.place[..bytes])
        && receiver.is_expected(addr, 0, head, bytes)
        && receiver.is_sound(0, head, bytes)
    {
        receiver.placed(addr, head, bytes);
        return true;
    }
    receiver.bodiless(addr, head, bytes);
    false
}

/// Takes one frame of the peer's broadcast ring. `false`: the ring holds garbage.
#[inline]
fn hear(
    inbound: &mut super::peers::Inbound,
    addr: LinkAddr,
    scratch: &mut [u8],
    counters: &mut LinkCounters,
    frames: &mut usize,
    receiver: &mut impl Receiver,
) -> bool {
    match inbound.reader.receive(&inbound.words, scratch) {
        Heard::Nothing => true,
        Heard::Frame { bytes, missed } => {
            counters.overrun_frames = counters.overrun_frames.saturating_add(missed);
            counters.received_frames += 1;
            counters.received_bytes += bytes as u64;
            *frames += 1;
            receiver.frame(addr, &scratch[..bytes]);
            true
        }
        Heard::Corrupt => false,
    }
}

/// Marks a peer whose region holds garbage. It is ignored until its next generation.
#[cold]
fn declare_broken(peer: &mut Peer, counters: &mut LinkCounters) {
    counters.dropped_frames += 1;
    if let Some(inbound) = &mut peer.inbound {
        inbound.receiving = Receiving::Broken;
    }
    tracing::warn!(peer = %peer.addr, generation = peer.generation, "shared-memory ring holds garbage; ignored until the peer restarts");
}
