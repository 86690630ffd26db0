//! The loops that read A: dot products of dense and sparse rows, plain and with compensated rounding errors.
//!
//! Called by `system` (A x, residuals) and by the sweepers. Dense kernels run on the widest vector unit of the processor, chosen when called
//! (`pulp`), with several rows at once: a row by itself reads as many bytes of x as of A, from a slower cache than the first one; four rows share them.
//! Plain products should be limited by memory. Sparse rows are short and gathered: plain loops.

use pulp::{Arch, Simd, WithSimd};
use std::ops::Range;

/// Rows that dense kernels read side by side: enough streams to fill the memory pipeline of one core, few enough that
/// their accumulators stay in registers.
pub(crate) const ROW_GROUP: usize = 4;

/// Something that is done with several rows at once.
pub(crate) trait Groups {
    /// Takes `ROWS` rows, from `first` on.
    fn take<const ROWS: usize>(&mut self, first: usize);
}

/// Hands out `rows` in order, [`ROW_GROUP`] at a time; the last ones in groups of two and three. Only a row that is the only one goes alone.
#[inline(always)]
pub(crate) fn in_groups(rows: Range<usize>, groups: &mut impl Groups) {
    let mut first = rows.start;
    while first < rows.end {
        first += match rows.end - first {
            1 => {
                groups.take::<1>(first);
                1
            }
            2 => {
                groups.take::<2>(first);
                2
            }
            3 | 5 => {
                groups.take::<3>(first);
                3
            }
            _ => {
                groups.take::<ROW_GROUP>(first);
                ROW_GROUP
            }
        };
    }
}

/// Σ aᵢ xᵢ. Panics unless both are of one length.
pub(crate) fn dot(a: &[f64], x: &[f64]) -> f64 {
    dots([a], x)[0]
}

/// Dot products of several rows with one x. Panics unless all are of one length.
pub(crate) fn dots<const ROWS: usize>(rows: [&[f64]; ROWS], x: &[f64]) -> [f64; ROWS] {
    Arch::new().dispatch(Dots::<ROWS, false> { rows, x })
}

/// A number made of each row.
pub(crate) trait OfRows {
    /// Those of `ROWS` rows, from `first` on.
    fn of<const ROWS: usize>(&self, first: usize) -> [f64; ROWS];
}

/// Fills `out` with the numbers that `rows` makes of its rows, from the first on.
pub(crate) fn fill(rows: &impl OfRows, out: &mut [f64]) {
    in_groups(0..out.len(), &mut Fill(rows, out));
}

struct Fill<'a, R>(&'a R, &'a mut [f64]);

impl<R: OfRows> Groups for Fill<'_, R> {
    fn take<const ROWS: usize>(&mut self, first: usize) {
        self.1[first..first + ROWS].copy_from_slice(&self.0.of::<ROWS>(first));
    }
}

/// Dense rows, one after the other, and x.
struct Rows<'a>(&'a [f64], &'a [f64]);

impl<'a> Rows<'a> {
    /// `count` rows. Panics unless they are as long as x.
    fn new(values: &'a [f64], x: &'a [f64], count: usize) -> Self {
        assert_eq!(values.len(), x.len() * count, "rows are as long as x");
        Self(values, x)
    }

    fn some<const ROWS: usize>(&self, first: usize) -> [&'a [f64]; ROWS] {
        let (values, n) = (self.0, self.1.len());
        std::array::from_fn(|k| &values[(first + k) * n..(first + k + 1) * n])
    }
}

/// Dot products, or sums of absolute products.
struct Plain<'a, const ABSOLUTE: bool>(Rows<'a>);

impl<const ABSOLUTE: bool> OfRows for Plain<'_, ABSOLUTE> {
    fn of<const ROWS: usize>(&self, first: usize) -> [f64; ROWS] {
        let (rows, x) = (self.0.some(first), self.0.1);
        Arch::new().dispatch(Dots::<ROWS, ABSOLUTE> { rows, x })
    }
}

/// With right-hand sides.
struct Carried<'a>(Rows<'a>, &'a [f64]);

impl OfRows for Carried<'_> {
    fn of<const ROWS: usize>(&self, first: usize) -> [f64; ROWS] {
        let rhs = std::array::from_fn(|k| self.1[first + k]);
        let (rows, x) = (self.0.some(first), self.0.1);
        Arch::new().dispatch(CarriedDots { rhs, rows, x })
    }
}

