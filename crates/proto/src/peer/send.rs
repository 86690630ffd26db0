//! Send half of one peer: what waits in the queue, and under which congestion control it leaves (R-15 … ).
//!
//! Called by `engine` for submit, for each frame to write and for each acknowledgement that came. `queue` knows what waits;
//! `Selective` or `GoBack` say what of it may leave, and what acknowledgements and silence mean for what did. Owns no clock:
//! the deadlines it states are looked at by `engine::handle_timeout`.

mod go_back;
mod selective;

use alloc::boxed::Box;
use alloc::vec::Vec;

use bytes::Bytes;

pub(crate) use super::flight::AckNews;
pub(crate) use super::flight::Part;
pub(crate) use super::loss::ACK_DELAY;
use super::pace::{Pace, Pacer};
pub(crate) use super::queue::BorrowedState;
use super::queue::datagrams::{Dropped, NEVER};
use super::queue::{Failed, Queue};
use super::rtt::Rtt;
use crate::congestion::{Congestion, Ledger, Sending};
use crate::counters::Counters;
use crate::message::{Borrowed, SendId};
use crate::pool::Pool;
use crate::time::{Duration, Instant};
pub(crate) use go_back::GoBack;
use selective::Selective;
use tsumuji_wire::{Ack, Channel, NodeId, Permit};

/// The fragment to write next.
pub(crate) struct NextFragment<'a> {
    pub(crate) part: Part,
    pub(crate) number: u64,
    /// Lowest number still unanswered.
    pub(crate) floor: u64,
    pub(crate) channel: Channel,
    pub(crate) message: u64,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) payload: &'a [u8],
    /// The payload is a bundle.
    pub(crate) is_bundle: bool,
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

/// The congestion control's sending half. Chosen once, so that a branch is all it costs.
#[derive(Debug)]
enum Control {
    Credit(Selective),
    Suci(Box<GoBack>),
}

impl Control {
    fn new(congestion: Congestion) -> Self {
        match congestion {
            Congestion::Credit => Self::Credit(Selective::new()),
            Congestion::Suci => Self::Suci(Box::new(GoBack::new())),
        }
    }

    const fn congestion(&self) -> Congestion {
        match self {
            Self::Credit(_) => Congestion::Credit,
            Self::Suci(_) => Congestion::Suci,
        }
    }
}

