//! Conjugate gradients with incomplete factors in half the work (Eisenstat, 1981): the factors multiply, too.
//!
//! M = (D + L) D⁻¹ (D + U), and A = (D + L) + (D + U) + R. Incomplete factors keep nearly all entries of A beside the diagonal, so that R has few entries
//! beside its own: those of other parts' columns, and those that the factorisation changed. Where p = (D + U)⁻¹ g,
//!
//! (I + L D⁻¹)⁻¹ A p = D p + w,  w = (I + L D⁻¹)⁻¹ (g + R p).
//!
//! So an iteration reads each factor once, and no entry of A but those in R. Instead of the residual r it keeps y = (I + L D⁻¹)⁻¹ r.
//!
//! Called by `cg`. `fit` scales M⁻¹, as there.

use super::preconditioner::Factors;
use super::{Part, Space};
use crate::local::kernels::sum_of;

/// R may have this part of A's entries beside the diagonal: with more there is little to gain.
const REMAINDER_MOST: usize = 4;

/// What is kept from one iteration to the next.
#[derive(Debug)]
pub(super) struct Eisenstat<'a> {
    factors: &'a Factors,
    remainder: Remainder,
    g: Vec<f64>,
    w: Vec<f64>,
}

/// R.
#[derive(Debug, Default)]
pub(super) struct Remainder {
    pub(super) diagonal: Vec<f64>,
    /// Row, counted from the part's first; column of the whole system; value.
    pub(super) beside: Vec<(u32, u32, f64)>,
}

impl<'a> Eisenstat<'a> {
    /// `None`: the preconditioner is another, or R has too many entries.
    pub(super) fn of(part: &Part<'a>) -> Option<Self> {
        let factors = part.factors()?;
        let (block, rows) = part.block_and_rows();
        let remainder = factors.remainder(block, rows)?;
        let is_small = remainder.beside.len() <= factors.stored() / REMAINDER_MOST;
        is_small.then(|| Self {
            factors,
            remainder,
            g: vec![0.0; rows.len()],
            w: vec![0.0; rows.len()],
        })
    }

    /// Replaces the residual by y, and makes M⁻¹ r the direction. Returns r · M⁻¹ r.
    pub(super) fn begin(&mut self, part: &mut Part<'_>, r: &mut [f64]) -> f64 {
        self.factors.forward(r);
        self.turn(part, r, 0.0, 1.0);
        let inverse = self.factors.inverse_pivots();
        sum_of(r.len(), |at| r[at] * r[at] * inverse[at])
    }

    /// The next direction: M⁻¹ r + `beta` times the last one.
    pub(super) fn turn(&mut self, part: &mut Part<'_>, y: &[f64], beta: f64, fit: f64) {
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
        fit * sum_of(n, |at| {
            y[at] -= alpha * (p[at] / inverse[at] + w[at]);
            y[at] * y[at] * inverse[at]
        })
    }

    /// ‖r‖², which takes half of a product.
    pub(super) fn residual_sq(&self, y: &[f64]) -> f64 {
        self.factors.residual_sq(y)
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
            entries in prop::collection::vec((0u32..40, 0u32..40, -1.0f64..1.0), 0..200),
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
                remainder: factors.remainder(&block, &rows).unwrap(),
                g: own(),
                w: own(),
            };
            let mut space = Others(rows.clone());

            let mut r: Vec<f64> = rows.clone().map(|k| (k as f64).sin()).collect();
            let (mut y, mut z, mut q) = (r.clone(), own(), own());
            part.precondition(&r, &mut z);
            prop_assert!(near(halved.begin(&mut part, &mut y), dot(&r, &z)));
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
            halved.turn(&mut part, &y, beta, fit);
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
