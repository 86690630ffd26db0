//! Direct messages: over a link that keeps frames in order, loses none between the living, and tells which were read, a
//! message that fits a frame needs no number, credit, acknowledgement or timer. The link's ring is the window.
//!
//! A driver asks `direct` before it submits, and writes the frame it gets into the link; what finds no room there is submitted as any other.
//! Anything longer, tracked, paced or behind something that is queued takes the numbered way.
//!
//! Invariants: a direct message leaves only while nothing numbered to its peer is unacknowledged, so that none overtakes another; what
//! arrives beyond the half of the budget at which peers are told to stop is bounded by the memory set aside for it.

use super::receive::find;
use super::{Engine, Shared};
use crate::counters::{Counters, Drop};
use crate::memory::charge;
use crate::message::{Body, Delivery, Sink};
use crate::peer::Peer;
use crate::time::Instant;
use tsumuji_wire::{Data, Lane, NodeId, flags};

/// Memory set aside for each peer, in rings: of an empty message a ring's line holds as much as the budget counts for it, of other short ones less.
/// The rest is for what a peer sends on until it looks whether it may.
pub(super) const RINGS_ASIDE: usize = 2;

/// A message that may leave as a direct frame now.
#[derive(Debug)]
pub struct Direct<'a> {
    peer: &'a mut Peer,
    counters: &'a mut Counters,
    me: NodeId,
    lane: Lane,
}

impl Direct<'_> {
    /// Writes the frame: `head` and `rest` follow each other. Returns its length.
    #[inline]
    pub fn write(&mut self, (head, rest): (&[u8], &[u8]), slot: &mut [u8]) -> usize {
        let data = Data {
            source: self.me,
            destination: self.peer.id,
            flags: flags::DIRECT,
            session: self.peer.session.outgoing,
            number: 0,
            ack: 0,
            credit: 0,
            message: 0,
            offset: 0,
            length: (head.len() + rest.len()) as u32,
            floor_delta: 0,
            lane: self.lane,
            ack_delay: 0,
            payload: head,
        };
        let Some(bytes) = data.write_joined(rest, slot) else {
            return 0;
        };
        self.peer.send.pass_by(self.lane);
        self.peer.direct.sent += u32::from(!self.lane.is_library());
        self.counters.direct_messages += 1;
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += bytes as u64;
        bytes
    }
}

impl Engine {
    /// The message of that lane and length, if it may leave as a direct frame now; `None`: it is to be submitted.
    #[inline]
    pub fn direct(&mut self, to: NodeId, lane: Lane, bytes: usize) -> Option<Direct<'_>> {
        let peer = (self.peers.get_mut(usize::from(to.0))).and_then(Option::as_deref_mut)?;
        let may = peer.direct.permitted
            && peer.send.is_idle()
            && bytes <= peer.send.fragment_bytes().min(peer.message_limit_bytes)
            && !lane.is_latest()
            && peer.send.admits(lane)
            && peer.is_up()
            && !self.closed;
        may.then_some(Direct {
            peer,
            counters: &mut self.shared.counters,
            me: self.shared.config.me,
            lane,
        })
    }

    /// Something waits to be written, or to be told.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.shared.events.is_empty() || self.shares.front().is_some()
    }

    /// Did the session that has just ended leave direct messages, of which only the link knows how many were not read? Asked once.
    pub fn take_unsettled(&mut self, peer: NodeId) -> bool {
        self.peer_mut(peer)
            .is_some_and(|peer| core::mem::take(&mut peer.direct.unsettled))
    }

    #[inline]
    pub(super) fn handle_direct(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        let (peer, shared) = find(
            &mut self.peers,
            &mut self.shared,
            now,
            data.source,
            data.destination,
            Some(data.session),
        )?;
        let length = data.payload.len();
        if shared.config.ring_bytes == 0
            || data.length as usize != length
            || length > shared.memory.limit_bytes()
            || data.is_bundle()
            || data.lane.is_latest()
        {
            return Err(Drop::Malformed);
        }
        if shared.memory.is_overrun() {
            return Err(Drop::Memory); // of who goes on though it was told to stop
        }
        if !peer.receive.pass_by(data.lane) {
            return Err(Drop::Malformed);
        }
        if peer.direct.unheard {
            tell_again(peer);
        }
        shared.memory.hold(length);
        peer.receive.grant.used_bytes += charge(length);
        peer.last_heard = now;
        peer.direct.taken += u32::from(!data.lane.is_library());
        shared.counters.delivered_messages += 1;
        let life = peer.life;
        if peer.direct.open && shared.memory.used_bytes() > shared.memory.half_bytes() {
            set_open(peer, false);
            shared.has_shut = true;
            self.enqueue(data.source, now);
        }
        sink.message(Delivery {
            from: data.source,
            life,
            lane: data.lane,
            body: Body::Frame(data.payload),
        });
        Ok(())
    }

    /// Looks again from whom direct messages are taken: the rules have changed, or memory is free again.
    #[cold]
    pub(super) fn review_direct(&mut self) {
        self.shared.has_shut = false;
        self.set_aside();
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_deref_mut() else {
                continue;
            };
            let takes = takes_direct(peer, &self.shared);
            if peer.is_up() && takes != peer.direct.open {
                set_open(peer, takes);
                let id = peer.id.0;
                self.enqueue_ack(id);
            }
            self.shared.has_shut |= !takes;
        }
    }

    /// Sets memory aside for what peers send until they hear that they are to stop.
    pub(super) fn set_aside(&mut self) {
        let peers = self.shared.credit.peers();
        let bytes = (RINGS_ASIDE * peers).saturating_mul(self.shared.config.ring_bytes);
        self.shared.memory.set_aside(bytes);
    }
}

/// The peer is to be told, in a frame of its own.
pub(super) fn set_open(peer: &mut Peer, open: bool) {
    (peer.direct.open, peer.direct.word_due) = (open, true);
    peer.receive.ack_now = true;
}

/// The first frame of a session has come: the peer is up, and hears what it may have missed before.
#[cold]
pub(super) fn tell_again(peer: &mut Peer) {
    peer.direct.unheard = false;
    if peer.direct.open {
        set_open(peer, true);
    }
}

/// Whether direct messages of that peer are taken now: where the usual rules decide who may send how much, and half of the budget is free.
pub(super) fn takes_direct(peer: &Peer, shared: &Shared) -> bool {
    let is_plain = shared.credit.is_plain() && peer.receive.grant.limit == u64::MAX;
    shared.memory.aside_bytes() > 0
        && is_plain
        && shared.memory.used_bytes() <= shared.memory.half_bytes() / 2
}
