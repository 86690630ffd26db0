//! The numbers of RELAX, and what of ours stands beside each.

use tsumuji_bench::plot::Line;
use tsumuji_bench::table::{cell, number};

use super::super::Statement;
use super::super::figure::Figure;
use crate::sweep::{Cell, Swept, slope};

/// Mbit/s at 200, 300, 1000, 1400 and 8900 (9000) bytes: kernel UDP and DPDK.
pub(super) const TABLE_2_1: [u32; 5] = [850, 1122, 3437, 4940, 7059];
pub(super) const TABLE_2_2: [u32; 5] = [2857, 4152, 9184, 9477, 9511];

/// What the paper says of a figure.
pub(super) fn statements(figure: Figure, all: &[Swept]) -> Vec<Statement> {
    match figure.name() {
        "relax-table3.1" => {
            let paper = ["0.7 GB", "2.9 GB", "6.7 GB", "11.9 GB", "18.6 GB"];
            let gigabytes = |cell: &Cell| cell.worker_bytes as f64 / f64::from(1 << 30);
            of_rows(all, "memory, ", paper, |cell| {
                format!("{:.2} GB", gigabytes(cell))
            })
        }
        "relax-table5.1" => {
            let paper = [
                "2.147 s",
                "8.589 s",
                "19.350 s",
                "2984 s (swaps)",
                "no memory",
            ];
            of_rows(all, "", paper, |cell| number(cell.mean_seconds(), 3, " s"))
        }
        "relax-fig5.3" | "relax-fig5.4" => elements(all, "120: 4.924 s", "1.45x"),
        "relax-fig5.9" => elements(all, "4: 4.404 s", "1.01x"),
        "relax-fig6.1" => links(all),
        "relax-table6.1" => rates(all),
        "relax-table6.2" => laps(all),
        "relax-fig5.5" | "relax-fig5.6" => slopes(all, &["-0.985"]),
        "relax-fig5.10" | "relax-fig5.11" => {
            let mut list = slopes(all, &["-0.993"]);
            list.extend(speed_ups(all));
            list
        }
        "relax-fig6.3" | "relax-fig6.4" => slopes(all, &["-0.985", "-0.993"]),
        "relax-fig6.5" => threads(all),
        "relax-fig5.2" | "relax-fig5.7" | "relax-fig5.8" | "relax-fig5.12" | "relax-fig5.13"
        | "relax-fig6.2" => growth(all),
        _ => Vec::new(),
    }
}

/// The paper's numbers of a figure that has them, to be drawn beside ours.
pub(super) fn lines(figure: Figure) -> Vec<Line> {
    let line =
        |name: &str, points| Line::new(format!("{name} (paper, n = 30000, 4 workers)"), points);
    let udp = line("UDP", [(1.0, 7.122), (120.0, 4.924)]);
    let dpdk = line("DPDK", [(1.0, 4.450), (4.0, 4.404)]);
    match figure.name() {
        "relax-fig5.3" | "relax-fig5.4" => vec![udp],
        "relax-fig5.9" => vec![dpdk],
        "relax-fig6.1" => vec![udp, dpdk],
        "relax-table5.1" => vec![Line::new(
            "one thread (paper)",
            [(10_000.0, 2.147), (20_000.0, 8.589), (30_000.0, 19.35)],
        )],
        _ => Vec::new(),
    }
}

fn at(swept: &Swept, value: u64) -> Option<f64> {
    let cell = swept.cells.iter().find(|cell| cell.value == value)?;
    cell.mean_seconds()
}

