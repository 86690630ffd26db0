//! The figures and tables of MECH: computed from the descriptions of its two machines, and measured on this one, beside its numbers and words.
//!
//! The paper's drawings have no numbers in the text; of them its statements are repeated. What the descriptions assume is printed with every figure.
//! RHiNET's have no counterpart here.

mod here;

use anyhow::{Context, ensure};
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::plot::{self, Line};
use tsumuji_bench::stats::size_name;
use tsumuji_bench::table;
use tsumuji_lab::description::By;
use tsumuji_lab::{Description, Outcome as Send, Setting, shipped};

use tsumuji_lab::measure::{BYTES_MAX, Measured};

use self::here::Here;
use super::figure::Figure;
use super::{Args, every_other};
use crate::Outcome;
use crate::lab::model;
use crate::output::Files;
use crate::talk::Talk;

/// Sizes of the drawings.
const SMALLEST_BYTES: u64 = 4;
const LARGEST_BYTES: u64 = 64 << 10;
/// Of the breakdowns, and of table 6's rows beyond the drawings.
const BROKEN_DOWN_BYTES: u64 = 4096;
const OF_TABLE_6: [u64; 6] = [4, 8, 16, 4096, 8192, 24576];
/// Size for which the paper states that copying is about a quarter as fast as fetching.
const LARGE_BYTES: u64 = 10_000;
/// Long enough that only rates count.
const ENDLESS_BYTES: u64 = 1 << 28;
const USERS: [&str; 3] = ["User", "User:ST", "User:ST,DT"];
const CALLS: [&str; 3] = ["Syscall", "Syscall:ST", "Syscall:ST,DT"];

/// A figure, computed.
#[derive(Default)]
struct Found {
    sends: Vec<Send>,
    /// Statement, the paper's words or number, the model's, and what is measured here for it.
    statements: Vec<([String; 3], Here)>,
    /// What of the sends is shown.
    text: String,
    lines: Vec<Line>,
    assumed: Vec<String>,
}

impl Found {
    /// Sends over sizes by these ways, and what is assumed of them.
    fn over_sizes(ways: Vec<(String, Vec<Send>)>, assumed: Vec<String>) -> Self {
        Self {
            text: over_sizes(&ways),
            lines: drawn(&ways),
            sends: ways.into_iter().flat_map(|(_, sends)| sends).collect(),
            statements: Vec::new(),
            assumed,
        }
    }

    fn state(&mut self, what: &str, paper: &str, model: &str, here: Here) {
        let statement = [what, paper, model].map(str::to_owned);
        self.statements.push((statement, here));
    }
}

/// The two machines.
struct Machines {
    myrinet: Description,
    rhinet: Description,
}

/// Runs the command.
pub(super) fn run(figure: Figure, args: &Args) -> Outcome {
    let sizes = sizes(figure, args)?;
    let files = Files::of(args.csv.as_ref(), args.plot.as_ref())?;
    let found = Machines::shipped()?.found(figure, &sizes);
    let mut talk = Talk::new(args.json);
    let machine = here::is_measured(figure).then(|| talk.machine());
    talk.say("the paper's: Pentium II 300 MHz, 440LX, Linux 2.0.31; Myrinet with LANai 4.1, and RHiNET-1/NI");
    talk.say(&format!(
        "{}; the model's are computed (tsumuji lab model)",
        figure.heading()
    ));
    for line in &found.assumed {
        talk.say(&format!("assumed: {line}"));
    }
    talk.say(&found.text);
    let wanted = found.statements.iter().map(|(_, here)| *here);
    let measured = here::measured(wanted, &sizes, args, &mut talk)?;
    let rows = with_here(&found.statements, measured.as_ref());
    let mut beside = vec![["", "paper", "model", "here"].map(str::to_owned)];
    beside.extend(rows.iter().cloned());
    talk.say(&table::aligned(&beside));
    let written = files.write(
        || comma_separated(&found.sends),
        || plot::svg(figure.heading(), "MB/s", &found.lines),
    );
    let statement = |[what, paper, model, here]: &[String; 4]| json!({ "what": what, "paper": paper, "model": model, "here": here });
    let beside: Vec<_> = rows.iter().map(statement).collect();
    talk.end_with_files(json!({
        "figure": figure.name(), "title": figure.title(), "assumed": found.assumed, "results": found.sends,
        "machine": machine, "measured": measured.map(|measured| measured.cells), "beside": beside,
    }), written)
}

