//! Runs: frames of a long message whose payloads a link sends from where they lie, without a copy of its own.
//!
//! Called by drivers whose link can gather: `has_run` instead of `write_frame`, then `begin_run`, then `run` gives the frames. They
//! count as sent from `begin_run` on, and what they lie in lasts until the engine is told anything else.
//!
//! Invariant: all frames of a run are fragments of long messages, never sent before, in order: of one size, but perhaps the last.

use alloc::vec::Vec;

use super::Engine;
use super::transmit::next_data;
use crate::event::Destination;
use crate::message::Loan;
use crate::peer::Peer;
use crate::peer::send::Part;
use crate::time::Instant;
use tsumuji_wire::{DATA_HEADER_BYTES, NodeId};

/// The run begun last.
#[derive(Debug, Default)]
pub(super) struct Run {
    to: Option<NodeId>,
    frames: Vec<([u8; DATA_HEADER_BYTES], Part)>,
}

impl Engine {
    /// May a run towards `to` begin, what `next_destination` just answered?
    #[inline]
    pub fn has_run(&mut self, now: Instant, to: Destination) -> bool {
        let Destination::Peer(id) = to else {
            return false;
        };
        if self.datagrams.is_due() {
            return false;
        }
        self.peer_mut(id).is_some_and(|peer| begins_run(now, peer))
    }

    /// Takes up to `most_frames` frames that are due there, of `most_bytes` together; `loan` as for `write_frame_lent`. Returns how
    /// many: none if `has_run` says no, or none fits.
    pub fn begin_run(
        &mut self,
        now: Instant,
        to: Destination,
        loan: &Loan<'_>,
        (most_frames, most_bytes): (usize, usize),
    ) -> usize {
        self.run.frames.clear();
        let busy = self.ready.len() > 1;
        let Destination::Peer(id) = to else {
            return 0;
        };
        let Some(peer) = self
            .peers
            .get_mut(usize::from(id.0))
            .and_then(Option::as_deref_mut)
        else {
            return 0;
        };
        if self.datagrams.is_due() || !begins_run(now, peer) {
            return 0;
        }
        self.run.to = Some(id);
        let session = peer.session.outgoing;
        let Some((_, size)) = peer.send.long_next() else {
            return 0;
        };
        let fits = |next: Option<(usize, usize)>| next.is_some_and(|(_, bytes)| bytes <= size);
        let (mut bytes, mut whole) = (0, true);
        while whole
            && self.run.frames.len() < most_frames
            && bytes + DATA_HEADER_BYTES + size <= most_bytes
            && (self.run.frames.is_empty()
                || peer.send.is_sendable(now) && fits(peer.send.long_next()))
        {
            let (send, receive) = (&mut peer.send, &peer.receive);
            let (towards, shared) = ((id, session, busy), &mut self.shared);
            let Some((data, part)) = next_data(now, towards, loan, send, receive, shared) else {
                break;
            };
            whole = data.payload.len() == size;
            bytes += DATA_HEADER_BYTES + data.payload.len();
            self.run.frames.push((data.head(), part));
        }
        if !peer.receive.arrivals.has_gap() && bytes > 0 {
            peer.receive.on_ack_sent();
        }
        if let Some(at) = peer.send.frame_deadline() {
            self.shared.arm(peer, at);
        }
        self.shared.counters.sent_frames += self.run.frames.len() as u64;
        self.shared.counters.sent_bytes += bytes as u64;
        if busy {
            self.ready.rotate_left(1);
        }
        self.run.frames.len()
    }

    /// Header and payload of each frame of the run; `loan` as for `begin_run`.
    pub fn run<'a>(
        &'a self,
        loan: &'a Loan<'a>,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
        let peer = self.run.to.and_then(|to| self.peer(to));
        self.run.frames.iter().map(move |(head, part)| {
            let payload = peer.map_or(&[][..], |peer| peer.send.payload(*part, loan));
            (&head[..], payload)
        })
    }
}

/// A long message's fragment is what the peer is sent next. A gap can only be told in a frame of its own, as can what `suci` asks.
#[inline]
fn begins_run(now: Instant, peer: &mut Peer) -> bool {
    let gap = peer.receive.ack_now && peer.wants_ack_alone();
    !peer.session.has_control()
        && peer.inbound.is_none()
        && !gap
        && !peer.ping_due
        && peer.is_up()
        && peer.send.is_sendable(now)
        && peer.send.long_next().is_some()
}
