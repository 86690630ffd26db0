//! Matrix Market files, by coordinates and by arrays.

use tsumuji_solve::system::formats::{Format, Loaded, ReadError, matrix_from_bytes};

use crate::npy::npy_of;
use crate::{PLENTY, entries};

pub(crate) fn mtx(text: &str) -> Result<Loaded, ReadError> {
    matrix_from_bytes(Format::MatrixMarket, text.as_bytes(), PLENTY)
}

/// Coordinate files: comments, blank lines, any case, D exponents, repeated positions, patterns and both symmetries.
#[test]
fn coordinate_files_are_read() {
    let loaded = mtx("%%MatrixMarket MATRIX Coordinate Real General\n% a comment\n\n2 2 4\n1 1 2.5\n%between\n2 2 1D1\n\n 1\t2 -3e0 \n2 2 .5").unwrap();
    assert_eq!(entries(&loaded.matrix), [[2.5, -3.0], [0.0, 10.5]]);
    assert!(
        loaded.notes[0].contains("1 entries at repeated positions were summed"),
        "{:?}",
        loaded.notes
    );
    let loaded = mtx("%%MatrixMarket matrix coordinate integer symmetric\r\n2 2 3\r\n1 1 4\r\n2 1 -1\r\n2 2 5\r\n").unwrap();
    assert_eq!(entries(&loaded.matrix), [[4.0, -1.0], [-1.0, 5.0]]);
    assert!(loaded.notes.is_empty());
    let loaded =
        mtx("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 2\n2 1 3\n2 2 1\n").unwrap();
    assert_eq!(entries(&loaded.matrix), [[0.0, -3.0], [3.0, 1.0]]);
    // One entry that stands for two rows.
    let loaded =
        mtx("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 3\n").unwrap();
    assert_eq!(entries(&loaded.matrix), [[0.0, -3.0], [3.0, 0.0]]);
    let loaded =
        mtx("%%MatrixMarket matrix coordinate pattern general\n2 2 3\n1 1\n2 1\n2 2\n").unwrap();
    assert_eq!(entries(&loaded.matrix), [[1.0, 0.0], [1.0, 1.0]]);
}

/// Array files stand column by column; of symmetric ones only the lower triangle.
#[test]
fn array_files_are_read() {
    let general = mtx("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n").unwrap();
    assert!(general.matrix.is_dense());
    assert_eq!(entries(&general.matrix), [[1.0, 3.0], [2.0, 4.0]]);
    let symmetric =
        mtx("%%MatrixMarket matrix array integer symmetric\n3 3\n1\n2\n3\n4\n5\n6\n").unwrap();
    assert_eq!(
        entries(&symmetric.matrix),
        [[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]]
    );
    let skew = mtx("%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3\n").unwrap();
    assert_eq!(
        entries(&skew.matrix),
        [[0.0, -1.0, -2.0], [1.0, 0.0, -3.0], [2.0, 3.0, 0.0]]
    );
}

/// Every fault of a Matrix Market file has one line that names the place and the fault.
#[test]
fn faults_of_matrix_market_are_named() {
    let coordinate = "%%MatrixMarket matrix coordinate real general\n";
    let cases: [(&str, &str); 24] = [
        (
            "1 1 1\n1 1 1\n",
            "line 1: the file does not begin with a Matrix Market banner",
        ),
        (
            "%%MatrixMarket vector coordinate real general\n",
            "line 1: the object 'vector' is not supported",
        ),
        (
            "%%MatrixMarket matrix sparse real general\n",
            "line 1: the format 'sparse' is not supported",
        ),
        (
            "%%MatrixMarket matrix coordinate complex general\n",
            "line 1: the kind of number 'complex'",
        ),
        (
            "%%MatrixMarket matrix coordinate real hermitian\n",
            "line 1: the symmetry 'hermitian'",
        ),
        (
            "%%MatrixMarket matrix coordinate real\n",
            "line 1: the symmetry ''",
        ),
        (
            "%%MatrixMarket matrix array pattern general\n2 2\n",
            "line 1: an array cannot be a pattern",
        ),
        ("@", "the file ends before the line of sizes"),
        (
            "@2 2\n",
            "line 2: the line of sizes is not 'rows columns entries'",
        ),
        (
            "@2 2 -1\n",
            "line 2: the line of sizes is not 'rows columns entries'",
        ),
        (
            "@2 3 4\n1 1 1\n",
            "line 2: the matrix is 2 x 3; only square ones",
        ),
        ("@0 0 0\n", "line 2: the matrix is empty"),
        (
            "@9999999999 9999999999 9999999999\n",
            "line 2: 9999999999 rows are beyond the limit",
        ),
        (
            "@3 3 2\n1 1 1\n2 2 1\n",
            "line 2: 2 entries for 3 rows leave a row without one",
        ),
        (
            "@2 2 4000000\n1 1 1\n",
            "line 2: 4000000 entries are announced, more than the file can hold",
        ),
        (
            "@2 2 3\n1 1 1.0\n2 2 1.0\n",
            "line 5: the file ends after 2 of 3 entries",
        ),
        (
            "@2 2 2\n1 1 1\n2 2 1\n1 2 1\n",
            "line 5: more lines than the 2 entries announced",
        ),
        (
            "@2 2 2\n1 1 1\n3 2 1\n",
            "line 4: position (3, 2) is outside; rows are 1 to 2, columns 1 to 2",
        ),
        (
            "@2 2 2\n0 1 1\n2 2 1\n",
            "line 3: position (0, 1) is outside",
        ),
        ("@2 2 2\n1 1 nan\n2 2 1\n", "line 3: the value is NaN"),
        ("@2 2 2\n1 1 1\n2 2 1e999\n", "line 4: the value is inf"),
        (
            "@2 2 2\n1 1\n2 2 1 1\n",
            "line 3: '1 1' is not 'row column value'",
        ),
        (
            "@2 2 2\n1 1 1\n2 2 1 1\n",
            "line 4: '2 2 1 1' is not 'row column value'",
        ),
        (
            "%%MatrixMarket matrix array real general\n2 2\n1\n2 3\n4\n5\n",
            "line 4: '2 3' is not one number",
        ),
    ];
    for (text, expected) in cases {
        let text = match text.strip_prefix('@') {
            Some(rest) => format!("{coordinate}{rest}"),
            None => text.to_owned(),
        };
        let message = mtx(&text).unwrap_err().to_string();
        assert!(
            message.starts_with("input:") && message.contains(expected),
            "{message}\nexpected: {expected}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
    let long = format!("{coordinate}%{}\n", "x".repeat(100_000));
    assert!(
        mtx(&long)
            .unwrap_err()
            .to_string()
            .contains("longer than 65536 bytes")
    );
}

/// What is announced beyond the memory there is, is refused before it is read.
#[test]
fn announcements_are_held_to_memory() {
    let text = format!(
        "%%MatrixMarket matrix array real general\n1000 1000\n{}",
        "1\n".repeat(1_000_000)
    );
    let error = matrix_from_bytes(Format::MatrixMarket, text.as_bytes(), 1 << 20).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("8.0 MB of data are more than the 1.0 MB"),
        "{error}"
    );
    let bytes = npy_of("<f8", "False", "(1000, 1000)", &vec![0; 8_000_000]);
    let error = matrix_from_bytes(Format::Npy, &bytes, 1 << 20).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("8.0 MB of data are more than the 1.0 MB"),
        "{error}"
    );
}
