//! Transmit half of the links that send by a socket: frames are gathered in one arena until the next flush, or sent from the caller's memory.
//!
//! Owned by `udp` and `packet`; an [`Outlet`] has the differences between the two. Short frames are copied, and leave with later ones by one
//! `sendmmsg`; a single datagram leaves by a plain `send`: that measured better than a mapped transmit ring both in latency and in rate
//! (docs/decisions/0012). Of a batch with long bodies only the heads are copied: the kernel gathers the bodies from the caller's memory. Consecutive
//! datagrams of one size to one address are one send that the kernel or the device cuts, where it can (UDP_SEGMENT). A frame joins the datagram
//! before it where the outlet allows it.
//!
//! Invariant: queued datagrams lie in the arena in queue order without gaps. One leaves the queue when the kernel has taken it, or is counted as
//! dropped; datagrams that the kernel does not take now stay for the next flush.

mod sys;

use std::io;
use std::os::fd::BorrowedFd;

use self::sys::Batch;
pub(crate) use self::sys::{RawAddr, SEGMENTS_MAX, option, set_option};
use crate::tuning::TUNING;
use crate::{Capacity, Frame, LinkCounters, LinkError};

/// Why the kernel takes nothing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// The socket's buffer is full: poll says when there is room.
    Buffer,
    /// The device is full: nothing says when there is room.
    Device,
}

/// Result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing more can be done now.
    Done,
    /// The interface is down or gone: the frames are dropped, and the link should check the interface.
    Lost,
}

/// What an error of the kernel means for the datagrams to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They stay until that obstacle is gone.
    Keep(Blocked),
    /// It is not about them: they are tried again at once, and the first is lost if that fails, too.
    Again,
    /// The first is lost, as a link may lose frames.
    DropOne,
    /// The first is lost, for the way out is too slow.
    Overrun,
    /// All are lost.
    DropAll,
    /// The socket is unusable.
    Fail,
}

/// The differences between links that send by a socket.
pub(crate) trait Outlet {
    /// An address of the link.
    type To: Copy + PartialEq + std::fmt::Debug;
    /// Text of the error when the socket fails.
    const FAILED: &'static str;
    /// Bytes before the first frame of a datagram.
    const LEAD_BYTES: usize;
    /// Bytes before a frame that joins another; at most `LEAD_BYTES`.
    const JOINT_BYTES: usize;

    /// Writes the header of a datagram and of its first frame, which has `frame_bytes`.
    fn write_lead(&self, to: Self::To, frame_bytes: usize, lead: &mut [u8]);
    /// Writes the header of a frame that joins others.
    fn write_joint(&self, frame_bytes: usize, joint: &mut [u8]);
    /// Longest datagram to that address, in bytes with its lead, that frames may join; 0: frames do not join.
    fn joined_bytes_max(&self, to: Self::To) -> usize;
    /// The address as the kernel takes it; `None`: the socket sends to the address it is bound to.
    fn name(&self, to: Self::To) -> Option<RawAddr>;
    /// Sends one datagram, without waiting.
    fn send_one(&self, fd: BorrowedFd<'_>, to: Self::To, datagram: &[u8]) -> io::Result<()>;
    /// Whether the kernel cuts a send into datagrams of one size.
    fn cuts(&self) -> bool;
    /// The kernel refused to cut datagrams, and took one of them alone.
    fn cuts_no_more(&mut self) {}
    /// Decides what an error means.
    fn judge(&mut self, error: &io::Error) -> Verdict;
    /// The kernel took datagrams.
    fn taken(&mut self) {}
    /// Takes away errors about earlier datagrams that wait at the socket, which the kernel may have told in place of one about these. Returns whether
    /// there were some.
    fn take_errors(&mut self) -> bool {
        false
    }
}

/// A datagram in the arena.
#[derive(Debug, Clone, Copy)]
struct Queued<To> {
    to: To,
    at: usize,
    /// Bytes in the arena.
    bytes: usize,
    /// Bytes of the body behind them, in the caller's memory.
    body_bytes: usize,
    /// Frames in it, and their bytes without headers.
    frames: u32,
    frame_bytes: usize,
}

impl<To> Queued<To> {
    fn whole_bytes(&self) -> usize {
        self.bytes + self.body_bytes
    }
}

/// One send: some datagrams of the queue, cut by the kernel if they are several.
#[derive(Debug, Clone, Copy)]
struct Group {
    datagrams: usize,
    segment_bytes: usize,
    bytes: usize,
}

/// The queue of datagrams, and the arena they lie in.
#[derive(Debug)]
pub(crate) struct Gather<O: Outlet> {
    pub(crate) outlet: O,
    arena: Box<[u8]>,
    frame_bytes_max: usize,
    queue: Vec<Queued<O::To>>,
    used_bytes: usize,
    groups: Vec<Group>,
    batch: Batch,
    blocked: Option<Blocked>,
}

impl<O: Outlet> Gather<O> {
    pub(crate) fn new(outlet: O, frame_bytes_max: usize) -> Self {
        // The bodies of a batch that the kernel did not take are copied behind it.
        let leads_bytes = TUNING.gather.burst_frames * O::LEAD_BYTES;
        Self {
            outlet,
            arena: vec![0; TUNING.gather.bytes + leads_bytes + frame_bytes_max].into(),
            frame_bytes_max,
            queue: Vec::with_capacity(TUNING.gather.burst_frames),
            used_bytes: 0,
            groups: Vec::with_capacity(TUNING.gather.burst_frames),
            batch: Batch::new(TUNING.gather.burst_frames, 2 * TUNING.gather.burst_frames),
            blocked: None,
        }
    }

