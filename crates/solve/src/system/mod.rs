//! Linear systems `A x = b`: their parts, their sources, and their partition into row blocks.
//!
//! `local` and `distributed` solve them, the command line reads and writes them. A [`Matrix`] is square and its indices are in range by construction;
//! [`System::new`] checks once that its diagonal is non-zero and every number finite. The readers refuse rectangular files, so the code below need
//! not handle them.

mod block;
mod check;
mod csr;
pub mod formats;
mod generate;
mod matching;
mod messages;
mod order;
mod partition;
mod scaling;
mod source;

pub use block::{RowBlock, RowValues};
pub use check::SystemError;
pub use csr::{Csr, StructureError};
pub(crate) use generate::DENSE_DOMINANCE;
pub use generate::{Generate, GenerateError, Solution};
pub use messages::{Messages, RowsError};
pub use order::Order;
pub use partition::{PartitionError, partition, partition_by};
pub use scaling::Scaling;
pub use source::{Generated, Source};

/// A square matrix with every entry stored, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    n: usize,
    values: Vec<f64>,
}

impl Dense {
    /// Takes `n * n` values in row-major order.
    pub fn new(n: usize, values: Vec<f64>) -> Result<Self, StructureError> {
        if n.checked_mul(n) != Some(values.len()) {
            return Err(StructureError::WrongCount {
                what: "values of a dense matrix",
                found: values.len(),
                expected: n.saturating_mul(n),
            });
        }
        Ok(Self { n, values })
    }

    /// Rows, and columns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Row `row`, from column 0 to column n − 1.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.n..(row + 1) * self.n]
    }

    /// All values in row-major order.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// All values in row-major order, given away.
    pub(crate) fn into_values(self) -> Vec<f64> {
        self.values
    }
}

/// Fewest rows of a sparse matrix that is taken for a dense one: of smaller ones any method is fast.
const FULL_ROWS_LEAST: usize = 256;

/// A whole square matrix.
#[derive(Debug, Clone, PartialEq)]
pub enum Matrix {
    /// Every entry stored, row-major.
    Dense(Dense),
    /// Compressed sparse rows.
    Sparse(Csr),
}

impl Matrix {
    /// Rows, and columns.
    pub fn n(&self) -> usize {
        match self {
            Matrix::Dense(dense) => dense.n(),
            Matrix::Sparse(csr) => csr.rows(),
        }
    }

    /// Stored entries: n² of a dense matrix.
    pub fn stored(&self) -> usize {
        match self {
            Matrix::Dense(dense) => dense.values.len(),
            Matrix::Sparse(csr) => csr.stored(),
        }
    }

    /// Whether every entry is stored.
    pub fn is_dense(&self) -> bool {
        matches!(self, Matrix::Dense(_))
    }

    /// Bytes the matrix occupies in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Matrix::Dense(dense) => dense.values.len() * size_of::<f64>(),
            Matrix::Sparse(csr) => csr.bytes(),
        }
    }

    /// The entry on the diagonal of `row`, 0.0 where a sparse matrix stores none.
    pub fn diagonal(&self, row: usize) -> f64 {
        match self {
            Matrix::Dense(dense) => dense.row(row)[row],
            Matrix::Sparse(csr) => csr.get(row, row),
        }
    }

    /// As a dense one where half of the entries or more are stored, and that takes no more than `limit_bytes`: methods for sparse rows, incomplete factors
    /// above all, take very long with such rows. One whose rows are to be matched stays sparse: small entries on the diagonal of dense ones are not.
    pub(crate) fn dense_if_full(self, limit_bytes: u64) -> Self {
        let Matrix::Sparse(csr) = &self else {
            return self;
        };
        let n = self.n();
        let bytes = n as u128 * n as u128 * size_of::<f64>() as u128;
        let is_full = n >= FULL_ROWS_LEAST && csr.stored() >= n * n / 2;
        if !is_full || bytes > u128::from(limit_bytes) || matching::is_poor(&self) {
            return self;
        }
        let mut values = vec![0.0; n * n];
        for (row, values) in values.chunks_exact_mut(n).enumerate() {
            self.for_each_in_row(row, |column, value| values[column] = value);
        }
        Matrix::Dense(Dense { n, values })
    }

    /// Calls `visit(column, value)` for every stored entry of `row`, columns ascending.
    pub fn for_each_in_row(&self, row: usize, mut visit: impl FnMut(usize, f64)) {
        match self {
            Matrix::Dense(dense) => {
                for (column, &value) in dense.row(row).iter().enumerate() {
                    visit(column, value);
                }
            }
            Matrix::Sparse(csr) => {
                let (columns, values) = csr.row(row);
                for (&column, &value) in columns.iter().zip(values) {
                    visit(column as usize, value);
                }
            }
        }
    }

    /// `A x`.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.n(), "A x needs one element of x per column");
        let mut out = vec![0.0; self.n()];
        match self {
            Matrix::Dense(dense) => crate::local::kernels::multiply(&dense.values, x, &mut out),
            Matrix::Sparse(csr) => csr.multiply(0..csr.rows(), x, &mut out),
        }
        out
    }
}

/// A square system ready to be solved: entries finite, diagonal non-zero, `rhs` of matching length.
#[derive(Debug, Clone)]
pub struct System {
    /// A.
    pub matrix: Matrix,
    /// b, one element per row.
    pub rhs: Vec<f64>,
    /// Name for messages: of a file, or a generator's specification.
    pub name: String,
    /// Scales of the columns of a matrix that was matched. `method`, `distributed`, `local::single` and `local::threads` take and give x of the original
    /// system; what they are made of works on the scaled one.
    pub scaling: Option<Scaling>,
    /// The matrix was symmetric before its rows were put into another order for its diagonal.
    pub was_symmetric: bool,
}

