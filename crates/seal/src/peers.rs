//! Sessions with peers, and the sealing and opening of frames.
//!
//! Called by `Sealed`, which owns the link: functions here are given frames and the time, and queue frames to be sent in `outbox`. `agree` has the
//! handshake's steps, `upkeep` the timers.
//!
//! Invariants: a peer is remembered only if the layer above sends to it, or if it proved that it has a cluster key and receives at its address; a
//! session is replaced only by one in which a frame was opened (at the node that began the handshake, the second handshake message); the layer above
//! is given only opened frames, each once.

mod agree;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use aws_lc_rs::hmac;
use snow::HandshakeState;
use tsumuji_link::{LinkAddr, SealCounters};
use zeroize::Zeroize;

use crate::control::Control;
use crate::envelope::{self, Envelope, HEADER_BYTES, INNER_BYTES_MAX, Kind, OVERHEAD_BYTES, flags};
use crate::group::{OwnGroup, PeerGroup};
use crate::key::{DerivedKey, KEY_BYTES, KeyPrint, Keys};
use crate::random;
use crate::session::{OpenFailure, Sealer};
use crate::slots::{Session, Slots};
use crate::tuning::TUNING;
use upkeep::{REKEY_AFTER, REKEY_SPARE};

/// Most peers remembered: a cluster's nodes, and earlier incarnations at other addresses.
pub(crate) const PEERS_MAX: usize = 4096;
/// A peer that was silent for so long may be forgotten for another if there are too many.
pub(crate) const FORGET_QUIET: Duration = Duration::from_secs(60);
/// Most frames of our own that wait to be sent: more than a burst can ask for.
const OUTBOX_FRAMES_MAX: usize = 256;
/// Handshakes that one address may begin while a challenge is valid.
pub(crate) const FIRSTS_MAX: usize = 8;
/// A challenge is valid for one to two of these.
pub(crate) const COOKIE_PERIOD: Duration = Duration::from_secs(5);
/// How long an answered handshake waits for its confirmation.
const ANSWERED_LIFETIME: Duration = Duration::from_secs(5);
/// How long frames of the previous session are still opened.
const PREVIOUS_LIFETIME: Duration = Duration::from_secs(10);
/// A time that never comes.
pub(crate) const NEVER: Duration = Duration::MAX;

/// When to repeat an unanswered frame.
#[derive(Debug, Clone, Copy)]
struct Repeat {
    at: Duration,
    gap: Duration,
    left: u32,
}

impl Repeat {
    fn from(now: Duration) -> Self {
        Self {
            at: now + TUNING.repeat_gap,
            gap: TUNING.repeat_gap,
            left: TUNING.repeat_times,
        }
    }

    /// `Some(true)`: send now. `None`: it was sent often enough.
    fn poll(&mut self, now: Duration) -> Option<bool> {
        if now < self.at {
            return Some(false);
        }
        self.left = self.left.checked_sub(1)?;
        self.gap = (self.gap * 2).min(TUNING.repeat_gap_max);
        self.at = now + self.gap;
        Some(true)
    }
}

/// A handshake that we began.
#[derive(Debug)]
struct Asking {
    nonce: u64,
    print: KeyPrint,
    repeat: Repeat,
    /// The frame that is sent until it is answered.
    frame: Vec<u8>,
    /// `Some` once we were challenged.
    first: Option<First>,
}

#[derive(Debug)]
struct First {
    noise: Box<HandshakeState>,
    ephemeral: [u8; KEY_BYTES],
    id: u32,
}

/// A handshake that the peer began and we answered.
#[derive(Debug)]
struct Answered {
    nonce: u64,
    id: u32,
    /// The answer, to be repeated if it gets lost.
    frame: Vec<u8>,
    repeat: Repeat,
    expires: Duration,
}

