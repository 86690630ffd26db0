//! Receiving half of the `credit` congestion control: the receiver decides how much each peer may send to it (R-20 … ).
//!
//! Credit is counted in packet numbers: a peer may send numbers below its `granted`. Numbers are never reused, so credit covers new data and repairs
//! alike, a lost frame returns its credit as soon as a later one arrives, and a lost grant is made good by the next. An overtaken frame may still
//! arrive: it counts as outstanding until it does, or until its sender counts it as lost.
//!
//! Called by `crate::receiving` and `engine::credit`. The state of one peer is a [`Grant`]: it is stored in its `Peer`, and written here only.
//!
//! Invariant: the sum of claims over all peers never exceeds `receive_frames`. A claim is what is granted and has not arrived, and at least what
//! hello and welcome promise: a peer that is gone may return, and send that much before the credit of the others is used up. When a peer is added,
//! promises are restated (`restate`): they shrink, so that there is room for the new one.

mod granting;
mod schedule;

use alloc::vec::Vec;

use self::schedule::{Active, Scheduled};
use crate::numbers::FIRST_NUMBER;
use crate::overtaken::Overtaken;
use crate::path::Path;
use crate::policy::{Room, Sender};
use crate::rules::Rules;
use crate::time::Instant;
use crate::tuning::TUNING;
use tsumuji_wire::NodeId;

/// State of one peer: the credit that it was granted, and its wish to send more.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The peer may send numbers below this.
    granted: u64,
    /// Largest value of `granted` that was sent to the peer.
    told: u64,
    /// Largest packet number seen, plus one.
    seen: u64,
    /// Numbers below `seen` that have not arrived; present once there was any.
    overtaken: Option<Overtaken>,
    /// Number of overtaken numbers, cached because every frame needs it.
    overtaken_frames: u64,
    /// Frames of the peer that were used, not refused by memory. A peer that becomes active starts at least at the minimum of the active ones.
    served: u64,
    /// The most credit that the next session may begin with: hello and welcome have stated it to the peer, or would. 0 before the first. It outlives
    /// sessions.
    promised: u64,
    /// The peer's last frame said that it has more to send.
    backlog: bool,
    /// Memory refused the peer's latest frame.
    refused: bool,
    /// The peer's last frame said that it serves others, too.
    busy: bool,
    active: bool,
    /// Order among active senders: priority, then remaining bytes. The smallest goes first.
    urgency: (u8, u64),
    /// Current window, in frames.
    window: u64,
    /// Limit of the window that the program set. Outlives the session.
    limit: u64,
}

impl Grant {
    pub(crate) fn new() -> Self {
        Self {
            granted: FIRST_NUMBER,
            told: FIRST_NUMBER,
            seen: FIRST_NUMBER,
            overtaken: None,
            overtaken_frames: 0,
            served: 0,
            promised: 0,
            backlog: false,
            refused: false,
            busy: false,
            active: false,
            urgency: (0, 0),
            window: 1,
            limit: u64::MAX,
        }
    }

    /// Resets the state when a session begins or ends, except the promise and the program's limit.
    fn reset(&mut self) {
        *self = Self {
            promised: self.promised,
            limit: self.limit,
            ..Self::new()
        };
    }

    /// Frames granted and not yet seen.
    pub(crate) fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.seen)
    }

    fn sender(&self, peer: u16, memory: MemoryFrames, usual_frames: u64) -> Sender {
        Sender {
            peer: NodeId(peer),
            active: self.active,
            busy: self.busy,
            repairs: false, // credit covers both
            priority: self.urgency.0,
            remaining_bytes: self.urgency.1,
            memory_bytes: memory.used_bytes,
            served_frames: self.served,
            outstanding_frames: self.outstanding(),
            usual_frames,
        }
    }

    /// Frames granted that have not arrived.
    fn awaited(&self) -> u64 {
        self.outstanding() + self.overtaken_frames
    }

    /// Frames for which the receive ring must have room.
    pub(crate) fn claim(&self) -> u64 {
        self.awaited().max(self.promised)
    }

    /// Updates the overtaken numbers: the frame skipped some, or there are some.
    #[cold]
    fn note_overtaken(&mut self, frame: Seen) {
        let number = frame.next - 1;
        if number < self.seen && self.overtaken.is_none() {
            return; // a duplicate
        }
        let overtaken = self
            .overtaken
            .get_or_insert_with(|| Overtaken::new(frame.floor));
        overtaken.raise(frame.floor);
        if number >= self.granted {
            // Sent without credit, so after a silence: what has not arrived by now is lost.
            overtaken.raise(number);
        } else if number >= self.seen {
            overtaken.skip(self.seen, number);
        } else {
            overtaken.come(number);
        }
        self.overtaken_frames = overtaken.count();
    }

    /// The peer has more to send, and has used all credit that it knows of, but was granted more.
    fn starves(&self) -> bool {
        self.backlog && self.granted > self.told && self.told <= self.seen
    }

    /// The grant is worth a frame of its own.
    fn worth_telling(&self) -> bool {
        self.starves() || self.granted - self.told > self.window / 2
    }
}

