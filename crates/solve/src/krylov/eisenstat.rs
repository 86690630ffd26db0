//! Conjugate gradients with incomplete factors in half the work (Eisenstat, 1981): the factors multiply, too.
//!
//! M = (D + L) D⁻¹ (D + U), and A = (D + L) + (D + U) + R. Incomplete factors keep nearly all entries of A beside the diagonal, so that R has few entries
//! beside its diagonal: those of other parts' columns, and those that the factorisation changed. Where p = (D + U)⁻¹ g,
//!
//! (I + L D⁻¹)⁻¹ A p = D p + w,  w = (I + L D⁻¹)⁻¹ (g + R p).
//!
//! So an iteration reads each factor once, and no entry of A but those in R. Instead of the residual r it keeps y = (I + L D⁻¹)⁻¹ r.
//!
//! Called by `cg`. `fit` scales M⁻¹, as there. Invariants: the rows are symmetric, and so are the factors, U = Lᵀ; rows are not scaled.

use super::preconditioner::Factors;
use super::{Part, Space};
use crate::local::kernels::sum_of;
use crate::system::{RowBlock, RowValues};
use std::ops::Range;

/// R has at most one entry beside its diagonal for so many of the factors: with more there is little to gain.
const FACTORS_EACH: usize = 4;

/// What is kept from one iteration to the next.
#[derive(Debug)]
pub(super) struct Eisenstat<'a> {
    factors: &'a Factors,
    remainder: Remainder,
    g: Vec<f64>,
    w: Vec<f64>,
}

impl<'a> Eisenstat<'a> {
    /// `None`: the preconditioner is another, or R has too many entries.
    pub(super) fn of(part: &Part<'a>) -> Option<Self> {
        let factors = part.factors()?;
        let (block, rows) = part.block_and_rows();
        let beside_most = factors.stored() / FACTORS_EACH;
        Some(Self {
            factors,
            remainder: Remainder::of(factors, block, rows, beside_most)?,
            g: vec![0.0; rows.len()],
            w: vec![0.0; rows.len()],
        })
    }

    /// Replaces the residual by y, and makes M⁻¹ r the direction.
    pub(super) fn begin(&mut self, part: &mut Part<'_>, r: &mut [f64]) {
        self.factors.forward(r);
        self.next_direction(part, r, 0.0, 1.0);
    }

    /// r · M⁻¹ r.
    pub(super) fn length_sq(&self, y: &[f64], fit: f64) -> f64 {
        let inverse = &self.factors.inverse_pivots()[..y.len()];
        // First the two that are near 1 together.
        sum_of(y.len(), |at| y[at] * (fit * inverse[at]) * y[at])
    }

    /// The next direction: M⁻¹ r + `beta` times the last one.
    pub(super) fn next_direction(&mut self, part: &mut Part<'_>, y: &[f64], beta: f64, fit: f64) {
        let p = part.direction();
        for ((g, y), p) in self.g.iter_mut().zip(y).zip(p.iter_mut()) {
            *g = y + beta * *g;
            *p = fit * *g;
        }
        self.factors.backward(p);
    }

    /// Multiplies the direction p by A; returns p · A p.
    pub(super) fn product<S: Space>(
        &mut self,
        part: &mut Part<'_>,
        fit: f64,
        space: &mut S,
    ) -> Result<f64, S::Error> {
        let (whole, p) = part.exchanged(space)?;
        let own = self.g.iter().zip(p).zip(&self.remainder.diagonal);
        for (w, ((g, p), diagonal)) in self.w.iter_mut().zip(own) {
            *w = fit * g + diagonal * p;
        }
        for &(row, column, value) in &self.remainder.beside {
            self.w[row as usize] += value * whole[column as usize];
        }
        self.factors.forward(&mut self.w);
        let (n, inverse) = (p.len(), self.factors.inverse_pivots());
        let (g, w, inverse) = (&self.g[..n], &self.w[..n], &inverse[..n]);
        Ok(fit * sum_of(n, |at| g[at] * (p[at] + w[at] * inverse[at])))
    }

