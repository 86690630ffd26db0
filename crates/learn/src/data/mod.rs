//! Data to learn from and to predict for: svmlight, CSV, `.npy` and `.npz`.
//!
//! The command line calls [`read`]. Each reader takes any bytes without panicking, allocates no more than the data or the file's length justify, and
//! answers bad input with one line: file, place, what is wrong, what is accepted. Scaling is the business of `scaling`.

mod csv;
mod features;
mod generate;
mod npy;
mod svmlight;
mod targets;

pub use features::{COLUMNS_MAX, Features};
pub(crate) use features::{Row, dot};
pub use generate::{Generate, GenerateError};
pub(crate) use targets::has_line_break;
pub use targets::{CLASSES_MAX, Targets, Want};
pub use tsumuji_numbers::FileError;

use std::io::BufRead;
use std::path::Path;
use tsumuji_numbers::{Place, Source, shown};

const UNKNOWN_FORMAT: &str = "the format is unknown; accepted are svmlight (.svm, .svmlight, .libsvm, .txt), CSV (.csv), NumPy \
                              (.npy, .npz), also with .gz";

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
    /// Why targets that are there were left out: data to predict for are read whatever their targets are.
    pub targets_fault: Option<String>,
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
        /// Whether the targets must be there, and fit the model.
        needs_targets: bool,
    },
}

impl Reading<'_> {
    /// Whether the targets must be there, and fit.
    fn needs_targets(self) -> bool {
        match self {
            Self::Learn { .. } => true,
            Self::Like { needs_targets, .. } => needs_targets,
        }
    }
}

/// Memory that data may take where the kernel does not tell how much there is.
const MEMORY_UNTOLD_BYTES: u64 = 4 << 30;

/// Reads a file. The format is known by the name's ending.
pub fn read(path: &Path, want: Want, reading: Reading<'_>) -> Result<Data, FileError> {
    let format = Format::of(&path.display().to_string())?;
    let (mut source, reader) = Source::open(path, |_| ())?;
    if source.memory_limit_bytes == u64::MAX {
        source.memory_limit_bytes = MEMORY_UNTOLD_BYTES;
    }
    read_from(&source, format, reader, want, reading)
}

/// Reads a file's content. `name` tells the format, and is told in errors; the data may take `memory_limit_bytes`.
pub fn read_bytes(
    name: &str,
    bytes: &[u8],
    memory_limit_bytes: u64,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    let mut source = Source {
        file: name.to_owned(),
        length_bytes: bytes.len() as u64,
        memory_limit_bytes,
    };
    let format = Format::of(name)?;
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
    fn of(file: &str) -> Result<Self, FileError> {
        let name = file.to_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        match () {
            () if ends(&[".csv"]) => Ok(Self::Csv),
            () if ends(&[".svm", ".svmlight", ".libsvm", ".txt"]) => Ok(Self::Svmlight),
            () if ends(&[".npy"]) => Ok(Self::Npy),
            () if ends(&[".npz"]) => Ok(Self::Npz),
            () => Err(FileError::new(file, Place::Whole, UNKNOWN_FORMAT)),
        }
    }
}

fn read_from(
    source: &Source,
    format: Format,
    reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    if let (Reading::Learn { target: Some(name) }, false) = (reading, matches!(format, Format::Csv))
    {
        let what = format!(
            "there is no column {}: only the columns of CSV have names",
            shown(name)
        );
        return Err(source.error(Place::Whole, what));
    }
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
            shown(only)
        );
        return Err(source.error(Place::Whole, what));
    }
    Ok(data)
}

/// A finite number; the error says what is accepted.
fn finite(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(format!("{} is not finite", shown(word))),
        Err(_) => Err(format!("{} is no number", shown(word))),
    }
}

/// Refuses data with another number of columns than the model's. `found`: without the target.
fn check_columns(
    source: &Source,
    place: Place,
    reading: Reading<'_>,
    found: usize,
) -> Result<(), FileError> {
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
