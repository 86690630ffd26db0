//! The readers against files written by hand, against any bytes, and against what the writers give; the writers against
//! disks that are full.

use proptest::prelude::*;
use std::io::Write;
use std::path::{Path, PathBuf};
use tsumuji_solve::system::formats::{
    Format, Loaded, ReadError, WriteError, emit_vector, matrix_from_bytes, read_matrix,
    read_system, read_vector, vector_from_bytes, write_vector,
};
use tsumuji_solve::system::{Csr, Matrix};

const PLENTY: u64 = 1 << 30;

fn mtx(text: &str) -> Result<Loaded, ReadError> {
    matrix_from_bytes(Format::MatrixMarket, text.as_bytes(), PLENTY)
}

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

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// A `.npy` file with a header of the given version.
fn npy(version: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((dictionary.len() as u16).to_le_bytes()),
        _ => bytes.extend((dictionary.len() as u32).to_le_bytes()),
    }
    bytes.extend(dictionary.as_bytes());
    bytes.extend(data);
    bytes
}

fn npy_of(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    npy(1, &dictionary, data)
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
            "line 2: 2 entries for 3 rows leave a zero on the diagonal",
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
        error.to_string().contains("announces 8.0 MB of data"),
        "{error}"
    );
    let bytes = npy_of("<f8", "False", "(1000, 1000)", &vec![0; 8_000_000]);
    let error = matrix_from_bytes(Format::Npy, &bytes, 1 << 20).unwrap_err();
    assert!(
        error.to_string().contains("announces 8.0 MB of data"),
        "{error}"
    );
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

/// A small number as the bytes of some type.
type Encode = fn(u8) -> Vec<u8>;

/// All element types, byte orders, storage orders and header versions of NumPy files.
#[test]
fn npy_files_are_read() {
    let expected = [[1.0, 2.0], [3.0, 4.0]];
    let values = [1u8, 2, 3, 4];
    let as_bytes = |number: Encode, big: bool| -> Vec<u8> {
        let swap = |mut bytes: Vec<u8>| {
            if big {
                bytes.reverse();
            }
            bytes
        };
        values
            .iter()
            .flat_map(|value| swap(number(*value)))
            .collect()
    };
    let kinds: [(&str, Encode); 10] = [
        ("f8", |v| f64::from(v).to_le_bytes().into()),
        ("f4", |v| f32::from(v).to_le_bytes().into()),
        ("i1", |v| (v as i8).to_le_bytes().into()),
        ("i2", |v| i16::from(v).to_le_bytes().into()),
        ("i4", |v| i32::from(v).to_le_bytes().into()),
        ("i8", |v| i64::from(v).to_le_bytes().into()),
        ("u1", |v| vec![v]),
        ("u2", |v| u16::from(v).to_le_bytes().into()),
        ("u4", |v| u32::from(v).to_le_bytes().into()),
        ("u8", |v| u64::from(v).to_le_bytes().into()),
    ];
    for (kind, number) in kinds {
        for (order, big) in [("<", false), (">", true)] {
            let bytes = npy_of(
                &format!("{order}{kind}"),
                "False",
                "(2, 2)",
                &as_bytes(number, big),
            );
            let loaded = matrix_from_bytes(Format::Npy, &bytes, PLENTY).unwrap();
            assert_eq!(entries(&loaded.matrix), expected, "{order}{kind}");
        }
    }
    let data = as_bytes(kinds[0].1, false);
    let fortran = npy_of("<f8", "True", "(2, 2)", &data);
    let loaded = matrix_from_bytes(Format::Npy, &fortran, PLENTY).unwrap();
    assert_eq!(entries(&loaded.matrix), [[1.0, 3.0], [2.0, 4.0]]);
    for version in [2, 3] {
        let bytes = npy(
            version,
            r#"{"shape":(2,2),"fortran_order":False,"descr":"<f8"}"#,
            &data,
        );
        assert_eq!(
            entries(
                &matrix_from_bytes(Format::Npy, &bytes, PLENTY)
                    .unwrap()
                    .matrix
            ),
            expected
        );
    }
}

