//! `tsumuji solve`: reads or makes a system, solves it by the chosen method, reports, and writes the solution. Netlists: `circuit`.
//!
//! One process solves by itself (`how`). Otherwise this one is the judge (node 0), and workers are this same program, started as `tsumuji worker`.
//! Everything that can be refused is refused before a worker is started; the output file is opened at the start and gets its name only when it is whole.

pub(crate) mod circuit;
mod distributed;
mod history;
mod how;
mod kept;
mod planned;
mod show;
mod swept;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tsumuji_board::Elements;
use tsumuji_node::Executor;
use tsumuji_solve::distributed::{Shares, SolveConfig, Start};
use tsumuji_solve::krylov::Preconditioning;
use tsumuji_solve::local::{Inner, Limits, Precision, Relaxation, single, threads};
use tsumuji_solve::method::{self, Method};
use tsumuji_solve::outlook::Outlook;
use tsumuji_solve::plan::Asked;
use tsumuji_solve::report::{self, Reason};
use tsumuji_solve::system::formats::{read_system_watched, read_vector, write_vector};
use tsumuji_solve::system::{Generate, Generated, Order, Solution, Source};
use tsumuji_testbed::Rate;

use crate::given::Given;
use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::named::{name_of, named};
use crate::output::{self, Files};
use crate::sweep::Sweep;
use crate::team::{self, TeamArgs};
use crate::{DONE, NOT_REACHED, Outcome};
pub(crate) use distributed::work;
use history::History;
use how::{How, Settled};
pub(crate) use planned::model as link_model;
use planned::{Compared, PlanName};
pub(crate) use show::header_bytes;
use show::{Bar, Run, Traffic};

/// Names of `--preconditioner`.
const PRECONDITIONERS: [(&str, Preconditioning); 5] = [
    ("jacobi", Preconditioning::Jacobi),
    ("ilu", Preconditioning::Ilu),
    ("milu", Preconditioning::ModifiedIlu),
    ("lu", Preconditioning::Lu),
    ("lap", Preconditioning::Lap),
];

