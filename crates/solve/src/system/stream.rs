//! A [`RowBlock`] as a stream of bytes: the sender reads its own matrix chunk by chunk, the receiver builds the block as chunks arrive. Neither ever
//! holds a second copy of the whole.
//!
//! Layout, little-endian: a `HEADER_BYTES` header (magic `TSRB`, version, kind, columns, first row, rows, entries),
//! then b (f64 per row); for dense blocks the rows (f64, row-major); for sparse ones the entries per row (u32), the
//! columns (u32, ascending in a row) and the values (f64). Chunks may be cut anywhere.
//!
//! Invariant: the builder allocates at most the bytes that arrived plus one announced section, and announced sections are refused when the block
//! would exceed the limit given by the receiver. No bytes make it panic.

use super::{Csr, Matrix, RowBlock, RowValues, System};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes before the first section.
const HEADER_BYTES: usize = 40;
/// Version of the layout.
const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"TSRB";
const KIND_DENSE: u16 = 0;
const KIND_SPARSE: u16 = 1;
/// Added to the kind of rows that are to be scaled by their diagonal entries.
const KIND_SCALED: u16 = 1 << 8;

/// Why received bytes are refused as a row block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The header is not of this version.
    #[error(
        "the row block does not begin with a header of version {VERSION}: {what}; run the same version everywhere"
    )]
    Header {
        /// The wrong field.
        what: &'static str,
    },
    /// The announced block would not fit the limit.
    #[error("the row block announces {announced} bytes; the limit is {limit}")]
    TooLarge {
        /// Bytes the block and its x would occupy.
        announced: u128,
        /// What the receiver accepts.
        limit: usize,
    },
    /// The content contradicts itself.
    #[error("the row block is damaged in row {row}: {what}")]
    Damaged {
        /// Row of the whole system, 0-based.
        row: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// The stream ended early.
    #[error("the row block ends after {found} of {expected} bytes")]
    Truncated {
        /// Bytes received.
        found: u64,
        /// Bytes announced; 0 while the header is incomplete.
        expected: u64,
    },
    /// The stream goes on after the block.
    #[error("{excess} bytes follow the end of the row block")]
    Excess {
        /// Number of further bytes.
        excess: usize,
    },
}

/// Iterator over the stream of some rows of a system. Yields chunks of at most the size asked for, as many whole elements as fit.
#[derive(Debug)]
pub struct Chunks<'a> {
    rest: VecDeque<Rest<'a>>,
    chunk_bytes: usize,
    front: &'static [u8],
}

/// What is still to be sent of a section.
#[derive(Debug)]
enum Rest<'a> {
    Header([u8; HEADER_BYTES]),
    Numbers(&'a [f64]),
    /// Offsets, whose differences are the lengths.
    RowLengths(&'a [usize]),
    Columns(&'a [u32]),
}

/// Parts of the stream, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Header,
    Rhs,
    RowLengths,
    Columns,
    Values,
    End,
}

impl RowBlock {
    /// Bytes in chunks of at most `chunk_bytes` (at least `HEADER_BYTES`) from rows `rows` of `system`, which is not
    /// copied as a whole. Panics unless `rows` is a non-empty range of its rows.
    pub fn chunks<'a>(system: &'a System, rows: Range<usize>, chunk_bytes: usize) -> Chunks<'a> {
        assert!(
            !rows.is_empty() && rows.end <= system.n(),
            "rows {rows:?} of {}",
            system.n()
        );
        assert!(chunk_bytes >= HEADER_BYTES, "a chunk must hold the header");
        let (first, last) = (rows.start, rows.end);
        let mut rest = VecDeque::from([
            Rest::Header(Shape::of(system, rows.clone()).header()),
            Rest::Numbers(&system.rhs[rows]),
        ]);
        match &system.matrix {
            Matrix::Dense(dense) => {
                let values = first * dense.n()..last * dense.n();
                rest.push_back(Rest::Numbers(&dense.values()[values]));
            }
            Matrix::Sparse(csr) => {
                let entries = csr.offsets()[first]..csr.offsets()[last];
                rest.extend([
                    Rest::RowLengths(&csr.offsets()[first..=last]),
                    Rest::Columns(&csr.indices()[entries.clone()]),
                    Rest::Numbers(&csr.values()[entries]),
                ]);
            }
        }
        Chunks {
            rest,
            chunk_bytes,
            front: &[],
        }
    }

    /// Length of the whole stream that [`RowBlock::chunks`] yields.
    pub(crate) fn stream_bytes(system: &System, rows: Range<usize>) -> u64 {
        HEADER_BYTES as u64 + Shape::of(system, rows).body_bytes() as u64
    }

    /// The stream in one piece.
    pub fn to_bytes(system: &System, rows: Range<usize>) -> Vec<u8> {
        RowBlock::chunks(system, rows, 1 << 16).flatten().collect()
    }

    /// Reads the stream in one piece. `limit_bytes` bounds the memory that the block and its x may occupy.
    pub fn from_bytes(bytes: &[u8], limit_bytes: usize) -> Result<Self, StreamError> {
        let mut builder = RowBlockBuilder::new(limit_bytes);
        builder.push(bytes)?;
        builder.finish()
    }
}

