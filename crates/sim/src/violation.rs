//! What a broken rule is in a program that runs a net: an error, where a test panics.
//!
//! `Net::check` and the judge unwind with it (`Net::in_program`), and `judged` returns it. The hook of panics, which prints, is passed by.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A rule that a net found broken, or another panic of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The run's seed.
    pub seed: u64,
    /// What was found, in one line.
    pub why: String,
}

impl Violation {
    pub(crate) fn new(seed: u64, why: &str) -> Self {
        let lines: Vec<&str> = why.lines().map(str::trim).collect();
        let why = lines.join("; ");
        Self { seed, why }
    }

    pub(crate) fn unwind(self) -> ! {
        resume_unwind(Box::new(self))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, why } = self;
        write!(
            f,
            "a fault of tsumuji's, please report it: the simulation with seed {seed} broke a rule: {why}"
        )
    }
}

impl std::error::Error for Violation {}

/// Runs a net of this `seed`, which `run` makes by `Net::in_program` and drops. A violation, or another panic, ends it.
pub fn judged<T>(seed: u64, run: impl FnOnce() -> T) -> Result<T, Violation> {
    // What the run has changed is dropped with it.
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let panic = match panic.downcast::<Violation>() {
            Ok(violation) => return *violation,
            Err(panic) => panic,
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Violation::new(seed, text.unwrap_or("a panic"))
    })
}
