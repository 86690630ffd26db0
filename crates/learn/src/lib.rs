//! Gossip learning of linear models: least squares, ridge, logistic regression and linear support vector machines.
//!
//! `data` reads files; `problem` makes them ready and turns parameters into a `model`. `objective` has loss, gradient and Hessian of one node's rows;
//! `sgd` and `newton` are the two methods, without messages. `single` runs them in one process, `gossip` in several. `tuning` has the
//! numbers of all.

mod config;
pub mod data;
pub mod gossip;
mod model;
mod newton;
mod objective;
mod problem;
pub mod report;
mod scaling;
mod sgd;
pub mod single;
mod tuning;

pub use config::{Average, Kind, LearnConfig, Method, Mode, Schedule, SgdConfig};
pub use model::{Model, ModelError, Predictions, Score};
pub use newton::NEWTON_WIDTH_MAX;
pub use objective::{Shape, Share};
pub use problem::{Preparation, Problem, ProblemError};