#[derive(Debug, Default)]
struct Peer {
    /// The session with which frames to it are sealed.
    current: Option<u32>,
    /// The previous session, whose frames are still opened until then.
    previous: Option<(u32, Duration)>,
    asking: Option<Asking>,
    answered: Option<Answered>,
    /// We began the current session and have not heard the peer in it.
    confirm: Option<Repeat>,
    /// When a new session is to be agreed.
    renew_at: Option<Duration>,
    /// When the current session will be too old; `None` once its renewal is planned.
    ages_at: Option<Duration>,
    /// Nonce of the handshake by which we began the current session.
    completed: Option<u64>,
    /// Handshakes that the peer began recently, and when: each is answered once.
    firsts: Vec<(u64, Duration)>,
    group: PeerGroup,
    /// Generation of our broadcast key that it was told.
    told_generation: u32,
    group_question_at: Duration,
    quiet_since: Duration,
}

/// A frame of our own that waits to be sent.
#[derive(Debug)]
pub(crate) enum Out {
    Handshake(LinkAddr, Vec<u8>),
    Control { to: LinkAddr, wants_answer: bool },
}

/// All peers and their sessions; see the module's head.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Frames stay readable (`auth`).
    readable: bool,
    /// We begin handshakes with the first.
    keys: Vec<DerivedKey>,
    cookie_secret: hmac::Key,
    peers: HashMap<LinkAddr, Peer>,
    slots: Slots,
    /// `Some` where the link has broadcast.
    group: Option<OwnGroup>,
    outbox: VecDeque<Out>,
    /// Earliest time at which `upkeep` has something to do, ageing aside.
    next_upkeep: Duration,
    /// When a session or the group key will be too old; it is minutes away, so the clock is seldom read for it.
    aging_at: Duration,
    /// When the group key will be too old; `NEVER`: it was told to nobody yet.
    group_ages_at: Duration,
    /// Number of the next session.
    next_session: u64,
    handshakes_left: u32,
    scratch: Box<[u8]>,
    pub(crate) counters: SealCounters,
}

impl Peers {
    pub(crate) fn new(
        keys: &Keys,
        readable: bool,
        broadcast: bool,
    ) -> Result<Self, getrandom::Error> {
        let mut secret = zeroize::Zeroizing::new([0; KEY_BYTES]);
        random::fill(&mut *secret)?;
        Ok(Self {
            readable,
            keys: keys.derive(),
            cookie_secret: hmac::Key::new(hmac::HMAC_SHA256, &*secret),
            peers: HashMap::new(),
            slots: Slots::default(),
            group: broadcast.then(OwnGroup::new).transpose()?,
            outbox: VecDeque::new(),
            next_upkeep: NEVER,
            aging_at: NEVER,
            group_ages_at: NEVER,
            next_session: 0,
            handshakes_left: TUNING.handshakes_per_burst,
            scratch: vec![0; INNER_BYTES_MAX + OVERHEAD_BYTES].into(),
            counters: SealCounters::default(),
        })
    }

    /// Begins a burst.
    pub(crate) fn begin_burst(&mut self) {
        self.handshakes_left = TUNING.handshakes_per_burst;
    }

    pub(crate) fn next_out(&mut self) -> Option<Out> {
        self.outbox.pop_front()
    }

    pub(crate) fn next_upkeep(&self) -> Duration {
        self.next_upkeep
    }

    /// The same, with the ageing of keys.
    pub(crate) fn next_upkeep_or_aging(&self) -> Duration {
        self.next_upkeep.min(self.aging_at)
    }

    pub(crate) fn has_session(&self, addr: LinkAddr) -> bool {
        self.peers
            .get(&addr)
            .is_some_and(|peer| peer.current.is_some() && peer.confirm.is_none())
    }

    pub(crate) fn sessions(&self) -> usize {
        let current = |peer: &&Peer| peer.current.is_some();
        self.peers.values().filter(current).count()
    }

    /// Counters, and what is remembered now.
    pub(crate) fn counters(&self) -> SealCounters {
        SealCounters {
            peers: self.peers.len() as u64,
            sessions: self.sessions() as u64,
            ..self.counters
        }
    }

    /// Memory in use: peers, session ids, frames that wait.
    #[cfg(test)]
    fn sizes(&self) -> [usize; 3] {
        [self.peers.len(), self.slots.taken(), self.outbox.len()]
    }

    fn push(&mut self, out: Out) {
        if self.outbox.len() < OUTBOX_FRAMES_MAX {
            self.outbox.push_back(out);
        } else {
            self.counters.unsent += 1;
        }
    }

