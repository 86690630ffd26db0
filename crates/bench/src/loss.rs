//! Exchanges under loss: the time for 64 MiB, and the latest of small messages, ours compared with TCP, between two hosts of a testbed that both lose
//! frames sent to them.
//!
//! Called by `tsumuji bench loss` and by the figures. The frames are dropped where the switch sends them to a host, for any kind of receiver (see
//! `tsumuji_testbed`).

use std::io;
use std::time::Duration;

use serde::{Serialize, Serializer};
use serde_json::json;
use tsumuji_testbed::{Impairment, Testbed};

use crate::contest::Ours;
use crate::limits::place::{Place, of_testbed};
use crate::limits::tcp;
use crate::ops::{Job, Op, Sample};
use crate::stats::Rounds;
use crate::versus::in_turn;
use crate::{machine, stop};

/// A message of the transfer.
const BLOCK_BYTES: usize = 1 << 20;
/// The message whose tail latency is measured.
const SMALL_BYTES: usize = 64;
/// TCP waits long for a lost frame when nothing follows it: it gets this much time for its round trips, and as much for those
/// of its warm-up.
const TRIPS_WITHIN: Duration = Duration::from_secs(15);

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Bytes to move, in messages of 1 MiB.
    pub bytes: usize,
    /// Round trips of small messages.
    pub trips: u64,
    /// Rounds: in each, every contender takes a turn.
    pub rounds: usize,
    /// Probabilities that a frame is lost, towards either host.
    pub losses: Vec<f64>,
}

/// Result of one contender under one loss.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Name of the contender.
    pub name: String,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Seconds to move the bytes, or why they were not moved.
    #[serde(serialize_with = "told")]
    pub seconds: Result<Rounds, String>,
    /// Half the round trip of a small message, in microseconds, that one in a thousand exceeds.
    #[serde(serialize_with = "told")]
    pub p999_us: Result<Rounds, String>,
    /// Median of the same.
    pub p50_us: f64,
}

/// The numbers, or an object with the reason.
fn told<S: Serializer>(result: &Result<Rounds, String>, to: S) -> Result<S::Ok, S::Error> {
    match result {
        Ok(rounds) => rounds.serialize(to),
        Err(reason) => json!({ "failure": reason }).serialize(to),
    }
}

/// Measures all contenders in turn, under each loss; prints the results. TCP is the last of the lines of a loss.
pub fn run(
    plan: &Plan,
    testbed: &Testbed,
    ours: &[Ours],
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Line>, String> {
    let places = of_testbed(testbed);
    let Some(pair) = places.first_chunk::<2>() else {
        return Err("a testbed of two hosts is needed".to_owned());
    };
    let job = |op, size, iterations| Job {
        op,
        size,
        iterations,
        nodes: 2,
    };
    let blocks = (plan.bytes / BLOCK_BYTES).max(1) as u64;
    let jobs = [
        // One sender and the root: the warm-up is short.
        job(Op::Gather, BLOCK_BYTES, blocks),
        job(Op::Pingpong, SMALL_BYTES, plan.trips),
    ];
    let names: Vec<String> = (ours.iter().map(Ours::name))
        .chain(["TCP".to_owned()])
        .collect();
    let mut lines = Vec::new();
    say(
        "  loss  who               seconds   +-%      MB/s  half round trip us: p50       p99.9   +-%",
    );
    for &loss in &plan.losses {
        let impairment = Impairment {
            loss,
            ..Impairment::NONE
        };
        testbed
            .impair(&[0, 1], impairment)
            .map_err(|error| error.to_string())?;
        let found = in_turn(plan.rounds, jobs.len() * names.len(), |index| {
            let job = &jobs[index % jobs.len()];
            match ours.get(index / jobs.len()) {
                Some(ours) => ours.measure(job),
                None => beside(pair, job).map_err(|error| error.to_string()),
            }
        });
        if stop::is_wanted() {
            return Err(stop::REASON.to_owned());
        }
        for (name, found) in names.iter().zip(found.chunks_exact(jobs.len())) {
            let line = line(name.clone(), loss, found);
            say(&text(&line, plan.bytes));
            lines.push(line);
        }
    }
    Ok(lines)
}

fn text(line: &Line, bytes: usize) -> String {
    let rounds = |result: &Result<Rounds, String>| match result {
        Ok(rounds) => (rounds.median, rounds.spread_percent() / 2.0),
        Err(_) => (f64::NAN, f64::NAN),
    };
    let (seconds, spread) = rounds(&line.seconds);
    let (p999, p999_spread) = rounds(&line.p999_us);
    let mut text = format!(
        "{:>4.1} %  {:16} {seconds:>8.3}  {spread:>4.0}  {:>8.1}  {:>24.2}  {p999:>10.1}  {p999_spread:>4.0}",
        line.loss * 100.0,
        line.name,
        bytes as f64 / seconds / 1e6,
        line.p50_us,
    );
    for reason in [&line.seconds, &line.p999_us]
        .into_iter()
        .filter_map(|one| one.as_ref().err())
    {
        text.push_str(&format!("  ({reason})"));
    }
    text
}

/// The same by TCP.
fn beside(pair: &[Place; 2], job: &Job) -> io::Result<Sample> {
    if job.op == Op::Gather {
        return tcp::gather_between(pair, job.size, job.iterations);
    }
    let (cpus, limit) = (machine::two_cpus(), Some(TRIPS_WITHIN));
    tcp::pingpong_for(pair, cpus, job.size, job.iterations, limit)
}

/// `found`: of the transfer and of the small messages, round by round.
fn line(name: String, loss: f64, found: &[Result<Vec<Sample>, String>]) -> Line {
    let of = |part: usize, number: fn(&Sample) -> f64| {
        let samples = found[part].as_ref().map_err(Clone::clone)?;
        Ok(Rounds::over(samples, number))
    };
    Line {
        name,
        loss,
        seconds: of(0, |sample| sample.seconds),
        p999_us: of(1, |sample| {
            sample.half_rtt_us.map_or(f64::NAN, |half| half.p999)
        }),
        p50_us: of(1, |sample| {
            sample.half_rtt_us.map_or(f64::NAN, |half| half.p50)
        })
        .map_or(f64::NAN, |rounds| rounds.median),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A failure is shown in the line of its contender, behind NaN numbers.
    #[test]
    fn failures_are_told() {
        let line = Line {
            name: "TCP".to_owned(),
            loss: 0.05,
            seconds: Err("timed out".to_owned()),
            p999_us: Ok(Rounds::of(&[3.0])),
            p50_us: 2.0,
        };
        let text = text(&line, 1 << 20);
        assert!(
            text.contains("5.0 %") && text.ends_with("(timed out)"),
            "{text}"
        );
    }
}
