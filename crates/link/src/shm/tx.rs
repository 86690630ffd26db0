//! Transmit half: writes frames and references to bodies into our own rings, and rings bells.
//!
//! Called by `Shm::send`, its like, and `Shm::flush`.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::Shm;
use super::doorbell::{self, Ring};
use super::memory::reference;
use super::peers::Peer;
use super::ring::{COUNTED, Producer, REFERS, Sent};
use super::sys::{self, LinesRw};
use crate::tuning::TUNING;
use crate::{Frame, LinkAddr, LinkError, Process};

/// Most bytes that a peer may be sent by reference, in rings.
const REFERENCE_RINGS: usize = 2;

impl Shm {
    /// Writes a frame into the ring towards `node`, only if that generation is present where one is given. `false`: no room, or no such process now.
    #[inline]
    pub(super) fn send_to(
        &mut self,
        (node, generation): (u16, Option<u64>),
        write: impl FnOnce(&mut Producer, &LinesRw, &dyn Fn() -> Option<u64>) -> Sent,
    ) -> Result<bool, LinkError> {
        let peer = self.peers.get_mut(usize::from(node));
        let Some(peer) = peer.filter(|_| node != self.me) else {
            if node == self.me || usize::from(node) >= self.job.layout.nodes_max {
                return Err(LinkError::NoSuchPeer {
                    link: super::NAME,
                    to: LinkAddr::Local(node),
                });
            }
            // Nobody has taken that place yet.
            self.counters.refused += 1;
            return Ok(false);
        };
        if generation.is_some_and(|generation| generation != peer.generation) {
            return Ok(false);
        }
        let open = peer.inbound.as_mut().filter(|inbound| inbound.sendable);
        let (Some(inbound), Some(lines)) = (open, &peer.lines) else {
            self.counters.refused += 1;
            return Ok(false);
        };
        let generation = self.generation;
        match write(&mut peer.producer, lines, &|| inbound.taken(generation)) {
            Sent::Frame(bytes) => {
                self.counters.sent_frames += 1;
                self.counters.sent_bytes += bytes as u64;
                peer.mark_pending(&mut self.bells_pending, node);
                Ok(true)
            }
            Sent::Full => {
                self.counters.refused += 1;
                Ok(false)
            }
            Sent::Broken => {
                inbound.sendable = false;
                self.counters.refused += 1;
                tracing::warn!(peer = %peer.addr, generation = peer.generation, "shared-memory head is garbage; not sending until the peer restarts");
                Ok(false)
            }
        }
    }

    /// How many bytes more can be sent by reference to that process.
    pub(super) fn reference_room_of(&self, to: Process) -> Option<usize> {
        let peer = self.peers.get(usize::from(to.index))?;
        let inbound = peer
            .inbound
            .as_ref()
            .filter(|_| peer.generation == to.generation)?;
        let most = inbound.reference_max(self.generation)?;
        let most = most.min(REFERENCE_RINGS * self.job.layout.ring_bytes);
        Some(most.saturating_sub(peer.referred.bytes()))
    }

    /// Writes a frame's head and a reference to its body into the ring; the body is held until it was read.
    pub(super) fn refer(
        &mut self,
        to: Process,
        counted: bool,
        head: &[u8],
        body: &Bytes,
    ) -> Result<bool, LinkError> {
        let room = self.reference_room_of(to);
        if room.is_none_or(|room| room < body.len()) {
            self.counters.refused += 1;
            return Ok(false);
        }
        let marks = REFERS | if counted { COUNTED } else { 0 };
        let parts = [head, &reference(body), &[]];
        let is_sent = self.send_to((to.index, Some(to.generation)), |producer, lines, taken| {
            producer.send(lines, taken, marks, &parts)
        })?;
        if is_sent {
            let peer = &mut self.peers[usize::from(to.index)];
            peer.referred.push(peer.producer.tail(), body.clone());
            self.has_referred = true;
            self.counters.sent_bytes += body.len() as u64;
        }
        Ok(is_sent)
    }

