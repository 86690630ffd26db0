//! Any bytes, damaged files, and files that the writers gave.

use proptest::prelude::*;
use tsumuji_solve::system::formats::{Format, emit_vector, matrix_from_bytes, vector_from_bytes};
use tsumuji_solve::system::{Csr, Matrix};

use crate::PLENTY;
use crate::harwell_boeing::harwell;
use crate::matrix_market::mtx;
use crate::npy::{npy, npy_of};

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
