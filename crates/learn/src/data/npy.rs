//! NumPy's `.npy` and `.npz`: floats of 4 and 8 bytes, whole numbers and booleans, either byte order, either storage order.
//!
//! Values are read in chunks, so that they are in memory once. A `.npy` file is one matrix, whose last column is the target. A `.npz` file has the rows as `X` (or `data`) and the targets as `y` (or `target`).
//! Objects, structures and texts are refused by name: nothing of a file is ever executed.

use super::features::{COLUMNS_MAX, Features};
use super::source::{DataError, Place, Source, shown};
use super::targets::{Builder, Targets, Want};
use super::{Data, Reading, check_columns};
use std::io::{BufRead, Cursor, Read};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header; NumPy pads it to some 100 bytes.
const HEADER_LIMIT_BYTES: usize = 1 << 16;
/// Bytes that are read at a time, or one row.
const CHUNK_BYTES: usize = 1 << 16;
const ACCEPTED: &str = "accepted are float64, float32, whole numbers of 1 to 8 bytes and booleans";
/// Names of the rows and targets in a `.npz` file.
const ROWS_NAMES: [&str; 2] = ["X", "data"];
const TARGETS_NAMES: [&str; 2] = ["y", "target"];

/// An array with one or two dimensions, row after row.
struct Array {
    rows: usize,
    /// Without a last one that went apart; 1 for a vector.
    columns: usize,
    values: Vec<f64>,
    /// The last column, if it was to go apart.
    last: Option<Vec<f64>>,
}

/// Type of the elements.
#[derive(Clone, Copy)]
struct Element {
    kind: u8,
    bytes: usize,
    big_endian: bool,
}

impl Element {
    /// Appends the values of whole elements.
    fn decode(self, bytes: &[u8], values: &mut Vec<f64>) {
        if let (b'f', 8, false) = (self.kind, self.bytes, self.big_endian) {
            let (elements, _) = bytes.as_chunks::<8>();
            values.extend(elements.iter().map(|bytes| f64::from_le_bytes(*bytes)));
        } else {
            let elements = bytes.chunks_exact(self.bytes);
            values.extend(elements.map(|bytes| self.value(bytes)));
        }
    }

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
    mut reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    let header = header(source, &mut reader, "")?;
    if header.is_vector {
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
        } => needs_targets || header.columns != columns,
    };
    if has_target && header.columns < 2 {
        let what = "the matrix has no column of features beside the target, its last column";
        return Err(source.error(Place::Header, what));
    }
    let mut array = array(source, &mut reader, &header, has_target, "")?;
    let targets = array.last.take();
    finish(source, array, targets, want, reading)
}

