//! `tsumuji solve`: reads or makes a system, relaxes it by the chosen method, reports, and writes the solution.
//!
//! The process itself is the judge (node 0); workers are this same program, started as `tsumuji worker`. Everything that can be refused is
//! refused before a worker is started; the output file is opened at the start and gets its name only when it is whole.

mod circuit;
mod distributed;
mod history;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{bail, ensure};
use tsumuji_board::Elements;
use tsumuji_node::{Congestion, Executor, LinkSpec, MetricsAt, NodeId, quantity};
use tsumuji_solve::distributed::{Input, Mode, SolveConfig};
use tsumuji_solve::local::{Inner, Limits, Relaxation, single, threads};
use tsumuji_solve::outlook::Outlook;
use tsumuji_solve::report::{self, Reason};
use tsumuji_solve::system::formats::{read_system, write_vector};
use tsumuji_solve::system::{Generate, Order, System};

use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::team::Cluster;
use crate::{DONE, NOT_REACHED, Outcome, hosts, output};
use history::History;
use show::{Bar, Run, Traffic};

/// Solve A x = b by relaxation with several processes.
///
/// The residual that is reported is computed from A, b and x, never taken from the iteration. Without --rhs, b = A·1. Exit code
/// 1 if the tolerance was not reached, for whatever reason (which is named), a lost worker included; 130 if interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tsumuji solve A.mtx --rhs b.mtx --output x.npy --workers 4
  tsumuji solve --generate poisson2d:200 --link udp --loss 0.2
  tsumuji solve A.npy --mode sync --omega 1.2 --json
  tsumuji solve --generate poisson2d:300 --history fall.csv --plot fall.svg
  tsumuji solve amplifier.sp --output voltages.csv

Several hosts: --hosts FILE starts a worker on each node but the first, by ssh or the node's own command; node 0 is this process,
the judge. The file:
  [[node]]
  id = 0
  host = \"pc1\"
  addr = \"udp:10.0.0.1:7000\"
  [[node]]
  id = 1
  host = \"pc2\"
  addr = \"udp:10.0.0.2:7000\"
  via = [\"ssh\", \"-T\", \"pc2\"]
With --id I nothing is started: the same command runs on each host, with its own I.")]
pub(crate) struct Args {
    /// The matrix: Matrix Market (.mtx, .mtx.gz), NumPy (.npy) or Harwell-Boeing (.rua, .rsa); or a netlist of a circuit (.sp, .cir, .spice, .net)
    #[arg(value_name = "MATRIX")]
    matrix: Option<PathBuf>,
    /// Make a system instead: dense:N, poisson2d:K, poisson3d:K or circuit:N
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["matrix", "rhs"])]
    generate: Option<Generate>,
    /// The right-hand side (.mtx or .npy); default: A times ones
    #[arg(long, value_name = "FILE")]
    rhs: Option<PathBuf>,
    /// Write the solution to this file (.npy or .mtx)
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write how the residual fell, as CSV
    #[arg(long, value_name = "FILE.csv")]
    history: Option<PathBuf>,
    /// Draw how the residual fell
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Processes (or threads) that relax; default: one a core, at most one a row
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// The link: shm (default), udp, udp:ADDRESS:PORT or dpdk:net_memif (two processes); with --hosts udp, packet, xdp or dpdk:DEVICE [default there: the file's]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// async: no worker waits; sync: all workers wait for each other each lap; threads and single: without messages, to compare
    #[arg(long, value_name = "MODE", default_value = "async")]
    mode: ModeName,
    /// Which thread of a worker computes: the one that polls (rtc), one beside it (pipeline, for two cores a worker), or whichever makes laps faster
    /// (adaptive, the default)
    #[arg(long, value_name = "EXECUTOR")]
    executor: Option<Executor>,
    /// Elements in one frame
    #[arg(long, value_name = "E|auto", default_value = "auto")]
    elements: Elements,
    /// What a lap does within a worker's rows: sweep, lu (solve the block at once) or auto
    #[arg(long, value_name = "INNER", default_value = "auto")]
    inner: Inner,
    /// Relaxation factor, between 0 and 2
    #[arg(long, value_name = "W", default_value_t = 1.0)]
    omega: f64,
    /// Relative residual |b - A x| / |b| to reach
    #[arg(
        long,
        value_name = "T",
        default_value_t = 1e-10,
        allow_hyphen_values = true
    )]
    tol: f64,
    /// Give up after this many laps of the slowest worker
    #[arg(long, value_name = "L", default_value_t = 100_000)]
    max_laps: u64,
    /// Drop this fraction of received frames on purpose: 0.2 or 20%
    #[arg(long, value_name = "P", value_parser = quantity::loss)]
    loss: Option<f64>,
    /// Of everything random: generated systems, the choice of dropped frames
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Several hosts: the file that says which
    #[arg(long, value_name = "FILE", group = hosts::WITH_HOSTS)]
    hosts: Option<PathBuf>,
    #[command(flatten)]
    slots: hosts::Slots,
    /// Start nothing; be this node of the hosts file
    #[arg(long, value_name = "I", requires = "hosts")]
    id: Option<u16>,
    /// Path of tsumuji on the other hosts [default: the same path as here]
    #[arg(long, value_name = "PATH", requires = "hosts", conflicts_with = "id")]
    program: Option<PathBuf>,
    /// Congestion control: credit (default), or suci, where the receiver permits what is sent again after a loss
    #[arg(long, value_name = "CONTROL")]
    congestion: Option<Congestion>,
    #[command(flatten)]
    security: crate::security::Flags,
    /// This process is already where node 0 runs
    #[arg(long, hide = true, requires = "hosts")]
    inside: bool,
    /// Show counters as Prometheus text at ADDRESS:PORT (node i: PORT + i; `GET /metrics`); local: to `tsumuji top` only (default); off
    #[arg(long, value_name = "ADDR")]
    metrics: Option<MetricsAt>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    Async,
    Sync,
    Threads,
    Single,
}

