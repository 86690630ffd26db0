//! Direct messages: written from the caller's memory into the link's ring, where engine and link permit it, and how many of them their
//! receivers have not read.
//!
//! Called by `endpoint::send` and, with `unread`, by who waits for acknowledgements.

use bytes::Bytes;
use tsumuji_link::{Link, LinkAddr, LinkError, Rings};
use tsumuji_proto::{Channel, Direct, Engine, Event, Flow, NodeId, Payload, SendId, SubmitError};

use super::{Drive, UNTRACKED};
use crate::channel::Way;
use crate::clock::Clock;
use crate::error::SendError;

/// A caller that never polls looks for what came after so many direct messages, or so many bytes: it may have been told to stop.
const UNHEARD_MESSAGES: usize = 256;
const UNHEARD_BYTES: usize = 64 << 10;

/// A shorter message is copied into the ring: a call of the kernel costs much by itself.
const REFERENCE_BYTES: usize = 32 << 10;

/// By node: the life of the peer that a session is with, and what was sent to it.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// 0: none, or the link tells of no lives.
    of: Vec<u64>,
    /// Since the last turn.
    unheard_messages: usize,
    unheard_bytes: usize,
}

impl Lives {
    fn of(&self, peer: NodeId) -> Option<u64> {
        let life = self.of.get(usize::from(peer.0)).copied();
        life.filter(|life| *life != 0)
    }

    fn set(&mut self, peer: NodeId, life: u64) {
        let index = usize::from(peer.0);
        if self.of.len() <= index {
            self.of.resize(index + 1, 0);
        }
        self.of[index] = life;
    }

    /// A message has left.
    #[inline]
    fn count(&mut self, bytes: usize) {
        self.unheard_messages += 1;
        self.unheard_bytes += bytes;
    }

    /// A turn was taken.
    #[inline]
    pub(super) fn heard(&mut self) {
        (self.unheard_messages, self.unheard_bytes) = (0, 0);
    }
}

/// What became of a message that was to be sent directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is on its way.
    Whole,
    /// The ring is full for now, or what is in the queue goes first.
    Full,
    /// It is to be submitted.
    No,
}

impl<L: Link, C: Clock> Drive<L, C> {
    /// Direct messages were sent, so many that a turn is due.
    #[inline]
    pub(crate) fn is_deaf(&self) -> bool {
        self.direct.unheard_messages >= UNHEARD_MESSAGES
            || self.direct.unheard_bytes >= UNHEARD_BYTES
    }

    /// Sends a message in two parts past the engine's queue; not a short one in a batch, where it may share a frame.
    #[inline]
    pub(crate) fn send_direct(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: (&[u8], &[u8]),
    ) -> Result<Sent, LinkError> {
        let bytes = message.0.len() + message.1.len();
        let life = self.direct.of(to).filter(|_| self.cork.passes(bytes));
        let Some(life) = life else {
            return Ok(Sent::No);
        };
        let Self {
            link,
            engine,
            table,
            ..
        } = self;
        let (Some(mut direct), Some(addr)) = (engine.direct(to, channel, bytes), table.addr(to))
        else {
            return Ok(Sent::No);
        };
        let (at, counted) = ((addr, life), !channel.is_library());
        if bytes > direct.ring_message_bytes() {
            return Ok(Sent::No);
        }
        let is_sent = if bytes <= direct.frame_message_bytes() {
            let Some(rings) = link.rings_mut() else {
                return Ok(Sent::No);
            };
            let frame = direct.whole(message);
            let is_sent = rings.send_counted(at, counted, frame.parts())?;
            if is_sent {
                direct.sent(&frame);
            }
            is_sent
        } else {
            send_parts(link, at, counted, (direct, message))?
        };
        if !is_sent {
            return Ok(Sent::Full);
        }
        link.flush()?;
        self.direct.count(bytes);
        Ok(Sent::Whole)
    }

    /// Sends a message past the engine's queue: a long shared one stays where it is until its receiver reads it there, if that one can.
    #[inline]
    pub(crate) fn send_past(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: &Payload<'_>,
    ) -> Result<Sent, LinkError> {
        if let Payload::Shared(message) = payload {
            let sent = self.send_reference(to, channel, message)?;
            if sent != Sent::No {
                return Ok(sent);
            }
        }
        self.send_direct(to, channel, payload.parts())
    }

