//! Frame formats: bytes to frames and back (docs/protocol.md).
//!
//! Two levels: `raw` is the layout on the wire, `frame` is what a legal frame means; `id` names things that travel.
//! Any bytes may be parsed: the answer is a frame or a reason to drop it, never a panic. The engine parses and writes
//! frames; others name nodes and datagrams by it. Knows neither links nor time.
#![no_std]

pub mod bundle;
pub mod frame;
pub mod id;
mod raw;

pub use frame::{
    Ack, Control, Data, Datagram, DropReason, Frame, Hello, Permit, flags, parse, parse_data,
    parse_data_head, source_of,
};
pub use id::{Channel, DeliveryClass, NodeId, Priority};
pub use raw::{
    ACK_HEADER_BYTES, DATA_HEADER_BYTES, DATAGRAM_HEADER_BYTES, HELLO_BYTES, MAX_PAYLOAD_BYTES,
    PERMIT_BYTES, STAMP_BYTES, VERSION,
};
