//! One quantity varied: runs of `tsumuji solve` at each of its values, by several ways in turn, each in a process of its own.
//!
//! Used by `solve --sweep` (one way: the command itself) and by `paper relax-…` (threads and links beside each other, and simulated ones). Times are
//! taken twice: as the paper RELAX takes them (the verification that passes left out, failed ones counted; means), and in full.

use std::fmt::Write as _;

use anyhow::{bail, ensure};
use serde::Serialize;
use serde_json::Value;
use tsumuji_bench::compare::Listener;
use tsumuji_bench::plot::{self, Line, PlotError};
use tsumuji_bench::versus::order;
use tsumuji_bench::{stop, table};

use crate::interrupt::Interrupted;
use crate::talk::Talk;

/// Most values, and runs at each.
const VALUES_MOST: usize = 100;

/// What is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Variable {
    Elements,
    Workers,
    Rows,
    /// Cores of a host: of one worker, or with one worker each.
    Threads,
}

impl Variable {
    /// The name in `--sweep` and in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Elements => "elements",
            Self::Workers => "workers",
            Self::Rows => "n",
            Self::Threads => "threads",
        }
    }
}

/// `--sweep elements=1,4,20`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sweep {
    pub(crate) variable: Variable,
    pub(crate) values: Vec<u64>,
}

impl std::str::FromStr for Sweep {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        const FORMS: &str =
            "accepted are elements=1,4,20, workers=1,2,4, threads=1,2,4 and n=1000,2000";
        let Some((name, values)) = text.split_once('=') else {
            bail!("there is no '='; {FORMS}");
        };
        let all = [
            Variable::Elements,
            Variable::Workers,
            Variable::Rows,
            Variable::Threads,
        ];
        let Some(variable) = all.into_iter().find(|variable| variable.name() == name) else {
            bail!("'{name}' cannot be varied; {FORMS}");
        };
        let values: Option<Vec<u64>> = values
            .split(',')
            .map(|value| value.parse().ok().filter(|value| *value > 0))
            .collect();
        match values {
            Some(values) if values.len() <= VALUES_MOST => Ok(Self { variable, values }),
            Some(_) => bail!("more than {VALUES_MOST} values"),
            None => bail!("values are whole numbers above 0, separated by commas; {FORMS}"),
        }
    }
}

/// Result of a simulated run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Computed {
    /// As the paper takes them.
    pub(crate) seconds: f64,
    /// Mean laps of the workers.
    pub(crate) laps: f64,
    /// On the wire while iterating.
    pub(crate) wire_bits_per_second: f64,
}

/// The runs at one value by one way.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Cell {
    /// What was varied.
    pub(crate) value: u64,
    /// Seconds as the paper takes them, of each run.
    pub(crate) seconds: Vec<f64>,
    /// Seconds of all phases.
    pub(crate) all_seconds: Vec<f64>,
    /// Mean laps of the workers.
    pub(crate) laps: Vec<f64>,
    /// On the wire while iterating.
    pub(crate) wire_bits_per_second: Vec<f64>,
    /// Largest memory of a worker.
    pub(crate) worker_bytes: u64,
    /// Why there is none.
    pub(crate) missing: Option<String>,
}

