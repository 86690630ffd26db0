//! The equations of the interface: the sum of all parts' Schur complements and the entries between interface unknowns.
//!
//! Called by `super`. The complement of each part is dense, and few parts couple most of the interface, so these equations are solved densely, by
//! LU with partial pivoting, up to [`MOST_DENSE`] of them.

use super::SolveError;
use tsumuji_factor::{Lu, Square};
use tsumuji_numbers::memory;

/// Most unknowns of an interface: its matrix then has 2 GB, and takes minutes.
const MOST_DENSE: usize = 16_384;
/// Matrices of its size that there are at once: the parts' complements, and their sum, whose memory factors take.
const MATRICES: u64 = 2;
/// A pivot below this part of the largest entry of its column in the whole matrix is rounding.
const ROUNDING: f64 = 8.0 * f64::EPSILON;

/// Factors of the interface's equations.
#[derive(Debug)]
pub(super) struct Interface {
    lu: Option<Lu>,
}

/// Most unknowns that fit into the memory that is available, too.
pub(super) fn most_unknowns() -> usize {
    let available = memory::available_bytes().unwrap_or(u64::MAX);
    let entries = available / MATRICES / size_of::<f64>() as u64;
    MOST_DENSE.min(entries.isqrt() as usize)
}

impl Interface {
    /// Factorises S. `scales`: the largest entry of each unknown's column in the whole matrix.
    pub(super) fn new(schur: Square, scales: &[f64]) -> Result<Self, SolveError> {
        let n = schur.n();
        if n == 0 {
            return Ok(Self { lu: None });
        }
        let lu = Lu::new(schur);
        for (place, scale) in scales.iter().enumerate() {
            let pivot = lu.pivot(place).abs();
            // A NaN is no pivot either.
            if !(pivot > ROUNDING * scale && (1.0 / pivot).is_finite()) {
                return Err(SolveError::Singular { unknown: place });
            }
        }
        Ok(Self { lu: Some(lu) })
    }

    /// Replaces `rhs` by the solution.
    pub(super) fn solve(&self, rhs: &mut [f64]) {
        if let Some(lu) = &self.lu {
            lu.solve(rhs);
        }
    }
}
