//! Fragments of long messages that a link receives straight into their places.
//!
//! Called by drivers whose link can scatter what it receives. Of a message that comes in many fragments the next few are likely
//! to be the next to arrive, so the link is borrowed their places before it asks for frames. Afterwards `is_expected` says of each
//! header whether the guess was right; only then is it told to `handle_placed`, which takes the fragment without copying it. Where the guess
//! was wrong the driver puts the frame together again and hands it to `handle_frame`: the places hold bytes that mean nothing
//! until the fragments that belong there come.
//!
//! Invariant: nothing but bytes of fragments that have not arrived is ever borrowed.

use super::Engine;
use super::direct::arriving;
use crate::counters::Drop;
use crate::message::Sink;
use crate::receiving::Receiving;
use crate::time::Instant;
use tsumuji_wire::{Channel, DATA_HEADER_BYTES, Data, NodeId, flags, parse_data_head};

/// What is borrowed at most, but for the rest of a fragment: no link receives more in one piece.
const PLACEMENT_BYTES: usize = 64 << 10;

/// The message of which a fragment came last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guess {
    pub(super) from: NodeId,
    pub(super) channel: Channel,
    /// 0 of a direct message: one of a peer's arrives at a time.
    pub(super) message_low: u32,
    pub(super) is_direct: bool,
}

/// The place that was borrowed last.
#[derive(Debug, Clone, Copy)]
pub(super) struct BorrowedPlace {
    message: Guess,
    length_bytes: usize,
    /// Of each fragment but the last.
    body_bytes: usize,
    /// Offset in the message of its first byte, and how many it has.
    start: usize,
    bytes: usize,
}

impl BorrowedPlace {
    /// Payload bytes of every fragment of its message but the last.
    #[inline]
    pub(super) fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// How far into the place the payload lies, if this is a fragment of the message whose place it is.
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

/// Where the payloads of the frames belong that are likely to come next.
#[derive(Debug)]
pub struct Placement<'a> {
    /// Each frame's header has so many bytes, and belongs elsewhere.
    pub head_bytes: usize,
    /// Each frame's payload has so many bytes, but perhaps the last.
    pub body_bytes: usize,
    /// One payload after the other.
    pub place: &'a mut [u8],
}

impl Engine {
    /// Where the payloads of the next frames belong, if a long message is under way. They may come from anybody and be anything:
    /// see `is_expected`.
    #[inline]
    pub fn placement(&mut self) -> Option<Placement<'_>> {
        self.shared.guess?;
        self.borrow()
    }

    fn borrow(&mut self) -> Option<Placement<'_>> {
        self.place = None;
        let guess = self.shared.guess.take()?;
        if !matches!(self.shared.receiving, Receiving::Credit(_)) {
            return None; // a fragment may come that is not to be taken
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

    /// Is the frame with this header, whose payload of `body_bytes` lies at `index` times a payload's length in the place that
    /// `placement` borrowed, the one that belongs there? Nothing may have been handled since.
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

    /// As `handle_frame`, for a frame that `is_expected` said yes to. Those of one place are told in their order, and may be refused
    /// each by itself: what of a place was not taken means nothing.
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
            Ok(data) if !self.lies_in_place(&data) => Err(Drop::Malformed), // a mistake of the driver's: its bytes are not where they belong
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
