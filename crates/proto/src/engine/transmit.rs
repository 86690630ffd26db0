//! Outgoing frames: which destination is next, and the contents of each frame. Called by `batch`.

use super::batch::BITMAP_BYTES;
use super::direct::taken_from;
use super::receive::ACK_DELAY_UNIT;
use super::{Engine, Shared};
use crate::event::Destination;
use crate::message::Borrowed;
use crate::peer::Peer;
use crate::peer::direct::Talk;
use crate::peer::send::Part;
use crate::time::Instant;
use tsumuji_wire::{ACK_HEADER_BYTES, Ack, Control, Data, Hello, NodeId, Permit, flags};

impl Engine {
    /// The destination of the next frame to send, if any. This has no effect that a peer could see.
    #[inline]
    pub fn next_destination(&mut self, now: Instant) -> Option<Destination> {
        if !self.datagrams.is_empty() {
            return self.next_of_all(now);
        }
        self.next_peer(now)
    }

    /// As `next_peer`, with datagrams that wait before the peers.
    #[cold]
    #[inline(never)] // keeps its state out of the common path
    fn next_of_all(&mut self, now: Instant) -> Option<Destination> {
        self.next_datagram(now).or_else(|| self.next_peer(now))
    }

    #[inline]
    fn next_peer(&mut self, now: Instant) -> Option<Destination> {
        while let Some(&id) = self.ready.front() {
            if let Some(peer) = self.peers[usize::from(id)].as_deref_mut() {
                if peer.wants_transmit(now) {
                    return Some(Destination::Peer(NodeId(id)));
                }
                peer.queued = false;
                // It may have become blocked just now: set its alarm for the time-out.
                if let Some(at) = peer.send.deadline() {
                    self.shared.arm(peer, at);
                }
            }
            self.ready.pop_front();
        }
        None
    }

    /// The link has no slot for `to` now: other destinations go first.
    pub fn defer(&mut self, to: Destination) {
        if self.datagrams.defer() {
            return;
        }
        if self
            .ready
            .front()
            .is_some_and(|&id| to == Destination::Peer(NodeId(id)))
        {
            self.ready.rotate_left(1);
        }
    }
}

/// Writes a frame without data: control, grant, acknowledgement or ask. Returns its length.
pub(super) fn write_word(
    now: Instant,
    peer: &mut Peer,
    shared: &mut Shared,
    slot: &mut [u8],
) -> usize {
    if peer.session.has_control() {
        write_control(now, peer, shared, slot)
    } else if peer.receive.grant_pending {
        write_grant(peer, shared, slot)
    } else if peer.receive.ack_now || peer.ping_pending || !peer.send.is_ask_pending() {
        write_ack(now, peer, false, shared, slot)
    } else {
        write_ask(peer, shared, slot)
    }
}

/// Writes an ack frame, or a close frame, which has the same layout.
fn write_ack(
    now: Instant,
    peer: &mut Peer,
    closes: bool,
    shared: &mut Shared,
    slot: &mut [u8],
) -> usize {
    // The peer's link would drop a frame longer than agreed.
    let room = slot.len().min(peer.frame_bytes);
    let room = room.saturating_sub(ACK_HEADER_BYTES).min(BITMAP_BYTES);
    let mut bitmap = [0; BITMAP_BYTES];
    let bitmap_bytes = peer.receive.arrivals.bitmap(&mut bitmap[..room]);
    let (credit, mut bits) = shared.receiving.state(peer, &shared.memory);
    if core::mem::take(&mut peer.ping_pending) {
        bits |= flags::ACK_NOW;
    }
    peer.direct.set(Talk::WORD_PENDING, false);
    if peer.direct.is(Talk::OPEN) {
        bits |= flags::TAKES_DIRECT;
    }
    let ack = Ack {
        source: shared.config.me,
        destination: peer.id,
        flags: bits,
        session: peer.session.outgoing,
        ack: peer.receive.arrivals.base() as u32,
        credit: credit as u32,
        window_kib: window_kib(shared.memory.free_bytes()),
        ack_delay_us: if closes {
            taken_from(shared, peer.id).0
        } else {
            (peer.receive.ack_delay(now).as_nanos() / 1000) as u32
        },
        bitmap: &bitmap[..bitmap_bytes],
    };
    let written = if closes {
        ack.write_close(slot)
    } else {
        ack.write(slot)
    };
    let bytes = written.unwrap_or(0);
    peer.receive.on_ack_sent();
    bytes
}

