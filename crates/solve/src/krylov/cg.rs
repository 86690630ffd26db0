//! Conjugate gradients with a preconditioner (Hestenes and Stiefel, 1952).

use super::eisenstat::Eisenstat;
use super::{Course, End, Iterated, Part, Run, Space, add, dot};
use crate::local::relative;

/// Iterations without a new least residual after which a run ends, so that the exact one is looked at: so many times the number of unknowns. Without
/// rounding, as many iterations as unknowns solve any system that has a solution; with it, resistor chains of conductances over twelve decades took up to
/// forty times as many, and up to fifteen without progress.
const PATIENCE: u64 = 20;
/// ... and at least so many.
const PATIENCE_LEAST: u64 = 100;
/// A new least residual is at most this part of the former one.
const LESS: f64 = 0.9;

/// ‖r‖ is measured every so many iterations where that takes time.
const MEASURED_EVERY: u64 = 8;
/// A guess below so many targets is not trusted: ‖r‖ is measured.
const MEASURED_FROM: f64 = 2.0;

/// How an iteration is computed. Parts that do it differently iterate together: their sums mean the same.
#[derive(Debug)]
enum Way<'a> {
    /// Multiplies by A, and then by M⁻¹.
    Plain { z: Vec<f64>, q: Vec<f64> },
    /// The factors of M multiply, too. The residual is kept as y.
    Halved(Eisenstat<'a>),
}

impl<'a> Way<'a> {
    /// Restarts multiply by A itself: where the matrix is singular, the other recurrence loses a part of r.
    fn of(part: &Part<'a>, own: usize, restarts: bool) -> Self {
        let halved = (!restarts).then(|| Eisenstat::of(part)).flatten();
        halved.map_or_else(
            || Self::Plain {
                z: vec![0.0; own],
                q: vec![0.0; own],
            },
            Self::Halved,
        )
    }

    /// Makes M⁻¹ r the direction.
    fn begin(&mut self, part: &mut Part<'_>, r: &mut [f64]) {
        match self {
            Self::Plain { z, .. } => {
                part.precondition(r, z);
                part.direction().copy_from_slice(z);
            }
            Self::Halved(halved) => halved.begin(part, r),
        }
    }

    /// r · M⁻¹ r, where the latter is the direction.
    fn length_sq(&self, part: &mut Part<'_>, r: &[f64], fit: f64) -> f64 {
        match self {
            Self::Plain { .. } => dot(r, part.direction()),
            Self::Halved(halved) => halved.length_sq(r, fit),
        }
    }

    /// Multiplies the direction p by A; returns p · A p.
    fn product<S: Space>(
        &mut self,
        part: &mut Part<'_>,
        fit: f64,
        space: &mut S,
    ) -> Result<f64, S::Error> {
        match self {
            Self::Plain { q, .. } => {
                part.multiply_direction(q, space)?;
                Ok(dot(part.direction(), q))
            }
            Self::Halved(halved) => halved.product(part, fit, space),
        }
    }

    /// Takes `alpha` times the product from the residual; returns r · M⁻¹ r.
    fn advance(&mut self, part: &mut Part<'_>, r: &mut [f64], alpha: f64, fit: f64) -> f64 {
        match self {
            Self::Plain { z, q } => {
                add(r, -alpha, q);
                part.precondition(r, z);
                multiply(z, fit);
                dot(r, z)
            }
            Self::Halved(halved) => halved.advance(part, r, alpha, fit),
        }
    }

    fn residual_sq(&self, r: &[f64]) -> f64 {
        match self {
            Self::Plain { .. } => dot(r, r),
            Self::Halved(halved) => halved.residual_sq(r),
        }
    }

    /// The next direction: M⁻¹ r + `beta` times the last one.
    fn next_direction(&mut self, part: &mut Part<'_>, r: &[f64], beta: f64, fit: f64) {
        match self {
            Self::Plain { z, .. } => {
                for (p, z) in part.direction().iter_mut().zip(z) {
                    *p = *z + beta * *p;
                }
            }
            Self::Halved(halved) => halved.next_direction(part, r, beta, fit),
        }
    }
}

