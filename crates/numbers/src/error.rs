//! Why a file cannot be read: file, place and reason, in one line.

use std::io::{Error, ErrorKind};

/// Place of an error in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A line, counted from 1.
    Line(u64),
    /// A row of an array, counted from 1.
    Row(u64),
    /// The header of a binary file.
    Header,
    /// The file as a whole.
    Whole,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Line(line) => write!(f, " line {line}:"),
            Place::Row(row) => write!(f, " row {row}:"),
            Place::Header => write!(f, " header:"),
            Place::Whole => Ok(()),
        }
    }
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be opened or read.
    #[error("{file}: cannot be read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: Error,
    },
    /// The content is not what the format or the task asks for, or the format is not known.
    #[error("{file}:{place} {what}")]
    Content {
        /// The file.
        file: String,
        /// The place of the error.
        place: Place,
        /// What is wrong, and what is accepted.
        what: String,
    },
}

impl FileError {
    /// An error of the content.
    pub fn new(file: &str, place: Place, what: impl Into<String>) -> Self {
        Self::Content {
            file: file.to_owned(),
            place,
            what: what.into(),
        }
    }

    /// An error of the system, or of the decompression.
    pub fn io(file: &str, source: Error) -> Self {
        if source.kind() == ErrorKind::UnexpectedEof {
            let what = "the compressed data ends early; the file is truncated";
            return Self::new(file, Place::Whole, what);
        }
        Self::Io {
            file: file.to_owned(),
            source,
        }
    }
}

/// A word of a file within a message: quoted, on one line, and not too long.
pub fn shown(word: impl AsRef<[u8]>) -> String {
    const SHOWN_CHARS: usize = 40;
    let word = word.as_ref();
    // No character has more than four bytes.
    let start = &word[..word.len().min(4 * SHOWN_CHARS)];
    let text = String::from_utf8_lossy(start);
    let mut quoted = String::from("'");
    for c in text.chars().take(SHOWN_CHARS) {
        match c {
            '\'' | '"' => quoted.push(c),
            _ => quoted.extend(c.escape_debug()),
        }
    }
    let is_cut = start.len() < word.len() || text.chars().nth(SHOWN_CHARS).is_some();
    quoted + if is_cut { "…'" } else { "'" }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words are shown on one line, at most 40 characters of them.
    #[test]
    fn words_are_shown_on_one_line() {
        assert_eq!(shown("it's"), "'it's'");
        assert_eq!(shown("a\n\u{1b}[2J"), "'a\\n\\u{1b}[2J'");
        assert_eq!(shown(b"\xff1"), "'\u{fffd}1'");
        for (letter, count) in [("x", 41), ("ä", 41), ("🦀", 41), ("x", 200), ("🦀", 200)] {
            let cut = format!("'{}…'", letter.repeat(40));
            assert_eq!(shown(letter.repeat(count)), cut, "{count} of {letter}");
        }
        assert_eq!(shown("🦀".repeat(40)), format!("'{}'", "🦀".repeat(40)));
    }
}
