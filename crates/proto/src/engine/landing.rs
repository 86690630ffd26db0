//! Fragments of long messages that a link receives straight into their places.
//!
//! Called by drivers whose link can scatter what it receives. Of a message that comes in many fragments the next few are likely
//! to be the next to arrive, so the link is lent their places before it asks for frames. Afterwards `is_expected` says of each
//! header whether the guess was right; only then is it told to `handle_landed`, which takes the fragment without copying it. Where the guess
//! was wrong the driver puts the frame together again and hands it to `handle_frame`: the places hold bytes that mean nothing
//! until the fragments that belong there come.
//!
//! Invariant: nothing but bytes of fragments that have not arrived is ever lent.

use super::Engine;
use crate::congestion::Congestion;
use crate::counters::Drop;
use crate::message::Sink;
use crate::time::Instant;
use tsumuji_wire::{DATA_HEADER_BYTES, Data, Lane, NodeId, parse_data_head};

/// What is lent at most, but for the rest of a fragment: no link receives more in one piece.
const LANDING_BYTES: usize = 64 << 10;

/// The message of which a fragment came last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guess {
    pub(super) from: NodeId,
    pub(super) lane: Lane,
    pub(super) message_low: u32,
}

/// Where the payloads of the frames belong that are likely to come next.
#[derive(Debug)]
pub struct Landing<'a> {
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
    pub fn landing(&mut self) -> Option<Landing<'_>> {
        self.shared.guess?;
        self.lend()
    }

    fn lend(&mut self) -> Option<Landing<'_>> {
        let guess = self.shared.guess.take()?;
        if self.shared.config.congestion != Congestion::Credit {
            return None;
        }
        let peer = self
            .peers
            .get_mut(usize::from(guess.from.0))?
            .as_deref_mut()?;
        if !peer.is_up() || guess.lane.is_latest() {
            return None;
        }
        let body_bytes = peer.send.fragment_bytes();
        let message = peer.receive.under_way(guess.lane, guess.message_low)?;
        if message.awaited(LANDING_BYTES).1 == 0 {
            return None;
        }
        self.shared.guess = Some(guess);
        Some(Landing {
            head_bytes: DATA_HEADER_BYTES,
            body_bytes,
            place: message.landing(LANDING_BYTES),
        })
    }

    /// Is the frame with this header, whose payload of `body_bytes` lies at `index` times a payload's length in the place that
    /// `landing` lent, the one that belongs there? Nothing may have been handled since.
    pub fn is_expected(&mut self, index: usize, head: &[u8], body_bytes: usize) -> bool {
        let (Some(guess), Ok(data)) = (self.shared.guess, parse_data_head(head, body_bytes)) else {
            return false;
        };
        if data.destination != self.shared.config.me
            || (data.source, data.lane, data.message) != (guess.from, guess.lane, guess.message_low)
        {
            return false;
        }
        let Some(peer) = self.peer_mut(guess.from) else {
            return false;
        };
        if !peer.is_up() || data.session != peer.session.incoming {
            return false;
        }
        let size = peer.send.fragment_bytes();
        let Some(message) = peer.receive.under_way(guess.lane, guess.message_low) else {
            return false;
        };
        let (start, bytes) = message.awaited(LANDING_BYTES);
        let skipped = index.saturating_mul(size);
        data.length as usize == message.length_bytes()
            && skipped < bytes
            && data.offset as usize == start + skipped
            && body_bytes == size.min(bytes - skipped)
    }

    /// As `handle_frame`, for a frame that `is_expected` said yes to. Those of one place are told in their order.
    pub fn handle_landed(
        &mut self,
        now: Instant,
        head: &[u8],
        body_bytes: usize,
        sink: &mut impl Sink,
    ) {
        self.shared.counters.received_frames += 1;
        self.shared.counters.received_bytes += (head.len() + body_bytes) as u64;
        let used = match parse_data_head(head, body_bytes) {
            Ok(data) if self.is_under_way(&data) => self.handle_data::<true>(now, &data, sink),
            Ok(_) => Err(Drop::Duplicate),
            Err(reason) => Err(Drop::from(reason)),
        };
        if let Err(reason) = used {
            self.shared.counters.drops.count(reason);
        }
    }

    /// A fragment before it, of the same place, may have been refused or have ended what was under way.
    fn is_under_way(&mut self, data: &Data<'_>) -> bool {
        let awaited = |peer: &mut crate::peer::Peer| {
            let message = peer.receive.under_way(data.lane, data.message)?;
            Some(message.awaited(1).0)
        };
        self.peer_mut(data.source).and_then(awaited) == Some(data.offset as usize)
    }
}
