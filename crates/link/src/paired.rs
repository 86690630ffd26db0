//! Two links as one: processes of this host are reached over shared memory, all others over a network.
//!
//! The address decides: `LinkAddr::Local` is shared memory, everything else the network. A broadcast leaves on both. The two have frames of different
//! sizes, so `Link::caps_to` tells the properties of the way to one address.
//!
//! Polling shared memory costs some nanoseconds. Where polling the network is a system call (`LinkCaps::polls_by_call`), it would be most of a wait
//! for a process of this host. So a network that was silent for a while is polled less often: see `NetworkPolls`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::checked::Checked;
use crate::shm::Shm;
use crate::sleep::{either_of, sleep_on};
use crate::tuning::TUNING;
use crate::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, MayHaveRings, Receiver,
    Rings, SealCounters,
};

/// Decides when the network is polled.
#[derive(Debug, Default)]
struct NetworkPolls {
    is_system_call: bool,
    empty_polls: u32,
    now_ns: u64,
    polled_ns: u64,
}

impl NetworkPolls {
    #[inline]
    fn is_wanted(&self) -> bool {
        !self.is_system_call
            || self.empty_polls < TUNING.paired.eager_polls
            || self.now_ns.wrapping_sub(self.polled_ns) >= TUNING.paired.poll_every_ns
    }

    #[inline]
    fn note_poll(&mut self, frames: usize) {
        self.empty_polls = if frames > 0 {
            0
        } else {
            self.empty_polls.saturating_add(1)
        };
        self.polled_ns = self.now_ns;
    }
}

/// Shared memory within this host, and a network beyond it.
#[derive(Debug)]
pub struct Paired<N: Link> {
    shm: Shm,
    network: Checked<N>,
    polls: NetworkPolls,
    /// An epoll descriptor over those of both links; `None`: one of them has none.
    both: Option<OwnedFd>,
    addr: LinkAddr,
}

impl<N: Link> Paired<N> {
    /// Pairs a place in a shared-memory job of this host with a link that leaves it.
    pub fn new(shm: Shm, network: N) -> std::io::Result<Self> {
        let network = Checked::new(network);
        let both = shm.fd().zip(network.fd());
        let both = both.map(|(shm, network)| either_of([shm, network]));
        let both = both.transpose()?;
        Ok(Self {
            addr: network.local_addr(),
            polls: NetworkPolls {
                is_system_call: network.caps().polls_by_call,
                ..NetworkPolls::default()
            },
            shm,
            network,
            both,
        })
    }

    /// The same link under the address by which processes of this host know it, for tests among these alone.
    #[doc(hidden)]
    #[must_use]
    pub fn known_locally(mut self) -> Self {
        self.addr = self.shm.local_addr();
        self
    }

    /// The part in shared memory.
    #[inline]
    pub fn shm(&self) -> &Shm {
        &self.shm
    }

    /// The same, mutable.
    #[inline]
    pub fn shm_mut(&mut self) -> &mut Shm {
        &mut self.shm
    }
}

impl<N: Link> Link for Paired<N> {
    /// Properties of what leaves the host, and of broadcasts.
    fn caps(&self) -> LinkCaps {
        let (shm, network) = (self.shm.caps(), self.network.caps());
        LinkCaps {
            name: match network.name {
                "udp" => "shm+udp",
                "packet" => "shm+packet",
                "xdp" => "shm+xdp",
                "dpdk" => "shm+dpdk",
                "relay" => "shm+relay",
                _ => "shm+network",
            },
            frame_bytes: network.frame_bytes.min(shm.frame_bytes),
            broadcast: network.broadcast && shm.broadcast,
            ..network
        }
    }

    fn caps_to(&self, to: LinkAddr) -> LinkCaps {
        match to {
            LinkAddr::Local(_) => self.shm.caps(),
            LinkAddr::Broadcast => self.caps(),
            _ => self.network.caps(),
        }
    }

    fn local_addr(&self) -> LinkAddr {
        self.addr
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        match to {
            LinkAddr::Local(_) => self.shm.capacity(to),
            LinkAddr::Broadcast => {
                let (near, far) = (self.shm.capacity(to)?, self.network.capacity(to)?);
                Ok(Capacity {
                    frames: near.frames.min(far.frames),
                    bytes: near.bytes.min(far.bytes),
                })
            }
            _ => self.network.capacity(to),
        }
    }

    #[inline]
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        match to {
            LinkAddr::Local(_) => self.shm.send(to, frames),
            LinkAddr::Broadcast => {
                // Shared memory takes every broadcast, so those that the network takes have left on both.
                let taken = self.network.send(to, frames)?;
                self.shm.send(to, &frames[..taken])?;
                Ok(taken)
            }
            _ => self.network.send(to, frames),
        }
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let near = self.shm.receive(max, receiver)?;
        if !self.polls.is_wanted() {
            return Ok(near);
        }
        // At least a few, so that a busy host does not keep the network waiting.
        let rest = max.saturating_sub(near).max(max.min(4));
        let far = self.network.receive(rest, receiver)?;
        self.polls.note_poll(far);
        Ok(near + far)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.shm.flush()?;
        self.network.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if self.both.is_none() {
            self.shm.flush()?;
            return self.network.wait(timeout.min(TUNING.blind_sleep));
        }
        if self.arm_fd()?
            && let Some(both) = &self.both
        {
            let most = self.network.unsent_sleep().unwrap_or(timeout);
            sleep_on(both, timeout.min(most));
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.both.as_ref().map(AsFd::as_fd)
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.polls.empty_polls = 0; // what ends the sleep may be of the network
        let near = self.shm.arm_fd()?;
        Ok(self.network.arm_fd()? && near)
    }

    fn has_unsent(&mut self) -> bool {
        self.network.has_unsent()
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        match to {
            LinkAddr::Local(_) => self.shm.set_reach(to, frame_bytes),
            _ => self.network.set_reach(to, frame_bytes),
        }
    }

    #[inline]
    fn note_time(&mut self, now_ns: u64) {
        self.polls.now_ns = now_ns;
        self.network.note_time(now_ns);
    }

    fn counters(&self) -> LinkCounters {
        let near = self.shm.counters();
        LinkCounters {
            near_frames: near.sent_frames,
            near_bytes: near.sent_bytes,
            ..near.plus(&self.network.counters())
        }
    }

    fn sealing(&self) -> Option<SealCounters> {
        self.network.sealing()
    }
}

impl<L: Link> MayHaveRings for Paired<L> {
    fn rings(&self) -> Option<&impl Rings> {
        Some(&self.shm)
    }

    #[inline]
    fn rings_mut(&mut self) -> Option<&mut impl Rings> {
        Some(&mut self.shm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network polled by system calls is polled at each call while it brings frames and a little longer, then by the clock; any other always.
    #[test]
    fn silent_networks_are_polled_by_the_clock() {
        let mut polls = NetworkPolls {
            is_system_call: true,
            ..NetworkPolls::default()
        };
        for _ in 0..TUNING.paired.eager_polls {
            assert!(polls.is_wanted());
            polls.note_poll(0);
        }
        assert!(!polls.is_wanted());
        polls.now_ns = TUNING.paired.poll_every_ns;
        assert!(polls.is_wanted());
        polls.note_poll(0);
        assert!(!polls.is_wanted());
        polls.now_ns += TUNING.paired.poll_every_ns;
        polls.note_poll(1);
        assert!(polls.is_wanted(), "it brought something");
        polls = NetworkPolls::default();
        polls.empty_polls = u32::MAX;
        polls.note_poll(0);
        assert!(polls.is_wanted());
    }
}
