//! `tsumuji bench takeover`: the time of a solve in which one worker is killed, beside a solve that began without that worker.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Error, bail, ensure};
use rustix::process::{Pid, Signal};
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::{report, stop, table};
use tsumuji_node::LinkSpec;
use tsumuji_solve::method::Method;
use tsumuji_solve::system::Generate;

use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::named::named;
use crate::talk::Talk;
use crate::top::nodes::Process;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The system
    #[arg(long, value_name = "SPEC", default_value = "dense:12000")]
    generate: Generate,
    /// Workers, of which one is killed
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
    workers: u16,
    /// The link between them
    #[arg(long, value_name = "LINK", default_value = "shm")]
    link: LinkSpec,
    /// How it is solved
    #[arg(long, value_name = "METHOD", default_value = "relax+gcr", value_parser = named(METHODS.map(|method| (method.name(), method))))]
    method: Method,
    /// When the worker is killed: this part of the iterations of undisturbed runs
    #[arg(long, value_name = "PART", default_value_t = 0.5)]
    at: f64,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Methods of several processes.
const METHODS: [Method; 4] = [Method::Relax, Method::RelaxGcr, Method::Cg, Method::Gmres];

/// Attempts: a run may end before the moment at which its worker is to be killed.
const TRIES: u32 = 5;

/// Seconds of a run: until its rows were distributed, and in all, with a second distribution.
#[derive(Debug, Clone, Copy)]
struct Took {
    before: f64,
    whole: f64,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    ensure!(
        (0.0..1.0).contains(&args.at),
        "--at: give a part from 0 to below 1, not {}",
        args.at
    );
    let (mut talk, machine) = Talk::begin(args.json);
    let (all, fewer) = (args.workers, args.workers - 1);
    talk.say(&format!(
        "{}, {}, over {}; seconds with all distribution of rows",
        args.generate, args.method, args.link
    ));
    let mut columns: [Vec<f64>; 3] = Default::default();
    for _ in 0..args.rounds {
        let whole = finish(start(args, all)?)?;
        let without = finish(start(args, fewer)?)?;
        let moment = whole.before + args.at * (whole.whole - whole.before);
        let killed = killed(args, Duration::from_secs_f64(moment))?;
        for (column, took) in columns.iter_mut().zip([whole, without, killed]) {
            column.push(took.whole);
        }
        ensure!(!stop::is_wanted(), Interrupted);
    }
    let names = [
        format!("{all} workers"),
        format!("{fewer} workers"),
        format!("{all} workers, one killed"),
    ];
    let measured = columns.map(|column| Rounds::of(&column));
    let mut rows = vec![["run", "seconds", "+-%"].map(str::to_owned)];
    for (name, seconds) in names.iter().zip(&measured) {
        rows.push([
            name.clone(),
            format!("{:.3}", seconds.median),
            seconds.half_spread(),
        ]);
    }
    talk.say(&table::aligned(&rows));
    let ratio = measured[2].median / measured[1].median;
    talk.say(&format!(
        "with one killed it takes {ratio:.2} of the time of those that began without it"
    ));
    talk.end(&json!({
        "kind": "takeover", "machine": machine, "system": args.generate.to_string(), "method": args.method.to_string(),
        "link": args.link.to_string(), "workers": all, "at": args.at,
        "undisturbed": measured[0], "fewer": measured[1], "killed": measured[2], "ratio": ratio,
    }))
}

fn start(args: &Args, workers: u16) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["solve", "--generate", &args.generate.to_string(), "--json"]);
    let mode = if matches!(args.method, Method::Relax | Method::RelaxGcr) {
        "async"
    } else {
        "processes"
    };
    command.args(["--method", &args.method.to_string(), "--mode", mode]);
    command.args(["--workers", &workers.to_string()]);
    command.args(["--link", &args.link.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command.stderr(Stdio::piped()).spawn()?)
}

fn finish(child: Child) -> anyhow::Result<Took> {
    let output = child.wait_with_output()?;
    let run = report::read(&output.stdout, &output.stderr).map_err(Error::msg)?;
    let why = run["explanation"].as_str().unwrap_or_default();
    ensure!(run["converged"] == true, "a run failed: {why}");
    let part = |name: &str| run["seconds"][name].as_f64().unwrap_or(f64::NAN);
    let before = part("load") + part("distribute");
    Ok(Took {
        before,
        whole: before + part("iterate") + part("verify"),
    })
}

/// A run in which one worker is killed `moment` after the start. A run that has ended by then is repeated.
fn killed(args: &Args, moment: Duration) -> anyhow::Result<Took> {
    for _ in 0..TRIES {
        let child = start(args, args.workers)?;
        std::thread::sleep(moment);
        let workers = workers_of(child.id());
        let victim = workers.last().and_then(|pid| Pid::from_raw(*pid as i32));
        let is_killed = victim
            .is_some_and(|victim| rustix::process::kill_process(victim, Signal::KILL).is_ok());
        let took = finish(child)?;
        if is_killed {
            return Ok(took);
        }
    }
    bail!("{TRIES} runs had ended before a worker could be killed: give a larger system")
}

/// Workers that this process started.
fn workers_of(pid: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |child: &u32| {
        let parent = Process::read(*child).map(|child| child.parent);
        let words = std::fs::read_to_string(format!("/proc/{child}/cmdline"));
        parent == Some(pid) && words.is_ok_and(|words| words.contains("\0worker"))
    };
    pids.filter(is_one).collect()
}
