//! Direct messages: over a link that keeps frames in order, loses none between the living, and tells which were read, a
//! message that fits the link's ring needs no number, credit, acknowledgement or timer. The ring is the window.
//!
//! A driver asks `direct` before it submits, and gives the frames it gets to the link; what finds no room there is submitted as any other.
//! Anything longer, tracked, paced or behind something that is queued takes the numbered way. A long message of which only the head passes the
//! ring, and whose receiver reads the rest where it lies, is one frame whatever its length.
//!
//! Invariants: a direct message leaves only while nothing numbered to its peer is unacknowledged, so that none overtakes another; what
//! arrives beyond the half of the budget at which peers are told to stop fits the headroom kept for it, of honest peers.

use super::placement::Guess;
use super::receive::hand_over;
use super::{Engine, Shared};
use crate::config::Config;
use crate::counters::{Counters, Drop};
use crate::memory::charge;
use crate::message::{Body, Delivery, Sink};
use crate::peer::Peer;
use crate::peer::direct::{Arriving, Counts, Talk};
use crate::peer::reassembly::{Assembled, Reassembly};
use crate::posted::{OutOfMemory, Posted};
use crate::time::Instant;
use alloc::boxed::Box;
use tsumuji_wire::{Channel, DATA_HEADER_BYTES, Data, NodeId, flags, parse_data_head};

/// Headroom for each peer, in rings: of an empty message a ring's line holds as much as the budget counts for it, of other short ones less.
/// The rest is for what a peer sends on until it looks whether it may.
pub(super) const HEADROOM_RINGS: usize = 2;

/// Headroom for what each peer may refer to at a time, as well, if it is not too much for the budget.
const REFERENCE_RINGS: usize = 2;

/// What comes of a peer beyond so many rings, and what its receiver may take in before the word to stop leaves, is dropped: nobody honest sends
/// so much after it was told to stop.
const UNASKED_RINGS: usize = 2 * (HEADROOM_RINGS + REFERENCE_RINGS);

/// A driver takes in fewer frames, and no more than one message by reference, before it sends what is to be told.
const TURN_FRAMES: usize = 128;

/// As above.
pub(super) fn unasked_bytes(config: &Config) -> usize {
    UNASKED_RINGS * config.ring_bytes + TURN_FRAMES * config.frame_bytes
}

/// A message is at most this part of a ring: others are on their way, too.
const RING_PART: usize = 4;

/// Payload of each frame of a message of several: short, for its receiver copies one while the next is written.
const PART_BYTES: usize = 16 << 10;

/// A message that may leave directly now.
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

/// A frame of it: what lies behind the head is in two places.
#[derive(Debug)]
pub struct DirectFrame<'m> {
    head: [u8; DATA_HEADER_BYTES],
    payload: (&'m [u8], &'m [u8]),
    /// Of its message.
    pub is_last: bool,
}

impl DirectFrame<'_> {
    /// Its parts, which follow one another.
    #[inline]
    pub fn parts(&self) -> [&[u8]; 3] {
        [&self.head, self.payload.0, self.payload.1]
    }
}

impl Direct<'_> {
    /// So long a message leaves as one frame, by `whole`.
    #[inline]
    pub fn frame_message_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// A longer one than this does not leave through the ring.
    pub fn ring_message_bytes(&self) -> usize {
        self.frame_bytes.max(self.ring_bytes / RING_PART)
    }

    /// Frames of a longer message, and the length of the largest.
    pub fn frames(&self, message_bytes: usize) -> (usize, usize) {
        let part_bytes = self.part_bytes();
        let frames = message_bytes.div_ceil(part_bytes);
        (frames, DATA_HEADER_BYTES + part_bytes)
    }

    fn part_bytes(&self) -> usize {
        self.frame_bytes.min(PART_BYTES)
    }

    /// Frame `index` of a longer message, of which all are to be sent in order, with nothing between them.
    pub fn part<'m>(&self, (head, rest): (&'m [u8], &'m [u8]), index: usize) -> DirectFrame<'m> {
        let length = head.len() + rest.len();
        let start = (index * self.part_bytes()).min(length);
        let end = length.min(start + self.part_bytes());
        let cut = |at: usize| (at.min(head.len()), at.saturating_sub(head.len()));
        let ((from, rest_from), (to, rest_to)) = (cut(start), cut(end));
        let payload = (&head[from..to], &rest[rest_from..rest_to]);
        self.frame(payload, (start, length))
    }

    /// The frame of a message that has one: `head` and `rest` follow each other.
    #[inline]
    pub fn whole<'m>(&self, message: (&'m [u8], &'m [u8])) -> DirectFrame<'m> {
        self.frame(message, (0, message.0.len() + message.1.len()))
    }

    /// The head of a message that is sent by reference: its receiver reads it where it lies.
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

    /// The link has taken the frame.
    #[inline]
    pub fn sent(&mut self, frame: &DirectFrame<'_>) {
        let [head, front, back] = frame.parts();
        self.count(frame.is_last, head.len() + front.len() + back.len());
    }

    /// The link has taken the head of a message of so many bytes.
    pub fn referred(&mut self, message_bytes: usize) {
        self.count(true, DATA_HEADER_BYTES + message_bytes);
    }

    #[inline]
    fn count(&mut self, is_last: bool, bytes: usize) {
        if is_last {
            self.peer.send.pass_by(self.channel);
            self.counts.send(self.channel);
            self.counters.direct_messages += 1;
        }
        self.counters.sent_frames += 1;
        self.counters.sent_bytes += bytes as u64;
    }
}

