//! Convergent problems of a user: a fixed point x = G(x) found by all members of a cluster, on the board, without waiting.
//!
//! A problem implements [`FixedPoint`]. Each member of a cluster calls [`solve`] with an instance of its own, as an MPI program would, and renews a range of
//! x. Its values go to the others in best-effort frames. When the members' estimates are low, node 0 orders a pause. In a pause all members exchange their
//! ranges reliably, compute the [`certificate`](FixedPoint::certificate) on one x that all hold, and decide alike: the end, or the next epoch. Loss delays a
//! result; it never falsifies one.
//!
//! ```
//! use std::ops::Range;
//! use tsumuji_solve::fixed_point::{Config, FixedPoint, alone};
//!
//! /// x[i] = cos(x[i]) / 2 + 1, for each i.
//! struct Cosines;
//!
//! impl FixedPoint for Cosines {
//!     fn len(&self) -> usize {
//!         100
//!     }
//!     fn start(&self, range: Range<usize>, x: &mut [f64]) {
//!         x[range].fill(0.0);
//!     }
//!     fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
//!         x[range].iter_mut().for_each(|x| *x = x.cos() / 2.0 + 1.0);
//!     }
//!     /// The map shrinks distances to a half at least: the error is at most twice the residual.
//!     fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
//!         let residual = |x: &f64| (x - (x.cos() / 2.0 + 1.0)).abs();
//!         x[range].iter().map(residual).fold(0.0, f64::max) * 2.0
//!     }
//! }
//!
//! let outcome = alone(&mut Cosines, &Config { tolerance: 1e-12, ..Config::default() })?;
//! assert!(outcome.converged() && outcome.certificate <= 1e-12);
//! # Ok::<(), tsumuji_solve::fixed_point::Error>(())
//! ```
//!
//! [`run`] does the same under a launcher and without one; [`alone`] never uses messages. `docs/fixed-points.md` says which problems converge.
//!
//! Modules: `config` has settings, outcome and errors; `member` is one member's loop; `agreement` is what all members settle first; `laps` renews values;
//! `referee` is node 0's decision to pause; `report` is what members tell it; `alone` needs no messages. `edges` reads graphs; `pagerank`, `values` and `paths`
//! are problems.
//!
//! Left out on purpose: members that take over the range of a dead one. A problem's instance holds what its range needs, and nobody else has it.

mod agreement;
mod alone;
mod config;
mod edges;
mod laps;
mod member;
mod pagerank;
mod paths;
mod referee;
mod report;
mod values;

use std::ops::Range;

pub use alone::alone;
pub use config::{Config, Error, Outcome, Reason};
pub use edges::{EDGES_MAX, Edge, Edges, NODES_MAX};
pub use member::{BOARD_CHANNEL, REPORT_CHANNEL, run, solve, solve_with};
pub use pagerank::PageRank;
pub use paths::{ShortestPaths, UNREACHED};
pub use tsumuji_numbers::FileError;
pub use values::{Choice, ValueIteration};

/// How the parts of a certificate become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Combine {
    /// The greatest part, as for a bound in the maximum norm.
    #[default]
    Max,
    /// The sum of all parts, as for a bound in the 1-norm.
    Sum,
}

impl Combine {
    /// One value of all parts, in their order: the same bits for the same parts. What is no proof counts as infinity: NaN, and negative parts.
    pub fn of(self, parts: impl IntoIterator<Item = f64>) -> f64 {
        let parts = parts.into_iter().map(sound);
        match self {
            Self::Max => parts.fold(0.0, f64::max),
            Self::Sum => parts.fold(0.0, |sum, part| sum + part),
        }
    }
}

/// A part of a certificate; infinity if it is NaN or negative.
fn sound(part: f64) -> f64 {
    if part >= 0.0 { part } else { f64::INFINITY }
}

/// A problem whose solution x is a fixed point of a map G, found by renewing ranges of x again and again.
///
/// Values are finite. An infinity that `start` or `update` writes is replaced by the greatest or least finite number, [`f64::MAX`] or [`f64::MIN`], before
/// anything reads it; so it is what the others see, too. NaN ends the run with an error that names member and element.
pub trait FixedPoint {
    /// Number of elements of x; the same on all members.
    fn len(&self) -> usize;

    /// Whether x has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the first values of `x[range]`. `x` has all elements; those outside the range are not to be read or written.
    fn start(&self, range: Range<usize>, x: &mut [f64]);

    /// Renews `x[range]` from x; writes nothing else. Elements of other members are as new as has arrived.
    fn update(&mut self, range: Range<usize>, x: &mut [f64]);

    /// The range's part of a bound of the error of x, or of a residual: 0 or more, and computed from `x` alone. It is called on old values of others, too, for
    /// estimates; a run converges only by its value on one x that all members hold.
    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64;

    /// How the parts of all ranges become the certificate.
    fn combine(&self) -> Combine {
        Combine::Max
    }

    /// Elements that `update` and `certificate` of the range read, in any order; `None`: all. Others are kept up to date in pauses only.
    fn reads(&self, range: Range<usize>) -> Option<Vec<u32>> {
        let _ = range;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts that prove nothing make a certificate that proves nothing.
    #[test]
    fn parts_that_prove_nothing() {
        for combine in [Combine::Max, Combine::Sum] {
            for bad in [f64::NAN, -1.0, f64::INFINITY, f64::NEG_INFINITY] {
                assert_eq!(combine.of([0.0, bad, 1.0]), f64::INFINITY, "{bad}");
            }
        }
        assert_eq!(Combine::Max.of([1.0, 3.0, 2.0]), 3.0);
        assert_eq!(Combine::Sum.of([1.0, 3.0, 2.0]), 6.0);
    }
}
