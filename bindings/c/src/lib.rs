//! The C library: `suci.h` with the paper's calls, and `tsumuji.h`, a plain API for everything else an endpoint offers.
//!
//! Modules: `suci` and `api` are what C calls, and the source of the headers (`tests/headers.rs`); `handle` checks which thread may use a handle, and
//! contains panics; `ffi` turns pointers into Rust's types; `fold` calls the program's functions; `within` is what those may call; `failure` turns
//! errors into codes, `errno` and a text. Without `unsafe`: `objects` (what C holds by pointer beside handles), `node` (what a handle owns),
//! `address_map`, `settings` (options by name), `collective_state` and `board_state` (collectives and boards of a handle).
//!
//! Invariants: no panic crosses into C; NULL and impossible numbers are errors, as far as a pointer shows them; no call on the path of messages
//! allocates for C's sake, nor when it only returns "not now".
//!
//! Left out on purpose: pipelines and other executors (a C program has its own loop), and the solver.

#![allow(
    clippy::missing_safety_doc,
    reason = "comments of exported functions are the headers'; the headers' heads say once what every pointer must be"
)]

mod address_map;
mod api;
mod board_state;
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
