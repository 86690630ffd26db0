//! Receiving half of one peer: which frames have arrived, and what to acknowledge.
//!
//! Called by `engine::receive`; passes fragments to the channels. Owns no clock.
//!
//! Invariant: a packet number is marked as arrived only if its fragment was taken or had come before, so that a refused fragment is sent again.

use alloc::vec::Vec;

use super::channel::{Accepted, CHANNEL_WINDOW, ChannelReceive, Fragment, Remaining};
use super::datagrams::DatagramReceive;
use super::places::Places;
use super::reassembly::{Assembled, Reassembly};
use crate::counters::Drop;
use crate::memory::{Memory, bundle_weight, charge};
use crate::numbers::{Arrival, Arrivals, FIRST_NUMBER, NUMBER_WINDOW, expand};
use crate::pool::Pool;
use crate::posted::{OutOfMemory, Posted};
use crate::time::{Duration, Instant};
use crate::tuning::TUNING;
use tsumuji_wire::{Channel, Data, DeliveryClass, STAMP_BYTES, flags};

#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) arrivals: Arrivals,
    channels: Vec<ChannelReceive>,
    places: Places,
    pub(crate) datagrams: DatagramReceive,
    /// Frames and payload bytes since the last acknowledgement left.
    unacknowledged: u32,
    unacknowledged_bytes: usize,
    pub(crate) ack_now: bool,
    /// When the oldest frame that awaits its acknowledgement came.
    waiting_since: Option<Instant>,
    /// Parts of incomplete messages that have not arrived, in all channels.
    pub(crate) remaining: Remaining,
    /// Memory refused a frame since the last acknowledgement.
    pub(crate) refused: bool,
    /// Under `suci`: a grant is to be sent, because the peer asked or may be granted more.
    pub(crate) grant_pending: bool,
    /// An acknowledgement is sent after this many frames: fewer if the peer's window is small.
    patience_frames: u32,
    /// Charge of the peer's messages that arrive, wait for earlier ones, or are held by the program. Outlives the session.
    used_bytes: usize,
    /// Payload bytes of a frame at most; known with the session.
    agreed_bytes: usize,
    /// Expected charge of the next frame: that size, or as much as the latest frame if it was a bundle.
    pub(crate) frame_bytes: usize,
}

/// What a data frame completes.
pub(crate) enum Taken {
    /// Deliver its payload.
    Frame,
    /// Deliver the messages of the bundle in its payload.
    Bundle,
    /// Deliver this message.
    Whole(Assembled),
    Nothing,
    /// Not used; its sender sends it again, unless it is a duplicate.
    Refused(Drop),
}

impl Taken {
    #[inline]
    pub(crate) fn refusal(&self) -> Option<Drop> {
        match self {
            Self::Refused(refusal) => Some(*refusal),
            _ => None,
        }
    }

    #[inline]
    fn of(accepted: Accepted, data: &Data<'_>) -> Self {
        match accepted {
            Accepted::Frame if data.is_bundle() => Self::Bundle,
            Accepted::Frame => Self::Frame,
            Accepted::Whole(body) => Self::Whole(body),
            Accepted::Nothing | Accepted::Duplicate => Self::Nothing,
            Accepted::Beyond => Self::Refused(Drop::Window),
            Accepted::NoMemory => Self::Refused(Drop::Memory),
        }
    }
}

impl Receive {
    pub(crate) fn new() -> Self {
        Self {
            arrivals: Arrivals::new(),
            channels: Vec::new(),
            places: Places::new(),
            datagrams: DatagramReceive::default(),
            unacknowledged: 0,
            unacknowledged_bytes: 0,
            ack_now: false,
            waiting_since: None,
            remaining: Remaining::default(),
            refused: false,
            grant_pending: false,
            patience_frames: 1,
            used_bytes: 0,
            agreed_bytes: 1,
            frame_bytes: 1,
        }
    }

