//! `--plan`: what each method and each number of workers would take, before the run; and in the end, how it came.

use anyhow::ensure;
use serde::Serialize;
use tsumuji_bench::stats::counted;
use tsumuji_bench::table::cell;
use tsumuji_node::LinkSpec;
use tsumuji_solve::local::Limits;
use tsumuji_solve::plan::{Asked, AtWorkers, LinkModel, Plan, alone_is_faster, plan};
use tsumuji_solve::report::Outcome;
use tsumuji_solve::system::{Source, System};
use tsumuji_testbed::Rate;

use super::Args;

/// Whether to solve after the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum PlanName {
    /// Solve, and compare.
    Run,
    /// Do not.
    Only,
}

/// Most memory of a generated matrix that is made for a plan.
const BYTES_MOST: u128 = 4 << 30;

/// The cable if none is given.
const GIGABIT: f64 = 1e9;

/// What a cable and a switch add to one way, in seconds.
const CABLE_SECONDS: f64 = 5e-6;

/// A link by its latency and cost of a frame. Those latencies of shm, udp and packet are measured (docs/benchmarks.md); the others, and what frames cost,
/// are assumed.
pub(crate) fn model(name: &str, rate: Option<Rate>) -> LinkModel {
    let bits_per_second = rate.map_or(GIGABIT, |rate| rate.bits_per_second() as f64);
    // Between hosts of which some nodes share memory, the slower link counts.
    let kind = name.strip_prefix("shm+").unwrap_or(name).split(':').next();
    let (latency, frame, frame_bytes) = match kind.unwrap_or_default() {
        "shm" => (0.4e-6, 0.15e-6, 8192),
        "udp" | "udp+multicast" => (3.9e-6 + CABLE_SECONDS, 1e-6, 1400),
        "packet" => (2.8e-6 + CABLE_SECONDS, 0.8e-6, 1400),
        "xdp" => (2.8e-6 + CABLE_SECONDS, 0.5e-6, 1400),
        _ => (1e-6 + CABLE_SECONDS, 0.2e-6, 1400),
    };
    let is_memory = name == "shm";
    LinkModel {
        name: name.to_owned(),
        latency,
        frame,
        frame_bytes,
        bits_per_second: if is_memory { 8e10 } else { bits_per_second },
    }
}

/// Makes the plan of the system.
pub(super) fn of(
    args: &Args,
    source: &Source,
    limits: Limits,
    asked: Asked,
) -> anyhow::Result<Plan> {
    let link = args.team.link.unwrap_or(LinkSpec::Shm).to_string();
    let link = model(&link, args.rate);
    let made: System;
    let system = match source {
        Source::System(system) => system,
        Source::Generated(of) => {
            ensure!(
                of.what.memory_bytes() <= BYTES_MOST,
                "--plan: {} takes {:.1} GB, more than the 4 that are made for a plan; plan a smaller one",
                of.what,
                of.what.memory_bytes() as f64 / 1e9
            );
            made = of.system()?;
            &made
        }
    };
    Ok(plan(system, limits, asked, link))
}

/// Why the workers asked for are expected to take longer than one process, if they are.
pub(super) fn alone(args: &Args, link: &str, source: &Source, workers: usize) -> Option<String> {
    let model = model(link, args.rate);
    alone_is_faster(source, workers, &model, args.team.loss.unwrap_or(0.0))
}

/// The plan for people.
pub(super) fn text(plan: &Plan) -> String {
    let mut text = format!("outlook: {}\n", plan.outlook);
    text += &match plan.parts {
        1 => "one thread, from a trial of each method:\n".to_owned(),
        parts => format!("one thread's time, from a trial of each method in {parts} parts:\n"),
    };
    for one in &plan.methods {
        let steps = cell(one.steps, |steps| steps.to_string());
        let time = one
            .seconds
            .map_or("would not converge".to_owned(), duration);
        text += &format!(
            "  {:<42} {steps:>9} steps  {time}\n      {}\n",
            one.method, one.from
        );
    }
    text += &format!(
        "workers over {}, computed (one way {}, {} of cable):\n  workers   cg or gmres  relaxation\n",
        plan.link.name,
        duration(plan.link.latency),
        rate(plan.link.bits_per_second)
    );
    for at in &plan.workers {
        let time = |seconds: Option<f64>| cell(seconds, duration);
        text += &format!(
            "  {:>7}  {:>12}  {:>10}\n",
            at.workers,
            time(at.krylov),
            time(at.relaxation)
        );
    }
    let rises = |name: &str, best: usize, time: fn(&AtWorkers) -> Option<f64>| {
        if plan.workers.iter().all(|at| time(at).is_none()) {
            format!("  {name}: not expected to get there\n")
        } else if plan.workers.iter().skip(1).all(|at| time(at).is_none()) {
            format!("  {name}: not known of several workers\n")
        } else if best == plan.workers.last().map_or(1, |at| at.workers) {
            format!("  {name}: each doubling helps up to {best}\n")
        } else {
            let best = counted(best, "worker", "s");
            format!("  {name}: the time rises beyond {best}\n")
        }
    };
    let krylov = rises("cg or gmres", plan.krylov_best, |at| at.krylov);
    text + &krylov + &rises("relaxation", plan.relaxation_best, |at| at.relaxation)
}

fn rate(bits_per_second: f64) -> String {
    if bits_per_second >= 1e9 {
        format!("{} Gbit/s", bits_per_second / 1e9)
    } else {
        format!("{} Mbit/s", bits_per_second / 1e6)
    }
}

/// With three digits.
fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s > 172_800.0 => (s / 86_400.0, "days"),
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (1e3 * s, "ms"),
        s => (1e6 * s, "us"),
    };
    let decimals = match value {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

/// What the plan said of the method that was used, and what it took.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Compared {
    method: String,
    predicted_steps: Option<u64>,
    steps: u64,
    predicted_seconds: Option<f64>,
    seconds: f64,
}

impl Compared {
    pub(super) fn new(plan: &Plan, outcome: &Outcome, workers: usize) -> Option<Self> {
        let is_relaxation = outcome.method.contains("relaxation");
        let first = |text: &str| text.split_whitespace().next().map(str::to_owned);
        let is_direct = |method: &str| {
            method.contains("Cholesky") || method.contains("LU") && !method.contains("ILU")
        };
        let one = plan.methods.iter().find(|one| match one.method.as_str() {
            "a factorisation" => is_direct(&outcome.method),
            name if name.contains("relaxation") => is_relaxation,
            name => !is_direct(&outcome.method) && first(name) == first(&outcome.method),
        })?;
        // Of the number of workers that is nearest from above.
        let at = plan
            .workers
            .iter()
            .find(|at| at.workers >= workers)
            .or(plan.workers.last());
        let predicted_seconds = match (one.steps, at) {
            (None, _) => one.seconds,
            (_, Some(at)) if is_relaxation => at.relaxation,
            (_, at) => at.and_then(|at| at.krylov),
        };
        let seconds = &outcome.seconds;
        Some(Self {
            method: one.method.clone(),
            predicted_steps: one.steps,
            steps: outcome.laps.iter().max().copied().unwrap_or(0),
            predicted_seconds,
            seconds: seconds.iterate + seconds.verify,
        })
    }

    /// A line of the report.
    pub(super) fn text(&self) -> String {
        let seconds = self.predicted_seconds.map_or("no end".to_owned(), duration);
        let taken = duration(self.seconds);
        let times = format!("{seconds} predicted, {taken} taken to iterate and verify");
        match self.predicted_steps {
            Some(steps) => format!("{steps} steps predicted, {} done; {times}", self.steps),
            None => times,
        }
    }
}
