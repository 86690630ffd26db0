//! Checks of batches and of placement, which single frames do not cover.

use std::collections::HashSet;
use std::time::Instant;

use super::{PATIENCE, POLL_EVERY, collect, cut, drain, number_of, numbered, pair, send};
use crate::{
    BATCH_FRAMES_MAX, Coming, Frames, HEAD_BYTES_MAX, Link, LinkAddr, Placement, Receiver,
};

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

/// A receiver that expects bodies of the next frames in its place.
struct Placing {
    place: Vec<u8>,
    body_bytes: usize,
    /// Bodies placed.
    filled: usize,
    /// Expects nothing, or finds nothing sound.
    refuses: bool,
    spoils: bool,
    placed: Vec<Vec<u8>>,
    whole: Vec<Vec<u8>>,
}

impl Placing {
    const HEAD_BYTES: usize = 40;
}

impl Receiver for Placing {
    fn frame(&mut self, _: LinkAddr, frame: &[u8]) {
        self.whole.push(frame.to_vec());
    }

    fn placement(&mut self, coming: Option<Coming<'_>>) -> Option<Placement<'_>> {
        if let Some(coming) = coming {
            assert!(coming.start.len() <= coming.bytes.min(HEAD_BYTES_MAX));
        }
        Some(Placement {
            head_bytes: Self::HEAD_BYTES,
            body_bytes: self.body_bytes,
            place: self.place.get_mut(self.filled * self.body_bytes..)?,
        })
    }

    fn is_expected(&mut self, _: LinkAddr, _: usize, head: &[u8], body_bytes: usize) -> bool {
        assert_eq!(head.len(), Self::HEAD_BYTES);
        !self.refuses && body_bytes == self.body_bytes
    }

    fn is_sound(&mut self, _: usize, _: &[u8], _: usize) -> bool {
        !self.spoils
    }

    fn placed(&mut self, _: LinkAddr, head: &[u8], body_bytes: usize) {
        let start = self.filled * self.body_bytes;
        let body = &self.place[start..start + body_bytes];
        self.placed.push([head, body].concat());
        self.filled += 1;
    }

    fn bodiless(&mut self, _: LinkAddr, _: &[u8], _: usize) {
        panic!("every body is with its head");
    }
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
            let body_bytes = bytes - Placing::HEAD_BYTES;
            let mut placing = Placing {
                place: vec![0; count * body_bytes],
                body_bytes,
                filled: 0,
                refuses,
                spoils,
                placed: Vec::new(),
                whole: Vec::new(),
            };
            for number in 0..count as u32 {
                // The last frame is shorter, which the placement does not know.
                let length = bytes - usize::from(number as usize == count - 1);
                send(&mut a, to, &numbered(number, length));
            }
            a.flush().expect("flush");
            let begun = Instant::now();
            while placing.placed.len() + placing.whole.len() < count {
                if b.receive(4, &mut placing).expect("receive") == 0 {
                    assert!(begun.elapsed() < PATIENCE, "frames are missing");
                    a.flush().expect("flush");
                    b.wait(POLL_EVERY).expect("wait");
                }
            }
            assert!(placing.placed.is_empty() || !refuses && !spoils);
            let all = placing.placed.iter().chain(&placing.whole);
            let numbers: HashSet<u32> = all.map(|frame| number_of(frame)).collect();
            assert_eq!(numbers.len(), count, "frames repeated");
            assert_eq!(drain(&mut b), []);
        }
    }
}
