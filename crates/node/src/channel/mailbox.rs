//! What arrived on a channel and was not taken yet: messages in order of arrival, to be taken from anyone or from one peer, and
//! best-effort frames.
//!
//! Filled and emptied by `channel`. Messages are bounded by who is charged for them (the channel's budget, or the endpoint's); shares by the
//! limits below.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tsumuji_proto::{Body, Delivery, Lane, NodeId, Share};

use crate::handler::{Context, Handler};

/// A message taken by `recv`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: NodeId,
    /// The lane it came by.
    pub lane: Lane,
    /// The message. `Endpoint::recycle` takes the buffer back.
    pub body: Vec<u8>,
}

/// Whose budget a message counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// The endpoint's: peers have less credit while it is there.
    Endpoint,
    /// Its channel's.
    Channel,
    /// Its channel's beyond the budget: it was on the way when its sender was told to stop.
    Overdraft,
}

/// A message that waits.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) message: Message,
    /// As in `Delivery`.
    pub(crate) life: u64,
    pub(crate) charge: Charge,
}

/// Shares kept of one channel, and their bytes.
const SHARES_LIMIT: usize = 4096;
const SHARE_BYTES_LIMIT: usize = 8 << 20;

/// Message buffers kept for reuse, and the capacity beyond which one goes to the engine's pool instead.
const POOL_BUFFERS: usize = 64;
const POOL_BUFFER_BYTES: usize = 64 << 10;

/// Places in the order of arrival whose message was taken ahead of its turn, before they are cleared away.
const TAKEN_AHEAD: usize = 64;

/// Messages of one peer, oldest first.
#[derive(Debug, Default)]
struct Line {
    messages: VecDeque<Stored>,
    /// So many of its next places in the order are of messages that were taken ahead of their turn.
    ahead: usize,
}

/// Messages that wait.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    /// Whose message came when. Invariant: of each peer as many as its line has messages, and as were taken ahead.
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

    /// The next message of that peer, or of whoever's came first.
    pub(crate) fn next(&mut self, from: Option<NodeId>) -> Option<&Message> {
        if self.messages == 0 {
            return None;
        }
        let from = from.or_else(|| self.first())?;
        let line = self.lines.get(&from)?;
        line.messages.front().map(|stored| &stored.message)
    }

    /// Takes it.
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

    /// Whose message is the oldest; what was taken ahead has no place any more.
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

    /// Takes all that meet the condition, in order of arrival.
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

/// Which of the shares that nobody took yet are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Keeps {
    /// The newest of each source, port and start.
    #[default]
    Newest,
    /// Each: whose places say something else at each lap.
    All,
}

/// Best-effort frames that wait, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Stash {
    keeps: Keeps,
    shares: VecDeque<StoredShare>,
    places: HashMap<ShareKey, u64>,
    /// Number of the first in `shares`.
    first: u64,
    bytes: usize,
    most: Most,
}

/// What a stash may hold.
#[derive(Debug)]
struct Most {
    shares: usize,
    bytes: usize,
}

