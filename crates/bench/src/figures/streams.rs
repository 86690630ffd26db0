//! Figures of byte streams between unmodified programs: through `tsumuji run` (`shm`; `udp`: between hosts by gateways) beside kernel TCP between two hosts of
//! a testbed (`tcp-ns`) and over loopback (`tcp`), and beside a bare copy through shared memory, in turn in one run.
//!
//! The measurements are those of `tsumuji bench rr`, `stream`, `manyclients` and `crr`. Of several sizes the one where ours does worst is the figure.

use tsumuji_testbed::Testbed;

use super::{Log, Setting, Wanted, stands};
use crate::limits;
use crate::machine;
use crate::stats::size_name;
use crate::streams::{
    Measured, Part, Path, Plan, Row, SIZES, SIZES_OF_MANY, Series, Shape, congestion, measure,
};
use crate::versus::{Standing, alternate};

/// Up to here the aggregate of many clients has the higher target.
const MIDDLE_BYTES: usize = 8 << 10;
const LARGE_BYTES: usize = 64 << 10;
const CLIENTS: usize = 64;
/// Seconds of one measurement.
const SECONDS: f64 = 0.5;
/// Bytes that one bare copy moves: more than caches hold.
const COPIED_BYTES: u64 = 4 << 30;

/// Targets, ours divided by theirs.
const LATENCY: Wanted = Wanted::AtMost(0.25);
const LATENCY_BETWEEN: Wanted = Wanted::AtMost(1.0);
const STREAM: Wanted = Wanted::AtLeast(2.0);
const STREAM_OF_A_COPY: Wanted = Wanted::AtLeast(0.9);
const DEMAND: Wanted = Wanted::AtMost(1.0);
const AGGREGATE: Wanted = Wanted::AtLeast(2.6);
const AGGREGATE_LARGE: Wanted = Wanted::AtLeast(1.7);
const TAIL: Wanted = Wanted::AtMost(1.0);
const SET_UP: Wanted = Wanted::AtMost(1.5);
const FALLBACK: Wanted = Wanted::AtMost(1.02);
const OF_THE_WIRE: Wanted = Wanted::AtLeast(0.9);

/// A cable that limits both ours and TCP, in bits a second, and the sizes at which it does.
const CABLE_BITS_PER_SECOND: u64 = 1_000_000_000;
const WIRE_SIZES: [usize; 3] = [1 << 10, 8 << 10, LARGE_BYTES];

/// Messages of one frame.
const SIZES_OF_ONE_FRAME: [usize; 2] = [1, 1 << 10];

/// A measured quantity, with its unit.
type Quantity = (&'static str, Part);
const HALF_TRIP: Quantity = ("us", |one| one.p50);
const SLOWEST: Quantity = ("us", |one| one.p99);
const RATE: Quantity = ("Mbit/s", |one| one.mbits);
const PER_MESSAGE: Quantity = ("us", |one| 1e6 / one.per_second);
const PER_KB: Quantity = ("us/KB", |one| one.us_per_kb);

/// Ours, and what it is compared with.
const BESIDE_HOSTS: [Path; 2] = [Path::Carried, Path::TcpNs];
const GATEWAYS: [Path; 2] = [Path::Udp, Path::TcpNs];

/// All figures of streams.
pub(super) fn streams(setting: &Setting, log: &mut Log<'_>) {
    const TITLE: &str = "streams of unmodified programs";
    let control = match congestion(None) {
        Ok(control) => control,
        Err(error) => return log.unmeasured(TITLE, &error.to_string(), Wanted::Nothing),
    };
    log.peer(&format!("kernel TCP with {control}"));
    log.say(&format!(
        "{TITLE} (medians of rounds in turn; TCP: {control}, no delay)"
    ));
    let testbed = super::testbed(2, None, 1500);
    let course = Course {
        setting,
        testbed: testbed.as_ref().ok(),
        control: &control,
    };
    match &testbed {
        Ok(_) => {
            latency(&course, log);
            latency_between_hosts(&course, log);
            one_client(&course, log);
            beside_a_copy(&course, log);
            many_clients(&course, log);
        }
        Err(reason) => log.missing("streams between hosts", reason),
    }
    set_up(&course, log);
    falling_back(&course, log);
    if let Ok(testbed) = testbed {
        log.down(testbed);
        over_a_cable(setting, &control, log);
    }
}

/// One way between hosts whose cable is the limit.
fn over_a_cable(setting: &Setting, control: &str, log: &mut Log<'_>) {
    let name = "one way, between hosts by a cable of 1 Gbit/s";
    log.on_testbed(
        name,
        2,
        Some(CABLE_BITS_PER_SECOND),
        1500,
        |testbed, log| {
            let course = Course {
                setting,
                testbed: Some(testbed),
                control,
            };
            for ours in [Path::Udp, Path::Xdp] {
                let paths = [ours, Path::TcpNs];
                let series = Series {
                    sizes: course.sizes(&WIRE_SIZES),
                    ..course.series(Shape::OneWay, &paths)
                };
                let rows = course.rows(name, &series, log);
                worst(log, name, &rows, paths, RATE, OF_THE_WIRE);
            }
        },
    );
}

/// What all measurements of a run share.
struct Course<'a> {
    setting: &'a Setting,
    testbed: Option<&'a Testbed>,
    /// TCP's congestion control.
    control: &'a str,
}

