//! Body of a long message that stays with the program while it leaves, and the copies that are retained of it in the end; or of a message that
//! the program shares until it is acknowledged.
//!
//! Owned by an `Outgoing`. While the message is borrowed, its bytes come only from a `Borrowed` for this peer with its id: those of others never
//! leave in its place. Retained bytes are in pieces: copies of some whole fragments, which return to the pool when all of these are acknowledged, so
//! that memory for a message of any length is bounded by what was in flight.
//!
//! Invariants: there are no pieces while it is borrowed; `pieces[i]` is piece `first + i`, and the first of them has at least one fragment that is
//! not acknowledged; pieces below `first` have none.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use bytes::Bytes;

use crate::message::{Borrowed, SendId};
use crate::pool::{Pool, has_bit};
use crate::tuning::TUNING;
use tsumuji_wire::NodeId;

#[derive(Debug, Default)]
pub(super) struct Borrowing {
    /// The peer to which it is borrowed; `None` if it is not.
    to: Option<NodeId>,
    piece_fragments: u32,
    first: u32,
    pieces: VecDeque<Piece>,
    /// The whole message, if the program shares it.
    shared: Option<Bytes>,
}

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// Fragments that are not acknowledged.
    missing: u32,
}

impl Borrowing {
    /// Borrows a message; there must be no pieces of an earlier one.
    pub(super) fn begin(&mut self, to: NodeId) {
        debug_assert!(self.pieces.is_empty());
        self.to = Some(to);
    }

    /// Shares a message.
    pub(super) fn share(&mut self, message: Bytes) {
        debug_assert!(self.pieces.is_empty());
        (self.to, self.shared) = (None, Some(message));
    }

    /// Releases the shared memory, if any; returns its length.
    pub(super) fn end_sharing(&mut self) -> usize {
        self.shared.take().map_or(0, |message| message.len())
    }

    #[inline]
    pub(super) fn is_borrowed(&self) -> bool {
        self.to.is_some()
    }

    /// Ends the borrowing without retaining a copy.
    pub(super) fn end(&mut self) {
        self.to = None;
    }

    /// Retains copies of the borrowed message, from the first fragment on that `acknowledged` does not mark. Returns their length; `None`: there is
    /// no memory, and the message is still borrowed.
    pub(super) fn retain(
        &mut self,
        message: &[u8],
        fragment_bytes: usize,
        fragments: u32,
        acknowledged: &[u64],
        pool: &mut Pool,
    ) -> Option<usize> {
        // A message of one fragment has no bitmap; were it acknowledged, it would not be borrowed any more.
        let is_missing =
            |fragment: u32| acknowledged.is_empty() || !has_bit(acknowledged, fragment as usize);
        self.piece_fragments = (TUNING.messages.piece_bytes / fragment_bytes).max(1) as u32;
        let first = (0..fragments).find(|&fragment| is_missing(fragment))?;
        self.first = first / self.piece_fragments;
        let mut kept_bytes = 0;
        let mut from = self.first * self.piece_fragments;
        while from < fragments {
            let to = fragments.min(from.saturating_add(self.piece_fragments));
            let start = from as usize * fragment_bytes;
            let end = message.len().min(to as usize * fragment_bytes);
            let Some(mut bytes) = pool.take(end - start) else {
                self.clear(pool);
                return None;
            };
            bytes.extend_from_slice(&message[start..end]);
            kept_bytes += bytes.len();
            let missing = (from..to).filter(|&fragment| is_missing(fragment)).count();
            self.pieces.push_back(Piece {
                bytes,
                missing: missing as u32,
            });
            from = to;
        }
        self.to = None;
        Some(kept_bytes)
    }

    /// Payload of a fragment, which is `start..end` of message `id`: from `borrowed` while it is borrowed, then from the shared memory or the pieces.
    /// Empty for another message.
    #[inline(never)] // small messages have none
    pub(super) fn payload<'a>(
        &'a self,
        borrowed: &Borrowed<'a>,
        id: SendId,
        (start, end): (usize, usize),
        (fragment, fragment_bytes): (u32, usize),
    ) -> &'a [u8] {
        match (self.to, &self.shared) {
            (Some(to), _) => borrowed.part(to, id, start..end),
            (None, Some(message)) => message.get(start..end).unwrap_or_default(),
            (None, None) => self.kept(fragment, fragment_bytes),
        }
    }

    fn kept(&self, fragment: u32, fragment_bytes: usize) -> &[u8] {
        let piece = (fragment / self.piece_fragments).wrapping_sub(self.first);
        let Some(piece) = self.pieces.get(piece as usize) else {
            return &[];
        };
        let start = (fragment % self.piece_fragments) as usize * fragment_bytes;
        let end = piece.bytes.len().min(start + fragment_bytes);
        &piece.bytes[start..end]
    }

    /// Notes that a fragment is acknowledged, for the first time. Returns the bytes that were released.
    pub(super) fn acknowledge(&mut self, fragment: u32, pool: &mut Pool) -> usize {
        if self.to.is_some() || self.shared.is_some() {
            return 0;
        }
        let index = (fragment / self.piece_fragments).wrapping_sub(self.first);
        if let Some(piece) = self.pieces.get_mut(index as usize) {
            piece.missing -= 1;
        }
        let mut freed = 0;
        while self.pieces.front().is_some_and(|piece| piece.missing == 0) {
            if let Some(piece) = self.pieces.pop_front() {
                freed += piece.bytes.len();
                pool.put(piece.bytes);
            }
            self.first += 1;
        }
        freed
    }

    /// Releases the shared memory and all pieces.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.shared = None;
        for piece in self.pieces.drain(..) {
            pool.put(piece.bytes);
        }
    }
}
