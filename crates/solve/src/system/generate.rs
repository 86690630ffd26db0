//! Generated systems: `dense:N`, `poisson2d:K`, `poisson3d:K`, `circuit:N`.
//!
//! Every row is made from (specification, seed, row) alone, so a worker can make its own rows without the others, and gets bit for bit those of the
//! whole system. b belongs to a known solution.
//!
//! Random numbers are words of a counter-based generator ([`word`]): no state, no order.

use super::{Csr, Dense, Matrix, RowBlock, RowValues, System, SystemError};
use crate::local::kernels;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tsumuji_numbers::memory;

/// Diagonal of `dense` over the sum of its off-diagonal magnitudes: strict dominance that takes Gauss–Seidel some 18
/// laps to 1e-10.
pub(crate) const DENSE_DOMINANCE: f64 = 1.766;
/// Levels of `circuit` groups: of 8, 32, 128 … nodes.
const CIRCUIT_LEVELS: u32 = 12;
/// One node in this many of a `circuit` has a resistor to ground.
const CIRCUIT_GROUND_ONE_IN: u64 = 4;

/// Kind and size of a generated system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Generate {
    /// n×n, every off-diagonal entry −U(0, 1), diagonal 1.766 times their sum.
    Dense {
        /// Rows.
        n: usize,
    },
    /// Laplace's equation on a k×k grid, 5-point, fixed boundary.
    Poisson2d {
        /// Points a side.
        k: usize,
    },
    /// Laplace's equation on a k×k×k grid, 7-point, fixed boundary.
    Poisson3d {
        /// Points a side.
        k: usize,
    },
    /// Conductances of a random resistive network of n nodes: a chain, and in nested groups of 8, 32, 128 … nodes ever
    /// fewer far connections; values over three decades; one node in four grounded. Symmetric and weakly dominant, with an
    /// iteration radius just below 1, like real circuits.
    Circuit {
        /// Nodes.
        n: usize,
    },
}

/// The solution to which a right-hand side belongs.
///
/// All ones are easy to check, but a gift to methods for which A·1 is special: GMRES needs one iteration for `dense`, whose rows are all dominant alike,
/// and a factorisation that keeps row sums is exact for it. Comparisons of methods want the random one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Solution {
    /// x = 1.
    #[default]
    Ones,
    /// Uniform in (−1, 1), by the seed.
    Random,
}

/// Stream of the random numbers of solutions: beyond that of any row.
const SOLUTION_STREAM: u64 = u64::MAX;

impl Solution {
    /// Its `n` elements.
    pub fn elements(self, n: usize, seed: u64) -> Vec<f64> {
        match self {
            Self::Ones => vec![1.0; n],
            Self::Random => (0..n as u64)
                .map(|k| 2.0 * unit(word(seed, SOLUTION_STREAM, k)) - 1.0)
                .collect(),
        }
    }
}

/// Why no system is generated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// The text is no specification.
    #[error(
        "cannot generate '{text}': {what}; accepted are dense:N, poisson2d:K, poisson3d:K and circuit:N, for example \
         dense:2000 or poisson2d:300"
    )]
    Specification {
        /// The text.
        text: String,
        /// What is wrong with it.
        what: String,
    },
    /// It would not fit into memory.
    #[error(
        "{name} needs {} of memory, but only {} are available; choose a smaller one",
        memory::human(*.needed), memory::human(u128::from(*.available))
    )]
    Memory {
        /// The specification.
        name: String,
        /// Bytes needed.
        needed: u128,
        /// Bytes available.
        available: u64,
    },
    /// The generated system cannot be relaxed.
    #[error(transparent)]
    System(#[from] SystemError),
}

impl std::str::FromStr for Generate {
    type Err = GenerateError;

    fn from_str(text: &str) -> Result<Self, GenerateError> {
        let refuse = |what: String| GenerateError::Specification {
            text: text.into(),
            what,
        };
        let (kind, size) = text
            .split_once(':')
            .ok_or_else(|| refuse("there is no ':' and size".into()))?;
        let (least, power) = match kind {
            "dense" | "circuit" => (2, 1),
            "poisson2d" => (2, 2),
            "poisson3d" => (2, 3),
            _ => return Err(refuse(format!("there is no kind '{kind}'"))),
        };
        let number: usize = size
            .parse()
            .map_err(|_| refuse(format!("'{size}' is not a whole number")))?;
        if number < least {
            return Err(refuse(format!("the size must be at least {least}")));
        }
        let limit = super::csr::INDEX_LIMIT;
        if number.checked_pow(power).is_none_or(|rows| rows > limit) {
            return Err(refuse(format!("it has more than {limit} rows")));
        }
        Ok(match kind {
            "dense" => Generate::Dense { n: number },
            "circuit" => Generate::Circuit { n: number },
            "poisson2d" => Generate::Poisson2d { k: number },
            _ => Generate::Poisson3d { k: number },
        })
    }
}