impl Course<'_> {
    /// Of one client; both ends wait in the kernel.
    fn each(&self, shape: Shape) -> Plan {
        Plan {
            congestion: Some(self.control.to_owned()),
            ..Plan::of(shape, self.setting.tried_or(0.05, SECONDS))
        }
    }

    /// Of each series: one client, all sizes.
    fn series(&self, shape: Shape, paths: &[Path]) -> Series {
        Series {
            each: self.each(shape),
            paths: paths.to_vec(),
            sizes: self.sizes(&SIZES),
            clients: vec![1],
            // Many sizes: the worst of them counts.
            rounds: self.setting.rounds.min(3),
        }
    }

    fn sizes(&self, all: &[usize]) -> Vec<usize> {
        let few = [all[0], LARGE_BYTES];
        self.setting.tried_or(&few[..], all).to_vec()
    }

    /// What a series finds; if it fails, that takes the place of its figures.
    fn rows(&self, name: &str, series: &Series, log: &mut Log<'_>) -> Vec<Row> {
        log.say(name);
        let program = self.setting.program.as_os_str();
        let rows = series.run(program, self.testbed, &line, &mut log.say);
        rows.unwrap_or_else(|error| {
            log.unmeasured(name, &error.to_string(), Wanted::Nothing);
            Vec::new()
        })
    }
}

/// Progress: the rates at one size.
fn line(row: &Row) -> String {
    let rate = |(path, _): &(Path, Vec<Measured>)| {
        let mbits = row.median(*path, RATE.1).unwrap_or(f64::NAN);
        format!("{} {mbits:.1} Mbit/s", path.name())
    };
    let rates: Vec<String> = row.paths.iter().map(rate).collect();
    format!("  {:>7}  {}", size_name(row.bytes), rates.join(", "))
}

/// Of one byte, both ends spinning.
fn latency(course: &Course<'_>, log: &mut Log<'_>) {
    let name = "1 B, both ends spinning: half a round trip";
    let mut series = Series {
        sizes: vec![1],
        rounds: course.setting.rounds,
        ..course.series(Shape::Requests, &BESIDE_HOSTS)
    };
    series.each.spins = true;
    let rows = course.rows(name, &series, log);
    worst(log, name, &rows, BESIDE_HOSTS, HALF_TRIP, LATENCY);
}

/// Of small messages by gateways.
fn latency_between_hosts(course: &Course<'_>, log: &mut Log<'_>) {
    let ours = [Path::Udp, Path::Xdp];
    // With both ends spinning, four processes share the cores of two.
    for (spins, waits, wanted) in [
        (false, "both ends waiting", LATENCY_BETWEEN),
        (true, "both ends spinning", Wanted::Nothing),
    ] {
        let name = format!("up to 1 KiB between hosts, {waits}: half a round trip");
        let mut series = Series {
            sizes: SIZES_OF_ONE_FRAME.to_vec(),
            rounds: course.setting.rounds,
            ..course.series(Shape::Requests, &[ours[0], ours[1], Path::TcpNs])
        };
        series.each.spins = spins;
        let rows = course.rows(&name, &series, log);
        for path in ours {
            let paths = [path, Path::TcpNs];
            worst(log, &name, &rows, paths, HALF_TRIP, wanted);
        }
    }
}