/// `out` = A x. `values`: the rows of A, one after the other.
pub(crate) fn multiply(values: &[f64], x: &[f64], out: &mut [f64]) {
    fill(&Plain::<false>(Rows::new(values, x, out.len())), out);
}

/// `out` = |A| |x|.
pub(crate) fn multiply_absolute(values: &[f64], x: &[f64], out: &mut [f64]) {
    fill(&Plain::<true>(Rows::new(values, x, out.len())), out);
}

/// `out` = b − A x as if computed with twice the digits and rounded once: the rounding errors of products and sums are
/// carried along (Dot2 of Ogita, Rump and Oishi, 2005). A sweep may come to rest where plain residuals are exactly 0;
/// these still tell how far it is off.
pub(crate) fn carried_residuals(rhs: &[f64], values: &[f64], x: &[f64], out: &mut [f64]) {
    fill(&Carried(Rows::new(values, x, out.len()), rhs), out);
}

/// Σ of what `of` makes of the numbers below `n`, as four sums that do not wait for each other.
#[inline(always)]
pub(crate) fn sum_of(n: usize, mut of: impl FnMut(usize) -> f64) -> f64 {
    let mut sums = [0.0; 4];
    for first in (0..n / 4 * 4).step_by(4) {
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum += of(first + k);
        }
    }
    let rest: f64 = (n / 4 * 4..n).map(of).sum();
    sums.iter().sum::<f64>() + rest
}

/// Σ xᵢ².
pub(crate) fn sum_of_squares(x: &[f64]) -> f64 {
    dot(x, x)
}

/// Multiplies elements by `factors`, as far as there are any.
pub(crate) fn scale(x: &mut [f64], factors: &[f64]) {
    for (x, factor) in x.iter_mut().zip(factors) {
        *x *= factor;
    }
}

/// Σ over the entries of a sparse row.
#[inline]
pub(crate) fn sparse_dot(columns: &[u32], values: &[f64], x: &[f64]) -> f64 {
    let mut sum = 0.0;
    for (&column, value) in columns.iter().zip(values) {
        sum += value * x[column as usize];
    }
    sum
}

/// One of [`carried_residuals`], of a sparse row.
pub(crate) fn carried_sparse_residual(b: f64, columns: &[u32], values: &[f64], x: &[f64]) -> f64 {
    let mut sum = CarriedSum::default();
    sum.add(b);
    for (&column, &value) in columns.iter().zip(values) {
        sum.subtract_product(value, x[column as usize]);
    }
    sum.total()
}

/// A sum that keeps what rounding drops (Neumaier's variant of Kahan's).
#[derive(Debug, Clone, Copy, Default)]
pub struct CarriedSum {
    sum: f64,
    carry: f64,
}

impl CarriedSum {
    /// Adds one term.
    #[inline]
    pub fn add(&mut self, term: f64) {
        let sum = self.sum + term;
        self.carry += if self.sum.abs() >= term.abs() {
            (self.sum - sum) + term
        } else {
            (term - sum) + self.sum
        };
        self.sum = sum;
    }

    /// Subtracts `a * x` with the rounding error of the product.
    #[inline]
    pub(crate) fn subtract_product(&mut self, a: f64, x: f64) {
        let product = a * x;
        self.add(-product);
        self.carry -= a.mul_add(x, -product);
    }

    /// The sum so far. Infinite or NaN if a term or the sum was.
    pub fn total(self) -> f64 {
        if self.sum.is_finite() {
            self.sum + self.carry
        } else {
            self.sum
        }
    }
}

/// `ROWS` dot products in one walk over x, or as many sums of absolute products.
struct Dots<'a, const ROWS: usize, const ABSOLUTE: bool> {
    rows: [&'a [f64]; ROWS],
    x: &'a [f64],
}

