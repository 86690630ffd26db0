//! Receive half: which peer to look at, and the handing over of frames.
//!
//! Called by `Shm::recv_burst` and, before a sleep, by `Shm::wait`.
//!
//! The cost of an empty look at N−1 peers is two loads each, of lines that stay in our own cache until a peer writes them, plus
//! one load for the directory. A frame found at the peer that was busy last costs one line fetched from it: the other peers are
//! looked at only every `HOT_CALLS_MAX` calls while it stays busy.

use std::sync::atomic::Ordering;

use super::Shm;
use super::broadcast::Heard;
use super::peers::{Peer, Receiving};
use super::ring::Received;
use crate::{LinkAddr, LinkCounters};

/// Calls in a row that may return with frames of the last busy peer alone.
const HOT_CALLS_MAX: u32 = 4;
/// Frames taken from one peer before the next gets its turn.
const TURN_FRAMES: usize = 16;

impl Shm {
    /// Hands over up to `max` frames, peers in turn.
    #[inline]
    pub(super) fn receive(
        &mut self,
        max: usize,
        on_frame: &mut impl FnMut(LinkAddr, &[u8]),
    ) -> usize {
        if self.hot_calls < HOT_CALLS_MAX {
            let frames = self.take(self.cursor, max.min(TURN_FRAMES), on_frame);
            if frames > 0 {
                self.hot_calls += 1;
                return frames;
            }
        }
        self.receive_from_all(max, on_frame)
    }

    fn receive_from_all(
        &mut self,
        max: usize,
        on_frame: &mut impl FnMut(LinkAddr, &[u8]),
    ) -> usize {
        let live = self.live.len();
        let starved = self.hot_calls >= HOT_CALLS_MAX;
        self.hot_calls = 0;
        let mut frames = 0;
        let mut idle = 0;
        let mut at = self.cursor;
        if starved {
            at += 1;
        }
        while frames < max && idle < live {
            if at >= live {
                at = 0;
            }
            let taken = self.take(at, TURN_FRAMES.min(max - frames), on_frame);
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

    /// Hands over up to `max` frames of the `at`-th living peer.
    #[inline]
    fn take(&mut self, at: usize, max: usize, on_frame: &mut impl FnMut(LinkAddr, &[u8])) -> usize {
        let Some(&node) = self.live.get(at) else {
            return 0;
        };
        let peer = &mut self.peers[usize::from(node)];
        match peer.inbound.as_ref().map(|inbound| inbound.receiving) {
            Some(Receiving::Open) => {}
            Some(Receiving::Waiting) => match peer.open(&self.job.layout, self.life) {
                Ok(true) if self.has_dead_lives => self.free_dead_lives(),
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
        take_open(peer, &mut self.scratch, &mut self.counters, max, on_frame)
    }

    /// Whether anything is there to be received or noticed. The second look of the doorbell handshake.
    pub(super) fn is_ready(&self) -> bool {
        self.job.changes() != self.changes_seen
            || self
                .live
                .iter()
                .filter_map(|&node| self.peers[usize::from(node)].inbound.as_ref())
                .any(|inbound| match inbound.receiving {
                    Receiving::Waiting => inbound.is_started(self.life),
                    Receiving::Open => {
                        inbound.consumer.is_ready(&inbound.lines)
                            || inbound.reader.is_ready(&inbound.words)
                    }
                    Receiving::Broken => false,
                })
    }
}

#[inline]
fn take_open(
    peer: &mut Peer,
    scratch: &mut [u8],
    counters: &mut LinkCounters,
    max: usize,
    on_frame: &mut impl FnMut(LinkAddr, &[u8]),
) -> usize {
    let addr = peer.addr;
    let Some(inbound) = peer.inbound.as_mut() else {
        return 0;
    };
    // Looking again after a single frame would fetch a line that the peer holds for its next one, while that peer waits.
    let max = if inbound.was_empty { max.min(1) } else { max };
    let mut frames = 0;
    let mut broken = false;
    if inbound.broadcast_first {
        broken = !hear(inbound, addr, scratch, counters, &mut frames, on_frame);
    }
    while frames < max && !broken {
        let received = inbound
            .consumer
            .receive(&inbound.lines, |frame| on_frame(addr, frame));
        match received {
            Received::Frame(bytes) => {
                inbound.was_empty = false;
                counters.received_frames += 1;
                counters.received_bytes += bytes as u64;
                frames += 1;
                if let Some(head) = inbound.consumer.head_to_publish(false) {
                    peer.consumed_head.store(head, Ordering::Release);
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
        // Its sender may ask how much was read.
        peer.consumed_head.store(head, Ordering::Release);
        peer.heard = peer.life;
    }
    inbound.broadcast_first = frames >= max;
    while frames < max && !broken {
        let before = frames;
        broken = !hear(inbound, addr, scratch, counters, &mut frames, on_frame);
        if frames == before {
            break;
        }
    }
    if broken {
        declare_broken(peer, counters);
    }
    frames
}

/// Takes one frame of the peer's broadcast ring. `false`: it holds garbage.
#[inline]
fn hear(
    inbound: &mut super::peers::Inbound,
    addr: LinkAddr,
    scratch: &mut [u8],
    counters: &mut LinkCounters,
    frames: &mut usize,
    on_frame: &mut impl FnMut(LinkAddr, &[u8]),
) -> bool {
    match inbound.reader.receive(&inbound.words, scratch) {
        Heard::Nothing => true,
        Heard::Frame { bytes, missed } => {
            counters.overrun_frames = counters.overrun_frames.saturating_add(missed);
            counters.received_frames += 1;
            counters.received_bytes += bytes as u64;
            *frames += 1;
            on_frame(addr, &scratch[..bytes]);
            true
        }
        Heard::Corrupt => false,
    }
}

/// The peer's region holds what no honest process writes. It is left alone until the peer's next life.
#[cold]
fn declare_broken(peer: &mut Peer, counters: &mut LinkCounters) {
    counters.dropped_frames += 1;
    if let Some(inbound) = &mut peer.inbound {
        inbound.receiving = Receiving::Broken;
    }
    tracing::warn!(peer = %peer.addr, life = peer.life, "shared-memory ring holds garbage; ignored until the peer restarts");
}
