//! How `suci` reacts to frames and asks: acknowledgements state a window, and grants permit lost frames to be sent again (R-73 … R-76), as far as the
//! ring and the free memory allow. Part of `suci`.

use super::{Answer, Inbound, Suci};
use crate::config::Config;
use crate::counters::{Counters, Drop};
use crate::memory::Memory;
use crate::peer::Peer;
use crate::policy::{Room, Sender};
use crate::receiving::Members;
use crate::time::Instant;
use crate::tuning::TUNING;
use tsumuji_wire::{Data, Permit, flags};

/// How far ahead one peer may send new frames.
struct Window {
    /// As far as memory allows.
    frames: u64,
    /// If memory suffices: as many as the receive ring takes in one poll, or as the program has set.
    wanted: u64,
}

impl Inbound {
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, frames: u64) {
        self.limit = frames;
    }

    /// How far ahead the peer may send, as it was told.
    pub(crate) fn ahead(&self, expected: u64) -> u64 {
        self.told.saturating_sub(expected)
    }
}

impl Suci {
    pub(crate) fn of(config: &Config) -> Self {
        let mut suci = Self::new(config.receive_frames);
        if !config.lossless {
            suci.rules.set_window(TUNING.suci.window_frames);
        }
        suci
    }

    /// State of a peer of which nothing is known.
    pub(crate) fn inbound(&self) -> Inbound {
        Inbound::new(self.ring_frames)
    }

