//! `tsumuji bench rr | stream | manyclients`: byte streams of an unmodified program over kernel TCP, UNIX sockets, and through `tsumuji run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::plot::{self, Line};
use tsumuji_bench::stats::{Rounds, size_name};
use tsumuji_bench::streams::{self, BYTES_MAX, CLIENTS_MAX, Measured, Path, Plan, Shape};
use tsumuji_bench::{stop, table};

use super::sizes::Sizes;
use super::{seconds, short};
use crate::interrupt::Interrupted;
use crate::talk::Talk;
use crate::{DONE, Outcome, output};

/// Sizes without `--size`: by one client, and by many.
const SIZES: [usize; 5] = [1, 64, 1 << 10, 8 << 10, 64 << 10];
const SIZES_OF_MANY: [usize; 3] = [32, 8 << 10, 64 << 10];

/// What all three ask for.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Bytes of a message: one, several, or a range by powers of two; at most 1M
    #[arg(long, value_name = "B,B|B..B", value_delimiter = ',')]
    size: Vec<Sizes>,
    /// What carries the streams: tcp (loopback), unix (UNIX sockets), shm (the same program through `tsumuji run`)
    #[arg(long, value_name = "PATH,PATH", value_delimiter = ',', default_values = ["tcp", "unix", "shm"])]
    path: Vec<PathName>,
    /// Both ends ask again and again instead of waiting in the kernel
    #[arg(long)]
    spin: bool,
    /// Time of one measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = seconds)]
    seconds: Duration,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Draw it
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ManyArgs {
    /// Clients, each a process
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_parser = clap::value_parser!(u16).range(1..=CLIENTS_MAX as i64))]
    clients: Vec<u16>,
    #[command(flatten)]
    each: Args,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PathName {
    Tcp,
    Unix,
    Shm,
}

impl PathName {
    fn path(self) -> Path {
        match self {
            Self::Tcp => Path::Tcp,
            Self::Unix => Path::Unix,
            Self::Shm => Path::Carried,
        }
    }
}

/// Request and response, by one client.
pub(super) fn requests(args: &Args) -> Outcome {
    run(args, (Shape::Requests, "rr"), &[1], &SIZES)
}

/// One way, by one client.
pub(super) fn one_way(args: &Args) -> Outcome {
    run(args, (Shape::OneWay, "stream"), &[1], &SIZES)
}

/// Request and response, by many clients.
pub(super) fn many(args: &ManyArgs) -> Outcome {
    let shape = (Shape::Requests, "manyclients");
    run(&args.each, shape, &args.clients, &SIZES_OF_MANY)
}

/// The other end, or a client.
pub(super) fn serve(plan: &str) -> Outcome {
    streams::serve(plan)?;
    Ok(DONE)
}

fn run(args: &Args, (shape, kind): (Shape, &str), clients: &[u16], sizes: &[usize]) -> Outcome {
    let mut list: Vec<usize> = args.size.iter().flat_map(|sizes| sizes.0.clone()).collect();
    if list.is_empty() {
        list.extend(sizes);
    }
    ensure!(
        list.iter().all(|bytes| (1..=BYTES_MAX).contains(bytes)),
        "--size: streams carry messages of 1 byte to 1 MiB"
    );
    if let Some(plot) = &args.plot {
        output::check_plot(plot)?;
    }
    let mut talk = Talk::new(args.json);
    let machine = talk.machine();
    let control = streams::congestion_control();
    let waits = if args.spin {
        "spinning"
    } else {
        "waiting in the kernel"
    };
    talk.say(&format!(
        "both ends {waits}; TCP: {control}, no delay; cli, srv: processor time in percent of one CPU; all: of all CPUs by the kernel's idle clocks, and in soft interrupts; us/KB: processor time of both ends for 1024 bytes of payload"
    ));
    let own: OsString = std::env::current_exe()
        .context("this program's own file")?
        .into();
    let program = [own, "bench-serve-stream".into()];
    let mut results = Vec::new();
    for &count in clients {
        for &bytes in &list {
            let mut columns: Vec<Vec<Measured>> = vec![Vec::new(); args.path.len()];
            for _ in 0..args.rounds {
                for (path, column) in args.path.iter().zip(&mut columns) {
                    let plan = Plan {
                        shape,
                        path: path.path(),
                        bytes,
                        clients: count.into(),
                        seconds: args.seconds.as_secs_f64(),
                        spins: args.spin,
                    };
                    column.push(streams::measure(&program, &plan)?);
                    ensure!(!stop::is_wanted(), Interrupted);
                }
            }
            results.push(tell(&mut talk, args, (shape, count, bytes), &columns));
        }
    }
    drop(talk);
    if let Some(path) = &args.plot {
        draw(path, args, (shape, kind), clients.len() > 1, &results)?;
    }
    if args.json {
        output::print_json(&json!({
            "kind": kind, "spin": args.spin, "congestion": control, "machine": machine, "results": results,
        }));
    }
    Ok(DONE)
}

