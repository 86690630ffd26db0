//! Messages and datagrams that arrived on a channel and were not taken yet. Messages are taken in order of arrival, from any or one peer.
//!
//! Filled and emptied by `channel`. Messages are bounded by the budget that they are charged to (the channel's or the endpoint's); datagrams by the
//! limits below.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tsumuji_proto::{Body, Channel, Datagram, Delivery, NodeId};

use crate::handler::{Context, Handler};

/// A message taken by `recv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The sender.
    pub from: NodeId,
    /// The channel it came by.
    pub channel: Channel,
    /// The message. `Endpoint::recycle` takes the buffer back.
    pub body: Vec<u8>,
}

/// A datagram taken by `recv_datagram`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedDatagram {
    /// The sender.
    pub from: NodeId,
    /// Incarnation of the sender.
    pub incarnation: u32,
    /// Id of its channel.
    pub channel_id: u16,
    /// Subject of the values, chosen by the program: a newer datagram with this key replaces an older one.
    pub key: u32,
    /// Period of the computation; wraps.
    pub epoch: u32,
    /// Order within the epoch: the higher lap is newer; wraps.
    pub lap: u32,
    /// The values.
    pub payload: Vec<u8>,
}

/// The budget that a message counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// The endpoint's: peers have less credit while the message is there.
    Endpoint,
    /// The channel's.
    Channel,
    /// The channel's overdraft: the message was on its way when its sender was told to stop.
    Overdraft,
}

/// A waiting message.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) message: Message,
    /// As in `Delivery`.
    pub(crate) session: u64,
    pub(crate) charge: Charge,
}

/// Most datagrams of one channel, and most bytes of them.
const DATAGRAMS_LIMIT: usize = 4096;
const DATAGRAM_BYTES_LIMIT: usize = 8 << 20;

/// Buffers kept for reuse, and the capacity beyond which a buffer goes to the engine's pool instead.
const POOL_BUFFERS: usize = 64;
const POOL_BUFFER_BYTES: usize = 64 << 10;

/// Places in `order` of messages that were taken out of order, before they are removed.
const TAKEN_AHEAD: usize = 64;

/// Messages of one peer, oldest first.
#[derive(Debug, Default)]
struct Line {
    messages: VecDeque<Stored>,
    /// Its next places in `order` that belong to messages taken out of order.
    ahead: usize,
}

/// Waiting messages.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Senders in order of arrival. Invariant: each peer has as many places as messages in its line and `ahead` together.
    order: VecDeque<NodeId>,
    lines: BTreeMap<NodeId, Line>,
    messages: usize,
}

impl Mailbox {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.messages == 0
    }

    #[inline]
    pub(crate) fn messages(&self) -> usize {
        self.messages
    }

    pub(crate) fn push(&mut self, stored: Stored) {
        let from = stored.message.from;
        self.messages += 1;
        self.order.push_back(from);
        self.lines
            .entry(from)
            .or_default()
            .messages
            .push_back(stored);
    }

    /// The next message of that peer, or the oldest of all.
    pub(crate) fn next(&mut self, from: Option<NodeId>) -> Option<&Message> {
        if self.messages == 0 {
            return None;
        }
        let from = from.or_else(|| self.first())?;
        let line = self.lines.get(&from)?;
        line.messages.front().map(|stored| &stored.message)
    }

    /// Takes that message.
    pub(crate) fn pop(&mut self, from: Option<NodeId>) -> Option<Stored> {
        if self.messages == 0 {
            return None;
        }
        let taken = if let Some(from) = from {
            let line = self.lines.get_mut(&from)?;
            let taken = line.messages.pop_front()?;
            line.ahead += 1;
            taken
        } else {
            let from = self.first()?;
            self.order.pop_front();
            self.lines.get_mut(&from)?.messages.pop_front()?
        };
        self.messages -= 1;
        if self.messages == 0 || self.order.len() > 2 * self.messages + TAKEN_AHEAD {
            self.tidy();
        }
        Some(taken)
    }

    /// Sender of the oldest message; removes the places before it of messages taken out of order.
    fn first(&mut self) -> Option<NodeId> {
        loop {
            let from = *self.order.front()?;
            match self.lines.get_mut(&from) {
                Some(line) if line.ahead > 0 => line.ahead -= 1,
                _ => return Some(from),
            }
            self.order.pop_front();
        }
    }

    fn tidy(&mut self) {
        let lines = &mut self.lines;
        self.order.retain(|from| match lines.get_mut(from) {
            Some(line) if line.ahead > 0 => {
                line.ahead -= 1;
                false
            }
            _ => true,
        });
    }

    /// Takes all messages that meet the condition, in order of arrival.
    pub(crate) fn split(&mut self, takes: impl Fn(&Message) -> bool) -> Vec<Stored> {
        let mut taken = Vec::new();
        for _ in 0..self.messages {
            let Some(stored) = self.pop(None) else { break };
            if takes(&stored.message) {
                taken.push(stored);
            } else {
                self.push(stored);
            }
        }
        taken
    }
}

/// Which waiting datagrams are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// The newest of each source, channel and key.
    Newest,
    /// All: each has its own meaning.
    All,
}

/// Waiting datagrams, in order of arrival.
#[derive(Debug)]
pub(crate) struct Stash {
    keeps: Keeps,
    /// Each with the number of its sender's session.
    datagrams: VecDeque<(u64, ReceivedDatagram)>,
    /// Numbers of datagrams, by source, channel and key.
    places: HashMap<(NodeId, u16, u32), u64>,
    /// Number of the first in `datagrams`.
    first: u64,
    bytes: usize,
    datagrams_limit: usize,
    bytes_limit: usize,
}

