//! A finished model: what it predicts, and its file.
//!
//! The file is JSON. Coefficients are those for data as they are, not scaled. Any bytes are taken; what does not fit together is refused in one line.

use serde::{Deserialize, Serialize};

use crate::config::Kind;
use crate::data::{CLASSES_MAX, COLUMNS_MAX, Features, Targets, has_line_break};

/// What a file must say to be a model.
const FORMAT: &str = "tsumuji-model";
/// Longest text of what is wrong with a file's form.
const ERROR_CHARS_MAX: usize = 200;
/// The version that is written and read.
const VERSION: u32 = 1;

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    format: String,
    version: u32,
    /// What it was learned as.
    pub kind: Kind,
    /// Number of features.
    pub columns: usize,
    /// Names of the features, if they had some.
    pub names: Option<Vec<String>>,
    /// Name of the target, if it had one.
    pub target: Option<String>,
    /// Labels of the classes, of a classifier.
    pub classes: Option<Vec<String>>,
    /// Coefficients of each output: one output for a regression or two classes, else one for each class.
    pub coefficients: Vec<Vec<f64>>,
    /// Intercept of each output.
    pub intercepts: Vec<f64>,
}

/// Why bytes are no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// They are no JSON, or not of this form.
    #[error("is no model that `tsumuji learn --model` wrote: {0}")]
    Form(String),
    /// Parts do not fit together.
    #[error("the model is damaged: {0}")]
    Parts(&'static str),
}

/// How well a model predicts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    /// Part of the rows whose class is right.
    Accuracy(f64),
    /// 1 − Σ (y − ŷ)² / Σ (y − ȳ)²; 0 where all targets are equal and not met.
    R2(f64),
}

impl Score {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Accuracy(_) => "accuracy",
            Self::R2(_) => "r2",
        }
    }

    /// Its value.
    pub fn value(self) -> f64 {
        match self {
            Self::Accuracy(value) | Self::R2(value) => value,
        }
    }
}

/// What a model says of rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Predictions<'m> {
    /// Numbers.
    Numbers(Vec<f64>),
    /// Classes.
    Labels {
        /// The model's labels.
        classes: &'m [String],
        /// Of each row, its place in `classes`.
        ids: Vec<u32>,
    },
}

impl Model {
    /// A model of these parts. `classes` is there for classifiers only.
    pub fn new(
        kind: Kind,
        columns: usize,
        classes: Option<Vec<String>>,
        coefficients: Vec<Vec<f64>>,
        intercepts: Vec<f64>,
    ) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            kind,
            columns,
            names: None,
            target: None,
            classes,
            coefficients,
            intercepts,
        }
    }

    /// Reads a model's file.
    pub fn parse(bytes: &[u8]) -> Result<Self, ModelError> {
        // Errors quote the file's own words, which may be of any length and hold anything.
        let form = |error: serde_json::Error| {
            let text = error.to_string();
            let plain = |c: char| if c.is_control() { '?' } else { c };
            ModelError::Form(text.chars().take(ERROR_CHARS_MAX).map(plain).collect())
        };
        let model: Self = serde_json::from_slice(bytes).map_err(form)?;
        model.check()?;
        Ok(model)
    }

    fn check(&self) -> Result<(), ModelError> {
        let bad = |what| Err(ModelError::Parts(what));
        if self.format != FORMAT || self.version != VERSION {
            return bad("another format or version; this program reads version 1");
        }
        if self.columns == 0 || self.columns > COLUMNS_MAX {
            return bad("`columns` is out of range");
        }
        let outputs = match (&self.classes, self.kind) {
            (None, Kind::Linear | Kind::Ridge) => 1,
            (Some(classes), Kind::Logistic | Kind::Svm) => match classes.len() {
                2 => 1,
                3..=CLASSES_MAX => classes.len(),
                _ => return bad("`classes` has too few or too many labels"),
            },
            _ => return bad("`classes` belongs to classifiers only, and to each of them"),
        };
        if (self.classes.iter().flatten()).any(|label| has_line_break(label)) {
            return bad("a label of `classes` has a line break");
        }
        if self.coefficients.len() != outputs || self.intercepts.len() != outputs {
            return bad("there must be coefficients and an intercept for each output");
        }
        if self
            .coefficients
            .iter()
            .any(|output| output.len() != self.columns)
        {
            return bad("there must be a coefficient for each column");
        }
        if self
            .names
            .as_ref()
            .is_some_and(|names| names.len() != self.columns)
        {
            return bad("there must be a name for each column");
        }
        Ok(()) // numbers of JSON are finite
    }

    /// The file's content.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default(); // maps with text keys only: it cannot fail
        text.push('\n');
        text
    }

    /// Whether all its numbers are finite, as a file needs them.
    pub fn is_finite(&self) -> bool {
        let numbers = self.coefficients.iter().flatten().chain(&self.intercepts);
        numbers.into_iter().all(|number| number.is_finite())
    }

    /// Predicts for each row. `features` has the model's columns.
    pub fn predict(&self, features: &Features) -> Predictions<'_> {
        let output = |row: usize, output: usize| {
            features.dot(row, &self.coefficients[output]) + self.intercepts[output]
        };
        let rows = 0..features.rows();
        let Some(classes) = &self.classes else {
            return Predictions::Numbers(rows.map(|row| output(row, 0)).collect());
        };
        let class = |row: usize| {
            let outputs = (0..self.coefficients.len()).map(|place| output(row, place));
            class_of(outputs.collect::<Vec<f64>>().as_slice())
        };
        Predictions::Labels {
            classes,
            ids: rows.map(class).collect(),
        }
    }

    /// Compares predictions with what is right; the error is a label that is none of the model's.
    pub fn score(&self, features: &Features, targets: &Targets) -> Result<Score, String> {
        match (self.predict(features), targets) {
            (Predictions::Numbers(found), Targets::Numbers(right)) => {
                Ok(Score::R2(r2(&found, right)))
            }
            (Predictions::Labels { classes, ids }, targets) => {
                let right = targets.ids_in(classes)?;
                let met = ids.iter().zip(&right).filter(|(a, b)| a == b).count();
                Ok(Score::Accuracy(met as f64 / right.len().max(1) as f64))
            }
            _ => Err("a label".to_owned()),
        }
    }
}

