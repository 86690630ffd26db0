//! Packet numbers, of 64 bits in memory and 32 on the wire, and the record of those that have arrived.

use alloc::vec::Vec;

/// How many packet numbers a sender may have unanswered, and a receiver records. 4096 frames of 1,500 B cover 10 Gbit/s × 4.9 ms.
pub(crate) const NUMBER_WINDOW: u64 = 4096;

/// First packet number and message number: shortly before the 32 bits on the wire wrap, so that every run passes the wrap, not only those of four
/// billion frames.
pub(crate) const FIRST_NUMBER: u64 = (1 << 32) - 1000;

const WORDS: usize = (NUMBER_WINDOW / 64) as usize;

/// The number with these low 32 bits that is nearest to `near`, which is `FIRST_NUMBER` or more: so the result is never below 0.
#[inline]
pub(crate) fn expand(low: u32, near: u64) -> u64 {
    debug_assert!(near >= FIRST_NUMBER);
    let delta = low.wrapping_sub(near as u32) as i32;
    near.wrapping_add_signed(delta.into())
}

/// Classification of a number by the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    Duplicate,
    Beyond,
}

/// Record of the numbers that have arrived.
///
/// Invariant: every number below `base` has arrived or is no longer awaited; bit n mod 4096 stands for number n in `base..base + 4096`, and is clear
/// from `next` on.
#[derive(Debug)]
pub(crate) struct Arrivals {
    base: u64,
    /// Largest number that arrived, plus one.
    next: u64,
    /// Empty until something arrives out of order: most peers are idle, and most of the others are in order.
    bits: Vec<u64>,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        Self {
            base: FIRST_NUMBER,
            next: FIRST_NUMBER,
            bits: Vec::new(),
        }
    }

    /// The cumulative acknowledgement: the lowest number that is still awaited.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn has_gap(&self) -> bool {
        self.base != self.next
    }

    #[inline]
    pub(crate) fn classify(&self, number: u64) -> Arrival {
        if number < self.base || (number < self.next && self.bit(number)) {
            Arrival::Duplicate
        } else if number >= self.base + NUMBER_WINDOW {
            Arrival::Beyond
        } else {
            Arrival::New
        }
    }

    /// Marks `number`, which is new, as arrived. `true`: it was the lowest awaited, and no later one had arrived.
    #[inline]
    pub(crate) fn mark(&mut self, number: u64) -> bool {
        if number == self.base && self.next == self.base {
            self.base += 1;
            self.next = self.base;
            return true;
        }
        self.mark_out_of_order(number);
        false
    }

    #[inline(never)]
    fn mark_out_of_order(&mut self, number: u64) {
        if self.bits.is_empty() {
            self.bits.resize(WORDS, 0);
        }
        self.bits[Self::word(number)] |= 1 << (number % 64);
        self.next = self.next.max(number + 1);
        self.advance();
    }

    /// Stops waiting for numbers below `floor`, for which the sender no longer awaits an answer.
    #[inline]
    pub(crate) fn raise_floor(&mut self, floor: u64) {
        if floor > self.base {
            self.skip_to(floor);
        }
    }

    #[cold]
    fn skip_to(&mut self, floor: u64) {
        while self.base < floor.min(self.next) {
            self.clear(self.base);
            self.base += 1;
        }
        if floor > self.next {
            self.base = floor;
            self.next = floor;
        }
        self.advance();
    }

    /// Writes into `bitmap` which numbers from `base` on have arrived; returns how many bytes were used.
    pub(crate) fn bitmap(&self, bitmap: &mut [u8]) -> usize {
        let span = (self.next - self.base).min(bitmap.len() as u64 * 8);
        let bytes = span.div_ceil(8) as usize;
        bitmap[..bytes].fill(0);
        for offset in 0..span {
            if self.bit(self.base + offset) {
                bitmap[(offset / 8) as usize] |= 1 << (offset % 8);
            }
        }
        bytes
    }

    fn advance(&mut self) {
        while self.base < self.next && self.bit(self.base) {
            self.clear(self.base);
            self.base += 1;
        }
    }

    fn bit(&self, number: u64) -> bool {
        let word = self.bits.get(Self::word(number));
        word.is_some_and(|word| word & 1 << (number % 64) != 0)
    }

    fn clear(&mut self, number: u64) {
        if let Some(word) = self.bits.get_mut(Self::word(number)) {
            *word &= !(1 << (number % 64));
        }
    }

    fn word(number: u64) -> usize {
        (number % NUMBER_WINDOW / 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    /// 32 bits are enough across a wrap, in both directions.
    #[test]
    fn numbers_expand_across_the_wrap() {
        let near = (7 << 32) + 3;
        assert_eq!(expand(5, near), (7 << 32) + 5);
        assert_eq!(expand(u32::MAX, near), (7 << 32) - 1);
        assert_eq!(expand(2, (7 << 32) - 1), (7 << 32) + 2);
        let farthest = FIRST_NUMBER - (1 << 31);
        assert_eq!(expand(farthest as u32, FIRST_NUMBER), farthest);
    }

    proptest! {
        /// The record agrees with a plain set of numbers.
        #[test]
        fn arrivals_agree_with_a_set(steps in proptest::collection::vec((0u64..5000, any::<bool>()), 1..300)) {
            let mut arrivals = Arrivals::new();
            let (mut set, mut base) = (BTreeSet::new(), FIRST_NUMBER);
            for (step, floor) in steps {
                let number = FIRST_NUMBER + step;
                if floor {
                    let floor = FIRST_NUMBER + step / 4;
                    arrivals.raise_floor(floor);
                    base = base.max(floor);
                    set.retain(|&n| n >= base);
                } else {
                    let expected = if number < base || set.contains(&number) {
                        Arrival::Duplicate
                    } else if number >= base + NUMBER_WINDOW {
                        Arrival::Beyond
                    } else {
                        Arrival::New
                    };
                    prop_assert_eq!(arrivals.classify(number), expected);
                    if expected == Arrival::New {
                        arrivals.mark(number);
                        set.insert(number);
                    }
                }
                while set.remove(&base) {
                    base += 1;
                }
                prop_assert_eq!(arrivals.base(), base);
                let mut bitmap = [0; 512];
                let bytes = arrivals.bitmap(&mut bitmap);
                for offset in 0..bytes as u64 * 8 {
                    let bit = bitmap[(offset / 8) as usize] & 1 << (offset % 8) != 0;
                    prop_assert_eq!(bit, set.contains(&(base + offset)));
                }
            }
        }
    }
}
