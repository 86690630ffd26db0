//! Scaling of features and targets, so that one step fits all columns; undone in the model.
//!
//! Dense columns get mean 0 and standard deviation 1. Sparse ones are only divided by their standard deviation: a shift would make zeros values.

use crate::data::Features;

/// Shift and factor of each column: x' = (x − shift) / factor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scaling {
    shifts: Vec<f64>,
    factors: Vec<f64>,
}

impl Scaling {
    /// Leaves all columns as they are.
    pub(crate) fn none(columns: usize) -> Self {
        Self {
            shifts: vec![0.0; columns],
            factors: vec![1.0; columns],
        }
    }

    /// That of the data. Columns that never change get the factor 1.
    pub(crate) fn of(features: &Features) -> Self {
        let (columns, rows) = (features.columns(), features.rows().max(1) as f64);
        // Distances from the first row: those of a constant column are 0, whatever rounding makes of a sum of its values.
        let mut first = vec![0.0; columns];
        if features.rows() > 0 {
            features.for_each(0, |j, x| first[j] = x);
        }
        let (mut sums, mut stored) = (vec![0.0; columns], vec![0.0; columns]);
        // The largest distances: relative to them, squares are neither too large nor too small for a number.
        let mut farthest: Vec<f64> = vec![0.0; columns];
        for row in 0..features.rows() {
            features.for_each(row, |j, x| {
                sums[j] += x - first[j];
                stored[j] += 1.0;
                farthest[j] = farthest[j].max((x - first[j]).abs());
            });
        }
        let mean = |j: usize| first[j] + (sums[j] - (rows - stored[j]) * first[j]) / rows;
        let means: Vec<f64> = (0..columns).map(mean).collect();
        // Zeros that are not stored are as far from the mean as the mean is from zero.
        for j in (0..columns).filter(|j| stored[*j] < rows) {
            farthest[j] = farthest[j].max(first[j].abs());
        }
        let mut squares: Vec<f64> = vec![0.0; columns];
        for row in 0..features.rows() {
            features.for_each(row, |j, x| {
                squares[j] += ((x - means[j]) / farthest[j]).powi(2);
            });
        }
        let is_sparse = matches!(features, Features::Sparse { .. });
        let factors = (0..columns).map(|j| {
            let of_zeros = (means[j] / farthest[j]).powi(2);
            let variance = (squares[j] + (rows - stored[j]) * of_zeros) / rows;
            let deviation = farthest[j] * variance.sqrt();
            // A deviation beyond what numbers distinguish is rounding.
            if deviation > 1e-14 * means[j].abs() && deviation.is_finite() {
                deviation
            } else {
                1.0
            }
        });
        Self {
            factors: factors.collect(),
            shifts: if is_sparse { vec![0.0; columns] } else { means },
        }
    }

    /// Scales the data.
    pub(crate) fn apply(&self, features: &mut Features) {
        features.change(|j, x| (x - self.shifts[j]) / self.factors[j]);
    }

    /// Makes scaled data what they were, but for rounding.
    pub(crate) fn unapply(&self, features: &mut Features) {
        features.change(|j, x| x * self.factors[j] + self.shifts[j]);
    }

    /// Shift and factor of the first column.
    pub(crate) fn first(&self) -> (f64, f64) {
        (self.shifts[0], self.factors[0])
    }

    /// Coefficients and intercept for data as they were, from those for scaled data.
    pub(crate) fn undo(&self, weights: &[f64], intercept: f64) -> (Vec<f64>, f64) {
        let weights: Vec<f64> = (weights.iter().zip(&self.factors))
            .map(|(weight, factor)| weight / factor)
            .collect();
        let shift: f64 = (weights.iter().zip(&self.shifts))
            .map(|(weight, shift)| weight * shift)
            .sum();
        (weights, intercept - shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scaled columns have mean 0 and deviation 1, and predictions do not change.
    #[test]
    fn scaling_is_undone() {
        let mut features = Features::Dense {
            columns: 2,
            values: vec![1.0, 7.0, 3.0, 7.0, 8.0, 7.0],
        };
        let before = features.clone();
        let scaling = Scaling::of(&features);
        scaling.apply(&mut features);
        let sum: f64 = (0..3).map(|row| features.dot(row, &[1.0, 0.0])).sum();
        assert!(sum.abs() < 1e-14);
        let (weights, intercept) = scaling.undo(&[2.0, 5.0], 0.5);
        for row in 0..3 {
            let scaled = features.dot(row, &[2.0, 5.0]) + 0.5;
            assert!((before.dot(row, &weights) + intercept - scaled).abs() < 1e-12);
        }
        scaling.unapply(&mut features);
        for row in 0..3 {
            let [now, then] = [&features, &before].map(|data| data.dot(row, &[1.0, 1.0]));
            assert!((now - then).abs() < 1e-14);
        }
    }

    /// A column that never changes keeps the factor 1, also where a sum of its values is rounded.
    #[test]
    fn constant_columns_are_seen() {
        let rows = 1000;
        let dense = Features::Dense {
            columns: 1,
            values: vec![0.1; rows],
        };
        let sparse = Features::Sparse {
            columns: 1,
            starts: (0..=rows).collect(),
            indices: vec![0; rows],
            values: vec![0.1; rows],
        };
        assert_eq!(Scaling::of(&dense).first(), (0.1, 1.0));
        assert_eq!(Scaling::of(&sparse).first(), (0.0, 1.0));
    }

    /// Deviations whose squares are no numbers are found, too.
    #[test]
    fn far_scales_are_found() {
        for scale in [1e-200, 1e-300, 1e200, 1e300] {
            let features = Features::Dense {
                columns: 1,
                values: vec![1.0 * scale, 2.0 * scale, 3.0 * scale, 2.0 * scale],
            };
            let (shift, factor) = Scaling::of(&features).first();
            assert!((shift / scale - 2.0).abs() < 1e-12, "{scale}: {shift}");
            assert!(
                (factor / scale - 0.5_f64.sqrt()).abs() < 1e-12,
                "{scale}: {factor}"
            );
        }
    }

    /// Sparse and dense data have the same deviations, and sparse ones keep their zeros.
    #[test]
    fn sparse_zeros_stay() {
        let sparse = Features::Sparse {
            columns: 2,
            starts: vec![0, 1, 2, 2],
            indices: vec![0, 1],
            values: vec![3.0, 6.0],
        };
        let dense = Features::Dense {
            columns: 2,
            values: vec![3.0, 0.0, 0.0, 6.0, 0.0, 0.0],
        };
        let (sparse, dense) = (Scaling::of(&sparse), Scaling::of(&dense));
        for (a, b) in sparse.factors.iter().zip(&dense.factors) {
            assert!((a - b).abs() < 1e-14, "{a} {b}");
        }
        assert_eq!(sparse.shifts, [0.0, 0.0]);
    }
}
