//! The `suci` congestion control, receiving half: what is said of each frame that came, and who may send how much again
//! (R1 to R4 of the paper and its congestion control; ).
//!
//! Asked by `crate::receiving` and `engine::suci`. Owns the books of permission over all peers. What one peer was told is an [`Inbound`]: it
//! lies in its `Peer`, and is written here alone. The numbers that have arrived are `peer::receive`'s.
//!
//! Invariants: `outstanding` is the sum over all peers of what is granted and has not come; it never exceeds the receive ring. A
//! peer whose request is not granted in full stands in `waiting`, once.

mod permitting;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::numbers::{FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::rules::Rules;
use crate::time::{Duration, Instant};
use tsumuji_wire::Permit;

/// A grant of which nothing came for so long is not counted on when others wait: it, or what it permitted, was lost. Many round
/// trips of a local network.
const GRANT_SESSION: Duration = Duration::from_millis(10);

/// The window until the program chooses another, where the link may lose frames: a switch holds less than our own side, and who
/// goes back for each loss must not fill it. The paper's is what a UDP socket held in its day, 64 KiB or some dozens of frames.
const WINDOW_FRAMES: u64 = 256;

/// What one peer wants, and what it was told.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// The last window stated: numbers below this may be sent.
    told: u64,
    /// The number expected is to be called missing in the next acknowledgement.
    nack_due: bool,
    /// It was called missing: until it comes or is granted, what else comes is dropped without a word.
    nacked: bool,
    /// Memory refused it.
    refused: bool,
    /// Stands in `Suci::short`.
    short: bool,
    /// Stands in `Suci::waiting`.
    waiting: bool,
    /// Stands in `Suci::holders`.
    holds: bool,
    /// It asked, and has not been answered: where the program's policy permits nothing, one frame answers it.
    probes: bool,
    /// Of the peer's last ask. `None`: it has not asked in this session.
    round: Option<u32>,
    /// Numbers below this wait to be sent again.
    end: u64,
    /// Numbers below this may be.
    granted: u64,
    /// What was expected when the round began.
    began: u64,
    /// So much is granted at once: what arrived of the last round, and one more for each frame that came since.
    burst: u64,
    /// When the last of a grant came, or it was given.
    moved_at: Instant,
    /// Of its last frame.
    priority: u8,
    /// Its frames that were used.
    served: u64,
    /// No window of its is larger: the program's word. Outlives the session.
    limit: u64,
}

/// How an ask is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// All that it speaks of has come: by an acknowledgement.
    Ack,
    /// By a grant, perhaps of nothing.
    Grant,
    /// A copy of an earlier one: not at all.
    Nothing,
}

impl Inbound {
    fn new(ring_frames: u64) -> Self {
        Self {
            told: FIRST_NUMBER,
            nack_due: false,
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

    /// The number expected is missing, or was refused. Tells whether that is news.
    fn miss(&mut self, refused: bool) -> bool {
        let news = !self.nacked;
        (self.nacked, self.refused) = (true, refused);
        self.nack_due |= news;
        news
    }

    /// Granted and not come.
    pub(crate) fn outstanding(&self, expected: u64) -> u64 {
        self.granted.saturating_sub(expected)
    }

    /// Wants to send again more than it may.
    fn wants(&self, expected: u64) -> bool {
        self.end > self.granted.max(expected)
    }

    /// The grant to write: the peer's round, and how many frames from `expected` on.
    pub(crate) fn permit(&self, expected: u64) -> (u32, u32) {
        let frames = self.outstanding(expected).min(NUMBER_WINDOW) as u32;
        (self.round.unwrap_or(0), frames)
    }
}

/// Permission over all peers.
#[derive(Debug)]
pub(crate) struct Suci {
    pub(crate) rules: Rules,
    /// Memory did not suffice for somebody.
    pub(crate) hungry: bool,
    /// What the receive ring holds: the most that can be taken in a turn, whatever the wire carries.
    ring_frames: u64,
    outstanding: u64,
    /// Peers that asked for more than they were granted, in turn.
    waiting: VecDeque<u16>,
    /// Peers with grants of which not all had come when last looked at.
    holders: Vec<u16>,
    /// Peers that were told of less than the full window.
    short: VecDeque<u16>,
    /// When grants were last looked through for those of which nothing came.
    swept_at: Instant,
    /// When a frame last came.
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

    /// Number `expected` was taken.
    fn on_taken(&mut self, inbound: &mut Inbound, expected: u64) {
        if expected < inbound.granted {
            self.outstanding -= 1;
            inbound.burst = (inbound.burst + 1).min(self.ring_frames);
            inbound.moved_at = self.now;
        }
        (inbound.nacked, inbound.nack_due, inbound.refused) = (false, false, false);
    }

    /// A peer asks whether it may send again. `None`: it speaks of more than it can have sent.
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
                // What was granted before was lost, or the peer would not ask anew.
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

    /// Whose turn it is; whoever is called must be given to `answer_call`, or be gone.
    fn call(&mut self) -> Option<u16> {
        self.waiting.pop_front()
    }

    /// The peer was called: it waits no longer, unless `grant` finds that it wants more.
    fn answer_call(inbound: &mut Inbound) {
        inbound.waiting = false;
    }

    /// An equal part of the ring among all that wait.
    fn part(&self) -> u64 {
        (self.ring_frames / (self.waiting.len() as u64 + 1)).max(1)
    }

    /// By all peers.
    pub(crate) fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Permits what there is room for: `part` of the ring, no more than `window` frames, and no more at once than lately arrived.
    /// Tells how much that is. Who gets less than it wants waits on.
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

    /// So few of the frames permitted to this peer are on their way that more might be.
    fn wants_more(&self, inbound: &Inbound, expected: u64) -> bool {
        inbound.waiting
            && inbound.wants(expected)
            && inbound.outstanding(expected) * 2 <= inbound.burst
    }

    /// Half of the ring is free for who waits.
    fn has_room(&self) -> bool {
        !self.waiting.is_empty() && self.outstanding * 2 <= self.ring_frames
    }

    /// No more can be permitted until something comes.
    fn is_full(&self) -> bool {
        self.outstanding >= self.ring_frames
    }

    /// Somebody waits, nothing can be permitted, and grants were not looked through for a while.
    fn is_sweep_due(&mut self) -> bool {
        let due = self.is_full() && self.now.since(self.swept_at) >= GRANT_SESSION;
        if due {
            self.swept_at = self.now;
        }
        due
    }

    /// The `index`-th peer with grants, for a look at all of them.
    fn holder(&self, index: usize) -> Option<u16> {
        self.holders.get(index).copied()
    }

    /// A look at the `index`-th peer with grants: of which nothing came for a long time, they are void. `false`: it has none any
    /// more, and another stands in its place.
    fn check_holder(&mut self, index: usize, inbound: &mut Inbound, expected: u64) -> bool {
        if self.now.since(inbound.moved_at) >= GRANT_SESSION {
            self.void(inbound, expected);
        }
        inbound.holds = inbound.outstanding(expected) > 0;
        if !inbound.holds {
            self.holders.swap_remove(index);
        }
        inbound.holds
    }

    /// What was granted and has not come is no longer counted on.
    fn void(&mut self, inbound: &mut Inbound, expected: u64) {
        self.outstanding -= inbound.outstanding(expected);
        inbound.granted = expected;
    }

    /// A session begins or ends.
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
