//! Agreement of a session: which incarnation of the peer this one exchanges messages with (R-50 … R-56).
//!
//! An [`Identity`] is an incarnation and its pairing. Only a welcome that answers a recent hello of ours establishes another identity of the peer:
//! frames of an earlier one that are still in the network never do.

use crate::time::{Duration, Instant};
use crate::tuning::TUNING;
use tsumuji_wire::{Hello, NodeId};

/// At most one reset per peer in this time.
const RESET_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Hello was or will be sent.
    Connecting,
    Up,
    Dead,
}

/// Incarnation of a peer and its pairing, which together name one side of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) incarnation: u32,
    pub(crate) pairing: u32,
}

/// Stands for an unknown identity: no process has incarnation 0.
const ANY_IDENTITY: Identity = Identity {
    incarnation: 0,
    pairing: 0,
};

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) phase: Phase,
    pub(crate) remote: Option<Identity>,
    /// How often this incarnation has declared the peer dead.
    pub(crate) pairing: u32,
    /// Session in frames that we send.
    pub(crate) outgoing: u32,
    /// Session in frames that we accept.
    pub(crate) incoming: u32,
    pub(crate) hello_pending: bool,
    pub(crate) welcome_pending: Option<u32>,
    pub(crate) reset_pending: Option<u32>,
    /// A close frame waits to be written.
    close_pending: bool,
    pub(crate) hello_at: Option<Instant>,
    /// When this node began the present series of hellos.
    pub(crate) connecting_since: Instant,
    /// An identity that has said hello since the present one was established; [`ANY_IDENTITY`] if there are several, or if it is unknown after a
    /// reset.
    pending: Option<Identity>,
    retry: Duration,
    nonce: u32,
    /// Welcomes to hellos up to this nonce are outdated.
    nonce_floor: u32,
    last_reset: Option<Instant>,
}

impl Session {
    /// `incarnation`: of this process. Nonces begin elsewhere in each incarnation, so that a late welcome to a hello of an earlier one is no answer
    /// either.
    pub(crate) fn new(now: Instant, incarnation: u32) -> Self {
        let nonce = mix(u64::from(incarnation)) as u32;
        Self {
            phase: Phase::Connecting,
            remote: None,
            pairing: 0,
            outgoing: 0,
            incoming: 0,
            hello_pending: true,
            welcome_pending: None,
            reset_pending: None,
            close_pending: false,
            hello_at: None,
            connecting_since: now,
            pending: None,
            retry: TUNING.session.retry,
            nonce,
            nonce_floor: nonce,
            last_reset: None,
        }
    }

    pub(crate) fn reconnect(&mut self, now: Instant) {
        self.phase = Phase::Connecting;
        self.connecting_since = now;
        self.retry = TUNING.session.retry;
        self.hello_pending = true;
    }

    /// Sets whether a close frame waits to be written.
    pub(crate) fn set_close_pending(&mut self, pending: bool) {
        self.close_pending = pending;
    }

    /// A control frame waits to be written.
    #[inline]
    pub(crate) fn has_control(&self) -> bool {
        // All conditions at once: one branch instead of four, as this is called several times for each message.
        self.hello_pending
            | self.welcome_pending.is_some()
            | self.reset_pending.is_some()
            | self.close_pending
    }

    /// The nonce of the hello that leaves now.
    pub(crate) fn next_hello(&mut self, now: Instant) -> u32 {
        self.hello_pending = false;
        self.nonce = self.nonce.wrapping_add(1);
        self.hello_at = Some(now + self.retry);
        self.retry = self.retry.times(2).min(TUNING.session.retry_max);
        self.nonce
    }

    pub(crate) fn on_hello(&mut self, now: Instant, hello: &Hello) {
        self.welcome_pending = Some(hello.nonce);
        let identity = Identity {
            incarnation: hello.incarnation,
            pairing: hello.pairing,
        };
        if self.phase != Phase::Up || self.remote != Some(identity) {
            self.hello_pending = true;
            let others = self.pending.is_some_and(|other| other != identity);
            self.pending = Some(if others { ANY_IDENTITY } else { identity });
        }
        if self.phase == Phase::Dead && self.hello_at.is_none() {
            self.connecting_since = now;
            self.retry = TUNING.session.retry;
        }
    }

