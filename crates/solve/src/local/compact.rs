//! Dense rows stored with fewer bits, for sweeps: half or a quarter of the memory traffic. What the lost bits cost is taken back at pauses, by iterative
//! refinement: the sweeps then solve for the right-hand side at which the exact residual is what it is ([`Compact::refine`]).
//!
//! Owned by a `Sweeper`. Sums are formed in double precision. Invariant: the rows are those of the block, each entry rounded to nearest.

use super::strip::{DenseRows, multiply, relax_dense};
use crate::system::{RowBlock, RowValues};
use pulp::{Arch, NullaryFnOnce};
use serde::{Deserialize, Serialize};

/// In how many bits sweeps read A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Precision {
    /// 64, as it is given.
    #[default]
    Double,
    /// 32.
    Single,
    /// 16: a single's sign, exponent and first seven bits.
    Bfloat16,
}

impl Precision {
    /// All, in the order of `--help`.
    pub const ALL: [Self; 3] = [Self::Double, Self::Single, Self::Bfloat16];

    /// The name, as it is read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Double => "double",
            Self::Single => "single",
            Self::Bfloat16 => "bfloat16",
        }
    }

    /// Part to which the residual can be expected to fall before it must be refined: some times the rounding of an entry.
    pub(crate) fn reach(self) -> f64 {
        match self {
            Self::Double => 0.0,
            Self::Single => 1e-6,
            Self::Bfloat16 => 5e-3,
        }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Entries taken at once: with these numbers the compiler converts and multiplies whole vectors.
const SINGLES: usize = 16;
const BFLOAT16S: usize = 32;

/// A number as it is stored.
trait Stored: Copy + Send + Sync {
    fn wide(self) -> f64;
    fn narrow(value: f64) -> Self;
}

impl Stored for f32 {
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn narrow(value: f64) -> Self {
        value as f32
    }
}

/// The upper half of a single.
#[derive(Debug, Clone, Copy)]
struct Bfloat16(u16);

impl Stored for Bfloat16 {
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(f32::from_bits(u32::from(self.0) << 16))
    }

    fn narrow(value: f64) -> Self {
        let bits = (value as f32).to_bits();
        // To nearest, ties to even. Entries are finite; one that rounds to infinity is not, and then laps diverge and say so.
        let half = 0x7fff + (bits >> 16 & 1);
        Self((bits.wrapping_add(half) >> 16) as u16)
    }
}

#[derive(Debug)]
enum Values {
    Single(Vec<f32>),
    Bfloat16(Vec<Bfloat16>),
}

/// The rows of a block with fewer bits.
#[derive(Debug)]
pub(super) struct Compact {
    values: Values,
    /// What is solved for.
    rhs: Vec<f64>,
}

impl Compact {
    /// `None`: sparse rows, or all bits are wanted.
    pub(super) fn new(block: &RowBlock, precision: Precision) -> Option<Self> {
        let RowValues::Dense(values) = &block.values else {
            return None;
        };
        let values = match precision {
            Precision::Double => return None,
            Precision::Single => Values::Single(values.iter().map(|v| f32::narrow(*v)).collect()),
            Precision::Bfloat16 => {
                Values::Bfloat16(values.iter().map(|v| Bfloat16::narrow(*v)).collect())
            }
        };
        Some(Self {
            values,
            rhs: block.rhs.clone(),
        })
    }

    /// From now on solves for the right-hand side at which `residual`, the exact one of the own rows at `x`, is that of the stored rows.
    pub(super) fn refine(&mut self, x: &[f64], residual: &[f64]) {
        let n = x.len();
        match &self.values {
            Values::Single(values) => multiply(&Fewer::<_, SINGLES>(values, n), x, &mut self.rhs),
            Values::Bfloat16(values) => {
                multiply(&Fewer::<_, BFLOAT16S>(values, n), x, &mut self.rhs);
            }
        }
        for (rhs, residual) in self.rhs.iter_mut().zip(residual) {
            *rhs += residual;
        }
    }

    /// As `Sweeper::relax`; `first` is the block's first row, `steps` are ω / aᵢᵢ of the own rows.
    pub(super) fn relax(
        &self,
        (first, steps): (usize, &[f64]),
        rows: std::ops::Range<usize>,
        x: &mut [f64],
    ) -> f64 {
        let n = x.len();
        match &self.values {
            Values::Single(values) => {
                let values = Fewer::<_, SINGLES>(values, n);
                relax_dense(&values, &self.rhs, (first, steps), rows, x)
            }
            Values::Bfloat16(values) => {
                let values = Fewer::<_, BFLOAT16S>(values, n);
                relax_dense(&values, &self.rhs, (first, steps), rows, x)
            }
        }
    }
}

