//! What SDP's text says of each figure (its drawings have no numbers), and what of ours stands beside it.

use tsumuji_bench::plot::Line;
use tsumuji_bench::stats::counted;
use tsumuji_bench::streams::{Part, Path, Row};
use tsumuji_bench::table::{cell, number};

use super::super::Statement;
use super::super::figure::Figure;

/// The three that the paper compares: its names, and the paths beside them.
const THREE: [(&str, Path); 3] = [
    ("SDP", Path::Carried),
    ("IPoIB", Path::Tcp),
    ("Ethernet", Path::TcpNs),
];
/// Messages up to these bytes are small, from those on SDP is ahead in throughput.
const SMALL_MOST: usize = 64;
const AHEAD_FROM: usize = 1 << 10;
const LARGEST: usize = 64 << 10;
/// From so many clients on SDP is at its limit.
const MANY: usize = 4;

const RATE: Part = |one| one.per_second;
const THROUGHPUT: Part = |one| one.mbits;
const LATENCY: Part = |one| one.p50;
const DEMAND: Part = |one| one.client_us_per_kb;

/// What the paper says of a figure.
pub(super) fn statements(figure: Figure, rows: &[Row]) -> Vec<Statement> {
    let found = Found(rows);
    match figure.name() {
        "sdp-fig2" => vec![found.ratio_to_64("below 1x", RATE, Path::TcpNs)],
        "sdp-fig3" => found.at_one_byte(["24.8 us", "33.2 us", "21.6 us"]),
        "sdp-fig4" => found.client_costs(),
        "sdp-fig5" => found.throughput(),
        "sdp-fig6" => found.senders(),
        "sdp-fig7" => found.receivers(),
        "sdp-fig8" => vec![
            found.ratio_to_64("above 1x", DEMAND, Path::TcpNs),
            found.ratio_to_64("above 1x", DEMAND, Path::Tcp),
        ],
        "sdp-fig9" => found.growth(),
        "sdp-fig10" => found.latencies("1x", Path::TcpNs, Path::Carried),
        "sdp-fig11" => {
            let mut list = found.latencies("2.3x to 2.5x", Path::TcpNs, Path::Carried);
            list.push(found.last_latency("above 1x", Path::Tcp, Path::TcpNs));
            list
        }
        "sdp-fig12" => found.streams(),
        "sdp-fig13" => vec![found.most("3100 to 3200 Mbit/s", Path::Tcp)],
        "sdp-fig14" => vec![found.most("above 1000 Mbit/s", Path::TcpNs)],
        _ => Vec::new(),
    }
}

/// The paper's numbers of a figure that has them, to be drawn beside ours.
pub(super) fn lines(figure: Figure) -> Vec<Line> {
    let at = |x: f64, values: [f64; 3]| -> Vec<Line> {
        let both = THREE.iter().zip(values);
        both.map(|((name, _), value)| Line::new(format!("{name} (paper)"), [(x, value)]))
            .collect()
    };
    match figure.name() {
        "sdp-fig3" => at(1.0, [24.8, 33.2, 21.6]),
        "sdp-fig5" => at(LARGEST as f64, [5378.0, 1763.0, 941.0]),
        "sdp-fig12" => at(64.0, [7853.0, 0.0, 0.0])[..1].to_vec(),
        _ => Vec::new(),
    }
}

/// The least and the most of `values`.
fn span(values: impl Iterator<Item = f64>, digits: usize, unit: &str) -> String {
    let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
        let (least, most) = ends.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    });
    let Some((least, most)) = ends else {
        return "-".to_owned();
    };
    let (least, most) = (format!("{least:.digits$}"), format!("{most:.digits$}"));
    if least == most {
        format!("{most}{unit}")
    } else {
        format!("{least} to {most}{unit}")
    }
}

