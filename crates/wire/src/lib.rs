//! Frame formats: bytes to frames and back (docs/protocol.md).
//!
//! `id` names things; `raw` is the layout on the wire; `frame` is what a legal frame means.
//! Any bytes may be parsed: the answer is a frame or a reason to drop, never a panic.
#![no_std]

pub mod id;
pub use id::{Lane, NodeId, DeliveryClass, Priority};

/// A best-effort frame's content: values of a shared vector, or a program's own *latest* message.
///
/// Receivers take a share only if it is newer than the stamp they hold for its source and place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share<'a> {
    /// Who wrote it.
    pub source: NodeId,
    /// The life of the source that wrote it.
    pub incarnation: u32,
    /// Which board, or which of the program's own uses.
    pub port: u16,
    /// Period of the computation; shares of another epoch are stale.
    pub epoch: u32,
    /// The source's lap when it wrote the values; wraps.
    pub lap: u32,
    /// Index of the first element.
    pub start: u32,
    /// The values, as bytes. A board's elements are f64, little-endian.
    pub payload: &'a [u8],
}
