//! The objective: mean loss of a row plus λ/2 ‖w‖². Loss, gradient and Hessian of one node's rows, as sums that add up over nodes.
//!
//! Parameters θ have, for each output, the coefficients and then the intercept. Regressions and two classes have one output; more classes one each.
//! Statistics are plain vectors, so that they are summed and sent as they are; [`Shape`] says what lies where.

use std::ops::Range;

use crate::config::Kind;
use crate::data::{Features, Row, dot};
use tsumuji_factor::Squares;

/// Sizes of parameters and statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// Parameters of an output: one for each column, and the intercept.
    pub width: usize,
    /// Number of outputs.
    pub outputs: usize,
}

impl Shape {
    /// Number of parameters.
    pub fn parameters(self) -> usize {
        self.width * self.outputs
    }

    /// Entries of the upper triangle of one output's Hessian, row after row.
    pub fn triangle(self) -> usize {
        self.width * (self.width + 1) / 2
    }

    /// Length of a statistic: rows; then for each output the loss, the gradient, and with `hessian` its triangle.
    pub fn statistic(self, hessian: bool) -> usize {
        1 + self.outputs * self.stride(hessian)
    }

    fn stride(self, hessian: bool) -> usize {
        1 + self.width + if hessian { self.triangle() } else { 0 }
    }

    /// Of one output in a statistic: loss, gradient, triangle (empty without Hessian).
    pub fn parts(self, statistic: &[f64], hessian: bool, output: usize) -> (f64, &[f64], &[f64]) {
        let stride = self.stride(hessian);
        let part = &statistic[1 + output * stride..1 + (output + 1) * stride];
        (part[0], &part[1..1 + self.width], &part[1 + self.width..])
    }
}

/// The rows of one node, scaled.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// The model.
    pub kind: Kind,
    /// Number of outputs.
    pub outputs: usize,
    /// The rows.
    pub features: Features,
    /// Of each row its number, or the number of its class.
    pub targets: Vec<f64>,
}

/// Loss of one row and its first two derivatives by the prediction.
#[derive(Debug, Clone, Copy)]
struct Point {
    loss: f64,
    slope: f64,
    curvature: f64,
}

