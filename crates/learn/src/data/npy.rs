//! NumPy's `.npy` and `.npz`: floats of 4 and 8 bytes, whole numbers and booleans, either byte order, either storage order.
//!
//! A `.npy` file is one matrix, whose last column is the target. A `.npz` file has the rows as `X` (or `data`) and the targets as `y` (or `target`).
//! Objects, structures and texts are refused by name: nothing of a file is ever executed.

use super::features::{COLUMNS_MAX, Features};
use super::source::{DataError, Place, Source, shown};
use super::targets::{Builder, Targets, Want};
use super::{Data, Reading, check_columns};
use std::io::{BufRead, Cursor};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header; NumPy pads it to some 100 bytes.
const HEADER_LIMIT_BYTES: usize = 1 << 16;
const ACCEPTED: &str = "accepted are float64, float32, whole numbers of 1 to 8 bytes and booleans";
/// Names of the rows and targets in a `.npz` file.
const ROWS_NAMES: [&str; 2] = ["X", "data"];
const TARGETS_NAMES: [&str; 2] = ["y", "target"];

/// An array with one or two dimensions, row after row.
struct Array {
    rows: usize,
    /// 1 for a vector.
    columns: usize,
    is_vector: bool,
    values: Vec<f64>,
}

/// Type of the elements.
#[derive(Clone, Copy)]
struct Element {
    kind: u8,
    bytes: usize,
    big_endian: bool,
}

impl Element {
    fn value(self, bytes: &[u8]) -> f64 {
        let mut wide = [0; 8];
        for (place, byte) in bytes.iter().enumerate() {
            let place = if self.big_endian {
                self.bytes - 1 - place
            } else {
                place
            };
            wide[place] = *byte;
        }
        let unsigned = u64::from_le_bytes(wide);
        match (self.kind, self.bytes) {
            (b'f', 8) => f64::from_bits(unsigned),
            (b'f', _) => f64::from(f32::from_bits(unsigned as u32)),
            (b'i', bytes) => {
                let unused = 64 - 8 * bytes as u32;
                ((unsigned << unused) as i64 >> unused) as f64
            }
            _ => unsigned as f64,
        }
    }
}

pub(super) fn read_npy(
    source: &Source,
    reader: Box<dyn BufRead>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    let array = array(source, &source.bytes(reader)?, "")?;
    if array.is_vector {
        let what =
            "the array has 1 dimension; accepted is a matrix whose last column is the target";
        return Err(source.error(Place::Header, what));
    }
    let has_target = match reading {
        Reading::Learn { .. } => true,
        Reading::Like {
            columns,
            needs_targets,
            ..
        } => needs_targets || array.columns != columns,
    };
    if !has_target {
        return finish(source, array, None, want, reading);
    }
    if array.columns < 2 {
        let what = "the matrix has no column of features beside the target, its last column";
        return Err(source.error(Place::Header, what));
    }
    let columns = array.columns - 1;
    let (mut values, mut targets) = (Vec::with_capacity(array.rows * columns), Vec::new());
    for row in array.values.chunks_exact(array.columns) {
        values.extend_from_slice(&row[..columns]);
        targets.push(row[columns]);
    }
    let features = Array {
        columns,
        values,
        ..array
    };
    finish(source, features, Some(targets), want, reading)
}

