//! Round-trip time to one peer, and the time-outs that follow from it (RFC 6298, RFC 8985).

use crate::time::Duration;
use crate::tuning::TUNING;

#[derive(Debug)]
pub(crate) struct Rtt {
    pub(crate) smoothed: Duration,
    pub(crate) variance: Duration,
    /// The latest sample, the peer's delay included.
    pub(crate) latest: Duration,
    sampled: bool,
}

impl Rtt {
    pub(crate) fn new() -> Self {
        Self {
            smoothed: TUNING.loss.initial_rtt,
            variance: TUNING.loss.initial_rtt.divided(2),
            latest: TUNING.loss.initial_rtt,
            sampled: false,
        }
    }

    /// Takes the time from a frame's sending to its acknowledgement, of which the peer says to have held it back for `delay`. If that is longer than
    /// the whole, it was of another frame, and nothing is subtracted.
    #[inline]
    pub(crate) fn sample(&mut self, elapsed: Duration, delay: Duration) {
        self.latest = elapsed;
        let rtt = if delay < elapsed {
            Duration::from_nanos(elapsed.as_nanos() - delay.as_nanos())
        } else {
            elapsed
        };
        if !self.sampled {
            self.sampled = true;
            self.smoothed = rtt;
            self.variance = rtt.divided(2);
            return;
        }
        let (smoothed, rtt) = (self.smoothed.as_nanos(), rtt.as_nanos());
        let deviation = smoothed.abs_diff(rtt);
        self.variance = Duration::from_nanos((3 * self.variance.as_nanos() + deviation) / 4);
        self.smoothed = Duration::from_nanos((7 * smoothed + rtt) / 8);
    }

    /// Silence after which the oldest frame is probed: smoothed + 4 × variance + the peer's delay, doubled for each attempt.
    #[inline]
    pub(crate) fn probe_after(&self, ack_delay: Duration, backoff: u32) -> Duration {
        // Times that were measured are far from an overflow.
        let estimate = self.smoothed.as_nanos() + 4 * self.variance.as_nanos();
        let base = Duration::from_nanos(estimate + ack_delay.as_nanos()).max(TUNING.loss.probe_min);
        if backoff == 0 {
            return base;
        }
        base.times(1 << backoff.min(12))
            .min(TUNING.loss.probe_max.max(base))
    }

    /// A frame sent this long ago, and overtaken, is lost.
    pub(crate) fn reordering_window(&self) -> Duration {
        (self.smoothed + self.variance).divided(4) + self.smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer's delay is subtracted, but a delay that cannot be of this frame makes no time of zero.
    #[test]
    fn delays_are_subtracted_if_they_fit() {
        let us = Duration::from_micros;
        for (elapsed, delay, sampled) in [
            (100, 30, 70),
            (100, 99, 1),
            (100, 100, 100),
            (100, 4000, 100),
        ] {
            let mut rtt = Rtt::new();
            rtt.sample(us(elapsed), us(delay));
            assert_eq!((rtt.smoothed, rtt.latest), (us(sampled), us(elapsed)));
        }
    }
}