/// From x with residual `r` on; ends where the recurrence reaches the target. Two sums an iteration.
pub(super) fn run<S: Space>(
    part: &mut Part<'_>,
    x: &mut [f64],
    r: &mut [f64],
    course: &mut Course<'_>,
    space: &mut S,
) -> Result<Run, S::Error> {
    let mut way = Way::of(part, r.len(), course.iterations > 0);
    let is_halved = f64::from(u8::from(matches!(way, Way::Halved(_))));
    // Products are of r in units of its first length, and of M⁻¹ r as long as r: they stay within the range of numbers as long as x does.
    let unit = unit_of(course.begins_at);
    multiply(r, 1.0 / unit);
    let (norm_sq, long) = (dot(r, r), length(r));
    way.begin(part, r);
    let long_direction = length(part.direction());
    let rho = way.length_sq(part, r, 1.0);
    let mut sums = [rho, norm_sq, long, long_direction, is_halved];
    space.sum(&mut sums)?;
    let fit = unit_of(sums[2] / sums[3]);
    if fit != 1.0 {
        multiply(part.direction(), fit);
        sums[0] = way.length_sq(part, r, fit);
        space.sum(&mut sums[..1])?;
    }
    let [mut rho, mut norm] = [sums[0], sums[1].sqrt() * unit];
    let takes_time = sums[4] > 0.0;
    // ‖r‖ for a square root of r · M⁻¹ r of 1, when it was measured last.
    let mut ratio = norm / rho.sqrt();
    let patience = (PATIENCE * part.unknowns() as u64).max(PATIENCE_LEAST);
    let (mut least, mut least_at) = (norm, course.iterations);
    loop {
        let mut sums = [way.product(part, fit, space)?];
        space.sum(&mut sums)?;
        // NaN is not positive either.
        if !(sums[0] > 0.0 && rho > 0.0) {
            return Ok(Run::Ended(End::Indefinite));
        }
        let alpha = rho / sums[0];
        add(x, alpha * unit, part.direction());
        let advanced = way.advance(part, r, alpha, fit);
        course.iterations += 1;
        let stop = space.iterated(Iterated {
            iterations: course.iterations,
            residual: relative(norm, course.rhs_norm), // of the iteration before: known to all
            x,
        })?;
        let mut is_measured = !takes_time || course.iterations.is_multiple_of(MEASURED_EVERY);
        let norm_sq = if is_measured { way.residual_sq(r) } else { 0.0 };
        let mut sums = [advanced, norm_sq, f64::from(u8::from(stop))];
        space.sum(&mut sums)?;
        norm = ratio * sums[0].sqrt();
        let is_far = norm > MEASURED_FROM * course.target;
        if !is_measured && !is_far {
            sums[1] = way.residual_sq(r);
            space.sum(&mut sums[1..2])?;
            is_measured = true;
        }
        if is_measured {
            norm = sums[1].sqrt() * unit;
            ratio = norm / sums[0].sqrt();
        }
        if let Some(run) = course.judge(norm, sums[2], is_measured) {
            return Ok(run);
        }
        if is_measured && norm <= LESS * least {
            (least, least_at) = (norm, course.iterations);
        } else if course.iterations - least_at >= patience {
            return Ok(Run::Restart);
        }
        let beta = sums[0] / rho;
        rho = sums[0];
        way.next_direction(part, r, beta, fit);
    }
}

/// Σ |v|, which does not overflow where squares would.
fn length(v: &[f64]) -> f64 {
    v.iter().map(|v| v.abs()).sum()
}

/// Usual numbers: products of some of them are within the range of numbers.
const USUAL: std::ops::Range<f64> = 1e-60..1e60;

/// A power of two near `size`, by which numbers are divided without rounding; 1 for usual sizes, and for what is no size. The same for all parts, to the
/// bit.
fn unit_of(size: f64) -> f64 {
    const BIAS: u64 = 1023;
    if !size.is_normal() || size < 0.0 || USUAL.contains(&size) {
        return 1.0;
    }
    // So that its inverse is a number, too.
    let exponent = (size.to_bits() >> 52).clamp(BIAS - 1000, BIAS + 1000);
    f64::from_bits(exponent << 52)
}

/// `v` times a power of two.
fn multiply(v: &mut [f64], factor: f64) {
    if factor != 1.0 {
        v.iter_mut().for_each(|v| *v *= factor);
    }
}
