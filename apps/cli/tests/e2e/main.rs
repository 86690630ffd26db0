//! The real program, end to end, and real processes with endpoints. One program for all, for each one links the endpoint again.

mod bad_input;
mod bad_learning_input;
mod bench;
mod captures;
mod circuits;
mod commands;
mod common;
mod cycles;
mod deaths;
mod dpdk;
mod failures;
mod far;
mod full_disk;
mod gateways;
#[path = "../../../../bindings/sockets/tests/semantics/groups.rs"]
mod groups;
mod hosts;
mod interrupts;
mod joins;
mod keyed;
mod lab;
mod launching;
mod learn;
mod outputs;
mod paper;
mod predictions;
mod printing;
mod relays;
mod runs;
mod schedules;
#[path = "../../../../crates/link/tests/common/segment.rs"]
mod segment;
mod solve;
mod talk;
mod testbed;
mod top;
mod tune;
mod waiting;
