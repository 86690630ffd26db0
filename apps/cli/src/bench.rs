//! `tsumuji bench`: ping-pong, burst, and the table of all figures.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};
use tsumuji_bench::exchange::{self, ExchangeError, Kind, Measured, Plan, Side};
use tsumuji_bench::figures::{self, Part, Setting};
use tsumuji_bench::limits;
use tsumuji_bench::machine;
use tsumuji_bench::stats::size_name;
use tsumuji_bench::versus::{Better, Contender, Standing, alternate};
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::{Congestion, LinkSpec, Security};

use crate::{DONE, NOT_REACHED, Outcome, hosts, output};

/// Measure messages between two processes of this machine, or print all figures the project promises.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
    /// This process is already where node 0 runs
    #[arg(long, hide = true)]
    inside: bool,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// One message at a time, each answered: half-round-trip times.
    #[command(
        after_help = "Examples:\n  tsumuji bench pingpong --link shm --size 8,1K,64K --vs\n  tsumuji bench pingpong --hosts lab.toml --link packet"
    )]
    Pingpong(ExchangeArgs),
    /// Messages one way as fast as they are taken: throughput.
    #[command(
        after_help = "Example:\n  tsumuji bench burst --link udp --size 64,1500,64K,1M --json"
    )]
    Burst(ExchangeArgs),
    /// No message for some seconds: the processor time of two processes that wait.
    #[command(after_help = "Example:\n  tsumuji bench idle --link udp")]
    Idle(IdleArgs),
    /// Every promised figure beside its limit or peer, in one run (about ten minutes; leave the machine alone).
    #[command(
        after_help = "Example:\n  tsumuji bench figures --output bench.json\n  tsumuji bench figures --part pingpong --rounds 3"
    )]
    Figures(FiguresArgs),
}

#[derive(Debug, clap::Args)]
struct ExchangeArgs {
    #[command(flatten)]
    between: Between,
    /// Bytes of a message; several by commas; K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "8", value_parser = size)]
    size: Vec<usize>,
    /// Round trips or messages; default: by size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Repeat, and report the round with the median
    #[arg(long, value_name = "R", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Beside the bare exchange of the machine, in turn (at least 5 rounds)
    #[arg(long, conflicts_with = "hosts")]
    vs: bool,
    /// Let idle processes yield and sleep instead of spinning
    #[arg(long)]
    no_spin: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Between whom.
#[derive(Debug, clap::Args)]
struct Between {
    /// The link: shm (default), udp or udp:ADDRESS:PORT; with --hosts udp, packet or xdp, if not as the file says
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Between the first two nodes of this file, not two processes here; node 0 sends
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Where this program lies on the other host; default: where it lies here
    #[arg(long, value_name = "PATH", requires = "hosts")]
    program: Option<PathBuf>,
    /// Who may send how much: credit (default), or suci, which repeats after a loss what the receiver permits
    #[arg(long, value_name = "CONTROL")]
    congestion: Option<Congestion>,
    #[command(flatten)]
    security: crate::security::Flags,
}

/// Two processes and what joins them, ready to be measured.
struct Pair {
    link: LinkSpec,
    hosts: Option<Hosts>,
    command: Vec<OsString>,
    security: Security,
    congestion: Option<Congestion>,
}

impl Pair {
    /// Goes to where node 0 runs, if that is elsewhere.
    fn of(between: &Between, inside: bool) -> anyhow::Result<Self> {
        let Some(path) = &between.hosts else {
            return Ok(Self {
                link: between.link.unwrap_or(LinkSpec::Shm),
                hosts: None,
                command: serve_command()?,
                security: between.security.stated(between.link.as_ref(), None),
                congestion: between.congestion,
            });
        };
        let file = hosts::read(path, between.link.as_ref())?;
        anyhow::ensure!(
            file.hosts().len() >= 2,
            "{}: two nodes are needed",
            path.display()
        );
        if !inside {
            hosts::enter_node_0(&file, path)?;
        }
        let security = between.security.stated(between.link.as_ref(), Some(&file));
        let program = hosts::program(between.program.as_ref())?;
        let command = vec![program.clone().into(), "bench-serve".into()];
        let mut both = hosts::of(&file, program);
        both.nodes.truncate(2);
        Ok(Self {
            link: both.nodes[0].link,
            hosts: Some(both),
            command,
            security,
            congestion: between.congestion,
        })
    }

