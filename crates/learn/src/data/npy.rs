//! NumPy's `.npy` and `.npz`.
//!
//! A `.npy` file is one matrix, whose last column is the target. A `.npz` file has the rows as `X` (or `data`) and the targets, numbers or texts, as `y`
//! (or `target`).

use super::features::{COLUMNS_MAX, Features};
use super::targets::{Gathered, Want};
use super::{Data, Reading, check_columns};
use std::io::{BufRead, Cursor, Read};
use tsumuji_numbers::{FileError, Place, Source, npy::Header};

/// Names of the rows and targets in a `.npz` file.
const ROWS_NAMES: [&str; 2] = ["X", "data"];
const TARGETS_NAMES: [&str; 2] = ["y", "target"];

/// Memory of a text beside its bytes.
const WORD_BYTES: u128 = 32;

/// Targets as they stand in a file.
enum Told {
    Numbers(Vec<f64>),
    Words(Vec<String>),
}

impl Told {
    fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Words(words) => words.len(),
        }
    }
}

/// What an array's header says.
struct Array {
    header: Header,
    rows: usize,
    /// 1 for a vector.
    columns: usize,
    is_vector: bool,
}

impl Array {
    /// Reads the header of a matrix or vector that fits into memory.
    fn announced(source: &Source, reader: &mut impl Read) -> Result<Self, FileError> {
        let bad = |what: String| source.error(Place::Header, what);
        let header = Header::read(source, reader)?;
        let (rows, columns, is_vector) = match header.shape[..] {
            [rows] => (rows, 1, true),
            [rows, columns] => (rows, columns, false),
            _ => {
                let dimensions = header.shape.len();
                return Err(bad(format!(
                    "the array has {dimensions} dimensions; a matrix has 2"
                )));
            }
        };
        if columns == 0 || columns > COLUMNS_MAX as u64 {
            return Err(bad(format!(
                "{columns} columns; accepted are 1 to {COLUMNS_MAX}"
            )));
        }
        // A matrix in the other order is there twice while it is turned.
        let copies = if header.is_fortran && !is_vector {
            2
        } else {
            1
        };
        let each = match header.is_text() {
            true => WORD_BYTES + header.element_bytes() as u128,
            false => 8,
        };
        let bytes = each * copies * u128::from(rows) * u128::from(columns);
        source.check_memory(Place::Header, bytes)?;
        Ok(Self {
            header,
            rows: rows as usize,
            columns: columns as usize,
            is_vector,
        })
    }

    /// Reads the values after the header; gives them row after row.
    fn values(&self, source: &Source, reader: &mut impl Read) -> Result<Vec<f64>, FileError> {
        let values = self.header.values(source, reader)?;
        if !self.header.is_fortran || self.is_vector {
            return Ok(values);
        }
        let (rows, columns) = (self.rows, self.columns);
        let turned = (0..values.len()).map(|to| values[to % columns * rows + to / columns]);
        Ok(turned.collect())
    }
}

pub(super) fn read_npy(
    source: &Source,
    mut reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    let array = Array::announced(source, &mut reader)?;
    if array.is_vector {
        let what =
            "the array has 1 dimension; accepted is a matrix whose last column is the target";
        return Err(source.error(Place::Header, what));
    }
    let has_target = match reading {
        Reading::Like { columns, .. } => reading.needs_targets() || array.columns != columns,
        Reading::Learn { .. } => true,
    };
    if has_target && array.columns < 2 {
        let what = "the matrix has no column of features beside the target, its last column";
        return Err(source.error(Place::Header, what));
    }
    let mut values = array.values(source, &mut reader)?;
    let told = has_target.then(|| Told::Numbers(split_last(&mut values, array.columns)));
    let columns = array.columns - usize::from(has_target);
    let targets = Gathered::new(want, reading);
    finish(source, columns, values, (targets, told), reading)
}

/// Takes the last column out of rows.
fn split_last(values: &mut Vec<f64>, columns: usize) -> Vec<f64> {
    let last = values.iter().skip(columns - 1).step_by(columns);
    let last: Vec<f64> = last.copied().collect();
    for row in 1..last.len() {
        let start = row * columns;
        values.copy_within(start..start + columns - 1, start - row);
    }
    values.truncate(last.len() * (columns - 1));
    values.shrink_to_fit();
    last
}

