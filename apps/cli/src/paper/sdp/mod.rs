//! The figures of SDP: streams of an unmodified program over message size and over clients.
//!
//! The paper has SDP over InfiniBand, IP over InfiniBand (IPoIB), and TCP over gigabit Ethernet. Here stand beside them: `shm`, the program through
//! `tsumuji run`; `tcp`, the kernel's TCP where only memory is between (loopback); `tcp-ns`, the kernel's TCP between two hosts of a testbed. Clients
//! and server share one machine, whose processor time is of all CPUs, as the paper's is.

mod facts;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::plot::Line;
use tsumuji_bench::stats::{counted, size_name};
use tsumuji_bench::streams::{
    self, BYTES_MAX, CLIENTS_MAX, Measured, Part, Path, Row, Series, Shape,
};

use super::figure::Figure;
use super::{Args, cables, every_other, expected, statements_as_json, statements_as_table};
use crate::Outcome;
use crate::bench::short;
use crate::bench::streams::{Ground, cost, draw, lines, shape_name};
use crate::output::Files;
use crate::talk::Talk;

/// Sizes between two nodes: from 1 byte up to here, by powers of two.
const LARGEST_REQUEST: usize = 16 << 10;
const LARGEST: usize = 64 << 10;
/// Sizes of many clients: 32 bytes to 64 KiB. The paper names 32 B, 1 KB, 8 KB and 64 KB of them.
const SIZES_OF_MANY: [usize; 6] = [32, 256, 1 << 10, 4 << 10, 8 << 10, 64 << 10];
const SMALL: usize = 32;
const MEDIUM: usize = 8 << 10;
const CLIENTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Rounds and seconds of a measurement; and for a first look.
const ROUNDS: u64 = 3;
const SECONDS: f64 = 0.5;
const QUICK_SECONDS: f64 = 0.1;
/// To start a process and to connect it.
const SECONDS_A_PROCESS: f64 = 0.01;

/// A number of a measurement that a figure shows.
#[derive(Debug, Clone, Copy)]
struct Quantity {
    /// Of the axis of a plot.
    unit: &'static str,
    /// Of the table, with what stands behind the slash.
    head: &'static str,
    part: Part,
    beside: Option<Part>,
    shown: fn(f64) -> String,
}

fn percent(value: f64) -> String {
    format!("{value:.1}")
}