/// Service demand of all sizes, and the rate between hosts.
fn one_client(course: &Course<'_>, log: &mut Log<'_>) {
    let paths = [Path::Carried, Path::Udp, Path::TcpNs];
    for (shape, name) in [(Shape::Requests, "requests"), (Shape::OneWay, "one way")] {
        let series = course.series(shape, &paths);
        let rows = course.rows(name, &series, log);
        let demand = format!("{name}: service demand of both programs");
        worst(log, &demand, &rows, BESIDE_HOSTS, PER_KB, DEMAND);
        let between = format!("{name}, between hosts");
        worst(log, &between, &rows, GATEWAYS, RATE, Wanted::Nothing);
    }
}

/// Large messages one way, beside TCP and beside a copy into and out of shared memory.
fn beside_a_copy(course: &Course<'_>, log: &mut Log<'_>) {
    let name = format!("{} one way", size_name(LARGE_BYTES));
    log.say(&name);
    let stream = |path: Path| {
        let plan = Plan {
            path,
            bytes: LARGE_BYTES,
            ..course.each(Shape::OneWay)
        };
        measure(course.setting.program.as_os_str(), &plan, course.testbed)
            .map(|one| one.mbits)
            .map_err(|error| error.to_string())
    };
    let copied = course.setting.tried_or(COPIED_BYTES >> 8, COPIED_BYTES);
    let copy = || {
        let messages = copied / LARGE_BYTES as u64;
        let copied = limits::copy::burst(machine::two_cpus(), LARGE_BYTES, messages);
        let rate = messages as f64 / copied.seconds;
        Ok(rate * LARGE_BYTES as f64 * 8e-6)
    };
    let paths = [Path::Carried, Path::TcpNs];
    let names = [paths[0].name(), paths[1].name(), "bare copy"];
    let standings = alternate(course.setting.rounds, &names, |one| {
        paths.get(one).map_or_else(copy, |path| stream(*path))
    });
    for (other, wanted) in [(1, STREAM), (2, STREAM_OF_A_COPY)] {
        let [ours, beside] = [0, other].map(|index| stands(&standings[index], RATE.0));
        let ratio = standings[0].ratio_to(&standings[other]);
        log.add(name.as_str(), ours, beside, ratio, wanted);
    }
}

/// Aggregates of many clients, and their slowest requests.
fn many_clients(course: &Course<'_>, log: &mut Log<'_>) {
    let clients = course.setting.tried_or(3, CLIENTS);
    let series = |shape, paths: &[Path]| Series {
        sizes: course.sizes(&SIZES_OF_MANY),
        clients: vec![clients],
        ..course.series(shape, paths)
    };
    let name = format!("{clients} clients' requests");
    let of_requests = series(Shape::Requests, &[Path::Carried, Path::Udp, Path::TcpNs]);
    let rows = course.rows(&name, &of_requests, log);
    aggregate(&name, &rows, [AGGREGATE, AGGREGATE_LARGE], log);
    let slowest = format!("{name}: p99 of half a round trip");
    worst(log, &slowest, &rows, BESIDE_HOSTS, SLOWEST, TAIL);
    let between = format!("{name}, between hosts");
    worst(log, &between, &rows, GATEWAYS, RATE, Wanted::Nothing);
    // For comparison: a target is named for requests, which have a latency.
    let name = format!("{clients} clients' streams");
    let of_streams = series(Shape::OneWay, &BESIDE_HOSTS);
    let rows = course.rows(&name, &of_streams, log);
    aggregate(&name, &rows, [Wanted::Nothing; 2], log);
}

/// The aggregate of small and middle messages, and of large ones.
fn aggregate(name: &str, rows: &[Row], wanted: [Wanted; 2], log: &mut Log<'_>) {
    let (small, large) = rows.split_at(rows.partition_point(|row| row.bytes <= MIDDLE_BYTES));
    for (rows, wanted) in [small, large].into_iter().zip(wanted) {
        worst(log, name, rows, BESIDE_HOSTS, RATE, wanted);
    }
}

/// A connection for each message.
fn set_up(course: &Course<'_>, log: &mut Log<'_>) {
    let name = "a connection for 1 B each way, from connecting to closing";
    let beside = [Path::Tcp, Path::TcpNs];
    let there = beside
        .into_iter()
        .filter(|path| course.testbed.is_some() || !path.is_between_hosts());
    let beside: Vec<Path> = there.collect();
    let mut paths = vec![Path::Carried];
    paths.extend(&beside);
    let series = Series {
        sizes: vec![1],
        rounds: course.setting.rounds,
        ..course.series(Shape::Connections, &paths)
    };
    let rows = course.rows(name, &series, log);
    for other in beside {
        let paths = [Path::Carried, other];
        worst(log, name, &rows, paths, HALF_TRIP, SET_UP);
    }
}

