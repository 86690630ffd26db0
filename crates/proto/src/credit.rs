//! The `credit` congestion control: the receiver says who may send how much to it (R-20 … ).
//!
//! Credit is counted in packet numbers: a peer may send numbers below its `granted`. Numbers are never reused, so credit
//! covers new data and repairs alike, a lost frame gives its credit back as soon as a later one arrives, and a lost grant
//! is made good by the next. What was overtaken may still come: it counts as not seen until it does, or its sender counts it lost.
//!
//! Asked by `crate::receiving` and `engine::credit`. What is known of a peer is a [`Grant`]: it lies in its `Peer`, and is written here alone.
//!
//! Invariant: Σ claims over all peers never exceeds `receive_frames`, as long as there are no more peers than that. A claim is
//! what is granted and did not come, and at least what hello and welcome promise: a peer that is gone may be back, and send that
//! much, before anyone else's credit is used up.

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
use tsumuji_wire::NodeId;

/// Senders that are granted scheduled credit at once. More keep the port busy when one of them stalls; fewer let short
/// messages finish sooner and need less switch buffer.
const SCHEDULED_SENDERS: usize = 4;
/// What an idle peer may send unasked, at most: what a program's loop sends between two steps of its work, where there are few peers. Of
/// many, R-21 and R-27 leave each less.
const UNSCHEDULED_FRAMES_MAX: u64 = 256;

/// What one peer has been granted, and what it wants.
#[derive(Debug)]
pub(crate) struct Grant {
    /// The peer may send numbers below this.
    granted: u64,
    /// Largest value of `granted` that left in a frame.
    told: u64,
    /// Largest packet number seen, plus one.
    seen: u64,
    /// Below that, what has not come; once there was any.
    overtaken: Option<Overtaken>,
    /// How many: asked for with every frame.
    overtaken_frames: u64,
    /// Its frames that were used; not those that memory refused. Whoever becomes active begins with the least of the others.
    served: u64,
    /// Credit stated in our hello and welcome: the same in all of them. 0 before the first. Outlives sessions.
    promised: u64,
    /// The peer's last frame said that more are waiting.
    backlog: bool,
    /// Memory refused its latest frame.
    refused: bool,
    /// The peer's last frame said that it is busy with others.
    busy: bool,
    active: bool,
    /// Order among active senders: priority, then bytes that remain. Smaller goes first.
    urgency: (u8, u64),
    /// Current window, in frames.
    window: u64,
    /// It is never larger than this: the program's word. Outlives the session.
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

    /// A session begins or ends. What was promised stays, and the program's word.
    fn reset(&mut self) {
        *self = Self {
            promised: self.promised,
            limit: self.limit,
            ..Self::new()
        };
    }

    /// Granted and not yet seen.
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

    /// On its way, or may be: granted and did not come.
    fn awaited(&self) -> u64 {
        self.outstanding() + self.overtaken_frames
    }

    /// What the receive ring must have room for.
    pub(crate) fn claim(&self) -> u64 {
        self.awaited().max(self.promised)
    }

    /// The frame skipped numbers, or some were skipped before.
    #[cold]
    fn note_overtaken(&mut self, frame: Seen) {
        let number = frame.next - 1;
        if number < self.seen && self.overtaken.is_none() {
            return; // a copy
        }
        let overtaken = self
            .overtaken
            .get_or_insert_with(|| Overtaken::new(frame.floor));
        overtaken.raise(frame.floor);
        if number >= self.granted {
            // Sent without credit, so after a long silence: what has not come by now is lost.
            overtaken.raise(number);
        } else if number >= self.seen {
            overtaken.skip(self.seen, number);
        } else {
            overtaken.come(number);
        }
        self.overtaken_frames = overtaken.count();
    }

    /// The peer cannot send as far as it knows, has something to send, and we have granted more.
    fn starves(&self) -> bool {
        self.backlog && self.granted > self.told && self.told <= self.seen
    }

    /// The news is worth a frame of its own.
    fn worth_telling(&self) -> bool {
        self.starves() || self.granted - self.told > self.window / 2
    }
}

/// What a data frame said, and what became of it.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// Its number plus one.
    pub(crate) next: u64,
    /// All below has come, or is no longer waited for by its sender.
    pub(crate) floor: u64,
    /// Its sender has more for us.
    pub(crate) more: bool,
    /// Its sender serves others, too.
    pub(crate) busy: bool,
    /// It was not refused.
    pub(crate) used: bool,
    /// Of its channel; then what has not come of its sender's messages that have begun to.
    pub(crate) urgency: (u8, u64),
    /// What its sender's messages take of memory now.
    pub(crate) used_bytes: usize,
}

