//! All figures with targets, each with its limit or peer in the same run, and a verdict.
//!
//! `make bench` prints the result of [`run`]. Ours and the other side take turns; medians are compared. A figure without its other side is printed
//! without a verdict.

mod collectives;
mod dense;
mod ethernet;
mod loss;
mod memory;
mod messages;
mod mpi;
mod programs;
#[cfg(feature = "seal")]
mod sealing;
mod streams;
mod tuned;

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;
use tsumuji_link::dpdk;
use tsumuji_node::LinkSpec;
use tsumuji_testbed::{Rate, Testbed};

use crate::compare::{self, Cell, Comparison, Contender, Plan, Row};
use crate::contest::{self, Ours};
use crate::machine::{self, Machine};
use crate::stats::Rounds;
use crate::stop;
use crate::table::{aligned, headed, number};
use crate::versus::Standing;

/// Options of the figures.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The `tsumuji` program: solves systems, and is the other side of exchanges and streams.
    pub program: PathBuf,
    /// Rounds of each comparison.
    pub rounds: usize,
    /// Rows of the dense system.
    pub n: usize,
    /// Largest message of the burst sweep, in bytes.
    pub burst_bytes_max: usize,
    /// Round trips of a ping-pong.
    pub round_trips: u64,
    /// Which parts.
    pub parts: Vec<Part>,
}

impl Setting {
    /// Whether this run only checks the benchmark, and its figures are not to be quoted.
    fn is_tried(&self) -> bool {
        self.round_trips < 1000
    }

    /// The first where the benchmark is only tried, else the second.
    fn tried_or<T>(&self, tried: T, usual: T) -> T {
        if self.is_tried() { tried } else { usual }
    }

    /// Ours over the link of that name, in the hosts of a testbed.
    fn ours(&self, link: &str, testbed: &Testbed) -> Ours {
        let link = link.parse().unwrap_or(LinkSpec::Udp(None)); // names of our own
        Ours::between(link, self.program.clone(), testbed.hosts_file())
    }
}

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Half-round-trips over shm and udp.
    Pingpong,
    /// Throughput by message size.
    Burst,
    /// The dense system, ours and PETSc's.
    Dense,
    /// Raw Ethernet between hosts of a testbed.
    Ethernet,
    /// Ping-pong and burst compared with MPICH and Open MPI between hosts of a testbed.
    Mpi,
    /// Ping-pong and burst compared with MPICH and Open MPI by shared memory, between two processes of this host.
    Memory,
    /// Gather and broadcast over cables of 100 Mbit/s, broadcast over shared memory.
    Collectives,
    /// A transfer and small messages under loss, compared with TCP.
    Loss,
    /// Frames and half-round-trips with a cluster key.
    Sealing,
    /// Byte streams of unmodified programs, compared with TCP between hosts of a testbed and with a bare copy.
    Streams,
    /// Real programs under load, compared with TCP.
    Programs,
    /// Thresholds as `tsumuji tune` finds them, beside the defaults.
    Tuned,
}

/// Whether a figure reaches its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It reaches it.
    Reached,
    /// It does not.
    Missed,
    /// There is no target, or nothing to compare with.
    Open,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The measured quantity.
    pub name: String,
    /// Our median, with unit.
    pub ours: String,
    /// The limit or the peer.
    pub beside: String,
    /// Ours divided by that; absent if there is none.
    pub ratio: Option<f64>,
    /// The target of that ratio.
    pub wanted: String,
    /// Whether it was reached.
    pub verdict: Verdict,
}

/// All figures, and the machine.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// Versions of the peers that took part.
    pub peers: Vec<String>,
    /// The table.
    pub figures: Vec<Figure>,
    /// Throughput by size, for plots.
    pub sweeps: Vec<Sweep>,
}

/// Throughput of one link by message size.
#[derive(Debug, Clone, Serialize)]
pub struct Sweep {
    /// The link.
    pub link: String,
    /// Points, smallest message first.
    pub points: Vec<Point>,
}

/// Throughput at one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Bytes of a message.
    pub size: usize,
    /// Ours.
    pub bytes_per_second: f64,
    /// Throughput of the bare limit at the same size.
    pub limit_bytes_per_second: f64,
}

impl Report {
    /// Figures that were missed.
    pub fn missed(&self) -> usize {
        self.figures
            .iter()
            .filter(|figure| figure.verdict == Verdict::Missed)
            .count()
    }
}

/// Takes progress messages, line by line.
pub type Say<'a> = &'a mut dyn FnMut(&str);

