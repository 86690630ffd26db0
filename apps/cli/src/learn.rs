//! `tsumuji learn`: reads data, learns a linear model by one process or several, reports, and writes the model.
//!
//! The process itself is node 0, which hands out rows and certifies the result; workers are this same program, started as `tsumuji learn-worker`.
//! Everything that can be refused is refused before a worker is started; the model's file gets its name only when it is whole.

mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{anyhow, ensure};
use tsumuji_learn::data::{self, Reading};
use tsumuji_learn::report::{Outcome as Learned, Reason};
use tsumuji_learn::{
    Kind, LearnConfig, Method, Model, Preparation, Problem, Schedule, Score, SgdConfig, single,
};

use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::{DONE, NOT_REACHED, Outcome, output};
use show::Run;

/// Penalty where none is stated.
const L2: f64 = 1e-4;
/// Tolerances where none is stated: Newton's method reaches rounding, steps at random do not.
const TOL_NEWTON: f64 = 1e-8;
const TOL_SGD: f64 = 1e-3;

/// Learn a linear model: linear, ridge, logistic (regression) or svm (squared hinge).
///
/// DATA is svmlight (.svm, .svmlight, .libsvm, .txt), CSV with a header (the last column is the target, or --target), .npy (likewise) or .npz (arrays X
/// and y); text also with .gz. More than two classes are learned one versus the rest. Minimised is the mean loss of a row plus L2/2 times the square of
/// the coefficients, of scaled data. Exit code 1 if the gradient's norm did not get below --tol; 130 if interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tsumuji learn logistic iris.csv --target species --model iris.json
  tsumuji learn ridge train.npz --test test.npz --l2 0.01 --json
  tsumuji learn svm a8a.svm.gz --method sgd --mode single --epochs 20")]
