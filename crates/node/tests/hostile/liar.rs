//! A member that lies: a true engine whose frames are changed before they leave.
//!
//! Where the link is sealed it stands above the seal: this member has the key. Invariant: frames stay of their kind and keep
//! their session, so that what lies behind those checks is what they meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use tsumuji_link::checked::{self, CHECK_BYTES};

use crate::common::meddled::Meddler;

/// Frames that leave as they are, so that peers take it for one of them.
const HONEST_FRAMES: u64 = 30;
/// After that, one in so many is changed.
const LIE_ONE_IN: usize = 3;

pub(crate) struct Liar {
    dice: Rng,
    sent: u64,
    lies: Arc<AtomicU64>,
}

impl Liar {
    pub(crate) fn new(seed: u64, lies: Arc<AtomicU64>) -> Self {
        Self {
            dice: Rng::with_seed(seed),
            sent: 0,
            lies,
        }
    }
}

/// Fields by kind: offset and bytes.
const DATA: &[(usize, usize)] = &[
    (1, 1),
    (6, 2),
    (12, 4),
    (16, 4),
    (20, 4),
    (24, 4),
    (28, 4),
    (32, 4),
    (36, 2),
    (38, 1),
    (39, 1),
];
const ACK: &[(usize, usize)] = &[(1, 1), (6, 2), (12, 4), (16, 4), (20, 4), (24, 4), (28, 4)];
const HELLO: &[(usize, usize)] = &[(12, 4), (16, 4), (20, 4), (24, 4), (28, 4)];
const SHARE: &[(usize, usize)] = &[(4, 2), (6, 2), (12, 4), (16, 4), (20, 4)];

/// Changes one field or two.
fn lie(frame: &mut [u8], dice: &mut Rng) {
    let fields = match frame.first() {
        Some(0x10) => DATA,
        Some(0x11) => SHARE,
        Some(0x12) => ACK,
        Some(0x13 | 0x14) => HELLO,
        _ => return,
    };
    for _ in 0..=dice.usize(..2) {
        let (at, bytes) = fields[dice.usize(..fields.len())];
        let Some(field) = frame.get_mut(at..at + bytes) else {
            continue;
        };
        let mut number = [0; 4];
        number[..bytes].copy_from_slice(field);
        let number = u32::from_le_bytes(number);
        let told = match dice.usize(..7) {
            0 => 0,
            1 => u32::MAX,
            2 => number.wrapping_add(1),
            3 => number.wrapping_sub(1),
            4 => number ^ 1 << dice.usize(..8 * bytes),
            5 => number.wrapping_add(dice.u32(..10_000)),
            _ => dice.u32(..),
        };
        field.copy_from_slice(&told.to_le_bytes()[..bytes]);
    }
}

impl Meddler for Liar {
    fn changes(&self) -> bool {
        true
    }

    fn change(&mut self, frame: &mut [u8]) {
        self.sent += 1;
        if self.sent > HONEST_FRAMES && self.dice.usize(..LIE_ONE_IN) == 0 {
            // A liar computes its own checksums.
            if checked::open(frame).is_ok() {
                lie(&mut frame[CHECK_BYTES..], &mut self.dice);
                checked::close(frame, frame.len() - CHECK_BYTES);
            } else {
                lie(frame, &mut self.dice);
            }
            self.lies.fetch_add(1, Ordering::Relaxed);
        }
    }
}