impl ModeName {
    fn name(self) -> &'static str {
        match self {
            Self::Async => "async",
            Self::Sync => "sync",
            Self::Threads => "threads",
            Self::Single => "single",
        }
    }

    fn uses_messages(self) -> bool {
        matches!(self, Self::Async | Self::Sync)
    }
}

/// The system to solve: in memory, or made by each worker for itself.
enum Source {
    System(System),
    Recipe(Generate),
}

impl Source {
    fn rows(&self) -> usize {
        match self {
            Self::System(system) => system.n(),
            Self::Recipe(what) => what.n(),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::System(system) => system.name.clone(),
            Self::Recipe(what) => what.to_string(),
        }
    }

    fn outlook(&self, args: &Args) -> Outlook {
        match self {
            Self::System(system) => Outlook::of_matrix(&system.matrix, args.omega, args.tol),
            Self::Recipe(what) => Outlook::of_generated(what, args.omega, args.tol),
        }
    }

    /// The system in an order that puts strongly coupled unknowns on one worker, if there is a better one.
    fn ordered(self, workers: usize) -> (Self, Option<Order>) {
        let Self::System(system) = self else {
            return (self, None);
        };
        match Order::for_workers(&system.matrix, workers) {
            Some(order) => (Self::System(order.apply(&system)), Some(order)),
            None => (Self::System(system), None),
        }
    }

