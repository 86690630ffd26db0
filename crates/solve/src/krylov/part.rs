//! One part of a system: its rows, its preconditioner, and the vector that they are multiplied with.

use super::preconditioner::Factors;
use super::{Preconditioner, Space};
use crate::local::kernels;
use crate::system::{RowBlock, RowValues};
use std::ops::Range;

/// Rows, with what Krylov methods do with them.
#[derive(Debug)]
pub struct Part<'a> {
    block: &'a RowBlock,
    rows: &'a Range<usize>,
    preconditioner: &'a Preconditioner,
    /// The operand of products: own elements and those read.
    whole: Vec<f64>,
    rows_most: usize,
    /// By which residuals and products are multiplied while the method iterates; empty: they are not.
    scales: Vec<f64>,
    /// A vector of the scaled rows as the unscaled ones have it.
    unscaled: Vec<f64>,
}

impl<'a> Part<'a> {
    /// `rows` of `block`, for which the preconditioner is made. `rows_most`: rows of the largest part, so that all parts restart alike.
    pub fn new(
        block: &'a RowBlock,
        rows: &'a Range<usize>,
        preconditioner: &'a Preconditioner,
        rows_most: usize,
    ) -> Self {
        Self {
            block,
            rows,
            preconditioner,
            whole: vec![0.0; block.columns],
            rows_most,
            scales: Vec::new(),
            unscaled: Vec::new(),
        }
    }

    /// Scales rows from now on, if they are to be scaled. Only for methods that need no symmetry.
    pub(super) fn scale_rows(&mut self) {
        self.scales = self.block.row_scales(self.rows);
    }

    pub(super) fn has_scales(&self) -> bool {
        !self.scales.is_empty()
    }

    /// Replaces a residual of the system by that of the scaled rows.
    pub(super) fn scale(&self, residual: &mut [f64]) {
        kernels::scale(residual, &self.scales);
    }

    pub(super) fn rows_most(&self) -> usize {
        self.rows_most
    }

    /// Of the whole system.
    pub(super) fn unknowns(&self) -> usize {
        self.block.columns
    }

    pub(super) fn rhs_sq(&self) -> f64 {
        kernels::sum_of_squares(&self.block.rhs[self.own()])
    }

    /// The rows, counted from the block's first.
    fn own(&self) -> Range<usize> {
        let first = self.block.rows.start;
        self.rows.start - first..self.rows.end - first
    }

    /// `out` = own rows of A · `v`, scaled, of which each part has its own elements.
    pub(super) fn multiply<S: Space>(
        &mut self,
        v: &[f64],
        out: &mut [f64],
        space: &mut S,
    ) -> Result<(), S::Error> {
        self.direction().copy_from_slice(v);
        self.multiply_direction(out, space)
    }

    /// Own elements of the vector that [`multiply_direction`](Self::multiply_direction) multiplies. They stay until another one is multiplied.
    pub(super) fn direction(&mut self) -> &mut [f64] {
        &mut self.whole[self.rows.clone()]
    }

    /// What the incomplete factors were made of.
    pub(super) fn block_and_rows(&self) -> (&'a RowBlock, &'a Range<usize>) {
        (self.block, self.rows)
    }

    /// The incomplete factors, if the preconditioner has them.
    pub(super) fn factors(&self) -> Option<&'a Factors> {
        match self.preconditioner {
            Preconditioner::Ilu(factors) => Some(factors),
            _ => None,
        }
    }

    /// The direction, with all elements that are read; and its own ones.
    pub(super) fn exchanged<S: Space>(
        &mut self,
        space: &mut S,
    ) -> Result<(&[f64], &[f64]), S::Error> {
        space.exchange(&mut self.whole)?;
        Ok((&self.whole, &self.whole[self.rows.clone()]))
    }

    /// `out` = own rows of A · the direction, scaled.
    pub(super) fn multiply_direction<S: Space>(
        &mut self,
        out: &mut [f64],
        space: &mut S,
    ) -> Result<(), S::Error> {
        self.exchanged(space)?;
        let (x, n) = (&self.whole, self.block.columns);
        match &self.block.values {
            RowValues::Sparse(csr) => csr.multiply(self.own(), x, out),
            RowValues::Dense(values) => {
                let values = &values[self.own().start * n..self.own().end * n];
                kernels::multiply(values, x, out);
            }
        }
        self.scale(out);
        Ok(())
    }

    /// `z` = M⁻¹ `r`, where `r` is of the scaled rows.
    pub(super) fn precondition(&mut self, r: &[f64], z: &mut [f64]) {
        let r = if self.scales.is_empty() {
            r
        } else {
            let elements = r.iter().zip(&self.scales);
            self.unscaled.clear();
            self.unscaled.extend(elements.map(|(r, scale)| r / scale));
            &self.unscaled[..]
        };
        self.preconditioner.apply(self.block, self.rows, r, z);
    }

    /// `out` = b − A x of the own rows, not scaled, with carried rounding errors. Returns Σ (|b| + |A| |x|)² if `magnitude`, otherwise 0.
    pub(super) fn exact_residual<S: Space>(
        &mut self,
        x: &[f64],
        out: &mut [f64],
        magnitude: bool,
        space: &mut S,
    ) -> Result<f64, S::Error> {
        self.whole[self.rows.clone()].copy_from_slice(x);
        space.exchange(&mut self.whole)?;
        self.block.exact_residual(self.own(), &self.whole, out);
        Ok(if magnitude {
            self.block.magnitude_sq(self.own(), &self.whole)
        } else {
            0.0
        })
    }
}
