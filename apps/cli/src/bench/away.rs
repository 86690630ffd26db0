//! `tsumuji bench away`: the effect of an endpoint's progress assistant for a program that computes.

use anyhow::ensure;
use serde_json::json;
use tsumuji_bench::away::{self, Away, Plan, Spans};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::{stop, table};

use super::between::{Between, Pair};
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::talk::Talk;

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
    args.between.check_first_two()?;
    let pair = Pair::of(&args.between, inside)?;
    let mut measured = Vec::new();
    let (mut talk, _) = Talk::begin(args.json);
    talk.say(&format!(
        "{} messages of {} bytes {} times over {}, the sender computing between",
        args.messages, args.size, args.laps, pair.link
    ));
    let mut rows = table::headed(
        "progress by | lap (us) | p50 | p99 | longest | computing | idle: sender | receiver",
    );
    for assistant in [true, false] {
        ensure!(!stop::is_wanted(), Interrupted);
        let plan = Plan {
            laps: args.laps,
            messages: args.messages,
            message_bytes: args.size,
            idle_seconds: args.idle,
            assistant,
        };
        let away = away::measure(&plan, pair.spec(), &pair.security)?;
        let name = if assistant { "assistant" } else { "program" };
        talk.say(&format!("{name}: measured"));
        rows.extend(rows_of(name, &away));
        measured.push(json!({ "progress": name, "measured": away }));
    }
    talk.say(&table::aligned(&rows));
    talk.end(&json!({
        "kind": "away", "link": pair.link.to_string(), "laps": args.laps,
        "messages": args.messages, "size": args.size, "runs": measured,
    }))
}

/// Rows of the table: time of the calls, arrival of the messages, lateness of the last; the first has the costs.
fn rows_of(name: &str, away: &Away) -> [[String; 8]; 3] {
    let row = |name: &str, what: &str, spans: &Spans, costs: [String; 3]| {
        let [computing, sender, receiver] = costs;
        let us = |span: f64| format!("{span:.0}");
        [
            name.to_owned(),
            what.to_owned(),
            us(spans.p50),
            us(spans.p99),
            us(spans.max),
            computing,
            sender,
            receiver,
        ]
    };
    let [sender, receiver] = away.idle.map(|part| format!("{:.3} %", part * 100.0));
    let computing = format!("{:.0} %", away.computing * 100.0);
    let none = <[String; 3]>::default;
    [
        row(
            name,
            "calls of send",
            &away.sending_us,
            [computing, sender, receiver],
        ),
        row("", "first to last at receiver", &away.arriving_us, none()),
        row("", "last after last call", &away.late_us, none()),
    ]
}
