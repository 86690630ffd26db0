//! Send half of one peer: whether a frame may leave now, and what acknowledgements and silence mean for those that did (R-15 … R-18).
//!
//! Called by `engine` for submit, for each frame to write and for each acknowledgement that came. `queue` knows what waits,
//! `flight` what is under way, `loss` what of that is lost. Owns no clock: the deadlines it states are looked at by
//! `engine::handle_timeout`.

use alloc::vec::Vec;
use core::cell::Cell;

pub(crate) use super::flight::AckNews;
use super::flight::{Answer, Flight, State};
pub(crate) use super::loss::ACK_DELAY;
use super::loss::{Overtaken, Silence};
use super::queue::Queue;
use super::queue::latest::{Dropped, NEVER};
use super::rtt::Rtt;
use crate::counters::Counters;
use crate::message::SendId;
use crate::numbers::{FIRST_NUMBER, expand};
use crate::pool::Pool;
use crate::time::Instant;
use tsumuji_wire::Lane;

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

/// What hello and welcome agreed on.
pub(crate) struct Agreed {
    pub(crate) fragment_bytes: usize,
    /// Largest message that the peer takes.
    pub(crate) message_limit_bytes: usize,
    /// So many numbers fit an acknowledgement's bitmap.
    pub(crate) told_frames: usize,
    /// So many frames may be sent at once.
    pub(crate) credit_frames: u64,
}

#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) rtt: Rtt,
    /// Numbers below this may be sent.
    credit: u64,
    queue: Queue,
    flight: Flight,
    overtaken: Overtaken,
    silence: Silence,
    /// The next frame may leave without credit and asks for an answer.
    probe: bool,
}

impl Send {
    pub(crate) fn new() -> Self {
        Self::with_queue(Queue::new(0))
    }

    fn with_queue(queue: Queue) -> Self {
        Self {
            rtt: Rtt::new(),
            credit: 0,
            queue,
            flight: Flight::new(),
            overtaken: Overtaken::new(),
            silence: Silence::new(),
            probe: false,
        }
    }

    /// A session begins: what was queued before stays, but for messages of more than the peer takes, of which `too_large` is
    /// told.
    pub(crate) fn begin(
        &mut self,
        agreed: &Agreed,
        pool: &mut Pool,
        too_large: impl FnMut(SendId, usize),
    ) {
        self.queue.begin(
            agreed.fragment_bytes,
            agreed.message_limit_bytes,
            pool,
            too_large,
        );
        self.flight.set_window(agreed.told_frames);
        self.credit = FIRST_NUMBER + agreed.credit_frames;
    }

    #[inline]
    pub(crate) fn submit(&mut self, lane: Lane, body: Vec<u8>, notify: bool) -> SendId {
        self.queue.push(lane, body, notify)
    }

    /// As `submit`, best effort: until `deadline`, and as long as no newer one of its lane comes. Returns what it replaced.
    pub(crate) fn submit_latest(
        &mut self,
        lane: Lane,
        body: Vec<u8>,
        deadline: Option<Instant>,
    ) -> (SendId, Option<Vec<u8>>) {
        self.queue
            .push_latest(lane, body, deadline.unwrap_or(NEVER))
    }

    /// Latest messages that did not arrive.
    pub(crate) fn dropped(&self) -> Dropped {
        self.queue.dropped
    }

    /// A message of `length_bytes` that `feed` will bring; `None` while another one is being fed.
    pub(crate) fn submit_stream(
        &mut self,
        lane: Lane,
        length_bytes: usize,
        notify: bool,
    ) -> Option<SendId> {
        self.queue.push_stream(lane, length_bytes, notify)
    }

    /// A message is not yet fed to its end.
    pub(crate) fn is_feeding(&self) -> bool {
        self.queue.is_feeding()
    }

    /// More of a message could be fed now.
    pub(crate) fn is_hungry(&self) -> bool {
        self.queue.is_hungry()
    }

    /// Takes as much of `rest` as may wait to leave; `None`: no such message is being fed.
    pub(crate) fn feed(&mut self, rest: &[u8], pool: &mut Pool) -> Option<usize> {
        self.queue.feed(rest, pool)
    }

    pub(crate) fn is_acknowledged(&self, id: SendId) -> bool {
        self.queue.is_acknowledged(id)
    }

    /// Payload bytes of every fragment but the last.
    #[inline]
    pub(crate) fn fragment_bytes(&self) -> usize {
        self.queue.fragment_bytes
    }

