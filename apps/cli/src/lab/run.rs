//! `tsumuji lab run`: the paper's ways to send, measured on this machine.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::plot::{self, Line};
use tsumuji_bench::stats::{Rounds, size_name};
use tsumuji_bench::{stop, table};
use tsumuji_lab::measure::{
    self, BYTES_MAX, Cell, Crossover, IsAlive, MeasureError, Measured, Plan, SplitUs, Way,
};

use crate::bench::seconds;
use crate::bench::sizes::Sizes;
use crate::interrupt::Interrupted;
use crate::output::Files;
use crate::talk::Talk;
use crate::{DONE, Outcome};

/// Sizes whose split is shown.
const SPLIT_BYTES: [usize; 3] = [64, 4096, 1 << 20];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Bytes of data; several by commas and ranges
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        default_value = "4..1M"
    )]
    sizes: Vec<Sizes>,
    /// Rounds in which all ways are measured in turn
    #[arg(long, value_name = "R", default_value = "5", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Time of one measurement
    #[arg(long, value_name = "S", default_value = "0.02", value_parser = seconds)]
    seconds: Duration,
    /// Write every number as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw bandwidth over size, both logarithmic
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The process of the interface; ended when it is dropped.
struct Interface(Child);

impl Drop for Interface {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it ends by itself, too
        let _ = self.0.wait();
    }
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let sizes = Sizes::of_all(&args.sizes);
    ensure!(
        sizes.iter().all(|bytes| (1..=BYTES_MAX).contains(bytes)),
        "--sizes: accepted are 1 byte to {}",
        size_name(BYTES_MAX)
    );
    ensure!(
        sizes.windows(2).all(|two| two[0] < two[1]),
        "--sizes: each is larger than the one before, so that crossovers can be told"
    );
    let files = Files::of(args.csv.as_ref(), args.plot.as_ref())?;
    let (mut talk, machine) = Talk::begin(args.json);
    for way in Way::all() {
        talk.say(&format!("{}: {}", way.name(), way.by()));
    }
    if machine.cores < 2 {
        talk.say(
            "warning: program and interface share one core; what follows is mostly the scheduler",
        );
    }
    talk.say("\nMB/s until the sender knows that the message has left; every message is verified");
    talk.say(&heads(&Way::PAPER));
    let plan = Plan {
        ways: Way::all().collect(),
        sizes,
        rounds: usize::from(args.rounds),
        each: args.seconds,
    };
    let measured = measured(&plan, &mut talk)?;
    talk.say(&shown(&measured));
    let title = "who copies, who starts: bandwidth until the sender's completion";
    let written = files.write(
        || comma_separated(&measured.cells),
        || plot::svg(title, "MB/s", &lines(&measured.cells)),
    );
    let ways: Vec<_> = Way::all()
        .map(|way| json!({ "way": way.name(), "by": way.by() }))
        .collect();
    let report = json!({
        "machine": machine, "ways": ways, "rounds": args.rounds, "seconds": args.seconds.as_secs_f64(),
        "results": measured.cells, "registration": measured.registration, "crossovers": measured.crossovers, "refused": measured.refused,
        "zero_copies": measured.zero_copies,
    });
    talk.end_with_files(report, written)
}

/// Measures, and says the table of bandwidth of the paper's ways as it comes.
pub(crate) fn measured(plan: &Plan, talk: &mut Talk) -> anyhow::Result<Measured> {
    let program = std::env::current_exe().context("this program's own file")?;
    let start = |memory, pipe| start(program.into(), memory, pipe);
    let mut told = |cells: &[Cell]| talk.say(&line(cells, &Way::PAPER, |cell| cell.bandwidth));
    match measure::run(plan, start, &stop::is_wanted, &mut told) {
        Err(MeasureError::Stopped) if stop::is_wanted() => Err(Interrupted.into()),
        other => Ok(other?),
    }
}

/// Starts the interface: shared memory is its standard input, the pipe its standard output.
fn start(program: OsString, memory: OwnedFd, pipe: OwnedFd) -> io::Result<IsAlive> {
    let mut command = Command::new(program);
    command
        .arg("lab-serve")
        .stdin(Stdio::from(memory))
        .stdout(Stdio::from(pipe));
    let mut interface = Interface(command.spawn()?);
    Ok(Box::new(move || matches!(interface.0.try_wait(), Ok(None))))
}

/// Runs the interface, in a process of its own.
pub(crate) fn serve() -> Outcome {
    let memory = io::stdin().as_fd().try_clone_to_owned()?;
    let pipe = io::stdout().as_fd().try_clone_to_owned()?;
    measure::bind_interface();
    measure::serve(memory, pipe).context("the interface")?;
    Ok(DONE)
}

