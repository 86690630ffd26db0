//! The handshake's steps: ask, challenge, first, second, confirmation.
//!
//! Cost of each step, and the checks before it: a challenge costs one hash, after the asker's proof; *first* two multiplications, after the proof and
//! a cookie that its sender received recently, each nonce once; *second* one multiplication, after the proof and a nonce that we drew and wait for.
//! So a sender without a key causes no multiplication, and neither does one that replays recorded frames.

use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::hmac;
use tsumuji_link::LinkAddr;

use super::{
    ANSWERED_LIFETIME, Answered, Asking, COOKIE_PERIOD, FIRSTS_MAX, FORGET_QUIET, First, Out,
    PEERS_MAX, Peer, Peers, REKEY_AFTER, Repeat, session,
};
use crate::handshake::{self, COOKIE_BYTES, Cookie, HandshakeFrame, NoiseMessage, Step};
use crate::key::{DerivedKey, KEY_BYTES, KeyPrint};
use crate::random;

/// How long *first* is remembered as answered: longer than its challenge is valid.
pub(super) const FIRST_MEMORY: Duration = Duration::from_secs(2 * COOKIE_PERIOD.as_secs());

impl Peers {
    /// Begins or continues a handshake, because a frame is to be sent to `to` and there is no session.
    pub(crate) fn wish(&mut self, now: Duration, to: LinkAddr) {
        if !self.make_room(now, to) {
            self.counters.unsent += 1;
            return;
        }
        let peer = self.peers.entry(to).or_default();
        if peer.current.is_some() {
            return; // the confirmation is on its way
        }
        if let Some(answered) = &mut peer.answered {
            // The peer began; its confirmation or our answer got lost.
            if answered.repeat.poll(now) == Some(true) {
                let frame = answered.frame.clone();
                self.push(Out::Handshake(to, frame));
            }
        } else if peer.asking.is_none() {
            self.ask(now, to);
        }
    }

    /// Forgets an address that the link cannot reach.
    pub(crate) fn forget(&mut self, addr: LinkAddr) {
        if let Some(peer) = self.peers.remove(&addr) {
            self.release(peer);
        }
    }

    fn release(&mut self, peer: Peer) {
        let first = peer.asking.and_then(|asking| asking.first);
        let ids = [
            peer.current,
            peer.previous.map(|(id, _)| id),
            peer.answered.map(|answered| answered.id),
            first.map(|first| first.id),
        ];
        for id in ids.into_iter().flatten() {
            self.slots.release(id);
        }
    }

    /// Whether `addr` is remembered, or there is room for it. A peer that was heard recently is never forgotten for another.
    fn make_room(&mut self, now: Duration, addr: LinkAddr) -> bool {
        if self.peers.len() < PEERS_MAX || self.peers.contains_key(&addr) {
            return true;
        }
        let mut quiet = None;
        for (addr, peer) in &mut self.peers {
            let session = peer.current.and_then(|id| self.slots.get(id));
            if session.is_some_and(|session| std::mem::take(&mut session.heard)) {
                peer.quiet_since = now;
            }
            if now.saturating_sub(peer.quiet_since) >= FORGET_QUIET && peer.asking.is_none() {
                quiet = Some(*addr);
                break;
            }
        }
        let Some(quiet) = quiet else {
            return false;
        };
        self.forget(quiet);
        true
    }

    /// Begins a handshake with a remembered peer.
    pub(super) fn ask(&mut self, now: Duration, to: LinkAddr) {
        let (Ok(nonce), Some(peer)) = (random::number(), self.peers.get_mut(&to)) else {
            return;
        };
        let key = &self.keys[0];
        let frame = Step::Ask { nonce }.frame(self.readable, key);
        let repeat = Repeat::from(now);
        if peer.current.is_none() {
            peer.quiet_since = now;
        }
        peer.asking = Some(Asking {
            nonce,
            print: key.print,
            repeat,
            frame: frame.clone(),
            first: None,
        });
        self.wake_at(repeat.at);
        self.push(Out::Handshake(to, frame));
    }

