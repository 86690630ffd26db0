//! One device for several processes of a host: a relay has the device, and the processes reach it over shared memory.
//!
//! For devices that one process must own (`xdp`, `dpdk`). The relay is a small switch: processes write whole Ethernet frames into their rings, and it
//! passes them to the device, and those that come from there to the process in whose slot their destination is (docs/decisions/0053). It knows
//! nothing of what is in them, and so it may serve several clusters at a time. `Relay` is the owner's side, `Relayed` the link of a process.
//!
//! A frame is copied twice more than without a relay. When the device is full, frames wait in the rings of their senders; when the ring of a process is full, the
//! relay drops, as a device would. It keeps no state of a process, so one that is killed leaves nothing behind.
//!
//! Left out on purpose: frames between processes of one host (they have shared memory of their own); protection of processes that one user attached
//! from each other, beyond the check that each sends under its own address.

mod link;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

pub use link::{Described, Relayed, RelayedError};

use crate::ether::{ETHERTYPE, HEADER_BYTES, MacAddr, Stations};
use crate::shm::{RING_BYTES_MAX, Shm, ShmAttachError, ShmConfig, ShmCreateError, ShmJob};
use crate::sleep::{either_of, sleep_on};
use crate::tuning::TUNING;
use crate::{Frame, Link, LinkAddr, LinkError, Rings, each};

/// Name of a process that is a relay, as the kernel shows it.
pub const PROCESS_NAME: &str = "tsumuji-relay";

/// A link that also carries Ethernet frames as they are.
pub trait Ethernet: Link {
    /// Hands over received Ethernet frames, for whatever station, until there are none or `max` were handed over. Returns their number.
    fn receive_ethernet(&mut self, max: usize, take: impl FnMut(&[u8]))
    -> Result<usize, LinkError>;

    /// Takes an Ethernet frame of at most 16 bytes more than `LinkCaps::frame_bytes`; it leaves at the latest with `flush`. `false`: no room.
    fn send_ethernet(&mut self, frame: &[u8]) -> Result<bool, LinkError>;
}

/// What a relay passed on, and what not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayCounters {
    /// Ethernet frames from processes to the device.
    pub sent_frames: u64,
    /// Ethernet frames from the device to processes.
    pub received_frames: u64,
    /// Frames for a process whose ring was full.
    pub full_frames: u64,
    /// Frames for a slot without a process.
    pub absent_frames: u64,
    /// Frames of other protocols or stations.
    pub foreign_frames: u64,
    /// Frames of processes that were no frames of ours from their own address.
    pub refused_frames: u64,
}

