//! `tsumuji lab`: who copies a message to the network interface, who starts its send, and what that takes.

pub(crate) mod model;
pub(crate) mod run;

use crate::Outcome;

/// Compute or measure what a send takes by who copies and who starts it, as the paper MECH asks.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji lab model myrinet\n  tsumuji lab run --sizes 64,4K,64K --rounds 3"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Send time and bandwidth from a short description: stages, clock, overlap, rates of buses and links.
    #[command(
        after_help = "Examples:\n  tsumuji lab model myrinet\n  tsumuji lab model rhinet --size 4096 --json\n  tsumuji lab model rhinet --mhz 33 --burst 8M\n  tsumuji lab model myrinet --toml > mine.toml\n  tsumuji lab model mine.toml --size 4..64K --variant User\n  tsumuji lab model this"
    )]
    Model(model::Args),
    /// The paper's ways to send on this machine: who copies, who starts, and where the time goes.
    #[command(
        after_help = "Examples:\n  tsumuji lab run\n  tsumuji lab run --sizes 4..64K --rounds 9 --json\n  tsumuji lab run --sizes 16,64,256,4K --plot lab.svg --csv lab.csv"
    )]
    Run(run::Args),
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Outcome {
    match &args.what {
        What::Model(args) => crate::bench::interruptible(|| model::run(args)),
        What::Run(args) => crate::bench::interruptible(|| run::run(args)),
    }
}
