//! L2RTC's figures 5 and 6: what receiving costs.

use anyhow::anyhow;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::table;

use super::super::Args;
use super::{Found, child, entry, median, over_all_links, times};
use crate::Outcome;
use crate::bench::short;
use crate::talk::Talk;

/// Offered loads of figure 6, in messages a second.
const OFFERED: [u64; 5] = [1_000, 10_000, 50_000, 200_000, 800_000];

/// Rounds and seconds of a measurement.
fn effort(args: &Args) -> (u64, &'static str) {
    let rounds = args.rounds(3);
    (rounds, if args.quick { "0.05" } else { "0.5" })
}

/// What `bench drop` finds, with these words.
pub(in crate::paper) fn dropped(args: &Args, words: &[&str]) -> anyhow::Result<Value> {
    let (rounds, time) = effort(args);
    let line = format!("bench drop --rounds {rounds} --time {time}");
    let found = child(line.split(' ').chain(words.iter().copied()), None);
    found.map_err(|reason| anyhow!(reason))
}

/// Figure 5.
pub(super) fn drops(args: &Args) -> Outcome {
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("the paper cites the authors of XDP: on one core DPDK takes and drops up to 8 times as many frames as the kernel, and more cores take more");
    let found = dropped(args, &[])?;
    let results = found["results"].as_array().cloned().unwrap_or_default();
    let mut rows =
        table::headed("received by | cores | received/s | dropped/s | over the kernel's");
    for result in &results {
        let way = result["way"].as_str().unwrap_or_default();
        let receivers = &result["receivers"];
        if let Some(reason) = result["missing"].as_str() {
            talk.say(&format!("{way}, {receivers}: not measured: {reason}"));
            continue;
        }
        let kernel = results
            .iter()
            .find(|one| one["way"] == "kernel UDP" && one["receivers"] == *receivers);
        let received = |one: &Value| median(&one["received_per_second"]);
        rows.push([
            way.to_owned(),
            receivers.to_string(),
            received(result).map_or_else(String::new, short),
            median(&result["dropped_per_second"]).map_or_else(String::new, short),
            times(received(result), kernel.and_then(received)),
        ]);
    }
    talk.say(&table::aligned(&rows));
    talk.say("the sender's core does the receiving kernel's work, too: where nothing is dropped, it is the limit (between real cards it is not)");
    talk.end(
        &json!({ "figure": "l2rtc-fig5", "machine": machine, "paper": "up to 8x", "measured": found }),
    )
}

/// Figure 6.
pub(super) fn costs(args: &Args) -> Outcome {
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("the paper's: a receiver that polls (DPDK) takes a whole core at any load, the kernel's takes more the more comes");
    talk.say("ours with its idle policy is to be low at low load and fast at high load; percent of a core, and the median one-way time in us");
    let (rounds, time) = effort(args);
    let offered = if args.quick {
        &OFFERED[..2]
    } else {
        &OFFERED[..]
    };
    let rates = offered.iter().map(u64::to_string).collect::<Vec<_>>();
    let rates = rates.join(",");
    let measure = |link: &'static str, testbed: Option<&_>| {
        let line =
            format!("bench cpu --rounds {rounds} --time {time} --offered {rates} --link {link}");
        child(line.split(' '), testbed)
    };
    let mut show = |talk: &mut Talk, found: &Found| talk.say(&shown(found, offered));
    let all = over_all_links(&mut talk, &measure, &mut show)?;
    let links: Vec<Value> = all.iter().map(entry).collect();
    talk.end(
        &json!({ "figure": "l2rtc-fig6", "machine": machine, "offered": offered, "links": links }),
    )
}

fn shown((place, link, found): &Found, offered: &[u64]) -> String {
    let title = format!("{link}, {place}");
    let found = match found {
        Ok(found) => found,
        Err(reason) => return format!("{title}: not measured: {reason}"),
    };
    let results = found["results"].as_array().cloned().unwrap_or_default();
    let cell = |receiver: &str, offered: Option<&u64>| {
        let result = results.iter().find(|one| {
            one["receiver"] == receiver
                && offered.is_some_and(|rate| one["offered_per_second"] == *rate)
        });
        let numbers = result
            .map(|one| [&one["cores"], &one["p50_us"], &one["received_per_second"]].map(median));
        match numbers {
            // What did not arrive is told in the detailed table of `bench cpu`; here it is marked.
            Some([Some(cores), Some(p50), Some(received)]) => {
                let is_short = offered.is_some_and(|rate| received < 0.9 * *rate as f64);
                let mark = if is_short { "!" } else { "" };
                format!("{:.0} % {p50:.1}{mark}", 100.0 * cores)
            }
            _ => String::new(),
        }
    };
    let mut rows = Vec::new();
    let row = |head: &str, cell: &dyn Fn(usize) -> String| {
        [head.to_owned(), cell(0), cell(1), cell(2), cell(3), cell(4)]
    };
    rows.push(row("offered/s", &|place| {
        offered
            .get(place)
            .map_or_else(String::new, |rate| short(*rate as f64))
    }));
    for receiver in [
        "kernel UDP, blocking",
        "kernel UDP, spinning",
        "ours, spinning",
        "ours, idle policy",
    ] {
        rows.push(row(receiver, &|place| cell(receiver, offered.get(place))));
    }
    format!(
        "{title} (!: less than 90 % of the offered arrived):\n{}",
        table::aligned(&rows)
    )
}
