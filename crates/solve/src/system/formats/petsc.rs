//! PETSc's binary files, as `MatView` and `VecView` write them: big-endian, whole numbers of 32 bits, real numbers of 64. Sparse matrices and vectors.
//!
//! A matrix is its class, rows, columns, stored entries; the entries of each row; the columns of all entries; their values. A vector is its class, its
//! length, its values.

use super::{Loaded, WriteError, check_length, check_square};
use crate::system::{Csr, Matrix, System};
use std::io::{self, Read, Write};
use std::path::Path;
use tsumuji_numbers::{FileError, Place, Source, replace};

/// First number of a matrix, and of a vector.
const MATRIX: u32 = 1_211_216;
const VECTOR: u32 = 1_211_214;
/// First bytes of either.
pub(super) const MAGIC: [&[u8]; 2] = [&MATRIX.to_be_bytes(), &VECTOR.to_be_bytes()];
/// Numbers read at a time.
const BATCH: usize = 1 << 15;

/// Reads a square matrix.
pub(super) fn matrix(source: &Source, mut reader: impl Read) -> Result<Loaded, FileError> {
    let [class, rows, columns, stored] = head::<4>(source, &mut reader)?;
    if class != MATRIX {
        return Err(source.error(
            Place::Header,
            format!("class {class} is no matrix; accepted is {MATRIX}, a matrix with entries of 32-bit indices"),
        ));
    }
    let n = check_square(source, Place::Header, rows.into(), columns.into())?;
    let bytes = 16 + 4 * u64::from(rows) + 12 * u64::from(stored);
    if bytes > source.length_bytes {
        let what =
            format!("{stored} entries are announced, more than the file holds; it is truncated");
        return Err(source.error(Place::Header, what));
    }
    source.check_memory(Place::Header, u128::from(bytes) + n as u128 * 8)?;
    let lengths = numbers(source, &mut reader, n, u32::from_be_bytes)?;
    let mut offsets = Vec::with_capacity(n + 1);
    offsets.push(0usize);
    for length in lengths {
        let last = *offsets.last().expect("begins with one");
        // Below 2^32 · 2^32, so that it fits.
        offsets.push(last.saturating_add(length as usize));
    }
    if offsets[n] != stored as usize {
        let what = format!(
            "the rows have {} entries, not the {stored} announced",
            offsets[n]
        );
        return Err(source.error(Place::Header, what));
    }
    let indices = numbers(source, &mut reader, stored as usize, u32::from_be_bytes)?;
    let values = numbers(source, &mut reader, stored as usize, f64::from_be_bytes)?;
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let row = offsets.partition_point(|&offset| offset <= at);
        let what = format!("the value {} of row {row} is not finite", values[at]);
        return Err(source.error(Place::Whole, what));
    }
    let csr = Csr::new(n, offsets, indices, values).map_err(|error| {
        source.error(
            Place::Whole,
            format!("{error}; accepted are columns in ascending order, each once"),
        )
    })?;
    Ok(Loaded::plain(Matrix::Sparse(csr)))
}

/// Reads a vector of `expected` elements.
pub(super) fn vector(
    source: &Source,
    mut reader: impl Read,
    expected: usize,
) -> Result<Vec<f64>, FileError> {
    let [class, length] = head::<2>(source, &mut reader)?;
    if class != VECTOR {
        return Err(source.error(
            Place::Header,
            format!("class {class} is no vector; accepted is {VECTOR}"),
        ));
    }
    check_length(source, length.into(), expected)?;
    numbers(source, &mut reader, expected, f64::from_be_bytes)
}

/// The first whole numbers.
fn head<const N: usize>(source: &Source, reader: &mut impl Read) -> Result<[u32; N], FileError> {
    let found = numbers(source, reader, N, u32::from_be_bytes)?;
    Ok(found.try_into().expect("as many as asked for"))
}

