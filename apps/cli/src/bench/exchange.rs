//! `tsumuji bench pingpong|burst --size …`: every detail of our own exchange. With `--vs`, `--sizes`, files or a testbed `compare` runs it.

use std::fmt::Write as _;

use anyhow::ensure;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::exchange::{Kind, Measured, Plan};
use tsumuji_bench::machine;
use tsumuji_bench::ops::Op;
use tsumuji_bench::stats::size_name;
use tsumuji_bench::table;

use super::between::{Between, Pair};
use super::compare;
use crate::Outcome;
use crate::talk::Talk;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// Bytes of a message; several by commas; K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "8", value_parser = super::sizes::size)]
    size: Vec<usize>,
    /// Round trips or messages; default: by size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Repeat, and report the round with the median; default: 1, with --vs 3
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    #[command(flatten)]
    beside: compare::Beside,
    /// Let idle processes yield and sleep instead of spinning
    #[arg(long)]
    no_spin: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(kind: Kind, args: &Args, inside: bool) -> Outcome {
    if args.beside.is_comparison(&args.between) {
        let asked = compare::Asked {
            op: if kind == Kind::Pingpong {
                Op::Pingpong
            } else {
                Op::Burst
            },
            between: &args.between,
            beside: &args.beside,
            nodes: None,
            sizes: &args.size,
            iterations: args.iterations,
            rounds: args.rounds,
            slow_write: false,
            json: args.json,
        };
        ensure!(
            !args.no_spin,
            "--no-spin: where exchanges are compared, all spin"
        );
        return compare::run(&asked, inside);
    }
    let pair = Pair::of(&args.between, inside)?;
    let (mut talk, machine) = Talk::begin(args.json);
    let spins = !args.no_spin && !pair.needs_cores_for_relays();
    talk.say(&match machine::two_cpus() {
        Some([sender, receiver]) => format!(
            "sender bound to core {sender}, receiver to core {receiver}; {}",
            match (spins, args.no_spin) {
                (true, _) => "both spin",
                (false, true) => "adaptive idling",
                (false, false) => "adaptive idling, because the relays need the cores, too",
            }
        ),
        None => {
            "one core only: both sides share it, so this measures the scheduler, too".to_owned()
        }
    });
    let mut results = Vec::new();
    for &size in &args.size {
        let mut plan = Plan::new(kind, size);
        plan.iterations = args.iterations.unwrap_or(plan.iterations);
        plan.spin &= spins;
        let rounds = (0..args.rounds.unwrap_or(1)).map(|_| pair.measure(&plan));
        let mut measured = rounds.collect::<Result<Vec<_>, _>>()?;
        measured.sort_by(|a, b| headline(kind, a).total_cmp(&headline(kind, b)));
        let middle = &measured[measured.len() / 2];
        talk.say(&describe(middle));
        results.push(serde_json::to_value(middle)?);
    }
    // With one size, its fields are at the top for scripts.
    let mut object = match &results[..] {
        [only] => only.clone(),
        _ => json!({ "kind": results[0]["kind"], "link": results[0]["link"] }),
    };
    object["machine"] = serde_json::to_value(&machine)?;
    object["results"] = Value::Array(results);
    talk.end(&object)
}

/// The number by which rounds are compared.
fn headline(kind: Kind, measured: &Measured) -> f64 {
    match kind {
        Kind::Pingpong => measured.half_rtt_us.p50,
        Kind::Burst | Kind::Idle => measured.messages_per_second,
    }
}

fn describe(measured: &Measured) -> String {
    let mut text = String::new();
    let half = measured.half_rtt_us;
    let per_kb = |cost: Option<f64>| table::number(cost, 3, "");
    let _ = writeln!(
        text,
        "{} over {}, {} x {}",
        if measured.kind == Kind::Pingpong {
            "ping-pong"
        } else {
            "burst"
        },
        measured.link,
        measured.iterations,
        size_name(measured.size)
    );
    let _ = writeln!(
        text,
        "  half round trip   min {:.3}  p50 {:.3}  p99 {:.3}  p99.9 {:.3} us",
        half.min, half.p50, half.p99, half.p999
    );
    let _ = writeln!(
        text,
        "  throughput        {:.0} messages/s, {:.1} MB/s, {} frames sent again",
        measured.messages_per_second,
        measured.bytes_per_second / 1e6,
        measured.retransmitted_frames
    );
    for (name, side) in [("sender", measured.sender), ("receiver", measured.receiver)] {
        let _ = writeln!(
            text,
            "  CPU of {name:<10} {:.3} us a message, {} us a KB",
            side.cpu_us_per_message,
            per_kb(side.cpu_us_per_kb)
        );
    }
    text
}
