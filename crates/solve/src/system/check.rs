//! Conditions that a system must satisfy before it is iterated, each with a one-line error.

use super::Matrix;

/// Why a system cannot be relaxed. Rows and columns in the messages count from 1, as in Matrix Market files.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SystemError {
    /// No rows.
    #[error("{name}: the matrix is empty (0 rows); at least one row is needed")]
    Empty {
        /// The system's name.
        name: String,
    },
    /// Relaxation divides by the diagonal.
    #[error(
        "{name}: the diagonal entry of row {row} is zero; relaxation divides by it: reorder the rows or eliminate \
         this unknown first"
    )]
    ZeroDiagonal {
        /// The system's name.
        name: String,
        /// 1-based row.
        row: usize,
    },
    /// Whatever its values are, it has no inverse.
    #[error(
        "{name}: the matrix is singular: in no order of the rows is the diagonal without a zero"
    )]
    Singular {
        /// The system's name.
        name: String,
    },
    /// An entry of A is not a number or infinite.
    #[error(
        "{name}: the entry in row {row}, column {column} is {value}; entries must be finite numbers"
    )]
    NotFinite {
        /// The system's name.
        name: String,
        /// 1-based row.
        row: usize,
        /// 1-based column.
        column: usize,
        /// The entry.
        value: f64,
    },
    /// The right-hand side has another length than A has rows.
    #[error("{name}: the right-hand side has {found} elements, but the matrix has {expected} rows")]
    RhsLength {
        /// The system's name.
        name: String,
        /// Elements found.
        found: usize,
        /// Rows of A.
        expected: usize,
    },
    /// An element of b is not a number or infinite.
    #[error(
        "{name}: element {row} of the right-hand side is {value}; elements must be finite numbers"
    )]
    RhsNotFinite {
        /// The system's name.
        name: String,
        /// 1-based row.
        row: usize,
        /// The element.
        value: f64,
    },
    /// The squares of residuals would be infinite, or 0.
    #[error(
        "{name}: element {row} of the right-hand side is {value:e}, the largest; accepted are 0 and {SMALLEST:e} to {LARGEST:e}: scale the system"
    )]
    RhsScale {
        /// The system's name.
        name: String,
        /// 1-based row.
        row: usize,
        /// The element.
        value: f64,
    },
}

/// Bounds of the largest element of b: the sum of up to 2³² squares is finite, and those of residuals of 1e-16 of it are not 0.
const SMALLEST: f64 = 1e-130;
const LARGEST: f64 = 1e145;

/// Refuses matrices that cannot be relaxed. One pass over A.
pub(super) fn matrix(matrix: &Matrix, name: &str) -> Result<(), SystemError> {
    entries(matrix, name)?;
    match (0..matrix.n()).find(|&row| matrix.diagonal(row) == 0.0) {
        Some(row) => Err(SystemError::ZeroDiagonal {
            name: name.into(),
            row: row + 1,
        }),
        None => Ok(()),
    }
}

/// Refuses matrices without rows or with an entry that is no number.
pub(super) fn entries(matrix: &Matrix, name: &str) -> Result<(), SystemError> {
    if matrix.n() == 0 {
        return Err(SystemError::Empty { name: name.into() });
    }
    for row in 0..matrix.n() {
        let values = match matrix {
            Matrix::Dense(dense) => dense.row(row),
            Matrix::Sparse(csr) => csr.row(row).1,
        };
        if let Some(position) = values.iter().position(|value| !value.is_finite()) {
            let column = match matrix {
                Matrix::Dense(_) => position,
                Matrix::Sparse(csr) => csr.row(row).0[position] as usize,
            };
            return Err(SystemError::NotFinite {
                name: name.into(),
                row: row + 1,
                column: column + 1,
                value: values[position],
            });
        }
    }
    Ok(())
}

