//! Transmit half: writes frames straight into the UMEM, describes them, and kicks the kernel to send them.
//!
//! Called by `Xdp::send` and `Xdp::flush`. A slot is contiguous memory; the Ethernet header lies in front of the frame, and a frame longer than a
//! chunk is described by several consecutive descriptors (`CONTINUED`): we copy only into the slot. The last Ethernet frame stays open until the next
//! push: a small frame to the same station is written behind it.
//!
//! In copy mode the kernel sends within our system call, some 32 frames each, so `flush` calls until the ring is empty or nothing moves. Frames
//! that it does not take now stay in the ring until the next `flush`.
//!
//! Invariant: a slot is free, open, or with the kernel; both rings hold the descriptors of all slots, so neither overflows.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::removed;
use super::ring::{Consumer, Desc, Producer};
use super::umem::{Slot, Umem};
use crate::ether::{self, HEADER_BYTES, LEAD_BYTES, LENGTH_BYTES, MacAddr, Reach};
use crate::tuning::TUNING;
use crate::{Frame, LinkCounters, LinkError};

/// An Ethernet frame that others may join.
#[derive(Debug)]
struct Open {
    slot: Slot,
    to: MacAddr,
    /// Bytes with the header.
    bytes: usize,
    /// Frames of ours in it.
    frames: u32,
}

/// The rings of the transmit side.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) ring: Producer<Desc>,
    pub(super) completion: Consumer<u64>,
    source: MacAddr,
    frame_bytes: usize,
    pub(super) reach: Reach,
    /// Ethernet frames written since the last push, and the bytes of all frames of ours in them.
    gathered: u32,
    gathered_bytes: usize,
    open: Option<Open>,
    /// The driver sends by itself until it states that it sleeps; else it is kicked each time, and sends within the kick.
    zero_copy: bool,
    /// The interface is down: frames that do not fit the ring are dropped.
    down: bool,
}

impl Tx {
    pub(super) fn new(
        ring: Producer<Desc>,
        completion: Consumer<u64>,
        source: MacAddr,
        frame_bytes: usize,
        zero_copy: bool,
    ) -> Self {
        Self {
            ring,
            completion,
            source,
            frame_bytes,
            reach: Reach::default(),
            gathered: 0,
            gathered_bytes: 0,
            open: None,
            zero_copy,
            down: false,
        }
    }

    /// Whether there are frames that the kernel has not taken.
    pub(super) fn has_frames(&mut self) -> bool {
        self.open.is_some() || self.ring.unsubmitted() > 0 || self.ring.outstanding() > 0
    }

    pub(super) fn is_down(&self) -> bool {
        self.down
    }

    /// How many frames surely find a slot now; the kernel is asked to return slots if there seem to be none.
    #[inline]
    pub(super) fn free_frames(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
    ) -> Result<usize, LinkError> {
        if umem.free_slots() == 0 {
            self.reap(umem);
        }
        if umem.free_slots() == 0 {
            self.flush(fd, umem, counters)?;
        }
        Ok(match umem.free_slots() {
            0 if self.down => TUNING.xdp.burst_frames as usize, // they are dropped
            free => free.min(TUNING.xdp.burst_frames as usize),
        })
    }

    /// Writes one frame into a slot, or behind the open Ethernet frame. `false`: no slot is free.
    #[inline]
    pub(super) fn gather(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
        to: MacAddr,
        frame: &Frame<'_>,
    ) -> Result<bool, LinkError> {
        let bytes = frame.bytes();
        let joins = |open: &Open| {
            let most = LEAD_BYTES + self.reach.of(to, self.frame_bytes);
            open.to == to && open.bytes + LENGTH_BYTES + bytes <= most
        };
        if !self.open.as_ref().is_some_and(joins) {
            let Some(slot) = self.find_slot(fd, umem, counters)? else {
                // A link that is down loses frames and does not block its sender.
                counters.dropped_frames += u64::from(self.down);
                return Ok(self.down);
            };
            self.close(umem);
            ether::write_header(umem.slot_mut(&slot), to, self.source);
            self.open = Some(Open {
                slot,
                to,
                bytes: HEADER_BYTES,
                frames: 0,
            });
            self.gathered += 1;
        }
        if let Some(open) = &mut self.open {
            let rest = &mut umem.slot_mut(&open.slot)[open.bytes..];
            ether::write_length(rest, bytes);
            frame.write(&mut rest[LENGTH_BYTES..]);
            open.bytes += LENGTH_BYTES + bytes;
            open.frames += 1;
        }
        self.count(bytes, counters);
        self.flush_full(fd, umem, counters)?;
        Ok(true)
    }

    /// Writes an Ethernet frame into a slot. `false`: none is free.
    pub(super) fn gather_ethernet(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
        frame: &[u8],
    ) -> Result<bool, LinkError> {
        assert!(
            frame.len() <= LEAD_BYTES + self.frame_bytes,
            "it fits a slot"
        );
        let Some(slot) = self.find_slot(fd, umem, counters)? else {
            counters.dropped_frames += u64::from(self.down);
            return Ok(self.down);
        };
        self.close(umem);
        umem.slot_mut(&slot)[..frame.len()].copy_from_slice(frame);
        send(umem, slot, frame.len(), 1, &mut self.ring);
        self.count(frame.len(), counters);
        self.gathered += 1;
        self.flush_full(fd, umem, counters)?;
        Ok(true)
    }

