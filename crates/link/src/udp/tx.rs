//! Transmit half: frames gathered in one arena, and their pushing out.
//!
//! Called by `Udp::send_with` and `Udp::flush`. A single frame goes by plain `sendto`. Frames of one size to one peer that follow
//! each other are one send that the kernel or the device cuts (UDP_SEGMENT); several sends are one `sendmmsg`. A run of a long
//! message passes by the arena: the kernel gathers it from where it lies.
//!
//! Invariant: queued frames lie in the arena in queue order without gaps, so a run of them is one range.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use super::rx::is_fatal;
use super::sys::{Outgoing, SendBatch};
use crate::{LinkCounters, LinkError, RunRoom};

/// Frames gathered at most before they are pushed out: more gain nothing.
pub(super) const BURST_FRAMES: usize = 64;
/// Datagrams that one send may be cut into (the kernel's own limit is 64 or 128).
const SEGMENTS_MAX: usize = 64;
/// Bytes of one such send, an IP packet with its headers; and what is gathered at most before it is pushed out: more would leave the
/// cache before the kernel copies it.
const SEGMENTED_BYTES_MAX: usize = 65_000;

#[derive(Debug, Clone, Copy)]
struct Queued {
    to: SocketAddr,
    at: usize,
    bytes: usize,
}

/// The arena and the queue.
#[derive(Debug)]
pub(super) struct Tx {
    arena: Box<[u8]>,
    frame_bytes: usize,
    queue: Vec<Queued>,
    used_bytes: usize,
    outgoing: Vec<Outgoing>,
    batch: SendBatch,
    segmenting: bool,
}

impl Tx {
    /// `mapped`: the socket is IPv6 and takes IPv4 addresses, too. `segmenting`: the kernel knows UDP_SEGMENT.
    pub(super) fn new(frame_bytes: usize, mapped: bool, segmenting: bool) -> Self {
        Self {
            arena: vec![0; SEGMENTED_BYTES_MAX + frame_bytes].into(),
            frame_bytes,
            queue: Vec::with_capacity(BURST_FRAMES),
            used_bytes: 0,
            outgoing: Vec::with_capacity(BURST_FRAMES),
            batch: SendBatch::new(BURST_FRAMES, SEGMENTS_MAX, mapped),
            segmenting,
        }
    }

