//! A member that lies: a true engine whose frames are changed before they leave.
//!
//! Where the link is sealed it stands above the seal: this member has the key. Invariant: frames stay of their kind and keep
//! their session, so that what lies behind those checks is what they meet.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tsumuji_link::{LinkCaps, LinkCounters, LinkError, SealCounters};
use tsumuji_node::{Link, LinkAddr};

use crate::dice::Dice;

/// Frames that leave as they are, so that peers take it for one of them.
const HONEST_FRAMES: u64 = 30;
/// After that, one in so many is changed.
const LIE_ONE_IN: usize = 3;

pub(crate) struct Liar<L> {
    link: L,
    dice: Dice,
    sent: u64,
    lies: Arc<AtomicU64>,
}

impl<L> Liar<L> {
    pub(crate) fn new(link: L, seed: u64, lies: Arc<AtomicU64>) -> Self {
        Self {
            link,
            dice: Dice(seed),
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
fn lie(frame: &mut [u8], dice: &mut Dice) {
    let fields = match frame.first() {
        Some(0x10) => DATA,
        Some(0x11) => SHARE,
        Some(0x12) => ACK,
        Some(0x13 | 0x14) => HELLO,
        _ => return,
    };
    for _ in 0..=dice.below(2) {
        let (at, bytes) = fields[dice.below(fields.len())];
        let Some(field) = frame.get_mut(at..at + bytes) else {
            continue;
        };
        let mut number = [0; 4];
        number[..bytes].copy_from_slice(field);
        let number = u32::from_le_bytes(number);
        let told = match dice.below(7) {
            0 => 0,
            1 => u32::MAX,
            2 => number.wrapping_add(1),
            3 => number.wrapping_sub(1),
            4 => number ^ 1 << dice.below(8 * bytes),
            5 => number.wrapping_add(dice.below(10_000) as u32),
            _ => dice.next() as u32,
        };
        field.copy_from_slice(&told.to_le_bytes()[..bytes]);
    }
}

impl<L: Link> Link for Liar<L> {
    fn caps(&self) -> LinkCaps {
        self.link.caps()
    }

    fn local_addr(&self) -> LinkAddr {
        self.link.local_addr()
    }

    fn recv_burst(
        &mut self,
        max: usize,
        on_frame: impl FnMut(LinkAddr, &[u8]),
    ) -> Result<usize, LinkError> {
        self.link.recv_burst(max, on_frame)
    }

    fn send_with(
        &mut self,
        to: LinkAddr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, LinkError> {
        let Self {
            link,
            dice,
            sent,
            lies,
        } = self;
        link.send_with(to, |slot| {
            let bytes = fill(slot);
            *sent += 1;
            if *sent > HONEST_FRAMES && dice.one_in(LIE_ONE_IN) {
                lie(&mut slot[..bytes], dice);
                lies.fetch_add(1, Ordering::Relaxed);
            }
            bytes
        })
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.link.wait(timeout)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.link.arm_fd()
    }

    fn counters(&self) -> LinkCounters {
        self.link.counters()
    }

    fn sealing(&self) -> Option<SealCounters> {
        self.link.sealing()
    }
}
