//! Deadlines: delayed acknowledgements, probes, hello retries, signs of life.

use super::receive::end_session;
use super::{Engine, Shared};
use crate::alarms::Alarms;
use crate::peer::Peer;
use crate::peer::session::Phase;
use crate::time::Instant;
use tsumuji_wire::NodeId;

/// The earliest moment at which this peer wants `handle_timeout`.
#[inline]
pub(super) fn deadline(peer: &Peer, shared: &Shared) -> Option<Instant> {
    let config = &shared.config;
    match peer.session.phase {
        Phase::Up => {
            let mut at = (peer.last_heard.max(peer.last_ping) + config.keep_alive)
                .min(peer.last_heard + config.dead_after);
            for other in [
                peer.receive.ack_deadline(),
                peer.send.deadline(),
                peer.receive.latest.deadline(),
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
            let give_up = peer.session.connecting_since + shared.connect_within;
            Some(peer.session.hello_at.map_or(give_up, |at| at.min(give_up)))
        }
        Phase::Dead => peer.session.hello_at,
    }
}

impl Engine {
    /// Looks at the peers of which a deadline has passed. Cheap to call early, whatever the number of peers.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.shared.alarms.next_at().is_none_or(|at| now < at) {
            return;
        }
        // Each once: what is due again at once is for the next call.
        let mut due = core::mem::take(&mut self.due);
        while let Some(id) = self.shared.alarms.pop(now) {
            due.push(id);
        }
        self.shared.counters.timer_looks += due.len() as u64;
        for id in due.drain(..) {
            let index = usize::from(id);
            let Some(peer) = self.peers[index].as_deref_mut() else {
                continue;
            };
            Alarms::gone_off(&mut peer.alarm);
            if deadline(peer, &self.shared).is_some_and(|at| at <= now) {
                self.expire(index, now);
            }
            self.enqueue(NodeId(id), now);
        }
        self.due = due;
        if self.shared.credit.hungry {
            self.feed_hungry();
        }
    }

    fn expire(&mut self, index: usize, now: Instant) {
        let Some(peer) = self.peers[index].as_deref_mut() else {
            return;
        };
        let config = &self.shared.config;
        let lossless = config.lossless;
        let given_up = now.since(peer.session.connecting_since) >= self.shared.connect_within;
        if peer.session.hello_at.is_some_and(|at| at <= now) {
            peer.session.hello_at = None;
            // Whoever said hello after its death, and then nothing more, is not asked for ever.
            peer.session.hello_due = peer.session.phase != Phase::Dead || !given_up;
        }
        match peer.session.phase {
            Phase::Connecting => {
                if given_up {
                    end_session(now, peer, &mut self.shared);
                }
            }
            Phase::Up if now.since(peer.last_heard) >= config.dead_after => {
                end_session(now, peer, &mut self.shared)
            }
            Phase::Up => {
                if now.since(peer.last_heard.max(peer.last_ping)) >= config.keep_alive {
                    peer.last_ping = now;
                    peer.ping_due = true;
                }
                let super::Shared { memory, pool, .. } = &mut self.shared;
                peer.receive.expire(now, memory, pool);
                if peer.receive.ack_deadline().is_some_and(|at| at <= now) {
                    peer.receive.ack_now = true;
                }
                if peer.send.deadline().is_some_and(|at| at <= now) {
                    let super::Shared { pool, counters, .. } = &mut self.shared;
                    peer.ping_due |=
                        peer.send
                            .on_timeout(now, peer.last_heard, lossless, pool, counters);
                }
            }
            Phase::Dead => {}
        }
    }
}
