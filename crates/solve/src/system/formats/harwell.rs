//! Harwell–Boeing files: assembled sparse matrices by columns in fixed-width Fortran fields; real and pattern (= 1);
//! unsymmetric, symmetric (lower triangle stored) and skew-symmetric. The first full right-hand side is offered as b.

use super::fortran::Edit;
use super::words::{whole, words};
use super::{LINE_LIMIT_BYTES, Loaded, check_entries, check_square};
use std::io::Read;
use tsumuji_numbers::{FileError, Lines, Source, shown};

/// Most entries reserved ahead; beyond it the arrays grow as entries are read.
const RESERVE_LIMIT: u64 = 1 << 20;

struct Header {
    pattern: bool,
    /// `U`, `S` or `Z`.
    symmetry: u8,
    n: usize,
    entries: u64,
    pointers: Edit,
    rows: Edit,
    values: Option<Edit>,
    /// Layout of the right-hand side, if there is a full one.
    rhs: Option<Edit>,
}

/// Reads a square matrix, and the first right-hand side if there is one.
pub(super) fn matrix(source: &Source, reader: impl Read) -> Result<Loaded, FileError> {
    let mut lines = Lines::new(source, reader, LINE_LIMIT_BYTES);
    let header = header(source, &mut lines)?;
    let (n, entries) = (header.n, header.entries);

    let mut pointers = Vec::with_capacity((n as u64 + 1).min(RESERVE_LIMIT) as usize);
    integers(
        &mut lines,
        header.pointers,
        n as u64 + 1,
        "column pointer",
        |lines, pointer| {
            let least = pointers.last().copied().unwrap_or(1);
            if pointer < least || pointer > entries + 1 || (pointers.is_empty() && pointer != 1) {
                return Err(lines.error(format!(
                    "column pointer {pointer} is out of order; they begin with 1 and rise to {}",
                    entries + 1
                )));
            }
            pointers.push(pointer);
            Ok(())
        },
    )?;
    if pointers[n] != entries + 1 {
        let what = format!(
            "the last column pointer is {}, but there are {entries} entries",
            pointers[n]
        );
        return Err(lines.error(what));
    }
    let mut rows: Vec<u32> = Vec::with_capacity(entries.min(RESERVE_LIMIT) as usize);
    integers(
        &mut lines,
        header.rows,
        entries,
        "row index",
        |lines, row| {
            if row == 0 || row > n as u64 {
                return Err(lines.error(format!("row index {row} is outside; rows are 1 to {n}")));
            }
            rows.push((row - 1) as u32);
            Ok(())
        },
    )?;
    let mut values = Vec::with_capacity(rows.len());
    match header.values {
        Some(edit) => reals(&mut lines, edit, entries, "entry", |value| {
            values.push(value)
        })?,
        None => values.resize(rows.len(), 1.0),
    }
    let mut rhs = None;
    if let Some(edit) = header.rhs {
        let mut b = Vec::with_capacity(n);
        reals(&mut lines, edit, n as u64, "right-hand side", |value| {
            b.push(value)
        })?;
        rhs = Some(b);
    }

    let mirrored = header.symmetry != b'U';
    let mut triplets = Vec::with_capacity(rows.len() * if mirrored { 2 } else { 1 });
    for column in 0..n {
        for entry in pointers[column] as usize - 1..pointers[column + 1] as usize - 1 {
            let (row, column, value) = (rows[entry], column as u32, values[entry]);
            triplets.push((row, column, value));
            if mirrored && row != column {
                let is_skew = header.symmetry == b'Z';
                triplets.push((column, row, if is_skew { -value } else { value }));
            }
        }
    }
    let mut loaded = Loaded::of_triplets(source, n, &triplets);
    loaded.rhs = rhs;
    if header.pattern {
        loaded.notes.push(format!(
            "{}: the file has a pattern only; all entries are taken as 1",
            source.file
        ));
    }
    Ok(loaded)
}

