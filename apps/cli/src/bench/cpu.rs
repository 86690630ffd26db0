//! `tsumuji bench cpu`: processor time of a receiver over the offered load, ours and the kernel's.

use std::time::Duration;

use anyhow::{anyhow, ensure};
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::cpu::{self, Cost, Plan, Waits};
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::versus::order;
use tsumuji_bench::{machine, stop, table};

use super::between::{Between, Pair};
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::talk::Talk;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// Messages a second; several by commas
    #[arg(
        long,
        value_name = "RATES",
        value_delimiter = ',',
        default_value = "1000,10000,50000,200000,800000",
        value_parser = clap::value_parser!(u64).range(1..=100_000_000)
    )]
    offered: Vec<u64>,
    /// Seconds of one measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = super::seconds)]
    time: Duration,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The receiver: ours or the kernel's sockets, and how it waits.
const CONTENDERS: [(&str, bool, Waits); 4] = [
    ("kernel UDP, blocking", false, Waits::Sleeps),
    ("kernel UDP, spinning", false, Waits::Spins),
    ("ours, spinning", true, Waits::Spins),
    ("ours, idle policy", true, Waits::Sleeps),
];

/// Runs the command.
pub(super) fn run(args: &Args, inside: bool) -> Outcome {
    args.between.check_first_two()?;
    let pair = Pair::of(&args.between, inside)?;
    let places = pair.places().ok_or_else(|| {
        anyhow!("one-way times need the clock of one machine: use this host, or hosts of a testbed")
    })?;
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(&format!(
        "messages of 64 bytes over {}, each rate for {:?}; {} rounds in turn; processor time of the receiver, in percent of a core",
        pair.link, args.time, args.rounds
    ));
    if machine::two_cpus().is_none() || pair.needs_cores_for_relays() {
        talk.say("fewer cores than pollers: spinning receivers take turns with the sender");
    }
    let mut rows =
        table::headed("offered/s | received by | received/s | cpu | +- | p50 us | p99 us");
    let mut results = Vec::new();
    for &offered in &args.offered {
        let mut found: [Vec<Cost>; 4] = Default::default();
        for round in 0..args.rounds as usize {
            for index in order(round, CONTENDERS.len()) {
                let (_, is_ours, waits) = CONTENDERS[index];
                let plan = Plan {
                    offered,
                    milliseconds: args.time.as_millis() as u64,
                    waits,
                };
                found[index].push(if is_ours {
                    cpu::measure(&plan, pair.spec(), &pair.security)?
                } else {
                    cpu::measure_kernel(&plan, &places).map_err(|reason| anyhow!(reason))?
                });
                ensure!(!stop::is_wanted(), Interrupted);
            }
        }
        for ((name, ..), list) in CONTENDERS.iter().zip(&found) {
            let of = |part: fn(&Cost) -> f64| Rounds::over(list, part);
            let (received, cores) = (of(|one| one.received_per_second), of(|one| one.cores));
            let (p50, p99) = (of(|one| one.p50_us), of(|one| one.p99_us));
            rows.push([
                super::short(offered as f64),
                (*name).to_owned(),
                super::short(received.median),
                format!("{:.1} %", 100.0 * cores.median),
                format!("{:.1}", 50.0 * (cores.max - cores.min)),
                format!("{:.1}", p50.median),
                format!("{:.1}", p99.median),
            ]);
            results.push(json!({
                "offered_per_second": offered, "receiver": name, "received_per_second": received, "cores": cores,
                "p50_us": p50, "p99_us": p99,
            }));
        }
    }
    talk.say(&table::aligned(&rows));
    talk.end(&json!({
        "kind": "cpu", "link": pair.link.to_string(), "machine": machine, "seconds": args.time.as_secs_f64(), "results": results,
    }))
}
