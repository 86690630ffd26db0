//! GMRES, restarted, with a preconditioner on the right (Saad and Schultz, 1986), so that its residual is that of the system, or of its scaled rows.
//!
//! Gram–Schmidt takes one sum an iteration; a second pass, where the first one cancels too much (Daniel, Gragg, Kaufman and Stewart, 1976).

use super::{Course, Iterated, Part, Run, Space, add, dot};

/// Iterations between restarts, at most.
const RESTART: usize = 50;
/// ... and at least, where memory is short.
const RESTART_LEAST: usize = 8;
/// Memory for the vectors between restarts, a part.
const BASIS_BYTES: usize = 1 << 30;
/// A vector that orthogonalisation leaves with less than this part of its squared norm is orthogonalised again.
const CANCELS: f64 = 0.1;
/// ... and one that keeps less than this part of its norm is a combination of the earlier ones: the space is exhausted.
const EXHAUSTED: f64 = 1e-14;

/// Iterations between restarts for `rows` own rows.
pub(super) fn restart(rows: usize) -> usize {
    (BASIS_BYTES / (size_of::<f64>() * rows.max(1))).clamp(RESTART_LEAST, RESTART)
}

/// From x with residual `r` on, to the next restart or the target.
pub(super) fn run<S: Space>(
    part: &mut Part<'_>,
    x: &mut [f64],
    r: &mut [f64],
    course: &mut Course<'_>,
    space: &mut S,
) -> Result<Run, S::Error> {
    let restart = restart(part.rows_most());
    part.scale(r);
    let mut sums = [dot(r, r)];
    space.sum(&mut sums)?;
    let beta = sums[0].sqrt();
    if part.has_scales() {
        course.measure_in(beta);
    }
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(restart + 1);
    basis.push(r.iter().map(|r| r / beta).collect());
    let mut triangle = Triangle::new(beta);
    let mut z = vec![0.0; x.len()];
    let mut run = Run::Restart;
    for _ in 0..restart {
        let newest = basis.last().expect("begins with one");
        part.precondition(newest, &mut z);
        let mut w = vec![0.0; x.len()];
        part.multiply(&z, &mut w, space)?;
        course.iterations += 1;
        let stop = space.iterated(Iterated {
            iterations: course.iterations,
            residual: crate::local::relative(triangle.residual / course.unit, course.rhs_norm),
            x,
        })?;
        let (column, norm, stops) = orthogonalise(&mut w, &basis, stop, space)?;
        let scale = column.iter().map(|h| h * h).sum::<f64>().sqrt().max(norm);
        let exhausted = norm <= EXHAUSTED * scale;
        triangle.push(column, norm);
        if let Some(found) = course.judge(triangle.residual, stops, true) {
            run = found;
            break;
        }
        if exhausted {
            break;
        }
        w.iter_mut().for_each(|w| *w /= norm);
        basis.push(w);
    }
    let factors = triangle.solve();
    let mut moved = vec![0.0; x.len()];
    for (factor, vector) in factors.iter().zip(&basis) {
        add(&mut moved, *factor, vector);
    }
    part.precondition(&moved, &mut z);
    if factors.iter().all(|factor| factor.is_finite()) {
        add(x, 1.0, &z);
    }
    Ok(run)
}

/// Takes the parts of `w` along `basis` out of it; returns their lengths, the norm of what is left, and how many parts want to stop.
fn orthogonalise<S: Space>(
    w: &mut [f64],
    basis: &[Vec<f64>],
    stop: bool,
    space: &mut S,
) -> Result<(Vec<f64>, f64, f64), S::Error> {
    let mut lengths: Vec<f64> = basis.iter().map(|v| dot(v, w)).collect();
    lengths.push(dot(w, w));
    lengths.push(f64::from(u8::from(stop)));
    space.sum(&mut lengths)?;
    let stops = lengths.pop().expect("pushed above");
    let whole_sq = lengths.pop().expect("pushed above");
    let mut left_sq = whole_sq;
    for (length, vector) in lengths.iter().zip(basis) {
        add(w, -length, vector);
        left_sq -= length * length;
    }
    // NaN, too, is judged after the second pass.
    if left_sq.is_nan() || left_sq <= CANCELS * whole_sq {
        let mut again: Vec<f64> = basis.iter().map(|v| dot(v, w)).collect();
        space.sum(&mut again)?;
        for ((length, again), vector) in lengths.iter_mut().zip(&again).zip(basis) {
            add(w, -again, vector);
            *length += again;
        }
        let mut sums = [dot(w, w)];
        space.sum(&mut sums)?;
        left_sq = sums[0];
    }
    Ok((lengths, left_sq.max(0.0).sqrt(), stops))
}

/// The Hessenberg matrix, kept triangular by rotations, with the right-hand side of the least-squares problem.
struct Triangle {
    columns: Vec<Vec<f64>>,
    rotations: Vec<(f64, f64)>,
    rhs: Vec<f64>,
    /// ‖r‖ after the newest column.
    residual: f64,
}

impl Triangle {
    fn new(beta: f64) -> Self {
        Self {
            columns: Vec::new(),
            rotations: Vec::new(),
            rhs: vec![beta],
            residual: beta,
        }
    }

    fn push(&mut self, mut column: Vec<f64>, norm: f64) {
        for (k, (c, s)) in self.rotations.iter().enumerate() {
            let (upper, lower) = (column[k], column[k + 1]);
            column[k] = c * upper + s * lower;
            column[k + 1] = c * lower - s * upper;
        }
        let last = column.len() - 1;
        let length = column[last].hypot(norm);
        let (c, s) = if length > 0.0 {
            (column[last] / length, norm / length)
        } else {
            (1.0, 0.0)
        };
        column[last] = length;
        self.columns.push(column);
        self.rotations.push((c, s));
        let g = self.rhs[last];
        self.rhs[last] = c * g;
        self.rhs.push(-s * g);
        self.residual = (s * g).abs();
    }

    /// The factors of the basis. A pivot of nearly zero (singular A) gives a factor of 0.
    fn solve(&self) -> Vec<f64> {
        let n = self.columns.len();
        let largest = self
            .columns
            .iter()
            .flatten()
            .fold(0.0f64, |most, h| most.max(h.abs()));
        let mut y = vec![0.0; n];
        for k in (0..n).rev() {
            let known: f64 = (k + 1..n).map(|j| self.columns[j][k] * y[j]).sum();
            let pivot = self.columns[k][k];
            y[k] = if pivot.abs() <= EXHAUSTED * largest {
                0.0
            } else {
                (self.rhs[k] - known) / pivot
            };
        }
        y
    }
}
