//! Best-effort messages that the program gives: they leave at once, or wait for room; long ones go by number.

use alloc::vec::Vec;

use super::Engine;
use super::submit::{admit, await_turn};
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
    /// Has a datagram leave as soon as there is room for it, unless a newer one of its channel and key takes its place, or `deadline`
    /// passes; to a peer that was not met yet, soon after it is. Up to [`datagram_capacity_bytes`](Self::datagram_capacity_bytes) it takes
    /// a frame of its own; a longer one goes by number to each peer, and none of its frames is sent again. Returns for how many peers it does not even wait: they are dead, or
    /// too much waits for them.
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
        let replaced = self.peer(to).map_or(0, |peer| peer.send.replaced_bytes(of));
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
        await_turn(&mut self.ready, peer);
        Ok(())
    }

    /// What stands before the payload of a datagram that a driver gives a link at once: nothing is queued.
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

    /// Such a datagram has left: one of its channel and key that waits is worthless.
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

    /// Largest payload of a datagram that takes a frame of its own: what fits the smallest frames that were ever agreed with a peer.
    pub fn datagram_capacity_bytes(&self) -> usize {
        (self.shared.least_frame_bytes - DATAGRAM_HEADER_BYTES).min(MAX_PAYLOAD_BYTES)
    }

    /// The largest frames that reach the peer, as agreed when it was met, or all.
    pub fn frame_bytes(&self, to: Destination) -> usize {
        let agreed = match to {
            Destination::Peer(peer) => self.peer(peer).map_or(0, |peer| peer.frame_bytes),
            Destination::Broadcast => self.shared.least_frame_bytes,
        };
        if agreed > 0 {
            agreed
        } else {
            self.shared.config.frame_bytes
        }
    }

    /// To whom the first of those goes that wait, if one may be tried now.
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

    /// Counts what was dropped for each peer that misses it.
    fn note_dropped(&mut self) {
        for dropped in self.datagrams.dropped() {
            let to = match dropped {
                Dropped::Superseded(to) | Dropped::Late(to) => to,
            };
            let missed = |peer: &&mut alloc::boxed::Box<crate::peer::Peer>| {
                to == Destination::Broadcast || to == Destination::Peer(peer.id)
            };
            for peer in self.peers.iter_mut().flatten().filter(missed) {
                let counts = peer.send.dropped_mut();
                match dropped {
                    Dropped::Superseded(_) => counts.superseded += 1,
                    Dropped::Late(_) => counts.late += 1,
                }
            }
        }
    }
}
