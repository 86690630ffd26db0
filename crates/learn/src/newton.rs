//! Newton's method on sums of statistics: the same steps wherever the sums are made, with the same bits for the same sums.
//!
//! Asked by whoever has the sums (one process, gossip, all-reduce) what to do next. Each output is a problem of its own. A step that does not lessen
//! the objective enough is halved. A Hessian that is not positive definite is inverted where it is: of the solutions of a least-squares problem with
//! dependent columns the shortest is found, if columns count by their deviations.

use tsumuji_factor::{Square, solve_symmetric};

use crate::data::dot;
use crate::objective::Shape;

/// Largest width of Hessians: 32 MB each.
pub const NEWTON_WIDTH_MAX: usize = 2_048;
/// Most numbers of a statistic, 32 MB: it is one message, and a receiver has room for several.
pub(crate) const STATISTIC_MAX: usize = 1 << 22;
/// Steps after which the method gives up; it needs about ten.
pub(crate) const STEPS_MAX: u64 = 200;
/// Part of the promised decrease that a step must keep (Armijo's rule).
const DECREASE: f64 = 1e-4;
/// Rounding of the objective, relative: a difference below is none.
const ROUNDING: f64 = 1e-12;
/// Halvings of one step; after so many it is rounding.
const HALVINGS_MAX: u32 = 40;
/// Eigenvalues below this part of the largest, times the width, are zero.
const RANK: f64 = 1e-13;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Advance {
    /// Make statistics at [`Newton::theta`].
    Evaluate,
    /// The gradient is below the tolerance.
    Converged,
    /// No step lessens the objective further, or there were too many.
    Stagnated,
}

/// The last accepted point of one output, and the step from there.
#[derive(Debug, Clone, Default)]
struct Base {
    theta: Vec<f64>,
    value: f64,
    gradient_norm: f64,
    direction: Vec<f64>,
    /// Change of the value for a small step.
    slope: f64,
    step: f64,
    halvings: u32,
    is_stuck: bool,
}

/// State of the method.
#[derive(Debug, Clone)]
pub(crate) struct Newton {
    shape: Shape,
    l2: f64,
    tol: f64,
    theta: Vec<f64>,
    bases: Vec<Option<Base>>,
    steps: u64,
}

impl Newton {
    /// Begins at `theta`.
    pub(crate) fn new(shape: Shape, l2: f64, tol: f64, theta: Vec<f64>) -> Self {
        Self {
            shape,
            l2,
            tol,
            theta,
            bases: vec![None; shape.outputs],
            steps: 0,
        }
    }

    /// Where statistics are wanted.
    pub(crate) fn theta(&self) -> &[f64] {
        &self.theta
    }

    /// Sums of statistics so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Value of the objective and norm of its gradient at the last accepted point.
    pub(crate) fn progress(&self) -> (f64, f64) {
        let bases = || self.bases.iter().flatten();
        let squares: f64 = bases()
            .map(|base| base.gradient_norm * base.gradient_norm)
            .sum();
        (bases().map(|base| base.value).sum(), squares.sqrt())
    }

    /// Takes the sums of all rows at [`theta`](Self::theta).
    pub(crate) fn advance(&mut self, sums: &[f64]) -> Advance {
        self.steps += 1;
        for output in 0..self.shape.outputs {
            self.advance_output(output, sums);
        }
        let (_, gradient_norm) = self.progress();
        let bases = || self.bases.iter().flatten();
        let next = if gradient_norm <= self.tol {
            Advance::Converged
        } else if self.steps >= STEPS_MAX || bases().all(|base| base.is_stuck) {
            Advance::Stagnated
        } else {
            return Advance::Evaluate;
        };
        // The best of each output; a step that was tried meanwhile is not needed.
        let best = bases().flat_map(|base| base.theta.iter().copied());
        self.theta = best.collect();
        next
    }