    fn input(&self) -> Input<'_> {
        match self {
            Self::System(system) => Input::System(system),
            Self::Recipe(what) => Input::Generate(what),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    if let Some(path) = circuit::netlist_of(&args) {
        return circuit::run(&args, &path);
    }
    if let (Some(hosts), Some(id)) = (&args.hosts, args.id)
        && id > 0
    {
        let file = hosts::read(hosts, args.link.as_ref(), args.slots)?;
        file.membership(NodeId(id), hosts)?;
        let security = args.security.stated(args.link.as_ref(), Some(&file))?;
        let cluster = Cluster { file, path: hosts };
        let team = distributed::team(&args, (Some(&cluster), 0), &security);
        return crate::worker::serve_host(team.open(&cluster, id, &mut || false)?);
    }
    check(&args)?;
    let cluster = match &args.hosts {
        Some(path) => {
            let file = hosts::read(path, args.link.as_ref(), args.slots)?;
            if args.id.is_none() && !args.inside {
                hosts::enter_node_0(&file, path)?;
            }
            Some(Cluster { file, path })
        }
        None => None,
    };
    let file = cluster.as_ref().map(|cluster| &cluster.file);
    let security = args.security.stated(args.link.as_ref(), file)?;
    let limits = Limits::new(args.tol, args.max_laps)?;
    let relaxation = Relaxation::new(args.inner, args.omega)?;

    let began = Instant::now();
    let (source, notes) = load(&args)?;
    let workers = workers(&args, cluster.as_ref(), source.rows())?;
    let mut run = Run {
        system: source.name(),
        rows: source.rows(),
        mode: args.mode.name().to_owned(),
        link: args.mode.uses_messages().then(|| match &cluster {
            Some(cluster) => cluster.file.link_name(),
            None => args.link.unwrap_or(LinkSpec::Shm).to_string(),
        }),
        executor: (args.mode.uses_messages())
            .then(|| args.executor.unwrap_or_default().to_string()),
        workers,
        ..Run::default()
    };
    eprintln!(
        "{}: {} rows, {} by {workers}, tolerance {:e}",
        run.system, run.rows, run.mode, args.tol
    );
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    let outlook = source.outlook(&args);
    // From here on there is something to report; before, an interrupt just ends the program.
    let interrupt = Interrupt::listen()?;
    eprintln!("outlook: {outlook}");
    run.outlook = Some(outlook);
    let (source, order) = source.ordered(workers);
    let load_seconds = began.elapsed().as_secs_f64();

    let mut bar = Bar::new(args.tol);
    let mut history = History::default();
    let mut progress = |progress: report::Progress| {
        bar.update(&progress);
        history.note(&progress);
    };
    let stop = || interrupt.is_set();
    let (mut outcome, traffic) = match (args.mode, source) {
        (ModeName::Single, Source::System(system)) => (
            single::solve_until(system, relaxation, limits, progress, stop)?,
            Traffic::of_this_process(),
        ),
        (ModeName::Threads, Source::System(system)) => (
            threads::solve_until(system, workers, relaxation, limits, progress, stop)?,
            Traffic::of_this_process(),
        ),
        (_, source) => {
            let config = SolveConfig {
                mode: if args.mode == ModeName::Sync {
                    Mode::Sync
                } else {
                    Mode::Async
                },
                executor: args.executor.unwrap_or_default(),
                elements: args.elements,
                inner: args.inner,
                omega: args.omega,
                tol: args.tol,
                max_laps: args.max_laps,
                seed: args.seed,
            };
            distributed::solve(
                &args,
                (cluster.as_ref(), security),
                workers,
                source.input(),
                &config,
                &mut progress,
                &interrupt,
            )?
        }
    };
    bar.finish();
    outcome.seconds.load = load_seconds;
    if let (Some(order), false) = (order, outcome.x.is_empty()) {
        outcome.x = order.restore(&outcome.x);
    }

    if !outcome.reason.is_converged() {
        eprintln!("tsumuji: {}", outcome.reason);
    }
    history.end(&outcome);
    history.write(args.history.as_deref())?;
    let title = format!("{}, {} by {}", run.system, run.mode, run.workers);
    history.draw(args.plot.as_deref(), &title)?;
    // An unfinished solution must not replace a complete one that may be there.
    let unfinished = outcome.reason == Reason::Interrupted || outcome.x.is_empty();
    if let (Some(path), false) = (&args.output, unfinished) {
        write_vector(path, &outcome.x)?;
    }
    if args.json {
        output::print_json(&show::json_of(&run, &outcome, &traffic)?);
    } else if !outcome.laps.is_empty() {
        output::print_text(&show::table(&run, &outcome, &traffic));
    }
    Ok(match outcome.reason {
        Reason::Interrupted => ExitCode::from(INTERRUPTED),
        _ if outcome.converged => DONE,
        _ => ExitCode::from(NOT_REACHED),
    })
}

/// Checks that need not read the system.
fn check(args: &Args) -> anyhow::Result<()> {
    if args.matrix.is_none() && args.generate.is_none() {
        bail!(
            "nothing to solve: give a matrix file, or --generate dense:N, poisson2d:K, poisson3d:K or circuit:N"
        );
    }
    if let Some(path) = &args.output {
        let ending = path
            .extension()
            .and_then(|ending| ending.to_str())
            .unwrap_or("");
        ensure!(
            ["npy", "mtx"]
                .iter()
                .any(|known| ending.eq_ignore_ascii_case(known)),
            "{}: solutions are written as .npy or .mtx; give a name that ends so",
            path.display()
        );
        output::check_writable(path)?;
    }
    if let Some(path) = &args.history {
        output::check_writable(path)?;
    }
    if let Some(path) = &args.plot {
        output::check_plot(path)?;
    }
    if !args.mode.uses_messages() {
        for (flag, is_given) in [
            ("--link", args.link.is_some()),
            ("--loss", args.loss.is_some()),
            ("--executor", args.executor.is_some()),
            ("--elements", args.elements != Elements::Auto),
            ("--congestion", args.congestion.is_some()),
            ("--metrics", args.metrics.is_some()),
            ("--key, --seal and --open", args.security.is_given()),
        ] {
            ensure!(
                !is_given,
                "{flag}: no effect with --mode {}, which sends no messages; leave it out, or use --mode async or sync",
                args.mode.name()
            );
        }
    }
    if args.hosts.is_none() {
        hosts::check_one_host(args.link.as_ref())?;
    } else {
        ensure!(
            args.mode.uses_messages(),
            "--mode {} runs on one host; with --hosts use async or sync",
            args.mode.name()
        );
        ensure!(
            args.workers.is_none(),
            "--workers and --hosts exclude each other: the cluster file says who takes part"
        );
    }
    Ok(())
}

fn load(args: &Args) -> anyhow::Result<(Source, Vec<String>)> {
    match (&args.matrix, &args.generate) {
        (Some(path), _) => {
            let (system, notes) = read_system(path, args.rhs.as_deref())?;
            Ok((Source::System(system), notes))
        }
        (None, Some(what)) if args.mode.uses_messages() => {
            what.check_memory()?;
            Ok((Source::Recipe(*what), Vec::new()))
        }
        (None, Some(what)) => Ok((Source::System(what.system(args.seed)?), Vec::new())),
        (None, None) => unreachable!("refused by `check`"),
    }
}

/// Number of workers: as asked for, or one for each core.
fn workers(args: &Args, cluster: Option<&Cluster<'_>>, rows: usize) -> anyhow::Result<usize> {
    if let Some(cluster) = cluster {
        let workers = cluster.workers()?;
        ensure!(
            workers <= rows,
            "{workers} workers in {} for {rows} rows: each must own a row",
            cluster.path.display()
        );
        return Ok(workers);
    }
    let workers = match (args.mode, args.workers) {
        (ModeName::Single, None | Some(1)) => 1,
        (ModeName::Single, Some(workers)) => bail!("--mode single has one worker, not {workers}"),
        (_, Some(0)) => bail!("0 workers solve nothing; use at least 1"),
        (_, Some(workers)) => workers,
        (_, None) => std::thread::available_parallelism()
            .map_or(1, std::num::NonZero::get)
            .min(rows),
    };
    ensure!(
        workers <= rows,
        "{workers} workers for {rows} rows: use at most {rows} workers, each must own a row"
    );
    Ok(workers)
}
