//! Any bytes taken as a message of rows for a worker give a block that can be relaxed, or an error.

use tsumuji_solve::system::RowBlock;

/// The target.
pub fn rows(input: &[u8]) {
    let Ok(block) = RowBlock::from_message(input) else {
        return;
    };
    assert!(!block.rows.is_empty() && block.rows.end <= block.columns);
    assert_eq!(block.rhs.len(), block.rows.len());
    assert!(block.rows.clone().all(|row| block.diagonal(row) != 0.0));
    assert!(block.stored() <= input.len() / 8);
}
