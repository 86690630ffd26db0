//! Timers of peers, and the change of keys.
//!
//! Invariant: every wait that `agree` begins ends here, after a named time or number of repetitions.

use std::time::Duration;

use tsumuji_link::LinkAddr;

use super::agree::FIRST_MEMORY;
use super::{FORGET_QUIET, NEVER, Out, Peer, Peers};
use crate::key::{KeyPrint, Keys};
use crate::slots::Slots;
use crate::tuning::TUNING;

/// Age at which a session is renewed by the node that began it, and a broadcast key: an attacker who reads a process's memory can open the frames of
/// so much time and no more. `examples/seal_cost` prints the cost of a handshake.
pub(super) const REKEY_AFTER: Duration = Duration::from_secs(900);
/// The node that answered waits so much longer, so that both seldom begin at once.
pub(super) const REKEY_SPARE: Duration = Duration::from_secs(30);

/// Result of checking the peers.
#[derive(Default)]
struct Todo {
    asks: Vec<LinkAddr>,
    outs: Vec<Out>,
    gone: Vec<LinkAddr>,
    next: Option<Duration>,
}

impl Todo {
    fn wake_at(&mut self, at: Duration) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

impl Peers {
    /// Does all that is to be done by `now`.
    pub(crate) fn upkeep(&mut self, now: Duration) {
        if now < self.next_upkeep_or_aging() {
            return;
        }
        let mut todo = Todo::default();
        self.aging_at = NEVER;
        if now >= self.group_ages_at
            && let Some(group) = &mut self.group
        {
            // If the kernel has no randomness the old key goes on.
            let _ = group.renew();
            self.group_ages_at = NEVER;
        }
        let first = self.keys[0].print;
        let generation = self.group.as_ref().map_or(0, |group| group.generation);
        for (addr, peer) in &mut self.peers {
            peer.upkeep(*addr, now, first, &mut self.slots, &mut todo);
            self.aging_at = self.aging_at.min(peer.ages_at.unwrap_or(NEVER));
            if self.group_ages_at == NEVER && peer.current.is_some() {
                self.group_ages_at = now + REKEY_AFTER;
            }
            if peer.current.is_some()
                && peer.confirm.is_none()
                && peer.told_generation != generation
            {
                todo.outs.push(Out::Control {
                    to: *addr,
                    wants_answer: false,
                });
                todo.wake_at(now + TUNING.retell_gap);
            }
        }
        self.aging_at = self.aging_at.min(self.group_ages_at);
        // Never sooner: else a peer whose time stays in the past would be checked without pause.
        self.next_upkeep = todo
            .next
            .map_or(NEVER, |next| next.max(now + TUNING.upkeep_gap));
        for out in todo.outs {
            self.push(out);
        }
        for addr in todo.asks {
            self.ask(now, addr);
        }
        for addr in todo.gone {
            self.forget(addr);
        }
    }

    /// The session that has just begun with `addr` will be too old at `at`.
    pub(super) fn ages(&mut self, addr: LinkAddr, at: Duration) {
        if let Some(peer) = self.peers.get_mut(&addr) {
            peer.ages_at = Some(at);
            self.aging_at = self.aging_at.min(at);
        }
    }