    /// Releases the bodies that have been read, or that nobody will read.
    #[cold]
    pub(super) fn take_back(&mut self) {
        let now_ms = sys::coarse_ms();
        let checks_claims = now_ms >= self.claims_seen_ms + TUNING.shm.claims_ms;
        if checks_claims {
            self.claims_seen_ms = now_ms;
        }
        self.has_referred = false;
        for (node, peer) in (0u16..).zip(&mut self.peers) {
            if peer.referred.is_empty() {
                continue;
            }
            let head = (peer.inbound.as_ref()).and_then(|inbound| inbound.taken(self.generation));
            if let Some(head) = head {
                peer.referred.read_to(head);
            }
            if checks_claims && self.job.is_claimed(node) == Some(false) {
                peer.referred.clear();
            }
            self.has_referred |= !peer.referred.is_empty();
        }
    }

    /// Writes a frame into our broadcast ring, over the oldest frames there.
    pub(super) fn send_to_all(&mut self, frame: &Frame<'_>) {
        let bytes = frame.write(&mut self.slot);
        let frame = &self.slot[..bytes];
        self.broadcast.send(&self.words, frame);
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += bytes as u64;
        for &node in &self.live {
            let peer = &mut self.peers[usize::from(node)];
            peer.mark_pending(&mut self.bells_pending, node);
        }
    }

    /// Wakes the sleeping peers that were sent frames since the last call.
    #[inline]
    pub(super) fn ring_bells(&mut self) {
        if self.bells_pending.is_empty() {
            return;
        }
        sys::fence_before_bell(self.is_fenced);
        for &node in &self.bells_pending {
            let peer = &mut self.peers[usize::from(node)];
            peer.bell_pending = false;
            match doorbell::ring(&peer.bell, &mut peer.rung) {
                Ring::Nobody => {}
                Ring::Futex => peer.bell.futex_wake(),
                Ring::Fd => {
                    if let (Some(socket), Some(inbound)) = (&self.socket, &peer.inbound) {
                        socket.ring(inbound.bell_name);
                    }
                }
            }
            if let Some(lines) = &peer.lines {
                peer.producer.warm(lines);
            }
        }
        self.bells_pending.clear();
    }

    /// Takes in the nodes that joined beyond those known so far.
    fn add_peers(&mut self) {
        let Self {
            job, own, peers, ..
        } = self;
        let known = peers.len();
        let newest = (known..job.nodes_seen()).rfind(|node| job.generation_of(*node) != 0);
        let nodes = newest.map_or(known, |newest| newest + 1);
        peers.extend((known..nodes).map(|node| Peer::new(job, own, node as u16)));
    }

    /// Reads the directory and switches to peers that began a new generation.
    #[cold]
    pub(super) fn refresh(&mut self) -> Result<(), LinkError> {
        // The counter first: an entry that appears while we read the directory raises it again.
        self.changes_seen = self.job.changes();
        self.add_peers();
        self.live.clear();
        let mut failed = None;
        for (node, peer) in (0u16..).zip(&mut self.peers) {
            if node == self.me {
                continue;
            }
            let generation = peer.entry.load(Ordering::Acquire);
            if generation != peer.generation {
                let switched = peer.switch_to(
                    &self.job,
                    self.me,
                    node.into(),
                    generation,
                    &self.broadcast,
                    self.generation,
                );
                if switched.is_err() {
                    peer.generation = 0; // it is tried again
                }
                let is_sound = switched.map_err(|error| failed = Some(error));
                if is_sound == Ok(false) {
                    self.counters.dropped_frames += 1;
                    tracing::warn!(
                        node,
                        generation,
                        "the directory names an impossible generation"
                    );
                }
            }
            if peer.inbound.is_some() {
                self.live.push(node);
            }
        }
        self.cursor = 0;
        if self.has_dead_generations {
            self.free_dead_generations();
        }
        let Some(error) = failed else {
            return Ok(());
        };
        // The other peers are served all the same.
        self.changes_seen = u64::MAX;
        Err(LinkError::Io {
            what: "cannot map the memory of a peer that attached",
            source: std::io::Error::other(error),
        })
    }
}
