//! CSV with a header: a column for each feature, and one for the target (the last one unless it is named).

use super::features::{COLUMNS_MAX, Features};
use super::targets::{Gathered, Want};
use super::{Data, Reading, check_columns, finite};
use csv::StringRecord;
use std::io::{BufRead, Read, Take};
use tsumuji_numbers::{FileError, Place, Source, shown};

/// Where the columns of a file go.
struct Columns {
    /// Column of the target.
    target: Option<usize>,
    target_name: Option<String>,
    /// Names of the features.
    names: Vec<String>,
}

pub(super) fn read(
    source: &Source,
    reader: Box<dyn BufRead + '_>,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    let bounded = reader.take(source.memory_limit_bytes);
    let mut table = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(bounded);
    let mut record = StringRecord::new();
    if !next(source, &mut table, &mut record)? {
        return Err(source.error(
            Place::Whole,
            "the file is empty; accepted is CSV with a header",
        ));
    }
    let columns = header(source, &record, reading)?;
    let width = record.len();
    let (mut values, mut targets) = (Vec::new(), Gathered::new(want, reading));
    while next(source, &mut table, &mut record)? {
        let place = Place::Line(record.position().map_or(0, csv::Position::line));
        if record.len() != width {
            let what = format!("{} cells; the header has {width}", record.len());
            return Err(source.error(place, what));
        }
        for (column, cell) in record.iter().enumerate() {
            if columns.target == Some(column) {
                let taken = targets.push(cell);
                taken.or_else(|what| targets.miss(source.error(place, what)))?;
            } else {
                let value = if cell.is_empty() {
                    Err("the cell is empty".to_owned())
                } else {
                    finite(cell)
                };
                let name =
                    |what| format!("column {}: {what}; accepted are finite numbers", column + 1);
                values.push(value.map_err(|what| source.error(place, name(what)))?);
            }
        }
        source.check_memory(place, values.len() as u128 * 16)?;
    }
    let (targets, targets_fault) = match columns.target {
        Some(_) => targets.finish(),
        None => (None, None),
    };
    Ok(Data {
        features: Features::Dense {
            columns: columns.names.len(),
            values,
        },
        names: Some(columns.names),
        target_name: columns.target_name,
        targets,
        targets_fault,
    })
}

/// Reads the next record; `false`: there is none.
fn next(
    source: &Source,
    table: &mut csv::Reader<Take<impl Read>>,
    record: &mut StringRecord,
) -> Result<bool, FileError> {
    // A quote that never ends makes one record of the whole file.
    table.get_mut().set_limit(source.memory_limit_bytes);
    let read = table.read_record(record);
    if table.get_ref().limit() == 0 {
        let line = record.position().map_or(0, csv::Position::line);
        let what = "the line is longer than the memory that is free; does a quote never end?";
        return Err(source.error(Place::Line(line), what));
    }
    read.map_err(|error| {
        let line = error.position().map_or(0, csv::Position::line);
        match error.into_kind() {
            csv::ErrorKind::Io(error) => source.io(error),
            csv::ErrorKind::Utf8 { .. } => {
                source.error(Place::Line(line), "the line is not text (UTF-8)")
            }
            _ => source.error(Place::Line(line), "the line is not CSV"),
        }
    })
}

/// Finds features and target in the header.
fn header(
    source: &Source,
    record: &StringRecord,
    reading: Reading<'_>,
) -> Result<Columns, FileError> {
    let place = Place::Line(1);
    if record.iter().all(|cell| cell.parse::<f64>().is_ok()) {
        let what = "the first line holds numbers; a header with the names of the columns is needed";
        return Err(source.error(place, what));
    }
    if record.len() > COLUMNS_MAX {
        return Err(source.error(place, format!("more than {COLUMNS_MAX} columns")));
    }
    let find = |name: &str| record.iter().position(|cell| cell == name);
    let target = match reading {
        Reading::Learn { target: None } => Some(record.len() - 1),
        Reading::Learn { target: Some(name) } => match find(name) {
            Some(column) => Some(column),
            None => {
                let what = format!("there is no column {}", shown(name));
                return Err(source.error(place, what));
            }
        },
        Reading::Like {
            target,
            columns,
            needs_targets,
            ..
        } => {
            let named = target.and_then(find);
            let last = (target.is_none() && record.len() == columns + 1).then(|| record.len() - 1);
            if named.is_none() && last.is_none() && needs_targets {
                let what = format!(
                    "there is no column {} for the target",
                    shown(target.unwrap_or("target"))
                );
                return Err(source.error(place, what));
            }
            named.or(last)
        }
    };
    if let Some(name) = target.and_then(|column| record.get(column))
        && record.iter().filter(|cell| *cell == name).count() > 1
    {
        let what = format!(
            "several columns are called {}, the target's name",
            shown(name)
        );
        return Err(source.error(place, what));
    }
    let cells = record.iter().enumerate();
    let names: Vec<String> = cells
        .filter(|(column, _)| Some(*column) != target)
        .map(|(_, cell)| cell.to_owned())
        .collect();
    if names.is_empty() {
        return Err(source.error(place, "there is no column of features beside the target"));
    }
    check_columns(source, place, reading, names.len())?;
    if let Reading::Like {
        names: Some(known), ..
    } = reading
        && let Some((name, known)) = names.iter().zip(known).find(|(name, known)| name != known)
    {
        let what = format!(
            "column {} where the model has {}; columns must have the same names and order",
            shown(name),
            shown(known)
        );
        return Err(source.error(place, what));
    }
    Ok(Columns {
        target,
        target_name: target
            .and_then(|column| record.get(column))
            .map(str::to_owned),
        names,
    })
}
