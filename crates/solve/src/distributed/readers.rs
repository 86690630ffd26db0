//! What the other workers read of the own elements, as they tell it before the first lap.
//!
//! Owned by `worker`. A list comes in parts, in order; it counts once its last part has arrived. Of each worker the list of the newest division is kept:
//! it may have heard of that before this one, and no older one is of use to it any more.

use super::message::is_older;
use std::collections::BTreeMap;
use tsumuji_board::Reads;

/// Most elements in a list: those of the largest board.
const LIST_MOST: usize = u32::MAX as usize;

/// What a worker told last.
#[derive(Debug)]
struct Told {
    division: u32,
    /// While parts are to come.
    parts: Vec<u32>,
    whole: Option<Reads>,
}

#[derive(Debug, Default)]
pub(super) struct Readers {
    /// `None`: none has begun.
    division: Option<u32>,
    told: BTreeMap<usize, Told>,
}

impl Readers {
    /// Begins a division: what was told for older ones is void.
    pub(super) fn begin(&mut self, division: u32) {
        self.division = Some(division);
        self.told
            .retain(|_, told| !is_older(told.division, division));
    }

    /// Takes a part of the list of worker `from`. False: it does not fit what came before.
    pub(super) fn hear(
        &mut self,
        (division, from): (u32, usize),
        packed: bool,
        last: bool,
        part: Vec<u32>,
    ) -> bool {
        if self
            .division
            .is_some_and(|present| is_older(division, present))
        {
            return true; // late
        }
        let none = || Told {
            division,
            parts: Vec::new(),
            whole: None,
        };
        let told = self.told.entry(from).or_insert_with(none);
        if is_older(division, told.division) {
            return true; // it has heard of a newer one since
        }
        if told.division != division {
            *told = none();
        }
        if told.whole.is_some() {
            return false;
        }
        if !packed {
            let is_alone = part.is_empty() && last && told.parts.is_empty();
            told.whole = is_alone.then_some(Reads::Whole);
            return is_alone;
        }
        if told.parts.len() + part.len() > LIST_MOST {
            return false;
        }
        told.parts.extend(part);
        if last {
            told.whole = Some(Reads::Packed(std::mem::take(&mut told.parts).into()));
        }
        true
    }

    /// What each worker that has told all reads in the present division.
    pub(super) fn lists(&self) -> impl Iterator<Item = (usize, &Reads)> {
        self.told.iter().filter_map(|(worker, told)| {
            let reads = told.whole.as_ref()?;
            (Some(told.division) == self.division).then_some((*worker, reads))
        })
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
        // Of a later division, half of which is told when a still later one begins.
        assert!(readers.hear((900, 0), true, false, vec![1]));
        assert!(readers.hear((901, 0), true, true, vec![2]));
        assert!(readers.hear((900, 0), true, true, vec![3]));
        readers.begin(901);
        let packed = Reads::Packed([2].into());
        assert_eq!(readers.lists().next(), Some((0, &packed)));
    }
}
