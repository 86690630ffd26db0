//! The method for a system that several processes solve.
//!
//! A Krylov method, for it is faster than laps on all but one of the systems measured, also where frames are lost (docs/benchmarks.md compares them at 1,
//! 5 and 20 % of loss). Relaxation is for who asks for it, and follows where a Krylov method fails, or waits too long (`distributed`).

use super::look::Look;
use super::{Method, MethodError};
use crate::distributed::Krylov;
use crate::krylov::{Kind, Preconditioning};
use crate::system::{Generate, Matrix};

/// What is known of a system before it is distributed.
#[derive(Debug, Clone, Copy)]
pub enum Known<'a> {
    /// The matrix.
    Matrix(&'a Matrix),
    /// How workers make it.
    Generated(&'a Generate),
}

/// Chooses a Krylov method, and says why.
pub fn choose(known: Known<'_>) -> (Krylov, String) {
    let (krylov, because) = suited(known);
    (krylov, format!("{krylov}: {because}"))
}

/// The Krylov method asked for.
pub fn asked(
    known: Known<'_>,
    (method, preconditioning): (Method, Option<Preconditioning>),
) -> Result<Option<Krylov>, MethodError> {
    let (mut suited, _) = suited(known);
    suited.preconditioning = preconditioning.unwrap_or(suited.preconditioning);
    match method {
        Method::Cg if suited.kind != Kind::Cg && !is_symmetric(known) => {
            Err(MethodError::NotSymmetric)
        }
        _ => Ok(method.krylov().map(|kind| Krylov { kind, ..suited })),
    }
}

fn is_symmetric(known: Known<'_>) -> bool {
    match known {
        Known::Matrix(matrix) => crate::outlook::is_symmetric(matrix),
        Known::Generated(what) => !what.is_dense(),
    }
}

fn suited(known: Known<'_>) -> (Krylov, &'static str) {
    let look = match known {
        Known::Matrix(Matrix::Sparse(csr)) => Look::at(csr),
        Known::Generated(what) if !what.is_dense() => Look::OF_GENERATED,
        Known::Matrix(Matrix::Dense(_)) | Known::Generated(_) => {
            let krylov = Krylov {
                kind: Kind::Gmres,
                preconditioning: Preconditioning::Jacobi,
            };
            return (krylov, "the matrix is dense");
        }
    };
    let krylov = Krylov {
        kind: look.kind(),
        preconditioning: look.preconditioning(),
    };
    (krylov, look.why())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated sparse systems are what is said of them without looking.
    #[test]
    fn generated_systems_are_as_said() {
        for text in ["poisson2d:9", "poisson3d:5", "circuit:200"] {
            let what: Generate = text.parse().unwrap();
            let system = what.system(7).unwrap();
            let (seen, said) = (Known::Matrix(&system.matrix), Known::Generated(&what));
            assert_eq!(choose(seen), choose(said), "{text}");
        }
    }

    /// The choice has a reason, and conjugate gradients need symmetry.
    #[test]
    fn choices_have_reasons() {
        let what: Generate = "dense:50".parse().unwrap();
        let (_, why) = choose(Known::Generated(&what));
        assert_eq!(why, "GMRES with Jacobi: the matrix is dense");
        let system = what.system(1).unwrap();
        for known in [Known::Generated(&what), Known::Matrix(&system.matrix)] {
            assert_eq!(
                asked(known, (Method::Cg, None)),
                Err(MethodError::NotSymmetric)
            );
            assert_eq!(asked(known, (Method::Relax, None)), Ok(None));
        }
    }
}
