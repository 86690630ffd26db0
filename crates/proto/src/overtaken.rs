//! Overtaken numbers of one peer: a later number has arrived before them, and they may still arrive.
//!
//! Owned by `credit`, one for each peer of which a number was ever skipped. An overtaken frame is still in the network, and needs room in the receive
//! ring when it arrives. So it counts in addition to what was granted and not seen.
//!
//! Invariants: `count` is the number of set bits; all are of numbers in `low..low + NUMBER_WINDOW`.

use alloc::boxed::Box;

use crate::numbers::NUMBER_WINDOW;

const WORDS: usize = (NUMBER_WINDOW / 64) as usize;

#[derive(Debug)]
pub(crate) struct Overtaken {
    /// Bit n mod 4096 stands for number n.
    bits: Box<[u64; WORDS]>,
    low: u64,
    count: u64,
}

impl Overtaken {
    pub(crate) fn new(low: u64) -> Self {
        Self {
            bits: Box::new([0; WORDS]),
            low,
            count: 0,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Marks the numbers in `from..to` as overtaken; none of them was before.
    pub(crate) fn skip(&mut self, from: u64, to: u64) {
        let end = to.min(self.low + NUMBER_WINDOW);
        for number in from.max(self.low)..end {
            self.bits[word(number)] |= bit(number);
            self.count += 1;
        }
    }

    /// Notes that the number has arrived.
    pub(crate) fn come(&mut self, number: u64) {
        if (self.low..self.low + NUMBER_WINDOW).contains(&number) {
            self.clear(number);
        }
    }

    /// Forgets numbers below `low`: they have arrived, or their sender counts them as lost.
    pub(crate) fn raise(&mut self, low: u64) {
        let end = low.min(self.low + NUMBER_WINDOW);
        while self.low < end && self.count > 0 {
            self.clear(self.low);
            self.low += 1;
        }
        self.low = self.low.max(low);
    }

    fn clear(&mut self, number: u64) {
        self.count -= u64::from(self.bits[word(number)] & bit(number) != 0);
        self.bits[word(number)] &= !bit(number);
    }
}

fn word(number: u64) -> usize {
    (number % NUMBER_WINDOW / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        /// Equal to a set of numbers.
        #[test]
        fn as_a_set(steps in prop::collection::vec((0u8..3, 0u64..9000, 1u64..5000), 1..60)) {
            let (mut overtaken, mut set) = (Overtaken::new(100), BTreeSet::new());
            let (mut low, mut seen) = (100, 100);
            for (step, offset, span) in steps {
                match step {
                    0 => {
                        overtaken.skip(seen, seen + span);
                        set.extend((seen..seen + span).filter(|number| *number >= low && *number < low + NUMBER_WINDOW));
                        seen += span + 1;
                    }
                    1 => {
                        overtaken.come(offset);
                        set.remove(&offset);
                    }
                    _ => {
                        low = low.max((low + offset % 700).min(seen));
                        overtaken.raise(low);
                        set = set.split_off(&low);
                    }
                }
                prop_assert_eq!(overtaken.count(), set.len() as u64);
            }
        }
    }
}
