//! NumPy's `.npy`, versions 1 to 3: floats of 4 and 8 bytes, whole numbers of 1 to 8, either byte order, either
//! storage order. Objects, structures, complex numbers and strings are refused by name.

use super::{Loaded, Place, ReadError, Source, check_length, check_square};
use crate::system::{Dense, Matrix};
use std::io::Read;

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header; NumPy pads it to some 100 bytes.
const HEADER_LIMIT_BYTES: u32 = 1 << 16;
/// Bytes decoded at a time.
const BUFFER_BYTES: usize = 1 << 18;
const ACCEPTED: &str = "accepted are float64, float32 and whole numbers of 1 to 8 bytes";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    F64,
    F32,
    Signed,
    Unsigned,
}

#[derive(Debug, PartialEq)]
struct Header {
    element: Element,
    element_bytes: usize,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<u64>,
    /// Offset of the data.
    data_at: u64,
}

/// Reads a square matrix.
pub(super) fn matrix(source: &Source<'_>, mut reader: impl Read) -> Result<Loaded, ReadError> {
    let header = header(source, &mut reader)?;
    let &[rows, columns] = &header.shape[..] else {
        let what = format!(
            "the array has {} dimensions; a matrix has 2",
            header.shape.len()
        );
        return Err(source.error(Place::Header, what));
    };
    let n = check_square(source, Place::Header, rows, columns)?;
    source.check_memory(Place::Header, n as u128 * n as u128 * 8)?;
    let mut values = data(source, reader, &header)?;
    if header.fortran_order {
        transpose_in_place(&mut values, n);
    }
    Ok(Loaded {
        matrix: Matrix::Dense(Dense::new(n, values).expect("as many values as the shape says")),
        rhs: None,
        notes: Vec::new(),
    })
}

/// Reads a vector of `expected` elements: one dimension, or n×1, or 1×n.
pub(super) fn vector(
    source: &Source<'_>,
    mut reader: impl Read,
    expected: usize,
) -> Result<Vec<f64>, ReadError> {
    let header = header(source, &mut reader)?;
    let length = match header.shape[..] {
        [length] | [length, 1] | [1, length] => length,
        _ => {
            let what = format!(
                "an array of shape {:?} is no vector; accepted are (n,) and (n, 1)",
                header.shape
            );
            return Err(source.error(Place::Header, what));
        }
    };
    check_length(
        source,
        usize::try_from(length).unwrap_or(usize::MAX),
        expected,
    )?;
    data(source, reader, &header)
}

/// Rows become columns, tile by tile so that both sides stay in the cache.
pub(super) fn transpose_in_place(values: &mut [f64], n: usize) {
    const TILE: usize = 32;
    assert_eq!(
        values.len(),
        n * n,
        "only squares can be transposed in place"
    );
    for top in (0..n).step_by(TILE) {
        for left in (top..n).step_by(TILE) {
            for row in top..(top + TILE).min(n) {
                for column in left.max(row + 1)..(left + TILE).min(n) {
                    values.swap(row * n + column, column * n + row);
                }
            }
        }
    }
}

/// All elements in the order of the file.
fn data(
    source: &Source<'_>,
    mut reader: impl Read,
    header: &Header,
) -> Result<Vec<f64>, ReadError> {
    let count = header
        .shape
        .iter()
        .try_fold(1u64, |count, &extent| count.checked_mul(extent));
    let bytes = count.and_then(|count| count.checked_mul(header.element_bytes as u64));
    let (Some(count), Some(bytes)) = (count, bytes) else {
        return Err(source.error(
            Place::Header,
            format!("the shape {:?} is too large", header.shape),
        ));
    };
    let room = source.length.saturating_sub(header.data_at);
    if bytes > room {
        return Err(truncated(source, room, bytes));
    }
    let mut values: Vec<f64> = Vec::new();
    // The length of a plain file is known; of compressed ones there is only a bound, so the vector grows as data come.
    values
        .try_reserve_exact(count.min(source.length) as usize)
        .map_err(|_| {
            source.error(
                Place::Header,
                format!("there is no memory for {count} elements"),
            )
        })?;
    let mut buffer = vec![0; BUFFER_BYTES.min(bytes as usize)];
    let mut left = bytes;
    while left > 0 {
        let part = &mut buffer[..(BUFFER_BYTES as u64).min(left) as usize];
        let read = fill(&mut reader, part).map_err(|error| source.io(error))?;
        if read < part.len() {
            return Err(truncated(source, bytes - left + read as u64, bytes));
        }
        decode(part, header, &mut values);
        left -= part.len() as u64;
    }
    let excess = fill(&mut reader, &mut [0]).map_err(|error| source.io(error))?;
    if excess > 0 {
        let what =
            format!("the file goes on after the {bytes} bytes of data that its header announces");
        return Err(source.error(Place::Whole, what));
    }
    Ok(values)
}

