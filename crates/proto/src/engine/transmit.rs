//! A frame's way out: whose turn it is, and what is written. Called by `batch`.

use super::batch::BITMAP_BYTES;
use super::direct::taken_from;
use super::receive::ACK_DELAY_UNIT;
use super::{Engine, Shared};
use crate::congestion::Congestion;
use crate::event::Destination;
use crate::message::Loan;
use crate::peer::direct::Talk;
use crate::peer::receive::Receive;
use crate::peer::send::{Part, Send};
use crate::time::Instant;
use tsumuji_wire::{ACK_HEADER_BYTES, Ack, Control, Data, Hello, NodeId, flags};

impl Engine {
    /// To whom the next frame that is due goes, if any. Asking changes nothing that a peer could see.
    #[inline]
    pub fn next_destination(&mut self, now: Instant) -> Option<Destination> {
        if !self.datagrams.is_empty() {
            return self.next_of_all(now);
        }
        self.next_peer(now)
    }

    /// While datagrams wait, too.
    #[cold]
    #[inline(never)] // what it needs is not to be kept ready where none does
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
                // It may have become blocked just now: its time-out must be known.
                if let Some(at) = peer.send.deadline() {
                    self.shared.arm(peer, at);
                }
            }
            self.ready.pop_front();
        }
        None
    }

    /// The link has no slot towards `to` now: others go first.
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

    /// A frame that the engine writes alone: control, or what has arrived.
    pub(super) fn write_word(&mut self, now: Instant, id: NodeId, slot: &mut [u8]) -> usize {
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        if peer.session.has_control() {
            self.write_control(now, id, slot)
        } else if peer.inbound.is_some() {
            self.write_word_suci(id, slot)
        } else {
            self.write_ack(now, id, false, slot)
        }
    }

    /// An ack, or a close: what has arrived.
    fn write_ack(&mut self, now: Instant, id: NodeId, closes: bool, slot: &mut [u8]) -> usize {
        let free_kib = self.shared.memory.free_bytes() / 1024;
        let me = self.shared.config.me;
        let direct_taken = taken_from(&self.shared, id).0;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        // What the peer's link does not carry, it would never learn.
        let room = slot.len().min(peer.frame_bytes);
        let room = room.saturating_sub(ACK_HEADER_BYTES).min(BITMAP_BYTES);
        let mut bitmap = [0; BITMAP_BYTES];
        let bitmap_bytes = peer.receive.arrivals.bitmap(&mut bitmap[..room]);
        let mut bits = 0;
        if core::mem::take(&mut peer.ping_due) {
            bits |= flags::ACK_NOW;
        }
        if core::mem::take(&mut peer.receive.refused) {
            bits |= flags::REFUSED;
        }
        peer.direct.set(Talk::WORD_DUE, false);
        if peer.direct.is(Talk::OPEN) {
            bits |= flags::TAKES_DIRECT;
        }
        let ack = Ack {
            source: me,
            destination: id,
            flags: bits,
            session: peer.session.outgoing,
            ack: peer.receive.arrivals.base() as u32,
            credit: peer.receive.grant.granted as u32,
            window_kib: u32::try_from(free_kib).unwrap_or(u32::MAX),
            ack_delay_us: if closes {
                direct_taken
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

    fn write_control(&mut self, now: Instant, id: NodeId, slot: &mut [u8]) -> usize {
        let config = &self.shared.config;
        let Some(peer) = self.peers[usize::from(id.0)].as_deref_mut() else {
            return 0;
        };
        let credit = match config.congestion {
            Congestion::Credit => self.shared.credit.promise(&mut peer.receive.grant),
            Congestion::Suci => (self.shared.suci.ring_frames)
                .min(self.shared.credit.window())
                .min(peer.receive.grant.limit),
        };
        let session = &mut peer.session;
        let hello = Hello {
            source: config.me,
            destination: id,
            flags: config.congestion.flags(),
            incarnation: config.incarnation,
            pairing: session.pairing,
            nonce: 0,
            frame_bytes: self.shared.stated_frame_bytes(id) as u32,
            credit: credit as u32,
            message_limit: u32::try_from(config.message_limit_bytes).unwrap_or(u32::MAX),
            taken: taken_from(&self.shared, id).1,
        };
        let mut control = Control {
            source: config.me,
            destination: id,
            session: session.outgoing,
        };
        let written = if let Some(nonce) = session.welcome_due.take() {
            Hello { nonce, ..hello }.write_welcome(slot)
        } else if session.hello_due {
            Hello {
                nonce: session.next_hello(now),
                ..hello
            }
            .write_hello(slot)
        } else if let Some(unknown) = session.reset_due.take() {
            control.session = unknown;
            control.write_reset(slot)
        } else {
            session.set_close_due(false);
            return self.write_ack(now, id, true, slot);
        };
        if let Some(at) = super::timers::deadline(peer, &self.shared) {
            self.shared.arm(peer, at);
        }
        written.unwrap_or(0)
    }
}

/// The data frame that leaves next, and what it carries; call only after `is_sendable` said yes. It tells of what has arrived: see
/// `Receive::on_ack_sent`.
#[inline(always)] // on every frame's way
pub(super) fn next_data<'a>(
    now: Instant,
    (id, session, busy): (NodeId, u32, bool),
    loan: &Loan<'a>,
    send: &'a mut Send,
    receive: &Receive,
    shared: &mut Shared,
) -> Option<(Data<'a>, Part)> {
    let ack_delay = receive.ack_delay(now).as_nanos() / ACK_DELAY_UNIT.as_nanos();
    let (ack, credit) = (receive.arrivals.base(), receive.grant.granted);
    let next = send.next_fragment(now, loan, &mut shared.pool, &mut shared.counters)?;
    let mut bits = if next.is_bundle { flags::BUNDLE } else { 0 };
    if next.more {
        bits |= flags::MORE;
    }
    if next.probe {
        bits |= flags::ACK_NOW;
    }
    if busy {
        bits |= flags::BUSY;
    }
    let data = Data {
        source: shared.config.me,
        destination: id,
        flags: bits,
        session,
        number: next.number as u32,
        ack: ack as u32,
        credit: credit as u32,
        message: next.message as u32,
        offset: next.offset as u32,
        length: next.length as u32,
        floor_delta: u16::try_from(next.number - next.floor).unwrap_or(u16::MAX),
        lane: next.lane,
        ack_delay: u8::try_from(ack_delay).unwrap_or(u8::MAX),
        payload: next.payload,
    };
    Some((data, next.part))
}
