//! Dense square matrices: LU with partial pivoting, and solutions by symmetric ones.

use std::ops::{Index, IndexMut};

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::lu::partial_pivoting::{factor, solve};
use faer::linalg::solvers::Solve;
use faer::perm::Perm;
use faer::{Conj, Mat, MatMut, Par, Side, Spec};

/// A square matrix, addressed by row and column.
#[derive(Debug, Clone)]
pub struct Square(Mat<f64>);

impl Square {
    /// `n` rows and columns of zeros.
    pub fn zeros(n: usize) -> Self {
        Self(Mat::zeros(n, n))
    }

    /// The matrix whose entries are `entry(row, column)`.
    pub fn from_fn(n: usize, entry: impl FnMut(usize, usize) -> f64) -> Self {
        Self(Mat::from_fn(n, n, entry))
    }

    /// Rows, and columns.
    pub fn n(&self) -> usize {
        self.0.nrows()
    }

    /// The product with its own transpose.
    pub fn times_transpose(&self) -> Self {
        Self(&self.0 * self.0.transpose())
    }
}

impl Index<(usize, usize)> for Square {
    type Output = f64;

    fn index(&self, place: (usize, usize)) -> &f64 {
        &self.0[place]
    }
}

impl IndexMut<(usize, usize)> for Square {
    fn index_mut(&mut self, place: (usize, usize)) -> &mut f64 {
        &mut self.0[place]
    }
}

/// P A = L U with partial pivoting, in the memory of A.
#[derive(Debug, Clone)]
pub struct Lu {
    /// L below the diagonal, which is 1, and U.
    factors: Mat<f64>,
    permutation: Perm<usize>,
}

impl Lu {
    /// Factorises. A singular matrix has a pivot of 0, or one that is no number.
    pub fn new(matrix: Square) -> Self {
        let mut factors = matrix.0;
        let n = factors.nrows();
        let (mut rows, mut places) = (vec![0; n], vec![0; n]);
        let scratch = factor::lu_in_place_scratch::<usize, f64>(n, n, Par::Seq, Spec::default());
        factor::lu_in_place(
            factors.as_mut(),
            &mut rows,
            &mut places,
            Par::Seq,
            MemStack::new(&mut MemBuffer::new(scratch)),
            Spec::default(),
        );
        Self {
            factors,
            permutation: Perm::new_checked(rows.into(), places.into(), n),
        }
    }

    /// The k-th diagonal entry of U.
    pub fn pivot(&self, k: usize) -> f64 {
        self.factors[(k, k)]
    }

    /// Replaces `vector` by A⁻¹ `vector`.
    pub fn solve(&self, vector: &mut [f64]) {
        let n = vector.len();
        let scratch = solve::solve_in_place_scratch::<usize, f64>(n, 1, Par::Seq);
        solve::solve_in_place_with_conj(
            self.factors.as_ref(),
            self.factors.as_ref(),
            self.permutation.as_ref(),
            Conj::No,
            MatMut::from_column_major_slice_mut(vector, n, 1),
            Par::Seq,
            MemStack::new(&mut MemBuffer::new(scratch)),
        );
    }
}

/// Solves by a symmetric matrix, of which the lower triangle is read. Where it is positive definite, by Cholesky; where it is semidefinite, or only just
/// definite, gives the shortest of all solutions: eigenvalues below `rank`, times its size and the largest, count as zero. `None`: there are no
/// eigenvalues.
pub fn solve_symmetric(matrix: &Square, right: &[f64], rank: f64) -> Option<Vec<f64>> {
    let (matrix, size) = (&matrix.0, matrix.n());
    if let Ok(factors) = matrix.llt(Side::Lower) {
        let mut solved = right.to_vec();
        factors.solve_in_place(MatMut::from_column_major_slice_mut(&mut solved, size, 1));
        // A matrix that is only just definite gives a direction of rounding.
        let diagonal = || (0..size).map(|i| factors.L()[(i, i)]);
        let (least, most) = (
            diagonal().fold(f64::MAX, f64::min),
            diagonal().fold(0.0, f64::max),
        );
        if least * least > rank * size as f64 * most * most && solved.iter().all(|x| x.is_finite())
        {
            return Some(solved);
        }
    }
    let eigen = matrix.self_adjoint_eigen(Side::Lower).ok()?;
    let values: Vec<f64> = (0..size).map(|i| eigen.S()[i]).collect();
    let most = values
        .iter()
        .fold(0.0_f64, |most, value| most.max(value.abs()));
    let mut solved = vec![0.0; size];
    for (k, value) in values.iter().enumerate() {
        if *value <= rank * size as f64 * most {
            continue;
        }
        let along: f64 = (0..size).map(|i| eigen.U()[(i, k)] * right[i]).sum();
        for (i, entry) in solved.iter_mut().enumerate() {
            *entry += along / value * eigen.U()[(i, k)];
        }
    }
    Some(solved)
}
