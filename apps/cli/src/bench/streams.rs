//! `tsumuji bench rr | crr | stream | manyclients`: byte streams of an unmodified program over kernel TCP, UNIX sockets, and through `tsumuji run`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::plot::{self, Line, PlotError};
use tsumuji_bench::stats::size_name;
use tsumuji_bench::streams::{
    self, BYTES_MAX, CLIENTS_MAX, Part, Path, Plan, Row, SIZES, SIZES_OF_MANY, Series, Server,
    Shape,
};
use tsumuji_bench::{stop, table};
use tsumuji_testbed::{Rate, Testbed};

use super::sizes::Sizes;
use super::{seconds, short};
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::named::named;
use crate::output::Files;
use crate::talk::Talk;

/// Between hosts of a testbed: a server's and its clients'.
const HOSTS: usize = 2;
const MTU_BYTES: u32 = 1500;

/// Options that all four commands have.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Bytes of a message: one, several, or a range by powers of two; at most 1M
    #[arg(long, value_name = "B,B|B..B", value_delimiter = ',')]
    size: Vec<Sizes>,
    /// What carries the streams: tcp (loopback), tcp-ns (TCP between two hosts of a testbed; root), unix (UNIX sockets), shm (the same program
    /// through `tsumuji run`), fallback (only the client through it: its connections stay TCP), udp, packet, xdp, dpdk (the same between the two hosts, by gateways over that link; dpdk by its device net_af_packet) [default: all that work here]
    #[arg(long, value_name = "PATH,PATH", value_delimiter = ',', value_parser = named(Path::ALL.map(|path| (path.name(), path))), hide_possible_values = true)]
    path: Vec<Path>,
    /// Congestion control of TCP [default: cubic, if the kernel has it]
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
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
    /// What each client does: rr (it asks and waits for the answer), stream (it sends one way) or crr (as rr, with a connection for each)
    #[arg(long, value_name = "SHAPE", default_value = "rr", value_parser = named(SHAPES.map(|shape| (shape_name(shape), shape))))]
    shape: Shape,
    /// How the server serves them: threads (one for each) or epoll (one thread for all; not with crr)
    #[arg(long, value_name = "HOW", default_value = "threads", value_parser = named([("threads", Server::Threads), ("epoll", Server::Epoll)]))]
    server: Server,
    #[command(flatten)]
    each: Args,
}

const SHAPES: [Shape; 3] = [Shape::Requests, Shape::OneWay, Shape::Connections];

/// By one client.
pub(super) fn single(shape: Shape, args: &Args) -> Outcome {
    let sizes = match shape {
        Shape::Connections => &[1],
        _ => &SIZES[..],
    };
    let kind = shape_name(shape);
    run(args, (shape, kind), (&[1], Server::Threads), sizes)
}

/// By many clients.
pub(super) fn many(args: &ManyArgs) -> Outcome {
    let clients: Vec<usize> = args.clients.iter().copied().map(usize::from).collect();
    ensure!(
        (args.server, args.shape) != (Server::Epoll, Shape::Connections),
        "--server epoll: connections for each request are served by threads; leave it out, or choose --shape rr or stream"
    );
    let shape = (args.shape, "manyclients");
    run(&args.each, shape, (&clients, args.server), &SIZES_OF_MANY)
}

/// The paths that can be measured here, and the hosts of those between hosts.
pub(crate) struct Ground {
    pub(crate) paths: Vec<Path>,
    testbed: Option<Testbed>,
    missing: Vec<(Path, String)>,
}

impl Ground {
    /// For these paths. One that cannot be measured is left out and named, unless the user asked for it: then that is the error.
    pub(crate) fn of(
        mut paths: Vec<Path>,
        are_asked: bool,
        rate: Option<Rate>,
        talk: &mut Talk,
    ) -> anyhow::Result<Self> {
        let (mut ground, mut missing) = (None, Vec::new());
        if let Some(far) = paths.iter().find(|path| path.is_between_hosts()) {
            match testbed(HOSTS, rate, MTU_BYTES) {
                Ok(testbed) => ground = Some(testbed),
                Err(error) if are_asked => bail!("{}: {error}", far.name()),
                Err(error) => paths.retain(|path| {
                    if path.is_between_hosts() {
                        missing.push((*path, error.to_string()));
                    }
                    !path.is_between_hosts()
                }),
            }
        }
        if !are_asked {
            let program = std::env::current_exe().context("this program's own file")?;
            let mut is_wanted = |path: &Path| {
                let tried = streams::measure(program.as_os_str(), &trial(*path), ground.as_ref());
                missing.extend(tried.as_ref().err().map(|error| (*path, error.to_string())));
                tried.is_ok()
            };
            paths.retain(&mut is_wanted);
            ensure!(!stop::is_wanted(), Interrupted);
        }
        for (path, reason) in &missing {
            talk.say(&format!("{}: not measured: {reason}", path.name()));
        }
        Ok(Self {
            paths,
            testbed: ground,
            missing,
        })
    }