impl Share {
    /// Sizes of parameters and statistics.
    pub fn shape(&self) -> Shape {
        Shape {
            width: self.features.columns() + 1,
            outputs: self.outputs,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.targets.len()
    }

    /// Keeps the first rows.
    pub(crate) fn truncate(&mut self, rows: usize) {
        self.features.truncate(rows);
        self.targets.truncate(rows);
    }

    /// Target of a row for one output: a number, or 1 and −1 for the class and the others.
    fn target(&self, row: usize, output: usize) -> f64 {
        match self.kind {
            Kind::Linear | Kind::Ridge => self.targets[row],
            Kind::Logistic | Kind::Svm => {
                let positive = if self.outputs == 1 { 1 } else { output };
                if self.targets[row] == positive as f64 {
                    1.0
                } else {
                    -1.0
                }
            }
        }
    }

    /// What one output's parameters predict for a row.
    pub(crate) fn predict(&self, row: usize, theta: &[f64]) -> f64 {
        let (intercept, weights) = theta.split_last().expect("there is an intercept");
        self.features.dot(row, weights) + intercept
    }

    fn point(&self, row: usize, output: usize, theta: &[f64]) -> Point {
        let (z, y) = (self.predict(row, theta), self.target(row, output));
        match self.kind {
            Kind::Linear | Kind::Ridge => Point {
                loss: 0.5 * (z - y) * (z - y),
                slope: z - y,
                curvature: 1.0,
            },
            Kind::Logistic => {
                let margin = y * z;
                let small = (-margin.abs()).exp(); // never overflows
                let wrong = if margin >= 0.0 { small } else { 1.0 } / (1.0 + small);
                Point {
                    loss: small.ln_1p() + (-margin).max(0.0),
                    slope: -y * wrong,
                    curvature: wrong * (1.0 - wrong),
                }
            }
            Kind::Svm => {
                let missing = (1.0 - y * z).max(0.0);
                Point {
                    loss: missing * missing,
                    slope: -2.0 * y * missing,
                    curvature: if missing > 0.0 { 2.0 } else { 0.0 },
                }
            }
        }
    }

    /// The statistic of all rows at `theta`.
    pub fn statistic(&self, theta: &[f64], hessian: bool) -> Vec<f64> {
        let shape = self.shape();
        let mut statistic = vec![0.0; shape.statistic(hessian)];
        statistic[0] = self.rows() as f64;
        let outputs = statistic[1..].chunks_exact_mut(shape.stride(hessian));
        for ((output, part), theta) in outputs.enumerate().zip(theta.chunks_exact(shape.width)) {
            let (loss, rest) = part.split_first_mut().expect("a loss");
            let (gradient, triangle) = rest.split_at_mut(shape.width);
            let mut squares =
                (hessian && self.features.is_dense()).then(|| Squares::new(shape.width));
            for row in 0..self.rows() {
                let point = self.point(row, output, theta);
                *loss += point.loss;
                self.features.add_scaled(row, point.slope, gradient);
                gradient[shape.width - 1] += point.slope;
                if !hessian || point.curvature == 0.0 {
                    continue;
                }
                match (self.features.row(row), &mut squares) {
                    (Row::Sparse(indices, values), _) => {
                        add_square((indices, values), point.curvature, shape.width, triangle);
                    }
                    (Row::Dense(x), Some(squares)) => squares.add(x, point.curvature),
                    (Row::Dense(_), None) => unreachable!("made where rows are dense"),
                }
            }
            if let Some(squares) = squares {
                squares.write(triangle);
            }
        }
        statistic
    }

    /// Derivatives of the losses of some rows by one output's predictions, at the parameters `scale · (weights, intercept)`.
    pub(crate) fn slopes(
        &self,
        rows: Range<usize>,
        output: usize,
        (weights, intercept, scale): (&[f64], f64, f64),
        slopes: &mut Vec<f64>,
    ) {
        slopes.clear();
        let predict = |product: f64| scale * (product + intercept);
        let features = &self.features;
        match self.kind {
            Kind::Linear | Kind::Ridge => {
                let mut targets = self.targets[rows.clone()].iter();
                features.dots(rows, weights, |product| {
                    let y = targets.next().copied().unwrap_or_default();
                    slopes.push(predict(product) - y);
                });
            }
            Kind::Logistic => {
                let mut row = rows.start;
                features.dots(rows, weights, |product| {
                    let y = self.target(row, output);
                    // For large margins the exponential overflows to infinity, and the slope is 0.
                    slopes.push(-y / (1.0 + (y * predict(product)).exp()));
                    row += 1;
                });
            }
            Kind::Svm => {
                let mut row = rows.start;
                features.dots(rows, weights, |product| {
                    let y = self.target(row, output);
                    slopes.push(-2.0 * y * (1.0 - y * predict(product)).max(0.0));
                    row += 1;
                });
            }
        }
    }

    /// Most curvature of the loss of one row, by its prediction.
    pub fn curvature(&self) -> f64 {
        self.kind.curvature()
    }

    /// ‖x‖² + 1 of a row.
    pub(crate) fn square(&self, row: usize) -> f64 {
        let mut sum = 1.0;
        self.features.for_each(row, |_, x| sum += x * x);
        sum
    }
}

/// `triangle += factor · x xᵀ` for a sparse row with a 1 at its end.
fn add_square(
    (indices, values): (&[u32], &[f64]),
    factor: f64,
    width: usize,
    triangle: &mut [f64],
) {
    for (place, (j, x)) in indices.iter().zip(values).enumerate() {
        let (j, scaled) = (*j as usize, factor * x);
        // Where the line of entry (j, j) begins, less j.
        let line = j * width - j * (j + 1) / 2;
        for (k, x) in indices[place..].iter().zip(&values[place..]) {
            triangle[line + *k as usize] += scaled * x;
        }
        triangle[line + width - 1] += scaled;
    }
    triangle[width * (width + 1) / 2 - 1] += factor;
}

/// Value of the objective and norm of its gradient, from a sum of statistics at `theta`.
pub(crate) fn assess(
    shape: Shape,
    sums: &[f64],
    hessian: bool,
    theta: &[f64],
    l2: f64,
) -> (f64, f64) {
    let rows = sums[0].max(1.0);
    let (mut value, mut squares) = (0.0, 0.0);
    for (output, theta) in theta.chunks_exact(shape.width).enumerate() {
        let (loss, gradient, _) = shape.parts(sums, hessian, output);
        let weights = &theta[..shape.width - 1];
        value += loss / rows + 0.5 * l2 * dot(weights, weights);
        for (j, slope) in gradient.iter().enumerate() {
            let penalty = weights.get(j).map_or(0.0, |weight| l2 * weight);
            squares += (slope / rows + penalty) * (slope / rows + penalty);
        }
    }
    (value, squares.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(kind: Kind, outputs: usize) -> Share {
        let mut random = fastrand::Rng::with_seed(5);
        let values = (0..40 * 3).map(|_| random.f64() * 2.0 - 1.0).collect();
        let targets = (0..40).map(|_| match kind {
            Kind::Linear | Kind::Ridge => random.f64(),
            _ => random.usize(..outputs.max(2)) as f64,
        });
        Share {
            kind,
            outputs,
            targets: targets.collect(),
            features: Features::Dense { columns: 3, values },
        }
    }

    /// Gradients and Hessians are those that differences of losses and gradients show.
    #[test]
    fn derivatives_agree_with_differences() {
        const STEP: f64 = 1e-6;
        for (kind, outputs) in [(Kind::Linear, 1), (Kind::Logistic, 3), (Kind::Svm, 1)] {
            let share = share(kind, outputs);
            let shape = share.shape();
            let theta: Vec<f64> = (0..shape.parameters())
                .map(|i| 0.3 - 0.1 * i as f64)
                .collect();
            let here = share.statistic(&theta, true);
            for output in 0..outputs {
                let (_, gradient, triangle) = shape.parts(&here, true, output);
                let mut entry = 0;
                for j in 0..shape.width {
                    let moved = |by: f64| {
                        let mut theta = theta.clone();
                        theta[output * shape.width + j] += by;
                        share.statistic(&theta, false)
                    };
                    let (ahead, behind) = (moved(STEP), moved(-STEP));
                    let (up, up_gradient, _) = shape.parts(&ahead, false, output);
                    let (down, down_gradient, _) = shape.parts(&behind, false, output);
                    let slope = (up - down) / (2.0 * STEP);
                    assert!(
                        (slope - gradient[j]).abs() < 1e-5,
                        "{kind:?}: {slope} {}",
                        gradient[j]
                    );
                    for k in j..shape.width {
                        let bend = (up_gradient[k] - down_gradient[k]) / (2.0 * STEP);
                        assert!((bend - triangle[entry]).abs() < 1e-4, "{kind:?}: {bend}");
                        entry += 1;
                    }
                }
            }
        }
    }

    /// Sparse rows give the statistic of the same rows in dense form, and parts add up.
    #[test]
    fn forms_and_parts_agree() {
        let dense = share(Kind::Logistic, 3);
        let Features::Dense { values, .. } = &dense.features else {
            panic!("dense")
        };
        let sparse = Share {
            features: Features::Sparse {
                columns: 3,
                starts: (0..=40).map(|row| row * 3).collect(),
                indices: (0..120).map(|place| place % 3).collect(),
                values: values.clone(),
            },
            ..dense.clone()
        };
        let theta = vec![0.2; dense.shape().parameters()];
        let whole = dense.statistic(&theta, true);
        let sums =
            |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum() };
        assert!(sums(&whole, &sparse.statistic(&theta, true)) < 1e-11);
        let part = |order: &[usize]| Share {
            features: dense.features.in_order(order),
            targets: order.iter().map(|row| dense.targets[*row]).collect(),
            ..dense.clone()
        };
        let (first, second): (Vec<usize>, Vec<usize>) = ((0..13).collect(), (13..40).collect());
        let mut added = part(&first).statistic(&theta, true);
        let other = part(&second).statistic(&theta, true);
        added.iter_mut().zip(other).for_each(|(a, b)| *a += b);
        assert!(sums(&whole, &added) < 1e-11);
        // The slopes of all rows make the same gradient.
        for kind in [Kind::Logistic, Kind::Svm, Kind::Linear] {
            let share = Share {
                kind,
                ..sparse.clone()
            };
            let whole = share.statistic(&theta, false);
            let (_, wanted, _) = share.shape().parts(&whole, false, 2);
            let (mut slopes, mut gradient) = (Vec::new(), vec![0.0; 3]);
            share.slopes(0..40, 2, (&[0.4; 3], 0.4, 0.5), &mut slopes);
            share.features.add_rows(0..40, 1.0, &slopes, &mut gradient);
            assert!(sums(&gradient, &wanted[..3]) < 1e-12, "{kind:?}");
            assert!((slopes.iter().sum::<f64>() - wanted[3]).abs() < 1e-12);
        }
    }
}