/// The four or five header lines: title; counts of lines; type and sizes; formats; right-hand sides.
fn header<R: Read>(source: &Source, lines: &mut Lines<'_, R>) -> Result<Header, FileError> {
    line(lines, "the title")?;
    let counts = line(lines, "the counts of lines")?;
    let counts: Vec<_> = words(&counts).map(whole).collect();
    let (4 | 5) = counts.len() else {
        return Err(lines
            .error("this is not the second line of a Harwell-Boeing file: five counts of lines"));
    };
    let rhs_lines = match counts.get(4) {
        Some(None) => {
            return Err(lines.error("the count of right-hand side lines is not a whole number"));
        }
        Some(Some(count)) => *count,
        None => 0,
    };

    let sizes = line(lines, "type and sizes")?;
    let (kind, sizes) = sizes.split_at(sizes.len().min(3));
    let kind = kind.to_ascii_uppercase();
    let accepted =
        "accepted are RUA, RSA, RZA, PUA, PSA and PZA: real or pattern, assembled, square";
    let refuse = |lines: &Lines<'_, R>, why: &str| {
        Err(lines.error(format!(
            "the matrix type {} {why}; {accepted}",
            shown(&kind)
        )))
    };
    let &[number, symmetry, assembly] = &kind[..] else {
        return refuse(lines, "is incomplete");
    };
    match (number, symmetry, assembly) {
        (b'C', ..) => return refuse(lines, "is complex"),
        (_, b'H', _) => return refuse(lines, "is Hermitian"),
        (_, b'R', _) => return refuse(lines, "is rectangular"),
        (.., b'E') => return refuse(lines, "is not assembled"),
        (b'R' | b'P', b'U' | b'S' | b'Z', b'A') => {}
        _ => return refuse(lines, "is unknown"),
    }
    let sizes: Vec<_> = words(sizes).map(whole).collect();
    let (&[Some(rows), Some(columns), Some(entries)]
    | &[Some(rows), Some(columns), Some(entries), _]) = &sizes[..]
    else {
        return Err(lines.error(
            "after the matrix type should stand rows, columns and entries in whole numbers",
        ));
    };
    let place = lines.place();
    let n = check_square(source, place, rows, columns)?;
    let mirrored = symmetry != b'U';
    check_entries(source, place, (entries, mirrored), n)?;
    // Every entry takes a character for its row, at least.
    if entries > source.length_bytes {
        let what = format!(
            "{entries} entries are announced, more than the file can hold; it is truncated"
        );
        return Err(lines.error(what));
    }
    // As text, as triplets, sorted, and as rows.
    let each = if mirrored { 100 } else { 64 };
    source.check_memory(place, u128::from(entries) * each + n as u128 * 32)?;

    let formats = line(lines, "the formats")?;
    let edit = |from: usize, to: usize, integer: bool| {
        let text =
            String::from_utf8_lossy(&formats[from.min(formats.len())..to.min(formats.len())])
                .into_owned();
        match Edit::parse(&text) {
            Ok(edit) if edit.is_integer() == integer => Ok(edit),
            Ok(_) => Err(lines.error(format!(
                "the format {} is of the wrong kind",
                shown(text.trim())
            ))),
            Err(what) => Err(lines.error(what)),
        }
    };
    let pattern = number == b'P';
    let (pointers, row_indices) = (edit(0, 16, true)?, edit(16, 32, true)?);
    let values = if pattern {
        None
    } else {
        Some(edit(32, 52, false)?)
    };
    let mut rhs = None;
    if rhs_lines > 0 {
        let layout = edit(52, 72, false);
        let kinds = line(lines, "the kind of right-hand sides")?;
        // Full storage begins with F; sparse ones (M) are of no use here and are left unread.
        if matches!(kinds.first(), Some(b'F' | b'f')) {
            rhs = Some(layout?);
        }
    }
    Ok(Header {
        pattern,
        symmetry,
        n,
        entries,
        pointers,
        rows: row_indices,
        values,
        rhs,
    })
}

fn line<R: Read>(lines: &mut Lines<'_, R>, what: &str) -> Result<Vec<u8>, FileError> {
    match lines.next_line()?.map(<[u8]>::to_vec) {
        Some(line) => Ok(line),
        None => Err(lines.error(format!(
            "the file ends before {what} of its header; it is truncated"
        ))),
    }
}

/// Reads `count` fields, as many on each line as the layout says.
fn fields<R: Read>(
    lines: &mut Lines<'_, R>,
    edit: Edit,
    count: u64,
    what: &str,
    mut take: impl FnMut(&Lines<'_, R>, &[u8]) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let mut read = 0;
    while read < count {
        if lines.next_line()?.is_none() {
            return Err(lines.error(format!(
                "the file ends after {read} of {count} values ({what}); it is truncated"
            )));
        }
        let on_line = (edit.per_line as u64).min(count - read);
        for index in 0..on_line as usize {
            let field = edit.field(lines.current(), index);
            if field.is_empty() {
                return Err(lines.error(format!(
                    "field {} ({what}) is empty; the line is truncated",
                    index + 1
                )));
            }
            take(lines, field)?;
        }
        read += on_line;
    }
    Ok(())
}

fn integers<R: Read>(
    lines: &mut Lines<'_, R>,
    edit: Edit,
    count: u64,
    what: &str,
    mut take: impl FnMut(&Lines<'_, R>, u64) -> Result<(), FileError>,
) -> Result<(), FileError> {
    fields(lines, edit, count, what, |lines, field| {
        match whole(field) {
            Some(number) => take(lines, number),
            None => Err(lines.error(format!(
                "{} is not a {what}: a whole number is expected",
                shown(field)
            ))),
        }
    })
}

fn reals<R: Read>(
    lines: &mut Lines<'_, R>,
    edit: Edit,
    count: u64,
    what: &str,
    mut take: impl FnMut(f64),
) -> Result<(), FileError> {
    fields(lines, edit, count, what, |lines, field| {
        match edit.real(field) {
            Some(value) if value.is_finite() => {
                take(value);
                Ok(())
            }
            Some(value) => Err(lines.error(format!(
                "the value {} is {value}; entries must be finite",
                shown(field)
            ))),
            None => Err(lines.error(format!("{} is not a number ({what})", shown(field)))),
        }
    })
}
