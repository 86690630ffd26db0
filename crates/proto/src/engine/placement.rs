//! Placement: a link receives fragments of a long message straight into the message's buffer.
//!
//! Called by drivers whose link can scatter what it receives. The fragments that follow the latest one of a long message are likely to arrive next,
//! so `placement` gives the link their places before it asks for frames. Afterwards `is_expected` checks each header against that guess, and
//! `handle_placed` takes a fragment that is in its place without copying it. The driver reassembles any other frame from its parts and passes it to
//! `handle_frame`: bytes in a place mean nothing until the fragments that belong there arrive.
//!
//! Invariant: a place covers only fragments that have not arrived.

use super::Engine;
use super::direct::arriving;
use crate::counters::Drop;
use crate::message::Sink;
use crate::receiving::Receiving;
use crate::time::Instant;
use tsumuji_wire::{Channel, DATA_HEADER_BYTES, Data, NodeId, flags, parse_data_head};

/// Largest place, rounded up to whole fragments: no link receives more in one piece.
const PLACEMENT_BYTES: usize = 64 << 10;

/// The message of which a fragment arrived last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guess {
    pub(super) from: NodeId,
    pub(super) channel: Channel,
    /// 0 for a direct message: at most one of each peer arrives at a time.
    pub(super) message_low: u32,
    pub(super) is_direct: bool,
}

/// The place that `placement` returned last.
#[derive(Debug, Clone, Copy)]
pub(super) struct BorrowedPlace {
    message: Guess,
    length_bytes: usize,
    /// Payload bytes of each fragment but the last.
    body_bytes: usize,
    /// Offset of the place in the message, and its length in bytes.
    start: usize,
    bytes: usize,
}

impl BorrowedPlace {
    /// Payload bytes of each fragment of the message but the last.
    #[inline]
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Offset of the fragment's payload in the place, if it belongs there.
    fn skipped_bytes(&self, data: &Data<'_>) -> Option<usize> {
        let Guess {
            from,
            channel,
            message_low,
            is_direct,
        } = self.message;
        let same = (data.source, data.channel, data.message) == (from, channel, message_low)
            && is_direct == (data.flags & flags::DIRECT != 0)
            && data.length as usize == self.length_bytes;
        let skipped = (data.offset as usize).checked_sub(self.start)?;
        (same && skipped < self.bytes).then_some(skipped)
    }
}

/// Where a link may receive the payloads of the next frames.
#[derive(Debug)]
pub struct Placement<'a> {
    /// Length of each frame's header, which is received elsewhere.
    pub head_bytes: usize,
    /// Payload length of each frame but perhaps the last.
    pub body_bytes: usize,
    /// One payload after another.
    pub place: &'a mut [u8],
}

impl Engine {
    /// Where the payloads of the next frames belong, if a long message is arriving. The frames that come may be any others: `is_expected` must be
    /// asked for each.
    #[inline]
    pub fn placement(&mut self) -> Option<Placement<'_>> {
        self.shared.guess?;
        self.borrow()
    }

    fn borrow(&mut self) -> Option<Placement<'_>> {
        self.place = None;
        let guess = self.shared.guess.take()?;
        if !matches!(self.shared.receiving, Receiving::Credit(_)) {
            return None; // under `suci` the next fragment may be dropped
        }
        let peer = self
            .peers
            .get_mut(usize::from(guess.from.0))?
            .as_deref_mut()?;
        if !peer.is_up() || guess.channel.is_datagram() {
            return None;
        }
        let message = if guess.is_direct {
            arriving(&mut self.shared.direct, guess.from)?
        } else {
            peer.receive.under_way(guess.channel, guess.message_low)?
        };
        let (start, bytes) = message.awaited(PLACEMENT_BYTES);
        if bytes == 0 {
            return None;
        }
        let body_bytes = message.fragment_bytes();
        self.shared.guess = Some(guess);
        self.place = Some(BorrowedPlace {
            message: guess,
            length_bytes: message.length_bytes(),
            body_bytes,
            start,
            bytes,
        });
        Some(Placement {
            head_bytes: DATA_HEADER_BYTES,
            body_bytes,
            place: message.placement(PLACEMENT_BYTES),
        })
    }

    /// Whether a frame with this header, whose payload of `body_bytes` is at `index` × `Placement::body_bytes` in the latest place, belongs exactly
    /// there. No frame may have been handled since `placement`.
    pub fn is_expected(&mut self, index: usize, head: &[u8], body_bytes: usize) -> bool {
        let (Some(place), Ok(data)) = (self.place, parse_data_head(head, body_bytes)) else {
            return false;
        };
        let Some(peer) = self.peer(data.source) else {
            return false;
        };
        let size = place.body_bytes;
        let skipped = index.saturating_mul(size);
        place.skipped_bytes(&data) == Some(skipped)
            && body_bytes == size.min(place.bytes - skipped)
            && data.destination == self.shared.config.me
            && peer.is_up()
            && data.session == peer.session.incoming
    }

    /// As `handle_frame`, for a frame for which `is_expected` returned true. Frames of one place are to be passed in order. Each may be refused by
    /// itself; the bytes of a refused one mean nothing.
    pub fn handle_placed(
        &mut self,
        now: Instant,
        head: &[u8],
        body_bytes: usize,
        sink: &mut impl Sink,
    ) {
        self.shared.counters.received_frames += 1;
        self.shared.counters.received_bytes += (head.len() + body_bytes) as u64;
        let used = match parse_data_head(head, body_bytes) {
            Ok(data) if !self.lies_in_place(&data) => Err(Drop::Malformed), // a mistake of the driver: the payload is not where it belongs
            Ok(data) if data.flags & flags::DIRECT != 0 => {
                self.handle_direct::<true>(now, &data, body_bytes, sink)
            }
            Ok(data) => self.handle_data::<true>(now, &data, body_bytes, sink),
            Err(reason) => Err(Drop::from(reason)),
        };
        if let Err(reason) = used {
            self.shared.counters.drops.count(reason);
        }
    }

    fn lies_in_place(&self, data: &Data<'_>) -> bool {
        self.place
            .is_some_and(|place| place.skipped_bytes(data).is_some())
    }
}