pub(super) fn read_npz(
    source: &Source,
    reader: Box<dyn BufRead>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    let bytes = source.bytes(reader)?;
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| source.error(Place::Whole, format!("is no .npz archive: {error}")))?;
    let mut take = |names: [&str; 2]| -> Result<Option<Array>, DataError> {
        for name in names {
            let Ok(entry) = archive.by_name(&format!("{name}.npy")) else {
                continue;
            };
            let bytes = source.bytes(entry)?;
            return array(source, &bytes, &format!("array {name}: ")).map(Some);
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
    let rows = take(ROWS_NAMES)?.ok_or_else(|| missing("rows", ROWS_NAMES))?;
    let targets = take(TARGETS_NAMES)?;
    let needs_targets = match reading {
        Reading::Learn { .. } => true,
        Reading::Like { needs_targets, .. } => needs_targets,
    };
    if targets.is_none() && needs_targets {
        return Err(missing("targets", TARGETS_NAMES));
    }
    if rows.is_vector {
        return Err(source.error(
            Place::Whole,
            "the array of rows has 1 dimension; a matrix has 2",
        ));
    }
    if let Some(targets) = &targets
        && (targets.values.len() != rows.rows || targets.columns != 1)
    {
        let what = format!("{} targets for {} rows", targets.values.len(), rows.rows);
        return Err(source.error(Place::Whole, what));
    }
    finish(
        source,
        rows,
        targets.map(|targets| targets.values),
        want,
        reading,
    )
}

fn finish(
    source: &Source,
    array: Array,
    targets: Option<Vec<f64>>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    check_columns(source, Place::Header, reading, array.columns)?;
    if let Some(place) = array.values.iter().position(|value| !value.is_finite()) {
        let what = format!(
            "column {}: the value is {}; accepted are finite numbers",
            place % array.columns + 1,
            array.values[place]
        );
        let row = Place::Row((place / array.columns) as u64 + 1);
        return Err(source.error(row, what));
    }
    let targets = match targets {
        None => None,
        Some(numbers) => Some(collect(source, &numbers, want)?),
    };
    Ok(Data {
        features: Features::Dense {
            columns: array.columns,
            values: array.values,
        },
        names: None,
        target_name: None,
        targets,
    })
}

fn collect(source: &Source, numbers: &[f64], want: Want) -> Result<Targets, DataError> {
    let mut targets = Builder::new(want);
    for (row, number) in numbers.iter().enumerate() {
        let taken = targets.push(&number.to_string());
        taken.map_err(|what| source.error(Place::Row(row as u64 + 1), what))?;
    }
    Ok(targets.finish())
}

/// Parses one array. `name`: put before what is wrong.
fn array(source: &Source, bytes: &[u8], name: &str) -> Result<Array, DataError> {
    let bad = |what: &str| source.error(Place::Header, format!("{name}{what}"));
    let mut reader = bytes;
    let mut take = |count: usize| -> Result<&[u8], DataError> {
        let (taken, rest) = (reader.split_at_checked(count))
            .ok_or_else(|| bad("the file ends within the header; it is truncated"))?;
        reader = rest;
        Ok(taken)
    };
    if take(6)? != MAGIC {
        return Err(bad("the file does not begin with NumPy's magic bytes"));
    }
    let length = match take(2)?[0] {
        1 => take(2)?
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | usize::from(*byte)),
        2 | 3 => take(4)?
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | usize::from(*byte)),
        _ => return Err(bad("the version is unknown; accepted are 1, 2 and 3")),
    };
    if length > HEADER_LIMIT_BYTES {
        return Err(bad("the header is longer than 65536 bytes"));
    }
    let header = String::from_utf8_lossy(take(length)?).into_owned();
    let (element, is_fortran, shape) = dictionary(&header).map_err(|what| bad(&what))?;
    let (rows, columns, is_vector) = match shape[..] {
        [rows] => (rows, 1, true),
        [rows, columns] => (rows, columns, false),
        _ => {
            let what = format!("the array has {} dimensions; a matrix has 2", shape.len());
            return Err(bad(&what));
        }
    };
    if columns == 0 || columns > COLUMNS_MAX {
        return Err(bad(&format!(
            "{columns} columns; accepted are 1 to {COLUMNS_MAX}"
        )));
    }
    let wanted = (rows.checked_mul(columns)).and_then(|count| count.checked_mul(element.bytes));
    if wanted != Some(reader.len()) {
        let what = format!(
            "the file has {} bytes of data, its header announces {rows} × {columns} elements of {} bytes",
            reader.len(),
            element.bytes
        );
        return Err(source.error(Place::Whole, format!("{name}{what}")));
    }
    source.check_memory(Place::Header, 8 * rows as u128 * columns as u128)?;
    let elements = reader.chunks_exact(element.bytes);
    let mut values: Vec<f64> = elements.map(|bytes| element.value(bytes)).collect();
    if is_fortran && !is_vector {
        values = (0..rows * columns)
            .map(|place| values[place % columns * rows + place / columns])
            .collect();
    }
    Ok(Array {
        rows,
        columns,
        is_vector,
        values,
    })
}

/// `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order.
fn dictionary(text: &str) -> Result<(Element, bool, Vec<usize>), String> {
    let after = |key: &str| {
        let quoted = format!("'{key}'");
        let (_, rest) = text.split_once(&quoted)?;
        rest.trim_start().strip_prefix(':').map(str::trim_start)
    };
    let missing = |key: &str| format!("'{key}' is missing or damaged");
    let descr = after("descr").ok_or_else(|| missing("descr"))?;
    if descr.starts_with('[') {
        return Err(format!("the elements are structures; {ACCEPTED}"));
    }
    let descr = descr.split('\'').nth(1).ok_or_else(|| missing("descr"))?;
    let element = element(descr).ok_or_else(|| {
        format!(
            "elements of type {} cannot be read; {ACCEPTED}",
            shown(descr)
        )
    })?;
    let order = after("fortran_order").ok_or_else(|| missing("fortran_order"))?;
    let is_fortran = match order {
        order if order.starts_with("True") => true,
        order if order.starts_with("False") => false,
        _ => return Err(missing("fortran_order")),
    };
    let shape = after("shape").and_then(|rest| rest.strip_prefix('('));
    let (shape, _) = shape
        .and_then(|rest| rest.split_once(')'))
        .ok_or_else(|| missing("shape"))?;
    let extents = shape
        .split(',')
        .map(str::trim)
        .filter(|extent| !extent.is_empty());
    let extents: Result<Vec<usize>, _> = extents.map(str::parse).collect();
    Ok((element, is_fortran, extents.map_err(|_| missing("shape"))?))
}

fn element(descr: &str) -> Option<Element> {
    let &[order, kind, ref digits @ ..] = descr.as_bytes() else {
        return None;
    };
    let bytes = match digits {
        b"1" => 1,
        b"2" => 2,
        b"4" => 4,
        b"8" => 8,
        _ => return None,
    };
    let is_known = match kind {
        b'f' => bytes >= 4,
        b'i' | b'u' => true,
        b'b' => bytes == 1,
        _ => false,
    };
    let big_endian = match order {
        b'>' => true,
        b'<' | b'|' => false,
        b'=' => cfg!(target_endian = "big"),
        _ => return None,
    };
    is_known.then_some(Element {
        kind,
        bytes,
        big_endian,
    })
}
