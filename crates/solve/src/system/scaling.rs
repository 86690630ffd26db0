//! Scales of a matched system: with them the diagonal is near 1 in magnitude, and no entry is much larger.
//!
//! The potentials u and v of the matching give them (Duff and Koster, 2001): |aᵢⱼ| exp(uᵢ + vⱼ) is at most the largest |aᵢⱼ| of the row, and that for
//! matched entries. All scales are powers of two, so that nothing is rounded.
//!
//! Columns are scaled in the matrix: (A D) y = b has the residual of A x = b with x = D y. Rows are scaled where it makes a difference, by those who
//! minimise a norm (GMRES) or choose pivots (LU): the scale of a row is the inverse of its diagonal entry, so nobody keeps it, and every residual that is
//! reported keeps the norm of the original system.

use super::Matrix;

/// Largest exponent of a scale: squares of scaled residuals stay far from overflow.
const EXPONENT_MOST: f64 = 256.0;

/// The power of two nearest to 2 to the power of `exponent`, within bounds.
fn power_of_two(exponent: f64) -> f64 {
    let bounded = exponent.round().clamp(-EXPONENT_MOST, EXPONENT_MOST);
    2f64.powi(bounded as i32)
}

/// The scale of a row with this entry on the diagonal.
pub(super) fn of_row(diagonal: f64) -> f64 {
    power_of_two(-diagonal.abs().log2())
}

/// Scales of the columns: x is y times these, element by element.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaling {
    columns: Vec<f64>,
}

impl Scaling {
    /// From the potentials of the columns. `None`: an entry of `matrix` would be rounded.
    pub(super) fn of_columns(potentials: &[f64], matrix: &Matrix) -> Option<Self> {
        let least = potentials.iter().copied().fold(f64::INFINITY, f64::min);
        let most = potentials.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let middle = least + (most - least) / 2.0;
        let scale = |potential: &f64| power_of_two((potential - middle) / std::f64::consts::LN_2);
        let columns: Vec<f64> = potentials.iter().map(scale).collect();
        let mut is_exact = true;
        for row in 0..matrix.n() {
            matrix.for_each_in_row(row, |column, value| {
                is_exact &= value == 0.0 || (value * columns[column]).is_normal();
            });
        }
        is_exact.then_some(Self { columns })
    }

    /// Scales the columns of `matrix`.
    pub(super) fn apply(&self, matrix: &mut Matrix) {
        match matrix {
            Matrix::Dense(dense) => {
                for row in dense.values.chunks_mut(self.columns.len()) {
                    for (value, scale) in row.iter_mut().zip(&self.columns) {
                        *value *= scale;
                    }
                }
            }
            Matrix::Sparse(csr) => csr.scale_columns(&self.columns),
        }
    }

    /// y of the scaled system for an x of the original one.
    pub(crate) fn scaled(&self, x: &[f64]) -> Vec<f64> {
        let elements = x.iter().zip(&self.columns);
        elements.map(|(x, scale)| x / scale).collect()
    }

    /// x of the original system, for a y of the one that was solved.
    pub(crate) fn undo(scaling: Option<&Self>, y: Vec<f64>) -> Vec<f64> {
        match scaling {
            Some(scaling) => scaling.unscaled(&y),
            None => y,
        }
    }

    /// x of the original system for a y of the scaled one. Nothing stays nothing.
    pub(crate) fn unscaled(&self, y: &[f64]) -> Vec<f64> {
        let elements = y.iter().zip(&self.columns);
        elements.map(|(y, scale)| y * scale).collect()
    }

    /// With the unknowns in the order of `original`.
    pub(super) fn in_order(&self, original: &[u32]) -> Self {
        let columns = original.iter().map(|&column| self.columns[column as usize]);
        Self {
            columns: columns.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Csr, System};
    use super::*;
    use proptest::prelude::*;

    fn matched(n: usize, entries: &[(u32, u32, f64)]) -> Option<System> {
        let matrix = Matrix::Sparse(Csr::from_triplets(n, n, entries).unwrap());
        Some(System::matched(matrix, None, "m".into()).ok()?.0)
    }

    /// Vectors are scaled and back without rounding, in any order of the unknowns.
    #[test]
    fn scales_are_undone() {
        let entries = [(0, 1, 1.0), (1, 0, 1e-6), (1, 1, 1e3)];
        let system = matched(2, &entries).unwrap();
        let scaling = system.scaling.unwrap();
        let x = [0.1, -3.0];
        assert_ne!(scaling.scaled(&x), x);
        assert_eq!(scaling.unscaled(&scaling.scaled(&x)), x);
        let turned = scaling.in_order(&[1, 0]);
        assert_eq!(
            turned.unscaled(&[1.0, 0.0])[0],
            scaling.unscaled(&[0.0, 1.0])[1]
        );
        assert!(scaling.unscaled(&[]).is_empty());
    }

    /// Entries at the ends of the numbers are left alone rather than rounded.
    #[test]
    fn extreme_entries_are_not_rounded() {
        let entries = [(0, 1, 1e-300), (1, 0, 1e144), (2, 2, 1.0), (2, 1, 1e-320)];
        let system = matched(3, &entries).unwrap();
        assert_eq!(system.scaling, None);
        assert_eq!(of_row(f64::MIN_POSITIVE / 4.0), 2f64.powi(256));
        assert_eq!(of_row(-4.0), 0.25);
    }

    proptest! {
        /// With rows and columns scaled the diagonal is near 1 and no entry is much larger; b is that of x = 1.
        #[test]
        fn diagonals_are_largest(
            n in 2u32..9,
            entries in prop::collection::vec((0u32..9, 0u32..9, -6i32..7, 1.0f64..2.0), 8..60),
        ) {
            let entries: Vec<_> = entries
                .into_iter()
                .filter(|e| e.0 < n && e.1 < n && e.0 != e.1)
                .map(|(row, column, power, value)| (row, column, value * 10f64.powi(power)))
                .collect();
            // Singular ones are others' business.
            let Some(system) = matched(n as usize, &entries) else { return Ok(()) };
            let scaling = system.scaling.as_ref().unwrap();
            let product = system.matrix.times(&scaling.scaled(&vec![1.0; n as usize]));
            for (row, (product, b)) in product.iter().zip(&system.rhs).enumerate() {
                prop_assert!((product - b).abs() <= 1e-12 * b.abs());
                let scale = of_row(system.matrix.diagonal(row));
                let diagonal = scale * system.matrix.diagonal(row).abs();
                prop_assert!((0.7..1.42).contains(&diagonal), "{}", diagonal);
                let mut most = 0.0f64;
                system.matrix.for_each_in_row(row, |_, value| most = most.max(scale * value.abs()));
                // A factor of two for each of the two scales that are rounded to powers, by half an exponent.
                prop_assert!(most <= 2.9, "{}", most);
            }
        }
    }
}
