//! `tsumuji bench loss`: a transfer and small messages under loss, compared with TCP, in a testbed made for it.

use anyhow::{Context, anyhow, ensure};
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::{Ours, testbed};
use tsumuji_bench::loss::{self, Plan};
use tsumuji_node::LinkSpec;
use tsumuji_testbed::Fraction;

use crate::Outcome;
use crate::talk::Talk;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Loss towards either host; several by commas
    #[arg(long, value_name = "P", value_delimiter = ',', default_value = "1%,5%")]
    loss: Vec<Fraction>,
    /// Links; several by commas
    #[arg(
        long,
        value_name = "LINKS",
        value_delimiter = ',',
        default_value = "udp,packet"
    )]
    link: Vec<LinkSpec>,
    /// MiB to move
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    mib: u16,
    /// Round trips of small messages (TCP ends them, and those of its warm-up, after 15 s)
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    trips: u64,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// MTU of the testbed
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    for link in &args.link {
        ensure!(
            *link != LinkSpec::Shm,
            "--link shm: shared memory loses nothing; use udp, packet or xdp"
        );
    }
    super::check_losses(&args.loss)?;
    let program = std::env::current_exe().context("this program's own file")?;
    let testbed = testbed(2, None, args.mtu)?;
    let ours: Vec<Ours> = args
        .link
        .iter()
        .map(|&link| Ours::between(link, program.clone(), testbed.hosts_file()))
        .collect();
    let plan = Plan {
        bytes: usize::from(args.mib) << 20,
        trips: args.trips,
        rounds: args.rounds as usize,
        losses: args.loss.iter().map(|loss| loss.0).collect(),
    };
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(&format!(
        "{} MiB one way, and {} round trips of 64 bytes, both hosts losing frames; {} rounds in turn",
        args.mib, args.trips, args.rounds
    ));
    let lines = loss::run(&plan, &testbed, &ours, &mut |text| talk.say(text))
        .map_err(|reason| anyhow!(reason))?;
    talk.end(
        &json!({ "kind": "loss", "bytes": plan.bytes, "trips": plan.trips, "machine": machine, "results": lines }),
    )
}
