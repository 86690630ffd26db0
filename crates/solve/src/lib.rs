//! Relaxation of linear systems `A x = b`: alone, by threads, and by processes that exchange what they have.
//!
//! - [`system`]: matrices, where they come from, how rows are shared out.
//! - [`local`]: kernels, sweepers, and the modes that need no network.
//! - [`report`]: progress and outcome.

pub mod local;
pub mod report;
pub mod system;