    /// Messages not acknowledged whole.
    #[inline]
    pub(crate) fn queued_messages(&self) -> usize {
        self.queue.queued_messages
    }

    /// Their bytes.
    #[inline]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queue.queued_bytes
    }

    /// Fragments that left again, ever.
    pub(crate) fn retransmitted(&self) -> u64 {
        self.queue.retransmitted
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.flight.in_flight()
    }

    pub(crate) fn credit_left(&self) -> u64 {
        self.credit.saturating_sub(self.flight.next())
    }

    /// Something is queued that may leave now.
    #[inline]
    pub(crate) fn is_sendable(&mut self, now: Instant) -> bool {
        self.queue.has_backlog() && self.may_leave(now)
    }

    #[inline]
    fn may_leave(&mut self, now: Instant) -> bool {
        if now >= self.queue.first_deadline() {
            self.queue.expire(now);
        }
        if self.flight.is_full() || (self.flight.next() >= self.credit && !self.probe) {
            self.silence.on_blocked(now);
            return false;
        }
        self.queue.has_choice()
    }

    /// Takes the next fragment; call only after `is_sendable` said yes.
    #[inline]
    pub(crate) fn next_fragment(
        &mut self,
        now: Instant,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<NextFragment<'_>> {
        let part = self.queue.pop(pool, counters)?;
        let number = self.flight.depart(now, part);
        self.silence.on_sent(now);
        let probe = core::mem::take(&mut self.probe);
        let place = self.queue.place(part);
        Some(NextFragment {
            number,
            floor: self.flight.base(),
            lane: place.lane,
            message: place.message,
            offset: place.offset,
            length: place.length,
            payload: place.payload,
            more: self.queue.has_backlog(),
            probe,
        })
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
        let Self {
            queue,
            flight,
            overtaken,
            ..
        } = self;
        let answer = flight.acknowledge(news, |sent| {
            if sent.state == State::Lost {
                counters.spurious_losses += 1;
                overtaken.on_spurious_loss();
            }
            queue.acknowledge(sent.part, pool, &mut done);
        });
        match answer {
            Answer::Unsent => return false,
            Answer::Old => {}
            Answer::New { number, at } => {
                self.rtt.sample(now.since(at + news.delay));
                self.silence.on_answer(now, &self.rtt);
                if flight.is_empty() {
                    overtaken.due_at = None;
                    return true;
                }
                overtaken.detect(now, (number, at), flight, &self.rtt, |part| {
                    queue.push_repair(part, false);
                });
            }
        }
        self.advance(now);
        true
    }

    #[inline]
    fn advance(&mut self, now: Instant) {
        let rtt = &self.rtt;
        self.flight
            .advance(now, || rtt.reordering_window().times(2));
    }

    /// The peer's memory refused frames: those that it must have seen by now wait for credit.
    pub(crate) fn on_refusal(&mut self, now: Instant) {
        self.queue.set_begun_first(true);
        let half = self.rtt.smoothed.divided(2);
        let queue = &mut self.queue;
        self.flight.give_up(
            u64::MAX,
            |_, at| (at + half <= now).then_some(true),
            |part| {
                queue.push_repair(part, false);
            },
        );
        self.advance(now);
    }

    /// The peer's memory holds so much more.
    pub(crate) fn on_window(&mut self, bytes: usize) {
        if self.queue.is_begun_first() && bytes >= self.fragment_bytes() {
            self.queue.set_begun_first(false);
        }
    }

    pub(crate) fn on_credit(&mut self, credit_low: u32) {
        let credit = expand(credit_low, self.flight.next());
        if credit > self.credit {
            self.credit = credit;
            self.silence.on_credit();
        }
    }

    /// When `on_timeout` wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let probe = self.silence.probe_at(self.flight.in_flight() > 0);
        let due = match (probe, self.overtaken.due_at) {
            (Some(probe), Some(loss)) => Some(probe.min(loss)),
            (probe, loss) => probe.or(loss),
        };
        let late = self.queue.first_deadline();
        if late == NEVER {
            due
        } else {
            Some(due.map_or(late, |due| due.min(late)))
        }
    }

    /// Looks at the deadlines that have passed. `last_heard`: when the last frame of the peer came. `true`: it is to be asked for an
    /// acknowledgement.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        counters: &mut Counters,
    ) -> bool {
        self.advance(now);
        if now >= self.queue.first_deadline() {
            self.queue.expire(now);
        }
        if !self.queue.has_backlog() {
            self.silence.on_credit(); // what was blocked is dropped
        }
        let queue = &mut self.queue;
        self.overtaken
            .on_timeout(now, &mut self.flight, &self.rtt, |part| {
                queue.push_repair(part, false);
            });
        self.advance(now);
        if self.deadline().is_none_or(|at| now < at) {
            return false;
        }
        counters.probes += 1;
        let evaded = self.silence.is_evaded(last_heard);
        self.silence.on_probe(now, &self.rtt);
        // Where nothing is lost, what the peer has not answered it has not seen, unless it was heard since it was asked.
        let ask = lossless && self.flight.in_flight() > 0 && !evaded;
        if !ask {
            self.send_probe(now);
        }
        ask
    }

    /// The oldest unanswered fragment goes again, ahead of all and beyond credit, and asks for an answer. Where memory
    /// refuses frames it goes behind the others: another one may be what the peer waits for.
    fn send_probe(&mut self, now: Instant) {
        self.probe = true;
        let ahead = !self.queue.is_begun_first();
        let queue = &mut self.queue;
        // Latest messages are not sent again: they are given up until there is something that is.
        let found = Cell::new(false);
        self.flight.give_up(
            u64::MAX,
            |_, _| (!found.get()).then_some(true),
            |part| found.set(queue.push_repair(part, ahead)),
        );
        self.advance(now);
    }

    /// The peer is gone: forgets everything; returns how many messages were not acknowledged.
    pub(crate) fn fail(&mut self, pool: &mut Pool) -> usize {
        let failed = self.queue.clear(pool);
        *self = Self::with_queue(core::mem::replace(&mut self.queue, Queue::new(0)));
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use alloc::vec;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn sender(credit_frames: u64, pool: &mut Pool) -> Send {
        let mut send = Send::new();
        let agreed = Agreed {
            fragment_bytes: 100,
            message_limit_bytes: 1000,
            told_frames: 1000,
            credit_frames,
        };
        send.begin(&agreed, pool, |_, _| {});
        send
    }

    /// Which message's fragment leaves; `None`: nothing may.
    fn leave(send: &mut Send, now: Instant, pool: &mut Pool) -> Option<u64> {
        let mut counters = Counters::default();
        if !send.is_sendable(now) {
            return None;
        }
        let next = send.next_fragment(now, pool, &mut counters)?;
        Some(next.message - FIRST_NUMBER)
    }

    /// While memory refuses frames, probes take turns: the one that is refused again and again may not be the one that is waited for.
    #[test]
    fn refused_fragments_take_turns() {
        let (mut pool, mut counters) = (Pool::new(), Counters::default());
        let mut send = sender(2, &mut pool);
        let mut now = Instant::from_nanos(0);
        for _ in 0..2 {
            send.submit(Lane::ordered(0), vec![1], false);
            assert!(leave(&mut send, now, &mut pool).is_some());
        }
        now += MILLISECOND.times(10);
        send.on_refusal(now);
        let mut probed = vec![];
        for _ in 0..4 {
            assert_eq!(leave(&mut send, now, &mut pool), None, "no credit");
            now = send.deadline().unwrap();
            send.on_timeout(now, now, false, &mut counters);
            probed.extend(leave(&mut send, now, &mut pool));
            // Refused again, and so soon that it might be of what was sent before.
            send.on_refusal(now + Duration::from_nanos(1));
        }
        assert_eq!(probed, [0, 1, 0, 1]);
    }

    /// Where nothing is lost, silence is asked about; only what a peer that was heard has not acknowledged goes again.
    #[test]
    fn silence_of_a_lossless_link_is_asked_about() {
        let (mut pool, mut counters) = (Pool::new(), Counters::default());
        for lossless in [true, false] {
            let mut send = sender(10, &mut pool);
            let mut now = Instant::from_nanos(0);
            send.submit(Lane::ordered(0), vec![1], false);
            assert!(leave(&mut send, now, &mut pool).is_some());
            let last_heard = now;
            for _ in 0..5 {
                now = send.deadline().unwrap();
                assert_eq!(
                    send.on_timeout(now, last_heard, lossless, &mut counters),
                    lossless
                );
                assert_eq!(leave(&mut send, now, &mut pool).is_some(), !lossless);
            }
            let last_heard = now + MILLISECOND;
            now = send.deadline().unwrap();
            assert!(!send.on_timeout(now, last_heard, lossless, &mut counters));
            assert_eq!(leave(&mut send, now, &mut pool), Some(0), "was refused");
        }
    }
}
