//! Deadlines: delayed acknowledgements, probes, repeated hellos, keep-alive.

use super::receive::end_session;
use super::{Engine, Shared};
use crate::alarms::Alarms;
use crate::event::Event;
use crate::message::SendId;
use crate::peer::Peer;
use crate::peer::queue::STALL_REPAIRS;
use crate::peer::session::Phase;
use crate::time::{Duration, Instant};
use crate::tuning::TUNING;
use tsumuji_wire::NodeId;

/// In this time a waiting sender has sent so many probes that one of them has arrived.
const PROBES_MAX: Duration = TUNING.loss.probe_max.times(STALL_REPAIRS as u64);

/// A frame that Ethernet with an MTU of 1500 carries, less room for tunnels and checksums.
const USUAL_FRAME_BYTES: usize = 1400;

/// Smaller frames are never stated: if a path does not carry even these, frame size is not the cause.
const NARROWEST_FRAME_BYTES: usize = 350;

/// Something from a peer is missing that it may never send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doubt {
    peer: NodeId,
    /// The next packet number of the peer, when the doubt arose.
    next: u64,
    /// When the doubt arose.
    since: Instant,
}

/// The earliest deadline of this peer.
#[inline]
pub(super) fn deadline(peer: &Peer, shared: &Shared) -> Option<Instant> {
    let config = &shared.config;
    match peer.session.phase {
        Phase::Up => {
            let mut at = (peer.last_heard.max(peer.last_ping) + config.keep_alive)
                .min(peer.last_heard + shared.dead_after(peer));
            for other in [
                peer.receive.ack_deadline(),
                peer.send.deadline(),
                peer.receive.datagrams.deadline(),
                peer.session.hello_at,
            ]
            .into_iter()
            .flatten()
            {
                at = at.min(other);
            }
            Some(at)
        }
        Phase::Connecting => {
            let abandon_at = peer.session.connecting_since + shared.connect_within;
            Some(
                peer.session
                    .hello_at
                    .map_or(abandon_at, |at| at.min(abandon_at)),
            )
        }
        Phase::Dead => peer.session.hello_at,
    }
}

