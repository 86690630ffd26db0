//! Direct solution of a sparse system in parts: substructuring with a Schur complement.
//!
//! `compute` makes a [`Substructure`] and gives its `solve` to `newton`. The unknowns are divided into parts and an interface (`partition`).
//! Each part eliminates its interior by sparse Cholesky factors or LU (`part`), all at once on threads or by processes (`team`). The interface's
//! equations, to which each part adds its Schur complement, are solved densely (`interface`), and each part substitutes back. Unknowns without a
//! usable pivot within their part join the interface: the currents of voltage sources do, where their nodes are there.
//!
//! One part is an ordinary sparse factorisation.
//!
//! Left out on purpose: refinement of solutions. `newton` refines them by the circuit's elements.

mod interface;
mod part;
mod partition;
mod team;
#[cfg(test)]
mod tests;

pub use part::{PartFactors, PartInput, PartOutput};
pub use team::{Team, Threads};

use interface::Interface;
use partition::{INTERFACE, Partition};
use tsumuji_factor::Square;
use tsumuji_numbers::memory;
use tsumuji_solve::local::{FillLimit, LuError};
use tsumuji_solve::system::Csr;

/// Bytes of an entry of a factor: its number, its row, and room for growing.
const ENTRY_BYTES: u64 = 24;
/// Most multiplications of one factorisation: some hours of one core.
const MOST_MULTIPLICATIONS: f64 = 1e13;

/// Why a system is not solved.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SolveError {
    /// No division into parts.
    #[error("{what}")]
    Partition {
        /// The cause.
        what: String,
    },
    /// A part cannot be factorised.
    #[error("part {part} of the circuit: {source}; more workers make smaller parts")]
    Part {
        /// The part, counted from 0.
        part: usize,
        /// The cause.
        source: LuError,
    },
    /// There is no unique solution.
    #[error("the equations are singular at unknown {unknown}")]
    Singular {
        /// Number of an unknown that the others leave undetermined.
        unknown: usize,
    },
    /// The interface is too large to be solved densely.
    #[error(
        "the interface of the parts has {found} unknowns, beyond the limit of {limit}; use fewer workers"
    )]
    Interface {
        /// Its unknowns.
        found: usize,
        /// Most that are accepted.
        limit: usize,
    },
    /// A worker's process was lost, or does not fit.
    #[error("{what}")]
    Worker {
        /// Which, and how.
        what: String,
    },
    /// The caller wanted to stop while workers computed.
    #[error("interrupted")]
    Interrupted,
}

/// Sizes of a factorisation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Parts.
    pub parts: usize,
    /// Unknowns of the interface, those that joined it included.
    pub interface: usize,
    /// Entries of all factors, the interface's included.
    pub entries: usize,
}

/// A system divided into parts, which a team computes.
pub struct Substructure<'a> {
    partition: Partition,
    /// Number of each unknown within its part or within the interface.
    place: Vec<u32>,
    /// Unknowns of the interface as the partition makes it, ascending.
    interface: Vec<u32>,
    /// Most unknowns of the interface, those that join it included.
    interface_limit: usize,
    team: Box<dyn Team + 'a>,
    factors: Option<Factors>,
}

/// What the interface's equations need of all factors.
#[derive(Debug)]
struct Factors {
    parts: Vec<FactoredPart>,
    interface: Interface,
    unknowns: usize,
}

/// What the others need to know of a part.
#[derive(Debug)]
struct FactoredPart {
    interior: Vec<u32>,
    /// Numbers of the rows and columns of its Schur complement in the interface.
    border: Vec<u32>,
}

impl<'a> Substructure<'a> {
    /// Divides the unknowns of a matrix into at most `parts` parts. Its values do not matter.
    pub fn new(matrix: &Csr, parts: usize) -> Result<Self, SolveError> {
        let partition =
            partition::partition(matrix, parts).map_err(|what| SolveError::Partition { what })?;
        let mut counts = vec![0u32; partition.parts];
        let mut interface = Vec::new();
        let place = (0..)
            .zip(&partition.part_of)
            .map(|(unknown, &part)| {
                if part == INTERFACE {
                    interface.push(unknown);
                    interface.len() as u32 - 1
                } else {
                    counts[part as usize] += 1;
                    counts[part as usize] - 1
                }
            })
            .collect();
        Ok(Self {
            team: Box::new(Threads::new(partition.parts)),
            interface_limit: interface::most_unknowns(),
            partition,
            place,
            interface,
            factors: None,
        })
    }

    /// The same division, whose parts another team computes.
    pub fn by(self, team: impl Team + 'a) -> Self {
        Self {
            team: Box::new(team),
            factors: None,
            ..self
        }
    }

    /// Parts.
    pub fn parts(&self) -> usize {
        self.partition.parts
    }

