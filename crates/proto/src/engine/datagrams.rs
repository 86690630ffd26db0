//! Submitting datagrams: those of one frame leave at once or wait for room in the link; longer ones use packet numbers.

use alloc::vec::Vec;

use super::Engine;
use super::submit::{admit, push_ready};
use crate::config::Config;
use crate::datagrams::{Dropped, Waiting};
use crate::event::Destination;
use crate::message::SubmitError;
use crate::peer::queue::datagrams::NEVER;
use crate::peer::session::Phase;
use crate::time::Instant;
use tsumuji_wire::{
    Channel, DATAGRAM_HEADER_BYTES, Datagram, MAX_PAYLOAD_BYTES, NodeId, STAMP_BYTES,
};

impl Engine {
    /// Sends a datagram as soon as there is room, unless a newer one of its channel and key replaces it or `deadline` passes first. It waits for a
    /// peer that was not met yet. Up to [`datagram_capacity_bytes`](Self::datagram_capacity_bytes) it takes one frame; a longer one goes to
    /// each peer by packet numbers, and lost frames are not sent again. Returns for how many peers it is not even queued: they are dead, or
    /// their queues are full.
    pub fn submit_datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Instant>,
    ) -> Result<usize, SubmitError> {
        if let Destination::Peer(peer) = to
            && self.peer(peer).is_none()
        {
            return Err(SubmitError::UnknownPeer { peer });
        }
        let deadline = deadline.unwrap_or(NEVER);
        if datagram.payload.len() > self.datagram_capacity_bytes() {
            return self.submit_long(to, datagram, deadline);
        }
        let size = datagram.payload.len();
        let body = self.shared.pool.take(size);
        let mut payload = body.ok_or(SubmitError::NoMemory { size })?;
        payload.extend_from_slice(datagram.payload);
        self.datagrams.push(
            Waiting {
                to,
                channel_id: datagram.channel_id,
                key: datagram.key,
                epoch: datagram.epoch,
                lap: datagram.lap,
                payload,
                deadline,
            },
            &mut self.shared.pool,
        );
        self.note_dropped();
        Ok(0)
    }

    fn submit_long(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Instant,
    ) -> Result<usize, SubmitError> {
        let peers = match to {
            Destination::Peer(peer) => peer.0..=peer.0,
            Destination::Broadcast => 0..=self.peers.len().saturating_sub(1) as u16,
        };
        let mut missed = 0;
        for id in peers {
            if self.peer(NodeId(id)).is_none() {
                continue;
            }
            match self.submit_long_to(NodeId(id), datagram, deadline) {
                Ok(()) => {}
                Err(SubmitError::QueueFull { .. } | SubmitError::PeerDead { .. }) => missed += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(missed)
    }

    fn submit_long_to(
        &mut self,
        to: NodeId,
        datagram: Datagram<'_>,
        deadline: Instant,
    ) -> Result<(), SubmitError> {
        let size = STAMP_BYTES + datagram.payload.len();
        let channel = Channel::datagram(datagram.channel_id);
        let of = (channel, datagram.key);
        let replaced = self
            .peer(to)
            .map_or(0, |peer| peer.send.queue.replaced_bytes(of));
        let peer = admit(
            &mut self.peers,
            &self.shared.config,
            self.closed,
            (to, channel),
            (size, size.saturating_sub(replaced)),
        )?;
        let pool = &mut self.shared.pool;
        let mut body: Vec<u8> = pool.take(size).ok_or(SubmitError::NoMemory { size })?;
        body.extend_from_slice(&datagram.stamp());
        body.extend_from_slice(datagram.payload);
        peer.send.submit_datagram(of, body, deadline, pool);
        if deadline != NEVER {
            self.shared.arm(peer, deadline);
        }
        push_ready(&mut self.ready, peer);
        Ok(())
    }

    /// Header of a datagram that a driver gives to a link at once, without queueing it.
    #[inline]
    pub fn datagram_head(&self, datagram: Datagram<'_>) -> [u8; DATAGRAM_HEADER_BYTES] {
        let Config {
            me: source,
            incarnation,
            ..
        } = self.shared.config;
        let datagram = Datagram {
            source,
            incarnation,
            ..datagram
        };
        datagram.head()
    }

    /// Notes that such a datagram has left: an older one of its channel and key that waits is dropped.
    #[inline]
    pub fn datagram_left(&mut self, to: Destination, datagram: Datagram<'_>) {
        self.shared.counters.sent_frames += 1;
        self.shared.counters.sent_bytes += (DATAGRAM_HEADER_BYTES + datagram.payload.len()) as u64;
        if !self.datagrams.is_empty() {
            let of = (datagram.channel_id, datagram.key);
            self.datagrams.supersede(to, of, &mut self.shared.pool);
            self.note_dropped();
        }
    }

    /// Largest payload of a datagram in one frame: it fits the smallest frame size that was ever agreed with a peer.
    pub fn datagram_capacity_bytes(&self) -> usize {
        (self.shared.least_frame_bytes - DATAGRAM_HEADER_BYTES).min(MAX_PAYLOAD_BYTES)
    }

    /// The frame size agreed with the peer, or the smallest one agreed with any for a broadcast; the link's own if none is agreed.
    pub fn frame_bytes(&self, to: Destination) -> usize {
        let agreed = match to {
            Destination::Peer(peer) => self.peer(peer).map(|peer| match peer.frame_bytes {
                0 => peer.link.frame_bytes as usize,
                agreed => agreed,
            }),
            Destination::Broadcast => Some(self.shared.least_frame_bytes),
        };
        agreed.unwrap_or(self.shared.config.frame_bytes)
    }

    /// Destination of the first datagram that waits and may be tried now.
    pub(super) fn next_datagram(&mut self, now: Instant) -> Option<Destination> {
        loop {
            let next = self.datagrams.next(now, &mut self.shared.pool);
            self.note_dropped();
            let to = next?;
            let Destination::Peer(peer) = to else {
                return Some(to);
            };
            match self.peer(peer) {
                Some(peer) if peer.is_up() => return Some(to),
                Some(peer) if peer.session.phase != Phase::Dead => drop(self.datagrams.defer()),
                _ => self.drop_next_datagram(),
            }
        }
    }

    fn drop_next_datagram(&mut self) {
        if let Some(waiting) = self.datagrams.pop() {
            self.shared.pool.put(waiting.payload);
        }
    }

    /// Counts dropped datagrams for each peer that they were for.
    fn note_dropped(&mut self) {
        for dropped in self.datagrams.dropped() {
            let to = match dropped {
                Dropped::Superseded(to) | Dropped::Late(to) => to,
            };
            let missed = |peer: &&mut alloc::boxed::Box<crate::peer::Peer>| {
                to == Destination::Broadcast || to == Destination::Peer(peer.id)
            };
            for peer in self.peers.iter_mut().flatten().filter(missed) {
                let counts = &mut peer.send.queue.dropped;
                match dropped {
                    Dropped::Superseded(_) => counts.superseded += 1,
                    Dropped::Late(_) => counts.late += 1,
                }
            }
        }
    }
}
