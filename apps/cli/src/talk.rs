//! Progress output of long measurements: lines of their tables, and on a terminal a line below with the present measurement and an estimate of the
//! remaining time.
//!
//! That line is drawn between measurements only: nothing of ours runs during them.

use indicatif::{ProgressBar, ProgressStyle};
use tsumuji_bench::compare::{Listener, Step};
use tsumuji_bench::machine::{self, Machine};
use tsumuji_bench::stats::size_name;

use crate::output;

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
        self.bar.suspend(|| {
            if self.json {
                eprintln!("{text}");
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

impl Drop for Talk {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
