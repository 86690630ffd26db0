use super::super::{Dense, partition};
use super::*;

const LIMIT: usize = 1 << 20;

fn systems() -> Vec<System> {
    let n = 23;
    let dense: Vec<f64> = (0..n * n)
        .map(|k| {
            if k % (n + 1) == 0 {
                30.0
            } else {
                -((k % 7) as f64) / 8.0
            }
        })
        .collect();
    let mut triplets = Vec::new();
    for row in 0..n as u32 {
        triplets.push((row, row, 4.0 + f64::from(row)));
        triplets.push((row, (row * 7 + 3) % n as u32, -0.25));
    }
    let sparse = Csr::from_triplets(n, n, &triplets).unwrap();
    let of = |matrix| System::new(matrix, None, "test".into()).unwrap();
    // Row k has its only large entry in column k + 1: it is matched and scaled.
    let shifted: Vec<_> = (triplets.iter())
        .map(|&(row, column, value)| (row, (column + 1) % n as u32, value))
        .collect();
    let shifted = Matrix::Sparse(Csr::from_triplets(n, n, &shifted).unwrap());
    let (matched, _) = System::matched(shifted, None, "test".into()).unwrap();
    assert!(matched.scaling.is_some());
    vec![
        of(Matrix::Dense(Dense::new(n, dense).unwrap())),
        of(Matrix::Sparse(sparse)),
        matched,
    ]
}

/// Every block is received as it was sent, for any size of the chunks and wherever they are cut again on the way.
#[test]
fn blocks_survive_any_cutting() {
    for system in systems() {
        for rows in partition(&system.matrix, 3).unwrap() {
            let expected = RowBlock::cut(&system, rows.clone());
            let whole = RowBlock::to_bytes(&system, rows.clone());
            assert_eq!(
                whole.len() as u64,
                RowBlock::stream_bytes(&system, rows.clone())
            );
            for chunk_bytes in [40, 41, 64, 1000] {
                let chunks: Vec<_> = RowBlock::chunks(&system, rows.clone(), chunk_bytes).collect();
                assert!(
                    chunks
                        .iter()
                        .all(|chunk| !chunk.is_empty() && chunk.len() <= chunk_bytes)
                );
                assert_eq!(chunks.concat(), whole);
            }
            for piece in [1, 3, 7, 39, 41, 100_000] {
                let mut builder = RowBlockBuilder::new(LIMIT);
                for part in whole.chunks(piece) {
                    assert!(!builder.is_complete());
                    builder.push(part).unwrap();
                }
                assert_eq!(builder.finish().unwrap(), expected);
            }
        }
    }
}

/// A stream cut short at any byte is an error, and so is one that goes on.
#[test]
fn wrong_lengths_are_refused() {
    for system in systems() {
        let whole = RowBlock::to_bytes(&system, 2..5);
        for end in 0..whole.len() {
            let error = RowBlock::from_bytes(&whole[..end], LIMIT).unwrap_err();
            assert!(
                matches!(error, StreamError::Truncated { .. }),
                "{end}: {error}"
            );
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(
            RowBlock::from_bytes(&longer, LIMIT),
            Err(StreamError::Excess { excess: 1 })
        );
    }
}

/// An announcement beyond the receiver's limit is refused before anything is allocated for it.
#[test]
fn announcements_are_bounded() {
    let shape = Shape {
        columns: 1 << 31,
        rows: 0..1 << 30,
        entries: 1 << 40,
        sparse: true,
        scales_rows: false,
    };
    let error = RowBlock::from_bytes(&shape.header(), LIMIT).unwrap_err();
    assert!(
        matches!(error, StreamError::TooLarge { limit: LIMIT, .. }),
        "{error}"
    );
}

/// Any single changed byte gives an error or a block that still keeps its invariants; never a panic.
#[test]
fn changed_bytes_never_panic() {
    let mut refused = 0;
    for system in systems() {
        let whole = RowBlock::to_bytes(&system, 2..5);
        for position in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[position] ^= flip;
                match RowBlock::from_bytes(&bytes, LIMIT) {
                    Err(_) => refused += 1,
                    Ok(block) => {
                        assert!(block.rows.end <= block.columns);
                        let x = vec![1.0; block.columns];
                        assert!(!block.residual_sq(&x).is_nan());
                    }
                }
            }
        }
    }
    assert!(refused > 200, "{refused}");
}

/// The errors for NaN entries and zero diagonals name the row.
#[test]
fn damage_is_located() {
    let system = &systems()[1];
    let whole = RowBlock::to_bytes(system, 2..5);
    // Sections: header, 3 × b, 3 lengths, 6 columns, 6 values (row 2: columns 2 and 17).
    let values = HEADER_BYTES + 3 * 8 + 3 * 4 + 6 * 4;
    let mut nan = whole.clone();
    nan[values + 8 * 2..values + 8 * 3].copy_from_slice(&f64::NAN.to_le_bytes());
    let error = RowBlock::from_bytes(&nan, LIMIT).unwrap_err();
    assert!(
        matches!(error, StreamError::Damaged { row: 3, .. }),
        "{error}"
    );
    let mut zero = whole;
    zero[values..values + 8].fill(0);
    let error = RowBlock::from_bytes(&zero, LIMIT).unwrap_err();
    assert!(
        matches!(error, StreamError::Damaged { row: 2, .. }),
        "{error}"
    );
}