    /// Why datagrams of the last flush are still queued; `None`: there are none, or they were not flushed yet.
    pub(crate) fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    /// Whether datagrams are queued.
    pub(crate) fn has_frames(&self) -> bool {
        !self.queue.is_empty()
    }

    /// How much `send` takes; a full queue is flushed first.
    #[inline]
    pub(crate) fn capacity(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
    ) -> Result<(Capacity, Flushed), LinkError> {
        let mut flushed = Flushed::Done;
        if self.is_full() {
            flushed = self.flush(fd, counters)?;
            if self.is_full() {
                counters.refused += 1;
                return Ok((Capacity::NONE, flushed));
            }
        }
        let capacity = Capacity {
            frames: TUNING.gather.burst_frames - self.queue.len(),
            bytes: TUNING.gather.bytes.saturating_sub(self.used_bytes),
        };
        Ok((capacity, flushed))
    }

    /// Whether another frame like the last would not fit into one send with the queued ones: sent alone, it would cost as much as all of them.
    #[inline]
    fn is_full(&self) -> bool {
        let next_bytes = self.queue.last().map_or(0, Queued::whole_bytes);
        self.queue.len() >= TUNING.gather.burst_frames
            || self.used_bytes + next_bytes > TUNING.gather.bytes
    }

    /// Whether there is room for a copy of that frame. There is for all that `capacity` permits.
    #[inline]
    fn fits(&self, frame: &Frame<'_>) -> bool {
        let end = self.used_bytes + O::LEAD_BYTES + frame.bytes();
        self.queue.len() < TUNING.gather.burst_frames && end <= self.arena.len()
    }

