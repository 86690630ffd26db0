//! `tsumuji solve NETLIST`: operating points and sweeps of circuits, by direct solution in parts, on threads of this process or by several processes.
//!
//! Called by `super` where the file's name is that of a netlist. The residual that is printed is computed from the circuit's elements. Options of
//! relaxation have no effect here and are refused.

mod processes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tsumuji_bench::table;
use tsumuji_circuit::compute::{Computation, ComputeError, Options, Outcome};
use tsumuji_circuit::netlist::{self, Netlist};
use tsumuji_circuit::newton::{NewtonError, Way};
use tsumuji_circuit::substructure::SolveError;
use tsumuji_solve::local::Limits;

pub(crate) use self::processes::{serve_host, work};
use super::how::LAPS;
use super::{Args, ModeName, kept};
use crate::interrupt::{INTERRUPTED, Interrupt, Interrupted};
use crate::output::{self, PendingFile};
use crate::{DONE, NOT_REACHED};
use processes::Place;

/// Names of netlists end so, before `.gz`.
const ENDINGS: [&str; 4] = ["sp", "cir", "spice", "net"];

/// The netlist among the arguments, if the file is one by its name.
pub(super) fn netlist_of(args: &Args) -> Option<PathBuf> {
    let path = args.matrix.as_ref()?;
    let plain = match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("gz") => path.with_extension(""),
        _ => path.clone(),
    };
    let ending = plain.extension()?;
    let is_netlist = ENDINGS
        .iter()
        .any(|known| ending.eq_ignore_ascii_case(known));
    is_netlist.then(|| path.clone())
}