impl std::fmt::Display for Generate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Generate::Dense { n } => write!(f, "dense:{n}"),
            Generate::Poisson2d { k } => write!(f, "poisson2d:{k}"),
            Generate::Poisson3d { k } => write!(f, "poisson3d:{k}"),
            Generate::Circuit { n } => write!(f, "circuit:{n}"),
        }
    }
}

impl Generate {
    /// Rows of the system.
    pub fn n(&self) -> usize {
        match *self {
            Generate::Dense { n } | Generate::Circuit { n } => n,
            Generate::Poisson2d { k } => k * k,
            Generate::Poisson3d { k } => k * k * k,
        }
    }

    /// Whether every entry is stored.
    pub fn is_dense(&self) -> bool {
        matches!(self, Generate::Dense { .. })
    }

    /// Memory the whole system takes, x and b included; a little more than needed for sparse ones.
    pub fn memory_bytes(&self) -> u128 {
        let n = self.n() as u128;
        match self {
            Generate::Dense { .. } => self.stored() * 8 + 2 * n * 8,
            _ => self.stored() * 12 + n * (8 + 16),
        }
    }

    /// About how many entries are stored.
    pub(super) fn stored(&self) -> u128 {
        let n = self.n() as u128;
        n * match self {
            Generate::Dense { .. } => n,
            Generate::Poisson2d { .. } => 5,
            Generate::Poisson3d { .. } | Generate::Circuit { .. } => 7,
        }
    }

    /// About how many entries of other rows couple the rows before a place to those behind it, in both directions.
    pub(super) fn crossing(&self) -> f64 {
        2.0 * match *self {
            Generate::Dense { n } => (n * n) as f64 / 4.0,
            Generate::Poisson2d { k } => k as f64,
            Generate::Poisson3d { k } => (k * k) as f64,
            // At most half of a group has its partners in the other half; each level connects a third as many pairs as the one below.
            Generate::Circuit { n } => (0..CIRCUIT_LEVELS as i32)
                .take_while(|&level| 2.0 * 4f64.powi(level) < n as f64)
                .map(|level| 4.0 * (4.0 / 3.0f64).powi(level))
                .sum::<f64>(),
        }
    }

    /// Refuses a system that would not fit into the memory available now.
    pub fn check_memory(&self) -> Result<(), GenerateError> {
        let needed = self.memory_bytes();
        match memory::available_bytes() {
            Some(available) if needed > u128::from(available) => Err(GenerateError::Memory {
                name: self.to_string(),
                needed,
                available,
            }),
            _ => Ok(()),
        }
    }

    /// Makes the whole system with a solution of ones.
    pub fn system(&self, seed: u64) -> Result<System, GenerateError> {
        self.system_for(seed, Solution::Ones)
    }

    /// Makes the whole system, on as many threads as there are cores if it is dense.
    pub fn system_for(&self, seed: u64, solution: Solution) -> Result<System, GenerateError> {
        self.check_memory()?;
        let matrix = match *self {
            Generate::Dense { n } => {
                let values = dense_rows(n, 0..n, seed);
                Matrix::Dense(Dense::new(n, values).expect("n rows of n"))
            }
            _ => Matrix::Sparse(self.sparse_rows(0..self.n(), seed)),
        };
        let rhs = matrix.times(&solution.elements(self.n(), seed));
        Ok(System::new(matrix, Some(rhs), self.to_string())?)
    }

    /// Makes rows `rows` alone: bit for bit those of [`Generate::system_for`]. Panics unless they are a non-empty range.
    pub fn rows(&self, rows: Range<usize>, seed: u64, solution: Solution) -> RowBlock {
        let n = self.n();
        assert!(!rows.is_empty() && rows.end <= n, "rows {rows:?} of {n}");
        let x = solution.elements(n, seed);
        let mut rhs = vec![0.0; rows.len()];
        let values = match self {
            Generate::Dense { .. } => {
                let values = dense_rows(n, rows.clone(), seed);
                kernels::multiply(&values, &x, &mut rhs);
                RowValues::Dense(values)
            }
            _ => {
                let csr = self.sparse_rows(rows.clone(), seed);
                csr.multiply(0..rows.len(), &x, &mut rhs);
                RowValues::Sparse(csr)
            }
        };
        RowBlock {
            rows,
            columns: n,
            values,
            rhs,
            scales_rows: false,
        }
    }

    fn sparse_rows(&self, rows: Range<usize>, seed: u64) -> Csr {
        let mut entries = Vec::new();
        let stored = rows.len() * (self.stored() / self.n() as u128) as usize;
        Csr::by_rows(self.n(), stored, rows, |row, indices, values| {
            entries.clear();
            match *self {
                Generate::Poisson2d { k } => poisson_row(row, k, 2, &mut entries),
                Generate::Poisson3d { k } => poisson_row(row, k, 3, &mut entries),
                Generate::Circuit { n } => circuit_row(row, n, seed, &mut entries),
                Generate::Dense { .. } => unreachable!("dense rows are made elsewhere"),
            }
            entries.sort_by_key(|&(column, _)| column);
            indices.extend(entries.iter().map(|&(column, _)| column as u32));
            values.extend(entries.iter().map(|&(_, value)| value));
        })
    }
}

