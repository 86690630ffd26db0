//! Whether the user wants all measuring to end.
//!
//! Set from outside (by the command line's signals), looked at by everything here that waits for other processes, so that those are
//! ended and testbeds and temporary folders are removed on the way out. One flag for the whole program, because signals are the
//! program's. What measures within this process for a short time (bare TCP, UDP and copies) does not look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Why somebody who was stopped has no figure.
pub(crate) const REASON: &str = "interrupted";

static FLAG: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// To be set when all is to end.
pub fn flag() -> Arc<AtomicBool> {
    Arc::clone(&FLAG)
}

/// Whether all is to end.
pub fn is_wanted() -> bool {
    FLAG.load(Ordering::Relaxed)
}
