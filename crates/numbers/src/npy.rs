//! NumPy's `.npy`, versions 1 to 3: floats of 4 and 8 bytes, whole numbers of 1 to 8, booleans, either byte order, either
//! storage order; texts of fixed length where words are asked for. Objects, structures and complex numbers are refused by name: nothing of a file is
//! ever executed.

use super::{FileError, Place, Source, shown};
use std::io::{Read, Write};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Longest header; NumPy pads it to some 100 bytes.
const HEADER_LIMIT_BYTES: u32 = 1 << 16;
/// Bytes decoded at a time.
const BUFFER_BYTES: usize = 1 << 18;
/// Longest text that an array may have as element, in characters.
const TEXT_MOST: usize = 4096;
const ACCEPTED: &str = "accepted are float64, float32, whole numbers of 1 to 8 bytes and booleans, and as labels texts of up to 4096 characters";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Element {
    F64,
    F32,
    Signed,
    Unsigned,
    /// UTF-32, filled up with zeros.
    Unicode,
    /// Bytes, filled up with zeros.
    Bytes,
}

/// What a file says of its array.
#[derive(Debug, PartialEq)]
pub struct Header {
    element: Element,
    element_bytes: usize,
    big_endian: bool,
    /// Whether the elements of a column follow one another, not those of a row.
    pub is_fortran: bool,
    /// Extents as announced: their product may be anything.
    pub shape: Vec<u64>,
    /// Offset of the data.
    data_at: u64,
}

