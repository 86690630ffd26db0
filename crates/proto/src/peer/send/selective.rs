//! Sending half of `credit`: numbers are never used twice, and only lost fragments are sent again.
//!
//! Called by `send` through `Sending`. `flight` holds what is in flight; `loss` detects what of it is lost.

use core::cell::Cell;

use crate::congestion::{Departure, Ledger, Sending};
use crate::counters::Counters;
use crate::message::SendId;
use crate::numbers::{FIRST_NUMBER, expand};
use crate::peer::flight::{AckNews, Answer, Flight, State};
use crate::peer::loss::{Overtaken, Silence};
use crate::peer::queue::Queue;
use crate::peer::rtt::Rtt;
use crate::peer::send::Agreed;
use crate::pool::Pool;
use crate::time::{Duration, Instant};
use crate::tuning::TUNING;
use tsumuji_wire::{Ack, flags};

/// Larger credit is refused: no receive side holds so many frames, and fewer numbers may be unanswered.
const CREDIT_FRAMES_MAX: i32 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Selective {
    /// Numbers below this may be sent.
    credit: u64,
    flight: Flight,
    overtaken: Overtaken,
    silence: Silence,
    /// The next frame may leave without credit and asks for an answer.
    probe: bool,
    /// Silence was probed while nothing waited to leave, and nothing was answered since.
    is_tail: bool,
}

impl Selective {
    pub(crate) fn new() -> Self {
        Self {
            credit: 0,
            flight: Flight::new(),
            overtaken: Overtaken::new(),
            silence: Silence::new(),
            probe: false,
            is_tail: false,
        }
    }

    #[inline]
    pub(crate) fn on_credit(&mut self, credit_low: u32) {
        let credit = expand(credit_low, self.flight.next());
        if credit > self.credit {
            self.credit = credit;
            self.silence.on_credit();
        }
    }

    /// Memory of the peer refused frames: those that it must have seen by now wait for credit.
    fn on_refusal(&mut self, now: Instant, rtt: &Rtt, queue: &mut Queue) {
        queue.note_refusal(now);
        queue.set_begun_first(true);
        let half = rtt.smoothed.divided(2);
        self.flight.declare_lost(
            u64::MAX,
            |_, at| (at + half <= now).then_some(true),
            |part| {
                queue.push_repair(part, false);
            },
        );
        self.advance(now, rtt);
    }

    /// Advances the floor. While nothing is answered, the numbers of the tail stay awaited: the receiver's last answer may be on its way.
    #[inline]
    fn advance(&mut self, now: Instant, rtt: &Rtt) {
        if self.is_tail && self.flight.unanswered() <= TUNING.loss.tail_frames {
            return;
        }
        self.flight
            .advance(now, || rtt.reordering_window().times(2));
    }

    /// Sends the oldest unanswered fragment again, before all others and beyond credit, and requests an answer. While memory refuses frames it
    /// goes behind the other repairs, because the peer may wait for one of them.
    fn send_probe(&mut self, queue: &mut Queue) {
        self.probe = true;
        let ahead = !queue.is_begun_first();
        // Datagrams are not sent again: they are lost, until there is a fragment that is.
        let found = Cell::new(false);
        self.flight.declare_lost(
            u64::MAX,
            |_, _| (!found.get()).then_some(true),
            |part| found.set(queue.push_repair(part, ahead)),
        );
    }
}

impl Sending for Selective {
    fn begin(&mut self, agreed: &Agreed) {
        self.flight.set_window(agreed.told_frames);
        self.credit = FIRST_NUMBER + agreed.credit_frames;
    }

    #[inline(always)] // as `depart`
    fn may_leave(&mut self, now: Instant, queue: &mut Queue) -> bool {
        if !queue.has_backlog() {
            return false;
        }
        if self.flight.is_full() || (self.flight.next() >= self.credit && !self.probe) {
            self.silence.on_blocked(now);
            return false;
        }
        queue.has_choice()
    }

