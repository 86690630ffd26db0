//! `tsumuji bench OPERATION --sizes … --vs …`: one operation at many sizes, compared with its peers, as a table, CSV, JSON and plot.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::{self, Comparison, Listener, Plan, Row};
use tsumuji_bench::contest::{self, Ground, Ours, Peer, testbed};
use tsumuji_bench::exchange::Side;
use tsumuji_bench::limits::place::Place;
use tsumuji_bench::ops::Op;
use tsumuji_bench::stats::counted;
use tsumuji_bench::{plot, stop, table};

use tsumuji_node::{ClusterFile, HostNode, LinkSpec};
use tsumuji_testbed::{Rate, Testbed};

use super::between::{Between, Pair};
use super::sizes::Sizes;
use crate::interrupt::Interrupted;
use crate::named::named;
use crate::output::Files;
use crate::talk::Talk;
use crate::{NOT_REACHED, Outcome, hosts};

/// Default rounds with peers.
const ROUNDS: u64 = 3;
/// Default nodes of an operation among several.
const NODES: usize = 4;
/// Default size of an operation between two.
const SIZE: usize = 8;
/// Default sizes of an operation among several.
const SIZES: [usize; 5] = [4, 64, 1 << 10, 16 << 10, 64 << 10];

/// What all operations ask for.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    between: Between,
    /// Bytes of a message or block; several by commas; K, M and G are powers of 1024 [default: 8; among several nodes 4,64,1K,16K,64K]
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = super::sizes::size)]
    size: Vec<usize>,
    /// Repetitions of one measurement; default: by size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Repeat, and report medians; default: 3 beside peers, else 1
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Bytes of a message; several by commas, and ranges by powers of two: 4..64M,1500
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        conflicts_with = "size"
    )]
    sizes: Option<Vec<Sizes>>,
    /// Beside these, in turn: mpich, openmpi, tcp (in bursts a second time with batched calls), udp, zeromq; without names: the bare exchange of the machine
    #[arg(long, value_name = "PEERS", value_delimiter = ',', num_args = 0..=1, default_missing_value = "bare", value_parser = named(PEERS))]
    vs: Option<Vec<Peer>>,
    /// Write every number as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw size against time or throughput, both logarithmic
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Between hosts of a testbed that is made for this (root; see `tsumuji testbed`)
    #[arg(long, conflicts_with_all = ["hosts", "program"], group = hosts::WITH_HOSTS)]
    testbed: bool,
    /// Rate of every cable of the testbed, such as 100mbit or 1gbit
    #[arg(long, value_name = "RATE", requires = "testbed")]
    rate: Option<Rate>,
    /// MTU of the testbed
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 1500,
        requires = "testbed"
    )]
    mtu: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Operations between two.
#[derive(Debug, clap::Args)]
pub(super) struct PairArgs {
    #[command(flatten)]
    all: Args,
    /// Let idle processes yield and sleep instead of spinning
    #[arg(long)]
    no_spin: bool,
}

/// Operations among several nodes.
#[derive(Debug, clap::Args)]
pub(super) struct GroupArgs {
    #[command(flatten)]
    all: Args,
    /// Nodes, the root included; default: 4, or all of the hosts file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=253))]
    nodes: Option<u16>,
    /// Nodes send only as fast as receivers answer: Suci's slow write
    #[arg(long)]
    slow_write: bool,
}

const PEERS: [(&str, Peer); 6] = [
    ("bare", Peer::Bare),
    ("mpich", Peer::Mpich),
    ("openmpi", Peer::OpenMpi),
    ("tcp", Peer::Tcp),
    ("udp", Peer::Udp),
    ("zeromq", Peer::ZeroMq),
];

/// What only some operations ask for.
#[derive(Debug, Clone, Copy, Default)]
struct How {
    nodes: Option<usize>,
    slow_write: bool,
    no_spin: bool,
}

/// Runs an operation between two.
pub(super) fn run_pair(op: Op, args: &PairArgs, inside: bool) -> Outcome {
    let how = How {
        nodes: Some(2),
        no_spin: args.no_spin,
        ..How::default()
    };
    run(op, &args.all, how, inside)
}

