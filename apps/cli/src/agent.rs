//! `tsumuji agent`: what a launch over several hosts starts on each, to run one program there. Not for people.

use tsumuji_node::bootstrap::serve_agent;

use crate::{DONE, Outcome};

/// The words after the program's name.
pub(crate) const WORDS: &str = "agent";

/// Run one program for a launcher on another host.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the command.
pub(crate) fn run(_: Args) -> Outcome {
    serve_agent()?;
    Ok(DONE)
}
