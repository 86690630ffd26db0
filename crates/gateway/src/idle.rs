//! How long the gateway looks again before it sleeps: as programs do, as long as that has helped lately.

use std::time::{Duration, Instant};

/// Failures in a row after which looking again stops, and every how many-th time it is tried all the same.
const FAILURES_MAX: u32 = 4;
const TRY_EVERY: u32 = 64;

#[derive(Debug)]
pub(crate) struct Idle {
    limit: Duration,
    failures: u32,
    waits: u32,
    since: Option<Instant>,
}

impl Idle {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            failures: 0,
            waits: 0,
            since: None,
        }
    }

    /// There was work.
    pub(crate) fn worked(&mut self) {
        if self.since.take().is_some() {
            self.failures = 0;
        }
    }

    /// There was none. True: it is time to sleep.
    pub(crate) fn is_time_to_sleep(&mut self) -> bool {
        let Some(since) = self.since else {
            self.waits = self.waits.wrapping_add(1);
            let is_try = self.waits.is_multiple_of(TRY_EVERY);
            if self.limit.is_zero() || (self.failures >= FAILURES_MAX && !is_try) {
                return true;
            }
            self.since = Some(Instant::now());
            return false;
        };
        if since.elapsed() < self.limit {
            std::hint::spin_loop();
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        self.since = None;
        true
    }
}
