//! Send half of one peer: what is queued, what is in flight, what was lost (R-11, R-15 … R-18).
//!
//! Called by `peer` for submit, for each frame to write and for each acknowledgement that came. Owns no clock: the
//! deadlines it states are looked at by `engine::handle_timeout`.
//!
//! Invariants: `sent[i]` tells of packet number `base + i`, and `sent[0]` is unanswered; a message lies in `messages`
//! until its last fragment is acknowledged; a fragment is in at most one of flight, `lost`, acknowledged, or not yet sent,
//! but for copies whose loss turned out to be spurious.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::lane::LANE_WINDOW;
use super::rtt::Rtt;
use crate::counters::Counters;
use crate::message::SendId;
use crate::numbers::{Arrivals, FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::pool::{Pool, has_bit, set_bit};
use crate::time::{Duration, Instant};
use tsumuji_wire::{Lane, Priority};

/// A frame overtaken by this many later ones is lost; grows when that turns out wrong.
const REORDERING_FRAMES: u64 = 3;
/// No further than this.
const REORDERING_FRAMES_MAX: u64 = 64;
/// A lost number is still awaited while fewer were sent since: as the acknowledgement's bitmap tells of that many even in
/// frames of 64 bytes, those that follow do not go unanswered.
const LOST_KEPT_FRAMES: u64 = 256;
/// Delay the peer may add before it acknowledges; part of every time-out.
pub(crate) const ACK_DELAY: Duration = Duration::from_micros(50);

#[derive(Debug)]
struct Outgoing {
    lane: Lane,
    /// Its place in `Send::lanes`.
    lane_index: u16,
    /// Within the lane; known once the first fragment leaves.
    number: u64,
    id: SendId,
    body: Vec<u8>,
    fragments: u32,
    next_fragment: u32,
    acknowledged: u32,
    /// Which fragments are acknowledged; empty for messages of one fragment.
    bitmap: Vec<u64>,
    notify: bool,
    live: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Lost,
    Resolved,
}

/// Where the fragment that leaves next stands: at the front of one of two queues.
#[derive(Debug, Clone, Copy)]
enum Choice {
    Repair { priority: usize },
    New { priority: usize },
}

#[derive(Debug, Clone, Copy)]
struct Part {
    slot: u32,
    fragment: u32,
    id: SendId,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    part: Part,
    at: Instant,
    state: State,
}

/// One lane's message numbers: which of those sent are not yet acknowledged whole.
#[derive(Debug)]
struct LaneSend {
    next: u64,
    acknowledged: Box<Arrivals>,
}
const _: () = assert!(LANE_WINDOW <= NUMBER_WINDOW);

impl LaneSend {
    fn new() -> Self {
        Self {
            next: FIRST_NUMBER,
            acknowledged: Box::new(Arrivals::new()),
        }
    }

    fn has_room(&self) -> bool {
        self.next - self.acknowledged.base() < LANE_WINDOW
    }

    fn assign(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn acknowledge(&mut self, number: u64) {
        self.acknowledged.mark(number);
    }
}

/// The fragment to write next.
pub(crate) struct NextFragment<'a> {
    pub(crate) number: u64,
    /// Lowest number still unanswered.
    pub(crate) floor: u64,
    pub(crate) lane: Lane,
    pub(crate) message: u64,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) payload: &'a [u8],
    pub(crate) more: bool,
    pub(crate) probe: bool,
}

/// What an acknowledgement says, in whatever frame it came.
pub(crate) struct AckNews<'a> {
    /// Every number below has arrived or is no longer awaited; low 32 bits.
    pub(crate) ack: u32,
    /// Bit i: number `ack + i` has arrived.
    pub(crate) bitmap: &'a [u8],
    /// How long the peer held it back.
    pub(crate) delay: Duration,
}

#[derive(Debug)]
pub(crate) struct Send {
    /// Payload bytes of every fragment but the last; known with the session.
    pub(crate) fragment_bytes: usize,
    pub(crate) credit: u64,
    pub(crate) rtt: Rtt,
    pub(crate) queued_messages: usize,
    pub(crate) queued_bytes: usize,
    pub(crate) retransmitted: u64,
    messages: Vec<Outgoing>,
    free: Vec<u32>,
    pending: [VecDeque<u32>; Priority::COUNT],
    lost: [VecDeque<Part>; Priority::COUNT],
    /// Bit p: `pending[p]` has an entry.
    pending_mask: u8,
    /// Bit p: `lost[p]` has an entry.
    lost_mask: u8,
    /// Entries of `pending` and `lost` together.
    backlog: usize,
    /// What `choose` answered; forgotten whenever it might answer otherwise.
    choice: Option<Choice>,
    lanes: Vec<LaneSend>,
    lane_index: Box<[u16; 256]>,
    sent: VecDeque<Sent>,
    base: u64,
    next: u64,
    in_flight: usize,
    next_id: u64,
    reordering_frames: u64,
    last_sent: Instant,
    blocked_since: Option<Instant>,
    backoff: u32,
    /// Silence after which a probe goes; follows from `rtt` and `backoff`.
    probe_after: Duration,
    probe: bool,
    /// The peer's memory refused frames, and has not said since that it has room: what it has begun to take goes first.
    refused: bool,
    /// Some frame was overtaken, but not by enough to be called lost.
    loss_at: Option<Instant>,
}

