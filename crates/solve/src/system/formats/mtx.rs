//! Matrix Market files: `coordinate` and `array`; `real`, `integer`, `pattern`; `general`, `symmetric`,
//! `skew-symmetric`.
//!
//! Repeated positions are summed, and a note says so. Blank lines and comments may stand anywhere.

use super::words::{decimal, whole, words};
use super::{LINE_LIMIT_BYTES, Loaded, check_entries, check_length, check_square};
use crate::system::{Dense, Matrix};
use std::io::Read;
use tsumuji_numbers::{FileError, Lines, Source, shown};

const ACCEPTED: &str = "accepted is '%%MatrixMarket matrix' followed by coordinate or array, then real, integer or \
                        pattern, then general, symmetric or skew-symmetric";

/// Fewest bytes of an entry of a coordinate file (`1 1` and a line's end) and of an array file.
const LEAST_COORDINATE_BYTES: u64 = 4;
const LEAST_ARRAY_BYTES: u64 = 2;
/// Most entries reserved ahead where only a bound on the length is known.
const RESERVE_LIMIT: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Symmetry {
    General,
    Symmetric,
    Skew,
}

impl Symmetry {
    /// The entry across the diagonal from one of this value.
    fn mirrored(self, value: f64) -> f64 {
        if self == Self::Skew { -value } else { value }
    }
}

#[derive(Debug, Clone, Copy)]
struct Header {
    coordinate: bool,
    pattern: bool,
    symmetry: Symmetry,
    rows: u64,
    columns: u64,
    /// Entries that the file has on lines of their own.
    entries: u64,
}

/// Reads a square matrix.
pub(super) fn matrix(source: &Source, reader: impl Read) -> Result<Loaded, FileError> {
    let mut lines = Lines::new(source, reader, LINE_LIMIT_BYTES);
    let header = header(&mut lines)?;
    let place = lines.place();
    let n = check_square(source, place, header.rows, header.columns)?;
    if !header.coordinate {
        let values = square_array(source, &mut lines, &header, n)?;
        let dense = Dense::new(n, values).expect("n times n values were read");
        return Ok(Loaded::plain(Matrix::Dense(dense)));
    }
    let mirrored = header.symmetry != Symmetry::General;
    check_entries(source, place, (header.entries, mirrored), n)?;
    let count = u128::from(header.entries) * if mirrored { 2 } else { 1 };
    // Triplets, their sorted copy and the rows made from them are in memory at once for a while.
    source.check_memory(place, count * 60 + n as u128 * 24)?;
    let mut triplets = Vec::with_capacity(header.entries.min(RESERVE_LIMIT) as usize);
    coordinates(source, &mut lines, &header, |row, column, value| {
        triplets.push((row, column, value));
        if mirrored && row != column {
            triplets.push((column, row, header.symmetry.mirrored(value)));
        }
    })?;
    Ok(Loaded::of_triplets(source, n, &triplets))
}

/// Reads a vector of `expected` elements: n×1 or 1×n, array or coordinate.
pub(super) fn vector(
    source: &Source,
    reader: impl Read,
    expected: usize,
) -> Result<Vec<f64>, FileError> {
    let mut lines = Lines::new(source, reader, LINE_LIMIT_BYTES);
    let header = header(&mut lines)?;
    let (rows, columns) = (header.rows, header.columns);
    if rows != 1 && columns != 1 {
        return Err(lines.error(format!(
            "{rows} x {columns} is no vector; accepted is n x 1"
        )));
    }
    let length = rows.max(columns).min(rows.saturating_mul(columns));
    check_length(source, length, expected)?;
    if header.symmetry != Symmetry::General {
        return Err(lines.error("a vector cannot be symmetric; accepted is general"));
    }
    if header.coordinate {
        let mut values = vec![0.0; expected];
        coordinates(source, &mut lines, &header, |row, column, value| {
            values[row.max(column) as usize] += value;
        })?;
        return Ok(values);
    }
    let mut values = Vec::new();
    array(source, &mut lines, header.entries, |value| {
        values.push(value)
    })?;
    Ok(values)
}

