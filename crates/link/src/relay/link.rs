//! The link of a process that reaches a device through a relay.
//!
//! Small frames to one station share an Ethernet frame, as over the device itself: the open one lies in a buffer of ours until another one begins, or
//! `flush`.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::ether::{self, HEADER_BYTES, LEAD_BYTES, LENGTH_BYTES, MacAddr, Reach};
use crate::shm::{Shm, ShmAttachError};
use crate::tuning::TUNING;
use crate::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, Rings, each,
};

/// The link's name.
const NAME: &str = "relay";
/// Index of the relay in the shared memory.
pub(super) const RELAY: u16 = 0;
const TO_RELAY: LinkAddr = LinkAddr::Local(RELAY);

/// The process in a slot.
#[inline]
pub(super) fn process(slot: u8) -> LinkAddr {
    LinkAddr::Local(u16::from(slot) + 1)
}

/// Bytes of the largest Ethernet frame, if the largest of ours has `frame_bytes`.
pub(super) const fn ethernet_bytes(frame_bytes: usize) -> usize {
    frame_bytes + LEAD_BYTES
}

/// What a process needs to know of the relay's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// Address of the interface, from which those of the slots are made.
    pub mac: MacAddr,
    /// Number of slots.
    pub slots: u8,
    /// Largest frame in bytes.
    pub frame_bytes: usize,
    /// Frames of that size that the device buffers.
    pub receive_frames: usize,
}

/// Why a process cannot use a relay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayedError {
    /// The relay has no such slot.
    #[error("the relay has slots 0 to {last}, not {slot}; start it with more (--slots)", last = slots.saturating_sub(1))]
    Slot {
        /// The slot asked for.
        slot: u8,
        /// How many it has.
        slots: u8,
    },
    /// Another process has the slot, or the memory is not that of a relay.
    #[error("slot {slot}: {source}")]
    Attach {
        /// The slot asked for.
        slot: u8,
        /// The reason.
        source: ShmAttachError,
    },
    /// The relay's description of its device and its memory contradict each other.
    #[error("the relay's memory is not made for its device; are both of one version?")]
    Contradiction,
}

impl RelayedError {
    /// Whether another process has the slot, perhaps one that is just ending.
    pub fn is_taken(&self) -> bool {
        matches!(
            self,
            Self::Attach {
                source: ShmAttachError::Taken { .. },
                ..
            }
        )
    }
}

/// The Ethernet frame that others may join.
#[derive(Debug)]
struct Open {
    to: MacAddr,
    frames: u64,
}

/// A place at a relay.
#[derive(Debug)]
pub struct Relayed {
    shm: Shm,
    mac: MacAddr,
    caps: LinkCaps,
    reach: Reach,
    open: Option<Open>,
    /// The open frame's bytes.
    bytes: Vec<u8>,
    counters: LinkCounters,
    checked_ns: u64,
    /// The relay has ended.
    gone: bool,
}

impl Relayed {
    /// Takes a slot of the relay that made this memory and described its device like this.
    pub fn attach(memory: impl AsFd, slot: u8, described: Described) -> Result<Self, RelayedError> {
        let Described { mac, slots, .. } = described;
        let mac = mac.of_slot(slot).filter(|_| slot < slots);
        let mac = mac.ok_or(RelayedError::Slot { slot, slots })?;
        let shm = Shm::attach(memory, u16::from(slot) + 1);
        let shm = shm.map_err(|source| RelayedError::Attach { slot, source })?;
        let ring = shm.caps();
        if shm.nodes() != usize::from(slots) + 1
            || ring.frame_bytes != ethernet_bytes(described.frame_bytes)
        {
            return Err(RelayedError::Contradiction);
        }
        let ring_frames = ring.receive_frames / usize::from(slots);
        let mut link = Self {
            mac,
            caps: LinkCaps {
                name: NAME,
                frame_bytes: described.frame_bytes,
                receive_frames: ether::granted_slots(ring_frames).min(described.receive_frames),
                burst_frames: ring.burst_frames,
                gathers: false,
                broadcast: true,
                lossless: false,
                damages: true,
                polls_by_call: false,
            },
            reach: Reach::default(),
            open: None,
            bytes: Vec::with_capacity(ring.frame_bytes),
            counters: LinkCounters::default(),
            checked_ns: 0,
            gone: false,
            shm,
        };
        link.announce();
        Ok(link)
    }

    /// Lets switches learn where we are. If the relay takes nothing now, the first frame does it.
    fn announce(&mut self) {
        let frame = ether::announcement(self.mac);
        let _ = self.shm.send_one(TO_RELAY, Frame::whole(&frame));
        let _ = self.shm.flush();
    }

