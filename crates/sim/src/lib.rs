//! Many engines on a simulated switch, in virtual time, from one seed.
//!
//! Runs the production engine in the production loop (`tsumuji_node::simulated`); only the layers below are simulated. Used by tests and
//! examples, and by the feature `simulated` of `tsumuji_solve`.
//!
//! ```text
//! program ─ engine ─ transmit ring ─ card's rate ─▶ switch: partition, loss, damage, duplication,
//!                                                     port buffer (tail drop), port rate, delay, reordering
//! program ◀ engine ◀ processor's cost per frame ◀ receive ring (overflow counted) ◀──┘
//! ```
//!
//! A judge (`oracle`) sees every submission, delivery and event, and stops the run at the first message that comes twice, out of its channel's order,
//! changed, or to the wrong incarnation of a process; a run that waits for something has limited patience. A failure ends with the seed and the
//! command that replays it; in a program (`Net::in_program`) it is an error (`judged`).
//!
//! With `Config::ring_bytes` cards are places in shared memory instead, as on one host: frames are in rings, and messages pass the queue or are read
//! in their sender's memory (R-96 to R-99), as in production.
//!
//! # Damage
//!
//! Where a link may damage frames, a checksum is around each beneath the engine; `Net::checked` puts the same one around frames of the simulation,
//! and then every fault counts. Without checksums, frames rely on the link, as over shared memory, and the simulated damage has several kinds:
//! `Damage::Found` is damage that a link's checksum finds, as it nearly always does: a loss; `Damage::Truncated`, `Damage::Padded` and
//! `Damage::Garbage` come from broken or foreign senders, and a parser must refuse them (or ignore the padding), so that every guarantee holds;
//! `Damage::Flipped` may change a payload, or turn a frame into another legal one, which an unsealed engine cannot notice. A pair with flipped bits
//! is therefore forgiven (`Net::forgive`) all but this: no panic, no endless loop, bounded memory, other pairs unharmed.
#![forbid(unsafe_code)]

mod card;
pub mod chaos;
mod host;
mod net;
mod oracle;
mod payload;
mod process;
mod rings;
mod rng;
mod switch;
mod timeline;
mod violation;
mod wires;

pub use card::Card;
pub use host::{Arrivals, Pace, Received, ReceivedDatagram};
pub use net::Net;
pub use process::{Process, Production, config};
pub use rng::{Rng, SEED_VARIABLE, Seed};
pub use switch::Traffic;
pub use violation::{Violation, judged};
pub use wires::{
    Conditions, Damage, ETHERNET_OVERHEAD_BYTES, ETHERNET_SHORTEST_BYTES, goodput, wire_bytes,
};