/// The banner and the line of sizes.
fn header<R: Read>(lines: &mut Lines<'_, R>) -> Result<Header, FileError> {
    let banner = lines.next_line()?.unwrap_or_default().to_ascii_lowercase();
    let mut fields = words(&banner);
    if fields.next() != Some(b"%%matrixmarket") {
        return Err(lines.error(format!(
            "the file does not begin with a Matrix Market banner; {ACCEPTED}"
        )));
    }
    let mut field = |what: &str, accepted: &[&'static str]| {
        let word = fields.next().unwrap_or_default();
        let known = accepted
            .iter()
            .copied()
            .find(|name| name.as_bytes() == word);
        known.ok_or_else(|| {
            lines.error(format!(
                "the {what} {} is not supported; {ACCEPTED}",
                shown(word)
            ))
        })
    };
    field("object", &["matrix"])?;
    let coordinate = field("format", &["coordinate", "array"])? == "coordinate";
    let pattern = field("kind of number", &["real", "double", "integer", "pattern"])? == "pattern";
    let symmetry = match field("symmetry", &["general", "symmetric", "skew-symmetric"])? {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        _ => Symmetry::Skew,
    };
    if pattern && !coordinate {
        return Err(lines
            .error("an array cannot be a pattern; accepted is coordinate pattern, or array real"));
    }
    if !data_line(lines)? {
        return Err(lines.error("the file ends before the line of sizes"));
    }
    let sizes: Vec<Option<u64>> = words(lines.current()).take(4).map(whole).collect();
    let (rows, columns, entries) = match (coordinate, &sizes[..]) {
        (true, &[Some(rows), Some(columns), Some(entries)]) => (rows, columns, entries),
        (false, &[Some(rows), Some(columns)]) => {
            let all = u128::from(rows) * u128::from(columns);
            let entries = match symmetry {
                Symmetry::General => all,
                Symmetry::Symmetric => (all + u128::from(rows)) / 2,
                Symmetry::Skew => all.saturating_sub(u128::from(rows)) / 2,
            };
            (rows, columns, entries.try_into().unwrap_or(u64::MAX))
        }
        _ => {
            let wanted = if coordinate { " entries" } else { "" };
            return Err(lines.error(format!(
                "the line of sizes is not 'rows columns{wanted}' in whole numbers"
            )));
        }
    };
    Ok(Header {
        coordinate,
        pattern,
        symmetry,
        rows,
        columns,
        entries,
    })
}

