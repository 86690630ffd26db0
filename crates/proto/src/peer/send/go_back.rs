//! Sending half of `suci`: a frame keeps its number until it is acknowledged; after a loss, all frames from there on are sent again, at once if they
//! are few, else with permission (S1 to S3 of the paper and its congestion control; ).
//!
//! Called by `send` through `Sending`, and by `engine::transmit` for the ask that leaves.
//!
//! Invariants: `sent[i]` is number `base + i`; numbers from `cursor` on wait to be sent again: the retransmission queue. It is empty while no loss is
//! known, and no new frame leaves while it is not.

use alloc::collections::VecDeque;

use crate::congestion::{Departure, Ledger, Sending};
use crate::counters::Counters;
use crate::message::SendId;
use crate::numbers::{FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::peer::flight::{AckNews, Part};
use crate::peer::loss::Silence;
use crate::peer::queue::{Queue, STALL_REPAIRS};
use crate::peer::rtt::Rtt;
use crate::peer::send::Agreed;
use crate::pool::Pool;
use crate::time::{Duration, Instant};
use tsumuji_wire::{Ack, Permit, flags};

/// A frame that awaits its acknowledgement.
#[derive(Debug, Clone, Copy)]
struct Sent {
    part: Part,
    at: Instant,
}

#[derive(Debug)]
pub(crate) struct GoBack {
    /// K: a NACK has this many frames at most sent again without permission.
    pub(super) unasked_frames: u16,
    sent: VecDeque<Sent>,
    /// Lowest number that is not acknowledged.
    base: u64,
    /// The number of the next frame that leaves.
    cursor: u64,
    /// Numbers below this may leave for the first time: the end of the window.
    limit: u64,
    /// The ack number of the acknowledgement that stated `limit`.
    limit_ack: u64,
    /// Numbers below this may be sent again.
    granted: u64,
    /// How often frames were found lost.
    round: u32,
    ask_pending: bool,
    /// A NACK of a number below this has the sender ask: that one was sent again without permission before.
    unasked_from: u64,
    /// Numbers below this were sent twice or asked about, so that their acknowledgements give no round-trip sample.
    timed_from: u64,
    silence: Silence,
    /// How often the lowest unacknowledged frame was sent again without a refusal by memory.
    repeats: u32,
    repeating_since: Instant,
}

/// Content of an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) round: u32,
    /// The first number of the retransmission queue.
    pub(crate) number: u64,
    /// Length of the retransmission queue; 0 if only the window is asked for.
    pub(crate) frames: u64,
}

impl GoBack {
    pub(crate) fn new(unasked_frames: u16) -> Self {
        Self {
            unasked_frames,
            sent: VecDeque::new(),
            base: FIRST_NUMBER,
            cursor: FIRST_NUMBER,
            limit: FIRST_NUMBER,
            limit_ack: FIRST_NUMBER,
            granted: FIRST_NUMBER,
            round: 0,
            ask_pending: false,
            unasked_from: FIRST_NUMBER,
            timed_from: FIRST_NUMBER,
            silence: Silence::new(),
            repeats: 0,
            repeating_since: Instant::default(),
        }
    }

    /// Number of the next new frame.
    fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    /// Whether frames wait to be sent again.
    fn has_lost(&self) -> bool {
        self.cursor < self.next()
    }

    /// Puts all frames from the lowest unacknowledged number on into the retransmission queue, and asks for permission.
    fn go_back(&mut self) {
        self.cursor = self.base;
        self.granted = self.base;
        self.timed_from = self.next();
        self.round = self.round.wrapping_add(1);
        self.ask_pending = true;
    }

    /// Takes a NACK: the receiver misses the number, and dropped what came after it (S3). A queue of up to K frames is sent again at once. A longer
    /// one means congestion; so does a second NACK of the same number. What memory refused waits for room, of which the receiver knows.
    fn on_nack(&mut self, number_low: u32, refused: bool) {
        // The number of an earlier NACK has been acknowledged; a NACK while permission is awaited is nothing new.
        if expand(number_low, self.base) != self.base || self.cursor == self.base {
            return;
        }
        self.go_back();
        let few = self.sent.len() <= usize::from(self.unasked_frames);
        if few && !refused && self.base >= self.unasked_from {
            self.granted = self.next();
            self.ask_pending = false;
            self.unasked_from = self.base + 1;
        }
    }

    /// Takes the window that an acknowledgement of all below `ack_low` states: numbers below `limit_low` may leave. An acknowledgement older than the
    /// one that stated the present window is ignored.
    fn on_window(&mut self, ack_low: u32, limit_low: u32) {
        let ack = expand(ack_low, self.base);
        let limit = expand(limit_low, self.base).min(ack + NUMBER_WINDOW);
        if ack > self.limit_ack || ack == self.limit_ack && limit > self.limit {
            (self.limit, self.limit_ack) = (limit, ack);
            if self.next() < limit {
                self.silence.on_credit();
            }
        }
    }