    /// Takes `alpha` times the product from the residual; returns r · M⁻¹ r.
    pub(super) fn advance(&self, part: &mut Part<'_>, y: &mut [f64], alpha: f64, fit: f64) -> f64 {
        let (n, inverse) = (y.len(), self.factors.inverse_pivots());
        let (p, w, inverse) = (&part.direction()[..n], &self.w[..n], &inverse[..n]);
        sum_of(n, |at| {
            y[at] -= alpha * (p[at] / inverse[at] + w[at]);
            y[at] * (fit * inverse[at]) * y[at]
        })
    }

    /// ‖r‖² = ‖(I + L D⁻¹) y‖², which takes half of a product.
    pub(super) fn residual_sq(&self, y: &[f64]) -> f64 {
        self.factors.residual_sq(y)
    }
}

/// R.
#[derive(Debug, Default)]
struct Remainder {
    diagonal: Vec<f64>,
    /// Row, counted from the part's first; column of the whole system; value.
    beside: Vec<(u32, u32, f64)>,
}

impl Remainder {
    /// A − (D + L) − (D + U) of `rows` of `block`, which `factors` were made of. `None`: it has more than `beside_most` entries beside its diagonal.
    fn of(
        factors: &Factors,
        block: &RowBlock,
        rows: &Range<usize>,
        beside_most: usize,
    ) -> Option<Self> {
        let RowValues::Sparse(csr) = &block.values else {
            return None;
        };
        let (first, inverse) = (rows.start - block.rows.start, factors.inverse_pivots());
        let mut found = Self::default();
        let is_small = |found: &Self| found.beside.len() <= beside_most;
        for (at, (neighbour, _, values)) in factors.lower().rows().enumerate() {
            let mut others = values.iter();
            let (columns, values) = csr.row(first + at);
            for (&column, &value) in columns.iter().zip(values) {
                let own = (column as usize).checked_sub(rows.start);
                match own.filter(|own| *own < rows.len()) {
                    None => found.note((at, column), value, 0.0),
                    Some(own) if own < at => {
                        let factor = if own + 1 == at {
                            neighbour
                        } else {
                            *others.next()?
                        };
                        found.note((at, column), value, factor / inverse[own]);
                    }
                    Some(own) if own == at => found.diagonal.push(value - 2.0 / inverse[at]),
                    Some(_) => {}
                }
            }
            is_small(&found).then_some(())?;
        }
        for (at, (neighbour, _, values)) in (0..rows.len()).rev().zip(factors.upper().rows()) {
            let mut others = values.iter();
            let (columns, values) = csr.row(first + at);
            for (&column, &value) in columns.iter().zip(values).rev() {
                let beyond = (column as usize).saturating_sub(rows.start + at);
                if beyond > 0 && (column as usize) < rows.end {
                    let factor = if beyond == 1 {
                        neighbour
                    } else {
                        *others.next()?
                    };
                    found.note((at, column), value, factor / inverse[at]);
                }
            }
            is_small(&found).then_some(())?;
        }
        (found.beside).sort_unstable_by_key(|&(row, column, _)| (row, column));
        Some(found)
    }

