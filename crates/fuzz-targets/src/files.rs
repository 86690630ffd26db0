//! What holds of any bytes that are read as a file of any format: a matrix or vector that keeps its invariants, or one line of error.

use tsumuji_solve::system::formats::{Format, matrix_from_bytes, vector_from_bytes};
use tsumuji_solve::system::{Csr, Matrix, System};

/// Memory a matrix may announce: more is refused before it is allocated.
const MEMORY_LIMIT_BYTES: u64 = 64 << 20;

pub(crate) fn read(format: Format, bytes: &[u8]) {
    match matrix_from_bytes(format, bytes, MEMORY_LIMIT_BYTES) {
        Ok(loaded) => {
            assert!(loaded.matrix.n() > 0);
            if let Matrix::Sparse(csr) = &loaded.matrix {
                let (offsets, indices) = (csr.offsets().to_vec(), csr.indices().to_vec());
                Csr::new(csr.columns(), offsets, indices, csr.values().to_vec())
                    .expect("it is valid");
            }
            if let Ok(system) = System::new(loaded.matrix, None, "input".into()) {
                assert_eq!(system.rhs.len(), system.matrix.n());
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
    if let Ok(vector) = vector_from_bytes(format, bytes, 4) {
        assert!(vector.len() == 4 && vector.iter().all(|value| value.is_finite()));
    }
}
