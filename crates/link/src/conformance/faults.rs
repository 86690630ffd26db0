//! The check of links that lose, repeat and reorder frames on purpose.

use std::collections::HashMap;
use std::time::Instant;

use super::{HEAD_BYTES, PATIENCE, POLL_EVERY, Placer, cut, number_of, numbered, pair};
use crate::{Frames, Link, each};

/// A link that loses, repeats and reorders does nothing else: each frame that comes was sent, and is unchanged, placed or not; each that does not come
/// is counted. Not part of `run_all`: the factory makes links that do that to the frames that they receive, and lose none otherwise.
pub fn only_faults_happen<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    const FRAMES: u32 = 3_000;
    let (mut a, mut b) = pair(make);
    let (caps, to) = (a.caps_to(b.local_addr()), b.local_addr());
    assert!(!caps.lossless, "{caps:?}");
    let bytes = caps.frame_bytes.min(16 << 10);
    let mut placer = Placer::new(1, bytes - HEAD_BYTES, |_| true);
    let mut order = Vec::new();
    let mut receive = |b: &mut L| {
        let received = b.receive(64, &mut placer).expect("receive");
        for frame in placer.taken.drain(..) {
            order.push(number_of(&frame));
        }
        received
    };
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
        let received = receive(&mut b);
        a.receive(64, &mut each(|_, _| {})).expect("receive"); // a seal's own frames
        if taken + received > 0 {
            begun = Instant::now();
        }
        assert!(begun.elapsed() < PATIENCE, "stuck after {sent} frames");
    }
    while receive(&mut b) > 0 || begun.elapsed() < 5 * POLL_EVERY {
        a.flush().expect("flush");
        b.wait(POLL_EVERY / 10).expect("wait");
    }
    let lost = b.counters().impaired_frames - lost_before;
    let mut arrived = HashMap::<u32, u32>::new();
    for number in &order {
        *arrived.entry(*number).or_default() += 1;
    }
    let (distinct, most) = (arrived.len(), arrived.values().max());
    // Seals refuse what comes twice.
    let repeats = 1 + u32::from(b.sealing().is_none());
    assert_eq!(most, Some(&repeats), "how often a frame came");
    assert!(distinct < sent as usize, "nothing was lost");
    assert!(
        distinct as u64 + lost >= u64::from(sent),
        "{distinct} and {lost} of {sent}"
    );
    assert!(
        order.windows(2).any(|pair| pair[0] > pair[1] + 1),
        "nothing was late"
    );
    assert!(
        placer.placed > sent as usize / 8,
        "{} placed",
        placer.placed
    );
    let known = |number: &u32| *number < sent;
    assert!(arrived.keys().all(known), "what nobody sent");
}
