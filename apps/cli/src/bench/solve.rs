//! `tsumuji bench solve`: `tsumuji solve` beside PETSc's Krylov methods, on the same files, reading and distributing included: with processes of this host,
//! or between hosts of a testbed, whose cables may lose frames and of which one may be slow.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::brake::{Brake, SHARE_LEAST};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::contest::testbed;
use tsumuji_bench::limits::place::of_testbed;
use tsumuji_bench::peers::petsc::{Petsc, Solved};
use tsumuji_bench::stats::{Rounds, counted};
use tsumuji_bench::versus::order;
use tsumuji_bench::{report, stop, table};
use tsumuji_node::LinkSpec;
use tsumuji_solve::local::Limits;
use tsumuji_solve::system::formats::{read_system, write_petsc};
use tsumuji_solve::system::{Generate, Solution};
use tsumuji_testbed::{Fraction, Impairment, Rate, Testbed};

use crate::interrupt::Interrupted;
use crate::talk::Talk;
use crate::{DONE, NOT_REACHED, Outcome};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Sparse systems: generated ones (poisson2d:K, poisson3d:K, circuit:N) and files
    #[arg(
        value_name = "SYSTEM",
        default_values = ["poisson2d:300", "poisson3d:60", "circuit:100000", "poisson3d:100"]
    )]
    systems: Vec<String>,
    /// Relative residual to reach
    #[arg(long, value_name = "T", default_value_t = 1e-10)]
    tol: f64,
    /// Most processes, of ours and of MPI
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Rounds in which all are measured in turn
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// One process on each host of a testbed (root): ours over --link, with the judge on a host of its own, MPI over TCP
    #[arg(long)]
    testbed: bool,
    /// Between hosts: our link
    #[arg(long, value_name = "LINK", default_value = "udp", requires = "testbed")]
    link: LinkSpec,
    /// Between hosts: the part of the frames that each cable loses; several by commas
    #[arg(
        long,
        value_name = "P",
        value_delimiter = ',',
        default_value = "0",
        requires = "testbed"
    )]
    loss: Vec<Fraction>,
    /// Between hosts: bits a second of each cable, as in 1gbit
    #[arg(long, value_name = "RATE", requires = "testbed")]
    rate: Option<Rate>,
    /// Between hosts: the last host is slow; its processes have this part of their time (they are stopped meanwhile)
    #[arg(long, value_name = "PART", requires = "testbed")]
    slow: Option<Fraction>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Longest time of one run between hosts, of ours or of all of PETSc's methods.
const PATIENCE: Duration = Duration::from_secs(300);
/// One of ours that was asked to end is killed after so long.
const KILL_AFTER_SECONDS: &str = "20";

/// Methods of ours between hosts.
const METHODS: [&str; 2] = ["auto", "relax+gcr"];

/// One way of solving, and what it took in each round.
struct Way {
    name: String,
    seconds: Vec<f64>,
    /// Of these, until all processes had their rows.
    reading: Vec<f64>,
    steps: u64,
    residual: f64,
    is_ours: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    check(args)?;
    let (mut talk, machine) = Talk::begin(args.json);
    talk.say("seconds from the opening of the files to the verified solution, and of these until each process has its rows (reading); b belongs to a random solution where a system brings none");
    let mut contest = Contest {
        args,
        petsc: Petsc::new()?,
        folder: tempfile::tempdir()?,
        version: String::new(),
    };
    let mut results = Vec::new();
    if args.testbed {
        let testbed = testbed(usize::from(args.processes) + 1, args.rate, 1500)?;
        let measured = between(&mut contest, &testbed, &mut talk, &mut results);
        testbed.down()?;
        measured?;
    } else {
        here(&mut contest, &mut talk, &mut results)?;
    }
    let version = contest.version;
    if !version.is_empty() {
        talk.say(&format!(
            "\nPETSc {version}, by mpiexec; its preconditioners' making included"
        ));
    }
    talk.end(&json!({
        "kind": "solve", "tolerance": args.tol, "petsc": version, "machine": machine, "results": results,
    }))?;
    // Rows of ours that are missing are told, and yet no success.
    let mut missing = results
        .iter()
        .flat_map(|result| result["missing"].as_array());
    let lacks = |told: &Value| told.as_str().is_some_and(|told| told.starts_with("ours"));
    Ok(if missing.any(|missing| missing.iter().any(lacks)) {
        ExitCode::from(NOT_REACHED)
    } else {
        DONE
    })
}

