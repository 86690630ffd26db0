//! The tables and figures of RELAX: asynchronous relaxation over elements in a datagram, workers, and rows, by threads and over each link.
//!
//! Measured by `tsumuji solve` (tables 2.1 and 2.2 by `tsumuji bench drop`) in processes of their own. The paper's 30,000 rows and four workers are
//! scaled to what was asked for: `--rows` and `--nodes`. What needs more machines than there are is simulated, and marked so (`simulated`).

mod facts;
mod simulated;

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::table;
use tsumuji_testbed::Testbed;

use super::figure::Figure;
use super::l2rtc::{child, dropped, median};
use super::{Args, Statement, every_other, statements_as_json, statements_as_table};
use crate::Outcome;
use crate::bench::short;
use crate::output::Files;
use crate::sweep::{self, Sweep, Swept, Variable};
use crate::talk::Talk;
pub(super) use simulated::Simulate;
use simulated::{Simulated, Simulation};

/// The paper's number of elements in a datagram and of workers; its rows are 30,000.
const PAPER_ELEMENTS: u64 = 20;
const PAPER_WORKERS: usize = 4;
const REPEATS: u64 = 5;
/// Default rows: a lap takes some milliseconds of two cores.
const ROWS: u64 = 6_000;
const FEW_ROWS: u64 = 1_500;
/// Jumbo frames, as in the paper's figure 5.3.
const JUMBO_BYTES: u32 = 9_000;
/// Rows of the paper's figures, of 30,000.
const PARTS: [(u64, u64); 5] = [(1, 3), (2, 3), (1, 1), (4, 3), (5, 3)];
const MANY_ELEMENTS: [u64; 12] = [1, 2, 4, 10, 20, 40, 80, 120, 180, 400, 800, 1117];
const FEW_ELEMENTS: [u64; 9] = [1, 2, 4, 8, 12, 20, 40, 120, 180];
const FEWEST_ELEMENTS: [u64; 6] = [1, 2, 4, 10, 20, 25];
/// Sizes of tables 2.1 and 2.2.
const PACKET_BYTES: [u16; 5] = [200, 300, 1000, 1400, 8900];

/// A way to run the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Single,
    Threads,
    /// Between hosts of a testbed.
    Link(&'static str),
}

/// The paper's UDP: an update is one datagram, which all others receive.
const UDP: Way = Way::Link("udp+multicast");
/// One datagram to each other node.
const FAN_OUT: Way = Way::Link("udp");
/// The paper's DPDK: what drives a card, or a queue of it, without the kernel's protocols.
const BYPASS: [Way; 3] = [
    Way::Link("packet"),
    Way::Link("xdp"),
    Way::Link("dpdk:net_af_packet"),
];

impl Way {
    fn link(self) -> Option<&'static str> {
        match self {
            Self::Link(link) => Some(link),
            Self::Single | Self::Threads => None,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Single => "one thread".to_owned(),
            Self::Threads => "threads".to_owned(),
            Self::Link(link) => link.to_owned(),
        }
    }
}

/// An experiment.
struct Plan {
    variable: Variable,
    values: Vec<u64>,
    ways: Vec<Way>,
    /// Where they are not varied.
    rows: u64,
    workers: usize,
    elements: u64,
    repeats: u64,
}

impl Plan {
    /// Rows, workers and elements of the run at this value.
    fn at(&self, value: u64) -> (u64, usize, u64) {
        match self.variable {
            Variable::Elements => (self.rows, self.workers, value),
            Variable::Workers | Variable::Threads => (self.rows, value as usize, self.elements),
            Variable::Rows => (value, self.workers, self.elements),
        }
    }

    /// Longest frame between hosts.
    fn frame_bytes(&self) -> u32 {
        let is_jumbo = self.variable == Variable::Elements && self.values.iter().any(|e| *e > 180);
        if is_jumbo { JUMBO_BYTES } else { 1500 }
    }
}