/// A statement about each of the three.
fn of_three(what: &str, paper: [&'static str; 3], told: impl Fn(Path) -> String) -> Vec<Statement> {
    let one = |((name, path), paper): (&(&str, Path), &'static str)| {
        let what = format!("{what}: {name}, {}", path.name());
        (what, paper, told(*path))
    };
    THREE.iter().zip(paper).map(one).collect()
}

struct Found<'a>(&'a [Row]);

impl Found<'_> {
    fn at(&self, bytes: usize) -> Option<&Row> {
        self.0.iter().find(|row| row.bytes == bytes)
    }

    fn most_clients(&self) -> usize {
        self.0.iter().map(|row| row.clients).max().unwrap_or(0)
    }

    fn at_both(&self, bytes: usize, clients: usize) -> Option<&Row> {
        let mut rows = self.0.iter();
        rows.find(|row| row.bytes == bytes && row.clients == clients)
    }

    fn largest(&self) -> Option<&Row> {
        self.0.iter().max_by_key(|row| (row.bytes, row.clients))
    }

    /// Ours over another path's, of all rows that are wanted.
    fn ratios(&self, wanted: impl Fn(&Row) -> bool, part: Part, other: Path) -> String {
        let rows = self.0.iter().filter(|row| wanted(row));
        span(
            rows.filter_map(|row| ratio(row, part, Path::Carried, other)),
            2,
            "x",
        )
    }

    fn ratio_to_64(&self, paper: &'static str, part: Part, other: Path) -> Statement {
        (
            format!("up to {SMALL_MOST} B: shm over {}", other.name()),
            paper,
            self.ratios(|row| row.bytes <= SMALL_MOST, part, other),
        )
    }

    fn at_one_byte(&self, paper: [&'static str; 3]) -> Vec<Statement> {
        let row = self.at(1);
        of_three("1 B", paper, |path| {
            let us = row.and_then(|row| row.median(path, LATENCY));
            number(us, 2, " us")
        })
    }

    fn client_costs(&self) -> Vec<Statement> {
        let of = |path: Path| self.ratios(|_| true, |one| one.client_cpu, path);
        vec![
            (
                "client's time: shm over tcp".to_owned(),
                "below 1x",
                of(Path::Tcp),
            ),
            (
                "client's time: shm over tcp-ns".to_owned(),
                "1x or more",
                of(Path::TcpNs),
            ),
        ]
    }

    fn throughput(&self) -> Vec<Statement> {
        let row = self.at(LARGEST);
        let paper = ["5378 Mbit/s", "1763 Mbit/s", "941 Mbit/s"];
        let mut list = of_three("64 KiB", paper, |path| {
            let rate = row.and_then(|row| row.median(path, THROUGHPUT));
            number(rate, 0, " Mbit/s")
        });
        for other in [Path::Tcp, Path::TcpNs] {
            list.push(self.ratio_to_64("below 1x", THROUGHPUT, other));
        }
        for other in [Path::Tcp, Path::TcpNs] {
            list.push((
                format!("from 1 KiB: shm over {}", other.name()),
                "above 1x",
                self.ratios(|row| row.bytes >= AHEAD_FROM, THROUGHPUT, other),
            ));
        }
        list
    }

    fn senders(&self) -> Vec<Statement> {
        let cpu: Part = |one| one.client_cpu;
        let all = |path: Path| {
            span(
                self.0.iter().filter_map(|row| row.median(path, cpu)),
                1,
                " %",
            )
        };
        let last = self.largest().and_then(|row| row.median(Path::TcpNs, cpu));
        vec![
            (
                "all sizes: SDP, shm".to_owned(),
                "about 30 %",
                all(Path::Carried),
            ),
            (
                "all sizes: IPoIB, tcp".to_owned(),
                "about 30 %",
                all(Path::Tcp),
            ),
            (
                "64 KiB: Ethernet, tcp-ns".to_owned(),
                "about 4 %",
                number(last, 1, " %"),
            ),
        ]
    }

    fn receivers(&self) -> Vec<Statement> {
        let cpu: Part = |one| one.server_cpu;
        let paper = ["grows, highest", "grows, second", "grows, lowest"];
        of_three("1 B, 64 KiB", paper, |path| {
            let first = self.at(1).and_then(|row| row.median(path, cpu));
            let last = self.largest().and_then(|row| row.median(path, cpu));
            let both = first.zip(last);
            cell(both, |(first, last)| format!("{first:.1}, {last:.1} %"))
        })
    }

    fn growth(&self) -> Vec<Statement> {
        let most = self.most_clients();
        let latency = |path, bytes, clients| self.at_both(bytes, clients)?.median(path, LATENCY);
        let one = |(_, path): &(&str, Path)| {
            let grown = |bytes| Some(latency(*path, bytes, most)? / latency(*path, bytes, 1)?);
            (
                format!("{most} clients over 1, 32 B and 8 KiB: {}", path.name()),
                "steep from 8 KB",
                format!(
                    "{}, {}",
                    number(grown(super::SMALL), 1, "x"),
                    number(grown(super::MEDIUM), 1, "x")
                ),
            )
        };
        THREE.iter().map(one).collect()
    }

    /// Latency of one path over another's, with one client and with the most.
    fn latencies(&self, paper: &'static str, of: Path, over: Path) -> Vec<Statement> {
        let first = self.0.iter().min_by_key(|row| row.clients);
        let one = first.map(|row| latency_ratio(row, paper, of, over));
        one.into_iter()
            .chain([self.last_latency(paper, of, over)])
            .collect()
    }

    fn last_latency(&self, paper: &'static str, of: Path, over: Path) -> Statement {
        let last = self.0.iter().max_by_key(|row| row.clients);
        last.map_or_else(
            || (String::new(), paper, "-".to_owned()),
            |row| latency_ratio(row, paper, of, over),
        )
    }

    fn streams(&self) -> Vec<Statement> {
        let many = |row: &&Row| row.clients >= MANY && row.bytes >= AHEAD_FROM;
        let rates = self.0.iter().filter(many);
        let rates = rates.filter_map(|row| row.median(Path::Carried, THROUGHPUT));
        let last = self.largest();
        let of_last = |part: Part, path| last.and_then(|row| row.median(path, part));
        let over = |path| last.and_then(|row| ratio(row, THROUGHPUT, Path::Carried, path));
        let at = last.map_or(0, |row| row.clients);
        let mut list = vec![
            (
                "from 1 KiB and 4 clients: shm".to_owned(),
                "6600 to 7600 Mbit/s",
                span(rates, 0, " Mbit/s"),
            ),
            (
                format!("64 KiB, {at} clients: shm"),
                "7853 Mbit/s (or 7653)",
                number(of_last(THROUGHPUT, Path::Carried), 0, " Mbit/s"),
            ),
            (
                "the same over tcp-ns".to_owned(),
                "7.8x",
                number(over(Path::TcpNs), 2, "x"),
            ),
            (
                "the same over tcp".to_owned(),
                "2.6x",
                number(over(Path::Tcp), 2, "x"),
            ),
        ];
        list.extend(of_three("server then", ["-", "-", "lowest"], |path| {
            number(of_last(|one| one.server_cpu, path), 1, " %")
        }));
        list
    }

    /// The best aggregate throughput.
    fn most(&self, paper: &'static str, path: Path) -> Statement {
        let rates = self.0.iter().filter_map(|row| row.median(path, THROUGHPUT));
        (
            format!("most of all clients together: {}", path.name()),
            paper,
            number(rates.reduce(f64::max), 0, " Mbit/s"),
        )
    }
}

fn ratio(row: &Row, part: Part, of: Path, over: Path) -> Option<f64> {
    Some(row.median(of, part)? / row.median(over, part)?)
}

fn latency_ratio(row: &Row, paper: &'static str, of: Path, over: Path) -> Statement {
    let clients = counted(row.clients, "client", "s");
    (
        format!("{clients}: latency of {} over {}", of.name(), over.name()),
        paper,
        number(ratio(row, LATENCY, of, over), 2, "x"),
    )
}
