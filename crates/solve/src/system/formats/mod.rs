//! File formats: Matrix Market (`.mtx`), NumPy (`.npy`), Harwell–Boeing (`.rua`, `.rsa` …) and PETSc's binary files (`.petsc`), plain or gzipped;
//! writes solutions.
//!
//! The command line calls [`read_system`] and [`write_vector`]. Each reader streams, takes any bytes without panicking, allocates no more than the
//! data or the file's length justify, and answers bad input with one line: file, place, what is wrong, what is accepted.

mod fortran;
mod harwell;
mod mtx;
mod npy;
mod petsc;
mod words;
mod write;

pub use petsc::write_petsc;
pub use tsumuji_numbers::FileError;
pub use write::{WriteError, emit_vector, write_vector};

use super::{Csr, Matrix, System, SystemError};
use std::io::{BufRead, Read};
use std::path::Path;
use tsumuji_numbers::{Place, Source};

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

const UNKNOWN_FORMAT: &str = "the format is unknown; accepted are Matrix Market (.mtx, .mtx.gz), NumPy (.npy), Harwell-Boeing \
                              (.rua, .rsa) and PETSc's binary files (.petsc)";
/// Longest line that is read. Data lines are tens of bytes; only comments come near.
const LINE_LIMIT_BYTES: u64 = 1 << 16;

/// Why a file gives no matrix or vector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It cannot be read, or its content does not follow the format, or is no square system.
    #[error(transparent)]
    File(#[from] FileError),
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

impl Loaded {
    /// A matrix of which there is no more to say.
    fn plain(matrix: Matrix) -> Self {
        Self {
            matrix,
            rhs: None,
            notes: Vec::new(),
        }
    }

    /// The matrix of `triplets`, whose positions are known to be within it. Repeated ones are summed, and a note says so.
    fn of_triplets(source: &Source, n: usize, triplets: &[(u32, u32, f64)]) -> Self {
        let csr = Csr::from_triplets(n, n, triplets).expect("positions were checked when read");
        let repeated = triplets.len() - csr.stored();
        let mut loaded = Self::plain(Matrix::Sparse(csr));
        if repeated > 0 {
            loaded.notes.push(format!(
                "{}: {repeated} entries at repeated positions were summed",
                source.file
            ));
        }
        loaded
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
    let (format, source, reader) = opened(path, seen)?;
    let mut loaded = parse_matrix(format, &source, reader)?;
    loaded.matrix = (loaded.matrix).dense_if_full(source.memory_limit_bytes);
    Ok(loaded)
}

/// Reads a vector of `rows` elements: n×1 or 1×n, or a one-dimensional array, or the first right-hand side of a
/// Harwell–Boeing file.
pub fn read_vector(path: &Path, rows: usize) -> Result<Vec<f64>, ReadError> {
    let (format, source, reader) = opened(path, |_| ())?;
    Ok(parse_vector(format, &source, reader, rows)?)
}

/// [`read_matrix`] from bytes in memory, not compressed. `memory_limit` bounds what the result may take.
pub fn matrix_from_bytes(
    format: Format,
    bytes: &[u8],
    memory_limit: u64,
) -> Result<Loaded, ReadError> {
    Ok(parse_matrix(format, &input(bytes, memory_limit), bytes)?)
}

/// [`read_vector`] from bytes in memory, not compressed.
pub fn vector_from_bytes(format: Format, bytes: &[u8], rows: usize) -> Result<Vec<f64>, ReadError> {
    Ok(parse_vector(format, &input(bytes, u64::MAX), bytes, rows)?)
}

fn input(bytes: &[u8], memory_limit_bytes: u64) -> Source {
    Source {
        file: "input".into(),
        length_bytes: bytes.len() as u64,
        memory_limit_bytes,
    }
}

fn parse_matrix(format: Format, source: &Source, reader: impl Read) -> Result<Loaded, FileError> {
    match format {
        Format::MatrixMarket => mtx::matrix(source, reader),
        Format::Npy => npy::matrix(source, reader),
        Format::HarwellBoeing => harwell::matrix(source, reader),
        Format::Petsc => petsc::matrix(source, reader),
    }
}

fn parse_vector(
    format: Format,
    source: &Source,
    reader: impl Read,
    rows: usize,
) -> Result<Vec<f64>, FileError> {
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
            check_length(source, rhs.len() as u64, rows)?;
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
fn check_length(source: &Source, found: u64, rows: usize) -> Result<(), FileError> {
    if found != rows as u64 {
        let what = format!("the vector has {found} elements, but the matrix has {rows} rows");
        return Err(source.error(Place::Whole, what));
    }
    Ok(())
}

/// Refuses a matrix that is empty, not square or too large for 32-bit indices; returns its order.
fn check_square(
    source: &Source,
    place: Place,
    rows: u64,
    columns: u64,
) -> Result<usize, FileError> {
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

/// Refuses a number of entries that leaves a row without one. `mirrored`: an entry beside the diagonal stands for two.
fn check_entries(
    source: &Source,
    place: Place,
    (entries, mirrored): (u64, bool),
    n: usize,
) -> Result<(), FileError> {
    let most = entries.saturating_mul(if mirrored { 2 } else { 1 });
    if most < n as u64 {
        let what = format!(
            "{entries} entries for {n} rows leave a row without one; the matrix is singular"
        );
        return Err(source.error(place, what));
    }
    Ok(())
}

/// Opens a file, and determines the format by name or first bytes.
fn opened<'a>(
    path: &Path,
    seen: impl FnMut(f64) + 'a,
) -> Result<(Format, Source, Box<dyn BufRead + 'a>), FileError> {
    let (source, reader) = Source::open(path, seen)?;
    let (first, reader) = source.peek(reader, 14)?;
    if first.is_empty() {
        return Err(source.error(Place::Whole, "the file is empty"));
    }
    match detect(&source.file, &first) {
        Some(format) => Ok((format, source, reader)),
        None => Err(source.error(Place::Whole, UNKNOWN_FORMAT)),
    }
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