fn check(args: &Args) -> anyhow::Result<()> {
    Limits::new(args.tol, 1)?;
    let joins_hosts = !matches!(args.link, LinkSpec::Shm);
    ensure!(
        joins_hosts,
        "--link shm: it does not join hosts; use udp, packet or xdp"
    );
    super::check_losses(&args.loss)?;
    if let Some(slow) = args.slow {
        ensure!(
            (SHARE_LEAST..=1.0).contains(&slow.0),
            "--slow {}: accepted are 1 % to 100 % of its time",
            slow.0
        );
    }
    Ok(())
}

/// Ours and PETSc's, on the same files.
struct Contest<'a> {
    args: &'a Args,
    petsc: Petsc,
    folder: tempfile::TempDir,
    version: String,
}

impl Contest<'_> {
    fn files(&self) -> [PathBuf; 2] {
        ["A.petsc", "b.petsc"].map(|name| self.folder.path().join(name))
    }

    fn note_theirs(&mut self, ways: &mut Vec<Way>, solved: Vec<Solved>, by: &str) {
        for one in solved {
            if self.version.is_empty() {
                self.version = one.version;
            }
            let name = format!("PETSc {}, {by}", one.method);
            let seconds = (one.read_seconds + one.seconds, one.read_seconds);
            note(ways, name, seconds, (one.laps, one.residual), false);
        }
    }
}

/// With processes of this host.
fn here(
    contest: &mut Contest<'_>,
    talk: &mut Talk,
    results: &mut Vec<Value>,
) -> anyhow::Result<()> {
    let (args, files) = (contest.args, contest.files());
    for name in &args.systems {
        prepare(name, &files)?;
        let (mut ways, mut missing) = (Vec::new(), Vec::new());
        let counts: Vec<u16> = counts(args.processes).collect();
        for round in 0..args.rounds as usize {
            // With each number of processes ours and PETSc's.
            for place in order(round, 2 * counts.len()) {
                let processes = counts[place / 2];
                ensure!(!stop::is_wanted(), Interrupted);
                if place % 2 == 0 {
                    let mut command = Command::new(std::env::current_exe()?);
                    command.arg("solve");
                    if processes > 1 {
                        command.args(["--workers", &processes.to_string()]);
                    }
                    let by = |run: &Value| match (processes, run["workers"].as_u64()) {
                        (1, Some(threads)) if threads > 1 => {
                            format!("1 process, {threads} threads")
                        }
                        _ => of(processes),
                    };
                    if let Err(error) = ours(args, command, &files, by, &mut ways)? {
                        lacks(&mut missing, "ours", &error);
                    }
                    continue;
                }
                let both = (&*files[0], &*files[1]);
                match (contest.petsc).run("sparse", both, args.tol, processes.into()) {
                    Ok(solved) => contest.note_theirs(&mut ways, solved, &of(processes)),
                    Err(error) => lacks(&mut missing, "PETSc", &error),
                }
            }
        }
        ensure!(!stop::is_wanted(), Interrupted);
        results.push(tell(talk, (name, args.tol), ways, &missing));
    }
    Ok(())
}