    pub(crate) fn testbed(&self) -> Option<&Testbed> {
        self.testbed.as_ref()
    }

    /// The paths that are left out, and why.
    pub(crate) fn missing(&self) -> Vec<Value> {
        let one =
            |(path, reason): &(Path, String)| json!({ "path": path.name(), "missing": reason });
        self.missing.iter().map(one).collect()
    }

    pub(crate) fn down(self) -> anyhow::Result<()> {
        match self.testbed {
            Some(testbed) => Ok(testbed.down().map(drop)?),
            None => Ok(()),
        }
    }
}

/// A short measurement, to see whether a path works here.
fn trial(path: Path) -> Plan {
    Plan {
        path,
        ..Plan::of(Shape::Requests, 0.02)
    }
}

fn run(
    args: &Args,
    (shape, kind): (Shape, &str),
    (clients, server): (&[usize], Server),
    sizes: &[usize],
) -> Outcome {
    let mut list = Sizes::of_all(&args.size);
    if list.is_empty() {
        list.extend(sizes);
    }
    ensure!(
        list.iter().all(|bytes| (1..=BYTES_MAX).contains(bytes)),
        "--size: streams carry messages of 1 byte to 1 MiB"
    );
    let files = Files::of(None, args.plot.as_ref())?;
    let program = std::env::current_exe().context("this program's own file")?;
    let congestion = streams::congestion(args.congestion.as_deref())?;
    let (mut talk, machine) = Talk::begin(args.json);
    let are_asked = !args.path.is_empty();
    let paths = if are_asked {
        args.path.clone()
    } else {
        Path::ALL.to_vec()
    };
    let ground = Ground::of(paths, are_asked, None, &mut talk)?;
    let waits = if args.spin {
        "spinning"
    } else {
        "waiting (TCP in the kernel; ours after some microseconds, TSUMUJI_SOCKETS_SPIN_US)"
    };
    if shape == Shape::Connections {
        talk.say("each message has a connection of its own, which the server closes; p50 and p99: from connecting to closing");
    }
    let served = match server {
        Server::Threads => "a thread of the server for each client",
        Server::Epoll => "one thread of the server for all clients",
    };
    talk.say(&format!(
        "both ends {waits}; TCP: {congestion}, no delay; cli/srv: processor time of the clients' and the server's processes, in percent of all CPUs; \
         all%: of the whole machine by the kernel's idle clocks, and of that in soft interrupts; \
         us/KB: service demand, the processor time for 1024 bytes of payload, of both sides' processes and of the whole machine; \
         {served}"
    ));
    let series = Series {
        each: Plan {
            server,
            spins: args.spin,
            congestion: Some(congestion),
            ..Plan::of(shape, args.seconds.as_secs_f64())
        },
        paths: ground.paths.clone(),
        sizes: list,
        clients: clients.to_vec(),
        rounds: args.rounds as usize,
    };
    let told = |row: &Row| told(row, shape);
    let rows = series.run(program.as_os_str(), ground.testbed(), &told, &mut talk)?;
    let missing = ground.missing();
    ground.down()?;
    let (title, over_clients) = (format!("tsumuji bench {kind}"), clients.len() > 1);
    let (unit, part): (&str, Part) = match shape {
        Shape::Requests | Shape::Connections if !over_clients => ("us", |one| one.p50),
        _ => ("Mbit/s", |one| one.mbits),
    };
    let lines = || lines(&rows, &series.paths, over_clients, part);
    let written = files.write(String::new, || draw(&title, unit, over_clients, &lines()));
    let results: Vec<Value> = rows.iter().map(Row::report).collect();
    talk.end_with_files(json!({
        "kind": kind, "shape": shape_name(shape), "server": server, "spin": args.spin, "seconds": series.each.seconds, "congestion": series.each.congestion,
        "machine": machine, "missing": missing, "results": results,
    }), written)
}

pub(crate) fn shape_name(shape: Shape) -> &'static str {
    match shape {
        Shape::Requests => "rr",
        Shape::OneWay => "stream",
        Shape::Connections => "crr",
    }
}

