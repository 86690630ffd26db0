//! L2RTC's figure 14: the time to learn a line by gossip, over each link by each executor, beside TCP and one process.

use anyhow::ensure;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::versus::{Standing, in_turn};
use tsumuji_bench::{stop, table};

use super::super::Args;
use super::{EXECUTORS, child};
use crate::Outcome;
use crate::bench::short;
use crate::interrupt::Interrupted;
use crate::talk::Talk;

/// Rows of the data, and of a first look.
const ROWS: usize = 4_000_000;
const FEW_ROWS: usize = 20_000;
/// Steps between two exchanges: now and then, as the paper says; and so often that messages are most of the work.
const SELDOM: &str = "128";
const OFTEN: &str = "4";
const EPOCHS: &str = "8";

/// Ways to learn: name, words, and whether between hosts.
const WAYS: [(&str, &[&str], bool); 7] = [
    ("one process", &["--mode", "single"], false),
    ("TCP", &["--mode", "tcp", "--workers", "2"], false),
    ("shm", &["--link", "shm", "--workers", "2"], false),
    ("udp", &["--link", "udp", "--workers", "2"], false),
    ("packet", &["--link", "packet"], true),
    ("xdp", &["--link", "xdp"], true),
    ("dpdk", &["--link", "dpdk:net_af_packet"], true),
];

/// TCP's place there.
const TCP: usize = 1;
/// How many times as fast as TCP messages are to be at the paper's setting.
const WANTED_OVER_TCP: f64 = 1.2;

/// A line of the table: a place in [`WAYS`]; who steps, and so many steps between two exchanges.
type Line = (usize, Option<(&'static str, &'static str)>);

/// One process has one thread only. With frequent exchanges the thread that polls steps.
fn lines_of_all() -> Vec<Line> {
    let ways = || 1..WAYS.len();
    let with = |way| EXECUTORS.map(move |executor| (way, Some((executor, SELDOM))));
    let often = ways().map(|way| (way, Some((EXECUTORS[0], OFTEN))));
    std::iter::once((0, None))
        .chain(ways().flat_map(with))
        .chain(often)
        .collect()
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let (mut talk, machine) = Talk::begin(args.json);
    let rows = if args.quick { FEW_ROWS } else { ROWS };
    let rounds = args.rounds(3);
    talk.say("the paper's: simple linear regression by SGD and gossip; two machines over L2RTC are 2 times as fast as one, and 1.2 times as fast as over TCP");
    talk.say(&format!(
        "{rows} rows, {EPOCHS} epochs, two workers that exchange every {SELDOM} steps, or every {OFTEN}; {rounds} rounds in turn"
    ));
    talk.say("executors: rtc steps on the thread that polls, pipeline beside it, adaptive where it is faster and there is a core for it");
    talk.say("packet, xdp and dpdk between hosts of a testbed; TCP and udp over loopback");
    let data = format!("{rows}x1");
    let common = [
        "learn",
        "linear",
        "--generate",
        &data,
        "--method",
        "sgd",
        "--epochs",
        EPOCHS,
        "--tol",
        "1e-12",
    ];
    let say_without =
        |error| talk.say(&format!("without links between hosts: no testbed: {error}"));
    let beds = testbed(3, None, 1500).map_err(say_without).ok();
    let all = lines_of_all();
    let found = in_turn(rounds as usize, all.len(), |line| {
        let (way, executor) = all[line];
        let (_, words, between) = WAYS[way];
        let testbed = match (between, &beds) {
            (false, _) => None,
            (true, Some(testbed)) => Some(testbed),
            (true, None) => return Err("no testbed".to_owned()),
        };
        let gossip: &[&str] = match executor {
            None => &[],
            Some((executor, period)) => &["--period", period, "--executor", executor],
        };
        child([&common[..], words, gossip].concat(), testbed)
    });
    ensure!(!stop::is_wanted(), Interrupted);
    if let Some(testbed) = beds {
        testbed.down()?;
    }
    let (lines, results) = compared(&all, &found, &mut talk);
    talk.say(&table::aligned(&lines));
    talk.say(&format!(
        "over one, over TCP (with the same executor and steps): how many times as fast, by the ratios round by round; the paper: 2x and 1.2x. Wanted with frequent exchanges, rtc: {WANTED_OVER_TCP}x of TCP. Exchanges: parameters that workers took from each other"
    ));
    talk.end(&json!({
        "figure": "l2rtc-fig14", "machine": machine, "rows": rows, "paper": ["2x", "1.2x"],
        "wanted_over_tcp": WANTED_OVER_TCP, "results": results,
    }))
}

/// A number of `learn --json` in each round; nothing if it is missing in one.
fn in_rounds(list: &[Value], number: impl Fn(&Value) -> Option<f64>) -> Vec<f64> {
    let all: Option<Vec<f64>> = list.iter().map(number).collect();
    all.unwrap_or_default()
}