const NO_LANE: u16 = u16::MAX;

/// How many a message has; even an empty one has one. Messages have less than 2³² bytes.
#[inline]
fn fragments(message_bytes: usize, fragment_bytes: usize) -> u32 {
    if message_bytes <= fragment_bytes {
        1
    } else {
        message_bytes.div_ceil(fragment_bytes) as u32
    }
}

impl Send {
    pub(crate) fn new() -> Self {
        Self {
            fragment_bytes: 1,
            credit: 0,
            rtt: Rtt::new(),
            queued_messages: 0,
            queued_bytes: 0,
            retransmitted: 0,
            messages: Vec::new(),
            free: Vec::new(),
            pending: Default::default(),
            lost: Default::default(),
            pending_mask: 0,
            lost_mask: 0,
            backlog: 0,
            choice: None,
            lanes: Vec::new(),
            lane_index: Box::new([NO_LANE; 256]),
            sent: VecDeque::new(),
            base: FIRST_NUMBER,
            next: FIRST_NUMBER,
            in_flight: 0,
            next_id: 0,
            reordering_frames: REORDERING_FRAMES,
            last_sent: Instant::default(),
            blocked_since: None,
            backoff: 0,
            probe_after: Rtt::new().probe_after(ACK_DELAY, 0),
            probe: false,
            refused: false,
            loss_at: None,
        }
    }

    /// A session begins: what was queued before stays. `credit_frames` may be sent at once.
    pub(crate) fn begin(&mut self, fragment_bytes: usize, credit_frames: u64) {
        self.fragment_bytes = fragment_bytes.max(1);
        self.credit = FIRST_NUMBER + credit_frames;
        for outgoing in &mut self.messages {
            outgoing.fragments = fragments(outgoing.body.len(), self.fragment_bytes);
        }
    }

    #[inline]
    pub(crate) fn submit(&mut self, lane: Lane, body: Vec<u8>, notify: bool) -> SendId {
        let id = SendId(self.next_id);
        self.next_id += 1;
        self.queued_messages += 1;
        self.queued_bytes += body.len();
        let fragments = fragments(body.len(), self.fragment_bytes);
        let outgoing = Outgoing {
            lane,
            lane_index: self.lane_index(lane),
            number: 0,
            id,
            body,
            fragments,
            next_fragment: 0,
            acknowledged: 0,
            bitmap: Vec::new(),
            notify,
            live: true,
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.messages[slot as usize] = outgoing;
            slot
        } else {
            self.messages.push(outgoing);
            (self.messages.len() - 1) as u32
        };
        let priority = usize::from(lane.priority().get());
        self.pending[priority].push_back(slot);
        self.pending_mask |= 1 << priority;
        self.backlog += 1;
        self.choice = None;
        id
    }