pub(super) fn read_npz(
    source: &Source,
    reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    let bytes = whole(source, reader)?;
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| source.error(Place::Whole, format!("is no .npz archive: {error}")))?;
    let mut take = |names: [&str; 2]| -> Result<Option<(Array, Told)>, FileError> {
        for name in names {
            let part = source.part(&format!("array {name}"));
            let mut entry = match archive.by_name(&format!("{name}.npy")) {
                Ok(entry) => entry,
                Err(zip::result::ZipError::FileNotFound) => continue,
                Err(error) => return Err(part.error(Place::Whole, error.to_string())),
            };
            let array = Array::announced(&part, &mut entry)?;
            let told = if array.header.is_text() && names == TARGETS_NAMES {
                Told::Words(array.header.words(&part, &mut entry)?)
            } else {
                Told::Numbers(array.values(&part, &mut entry)?)
            };
            return Ok(Some((array, told)));
        }
        Ok(None)
    };
    let missing = |what: &str, names: [&str; 2]| {
        let what = format!(
            "there is no array of {what}; accepted are {} and {}",
            names[0], names[1]
        );
        source.error(Place::Whole, what)
    };
    let (rows, Told::Numbers(values)) =
        take(ROWS_NAMES)?.ok_or_else(|| missing("rows", ROWS_NAMES))?
    else {
        unreachable!("only targets may be texts");
    };
    let mut targets = Gathered::new(want, reading);
    let mut told = match take(TARGETS_NAMES) {
        Ok(told) => told,
        Err(error) => {
            targets.miss(error)?;
            None
        }
    };
    if told.is_none() && reading.needs_targets() {
        return Err(missing("targets", TARGETS_NAMES));
    }
    if rows.is_vector {
        return Err(source.error(
            Place::Whole,
            "the array of rows has 1 dimension; a matrix has 2",
        ));
    }
    if let Some((array, numbers)) = &told
        && (numbers.len() != rows.rows || array.columns != 1)
    {
        let what = if array.columns == 1 {
            format!("{} targets for {} rows", numbers.len(), rows.rows)
        } else {
            format!(
                "the targets have the shape ({}, {}); accepted are ({},) and ({}, 1)",
                array.rows, array.columns, rows.rows, rows.rows
            )
        };
        targets.miss(source.error(Place::Whole, what))?;
        told = None;
    }
    let told = told.map(|(_, told)| told);
    finish(source, rows.columns, values, (targets, told), reading)
}

/// All bytes of an archive: at most half of the memory, because its arrays are there beside it.
fn whole(source: &Source, reader: impl Read) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let limit = source.memory_limit_bytes / 2;
    let read = reader.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| source.io(error))?;
    source.check_memory(Place::Whole, 2 * bytes.len() as u128)?;
    Ok(bytes)
}

fn finish(
    source: &Source,
    columns: usize,
    values: Vec<f64>,
    (mut targets, told): (Gathered, Option<Told>),
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    check_columns(source, Place::Header, reading, columns)?;
    if let Some(place) = values.iter().position(|value| !value.is_finite()) {
        let what = format!(
            "column {}: the value is {}; accepted are finite numbers",
            place % columns + 1,
            values[place]
        );
        let row = Place::Row((place / columns) as u64 + 1);
        return Err(source.error(row, what));
    }
    let has_targets = told.is_some();
    if let Some(told) = told {
        collect(source, &told, &mut targets)?;
    }
    let (targets, targets_fault) = targets.finish();
    Ok(Data {
        features: Features::Dense { columns, values },
        names: None,
        target_name: None,
        targets: targets.filter(|_| has_targets),
        targets_fault,
    })
}

fn collect(source: &Source, told: &Told, targets: &mut Gathered) -> Result<(), FileError> {
    for row in 0..told.len() {
        let taken = match told {
            Told::Numbers(numbers) => targets.push_number(numbers[row]),
            Told::Words(words) => targets.push(&words[row]),
        };
        let place = Place::Row(row as u64 + 1);
        taken.or_else(|what| targets.miss(source.error(place, what)))?;
    }
    Ok(())
}