    fn advance_output(&mut self, output: usize, sums: &[f64]) {
        let (shape, l2) = (self.shape, self.l2);
        let rows = sums[0].max(1.0);
        let theta = &mut self.theta[output * shape.width..(output + 1) * shape.width];
        let (loss, gradient, triangle) = shape.parts(sums, true, output);
        let weights = &theta[..shape.width - 1];
        let value = loss / rows + 0.5 * l2 * dot(weights, weights);
        if let Some(base) = &mut self.bases[output] {
            if base.is_stuck {
                return;
            }
            let allowed =
                base.value + DECREASE * base.step * base.slope + ROUNDING * base.value.abs();
            let is_better = value <= allowed; // false for NaN
            if !is_better {
                base.halvings += 1;
                base.is_stuck = base.halvings > HALVINGS_MAX;
                base.step = if base.is_stuck { 0.0 } else { base.step / 2.0 };
                for ((theta, from), along) in theta.iter_mut().zip(&base.theta).zip(&base.direction)
                {
                    *theta = from + base.step * along;
                }
                return;
            }
        }
        let mut gradient: Vec<f64> = gradient.iter().map(|slope| slope / rows).collect();
        for (slope, weight) in gradient.iter_mut().zip(weights) {
            *slope += l2 * weight;
        }
        let gradient_norm = dot(&gradient, &gradient).sqrt();
        // Without a lesser gradient at the same value, there is only rounding left.
        let is_stuck = (self.bases[output].as_ref()).is_some_and(|base| {
            base.value - value <= ROUNDING * value.abs()
                && gradient_norm >= 0.5 * base.gradient_norm
        });
        let direction = direction(shape.width, triangle, rows, l2, &gradient);
        let mut base = Base {
            theta: theta.to_vec(),
            value,
            gradient_norm,
            slope: dot(&direction, &gradient),
            direction,
            step: 1.0,
            halvings: 0,
            is_stuck,
        };
        let share_of_tol = self.tol / (shape.outputs as f64).sqrt();
        if gradient_norm <= share_of_tol || is_stuck || base.slope >= 0.0 {
            base.is_stuck = true; // done, or nothing to gain
        } else {
            for (theta, along) in theta.iter_mut().zip(&base.direction) {
                *theta += along;
            }
        }
        self.bases[output] = Some(base);
    }
}