    pub(crate) fn is_acknowledged(&self, id: SendId) -> bool {
        id.0 < self.next_id
            && !self
                .messages
                .iter()
                .any(|outgoing| outgoing.live && outgoing.id == id)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(crate) fn credit_left(&self) -> u64 {
        self.credit.saturating_sub(self.next)
    }

    /// Something is queued that may leave now.
    #[inline]
    pub(crate) fn is_sendable(&mut self, now: Instant) -> bool {
        self.backlog > 0 && self.may_leave(now)
    }

    #[inline]
    fn may_leave(&mut self, now: Instant) -> bool {
        if self.sent.len() as u64 >= NUMBER_WINDOW || (self.next >= self.credit && !self.probe) {
            self.blocked_since.get_or_insert(now);
            return false;
        }
        if self.choice.is_none() {
            self.choice = self.choose();
        }
        self.choice.is_some()
    }

    /// The most urgent priority with a fragment that may leave: repairs first, then new data.
    #[inline]
    fn choose(&mut self) -> Option<Choice> {
        if self.refused
            && let Some(next) = self.next_begun()
        {
            return Some(next);
        }
        let mut candidates = self.pending_mask | self.lost_mask;
        while candidates != 0 {
            let priority = candidates.trailing_zeros() as usize;
            if self.lost_mask & (1 << priority) != 0 && self.has_repair(priority) {
                return Some(Choice::Repair { priority });
            }
            if let Some(&slot) = self.pending[priority].front() {
                let outgoing = &self.messages[slot as usize];
                let lane = &self.lanes[usize::from(outgoing.lane_index)];
                if outgoing.next_fragment > 0 || lane.has_room() {
                    return Some(Choice::New { priority });
                }
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// As `choose`, but only of messages that the peer has begun to take: their memory is set aside there, and comes
    /// free only when they are whole. Others would use up the credit meant for these and be refused again.
    #[cold]
    fn next_begun(&mut self) -> Option<Choice> {
        for priority in 0..Priority::COUNT {
            let begun = |part: &Part| self.is_wanted(part) && self.is_begun(part.slot);
            if let Some(index) = self.lost[priority].iter().position(begun) {
                if let Some(part) = self.lost[priority].remove(index) {
                    self.lost[priority].push_front(part);
                }
                return Some(Choice::Repair { priority });
            }
            if let Some(&slot) = self.pending[priority].front()
                && self.is_begun(slot)
            {
                return Some(Choice::New { priority });
            }
        }
        None
    }

    fn is_begun(&self, slot: u32) -> bool {
        self.messages[slot as usize].acknowledged > 0
    }

    /// Forgets repairs that are no longer wanted; is there one that is?
    #[cold]
    fn has_repair(&mut self, priority: usize) -> bool {
        while let Some(part) = self.lost[priority].front() {
            if self.is_wanted(part) {
                return true;
            }
            self.pop_repair(priority);
        }
        false
    }

    fn push_repair(&mut self, part: Part, ahead: bool) {
        let priority = usize::from(self.messages[part.slot as usize].lane.priority().get());
        if ahead {
            self.lost[priority].push_front(part);
        } else {
            self.lost[priority].push_back(part);
        }
        self.lost_mask |= 1 << priority;
        self.backlog += 1;
        self.choice = None;
    }

    fn pop_repair(&mut self, priority: usize) -> Option<Part> {
        let part = self.lost[priority].pop_front()?;
        self.backlog -= 1;
        if self.lost[priority].is_empty() {
            self.lost_mask &= !(1 << priority);
        }
        Some(part)
    }

    #[inline]
    fn lane_index(&mut self, lane: Lane) -> u16 {
        let index = self.lane_index[usize::from(lane.0)];
        if index == NO_LANE {
            self.add_lane(lane)
        } else {
            index
        }
    }

    #[cold]
    fn add_lane(&mut self, lane: Lane) -> u16 {
        let index = self.lanes.len() as u16;
        self.lanes.push(LaneSend::new());
        self.lane_index[usize::from(lane.0)] = index;
        index
    }

    /// The message of this part still lives and misses it.
    fn is_wanted(&self, part: &Part) -> bool {
        let outgoing = &self.messages[part.slot as usize];
        outgoing.live
            && outgoing.id == part.id
            && (outgoing.bitmap.is_empty() || !has_bit(&outgoing.bitmap, part.fragment as usize))
    }

    /// Takes the next fragment; call only after `is_sendable` said yes.
    #[inline]
    pub(crate) fn next_fragment(
        &mut self,
        now: Instant,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<NextFragment<'_>> {
        let part = match self.choice.take()? {
            Choice::New { priority } => self.next_new_fragment(priority, pool)?,
            Choice::Repair { priority } => {
                self.retransmitted += 1;
                counters.retransmitted_frames += 1;
                self.pop_repair(priority)?
            }
        };
        let number = self.next;
        self.next += 1;
        if self.sent.is_empty() {
            self.base = number;
        }
        self.sent.push_back(Sent {
            part,
            at: now,
            state: State::InFlight,
        });
        self.in_flight += 1;
        self.last_sent = now;
        self.blocked_since = None;
        let probe = core::mem::take(&mut self.probe);
        let outgoing = &self.messages[part.slot as usize];
        let offset = part.fragment as usize * self.fragment_bytes;
        let end = outgoing.body.len().min(offset + self.fragment_bytes);
        Some(NextFragment {
            number,
            floor: self.base,
            lane: outgoing.lane,
            message: outgoing.number,
            offset,
            length: outgoing.body.len(),
            payload: &outgoing.body[offset..end],
            more: self.backlog > 0,
            probe,
        })
    }

    #[inline]
    fn next_new_fragment(&mut self, priority: usize, pool: &mut Pool) -> Option<Part> {
        let slot = *self.pending[priority].front()?;
        let outgoing = &mut self.messages[slot as usize];
        let fragment = outgoing.next_fragment;
        outgoing.next_fragment += 1;
        if fragment == 0 {
            outgoing.number = self.lanes[usize::from(outgoing.lane_index)].assign();
        }
        if fragment == 0 && outgoing.fragments > 1 {
            outgoing.bitmap = pool.take_bitmap(outgoing.fragments as usize);
        }
        if outgoing.next_fragment == outgoing.fragments {
            self.pending[priority].pop_front();
            self.backlog -= 1;
            if self.pending[priority].is_empty() {
                self.pending_mask &= !(1 << priority);
            }
        }
        let id = outgoing.id;
        Some(Part { slot, fragment, id })
    }

    /// Takes an acknowledgement. `done` is told each message that is now acknowledged whole and asked for it.
    /// `false`: it speaks of numbers never sent.
    #[inline]
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        news: &AckNews<'_>,
        pool: &mut Pool,
        counters: &mut Counters,
        mut done: impl FnMut(SendId),
    ) -> bool {
        let AckNews { bitmap, delay, .. } = *news;
        let ack = expand(news.ack, self.base);
        if ack > self.next || (bitmap.is_empty() && ack <= self.base) {
            return ack <= self.next;
        }
        let mut newest: Option<(u64, Instant)> = None;
        while self.base < ack {
            let Some(sent) = self.sent.pop_front() else {
                break;
            };
            if sent.state != State::Resolved {
                self.acknowledge(sent, pool, counters, &mut done);
                newest = Some((self.base, sent.at));
            }
            self.base += 1;
        }
        for (index, byte) in bitmap.iter().enumerate() {
            let mut byte = *byte;
            while byte != 0 {
                let number = ack + index as u64 * 8 + u64::from(byte.trailing_zeros());
                byte &= byte - 1;
                let Some(index) = number.checked_sub(self.base) else {
                    continue;
                };
                let Some(sent) = self.sent.get_mut(index as usize) else {
                    break;
                };
                if sent.state != State::Resolved {
                    let copy = *sent;
                    sent.state = State::Resolved;
                    self.acknowledge(copy, pool, counters, &mut done);
                    newest = Some((number, copy.at));
                }
            }
        }
        if let Some((number, at)) = newest {
            self.rtt.sample(now.since(at + delay));
            self.backoff = 0;
            self.probe_after = self.rtt.probe_after(ACK_DELAY, 0);
            if self.sent.is_empty() {
                self.loss_at = None;
            } else {
                self.detect_losses(now, number, at);
            }
        }
        self.advance_base(now);
        true
    }

    #[inline]
    fn acknowledge(
        &mut self,
        sent: Sent,
        pool: &mut Pool,
        counters: &mut Counters,
        done: &mut impl FnMut(SendId),
    ) {
        match sent.state {
            State::InFlight => self.in_flight -= 1,
            State::Lost => {
                counters.spurious_losses += 1;
                self.reordering_frames = (self.reordering_frames * 2).min(REORDERING_FRAMES_MAX);
            }
            State::Resolved => return,
        }
        self.choice = None;
        let slot = sent.part.slot as usize;
        let outgoing = &mut self.messages[slot];
        if !outgoing.live || outgoing.id != sent.part.id {
            return;
        }
        if outgoing.fragments > 1 && !set_bit(&mut outgoing.bitmap, sent.part.fragment as usize) {
            return;
        }
        outgoing.acknowledged += 1;
        if outgoing.acknowledged < outgoing.fragments {
            return;
        }
        outgoing.live = false;
        let body = core::mem::take(&mut outgoing.body);
        let (lane, number) = (usize::from(outgoing.lane_index), outgoing.number);
        self.queued_messages -= 1;
        self.queued_bytes -= body.len();
        if outgoing.notify {
            done(outgoing.id);
        }
        if outgoing.fragments > 1 {
            pool.put_bitmap(core::mem::take(&mut outgoing.bitmap));
        }
        pool.put(body);
        self.lanes[lane].acknowledge(number);
        self.free.push(sent.part.slot);
    }

    /// Frames overtaken by enough later ones, or for long enough, are lost.
    fn detect_losses(&mut self, now: Instant, newest: u64, newest_at: Instant) {
        self.loss_at = None;
        let window = self.rtt.reordering_window();
        let span = newest.saturating_sub(self.base).min(self.sent.len() as u64);
        for index in 0..span as usize {
            let sent = self.sent[index];
            if sent.state != State::InFlight || sent.at > newest_at {
                continue;
            }
            let overtaken_by = newest - (self.base + index as u64);
            let due = sent.at + window;
            if overtaken_by >= self.reordering_frames || now >= due {
                self.lose(index);
            } else {
                self.loss_at = Some(self.loss_at.map_or(due, |at| at.min(due)));
            }
        }
    }

    fn lose(&mut self, index: usize) {
        let sent = &mut self.sent[index];
        sent.state = State::Lost;
        let part = sent.part;
        self.in_flight -= 1;
        self.push_repair(part, false);
    }

    /// Lost numbers are answered too: their repairs have numbers of their own. They are kept a little longer, to learn of those
    /// that were merely late.
    fn advance_base(&mut self, now: Instant) {
        let patience = self.rtt.reordering_window().times(2);
        while let Some(sent) = self.sent.front() {
            let awaited = match sent.state {
                State::InFlight => true,
                State::Lost => sent.at + patience > now && self.next - self.base < LOST_KEPT_FRAMES,
                State::Resolved => false,
            };
            if awaited {
                break;
            }
            self.sent.pop_front();
            self.base += 1;
        }
    }

    /// The peer's memory refused frames: those that it must have seen by now wait for credit.
    pub(crate) fn on_refusal(&mut self, now: Instant) {
        self.refused = true;
        self.choice = None;
        for index in 0..self.sent.len() {
            let sent = self.sent[index];
            if sent.at + self.rtt.smoothed.divided(2) > now {
                break;
            }
            if sent.state == State::InFlight {
                self.lose(index);
            }
        }
        self.advance_base(now);
    }

    /// The peer's memory holds so much more.
    pub(crate) fn on_window(&mut self, bytes: usize) {
        if self.refused && bytes >= self.fragment_bytes {
            self.refused = false;
            self.choice = None;
        }
    }

    pub(crate) fn on_credit(&mut self, credit_low: u32) {
        let credit = expand(credit_low, self.next);
        if credit > self.credit {
            self.credit = credit;
            self.blocked_since = None;
        }
    }

    /// When `on_timeout` wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let since = if self.in_flight > 0 {
            Some(self.last_sent)
        } else {
            self.blocked_since
        };
        let probe = since.map(|since| since + self.probe_after);
        match (probe, self.loss_at) {
            (Some(probe), Some(loss)) => Some(probe.min(loss)),
            (probe, loss) => probe.or(loss),
        }
    }

    pub(crate) fn on_timeout(&mut self, now: Instant, counters: &mut Counters) {
        self.advance_base(now);
        if self.loss_at.is_some_and(|at| at <= now) {
            self.loss_at = None;
            let window = self.rtt.reordering_window();
            // Only what something later has overtaken: the rest is the probe's to find out.
            let answered = |sent: &Sent| sent.state == State::Resolved;
            let overtaken = self.sent.iter().rposition(answered).unwrap_or(0);
            for index in 0..overtaken {
                let sent = self.sent[index];
                if sent.at + window > now {
                    break;
                }
                if sent.state == State::InFlight {
                    self.lose(index);
                }
            }
            self.advance_base(now);
        }
        if self.deadline().is_some_and(|at| at <= now) {
            self.send_probe(now, counters);
        }
    }

    /// The oldest unanswered fragment goes again, ahead of all and beyond credit, and asks for an answer.
    fn send_probe(&mut self, now: Instant, counters: &mut Counters) {
        counters.probes += 1;
        self.backoff += 1;
        self.probe_after = self.rtt.probe_after(ACK_DELAY, self.backoff);
        self.probe = true;
        self.last_sent = now;
        if self.blocked_since.is_some() {
            self.blocked_since = Some(now);
        }
        if let Some(index) = self
            .sent
            .iter()
            .position(|sent| sent.state == State::InFlight)
        {
            let part = self.sent[index].part;
            self.sent[index].state = State::Lost;
            self.in_flight -= 1;
            self.push_repair(part, true);
            self.advance_base(now);
        }
    }

    /// The peer is gone: forgets everything; returns how many messages were not acknowledged.
    pub(crate) fn fail(&mut self, pool: &mut Pool) -> usize {
        let failed = self.queued_messages;
        for outgoing in self.messages.drain(..) {
            pool.put(outgoing.body);
            pool.put_bitmap(outgoing.bitmap);
        }
        let next_id = self.next_id;
        let retransmitted = self.retransmitted;
        *self = Self {
            next_id,
            retransmitted,
            ..Self::new()
        };
        failed
    }
}
