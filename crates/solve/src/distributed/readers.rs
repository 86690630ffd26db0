//! What the other workers read of the own elements, as they tell it before the first lap.
//!
//! Owned by `worker`. A list comes in parts, in order; it counts once its last part has arrived.

use std::collections::BTreeMap;
use tsumuji_board::Reads;

/// Most elements in a list: those of the largest board.
const LIST_MOST: usize = u32::MAX as usize;

/// Divisions ahead of the present one of which a list is kept: the sender has heard of them earlier.
const AHEAD_MOST: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Readers {
    division: u32,
    /// Lists that are not whole yet, by division and worker.
    parts: BTreeMap<(u32, usize), Vec<u32>>,
    whole: BTreeMap<(u32, usize), Reads>,
}

impl Readers {
    /// Begins a division: what was told for older ones is void.
    pub(super) fn begin(&mut self, division: u32) {
        self.division = division;
        self.parts.retain(|(of, _), _| *of >= division);
        self.whole.retain(|(of, _), _| *of >= division);
    }

    /// Takes a part of the list of worker `from`. False: it does not fit what came before.
    pub(super) fn hear(
        &mut self,
        (division, from): (u32, usize),
        packed: bool,
        last: bool,
        part: Vec<u32>,
    ) -> bool {
        if division < self.division {
            return true; // late
        }
        let key = (division, from);
        if division - self.division > AHEAD_MOST || self.whole.contains_key(&key) {
            return false;
        }
        if !packed {
            let is_alone = part.is_empty() && last && !self.parts.contains_key(&key);
            if is_alone {
                self.whole.insert(key, Reads::Whole);
            }
            return is_alone;
        }
        let list = self.parts.entry(key).or_default();
        if list.len() + part.len() > LIST_MOST {
            return false;
        }
        list.extend(part);
        if last && let Some(list) = self.parts.remove(&key) {
            self.whole.insert(key, Reads::Packed(list.into()));
        }
        true
    }

    /// What each worker that has told all reads in the present division.
    pub(super) fn lists(&self) -> impl Iterator<Item = (usize, &Reads)> {
        let present = self
            .whole
            .range((self.division, 0)..=(self.division, usize::MAX));
        present.map(|((_, worker), reads)| (*worker, reads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists grow by parts until the last; whole readers need no list; nothing may follow the last part.
    #[test]
    fn lists_are_put_together() {
        let mut readers = Readers::default();
        readers.begin(1);
        assert!(readers.hear((1, 3), true, false, vec![1, 2]));
        assert_eq!(readers.lists().count(), 0);
        assert!(
            !readers.hear((1, 3), false, true, vec![]),
            "half a list is not all"
        );
        assert!(readers.hear((1, 3), true, true, vec![5]));
        assert!(readers.hear((1, 1), false, true, vec![]));
        assert!(!readers.hear((1, 3), true, true, vec![9]));
        assert!(!readers.hear((1, 2), false, true, vec![9]));
        let lists: Vec<_> = readers.lists().collect();
        let packed = Reads::Packed([1, 2, 5].into());
        assert_eq!(lists, [(1, &Reads::Whole), (3, &packed)]);
    }

    /// Lists of a later division wait for it; those of an older one are void.
    #[test]
    fn divisions_keep_apart() {
        let mut readers = Readers::default();
        readers.begin(2);
        assert!(readers.hear((3, 0), false, true, vec![]));
        assert!(readers.hear((1, 1), false, true, vec![]));
        assert_eq!(readers.lists().count(), 0);
        assert!(readers.hear((2, 1), false, true, vec![]));
        assert_eq!(readers.lists().count(), 1);
        readers.begin(3);
        assert_eq!(readers.lists().next(), Some((0, &Reads::Whole)));
        assert!(!readers.hear((900, 0), false, true, vec![]));
    }
}
