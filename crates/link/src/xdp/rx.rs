//! Receive half: takes frames out of the receive ring, and returns their chunks to the fill ring.
//!
//! Called by `Xdp::receive`. A frame in one chunk is delivered from the UMEM. A frame in several chunks (a jumbo frame: a chunk is a page at most) is
//! copied straight to its place if the receiver expects it; else it is joined in one buffer of ours and delivered from there: one copy more. Chunks
//! are returned as soon as their frame was delivered, and the kernel is told once for each batch, so that the fill ring runs empty only if the
//! program is slow.
//!
//! Invariant: between two calls every receive chunk is the kernel's, also if a handler panicked.

use super::JOIN_BYTES_MAX;
use super::ring::{CONTINUED, Consumer, Desc, Producer};
use super::umem::{Received, Umem};
use crate::ether::{self, LEAD_BYTES, LENGTH_BYTES, MacAddr};
use crate::tuning::TUNING;
use crate::{HEAD_BYTES_MAX, LinkAddr, LinkCounters, Receiver};

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
    /// It is longer than any frame of ours, or incomplete: skip it.
    spoilt: bool,
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
                spoilt: false,
            },
        }
    }

    /// Whether frames lie in the ring.
    #[inline]
    pub(super) fn has_frames(&mut self) -> bool {
        self.ring.available() > 0
    }

    /// Delivers frames of ours until there are `max`; without `own` Ethernet frames, for whatever station.
    #[inline]
    pub(super) fn receive(
        &mut self,
        umem: &mut Umem,
        counters: &mut LinkCounters,
        own: Option<MacAddr>,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        // Frames that arrive meanwhile are for the next call: that bounds the loop.
        let mut left = self.ring.available();
        let joining = &mut self.joining;
        let mut round = Round {
            fill: &mut self.fill,
            ring: &mut self.ring,
            umem,
            seen: 0,
            held: None,
        };
        let mut handed = 0;
        while left > 0 && handed < max {
            if let Some(chunks) = round.long_frame(left, joining) {
                left -= chunks;
                handed += round.receive_long(chunks, joining, own, counters, receiver);
                continue;
            }
            left -= 1;
            let Some((bytes, continued)) = round.next() else {
                // An impossible descriptor (the UMEM counts it): its frame cannot be whole.
                joining.spoilt |= joining.active;
                continue;
            };
            let whole = if !continued && !joining.active {
                Some(bytes)
            } else {
                joining.add(bytes);
                if continued { None } else { joining.finish() }
            };
            match whole {
                Some(whole) => handed += hand_over(whole, own, counters, receiver),
                None => counters.dropped_frames += u64::from(!continued),
            }
            round.give_back();
        }
        handed
    }
}

/// Delivers the content of an Ethernet frame; returns the number of our frames. Without `own` it delivers the Ethernet frame itself.
#[inline]
fn hand_over(
    whole: &[u8],
    own: Option<MacAddr>,
    counters: &mut LinkCounters,
    receiver: &mut impl Receiver,
) -> usize {
    let Some(own) = own else {
        receiver.frame(LinkAddr::Broadcast, whole);
        return 1;
    };
    match ether::accept(whole, own) {
        Ok((from, payload)) => ether::hand_over(from, payload, counters, receiver),
        Err(ignored) => {
            counters.dropped_frames += u64::from(ignored.is_drop());
            0
        }
    }
}

/// A placed frame that is not sound, joined in one piece.
#[cold]
fn rejoined(head: &[u8], body_bytes: usize, receiver: &mut impl Receiver) -> Option<Vec<u8>> {
    let placement = receiver.placement(None)?; // nothing was delivered since, so it is the same place
    Some([head, placement.place.get(..body_bytes)?].concat())
}

/// A frame of ours whose body the receiver expects in its place.
struct Expected {
    from: MacAddr,
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    body_bytes: usize,
}

impl Expected {
    /// The first frame in an Ethernet frame that begins with `chunk` and continues behind it. `None`: the receiver does not expect it.
    fn find(chunk: &[u8], own: Option<MacAddr>, receiver: &mut impl Receiver) -> Option<Self> {
        let head_bytes = receiver.placement(None)?.head_bytes;
        let (from, payload) = ether::accept(chunk, own?).ok()?;
        let (length, frame) = payload.split_first_chunk::<LENGTH_BYTES>()?;
        let bytes = usize::from(u16::from_le_bytes(*length));
        let head = frame.get(..head_bytes)?;
        let body_bytes = bytes.checked_sub(head_bytes)?;
        let goes_on = bytes > frame.len();
        if !goes_on || !receiver.is_expected(LinkAddr::Ether(from), 0, head, body_bytes) {
            return None;
        }
        let mut copied = [0; HEAD_BYTES_MAX];
        copied.get_mut(..head_bytes)?.copy_from_slice(head);
        Some(Self {
            from,
            head: copied,
            head_bytes,
            body_bytes,
        })
    }