/// Between the hosts of a testbed, under each loss.
fn between(
    contest: &mut Contest<'_>,
    testbed: &Testbed,
    talk: &mut Talk,
    results: &mut Vec<Value>,
) -> anyhow::Result<()> {
    let (args, files) = (contest.args, contest.files());
    let all = of_testbed(testbed);
    // The first is our judge's.
    let places = &all[1..];
    let slowed = |share: Fraction| -> anyhow::Result<Option<Brake>> {
        let last = places.last().and_then(|place| place.netns.clone());
        Ok(match last {
            Some(netns) => Some(Brake::start(netns, share.0)?),
            None => None,
        })
    };
    let ids: Vec<u16> = testbed
        .hosts()
        .iter()
        .map(tsumuji_testbed::Host::id)
        .collect();
    for name in &args.systems {
        prepare(name, &files)?;
        for loss in &args.loss {
            let impairment = Impairment {
                loss: loss.0,
                ..Impairment::NONE
            };
            testbed.impair(&ids, impairment)?;
            let (mut ways, mut missing) = (Vec::new(), Vec::new());
            let _brake = args.slow.map(slowed).transpose()?.flatten();
            for round in 0..args.rounds as usize {
                for place in order(round, METHODS.len() + 1) {
                    ensure!(!stop::is_wanted(), Interrupted);
                    let Some(&method) = METHODS.get(place) else {
                        let both = (&*files[0], &*files[1]);
                        let solved = contest
                            .petsc
                            .solve_between(places, both, args.tol, PATIENCE);
                        let unsolved = match solved {
                            Ok((solved, unsolved)) => {
                                contest.note_theirs(&mut ways, solved, &of(args.processes));
                                unsolved
                            }
                            Err(error) => Some(error),
                        };
                        if let Some(error) = unsolved {
                            lacks(&mut missing, "PETSc", &error);
                        }
                        continue;
                    };
                    // It ends itself when the time is over, and tells how far it came. One signal only: a second one would end it at once.
                    let mut command = Command::new("timeout");
                    command.args(["--foreground", "--preserve-status"]);
                    command.args(["--kill-after", KILL_AFTER_SECONDS]);
                    command.arg(PATIENCE.as_secs().to_string());
                    command.arg(std::env::current_exe()?);
                    command.args(["solve", "--open", "--link", &args.link.to_string()]);
                    command.args(["--method", method]);
                    command.arg("--hosts").arg(testbed.hosts_file());
                    let by = |_: &Value| of(args.processes);
                    if let Err(error) = ours(args, command, &files, by, &mut ways)? {
                        lacks(&mut missing, &format!("ours, {method}"), &error);
                    }
                }
            }
            ensure!(!stop::is_wanted(), Interrupted);
            let mut title = format!(
                "{name}, each cable loses {} %",
                (1e6 * loss.0).round() / 1e4
            );
            if let Some(slow) = args.slow {
                title += &format!(", the last host has {:.0} % of its time", 100.0 * slow.0);
            }
            results.push(tell(talk, (&title, args.tol), ways, &missing));
        }
    }
    Ok(())
}

/// 1, 2, 4 … and the last.
fn counts(most: u16) -> impl Iterator<Item = u16> {
    let powers = std::iter::successors(Some(1u16), |count| count.checked_mul(2));
    powers
        .take_while(move |count| *count < most)
        .chain(std::iter::once(most))
}

fn of(processes: u16) -> String {
    counted(processes.into(), "process", "es")
}

/// Writes the system for both.
fn prepare(name: &str, files: &[PathBuf; 2]) -> anyhow::Result<()> {
    let system = match name.parse::<Generate>() {
        Ok(what) => what.system_for(1, Solution::Random)?,
        Err(error) => {
            let path = Path::new(name);
            ensure!(path.exists(), "{error}; and there is no file of this name");
            let (mut system, _) = read_system(path, None)?;
            system.set_solution(&Solution::Random.elements(system.n(), 1))?;
            system
        }
    };
    let written = write_petsc(&system, &files[0], &files[1]);
    Ok(written
        .with_context(|| format!("{name}: dense systems are compared by `tsumuji bench`"))??)
}

