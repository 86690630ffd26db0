//! A worker's progress through its rows, lap after lap, and its estimate of the residual.
//!
//! Each row's residual is computed just before the row is renewed; the sum of the latest ones is the local estimate. It is kept by parts of a lap, so
//! that it can be reported several times a lap where laps are long.

use super::message::Estimate;
use std::ops::Range;

/// Most parts of a lap; after each the estimate is renewed. The judge needs two low reports of each worker: with 16 parts that is an eighth of a lap
/// too much, with 4 it is half a lap.
const PARTS: usize = 16;
/// Parts are multiples of this many rows, or of the next multiple of a frame: whole groups of the kernels, and no frame for a handful of elements.
const PART_ROWS: usize = 16;

#[derive(Debug)]
pub(super) struct Walk {
    own: Range<usize>,
    part_rows: usize,
    /// The next row.
    at: usize,
    laps: u64,
    /// Laps that must be done before there is an estimate, less one.
    unknown_laps: u64,
    /// Σ r² of the current part.
    sum: f64,
    /// Σ r² of each part when last completed, and one lap earlier.
    parts: [f64; PARTS],
    before: [f64; PARTS],
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reached {
    /// The estimate is new (and covers all rows).
    pub(super) estimate: bool,
    /// A lap is complete.
    pub(super) lap: bool,
}

impl Walk {
    /// `own` is not empty. `frame`: rows that leave in one frame, of which parts hold a whole number.
    pub(super) fn new(own: Range<usize>, frame: usize) -> Self {
        Self {
            at: own.start,
            part_rows: part_rows(own.len(), frame),
            own,
            laps: 0,
            unknown_laps: 0,
            sum: 0.0,
            parts: [0.0; PARTS],
            before: [0.0; PARTS],
        }
    }

    /// The next rows, at most `count`, never across the end of a part.
    pub(super) fn next(&self, count: usize) -> Range<usize> {
        self.at..(self.at + count.max(1)).min(self.part_end())
    }

