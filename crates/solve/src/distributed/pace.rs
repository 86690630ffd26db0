//! Whether the rows should be shared anew, by the laps that workers do.
//!
//! Owned by the judge's driver. A division costs what moving and preparing rows costs; so it is made only where the slowest worker's laps take much
//! longer than they would with fair shares, and not again before that has paid.

use std::time::{Duration, Instant};

/// Laps are counted over this time, twice: a process that was preempted for once is not taken for slow.
const WINDOW: Duration = Duration::from_secs(2);
/// ... and over so many laps of the slowest worker.
const LAPS: f64 = 3.0;
/// A lap over what it would be with fair shares at which rows are shared anew.
const UNFAIR: f64 = 1.3;
/// Least time before the first new division: of a run nothing is known but that it may take as long again as it has taken. Doubled with each, so that
/// costs which do not shrink with rows are not met by ever fewer rows.
const PAUSE: Duration = Duration::from_secs(10);
/// It is so many times what giving out the rows took last, at least.
const PAUSE_COSTS: u32 = 2;

/// What a worker has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Worked {
    /// 0: it takes no part.
    pub(super) rows: usize,
    pub(super) laps: f64,
    /// Seconds in which it computed; `None`: it never waits for others.
    pub(super) busy: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    /// What was done then.
    then: Vec<Worked>,
    /// The slowest worker of the window before, if shares were unfair then.
    suspect: Option<usize>,
    /// When rows began to be given out, until workers iterate.
    giving: Option<Instant>,
    /// When rows had been given out.
    rested: Instant,
    least: Duration,
    pause: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            then: Vec::new(),
            suspect: None,
            giving: None,
            rested: now,
            least: PAUSE,
            pause: PAUSE,
        }
    }

    /// Rows are being given out.
    pub(super) fn rest(&mut self, now: Instant) {
        let began = *self.giving.get_or_insert(now);
        self.then.clear();
        self.suspect = None;
        self.rested = now;
        self.pause = self.least.max((now - began) * PAUSE_COSTS);
    }

    /// Takes what workers have done while they iterate. Returns speeds, in rows a second, when the rows should be shared by them.
    pub(super) fn observe(&mut self, now: Instant, workers: &[Worked]) -> Option<Vec<f64>> {
        self.giving = None;
        if workers.len() != self.then.len() {
            (self.since, self.then) = (now, workers.to_vec());
            return None;
        }
        let seconds = (now - self.since).as_secs_f64();
        let team = || (0..workers.len()).filter(|worker| workers[*worker].rows > 0);
        let done = |worker: usize| workers[worker].laps - self.then[worker].laps;
        let fewest = team().map(done).fold(f64::INFINITY, f64::min);
        if now - self.since < WINDOW || fewest < LAPS {
            return None;
        }
        // Seconds of computing that a lap takes each.
        let cost = |worker: usize| {
            let whole = seconds / done(worker);
            match (workers[worker].busy, self.then[worker].busy) {
                // One that only waits is not infinitely fast.
                (Some(busy), Some(then)) => ((busy - then) / done(worker)).max(whole / 100.0),
                _ => whole,
            }
        };
        let costs: Vec<f64> = (0..workers.len()).map(cost).collect();
        let slowest = team().max_by(|one, other| costs[*one].total_cmp(&costs[*other]))?;
        let speed = |worker: usize| workers[worker].rows as f64 / costs[worker];
        let speeds: Vec<f64> = (0..workers.len()).map(speed).collect();
        let rows: usize = team().map(|worker| workers[worker].rows).sum();
        let fair = rows as f64 / team().map(|worker| speeds[worker]).sum::<f64>();
        // What is not computing stays as it is.
        let lap = seconds / fewest;
        let hoped = lap - costs[slowest] + fair;
        (self.since, self.then) = (now, workers.to_vec());
        if lap < UNFAIR * hoped || now - self.rested < self.pause {
            self.suspect = None;
            return None;
        }
        if self.suspect.replace(slowest) != Some(slowest) {
            return None;
        }
        self.suspect = None;
        self.then.clear();
        self.rested = now;
        self.least *= 2;
        self.pause = self.least;
        Some(speeds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and laps, of workers that never wait.
    fn at(
        pace: &mut Pace,
        begin: Instant,
        seconds: f64,
        workers: &[(usize, f64)],
    ) -> Option<Vec<f64>> {
        let worked: Vec<Worked> = workers
            .iter()
            .map(|&(rows, laps)| Worked {
                rows,
                laps,
                busy: None,
            })
            .collect();
        pace.observe(begin + Duration::from_secs_f64(seconds), &worked)
    }

    /// Equal workers keep their rows; one at a quarter of the speed gives some away, once that is certain, and not again soon.
    #[test]
    fn slow_workers_are_found() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        for second in 0..30 {
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
        // Slow again: the pause is twice as long by now.
        let found = (8..40).find(|period| {
            let (seconds, laps) = (2.0 * f64::from(*period), f64::from(*period) * 40.0);
            at(&mut pace, begin, seconds, &[(160, laps), (40, laps / 4.0)]).is_some()
        });
        assert_eq!(found, Some(17), "a window after 32 s");
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
        for period in 1..20 {
            for (worker, laps) in laps.iter_mut().enumerate() {
                *laps += if period % 2 == worker { 10.0 } else { 50.0 };
            }
            let told = laps.map(|laps| (100, laps));
            assert_eq!(at(&mut pace, begin, 2.0 * period as f64, &told), None);
        }
    }

    /// Of workers that do as many laps the one is slow that computes all the time while the others wait; where all wait for messages nothing is gained.
    #[test]
    fn those_that_wait_are_fast() {
        let begin = Instant::now();
        let run = |busy: [f64; 2]| {
            let mut pace = Pace::new(begin);
            (0..12).find_map(|period| {
                let seconds = 2.0 * f64::from(period);
                let worked = busy.map(|part| Worked {
                    rows: 100,
                    laps: 10.0 * f64::from(period),
                    busy: Some(part * seconds),
                });
                pace.observe(begin + Duration::from_secs_f64(seconds), &worked)
            })
        };
        let speeds = run([1.0, 0.25]).unwrap();
        assert!((speeds[1] / speeds[0] - 4.0).abs() < 1e-9, "{speeds:?}");
        assert_eq!(run([0.08, 0.02]), None, "a lap is nearly all waiting");
        assert_eq!(run([0.9, 0.8]), None);
    }

    /// Where giving out rows takes long, it is not done again soon.
    #[test]
    fn costs_are_paid_first() {
        let begin = Instant::now();
        let moment = |seconds: u32| begin + Duration::from_secs(seconds.into());
        let mut pace = Pace::new(begin);
        (0..=30).for_each(|second| pace.rest(moment(second)));
        let found = (15..120).find(|period| {
            let (seconds, laps) = (2.0 * f64::from(*period), f64::from(*period) * 40.0);
            at(&mut pace, begin, seconds, &[(100, laps), (100, laps / 4.0)]).is_some()
        });
        assert_eq!(found, Some(46), "a window after 30 s and 60 s");
    }
}