/// Solve A x = b in this process, or with several, by whatever is fastest; or by relaxation.
///
/// Without options this process solves by itself: one factorisation where that is cheap, otherwise conjugate gradients or GMRES. An option that concerns
/// messages (--hosts, --link, --loss …), or --workers, makes processes solve, by conjugate gradients or GMRES; one that concerns laps (--inner,
/// --omega, --elements, --executor, --mode async …) makes them relax. The residual that is reported is computed from A, b
/// and x, never taken from the iteration. Without --rhs, b = A·1. Exit code 1 if the tolerance was not reached, for whatever reason (which is named), a
/// lost worker included; 130 if interrupted. An x that does not
/// reach the tolerance goes to a file beside --output, named F.unfinished.npy (.mtx, .csv).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tsumuji solve A.mtx --rhs b.mtx --output x.npy
  tsumuji solve A.mtx --workers 4 --output x.npy
  tsumuji solve --generate poisson2d:200 --link udp --loss 0.2
  tsumuji solve --generate poisson2d:200 --mode async --link udp --loss 0.2
  tsumuji solve A.npy --mode sync --omega 1.2 --json
  tsumuji solve --generate poisson2d:300 --history fall.csv --plot fall.svg
  tsumuji solve A.mtx --plan=only --link udp --rate 10gbit
  tsumuji solve amplifier.sp --output voltages.csv
  tsumuji solve grid.sp --hosts lab.toml --key lab.key --output voltages.csv
  tsumuji solve --generate dense:6000 --workers 2 --sweep elements=1,4,20,120 --plot elements.svg

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
    #[command(flatten)]
    given: Given,
    /// The matrix: Matrix Market (.mtx, .mtx.gz), NumPy (.npy), Harwell-Boeing (.rua, .rsa) or PETSc's binary file (.petsc); or a netlist of a circuit (.sp, .cir, .spice, .net)
    #[arg(value_name = "MATRIX")]
    matrix: Option<PathBuf>,
    /// Make a system instead: dense:N, poisson2d:K, poisson3d:K or circuit:N
    #[arg(long, value_name = "SPEC", conflicts_with = "matrix")]
    generate: Option<Generate>,
    /// The right-hand side (.mtx or .npy); ones: A times ones (default), which is easy for some methods; random: A times a random vector
    #[arg(long, value_name = "FILE|ones|random")]
    rhs: Option<PathBuf>,
    /// Write the solution to this file (.npy or .mtx; of a netlist .csv)
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write how the residual fell, as CSV
    #[arg(long, value_name = "FILE.csv")]
    history: Option<PathBuf>,
    /// Draw how the residual fell
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// First say what each method and each number of workers would take, by short trials; in the end, how it came. only: do not solve
    #[arg(
        long,
        value_name = "only",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "run",
        conflicts_with_all = ["sweep", "id"]
    )]
    plan: Option<PlanName>,
    /// The rate of a node's cable, for the plan: 100mbit, 1gbit (default) or 10gbit
    #[arg(long, value_name = "RATE", requires = "plan")]
    rate: Option<Rate>,
    /// Run at each value of one quantity, and tabulate (--history: as CSV, --plot: as a figure): elements=1,4,20, workers=1,2 or n=1000,2000 (of --generate)
    #[arg(long, value_name = "QUANTITY=VALUES", conflicts_with_all = ["output", "id"])]
    sweep: Option<Sweep>,
    /// Runs at each value
    #[arg(long, value_name = "R", requires = "sweep", value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeat: Option<u64>,
    /// Processes that solve; threads with --mode threads, or with --method cg or gmres where no option concerns messages; default: one a core, at most one a row
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    #[command(flatten)]
    team: TeamArgs,
    /// processes: several processes, with the method that suits them; async: they relax, and no worker waits; sync: they relax, and all wait for each
    /// other each lap; threads and single: one process without messages, which relaxes unless --method says otherwise; auto: processes if an option concerns messages or workers, async if one
    /// concerns laps, otherwise one process
    #[arg(long, value_name = "MODE", default_value = "auto")]
    mode: ModeName,
    /// relax: laps alone; relax+gcr: with the best combination of what they achieved at pauses; gmres and cg: Krylov methods, between threads or
    /// processes; direct: one factorisation, in one process; auto: without --mode, in one process the fastest of direct, cg and gmres; with --mode processes cg or gmres,
    /// and relax+gcr where that fails; with any other mode relax+gcr
    #[arg(long, value_name = "METHOD", default_value = "auto", value_parser = named(Method::ALL.map(|method| (method.name(), method))), hide_possible_values = true)]
    method: Method,
    /// Of --method cg and gmres, for each thread's or worker's own rows: jacobi, ilu, milu (incomplete LU with the row sums kept), lu (complete) or lap
    /// (one of relaxation, forwards and back); default: what suits the matrix
    #[arg(long, value_name = "NAME", value_parser = named(PRECONDITIONERS), hide_possible_values = true)]
    preconditioner: Option<Preconditioning>,
    /// Which thread of a worker computes: the one that polls (rtc), one beside it (pipeline, for two cores a worker), or whichever makes laps faster
    /// (adaptive, the default)
    #[arg(long, value_name = "EXECUTOR")]
    executor: Option<Executor>,
    /// Threads of each worker, which share its rows and its copy of x; default: 1
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=SolveConfig::THREADS_MOST as i64))]
    threads: Option<u16>,
    /// Elements in one frame
    #[arg(long, value_name = "E|auto", default_value = "auto")]
    elements: Elements,
    /// What a lap does within a worker's rows: sweep, lu (solve the block at once) or auto
    #[arg(long, value_name = "INNER", default_value = "auto", value_parser = named(Inner::ALL.map(|inner| (inner.name(), inner))), hide_possible_values = true)]
    inner: Inner,
    /// In how many bits sweeps read dense rows: double, single or bfloat16; the residual is made exact at pauses
    #[arg(long, value_name = "BITS", default_value = "double", value_parser = named(Precision::ALL.map(|bits| (bits.name(), bits))), hide_possible_values = true)]
    precision: Precision,
    /// Relaxation factor, between 0 and 2
    #[arg(long, value_name = "W", default_value_t = 1.0)]
    omega: f64,
    /// Relative residual |b - A x| / |b| to reach; of a netlist, relative to its currents
    #[arg(
        long,
        value_name = "T",
        default_value_t = 1e-10,
        allow_hyphen_values = true
    )]
    tol: f64,
    /// Work of each worker: equal, auto (equal at first, and anew by measured speed while one is much slower), or a weight for each; default: equal
    #[arg(long, value_name = "auto|equal|W1,W2,…")]
    weights: Option<Shares>,
    /// Write the last known x to this file (.npy or .mtx) while the run goes on
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Seconds between two of these, 0.01 to 60
    #[arg(long, value_name = "S", default_value = "10", requires = "checkpoint", value_parser = crate::bench::seconds)]
    every: Duration,
    /// Begin with the x of this file: a checkpoint, or a solution of a system nearby
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Take a worker for lost that is not heard of for so long, 0.01 to 60 seconds; its rows go to the others
    #[arg(long, value_name = "S", default_value = "10", value_parser = crate::bench::seconds)]
    lease: Duration,
    /// Workers whose judge (node 0) dies go on for so long, 0.01 to 60 seconds, until another takes its place; default: they end
    #[arg(long, value_name = "S", requires = "id", value_parser = crate::bench::seconds)]
    outlive: Option<Duration>,
    /// Take the place of a judge that died: its workers keep their rows and their x. With the same system, --rhs, --seed and --hosts, and --id 0; method and tolerance may be others
    #[arg(long, requires = "id")]
    take_over: bool,
    /// Give up after this many laps of the slowest worker
    #[arg(long, value_name = "L", default_value_t = 100_000)]
    max_laps: u64,
    /// Of everything random: generated systems, the choice of dropped frames
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    Auto,
    Processes,
    Async,
    Sync,
    Threads,
    Single,
}