fn microseconds(value: f64) -> String {
    if value < 1000.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

const RATE: Quantity = Quantity {
    unit: "requests/s",
    head: "requests/s",
    part: |one| one.per_second,
    beside: None,
    shown: short,
};
const LATENCY: Quantity = Quantity {
    unit: "us",
    head: "us, p50/p99",
    part: |one| one.p50,
    beside: Some(|one| one.p99),
    shown: microseconds,
};
const CLIENT_CPU: Quantity = Quantity {
    unit: "% of all CPUs",
    head: "%, client's processes/whole machine",
    part: |one| one.client_cpu,
    beside: Some(|one| one.machine_cpu),
    shown: percent,
};
const SERVER_CPU: Quantity = Quantity {
    unit: "% of all CPUs",
    head: "%, server's process/whole machine",
    part: |one| one.server_cpu,
    beside: Some(|one| one.machine_cpu),
    shown: percent,
};
const THROUGHPUT: Quantity = Quantity {
    unit: "Mbit/s",
    head: "Mbit/s",
    part: |one| one.mbits,
    beside: None,
    shown: |rate| format!("{rate:.0}"),
};
const THROUGHPUT_AND_CPU: Quantity = Quantity {
    unit: "Mbit/s",
    head: "Mbit/s, server's process in % of all CPUs",
    part: |one| one.mbits,
    beside: Some(|one| one.server_cpu),
    shown: |value| format!("{value:.0}"),
};
const DEMAND: Quantity = Quantity {
    unit: "us/KB",
    head: "us/KB, client's processes/whole machine",
    part: |one| one.client_us_per_kb,
    beside: Some(|one| one.machine_us_per_kb),
    shown: cost,
};

/// An experiment.
struct Plan {
    quantity: Quantity,
    series: Series,
}

impl Plan {
    fn is_over_clients(&self) -> bool {
        self.series.clients.len() > 1
    }

    /// The expected duration.
    fn expected(&self) -> String {
        let series = &self.series;
        let processes = series.clients.iter().sum::<usize>() as f64 / series.clients.len() as f64;
        let each = series.each.seconds + SECONDS_A_PROCESS * (2.0 + processes);
        expected(series.count(), each)
    }
}

/// Runs the command.
pub(super) fn run(figure: Figure, args: &Args) -> Outcome {
    let mut plan = plan(figure, args)?;
    let files = Files::of(args.csv.as_ref(), args.plot.as_ref())?;
    let program = std::env::current_exe().context("this program's own file")?;
    let congestion = streams::congestion(None)?;
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("the paper's: 65 of 128 nodes, 2 Xeon 3.06 GHz each, InfiniBand 4x (8 Gbit/s of data) and gigabit Ethernet, Linux 2.4.21, netperf 2.3");
    talk.say("beside SDP: shm (an unmodified program through `tsumuji run`); beside IPoIB: tcp (kernel TCP, loopback); beside Ethernet: tcp-ns (kernel TCP between two hosts of a testbed). Clients and server share this machine");
    let rate = args.rate.and_then(|limit| limit.0);
    // A figure of one path has nothing without it.
    let are_needed = plan.series.paths.len() == 1 || args.rate.is_some();
    let ground = Ground::of(plan.series.paths.clone(), are_needed, rate, &mut talk)?;
    talk.say(&format!(
        "{}; {}; TCP: {congestion}, no delay; {} in turn",
        figure.heading(),
        cables(rate),
        counted(plan.series.rounds, "round", "s")
    ));
    plan.series.paths = ground.paths.clone();
    plan.series.each.congestion = Some(congestion);
    let series = &plan.series;
    talk.say(&plan.expected());
    let told = |row: &Row| told(row, plan.quantity);
    talk.say(&format!("\n{}", plan.quantity.head));
    talk.say(&heads(&series.paths));
    let rows = series.run(program.as_os_str(), ground.testbed(), &told, &mut talk)?;
    let missing = ground.missing();
    ground.down()?;
    let statements = facts::statements(figure, &rows);
    talk.say(&format!("\n{}", statements_as_table(&statements, "here")));
    let draw = || {
        let paths = drawn_paths(figure, &series.paths);
        let is_over_clients = plan.is_over_clients();
        let mut all = lines(&rows, &paths, is_over_clients, plan.quantity.part);
        all.extend::<Vec<Line>>(facts::lines(figure));
        draw(figure.heading(), plan.quantity.unit, is_over_clients, &all)
    };
    let written = files.write(|| comma_separated(&rows), draw);
    let results: Vec<Value> = rows.iter().map(Row::report).collect();
    let beside = statements_as_json(&statements);
    talk.end_with_files(json!({
        "figure": figure.name(), "title": figure.title(), "machine": machine, "shape": shape_name(series.each.shape),
        "seconds": series.each.seconds, "congestion": series.each.congestion, "bits_per_second": rate.map(|rate| rate.bits_per_second()),
        "missing": missing, "results": results, "beside": beside,
    }), written)
}

fn plan(figure: Figure, args: &Args) -> anyhow::Result<Plan> {
    args.check_taken(
        figure,
        &[
            "--nodes",
            "--largest",
            "--rate",
            "--rounds",
            "--csv",
            "--plot",
        ],
        "takes --nodes (clients), --largest, --rate, --rounds, --quick, --csv, --plot and --json",
    )?;
    let doubled = |largest: usize| -> Vec<usize> {
        std::iter::successors(Some(1), |size| Some(size * 2))
            .take_while(|size| *size <= largest)
            .collect()
    };
    let (shape, quantity) = match figure.name() {
        "sdp-fig2" => (Shape::Requests, RATE),
        "sdp-fig4" => (Shape::Requests, CLIENT_CPU),
        "sdp-fig5" => (Shape::OneWay, THROUGHPUT),
        "sdp-fig6" => (Shape::OneWay, CLIENT_CPU),
        "sdp-fig7" => (Shape::OneWay, SERVER_CPU),
        "sdp-fig8" => (Shape::OneWay, DEMAND),
        "sdp-fig12" | "sdp-fig13" | "sdp-fig14" => (Shape::OneWay, THROUGHPUT_AND_CPU),
        _ => (Shape::Requests, LATENCY),
    };
    let (sizes, clients) = match figure.name() {
        "sdp-fig2" | "sdp-fig3" | "sdp-fig4" => (doubled(LARGEST_REQUEST), vec![1]),
        "sdp-fig5" | "sdp-fig6" | "sdp-fig7" | "sdp-fig8" => (doubled(LARGEST), vec![1]),
        "sdp-fig10" => (vec![SMALL], CLIENTS.to_vec()),
        "sdp-fig11" => (vec![MEDIUM], CLIENTS.to_vec()),
        _ => (SIZES_OF_MANY.to_vec(), CLIENTS.to_vec()),
    };
    let paths = match figure.name() {
        "sdp-fig12" => vec![Path::Carried, Path::Tcp, Path::TcpNs],
        "sdp-fig13" => vec![Path::Tcp],
        "sdp-fig14" => vec![Path::TcpNs],
        _ => vec![Path::Carried, Path::Udp, Path::Tcp, Path::TcpNs],
    };
    let (mut sizes, mut clients) = if args.quick {
        (every_other(sizes), every_other(clients))
    } else {
        (sizes, clients)
    };
    if let Some(largest) = args.largest {
        ensure!(
            largest <= BYTES_MAX,
            "--largest: streams carry messages of at most 1 MiB"
        );
        let first = sizes[0];
        ensure!(
            largest >= first,
            "--largest {largest}: the smallest message of {} has {}",
            figure.name(),
            size_name(first)
        );
        sizes.retain(|size| *size <= largest);
    }
    if !args.nodes.is_empty() {
        ensure!(
            clients.len() > 1,
            "--nodes: {} is between two nodes; sdp-fig9 to -fig14 take numbers of clients",
            figure.name()
        );
        clients = args.nodes.iter().copied().map(usize::from).collect();
        ensure!(
            clients.iter().all(|count| *count <= CLIENTS_MAX),
            "--nodes: at most {CLIENTS_MAX} clients, as in the paper"
        );
    }
    Ok(Plan {
        quantity,
        series: Series {
            each: streams::Plan::of(shape, if args.quick { QUICK_SECONDS } else { SECONDS }),
            paths,
            sizes,
            clients,
            rounds: args.rounds(ROUNDS) as usize,
        },
    })
}

/// The paths that a plot shows: figure 12 is of SDP alone, the others stand in its table for the ratios.
fn drawn_paths(figure: Figure, paths: &[Path]) -> Vec<Path> {
    match figure.name() {
        "sdp-fig12" => vec![Path::Carried],
        _ => paths.to_vec(),
    }
}

/// The names of the columns.
fn heads(paths: &[Path]) -> String {
    let names: Vec<&str> = paths.iter().map(|path| path.name()).collect();
    in_line("", names.into_iter().map(str::to_owned))
}

/// A row as a line: size, clients, and each path's number, with its companion.
fn told(row: &Row, quantity: Quantity) -> String {
    let clients = match row.clients {
        1 => String::new(),
        clients => format!(", {clients} clients"),
    };
    let cell = |path: Path| {
        let shown = |part| {
            row.median(path, part)
                .map_or_else(String::new, quantity.shown)
        };
        let one = shown(quantity.part);
        match quantity.beside {
            Some(beside) => format!("{one}/{}", shown(beside)),
            None => one,
        }
    };
    let cells = row.paths.iter().map(|(path, _)| cell(*path));
    in_line(&format!("{}{clients}", size_name(row.bytes)), cells)
}

/// A line of the table; its columns are as wide from the first on, since rows are shown as they come.
fn in_line(head: &str, cells: impl Iterator<Item = String>) -> String {
    let mut text = format!("  {head:<19}");
    cells.for_each(|cell| text.push_str(&format!(" {cell:<13}")));
    text.trim_end().to_owned()
}

/// Every median, one path, size and number of clients a line.
fn comma_separated(rows: &[Row]) -> String {
    let names = Measured::PARTS.map(|(name, _)| name);
    let mut text = format!("path,bytes,clients,{}\n", names.join(","));
    for row in rows {
        for (path, _) in &row.paths {
            text.push_str(&format!("{},{},{}", path.name(), row.bytes, row.clients));
            for (_, part) in Measured::PARTS {
                let number = row.median(*path, part).unwrap_or(f64::NAN);
                text.push_str(&format!(",{number}"));
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
