//! `tsumuji bench sum32`: sums of 32 values a second, by messages of ours that an executor serves, and by TCP.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::misses::Misses;
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::sum32::verdict::{self, Against, Verdict};
use tsumuji_bench::sum32::{self, Plan, Rate, Tcp};
use tsumuji_bench::versus::{Standing, alternate};
use tsumuji_bench::{stop, table};
use tsumuji_node::Executor;

use super::between::{Between, Pair};
use super::short;
use crate::Outcome;
use crate::interrupt::Interrupted;
use crate::talk::Talk;

/// Before the reason.
const NOT_COUNTED: &str = "misses of the nearest data cache are not counted (perf_event_open)";

/// Time in which the sums of one core are counted, without any communication.
const COMPUTE_TIME: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// How often the server adds up the numbers of a request; several by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    loops: Vec<u32>,
    /// Executor of the service: rtc, pipeline or adaptive; several by commas
    #[arg(
        long,
        value_name = "EXECUTORS",
        value_delimiter = ',',
        default_value = "rtc,pipeline,adaptive"
    )]
    executor: Vec<Executor>,
    /// Requests on their way at a time; several by commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,256", value_parser = clap::value_parser!(u64).range(1..=4096))]
    outstanding: Vec<u64>,
    /// Bytes of other data of the server, of which each request reads 32 cache lines
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = super::size)]
    working_set: usize,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value = "0.5", value_parser = super::seconds)]
    time: Duration,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Leave TCP out
    #[arg(long)]
    no_tcp: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, inside: bool) -> Outcome {
    args.between.check_first_two()?;
    let pair = Pair::of(&args.between, inside)?;
    let places = pair.places();
    let with_tcp = !args.no_tcp && places.is_some();
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(&format!(
        "sums of {} numbers over {}, {} s each, {} rounds in turn; sums a second{}",
        sum32::NUMBERS,
        pair.link,
        args.time.as_secs_f64(),
        args.rounds,
        if with_tcp {
            ", times those of TCP with NODELAY"
        } else {
            ""
        }
    ));
    if !args.no_tcp && places.is_none() {
        talk.say(
            "without TCP: it is measured within this host and between namespaces of this machine",
        );
    }
    let cache = match places {
        Some(_) => Misses::open().map_err(|error| format!("{NOT_COUNTED}: {error}")),
        None => Err(format!("{NOT_COUNTED}: the server is on another machine")),
    };
    if let Err(reason) = &cache {
        talk.say(reason);
    }
    let spins = pair.has_cores_to_spin();
    let mut measured = Vec::new();
    for &outstanding in &args.outstanding {
        let mut rows = vec![heading(&args.loops)];
        let mut columns = Vec::new();
        for &loops in &args.loops {
            let plan = |executor: Executor| Plan {
                loops,
                executor,
                outstanding,
                seconds: args.time.as_secs_f64(),
                // Workers need a core that spinning threads would take.
                spin: spins && (executor != Executor::Pipeline || machine.cores > 2),
                working_set_bytes: args.working_set,
            };
            let (mut counted, cache) = (Counted::default(), cache.as_ref().ok());
            let ours = args.executor.iter().map(|&executor| sum32::ours(executor));
            let tcp = Tcp::ALL.iter().filter(|_| with_tcp);
            let names: Vec<String> = ours.chain(tcp.map(|how| how.name().to_owned())).collect();
            let standings = alternate(args.rounds as usize, &names, |one| {
                let rate = match args.executor.get(one) {
                    Some(&executor) => {
                        sum32::measure(&plan(executor), pair.spec(), &pair.security, cache)
                            .map_err(|error| error.to_string())?
                    }
                    None => {
                        let places = places.as_ref().ok_or("between other machines")?;
                        let how = Tcp::ALL[one - args.executor.len()];
                        sum32::tcp(&plan(Executor::RunToCompletion), how, places, cache)
                            .map_err(|error| error.to_string())?
                    }
                };
                Ok(counted.take(&names[one], rate))
            });
            ensure!(!stop::is_wanted(), Interrupted);
            talk.say(&format!(
                "{outstanding} on their way, {loops} loops: measured"
            ));
            let compute = sum32::compute_rate(loops, COMPUTE_TIME);
            let verdicts = verdict::of(loops, &standings, compute);
            measured.push(json!({
                "outstanding": outstanding, "loops": loops, "compute_per_second": compute,
                "contenders": standings.iter().map(|standing| entry(standing, &standings, &counted)).collect::<Vec<_>>(),
                "verdicts": verdicts,
            }));
            columns.push(Column {
                standings,
                counted,
                compute,
                verdicts,
            });
        }
        rows.extend(rows_of(&columns));
        talk.say(&match outstanding {
            1 => "\none request on its way".to_owned(),
            many => format!("\n{many} requests on their way"),
        });
        talk.say(&aligned(&rows));
    }
    talk.say(&format!("\n{}", verdict::rule()));
    talk.end(&json!({
        "kind": "sum32", "link": pair.link.to_string(), "seconds": args.time.as_secs_f64(), "working_set_bytes": args.working_set,
        "rounds": args.rounds, "machine": machine, "cache_misses_reason": cache.err(), "results": measured,
    }))
}