    /// Offset of its body in the Ethernet frame.
    fn body_at(&self) -> usize {
        LEAD_BYTES + self.head_bytes
    }
}

impl Joining {
    fn begin(&mut self) {
        self.bytes.clear();
        (self.active, self.spoilt) = (true, false);
    }

    /// Copies into `place`, which is shortened to what is left of it, and joins the rest. `false`: it is too long.
    #[inline]
    fn take(&mut self, bytes: &[u8], place: &mut &mut [u8]) -> bool {
        let (placed, joined) = bytes.split_at(bytes.len().min(place.len()));
        let (filled, rest) = std::mem::take(place).split_at_mut(placed.len());
        filled.copy_from_slice(placed);
        *place = rest;
        let fits = self.bytes.len() + joined.len() <= JOIN_BYTES_MAX;
        if fits {
            self.bytes.extend_from_slice(joined);
        }
        fits
    }

    /// Joins a chunk of a frame whose chunks come in several calls.
    fn add(&mut self, bytes: &[u8]) {
        if !self.active {
            self.begin();
        }
        self.spoilt |= !self.take(bytes, &mut &mut [][..]);
    }

    /// Ends a frame; `None`: it is unusable. The bytes stay until the next one begins.
    fn finish(&mut self) -> Option<&[u8]> {
        self.active = false;
        let spoilt = std::mem::take(&mut self.spoilt);
        (!spoilt).then_some(&self.bytes[..])
    }
}

/// One pass through the receive ring. Descriptors that were read are returned to the kernel also if a handler panics.
struct Round<'a> {
    fill: &'a mut Producer<u64>,
    ring: &'a mut Consumer<Desc>,
    umem: &'a mut Umem,
    /// Descriptors read and not yet returned.
    seen: u32,
    /// The chunk that is ours now.
    held: Option<Received>,
}

