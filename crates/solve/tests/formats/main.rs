//! The readers against files written by hand, against any bytes, and against what the writers give; the writers against
//! disks that are full. A file for each format, one for files as such, one for any bytes.

mod any_bytes;
mod files;
mod harwell_boeing;
mod matrix_market;
mod npy;

use std::path::{Path, PathBuf};

use tsumuji_solve::system::Matrix;
use tsumuji_solve::system::formats::{Format, vector_from_bytes};

use npy::npy_of;

/// Of memory.
const PLENTY: u64 = 1 << 30;

/// The whole matrix, row by row.
fn entries(matrix: &Matrix) -> Vec<Vec<f64>> {
    let row = |row| {
        let mut line = vec![0.0; matrix.n()];
        matrix.for_each_in_row(row, |column, value| line[column] = value);
        line
    };
    (0..matrix.n()).map(row).collect()
}

fn file(directory: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Vectors may be arrays or coordinates, columns or rows, and must fit the matrix.
#[test]
fn vectors_are_read() {
    let read = |text: &str, rows| vector_from_bytes(Format::MatrixMarket, text.as_bytes(), rows);
    let column = "%%MatrixMarket matrix array real general\n3 1\n1\n2\n3\n";
    assert_eq!(read(column, 3).unwrap(), [1.0, 2.0, 3.0]);
    let row = "%%MatrixMarket matrix array real general\n1 3\n1\n2\n3\n";
    assert_eq!(read(row, 3).unwrap(), [1.0, 2.0, 3.0]);
    let sparse = "%%MatrixMarket matrix coordinate real general\n4 1 2\n2 1 5\n4 1 -1\n";
    assert_eq!(read(sparse, 4).unwrap(), [0.0, 5.0, 0.0, -1.0]);
    let error = read(column, 4).unwrap_err().to_string();
    assert!(
        error.contains("has 3 elements, but the matrix has 4 rows"),
        "{error}"
    );
    let error = read(
        "%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n",
        4,
    )
    .unwrap_err()
    .to_string();
    assert!(error.contains("2 x 2 is no vector"), "{error}");
    let huge = "%%MatrixMarket matrix coordinate real general\n99999999999999 1 0\n";
    assert!(read(huge, 4).is_err());
    for shape in ["(3,)", "(3, 1)", "(1, 3)"] {
        let data: Vec<u8> = [1.0f64, 2.0, 3.0]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let bytes = npy_of("<f8", "False", shape, &data);
        assert_eq!(
            vector_from_bytes(Format::Npy, &bytes, 3).unwrap(),
            [1.0, 2.0, 3.0]
        );
    }
    let nan = npy_of("<f8", "False", "(1,)", &f64::NAN.to_le_bytes());
    let error = vector_from_bytes(Format::Npy, &nan, 1)
        .unwrap_err()
        .to_string();
    assert!(error.contains("element 1 is NaN"), "{error}");
}
