//! File formats: Matrix Market (`.mtx`), NumPy (`.npy`), Harwell–Boeing (`.rua`, `.rsa` …) and PETSc's binary files (`.petsc`), plain or gzipped;
//! writes solutions.
//!
//! The command line calls [`read_system`] and [`write_vector`]. Each reader streams, takes any bytes without panicking, allocates no more than the
//! data or the file's length justify, and answers bad input with one line: file, place, what is wrong, what is accepted.

mod fortran;
mod harwell;
mod lines;
mod mtx;
mod npy;
mod petsc;
mod write;

pub use petsc::write_petsc;
pub use write::{WriteError, emit_vector, write_vector};

use super::{Matrix, System, SystemError, memory};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// `.mtx`: text, coordinate or array.
    MatrixMarket,
    /// `.npy`: binary, dense.
    Npy,
    /// `.rua`, `.rsa`, `.pua`, `.psa`, `.rza`, `.hb`: fixed-width text, sparse.
    HarwellBoeing,
    /// `.petsc`: PETSc's binary files, sparse.
    Petsc,
}

/// Place of an error in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A line, counted from 1.
    Line(u64),
    /// The header of a binary file.
    Header,
    /// The file as a whole.
    Whole,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Line(line) => write!(f, " line {line}:"),
            Place::Header => write!(f, " header:"),
            Place::Whole => Ok(()),
        }
    }
}

/// Why a file gives no matrix or vector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be opened or read.
    #[error("{file}: cannot be read: {source}")]
    Io {
        /// The file.
        file: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// Neither the name nor the first bytes tell the format.
    #[error(
        "{file}: the format is unknown; accepted are Matrix Market (.mtx, .mtx.gz), NumPy (.npy), Harwell-Boeing \
         (.rua, .rsa) and PETSc's binary files (.petsc)"
    )]
    UnknownFormat {
        /// The file.
        file: String,
    },
    /// The content does not follow the format, or is no square system.
    #[error("{file}:{place} {what}")]
    Content {
        /// The file.
        file: String,
        /// The place of the error.
        place: Place,
        /// What is wrong, and what would be accepted.
        what: String,
    },
    /// The content cannot be relaxed.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// A matrix as read.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// A. Square; other conditions are checked by [`System::new`].
    pub matrix: Matrix,
    /// The first right-hand side in the file, if its format has them and there is one.
    pub rhs: Option<Vec<f64>>,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
}

/// Properties of the bytes that a reader reads.
#[derive(Debug, Clone)]
struct Source<'a> {
    file: &'a str,
    /// Most bytes still to come; of compressed files only a bound.
    length: u64,
    /// Most memory the result may take.
    memory_limit: u64,
}

/// No gzip stream grows by more than this factor.
const GZIP_FACTOR: u64 = 1032;

impl Source<'_> {
    fn error(&self, place: Place, what: impl Into<String>) -> ReadError {
        ReadError::Content {
            file: self.file.into(),
            place,
            what: what.into(),
        }
    }

    fn io(&self, source: std::io::Error) -> ReadError {
        if source.kind() == std::io::ErrorKind::UnexpectedEof {
            return self.error(
                Place::Whole,
                "the compressed data ends early; the file is truncated",
            );
        }
        ReadError::Io {
            file: self.file.into(),
            source,
        }
    }

    /// Refuses content that would not fit into memory.
    fn check_memory(&self, place: Place, needed: u128) -> Result<(), ReadError> {
        if needed > u128::from(self.memory_limit) {
            let what = format!(
                "announces {} of data, but only {} of memory are available",
                memory::human(needed),
                memory::human(u128::from(self.memory_limit))
            );
            return Err(self.error(place, what));
        }
        Ok(())
    }
}

/// Reads A from `path` and b from `rhs`, or takes b = A·1, and checks that they make a system. Also gives the notes of
/// the readers.
pub fn read_system(path: &Path, rhs: Option<&Path>) -> Result<(System, Vec<String>), ReadError> {
    read_system_watched(path, rhs, &mut |_| ())
}