/// Runs the command.
pub(super) fn run(figure: Figure, args: &Args) -> Outcome {
    if matches!(figure.name(), "relax-table2.1" | "relax-table2.2") {
        return transfer_rates(figure, args);
    }
    args.check_taken(
        figure,
        &["--rows", "--nodes", "--simulate", "--link", "--rounds", "--csv", "--plot"],
        "takes --rows, --nodes (workers), --simulate, --link, --rounds, --quick, --csv, --plot and --json",
    )?;
    let plan = plan(figure, args)?;
    let asked = args.simulate.as_ref().filter(|asked| !asked.is_none());
    ensure!(
        asked.is_none() || plan.ways.iter().any(|way| way.link().is_some()),
        "--simulate: {} has no machines beside this one",
        figure.name()
    );
    ensure!(
        asked.is_none() || plan.ways.iter().any(|way| *way != FAN_OUT),
        "--simulate: --link udp is not simulated; udp+multicast is, where one datagram reaches all"
    );
    let files = Files::of(args.csv.as_ref(), args.plot.as_ref())?;
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("the paper's: Core i5-9600K, i5-8400 and i7-7700, X540-AT2 10 GbE, DPDK 2.1; 1 judge and 4 (7) workers, n = 30000, means of five runs");
    let contended = if shares_cores(plan.workers) {
        "; judge and workers share cores, so a worker receives and computes by one thread (--executor rtc)"
    } else {
        ""
    };
    talk.say(&format!(
        "{}; dense systems, {} rows, {} elements in a datagram, {} workers where these are not varied, {} runs each in turn{contended}",
        figure.heading(),
        plan.rows,
        plan.elements,
        plan.workers,
        plan.repeats
    ));
    let mut all = swept(&plan, &mut talk)?;
    talk.say(&sweep::table(plan.variable, &all));
    let wanted = (args.simulate.as_ref(), args.quick);
    let simulation = simulated::run(&plan, wanted, &all, &mut talk)?;
    for text in simulation.text(&plan) {
        talk.say(&text);
    }
    let mut statements = facts::statements(figure, &all);
    statements.extend(simulated_statements(figure, &simulation));
    if !statements.is_empty() {
        talk.say(&statements_as_table(&statements, "ours"));
    }
    talk.say("seconds: iterating, and verifications that failed; the one that passed is left out, as in the paper. In all: loading, distributing and every verification, too");
    let measured = all.clone();
    all.extend(simulation.swept());
    let written = files.write(
        || sweep::csv(plan.variable, &all),
        || sweep::draw(figure.heading(), plan.variable, &all, &facts::lines(figure)),
    );
    let beside = statements_as_json(&statements);
    talk.end_with_files(json!({
        "figure": figure.name(), "title": figure.title(), "machine": machine, "rows": plan.rows, "workers": plan.workers,
        "elements": plan.elements, "varied": plan.variable.name(), "results": measured, "simulated": simulation.json(&plan),
        "beside": beside,
    }), written)
}

/// What stands beside the paper's numbers, of the lines that are simulated under its conditions: 10 Gbit/s; as many machines, where they are not varied.
fn simulated_statements(figure: Figure, simulation: &Simulation) -> Vec<Statement> {
    let of = |workers: Option<u64>| -> Vec<Swept> {
        let lines = simulation.lines.iter();
        let is_papers = |line: &&Simulated| {
            line.conditions.workers == workers
                && line.conditions.gigabits_per_second == simulated::RATES[0]
        };
        lines
            .filter(is_papers)
            .map(|line| line.swept.clone())
            .collect()
    };
    let over_workers = of(None);
    if !over_workers.is_empty() {
        let mut list = facts::statements(figure, &over_workers);
        list.extend(facts::hosts(&over_workers));
        return list;
    }
    let [four, seven] = simulated::MACHINES.map(|workers| of(Some(workers)));
    let mut list = facts::statements(figure, &four);
    if figure.name() == "relax-fig6.1" {
        list.extend(facts::statements(figure, &seven));
    }
    list
}

