//! Sending half of one peer: the queue, and the congestion control under which frames leave (R-15 … ).
//!
//! Called by `engine` for each frame to write and each acknowledgement that came. `queue`, which the engine fills directly, holds what waits;
//! `Selective` or `GoBack` decides what may leave, and what acknowledgements and silence mean for frames that left. Owns no clock:
//! `engine::handle_timeout` handles its deadlines.

mod go_back;
mod selective;

use alloc::boxed::Box;
use alloc::vec::Vec;

pub(crate) use super::flight::AckNews;
pub(crate) use super::flight::Part;
use super::pace::{Pace, Pacer};
use super::queue::datagrams::NEVER;
use super::queue::{Failed, Place, Queue};
use super::rtt::Rtt;
use crate::congestion::{Congestion, Departure, Ledger, Sending};
use crate::counters::Counters;
use crate::message::{Borrowed, SendId};
use crate::pool::Pool;
use crate::time::{Duration, Instant};
pub(crate) use go_back::GoBack;
use selective::Selective;
use tsumuji_wire::{Ack, Channel, Permit};

/// What hello and welcome agreed.
pub(crate) struct Agreed {
    pub(crate) fragment_bytes: usize,
    /// Largest message that the peer takes.
    pub(crate) message_limit_bytes: usize,
    /// How many numbers the bitmap of an acknowledgement covers.
    pub(crate) told_frames: usize,
    /// How many frames may be sent at once.
    pub(crate) credit_frames: u64,
}

/// The congestion control's sending half. Fixed when it is made, so that it costs a branch only.
#[derive(Debug)]
enum Control {
    Credit(Selective),
    Suci(Box<GoBack>),
}

impl Control {
    fn new(congestion: Congestion) -> Self {
        match congestion {
            Congestion::Credit => Self::Credit(Selective::new()),
            Congestion::Suci { unasked_frames } => {
                Self::Suci(Box::new(GoBack::new(unasked_frames)))
            }
        }
    }

    fn congestion(&self) -> Congestion {
        match self {
            Self::Credit(_) => Congestion::Credit,
            Self::Suci(control) => Congestion::Suci {
                unasked_frames: control.unasked_frames,
            },
        }
    }
}

/// Calls the same function of either congestion control.
macro_rules! control {
    ($control:expr, $function:ident $arguments:tt) => {
        match $control {
            Control::Credit(control) => control.$function $arguments,
            Control::Suci(control) => control.$function $arguments,
        }
    };
}

#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) rtt: Rtt,
    /// What waits, and what is not acknowledged.
    pub(crate) queue: Queue,
    control: Control,
    pacer: Option<Box<Pacer>>,
    /// There is a pacer or a message with a deadline; without both, neither is checked for each frame.
    clocked: bool,
}

impl Send {
    pub(crate) fn new(congestion: Congestion) -> Self {
        Self::with_queue(Queue::new(0), congestion)
    }

    fn with_queue(queue: Queue, congestion: Congestion) -> Self {
        Self {
            rtt: Rtt::new(),
            queue,
            control: Control::new(congestion),
            pacer: None,
            clocked: false,
        }
    }