pub(super) fn read_npz(
    source: &Source,
    reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, DataError> {
    let bytes = source.bytes(reader)?;
    let mut archive = zip::ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| source.error(Place::Whole, format!("is no .npz archive: {error}")))?;
    let mut take = |names: [&str; 2]| -> Result<Option<(Array, bool)>, DataError> {
        for name in names {
            let Ok(mut entry) = archive.by_name(&format!("{name}.npy")) else {
                continue;
            };
            let name = format!("array {name}: ");
            let header = header(source, &mut entry, &name)?;
            let array = array(source, &mut entry, &header, false, &name)?;
            return Ok(Some((array, header.is_vector)));
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
    let (rows, is_vector) = take(ROWS_NAMES)?.ok_or_else(|| missing("rows", ROWS_NAMES))?;
    let targets = take(TARGETS_NAMES)?.map(|(targets, _)| targets);
    let needs_targets = match reading {
        Reading::Learn { .. } => true,
        Reading::Like { needs_targets, .. } => needs_targets,
    };
    if targets.is_none() && needs_targets {
        return Err(missing("targets", TARGETS_NAMES));
    }
    if is_vector {
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
        let taken = targets.push_number(*number);
        taken.map_err(|what| source.error(Place::Row(row as u64 + 1), what))?;
    }
    Ok(targets.finish())
}

/// What an array's header says.
struct Header {
    element: Element,
    is_fortran: bool,
    rows: usize,
    /// 1 for a vector.
    columns: usize,
    is_vector: bool,
}

/// Reads the header of an array. `name`: put before what is wrong.
fn header(source: &Source, reader: &mut impl Read, name: &str) -> Result<Header, DataError> {
    let bad = |what: &str| source.error(Place::Header, format!("{name}{what}"));
    let mut take = |count: usize| -> Result<Vec<u8>, DataError> {
        let taken = up_to(source, reader, count)?;
        if taken.len() < count {
            return Err(bad("the file ends within the header; it is truncated"));
        }
        Ok(taken)
    };
    if take(6)? != MAGIC {
        return Err(bad("the file does not begin with NumPy's magic bytes"));
    }
    let length_bytes = match take(2)?[0] {
        1 => 2,
        2 | 3 => 4,
        _ => return Err(bad("the version is unknown; accepted are 1, 2 and 3")),
    };
    let length =
        (take(length_bytes)?.iter().rev()).fold(0, |all, byte| all << 8 | usize::from(*byte));
    if length > HEADER_LIMIT_BYTES {
        return Err(bad("the header is longer than 65536 bytes"));
    }
    let text = String::from_utf8_lossy(&take(length)?).into_owned();
    let (element, is_fortran, shape) = dictionary(&text).map_err(|what| bad(&what))?;
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
    // A matrix in the other order is there twice while it is turned.
    let copies = if is_fortran && !is_vector { 2 } else { 1 };
    source.check_memory(
        Place::Header,
        (8 * copies * rows as u128).saturating_mul(columns as u128),
    )?;
    Ok(Header {
        element,
        is_fortran: is_fortran && !is_vector,
        rows,
        columns,
        is_vector,
    })
}

/// Reads the values after a header, row after row; with `splits` the last column goes apart. `name`: put before what is wrong.
fn array(
    source: &Source,
    reader: &mut impl Read,
    header: &Header,
    splits: bool,
    name: &str,
) -> Result<Array, DataError> {
    let Header {
        element,
        rows,
        columns,
        ..
    } = *header;
    let row_bytes = columns * element.bytes;
    let wrong = |how: &str| {
        let what = format!(
            "{name}the file has {how} bytes of data than the {rows} × {columns} elements of {} bytes that its header announces",
            element.bytes
        );
        source.error(Place::Whole, what)
    };
    // What the header announces is taken on trust only for one chunk.
    let (mut values, mut last) = (Vec::new(), Vec::new());
    let mut scratch = Vec::new();
    let rows_of_chunk = (CHUNK_BYTES / row_bytes).max(1);
    let mut left = rows;
    while left > 0 {
        let count = left.min(rows_of_chunk);
        let bytes = up_to(source, reader, count * row_bytes)?;
        if bytes.len() < count * row_bytes {
            return Err(wrong("fewer"));
        }
        left -= count;
        if !splits || header.is_fortran {
            element.decode(&bytes, &mut values);
            continue;
        }
        scratch.clear();
        element.decode(&bytes, &mut scratch);
        for row in scratch.chunks_exact(columns) {
            values.extend_from_slice(&row[..columns - 1]);
            last.push(row[columns - 1]);
        }
    }
    if !up_to(source, reader, 1)?.is_empty() {
        return Err(wrong("more"));
    }
    if header.is_fortran {
        let by_column = values;
        let kept = if splits { columns - 1 } else { columns };
        values = (0..rows * kept)
            .map(|place| by_column[place % kept * rows + place / kept])
            .collect();
        last.extend_from_slice(&by_column[kept * rows..]);
    }
    Ok(Array {
        rows,
        columns: if splits { columns - 1 } else { columns },
        values,
        last: splits.then_some(last),
    })
}

/// So many bytes, or fewer at the end of the file.
fn up_to(source: &Source, reader: &mut impl Read, count: usize) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let read = reader.take(count as u64).read_to_end(&mut bytes);
    read.map_err(|error| source.io(error))?;
    Ok(bytes)
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
