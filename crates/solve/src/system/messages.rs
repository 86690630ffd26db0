//! Rows of a system as messages: each has some whole rows, as many as fit. The sender reads its own matrix, the receiver appends the rows of each
//! message to its block ([`RowBlock::append`]). Neither ever holds a second copy of the whole.
//!
//! A message is a head that `codec` writes, then little-endian b (f64 per row); of sparse rows the entries per row (u32) and the columns (u32, ascending
//! in a row); and the values (f64).
//!
//! Invariant: parsing takes memory for the numbers that are there, never for announced ones. No bytes make it panic.

use super::csr::INDEX_LIMIT;
use super::{Csr, Matrix, RowBlock, RowValues, System};
use crate::distributed::codec;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Why received bytes are refused as rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// The sections are not those of the head, or columns are out of order or out of range.
    #[error("a message of rows does not parse; run the same version everywhere")]
    Malformed,
    /// The content contradicts itself.
    #[error("rows are damaged in row {row}: {what}")]
    Damaged {
        /// Row of the whole system, 0-based.
        row: usize,
        /// What is wrong there.
        what: &'static str,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    columns: usize,
    rows: Range<usize>,
    sparse: bool,
    scales_rows: bool,
}

/// Iterator over the messages with some rows of a system, each with the bytes of its numbers.
#[derive(Debug)]
pub struct Messages<'a> {
    system: &'a System,
    rows: Range<usize>,
    most_bytes: usize,
    kind: u8,
}

impl RowBlock {
    /// Messages with at most `most_bytes` of numbers, or one row, from rows `rows` of `system`. Each begins with `kind`.
    pub fn messages(
        system: &System,
        rows: Range<usize>,
        most_bytes: usize,
        kind: u8,
    ) -> Messages<'_> {
        Messages {
            system,
            rows,
            most_bytes,
            kind,
        }
    }

    /// Bytes of the numbers of some rows in messages.
    pub(crate) fn bytes_of(system: &System, rows: Range<usize>) -> u64 {
        match &system.matrix {
            Matrix::Dense(dense) => bytes(false, rows.len(), rows.len() * dense.n()),
            Matrix::Sparse(csr) => {
                let entries = csr.offsets()[rows.end] - csr.offsets()[rows.start];
                bytes(true, rows.len(), entries)
            }
        }
    }

    /// Bytes of its numbers in messages.
    pub(crate) fn bytes(&self) -> u64 {
        let sparse = matches!(self.values, RowValues::Sparse(_));
        bytes(sparse, self.rhs.len(), self.stored())
    }

    /// Takes memory for `rows` rows of so many bytes in messages, in all. False: there is none.
    pub(crate) fn reserve(&mut self, rows: usize, bytes: u64) -> bool {
        let sparse = matches!(self.values, RowValues::Sparse(_));
        let numbers = usize::try_from(bytes / self::bytes(sparse, 1, 0));
        let entries = numbers.unwrap_or(usize::MAX).saturating_sub(rows);
        let more = entries.saturating_sub(self.stored());
        let reserved = match &mut self.values {
            RowValues::Dense(values) => values.try_reserve_exact(more),
            RowValues::Sparse(csr) => csr.try_reserve_exact(rows, more),
        };
        let rows = rows.saturating_sub(self.rhs.len());
        reserved.is_ok() && self.rhs.try_reserve_exact(rows).is_ok()
    }

    /// The rows of a message, without its kind. All of them can be relaxed.
    pub fn from_message(message: &[u8]) -> Result<Self, RowsError> {
        let block = Self::parse(message).ok_or(RowsError::Malformed)?;
        for (own, row) in block.rows.clone().enumerate() {
            let values = match &block.values {
                RowValues::Dense(values) => &values[own * block.columns..][..block.columns],
                RowValues::Sparse(csr) => csr.row(own).1,
            };
            let what = if !block.rhs[own].is_finite() {
                "b is not finite"
            } else if !values.iter().all(|value| value.is_finite()) {
                "an entry is not finite"
            } else if block.diagonal(row) == 0.0 {
                "the diagonal entry is zero"
            } else {
                continue;
            };
            return Err(RowsError::Damaged { row, what });
        }
        Ok(block)
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let (head, mut rest) = codec::head_from_bytes::<Head>(message)?;
        let Head { columns, rows, .. } = head;
        if rows.is_empty() || rows.end > columns || columns > INDEX_LIMIT {
            return None;
        }
        let mut section = |count: usize, size: usize| {
            let (section, behind) = rest.split_at_checked(count.checked_mul(size)?)?;
            rest = behind;
            Some(section)
        };
        let rhs = codec::f64s(section(rows.len(), 8)?)?;
        let values = if head.sparse {
            let lengths = codec::u32s(section(rows.len(), 4)?)?;
            let mut end = 0usize;
            let ends = lengths.iter().map(|&length| {
                end += length as usize;
                end
            });
            let offsets: Vec<usize> = std::iter::once(0).chain(ends).collect();
            let indices = codec::u32s(section(end, 4)?)?;
            let values = codec::f64s(section(end, 8)?)?;
            RowValues::Sparse(Csr::new(columns, offsets, indices, values).ok()?)
        } else {
            RowValues::Dense(codec::f64s(section(rows.len().checked_mul(columns)?, 8)?)?)
        };
        rest.is_empty().then_some(Self {
            rows,
            columns,
            values,
            rhs,
            scales_rows: head.scales_rows,
        })
    }
}

/// Of sparse rows an entry has a column beside its value, and a row a length beside its b.
fn bytes(sparse: bool, rows: usize, entries: usize) -> u64 {
    (if sparse { 12 } else { 8 }) * (rows + entries) as u64
}

impl Iterator for Messages<'_> {
    type Item = (Vec<u8>, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let system = self.system;
        let Range { start, end } = self.rows;
        let most = self.most_bytes as u64;
        let fits = |end: &usize| RowBlock::bytes_of(system, start..*end) <= most;
        let last = (start + 2..=end).take_while(fits).last();
        let rows = start..last.unwrap_or(end.min(start + 1));
        if rows.is_empty() {
            return None;
        }
        self.rows.start = rows.end;
        let bytes = RowBlock::bytes_of(system, rows.clone()) as usize;
        let head = Head {
            columns: system.n(),
            rows: rows.clone(),
            sparse: !system.matrix.is_dense(),
            scales_rows: system.scaling.is_some(),
        };
        let mut message = codec::head_to_bytes(&(self.kind, head), bytes);
        codec::put_f64s(&mut message, &system.rhs[rows.clone()]);
        match &system.matrix {
            Matrix::Dense(dense) => {
                let values = rows.start * dense.n()..rows.end * dense.n();
                codec::put_f64s(&mut message, &dense.values()[values]);
            }
            Matrix::Sparse(csr) => {
                let offsets = &csr.offsets()[rows.start..=rows.end];
                // A row has fewer entries than the matrix columns, which fit 32 bits.
                let lengths = offsets.windows(2).map(|ends| (ends[1] - ends[0]) as u32);
                codec::put_u32s(&mut message, &lengths.collect::<Vec<u32>>());
                let entries = offsets[0]..offsets[rows.len()];
                codec::put_u32s(&mut message, &csr.indices()[entries.clone()]);
                codec::put_f64s(&mut message, &csr.values()[entries]);
            }
        }
        Some((message, bytes))
    }
}

#[cfg(test)]
mod tests;