fn truncated(source: &Source<'_>, found: u64, bytes: u64) -> ReadError {
    let what = format!(
        "the file has {found} bytes of data, its header announces {bytes}; it is truncated"
    );
    source.error(Place::Whole, what)
}

/// Reads until `buffer` is full or the file ends; returns the bytes read.
fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match reader.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

fn decode(bytes: &[u8], header: &Header, values: &mut Vec<f64>) {
    fn each<const SIZE: usize>(
        bytes: &[u8],
        big: bool,
        values: &mut Vec<f64>,
        number: impl Fn([u8; SIZE]) -> f64,
    ) {
        let (elements, _) = bytes.as_chunks::<SIZE>();
        values.extend(elements.iter().map(|element| {
            let mut element = *element;
            if big {
                element.reverse();
            }
            number(element)
        }));
    }
    let big = header.big_endian;
    match (header.element, header.element_bytes) {
        (Element::F64, _) => each(bytes, big, values, f64::from_le_bytes),
        (Element::F32, _) => each(bytes, big, values, |b| f64::from(f32::from_le_bytes(b))),
        (Element::Signed, 1) => each(bytes, big, values, |b| f64::from(i8::from_le_bytes(b))),
        (Element::Signed, 2) => each(bytes, big, values, |b| f64::from(i16::from_le_bytes(b))),
        (Element::Signed, 4) => each(bytes, big, values, |b| f64::from(i32::from_le_bytes(b))),
        (Element::Signed, _) => each(bytes, big, values, |b| i64::from_le_bytes(b) as f64),
        (Element::Unsigned, 1) => each(bytes, big, values, |b| f64::from(u8::from_le_bytes(b))),
        (Element::Unsigned, 2) => each(bytes, big, values, |b| f64::from(u16::from_le_bytes(b))),
        (Element::Unsigned, 4) => each(bytes, big, values, |b| f64::from(u32::from_le_bytes(b))),
        (Element::Unsigned, _) => each(bytes, big, values, |b| u64::from_le_bytes(b) as f64),
    }
}