impl System {
    /// Checks that the system can be relaxed. Without a right-hand side, b = A·1, whose solution is all ones.
    pub fn new(matrix: Matrix, rhs: Option<Vec<f64>>, name: String) -> Result<Self, SystemError> {
        check::matrix(&matrix, &name)?;
        let rhs = rhs.unwrap_or_else(|| matrix.times(&vec![1.0; matrix.n()]));
        check::rhs(&rhs, matrix.n(), &name)?;
        Ok(Self {
            matrix,
            rhs,
            name,
            scaling: None,
            was_symmetric: false,
        })
    }

    /// ‖b − A x‖₂ / ‖b‖₂, computed with carried rounding errors.
    pub fn relative_residual(&self, x: &[f64]) -> f64 {
        let mut residual = vec![0.0; self.n()];
        RowBlock::residual_of(self, x, &mut residual);
        let norm = crate::local::kernels::sum_of_squares(&residual).sqrt();
        crate::local::relative(norm, self.rhs_norm())
    }

    /// As [`new`](Self::new); rows of a matrix with zeros on its diagonal, or entries far below others of their row and column, are put into an order
    /// without (maximum-product matching), and its columns are scaled. x keeps its order. Returns a note if that was done.
    pub fn matched(
        matrix: Matrix,
        rhs: Option<Vec<f64>>,
        name: String,
    ) -> Result<(Self, Option<String>), SystemError> {
        let poor = matching::poor_diagonal(&matrix);
        if poor == matching::Poor::default() {
            return Ok((Self::new(matrix, rhs, name)?, None));
        }
        check::entries(&matrix, &name)?;
        if let Some(rhs) = &rhs {
            check::rhs(rhs, matrix.n(), &name)?;
        }
        match matching::rows_for(&matrix) {
            matching::Matched::Whole { rows, .. } if rows.iter().copied().eq(0..) => {
                Ok((Self::new(matrix, rhs, name)?, None))
            }
            matching::Matched::Whole { rows, potentials } => {
                let rhs = rhs.unwrap_or_else(|| matrix.times(&vec![1.0; matrix.n()]));
                let rhs = rows.iter().map(|&row| rhs[row as usize]).collect();
                let was_symmetric = crate::outlook::is_symmetric(&matrix);
                let mut matrix = matching::reorder(&matrix, &rows);
                let is_matched = potentials.is_some();
                let scaling = potentials.and_then(|them| Scaling::of_columns(&them, &matrix));
                if let Some(scaling) = &scaling {
                    scaling.apply(&mut matrix);
                }
                let how = match scaling {
                    Some(_) => "reordered by maximum-product matching, and the matrix scaled",
                    None if is_matched => "reordered by maximum-product matching",
                    None => "exchanged in pairs",
                };
                let note = format!("{poor} of {} rows: rows were {how}", matrix.n());
                let system = Self {
                    scaling,
                    was_symmetric,
                    ..Self::new(matrix, Some(rhs), name)?
                };
                Ok((system, Some(note)))
            }
            matching::Matched::Singular => Err(SystemError::Singular { name }),
            matching::Matched::TooLarge => Ok((Self::new(matrix, rhs, name)?, None)),
        }
    }

    /// Unknowns.
    pub fn n(&self) -> usize {
        self.rhs.len()
    }

    /// Makes b that of this x.
    pub fn set_solution(&mut self, x: &[f64]) -> Result<(), SystemError> {
        self.rhs = match &self.scaling {
            Some(scaling) => self.matrix.times(&scaling.scaled(x)),
            None => self.matrix.times(x),
        };
        check::rhs(&self.rhs, self.matrix.n(), &self.name)
    }

    /// Scales of the rows, where they are to be scaled.
    pub(crate) fn row_scales(&self) -> Vec<f64> {
        match self.scaling {
            Some(_) => (0..self.n())
                .map(|row| scaling::of_row(self.matrix.diagonal(row)))
                .collect(),
            None => Vec::new(),
        }
    }

    /// ‖b‖₂, by which residuals are divided.
    pub fn rhs_norm(&self) -> f64 {
        crate::local::kernels::sum_of_squares(&self.rhs).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is full is taken for dense, with the same entries; what is sparse, small, too large, or has a poor diagonal is not.
    #[test]
    fn full_matrices_are_dense() {
        let made = |n: u32, band: u32, diagonal: f64| {
            let row =
                |row: u32| (0..band).map(move |at| (row, (row + at) % n, 1.0 + f64::from(at)));
            let mut triplets: Vec<_> = (0..n).flat_map(row).collect();
            triplets[0].2 = diagonal;
            Matrix::Sparse(Csr::from_triplets(n as usize, n as usize, &triplets).unwrap())
        };
        let full = made(256, 128, 3.0);
        let dense = full.clone().dense_if_full(1 << 30);
        assert!(!full.clone().dense_if_full(256 * 256 * 8 - 1).is_dense());
        let ones = vec![1.0; 256];
        assert!(dense.is_dense());
        assert_eq!(dense.times(&ones), full.times(&ones));
        assert_eq!((dense.diagonal(0), dense.diagonal(1)), (3.0, 1.0));
        let poor = [made(256, 256, 0.0), made(256, 256, 1e-9)];
        let others = [made(256, 127, 3.0), made(255, 255, 3.0)];
        for other in others.into_iter().chain(poor) {
            assert!(!other.dense_if_full(1 << 30).is_dense());
        }
    }
}