/// The next `count` numbers, each made of `BYTES` bytes. More than the file can hold are refused before there is memory for them.
fn numbers<const BYTES: usize, N>(
    source: &Source,
    reader: &mut impl Read,
    count: usize,
    of: impl Fn([u8; BYTES]) -> N,
) -> Result<Vec<N>, FileError> {
    let truncated = || source.error(Place::Whole, "the file ends early; it is truncated");
    if (BYTES * count) as u64 > source.length_bytes {
        return Err(truncated());
    }
    let mut buffer = vec![0; BYTES * count.min(BATCH)];
    let mut found = Vec::with_capacity(count);
    while found.len() < count {
        let bytes = BYTES * (count - found.len()).min(BATCH);
        reader.read_exact(&mut buffer[..bytes]).map_err(|error| {
            if error.kind() == std::io::ErrorKind::UnexpectedEof {
                truncated()
            } else {
                source.io(error)
            }
        })?;
        let numbers = buffer[..bytes].as_chunks::<BYTES>().0;
        found.extend(numbers.iter().map(|number| of(*number)));
    }
    Ok(found)
}

/// Writes a sparse system to two files, for PETSc's `MatLoad` and `VecLoad`. `None`: it is dense, or has 2³¹ entries or more.
pub fn write_petsc(system: &System, matrix: &Path, rhs: &Path) -> Option<Result<(), WriteError>> {
    let Matrix::Sparse(csr) = &system.matrix else {
        return None;
    };
    let stored = i32::try_from(csr.stored()).ok()?;
    let n = i32::try_from(system.n()).ok()?;
    let write_matrix = |out: &mut dyn Write| -> io::Result<()> {
        for number in [MATRIX as i32, n, n, stored] {
            out.write_all(&number.to_be_bytes())?;
        }
        for pair in csr.offsets().windows(2) {
            out.write_all(&((pair[1] - pair[0]) as u32).to_be_bytes())?;
        }
        for index in csr.indices() {
            out.write_all(&index.to_be_bytes())?;
        }
        let mut values = csr.values().iter();
        values.try_for_each(|value| out.write_all(&value.to_be_bytes()))
    };
    let write_rhs = |out: &mut dyn Write| -> io::Result<()> {
        for number in [VECTOR as i32, n] {
            out.write_all(&number.to_be_bytes())?;
        }
        let mut values = system.rhs.iter();
        values.try_for_each(|value| out.write_all(&value.to_be_bytes()))
    };
    let io = |path: &Path, source| WriteError::Io {
        file: path.display().to_string(),
        source,
    };
    let written = replace(matrix, |out| write_matrix(out)).map_err(|error| io(matrix, error));
    Some(written.and_then(|()| replace(rhs, |out| write_rhs(out)).map_err(|error| io(rhs, error))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Generate;
    use crate::system::formats::{Format, matrix_from_bytes, read_system};

    /// What is written is read again, right-hand side included.
    #[test]
    fn systems_survive_the_way_through_files() {
        let system = "circuit:300"
            .parse::<Generate>()
            .unwrap()
            .system(4)
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (matrix, rhs) = (folder.path().join("A.petsc"), folder.path().join("b.petsc"));
        write_petsc(&system, &matrix, &rhs).unwrap().unwrap();
        let (read, notes) = read_system(&matrix, Some(&rhs)).unwrap();
        assert_eq!((read.matrix, read.rhs), (system.matrix, system.rhs));
        assert!(notes.is_empty());
    }

    /// Cut, foreign and lying files are refused in one line.
    #[test]
    fn bad_files_are_refused() {
        let number = |value: u32| value.to_be_bytes();
        let good: Vec<u8> = [MATRIX, 2, 2, 2, 1, 1, 0, 1].map(number).concat();
        let good = [good, [2.0f64, 3.0].map(f64::to_be_bytes).concat()].concat();
        let read = |bytes: &[u8]| matrix_from_bytes(Format::Petsc, bytes, 1 << 20);
        assert!(read(&good).is_ok());
        for length in 0..good.len() {
            assert!(read(&good[..length]).is_err(), "{length} bytes");
        }
        for (at, value) in [(0, VECTOR), (1, 3), (3, 9), (3, u32::MAX), (4, 2), (7, 7)] {
            let mut bytes = good.clone();
            bytes[4 * at..4 * at + 4].copy_from_slice(&number(value));
            let error = read(&bytes).unwrap_err().to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