    /// Begins a session, in which frames have this much payload at most.
    pub(crate) fn begin(&mut self, fragment_bytes: usize) {
        (self.agreed_bytes, self.frame_bytes) = (fragment_bytes, fragment_bytes);
    }

    /// Notes that the peer may send `frames` ahead.
    pub(crate) fn set_window(&mut self, frames: u64) {
        self.patience_frames = ((frames / 4) as u32).clamp(1, TUNING.acks.frames_max);
    }

    /// Charge of the peer's messages here, in bytes.
    #[inline]
    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Charges a message that was delivered without `take`.
    #[inline]
    pub(crate) fn hold(&mut self, charged_bytes: usize) {
        self.used_bytes += charged_bytes;
    }

    /// Takes back the charge of released messages.
    #[inline]
    pub(crate) fn release(&mut self, charged_bytes: usize) {
        self.used_bytes = self.used_bytes.saturating_sub(charged_bytes);
    }

    #[inline]
    pub(crate) fn channel(&mut self, channel: Channel) -> &mut ChannelReceive {
        let place = match self.places.last(channel) {
            Some(place) => place,
            None => self.find_channel(channel),
        };
        &mut self.channels[usize::from(place)]
    }

    #[cold]
    fn find_channel(&mut self, channel: Channel) -> u16 {
        self.places.place(channel).unwrap_or_else(|place| {
            let ordered = channel.class() == DeliveryClass::Ordered;
            self.channels.push(ChannelReceive::new(ordered));
            place
        })
    }

    /// Counts the next message of that channel, which came without a number. `false`: no honest peer sends it now.
    #[inline]
    pub(crate) fn pass_by(&mut self, channel: Channel) -> bool {
        if self.places.last(channel).is_none() && !self.places.has_room(channel) {
            return false;
        }
        self.channel(channel).pass_by()
    }

    /// Whether a message begins with this fragment, one of several, that may be assembled in a posted buffer.
    pub(crate) fn may_place(&self, data: &Data<'_>) -> bool {
        if data.payload.len() >= data.length as usize
            || data.is_bundle()
            || data.channel.is_datagram()
        {
            return false;
        }
        let Some(place) = self.places.find(data.channel) else {
            return data.message == FIRST_NUMBER as u32;
        };
        let channel = &self.channels[usize::from(place)];
        channel.may_place(expand(data.message, channel.next))
    }

    /// As `ChannelReceive::recall`.
    pub(crate) fn recall(
        &mut self,
        channel: Channel,
        posted: u64,
        pool: &mut Pool,
    ) -> Option<Result<Posted, OutOfMemory>> {
        let place = self.places.find(channel)?;
        self.channels[usize::from(place)].recall(posted, pool)
    }

    /// The incomplete message with this number on that channel, if there is one.
    pub(crate) fn under_way(
        &mut self,
        channel: Channel,
        message_low: u32,
    ) -> Option<&mut Reassembly> {
        let channel = self.channel(channel);
        channel.under_way(expand(message_low, channel.next))
    }

    /// Takes the frame if it has the expected number and holds the next message of its channel whole, as most frames do. Such a frame contradicts
    /// nothing that came before. Returns its number. `None`: it is another one, or memory refuses it, and nothing has changed.
    #[inline]
    pub(crate) fn take_in_order(
        &mut self,
        data: &Data<'_>,
        size: usize,
        fair: bool,
        memory: &mut Memory,
    ) -> Option<u64> {
        let (number, length) = (self.arrivals.next(), data.payload.len());
        if data.is_bundle()
            || data.number != number as u32
            || self.arrivals.has_gap()
            || data.length as usize != length
            || length > size
            || data.channel.is_datagram()
        {
            return None;
        }
        let place = self.places.last(data.channel)?;
        let channel = &mut self.channels[usize::from(place)];
        if !channel.is_next(data.message) || !channel.accept_next(length, fair, memory) {
            return None;
        }
        self.used_bytes += charge(length);
        self.frame_bytes = size; // the agreed size, because the message has one frame
        self.arrivals.mark(number);
        self.note_arrival(length, data.flags & flags::ACK_NOW != 0);
        Some(number)
    }