    fn measure(&self, plan: &Plan) -> Result<Measured, ExchangeError> {
        let mut spec = exchange::spec(self.link, self.hosts.as_ref(), &self.command);
        spec.congestion = self.congestion;
        crate::security::tell(&mut spec, &self.security);
        exchange::measure(plan, spec, &self.security)
    }
}

#[derive(Debug, clap::Args)]
struct IdleArgs {
    #[command(flatten)]
    between: Between,
    /// How long
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct FiguresArgs {
    /// Only these parts; several by commas
    #[arg(
        long,
        value_name = "PART",
        value_delimiter = ',',
        default_value = "pingpong,burst,dense,ethernet"
    )]
    part: Vec<PartName>,
    /// Times that each comparison is repeated in turn
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Rows of the dense system
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    n: u64,
    /// Small sizes and few rounds: checks the benchmark, gives no figures worth quoting
    #[arg(long)]
    smoke: bool,
    /// Write everything as JSON to this file, too
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object; the table goes to standard error
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum PartName {
    Pingpong,
    Burst,
    Dense,
    Ethernet,
}

/// The other side of an exchange.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// What is to be done, as JSON
    plan: String,
}

/// `64`, `64K`, `64KiB`, `1M`: bytes.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return Err("accepted are numbers of bytes like 8, 1500, 64K, 1M".to_owned()),
    };
    let number: usize = digits
        .parse()
        .map_err(|_| "accepted are numbers of bytes like 8, 1500, 64K, 1M".to_owned())?;
    let bytes = number.checked_mul(unit).filter(|&bytes| bytes <= 1 << 30);
    bytes.ok_or_else(|| "messages of at most 1 GiB are measured".to_owned())
}

fn serve_command() -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("this program's own file")?;
    Ok(vec![program.into(), "bench-serve".into()])
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    match args.what {
        What::Pingpong(what) => exchange(Kind::Pingpong, &what, args.inside),
        What::Burst(what) => exchange(Kind::Burst, &what, args.inside),
        What::Idle(what) => idle(&what, args.inside),
        What::Figures(args) => run_figures(&args),
    }
}

/// Runs the other side.
pub(crate) fn serve(args: ServeArgs) -> Outcome {
    match exchange::serve(&args.plan) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            tsumuji_node::report_error(&error.to_string());
            Err(error.into())
        }
    }
}

/// What two processes that wait take of a core.
fn idle(args: &IdleArgs, inside: bool) -> Outcome {
    let pair = Pair::of(&args.between, inside)?;
    let mut plan = Plan::new(Kind::Idle, 0);
    (plan.iterations, plan.spin, plan.cpus) = (args.seconds, false, None);
    let measured = pair.measure(&plan)?;
    let share = |side: Side| side.cpu_seconds / measured.seconds;
    let (sender, receiver) = (share(measured.sender), share(measured.receiver));
    eprintln!(
        "waiting over {} for {} s: {:.2} % and {:.2} % of a core",
        measured.link,
        args.seconds,
        sender * 100.0,
        receiver * 100.0
    );
    if args.json {
        output::print_json(
            &json!({ "kind": "idle", "link": measured.link, "seconds": measured.seconds, "cpu_share": [sender, receiver] }),
        );
    }
    Ok(DONE)
}

