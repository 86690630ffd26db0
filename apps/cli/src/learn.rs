//! `tsumuji learn`: reads data, learns a linear model by one process or several, reports, and writes the model.
//!
//! The process itself is node 0, which hands out rows and certifies the result; workers are this same program, started as `tsumuji learn-worker`.
//! Everything that can be refused is refused before a worker is started; the model's file gets its name only when it is whole.

mod distributed;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use tsumuji_learn::data::{self, Generate, Reading, Want};
use tsumuji_learn::gossip::RunError;
use tsumuji_learn::report::{Outcome as Learned, Reason};
use tsumuji_learn::{
    Average, Kind, LearnConfig, Method, Mode, Model, Preparation, Problem, Schedule, SgdConfig,
    single,
};
use tsumuji_node::Executor;

use crate::given::Given;
use crate::interrupt::{INTERRUPTED, Interrupt, Interrupted};
use crate::named::{name_of, named};
use crate::output::{self, Files, PendingFile};
use crate::team::{self, TeamArgs};
use crate::{DONE, NOT_REACHED, Outcome};
use distributed::Job;
pub(crate) use distributed::work;
use show::Run;

/// Penalty where none is stated.
const L2: f64 = 1e-4;
/// Tolerances where none is stated: Newton's method reaches rounding, steps at random do not.
const TOL_NEWTON: f64 = 1e-8;
const TOL_SGD: f64 = 1e-3;

/// Learn a linear model: linear, ridge, logistic (regression) or svm (squared hinge).
///
/// DATA is svmlight (.svm, .svmlight, .libsvm, .txt), CSV with a header (the last column is the target, or --target), .npy (likewise) or .npz (arrays X
/// and y), also with .gz. More than two classes are learned one versus the rest. Minimised is the mean loss of a row plus L2/2 times the square of
/// the coefficients, of scaled data. A worker that
/// is lost drops out with its rows, and the result says so. Exit code 1 if the gradient's norm did not get below --tol, or no worker is left; 130 if
/// interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tsumuji learn logistic iris.csv --target species --model iris.json
  tsumuji learn ridge train.npz --test test.npz --l2 0.01 --json
  tsumuji learn svm a8a.svm.gz --method sgd --workers 4 --link udp --period 16
  tsumuji learn linear data.csv --mode single
  tsumuji learn logistic --generate 1000000x20 --workers 2

Several hosts: --hosts FILE starts a worker on each node but the first; node 0 is this process, which hands out the rows. The file is
that of `tsumuji solve --help`. With --id I nothing is started: the same command runs on each host, with its own I.")]
pub(crate) struct Args {
    #[command(flatten)]
    given: Given,
    /// The model
    #[arg(value_name = "MODEL", value_parser = named(KINDS.map(|kind| (kind.name(), kind))))]
    kind: Kind,
    /// The data to learn from
    #[arg(value_name = "DATA", required_unless_present = "generate")]
    data: Option<PathBuf>,
    /// Make the data instead: rows of a known model with noise, from --seed; for example 10000000x20
    #[arg(long, value_name = "ROWSxCOLUMNS", conflicts_with_all = ["data", "target"])]
    generate: Option<Generate>,
    /// Score the model with these data, too
    #[arg(long, value_name = "DATA")]
    test: Option<PathBuf>,
    /// Name of the target's column (CSV) [default: the last column]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Processes that learn, each from its own rows; default: one a core, at most one a row
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// gossip: workers exchange with each other; allreduce: all at a time; tcp: as gossip, over kernel sockets of this host; single: this process alone, without messages
    #[arg(long, value_name = "MODE", default_value = "gossip")]
    mode: ModeName,
    #[command(flatten)]
    team: TeamArgs,
    /// Which thread of a worker steps (sgd): rtc, the one that receives and transmits; pipeline, one beside it; adaptive (default), whichever is faster
    #[arg(long, value_name = "EXECUTOR")]
    executor: Option<Executor>,
    /// shuffled: rows are dealt out at random; file: each worker gets a stretch of the file
    #[arg(long, value_name = "ORDER")]
    order: Option<OrderName>,
    /// newton: gradients and Hessians of all rows; sgd: steps by some rows at random
    #[arg(long, value_name = "METHOD", default_value = "newton", value_parser = named([("newton", Method::Newton), ("sgd", Method::Sgd)]))]
    method: Method,
    /// How workers sum (newton): table, each tells all others; push-sum, random pairs mix what they hold; auto (default), table for up to 128 workers
    #[arg(long, value_name = "HOW", value_parser = named(AVERAGES.map(|average| (average.name(), average))))]
    average: Option<Average>,
    /// Passes over the data (sgd) [default: 64]
    #[arg(long, value_name = "E", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    epochs: Option<u64>,
    /// Rows of a step (sgd) [default: 32, but so few that a worker's epoch has 256 steps]
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Factor of the first step (sgd) [default: by the size of the rows, and by --batch]
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    rate: Option<f64>,
    /// constant: all steps alike; inverse: rate / sqrt(1 + epochs passed) (sgd) [default: inverse]
    #[arg(long, value_name = "RULE", value_parser = named([("constant", Schedule::Constant), ("inverse", Schedule::Inverse)]))]
    schedule: Option<Schedule>,
    /// Steps between two exchanges of a worker (sgd) [default: those of 65536 values, but at most an epoch and at least 32]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    period: Option<u64>,
    /// The result is the last parameters, not a mean in which recent ones weigh more (sgd)
    #[arg(long)]
    no_average: bool,
    /// Penalty of the coefficients (ridge, logistic, svm) [default: 1e-4]
    #[arg(long, value_name = "L", allow_hyphen_values = true)]
    l2: Option<f64>,
    /// Norm of the gradient to reach [default: 1e-8, sgd 1e-3]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    tol: Option<f64>,
    /// standard: columns get deviation 1, dense ones also mean 0; none: as they are
    #[arg(long, value_name = "HOW", default_value = "standard")]
    scale: ScaleName,
    /// Of everything random: the order of rows, the choice of steps and peers
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Write the model to this file, for `tsumuji predict`
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Write loss and gradient as they came, as CSV
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Draw them (.svg)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const KINDS: [Kind; 4] = [Kind::Linear, Kind::Ridge, Kind::Logistic, Kind::Svm];
const AVERAGES: [Average; 3] = [Average::Table, Average::PushSum, Average::Auto];

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    Gossip,
    Single,
    Allreduce,
    Tcp,
}

