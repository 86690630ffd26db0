//! The laboratory: who copies a message to the network interface, and who starts its send?
//!
//! The paper MECH measures six ways to send: descriptor and data are copied by the processor or fetched by the interface, the start is the user's or a system
//! call's. [`description`] reads a machine and its ways from a short file, [`model`] computes what they take, [`beside`] compares that with what was measured.
//! The paper's two machines are [`shipped`]. Called by `tsumuji lab` and `tsumuji paper mech-…`.
//!
//! These compute only: no clock, no thread, and no file but the description. [`measure`] sends the same ways on this machine, and [`fit`] describes it.

pub mod beside;
pub mod description;
pub mod fit;
pub mod measure;
pub mod model;
pub mod shipped;

pub use description::{Description, DescriptionError};
pub use model::{Outcome, Setting};