    /// Factorises `matrix`, whose pattern is that of the division.
    pub fn factor(&mut self, matrix: &Csr) -> Result<Sizes, SolveError> {
        assert_eq!(
            matrix.rows(),
            self.place.len(),
            "the division is that of another matrix"
        );
        self.factors = None;
        // Before the parts make complements that may be as large.
        self.check_interface(self.interface.len())?;
        let inputs = part::inputs(matrix, &self.partition, &self.place);
        let outputs = self.team.factor(&inputs)?;
        let mut unknowns = self.interface.len();
        let mut parts = Vec::with_capacity(inputs.len());
        // Names of the interface's unknowns in the whole system, those that join it behind the others.
        let mut names = self.interface.clone();
        for (input, output) in inputs.into_iter().zip(&outputs) {
            let delayed = &output.schur.delayed;
            let joined = unknowns as u32..(unknowns + delayed.len()) as u32;
            names.extend(delayed.iter().map(|&place| input.interior[place as usize]));
            unknowns += delayed.len();
            parts.push(FactoredPart {
                interior: input.interior,
                border: joined.chain(input.border).collect(),
            });
        }
        self.check_interface(unknowns)?;
        let schur = self.assemble(matrix, unknowns, &parts, &outputs);
        let scales = column_scales(matrix, &names);
        let interface = Interface::new(schur, &scales).map_err(|error| match error {
            SolveError::Singular { unknown } => SolveError::Singular {
                unknown: names[unknown] as usize,
            },
            other => other,
        })?;
        let sizes = Sizes {
            parts: self.partition.parts,
            interface: unknowns,
            entries: outputs.iter().map(|output| output.entries).sum::<usize>()
                + unknowns * unknowns,
        };
        self.factors = Some(Factors {
            parts,
            interface,
            unknowns,
        });
        Ok(sizes)
    }

    fn check_interface(&self, found: usize) -> Result<(), SolveError> {
        let limit = self.interface_limit;
        match found > limit {
            true => Err(SolveError::Interface { found, limit }),
            false => Ok(()),
        }
    }

    /// S: entries between interface unknowns, and the parts' complements.
    fn assemble(
        &self,
        matrix: &Csr,
        unknowns: usize,
        parts: &[FactoredPart],
        outputs: &[PartOutput],
    ) -> Square {
        let mut schur = Square::zeros(unknowns);
        for (row, &unknown) in self.interface.iter().enumerate() {
            let (columns, values) = matrix.row(unknown as usize);
            for (&column, value) in columns.iter().zip(values) {
                if self.partition.part_of[column as usize] == INTERFACE {
                    schur[(row, self.place[column as usize] as usize)] += value;
                }
            }
        }
        for (part, output) in parts.iter().zip(outputs) {
            let size = part.border.len();
            for (place, &column) in part.border.iter().enumerate() {
                let values = &output.schur.values[place * size..(place + 1) * size];
                for (&row, value) in part.border.iter().zip(values) {
                    schur[(row as usize, column as usize)] += value;
                }
            }
        }
        schur
    }

    /// Solves A x = b with the present factors, by one forward and one back substitution. There must be factors.
    pub fn solve(&mut self, b: &[f64]) -> Result<Vec<f64>, SolveError> {
        let factors = self.factors.as_ref();
        let factors = factors.expect("`factor` was called and did not fail");
        let at = |values: &[f64], unknowns: &[u32]| -> Vec<f64> {
            let found = unknowns.iter().map(|&unknown| values[unknown as usize]);
            found.collect()
        };
        let parts = &factors.parts;
        let interiors = parts.iter().map(|part| at(b, &part.interior));
        let added = self.team.forward(interiors.collect())?;
        let mut inner = at(b, &self.interface);
        inner.resize(factors.unknowns, 0.0);
        for (part, added) in parts.iter().zip(&added) {
            for (&unknown, value) in part.border.iter().zip(added) {
                inner[unknown as usize] += value;
            }
        }
        factors.interface.solve(&mut inner);
        let borders = parts.iter().map(|part| at(&inner, &part.border));
        let interiors = self.team.backward(borders.collect())?;
        let mut x = vec![0.0; b.len()];
        for (value, &unknown) in inner.iter().zip(&self.interface) {
            x[unknown as usize] = *value;
        }
        for (part, interior) in parts.iter().zip(&interiors) {
            for (&unknown, value) in part.interior.iter().zip(interior) {
                x[unknown as usize] = *value;
            }
        }
        Ok(x)
    }
}

/// What fits into the memory that is available, for each of several parts that share it.
pub(crate) fn fill_limit(parts: usize) -> FillLimit {
    let available = memory::available_bytes().unwrap_or(u64::MAX);
    let entries = available / ENTRY_BYTES / parts as u64;
    FillLimit {
        entries: usize::try_from(entries).unwrap_or(usize::MAX),
        multiplications: MOST_MULTIPLICATIONS,
    }
}

/// The largest entry of some columns.
fn column_scales(matrix: &Csr, columns: &[u32]) -> Vec<f64> {
    let mut largest = vec![0.0f64; matrix.columns()];
    for (&column, value) in matrix.indices().iter().zip(matrix.values()) {
        let largest = &mut largest[column as usize];
        *largest = largest.max(value.abs());
    }
    columns
        .iter()
        .map(|&column| largest[column as usize])
        .collect()
}

pub(crate) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}
