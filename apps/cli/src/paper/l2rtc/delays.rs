//! L2RTC's figure 10: how heavy a service may be before it cannot keep pace with a line.

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::table;

use super::super::Args;
use super::{EXECUTORS, child, median};
use crate::Outcome;
use crate::bench::short;
use crate::talk::Talk;

/// Frames of each of the paper's measurements, here of all rounds together; and those of a first look.
const FRAMES: u64 = 100_000_000;
const FEW_FRAMES: u64 = 200_000;
/// The line where none is stated: the paper's 10 Gbit/s carry more messages than a core of ours makes.
const LINE: &str = "2gbit";

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("the paper's: 100 million frames at 10 Gbit/s; the server spends a time on each frame and sends it out of its other port. Flat up to 1600 ns");
    talk.say("with 64 bytes, to 3200 ns with 128. A frame takes 67 and 118 ns there: the times fit bursts of 32 frames (2150 and 3790 ns), not single frames.");
    let link = args
        .link
        .map_or_else(|| "shm".to_owned(), |link| link.to_string());
    let line = match &args.rate {
        None => LINE.to_owned(),
        Some(_) => (args.limit())
            .context("--rate none: the generator needs a pace; the paper's is 10gbit")?
            .to_string(),
    };
    let rounds = args.rounds(3);
    let all = if args.quick { FEW_FRAMES } else { FRAMES };
    let count = args.iterations.unwrap_or((all / rounds.max(1)).max(1));
    let is_here = link == "shm" || link.starts_with("udp") || link.starts_with("dpdk:net_memif");
    let mut results = Vec::new();
    let mut rows = table::headed(
        "ports | bytes | served by | predicted knee | measured | in single rounds | refused | dropped | lost",
    );
    // DPDK's memif connects two processes only.
    let ports = if link.starts_with("dpdk:net_memif") {
        &["1"][..]
    } else {
        &["1", "2"][..]
    };
    for ports in ports {
        talk.say(&format!(
            "{link}, a line of {line}, {count} messages each, {rounds} rounds in turn, {ports} port{}",
            if *ports == "1" { "" } else { "s" }
        ));
        let mut words =
            format!("bench delay --count {count} --rounds {rounds} --rate {line} --ports {ports}");
        if args.quick {
            words += " --delay 0,3200,25600 --size 64";
        }
        let words = words.split(' ').chain(["--link", &link]);
        let found = if is_here {
            child(words, None)
        } else {
            let testbed = testbed(3, None, 1500)?;
            let found = child(words, Some(&testbed));
            testbed.down()?;
            found
        };
        let found = found.map_err(|reason| anyhow!("bench delay --ports {ports}: {reason}"))?;
        let list = found["results"].as_array().cloned().unwrap_or_default();
        for summary in list.iter().filter(|one| one["knees"].is_array()) {
            let size = &summary["size"];
            for executor in EXECUTORS {
                let mut knees = summary["knees"].as_array().into_iter().flatten();
                let knee = knees.find(|one| one["executor"] == executor);
                let by = |value: &Value| table::cell(value.as_u64(), |knee| format!("{knee} ns"));
                let single = knee.and_then(|knee| knee["rounds_ns"].as_array());
                let single = single.into_iter().flatten().map(by);
                let sum = |number: &dyn Fn(&Value) -> Option<f64>| -> f64 {
                    let own = (list.iter())
                        .filter(|one| one["size"] == *size && one["executor"] == executor);
                    own.filter_map(number).sum()
                };
                rows.push([
                    (*ports).to_owned(),
                    size.to_string(),
                    executor.to_owned(),
                    summary["predicted_knee_ns"]
                        .as_f64()
                        .map_or_else(String::new, |knee| format!("{knee:.0} ns")),
                    table::cell(knee, |knee| by(&knee["knee_ns"])),
                    single.collect::<Vec<_>>().join(", "),
                    short(sum(&|one| median(&one["refused"]))),
                    short(sum(&|one| median(&one["dropped"]))),
                    format!("{:.0}", sum(&|one| one["lost"].as_f64())),
                ]);
            }
        }
        results.push(json!({ "ports": ports, "measured": found }));
    }
    talk.say(&table::aligned(&rows));
    talk.say("measured: the longest time of those tried with which the server keeps pace (95 % of the line, by the median); refused: not sent, as the server was late; dropped: by the server, as the third node was late; lost: without a trace");
    talk.end(
        &json!({ "figure": "l2rtc-fig10", "machine": machine, "link": link, "results": results }),
    )
}