impl Cell {
    fn new(value: u64) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }

    /// A run that was computed: nothing was loaded, and no worker had memory.
    pub(crate) fn computed(value: u64, found: Result<Computed, String>) -> Self {
        let mut cell = Self::new(value);
        match found {
            Ok(found) => {
                cell.seconds.push(found.seconds);
                cell.laps.push(found.laps);
                cell.wire_bits_per_second.push(found.wire_bits_per_second);
            }
            Err(reason) => cell.missing = Some(reason),
        }
        cell
    }

    fn is_computed(&self) -> bool {
        self.all_seconds.is_empty()
    }

    fn take(&mut self, found: Result<Value, String>) {
        if self.missing.is_some() {
            return;
        }
        match found.and_then(|run| self.record(&run).ok_or_else(|| reason(&run))) {
            Ok(()) => {}
            Err(reason) => self.missing = Some(reason),
        }
    }

    fn record(&mut self, run: &Value) -> Option<()> {
        if !run["converged"].as_bool()? {
            return None;
        }
        let phase = |name: &str| run["seconds"][name].as_f64();
        let (iterate, verify) = (phase("iterate")?, phase("verify")?);
        let laps: Vec<f64> = (run["laps"].as_array()?.iter())
            .filter_map(Value::as_f64)
            .collect();
        self.seconds.push(iterate + verify - phase("verify_last")?);
        self.all_seconds
            .push(phase("load")? + phase("distribute")? + iterate + verify);
        self.laps.push(mean(&laps)?);
        self.wire_bits_per_second
            .push(run["wire_bits_per_second"].as_f64().unwrap_or(0.0));
        let bytes = run["peak_rss_bytes"].as_array()?.iter();
        let bytes = bytes.filter_map(Value::as_u64).max().unwrap_or(0);
        self.worker_bytes = self.worker_bytes.max(bytes);
        Some(())
    }

    /// Mean seconds as the paper takes them.
    pub(crate) fn mean_seconds(&self) -> Option<f64> {
        self.missing
            .is_none()
            .then(|| mean(&self.seconds))
            .flatten()
    }

    /// Mean laps.
    pub(crate) fn mean_laps(&self) -> Option<f64> {
        self.missing.is_none().then(|| mean(&self.laps)).flatten()
    }

    /// Mean rate on the wire, Mbit/s.
    pub(crate) fn mean_megabits(&self) -> Option<f64> {
        let mean = mean(&self.wire_bits_per_second)? / 1e6;
        self.missing.is_none().then_some(mean)
    }

    /// Half of the span between the fastest and the slowest run, in percent of the mean.
    fn spread_percent(&self) -> f64 {
        let least = self.seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.seconds.iter().copied().fold(0.0, f64::max);
        mean(&self.seconds).map_or(0.0, |mean| 50.0 * (most - least) / mean)
    }
}

fn reason(run: &Value) -> String {
    let why = run["explanation"].as_str();
    why.unwrap_or("it ended without a result").to_owned()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// All runs of one way.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Swept {
    /// Its name.
    pub(crate) way: String,
    /// Its runs, value by value.
    pub(crate) cells: Vec<Cell>,
}

/// Runs every way at every value, `repeats` times, all in turn. `measure` runs one.
pub(crate) fn measure(
    ways: &[String],
    sweep: &Sweep,
    repeats: u64,
    talk: &mut Talk,
    measure: &mut dyn FnMut(usize, u64) -> Result<Value, String>,
) -> anyhow::Result<Vec<Swept>> {
    let mut all: Vec<Swept> = ways
        .iter()
        .map(|way| Swept {
            way: way.clone(),
            cells: sweep.values.iter().map(|value| Cell::new(*value)).collect(),
        })
        .collect();
    for (place, value) in sweep.values.iter().enumerate() {
        for round in 0..repeats as usize {
            for way in order(round, ways.len()) {
                let cell = &mut all[way].cells[place];
                if cell.missing.is_none() {
                    cell.take(measure(way, *value));
                }
                ensure!(!stop::is_wanted(), Interrupted);
            }
        }
        for swept in &all {
            let cell = &swept.cells[place];
            let told = match (&cell.missing, cell.mean_seconds()) {
                (None, Some(seconds)) => format!("{seconds:.4} s +-{:.0} %", cell.spread_percent()),
                (missing, _) => format!("not measured: {}", missing.as_deref().unwrap_or("-")),
            };
            talk.say(&format!(
                "{}, {} {value}: {told}",
                swept.way,
                sweep.variable.name()
            ));
        }
    }
    Ok(all)
}

/// Slope of log seconds over log value, by least squares.
pub(crate) fn slope(swept: &Swept) -> Option<f64> {
    let points: Vec<(f64, f64)> = (swept.cells.iter())
        .filter_map(|cell| Some(((cell.value as f64).ln(), cell.mean_seconds()?.ln())))
        .collect();
    let n = points.len() as f64;
    if points.len() < 2 {
        return None;
    }
    let (x, y) = points
        .iter()
        .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    let (x, y) = (x / n, y / n);
    let above: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let below: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    (below > 0.0).then(|| above / below)
}

/// A way's name in a table: without its driver, if no other way is called so.
fn short<'a>(way: &'a str, all: &[Swept]) -> &'a str {
    fn link(way: &str) -> &str {
        way.split_once(':').map_or(way, |(link, _)| link)
    }
    let same = all.iter().filter(|other| link(&other.way) == link(way));
    if same.count() > 1 { way } else { link(way) }
}

