//! Messages to one peer that are not yet acknowledged whole, and the choice of the fragment that leaves next.
//!
//! Called by `send`. Knows nothing of credit, time or packet numbers.
//!
//! Invariants: a message is in `messages` until its last fragment is acknowledged; a fragment is in at most one state: in flight, in `repairs`,
//! acknowledged, or not yet sent, except copies whose loss turned out to be spurious; the masks and `backlog` follow from `pending` and `repairs`; a
//! slot in `free` has no borrowing and no bitmap, and an empty body.

mod ahead;
mod begun;
mod borrow;
mod bundling;
pub(crate) mod datagrams;
mod stall;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub(crate) use self::borrow::BorrowedState;
use self::borrow::InHand;
use self::datagrams::{Dropped, NEVER, Waiting};
pub(crate) use self::stall::STALL_REPAIRS;
use self::stall::Stall;
use super::borrowing::Borrowing;
use super::flight::Part;
use super::outgoing::{ChannelSend, Outgoing, cut};
use super::places::Places;
use crate::counters::Counters;
use crate::message::{Borrowed, SendId};
use crate::pool::{Pool, has_bit, set_bit};
use crate::time::Instant;
use tsumuji_wire::{Channel, Priority, bundle};

/// A message's buffer of at most this size stays in its slot for the next message; larger ones return to the pool. This is the pool's smallest
/// buffer, about as large as a slot, and kept as long.
const SLOT_BODY_BYTES: usize = 64;

/// Queue whose first entry holds the fragment that leaves next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Choice {
    Repair { priority: usize },
    New { priority: usize },
}

/// A fragment, with its position in its message.
pub(crate) struct Place<'a> {
    pub(crate) channel: Channel,
    pub(crate) message: u64,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) payload: &'a [u8],
    /// The payload is a bundle.
    pub(crate) is_bundle: bool,
}

/// Counts of messages that were not acknowledged when the session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Messages of all kinds, those among them that are acknowledged and wait at the peer for an earlier one.
    pub(crate) messages: usize,
    /// Reliable messages of the program among them that were accepted.
    pub(crate) lost: usize,
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// Payload bytes of a fragment at most; known with the session.
    pub(crate) fragment_bytes: usize,
    /// Largest message that the peer accepts; known with the session.
    message_limit_bytes: usize,
    /// Payload bytes of a bundle at most; 0 if none are made.
    bundle_bytes: usize,
    /// Messages not acknowledged whole.
    pub(crate) queued_messages: usize,
    /// Bytes of these messages that are held here.
    pub(crate) queued_bytes: usize,
    /// Fragments that were sent again, in all sessions.
    pub(crate) retransmitted: u64,
    /// Messages that the peer has begun to take go first.
    begun_first: bool,
    messages: Vec<Outgoing>,
    free: Vec<u32>,
    borrowed: InHand,
    spare_borrowing: Option<Box<Borrowing>>,
    pending: [VecDeque<u32>; Priority::COUNT],
    repairs: [VecDeque<Part>; Priority::COUNT],
    /// Bit p: `pending[p]` has an entry.
    pending_mask: u8,
    /// Bit p: `repairs[p]` has an entry.
    repairs_mask: u8,
    /// Entries of `pending` and `repairs` together.
    backlog: usize,
    /// Result of `choose`; `None` if it is to be called again.
    choice: Option<Choice>,
    channels: Vec<ChannelSend>,
    places: Places,
    next_id: u64,
    /// Datagrams that have not left whole.
    waiting: Vec<Waiting>,
    first_deadline: Instant,
    /// Counts of datagrams that did not arrive.
    pub(crate) dropped: Dropped,
    /// Present once something was sent again, refused, or acknowledged out of order.
    stall: Option<Box<Stall>>,
}

impl Queue {
    /// `next_id`: id of the first message.
    pub(super) fn new(next_id: u64) -> Self {
        Self {
            fragment_bytes: 1,
            message_limit_bytes: 0,
            bundle_bytes: 0,
            queued_messages: 0,
            queued_bytes: 0,
            retransmitted: 0,
            begun_first: false,
            messages: Vec::new(),
            free: Vec::new(),
            borrowed: InHand::No,
            spare_borrowing: None,
            pending: Default::default(),
            repairs: Default::default(),
            pending_mask: 0,
            repairs_mask: 0,
            backlog: 0,
            choice: None,
            channels: Vec::new(),
            places: Places::new(),
            next_id,
            waiting: Vec::new(),
            first_deadline: NEVER,
            dropped: Dropped::default(),
            stall: None,
        }
    }