/// Prints a table of one size and number of clients.
fn tell(
    talk: &mut Talk,
    args: &Args,
    (shape, clients, bytes): (Shape, u16, usize),
    columns: &[Vec<Measured>],
) -> Value {
    let heads = [
        "path", "p50 us", "p99 us", "/s", "Mbit/s", "+-%", "cli%", "srv%", "all%", "us/KB",
        "of tcp",
    ];
    let of = |column: &[Measured], part: fn(&Measured) -> f64| {
        Rounds::of(&column.iter().map(part).collect::<Vec<f64>>())
    };
    let rate = |column: &[Measured]| of(column, |one| one.per_second).median;
    let tcp = args.path.iter().position(|path| *path == PathName::Tcp);
    let tcp = tcp.map(|place| rate(&columns[place]));
    let mut rows = vec![heads.map(str::to_owned)];
    let mut paths = Vec::new();
    for (path, column) in args.path.iter().zip(columns) {
        let median = |part: fn(&Measured) -> f64| of(column, part).median;
        let time = |value: f64| match shape {
            Shape::Requests => format!("{value:.2}"),
            Shape::OneWay => "-".to_owned(),
        };
        let speed = of(column, |one| one.per_second);
        let ratio = tcp.map(|tcp| speed.median / tcp);
        rows.push([
            path.path().name().to_owned(),
            time(median(|one| one.p50)),
            time(median(|one| one.p99)),
            short(speed.median),
            format!("{:.0}", median(|one| one.mbits)),
            format!("{:.0}", speed.spread_percent() / 2.0),
            format!("{:.0}", median(|one| one.client_cpu)),
            format!("{:.0}", median(|one| one.server_cpu)),
            format!(
                "{:.0}/{:.0}",
                median(|one| one.machine_cpu),
                median(|one| one.softirq)
            ),
            match median(|one| one.us_per_kb) {
                cost if cost >= 10.0 => format!("{cost:.0}"),
                cost => format!("{cost:.3}"),
            },
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        ]);
        paths.push(json!({
            "path": path.path().name(), "ratio": ratio,
            "per_second": speed, "mbits": of(column, |one| one.mbits),
            "p50_us": of(column, |one| one.p50), "p99_us": of(column, |one| one.p99),
            "client_cpu": of(column, |one| one.client_cpu), "server_cpu": of(column, |one| one.server_cpu),
            "machine_cpu": of(column, |one| one.machine_cpu), "softirq": of(column, |one| one.softirq),
            "us_per_kb": of(column, |one| one.us_per_kb),
        }));
    }
    let by = if clients == 1 {
        String::new()
    } else {
        format!(", {clients} clients")
    };
    talk.say(&format!("\n{}{by}", size_name(bytes)));
    talk.say(&table::aligned(&rows));
    json!({ "bytes": bytes, "clients": clients, "paths": paths })
}

/// Latency of requests over their size, throughput of streams over theirs, or throughput over clients.
fn draw(
    path: &std::path::Path,
    args: &Args,
    (shape, kind): (Shape, &str),
    over_clients: bool,
    results: &[Value],
) -> anyhow::Result<()> {
    let (unit, field) = match shape {
        Shape::Requests if !over_clients => ("us", "p50_us"),
        _ => ("Mbit/s", "mbits"),
    };
    let mut lines: Vec<Line> = Vec::new();
    for (place, name) in args.path.iter().enumerate() {
        let point = |result: &Value| {
            let x = if over_clients { "clients" } else { "bytes" };
            Some((
                result[x].as_f64()?,
                result["paths"][place][field]["median"].as_f64()?,
            ))
        };
        let mut sizes: Vec<u64> = results
            .iter()
            .filter_map(|one| one["bytes"].as_u64())
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        if over_clients {
            for bytes in sizes {
                let those = results.iter().filter(|one| one["bytes"] == bytes);
                lines.push(Line {
                    name: format!("{}, {}", name.path().name(), size_name(bytes as usize)),
                    points: those.filter_map(point).collect(),
                });
            }
        } else {
            lines.push(Line {
                name: name.path().name().to_owned(),
                points: results.iter().filter_map(point).collect(),
            });
        }
    }
    let title = format!("tsumuji bench {kind}");
    let drawn = if over_clients {
        plot::over_counts(&title, "clients", unit, &lines)?
    } else {
        plot::svg(&title, unit, &lines)?
    };
    output::PendingFile::create(path)?.finish(|file| file.write_all(drawn.as_bytes()))
}
