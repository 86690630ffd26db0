//! Receive half: frames are delivered from the device's mbufs, and the mbufs of a burst are returned together.
//!
//! Called by `Dpdk::receive`, and by `wait` to see whether there are frames. A frame that lies in several mbufs is joined in a scratch buffer; one
//! longer than our frames is dropped and counted. Frames of other protocols or stations are counted apart.

use super::sys::{Port, Slots};
use crate::ether::{self, HEADER_BYTES, Ignored, LENGTH_BYTES, MacAddr};
use crate::tuning::TUNING;
use crate::{LinkAddr, LinkCounters, Receiver};

/// The last burst, and how much of it was delivered.
#[derive(Debug)]
pub(super) struct Rx {
    slots: Slots,
    next: usize,
    scratch: Box<[u8]>,
    /// Frames of other protocols, or for other stations.
    pub(super) foreign_frames: u64,
}

impl Rx {
    pub(super) fn new(port: &Port, frame_bytes: usize) -> Self {
        Self {
            slots: Slots::new(port),
            next: 0,
            scratch: vec![0; HEADER_BYTES + LENGTH_BYTES + frame_bytes].into(),
            foreign_frames: 0,
        }
    }

    /// Whether there are frames; takes a burst from the device if there is none of the last.
    #[inline]
    pub(super) fn is_ready(&mut self, port: &Port) -> bool {
        self.next < self.slots.len() || self.fetch(port)
    }

    #[inline]
    fn fetch(&mut self, port: &Port) -> bool {
        if !self.slots.is_empty() {
            self.slots.clear();
            self.next = 0;
        }
        self.slots.receive(port) > 0
    }

    /// Delivers frames of ours until there are `max`; without `own` Ethernet frames, for whatever station.
    #[inline]
    pub(super) fn receive(
        &mut self,
        port: &Port,
        counters: &mut LinkCounters,
        own: Option<MacAddr>,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let longest = self.scratch.len();
        let mut handed = 0;
        let mut bursts = 0;
        while handed < max && bursts <= max / port.burst_frames() + TUNING.dpdk.foreign_bursts {
            if !self.is_ready(port) {
                break;
            }
            bursts += 1;
            while handed < max && self.next < self.slots.len() {
                let at = self.next;
                // Before the call: if it panics, the frame is not delivered twice.
                self.next += 1;
                let Some(frame) = self.slots.frame(at, &mut self.scratch) else {
                    counters.dropped_frames += 1;
                    continue;
                };
                let Some(own) = own else {
                    if frame.len() <= longest {
                        receiver.frame(LinkAddr::Broadcast, frame);
                        handed += 1;
                    } else {
                        self.foreign_frames += 1;
                    }
                    continue;
                };
                match ether::accept(frame, own) {
                    Ok((from, payload)) if frame.len() <= longest => {
                        handed += ether::hand_over(from, payload, counters, receiver);
                    }
                    Ok(_) => counters.dropped_frames += 1,
                    Err(Ignored::EtherType | Ignored::Destination | Ignored::Short) => {
                        self.foreign_frames += 1;
                    }
                    Err(reason) => counters.dropped_frames += u64::from(reason.is_drop()),
                }
            }
        }
        // Delivered frames' mbufs are returned now: a quiet link must not hold a burst of the device's mbufs.
        if self.next == self.slots.len() && !self.slots.is_empty() {
            self.slots.clear();
            self.next = 0;
        }
        handed
    }
}