/// Goes to the next line that is neither blank nor a comment; false at the end of the file.
fn data_line<R: Read>(lines: &mut Lines<'_, R>) -> Result<bool, FileError> {
    while let Some(line) = lines.next_line()? {
        if words(line).next().is_some_and(|word| word[0] != b'%') {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the lines `row column [value]`; passes on 0-based positions that are within the matrix.
fn coordinates<R: Read>(
    source: &Source,
    lines: &mut Lines<'_, R>,
    header: &Header,
    mut take: impl FnMut(u32, u32, f64),
) -> Result<(), FileError> {
    refuse_too_many(source, lines, header.entries, LEAST_COORDINATE_BYTES)?;
    for read in 0..header.entries {
        if !data_line(lines)? {
            return Err(truncated(lines, read, header.entries));
        }
        let line = lines.current();
        let mut fields = words(line);
        let row = fields.next().unwrap_or_default();
        let column = fields.next().unwrap_or_default();
        let value = if header.pattern {
            Some(1.0)
        } else {
            fields.next().and_then(decimal)
        };
        let excess = fields.next().is_some();
        match (whole(row), whole(column), value) {
            (Some(row), Some(column), Some(value)) if !excess => {
                let (rows, columns) = (header.rows, header.columns);
                if row == 0 || column == 0 || row > rows || column > columns {
                    let what = format!(
                        "position ({row}, {column}) is outside; rows are 1 to {rows}, columns 1 to {columns}"
                    );
                    return Err(lines.error(what));
                }
                check_finite(lines, value)?;
                // Both are at most the rows or columns, which fit 32 bits.
                take((row - 1) as u32, (column - 1) as u32, value);
            }
            _ => {
                let accepted = if header.pattern {
                    "row column"
                } else {
                    "row column value"
                };
                let what = format!("{} is not '{accepted}'", shown(line));
                return Err(lines.error(what));
            }
        }
    }
    refuse_excess(lines, header.entries)
}

fn check_finite<R: Read>(lines: &Lines<'_, R>, value: f64) -> Result<(), FileError> {
    if !value.is_finite() {
        return Err(lines.error(format!(
            "the value is {value}; entries must be finite numbers"
        )));
    }
    Ok(())
}

/// Reads `entries` lines of one value each.
fn array<R: Read>(
    source: &Source,
    lines: &mut Lines<'_, R>,
    entries: u64,
    mut take: impl FnMut(f64),
) -> Result<(), FileError> {
    refuse_too_many(source, lines, entries, LEAST_ARRAY_BYTES)?;
    for read in 0..entries {
        if !data_line(lines)? {
            return Err(truncated(lines, read, entries));
        }
        let line = lines.current();
        let mut fields = words(line);
        let value = fields.next().and_then(decimal);
        match value {
            Some(value) if fields.next().is_none() => {
                check_finite(lines, value)?;
                take(value);
            }
            _ => {
                let what = format!("{} is not one number", shown(line));
                return Err(lines.error(what));
            }
        }
    }
    refuse_excess(lines, entries)
}

/// Values of a square array in row-major order. The file has them column by column; of symmetric ones only the lower
/// triangle, of skew-symmetric ones without the diagonal.
fn square_array<R: Read>(
    source: &Source,
    lines: &mut Lines<'_, R>,
    header: &Header,
    n: usize,
) -> Result<Vec<f64>, FileError> {
    source.check_memory(lines.place(), n as u128 * n as u128 * 8)?;
    let below = usize::from(header.symmetry == Symmetry::Skew);
    let general = header.symmetry == Symmetry::General;
    // Grows with the data; only then it is spread over the whole square.
    let mut read = Vec::with_capacity(header.entries.min(RESERVE_LIMIT) as usize);
    array(source, lines, header.entries, |value| read.push(value))?;
    if general {
        super::npy::transpose_in_place(&mut read, n);
        return Ok(read);
    }
    let mut values = vec![0.0; n * n];
    let mut read = read.into_iter();
    for column in 0..n {
        for row in column + below..n {
            let value = read.next().expect("as many values as the triangle has");
            values[row * n + column] = value;
            if row != column {
                values[column * n + row] = header.symmetry.mirrored(value);
            }
        }
    }
    Ok(values)
}

/// Refuses a number of entries that the rest of the file cannot hold.
fn refuse_too_many<R: Read>(
    source: &Source,
    lines: &Lines<'_, R>,
    entries: u64,
    least_bytes: u64,
) -> Result<(), FileError> {
    // The last line may lack its end.
    if entries.saturating_mul(least_bytes) > source.length_bytes.saturating_add(1) {
        return Err(lines.error(format!(
            "{entries} entries are announced, more than the file can hold; it is truncated or the line is wrong"
        )));
    }
    Ok(())
}

fn truncated<R: Read>(lines: &Lines<'_, R>, read: u64, entries: u64) -> FileError {
    lines.error(format!("the file ends after {read} of {entries} entries; it is truncated or its line of sizes is wrong"))
}

fn refuse_excess<R: Read>(lines: &mut Lines<'_, R>, entries: u64) -> Result<(), FileError> {
    if data_line(lines)? {
        return Err(lines.error(format!(
            "more lines than the {entries} entries announced; the line of sizes is wrong"
        )));
    }
    Ok(())
}