    /// All own rows at once; only for steps that always take all of them.
    pub(super) fn whole(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Records that `rows`, as given by `next` or `whole`, were renewed, with Σ r² = `squares`.
    pub(super) fn advance(&mut self, rows: &Range<usize>, squares: f64) -> Reached {
        if rows.len() == self.own.len() {
            self.before = self.parts;
            self.parts = [0.0; PARTS];
            self.parts[0] = squares;
            self.laps += 1;
            return Reached {
                estimate: self.is_known(),
                lap: true,
            };
        }
        let part = self.part();
        let end = self.part_end();
        self.sum += squares;
        self.at = rows.end;
        if self.at < end {
            return Reached {
                estimate: false,
                lap: false,
            };
        }
        self.before[part] = self.parts[part];
        self.parts[part] = std::mem::take(&mut self.sum);
        let lap = self.at == self.own.end;
        if lap {
            self.at = self.own.start;
            self.laps += 1;
        }
        Reached {
            estimate: self.is_known(),
            lap,
        }
    }

    /// Whether a lap is about to begin.
    pub(super) fn is_at_start(&self) -> bool {
        self.at == self.own.start
    }

    /// Laps done.
    #[cfg(test)]
    pub(super) fn laps(&self) -> u64 {
        self.laps
    }

    /// Laps done, with the part of the current one.
    pub(super) fn progress(&self) -> f64 {
        self.laps as f64 + (self.at - self.own.start) as f64 / self.own.len() as f64
    }

    /// Whether there is an estimate: a whole lap was measured.
    pub(super) fn is_known(&self) -> bool {
        self.laps > self.unknown_laps
    }

    /// What was measured so far is void: x was moved since. There is an estimate again after the next whole lap.
    pub(super) fn forget(&mut self) {
        self.unknown_laps = self.laps + u64::from(!self.is_at_start());
        self.sum = 0.0;
        (self.parts, self.before) = ([0.0; PARTS], [0.0; PARTS]);
    }

    /// Infinite while there is none.
    pub(super) fn estimate(&self) -> Estimate {
        if !self.is_known() {
            return Estimate::UNBOUNDED;
        }
        let measured_sq: f64 = self.parts.iter().sum();
        // During the second lap `before` lacks parts, which makes the ratio larger: nothing is expected too early.
        let ratio = measured_sq / self.before.iter().sum::<f64>();
        let ratio = if ratio.is_nan() { 1.0 } else { ratio.min(1.0) };
        Estimate {
            measured_sq,
            expected_sq: measured_sq * ratio,
        }
    }

    fn part(&self) -> usize {
        (self.at - self.own.start) / self.part_rows
    }

    /// First row beyond the current part.
    fn part_end(&self) -> usize {
        (self.own.start + (self.part() + 1) * self.part_rows).min(self.own.end)
    }
}

/// Rows of each part of `rows` but the last, which may have fewer: a multiple of `frame`.
pub(super) fn part_rows(rows: usize, frame: usize) -> usize {
    let frame = frame.clamp(1, rows.max(1));
    let group = PART_ROWS.next_multiple_of(frame);
    rows.div_ceil(PARTS).next_multiple_of(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of any size visit every row once a lap, in order, and the estimate is the sum of the latest residuals.
    #[test]
    fn every_row_once_a_lap() {
        for rows in [1usize, 2, 5, 16, 17, 64, 101, 256, 257, 1000] {
            for step in [1, 2, 4, 30, 1000] {
                let own = 10..10 + rows;
                let mut walk = Walk::new(own.clone(), step);
                for lap in 1..4u64 {
                    let mut expected = own.start;
                    loop {
                        let next = walk.next(step);
                        assert_eq!(next.start, expected, "{rows} rows by {step}");
                        assert!(!next.is_empty() && next.end <= own.end);
                        expected = next.end;
                        let squares = next.len() as f64 * 0.25f64.powi(lap as i32);
                        let reached = walk.advance(&next, squares);
                        if reached.lap {
                            assert!(reached.estimate);
                            break;
                        }
                    }
                    assert_eq!(expected, own.end);
                    assert_eq!((walk.laps(), walk.is_at_start()), (lap, true));
                    let measured = rows as f64 * 0.25f64.powi(lap as i32);
                    assert!((walk.estimate().measured_sq - measured).abs() < 1e-9);
                }
                let Estimate {
                    measured_sq,
                    expected_sq,
                } = walk.estimate();
                assert!(
                    (expected_sq / measured_sq - 0.25).abs() < 1e-9,
                    "goes on shrinking as it did"
                );
            }
        }
    }

    /// Frames of one size fill every part but the last: none is cut at the end of a part.
    #[test]
    fn frames_fill_parts() {
        for (rows, frame) in [
            (1800, 112),
            (1800, 128),
            (7500, 120),
            (100, 1),
            (90_000, 181),
        ] {
            let part = part_rows(rows, frame);
            assert_eq!(part % frame, 0, "{rows} rows, frames of {frame}");
            assert!(part * PARTS >= rows);
        }
    }

    /// Before the first lap is complete there is no estimate, and no expected one.
    #[test]
    fn first_estimate_needs_a_lap() {
        let mut walk = Walk::new(0..8, 1);
        for _ in 0..3 {
            let next = walk.next(2);
            assert!(!walk.advance(&next, 1.0).estimate);
            assert_eq!(walk.estimate().expected_sq, f64::INFINITY);
        }
        assert!(walk.advance(&(6..8), 1.0).estimate);
        assert_eq!(
            walk.estimate(),
            Estimate {
                measured_sq: 4.0,
                expected_sq: 4.0
            }
        );
    }

    /// After x was moved there is no estimate before a whole lap, and laps are counted on.
    #[test]
    fn estimates_of_another_x_are_forgotten() {
        for begun in [0, 2, 6] {
            let mut walk = Walk::new(0..64, 1);
            let step = |walk: &mut Walk, squares: f64| {
                let next = walk.next(16);
                walk.advance(&next, squares)
            };
            for _ in 0..4 + begun / 2 {
                step(&mut walk, 1e300);
            }
            let laps = walk.laps();
            walk.forget();
            let mut steps = 0;
            while !step(&mut walk, 1.0).estimate {
                steps += 1;
                assert_eq!(walk.estimate(), Estimate::UNBOUNDED);
            }
            assert!((3..8).contains(&steps), "{steps}");
            assert!(walk.laps() > laps);
            assert_eq!(walk.estimate().measured_sq, 4.0);
        }
    }
}