/// Runs the command.
pub(super) fn run(args: &Args, path: &Path) -> crate::Outcome {
    check(args)?;
    Limits::new(args.tol, args.max_laps)?;
    let place = Place::of(args)?;
    let of_hosts = place.as_ref().map(Place::workers).transpose()?.flatten();
    let parts = match of_hosts.or(args.workers) {
        Some(0) => bail!("0 workers solve nothing; use at least 1"),
        Some(workers) => workers,
        None => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let began = Instant::now();
    let netlist = netlist::read(path)?;
    let load = began.elapsed();
    let options = Options {
        parts,
        tolerance: args.tol,
    };
    let prepared = Computation::new(&netlist, options).with_context(|| netlist.name.clone())?;
    let by = place.as_ref().map_or_else(String::new, |place| {
        format!(
            ", {} processes over {}",
            prepared.parts(),
            place.link_name()
        )
    });
    tell!(
        "{}: {} nodes, {} unknowns{by}, tolerance {:e}",
        netlist.name,
        netlist.nodes.len(),
        prepared.unknowns(),
        args.tol
    );
    netlist.notes.iter().for_each(|note| tell!("note: {note}"));
    let points = prepared.points();
    // Of one point by threads there is nothing to keep, or to end: an interrupt just ends the program.
    let interrupt = (points > 1 || place.is_some()).then(Interrupt::listen);
    let interrupt = interrupt.transpose()?;
    let is_interrupted = || interrupt.as_ref().is_some_and(Interrupt::is_set);
    let (outcome, lost_workers) = match (&place, &interrupt) {
        (Some(place), Some(interrupt)) => place.solve(prepared, interrupt)?,
        _ => (prepared.run(is_interrupted), Vec::new()),
    };
    let outcome = match outcome {
        Err(ComputeError::Interrupted) => return Err(Interrupted.into()),
        Err(ComputeError::Solve(error @ SolveError::Worker { .. })) => {
            return Ok(nothing("worker_lost", &error.to_string(), args.json));
        }
        Err(
            error @ ComputeError::Newton {
                error: NewtonError::NotConverged { .. },
                ..
            },
        ) => {
            let what = format!("{}: {error}", netlist.name);
            return Ok(nothing("not_converged", &what, args.json));
        }
        outcome => outcome.with_context(|| netlist.name.clone())?,
    };
    let is_reached = outcome.residual <= args.tol && outcome.is_whole();
    let explanation = if !outcome.is_whole() {
        let why = outcome.cut_short.as_deref().unwrap_or("interrupted");
        let done = outcome.voltages.len();
        format!("{why}; {done} of {points} points are done")
    } else if is_reached {
        "converged: the residual is within the tolerance".to_owned()
    } else {
        format!(
            "the residual is {:.1e}, above the tolerance of {:e}; ask for a larger --tol",
            outcome.residual, args.tol
        )
    };
    if !is_reached {
        tell!("tsumuji: {explanation}");
    }
    let report = Report {
        netlist: &netlist,
        outcome: &outcome,
        link: place.as_ref().map(Place::link_name),
        lost_workers,
        load,
        is_reached,
        explanation,
    };
    if args.json {
        output::print_json(&report.json());
    } else {
        output::print_text(&report.table());
    }
    // After the report: a full disk must not take that, too.
    let kept = args.output.as_ref().map_or(Ok(()), |path| {
        let path = if is_reached {
            path.clone()
        } else {
            let beside = kept::unfinished(path);
            tell!("note: the voltages go to {}", beside.display());
            beside
        };
        PendingFile::create(&path)?.finish(|out| write_voltages(out, &netlist, &outcome))
    });
    if let Err(error) = &kept {
        tell!("tsumuji: {error:#}");
    }
    Ok(if outcome.is_interrupted {
        ExitCode::from(INTERRUPTED)
    } else if is_reached && kept.is_ok() {
        DONE
    } else {
        ExitCode::from(NOT_REACHED)
    })
}

/// Tells why a circuit that can be computed was not.
fn nothing(reason: &str, what: &str, wants_json: bool) -> ExitCode {
    tell!("tsumuji: {what}");
    if wants_json {
        output::print_json(&json!({
            "converged": false,
            "reason": reason,
            "explanation": what,
            "error": what,
        }));
    }
    ExitCode::from(NOT_REACHED)
}

/// Options that have an effect on other systems only, beside those that concern laps.
const WITHOUT_EFFECT: &str = "--rhs --history --plot --method --sweep --plan --weights --checkpoint --resume --admit --max-laps --threads \
                              --preconditioner --lease --outlive --take-over";

/// Checks that need not read the netlist.
fn check(args: &Args) -> anyhow::Result<()> {
    let given = |flags| args.given.first_of(flags);
    let without_effect = match args.mode {
        ModeName::Auto | ModeName::Processes | ModeName::Threads => given(WITHOUT_EFFECT)
            .or(given(LAPS))
            .or(given("--seed").filter(|_| args.team.loss.is_none())),
        _ => Some("--mode"),
    };
    if let Some(flag) = without_effect {
        bail!(
            "{flag}: no effect with a netlist, which is solved directly, in parts; leave it out (--workers, --tol, --output, --json, --hosts, --link and \
             what concerns messages have effect)"
        );
    }
    if let Some(path) = &args.output {
        ensure!(
            path.extension()
                .is_some_and(|ending| ending.eq_ignore_ascii_case("csv")),
            "{}: voltages are written as .csv; give a name that ends so",
            path.display()
        );
        PendingFile::create(path)?;
        PendingFile::create(&kept::unfinished(path))?;
    }
    Ok(())
}

/// One line for each node: its name and voltage, or one voltage for each point of a sweep.
fn write_voltages(
    out: &mut dyn Write,
    netlist: &Netlist,
    outcome: &Outcome,
) -> std::io::Result<()> {
    write!(out, "node")?;
    if outcome.swept.is_empty() {
        write!(out, ",voltage")?;
    }
    for value in &outcome.swept {
        write!(out, ",{value:?}")?;
    }
    writeln!(out)?;
    for node in 0..netlist.nodes.len() {
        let name = netlist.nodes.get(node as u32);
        write!(out, "{}", table::quoted(name))?;
        for voltages in &outcome.voltages {
            write!(out, ",{:?}", voltages[node])?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// What is told in the end.
struct Report<'a> {
    netlist: &'a Netlist,
    outcome: &'a Outcome,
    /// Of processes that computed the parts.
    link: Option<String>,
    /// Of each worker that was lost: how, and who stood in for it.
    lost_workers: Vec<String>,
    load: Duration,
    is_reached: bool,
    /// Why the run ended, in one sentence.
    explanation: String,
}

impl Report<'_> {
    /// Node and voltage: the smallest and the largest of all points, ground left out.
    fn extremes(&self) -> [(&str, f64); 2] {
        let mut least = ("0", f64::INFINITY);
        let mut most = ("0", f64::NEG_INFINITY);
        for voltages in &self.outcome.voltages {
            for (node, &volts) in (0u32..).zip(voltages).skip(1) {
                if volts < least.1 {
                    least = (self.netlist.nodes.get(node), volts);
                }
                if volts > most.1 {
                    most = (self.netlist.nodes.get(node), volts);
                }
            }
        }
        [least, most]
    }

    /// Why the run ended, for scripts.
    fn reason(&self) -> &'static str {
        if self.outcome.is_interrupted {
            "interrupted"
        } else if self.outcome.cut_short.is_some() {
            "cut_short"
        } else if self.is_reached {
            "converged"
        } else {
            "stagnated"
        }
    }

    fn json(&self) -> serde_json::Value {
        let Outcome { sizes, .. } = self.outcome;
        let [least, most] = self.extremes();
        let mut report = json!({
            "system": self.netlist.name,
            "title": self.netlist.title,
            "converged": self.is_reached,
            "reason": self.reason(),
            "explanation": self.explanation,
            "residual": self.outcome.residual,
            "nodes": self.netlist.nodes.len(),
            "elements": self.netlist.elements(),
            "unknowns": self.outcome.unknowns,
            "points": self.outcome.voltages.len(),
            "parts": sizes.parts,
            "link": self.link,
            "lost_workers": self.lost_workers.len(),
            "interface": sizes.interface,
            "factor_entries": sizes.entries,
            "newton_iterations": self.outcome.steps,
            "found_by": self.outcome.way.to_string(),
            "smallest": { "node": least.0, "volts": least.1 },
            "largest": { "node": most.0, "volts": most.1 },
            "seconds": {
                "load": self.load.as_secs_f64(),
                "prepare": self.outcome.prepare.as_secs_f64(),
                "factor": self.outcome.factor.as_secs_f64(),
                "solve": self.outcome.solve.as_secs_f64(),
            },
            "notes": self.netlist.notes.iter().chain(&self.lost_workers).collect::<Vec<_>>(),
        });
        if let Some(what) = &self.outcome.cut_short {
            report["error"] = json!(what);
        }
        report
    }

    fn table(&self) -> String {
        let Outcome { sizes, .. } = self.outcome;
        let points = match self.outcome.swept[..] {
            [] => "operating point".to_owned(),
            [first, .., last] => format!(
                "{} points, from {first} to {last}",
                self.outcome.swept.len()
            ),
            [only] => format!("1 point, at {only}"),
        };
        let how = match self.outcome.way {
            Way::Linear => "linear".to_owned(),
            way => format!("{} iterations of {way}", self.outcome.steps),
        };
        let [least, most] = self.extremes();
        let rows = [
            ("result", format!("{points}; {how}")),
            (
                "residual",
                format!(
                    "{:.3e}  (what is left of currents and voltages, relative to them)",
                    self.outcome.residual
                ),
            ),
            (
                "circuit",
                format!(
                    "{} nodes, {} elements, {} unknowns",
                    self.netlist.nodes.len(),
                    self.netlist.elements(),
                    self.outcome.unknowns
                ),
            ),
            (
                "parts",
                format!(
                    "{} with an interface of {}, factors of {} entries{}",
                    sizes.parts,
                    sizes.interface,
                    sizes.entries,
                    self.link
                        .as_ref()
                        .map_or_else(String::new, |link| { format!("; processes over {link}") })
                ),
            ),
            ("smallest", format!("{:?} V at {}", least.1, least.0)),
            ("largest", format!("{:?} V at {}", most.1, most.0)),
            (
                "time",
                format!(
                    "load {:.3?}, prepare {:.3?}, factor {:.3?}, solve {:.3?}",
                    self.load, self.outcome.prepare, self.outcome.factor, self.outcome.solve
                ),
            ),
        ];
        table::report(&rows)
    }
}
