//! The clock of an endpoint: nanoseconds since it was made, from the processor's counter where it is reliable (about 10 ns a reading). Simulations
//! have another clock.

use tsumuji_proto::Instant;

/// A clock for drivers of an engine, which has none of its own.
pub trait Clock {
    /// Nanoseconds since some moment; never goes back.
    fn now(&self) -> Instant;
}

/// The machine's clock.
#[derive(Debug, Clone)]
pub(crate) struct SystemClock {
    counter: quanta::Clock,
    start: u64,
}

impl SystemClock {
    pub(crate) fn new() -> Self {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        Self { counter, start }
    }
}

impl Clock for SystemClock {
    /// A counter that goes back counts as no time passed.
    #[inline]
    fn now(&self) -> Instant {
        Instant::from_nanos(self.counter.delta_as_nanos(self.start, self.counter.raw()))
    }
}

/// Longer spans are cut to this one, so that the present time plus a span is still an `Instant`.
pub(crate) const LONGEST: std::time::Duration =
    std::time::Duration::from_secs(10 * 365 * 24 * 3600);

/// The present time plus `span`, which is cut to `LONGEST`.
pub(crate) fn after(span: std::time::Duration) -> std::time::Instant {
    std::time::Instant::now() + span.min(LONGEST)
}

/// The engine's span as the standard library's.
pub(crate) fn to_std(span: tsumuji_proto::Duration) -> std::time::Duration {
    std::time::Duration::from_nanos(span.as_nanos())
}

/// The standard library's span as the engine's; saturates (584 years).
pub(crate) fn from_std(span: std::time::Duration) -> tsumuji_proto::Duration {
    tsumuji_proto::Duration::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock follows the system's within a few percent and does not go back, also when the test is paused.
    #[test]
    fn follows_the_system_clock() {
        let before = std::time::Instant::now();
        let clock = SystemClock::new();
        let after = std::time::Instant::now();
        let mut last = clock.now();
        while after.elapsed() < std::time::Duration::from_millis(20) {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        let least = after.elapsed().as_nanos() as u64;
        let ours = clock.now().as_nanos();
        let most = before.elapsed().as_nanos() as u64;
        assert!(
            ours >= least - least / 20,
            "{ours} ns, at least {least} ns passed"
        );
        assert!(
            ours <= most + most / 20,
            "{ours} ns, at most {most} ns passed"
        );
    }

    /// A span without end is long.
    #[test]
    fn endless_spans_have_an_end() {
        let span = after(std::time::Duration::MAX) - std::time::Instant::now();
        assert!(span > LONGEST / 2);
    }

    /// Conversions saturate instead of wrapping.
    #[test]
    fn spans_saturate() {
        assert_eq!(from_std(std::time::Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(
            to_std(tsumuji_proto::Duration::from_micros(3)),
            std::time::Duration::from_micros(3)
        );
    }
}
