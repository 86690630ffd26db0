//! One operation at many sizes, ours and every peer in turn, round by round; as a table, as CSV and as numbers for JSON and plots.
//!
//! Called by `tsumuji bench` and `tsumuji paper`. Sizes come one after another; at each size the contenders take turns, each round beginning with another
//! of them, so that a machine that changes its speed affects all. They are reported in their own order. A contender that fails is reported with the reason and left out from then on; the others go on.

use std::fmt::Write as _;

use serde::Serialize;

use crate::machine::Machine;
use crate::ops::{Job, Op, Sample};
use crate::plot::Line;
use crate::stats::{Rounds, size_name};
use crate::stop;
use crate::table::{self, quoted};
use crate::versus::{Better, median_ratio, order};

/// A library or link that is measured.
pub struct Contender<'a> {
    /// Its name in tables.
    pub name: String,
    measure: Measure<'a>,
    /// Why it was left out.
    out: Option<String>,
}

/// Measures one job once.
type Measure<'a> = Box<dyn FnMut(&Job) -> Result<Sample, String> + 'a>;

impl<'a> Contender<'a> {
    /// A contender that `measure` measures.
    pub fn new(
        name: impl Into<String>,
        measure: impl FnMut(&Job) -> Result<Sample, String> + 'a,
    ) -> Self {
        Self {
            name: name.into(),
            measure: Box::new(measure),
            out: None,
        }
    }

    /// A contender that cannot take part.
    pub fn absent(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            measure: Box::new(|_| Err(String::new())),
            out: Some(reason.into()),
        }
    }
}

/// Result of one contender at one size.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Name of the contender.
    pub name: String,
    /// Why there are no numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Numbers, if there are any.
    #[serde(flatten)]
    pub numbers: Option<Numbers>,
    #[serde(skip)]
    samples: Vec<Sample>,
    #[serde(skip)]
    headlines: Vec<f64>,
}

/// Results over all rounds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Numbers {
    /// The number for comparison: microseconds, or MB/s of a burst.
    #[serde(flatten)]
    pub headline: Rounds,
    /// Payload a second, of all nodes together.
    pub bytes_per_second: f64,
    /// Payload a second of one receiving node (in a gather: of one sending node).
    pub bytes_per_second_and_node: f64,
    /// Processor time of all nodes for one message delivered.
    pub cpu_us_per_message: f64,
    /// Service demand: processor time of all nodes for 1000 bytes delivered.
    pub cpu_us_per_kb: Option<f64>,
    /// One round trip in a hundred takes twice this or longer.
    pub p99_us: Option<f64>,
    /// One round trip in a thousand takes twice this or longer.
    pub p999_us: Option<f64>,
    /// Frames lost at the receiver because there was no room, in all rounds.
    pub receive_drops: Option<u64>,
    /// Frames sent again, in all rounds.
    pub retransmitted_frames: Option<u64>,
    /// Our headline divided by this one's.
    pub ratio: f64,
    /// How many times better ours is: above 1 ours is ahead.
    pub times_better: f64,
}

/// All contenders at one size; ours is the first.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Bytes of a message, or of each node's block.
    pub size: usize,
    /// Repetitions of one measurement.
    pub iterations: u64,
    /// In order of the contenders.
    pub contenders: Vec<Cell>,
    #[serde(skip)]
    job: Job,
}

/// All sizes.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The operation.
    pub kind: Op,
    /// Nodes that took part.
    pub nodes: usize,
    /// Unit of the headlines.
    pub unit: &'static str,
    /// Whether higher or lower headlines are better.
    pub better: Better,
    /// The machine of the measurement.
    pub machine: Machine,
    /// Smallest size first.
    pub results: Vec<Row>,
}

/// A comparison to be made.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The operation.
    pub op: Op,
    /// Nodes that take part.
    pub nodes: usize,
    /// Bytes of a message.
    pub sizes: Vec<usize>,
    /// Repetitions; `None`: chosen by size.
    pub iterations: Option<u64>,
    /// Rate of the cables, where it is limited: fewer repetitions then.
    pub bits_per_second: Option<u64>,
    /// Rounds: in each, all contenders take a turn at each size.
    pub rounds: usize,
}

