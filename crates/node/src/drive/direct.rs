//! Direct messages: written from the caller's memory into the link's ring, where engine and link permit it, and the count of those that
//! receivers have not read.
//!
//! Called by `endpoint::send` and, with `unread`, by calls that wait for acknowledgements.

use bytes::Bytes;
use tsumuji_link::{Frame, Link, LinkAddr, LinkError, MayHaveRings, Process, Rings};
use tsumuji_proto::{Channel, Direct, Engine, Event, Flow, NodeId, Pace, Payload, SubmitError};

use super::Drive;
use crate::channel::Way;
use crate::clock::Clock;
use crate::membership::Member;

/// After that many direct messages or bytes without a poll a sender polls: it may have been told to stop.
const UNHEARD_MESSAGES: usize = 256;
const UNHEARD_BYTES: usize = 64 << 10;

/// By node: the peer's process in the present session, for direct messages and to learn of its end. Also counts direct messages since the last poll.
#[derive(Debug, Default)]
pub(super) struct Processes {
    /// `None`: no session, or the link has no rings to it.
    of: Vec<Option<Process>>,
    /// Direct messages since the last poll.
    unheard_messages: usize,
    unheard_bytes: usize,
}

impl Processes {
    #[inline]
    pub(super) fn of(&self, peer: NodeId) -> Option<Process> {
        self.of.get(usize::from(peer.0)).copied().flatten()
    }

    /// Peers whose process is known, with it.
    pub(super) fn met(&self) -> impl Iterator<Item = (NodeId, Process)> {
        let all = (0..=u16::MAX).map(NodeId).zip(&self.of);
        all.filter_map(|(node, process)| Some((node, (*process)?)))
    }

    fn set(&mut self, peer: NodeId, process: Option<Process>) {
        let index = usize::from(peer.0);
        if self.of.len() <= index {
            self.of.resize(index + 1, None);
        }
        self.of[index] = process;
    }

    /// Counts a message that has left.
    #[inline]
    fn count(&mut self, bytes: usize) {
        self.unheard_messages += 1;
        self.unheard_bytes += bytes;
    }

    /// Resets the counts after a poll.
    #[inline]
    pub(super) fn heard(&mut self) {
        (self.unheard_messages, self.unheard_bytes) = (0, 0);
    }
}

/// Result of sending a message directly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is in the ring.
    Whole,
    /// The ring is full for now, or messages in the queue go first.
    Full,
    /// It must be submitted to the engine.
    No,
}

impl<L: MayHaveRings, C: Clock> Drive<L, C> {
    /// Whether so many direct messages were sent that a poll is needed.
    #[inline]
    pub(crate) fn is_deaf(&self) -> bool {
        self.direct.unheard_messages >= UNHEARD_MESSAGES
            || self.direct.unheard_bytes >= UNHEARD_BYTES
    }

    /// Sends a message in two parts past the engine's queue. In a batch short messages take the queue, where they may share a frame.
    #[inline]
    pub(crate) fn send_direct(
        &mut self,
        to: NodeId,
        channel: Channel,
        message: (&[u8], &[u8]),
    ) -> Result<Sent, LinkError> {
        let bytes = message.0.len() + message.1.len();
        let process = self.direct.of(to).filter(|_| self.cork.passes(bytes));
        let Some(at) = process else {
            return Ok(Sent::No);
        };
        let Self { link, engine, .. } = self;
        let Some(mut direct) = engine.direct(to, channel, bytes) else {
            return Ok(Sent::No);
        };
        let counted = !channel.is_library();
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

    /// Sends a message past the engine's queue; a long shared one by reference, if its receiver can read it in this process.
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
        let process = self.direct.of(to);
        let Some(at) = process.filter(|_| bytes >= self.tuning.reference_bytes) else {
            return Ok(Sent::No);
        };
        let Some(mut direct) = self.engine.direct(to, channel, bytes) else {
            let is_behind = self.engine.is_direct_behind_queue(to, channel, bytes);
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

    /// Tells peers how many bytes they may send by reference at a time, after hello and when the budget has changed.
    pub(crate) fn tell_reference_max(&mut self) {
        if let Some(rings) = self.link.rings_mut() {
            rings.set_reference_max(self.engine.reference_max_bytes());
        }
    }

    /// Drops messages that were sent by reference and have been read.
    pub(crate) fn release_read(&mut self) -> Result<(), LinkError> {
        self.link.flush()
    }

    /// The program's direct messages to that peer that it has not read.
    pub(crate) fn unread(&self, peer: NodeId) -> usize {
        let process = self.direct.of(peer);
        let rings = process.and_then(|of| Some((self.link.rings()?, of)));
        rings.map_or(0, |(rings, of)| rings.unread(of))
    }

    /// The same for all peers.
    pub(crate) fn unread_in_all(&self) -> usize {
        (self.direct.met()).map(|(peer, _)| self.unread(peer)).sum()
    }

    /// Records the process of a peer; returns how many direct messages to it are lost with a session that ended.
    #[cold]
    pub(super) fn note_direct(&mut self, event: &Event) -> usize {
        match *event {
            Event::PeerUp { peer, .. } => {
                let addr = self.table.addr(peer);
                let heard = addr.and_then(|addr| self.link.rings()?.heard(addr));
                if heard.is_some() {
                    self.direct.set(peer, heard);
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
                self.direct.set(peer, None);
                lost
            }
            _ => 0,
        }
    }
}

impl<L: MayHaveRings, C: Clock> Way for Drive<L, C> {
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
            Ok(Sent::No) // a stop of the channel would be seen only after all of these
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

    fn meet(&mut self, member: &Member, addr: LinkAddr, pace: Pace) {
        self.meet_member(member, addr, pace);
    }

    fn send_frame(&mut self, to: LinkAddr, frame: &[u8]) {
        // The asking process asks again if the answer does not leave.
        let sent = self
            .link
            .send_one(to, Frame::whole(frame))
            .and_then(|_| self.link.flush());
        if let Err(error) = sent {
            tracing::debug!(%error, %to, "an answer was not sent");
        }
    }
}

/// How many bytes more that process reads by reference; `None`: it does not.
fn reference_room<L: MayHaveRings>(link: &mut L, at: Process) -> Option<usize> {
    link.rings_mut()?.reference_room(at)
}

/// Sends a message of several frames if the link has room for all. Its reader may begin with the first.
fn send_parts<L: MayHaveRings>(
    link: &mut L,
    to: Process,
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
            return Ok(false); // that process has ended, and its frames are lost
        }
        direct.sent(&frame);
        if index == 0 {
            link.flush()?;
        }
    }
    Ok(true)
}
