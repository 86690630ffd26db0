//! Transmit half: frames gathered in one arena, headers included, and their pushing out.
//!
//! Called by `Packet::send_with` and `Packet::flush`. A single frame goes by plain `send`, several by one `sendmmsg`: that measured
//! better than a mapped transmit ring both in latency and in rate (docs/decisions/0012).
//!
//! A run of frames (`send_run`) goes by `sendmmsg` from where the frames lie, only their headers being copied.
//!
//! A frame joins the Ethernet frame before it if that goes to the same station and has room. Invariant: queued Ethernet frames
//! lie in the arena in queue order without gaps. One leaves the queue when the kernel has taken it, or is counted as dropped: a full device (ENOBUFS) or socket buffer (EAGAIN) keeps it for the next push.

use std::io;
use std::ops::Range;
use std::time::Instant;

use socket2::Socket;

use super::sys::{self, SendBatch};
use crate::ether::{self, HEADER_BYTES, LEAD_BYTES, LENGTH_BYTES, MacAddr, Reach, STUCK_MAX};
use crate::{LANDING_HEAD_BYTES_MAX, LinkCounters, LinkError, RunRoom};
use std::os::fd::AsFd;

/// Ethernet frames gathered at most before they are pushed out: more gain nothing.
pub(super) const BURST_FRAMES: usize = 64;
/// Bytes gathered at most before they are pushed out: more would leave the cache before the kernel copies them.
const GATHER_BYTES: usize = 64 << 10;

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

/// An Ethernet frame in the arena.
#[derive(Debug, Clone)]
struct Queued {
    range: Range<usize>,
    to: MacAddr,
    /// Frames of ours in it, and their bytes.
    frames: u32,
    frame_bytes: usize,
}

/// The arena and the queue.
#[derive(Debug)]
pub(super) struct Tx {
    me: MacAddr,
    arena: Box<[u8]>,
    /// Of a frame of ours.
    frame_bytes_max: usize,
    pub(super) reach: Reach,
    queue: Vec<Queued>,
    used_bytes: usize,
    /// What stands before the payloads of a run, and how long it is.
    leads: Vec<([u8; LEAD_BYTES + LANDING_HEAD_BYTES_MAX], usize)>,
    batch: SendBatch,
    blocked: Option<Blocked>,
    /// Since when the device has refused the first frame.
    stuck_since: Option<Instant>,
}

