//! Data made ready for learning: shuffled, scaled, targets as numbers; and the way back from parameters to a model.

use crate::config::{Kind, LearnConfig, Method};
use crate::data::{Data, Features, Targets};
use crate::model::{Model, Predictions, Score, r2};
use crate::newton::{NEWTON_WIDTH_MAX, STATISTIC_MAX};
use crate::objective::{Shape, Share};
use crate::scaling::Scaling;
use crate::tuning::TUNING;

/// Most parameters of a model: a vector of them is one message.
pub(crate) const PARAMETERS_MAX: usize = 1 << 22;

/// How data are made ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preparation {
    /// Whether columns are scaled.
    pub scales: bool,
    /// Whether rows are put into random order.
    pub shuffles: bool,
}

/// Why these data cannot be learned from.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// Targets are missing or of the other kind.
    #[error("the targets do not fit the model")]
    Targets,
    /// The Hessians would be too large.
    #[error(
        "{columns} columns and {outputs} outputs are too many for --method newton, which takes up to {} columns and {STATISTIC_MAX} second derivatives; \
         use --method sgd",
        NEWTON_WIDTH_MAX - 1
    )]
    TooWide {
        /// Columns of the data.
        columns: usize,
        /// Outputs.
        outputs: usize,
    },
    /// Numbers are so large, or so far apart, that scaled ones, or their squares, or the loss in the target's unit, are none.
    #[error("{0} cannot be scaled: its numbers, or their distances, are too large")]
    NotFinite(String),
    /// There are too many parameters.
    #[error(
        "{columns} columns for {outputs} classes are more than the {PARAMETERS_MAX} parameters that a model can have"
    )]
    TooMany {
        /// Columns of the data.
        columns: usize,
        /// Outputs.
        outputs: usize,
    },
}

/// What is to be learned.
#[derive(Debug, Clone)]
pub struct Problem {
    /// All rows.
    pub share: Share,
    scaling: Scaling,
    /// Targets of regressions are learned with mean 0 and deviation 1.
    target_shift: f64,
    target_factor: f64,
    classes: Option<Vec<String>>,
    names: Option<Vec<String>>,
    target_name: Option<String>,
}

impl Problem {
    /// Makes data ready. The seed decides the order of rows.
    pub fn new(data: Data, config: &LearnConfig, how: Preparation) -> Result<Self, ProblemError> {
        let mut features = data.features;
        let columns = features.columns();
        let (mut numbers, classes) = match (data.targets, config.kind) {
            (Some(Targets::Numbers(numbers)), Kind::Linear | Kind::Ridge) => (numbers, None),
            (Some(Targets::Labels { classes, ids }), Kind::Logistic | Kind::Svm) => {
                (ids.into_iter().map(f64::from).collect(), Some(classes))
            }
            _ => return Err(ProblemError::Targets),
        };
        let outputs = classes.as_ref().map_or(
            1,
            |classes| if classes.len() > 2 { classes.len() } else { 1 },
        );
        let shape = Shape {
            width: columns + 1,
            outputs,
        };
        if config.method == Method::Newton
            && (columns >= NEWTON_WIDTH_MAX || shape.statistic(true) > STATISTIC_MAX)
        {
            return Err(ProblemError::TooWide { columns, outputs });
        }
        if (columns + 1).saturating_mul(outputs) > PARAMETERS_MAX {
            return Err(ProblemError::TooMany { columns, outputs });
        }
        let scaling = if how.scales {
            Scaling::of(&features)
        } else {
            Scaling::none(columns)
        };
        scaling.apply(&mut features);
        let mut is_finite = vec![true; columns];
        for row in 0..features.rows() {
            features.for_each(row, |j, x| is_finite[j] &= x.is_finite());
        }
        if let Some(column) = is_finite.iter().position(|is_finite| !is_finite) {
            let name = data.names.as_ref().and_then(|names| names.get(column));
            let name = name.map_or_else(String::new, |name| format!(" '{name}'"));
            return Err(ProblemError::NotFinite(format!(
                "column {}{name} of the features",
                column + 1
            )));
        }
        // Before rows are put into another order, so that every mode takes and refuses the same targets.
        let (target_shift, target_factor) = if classes.is_none() {
            standardise(&mut numbers)
        } else {
            (0.0, 1.0)
        };
        let squares = numbers.iter().map(|number| number * number);
        let mean = squares.sum::<f64>() / numbers.len().max(1) as f64;
        if !(mean * target_factor * target_factor).is_finite() {
            return Err(ProblemError::NotFinite("the target".to_owned()));
        }
        if how.shuffles {
            features = shuffled(features, &mut numbers, config.seed);
        }
        Ok(Self {
            share: Share {
                kind: config.kind,
                outputs,
                features,
                targets: numbers,
            },
            scaling,
            target_shift,
            target_factor,
            classes,
            names: data.names,
            target_name: data.target_name,
        })
    }

