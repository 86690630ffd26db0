//! `tsumuji bench pingpong|burst --size …`: every detail of our own exchange, optionally compared with the bare machine. With `--sizes`, peers, files
//! or a testbed `compare` runs it.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tsumuji_bench::exchange::{Kind, Measured, Plan};
use tsumuji_bench::limits;
use tsumuji_bench::machine;
use tsumuji_bench::ops::Op;
use tsumuji_bench::stats::size_name;
use tsumuji_bench::versus::{Better, Contender, Standing, alternate};
use tsumuji_node::LinkSpec;

use super::between::{Between, Pair};
use super::compare;
use crate::talk::in_columns;
use crate::{DONE, Outcome, output};

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
    /// Repeat, and report the round with the median; default: 1, with --vs 5, beside named peers 3
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
        anyhow::ensure!(
            !args.no_spin,
            "--no-spin: beside peers, which spin, ours spins, too"
        );
        return compare::run(&asked, inside);
    }
    let beside_bare = args.beside.is_bare();
    let pair = Pair::of(&args.between, inside)?;
    let machine = machine::describe();
    eprintln!("{}", in_columns(&format!("machine: {machine}")));
    let spins = !args.no_spin && !pair.needs_cores_for_relays();
    match machine::two_cpus() {
        Some([sender, receiver]) => {
            eprintln!(
                "sender bound to core {sender}, receiver to core {receiver}; {}",
                match (spins, args.no_spin) {
                    (true, _) => "both spin",
                    (false, true) => "adaptive idling",
                    (false, false) => "adaptive idling, because the relays need the cores, too",
                }
            );
        }
        None => {
            eprintln!("one core only: both sides share it, so this measures the scheduler, too")
        }
    }
    let rounds = if beside_bare {
        args.rounds.unwrap_or(5).max(5)
    } else {
        args.rounds.unwrap_or(1)
    } as usize;
    let mut results = Vec::new();
    for &size in &args.size {
        let mut plan = Plan::new(kind, size);
        plan.iterations = args.iterations.unwrap_or(plan.iterations);
        plan.spin &= spins;
        let mut measured: Vec<Measured> = Vec::new();
        let mut failure = None;
        let ours = Contender::new(format!("tsumuji {}", pair.link), || {
            match pair.measure(&plan) {
                Ok(one) => {
                    measured.push(one);
                    Ok(headline(kind, measured.last().expect("just pushed")))
                }
                Err(error) => {
                    let text = error.to_string();
                    failure = Some(error);
                    Err(text)
                }
            }
        });
        let mut contenders = vec![ours];
        if beside_bare {
            contenders.extend(bare(&plan, pair.link));
        }
        let standings = alternate(rounds, &mut contenders);
        drop(contenders);
        if let Some(error) = failure {
            return Err(error.into());
        }
        measured.sort_by(|a, b| headline(kind, a).total_cmp(&headline(kind, b)));
        let middle = measured.swap_remove(measured.len() / 2);
        eprint!("{}", describe(&middle, &standings));
        results.push(with_versus(&middle, &standings)?);
    }
    if args.json {
        // With one size, its fields are at the top for scripts.
        let mut object = match &results[..] {
            [only] => only.clone(),
            _ => json!({ "kind": results[0]["kind"], "link": results[0]["link"] }),
        };
        object["machine"] = serde_json::to_value(&machine)?;
        object["results"] = Value::Array(results);
        output::print_json(&object);
    }
    Ok(DONE)
}

/// The number by which rounds are compared.
fn headline(kind: Kind, measured: &Measured) -> f64 {
    match kind {
        Kind::Pingpong => measured.half_rtt_us.p50,
        Kind::Burst | Kind::Idle => measured.messages_per_second,
    }
}

/// The same exchange without any protocol.
fn bare(plan: &Plan, link: LinkSpec) -> Vec<Contender<'static>> {
    let Plan {
        kind,
        size,
        iterations,
        cpus,
        ..
    } = *plan;
    match (kind, link) {
        (Kind::Pingpong, LinkSpec::Shm) => vec![
            Contender::new("bare cache line", move || {
                Ok(limits::cacheline::pingpong(cpus, iterations).p50)
            }),
            Contender::new("bare copy", move || {
                Ok(limits::copy::pingpong(cpus, size, iterations).p50)
            }),
        ],
        (Kind::Burst, LinkSpec::Shm) => vec![Contender::new("bare copy", move || {
            Ok(limits::copy::burst(cpus, size, iterations))
        })],
        (Kind::Pingpong, _) => vec![Contender::new("bare UDP", move || {
            limits::udp::pingpong(cpus, size, iterations)
                .map(|half| half.p50)
                .map_err(|error| error.to_string())
        })],
        (Kind::Idle, _) => Vec::new(),
        (Kind::Burst, _) => vec![Contender::new("bare UDP", move || {
            limits::udp::burst(cpus, size, iterations)
                .map(|burst| burst.messages_per_second)
                .map_err(|error| error.to_string())
        })],
    }
}

fn with_versus(measured: &Measured, standings: &[Standing]) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(measured)?;
    if standings.len() > 1 {
        let better = if measured.kind == Kind::Pingpong {
            Better::Less
        } else {
            Better::More
        };
        let ratios = standings[1..].iter().map(|other| {
            let ratio = standings[0].ratio_to(other);
            json!({ "name": other.name, "median": other.median(), "ratio": ratio, "failure": other.result.as_ref().err() })
        });
        value["versus"] = json!({ "unit": if better == Better::Less { "half_rtt_us.p50" } else { "messages_per_second" },
            "better": better, "ours": standings[0].median(), "others": ratios.collect::<Vec<_>>() });
    }
    Ok(value)
}

fn describe(measured: &Measured, standings: &[Standing]) -> String {
    let mut text = String::new();
    let half = measured.half_rtt_us;
    let per_kb =
        |cost: Option<f64>| cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.3}"));
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
    for other in standings.iter().skip(1) {
        match &other.result {
            Ok(rounds) => {
                let ratio = standings[0].ratio_to(other);
                let _ = writeln!(
                    text,
                    "  beside {:<16} ours {:.3}, theirs {:.3} (+-{:.0} %), ratio {ratio:.3}",
                    other.name,
                    standings[0].median(),
                    rounds.median,
                    rounds.spread_percent() / 2.0
                );
            }
            Err(reason) => {
                let _ = writeln!(text, "  beside {:<16} - ({reason})", other.name);
            }
        }
    }
    text
}