/// A data frame that arrived, and whether it was used.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Its number plus one.
    pub(crate) next: u64,
    /// All numbers below have arrived, or are no longer awaited.
    pub(crate) floor: u64,
    /// Its sender has more to send.
    pub(crate) more: bool,
    /// Its sender serves other peers, too.
    pub(crate) busy: bool,
    /// It was not refused.
    pub(crate) used: bool,
    /// Priority of its channel, and remaining bytes of its sender's incomplete messages.
    pub(crate) urgency: (u8, u64),
    /// Charge of its sender's messages now.
    pub(crate) used_bytes: usize,
}

/// Memory for one peer, from which frames are computed only if it may be scarce.
#[derive(Debug, Clone, Copy)]
struct MemoryFrames {
    /// Free for any peer.
    free_bytes: usize,
    /// Frames of this peer's incomplete messages, whose memory is reserved. They may be shorter than `frame_bytes`, each according to its message
    /// so they are counted, not computed from bytes.
    reserved_frames: usize,
    /// Expected charge of a frame of a message that has not begun.
    frame_bytes: usize,
    /// Charge of this peer's messages.
    used_bytes: usize,
}

impl MemoryFrames {
    /// Whether memory holds `frames` frames; without a division.
    #[inline]
    fn suffices(self, frames: u64) -> bool {
        let new = frames.saturating_sub(self.reserved_frames as u64);
        self.free_bytes as u64 >= new * self.frame_bytes as u64
    }

    /// Whole frames of `free_bytes`, and the frames that complete begun messages.
    fn frames(self, free_bytes: usize) -> u64 {
        (free_bytes / self.frame_bytes.max(1) + self.reserved_frames) as u64
    }

    /// Bytes of frames that were granted and not seen, and have no memory reserved.
    fn promised_bytes(self, grant: &Grant) -> usize {
        let new = (grant.outstanding() as usize).saturating_sub(self.reserved_frames);
        new.saturating_mul(self.frame_bytes)
    }
}

/// Chooses the peer that begins the next message where memory is scarce: of those with more to send, the one that takes up least.
#[derive(Debug, Default)]
struct Arbiter {
    least: Option<Candidate>,
    candidates: usize,
    /// Bytes promised to all candidates together.
    promised_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Memory that the peer takes up, or the rank that a policy gives it. The lowest goes first.
    rank: u64,
    /// Used and promised.
    taken_bytes: usize,
    served: u64,
    peer: u16,
    promised_bytes: usize,
}

impl Arbiter {
    /// `first`: later messages wait for the one that the peer would begin. `rank`: given by a policy, if there is one.
    fn consider(
        &mut self,
        peer: u16,
        grant: &Grant,
        memory: MemoryFrames,
        first: bool,
        rank: Option<u64>,
    ) {
        let promised_bytes = memory.promised_bytes(grant);
        self.promised_bytes += promised_bytes;
        if !grant.backlog {
            return;
        }
        self.candidates += 1;
        let taken_bytes = if first {
            0
        } else {
            memory.used_bytes + promised_bytes
        };
        let candidate = Candidate {
            rank: match rank {
                // A message that others wait for goes first, whatever the policy: the memory of those is of no use before.
                Some(rank) if !first => rank,
                _ => taken_bytes as u64,
            },
            taken_bytes,
            served: grant.served,
            peer,
            promised_bytes,
        };
        self.least = Some(self.least.map_or(candidate, |least| least.min(candidate)));
    }

    fn peer(&self) -> Option<u16> {
        self.least.map(|least| least.peer)
    }
}

