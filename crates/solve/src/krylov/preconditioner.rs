//! Preconditioners of one part: they need its own rows and columns only, so parts apply them without exchange (block Jacobi between parts).
//!
//! Incomplete LU without fill (Meijerink and van der Vorst, 1977), on request *modified*: what would be fill is subtracted from the diagonal instead
//! (Gustafsson, 1978), which for M-matrices of grids and circuits takes a fraction of the iterations. For symmetric rows both are symmetric, and so fit
//! conjugate gradients.
//!
//! Invariant: `apply` of finite numbers gives finite numbers, and each pivot of a symmetric factorisation is positive: where that fails the diagonal
//! alone is used.

use crate::local::{BlockLu, diagonal_block, kernels};
use crate::system::{Csr, RowBlock, RowValues};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Which preconditioner to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Preconditioning {
    /// The diagonal.
    Jacobi,
    /// Incomplete LU without fill, for sparse rows.
    Ilu,
    /// The same, with the row sums kept.
    ModifiedIlu,
    /// Complete LU.
    Lu,
    /// One lap of relaxation, forwards and back.
    Lap,
}

impl Preconditioning {
    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jacobi => "Jacobi",
            Self::Ilu => "ILU(0)",
            Self::ModifiedIlu => "modified ILU(0)",
            Self::Lu => "LU",
            Self::Lap => "a lap of relaxation",
        }
    }
}

impl std::fmt::Display for Preconditioning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Part of the fill that is subtracted from the diagonal: all of it may make a pivot zero where rows sum to zero.
const MODIFIED: f64 = 0.995;
/// The same for one part of several, whose rows lack what couples them to other parts.
const MODIFIED_PART: f64 = 0.98;
/// A pivot below this part of the diagonal entry makes solutions explode.
const PIVOT_LEAST: f64 = 1e-4;

/// M ≈ A on the own rows and columns.
#[derive(Debug)]
pub enum Preconditioner {
    /// 1 / aᵢᵢ.
    Jacobi(Vec<f64>),
    /// L U with unit L.
    Ilu(Factors),
    /// Complete factors.
    Lu(Complete),
    /// Symmetric Gauss–Seidel: (D + L) D⁻¹ (D + U).
    Lap,
}

/// Complete factors. Only one thread uses them; they have work space.
#[derive(Debug)]
pub struct Complete(Mutex<BlockLu>);

/// Incomplete factors L and U, of which U is divided by its pivots row by row.
#[derive(Debug)]
pub struct Factors {
    lower: Triangle,
    upper: Triangle,
    inverse_pivots: Vec<f64>,
    is_modified: bool,
}

