//! Receiving half of the `suci` congestion control: the answer to each frame that arrives, and permission to send lost frames again (R1 to R4 of the
//! paper and its congestion control; ).
//!
//! Called by `crate::receiving` and `engine::suci`. Keeps the permissions of all peers. The state of one peer is an [`Inbound`]: it is stored in its
//! `Peer`, and written here only. `peer::receive` records which numbers have arrived.
//!
//! Invariants: `outstanding` is the sum over all peers of frames that are granted and have not arrived; it never exceeds the receive ring. A peer
//! whose ask is not granted in full is in `waiting`, once.

mod permitting;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::numbers::{FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::rules::Rules;
use crate::time::Instant;
use crate::tuning::TUNING;
use tsumuji_wire::Permit;

/// State of one peer: the frames that it wants to send again, and the window and grants that it was told.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// The window stated last: numbers below this may be sent.
    told: u64,
    /// The next acknowledgement is to report the expected number as missing.
    nack_pending: bool,
    /// The expected number was reported missing: until it arrives or is granted, other frames are dropped silently.
    nacked: bool,
    /// Memory refused the expected number.
    refused: bool,
    /// The peer is in `Suci::short`.
    short: bool,
    /// The peer is in `Suci::waiting`.
    waiting: bool,
    /// The peer is in `Suci::holders`.
    holds: bool,
    /// The peer asked, and was not answered: if a policy permits nothing, it is granted or told of one frame.
    probes: bool,
    /// Round of the peer's last ask; `None` if it has not asked in this session.
    round: Option<u32>,
    /// Numbers below this wait to be sent again.
    end: u64,
    /// Numbers below this may be sent again.
    granted: u64,
    /// The expected number when the round began.
    began: u64,
    /// How many frames are granted at once: as many as arrived of the last round, and one more for each frame that arrived since.
    burst: u64,
    /// When a granted frame last arrived, or the grant was given.
    moved_at: Instant,
    /// Priority of its last frame.
    priority: u8,
    /// Frames of the peer that were used.
    served: u64,
    /// Limit of the window that the program set. Outlives the session.
    limit: u64,
}

/// The answer to an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// An acknowledgement: all that the peer asked about has arrived, or it asked for the window only.
    Ack,
    /// A grant, perhaps of no frames.
    Grant,
    /// None: the ask is a copy of an earlier one.
    Nothing,
}

impl Inbound {
    fn new(ring_frames: u64) -> Self {
        Self {
            told: FIRST_NUMBER,
            nack_pending: false,
            nacked: false,
            refused: false,
            short: false,
            waiting: false,
            holds: false,
            probes: false,
            round: None,
            end: FIRST_NUMBER,
            granted: FIRST_NUMBER,
            began: FIRST_NUMBER,
            burst: ring_frames,
            moved_at: Instant::default(),
            priority: 0,
            served: 0,
            limit: u64::MAX,
        }
    }

    /// Notes that the expected number is missing, or was refused. Returns whether this is to be reported.
    fn miss(&mut self, refused: bool) -> bool {
        let news = !self.nacked;
        (self.nacked, self.refused) = (true, refused);
        self.nack_pending |= news;
        news
    }

    /// Frames granted that have not arrived.
    pub(crate) fn outstanding(&self, expected: u64) -> u64 {
        self.granted.saturating_sub(expected)
    }

    /// The peer wants to send again more than it may.
    fn wants(&self, expected: u64) -> bool {
        self.end > self.granted.max(expected)
    }

    /// The grant to write: the peer's round, and how many frames from `expected` on.
    pub(crate) fn permit(&self, expected: u64) -> (u32, u32) {
        let frames = self.outstanding(expected).min(NUMBER_WINDOW) as u32;
        (self.round.unwrap_or(0), frames)
    }
}

/// State of permissions over all peers.
#[derive(Debug)]
pub(crate) struct Suci {
    pub(crate) rules: Rules,
    /// Memory did not suffice for some peer.
    pub(crate) hungry: bool,
    /// Capacity of the receive ring: the most frames that one poll can take.
    ring_frames: u64,
    outstanding: u64,
    /// Peers that asked for more than they were granted; served round robin.
    waiting: VecDeque<u16>,
    /// Peers with grants that had not been used whole when they were visited last.
    holders: Vec<u16>,
    /// Peers that were told of less than the full window.
    short: VecDeque<u16>,
    /// When unused grants were last voided.
    swept_at: Instant,
    /// When the last frame arrived.
    now: Instant,
}

impl Suci {
    fn new(receive_frames: usize) -> Self {
        Self {
            rules: Rules::new(receive_frames),
            hungry: false,
            ring_frames: (receive_frames as u64).clamp(1, NUMBER_WINDOW),
            outstanding: 0,
            waiting: VecDeque::new(),
            holders: Vec::new(),
            short: VecDeque::new(),
            swept_at: Instant::default(),
            now: Instant::default(),
        }
    }

    /// Notes that the expected number was taken.
    fn on_taken(&mut self, inbound: &mut Inbound, expected: u64) {
        if expected < inbound.granted {
            self.outstanding -= 1;
            inbound.burst = (inbound.burst + 1).min(self.ring_frames);
            inbound.moved_at = self.now;
        }
        (inbound.nacked, inbound.nack_pending, inbound.refused) = (false, false, false);
    }

