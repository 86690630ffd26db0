//! Transmit half: fills mbufs, queues them with their header, and gives them to the device in bursts.
//!
//! Called by `Dpdk::send` and `Dpdk::flush`. A device takes as many as its ring has room for; the rest stays queued, in order, and is offered again.
//!
//! A frame joins the Ethernet frame before it if that goes to the same station and has room.
//!
//! For a driver that copies, only the heads of frames with long bodies are written to mbufs; the bodies stay in the caller's memory.
//!
//! Invariant: an mbuf is spare, queued, or the device's; none is lost between. `contents` describes each queued one.

use std::collections::VecDeque;
use std::time::Instant;

use super::sys::{Port, Slots};
use crate::ether::{self, HEADER_BYTES, LEAD_BYTES, LENGTH_BYTES, MacAddr, Reach};
use crate::tuning::TUNING;
use crate::{Frame, LinkCounters};

/// Content of a queued Ethernet frame.
#[derive(Debug, Clone, Copy)]
struct Content {
    to: MacAddr,
    /// Bytes with the header, without padding.
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
    /// Time since which the device has taken nothing.
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

    /// How many frames can be queued; takes mbufs from the pool if none is spare.
    #[inline]
    pub(super) fn free_frames(&mut self) -> usize {
        let most = self.burst_frames - self.queue.len().min(self.burst_frames);
        let is_short = 2 * self.spare.len() < most;
        if is_short && !self.spare.take(self.burst_frames / 2) && self.spare.is_empty() {
            self.spare.take(1);
        }
        most.min(self.spare.len())
    }

    /// Queues a copy of one frame. There must be room by `free_frames`.
    #[inline]
    pub(super) fn gather(&mut self, port: &Port, to: MacAddr, frame: &Frame<'_>) {
        let bytes = frame.bytes();
        assert!(
            bytes <= self.frame_bytes_max,
            "a frame of {bytes} bytes; the link has {}",
            self.frame_bytes_max
        );
        if let Some(last) = self.contents.back_mut()
            && last.to == to
            && last.ethernet_bytes + LENGTH_BYTES + bytes
                <= LEAD_BYTES + self.reach.of(to, self.frame_bytes_max)
        {
            let at = last.ethernet_bytes;
            last.ethernet_bytes += LENGTH_BYTES + bytes;
            last.frames += 1;
            last.frame_bytes += bytes as u64;
            let whole = last.ethernet_bytes.max(self.frame_bytes_least);
            let joined = self.queue.last_mut(port, whole);
            ether::write_length(&mut joined[at..], bytes);
            frame.write(&mut joined[at + LENGTH_BYTES..]);
            joined[last.ethernet_bytes..].fill(0);
            self.queue.set_last_bytes(port, whole);
            return;
        }
        let ethernet_bytes = LEAD_BYTES + bytes;
        let whole = ethernet_bytes.max(self.frame_bytes_least);
        let slot = self.spare.last_mut(port, whole);
        ether::write_header(slot, to, self.me);
        ether::write_length(&mut slot[HEADER_BYTES..], bytes);
        frame.write(&mut slot[LEAD_BYTES..]);
        slot[ethernet_bytes..].fill(0); // do not send old bytes of the mbuf
        self.spare.give_last(port, whole, &mut self.queue);
        self.contents.push_back(Content {
            to,
            ethernet_bytes,
            frames: 1,
            frame_bytes: bytes as u64,
        });
    }

    /// Queues an Ethernet frame. There must be room by `free_frames`.
    pub(super) fn gather_ethernet(&mut self, port: &Port, frame: &[u8]) {
        let whole = frame.len().max(self.frame_bytes_least);
        let slot = self.spare.last_mut(port, whole);
        slot[..frame.len()].copy_from_slice(frame);
        slot[frame.len()..].fill(0); // do not send old bytes of the mbuf
        self.spare.give_last(port, whole, &mut self.queue);
        self.contents.push_back(Content {
            to: self.me, // nothing is sent there, so nothing joins it
            ethernet_bytes: frame.len(),
            frames: 1,
            frame_bytes: frame.len() as u64,
        });
    }

    /// Sends frames, each as an Ethernet frame of its own, whose bodies the driver copies from the caller's memory. Nothing may be queued, and there
    /// must be room for all. Frames that the device does not take now are queued.
    pub(super) fn send_parted(
        &mut self,
        port: &Port,
        counters: &mut LinkCounters,
        to: MacAddr,
        frames: &[Frame<'_>],
    ) {
        for frame in frames {
            let lead_bytes = LEAD_BYTES + frame.head.len();
            let lead = self.spare.last_mut(port, lead_bytes);
            ether::write_header(lead, to, self.me);
            ether::write_length(&mut lead[HEADER_BYTES..], frame.bytes());
            lead[LEAD_BYTES..].copy_from_slice(frame.head);
            self.spare.give_last(port, lead_bytes, &mut self.queue);
        }
        let taken = self.queue.transmit_parted(port, frames);
        if taken > 0 {
            self.stuck_since = None;
        }
        let (sent, rest) = frames.split_at(taken);
        counters.sent_frames += sent.len() as u64;
        counters.sent_bytes += sent.iter().map(|frame| frame.bytes() as u64).sum::<u64>();
        for (at, frame) in rest.iter().enumerate() {
            self.queue.append(port, at, frame.body);
            self.contents.push_back(Content {
                to,
                ethernet_bytes: LEAD_BYTES + frame.bytes(),
                frames: 1,
                frame_bytes: frame.bytes() as u64,
            });
        }
    }

    /// Offers the queue to the device.
    #[inline]
    pub(super) fn flush(&mut self, port: &Port, counters: &mut LinkCounters) {
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

    /// Announces our address to the switch; not counted. If the device takes nothing now, the next frame does it.
    pub(super) fn announce(&mut self, port: &Port, counters: &mut LinkCounters) {
        self.flush(port, counters);
        if !self.queue.is_empty() || self.free_frames() == 0 {
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
        if since.elapsed() >= TUNING.ether.stuck_max {
            let lost = self.contents.drain(..);
            let lost = lost.map(|content| content.frames).sum::<u64>();
            counters.dropped_frames += lost;
            counters.unsent_frames += lost;
            self.queue.clear();
            self.stuck_since = None;
        }
    }
}
