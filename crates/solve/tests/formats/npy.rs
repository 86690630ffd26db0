//! NumPy files of all types, orders and versions.

use tsumuji_solve::system::Matrix;
use tsumuji_solve::system::formats::{Format, matrix_from_bytes};

use crate::{PLENTY, entries};

/// A `.npy` file with a header of the given version.
pub(crate) fn npy(version: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
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

pub(crate) fn npy_of(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let dictionary =
        format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    npy(1, &dictionary, data)
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
        // These two and the one before are why decision 0050 keeps a reader of our own.
        (
            npy_of("<f8", "False", "(4294967296, 4294967296)", &data),
            "beyond the limit",
        ),
        (
            npy_of("<f8", "False", &"[".repeat(30), &data),
            "'(' is missing before",
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
