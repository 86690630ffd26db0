//! Stochastic gradient descent on one node's rows: minibatches, a shrinking step, averaged iterates.
//!
//! Driven step by step, so that the driver can exchange parameters between steps. Rows lie in random order already; an epoch takes minibatches of
//! neighbours, in another order each time, so that memory is read in stretches.

use crate::config::{Schedule, SgdConfig};
use crate::objective::Share;

/// Part of the inverse curvature that a step takes where the user states no rate.
const RATE_PART: f64 = 0.5;

/// How much more recent parameters weigh in the average: the last quarter has about two thirds of the weight (polynomial-decay averaging).
const RECENT: f64 = 3.0;

/// The rate for data with this mean of ‖x‖² + 1, where the user states none.
pub(crate) fn rate_of(curvature: f64, mean_square: f64) -> f64 {
    RATE_PART / (curvature * mean_square).max(f64::MIN_POSITIVE)
}

/// State of the method on one node.
#[derive(Debug, Clone)]
pub(crate) struct Sgd {
    config: SgdConfig,
    rate: f64,
    l2: f64,
    theta: Vec<f64>,
    gradient: Vec<f64>,
    /// Weighted mean of the parameters after the first epoch, and how many there are.
    average: Vec<f64>,
    averaged: u64,
    /// Steps done.
    steps: u64,
    /// Order of the minibatches in this epoch.
    order: Vec<u32>,
    random: fastrand::Rng,
}

impl Sgd {
    /// Begins at zero. `rows`: of the largest share, so that all nodes take as many steps in an epoch.
    pub(crate) fn new(
        config: SgdConfig,
        rate: f64,
        l2: f64,
        parameters: usize,
        rows: usize,
        seed: u64,
    ) -> Self {
        let batches = rows.div_ceil(config.batch.max(1)).max(1);
        Self {
            config,
            rate,
            l2,
            theta: vec![0.0; parameters],
            gradient: vec![0.0; parameters],
            average: vec![0.0; parameters],
            averaged: 0,
            steps: 0,
            order: (0..batches as u32).collect(),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Steps in an epoch.
    pub(crate) fn steps_per_epoch(&self) -> u64 {
        self.order.len() as u64
    }

    /// Steps done.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whole epochs done.
    pub(crate) fn epochs(&self) -> u64 {
        self.steps / self.steps_per_epoch()
    }

    /// Whether all epochs are done.
    pub(crate) fn is_done(&self) -> bool {
        self.epochs() >= self.config.epochs
    }

    /// The present parameters.
    pub(crate) fn theta(&self) -> &[f64] {
        &self.theta
    }

    /// The same, for an exchange.
    pub(crate) fn theta_mut(&mut self) -> &mut [f64] {
        &mut self.theta
    }

    /// The parameters to use: the averaged ones if they are wanted and there are any.
    pub(crate) fn result(&self) -> &[f64] {
        if self.config.average && self.averaged > 0 {
            &self.average
        } else {
            &self.theta
        }
    }

    /// One step by one minibatch.
    pub(crate) fn step(&mut self, share: &Share) {
        let per_epoch = self.steps_per_epoch();
        let place = (self.steps % per_epoch) as usize;
        if place == 0 {
            self.random.shuffle(&mut self.order);
        }
        // A smaller share takes some minibatches twice.
        let own = share.rows().div_ceil(self.config.batch).max(1);
        let batch = self.order[place] as usize % own;
        let start = batch * self.config.batch;
        let end = (start + self.config.batch).min(share.rows());
        self.gradient.fill(0.0);
        share.add_gradient(start..end, &self.theta, &mut self.gradient);
        let rate = match self.config.schedule {
            Schedule::Constant => self.rate,
            Schedule::Inverse => self.rate / (1.0 + self.steps as f64 / per_epoch as f64).sqrt(),
        };
        let width = share.shape().width;
        let outputs = self.theta.chunks_exact_mut(width);
        for (theta, gradient) in outputs.zip(self.gradient.chunks_exact(width)) {
            // The step of the penalty is implicit, so that a large one cannot overshoot. The intercept has none.
            let shrink = 1.0 / (1.0 + rate * self.l2);
            for (place, (theta, slope)) in theta.iter_mut().zip(gradient).enumerate() {
                *theta -= rate * slope;
                if place + 1 < width {
                    *theta *= shrink;
                }
            }
        }
        self.steps += 1;
        if self.config.average && self.steps > per_epoch {
            self.averaged += 1;
            let part = (RECENT + 1.0) / (RECENT + self.averaged as f64);
            for (average, theta) in self.average.iter_mut().zip(&self.theta) {
                *average += part * (theta - *average);
            }
        }
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
        let rate = rate_of(1.0, share.squares() / share.rows() as f64);
        let mut sgd = Sgd::new(config, rate, 0.0, 2, share.rows(), 1);
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
                epochs: 40,
                ..SgdConfig::default()
            };
            let share = line(500, 0.0);
            let sgd = run(&share, config);
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
            let sgd = run(&share, config);
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
}
