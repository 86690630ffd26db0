//! Sends updates as fast as they leave. Where the interface's own queue drops frames, sending more of them only makes those that get through older.
//!
//! Asked by `serve` before each step: either all updates of the step are sent, or none, so that no rows are left out again and again. What was not sent
//! is sent with a later lap, or as a repair. Reports and reliable messages are never held back.
//!
//! A rate limit is set at the first drop, to a little less than what left meanwhile, and raised while nothing is dropped.

use tsumuji_link::LinkCounters;

/// Between two readings of the link's counters.
const PERIOD_NS: u64 = 5_000_000;
/// Part of the rate that left when something was dropped.
const AFTER_DROP: f64 = 0.9;
/// Growth of the limit in a period without a drop: doubled in a third of a second.
const GROWTH: f64 = 1.01;
/// No limit any more, in bytes a second: that of any link.
const UNLIMITED: f64 = 100e9;
/// Never less than this, so that a limit can be found wrong: a frame each few milliseconds.
const LEAST: f64 = 100e3;
/// Unused rate is kept for so long.
const BURST_S: f64 = 0.02;

#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Bytes a second; `None`: nothing was dropped yet.
    limit: Option<f64>,
    /// Bytes that may be sent; below 0 until a step that was larger has left.
    tokens: f64,
    refilled_ns: u64,
    checked_ns: u64,
    /// Frames dropped on their way out, and bytes sent, at the last reading.
    seen: (u64, u64),
}

impl Throttle {
    /// Reads the link's counters from time to time, and sets the limit.
    pub(super) fn update(&mut self, now_ns: u64, counters: impl FnOnce() -> LinkCounters) {
        let span_ns = now_ns - self.checked_ns;
        if span_ns < PERIOD_NS {
            return;
        }
        let link = counters();
        let dropped = link.unsent_frames - self.seen.0;
        let left = (link.sent_bytes - self.seen.1) as f64 / (span_ns as f64 / 1e9);
        let is_first = self.checked_ns == 0;
        (self.checked_ns, self.seen) = (now_ns, (link.unsent_frames, link.sent_bytes));
        if is_first {
            return;
        }
        self.limit = match self.limit {
            _ if dropped > 0 => Some((AFTER_DROP * left).max(LEAST)),
            Some(limit) => Some(limit * GROWTH).filter(|limit| *limit < UNLIMITED),
            None => None,
        };
    }

    /// Whether the next step may send its updates.
    pub(super) fn is_open(&mut self, now_ns: u64) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        let since = (now_ns - self.refilled_ns) as f64 / 1e9;
        self.refilled_ns = now_ns;
        self.tokens = (self.tokens + limit * since).min(limit * BURST_S);
        self.tokens >= 0.0
    }

    /// Counts what a step sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        if self.limit.is_some() {
            self.tokens -= bytes as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cable of `rate` bytes a second behind a queue of `room` bytes; a sender offers a step of 10 frames each 100 µs. Returns dropped frames and bytes
    /// that left in the last of `seconds`, and whether steps were sent whole.
    fn send(rate: f64, seconds: u64) -> (u64, f64) {
        const FRAME: u64 = 1_000;
        let room = (0.05 * rate).max(20e3);
        let mut throttle = Throttle::default();
        let mut link = LinkCounters::default();
        let (mut queued, mut left, mut dropped) = (0.0f64, 0.0, 0);
        for step in 1..=seconds * 10_000 {
            let now = step * 100_000;
            let leaves = (rate * 1e-4).min(queued);
            queued -= leaves;
            let is_last = step > (seconds - 1) * 10_000;
            throttle.update(now, || link);
            if throttle.is_open(now) {
                for _ in 0..10 {
                    if queued + FRAME as f64 > room {
                        link.unsent_frames += 1;
                        dropped += u64::from(is_last);
                    } else {
                        queued += FRAME as f64;
                        link.sent_bytes += FRAME;
                        left += if is_last { FRAME as f64 } else { 0.0 };
                    }
                }
                throttle.sent(10 * FRAME as usize);
            }
        }
        (dropped, left)
    }

    /// A slow cable is used nearly whole with hardly a drop; a fast one is not limited.
    #[test]
    fn the_rate_of_the_cable_is_found() {
        for rate in [1.25e6, 12.5e6] {
            let (dropped, left) = send(rate, 4);
            let offered = 100_000.0;
            assert!((dropped as f64) < 0.02 * offered, "{rate}: {dropped}");
            assert!(left > 0.75 * rate, "{rate}: {left}");
        }
        let (dropped, left) = send(1.25e9, 2);
        assert_eq!((dropped, left), (0, 1e8));
    }
}
