//! Linear systems `A x = b`, solved by Krylov methods, factorisations and relaxation: sequentially, by threads, and by processes that exchange values.
//!
//! - [`system`]: matrices, their sources, and the partition of rows.
//! - [`local`]: kernels, sweepers, and the modes that need no network.
//! - [`krylov`]: conjugate gradients and GMRES, by threads and between processes.
//! - [`distributed`]: judge and workers in several processes.
//! - [`method`]: the choice of a method, for one process and for several.
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
