//! Statistics of many samples: latency distributions, medians, spreads.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest round trip that is recorded, in nanoseconds; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Round-trip times, recorded in nanoseconds.
#[derive(Debug, Clone)]
pub struct RoundTrips(Histogram<u64>);

/// Half of the round-trip time, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HalfRtt {
    /// Fastest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// One in a hundred takes longer.
    pub p99: f64,
    /// One in a thousand takes longer.
    pub p999: f64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("constant bounds are valid"))
    }
}

impl RoundTrips {
    /// Adds one round trip.
    #[inline]
    pub fn record(&mut self, round_trip_ns: u64) {
        self.0.saturating_record(round_trip_ns.max(1));
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Summary; all zero if nothing was recorded.
    pub fn half(&self) -> HalfRtt {
        let half_us = |ns: u64| ns as f64 / 2_000.0;
        HalfRtt {
            min: half_us(self.0.min()),
            p50: half_us(self.0.value_at_quantile(0.5)),
            p99: half_us(self.0.value_at_quantile(0.99)),
            p999: half_us(self.0.value_at_quantile(0.999)),
        }
    }
}

/// One number measured in several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rounds {
    /// Middle value.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Rounds {
    /// Summary of `values`; NaN if there are none.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Self {
            median,
            min: sorted.first().copied().unwrap_or(f64::NAN),
            max: sorted.last().copied().unwrap_or(f64::NAN),
            rounds: sorted.len(),
        }
    }

    /// Summary of one number of each.
    pub fn over<T>(list: &[T], number: impl Fn(&T) -> f64) -> Self {
        Self::of(&list.iter().map(number).collect::<Vec<_>>())
    }

    /// Half of [`Rounds::spread_percent`] as tables show it; a dash for one round.
    pub fn half_spread(&self) -> String {
        if self.rounds > 1 {
            format!("{:.0}", self.spread_percent() / 2.0)
        } else {
            "-".to_owned()
        }
    }

    /// (max − min) / median, in percent.
    pub fn spread_percent(&self) -> f64 {
        (self.max - self.min) / self.median * 100.0
    }
}

/// So many of them in words: `1 worker`, `2 workers`.
pub fn counted(count: usize, what: &str, ending: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        many => format!("{many} {what}{ending}"),
    }
}

/// A message size in readable units: `1.5 KiB`, `64 MiB`.
pub fn size_name(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percentiles are those of half the round trip, to three digits.
    #[test]
    fn half_of_the_round_trip() {
        let mut trips = RoundTrips::default();
        for ns in 1..=1000 {
            trips.record(ns * 1000);
        }
        let half = trips.half();
        assert!((half.min - 0.5).abs() < 0.001, "{half:?}");
        assert!((half.p50 - 250.0).abs() < 0.5, "{half:?}");
        assert!((half.p99 - 495.0).abs() < 1.0, "{half:?}");
        assert!((half.p999 - 499.5).abs() < 1.0, "{half:?}");
    }

    /// Medians of even and odd counts; an outlier moves only the spread.
    #[test]
    fn medians() {
        assert_eq!(Rounds::of(&[3.0, 1.0, 100.0]).median, 3.0);
        assert_eq!(Rounds::of(&[4.0, 1.0, 2.0, 100.0]).median, 3.0);
        assert!(Rounds::of(&[]).median.is_nan());
        assert_eq!(Rounds::of(&[1.0, 2.0, 5.0]).spread_percent(), 200.0);
        assert_eq!(Rounds::of(&[1.0, 2.0, 5.0]).half_spread(), "100");
        assert_eq!(Rounds::of(&[1.0]).half_spread(), "-");
    }

    /// Sizes that are no round number stay in bytes.
    #[test]
    fn names_of_sizes() {
        assert_eq!(size_name(1 << 20), "1 MiB");
        assert_eq!(size_name(65536), "64 KiB");
        assert_eq!(size_name(1500), "1500 B");
    }
}
