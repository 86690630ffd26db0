//! Relaxation by several processes: a judge (node 0) and workers (nodes 1 to N), over their own messages.
//!
//! The judge hands out the rows, listens to lap reports, and decides by exact residuals; workers relax and publish. What
//! they say to each other is in `message`; what each does when is in `judge` and `worker`, two machines without I/O that
//! are tested under a lossy network of their own; `run` and `serve` give them an endpoint and a clock. `field` is what a
//! worker relaxes, `walk` and `round` what it learns of the residual on the way; `watch` ends epochs, and `accelerate`
//! combines them where laps alone would crawl.
//!
//! Left out on purpose: taking over the rows of a lost worker (its loss ends the run, by name), and choosing hosts.

mod accelerate;
mod codec;
mod config;
mod field;
mod judge;
mod message;
mod round;
mod run;
mod serve;
mod stats;
mod walk;
mod watch;
mod worker;

#[cfg(test)]
mod net;

pub use config::{Mode, SolveConfig};
pub use message::WorkerStats;
pub use run::{Input, SolveError, Solved, run};
pub use serve::{WorkerError, worker_main};
pub use worker::WorkerFault;