    #[inline]
    fn count(&mut self, bytes: usize, counters: &mut LinkCounters) {
        counters.sent_frames += 1;
        counters.sent_bytes += bytes as u64;
        self.gathered_bytes += bytes;
    }

    /// Kicks the kernel, if there is enough for it.
    #[inline]
    fn flush_full(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        if self.gathered >= TUNING.xdp.burst_frames || self.gathered_bytes >= TUNING.xdp.burst_bytes
        {
            self.flush(fd, umem, counters)?;
        }
        Ok(())
    }

    /// Submits the open Ethernet frame; no frame joins it any more.
    #[inline]
    fn close(&mut self, umem: &mut Umem) {
        if let Some(open) = self.open.take() {
            send(umem, open.slot, open.bytes, open.frames, &mut self.ring);
        }
    }

    /// Broadcasts our address to switches. Not counted: it is no frame of the program's.
    pub(super) fn announce(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        let frame = ether::announcement(self.source);
        self.close(umem);
        if let Some(slot) = umem.take_slot() {
            umem.slot_mut(&slot)[..frame.len()].copy_from_slice(&frame);
            send(umem, slot, frame.len(), 0, &mut self.ring);
        }
        self.flush(fd, umem, counters)
    }

    #[inline]
    fn find_slot(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
    ) -> Result<Option<Slot>, LinkError> {
        if let Some(slot) = umem.take_slot() {
            return Ok(Some(slot));
        }
        self.reap(umem);
        if let Some(slot) = umem.take_slot() {
            return Ok(Some(slot));
        }
        self.flush(fd, umem, counters)?;
        Ok(umem.take_slot())
    }

    /// Takes back slots that the kernel has sent. Returns how many frames of ours were in the last one, if any came back whole.
    #[inline]
    pub(super) fn reap(&mut self, umem: &mut Umem) -> Option<u32> {
        let returned = self.completion.available();
        let mut last = None;
        for ahead in 0..returned {
            last = umem.completed(self.completion.peek(ahead)).or(last);
        }
        self.completion.release(returned);
        last
    }

    /// Submits all frames and kicks the kernel if it needs that.
    #[inline]
    pub(super) fn flush(
        &mut self,
        fd: BorrowedFd<'_>,
        umem: &mut Umem,
        counters: &mut LinkCounters,
    ) -> Result<(), LinkError> {
        self.close(umem);
        self.ring.submit();
        (self.gathered, self.gathered_bytes) = (0, 0);
        let mut waiting = self.ring.outstanding();
        if waiting == 0 {
            return Ok(());
        }
        if self.zero_copy && !self.ring.needs_wakeup() {
            self.reap(umem);
            return Ok(());
        }
        let kicks = waiting.div_ceil(TUNING.xdp.burst_frames) + TUNING.xdp.kicks_spare;
        for _ in 0..kicks {
            let answer = rustix::net::send(fd, &[], SendFlags::DONTWAIT);
            let last = self.reap(umem);
            let left = self.ring.outstanding();
            let moved = left != waiting;
            waiting = left;
            match kicked(answer.map(|_| ()))? {
                Kick::Taken => self.down = false,
                // The kernel stops at the Ethernet frame that it drops, and returns it at once: it is the last that came back.
                Kick::Lost => {
                    let lost = u64::from(last.unwrap_or(1));
                    counters.dropped_frames += lost;
                    counters.unsent_frames += lost;
                }
                Kick::Later => {}
                Kick::Down => {
                    self.down = true;
                    break;
                }
            }
            if waiting == 0 || !moved || self.zero_copy {
                break;
            }
        }
        Ok(())
    }
}

/// Result of a kick.
#[derive(Debug, PartialEq, Eq)]
enum Kick {
    /// The kernel took frames.
    Taken,
    /// An Ethernet frame was taken and dropped on its way out.
    Lost,
    /// The kernel has no memory or room now, or there is more than one call takes.
    Later,
    /// The interface is down; the frames wait.
    Down,
}

fn kicked(answer: rustix::io::Result<()>) -> Result<Kick, LinkError> {
    match answer {
        Ok(()) => Ok(Kick::Taken),
        Err(Errno::BUSY) => Ok(Kick::Lost),
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Ok(Kick::Later),
        Err(Errno::NETDOWN) => Ok(Kick::Down),
        Err(Errno::NXIO | Errno::NODEV) => Err(removed()),
        Err(source) => Err(LinkError::Io {
            what: "sending by the AF_XDP socket",
            source: io::Error::from(source),
        }),
    }
}

/// Gives the first `bytes` of a slot, which contain `frames` of ours, to the kernel.
#[inline]
fn send(umem: &mut Umem, slot: Slot, bytes: usize, frames: u32, ring: &mut Producer<Desc>) {
    umem.send(slot, bytes, frames, |desc| {
        let pushed = ring.push(desc);
        debug_assert!(pushed, "the ring holds the descriptors of all slots");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary refusal is retried, a lost frame counted, and only a socket without its interface fails.
    #[test]
    fn refusals_are_sorted() {
        assert_eq!(kicked(Ok(())).expect("taken"), Kick::Taken);
        for (errno, kick) in [
            (Errno::BUSY, Kick::Lost),
            (Errno::AGAIN, Kick::Later),
            (Errno::NOBUFS, Kick::Later),
            (Errno::NETDOWN, Kick::Down),
        ] {
            assert_eq!(kicked(Err(errno)).expect("no failure"), kick);
        }
        for errno in [Errno::NXIO, Errno::BADF] {
            assert!(kicked(Err(errno)).is_err());
        }
    }
}
