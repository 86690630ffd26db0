//! What the entries of a sparse matrix tell about the method that suits it. Two passes.

use crate::krylov::{Kind, Preconditioning};
use crate::system::Csr;

/// What the entries tell of a sparse matrix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Properties {
    pub(super) symmetric: bool,
    /// Diagonal positive, all other entries not.
    is_m_like: bool,
    positive_diagonal: bool,
    /// So dominant that any iteration takes few steps.
    pub(super) is_dominant: bool,
}

/// Largest Σ|off-diagonal| / |diagonal| of a row at which some twenty laps solve the system.
const DOMINANT: f64 = 0.6;

impl Properties {
    /// Of generated sparse systems.
    pub(super) const OF_GENERATED: Self = Self {
        symmetric: true,
        is_m_like: true,
        positive_diagonal: true,
        is_dominant: false,
    };

    pub(super) fn of(csr: &Csr) -> Self {
        let mut found = Self {
            symmetric: csr.is_symmetric(),
            is_m_like: true,
            positive_diagonal: true,
            is_dominant: true,
        };
        for row in 0..csr.rows() {
            let (columns, values) = csr.row(row);
            let (mut diagonal, mut beside) = (0.0, 0.0);
            for (&column, &value) in columns.iter().zip(values) {
                if column as usize == row {
                    diagonal = value;
                    continue;
                }
                beside += value.abs();
                found.is_m_like &= value <= 0.0;
            }
            found.positive_diagonal &= diagonal > 0.0;
            found.is_dominant &= beside <= DOMINANT * diagonal.abs();
        }
        found.is_m_like &= found.positive_diagonal;
        found
    }

    pub(super) fn kind(&self) -> Kind {
        if self.symmetric && self.positive_diagonal {
            Kind::Cg
        } else {
            Kind::Gmres
        }
    }

    /// Why that kind.
    pub(super) fn why(&self) -> &'static str {
        match self.kind() {
            Kind::Cg => "the matrix is symmetric with a positive diagonal",
            Kind::Gmres => "the matrix is not symmetric, or its diagonal not positive",
        }
    }

    pub(super) fn preconditioning(&self) -> Preconditioning {
        if self.is_m_like {
            Preconditioning::ModifiedIlu
        } else {
            Preconditioning::Ilu
        }
    }
}
