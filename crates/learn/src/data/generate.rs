//! Data that are made, not read: dense rows of a known model with noise. For measurements, and for sizes that no file at hand has.

use super::{COLUMNS_MAX, Data, Features, Targets, Want};
use std::fmt;
use std::str::FromStr;
use tsumuji_numbers::memory::human;

/// Deviation of the numbers from the model, uniform to both sides.
const NOISE: f64 = 0.1;

/// So many rows of so many columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generate {
    rows: usize,
    columns: usize,
}

/// Why data are not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// Not of the form that is accepted.
    #[error("'{text}': {what}; accepted is ROWSxCOLUMNS, for example 100000x20")]
    Specification {
        /// What was given.
        text: String,
        /// What is wrong.
        what: &'static str,
    },
    /// More memory than there is.
    #[error("{made} takes {}, and {} are available; make fewer rows", human(u128::from(*bytes)), human(u128::from(*limit)))]
    Memory {
        /// What was to be made.
        made: Generate,
        /// Memory of its values.
        bytes: u64,
        /// Memory that may be taken.
        limit: u64,
    },
    /// A classifier needs two.
    #[error("{made}: all rows are of one class; make more rows, or use another --seed")]
    OneClass {
        /// What was made.
        made: Generate,
    },
}

impl FromStr for Generate {
    type Err = GenerateError;

    fn from_str(text: &str) -> Result<Self, GenerateError> {
        let refuse = |what| GenerateError::Specification {
            text: text.to_owned(),
            what,
        };
        let (rows, columns) = text.split_once('x').ok_or(refuse("there is no 'x'"))?;
        let number = |word: &str| word.parse::<usize>();
        let rows = number(rows).map_err(|_| refuse("the rows are no whole number"))?;
        let columns = number(columns).map_err(|_| refuse("the columns are no whole number"))?;
        if rows < 2 {
            return Err(refuse("there must be two rows or more"));
        }
        if !(1..=COLUMNS_MAX).contains(&columns) {
            return Err(refuse("there must be 1 to 16777216 columns"));
        }
        Ok(Self { rows, columns })
    }
}

impl fmt::Display for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.rows, self.columns)
    }
}

impl Generate {
    /// Makes the data; equal seeds make equal ones. Values are uniform in −1 to 1. Numbers are a linear model of them with noise; the classes `0` and `1`
    /// are drawn with the probabilities of a logistic model.
    pub fn data(self, want: Want, seed: u64) -> Result<Data, GenerateError> {
        let values = self.rows.saturating_mul(self.columns);
        let bytes = (values as u64)
            .saturating_add(self.rows as u64)
            .saturating_mul(8);
        let limit =
            tsumuji_numbers::memory::available_bytes().unwrap_or(super::MEMORY_UNTOLD_BYTES);
        if bytes > limit {
            let made = self;
            return Err(GenerateError::Memory { made, bytes, limit });
        }
        let mut random = fastrand::Rng::with_seed(seed);
        let mut uniform = move || 2.0 * random.f64() - 1.0;
        let truth: Vec<f64> = (0..=self.columns).map(|_| 3.0 * uniform()).collect();
        let (intercept, coefficients) = truth.split_at(1);
        let mut values = Vec::with_capacity(values);
        let mut row = || {
            let start = values.len();
            values.extend((0..self.columns).map(|_| uniform()));
            let model = intercept[0] + super::dot(&values[start..], coefficients);
            (model, uniform())
        };
        let targets = match want {
            Want::Numbers => {
                let number = |(model, noise): (f64, f64)| model + NOISE * noise;
                Targets::Numbers((0..self.rows).map(|_| number(row())).collect())
            }
            Want::Labels => {
                let id = |(model, drawn): (f64, f64)| u32::from(drawn < (model / 2.0).tanh());
                Targets::Labels {
                    classes: vec!["0".to_owned(), "1".to_owned()],
                    ids: (0..self.rows).map(|_| id(row())).collect(),
                }
            }
        };
        if let Targets::Labels { ids, .. } = &targets
            && ids.iter().all(|id| *id == ids[0])
        {
            return Err(GenerateError::OneClass { made: self });
        }
        Ok(Data {
            features: Features::Dense {
                columns: self.columns,
                values,
            },
            names: None,
            target_name: None,
            targets_fault: None,
            targets: Some(targets),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(text: &str) -> Generate {
        text.parse().unwrap()
    }

    /// Sizes are rows and columns; anything else is refused with what is accepted.
    #[test]
    fn sizes_are_read() {
        let Data {
            features, targets, ..
        } = made("30x4").data(Want::Numbers, 1).unwrap();
        assert_eq!((features.rows(), features.columns()), (30, 4));
        assert_eq!(targets.map(|targets| targets.len()), Some(30));
        for text in [
            "",
            "30",
            "x",
            "1x4",
            "30x0",
            "30x-1",
            "3e1x4",
            "30x16777217",
            "30x4x5",
        ] {
            let error = text.parse::<Generate>().unwrap_err().to_string();
            assert!(
                error.ends_with("accepted is ROWSxCOLUMNS, for example 100000x20"),
                "{error}"
            );
        }
    }

    /// Equal seeds, equal data; both classes are there; what does not fit in memory is refused before it is taken.
    #[test]
    fn data_follow_the_seed() {
        let data = |seed| made("200x3").data(Want::Labels, seed).unwrap();
        assert_eq!(data(1), data(1));
        assert_ne!(data(1), data(2));
        let Some(Targets::Labels { ids, .. }) = data(1).targets else {
            panic!("no labels")
        };
        assert!(ids.contains(&0) && ids.contains(&1));
        for huge in [made("1000000000000x1000"), made("18446744073709551615x2")] {
            let refused = huge.data(Want::Numbers, 1);
            assert!(matches!(refused, Err(GenerateError::Memory { .. })));
        }
        let alone = (0..50).find_map(|seed| made("2x1").data(Want::Labels, seed).err());
        assert_eq!(alone, Some(GenerateError::OneClass { made: made("2x1") }));
    }
}