pub(crate) fn heads(ways: &[Way]) -> String {
    let mut text = format!("  {:<8}", "");
    for way in ways {
        text.push_str(&format!("{:>10}", short(way.name())));
    }
    text
}

/// Names that fit a column.
fn short(name: &str) -> String {
    name.replace("Syscall", "Call")
        .replace("ST,DT", "DT")
        .replace("TCP zero-copy", "zero-copy")
}

/// A line for one size: those ways of it.
fn line(cells: &[Cell], ways: &[Way], of: fn(&Cell) -> f64) -> String {
    let bytes = cells.first().map_or(0, |cell| cell.bytes);
    let mut text = format!("  {:<8}", size_name(bytes));
    for way in ways {
        let cell = cells.iter().find(|cell| cell.way == way.name());
        text.push_str(&match cell.map_or(f64::NAN, of) {
            rate if rate.is_nan() => format!("{:>10}", "-"),
            rate => format!("{rate:>10.1}"),
        });
    }
    text
}

/// Everything but the table of bandwidth of the paper's ways.
fn shown(found: &Measured) -> String {
    let sizes = found.cells.chunk_by(|one, next| one.bytes == next.bytes);
    let sizes: Vec<&[Cell]> = sizes.collect();
    let table = |title: &str, ways: &[Way], of: fn(&Cell) -> f64| {
        let lines = sizes.iter().map(|cells| line(cells, ways, of) + "\n");
        format!("\n{title}\n{}\n{}", heads(ways), lines.collect::<String>())
    };
    let mut text = table(
        "MB/s until it knows that the message was received",
        &Way::PAPER,
        |cell| cell.received_bandwidth,
    );
    let others = found
        .cells
        .iter()
        .any(|cell| Way::OTHER_CALLS.iter().any(|way| cell.way == way.name()));
    if others {
        text.push_str(&table(
            "other calls, MB/s until the sender knows that the message has left",
            &Way::OTHER_CALLS,
            |cell| cell.bandwidth,
        ));
        let zero_copies = found.zero_copies;
        if zero_copies.calls > 0 {
            text.push_str(&format!(
                "  MSG_ZEROCOPY: {} of {} calls were copied by the kernel after all\n",
                zero_copies.copied, zero_copies.calls
            ));
        }
    }
    for cells in sizes
        .iter()
        .filter(|cells| SPLIT_BYTES.contains(&cells[0].bytes))
    {
        text.push_str(&split(cells));
    }
    text.push_str("\npinning, us, once for the memory of ways without calls\n");
    for one in &found.registration {
        let us = one
            .us
            .map_or_else(|| "refused".to_owned(), |us| format!("{us:.2}"));
        text.push_str(&format!("  {:<8}{us:>10}\n", size_name(one.bytes)));
    }
    for (way, why) in &found.refused {
        text.push_str(&format!("\n{way} was refused: {why}\n"));
    }
    let is_other = |one: &&Crossover| {
        let others = Way::OTHER_CALLS.map(Way::name);
        others.contains(&one.copied) || others.contains(&one.fetched)
    };
    text.push_str("\ncopying takes longer from this size on (the paper: about 64 B)\n");
    let (others, paper): (Vec<_>, Vec<_>) = found.crossovers.iter().partition(is_other);
    paper.iter().for_each(|one| text.push_str(&crossover(one)));
    if !others.is_empty() {
        text.push_str("the call by address is faster from this size on\n");
        others.iter().for_each(|one| text.push_str(&crossover(one)));
    }
    text
}

/// A part of the split: its name in tables, and in files.
type Part = (&'static str, &'static str, fn(&SplitUs) -> f64);

/// All of them.
const PARTS: [Part; 9] = [
    ("descr.", "descriptor_us", |one| one.descriptor),
    ("copy", "copy_us", |one| one.copy),
    ("start", "start_us", |one| one.start),
    ("wait", "wait_us", |one| one.wait),
    ("kernel", "kernel_us", |one| one.kernel),
    ("NI", "interface_us", |one| one.interface),
    ("descr.", "fetch_descriptor_us", |one| one.fetch_descriptor),
    ("transl.", "translation_us", |one| one.translation),
    ("data", "fetch_data_us", |one| one.fetch_data),
];