/// The class that outputs say: of one output by its sign, of several the largest.
pub(crate) fn class_of(outputs: &[f64]) -> u32 {
    if let [only] = outputs {
        return u32::from(*only > 0.0);
    }
    let best = (outputs.iter().enumerate()).max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(place, _)| place as u32)
}

/// 1 − Σ (y − ŷ)² / Σ (y − ȳ)².
pub(crate) fn r2(found: &[f64], right: &[f64]) -> f64 {
    let mean = right.iter().sum::<f64>() / right.len().max(1) as f64;
    // Relative to the farthest target, so that squares are neither too large nor too small for a number.
    let farthest = right
        .iter()
        .fold(0.0_f64, |most, y| most.max((y - mean).abs()));
    if found == right {
        return 1.0;
    }
    if farthest == 0.0 {
        return 0.0;
    }
    let spread: f64 = right.iter().map(|y| ((y - mean) / farthest).powi(2)).sum();
    let missed = found.iter().zip(right);
    let missed: f64 = missed.map(|(a, b)| ((a - b) / farthest).powi(2)).sum();
    1.0 - missed / spread
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn three() -> Model {
        let labels = Some(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]);
        let weights = vec![vec![1.0, 0.0], vec![0.0, 1.0], vec![-1.0, -1.0]];
        Model::new(Kind::Logistic, 2, labels, weights, vec![0.0; 3])
    }

    /// A model comes back from its file as it was.
    #[test]
    fn file_keeps_the_model() {
        let model = three();
        assert_eq!(Model::parse(model.to_json().as_bytes()).unwrap(), model);
    }

    /// The largest output wins, and scores count what is right.
    #[test]
    fn predictions_and_scores() {
        let model = three();
        let features = Features::Dense {
            columns: 2,
            values: vec![2.0, 1.0, 0.0, 3.0, -1.0, -1.0],
        };
        let Predictions::Labels { ids, .. } = model.predict(&features) else {
            panic!("labels")
        };
        assert_eq!(ids, [0, 1, 2]);
        let targets = Targets::Labels {
            classes: vec!["a".into(), "c".into()],
            ids: vec![0, 1, 1],
        };
        assert_eq!(
            model.score(&features, &targets),
            Ok(Score::Accuracy(2.0 / 3.0))
        );
        let unknown = Targets::Labels {
            classes: vec!["z".into()],
            ids: vec![0, 0, 0],
        };
        assert_eq!(model.score(&features, &unknown), Err("z".to_owned()));
        assert_eq!(r2(&[1.0, 2.0], &[1.0, 2.0]), 1.0);
        assert_eq!(r2(&[1.5, 1.5], &[1.0, 2.0]), 0.0);
        assert_eq!(r2(&[1.5e-200, 1.5e-200], &[1e-200, 2e-200]), 0.0);
        assert_eq!(r2(&[1.0, 2.0], &[1.0, 1.0]), 0.0);
    }

    /// Models whose parts do not fit together are refused.
    #[test]
    fn damaged_models_are_refused() {
        for damage in [
            (|model| model.columns = 3) as fn(&mut Model),
            |model| model.classes = None,
            |model| model.intercepts = vec![],
            |model| model.names = Some(vec![]),
            |model| model.version = 2,
            |model| model.classes = Some(["a", "b", "c\nd"].map(str::to_owned).to_vec()),
        ] {
            let mut model = three();
            damage(&mut model);
            assert!(matches!(
                Model::parse(model.to_json().as_bytes()),
                Err(ModelError::Parts(_))
            ));
        }
        assert!(
            Model::parse(b"{}")
                .unwrap_err()
                .to_string()
                .contains("is no model")
        );
    }

    /// A file's own line breaks do not get into what is said of it.
    #[test]
    fn errors_are_one_line() {
        let text = three().to_json().replace("logistic", "logi\\nstic");
        let error = Model::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(
            error.contains("logi?stic") && !error.contains('\n'),
            "{error}"
        );
    }

    proptest! {
        /// Any bytes end in a model or an error of one line.
        #[test]
        fn any_bytes(cut in 0usize..400, rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = three().to_json().into_bytes();
            bytes.truncate(cut);
            bytes.extend(rest);
            if let Err(error) = Model::parse(&bytes) {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}