    /// Makes sure that `upkeep` runs at `at`.
    fn wake_at(&mut self, at: Duration) {
        self.next_upkeep = self.next_upkeep.min(at);
    }

    /// The flags of ordinary frames.
    fn mode_flag(&self) -> u8 {
        if self.readable { flags::READABLE } else { 0 }
    }

    /// The sealer and flags for frames to `to`; `None`: there is no session yet.
    #[inline]
    pub(crate) fn sealer(&mut self, to: LinkAddr) -> Option<(&mut Sealer, u8)> {
        let flag_bits = self.mode_flag();
        let peer = self.peers.get_mut(&to)?;
        let session = self.slots.get(peer.current?)?;
        if session.sealer.is_worn() && peer.renew_at.is_none() {
            peer.renew_at = Some(Duration::ZERO);
            self.next_upkeep = Duration::ZERO;
        }
        Some((&mut session.sealer, flag_bits))
    }

    /// The sealer and flags for broadcast frames.
    pub(crate) fn group_sealer(&mut self) -> Option<(&mut Sealer, u8)> {
        let flag_bits = self.mode_flag() | flags::GROUP;
        let group = self.group.as_mut()?;
        if group.sealer.is_worn() && group.renew().is_ok() {
            self.next_upkeep = Duration::ZERO; // all peers must be told the key
        }
        Some((&mut group.sealer, flag_bits))
    }

