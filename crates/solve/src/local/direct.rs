//! The whole system by one factorisation, refined until the residual in full precision is within the tolerance.
//!
//! Symmetric sparse matrices by Cholesky, others by our own sparse LU (`partial`), dense ones by LU with partial pivoting.
//! Called by `method`.
//!
//! Invariant: no factorisation begins whose predicted fill or work is beyond its [`FillLimit`].

use super::lu::{FillLimit, LuError};
use super::{BlockLu, kernels, relative};
use crate::system::{Csr, Matrix, RowBlock, System};
use std::borrow::Cow;
use tsumuji_factor::Cholesky;

/// Refinements after which no further digit is expected.
const REFINEMENTS: u32 = 6;
/// A refinement must shrink the residual to this part.
const SHRINKS: f64 = 0.5;

/// Why there is no solution.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// No pivot.
    #[error("the matrix is singular: no pivot for unknown {unknown}")]
    Singular {
        /// 1-based.
        unknown: usize,
    },
    /// The factors give an x that is no better than 0.
    #[error("the matrix is singular or nearly so: its factors give no x that is better than 0")]
    Useless,
    /// Too large.
    #[error("{0}")]
    TooLarge(String),
}

/// What a factorisation would cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Entries of the factors.
    pub entries: f64,
    /// Multiplications.
    pub multiplications: f64,
}

/// A solution by factors.
#[derive(Debug, Clone)]
pub struct Direct {
    /// The solution.
    pub x: Vec<f64>,
    /// Its exact relative residual.
    pub residual: f64,
    /// Solves with the factors.
    pub solves: u64,
    /// Which factorisation.
    pub name: &'static str,
}

enum Factors {
    Cholesky(Cholesky),
    Lu(Box<BlockLu>),
}

/// The cost for `matrix`; for sparse ones of the order that would be used. `symmetric`: half of the work.
pub fn cost(matrix: &Matrix, symmetric: bool) -> Result<Cost, DirectError> {
    match matrix {
        Matrix::Dense(dense) => {
            let n = dense.n() as f64;
            Ok(Cost {
                entries: n * n,
                multiplications: n * n * n / 3.0,
            })
        }
        Matrix::Sparse(csr) => sparse_cost(csr, symmetric),
    }
}

fn sparse_cost(csr: &Csr, symmetric: bool) -> Result<Cost, DirectError> {
    let (entries, multiplications) =
        super::lu::predict(csr).map_err(|error| DirectError::TooLarge(error.to_string()))?;
    let part = if symmetric { 0.5 } else { 1.0 };
    Ok(Cost {
        entries: entries * part,
        multiplications: multiplications * part,
    })
}

/// Solves to a relative residual of `tolerance`, or as near as rounding lets it. `symmetric`: A is, and Cholesky is tried first. x is that of the scaled
/// system.
pub fn solve(
    system: &System,
    symmetric: bool,
    tolerance: f64,
    limit: Cost,
) -> Result<Direct, DirectError> {
    let (mut factors, name) = factorise(system, symmetric, limit)?;
    let norm = system.rhs_norm();
    let n = system.n();
    let mut x = vec![0.0; n];
    let mut correction = system.rhs.clone();
    let mut residual = f64::INFINITY;
    let mut solves = 0;
    for _ in 0..REFINEMENTS {
        factors.solve(&mut correction);
        let next: Vec<f64> = x.iter().zip(&correction).map(|(x, c)| x + c).collect();
        solves += 1;
        RowBlock::residual_of(system, &next, &mut correction);
        let found = relative(kernels::sum_of_squares(&correction).sqrt(), norm);
        if found.is_nan() || found >= residual {
            break;
        }
        let shrinks = found <= SHRINKS * residual;
        (x, residual) = (next, found);
        if residual <= tolerance || !shrinks {
            break;
        }
    }
    if !residual.is_finite() {
        return Err(DirectError::Singular { unknown: n });
    }
    // Of x = 0 it is 1.
    if residual >= 1.0 {
        return Err(DirectError::Useless);
    }
    Ok(Direct {
        x,
        residual,
        solves,
        name,
    })
}