/// Seconds as a table has room for them.
fn digits(seconds: f64) -> String {
    if seconds < 100.0 {
        format!("{seconds:.4}")
    } else {
        format!("{seconds:.2}")
    }
}

/// The table of all runs, which fits a terminal.
pub(crate) fn table(variable: Variable, all: &[Swept]) -> String {
    let heads = format!(
        "by | {} | seconds | +-% | in all | speed-up | laps | Mbit/s | MB",
        variable.name()
    );
    let mut rows = table::headed(&heads);
    for swept in all {
        let one = swept.cells.iter().find(|cell| cell.value == 1);
        let alone = one.and_then(Cell::mean_seconds);
        for cell in swept.cells.iter().filter(|cell| cell.missing.is_none()) {
            let Some(seconds) = cell.mean_seconds() else {
                continue;
            };
            let speed_up = alone.map(|alone| alone / seconds);
            rows.push([
                short(&swept.way, all).to_owned(),
                cell.value.to_string(),
                digits(seconds),
                format!("{:.0}", cell.spread_percent()),
                mean(&cell.all_seconds).map_or_else(String::new, digits),
                match (variable, speed_up) {
                    (Variable::Workers | Variable::Threads, Some(times)) => format!("{times:.2}x"),
                    _ => "-".to_owned(),
                },
                cell.mean_laps()
                    .map_or_else(String::new, |laps| format!("{laps:.1}")),
                cell.mean_megabits()
                    .map_or_else(String::new, |rate| format!("{rate:.1}")),
                format!("{:.0}", cell.worker_bytes as f64 / 1e6),
            ]);
        }
    }
    let mut text = table::aligned(&rows);
    let _ = writeln!(text, "MB: largest memory of a worker");
    for swept in all {
        if let (Variable::Workers | Variable::Rows, Some(slope)) = (variable, slope(swept)) {
            let _ = writeln!(
                text,
                "{}: slope of log seconds over log {} {slope:.3}",
                swept.way,
                variable.name()
            );
        }
    }
    text
}

/// Every number as CSV; what a simulated run has not is left empty.
pub(crate) fn csv(variable: Variable, all: &[Swept]) -> String {
    let mut text = format!(
        "way,{},run,seconds,all_seconds,laps,wire_bits_per_second,worker_bytes\n",
        variable.name()
    );
    for swept in all {
        let way = table::quoted(&swept.way);
        for cell in &swept.cells {
            let bytes = (!cell.is_computed()).then_some(cell.worker_bytes);
            let bytes = bytes.map_or_else(String::new, |bytes| bytes.to_string());
            for run in 0..cell.seconds.len() {
                let in_all = cell.all_seconds.get(run);
                let in_all = in_all.map_or_else(String::new, |seconds| seconds.to_string());
                let _ = writeln!(
                    text,
                    "{way},{},{run},{},{in_all},{},{},{bytes}",
                    cell.value, cell.seconds[run], cell.laps[run], cell.wire_bits_per_second[run],
                );
            }
        }
    }
    text
}

