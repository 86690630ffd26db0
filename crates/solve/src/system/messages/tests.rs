use super::super::{Dense, partition};
use super::*;

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

fn message(system: &System, rows: Range<usize>) -> Vec<u8> {
    let mut messages = RowBlock::messages(system, rows, usize::MAX, 9);
    let (message, _) = messages.next().unwrap();
    assert!(messages.next().is_none());
    assert_eq!(message[0], 9);
    message[1..].to_vec()
}

/// Every block is received as it was sent, however many rows a message has.
#[test]
fn blocks_survive_any_cutting() {
    for system in systems() {
        for rows in partition(&system.matrix, 3).unwrap() {
            let expected = RowBlock::cut(&system, rows.clone());
            for most_bytes in [0, 40, 500, 1000, 100_000] {
                let messages = RowBlock::messages(&system, rows.clone(), most_bytes, 9);
                let mut parts = Vec::new();
                let mut bytes_all = 0;
                for (message, bytes) in messages {
                    let part = RowBlock::from_message(&message[1..]).unwrap();
                    assert_eq!(bytes as u64, part.bytes());
                    assert!(bytes <= most_bytes || part.rows.len() == 1);
                    assert!(message.len() - bytes < 10, "a short head");
                    bytes_all += part.bytes();
                    parts.push(part);
                }
                assert_eq!(bytes_all, RowBlock::bytes_of(&system, rows.clone()));
                let capacity = |block: &RowBlock| match &block.values {
                    RowValues::Dense(values) => values.capacity(),
                    RowValues::Sparse(csr) => csr.stored(),
                };
                let mut whole = parts.remove(0);
                assert!(whole.reserve(rows.len(), bytes_all));
                let reserved = capacity(&whole);
                assert!(parts.into_iter().all(|part| whole.append(part)));
                assert_eq!(whole, expected);
                if system.matrix.is_dense() {
                    assert_eq!((capacity(&whole), whole.stored()), (reserved, reserved));
                }
            }
        }
    }
}

/// A message cut short at any byte is an error, and so is one that goes on.
#[test]
fn wrong_lengths_are_refused() {
    for system in systems() {
        let whole = message(&system, 2..5);
        for end in 0..whole.len() {
            let cut = RowBlock::from_message(&whole[..end]);
            assert_eq!(cut, Err(RowsError::Malformed), "{end}");
        }
        let longer = [&whole[..], &[0]].concat();
        let longer = RowBlock::from_message(&longer);
        assert_eq!(longer, Err(RowsError::Malformed));
    }
}

/// What a head announces takes no memory, nor do rows that a setup announces and no memory holds.
#[test]
fn announcements_are_bounded() {
    for sparse in [false, true] {
        let head = Head {
            columns: INDEX_LIMIT,
            rows: 0..1 << 30,
            sparse,
            scales_rows: false,
        };
        let error = RowBlock::from_message(&codec::to_bytes(&head, &[1.0; 3])).unwrap_err();
        assert_eq!(error, RowsError::Malformed);
    }
    for system in systems() {
        let mut block = RowBlock::from_message(&message(&system, 0..3)).unwrap();
        assert!(!block.reserve(10, u64::MAX));
    }
}

/// Any single changed byte gives an error or a block that still keeps its invariants; never a panic.
#[test]
fn changed_bytes_never_panic() {
    let mut refused = 0;
    for system in systems() {
        let whole = message(&system, 2..5);
        for position in 0..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[position] ^= flip;
                match RowBlock::from_message(&bytes) {
                    Err(_) => refused += 1,
                    Ok(block) => {
                        assert!(block.rows.end <= block.columns);
                        assert!(block.rows.clone().all(|row| block.diagonal(row) != 0.0));
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
    let whole = message(system, 2..5);
    // Behind head, 3 × b, 3 lengths and 6 columns: 6 values (row 2: columns 2 and 17).
    let values = whole.len() - 6 * 8;
    let mut nan = whole.clone();
    nan[values + 8 * 2..values + 8 * 3].copy_from_slice(&f64::NAN.to_le_bytes());
    let error = RowBlock::from_message(&nan).unwrap_err();
    assert!(
        matches!(error, RowsError::Damaged { row: 3, .. }),
        "{error}"
    );
    let mut zero = whole;
    zero[values..values + 8].fill(0);
    let error = RowBlock::from_message(&zero).unwrap_err();
    assert!(
        matches!(error, RowsError::Damaged { row: 2, .. }),
        "{error}"
    );
}
