//! Learning by several processes: a judge (node 0) and workers (nodes 1 to N), each with its own rows.
//!
//! The judge hands out the rows, and certifies: it never takes part in a mean. Workers exchange with each other. By `newton`, each publishes the
//! statistic of its rows at the common parameters with a version (`table`); whoever holds the newest of all takes the same step. Many workers sum their
//! statistics by pairs instead (`push_sum`). By `sgd`, each steps by its own rows and averages its parameters with those of random peers (`exchange`).
//! `message` has what is sent; `beside` is a thread that may step; `worker` and `judge` decide, `serve` and `run` give them an endpoint and a clock.
//!
//! Invariants: parameters are accepted only if the gradient of all rows that take part, made for these parameters and sent reliably, is below the
//! tolerance. Loss and delay can put that off, never falsify it. A worker that dies, or whose statistics most others refuse, is dropped with its rows,
//! and the result says so.

mod allreduce;
mod beside;
mod exchange;
mod judge;
mod message;
mod push_sum;
mod run;
mod serve;
#[doc(hidden)]
pub mod simulated;
mod table;
mod tcp;
mod worker;

pub use run::{RunError, Watch, run};
pub use serve::{WorkerError, corrupt_worker_main, worker_main};
pub use tcp::TcpError;
pub use worker::WorkerFault;