    /// An entry of A, and of the factors, which is the same but for rounding unless fill was taken from it.
    fn note(&mut self, (row, column): (usize, u32), value: f64, factor: f64) {
        const SAME: f64 = 4.0 * f64::EPSILON;
        let rest = value - factor;
        if rest.abs() > SAME * value.abs() {
            self.beside.push((row as u32, column, rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Iterated, Preconditioner, Preconditioning, dot};
    use super::*;
    use crate::system::{Csr, Matrix, RowBlock, System};
    use proptest::prelude::*;
    use std::convert::Infallible;
    use std::ops::Range;

    /// Others, whose elements are always the same.
    struct Others(Range<usize>);

    impl Space for Others {
        type Error = Infallible;

        fn sum(&mut self, _: &mut [f64]) -> Result<(), Infallible> {
            Ok(())
        }

        fn exchange(&mut self, vector: &mut [f64]) -> Result<(), Infallible> {
            for (at, value) in vector.iter_mut().enumerate() {
                if !self.0.contains(&at) {
                    *value = (at as f64).cos();
                }
            }
            Ok(())
        }

        fn iterated(&mut self, _: Iterated<'_>) -> Result<bool, Infallible> {
            Ok(false)
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-10 * a.abs().max(b.abs()).max(1.0)
    }

    proptest! {
        /// An iteration is what it is with products by A and M⁻¹, whatever the factorisation changed, for a part of the rows, too.
        #[test]
        fn iterations_are_as_plain_ones(
            n in 1usize..40,
            entries in prop::collection::vec(
                (0u32..40, 0u32..40, prop_oneof![Just(0.0), -1.0f64..1.0]),
                0..200,
            ),
            (from, to) in (0usize..40, 0usize..40),
            modified in any::<bool>(),
            (alpha, beta, fit) in (0.1f64..1.0, 0.0f64..1.0, prop::sample::select(vec![1.0, 0.25, 8.0])),
        ) {
            let mut triplets: Vec<_> = (0..n as u32).map(|row| (row, row, 30.0 + f64::from(row))).collect();
            let within = entries.into_iter().filter(|e| e.0 < n as u32 && e.1 < e.0);
            triplets.extend(within.flat_map(|(row, column, value)| [(row, column, value), (column, row, value)]));
            let csr = Csr::from_triplets(n, n, &triplets).unwrap();
            let block = RowBlock::whole(System::new(Matrix::Sparse(csr), None, "m".into()).unwrap());
            let rows = from.min(to) % n..from.max(to) % n + 1;
            let rows = rows.start.min(rows.end - 1)..rows.end;
            let which = if modified { Preconditioning::ModifiedIlu } else { Preconditioning::Ilu };
            let made = Preconditioner::new(&block, &rows, which);
            let mut part = Part::new(&block, &rows, &made, rows.len());
            let factors = part.factors().expect("the diagonal dominates");
            let own = || vec![0.0; rows.len()];
            let mut halved = Eisenstat {
                factors,
                remainder: Remainder::of(factors, &block, &rows, usize::MAX).unwrap(),
                g: own(),
                w: own(),
            };
            let mut space = Others(rows.clone());

            let mut r: Vec<f64> = rows.clone().map(|k| (k as f64).sin()).collect();
            let (mut y, mut z, mut q) = (r.clone(), own(), own());
            part.precondition(&r, &mut z);
            halved.begin(&mut part, &mut y);
            prop_assert!(near(halved.length_sq(&y, fit), fit * dot(&r, &z)));
            part.direction().iter_mut().for_each(|p| *p *= fit);
            let p = part.direction().to_vec();
            prop_assert!(p.iter().zip(&z).all(|(p, z)| near(*p, fit * z)));

            let Ok(product) = halved.product(&mut part, fit, &mut space);
            let Ok(()) = part.multiply_direction(&mut q, &mut space);
            prop_assert!(near(product, dot(&p, &q)));
            let advanced = halved.advance(&mut part, &mut y, alpha, fit);
            super::super::add(&mut r, -alpha, &q);
            part.precondition(&r, &mut z);
            prop_assert!(near(advanced, fit * dot(&r, &z)));
            prop_assert!(near(halved.residual_sq(&y), dot(&r, &r)));
            halved.next_direction(&mut part, &y, beta, fit);
            let next = part.direction().iter().zip(z.iter().zip(&p));
            for (next, (z, p)) in next {
                prop_assert!(near(*next, fit * z + beta * p));
            }
        }
    }

    /// Of grids R is a diagonal; of a part of one also what lies in other parts' columns.
    #[test]
    fn remainders_of_grids_are_diagonals() {
        let system = "poisson2d:20".parse::<crate::system::Generate>().unwrap();
        let block = RowBlock::whole(system.system(1).unwrap());
        for (rows, beside) in [(0..400, 0), (100..200, 40)] {
            let made = Preconditioner::new(&block, &rows, Preconditioning::ModifiedIlu);
            let part = Part::new(&block, &rows, &made, rows.len());
            let halved = Eisenstat::of(&part).expect("R is small");
            assert_eq!(halved.remainder.beside.len(), beside);
        }
    }
}