    /// Replaces the keys. Sessions under removed keys end at once; those under a key that is no longer the first go on until a new one is agreed.
    pub(crate) fn reload(&mut self, keys: &Keys) -> Result<(), getrandom::Error> {
        let old: Vec<KeyPrint> = self.keys.iter().map(|key| key.print).collect();
        self.keys = keys.derive();
        let first = self.keys[0].print;
        let removed = |print: KeyPrint| self.key(print).is_none();
        let any_removed = old.iter().any(|print| removed(*print));
        if any_removed && let Some(group) = &mut self.group {
            // Holders of the removed key may know the broadcast key.
            group.renew()?;
        }
        let keys = &self.keys;
        let removed = |print: KeyPrint| keys.iter().all(|key| key.print != print);
        for peer in self.peers.values_mut() {
            let slots = &mut self.slots;
            let mut ends = |id: u32| {
                let ends = slots.get(id).is_some_and(|session| removed(session.print));
                if ends {
                    slots.release(id);
                }
                ends
            };
            if peer.current.take_if(|id| ends(*id)).is_some() {
                peer.confirm = None;
                peer.completed = None;
                peer.renew_at = None;
                peer.ages_at = None;
            }
            peer.previous.take_if(|(id, _)| ends(*id));
            peer.answered.take_if(|answered| ends(answered.id));
            // Handshakes begun under a key that is no longer the first are begun anew.
            if let Some(asking) = peer.asking.take_if(|asking| asking.print != first) {
                asking.first.into_iter().for_each(|it| slots.release(it.id));
            }
            let current = peer.current.and_then(|id| slots.get(id));
            peer.renew_at = current
                .filter(|session| session.print != first)
                .map(|_| Duration::ZERO);
        }
        self.next_upkeep = Duration::ZERO;
        Ok(())
    }
}

impl Peer {
    fn upkeep(
        &mut self,
        addr: LinkAddr,
        now: Duration,
        first_key: KeyPrint,
        slots: &mut Slots,
        todo: &mut Todo,
    ) {
        if let Some((id, _)) = self.previous.take_if(|(_, until)| *until <= now) {
            slots.release(id);
        }
        if let Some(answered) = self.answered.take_if(|answered| answered.expires <= now) {
            slots.release(answered.id);
        }
        if let Some(asking) = &mut self.asking {
            match asking.repeat.poll(now) {
                Some(true) => {
                    let frame = asking.frame.clone();
                    todo.outs.push(Out::Handshake(addr, frame));
                }
                Some(false) => {}
                None => {
                    let first = self.asking.take().and_then(|asking| asking.first);
                    first.into_iter().for_each(|first| slots.release(first.id));
                    if let Some(at) = &mut self.renew_at {
                        *at = now + TUNING.renew_gap;
                        self.end_if_quiet(now, first_key, slots);
                    }
                }
            }
        }
        match self.confirm.as_mut().map(|repeat| repeat.poll(now)) {
            Some(Some(true)) => todo.outs.push(Out::Control {
                to: addr,
                wants_answer: true,
            }),
            Some(None) => {
                // The peer never sent in it: it has forgotten the session, or was never there.
                self.confirm = None;
                self.completed = None;
                let before = self.previous.take().map(|(id, _)| id);
                if let Some(id) = std::mem::replace(&mut self.current, before) {
                    slots.release(id);
                }
                self.renew_at = self.current.map(|_| now + TUNING.renew_gap);
                self.ages_at = None;
            }
            _ => {}
        }
        self.firsts
            .retain(|(_, at)| now.saturating_sub(*at) < FIRST_MEMORY);
        if self.ages_at.take_if(|at| *at <= now).is_some() && self.renew_at.is_none() {
            self.renew_at = Some(now);
        }
        let idle = self.asking.is_none() && self.answered.is_none();
        if self.current.is_some() && idle && self.renew_at.is_some_and(|at| at <= now) {
            todo.asks.push(addr);
        }
        if idle && self.current.is_none() && self.previous.is_none() && self.firsts.is_empty() {
            todo.gone.push(addr);
        }
        let times = [
            self.previous.map(|(_, until)| until),
            self.answered.as_ref().map(|answered| answered.expires),
            self.asking.as_ref().map(|asking| asking.repeat.at),
            self.confirm.map(|repeat| repeat.at),
            self.renew_at.filter(|_| idle),
            self.firsts.first().map(|(_, at)| *at + FIRST_MEMORY),
        ];
        times.into_iter().flatten().for_each(|at| todo.wake_at(at));
    }

    /// Ends the sessions of a peer that does not agree on new keys. If it knows the key and is silent otherwise, too, it is gone, and asking for ever
    /// would be useless: the next frame to it begins anew.
    fn end_if_quiet(&mut self, now: Duration, first_key: KeyPrint, slots: &mut Slots) {
        let Some(session) = self.current.and_then(|id| slots.get(id)) else {
            return;
        };
        if std::mem::take(&mut session.heard) || session.print != first_key {
            self.quiet_since = now;
        } else if now.saturating_sub(self.quiet_since) >= FORGET_QUIET {
            let previous = self.previous.take().map(|(id, _)| id);
            for id in self.current.take().into_iter().chain(previous) {
                slots.release(id);
            }
            self.renew_at = None;
        }
    }
}