fn factorise(
    system: &System,
    symmetric: bool,
    limit: Cost,
) -> Result<(Factors, &'static str), DirectError> {
    let scales = system.row_scales();
    match &system.matrix {
        Matrix::Dense(dense) => {
            let n = dense.n();
            if (n as f64).powi(2) > limit.entries {
                return Err(DirectError::TooLarge(format!(
                    "{n} dense rows are too many to be factorised"
                )));
            }
            match BlockLu::dense(n, scales, |row, column| dense.row(row)[column]) {
                Ok(lu) => Ok((Factors::Lu(Box::new(lu)), "dense LU")),
                Err(k) => Err(DirectError::Singular { unknown: k + 1 }),
            }
        }
        Matrix::Sparse(csr) => {
            if symmetric && let Some(llt) = cholesky(csr, limit)? {
                return Ok((Factors::Cholesky(llt), "sparse Cholesky"));
            }
            let limit = FillLimit {
                entries: limit.entries as usize,
                multiplications: limit.multiplications,
            };
            match BlockLu::sparse(Cow::Borrowed(csr), scales, limit) {
                Ok(lu) => Ok((Factors::Lu(Box::new(lu)), "sparse LU")),
                Err(LuError::Singular { column }) => Err(DirectError::Singular {
                    unknown: column + 1,
                }),
                Err(error) => Err(DirectError::TooLarge(error.to_string())),
            }
        }
    }
}

/// `None`: not positive definite.
fn cholesky(csr: &Csr, limit: Cost) -> Result<Option<Cholesky>, DirectError> {
    let cost = sparse_cost(csr, true)?;
    if cost.entries > limit.entries || cost.multiplications > limit.multiplications {
        return Err(DirectError::TooLarge(format!(
            "Cholesky factors would hold {:.1e} entries and take {:.1e} multiplications",
            cost.entries, cost.multiplications
        )));
    }
    let indices: Vec<usize> = csr.indices().iter().map(|&index| index as usize).collect();
    // Rows are columns, for the matrix is symmetric.
    Cholesky::new(csr.offsets(), &indices, csr.values())
        .map_err(|why| DirectError::TooLarge(format!("no order for the factors: {why}")))
}

impl Factors {
    /// Replaces `vector` by A⁻¹ `vector`.
    fn solve(&mut self, vector: &mut [f64]) {
        match self {
            Self::Cholesky(llt) => llt.solve(vector),
            Self::Lu(lu) => lu.solve(vector),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Generate;

    const GENEROUS: Cost = Cost {
        entries: 1e8,
        multiplications: 1e10,
    };

    /// Each factorisation solves its systems to the last digits.
    #[test]
    fn systems_are_solved() {
        for (text, symmetric, name) in [
            ("dense:80", false, "dense LU"),
            ("poisson2d:20", true, "sparse Cholesky"),
            ("poisson2d:20", false, "sparse LU"),
            ("circuit:500", true, "sparse Cholesky"),
        ] {
            let system = text.parse::<Generate>().unwrap().system(1).unwrap();
            let direct = solve(&system, symmetric, 1e-12, GENEROUS).unwrap();
            assert_eq!(direct.name, name);
            assert!(direct.residual <= 1e-12, "{text}: {}", direct.residual);
            assert!(direct.x.iter().all(|x| (x - 1.0).abs() < 1e-6), "{text}");
        }
    }

    /// A symmetric matrix that is not positive definite goes to LU; a singular one is refused; so is one that is too large.
    #[test]
    fn what_cholesky_cannot() {
        let sparse = |triplets: &[(u32, u32, f64)]| {
            let csr = Csr::from_triplets(2, 2, triplets).unwrap();
            System::new(Matrix::Sparse(csr), Some(vec![1.0, 2.0]), "m".into()).unwrap()
        };
        let indefinite = sparse(&[(0, 0, 1.0), (0, 1, 3.0), (1, 0, 3.0), (1, 1, 1.0)]);
        assert_eq!(
            solve(&indefinite, true, 1e-12, GENEROUS).unwrap().name,
            "sparse LU"
        );
        let singular = sparse(&[(0, 0, 1.0), (0, 1, 1.0), (1, 0, 1.0), (1, 1, 1.0)]);
        assert!(matches!(
            solve(&singular, false, 1e-12, GENEROUS),
            Err(DirectError::Singular { .. })
        ));
        let small = Cost {
            entries: 1.0,
            multiplications: 1.0,
        };
        assert!(matches!(
            solve(&indefinite, true, 1e-12, small),
            Err(DirectError::TooLarge(_))
        ));
    }
}