/// State of credit over all peers.
#[derive(Debug)]
pub(crate) struct Credit {
    pub(crate) rules: Rules,
    /// When the last frame came.
    now: Instant,
    claimed: u64,
    /// Estimates what may be granted to all peers together: the program's window, or less if the path holds less.
    path: Path,
    /// What an idle peer may always send.
    allowance: u64,
    /// Limit of the allowance.
    unscheduled: u64,
    active: Vec<Active>,
    /// Result of scheduling `active`; `None` if that has changed since.
    scheduled: Option<Scheduled>,
    /// Number of peers whose latest frame memory refused; while there are any, memory is scarce.
    refused_peers: usize,
    /// Some peer wanted more than the pool or the memory held.
    pub(crate) hungry: bool,
}

impl Credit {
    fn new(receive_frames: usize) -> Self {
        let rules = Rules::new(receive_frames);
        Self {
            now: Instant::default(),
            claimed: 0,
            path: Path::new(rules.window()),
            allowance: 1,
            unscheduled: TUNING.credit.unscheduled_frames,
            active: Vec::new(),
            scheduled: None,
            refused_peers: 0,
            hungry: false,
            rules,
        }
    }

    /// Adds a peer of which nothing is known. `restate` must follow for each other peer, if any has a claim.
    pub(crate) fn add_peer(&mut self) {
        self.rules.add_peer();
        self.path.set_peers(self.rules.peers());
        self.set_allowance();
    }

    /// Lowers what later sessions of the peer begin with to the present allowance. Not while it may have taken a welcome that states more
    /// (`is_agreeing`): `begin` does it then.
    pub(crate) fn restate(&mut self, grant: &mut Grant, is_agreeing: bool) {
        if !is_agreeing {
            let before = grant.claim();
            grant.promised = grant.promised.min(self.allowance);
            self.claimed -= before - grant.claim();
        }
    }

    /// As `Rules::set_window`.
    pub(crate) fn set_window(&mut self, frames: u64) {
        self.rules.set_window(frames);
        self.path.set_receive_frames(self.rules.window());
        self.path.set_peers(self.rules.peers());
        self.set_allowance();
    }

    pub(crate) fn set_unscheduled(&mut self, frames: u64) {
        self.unscheduled = frames.max(1);
        self.set_allowance();
    }

    fn room(&self, memory: MemoryFrames) -> Room {
        Room {
            now: self.now,
            window_frames: self.rules.window(),
            pool_frames: self.path.pool_frames(),
            claimed_frames: self.claimed,
            free_bytes: memory.free_bytes,
            peers: self.rules.peers() as usize,
            active_peers: self.active.len(),
        }
    }

    /// Frames that the policy grants, at most the window.
    #[cold]
    fn decide(&mut self, peer: u16, grant: &Grant, memory: MemoryFrames, usual: u64) -> u64 {
        let room = self.room(memory);
        let sender = grant.sender(peer, memory, usual);
        self.rules.decide(&room, &sender).min(self.rules.window())
    }

    /// Rank that the policy gives to a peer that waits for memory, if there is a policy.
    fn memory_rank(&mut self, peer: u16, grant: &Grant, memory: MemoryFrames) -> Option<u64> {
        let room = self.room(memory);
        let sender = grant.sender(peer, memory, grant.window);
        self.rules.memory_rank(&room, &sender)
    }

    /// Frames that an idle peer may always send: an equal part of half of the pool.
    fn allowance(&self) -> u64 {
        self.allowance
    }

    fn set_allowance(&mut self) {
        self.allowance =
            (self.path.pool_frames() / 2 / self.rules.peers().max(1)).clamp(1, self.unscheduled);
    }