    /// Whether the kernel did not take all at the last push.
    pub(super) fn has_frames(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues one frame. `false`: the queue is full and the kernel takes nothing now.
    #[inline]
    pub(super) fn gather(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        to: SocketAddr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, LinkError> {
        if self.is_full() {
            self.push_out(fd, counters)?;
            if self.is_full() {
                return Ok(false);
            }
        }
        let at = self.used_bytes;
        let bytes = fill(&mut self.arena[at..at + self.frame_bytes]);
        assert!(
            bytes <= self.frame_bytes,
            "a filler claims {bytes} bytes of a {}-byte slot",
            self.frame_bytes
        );
        if bytes > 0 {
            self.queue.push(Queued { to, at, bytes });
            self.used_bytes += bytes;
        }
        Ok(true)
    }

    /// Another frame like the last would not leave in one piece with what is gathered: cut off, it would cost as much as all of them.
    fn is_full(&self) -> bool {
        let next_bytes = self.queue.last().map_or(0, |last| last.bytes);
        self.queue.len() >= BURST_FRAMES || self.used_bytes + next_bytes > SEGMENTED_BYTES_MAX
    }

    /// What `send_run` takes now: nothing while the kernel does not take what is queued.
    pub(super) fn run_room(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
    ) -> Result<Option<RunRoom>, LinkError> {
        if self.has_frames() {
            self.push_out(fd, counters)?;
            if self.has_frames() {
                return Ok(None);
            }
        }
        let frames = if self.segmenting { SEGMENTS_MAX } else { 1 };
        Ok(Some(RunRoom {
            frames,
            bytes: SEGMENTED_BYTES_MAX.max(self.frame_bytes),
        }))
    }

    /// Sends frames from where they lie; `run_room` said yes just before. What the kernel does not take is queued.
    pub(super) fn send_run<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        to: SocketAddr,
        frames: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<(), LinkError> {
        if let Ok((sent_frames, sent_bytes)) = self.batch.send_run(fd, to, frames.clone()) {
            counters.sent_frames += sent_frames as u64;
            counters.sent_bytes += sent_bytes as u64;
            return Ok(());
        }
        // Out of the common way: the queue knows what to do with each error.
        for (head, body) in frames {
            self.gather(fd, counters, to, |slot| {
                let bytes = head.len() + body.len();
                slot[..head.len()].copy_from_slice(head);
                slot[head.len()..bytes].copy_from_slice(body);
                bytes
            })?;
        }
        self.push_out(fd, counters)
    }

    /// Gives the kernel all that is queued, as far as it takes it.
    #[inline]
    pub(super) fn push_out(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        match self.queue[..] {
            [] => Ok(()),
            [Queued { to, at, bytes }] => {
                let result = self.batch.send_one(fd, to, &self.arena[at..at + bytes]);
                if settle(result, counters, 1, bytes)? {
                    self.queue.clear();
                    self.used_bytes = 0;
                }
                Ok(())
            }
            _ => self.push_out_many(fd, counters),
        }
    }

    fn push_out_many(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        self.gather_runs();
        let mut sends_done = 0;
        let mut frames_done = 0;
        while let Some(next) = self.outgoing.get(sends_done).copied() {
            match self
                .batch
                .send_many(fd, &self.arena, &self.outgoing[sends_done..])
            {
                Ok(sends) => {
                    for send in &self.outgoing[sends_done..sends_done + sends] {
                        frames_done += frames_of(send);
                        counters.sent_frames += frames_of(send) as u64;
                        counters.sent_bytes += send.bytes as u64;
                    }
                    sends_done += sends;
                    if sends == 0 {
                        break;
                    }
                }
                Err(error) if next.segment_bytes != 0 && refuses_segments(&error) => {
                    let Some(frames) = self.push_out_singly(fd, counters, frames_done, &next)?
                    else {
                        break;
                    };
                    frames_done += frames;
                    sends_done += 1;
                }
                Err(error) => {
                    if !settle(Err(error), counters, frames_of(&next), next.bytes)? {
                        break;
                    }
                    frames_done += frames_of(&next);
                    sends_done += 1;
                }
            }
        }
        self.forget(frames_done);
        Ok(())
    }

    /// A segmented send was refused: tries its frames one by one, and if that works, segments no more.
    #[cold]
    fn push_out_singly(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        first: usize,
        send: &Outgoing,
    ) -> Result<Option<usize>, LinkError> {
        let frames = frames_of(send);
        let before = counters.sent_frames;
        for frame in &self.queue[first..first + frames] {
            let bytes = &self.arena[frame.at..frame.at + frame.bytes];
            let result = self.batch.send_one(fd, frame.to, bytes);
            // Frames sent before a full buffer are sent again later: a repetition, which links may make.
            if !settle(result, counters, 1, frame.bytes)? {
                return Ok(None);
            }
        }
        if counters.sent_frames > before {
            self.segmenting = false;
            tracing::debug!("the kernel refuses UDP_SEGMENT towards {}", send.to);
        }
        Ok(Some(frames))
    }

    /// Joins neighbours of one size to one address. The last of a run may be shorter.
    fn gather_runs(&mut self) {
        self.outgoing.clear();
        for frame in &self.queue {
            if self.segmenting
                && let Some(run) = self.outgoing.last_mut()
                && run.to == frame.to
                && run.bytes + frame.bytes <= SEGMENTED_BYTES_MAX
            {
                let segment = match run.segment_bytes {
                    0 => run.bytes,
                    segment => segment.into(),
                };
                let whole = run.bytes.is_multiple_of(segment);
                if whole && frame.bytes <= segment && run.bytes / segment < SEGMENTS_MAX {
                    run.segment_bytes = segment as u16;
                    run.bytes += frame.bytes;
                    continue;
                }
            }
            self.outgoing.push(Outgoing {
                to: frame.to,
                at: frame.at,
                bytes: frame.bytes,
                segment_bytes: 0,
            });
        }
    }

    /// Drops the first `frames` of the queue and closes the gap.
    fn forget(&mut self, frames: usize) {
        self.queue.drain(..frames);
        let Some(first) = self.queue.first() else {
            self.used_bytes = 0;
            return;
        };
        let gap = first.at;
        self.arena.copy_within(gap..self.used_bytes, 0);
        self.used_bytes -= gap;
        for frame in &mut self.queue {
            frame.at -= gap;
        }
    }
}

fn frames_of(send: &Outgoing) -> usize {
    match send.segment_bytes {
        0 => 1,
        segment => send.bytes.div_ceil(segment.into()),
    }
}

fn refuses_segments(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
    )
}

/// Counts one send of `frames` frames. `Ok(false)`: the kernel takes nothing now, keep them. A refusal for any other reason
/// (no route, ICMP answer, bad port, dropped on its way out) loses the frames, which a link may.
#[inline]
fn settle(
    result: io::Result<()>,
    counters: &mut LinkCounters,
    frames: usize,
    bytes: usize,
) -> Result<bool, LinkError> {
    match result {
        Ok(()) => {
            counters.sent_frames += frames as u64;
            counters.sent_bytes += bytes as u64;
            Ok(true)
        }
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(false),
            _ if is_fatal(&error) => Err(LinkError::Io {
                what: "sending by the UDP socket",
                source: error,
            }),
            _ => {
                counters.dropped_frames += frames as u64;
                Ok(true)
            }
        },
    }
}
