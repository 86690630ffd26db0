//! `tsumuji bench delay`: how much time a service may take before it cannot keep pace with a line.

use anyhow::{bail, ensure};
use serde_json::json;
use tsumuji_bench::delay::{Delayed, Per, Plan};
use tsumuji_bench::{machine, stop, table};
use tsumuji_node::Executor;
use tsumuji_testbed::Rate;

use super::between::{Between, Pair};
use crate::{DONE, Outcome, output};

/// Times in nanoseconds, in doubling steps as the paper's.
const DELAYS: &str = "0,100,200,400,800,1600,3200,6400,12800,25600";
/// A server that answers this part of the line's messages in time keeps pace: the last are still on their way.
const KEPT: f64 = 0.95;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum On {
    Frame,
    Burst,
}

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// Bytes of a message; several by commas
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "64,128", value_parser = super::size)]
    size: Vec<usize>,
    /// Time that the server spends, in nanoseconds; several by commas
    #[arg(long, value_name = "NS", value_delimiter = ',', default_value = DELAYS, value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    delay: Vec<u64>,
    /// On each message, or once on each burst of 32
    #[arg(long, value_name = "WHAT", default_value = "burst")]
    per: On,
    /// Ports of the server: 1 sends messages back, 2 sends them on to a third node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    ports: u8,
    /// Pace of the line: the generator sends no faster
    #[arg(long, value_name = "RATE", default_value = "2gbit")]
    rate: Rate,
    /// Messages of each measurement
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(32..=1_000_000_000))]
    count: u64,
    /// Who serves: rtc, pipeline or adaptive; several by commas
    #[arg(
        long,
        value_name = "EXECUTORS",
        value_delimiter = ',',
        default_value = "rtc,pipeline,adaptive"
    )]
    executor: Vec<Executor>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, inside: bool) -> Outcome {
    ensure!(
        args.between.to.is_none(),
        "--to: this measurement is between the first two nodes; leave it out"
    );
    let nodes = 1 + usize::from(args.ports);
    let pair = Pair::among(&args.between, inside, nodes)?;
    let machine = machine::describe();
    let per = match args.per {
        On::Frame => Per::Frame,
        On::Burst => Per::Burst,
    };
    eprintln!("machine: {machine}");
    let spins = pair.has_cores_to_spin() && machine.cores >= nodes;
    let mut results = Vec::new();
    for &size in &args.size {
        let plan = |delay_ns: u64, executor: Executor| Plan {
            size,
            bits_per_second: args.rate.bits_per_second(),
            count: args.count,
            delay_ns,
            per,
            executor,
            // Workers need a core that spinning threads would take.
            spin: spins && (executor != Executor::Pipeline || machine.cores > nodes),
            two_ports: args.ports == 2,
        };
        let usual = plan(0, Executor::RunToCompletion);
        let frame_ns = usual.frame_ns();
        eprintln!(
            "\n{size} bytes over {}, a line of {}: one message in {frame_ns:.0} ns; the time is spent on each {}\n\
             predicted knee: {:.0} ns, less what the server needs for itself",
            pair.link,
            args.rate,
            match per {
                Per::Frame => "message",
                Per::Burst => "burst of 32",
            },
            usual.predicted_knee_ns()
        );
        let heads = [
            "time (ns)",
            "served by",
            "of the line",
            "messages/s",
            "refused",
            "dropped",
            "lost",
            "where",
        ];
        let mut rows = vec![heads.map(str::to_owned)];
        let mut knees = Vec::new();
        for &executor in &args.executor {
            let mut knee: Option<u64> = None;
            for &delay_ns in &args.delay {
                if stop::is_wanted() {
                    bail!(crate::interrupt::Interrupted);
                }
                let plan = plan(delay_ns, executor);
                let delayed = pair.measure_delay(&plan)?;
                if delayed.part(&plan) >= KEPT {
                    knee = knee.max(Some(delay_ns));
                }
                rows.push(row(&plan, &delayed));
                results.push(json!({
                    "size": size, "delay_ns": delay_ns, "executor": executor.name(), "measured": delayed,
                }));
            }
            knees.push((executor, knee));
        }
        eprint!("{}", table::aligned(&rows));
        for (executor, knee) in &knees {
            eprintln!(
                "{executor}: keeps pace up to {}",
                knee.map_or("no time at all".to_owned(), |knee| format!("{knee} ns"))
            );
        }
        let knees: Vec<_> = knees
            .iter()
            .map(|(executor, knee)| json!({ "executor": executor.name(), "knee_ns": knee }))
            .collect();
        results.push(json!({
            "size": size, "frame_ns": frame_ns, "predicted_knee_ns": usual.predicted_knee_ns(), "knees": knees,
        }));
    }
    if args.json {
        output::print_json(&json!({
            "kind": "delay", "link": pair.link.to_string(), "bits_per_second": args.rate.bits_per_second(),
            "count": args.count, "per": per, "ports": args.ports, "machine": machine, "results": results,
        }));
    }
    Ok(DONE)
}

fn row(plan: &Plan, delayed: &Delayed) -> [String; 8] {
    let place = if delayed.with_workers {
        "workers"
    } else {
        "driving thread"
    };
    [
        plan.delay_ns.to_string(),
        plan.executor.to_string(),
        format!("{:.1} %", 100.0 * delayed.part(plan)),
        format!("{:.0}", delayed.per_second),
        delayed.refused.to_string(),
        delayed.dropped.to_string(),
        delayed.lost.to_string(),
        place.to_owned(),
    ]
}
