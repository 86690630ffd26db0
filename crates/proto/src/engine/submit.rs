//! Submitting messages: admission, queueing, borrowing, and their state afterwards.
//!
//! `transmit` and `peer::send` decide what leaves, and when.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::{Engine, peer_of};
use crate::config::Config;
use crate::event::Queued;
use crate::message::{Borrowed, Payload, SendId, SubmitError};
use crate::peer::Peer;
use crate::peer::places::CHANNELS_MAX;
use crate::peer::queue::BorrowedState;
use crate::peer::session::Phase;
use crate::tuning::TUNING;
use tsumuji_wire::{Channel, NodeId};

impl Engine {
    /// Queues a message. `notify` asks for `Event::Sent` when it is acknowledged whole.
    #[inline]
    pub fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        if channel.is_datagram() {
            return Err(SubmitError::DatagramChannel);
        }
        let size = payload.bytes();
        let peer = admit(
            &mut self.peers,
            &self.shared.config,
            self.closed,
            (to, channel),
            (size, size),
        )?;
        let (queue, pool) = (&mut peer.send.queue, &mut self.shared.pool);
        let submitted = match payload {
            Payload::Copied(head, rest) => queue.push_copied(channel, (head, rest), notify, pool),
            Payload::Shared(message) => {
                let copied = if size < TUNING.messages.shared_bytes {
                    queue.push_copied(channel, (&message, &[]), notify, pool)
                } else {
                    None
                };
                copied.or_else(|| Some(queue.push_shared(channel, message, notify)))
            }
        };
        let Some(id) = submitted else {
            return Err(SubmitError::NoMemory { size });
        };
        push_ready(&mut self.ready, peer);
        Ok(id)
    }

    /// Queues a message of `length_bytes` whose bytes stay with the program: it passes them with each `plan` and `batch` until
    /// `retain` or `cancel`, whatever the message's length. Other messages of its priority to the same peer wait behind it. Each peer has one
    /// borrowed message at most: `QueueFull` while there is another, and then no `Event::Writable` follows.
    pub fn submit_borrowed(
        &mut self,
        to: NodeId,
        channel: Channel,
        length_bytes: usize,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        if channel.is_datagram() {
            return Err(SubmitError::DatagramChannel);
        }
        let config = &self.shared.config;
        let peer = admit(
            &mut self.peers,
            config,
            self.closed,
            (to, channel),
            (length_bytes, 0),
        )?;
        let submitted = peer
            .send
            .queue
            .push_borrowed(to, channel, length_bytes, notify);
        push_ready(&mut self.ready, peer);
        submitted.ok_or(SubmitError::QueueFull { peer: to })
    }

    /// Bytes of the borrowed message that have not left; `None`: it is acknowledged whole, even if the peer has died since. An error if it failed.
    /// Not to be called after `retain` or `cancel`: the answer would be `PeerDead`, whether the peer is alive or not.
    pub fn unsent_bytes(&self, borrowed: &Borrowed<'_>) -> Result<Option<usize>, SubmitError> {
        let to = borrowed.to();
        let Some(peer) = self.peer(to) else {
            return Err(SubmitError::UnknownPeer { peer: to });
        };
        let (size, limit) = (borrowed.message().len(), peer.message_limit_bytes);
        match peer.send.queue.borrowed_state(borrowed) {
            BorrowedState::Unsent(bytes) => Ok(Some(bytes)),
            BorrowedState::Acknowledged => Ok(None),
            BorrowedState::Gone if peer.is_up() && size > limit => Err(SubmitError::TooLarge {
                size,
                limit,
                peer: to,
            }),
            BorrowedState::Gone => Err(SubmitError::PeerDead { peer: to }),
        }
    }

    /// Ends the borrowing of a message: the engine copies the parts that are not acknowledged. `false`: there is no memory, and the message is still
    /// borrowed.
    ///
    /// # Panics
    /// If `borrowed` has another length than the message had when it was submitted.
    pub fn retain(&mut self, borrowed: &Borrowed<'_>) -> bool {
        let Some(peer) = peer_of(&mut self.peers, borrowed.to()) else {
            return true;
        };
        peer.send.queue.retain(borrowed, &mut self.shared.pool)
    }

    /// Cancels the borrowed message. `false`: part of it has left, so it must be retained.
    pub fn cancel(&mut self, borrowed: &Borrowed<'_>) -> bool {
        self.peer_mut(borrowed.to())
            .is_some_and(|peer| peer.send.queue.cancel(borrowed))
    }

    /// Messages to a peer that are not acknowledged whole, and their bytes held here: the same as in `flow`, but cheaper. `None`: unknown peer.
    #[inline]
    pub fn queued(&self, to: NodeId) -> Option<Queued> {
        let queue = &self.peer(to)?.send.queue;
        Some(Queued {
            messages: queue.queued_messages,
            bytes: queue.queued_bytes,
            waits: queue.has_backlog(),
        })
    }

    /// Whether the queue to a peer has room for a message of `bytes` more; memory may still be short.
    #[inline]
    pub fn has_room(&self, to: NodeId, bytes: usize) -> bool {
        let limit = self.shared.config.send_queue_bytes;
        self.peer(to)
            .is_some_and(|peer| peer.send.queue.has_room(bytes, limit))
    }

    /// Reliable messages of the program to a peer that are not acknowledged whole; datagrams and messages of libraries do not count.
    pub fn promised_messages(&self, to: NodeId) -> usize {
        self.peer(to)
            .map_or(0, |peer| peer.send.queue.promised_messages())
    }

    /// Whether the message is acknowledged whole, or has failed (its session ended, or it was too large). A message with `notify` that waits at the peer
    /// for an earlier one of an ordered channel is not.
    pub fn is_acknowledged(&self, to: NodeId, id: SendId) -> bool {
        self.peer(to)
            .is_none_or(|peer| peer.send.queue.is_acknowledged(id))
    }
}

/// The peer, if a message of `size` bytes, `held_bytes` of them held in the queue, may be queued to it on that channel.
#[inline(always)] // as Queue::acknowledge
pub(super) fn admit<'a>(
    peers: &'a mut [Option<Box<Peer>>],
    config: &Config,
    closed: bool,
    (to, channel): (NodeId, Channel),
    (size, held_bytes): (usize, usize),
) -> Result<&'a mut Peer, SubmitError> {
    let Some(peer) = peer_of(peers, to) else {
        return Err(SubmitError::UnknownPeer { peer: to });
    };
    if closed || peer.session.phase == Phase::Dead {
        return Err(SubmitError::PeerDead { peer: to });
    }
    if size > peer.message_limit_bytes {
        return Err(SubmitError::TooLarge {
            size,
            limit: peer.message_limit_bytes,
            peer: to,
        });
    }
    if !peer.send.queue.admits(channel) {
        return Err(SubmitError::TooManyChannels {
            peer: to,
            limit: CHANNELS_MAX,
        });
    }
    let waits_for_none = channel.id() == Channel::CONTROL_ID;
    if !waits_for_none
        && !peer
            .send
            .queue
            .has_room(held_bytes, config.send_queue_bytes)
    {
        peer.wants_writable = true;
        return Err(SubmitError::QueueFull { peer: to });
    }
    Ok(peer)
}

/// Puts the peer into `ready`; whether something may leave is decided when it is at the head.
#[inline(always)] // as Queue::acknowledge
pub(super) fn push_ready(ready: &mut VecDeque<u16>, peer: &mut Peer) {
    if !peer.queued && peer.is_up() {
        peer.queued = true;
        ready.push_back(peer.id.0);
    }
}