    /// Factor from the learned objective to one in the target's own unit.
    pub fn loss_factor(&self) -> f64 {
        self.target_factor * self.target_factor
    }

    /// The model with these parameters.
    pub fn model(&self, theta: &[f64]) -> Model {
        let width = self.share.shape().width;
        let (mut coefficients, mut intercepts) = (Vec::new(), Vec::new());
        for output in theta.chunks_exact(width) {
            let (weights, intercept) = self.scaling.undo(&output[..width - 1], output[width - 1]);
            let unit = self.target_factor;
            coefficients.push(weights.iter().map(|weight| weight * unit).collect());
            intercepts.push(intercept * unit + self.target_shift);
        }
        let columns = width - 1;
        let mut model = Model::new(
            self.share.kind,
            columns,
            self.classes.clone(),
            coefficients,
            intercepts,
        );
        model.names.clone_from(&self.names);
        model.target.clone_from(&self.target_name);
        model
    }

    /// Names of the columns, if they have some.
    pub fn names(&self) -> Option<&[String]> {
        self.names.as_deref()
    }

    /// Name of the target, if it has one.
    pub fn target_name(&self) -> Option<&str> {
        self.target_name.as_deref()
    }

    /// Labels of the classes, of a classifier.
    pub fn classes(&self) -> Option<&[String]> {
        self.classes.as_deref()
    }

    /// How well a model that was made of these data predicts their targets. It is given the rows as they were, not scaled: coefficients for these may
    /// have lost digits.
    pub fn score(&self, model: &Model) -> Score {
        let rows = self.share.rows();
        let (mut found, mut met) = (Vec::new(), 0);
        for start in (0..rows).step_by(TUNING.scored_rows) {
            let (mut features, targets) = self.part(start..(start + TUNING.scored_rows).min(rows));
            self.scaling.unapply(&mut features);
            match model.predict(&features) {
                // In the unit of the scaled targets.
                Predictions::Numbers(numbers) => found
                    .extend((numbers.iter()).map(|y| (y - self.target_shift) / self.target_factor)),
                Predictions::Labels { ids, .. } => {
                    let pairs = ids.iter().zip(&targets);
                    met += pairs.filter(|(id, y)| f64::from(**id) == **y).count();
                }
            }
        }
        match self.classes {
            None => Score::R2(r2(&found, &self.share.targets)),
            Some(_) => Score::Accuracy(met as f64 / rows.max(1) as f64),
        }
    }

    /// Rows of each of `nodes` shares: as many for each, but for one.
    pub fn ranges(&self, nodes: usize) -> Vec<std::ops::Range<usize>> {
        let rows = self.share.rows();
        let bound = |node: usize| (rows as u128 * node as u128 / nodes.max(1) as u128) as usize;
        (0..nodes)
            .map(|node| bound(node)..bound(node + 1))
            .collect()
    }

    /// The rows of one share, to be sent.
    pub fn part(&self, rows: std::ops::Range<usize>) -> (Features, Vec<f64>) {
        let order: Vec<usize> = rows.clone().collect();
        (
            self.share.features.in_order(&order),
            self.share.targets[rows].to_vec(),
        )
    }
}

/// Puts rows and their targets into random order. Dense rows change places where they are: there is no room for two copies of large data.
fn shuffled(mut features: Features, targets: &mut [f64], seed: u64) -> Features {
    let mut random = fastrand::Rng::with_seed(seed);
    if features.is_dense() {
        for row in 1..targets.len() {
            let other = random.usize(..=row);
            features.swap(row, other);
            targets.swap(row, other);
        }
        return features;
    }
    let mut order: Vec<usize> = (0..targets.len()).collect();
    random.shuffle(&mut order);
    let moved: Vec<f64> = order.iter().map(|row| targets[*row]).collect();
    targets.copy_from_slice(&moved);
    features.in_order(&order)
}