    /// Handles a reset: the peer does not know our session.
    pub(crate) fn on_reset(&mut self) {
        self.hello_pending = true;
        self.pending = Some(ANY_IDENTITY);
    }

    /// Whether the welcome answers a hello that was sent since the present identity was established.
    pub(crate) fn is_answer(&self, welcome: &Hello) -> bool {
        let age = self.nonce.wrapping_sub(welcome.nonce);
        age < self.nonce.wrapping_sub(self.nonce_floor)
    }

    /// Takes a welcome with this nonce from `identity`: no further hello is pending. One is if another identity was pending and the answered hello is not
    /// the latest, because answers to hellos under way count as outdated from now on.
    pub(crate) fn settle(&mut self, nonce: u32, identity: Identity) {
        let latest = nonce == self.nonce && !self.hello_pending;
        let other = self.pending.take().is_some_and(|other| other != identity);
        self.hello_pending = other && !latest;
        self.hello_at = None;
        self.retry = TUNING.session.retry;
        self.nonce_floor = self.nonce;
    }

    pub(crate) fn establish(&mut self, me: NodeId, incarnation: u32, welcome: &Hello) {
        let remote = Identity {
            incarnation: welcome.incarnation,
            pairing: welcome.pairing,
        };
        let local = Identity {
            incarnation,
            pairing: self.pairing,
        };
        self.settle(welcome.nonce, remote);
        self.phase = Phase::Up;
        self.remote = Some(remote);
        self.outgoing = token(me, local, welcome.source, remote);
        self.incoming = token(welcome.source, remote, me, local);
    }

    /// Ends the session. If another identity has said hello, hellos continue.
    pub(crate) fn die(&mut self, now: Instant) {
        self.phase = Phase::Dead;
        self.pairing = self.pairing.wrapping_add(1);
        self.set_close_pending(false);
        if self.pending.is_some() {
            self.connecting_since = now;
        } else {
            self.hello_pending = false;
            self.hello_at = None;
        }
    }

    /// Handles a frame of an unknown session: the peer may not have noticed that this incarnation is new.
    pub(crate) fn answer_unknown(&mut self, now: Instant, session: u32) {
        let recently = self
            .last_reset
            .is_some_and(|at| now.since(at) < RESET_EVERY);
        if self.phase != Phase::Connecting && !recently {
            self.last_reset = Some(now);
            self.reset_pending = Some(session);
        }
    }

    /// Whether this is the session of a peer that has said hello and has established a session with us, while we have not with it. Only a peer that
    /// has read our answer knows the session's name.
    pub(crate) fn is_pending(
        &self,
        (me, incarnation): (NodeId, u32),
        peer: NodeId,
        session: u32,
    ) -> bool {
        let local = Identity {
            incarnation,
            pairing: self.pairing,
        };
        let heard = self.pending.filter(|_| self.phase != Phase::Up);
        heard.is_some_and(|identity| session == token(peer, identity, me, local))
    }

    /// Another identity than the present one may have begun a session with us.
    pub(crate) fn is_agreeing(&self) -> bool {
        self.phase != Phase::Up
            || self.pending.is_some()
            || self.hello_pending
            || self.hello_at.is_some()
    }

    /// Forgets the identity that has said hello, because it is gone.
    pub(crate) fn forget_pending(&mut self) {
        self.pending = None;
        self.hello_pending = false;
        self.hello_at = None;
    }
}

/// Names a session in one direction by both identities. Not secret: it tells sessions apart, and does not stop attackers.
fn token(from: NodeId, from_identity: Identity, to: NodeId, to_identity: Identity) -> u32 {
    let ids = u64::from(from.0) << 16 | u64::from(to.0);
    let from_identity =
        u64::from(from_identity.incarnation) << 32 | u64::from(from_identity.pairing);
    let to_identity = u64::from(to_identity.incarnation) << 32 | u64::from(to_identity.pairing);
    (mix(mix(mix(ids) ^ from_identity) ^ to_identity) >> 32) as u32
}