/// What lies beside the diagonal on one side, in the order in which it is used: L from the first row on, U from the last. So both are read once, from front
/// to back. The entry in the column of the row that is just done stands by itself: what it multiplies is still in a register, and comes last. A row without
/// other entries has a zero in the column of the first row that is done, because a processor guesses wrong where rows with one and without one alternate.
#[derive(Debug)]
pub(super) struct Triangle {
    /// Of each row the entry in the column of the row before, 0 if there is none.
    neighbours: Vec<f64>,
    /// Other entries of each row.
    counts: Vec<u32>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Triangle {
    /// With room for so many rows and entries.
    fn with_capacity(rows: usize, entries: usize) -> Self {
        Self {
            neighbours: Vec::with_capacity(rows),
            counts: Vec::with_capacity(rows),
            columns: Vec::with_capacity(entries.max(rows)),
            values: Vec::with_capacity(entries.max(rows)),
        }
    }

    /// Appends a row. `first` and `before`: the columns of the first row that is done, and of the one just done.
    fn push(&mut self, first: u32, before: Option<u32>, entries: impl Iterator<Item = (u32, f64)>) {
        let start = self.columns.len();
        let mut neighbour = 0.0;
        for (column, value) in entries {
            if Some(column) == before {
                neighbour = value;
            } else {
                self.columns.push(column);
                self.values.push(value);
            }
        }
        let is_first = self.counts.is_empty();
        if self.columns.len() == start && !is_first {
            self.columns.push(first);
            self.values.push(0.0);
        }
        self.neighbours.push(neighbour);
        self.counts.push((self.columns.len() - start) as u32);
    }

    /// Neighbour, columns and values of each row.
    #[inline(always)]
    pub(super) fn rows(&self) -> impl Iterator<Item = (f64, &[u32], &[f64])> {
        let (mut columns, mut values) = (&self.columns[..], &self.values[..]);
        let rows = self.neighbours.iter().zip(&self.counts);
        rows.map(move |(neighbour, &count)| {
            let (own_columns, own_values);
            (own_columns, columns) = columns.split_at(count as usize);
            (own_values, values) = values.split_at(count as usize);
            (*neighbour, own_columns, own_values)
        })
    }

    /// Renews the elements of `rows`, one for each row of the triangle: `first` of a row, less what its entries take of `z`.
    #[inline(always)]
    fn solve(
        &self,
        rows: impl Iterator<Item = usize>,
        z: &mut [f64],
        first: impl Fn(usize, &[f64]) -> f64,
    ) {
        let mut before = 0.0;
        for (row, (neighbour, columns, values)) in rows.zip(self.rows()) {
            let mut sum = first(row, z);
            for (&column, value) in columns.iter().zip(values) {
                sum -= value * z[column as usize];
            }
            before = sum - neighbour * before;
            z[row] = before;
        }
    }
}

impl Preconditioner {
    /// The one asked for, of `rows` of `block`, or the nearest that exists: dense rows have no incomplete factors.
    pub fn new(block: &RowBlock, rows: &Range<usize>, which: Preconditioning) -> Self {
        match which {
            Preconditioning::Lap => return Self::Lap,
            Preconditioning::Lu => {
                if let Ok(lu) = BlockLu::new(block, rows) {
                    return Self::Lu(Complete(Mutex::new(lu)));
                }
            }
            _ => {}
        }
        if let (RowValues::Sparse(csr), false) = (&block.values, which == Preconditioning::Jacobi) {
            let modified = if rows.len() == block.columns {
                MODIFIED
            } else {
                MODIFIED_PART
            };
            let modified = match which {
                Preconditioning::ModifiedIlu => &[modified, 0.0][..],
                _ => &[0.0],
            };
            let make = |modified: &f64| Factors::new(diagonal_block(block, csr, rows), *modified);
            if let Some(factors) = modified.iter().find_map(make) {
                return Self::Ilu(factors);
            }
        }
        let inverse = |row| 1.0 / block.diagonal(row);
        Self::Jacobi(rows.clone().map(inverse).collect())
    }

    /// The name for reports.
    pub fn name(&self) -> &'static str {
        self.which().name()
    }

    /// The name if it is not the one that was asked for.
    pub(crate) fn differs(&self, asked: Preconditioning) -> Option<&'static str> {
        (self.which() != asked).then_some(self.name())
    }

    fn which(&self) -> Preconditioning {
        match self {
            Self::Jacobi(_) => Preconditioning::Jacobi,
            Self::Ilu(factors) if factors.is_modified => Preconditioning::ModifiedIlu,
            Self::Ilu(_) => Preconditioning::Ilu,
            Self::Lu(_) => Preconditioning::Lu,
            Self::Lap => Preconditioning::Lap,
        }
    }

    /// `z` = M⁻¹ `r`, both of `rows` of the block that it was made of.
    pub(super) fn apply(&self, block: &RowBlock, rows: &Range<usize>, r: &[f64], z: &mut [f64]) {
        match self {
            Self::Jacobi(inverse) => {
                for ((z, r), inverse) in z.iter_mut().zip(r).zip(inverse) {
                    *z = r * inverse;
                }
            }
            Self::Ilu(factors) => factors.solve(r, z),
            Self::Lu(Complete(lu)) => {
                z.copy_from_slice(r);
                lu.lock().unwrap_or_else(PoisonError::into_inner).solve(z);
            }
            Self::Lap => match &block.values {
                RowValues::Sparse(csr) => lap_sparse(block, csr, rows, r, z),
                RowValues::Dense(values) => lap_dense(block, values, rows, r, z),
            },
        }
    }
}

