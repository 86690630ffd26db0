//! Relaxation of linear systems `A x = b`: alone, by threads, and by processes that exchange what they have.
//!
//! - [`system`]: matrices, where they come from, how rows are shared out.
//! - [`local`]: kernels, sweepers, and the modes that need no network.
//! - [`distributed`]: judge and workers in several processes.
//! - [`outlook`]: what can be said of convergence up front.
//! - [`report`]: progress and outcome.

pub mod distributed;
pub mod local;
pub mod outlook;
pub mod report;
pub mod system;