    fn send_reference(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: &Bytes,
    ) -> Result<Sent, LinkError> {
        let bytes = message.len();
        let at = (self.table.addr(to)).zip(self.direct.of(to));
        let Some(at) = at.filter(|_| bytes >= REFERENCE_BYTES) else {
            return Ok(Sent::No);
        };
        let Some(mut direct) = self.engine.direct(to, channel, bytes) else {
            let is_behind = self.engine.is_direct_in_its_turn(to, channel, bytes);
            return Ok(
                if is_behind && reference_room(&mut self.link, at).is_some() {
                    Sent::Full
                } else {
                    Sent::No
                },
            );
        };
        match reference_room(&mut self.link, at) {
            None => return Ok(Sent::No),
            Some(room) if room < bytes => return Ok(Sent::Full),
            Some(_) => {}
        }
        let head = direct.reference_head(bytes);
        let rings = self.link.rings_mut();
        let is_sent = rings
            .map(|rings| rings.send_reference(at, !channel.is_library(), &head, message))
            .transpose()?;
        if is_sent != Some(true) {
            return Ok(Sent::Full);
        }
        direct.referred(bytes);
        self.link.flush()?;
        self.direct.count(bytes);
        Ok(Sent::Whole)
    }

    /// Sends a message past the queue, or queues it. `more`: something follows.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
        more: bool,
    ) -> Result<SendId, SendError> {
        if !notify && !more && self.send_past(to, channel, &payload)? == Sent::Whole {
            return Ok(UNTRACKED);
        }
        self.enqueue(to, channel, payload, notify, more)
    }

    /// Peers are told how much they may refer to at a time; also when the budget has changed.
    pub(crate) fn tell_reference_max(&mut self) {
        if let Some(rings) = self.link.rings_mut() {
            rings.set_reference_max(self.engine.reference_max_bytes());
        }
    }

    /// Gives up what was sent by reference and has been read.
    pub(crate) fn abort_read(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }

    /// Direct messages of the program to that peer which it has not read.
    pub(crate) fn unread(&self, peer: NodeId) -> usize {
        let at = (self.table.addr(peer)).zip(self.direct.of(peer));
        let rings = at.and_then(|at| Some((self.link.rings()?, at)));
        rings.map_or(0, |(rings, at)| rings.unread(at))
    }

    /// The same of all peers.
    pub(crate) fn unread_in_all(&self) -> usize {
        let peers = (0..=u16::MAX).zip(&self.direct.of);
        let met = peers.filter(|(_, life)| **life != 0);
        met.map(|(peer, _)| self.unread(NodeId(peer))).sum()
    }

    /// Keeps in mind to which life of a peer direct messages go; how many of them are lost with a session that has ended.
    #[cold]
    pub(super) fn note_direct(&mut self, event: &Event) -> usize {
        match *event {
            Event::PeerUp { peer, .. } => {
                let addr = self.table.addr(peer);
                let heard = addr.and_then(|addr| self.link.rings()?.generation_heard(addr));
                if let Some(life) = heard {
                    self.direct.set(peer, life);
                }
                self.tell_reference_max();
                0
            }
            Event::PeerDead { peer, .. } => {
                if self.direct.of(peer).is_none() {
                    return 0;
                }
                let is_unsettled = self.engine.take_unsettled(peer);
                let lost = if is_unsettled { self.unread(peer) } else { 0 };
                self.direct.set(peer, 0);
                lost
            }
            _ => 0,
        }
    }
}

impl<L: Link, C: Clock> Way for Drive<L, C> {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn flow(&self, peer: NodeId) -> Option<Flow> {
        let mut flow = self.engine.flow(peer)?;
        let unread = self.unread(peer);
        flow.queued_messages += unread;
        flow.in_flight_frames += unread;
        Some(flow)
    }

    fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
    ) -> Result<(), SubmitError> {
        let direct = if self.is_deaf() {
            Ok(Sent::No) // nobody looks for a word to stop before all of these are sent
        } else {
            self.send_past(to, channel, &payload)
        };
        match direct {
            Ok(Sent::Whole) => return Ok(()),
            Ok(Sent::Full | Sent::No) => {}
            Err(error) => self.failure = Some(error),
        }
        self.engine.submit(to, channel, payload, false).map(drop)
    }
}

/// How many bytes more that life of a peer takes where they lie; `None`: it does not.
fn reference_room<L: Link>(link: &mut L, at: (LinkAddr, u64)) -> Option<usize> {
    link.rings_mut()?.reference_room(at)
}

/// Sends a message of several frames if the link has room for all. Its reader may begin when the first is there.
fn send_parts<L: Link>(
    link: &mut L,
    to: (LinkAddr, u64),
    counted: bool,
    (mut direct, message): (Direct<'_>, (&[u8], &[u8])),
) -> Result<bool, LinkError> {
    let (frames, frame_bytes) = direct.frames(message.0.len() + message.1.len());
    let Some(rings) = link.rings_mut() else {
        return Ok(false);
    };
    if rings.counted_room(to, frame_bytes) < frames {
        return Ok(false);
    }
    for index in 0..frames {
        let frame = direct.part(message, index);
        let is_counted = counted && frame.is_last;
        let rings = link.rings_mut();
        let is_sent = rings.map(|rings| rings.send_counted(to, is_counted, frame.parts()));
        if is_sent.transpose()? != Some(true) {
            return Ok(false); // that life of the peer is over, and what was written with it
        }
        direct.sent(&frame);
        if index == 0 {
            link.flush()?;
        }
    }
    Ok(true)
}