/// Measures everything in `setting.parts` and prints each figure as soon as it is known.
pub fn run(setting: &Setting, say: Say<'_>) -> Report {
    let machine = machine::describe();
    say(&format!("machine: {machine}"));
    if let Some(warning) = machine.warning() {
        say(&warning);
    }
    let report = Report {
        machine,
        peers: Vec::new(),
        figures: Vec::new(),
        sweeps: Vec::new(),
    };
    let mut log = Log { report, say };
    for part in &setting.parts {
        if stop::is_wanted() {
            break;
        }
        match part {
            Part::Pingpong => messages::pingpong(setting, &mut log),
            Part::Burst => messages::burst(setting, &mut log),
            Part::Dense => dense::dense(setting, &mut log),
            Part::Ethernet => ethernet::ethernet(setting, &mut log),
            Part::Mpi => mpi::mpi(setting, &mut log),
            Part::Memory => memory::memory(setting, &mut log),
            Part::Collectives => collectives::collectives(setting, &mut log),
            Part::Loss => loss::loss(setting, &mut log),
            #[cfg(feature = "seal")]
            Part::Sealing => sealing::sealing(setting, &mut log),
            #[cfg(not(feature = "seal"))]
            Part::Sealing => log.say("this program was built without seals"),
            Part::Streams => streams::streams(setting, &mut log),
            Part::Programs => programs::programs(setting, &mut log),
            Part::Tuned => tuned::tuned(setting, &mut log),
        }
    }
    let Log { report, say } = log;
    say("");
    say(&table(&report.figures));
    let counted = format!(
        "{} figures, {} missed",
        report.figures.len(),
        report.missed()
    );
    say(&match report.peers.is_empty() {
        true => counted,
        false => format!("{counted}; peers: {}", report.peers.join(", ")),
    });
    report
}

/// The report so far, and who is told of each line of it.
struct Log<'a> {
    report: Report,
    say: Say<'a>,
}

impl Log<'_> {
    fn say(&mut self, text: &str) {
        (self.say)(text);
    }

    /// Adds a figure and prints it at once.
    fn add(
        &mut self,
        name: impl Into<String>,
        ours: String,
        beside: impl Into<String>,
        ratio: f64,
        wanted: Wanted,
    ) {
        let figure = Figure {
            name: name.into(),
            ours,
            beside: beside.into(),
            ratio: ratio.is_finite().then_some(ratio),
            wanted: wanted.to_string(),
            verdict: wanted.verdict(ratio),
        };
        self.say(&format!(
            "  {}: {} beside {} -> {}",
            figure.name,
            figure.ours,
            figure.beside,
            verdict_name(&figure)
        ));
        self.report.figures.push(figure);
    }

    /// Adds a figure of two contenders of a row.
    fn pair(
        &mut self,
        name: impl Into<String>,
        comparison: &Comparison,
        row: &Row,
        (own, other): (usize, usize),
        ratio: f64,
        wanted: Wanted,
    ) {
        let told = |index: usize| told(&row.contenders[index], comparison.unit);
        self.add(name, told(own), told(other), ratio, wanted);
    }

    /// A line in place of figures that could not be measured.
    fn unmeasured(&mut self, name: impl Into<String>, reason: &str, wanted: Wanted) {
        self.add(name, format!("- ({reason})"), "-", f64::NAN, wanted);
    }

    /// The same without a testbed.
    fn missing(&mut self, name: &str, reason: &str) {
        let reason = format!("no testbed: {reason}");
        self.unmeasured(name, &reason, Wanted::Nothing);
    }

    /// Notes a peer that took part.
    fn peer(&mut self, name: &str) {
        if !self.report.peers.iter().any(|known| known == name) {
            self.report.peers.push(name.to_owned());
        }
    }

    /// Notes those of a comparison's contenders that took part.
    fn peers(&mut self, comparison: &Comparison, among: Range<usize>) {
        let row = comparison.results.first();
        for cell in row.map_or(&[][..], |row| &row.contenders[among]) {
            if cell.numbers.is_some() {
                self.peer(&cell.name);
            }
        }
    }

    /// Whether DPDK works here; if not, says why.
    fn has_dpdk(&mut self) -> bool {
        let probe = dpdk::probe();
        if !probe.works {
            self.say(&format!("no DPDK here: {}", probe.notes.join("; ")));
        }
        probe.works
    }

    /// Runs a comparison on this machine.
    fn compare(&mut self, plan: &Plan, contenders: &mut [Contender<'_>]) -> Comparison {
        compare::run(plan, contenders, machine::describe(), &mut *self.say)
    }

    /// Measures between the hosts of a testbed made for it; without one, a line of that title stands for the figures.
    fn on_testbed(
        &mut self,
        title: &str,
        hosts: usize,
        bits_per_second: Option<u64>,
        mtu_bytes: u32,
        measure: impl FnOnce(&Testbed, &mut Self),
    ) {
        match testbed(hosts, bits_per_second, mtu_bytes) {
            Ok(testbed) => {
                measure(&testbed, self);
                self.down(testbed);
            }
            Err(reason) => self.missing(title, &reason),
        }
    }

    /// Removes a testbed; a failure is reported, and the figures stay valid.
    fn down(&mut self, testbed: Testbed) {
        if let Err(error) = testbed.down() {
            self.say(&format!("warning: the testbed was not removed: {error}"));
        }
    }
}