impl Engine {
    /// The message of that channel and length, if it may leave directly now, through the ring or past it; `None`: it is to be submitted.
    #[inline]
    pub fn direct(&mut self, to: NodeId, channel: Channel, bytes: usize) -> Option<Direct<'_>> {
        let peer = (self.peers.get_mut(usize::from(to.0))).and_then(Option::as_deref_mut)?;
        let (frame_bytes, ring_bytes) = (peer.send.fragment_bytes(), self.shared.config.ring_bytes);
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

    /// The message could leave directly if nothing waited before it.
    pub fn is_direct_in_its_turn(&self, to: NodeId, channel: Channel, bytes: usize) -> bool {
        let peer = (self.peers.get(usize::from(to.0))).and_then(Option::as_deref);
        peer.is_some_and(|peer| {
            peer.may_take_directly(channel, bytes, self.shared.config.ring_bytes)
                && !peer.send.is_idle()
                && !self.closed
        })
    }

    /// Something waits to be written, or to be told.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.shared.events.is_empty() || self.datagrams.has_some()
    }

    /// Did the session that has just ended leave direct messages, of which only the link knows how many were not read? Asked once.
    pub fn take_unsettled(&mut self, peer: NodeId) -> bool {
        let Some(peer) = self.peer_mut(peer) else {
            return false;
        };
        let is_unsettled = peer.direct.is(Talk::UNSETTLED);
        peer.direct.set(Talk::UNSETTLED, false);
        is_unsettled
    }

    /// `LANDED`: as for `handle_data`.
    #[inline(never)] // what it needs is not to be kept ready for frames with numbers
    pub(super) fn handle_direct<const LANDED: bool>(
        &mut self,
        now: Instant,
        data: &Data<'_>,
        payload_bytes: usize,
        sink: &mut impl Sink,
    ) -> Result<(), Drop> {
        let (peer, shared, _) =
            self.find(now, (data.source, data.destination), Some(data.session))?;
        let length = data.length as usize;
        if !is_legal(data, shared) {
            return Err(Drop::Malformed);
        }
        let most_bytes = unasked_bytes(&shared.config);
        let Some(counts) = shared.direct.get_mut(usize::from(data.source.0)) else {
            return Err(Drop::Malformed);
        };
        let is_asked = peer.direct.is(Talk::OPEN);
        let is_foreseen = (counts.arriving.as_deref()).is_some_and(|message| message.begins(data));
        if data.offset == 0 && !is_foreseen {
            if LANDED || counts.arriving.is_some() {
                return Err(Drop::Malformed); // nothing was borrowed, or the one before it is not whole
            }
            if !is_asked && counts.unasked_bytes > most_bytes {
                return Err(Drop::Memory); // of who goes on though it was told to stop
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
            let Some(message) = take_part::<LANDED>(data, payload_bytes, shared, sink)? else {
                shared.guess = Some(guess(data));
                return Ok(());
            };
            Some(message)
        };
        peer.direct.set(Talk::UNHEARD, false); // whoever sends directly has heard the word
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

    /// A frame that begins so is the next to be handed in. If a direct message begins with it, there will be a place for its payload, which
    /// `placement` lends: no frame of it is copied twice.
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
        if !is_legal(&data, shared) {
            return;
        }
        let (length, most_bytes) = (data.length as usize, unasked_bytes(&shared.config));
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

    /// A message by reference has come with this head, but its body cannot be had, or there is no place for it: it is lost, and so the session
    /// ends, which has its sender told.
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

    /// Looks again from whom direct messages are taken: the rules have changed, or memory is free again.
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

    /// Keeps headroom for what peers send until they hear that they are to stop.
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

    /// Of all peers.
    fn rings_bytes(&self) -> usize {
        let peers = self.shared.receiving.rules().peers() as usize;
        peers.saturating_mul(self.shared.config.ring_bytes)
    }

    /// How many bytes of messages each peer may refer to at a time.
    pub fn reference_max_bytes(&self) -> usize {
        let rings_bytes = self.rings_bytes();
        let has_room =
            self.shared.memory.headroom_bytes() > rings_bytes.saturating_mul(HEADROOM_RINGS);
        usize::from(has_room) * REFERENCE_RINGS * self.shared.config.ring_bytes
    }
}

impl Peer {
    /// But for what waits before it.
    #[inline]
    fn may_take_directly(&self, channel: Channel, bytes: usize, ring_bytes: usize) -> bool {
        self.direct.is(Talk::PERMITTED)
            && bytes <= self.send.fragment_bytes().max(ring_bytes)
            && bytes <= self.message_limit_bytes
            && !channel.is_datagram()
            && self.send.admits(channel)
            && self.is_up()
    }
}

/// More of the message will come next.
fn guess(data: &Data<'_>) -> Guess {
    Guess {
        from: data.source,
        channel: data.channel,
        message_low: 0,
        is_direct: true,
    }
}

/// May a direct message be such?
fn is_legal(data: &Data<'_>, shared: &Shared) -> bool {
    shared.config.ring_bytes > 0
        && data.length as usize <= shared.memory.limit_bytes()
        && data.length as usize <= shared.config.ring_bytes.max(data.payload.len())
        && !data.is_bundle()
        && !data.channel.is_datagram()
}

/// The message of several frames that arrives from that peer.
pub(super) fn arriving(direct: &mut [Counts], from: NodeId) -> Option<&mut Reassembly> {
    let counts = direct.get_mut(usize::from(from.0))?;
    let arriving = counts.arriving.as_deref_mut()?;
    Some(&mut arriving.message)
}

/// Takes one frame of a message of several; the message, if it was the last.
fn take_part<const LANDED: bool>(
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
        if LANDED || offset > 0 || payload_bytes == 0 {
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
    if !LANDED {
        message.insert(offset, data.payload);
    } else if message.reaches(offset + payload_bytes) {
        message.mark(offset);
    } else {
        return Err(Drop::Malformed); // nothing was borrowed there
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

/// The peer is to be told, in a frame of its own.
pub(super) fn set_open(peer: &mut Peer, open: bool) {
    peer.direct.set(Talk::OPEN, open);
    peer.direct.set(Talk::WORD_DUE, true);
    peer.receive.ack_now = true;
}

/// The first frame of a session has come: the peer is up, and hears what it may have missed before.
#[cold]
pub(super) fn tell_again(peer: &mut Peer) {
    peer.direct.set(Talk::UNHEARD, false);
    if peer.direct.is(Talk::OPEN) {
        set_open(peer, true);
    }
}

/// What was taken in the present session, and in the one before; nothing where the link has no ring.
pub(super) fn taken_from(shared: &Shared, peer: NodeId) -> (u32, u32) {
    let known = shared.direct.get(usize::from(peer.0));
    known.map_or((0, 0), |counts| (counts.taken, counts.taken_before))
}

/// A session has ended; how many are lost by the peer's word that it took so many.
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

/// Whether direct messages of that peer are taken now: where the usual rules decide who may send how much, and no more than a quarter of the budget is used.
pub(super) fn takes_direct(peer: &Peer, shared: &Shared) -> bool {
    shared.memory.has_eased() && is_plain(peer, shared)
}

/// The usual rules alone decide what the peer may send.
fn is_plain(peer: &Peer, shared: &Shared) -> bool {
    shared.receiving.rules().are_plain() && peer.account.limit() == u64::MAX
}

/// A session begins: the peer is told if direct messages are taken, now or when memory is free.
pub(super) fn begin(peer: &mut Peer, shared: &mut Shared) {
    peer.direct.set(Talk::UNHEARD, shared.config.ring_bytes > 0);
    if takes_direct(peer, shared) {
        set_open(peer, true);
    } else {
        shared.has_shut |= shared.memory.headroom_bytes() > 0 && is_plain(peer, shared);
    }
}