    /// Takes any received bytes; returns the opened frame if it is for the layer above, each once.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        now: impl Fn() -> Duration,
        from: LinkAddr,
        frame: &[u8],
    ) -> Option<&[u8]> {
        match envelope::kind_of(frame) {
            Kind::Sealed => self.open(now, from, frame),
            Kind::Handshake => {
                self.handshake(now(), from, frame);
                None
            }
            Kind::Open => {
                self.counters.unsealed += 1;
                None
            }
            Kind::Unknown => {
                self.counters.malformed += 1;
                None
            }
        }
    }

    #[inline]
    fn open(&mut self, now: impl Fn() -> Duration, from: LinkAddr, frame: &[u8]) -> Option<&[u8]> {
        let parsed = frame.split_first_chunk::<HEADER_BYTES>();
        let parsed = parsed.and_then(|(header, rest)| {
            // A copy: on some links the sender could still write to the frame.
            let header = *header;
            Some((Envelope::parse(&header, frame.len())?, header, rest))
        });
        let Some((envelope, header, rest)) = parsed else {
            self.counters.malformed += 1;
            return None;
        };
        let control = envelope.has(flags::CONTROL);
        if control && envelope.has(flags::READABLE | flags::GROUP) {
            self.counters.malformed += 1;
            return None;
        }
        if !control && envelope.has(flags::READABLE) != self.readable {
            self.counters.other_mode += 1;
            return None;
        }
        let opened = if envelope.has(flags::GROUP) {
            let Some(peer) = self.peers.get_mut(&from) else {
                self.counters.unknown_session += 1;
                return None;
            };
            let opener = match peer.current {
                Some(_) => peer.group.opener(envelope.key_id, &now),
                None => None,
            };
            let Some(opener) = opener else {
                self.counters.unknown_session += 1;
                self.ask_for_group(now(), from);
                return None;
            };
            opener.open(&envelope, &header, rest, &mut self.scratch)
        } else {
            let Some(session) = self.slots.get(envelope.key_id) else {
                self.counters.unknown_session += 1;
                return None;
            };
            if session.addr != from {
                self.counters.wrong_source += 1;
                return None;
            }
            let opened = session
                .opener
                .open(&envelope, &header, rest, &mut self.scratch);
            session.heard |= opened.is_ok();
            opened
        };
        let inner_bytes = match opened {
            Ok(inner) => inner.len(),
            Err(OpenFailure::Replayed) => {
                self.counters.replayed += 1;
                return None;
            }
            Err(OpenFailure::BadTag) => {
                self.counters.bad_tag += 1;
                return None;
            }
        };
        let inner = HEADER_BYTES..HEADER_BYTES + inner_bytes;
        if !envelope.has(flags::GROUP) {
            if self.slots.get(envelope.key_id)?.fresh {
                self.proven(now(), from, envelope.key_id);
            }
            if control {
                let control = Control::parse(&self.scratch[inner.clone()]);
                self.scratch[inner].zeroize(); // it held a key
                self.control(now(), from, envelope.key_id, control);
                return None;
            }
        }
        self.counters.opened += 1;
        Some(&self.scratch[inner])
    }

    /// Called when the first frame of a session was opened: that proves that the peer has its keys now, and did not replay an old message.
    fn proven(&mut self, now: Duration, from: LinkAddr, id: u32) {
        if let Some(session) = self.slots.get(id) {
            session.fresh = false;
        }
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if peer.current == Some(id) {
            peer.confirm = None;
        }
        if let Some(answered) = peer.answered.take_if(|answered| answered.id == id) {
            peer.completed = None;
            self.counters.handshakes += 1;
            self.counters.rekeys += u64::from(peer.current.is_some());
            Self::replace(&mut self.slots, peer, answered.id, now);
            self.ages(from, now + REKEY_AFTER + REKEY_SPARE);
        }
        self.wake_at(now + PREVIOUS_LIFETIME);
    }

    /// Makes a session the current one. What was awaited of the one before it ends: its confirmation may never come, and says nothing of the new one.
    fn replace(slots: &mut Slots, peer: &mut Peer, id: u32, now: Duration) {
        if let Some(old) = peer.current.replace(id)
            && let Some((older, _)) = peer.previous.replace((old, now + PREVIOUS_LIFETIME))
        {
            slots.release(older);
        }
        peer.confirm = None;
        peer.renew_at = None;
        peer.quiet_since = now;
    }

    /// Asks for a broadcast key, after a frame under a key that we were not told or have forgotten.
    fn ask_for_group(&mut self, now: Duration, from: LinkAddr) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if peer.current.is_none() || now < peer.group_question_at {
            return;
        }
        peer.group_question_at = now + TUNING.group_question_gap;
        self.push(Out::Control {
            to: from,
            wants_answer: true,
        });
    }

    fn control(&mut self, now: Duration, from: LinkAddr, id: u32, control: Option<Control>) {
        let (Some(control), Some(session)) = (control, self.slots.get(id)) else {
            // A holder of the keys sent an unknown control frame.
            self.counters.malformed += 1;
            return;
        };
        self.counters.control += 1;
        let number = session.number;
        if let (Some(group), Some(peer)) = (&control.group, self.peers.get_mut(&from)) {
            peer.group.learn(group, number, now);
        }
        if control.wants_answer {
            self.push(Out::Control {
                to: from,
                wants_answer: false,
            });
        }
    }

    /// Writes a control frame to a peer with a session; 0: it has none.
    pub(crate) fn write_control(
        &mut self,
        to: LinkAddr,
        wants_answer: bool,
        slot: &mut [u8],
    ) -> usize {
        let Some(peer) = self.peers.get_mut(&to) else {
            return 0;
        };
        let session = peer.current.and_then(|id| self.slots.get(id));
        let Some(session) = session else {
            return 0;
        };
        let control = Control {
            wants_answer,
            group: self.group.as_ref().map(OwnGroup::news),
        };
        let inner_bytes = control.write(&mut slot[HEADER_BYTES..]);
        let bytes = session.sealer.seal(slot, inner_bytes, flags::CONTROL);
        if bytes == 0 {
            slot[HEADER_BYTES..HEADER_BYTES + inner_bytes].zeroize();
        } else if let Some(group) = &self.group {
            peer.told_generation = group.generation;
        }
        bytes
    }
}

/// Makes a session of agreed keys.
fn session(
    agreed: &crate::handshake::Agreed,
    addr: LinkAddr,
    print: KeyPrint,
    number: u64,
) -> Session {
    Session {
        addr,
        print,
        number,
        sealer: Sealer::new(&agreed.seal, agreed.peer_id),
        opener: crate::session::Opener::new(&agreed.open, 0),
        fresh: true,
        heard: false,
    }
}