/// A lap over sparse rows, from z = 0, and one back.
fn lap_sparse(block: &RowBlock, csr: &Csr, rows: &Range<usize>, r: &[f64], z: &mut [f64]) {
    let offset = rows.start - block.rows.start;
    // Σ aᵢⱼ zⱼ on one side of the diagonal, and aᵢᵢ.
    let beside = |own: usize, z: &[f64], before: bool| {
        let (columns, values) = csr.row(offset + own);
        let (mut sum, mut diagonal) = (0.0, 0.0);
        for (&column, value) in columns.iter().zip(values) {
            let column = column as usize;
            if !rows.contains(&column) {
                continue;
            }
            let at = column - rows.start;
            if at == own {
                diagonal = *value;
            } else if (at < own) == before {
                sum += value * z[at];
            }
        }
        (sum, diagonal)
    };
    for own in 0..r.len() {
        let (sum, diagonal) = beside(own, z, true);
        z[own] = (r[own] - sum) / diagonal;
    }
    for own in (0..r.len()).rev() {
        let (sum, diagonal) = beside(own, z, false);
        z[own] -= sum / diagonal;
    }
}

/// The same over dense rows.
fn lap_dense(block: &RowBlock, values: &[f64], rows: &Range<usize>, r: &[f64], z: &mut [f64]) {
    let first = rows.start - block.rows.start;
    let row = |own: usize| {
        let start = (first + own) * block.columns + rows.start;
        &values[start..start + rows.len()]
    };
    for own in 0..r.len() {
        let row = row(own);
        z[own] = (r[own] - kernels::dot(&row[..own], &z[..own])) / row[own];
    }
    for own in (0..r.len()).rev() {
        let row = row(own);
        z[own] -= kernels::dot(&row[own + 1..], &z[own + 1..]) / row[own];
    }
}

impl Factors {
    /// `modified`: part of the fill that is subtracted from the diagonal. `None`: a pivot became too small, or changed its sign.
    fn new(matrix: Csr, modified: f64) -> Option<Self> {
        const NONE: usize = usize::MAX;
        let n = matrix.rows();
        let (offsets, indices, mut values) = matrix.into_parts();
        let mut upper = Vec::with_capacity(n);
        let mut inverse_pivots = Vec::with_capacity(n);
        // Where each column's entry of the present row lies.
        let mut place = vec![NONE; n];
        for row in 0..n {
            let entries = offsets[row]..offsets[row + 1];
            let columns = &indices[entries.clone()];
            let below = columns.partition_point(|&column| (column as usize) < row);
            let diagonal = entries.start + below;
            if columns.get(below) != Some(&(row as u32)) {
                return None;
            }
            for (entry, &column) in entries.clone().zip(columns) {
                place[column as usize] = entry;
            }
            let before = values[diagonal];
            let mut dropped = 0.0;
            for (entry, &column) in (entries.start..diagonal).zip(columns) {
                let k = column as usize;
                let factor = values[entry] * inverse_pivots[k];
                values[entry] = factor;
                let above = upper[k]..offsets[k + 1];
                for (source, &column) in above.clone().zip(&indices[above]) {
                    let product = factor * values[source];
                    match place[column as usize] {
                        NONE => dropped += product,
                        target => values[target] -= product,
                    }
                }
            }
            values[diagonal] -= modified * dropped;
            for &column in columns {
                place[column as usize] = NONE;
            }
            let pivot = values[diagonal];
            if !(pivot.is_finite() && pivot / before > PIVOT_LEAST) {
                return None;
            }
            upper.push(diagonal + 1);
            inverse_pivots.push(1.0 / pivot);
        }
        let entries_above: usize = (0..n).map(|row| offsets[row + 1] - upper[row]).sum();
        let entries_below = values.len() - n - entries_above;
        let mut lower = Triangle::with_capacity(n, entries_below);
        let mut above = Triangle::with_capacity(n, entries_above);
        for row in 0..n {
            let entries = offsets[row]..upper[row] - 1;
            lower.push(
                0,
                (row as u32).checked_sub(1),
                entries.map(|entry| (indices[entry], values[entry])),
            );
        }
        for row in (0..n).rev() {
            let entries = (upper[row]..offsets[row + 1]).rev();
            above.push(
                n as u32 - 1,
                Some(row as u32 + 1),
                entries.map(|entry| (indices[entry], values[entry] * inverse_pivots[row])),
            );
        }
        Some(Self {
            lower,
            upper: above,
            inverse_pivots,
            is_modified: modified > 0.0,
        })
    }