    /// Sends or gathers frames in order and returns their number: fewer only if they exceed what `capacity` permits.
    #[inline]
    pub(crate) fn send(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        to: O::To,
        frames: &[Frame<'_>],
    ) -> Result<(usize, Flushed), LinkError> {
        let bodies_bytes: usize = frames.iter().map(|frame| frame.body.len()).sum();
        if bodies_bytes >= TUNING.gather.copied_bytes {
            return self.send_long(fd, counters, to, frames);
        }
        let (mut flushed, mut tries) = (Flushed::Done, true);
        for (count, frame) in frames.iter().enumerate() {
            if tries && self.is_full() {
                flushed = self.flush(fd, counters)?;
                tries = !self.is_full();
            }
            if !self.fits(frame) {
                counters.refused += 1;
                return Ok((count, flushed));
            }
            self.gather(to, frame);
        }
        Ok((frames.len(), flushed))
    }

    /// Queues copies of those frames, as far as there is room; returns how many.
    #[cold]
    fn gather_all(
        &mut self,
        counters: &mut LinkCounters,
        to: O::To,
        frames: &[Frame<'_>],
    ) -> usize {
        let fit = frames.iter().take_while(|frame| {
            let fits = self.fits(frame);
            if fits {
                self.gather(to, frame);
            }
            fits
        });
        let count = fit.count();
        counters.refused += u64::from(count < frames.len());
        count
    }

    /// Sends frames whose bodies stay in the caller's memory.
    fn send_long(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        to: O::To,
        frames: &[Frame<'_>],
    ) -> Result<(usize, Flushed), LinkError> {
        let mut flushed = self.flush(fd, counters)?;
        if self.has_frames() {
            // What `capacity` permitted is taken, whatever has become of the socket.
            return Ok((self.gather_all(counters, to, frames), flushed));
        }
        let frames = &frames[..frames.len().min(TUNING.gather.burst_frames)];
        for frame in frames {
            self.begin(to, frame, false);
        }
        let (done, how) = self.flush_with(fd, counters, frames)?;
        if how == Flushed::Lost {
            flushed = how;
        }
        // Datagrams that the kernel did not take are copied, and the next flush decides why.
        self.queue.clear();
        self.used_bytes = 0;
        let copied = self.gather_all(counters, to, &frames[done..]);
        Ok((done + copied, flushed))
    }

    /// Queues a copy of one frame. There must be room.
    #[inline]
    fn gather(&mut self, to: O::To, frame: &Frame<'_>) {
        let bytes = frame.bytes();
        let most_bytes = self.outlet.joined_bytes_max(to);
        if let Some(last) = self.queue.last_mut()
            && last.bytes + O::JOINT_BYTES + bytes <= most_bytes
            && last.to == to
        {
            let rest = &mut self.arena[self.used_bytes..];
            self.outlet.write_joint(bytes, &mut rest[..O::JOINT_BYTES]);
            frame.write(&mut rest[O::JOINT_BYTES..]);
            last.bytes += O::JOINT_BYTES + bytes;
            last.frames += 1;
            last.frame_bytes += bytes;
            self.used_bytes += O::JOINT_BYTES + bytes;
            return;
        }
        self.begin(to, frame, true);
    }

    /// Begins a datagram with that frame, whose body is copied or stays in the caller's memory.
    #[inline]
    fn begin(&mut self, to: O::To, frame: &Frame<'_>, copied: bool) {
        let (at, bytes) = (self.used_bytes, frame.bytes());
        assert!(
            bytes <= self.frame_bytes_max,
            "a frame of {bytes} bytes; the link has {}",
            self.frame_bytes_max
        );
        let (lead, rest) = self.arena[at..].split_at_mut(O::LEAD_BYTES);
        self.outlet.write_lead(to, bytes, lead);
        let (written, body_bytes) = if copied {
            (frame.write(rest), 0)
        } else {
            (Frame::whole(frame.head).write(rest), frame.body.len())
        };
        self.queue.push(Queued {
            to,
            at,
            bytes: O::LEAD_BYTES + written,
            body_bytes,
            frames: 1,
            frame_bytes: bytes,
        });
        self.used_bytes = at + O::LEAD_BYTES + written;
    }

    /// Gives the kernel the whole queue, as far as it takes it.
    #[inline]
    pub(crate) fn flush(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
    ) -> Result<Flushed, LinkError> {
        if self.queue.is_empty() {
            return Ok(Flushed::Done);
        }
        let (done, flushed) = self.flush_with(fd, counters, &[])?;
        self.forget(done);
        Ok(flushed)
    }

    /// Sends the queue, with the bodies of `frames` that stayed in the caller's memory; returns how many datagrams were sent or dropped.
    fn flush_with(
        &mut self,
        fd: BorrowedFd<'_>,
        counters: &mut LinkCounters,
        frames: &[Frame<'_>],
    ) -> Result<(usize, Flushed), LinkError> {
        let (mut done, mut flushed, mut tried_again) = (0, Flushed::Done, None);
        // The kernel refused to cut the datagrams before this one.
        let mut uncut_end = 0;
        self.blocked = None;
        // A datagram is tried at most twice in a group that is cut, and twice uncut: every fourth pass settles one or ends the loop.
        while done < self.queue.len() {
            let rest = &self.queue[done..];
            let cuts = self.outlet.cuts() && done >= uncut_end;
            let result = match rest {
                [only] if only.body_bytes == 0 => {
                    let datagram = &self.arena[only.at..only.at + only.bytes];
                    self.outlet.send_one(fd, only.to, datagram).map(|()| 1)
                }
                _ => {
                    group(rest, cuts, &mut self.groups);
                    let (arena, outlet) = (&self.arena, &self.outlet);
                    let mut bodies = bodies_from(frames, done);
                    let mut next = rest.iter();
                    let sends = self.batch.send(fd, |batch| {
                        for group in &self.groups {
                            let datagrams = next.as_slice();
                            let Some(first) = datagrams.first() else {
                                break;
                            };
                            batch.begin(outlet.name(first.to), group.segment());
                            for queued in next.by_ref().take(group.datagrams) {
                                batch.piece(&arena[queued.at..queued.at + queued.bytes]);
                                batch.piece(bodies.next().unwrap_or_default());
                            }
                        }
                    });
                    sends.map(|sends| {
                        if sends < self.groups.len() {
                            self.outlet.take_errors();
                        }
                        let sent = self.groups[..sends].iter();
                        sent.map(|group| group.datagrams).sum()
                    })
                }
            };
            let settled = match result {
                Ok(0) => break,
                Ok(taken) => {
                    for sent in &self.queue[done..done + taken] {
                        counters.sent_frames += u64::from(sent.frames);
                        counters.sent_bytes += sent.frame_bytes as u64;
                    }
                    self.outlet.taken();
                    if done < uncut_end {
                        uncut_end = 0;
                        self.outlet.cuts_no_more();
                    }
                    taken
                }
                Err(error) => {
                    let first = self.groups.first().filter(|_| self.queue.len() - done > 1);
                    let cut = first.filter(|group| group.datagrams > 1).copied();
                    let is_second = tried_again.replace(done) == Some(done);
                    let refused = cut.filter(|_| refuses_segments(&error));
                    let verdict = match refused {
                        Some(_) if !is_second && self.outlet.take_errors() => Verdict::Again,
                        Some(group) => {
                            uncut_end = done + group.datagrams;
                            tried_again = None;
                            continue;
                        }
                        None => self.outlet.judge(&error),
                    };
                    match verdict {
                        Verdict::Keep(blocked) => {
                            self.blocked = Some(blocked);
                            break;
                        }
                        Verdict::Again if !is_second => 0,
                        Verdict::Again | Verdict::DropOne | Verdict::Overrun => {
                            let lost = cut.map_or(1, |group| group.datagrams);
                            let is_overrun = verdict == Verdict::Overrun;
                            self.count_dropped(counters, (done, lost), is_overrun);
                            lost
                        }
                        Verdict::DropAll => {
                            let lost = self.queue.len() - done;
                            self.count_dropped(counters, (done, lost), true);
                            flushed = Flushed::Lost;
                            lost
                        }
                        Verdict::Fail => return Err(failed::<O>(error)),
                    }
                }
            };
            done += settled;
        }
        Ok((done, flushed))
    }

    /// `is_overrun`: a slower sender would not have lost them.
    fn count_dropped(
        &self,
        counters: &mut LinkCounters,
        (first, datagrams): (usize, usize),
        is_overrun: bool,
    ) {
        let lost = self.queue[first..first + datagrams].iter();
        let lost = lost.map(|queued| u64::from(queued.frames)).sum::<u64>();
        counters.dropped_frames += lost;
        counters.unsent_frames += if is_overrun { lost } else { 0 };
    }

    /// Drops the first datagrams of the queue and closes the gap.
    #[inline]
    fn forget(&mut self, datagrams: usize) {
        if datagrams == self.queue.len() {
            self.queue.clear();
            self.used_bytes = 0;
            return;
        }
        self.queue.drain(..datagrams);
        let gap = self.queue.first().map_or(0, |first| first.at);
        self.arena.copy_within(gap..self.used_bytes, 0);
        self.used_bytes -= gap;
        for queued in &mut self.queue {
            queued.at -= gap;
        }
    }
}

/// The bodies of the frames from that one on.
fn bodies_from<'a>(frames: &[Frame<'a>], first: usize) -> impl Iterator<Item = &'a [u8]> {
    frames.iter().skip(first).map(|frame| frame.body)
}

impl Group {
    fn segment(&self) -> Option<u16> {
        (self.datagrams > 1).then_some(self.segment_bytes as u16)
    }
}

/// Groups consecutive datagrams of one size to one address, where the kernel cuts them. The last of a group may be shorter.
fn group<To: PartialEq>(queue: &[Queued<To>], cuts: bool, groups: &mut Vec<Group>) {
    groups.clear();
    let mut before: Option<&To> = None;
    for queued in queue {
        let bytes = queued.whole_bytes();
        if cuts
            && let Some(last) = groups.last_mut()
            && before == Some(&queued.to)
            && last.bytes + bytes <= TUNING.gather.bytes
            && last.bytes == last.datagrams * last.segment_bytes
            && bytes <= last.segment_bytes
            && last.datagrams < SEGMENTS_MAX
        {
            last.datagrams += 1;
            last.bytes += bytes;
            continue;
        }
        before = Some(&queued.to);
        groups.push(Group {
            datagrams: 1,
            segment_bytes: bytes,
            bytes,
        });
    }
}

fn refuses_segments(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
    )
}

#[cold]
fn failed<O: Outlet>(source: io::Error) -> LinkError {
    LinkError::Io {
        what: O::FAILED,
        source,
    }
}

#[cfg(test)]
mod tests;
