//! The other sides of measurements: what the processes that a measurement starts are to do.

use std::error::Error;

use serde::{Deserialize, Serialize};

use crate::streams::ends::{self, Role};
use crate::{away, cpu, delay, exchange, group, streams, sum32};

/// The hidden command of `tsumuji` that calls [`serve`] with the argument behind it.
pub(crate) const WORD: &str = "bench-serve";

/// That argument.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    Exchange(exchange::Plan),
    Away(away::Plan),
    Sum32(sum32::Plan),
    Delay(delay::Plan),
    Cpu(cpu::Plan),
    Group(group::Plan),
    Stream(streams::Plan, Role),
}

/// Does it, in the process that a measurement starts.
pub fn serve(task: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    match serde_json::from_str(task)? {
        Task::Exchange(plan) => exchange::serve(&plan)?,
        Task::Away(plan) => away::serve(&plan)?,
        Task::Sum32(plan) => sum32::serve(&plan)?,
        Task::Delay(plan) => delay::serve(&plan)?,
        Task::Cpu(plan) => cpu::serve(&plan)?,
        Task::Group(plan) => group::serve(plan)?,
        Task::Stream(plan, role) => ends::serve(plan, role)?,
    }
    Ok(())
}