    /// Sets the pace of frames, also in later sessions.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pacer = (pace != Pace::Free).then(|| Box::new(Pacer::new(pace)));
        self.note_clocked();
        self.note_bundling();
    }

    /// Bundles are made only under `credit`, and not while frames are paced: R-10.
    fn note_bundling(&mut self) {
        let on = matches!(self.control, Control::Credit(_)) && self.pacer.is_none();
        self.queue.set_bundling(on);
    }

    /// The pace that the program set, and how many frames it has delayed.
    pub(crate) fn pace(&self) -> (Pace, u64) {
        let pacer = self.pacer.as_deref();
        pacer.map_or_else(Default::default, |pacer| (pacer.pace, pacer.held_frames))
    }

    fn note_clocked(&mut self) {
        self.clocked = self.pacer.is_some() || self.queue.first_deadline() != NEVER;
    }

    /// The pacer holds the next frame back. Asks of `suci` are not paced. Late datagrams are dropped first.
    #[cold]
    fn is_held(&mut self, now: Instant) -> bool {
        if now >= self.queue.first_deadline() {
            self.drop_late(now);
            if !control!(&mut self.control, may_leave(now, &mut self.queue)) {
                return true;
            }
        }
        let asks = self.is_ask_pending();
        let in_flight = self.in_flight();
        match &mut self.pacer {
            Some(pacer) if !asks && self.queue.has_backlog() => pacer.holds(now, in_flight),
            _ => false,
        }
    }

    /// Begins a session: what was queued before stays, except messages larger than the peer accepts, which are told to `too_large`.
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
        self.note_bundling();
        control!(&mut self.control, begin(agreed));
    }

    /// Queues a datagram until `deadline`, or until a newer one of its channel and key replaces it.
    pub(crate) fn submit_datagram(
        &mut self,
        of: (Channel, u32),
        body: Vec<u8>,
        deadline: Instant,
        pool: &mut Pool,
    ) {
        self.clocked |= deadline != NEVER;
        self.queue.push_datagram(of, body, deadline, pool);
    }

    /// Nothing is unacknowledged, and there is neither a pace nor a deadline.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.queued_messages == 0 && !self.clocked
    }

    pub(crate) fn in_flight(&self) -> usize {
        control!(&self.control, in_flight())
    }

    pub(crate) fn credit_left(&self) -> u64 {
        control!(&self.control, credit_left())
    }

    /// Some frame may leave now.
    #[inline(always)] // asked several times for each frame; mostly nothing waits
    pub(crate) fn is_sendable(&mut self, now: Instant) -> bool {
        control!(&mut self.control, may_leave(now, &mut self.queue))
            && !(self.clocked && self.is_held(now))
    }

    /// Payload of a part that leaves; valid until the next acknowledgement is taken.
    #[inline]
    pub(crate) fn payload<'a>(&'a self, part: Part, borrowed: &Borrowed<'a>) -> &'a [u8] {
        self.queue.place(part, borrowed).payload
    }

    /// Drops datagrams whose deadline has passed. Under `suci` one that has begun to leave keeps its numbers, and goes on.
    #[cold]
    fn drop_late(&mut self, now: Instant) {
        let begun_too = matches!(self.control, Control::Credit(_));
        self.queue.expire(now, begun_too);
        self.note_clocked();
    }

    /// Tells the pacer that a fragment leaves; whether it wants an acknowledgement at once.
    #[cold]
    fn is_asking(&mut self, now: Instant, part: Part, borrowed: &Borrowed<'_>) -> bool {
        let in_flight = self.in_flight();
        let payload_bytes = self.queue.place(part, borrowed).payload.len();
        match &mut self.pacer {
            None => false,
            Some(pacer) => pacer.on_sent(now, payload_bytes, in_flight),
        }
    }

    /// Takes the next fragment; `borrowed`: the borrowed message, if any. Call only after `is_sendable` returned true.
    #[inline(always)] // on the path of every frame
    pub(crate) fn next_fragment<'a>(
        &'a mut self,
        now: Instant,
        borrowed: &Borrowed<'a>,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<(Departure, Place<'a>)> {
        let departure = control!(
            &mut self.control,
            depart(now, &mut self.queue, pool, counters)
        )?;
        let asks = self.clocked && self.is_asking(now, departure.part, borrowed);
        let place = self.queue.place(departure.part, borrowed);
        let probe = departure.probe || asks;
        Some((Departure { probe, ..departure }, place))
    }

    /// Whether an acknowledgement names numbers that were never sent.
    #[inline]
    pub(crate) fn is_unsent(&self, news: &AckNews<'_>) -> bool {
        control!(&self.control, is_unsent(news))
    }

    /// Takes an acknowledgement for which `is_unsent` is false. Tells `done` each tracked message that is now acknowledged whole.
    #[inline]
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        news: &AckNews<'_>,
        pool: &mut Pool,
        counters: &mut Counters,
        done: impl FnMut(SendId),
    ) {
        let ledger = Ledger {
            rtt: &mut self.rtt,
            queue: &mut self.queue,
            pool,
            counters,
        };
        control!(&mut self.control, on_ack(now, news, ledger, done));
        if self.clocked
            && let Some(pacer) = &mut self.pacer
        {
            pacer.on_answer(now, &self.rtt, self.queue.retransmitted);
        }
    }

    /// Takes what an ack frame states besides arrivals: credit or window, and whether memory refused frames.
    pub(crate) fn on_terms(&mut self, now: Instant, ack: &Ack<'_>) {
        let (rtt, queue) = (&self.rtt, &mut self.queue);
        control!(&mut self.control, on_terms(now, ack, rtt, queue));
    }

    /// The message, if any, that was sent again and again for `after` although nothing new of it was acknowledged, nor anything refused.
    pub(crate) fn stalled(&self, now: Instant, after: Duration) -> Option<SendId> {
        control!(&self.control, stalled(now, after, &self.queue))
    }

    /// Notes that the peer was not heard for long: what was sent meanwhile could not be answered.
    pub(crate) fn note_silence(&mut self, now: Instant) {
        control!(&mut self.control, note_silence(now, &mut self.queue));
    }

    /// Whether an ack states more credit than any honest peer grants.
    pub(crate) fn is_absurd(&self, credit_low: u32) -> bool {
        control!(&self.control, is_absurd(credit_low))
    }

    /// Whether data frames carry acknowledgements; under `suci` they do not.
    #[inline]
    pub(crate) fn carries_acks(&self) -> bool {
        matches!(self.control, Control::Credit(_))
    }

    /// An ask is to be sent, in a frame of its own.
    #[inline]
    pub(crate) fn is_ask_pending(&self) -> bool {
        control!(&self.control, is_ask_pending())
    }

    #[inline]
    pub(crate) fn on_credit(&mut self, credit_low: u32) {
        if let Control::Credit(control) = &mut self.control {
            control.on_credit(credit_low);
        }
    }

    /// The state that only `suci` has.
    pub(crate) fn suci(&mut self) -> Option<&mut GoBack> {
        match &mut self.control {
            Control::Credit(_) => None,
            Control::Suci(control) => Some(control),
        }
    }

    /// Under `suci`: takes the peer's permission to send frames again.
    pub(crate) fn on_grant(&mut self, now: Instant, grant: &Permit) {
        if let Control::Suci(control) = &mut self.control {
            control.on_grant(now, grant, &self.rtt);
        }
    }

    /// When to call `on_timeout` next, as far as a frame that comes or leaves can bring it nearer.
    #[inline]
    pub(crate) fn frame_deadline(&self) -> Option<Instant> {
        control!(&self.control, deadline())
    }

    /// There may be deadlines that only `deadline` knows.
    #[inline]
    pub(crate) fn is_clocked(&self) -> bool {
        self.clocked
    }

    /// When to call `on_timeout` next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let frame = self.frame_deadline();
        let late = self.queue.first_deadline();
        let held = self.pacer.as_deref().and_then(Pacer::deadline);
        let soonest = frame.unwrap_or(NEVER).min(late).min(held.unwrap_or(NEVER));
        (soonest != NEVER).then_some(soonest)
    }

    /// Handles deadlines that have passed. `last_heard`: when the last frame of the peer came. `true`: an acknowledgement is to be requested.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> bool {
        if self.clocked {
            if now >= self.queue.first_deadline() {
                self.drop_late(now);
            }
            if let Some(pacer) = &mut self.pacer {
                pacer.on_timeout(now);
            }
        }
        let ledger = Ledger {
            rtt: &mut self.rtt,
            queue: &mut self.queue,
            pool,
            counters,
        };
        control!(
            &mut self.control,
            on_timeout(now, last_heard, lossless, ledger)
        )
    }

    /// Brings forward what silence would do, unless that is too early. `Some(true)`: an acknowledgement is to be requested.
    #[cold]
    pub(crate) fn repair_now(
        &mut self,
        now: Instant,
        last_heard: Instant,
        lossless: bool,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<bool> {
        if !control!(&self.control, may_repair(now, &self.rtt)) {
            return None;
        }
        let ledger = Ledger {
            rtt: &mut self.rtt,
            queue: &mut self.queue,
            pool,
            counters,
        };
        Some(control!(
            &mut self.control,
            on_silence(now, last_heard, lossless, ledger)
        ))
    }

    /// Fails all messages, because the session has ended; returns how many there were.
    pub(crate) fn fail(&mut self, pool: &mut Pool) -> Failed {
        let failed = self.queue.clear(pool);
        let queue = core::mem::replace(&mut self.queue, Queue::new(0));
        let pace = self.pacer.as_deref().map(|pacer| pacer.pace);
        *self = Self::with_queue(queue, self.control.congestion());
        self.set_pace(pace.unwrap_or_default());
        failed
    }
}

#[cfg(test)]
mod tests;
