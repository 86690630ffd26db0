//! Transmit half: mbufs lent for filling, queued with their header, and handed to the device in bursts.
//!
//! Called by `Dpdk::send_with` and `Dpdk::flush`. A device takes as many as its ring has place for; the rest stays queued, in order,
//! and is offered again.
//!
//! A frame joins the Ethernet frame before it if that goes to the same station and has room: it is copied over, and its mbuf
//! stays spare.
//!
//! A run of frames (`send_run`) goes to a driver that copies from where the frames lie, only their headers being written.
//!
//! Invariant: an mbuf is spare, queued, or the device's; none is lost on the way between. `contents` tells of each queued one.

use std::collections::VecDeque;
use std::time::Instant;

use super::sys::{Port, Slots};
use crate::ether::{self, HEADER_BYTES, LEAD_BYTES, MacAddr, Reach, STUCK_MAX};
use crate::{LinkCounters, RunRoom};

/// What is in a queued Ethernet frame.
#[derive(Debug, Clone, Copy)]
struct Content {
    to: MacAddr,
    /// Header included, padding not.
    ethernet_bytes: usize,
    /// Frames of ours, and their bytes.
    frames: u64,
    frame_bytes: u64,
}

/// Spare and queued mbufs.
#[derive(Debug)]
pub(super) struct Tx {
    me: MacAddr,
    burst_frames: usize,
    frame_bytes_max: usize,
    frame_bytes_least: usize,
    pub(super) reach: Reach,
    spare: Slots,
    queue: Slots,
    contents: VecDeque<Content>,
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
            burst_frames: port.burst_frames(),
            frame_bytes_max,
            frame_bytes_least,
            reach: Reach::default(),
            spare: Slots::new(port),
            queue: Slots::new(port),
            contents: VecDeque::with_capacity(port.burst_frames()),
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
        self.queue.len() < self.burst_frames
            && (!self.spare.is_empty()
                || self.spare.take(self.burst_frames / 2)
                || self.spare.take(1))
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
        ether::write_length(&mut frame[HEADER_BYTES..], bytes);
        let with_length = &frame[HEADER_BYTES..LEAD_BYTES + bytes];
        if let Some(last) = self.contents.back_mut()
            && last.to == to
            && last.ethernet_bytes + with_length.len()
                <= LEAD_BYTES + self.reach.of(to, self.frame_bytes_max)
        {
            let at = last.ethernet_bytes;
            last.ethernet_bytes += with_length.len();
            last.frames += 1;
            last.frame_bytes += bytes as u64;
            let whole = last.ethernet_bytes.max(self.frame_bytes_least);
            let joined = self.queue.last_mut(port, whole);
            joined[at..last.ethernet_bytes].copy_from_slice(with_length);
            joined[last.ethernet_bytes..].fill(0);
            self.queue.set_last_bytes(port, whole);
            return;
        }
        ether::write_header(frame, to, self.me);
        let ethernet_bytes = LEAD_BYTES + bytes;
        let whole = ethernet_bytes.max(self.frame_bytes_least);
        if whole > ethernet_bytes {
            // Old bytes of the mbuf are nobody's business.
            self.spare.last_mut(port, whole)[ethernet_bytes..].fill(0);
        }
        self.spare.give_last(port, whole, &mut self.queue);
        self.contents.push_back(Content {
            to,
            ethernet_bytes,
            frames: 1,
            frame_bytes: bytes as u64,
        });
    }

    /// What `send_run` takes now that all was pushed out; `None`: something is still queued, mbufs lack, or the driver does not copy.
    pub(super) fn run_room(&mut self, port: &Port) -> Option<RunRoom> {
        if !port.copies() || !self.queue.is_empty() {
            return None;
        }
        if self.spare.len() < self.burst_frames {
            self.spare.take(self.burst_frames - self.spare.len());
        }
        let frames = self.spare.len().min(self.burst_frames);
        (frames > 0).then_some(RunRoom {
            frames,
            bytes: frames * self.frame_bytes_max,
        })
    }

    /// Sends frames in two parts, each as an Ethernet frame of its own, from where they lie. What the device does not take now is queued.
    pub(super) fn send_run<'a>(
        &mut self,
        port: &Port,
        counters: &mut LinkCounters,
        to: MacAddr,
        frames: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) {
        for (head, body) in frames.clone() {
            let lead_bytes = LEAD_BYTES + head.len();
            let lead = self.spare.last_mut(port, lead_bytes);
            ether::write_header(lead, to, self.me);
            ether::write_length(&mut lead[HEADER_BYTES..], head.len() + body.len());
            lead[LEAD_BYTES..].copy_from_slice(head);
            self.spare.give_last(port, lead_bytes, &mut self.queue);
        }
        let bodies = frames.clone().map(|(_, body)| body);
        let taken = self.queue.transmit_parted(port, bodies);
        if taken > 0 {
            self.stuck_since = None;
        }
        for (at, (head, body)) in frames.enumerate() {
            let bytes = head.len() + body.len();
            if at < taken {
                counters.sent_frames += 1;
                counters.sent_bytes += bytes as u64;
                continue;
            }
            self.queue.append(port, at - taken, body);
            self.contents.push_back(Content {
                to,
                ethernet_bytes: LEAD_BYTES + bytes,
                frames: 1,
                frame_bytes: bytes as u64,
            });
        }
    }

    /// Offers the device what is queued.
    #[inline]
    pub(super) fn push_out(&mut self, port: &Port, counters: &mut LinkCounters) {
        if self.queue.is_empty() {
            return;
        }
        let taken = self.queue.transmit(port);
        for sent in self.contents.drain(..taken) {
            counters.sent_frames += sent.frames;
            counters.sent_bytes += sent.frame_bytes;
        }
        if taken > 0 {
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
            let lost = self.contents.drain(..);
            counters.dropped_frames += lost.map(|content| content.frames).sum::<u64>();
            self.queue.clear();
            self.stuck_since = None;
        }
    }
}