impl Chunks<'_> {
    /// The same with `front` before each chunk, so that no message needs another copy.
    pub(crate) fn behind(self, front: &'static [u8]) -> Self {
        Self { front, ..self }
    }
}

impl Iterator for Chunks<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.rest.front()?;
        let most = self.front.len() + self.chunk_bytes;
        let mut chunk = Vec::with_capacity(most);
        chunk.extend_from_slice(self.front);
        while let Some(rest) = self.rest.front_mut()
            && rest.put(&mut chunk, most)
        {
            self.rest.pop_front();
        }
        Some(chunk)
    }
}

impl Rest<'_> {
    /// Appends elements while the chunk has at most `most` bytes; returns whether none is left.
    fn put(&mut self, chunk: &mut Vec<u8>, most: usize) -> bool {
        let room = most - chunk.len();
        match self {
            Self::Header(header) => {
                chunk.extend_from_slice(header);
                true
            }
            Self::Numbers(numbers) => put(chunk, room, numbers, f64::to_le_bytes),
            Self::Columns(columns) => put(chunk, room, columns, u32::to_le_bytes),
            Self::RowLengths(offsets) => {
                let count = (room / 4).min(offsets.len() - 1);
                for ends in offsets[..=count].windows(2) {
                    // A row has fewer entries than the matrix columns, which fit 32 bits.
                    let length = (ends[1] - ends[0]) as u32;
                    chunk.extend_from_slice(&length.to_le_bytes());
                }
                *offsets = &offsets[count..];
                offsets.len() == 1
            }
        }
    }
}

impl Section {
    fn next(self, sparse: bool) -> Self {
        match self {
            Section::Header => Section::Rhs,
            Section::Rhs if sparse => Section::RowLengths,
            Section::RowLengths => Section::Columns,
            Section::Rhs | Section::Columns => Section::Values,
            Section::Values | Section::End => Section::End,
        }
    }
}

/// Appends elements while they fit into `room` bytes, and takes them away; returns whether none is left.
fn put<T: Copy, const SIZE: usize>(
    chunk: &mut Vec<u8>,
    room: usize,
    elements: &mut &[T],
    to_bytes: impl Fn(T) -> [u8; SIZE],
) -> bool {
    let (now, later) = elements.split_at((room / SIZE).min(elements.len()));
    for &element in now {
        chunk.extend_from_slice(&to_bytes(element));
    }
    *elements = later;
    later.is_empty()
}

/// The contents of the header.
#[derive(Debug, Clone)]
struct Shape {
    columns: usize,
    rows: Range<usize>,
    entries: usize,
    sparse: bool,
    scales_rows: bool,
}

