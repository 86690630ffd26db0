//! Display of a run: a table for people, one object for scripts.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tsumuji_bench::plot::{self, PlotError};
use tsumuji_bench::table::report;
use tsumuji_learn::report::{Moment, Outcome, Reason};
use tsumuji_learn::{Model, Score};

/// Most coefficients that are printed; a model of more is in its file.
const PRINTED_MAX: usize = 4096;

/// What the report tells beside the outcome.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) model: &'static str,
    pub(super) data: String,
    pub(super) mode: String,
    pub(super) method: &'static str,
    /// How workers sum; `None`: otherwise than among peers.
    pub(super) average: Option<&'static str>,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) workers: usize,
    /// `None`: nothing is sent.
    pub(super) link: Option<String>,
    pub(super) load_seconds: f64,
    pub(super) tol: f64,
    /// From the learned objective to one in the target's unit.
    pub(super) loss_factor: f64,
    pub(super) train_score: Option<Score>,
    pub(super) test_score: Option<Score>,
    /// Where the model was written.
    pub(super) written: Option<String>,
}

/// The one object of `--json`. `errors`: of files that were not written.
pub(super) fn json_of(
    run: &Run,
    outcome: &Outcome,
    model: Option<&Model>,
    errors: &[String],
) -> Value {
    let mut value = json!({
        "converged": outcome.reason == Reason::Converged,
        "reason": outcome.reason,
        "explanation": outcome.reason.to_string(),
        "model": run.model,
        "data": run.data,
        "mode": run.mode,
        "method": run.method,
        "average": run.average,
        "workers": run.workers,
        "link": run.link,
        "rows": run.rows,
        "columns": run.columns,
        "loss": outcome.loss * run.loss_factor,
        "gradient_norm": outcome.gradient_norm,
        "iterations": outcome.iterations,
        "exchanges": outcome.exchanges,
        "rejected": outcome.rejected,
        "bytes_sent": outcome.bytes_sent,
        "rows_beside": outcome.rows_beside,
        "joined": outcome.joined,
        "disagreement": outcome.disagreement,
        "rows_used": outcome.rows,
        "dropped": outcome.dropped,
        "seconds": { "load": run.load_seconds, "learn": outcome.seconds },
    });
    if let Some(score) = run.train_score {
        value[score.name()] = score.value().into();
    }
    if let Some(score) = run.test_score {
        value[format!("test_{}", score.name())] = score.value().into();
    }
    if let Some(path) = &run.written {
        value["written"] = path.as_str().into();
    }
    if !errors.is_empty() {
        value["error"] = errors.join("; ").into();
    }
    if let Some(model) = model {
        if let Some(classes) = &model.classes {
            value["classes"] = json!(classes);
        }
        if model.columns * model.intercepts.len() <= PRINTED_MAX {
            value["coefficients"] = json!(model.coefficients);
            value["intercepts"] = json!(model.intercepts);
        }
    }
    value
}

/// The table for people.
pub(super) fn table(run: &Run, outcome: &Outcome) -> String {
    let seconds = |seconds: f64| format!("{:.3?}", Duration::from_secs_f64(seconds.max(0.0)));
    let mut rows = vec![
        ("result", outcome.reason.to_string()),
        (
            "model",
            format!(
                "{} of {} rows × {} columns in {}",
                run.model, run.rows, run.columns, run.data
            ),
        ),
        (
            "loss",
            format!(
                "{:.6e}, gradient {:.1e} of {:.0e}",
                outcome.loss * run.loss_factor,
                outcome.gradient_norm,
                run.tol
            ),
        ),
    ];
    if let Some(score) = run.train_score {
        rows.push((score.name(), format!("{:.6}", score.value())));
    }
    if let Some(score) = run.test_score {
        rows.push(("test", format!("{} {:.6}", score.name(), score.value())));
    }
    let what = if run.method == "newton" {
        "steps"
    } else {
        "epochs"
    };
    let by = match &run.link {
        None => String::new(),
        Some(link) => {
            let joined = match outcome.joined {
                0 => String::new(),
                joined => format!(", {joined} joined,"),
            };
            format!(" by {} workers{joined} over {link}", run.workers)
        }
    };
    rows.push((
        "work",
        format!(
            "{} {what}{by}, {} {}",
            outcome.iterations, run.mode, run.method
        ),
    ));
    if run.link.is_some() {
        let kilobytes = outcome.bytes_sent as f64 / 1e3;
        rows.push((
            "traffic",
            format!(
                "{} exchanges, {kilobytes:.1} kB; {} refused; nodes differ by {:.1e}",
                outcome.exchanges, outcome.rejected, outcome.disagreement
            ),
        ));
    }
    for dropped in &outcome.dropped {
        let text = format!("{} with {} rows", dropped.worker, dropped.rows);
        rows.push(("missing", text));
    }
    rows.push((
        "time",
        format!(
            "load {}, learn {}",
            seconds(run.load_seconds),
            seconds(outcome.seconds)
        ),
    ));
    if let Some(path) = &run.written {
        rows.push(("written", path.clone()));
    }
    report(&rows)
}

/// What happened when, as CSV; the loss in the target's unit, as in the report.
pub(super) fn history(run: &Run, outcome: &Outcome) -> String {
    let mut text = String::from("seconds,iteration,loss,gradient_norm\n");
    for moment in &outcome.history {
        let Moment {
            seconds,
            iteration,
            loss,
            gradient_norm,
        } = moment;
        let loss = loss * run.loss_factor;
        let _ = writeln!(text, "{seconds:.6},{iteration},{loss},{gradient_norm}"); // into memory
    }
    text
}

/// Draws the gradient's norm over time.
pub(super) fn draw(run: &Run, outcome: &Outcome) -> Result<String, PlotError> {
    let line = |name: &str, value: fn(&Moment) -> f64| {
        let moments = outcome.history.iter();
        plot::Line::new(name, moments.map(|one| (one.seconds, value(one))))
    };
    let lines = [
        line("loss", |moment| moment.loss),
        line("gradient", |moment| moment.gradient_norm),
    ];
    let title = format!("{} of {}, {} {}", run.model, run.data, run.mode, run.method);
    plot::over_time(&title, "loss, norm of the gradient (scaled data)", &lines)
}