/// As [`read_system`]; tells the part of the matrix's file that has been read, now and then.
pub fn read_system_watched(
    path: &Path,
    rhs: Option<&Path>,
    seen: &mut dyn FnMut(f64),
) -> Result<(System, Vec<String>), ReadError> {
    let loaded = watched_matrix(path, seen)?;
    let name = path.display().to_string();
    let mut notes = loaded.notes;
    let rhs = match rhs {
        Some(rhs) => Some(read_vector(rhs, loaded.matrix.n())?),
        None => {
            if loaded.rhs.is_some() {
                notes.push(format!(
                    "{name} brings a right-hand side; --rhs {name} would use it instead of A·1"
                ));
            }
            None
        }
    };
    let (system, note) = System::matched(loaded.matrix, rhs, name)?;
    notes.extend(note);
    Ok((system, notes))
}

/// Reads a square matrix.
pub fn read_matrix(path: &Path) -> Result<Loaded, ReadError> {
    watched_matrix(path, &mut |_| ())
}

fn watched_matrix(path: &Path, seen: &mut dyn FnMut(f64)) -> Result<Loaded, ReadError> {
    let file = path.display().to_string();
    with_opened(path, &file, seen, |format, source, reader| {
        parse_matrix(format, source, reader)
    })
}

/// Reads a vector of `rows` elements: n×1 or 1×n, or a one-dimensional array, or the first right-hand side of a
/// Harwell–Boeing file.
pub fn read_vector(path: &Path, rows: usize) -> Result<Vec<f64>, ReadError> {
    let file = path.display().to_string();
    with_opened(path, &file, &mut |_| (), |format, source, reader| {
        parse_vector(format, source, reader, rows)
    })
}

/// [`read_matrix`] from bytes in memory, not compressed. `memory_limit` bounds what the result may take.
pub fn matrix_from_bytes(
    format: Format,
    bytes: &[u8],
    memory_limit: u64,
) -> Result<Loaded, ReadError> {
    let source = Source {
        file: "input",
        length: bytes.len() as u64,
        memory_limit,
    };
    parse_matrix(format, &source, bytes)
}

/// [`read_vector`] from bytes in memory, not compressed.
pub fn vector_from_bytes(format: Format, bytes: &[u8], rows: usize) -> Result<Vec<f64>, ReadError> {
    let source = Source {
        file: "input",
        length: bytes.len() as u64,
        memory_limit: u64::MAX,
    };
    parse_vector(format, &source, bytes, rows)
}

fn parse_matrix(
    format: Format,
    source: &Source<'_>,
    reader: impl Read,
) -> Result<Loaded, ReadError> {
    match format {
        Format::MatrixMarket => mtx::matrix(source, reader),
        Format::Npy => npy::matrix(source, reader),
        Format::HarwellBoeing => harwell::matrix(source, reader),
        Format::Petsc => petsc::matrix(source, reader),
    }
}

fn parse_vector(
    format: Format,
    source: &Source<'_>,
    reader: impl Read,
    rows: usize,
) -> Result<Vec<f64>, ReadError> {
    let vector = match format {
        Format::MatrixMarket => mtx::vector(source, reader, rows)?,
        Format::Npy => npy::vector(source, reader, rows)?,
        Format::Petsc => petsc::vector(source, reader, rows)?,
        Format::HarwellBoeing => {
            let rhs = harwell::matrix(source, reader)?.rhs.ok_or_else(|| {
                source.error(
                    Place::Whole,
                    "the file brings no right-hand side; give one that does",
                )
            })?;
            check_length(source, rhs.len(), rows)?;
            rhs
        }
    };
    match vector.iter().position(|value| !value.is_finite()) {
        Some(row) => Err(source.error(
            Place::Whole,
            format!(
                "element {} is {}; elements must be finite numbers",
                row + 1,
                vector[row]
            ),
        )),
        None => Ok(vector),
    }
}

/// Refuses a vector that does not fit the matrix.
fn check_length(source: &Source<'_>, found: usize, rows: usize) -> Result<(), ReadError> {
    if found != rows {
        let what = format!("the vector has {found} elements, but the matrix has {rows} rows");
        return Err(source.error(Place::Whole, what));
    }
    Ok(())
}