    fn solve(&self, r: &[f64], z: &mut [f64]) {
        self.lower.solve(0..r.len(), z, |row, _| r[row]);
        self.backward(z);
    }

    /// `v` = (I + L D⁻¹)⁻¹ `v`.
    pub(super) fn forward(&self, v: &mut [f64]) {
        self.lower.solve(0..v.len(), v, |row, v| v[row]);
    }

    /// `v` = (D + U)⁻¹ `v`.
    pub(super) fn backward(&self, v: &mut [f64]) {
        let rows = (0..v.len()).rev();
        self.upper
            .solve(rows, v, |row, v| v[row] * self.inverse_pivots[row]);
    }

    /// ‖(I + L D⁻¹) v‖².
    pub(super) fn residual_sq(&self, v: &[f64]) -> f64 {
        let (mut all, mut before) = (0.0, 0.0);
        for (own, (neighbour, columns, values)) in v.iter().zip(self.lower.rows()) {
            let sum = own + neighbour * before + kernels::sparse_dot(columns, values, v);
            all += sum * sum;
            before = *own;
        }
        all
    }

    pub(super) fn lower(&self) -> &Triangle {
        &self.lower
    }

    pub(super) fn upper(&self) -> &Triangle {
        &self.upper
    }

    /// Entries beside the diagonal, with the zeros of rows that have no neighbour.
    pub(super) fn stored(&self) -> usize {
        let of = |side: &Triangle| side.neighbours.len() + side.columns.len();
        of(&self.lower) + of(&self.upper)
    }

