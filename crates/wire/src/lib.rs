//! Frame formats: conversion between bytes and frames (docs/protocol.md).
//!
//! There are two levels: `raw` is the layout on the wire, `frame` is the meaning of a legal frame; `id` has the names that frames carry, and `join`
//! the frames by which a process becomes a member. Any bytes may be parsed: the result is a frame or the reason why they are none, never a panic. The
//! engine parses and writes frames; other crates use the names of nodes and channels. Knows neither links nor time.
#![no_std]

pub mod bundle;
pub mod frame;
pub mod id;
pub mod join;
mod raw;

pub use frame::{
    Ack, Control, Data, Datagram, DropReason, Frame, Hello, Permit, flags, parse, parse_data,
    parse_data_head, source_of,
};
pub use id::{Channel, DeliveryClass, NodeId, Priority};
pub use join::{Admission, Join, Refusal};
pub use raw::{
    ACK_HEADER_BYTES, DATA_HEADER_BYTES, DATAGRAM_HEADER_BYTES, HELLO_BYTES, MAX_PAYLOAD_BYTES,
    PERMIT_BYTES, STAMP_BYTES, VERSION,
};
