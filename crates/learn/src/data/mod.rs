//! Data to learn from and to predict for: svmlight, CSV, `.npy` and `.npz`.
//!
//! The command line calls [`read`]. Each reader takes any bytes without panicking, allocates no more than the data or the file's length justify, and
//! answers bad input with one line: file, place, what is wrong, what is accepted. Scaling is the business of `scaling`.

mod csv;
mod features;
mod npy;
mod source;
mod svmlight;
mod targets;

pub(crate) use features::dot;
pub use features::{COLUMNS_MAX, Features};
pub use source::{DataError, Place};
pub use targets::{CLASSES_MAX, Targets, Want};

use source::Source;
use std::path::Path;

/// Rows with their targets.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// The rows.
    pub features: Features,
    /// Names of the columns, if the format has them.
    pub names: Option<Vec<String>>,
    /// Name of the target's column, if the format has it.
    pub target_name: Option<String>,
    /// The targets; only data to predict for may be without.
    pub targets: Option<Targets>,
}

/// What the data are read for.
#[derive(Debug, Clone, Copy)]
pub enum Reading<'a> {
    /// To learn. Names the target's column of a CSV file; `None`: the last one.
    Learn {
        /// Name of the target's column.
        target: Option<&'a str>,
    },
    /// For a model: the columns must be those that it has learned from.
    Like {
        /// Number of columns without the target.
        columns: usize,
        /// Names of the columns, if the model knows them.
        names: Option<&'a [String]>,
        /// Name of the target's column, if the model knows it.
        target: Option<&'a str>,
        /// Whether the targets must be there.
        needs_targets: bool,
    },
}

/// Reads a file. The format is known by the name's ending.
pub fn read(path: &Path, want: Want, reading: Reading<'_>) -> Result<Data, DataError> {
    let source = Source::new(path);
    let name = source.file.to_lowercase();
    let data = match name.strip_suffix(".gz").unwrap_or(&name) {
        name if name.ends_with(".csv") => csv::read(&source, source.open(path)?, want, reading),
        name if [".svm", ".svmlight", ".libsvm", ".txt"]
            .iter()
            .any(|end| name.ends_with(end)) =>
        {
            svmlight::read(&source, source.open(path)?, want, reading)
        }
        name if name.ends_with(".npy") => npy::read_npy(&source, source.open(path)?, want, reading),
        name if name.ends_with(".npz") => npy::read_npz(&source, source.open(path)?, want, reading),
        _ => {
            return Err(DataError::UnknownFormat {
                file: source.file.clone(),
            });
        }
    }?;
    if data.features.rows() == 0 {
        return Err(source.error(Place::Whole, "the file has no rows of data"));
    }
    if let (Reading::Learn { .. }, Some(Targets::Labels { classes, .. })) = (reading, &data.targets)
        && let [only] = &classes[..]
    {
        let what = format!(
            "all rows are of one class, {}; a classifier needs at least two",
            source::shown(only)
        );
        return Err(source.error(Place::Whole, what));
    }
    Ok(data)
}

/// Refuses data with another number of columns than the model's. `found`: without the target.
fn check_columns(
    source: &Source,
    place: Place,
    reading: Reading<'_>,
    found: usize,
) -> Result<(), DataError> {
    match reading {
        Reading::Like { columns, .. } if columns != found => {
            let what = format!("there are {found} columns of features; the model has {columns}");
            Err(source.error(place, what))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