fn is_drawn(figure: Figure) -> bool {
    matches!(figure.name(), "mech-fig1" | "mech-fig4" | "mech-table6")
}

fn sizes(figure: Figure, args: &Args) -> anyhow::Result<Vec<u64>> {
    let mut taken = vec!["--largest", "--csv", "--plot"];
    if here::is_measured(figure) {
        taken.push("--rounds");
    }
    args.check_taken(
        figure,
        &taken,
        "is computed, and takes --largest, --quick, --csv, --plot and --json (what is measured here, too, --rounds)",
    )?;
    ensure!(
        is_drawn(figure) || (args.plot.is_none() && args.largest.is_none()),
        "{} has one size only; mech-fig1, mech-fig4 and mech-table6 take --plot and --largest",
        figure.name()
    );
    let all = match figure.name() {
        "mech-table6" => OF_TABLE_6.to_vec(),
        "mech-fig1" | "mech-fig4" => {
            let doubled = std::iter::successors(Some(SMALLEST_BYTES), |bytes| Some(bytes * 2));
            doubled
                .take_while(|bytes| *bytes <= LARGEST_BYTES)
                .collect()
        }
        _ => vec![BROKEN_DOWN_BYTES],
    };
    let mut sizes = if args.quick { every_other(all) } else { all };
    if let Some(largest) = args.largest {
        sizes.retain(|bytes| *bytes <= largest as u64);
        ensure!(
            !sizes.is_empty(),
            "--largest {largest}: the smallest message has {SMALLEST_BYTES} bytes"
        );
    }
    Ok(sizes)
}

impl Machines {
    fn shipped() -> anyhow::Result<Self> {
        let of =
            |name: &str| shipped::named(name).with_context(|| format!("no description of {name}"));
        Ok(Self {
            myrinet: of("myrinet")?,
            rhinet: of("rhinet")?,
        })
    }

    fn found(&self, figure: Figure, sizes: &[u64]) -> Found {
        match figure.name() {
            "mech-fig1" => self.bandwidths(sizes),
            "mech-fig2" => self.kernel(),
            "mech-fig3" => self.interface(),
            "mech-fig4" => self.rhinet_bandwidths(sizes),
            "mech-table5" => self.table(&self.myrinet, "table 5", &USERS, sizes),
            "mech-table6" => {
                let mut found = self.table(
                    &self.myrinet,
                    "table 6",
                    &["Host", "User", "User:ST,DT"],
                    sizes,
                );
                self.compare(
                    &mut found,
                    "4 B: the processor alone",
                    "slightly faster",
                    ["User:ST,DT", "Host"],
                    4,
                );
                found
            }
            _ => {
                let mut found = self.table(&self.rhinet, "table 7", &["User"], sizes);
                self.foresee(&mut found);
                found
            }
        }
    }

    fn send(&self, name: &str, bytes: u64) -> Option<Send> {
        let variant = self.myrinet.variant(name)?;
        Some(self.myrinet.outcome(variant, bytes, &Setting::default()))
    }

    fn us(&self, name: &str, bytes: u64) -> f64 {
        self.send(name, bytes)
            .map_or(f64::NAN, |send| send.total_us)
    }