impl ReceivedDatagram {
    fn as_datagram(&self) -> Datagram<'_> {
        Datagram {
            source: self.from,
            incarnation: self.incarnation,
            channel_id: self.channel_id,
            epoch: self.epoch,
            lap: self.lap,
            key: self.key,
            payload: &self.payload,
        }
    }
}

impl Stash {
    pub(crate) fn new(keeps: Keeps) -> Self {
        Self {
            keeps,
            datagrams: VecDeque::new(),
            places: HashMap::new(),
            first: 0,
            bytes: 0,
            datagrams_limit: DATAGRAMS_LIMIT,
            bytes_limit: DATAGRAM_BYTES_LIMIT,
        }
    }

    /// Sets the limits.
    pub(crate) fn limit(&mut self, datagrams: usize, bytes: usize) {
        (self.datagrams_limit, self.bytes_limit) = (datagrams, bytes);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Stores a datagram, or drops it as older. Returns `false` if there is no room.
    pub(crate) fn keep(
        &mut self,
        session: u64,
        datagram: &Datagram<'_>,
        buffers: &mut Buffers,
    ) -> bool {
        let key = (datagram.source, datagram.channel_id, datagram.key);
        let known = (self.keeps == Keeps::Newest)
            .then(|| self.places.get(&key))
            .flatten();
        let held = known.and_then(|number| self.datagrams.get_mut((number - self.first) as usize));
        if let Some((held_session, held)) = held {
            if is_older(datagram, held) {
                return true;
            }
            let bytes = self.bytes - held.payload.len() + datagram.payload.len();
            if bytes > self.bytes_limit {
                return false;
            }
            self.bytes = bytes;
            held.payload.clear();
            held.payload.extend_from_slice(datagram.payload);
            *held_session = session;
            (held.incarnation, held.epoch, held.lap) =
                (datagram.incarnation, datagram.epoch, datagram.lap);
            return true;
        }
        let bytes = self.bytes + datagram.payload.len();
        if self.datagrams.len() >= self.datagrams_limit || bytes > self.bytes_limit {
            return false;
        }
        self.bytes = bytes;
        if self.keeps == Keeps::Newest {
            (self.places).insert(key, self.first + self.datagrams.len() as u64);
        }
        let stored = ReceivedDatagram {
            from: datagram.source,
            incarnation: datagram.incarnation,
            channel_id: datagram.channel_id,
            key: datagram.key,
            epoch: datagram.epoch,
            lap: datagram.lap,
            payload: buffers.copy(datagram.payload),
        };
        self.datagrams.push_back((session, stored));
        true
    }

    /// Delivers all to the handler; returns how many.
    pub(crate) fn hand_over(
        &mut self,
        handler: &mut dyn Handler,
        context: &mut Context<'_>,
        buffers: &mut Buffers,
    ) -> usize {
        let count = self.datagrams.len();
        while let Some((session, stored)) = self.datagrams.pop_front() {
            self.first += 1;
            let datagram = stored.as_datagram();
            context.is_of(session, &datagram);
            handler.datagram(context, datagram);
            buffers.give(stored.payload);
        }
        self.places.clear();
        self.bytes = 0;
        count
    }

    /// Length of the oldest datagram.
    pub(crate) fn next_bytes(&self) -> Option<usize> {
        let (_, next) = self.datagrams.front()?;
        Some(next.payload.len())
    }

    /// Takes the oldest datagram.
    pub(crate) fn pop(&mut self) -> Option<ReceivedDatagram> {
        let (_, taken) = self.datagrams.pop_front()?;
        self.first += 1;
        (self.places).remove(&(taken.from, taken.channel_id, taken.key));
        self.bytes -= taken.payload.len();
        Some(taken)
    }

    /// Moves all datagrams of one channel to another stash.
    pub(crate) fn move_to(&mut self, channel_id: u16, other: &mut Self, buffers: &mut Buffers) {
        let (mine, theirs): (VecDeque<_>, _) =
            (self.datagrams.drain(..)).partition(|(_, stored)| stored.channel_id != channel_id);
        self.places.clear();
        self.bytes = 0;
        for (datagrams, stash) in [(mine, &mut *self), (theirs, other)] {
            for (session, stored) in datagrams {
                stash.keep(session, &stored.as_datagram(), buffers);
                buffers.give(stored.payload);
            }
        }
    }
}

/// Whether a datagram is of the same incarnation and of an earlier epoch or lap (both wrap).
fn is_older(datagram: &Datagram<'_>, held: &ReceivedDatagram) -> bool {
    let behind = |new: u32, old: u32| (new.wrapping_sub(old)).cast_signed() < 0;
    datagram.incarnation == held.incarnation
        && (behind(datagram.epoch, held.epoch)
            || datagram.epoch == held.epoch && behind(datagram.lap, held.lap))
}

/// Buffers for copies of arriving messages, for reuse.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = if bytes.is_empty() {
            Vec::new()
        } else {
            self.0.pop().unwrap_or_default()
        };
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes a buffer back; returns it if the pool is full, or the buffer too large for it.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) -> Option<Vec<u8>> {
        if buffer.capacity() > POOL_BUFFER_BYTES || self.0.len() >= POOL_BUFFERS {
            return Some(buffer);
        }
        if buffer.capacity() > 0 {
            self.0.push(buffer);
        }
        None
    }

    /// Moves or copies a delivery into a message with its own buffer.
    pub(crate) fn message(&mut self, delivery: Delivery<'_>) -> Message {
        let body = match delivery.body {
            Body::Frame(bytes) => self.copy(bytes),
            Body::Whole(bytes) => std::mem::take(bytes),
            body @ Body::Posted(_) => self.copy(body.bytes()),
        };
        Message {
            from: delivery.from,
            channel: delivery.channel,
            body,
        }
    }
}