/// What memory holds for one peer, in frames; divided only if it matters.
#[derive(Debug, Clone, Copy)]
struct MemoryFrames {
    /// Free for anyone.
    free_bytes: usize,
    /// Memory is set aside for them: of messages from this peer that have begun to arrive. They may be shorter than `frame_bytes`, each as
    /// its message is cut, so that no number of bytes tells how many they are.
    reserved_frames: usize,
    /// Of a message that has not begun, in a frame of the largest size: its length is not known.
    frame_bytes: usize,
    /// What this peer's messages take.
    used_bytes: usize,
}

impl MemoryFrames {
    /// As many frames as `frames` says, without dividing.
    #[inline]
    fn suffices(self, frames: u64) -> bool {
        let new = frames.saturating_sub(self.reserved_frames as u64);
        self.free_bytes as u64 >= new * self.frame_bytes as u64
    }

    /// Whole frames of `free_bytes`, and whatever finishes the messages under way.
    fn frames(self, free_bytes: usize) -> u64 {
        (free_bytes / self.frame_bytes.max(1) + self.reserved_frames) as u64
    }

    /// Granted and not yet seen, nor what is set aside for.
    fn promised_bytes(self, grant: &Grant) -> usize {
        let new = (grant.outstanding() as usize).saturating_sub(self.reserved_frames);
        new.saturating_mul(self.frame_bytes)
    }
}

/// Who is next to begin a message where memory is scarce: among those with more to send, the one that takes up least.
#[derive(Debug, Default)]
struct Turn {
    least: Option<Candidate>,
    candidates: usize,
    /// To all candidates together.
    promised_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// What counts: as much as is taken, unless a policy says otherwise.
    rank: u64,
    /// Used and promised.
    taken_bytes: usize,
    served: u64,
    peer: u16,
    promised_bytes: usize,
}

