//! When an asynchronous estimate counts: after a round, in which every other worker made progress.
//!
//! A worker whose neighbours have not moved finds no residual in its own rows: with LU at once, with sweeps after a few laps. Its estimates alone
//! would report convergence while values are still under way. So the norms are added up lap by lap until a newer lap of every other worker has been
//! heard of; their sum is the estimate. Where laps are of equal length that is every lap, though some of many workers are always a little later than this
//! one: a round may also end within the next lap.

use super::message::Estimate;

#[derive(Debug)]
pub(super) struct Round {
    /// Lap heard of from each other worker when the round began.
    since: Vec<u32>,
    laps: u32,
    /// Sum of the norms of this round's laps.
    sum: f64,
    /// Laps and square of the sum of the last round, and the square of the one before.
    last_laps: u32,
    last_sq: f64,
    before_sq: f64,
}

impl Round {
    /// `others`: how many there are.
    pub(super) fn new(others: usize) -> Self {
        Self {
            since: vec![0; others],
            laps: 0,
            sum: 0.0,
            last_laps: 0,
            last_sq: f64::INFINITY,
            before_sq: f64::INFINITY,
        }
    }

    /// Records a lap with Σ r² = `measured_sq`. `heard`: newest lap of each other worker, 0: none.
    pub(super) fn lap(&mut self, measured_sq: f64, heard: impl Iterator<Item = u32> + Clone) {
        self.laps += 1;
        self.sum += measured_sq.sqrt();
        self.try_close(heard);
    }

    /// Ends the round, with the laps that are recorded, if all have been heard of by now.
    pub(super) fn try_close(&mut self, heard: impl Iterator<Item = u32> + Clone) {
        let mut both = self.since.iter().zip(heard.clone());
        if self.laps > 0 && both.all(|(since, heard)| *since != heard) {
            self.before_sq = self.last_sq;
            self.last_sq = self.sum * self.sum;
            self.last_laps = self.laps;
            (self.laps, self.sum) = (0, 0.0);
            self.since.clear();
            self.since.extend(heard);
        }
    }

    /// The estimate to report; `walk`: the estimate of the rows alone.
    pub(super) fn estimate(&self, walk: Estimate) -> Estimate {
        if self.last_laps <= 1 && self.laps == 0 && (self.last_laps == 1 || self.since.is_empty()) {
            return walk;
        }
        let measured_sq = larger(larger(self.last_sq, self.sum * self.sum), walk.measured_sq);
        let ratio = self.last_sq / self.before_sq;
        // Before the second round nothing is expected: ∞ / ∞, and x / ∞ at the first end of a round.
        let known = self.before_sq.is_finite() && !ratio.is_nan();
        Estimate {
            measured_sq,
            expected_sq: measured_sq * if known { ratio.min(1.0) } else { 1.0 },
        }
    }
}

/// The larger of two numbers, or NaN if one of them is: `f64::max` would drop that.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(measured_sq: f64) -> Estimate {
        Estimate {
            measured_sq,
            expected_sq: measured_sq / 4.0,
        }
    }

    /// Where all workers' laps take equally long, the estimate of the rows alone is reported.
    #[test]
    fn equal_laps_are_taken_as_they_are() {
        let mut round = Round::new(2);
        for lap in 1..5 {
            round.lap(1.0, [lap, lap + 3].into_iter());
            assert_eq!(round.estimate(walk(1.0)), walk(1.0));
        }
        assert_eq!(
            Round::new(0).estimate(walk(2.0)),
            walk(2.0),
            "alone there is nobody to wait for"
        );
    }

    /// One whose laps end a little later than this one's delays no round by a lap; one that is not heard of does.
    #[test]
    fn late_news_ends_a_round_within_the_next_lap() {
        let mut round = Round::new(2);
        for lap in 1..5 {
            round.lap(1.0, [lap, lap - 1].into_iter());
            assert_ne!(round.estimate(walk(1.0)), walk(1.0));
            round.try_close([lap, lap - 1].into_iter());
            assert_ne!(round.estimate(walk(1.0)), walk(1.0));
            round.try_close([lap, lap].into_iter());
            assert_eq!(round.estimate(walk(1.0)), walk(1.0));
            // Nothing has been relaxed since.
            round.try_close([lap + 1, lap + 1].into_iter());
            assert_eq!(round.estimate(walk(1.0)), walk(1.0));
        }
    }

    /// Laps without news from one of the others make no estimate smaller, however small their residuals are.
    #[test]
    fn quiet_laps_are_not_convergence() {
        let mut round = Round::new(2);
        round.lap(4.0, [1, 0].into_iter());
        assert_eq!(
            round.estimate(walk(4.0)).measured_sq,
            f64::INFINITY,
            "one was never heard of"
        );
        round.lap(4.0, [1, 1].into_iter());
        assert_eq!(round.estimate(walk(4.0)).measured_sq, 16.0);
        for heard in 2..50 {
            round.lap(1e-30, [heard, 1].into_iter());
            let estimate = round.estimate(walk(1e-30));
            assert_eq!((estimate.measured_sq, estimate.expected_sq), (16.0, 16.0));
        }
        round.lap(1.0, [50, 2].into_iter());
        assert!((round.estimate(walk(1e-30)).measured_sq - 1.0).abs() < 1e-9);
        assert!(
            round.estimate(walk(1e-30)).expected_sq < 0.1,
            "a quarter in norm, once more"
        );
    }

    /// What is not a number stays so, wherever it comes from.
    #[test]
    fn nan_is_not_dropped() {
        for (lap, walked) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
            let mut round = Round::new(1);
            round.lap(1.0, [1].into_iter());
            round.lap(lap, [1].into_iter());
            let estimate = round.estimate(walk(walked));
            assert!(estimate.measured_sq.is_nan(), "{estimate:?}");
            assert!(estimate.expected_sq.is_nan(), "{estimate:?}");
        }
    }
}
