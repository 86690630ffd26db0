//! Receive half: frames out of the receive ring, and their chunks back into the fill ring.
//!
//! Called by `Xdp::recv_burst`. A frame in one chunk is lent as it lies in the UMEM. A frame in several chunks (a jumbo frame: a
//! chunk is a page at most) is joined in one buffer of ours and lent from there: one copy. Chunks go back as soon as their frame
//! was handled, the kernel being told once for each batch, so that the fill ring runs empty only if the program is slow.
//!
//! Invariant: between two calls every receive chunk is the kernel's, also if a handler panicked.

use super::JOIN_BYTES_MAX;
use super::ring::{CONTINUED, Consumer, Desc, Producer};
use super::umem::{Received, Umem};
use crate::ether::{self, MacAddr};
use crate::{LinkAddr, LinkCounters};

/// Chunks handled before the kernel is told: often enough that it never waits for them, seldom enough to cost nothing.
const REFILL_CHUNKS: u32 = 32;

/// The rings of the receive side.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) fill: Producer<u64>,
    pub(super) ring: Consumer<Desc>,
    joining: Joining,
}

/// A frame of several chunks, as far as it has arrived.
#[derive(Debug)]
struct Joining {
    bytes: Vec<u8>,
    active: bool,
    /// It is longer than any frame of ours: skip it.
    overlong: bool,
}

impl Rx {
    /// Gives the kernel all receive chunks.
    pub(super) fn new(mut fill: Producer<u64>, ring: Consumer<Desc>, umem: &mut Umem) -> Self {
        let chunks = umem.layout().receive_chunks;
        assert!(fill.size() >= chunks, "the fill ring holds every chunk");
        for chunk in 0..chunks {
            fill.push(umem.give(chunk));
        }
        fill.submit();
        Self {
            fill,
            ring,
            joining: Joining {
                bytes: Vec::with_capacity(JOIN_BYTES_MAX),
                active: false,
                overlong: false,
            },
        }
    }

    /// Whether frames lie in the ring.
    #[inline]
    pub(super) fn has_frames(&mut self) -> bool {
        self.ring.available() > 0
    }

    /// Hands over frames until there are `max`.
    #[inline]
    pub(super) fn receive(
        &mut self,
        umem: &mut Umem,
        counters: &mut LinkCounters,
        own: MacAddr,
        max: usize,
        on_frame: &mut impl FnMut(LinkAddr, &[u8]),
    ) -> usize {
        // What arrives meanwhile is for the next call: that bounds the loop.
        let available = self.ring.available();
        let joining = &mut self.joining;
        let mut round = Round {
            fill: &mut self.fill,
            ring: &mut self.ring,
            umem,
            seen: 0,
            held: None,
        };
        let mut handed = 0;
        for _ in 0..available {
            if handed >= max {
                break;
            }
            let Some((bytes, continued)) = round.next() else {
                // A descriptor that made no sense (the UMEM counts it): its frame cannot be whole.
                joining.overlong |= joining.active;
                continue;
            };
            let whole = if !continued && !joining.active {
                Some(bytes)
            } else {
                joining.add(bytes);
                if continued { None } else { joining.finish() }
            };
            match whole.map(|whole| ether::accept(whole, own)) {
                Some(Ok((from, payload))) => {
                    handed += ether::hand_over(from, payload, counters, on_frame);
                }
                Some(Err(ignored)) => counters.dropped_frames += u64::from(ignored.is_drop()),
                None => counters.dropped_frames += u64::from(!continued),
            }
            round.give_back();
        }
        handed
    }
}

impl Joining {
    fn add(&mut self, bytes: &[u8]) {
        if !self.active {
            self.bytes.clear();
            self.active = true;
        }
        if self.bytes.len() + bytes.len() <= JOIN_BYTES_MAX {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.overlong = true;
        }
    }

    /// Ends a frame; `None`: it is unusable. The bytes stay until the next one begins.
    fn finish(&mut self) -> Option<&[u8]> {
        self.active = false;
        let overlong = std::mem::take(&mut self.overlong);
        (!overlong).then_some(&self.bytes[..])
    }
}

/// One turn through the receive ring. What was seen is settled with the kernel also if a handler panics.
struct Round<'a> {
    fill: &'a mut Producer<u64>,
    ring: &'a mut Consumer<Desc>,
    umem: &'a mut Umem,
    /// Descriptors seen and not yet given back.
    seen: u32,
    /// The chunk that is ours now.
    held: Option<Received>,
}

impl Round<'_> {
    /// The next chunk's bytes, and whether its frame goes on in another.
    #[inline]
    fn next(&mut self) -> Option<(&[u8], bool)> {
        if self.seen == REFILL_CHUNKS {
            self.settle();
        }
        let desc = self.ring.peek(self.seen);
        self.seen += 1;
        let received = self.umem.take(desc)?;
        self.held = Some(received);
        let continued = desc.options & CONTINUED != 0;
        Some((self.umem.received(received), continued))
    }

    #[inline]
    fn give_back(&mut self) {
        if let Some(received) = self.held.take() {
            let pushed = self.fill.push(self.umem.give_back(received));
            debug_assert!(pushed, "the fill ring holds every chunk");
        }
    }

    #[inline]
    fn settle(&mut self) {
        self.fill.submit();
        self.ring.release(self.seen);
        self.seen = 0;
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.give_back();
        self.settle();
    }
}
