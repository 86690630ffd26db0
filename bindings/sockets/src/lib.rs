//! The sockets layer: loaded before a program's C library, it carries the program's TCP connections to other programs that have it.
//!
//! The real connection is kept: as the descriptor's number, as the way to wake the other end, and as the detector of its end. Only data moves elsewhere,
//! through rings in shared memory, to another program of this host or to the host's gateway (docs/sockets.md).
//!
//! Rooms: `exports` is what programs call, by the C library's names; `real` is what they would have called. `table` says which descriptors are ours.
//! `handshake` finds the other end, `segment` has the memory, which `tsumuji_streams` lays out. `stream` moves bytes and waits, `demotion` goes back to TCP, `ready`,
//! `poll` and `epoll` say what could be moved. `start`, `exec` and `close` are the life of processes and descriptors. `early` knows what a socket was before it connected. `sys` asks the kernel. `tuning` has the numbers.
//!
//! Invariants: no function of the C library that this library replaces is called from inside, so nothing of `std`'s input and output; no panic
//! crosses into the program (an `extern "C"` function that panics ends the process); `errno` changes only where a call fails; before `start` has run
//! everything works.
//!
//! Left out on purpose: datagram sockets; anything for programs that call the kernel without the C library.

#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "what programs call has no name in the tests' own program"
    )
)]

mod address;
mod arena;
mod brief;
mod close;
mod demotion;
mod doorbell;
mod early;
mod epoll;
mod exec;
mod explain;
mod exports;
mod handshake;
mod hello;
mod idle;
mod listener;
mod lock;
mod poll;
mod ready;
mod real;
mod segment;
mod start;
mod stream;
mod sys;
mod table;
mod tuning;

use tsumuji_streams::ring;