fn exchange(kind: Kind, args: &ExchangeArgs, inside: bool) -> Outcome {
    let pair = Pair::of(&args.between, inside)?;
    let machine = machine::describe();
    eprintln!("machine: {machine}");
    match machine::two_cpus() {
        Some([sender, receiver]) => {
            eprintln!(
                "sender bound to core {sender}, receiver to core {receiver}; {}",
                if args.no_spin {
                    "adaptive idling"
                } else {
                    "both spin"
                }
            );
        }
        None => {
            eprintln!("one core only: both sides share it, so this measures the scheduler, too")
        }
    }
    let rounds = if args.vs {
        args.rounds.max(5)
    } else {
        args.rounds
    } as usize;
    let mut results = Vec::new();
    for &size in &args.size {
        let mut plan = Plan::new(kind, size);
        plan.iterations = args.iterations.unwrap_or(plan.iterations);
        plan.spin &= !args.no_spin;
        let mut measured: Vec<Measured> = Vec::new();
        let mut failure = None;
        let ours = Contender::new(format!("tsumuji {}", pair.link), || {
            match pair.measure(&plan) {
                Ok(one) => {
                    measured.push(one);
                    Ok(headline(kind, measured.last().expect("just pushed")))
                }
                Err(error) => {
                    let text = error.to_string();
                    failure = Some(error);
                    Err(text)
                }
            }
        });
        let mut contenders = vec![ours];
        if args.vs {
            contenders.extend(bare(&plan, pair.link));
        }
        let standings = alternate(rounds, &mut contenders);
        drop(contenders);
        if let Some(error) = failure {
            return Err(error.into());
        }
        measured.sort_by(|a, b| headline(kind, a).total_cmp(&headline(kind, b)));
        let middle = measured.swap_remove(measured.len() / 2);
        eprint!("{}", describe(&middle, &standings));
        results.push(with_versus(&middle, &standings)?);
    }
    if args.json {
        // One size: its fields at the top, where scripts look for them.
        let mut object = match &results[..] {
            [only] => only.clone(),
            _ => json!({ "kind": results[0]["kind"], "link": results[0]["link"] }),
        };
        object["machine"] = serde_json::to_value(&machine)?;
        object["results"] = Value::Array(results);
        output::print_json(&object);
    }
    Ok(DONE)
}

/// The number by which rounds are compared.
fn headline(kind: Kind, measured: &Measured) -> f64 {
    match kind {
        Kind::Pingpong => measured.half_rtt_us.p50,
        Kind::Burst | Kind::Idle => measured.messages_per_second,
    }
}

/// The same exchange without any protocol.
fn bare(plan: &Plan, link: LinkSpec) -> Vec<Contender<'static>> {
    let Plan {
        kind,
        size,
        iterations,
        cpus,
        ..
    } = *plan;
    match (kind, link) {
        (Kind::Pingpong, LinkSpec::Shm) => vec![
            Contender::new("bare cache line", move || {
                Ok(limits::cacheline::pingpong(cpus, iterations).p50)
            }),
            Contender::new("bare copy", move || {
                Ok(limits::copy::pingpong(cpus, size, iterations).p50)
            }),
        ],
        (Kind::Burst, LinkSpec::Shm) => vec![Contender::new("bare copy", move || {
            Ok(limits::copy::burst(cpus, size, iterations))
        })],
        (Kind::Pingpong, _) => vec![Contender::new("bare UDP", move || {
            limits::udp::pingpong(cpus, size, iterations)
                .map(|half| half.p50)
                .map_err(|error| error.to_string())
        })],
        (Kind::Idle, _) => Vec::new(),
        (Kind::Burst, _) => vec![Contender::new("bare UDP", move || {
            limits::udp::burst(cpus, size, iterations)
                .map(|burst| burst.messages_per_second)
                .map_err(|error| error.to_string())
        })],
    }
}

