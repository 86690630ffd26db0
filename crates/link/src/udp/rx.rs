//! Receive half: receives datagrams into reused buffers, and delivers their frames.
//!
//! Called by `Udp::receive`. While frames come singly, one `recvmsg` fetches one frame and no second call asks for more: an answer should not wait
//! for a call on an empty socket. Two successful calls in a row switch to `recvmmsg`, one frame alone in a batch switches back. A datagram may hold
//! several frames of one size (UDP_GRO).
//!
//! While the receiver names a place for the next bodies, one datagram at a time is scattered to it. Whether it was the expected one is known only
//! afterwards: if not, it is put together again and delivered like any other.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::net::RecvFlags;

use super::sys::{RecvBatch, Scattered};
use crate::tuning::TUNING;
use crate::{LinkAddr, LinkCounters, LinkError, Receiver};

/// Receive buffers, and how far their frames were delivered.
#[derive(Debug)]
pub(super) struct Rx {
    batch: RecvBatch,
    /// Datagrams in the buffers.
    filled: usize,
    /// The first datagram not wholly delivered.
    next: usize,
    /// Bytes of that datagram already delivered.
    offset: usize,
    /// The last call brought a frame.
    busy: bool,
    /// Frames come in bursts: fetch many at once.
    dense: bool,
    /// Receives still to be made without a guess.
    unguessed: u32,
    /// Receives without a guess after the next wrong one.
    distrust: u32,
    /// The socket is a multicast group's: datagrams of this address are our own, and no long message comes.
    own: Option<SocketAddr>,
}

impl Rx {
    pub(super) fn new() -> Self {
        Self {
            batch: RecvBatch::new(TUNING.udp.batch_datagrams),
            filled: 0,
            next: 0,
            offset: 0,
            busy: false,
            dense: false,
            unguessed: 0,
            distrust: 1,
            own: None,
        }
    }

    /// For the socket of a multicast group, to which `own` sends, too.
    pub(super) fn of_group(own: SocketAddr) -> Self {
        Self {
            own: Some(own),
            ..Self::new()
        }
    }

    /// Whether undelivered frames lie in the buffers.
    pub(super) fn has_frames(&self) -> bool {
        self.next < self.filled
    }