/// Clients under `tsumuji run` whose server is not.
fn falling_back(course: &Course<'_>, log: &mut Log<'_>) {
    let paths = [Path::Fallback, Path::Tcp];
    for (shape, bytes) in [(Shape::Requests, 1), (Shape::OneWay, LARGE_BYTES)] {
        let name = match shape {
            Shape::OneWay => "falling back to TCP: time of a message one way",
            _ => "falling back to TCP: time of a request",
        };
        let series = Series {
            sizes: vec![bytes],
            // So small a difference takes more rounds to see.
            rounds: 2 * course.setting.rounds,
            ..course.series(shape, &paths)
        };
        let rows = course.rows(name, &series, log);
        worst(log, name, &rows, paths, PER_MESSAGE, FALLBACK);
    }
}

/// Adds the size at which ours, the first of the paths, does worst.
fn worst(
    log: &mut Log<'_>,
    name: &str,
    rows: &[Row],
    paths: [Path; 2],
    (unit, part): Quantity,
    wanted: Wanted,
) {
    let compared = rows.iter().map(|row| {
        let [ours, theirs] = paths.map(|path| standing(row, path, part));
        let ratio = ours.ratio_to(&theirs);
        (row.bytes, ours, theirs, ratio)
    });
    let badness = |ratio: f64| match wanted {
        Wanted::AtMost(_) => ratio,
        Wanted::AtLeast(_) | Wanted::Nothing => -ratio,
    };
    let found = compared.max_by(|a, b| badness(a.3).total_cmp(&badness(b.3)));
    // Without rows a line says why.
    let Some((bytes, ours, theirs, ratio)) = found else {
        return;
    };
    let ours = format!("{} at {}", stands(&ours, unit), size_name(bytes));
    let theirs = stands(&theirs, unit);
    log.add(name, ours, theirs, ratio, wanted);
}

/// A path's rounds at one size.
fn standing(row: &Row, path: Path, part: Part) -> Standing {
    let column = row.paths.iter().find(|(other, _)| *other == path);
    let values = column.map_or_else(Vec::new, |(_, rounds)| rounds.iter().map(part).collect());
    Standing::of(path.name(), Ok(values))
}

#[cfg(test)]
mod tests {
    use super::super::{Report, Verdict};
    use super::*;

    fn row(bytes: usize, shm_us: f64, tcp_us: f64) -> Row {
        let rounds = |p50: f64| {
            let one = Measured {
                per_second: 1e6 / p50,
                mbits: bytes as f64 * 8.0 / p50,
                p50,
                p99: 2.0 * p50,
                client_cpu: 50.0,
                server_cpu: 50.0,
                machine_cpu: 100.0,
                softirq: 0.0,
                us_per_kb: p50,
                client_us_per_kb: p50 / 2.0,
                machine_us_per_kb: p50,
            };
            vec![one; 3]
        };
        Row {
            bytes,
            clients: 1,
            paths: vec![
                (Path::Carried, rounds(shm_us)),
                (Path::TcpNs, rounds(tcp_us)),
            ],
        }
    }

    /// The figure is the size where ours does worst: the largest ratio of times, the smallest one of rates; a bound of several sizes is that of all.
    #[test]
    fn the_worst_size_counts() {
        let report = Report {
            machine: machine::describe(),
            peers: Vec::new(),
            figures: Vec::new(),
            sweeps: Vec::new(),
        };
        let say = &mut |_: &str| {};
        let mut log = Log { report, say };
        let rows = [
            row(1, 1.0, 8.0),
            row(64, 4.0, 8.0),
            row(LARGE_BYTES, 2.0, 8.0),
        ];
        let us = HALF_TRIP;
        worst(&mut log, "time", &rows, BESIDE_HOSTS, us, LATENCY);
        aggregate("sum", &rows, [AGGREGATE, STREAM], &mut log);
        worst(&mut log, "none", &[], BESIDE_HOSTS, us, LATENCY);
        let figures = &log.report.figures;
        let told: Vec<_> = figures.iter().map(|one| (one.ratio, one.verdict)).collect();
        let expected = [
            (Some(0.5), Verdict::Missed),
            (Some(2.0), Verdict::Missed),
            (Some(4.0), Verdict::Reached),
        ];
        assert_eq!(told, expected);
        assert!(figures[0].ours.ends_with("at 64 B"), "{:?}", figures[0]);
        assert_eq!(figures[2].ours, "262144.000 Mbit/s (shm, +-0 %) at 64 KiB");
    }
}
