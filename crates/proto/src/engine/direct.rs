//! Direct messages: over a link that keeps frames in order, loses none between live processes, and tells which were read, a message
//! that fits the link's ring needs no packet number, credit, acknowledgement or timer. The ring is the window.
//!
//! A driver calls `direct` before it submits, and gives the resulting frames to the link; it submits the message if the ring has no room. Messages
//! that are too long, tracked, paced or behind queued ones go by packet numbers. A message by reference is one frame of any length: only its
//! head passes the ring, and the receiver reads the payload from the sender's memory.
//!
//! Invariants: a direct message leaves only while nothing numbered to its peer is unacknowledged, so that none overtakes another. The
//! messages that honest peers send after half of the budget is used, until they heed the stop, fit the headroom kept for them.

use super::placement::Guess;
use super::receive::hand_over;
use super::{Engine, Shared, peer_of};
use crate::config::{Config, PeerLink};
use crate::counters::{Counters, Drop};
use crate::memory::charge;
use crate::message::{Body, Delivery, Sink};
use crate::peer::Peer;
use crate::peer::direct::{Arriving, Counts, Talk};
use crate::peer::reassembly::{Assembled, Reassembly};
use crate::posted::{OutOfMemory, Posted};
use crate::time::Instant;
use crate::tuning::TUNING;
use alloc::boxed::Box;
use tsumuji_wire::{Channel, DATA_HEADER_BYTES, Data, NodeId, flags, parse_data_head};

/// Headroom for each peer, in rings. An empty message takes as much of a ring as of the budget, other short ones take more of the ring. The second
/// ring is for what a peer sends before it sees that it is to stop.
pub(super) const HEADROOM_RINGS: usize = 2;

/// Additional headroom, in rings, for the messages by reference of each peer, if it is not too much for the budget.
const REFERENCE_RINGS: usize = 2;

/// Direct messages beyond this many rings, plus what a driver takes in before the stop is sent, are dropped: no honest peer sends so much after it
/// was told to stop.
const UNASKED_RINGS: usize = 2 * (HEADROOM_RINGS + REFERENCE_RINGS);

/// More frames than a driver takes in before it sends pending acknowledgements; at most one of them is a message by reference.
const POLL_FRAMES: usize = 128;

/// Charged bytes after which direct messages of a stopped peer are dropped.
pub(super) fn unasked_bytes(config: &Config, link: &PeerLink) -> usize {
    UNASKED_RINGS * config.ring_bytes + POLL_FRAMES * link.frame_bytes as usize
}

/// Permission to send one message directly, and the means to build its frames.
#[derive(Debug)]
pub struct Direct<'a> {
    peer: &'a mut Peer,
    counts: &'a mut Counts,
    counters: &'a mut Counters,
    me: NodeId,
    channel: Channel,
    frame_bytes: usize,
    ring_bytes: usize,
}

/// A frame of a direct message; its payload may be in two parts.
#[derive(Debug)]
pub struct DirectFrame<'m> {
    head: [u8; DATA_HEADER_BYTES],
    payload: (&'m [u8], &'m [u8]),
    /// Whether it is the last frame of its message.
    pub is_last: bool,
}

impl DirectFrame<'_> {
    /// Head and payload parts, in order.
    #[inline]
    pub fn parts(&self) -> [&[u8]; 3] {
        [&self.head, self.payload.0, self.payload.1]
    }
}

