//! `tsumuji paper`: repeats the papers' experiments, ours and the MPI libraries, next to the papers' own figures.
//!
//! Suci's four are measured between hosts of a testbed, by default over UDP and cables of 100 Mbit/s as in the paper. The paper's statements, in
//! words or numbers, are printed next to the results; values that the paper does not state are left out.

mod columns;
mod dv;
mod figure;
mod l2rtc;
mod mech;
mod relax;
mod sdp;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tsumuji_bench::compare::{self, Comparison, Listener, Plan, Row};
use tsumuji_bench::contest::{self, Ground, Ours, Peer, testbed};
use tsumuji_bench::machine::Machine;
use tsumuji_bench::peers::mpi::MPICH_RANKS_MOST;
use tsumuji_bench::plot::{self, Line};
use tsumuji_bench::stats::{counted, size_name};
use tsumuji_bench::stop;
use tsumuji_bench::table::{aligned, cell};
use tsumuji_node::LinkSpec;
use tsumuji_testbed::Rate;

use crate::bench::compare::object;
use crate::given::Given;
use crate::interrupt::Interrupted;
use crate::output::{self, Files};
use crate::talk::Talk;
use crate::{DONE, Outcome};
use columns::Column;
use figure::{Figure, figure};

/// The paper's network.
const CABLE: &str = "100mbit";
const MTU_BYTES: u32 = 1500;
/// Of a ping-pong, burst and so on.
const SMALLEST_BYTES: usize = 4;
/// Default rounds.
const ROUNDS: u64 = 3;
/// Time of one measurement over cables of 100 Mbit/s: half a second by itself, and the processes' start and warm-up.
const SECONDS_EACH: f64 = 0.75;
const SECONDS_A_NODE: f64 = 0.05;

/// Rerun an experiment of the papers and print ours beside theirs (most in a testbed; root).
#[derive(Debug, clap::Args)]
#[command(
    after_help = concat!(
        "Examples:\n",
        "  tsumuji paper --list\n",
        "  tsumuji paper suci-fig6 --plot fig6.svg --csv fig6.csv\n",
        "  tsumuji paper suci-fig7 --quick\n",
        "  tsumuji paper suci-fig9 --nodes 5,40\n",
        "  tsumuji paper suci-dv\n",
        "  tsumuji paper l2rtc-fig12\n",
        "  tsumuji paper l2rtc-fig10 --link shm --iterations 1000000\n",
        "  tsumuji paper relax-fig6.1 --plot fig6.1.svg\n",
        "  tsumuji paper relax-fig5.11 --rows 30000 --nodes 1,2,4 --simulate 1,2,3,4,7\n",
        "  tsumuji paper sdp-fig3 --plot fig3.svg\n",
        "  tsumuji paper sdp-fig12 --quick --nodes 1,16,64\n",
        "  tsumuji paper mech-table6"
    )
)]
pub(crate) struct Args {
    #[command(flatten)]
    given: Given,
    /// Which
    #[arg(required_unless_present = "list", value_parser = figure())]
    figure: Option<Figure>,
    /// Say which there are
    #[arg(long, conflicts_with_all = ["figure", "nodes", "rows", "largest", "iterations", "rounds", "quick", "csv", "plot", "simulate"])]
    list: bool,
    /// Nodes of suci-fig8 and -fig9; several by commas; default: 8 (the paper does not say), and 5,40. Workers of relax-…; default: 1 to one a core. Clients of sdp-fig9 to -fig14; default: 1 to 64
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=253))]
    nodes: Vec<u16>,
    /// Rows of relax-… where the paper has 30000; default: 6000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(100..))]
    rows: Option<u64>,
    /// Workers of the simulated lines of relax-…, by commas, however long they take; or none. Default: the paper's 4 and 7, or 1 to 256 where workers are varied, as many as half a minute allows
    #[arg(long, value_name = "N")]
    simulate: Option<relax::Simulate>,
    /// The link: of suci-… udp (as in the paper; the default), packet or xdp; of l2rtc-fig10 any, default shm; of relax-… one of the figure's, default all
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Rate of every cable, or none: no limit; of l2rtc-fig10 the line's [default: of suci-… 100mbit, as in the paper; of sdp-… none; of l2rtc-fig10 2gbit]
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Limit>,
    /// Largest message; default: the paper's
    #[arg(long, value_name = "BYTES", value_parser = crate::bench::size)]
    largest: Option<usize>,
    /// Repetitions of one measurement; default: by size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Rounds in which tsumuji and its peers are measured in turn at each size; default: 3, of mech-… and of relax-… 5
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: Option<u64>,
    /// Measure every other size, once: a fifth of the time, for a first look only
    #[arg(long)]
    quick: bool,
    /// Write every number as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw the figure
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    fn link(&self) -> LinkSpec {
        self.link.unwrap_or(LinkSpec::Udp(None))
    }

    /// Rounds; of a first look one.
    fn rounds(&self, usual: u64) -> u64 {
        self.rounds.unwrap_or(if self.quick { 1 } else { usual })
    }

    /// Rate of the cables; `None`: no limit.
    fn limit(&self) -> Option<Rate> {
        match self.rate {
            Some(limit) => limit.0,
            None => CABLE.parse().ok(),
        }
    }

    /// Refuses the options that are not among `taken`. `what` says what `figure` takes.
    fn check_taken(&self, figure: Figure, taken: &[&str], what: &str) -> anyhow::Result<()> {
        let all =
            "--nodes --link --rows --simulate --rate --largest --iterations --rounds --csv --plot";
        for flag in all.split(' ') {
            let is_accepted = self.given.first_of(flag).is_none() || taken.contains(&flag);
            ensure!(is_accepted, "{flag}: {} {what}", figure.name());
        }
        Ok(())
    }
}

