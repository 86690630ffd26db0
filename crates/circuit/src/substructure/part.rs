//! One part: its block of the matrix, its factors, and its share of the interface's equations.
//!
//! `super` makes a [`PartInput`] for each part and gives it to a [`Team`](super::Team): to a thread, or to another process (`crate::remote`). Input
//! and output are plain data that name unknowns by number.

use super::partition::{INTERFACE, Partition};
use serde::{Deserialize, Serialize};
use tsumuji_solve::local::{BorderedCholesky, FillLimit, LuError, PartialLu, Schur};
use tsumuji_solve::system::Csr;

/// What a part needs.
#[derive(Debug, Clone, PartialEq)]
pub struct PartInput {
    /// Numbers of its interior unknowns in the whole system, ascending.
    pub interior: Vec<u32>,
    /// Numbers of those interface unknowns in the interface to which it couples, ascending.
    pub border: Vec<u32>,
    /// Interior unknowns first, then the border; entries between unknowns of the border are left out.
    pub block: Csr,
}

/// What a part gives to the interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartOutput {
    /// The Schur complement of its interior, and interior unknowns that join the interface.
    pub schur: Schur,
    /// Entries of its factors.
    pub entries: usize,
}

/// What a part keeps.
#[derive(Debug)]
pub struct PartFactors {
    elimination: Elimination,
    interior: usize,
    /// Unknowns of its border as the partition made it.
    border: usize,
    /// What the forward substitution leaves for the back substitution.
    forwarded: Vec<f64>,
}

/// Factors of a part whose interior holds resistors, diodes and independent sources only, or of another one.
#[derive(Debug)]
enum Elimination {
    Symmetric(Box<BorderedCholesky>),
    General(Box<PartialLu>),
}

/// Makes the input of every part. `place` is the number of each unknown within its part or within the interface.
pub(super) fn inputs(matrix: &Csr, partition: &Partition, place: &[u32]) -> Vec<PartInput> {
    let mut interiors: Vec<Vec<u32>> = vec![Vec::new(); partition.parts];
    let mut borders: Vec<Vec<u32>> = vec![Vec::new(); partition.parts];
    for row in 0..matrix.rows() {
        let part = partition.part_of[row];
        if part != INTERFACE {
            interiors[part as usize].push(row as u32);
        }
        for &column in matrix.row(row).0 {
            match (part, partition.part_of[column as usize]) {
                (INTERFACE, INTERFACE) => {}
                (INTERFACE, other) => borders[other as usize].push(row as u32),
                (part, INTERFACE) => borders[part as usize].push(column),
                _ => {}
            }
        }
    }
    let pairs = interiors.into_iter().zip(borders).enumerate();
    pairs
        .map(|(part, (interior, mut border))| {
            border.sort_unstable();
            border.dedup();
            input(matrix, partition, place, part as u32, interior, &border)
        })
        .collect()
}

/// The input of one part, whose border is given by numbers of the whole system.
fn input(
    matrix: &Csr,
    partition: &Partition,
    place: &[u32],
    part: u32,
    interior: Vec<u32>,
    border: &[u32],
) -> PartInput {
    let n = interior.len() + border.len();
    let rows = interior.iter().map(|row| (false, *row));
    let rows = rows.chain(border.iter().map(|row| (true, *row)));
    let block = Csr::by_rows(n, 0, rows, |(is_border, row), indices, values| {
        let (columns, entries) = matrix.row(row as usize);
        let pairs = |of: u32| {
            let pairs = columns.iter().zip(entries);
            pairs.filter(move |(column, _)| partition.part_of[**column as usize] == of)
        };
        for (&column, &entry) in pairs(part) {
            indices.push(place[column as usize]);
            values.push(entry);
        }
        // What couples border to border is no part's.
        for (&column, &entry) in pairs(INTERFACE).filter(|_| !is_border) {
            let at = border
                .binary_search(&column)
                .expect("the border has what the interior couples to");
            indices.push((interior.len() + at) as u32);
            values.push(entry);
        }
    });
    let border = border
        .iter()
        .map(|&unknown| place[unknown as usize])
        .collect();
    PartInput {
        interior,
        border,
        block,
    }
}

impl PartInput {
    /// Eliminates the interior.
    pub fn factor(&self, limit: FillLimit) -> Result<(PartFactors, PartOutput), LuError> {
        PartFactors::new(&self.block, self.interior.len(), limit)
    }
}

impl PartFactors {
    /// Eliminates the first `interior` unknowns of a square block.
    pub fn new(
        block: &Csr,
        interior: usize,
        limit: FillLimit,
    ) -> Result<(Self, PartOutput), LuError> {
        let (elimination, schur, entries) = match BorderedCholesky::new(block, interior, limit)? {
            Some((factors, values)) => {
                let entries = factors.entries();
                let schur = Schur {
                    delayed: Vec::new(),
                    values,
                };
                (Elimination::Symmetric(Box::new(factors)), schur, entries)
            }
            None => {
                let (factors, schur) = PartialLu::new(block, interior, limit)?;
                let entries = factors.entries();
                (Elimination::General(Box::new(factors)), schur, entries)
            }
        };
        let factors = Self {
            elimination,
            interior,
            border: block.rows() - interior,
            forwarded: Vec::new(),
        };
        Ok((factors, PartOutput { schur, entries }))
    }

    /// From the right-hand side of the interior: what the part adds to that of the interface, in the order of the Schur complement. `None`: these are
    /// not as many numbers as the interior has unknowns.
    pub fn forward(&mut self, interior: Vec<f64>) -> Option<Vec<f64>> {
        if interior.len() != self.interior {
            return None;
        }
        let mut b = interior;
        b.resize(self.interior + self.border, 0.0);
        self.forwarded = match &self.elimination {
            Elimination::Symmetric(factors) => factors.forward(&b),
            Elimination::General(factors) => factors.forward(&b),
        };
        Some(self.forwarded[self.pivots()..].to_vec())
    }

    /// Where in the vector of the forward substitution the interface begins.
    fn pivots(&self) -> usize {
        match &self.elimination {
            Elimination::Symmetric(_) => self.interior,
            Elimination::General(factors) => factors.pivots(),
        }
    }

    /// The interior of the solution, from the interface's solution in the order of the Schur complement. `None`: these are not as many numbers as that
    /// has rows, or [`PartFactors::forward`] was not called since the last call.
    pub fn backward(&mut self, border: &[f64]) -> Option<Vec<f64>> {
        let mut y = std::mem::take(&mut self.forwarded);
        let pivots = self.pivots();
        if y.len() != pivots + border.len() {
            return None;
        }
        y[pivots..].copy_from_slice(border);
        let mut x = match &self.elimination {
            Elimination::Symmetric(factors) => factors.backward(y),
            Elimination::General(factors) => factors.backward(y),
        };
        x.truncate(self.interior);
        Some(x)
    }
}
