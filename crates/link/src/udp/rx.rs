//! Receive half: datagrams into reused buffers, and their handing over.
//!
//! Called by `Udp::recv_burst`. While frames come singly, one `recvmsg` fetches one frame and no second call asks for more:
//! an answer should not wait for a look at an empty socket. Two successful calls in a row switch to `recvmmsg`, one frame alone
//! in a batch switches back. A datagram may hold several frames of one size (UDP_GRO).

use std::io;
use std::os::fd::BorrowedFd;

use super::sys::RecvBatch;
use crate::{LinkAddr, LinkCounters, LinkError};

/// Datagrams per `recvmmsg`: beyond it the call's own cost is no longer felt, and the buffers stay in a second-level cache.
const BATCH_DATAGRAMS: usize = 16;

/// Buffers, and what of them is not yet handed over.
#[derive(Debug)]
pub(super) struct Rx {
    batch: RecvBatch,
    /// Datagrams in the buffers.
    filled: usize,
    /// The first of them not wholly handed over.
    next: usize,
    /// Bytes of that one already handed over.
    offset: usize,
    /// The last call brought a frame.
    busy: bool,
    /// Frames come in bursts: fetch many at once.
    dense: bool,
}

impl Rx {
    pub(super) fn new() -> Self {
        Self {
            batch: RecvBatch::new(BATCH_DATAGRAMS),
            filled: 0,
            next: 0,
            offset: 0,
            busy: false,
            dense: false,
        }
    }

    /// Whether frames lie in the buffers.
    pub(super) fn has_frames(&self) -> bool {
        self.next < self.filled
    }

    /// Hands over up to `max` frames.
    #[inline]
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        max: usize,
        on_frame: &mut impl FnMut(LinkAddr, &[u8]),
    ) -> Result<usize, LinkError> {
        let mut frames = self.hand_over(counters, max, on_frame);
        // Every turn but the last takes a full batch, so `max` bounds the loop.
        while frames < max {
            let more = self.fetch(fd)?;
            frames += self.hand_over(counters, max - frames, on_frame);
            if !more {
                break;
            }
        }
        Ok(frames)
    }

    /// Fills the empty buffers. `true`: there may be more at once.
    #[inline]
    fn fetch(&mut self, fd: BorrowedFd<'_>) -> Result<bool, LinkError> {
        self.next = 0;
        self.filled = 0;
        let result = if self.dense {
            self.batch.recv_many(fd)
        } else {
            self.batch.recv_one(fd).map(|()| 1)
        };
        match result {
            Ok(datagrams) => {
                self.filled = datagrams;
                self.dense = if self.dense { datagrams > 1 } else { self.busy };
                self.busy = datagrams > 0;
                Ok(datagrams == BATCH_DATAGRAMS)
            }
            Err(error) => {
                self.busy = false;
                self.dense = false;
                if is_fatal(&error) {
                    return Err(LinkError::Io {
                        what: "receiving from the UDP socket",
                        source: error,
                    });
                }
                Ok(false)
            }
        }
    }

    #[inline]
    fn hand_over(
        &mut self,
        counters: &mut LinkCounters,
        max: usize,
        on_frame: &mut impl FnMut(LinkAddr, &[u8]),
    ) -> usize {
        let mut frames = 0;
        while self.next < self.filled && frames < max {
            let datagram = self.batch.datagram(self.next);
            let from = LinkAddr::Inet(datagram.from);
            if datagram.truncated || datagram.bytes.is_empty() {
                counters.dropped_frames += 1;
            } else {
                while frames < max && self.offset < datagram.bytes.len() {
                    let rest = &datagram.bytes[self.offset..];
                    let frame = &rest[..datagram.segment_bytes.min(rest.len())];
                    self.offset += frame.len();
                    frames += 1;
                    counters.received_frames += 1;
                    counters.received_bytes += frame.len() as u64;
                    on_frame(from, frame);
                }
                if self.offset < datagram.bytes.len() {
                    break;
                }
            }
            self.next += 1;
            self.offset = 0;
        }
        frames
    }
}

/// Whether the socket itself is unusable. All else is weather: nothing there, an interrupted call, no memory now, or an ICMP
/// answer to something sent earlier.
pub(super) fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EOPNOTSUPP)
    )
}