impl Header {
    /// Reads magic, version, length, and the Python dictionary that describes the array.
    pub fn read(source: &Source, reader: &mut impl Read) -> Result<Self, FileError> {
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

    /// Bytes of an element in the file.
    pub fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// Whether the elements are texts, to be read by [`Header::words`].
    pub fn is_text(&self) -> bool {
        matches!(self.element, Element::Unicode | Element::Bytes)
    }

    /// Reads all elements in the order of the file.
    pub fn values(&self, source: &Source, reader: &mut impl Read) -> Result<Vec<f64>, FileError> {
        if self.is_text() {
            let what = format!("elements that are texts cannot be read; {ACCEPTED}");
            return Err(source.error(Place::Header, what));
        }
        let mut values: Vec<f64> = Vec::new();
        self.elements(source, reader, &mut values, |part, values| {
            decode(part, self, values);
            Ok(())
        })?;
        Ok(values)
    }

    /// Reads all elements, which are texts, in the order of the file.
    pub fn words(&self, source: &Source, reader: &mut impl Read) -> Result<Vec<String>, FileError> {
        let mut words: Vec<String> = Vec::new();
        self.elements(source, reader, &mut words, |part, words| {
            for element in part.chunks_exact(self.element_bytes) {
                let row = Place::Row(words.len() as u64 + 1);
                let word = self.word(element);
                words.push(word.ok_or_else(|| source.error(row, "the text is no Unicode"))?);
            }
            Ok(())
        })?;
        Ok(words)
    }

    fn word(&self, element: &[u8]) -> Option<String> {
        if self.element == Element::Bytes {
            return Some(
                std::str::from_utf8(element)
                    .ok()?
                    .trim_end_matches('\0')
                    .into(),
            );
        }
        let (characters, _) = element.as_chunks::<4>();
        let number = if self.big_endian {
            u32::from_be_bytes
        } else {
            u32::from_le_bytes
        };
        let word: Option<String> = (characters.iter())
            .map(|bytes| char::from_u32(number(*bytes)))
            .collect();
        Some(word?.trim_end_matches('\0').into())
    }

    /// Gives whole elements to `take`, part by part, with what is made of them.
    fn elements<T>(
        &self,
        source: &Source,
        reader: &mut impl Read,
        elements: &mut Vec<T>,
        take: impl Fn(&[u8], &mut Vec<T>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let count = self
            .shape
            .iter()
            .try_fold(1u64, |count, &extent| count.checked_mul(extent));
        let bytes = count.and_then(|count| count.checked_mul(self.element_bytes as u64));
        let (Some(count), Some(bytes)) = (count, bytes) else {
            return Err(source.error(
                Place::Header,
                format!("the shape {:?} is too large", self.shape),
            ));
        };
        let room = source.length_bytes.saturating_sub(self.data_at);
        if bytes > room {
            return Err(truncated(source, room, bytes));
        }
        // The length of a plain file is known; of compressed ones there is only a bound, so the vector grows as data come.
        elements
            .try_reserve_exact(count.min(source.length_bytes) as usize)
            .map_err(|_| {
                source.error(
                    Place::Header,
                    format!("there is no memory for {count} elements"),
                )
            })?;
        let whole = BUFFER_BYTES / self.element_bytes * self.element_bytes;
        let mut buffer = vec![0; whole.min(bytes as usize)];
        let mut left = bytes;
        while left > 0 {
            let part = &mut buffer[..(whole as u64).min(left) as usize];
            let read = fill(reader, part).map_err(|error| source.io(error))?;
            if read < part.len() {
                return Err(truncated(source, bytes - left + read as u64, bytes));
            }
            take(part, elements)?;
            left -= part.len() as u64;
        }
        let excess = fill(reader, &mut [0]).map_err(|error| source.io(error))?;
        if excess > 0 {
            let what = format!(
                "the file goes on after the {bytes} bytes of data that its header announces"
            );
            return Err(source.error(Place::Whole, what));
        }
        Ok(())
    }
}

/// Writes an array of shape (n,): version 1, its header padded with blanks so that the data begins at a multiple of 64.
pub fn write(out: &mut dyn Write, values: &[f64]) -> std::io::Result<()> {
    let dictionary = format!(
        "{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}",
        values.len()
    );
    // Before it stand ten bytes, after it the end of the line.
    let width = (10 + dictionary.len() + 1).next_multiple_of(64) - 11;
    let header = format!("{dictionary:width$}\n");
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&(header.len() as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    values
        .iter()
        .try_for_each(|value| out.write_all(&value.to_le_bytes()))
}

fn truncated(source: &Source, found: u64, bytes: u64) -> FileError {
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
        (Element::Unicode | Element::Bytes, _) => unreachable!("texts are no numbers"),
    }
}

/// `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }`, keys in any order.
fn dictionary(text: &str) -> Result<Header, String> {
    let mut rest = Text { rest: text };
    let (mut descr, mut is_fortran, mut shape) = (None, None, None);
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
            "fortran_order" => is_fortran = Some(rest.boolean()?),
            "shape" => shape = Some(rest.tuple()?),
            _ => return Err(format!("the key {} is unknown", shown(key))),
        }
        if !rest.skip(',') {
            rest.expect('}')?;
            break;
        }
    }
    let (Some(descr), Some(is_fortran), Some(shape)) = (descr, is_fortran, shape) else {
        return Err("one of 'descr', 'fortran_order' and 'shape' is missing".into());
    };
    let refuse = || {
        format!(
            "elements of type {} cannot be read; {ACCEPTED}",
            shown(descr)
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
        "u1" | "b1" => (Element::Unsigned, 1),
        "u2" => (Element::Unsigned, 2),
        "u4" => (Element::Unsigned, 4),
        "u8" => (Element::Unsigned, 8),
        _ => text_of(kind).ok_or_else(refuse)?,
    };
    let big_endian = match order {
        "<" => false,
        ">" => true,
        "=" => cfg!(target_endian = "big"),
        "|" if element_bytes == 1 || element == Element::Bytes => false,
        _ => return Err(refuse()),
    };
    Ok(Header {
        element,
        element_bytes,
        big_endian,
        is_fortran,
        shape,
        data_at: 0,
    })
}

/// `U3` or `S3`: texts of three characters or bytes.
fn text_of(kind: &str) -> Option<(Element, usize)> {
    let (element, bytes) = match kind.chars().next()? {
        'U' => (Element::Unicode, 4),
        'S' => (Element::Bytes, 1),
        _ => return None,
    };
    let digits = &kind[1..];
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let length: usize = digits.parse().ok().filter(|_| is_number)?;
    (1..=TEXT_MOST)
        .contains(&length)
        .then_some((element, bytes * length))
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
        Err(format!("'{wanted}' is missing before {}", shown(self.rest)))
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
            let extent = digits.parse::<u64>();
            extents.push(extent.map_err(|_| "'shape' is not a tuple of whole numbers")?);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<(Header, Vec<f64>), FileError> {
        let source = Source {
            file: "a".into(),
            length_bytes: bytes.len() as u64,
            memory_limit_bytes: u64::MAX,
        };
        let mut reader = bytes;
        let header = Header::read(&source, &mut reader)?;
        let values = header.values(&source, &mut reader)?;
        Ok((header, values))
    }

    /// What is written is read again, and its numbers begin at a multiple of 64.
    #[test]
    fn arrays_come_back() {
        let written: Vec<f64> = (0..100).map(|x| f64::from(x) / 3.0).collect();
        for count in [0, 1, 100] {
            let mut bytes = Vec::new();
            write(&mut bytes, &written[..count]).unwrap();
            let (header, values) = read(&bytes).unwrap();
            assert_eq!(
                (header.shape, header.is_fortran),
                (vec![count as u64], false)
            );
            assert_eq!(header.data_at % 64, 0);
            assert_eq!(values, written[..count]);
        }
    }

    /// Booleans are numbers; the key that is not known is named.
    #[test]
    fn dictionaries_are_read() {
        let file = |dictionary: &str| {
            let length = [dictionary.len() as u8, 0];
            [
                &b"\x93NUMPY\x01\x00"[..],
                &length,
                dictionary.as_bytes(),
                &[1, 0],
            ]
            .concat()
        };
        let booleans = file("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}");
        assert_eq!(read(&booleans).unwrap().1, [1.0, 0.0]);
        let error = read(&file("{'order': 1}")).unwrap_err().to_string();
        assert_eq!(error, "a: header: the key 'order' is unknown");
    }
}