fn plan(figure: Figure, args: &Args) -> anyhow::Result<Plan> {
    let rows = args
        .rows
        .unwrap_or(if args.quick { FEW_ROWS } else { ROWS });
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let asked: Vec<usize> = args.nodes.iter().map(|nodes| usize::from(*nodes)).collect();
    let usual = cores.clamp(1, PAPER_WORKERS);
    let most = asked.iter().copied().max().unwrap_or(usual);
    let both_udp = || vec![UDP, FAN_OUT];
    let all_links: Vec<Way> = both_udp().into_iter().chain(BYPASS).collect();
    let (variable, values, ways) = match figure.name() {
        "relax-table3.1" | "relax-table5.1" => (Variable::Rows, parts_of(rows), vec![Way::Single]),
        "relax-fig5.2" => (Variable::Rows, parts_of(rows), vec![Way::Threads]),
        "relax-fig5.3" => (Variable::Elements, MANY_ELEMENTS.to_vec(), both_udp()),
        "relax-fig5.4" => (Variable::Elements, FEW_ELEMENTS.to_vec(), both_udp()),
        "relax-fig5.5" | "relax-fig5.6" => (Variable::Workers, Vec::new(), both_udp()),
        "relax-fig5.7" | "relax-fig5.8" => (Variable::Rows, parts_of(rows), both_udp()),
        "relax-fig5.9" => (Variable::Elements, FEW_ELEMENTS.to_vec(), BYPASS.to_vec()),
        "relax-fig5.10" | "relax-fig5.11" => (Variable::Workers, Vec::new(), BYPASS.to_vec()),
        "relax-fig5.12" | "relax-fig5.13" => (Variable::Rows, parts_of(rows), BYPASS.to_vec()),
        "relax-fig6.1" => (Variable::Elements, FEWEST_ELEMENTS.to_vec(), all_links),
        "relax-table6.1" => (Variable::Elements, vec![1, PAPER_ELEMENTS], all_links),
        "relax-fig6.2" => (Variable::Rows, parts_of(rows), all_links),
        "relax-fig6.3" | "relax-fig6.4" | "relax-table6.2" => {
            (Variable::Workers, Vec::new(), all_links)
        }
        "relax-fig6.5" => {
            let ways = std::iter::once(Way::Threads).chain(all_links).collect();
            (Variable::Rows, parts_of(rows), ways)
        }
        _ => unreachable!("other papers have rooms of their own"),
    };
    let values = match variable {
        Variable::Workers if asked.is_empty() => (1..=usual as u64).collect(),
        Variable::Workers => asked.iter().map(|workers| *workers as u64).collect(),
        _ if args.quick => every_other(values),
        _ => values,
    };
    let ways: Vec<Way> = match args.link {
        None => ways,
        Some(link) => {
            let name = link.to_string();
            let kept: Vec<Way> = ways
                .iter()
                .copied()
                .filter(|way| way.name() == name)
                .collect();
            if kept.is_empty() {
                let names: Vec<String> = ways.iter().map(|way| way.name()).collect();
                bail!("--link {name}: {} has {}", figure.name(), names.join(", "));
            }
            kept
        }
    };
    Ok(Plan {
        variable,
        values,
        ways,
        rows,
        workers: most,
        elements: PAPER_ELEMENTS,
        repeats: args.rounds(REPEATS),
    })
}

/// The paper's sizes, of which 30,000 is the third.
fn parts_of(rows: u64) -> Vec<u64> {
    PARTS.iter().map(|(part, of)| rows * part / of).collect()
}

/// Hosts files of a testbed with the judge and a number of workers.
struct Hosts {
    testbed: Testbed,
    folder: tempfile::TempDir,
}

impl Hosts {
    fn up(workers: usize, mtu: u32) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("a folder for hosts files")?;
        let testbed = testbed(workers + 1, None, mtu)?;
        Ok(Self { testbed, folder })
    }

    /// The first nodes of the testbed's file.
    fn file(&self, workers: usize) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(format!("{workers}.toml"));
        if path.exists() {
            return Ok(path);
        }
        let text = std::fs::read_to_string(self.testbed.hosts_file())?;
        std::fs::write(&path, first_nodes(&text, workers + 1)?)?;
        Ok(path)
    }
}

/// A hosts file with the first `count` nodes of `text`.
fn first_nodes(text: &str, count: usize) -> anyhow::Result<String> {
    let mut file: toml::Table = toml::from_str(text)?;
    if let Some(toml::Value::Array(nodes)) = file.get_mut("node") {
        nodes.truncate(count);
    }
    Ok(toml::to_string(&file)?)
}

fn swept(plan: &Plan, talk: &mut Talk) -> anyhow::Result<Vec<Swept>> {
    let between = plan.ways.iter().any(|way| matches!(way, Way::Link(_)));
    let most = match plan.variable {
        Variable::Workers => plan.values.iter().copied().max().unwrap_or(1) as usize,
        _ => plan.workers,
    };
    let hosts = between.then(|| Hosts::up(most, plan.frame_bytes()));
    let hosts = hosts.transpose().unwrap_or_else(|error| {
        talk.say(&format!("without links between hosts: no testbed: {error}"));
        None
    });
    let names: Vec<String> = plan.ways.iter().map(|way| way.name()).collect();
    let sweep = Sweep {
        variable: plan.variable,
        values: plan.values.clone(),
    };
    let mut measure = |way: usize, value: u64| one(plan.ways[way], plan.at(value), hosts.as_ref());
    let all = sweep::measure(&names, &sweep, plan.repeats, talk, &mut measure);
    if let Some(hosts) = hosts {
        hosts.testbed.down()?;
    }
    all
}