/// A measurement that is about to begin.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Bytes of a message.
    pub size: usize,
    /// Its round, from 1.
    pub round: usize,
    /// The contender.
    pub who: &'a str,
    /// Measurements done.
    pub done: usize,
    /// Measurements in all, if no contender fails.
    pub of: usize,
}

/// Follows the progress of a comparison.
pub trait Listener {
    /// Takes lines of the table.
    fn say(&mut self, text: &str);
    /// A measurement is about to begin.
    fn step(&mut self, step: Step<'_>);
}

/// A listener for lines only.
impl<F: FnMut(&str) + ?Sized> Listener for F {
    fn say(&mut self, text: &str) {
        self(text);
    }

    fn step(&mut self, _: Step<'_>) {}
}

/// Runs a comparison, and passes each size's lines to the listener as soon as they are known. Ends early if the user wants to stop (see [`stop`]).
pub fn run(
    plan: &Plan,
    contenders: &mut [Contender<'_>],
    machine: Machine,
    listener: &mut (impl Listener + ?Sized),
) -> Comparison {
    let mut sizes = plan.sizes.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let mut comparison = Comparison {
        kind: plan.op,
        nodes: plan.nodes,
        unit: plan.op.unit(),
        better: plan.op.better(),
        machine,
        results: Vec::new(),
    };
    let names = contenders.iter().map(|one| one.name.chars().count());
    let width = names.max().unwrap_or(0);
    listener.say(&head(plan.op, width));
    let mut told = vec![false; contenders.len()];
    let count = sizes.len();
    for (index, size) in sizes.into_iter().enumerate() {
        let job = Job {
            op: plan.op,
            size,
            iterations: match (plan.iterations, plan.bits_per_second) {
                (Some(iterations), _) => iterations,
                (None, None) => plan.op.iterations(size, plan.nodes),
                (None, Some(rate)) => plan.op.iterations_on_cables(size, plan.nodes, rate),
            },
            nodes: plan.nodes,
        };
        let row = row(&job, plan.rounds, contenders, &mut |mut step| {
            (step.done, step.of) = (index * step.of + step.done, count * step.of);
            listener.step(step);
        });
        if stop::is_wanted() {
            break;
        }
        listener.say(&lines(&row, width, &mut told));
        comparison.results.push(row);
    }
    comparison
}

fn row(
    job: &Job,
    rounds: usize,
    contenders: &mut [Contender<'_>],
    on_step: &mut dyn FnMut(Step<'_>),
) -> Row {
    let mut samples: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    let present = contenders.iter().filter(|one| one.out.is_none()).count();
    let mut done = 0;
    for round in 1..=rounds {
        for index in order(round - 1, contenders.len()) {
            let (contender, samples) = (&mut contenders[index], &mut samples[index]);
            if contender.out.is_none() && !stop::is_wanted() {
                on_step(Step {
                    size: job.size,
                    round,
                    who: &contender.name,
                    done,
                    of: present * rounds,
                });
                done += 1;
                match (contender.measure)(job) {
                    Ok(sample) => samples.push(sample),
                    Err(reason) => contender.out = Some(reason),
                }
            }
        }
    }
    let ours: Vec<f64> = samples
        .first()
        .into_iter()
        .flatten()
        .map(|sample| sample.headline(job))
        .collect();
    let cells = contenders
        .iter()
        .zip(samples)
        .map(|(contender, samples)| cell(job, contender, samples, &ours));
    Row {
        size: job.size,
        iterations: job.iterations,
        contenders: cells.collect(),
        job: *job,
    }
}

fn cell(job: &Job, contender: &Contender<'_>, samples: Vec<Sample>, ours: &[f64]) -> Cell {
    let median = |of: &dyn Fn(&Sample) -> f64| Rounds::over(&samples, of).median;
    let sum = |of: fn(&Sample) -> Option<u64>| {
        samples
            .iter()
            .map(of)
            .try_fold(0, |sum, one| one.map(|one| sum + one))
    };
    let headlines: Vec<f64> = samples.iter().map(|one| one.headline(job)).collect();
    let ratio = median_ratio(ours, &headlines);
    let numbers = (!samples.is_empty()).then(|| Numbers {
        headline: Rounds::of(&headlines),
        bytes_per_second: median(&|one| one.bytes_per_second(job)),
        bytes_per_second_and_node: median(&|one| one.bytes_per_second_and_node(job)),
        cpu_us_per_message: median(&|one| one.cpu_us_per_message(job)),
        cpu_us_per_kb: (job.size > 0)
            .then(|| median(&|one| one.cpu_us_per_kb(job).unwrap_or(f64::NAN))),
        p99_us: (job.op == Op::Pingpong)
            .then(|| median(&|one| one.half_rtt_us.map_or(f64::NAN, |half| half.p99))),
        p999_us: (job.op == Op::Pingpong)
            .then(|| median(&|one| one.half_rtt_us.map_or(f64::NAN, |half| half.p999))),
        receive_drops: sum(|one| one.receive_drops),
        retransmitted_frames: sum(|one| one.retransmitted_frames),
        ratio,
        times_better: job.op.better().times(ratio),
    });
    Cell {
        name: contender.name.clone(),
        failure: contender.out.clone(),
        numbers,
        samples,
        headlines,
    }
}

impl Cell {
    /// The sample of the middle round, by headline.
    pub fn middle(&self) -> Option<&Sample> {
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        order.sort_by(|&a, &b| self.headlines[a].total_cmp(&self.headlines[b]));
        self.samples.get(*order.get(order.len() / 2)?)
    }
}

impl Row {
    /// How many times contender `ours` is better than contender `other`, by headline, as the median of the rounds; NaN if either has
    /// no numbers.
    pub fn times_better(&self, ours: usize, other: usize) -> f64 {
        let headlines = |index: usize| self.contenders.get(index).map(|cell| &cell.headlines[..]);
        let ratio = median_ratio(
            headlines(ours).unwrap_or_default(),
            headlines(other).unwrap_or_default(),
        );
        self.job.op.better().times(ratio)
    }

    /// The job that was measured at this size.
    pub fn job(&self) -> &Job {
        &self.job
    }
}

fn head(op: Op, width: usize) -> String {
    format!(
        "{:>7} {:width$} {:>8} {:>4} {:>8} {:>6} {:>7} {:>7}",
        "size",
        "who",
        op.unit(),
        "+-%",
        if op.better() == Better::More {
            "us"
        } else {
            "MB/s"
        },
        "CPU us",
        "us/KB",
        "ours is"
    )
}

/// The lines of one size. The reason of a contender without numbers is given once.
fn lines(row: &Row, width: usize, told: &mut [bool]) -> String {
    let mut text = String::new();
    for (index, cell) in row.contenders.iter().enumerate() {
        if cell.failure.is_some() && std::mem::replace(&mut told[index], true) {
            continue;
        }
        let size = if text.is_empty() {
            size_name(row.size)
        } else {
            String::new()
        };
        let _ = write!(text, "{size:>7} {:width$} ", cell.name);
        match (&cell.numbers, &cell.failure) {
            (Some(numbers), failure) => {
                let other = match row.job.op.better() {
                    Better::More => {
                        row.job.op.deliveries(row.job.nodes) as f64 * row.size as f64
                            / numbers.bytes_per_second
                            * 1e6
                    }
                    Better::Less => numbers.bytes_per_second / 1e6,
                };
                let per_kb = table::cell(numbers.cpu_us_per_kb, number);
                let _ = write!(
                    text,
                    "{:>8} {:>4} {:>8} {:>6} {per_kb:>7}",
                    number(numbers.headline.median),
                    numbers.headline.half_spread(),
                    number(other),
                    number(numbers.cpu_us_per_message),
                );
                if index > 0 && numbers.times_better.is_finite() {
                    let _ = write!(text, " {:>6}x", times(numbers.times_better));
                }
                if let Some(drops) = numbers.receive_drops.filter(|&drops| drops > 0) {
                    let _ = write!(text, "\n{:9}({drops} dropped where they arrived)", "");
                }
                if let Some(reason) = failure {
                    let _ = write!(text, "\n{:9}(then: {reason})", "");
                }
            }
            (None, reason) => {
                let reason = reason.as_deref().unwrap_or("not measured");
                let _ = write!(text, "skipped: {reason}");
            }
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

/// A ratio with three digits; very small ones are not shown as 0.
fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 100.0 => format!("{r:.0}"),
        r if r >= 10.0 => format!("{r:.1}"),
        r if r >= 0.1 => format!("{r:.2}"),
        r => format!("{r:.4}"),
    }
}

/// Four digits, whatever the magnitude.
fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".to_owned(),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The columns of [`Comparison::csv`]; most have the names of [`Numbers`].
const CSV_HEAD: &str = "operation,nodes,size_bytes,contender,rounds,unit,median,min,max,bytes_per_second,\
                        bytes_per_second_and_node,cpu_us_per_message,cpu_us_per_kb,p99_us,p999_us,receive_drops,\
                        retransmitted_frames,times_better,failure";

impl Comparison {
    /// One line for each size and contender, under a head line; unknown numbers are empty.
    pub fn csv(&self) -> String {
        let mut text = format!("{CSV_HEAD}\n");
        for row in &self.results {
            for cell in &row.contenders {
                let numbers = serde_json::to_value(cell.numbers).unwrap_or_default();
                let field = |column: &str| match column {
                    "operation" => self.kind.to_string(),
                    "nodes" => self.nodes.to_string(),
                    "size_bytes" => row.size.to_string(),
                    "contender" => quoted(&cell.name),
                    "unit" if cell.numbers.is_some() => self.unit.to_owned(),
                    "failure" => quoted(cell.failure.as_deref().unwrap_or_default()),
                    name => {
                        (numbers[name].as_f64()).map_or_else(String::new, |one| one.to_string())
                    }
                };
                let fields: Vec<String> = CSV_HEAD.split(',').map(field).collect();
                let _ = writeln!(text, "{}", fields.join(","));
            }
        }
        text
    }

    /// The lines of a plot and the unit of their heights: throughput of bursts and gathers, time of other operations.
    pub fn lines(&self) -> (&'static str, Vec<Line>) {
        let by_rate = matches!(self.kind, Op::Burst | Op::Gather);
        let height = |numbers: &Numbers| {
            if by_rate {
                numbers.bytes_per_second / 1e6
            } else {
                numbers.headline.median
            }
        };
        let unit = if by_rate { "MB/s" } else { "us" };
        (unit, self.lines_of(height))
    }

    /// A line for each contender with numbers: `height` over size.
    pub fn lines_of(&self, height: impl Fn(&Numbers) -> f64) -> Vec<Line> {
        let names = self
            .results
            .first()
            .into_iter()
            .flat_map(|row| &row.contenders);
        let lines = names.enumerate().map(|(index, cell)| {
            let points = self.results.iter().filter_map(|row| {
                let numbers = row.contenders.get(index)?.numbers.as_ref()?;
                Some((row.size as f64, height(numbers)))
            });
            Line::new(&cell.name, points)
        });
        lines.filter(|line| !line.points.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn plan(op: Op) -> Plan {
        Plan {
            op,
            nodes: 2,
            sizes: vec![1000, 4, 1000],
            iterations: Some(10),
            bits_per_second: None,
            rounds: 3,
        }
    }

    fn compared(op: Op) -> (Comparison, String) {
        let fast = |_: &Job| {
            Ok(Sample::new(
                Duration::from_micros(10),
                Duration::from_micros(20),
            ))
        };
        let slow = |job: &Job| {
            if job.size > 4 {
                return Err("too, \"large\"".to_owned());
            }
            Ok(Sample::new(
                Duration::from_micros(30),
                Duration::from_micros(60),
            ))
        };
        let mut heard = Heard::default();
        let comparison = run(
            &plan(op),
            &mut [
                Contender::new("ours", fast),
                Contender::new("theirs", slow),
                Contender::absent("others", "not installed: apt-get install others"),
            ],
            crate::machine::describe(),
            &mut heard,
        );
        // Three rounds of two contenders at one size; at the other the failing one is measured once.
        assert_eq!(heard.steps, [3 + 3, 3 + 1]);
        (comparison, heard.said)
    }

    /// Listener that records lines, and the measurements of each size.
    #[derive(Default)]
    struct Heard {
        said: String,
        steps: Vec<usize>,
        size: Option<usize>,
    }

    impl Listener for Heard {
        fn say(&mut self, text: &str) {
            self.said.push_str(text);
            self.said.push('\n');
        }

        fn step(&mut self, step: Step<'_>) {
            assert!(step.done < step.of && step.round <= 3);
            if self.size.replace(step.size) != Some(step.size) {
                self.steps.push(0);
            }
            *self.steps.last_mut().unwrap() += 1;
        }
    }

    /// Sizes are measured once each, smallest first; ours is as many times better as the peer is slower, by time and by rate.
    #[test]
    fn compares() {
        for op in [Op::Gather, Op::Burst] {
            let (comparison, said) = compared(op);
            let sizes: Vec<_> = comparison.results.iter().map(|row| row.size).collect();
            assert_eq!(sizes, [4, 1000]);
            let theirs = comparison.results[0].contenders[1].numbers.unwrap();
            assert!((theirs.times_better - 3.0).abs() < 1e-9, "{op}");
            assert!(said.contains("3.00x"), "{said}");
            let width = |line: &str| line.chars().count();
            assert!(said.lines().all(|line| width(line) <= 80), "{said}");
        }
    }

    /// Contenders that fail or are absent are reported with the reason; the others go on.
    #[test]
    fn failures_are_named() {
        let (comparison, said) = compared(Op::Gather);
        let last = &comparison.results[1].contenders;
        assert!(last[0].numbers.is_some() && last[1].numbers.is_none());
        assert_eq!(last[1].failure.as_deref(), Some("too, \"large\""));
        // Once, not at each size.
        assert_eq!(said.matches("apt-get install others").count(), 1, "{said}");
        assert_eq!(said.matches("too, \"large\"").count(), 1, "{said}");
    }

    /// Every line of the CSV has the head's columns, also where a reason has commas and quotes.
    #[test]
    fn csv_is_rectangular() {
        let (comparison, _) = compared(Op::Gather);
        let text = comparison.csv();
        let columns = |line: &str| {
            let mut inside = false;
            line.chars()
                .filter(|&c| {
                    inside ^= c == '"';
                    c == ',' && !inside
                })
                .count()
        };
        let counts: Vec<_> = text.lines().map(columns).collect();
        assert_eq!(counts.len(), 1 + 2 * 3);
        assert!(counts.iter().all(|&count| count == counts[0]), "{text}");
        assert!(text.contains("\"too, \"\"large\"\"\""));
    }

    /// Numbers in JSON are fields of each contender; unknown ones are absent, not null.
    #[test]
    fn json_is_flat() {
        let (comparison, _) = compared(Op::Gather);
        let value = serde_json::to_value(&comparison).unwrap();
        let theirs = &value["results"][0]["contenders"][1];
        assert!(theirs["median"].as_f64().unwrap() > 0.0);
        assert!(theirs["cpu_us_per_message"].as_f64().unwrap() > 0.0);
        assert!(theirs.get("failure").is_none());
        assert!(value["results"][1]["contenders"][2].get("median").is_none());
    }
}
