//! The engine: reliability, flow and congestion control between one node and all its peers.
//!
//! Sans-I/O: no clock, no socket, no thread, no randomness. `node` drives it over a link, `sim` drives it in virtual time. Same inputs, same outputs.
//! Rules are numbered in docs/protocol.md.
//!
//! `engine` is the interface to the driver; `peer` holds the state of one peer (`session` agrees on a session, `send` and `receive` are the two
//! halves); `congestion` is the interface of both congestion controls; `receiving`, which is `credit` or `suci`, decides how much each peer may send
//! to this node; `pool` reuses buffers.
#![no_std]
extern crate alloc;

pub mod time;

mod alarms;
mod config;
mod congestion;
mod counters;
mod credit;
mod datagrams;
mod engine;
mod event;
mod memory;
mod message;
mod numbers;
mod overtaken;
mod path;
mod peer;
mod policy;
mod pool;
mod posted;
mod receiving;
mod rules;
mod suci;
mod tuning;

pub use config::{Config, PeerLink};
pub use congestion::{Congestion, CongestionKind, UnknownCongestion};
pub use counters::{Counters, Drop, DropCounts};
pub use engine::{Direct, DirectFrame, Engine, Placement};
pub use event::{Accounts, Destination, Event, Flow, Queued, Window};
pub use message::{Body, Borrowed, Delivery, Payload, SendId, Sink, SubmitError};
pub use peer::pace::Pace;
pub use policy::{FlowPolicy, Room, Sender};
pub use posted::{OutOfMemory, Posted, ReceiveBuffer};
pub use time::{Duration, Instant};
pub use tsumuji_wire::{Channel, Datagram, DeliveryClass, NodeId, Priority};