    /// Checks any other frame, and returns the charge of its message without overhead. Refuses a frame that no honest sender sends in this state of
    /// the session, and changes nothing. `granted`: numbers below it may be sent.
    pub(crate) fn check(
        &mut self,
        data: &Data<'_>,
        sizes: (usize, usize),
        granted: u64,
        memory: &Memory,
    ) -> Result<usize, Drop> {
        let weight = weight(data, sizes, memory).ok_or(Drop::Malformed)?;
        let next = self.arrivals.next();
        let number = expand(data.number, next);
        // A sender without credit sends one frame at a time, at growing intervals.
        let end = next.max(granted) + NUMBER_WINDOW;
        let delta = u64::from(data.floor_delta);
        let is_known = data.floor_delta < u16::MAX;
        let floor = if is_known {
            number.saturating_sub(delta)
        } else {
            0
        };
        let base = self.arrivals.base().max(floor);
        if number >= end.min(base + NUMBER_WINDOW) || is_known && delta >= NUMBER_WINDOW {
            return Err(Drop::Window);
        }
        // `take` refuses an old number as a duplicate; a datagram may have any message number.
        if number < self.arrivals.base() || data.channel.is_datagram() {
            return Ok(weight);
        }
        let Some(place) = self.places.find(data.channel) else {
            let message = expand(data.message, FIRST_NUMBER);
            let is_far = message >= FIRST_NUMBER + CHANNEL_WINDOW;
            return if is_far || !self.places.has_room(data.channel) {
                Err(Drop::Window)
            } else {
                Ok(weight)
            };
        };
        let channel = &mut self.channels[usize::from(place)];
        let message = expand(data.message, channel.next);
        let length = data.length as usize;
        let contradicts = |known: &mut Reassembly| known.length_bytes() != length;
        if message >= channel.next + CHANNEL_WINDOW
            || channel.under_way(message).is_some_and(contradicts)
        {
            return Err(Drop::Window);
        }
        Ok(weight)
    }

