//! Numbers of twice the precision: unevaluated sums of two, of which the second is the rounding error of the first.
//!
//! `equations` keeps voltages and sums of currents so: across a small resistor between large ones lies a voltage that is less than the last digit of
//! the voltages at its ends. The algorithms are those of Dekker (1971) and of Joldes, Muller and Popescu (2017), whose errors are a few times 2⁻¹⁰⁶
//! of the result, also of a difference of nearly equal numbers.
//!
//! Invariant: of finite numbers `high` is `high + low`, rounded.

use std::ops::{Add, AddAssign, Mul, Neg, Sub};

/// A sum of two numbers of 64 bits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Twofold {
    high: f64,
    low: f64,
}

/// a + b, rounded, and the error of that.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_in_sum = sum - a;
    (sum, (a - (sum - b_in_sum)) + (b - b_in_sum))
}

/// The same where |a| ≥ |b|, or a = 0.
fn fast_two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    (sum, b - (sum - a))
}

/// a b, rounded, and the error of that.
fn two_prod(a: f64, b: f64) -> (f64, f64) {
    let product = a * b;
    (product, a.mul_add(b, -product))
}

impl Twofold {
    pub(crate) const ZERO: Self = Self {
        high: 0.0,
        low: 0.0,
    };

    /// The nearest number of 64 bits.
    pub(crate) fn rounded(self) -> f64 {
        self.high
    }

    /// What [`Self::rounded`] leaves out.
    pub(crate) fn rest(self) -> f64 {
        self.low
    }

    pub(crate) fn is_finite(self) -> bool {
        self.high.is_finite() && self.low.is_finite()
    }
}

impl From<f64> for Twofold {
    fn from(value: f64) -> Self {
        Self {
            high: value,
            low: 0.0,
        }
    }
}

impl Add for Twofold {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (high, high_error) = two_sum(self.high, other.high);
        let (low, low_error) = two_sum(self.low, other.low);
        let (high, rest) = fast_two_sum(high, high_error + low);
        let (high, low) = fast_two_sum(high, low_error + rest);
        Self { high, low }
    }
}

impl AddAssign for Twofold {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Neg for Twofold {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            high: -self.high,
            low: -self.low,
        }
    }
}

impl Sub for Twofold {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul<f64> for Twofold {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        let (product, error) = two_prod(self.high, factor);
        let (high, low) = fast_two_sum(product, self.low.mul_add(factor, error));
        Self { high, low }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What one number of 64 bits cannot hold is there still.
    #[test]
    fn small_parts_are_kept() {
        let sum = Twofold::from(1.0) + Twofold::from(1e-20);
        assert_eq!((sum.rounded(), sum.rest()), (1.0, 1e-20));
        assert_eq!((sum - Twofold::from(1.0)).rounded(), 1e-20);
        assert_eq!((sum * 3.0 - Twofold::from(3.0)).rounded(), 3.0 * 1e-20);
        // A third, made by one step of Newton's method: its error is the square of the first one's.
        let third = 1.0 / 3.0;
        let wrong = Twofold::from(third) * 3.0 - Twofold::from(1.0);
        let better = Twofold::from(third) - wrong * third;
        assert!((better * 3.0 - Twofold::from(1.0)).rounded().abs() < 1e-31);
    }

    /// What is not finite is told apart.
    #[test]
    fn infinite_numbers_are_not_finite() {
        assert!(Twofold::from(-1e300).is_finite());
        let large = Twofold::from(1e300) * 1e300;
        assert!(!large.is_finite() && !(large - large).is_finite());
        assert!(!(Twofold::from(f64::NAN) + Twofold::ZERO).is_finite());
    }

    proptest! {
        /// Sums and products of integers that two numbers hold are exact, and normal.
        #[test]
        fn integers_are_exact(a in -(1i128 << 90)..1i128 << 90, b in -(1i128 << 90)..1i128 << 90, factor in -1000i32..1000) {
            let twofold = |value: i128| {
                let high = value as f64;
                Twofold::from(high) + Twofold::from((value - high as i128) as f64)
            };
            let exact = |value: Twofold| value.high as i128 + value.low as i128;
            let results = [
                (twofold(a) + twofold(b), a + b),
                (twofold(a) - twofold(b), a - b),
                (twofold(a) * f64::from(factor), a * i128::from(factor)),
            ];
            for (found, wanted) in results {
                prop_assert_eq!(exact(found), wanted);
                prop_assert_eq!(found.high, found.high + found.low);
            }
        }
    }
}
