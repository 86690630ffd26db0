//! `tsumuji bench away`: what an endpoint does for a program that computes.

use anyhow::bail;
use serde_json::json;
use tsumuji_bench::away::Plan;
use tsumuji_bench::{machine, stop};

use super::between::{Between, Pair};
use crate::{DONE, Outcome, output};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// Times that the sender sends and computes
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    laps: u64,
    /// Messages each time: more than windows hold at first
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    messages: u64,
    /// Bytes of each
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = super::size)]
    size: usize,
    /// Seconds in which nothing happens, after that
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    idle: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command: with the assistants, and without.
pub(super) fn run(args: &Args, inside: bool) -> Outcome {
    let pair = Pair::of(&args.between, inside)?;
    let mut measured = Vec::new();
    eprintln!(
        "{} messages of {} bytes {} times over {}, the sender computing between; {}",
        args.messages,
        args.size,
        args.laps,
        pair.link,
        machine::describe()
    );
    eprintln!("              first to last message of a lap (us)   computing   idle (% of a core)");
    eprintln!("              p50        p99        longest                     sender  receiver");
    for assistant in [true, false] {
        if stop::is_wanted() {
            bail!(super::INTERRUPTED);
        }
        let away = pair.measure_away(&Plan {
            laps: args.laps,
            messages: args.messages,
            message_bytes: args.size,
            idle_seconds: args.idle,
            assistant,
        })?;
        let name = if assistant { "assistant" } else { "program" };
        eprintln!(
            "{name:12}  {:<9.0}  {:<9.0}  {:<9.0}             {:>3.0} %       {:<7.3} {:<7.3}",
            away.spread_us_p50,
            away.spread_us_p99,
            away.spread_us_max,
            away.computing * 100.0,
            away.idle[0] * 100.0,
            away.idle[1] * 100.0
        );
        measured.push(json!({ "progress": name, "measured": away }));
    }
    if args.json {
        output::print_json(&json!({
            "kind": "away", "link": pair.link.to_string(), "laps": args.laps,
            "messages": args.messages, "size": args.size, "runs": measured,
        }));
    }
    Ok(DONE)
}