/// Free memory as acks state it: in KiB, and 1 if less is free, so that 0 means that nothing is admitted.
fn window_kib(free_bytes: usize) -> u32 {
    u32::try_from((free_bytes / 1024).max(free_bytes.min(1))).unwrap_or(u32::MAX)
}

fn write_control(now: Instant, peer: &mut Peer, shared: &mut Shared, slot: &mut [u8]) -> usize {
    let credit = shared.receiving.promise(&mut peer.account);
    let config = &shared.config;
    let session = &mut peer.session;
    let hello = Hello {
        source: config.me,
        destination: peer.id,
        flags: config.congestion.kind().flags(),
        incarnation: config.incarnation,
        pairing: session.pairing,
        nonce: 0,
        frame_bytes: shared.stated_frame_bytes(peer.id, &peer.link) as u32,
        credit: credit as u32,
        message_limit: u32::try_from(config.message_limit_bytes).unwrap_or(u32::MAX),
        taken: taken_from(shared, peer.id).1,
    };
    let mut control = Control {
        source: config.me,
        destination: peer.id,
        session: session.outgoing,
    };
    let written = if let Some(nonce) = session.welcome_pending.take() {
        Hello { nonce, ..hello }.write_welcome(slot)
    } else if session.hello_pending {
        Hello {
            nonce: session.next_hello(now),
            ..hello
        }
        .write_hello(slot)
    } else if let Some(unknown) = session.reset_pending.take() {
        control.session = unknown;
        control.write_reset(slot)
    } else {
        session.set_close_pending(false);
        return write_ack(now, peer, true, shared, slot);
    };
    if let Some(at) = super::timers::deadline(peer, shared) {
        shared.arm(peer, at);
    }
    written.unwrap_or(0)
}

fn write_ask(peer: &mut Peer, shared: &mut Shared, slot: &mut [u8]) -> usize {
    let session = peer.session.outgoing;
    let Some(control) = peer.send.suci() else {
        return 0;
    };
    let ask = control.take_ask();
    let permit = Permit {
        source: shared.config.me,
        destination: peer.id,
        session,
        round: ask.round,
        number: ask.number as u32,
        frames: ask.frames as u32,
    };
    shared.counters.asks += 1;
    if let Some(at) = peer.send.deadline() {
        shared.arm(peer, at);
    }
    permit.write_ask(slot).unwrap_or(0)
}

fn write_grant(peer: &mut Peer, shared: &mut Shared, slot: &mut [u8]) -> usize {
    peer.receive.grant_pending = false;
    let (round, frames) = peer.account.permit(peer.receive.arrivals.base());
    let permit = Permit {
        source: shared.config.me,
        destination: peer.id,
        session: peer.session.outgoing,
        round,
        number: peer.receive.arrivals.base() as u32,
        frames,
    };
    shared.counters.grants += 1;
    permit.write_grant(slot).unwrap_or(0)
}

/// The next data frame, its part, and whether more wait; to be called only after `is_sendable` returned true.
#[inline(always)] // on the path of every frame
pub(super) fn next_data<'a>(
    now: Instant,
    busy: bool,
    borrowed: &Borrowed<'a>,
    peer: &'a mut Peer,
    shared: &mut Shared,
) -> Option<(Data<'a>, Part, bool)> {
    let Shared { pool, counters, .. } = shared;
    let (departure, place) = peer.send.next_fragment(now, borrowed, pool, counters)?;
    let mut bits = if place.is_bundle { flags::BUNDLE } else { 0 };
    if departure.more {
        bits |= flags::MORE;
    }
    if departure.probe {
        bits |= flags::ACK_NOW;
    }
    if busy {
        bits |= flags::BUSY;
    }
    let carried = peer.account.carry(now, bits, &mut peer.receive);
    let ack_delay = carried.delay.as_nanos() / ACK_DELAY_UNIT.as_nanos();
    let data = Data {
        source: shared.config.me,
        destination: peer.id,
        flags: carried.flags,
        session: peer.session.outgoing,
        number: departure.number as u32,
        ack: carried.ack,
        credit: carried.credit,
        message: place.message as u32,
        offset: place.offset as u32,
        length: place.length as u32,
        floor_delta: u16::try_from(departure.number - departure.floor).unwrap_or(u16::MAX),
        channel: place.channel,
        ack_delay: u8::try_from(ack_delay).unwrap_or(u8::MAX),
        payload: place.payload,
    };
    Some((data, departure.part, departure.more))
}