impl Direct<'_> {
    /// A message of at most this length leaves as one frame, by `whole`.
    #[inline]
    pub fn frame_message_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// A message longer than this does not go through the ring.
    pub fn ring_message_bytes(&self) -> usize {
        self.frame_bytes
            .max(self.ring_bytes / TUNING.messages.ring_divisor)
    }

    /// Number of frames of a message longer than one frame, and length of the largest frame.
    pub fn frames(&self, message_bytes: usize) -> (usize, usize) {
        let part_bytes = self.part_bytes();
        let frames = message_bytes.div_ceil(part_bytes);
        (frames, DATA_HEADER_BYTES + part_bytes)
    }

    fn part_bytes(&self) -> usize {
        self.frame_bytes.min(TUNING.messages.part_bytes)
    }

    /// Frame `index` of a message of several, which must all be sent in order, with no other frame between them.
    pub fn part<'m>(&self, (head, rest): (&'m [u8], &'m [u8]), index: usize) -> DirectFrame<'m> {
        let length = head.len() + rest.len();
        let start = (index * self.part_bytes()).min(length);
        let end = length.min(start + self.part_bytes());
        let cut = |at: usize| (at.min(head.len()), at.saturating_sub(head.len()));
        let ((from, rest_from), (to, rest_to)) = (cut(start), cut(end));
        let payload = (&head[from..to], &rest[rest_from..rest_to]);
        self.frame(payload, (start, length))
    }

    /// The frame of a message that fits one: `head` and `rest` are its two parts.
    #[inline]
    pub fn whole<'m>(&self, message: (&'m [u8], &'m [u8])) -> DirectFrame<'m> {
        self.frame(message, (0, message.0.len() + message.1.len()))
    }

    /// Head of a message that is sent by reference: the receiver reads the payload from the sender's memory.
    pub fn reference_head(&self, message_bytes: usize) -> [u8; DATA_HEADER_BYTES] {
        self.data((0, message_bytes)).head_before(0)
    }

    #[inline]
    fn frame<'m>(
        &self,
        payload: (&'m [u8], &'m [u8]),
        (offset, length): (usize, usize),
    ) -> DirectFrame<'m> {
        let payload_bytes = payload.0.len() + payload.1.len();
        DirectFrame {
            head: self
                .data((offset, length))
                .head_before(payload_bytes as u16), // `direct` and `part_bytes` admit no more
            payload,
            is_last: offset + payload_bytes == length,
        }
    }

    #[inline]
    fn data(&self, (offset, length): (usize, usize)) -> Data<'static> {
        Data {
            source: self.me,
            destination: self.peer.id,
            flags: flags::DIRECT,
            session: self.peer.session.outgoing,
            number: 0,
            ack: 0,
            credit: 0,
            message: 0,
            offset: offset as u32, // no ring holds 4 GiB
            length: length as u32,
            floor_delta: 0,
            channel: self.channel,
            ack_delay: 0,
            payload: &[],
        }
    }

    /// Counts a frame that the link has taken.
    #[inline]
    pub fn sent(&mut self, frame: &DirectFrame<'_>) {
        let [head, front, back] = frame.parts();
        self.count(frame.is_last, head.len() + front.len() + back.len());
    }

    /// Counts a message by reference of `message_bytes` whose head the link has taken.
    pub fn referred(&mut self, message_bytes: usize) {
        self.count(true, DATA_HEADER_BYTES + message_bytes);
    }

    #[inline]
    fn count(&mut self, is_last: bool, bytes: usize) {
        if is_last {
            self.peer.send.queue.pass_by(self.channel);
            self.counts.send(self.channel);
            self.counters.direct_messages += 1;
        }
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += bytes as u64;
    }
}

