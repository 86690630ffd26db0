//! The check of links that lose, repeat and reorder frames on purpose.

use std::collections::HashMap;
use std::time::Instant;

use super::{PATIENCE, POLL_EVERY, cut, number_of, numbered, pair};
use crate::{Coming, Frames, Link, LinkAddr, Placement, Receiver};

const HEAD_BYTES: usize = 40;

/// Counts arrivals by number; bodies of one length have a place.
struct Sorted {
    place: Vec<u8>,
    arrived: HashMap<u32, u32>,
    /// Numbers in the order of arrival.
    order: Vec<u32>,
    placed: u32,
}

impl Sorted {
    fn new(body_bytes: usize) -> Self {
        Self {
            place: vec![0; body_bytes],
            arrived: HashMap::new(),
            order: Vec::new(),
            placed: 0,
        }
    }
}

impl Receiver for Sorted {
    fn frame(&mut self, _: LinkAddr, frame: &[u8]) {
        let number = number_of(frame);
        *self.arrived.entry(number).or_default() += 1;
        self.order.push(number);
    }

    fn placement(&mut self, _: Option<Coming<'_>>) -> Option<Placement<'_>> {
        Some(Placement {
            head_bytes: HEAD_BYTES,
            body_bytes: self.place.len(),
            place: &mut self.place,
        })
    }

    fn is_expected(&mut self, _: LinkAddr, index: usize, head: &[u8], body_bytes: usize) -> bool {
        (index, head.len(), body_bytes) == (0, HEAD_BYTES, self.place.len())
    }

    fn placed(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
        self.placed += 1;
        let frame = [head, &self.place[..body_bytes]].concat();
        self.frame(from, &frame);
    }
}

/// A link that loses, repeats and reorders does nothing else: each frame that comes was sent, and is unchanged, placed or not; each that does not come
/// is counted. Not part of `run_all`: the factory makes links that do that to the frames that they receive, and lose none otherwise.
pub fn only_faults_happen<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    const FRAMES: u32 = 3_000;
    let (mut a, mut b) = pair(make);
    let (caps, to) = (a.caps_to(b.local_addr()), b.local_addr());
    assert!(!caps.lossless, "{caps:?}");
    let bytes = caps.frame_bytes.min(16 << 10);
    let mut sorted = Sorted::new(bytes - HEAD_BYTES);
    let (mut sent, mut begun) = (0, Instant::now());
    let lost_before = b.counters().impaired_frames;
    while sent < FRAMES {
        let capacity = a.capacity(to).expect("capacity");
        let mut batch = Vec::new();
        for number in sent..FRAMES.min(sent + capacity.frames.min(20) as u32) {
            let short = [0, 1, bytes - 4, bytes / 2][number as usize % 4];
            batch.push(numbered(number, bytes - short));
        }
        let frames: Frames<'_> = batch.iter().map(|frame| cut(frame)).collect();
        let taken = a.send(to, &frames).expect("send");
        sent += taken as u32;
        a.flush().expect("flush");
        let received = b.receive(64, &mut sorted).expect("receive");
        a.receive(64, &mut Sorted::new(0)).expect("receive"); // a seal's own frames
        if taken + received > 0 {
            begun = Instant::now();
        }
        assert!(begun.elapsed() < PATIENCE, "stuck after {sent} frames");
    }
    while b.receive(64, &mut sorted).expect("receive") > 0 || begun.elapsed() < 5 * POLL_EVERY {
        a.flush().expect("flush");
        b.wait(POLL_EVERY / 10).expect("wait");
    }
    let lost = b.counters().impaired_frames - lost_before;
    let (distinct, most) = (sorted.arrived.len(), sorted.arrived.values().max());
    // Seals refuse what comes twice.
    let repeats = 1 + u32::from(b.sealing().is_none());
    assert_eq!(most, Some(&repeats), "how often a frame came");
    assert!(distinct < sent as usize, "nothing was lost");
    assert!(
        distinct as u64 + lost >= u64::from(sent),
        "{distinct} and {lost} of {sent}"
    );
    assert!(
        sorted.order.windows(2).any(|pair| pair[0] > pair[1] + 1),
        "nothing was late"
    );
    assert!(sorted.placed > sent / 8, "{} placed", sorted.placed);
    let known = |number: &u32| *number < sent;
    assert!(sorted.arrived.keys().all(known), "what nobody sent");
}
