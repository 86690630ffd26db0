//! Transmit half: mbufs lent for filling, queued with their header, and handed to the device in bursts.
//!
//! Called by `Dpdk::send_with` and `Dpdk::flush`. A device takes as many as its ring has place for; the rest stays queued, in order,
//! and is offered again.
//!
//! Each frame has an Ethernet frame of its own: the devices are fast enough that joining small ones is not worth a copy.
//!
//! Invariant: an mbuf is spare, queued, or the device's; none is lost on the way between.

use std::time::{Duration, Instant};

use super::sys::{BURST_FRAMES, Port, Slots};
use crate::LinkCounters;
use crate::ether::{self, HEADER_BYTES, LENGTH_BYTES, MacAddr};

/// What stands before a frame of ours.
const LEAD_BYTES: usize = HEADER_BYTES + LENGTH_BYTES;

/// A device that takes no frame for this long is not merely full: what waits is dropped, as a link may.
const STUCK_MAX: Duration = Duration::from_millis(50);

/// Spare and queued mbufs.
#[derive(Debug)]
pub(super) struct Tx {
    me: MacAddr,
    frame_bytes_max: usize,
    frame_bytes_least: usize,
    spare: Slots,
    queue: Slots,
    /// Since when the device has taken nothing.
    stuck_since: Option<Instant>,
}

impl Tx {
    pub(super) fn new(
        port: &Port,
        me: MacAddr,
        frame_bytes_max: usize,
        frame_bytes_least: usize,
    ) -> Self {
        Self {
            me,
            frame_bytes_max,
            frame_bytes_least,
            spare: Slots::new(port),
            queue: Slots::new(port),
            stuck_since: None,
        }
    }

    /// Frames that the device has not taken.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether a frame can be queued; takes mbufs from the pool if none is spare.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        self.queue.len() < BURST_FRAMES
            && (!self.spare.is_empty() || self.spare.take(BURST_FRAMES / 2) || self.spare.take(1))
    }

    /// Queues one frame. `has_room` said so.
    #[inline]
    pub(super) fn gather(
        &mut self,
        port: &Port,
        to: MacAddr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let frame = self.spare.last_mut(port, LEAD_BYTES + self.frame_bytes_max);
        let bytes = fill(&mut frame[LEAD_BYTES..]);
        assert!(
            bytes <= self.frame_bytes_max,
            "a filler claims {bytes} bytes of a {}-byte slot",
            self.frame_bytes_max
        );
        if bytes == 0 {
            return;
        }
        ether::write_header(frame, to, self.me);
        ether::write_length(&mut frame[HEADER_BYTES..], bytes);
        let mut whole = LEAD_BYTES + bytes;
        if whole < self.frame_bytes_least {
            // Old bytes of the mbuf are nobody's business.
            frame[whole..self.frame_bytes_least].fill(0);
            whole = self.frame_bytes_least;
        }
        self.spare.give_last(port, whole, &mut self.queue);
    }

    /// Offers the device what is queued.
    #[inline]
    pub(super) fn push_out(&mut self, port: &Port, counters: &mut LinkCounters) {
        if self.queue.is_empty() {
            return;
        }
        let (frames, bytes) = self.queue.transmit(port);
        counters.sent_frames += frames as u64;
        counters.sent_bytes += bytes - (frames * LEAD_BYTES) as u64;
        if frames > 0 || self.queue.is_empty() {
            self.stuck_since = None;
        } else {
            self.be_stuck(counters);
        }
    }

    /// Tells the switch where we are, uncounted. If the device takes nothing now, the next frame does it.
    pub(super) fn announce(&mut self, port: &Port, counters: &mut LinkCounters) {
        self.push_out(port, counters);
        if !self.queue.is_empty() || !self.has_room() {
            return;
        }
        let frame = ether::announcement(self.me);
        self.spare
            .last_mut(port, frame.len())
            .copy_from_slice(&frame);
        self.spare.give_last(port, frame.len(), &mut self.queue);
        let _ = self.queue.transmit(port);
        self.queue.clear();
    }

    #[cold]
    fn be_stuck(&mut self, counters: &mut LinkCounters) {
        let since = *self.stuck_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= STUCK_MAX {
            counters.dropped_frames += self.queue.len() as u64;
            self.queue.clear();
            self.stuck_since = None;
        }
    }
}
