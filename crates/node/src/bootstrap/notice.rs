//! What the user is told while workers are waited for: for whom, why, and for how long at most.
//!
//! Used by `keeper`, which knows when a wait begins and ends it.

use std::fmt::Display;
use std::time::{Duration, Instant};

use crate::absence::{QUIET, TOLD_EVERY};

/// Workers that are named; the others are counted.
const NAMED_MAX: usize = 8;

/// When to tell it next.
#[derive(Debug, Default)]
pub(super) struct Notice {
    at: Option<Instant>,
}

impl Notice {
    /// The line that is to be printed now, if any. `awaited`: workers that are waited for since `begun`, for `limit` at most, with the reason of each.
    pub(super) fn line(
        &mut self,
        now: Instant,
        (begun, limit): (Instant, Duration),
        mut awaited: impl Iterator<Item: Display>,
    ) -> Option<String> {
        let Some(first) = awaited.next() else {
            self.at = None;
            return None;
        };
        if now < *self.at.get_or_insert(begun + QUIET) {
            return None;
        }
        self.at = Some(now + TOLD_EVERY);
        let mut line = format!("waiting for {first}");
        for worker in awaited.by_ref().take(NAMED_MAX - 1) {
            line += &format!("; {worker}");
        }
        let more = awaited.count();
        if more > 0 {
            line += &format!("; and {more} more");
        }
        let waited = now.saturating_duration_since(begun).as_secs();
        line += &format!("; {waited} s so far, {} s at most\n", limit.as_secs_f64());
        Some(line)
    }

    /// The workers were suspended for so long.
    pub(super) fn postpone(&mut self, lost: Duration) {
        self.at = self.at.map(|at| at + lost);
    }

    /// When the next line may be due.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A wait is told after 3 s and then every 10 s; the next one begins anew.
    #[test]
    fn waits_are_told_now_and_then() {
        let (begun, mut notice) = (Instant::now(), Notice::default());
        let mut told = |begun: Instant, after: u64, awaited: &[&str]| {
            let now = begun + Duration::from_secs(after);
            notice.line(now, (begun, LIMIT), awaited.iter())
        };
        let line = |after| {
            Some(format!(
                "waiting for a; b; {after} s so far, 30 s at most\n"
            ))
        };
        let both = ["a", "b"];
        assert_eq!(told(begun, 2, &both), None);
        assert_eq!(told(begun, 3, &both), line(3));
        assert_eq!(told(begun, 12, &both), None);
        assert_eq!(told(begun, 13, &both), line(13));
        assert_eq!(told(begun, 14, &[]), None);
        let later = begun + Duration::from_secs(15);
        assert_eq!(told(later, 2, &both), None);
        assert_eq!(told(later, 4, &both), line(4));
    }

    /// Of many workers some are named, and time in which they are suspended does not count.
    #[test]
    fn lines_are_bounded_and_postponed() {
        let (begun, mut notice) = (Instant::now(), Notice::default());
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(notice.line(after(1), (begun, LIMIT), 1..=20), None);
        notice.postpone(Duration::from_secs(5));
        assert_eq!(notice.line(after(7), (after(5), LIMIT), 1..=20), None);
        let line = notice.line(after(8), (after(5), LIMIT), 1..=20);
        let wanted = "waiting for 1; 2; 3; 4; 5; 6; 7; 8; and 12 more; 3 s so far, 30 s at most\n";
        assert_eq!(line.as_deref(), Some(wanted));
    }
}