    /// Gives the open Ethernet frame to the relay. `false`: it has no room.
    #[inline]
    fn close(&mut self) -> Result<bool, LinkError> {
        let Some(open) = &self.open else {
            return Ok(true);
        };
        let is_sent = self.shm.send_one(TO_RELAY, Frame::whole(&self.bytes))?;
        if is_sent {
            self.counters.sent_frames += open.frames;
            let lengths = LENGTH_BYTES as u64 * open.frames;
            self.counters.sent_bytes += (self.bytes.len() - HEADER_BYTES) as u64 - lengths;
            self.open = None;
        }
        Ok(is_sent)
    }

    /// Writes a frame behind the open ones, or begins an Ethernet frame with it.
    #[inline]
    fn gather(&mut self, to: MacAddr, frame: &Frame<'_>) -> Result<bool, LinkError> {
        let bytes = frame.bytes();
        assert!(bytes <= self.caps.frame_bytes, "a frame of a legal length");
        let most = LEAD_BYTES + self.reach.of(to, self.caps.frame_bytes);
        let joins = |open: &Open| open.to == to && self.bytes.len() + LENGTH_BYTES + bytes <= most;
        if !self.open.as_ref().is_some_and(joins) {
            if !self.close()? {
                return Ok(false);
            }
            self.bytes.resize(HEADER_BYTES, 0);
            ether::write_header(&mut self.bytes, to, self.mac);
            self.open = Some(Open { to, frames: 0 });
        }
        if let Some(open) = &mut self.open {
            open.frames += 1;
        }
        let at = self.bytes.len();
        self.bytes.resize(at + LENGTH_BYTES, 0);
        ether::write_length(&mut self.bytes[at..], bytes);
        self.bytes.extend_from_slice(frame.head);
        self.bytes.extend_from_slice(frame.body);
        Ok(true)
    }

    /// Asks the kernel whether the relay lives.
    #[cold]
    fn check_relay(&mut self) {
        self.gone = self.shm.process_at(TO_RELAY) == Some(0);
    }

    #[cfg(test)]
    pub(super) fn in_memory(&mut self) -> &mut Shm {
        &mut self.shm
    }

    fn require_relay(&self) -> Result<(), LinkError> {
        if self.gone {
            return Err(LinkError::Io {
                what: "the relay has ended; start it and open the link anew",
                source: std::io::ErrorKind::NotConnected.into(),
            });
        }
        Ok(())
    }
}

impl Link for Relayed {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Ether(self.mac)
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        ether::destination(NAME, self.mac, to)?;
        let room = self.shm.capacity(TO_RELAY)?;
        let frames = room.frames - usize::from(self.open.is_some()).min(room.frames);
        self.counters.refused += u64::from(frames == 0);
        Ok(Capacity { frames, ..room })
    }

    #[inline]
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let mac = ether::destination(NAME, self.mac, to)?;
        let mut sent = 0;
        for frame in frames {
            if !self.gather(mac, frame)? {
                self.counters.refused += 1;
                break;
            }
            sent += 1;
        }
        Ok(sent)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        self.require_relay()?;
        let Self {
            shm, mac, counters, ..
        } = self;
        let mut handed = 0;
        // One at a time: each may hold several of ours.
        while handed < max {
            let taken = shm.receive(
                1,
                &mut each(|_, frame| match ether::accept(frame, *mac) {
                    Ok((from, payload)) => {
                        handed += ether::hand_over(from, payload, counters, receiver);
                    }
                    Err(ignored) => counters.dropped_frames += u64::from(ignored.is_drop()),
                }),
            )?;
            if taken == 0 {
                break;
            }
        }
        if handed == 0 && self.open.is_some() {
            self.flush()?; // the relay may have made room
        }
        Ok(handed)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.close()?;
        self.shm.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        self.flush()?;
        self.check_relay();
        self.require_relay()?;
        let waits = self.open.is_some();
        self.shm.wait(if waits {
            timeout.min(TUNING.unsent_sleep)
        } else {
            timeout
        })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.shm.fd()
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.flush()?;
        self.check_relay();
        self.require_relay()?;
        self.shm.arm_fd()
    }

    fn has_unsent(&mut self) -> bool {
        self.open.is_some()
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        if let Ok(mac) = ether::destination(NAME, self.mac, to) {
            self.reach.set(mac, frame_bytes, self.caps.frame_bytes);
        }
    }

    #[inline]
    fn note_time(&mut self, now_ns: u64) {
        if now_ns.wrapping_sub(self.checked_ns) >= TUNING.relay.check_every_ns {
            self.checked_ns = now_ns;
            self.check_relay();
        }
    }

    fn counters(&self) -> LinkCounters {
        self.counters
    }
}