/// The means as lines of a plot, and lines of the paper's numbers beside them.
pub(crate) fn draw(
    title: &str,
    variable: Variable,
    all: &[Swept],
    paper: &[Line],
) -> Result<String, PlotError> {
    let point = |cell: &Cell| Some((cell.value as f64, cell.mean_seconds()?));
    let mut lines: Vec<Line> = (all.iter())
        .map(|swept| Line::new(&swept.way, swept.cells.iter().filter_map(point)))
        .collect();
    lines.extend(paper.iter().cloned());
    plot::over_counts(title, variable.name(), "seconds", &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(iterate: f64) -> Value {
        json!({
            "converged": true,
            "seconds": { "load": 1.0, "distribute": 2.0, "iterate": iterate, "verify": 0.5, "verify_last": 0.3 },
            "laps": [20, 22],
            "wire_bits_per_second": 2e6,
            "peak_rss_bytes": [3, 9],
        })
    }

    /// The passing verification is left out, failed ones are counted; all phases are in the other number.
    #[test]
    fn times_are_the_papers_and_ours() {
        let mut cell = Cell::new(4);
        cell.take(Ok(run(10.0)));
        cell.take(Ok(run(12.0)));
        let near = |found: Option<f64>, wanted: f64| (found.unwrap() - wanted).abs() < 1e-9;
        assert!(near(cell.mean_seconds(), 11.2) && near(mean(&cell.all_seconds), 14.5));
        assert!(near(cell.mean_laps(), 21.0) && near(cell.mean_megabits(), 2.0));
        assert_eq!(cell.worker_bytes, 9);
        cell.take(Err("no such link".into()));
        assert_eq!(cell.mean_seconds(), None);
    }

    /// A simulated run stands in the same CSV, without what only a measurement has.
    #[test]
    fn simulated_runs_have_no_memory() {
        let found = Computed {
            seconds: 0.5,
            laps: 21.0,
            wire_bits_per_second: 3e6,
        };
        let left_out = Cell::computed(16, Err("left out".into()));
        assert_eq!(left_out.mean_seconds(), None);
        let swept = Swept {
            way: "simulated udp, 1 Gbit/s".into(),
            cells: vec![Cell::computed(7, Ok(found)), left_out],
        };
        let rows = csv(Variable::Workers, &[swept]);
        let wanted = "\"simulated udp, 1 Gbit/s\",7,0,0.5,,21,3000000,";
        assert_eq!(rows.lines().next_back(), Some(wanted), "{rows}");
    }

    /// A run that did not converge is no measurement, and says why.
    #[test]
    fn failures_are_told() {
        let mut cell = Cell::new(1);
        cell.take(Ok(
            json!({ "converged": false, "explanation": "stopped after 5 laps" }),
        ));
        assert_eq!(cell.missing.as_deref(), Some("stopped after 5 laps"));
    }

    /// Halved time at doubled workers is a slope of −1.
    #[test]
    fn slopes_are_of_logarithms() {
        let cells = [(1, 8.0), (2, 4.0), (4, 2.0)].map(|(value, seconds)| {
            let mut cell = Cell::new(value);
            cell.take(Ok(run(seconds - 0.2)));
            cell
        });
        let swept = Swept {
            way: "udp".into(),
            cells: cells.to_vec(),
        };
        assert!((slope(&swept).unwrap() + 1.0).abs() < 1e-12);
        let text = table(Variable::Workers, &[swept]);
        assert!(text.contains("4.00x") && text.contains("slope"), "{text}");
    }

    /// The table fits a terminal whatever is varied and by whatever link; of two drivers of one link both are named.
    #[test]
    fn tables_fit() {
        let mut cell = Cell::new(50_000);
        let found = json!({
            "converged": true,
            "seconds": { "load": 1.0, "distribute": 20.0, "iterate": 2900.0, "verify": 90.0, "verify_last": 30.0 },
            "laps": [123],
            "wire_bits_per_second": 9.999e9,
            "peak_rss_bytes": [18_600_000_000_u64],
        });
        cell.take(Ok(found));
        let of = |ways: &[&str]| -> Vec<Swept> {
            let swept = |way: &&str| Swept {
                way: (*way).to_owned(),
                cells: vec![cell.clone()],
            };
            ways.iter().map(swept).collect()
        };
        let all = of(&["udp+multicast", "packet", "dpdk:net_af_packet"]);
        for variable in [
            Variable::Elements,
            Variable::Workers,
            Variable::Rows,
            Variable::Threads,
        ] {
            let text = table(variable, &all);
            assert!(
                text.contains("\ndpdk  ") && text.contains("2960.00"),
                "{text}"
            );
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
        let text = table(
            Variable::Rows,
            &of(&["dpdk:net_af_packet", "dpdk:net_memif"]),
        );
        for way in ["dpdk:net_af_packet  ", "dpdk:net_memif  "] {
            assert!(text.contains(way), "{text}");
        }
    }

    /// What is varied is read, and everything else refused with the forms.
    #[test]
    fn sweeps_parse() {
        let sweep: Sweep = "elements=1,4,20".parse().unwrap();
        assert_eq!(
            (sweep.variable, sweep.values),
            (Variable::Elements, vec![1, 4, 20])
        );
        for text in ["elements", "colour=1", "n=", "n=0", "workers=1,x"] {
            let error = text.parse::<Sweep>().unwrap_err().to_string();
            assert!(error.contains("accepted"), "{text}: {error}");
        }
    }
}