    /// Begins a session: what was queued before stays, except messages of more than `limit_bytes`, whose id and length are told to `too_large`.
    /// Nothing has left yet.
    pub(super) fn begin(
        &mut self,
        fragment_bytes: usize,
        limit_bytes: usize,
        pool: &mut Pool,
        mut too_large: impl FnMut(SendId, usize),
    ) {
        self.fragment_bytes = fragment_bytes.max(1);
        self.message_limit_bytes = limit_bytes;
        for priority in 0..Priority::COUNT {
            let messages = &mut self.messages;
            self.pending[priority].retain(|&slot| {
                let outgoing = &mut messages[slot as usize];
                if outgoing.length_bytes <= limit_bytes {
                    return true;
                }
                outgoing.live = false;
                if let Some(mut borrowing) = outgoing.borrowing.take() {
                    if borrowing.is_borrowed() {
                        borrowing.end();
                        self.borrowed = InHand::No;
                    }
                    self.queued_bytes -= borrowing.end_sharing();
                    self.spare_borrowing = Some(borrowing);
                }
                self.queued_bytes -= outgoing.body.len();
                pool.put(core::mem::take(&mut outgoing.body));
                self.queued_messages -= 1;
                self.backlog -= 1;
                self.free.push(slot);
                too_large(outgoing.id, outgoing.length_bytes);
                false
            });
            if self.pending[priority].is_empty() {
                self.pending_mask &= !(1 << priority);
            }
        }
        let messages = &mut self.messages;
        self.waiting
            .retain(|entry| messages[entry.slot as usize].live);
        for outgoing in &mut self.messages {
            (outgoing.fragments, outgoing.fragment_bytes) =
                cut(outgoing.length_bytes, self.fragment_bytes);
        }
        self.choice = None;
    }

    /// Queues the message in `body`.
    pub(super) fn push(
        &mut self,
        channel: Channel,
        body: Vec<u8>,
        notify: bool,
        pool: &mut Pool,
    ) -> SendId {
        let (slot, length_bytes) = (self.free_slot(), body.len());
        let unused = core::mem::replace(&mut self.messages[slot as usize].body, body);
        pool.put(unused);
        self.queued_bytes += length_bytes;
        self.enlist(slot, channel, length_bytes, notify)
    }

    /// Queues a copy of `head` and `rest` joined. `None`: there is no memory for it.
    #[inline]
    pub(crate) fn push_copied(
        &mut self,
        channel: Channel,
        (head, rest): (&[u8], &[u8]),
        notify: bool,
        pool: &mut Pool,
    ) -> Option<SendId> {
        if self.backlog > 0
            && !notify
            && let Some(id) = self.join(channel, (head, rest), pool)
        {
            return Some(id);
        }
        let (slot, length_bytes) = (self.free_slot(), head.len() + rest.len());
        let body = &mut self.messages[slot as usize].body;
        if body.capacity() < length_bytes {
            let Some(larger) = pool.take(length_bytes) else {
                self.free.push(slot);
                return None;
            };
            pool.put(core::mem::replace(body, larger));
        }
        body.extend_from_slice(head);
        body.extend_from_slice(rest);
        self.queued_bytes += length_bytes;
        Some(self.enlist(slot, channel, length_bytes, notify))
    }

