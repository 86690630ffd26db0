//! Blocks of x that other workers send reliably: at the end of an epoch, of a synchronous lap, and at the beginning of a division.
//!
//! Owned by `worker`. Pieces of an epoch or a lap that has not begun here wait.
//!
//! Invariant: what waits is bounded by a few vectors; a piece is installed only if it is all within what is read of its sender.

use super::config::Mode;
use super::field::Field;
use super::message::{Estimate, Piece, is_older};
use std::collections::VecDeque;
use std::ops::Range;
use tsumuji_board::{Lap, Reads};

/// How much of a worker's block has arrived, of which epoch and lap.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    epoch: u32,
    lap: u32,
    values: usize,
    estimate: Estimate,
    stops: bool,
}

#[derive(Debug, Default)]
pub(super) struct Blocks {
    received: Vec<Received>,
    early: VecDeque<(usize, Piece)>,
}

/// A piece does not fit: the sender is not the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit;

impl Blocks {
    /// Begins a division among `workers` workers, in epoch `epoch`.
    pub(super) fn begin(&mut self, workers: usize, epoch: u32) {
        self.received = vec![Received::default(); workers];
        self.early
            .retain(|(_, piece)| !is_older(piece.epoch, epoch));
    }

    /// Keeps a piece whose time has not come. `n`: elements of x. Others keep at most two epochs or laps ahead.
    pub(super) fn keep(&mut self, from: usize, piece: Piece, n: usize) -> Result<(), Misfit> {
        // A block of nothing is one piece, too.
        let size = |piece: &Piece| piece.values.len().max(1);
        let waiting = self.early.iter().filter(|early| early.0 == from);
        let waiting: usize = waiting.map(|early| size(&early.1)).sum();
        if waiting + size(&piece) > 4 * n.max(1) {
            return Err(Misfit);
        }
        self.early.push_back((from, piece));
        Ok(())
    }

    /// Stores a piece in x.
    pub(super) fn install(
        &mut self,
        field: &mut Field,
        rows: Range<usize>,
        from: usize,
        piece: &Piece,
    ) -> Result<(), Misfit> {
        let bounds = match field.reads(from) {
            Reads::Whole => rows,
            Reads::Packed(list) => 0..list.len(),
        };
        let end = piece.start.saturating_add(piece.values.len());
        let (Some(received), Some(lap)) = (self.received.get_mut(from), Lap::new(piece.lap)) else {
            return Err(Misfit);
        };
        if piece.start < bounds.start || end > bounds.end {
            return Err(Misfit);
        }
        if (received.epoch, received.lap) != (piece.epoch, piece.lap) {
            *received = Received {
                epoch: piece.epoch,
                lap: piece.lap,
                ..Received::default()
            };
        }
        received.values += piece.values.len();
        (received.estimate, received.stops) = (piece.estimate, piece.stops);
        field.install(from, piece.start, &piece.values, lap);
        Ok(())
    }

    /// Takes out the pieces that can be installed now.
    pub(super) fn take_ready(
        &mut self,
        mode: Mode,
        epoch: u32,
        lap: Lap,
    ) -> VecDeque<(usize, Piece)> {
        let is_ready =
            |piece: &Piece| piece.epoch == epoch && (mode != Mode::Sync || piece.lap == lap.get());
        let (ready, rest) = std::mem::take(&mut self.early)
            .into_iter()
            .partition(|(_, piece)| is_ready(piece));
        self.early = rest;
        ready
    }

    /// Whether all that is read of worker `from` has arrived.
    pub(super) fn is_whole(
        &self,
        (mode, epoch, lap): (Mode, u32, Lap),
        from: usize,
        field: &Field,
    ) -> bool {
        let received = &self.received[from];
        received.epoch == epoch
            && received.values == field.read_elements(from)
            && (mode != Mode::Sync || received.lap == lap.get())
    }

    /// The estimate that came with a worker's newest block, and whether that worker was told to stop.
    pub(super) fn told(&self, from: usize) -> (Estimate, bool) {
        (self.received[from].estimate, self.received[from].stops)
    }
}
