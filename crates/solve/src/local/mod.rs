//! Relaxation on one machine: the kernels, the sweepers that every mode uses, and the modes that need no network.
//!
//! `distributed` uses [`Sweeper`] and [`StopRule`] for each worker; the command line calls [`single`] and [`threads`]
//! for comparison, and the circuits' solver eliminates the interior of its parts by [`BorderedCholesky`] or
//! [`PartialLu`]. Nothing here knows of frames or nodes.

pub(crate) mod accelerate;
mod bordered;
mod cholesky;
mod compact;
pub mod direct;
pub mod kernels;
mod lu;
mod partial;
pub mod single;
mod stop;
mod strip;
mod sweep;
pub mod threads;

pub use bordered::BorderedCholesky;
pub use compact::Precision;
pub use lu::{FillLimit, LuError};
pub use partial::{PartialLu, Schur};
pub(crate) use stop::{Best, SMALLEST_PROGRESS};
pub use stop::{Limits, LimitsError, StopRule};
pub(crate) use strip::{BlockLu, diagonal_block};
pub use sweep::{Inner, Relaxation, RelaxationError, Sweeper};

use std::ops::Range;

/// Ascending `columns` as ranges, with gaps of up to `gap` columns that are not among them; none reaches from before `own` into it.
pub(crate) fn ranges_of(columns: &[u32], gap: usize, own: &Range<usize>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for &column in columns {
        let at = column as usize;
        match ranges.last_mut() {
            Some(last) if at - last.end <= gap && !(last.end <= own.start && own.start < at) => {
                last.end = at + 1;
            }
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// A norm divided by ‖b‖; for b = 0, whose solution is 0, the norm itself.
pub fn relative(norm: f64, rhs_norm: f64) -> f64 {
    if rhs_norm > 0.0 {
        norm / rhs_norm
    } else {
        norm
    }
}

/// Calls `work` for all items, the first on this thread and the others each on one of their own. A panic of one is passed on.
pub fn on_threads<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let mut items = items.into_iter();
    let Some(first) = items.next() else {
        return Vec::new();
    };
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        let first = work(first);
        let others = others.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        std::iter::once(first).chain(others).collect()
    })
}