/// Runs an operation among several nodes.
pub(super) fn run_group(op: Op, args: &GroupArgs, inside: bool) -> Outcome {
    let how = How {
        nodes: args.nodes.map(usize::from),
        slow_write: args.slow_write,
        ..How::default()
    };
    run(op, &args.all, how, inside)
}

/// The place of a comparison, made ready. The testbed is removed when this is dropped.
struct Stage {
    ours: Ours,
    ground: Ground,
    nodes: usize,
    _testbed: Option<Testbed>,
}

/// Runs a comparison.
fn run(op: Op, args: &Args, how: How, inside: bool) -> Outcome {
    let files = Files::of(args.csv.as_ref(), args.plot.as_ref())?;
    let stage = stage(op, args, how, inside)?;
    let ours: Vec<Ours> = match &args.between.congestion[..] {
        [] => vec![stage.ours.clone()],
        several => {
            let by = |&congestion| Ours {
                congestion: Some(congestion),
                ..stage.ours.clone()
            };
            several.iter().map(by).collect()
        }
    };
    let sizes = match (&args.sizes, &args.size[..]) {
        (Some(sizes), _) => Sizes::of_all(sizes),
        (None, []) if op.is_pair() => vec![SIZE],
        (None, []) => SIZES.to_vec(),
        (None, sizes) => sizes.to_vec(),
    };
    if op == Op::Allreduce {
        let odd = sizes.iter().find(|&&size| size == 0 || size % 4 != 0);
        if let Some(odd) = odd {
            bail!("allreduce adds numbers of 4 and 8 bytes, and {odd} bytes are no such numbers");
        }
    }
    let peers = args.vs.as_deref().unwrap_or_default();
    let alone = peers.is_empty() && ours.len() == 1;
    let plan = Plan {
        op,
        nodes: stage.nodes,
        sizes,
        iterations: args.iterations,
        bits_per_second: args.rate.map(Rate::bits_per_second),
        rounds: args.rounds.unwrap_or(if alone { 1 } else { ROUNDS }) as usize,
    };
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say(&format!(
        "{} among {} nodes over {}, {} in turn; {}",
        plan.op,
        plan.nodes,
        stage.ours.link,
        counted(plan.rounds, "round", "s"),
        match stage.ours.spins {
            _ if plan.nodes > machine.cores =>
                "nodes outnumber cores: all give their core away when idle",
            true => "each spins on a core of its own",
            false => "adaptive idling",
        }
    ));
    let comparison = {
        let mut contenders = contest::contenders(&ours, peers, &stage.ground, plan.op);
        let is_line_passed = stage.ours.link == LinkSpec::Shm && plan.op == Op::Pingpong;
        if is_line_passed && peers.contains(&Peer::Bare) {
            contenders.push(contest::cache_line());
        }
        compare::run(&plan, &mut contenders, machine, &mut talk)
    };
    ensure!(!stop::is_wanted(), Interrupted);
    let ours = |row: &Row| row.contenders[0].numbers.is_some();
    if !comparison.results.iter().any(ours) {
        let reason = comparison
            .results
            .first()
            .and_then(|row| row.contenders[0].failure.clone());
        bail!(
            "{}",
            reason.unwrap_or_else(|| "no size was measured".to_owned())
        );
    }
    if alone && let [row] = &comparison.results[..] {
        talk.say(&detail(row).unwrap_or_default());
    }
    let link = stage.ours.link.to_string();
    let written = files.write(
        || comparison.csv(),
        || {
            let title = format!("{} over {link}, {} nodes", plan.op, plan.nodes);
            let (unit, lines) = comparison.lines();
            plot::svg(&title, unit, &lines)
        },
    );
    let code = talk.end_with_files(object(&comparison, &link)?, written)?;
    Ok(if comparison.results.iter().all(ours) {
        code
    } else {
        ExitCode::from(NOT_REACHED)
    })
}

