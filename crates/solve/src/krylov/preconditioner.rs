//! Preconditioners of one part: they need its own rows and columns only, so parts apply them without exchange (block Jacobi between parts).
//!
//! Incomplete LU without fill (Meijerink and van der Vorst, 1977), on request *modified*: what would be fill is subtracted from the diagonal instead
//! (Gustafsson, 1978), which for M-matrices of grids and circuits takes a fraction of the iterations. For symmetric rows both are symmetric, and so fit
//! conjugate gradients.
//!
//! Invariant: `apply` of finite numbers gives finite numbers, and each pivot of a symmetric factorisation is positive: where that fails the diagonal
//! alone is used.

use crate::local::diagonal_block;
use crate::system::{Csr, RowBlock, RowValues};
use std::ops::Range;

/// Which preconditioner to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Preconditioning {
    /// The diagonal.
    Jacobi,
    /// Incomplete LU without fill, for sparse rows.
    Ilu,
    /// The same, with the row sums kept.
    ModifiedIlu,
}

impl Preconditioning {
    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jacobi => "Jacobi",
            Self::Ilu => "ILU(0)",
            Self::ModifiedIlu => "modified ILU(0)",
        }
    }
}

impl std::fmt::Display for Preconditioning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Part of the fill that is subtracted from the diagonal: all of it may make a pivot zero where rows sum to zero.
const MODIFIED: f64 = 0.995;
/// The same for one part of several, whose rows lack what couples them to other parts.
const MODIFIED_PART: f64 = 0.98;
/// A pivot below this part of the diagonal entry makes solutions explode.
const PIVOT_LEAST: f64 = 1e-4;

/// M ≈ A on the own rows and columns.
#[derive(Debug)]
pub enum Preconditioner {
    /// 1 / aᵢᵢ.
    Jacobi(Vec<f64>),
    /// L U with unit L.
    Ilu(Factors),
}

/// Incomplete factors. The entries of L and U lie in rows, as those of the matrix.
#[derive(Debug)]
pub struct Factors {
    matrix: Csr,
    values: Vec<f64>,
    /// First entry behind the diagonal of each row.
    upper: Vec<usize>,
    inverse_pivots: Vec<f64>,
    is_modified: bool,
}

impl Preconditioner {
    /// The one asked for, of `rows` of `block`, or the nearest that exists: dense rows have no incomplete factors.
    pub fn new(block: &RowBlock, rows: &Range<usize>, which: Preconditioning) -> Self {
        if let (RowValues::Sparse(csr), false) = (&block.values, which == Preconditioning::Jacobi) {
            let own = diagonal_block(block, csr, rows);
            if which == Preconditioning::ModifiedIlu
                && let Some(factors) = Factors::new(
                    &own,
                    if own.rows() == block.columns {
                        MODIFIED
                    } else {
                        MODIFIED_PART
                    },
                )
            {
                return Self::Ilu(factors);
            }
            if let Some(factors) = Factors::new(&own, 0.0) {
                return Self::Ilu(factors);
            }
        }
        let inverse = |row| 1.0 / block.diagonal(row);
        Self::Jacobi(rows.clone().map(inverse).collect())
    }

    /// The name for reports.
    pub fn name(&self) -> &'static str {
        self.which().name()
    }

    /// The name if it is not the one that was asked for.
    pub(crate) fn differs(&self, asked: Preconditioning) -> Option<&'static str> {
        (self.which() != asked).then_some(self.name())
    }

    fn which(&self) -> Preconditioning {
        match self {
            Self::Jacobi(_) => Preconditioning::Jacobi,
            Self::Ilu(factors) if factors.is_modified => Preconditioning::ModifiedIlu,
            Self::Ilu(_) => Preconditioning::Ilu,
        }
    }

    /// `z` = M⁻¹ `r`, both of the own rows.
    pub(super) fn apply(&self, r: &[f64], z: &mut [f64]) {
        match self {
            Self::Jacobi(inverse) => {
                for ((z, r), inverse) in z.iter_mut().zip(r).zip(inverse) {
                    *z = r * inverse;
                }
            }
            Self::Ilu(factors) => factors.solve(r, z),
        }
    }
}