/// Calls the same function of whichever congestion control it is.
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
    queue: Queue,
    control: Control,
    pacer: Option<Box<Pacer>>,
    /// There is a pacer, or a message with a deadline: else nothing of both is looked at.
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

    /// From now on frames leave at this pace; also in later sessions.
    pub(crate) fn set_pace(&mut self, pace: Pace) {
        self.pacer = (pace != Pace::Free).then(|| Box::new(Pacer::new(pace)));
        self.note_clocked();
        self.note_bundling();
    }

    /// Under `suci` each message has a number of its own (S1); what is paced is to leave evenly.
    fn note_bundling(&mut self) {
        let on = matches!(self.control, Control::Credit(_)) && self.pacer.is_none();
        self.queue.set_bundling(on);
    }

    /// What the program asked for, and how many frames left later for it.
    pub(crate) fn pace(&self) -> (Pace, u64) {
        let pacer = self.pacer.as_deref();
        pacer.map_or_else(Default::default, |pacer| (pacer.pace, pacer.held_frames))
    }

    fn note_clocked(&mut self) {
        self.clocked = self.pacer.is_some() || self.queue.first_deadline() != NEVER;
    }

    /// The pacer says no. What `suci` asks is no data, and is not paced. What is late is dropped first.
    #[cold]
    fn is_held(&mut self, now: Instant) -> bool {
        if now >= self.queue.first_deadline() {
            self.drop_late(now);
            if !control!(&mut self.control, may_leave(now, &mut self.queue)) {
                return true;
            }
        }
        let asks = self.is_ask_due();
        let in_flight = self.in_flight();
        match &mut self.pacer {
            Some(pacer) if !asks && self.queue.has_backlog() => pacer.holds(now, in_flight),
            _ => false,
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
        self.note_bundling();
        control!(&mut self.control, begin(agreed));
    }

    /// Queues a copy of two parts that follow each other. `None`: there is no memory for it.
    #[inline]
    pub(crate) fn submit_copied(
        &mut self,
        channel: Channel,
        parts: (&[u8], &[u8]),
        notify: bool,
        pool: &mut Pool,
    ) -> Option<SendId> {
        self.queue.push_copied(channel, parts, notify, pool)
    }

    /// Whether the queue, which holds up to `limit_bytes`, holds so many more.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize, limit_bytes: usize) -> bool {
        self.queue.has_room(bytes, limit_bytes)
    }

    /// Whether the channel is in use, or may come into use.
    #[inline]
    pub(crate) fn admits(&self, channel: Channel) -> bool {
        self.queue.admits(channel)
    }

    /// Queues a datagram: until `deadline`, and as long as no newer one of its channel and key comes.
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

    /// What the datagram takes whose place a new one would take.
    pub(crate) fn replaced_bytes(&self, of: (Channel, u32)) -> usize {
        self.queue.replaced_bytes(of)
    }

    /// Datagrams that did not arrive.
    pub(crate) fn dropped(&self) -> Dropped {
        self.queue.dropped
    }

    pub(crate) fn dropped_mut(&mut self) -> &mut Dropped {
        &mut self.queue.dropped
    }

    /// A message of `length_bytes` that stays with the program until `keep` or `cancel`; `None` while another one does.
    pub(crate) fn submit_borrowed(
        &mut self,
        to: NodeId,
        channel: Channel,
        length_bytes: usize,
        notify: bool,
    ) -> Option<SendId> {
        self.queue.push_borrowed(to, channel, length_bytes, notify)
    }

    /// Queues a message that the program shares.
    pub(crate) fn submit_shared(
        &mut self,
        channel: Channel,
        message: Bytes,
        notify: bool,
    ) -> SendId {
        self.queue.push_shared(channel, message, notify)
    }

    pub(crate) fn borrowed_state(&self, borrowed: &Borrowed<'_>) -> BorrowedState {
        self.queue.borrowed_state(borrowed)
    }

    /// Copies what is not acknowledged of the borrowed message; `false`: there is no memory.
    pub(crate) fn retain(&mut self, borrowed: &Borrowed<'_>, pool: &mut Pool) -> bool {
        self.queue.retain(borrowed, pool)
    }

    /// Forgets the borrowed message, if nothing of it has left.
    pub(crate) fn cancel(&mut self, borrowed: &Borrowed<'_>) -> bool {
        self.queue.cancel(borrowed)
    }

    pub(crate) fn is_acknowledged(&self, id: SendId) -> bool {
        self.queue.is_acknowledged(id)
    }

    /// Payload bytes of a fragment at most.
    #[inline]
    pub(crate) fn fragment_bytes(&self) -> usize {
        self.queue.fragment_bytes
    }

    /// Messages not acknowledged whole.
    #[inline]
    pub(crate) fn promised_messages(&self) -> usize {
        self.queue.promised_messages()
    }

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

    /// Nothing is unacknowledged, and no pace or deadline is to be kept.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.queued_messages == 0 && !self.clocked
    }

    /// A message of that channel leaves without being queued, and is not told of again.
    #[inline]
    pub(crate) fn pass_by(&mut self, channel: Channel) {
        self.queue.pass_by(channel);
    }

    /// Something waits to be sent, perhaps for credit.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.queue.has_backlog()
    }

    pub(crate) fn in_flight(&self) -> usize {
        control!(&self.control, in_flight())
    }

    pub(crate) fn credit_left(&self) -> u64 {
        control!(&self.control, credit_left())
    }

    /// Something waits that may leave now.
    #[inline(always)] // asked several times for each frame; mostly nothing waits
    pub(crate) fn is_sendable(&mut self, now: Instant) -> bool {
        control!(&mut self.control, may_leave(now, &mut self.queue))
            && !(self.clocked && self.is_held(now))
    }

    /// Payload bytes of what leaves next, at most; 0 if `is_sendable` said no.
    pub(crate) fn next_bytes(&self) -> usize {
        self.queue.next_bytes()
    }

    /// The payload of a part that leaves, as long as no acknowledgement was taken since.
    #[inline]
    pub(crate) fn payload<'a>(&'a self, part: Part, borrowed: &Borrowed<'a>) -> &'a [u8] {
        self.queue.place(part, borrowed).payload
    }

    /// Drops datagrams whose deadline has passed. Under `suci` one that has begun to leave keeps its numbers, and
    /// goes on.
    #[cold]
    fn drop_late(&mut self, now: Instant) {
        let begun_too = matches!(self.control, Control::Credit(_));
        self.queue.expire(now, begun_too);
        self.note_clocked();
    }

    /// A fragment leaves: the pacer takes note, and may want an answer at once.
    #[cold]
    fn is_asking(&mut self, now: Instant, part: Part, borrowed: &Borrowed<'_>) -> bool {
        let in_flight = self.in_flight();
        let payload_bytes = self.queue.place(part, borrowed).payload.len();
        match &mut self.pacer {
            None => false,
            Some(pacer) => pacer.on_sent(now, payload_bytes, in_flight),
        }
    }

    /// Takes the next fragment; `borrowed`: the message that is borrowed, if one is. Call only after `is_sendable` said yes.
    #[inline(always)] // on every frame's way
    pub(crate) fn next_fragment<'a>(
        &'a mut self,
        now: Instant,
        borrowed: &Borrowed<'a>,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<NextFragment<'a>> {
        let departure = control!(
            &mut self.control,
            depart(now, &mut self.queue, pool, counters)
        )?;
        let asks = self.clocked && self.is_asking(now, departure.part, borrowed);
        let place = self.queue.place(departure.part, borrowed);
        Some(NextFragment {
            part: departure.part,
            number: departure.number,
            floor: departure.floor,
            channel: place.channel,
            message: place.message,
            offset: place.offset,
            length: place.length,
            payload: place.payload,
            is_bundle: place.is_bundle,
            more: departure.more,
            probe: departure.probe || asks,
        })
    }

    /// Does an acknowledgement speak of numbers never sent?
    #[inline]
    pub(crate) fn is_unsent(&self, news: &AckNews<'_>) -> bool {
        control!(&self.control, is_unsent(news))
    }

    /// Takes an acknowledgement of which `is_unsent` said no. `done` is told each message that is now acknowledged whole and asked for it.
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

    /// What an acknowledgement says beside the numbers that came: how far the peer lets us send, and what it refused.
    pub(crate) fn on_terms(&mut self, now: Instant, ack: &Ack<'_>) {
        let (rtt, queue) = (&self.rtt, &mut self.queue);
        control!(&mut self.control, on_terms(now, ack, rtt, queue));
    }

    /// A message was sent again and again, for so long, and nothing new of it was acknowledged, though nothing was
    /// refused either. Its name.
    pub(crate) fn stalled(&self, now: Instant, after: Duration) -> Option<SendId> {
        control!(&self.control, stalled(now, after, &self.queue))
    }

    /// The peer was not heard for long: what was sent meanwhile could have no answer.
    pub(crate) fn note_silence(&mut self, now: Instant) {
        control!(&mut self.control, note_silence(now, &mut self.queue));
    }

    /// Does nobody have so much credit to give?
    pub(crate) fn is_absurd(&self, credit_low: u32) -> bool {
        control!(&self.control, is_absurd(credit_low))
    }

    /// A data frame tells of what came the other way; under `suci` none does.
    #[inline]
    pub(crate) fn carries_acks(&self) -> bool {
        matches!(self.control, Control::Credit(_))
    }

    /// Permission is to be asked for, in a frame of its own.
    #[inline]
    pub(crate) fn is_ask_due(&self) -> bool {
        control!(&self.control, is_ask_due())
    }

    #[inline]
    pub(crate) fn on_credit(&mut self, credit_low: u32) {
        if let Control::Credit(control) = &mut self.control {
            control.on_credit(credit_low);
        }
    }

    /// What only `suci` knows of.
    pub(crate) fn suci(&mut self) -> Option<&mut GoBack> {
        match &mut self.control {
            Control::Credit(_) => None,
            Control::Suci(control) => Some(control),
        }
    }

    /// The peer permits frames to be sent again, if `suci` says that we asked.
    pub(crate) fn on_grant(&mut self, now: Instant, grant: &Permit) {
        if let Control::Suci(control) = &mut self.control {
            control.on_grant(now, grant, &self.rtt);
        }
    }

    /// When `on_timeout` wants to be called for the sake of what a frame, come or gone, can bring nearer.
    #[inline]
    pub(crate) fn frame_deadline(&self) -> Option<Instant> {
        control!(&self.control, deadline())
    }

    /// There may be a deadline that only `deadline` knows.
    #[inline]
    pub(crate) fn is_clocked(&self) -> bool {
        self.clocked
    }

    /// When `on_timeout` wants to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = self.frame_deadline();
        let late = self.queue.first_deadline();
        let held = self.pacer.as_deref().and_then(Pacer::deadline);
        let soonest = due.unwrap_or(NEVER).min(late).min(held.unwrap_or(NEVER));
        (soonest != NEVER).then_some(soonest)
    }

    /// Looks at the deadlines that have passed. `last_heard`: when the last frame of the peer came. `true`: it is to be asked for an
    /// acknowledgement.
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

    /// The peer is gone: forgets everything; returns what was not acknowledged.
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