/// Storage order is undone for sizes around the tiles it is done in.
#[test]
fn fortran_order_is_undone() {
    for n in [1usize, 31, 32, 33, 70] {
        let data: Vec<u8> = (0..n * n)
            .flat_map(|k| (k as f64 + 1.0).to_le_bytes())
            .collect();
        let bytes = npy_of("<f8", "True", &format!("({n}, {n})"), &data);
        let loaded = matrix_from_bytes(Format::Npy, &bytes, PLENTY).unwrap();
        let Matrix::Dense(dense) = loaded.matrix else {
            panic!("not dense")
        };
        assert!(
            (0..n * n).all(|k| dense.row(k % n)[k / n] == k as f64 + 1.0),
            "{n}"
        );
    }
}

/// Every fault of a NumPy file has its line.
#[test]
fn faults_of_npy_are_named() {
    let data = [0u8; 32];
    let cases = [
        (
            npy_of("|O", "False", "(2, 2)", &data),
            "elements of type '|O' cannot be read",
        ),
        (
            npy_of("<c16", "False", "(2, 2)", &data),
            "elements of type '<c16' cannot be read",
        ),
        (
            npy(
                1,
                "{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2, 2)}",
                &data,
            ),
            "elements are structures",
        ),
        (
            npy_of("<f8", "False", "(2, 2, 1)", &data),
            "has 3 dimensions; a matrix has 2",
        ),
        (
            npy_of("<f8", "False", "(2, 3)", &data),
            "the matrix is 2 x 3; only square",
        ),
        (npy_of("<f8", "False", "(0, 0)", &[]), "the matrix is empty"),
        (
            npy_of("<f8", "False", "(2, 2)", &data[..31]),
            "has 31 bytes of data, its header announces 32; it is truncated",
        ),
        (
            npy_of("<f8", "False", "(2, 2)", &[0; 33]),
            "goes on after the 32 bytes",
        ),
        (
            npy_of("<f8", "Maybe", "(2, 2)", &data),
            "neither True nor False",
        ),
        (
            npy_of("<f8", "False", "(2, x)", &data),
            "not a tuple of whole numbers",
        ),
        (
            npy(1, "{'descr': '<f8', 'shape': (2, 2)}", &data),
            "is missing",
        ),
        (npy(4, "{}", &data), "version 4 is unknown"),
        (npy(2, "", &[])[..9].to_vec(), "ends within the header"),
        (
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(),
            "beyond the limit",
        ),
    ];
    for (bytes, expected) in cases {
        let message = matrix_from_bytes(Format::Npy, &bytes, PLENTY)
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(expected),
            "{message}\nexpected: {expected}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

/// A Harwell–Boeing file of a 3×3 matrix in the given type and with the given right-hand side lines.
fn harwell(kind: &str, rhs: &str) -> String {
    let rhs_lines = rhs.lines().count().saturating_sub(1);
    let pattern = kind.starts_with('P');
    let mut text = format!("{:72}{:8}\n", "A small test", "TEST");
    text += &format!(
        "{:14}{:14}{:14}{:14}{:14}\n",
        5 + rhs_lines,
        1,
        2,
        if pattern { 0 } else { 2 },
        rhs_lines
    );
    text += &format!("{kind:14}{:14}{:14}{:14}{:14}\n", 3, 3, 5, 0);
    let values = if pattern { "" } else { "(1P,4D12.4)" };
    text += &format!(
        "{:16}{:16}{values:20}{:20}\n",
        "(8I5)",
        "(4I4)",
        if rhs.is_empty() { "" } else { "(3F6.2)" }
    );
    if let Some(kind_of_rhs) = rhs.lines().next() {
        text += &format!("{kind_of_rhs:14}{:14}{:14}\n", 1, 0);
    }
    // Columns: (1,1) (3,1) | (2,2) (3,2) | (3,3).
    text += "    1    3    5    6\n   1   3   2   3\n   3\n";
    if !pattern {
        text += "  4.0000D+00 -1.0000D+00  5.0000D+00 -2.0000D-01\n  6.0000E+00\n";
    }
    for line in rhs.lines().skip(1) {
        text += &format!("{line}\n");
    }
    text
}

fn hb(text: &str) -> Result<Loaded, ReadError> {
    matrix_from_bytes(Format::HarwellBoeing, text.as_bytes(), PLENTY)
}

/// Harwell–Boeing files: unsymmetric, symmetric, skew, pattern, with and without right-hand sides.
#[test]
fn harwell_boeing_files_are_read() {
    let loaded = hb(&harwell("RUA", "")).unwrap();
    assert_eq!(
        entries(&loaded.matrix),
        [[4.0, 0.0, 0.0], [0.0, 5.0, 0.0], [-1.0, -0.2, 6.0]]
    );
    assert_eq!(loaded.rhs, None);
    let loaded = hb(&harwell("rsa", "F\n  1.00  2.50 -3.00")).unwrap();
    assert_eq!(
        entries(&loaded.matrix),
        [[4.0, 0.0, -1.0], [0.0, 5.0, -0.2], [-1.0, -0.2, 6.0]]
    );
    // The right-hand side's format has no scale factor.
    assert_eq!(loaded.rhs, Some(vec![1.0, 2.5, -3.0]));
    let loaded = hb(&harwell("RZA", "M\n  1.00")).unwrap();
    assert_eq!(entries(&loaded.matrix)[0], [4.0, 0.0, 1.0]);
    assert_eq!(loaded.rhs, None);
    let loaded = hb(&harwell("PUA", "")).unwrap();
    assert_eq!(
        entries(&loaded.matrix),
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    );
    assert!(loaded.notes[0].contains("taken as 1"));
    let with_rhs = harwell("RUA", "F\n  1.00  2.50 -3.00");
    assert_eq!(
        vector_from_bytes(Format::HarwellBoeing, with_rhs.as_bytes(), 3).unwrap(),
        [1.0, 2.5, -3.0]
    );
}

/// Every fault of a Harwell–Boeing file has its line.
#[test]
fn faults_of_harwell_boeing_are_named() {
    let good = harwell("RUA", "");
    let swapped = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replacen(from, to, 1)
    };
    let cases = [
        (
            harwell("CUA", ""),
            "line 3: the matrix type 'CUA' is complex",
        ),
        (
            harwell("RRA", ""),
            "line 3: the matrix type 'RRA' is rectangular",
        ),
        (
            harwell("RUE", ""),
            "line 3: the matrix type 'RUE' is not assembled",
        ),
        (
            harwell("XYZ", ""),
            "line 3: the matrix type 'XYZ' is unknown",
        ),
        (
            swapped("(8I5)", "(8X5)"),
            "line 4: the format '(8X5)' is not understood",
        ),
        (
            swapped("(1P,4D12.4)", "(8I5)      "),
            "line 4: the format '(8I5)' is of the wrong kind",
        ),
        (
            swapped("    1    3    5    6", "    1    5    3    6"),
            "line 5: column pointer 3 is out of order",
        ),
        (
            swapped("    1    3    5    6", "    1    3    5    5"),
            "line 5: the last column pointer is 5",
        ),
        (
            swapped("   1   3   2   3", "   1   4   2   3"),
            "line 6: row index 4 is outside; rows are 1 to 3",
        ),
        (
            swapped("   1   3   2   3", "   1   x   2   3"),
            "line 6: 'x' is not a row index",
        ),
        (
            swapped("5.0000D+00", "5.0000X+00"),
            "line 8: '5.0000X+00' is not a number",
        ),
        (swapped("5.0000D+00", "5.00D+1000"), "is inf"),
        (
            good[..good.len() - 14].to_owned(),
            "the file ends after 4 of 5 values (entry)",
        ),
        (
            good.lines().take(2).collect::<Vec<_>>().join("\n"),
            "line 3: the file ends before type and sizes",
        ),
        (
            "x\ny\nz\n".to_owned(),
            "line 2: this is not the second line",
        ),
    ];
    for (text, expected) in cases {
        let message = hb(&text).unwrap_err().to_string();
        assert!(
            message.contains(expected),
            "{message}\nexpected: {expected}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

/// Files by name: gzip undone, formats told by content or ending, faults of the file system in one line.
#[test]
fn files_are_opened() {
    let directory = tempfile::tempdir().unwrap();
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2\n2 2 4\n";
    for (name, bytes) in [
        ("a.mtx", text.as_bytes().to_vec()),
        ("a.mtx.gz", gzipped(text.as_bytes())),
        ("no-ending", text.as_bytes().to_vec()),
        ("a.rua.gz", gzipped(harwell("RUA", "").as_bytes())),
    ] {
        let path = file(directory.path(), name, &bytes);
        let matrix = read_matrix(&path).unwrap().matrix;
        assert!(matrix.diagonal(0) == 2.0 || matrix.diagonal(0) == 4.0);
    }
    let system = read_system(&directory.path().join("a.mtx"), None)
        .unwrap()
        .0;
    assert_eq!(system.rhs, [2.0, 4.0]);
    let rhs = file(
        directory.path(),
        "b.mtx",
        b"%%MatrixMarket matrix array real general\n2 1\n8\n8\n",
    );
    let system = read_system(&directory.path().join("a.mtx"), Some(&rhs))
        .unwrap()
        .0;
    assert_eq!(system.rhs, [8.0, 8.0]);
    let with_rhs = file(
        directory.path(),
        "c.rua",
        harwell("RUA", "F\n  1.00  2.50 -3.00").as_bytes(),
    );
    let (system, notes) = read_system(&with_rhs, None).unwrap();
    assert_eq!(system.rhs, [4.0, 5.0, -1.0 - 0.2 + 6.0]);
    assert!(notes[0].contains("brings a right-hand side"), "{notes:?}");
    assert_eq!(
        read_system(&with_rhs, Some(&with_rhs)).unwrap().0.rhs,
        [1.0, 2.5, -3.0]
    );

    let whole = gzipped(text.repeat(50).as_bytes());
    let message = |name: &str, bytes: &[u8]| {
        let path = file(directory.path(), name, bytes);
        let message = read_matrix(&path).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("{}:", path.display())),
            "{message}"
        );
        message
    };
    assert!(message("empty.mtx", b"").contains("the file is empty"));
    assert!(message("unknown.dat", b"hello").contains("the format is unknown; accepted are"));
    assert!(message("cut.mtx.gz", &whole[..whole.len() / 2]).contains("truncated"));
    assert!(message("not.gz", &[0x1f, 0x8b, 0, 0, 0, 0]).contains("truncated"));
    let mut wrong = whole;
    wrong[12..30].fill(0xff);
    assert!(message("wrong.mtx.gz", &wrong).contains("cannot be read"));
    let missing = read_matrix(Path::new("/nowhere/a.mtx"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("/nowhere/a.mtx: cannot be read: No such file"),
        "{missing}"
    );
    let folder = read_matrix(directory.path()).unwrap_err().to_string();
    assert!(folder.contains("it is a directory"), "{folder}");
    let zero = file(
        directory.path(),
        "z.mtx",
        b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2\n1 2 4\n",
    );
    let zero = read_system(&zero, None).unwrap_err().to_string();
    assert!(
        zero.contains("the diagonal entry of row 2 is zero"),
        "{zero}"
    );
}

/// The real systems that come along are read, and both can be relaxed.
#[test]
fn example_data_is_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data");
    for (name, n) in [("add32.mtx.gz", 4960), ("grid2869.mtx.gz", 2359)] {
        let (system, notes) = read_system(&data.join(name), None).unwrap();
        assert_eq!(system.n(), n);
        assert!(notes.is_empty(), "{notes:?}");
    }
}

/// Solutions replace what was there, leave nothing beside it, and go only where their name tells a format.
#[test]
fn solutions_are_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let x = [1.0, -0.1, 1e-300, f64::MAX];
    for name in ["x.npy", "x.mtx"] {
        let path = file(directory.path(), name, b"old");
        write_vector(&path, &x).unwrap();
        assert_eq!(read_vector(&path, 4).unwrap(), x);
    }
    let names = || std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names(), 2);
    let error = write_vector(&directory.path().join("x.txt"), &x).unwrap_err();
    assert!(matches!(error, WriteError::UnknownFormat { .. }), "{error}");
    let error = write_vector(Path::new("/nowhere/x.npy"), &x)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("/nowhere/x.npy: cannot be written: No such file"),
        "{error}"
    );
    std::fs::create_dir(directory.path().join("d.npy")).unwrap();
    assert!(write_vector(&directory.path().join("d.npy"), &x).is_err());
    assert_eq!(names(), 3);
}

