//! What the other workers read of the own elements, as they tell it before the first lap.
//!
//! Owned by `worker`. A list comes in parts, in order; it counts once its last part has arrived.

use std::collections::BTreeMap;
use tsumuji_board::Reads;

/// Most elements in a list: those of the largest board.
const LIST_MOST: usize = u32::MAX as usize;

#[derive(Debug, Default)]
pub(super) struct Readers {
    /// Lists that are not whole yet.
    parts: BTreeMap<usize, Vec<u32>>,
    whole: BTreeMap<usize, Reads>,
}

impl Readers {
    /// Takes a part of the list of worker `from`. False: it does not fit what came before.
    pub(super) fn hear(&mut self, from: usize, packed: bool, last: bool, part: Vec<u32>) -> bool {
        if self.whole.contains_key(&from) {
            return false;
        }
        if !packed {
            let is_alone = part.is_empty() && last && !self.parts.contains_key(&from);
            if is_alone {
                self.whole.insert(from, Reads::Whole);
            }
            return is_alone;
        }
        let list = self.parts.entry(from).or_default();
        if list.len() + part.len() > LIST_MOST {
            return false;
        }
        list.extend(part);
        if last && let Some(list) = self.parts.remove(&from) {
            self.whole.insert(from, Reads::Packed(list.into()));
        }
        true
    }

    /// How many workers have told all that they read.
    pub(super) fn known(&self) -> usize {
        self.whole.len()
    }

    /// What each of them reads.
    pub(super) fn lists(&self) -> impl Iterator<Item = (&usize, &Reads)> {
        self.whole.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists grow by parts until the last; whole readers need no list; nothing may follow the last part.
    #[test]
    fn lists_are_put_together() {
        let mut readers = Readers::default();
        assert!(readers.hear(3, true, false, vec![1, 2]));
        assert_eq!(readers.known(), 0);
        assert!(
            !readers.hear(3, false, true, vec![]),
            "half a list is not all"
        );
        assert!(readers.hear(3, true, true, vec![5]));
        assert!(readers.hear(1, false, true, vec![]));
        assert!(!readers.hear(3, true, true, vec![9]));
        assert!(!readers.hear(2, false, true, vec![9]));
        let lists: Vec<_> = readers.lists().collect();
        let packed = Reads::Packed([1, 2, 5].into());
        assert_eq!(lists, [(&1, &Reads::Whole), (&3, &packed)]);
    }
}
