//! What to learn, and how.

use serde::{Deserialize, Serialize};
use tsumuji_node::Executor;

use crate::data::Want;
use crate::tuning::TUNING;

/// A linear model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Least squares.
    Linear,
    /// Least squares with a penalty on the coefficients.
    Ridge,
    /// Logistic regression; more than two classes one versus the rest.
    Logistic,
    /// Linear support vector machine with squared hinge loss; more than two classes one versus the rest.
    Svm,
}

impl Kind {
    /// What it predicts.
    pub fn want(self) -> Want {
        match self {
            Self::Linear | Self::Ridge => Want::Numbers,
            Self::Logistic | Self::Svm => Want::Labels,
        }
    }

    /// Most curvature of the loss of one row, by its prediction.
    pub(crate) fn curvature(self) -> f64 {
        match self {
            Self::Linear | Self::Ridge => 1.0,
            Self::Logistic => 0.25,
            Self::Svm => 2.0,
        }
    }

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Ridge => "ridge",
            Self::Logistic => "logistic",
            Self::Svm => "svm",
        }
    }
}

/// How parameters are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Method {
    /// Stochastic gradient descent on each node's share; nodes average their parameters.
    Sgd,
    /// Newton's method on the sum of all nodes' gradients and Hessians.
    Newton,
}

/// How nodes exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// With their peers, by datagrams and messages.
    Gossip,
    /// All at a time, by an all-reduce.
    AllReduce,
    /// As `Gossip`, over kernel TCP sockets of this host.
    Tcp,
}

/// How workers that exchange with their peers make the sums of Newton's method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Average {
    /// `Table` among up to 128 workers, `PushSum` among more.
    #[default]
    Auto,
    /// Each worker sends its statistic to all others.
    Table,
    /// Random pairs of workers exchange parts of what they hold, until all is mixed evenly.
    PushSum,
}

impl Average {
    /// What `Auto` is for a run that begins with so many workers.
    #[must_use]
    pub fn resolved(self, workers: usize) -> Self {
        match self {
            Self::Auto if workers <= TUNING.gossip.table_workers_max => Self::Table,
            Self::Auto => Self::PushSum,
            stated => stated,
        }
    }

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Table => "table",
            Self::PushSum => "push-sum",
        }
    }
}

/// How the step shrinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Schedule {
    /// It stays.
    Constant,
    /// It is divided by the square root of 1 + the epochs passed.
    #[default]
    Inverse,
}

/// Options of stochastic gradient descent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SgdConfig {
    /// The first step's factor; `None`: the inverse of the curvature of the mean loss of a minibatch, less where an epoch has many steps.
    pub rate: Option<f64>,
    /// How it shrinks.
    pub schedule: Schedule,
    /// Rows of a step; 0: 32, but so few that an epoch of a worker has 256 steps.
    pub batch: usize,
    /// Passes over the data.
    pub epochs: u64,
    /// Steps between two exchanges of a node; 0: so many that about 2¹⁶ values of rows lie between, but at most an epoch and at least 32.
    pub period: u64,
    /// Whether the result is a mean of the parameters after the first epoch, recent ones weighing more, instead of the last ones.
    pub average: bool,
    /// Which thread of a worker steps.
    pub executor: Executor,
}

impl Default for SgdConfig {
    fn default() -> Self {
        Self {
            rate: None,
            schedule: Schedule::default(),
            batch: 0,
            epochs: 64,
            period: 0,
            average: true,
            executor: Executor::default(),
        }
    }
}

impl SgdConfig {
    /// Rows of a step of a worker that has so many.
    pub(crate) fn batch_of(&self, rows: usize) -> usize {
        match self.batch {
            0 => (rows / TUNING.sgd.steps_min).clamp(1, TUNING.sgd.batch_max),
            batch => batch,
        }
    }
}

/// How to learn. The code that reads it from the user checks it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearnConfig {
    /// The model.
    pub kind: Kind,
    /// How parameters are found.
    pub method: Method,
    /// How the sums of `Method::Newton` are made.
    pub average: Average,
    /// Options of `Method::Sgd`.
    pub sgd: SgdConfig,
    /// λ of the penalty λ/2 ‖w‖², beside the mean loss of a row. The intercept is not penalised.
    pub l2: f64,
    /// Norm of the gradient of mean loss and penalty to reach, features and targets being scaled.
    pub tol: f64,
    /// Seed of every random choice.
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few rows make small steps, so that there are many.
    #[test]
    fn batches_follow_rows() {
        let batch = |rows| SgdConfig::default().batch_of(rows);
        assert_eq!([0, 150, 2560, 1 << 20].map(batch), [1, 1, 10, 32]);
        let stated = SgdConfig {
            batch: 7,
            ..SgdConfig::default()
        };
        assert_eq!(stated.batch_of(10), 7);
    }

    /// Many workers sum by push-sum, unless the user says how.
    #[test]
    fn auto_counts_workers() {
        let auto = |workers| Average::Auto.resolved(workers);
        assert_eq!([auto(1), auto(128)], [Average::Table; 2]);
        assert_eq!(auto(129), Average::PushSum);
        assert_eq!(Average::Table.resolved(1_000), Average::Table);
        assert_eq!(Average::PushSum.resolved(2), Average::PushSum);
    }
}