/// Refuses a matrix that is empty, not square or too large for 32-bit indices; returns its order.
fn check_square(
    source: &Source<'_>,
    place: Place,
    rows: u64,
    columns: u64,
) -> Result<usize, ReadError> {
    if rows != columns {
        let what = format!("the matrix is {rows} x {columns}; only square ones can be solved");
        return Err(source.error(place, what));
    }
    if rows == 0 {
        return Err(source.error(
            place,
            "the matrix is empty (0 x 0); at least one row is needed",
        ));
    }
    if rows > super::csr::INDEX_LIMIT as u64 {
        let what = format!(
            "{rows} rows are beyond the limit of {}",
            super::csr::INDEX_LIMIT
        );
        return Err(source.error(place, what));
    }
    Ok(rows as usize)
}

/// Opens a file, decompresses gzip, determines the format by name or first bytes, and passes it to `parse`.
fn with_opened<T>(
    path: &Path,
    name: &str,
    seen: &mut dyn FnMut(f64),
    parse: impl FnOnce(Format, &Source<'_>, Box<dyn Read + '_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    let io = |source| ReadError::Io {
        file: name.into(),
        source,
    };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_dir() {
        return Err(io(std::io::Error::other("it is a directory")));
    }
    // A pipe has no length: only the arriving data count.
    let length = if metadata.is_file() {
        metadata.len()
    } else {
        u64::MAX / GZIP_FACTOR
    };
    let mut source = Source {
        file: name,
        length,
        memory_limit: memory::available_bytes().unwrap_or(u64::MAX),
    };
    if length == 0 {
        return Err(source.error(Place::Whole, "the file is empty"));
    }
    let watched = Watched {
        file,
        length,
        done: 0,
        told: 0,
        seen,
    };
    let mut reader: Box<dyn Read + '_> = Box::new(BufReader::with_capacity(1 << 18, watched));
    let mut first = peek(&mut reader, 2).map_err(io)?;
    if first == [0x1f, 0x8b] {
        source.length = length.saturating_mul(GZIP_FACTOR);
        let whole = std::io::Cursor::new(first).chain(reader);
        reader = Box::new(flate2::read::MultiGzDecoder::new(whole));
        first = Vec::new();
    }
    let more = peek(&mut reader, 14 - first.len()).map_err(|error| source.io(error))?;
    first.extend(more);
    if first.is_empty() {
        return Err(source.error(Place::Whole, "the file is empty"));
    }
    let format =
        detect(name, &first).ok_or_else(|| ReadError::UnknownFormat { file: name.into() })?;
    parse(
        format,
        &source,
        Box::new(std::io::Cursor::new(first).chain(reader)),
    )
}

/// Bytes between two words on how far reading is.
const TELL_BYTES: u64 = 4 << 20;

/// Tells how much of a file has been read.
struct Watched<'a> {
    file: File,
    length: u64,
    done: u64,
    told: u64,
    seen: &'a mut dyn FnMut(f64),
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.done += read as u64;
        if self.done - self.told >= TELL_BYTES {
            self.told = self.done;
            (self.seen)(self.done as f64 / self.length as f64);
        }
        Ok(read)
    }
}

/// Up to `count` bytes, fewer only at the end.
fn peek(reader: &mut impl Read, count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(count);
    reader.take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn detect(name: &str, first: &[u8]) -> Option<Format> {
    if first.starts_with(b"\x93NUMPY") {
        return Some(Format::Npy);
    }
    if first.len() >= 14 && first[..14].eq_ignore_ascii_case(b"%%MatrixMarket") {
        return Some(Format::MatrixMarket);
    }
    if petsc::MAGIC.iter().any(|magic| first.starts_with(magic)) {
        return Some(Format::Petsc);
    }
    let lower = name.to_ascii_lowercase();
    let stem = lower.strip_suffix(".gz").unwrap_or(&lower);
    match Path::new(stem).extension()?.to_str()? {
        "mtx" => Some(Format::MatrixMarket),
        "npy" => Some(Format::Npy),
        "petsc" => Some(Format::Petsc),
        "rua" | "rsa" | "rza" | "pua" | "psa" | "pza" | "hb" => Some(Format::HarwellBoeing),
        _ => None,
    }
}
