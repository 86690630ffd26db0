//! Figures of the dense system: the iteration compared with memory bandwidth, speed-up, laps, loss, and PETSc.
//!
//! Ours are runs of `tsumuji solve --json` on a matrix file that PETSc reads, too.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{Log, Setting, Wanted};
use crate::limits::bandwidth::{BYTES_PER_CORE, Bandwidth};
use crate::peers::petsc::Petsc;
use crate::stats::{Rounds, counted};
use crate::versus::{median_ratio, order};
use crate::{machine, report, stop};

const TOLERANCE: f64 = 1e-10;
/// Laps of each bandwidth measurement.
const READ_LAPS: usize = 4;
/// Small and frequent updates: where asynchronous relaxation needs about as many laps as Gauss–Seidel.
const SMALL_ELEMENTS: &str = "64";
/// Fraction of frames dropped in the run with loss.
const LOSS: &str = "0.2";

struct Run {
    /// Seconds of the iteration.
    iterate: f64,
    /// Laps of each worker.
    laps: Vec<f64>,
    residual: f64,
    converged: bool,
}

impl Run {
    fn laps_mean(&self) -> f64 {
        self.laps.iter().sum::<f64>() / self.laps.len() as f64
    }

    fn laps_max(&self) -> f64 {
        self.laps.iter().copied().fold(f64::NAN, f64::max)
    }
}

fn parse(json: &Value) -> Option<Run> {
    Some(Run {
        iterate: json["seconds"]["iterate"].as_f64()?,
        laps: json["laps"]
            .as_array()?
            .iter()
            .filter_map(Value::as_f64)
            .collect(),
        residual: json["residual"].as_f64().unwrap_or(f64::NAN),
        converged: json["converged"].as_bool()?,
    })
}

/// One `tsumuji solve` of the system in `folder`, with these options.
fn solve(setting: &Setting, folder: &Path, options: &str) -> Result<Run, String> {
    let mut command = Command::new(&setting.program);
    command
        .arg("solve")
        .arg(folder.join("A.npy"))
        .arg("--rhs")
        .arg(folder.join("b.npy"))
        .args(["--tol", &TOLERANCE.to_string()])
        .args(options.split(' '));
    let report = report::of(&mut command)?;
    parse(&report).ok_or_else(|| "its report has no iteration".to_owned())
}

/// The options of a run with so many workers that exchange small updates.
fn asynchronous(workers: usize) -> String {
    format!("--workers {workers} --mode async --link shm --elements {SMALL_ELEMENTS}")
}

/// All figures of the dense system.
pub(super) fn dense(setting: &Setting, log: &mut Log<'_>) {
    let n = setting.n;
    log.say(&format!(
        "dense system, n = {n}: off-diagonal -U(0,1), diagonal 1.766 times the row's sum, residual {TOLERANCE:e}"
    ));
    let prepared = tempfile::tempdir()
        .map_err(|error| error.to_string())
        .and_then(|folder| {
            let petsc = Petsc::new().map_err(|error| error.to_string())?;
            let (matrix, rhs) = (folder.path().join("A.npy"), folder.path().join("b.npy"));
            petsc
                .make_system(n, &matrix, &rhs)
                .map_err(|error| error.to_string())?;
            Ok((folder, petsc))
        });
    let (folder, petsc) = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => {
            let reason = format!("the system could not be made: {reason}");
            return log.unmeasured("dense system", &reason, Wanted::AtLeast(1.0));
        }
    };
    let folder = folder.path();
    let cores = machine::cpus().len().min(2);
    let all = iterations(setting, folder, &petsc, cores, log);
    speed_up(&all, log);
    laps_and_loss(setting, folder, cores, log);
    beside_petsc(&all, log);
}

/// Results of a number of workers, round by round.
#[derive(Default)]
struct Iterations {
    /// Seconds of the iteration.
    seconds: Vec<f64>,
    /// GB of A read per second during the iteration.
    rates: Vec<f64>,
    /// GB per second that as many cores can read, measured just before.
    limits: Vec<f64>,
    /// PETSc's methods with as many processes.
    petsc: Vec<Method>,
    /// Why there are no more of them.
    petsc_failure: Option<String>,
}

