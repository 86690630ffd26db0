//! The parameters of SGD and their average, so stored that a step costs no more than the values of its rows.
//!
//! The parameters are `scale · base`, the average is `own · rest + shared · base`. A penalty then changes `scale` only, and averaging changes the three
//! factors only; a step by a sparse row touches the entries of its columns. [`settle`](Iterates::settle) writes both vectors out.
//!
//! Invariant: `scale` and `own` stay above [`FACTOR_MIN`] from step to step, so that rounding is not magnified.

use std::ops::Range;

use crate::data::Features;

/// Factors below this are multiplied out. What rounding loses of the average is this much larger than that of a number.
const FACTOR_MIN: f64 = 1e-4;

/// Parameters and average of all outputs.
#[derive(Debug, Clone)]
pub(super) struct Iterates {
    /// Parameters of one output.
    width: usize,
    base: Vec<f64>,
    scale: f64,
    rest: Vec<f64>,
    own: f64,
    shared: f64,
    /// Parameters in the average.
    averaged: u64,
}

impl Iterates {
    /// All zero, without an average.
    pub(super) fn new(width: usize, outputs: usize) -> Self {
        Self {
            width,
            base: vec![0.0; width * outputs],
            scale: 1.0,
            rest: vec![0.0; width * outputs],
            own: 1.0,
            shared: 0.0,
            averaged: 0,
        }
    }

    /// Writes out both vectors: all factors are then 1, and `shared` 0.
    fn settle(&mut self) {
        if self.shared != 0.0 || self.own != 1.0 {
            for (rest, base) in self.rest.iter_mut().zip(&self.base) {
                *rest = self.own * *rest + self.shared * base;
            }
            (self.own, self.shared) = (1.0, 0.0);
        }
        if self.scale != 1.0 {
            self.base.iter_mut().for_each(|base| *base *= self.scale);
            self.scale = 1.0;
        }
    }

    /// The parameters, which may be changed.
    pub(super) fn theta(&mut self) -> &mut [f64] {
        self.settle();
        &mut self.base
    }

    /// Whether parameters were averaged.
    pub(super) fn has_average(&self) -> bool {
        self.averaged > 0
    }

    /// The average; without any it is zero.
    pub(super) fn average(&mut self) -> &[f64] {
        self.settle();
        &self.rest
    }

    /// Coefficients and intercept of one output, and the factor that makes them parameters.
    pub(super) fn output(&self, output: usize) -> (&[f64], f64, f64) {
        let of_output = &self.base[output * self.width..(output + 1) * self.width];
        let (intercept, weights) = of_output.split_last().expect("there is an intercept");
        (weights, *intercept, self.scale)
    }

    /// Adds `factors[i] · x_i` of the rows to one output's parameters; each row has a 1 at its end.
    pub(super) fn add_rows(
        &mut self,
        output: usize,
        features: &Features,
        rows: Range<usize>,
        factors: &[f64],
    ) {
        let of_output = output * self.width..(output + 1) * self.width;
        let (intercept, weights) = self.base[of_output.clone()]
            .split_last_mut()
            .expect("there is an intercept");
        let to_base = 1.0 / self.scale;
        *intercept += to_base * factors.iter().sum::<f64>();
        features.add_rows(rows.clone(), to_base, factors, weights);
        if self.shared != 0.0 {
            // The average must not change by what `base` does.
            let to_rest = -self.shared / self.own * to_base;
            let (intercept, weights) = self.rest[of_output]
                .split_last_mut()
                .expect("there is an intercept");
            *intercept += to_rest * factors.iter().sum::<f64>();
            features.add_rows(rows, to_rest, factors, weights);
        }
    }

