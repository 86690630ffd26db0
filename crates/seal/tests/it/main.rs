//! Seals on links in memory with an attacker between, on real links, and under whole endpoints. One program for all: each links them again.

#[path = "../../../link/tests/common/mod.rs"]
mod common;
#[path = "../mem/mod.rs"]
mod mem;

mod adversary;
mod conformance_sealed;
mod engine;
mod renewal;
mod rotation;
