//! Whether the user wants all measurements to end.
//!
//! Set from outside (by the command line's signals), and checked wherever the benchmarks wait for other processes, so that those are ended and
//! testbeds and temporary folders are removed on the way out. One flag for the whole program, because signals are the program's. Short measurements
//! within this process (bare TCP, UDP and copies) do not check it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Reason for missing figures after a stop.
pub(crate) const REASON: &str = "interrupted";

static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag to set when all measurements are to end.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&FLAG)
}

/// Whether all measurements are to end.
#[inline]
pub fn is_wanted() -> bool {
    FLAG.load(Ordering::Relaxed)
}

/// All measurements are to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{REASON}")]
pub struct Wanted;

/// For loops that end with the first error.
#[inline]
pub fn check() -> Result<(), Wanted> {
    if is_wanted() { Err(Wanted) } else { Ok(()) }
}