pub(crate) struct Args {
    /// The model
    #[arg(value_name = "MODEL")]
    kind: KindName,
    /// The data to learn from
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// Score the model with these data, too
    #[arg(long, value_name = "DATA")]
    test: Option<PathBuf>,
    /// Name of the target's column (CSV) [default: the last column]
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// single: this process alone, without messages
    #[arg(long, value_name = "MODE", default_value = "single")]
    mode: ModeName,
    /// newton: gradients and Hessians of all rows; sgd: steps by some rows at random
    #[arg(long, value_name = "METHOD", default_value = "newton")]
    method: MethodName,
    /// Passes over the data (sgd) [default: 64]
    #[arg(long, value_name = "E", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    epochs: Option<u64>,
    /// Rows of a step (sgd) [default: 32]
    #[arg(long, value_name = "B", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Factor of the first step (sgd) [default: by the size of the rows]
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    rate: Option<f64>,
    /// constant: all steps alike; inverse: rate / sqrt(1 + epochs passed) (sgd) [default: inverse]
    #[arg(long, value_name = "RULE")]
    schedule: Option<ScheduleName>,
    /// The result is the mean of all parameters after the first epoch (sgd)
    #[arg(long)]
    average: bool,
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
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum KindName {
    Linear,
    Ridge,
    Logistic,
    Svm,
}

impl KindName {
    fn kind(self) -> Kind {
        match self {
            Self::Linear => Kind::Linear,
            Self::Ridge => Kind::Ridge,
            Self::Logistic => Kind::Logistic,
            Self::Svm => Kind::Svm,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    Single,
}

impl ModeName {
    fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum MethodName {
    Newton,
    Sgd,
}

impl MethodName {
    fn name(self) -> &'static str {
        match self {
            Self::Newton => "newton",
            Self::Sgd => "sgd",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScheduleName {
    Constant,
    Inverse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ScaleName {
    Standard,
    None,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    check(&args)?;
    let config = config(&args);
    let began = Instant::now();
    let reading = Reading::Learn {
        target: args.target.as_deref(),
    };
    let train = data::read(&args.data, config.kind.want(), reading)?;
    let unscaled = train.clone();
    let how = Preparation {
        scales: args.scale == ScaleName::Standard,
        shuffles: args.method == MethodName::Sgd,
    };
    let columns = train.features.columns();
    let problem = Problem::new(train, &config, how)
        .map_err(|error| anyhow!("{}: {error}", args.data.display()))?;
    let test = read_test(&args, &config, &unscaled)?;
    let load_seconds = began.elapsed().as_secs_f64();

    let interrupt = Interrupt::listen()?;
    let learned = single::learn(&problem.share, &config, &mut || interrupt.is_set());

    let is_usable =
        learned.theta.iter().all(|x| x.is_finite()) && learned.reason != Reason::Interrupted;
    let model = is_usable.then(|| problem.model(&learned.theta));
    let train_score = model.as_ref().and_then(|model| score(model, &unscaled));
    let test_score = match (&model, &test) {
        (Some(model), Some(test)) => score(model, test),
        _ => None,
    };
    if learned.reason != Reason::Converged {
        eprintln!("tsumuji: {}", learned.reason);
    }
    if let (Some(path), Some(model)) = (&args.model, &model) {
        let text = model.to_json();
        output::PendingFile::create(path)?.finish(|out| out.write_all(text.as_bytes()))?;
    }
    let run = Run {
        model: config.kind.name(),
        data: args.data.display().to_string(),
        mode: args.mode.name(),
        method: args.method.name(),
        rows: unscaled.features.rows(),
        columns,
        load_seconds,
        tol: config.tol,
        loss_factor: problem.loss_factor(),
        train_score,
        test_score,
        written: (model.as_ref())
            .and_then(|_| args.model.as_ref())
            .map(|path| path.display().to_string()),
    };
    if args.json {
        output::print_json(&show::json_of(&run, &learned, model.as_ref()));
    } else if model.is_some() {
        output::print_text(&show::table(&run, &learned));
    }
    Ok(exit_code(&learned))
}

fn exit_code(learned: &Learned) -> ExitCode {
    match learned.reason {
        Reason::Converged => DONE,
        Reason::Interrupted => ExitCode::from(INTERRUPTED),
        _ => ExitCode::from(NOT_REACHED),
    }
}

/// Reads the test set; its columns and labels must be those of the data.
fn read_test(
    args: &Args,
    config: &LearnConfig,
    train: &data::Data,
) -> anyhow::Result<Option<data::Data>> {
    let Some(path) = &args.test else {
        return Ok(None);
    };
    let reading = Reading::Like {
        columns: train.features.columns(),
        names: train.names.as_deref(),
        target: train.target_name.as_deref(),
        needs_targets: true,
    };
    let test = data::read(path, config.kind.want(), reading)?;
    if let (Some(data::Targets::Labels { classes, .. }), Some(targets)) =
        (&train.targets, &test.targets)
    {
        targets.ids_in(classes).map_err(|label| {
            anyhow!(
                "{}: the label '{label}' is not in {}; accepted are its {} labels",
                path.display(),
                args.data.display(),
                classes.len()
            )
        })?;
    }
    Ok(Some(test))
}

fn score(model: &Model, data: &data::Data) -> Option<Score> {
    model.score(&data.features, data.targets.as_ref()?).ok()
}

fn config(args: &Args) -> LearnConfig {
    let defaults = SgdConfig::default();
    let kind = args.kind.kind();
    LearnConfig {
        kind,
        method: match args.method {
            MethodName::Newton => Method::Newton,
            MethodName::Sgd => Method::Sgd,
        },
        sgd: SgdConfig {
            rate: args.rate,
            schedule: match args.schedule {
                Some(ScheduleName::Constant) => Schedule::Constant,
                Some(ScheduleName::Inverse) | None => Schedule::Inverse,
            },
            batch: args.batch.map_or(defaults.batch, |batch| batch as usize),
            epochs: args.epochs.unwrap_or(defaults.epochs),
            average: args.average,
            ..defaults
        },
        l2: if kind == Kind::Linear {
            0.0
        } else {
            args.l2.unwrap_or(L2)
        },
        tol: args.tol.unwrap_or(match args.method {
            MethodName::Newton => TOL_NEWTON,
            MethodName::Sgd => TOL_SGD,
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
        args.kind != KindName::Linear || args.l2.is_none(),
        "--l2: linear has no penalty; use ridge"
    );
    if args.method == MethodName::Newton {
        for (flag, is_given) in [
            ("--epochs", args.epochs.is_some()),
            ("--batch", args.batch.is_some()),
            ("--rate", args.rate.is_some()),
            ("--schedule", args.schedule.is_some()),
            ("--average", args.average),
        ] {
            ensure!(
                !is_given,
                "{flag}: no effect with --method newton; leave it out, or use --method sgd"
            );
        }
    }
    if let Some(path) = &args.model {
        output::check_writable(path)?;
    }
    Ok(())
}
