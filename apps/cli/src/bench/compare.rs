//! `tsumuji bench OPERATION --sizes … --vs …`: one operation at many sizes, compared with its peers, as a table, CSV, JSON and plot.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::{self, Comparison, Listener, Plan};
use tsumuji_bench::contest::{self, Ground, Ours, Peer, testbed};
use tsumuji_bench::limits::place::Place;
use tsumuji_bench::ops::Op;
use tsumuji_bench::plot;
use tsumuji_bench::stop;
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::{ClusterFile, LinkSpec};
use tsumuji_testbed::{Rate, Testbed};

use super::between::Between;
use super::sizes::Sizes;
use crate::interrupt::Interrupted;
use crate::named::named;
use crate::output::Files;
use crate::talk::Talk;
use crate::{DONE, NOT_REACHED, Outcome, hosts};

/// Default rounds with peers.
const ROUNDS: u64 = 3;
/// Default nodes of an operation among several.
const NODES: usize = 4;
/// Default sizes.
const SIZES: [usize; 5] = [4, 64, 1 << 10, 16 << 10, 64 << 10];

/// What an operation is put beside, and where it goes.
#[derive(Debug, clap::Args)]
pub(super) struct Beside {
    /// Bytes of a message; several by commas, and ranges by powers of two: 4..64M,1500
    #[arg(
        long,
        value_name = "SIZES",
        value_delimiter = ',',
        conflicts_with = "size"
    )]
    sizes: Option<Vec<Sizes>>,
    /// Beside these, in turn: mpich, openmpi, tcp, udp, zeromq; without names: the bare exchange of the machine
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
}

const PEERS: [(&str, Peer); 6] = [
    ("bare", Peer::Bare),
    ("mpich", Peer::Mpich),
    ("openmpi", Peer::OpenMpi),
    ("tcp", Peer::Tcp),
    ("udp", Peer::Udp),
    ("zeromq", Peer::ZeroMq),
];

impl Beside {
    /// Whether more is asked for than one exchange in detail.
    pub(super) fn is_comparison(&self, between: &Between) -> bool {
        let files = self.csv.is_some() || self.plot.is_some();
        let several = between.congestion.len() > 1;
        self.sizes.is_some() || self.vs.is_some() || files || self.testbed || several
    }
}

/// Operations among several nodes.
#[derive(Debug, clap::Args)]
pub(super) struct GroupArgs {
    #[command(flatten)]
    between: Between,
    /// Nodes, the root included; default: 4, or all of the hosts file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=253))]
    nodes: Option<u16>,
    /// Bytes of a message or block; like --sizes, without ranges
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = super::sizes::size)]
    size: Vec<usize>,
    /// Repetitions of one measurement; default: by size
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Repeat, and report medians; default: 3 beside peers, else 1
    #[arg(long, value_name = "R", value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: Option<u64>,
    /// Nodes send only as fast as receivers answer: Suci's slow write
    #[arg(long)]
    slow_write: bool,
    #[command(flatten)]
    beside: Beside,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The options of a comparison, from any of the commands.
pub(super) struct Asked<'a> {
    pub(super) op: Op,
    pub(super) between: &'a Between,
    pub(super) beside: &'a Beside,
    pub(super) nodes: Option<usize>,
    pub(super) sizes: &'a [usize],
    pub(super) iterations: Option<u64>,
    pub(super) rounds: Option<u64>,
    pub(super) slow_write: bool,
    pub(super) json: bool,
}

/// Runs an operation among several nodes.
pub(super) fn run_group(op: Op, args: &GroupArgs, inside: bool) -> Outcome {
    let sizes = if args.size.is_empty() {
        &SIZES
    } else {
        &args.size[..]
    };
    let asked = Asked {
        op,
        between: &args.between,
        beside: &args.beside,
        nodes: args.nodes.map(usize::from),
        sizes,
        iterations: args.iterations,
        rounds: args.rounds,
        slow_write: args.slow_write,
        json: args.json,
    };
    run(&asked, inside)
}

/// The place of a comparison, made ready. The testbed is removed when this is dropped.
struct Stage {
    ours: Ours,
    ground: Ground,
    nodes: usize,
    _testbed: Option<Testbed>,
}