impl Tx {
    pub(super) fn new(me: MacAddr, frame_bytes_max: usize) -> Self {
        Self {
            me,
            arena: vec![0; GATHER_BYTES + LEAD_BYTES + frame_bytes_max].into(),
            frame_bytes_max,
            reach: Reach::default(),
            queue: Vec::with_capacity(BURST_FRAMES),
            used_bytes: 0,
            leads: Vec::with_capacity(BURST_FRAMES),
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
        let start = self.used_bytes;
        let slot = &mut self.arena[start..];
        let bytes = fill(&mut slot[LEAD_BYTES..][..self.frame_bytes_max]);
        assert!(
            bytes <= self.frame_bytes_max,
            "a filler claims {bytes} bytes of a {}-byte slot",
            self.frame_bytes_max
        );
        if bytes == 0 {
            return;
        }
        ether::write_length(&mut slot[HEADER_BYTES..], bytes);
        let end = start + LEAD_BYTES + bytes;
        if let Some(last) = self.queue.last_mut()
            && last.to == to
            && last.range.len() + LENGTH_BYTES + bytes
                <= LEAD_BYTES + self.reach.of(to, self.frame_bytes_max)
        {
            self.arena.copy_within(start + HEADER_BYTES..end, start);
            self.used_bytes = end - HEADER_BYTES;
            last.range.end = self.used_bytes;
            last.frames += 1;
            last.frame_bytes += bytes;
            return;
        }
        ether::write_header(slot, to, self.me);
        self.queue.push(Queued {
            range: start..end,
            to,
            frames: 1,
            frame_bytes: bytes,
        });
        self.used_bytes = end;
    }

    /// What `send_run` takes now that all was pushed out; `None`: something is still queued.
    pub(super) fn run_room(&self) -> Option<RunRoom> {
        self.queue.is_empty().then_some(RunRoom {
            frames: BURST_FRAMES,
            bytes: GATHER_BYTES.max(self.frame_bytes_max),
        })
    }

    /// Sends frames in two parts, each as an Ethernet frame of its own, from where they lie. What the kernel does not take now is queued,
    /// and the next push judges why.
    pub(super) fn send_run<'a>(
        &mut self,
        socket: &Socket,
        counters: &mut LinkCounters,
        to: MacAddr,
        frames: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) {
        let Self { leads, batch, .. } = self;
        leads.clear();
        let mut bytes = 0;
        for (head, body) in frames.clone().take(BURST_FRAMES) {
            let mut lead = [0; LEAD_BYTES + LANDING_HEAD_BYTES_MAX];
            ether::write_header(&mut lead, to, self.me);
            ether::write_length(&mut lead[HEADER_BYTES..], head.len() + body.len());
            lead[LEAD_BYTES..][..head.len()].copy_from_slice(head);
            leads.push((lead, LEAD_BYTES + head.len()));
            bytes += head.len() + body.len();
        }
        let parts = leads.iter().zip(frames.clone());
        let parts = parts.map(|((lead, length), (_, body))| (&lead[..*length], body));
        let taken = batch.send_parts(socket.as_fd(), parts).unwrap_or(0);
        counters.sent_frames += taken as u64;
        let rest = frames.skip(taken);
        for (head, body) in rest {
            bytes -= head.len() + body.len();
            if self.is_full() {
                counters.dropped_frames += 1; // tiny frames whose headers have no room left; they are repeated
                continue;
            }
            self.gather(to, |slot| {
                slot[..head.len()].copy_from_slice(head);
                slot[head.len()..][..body.len()].copy_from_slice(body);
                head.len() + body.len()
            });
        }
        counters.sent_bytes += bytes as u64;
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
                let frame = &self.arena[first.range.clone()];
                sys::send(socket.as_fd(), frame).map(|()| 1)
            } else {
                let frames = self.queue[done..].iter();
                let frames = frames.map(|queued| &self.arena[queued.range.clone()]);
                self.batch.send(socket.as_fd(), frames)
            };
            match result {
                Ok(0) => break,
                Ok(taken) => {
                    for sent in &self.queue[done..done + taken] {
                        counters.sent_frames += u64::from(sent.frames);
                        counters.sent_bytes += sent.frame_bytes as u64;
                    }
                    done += taken;
                    self.stuck_since = None;
                }
                Err(error) => match judge(&mut self.stuck_since, &error) {
                    Verdict::Keep(blocked) => {
                        self.blocked = blocked;
                        break;
                    }
                    Verdict::DropOne => {
                        counters.dropped_frames += u64::from(first.frames);
                        done += 1;
                        self.stuck_since = None;
                    }
                    Verdict::DropAll => {
                        let lost = self.queue[done..].iter();
                        counters.dropped_frames += lost.map(|l| u64::from(l.frames)).sum::<u64>();
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

    /// Takes the first `frames` Ethernet frames from the queue and closes the gap.
    #[inline]
    fn forget(&mut self, frames: usize) {
        if frames == self.queue.len() {
            self.queue.clear();
            self.used_bytes = 0;
            return;
        }
        self.queue.drain(..frames);
        let gap = self.queue.first().map_or(0, |first| first.range.start);
        self.arena.copy_within(gap..self.used_bytes, 0);
        self.used_bytes -= gap;
        for Queued { range, .. } in &mut self.queue {
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

/// What a refusal means for the frame, and for those behind it.
#[cold]
fn judge(stuck_since: &mut Option<Instant>, error: &io::Error) -> Verdict {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Verdict::Keep(Some(Blocked::Buffer)),
        Some(libc::EINTR) => Verdict::Keep(None),
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            let now = Instant::now();
            let since = *stuck_since.get_or_insert(now);
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
