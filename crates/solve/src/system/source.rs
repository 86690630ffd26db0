//! A system to be solved: in memory, or still to be made by whoever uses its rows.
//!
//! The program reads or names it; `method` and `distributed` solve it, `outlook` and `Order` tell what is to be expected of it.

use super::{Generate, GenerateError, RowBlock, Scaling, Solution, System};
use std::ops::Range;

/// What to solve.
#[derive(Debug, Clone)]
pub enum Source {
    /// In memory; a judge sends each worker its rows.
    System(System),
    /// Each thread or worker makes its own rows.
    Generated(Generated),
}

/// A generated system, down to each entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generated {
    /// Kind and size.
    pub what: Generate,
    /// Of its random numbers.
    pub seed: u64,
    /// To which b belongs.
    pub solution: Solution,
}

impl From<System> for Source {
    fn from(system: System) -> Self {
        Self::System(system)
    }
}

impl Source {
    /// A generated system as workers make it, and the same in memory.
    #[cfg(test)]
    pub(crate) fn both(text: &str) -> [Self; 2] {
        let made = Generated::new(text.parse().unwrap(), 7, Solution::Ones);
        [Self::Generated(made), made.system().unwrap().into()]
    }

    /// Rows of the system.
    pub fn rows(&self) -> usize {
        match self {
            Self::System(system) => system.n(),
            Self::Generated(made) => made.what.n(),
        }
    }

    /// Name for messages.
    pub fn name(&self) -> String {
        match self {
            Self::System(system) => system.name.clone(),
            Self::Generated(made) => made.what.to_string(),
        }
    }

    /// Whether every entry is stored.
    pub fn is_dense(&self) -> bool {
        match self {
            Self::System(system) => system.matrix.is_dense(),
            Self::Generated(made) => made.what.is_dense(),
        }
    }

    /// Whether the matrix is symmetric: of a generated one known from its kind.
    pub(crate) fn is_symmetric(&self) -> bool {
        match self {
            Self::System(system) => crate::outlook::is_symmetric(&system.matrix),
            Self::Generated(made) => !made.what.is_dense(),
        }
    }

    /// Whether it was, before its rows were put into another order.
    pub(crate) fn was_symmetric(&self) -> bool {
        matches!(self, Self::System(system) if system.was_symmetric)
    }

    /// Scales of the columns: workers hold x of the scaled system.
    pub(crate) fn scaling(&self) -> Option<&Scaling> {
        match self {
            Self::System(system) => system.scaling.as_ref(),
            Self::Generated(_) => None,
        }
    }

    /// The system in memory.
    pub fn into_system(self) -> Result<System, GenerateError> {
        match self {
            Self::System(system) => Ok(system),
            Self::Generated(made) => made.system(),
        }
    }
}

impl Generated {
    /// The system of this kind and size.
    pub fn new(what: Generate, seed: u64, solution: Solution) -> Self {
        Self {
            what,
            seed,
            solution,
        }
    }

    /// The whole system.
    pub fn system(&self) -> Result<System, GenerateError> {
        self.what.system_for(self.seed, self.solution)
    }

    /// Rows `rows` alone. Panics unless they are a non-empty range.
    pub fn rows(&self, rows: Range<usize>) -> RowBlock {
        self.what.rows(rows, self.seed, self.solution)
    }
}