impl<const ROWS: usize, const ABSOLUTE: bool> WithSimd for Dots<'_, ROWS, ABSOLUTE> {
    type Output = [f64; ROWS];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f64; ROWS] {
        /// Vectors of each row taken per step, each with its own accumulator: hides the latency of an addition.
        const UNROLL: usize = 2;
        let add = |a, x, sum| match ABSOLUTE {
            true => simd.add_f64s(sum, simd.abs_f64s(simd.mul_f64s(a, x))),
            false => simd.mul_add_e_f64s(a, x, sum),
        };
        let n = self.x.len();
        let (x_vectors, x_rest) = S::as_simd_f64s(self.x);
        let rows = self.rows.map(|row| {
            assert_eq!(row.len(), n, "a row and x differ in length");
            S::as_simd_f64s(row)
        });
        let mut sums = [[simd.splat_f64s(0.0); UNROLL]; ROWS];
        let steps = x_vectors.len() / UNROLL;
        let (x_steps, x_left) = pulp::as_arrays::<UNROLL, _>(x_vectors);
        let row_steps = rows.map(|(vectors, _)| &pulp::as_arrays::<UNROLL, _>(vectors).0[..steps]);
        for step in 0..steps {
            let x = &x_steps[step];
            for row in 0..ROWS {
                let a = &row_steps[row][step];
                for lane in 0..UNROLL {
                    sums[row][lane] = add(a[lane], x[lane], sums[row][lane]);
                }
            }
        }
        std::array::from_fn(|row| {
            let (vectors, rest) = rows[row];
            let mut sum = sums[row][0];
            for &other in &sums[row][1..] {
                sum = simd.add_f64s(sum, other);
            }
            for (&a, &x) in vectors[steps * UNROLL..].iter().zip(x_left) {
                sum = add(a, x, sum);
            }
            let mut total = simd.reduce_sum_f64s(sum);
            for (a, x) in rest.iter().zip(x_rest) {
                total += if ABSOLUTE { (a * x).abs() } else { a * x };
            }
            total
        })
    }
}

/// `ROWS` residuals with carried errors in one walk over x.
struct CarriedDots<'a, const ROWS: usize> {
    rhs: [f64; ROWS],
    rows: [&'a [f64]; ROWS],
    x: &'a [f64],
}