/// A method of PETSc's, round by round.
struct Method {
    name: String,
    seconds: Vec<f64>,
    laps: u64,
}

impl Iterations {
    /// A round of ours, behind the memory bandwidth of the same moment.
    fn measure(
        &mut self,
        setting: &Setting,
        folder: &Path,
        bandwidth: &Bandwidth,
        workers: usize,
    ) -> Result<(), String> {
        let limit = bandwidth.read(workers, READ_LAPS) / 1e9;
        let run = solve(setting, folder, &asynchronous(workers))?;
        let matrix_bytes = (setting.n * setting.n * size_of::<f64>()) as f64;
        self.limits.push(limit);
        self.rates
            .push(run.laps_mean() * matrix_bytes / run.iterate / 1e9);
        self.seconds.push(run.iterate);
        Ok(())
    }

    /// A round of PETSc's methods; returns its version.
    fn measure_petsc(
        &mut self,
        petsc: &Petsc,
        folder: &Path,
        ranks: usize,
    ) -> Result<Option<String>, String> {
        let files = (&*folder.join("A.npy"), &*folder.join("b.npy"));
        let solved = petsc.run("solve", files, TOLERANCE, ranks);
        let mut version = None;
        for one in solved.map_err(|error| error.to_string())? {
            version = Some(one.version);
            match self.petsc.iter_mut().find(|known| known.name == one.method) {
                Some(method) => method.seconds.push(one.seconds),
                None => self.petsc.push(Method {
                    name: one.method,
                    seconds: vec![one.seconds],
                    laps: one.laps,
                }),
            }
        }
        Ok(version)
    }
}

/// Iterations with 1 worker to `cores` workers, in turn, each with the memory bandwidth of the same moment, and beside PETSc's methods with as many
/// processes: on a shared machine memory is faster at some times than at others.
fn iterations(
    setting: &Setting,
    folder: &Path,
    petsc: &Petsc,
    cores: usize,
    log: &mut Log<'_>,
) -> Vec<Iterations> {
    let bandwidth = Bandwidth::new(cores, BYTES_PER_CORE);
    let mut all: Vec<Iterations> = (0..cores).map(|_| Iterations::default()).collect();
    let mut failure = None;
    for round in 0..setting.rounds {
        // Of each number of workers ours and PETSc's.
        for place in order(round, 2 * cores) {
            let (one, workers) = (&mut all[place / 2], 1 + place / 2);
            let goes_on = stop::check().map_err(|wanted| wanted.to_string());
            if place % 2 == 0 {
                // No round follows a failure, so that rounds of both stay in pairs.
                if failure.is_none() {
                    let found =
                        goes_on.and_then(|()| one.measure(setting, folder, &bandwidth, workers));
                    failure = found.err();
                }
                continue;
            }
            if one.petsc_failure.is_some() {
                continue;
            }
            match goes_on.and_then(|()| one.measure_petsc(petsc, folder, workers)) {
                Ok(Some(version)) => log.peer(&format!("PETSc {version}")),
                Ok(None) => {}
                Err(reason) => one.petsc_failure = Some(reason),
            }
        }
    }
    for (index, one) in all.iter().enumerate() {
        let (limit, rate) = (Rounds::of(&one.limits), Rounds::of(&one.rates));
        let told = |rates: &Rounds, how: &str| {
            let spread = rates.spread_percent() / 2.0;
            format!("{:.2} GB/s (+-{spread:.0} %{how})", rates.median)
        };
        let ours = match &failure {
            None => told(&rate, ""),
            Some(reason) => format!("- ({reason})"),
        };
        let beside = told(&limit, ", streaming read");
        let name = format!("dense iteration, {}", counted(index + 1, "worker", "s"));
        let ratio = median_ratio(&one.rates, &one.limits);
        log.add(name, ours, beside, ratio, Wanted::AtLeast(0.90));
    }
    all
}