impl Engine {
    /// Permission for a message of `bytes` on that channel, if it may leave directly now, through the ring or by reference; `None`: submit it.
    #[inline]
    pub fn direct(&mut self, to: NodeId, channel: Channel, bytes: usize) -> Option<Direct<'_>> {
        let peer = peer_of(&mut self.peers, to)?;
        let (frame_bytes, ring_bytes) = (
            peer.send.queue.fragment_bytes,
            self.shared.config.ring_bytes,
        );
        let may = peer.send.is_idle()
            && peer.may_take_directly(channel, bytes, ring_bytes)
            && !self.closed;
        let counts = self.shared.direct.get_mut(usize::from(to.0))?;
        may.then_some(Direct {
            peer,
            counts,
            counters: &mut self.shared.counters,
            me: self.shared.config.me,
            channel,
            frame_bytes,
            ring_bytes,
        })
    }

    /// Whether the message could leave directly if no queued one were before it.
    pub fn is_direct_behind_queue(&self, to: NodeId, channel: Channel, bytes: usize) -> bool {
        self.peer(to).is_some_and(|peer| {
            peer.may_take_directly(channel, bytes, self.shared.config.ring_bytes)
                && !peer.send.is_idle()
                && !self.closed
        })
    }

    /// Something waits to be written, or an event waits for `poll_event`.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.shared.events.is_empty() || self.datagrams.has_some()
    }

    /// Whether the ended session left direct messages of which only the link knows how many were read. True once for each such session.
    pub fn take_unsettled(&mut self, peer: NodeId) -> bool {
        let Some(peer) = self.peer_mut(peer) else {
            return false;
        };
        let is_unsettled = peer.direct.is(Talk::UNSETTLED);
        peer.direct.set(Talk::UNSETTLED, false);
        is_unsettled
    }

    /// Handles a direct frame. `PLACED`: as for `handle_data`.
    #[inline(never)] // keeps its state out of the path of numbered frames
    pub(super) fn handle_direct<const PLACED: bool>(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        payload_bytes: usize,
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        let (peer, shared, _) =
            self.find(now, (data.source, data.destination), Some(data.session))?;
        let length = data.length as usize;
        if !is_legal(data, peer, shared) {
            return Err(Drop::Malformed);
        }
        let most_bytes = unasked_bytes(&shared.config, &peer.link);
        let Some(counts) = shared.direct.get_mut(usize::from(data.source.0)) else {
            return Err(Drop::Malformed);
        };
        let is_asked = peer.direct.is(Talk::OPEN);
        let is_foreseen = (counts.arriving.as_deref()).is_some_and(|message| message.begins(data));
        if data.offset == 0 && !is_foreseen {
            if PLACED || counts.arriving.is_some() {
                return Err(Drop::Malformed); // nothing was placed, or the previous message is incomplete
            }
            if !is_asked && counts.unasked_bytes > most_bytes {
                return Err(Drop::Memory); // the peer ignores that it was told to stop
            }
            if !peer.receive.pass_by(data.channel) {
                return Err(Drop::Malformed);
            }
            counts.unasked_bytes += if is_asked { 0 } else { charge(length) };
        }
        peer.last_heard = now;
        let whole = if !is_foreseen && payload_bytes == length {
            counts.take(data.channel);
            None
        } else {
            let taken = take_part::<PLACED>(data, payload_bytes, shared, sink);
            if let Err(Drop::Memory) = taken {
                self.abort(now, data.source); // the message is lost, and its sender is told
                return Err(Drop::Memory);
            }
            let Some(message) = taken? else {
                shared.guess = Some(guess(data));
                return Ok(());
            };
            Some(message)
        };
        peer.direct.set(Talk::UNHEARD, false); // a peer that sends directly knows that it may
        shared.memory.hold(length);
        peer.receive.hold(charge(length));
        let (from, session, channel) = (data.source, peer.ended_sessions, data.channel);
        let shuts = is_asked && shared.memory.used_bytes() > shared.memory.half_bytes();
        if shuts {
            set_open(peer, false);
            shared.has_shut = true;
        }
        if let Some(message) = whole {
            hand_over(shared, (from, session, channel), message, false, sink);
        } else {
            shared.counters.delivered_messages += 1;
            let body = Body::Frame(data.payload);
            sink.message(Delivery {
                from,
                session,
                channel,
                body,
            });
        }
        if shuts {
            self.enqueue(from, now);
        }
        Ok(())
    }

    /// Prepares for the frame that will be handled next and begins with `start`. If it begins a direct message, `placement` returns a place for its
    /// payload, so that it is copied once only.
    pub fn foresee(
        &mut self,
        now: Instant,
        start: &[u8],
        frame_bytes: usize,
        sink: &mut impl Sink,
    ) {
        let payload_bytes = frame_bytes.saturating_sub(DATA_HEADER_BYTES);
        let Ok(data) = parse_data_head(start, payload_bytes) else {
            return;
        };
        if data.flags & flags::DIRECT == 0 || data.offset > 0 || payload_bytes == 0 {
            return;
        }
        let found = self.find(now, (data.source, data.destination), Some(data.session));
        let Ok((peer, shared, _)) = found else { return };
        if !is_legal(&data, peer, shared) {
            return;
        }
        let (length, most_bytes) = (
            data.length as usize,
            unasked_bytes(&shared.config, &peer.link),
        );
        let Shared { direct, pool, .. } = shared;
        let Some(counts) = direct.get_mut(usize::from(data.source.0)) else {
            return;
        };
        let is_asked = peer.direct.is(Talk::OPEN);
        let is_refused = !is_asked && counts.unasked_bytes > most_bytes;
        if is_refused || counts.arriving.is_some() {
            return;
        }
        pool.posted = sink.place(data.source, data.channel, length);
        let Some(message) = Reassembly::new(pool, length, payload_bytes) else {
            return;
        };
        if !peer.receive.pass_by(data.channel) {
            return message.finish(pool).give_to(pool);
        }
        counts.unasked_bytes += if is_asked { 0 } else { charge(length) };
        counts.arriving = Some(Box::new(Arriving {
            channel: data.channel,
            next: 0,
            message,
        }));
        shared.guess = Some(guess(&data));
    }

    /// Handles the head of a message by reference whose payload cannot be read, or has no place: the message is lost, so the session ends, and its
    /// sender is told.
    #[cold]
    pub fn handle_bodiless(&mut self, now: Instant, head: &[u8], body_bytes: usize) {
        self.shared.counters.received_frames += 1;
        self.shared.counters.received_bytes += head.len() as u64;
        let reason = match self.sender_of_lost(now, head, body_bytes) {
            Ok(from) => {
                self.abort(now, from);
                Drop::Memory
            }
            Err(reason) => reason,
        };
        self.shared.counters.drops.count(reason);
    }

    fn sender_of_lost(
        &mut self,
        now: Instant,
        head: &[u8],
        body_bytes: usize,
    ) -> Result<NodeId, Drop> {
        let data = parse_data_head(head, body_bytes)?;
        if data.flags & flags::DIRECT == 0 {
            return Err(Drop::Malformed);
        }
        self.find(now, (data.source, data.destination), Some(data.session))?;
        Ok(data.source)
    }

    /// Decides anew from which peers direct messages are taken: the rules have changed, or memory is free again.
    #[cold]
    pub(super) fn review_direct(&mut self) {
        self.shared.has_shut = false;
        if self.shared.config.ring_bytes == 0 {
            return;
        }
        self.set_headroom();
        for index in 0..self.peers.len() {
            let Some(peer) = self.peers[index].as_deref_mut() else {
                continue;
            };
            if !peer.is_up() {
                continue;
            }
            let takes = takes_direct(peer, &self.shared);
            self.shared.has_shut |= !takes && is_plain(peer, &self.shared);
            if takes != peer.direct.is(Talk::OPEN) {
                set_open(peer, takes);
                let id = peer.id.0;
                if let Some(counts) = self.shared.direct.get_mut(usize::from(id)) {
                    counts.unasked_bytes = 0;
                }
                self.members().1.tell(id);
            }
        }
    }

    /// Reserves headroom for what peers send until they see that they are to stop.
    pub(super) fn set_headroom(&mut self) {
        if self.shared.config.ring_bytes > 0 {
            (self.shared.direct).resize_with(self.peers.len(), Counts::default);
        }
        let rings_bytes = self.rings_bytes();
        let headroom = |rings: usize| rings_bytes.saturating_mul(rings);
        let memory = &mut self.shared.memory;
        memory.set_headroom(headroom(HEADROOM_RINGS + REFERENCE_RINGS));
        if memory.headroom_bytes() == 0 {
            memory.set_headroom(headroom(HEADROOM_RINGS));
        }
    }

    /// Sum of the rings of all peers that have one, in bytes.
    fn rings_bytes(&self) -> usize {
        (self.shared.rings).saturating_mul(self.shared.config.ring_bytes)
    }

    /// How many bytes of messages each peer may have referred to and unread at a time.
    pub fn reference_max_bytes(&self) -> usize {
        let rings_bytes = self.rings_bytes();
        let has_room =
            self.shared.memory.headroom_bytes() > rings_bytes.saturating_mul(HEADROOM_RINGS);
        usize::from(has_room) * REFERENCE_RINGS * self.shared.config.ring_bytes
    }
}