    /// Adds `factor · change` to one output's parameters.
    pub(super) fn add(&mut self, output: usize, factor: f64, change: &[f64]) {
        let of_output = output * self.width..(output + 1) * self.width;
        let to_base = factor / self.scale;
        let base = self.base[of_output.clone()].iter_mut();
        base.zip(change)
            .for_each(|(base, change)| *base += to_base * change);
        if self.shared != 0.0 {
            let to_rest = -self.shared / self.own * to_base;
            let rest = self.rest[of_output].iter_mut();
            rest.zip(change)
                .for_each(|(rest, change)| *rest += to_rest * change);
        }
    }

    /// Multiplies all coefficients, but no intercept.
    pub(super) fn shrink(&mut self, factor: f64) {
        if factor == 1.0 {
            return;
        }
        self.scale *= factor;
        let to_rest = self.shared / self.own;
        for place in (self.width - 1..self.base.len()).step_by(self.width) {
            let grown = self.base[place] / factor;
            self.rest[place] -= to_rest * (grown - self.base[place]);
            self.base[place] = grown;
        }
        if self.scale < FACTOR_MIN {
            self.settle();
        }
    }

    /// Takes the present parameters into the average with the weight that makes the newest of n count (`recent` + 1) / (`recent` + n).
    pub(super) fn take_average(&mut self, recent: f64) {
        self.averaged += 1;
        let part = (recent + 1.0) / (recent + self.averaged as f64);
        self.own *= 1.0 - part;
        self.shared = (1.0 - part) * self.shared + part * self.scale;
        if self.own < FACTOR_MIN {
            self.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps, penalties and averages are those of plain vectors, for sparse and dense rows.
    #[test]
    fn agrees_with_plain_vectors() {
        const RECENT: f64 = 3.0;
        let sparse = Features::Sparse {
            columns: 3,
            starts: vec![0, 2, 3],
            indices: vec![0, 2, 1],
            values: vec![1.5, -2.0, 0.7],
        };
        let dense = [[1.5, 0.0, -2.0, 1.0], [0.0, 0.7, 0.0, 1.0]];
        let mut random = fastrand::Rng::with_seed(6);
        let mut iterates = Iterates::new(4, 2);
        let (mut theta, mut average) = ([[0.0; 4]; 2], [[0.0; 4]; 2]);
        for step in 1..2000 {
            for output in 0..2 {
                let factors = [random.f64() - 0.5, random.f64() - 0.5];
                if random.bool() {
                    iterates.add_rows(output, &sparse, 0..2, &factors);
                } else {
                    for (factor, row) in factors.iter().zip(&dense) {
                        iterates.add(output, *factor, row);
                    }
                }
                for (factor, row) in factors.iter().zip(&dense) {
                    for (theta, x) in theta[output].iter_mut().zip(row) {
                        *theta += factor * x;
                    }
                }
            }
            let factor = if step % 100 == 0 { 1e-3 } else { 0.99 };
            iterates.shrink(factor);
            theta.iter_mut().for_each(|theta| {
                theta[..3].iter_mut().for_each(|theta| *theta *= factor);
            });
            if step > 10 {
                iterates.take_average(RECENT);
                let part = (RECENT + 1.0) / (RECENT + f64::from(step - 10));
                let all = average.as_flattened_mut().iter_mut();
                all.zip(theta.as_flattened())
                    .for_each(|(average, theta)| *average += part * (theta - *average));
            }
            if step % 333 == 0 {
                // An exchange changes the parameters, and no average.
                iterates.theta()[1] += 0.25;
                theta[0][1] += 0.25;
            }
        }
        let found = iterates.average().to_vec();
        for (found, wanted) in found.iter().zip(average.as_flattened()) {
            assert!(
                (found - wanted).abs() < 1e-10 * (1.0 + wanted.abs()),
                "{found} {wanted}"
            );
        }
        for (found, wanted) in iterates.theta().iter().zip(theta.as_flattened()) {
            assert!(
                (found - wanted).abs() < 1e-10 * (1.0 + wanted.abs()),
                "{found} {wanted}"
            );
        }
    }
}
