//! The C library: `suci.h`, the paper's names, and `tsumuji.h`, a plain API for everything else an endpoint offers.
//!
//! Rooms: `suci` and `api` are what C calls, and what the headers are made from (`tests/headers.rs`); `handle` says which thread
//! may use a handle and keeps panics in; `ffi` turns pointers into Rust's types; `fold` calls functions of the program's; `within` is what they may call; `failure` turns Rust's errors into codes, `errno` and a text.
//! Without `unsafe`: `objects` (what C holds by pointer beside handles), `node` (what a handle owns), `book` (ids and addresses), `settings` (options by
//! name), `together` (collectives of a handle).
//!
//! Invariants: no panic crosses into C; NULL and senseless numbers are errors, as far as a pointer shows them; no call on the
//! way of messages allocates because C made it, nor when it only says "not now".
//!
//! Left out on purpose: pipelines and other executors (a C program has its own loop), and the solver.

#![allow(
    clippy::missing_safety_doc,
    reason = "comments of exported functions are the headers'; the headers' heads say once what every pointer must be"
)]

mod address_map;
mod api;
mod collective_state;
mod failure;
mod ffi;
mod fold;
mod handle;
mod node;
mod objects;
mod settings;
mod suci;
mod within;

pub use api::*;
pub use suci::*;