    /// States how many times as long the first of two ways takes as the second.
    fn compare(
        &self,
        found: &mut Found,
        what: &str,
        paper: &str,
        pair: [&'static str; 2],
        bytes: u64,
    ) {
        let [one, other] = pair.map(|name| self.us(name, bytes));
        found.state(what, paper, &times(one, other), Here::Times(pair, bytes));
    }

    /// Figure 1: bandwidth over size, all six ways.
    fn bandwidths(&self, sizes: &[u64]) -> Found {
        let names = || USERS.iter().chain(&CALLS);
        let sends = |name: &&str| {
            sizes
                .iter()
                .filter_map(|bytes| self.send(name, *bytes))
                .collect()
        };
        let ways: Vec<(String, Vec<Send>)> = names()
            .map(|name| ((*name).to_owned(), sends(name)))
            .collect();
        let mut found = Found::over_sizes(ways, self.myrinet.assumed.clone());
        for [copied, fetched] in model::PAIRS {
            for (size, bytes, paper) in [
                ("64 B", 64, "1x or slightly more"),
                ("10 KB", LARGE_BYTES, "about 0.25x"),
            ] {
                let what = format!("{size}: {copied} over {fetched}");
                self.compare(&mut found, &what, paper, [fetched, copied], bytes);
            }
        }
        for (user, call) in USERS.into_iter().zip(CALLS) {
            for bytes in [4, BROKEN_DOWN_BYTES] {
                let what = format!("{}: {user} over {call}", size_name(bytes as usize));
                let paper = "slightly more than 1x";
                self.compare(&mut found, &what, paper, [call, user], bytes);
            }
        }
        for (what, bytes) in model::crossovers(&self.myrinet, &Setting::default()) {
            // Measured is where copying begins to take longer, not 5 % longer.
            let pair = model::PAIRS
                .into_iter()
                .find(|[copied, fetched]| what == format!("{copied} slower than {fetched} from"));
            let here = pair.map_or(Here::Nothing, Here::Crossing);
            found.state(&what, "about 64 B", &format!("{bytes} B"), here);
        }
        found
    }

    /// Figure 2: what the kernel does, of 4096 bytes.
    fn kernel(&self) -> Found {
        let mut found = self.broken_down(&CALLS, By::Kernel);
        for (name, stage, paper) in [
            ("Syscall", "call", "most of the time (misc.)"),
            ("Syscall:ST", "call", "most of the time (misc.)"),
            ("Syscall:ST,DT", "copy data", "most of the time"),
        ] {
            let send = found.sends.iter().find(|send| send.variant == name);
            let ours = send.map_or_else(String::new, |send| share(send, stage, By::Kernel));
            let here = Here::Kernel(name, BROKEN_DOWN_BYTES);
            found.state(&format!("{name}: {stage}"), paper, &ours, here);
        }
        found
    }

    /// Figure 3: what the interface does, of 4096 bytes.
    fn interface(&self) -> Found {
        let all = [&USERS[..], &CALLS].concat();
        let mut found = self.broken_down(&all, By::Interface);
        for name in &all {
            let send = found.sends.iter().find(|send| send.variant == *name);
            let ours =
                send.map_or_else(String::new, |send| share(send, "send data", By::Interface));
            let here = Here::Fetching(name, BROKEN_DOWN_BYTES);
            found.state(&format!("{name}: send data"), "longest", &ours, here);
        }
        for name in &all {
            let endless = self.send(name, ENDLESS_BYTES);
            let stage = endless.as_ref().and_then(|send| send.stage("send data"));
            let rate = stage.map_or(f64::NAN, |step| ENDLESS_BYTES as f64 / step.us);
            found.state(
                &format!("{name}: into the network"),
                "at most 130 to 133 MB/s",
                &format!("{rate:.1} MB/s"),
                Here::Bandwidth(name, BYTES_MAX as u64),
            );
        }
        found
    }

    fn broken_down(&self, names: &[&str], by: By) -> Found {
        let sends: Vec<Send> = names
            .iter()
            .filter_map(|name| self.send(name, BROKEN_DOWN_BYTES))
            .collect();
        let mut rows = vec![["", by.name(), "us", ""].map(str::to_owned)];
        for send in &sends {
            for (place, step) in send.stages.iter().filter(|step| step.by == by).enumerate() {
                let head = if place == 0 {
                    send.variant.as_str()
                } else {
                    ""
                };
                let note = if step.is_assumed { "assumed" } else { "" };
                rows.push([
                    format!("  {head}"),
                    step.name.clone(),
                    format!("{:8.3}", step.us),
                    note.to_owned(),
                ]);
            }
        }
        Found {
            sends,
            text: format!("\n{}", table::aligned(&rows)),
            assumed: self.myrinet.assumed.clone(),
            ..Found::default()
        }
    }

    /// Figure 4: RHiNET-1/NI now and as foreseen, and Myrinet.
    fn rhinet_bandwidths(&self, sizes: &[u64]) -> Found {
        let (now, then) = (Setting::default(), self.rhinet.improved.unwrap_or_default());
        let of = |setting: &Setting, bytes: u64| {
            let variant = &self.rhinet.variants[0];
            self.rhinet.outcome(variant, bytes, setting)
        };
        let over = |name: &str, of: &dyn Fn(u64) -> Option<Send>| {
            let sends = sizes.iter().filter_map(|bytes| of(*bytes));
            let named = sends.map(|send| Send {
                variant: name.to_owned(),
                ..send
            });
            (name.to_owned(), named.collect())
        };
        let ways = vec![
            over("RHiNET-1", &|bytes| Some(of(&now, bytes))),
            over("RHiNET-1 improved", &|bytes| Some(of(&then, bytes))),
            over("Myrinet User", &|bytes| self.send("User", bytes)),
        ];
        let assumed = [self.rhinet.assumed.clone(), self.myrinet.assumed.clone()].concat();
        let mut found = Found::over_sizes(ways, assumed);
        let at_4096 = of(&now, BROKEN_DOWN_BYTES).total_us;
        let user = self.us("User", BROKEN_DOWN_BYTES);
        let most = of(&now, ENDLESS_BYTES).bandwidth;
        let at_4096_us = format!("{at_4096:.3} us");
        found.state("4 KiB", "102.056 us", &at_4096_us, Here::Nothing);
        self.foresee(&mut found);
        let over_myrinet = times(at_4096, user);
        let what = "4 KiB: time over Myrinet's";
        found.state(what, "a little over 2x", &over_myrinet, Here::Nothing);
        let most = format!("{most:.1} MB/s");
        found.state("at most", "44 MB/s", &most, Here::Nothing);
        found
    }

    fn foresee(&self, found: &mut Found) {
        let then = self.rhinet.improved.unwrap_or_default();
        let variant = &self.rhinet.variants[0];
        let send = self.rhinet.outcome(variant, BROKEN_DOWN_BYTES, &then);
        let us = format!("{:.2} us", send.total_us);
        let what = "4 KiB at 33 MHz, long bursts";
        found.state(what, "about 36.06 us", &us, Here::Nothing);
    }

    /// A table of numbers: each beside the model's, with its deviation.
    fn table(&self, of: &Description, source: &str, names: &[&str], sizes: &[u64]) -> Found {
        let sends = names.iter().filter_map(|name| of.variant(name));
        let sends: Vec<(String, Vec<Send>)> = sends
            .map(|variant| {
                let of_size = |bytes: &u64| of.outcome(variant, *bytes, &Setting::default());
                (variant.name.clone(), sizes.iter().map(of_size).collect())
            })
            .collect();
        let mut found = Found::over_sizes(sends, of.assumed.clone());
        if let [_] = sizes {
            found.text = found.sends.iter().map(model::stages).collect();
        }
        let beside = of.beside().into_iter();
        for one in beside.filter(|one| one.what.starts_with(source)) {
            let head = one.what.trim_start_matches(source).trim_start_matches(", ");
            let (unit, percent) = (&one.unit, one.deviation_percent);
            let paper = format!("{:.3} {unit}", one.measured);
            let model = format!("{:.3} {unit} ({percent:+.1} %)", one.model);
            found.state(head, &paper, &model, Here::of(&one));
        }
        found
    }
}

/// The statements with what was measured for them.
fn with_here(statements: &[([String; 3], Here)], measured: Option<&Measured>) -> Vec<[String; 4]> {
    let rows = statements.iter().map(|([what, paper, model], here)| {
        let here = table::cell(measured, |measured| here.told(measured));
        [what.clone(), paper.clone(), model.clone(), here]
    });
    rows.collect()
}

fn times(more: f64, less: f64) -> String {
    format!("{:.2}x", more / less)
}

/// The part that a stage has of what one of the three does.
fn share(send: &Send, stage: &str, by: By) -> String {
    let part = send.stage(stage).map_or(0.0, |step| step.us);
    let largest = send
        .stages
        .iter()
        .filter(|step| step.by == by)
        .map(|step| step.us)
        .fold(0.0, f64::max);
    let words = if part > largest * 0.999 {
        "the longest, "
    } else {
        ""
    };
    format!("{words}{:.0} %", part / send.sum_us(by) * 100.0)
}

/// Bandwidth of each way, a line for each size.
fn over_sizes(ways: &[(String, Vec<Send>)]) -> String {
    let mut text = format!("\nMB/s\n  {:<8}", "");
    ways.iter()
        .for_each(|(name, _)| text.push_str(&format!(" {name:>10}")));
    let sends = ways.first().map_or(&[][..], |(_, sends)| sends);
    for (row, send) in sends.iter().enumerate() {
        text.push_str(&format!("\n  {:<8}", size_name(send.bytes as usize)));
        for (name, sends) in ways {
            let width = name.len().max(10);
            text.push_str(&format!(" {:>width$.3}", sends[row].bandwidth));
        }
    }
    text.push('\n');
    text
}

fn drawn(ways: &[(String, Vec<Send>)]) -> Vec<Line> {
    let point = |send: &Send| (send.bytes as f64, send.bandwidth);
    ways.iter()
        .map(|(name, sends)| Line::new(name, sends.iter().map(point)))
        .collect()
}

/// Every stage, one a line.
fn comma_separated(sends: &[Send]) -> String {
    let mut text =
        "variant,bytes,total_us,bandwidth,stage,by,start_us,us,critical,assumed\n".to_owned();
    for send in sends {
        for step in &send.stages {
            text.push_str(&format!(
                "{},{},{},{},{},{},{},{},{},{}\n",
                table::quoted(&send.variant),
                send.bytes,
                send.total_us,
                send.bandwidth,
                table::quoted(&step.name),
                step.by.name(),
                step.start_us,
                step.us,
                step.is_critical,
                step.is_assumed
            ));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: Args,
    }

    fn of_mech() -> impl Iterator<Item = Figure> {
        let all = Figure::all().into_iter();
        all.filter(|figure| figure.paper() == "mech")
    }

    fn asked(words: &[&str]) -> anyhow::Result<Vec<u64>> {
        let args = Words::try_parse_from([&["paper"], words].concat())?.args;
        sizes(args.figure.expect("a figure is among the words"), &args)
    }

    /// Every figure and table of the paper with results is there, and each of its statements has words of the paper and a number of ours, within a terminal.
    #[test]
    fn statements_have_both_sides() {
        let names: Vec<&str> = of_mech().map(Figure::name).collect();
        assert_eq!(
            names,
            [
                "mech-fig1",
                "mech-fig2",
                "mech-fig3",
                "mech-fig4",
                "mech-table5",
                "mech-table6",
                "mech-table7"
            ]
        );
        let machines = Machines::shipped().unwrap();
        for figure in of_mech() {
            let found = machines.found(figure, &asked(&[figure.name()]).unwrap());
            assert!(
                !found.statements.is_empty() && !found.sends.is_empty(),
                "{}",
                figure.name()
            );
            for ([what, paper, ours], _) in &found.statements {
                assert!(!what.is_empty() && !paper.is_empty(), "{what} {paper}");
                assert!(
                    ours.contains(|letter: char| letter.is_ascii_digit()),
                    "{what}: {ours}"
                );
                assert!(
                    !ours.contains("NaN") && !ours.contains("inf"),
                    "{what}: {ours}"
                );
            }
            let text = table::aligned(&with_here(&found.statements, None)) + &found.text;
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", figure.name());
            }
            assert_eq!(
                is_drawn(figure),
                found.lines.iter().any(|line| line.points.len() > 1)
            );
            let columns = comma_separated(&found.sends);
            assert!(columns.lines().count() > found.sends.len());
        }
    }

    /// Tables have all of the paper's numbers.
    #[test]
    fn tables_are_whole() {
        let machines = Machines::shipped().unwrap();
        for (figure, count) in [
            ("mech-table5", 9),
            ("mech-table6", 18 + 1),
            ("mech-table7", 14 + 1),
        ] {
            let found = machines.found(Figure::of(figure), &[BROKEN_DOWN_BYTES]);
            assert_eq!(found.statements.len(), count, "{figure}");
        }
    }

    /// What a computed figure cannot take is refused in one line.
    #[test]
    fn other_options_are_refused() {
        for (words, wanted) in [
            (&["mech-fig1", "--nodes", "2"][..], "is computed"),
            (&["mech-table5", "--plot", "a.svg"], "one size only"),
            (&["mech-fig1", "--largest", "2"], "has 4 bytes"),
        ] {
            let said = asked(words).unwrap_err().to_string();
            assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
        }
        assert_eq!(
            asked(&["mech-fig1", "--largest", "1K"]).unwrap().last(),
            Some(&1024)
        );
        assert_eq!(
            asked(&["mech-table6", "--quick"]).unwrap(),
            [4, 16, 8192, 24576]
        );
    }
}
