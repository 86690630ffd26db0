//! The body of a long message that is handed over piece by piece while its fragments leave.
//!
//! Owned by an `Outgoing`. A piece is a copy of some whole fragments; it goes back to the pool when all of them are
//! acknowledged, so what a message of any length takes is bounded by what is in flight and [`AHEAD_BYTES`].
//!
//! Invariants: `pieces[i]` is piece `first + i` and has at least one fragment that is not acknowledged; pieces below `first`
//! have none; `fed_bytes` is a multiple of a piece, or the whole message.

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
    }
}
