//! Figures of the dense system: the iteration beside memory bandwidth, speed-up, laps, loss, and PETSc.
//!
//! Ours are runs of `tsumuji solve --json` on a matrix file that PETSc reads, too.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Report, Say, Setting, Wanted, add};
use crate::limits::bandwidth::{BYTES_PER_CORE, Bandwidth};
use crate::machine;
use crate::peers::petsc::Petsc;
use crate::stats::Rounds;

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
    /// Of each worker.
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

fn parse(text: &[u8]) -> Option<Run> {
    let json: Value = serde_json::from_slice(text).ok()?;
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

/// One `tsumuji solve` of the system in `folder`.
fn solve(setting: &Setting, folder: &Path, arguments: &[&str]) -> Result<Run, String> {
    let output = Command::new(&setting.program)
        .arg("solve")
        .arg(folder.join("A.npy"))
        .arg("--rhs")
        .arg(folder.join("b.npy"))
        .args(["--tol", &TOLERANCE.to_string(), "--json"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    parse(&output.stdout).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        complaint.lines().last().unwrap_or("no output").to_owned()
    })
}

/// Everything about the dense system.
pub(super) fn dense(setting: &Setting, report: &mut Report, say: Say<'_>) {
    let n = setting.n;
    say(&format!(
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
            let ours = format!("- (the system could not be made: {reason})");
            return add(
                report,
                say,
                "dense system",
                ours,
                "-".to_owned(),
                f64::NAN,
                Wanted::AtLeast(1.0),
            );
        }
    };
    let folder = folder.path();
    let cores = machine::cpus().len().min(2);
    let (iterate, memory) = bandwidth(setting, folder, cores, report, say);
    if let ([one, two], [memory_of_one, memory_of_two]) = (&iterate[..], &memory[..]) {
        let ours = format!("{one:.3} s -> {two:.3} s");
        add(
            report,
            say,
            "async, 2 workers to 1, iteration",
            ours,
            "1 worker".to_owned(),
            one / two,
            Wanted::AtLeast(1.9),
        );
        // Where one core alone takes all that memory gives, a second one cannot help.
        add(
            report,
            say,
            "async, 2 workers to 1, of what memory allows",
            format!("{:.2}x", one / two),
            format!("{:.2}x (streaming read)", memory_of_two / memory_of_one),
            (one / two) / (memory_of_two / memory_of_one),
            Wanted::AtLeast(0.95),
        );
    }
    laps_and_loss(setting, folder, cores, report, say);
    beside_petsc(setting, folder, &petsc, &iterate, report, say);
}

/// Bytes of A read per second while iterating, beside what that many cores read at all. Returns the seconds of each, and
/// what memory gave in GB/s.
fn bandwidth(
    setting: &Setting,
    folder: &Path,
    cores: usize,
    report: &mut Report,
    say: Say<'_>,
) -> (Vec<f64>, Vec<f64>) {
    let bandwidth = Bandwidth::new(cores, BYTES_PER_CORE);
    let matrix_bytes = (setting.n * setting.n * size_of::<f64>()) as f64;
    let (mut iterate, mut memory) = (Vec::new(), Vec::new());
    for workers in 1..=cores {
        let (mut limits, mut rates, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        let mut failure = None;
        for _ in 0..setting.rounds {
            limits.push(bandwidth.read(workers, READ_LAPS) / 1e9);
            match solve(
                setting,
                folder,
                &[
                    "--workers",
                    &workers.to_string(),
                    "--mode",
                    "async",
                    "--link",
                    "shm",
                ],
            ) {
                Ok(run) => {
                    rates.push(run.laps_mean() * matrix_bytes / run.iterate / 1e9);
                    seconds.push(run.iterate);
                }
                Err(reason) => failure = Some(reason),
            }
        }
        let (limit, rate) = (Rounds::of(&limits), Rounds::of(&rates));
        let ours = failure.map_or_else(
            || {
                format!(
                    "{:.2} GB/s (+-{:.0} %)",
                    rate.median,
                    rate.spread_percent() / 2.0
                )
            },
            |reason| format!("- ({reason})"),
        );
        let beside = format!(
            "{:.2} GB/s (+-{:.0} %, streaming read)",
            limit.median,
            limit.spread_percent() / 2.0
        );
        let name = format!(
            "dense iteration, {workers} worker{}",
            if workers == 1 { "" } else { "s" }
        );
        add(
            report,
            say,
            name,
            ours,
            beside,
            rate.median / limit.median,
            Wanted::AtLeast(0.85),
        );
        iterate.push(Rounds::of(&seconds).median);
        memory.push(limit.median);
    }
    (iterate, memory)
}

/// Laps beside the sequential sweep's, and the residual under loss.
fn laps_and_loss(
    setting: &Setting,
    folder: &Path,
    workers: usize,
    report: &mut Report,
    say: Say<'_>,
) {
    let workers = workers.to_string();
    let sequential = solve(setting, folder, &["--mode", "single"]);
    let ours = solve(
        setting,
        folder,
        &[
            "--workers",
            &workers,
            "--mode",
            "async",
            "--link",
            "shm",
            "--elements",
            SMALL_ELEMENTS,
        ],
    );
    let name = format!("laps with --elements {SMALL_ELEMENTS}, {workers} workers");
    match (&sequential, &ours) {
        (Ok(sequential), Ok(ours)) => {
            let beside = format!("{} (sequential Gauss-Seidel)", sequential.laps_max());
            let ratio = ours.laps_mean() / sequential.laps_max();
            add(
                report,
                say,
                name,
                format!("{:.1} (slowest and fastest averaged)", ours.laps_mean()),
                beside,
                ratio,
                Wanted::AtMost(1.05),
            );
        }
        (Err(reason), _) | (_, Err(reason)) => add(
            report,
            say,
            name,
            format!("- ({reason})"),
            "-".to_owned(),
            f64::NAN,
            Wanted::AtMost(1.05),
        ),
    }
    for link in ["shm", "udp"] {
        let name = format!("residual with 20 % of frames dropped, {link}");
        let beside = format!("{TOLERANCE:e} (tolerance)");
        match solve(
            setting,
            folder,
            &[
                "--workers",
                &workers,
                "--mode",
                "async",
                "--link",
                link,
                "--loss",
                LOSS,
            ],
        ) {
            Ok(run) => {
                let ours = format!(
                    "{:.2e} in {:.3} s, {:.0} laps{}",
                    run.residual,
                    run.iterate,
                    run.laps_max(),
                    if run.converged { "" } else { ", not converged" }
                );
                add(
                    report,
                    say,
                    name,
                    ours,
                    beside,
                    run.residual / TOLERANCE,
                    Wanted::AtMost(1.0),
                );
            }
            Err(reason) => add(
                report,
                say,
                name,
                format!("- ({reason})"),
                beside,
                f64::NAN,
                Wanted::AtMost(1.0),
            ),
        }
    }
}

/// Seconds of the iteration beside PETSc's methods on the same file, with as many processes.
fn beside_petsc(
    setting: &Setting,
    folder: &Path,
    petsc: &Petsc,
    iterate: &[f64],
    report: &mut Report,
    say: Say<'_>,
) {
    for (index, &ours) in iterate.iter().enumerate() {
        let ranks = index + 1;
        let mut methods: Vec<(String, Vec<f64>, u64)> = Vec::new();
        for _ in 0..setting.rounds {
            let solved = match petsc.solve(
                &folder.join("A.npy"),
                &folder.join("b.npy"),
                TOLERANCE,
                ranks,
            ) {
                Ok(solved) => solved,
                Err(error) => {
                    let name = format!("dense solve beside PETSc, {ranks} processes");
                    return add(
                        report,
                        say,
                        name,
                        format!("{ours:.3} s"),
                        format!("- ({error})"),
                        f64::NAN,
                        Wanted::Nothing,
                    );
                }
            };
            for one in solved {
                let version = format!("PETSc {}", one.version);
                if !report.peers.contains(&version) {
                    report.peers.push(version);
                }
                match methods
                    .iter_mut()
                    .find(|(method, ..)| *method == one.method)
                {
                    Some((_, seconds, _)) => seconds.push(one.seconds),
                    None => methods.push((one.method, vec![one.seconds], one.laps)),
                }
            }
        }
        for (method, seconds, laps) in methods {
            let theirs = Rounds::of(&seconds).median;
            let name = format!(
                "dense solve, {ranks} process{}",
                if ranks == 1 { "" } else { "es" }
            );
            add(
                report,
                say,
                name,
                format!("{ours:.3} s"),
                format!("{theirs:.3} s (PETSc {method}+Jacobi, {laps} laps)"),
                ours / theirs,
                Wanted::Nothing,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures come from the fields that `tsumuji solve --json` promises.
    #[test]
    fn reads_the_contract() {
        let text = br#"{"converged":true,"residual":3e-11,"laps":[18,20],"seconds":{"load":1.0,"iterate":0.5},"workers":2}"#;
        let run = parse(text).unwrap();
        assert!(run.converged);
        assert_eq!(
            (run.iterate, run.laps_mean(), run.laps_max(), run.residual),
            (0.5, 19.0, 20.0, 3e-11)
        );
        assert!(parse(b"{}").is_none());
    }
}