/// Where the time goes: the sender's four, then what of it is the kernel's and the interface's.
fn split(cells: &[Cell]) -> String {
    let mut text = format!(
        "\n{}, us: the sender's; of it the kernel's; the interface's (NI), and of that\n  {:<14}",
        size_name(cells[0].bytes),
        ""
    );
    for (name, ..) in PARTS {
        text.push_str(&format!("{name:>7}"));
    }
    for cell in cells.iter().filter(|cell| cell.is_measured()) {
        text.push_str(&format!("\n  {:<14}", cell.way));
        for (.., of) in PARTS {
            let us = of(&cell.split);
            let digits = if us < 1000.0 { 2 } else { 0 };
            text.push_str(&format!("{us:>7.digits$}"));
        }
    }
    text.push('\n');
    text
}

fn crossover(one: &Crossover) -> String {
    let reached: Vec<f64> = one.bytes.iter().copied().flatten().collect();
    let rounds = one.bytes.len();
    let found = if reached.is_empty() {
        "never, up to the largest size".to_owned()
    } else {
        let spread = Rounds::of(&reached);
        format!(
            "{:.0} B ({:.0} to {:.0}, {} of {rounds} rounds)",
            spread.median,
            spread.min,
            spread.max,
            reached.len()
        )
    };
    format!("  {:<14} over {:<14} {found}\n", one.copied, one.fetched)
}

fn lines(cells: &[Cell]) -> Vec<Line> {
    let line = |way: Way| {
        let own = (cells.iter()).filter(|cell| cell.way == way.name() && cell.is_measured());
        Line::new(
            way.name(),
            own.map(|cell| (cell.bytes as f64, cell.bandwidth)),
        )
    };
    Way::all().map(line).collect()
}

/// One way and size a line.
fn comma_separated(cells: &[Cell]) -> String {
    let names = PARTS.map(|(_, name, _)| name);
    let mut text = format!(
        "way,bytes,messages,sent_us,sent_us_min,sent_us_max,received_us,{}\n",
        names.join(",")
    );
    for cell in cells.iter().filter(|cell| cell.is_measured()) {
        let (sent, received) = (Rounds::of(&cell.sent_us), Rounds::of(&cell.received_us));
        let way = table::quoted(cell.way);
        text.push_str(&format!("{way},{},{}", cell.bytes, cell.messages));
        let times = [sent.median, sent.min, sent.max, received.median];
        let split = PARTS.map(|(.., of)| of(&cell.split));
        for number in times.iter().chain(&split) {
            text.push_str(&format!(",{number}"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_lab::measure::{Registration, ZeroCopies};

    fn found() -> Measured {
        let cell = |way: Way, bytes: usize| Cell {
            way: way.name(),
            bytes,
            sent_us: vec![1.0, 2.0, 3.0],
            received_us: vec![2.0, 3.0, 4.0],
            bandwidth: bytes as f64 / 2.0,
            received_bandwidth: bytes as f64 / 3.0,
            messages: 100,
            split: SplitUs {
                copy: 12345.678,
                wait: 123.456,
                ..SplitUs::default()
            },
        };
        let sizes = SPLIT_BYTES.iter();
        Measured {
            cells: sizes
                .flat_map(|bytes| Way::all().map(|way| cell(way, *bytes)))
                .collect(),
            registration: vec![
                Registration {
                    bytes: 64,
                    us: Some(1.5),
                },
                Registration {
                    bytes: 4096,
                    us: None,
                },
            ],
            crossovers: vec![
                Crossover {
                    copied: "User:ST,DT",
                    fetched: "User",
                    bytes: vec![Some(10.0), None, Some(30.0)],
                },
                Crossover {
                    copied: "Syscall:ST,DT",
                    fetched: "Syscall:ST",
                    bytes: vec![None; 3],
                },
            ],
            refused: vec![("Syscall", "not permitted".to_owned())],
            zero_copies: ZeroCopies {
                calls: 5,
                copied: 3,
            },
        }
    }

    /// Tables fit a terminal and have every way at every size; crossovers tell their spread.
    #[test]
    fn results_are_shown() {
        let found = found();
        let text = heads(&Way::PAPER) + &shown(&found);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(text.matches("Syscall:ST,DT ").count(), 3 + 1, "{text}");
        assert!(
            text.contains("20 B (10 to 30, 2 of 3 rounds)") && text.contains("never"),
            "{text}"
        );
        assert!(
            text.contains("refused") && text.contains("3 of 5 calls were copied"),
            "{text}"
        );
        let csv = comma_separated(&found.cells);
        assert_eq!(csv.lines().count(), 1 + 3 * Way::all().count());
        assert_eq!(lines(&found.cells).len(), Way::all().count());
    }
}