/// What is written to a device without room is an error, at the latest when it is flushed.
#[test]
fn a_full_device_is_noticed() {
    let mut full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    for format in [Format::Npy, Format::MatrixMarket] {
        let error = emit_vector(format, &[1.0; 10], &mut full).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}

/// On a full disk the old file survives, nothing is left beside it, and one line says what is needed. Runs itself again
/// in a mount namespace of its own with a file system of 64 kB.
#[test]
fn a_full_disk_leaves_no_trace() {
    const MARK: &str = "TSUMUJI_TEST_TINY_DISK";
    if let Some(disk) = std::env::var_os(MARK) {
        let path = Path::new(&disk).join("x.npy");
        write_vector(&path, &[1.0; 10]).unwrap();
        let error = write_vector(&path, &[2.0; 100_000]).unwrap_err();
        assert!(
            matches!(
                error,
                WriteError::DiskFull {
                    needed_bytes: 800_128,
                    ..
                }
            ),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("the disk is full (800128 bytes are needed); nothing was left behind")
        );
        assert_eq!(read_vector(&path, 10).unwrap(), [1.0; 10]);
        assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 1);
        println!("checked on a tiny disk");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=64k tiny \"$0\" && exec \"$1\" --exact a_full_disk_leaves_no_trace --nocapture";
    let run = std::process::Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .env(MARK, directory.path())
        .output();
    match run {
        Ok(output)
            if String::from_utf8_lossy(&output.stderr).contains("mount:")
                || output.status.code() == Some(1) && output.stdout.is_empty() =>
        {
            println!(
                "SKIPPED a_full_disk_leaves_no_trace: no mount namespace here: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && told.contains("checked on a tiny disk"),
                "{told}{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Err(error) => {
            println!("SKIPPED a_full_disk_leaves_no_trace: unshare cannot be run: {error}")
        }
    }
}

const FORMATS: [Format; 3] = [Format::MatrixMarket, Format::Npy, Format::HarwellBoeing];

fn take_any(format: Format, bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(loaded) = matrix_from_bytes(format, bytes, PLENTY) {
        prop_assert!(loaded.matrix.n() > 0);
        if let Matrix::Sparse(csr) = &loaded.matrix {
            let again = Csr::new(
                csr.columns(),
                csr.offsets().to_vec(),
                csr.indices().to_vec(),
                csr.values().to_vec(),
            );
            prop_assert!(again.is_ok());
        }
    }
    let _ = vector_from_bytes(format, bytes, 3);
    Ok(())
}

proptest! {
    /// Any bytes give a matrix that keeps its invariants or an error, never a panic.
    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in FORMATS {
            take_any(format, &bytes)?;
        }
    }

    /// So do good files with some bytes changed, removed or repeated.
    #[test]
    fn damaged_files_are_taken(
        which in 0usize..6,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
    ) {
        let data: Vec<u8> = (1..=4).flat_map(|value| f64::from(value).to_le_bytes()).collect();
        let (format, mut bytes) = match which {
            0 => (Format::MatrixMarket, b"%%MatrixMarket matrix coordinate real symmetric\n% c\n2 2 3\n1 1 4\n2 1 -1e0\n2 2 5\n".to_vec()),
            1 => (Format::MatrixMarket, b"%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n".to_vec()),
            2 => (Format::Npy, npy_of("<f8", "True", "(2, 2)", &data)),
            3 => (Format::Npy, npy(3, "{'descr': '>i4', 'fortran_order': False, 'shape': (2, 4)}", &data)),
            4 => (Format::HarwellBoeing, harwell("RUA", "F\n  1.00  2.50 -3.00").into_bytes()),
            _ => (Format::HarwellBoeing, harwell("PSA", "").into_bytes()),
        };
        for (index, byte, edit) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => { let copy = bytes[at]; bytes.insert(at, copy); }
            }
        }
        take_any(format, &bytes)?;
    }

    /// What is written is read back bit for bit, in both formats.
    #[test]
    fn vectors_survive_the_round_trip(x in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, 1..60)) {
        for format in [Format::Npy, Format::MatrixMarket] {
            let mut bytes = Vec::new();
            emit_vector(format, &x, &mut bytes).unwrap();
            let read = vector_from_bytes(format, &bytes, x.len()).unwrap();
            let bits = |x: &[f64]| x.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&read), bits(&x));
        }
    }

    /// A coordinate file of random triplets gives the matrix that the triplets give.
    #[test]
    fn coordinate_files_agree_with_triplets(
        n in 1u32..9,
        extra in prop::collection::vec((0u32..9, 0u32..9, -1e3f64..1e3), 0..30),
    ) {
        let mut triplets: Vec<_> = (0..n).map(|row| (row, row, 1.5)).collect();
        triplets.extend(extra.into_iter().filter(|entry| entry.0 < n && entry.1 < n));
        let mut text = format!("%%MatrixMarket matrix coordinate real general\n{n} {n} {}\n", triplets.len());
        for (row, column, value) in &triplets {
            text += &format!("{} {} {value:e}\n", row + 1, column + 1);
        }
        let expected = Csr::from_triplets(n as usize, n as usize, &triplets).unwrap();
        prop_assert_eq!(mtx(&text).unwrap().matrix, Matrix::Sparse(expected));
    }
}