    /// Takes a fragment that `check` let pass. `size`: payload bytes of every fragment of its message but the last; `weight`: result of `check`;
    /// `fair`: a new message may begin. `PLACED`: a link has placed it, and `data` has no payload.
    #[inline]
    pub(crate) fn take<const PLACED: bool>(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        (payload_bytes, size, weight): (usize, usize, usize),
        fair: bool,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> (u64, Taken) {
        let number = expand(data.number, self.arrivals.next());
        // A wrong floor does no harm: it can only rise, and `check` bounds it.
        if data.floor_delta < u16::MAX {
            let floor = number.saturating_sub(u64::from(data.floor_delta));
            self.arrivals.raise_floor(floor);
        }
        match self.arrivals.classify(number) {
            Arrival::New => {}
            Arrival::Duplicate => {
                self.ack_now = true;
                return (number, Taken::Refused(Drop::Duplicate));
            }
            Arrival::Beyond => {
                return (self.arrivals.base() - 1, Taken::Refused(Drop::Window));
            }
        }
        self.frame_bytes = self.agreed_bytes;
        if data.is_bundle() {
            // Some bundles always fit the budget.
            let most_bytes = memory.budget_bytes() / 8;
            self.frame_bytes = self.frame_bytes.max(charge(weight).min(most_bytes));
        }
        let sizes = (payload_bytes, size, weight);
        let accepted = self.keep::<PLACED>(now, data, sizes, fair, memory, pool);
        let taken = Taken::of(accepted, data);
        if let Taken::Refused(refusal) = taken {
            if refusal == Drop::Memory {
                // The sender needs to learn its credit all the same: it may have no other frame to send.
                self.ack_now = true;
                self.refused = true;
            }
            return (number, taken);
        }
        let in_sequence = number == self.arrivals.next();
        self.arrivals.mark(number);
        self.note_arrival(
            payload_bytes,
            data.flags & flags::ACK_NOW != 0 || !in_sequence,
        );
        (number, taken)
    }

    /// As `take`, under `suci`: takes the expected number only, and drops all others (R1 to R4; R-73).
    pub(crate) fn take_next(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        size: usize,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Taken {
        let expected = self.arrivals.base();
        let number = expand(data.number, expected);
        let Some(weight) = weight(data, (data.payload.len(), size), memory) else {
            return Taken::Refused(Drop::Malformed);
        };
        if number != expected {
            return Taken::Refused(if number < expected {
                Drop::Duplicate
            } else if number - expected < NUMBER_WINDOW {
                Drop::Gap
            } else {
                Drop::Window
            });
        }
        let beyond = memory.free_bytes() == 0 && self.blocks_itself(data.channel, memory);
        memory.set_beyond(beyond);
        let sizes = (data.payload.len(), size, weight);
        let accepted = self.keep::<false>(now, data, sizes, true, memory, pool);
        let taken = Taken::of(accepted, data);
        memory.set_beyond(false);
        if !matches!(taken, Taken::Refused(_)) {
            self.arrivals.mark(number);
        }
        taken
    }

    /// Whether a message of this channel must be admitted though nothing is free: if only the peer's own incomplete messages could free memory, whose
    /// rest follows it. At most one of each priority is admitted in this way.
    #[cold]
    fn blocks_itself(&self, channel: Channel, memory: &Memory) -> bool {
        let mut others = false;
        for (other, receive) in self.places.channels().zip(&self.channels) {
            if receive.remaining.frames > 0 {
                if other.priority() == channel.priority() {
                    return false;
                }
                others = true;
            }
        }
        others && memory.is_idle()
    }

    /// Stores a fragment in its message; `PLACED`: it is there already.
    #[inline]
    fn keep<const PLACED: bool>(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        (payload_bytes, size, weight): (usize, usize, usize),
        fair: bool,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Accepted {
        if data.channel.is_datagram() {
            return self.keep_datagram(now, data, size, memory, pool);
        }
        if self.places.last(data.channel).is_none() && !self.places.has_room(data.channel) {
            return Accepted::Beyond;
        }
        let channel = self.channel(data.channel);
        let fragment = Fragment {
            message: expand(data.message, channel.next),
            offset: data.offset as usize,
            length: data.length as usize,
            weight,
            size,
            payload_bytes,
            payload: (!PLACED).then_some(data.payload),
        };
        if !PLACED && channel.holds_next(&fragment) {
            if !channel.accept_next(weight, fair, memory) {
                return Accepted::NoMemory;
            }
            self.used_bytes += charge(weight);
            return Accepted::Frame;
        }
        let used_before_bytes = memory.used_bytes();
        let before = channel.remaining;
        let accepted = channel.accept(&fragment, fair, memory, pool);
        let after = channel.remaining;
        self.remaining.bytes = self.remaining.bytes + after.bytes - before.bytes;
        self.remaining.frames = self.remaining.frames + after.frames - before.frames;
        self.used_bytes += memory.used_bytes() - used_before_bytes;
        accepted
    }

    /// Stores a fragment of a datagram, which a newer one may replace; that frees its memory.
    #[cold]
    fn keep_datagram(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        size: usize,
        memory: &mut Memory,
        pool: &mut Pool,
    ) -> Accepted {
        if !self.datagrams.has_room(data.channel) {
            return Accepted::Nothing;
        }
        let fragment = Fragment {
            message: expand(data.message, self.datagrams.next(data.channel)),
            offset: data.offset as usize,
            length: data.length as usize,
            weight: data.length as usize,
            size,
            payload_bytes: data.payload.len(),
            payload: Some(data.payload),
        };
        let others_bytes = memory.used_bytes() - self.used_bytes;
        let accepted = self
            .datagrams
            .accept(now, data.channel, &fragment, memory, pool);
        self.used_bytes = memory.used_bytes() - others_bytes;
        accepted
    }

    /// Drops incomplete datagrams of which no fragment came for too long.
    pub(crate) fn expire(&mut self, now: Instant, memory: &mut Memory, pool: &mut Pool) {
        let others_bytes = memory.used_bytes() - self.used_bytes;
        self.datagrams.expire(now, memory, pool);
        self.used_bytes = memory.used_bytes() - others_bytes;
    }

    #[inline]
    fn note_arrival(&mut self, payload_bytes: usize, at_once: bool) {
        self.unacknowledged += 1;
        self.unacknowledged_bytes += payload_bytes;
        let patience = if self.arrivals.has_gap() {
            TUNING.acks.frames_per_gap_report
        } else {
            self.patience_frames
        };
        if at_once
            || self.unacknowledged >= patience
            || self.unacknowledged_bytes >= TUNING.acks.bytes
        {
            self.ack_now = true;
        }
    }

    /// Notes that a frame was taken at `now` and is not acknowledged yet.
    #[inline]
    pub(crate) fn await_ack(&mut self, now: Instant) {
        self.waiting_since.get_or_insert(now);
    }

    /// When the acknowledgement must be sent; `None` if it is due already, or none is pending.
    #[inline]
    pub(crate) fn ack_deadline(&self) -> Option<Instant> {
        if self.ack_now {
            None
        } else {
            self.waiting_since.map(|since| since + TUNING.acks.delay)
        }
    }

    /// How long the acknowledgement has been held back.
    #[inline]
    pub(crate) fn ack_delay(&self, now: Instant) -> Duration {
        self.waiting_since
            .map_or(Duration::ZERO, |since| now.since(since))
    }

    /// A message is incomplete, or waits for one that has not begun.
    pub(crate) fn misses_something(&self) -> bool {
        self.remaining.frames > 0 || self.waits_for_head()
    }

    /// Messages of some channel wait for one that has not begun: they occupy memory until it comes.
    pub(crate) fn waits_for_head(&self) -> bool {
        self.channels.iter().any(ChannelReceive::waits_for_head)
    }

    /// Notes that an acknowledgement left, in a frame of any kind.
    #[inline]
    pub(crate) fn on_ack_sent(&mut self) {
        self.unacknowledged = 0;
        self.unacknowledged_bytes = 0;
        self.ack_now = false;
        self.waiting_since = None;
    }

    /// Ends the session: releases the memory of all messages that were not delivered.
    pub(crate) fn clear(&mut self, memory: &mut Memory, pool: &mut Pool) {
        let used_before_bytes = memory.used_bytes();
        for channel in &mut self.channels {
            channel.clear(memory, pool);
        }
        self.datagrams.clear(memory, pool);
        let cleared_bytes = used_before_bytes - memory.used_bytes();
        // What the program holds stays charged to the peer in later sessions.
        *self = Self {
            used_bytes: self.used_bytes.saturating_sub(cleared_bytes),
            ..Self::new()
        };
    }
}

/// Charge of the frame's message without overhead, if the frame holds a whole fragment according to R-14, or a bundle, and its message is
/// neither too long nor, as a datagram, too short; else `None`.
#[inline]
fn weight(
    data: &Data<'_>,
    (payload_bytes, size): (usize, usize),
    memory: &Memory,
) -> Option<usize> {
    let (offset, length) = (data.offset as usize, data.length as usize);
    let fits = if length > size {
        offset % size == 0 && payload_bytes == size.min(length - offset)
    } else {
        payload_bytes == length
    };
    let weight = if data.is_bundle() {
        bundle_weight(payload_bytes, data.bundled()?)
    } else {
        length
    };
    let has_stamp = !data.channel.is_datagram() || length >= STAMP_BYTES;
    (fits && has_stamp && weight <= memory.limit_bytes()).then_some(weight)
}