    /// D⁻¹.
    pub(super) fn inverse_pivots(&self) -> &[f64] {
        &self.inverse_pivots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::{Generate, Matrix, System};

    fn system(text: &str) -> System {
        text.parse::<Generate>().unwrap().system(1).unwrap()
    }

    fn whole(text: &str) -> RowBlock {
        RowBlock::whole(system(text))
    }

    /// Without fill to drop, incomplete factors are complete: M⁻¹ A x = x for a tridiagonal matrix.
    #[test]
    fn factors_of_tridiagonal_matrices_are_exact() {
        let triplets: Vec<_> = (0..50u32)
            .flat_map(|row| {
                let beside = (row + 1).min(49);
                let other = if beside == row { 0.0 } else { -1.0 };
                [(row, row, 2.5), (row, beside, other), (beside, row, other)]
            })
            .filter(|entry| entry.2 != 0.0)
            .collect();
        let csr = Csr::from_triplets(50, 50, &triplets).unwrap();
        let x: Vec<f64> = (0..50).map(|k| f64::from(k).sin()).collect();
        let system = System::new(Matrix::Sparse(csr), None, "chain".into()).unwrap();
        let product = system.matrix.times(&x);
        let block = RowBlock::whole(system);
        for which in [
            Preconditioning::Ilu,
            Preconditioning::ModifiedIlu,
            Preconditioning::Lu,
        ] {
            let preconditioner = Preconditioner::new(&block, &block.rows, which);
            let mut z = vec![0.0; 50];
            preconditioner.apply(&block, &block.rows, &product, &mut z);
            let error = z.iter().zip(&x).map(|(z, x)| (z - x).abs());
            assert!(
                error.fold(0.0, f64::max) < 1e-12,
                "{}",
                preconditioner.name()
            );
        }
    }

    /// The preconditioner of a symmetric matrix is symmetric: u · M⁻¹ v = v · M⁻¹ u.
    #[test]
    fn symmetric_rows_keep_symmetry() {
        for text in ["poisson2d:12", "circuit:300"] {
            let block = whole(text);
            let n = block.columns;
            let u: Vec<f64> = (0..n).map(|k| (k as f64).sin()).collect();
            let v: Vec<f64> = (0..n).map(|k| (k as f64 * 0.7).cos()).collect();
            for which in [
                Preconditioning::Ilu,
                Preconditioning::ModifiedIlu,
                Preconditioning::Lu,
                Preconditioning::Lap,
            ] {
                let preconditioner = Preconditioner::new(&block, &block.rows, which);
                assert_ne!(preconditioner.name(), "Jacobi");
                let (mut mu, mut mv) = (vec![0.0; n], vec![0.0; n]);
                preconditioner.apply(&block, &block.rows, &u, &mut mu);
                preconditioner.apply(&block, &block.rows, &v, &mut mv);
                let (left, right) = (super::super::dot(&u, &mv), super::super::dot(&v, &mu));
                assert!((left - right).abs() < 1e-10 * left.abs().max(1.0), "{text}");
            }
        }
    }

    /// A lap is the product of its two halves: (D + L) D⁻¹ (D + U) z = r, over sparse and dense rows, and over part of a block.
    #[test]
    fn laps_are_symmetric_gauss_seidel() {
        for text in ["circuit:60", "dense:60"] {
            let (whole, system) = (whole(text), system(text));
            for rows in [0..60, 13..41] {
                let made = Preconditioner::new(&whole, &rows, Preconditioning::Lap);
                let r: Vec<f64> = rows.clone().map(|k| (k as f64).sin()).collect();
                let mut z = vec![0.0; r.len()];
                made.apply(&whole, &rows, &r, &mut z);
                let mut a = vec![vec![0.0; r.len()]; r.len()];
                for row in rows.clone() {
                    system.matrix.for_each_in_row(row, |column, value| {
                        if rows.contains(&column) {
                            a[row - rows.start][column - rows.start] = value;
                        }
                    });
                }
                // D⁻¹ (D + U) z, then (D + L) of it.
                let half: Vec<f64> = (0..r.len())
                    .map(|i| (i..r.len()).map(|j| a[i][j] * z[j]).sum::<f64>() / a[i][i])
                    .collect();
                for i in 0..r.len() {
                    let back: f64 = (0..=i).map(|j| a[i][j] * half[j]).sum();
                    assert!((back - r[i]).abs() < 1e-12, "{text} {rows:?}");
                }
            }
        }
    }

    /// What was in z before does not matter.
    #[test]
    fn results_do_not_depend_on_former_ones() {
        for text in ["poisson2d:12", "circuit:300"] {
            let block = whole(text);
            let r: Vec<f64> = (0..block.columns).map(|k| (k as f64).sin()).collect();
            for which in [
                Preconditioning::Jacobi,
                Preconditioning::Ilu,
                Preconditioning::Lu,
            ] {
                let made = Preconditioner::new(&block, &block.rows, which);
                let [clean, spoilt] = [0.0, f64::NAN].map(|former| {
                    let mut z = vec![former; r.len()];
                    made.apply(&block, &block.rows, &r, &mut z);
                    z
                });
                assert_eq!(clean, spoilt, "{text} {which:?}");
            }
        }
    }

    /// Where a pivot would change its sign, the diagonal is used.
    #[test]
    fn bad_pivots_fall_back() {
        let triplets = [(0, 0, 1.0), (0, 1, 3.0), (1, 0, 3.0), (1, 1, 1.0)];
        let csr = Csr::from_triplets(2, 2, &triplets).unwrap();
        let system = System::new(Matrix::Sparse(csr), None, "m".into()).unwrap();
        let block = RowBlock::whole(system);
        let preconditioner = Preconditioner::new(&block, &block.rows, Preconditioning::Ilu);
        assert_eq!(preconditioner.name(), "Jacobi");
    }
}
