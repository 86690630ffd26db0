//! `tsumuji bench idle`: processor time of two waiting processes, as a share of a core.

use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::exchange::{Kind, Plan, Side};

use super::between::{Between, Pair};
use crate::Outcome;
use crate::talk::Talk;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// How long
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, inside: bool) -> Outcome {
    let pair = Pair::of(&args.between, inside)?;
    let mut plan = Plan::new(Kind::Idle, 0);
    (plan.iterations, plan.spin, plan.cpus) = (args.seconds, false, None);
    let measured = pair.measure(&plan)?;
    let share = |side: Side| side.cpu_seconds / measured.seconds;
    let (sender, receiver) = (share(measured.ends.sender), share(measured.ends.receiver));
    let told = format!(
        "waiting over {} for {} s: {:.2} % and {:.2} % of a core",
        measured.link,
        args.seconds,
        sender * 100.0,
        receiver * 100.0
    );
    let mut talk = Talk::new(args.json);
    talk.say(&told);
    talk.end(
        &json!({ "kind": "idle", "link": measured.link.to_string(), "seconds": measured.seconds, "cpu_share": [sender, receiver] }),
    )
}