/// Why there is no relay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The memory for the processes cannot be made.
    #[error(transparent)]
    Create(#[from] ShmCreateError),
    /// The memory for the processes cannot be attached.
    #[error(transparent)]
    Attach(#[from] ShmAttachError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The device has no Ethernet address.
    #[error("this link has no Ethernet address; a relay takes `xdp:INTERFACE` or `dpdk:DEVICE`")]
    NoAddress,
    /// There is no such number of slots.
    #[error("{slots} slots: accepted are 1 to {}", MacAddr::SLOTS)]
    Slots {
        /// The number asked for.
        slots: u8,
    },
}

/// The owner of a device, and its rings to the processes.
#[derive(Debug)]
pub struct Relay<D: Ethernet> {
    device: D,
    shm: Shm,
    memory: OwnedFd,
    stations: Stations,
    counters: RelayCounters,
    /// An epoll descriptor over those of both sides; `None`: one of them has none.
    both: Option<OwnedFd>,
}

impl<D: Ethernet> Relay<D> {
    /// Takes over a device that takes frames for the first so many slots of its interface.
    pub fn new(device: D, slots: u8) -> Result<Self, RelayError> {
        let LinkAddr::Ether(base) = device.local_addr() else {
            return Err(RelayError::NoAddress);
        };
        if !(1..=MacAddr::SLOTS).contains(&slots) {
            return Err(RelayError::Slots { slots });
        }
        let frame_bytes = link::ethernet_bytes(device.caps().frame_bytes);
        let ring_bytes = (TUNING.relay.ring_frames * (frame_bytes + 64)).next_power_of_two();
        let nodes = usize::from(slots) + 1;
        let config = ShmConfig {
            frame_bytes,
            ring_bytes: ring_bytes.clamp(TUNING.relay.ring_bytes_min, RING_BYTES_MAX),
            ..ShmConfig::for_nodes(nodes)
        };
        let memory = ShmJob::create(nodes, config)?;
        let shm = Shm::attach(&memory, link::RELAY)?;
        let both = shm.fd().zip(device.fd());
        let both = both.map(|(near, far)| either_of([near, far]));
        let both = both.transpose().map_err(|source| RelayError::Io {
            what: "make an epoll descriptor",
            source,
        })?;
        Ok(Self {
            device,
            shm,
            memory,
            stations: Stations { base, slots },
            counters: RelayCounters::default(),
            both,
        })
    }

    /// The memory that processes attach to, by [`Relayed::attach`].
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// What they need to know of the device.
    pub fn describe(&self) -> Described {
        let caps = self.device.caps();
        Described {
            mac: self.stations.base,
            slots: self.stations.slots,
            frame_bytes: caps.frame_bytes,
            receive_frames: caps.receive_frames,
        }
    }

    /// The number of processes that are attached. Asks the kernel.
    pub fn processes(&self) -> usize {
        let all = 1..=u16::from(self.stations.slots);
        let is_there = |index: &u16| {
            let process = self.shm.process_at(LinkAddr::Local(*index));
            process.is_some_and(|process| process != 0)
        };
        all.filter(is_there).count()
    }

    /// What was passed on so far.
    pub fn counters(&self) -> RelayCounters {
        self.counters
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Passes on what there is, some frames each way. Returns their number.
    pub fn poll_once(&mut self) -> Result<usize, LinkError> {
        let frames = self.inward()? + self.outward()?;
        if frames > 0 {
            self.shm.flush()?;
            self.device.flush()?;
        }
        Ok(frames)
    }

    /// From the device to the processes.
    fn inward(&mut self) -> Result<usize, LinkError> {
        let Self {
            device,
            shm,
            stations,
            counters,
            ..
        } = self;
        let mut failed = None;
        let frames = device.receive_ethernet(TUNING.relay.burst_frames, |frame| {
            if let Err(error) = deliver(frame, shm, *stations, counters) {
                failed = Some(error);
            }
        })?;
        failed.map_or(Ok(frames), Err)
    }

    /// From the processes to the device.
    fn outward(&mut self) -> Result<usize, LinkError> {
        let Self {
            device,
            shm,
            stations,
            counters,
            ..
        } = self;
        // What the device does not take now stays in the rings, and their senders wait.
        let room = device.capacity(LinkAddr::Broadcast)?.frames;
        let mut failed = None;
        let frames = shm.receive(
            room.min(TUNING.relay.burst_frames),
            &mut each(|from, frame| {
                if !is_sound(from, frame, *stations) {
                    counters.refused_frames += 1;
                    return;
                }
                match device.send_ethernet(frame) {
                    Ok(true) => counters.sent_frames += 1,
                    Ok(false) => counters.full_frames += 1, // it had room: a device that lies
                    Err(error) => failed = Some(error),
                }
            }),
        )?;
        failed.map_or(Ok(frames), Err)
    }

    /// Sleeps until there may be a frame, or `timeout` has passed.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let Some(both) = &self.both else {
            self.shm.flush()?;
            return self.device.wait(timeout.min(TUNING.blind_sleep));
        };
        if self.shm.arm_fd()? && self.device.arm_fd()? {
            let most = self.device.unsent_sleep().unwrap_or(timeout);
            sleep_on(both, timeout.min(most));
        }
        Ok(())
    }
}

/// Destination and source of an Ethernet frame of ours.
#[inline]
fn addresses(frame: &[u8]) -> Option<(MacAddr, MacAddr)> {
    let (header, _) = frame.split_first_chunk::<HEADER_BYTES>()?;
    let (destination, rest) = header.split_first_chunk::<6>()?;
    let (source, ethertype) = rest.split_first_chunk::<6>()?;
    (*ethertype == ETHERTYPE.to_be_bytes()).then_some((MacAddr(*destination), MacAddr(*source)))
}

/// Writes a frame that the device received into the ring of the process that it is for, or into all.
#[inline]
fn deliver(
    frame: &[u8],
    shm: &mut Shm,
    stations: Stations,
    counters: &mut RelayCounters,
) -> Result<(), LinkError> {
    let to = addresses(frame).and_then(|(destination, source)| match destination {
        _ if stations.slot_of(source).is_some() => None, // our own, by a loop of the net
        MacAddr::BROADCAST => Some(0..stations.slots),
        _ => stations.slot_of(destination).map(|slot| slot..slot + 1),
    });
    let Some(to) = to.filter(|_| frame.len() <= shm.caps().frame_bytes) else {
        counters.foreign_frames += 1;
        return Ok(());
    };
    let is_for_one = to.len() == 1;
    for slot in to {
        let process = link::process(slot);
        if shm.send_one(process, Frame::whole(frame))? {
            counters.received_frames += 1;
        } else if shm.heard(process).is_some() {
            counters.full_frames += 1;
        } else {
            counters.absent_frames += u64::from(is_for_one);
        }
    }
    Ok(())
}

/// Whether a process may send this: a frame of our protocol, from its own address, to others.
#[inline]
fn is_sound(from: LinkAddr, frame: &[u8], stations: Stations) -> bool {
    let Some((destination, source)) = addresses(frame) else {
        return false;
    };
    let is_own = stations.slot_of(source).map(link::process) == Some(from);
    let goes_out = stations.slot_of(destination).is_none();
    is_own && goes_out && (destination.is_station() || destination == MacAddr::BROADCAST)
}
