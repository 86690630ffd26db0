//! The board: a vector of `f64` that every node holds a copy of, updated by broadcast and read without waiting (RELAX).
//!
//! Copies are not coherent on purpose. Each element has one owner, which overwrites it and broadcasts the new value; a reader uses the newest value
//! that has arrived. A convergent iteration is only delayed by an update that is lost or late, so updates travel best effort. The board guarantees
//! that an older value never replaces a newer one, whatever the network does (`board`), and that a lost update is repaired by the next one or by
//! [`Board::repair`] (`publish`); a program can ask how old a copy is, or wait until it is newer ([`wait_fresh`]).
//!
//! Called by `solve` and the C library. Owns no endpoint: frames leave through a [`Carrier`] (an endpoint is one), arrive through
//! [`Board::apply`].
//!
//! ```
//! use tsumuji_board::{Board, Lap};
//! use tsumuji_wire::{NodeId, Datagram};
//!
//! // Node 0 owns elements 0..2, node 1 owns 2..4; this is node 0's copy.
//! let mut board = Board::new(7, NodeId(0), vec![0..2, 2..4]).unwrap();
//! let payload = 1.5f64.to_le_bytes();
//! let datagram = Datagram { source: NodeId(1), incarnation: 9, channel_id: 7, epoch: 0, lap: 1, key: 3, payload: &payload };
//! assert_eq!(board.apply(&datagram), Some(3..4));
//! assert_eq!(board.get(3), 1.5);
//! assert_eq!(board.lap(NodeId(1)), Some(Lap::FIRST));
//! assert_eq!(board.apply(&datagram), None, "the same datagram again is not newer");
//! ```

mod board;
mod elements;
mod fresh;
mod lap;
mod publish;
mod store;
mod tuning;

pub use board::{Board, BoardError, Drops, FORMER_INCARNATIONS, Reads};
pub use elements::{Elements, ElementsError, ElementsTuner};
pub use fresh::{Feeding, wait_fresh};
pub use lap::Lap;
pub use publish::{Carrier, Published};
pub use store::{Private, Reader, Shared, Store};