    pub(super) fn handshake(&mut self, now: Duration, from: LinkAddr, bytes: &[u8]) {
        let Some(frame) = HandshakeFrame::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let Some(key) = self.keys.iter().position(|key| frame.proves(key)) else {
            self.counters.wrong_key += 1;
            return;
        };
        if frame.readable != self.readable {
            self.counters.other_mode += 1;
            return;
        }
        let counted = match frame.step {
            Step::Ask { nonce } => {
                let cookie = self.cookie(from, nonce, period(now));
                let step = Step::Challenge { nonce, cookie };
                let frame = step.frame(self.readable, &self.keys[key]);
                self.push(Out::Handshake(from, frame));
                Outcome::Used
            }
            Step::Challenge { nonce, cookie } => self.challenged(now, from, key, nonce, cookie),
            Step::First {
                nonce,
                cookie,
                noise,
            } => self.first(now, from, key, nonce, &cookie, &noise),
            Step::Second { nonce, noise } => self.second(now, from, nonce, &noise),
        };
        *match counted {
            Outcome::Used => &mut self.counters.handshake_frames,
            Outcome::Stale => &mut self.counters.stale_handshake,
            Outcome::Limited => &mut self.counters.limited,
            Outcome::WrongKey => &mut self.counters.wrong_key,
        } += 1;
    }

    /// A cookie that only we can make, and only a receiver at `addr` can return.
    fn cookie(&self, addr: LinkAddr, nonce: u64, period: u64) -> Cookie {
        let mut context = hmac::Context::with_key(&self.cookie_secret);
        context.update(&nonce.to_le_bytes());
        context.update(&period.to_le_bytes());
        update_with(&mut context, addr);
        let mut cookie = [0; COOKIE_BYTES];
        cookie.copy_from_slice(context.sign().as_ref());
        cookie
    }

    fn take_handshake(&mut self) -> bool {
        let left = self.handshakes_left.checked_sub(1);
        self.handshakes_left = left.unwrap_or(0);
        left.is_some()
    }

    fn challenged(
        &mut self,
        now: Duration,
        from: LinkAddr,
        key: usize,
        nonce: u64,
        cookie: Cookie,
    ) -> Outcome {
        let print = self.keys[key].print;
        let awaited = |peer: &Peer| {
            peer.asking.as_ref().is_some_and(|asking| {
                asking.nonce == nonce && asking.print == print && asking.first.is_none()
            })
        };
        if !self.peers.get(&from).is_some_and(awaited) {
            return Outcome::Stale;
        }
        if !self.take_handshake() {
            return Outcome::Limited;
        }
        let Some(id) = self.slots.reserve() else {
            return Outcome::Limited;
        };
        let begun = handshake::begin(&self.keys[key], self.readable, nonce, &cookie, id);
        let asking = self
            .peers
            .get_mut(&from)
            .and_then(|peer| peer.asking.as_mut());
        let (Ok((state, noise)), Some(asking)) = (begun, asking) else {
            self.slots.release(id);
            return Outcome::Limited; // the kernel has no randomness
        };
        let step = Step::First {
            nonce,
            cookie,
            noise,
        };
        asking.frame = step.frame(self.readable, &self.keys[key]);
        asking.repeat = Repeat::from(now);
        asking.first = Some(First {
            noise: state,
            ephemeral: ephemeral(&noise),
            id,
        });
        let (frame, at) = (asking.frame.clone(), asking.repeat.at);
        self.wake_at(at);
        self.push(Out::Handshake(from, frame));
        Outcome::Used
    }