impl Engine {
    /// Handles all deadlines that have passed. Cheap if there are none, whatever the number of peers.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.shared.alarms.next_at().is_none_or(|at| now < at) {
            return;
        }
        // Each peer once: an alarm that is set for now again waits for the next call.
        let mut expired = core::mem::take(&mut self.expired);
        while let Some(id) = self.shared.alarms.pop(now) {
            expired.push(id);
        }
        self.shared.counters.timer_checks += expired.len() as u64;
        for id in expired.drain(..) {
            let index = usize::from(id);
            let Some(peer) = self.peers[index].as_deref_mut() else {
                continue;
            };
            Alarms::gone_off(&mut peer.alarm);
            if deadline(peer, &self.shared).is_some_and(|at| at <= now) {
                self.expire(index, now);
            }
            self.end_if_stuck(index, now);
            self.enqueue(NodeId(id), now);
        }
        self.expired = expired;
        self.feed_hungry();
    }

    /// For `absence`, until `now`, this process did not run: it was stopped, perhaps together with its peers. That time does not count as their
    /// silence.
    pub fn note_absence(&mut self, now: Instant, absence: Duration) {
        for peer in self.peers.iter_mut().flatten() {
            peer.last_heard = (peer.last_heard + absence).min(now);
            peer.session.connecting_since = (peer.session.connecting_since + absence).min(now);
            peer.send.note_silence(now);
        }
        self.shared.doubts.clear();
    }

    /// Ends a session that cannot go on: a message of ours is sent again and again without an answer, or a message of the peer is incomplete
    /// here although the peer counts it as delivered.
    fn end_if_stuck(&mut self, index: usize, now: Instant) {
        let Some(peer) = self.peers[index].as_deref_mut() else {
            return;
        };
        if !peer.is_up() {
            return;
        }
        let shared = &mut self.shared;
        let dead_after = shared.dead_after(peer);
        if now.since(peer.last_heard) >= dead_after.divided(2) {
            // A peer that is not heard at all times out elsewhere.
            peer.send.note_silence(now);
            shared.doubts.retain(|doubt| doubt.peer != peer.id);
            return;
        }
        if peer.send.queue.queued_messages > 0
            && let Some(message) = peer.send.stalled(now, dead_after)
        {
            return end_stalled(now, peer, Some(message), shared);
        }
        let doubts = &mut shared.doubts;
        let known = doubts.iter().position(|doubt| doubt.peer == peer.id);
        if !peer.account.misses_something(&peer.receive) {
            known.map(|at| doubts.swap_remove(at));
            return;
        }
        let doubt = Doubt {
            peer: peer.id,
            next: peer.receive.arrivals.next(),
            since: now,
        };
        match known.map(|at| &mut doubts[at]) {
            None => doubts.push(doubt),
            Some(known) if known.next != doubt.next => *known = doubt,
            Some(known) if now.since(known.since) >= dead_after.max(PROBES_MAX) => {
                end_stalled(now, peer, None, shared);
            }
            Some(_) => {}
        }
    }

    fn expire(&mut self, index: usize, now: Instant) {
        let Some(peer) = self.peers[index].as_deref_mut() else {
            return;
        };
        let config = &self.shared.config;
        let dead_after = self.shared.dead_after(peer);
        let timed_out = now.since(peer.session.connecting_since) >= self.shared.connect_within;
        if peer.session.hello_at.is_some_and(|at| at <= now) {
            peer.session.hello_at = None;
            // A dead peer that said hello and then nothing more is not asked for ever.
            peer.session.hello_pending = peer.session.phase != Phase::Dead || !timed_out;
        }
        match peer.session.phase {
            Phase::Connecting => {
                if timed_out {
                    end_session(now, peer, None, &mut self.shared);
                }
            }
            Phase::Up if now.since(peer.last_heard) >= dead_after => {
                end_session(now, peer, None, &mut self.shared)
            }
            Phase::Up => {
                if now.since(peer.last_heard.max(peer.last_ping)) >= config.keep_alive {
                    peer.last_ping = now;
                    peer.ping_pending = true;
                }
                let super::Shared { memory, pool, .. } = &mut self.shared;
                peer.receive.expire(now, memory, pool);
                if peer.receive.ack_deadline().is_some_and(|at| at <= now) {
                    peer.receive.ack_now = true;
                }
                if peer.send.deadline().is_some_and(|at| at <= now) {
                    let super::Shared { pool, counters, .. } = &mut self.shared;
                    peer.ping_pending |= peer.send.on_timeout(
                        now,
                        peer.last_heard,
                        peer.link.lossless,
                        pool,
                        counters,
                    );
                }
            }
            Phase::Dead => {}
        }
    }
}

/// Ends the session for a stalled message, and tells the program why.
#[cold]
fn end_stalled(now: Instant, peer: &mut Peer, message: Option<SendId>, shared: &mut Shared) {
    let peer_id = peer.id;
    shared.counters.stalled_sessions += 1;
    shared.events.push_back(Event::Stalled {
        peer: peer_id,
        message,
    });
    shared.doubts.retain(|doubt| doubt.peer != peer_id);
    end_session(now, peer, None, shared);
    let narrower = narrower(peer.frame_bytes);
    if message.is_some() && narrower < peer.frame_bytes {
        shared.narrow.push((peer_id, narrower));
    }
}

/// The next smaller frame size to try on a path that no longer carries frames of this size: first one that every Ethernet carries, tunnels included,
/// then half of the size each time.
fn narrower(frame_bytes: usize) -> usize {
    if frame_bytes > USUAL_FRAME_BYTES {
        USUAL_FRAME_BYTES
    } else {
        (frame_bytes / 2).max(NARROWEST_FRAME_BYTES)
    }
}