impl Default for Most {
    fn default() -> Self {
        Self {
            shares: SHARES_LIMIT,
            bytes: SHARE_BYTES_LIMIT,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ShareKey {
    source: NodeId,
    port: u16,
    start: u32,
}

#[derive(Debug)]
struct StoredShare {
    key: ShareKey,
    life: u64,
    incarnation: u32,
    epoch: u32,
    lap: u32,
    payload: Vec<u8>,
}

impl StoredShare {
    fn as_share(&self) -> Share<'_> {
        Share {
            source: self.key.source,
            incarnation: self.incarnation,
            port: self.key.port,
            epoch: self.epoch,
            lap: self.lap,
            start: self.key.start,
            payload: &self.payload,
        }
    }
}

impl Stash {
    pub(crate) fn new(keeps: Keeps) -> Self {
        Self {
            keeps,
            ..Self::default()
        }
    }

    /// It may hold no more than that.
    pub(crate) fn limit(&mut self, shares: usize, bytes: usize) {
        self.most = Most { shares, bytes };
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// `false`: there is no room.
    pub(crate) fn keep(&mut self, life: u64, share: &Share<'_>, buffers: &mut Buffers) -> bool {
        let key = ShareKey {
            source: share.source,
            port: share.port,
            start: share.start,
        };
        let known = (self.keeps == Keeps::Newest)
            .then(|| self.places.get(&key))
            .flatten();
        let held = known.and_then(|number| self.shares.get_mut((number - self.first) as usize));
        if let Some(held) = held {
            if is_older(share, held) {
                return true;
            }
            let bytes = self.bytes - held.payload.len() + share.payload.len();
            if bytes > self.most.bytes {
                return false;
            }
            self.bytes = bytes;
            held.payload.clear();
            held.payload.extend_from_slice(share.payload);
            (held.life, held.incarnation, held.epoch, held.lap) =
                (life, share.incarnation, share.epoch, share.lap);
            return true;
        }
        let bytes = self.bytes + share.payload.len();
        if self.shares.len() >= self.most.shares || bytes > self.most.bytes {
            return false;
        }
        self.bytes = bytes;
        if self.keeps == Keeps::Newest {
            (self.places).insert(key, self.first + self.shares.len() as u64);
        }
        self.shares.push_back(StoredShare {
            key,
            life,
            incarnation: share.incarnation,
            epoch: share.epoch,
            lap: share.lap,
            payload: buffers.copy(share.payload),
        });
        true
    }

    /// Gives all to the handler; returns how many.
    pub(crate) fn hand_over(
        &mut self,
        handler: &mut (impl Handler + ?Sized),
        context: &mut Context<'_>,
        buffers: &mut Buffers,
    ) -> usize {
        let count = self.shares.len();
        while let Some(stored) = self.shares.pop_front() {
            self.first += 1;
            let share = stored.as_share();
            context.is_of(stored.life, &share);
            handler.share(context, share);
            buffers.give(stored.payload);
        }
        self.places.clear();
        self.bytes = 0;
        count
    }

    /// Takes all of one port.
    pub(crate) fn move_to(&mut self, port: u16, other: &mut Self, buffers: &mut Buffers) {
        let (mine, theirs): (VecDeque<_>, _) =
            (self.shares.drain(..)).partition(|stored| stored.key.port != port);
        self.places.clear();
        self.bytes = 0;
        for (shares, stash) in [(mine, &mut *self), (theirs, other)] {
            for stored in shares {
                let share = stored.as_share();
                stash.keep(stored.life, &share, buffers);
                buffers.give(stored.payload);
            }
        }
    }
}

/// Of the same life of its source, and of an earlier epoch or lap (both wrap).
fn is_older(share: &Share<'_>, held: &StoredShare) -> bool {
    let behind = |new: u32, old: u32| (new.wrapping_sub(old)).cast_signed() < 0;
    share.incarnation == held.incarnation
        && (behind(share.epoch, held.epoch)
            || share.epoch == held.epoch && behind(share.lap, held.lap))
}

/// Buffers for copies of what arrives, used again.
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

    /// Takes a buffer back; returns it if there are enough, or if it is too large for copies.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) -> Option<Vec<u8>> {
        if buffer.capacity() > POOL_BUFFER_BYTES || self.0.len() >= POOL_BUFFERS {
            return Some(buffer);
        }
        if buffer.capacity() > 0 {
            self.0.push(buffer);
        }
        None
    }

    /// What is delivered, in a buffer of its own.
    pub(crate) fn message(&mut self, delivery: Delivery<'_>) -> Message {
        let body = match delivery.body {
            Body::Frame(bytes) => self.copy(bytes),
            Body::Whole(bytes) => std::mem::take(bytes),
            body @ Body::Posted(_) => self.copy(body.bytes()),
        };
        Message {
            from: delivery.from,
            lane: delivery.lane,
            body,
        }
    }
}
