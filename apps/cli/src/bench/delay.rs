//! `tsumuji bench delay`: how much time a service may take before it cannot keep pace with a line.

use anyhow::ensure;
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::delay::{self, Knee, Per, Plan, Setting};
use tsumuji_bench::versus::order;
use tsumuji_bench::{stop, table};
use tsumuji_node::Executor;
use tsumuji_testbed::Rate;

use super::between::{Between, Pair};
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::named::named;
use crate::talk::Talk;

/// Times in nanoseconds, in doubling steps as the paper's.
const DELAYS: &str = "0,100,200,400,800,1600,3200,6400,12800,25600";

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
    #[arg(long, value_name = "WHAT", default_value = "burst", value_parser = named([("frame", Per::Frame), ("burst", Per::Burst)]))]
    per: Per,
    /// Ports of the server: 1 sends messages back, 2 sends them on to a third node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    ports: u8,
    /// Pace of the line: the generator sends no faster
    #[arg(long, value_name = "RATE", default_value = "2gbit")]
    rate: Rate,
    /// Messages of each measurement
    #[arg(long, value_name = "N", default_value_t = 700_000, value_parser = clap::value_parser!(u64).range(32..=1_000_000_000))]
    count: u64,
    /// Executor of the service: rtc, pipeline or adaptive; several by commas
    #[arg(
        long,
        value_name = "EXECUTORS",
        value_delimiter = ',',
        default_value = "rtc,pipeline,adaptive"
    )]
    executor: Vec<Executor>,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, inside: bool) -> Outcome {
    args.between.check_first_two()?;
    let nodes = 1 + usize::from(args.ports);
    let joins_two = (args.between.link.as_ref())
        .is_some_and(|link| link.to_string().starts_with("dpdk:net_memif"));
    ensure!(
        !joins_two || args.ports == 1,
        "--ports 2: dpdk:net_memif joins two processes, not three; use another --link, or --ports 1"
    );
    let pair = Pair::among(&args.between, inside, nodes)?;
    let (mut talk, machine) = Talk::begin(args.json);
    let per = args.per;
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
        talk.say(&format!(
            "\n{size} bytes over {}, a line of {}: one message in {frame_ns:.0} ns; the time is spent on each {}; {} rounds in turn\n\
             predicted knee: {:.0} ns, less what the server needs for itself",
            pair.link,
            args.rate,
            match per {
                Per::Frame => "message",
                Per::Burst => "burst of 32",
            },
            args.rounds,
            usual.predicted_knee_ns()
        ));
        let plans: Vec<Plan> = (args.executor.iter())
            .flat_map(|&executor| args.delay.iter().map(move |&delay_ns| (delay_ns, executor)))
            .map(|(delay_ns, executor)| plan(delay_ns, executor))
            .collect();
        let settings = measure(&pair, plans, args.rounds)?;
        let knees: Vec<Knee> = (args.executor.iter())
            .map(|executor| Knee::of(*executor, &settings))
            .collect();
        talk.say(&shown(&settings));
        knees.iter().for_each(|knee| talk.say(&told(knee)));
        results.extend(settings.iter().map(|setting| json!(setting)));
        results.push(json!({
            "size": size, "frame_ns": frame_ns, "predicted_knee_ns": usual.predicted_knee_ns(), "knees": knees,
        }));
    }
    talk.end(&json!({
        "kind": "delay", "link": pair.link.to_string(), "bits_per_second": args.rate.bits_per_second(),
        "count": args.count, "rounds": args.rounds, "per": per, "ports": args.ports, "machine": machine, "results": results,
    }))
}

/// Measures each plan once a round.
fn measure(pair: &Pair, plans: Vec<Plan>, rounds: u64) -> anyhow::Result<Vec<Setting>> {
    let mut found: Vec<_> = plans.into_iter().map(|plan| (plan, Vec::new())).collect();
    for round in 0..rounds as usize {
        for index in order(round, found.len()) {
            let (plan, list) = &mut found[index];
            ensure!(!stop::is_wanted(), Interrupted);
            list.push(delay::measure(plan, pair.spec(), &pair.security)?);
        }
    }
    let settings = found
        .into_iter()
        .map(|(plan, list)| Setting::of(&plan, list));
    Ok(settings.collect())
}

/// The table of all settings: medians, and half of the spread of what came.
fn shown(settings: &[Setting]) -> String {
    let mut rows = table::headed(
        "time (ns) | served by | of the line | +-% | messages/s | refused | dropped | lost | where",
    );
    rows.extend(settings.iter().map(|setting| {
        let place = match (setting.with_workers, setting.rounds.len()) {
            (0, _) => "driving thread".to_owned(),
            (some, all) if some == all => "workers".to_owned(),
            (some, all) => format!("workers in {some} of {all}"),
        };
        [
            setting.delay_ns.to_string(),
            setting.executor.to_string(),
            format!("{:.1} %", 100.0 * setting.part.median),
            setting.part.half_spread(),
            format!("{:.0}", setting.per_second.median),
            format!("{:.0}", setting.refused.median),
            format!("{:.0}", setting.dropped.median),
            setting.lost.to_string(),
            place,
        ]
    }));
    table::aligned(&rows)
}

/// A knee in words.
fn told(knee: &Knee) -> String {
    let time = |ns: Option<u64>| ns.map_or("no time at all".to_owned(), |ns| format!("{ns} ns"));
    let (least, most) = (knee.rounds_ns.iter().min(), knee.rounds_ns.iter().max());
    let rounds = match (least, most) {
        (Some(least), Some(most)) if least != most => {
            format!(" (single rounds: {} to {})", time(*least), time(*most))
        }
        _ => String::new(),
    };
    let by = time(knee.knee_ns);
    format!("{}: keeps pace up to {by}{rounds}", knee.executor)
}