    #[inline(always)] // as Queue::acknowledge
    fn depart(
        &mut self,
        now: Instant,
        queue: &mut Queue,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<Departure> {
        let part = queue.pop(now, pool, counters)?;
        let number = self.flight.depart(now, part);
        self.silence.on_sent(now);
        Some(Departure {
            part,
            number,
            floor: self.flight.base(),
            probe: core::mem::take(&mut self.probe),
            more: queue.has_backlog(),
        })
    }

    #[inline]
    fn is_unsent(&self, news: &AckNews<'_>) -> bool {
        self.flight.is_unsent(news)
    }

    #[inline]
    fn on_ack(
        &mut self,
        now: Instant,
        news: &AckNews<'_>,
        ledger: Ledger<'_>,
        mut done: impl FnMut(SendId),
    ) {
        let Ledger {
            rtt,
            queue,
            pool,
            counters,
        } = ledger;
        let Self {
            flight, overtaken, ..
        } = self;
        let mut answer = flight.acknowledge(news.ack, |sent| {
            if sent.state == State::Lost {
                counters.spurious_losses += 1;
                overtaken.on_spurious_loss();
            }
            queue.acknowledge(sent.part, pool, &mut done);
        });
        if !news.bitmap.is_empty() {
            answer = flight.acknowledge_marked(news.ack, news.bitmap, answer, |sent| {
                if sent.state == State::Lost {
                    counters.spurious_losses += 1;
                    overtaken.on_spurious_loss();
                }
                queue.acknowledge(sent.part, pool, &mut done);
            });
        }
        match answer {
            Answer::Old => {}
            Answer::New { number, at } => {
                rtt.sample(now.since(at), news.delay);
                self.silence.on_answer(now, rtt);
                self.is_tail = false;
                if flight.is_empty() {
                    overtaken.expires_at = None;
                    return;
                }
                overtaken.detect(now, (number, at), flight, rtt, |part| {
                    queue.push_repair(part, false);
                });
            }
        }
        self.advance(now, rtt);
    }

    #[inline]
    fn deadline(&self) -> Option<Instant> {
        let probe = self.silence.probe_at(self.flight.in_flight() > 0);
        match (probe, self.overtaken.expires_at) {
            (Some(probe), Some(loss)) => Some(probe.min(loss)),
            (probe, loss) => probe.or(loss),
        }
    }

    fn on_terms(&mut self, now: Instant, ack: &Ack<'_>, rtt: &Rtt, queue: &mut Queue) {
        self.on_credit(ack.credit);
        if ack.flags & flags::REFUSED != 0 {
            self.on_refusal(now, rtt, queue);
        } else if queue.is_begun_first()
            && (ack.window_kib as usize).saturating_mul(1024) >= queue.fragment_bytes
        {
            queue.set_begun_first(false); // the peer's memory has room again
        }
    }

    fn is_absurd(&self, credit_low: u32) -> bool {
        let ahead = credit_low.wrapping_sub(self.flight.next() as u32);
        ahead.cast_signed() > CREDIT_FRAMES_MAX
    }

    fn may_repair(&self, now: Instant, rtt: &Rtt) -> bool {
        (self.silence).may_repair(now, rtt, self.flight.in_flight() > 0)
    }

    fn on_silence(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        ledger: Ledger<'_>,
    ) -> bool {
        let Ledger {
            rtt,
            queue,
            counters,
            ..
        } = ledger;
        counters.probes += 1;
        let evaded = self.silence.is_evaded(last_heard);
        self.silence.on_probe(now, rtt);
        queue.note_probe(now, self.silence.probes() == 1);
        // On a lossless link the peer has not run since, unless it was heard after it was asked.
        let ask = lossless && self.flight.in_flight() > 0 && !evaded;
        self.is_tail = !queue.has_backlog();
        if !ask {
            self.send_probe(queue);
            // A lost datagram may leave nothing to send; a late answer to its frame still gives a round-trip sample.
            self.is_tail |= !queue.has_backlog();
            self.advance(now, rtt);
        }
        ask
    }

    fn on_timeout(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        mut ledger: Ledger<'_>,
    ) -> bool {
        let Ledger { rtt, queue, .. } = &mut ledger;
        if !queue.has_backlog() {
            self.silence.on_credit(); // what was blocked was dropped
        }
        self.advance(now, rtt);
        self.overtaken
            .on_timeout(now, &mut self.flight, rtt, |part| {
                queue.push_repair(part, false);
            });
        self.advance(now, rtt);
        if self.deadline().is_none_or(|at| now < at) {
            return false;
        }
        self.on_silence(now, last_heard, lossless, ledger)
    }

    fn stalled(&self, now: Instant, after: Duration, queue: &Queue) -> Option<SendId> {
        queue.stalled(now, after, self.silence.probes() > 0)
    }

    fn note_silence(&mut self, now: Instant, queue: &mut Queue) {
        queue.note_silence(now);
    }

    fn in_flight(&self) -> usize {
        self.flight.in_flight()
    }

    fn credit_left(&self) -> u64 {
        self.credit.saturating_sub(self.flight.next())
    }
}