    /// Delivers up to `max` frames.
    #[inline]
    pub(super) fn receive(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> Result<usize, LinkError> {
        let mut frames = self.hand_over(counters, max, receiver);
        // Every pass but the last takes a full batch or a frame of a long message, so `max` bounds the loop.
        while frames < max {
            if self.unguessed > 0 {
                self.unguessed -= 1;
            } else if self.own.is_none()
                && let Some(placed) = self.fetch_scattered(fd, counters, receiver)?
            {
                frames += placed;
                if placed == 0 {
                    break;
                }
                continue;
            }
            let more = self.fetch(fd)?;
            frames += self.hand_over(counters, max - frames, receiver);
            if !more {
                break;
            }
        }
        Ok(frames)
    }

    /// Receives a datagram into the place that the receiver names, and delivers all its frames; returns their number. `None`: no place is named.
    fn fetch_scattered(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        receiver: &mut impl Receiver,
    ) -> Result<Option<usize>, LinkError> {
        let Some(mut placement) = receiver.placement(None) else {
            return Ok(None);
        };
        let (head_bytes, body_bytes) = (placement.head_bytes, placement.body_bytes);
        let place_bytes = placement.place.len();
        let scattered = match self.batch.recv_scattered(fd, &mut placement) {
            Ok(scattered) => scattered,
            Err(error) => return self.nothing(fd, error).map(Some),
        };
        self.busy = true;
        if scattered.truncated || scattered.bytes == 0 {
            counters.dropped_frames += 1;
            return Ok(Some(1));
        }
        let from = LinkAddr::Inet(scattered.from);
        let Scattered {
            bytes,
            in_place_bytes,
            segment_bytes,
            ..
        } = scattered;
        let full_bytes = head_bytes + body_bytes;
        let in_place = in_place_bytes.div_ceil(segment_bytes);
        // Frame `index` has its head apart and its body in its place, if all frames are as long as expected.
        let body_of = |index: usize| {
            let frame_bytes = segment_bytes.min(in_place_bytes - index * segment_bytes);
            frame_bytes.checked_sub(head_bytes)
        };
        let fits = (bytes <= segment_bytes || segment_bytes == full_bytes)
            && segment_bytes <= full_bytes
            && in_place <= scattered.frames
            && (0..in_place).all(|index| {
                body_of(index).is_some_and(|body| {
                    let head = self.batch.head(index, head_bytes);
                    receiver.is_expected(from, index, head, body)
                        && receiver.is_sound(index, head, body)
                })
            });
        let rest = if fits {
            self.distrust = 1;
            for index in 0..in_place {
                let head = self.batch.head(index, head_bytes);
                receiver.placed(from, head, body_of(index).unwrap_or(0));
            }
            self.batch.spill(bytes - in_place_bytes)
        } else {
            self.unguessed = self.distrust;
            self.distrust = (2 * self.distrust).min(TUNING.udp.distrust_max);
            // Nothing was delivered since, so the place is the same as before.
            match receiver.placement(None) {
                Some(placement) if placement.place.len() == place_bytes => {
                    self.batch.rejoin(&scattered, &placement);
                }
                _ => {
                    counters.dropped_frames += 1;
                    return Ok(Some(1));
                }
            }
            self.batch.rejoined(bytes)
        };
        for frame in rest.chunks(segment_bytes) {
            receiver.frame(from, frame);
        }
        let frames = bytes.div_ceil(segment_bytes);
        counters.received_frames += frames as u64;
        counters.received_bytes += bytes as u64;
        Ok(Some(frames))
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
                Ok(datagrams == TUNING.udp.batch_datagrams)
            }
            Err(error) => self.nothing(fd, error).map(|_| false),
        }
    }

    /// Judges a failed receive: no frame is there now, or the socket is unusable.
    fn nothing(&mut self, fd: BorrowedFd<'_>, error: io::Error) -> Result<usize, LinkError> {
        self.busy = false;
        self.dense = false;
        if is_fatal(&error) {
            return Err(LinkError::Io {
                what: "receiving from the UDP socket",
                source: error,
            });
        }
        if error.kind() != io::ErrorKind::WouldBlock {
            take_errors(fd);
        }
        Ok(0)
    }

    #[inline]
    fn hand_over(
        &mut self,
        counters: &mut LinkCounters,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let mut frames = 0;
        while self.next < self.filled && frames < max {
            let datagram = self.batch.datagram(self.next);
            let from = LinkAddr::Inet(datagram.from);
            if self.own == Some(datagram.from) {
                // It was looped back.
            } else if datagram.truncated || datagram.bytes.is_empty() {
                counters.dropped_frames += 1;
            } else {
                while frames < max && self.offset < datagram.bytes.len() {
                    let rest = &datagram.bytes[self.offset..];
                    let frame = &rest[..datagram.segment_bytes.min(rest.len())];
                    self.offset += frame.len();
                    frames += 1;
                    counters.received_frames += 1;
                    counters.received_bytes += frame.len() as u64;
                    receiver.frame(from, frame);
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

/// Takes the errors out that came by ICMP and wait at the socket: with any left there it counts as readable for ever. Returns whether there were some.
#[cold]
pub(super) fn take_errors(fd: BorrowedFd<'_>) -> bool {
    /// More come later.
    const MOST: usize = 64;
    let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
    let mut rest = [0u8; 1];
    let taken = (0..MOST).take_while(|_| rustix::net::recv(fd, &mut rest[..], flags).is_ok());
    taken.count() > 0
}

/// Whether the socket itself is unusable. All other errors are temporary: nothing there, an interrupted call, no memory now, or an ICMP error about
/// an earlier datagram, which anybody may send: none of its codes is among these.
pub(super) fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT)
    )
}
