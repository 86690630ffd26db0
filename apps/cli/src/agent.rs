//! `tsumuji agent`: started by a launch over several hosts on each, to run one program there. Not for users.

use tsumuji_node::bootstrap::serve_agent;

use crate::{DONE, Outcome};

/// Arguments that select this command.
pub(crate) const WORDS: &str = "agent";

/// Runs the command.
pub(crate) fn run() -> Outcome {
    serve_agent()?;
    Ok(DONE)
}
