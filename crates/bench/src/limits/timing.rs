//! Times of a limit behind its warm-up: connecting, first page faults and cold caches are not measured, as of ours.

use std::time::{Duration, Instant};

use crate::machine;
use crate::ops::Sample;
use crate::stats::RoundTrips;

/// Repetitions before anything is measured, but no more than are measured: as many as of ours (`exchange`).
const WARM_UP: u64 = 200;

/// Repetitions of the warm-up for so many that are measured.
pub(crate) fn warm_up(iterations: u64) -> u64 {
    WARM_UP.min(iterations)
}

/// Repetitions of both together.
pub(crate) fn in_all(iterations: u64) -> u64 {
    warm_up(iterations) + iterations
}

/// Wall-clock and processor time since then.
#[derive(Debug)]
pub(crate) struct Clock {
    cpu: Duration,
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            cpu: machine::process_cpu(),
            start: Instant::now(),
        }
    }

    pub(crate) fn stop(&self) -> Sample {
        Sample::new(self.start.elapsed(), machine::process_cpu() - self.cpu)
    }
}

/// Round trips of the side that asks: first those of the warm-up, then the measured ones.
///
/// A trip lasts from the end of [`Timing::begins`] to the beginning of [`Timing::ends`]; what these two do belongs to no trip.
#[derive(Debug)]
pub(crate) struct Timing {
    iterations: u64,
    limit: Option<Duration>,
    is_warm: bool,
    /// Trips of the warm-up, or of the measurement, that are still to be made.
    left: u64,
    trips: RoundTrips,
    clock: Clock,
    /// The beginning of the last trip, and its end.
    began: Instant,
    ended: Instant,
}

impl Timing {
    /// Of so many measured trips. No trip of the warm-up or of the measurement begins after `limit`.
    pub(crate) fn new(iterations: u64, limit: Option<Duration>) -> Self {
        let clock = Clock::start();
        Self {
            iterations,
            limit,
            is_warm: false,
            left: warm_up(iterations),
            trips: RoundTrips::default(),
            began: clock.start,
            ended: clock.start,
            clock,
        }
    }

    /// Whether there is to be another trip, which then begins.
    #[inline]
    pub(crate) fn begins(&mut self) -> bool {
        let is_late = (self.limit).is_some_and(|limit| self.ended - self.clock.start > limit);
        if self.left == 0 || is_late {
            if self.is_warm {
                return false;
            }
            (self.is_warm, self.left) = (true, self.iterations);
            self.clock = Clock::start();
        }
        self.began = Instant::now();
        self.left > 0
    }

    /// When the last trip began.
    #[inline]
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// The trip has ended.
    #[inline]
    pub(crate) fn ends(&mut self) {
        self.ended = Instant::now();
        self.left -= 1;
        if self.is_warm {
            let trip = self.ended - self.began;
            self.trips.record(trip.as_nanos() as u64);
        }
    }

    /// What was measured.
    pub(crate) fn sample(&self) -> Sample {
        let made = self.trips.count();
        Sample {
            half_rtt_us: Some(self.trips.half()),
            iterations: (made < self.iterations).then_some(made),
            ..self.clock.stop()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trips of the warm-up are made, and do not count.
    #[test]
    fn warm_ups_do_not_count() {
        for iterations in [0, 5, 1000] {
            let (mut timing, mut made) = (Timing::new(iterations, None), 0);
            while timing.begins() {
                made += 1;
                timing.ends();
            }
            assert_eq!(made, in_all(iterations));
            assert_eq!(timing.trips.count(), iterations);
            assert_eq!(timing.sample().iterations, None);
        }
        assert_eq!((in_all(5), in_all(1000)), (10, 1200));
    }

    /// A limit ends both the warm-up and the measurement; how many trips were made is then told.
    #[test]
    fn limits_end_both() {
        let (mut timing, mut made) = (Timing::new(u64::MAX, Some(Duration::ZERO)), 0);
        while timing.begins() {
            made += 1;
            std::thread::sleep(Duration::from_micros(1));
            timing.ends();
        }
        assert_eq!((made, timing.sample().iterations), (2, Some(1)));
    }
}
