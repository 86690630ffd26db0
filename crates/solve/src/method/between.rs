//! The method for a system that several processes solve.
//!
//! A Krylov method, for it is faster than laps on all but one of the systems measured, also where frames are lost (docs/benchmarks.md compares them at 1,
//! 5 and 20 % of loss). Relaxation is taken if it is asked for, or after a Krylov method that fails or waits too long (`distributed`).

use super::properties::Properties;
use super::{Method, MethodError};
use crate::distributed::Krylov;
use crate::krylov::{Kind, Preconditioning};
use crate::system::{Matrix, Source};

/// Chooses a Krylov method, and says why.
pub fn choose(source: &Source) -> (Krylov, String) {
    let (krylov, because) = suited(source);
    (krylov, format!("{krylov}: {because}"))
}

/// The Krylov method asked for.
pub fn asked(
    source: &Source,
    (method, preconditioning): (Method, Option<Preconditioning>),
) -> Result<Option<Krylov>, MethodError> {
    let (mut suited, _) = suited(source);
    suited.preconditioning = preconditioning.unwrap_or(suited.preconditioning);
    match method {
        Method::Cg if suited.kind != Kind::Cg && !source.is_symmetric() => {
            Err(MethodError::not_symmetric(source.was_symmetric()))
        }
        _ => Ok(method.krylov().map(|kind| Krylov { kind, ..suited })),
    }
}

fn suited(source: &Source) -> (Krylov, &'static str) {
    match source {
        Source::System(system) => suited_to(&system.matrix),
        Source::Generated(made) => {
            of_properties((!made.what.is_dense()).then_some(Properties::OF_GENERATED))
        }
    }
}

/// The Krylov method for a matrix in memory, and why.
pub(crate) fn suited_to(matrix: &Matrix) -> (Krylov, &'static str) {
    of_properties(match matrix {
        Matrix::Sparse(csr) => Some(Properties::of(csr)),
        Matrix::Dense(_) => None,
    })
}

fn of_properties(sparse: Option<Properties>) -> (Krylov, &'static str) {
    let (kind, preconditioning, why) = match sparse {
        Some(properties) => (
            properties.kind(),
            properties.preconditioning(),
            properties.why(),
        ),
        None => (Kind::Gmres, Preconditioning::Jacobi, "the matrix is dense"),
    };
    let krylov = Krylov {
        kind,
        preconditioning,
    };
    (krylov, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated sparse systems are what is said of them without looking.
    #[test]
    fn generated_systems_are_as_said() {
        for text in ["poisson2d:9", "poisson3d:5", "circuit:200"] {
            let [said, seen] = Source::both(text);
            assert_eq!(choose(&seen), choose(&said), "{text}");
        }
    }

    /// The choice has a reason, and conjugate gradients need symmetry.
    #[test]
    fn choices_have_reasons() {
        for source in &Source::both("dense:50") {
            let (_, why) = choose(source);
            assert_eq!(why, "GMRES with Jacobi: the matrix is dense");
            assert_eq!(
                asked(source, (Method::Cg, None)),
                Err(MethodError::NotSymmetric)
            );
            assert_eq!(asked(source, (Method::Relax, None)), Ok(None));
        }
    }
}