impl<const ROWS: usize> WithSimd for CarriedDots<'_, ROWS> {
    type Output = [f64; ROWS];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f64; ROWS] {
        const UNROLL: usize = 2;
        /// More lanes than any vector has.
        const LANES: usize = 64;
        let (x_vectors, x_rest) = S::as_simd_f64s(self.x);
        let rows = self.rows.map(|row| S::as_simd_f64s(row));
        let zero = simd.splat_f64s(0.0);
        let mut sums = [[zero; UNROLL]; ROWS];
        let mut carries = [[zero; UNROLL]; ROWS];
        let carry = |a, x, sum: &mut S::f64s, carry: &mut S::f64s| {
            let product = simd.mul_f64s(a, x);
            let lost_in_product = simd.mul_add_f64s(a, x, simd.neg_f64s(product));
            // Knuth's sum: which of the two is larger does not matter.
            let total = simd.add_f64s(*sum, product);
            let added = simd.sub_f64s(total, *sum);
            let kept = simd.sub_f64s(total, added);
            let lost_in_sum =
                simd.add_f64s(simd.sub_f64s(*sum, kept), simd.sub_f64s(product, added));
            *sum = total;
            *carry = simd.add_f64s(*carry, simd.add_f64s(lost_in_product, lost_in_sum));
        };
        let steps = x_vectors.len() / UNROLL;
        let (x_steps, x_left) = pulp::as_arrays::<UNROLL, _>(x_vectors);
        let row_steps = rows.map(|(vectors, _)| &pulp::as_arrays::<UNROLL, _>(vectors).0[..steps]);
        for step in 0..steps {
            let x = &x_steps[step];
            for row in 0..ROWS {
                let a = &row_steps[row][step];
                for lane in 0..UNROLL {
                    carry(
                        a[lane],
                        x[lane],
                        &mut sums[row][lane],
                        &mut carries[row][lane],
                    );
                }
            }
        }
        std::array::from_fn(|row| {
            let (vectors, rest) = rows[row];
            for (&a, &x) in vectors[steps * UNROLL..].iter().zip(x_left) {
                carry(a, x, &mut sums[row][0], &mut carries[row][0]);
            }
            let mut residual = CarriedSum::default();
            residual.add(self.rhs[row]);
            let mut lanes = [0.0; LANES];
            for &vector in sums[row].iter().chain(&carries[row]) {
                let lanes = &mut lanes[..S::F64_LANES];
                simd.partial_store_f64s(lanes, vector);
                lanes.iter().for_each(|&part| residual.add(-part));
            }
            for (&a, &x) in rest.iter().zip(x_rest) {
                residual.subtract_product(a, x);
            }
            residual.total()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle: one product after the other.
    fn naive_dot(a: &[f64], x: &[f64]) -> f64 {
        a.iter().zip(x).map(|(a, x)| a * x).sum()
    }

    /// The residual of one row.
    fn carried(b: f64, a: &[f64], x: &[f64]) -> f64 {
        let mut out = [0.0];
        carried_residuals(&[b], a, x, &mut out);
        out[0]
    }

    fn numbers(n: usize, salt: u64) -> Vec<f64> {
        let mut random = fastrand::Rng::with_seed(salt);
        (0..n).map(|_| random.f64() - 0.5).collect()
    }

    /// Vector kernels agree with the naive sum at every length around the vector widths, for any number of rows.
    #[test]
    fn kernels_agree_with_the_oracle() {
        for n in (1..70).chain([127, 128, 129, 1000, 1001]) {
            let x = numbers(n, 1);
            for rows in [0, 1, 2, 3, 4, 5, 9] {
                let values = numbers(rows * n, 2);
                let mut out = vec![f64::NAN; rows];
                multiply(&values, &x, &mut out);
                for (row, fast) in values.chunks(n).zip(&out) {
                    let slow = naive_dot(row, &x);
                    assert!((fast - slow).abs() <= 1e-13, "n = {n}: {fast} {slow}");
                    assert!((dot(row, &x) - slow).abs() <= 1e-13, "n = {n}");
                }
                multiply_absolute(&values, &x, &mut out);
                for (row, fast) in values.chunks(n).zip(&out) {
                    let slow: f64 = row.iter().zip(&x).map(|(a, x)| (a * x).abs()).sum();
                    assert!(
                        (fast - slow).abs() <= 1e-13 * slow,
                        "n = {n}: {fast} {slow}"
                    );
                }
            }
        }
    }

    /// Every row comes once and in order, alone only if there is no other.
    #[test]
    fn groups_hold_several_rows() {
        struct Seen(Vec<(usize, usize)>);
        impl Groups for Seen {
            fn take<const ROWS: usize>(&mut self, first: usize) {
                self.0.push((first, ROWS));
            }
        }
        for count in 0..40 {
            let mut seen = Seen(Vec::new());
            in_groups(7..7 + count, &mut seen);
            let mut next = 7;
            for (first, rows) in seen.0 {
                assert_eq!(first, next);
                assert!(rows > 1 || count == 1, "{count}");
                next += rows;
            }
            assert_eq!(next, 7 + count);
        }
    }

    /// Infinities and NaN in a row come out as such, in vector lanes and in the rest.
    #[test]
    fn non_finite_values_are_not_lost() {
        for position in [0, 7, 32, 36] {
            let mut a = numbers(37, 3);
            a[position] = f64::NAN;
            assert!(dot(&a, &numbers(37, 4)).is_nan());
        }
    }

    /// Carried residuals keep what plain summation loses, whatever the length, dense and sparse alike.
    #[test]
    fn carried_residuals_keep_small_terms() {
        for n in (2..80).chain([1000, 10_001]) {
            // Two huge products that cancel but for the rounding of one of them, and small terms between.
            // Salts for which plain summation goes wrong at every length, as is asserted below.
            let mut a = numbers(n, 127);
            let mut x = numbers(n, 128);
            (a[0], x[0]) = (1e8 + 1.0, 1e8 + 1.0);
            (a[n - 1], x[n - 1]) = (-1.0, 1e16);
            let small = naive_dot(&a[1..n - 1], &x[1..n - 1]);
            // (1e8 + 1)² = 1e16 + 2e8 + 1.
            let exact = -(2e8 + 1.0 + small);
            let mut several = [0.0; ROW_GROUP];
            carried_residuals(&[0.0; ROW_GROUP], &a.repeat(ROW_GROUP), &x, &mut several);
            let dense = several[0];
            assert_eq!(several, [carried(0.0, &a, &x); ROW_GROUP]);
            assert!((dense - exact).abs() < 1e-6, "n = {n}: {dense} {exact}");
            let columns: Vec<u32> = (0..n as u32).collect();
            let sparse = carried_sparse_residual(0.0, &columns, &a, &x);
            assert!((sparse - exact).abs() < 1e-6, "n = {n}: {sparse} {exact}");
            assert!(
                (-naive_dot(&a, &x) - exact).abs() > 0.5,
                "the example is too easy"
            );
        }
    }

    /// Where the plain residual is exactly zero, the carried one is what the products lost.
    #[test]
    fn carried_residuals_see_below_rounding() {
        let (a, x) = ([1.0 / 3.0; 8], [3.0000000000000004; 8]);
        let b = dot(&a, &x);
        assert_ne!(carried(b, &a, &x), 0.0);
        assert!(carried(b, &a, &x).abs() < 1e-14);
    }
}
