//! Relaxation of linear systems `A x = b`: sequentially, by threads, and by processes that exchange their values.
//!
//! - [`system`]: matrices, their sources, and the partition of rows.
//! - [`local`]: kernels, sweepers, and the modes that need no network.
//! - [`krylov`]: conjugate gradients and GMRES, for whatever relaxes badly.
//! - [`distributed`]: judge and workers in several processes.
//! - [`method`]: the choice among all of them for one process.
//! - [`fixed_point`]: other convergent problems, of users.
//! - [`outlook`]: the expected convergence of a system.
//! - [`plan`]: what each method, and each number of workers, would take.
//! - [`report`]: progress and outcome.

pub mod distributed;
pub mod fixed_point;
pub mod krylov;
pub mod local;
pub mod method;
pub mod outlook;
pub mod plan;
pub mod report;
pub mod system;