/// Word `counter` of stream `stream` under `seed`: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) over a
/// counter whose origin is itself a mix of seed and stream.
pub(super) fn word(seed: u64, stream: u64, counter: u64) -> u64 {
    element(origin(seed, stream), counter)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn origin(seed: u64, stream: u64) -> u64 {
    mix(mix(seed.wrapping_add(GOLDEN)).wrapping_add(stream.wrapping_mul(0xd134_2543_de82_ef95)))
}

#[inline]
fn element(origin: u64, counter: u64) -> u64 {
    mix(origin.wrapping_add((counter + 1).wrapping_mul(GOLDEN)))
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number strictly between 0 and 1 from a word.
#[inline]
fn unit(word: u64) -> f64 {
    ((word >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// Rows of `dense:n`, divided among the cores.
fn dense_rows(n: usize, rows: Range<usize>, seed: u64) -> Vec<f64> {
    let mut values = vec![0.0; rows.len() * n];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = rows.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (part, chunk) in values.chunks_mut(share * n).enumerate() {
            let first = rows.start + part * share;
            scope.spawn(move || {
                for (own, values) in chunk.chunks_mut(n).enumerate() {
                    dense_row(first + own, seed, values);
                }
            });
        }
    });
    values
}

fn dense_row(row: usize, seed: u64, values: &mut [f64]) {
    let origin = origin(seed, row as u64);
    for (column, value) in values.iter_mut().enumerate() {
        *value = -unit(element(origin, column as u64));
    }
    values[row] = 0.0;
    // In chunks, so that the sum is both quick and the same everywhere.
    let magnitude: f64 = -values
        .chunks(64)
        .map(|chunk| chunk.iter().sum::<f64>())
        .sum::<f64>();
    values[row] = DENSE_DOMINANCE * magnitude;
}

fn poisson_row(row: usize, k: usize, dimensions: u32, entries: &mut Vec<(usize, f64)>) {
    entries.push((row, 2.0 * f64::from(dimensions)));
    let mut stride = 1;
    for _ in 0..dimensions {
        let coordinate = row / stride % k;
        if coordinate > 0 {
            entries.push((row - stride, -1.0));
        }
        if coordinate + 1 < k {
            entries.push((row + stride, -1.0));
        }
        stride *= k;
    }
}

/// Streams of words of a circuit: by kind, so that no two uses share a word.
const STREAM_CHAIN: u64 = 1 << 40;
const STREAM_GROUND: u64 = 2 << 40;
const STREAM_PAIRING: u64 = 3 << 40;
const STREAM_EDGE: u64 = 4 << 40;

/// A connection is decided by its lower node, so that both ends agree on it without knowing each other.
fn circuit_row(row: usize, n: usize, seed: u64, entries: &mut Vec<(usize, f64)>) {
    let mut diagonal = 0.0;
    let mut connect = |other: usize, conductance: f64| {
        diagonal += conductance;
        match entries.iter_mut().find(|entry| entry.0 == other) {
            Some(entry) => entry.1 -= conductance,
            None => entries.push((other, -conductance)),
        }
    };
    if row > 0 {
        connect(
            row - 1,
            conductance(word(seed, STREAM_CHAIN, row as u64 - 1)),
        );
    }
    if row + 1 < n {
        connect(row + 1, conductance(word(seed, STREAM_CHAIN, row as u64)));
    }
    let mut group = 8;
    // Words below `chance` connect: each level has a third as many pairs as the one below.
    let mut chance = u64::MAX;
    for level in 0..u64::from(CIRCUIT_LEVELS) {
        // Within a group nodes are paired by a reflection, which is its own inverse.
        let base = row - row % group;
        let centre = word(seed, STREAM_PAIRING + level, (base / group) as u64) % group as u64;
        let partner = base + (centre as usize + group - (row - base)) % group;
        let edge = word(seed, STREAM_EDGE + level, row.min(partner) as u64);
        if partner != row && partner < n && edge <= chance {
            connect(partner, conductance(mix(edge)));
        }
        if group >= n {
            break;
        }
        group *= 4;
        chance /= 3;
    }
    // Node 0 is always grounded: otherwise a small network might be singular. The conductance to ground is of the size of the others at the node (1/4
    // … 4 times): a supply, not a leak.
    let ground = word(seed, STREAM_GROUND, row as u64);
    if row == 0 || ground.is_multiple_of(CIRCUIT_GROUND_ONE_IN) {
        diagonal *= 1.0 + (1.0 + unit(mix(ground))) * 2f64.powi((mix(ground) % 4) as i32 - 2);
    }
    entries.push((row, diagonal));
}

/// A conductance over three decades: (1 … 2) · 2^(−5 … 4), made without a logarithm so that it is the same everywhere.
fn conductance(word: u64) -> f64 {
    let exponent = (word % 10) as i32 - 5;
    (1.0 + unit(mix(word))) * 2f64.powi(exponent)
}

#[cfg(test)]
mod tests;