impl Peer {
    /// Whether such a message may leave directly, apart from messages queued before it.
    #[inline]
    fn may_take_directly(&self, channel: Channel, bytes: usize, ring_bytes: usize) -> bool {
        self.direct.is(Talk::PERMITTED)
            && bytes <= self.send.queue.fragment_bytes.max(ring_bytes)
            && bytes <= self.message_limit_bytes
            && !channel.is_datagram()
            && self.send.queue.admits(channel)
            && self.is_up()
    }
}

/// The next frame is likely to be the next part of this message.
fn guess(data: &Data<'_>) -> Guess {
    Guess {
        from: data.source,
        channel: data.channel,
        message_low: 0,
        is_direct: true,
    }
}

/// Whether the frame obeys the limits of direct messages.
fn is_legal(data: &Data<'_>, peer: &Peer, shared: &Shared) -> bool {
    peer.link.has_ring
        && data.length as usize <= shared.memory.limit_bytes()
        && data.length as usize <= shared.config.ring_bytes.max(data.payload.len())
        && !data.is_bundle()
        && !data.channel.is_datagram()
}

/// The direct message of several frames that is arriving from that peer.
pub(super) fn arriving(direct: &mut [Counts], from: NodeId) -> Option<&mut Reassembly> {
    let counts = direct.get_mut(usize::from(from.0))?;
    let arriving = counts.arriving.as_deref_mut()?;
    Some(&mut arriving.message)
}