/// Finalizer of splitmix64: every input bit affects every output bit.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(0);
    const NOW: Instant = Instant::from_nanos(0);

    fn says(incarnation: u32, nonce: u32) -> Hello {
        Hello {
            source: NodeId(1),
            destination: ME,
            flags: 0,
            incarnation,
            pairing: 0,
            nonce,
            frame_bytes: 1500,
            credit: 1,
            message_limit: 1,
            taken: 0,
        }
    }

    /// A session with incarnation 1 that is up, and the nonce of its hello.
    fn up() -> (Session, u32) {
        let mut session = Session::new(NOW, 7);
        let nonce = session.next_hello(NOW);
        session.establish(ME, 7, &says(1, nonce));
        assert!(!session.hello_pending);
        (session, nonce)
    }

    /// A late welcome of an incarnation that is gone establishes it; the next hello finds that out, not only silence.
    #[test]
    fn late_welcome_is_doubted() {
        let (mut session, _) = up();
        session.on_hello(NOW, &says(2, 0));
        let early = session.next_hello(NOW);
        session.on_hello(NOW, &says(3, 0));
        let late = session.next_hello(NOW);
        assert!(session.is_answer(&says(2, early)));
        session.establish(ME, 7, &says(2, early));
        assert!(!session.is_answer(&says(3, late)), "counts as of the past");
        assert!(session.hello_pending);
        let last = session.next_hello(NOW);
        assert!(session.is_answer(&says(3, last)));
        session.establish(ME, 7, &says(3, last));
        assert!(!session.hello_pending);
    }

    /// The same if the later incarnation's hello was heard, and our hello to it has not left.
    #[test]
    fn pending_incarnation_outlives_an_answer() {
        for heard in [true, false] {
            let (mut session, _) = up();
            session.on_hello(NOW, &says(2, 0));
            let nonce = session.next_hello(NOW);
            if heard {
                session.on_hello(NOW, &says(3, 0));
            } else {
                session.on_reset();
            }
            session.establish(ME, 7, &says(2, nonce));
            assert!(session.hello_pending);
        }
    }

    /// A late hello of an earlier incarnation does not hide the later one's.
    #[test]
    fn late_hello_hides_nobody() {
        let (mut session, _) = up();
        session.on_hello(NOW, &says(2, 0));
        let nonce = session.next_hello(NOW);
        session.on_hello(NOW, &says(3, 0));
        session.next_hello(NOW);
        session.on_hello(NOW, &says(2, 1));
        session.next_hello(NOW);
        session.establish(ME, 7, &says(2, nonce));
        assert!(session.hello_pending);
    }

    /// The close frame of an incarnation that has a successor does not end the hellos to that one.
    #[test]
    fn late_close_hides_nobody() {
        let (mut session, _) = up();
        session.on_hello(NOW, &says(2, 0));
        session.die(NOW);
        assert!(session.hello_pending);
        let nonce = session.next_hello(NOW);
        session.on_hello(NOW, &says(3, 0));
        session.next_hello(NOW);
        session.die(NOW);
        assert!(session.hello_at.is_some());
        session.establish(ME, 7, &says(2, nonce));
        assert!(session.hello_pending);
    }

    /// A late copy of an earlier incarnation's hello costs one hello, and no more.
    #[test]
    fn stale_pending_incarnation_ends() {
        let (mut session, _) = up();
        session.on_hello(NOW, &says(9, 0));
        let early = session.next_hello(NOW);
        session.on_hello(NOW, &says(9, 0));
        session.next_hello(NOW);
        session.settle(
            early,
            Identity {
                incarnation: 1,
                pairing: 0,
            },
        );
        assert!(session.hello_pending);
        let nonce = session.next_hello(NOW);
        session.settle(
            nonce,
            Identity {
                incarnation: 1,
                pairing: 0,
            },
        );
        assert!(!session.hello_pending);
    }
}