/// Two workers compared with one, and with the memory bandwidth of two cores.
fn speed_up(all: &[Iterations], log: &mut Log<'_>) {
    let [one, two] = all else { return };
    let ratio = median_ratio(&one.seconds, &two.seconds);
    let medians = [one, two].map(|one| Rounds::of(&one.seconds).median);
    log.add(
        "async, 2 workers to 1, iteration",
        format!("{:.3} s -> {:.3} s", medians[0], medians[1]),
        "1 worker",
        ratio,
        Wanted::AtLeast(1.9),
    );
    // Where one core alone uses the whole memory bandwidth, a second one cannot help.
    let allowed = median_ratio(&two.limits, &one.limits);
    log.add(
        "async, 2 workers to 1, of what memory allows",
        format!("{ratio:.2}x"),
        format!("{allowed:.2}x (streaming read)"),
        ratio / allowed,
        Wanted::AtLeast(0.95),
    );
}

/// Laps compared with the sequential sweep's, and the residual under loss.
fn laps_and_loss(setting: &Setting, folder: &Path, workers: usize, log: &mut Log<'_>) {
    let options = asynchronous(workers);
    let sequential = solve(setting, folder, "--mode single");
    let rounds: Result<Vec<f64>, String> = (0..setting.rounds)
        .map(|_| Ok(solve(setting, folder, &options)?.laps_mean()))
        .collect();
    let name = format!("laps with --elements {SMALL_ELEMENTS}, {workers} workers");
    let (ours, beside, ratio) = match (sequential, rounds) {
        (Ok(sequential), Ok(rounds)) => {
            let laps = Rounds::of(&rounds).median;
            let sequential = sequential.laps_max();
            (
                format!("{laps:.1} (mean of the workers)"),
                format!("{sequential} (sequential Gauss-Seidel)"),
                laps / sequential,
            )
        }
        (Err(reason), _) | (_, Err(reason)) => (format!("- ({reason})"), "-".to_owned(), f64::NAN),
    };
    log.add(name, ours, beside, ratio, Wanted::AtMost(1.05));
    for link in ["shm", "udp"] {
        let name = format!("residual with 20 % of frames dropped, {link}");
        let beside = format!("{TOLERANCE:e} (tolerance)");
        let options = format!("--workers {workers} --mode async --link {link} --loss {LOSS}");
        let (ours, ratio) = match solve(setting, folder, &options) {
            Ok(run) => {
                let ours = format!(
                    "{:.2e} in {:.3} s, {:.0} laps{}",
                    run.residual,
                    run.iterate,
                    run.laps_max(),
                    if run.converged { "" } else { ", not converged" }
                );
                (ours, run.residual / TOLERANCE)
            }
            Err(reason) => (format!("- ({reason})"), f64::NAN),
        };
        log.add(name, ours, beside, ratio, Wanted::AtMost(1.0));
    }
}

/// Seconds of the iteration compared with PETSc's methods on the same file, with as many processes, by the ratios round by round.
fn beside_petsc(all: &[Iterations], log: &mut Log<'_>) {
    for (index, one) in all.iter().enumerate() {
        let processes = counted(index + 1, "process", "es");
        let ours = format!("{:.3} s", Rounds::of(&one.seconds).median);
        if let Some(reason) = &one.petsc_failure {
            let name = format!("dense solve beside PETSc, {processes}");
            log.add(
                name,
                ours.clone(),
                format!("- ({reason})"),
                f64::NAN,
                Wanted::Nothing,
            );
        }
        for method in &one.petsc {
            let Method {
                name,
                seconds,
                laps,
            } = method;
            let theirs = Rounds::of(seconds).median;
            log.add(
                format!("dense solve, {processes}"),
                ours.clone(),
                format!("{theirs:.3} s (PETSc {name}+Jacobi, {laps} laps)"),
                median_ratio(&one.seconds, seconds),
                Wanted::Nothing,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The figures are read from the documented fields of `tsumuji solve --json`.
    #[test]
    fn reads_the_contract() {
        let report = json!({ "converged": true, "residual": 3e-11, "laps": [18, 20], "seconds": { "iterate": 0.5 } });
        let run = parse(&report).unwrap();
        assert!(run.converged);
        assert_eq!(
            (run.iterate, run.laps_mean(), run.laps_max(), run.residual),
            (0.5, 19.0, 20.0, 3e-11)
        );
        assert!(parse(&json!({})).is_none());
    }
}