/// The comparison as one JSON object. Each result has our own numbers at its top, as those of single sizes do; with one size only, they are at the
/// top of the object, too.
pub(crate) fn object(comparison: &Comparison, link: &str) -> anyhow::Result<Value> {
    let mut results = Vec::new();
    for row in &comparison.results {
        let mut result =
            json!({ "kind": comparison.kind, "link": link, "nodes": comparison.nodes });
        let cell = &row.contenders[0];
        for part in [
            serde_json::to_value(cell.middle())?,
            serde_json::to_value(cell.numbers)?,
            serde_json::to_value(row)?,
        ] {
            if let (Value::Object(into), Value::Object(part)) = (&mut result, part) {
                into.extend(part.into_iter().filter(|(_, value)| !value.is_null()));
            }
        }
        if let Some(numbers) = &cell.numbers {
            let messages = cell.middle().map(|one| one.messages_per_second(row.job()));
            result["messages_per_second"] = json!(messages);
            result["bytes_per_second"] = json!(numbers.bytes_per_second);
        }
        for other_than_ours in ["median", "min", "max", "rounds", "ratio", "times_better"] {
            if let Value::Object(result) = &mut result {
                result.remove(other_than_ours); // they are fields of the contenders
            }
        }
        results.push(result);
    }
    let mut object = match &results[..] {
        [only] => only.clone(),
        _ => json!({ "kind": comparison.kind, "link": link, "nodes": comparison.nodes }),
    };
    object["unit"] = json!(comparison.unit);
    object["better"] = serde_json::to_value(comparison.better)?;
    object["machine"] = serde_json::to_value(&comparison.machine)?;
    object["results"] = Value::Array(results);
    Ok(object)
}

/// More of an exchange that was measured alone.
fn detail(row: &Row) -> Option<String> {
    let sample = row.contenders[0].middle()?;
    let (half, ends) = (sample.half_rtt_us?, sample.ends?);
    let cost = |side: Side| {
        let per_kb = table::number(side.cpu_us_per_kb, 3, "");
        format!(
            "{:.3} us a message, {per_kb} us a KB",
            side.cpu_us_per_message
        )
    };
    Some(format!(
        "  half round trip   min {:.3}  p50 {:.3}  p99 {:.3}  p99.9 {:.3} us\n  \
         CPU of sender     {}\n  \
         CPU of receiver   {}\n  \
         {} frames sent again",
        half.min,
        half.p50,
        half.p99,
        half.p999,
        cost(ends.sender),
        cost(ends.receiver),
        sample.retransmitted_frames.unwrap_or(0)
    ))
}

