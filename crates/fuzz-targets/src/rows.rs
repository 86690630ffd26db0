//! Any bytes taken as rows for a worker, in chunks cut anywhere, give a block that can be relaxed, or an error, and the
//! same whatever the chunks.

use tsumuji_solve::system::{RowBlock, RowBlockBuilder};

/// Memory a block may announce.
const LIMIT_BYTES: usize = 16 << 20;

/// The target.
pub fn rows(input: &[u8]) {
    let Some((&cut, bytes)) = input.split_first() else {
        return;
    };
    let whole = RowBlock::from_bytes(bytes, LIMIT_BYTES);
    let mut builder = RowBlockBuilder::new(LIMIT_BYTES);
    let pushed = bytes
        .chunks(usize::from(cut) + 1)
        .try_for_each(|chunk| builder.push(chunk));
    assert_eq!(
        pushed.and_then(|()| builder.finish()).is_ok(),
        whole.is_ok()
    );
    if let Ok(block) = whole {
        assert!(!block.rows.is_empty() && block.rows.end <= block.columns);
        assert!(block.rows.clone().all(|row| block.diagonal(row) != 0.0));
        assert!(block.foreign_columns().len() <= block.columns - block.rows.len());
    }
}
