//! Messages to and from the engine, as its driver sees them.

use crate::posted::Posted;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;
use tsumuji_wire::{Channel, Datagram, NodeId};

/// Bytes of a message to submit.
#[derive(Debug, Clone)]
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

/// Id of a submitted message until it is acknowledged; ids to one peer ascend. A message that is joined to another in a bundle has the id of
/// the other; a tracked message has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SendId(pub u64);

/// A borrowed message: its bytes stay with the program while it leaves. The driver passes it with each call that writes frames, from
/// `Engine::submit_borrowed` to `Engine::retain` or `Engine::cancel`.
///
/// It names its message, so that bytes of another message never leave in the place of one that is not passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Borrowed<'a> {
    to: NodeId,
    id: SendId,
    message: &'a [u8],
}

impl<'a> Borrowed<'a> {
    /// No message is borrowed.
    pub const NONE: Borrowed<'static> = Borrowed {
        to: NodeId(u16::MAX),
        id: SendId(u64::MAX),
        message: &[],
    };

    /// The message for which `Engine::submit_borrowed` returned `id`.
    pub const fn new(to: NodeId, id: SendId, message: &'a [u8]) -> Self {
        Self { to, id, message }
    }

    /// Receiver of the message.
    pub const fn to(&self) -> NodeId {
        self.to
    }

    /// Id of the message.
    pub const fn id(&self) -> SendId {
        self.id
    }

    /// Bytes of the message.
    pub const fn message(&self) -> &'a [u8] {
        self.message
    }

    /// Bytes of the range `place` if this is the named message; none otherwise.
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
    /// Sender of the message.
    pub from: NodeId,
    /// Number of the session, from 0 for each peer: so many `Event::PeerDead` of the sender concern earlier sessions, polled or still to be polled.
    pub session: u64,
    /// Channel of the message.
    pub channel: Channel,
    /// Bytes of the message.
    pub body: Body<'a>,
}

/// Bytes of a message: borrowed from the frame that it came in, or assembled from several.
#[derive(Debug)]
pub enum Body<'a> {
    /// In the link's receive buffer; valid during the call only.
    Frame(&'a [u8]),
    /// Assembled. A receiver that keeps it takes it (`core::mem::take`), and may return it later by `Engine::recycle`; a buffer that is left here is
    /// reused at once, while it is still in the caches.
    Whole(&'a mut Vec<u8>),
    /// Assembled in the buffer that `Sink::place` returned. A buffer that is left here goes to `Sink::put_back`.
    Posted(&'a mut Option<Posted>),
}

impl Body<'_> {
    /// Bytes of the message.
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
#[inline(never)] // inlined, it would keep the path of short messages from being inlined
fn in_posted(posted: &Option<Posted>) -> &[u8] {
    posted.as_ref().map_or(&[], Posted::message)
}

/// Receives what `Engine::handle_frame` delivers, before that returns.
pub trait Sink {
    /// Takes a message. It counts against the budget until `Engine::release` is called for it.
    fn message(&mut self, delivery: Delivery<'_>);
    /// Takes a datagram of that session (see `Delivery`); it does not count against the budget.
    fn datagram(&mut self, session: u64, datagram: Datagram<'_>);
    /// Returns a posted buffer for a message of `length_bytes` that begins to arrive in several frames, if the program has posted one that is long
    /// enough for it. Called in the order of the channel's messages.
    fn place(&mut self, from: NodeId, channel: Channel, length_bytes: usize) -> Option<Posted> {
        let _ = (from, channel, length_bytes);
        None
    }
    /// Takes a posted buffer back that is not needed for its message.
    fn put_back(&mut self, posted: Posted) {
        drop(posted);
    }
}

/// Why a message was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The message is larger than the peer accepts.
    #[error("message is {size} bytes; {peer} takes at most {limit}")]
    TooLarge {
        /// Length of the message.
        size: usize,
        /// Largest message that the peer accepts.
        limit: usize,
        /// The peer.
        peer: NodeId,
    },
    /// The queue to the peer is full: `Config::send_queue_bytes` wait, or a message is borrowed already.
    #[error("queue to {peer} is full; wait for Event::Writable")]
    QueueFull {
        /// The peer.
        peer: NodeId,
    },
    /// There is no memory for a copy of the message. Acknowledgements of queued messages release some.
    #[error("no memory for a copy of {size} bytes")]
    NoMemory {
        /// Length of the message.
        size: usize,
    },
    /// As many channels as allowed have carried messages to the peer in this session.
    #[error("{limit} channels to {peer} are in use; use one of them again")]
    TooManyChannels {
        /// The peer.
        peer: NodeId,
        /// Largest number of channels in one session.
        limit: usize,
    },
    /// The channel is of class datagram; datagrams are submitted by another call.
    #[error("the channel is of datagrams; messages are ordered or unordered")]
    DatagramChannel,
    /// The peer was declared dead, or this node has closed.
    #[error("{peer} was declared dead")]
    PeerDead {
        /// The peer.
        peer: NodeId,
    },
    /// The peer was never added.
    #[error("{peer} is not a member of this cluster")]
    UnknownPeer {
        /// The peer.
        peer: NodeId,
    },
}