    /// Takes permission to send `grant.frames` frames from `grant.number` on again, if it answers the present round.
    pub(crate) fn on_grant(&mut self, now: Instant, grant: &Permit, rtt: &Rtt) {
        let end = expand(grant.number, self.base).saturating_add(u64::from(grant.frames));
        let end = end.min(self.next());
        if grant.round == self.round && end > self.granted {
            self.granted = end;
            // The peer is alive and knows of the loss, so waiting begins anew.
            self.silence.on_answer(now, rtt);
        }
    }

    /// Content of the ask that leaves now.
    pub(crate) fn take_ask(&mut self) -> Ask {
        self.ask_pending = false;
        Ask {
            round: self.round,
            number: self.cursor,
            frames: self.next() - self.cursor,
        }
    }
}

impl Sending for GoBack {
    fn begin(&mut self, agreed: &Agreed) {
        self.limit = FIRST_NUMBER + agreed.credit_frames;
    }

    fn may_leave(&mut self, now: Instant, queue: &mut Queue) -> bool {
        if self.ask_pending {
            return true;
        }
        if self.has_lost() {
            return self.cursor < self.granted;
        }
        if !queue.has_backlog() {
            return false;
        }
        if self.next() >= self.limit || self.sent.len() as u64 >= NUMBER_WINDOW {
            self.silence.on_blocked(now);
            return false;
        }
        queue.has_choice()
    }

    fn depart(
        &mut self,
        now: Instant,
        queue: &mut Queue,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<Departure> {
        let number = self.cursor;
        let part = if self.has_lost() {
            let sent = self.sent.get((number - self.base) as usize)?;
            queue.retransmitted += 1;
            if number == self.base {
                if self.repeats == 0 {
                    self.repeating_since = now;
                }
                self.repeats += 1;
            }
            counters.retransmitted_frames += 1;
            sent.part
        } else {
            let part = queue.pop(now, pool, counters)?;
            self.sent.push_back(Sent { part, at: now });
            part
        };
        self.cursor += 1;
        self.silence.on_sent(now);
        Some(Departure {
            part,
            number,
            floor: 0,
            probe: false,
            more: self.has_lost() || queue.has_backlog(),
        })
    }

    fn is_unsent(&self, news: &AckNews<'_>) -> bool {
        expand(news.ack, self.base) > self.next()
    }

    fn on_ack(
        &mut self,
        now: Instant,
        news: &AckNews<'_>,
        ledger: Ledger<'_>,
        mut done: impl FnMut(SendId),
    ) {
        let ack = expand(news.ack, self.base);
        let mut newest = None;
        while self.base < ack
            && let Some(sent) = self.sent.pop_front()
        {
            self.base += 1;
            newest = Some(sent);
            ledger.queue.acknowledge(sent.part, ledger.pool, &mut done);
        }
        if let Some(sent) = newest {
            self.repeats = 0;
            if self.base > self.timed_from {
                ledger.rtt.sample(now.since(sent.at), news.delay);
            }
            self.silence.on_answer(now, ledger.rtt);
            self.cursor = self.cursor.max(self.base);
            self.granted = self.granted.max(self.base);
            // What waited to be sent again has arrived after all: there is nothing to ask for.
            self.ask_pending &= self.has_lost();
        }
    }

    fn on_terms(&mut self, _: Instant, ack: &Ack<'_>, _: &Rtt, _: &mut Queue) {
        self.on_window(ack.ack, ack.credit);
        let refused = ack.flags & flags::REFUSED != 0;
        if refused {
            self.repeats = 0; // the receiver's memory is full, and nothing is stuck
        }
        if ack.flags & flags::NACK != 0 {
            self.on_nack(ack.ack, refused);
        }
    }

    fn is_ask_pending(&self) -> bool {
        self.ask_pending
    }

    fn deadline(&self) -> Option<Instant> {
        self.silence.probe_at(!self.sent.is_empty())
    }

    fn may_repair(&self, now: Instant, rtt: &Rtt) -> bool {
        self.silence.may_repair(now, rtt, !self.sent.is_empty())
    }

    fn on_silence(
        &mut self,
        now: Instant,
        _last_heard: Instant,
        _lossless: bool,
        ledger: Ledger<'_>,
    ) -> bool {
        ledger.counters.probes += 1;
        self.silence.on_probe(now, ledger.rtt);
        if self.cursor > self.base {
            self.go_back();
        }
        self.timed_from = self.next();
        self.ask_pending = true;
        false
    }

    fn on_timeout(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        ledger: Ledger<'_>,
    ) -> bool {
        if !ledger.queue.has_backlog() {
            self.silence.on_credit(); // what was blocked was dropped
        }
        if self.deadline().is_none_or(|at| now < at) {
            return false;
        }
        self.on_silence(now, last_heard, lossless, ledger)
    }

    fn stalled(&self, now: Instant, after: Duration, queue: &Queue) -> Option<SendId> {
        let is_stuck = self.repeats > STALL_REPAIRS && now.since(self.repeating_since) >= after;
        let stuck = self.sent.front().filter(|_| is_stuck)?;
        queue.stuck_by(stuck.part)
    }

    fn note_silence(&mut self, _: Instant, _: &mut Queue) {
        self.repeats = 0;
    }

    fn in_flight(&self) -> usize {
        (self.cursor - self.base) as usize
    }

    fn credit_left(&self) -> u64 {
        self.limit.saturating_sub(self.next())
    }
}
