//! Relaxation by several processes: a judge (node 0) and workers (nodes 1 to N), over their own messages.
//!
//! The judge distributes the rows, receives lap reports, and decides by exact residuals; workers relax and publish. `message` has the messages
//! between them; `judge` and `worker` are state machines without I/O, tested under a simulated lossy network (`net`); `run` and `serve` give them an
//! endpoint and a clock. `division` decides which thread of a worker computes, `beside` is the second one. `field` has a worker's numbers, `readers` to whom they go, `walk` and `round` its estimates of the residual; `watch` ends epochs, and `accelerate`
//! combines them where laps alone would converge too slowly.
//!
//! Left out on purpose: taking over the rows of a lost worker (the run ends with an error that names it), and choosing hosts.

mod accelerate;
mod beside;
mod codec;
mod config;
mod division;
mod field;
mod judge;
mod message;
mod readers;
mod round;
mod run;
mod serve;
mod stats;
mod step;
mod walk;
mod watch;
mod worker;

#[cfg(test)]
mod net;

pub use config::{Mode, SolveConfig};
pub use message::WorkerStats;
pub use run::{Input, SolveError, Solved, run};
pub use serve::{WorkerError, worker_main};
pub use step::WorkerFault;
