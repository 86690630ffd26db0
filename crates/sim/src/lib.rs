//! Many engines on a simulated switch, in virtual time, from one seed.
//!
//! Runs the production engine in the production loop (`tsumuji_node::simulated`); only what lies below is simulated. Used by tests alone.
//!
//! ```text
//! program ─ engine ─ transmit ring ─ card's rate ─▶ switch: partition, loss, damage, duplication,
//!                                                     port buffer (tail drop), port rate, delay, reordering
//! program ◀ engine ◀ processor's cost per frame ◀ receive ring (overflow counted) ◀──┘
//! ```
//!
//! A judge (`oracle`) sees every submission, delivery and event, and stops the run at the first message that comes twice, out of
//! its channel's order, changed, or to the wrong life of a process; a run that waits for something has limited patience. The last
//! words of a failure are the seed and the command that replays it.
//!
//! # Damage
//!
//! Where a link may damage frames, a checksum is around each beneath the engine; `Net::checked` puts the same one around those of the
//! simulation, and then nothing is forgiven. Without, frames rely on what is below, as those in shared memory do, and the simulated damage comes in kinds:
//! `Damage::Found` is what a link's checksum makes of nearly all damage, a loss; `Damage::Truncated`, `Damage::Padded` and
//! `Damage::Garbage` are what broken or foreign senders do, and a parser must refuse them (or ignore the padding), so that every
//! promise holds; `Damage::Flipped` may hit a payload, or turn a frame into another legal one, where an open engine cannot know. A pair
//! whose bits are flipped is therefore forgiven (`Net::forgive`) all but this: no panic, no endless loop, bounded memory, other
//! pairs unharmed.
#![forbid(unsafe_code)]

mod card;
pub mod chaos;
mod frames;
mod host;
mod net;
mod oracle;
mod payload;
mod process;
mod rng;
mod switch;
mod timeline;
mod wires;

pub use card::Card;
pub use host::{Pace, Received, ReceivedDatagram};
pub use net::Net;
pub use process::{Process, Production, config};
pub use rng::{Rng, SEED_VARIABLE, Seed};
pub use switch::Traffic;
pub use wires::{
    Conditions, Damage, ETHERNET_OVERHEAD_BYTES, ETHERNET_SHORTEST_BYTES, goodput, wire_bytes,
};