/// Rows of stored entries, taken so many at once.
struct Fewer<'a, T, const LANES: usize>(&'a [T], usize);

impl<T, const LANES: usize> Fewer<'_, T, LANES> {
    #[inline(always)]
    fn row(&self, own: usize) -> &[T] {
        &self.0[own * self.1..(own + 1) * self.1]
    }
}

impl<T: Stored, const LANES: usize> DenseRows for Fewer<'_, T, LANES> {
    #[inline(always)]
    fn products<const ROWS: usize>(&self, own: usize, x: &[f64]) -> [f64; ROWS] {
        dots::<_, LANES, ROWS>(std::array::from_fn(|k| self.row(own + k)), x)
    }

    #[inline(always)]
    fn entry(&self, own: usize, column: usize) -> f64 {
        self.0[own * self.1 + column].wide()
    }
}

/// Dot products of several rows with one x.
fn dots<T: Stored, const LANES: usize, const ROWS: usize>(
    rows: [&[T]; ROWS],
    x: &[f64],
) -> [f64; ROWS] {
    Arch::new().dispatch(Dots::<T, LANES, ROWS> { rows, x })
}

struct Dots<'a, T, const LANES: usize, const ROWS: usize> {
    rows: [&'a [T]; ROWS],
    x: &'a [f64],
}

impl<T: Stored, const LANES: usize, const ROWS: usize> NullaryFnOnce for Dots<'_, T, LANES, ROWS> {
    type Output = [f64; ROWS];

    // Compiled for the widest vectors of the processor, from plain loops over lanes.
    #[inline(always)]
    fn call(self) -> [f64; ROWS] {
        let (x_vectors, x_rest) = self.x.as_chunks::<LANES>();
        let rows = self.rows.map(|row| {
            assert_eq!(row.len(), self.x.len(), "a row and x differ in length");
            row.as_chunks::<LANES>()
        });
        let mut sums = [[0.0f64; LANES]; ROWS];
        for (step, x) in x_vectors.iter().enumerate() {
            for row in 0..ROWS {
                let a = &rows[row].0[step];
                for lane in 0..LANES {
                    sums[row][lane] += a[lane].wide() * x[lane];
                }
            }
        }
        std::array::from_fn(|row| {
            let rest = rows[row].1.iter().zip(x_rest);
            let rest: f64 = rest.map(|(a, x)| a.wide() * x).sum();
            sums[row].iter().sum::<f64>() + rest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounding keeps as many bits as are stored, also of negative numbers and at ties.
    #[test]
    fn numbers_are_rounded_to_nearest() {
        for value in [1.0, -0.3, 1e-30, 7.123_456_789_012e20, 0.0] {
            let (single, half) = (f32::narrow(value).wide(), Bfloat16::narrow(value).wide());
            assert!((single - value).abs() <= value.abs() / 16_777_216.0);
            assert!(
                (half - value).abs() <= value.abs() / 256.0,
                "{value} {half}"
            );
        }
        assert_eq!(
            Bfloat16::narrow(1.0 + 1.0 / 256.0).wide(),
            1.0,
            "a tie goes to even"
        );
    }

    /// Products of rows agree with the naive sum of the rounded entries, at any length.
    #[test]
    fn products_agree_with_the_oracle() {
        let mut random = fastrand::Rng::with_seed(3);
        for n in [1, 5, 31, 32, 33, 65, 200] {
            let x: Vec<f64> = (0..n).map(|_| random.f64() - 0.5).collect();
            let a: Vec<f32> = (0..n).map(|_| random.f32() - 0.5).collect();
            let slow: f64 = a.iter().zip(&x).map(|(a, x)| f64::from(*a) * x).sum();
            let fast = dots::<_, SINGLES, 2>([&a[..], &a[..]], &x);
            assert!(fast.iter().all(|fast| (fast - slow).abs() < 1e-13), "{n}");
            let a: Vec<Bfloat16> = a.iter().map(|a| Bfloat16::narrow(f64::from(*a))).collect();
            let slow: f64 = a.iter().zip(&x).map(|(a, x)| a.wide() * x).sum();
            let fast = dots::<_, BFLOAT16S, 2>([&a[..], &a[..]], &x);
            assert!(fast.iter().all(|fast| (fast - slow).abs() < 1e-13), "{n}");
        }
    }
}