impl Round<'_> {
    /// The next chunk's bytes, and whether its frame continues in another.
    #[inline]
    fn next(&mut self) -> Option<(&[u8], bool)> {
        if self.seen == TUNING.xdp.refill_chunks {
            self.settle();
        }
        let desc = self.ring.peek(self.seen);
        self.seen += 1;
        let received = self.umem.take(desc)?;
        self.held = Some(received);
        let continued = desc.options & CONTINUED != 0;
        Some((self.umem.received(received), continued))
    }

    /// Number of chunks of the next frame, if it has several, all are among the `left` that are there, and none was read before.
    #[inline]
    fn long_frame(&self, left: u32, joining: &Joining) -> Option<u32> {
        let goes_on = |ahead| self.ring.peek(self.seen + ahead).options & CONTINUED != 0;
        if joining.active || !goes_on(0) {
            return None;
        }
        (1..left)
            .find(|&ahead| !goes_on(ahead))
            .map(|last| last + 1)
    }

    /// Takes a frame of several chunks: its body goes to the receiver's place, or all of it is joined.
    fn receive_long(
        &mut self,
        chunks: u32,
        joining: &mut Joining,
        own: Option<MacAddr>,
        counters: &mut LinkCounters,
        receiver: &mut impl Receiver,
    ) -> usize {
        // Until the last chunk was read: if the receiver panics, the rest is not taken for a frame of its own.
        joining.begin();
        joining.spoilt = true;
        let first = self.next().map_or(&[][..], |(bytes, _)| bytes);
        let expected = Expected::find(first, own, receiver);
        let place = expected.as_ref().and_then(|expected| {
            let placement = receiver.placement(None)?;
            placement.place.get_mut(..expected.body_bytes)
        });
        let from_byte = match (&expected, &place) {
            (Some(expected), Some(_)) => expected.body_at(),
            _ => 0,
        };
        let is_placed = place.is_some();
        let mut rest = place.unwrap_or_default();
        let mut is_whole = !first.is_empty() && joining.take(&first[from_byte..], &mut rest);
        self.give_back();
        for _ in 1..chunks {
            is_whole &= match self.next() {
                Some((bytes, _)) => joining.take(bytes, &mut rest),
                None => false,
            };
            self.give_back();
        }
        is_whole &= rest.is_empty();
        joining.spoilt = !is_whole;
        match (joining.finish(), expected.filter(|_| is_placed)) {
            (None, _) => {
                counters.dropped_frames += 1;
                0
            }
            (Some(whole), None) => hand_over(whole, own, counters, receiver),
            (Some(joined), Some(expected)) => {
                let (head, from) = (&expected.head[..expected.head_bytes], expected.from);
                counters.received_frames += 1;
                counters.received_bytes += (head.len() + expected.body_bytes) as u64;
                let from_addr = LinkAddr::Ether(from);
                if receiver.is_sound(0, head, expected.body_bytes) {
                    receiver.placed(from_addr, head, expected.body_bytes);
                } else if let Some(frame) = rejoined(head, expected.body_bytes, receiver) {
                    receiver.frame(from_addr, &frame);
                }
                1 + ether::hand_over(from, joined, counters, receiver)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::super::ring::plain::PlainRing;
    use super::super::umem::{HEADROOM_BYTES, Layout};
    use super::*;
    use crate::{Coming, Placement, each};

    const LAYOUT: Layout = Layout {
        chunk_bytes: 2048,
        receive_chunks: 16,
        slots: 1,
        chunks_per_slot: 1,
    };
    const ME: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
    const HEAD: [u8; 4] = *b"head";

    /// The receive half, and the kernel's ends of its rings.
    struct Bench {
        rx: Rx,
        umem: Umem,
        counters: LinkCounters,
        fill: Consumer<u64>,
        ring: Producer<Desc>,
    }

    impl Bench {
        fn new() -> Self {
            let (fill, ring) = (PlainRing::new(16, 7), PlainRing::new(16, u32::MAX - 3));
            let mut umem = Umem::new(LAYOUT).expect("memory");
            Self {
                rx: Rx::new(fill.producer_end(), ring.consumer_end(), &mut umem),
                umem,
                counters: LinkCounters::default(),
                fill: fill.consumer_end(),
                ring: ring.producer_end(),
            }
        }

        /// Plays the kernel: receives `part` of an Ethernet frame; `goes_on`: not its last.
        fn part(&mut self, part: &[u8], goes_on: bool) {
            assert!(self.fill.available() > 0, "a chunk to fill");
            let addr = self.fill.peek(0) + HEADROOM_BYTES as u64;
            self.fill.release(1);
            self.umem.receive_for_test(addr, part);
            assert!(self.ring.push(Desc {
                addr,
                bytes: part.len() as u32,
                options: if goes_on { CONTINUED } else { 0 },
            }));
            self.ring.submit();
        }

        fn frame(&mut self, frame: &[u8]) {
            let parts: Vec<_> = frame.chunks(1700).collect();
            for (index, part) in parts.iter().enumerate() {
                self.part(part, index + 1 < parts.len());
            }
        }

        fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> usize {
            let Self { rx, umem, .. } = self;
            let handed = rx.receive(umem, &mut self.counters, Some(ME), max, receiver);
            assert_eq!(umem.accounts().receive_ours, 0, "all chunks are given back");
            handed
        }
    }

    /// An Ethernet frame with frames of ours.
    fn ethernet(frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0; ether::HEADER_BYTES];
        ether::write_header(&mut bytes, ME, PEER);
        for frame in frames {
            bytes.extend((frame.len() as u16).to_le_bytes());
            bytes.extend_from_slice(frame);
        }
        bytes
    }

    fn data(bytes: usize, seed: u8) -> Vec<u8> {
        let body = (0..bytes).map(|at| (at / 3) as u8 ^ seed);
        HEAD.into_iter().chain(body).collect()
    }

    /// A receiver that expects frames that begin with `HEAD`, and assembles their bodies in order.
    #[derive(Default)]
    struct Taker {
        place: Vec<u8>,
        refuses: bool,
        doubts: bool,
        panics: bool,
        placed: Vec<usize>,
        frames: Vec<Vec<u8>>,
    }

    impl Receiver for Taker {
        fn frame(&mut self, from: LinkAddr, frame: &[u8]) {
            assert_eq!(from, LinkAddr::Ether(PEER));
            self.frames.push(frame.to_vec());
        }

        fn placement(&mut self, _: Option<Coming<'_>>) -> Option<Placement<'_>> {
            (!self.place.is_empty()).then_some(Placement {
                head_bytes: HEAD.len(),
                body_bytes: 6000,
                place: &mut self.place,
            })
        }

        fn is_expected(&mut self, _: LinkAddr, index: usize, head: &[u8], body: usize) -> bool {
            assert!(!self.panics, "as the test wishes");
            !self.refuses && index == 0 && head == HEAD && body == 6000
        }

        fn is_sound(&mut self, _: usize, _: &[u8], _: usize) -> bool {
            !self.doubts
        }

        fn placed(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
            assert_eq!((from, head), (LinkAddr::Ether(PEER), &HEAD[..]));
            self.placed.push(body_bytes);
        }
    }

    fn taker() -> Taker {
        Taker {
            place: vec![0; 6000],
            ..Taker::default()
        }
    }

    /// An expected frame of several chunks is placed, other frames in its Ethernet frame are delivered, and so are later ones.
    #[test]
    fn expected_frames_land() {
        let (mut bench, mut taker) = (Bench::new(), taker());
        let (long, unexpected) = (data(6000, 9), data(5000, 1));
        bench.frame(&ethernet(&[&long, b"behind", &[7; 300]]));
        bench.frame(&ethernet(&[&unexpected, b"more"]));
        bench.frame(&ethernet(&[b"short"]));
        assert_eq!(bench.receive(64, &mut taker), 6);
        assert_eq!(taker.placed, [6000]);
        assert_eq!(taker.place, long[HEAD.len()..]);
        let frames: [&[u8]; 5] = [b"behind", &[7; 300], &unexpected, b"more", b"short"];
        assert_eq!(taker.frames, frames);
        let counters = bench.counters;
        assert_eq!((counters.received_frames, counters.dropped_frames), (6, 0));
    }

    /// A frame that is not sound in its place is delivered by `frame`, and so are others in its Ethernet frame.
    #[test]
    fn doubted_frames_do_not_land() {
        let (mut bench, mut taker) = (Bench::new(), taker());
        taker.doubts = true;
        let long = data(6000, 9);
        bench.frame(&ethernet(&[&long, b"behind"]));
        assert_eq!(bench.receive(64, &mut taker), 2);
        assert!(taker.placed.is_empty());
        assert_eq!(taker.frames, [&long[..], b"behind"]);
    }

    /// Where nothing is expected, or the place is too small, long frames are joined.
    #[test]
    fn others_are_joined() {
        let long = data(6000, 3);
        for (place_bytes, refuses) in [(0, false), (5999, false), (6000, true)] {
            let (mut bench, mut taker) = (Bench::new(), taker());
            taker.place.resize(place_bytes, 0);
            taker.refuses = refuses;
            bench.frame(&ethernet(&[&long, b"behind"]));
            assert_eq!(bench.receive(64, &mut taker), 2);
            assert_eq!(taker.frames, [&long[..], b"behind"], "{place_bytes}");
            assert!(taker.placed.is_empty());
        }
    }

    /// A frame that is shorter than its stated length is dropped, expected or not, and the next one arrives.
    #[test]
    fn cut_frames_are_dropped() {
        for expects in [true, false] {
            let (mut bench, mut taker) = (Bench::new(), taker());
            taker.refuses = !expects;
            let whole = ethernet(&[&data(6000, 5)]);
            bench.frame(&whole[..whole.len() - 1]);
            bench.frame(&ethernet(&[b"next"]));
            assert_eq!(bench.receive(64, &mut taker), 1);
            assert_eq!(taker.frames, [b"next"]);
            assert!(taker.placed.is_empty());
            assert_eq!(bench.counters.dropped_frames, 1);
        }
    }

    /// Chunks of one frame may come one at a time, and no call delivers more frames than `max`.
    #[test]
    fn chunks_may_come_singly() {
        let (mut bench, mut taker) = (Bench::new(), taker());
        let long = data(6000, 5);
        let whole = ethernet(&[&long]);
        for (index, part) in whole.chunks(1700).enumerate() {
            bench.part(part, index < 3);
            assert_eq!(bench.receive(1, &mut taker), usize::from(index == 3));
        }
        bench.frame(&whole);
        bench.frame(&ethernet(&[b"a"]));
        bench.frame(&ethernet(&[b"b"]));
        for count in 1..=3 {
            assert_eq!(bench.receive(1, &mut taker), 1);
            assert_eq!(taker.placed.len() + taker.frames.len(), 1 + count);
        }
        assert_eq!(bench.receive(1, &mut taker), 0);
        assert_eq!(taker.frames, [&long[..], b"a", b"b"]);
    }

    /// A frame longer than any of ours is dropped, and so is the rest of a frame whose receiver panicked.
    #[test]
    fn overlong_and_abandoned_frames_are_dropped() {
        let (mut bench, mut taker) = (Bench::new(), taker());
        for _ in 0..5 {
            for _ in 0..10 {
                bench.part(&[1; 1700], true);
            }
            assert_eq!(bench.receive(64, &mut taker), 0);
        }
        bench.part(&[1; 100], false);
        assert_eq!(bench.receive(64, &mut taker), 0);
        assert_eq!(bench.counters.dropped_frames, 1);

        taker.panics = true;
        // All but the first chunk would be valid frames by themselves.
        let mut whole = ethernet(&[&data(1700, 0)]);
        whole.truncate(1700);
        for goes_on in [true, true, false] {
            bench.part(&whole, goes_on);
        }
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bench.receive(64, &mut taker);
        }));
        assert!(caught.is_err());
        bench.frame(&ethernet(&[b"next"]));
        let mut seen = Vec::new();
        bench.receive(64, &mut each(|_, frame: &[u8]| seen.push(frame.to_vec())));
        assert_eq!(seen, [b"next"]);
        assert_eq!(bench.counters.dropped_frames, 2);
    }
}
