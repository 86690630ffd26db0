//! Whether the rows should be shared anew, by the laps that workers do.
//!
//! Owned by the judge's driver. A division costs what moving and preparing rows costs; so it is made only where the slowest worker's laps take much
//! longer than they would with fair shares, and not again before that has paid.

use std::time::{Duration, Instant};

/// Laps are counted over this time, twice: a process that was preempted for once is not taken for slow.
const WINDOW: Duration = Duration::from_secs(2);
/// ... and over so many laps of the slowest worker.
const LAPS: f64 = 3.0;
/// Longest lap over the one with fair shares at which rows are shared anew.
const UNFAIR: f64 = 1.3;
/// Time before the first new division, and between two: what one costs must be small against it. Of a run nothing is known but that it may take as long
/// again as it has taken.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    /// Laps of each worker then.
    laps: Vec<f64>,
    /// The slowest worker of the window before, if shares were unfair then.
    suspect: Option<usize>,
    /// When rows were shared last.
    rested: Instant,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            laps: Vec::new(),
            suspect: None,
            rested: now,
        }
    }

    /// Takes rows and laps of each worker (0 rows: it takes no part). Returns speeds, in rows a second, when the rows should be shared by them.
    pub(super) fn observe(&mut self, now: Instant, workers: &[(usize, f64)]) -> Option<Vec<f64>> {
        let laps: Vec<f64> = workers.iter().map(|worker| worker.1).collect();
        if laps.len() != self.laps.len() {
            (self.since, self.laps) = (now, laps);
            return None;
        }
        let seconds = (now - self.since).as_secs_f64();
        let done: Vec<f64> = laps
            .iter()
            .zip(&self.laps)
            .map(|(now, then)| now - then)
            .collect();
        let team = || (0..workers.len()).filter(|worker| workers[*worker].0 > 0);
        let slowest = team().min_by(|one, other| done[*one].total_cmp(&done[*other]))?;
        let fewest = done[slowest];
        if now - self.since < WINDOW || fewest < LAPS {
            return None;
        }
        let speeds: Vec<f64> = (0..laps.len())
            .map(|worker| workers[worker].0 as f64 * done[worker] / seconds)
            .collect();
        (self.since, self.laps) = (now, laps);
        let rows: usize = team().map(|worker| workers[worker].0).sum();
        let speed: f64 = team().map(|worker| speeds[worker]).sum();
        let (longest, fair) = (seconds / fewest, rows as f64 / speed);
        if longest < UNFAIR * fair || now - self.rested < PAUSE {
            self.suspect = None;
            return None;
        }
        if self.suspect.replace(slowest) != Some(slowest) {
            return None;
        }
        self.suspect = None;
        self.rested = now;
        self.laps.clear();
        Some(speeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(
        pace: &mut Pace,
        begin: Instant,
        seconds: f64,
        workers: &[(usize, f64)],
    ) -> Option<Vec<f64>> {
        pace.observe(begin + Duration::from_secs_f64(seconds), workers)
    }

    /// Equal workers keep their rows; one at half the speed gives some away, once the laps are certain, and not again soon.
    #[test]
    fn slow_workers_are_found() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        for second in 0..9 {
            let laps = 10.0 * f64::from(second);
            let equal = [(100, laps), (100, laps + 1.0), (0, 0.0)];
            assert_eq!(at(&mut pace, begin, f64::from(second), &equal), None);
        }
        let mut pace = Pace::new(begin);
        assert_eq!(at(&mut pace, begin, 0.0, &[(100, 0.0), (100, 0.0)]), None);
        assert_eq!(
            at(&mut pace, begin, 5.5, &[(100, 110.0), (100, 2.0)]),
            None,
            "too few laps"
        );
        let slow = [(100, 160.0), (100, 40.0)];
        assert_eq!(at(&mut pace, begin, 8.0, &slow), None, "too soon");
        let slow = [(100, 200.0), (100, 50.0)];
        assert_eq!(at(&mut pace, begin, 10.0, &slow), None, "not yet certain");
        let speeds = at(&mut pace, begin, 12.0, &[(100, 240.0), (100, 60.0)]).unwrap();
        assert_eq!(speeds, [2000.0, 500.0]);
        assert_eq!(
            at(&mut pace, begin, 13.0, &[(160, 252.0), (40, 72.0)]),
            None
        );
        assert_eq!(
            at(&mut pace, begin, 15.5, &[(160, 282.0), (40, 102.0)]),
            None,
            "fair now"
        );
    }

    /// One that was slow for one window only keeps its rows, also if another one is slow in the next.
    #[test]
    fn disturbances_are_no_slowness() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let mut laps = [0.0; 2];
        assert_eq!(
            at(&mut pace, begin, 0.0, &laps.map(|laps| (100, laps))),
            None
        );
        for turn in 1..20 {
            for (worker, laps) in laps.iter_mut().enumerate() {
                *laps += if turn % 2 == worker { 10.0 } else { 50.0 };
            }
            let told = laps.map(|laps| (100, laps));
            assert_eq!(at(&mut pace, begin, 2.0 * turn as f64, &told), None);
        }
    }
}