    fn first(
        &mut self,
        now: Duration,
        from: LinkAddr,
        key: usize,
        nonce: u64,
        cookie: &Cookie,
        noise: &NoiseMessage,
    ) -> Outcome {
        let period = period(now);
        let ours = [period, period.wrapping_sub(1)]
            .into_iter()
            .any(|period| self.cookie(from, nonce, period) == *cookie);
        if !ours {
            return Outcome::Stale;
        }
        if let Some(peer) = self.peers.get_mut(&from) {
            if let Some(answered) = peer.answered.as_ref().filter(|old| old.nonce == nonce) {
                let frame = answered.frame.clone();
                self.push(Out::Handshake(from, frame));
                return Outcome::Used;
            }
            peer.firsts
                .retain(|(_, at)| now.saturating_sub(*at) < FIRST_MEMORY);
            if peer.firsts.iter().any(|(known, _)| *known == nonce) {
                return Outcome::Stale;
            }
            if peer.firsts.len() >= FIRSTS_MAX {
                return Outcome::Limited;
            }
            // Both began at once: the handshake of the smaller key goes on.
            let our_first = peer
                .asking
                .as_ref()
                .and_then(|asking| asking.first.as_ref());
            if our_first.is_some_and(|first| first.ephemeral < ephemeral(noise)) {
                return Outcome::Stale;
            }
        }
        if !self.make_room(now, from) || !self.take_handshake() {
            return Outcome::Limited;
        }
        let Some(id) = self.slots.reserve() else {
            return Outcome::Limited;
        };
        let key = &self.keys[key];
        let answer = handshake::answer(key, self.readable, nonce, cookie, noise, id);
        let Ok((agreed, noise)) = answer else {
            self.slots.release(id);
            return Outcome::WrongKey;
        };
        let frame = Step::Second { nonce, noise }.frame(self.readable, key);
        let number = self.next_session;
        self.next_session += 1;
        self.slots
            .fill(id, session(&agreed, from, key.print, number));
        let peer = self.peers.entry(from).or_insert_with(|| Peer {
            quiet_since: now,
            ..Peer::default()
        });
        peer.firsts.push((nonce, now));
        let expires = now + ANSWERED_LIFETIME;
        let old = peer.answered.replace(Answered {
            nonce,
            id,
            frame: frame.clone(),
            repeat: Repeat::from(now),
            expires,
        });
        let asked = peer.asking.take().and_then(|asking| asking.first);
        for id in [old.map(|old| old.id), asked.map(|first| first.id)] {
            id.into_iter().for_each(|id| self.slots.release(id));
        }
        self.wake_at(expires);
        self.push(Out::Handshake(from, frame));
        Outcome::Used
    }

    fn second(
        &mut self,
        now: Duration,
        from: LinkAddr,
        nonce: u64,
        noise: &NoiseMessage,
    ) -> Outcome {
        let Some(peer) = self.peers.get_mut(&from) else {
            return Outcome::Stale;
        };
        let awaited = |asking: &mut Asking| asking.nonce == nonce && asking.first.is_some();
        if peer.asking.as_ref().map(|asking| asking.nonce) != Some(nonce) {
            if peer.completed != Some(nonce) {
                return Outcome::Stale;
            }
            // The peer has not received our confirmation.
            self.push(Out::Control {
                to: from,
                wants_answer: true,
            });
            return Outcome::Used;
        }
        if self.handshakes_left == 0 {
            return Outcome::Limited;
        }
        self.handshakes_left -= 1;
        let Some(Asking { print, first, .. }) = peer.asking.take_if(awaited) else {
            return Outcome::Stale;
        };
        let Some(First {
            noise: state, id, ..
        }) = first
        else {
            return Outcome::Stale;
        };
        let Ok(agreed) = handshake::finish(state, noise) else {
            self.slots.release(id);
            return Outcome::WrongKey;
        };
        let number = self.next_session;
        self.next_session += 1;
        self.slots.fill(id, session(&agreed, from, print, number));
        let confirm = Repeat::from(now);
        self.counters.rekeys += u64::from(peer.current.is_some());
        Self::replace(&mut self.slots, peer, id, now);
        peer.completed = Some(nonce);
        peer.confirm = Some(confirm);
        self.counters.handshakes += 1;
        self.wake_at(confirm.at);
        self.ages(from, now + REKEY_AFTER);
        self.push(Out::Control {
            to: from,
            wants_answer: true,
        });
        Outcome::Used
    }

    /// The key with this name.
    pub(super) fn key(&self, print: KeyPrint) -> Option<&DerivedKey> {
        self.keys.iter().find(|key| key.print == print)
    }
}

/// Result of a genuine handshake frame.
enum Outcome {
    Used,
    Stale,
    Limited,
    WrongKey,
}

fn period(now: Duration) -> u64 {
    now.as_secs() / COOKIE_PERIOD.as_secs()
}

fn ephemeral(noise: &NoiseMessage) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&noise[..KEY_BYTES]);
    key
}

/// Hashes an address, so that the result differs for each.
fn update_with(context: &mut hmac::Context, addr: LinkAddr) {
    match addr {
        LinkAddr::Local(node) => {
            context.update(b"local");
            context.update(&node.to_le_bytes());
        }
        LinkAddr::Inet(addr) => {
            match addr.ip() {
                IpAddr::V4(ip) => context.update(&ip.octets()),
                IpAddr::V6(ip) => context.update(&ip.octets()),
            }
            context.update(&addr.port().to_le_bytes());
        }
        // Future kinds of address differ by their text.
        other => context.update(other.to_string().as_bytes()),
    }
}
