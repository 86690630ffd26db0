//! Progress output of long measurements: lines of their tables, and on a terminal a line below with the present measurement and an estimate of the
//! remaining time.
//!
//! That line is drawn between measurements only: nothing of ours runs during them.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tsumuji_bench::compare::{Listener, Step};
use tsumuji_bench::machine::{self, Machine};
use tsumuji_bench::stats::size_name;

use crate::{DONE, NOT_REACHED, Outcome, output};

/// Output of a measurement to the user.
pub(crate) struct Talk {
    /// Standard output is reserved for JSON.
    json: bool,
    bar: ProgressBar,
}

impl Talk {
    pub(crate) fn new(json: bool) -> Self {
        let bar = ProgressBar::no_length(); // drawn on standard error, if that is a terminal
        if let Ok(style) = ProgressStyle::with_template("{pos}/{len}, {eta} left: {msg}") {
            bar.set_style(style);
        }
        Self { json, bar }
    }

    /// Begins with the description of the machine.
    pub(crate) fn begin(json: bool) -> (Self, Machine) {
        let mut talk = Self::new(json);
        let machine = talk.machine();
        (talk, machine)
    }

    /// Ends with the JSON object, if that is wanted.
    pub(crate) fn end(self, report: &Value) -> Outcome {
        let json = self.json;
        drop(self); // the line below goes before the object comes
        if json {
            output::print_json(report);
        }
        Ok(DONE)
    }

    /// The same after files of the measurement, which `written` is about: those that could not be written take no result. JSON has the error, and the exit
    /// code is 1.
    pub(crate) fn end_with_files(self, mut report: Value, written: anyhow::Result<()>) -> Outcome {
        let Err(error) = written else {
            return self.end(&report);
        };
        let error = format!("{error:#}");
        report["error"] = error.as_str().into();
        self.end(&report)?;
        tell!("tsumuji: {error}");
        Ok(ExitCode::from(NOT_REACHED))
    }

    /// Prints the description of the machine, and a warning if it is busy.
    pub(crate) fn machine(&mut self) -> Machine {
        let machine = machine::describe();
        self.say(&format!("machine: {machine}"));
        if let Some(warning) = machine.warning() {
            self.say(&warning);
        }
        machine
    }
}

impl Listener for Talk {
    fn say(&mut self, text: &str) {
        let text = &in_columns(text);
        self.bar.suspend(|| {
            if self.json {
                tell!("{text}");
            } else {
                output::print_text(&format!("{text}\n"));
            }
        });
    }

    fn step(&mut self, step: Step<'_>) {
        self.bar.set_length(step.of as u64);
        self.bar.set_position(step.done as u64);
        let (size, round) = (size_name(step.size), step.round);
        self.bar
            .set_message(format!("{size}, round {round}, {}", step.who));
    }
}

/// Breaks lines of prose between words, so that each fits a terminal. Rows of tables, which are indented or have gaps between their columns, stay.
pub(crate) fn in_columns(text: &str) -> String {
    const COLUMNS: usize = 80;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        if line.starts_with(' ') || line.contains("  ") {
            lines.push(line.to_owned());
            continue;
        }
        let mut begun = String::new();
        for word in line.split(' ') {
            if !begun.trim().is_empty()
                && begun.chars().count() + 1 + word.chars().count() > COLUMNS
            {
                lines.push(std::mem::replace(&mut begun, format!("  {word}")));
            } else {
                let space = if begun.is_empty() { "" } else { " " };
                begun = format!("{begun}{space}{word}");
            }
        }
        lines.push(begun);
    }
    lines.join("\n")
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prose is broken between words, and nothing of it is lost; rows of tables and short lines stay as they are.
    #[test]
    fn prose_fits_a_terminal() {
        let prose = "machine: one processor or another, with so many cores, so much memory, and other facts in one long line";
        let row = format!("  {}", "x ".repeat(60));
        let text = in_columns(&format!("{prose}\n{row}\nshort"));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].len() <= 80 && lines[1].starts_with("  "), "{text}");
        assert_eq!(format!("{} {}", lines[0], lines[1].trim()), prose);
        assert_eq!((lines[2], lines[3]), (row.as_str(), "short"));
        for whole in ["y".repeat(90), format!("name  {}", "x ".repeat(60))] {
            assert_eq!(in_columns(&whole), whole);
        }
    }
}
