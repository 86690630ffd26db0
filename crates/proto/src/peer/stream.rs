//! The body of a long message that is handed over piece by piece while its fragments leave.
//!
//! Owned by an `Outgoing`. A piece is a copy of some whole fragments; it goes back to the pool when all of them are
//! acknowledged, so what a message of any length takes is bounded by what is in flight and [`AHEAD_BYTES`].
//!
//! Invariants: `pieces[i]` is piece `first + i`, and the first of them has at least one fragment that is not acknowledged; pieces
//! below `first` have none; `fed_bytes` is a multiple of a piece, or the whole message.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::pool::Pool;

/// What may wait to leave: enough to fill a link's burst, little enough to be still in the cache when it leaves.
pub(super) const AHEAD_BYTES: usize = 256 << 10;
/// A piece has about so many bytes: large enough to be copied fast, small enough that several wait.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Stream {
    piece_fragments: u32,
    first: u32,
    pieces: VecDeque<Piece>,
    fed_bytes: usize,
    /// There are no pieces: the message lies with the program.
    lent: bool,
}

#[derive(Debug)]
struct Piece {
    bytes: Vec<u8>,
    /// Fragments that are not acknowledged.
    missing: u32,
}

impl Stream {
    /// For a new message; what an earlier one left must have been given back.
    pub(super) fn begin(&mut self, fragment_bytes: usize) {
        self.piece_fragments = (PIECE_BYTES / fragment_bytes).max(1) as u32;
        (self.first, self.fed_bytes) = (0, 0);
    }

    pub(super) fn set_lent(&mut self, lent: bool) {
        self.lent = lent;
    }

    #[inline]
    pub(super) fn is_lent(&self) -> bool {
        self.lent
    }

    /// Makes pieces of a lent message, from the first fragment on that `acknowledged` does not mark. Returns their bytes; `None`: there
    /// is no memory.
    pub(super) fn keep(
        &mut self,
        message: &[u8],
        fragment_bytes: usize,
        fragments: u32,
        acknowledged: &[u64],
        pool: &mut Pool,
    ) -> Option<usize> {
        let is_missing = |fragment: u32| {
            let (word, bit) = (fragment / 64, fragment % 64);
            let word = acknowledged.get(word as usize).copied().unwrap_or(0);
            word & 1 << bit == 0
        };
        let first = (0..fragments).find(|&fragment| is_missing(fragment))?;
        self.first = first / self.piece_fragments;
        let mut kept_bytes = 0;
        let mut from = self.first * self.piece_fragments;
        while from < fragments {
            let to = fragments.min(from + self.piece_fragments);
            let start = from as usize * fragment_bytes;
            let end = message.len().min(to as usize * fragment_bytes);
            let Some(mut bytes) = pool.take(end - start) else {
                self.clear(pool);
                self.lent = true;
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
        self.fed_bytes = message.len();
        self.lent = false;
        Some(kept_bytes)
    }

    pub(super) fn fed_bytes(&self) -> usize {
        self.fed_bytes
    }

    /// Takes the next piece from `rest`, all that was not taken yet. Returns how many fragments it has, 0 if there is no memory.
    pub(super) fn feed(&mut self, rest: &[u8], fragment_bytes: usize, pool: &mut Pool) -> u32 {
        let size = rest
            .len()
            .min(self.piece_fragments as usize * fragment_bytes);
        let Some(mut bytes) = pool.take(size) else {
            return 0;
        };
        bytes.extend_from_slice(&rest[..size]);
        self.fed_bytes += size;
        let fragments = size.div_ceil(fragment_bytes) as u32;
        self.pieces.push_back(Piece {
            bytes,
            missing: fragments,
        });
        fragments
    }

    /// The payload of a fragment that was fed and is not acknowledged; empty for any other.
    #[inline]
    pub(super) fn fragment(&self, fragment: u32, fragment_bytes: usize) -> &[u8] {
        let piece = (fragment / self.piece_fragments).wrapping_sub(self.first);
        let Some(piece) = self.pieces.get(piece as usize) else {
            return &[];
        };
        let start = (fragment % self.piece_fragments) as usize * fragment_bytes;
        let end = piece.bytes.len().min(start + fragment_bytes);
        &piece.bytes[start..end]
    }

    /// A fragment is acknowledged for the first time. Returns the bytes that came free.
    pub(super) fn acknowledge(&mut self, fragment: u32, pool: &mut Pool) -> usize {
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

    /// Gives back whatever is held.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        for piece in self.pieces.drain(..) {
            pool.put(piece.bytes);
        }
        self.lent = false;
    }
}