    /// A slot without a message; its body is empty.
    #[inline]
    fn free_slot(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.messages.push(Outgoing::new());
            (self.messages.len() - 1) as u32
        })
    }

    /// Queues the message in that slot, whose bytes are in `body` or in `borrowing`.
    #[inline]
    fn enlist(&mut self, slot: u32, channel: Channel, length_bytes: usize, notify: bool) -> SendId {
        let id = SendId(self.next_id);
        self.next_id += 1;
        let channel_index = self.channel_index(channel);
        let (fragments, fragment_bytes) = cut(length_bytes, self.fragment_bytes);
        let outgoing = &mut self.messages[slot as usize];
        debug_assert!(!outgoing.live && outgoing.bitmap.is_empty());
        outgoing.channel = channel;
        outgoing.channel_index = channel_index;
        outgoing.id = id;
        outgoing.length_bytes = length_bytes;
        outgoing.fragments = fragments;
        outgoing.fragment_bytes = fragment_bytes;
        outgoing.next_fragment = 0;
        outgoing.acknowledged = 0;
        outgoing.notify = notify;
        outgoing.live = true;
        let priority = usize::from(channel.priority().get());
        // If nothing else waits, it is next, unless its channel is full, which is rare.
        let alone = self.backlog == 0 && self.channels[usize::from(channel_index)].has_room();
        self.choice = alone.then_some(Choice::New { priority });
        self.pending[priority].push_back(slot);
        self.pending_mask |= 1 << priority;
        self.backlog += 1;
        self.queued_messages += 1;
        id
    }

    /// Takes a message that has not left whole out of those that wait.
    fn unlist(&mut self, slot: u32) {
        let priority = usize::from(self.messages[slot as usize].channel.priority().get());
        self.pending[priority].retain(|&other| other != slot);
        if self.pending[priority].is_empty() {
            self.pending_mask &= !(1 << priority);
        }
        self.backlog -= 1;
    }

    pub(crate) fn is_acknowledged(&self, id: SendId) -> bool {
        id.0 < self.next_id
            && !self
                .messages
                .iter()
                .any(|outgoing| outgoing.live && outgoing.id == id)
            && !(self.stall.as_deref()).is_some_and(|stall| stall.ahead.holds(id))
    }

    /// Something waits to be sent, perhaps for room in its channel.
    #[inline]
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog > 0
    }

    /// Some fragment may leave.
    #[inline]
    pub(super) fn has_choice(&mut self) -> bool {
        if self.choice.is_none() {
            self.choice = self.choose();
        }
        self.choice.is_some()
    }

    /// Chooses the most urgent priority with a fragment that may leave: repairs first, then new data. Out of line, because it is called once a frame,
    /// and `has_choice`, which keeps the result, several times.
    #[inline(never)]
    fn choose(&mut self) -> Option<Choice> {
        if self.begun_first
            && let Some(next) = self.next_begun()
        {
            return Some(next);
        }
        let mut candidates = self.pending_mask | self.repairs_mask;
        while candidates != 0 {
            let priority = candidates.trailing_zeros() as usize;
            if self.repairs_mask & (1 << priority) != 0 && self.has_repair(priority) {
                return Some(Choice::Repair { priority });
            }
            if let Some(&slot) = self.pending[priority].front() {
                let outgoing = &self.messages[slot as usize];
                let channel = &self.channels[usize::from(outgoing.channel_index)];
                if outgoing.next_fragment > 0 || channel.has_room() {
                    return Some(Choice::New { priority });
                }
            }
            candidates &= candidates - 1;
        }
        None
    }

    /// Drops repairs that are no longer wanted from the front; whether one is left.
    #[cold]
    fn has_repair(&mut self, priority: usize) -> bool {
        while let Some(part) = self.repairs[priority].front() {
            if self.is_wanted(part) {
                return true;
            }
            self.pop_repair(priority);
        }
        false
    }

    /// Queues a lost fragment again; `ahead`: before all other repairs of its priority. `false`: it is not sent again, because it is of a datagram
    /// or another copy of it has arrived.
    pub(super) fn push_repair(&mut self, part: Part, ahead: bool) -> bool {
        let channel = self.messages[part.slot() as usize].channel;
        if channel.is_datagram() {
            self.lose(part.slot(), part.id);
            return false;
        }
        if !self.is_wanted(&part) {
            return false;
        }
        let priority = usize::from(channel.priority().get());
        if ahead {
            self.repairs[priority].push_front(part);
        } else {
            self.repairs[priority].push_back(part);
        }
        self.repairs_mask |= 1 << priority;
        self.backlog += 1;
        self.choice = None;
        true
    }

    fn pop_repair(&mut self, priority: usize) -> Option<Part> {
        let part = self.repairs[priority].pop_front()?;
        self.backlog -= 1;
        if self.repairs[priority].is_empty() {
            self.repairs_mask &= !(1 << priority);
        }
        Some(part)
    }

    /// Whether a queue of `limit_bytes` has room for a message of `bytes` more. The slots count, so that empty messages are not free. One message
    /// alone may exceed the limit: otherwise it could never leave.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize, limit_bytes: usize) -> bool {
        let slots = self.messages.len() - self.free.len();
        let beside_bytes = slots * size_of::<Outgoing>();
        slots == 0 || (self.queued_bytes + beside_bytes).saturating_add(bytes) <= limit_bytes
    }

    /// Whether the channel is in use, or there is room for one more.
    #[inline]
    pub(crate) fn admits(&self, channel: Channel) -> bool {
        self.places.last(channel).is_some() || self.places.has_room(channel)
    }

    #[inline]
    fn channel_index(&mut self, channel: Channel) -> u16 {
        match self.places.last(channel) {
            Some(place) => place,
            None => self.find_channel(channel),
        }
    }

    /// Counts a message of that channel that leaves past the queue, which is empty.
    #[inline]
    pub(crate) fn pass_by(&mut self, channel: Channel) {
        let channel = self.channel_index(channel);
        self.channels[usize::from(channel)].pass_by();
    }

    #[cold]
    fn find_channel(&mut self, channel: Channel) -> u16 {
        self.places.place(channel).unwrap_or_else(|place| {
            self.channels.push(ChannelSend::new());
            place
        })
    }

    /// Whether this part's message is still queued, and the part is not acknowledged.
    fn is_wanted(&self, part: &Part) -> bool {
        let outgoing = &self.messages[part.slot() as usize];
        outgoing.live
            && outgoing.id == part.id
            && (outgoing.bitmap.is_empty() || !has_bit(&outgoing.bitmap, part.fragment() as usize))
    }

    /// Payload bytes at most of the chosen fragment; 0 if none is chosen.
    pub(crate) fn next_bytes(&self) -> usize {
        let slot = match self.choice {
            Some(Choice::New { priority }) => self.pending[priority].front(),
            Some(Choice::Repair { .. }) => return self.fragment_bytes,
            None => None,
        };
        slot.map_or(0, |slot| {
            let outgoing = &self.messages[*slot as usize];
            let size = outgoing.fragment_bytes as usize;
            let left = outgoing.length_bytes - outgoing.next_fragment as usize * size;
            size.min(left)
        })
    }

    /// Takes the chosen fragment; call only after `has_choice` returned true.
    #[inline(always)] // as `acknowledge`
    pub(super) fn pop(
        &mut self,
        now: Instant,
        pool: &mut Pool,
        counters: &mut Counters,
    ) -> Option<Part> {
        match self.choice.take()? {
            Choice::New { priority } => self.pop_new(priority, pool),
            Choice::Repair { priority } => self.pop_again(now, priority, counters),
        }
    }

    #[cold]
    fn pop_again(
        &mut self,
        now: Instant,
        priority: usize,
        counters: &mut Counters,
    ) -> Option<Part> {
        self.retransmitted += 1;
        counters.retransmitted_frames += 1;
        let part = self.pop_repair(priority)?;
        self.note_repair(now, part.slot());
        Some(part)
    }

    #[inline(always)] // as `acknowledge`
    fn pop_new(&mut self, priority: usize, pool: &mut Pool) -> Option<Part> {
        let pending = &mut self.pending[priority];
        let slot = *pending.front()?;
        let outgoing = &mut self.messages[slot as usize];
        let part = Part::new(slot, outgoing.next_fragment, outgoing.id);
        if outgoing.next_fragment == 0 {
            outgoing.number = self.channels[usize::from(outgoing.channel_index)].assign();
            if outgoing.fragments > 1 {
                outgoing.bitmap = pool.take_bitmap(outgoing.fragments as usize);
            }
        }
        outgoing.next_fragment += 1;
        if outgoing.next_fragment == outgoing.fragments {
            pending.pop_front();
            if pending.is_empty() {
                self.pending_mask &= !(1 << priority);
            }
            self.backlog -= 1;
            if !self.waiting.is_empty() {
                self.on_datagram_left(slot);
            }
        }
        Some(part)
    }

    /// The fragment of a part that `pop` returned. Of a borrowed message other than `borrowed` it has no payload, and the peer drops it.
    #[inline]
    pub(super) fn place<'a>(&'a self, part: Part, borrowed: &Borrowed<'a>) -> Place<'a> {
        let outgoing = &self.messages[part.slot() as usize];
        let size = outgoing.fragment_bytes as usize;
        let offset = part.fragment() as usize * size;
        let payload = match &outgoing.borrowing {
            None => {
                let end = outgoing.body.len().min(offset + size);
                &outgoing.body[offset..end]
            }
            Some(borrowing) => {
                let end = outgoing.length_bytes.min(offset + size);
                borrowing.payload(
                    borrowed,
                    outgoing.id,
                    (offset, end),
                    (part.fragment(), size),
                )
            }
        };
        Place {
            channel: outgoing.channel,
            message: outgoing.number,
            offset,
            length: outgoing.length_bytes,
            payload,
            is_bundle: outgoing.is_bundle(),
        }
    }

    /// Takes the acknowledgement of a part. Tells `done` a tracked message that is now acknowledged whole, and waits at the peer for no earlier one of an
    /// ordered channel; and those that waited for this one.
    #[inline(always)] // on the path of every frame; without this, two congestion controls would push it out of line
    pub(super) fn acknowledge(
        &mut self,
        part: Part,
        pool: &mut Pool,
        done: &mut impl FnMut(SendId),
    ) {
        self.choice = None;
        let outgoing = &mut self.messages[part.slot() as usize];
        if !outgoing.live || outgoing.id != part.id {
            return;
        }
        if outgoing.fragments > 1 && !set_bit(&mut outgoing.bitmap, part.fragment() as usize) {
            return;
        }
        outgoing.acknowledged += 1;
        let whole = outgoing.acknowledged == outgoing.fragments;
        if let Some(borrowing) = &mut outgoing.borrowing {
            self.queued_bytes -= borrowing.acknowledge(part.fragment(), pool);
            if whole {
                if borrowing.is_borrowed() {
                    borrowing.end();
                    self.borrowed = InHand::Acknowledged(outgoing.id);
                }
                self.queued_bytes -= borrowing.end_sharing();
                self.spare_borrowing = outgoing.borrowing.take();
            }
        }
        if !whole {
            return;
        }
        outgoing.live = false;
        let (channel, number) = (usize::from(outgoing.channel_index), outgoing.number);
        if !self.channels[channel].acknowledge(number) {
            let base = self.channels[channel].base();
            acknowledge_early(&mut self.stall, outgoing, base, done);
        }
        if outgoing.is_bundle() {
            self.queued_messages -= outgoing.messages - 1;
            self.queued_bytes += outgoing.messages * bundle::PREFIX_BYTES;
            outgoing.messages = 1;
        }
        self.queued_messages -= 1;
        self.queued_bytes -= outgoing.body.len();
        if outgoing.notify {
            done(outgoing.id);
        }
        if outgoing.fragments > 1 {
            pool.put_bitmap(core::mem::take(&mut outgoing.bitmap));
        }
        if outgoing.body.capacity() > SLOT_BODY_BYTES {
            pool.put(core::mem::take(&mut outgoing.body));
        } else {
            outgoing.body.clear();
        }
        self.free.push(part.slot());
    }

    /// Reliable messages of the program that were accepted and are not acknowledged, or wait at the peer for an earlier message.
    pub(crate) fn promised_messages(&self) -> usize {
        let promised = |outgoing: &&Outgoing| {
            let channel = outgoing.channel;
            // A message that is still borrowed was not accepted yet: its call reports its state.
            let borrowed = outgoing
                .borrowing
                .as_deref()
                .is_some_and(Borrowing::is_borrowed);
            let own = !channel.is_datagram() && !channel.is_library();
            outgoing.live && own && !borrowed
        };
        let messages = self.messages.iter().filter(promised);
        messages.map(|outgoing| outgoing.messages).sum::<usize>() + self.messages_ahead()
    }

    fn messages_ahead(&self) -> usize {
        (self.stall.as_deref()).map_or(0, |stall| stall.ahead.messages(&self.channels))
    }

    /// Fails all messages, because the session has ended; returns how many there were.
    pub(super) fn clear(&mut self, pool: &mut Pool) -> Failed {
        let failed = Failed {
            messages: self.queued_messages + self.messages_ahead(),
            lost: self.promised_messages(),
        };
        for outgoing in self.messages.drain(..) {
            pool.put(outgoing.body);
            pool.put_bitmap(outgoing.bitmap);
            if let Some(mut borrowing) = outgoing.borrowing {
                borrowing.clear(pool);
            }
        }
        let (retransmitted, dropped) = (self.retransmitted, self.dropped);
        let borrowed = match self.borrowed {
            InHand::Yes { .. } => InHand::No,
            told => told,
        };
        *self = Self {
            retransmitted,
            dropped,
            borrowed,
            ..Self::new(self.next_id)
        };
        failed
    }
}

/// A message was acknowledged although an earlier one of its channel is not, or a later one is. Out of line: that keeps the usual way short.
#[cold]
#[inline(never)]
fn acknowledge_early(
    stall: &mut Option<Box<Stall>>,
    outgoing: &mut Outgoing,
    base: u64,
    done: &mut impl FnMut(SendId),
) {
    let stall = stall.get_or_insert_default();
    stall.ahead.note(outgoing, base, done);
    outgoing.notify = false; // told, or noted to be told later
}
