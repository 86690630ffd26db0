//! Relaxation on one machine: the kernels, the sweepers that every mode uses, and the modes that need no network.
//!
//! `distributed` uses [`Sweeper`] and [`StopRule`] for each worker; the command line calls [`single`] and [`threads`]
//! for comparison. Nothing here knows of frames or nodes.

pub mod kernels;
mod lu;
mod stop;
mod sweep;

pub use stop::{Limits, LimitsError, StopRule};
pub use sweep::{Inner, Relaxation, RelaxationError, Sweeper};
