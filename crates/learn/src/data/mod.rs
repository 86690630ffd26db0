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
use std::io::BufRead;
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
    let format = Format::of(&source)?;
    let reader = source.open(path)?;
    read_from(&source, format, reader, want, reading)
}

/// Reads a file's content. `name` tells the format, and is told in errors; the data may take `memory_limit_bytes`.
pub fn read_bytes(
    name: &str,
    bytes: &[u8],
    memory_limit_bytes: u64,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    let source = Source {
        file: name.to_owned(),
        memory_limit_bytes,
    };
    let format = Format::of(&source)?;
    let reader = source.unpack(bytes)?;
    read_from(&source, format, reader, want, reading)
}

#[derive(Debug, Clone, Copy)]
enum Format {
    Csv,
    Svmlight,
    Npy,
    Npz,
}

impl Format {
    fn of(source: &Source) -> Result<Self, DataError> {
        let name = source.file.to_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        match () {
            () if ends(&[".csv"]) => Ok(Self::Csv),
            () if ends(&[".svm", ".svmlight", ".libsvm", ".txt"]) => Ok(Self::Svmlight),
            () if ends(&[".npy"]) => Ok(Self::Npy),
            () if ends(&[".npz"]) => Ok(Self::Npz),
            () => Err(DataError::UnknownFormat {
                file: source.file.clone(),
            }),
        }
    }
}

fn read_from(
    source: &Source,
    format: Format,
    reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    let data = match format {
        Format::Csv => csv::read(source, reader, want, reading),
        Format::Svmlight => svmlight::read(source, reader, want, reading),
        Format::Npy => npy::read_npy(source, reader, want, reading),
        Format::Npz => npy::read_npz(source, reader, want, reading),
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