impl Turn {
    /// `first`: the peer's other messages wait for the one that it would begin. `rank`: a policy's word.
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
                // What others wait for comes first, whatever the policy: memory that waits is of no use to anyone.
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

/// Totals over all peers.
#[derive(Debug)]
pub(crate) struct Credit {
    pub(crate) rules: Rules,
    /// When the last frame came.
    now: Instant,
    claimed: u64,
    /// What is granted to all together: the program's window, or less where the path holds less.
    path: Path,
    /// What an idle peer may always send.
    allowance: u64,
    active: Vec<Active>,
    /// As `active` says; `None`: it has changed since.
    scheduled: Option<Scheduled>,
    /// Peers whose latest frame memory refused: while there are any, it does not suffice.
    refused_peers: usize,
    /// Somebody wanted more than the pool or the memory held.
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
            active: Vec::new(),
            scheduled: None,
            refused_peers: 0,
            hungry: false,
            rules,
        }
    }

    pub(crate) fn add_peer(&mut self) {
        self.rules.add_peer();
        self.path.set_peers(self.rules.peers());
        self.set_allowance();
    }

    /// As `Rules::set_window`.
    pub(crate) fn set_window(&mut self, frames: u64) {
        self.rules.set_window(frames);
        self.path.set_receive_frames(self.rules.window());
        self.path.set_peers(self.rules.peers());
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

    /// What the policy grants; never more than all.
    #[cold]
    fn decide(&mut self, peer: u16, grant: &Grant, memory: MemoryFrames, usual: u64) -> u64 {
        let room = self.room(memory);
        let sender = grant.sender(peer, memory, usual);
        self.rules.decide(&room, &sender).min(self.rules.window())
    }

    /// The policy's order among those who wait for memory, if there is one.
    fn memory_rank(&mut self, peer: u16, grant: &Grant, memory: MemoryFrames) -> Option<u64> {
        let room = self.room(memory);
        let sender = grant.sender(peer, memory, grant.window);
        self.rules.memory_rank(&room, &sender)
    }

    /// What an idle peer may always send: half of the pool divided by the number of peers.
    fn allowance(&self) -> u64 {
        self.allowance
    }

    fn set_allowance(&mut self) {
        self.allowance = (self.path.pool_frames() / 2 / self.rules.peers().max(1))
            .clamp(1, UNSCHEDULED_FRAMES_MAX);
    }

    /// By all peers.
    pub(crate) fn claimed(&self) -> u64 {
        self.claimed
    }

    /// What hello and welcome tell the peer. All members are added by now: the first statement counts them, later ones repeat it.
    pub(crate) fn promise(&mut self, grant: &mut Grant) -> u64 {
        if grant.promised == 0 {
            grant.promised = self.allowance;
            self.claimed += grant.promised;
        }
        grant.promised
    }

    /// A session begins; hello and welcome told the peer what is promised.
    pub(crate) fn begin(&mut self, grant: &mut Grant) {
        grant.reset();
        grant.granted += grant.promised;
        grant.told += grant.promised;
        grant.window = grant.promised;
    }

    /// A session ends.
    pub(crate) fn end(&mut self, now: Instant, peer: u16, grant: &mut Grant) {
        self.claimed -= grant.claim() - grant.promised;
        self.deactivate(now, peer, grant);
        self.set_refused(grant, false);
        grant.reset();
    }

    /// A data frame came. Tells whether other senders should be looked at again.
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

    /// The peer wants to send more, or wanted to.
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
                self.active.len() >= SCHEDULED_SENDERS
            }
            (false, false) => false,
        }
    }

    /// Memory refused the peer's latest frame, or took it.
    #[inline]
    fn set_refused(&mut self, grant: &mut Grant, refused: bool) {
        if grant.refused != refused {
            grant.refused = refused;
            self.refused_peers = self.refused_peers - usize::from(!refused) + usize::from(refused);
        }
    }

    fn activate(&mut self, now: Instant, peer: u16, grant: &mut Grant, used_bytes: usize) {
        // What it was not served while it wanted nothing is not owed to it.
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

    /// Grants `peer` what its turn, the pool and `memory_frames` allow (R-22 … R-24).
    #[inline(always)] // on every frame's way
    fn raise(&mut self, peer: u16, grant: &mut Grant, memory: MemoryFrames) {
        let allowance = self.allowance();
        let mut window = if !grant.active || grant.busy || !self.has_turn(peer, grant) {
            allowance
        } else {
            let unscheduled = allowance * self.rules.peers().saturating_sub(1);
            let senders = self.active.len().clamp(1, SCHEDULED_SENDERS) as u64;
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
        // What it needs to go on when all of its window was overtaken, or lost.
        let least = allowance.min(affordable);
        self.give(grant, grant.seen + ahead.max(least));
    }

    /// The pool bounds windows, the ring bounds claims: idle peers may hold more of an earlier, larger pool.
    #[inline]
    fn give(&mut self, grant: &mut Grant, target: u64) {
        if target > grant.granted {
            // What was promised is counted already.
            if target + grant.overtaken_frames <= grant.seen + grant.promised {
                grant.granted = target;
                return;
            }
            let wanted = target - grant.granted;
            let spare = grant.promised.saturating_sub(grant.awaited());
            let room = spare + self.rules.window().saturating_sub(self.claimed);
            let given = wanted.min(room);
            if given < wanted {
                self.hungry = true;
            }
            grant.granted += given;
            self.claimed += given.saturating_sub(spare);
        }
    }

    /// Where memory does not suffice for all, who has more to send gets what finishes its message, and new ones by turns
    /// (`give_turn`); who has not keeps an equal part, so that its next small message needs no probe.
    #[cold]
    fn scarce_frames(&self, grant: &Grant, memory: MemoryFrames) -> u64 {
        if grant.active {
            memory.frames(0)
        } else {
            let part = memory.free_bytes / self.rules.peers().max(1) as usize;
            memory.frames(part.max(memory.frame_bytes.min(memory.free_bytes)))
        }
    }

    /// `grant` belongs to the peer whose turn it is. Alone, it gets all that is free and not promised to others; else half
    /// of what it takes up less than that, and at least a frame: the first one tells how long the message is.
    fn give_turn(&mut self, turn: &Turn, grant: &mut Grant, memory: MemoryFrames) {
        let Some(least) = turn.least else {
            return;
        };
        let others = turn.promised_bytes - least.promised_bytes;
        let free = memory.free_bytes.saturating_sub(others);
        let part = if turn.candidates == 1 {
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

    /// All but one turn go to the most urgent, the last to whoever was served least: so that none is shut out.
    fn has_turn(&mut self, peer: u16, grant: &Grant) -> bool {
        if self.active.len() <= SCHEDULED_SENDERS {
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

    /// What the `index`-th active sender takes up now.
    fn note(&mut self, index: usize, used_bytes: usize) {
        self.active[index].used_bytes = used_bytes;
    }

    /// The `index`-th active sender, for a look at all of them.
    fn active_peer(&self, index: usize) -> Option<u16> {
        self.active.get(index).map(|entry| entry.peer)
    }
}

#[cfg(test)]
mod tests;
