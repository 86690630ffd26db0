//! A file as a stream of bytes: opened, unpacked, and bounded by the memory there is.

use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// Longest line of text: a sparse row of about a million features.
const LINE_LIMIT_BYTES: u64 = 16 << 20;
/// Buffer of a reader: large against a system call.
const BUFFER_BYTES: usize = 1 << 17;
/// First bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Memory that data may take where the kernel does not say how much there is.
const MEMORY_DEFAULT_BYTES: u64 = 4 << 30;

/// Why a file gives no data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// It cannot be opened or read.
    #[error("{file}: cannot be read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The name does not tell the format.
    #[error(
        "{file}: the format is unknown; accepted are svmlight (.svm, .svmlight, .libsvm, .txt), CSV (.csv), NumPy (.npy, .npz), \
         also with .gz"
    )]
    UnknownFormat {
        /// The file.
        file: String,
    },
    /// The content is not what the format or the task asks for.
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

/// A file being read.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: String,
    /// Most bytes that the data may take in memory.
    pub(super) memory_limit_bytes: u64,
}

impl Source {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            file: path.display().to_string(),
            memory_limit_bytes: available_bytes().unwrap_or(MEMORY_DEFAULT_BYTES),
        }
    }

    pub(super) fn error(&self, place: Place, what: impl Into<String>) -> DataError {
        DataError::Content {
            file: self.file.clone(),
            place,
            what: what.into(),
        }
    }

    pub(super) fn io(&self, source: std::io::Error) -> DataError {
        DataError::Io {
            file: self.file.clone(),
            source,
        }
    }

    /// Opens the file.
    pub(super) fn open(&self, path: &Path) -> Result<Box<dyn BufRead>, DataError> {
        let file = File::open(path).map_err(|error| self.io(error))?;
        let is_folder = file.metadata().is_ok_and(|found| found.is_dir());
        if is_folder {
            return Err(self.error(Place::Whole, "is a directory; give the name of a file"));
        }
        self.unpack(BufReader::with_capacity(BUFFER_BYTES, file))
    }

    /// Content as it is, or unpacked. Gzip is known by its first bytes.
    pub(super) fn unpack<'r>(
        &self,
        mut reader: impl BufRead + 'r,
    ) -> Result<Box<dyn BufRead + 'r>, DataError> {
        let start = reader.fill_buf().map_err(|error| self.io(error))?;
        Ok(if start.starts_with(&GZIP_MAGIC) {
            let unpacked = MultiGzDecoder::new(reader);
            Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked))
        } else {
            Box::new(reader)
        })
    }

    /// Refuses data that would take more memory than there is.
    pub(super) fn check_memory(&self, place: Place, bytes: u128) -> Result<(), DataError> {
        if bytes <= u128::from(self.memory_limit_bytes) {
            return Ok(());
        }
        let what = format!(
            "the data take more than the {} MB of memory that are free",
            self.memory_limit_bytes / 1_000_000
        );
        Err(self.error(place, what))
    }

    /// All bytes of a reader, at most as many as the memory takes.
    pub(super) fn bytes(&self, reader: impl Read) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let limit = self.memory_limit_bytes / 2;
        let mut limited = reader.take(limit.saturating_add(1));
        limited
            .read_to_end(&mut bytes)
            .map_err(|error| self.io(error))?;
        self.check_memory(Place::Whole, 2 * bytes.len() as u128)?;
        Ok(bytes)
    }
}

/// Lines of a text with their numbers.
pub(super) struct Lines<'a> {
    source: &'a Source,
    reader: Box<dyn BufRead + 'a>,
    line: Vec<u8>,
    number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn new(source: &'a Source, reader: Box<dyn BufRead + 'a>) -> Self {
        Self {
            source,
            reader,
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line without its end; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&str>, DataError> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.reader).take(LINE_LIMIT_BYTES);
        let read = limited.read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| self.source.io(error))?;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == LINE_LIMIT_BYTES && self.line.last() != Some(&b'\n') {
            let what = format!("the line is longer than {LINE_LIMIT_BYTES} bytes");
            return Err(self.source.error(self.place(), what));
        }
        while let Some(b'\n' | b'\r') = self.line.last() {
            self.line.pop();
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(self
                .source
                .error(self.place(), "the line is not text (UTF-8)")),
        }
    }

    /// Place of the line last returned.
    pub(super) fn place(&self) -> Place {
        Place::Line(self.number)
    }
}

/// A word as short printable text for a message.
pub(super) fn shown(word: &str) -> String {
    const SHOWN_CHARS: usize = 40;
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let text: String = word.chars().take(SHOWN_CHARS).map(plain).collect();
    let more = if word.chars().nth(SHOWN_CHARS).is_some() {
        "…"
    } else {
        ""
    };
    format!("'{text}{more}'")
}

/// A finite number; the error says what is accepted.
pub(super) fn finite(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => Err(format!(
            "{} is not finite; accepted are finite numbers",
            shown(word)
        )),
        Err(_) => Err(format!("{} is no number", shown(word))),
    }
}

/// Bytes the kernel could still give out without swapping; `None` where it does not say.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = (text.lines()).find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}