/// Runs a comparison.
pub(super) fn run(asked: &Asked<'_>, inside: bool) -> Outcome {
    let beside = asked.beside;
    let files = Files::of(beside.csv.as_ref(), beside.plot.as_ref())?;
    let mut stage = stage(asked, inside)?;
    stage.ours.slow_write = asked.slow_write;
    let ours: Vec<Ours> = match &asked.between.congestion[..] {
        [] => vec![stage.ours.clone()],
        several => {
            let by = |&congestion| Ours {
                congestion: Some(congestion),
                ..stage.ours.clone()
            };
            several.iter().map(by).collect()
        }
    };
    let sizes = match &beside.sizes {
        Some(sizes) => sizes.iter().flat_map(|sizes| sizes.0.clone()).collect(),
        None => asked.sizes.to_vec(),
    };
    if asked.op == Op::Allreduce {
        let odd = sizes.iter().find(|&&size| size == 0 || size % 4 != 0);
        if let Some(odd) = odd {
            bail!("allreduce adds numbers of 4 and 8 bytes, and {odd} bytes are no such numbers");
        }
    }
    let peers = beside.vs.as_deref().unwrap_or_default();
    let alone = peers.is_empty() && ours.len() == 1;
    let plan = Plan {
        op: asked.op,
        nodes: stage.nodes,
        sizes,
        iterations: asked.iterations,
        bits_per_second: beside.rate.map(Rate::bits_per_second),
        rounds: asked.rounds.unwrap_or(if alone { 1 } else { ROUNDS }) as usize,
    };
    let (mut talk, machine) = Talk::begin(asked.json);
    talk.say(&format!(
        "{} among {} nodes over {}, {} {} in turn; {}",
        plan.op,
        plan.nodes,
        stage.ours.link,
        plan.rounds,
        if plan.rounds == 1 { "round" } else { "rounds" },
        if plan.nodes > machine.cores {
            "nodes outnumber cores: all give their core away when idle"
        } else {
            "each spins on a core of its own"
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
    let ours = |row: &'_ compare::Row| row.contenders[0].numbers.is_some();
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
    let link = stage.ours.link.to_string();
    files.write(
        || comparison.csv(),
        || {
            let title = format!("{} over {link}, {} nodes", plan.op, plan.nodes);
            let (unit, lines) = comparison.lines();
            plot::svg(&title, unit, &lines)
        },
    )?;
    talk.end(&object(&comparison, &link)?)?;
    Ok(if comparison.results.iter().all(ours) {
        DONE
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

fn stage(asked: &Asked<'_>, inside: bool) -> anyhow::Result<Stage> {
    let between = asked.between;
    let program = std::env::current_exe().context("this program's own file")?;
    let usual = if asked.op.is_pair() { 2 } else { NODES };
    if asked.beside.testbed {
        let link = between.link.unwrap_or(LinkSpec::Udp(None));
        let nodes = asked.nodes.unwrap_or(usual);
        let slots = between.slots.slots;
        return staged_in_testbed(link, (nodes, slots), asked.beside, program);
    }
    let Some(path) = &between.hosts else {
        let link = between.link.unwrap_or(LinkSpec::Shm);
        let joins = match link {
            LinkSpec::Shm | LinkSpec::Udp(_) => true,
            // Of devices that join two processes.
            LinkSpec::Dpdk(_) => asked.op.is_pair(),
            _ => false,
        };
        ensure!(
            joins,
            "--link {link}: joins hosts, not processes of one; give --hosts FILE or --testbed"
        );
        let stated = between.security.stated(between.link.as_ref(), None)?;
        let mut ours = Ours::here(link, program);
        ours.security = stated;
        return Ok(Stage {
            ours,
            ground: Ground::HERE,
            nodes: asked.nodes.unwrap_or(usual),
            _testbed: None,
        });
    };
    ensure!(
        between.to.is_none(),
        "--to: tables are of the first nodes; give one size"
    );
    let file = hosts::read(path, between.link.as_ref(), between.slots)?;
    let all = file.hosts().len();
    let nodes = asked
        .nodes
        .unwrap_or(if asked.op.is_pair() { 2 } else { all });
    ensure!(
        (2..=all).contains(&nodes),
        "{}: {nodes} nodes are asked for, and it has {all}; two at least are needed",
        path.display()
    );
    if asked.beside.vs.is_none() && !inside {
        hosts::enter_node_0(&file, path)?;
    }
    let stated = between
        .security
        .stated(between.link.as_ref(), Some(&file))?;
    let link = file.hosts()[0].link;
    let mut ours = Ours::here(link, program);
    ours.security = stated;
    if asked.beside.vs.is_some() {
        // The first node is started in its host; peers are started in the hosts from here.
        ours.link = between.link.unwrap_or(link);
        ours.slots = between.slots.slots;
        ours.program_there.clone_from(&between.program);
        ours.hosts_file = Some(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
    } else {
        let mut all: Hosts = hosts::of(&file, hosts::program(between.program.as_ref())?);
        all.nodes.truncate(nodes);
        ours.program = PathBuf::from(hosts::program(between.program.as_ref())?);
        ours.hosts = Some(all);
    }
    Ok(Stage {
        ours,
        ground: ground_of(&file),
        nodes,
        _testbed: None,
    })
}

/// Makes a testbed for so many nodes, `slots` on each host, and places ours in it.
fn staged_in_testbed(
    link: LinkSpec,
    (nodes, slots): (usize, Option<u16>),
    beside: &Beside,
    program: PathBuf,
) -> anyhow::Result<Stage> {
    ensure!(
        link != LinkSpec::Shm,
        "--link shm: shared memory does not reach from host to host; use udp, packet or xdp with --testbed"
    );
    let each = slots.unwrap_or(1);
    let hosts = nodes.checked_div(each.into()).unwrap_or(0);
    ensure!(
        hosts > 1 && hosts * usize::from(each) == nodes,
        "--slots {each}: {nodes} nodes are not on several hosts of as many each; give --nodes"
    );
    let testbed = testbed(hosts, beside.rate, beside.mtu)?;
    let mut ours = Ours::between(link, program, testbed.hosts_file());
    ours.slots = slots;
    let file = ClusterFile::read_with_slots(testbed.hosts_file(), each)?;
    Ok(Stage {
        ours,
        ground: ground_of(&file),
        nodes,
        _testbed: Some(testbed),
    })
}

/// Peers can run in namespaces of this machine, not on other hosts.
fn ground_of(file: &ClusterFile) -> Ground {
    let place = |node| Place::of_node(node).filter(|place| !place.interface.is_empty());
    let places: Option<Vec<_>> = file.hosts().iter().map(place).collect();
    let reason = "peers are led to hosts of a testbed only";
    Ground {
        closed: places.is_none().then(|| reason.to_owned()),
        places: places.unwrap_or_default(),
    }
}
