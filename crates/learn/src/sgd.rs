//! Stochastic gradient descent on one node's rows: minibatches, a shrinking step, averaged iterates.
//!
//! Driven step by step, so that the driver can exchange parameters between steps. Rows lie in random order already; an epoch takes stretches of
//! neighbours, in another order each time, so that memory is read in stretches. `iterates` stores the parameters.

mod iterates;

use std::ops::Range;

use crate::config::{Schedule, SgdConfig};
use crate::objective::{Shape, Share};
use crate::tuning::TUNING;
use iterates::Iterates;

/// How much more recent parameters weigh in the average: the last quarter has about two thirds of the weight (polynomial-decay averaging).
const RECENT: f64 = 3.0;

/// The rate where the user states none, for workers of so many rows: the inverse of the curvature of the mean loss of a minibatch, less where an epoch has
/// many steps: the noise that is left grows with the rate, and many steps get near the optimum by small ones, too.
///
/// The curvature of one row is C ‖x‖², C being the most by its prediction, and large rows count by their size; that of very many rows is C times the largest
/// eigenvalue of the mean of x xᵀ; that of a minibatch lies between (the expected smoothness of Gower et al., 2019).
pub(crate) fn rate_of(share: &Share, config: &SgdConfig, rows: usize) -> f64 {
    let batch = config.batch_of(rows).min(rows.max(1));
    let steps = rows.div_ceil(batch).max(1);
    let squares = (0..share.rows()).map(|row| share.square(row));
    let (sum, by_size) = squares.fold((0.0, 0.0), |(sum, by_size), square| {
        (sum + square, by_size + square * square)
    });
    let alone = by_size / sum;
    let common = common_square(share).min(alone);
    let largest = 1.0 / (share.curvature() * (common + (alone - common) / batch as f64));
    let rate = largest * (TUNING.sgd.steps_min as f64 / steps as f64).sqrt().min(1.0);
    // Squares of very large numbers overflow.
    if rate.is_finite() && rate > 0.0 {
        rate
    } else {
        f64::MIN_POSITIVE
    }
}

/// The largest eigenvalue of the mean of x xᵀ, with a 1 at the end of x, by the power method on some of the rows.
fn common_square(share: &Share) -> f64 {
    let stride = share.rows().div_ceil(TUNING.sgd.sought_rows).max(1);
    let rows = || (0..share.rows()).step_by(stride);
    let mut random = fastrand::Rng::with_seed(1);
    let mut direction: Vec<f64> = (0..share.shape().width)
        .map(|_| random.f64() - 0.5)
        .collect();
    let mut found = 0.0;
    for _ in 0..TUNING.sgd.sought_times {
        let norm = direction.iter().map(|x| x * x).sum::<f64>().sqrt();
        direction.iter_mut().for_each(|x| *x /= norm);
        let mut next = vec![0.0; direction.len()];
        let last = direction.len() - 1;
        for row in rows() {
            let product = share.features.dot(row, &direction[..last]) + direction[last];
            share.features.for_each(row, |j, x| next[j] += product * x);
            next[last] += product;
        }
        found = next.iter().map(|x| x * x).sum::<f64>().sqrt() / rows().len() as f64;
        direction = next;
    }
    found
}

/// State of the method on one node.
#[derive(Debug, Clone)]
pub(crate) struct Sgd {
    config: SgdConfig,
    rate: f64,
    l2: f64,
    iterates: Iterates,
    gradient: Vec<f64>,
    /// Slopes of one minibatch.
    slopes: Vec<f64>,
    /// Steps done.
    steps: u64,
    /// Minibatches of an epoch, and of a stretch.
    per_epoch: u64,
    per_stretch: u64,
    /// Order of the stretches in this epoch, and how many were begun.
    order: Vec<u32>,
    begun: usize,
    /// Minibatches that are left of the last one.
    stretch: Range<u64>,
    random: fastrand::Rng,
}