/// A table of one size and number of clients.
fn told(row: &Row, shape: Shape) -> String {
    // Together at most as wide as a terminal.
    let mut lines = table::headed(
        "path | p50 us | p99 us | /s | Mbit/s | +-% | cli/srv | all% | us/KB | x tcp",
    );
    for (path, _) in &row.paths {
        let median = |part: Part| row.median(*path, part).unwrap_or(f64::NAN);
        let time = |value: f64| match shape {
            Shape::OneWay => "-".to_owned(),
            _ if value < 100.0 => format!("{value:.2}"),
            _ => format!("{value:.0}"),
        };
        let spread = row.rounds(*path, |one| one.per_second);
        lines.push([
            path.name().to_owned(),
            time(median(|one| one.p50)),
            time(median(|one| one.p99)),
            short(median(|one| one.per_second)),
            format!("{:.0}", median(|one| one.mbits)),
            spread.map_or_else(String::new, |one| one.half_spread()),
            format!(
                "{:.0}/{:.0}",
                median(|one| one.client_cpu),
                median(|one| one.server_cpu)
            ),
            format!(
                "{:.0}/{:.0}",
                median(|one| one.machine_cpu),
                median(|one| one.softirq)
            ),
            format!(
                "{}/{}",
                cost(median(|one| one.us_per_kb)),
                cost(median(|one| one.machine_us_per_kb))
            ),
            table::number(row.over_tcp(*path), 2, ""),
        ]);
    }
    let by = match row.clients {
        1 => String::new(),
        clients => format!(", {clients} clients"),
    };
    let table = table::aligned(&lines);
    format!("\n{}{by}\n{table}", size_name(row.bytes))
}

/// Microseconds for a KB.
pub(crate) fn cost(us: f64) -> String {
    if us >= 10.0 {
        format!("{us:.0}")
    } else {
        format!("{us:.3}")
    }
}

/// A number of each path as a line over sizes; or of each path and size over clients.
pub(crate) fn lines(rows: &[Row], paths: &[Path], over_clients: bool, part: Part) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut sizes: Vec<usize> = rows.iter().map(|row| row.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for &path in paths {
        if over_clients {
            for &bytes in &sizes {
                let those = rows.iter().filter(|row| row.bytes == bytes);
                let point = |row: &Row| Some((row.clients as f64, row.median(path, part)?));
                let name = format!("{}, {}", path.name(), size_name(bytes));
                lines.push(Line::new(name, those.filter_map(point)));
            }
        } else {
            let point = |row: &Row| Some((row.bytes as f64, row.median(path, part)?));
            lines.push(Line::new(path.name(), rows.iter().filter_map(point)));
        }
    }
    lines
}

/// The lines as SVG.
pub(crate) fn draw(
    title: &str,
    unit: &str,
    over_clients: bool,
    lines: &[Line],
) -> Result<String, PlotError> {
    if over_clients {
        plot::over_counts(title, "clients", unit, lines)
    } else {
        plot::svg(title, unit, lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_bench::streams::Measured;

    fn row(clients: usize, bytes: usize) -> Row {
        let one = Measured {
            per_second: 234_500.0,
            mbits: 100.0 * clients as f64,
            p50: 2.0,
            p99: 30.5,
            client_cpu: 40.0,
            server_cpu: 50.0,
            machine_cpu: 97.0,
            softirq: 6.0,
            us_per_kb: 0.25,
            client_us_per_kb: 0.1,
            machine_us_per_kb: 12.0,
        };
        Row {
            bytes,
            clients,
            paths: vec![(Path::Tcp, vec![one]), (Path::Carried, vec![one])],
        }
    }

    /// A table has a line for each path, with the 99th percentile, the soft interrupts' share and both service demands; a stream has no latency.
    #[test]
    fn tables_name_all() {
        let text = told(&row(4, 64), Shape::Requests);
        assert!(text.contains("64 B, 4 clients"), "{text}");
        for part in ["30.50", "40/50", "97/6", "0.250/12", "1.00"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert!(!told(&row(4, 64), Shape::OneWay).contains("30.50"));
    }

    /// Over sizes there is a line for each path, over clients one for each path and size.
    #[test]
    fn lines_are_over_sizes_or_clients() {
        let rows = [row(1, 64), row(4, 64), row(1, 1024), row(4, 1024)];
        let paths = [Path::Tcp, Path::Carried];
        let over_clients = lines(&rows, &paths, true, |one| one.mbits);
        assert_eq!(over_clients.len(), 4);
        assert_eq!(over_clients[0].points, [(1.0, 100.0), (4.0, 400.0)]);
        assert_eq!(over_clients[3].name, "shm, 1 KiB");
        let over_sizes = lines(&rows[..1], &paths, false, |one| one.p50);
        assert_eq!(over_sizes[1].points, [(64.0, 2.0)]);
    }
}