impl ModeName {
    /// Whether each worker exchanges with others by itself.
    fn has_peers(self) -> bool {
        matches!(self, Self::Gossip | Self::Tcp)
    }

    /// `None`: without messages.
    fn mode(self) -> Option<Mode> {
        match self {
            Self::Gossip => Some(Mode::Gossip),
            Self::Single => None,
            Self::Allreduce => Some(Mode::AllReduce),
            Self::Tcp => Some(Mode::Tcp),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum OrderName {
    Shuffled,
    File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScaleName {
    Standard,
    None,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    if let Some(endpoint) = args.team.worker(args.seed)? {
        return distributed::serve_host(endpoint);
    }
    check(&args)?;
    let config = config(&args);
    let cluster = args.team.cluster()?;
    let security = args.team.stated(cluster.as_ref())?;
    let interrupt = Interrupt::listen()?;
    let began = Instant::now();
    let (train, name) = read(&args, config.kind.want())?;
    ensure!(!interrupt.is_set(), Interrupted);
    let how = Preparation {
        scales: args.scale == ScaleName::Standard,
        // Sums over all rows are the same in any order.
        shuffles: args.order != Some(OrderName::File)
            && !(args.mode == ModeName::Single && args.method == Method::Newton),
    };
    let columns = train.features.columns();
    let problem = Problem::new(train, &config, how).map_err(|error| anyhow!("{name}: {error}"))?;
    let test = read_test(&args, &name, &config, &problem)?;
    let rows = problem.share.rows();
    let is_alone = args.mode == ModeName::Single;
    let workers = team::workers(args.workers, is_alone, cluster.as_ref(), (rows, &name))?;
    let load_seconds = began.elapsed().as_secs_f64();
    ensure!(!interrupt.is_set(), Interrupted);

    let job = Job {
        problem: &problem,
        config: &config,
        workers,
        cluster: cluster.as_ref(),
        security,
    };
    let learned = match learn(&args, &job, &interrupt) {
        Err(error) if is_loss(&error) => {
            return Ok(crate::fail(&error.to_string(), NOT_REACHED, args.json));
        }
        learned => learned?,
    };

    let is_usable = learned.theta.iter().all(|x| x.is_finite())
        && !matches!(learned.reason, Reason::Interrupted | Reason::Diverged);
    let model = is_usable.then(|| problem.model(&learned.theta));
    ensure!(
        model.as_ref().is_none_or(Model::is_finite),
        "{name}: the coefficients for data as they are, not scaled, are no finite numbers"
    );
    let train_score = model.as_ref().map(|model| problem.score(model));
    let both = model.as_ref().zip(test.as_ref());
    let test_score =
        both.and_then(|(model, test)| model.score(&test.features, test.targets.as_ref()?).ok());
    let kept = match (&args.model, &model) {
        (Some(path), Some(model)) => PendingFile::create(path)
            .and_then(|file| file.write(&model.to_json()))
            .map(|()| Some(path.display().to_string())),
        _ => Ok(None),
    };
    let run = Run {
        model: config.kind.name(),
        data: name,
        mode: name_of(args.mode),
        method: match args.method {
            Method::Newton => "newton",
            Method::Sgd => "sgd",
        },
        average: (args.method == Method::Newton && args.mode.has_peers())
            .then(|| config.average.resolved(workers).name()),
        rows,
        columns,
        workers,
        link: (args.mode.mode()).map(|_| args.team.link_name(cluster.as_ref())),
        load_seconds,
        tol: config.tol,
        loss_factor: problem.loss_factor(),
        train_score,
        test_score,
        written: kept.as_ref().ok().cloned().flatten(),
    };
    report(&args, &run, &learned, model.is_some());
    // After the table: a full disk must not take that, too. JSON has the errors, and comes after them.
    let files = Files::of(args.history.as_ref(), args.plot.as_ref());
    let drawn = files.and_then(|files| {
        files.write(
            || show::history(&run, &learned),
            || show::draw(&run, &learned),
        )
    });
    let failures = [kept.err(), drawn.err()].into_iter().flatten();
    let errors: Vec<String> = failures.map(|error| format!("{error:#}")).collect();
    for error in &errors {
        tell!("tsumuji: {error}");
    }
    if args.json {
        output::print_json(&show::json_of(&run, &learned, model.as_ref(), &errors));
    }
    let code = exit_code(&learned);
    if code == DONE && !errors.is_empty() {
        return Ok(ExitCode::from(NOT_REACHED));
    }
    Ok(code)
}

/// Learns in this process, or with workers.
fn learn(args: &Args, job: &Job<'_>, interrupt: &Interrupt) -> anyhow::Result<Learned> {
    match args.mode.mode() {
        Some(mode) => distributed::learn(args, job, mode, interrupt),
        None => {
            let mut stop = || interrupt.is_set();
            Ok(single::learn(&job.problem.share, job.config, &mut stop))
        }
    }
}

/// Whether a run ended because of lost workers: that is no bad input.
fn is_loss(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref();
    matches!(
        error,
        Some(RunError::AllLost { .. } | RunError::WorkerLost { .. } | RunError::Stuck)
    )
}

/// Prints notes, and the table for people.
fn report(args: &Args, run: &Run, learned: &Learned, has_model: bool) {
    for dropped in &learned.dropped {
        let what = match dropped.rows {
            0 => "another has the rows of".to_owned(),
            rows => format!("the {rows} rows are missing in the result of"),
        };
        tell!("note: {what} {}: {}", dropped.worker, dropped.cause);
    }
    if learned.reason != Reason::Converged {
        tell!("tsumuji: {}", learned.reason);
    }
    if !args.json && has_model {
        output::print_text(&show::table(run, learned));
    }
}

fn exit_code(learned: &Learned) -> ExitCode {
    match learned.reason {
        Reason::Converged => DONE,
        Reason::Interrupted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::from(NOT_REACHED),
    }
}

/// Reads the data, or makes them; returns them with their name.
fn read(args: &Args, want: Want) -> anyhow::Result<(data::Data, String)> {
    if let Some(generate) = args.generate {
        let data = generate.data(want, args.seed);
        return Ok((data.context("--generate")?, format!("made data {generate}")));
    }
    let path = args.data.as_deref().context("DATA is missing")?;
    let reading = Reading::Learn {
        target: args.target.as_deref(),
    };
    let name = path.display().to_string();
    Ok((data::read(path, want, reading)?, name))
}

/// Reads the test set; its columns and labels must be those of the data.
fn read_test(
    args: &Args,
    name: &str,
    config: &LearnConfig,
    train: &Problem,
) -> anyhow::Result<Option<data::Data>> {
    let Some(path) = &args.test else {
        return Ok(None);
    };
    let reading = Reading::Like {
        columns: train.share.features.columns(),
        names: train.names(),
        target: train.target_name(),
        needs_targets: true,
    };
    let test = data::read(path, config.kind.want(), reading)?;
    if let (Some(classes), Some(targets)) = (train.classes(), &test.targets) {
        targets.ids_in(classes).map_err(|label| {
            anyhow!(
                "{}: the label '{label}' is not in {name}; accepted are its {} labels",
                path.display(),
                classes.len()
            )
        })?;
    }
    Ok(Some(test))
}

fn config(args: &Args) -> LearnConfig {
    let defaults = SgdConfig::default();
    let kind = args.kind;
    LearnConfig {
        kind,
        method: args.method,
        average: args.average.unwrap_or_default(),
        sgd: SgdConfig {
            rate: args.rate,
            schedule: args.schedule.unwrap_or_default(),
            batch: args.batch.map_or(defaults.batch, |batch| batch as usize),
            epochs: args.epochs.unwrap_or(defaults.epochs),
            period: args.period.unwrap_or(defaults.period),
            average: !args.no_average,
            executor: args.executor.unwrap_or_default(),
        },
        l2: if kind == Kind::Linear {
            0.0
        } else {
            args.l2.unwrap_or(L2)
        },
        tol: args.tol.unwrap_or(match args.method {
            Method::Newton => TOL_NEWTON,
            Method::Sgd => TOL_SGD,
        }),
        seed: args.seed,
    }
}

/// Checks that need not read the data.
fn check(args: &Args) -> anyhow::Result<()> {
    let positive = |value: Option<f64>| value.is_none_or(|value| value.is_finite() && value > 0.0);
    ensure!(
        positive(args.tol),
        "--tol {}: accepted are numbers above 0",
        args.tol.unwrap_or(0.0)
    );
    ensure!(
        positive(args.rate),
        "--rate {}: accepted are numbers above 0",
        args.rate.unwrap_or(0.0)
    );
    ensure!(
        args.l2.is_none_or(|l2| l2.is_finite() && l2 >= 0.0),
        "--l2 {}: accepted are 0 and numbers above it",
        args.l2.unwrap_or(0.0)
    );
    ensure!(
        args.kind != Kind::Linear || args.l2.is_none(),
        "--l2: linear has no penalty; use ridge"
    );
    if args.method == Method::Newton {
        let sgd = "--epochs --batch --rate --schedule --no-average --period --executor";
        if let Some(flag) = args.given.first_of(sgd) {
            bail!("{flag}: no effect with --method newton; leave it out, or use --method sgd");
        }
    }
    ensure!(
        args.average.is_none() || args.method == Method::Newton,
        "--average: no effect with --method sgd, by which pairs of workers average their parameters; leave it out, or use --method newton"
    );
    check_sending(args)?;
    if let Some(path) = &args.model {
        PendingFile::create(path)?;
    }
    Files::of(args.history.as_ref(), args.plot.as_ref())?;
    output::check_apart(
        &[
            ("DATA", args.data.as_deref()),
            ("--test", args.test.as_deref()),
        ],
        &[
            ("--model", args.model.as_deref()),
            ("--history", args.history.as_deref()),
            ("--plot", args.plot.as_deref()),
        ],
    )
}

/// Options of messages have an effect only where there are messages.
fn check_sending(args: &Args) -> anyhow::Result<()> {
    if args.mode == ModeName::Single {
        let messages = "--link --loss --period --hosts --key --seal --open --admit --congestion --metrics --executor --average";
        let order = args.given.first_of("--order");
        let order = order.filter(|_| args.method == Method::Newton);
        if let Some(flag) = args.given.first_of(messages).or(order) {
            bail!(
                "{flag}: no effect with --mode single, which sends no messages; leave it out, or use --mode gossip"
            );
        }
    }
    ensure!(
        args.average.is_none() || args.mode.has_peers(),
        "--average: no effect with --mode allreduce, which sums over all workers at a time; leave it out, or use --mode gossip"
    );
    ensure!(
        args.executor.is_none() || args.mode != ModeName::Allreduce,
        "--executor: no effect with --mode allreduce, whose workers wait for each other at each step; leave it out, or use --mode gossip"
    );
    ensure!(
        !args.team.admit || args.mode == ModeName::Gossip,
        "--admit: only with --mode gossip may workers join"
    );
    if args.mode == ModeName::Tcp {
        ensure!(
            args.team.hosts.is_none(),
            "--mode tcp runs on one host; with --hosts use gossip or allreduce"
        );
        ensure!(
            args.team.loss.is_none(),
            "--loss: no effect with --mode tcp, whose sockets lose nothing; leave it out, or use --mode gossip"
        );
    }
    args.team.check(args.workers)
}
