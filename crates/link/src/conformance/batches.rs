//! Checks of batches and of placement, which single frames do not cover.

use std::collections::HashSet;
use std::time::Instant;

use super::{
    HEAD_BYTES, PATIENCE, POLL_EVERY, Placer, collect, cut, drain, number_of, numbered, pair, send,
};
use crate::{BATCH_FRAMES_MAX, Frames, Link};

/// A link takes all that its capacity states in one call, with frames short and long, of one size and of many; and all of them arrive.
pub fn batches_arrive<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (mut a, mut b) = pair(make);
    let caps = a.caps_to(b.local_addr());
    let to = b.local_addr();
    let most = (caps.receive_frames / 2).clamp(1, BATCH_FRAMES_MAX);
    let mut number = 0;
    for round in 0..40 {
        let capacity = a.capacity(to).expect("capacity");
        assert!(capacity.frames > 0, "nothing was sent");
        let (mut frames, mut bytes) = (Vec::new(), 0);
        while frames.len() < capacity.frames.min(most) {
            let length = match round % 4 {
                0 => 70,
                1 => caps.frame_bytes.min(1400),
                2 => caps.frame_bytes - number as usize % 90,
                _ => 4 + (number as usize * 37) % (caps.frame_bytes.min(3000) - 3),
            };
            if !frames.is_empty() && bytes + length > capacity.bytes {
                break;
            }
            bytes += length;
            frames.push(numbered(number, length));
            number += 1;
        }
        let batch: Frames<'_> = frames.iter().map(|frame| cut(frame)).collect();
        let sent = a.send(to, &batch).expect("send");
        assert_eq!(sent, frames.len(), "{capacity:?} in round {round}");
        a.flush().expect("flush");
        let arrived = collect(&mut b, frames.len());
        let numbers: HashSet<u32> = arrived.iter().map(|(_, frame)| number_of(frame)).collect();
        assert_eq!(numbers.len(), frames.len(), "frames repeated");
    }
    assert_eq!(a.counters().sent_frames, u64::from(number));
}

/// All frames arrive once and unchanged, whether bodies are placed or not, and whether they are expected there or not.
pub fn bodies_find_their_places<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    for (refuses, spoils) in [(false, false), (true, false), (false, true)] {
        for short in [true, false] {
            let (mut a, mut b) = pair(make);
            let (caps, to) = (a.caps_to(b.local_addr()), b.local_addr());
            let bytes = if short {
                caps.frame_bytes.min(600)
            } else {
                caps.frame_bytes
            };
            let count = (caps.receive_frames / 2).clamp(1, 12);
            let expects: fn(&[u8]) -> bool = if refuses { |_| false } else { |_| true };
            let mut placer = Placer::new(count, bytes - HEAD_BYTES, expects);
            placer.spoils = spoils;
            for number in 0..count as u32 {
                // The last frame is shorter, which the placement does not know.
                let length = bytes - usize::from(number as usize == count - 1);
                send(&mut a, to, &numbered(number, length));
            }
            a.flush().expect("flush");
            let begun = Instant::now();
            while placer.taken.len() < count {
                if b.receive(4, &mut placer).expect("receive") == 0 {
                    assert!(begun.elapsed() < PATIENCE, "frames are missing");
                    a.flush().expect("flush");
                    b.wait(POLL_EVERY).expect("wait");
                }
            }
            assert!(placer.placed == 0 || !refuses && !spoils);
            let numbers: HashSet<u32> = placer.taken.iter().map(|it| number_of(it)).collect();
            assert_eq!(numbers.len(), count, "frames repeated");
            assert_eq!(drain(&mut b), []);
        }
    }
}