/// Notes why there is no row, or not in all rounds; once for each of `who`.
fn lacks(missing: &mut Vec<String>, who: &str, why: &dyn std::fmt::Display) {
    let who = format!("{who}: not measured: ");
    if !missing.iter().any(|told| told.starts_with(&who)) {
        missing.push(format!("{who}{why}"));
    }
}

/// `tsumuji solve` by that command; `by` says by how many processes. The inner error: that run failed.
fn ours(
    args: &Args,
    mut command: Command,
    files: &[PathBuf; 2],
    by: impl FnOnce(&Value) -> String,
    ways: &mut Vec<Way>,
) -> anyhow::Result<Result<(), String>> {
    command.arg(&files[0]).arg("--rhs").arg(&files[1]);
    command.args(["--tol", &args.tol.to_string()]);
    let run = report::of(&mut command);
    ensure!(!stop::is_wanted(), Interrupted);
    let run = match run {
        Ok(run) => run,
        Err(why) => return Ok(Err(why)),
    };
    let part = |name: &str| run["seconds"][name].as_f64().unwrap_or(f64::NAN);
    let reading = part("load") + part("distribute");
    let seconds = (reading + part("iterate") + part("verify"), reading);
    let method = run["method"].as_str().unwrap_or_default();
    let method = method
        .replace("conjugate gradients", "cg")
        .replace(" with ", "+");
    let by = by(&run);
    let steps = run["laps"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64);
    let residual = run["residual"].as_f64().unwrap_or(f64::NAN);
    let found = (steps.max().unwrap_or(0), residual);
    note(ways, format!("ours {method}, {by}"), seconds, found, true);
    Ok(Ok(()))
}

fn note(
    ways: &mut Vec<Way>,
    name: String,
    (seconds, reading): (f64, f64),
    (steps, residual): (u64, f64),
    is_ours: bool,
) {
    match ways.iter_mut().find(|way| way.name == name) {
        Some(way) => {
            way.seconds.push(seconds);
            way.reading.push(reading);
            // The worst: one that once stopped short does not count.
            if residual.is_nan() || residual > way.residual {
                way.residual = residual;
            }
        }
        None => ways.push(Way {
            name,
            seconds: vec![seconds],
            reading: vec![reading],
            steps,
            residual,
            is_ours,
        }),
    }
}

/// Prints a system's table; the best of ours over the best of PETSc's in the end.
fn tell(
    talk: &mut Talk,
    (name, tolerance): (&str, f64),
    ways: Vec<Way>,
    missing: &[String],
) -> Value {
    let mut rows = table::headed("by | seconds | +-% | reading | steps | residual");
    let mut best: [Option<f64>; 2] = [None; 2];
    let mut list = Vec::new();
    for way in &ways {
        let (seconds, reading) = (Rounds::of(&way.seconds), Rounds::of(&way.reading));
        // Those that stop short do not count.
        let reaches = way.residual <= 1.01 * tolerance;
        let held = &mut best[usize::from(way.is_ours)];
        if reaches && held.is_none_or(|held| seconds.median < held) {
            *held = Some(seconds.median);
        }
        rows.push([
            way.name.clone(),
            format!("{:.3}", seconds.median),
            seconds.half_spread(),
            format!("{:.3}", reading.median),
            way.steps.to_string(),
            format!(
                "{:.1e}{}",
                way.residual,
                if reaches { "" } else { " (not reached)" }
            ),
        ]);
        list.push(json!({
            "way": way.name, "seconds": seconds, "reading": reading, "steps": way.steps, "residual": way.residual,
            "reached": reaches,
        }));
    }
    talk.say(&format!("\n{name}"));
    talk.say(&table::aligned(&rows));
    for reason in missing {
        talk.say(reason);
    }
    let ratio = match best {
        [Some(theirs), Some(ours)] => Some(ours / theirs),
        _ => None,
    };
    if let Some(ratio) = ratio {
        talk.say(&format!(
            "our best takes {ratio:.2} of the time of PETSc's best"
        ));
    }
    json!({ "system": name, "ways": list, "missing": missing, "ratio": ratio })
}