    /// Sum of the claims of all peers.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed
    }

    /// Frames that are granted to nobody, so that they can be promised to peers that are added later.
    fn kept(&self) -> u64 {
        self.rules.window() / TUNING.credit.kept_divisor
    }

    /// Credit that a hello or welcome to the peer states now. Once stated it is claimed, and a session may begin with it.
    pub(crate) fn promise(&mut self, grant: &mut Grant) -> u64 {
        let before = grant.claim();
        let free = self.rules.window().saturating_sub(self.claimed);
        let kept = free.min(self.kept());
        let room = if grant.promised == 0 {
            (free - kept).max(kept.div_ceil(TUNING.credit.promised_divisor))
        } else {
            free - kept
        };
        let stated = self.allowance.min(before + room);
        grant.promised = grant.promised.max(stated);
        self.claimed += grant.claim() - before;
        stated
    }

    /// Begins a session, in which the peer has the promised credit.
    pub(crate) fn begin(&mut self, grant: &mut Grant) {
        grant.reset();
        grant.granted += grant.promised;
        grant.told += grant.promised;
        grant.window = grant.promised;
        grant.promised = grant.promised.min(self.allowance);
    }

    /// Ends a session.
    pub(crate) fn end(&mut self, now: Instant, peer: u16, grant: &mut Grant) {
        self.claimed -= grant.claim() - grant.promised;
        self.deactivate(now, peer, grant);
        self.set_refused(grant, false);
        grant.reset();
    }

    /// Accounts a data frame. Returns whether the credit of other senders should be decided anew.
    #[inline(always)] // as `engine::receive::settle`
    fn on_frame(&mut self, now: Instant, peer: u16, grant: &mut Grant, frame: Seen) -> bool {
        self.now = now;
        grant.urgency = frame.urgency;
        if !self.active.is_empty() && self.path.on_frame(now) {
            self.set_allowance();
        }
        let before = grant.awaited();
        if frame.next != grant.seen + 1 || grant.overtaken_frames > 0 {
            if frame.next > grant.seen {
                self.path.on_gap(frame.next - 1 - grant.seen);
            }
            grant.note_overtaken(frame);
        }
        if frame.next > grant.seen {
            grant.seen = frame.next;
            grant.granted = grant.granted.max(frame.next);
            grant.backlog = frame.more;
            grant.busy = frame.busy;
        } else if frame.used {
            self.path.on_late();
        }
        if before > grant.promised {
            self.claimed -= before - grant.claim();
        }
        let wants = grant.backlog || grant.urgency.1 > 0;
        (wants || grant.active) && self.on_want(now, peer, grant, frame.used_bytes, wants)
    }

    /// Updates the active senders: the peer wants to send more, or wanted to.
    #[inline(never)]
    fn on_want(
        &mut self,
        now: Instant,
        peer: u16,
        grant: &mut Grant,
        used_bytes: usize,
        wants: bool,
    ) -> bool {
        match (wants, grant.active) {
            (true, false) => {
                self.activate(now, peer, grant, used_bytes);
                false
            }
            (true, true) => {
                if let Some(entry) = self.active.iter_mut().find(|entry| entry.peer == peer) {
                    *entry = Active::new(peer, grant, used_bytes);
                    self.scheduled = None;
                }
                false
            }
            (false, true) => {
                self.deactivate(now, peer, grant);
                self.active.len() >= TUNING.credit.scheduled_senders
            }
            (false, false) => false,
        }
    }

    /// Notes whether memory refused the peer's latest frame.
    #[inline]
    fn set_refused(&mut self, grant: &mut Grant, refused: bool) {
        if grant.refused != refused {
            grant.refused = refused;
            self.refused_peers = self.refused_peers - usize::from(!refused) + usize::from(refused);
        }
    }

    fn activate(&mut self, now: Instant, peer: u16, grant: &mut Grant, used_bytes: usize) {
        // A peer has no claim to service for the time in which it had nothing to send.
        let least = self.active.iter().map(|entry| entry.served).min();
        grant.served = grant.served.max(least.unwrap_or(0));
        grant.active = true;
        if self.active.is_empty() {
            self.path.on_busy(now);
        }
        self.active.push(Active::new(peer, grant, used_bytes));
        self.scheduled = None;
    }

    fn deactivate(&mut self, now: Instant, peer: u16, grant: &mut Grant) {
        if grant.active {
            grant.active = false;
            self.active.retain(|entry| entry.peer != peer);
            self.scheduled = None;
            if self.active.is_empty() {
                self.path.on_idle(now);
            }
        }
    }

    /// Grants the peer what scheduling, the pool and memory allow (R-22 … R-24).
    #[inline(always)] // on the path of every frame
    fn raise(&mut self, peer: u16, grant: &mut Grant, memory: MemoryFrames) {
        let allowance = self.allowance();
        let mut window = if !grant.active || grant.busy || !self.is_scheduled(peer, grant) {
            allowance
        } else {
            let unscheduled = allowance * self.rules.peers().saturating_sub(1);
            let senders = self.active.len().clamp(1, TUNING.credit.scheduled_senders) as u64;
            (self.path.pool_frames().saturating_sub(unscheduled) / senders).max(allowance)
        };
        if self.rules.has_policy() {
            window = self.decide(peer, grant, memory, window);
        }
        window = window.min(grant.limit);
        grant.window = window;
        let everyone = window * (self.active.len() as u64).max(1);
        let affordable = if self.refused_peers == 0 && memory.suffices(everyone) {
            window
        } else {
            self.hungry = true;
            self.scarce_frames(grant, memory).min(window)
        };
        let ahead = affordable.saturating_sub(grant.overtaken_frames);
        // The peer needs this much to go on when all of its window was overtaken, or lost.
        let least = allowance.min(affordable);
        self.give(grant, grant.seen + ahead.max(least));
    }

    /// Grants up to `target`. The ring bounds claims besides the pool, because idle peers may hold credit of an earlier, larger pool.
    #[inline]
    fn give(&mut self, grant: &mut Grant, target: u64) {
        if target > grant.granted {
            // What was promised is part of the claims already.
            if target + grant.overtaken_frames <= grant.seen + grant.promised {
                grant.granted = target;
                return;
            }
            self.give_beyond(grant, target);
        }
    }

    /// As `give`, of more than was promised.
    #[inline(never)] // small messages need no more than that
    fn give_beyond(&mut self, grant: &mut Grant, target: u64) {
        let wanted = target - grant.granted;
        let spare = grant.promised.saturating_sub(grant.awaited());
        let window = self.rules.window() - self.kept();
        let room = spare + window.saturating_sub(self.claimed);
        let given = wanted.min(room);
        if given < wanted {
            self.hungry = true;
        }
        grant.granted += given;
        self.claimed += given.saturating_sub(spare);
    }

    /// Frames for a peer where memory is scarce: an active peer may complete its messages, and begins new ones by `grant_scarce`; another peer keeps
    /// an equal part, so that its next small message needs no probe.
    #[cold]
    fn scarce_frames(&self, grant: &Grant, memory: MemoryFrames) -> u64 {
        if grant.active {
            memory.frames(0)
        } else {
            let part = memory.free_bytes / self.rules.peers().max(1) as usize;
            memory.frames(part.max(memory.frame_bytes.min(memory.free_bytes)))
        }
    }

    /// Grants credit to the peer that was chosen. Alone, it gets all that is free and not promised to others; otherwise half of the difference between that
    /// and what it takes up, and at least one frame, because the first fragment tells the message's length.
    fn grant_scarce(&mut self, arbiter: &Arbiter, grant: &mut Grant, memory: MemoryFrames) {
        let Some(least) = arbiter.least else {
            return;
        };
        let others = arbiter.promised_bytes - least.promised_bytes;
        let free = memory.free_bytes.saturating_sub(others);
        let part = if arbiter.candidates == 1 {
            free
        } else {
            (free.saturating_sub(least.taken_bytes) / 2).max(memory.frame_bytes.min(free))
        };
        self.give(grant, grant.seen + memory.frames(part).min(grant.window));
    }

    /// No active peer's messages take up less.
    #[cold]
    fn is_least_holder(&self, used_bytes: usize) -> bool {
        self.active
            .iter()
            .all(|entry| entry.used_bytes >= used_bytes)
    }

    /// Whether the peer is scheduled: all places but one go to the most urgent, the last to the one served least, so that none starves.
    fn is_scheduled(&mut self, peer: u16, grant: &Grant) -> bool {
        if self.active.len() <= TUNING.credit.scheduled_senders {
            return true;
        }
        let active = &self.active;
        let scheduled = self
            .scheduled
            .get_or_insert_with(|| Scheduled::among(active));
        let others = scheduled.least_served.iter();
        let least_of_others = others.copied().find(|other| other.1 != peer);
        (grant.urgency, peer) <= scheduled.least_urgent
            || least_of_others.is_none_or(|least| (grant.served, peer) <= least)
    }

    /// Records the memory that the `index`-th active sender takes up.
    fn note(&mut self, index: usize, used_bytes: usize) {
        self.active[index].used_bytes = used_bytes;
    }

    /// The `index`-th active sender, to visit all of them.
    fn active_peer(&self, index: usize) -> Option<u16> {
        self.active.get(index).map(|entry| entry.peer)
    }
}

#[cfg(test)]
mod tests;
