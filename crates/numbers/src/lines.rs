//! Lines of a text with their numbers, of bounded length.

use super::{FileError, Place, Source};
use std::io::{BufRead, BufReader, Read};

/// Walks through a text line by line.
#[derive(Debug)]
pub struct Lines<'a, R> {
    source: &'a Source,
    reader: BufReader<R>,
    limit_bytes: u64,
    line: Vec<u8>,
    number: u64,
}

impl<'a, R: Read> Lines<'a, R> {
    /// Refuses lines that have more than `limit_bytes` with their end.
    pub fn new(source: &'a Source, reader: R, limit_bytes: u64) -> Self {
        Self {
            source,
            reader: BufReader::with_capacity(1 << 16, reader),
            limit_bytes,
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line without its end; `None` at the end of the file.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, FileError> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.reader).take(self.limit_bytes);
        let read = limited
            .read_until(b'\n', &mut self.line)
            .map_err(|error| self.source.io(error))?;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == self.limit_bytes && self.line.last() != Some(&b'\n') {
            return Err(self.error(format!(
                "the line is longer than {} bytes; no line of this format is",
                self.limit_bytes
            )));
        }
        while let Some(b'\n' | b'\r') = self.line.last() {
            self.line.pop();
        }
        Ok(Some(&self.line))
    }

    /// As [`next_line`](Self::next_line), but the line is text.
    pub fn next_text(&mut self) -> Result<Option<&str>, FileError> {
        if self.next_line()?.is_none() {
            return Ok(None);
        }
        let text = std::str::from_utf8(&self.line);
        text.map(Some)
            .map_err(|_| self.error("the line is not text (UTF-8)"))
    }

    /// The line last returned, once more.
    pub fn current(&self) -> &[u8] {
        &self.line
    }

    /// Place of the line last returned.
    pub fn place(&self) -> Place {
        Place::Line(self.number)
    }

    /// An error on the line last returned.
    pub fn error(&self, what: impl Into<String>) -> FileError {
        self.source.error(self.place(), what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines come without their ends; one that is too long, or no text, is named.
    #[test]
    fn lines_are_bounded() {
        let source = Source {
            file: "a".into(),
            length_bytes: 100,
            memory_limit_bytes: 100,
        };
        let mut lines = Lines::new(&source, &b"1234567\n\r\n\xff\n12345678\n"[..], 8);
        assert_eq!(lines.next_line().unwrap(), Some(&b"1234567"[..]));
        assert_eq!(lines.next_text().unwrap(), Some(""));
        let error = lines.next_text().unwrap_err().to_string();
        assert_eq!(error, "a: line 3: the line is not text (UTF-8)");
        assert_eq!(lines.current(), b"\xff");
        let error = lines.next_line().unwrap_err().to_string();
        assert!(error.starts_with("a: line 4: the line is longer than 8"));
    }
}