impl Shape {
    fn of(system: &System, rows: Range<usize>) -> Self {
        let entries = match &system.matrix {
            Matrix::Dense(dense) => rows.len() * dense.n(),
            Matrix::Sparse(csr) => csr.offsets()[rows.end] - csr.offsets()[rows.start],
        };
        Self {
            columns: system.n(),
            rows,
            entries,
            sparse: !system.matrix.is_dense(),
            scales_rows: system.scaling.is_some(),
        }
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..6].copy_from_slice(&VERSION.to_le_bytes());
        let scaled = if self.scales_rows { KIND_SCALED } else { 0 };
        let kind = scaled | if self.sparse { KIND_SPARSE } else { KIND_DENSE };
        header[6..8].copy_from_slice(&kind.to_le_bytes());
        header[8..16].copy_from_slice(&(self.columns as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(self.rows.start as u64).to_le_bytes());
        header[24..32].copy_from_slice(&(self.rows.len() as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(self.entries as u64).to_le_bytes());
        header
    }

    /// Bytes after the header. Only called for shapes that were checked or come from a matrix in memory.
    fn body_bytes(&self) -> usize {
        let per_entry = if self.sparse { 12 } else { 8 };
        let per_row = if self.sparse { 12 } else { 8 };
        self.rows.len() * per_row + self.entries * per_entry
    }

    fn parse(header: &[u8; HEADER_BYTES], limit: usize) -> Result<Self, StreamError> {
        let bad = |what| StreamError::Header { what };
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        if header[..4] != MAGIC {
            return Err(bad("the first bytes are not TSRB"));
        }
        if u16::from_le_bytes([header[4], header[5]]) != VERSION {
            return Err(bad("another version"));
        }
        let kind = u16::from_le_bytes([header[6], header[7]]);
        let sparse = match kind & !KIND_SCALED {
            KIND_DENSE => false,
            KIND_SPARSE => true,
            _ => return Err(bad("an unknown kind of rows")),
        };
        let (columns, first, rows, entries) = (number(8), number(16), number(24), number(32));
        if columns > super::csr::INDEX_LIMIT as u64 {
            return Err(bad("more columns than a matrix may have"));
        }
        if rows == 0 || first.checked_add(rows).is_none_or(|end| end > columns) {
            return Err(bad("rows that are none or beyond the columns"));
        }
        let possible = u128::from(rows) * u128::from(columns);
        if u128::from(entries) > possible || (!sparse && u128::from(entries) != possible) {
            return Err(bad("a number of entries that cannot be"));
        }
        // In memory: x, b, and per sparse row an offset, per sparse entry a column.
        let announced = u128::from(columns) * 8
            + u128::from(rows) * if sparse { 16 } else { 8 }
            + u128::from(entries) * if sparse { 12 } else { 8 };
        if announced > limit as u128 {
            return Err(StreamError::TooLarge { announced, limit });
        }
        Ok(Self {
            columns: columns as usize,
            rows: first as usize..(first + rows) as usize,
            entries: entries as usize,
            sparse,
            scales_rows: kind & KIND_SCALED != 0,
        })
    }
}

/// Builds a [`RowBlock`] from chunks cut anywhere.
#[derive(Debug)]
pub struct RowBlockBuilder {
    limit_bytes: usize,
    received: u64,
    /// Bytes of an element (or of the header) that has arrived in part.
    carry: Vec<u8>,
    shape: Option<Shape>,
    section: Section,
    rhs: Vec<f64>,
    offsets: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl RowBlockBuilder {
    /// `limit_bytes` bounds the memory that the block and its x may occupy.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            received: 0,
            carry: Vec::new(),
            shape: None,
            section: Section::Header,
            rhs: Vec::new(),
            offsets: vec![0],
            columns: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Takes the next bytes of the stream. After an error the builder is of no more use.
    pub fn push(&mut self, mut chunk: &[u8]) -> Result<(), StreamError> {
        self.received += chunk.len() as u64;
        while !chunk.is_empty() {
            if self.section == Section::End {
                return Err(StreamError::Excess {
                    excess: chunk.len(),
                });
            }
            let unit = match self.section {
                Section::Header => HEADER_BYTES,
                Section::RowLengths | Section::Columns => 4,
                _ => 8,
            };
            if !self.carry.is_empty() || chunk.len() < unit {
                // At most one element passes through here per chunk and section.
                let wanted = (unit - self.carry.len()).min(chunk.len());
                self.carry.extend_from_slice(&chunk[..wanted]);
                chunk = &chunk[wanted..];
                if self.carry.len() == unit {
                    let carry = std::mem::take(&mut self.carry);
                    self.take(&carry)?;
                }
            } else {
                let used = self.take(chunk)?;
                chunk = &chunk[used..];
            }
        }
        Ok(())
    }

    /// Whether the last byte has arrived.
    pub fn is_complete(&self) -> bool {
        self.section == Section::End
    }

    /// Returns the block, once every byte has arrived and all of it is valid.
    pub fn finish(self) -> Result<RowBlock, StreamError> {
        let expected = |shape: &Shape| (HEADER_BYTES + shape.body_bytes()) as u64;
        let expected = self.shape.as_ref().map_or(0, expected);
        let (Section::End, Some(shape)) = (self.section, self.shape) else {
            return Err(StreamError::Truncated {
                found: self.received,
                expected,
            });
        };
        let first = shape.rows.start;
        let values = if shape.sparse {
            let csr = Csr::new(shape.columns, self.offsets, self.columns, self.values);
            RowValues::Sparse(csr.map_err(|_| StreamError::Damaged {
                row: first,
                what: "columns are out of order or out of range",
            })?)
        } else {
            RowValues::Dense(self.values)
        };
        let block = RowBlock {
            rows: shape.rows,
            columns: shape.columns,
            values,
            rhs: self.rhs,
            scales_rows: shape.scales_rows,
        };
        match block.rows.clone().find(|&row| block.diagonal(row) == 0.0) {
            Some(row) => Err(StreamError::Damaged {
                row,
                what: "the diagonal entry is zero",
            }),
            None => Ok(block),
        }
    }

    /// Takes whole elements of the current section from the front of `bytes` (at least one is there); returns the bytes used.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        if self.section == Section::Header {
            let header = bytes.first_chunk().expect("the header is complete");
            self.shape = Some(Shape::parse(header, self.limit_bytes)?);
            self.section = Section::Rhs;
            return Ok(HEADER_BYTES);
        }
        let shape = self.shape.as_ref().expect("the header comes first");
        let (used, finished) = match self.section {
            Section::Rhs => get(&mut self.rhs, shape.rows.len(), bytes, f64::from_le_bytes),
            Section::Columns => get(&mut self.columns, shape.entries, bytes, u32::from_le_bytes),
            Section::Values => get(&mut self.values, shape.entries, bytes, f64::from_le_bytes),
            Section::RowLengths => {
                let mut total = *self.offsets.last().expect("it begins with 0");
                let wanted = shape.rows.len() + 1 - self.offsets.len();
                let (elements, _) = bytes.as_chunks::<4>();
                let count = wanted.min(elements.len());
                for element in &elements[..count] {
                    total += u32::from_le_bytes(*element) as usize;
                    if total > shape.entries {
                        return Err(StreamError::Damaged {
                            row: shape.rows.start + self.offsets.len() - 1,
                            what: "rows have more entries than announced",
                        });
                    }
                    self.offsets.push(total);
                }
                if count == wanted && total != shape.entries {
                    return Err(StreamError::Damaged {
                        row: shape.rows.end - 1,
                        what: "rows have fewer entries than announced",
                    });
                }
                (count * 4, count == wanted)
            }
            Section::Header | Section::End => unreachable!("handled by the caller"),
        };
        self.check_finite(used)?;
        if finished {
            let sparse = shape.sparse;
            self.section = self.section.next(sparse);
            if sparse && self.section == Section::Columns && self.columns.len() == shape.entries {
                // There are no entries at all: `finish` refuses the block for its diagonal.
                self.section = Section::End;
            }
        }
        Ok(used)
    }