/// Gives numbers mean 0 and deviation 1; returns what was taken off, and the factor.
fn standardise(numbers: &mut Vec<f64>) -> (f64, f64) {
    let mut column = Features::Dense {
        columns: 1,
        values: std::mem::take(numbers),
    };
    let scaling = Scaling::of(&column);
    scaling.apply(&mut column);
    if let Features::Dense { values, .. } = column {
        *numbers = values;
    }
    scaling.first()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Average, SgdConfig};

    fn config(kind: Kind, method: Method) -> LearnConfig {
        LearnConfig {
            kind,
            method,
            average: Average::default(),
            sgd: SgdConfig::default(),
            l2: 0.1,
            tol: 1e-9,
            seed: 1,
        }
    }

    fn data(columns: usize, classes: usize) -> Data {
        let rows = classes.max(3);
        Data {
            features: Features::Dense {
                columns,
                values: (0..rows * columns)
                    .map(|place| (place % 7) as f64)
                    .collect(),
            },
            names: None,
            target_name: None,
            targets_fault: None,
            targets: Some(match classes {
                0 => Targets::Numbers((0..rows).map(|row| 3.0 * row as f64 + 1.0).collect()),
                _ => Targets::Labels {
                    classes: (0..classes).map(|class| class.to_string()).collect(),
                    ids: (0..rows as u32).map(|row| row % classes as u32).collect(),
                },
            }),
        }
    }

    const HOW: Preparation = Preparation {
        scales: true,
        shuffles: false,
    };

    /// Hessians and parameters that would be too large are refused before any is made.
    #[test]
    fn sizes_are_bounded() {
        let newton = |columns, classes| {
            let kind = if classes == 0 { Kind::Ridge } else { Kind::Svm };
            Problem::new(data(columns, classes), &config(kind, Method::Newton), HOW)
        };
        assert!(newton(40, 200).is_ok());
        for (columns, classes) in [(NEWTON_WIDTH_MAX, 0), (300, 200)] {
            let refused = newton(columns, classes);
            assert!(
                matches!(refused, Err(ProblemError::TooWide { .. })),
                "{columns} {classes}"
            );
        }
        let sgd = config(Kind::Ridge, Method::Sgd);
        assert!(Problem::new(data(NEWTON_WIDTH_MAX, 0), &sgd, HOW).is_ok());
        let refused = Problem::new(data(3, 2), &sgd, HOW);
        assert!(matches!(refused, Err(ProblemError::Targets)));
    }

    /// A model of scaled targets predicts in their own unit, and shares cover all rows once.
    #[test]
    fn units_come_back() {
        let problem = Problem::new(data(2, 0), &config(Kind::Ridge, Method::Newton), HOW).unwrap();
        let model = problem.model(&[0.0, 0.0, 0.0]);
        assert!((model.intercepts[0] - 4.0).abs() < 1e-12); // the mean of 1, 4 and 7
        assert!((problem.loss_factor() - 6.0).abs() < 1e-12); // their variance
        assert_eq!(problem.ranges(2), [0..1, 1..3]);
    }

    /// Scaled rows in another order are scored as the model scores the data as they were, and keep their targets.
    #[test]
    fn scores_are_those_of_the_model() {
        for classes in [0, 2, 3] {
            let kind = [Kind::Linear, Kind::Svm, Kind::Logistic][classes.min(2)];
            let data = data(5, classes * 7);
            let mut config = config(kind, Method::Sgd);
            for (shuffles, seed) in [(false, 1), (true, 1), (true, 2)] {
                config.seed = seed;
                let how = Preparation { shuffles, ..HOW };
                let problem = Problem::new(data.clone(), &config, how).unwrap();
                let theta: Vec<f64> = (0..problem.share.shape().parameters())
                    .map(|place| (place as f64).sin())
                    .collect();
                let model = problem.model(&theta);
                let wanted = model.score(&data.features, data.targets.as_ref().unwrap());
                let wanted = wanted.unwrap().value();
                let found = problem.score(&model).value();
                assert!((found - wanted).abs() < 1e-12, "{classes} {found} {wanted}");
            }
        }
    }
}
