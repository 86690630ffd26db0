//! `tsumuji bench solve`: `tsumuji solve` beside PETSc's Krylov methods, on the same files, reading and distributing included.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::peers::petsc::Petsc;
use tsumuji_bench::stats::Rounds;
use tsumuji_bench::{stop, table};
use tsumuji_solve::system::formats::{read_system, write_petsc};
use tsumuji_solve::system::{Generate, Solution};

use crate::interrupt::Interrupted;
use crate::talk::Talk;
use crate::{DONE, Outcome, output};

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
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One way of solving, and what it took in each round.
struct Way {
    name: String,
    seconds: Vec<f64>,
    steps: u64,
    residual: f64,
    is_ours: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let mut talk = Talk::new(args.json);
    let machine = talk.machine();
    talk.say("seconds from the opening of the files to the verified solution; b belongs to a random solution where a system brings none");
    let petsc = Petsc::new()?;
    let folder = tempfile::tempdir()?;
    let files = [folder.path().join("A.petsc"), folder.path().join("b.petsc")];
    let (mut results, mut version) = (Vec::new(), String::new());
    for name in &args.systems {
        prepare(name, &files)?;
        let mut ways: Vec<Way> = Vec::new();
        let mut missing = Vec::new();
        for _ in 0..args.rounds {
            for processes in counts(args.processes) {
                ours(args, &files, processes, &mut ways)?;
                match petsc.solve_sparse(&files[0], &files[1], args.tol, processes.into()) {
                    Ok(solved) => {
                        for one in solved {
                            if version.is_empty() {
                                version = one.version;
                            }
                            let name = format!("PETSc {}, {}", one.method, of(processes));
                            let seconds = one.read_seconds + one.seconds;
                            note(&mut ways, name, seconds, (one.laps, one.residual), false);
                        }
                    }
                    Err(error) if missing.is_empty() => missing.push(error.to_string()),
                    Err(_) => {}
                }
                ensure!(!stop::is_wanted(), Interrupted);
            }
        }
        results.push(tell(&mut talk, (name, args.tol), ways, &missing));
    }
    if !version.is_empty() {
        talk.say(&format!(
            "\nPETSc {version}, by mpiexec; its preconditioners' making included"
        ));
    }
    drop(talk);
    if args.json {
        output::print_json(&json!({
            "kind": "solve", "tolerance": args.tol, "petsc": version, "machine": machine, "results": results,
        }));
    }
    Ok(DONE)
}

/// 1, 2, 4 … and the last.
fn counts(most: u16) -> impl Iterator<Item = u16> {
    let powers = std::iter::successors(Some(1u16), |count| count.checked_mul(2));
    powers
        .take_while(move |count| *count < most)
        .chain(std::iter::once(most))
}

fn of(processes: u16) -> String {
    format!(
        "{processes} process{}",
        if processes == 1 { "" } else { "es" }
    )
}

/// Writes the system for both.
fn prepare(name: &str, files: &[PathBuf; 2]) -> anyhow::Result<()> {
    let system = match name.parse::<Generate>() {
        Ok(what) => what.system_for(1, Solution::Random)?,
        Err(error) => {
            let path = Path::new(name);
            ensure!(path.exists(), "{error}; and there is no file of this name");
            let (mut system, _) = read_system(path, None)?;
            let x = Solution::Random.elements(system.n(), 1);
            system.rhs = system.matrix.times(&x);
            system
        }
    };
    let written = write_petsc(&system, &files[0], &files[1]);
    Ok(written
        .with_context(|| format!("{name}: dense systems are compared by `tsumuji bench`"))??)
}

/// `tsumuji solve` as it comes, in one process (with threads) and with workers.
fn ours(
    args: &Args,
    files: &[PathBuf; 2],
    processes: u16,
    ways: &mut Vec<Way>,
) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("solve")
        .arg(&files[0])
        .arg("--rhs")
        .arg(&files[1]);
    command.args(["--json", "--tol", &args.tol.to_string()]);
    let count = processes.to_string();
    if processes > 1 {
        command.args(["--workers", &count]);
    }
    let output = command.stdin(Stdio::null()).output()?;
    let run: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        String::from_utf8_lossy(&output.stderr)
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned()
    })?;
    let part = |name: &str| run["seconds"][name].as_f64().unwrap_or(f64::NAN);
    let seconds = part("load") + part("distribute") + part("iterate") + part("verify");
    let method = run["method"].as_str().unwrap_or_default();
    let method = method
        .replace("conjugate gradients", "cg")
        .replace(" with ", "+");
    let by = match (processes, run["workers"].as_u64()) {
        (1, Some(threads)) if threads > 1 => format!("1 process, {threads} threads"),
        _ => of(processes),
    };
    let steps = run["laps"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64);
    let residual = run["residual"].as_f64().unwrap_or(f64::NAN);
    let found = (steps.max().unwrap_or(0), residual);
    note(ways, format!("ours {method}, {by}"), seconds, found, true);
    Ok(())
}

fn note(
    ways: &mut Vec<Way>,
    name: String,
    seconds: f64,
    (steps, residual): (u64, f64),
    is_ours: bool,
) {
    match ways.iter_mut().find(|way| way.name == name) {
        Some(way) => way.seconds.push(seconds),
        None => ways.push(Way {
            name,
            seconds: vec![seconds],
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
    let heads = ["by", "seconds", "+-%", "steps", "residual"];
    let mut rows = vec![heads.map(str::to_owned)];
    let mut best: [Option<f64>; 2] = [None; 2];
    let mut list = Vec::new();
    for way in &ways {
        let seconds = Rounds::of(&way.seconds);
        // Those that stop short do not count.
        let reaches = way.residual <= 1.01 * tolerance;
        let held = &mut best[usize::from(way.is_ours)];
        if reaches && held.is_none_or(|held| seconds.median < held) {
            *held = Some(seconds.median);
        }
        rows.push([
            way.name.clone(),
            format!("{:.3}", seconds.median),
            format!("{:.0}", seconds.spread_percent() / 2.0),
            way.steps.to_string(),
            format!(
                "{:.1e}{}",
                way.residual,
                if reaches { "" } else { " (not reached)" }
            ),
        ]);
        list.push(json!({
            "way": way.name, "seconds": seconds, "steps": way.steps, "residual": way.residual, "reached": reaches,
        }));
    }
    talk.say(&format!("\n{name}"));
    talk.say(&table::aligned(&rows));
    for reason in missing {
        talk.say(&format!("PETSc: not measured: {reason}"));
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
