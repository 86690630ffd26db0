//! Conjugate gradients with a preconditioner (Hestenes and Stiefel, 1952).

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

/// From x with residual `r` on; ends where the recurrence reaches the target. Two sums an iteration.
pub(super) fn run<S: Space>(
    part: &mut Part<'_>,
    x: &mut [f64],
    r: &mut [f64],
    course: &mut Course<'_>,
    space: &mut S,
) -> Result<Run, S::Error> {
    let mut z = vec![0.0; x.len()];
    let mut q = vec![0.0; x.len()];
    // Products are of r in units of its first length, and of z as long as r: they stay within the range of numbers as long as x does.
    let unit = unit_of(course.begins_at);
    multiply(r, 1.0 / unit);
    part.precondition(r, &mut z);
    let mut sums = [dot(r, &z), dot(r, r), length(r), length(&z)];
    space.sum(&mut sums)?;
    let fit = unit_of(sums[2] / sums[3]);
    if fit != 1.0 {
        multiply(&mut z, fit);
        sums[0] = dot(r, &z);
        space.sum(&mut sums[..1])?;
    }
    part.direction().copy_from_slice(&z);
    let [mut rho, mut norm] = [sums[0], sums[1].sqrt() * unit];
    let patience = (PATIENCE * part.unknowns() as u64).max(PATIENCE_LEAST);
    let (mut least, mut least_at) = (norm, course.iterations);
    loop {
        part.multiply_direction(&mut q, space)?;
        let mut sums = [dot(part.direction(), &q)];
        space.sum(&mut sums)?;
        // NaN is not positive either.
        if !(sums[0] > 0.0 && rho > 0.0) {
            return Ok(Run::Ended(End::Indefinite));
        }
        let alpha = rho / sums[0];
        add(x, alpha * unit, part.direction());
        add(r, -alpha, &q);
        part.precondition(r, &mut z);
        multiply(&mut z, fit);
        course.iterations += 1;
        let stop = space.iterated(Iterated {
            iterations: course.iterations,
            residual: relative(norm, course.rhs_norm), // of the iteration before: known to all
            x,
        })?;
        let mut sums = [dot(r, &z), dot(r, r), f64::from(u8::from(stop))];
        space.sum(&mut sums)?;
        norm = sums[1].sqrt() * unit;
        if let Some(run) = course.judge(norm, sums[2]) {
            return Ok(run);
        }
        if norm <= LESS * least {
            (least, least_at) = (norm, course.iterations);
        } else if course.iterations - least_at >= patience {
            return Ok(Run::Restart);
        }
        let beta = sums[0] / rho;
        rho = sums[0];
        for (p, z) in part.direction().iter_mut().zip(&z) {
            *p = z + beta * *p;
        }
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
