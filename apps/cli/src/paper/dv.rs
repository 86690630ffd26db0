//! `tsumuji paper suci-dv`: digital video beside bulk traffic on one cable, by four ways. The paper says only that flow control in the program's hands was
//! of use to such a program.

use anyhow::ensure;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::versus::order;
use tsumuji_bench::video::{self, BULK_STREAMS, Found, Plan, Way};
use tsumuji_bench::{stop, table};

use super::figure::Figure;
use super::{Args, MTU_BYTES, ROUNDS, cables};
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::talk::Talk;

const PAPER: &str =
    "DVTS, about 30 Mbit/s: with the flow-control API it used the network better; no figures";
/// Length of the video of one measurement.
const SECONDS: u32 = 10;
const SECONDS_QUICK: u32 = 2;

/// One way's rounds.
struct Measured {
    way: Way,
    rounds: Vec<Result<Found, String>>,
}

/// Runs the command.
pub(super) fn run(figure: Figure, args: &Args) -> Outcome {
    args.check_taken(
        figure,
        &["--rate", "--rounds"],
        "takes --rate, --rounds, --quick and --json only: it is UDP between two hosts",
    )?;
    let seconds = if args.quick { SECONDS_QUICK } else { SECONDS };
    let rounds = args.rounds(ROUNDS);
    let plan = Plan::of_seconds(seconds);
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(&format!("the paper: {PAPER}"));
    let cables = cables(args.limit());
    talk.say(&format!(
        "{}; 2 hosts, {cables}; {rounds} x {seconds} s of each way in turn; {} frames of {} bytes a second, in time within {:.0} ms of their capture; bulk by TCP: {BULK_STREAMS} connections",
        figure.heading(),
        plan.frames_per_second,
        plan.frame_bytes,
        plan.shown_after().as_secs_f64() * 1e3
    ));
    let testbed = testbed(2, args.limit(), MTU_BYTES)?;
    let mut all = Way::ALL.map(|way| Measured {
        way,
        rounds: Vec::new(),
    });
    for round in 0..rounds as usize {
        for index in order(round, all.len()) {
            let measured = &mut all[index];
            ensure!(!stop::is_wanted(), Interrupted);
            let found = video::measure(measured.way, &testbed, plan);
            measured.rounds.push(found);
        }
    }
    testbed.down()?;
    talk.say(&shown(&all));
    let ways: Vec<Value> = all.iter().map(Measured::object).collect();
    talk.end(&json!({
        "figure": figure.name(), "title": figure.title(), "machine": machine, "paper": PAPER,
        "seconds": seconds, "frame_bytes": plan.frame_bytes, "frames_per_second": plan.frames_per_second,
        "in_time_ms": plan.shown_after().as_secs_f64() * 1e3, "ways": ways
    }))
}

impl Measured {
    fn found(&self) -> impl Iterator<Item = &Found> {
        self.rounds.iter().flatten()
    }

    /// Median over the rounds.
    fn median(&self, of: impl Fn(&Found) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.found().filter_map(of).collect();
        (!values.is_empty()).then(|| Rounds::of(&values).median)
    }

    /// A share of the frames, in the middle round by frames in time, so that the shares of a way add up.
    fn share(&self, of: impl Fn(&Found) -> u32) -> Option<f64> {
        let mut rounds: Vec<&Found> = self.found().collect();
        rounds.sort_by_key(|found| found.in_time);
        let middle = rounds.get(rounds.len() / 2)?;
        Some(f64::from(of(middle)) / f64::from(middle.frames))
    }

    fn failure(&self) -> Option<&String> {
        self.rounds.iter().find_map(|round| round.as_ref().err())
    }

    fn object(&self) -> Value {
        json!({
            "way": self.way.name(),
            "in_time": self.share(|found| found.in_time),
            "late": self.share(|found| found.late),
            "lost": self.share(|found| found.lost),
            "delay_ms_p50": self.median(|found| found.delay_ms_p50),
            "delay_ms_p99": self.median(|found| found.delay_ms_p99),
            "bulk_bytes_per_second": self.median(|found| Some(found.bulk_bytes_per_second)),
            "failure": self.failure(),
            "rounds": self.found().collect::<Vec<_>>(),
        })
    }
}

fn shown(all: &[Measured]) -> String {
    let mut rows = table::headed("way | in time | late | lost | p50 ms | p99 ms | bulk MB/s");
    let mut failures = String::new();
    for measured in all {
        let number = |value: Option<f64>, decimals| table::number(value, decimals, "");
        let percent = |share: Option<f64>| table::number(share.map(|share| share * 100.0), 1, " %");
        rows.push([
            measured.way.name().to_owned(),
            percent(measured.share(|found| found.in_time)),
            percent(measured.share(|found| found.late)),
            percent(measured.share(|found| found.lost)),
            number(measured.median(|found| found.delay_ms_p50), 1),
            number(measured.median(|found| found.delay_ms_p99), 1),
            number(
                measured.median(|found| Some(found.bulk_bytes_per_second / 1e6)),
                2,
            ),
        ]);
        if let Some(reason) = measured.failure() {
            failures += &format!("a round failed: {reason}\n");
        }
    }
    format!("{}{failures}", table::aligned(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Medians of the rounds are shown; a way that failed has none, and says why.
    #[test]
    fn rounds_become_lines() {
        let found = |in_time| Found {
            frames: 100,
            in_time,
            late: 100 - in_time,
            lost: 0,
            delay_ms_p50: Some(20.0),
            delay_ms_p99: Some(40.0),
            bulk_bytes_per_second: 7e6,
        };
        let all = [
            Measured {
                way: Way::Tcp,
                rounds: vec![Ok(found(50)), Ok(found(90)), Ok(found(80))],
            },
            Measured {
                way: Way::Udp,
                rounds: vec![Err("no such cable".to_owned())],
            },
        ];
        let text = shown(&all);
        for shown in ["80.0 %", "20.0 %", "7.00"] {
            assert!(text.contains(shown), "{text}");
        }
        assert!(text.contains("no such cable"), "{text}");
        assert_eq!(all[0].object()["in_time"], 0.8);
        assert_eq!(all[1].object()["in_time"], Value::Null);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
