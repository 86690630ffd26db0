//! NumPy's `.npy`: square matrices and vectors.

use super::{Loaded, check_length, check_square};
use crate::system::{Dense, Matrix};
use std::io::Read;
use tsumuji_numbers::npy::Header;
use tsumuji_numbers::{FileError, Place, Source};

/// Reads a square matrix.
pub(super) fn matrix(source: &Source, mut reader: impl Read) -> Result<Loaded, FileError> {
    let header = Header::read(source, &mut reader)?;
    let &[rows, columns] = &header.shape[..] else {
        let what = format!(
            "the array has {} dimensions; a matrix has 2",
            header.shape.len()
        );
        return Err(source.error(Place::Header, what));
    };
    let n = check_square(source, Place::Header, rows, columns)?;
    source.check_memory(Place::Header, n as u128 * n as u128 * 8)?;
    let mut values = header.values(source, &mut reader)?;
    if header.is_fortran {
        transpose_in_place(&mut values, n);
    }
    let dense = Dense::new(n, values).expect("as many values as the shape says");
    Ok(Loaded::plain(Matrix::Dense(dense)))
}

/// Reads a vector of `expected` elements: one dimension, or n×1, or 1×n.
pub(super) fn vector(
    source: &Source,
    mut reader: impl Read,
    expected: usize,
) -> Result<Vec<f64>, FileError> {
    let header = Header::read(source, &mut reader)?;
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
    check_length(source, length, expected)?;
    header.values(source, &mut reader)
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