/// The table and its lines for scripts. `found`: what each line learned in each round, or why it did not.
fn compared(
    all: &[Line],
    found: &[Result<Vec<Value>, String>],
    talk: &mut Talk,
) -> (Vec<[String; 9]>, Vec<Value>) {
    let standings: Vec<Standing> = found
        .iter()
        .map(|list| {
            let list = list.as_deref().unwrap_or_default();
            let seconds = in_rounds(list, |one| one["seconds"]["learn"].as_f64());
            Standing::of("", Ok(seconds))
        })
        .collect();
    let mut lines = table::headed(
        "learned by | executor | steps | seconds | +-% | over one | over TCP | exchanges | loss",
    );
    let mut results = Vec::new();
    for (place, ((way, executor), list)) in all.iter().zip(found).enumerate() {
        let (name, (who, period)) = (WAYS[*way].0, executor.unwrap_or(("-", "-")));
        let steps = period.parse::<u64>().ok();
        let measured = match (list, standings[place].result.as_ref()) {
            (Err(reason), _) => {
                talk.say(&format!(
                    "{name}, {who}, {period} steps: not measured: {reason}"
                ));
                Err(reason.as_str())
            }
            (Ok(list), Ok(seconds)) if seconds.rounds > 0 => Ok((list, seconds)),
            _ => Err("no time"),
        };
        let (list, seconds) = match measured {
            Ok(measured) => measured,
            Err(reason) => {
                results.push(
                    json!({ "way": name, "executor": who, "period": steps, "missing": reason }),
                );
                continue;
            }
        };
        let by_tcp = all.iter().position(|line| *line == (TCP, *executor));
        // Times: the less, the better.
        let over = |other: usize| standings[other].ratio_to(&standings[place]);
        let (over_one, over_tcp) = (over(0), by_tcp.map_or(f64::NAN, over));
        let of = |name: &str| Rounds::of(&in_rounds(list, |one| one[name].as_f64()));
        let (exchanges, bytes_sent) = (of("exchanges"), of("bytes_sent"));
        let loss = list.last().and_then(|one| one["loss"].as_f64());
        let beside = list.last().map(|one| &one["rows_beside"]);
        lines.push([
            name.to_owned(),
            who.to_owned(),
            period.to_owned(),
            format!("{:.4}", seconds.median),
            seconds.half_spread(),
            ratio(over_one),
            ratio(over_tcp),
            short(exchanges.median),
            table::cell(loss, |loss| format!("{loss:.2e}")),
        ]);
        results.push(json!({
            "way": name, "executor": who, "period": steps, "seconds": seconds, "over_one": over_one, "over_tcp": over_tcp,
            "exchanges": exchanges, "bytes_sent": bytes_sent, "loss": loss, "rows_beside": beside,
        }));
    }
    (lines, results)
}

fn ratio(times: f64) -> String {
    table::number(Some(times).filter(|times| times.is_finite()), 2, "x")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each line stands beside TCP of the same executor, round by round; a line that was not measured says why; exchanges and bytes are in JSON.
    #[test]
    fn lines_stand_beside_tcp_of_the_same_executor() {
        let all = lines_of_all();
        let run = |seconds: f64| json!({ "seconds": { "learn": seconds }, "exchanges": 7, "bytes_sent": 1500, "loss": 0.5 });
        let missing = Err("no testbed".to_owned());
        let mut found: Vec<Result<Vec<Value>, String>> = vec![missing; all.len()];
        let mut learned = |way: usize, executor: Option<&'static str>, seconds: [f64; 3]| {
            let line = (way, executor.map(|executor| (executor, SELDOM)));
            let place = all.iter().position(|one| *one == line);
            found[place.unwrap()] = Ok(seconds.map(run).to_vec());
        };
        learned(0, None, [4.0, 4.0, 4.0]);
        learned(TCP, Some("rtc"), [3.0, 6.0, 3.0]);
        learned(TCP, Some("pipeline"), [8.0, 8.0, 8.0]);
        learned(2, Some("rtc"), [2.0, 4.0, 2.0]);
        learned(2, Some("pipeline"), [2.0, 2.0, 2.0]);
        let (lines, results) = compared(&all, &found, &mut Talk::new(true));
        assert_eq!(lines.len(), 1 + 5);
        assert_eq!(results.len(), all.len());
        let line = |way: &str, executor: &str| {
            let mut all = results.iter();
            all.find(|one| one["way"] == way && one["executor"] == executor)
                .unwrap()
        };
        assert_eq!(line("shm", "rtc")["over_tcp"], 1.5);
        assert_eq!(line("shm", "rtc")["over_one"], 2.0);
        assert_eq!(line("shm", "pipeline")["over_tcp"], 4.0);
        assert_eq!(line("TCP", "rtc")["over_tcp"], 1.0);
        assert_eq!(line("one process", "-")["over_tcp"], Value::Null);
        assert_eq!(line("shm", "rtc")["exchanges"]["median"], 7.0);
        assert_eq!(line("shm", "rtc")["bytes_sent"]["median"], 1500.0);
        assert_eq!(line("udp", "rtc")["missing"], "no testbed");
    }
}