    /// Refuses NaN and infinity among the numbers just taken from `used` bytes.
    fn check_finite(&self, used: usize) -> Result<(), StreamError> {
        let (numbers, per_row, what) = match self.section {
            Section::Rhs => (&self.rhs, 1, "b is not finite"),
            Section::Values => (&self.values, 0, "an entry is not finite"),
            _ => return Ok(()),
        };
        let new = numbers.len() - used / 8;
        match numbers[new..].iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(position) => {
                let shape = self.shape.as_ref().expect("the header comes first");
                let element = new + position;
                let own = match (per_row, shape.sparse) {
                    (1, _) => element,
                    (_, false) => element / shape.columns,
                    (_, true) => self.offsets.partition_point(|&offset| offset <= element) - 1,
                };
                Err(StreamError::Damaged {
                    row: shape.rows.start + own,
                    what,
                })
            }
        }
    }
}

/// Decodes whole elements until `elements` holds `total`; returns the bytes used, and whether it does.
fn get<T, const SIZE: usize>(
    elements: &mut Vec<T>,
    total: usize,
    bytes: &[u8],
    decode: impl Fn([u8; SIZE]) -> T,
) -> (usize, bool) {
    if elements.is_empty() {
        // Announced and within the limit; exact, so that no growth doubles it.
        elements.reserve_exact(total);
    }
    let (whole, _) = bytes.as_chunks::<SIZE>();
    let count = whole.len().min(total - elements.len());
    elements.extend(whole[..count].iter().map(|element| decode(*element)));
    (count * SIZE, elements.len() == total)
}

#[cfg(test)]
mod tests;
