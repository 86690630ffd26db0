//! Laps: the stamp on every update tells in which pass its owner wrote it.

/// A pass of an owner over its elements. Counts from 1, wraps around past `u32::MAX`, and is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lap(u32);

impl Lap {
    /// An owner's first pass.
    pub const FIRST: Self = Self(1);

    /// `None` for 0, which stands for "never" where laps are stored.
    pub const fn new(lap: u32) -> Option<Self> {
        if lap == 0 { None } else { Some(Self(lap)) }
    }

    /// The number, as it is sent.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The pass after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.wrapping_add(1) {
            0 => Self(1),
            lap => Self(lap),
        }
    }

    /// Serial-number order: right as long as the two are less than 2³¹ passes apart.
    pub const fn is_newer_than(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) > 0
    }

    /// Passes from `earlier` to this one; 0 if `earlier` is the newer one.
    pub const fn since(self, earlier: Self) -> u32 {
        if self.is_newer_than(earlier) {
            self.0.wrapping_sub(earlier.0)
        } else {
            0
        }
    }
}

impl std::fmt::Display for Lap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "lap {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Order survives the wrap, and 0 is never produced.
    #[test]
    fn order_survives_the_wrap() {
        let last = Lap::new(u32::MAX).unwrap();
        assert_eq!(last.next(), Lap::FIRST);
        assert!(last.next().is_newer_than(last));
        assert!(!last.is_newer_than(last.next()));
        assert_eq!(Lap::FIRST.since(last), 2);
        assert_eq!(last.since(Lap::FIRST), 0);
        assert_eq!(Lap::new(0), None);
    }
}