fn heading(loops: &[u32]) -> Vec<String> {
    let columns = loops.iter().map(|loops| format!("{loops} loops"));
    std::iter::once(String::new()).chain(columns).collect()
}

/// That of TCP with which others are compared.
fn usual_tcp(standings: &[Standing]) -> Option<&Standing> {
    let name = Tcp::NoDelay.name();
    standings.iter().find(|standing| standing.name == name)
}

/// Misses of the nearest data cache for each sum, by contender, round by round.
#[derive(Default)]
struct Counted(BTreeMap<String, Vec<f64>>);

impl Counted {
    /// Notes the misses of a measurement, and returns its rate.
    fn take(&mut self, name: &str, rate: Rate) -> f64 {
        if let Some(misses) = rate.misses_per_sum {
            self.0.entry(name.to_owned()).or_default().push(misses);
        }
        rate.sums_per_second
    }

    /// Over all rounds; `None`: they were not counted.
    fn of(&self, name: &str) -> Option<Rounds> {
        self.0.get(name).map(|rounds| Rounds::of(rounds))
    }
}

fn entry(standing: &Standing, all: &[Standing], counted: &Counted) -> Value {
    let ratio = usual_tcp(all).map(|tcp| standing.ratio_to(tcp));
    match &standing.result {
        Ok(rounds) => {
            json!({
                "name": standing.name, "sums_per_second": rounds, "ratio_to_tcp_nodelay": ratio,
                "cache_misses_per_sum": counted.of(&standing.name),
            })
        }
        Err(reason) => json!({ "name": standing.name, "missing": reason }),
    }
}

/// What was measured with one number of loops.
struct Column {
    standings: Vec<Standing>,
    counted: Counted,
    compute: f64,
    verdicts: Vec<Verdict>,
}

/// A row for each contender, one for the limit, and the verdicts.
fn rows_of(columns: &[Column]) -> Vec<Vec<String>> {
    let Some(first) = columns.first() else {
        return Vec::new();
    };
    let cell = |standings: &[Standing], number: usize| match &standings[number].result {
        Err(reason) => format!("- ({reason})"),
        Ok(rounds) if rounds.median == 0.0 => "- (no answers)".to_owned(),
        Ok(rounds) => {
            let spread = rounds.spread_percent() / 2.0;
            let ratio = usual_tcp(standings).map_or(String::new(), |tcp| {
                format!("  {:.2}x", standings[number].ratio_to(tcp))
            });
            format!("{} ±{spread:.0}%{ratio}", short(rounds.median))
        }
    };
    let row = |name: &str, cell: &dyn Fn(&Column) -> String| {
        let cells = columns.iter().map(cell);
        std::iter::once(name.to_owned())
            .chain(cells)
            .collect::<Vec<_>>()
    };
    let contenders = first
        .standings
        .iter()
        .enumerate()
        .map(|(number, standing)| row(&standing.name, &|column| cell(&column.standings, number)));
    let mut rows: Vec<Vec<String>> = contenders.collect();
    rows.push(row("limit: one core, no messages", &|column| {
        short(column.compute)
    }));
    for Standing { name, .. } in &first.standings {
        if columns
            .iter()
            .any(|column| column.counted.of(name).is_some())
        {
            rows.push(row(&format!("misses a sum, {name}"), &|column| {
                table::cell(column.counted.of(name), |misses| {
                    format!("{:.2}", misses.median)
                })
            }));
        }
    }
    let judged = |against: &Against| {
        let mut all = columns.iter().flat_map(|column| &column.verdicts);
        all.any(|verdict| verdict.against == *against)
    };
    for against in Against::ALL.into_iter().filter(judged) {
        rows.push(row(against.name(), &|column| {
            let mut all = column.verdicts.iter();
            let verdict = all.find(|verdict| verdict.against == against);
            table::cell(verdict, Verdict::text)
        }));
    }
    rows
}

/// As `table::aligned`, for as many columns as there are.
fn aligned(rows: &[Vec<String>]) -> String {
    const COLUMNS: usize = 5;
    let mut text = String::new();
    let columns = rows.first().map_or(0, Vec::len).saturating_sub(1);
    // A few columns of numbers at a time, each part with the names.
    for part in (0..columns).step_by(COLUMNS - 1) {
        let rows: Vec<[String; COLUMNS]> = rows
            .iter()
            .map(|row| {
                std::array::from_fn(|column| match column {
                    0 => row[0].clone(),
                    column => row.get(part + column).cloned().unwrap_or_default(),
                })
            })
            .collect();
        text += &table::aligned(&rows);
    }
    text
}
