//! Lines of a text file with their numbers, of bounded length, and the numbers on them.

use super::{Place, ReadError, Source};
use std::io::{BufRead, BufReader, Read};

/// Longest line that is read. Data lines are tens of bytes; only comments come near.
const LINE_LIMIT_BYTES: u64 = 1 << 16;

/// Walks through a text line by line.
pub(super) struct Lines<'a, R> {
    source: &'a Source<'a>,
    reader: BufReader<R>,
    line: Vec<u8>,
    number: u64,
}

impl<'a, R: Read> Lines<'a, R> {
    pub(super) fn new(source: &'a Source<'a>, reader: R) -> Self {
        Self {
            source,
            reader: BufReader::with_capacity(1 << 16, reader),
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line without its end; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, ReadError> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.reader).take(LINE_LIMIT_BYTES);
        let read = limited
            .read_until(b'\n', &mut self.line)
            .map_err(|error| self.source.io(error))?;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == LINE_LIMIT_BYTES && self.line.last() != Some(&b'\n') {
            return Err(self.error(format!(
                "the line is longer than {LINE_LIMIT_BYTES} bytes; this is not a matrix file"
            )));
        }
        while let Some(b'\n' | b'\r') = self.line.last() {
            self.line.pop();
        }
        Ok(Some(&self.line))
    }

    /// The line last returned, once more.
    pub(super) fn current(&self) -> &[u8] {
        &self.line
    }

    /// Number of the line last returned, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// An error on the line last returned.
    pub(super) fn error(&self, what: impl Into<String>) -> ReadError {
        self.source.error(Place::Line(self.number), what)
    }
}

/// Words between blanks.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

/// A word as printable short text for a message.
pub(super) fn shown(word: &[u8]) -> String {
    const SHOWN: usize = 40;
    let text: String = String::from_utf8_lossy(&word[..word.len().min(SHOWN)])
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if word.len() > SHOWN {
        format!("'{text}…'")
    } else {
        format!("'{text}'")
    }
}

/// A whole number without sign.
pub(super) fn whole(word: &[u8]) -> Option<u64> {
    if word.is_empty() || !word.iter().all(u8::is_ascii_digit) {
        return None;
    }
    word.iter().try_fold(0u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

/// A decimal number; exponents may be marked by D as Fortran does. Words like `nan` and `inf` are numbers, too: the
/// caller refuses them.
pub(super) fn decimal(word: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(word).ok()?;
    text.parse().ok().or_else(|| {
        let marked = text.bytes().any(|byte| matches!(byte, b'd' | b'D'));
        marked
            .then(|| text.replace(['d', 'D'], "e").parse().ok())
            .flatten()
    })
}