/// Magic, version, length, and the Python dictionary that describes the array.
fn header(source: &Source<'_>, reader: &mut impl Read) -> Result<Header, ReadError> {
    let bad = |what: String| source.error(Place::Header, what);
    let mut take = |bytes: &mut [u8]| match fill(reader, bytes) {
        Ok(read) if read == bytes.len() => Ok(()),
        Ok(_) => Err(bad(
            "the file ends within the header; it is truncated".into()
        )),
        Err(error) => Err(source.io(error)),
    };
    let mut start = [0; 8];
    take(&mut start)?;
    if &start[..6] != MAGIC {
        return Err(bad(
            "the file does not begin with NumPy's magic bytes".into()
        ));
    }
    let (length_bytes, length) = match start[6] {
        1 => {
            let mut length = [0; 2];
            take(&mut length)?;
            (2, u32::from(u16::from_le_bytes(length)))
        }
        2 | 3 => {
            let mut length = [0; 4];
            take(&mut length)?;
            (4, u32::from_le_bytes(length))
        }
        version => {
            return Err(bad(format!(
                "version {version} is unknown; accepted are 1, 2 and 3"
            )));
        }
    };
    if length > HEADER_LIMIT_BYTES {
        return Err(bad(format!(
            "{length} bytes of header are beyond the limit of {HEADER_LIMIT_BYTES}"
        )));
    }
    let mut text = vec![0; length as usize];
    take(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let mut header = dictionary(&text).map_err(bad)?;
    header.data_at = 8 + length_bytes + u64::from(length);
    Ok(header)
}

/// `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order.
fn dictionary(text: &str) -> Result<Header, String> {
    let mut rest = Text { rest: text };
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    rest.expect('{')?;
    while !rest.skip('}') {
        let key = rest.quoted()?;
        rest.expect(':')?;
        match key {
            "descr" => {
                if rest.peek() == Some('[') {
                    return Err(format!("the elements are structures; {ACCEPTED}"));
                }
                descr = Some(rest.quoted()?);
            }
            "fortran_order" => fortran_order = Some(rest.boolean()?),
            "shape" => shape = Some(rest.tuple()?),
            _ => {
                return Err(format!(
                    "the key '{}' is unknown",
                    super::lines::shown(key.as_bytes())
                ));
            }
        }
        if !rest.skip(',') {
            rest.expect('}')?;
            break;
        }
    }
    let (Some(descr), Some(fortran_order), Some(shape)) = (descr, fortran_order, shape) else {
        return Err("one of 'descr', 'fortran_order' and 'shape' is missing".into());
    };
    let refuse = || {
        format!(
            "elements of type {} cannot be read; {ACCEPTED}",
            super::lines::shown(descr.as_bytes())
        )
    };
    let (order, kind) = descr.split_at_checked(1).ok_or_else(refuse)?;
    let (element, element_bytes) = match kind {
        "f8" => (Element::F64, 8),
        "f4" => (Element::F32, 4),
        "i1" => (Element::Signed, 1),
        "i2" => (Element::Signed, 2),
        "i4" => (Element::Signed, 4),
        "i8" => (Element::Signed, 8),
        "u1" => (Element::Unsigned, 1),
        "u2" => (Element::Unsigned, 2),
        "u4" => (Element::Unsigned, 4),
        "u8" => (Element::Unsigned, 8),
        _ => return Err(refuse()),
    };
    let big_endian = match order {
        "<" => false,
        ">" => true,
        "=" => cfg!(target_endian = "big"),
        "|" if element_bytes == 1 => false,
        _ => return Err(refuse()),
    };
    Ok(Header {
        element,
        element_bytes,
        big_endian,
        fortran_order,
        shape,
        data_at: 0,
    })
}

/// The rest of the dictionary's text.
struct Text<'t> {
    rest: &'t str,
}

impl<'t> Text<'t> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn skip(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        found
    }

    fn expect(&mut self, wanted: char) -> Result<(), String> {
        if self.skip(wanted) {
            return Ok(());
        }
        Err(format!(
            "'{wanted}' is missing before {}",
            super::lines::shown(self.rest.as_bytes())
        ))
    }

    fn quoted(&mut self) -> Result<&'t str, String> {
        let quote = if self.peek() == Some('"') { '"' } else { '\'' };
        self.expect(quote)?;
        let (text, rest) = self
            .rest
            .split_once(quote)
            .ok_or("a quoted text does not end")?;
        self.rest = rest;
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.peek();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("'fortran_order' is neither True nor False".into())
    }

    /// At most 32 extents, NumPy's own limit.
    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        self.expect('(')?;
        let mut extents = Vec::new();
        while !self.skip(')') {
            self.peek();
            let end = self
                .rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(self.rest.len());
            let (digits, rest) = self.rest.split_at(end);
            self.rest = rest;
            let extent = super::lines::whole(digits.as_bytes());
            extents.push(extent.ok_or("'shape' is not a tuple of whole numbers")?);
            if extents.len() > 32 {
                return Err("'shape' has more than 32 dimensions".into());
            }
            if !self.skip(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(extents)
    }
}
