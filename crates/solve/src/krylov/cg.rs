//! Conjugate gradients with a preconditioner (Hestenes and Stiefel, 1952).

use super::{Course, End, Iterated, Part, Run, Space, add, dot};
use crate::local::relative;

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
    part.precondition(r, &mut z);
    part.direction().copy_from_slice(&z);
    let mut sums = [dot(r, &z), dot(r, r)];
    space.sum(&mut sums)?;
    let [mut rho, mut norm] = [sums[0], sums[1].sqrt()];
    loop {
        part.multiply_direction(&mut q, space)?;
        let mut sums = [dot(part.direction(), &q)];
        space.sum(&mut sums)?;
        // NaN is not positive either.
        if !(sums[0] > 0.0 && rho > 0.0) {
            return Ok(Run::Ended(End::Indefinite));
        }
        let alpha = rho / sums[0];
        add(x, alpha, part.direction());
        add(r, -alpha, &q);
        part.precondition(r, &mut z);
        course.iterations += 1;
        let stop = space.iterated(Iterated {
            iterations: course.iterations,
            residual: relative(norm, course.rhs_norm), // of the iteration before: known to all
            x,
        })?;
        let mut sums = [dot(r, &z), dot(r, r), f64::from(u8::from(stop))];
        space.sum(&mut sums)?;
        norm = sums[1].sqrt();
        if let Some(run) = course.judge(norm, sums[2]) {
            return Ok(run);
        }
        let beta = sums[0] / rho;
        rho = sums[0];
        for (p, z) in part.direction().iter_mut().zip(&z) {
            *p = z + beta * *p;
        }
    }
}
