//! Messages on their way in and out, as the caller sees them.

use crate::posted::Posted;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;
use tsumuji_wire::{Channel, Datagram, NodeId};

/// The bytes of a message handed to `submit`.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Copied into the engine's own memory: two parts that follow each other.
    Copied(&'a [u8], &'a [u8]),
    /// Shared with the program until it is acknowledged or has failed; short ones are copied.
    Shared(Bytes),
}

impl Payload<'_> {
    /// Length of the message.
    #[inline]
    pub fn bytes(&self) -> usize {
        let (head, rest) = self.parts();
        head.len() + rest.len()
    }

    /// The parts of the message, which follow each other.
    #[inline]
    pub fn parts(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Copied(head, rest) => (head, rest),
            Self::Shared(message) => (message, &[]),
        }
    }
}

/// Names a submitted message until it is acknowledged: per peer, each new one greater. One that joins another in its frame shares its name; one
/// whose `Event::Sent` is asked for has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SendId(pub u64);

/// A message that stays with the program while it leaves: it goes along with each call that writes frames, from
/// `Engine::submit_borrowed` to `Engine::keep` or `Engine::cancel`.
///
/// It says whose bytes these are, so that those of another message never leave in the place of one that nobody brings along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borrowed<'a> {
    to: NodeId,
    id: SendId,
    message: &'a [u8],
}

impl<'a> Borrowed<'a> {
    /// Nothing is borrowed.
    pub const NONE: Borrowed<'static> = Borrowed {
        to: NodeId(u16::MAX),
        id: SendId(u64::MAX),
        message: &[],
    };

    /// The message that `Engine::submit_borrowed` named so.
    pub const fn new(to: NodeId, id: SendId, message: &'a [u8]) -> Self {
        Self { to, id, message }
    }

    /// To whom.
    pub const fn to(&self) -> NodeId {
        self.to
    }

    /// Its name.
    pub const fn id(&self) -> SendId {
        self.id
    }

    /// The message.
    pub const fn message(&self) -> &'a [u8] {
        self.message
    }

    /// Those bytes of the message of that name; none of any other.
    #[inline]
    pub(crate) fn part(&self, to: NodeId, id: SendId, place: Range<usize>) -> &'a [u8] {
        if (self.to, self.id) == (to, id) {
            self.message.get(place).unwrap_or_default()
        } else {
            &[]
        }
    }
}

/// A message that arrived.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// Who sent it.
    pub from: NodeId,
    /// Which life of the sender, as `Event::PeerDead` counts them: how many of these were told or wait to be told of what was before it.
    pub session: u64,
    /// The channel it came by.
    pub channel: Channel,
    /// The message.
    pub body: Body<'a>,
}

/// A message's bytes: borrowed from the frame it came in, or assembled from several.
#[derive(Debug)]
pub enum Body<'a> {
    /// Lies in the link's receive buffer; gone when the call returns.
    Frame(&'a [u8]),
    /// Assembled. A receiver that wants to keep it takes it (`core::mem::take`), and may give it back later with
    /// `Engine::recycle`; what is left here is used again at once, while it is still in the caches.
    Whole(&'a mut Vec<u8>),
    /// Assembled in the buffer that `Sink::place` gave. What is left here is given back to `Sink::put_back`.
    Posted(&'a mut Option<Posted>),
}

impl Body<'_> {
    /// The message.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Frame(bytes) => bytes,
            Self::Whole(bytes) => bytes,
            Self::Posted(posted) => in_posted(posted),
        }
    }
}

#[cold]
#[inline(never)] // what it asks for would keep short messages' way from being inlined
fn in_posted(posted: &Option<Posted>) -> &[u8] {
    posted.as_ref().map_or(&[], Posted::message)
}

/// Takes what `Engine::handle_frame` delivers, at once.
pub trait Sink {
    /// Each delivered message counts against the budget until `Engine::release` is told that the program is done with it.
    fn message(&mut self, delivery: Delivery<'_>);
    /// A datagram, of that life of its source (see `Delivery`); not counted against anything.
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>);
    /// A message of so many bytes begins to arrive in several frames, as the next of its channel: a buffer for it, if the program has posted one
    /// that is long enough.
    fn place(&mut self, from: NodeId, channel: Channel, length_bytes: usize) -> Option<Posted> {
        let _ = (from, channel, length_bytes);
        None
    }
    /// A buffer is not needed for the message that it was for.
    fn put_back(&mut self, posted: Posted) {
        drop(posted);
    }
}

/// Why `submit` refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Larger than the peer takes.
    #[error("message is {size} bytes; {peer} takes at most {limit}")]
    TooLarge {
        /// Of the message.
        size: usize,
        /// The peer's limit.
        limit: usize,
        /// To whom.
        peer: NodeId,
    },
    /// `Config::send_queue_bytes` are waiting already.
    #[error("queue to {peer} is full; wait for Event::Writable")]
    QueueFull {
        /// To whom.
        peer: NodeId,
    },
    /// There is no memory for a copy of it. Whatever was queued before and is acknowledged gives some back.
    #[error("no memory for a copy of {size} bytes")]
    NoMemory {
        /// Of the message.
        size: usize,
    },
    /// So many channels carry messages to it already in this session; each is remembered until it ends.
    #[error("{limit} channels to {peer} are in use; use one of them again")]
    TooManyChannels {
        /// To whom.
        peer: NodeId,
        /// In one session.
        limit: usize,
    },
    /// Messages do not go by the channels of datagrams, which programs never name.
    #[error("the channel is of datagrams; messages are ordered or unordered")]
    DatagramChannel,
    /// Declared dead.
    #[error("{peer} was declared dead")]
    PeerDead {
        /// To whom.
        peer: NodeId,
    },
    /// Never added.
    #[error("{peer} is not a member of this cluster")]
    UnknownPeer {
        /// To whom.
        peer: NodeId,
    },
}