/// A rate, or none.
#[derive(Debug, Clone, Copy)]
struct Limit(Option<Rate>);

fn rate(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let rate = text.parse::<Rate>().map(|rate| Limit(Some(rate)));
    rate.map_err(|error| format!("{error}; or none"))
}

/// The first, the last, and every other between: for a first look.
fn every_other<T>(values: Vec<T>) -> Vec<T> {
    let last = values.len().saturating_sub(1);
    let keep = |(place, value): (usize, T)| (place % 2 == 0 || place == last).then_some(value);
    values.into_iter().enumerate().filter_map(keep).collect()
}

/// One statement of a paper, and the corresponding results.
#[derive(Debug, Serialize)]
struct Beside {
    what: String,
    /// The paper's own library.
    paper: &'static str,
    /// MPICH in the paper.
    paper_mpich: &'static str,
    /// Ours in all forms, then MPI.
    here: Vec<Shown>,
}

/// What one contender showed.
#[derive(Debug, Serialize)]
struct Shown {
    name: &'static str,
    result: String,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Outcome {
    let Some(figure) = args.figure else {
        let list = Figure::all().into_iter();
        if args.json {
            let one = |figure: Figure| json!({ "name": figure.name(), "title": figure.title() });
            let figures: Vec<_> = list.map(one).collect();
            output::print_json(&json!({ "figures": figures }));
        } else {
            let line = |figure: Figure| format!("{:<15}  {}\n", figure.name(), figure.title());
            output::print_text(&list.map(line).collect::<String>());
        }
        return Ok(DONE);
    };
    ensure!(
        args.simulate.is_none() || figure.paper() == "relax",
        "--simulate: {} has nothing that is simulated",
        figure.name()
    );
    match (figure.paper(), figure.name()) {
        (_, "suci-dv") => return dv::run(figure, args),
        ("l2rtc", _) => return l2rtc::run(figure, args),
        ("relax", _) => return relax::run(figure, args),
        ("sdp", _) => return sdp::run(figure, args),
        ("mech", _) => return mech::run(figure, args),
        _ => {}
    }
    ensure!(
        args.link() != LinkSpec::Shm,
        "--link shm: the paper's nodes are hosts; use udp, packet or xdp"
    );
    ensure!(
        args.rows.is_none() && args.nodes.iter().all(|nodes| *nodes > 1),
        "{} takes no --rows, and --nodes from 2 on",
        figure.name()
    );
    let is_pair = matches!(figure.name(), "suci-fig6" | "suci-fig7");
    ensure!(
        args.nodes.is_empty() || !is_pair,
        "--nodes: {} is between two nodes; suci-fig8 and suci-fig9 take a number of nodes",
        figure.name()
    );
    let files = Files::of(args.csv.as_ref(), args.plot.as_ref())?;
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(
        "the paper's: 44 nodes, Pentium III 800 MHz, 100 Mbit/s Ethernet, Linux 2.4.10, MPICH and MPICH-SCore",
    );
    let (mut comparisons, mut beside) = (Vec::new(), Vec::new());
    for nodes in figure.nodes(&args.nodes) {
        let plan = plan(figure, nodes, args)?;
        let cables = cables(args.limit());
        talk.say(&format!("{}; {nodes} hosts, {cables}", figure.heading()));
        let peers = peers(nodes);
        let ours = columns::of(figure);
        let count = plan.sizes.len() * plan.rounds * (ours.len() + peers.len());
        let each = SECONDS_EACH + SECONDS_A_NODE * plan.nodes as f64;
        talk.say(&expected(count, each));
        if peers.is_empty() {
            talk.say(&format!(
                "without MPI: {nodes} ranks on {} cores would measure the scheduler",
                machine.cores
            ));
        }
        let comparison = measure(&plan, (&ours, &peers), args, machine.clone(), &mut talk)?;
        ensure!(!stop::is_wanted(), Interrupted);
        beside.extend(statements(figure, &comparison));
        comparisons.push(comparison);
    }
    talk.say(&table(&beside));
    let csv = || {
        let mut text = String::new();
        for comparison in &comparisons {
            let csv = comparison.csv();
            let skipped = usize::from(!text.is_empty()); // one line of names is enough
            csv.lines()
                .skip(skipped)
                .for_each(|line| text.extend([line, "\n"]));
        }
        text
    };
    let lines = || comparisons.iter().flat_map(lines).collect::<Vec<_>>();
    let written = files.write(csv, || {
        plot::svg(figure.heading(), "MB/s of one node", &lines())
    });
    let link = args.link().to_string();
    let comparisons: anyhow::Result<Vec<_>> =
        comparisons.iter().map(|one| object(one, &link)).collect();
    talk.end_with_files(
        json!({ "figure": figure.name(), "title": figure.title(), "beside": beside,
        "comparisons": comparisons? }),
        written,
    )
}

fn plan(figure: Figure, nodes: usize, args: &Args) -> anyhow::Result<Plan> {
    let largest = args.largest.unwrap_or(figure.largest());
    let factor = if args.quick { 4 } else { 2 };
    let sizes = std::iter::successors(Some(SMALLEST_BYTES), |size| size.checked_mul(factor));
    let mut sizes: Vec<usize> = sizes.take_while(|&size| size <= largest).collect();
    ensure!(
        !sizes.is_empty(),
        "--largest {largest}: the smallest message has {SMALLEST_BYTES} bytes"
    );
    if args.quick && largest.is_power_of_two() {
        sizes.push(largest); // one of the paper's statements is about that size
        sizes.dedup();
    }
    let rounds = args.rounds(ROUNDS);
    Ok(Plan {
        op: figure.op(),
        nodes,
        sizes,
        iterations: args.iterations,
        bits_per_second: args.limit().map(Rate::bits_per_second),
        rounds: rounds as usize,
    })
}

/// The expected duration of so many measurements of so many seconds.
fn expected(count: usize, seconds_each: f64) -> String {
    let minutes = (count as f64 * seconds_each / 60.0).ceil() as usize;
    let minutes = counted(minutes, "minute", "s");
    format!("{count} measurements, about {minutes}")
}

fn cables(limit: Option<Rate>) -> String {
    limit.map_or_else(
        || "cables as fast as the machine".to_owned(),
        |rate| format!("cables of {rate}"),
    )
}

/// What a paper says of a figure: what of, its words or number, and ours.
type Statement = (String, &'static str, String);

/// Statements as a table; `ours` is the heading of our column.
fn statements_as_table(statements: &[Statement], ours: &str) -> String {
    let mut rows = vec![["", "paper", ours].map(str::to_owned)];
    let row = |(what, paper, ours): &Statement| [what.clone(), (*paper).to_owned(), ours.clone()];
    rows.extend(statements.iter().map(row));
    aligned(&rows)
}

/// As `--json` prints them.
fn statements_as_json(statements: &[Statement]) -> Vec<Value> {
    let one =
        |(what, paper, ours): &Statement| json!({ "what": what, "paper": paper, "ours": ours });
    statements.iter().map(one).collect()
}

fn peers(nodes: usize) -> Vec<Peer> {
    let few = nodes <= MPICH_RANKS_MOST;
    let all = columns::PEERS.iter().filter(|_| few);
    all.map(|(peer, _)| *peer).collect()
}

fn measure(
    plan: &Plan,
    (ours, peers): (&[Column], &[Peer]),
    args: &Args,
    machine: Machine,
    talk: &mut Talk,
) -> anyhow::Result<Comparison> {
    let program = std::env::current_exe().context("this program's own file")?;
    let testbed = testbed(plan.nodes, args.limit(), MTU_BYTES)?;
    let usual = Ours::between(args.link(), program, testbed.hosts_file());
    let table = columns::tree_table()?;
    let ours: Vec<Ours> = ours
        .iter()
        .map(|column| column.ours(&usual, &table))
        .collect();
    let ground = Ground::of(&testbed);
    let comparison = {
        let mut contenders = contest::contenders(&ours, peers, &ground, plan.op);
        compare::run(plan, &mut contenders, machine, talk)
    };
    testbed.down()?;
    Ok(comparison)
}

/// Throughput of one node in MB/s, as the paper draws it.
fn rate_of(row: &Row, who: usize) -> Option<f64> {
    let numbers = row.contenders.get(who)?.numbers.as_ref()?;
    Some(numbers.bytes_per_second_and_node / 1e6)
}

fn lines(comparison: &Comparison) -> Vec<Line> {
    let mut lines = comparison.lines_of(|numbers| numbers.bytes_per_second_and_node / 1e6);
    for line in &mut lines {
        line.name += &format!(", {} nodes", comparison.nodes);
    }
    lines
}

/// The best throughput, and its size.
fn peak(comparison: &Comparison, who: usize) -> Option<(usize, f64)> {
    let rows = comparison.results.iter();
    rows.filter_map(|row| Some((row.size, rate_of(row, who)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The part of the best throughput that is reached at the largest message.
fn kept(comparison: &Comparison, who: usize) -> String {
    let best = peak(comparison, who).map(|(_, rate)| rate);
    let last = comparison.results.last().and_then(|row| rate_of(row, who));
    cell(best.zip(last), |(best, last)| {
        format!("{last:.2} MB/s, {:.0} % of the best", last / best * 100.0)
    })
}

/// Throughput at one size, as a share of the best at a smaller or equal one.
fn at(comparison: &Comparison, who: usize, size: usize) -> String {
    let rates = |wanted: &dyn Fn(usize) -> bool| {
        let rows = comparison.results.iter();
        rows.filter(|row| wanted(row.size))
            .filter_map(|row| rate_of(row, who))
            .reduce(f64::max)
    };
    let both = rates(&|other| other == size).zip(rates(&|other| other <= size));
    cell(both, |(rate, best)| {
        let part = rate / best * 100.0;
        format!("{rate:.2} MB/s, {part:.0} % of the best up to it")
    })
}

/// How many times better than MPICH, over these sizes, by the number that `of` returns.
fn times(
    comparison: &Comparison,
    wanted: impl Fn(usize) -> bool,
    of: impl Fn(&Row) -> f64,
) -> String {
    let rows = comparison.results.iter().filter(|row| wanted(row.size));
    let values: Vec<f64> = rows.map(of).filter(|value| value.is_finite()).collect();
    let least = values.iter().copied().reduce(f64::min);
    let most = values.iter().copied().reduce(f64::max);
    cell(least.zip(most), |(least, most)| {
        format!("{least:.2}x to {most:.2}x")
    })
}

/// The paper's statements on a figure, with the results.
fn statements(figure: Figure, found: &Comparison) -> Vec<Beside> {
    let ours = columns::of(figure);
    let mpich = ours.len(); // the first of the peers
    let own = ours.iter().map(|column| column.name);
    let names: Vec<&str> = own.chain(columns::PEERS.map(|(_, name)| name)).collect();
    let beside =
        |what: &str, [paper, paper_mpich]: [&'static str; 2], of: &dyn Fn(usize) -> String| {
            Beside {
                what: format!("{} nodes: {what}", found.nodes),
                paper,
                paper_mpich,
                here: names
                    .iter()
                    .enumerate()
                    .map(|(who, &name)| Shown {
                        name,
                        result: of(who),
                    })
                    .collect(),
            }
        };
    // By throughput, as the paper draws it; and by the median, which limited cables do not affect.
    let times_to = |most: usize| {
        move |who: usize| {
            let ratio = |row: &Row| {
                let rates = rate_of(row, who).zip(rate_of(row, mpich));
                rates.map_or(f64::NAN, |(ours, theirs)| ours / theirs)
            };
            times(found, |size| size <= most, ratio)
        }
    };
    let median_to = |most: usize| {
        move |who: usize| {
            times(
                found,
                |size| size <= most,
                |row| row.times_better(who, mpich),
            )
        }
    };
    let peak_of = |who| {
        cell(peak(found, who), |(size, rate)| {
            format!("{rate:.2} MB/s at {}", size_name(size))
        })
    };
    let kept_of = |who| kept(found, who);
    match figure.name() {
        "suci-fig6" => vec![
            beside(
                "up to 1 KiB",
                ["about 2x MPICH, 1.5x MPICH-SCore", "1x"],
                &times_to(1 << 10),
            ),
            beside(
                "the same, medians of half round trips",
                ["-", "-"],
                &median_to(1 << 10),
            ),
            beside("up to 30 KB", ["ahead of both", "1x"], &times_to(30_000)),
            beside("512 KiB", ["declining past 64 KiB", "-"], &kept_of),
        ],
        "suci-fig7" => vec![
            beside(
                "best throughput",
                ["about 10 MB/s (MPICH-SCore too)", "about 7.5 MB/s"],
                &peak_of,
            ),
            beside(
                "at 16 KiB",
                ["no dip (MPICH-SCore falls sharply)", "-"],
                &|who| at(found, who, 16 << 10),
            ),
            beside("512 KiB", ["declining past 64 KiB", "-"], &kept_of),
        ],
        "suci-fig8" => vec![
            beside(
                "up to 1 KiB",
                ["slower start than MPICH (slow write)", "1x"],
                &times_to(1 << 10),
            ),
            beside(
                "best throughput of a node",
                ["loss and costly retransmission without slow write", "-"],
                &peak_of,
            ),
        ],
        "suci-fig9" => vec![
            beside(
                "best throughput of a node",
                [
                    "about 5 MB/s at 16 KiB (5 and 40 nodes)",
                    "about 0.78 MB/s (5 nodes)",
                ],
                &peak_of,
            ),
            beside("512 KiB", ["declining past 16 KiB", "-"], &kept_of),
        ],
        _ => Vec::new(), // L2RTC's: see there
    }
}

/// For each statement three lines, and one for each contender, of at most 80 characters.
fn table(rows: &[Beside]) -> String {
    let lines = rows.iter().map(|row| {
        let here = row.here.iter();
        let here = here.map(|shown| format!("  here, {}: {}\n", shown.name, shown.result));
        format!(
            "{}\n  paper, Suci: {}\n  paper, MPICH: {}\n{}",
            row.what,
            row.paper,
            row.paper_mpich,
            here.collect::<String>()
        )
    });
    format!("\n{}", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tsumuji_bench::compare::Contender;
    use tsumuji_bench::machine::describe;
    use tsumuji_bench::ops::Sample;

    fn found(figure: Figure) -> Comparison {
        let plan = Plan {
            op: figure.op(),
            nodes: figure.nodes(&[])[0],
            sizes: vec![4, 1 << 10, 64 << 10],
            iterations: Some(1),
            bits_per_second: None,
            rounds: 1,
        };
        let takes = |millis| {
            move |_: &_| {
                Ok(Sample::new(
                    Duration::from_millis(millis),
                    Duration::from_millis(millis),
                ))
            }
        };
        let ours = columns::of(figure).into_iter().map(|column| column.name);
        let all = ours.zip([10; 9]).chain([("MPICH", 30), ("Open MPI", 20)]);
        let mut all: Vec<_> = all
            .map(|(name, millis)| Contender::new(name, takes(millis)))
            .collect();
        compare::run(&plan, &mut all, describe(), &mut |_: &str| {})
    }

    /// Every figure has statements of the paper, and numbers of ours and of MPICH for them.
    #[test]
    fn statements_have_both_sides() {
        // The other papers' have their own.
        let of_suci = |figure: &Figure| figure.name().starts_with("suci-fig");
        for figure in Figure::all().into_iter().filter(of_suci) {
            let all = statements(figure, &found(figure));
            assert!(all.len() >= 2, "{}", figure.name());
            let text = table(&all);
            assert!(text.contains("3.00x") || text.contains("MB/s"), "{text}");
            let each = 3 + columns::of(figure).len() + columns::PEERS.len();
            assert_eq!(text.trim().lines().count(), each * all.len());
            assert!(
                text.lines().all(|line| line.chars().count() <= 80),
                "{text}"
            );
        }
    }

    /// A first look has the first value, the last, and every other between.
    #[test]
    fn every_other_keeps_both_ends() {
        assert_eq!(every_other(vec![1, 2, 3, 4]), [1, 3, 4]);
        assert_eq!(every_other(vec![1, 2, 3]), [1, 3]);
        assert!(every_other(Vec::<u8>::new()).is_empty());
    }

    /// The lines of a plot are throughputs of one node: those of a broadcast are not added up.
    #[test]
    fn lines_are_of_one_node() {
        let lines = lines(&found(Figure::of("suci-fig9")));
        assert_eq!(lines.len(), 7);
        let (size, rate) = lines[0].points[2];
        assert!((rate - size / 0.01 / 1e6).abs() < 1e-9);
        assert!(lines[0].name.ends_with("5 nodes"));
    }
}
