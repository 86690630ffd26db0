//! Linear systems by several processes: a judge (node 0) and workers (nodes 1 to N), over their own messages.
//!
//! The judge distributes the rows, receives lap reports, and decides by exact residuals; workers relax and publish, or iterate a Krylov method together
//! (`space`). `message` has the messages between them; `judge` and `worker` are state machines without I/O, tested under a simulated lossy network
//! (`net`); `run` and `serve` give them an endpoint and a clock. `beside` is a worker's second thread, which may compute. `field` has a worker's numbers,
//! `readers` to whom they go, `blocks` what comes reliably, `feed` and `loading` the two ends of rows under way, `walk` and `round` its estimates of the residual;
//! `throttle` sends updates as fast as they leave, `watch` ends epochs, `ranges` and `pace` divide rows anew, `choice` has
//! relaxation follow a Krylov method that waits too long, and `local::accelerate` combines epochs where laps alone would converge too slowly.
//!
//! A judge that dies is replaced by another process (`succession`).
//!
//! Left out on purpose: choosing hosts.

mod beside;
mod blocks;
mod choice;
pub mod codec;
mod config;
mod error;
mod feed;
mod field;
mod judge;
mod loading;
mod message;
mod pace;
mod ranges;
mod readers;
mod round;
mod run;
mod serve;
mod space;
mod stage_clock;
mod stats;
mod step;
mod succession;
mod throttle;
mod walk;
mod watch;
mod worker;

/// The same without endpoints and clocks, for simulations.
#[cfg(feature = "simulated")]
pub mod simulated {
    pub mod machines;
}

#[cfg(test)]
mod net;

pub use config::{Krylov, Mode, Shares, SharesError, SolveConfig};
pub use error::SolveError;
pub use message::WorkerStats;
pub(crate) use ranges::in_proportion;
pub use run::{Checkpoint, Solved, Start, Watch, run};
pub use serve::{WorkerError, worker_main};
pub use stats::peak_rss_bytes;
pub use step::WorkerFault;