impl Sgd {
    /// Begins at zero. `rows`: of the largest share, so that all nodes take as many steps in an epoch.
    pub(crate) fn new(
        config: SgdConfig,
        rate: f64,
        l2: f64,
        shape: Shape,
        rows: usize,
        seed: u64,
    ) -> Self {
        let batch = config.batch_of(rows);
        let per_epoch = rows.div_ceil(batch).max(1);
        let per_stretch = TUNING
            .sgd
            .stretch_rows
            .min(rows / TUNING.sgd.stretches_min)
            .div_ceil(batch)
            .max(1);
        let stretches = per_epoch.div_ceil(per_stretch);
        Self {
            config: SgdConfig { batch, ..config },
            rate,
            l2,
            iterates: Iterates::new(shape.width, shape.outputs),
            gradient: vec![0.0; shape.width],
            slopes: Vec::new(),
            steps: 0,
            per_epoch: per_epoch as u64,
            per_stretch: per_stretch as u64,
            order: (0..stretches as u32).collect(),
            begun: stretches,
            stretch: 0..0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Goes on from these parameters as if so many epochs were done.
    pub(crate) fn resume(&mut self, theta: &[f64], epochs: u64) {
        self.iterates.theta().copy_from_slice(theta);
        self.steps = epochs.saturating_mul(self.per_epoch);
    }

    /// Steps in an epoch.
    pub(crate) fn steps_per_epoch(&self) -> u64 {
        self.per_epoch
    }

    /// Steps done.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whole epochs done.
    pub(crate) fn epochs(&self) -> u64 {
        self.steps / self.per_epoch
    }

    /// Whether all epochs are done.
    pub(crate) fn is_done(&self) -> bool {
        self.epochs() >= self.config.epochs
    }

    /// The present parameters; an exchange may change them.
    pub(crate) fn theta(&mut self) -> &mut [f64] {
        self.iterates.theta()
    }

    /// The parameters to use: the averaged ones if they are wanted and there are any.
    pub(crate) fn result(&mut self) -> &[f64] {
        if self.config.average && self.iterates.has_average() {
            self.iterates.average()
        } else {
            self.iterates.theta()
        }
    }

    /// The next minibatch of this epoch.
    fn next_batch(&mut self) -> u64 {
        loop {
            if let Some(batch) = self.stretch.next() {
                return batch;
            }
            if self.begun == self.order.len() {
                self.begun = 0;
                self.random.shuffle(&mut self.order);
            }
            let first = u64::from(self.order[self.begun]) * self.per_stretch;
            self.stretch = first..(first + self.per_stretch).min(self.per_epoch);
            self.begun += 1;
        }
    }

    /// One step by one minibatch.
    pub(crate) fn step(&mut self, share: &Share) {
        // A smaller share takes some minibatches twice.
        let own = share.rows().div_ceil(self.config.batch).max(1);
        let start = self.next_batch() as usize % own * self.config.batch;
        let rows = start..(start + self.config.batch).min(share.rows());
        let rate = match self.config.schedule {
            Schedule::Constant => self.rate,
            Schedule::Inverse => {
                self.rate / (1.0 + self.steps as f64 / self.per_epoch as f64).sqrt()
            }
        };
        for output in 0..share.outputs {
            self.move_output(share, output, rows.clone(), rate);
        }
        // The step of the penalty is implicit, so that a large one cannot overshoot. The intercept has none.
        self.iterates.shrink(1.0 / (1.0 + rate * self.l2));
        self.steps += 1;
        if self.config.average && self.steps > self.per_epoch {
            self.iterates.take_average(RECENT);
        }
    }

    /// Moves one output's parameters against the gradient of the mean loss of some rows.
    fn move_output(&mut self, share: &Share, output: usize, rows: Range<usize>, rate: f64) {
        // The rate is that of a whole minibatch: for fewer rows, as at the end of an epoch, it would be too large.
        let whole = self.config.batch.min(share.rows()).max(rows.len()).max(1);
        let factor = -rate / whole as f64;
        let (weights, intercept, scale) = self.iterates.output(output);
        share.slopes(
            rows.clone(),
            output,
            (weights, intercept, scale),
            &mut self.slopes,
        );
        let gathers = rows.len() > 1 && share.features.is_dense();
        if !gathers {
            self.slopes.iter_mut().for_each(|slope| *slope *= factor);
            self.iterates
                .add_rows(output, &share.features, rows, &self.slopes);
            return;
        }
        self.gradient.fill(0.0);
        let (last, gradient) = self.gradient.split_last_mut().expect("an intercept");
        share.features.add_rows(rows, 1.0, &self.slopes, gradient);
        *last = self.slopes.iter().sum();
        self.iterates.add(output, factor, &self.gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;
    use crate::data::Features;
    use crate::objective::assess;

    fn line(rows: usize, noise: f64) -> Share {
        let mut random = fastrand::Rng::with_seed(11);
        let values: Vec<f64> = (0..rows).map(|_| random.f64() * 3.4 - 1.7).collect();
        let targets = values
            .iter()
            .map(|x| 2.0 * x - 1.0 + noise * (random.f64() - 0.5));
        Share {
            kind: Kind::Linear,
            outputs: 1,
            targets: targets.collect(),
            features: Features::Dense { columns: 1, values },
        }
    }

    fn run(share: &Share, config: SgdConfig) -> Sgd {
        let rate = rate_of(share, &config, share.rows());
        let mut sgd = Sgd::new(config, rate, 0.0, share.shape(), share.rows(), 1);
        while !sgd.is_done() {
            sgd.step(share);
        }
        sgd
    }

    /// y = 2x − 1 without noise is found by either schedule.
    #[test]
    fn a_line_is_found() {
        for schedule in [Schedule::Constant, Schedule::Inverse] {
            let config = SgdConfig {
                schedule,
                batch: 32,
                epochs: 40,
                ..SgdConfig::default()
            };
            let share = line(500, 0.0);
            let mut sgd = run(&share, config);
            assert_eq!((sgd.epochs(), sgd.steps()), (40, 40 * 16));
            assert!((sgd.result()[0] - 2.0).abs() < 1e-6, "{:?}", sgd.result());
            assert!((sgd.result()[1] + 1.0).abs() < 1e-6);
        }
    }

    /// With noise, averaged iterates have a smaller gradient than the last one.
    #[test]
    fn averages_are_calmer() {
        let share = line(500, 4.0);
        let norm = |average| {
            let config = SgdConfig {
                average,
                schedule: Schedule::Constant,
                ..SgdConfig::default()
            };
            let mut sgd = run(&share, config);
            let sums = share.statistic(sgd.result(), false);
            assess(share.shape(), &sums, false, sgd.result(), 0.0).1
        };
        assert!(
            norm(true) < 0.3 * norm(false),
            "{} {}",
            norm(true),
            norm(false)
        );
    }

    /// The last rows of an epoch, fewer than a minibatch, move no more than their part.
    #[test]
    fn last_minibatches_are_calm() {
        let mut random = fastrand::Rng::with_seed(3);
        let (rows, columns) = (257, 60);
        let values: Vec<f64> = (0..rows * columns)
            .map(|_| 3.4 * random.f64() - 1.7)
            .collect();
        let targets = values.chunks(columns).map(|x| x.iter().sum::<f64>() + 0.5);
        let share = Share {
            kind: Kind::Linear,
            outputs: 1,
            targets: targets.collect(),
            features: Features::Dense { columns, values },
        };
        let config = SgdConfig {
            schedule: Schedule::Constant,
            average: false,
            batch: 32,
            epochs: 200,
            ..SgdConfig::default()
        };
        let mut sgd = run(&share, config);
        let off = sgd.result()[..columns].iter().map(|w| (w - 1.0).abs());
        assert!(off.fold(0.0, f64::max) < 1e-3, "{:?}", sgd.result());
    }

    /// A minibatch of one row takes the smaller steps, more so where rows differ; that of very many rows has the curvature of the mean.
    #[test]
    fn rates_follow_batches() {
        let values = vec![2.0, 0.0, 0.0, 1.0, -2.0, 0.0, 0.0, -1.0];
        let share = Share {
            kind: Kind::Linear,
            outputs: 1,
            targets: vec![0.0; 4],
            features: Features::Dense { columns: 2, values },
        };
        // The mean of x xᵀ is diagonal: 2, 1/2 and 1; ‖x‖² + 1 is 5 or 2.
        let rate = |batch, rows| {
            let config = SgdConfig {
                batch,
                ..SgdConfig::default()
            };
            rate_of(&share, &config, rows)
        };
        let alone = f64::from(2 * 25 + 2 * 4) / f64::from(2 * 5 + 2 * 2);
        assert!((rate(1, 4) - 1.0 / alone).abs() < 1e-9, "{}", rate(1, 4));
        let whole = rate(1 << 30, 1 << 30);
        assert!((whole - 0.5).abs() < 1e-6, "{whole}");
        // Sixteen times as many steps: a quarter.
        let many = rate(1, 16 * TUNING.sgd.steps_min);
        assert!((many - 0.25 / alone).abs() < 1e-9, "{many}");
        let huge = Features::Dense {
            columns: 1,
            values: vec![1e200; 4],
        };
        let share = Share {
            features: huge,
            ..share
        };
        assert!(rate_of(&share, &SgdConfig::default(), 4) > 0.0);
    }
}
