//! A member's progress through its range, lap after lap, and the guard of its values.
//!
//! Invariant: after `start` and after each step the range has finite values only.

use std::ops::Range;

use super::FixedPoint;

/// Calls of `update` for fewer elements than these cost more than they gain.
const LEAST_OF_A_PART: usize = 64;

/// The element that became NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotANumber(pub(super) usize);

#[derive(Debug)]
pub(super) struct Laps {
    own: Range<usize>,
    part: usize,
    /// The next element.
    at: usize,
    /// Laps since the beginning of the run, and of the epoch.
    pub(super) total: u64,
    pub(super) in_epoch: u64,
    /// Whether an element has changed in this lap.
    changed: bool,
    /// Values before a step; kept to save allocations.
    before: Vec<f64>,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stepped {
    /// What was renewed.
    pub(super) range: Range<usize>,
    /// Whether that changed anything.
    pub(super) changed: bool,
    /// The lap is complete, and whether it has changed anything.
    pub(super) lap: Option<bool>,
}

impl Laps {
    pub(super) fn new(own: Range<usize>, parts: usize) -> Self {
        Self {
            part: own.len().div_ceil(parts).max(LEAST_OF_A_PART),
            at: own.start,
            own,
            total: 0,
            in_epoch: 0,
            changed: false,
            before: Vec::new(),
        }
    }

    /// Writes the first values.
    pub(super) fn start<P: FixedPoint + ?Sized>(
        &self,
        problem: &P,
        x: &mut [f64],
    ) -> Result<(), NotANumber> {
        if !self.own.is_empty() {
            problem.start(self.own.clone(), x);
        }
        keep_finite(x, self.own.clone())
    }

    /// Begins a lap anew.
    pub(super) fn begin_epoch(&mut self) {
        (self.at, self.in_epoch, self.changed) = (self.own.start, 0, false);
    }

    pub(super) fn is_at_start(&self) -> bool {
        self.at == self.own.start
    }

    /// Renews the next part of the range, which is not empty.
    pub(super) fn step<P: FixedPoint + ?Sized>(
        &mut self,
        problem: &mut P,
        x: &mut [f64],
    ) -> Result<Stepped, NotANumber> {
        let range = self.at..self.own.end.min(self.at + self.part);
        self.before.clear();
        self.before.extend_from_slice(&x[range.clone()]);
        problem.update(range.clone(), x);
        keep_finite(x, range.clone())?;
        let mut pairs = self.before.iter().zip(&x[range.clone()]);
        let changed = pairs.any(|(before, now)| before.to_bits() != now.to_bits());
        self.changed |= changed;
        self.at = range.end;
        let mut lap = None;
        if self.at == self.own.end {
            self.at = self.own.start;
            self.total += 1;
            self.in_epoch += 1;
            lap = Some(std::mem::take(&mut self.changed));
        }
        Ok(Stepped {
            range,
            changed,
            lap,
        })
    }
}

/// Replaces infinities in the range by finite numbers.
fn keep_finite(x: &mut [f64], range: Range<usize>) -> Result<(), NotANumber> {
    let start = range.start;
    for (index, value) in x[range].iter_mut().enumerate() {
        if value.is_nan() {
            return Err(NotANumber(start + index));
        }
        *value = value.clamp(f64::MIN, f64::MAX);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds 1 below a limit; beyond there is `last`.
    struct Counting {
        last: f64,
    }

    impl FixedPoint for Counting {
        fn len(&self) -> usize {
            300
        }
        fn start(&self, range: Range<usize>, x: &mut [f64]) {
            x[range].fill(f64::NEG_INFINITY);
        }
        fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
            x[range].fill(self.last);
        }
        fn certificate(&self, _: Range<usize>, _: &[f64]) -> f64 {
            f64::NAN
        }
    }

    /// Parts follow one another; a lap knows whether it changed anything; infinities become finite, and NaN is found.
    #[test]
    fn laps_by_parts() {
        let mut x = vec![0.0; 300];
        let mut laps = Laps::new(10..300, 4);
        let mut problem = Counting {
            last: f64::INFINITY,
        };
        assert_eq!(laps.start(&problem, &mut x), Ok(()));
        assert_eq!((x[9], x[10], x[299]), (0.0, f64::MIN, f64::MIN));
        for changes in [true, false] {
            let mut at = 10;
            loop {
                let stepped = laps.step(&mut problem, &mut x).unwrap();
                assert_eq!(stepped.range.start, at);
                at = stepped.range.end;
                if let Some(changed) = stepped.lap {
                    assert_eq!((at, changed), (300, changes));
                    break;
                }
            }
        }
        assert_eq!((laps.total, x[10]), (2, f64::MAX));
        problem.last = f64::NAN;
        assert_eq!(laps.step(&mut problem, &mut x), Err(NotANumber(10)));
    }
}