fn best(swept: &Swept) -> Option<(u64, f64)> {
    let cells = swept.cells.iter();
    cells
        .filter_map(|cell| Some((cell.value, cell.mean_seconds()?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

fn elements(all: &[Swept], best_of_paper: &'static str, ratio: &'static str) -> Vec<Statement> {
    let of = |swept: &Swept| {
        let best = best(swept);
        let over = at(swept, 1).zip(best).map(|(one, best)| one / best.1);
        [
            (
                format!("{}: best elements a datagram", swept.way),
                best_of_paper,
                cell(best, |(value, seconds)| format!("{value}: {seconds:.4} s")),
            ),
            (
                format!("{}: 1 element over the best", swept.way),
                ratio,
                number(over, 3, "x"),
            ),
        ]
    };
    all.iter().flat_map(of).collect()
}

fn named<'a>(all: &'a [Swept], way: &str) -> Option<&'a Swept> {
    all.iter().find(|swept| swept.way == way)
}

/// The paper's UDP.
const BROADCAST: &str = "udp+multicast";

/// By broadcast or by fan-out, measured or simulated: the paper's figures for UDP stand beside all of them.
fn is_udp(swept: &Swept) -> bool {
    swept.way.contains("udp")
}

fn links(all: &[Swept]) -> Vec<Statement> {
    let simulated = |swept: &&Swept| swept.way.starts_with("simulated udp");
    let Some(udp) = named(all, BROADCAST).or(all.iter().find(simulated)) else {
        return Vec::new();
    };
    let name = if simulated(&udp) { "udp" } else { BROADCAST };
    // With 4 clients and 30000 rows, and with 7 and 50000.
    let paper = if udp.way.ends_with("7 workers") {
        ["-15.3 %", "-40.1 %"]
    } else {
        ["-10.5 %", "-37.5 %"]
    };
    let less = |of: Option<f64>, than: Option<f64>| {
        cell(of.zip(than), |(of, than)| {
            format!("{:+.1} %", 100.0 * (of / than - 1.0))
        })
    };
    let mut list = Vec::new();
    for other in all.iter().filter(|swept| !is_udp(swept)) {
        let seconds = |swept| best(swept).map(|best| best.1);
        list.push((
            format!("{} against {name}, each at its best", other.way),
            paper[0],
            less(seconds(other), seconds(udp)),
        ));
        list.push((
            format!("{} against {name}, 1 element", other.way),
            paper[1],
            less(at(other, 1), at(udp, 1)),
        ));
    }
    list
}

fn slopes(all: &[Swept], paper: &[&'static str]) -> Vec<Statement> {
    let of = |swept: &Swept| {
        let paper = if is_udp(swept) {
            paper.first()
        } else {
            paper.last()
        };
        (
            format!("{}: slope of log time over log workers", swept.way),
            paper.copied().unwrap_or("-"),
            number(slope(&up_to(swept, PAPER_MACHINES)), 3, ""),
        )
    };
    all.iter().map(of).collect()
}

/// Most workers of the paper; its slopes and laps are of no more.
const PAPER_MACHINES: u64 = 7;

fn up_to(swept: &Swept, most: u64) -> Swept {
    let cells = swept.cells.iter().filter(|cell| cell.value <= most);
    Swept {
        way: swept.way.clone(),
        cells: cells.cloned().collect(),
    }
}

/// 1998's question, of lines over workers: up to how many hosts does the time still fall?
pub(super) fn hosts(all: &[Swept]) -> Vec<Statement> {
    let of = |swept: &Swept| {
        let tried = swept.cells.iter().filter(|cell| cell.missing.is_none());
        let most = tried.map(|cell| cell.value).max();
        (
            format!("{}: hosts until the time rises", swept.way),
            "-",
            cell(best(swept).zip(most), |((hosts, _), most)| {
                format!("{hosts} of {most}")
            }),
        )
    };
    all.iter().map(of).collect()
}

fn speed_ups(all: &[Swept]) -> Vec<Statement> {
    let of = |swept: &Swept| {
        [(2, "2.02x"), (3, "2.95x"), (4, "3.97x")].map(|(workers, paper)| {
            let times = at(swept, 1)
                .zip(at(swept, workers))
                .map(|(one, many)| one / many);
            (
                format!("{}: speed-up of {workers} workers", swept.way),
                paper,
                number(times, 3, "x"),
            )
        })
    };
    all.iter().flat_map(of).collect()
}

fn rates(all: &[Swept]) -> Vec<Statement> {
    let of = |swept: &Swept| {
        let paper = if is_udp(swept) {
            ["37 Mbit/s", "11 Mbit/s"]
        } else {
            ["67 Mbit/s", "10 Mbit/s"]
        };
        let cells = swept.cells.iter().zip(paper);
        let told = cells.map(|(cell, paper)| {
            let rate = number(cell.mean_megabits(), 3, " Mbit/s");
            (
                format!("{}: {} elements, on the wire", swept.way, cell.value),
                paper,
                rate,
            )
        });
        told.collect::<Vec<_>>()
    };
    all.iter().flat_map(of).collect()
}

fn laps(all: &[Swept]) -> Vec<Statement> {
    let of = |swept: &Swept| {
        let paper = if is_udp(swept) { "23.0" } else { "21.5" };
        // As many workers as the paper's, where there are more; otherwise the most. Where nothing was found, neither.
        let found = || (swept.cells.iter()).filter(|cell| cell.mean_laps().is_some());
        let few = found().rfind(|cell| cell.value <= PAPER_MACHINES);
        let cell = few.or_else(|| found().next_back()).or(swept.cells.last());
        (
            format!(
                "{}: laps, {} workers",
                swept.way,
                cell.map_or(0, |cell| cell.value)
            ),
            paper,
            number(cell.and_then(Cell::mean_laps), 3, ""),
        )
    };
    all.iter().map(of).collect()
}

/// `paper`: of once, twice … five times the first size, of which some may be left out.
fn of_rows(
    all: &[Swept],
    what: &str,
    paper: [&'static str; 5],
    told: impl Fn(&Cell) -> String,
) -> Vec<Statement> {
    let cells = || all.iter().flat_map(|swept| &swept.cells);
    let first = cells().next().map_or(1, |cell| cell.value.max(1));
    let one = |cell: &Cell| {
        let rows = cell.value;
        let times = (rows as f64 / first as f64).round() as usize;
        let paper = paper.get(times.checked_sub(1)?)?;
        let what = format!("{what}{rows} rows (the paper's: {}0000)", times);
        Some((what, *paper, told(cell)))
    };
    cells().filter_map(one).collect()
}

fn growth(all: &[Swept]) -> Vec<Statement> {
    let of = |swept: &Swept| {
        (
            format!("{}: log-log slope over rows", swept.way),
            "straight; work: 2",
            number(slope(swept), 3, ""),
        )
    };
    all.iter().map(of).collect()
}

fn threads(all: &[Swept]) -> Vec<Statement> {
    let Some(threads) = named(all, "threads") else {
        return Vec::new();
    };
    let middle = threads.cells.get(threads.cells.len() / 2);
    let rows = middle.map_or(0, |cell| cell.value);
    let of = |swept: &Swept| {
        let ratio = at(threads, rows).zip(at(swept, rows));
        let ratio = ratio.map(|(threads, other)| 100.0 * (threads / other - 1.0));
        (
            format!("threads against {}, {rows} rows", swept.way),
            "+32.6 % (DPDK)",
            cell(ratio, |ratio| format!("{ratio:+.1} %")),
        )
    };
    all.iter()
        .filter(|swept| swept.way != "threads")
        .map(of)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::Computed;

    /// The paper's number of a size stands beside ours of it, also where sizes are left out.
    #[test]
    fn sizes_are_paired() {
        let none = || Err("left out".to_owned());
        let cells = [500, 1500, 2500].map(|rows| Cell::computed(rows, none()));
        let swept = Swept {
            way: "one thread".to_owned(),
            cells: cells.to_vec(),
        };
        let paper = ["a", "b", "c", "d", "e"];
        let told = of_rows(&[swept], "", paper, |_| "-".to_owned());
        let pairs: Vec<_> = told
            .iter()
            .map(|(what, paper, _)| (&what[..], *paper))
            .collect();
        let of = [
            "500 rows (the paper's: 10000)",
            "1500 rows (the paper's: 30000)",
            "2500 rows (the paper's: 50000)",
        ];
        assert_eq!(pairs, [(of[0], "a"), (of[1], "c"), (of[2], "e")]);
    }

    /// Laps are of the last number of workers up to the paper's that has a result, whatever was left out behind it.
    #[test]
    fn laps_are_of_results() {
        let of = |cells: &[(u64, Option<f64>)]| {
            let cells = cells.iter().map(|(workers, laps)| {
                let found = laps.map(|laps| Computed {
                    seconds: 1.0,
                    laps,
                    wire_bits_per_second: 0.0,
                });
                Cell::computed(*workers, found.ok_or("left out".to_owned()))
            });
            let swept = Swept {
                way: "simulated udp".to_owned(),
                cells: cells.collect(),
            };
            let (what, paper, ours) = laps(&[swept]).remove(0);
            assert_eq!(paper, "23.0");
            (what, ours)
        };
        let told = |workers: u64, ours: &str| {
            let what = format!("simulated udp: laps, {workers} workers");
            (what, ours.to_owned())
        };
        let left_out = [(4, Some(21.0)), (7, None), (16, Some(25.0))];
        assert_eq!(of(&left_out), told(4, "21.000"));
        assert_eq!(of(&[(4, Some(21.0)), (7, Some(22.0))]), told(7, "22.000"));
        assert_eq!(of(&[(7, None), (16, Some(25.0))]), told(16, "25.000"));
        let all_more = [(16, Some(25.0)), (64, None)];
        assert_eq!(of(&all_more), told(16, "25.000"));
        assert_eq!(of(&[(4, None), (7, None)]), told(7, "-"));
    }
}
