//! The only source of randomness in a simulation: a seed, and generators derived from it.
//!
//! Each user of randomness (paths, payloads, engines) has a generator of its own, so that a change to one does not change the others' choices.

use std::ops::Range;

/// The environment variable that replaces every test's seed.
pub const SEED_VARIABLE: &str = "TSUMUJI_SEED";

/// The seed of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// The value of `TSUMUJI_SEED` (decimal, or hexadecimal after `0x`), else `default`.
    ///
    /// # Panics
    /// If the variable holds no number.
    pub fn from_env_or(default: u64) -> Self {
        Self(Self::from_env().unwrap_or(default))
    }

    /// `count` seeds that begin at `first`; only the one in `TSUMUJI_SEED` if that is set.
    ///
    /// # Panics
    /// If the variable holds no number.
    pub fn several(first: u64, count: u64) -> Vec<Self> {
        match Self::from_env() {
            Some(seed) => vec![Self(seed)],
            None => (first..first + count).map(Self).collect(),
        }
    }

    fn from_env() -> Option<u64> {
        let text = std::env::var(SEED_VARIABLE).ok()?;
        let seed = parse_seed(&text);
        assert!(
            seed.is_some(),
            "{SEED_VARIABLE}={text:?} is no number; give a decimal one, or a hexadecimal one after 0x"
        );
        seed
    }

    /// A generator for one purpose; another `purpose` gives unrelated choices.
    pub fn rng(self, purpose: u64) -> Rng {
        Rng::new(mix(self.0 ^ mix(purpose)))
    }
}

fn parse_seed(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// SplitMix64's step and output in one: a bijection that spreads every input bit.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// A generator: fast, good enough for simulation, not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(fastrand::Rng);

impl Rng {
    /// The same `seed` always gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }

    /// A number from `range`; its start if it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            range.start
        } else {
            self.0.u64(range)
        }
    }

    /// An index below `count`; 0 if that is 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.within(0..count as u64) as usize
    }

    /// True with a probability of `per_million` in a million. Takes no random bits when the answer is certain.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.within(0..1_000_000) < u64::from(per_million)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges are kept and reached at both ends; an empty one is harmless.
    #[test]
    fn ranges_are_kept() {
        let mut rng = Seed(1).rng(0);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            seen[rng.within(10..15) as usize - 10] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(rng.within(7..7), 7);
        assert_eq!(rng.below(0), 0);
    }

    /// `chance` is true as often as stated.
    #[test]
    fn chance_is_as_stated() {
        let mut rng = Seed(2).rng(0);
        let hits = (0..100_000).filter(|_| rng.chance(300_000)).count();
        assert!((29_000..31_000).contains(&hits), "{hits} of 100000 at 30 %");
        assert!(!rng.chance(0) && rng.chance(1_000_000));
    }

    /// Seeds are read in both notations, and purposes do not share choices.
    #[test]
    fn seeds_are_read_and_split() {
        assert_eq!(parse_seed(" 42 "), Some(42));
        assert_eq!(parse_seed("0xff"), Some(255));
        assert_eq!(parse_seed("seven"), None);
        assert_ne!(Seed(1).rng(1).bits(), Seed(1).rng(2).bits());
    }
}
