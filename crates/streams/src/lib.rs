//! What the two ends of a carried TCP connection share: the memory with its rings and words, the names of mailboxes, and the hello.
//!
//! The ends are a program with the sockets layer (`bindings/sockets`) and another one of the same host, or the host's gateway (`tsumuji-gateway`), which
//! stands for a program of another host.
//!
//! Invariants: nothing here calls the C library or the kernel; every word that another process can write is bounded by who reads it.
//!
//! Left out on purpose: mapping memory and passing descriptors, which a preloaded library does by system calls of its own.

pub mod address;
pub mod hello;
pub mod news;
pub mod ring;
mod tuning;
