//! Transmit half: frames gathered in one arena, header included, and their pushing out.
//!
//! Called by `Packet::send_with` and `Packet::flush`. A single frame goes by plain `send`, several by one `sendmmsg`: that measured
//! better than a mapped transmit ring both in latency and in rate (docs/decisions/0012).
//!
//! Invariant: queued frames lie in the arena in queue order without gaps. A frame leaves the queue when the kernel has taken it,
//! or is counted as dropped: a full device (ENOBUFS) or socket buffer (EAGAIN) keeps it for the next push.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::sys::SendBatch;
use crate::ether::{self, HEADER_BYTES, MacAddr};
use crate::{LinkCounters, LinkError};
use std::os::fd::AsFd;

/// Frames gathered at most before they are pushed out: more gain nothing.
pub(super) const BURST_FRAMES: usize = 64;
/// Bytes gathered at most before they are pushed out: more would leave the cache before the kernel copies them.
const GATHER_BYTES: usize = 64 << 10;
/// A device that refuses a frame for this long is not merely full: the frame is dropped, as a link may. Repetition is the
/// business of those above, and they have long begun it.
const STUCK_MAX: Duration = Duration::from_millis(50);

/// Why the kernel takes no frame now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    /// The socket's buffer is full: poll says when there is room.
    Buffer,
    /// The device is full: nothing says when there is room.
    Device,
}

/// What became of one push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// All that can be done is done.
    Done,
    /// The interface is down or gone: the frames are dropped, and it should be looked at.
    Lost,
}

/// The arena and the queue.
#[derive(Debug)]
pub(super) struct Tx {
    me: MacAddr,
    arena: Box<[u8]>,
    payload_bytes_max: usize,
    queue: Vec<Range<usize>>,
    used_bytes: usize,
    batch: SendBatch,
    blocked: Option<Blocked>,
    /// Since when the device has refused the first frame.
    stuck_since: Option<Instant>,
}

impl Tx {
    pub(super) fn new(me: MacAddr, payload_bytes_max: usize) -> Self {
        Self {
            me,
            arena: vec![0; GATHER_BYTES + HEADER_BYTES + payload_bytes_max].into(),
            payload_bytes_max,
            queue: Vec::with_capacity(BURST_FRAMES),
            used_bytes: 0,
            batch: SendBatch::new(BURST_FRAMES),
            blocked: None,
            stuck_since: None,
        }
    }

    /// Why frames of the last push are still here; `None`: there are none, or they were not pushed yet.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= BURST_FRAMES || self.used_bytes >= GATHER_BYTES
    }

    /// Queues one frame. There must be room.
    #[inline]
    pub(super) fn gather(&mut self, to: MacAddr, fill: impl FnOnce(&mut [u8]) -> usize) {
        assert!(!self.is_full(), "`is_full` was not asked");
        let slot = &mut self.arena[self.used_bytes..];
        let payload = &mut slot[HEADER_BYTES..HEADER_BYTES + self.payload_bytes_max];
        let bytes = fill(payload);
        assert!(
            bytes <= self.payload_bytes_max,
            "a filler claims {bytes} bytes of a {}-byte slot",
            self.payload_bytes_max
        );
        if bytes == 0 {
            return;
        }
        ether::write_header(slot, to, self.me);
        let end = self.used_bytes + HEADER_BYTES + bytes;
        self.queue.push(self.used_bytes..end);
        self.used_bytes = end;
    }

    /// Gives the kernel all that is queued, as far as it takes it.
    #[inline]
    pub(super) fn push_out(
        &mut self,
        socket: &Socket,
        counters: &mut LinkCounters,
    ) -> Result<Pushed, LinkError> {
        let mut done = 0;
        let mut pushed = Pushed::Done;
        self.blocked = None;
        // Every turn settles a frame or ends the loop, so the queue's length bounds it.
        while let Some(first) = self.queue.get(done) {
            let result = if self.queue.len() - done == 1 {
                let frame = &self.arena[first.clone()];
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                socket.send_with_flags(frame, flags).map(|_| 1)
            } else {
                let frames = self.queue[done..].iter();
                let frames = frames.map(|range| &self.arena[range.clone()]);
                self.batch.send(socket.as_fd(), frames)
            };
            match result {
                Ok(0) => break,
                Ok(frames) => {
                    let sent = &self.queue[done..done + frames];
                    let bytes: usize = sent.iter().map(|range| range.len() - HEADER_BYTES).sum();
                    counters.sent_frames += frames as u64;
                    counters.sent_bytes += bytes as u64;
                    done += frames;
                    self.stuck_since = None;
                }
                Err(error) => match self.judge(&error) {
                    Verdict::Keep(blocked) => {
                        self.blocked = blocked;
                        break;
                    }
                    Verdict::DropOne => {
                        counters.dropped_frames += 1;
                        done += 1;
                        self.stuck_since = None;
                    }
                    Verdict::DropAll => {
                        counters.dropped_frames += (self.queue.len() - done) as u64;
                        done = self.queue.len();
                        self.stuck_since = None;
                        pushed = Pushed::Lost;
                    }
                    Verdict::Fail => {
                        return Err(LinkError::Io {
                            what: "sending by the packet socket",
                            source: error,
                        });
                    }
                },
            }
        }
        self.forget(done);
        Ok(pushed)
    }

    #[cold]
    fn judge(&mut self, error: &io::Error) -> Verdict {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Verdict::Keep(Some(Blocked::Buffer)),
            Some(libc::EINTR) => Verdict::Keep(None),
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                let now = Instant::now();
                let since = *self.stuck_since.get_or_insert(now);
                if now - since < STUCK_MAX {
                    Verdict::Keep(Some(Blocked::Device))
                } else {
                    Verdict::DropAll
                }
            }
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => Verdict::DropAll,
            Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => Verdict::Fail,
            // The MTU was lowered, or a filter on the way out refuses it.
            _ => Verdict::DropOne,
        }
    }

    /// Drops the first `frames` of the queue and closes the gap.
    #[inline]
    fn forget(&mut self, frames: usize) {
        if frames == self.queue.len() {
            self.queue.clear();
            self.used_bytes = 0;
            return;
        }
        self.queue.drain(..frames);
        let gap = self.queue.first().map_or(0, |first| first.start);
        self.arena.copy_within(gap..self.used_bytes, 0);
        self.used_bytes -= gap;
        for range in &mut self.queue {
            *range = range.start - gap..range.end - gap;
        }
    }
}

enum Verdict {
    /// The frames stay; whether something is in their way.
    Keep(Option<Blocked>),
    DropOne,
    DropAll,
    Fail,
}