    /// Accounts a data frame that was used or refused; `expected` is the number expected before.
    pub(crate) fn on_data(
        &mut self,
        now: Instant,
        peer: &mut Peer,
        (data, expected): (&Data<'_>, u64),
        refusal: Option<Drop>,
        memory: &Memory,
        counters: &mut Counters,
    ) {
        self.now = now;
        let inbound = peer.account.inbound_mut();
        let answers = match refusal {
            None => {
                inbound.served += 1;
                inbound.priority = data.channel.priority().get();
                self.on_taken(inbound, expected);
                true
            }
            // R1 to R3: an old number is acknowledged again.
            Some(Drop::Duplicate) => true,
            Some(Drop::Gap | Drop::Memory) => {
                let is_news = inbound.miss(refusal == Some(Drop::Memory));
                counters.nacks += u64::from(is_news);
                is_news
            }
            Some(_) => false,
        };
        peer.receive.ack_now |= answers;
        if self.wants_more(inbound, expected) {
            self.permit_more(peer, memory, counters);
        }
    }

    /// Permits more to other peers, after a frame.
    pub(crate) fn share_room(&mut self, members: &mut Members<'_>) {
        if self.has_room() {
            self.call_some(TUNING.suci.calls_per_frame, members);
        }
    }

    /// Window and flags for an acknowledgement.
    pub(crate) fn state(&mut self, peer: &mut Peer, memory: &Memory) -> (u64, u8) {
        let Window { frames, wanted } = self.window(peer, memory);
        let expected = peer.receive.arrivals.base();
        let inbound = peer.account.inbound_mut();
        let mut bits = 0;
        if core::mem::take(&mut inbound.nack_pending) {
            bits |= flags::NACK;
            if inbound.refused {
                bits |= flags::REFUSED;
            }
        }
        inbound.told = expected + frames;
        // An ask for permission is answered by a grant, not by an acknowledgement.
        inbound.probes &= inbound.wants(expected);
        if frames < wanted {
            self.hungry = true;
            if !core::mem::replace(&mut inbound.short, true) {
                self.short.push_back(peer.id.0);
            }
        }
        (expected + frames, bits)
    }

    pub(crate) fn on_asked(
        &mut self,
        now: Instant,
        peer: &mut Peer,
        ask: &Permit,
    ) -> Result<(), Drop> {
        self.now = now;
        let expected = peer.receive.arrivals.base();
        let answer = self.on_ask(peer.id.0, peer.account.inbound_mut(), expected, ask);
        let answer = answer.ok_or(Drop::Malformed)?;
        peer.last_heard = now;
        match answer {
            Answer::Nothing => return Err(Drop::Duplicate),
            Answer::Ack => peer.receive.ack_now = true,
            Answer::Grant => peer.receive.grant_pending = true,
        }
        Ok(())
    }

    pub(crate) fn share_out(&mut self, mut members: Members<'_>) {
        if self.begins_sweep() {
            self.void_overdue(&mut members);
        }
        self.call_some(TUNING.suci.calls_per_ask, &mut members);
    }

    /// Grants peers that wait for memory what they were refused, and tells peers of a larger window.
    pub(crate) fn feed(&mut self, mut members: Members<'_>) {
        self.hungry = false;
        if self.rules.has_policy() {
            self.sort_by_rank(&members);
        }
        self.call_some(TUNING.suci.calls_per_ask, &mut members);
        let memory = members.memory;
        for _ in 0..self.short.len() {
            let Some(id) = self.short.pop_front() else {
                return;
            };
            let Some(peer) = members.peer(id) else {
                continue;
            };
            let window = self.window(peer, memory);
            let inbound = peer.account.inbound_mut();
            let left = inbound.ahead(peer.receive.arrivals.base());
            let full = memory.is_idle() && window.frames > left;
            if full || window.frames >= left + (window.wanted / 8).max(1) {
                inbound.short = false;
                peer.receive.ack_now = true;
                members.tell(id);
            } else {
                self.short.push_back(id);
                self.hungry = true;
            }
        }
    }

    pub(crate) fn regrant(&mut self, mut members: Members<'_>) {
        let memory = members.memory;
        members.each_up(|peer| {
            let ahead = (peer.account.inbound()).ahead(peer.receive.arrivals.base());
            peer.receive.ack_now |= self.window(peer, memory).frames > ahead;
        });
        self.hungry = true; // has waiting peers visited, too
    }

    /// Grants the next `calls` waiting peers what they may send again.
    fn call_some(&mut self, calls: usize, members: &mut Members<'_>) {
        for _ in 0..calls.min(self.waiting.len()) {
            let Some(id) = self.call() else {
                return;
            };
            if let Some(peer) = members.peers[usize::from(id)].as_deref_mut() {
                Self::answer_call(peer.account.inbound_mut());
                self.permit_more(peer, members.memory, members.counters);
                members.tell(id);
            }
        }
    }

    /// Voids grants that were lost, or whose frames were: others wait for their part of the ring.
    #[cold]
    fn void_overdue(&mut self, members: &mut Members<'_>) {
        let mut index = 0;
        while let Some(id) = self.holder(index) {
            let stays = members.peer(id).is_some_and(|peer| {
                let expected = peer.receive.arrivals.base();
                self.check_holder(index, peer.account.inbound_mut(), expected)
            });
            index += usize::from(stays);
        }
    }

    /// Sorts the peers that wait for memory or permission by the rank that the policy gives them, the lowest first.
    #[cold]
    fn sort_by_rank(&mut self, members: &Members<'_>) {
        let mut short = core::mem::take(&mut self.short);
        let mut waiting = core::mem::take(&mut self.waiting);
        for queue in [&mut short, &mut waiting] {
            queue.make_contiguous().sort_by_cached_key(|&id| {
                let peer = members.peers[usize::from(id)].as_deref()?;
                let (room, sender) = self.views(peer, members.memory, self.ring_frames, false);
                self.rules.memory_rank(&room, &sender)
            });
        }
        (self.short, self.waiting) = (short, waiting);
    }

    /// Grants a waiting peer what may be sent again now.
    fn permit_more(&mut self, peer: &mut Peer, memory: &Memory, counters: &mut Counters) {
        let part = match self.wish(peer, memory, self.part(), true) {
            0 if peer.account.inbound().probes => 1,
            part => part,
        };
        let window = self.memory_frames(peer, memory);
        let expected = peer.receive.arrivals.base();
        let inbound = peer.account.inbound_mut();
        // A frame that memory refused would be refused again.
        let refused = inbound.refused && !memory.admits_more();
        let window = if refused { 0 } else { window };
        let frames = self.grant(peer.id.0, inbound, expected, window, part);
        counters.granted_frames += frames;
        peer.receive.grant_pending |= frames > 0;
        self.hungry |= window == 0;
    }

    /// The window if memory suffices and there is no limit for a single peer.
    pub(crate) fn usual_window(&self) -> u64 {
        self.ring_frames.min(self.rules.window())
    }

    /// The window to state to the peer now.
    fn window(&mut self, peer: &Peer, memory: &Memory) -> Window {
        let inbound = peer.account.inbound();
        let wanted = match self.wish(peer, memory, self.usual_window(), false) {
            0 if inbound.probes => 1,
            wanted => wanted.min(inbound.limit),
        };
        Window {
            frames: self.memory_frames(peer, memory).min(wanted),
            wanted,
        }
    }

    /// Frames that free memory takes, including what is reserved for an incoming message of this peer. If nothing is free, and nothing will be, a
    /// message that an ordered channel waits for is admitted all the same.
    fn memory_frames(&self, peer: &Peer, memory: &Memory) -> u64 {
        let free = memory.free_bytes().div_ceil(peer.send.queue.fragment_bytes);
        let reserved = peer.receive.remaining.frames;
        let least = usize::from(memory.admits_more());
        ((free + reserved).max(least) as u64).min(self.ring_frames)
    }

    /// How many frames the peer may send again now (`repairs`), or how far ahead it may send new ones: the policy's answer, or `usual` without
    /// a policy.
    fn wish(&mut self, peer: &Peer, memory: &Memory, usual: u64, repairs: bool) -> u64 {
        if !self.rules.has_policy() {
            return usual;
        }
        let (room, sender) = self.views(peer, memory, usual, repairs);
        self.rules.decide(&room, &sender).min(self.ring_frames)
    }

    #[cold]
    fn views(&self, peer: &Peer, memory: &Memory, usual: u64, repairs: bool) -> (Room, Sender) {
        let room = Room {
            now: self.now,
            window_frames: self.usual_window(),
            pool_frames: self.usual_window(),
            claimed_frames: self.outstanding,
            free_bytes: memory.free_bytes(),
            peers: self.rules.peers() as usize,
            active_peers: self.waiting.len(),
        };
        let (inbound, receive) = (peer.account.inbound(), &peer.receive);
        let expected = receive.arrivals.base();
        let sender = Sender {
            peer: peer.id,
            active: inbound.wants(expected) || receive.remaining.frames > 0,
            busy: false, // peers do not say so under `suci`
            repairs,
            priority: inbound.priority,
            remaining_bytes: receive.remaining.bytes as u64,
            memory_bytes: receive.used_bytes(),
            served_frames: inbound.served,
            outstanding_frames: if repairs {
                inbound.outstanding(expected)
            } else {
                inbound.ahead(expected)
            },
            usual_frames: usual,
        };
        (room, sender)
    }
}