/// One run.
fn one(
    way: Way,
    (rows, workers, elements): (u64, usize, u64),
    hosts: Option<&Hosts>,
) -> Result<Value, String> {
    let system = format!("dense:{rows}");
    let (count, elements) = (workers.to_string(), elements.to_string());
    let mut words = vec![
        "solve",
        "--generate",
        &system,
        "--rhs",
        "random",
        "--method",
        "relax",
    ];
    match (way, hosts) {
        (Way::Single, _) => words.extend(["--mode", "single"]),
        (Way::Threads, _) => words.extend(["--mode", "threads", "--workers", &count]),
        (Way::Link(_), None) => return Err("no testbed".to_owned()),
        (Way::Link(link), Some(hosts)) => {
            let file = hosts.file(workers).map_err(|error| error.to_string())?;
            words.extend(["--elements", &elements, "--link", link]);
            if shares_cores(workers) {
                words.extend(["--executor", "rtc"]);
            }
            words.extend(["--open", "--hosts"]);
            let file = file.to_string_lossy(); // a temporary folder's name, and ours
            return child([&words[..], &[&*file]].concat(), None);
        }
    }
    child(&words, None)
}

/// Whether workers of two threads each, in hosts of a testbed, and the judge outnumber this machine's cores, of which the workers cannot know.
fn shares_cores(workers: usize) -> bool {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    2 * workers + 1 > cores
}

/// Tables 2.1 and 2.2: bytes of a size a second, by the kernel's sockets and by links without engine.
fn transfer_rates(figure: Figure, args: &Args) -> Outcome {
    args.check_taken(figure, &["--rounds"], "takes --rounds, --quick and --json")?;
    let (mut talk, machine) = Talk::begin(args.json);
    let is_kernel = figure.name() == "relax-table2.1";
    talk.say(figure.heading());
    let paper = if is_kernel {
        facts::TABLE_2_1
    } else {
        facts::TABLE_2_2
    };
    let mut rows = table::headed("by | bytes | Mbit/s | dropped | the paper's");
    let mut results = Vec::new();
    for (size, paper) in PACKET_BYTES.into_iter().zip(paper) {
        let found = dropped(args, &["--cores", "1", "--size", &size.to_string()])?;
        for result in found["results"].as_array().into_iter().flatten() {
            let way = result["way"].as_str().unwrap_or_default();
            // The link `udp` is neither: it uses the kernel's sockets.
            if (way == "kernel UDP") != is_kernel || way == "udp" {
                continue;
            }
            if let Some(reason) = result["missing"].as_str() {
                talk.say(&format!("{way}, {size} bytes: not measured: {reason}"));
                continue;
            }
            let received = median(&result["received_per_second"]);
            let megabits = received.map(|rate| rate * 8.0 * f64::from(size) / 1e6);
            rows.push([
                way.to_owned(),
                size.to_string(),
                table::number(megabits, 0, ""),
                median(&result["dropped_per_second"]).map_or_else(String::new, short),
                paper.to_string(),
            ]);
            results.push(json!({ "way": way, "bytes": size, "megabits_per_second": megabits, "paper": paper }));
        }
    }
    talk.say(&table::aligned(&rows));
    talk.say("sender and receiver share this machine's cores and memory; the paper's are two machines and 10 Gbit/s between");
    talk.end(&json!({ "figure": figure.name(), "machine": machine, "results": results }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, clap::Parser)]
    struct Words {
        #[command(flatten)]
        args: Args,
    }

    /// Every figure but the tables of transfer rates is an experiment of solves.
    #[test]
    fn figures_have_plans() {
        let of_relax = |figure: &Figure| figure.paper() == "relax";
        for figure in Figure::all().into_iter().filter(of_relax) {
            if !figure.name().starts_with("relax-table2") {
                let words = Words::try_parse_from(["paper", figure.name()]).unwrap();
                assert!(plan(figure, &words.args).is_ok(), "{}", figure.name());
            }
        }
    }

    /// The paper's sizes scale with the rows asked for.
    #[test]
    fn sizes_are_the_papers() {
        assert_eq!(parts_of(30_000), [10_000, 20_000, 30_000, 40_000, 50_000]);
    }

    /// A hosts file is cut to its first nodes.
    #[test]
    fn hosts_are_cut() {
        let text = "[[node]]\nid = 0\nhost = \"a\"\n[[node]]\nid = 1\nhost = \"b\"\n[[node]]\nid = 2\nhost = \"c\"\n";
        let cut = first_nodes(text, 2).unwrap();
        assert!(cut.contains("\"b\"") && !cut.contains("\"c\""), "{cut}");
    }
}