/// −H⁻¹ g for the Hessian of mean loss and penalty. The intercept is eliminated first, and then all columns get the same curvature: neither columns far
/// from zero nor those of another scale hide others by rounding.
fn direction(width: usize, triangle: &[f64], rows: f64, l2: f64, gradient: &[f64]) -> Vec<f64> {
    let last = width - 1;
    let entry = |i: usize, j: usize| {
        let (i, j) = (i.min(j), i.max(j));
        triangle[i * width - i * (i + 1) / 2 + j] / rows
    };
    let of_intercept = entry(last, last);
    let is_bent = of_intercept > 0.0;
    // Means of the columns, each row as heavy as its curvature.
    let means: Vec<f64> = (0..last)
        .map(|j| {
            if is_bent {
                entry(j, last) / of_intercept
            } else {
                0.0
            }
        })
        .collect();
    let centred = |i: usize, j: usize| entry(i, j) - means[i.min(j)] * entry(i.max(j), last);
    let is_constant: Vec<bool> = (0..last)
        .map(|j| centred(j, j) <= RANK * entry(j, j))
        .collect();
    let curvature = |i: usize, j: usize| {
        let centred = if is_constant[i] || is_constant[j] {
            0.0
        } else {
            centred(i, j)
        };
        centred + if i == j { l2 } else { 0.0 }
    };
    let scales: Vec<f64> = (0..last)
        .map(|j| match curvature(j, j).sqrt() {
            scale if scale > 0.0 => scale,
            _ => 1.0,
        })
        .collect();
    let hessian = Square::from_fn(last, |i, j| curvature(i, j) / (scales[i] * scales[j]));
    let slope = |j: usize| (gradient[j] - means[j] * gradient[last]) / scales[j];
    let negative: Vec<f64> = (0..last).map(|j| -slope(j)).collect();
    let Some(solved) = solve_symmetric(&hessian, &negative, RANK) else {
        return gradient.iter().map(|slope| -slope).collect();
    };
    let mut direction: Vec<f64> = (solved.iter().zip(&scales))
        .map(|(along, scale)| along / scale)
        .collect();
    direction.push(if is_bent {
        -gradient[last] / of_intercept - dot(&means, &direction)
    } else {
        0.0
    });
    direction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;
    use crate::data::Features;
    use crate::objective::{Share, assess};

    fn run(share: &Share, l2: f64, tol: f64) -> (Advance, Newton) {
        let shape = share.shape();
        let mut newton = Newton::new(shape, l2, tol, vec![0.0; shape.parameters()]);
        loop {
            let sums = share.statistic(newton.theta(), true);
            match newton.advance(&sums) {
                Advance::Evaluate => {}
                end => return (end, newton),
            }
        }
    }

    fn share(kind: Kind, columns: usize, rows: usize, seed: u64) -> Share {
        let mut random = fastrand::Rng::with_seed(seed);
        let values: Vec<f64> = (0..rows * columns)
            .map(|_| random.f64() * 2.0 - 1.0)
            .collect();
        let sum = |row: usize| {
            values[row * columns..(row + 1) * columns]
                .iter()
                .sum::<f64>()
        };
        let targets = (0..rows).map(|row| match kind {
            Kind::Linear | Kind::Ridge => 3.0 * sum(row) + 0.5,
            _ => f64::from(u8::from(sum(row) + random.f64() > 0.5)),
        });
        Share {
            kind,
            outputs: 1,
            targets: targets.collect(),
            features: Features::Dense { columns, values },
        }
    }

    /// Least squares takes one step, and finds the coefficients.
    #[test]
    fn least_squares_takes_one_step() {
        let (end, newton) = run(&share(Kind::Linear, 4, 50, 3), 0.0, 1e-10);
        assert_eq!((end, newton.steps()), (Advance::Converged, 2));
        for weight in &newton.theta()[..4] {
            assert!((weight - 3.0).abs() < 1e-12);
        }
        assert!((newton.theta()[4] - 0.5).abs() < 1e-12);
    }

    /// Classifiers converge from zero, also where the classes are apart and the penalty is slight.
    #[test]
    fn classifiers_converge() {
        for kind in [Kind::Logistic, Kind::Svm] {
            for (seed, l2) in [(1, 1e-2), (2, 1e-4), (3, 1e-8)] {
                let share = share(kind, 5, 200, seed);
                let (end, newton) = run(&share, l2, 1e-9);
                assert_eq!(
                    end,
                    Advance::Converged,
                    "{kind:?} {l2}: {:?}",
                    newton.progress()
                );
                let sums = share.statistic(newton.theta(), false);
                let (_, norm) = assess(share.shape(), &sums, false, newton.theta(), l2);
                assert!(norm <= 1.0001e-9, "{norm}");
                assert!(newton.steps() < 60, "{}", newton.steps());
            }
        }
    }

    /// Columns far from zero and of different scales are no trouble, nor is one that never changes.
    #[test]
    fn badly_placed_columns_are_no_trouble() {
        for kind in [Kind::Linear, Kind::Logistic] {
            let mut share = share(kind, 4, 300, 5);
            share.features.change(|j, x| match j {
                0 => 1e7 + 1e6 * x,
                1 => 1000.0 + x,
                2 => 1e-3 * x,
                _ => 3.0,
            });
            let (end, newton) = run(&share, 0.0, 1e-6);
            assert_eq!(end, Advance::Converged, "{kind:?}: {:?}", newton.progress());
            assert!(newton.steps() < 20, "{kind:?}: {}", newton.steps());
        }
    }

    /// Dependent columns have many solutions; the shortest is found.
    #[test]
    fn dependent_columns_are_no_trouble() {
        let mut share = share(Kind::Linear, 3, 40, 9);
        share.features.change(|_, x| x);
        let Features::Dense { values, .. } = &mut share.features else {
            panic!("dense")
        };
        for row in values.chunks_exact_mut(3) {
            row[2] = row[1];
        }
        let (end, newton) = run(&share, 0.0, 1e-9);
        assert_eq!(end, Advance::Converged, "{:?}", newton.progress());
        assert!((newton.theta()[1] - newton.theta()[2]).abs() < 1e-9);
    }
}
