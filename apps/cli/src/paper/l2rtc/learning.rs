//! L2RTC's figure 14: the time to learn a line by gossip, over each link by each executor, beside TCP and one process.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::{stop, table};
use tsumuji_testbed::Testbed;

use super::super::Args;
use super::{child, times};
use crate::bench::compare::testbed;
use crate::interrupt::Interrupted;
use crate::talk::Talk;
use crate::{DONE, Outcome, output};

/// Rows of the data, and of a first look.
const ROWS: usize = 400_000;
const FEW_ROWS: usize = 20_000;
/// Steps between two exchanges: frequent, as in the paper.
const PERIOD: &str = "4";
const EPOCHS: &str = "8";

/// Ways to learn: name, words, and whether between hosts.
const WAYS: [(&str, &[&str], bool); 7] = [
    ("one process", &["--mode", "single"], false),
    ("TCP", &["--mode", "tcp", "--workers", "2"], false),
    ("shm", &["--link", "shm", "--workers", "2"], false),
    ("udp", &["--link", "udp", "--workers", "2"], false),
    ("packet, hosts", &["--link", "packet"], true),
    ("xdp, hosts", &["--link", "xdp"], true),
    ("dpdk, hosts", &["--link", "dpdk:net_af_packet"], true),
];

/// Who steps: the thread that polls, one beside it, or whichever is faster.
const EXECUTORS: [&str; 3] = ["rtc", "pipeline", "adaptive"];

/// A line of the table: a place in [`WAYS`], and who steps.
type Line = (usize, Option<&'static str>);

/// One process has one thread only.
fn lines_of_all() -> Vec<Line> {
    let with = |way| EXECUTORS.iter().map(move |executor| (way, Some(*executor)));
    let others = (1..WAYS.len()).flat_map(with);
    std::iter::once((0, None)).chain(others).collect()
}

/// y = 3 x − 1 and noise, with x in −1 to 1, as CSV.
fn write_data(path: &Path, rows: usize) -> std::io::Result<()> {
    let mut random: u64 = 1;
    let mut next = || {
        // An xorshift: the data are the same each time.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    };
    let mut text = String::from("x,y\n");
    for _ in 0..rows {
        let x = next();
        let y = 3.0 * x - 1.0 + 0.1 * next();
        let _ = writeln!(text, "{x},{y}"); // into memory
    }
    fs::write(path, text)
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let mut talk = Talk::new(args.json);
    let machine = talk.machine();
    let rows = if args.quick { FEW_ROWS } else { ROWS };
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 3 });
    talk.say("the paper's: simple linear regression by SGD and gossip; two machines over L2RTC are 2 times as fast as one, and 1.2 times as fast as over TCP");
    talk.say(&format!(
        "{rows} rows, {EPOCHS} epochs, two workers that exchange every {PERIOD} steps; {rounds} rounds in turn; executors: rtc steps on the thread that polls, pipeline beside it, adaptive where it is faster and there is a core for it"
    ));
    let folder = tempfile::tempdir().context("a folder for the data")?;
    let data = folder.path().join("line.csv");
    write_data(&data, rows).with_context(|| data.display().to_string())?;
    let data = data.to_string_lossy().into_owned();
    let common = [
        "learn", "linear", &data, "--method", "sgd", "--epochs", EPOCHS, "--tol", "1e-12",
    ];
    let beds: Option<Testbed> = match testbed(3, None, 1500) {
        Ok(testbed) => Some(testbed),
        Err(error) => {
            talk.say(&format!("without links between hosts: no testbed: {error}"));
            None
        }
    };
    let all = lines_of_all();
    let mut found: Vec<Result<Vec<Value>, String>> = vec![Ok(Vec::new()); all.len()];
    for _ in 0..rounds {
        for ((way, executor), found) in all.iter().zip(&mut found) {
            let (_, words, between) = WAYS[*way];
            let Ok(list) = found else { continue };
            let testbed = match (between, &beds) {
                (false, _) => None,
                (true, Some(testbed)) => Some(testbed),
                (true, None) => {
                    *found = Err("no testbed".to_owned());
                    continue;
                }
            };
            let gossip: &[&str] = match executor {
                None => &[],
                Some(executor) => &["--period", PERIOD, "--executor", executor],
            };
            match child(&[&common[..], words, gossip].concat(), testbed) {
                Ok(one) => list.push(one),
                Err(reason) => *found = Err(reason),
            }
            ensure!(!stop::is_wanted(), Interrupted);
        }
    }
    if let Some(testbed) = beds {
        testbed.down()?;
    }
    let seconds: Vec<Option<Rounds>> = found
        .iter()
        .map(|list| {
            let list = list.as_ref().ok()?;
            let all = list.iter().map(|one| one["seconds"]["learn"].as_f64());
            Some(Rounds::of(&all.collect::<Option<Vec<f64>>>()?))
        })
        .collect();
    let middle = |place: usize| seconds[place].map(|rounds| rounds.median);
    let by_tcp = all.iter().position(|(way, _)| *way == 1).unwrap_or(0);
    let heads = [
        "learned by",
        "executor",
        "seconds",
        "+-%",
        "over one",
        "over TCP",
        "loss",
    ];
    let mut lines = vec![heads.map(str::to_owned)];
    let mut results = Vec::new();
    for (place, ((way, executor), list)) in all.iter().zip(&found).enumerate() {
        let (name, executor) = (WAYS[*way].0, executor.unwrap_or("-"));
        match (list, seconds[place]) {
            (Ok(list), Some(rounds)) => {
                let loss = list.last().and_then(|one| one["loss"].as_f64());
                let beside = list.last().map(|one| &one["rows_beside"]);
                lines.push([
                    name.to_owned(),
                    executor.to_owned(),
                    format!("{:.4}", rounds.median),
                    format!("{:.0}", rounds.spread_percent() / 2.0),
                    times(middle(0), middle(place)),
                    times(middle(by_tcp), middle(place)),
                    loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.4e}")),
                ]);
                results.push(
                    json!({ "way": name, "executor": executor, "seconds": rounds, "loss": loss, "rows_beside": beside }),
                );
            }
            (Err(reason), _) => {
                talk.say(&format!("{name}, {executor}: not measured: {reason}"));
                results.push(json!({ "way": name, "executor": executor, "missing": reason }));
            }
            (Ok(_), None) => {
                results.push(json!({ "way": name, "executor": executor, "missing": "no time" }))
            }
        }
    }
    talk.say(&table::aligned(&lines));
    talk.say("over one, over TCP (rtc): how many times as fast; the paper: 2x and 1.2x");
    drop(talk);
    if args.json {
        output::print_json(&json!({
            "figure": "l2rtc-fig14", "machine": machine, "rows": rows, "paper": ["2x", "1.2x"], "results": results,
        }));
    }
    Ok(DONE)
}
