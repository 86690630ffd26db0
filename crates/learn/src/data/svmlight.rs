//! svmlight (libsvm): `label index:value …` on each line, indices from 1, growing; a `#` begins a comment. Data to predict for may be without labels,
//! in all rows.

use super::features::{COLUMNS_MAX, Features};
use super::targets::{Gathered, Want};
use super::{Data, Reading, finite};
use std::io::Read;
use tsumuji_numbers::{FileError, Lines, Place, Source, shown};

/// Longest line of text: a sparse row of about a million features.
const LINE_LIMIT_BYTES: u64 = 16 << 20;
/// Bytes that a stored value takes.
const VALUE_BYTES: u128 = 12;
/// Bytes that a row takes beside its values.
const ROW_BYTES: u128 = 16;

/// Sparse rows as they come.
#[derive(Default)]
struct Rows {
    starts: Vec<usize>,
    indices: Vec<u32>,
    values: Vec<f64>,
    columns: usize,
}

impl Rows {
    /// Takes `index:value` words of one line; the error says what is wrong.
    fn push<'w>(&mut self, words: impl Iterator<Item = &'w str>) -> Result<(), String> {
        let mut last = 0;
        for word in words {
            let Some((index, value)) = word.split_once(':') else {
                return Err(format!("{} is not index:value", shown(word)));
            };
            if index == "qid" {
                continue; // groups of a ranking, which are nothing to these models
            }
            let index: usize =
                (index.parse()).map_err(|_| format!("{} is not index:value", shown(word)))?;
            if index == 0 || index > COLUMNS_MAX {
                return Err(format!(
                    "feature index {index}; accepted are indices from 1 to {COLUMNS_MAX}"
                ));
            }
            if index <= last {
                return Err(format!(
                    "feature index {index} after {last}; indices must grow within a line"
                ));
            }
            last = index;
            let name = |what| format!("feature {index}: {what}; accepted are finite numbers");
            let value = finite(value).map_err(name)?;
            if value != 0.0 {
                self.indices.push(index as u32 - 1);
                self.values.push(value);
            }
        }
        self.columns = self.columns.max(last);
        self.starts.push(self.values.len());
        Ok(())
    }
}

pub(super) fn read(
    source: &Source,
    reader: impl Read,
    want: Want,
    reading: Reading<'_>,
) -> Result<Data, FileError> {
    let mut lines = Lines::new(source, reader, LINE_LIMIT_BYTES);
    let mut rows = Rows {
        starts: vec![0],
        ..Rows::default()
    };
    let mut targets = Gathered::new(want, reading);
    let may_lack = !reading.needs_targets();
    let mut has_targets = None;
    let mut blank = None;
    while let Some(line) = lines.next_text()? {
        let is_blank = line.trim_ascii().is_empty();
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace().peekable();
        let Some(&first) = words.peek() else {
            if is_blank && blank.is_none() {
                blank = Some(lines.place());
            }
            continue;
        };
        let is_target = !first.contains(':');
        let mut unfit = None;
        let taken = match *has_targets.get_or_insert(is_target || !may_lack) {
            has if has != is_target => Err(format!(
                "{} where {} should be",
                shown(first),
                if has { "a target" } else { "index:value" }
            )),
            true => {
                unfit = targets.push(words.next().unwrap_or_default()).err();
                Ok(())
            }
            false => Ok(()),
        };
        // It may be meant as a row of zeros. At the end it is none.
        if has_targets == Some(false)
            && let Some(place) = blank
        {
            let what = "an empty line among rows without targets; accepted is 1:0 for a row of zeros, or no such line";
            return Err(source.error(place, what));
        }
        let taken = taken.and_then(|()| rows.push(words));
        unfit.map_or(Ok(()), |what| targets.miss(lines.error(what)))?;
        taken.map_err(|what| lines.error(what))?;
        if let Reading::Like { columns, .. } = reading
            && rows.columns > columns
        {
            let what = format!(
                "feature index {}; the model has {columns} columns of features",
                rows.columns
            );
            return Err(lines.error(what));
        }
        let bytes = rows.values.len() as u128 * VALUE_BYTES + rows.starts.len() as u128 * ROW_BYTES;
        source.check_memory(lines.place(), bytes)?;
    }
    let columns = match reading {
        Reading::Learn { .. } => rows.columns,
        Reading::Like { columns, .. } => columns,
    };
    if columns == 0 && rows.starts.len() > 1 {
        return Err(source.error(Place::Whole, "no row has a feature"));
    }
    let (targets, targets_fault) = match has_targets {
        Some(false) => (None, None),
        _ => targets.finish(),
    };
    Ok(Data {
        features: Features::Sparse {
            columns,
            starts: rows.starts,
            indices: rows.indices,
            values: rows.values,
        },
        names: None,
        target_name: None,
        targets,
        targets_fault,
    })
}