impl ModeName {
    fn uses_messages(self) -> bool {
        matches!(self, Self::Processes | Self::Async | Self::Sync)
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let netlist = circuit::netlist_of(&args);
    if let Some(endpoint) = args.team.worker(args.seed)? {
        return match netlist {
            Some(_) => circuit::serve_host(endpoint),
            None => distributed::serve_host(endpoint),
        };
    }
    if let Some(path) = netlist {
        return circuit::run(&args, &path);
    }
    check(&args)?;
    if let Some(sweep) = &args.sweep {
        return swept::run(sweep, &args);
    }
    let how = How::of(&args)?;
    let cluster = args.team.cluster()?;
    let security = args.team.stated(cluster.as_ref())?;
    let limits = Limits::new(args.tol, args.max_laps)?;
    let relaxation = (
        Relaxation::new(args.inner, args.omega)?,
        how.combines(args.precision),
    );

    let began = Instant::now();
    let bar = Bar::new(args.tol);
    let loaded = load(&args, how, &bar);
    bar.finish();
    let (source, mut notes) = loaded?;
    let Settled { how, krylov, why } = how.settle(&source, args.preconditioner)?;
    notes.extend(why);
    let (rows, name) = (source.rows(), source.name());
    let is_alone = how.mode == ModeName::Single;
    let workers = team::workers(args.workers, is_alone, cluster.as_ref(), (rows, &name))?;
    let with_messages = how.mode.uses_messages();
    let mut run = Run {
        system: name,
        rows,
        mode: name_of(how.mode),
        link: with_messages.then(|| args.team.link_name(cluster.as_ref())),
        executor: (with_messages && krylov.is_none())
            .then(|| args.executor.unwrap_or_default().to_string()),
        workers,
        threads: with_messages.then(|| args.threads.map_or(1, usize::from)),
        ..Run::default()
    };
    if let (Method::Auto, Some(_), Some(link)) = (args.method, krylov, &run.link) {
        notes.extend(planned::alone(&args, link, &source, workers));
    }
    let by = if how.is_relaxation() {
        format!("{} by {workers}", run.mode)
    } else {
        match krylov {
            Some(krylov) => format!("{krylov} by {workers} processes"),
            None => format!("in this process, method {}", how.method),
        }
    };
    tell!(
        "{}: {} rows, {by}, tolerance {:e}",
        run.system,
        run.rows,
        args.tol
    );
    notes.iter().for_each(|note| tell!("note: {note}"));
    let plan = match args.plan {
        Some(name) => {
            // In one process a Krylov method has threads for large systems only.
            let asked = Asked {
                parts: if with_messages || how.is_relaxation() {
                    workers
                } else {
                    1
                },
                relaxation: match how.is_relaxation() {
                    true => relaxation,
                    false => (Relaxation::new(Inner::Sweep, args.omega)?, false),
                },
                krylov: krylov.or(how.krylov(args.preconditioner, &source)?),
            };
            bar.prepare("trying the methods", 0.0);
            let plan = planned::of(&args, &source, limits, asked);
            bar.finish();
            let plan = plan?;
            if name == PlanName::Only {
                if args.json {
                    output::print_json(&serde_json::to_value(&plan)?);
                } else {
                    output::print_text(&planned::text(&plan));
                }
                return Ok(DONE);
            }
            tell!("{}", planned::text(&plan).trim_end());
            run.outlook = Some(plan.outlook.clone());
            Some(plan)
        }
        None => None,
    };
    if how.is_relaxation() {
        let outlook = Outlook::of(&source, args.omega, args.tol);
        if plan.is_none() {
            tell!("outlook: {outlook}");
        }
        run.outlook = Some(outlook);
    }
    // From here on there is something to report; before, an interrupt just ends the program.
    let interrupt = Interrupt::listen()?;
    // Another judge must find the order that workers have, whatever its method.
    let is_near = krylov.is_some() && args.team.id.is_none() && Order::is_near(&source, workers);
    let (source, order) = if (with_messages || how.is_relaxation()) && !is_near {
        bar.prepare("ordering the rows", 0.0);
        ordered(source, workers, &args)
    } else {
        (source, None)
    };
    bar.finish();
    let load_seconds = began.elapsed().as_secs_f64();

    let mut bar = Bar::new(args.tol);
    let mut history = History::default();
    let mut progress = |progress: report::Progress| {
        bar.update(&progress);
        if progress.distributed >= 1.0 {
            history.note(&progress);
        }
    };
    let stop = || interrupt.is_set();
    let (mut outcome, traffic) = match (how.mode, source) {
        (_, source) if !with_messages && !how.is_relaxation() => {
            let threads = match how.mode {
                ModeName::Single => Some(1),
                _ => args.workers,
            };
            let outcome = method::solve(
                source,
                (how.method, args.preconditioner),
                threads,
                limits,
                &mut progress,
                &stop,
            )?;
            run.workers = outcome.laps.len();
            if (args.mode, run.workers) == (ModeName::Auto, 1) {
                run.mode = name_of(ModeName::Single);
            }
            (outcome, Traffic::of_this_process())
        }
        (ModeName::Single, Source::System(system)) => (
            single::solve(system, relaxation, limits, progress, stop)?,
            Traffic::of_this_process(),
        ),
        (ModeName::Threads, Source::System(system)) => (
            threads::solve(system, workers, relaxation, limits, progress, stop)?,
            Traffic::of_this_process(),
        ),
        (_, source) => {
            let config = distributed::config(&args, how, krylov);
            ensure!(
                config.weights(workers).is_some(),
                "--weights: give one for each of the {workers} workers"
            );
            let x = match &args.resume {
                Some(path) => {
                    let x = read_vector(path, source.rows())?;
                    Some(order.as_ref().map_or(x.clone(), |order| order.arrange(&x)))
                }
                None => None,
            };
            let mut failed: Option<String> = None;
            let mut save = |x: &[f64]| {
                let Some(path) = &args.checkpoint else { return };
                let x = order.as_ref().map_or(x.to_vec(), |order| order.restore(x));
                let error = write_vector(path, &x).err().map(|error| error.to_string());
                // The run is worth more than its checkpoint. What goes on failing is told once.
                if let Some(error) = error.as_ref().filter(|_| error != failed) {
                    tell!("tsumuji: {error}");
                }
                failed = error;
            };
            let checkpoints = distributed::Checkpoints {
                start: Start {
                    x,
                    succeeds: args.take_over,
                },
                checkpoint: args.checkpoint.is_some().then_some((args.every, &mut save)),
            };
            distributed::solve(
                &args,
                (cluster.as_ref(), security),
                (workers, &source),
                &config,
                &mut progress,
                checkpoints,
                &interrupt,
            )?
        }
    };
    let traffic = traffic.with_headers(run.link.as_deref().unwrap_or("shm"));
    bar.finish();
    outcome.seconds.load += load_seconds;
    if let (Some(order), false) = (order, outcome.x.is_empty()) {
        outcome.x = order.restore(&outcome.x);
    }

    if !outcome.reason.is_converged() {
        tell!("tsumuji: {}", outcome.reason);
    }
    history.end(&outcome);
    run.plan = plan
        .as_ref()
        .and_then(|plan| Compared::new(plan, &outcome, run.workers));
    run.planned = plan;
    // Before the files, so that whatever becomes of them takes nothing of it; JSON has their errors, and comes after them.
    if !args.json && !outcome.laps.is_empty() {
        output::print_text(&show::table(&run, &outcome, &traffic));
    }
    let title = format!("{}, {} by {}", run.system, run.mode, run.workers);
    let files = Files::of(args.history.as_ref(), args.plot.as_ref());
    let kept = [
        kept::keep_x(&args, &outcome),
        files.and_then(|files| files.write(|| history.csv(), || history.draw(&title))),
    ];
    let is_kept = kept.iter().all(Result::is_ok);
    let errors = kept.iter().filter_map(|kept| kept.as_ref().err());
    let errors: Vec<String> = errors.map(|error| format!("{error:#}")).collect();
    for error in &errors {
        tell!("tsumuji: {error}");
    }
    if args.json {
        output::print_json(&show::json_of(&run, &outcome, &traffic, &errors)?);
    }
    Ok(match outcome.reason {
        Reason::Interrupted => ExitCode::from(INTERRUPTED),
        _ if outcome.converged && is_kept => DONE,
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
    ensure!(
        args.generate.is_none() || args.solution().is_some(),
        "--generate makes its right-hand side, too: give --rhs ones or --rhs random, not a file"
    );
    args.output.as_deref().map_or(Ok(()), kept::check_output)?;
    args.checkpoint
        .as_deref()
        .map_or(Ok(()), kept::check_vector)?;
    // Clap does not ask for what an option needs where that conflicts with another one.
    for (flag, is_alone, needed) in [
        (
            "--repeat",
            args.repeat.is_some() && args.sweep.is_none(),
            "--sweep",
        ),
        (
            "--rate",
            args.rate.is_some() && args.plan.is_none(),
            "--plan",
        ),
    ] {
        ensure!(!is_alone, "{flag}: no effect without {needed}");
    }
    ensure!(
        args.output.is_none() || args.output != args.checkpoint,
        "--output and --checkpoint name one file; a checkpoint is no solution"
    );
    Files::of(args.history.as_ref(), args.plot.as_ref())?;
    let rhs = args.rhs.as_deref().filter(|_| args.solution().is_none());
    let read = [("the matrix", args.matrix.as_deref()), ("--rhs", rhs)];
    let (history, plot) = (args.history.as_deref(), args.plot.as_deref());
    // A checkpoint may be followed by the solution, and have been begun with.
    for (name, x) in [
        ("--output", &args.output),
        ("--checkpoint", &args.checkpoint),
    ] {
        let written = [
            (name, x.as_deref()),
            ("--history", history),
            ("--plot", plot),
        ];
        output::check_apart(&read, &written)?;
    }
    if args.plan == Some(PlanName::Only)
        && let Some(flag) = args.given.first_of(OF_SOLUTIONS)
    {
        bail!("{flag}: no effect with --plan=only, which does not solve; leave one of them out");
    }
    if !args.uses_chance()
        && let Some(flag) = args.given.first_of("--seed")
    {
        bail!(
            "{flag}: no effect with the system of a file, of which nothing is random; leave it out, or use --rhs random or --loss"
        );
    }
    ensure!(
        args.precision == Precision::Double
            || !matches!(args.mode, ModeName::Threads | ModeName::Single),
        "--precision: no effect with --mode {}; use --mode async or sync",
        name_of(args.mode)
    );
    if matches!(args.mode, ModeName::Threads | ModeName::Single)
        && let Some(flag) = args.message()
    {
        bail!(
            "{flag}: no effect with --mode {}, which sends no messages; leave it out, or use --mode processes, async or sync",
            name_of(args.mode)
        );
    }
    args.team.check(args.workers)
}

/// Options of what a run without a solution does not write, or begin with.
const OF_SOLUTIONS: &str = "--output --history --plot --checkpoint --resume";

/// Most memory of a generated system that is made by the judge, to be ordered.
const ORDERED_BYTES_MOST: u128 = 256 << 20;

/// The system in an order that puts strongly coupled unknowns on one worker, if there is a better one. A generated system is made here for that, where it
/// pays; but another judge must find what workers have made themselves, whatever its method.
fn ordered(source: Source, workers: usize, args: &Args) -> (Source, Option<Order>) {
    let system = match &source {
        Source::System(system) => Some(Cow::Borrowed(system)),
        Source::Generated(made) => {
            let pays = workers > 1
                && !source.is_dense()
                && made.what.memory_bytes() <= ORDERED_BYTES_MOST
                && args.team.id.is_none();
            pays.then(|| made.system().ok()).flatten().map(Cow::Owned)
        }
    };
    let ordered = system.and_then(|system| Order::for_workers(&system, workers));
    match ordered {
        Some((order, ordered)) => (ordered.into(), Some(order)),
        None => (source, None),
    }
}

fn load(args: &Args, how: How, bar: &Bar) -> anyhow::Result<(Source, Vec<String>)> {
    let solution = args.solution();
    match (&args.matrix, &args.generate) {
        (Some(path), _) => {
            let file = args.rhs.as_deref().filter(|_| solution.is_none());
            let mut seen = |part| bar.prepare("reading the matrix", part);
            let (mut system, notes) = read_system_watched(path, file, &mut seen)?;
            if solution == Some(Solution::Random) {
                system.set_solution(&Solution::Random.elements(system.n(), args.seed))?;
            }
            Ok((Source::System(system), notes))
        }
        (None, Some(what)) => {
            let made = Generated::new(*what, args.seed, solution.unwrap_or_default());
            if how.is_relaxation() && !how.mode.uses_messages() {
                return Ok((made.system()?.into(), Vec::new()));
            }
            what.check_memory()?;
            Ok((Source::Generated(made), Vec::new()))
        }
        (None, None) => unreachable!("refused by `check`"),
    }
}

impl Args {
    /// Whether anything depends on `--seed`. Hosts may lose frames by their own settings.
    fn uses_chance(&self) -> bool {
        self.generate.is_some()
            || self.solution() == Some(Solution::Random)
            || self.team.loss.is_some()
            || self.team.hosts.is_some()
    }

    /// The solution that `--rhs` names, if it is not a file.
    fn solution(&self) -> Option<Solution> {
        match self.rhs.as_deref().and_then(Path::to_str) {
            None if self.rhs.is_none() => Some(Solution::Ones),
            Some("ones") => Some(Solution::Ones),
            Some("random") => Some(Solution::Random),
            _ => None,
        }
    }
}