fn with_versus(measured: &Measured, standings: &[Standing]) -> anyhow::Result<Value> {
    let mut value = serde_json::to_value(measured)?;
    if standings.len() > 1 {
        let better = if measured.kind == Kind::Pingpong {
            Better::Less
        } else {
            Better::More
        };
        let ratios = standings[1..].iter().map(|other| {
            let ratio = standings[0].ratio_to(other);
            json!({ "name": other.name, "median": other.median(), "ratio": ratio, "failure": other.result.as_ref().err() })
        });
        value["versus"] = json!({ "unit": if better == Better::Less { "half_rtt_us.p50" } else { "messages_per_second" },
            "better": better, "ours": standings[0].median(), "others": ratios.collect::<Vec<_>>() });
    }
    Ok(value)
}

fn describe(measured: &Measured, standings: &[Standing]) -> String {
    let mut text = String::new();
    let half = measured.half_rtt_us;
    let per_kb =
        |cost: Option<f64>| cost.map_or_else(|| "-".to_owned(), |cost| format!("{cost:.3}"));
    let _ = writeln!(
        text,
        "{} over {}, {} x {}",
        if measured.kind == Kind::Pingpong {
            "ping-pong"
        } else {
            "burst"
        },
        measured.link,
        measured.iterations,
        size_name(measured.size)
    );
    let _ = writeln!(
        text,
        "  half round trip   min {:.3}  p50 {:.3}  p99 {:.3}  p99.9 {:.3} us",
        half.min, half.p50, half.p99, half.p999
    );
    let _ = writeln!(
        text,
        "  throughput        {:.0} messages/s, {:.1} MB/s, {} frames sent again",
        measured.messages_per_second,
        measured.bytes_per_second / 1e6,
        measured.retransmitted_frames
    );
    for (name, side) in [("sender", measured.sender), ("receiver", measured.receiver)] {
        let _ = writeln!(
            text,
            "  CPU of {name:<10} {:.3} us a message, {} us a KB",
            side.cpu_us_per_message,
            per_kb(side.cpu_us_per_kb)
        );
    }
    for other in standings.iter().skip(1) {
        match &other.result {
            Ok(rounds) => {
                let ratio = standings[0].ratio_to(other);
                let _ = writeln!(
                    text,
                    "  beside {:<16} ours {:.3}, theirs {:.3} (+-{:.0} %), ratio {ratio:.3}",
                    other.name,
                    standings[0].median(),
                    rounds.median,
                    rounds.spread_percent() / 2.0
                );
            }
            Err(reason) => {
                let _ = writeln!(text, "  beside {:<16} - ({reason})", other.name);
            }
        }
    }
    text
}

fn run_figures(args: &FiguresArgs) -> Outcome {
    let pending = args
        .output
        .as_deref()
        .map(output::PendingFile::create)
        .transpose()?;
    let parts = args.part.iter().map(|part| match part {
        PartName::Pingpong => Part::Pingpong,
        PartName::Burst => Part::Burst,
        PartName::Dense => Part::Dense,
        PartName::Ethernet => Part::Ethernet,
    });
    let mut setting = Setting {
        program: std::env::current_exe().context("this program's own file")?,
        serve: serve_command()?,
        rounds: args.rounds as usize,
        n: args.n as usize,
        burst_bytes_max: 64 << 20,
        round_trips: 100_000,
        parts: parts.collect(),
    };
    if args.smoke {
        setting = Setting {
            rounds: 1,
            n: 200,
            burst_bytes_max: 64 << 10,
            round_trips: 500,
            ..setting
        };
    }
    let to_stderr = args.json;
    let report = figures::run(&setting, &mut |line| {
        if to_stderr {
            eprintln!("{line}")
        } else {
            output::print_text(&format!("{line}\n"))
        }
    });
    let value = serde_json::to_value(&report)?;
    if let Some(pending) = pending {
        pending.finish(|out| Ok(serde_json::to_writer_pretty(out, &value)?))?;
    }
    if args.json {
        output::print_json(&value);
    }
    Ok(if report.missed() == 0 {
        DONE
    } else {
        ExitCode::from(NOT_REACHED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as people write them; what is none says what is accepted.
    #[test]
    fn sizes() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("64K"), Ok(65536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for wrong in ["", "K", "-1", "1.5K", "8x", "2G", "99999999999999999999"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
