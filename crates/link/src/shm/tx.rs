//! Transmit half: frames into our own rings, and the ringing of bells.
//!
//! Called by `Shm::send_with` and `Shm::flush`.

use super::Shm;
use super::doorbell::{self, Ring};
use super::ring::{Producer, Sent};
use super::sys::{self, LinesRw};
use crate::{LinkAddr, LinkError};

impl Shm {
    /// Writes a frame into the ring towards `node`, or towards that life of it only. `false`: no room, or no such process now.
    #[inline]
    pub(super) fn send_to(
        &mut self,
        (node, life): (u16, Option<u64>),
        write: impl FnOnce(&mut Producer, &LinesRw, &dyn Fn() -> Option<u64>) -> Sent,
    ) -> Result<bool, LinkError> {
        let peer = match self.peers.get_mut(usize::from(node)) {
            Some(peer) if node != self.me => peer,
            _ => {
                return Err(LinkError::NoSuchPeer {
                    link: super::NAME,
                    to: LinkAddr::Local(node),
                });
            }
        };
        if life.is_some_and(|life| life != peer.life) {
            return Ok(false);
        }
        let Some(inbound) = peer.inbound.as_mut().filter(|inbound| inbound.sendable) else {
            self.counters.refused += 1;
            return Ok(false);
        };
        let life = self.life;
        match write(&mut peer.producer, &peer.lines, &|| inbound.taken(life)) {
            Sent::Frame(bytes) => {
                self.counters.sent_frames += 1;
                self.counters.sent_bytes += bytes as u64;
                if !peer.touched {
                    peer.touched = true;
                    self.touched.push(node);
                }
                Ok(true)
            }
            Sent::Declined => Ok(true),
            Sent::Full => {
                self.counters.refused += 1;
                Ok(false)
            }
            Sent::Broken => {
                inbound.sendable = false;
                self.counters.refused += 1;
                tracing::warn!(peer = %peer.addr, life = peer.life, "shared-memory head is garbage; not sending until the peer restarts");
                Ok(false)
            }
        }
    }

    /// Writes a frame into our broadcast ring, over whatever is oldest there.
    pub(super) fn send_to_all(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) {
        let bytes = fill(&mut self.slot);
        if bytes == 0 {
            return;
        }
        let frame = &self.slot[..bytes];
        self.broadcast.send(&self.words, frame);
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += bytes as u64;
        for &node in &self.live {
            let peer = &mut self.peers[usize::from(node)];
            if !peer.touched {
                peer.touched = true;
                self.touched.push(node);
            }
        }
    }

    /// Wakes those that sleep of all we sent to.
    #[inline]
    pub(super) fn ring_bells(&mut self) {
        if self.touched.is_empty() {
            return;
        }
        sys::fence_before_bell(self.is_fenced);
        for &node in &self.touched {
            let peer = &mut self.peers[usize::from(node)];
            peer.touched = false;
            match doorbell::ring(&peer.bell, &mut peer.rung) {
                Ring::Nobody => {}
                Ring::Futex => peer.bell.futex_wake(),
                Ring::Fd => {
                    if let (Some(socket), Some(inbound)) = (&self.socket, &peer.inbound) {
                        socket.ring(inbound.bell_name);
                    }
                }
            }
            peer.producer.warm(&peer.lines);
        }
        self.touched.clear();
    }

    /// Looks at the directory and turns to peers that began a new life.
    #[cold]
    pub(super) fn refresh(&mut self) -> Result<(), LinkError> {
        // The counter first: an entry that appears while we read the directory raises it again.
        self.changes_seen = self.job.changes();
        self.live.clear();
        for (node, peer) in (0u16..).zip(&mut self.peers) {
            if node == self.me {
                continue;
            }
            let life = self.job.life_of(node.into());
            if life != peer.life {
                let sound = peer
                    .turn_to(
                        &self.job,
                        self.me,
                        node.into(),
                        life,
                        &self.broadcast,
                        self.life,
                    )
                    .map_err(|error| LinkError::Io {
                        what: "cannot map the memory of a peer that attached",
                        source: std::io::Error::other(error),
                    })?;
                if !sound {
                    self.counters.dropped_frames += 1;
                    tracing::warn!(node, life, "the directory names an impossible life");
                }
            }
            if peer.inbound.is_some() {
                self.live.push(node);
            }
        }
        self.cursor = 0;
        if self.has_dead_lives {
            self.free_dead_lives();
        }
        Ok(())
    }
}