fn testbed(hosts: usize, bits_per_second: Option<u64>, mtu_bytes: u32) -> Result<Testbed, String> {
    let rate = bits_per_second.map(Rate::from_bits_per_second).transpose();
    let rate = rate.map_err(|error| error.to_string())?;
    contest::testbed(hosts, rate, mtu_bytes).map_err(|error| error.to_string())
}

/// A contender's number as figures show it, with its name.
fn stands(standing: &Standing, unit: &str) -> String {
    let result = standing.result.as_ref().map_err(String::as_str);
    shown(&standing.name, result, unit)
}

/// The result of one contender at one size, as figures show it.
fn told(cell: &Cell, unit: &str) -> String {
    let numbers = cell.numbers.as_ref().map(|numbers| &numbers.headline);
    let reason = cell.failure.as_deref().unwrap_or("not measured");
    shown(&cell.name, numbers.ok_or(reason), unit)
}

fn shown(name: &str, result: Result<&Rounds, &str>, unit: &str) -> String {
    match result {
        Ok(rounds) => {
            let spread = match rounds.rounds {
                0 | 1 => String::new(),
                _ => format!(", +-{} %", rounds.half_spread()),
            };
            format!("{:.3} {unit} ({name}{spread})", rounds.median)
        }
        Err(reason) => format!("- ({name}: {reason})"),
    }
}

/// The target of a ratio.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    /// Ours ÷ theirs is at most this.
    AtMost(f64),
    /// Ours ÷ theirs is at least this.
    AtLeast(f64),
    /// Printed for comparison only.
    Nothing,
}

impl Wanted {
    fn verdict(self, ratio: f64) -> Verdict {
        match self {
            _ if !ratio.is_finite() => Verdict::Open,
            Self::AtMost(bound) if ratio <= bound => Verdict::Reached,
            Self::AtLeast(bound) if ratio >= bound => Verdict::Reached,
            Self::AtMost(_) | Self::AtLeast(_) => Verdict::Missed,
            Self::Nothing => Verdict::Open,
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
            Self::Nothing => f.write_str("-"),
        }
    }
}

fn ratio_name(figure: &Figure) -> String {
    number(figure.ratio, 3, "")
}

fn verdict_name(figure: &Figure) -> String {
    let ratio = ratio_name(figure);
    match figure.verdict {
        Verdict::Reached => format!("{ratio} (wanted {}) reached", figure.wanted),
        Verdict::Missed => format!("{ratio} (wanted {}) MISSED", figure.wanted),
        Verdict::Open => ratio,
    }
}

/// The figures as an aligned table.
fn table(figures: &[Figure]) -> String {
    let mut rows = headed("figure | ours | beside | ratio | wanted | verdict");
    rows.extend(figures.iter().map(|figure| {
        let verdict = match figure.verdict {
            Verdict::Reached => "reached",
            Verdict::Missed => "MISSED",
            Verdict::Open => "-",
        };
        [
            figure.name.clone(),
            figure.ours.clone(),
            figure.beside.clone(),
            ratio_name(figure),
            figure.wanted.clone(),
            verdict.to_owned(),
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bound itself reaches the target, and without a number there is no verdict.
    #[test]
    fn verdicts() {
        assert_eq!(Wanted::AtMost(2.0).verdict(2.0), Verdict::Reached);
        assert_eq!(Wanted::AtMost(2.0).verdict(2.01), Verdict::Missed);
        assert_eq!(Wanted::AtLeast(0.85).verdict(0.84), Verdict::Missed);
        assert_eq!(Wanted::AtLeast(0.85).verdict(f64::NAN), Verdict::Open);
        assert_eq!(Wanted::Nothing.verdict(5.0), Verdict::Open);
    }
}