/// Takes one frame of a message of several; returns the message if it is complete.
fn take_part<const PLACED: bool>(
    data: &Data<'_>,
    payload_bytes: usize,
    shared: &mut Shared,
    sink: &mut impl Sink,
) -> Result<Option<Assembled>, Drop> {
    let Shared { direct, pool, .. } = shared;
    let Some(counts) = direct.get_mut(usize::from(data.source.0)) else {
        return Err(Drop::Malformed);
    };
    let (offset, length) = (data.offset as usize, data.length as usize);
    if counts.arriving.is_none() {
        if PLACED || offset > 0 || payload_bytes == 0 {
            return Err(Drop::Malformed);
        }
        pool.posted = sink.place(data.source, data.channel, length);
        let message = Reassembly::new(pool, length, payload_bytes).ok_or(Drop::Memory)?;
        let arriving = Arriving {
            channel: data.channel,
            next: 0,
            message,
        };
        counts.arriving = Some(Box::new(arriving));
    }
    let Some(arriving) = counts.arriving.as_deref_mut() else {
        return Err(Drop::Malformed);
    };
    let size = arriving.message.fragment_bytes();
    let is_next = (data.channel, offset, length)
        == (
            arriving.channel,
            arriving.next,
            arriving.message.length_bytes(),
        );
    if !is_next || payload_bytes != size.min(length - offset) {
        return Err(Drop::Malformed);
    }
    let message = &mut arriving.message;
    if !PLACED {
        message.insert(offset, data.payload);
    } else if message.reaches(offset + payload_bytes) {
        message.mark(offset);
    } else {
        return Err(Drop::Malformed); // no place was given there
    }
    arriving.next += payload_bytes;
    if !arriving.message.is_whole() {
        return Ok(None);
    }
    counts.take(data.channel);
    let whole = counts.arriving.take();
    Ok(whole.map(|arriving| arriving.message.finish(pool)))
}

/// As `ChannelReceive::recall`.
pub(super) fn recall(
    shared: &mut Shared,
    from: NodeId,
    posted: u64,
) -> Option<Result<Posted, OutOfMemory>> {
    let counts = shared.direct.get_mut(usize::from(from.0))?;
    let arriving = counts.arriving.as_deref_mut()?;
    arriving.message.recall(posted, &mut shared.pool)
}

/// Has the peer told, by an ack of its own, whether direct messages are taken.
pub(super) fn set_open(peer: &mut Peer, open: bool) {
    peer.direct.set(Talk::OPEN, open);
    peer.direct.set(Talk::WORD_PENDING, true);
    peer.receive.ack_now = true;
}

/// On the first frame of a session: the peer is up, and is told again what it may have missed.
#[cold]
pub(super) fn tell_again(peer: &mut Peer) {
    peer.direct.set(Talk::UNHEARD, false);
    if peer.direct.is(Talk::OPEN) {
        set_open(peer, true);
    }
}

/// Direct messages taken in the present session, and in the one before; 0 if the link has no ring.
pub(super) fn taken_from(shared: &Shared, peer: NodeId) -> (u32, u32) {
    let known = shared.direct.get(usize::from(peer.0));
    known.map_or((0, 0), |counts| (counts.taken, counts.taken_before))
}

/// Ends a session; returns how many direct messages are lost according to the peer's count `taken`.
pub(super) fn end(peer: &mut Peer, taken: Option<u32>, shared: &mut Shared) -> usize {
    let was_unsettled = peer.direct.is(Talk::UNSETTLED);
    peer.direct = Talk::default();
    let Some(counts) = shared.direct.get_mut(usize::from(peer.id.0)) else {
        return 0;
    };
    let is_unsettled = was_unsettled || taken.is_none() && counts.sent > 0;
    peer.direct.set(Talk::UNSETTLED, is_unsettled);
    if let Some(arriving) = counts.arriving.take() {
        arriving
            .message
            .finish(&mut shared.pool)
            .give_to(&mut shared.pool);
    }
    counts.end(taken)
}

/// Whether direct messages of that peer are taken now: the usual rules apply to it, and at most a quarter of the budget is used.
pub(super) fn takes_direct(peer: &Peer, shared: &Shared) -> bool {
    shared.memory.has_space() && is_plain(peer, shared)
}

/// The peer has a ring, and neither a policy nor a window of the program limits what it may send.
fn is_plain(peer: &Peer, shared: &Shared) -> bool {
    peer.link.has_ring && shared.receiving.rules().are_plain() && peer.account.limit() == u64::MAX
}

/// Begins a session: the peer is told that direct messages are taken, now or when memory is free.
pub(super) fn begin(peer: &mut Peer, shared: &mut Shared) {
    peer.direct.set(Talk::UNHEARD, peer.link.has_ring);
    if takes_direct(peer, shared) {
        set_open(peer, true);
    } else {
        shared.has_shut |= shared.memory.headroom_bytes() > 0 && is_plain(peer, shared);
    }
}