/// Refuses a right-hand side of the wrong length, with an element that is no number, or of which no residual could be told.
pub(super) fn rhs(rhs: &[f64], rows: usize, name: &str) -> Result<(), SystemError> {
    if rhs.len() != rows {
        return Err(SystemError::RhsLength {
            name: name.into(),
            found: rhs.len(),
            expected: rows,
        });
    }
    if let Some(row) = rhs.iter().position(|value| !value.is_finite()) {
        return Err(SystemError::RhsNotFinite {
            name: name.into(),
            row: row + 1,
            value: rhs[row],
        });
    }
    let larger = |a: &(usize, &f64), b: &(usize, &f64)| a.1.abs().total_cmp(&b.1.abs());
    match rhs.iter().enumerate().max_by(larger) {
        Some((row, &value)) if value != 0.0 && !(SMALLEST..=LARGEST).contains(&value.abs()) => {
            Err(SystemError::RhsScale {
                name: name.into(),
                row: row + 1,
                value,
            })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Csr, Dense, Matrix, System};
    use super::*;

    fn sparse(triplets: &[(u32, u32, f64)]) -> Matrix {
        Matrix::Sparse(Csr::from_triplets(2, 2, triplets).unwrap())
    }

    /// A zero or missing diagonal entry is named by its row.
    #[test]
    fn zero_diagonal_names_the_row() {
        let missing = sparse(&[(0, 0, 1.0), (1, 0, 1.0)]);
        let stored = sparse(&[(0, 0, 1.0), (1, 1, 0.0)]);
        for matrix in [missing, stored] {
            let error = System::new(matrix, None, "a.mtx".into()).unwrap_err();
            assert!(
                matches!(error, SystemError::ZeroDiagonal { row: 2, .. }),
                "{error}"
            );
            assert!(
                error
                    .to_string()
                    .starts_with("a.mtx: the diagonal entry of row 2")
            );
        }
    }

    /// NaN in A or b, wrong lengths and emptiness each have their own error.
    #[test]
    fn unusable_numbers_are_located() {
        let nan = Matrix::Dense(Dense::new(2, vec![1.0, f64::NAN, 0.0, 1.0]).unwrap());
        let error = System::new(nan, None, "m".into()).unwrap_err();
        assert!(matches!(
            error,
            SystemError::NotFinite {
                row: 1,
                column: 2,
                ..
            }
        ));
        let one = || sparse(&[(0, 0, 1.0), (1, 1, 1.0)]);
        let error = System::new(one(), Some(vec![1.0]), "m".into()).unwrap_err();
        assert!(matches!(
            error,
            SystemError::RhsLength {
                found: 1,
                expected: 2,
                ..
            }
        ));
        let error = System::new(one(), Some(vec![1.0, f64::INFINITY]), "m".into()).unwrap_err();
        assert!(matches!(error, SystemError::RhsNotFinite { row: 2, .. }));
        for (second, row) in [(1e155, 2), (-1e-170, 1)] {
            let error = System::new(one(), Some(vec![1e-160, second]), "m".into()).unwrap_err();
            assert!(matches!(error, SystemError::RhsScale { row: found, .. } if found == row));
        }
        assert!(System::new(one(), Some(vec![0.0, 0.0]), "m".into()).is_ok());
        let huge = sparse(&[(0, 0, 1e308), (0, 1, 1e308), (1, 1, 1.0)]);
        let error = System::new(huge, None, "m".into()).unwrap_err();
        assert!(matches!(error, SystemError::RhsNotFinite { row: 1, .. }));
        let empty = Matrix::Dense(Dense::new(0, vec![]).unwrap());
        assert!(matches!(
            System::new(empty, None, "m".into()),
            Err(SystemError::Empty { .. })
        ));
    }

    /// Without a right-hand side the solution is all ones.
    #[test]
    fn default_rhs_is_row_sums() {
        let system = System::new(
            sparse(&[(0, 0, 2.0), (0, 1, 1.0), (1, 1, 4.0)]),
            None,
            "m".into(),
        );
        assert_eq!(system.unwrap().rhs, [3.0, 4.0]);
    }
}