fn stage(op: Op, args: &Args, how: How, inside: bool) -> anyhow::Result<Stage> {
    let between = &args.between;
    ensure!(
        !how.no_spin || (args.vs.is_none() && !args.testbed),
        "--no-spin: where exchanges are compared, all spin"
    );
    ensure!(
        between.to.is_none() || (op.is_pair() && args.vs.is_none()),
        "--to: comparisons, and operations among several, are of the first nodes; leave it out"
    );
    // Or all of the file.
    let nodes = how.nodes.or(between.hosts.is_none().then_some(NODES));
    if args.testbed {
        return staged_in_testbed(nodes.unwrap_or(NODES), args, how);
    }
    if let (Some(link), None) = (&between.link, &between.hosts) {
        let joins = match link {
            LinkSpec::Shm | LinkSpec::Udp(_) => true,
            // Of devices that join two processes.
            LinkSpec::Dpdk(_) => op.is_pair(),
            _ => false,
        };
        ensure!(
            joins,
            "link `{link}` joins hosts, one process each; say which by --hosts FILE, or make some by --testbed"
        );
    }
    // With peers, the first node is started in its host; peers are started in the hosts from here.
    let pair = Pair::open(between, inside || args.vs.is_some(), nodes)?;
    let mut ours = Ours {
        spins: !(how.no_spin || op.is_pair() && pair.needs_cores_for_relays()),
        receiver: between.to,
        slow_write: how.slow_write,
        security: pair.security,
        ..Ours::here(pair.link, pair.program.into())
    };
    let mut ground = Ground::HERE;
    match (pair.hosts, &between.hosts) {
        (Some(hosts), Some(path)) if args.vs.is_some() => {
            ours.link = between.link.unwrap_or(ours.link);
            ours.program = std::env::current_exe().context("this program's own file")?;
            ours.slots = between.slots.slots;
            ours.program_there.clone_from(&between.program);
            ours.hosts_file = Some(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
            ground = ground_of(&hosts.nodes);
        }
        (hosts, _) => ours.hosts = hosts,
    }
    Ok(Stage {
        ours,
        ground,
        nodes: pair.nodes,
        _testbed: None,
    })
}

/// Makes a testbed for so many nodes, and places ours in it.
fn staged_in_testbed(nodes: usize, args: &Args, how: How) -> anyhow::Result<Stage> {
    let between = &args.between;
    let link = between.link.unwrap_or(LinkSpec::Udp(None));
    ensure!(
        link != LinkSpec::Shm,
        "--link shm: shared memory does not reach from host to host; use udp, packet or xdp with --testbed"
    );
    let each = between.slots.slots.unwrap_or(1);
    let hosts = nodes.checked_div(each.into()).unwrap_or(0);
    ensure!(
        hosts > 1 && hosts * usize::from(each) == nodes,
        "--slots {each}: {nodes} nodes are not on several hosts of as many each; give --nodes"
    );
    let testbed = testbed(hosts, args.rate, args.mtu)?;
    let program = std::env::current_exe().context("this program's own file")?;
    let mut ours = Ours::between(link, program, testbed.hosts_file());
    (ours.slots, ours.slow_write) = (between.slots.slots, how.slow_write);
    let file = ClusterFile::read_with_slots(testbed.hosts_file(), each)?;
    Ok(Stage {
        ours,
        ground: ground_of(file.hosts()),
        nodes,
        _testbed: Some(testbed),
    })
}

/// Peers can run in namespaces of this machine, not on other hosts.
fn ground_of(nodes: &[HostNode]) -> Ground {
    let place = |node| Place::of_node(node).filter(|place| !place.interface.is_empty());
    let places: Option<Vec<_>> = nodes.iter().map(place).collect();
    let reason = "peers are led to hosts of a testbed only";
    Ground {
        closed: places.is_none().then(|| reason.to_owned()),
        places: places.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tsumuji_bench::compare::Contender;
    use tsumuji_bench::exchange::Ends;
    use tsumuji_bench::machine;
    use tsumuji_bench::ops::{Job, Sample};
    use tsumuji_bench::stats::HalfRtt;

    /// An exchange that was measured alone is told with its slowest round trips and both sides' costs, also at the top of the object, from which its
    /// sample can be read again.
    #[test]
    fn one_exchange_has_all_its_numbers() {
        let side = |cpu_us_per_message| Side {
            cpu_seconds: 0.5,
            cpu_us_per_message,
            cpu_us_per_kb: None,
        };
        let ends = Ends {
            frame_bytes: 1500,
            sender: side(1.5),
            receiver: side(2.5),
            cpus: None,
        };
        let half = HalfRtt {
            min: 1.0,
            p50: 2.0,
            p99: 3.0,
            p999: 4.0,
        };
        let span = Duration::from_secs(1);
        let sample = Sample {
            half_rtt_us: Some(half),
            ends: Some(ends),
            ..Sample::new(span, span)
        };
        let plan = Plan {
            op: Op::Pingpong,
            nodes: 2,
            sizes: vec![8],
            iterations: Some(10),
            bits_per_second: None,
            rounds: 1,
        };
        let mut contenders = [Contender::new("ours", move |_: &Job| Ok(sample))];
        let machine = machine::describe();
        let found = compare::run(&plan, &mut contenders, machine, &mut |_: &str| {});
        let text = detail(&found.results[0]).unwrap();
        for part in [
            "p99.9 4.000 us",
            "1.500 us a message, - us a KB",
            "2.500 us",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let object = object(&found, "shm").unwrap();
        assert_eq!(object["receiver"]["cpu_us_per_message"], 2.5, "{object}");
        assert_eq!(object["half_rtt_us"]["p999"], 4.0, "{object}");
        let read: Sample = serde_json::from_value(object["results"][0].clone()).unwrap();
        assert_eq!((read.half_rtt_us, read.ends), (Some(half), Some(ends)));
    }
}
