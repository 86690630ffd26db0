//! The engine on simulated wires, under both congestion controls. One program for all: each links the engine and the simulator again.
#![allow(
    clippy::duplicate_mod,
    reason = "the scenarios are run under each congestion control"
)]

mod credit;
mod datagrams;
mod hands;
mod many;
mod ring;
mod rings;
mod suci;