    /// Takes a peer's ask for permission to send again. `None`: it concerns more frames than can have been sent.
    fn on_ask(
        &mut self,
        peer: u16,
        inbound: &mut Inbound,
        expected: u64,
        ask: &Permit,
    ) -> Option<Answer> {
        let number = expand(ask.number, expected);
        let end = number + u64::from(ask.frames);
        if number > expected + NUMBER_WINDOW || end > expected + NUMBER_WINDOW {
            return None;
        }
        match inbound.round {
            Some(round) if (ask.round.wrapping_sub(round) as i32) < 0 => {
                return Some(Answer::Nothing);
            }
            Some(round) if ask.round == round => {}
            before => {
                // The earlier grant, or its frames, were lost: otherwise the peer would not begin a new round.
                if before.is_some() {
                    let came = expected - inbound.began;
                    inbound.burst = came.clamp(1, self.ring_frames);
                }
                self.void(inbound, expected);
                inbound.round = Some(ask.round);
                inbound.began = expected;
            }
        }
        inbound.probes = true;
        if ask.frames == 0 || end <= expected {
            return Some(Answer::Ack);
        }
        inbound.end = end;
        self.enlist(peer, inbound, expected);
        Some(Answer::Grant)
    }

    fn enlist(&mut self, peer: u16, inbound: &mut Inbound, expected: u64) {
        if !inbound.waiting && inbound.wants(expected) {
            inbound.waiting = true;
            self.waiting.push_back(peer);
        }
    }

    /// Removes the peer that is next; the caller must pass its state to `answer_call`, unless the peer is gone.
    fn call(&mut self) -> Option<u16> {
        self.waiting.pop_front()
    }

    /// Notes that the peer no longer waits; `grant` may add it again.
    fn answer_call(inbound: &mut Inbound) {
        inbound.waiting = false;
    }

    /// An equal part of the ring for all peers that wait.
    fn part(&self) -> u64 {
        (self.ring_frames / (self.waiting.len() as u64 + 1)).max(1)
    }

    /// Frames granted to all peers that have not arrived.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Grants what the ring has room for: at most `part` of the ring, `window` frames, and as many as lately arrived. Returns how many frames were
    /// granted. A peer that gets less than it wants waits on.
    fn grant(
        &mut self,
        peer: u16,
        inbound: &mut Inbound,
        expected: u64,
        window: u64,
        part: u64,
    ) -> u64 {
        inbound.granted = inbound.granted.max(expected);
        let outstanding = inbound.outstanding(expected);
        let more = (part
            .min(inbound.burst)
            .min(window)
            .saturating_sub(outstanding))
        .min(self.ring_frames - self.outstanding)
        .min(inbound.end.saturating_sub(inbound.granted));
        if more > 0 {
            inbound.granted += more;
            self.outstanding += more;
            inbound.nacked = false;
            inbound.probes = false;
            if !core::mem::replace(&mut inbound.holds, true) {
                self.holders.push(peer);
            }
            inbound.moved_at = self.now;
        }
        self.enlist(peer, inbound, expected);
        more
    }

    /// The peer waits, and at most half of its burst is outstanding, so that more may be granted.
    fn wants_more(&self, inbound: &Inbound, expected: u64) -> bool {
        inbound.waiting
            && inbound.wants(expected)
            && inbound.outstanding(expected) * 2 <= inbound.burst
    }

    /// A peer waits, and at least half of the ring is free.
    fn has_room(&self) -> bool {
        !self.waiting.is_empty() && self.outstanding * 2 <= self.ring_frames
    }

    /// No more can be permitted until something arrives.
    fn is_full(&self) -> bool {
        self.outstanding >= self.ring_frames
    }

    /// Nothing can be permitted, and unused grants were not voided for a while.
    fn begins_sweep(&mut self) -> bool {
        let begins = self.is_full() && self.now.since(self.swept_at) >= TUNING.suci.grant_lifetime;
        if begins {
            self.swept_at = self.now;
        }
        begins
    }

    /// The `index`-th peer with grants, to visit all of them.
    fn holder(&self, index: usize) -> Option<u16> {
        self.holders.get(index).copied()
    }

    /// Visits the `index`-th peer with grants, and voids them if nothing of them arrived for long. `false`: it has none any more, and another peer
    /// has its index.
    fn check_holder(&mut self, index: usize, inbound: &mut Inbound, expected: u64) -> bool {
        if self.now.since(inbound.moved_at) >= TUNING.suci.grant_lifetime {
            self.void(inbound, expected);
        }
        inbound.holds = inbound.outstanding(expected) > 0;
        if !inbound.holds {
            self.holders.swap_remove(index);
        }
        inbound.holds
    }

    /// Voids the grants of which nothing has arrived.
    fn void(&mut self, inbound: &mut Inbound, expected: u64) {
        self.outstanding -= inbound.outstanding(expected);
        inbound.granted = expected;
    }

    /// Resets the state when a session begins or ends.
    pub(crate) fn reset(&mut self, peer: u16, inbound: &mut Inbound, expected: u64) {
        self.void(inbound, expected);
        if inbound.waiting {
            self.waiting.retain(|&waiting| waiting != peer);
        }
        if inbound.holds {
            self.holders.retain(|&holder| holder != peer);
        }
        if inbound.short {
            self.short.retain(|&short| short != peer);
        }
        *inbound = Inbound {
            limit: inbound.limit,
            ..Inbound::new(self.ring_frames)
        };
    }
}

#[cfg(test)]
mod tests;