impl Factors {
    /// `modified`: part of the fill that is subtracted from the diagonal. `None`: a pivot became too small, or changed its sign.
    fn new(matrix: &Csr, modified: f64) -> Option<Self> {
        const NONE: usize = usize::MAX;
        let n = matrix.rows();
        let mut values = matrix.values().to_vec();
        let mut upper = Vec::with_capacity(n);
        let mut inverse_pivots = Vec::with_capacity(n);
        // Where each column's entry of the present row lies.
        let mut place = vec![NONE; n];
        for row in 0..n {
            let entries = matrix.offsets()[row]..matrix.offsets()[row + 1];
            let columns = &matrix.indices()[entries.clone()];
            let below = columns.partition_point(|&column| (column as usize) < row);
            let diagonal = entries.start + below;
            if columns.get(below) != Some(&(row as u32)) {
                return None;
            }
            for (entry, &column) in entries.clone().zip(columns) {
                place[column as usize] = entry;
            }
            let mut dropped = 0.0;
            for (entry, &column) in (entries.start..diagonal).zip(columns) {
                let k = column as usize;
                let factor = values[entry] * inverse_pivots[k];
                values[entry] = factor;
                let above = upper[k]..matrix.offsets()[k + 1];
                for (source, &column) in above.clone().zip(&matrix.indices()[above]) {
                    let product = factor * values[source];
                    match place[column as usize] {
                        NONE => dropped += product,
                        target => values[target] -= product,
                    }
                }
            }
            values[diagonal] -= modified * dropped;
            for &column in columns {
                place[column as usize] = NONE;
            }
            let (pivot, before) = (values[diagonal], matrix.values()[diagonal]);
            if !(pivot.is_finite() && pivot / before > PIVOT_LEAST) {
                return None;
            }
            upper.push(diagonal + 1);
            inverse_pivots.push(1.0 / pivot);
        }
        Some(Self {
            matrix: matrix.clone(),
            values,
            upper,
            inverse_pivots,
            is_modified: modified > 0.0,
        })
    }

    fn solve(&self, r: &[f64], z: &mut [f64]) {
        let (offsets, indices) = (self.matrix.offsets(), self.matrix.indices());
        for row in 0..r.len() {
            let entries = offsets[row]..self.upper[row] - 1;
            let mut sum = r[row];
            for (&column, value) in indices[entries.clone()].iter().zip(&self.values[entries]) {
                sum -= value * z[column as usize];
            }
            z[row] = sum;
        }
        for row in (0..r.len()).rev() {
            let entries = self.upper[row]..offsets[row + 1];
            let mut sum = z[row];
            for (&column, value) in indices[entries.clone()].iter().zip(&self.values[entries]) {
                sum -= value * z[column as usize];
            }
            z[row] = sum * self.inverse_pivots[row];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Generate, Matrix, System};

    fn system(text: &str) -> System {
        text.parse::<Generate>().unwrap().system(1).unwrap()
    }

    fn whole(text: &str) -> RowBlock {
        RowBlock::whole(system(text))
    }

    /// Without fill to drop, incomplete factors are complete: M⁻¹ A x = x for a tridiagonal matrix.
    #[test]
    fn factors_of_tridiagonal_matrices_are_exact() {
        let triplets: Vec<_> = (0..50u32)
            .flat_map(|row| {
                let beside = (row + 1).min(49);
                let other = if beside == row { 0.0 } else { -1.0 };
                [(row, row, 2.5), (row, beside, other), (beside, row, other)]
            })
            .filter(|entry| entry.2 != 0.0)
            .collect();
        let csr = Csr::from_triplets(50, 50, &triplets).unwrap();
        let x: Vec<f64> = (0..50).map(|k| f64::from(k).sin()).collect();
        let system = System::new(Matrix::Sparse(csr), None, "chain".into()).unwrap();
        let product = system.matrix.times(&x);
        let block = RowBlock::whole(system);
        for which in [Preconditioning::Ilu, Preconditioning::ModifiedIlu] {
            let preconditioner = Preconditioner::new(&block, &block.rows, which);
            let mut z = vec![0.0; 50];
            preconditioner.apply(&product, &mut z);
            let error = z.iter().zip(&x).map(|(z, x)| (z - x).abs());
            assert!(
                error.fold(0.0, f64::max) < 1e-12,
                "{}",
                preconditioner.name()
            );
        }
    }

    /// The preconditioner of a symmetric matrix is symmetric: u · M⁻¹ v = v · M⁻¹ u.
    #[test]
    fn symmetric_rows_keep_symmetry() {
        for text in ["poisson2d:12", "circuit:300"] {
            let block = whole(text);
            let n = block.columns;
            let u: Vec<f64> = (0..n).map(|k| (k as f64).sin()).collect();
            let v: Vec<f64> = (0..n).map(|k| (k as f64 * 0.7).cos()).collect();
            for which in [Preconditioning::Ilu, Preconditioning::ModifiedIlu] {
                let preconditioner = Preconditioner::new(&block, &block.rows, which);
                assert_ne!(preconditioner.name(), "Jacobi");
                let (mut mu, mut mv) = (vec![0.0; n], vec![0.0; n]);
                preconditioner.apply(&u, &mut mu);
                preconditioner.apply(&v, &mut mv);
                let (left, right) = (super::super::dot(&u, &mv), super::super::dot(&v, &mu));
                assert!((left - right).abs() < 1e-10 * left.abs().max(1.0), "{text}");
            }
        }
    }

    /// Where a pivot would change its sign, the diagonal is used.
    #[test]
    fn bad_pivots_fall_back() {
        let triplets = [(0, 0, 1.0), (0, 1, 3.0), (1, 0, 3.0), (1, 1, 1.0)];
        let csr = Csr::from_triplets(2, 2, &triplets).unwrap();
        let system = System::new(Matrix::Sparse(csr), None, "m".into()).unwrap();
        let block = RowBlock::whole(system);
        let preconditioner = Preconditioner::new(&block, &block.rows, Preconditioning::Ilu);
        assert_eq!(preconditioner.name(), "Jacobi");
    }
}
